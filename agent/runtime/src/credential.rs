//! What a registry takes as the proof of who asks. It lives in memory only, is wiped when it is dropped, and is never shown.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::fmt;
use zeroize::Zeroizing;

/// A text that is never shown: `Debug` has nothing of it. Its memory is wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes a text over.
    pub fn new(text: impl Into<Zeroizing<String>>) -> Self {
        Self(text.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// One way to prove to a registry who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// A name and a password, for Basic authentication (RFC 7617) at the registry or at its token service.
    Password {
        /// The name; it has no colon.
        username: String,
        /// The password.
        password: Secret,
    },
    /// An OAuth 2.0 refresh token, which the registry's token service changes for an access token (RFC 6749, section 6).
    IdentityToken(Secret),
    /// An access token that the registry itself takes (RFC 6750).
    RegistryToken(Secret),
}

/// The value of a Basic `Authorization` header.
pub(crate) fn basic(username: &str, password: &Secret) -> Secret {
    let pair = Zeroizing::new(format!("{username}:{}", password.reveal()));
    let encoded = Zeroizing::new(STANDARD.encode(pair.as_bytes()));
    Secret::new(format!("Basic {}", encoded.as_str()))
}

/// The value of a Bearer `Authorization` header.
pub(crate) fn bearer(token: &Secret) -> Secret {
    Secret::new(format!("Bearer {}", token.reveal()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_secret_is_shown() {
        let credential = Credential::Password {
            username: "puller".into(),
            password: Secret::new("hunter2".to_owned()),
        };
        let shown = format!("{credential:?} {credential:#?}");
        assert!(
            shown.contains("puller") && !shown.contains("hunter2"),
            "{shown}"
        );
        let tokens = [Credential::IdentityToken(Secret::new("hunter2".to_owned()))];
        assert!(!format!("{tokens:?}").contains("hunter2"));
    }

    #[test]
    fn basic_is_that_of_rfc_7617() {
        let header = basic("Aladdin", &Secret::new("open sesame".to_owned()));
        assert_eq!(header.reveal(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    }
}
