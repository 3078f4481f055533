//! Registries against the agent's client: honest ones, and those that want more than to hand out an
//! image.

mod hostile;
mod private;
mod secrets;
mod slow;
mod upstream;

use agent_images::{Keyring, PullSecret};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use upstream::Authority;

/// A pod's keys: one pull secret with a password for one registry.
fn keys(host: &str, user: &str, password: &str) -> Keyring {
    keys_of("pull", host, user, password)
}

fn keys_of(secret: &str, host: &str, user: &str, password: &str) -> Keyring {
    let from = PullSecret {
        namespace: "team".into(),
        name: secret.into(),
        uid: format!("uid-{secret}"),
    };
    let mut keys = Keyring::default();
    let document =
        serde_json::json!({"auths": {host: {"username": user, "password": password}}}).to_string();
    keys.add_docker_config_json(&from, document.as_bytes())
        .unwrap();
    keys
}

/// The authority's root in the agent's form.
fn pem(authority: &Authority) -> Vec<CertificateDer<'static>> {
    vec![CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()]
}
