//! Percent-encoding of texts in paths, queries and header names (RFC 3986, section 2.1).

/// A part of a query decoded; `+` stands for a space there, as in HTML forms. `None` where a `%` is
/// not followed by two hexadecimal digits, or where the bytes are no UTF-8.
pub fn decode_query(text: &str) -> Option<String> {
    decode(text, true)
}

/// A segment of a path decoded, in which `+` is itself. `None` as for [`decode_query`].
pub fn decode_segment(text: &str) -> Option<String> {
    decode(text, false)
}

fn decode(text: &str, plus_is_space: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// A text encoded for any part of a path or a query: everything but unreserved characters (RFC
/// 3986, section 2.3).
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let digit = |value: u8| char::from(b"0123456789ABCDEF"[usize::from(value)]);
            encoded.extend(['%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_text_is_decoded_whole_or_not_at_all() {
        for (text, query, segment) in [
            ("a%20b%2Bc+d", Some("a b+c d"), Some("a b+c+d")),
            ("%C3%A9%c3%a9", Some("éé"), Some("éé")),
            ("", Some(""), Some("")),
            ("%", None, None),
            ("%2", None, None),
            ("%+1", None, None),
            ("%zz", None, None),
            ("%ff", None, None),
        ] {
            assert_eq!(decode_query(text).as_deref(), query, "{text}");
            assert_eq!(decode_segment(text).as_deref(), segment, "{text}");
        }
    }

    #[test]
    fn everything_but_unreserved_characters_is_encoded() {
        assert_eq!(encode("a b/é&=+~"), "a%20b%2F%C3%A9%26%3D%2B~");
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded_to_itself(text in any::<String>()) {
            let encoded = encode(&text);
            prop_assert_eq!(decode_query(&encoded), Some(text.clone()));
            prop_assert_eq!(decode_segment(&encoded), Some(text));
        }
    }
}
