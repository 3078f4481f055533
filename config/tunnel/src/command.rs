//! The channels of a remote command: `channel.k8s.io`, `v4.channel.k8s.io` and `v5.channel.k8s.io`
//! (Kubernetes, `remotecommand`; KEP-4006), and the forms of the first two in base64, which
//! consoles in a browser ask for.
//!
//! Each WebSocket message begins with a byte that names its channel. A client writes to [`STDIN`]
//! and [`RESIZE`], the server to [`STDOUT`], [`STDERR`] and, once and last, a `Status` to
//! [`ERROR`]. Version 5 adds [`CLOSE`], by which a client ends its input while it goes on to read;
//! in version 4 the input ends with the connection only. In the forms in base64 a message is text:
//! the channel's digit, then the bytes in base64 ([`Base64`]).

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};
use std::borrow::Cow;

/// The command's input.
pub const STDIN: u8 = 0;
/// The command's output.
pub const STDOUT: u8 = 1;
/// The command's error output; unused if the command has a terminal.
pub const STDERR: u8 = 2;
/// How the command ended, as a `Status`.
pub const ERROR: u8 = 3;
/// The size of the client's terminal.
pub const RESIZE: u8 = 4;
/// Ends a channel: the message's second byte names it.
pub const CLOSE: u8 = 255;
/// Longest message about a size that is read; such a message has some 30 bytes.
pub(crate) const MAX_RESIZE: usize = 256;

/// Which of the protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `channel.k8s.io`: like version 4, but a failure is plain text and success sends nothing.
    V1,
    /// `base64.channel.k8s.io`: version 1 in base64.
    V1Base64,
    /// `v4.channel.k8s.io`.
    V4,
    /// `v4.base64.channel.k8s.io`: version 4 in base64.
    V4Base64,
    /// `v5.channel.k8s.io`.
    V5,
}

impl Version {
    /// All supported versions, the preferred one first.
    pub const ALL: [Self; 5] = [Self::V5, Self::V4, Self::V4Base64, Self::V1, Self::V1Base64];

    /// Its name as a WebSocket subprotocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "channel.k8s.io",
            Self::V1Base64 => "base64.channel.k8s.io",
            Self::V4 => "v4.channel.k8s.io",
            Self::V4Base64 => "v4.base64.channel.k8s.io",
            Self::V5 => "v5.channel.k8s.io",
        }
    }

    /// The best of those that a client offers, in the form of `Sec-WebSocket-Protocol`: names with
    /// commas between them.
    pub fn choose(offered: &str) -> Option<Self> {
        let offers = |version: &Self| offered.split(',').any(|name| name.trim() == version.name());
        Self::ALL.into_iter().find(offers)
    }

    /// Whether its messages are text in base64.
    pub fn is_base64(self) -> bool {
        matches!(self, Self::V1Base64 | Self::V4Base64)
    }
}

