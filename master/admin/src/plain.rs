//! Untrusted texts, cleaned for a terminal, and names, checked for use in a path.

/// The text with control characters replaced, except line ends and tabs, so that it cannot control
/// the terminal.
pub(crate) fn clean(text: &str) -> String {
    let plain = |c: char| {
        if c.is_control() && c != '\n' && c != '\t' {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    text.chars().map(plain).collect()
}

/// A name that needs no escaping in a path (RFC 1123).
pub(crate) fn node_name(text: &str) -> Result<String, String> {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let fits = (1..=253).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with('.');
    fits.then(|| text.to_owned())
        .ok_or_else(|| "a node's name has a-z, 0-9, `-` and `.`".to_owned())
}

/// A value escaped for a query (RFC 3986: all but the unreserved characters are escaped).
pub(crate) fn escaped(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect::<Vec<_>>().concat()
}
