//! `WWW-Authenticate`: the proof that a registry asks for (RFC 9110, section 11.6.1).

/// Longest header that is read.
const MAX_HEADER: usize = 8 * 1024;
/// Most challenges, and most parameters of one.
const MAX_PARTS: usize = 16;

/// The proof that a registry asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Challenge {
    /// A token of the service at `realm` (RFC 6750, as the distribution specification uses it).
    Bearer {
        /// Address of the token service, as the registry wrote it.
        realm: String,
        /// The registry's name at the token service.
        service: Option<String>,
        /// The access that the token is for.
        scope: Option<String>,
    },
    /// Name and password (RFC 7617).
    Basic,
}

impl Challenge {
    /// The challenge to answer among those of a header: Bearer, where it is there with a realm,
    /// else Basic. Reading stops at the first syntax error.
    pub fn read(header: &str) -> Option<Self> {
        if header.len() > MAX_HEADER {
            return None;
        }
        let all = parse(header);
        let bearer = all
            .iter()
            .find(|one| one.scheme == "bearer" && one.get("realm").is_some());
        match bearer {
            Some(one) => Some(Self::Bearer {
                realm: one.get("realm").unwrap_or_default().to_owned(),
                service: one.get("service").map(str::to_owned),
                scope: one.get("scope").map(str::to_owned),
            }),
            None => all
                .iter()
                .any(|one| one.scheme == "basic")
                .then_some(Self::Basic),
        }
    }
}

/// One challenge with its parameters; scheme and names in lower case.
#[derive(Debug, Default)]
struct Raw {
    scheme: String,
    parameters: Vec<(String, String)>,
}

impl Raw {
    fn get(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

fn parse(header: &str) -> Vec<Raw> {
    let mut all: Vec<Raw> = Vec::new();
    let mut rest = Scanner(header);
    loop {
        rest.skip(|b| matches!(b, b' ' | b'\t' | b','));
        let word = rest.take(is_token);
        if word.is_empty() {
            return all;
        }
        let mut ahead = Scanner(rest.0);
        ahead.skip(is_space);
        if ahead.eat('=') {
            // A parameter of the challenge before it.
            ahead.skip(is_space);
            let Some(value) = ahead.value() else {
                return all;
            };
            let Some(challenge) = all
                .last_mut()
                .filter(|one| one.parameters.len() < MAX_PARTS)
            else {
                return all;
            };
            challenge
                .parameters
                .push((word.to_ascii_lowercase(), value));
            rest = ahead;
        } else if all.len() < MAX_PARTS {
            all.push(Raw {
                scheme: word.to_ascii_lowercase(),
                parameters: Vec::new(),
            });
            rest.skip_token68();
        } else {
            return all;
        }
    }
}

/// What is left of the header.
struct Scanner<'a>(&'a str);

impl<'a> Scanner<'a> {
    fn take(&mut self, wanted: impl Fn(u8) -> bool) -> &'a str {
        let end = self
            .0
            .bytes()
            .position(|b| !wanted(b))
            .unwrap_or(self.0.len());
        // Only ASCII bytes are wanted, so that the end is a boundary of characters.
        let (taken, rest) = self.0.split_at_checked(end).unwrap_or((self.0, ""));
        self.0 = rest;
        taken
    }

    fn skip(&mut self, wanted: impl Fn(u8) -> bool) {
        self.take(wanted);
    }

    fn eat(&mut self, wanted: char) -> bool {
        self.0
            .strip_prefix(wanted)
            .inspect(|rest| self.0 = rest)
            .is_some()
    }

    /// A token or a quoted string.
    fn value(&mut self) -> Option<String> {
        if !self.eat('"') {
            let token = self.take(is_token);
            return (!token.is_empty()).then(|| token.to_owned());
        }
        let mut value = String::new();
        let mut characters = self.0.chars();
        loop {
            match characters.next()? {
                '"' => break,
                '\\' => value.push(characters.next()?),
                other => value.push(other),
            }
        }
        self.0 = characters.as_str();
        Some(value)
    }

    /// Credentials in one word after a scheme, as in `Negotiate TlRMTVNT==`; they mean nothing
    /// here.
    fn skip_token68(&mut self) {
        let mut ahead = Scanner(self.0);
        ahead.skip(is_space);
        ahead.skip(|b| is_token(b) || b == b'/');
        ahead.skip(|b| b == b'=');
        ahead.skip(is_space);
        if ahead.0.is_empty() || ahead.0.starts_with(',') {
            self.0 = ahead.0;
        }
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// `tchar` of RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Challenge {
        let own = |text: Option<&str>| text.map(str::to_owned);
        Challenge::Bearer {
            realm: realm.to_owned(),
            service: own(service),
            scope: own(scope),
        }
    }

    #[test]
    fn a_challenge_names_its_token_service() {
        let header = r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull""#;
        let expected = bearer(
            "https://auth.example/token",
            Some("registry.example"),
            Some("repository:a/b:pull"),
        );
        assert_eq!(Challenge::read(header), Some(expected));
        let spaced = "bearer  Realm = \"https://auth.example/token\" ,  service=registry.example";
        assert_eq!(
            Challenge::read(spaced),
            Some(bearer(
                "https://auth.example/token",
                Some("registry.example"),
                None
            ))
        );
        assert_eq!(
            Challenge::read(r#"Bearer realm="a\"b\\c""#),
            Some(bearer("a\"b\\c", None, None))
        );
    }

    #[test]
    fn bearer_goes_before_basic_and_a_realm_inside_a_text_is_none() {
        assert_eq!(
            Challenge::read(r#"Basic realm="x", Bearer realm="https://a""#),
            Some(bearer("https://a", None, None))
        );
        assert_eq!(
            Challenge::read("Negotiate TlRMTVNTUAAB==, Basic realm=\"x\""),
            Some(Challenge::Basic)
        );
        assert_eq!(
            Challenge::read("Bearer scope=\"a\", Basic"),
            Some(Challenge::Basic)
        );
        let hidden =
            r#"Bearer service="x,realm=https://evil.example",realm="https://good.example""#;
        let expected = bearer(
            "https://good.example",
            Some("x,realm=https://evil.example"),
            None,
        );
        assert_eq!(Challenge::read(hidden), Some(expected));
    }

    #[test]
    fn what_is_no_challenge_is_none() {
        for text in [
            "",
            ",",
            "Digest realm=\"x\"",
            "Bearer",
            "Bearer realm=",
            "=x",
            "realm=\"x\"",
            "Bearer realm=\"open",
        ] {
            assert_eq!(Challenge::read(text), None, "{text}");
        }
        assert_eq!(
            Challenge::read(&format!("Basic {}", "x".repeat(MAX_HEADER))),
            None
        );
    }

    proptest! {
        #[test]
        fn any_value_round_trips(realm in "\\PC{1,40}", service in "\\PC{0,40}") {
            let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
            let header = format!("Bearer realm=\"{}\",service=\"{}\"", quoted(&realm), quoted(&service));
            prop_assert_eq!(Challenge::read(&header), Some(bearer(&realm, Some(&service), None)));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[Bbearsic =\",\\\\é/]{0,60}") {
            drop(Challenge::read(&text));
        }
    }
}