/// Decodes what upstream's server decodes (Go's `base64.StdEncoding`): the bits that the last
/// character has beyond the last byte may be set.
const DECODER: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// A message that is not base64 (RFC 4648, 4).
#[derive(Debug, thiserror::Error)]
#[error("a message is not in base64")]
pub struct NotBase64(#[source] base64::DecodeError);

/// Reads the messages of a client that writes in base64, from pieces of messages of any size, and
/// encodes those for it.
#[derive(Debug, Default)]
pub struct Base64 {
    /// The channel's digit has come.
    has_channel: bool,
    /// Up to three characters that make no byte yet.
    rest: Vec<u8>,
    decoded: Vec<u8>,
}

impl Base64 {
    /// The piece of the message of bytes that a piece of a message in base64 makes: with `starts`,
    /// the first byte names the channel. As [`Input::take`] takes it.
    ///
    /// # Errors
    /// It is not base64. Nothing of the message is to be used.
    pub fn take(&mut self, starts: bool, piece: &[u8], ends: bool) -> Result<&[u8], NotBase64> {
        self.decoded.clear();
        if starts {
            self.has_channel = false;
            self.rest.clear();
        }
        let text = match piece.split_first() {
            Some((digit, text)) if !self.has_channel => {
                self.has_channel = true;
                self.decoded.push(digit.wrapping_sub(b'0'));
                text
            }
            _ => piece,
        };
        // Go passes over the ends of lines, wherever they are.
        let characters = text.iter().filter(|byte| !matches!(byte, b'\r' | b'\n'));
        self.rest.extend(characters);
        // A message may end anywhere, and the decoder then says that it is cut off.
        let whole = if ends {
            self.rest.len()
        } else {
            self.rest.len() / 4 * 4
        };
        DECODER
            .decode_vec(&self.rest[..whole], &mut self.decoded)
            .map_err(NotBase64)?;
        self.rest.drain(..whole);
        Ok(&self.decoded)
    }

    /// The text of a message for the client.
    pub fn message(channel: u8, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(1 + bytes.len().div_ceil(3) * 4);
        text.push(char::from(b'0' + channel));
        STANDARD.encode_string(bytes, &mut text);
        text
    }
}

/// A message of a client to its command.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientMessage<'a> {
    /// Bytes for its input.
    Input(&'a [u8]),
    /// Its input has ended.
    EndOfInput,
    /// The client's terminal has this many columns and rows.
    Size {
        /// Columns.
        width: u16,
        /// Rows.
        height: u16,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Size {
    width: u16,
    height: u16,
}

/// The part of a message that was read so far.
#[derive(Debug)]
enum Message {
    Nothing,
    Input,
    /// A message of a channel that says something when it is whole.
    Whole(u8, Vec<u8>),
    Ignored,
}

/// Reads what a client writes, from pieces of messages of any size.
///
/// As upstream does, it ignores channels that a client has no reason to write to, and sizes that
/// can't be read.
#[derive(Debug)]
pub struct Input {
    version: Version,
    message: Message,
    ended: bool,
}

impl Input {
    /// A reader of one client.
    pub fn new(version: Version) -> Self {
        Self {
            version,
            message: Message::Nothing,
            ended: false,
        }
    }

    /// The message on [`ERROR`] for the end of a command, if any; `status` is the `Status`.
    pub fn end<'a>(&self, status: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        #[derive(Deserialize)]
        struct Status {
            status: String,
            #[serde(default)]
            message: String,
        }
        if !matches!(self.version, Version::V1 | Version::V1Base64) {
            return Some(Cow::Borrowed(status));
        }
        let Status { status, message } = serde_json::from_slice(status).ok()?;
        (status != "Success").then(|| Cow::Owned(message.into_bytes()))
    }

    /// Takes a piece of a message: whether it starts and ends the message, as
    /// [`crate::websocket::Event::Data`] tells.
    pub fn take<'a>(
        &mut self,
        starts: bool,
        mut bytes: &'a [u8],
        ends: bool,
    ) -> Option<ClientMessage<'a>> {
        if starts {
            self.message = Message::Nothing;
        }
        if let (Message::Nothing, Some((channel, rest))) = (&self.message, bytes.split_first()) {
            bytes = rest;
            self.message = match *channel {
                STDIN => Message::Input,
                CLOSE if self.version == Version::V5 => Message::Whole(CLOSE, Vec::new()),
                RESIZE => Message::Whole(RESIZE, Vec::new()),
                _ => Message::Ignored,
            };
        }
        match &mut self.message {
            Message::Input if !bytes.is_empty() && !self.ended => Some(ClientMessage::Input(bytes)),
            Message::Whole(channel, known) => {
                let room = MAX_RESIZE - known.len();
                known.extend_from_slice(&bytes[..room.min(bytes.len())]);
                let message = ends.then(|| whole(*channel, known)).flatten();
                if message != Some(ClientMessage::EndOfInput) {
                    return message;
                }
                // It ends once.
                (!std::mem::replace(&mut self.ended, true)).then_some(ClientMessage::EndOfInput)
            }
            Message::Nothing | Message::Input | Message::Ignored => None,
        }
    }
}

