//! How a server says whether it did what was asked: by headers, or by trailers after the message.

use http::HeaderMap;

/// The names of gRPC's status codes, as Go prints them.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// The status of a call, in the server's words: they are as long as headers may be, and hold any
/// character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The code as it was sent: a number, if the server keeps to the protocol.
    pub code: String,
    /// The server's message; empty if there is none.
    pub message: String,
}

impl Status {
    /// The status that headers or trailers name.
    pub(crate) fn of(fields: &HeaderMap) -> Option<Self> {
        let text = |name: &str| fields.get(name).and_then(|value| value.to_str().ok());
        Some(Self {
            code: text("grpc-status")?.to_owned(),
            message: unescaped(text("grpc-message").unwrap_or_default()),
        })
    }

    /// Whether the server did what was asked.
    pub fn is_ok(&self) -> bool {
        self.code == "0"
    }

    /// The code's name, if it is one of the protocol's.
    pub fn name(&self) -> Option<&'static str> {
        let number: usize = self.code.parse().ok()?;
        CODES.get(number).copied()
    }
}

/// Text in which `%41` stands for `A`, as gRPC encodes messages.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| *first == b'%');
        let byte = escaped
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_status_has_its_name_and_its_message_in_plain_text() {
        let of = |code: &str| {
            let fields = [("grpc-status", code), ("grpc-message", "no%20such%20disk")];
            let pairs = fields.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            Status::of(&pairs.into_iter().collect()).unwrap()
        };
        let refused = of("13");
        assert_eq!((refused.name(), refused.is_ok()), (Some("Internal"), false));
        assert_eq!(refused.message, "no such disk");
        assert_eq!(of("99").name(), None);
        assert!(of("0").is_ok());
        assert_eq!(Status::of(&HeaderMap::new()), None);
    }

    proptest! {
        #[test]
        fn no_escape_panics(text in "[%0-9a-fA-Fx]{0,12}") {
            prop_assert!(unescaped(&text).len() <= 3 * text.len());
        }
    }
}
