//! Formats of names (apimachinery `util/validation`), with upstream's error texts.

/// RFC 1123 subdomain: names of most objects.
///
/// # Errors
/// Upstream's text for a name of another format.
pub fn subdomain(name: &str) -> Result<(), String> {
    // A DNS name has 255 bytes on the wire, with a length before each label and a root.
    if name.len() > 253 {
        return Err("must be no more than 253 bytes".to_owned());
    }
    if !name.is_empty() && name.split('.').all(is_label) {
        return Ok(());
    }
    Err("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
         start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        .to_owned())
}

/// RFC 1123 label: names of namespaces, services, containers and volumes.
///
/// # Errors
/// Upstream's text for a name of another format.
pub fn label(name: &str) -> Result<(), String> {
    if name.len() > 63 {
        return Err("must be no more than 63 bytes".to_owned());
    }
    if is_label(name) {
        return Ok(());
    }
    Err("a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
         with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
        .to_owned())
}

/// RFC 1035 label: versions of APIs.
///
/// # Errors
/// Upstream's text for a name of another format.
pub fn dns_label(name: &str) -> Result<(), String> {
    if name.len() > 63 {
        return Err("must be no more than 63 bytes".to_owned());
    }
    if is_label(name) && name.starts_with(|first: char| first.is_ascii_lowercase()) {
        return Ok(());
    }
    Err("a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
         character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation \
         is '[a-z]([-a-z0-9]*[a-z0-9])?')"
        .to_owned())
}

