//! The encoding of an answer: compressed if large, indented if a person reads it.

use crate::respond::refusal_in_protobuf;
use crate::{Accept, Syntax, protobuf};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, StreamBody};
use master_client::{Body, BodyError, HeldBytes, body};
use std::io::{self, Write as _};

/// Answers above this size are compressed for clients that accept gzip (upstream:
/// `defaultGzipThresholdBytes`).
const LARGE: u64 = 128 << 10;
/// Bytes that a compressor takes while its answer is read.
const COMPRESSOR: usize = 256 << 10;
/// Bytes compressed at a time, so that other tasks run in between.
const PIECE: usize = 64 << 10;
/// Level of compression (upstream: 1).
const LEVEL: u32 = 1;
/// User agents whose answers are indented by default.
const INTERACTIVE_AGENTS: [&str; 3] = ["curl", "Wget", "Mozilla/5.0"];

/// How the client wants the answer encoded.
#[derive(Debug, Clone, Copy, Default)]
pub struct Encoding {
    /// Whether the client accepts gzip.
    pub gzip: bool,
    pretty: bool,
    /// Whether an error is written in protobuf.
    protobuf: bool,
}

impl Encoding {
    /// Reads the request's headers and its query parameter `pretty`.
    pub fn of(headers: &HeaderMap, pretty: &str) -> Self {
        let word = |name| {
            headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
        };
        let gzip = word(header::ACCEPT_ENCODING).split(',').any(takes_gzip);
        let agent = word(header::USER_AGENT);
        let pretty = match pretty {
            "" => INTERACTIVE_AGENTS
                .iter()
                .any(|program| agent.starts_with(program)),
            asked => matches!(asked, "1" | "t" | "T" | "true" | "TRUE" | "True"),
        };
        let accept = Accept::parse(headers);
        Self {
            gzip,
            pretty,
            protobuf: accept.is_ok_and(|accept| accept.syntax == Syntax::Protobuf),
        }
    }
}

fn takes_gzip(coding: &str) -> bool {
    let mut parts = coding.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let refused = parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"));
    name == "gzip" && !refused
}

/// Encodes an answer as the client wants it, piece by piece as the client reads it. Streams are
/// left unchanged.
pub fn finish(response: Response<Body>, encoding: Encoding) -> Response<Body> {
    let mut response = if encoding.protobuf {
        refusal_in_protobuf(response)
    } else {
        response
    };
    let Some(size) = response.body().size_hint().exact() else {
        return response;
    };
    if response.headers().contains_key(header::CONTENT_ENCODING) {
        return response;
    }
    let kind = response
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let pretty = encoding.pretty && kind == "application/json";
    let objects = kind.starts_with("application/json")
        || matches!(kind, "application/yaml" | protobuf::MEDIA);
    let gzip = encoding.gzip && objects && size > LARGE;
    if pretty || gzip {
        // From here on the body does not tell how much there is of it.
        let whole = usize::try_from(size).unwrap_or(usize::MAX);
        let extensions = response.extensions_mut();
        let held = extensions.get().map_or(whole, |HeldBytes(held)| *held);
        let more = if gzip { COMPRESSOR } else { 0 };
        extensions.insert(HeldBytes(held.saturating_add(more)));
    }
    if pretty {
        let mut indenter = JsonIndenter::default();
        change(&mut response, move |piece| {
            Ok(piece.map(|bytes| indenter.feed(bytes)).unwrap_or_default())
        });
    }
    if gzip {
        response
            .headers_mut()
            .insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response
            .headers_mut()
            .append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(LEVEL));
        change(&mut response, move |piece| {
            match piece {
                Some(bytes) => encoder.write_all(bytes)?,
                None => encoder.try_finish()?,
            }
            Ok(std::mem::take(encoder.get_mut()))
        });
    }
    response
}

