//! Quoted texts as the downward API writes them.

use std::fmt::Write as _;

/// A text in double quotes, as Go's `strconv.Quote` makes it: upstream's kubelet writes labels and
/// annotations with it, and programs in pods read them so.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        // Writing to a String cannot fail.
        let _written = match character {
            '"' => out.write_str("\\\""),
            '\\' => out.write_str("\\\\"),
            '\u{7}' => out.write_str("\\a"),
            '\u{8}' => out.write_str("\\b"),
            '\u{c}' => out.write_str("\\f"),
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            '\u{b}' => out.write_str("\\v"),
            ' '..='~' => out.write_char(character),
            other if is_printable(other) => out.write_char(other),
            other => match u32::from(other) {
                code @ ..0x80 => write!(out, "\\x{code:02x}"),
                code @ 0x80..0x1_0000 => write!(out, "\\u{code:04x}"),
                code => write!(out, "\\U{code:08x}"),
            },
        };
    }
    out.push('"');
    out
}

/// Whether a character beyond ASCII is a letter, mark, number, punctuation or symbol
/// (`strconv.IsPrint`). Rust escapes all others. It also escapes a mark that begins a text, so here
/// a letter is before it.
fn is_printable(character: char) -> bool {
    let text: String = ['a', character].iter().collect();
    text.escape_debug().nth(1) == Some(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Go writes, with its table of Unicode 15.
    #[test]
    fn texts_are_quoted_as_go_quotes_them() {
        for (text, expected) in [
            ("", r#""""#),
            (r#"say "a\b" it's"#, r#""say \"a\\b\" it's""#),
            ("\u{7}\u{8}\u{c}\n\r\t\u{b}", r#""\a\b\f\n\r\t\v""#),
            ("\0\u{1b}\u{1f}\u{7f}", r#""\x00\x1b\x1f\x7f""#),
            ("\u{80}\u{85}\u{a0}\u{ad}", r#""\u0080\u0085\u00a0\u00ad""#),
            (
                "\u{200b}\u{2028}\u{3000}\u{e000}\u{feff}\u{ffff}",
                r#""\u200b\u2028\u3000\ue000\ufeff\uffff""#,
            ),
            (
                "\u{e0001}\u{f0000}\u{10ffff}",
                r#""\U000e0001\U000f0000\U0010ffff""#,
            ),
            ("\u{301}e\u{301}", "\"\u{301}e\u{301}\""),
            ("é ☺ 日本 😀 \u{fffd}", "\"é ☺ 日本 😀 \u{fffd}\""),
        ] {
            assert_eq!(quoted(text), expected, "{text:?}");
        }
    }
}
