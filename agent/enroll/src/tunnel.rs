//! The public key of a node's tunnel to other machines' pods: how the node publishes it, and how
//! others verify it.
//!
//! The key is published as a Node annotation. The annotation itself is not trusted: it carries the
//! node's client certificate and a signature by the key of that certificate, which is the node key,
//! in the TPM where there is one. So the text is valid only as long as the certificate is, and a
//! user who may write Nodes can only remove a key, or restore an older one of the same node, whose
//! private half no longer exists.
//!
//! Text: the version, the keys, the signature, and the certificate with its intermediates (DER),
//! each but the first in standard base64, separated by dots. `v1` has the key of a tunnel's first
//! link, `v2` those of both. Signed is the version's label ([`form`]), a zero byte, the node's
//! name, a zero byte, and the keys.

use crate::identity::CertificateSlot;
use crate::issued::names;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_kube::identity::{NODE_EXTENSION_OID, NODES_GROUP, node_user};
use config_tls::{NotSigned, signed_by_client};
use rustls::SignatureScheme;
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The version of a text with `KEYS` keys, and the prefix that separates its signatures from all
/// others of the node key.
fn form<const KEYS: usize>() -> (&'static str, &'static str) {
    match KEYS {
        1 => ("v1", "pratique tunnel/v1"),
        _ => ("v2", "pratique tunnel/v2"),
    }
}

/// Longest chain that is verified.
const MAX_CHAIN: usize = 6;

/// Keys of a tunnel's links. Holding one proves that the node published them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published<const KEYS: usize> {
    /// The keys.
    pub keys: [[u8; 32]; KEYS],
    /// Unix seconds at which the certificate ends, and with it the proof.
    pub not_after: u64,
}

