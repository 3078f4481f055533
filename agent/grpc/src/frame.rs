//! Messages as gRPC puts them into a body: a byte that says whether they are compressed, their
//! length in four bytes, the message.

use crate::Error;
use bytes::{Buf, Bytes};
use prost::Message;

/// The request's body: one message, not compressed.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut frame = vec![0];
    frame.extend(length.to_be_bytes());
    frame.extend(message);
    frame.into()
}

/// The message of an answer's body.
///
/// # Errors
/// The body is compressed, is not exactly one message, or holds one of another type.
pub fn message<A: Message + Default>(mut body: Bytes) -> Result<A, Error> {
    if body.len() < 5 || body.get_u8() != 0 {
        return Err(Error::Frame);
    }
    let length = body.get_u32();
    if usize::try_from(length).ok() != Some(body.len()) {
        return Err(Error::Frame);
    }
    Ok(A::decode(body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct Named {
        #[prost(string, tag = "1")]
        name: String,
    }

    fn named(name: &str) -> Named {
        let name = name.to_owned();
        Named { name }
    }

    #[test]
    fn a_request_is_one_message_that_is_not_compressed() {
        assert_eq!(framed(&named(""))[..], [0, 0, 0, 0, 0]);
        assert_eq!(framed(&named("ab"))[..], [0, 0, 0, 0, 4, 10, 2, b'a', b'b']);
    }

    #[test]
    fn an_answer_is_exactly_one_message() {
        let read = |bytes: &[u8]| message::<Named>(Bytes::copy_from_slice(bytes)).ok();
        let whole = framed(&named("ab"));
        assert_eq!(read(&whole), Some(named("ab")));
        assert_eq!(read(&whole[..8]), None, "a part of it");
        assert_eq!(read(&[&whole[..], &[0]].concat()), None, "more than it");
        assert_eq!(read(&[&[1][..], &whole[1..]].concat()), None, "compressed");
        assert_eq!(read(&[0, 0, 0, 0, 1, 10]), None, "of another type");
    }
}
