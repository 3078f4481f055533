//! JSON that is cut into parts without a parser.

use memchr::memchr2;

/// Where a string ends: the place of the closing quote, from that of the opening one. `None` if the
/// text ends first.
///
/// Objects consist of strings mostly, so each is searched by vectors rather than byte by byte.
pub fn string_end(json: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        at += memchr2(b'"', b'\\', json.get(at..)?)?;
        if json[at] == b'"' {
            return Some(at);
        }
        // What follows a backslash ends no string.
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same, byte by byte.
    fn slow_end(json: &[u8], start: usize) -> Option<usize> {
        let mut at = start + 1;
        while *json.get(at)? != b'"' {
            at += if json[at] == b'\\' { 2 } else { 1 };
        }
        Some(at)
    }

    proptest! {
        #[test]
        fn a_string_ends_at_the_first_quote_that_is_not_escaped(text in r#""[a"\\é]{0,40}"#) {
            let json = text.as_bytes();
            for start in 0..json.len() {
                prop_assert_eq!(string_end(json, start), slow_end(json, start));
            }
        }
    }
}