fn whole(channel: u8, known: &[u8]) -> Option<ClientMessage<'static>> {
    if channel == CLOSE {
        return (known == [STDIN]).then_some(ClientMessage::EndOfInput);
    }
    size(known)
}

/// Reads the size of a terminal.
pub(crate) fn size(text: &[u8]) -> Option<ClientMessage<'static>> {
    let Size { width, height } = serde_json::from_slice(text).ok()?;
    Some(ClientMessage::Size { width, height })
}

/// The `Status` of a command that ended with an exit code.
pub fn ended(code: i32) -> Vec<u8> {
    if code == 0 {
        return bytes(&json!({"metadata": {}, "status": "Success"}));
    }
    bytes(&json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("command terminated with non-zero exit code: exit status {code}"),
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
    }))
}

/// The `Status` of a command that could not be run, or whose exit code is unknown.
pub fn failed(why: &str) -> Vec<u8> {
    internal(&format!("error executing command in container: {why}"))
}

/// The `Status` of streams that could not be attached to, or no longer.
pub fn not_attached(why: &str) -> Vec<u8> {
    internal(&format!("error attaching to container: {why}"))
}

fn internal(message: &str) -> Vec<u8> {
    bytes(&json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("Internal error occurred: {message}"),
        "reason": "InternalError",
        "details": {"causes": [{"message": message}]},
        "code": 500,
    }))
}

