//! Credentials for a registry, as they go into a request. A credential lives in memory only, is
//! wiped when it is dropped, and is never shown.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
pub use config_model::registry::{Credential, Secret};
use zeroize::Zeroizing;

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
