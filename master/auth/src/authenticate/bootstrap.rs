//! Bootstrap tokens: secrets of type `bootstrap.kubernetes.io/token` in `kube-system`.

use super::credential::bad;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use master_client::UserInfo;
use master_objects::store_error;
use master_schema::error::ApiError;
use master_store::Reader;
use ring::digest::{SHA256, digest};
use serde_json::Value;

const TYPE: &str = "bootstrap.kubernetes.io/token";
const GROUP: &str = "system:bootstrappers";

/// The user of a bootstrap token; `None` if it has another form or its id is unknown. An `Err` says
/// that the token is known and invalid.
pub(super) async fn find(reader: &dyn Reader, token: &str) -> Result<Option<UserInfo>, ApiError> {
    let Some((id, secret)) = parts(token) else {
        return Ok(None);
    };
    let key = format!("secrets/kube-system/bootstrap-token-{id}");
    let Some(entry) = reader.get(&key).await.map_err(store_error)?.entry else {
        return Ok(None);
    };
    let object: Value = serde_json::from_slice(&entry.value.bytes()).unwrap_or_default();
    user(&object, id, secret, Timestamp::now()).map(Some)
}

/// Six and sixteen characters of `[a-z0-9]` with a dot between.
fn parts(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let plain = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    (id.len() == 6 && secret.len() == 16 && plain(id) && plain(secret)).then_some((id, secret))
}

fn user(object: &Value, id: &str, secret: &str, now: Timestamp) -> Result<UserInfo, ApiError> {
    let data = |key: &str| -> Vec<u8> {
        let value = object
            .get("data")
            .and_then(|data| data.get(key))
            .and_then(Value::as_str);
        value
            .and_then(|value| STANDARD.decode(value).ok())
            .unwrap_or_default()
    };
    let text = |key: &str| String::from_utf8(data(key)).unwrap_or_default();
    if object.get("type").and_then(Value::as_str) != Some(TYPE)
        || object.pointer("/metadata/deletionTimestamp").is_some()
    {
        return Err(bad(
            "the bootstrap token is being deleted or its type has changed",
        ));
    }
    // Compares hashes, so that timing reveals nothing about the secret.
    let same = |a: &[u8], b: &[u8]| {
        !a.is_empty() && digest(&SHA256, a).as_ref() == digest(&SHA256, b).as_ref()
    };
    if !same(&data("token-secret"), secret.as_bytes()) || text("token-id") != id {
        return Err(bad("the bootstrap token's secret is wrong"));
    }
    let expiration = text("expiration");
    if !expiration.is_empty()
        && expiration
            .parse::<Timestamp>()
            .map_or(true, |end| end <= now)
    {
        return Err(bad("the bootstrap token has expired"));
    }
    if text("usage-bootstrap-authentication") != "true" {
        return Err(bad("the bootstrap token is not for authentication"));
    }
    let extra = text("auth-extra-groups");
    let groups: Vec<&str> = extra.split(',').filter(|group| !group.is_empty()).collect();
    if let Some(wrong) = groups.iter().find(|group| !is_group(group)) {
        return Err(bad(format!(
            "the bootstrap token names a group {wrong:?} that it may not"
        )));
    }
    Ok(UserInfo::authenticated(
        &format!("system:bootstrap:{id}"),
        std::iter::once(GROUP).chain(groups),
    ))
}

/// Groups that a token may add: those below `system:bootstrappers:`.
fn is_group(group: &str) -> bool {
    let rest = group
        .strip_prefix(GROUP)
        .and_then(|rest| rest.strip_prefix(':'))
        .unwrap_or_default();
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    rest.len() <= 256
        && rest
            .bytes()
            .all(|byte| plain(byte) || matches!(byte, b':' | b'-'))
        && rest.bytes().last().is_some_and(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn secret(change: &Value) -> Value {
        let mut data = json!({
            "token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:a,system:bootstrappers:b:c",
        });
        for (key, value) in change.as_object().unwrap() {
            data[key] = value.clone();
        }
        let data = data.as_object().unwrap().iter();
        let data: serde_json::Map<String, Value> = data
            .map(|(key, value)| (key.clone(), STANDARD.encode(value.as_str().unwrap()).into()))
            .collect();
        json!({"type": TYPE, "metadata": {}, "data": data})
    }

    #[test]
    fn a_bootstrap_token_is_valid_only_as_its_secret_says() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let ask = |change: Value| user(&secret(&change), "abcdef", "0123456789abcdef", now);
        let user = ask(json!({})).unwrap();
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert_eq!(
            user.groups,
            [
                GROUP,
                "system:bootstrappers:a",
                "system:bootstrappers:b:c",
                "system:authenticated"
            ]
        );
        assert!(ask(json!({"expiration": "2100-01-01T00:00:00Z"})).is_ok());
        for change in [
            json!({"token-secret": "0123456789abcdee"}),
            json!({"token-secret": ""}),
            json!({"token-id": "abcdee"}),
            json!({"expiration": "1970-01-01T00:00:00Z"}),
            json!({"expiration": "some day"}),
            json!({"usage-bootstrap-authentication": "false"}),
            json!({"auth-extra-groups": "system:masters"}),
            json!({"auth-extra-groups": "system:bootstrappers:"}),
            json!({"auth-extra-groups": "system:bootstrappersx:a"}),
        ] {
            assert!(ask(change.clone()).is_err(), "{change}");
        }
        for wrong in [
            "abcdef",
            "abcdef.0123456789abcde",
            "ABCDEF.0123456789abcdef",
            "abcdef.0123456789abcdef0",
            "a/cdef.0123456789abcdef",
        ] {
            assert_eq!(parts(wrong), None, "{wrong}");
        }
    }
}