/// Why a text proves no key.
#[derive(Debug, thiserror::Error)]
pub enum NotPublished {
    /// It is not of this form.
    #[error("it is not in the form of {0}")]
    Form(&'static str),
    /// The certificate does not chain to a cluster root.
    #[error(transparent)]
    NotSigned(#[from] NotSigned),
    /// Another one signed it.
    #[error("the certificate is not the node's, but of {0}")]
    OtherNode(String),
    /// A node signed it that has no Machine.
    #[error("the certificate was not issued to a Machine")]
    NoMachine,
}

/// Why a node cannot publish its key.
#[derive(Debug, thiserror::Error)]
pub enum NotSignedHere {
    /// The node has no certificate yet, or one whose key can't sign this.
    #[error("there is no node key of ECDSA P-256")]
    NoKey,
    /// The key did not sign.
    #[error("the node key did not sign")]
    Sign(#[source] rustls::Error),
}

fn message<const KEYS: usize>(node: &str, keys: &[[u8; 32]; KEYS]) -> Vec<u8> {
    let (_, label) = form::<KEYS>();
    let name = [label.as_bytes(), &[0], node.as_bytes(), &[0]].concat();
    [name, keys.concat()].concat()
}

/// The text with which a node publishes the key of its tunnel's first link, or those of both.
/// Blocks during the TPM's signature.
///
/// # Errors
/// [`NotSignedHere`] where the node has no certificate yet, or its key is not ECDSA P-256 or does
/// not sign.
pub fn publish<const KEYS: usize>(
    identity: &CertificateSlot,
    node: &str,
    keys: &[[u8; 32]; KEYS],
) -> Result<String, NotSignedHere> {
    let own = identity.get().ok_or(NotSignedHere::NoKey)?;
    let signer = own
        .key
        .choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256])
        .ok_or(NotSignedHere::NoKey)?;
    let signature = signer.sign(&message(node, keys));
    let signature = signature.map_err(NotSignedHere::Sign)?;
    let (version, _) = form::<KEYS>();
    let mut words = vec![version.to_owned()];
    words.extend(keys.iter().map(|key| STANDARD.encode(key)));
    words.push(STANDARD.encode(signature));
    words.extend(own.cert.iter().map(|der| STANDARD.encode(der)));
    Ok(words.join("."))
}

/// Verifies a text by the cluster's roots, and returns the keys that it proves to be of `node` at
/// `now`.
///
/// # Errors
/// [`NotPublished`] where the text has another form, its certificate is not this node's or does not
/// chain to a root, or the signature does not verify.
pub fn verify<const KEYS: usize>(
    text: &str,
    node: &str,
    roots: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<Published<KEYS>, NotPublished> {
    let (version, _) = form::<KEYS>();
    let malformed = || NotPublished::Form(version);
    let mut words = text.split('.');
    if words.next() != Some(version) {
        return Err(malformed());
    }
    let words: Vec<Vec<u8>> = words
        .map(|word| STANDARD.decode(word))
        .collect::<Result<_, _>>()
        .map_err(|_form| malformed())?;
    let (keys, rest) = words.split_first_chunk().ok_or_else(malformed)?;
    let [signature, chain @ ..] = rest else {
        return Err(malformed());
    };
    let keys = read_keys::<KEYS>(keys).ok_or_else(malformed)?;
    if chain.len() > MAX_CHAIN {
        return Err(malformed());
    }
    let chain: Vec<CertificateDer<'_>> = chain
        .iter()
        .map(|der| CertificateDer::from(der.as_slice()))
        .collect();
    signed_by_client(&chain, roots, now, &message(node, &keys), signature)?;
    let leaf = chain.first().ok_or(NotSigned::Unreadable)?;
    let (_, leaf) = X509Certificate::from_der(leaf).map_err(|_form| NotSigned::Unreadable)?;
    let (users, groups) = names(&leaf);
    if users != [node_user(node)] || groups != [NODES_GROUP] {
        return Err(NotPublished::OtherNode(users.join(", ")));
    }
    let mut extensions = leaf.extensions().iter();
    if !extensions.any(|one| {
        one.oid
            .iter()
            .is_some_and(|arcs| arcs.eq(NODE_EXTENSION_OID))
    }) {
        return Err(NotPublished::NoMachine);
    }
    let not_after = u64::try_from(leaf.validity().not_after.timestamp());
    Ok(Published {
        keys,
        not_after: not_after.map_err(|_before_1970| NotSigned::Unreadable)?,
    })
}

fn read_keys<const KEYS: usize>(words: &[Vec<u8>; KEYS]) -> Option<[[u8; 32]; KEYS]> {
    let mut keys = [[0; 32]; KEYS];
    for (key, word) in keys.iter_mut().zip(words) {
        *key = word.as_slice().try_into().ok()?;
    }
    Some(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, CustomExtension, DistinguishedName,
        DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    };
    use rustls::crypto::ring::sign::any_ecdsa_type;
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::sign::CertifiedKey;
    use std::time::Duration;

    /// Certificates begin on 2026-01-01 and last for a day.
    const NOW: u64 = 1_767_225_600;
    const LIFE: u64 = 86_400;

    struct Cluster(CertifiedIssuer<'static, KeyPair>);

    /// What a certificate says; each field can be wrong.
    struct Fields {
        user: &'static str,
        group: &'static str,
        usage: ExtendedKeyUsagePurpose,
        machine: bool,
    }

    const GOOD: Fields = Fields {
        user: "system:node:a",
        group: "system:nodes",
        usage: ExtendedKeyUsagePurpose::ClientAuth,
        machine: true,
    };

    impl Cluster {
        fn new() -> Self {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap());
            Self(issuer.unwrap())
        }

        fn roots(&self) -> Vec<CertificateDer<'static>> {
            vec![self.0.der().clone()]
        }

        fn identity(&self, fields: Fields) -> CertificateSlot {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            let name = &mut params.distinguished_name;
            name.push(DnType::OrganizationName, fields.group);
            name.push(DnType::CommonName, fields.user);
            params.extended_key_usages = vec![fields.usage];
            params.not_before = rcgen::date_time_ymd(2026, 1, 1);
            params.not_after = rcgen::date_time_ymd(2026, 1, 2);
            if fields.machine {
                let extension =
                    CustomExtension::from_oid_content(&NODE_EXTENSION_OID, vec![0x30, 0]);
                params.custom_extensions = vec![extension];
            }
            let certificate = params.signed_by(&key, &self.0).unwrap();
            let pkcs8 = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
            let key = any_ecdsa_type(&pkcs8).unwrap();
            let slot = CertificateSlot::default();
            slot.set(CertifiedKey::new(vec![certificate.der().clone()], key));
            slot
        }
    }

    fn at(second: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(second))
    }