/// Sends a body through a filter; after the last piece the filter is called with `None`.
fn change(
    response: &mut Response<Body>,
    filter: impl FnMut(Option<&[u8]>) -> io::Result<Vec<u8>> + Send + 'static,
) {
    let content = std::mem::replace(response.body_mut(), body(""));
    let pieces = stream::try_unfold(Some((content, Bytes::new(), filter)), |state| async move {
        let Some((mut content, mut rest, mut filter)) = state else {
            return Ok(None);
        };
        loop {
            if rest.is_empty() {
                let Some(frame) = content.frame().await else {
                    let last = filter(None).map_err(BodyError::from)?;
                    return Ok(Some((Frame::data(Bytes::from(last)), None)));
                };
                rest = frame?.into_data().unwrap_or_default();
            }
            let piece = rest.split_to(rest.len().min(PIECE));
            let made = filter(Some(&piece)).map_err(BodyError::from)?;
            tokio::task::yield_now().await;
            if !made.is_empty() {
                return Ok(Some((
                    Frame::data(Bytes::from(made)),
                    Some((content, rest, filter)),
                )));
            }
        }
    });
    *response.body_mut() = StreamBody::new(pieces).boxed_unsync();
}

/// Indents JSON: one line per value, by two spaces. Strings are left unchanged; the result for
/// invalid JSON is unspecified.
#[derive(Debug, Default)]
struct JsonIndenter {
    depth: usize,
    quoted: bool,
    escaped: bool,
    /// Whether the last byte was an opening brace or bracket: an empty one gets no line.
    opened: bool,
}

impl JsonIndenter {
    fn feed(&mut self, json: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(json.len() * 2);
        for byte in json {
            self.byte(*byte, &mut out);
        }
        out
    }

    fn byte(&mut self, byte: u8, out: &mut Vec<u8>) {
        if self.quoted {
            out.push(byte);
            self.quoted = self.escaped || byte != b'"';
            self.escaped = !self.escaped && byte == b'\\';
            return;
        }
        let closes = matches!(byte, b'}' | b']');
        self.depth -= usize::from(closes && self.depth > 0);
        if std::mem::take(&mut self.opened) != closes {
            self.line(out);
        }
        match byte {
            b':' => out.extend_from_slice(b": "),
            byte => out.push(byte),
        }
        match byte {
            b'{' | b'[' => {
                self.depth += 1;
                self.opened = true;
            }
            b',' => self.line(out),
            byte => self.quoted = byte == b'"',
        }
    }

    fn line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.resize(out.len() + 2 * self.depth, b' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::Read as _;

    fn answer(text: String) -> Response<Body> {
        let mut response = Response::new(body(text));
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        response
    }

    #[tokio::test]
    async fn only_large_answers_are_compressed_and_come_back_whole() {
        let encoding = Encoding {
            gzip: true,
            ..Encoding::default()
        };
        let small = finish(answer("[]".to_owned()), encoding);
        assert!(!small.headers().contains_key(header::CONTENT_ENCODING));
        let text: String = (0..60_000).map(|number| number.to_string()).collect();
        let large = finish(answer(text.clone()), encoding);
        assert_eq!(large.headers()[header::CONTENT_ENCODING], "gzip");
        let bytes = large.into_body().collect().await.unwrap().to_bytes();
        assert!(bytes.len() < text.len());
        let mut back = String::new();
        flate2::read::GzDecoder::new(&bytes[..])
            .read_to_string(&mut back)
            .unwrap();
        assert_eq!(back, text);
    }

    #[test]
    fn chunked_json_is_the_same_however_it_is_cut() {
        let value =
            json!({"a": [], "b": {}, "c": [1, {"d": "x{,:\"\\"}], "e": [[], [{}]], "f": "y"});
        let text = value.to_string();
        for size in 1..text.len() {
            let mut indenter = JsonIndenter::default();
            let out: Vec<u8> = text
                .as_bytes()
                .chunks(size)
                .flat_map(|piece| indenter.feed(piece))
                .collect();
            assert_eq!(
                String::from_utf8(out).unwrap(),
                serde_json::to_string_pretty(&value).unwrap()
            );
        }
    }

    #[test]
    fn wishes_are_read_as_upstream_does() {
        let of = |name, value: &'static str, pretty: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            Encoding::of(&headers, pretty)
        };
        assert!(of(header::ACCEPT_ENCODING, "deflate, gzip;q=1.0", "").gzip);
        assert!(!of(header::ACCEPT_ENCODING, "gzip;q=0", "").gzip);
        assert!(of(header::USER_AGENT, "curl/8.0", "").pretty);
        assert!(!of(header::USER_AGENT, "curl/8.0", "false").pretty);
        assert!(of(header::USER_AGENT, "kubectl", "true").pretty);
    }
}
