//! What the path of a proxied request names.

/// The target that a path names: `NAME`, `NAME:PORT`, `SCHEME:NAME:PORT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyTarget<'a> {
    /// Whether TLS is asked for, or refused.
    pub tls: Option<bool>,
    /// The object's name.
    pub name: &'a str,
    /// The port as it is named; empty for none.
    pub port: &'a str,
}

impl<'a> ProxyTarget<'a> {
    /// Reads it; `None` where it is none of these.
    pub fn parse(text: &'a str) -> Option<Self> {
        let place = match text.split(':').collect::<Vec<_>>().as_slice() {
            [name] => Self {
                tls: None,
                name,
                port: "",
            },
            [name, port] => Self {
                tls: None,
                name,
                port,
            },
            ["https", name, port] => Self {
                tls: Some(true),
                name,
                port,
            },
            ["http" | "", name, port] => Self {
                tls: Some(false),
                name,
                port,
            },
            _ => return None,
        };
        (!place.name.is_empty()).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_in_all_their_forms() {
        let place = |tls, name, port| Some(ProxyTarget { tls, name, port });
        assert_eq!(ProxyTarget::parse("n1"), place(None, "n1", ""));
        assert_eq!(ProxyTarget::parse("n1:10250"), place(None, "n1", "10250"));
        assert_eq!(
            ProxyTarget::parse("https:n1:10250"),
            place(Some(true), "n1", "10250")
        );
        assert_eq!(
            ProxyTarget::parse("http:n1:web"),
            place(Some(false), "n1", "web")
        );
        for bad in ["", "ftp:n1:1", "a:b:c:d", ":80"] {
            assert_eq!(ProxyTarget::parse(bad), None, "{bad}");
        }
    }
}