fn bytes(status: &Value) -> Vec<u8> {
    status.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_best_protocol_that_is_offered_is_chosen() {
        let chosen = |offered| Version::choose(offered).map(Version::name);
        assert_eq!(
            chosen("v4.channel.k8s.io, v5.channel.k8s.io"),
            Some("v5.channel.k8s.io")
        );
        assert_eq!(
            chosen("v4.channel.k8s.io,v3.channel.k8s.io"),
            Some("v4.channel.k8s.io")
        );
        assert_eq!(chosen("channel.k8s.io"), Some("channel.k8s.io"));
        for base64 in ["base64.channel.k8s.io", "v4.base64.channel.k8s.io"] {
            assert_eq!(chosen(base64), Some(base64));
        }
        assert_eq!(chosen("v3.channel.k8s.io"), None);
        assert_eq!(chosen(""), None);
    }

    #[test]
    fn a_client_of_the_first_version_is_informed_of_a_failure_in_words() {
        let written = |version, status: &[u8]| {
            let input = Input::new(version);
            let written = input.end(status)?;
            Some(String::from_utf8(written.into_owned()).unwrap())
        };
        let well = written(Version::V4, &ended(0)).unwrap();
        assert!(well.contains("Success"), "{well}");
        assert_eq!(written(Version::V1, &ended(0)), None);
        let words = "command terminated with non-zero exit code: exit status 7";
        for first in [Version::V1, Version::V1Base64] {
            assert_eq!(written(first, &ended(7)).as_deref(), Some(words));
        }
    }

    #[test]
    fn a_message_that_is_not_base64_is_refused() {
        for message in ["0YQ", "0Y!==", "0YQ==YQ=="] {
            let mut reader = Base64::default();
            assert!(
                reader.take(true, message.as_bytes(), true).is_err(),
                "{message}"
            );
        }
        let mut reader = Base64::default();
        assert_eq!(reader.take(true, b"4", true).unwrap(), [RESIZE]);
        assert_eq!(reader.take(true, b"", true).unwrap(), [0_u8; 0]);
        assert_eq!(reader.take(true, b"0YQ==", true).unwrap(), b"\0a");
        assert_eq!(Base64::message(STDOUT, b"a"), "1YQ==");
    }

    #[test]
    fn ends_of_lines_and_unused_bits_in_base64_are_passed_over() {
        let mut reader = Base64::default();
        for message in ["0YWJj\r\nZA==\n", "0Y\nWJjZ\rA=\n=", "0YWJjZB=="] {
            let decoded = reader.take(true, message.as_bytes(), true).unwrap();
            assert_eq!(decoded, b"\0abcd", "{message:?}");
        }
        let mut whole = Vec::new();
        for (starts, piece, ends) in [
            (true, "0YW\n", false),
            (false, "Jj\r\nZ", false),
            (false, "A\n==", true),
        ] {
            whole.extend_from_slice(reader.take(starts, piece.as_bytes(), ends).unwrap());
        }
        assert_eq!(whole, b"\0abcd");
    }

    #[test]
    fn each_channel_of_a_client_is_understood_and_others_are_passed_over() {
        let mut input = Input::new(Version::V5);
        assert_eq!(
            input.take(true, b"\x00ab", true),
            Some(ClientMessage::Input(b"ab"))
        );
        let size = ClientMessage::Size {
            width: 80,
            height: 24,
        };
        assert_eq!(
            input.take(true, b"\x04{\"Width\":80,", false),
            None,
            "half a size"
        );
        assert_eq!(input.take(false, b"\"Height\":24}", true), Some(size));
        for ignored in [
            &b"\x01x"[..],
            b"\x03x",
            b"\x04{}",
            b"\xff\x01",
            b"\x09",
            b"",
        ] {
            assert_eq!(input.take(true, ignored, true), None, "{ignored:?}");
        }
        assert_eq!(
            input.take(true, b"\xff\x00", true),
            Some(ClientMessage::EndOfInput)
        );
        assert_eq!(input.take(true, b"\xff\x00", true), None, "it ends once");
        assert_eq!(input.take(true, b"\x00more", true), None, "after the end");
        let mut old = Input::new(Version::V4);
        assert_eq!(old.take(true, b"\xff\x00", true), None);
    }

    #[test]
    fn a_long_message_about_a_size_takes_no_more_memory_than_a_short_one() {
        let mut input = Input::new(Version::V5);
        assert_eq!(input.take(true, b"\x04", false), None);
        for _ in 0..1000 {
            assert_eq!(input.take(false, &[b' '; 100], false), None);
        }
        let Message::Whole(_, known) = &input.message else {
            unreachable!("the message is not whole")
        };
        assert_eq!(known.len(), MAX_RESIZE);
        assert_eq!(input.take(false, b"{}", true), None);
    }

    #[test]
    fn an_exit_code_is_written_as_clients_read_it() {
        let status: Value = serde_json::from_slice(&ended(3)).unwrap();
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(
            status["details"]["causes"][0],
            json!({"reason": "ExitCode", "message": "3"})
        );
        let status: Value = serde_json::from_slice(&ended(0)).unwrap();
        assert_eq!(status["status"], "Success");
    }

    proptest! {
        #[test]
        fn messages_in_base64_arrive_whole_however_they_are_cut(text in proptest::collection::vec(any::<u8>(), 0..500), cut in 1_usize..50) {
            let message = Base64::message(STDIN, &text).into_bytes();
            let (mut reader, mut read) = (Base64::default(), Vec::new());
            let last = message.len().div_ceil(cut) - 1;
            for (number, piece) in message.chunks(cut).enumerate() {
                read.extend_from_slice(reader.take(number == 0, piece, number == last).unwrap());
            }
            prop_assert_eq!(read, [&[STDIN], &text[..]].concat());
        }

        #[test]
        fn input_arrives_whole_however_its_messages_are_cut(text in proptest::collection::vec(any::<u8>(), 0..2_000), cut in 1_usize..50) {
            let mut message = vec![STDIN];
            message.extend_from_slice(&text);
            let (mut input, mut read) = (Input::new(Version::V4), Vec::new());
            let last = message.len().div_ceil(cut) - 1;
            for (number, piece) in message.chunks(cut).enumerate() {
                if let Some(ClientMessage::Input(bytes)) = input.take(number == 0, piece, number == last) {
                    read.extend_from_slice(bytes);
                }
            }
            prop_assert_eq!(read, text);
        }
    }
}