/// Subdomain whose first part is `*`.
///
/// # Errors
/// Upstream's text for a name of another format.
pub fn wildcard(name: &str) -> Result<(), String> {
    if name.len() > 253 {
        return Err("must be no more than 253 bytes".to_owned());
    }
    if name
        .strip_prefix("*.")
        .is_some_and(|rest| !rest.is_empty() && rest.split('.').all(is_label))
    {
        return Ok(());
    }
    Err("a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of \
         lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', \
         regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        .to_owned())
}

/// Part of a path: names of roles and bindings.
///
/// # Errors
/// Upstream's text for a name of another format.
pub fn path_segment(name: &str) -> Result<(), String> {
    // It stands in URLs as it is: it must not be read as another path, nor be unescaped.
    if matches!(name, "." | "..") {
        return Err(format!("may not be '{name}'"));
    }
    match name.chars().find(|c| matches!(c, '/' | '%')) {
        Some(bad) => Err(format!("may not contain '{bad}'")),
        None => Ok(()),
    }
}

/// `domain/path`, such as a finalizer or a controller.
///
/// # Errors
/// Upstream's text for a name of another format.
pub fn domain_path(name: &str) -> Result<(), String> {
    let Some((domain, path)) = name
        .split_once('/')
        .filter(|(domain, path)| !domain.is_empty() && !path.is_empty())
    else {
        return Err("must be a domain-prefixed path (such as \"acme.io/foo\")".to_owned());
    };
    subdomain(domain)?;
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"!$&'()*+,;=:@-._~%/".contains(&b);
    if path.bytes().all(fits) {
        return Ok(());
    }
    Err("Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')".to_owned())
}

fn is_label(part: &str) -> bool {
    let ends =
        |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = part.as_bytes();
    ends(bytes.first())
        && ends(bytes.last())
        && bytes
            .iter()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

/// Qualified name: keys of labels, annotations, taints.
///
/// # Errors
/// Upstream's text for a name of another format.
pub fn qualified(name: &str) -> Result<(), String> {
    let (prefix, own) = match name.split_once('/') {
        Some((prefix, own)) => (Some(prefix), own),
        None => (None, name),
    };
    if own.contains('/') {
        return Err(
            "a valid label key must consist of alphanumeric characters, '-', '_' or '.', with an optional DNS \
                    subdomain prefix and '/'"
                .to_owned(),
        );
    }
    if let Some(prefix) = prefix {
        if prefix.is_empty() {
            return Err("prefix part must be non-empty".to_owned());
        }
        subdomain(prefix).map_err(|fault| format!("prefix part {fault}"))?;
    }
    if own.is_empty() {
        return Err("name part must be non-empty".to_owned());
    }
    if own.len() > 63 {
        return Err("name part must be no more than 63 bytes".to_owned());
    }
    if is_qualified(own) {
        return Ok(());
    }
    Err("name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
         alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
         '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
        .to_owned())
}

fn is_qualified(part: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = part.as_bytes();
    ends(bytes.first())
        && ends(bytes.last())
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Value of a label.
///
/// # Errors
/// Upstream's text for a name of another format.
pub fn label_value(value: &str) -> Result<(), String> {
    if value.len() > 63 {
        return Err("must be no more than 63 bytes".to_owned());
    }
    if value.is_empty() || is_qualified(value) {
        return Ok(());
    }
    Err("a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start \
         and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
         validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
        .to_owned())
}

/// Key of a config map or secret.
///
/// # Errors
/// Upstream's text for a name of another format.
pub fn config_key(key: &str) -> Result<(), String> {
    if key.len() > 253 {
        return Err("must be no more than 253 bytes".to_owned());
    }
    // A key becomes a file's name, and kubelets keep versions of a volume's files in `..data` and
    // the like.
    if key == "." || key.starts_with("..") {
        return Err(format!(
            "must not {}",
            if key == "." {
                "be '.'"
            } else {
                "start with '..'"
            }
        ));
    }
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if !key.is_empty() && key.bytes().all(fits) {
        return Ok(());
    }
    Err("a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
         'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
        .to_owned())
}

/// Name of an environment variable: anything printable but `=`.
///
/// # Errors
/// Upstream's text for a name of another format.
pub fn env_name(name: &str) -> Result<(), String> {
    // KEP-4369: before it a name was a C identifier that could have dots and dashes, too.
    if name
        .bytes()
        .all(|b| (b' '..=b'~').contains(&b) && b != b'=')
    {
        return Ok(());
    }
    Err("a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned())
}

/// A C identifier: the part of an attribute's name after its domain.
///
/// # Errors
/// Upstream's text for a name of another format.
pub fn identifier(name: &str) -> Result<(), String> {
    let word = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    if name.bytes().next().is_some_and(word) && name.bytes().all(|b| word(b) || b.is_ascii_digit())
    {
        return Ok(());
    }
    Err("a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric \
         characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is \
         '[A-Za-z_][A-Za-z0-9_]*')"
        .to_owned())
}

/// Name of a port (IANA service name).
///
/// # Errors
/// Upstream's text for a name of another format.
pub fn port_name(name: &str) -> Result<(), String> {
    if name.len() > 15 {
        return Err("must be no more than 15 bytes".to_owned());
    }
    if !name
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    {
        return Err(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        return Err("must contain at least one letter (a-z)".to_owned());
    }
    if name.contains("--") {
        return Err("must not contain consecutive hyphens".to_owned());
    }
    if name.starts_with('-') || name.ends_with('-') {
        return Err("must not begin or end with a hyphen".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_judged_as_upstream_does() {
        for good in ["a", "a-b.c", "0", "example.com"] {
            assert!(subdomain(good).is_ok(), "{good}");
        }
        for bad in ["", "A", "-a", "a-", "a..b", "a_b", &"a".repeat(254)] {
            assert!(subdomain(bad).is_err(), "{bad}");
        }
        assert!(label("a.b").is_err());
        assert!(qualified("example.com/Name_1").is_ok());
        for bad in ["", "/a", "a/", "a/b/c", "Ex.com/a", "-a"] {
            assert!(qualified(bad).is_err(), "{bad}");
        }
        assert!(label_value("").is_ok());
        assert!(label_value("a b").is_err());
        assert!(port_name("http").is_ok());
        assert!(port_name("80").is_err());
        assert!(config_key("..a").is_err());
    }
}
