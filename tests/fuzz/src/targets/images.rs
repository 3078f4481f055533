//! Input from registries and about them: image names, challenges, tokens, refusals, pull secrets.

use crate::run::{Shape, Target};
use agent_images::{DOCKER_HUB, Keyring, PullSecret, Reference, decoders};
use config_http::Challenge;
use http::HeaderValue;

const DIGEST: &str = "registry.example:5000/team/app:1.2@sha256:00000000000000000000000000000000000000000000000000000000000000aa";
const CHALLENGE: &str = "Basic realm=\"a\", Bearer realm=\"https://auth.example/token\",service=\"registry.example\",scope=\"repository:a/b:pull\"";
const PULL_SECRET: &str = r#"{"auths": {"https://index.docker.io/v1/": {"username": "u", "password": "p", "auth": "dTpw"},
    "*.example:5000/team": {"identitytoken": "i"}, "[a-c]?.example": {"registrytoken": "r"}}}"#;

pub(super) fn targets() -> Vec<Target> {
    let mut all = vec![
        Target {
            name: "agent-images/reference",
            shape: Shape::Bytes,
            seeds: vec![
                "nginx".into(),
                "docker.io/library/nginx:latest".into(),
                DIGEST.into(),
            ],
            decode: Box::new(|input| {
                let Ok(reference) = Reference::parse(&String::from_utf8_lossy(input)) else {
                    return;
                };
                assert_eq!(
                    Reference::parse(&reference.to_string()).as_ref(),
                    Ok(&reference)
                );
                let full = reference.complete(DOCKER_HUB);
                assert!(!full.host.is_empty());
                let again = Reference::parse(&full.to_string())
                    .map(|again| again.complete("other.example"));
                assert_eq!(again.as_ref(), Ok(&full), "a full name needs no default");
                let url = format!("{}/{}", full.path, full.selector());
                let climbs = url.split('/').any(|part| part == "..");
                assert!(
                    !climbs
                        && url
                            .bytes()
                            .all(|b| b.is_ascii_graphic() && !b"?#%@\\".contains(&b)),
                    "{url}"
                );
            }),
        },
        Target {
            name: "agent-images/challenge",
            shape: Shape::Bytes,
            seeds: vec![CHALLENGE.into(), "Negotiate abc==, Basic".into()],
            decode: Box::new(|input| {
                if let Some(Challenge::Bearer { realm, .. }) =
                    Challenge::read(&String::from_utf8_lossy(input))
                {
                    assert!(realm.len() <= input.len() * 3, "a realm that was not there");
                }
            }),
        },
        Target {
            name: "agent-images/pull-secret",
            shape: Shape::Json,
            seeds: vec![PULL_SECRET.into()],
            decode: Box::new(|input| {
                let from = PullSecret {
                    namespace: "n".into(),
                    name: "s".into(),
                    uid: "u".into(),
                };
                let mut keys = Keyring::default();
                let added = keys.add_docker_config_json(&from, input);
                assert!(added.is_ok() || keys.is_empty(), "half a secret was taken");
                keys.add_docker_cfg(&from, input).ok();
            }),
        },
    ];
    all.extend(answers());
    all.push(frames());
    all
}

/// A layer's frames of zstd: one that is skipped, one of two blocks and a checksum, one whose size
/// is its window.
fn frames() -> Target {
    let skipped = b"\x5a\x2a\x4d\x18\x02\0\0\0ab".to_vec();
    let blocks = b"\x28\xb5\x2f\xfd\x04\x78\x10\0\0ab\x43\0\0c1234".to_vec();
    let single = b"\x28\xb5\x2f\xfd\x20\x02\x11\0\0ab".to_vec();
    Target {
        name: "agent-images/zstd",
        shape: Shape::Bytes,
        seeds: vec![[skipped, blocks, single.clone()].concat(), single],
        decode: Box::new(|input| {
            let whole = decoders::frames(input, input.len());
            for piece in [1, 3, 7] {
                let cut = decoders::frames(input, piece);
                assert_eq!(cut, whole, "in pieces of {piece}");
            }
        }),
    }
}

/// What a token service gives, and why a registry refuses.
fn answers() -> [Target; 2] {
    let tokens = [
        r#"{"token":"eyJ0.eyJz.c2ln","expires_in":300,"issued_at":"2026-01-01T00:00:00Z"}"#,
        r#"{"token":"","access_token":"opaque","refresh_token":"r","scope":"repository:a/b:pull"}"#,
    ];
    let refusal = r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"m","detail":{"tag":"1"}},{"code":"DENIED"}]}"#;
    [
        Target {
            name: "agent-images/token",
            shape: Shape::Json,
            seeds: tokens.map(Into::into).into(),
            decode: Box::new(|input| {
                let Some(token) = decoders::token(input) else {
                    return;
                };
                let token = token.reveal();
                assert!((1..=input.len()).contains(&token.len()));
                assert!(!token.contains(' '), "more than one word of a header");
                HeaderValue::from_str(&format!("Bearer {token}")).expect("a header's value");
            }),
        },
        Target {
            name: "agent-images/refusal",
            shape: Shape::Json,
            seeds: vec![refusal.into()],
            decode: Box::new(|input| {
                if let Some(code) = decoders::refusal_code(input) {
                    let plain = code.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
                    assert!(plain && code.len() <= 64, "{code}");
                }
            }),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_of_frames_are_read_to_their_end_and_more_of_another_kind_is_not() {
        for seed in frames().seeds {
            assert!(decoders::frames(&seed, 1));
            assert!(!decoders::frames(&[&seed[..], b"more"].concat(), 1));
        }
    }

    #[test]
    fn seeds_of_answers_are_understood() {
        let [tokens, refusals] = answers();
        for seed in tokens.seeds {
            assert!(decoders::token(&seed).is_some());
        }
        for seed in refusals.seeds {
            let code = decoders::refusal_code(&seed);
            assert_eq!(code.as_deref(), Some("MANIFEST_UNKNOWN"));
        }
    }
}
