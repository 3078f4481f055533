//! Documents that people write.

use crate::run::{Shape, Target};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_discovery::{DocumentFault, Expected, LABEL, Trust, check};
use config_kube::CertificatePolicy;
use p256::ecdsa::signature::Signer as _;
use p256::ecdsa::{Signature, SigningKey, VerifyingKey};
use p256::pkcs8::EncodePublicKey as _;

const MACHINE: &str = "version = 1\n[master]\nendpoints = [\"https://192.168.77.10:6443\"]\nca_pins = \
    [\"sha256:0000000000000000000000000000000000000000000000000000000000000000\"]\n";
const CLUSTER: &str = "version = 1\nkind = \"cluster\"\n[cluster]\nname = \"lab\"\nservice_cidr = \"10.96.0.0/16\"\n\
    [[rule]]\nname = \"workers\"\nsigners = [\"pratique.dev/node-client\"]\npolicy = \"cloud-verify\"\n\
    certificate = { ttl = \"30m\", sans = \"inventory\", roles = [\"worker\"] }\n";

const SIGNED: &str = include_str!("../../../../config/discovery/vectors/signed.json");

pub(super) fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "config-model/document",
            shape: Shape::Bytes,
            seeds: vec![MACHINE.into(), CLUSTER.into()],
            decode: Box::new(|input| {
                if let Err(faults) = config_model::parse(input, "fuzz.toml") {
                    assert!(!faults.to_string().is_empty());
                }
            }),
        },
        Target {
            name: "config-attest/policy",
            shape: Shape::Json,
            seeds: vec![policy()],
            decode: Box::new(|input| {
                if let Ok(policy) = serde_json::from_slice::<CertificatePolicy>(input) {
                    for rule in &policy.spec.rules {
                        config_attest::policy::CheckedRule::try_from(rule).ok();
                    }
                    config_model::check_policy(&policy.spec);
                }
            }),
        },
        Target {
            name: "config-discovery/envelope",
            shape: Shape::Json,
            seeds: vec![SIGNED.trim_end().into()],
            decode: Box::new(|input| {
                discovered(input).ok();
            }),
        },
        Target {
            name: "config-discovery/document",
            shape: Shape::Json,
            seeds: vec![inner()],
            decode: Box::new(|input| {
                // Signed as the cluster's key would, so that what is inside is reached.
                if let Some(signed) = sign(input)
                    && let Err(fault) = discovered(&signed)
                {
                    assert_ne!(fault, DocumentFault::Signature);
                }
            }),
        },
    ]
}

fn discovered(signed: &[u8]) -> Result<(), DocumentFault> {
    let Ok(cluster) = "0123456789abcdef0123456789abcdef".parse() else {
        return Ok(());
    };
    let expected = Expected {
        cluster: &cluster,
        trust: Trust::AnyKey,
        min_generation: 1,
        now: 1_795_300_001,
    };
    let verified = check(signed, &expected)?;
    let document = verified.document();
    assert!(
        !document.endpoints.is_empty() && !document.ca_pins.is_empty() && document.generation > 0
    );
    Ok(())
}

fn inner() -> Vec<u8> {
    let signed: serde_json::Value = serde_json::from_str(SIGNED).unwrap_or_default();
    STANDARD
        .decode(signed["document"].as_str().unwrap_or_default())
        .unwrap_or_default()
}

fn sign(document: &[u8]) -> Option<Vec<u8>> {
    let key = SigningKey::from_slice(&[7; 32]).ok()?;
    let spki = VerifyingKey::from(&key).to_public_key_der().ok()?;
    let signature: Signature = key.sign(&[LABEL, document].concat());
    let [document, key, signature] = [document, spki.as_bytes(), signature.to_bytes().as_slice()]
        .map(|bytes| STANDARD.encode(bytes));
    Some(
        serde_json::json!({"document": document, "key": key, "signature": signature})
            .to_string()
            .into_bytes(),
    )
}

fn policy() -> Vec<u8> {
    let rule = tests_machines::World::new().rule;
    let policy = CertificatePolicy::named(
        "default",
        config_kube::CertificatePolicySpec { rules: vec![rule] },
    );
    serde_json::to_vec(&policy).unwrap_or_default()
}
