//! The token by which a client asks for the next page of a list.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use master_schema::error::{ApiError, Reason};
use serde::{Deserialize, Serialize};

/// The only version of continue tokens.
const TOKEN: &str = "meta.k8s.io/v1";

/// Where the next page starts. Opaque to clients, in upstream's form.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continue {
    v: String,
    /// Revision of the list; -1 for the newest.
    pub rv: i64,
    start: String,
}

impl Continue {
    /// The token of a page behind a key, at a revision or at the newest.
    pub fn new(revision: Option<u64>, after: &str) -> Self {
        let rv = revision
            .and_then(|revision| i64::try_from(revision).ok())
            .unwrap_or(-1);
        Self {
            v: TOKEN.to_owned(),
            rv,
            start: format!("{after}\0"),
        }
    }

    /// Reads a client's token.
    ///
    /// # Errors
    /// It is none that this type writes: `BadRequest`, in upstream's words.
    pub fn parse(token: &str) -> Result<Self, ApiError> {
        let bad =
            |why: &str| ApiError::new(Reason::BadRequest, format!("invalid continue token: {why}"));
        let bytes = URL_SAFE_NO_PAD.decode(token).ok();
        let read: Option<Self> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let read = read.ok_or_else(|| bad("continue key is not valid"))?;
        if read.v != TOKEN {
            return Err(bad(
                "continue key is not valid: server does not recognize this encoded version",
            ));
        }
        if read.rv == 0 || read.rv < -1 {
            return Err(bad(
                "continue key is not valid: incorrect encoded start resourceVersion",
            ));
        }
        if read.start.is_empty() || read.start.contains("..") {
            return Err(bad(
                "continue key is not valid: encoded start key empty or not clean",
            ));
        }
        Ok(read)
    }

    /// The last key of the page before.
    pub fn after(&self) -> &str {
        self.start.trim_end_matches('\0')
    }

    /// As clients get it.
    pub fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continue_token_round_trips_and_nothing_else_parses() {
        let token = Continue::new(Some(7), "default/a");
        let read = Continue::parse(&token.text()).unwrap();
        assert_eq!((read.rv, read.after()), (7, "default/a"));
        assert_eq!(
            Continue::parse(&Continue::new(None, "a").text())
                .unwrap()
                .rv,
            -1
        );
        let encoded = |text: &str| URL_SAFE_NO_PAD.encode(text);
        for bad in [
            "x".to_owned(),
            encoded("{}"),
            encoded(r#"{"v":"v9","rv":1,"start":"a"}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":1,"start":""}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"../../x"}"#),
        ] {
            assert_eq!(Continue::parse(&bad).unwrap_err().code, 400, "{bad}");
        }
    }
}