    /// The text of the refusal; empty if the text is accepted.
    fn judged(cluster: &Cluster, text: &str, node: &str, now: u64) -> String {
        let verdict = verify::<1>(text, node, &cluster.roots(), at(now));
        verdict.map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn a_published_key_is_accepted_while_the_nodes_certificate_is_valid() {
        let cluster = Cluster::new();
        let text = publish(&cluster.identity(GOOD), "a", &[[7; 32]]).unwrap();
        let published = verify(&text, "a", &cluster.roots(), at(NOW + LIFE - 1)).unwrap();
        assert_eq!(
            (published.keys, published.not_after),
            ([[7; 32]], NOW + LIFE)
        );
        let none = "the certificate is not a valid client certificate of the cluster";
        assert_eq!(judged(&cluster, &text, "a", NOW + LIFE + 1), none);
        assert_eq!(judged(&cluster, &text, "a", NOW - 1), none);
        assert_eq!(judged(&Cluster::new(), &text, "a", NOW + 1), none);
    }

    #[test]
    fn a_node_cannot_publish_for_another() {
        let cluster = Cluster::new();
        let wrong = |fields: Fields, node: &str| {
            let text = publish(&cluster.identity(fields), node, &[[7; 32]]).unwrap();
            judged(&cluster, &text, node, NOW + 1)
        };
        assert_eq!(
            wrong(GOOD, "b"),
            "the certificate is not the node's, but of system:node:a"
        );
        let group = Fields {
            group: "devs",
            ..GOOD
        };
        assert!(wrong(group, "a").starts_with("the certificate is not the node's"));
        let user = Fields { user: "a", ..GOOD };
        assert!(wrong(user, "a").starts_with("the certificate is not the node's"));
        let machine = Fields {
            machine: false,
            ..GOOD
        };
        assert_eq!(
            wrong(machine, "a"),
            "the certificate was not issued to a Machine"
        );
        let usage = Fields {
            usage: ExtendedKeyUsagePurpose::ServerAuth,
            ..GOOD
        };
        assert!(wrong(usage, "a").starts_with("the certificate is not a valid client"));
    }

    #[test]
    fn a_signature_is_for_one_key_of_one_node() {
        let cluster = Cluster::new();
        let identity = cluster.identity(GOOD);
        let text = publish(&identity, "a", &[[7; 32]]).unwrap();
        let other = text.replace(&STANDARD.encode([7; 32]), &STANDARD.encode([8; 32]));
        assert_ne!(text, other);
        let not = "the signature does not verify with the certificate's key";
        assert_eq!(judged(&cluster, &other, "a", NOW + 1), not);
        assert_eq!(judged(&cluster, &text, "b", NOW + 1), not);
        // Another certificate of the same node, over another key.
        let again = publish(&cluster.identity(GOOD), "a", &[[7; 32]]).unwrap();
        let (front, _) = text.rsplit_once('.').unwrap();
        let (_, leaf) = again.rsplit_once('.').unwrap();
        assert_eq!(
            judged(&cluster, &format!("{front}.{leaf}"), "a", NOW + 1),
            not
        );
    }

    #[test]
    fn both_keys_have_one_signature_and_neither_stands_alone() {
        let cluster = Cluster::new();
        let identity = cluster.identity(GOOD);
        let keys = [[7; 32], [8; 32]];
        let text = publish(&identity, "a", &keys).unwrap();
        let judged_both = |text: &str, node: &str| {
            let verdict = verify::<2>(text, node, &cluster.roots(), at(NOW + 1));
            verdict.map(|published| published.keys)
        };
        assert_eq!(judged_both(&text, "a").unwrap(), keys);
        let [one, two] = keys.map(|key| STANDARD.encode(key));
        let swapped = text.replace(&format!("{one}.{two}"), &format!("{two}.{one}"));
        assert_ne!(text, swapped);
        let other = publish(&identity, "a", &[keys[1], keys[1]]).unwrap();
        let of_another = other.replace(&format!("{two}.{two}"), &format!("{one}.{two}"));
        for forged in [swapped, of_another] {
            let refusal = judged_both(&forged, "a").unwrap_err();
            let not = "the signature does not verify with the certificate's key";
            assert_eq!(refusal.to_string(), not);
        }
        assert!(judged_both(&text, "b").is_err());
        // A text of one version says nothing in the other, however its words are cut.
        let first = publish(&identity, "a", &[keys[0]]).unwrap();
        let renamed = first.replacen("v1", "v2", 1);
        assert!(judged_both(&first, "a").is_err() && judged_both(&renamed, "a").is_err());
        let cut = text.replacen(&format!("v2.{one}"), "v1", 1);
        for text in [text.as_str(), cut.as_str()] {
            assert_ne!(judged(&cluster, text, "a", NOW + 1), "");
        }
    }

    #[test]
    fn a_malformed_text_is_refused() {
        let cluster = Cluster::new();
        let text = publish(&cluster.identity(GOOD), "a", &[[7; 32]]).unwrap();
        let leaf = text.rsplit('.').next().unwrap();
        let short = text.replace(&STANDARD.encode([7; 32]), &STANDARD.encode([7; 31]));
        let long = format!("{text}{}", format!(".{leaf}").repeat(MAX_CHAIN));
        let bad = [
            "",
            "v1",
            "v1.AAAA",
            "v2.AAAA.AAAA",
            "v1.!.!.!",
            &short,
            &long,
        ];
        for text in bad {
            assert_eq!(
                judged(&cluster, text, "a", NOW + 1),
                "it is not in the form of v1"
            );
        }
        let (front, _) = text.rsplit_once('.').unwrap();
        assert_eq!(
            judged(&cluster, front, "a", NOW + 1),
            "the certificate cannot be read"
        );
        assert!(publish(&CertificateSlot::default(), "a", &[[7; 32]]).is_err());
    }
}
