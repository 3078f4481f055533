//! Documents that people write.

use crate::run::{Shape, Target};
use config_kube::CertificatePolicy;

const MACHINE: &str = "version = 1\n[master]\nendpoints = [\"https://192.168.77.10:6443\"]\nca_pins = \
    [\"sha256:0000000000000000000000000000000000000000000000000000000000000000\"]\n";
const CLUSTER: &str = "version = 1\nkind = \"cluster\"\n[cluster]\nname = \"lab\"\nservice_cidr = \"10.96.0.0/16\"\n\
    [[rule]]\nname = \"workers\"\nsigners = [\"pratique.dev/node-client\"]\npolicy = \"cloud-verify\"\n\
    certificate = { ttl = \"30m\", sans = \"inventory\", roles = [\"worker\"] }\n";

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
                    config_attest::policy::faults(&policy.spec);
                    config_attest::policy::decide(&policy.spec, "pratique.dev/node-client").ok();
                }
            }),
        },
    ]
}

fn policy() -> Vec<u8> {
    let rule = config_attest::testing::World::new().rule;
    let policy = CertificatePolicy::named("default", config_kube::CertificatePolicySpec { rules: vec![rule] });
    serde_json::to_vec(&policy).unwrap_or_default()
}
