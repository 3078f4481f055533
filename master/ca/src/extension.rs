//! The X.509 extension of node certificates: which Machine, image, policy and node key the
//! certificate was issued for.
//!
//! DER: `SEQUENCE { machineUid UTF8String, imageId UTF8String, policyGeneration INTEGER, nodeKey
//! UTF8String OPTIONAL }`, not critical, so that other TLS stacks ignore it.

use x509_parser::der_parser::asn1_rs::{FromDer, Integer, Sequence, Utf8String};
use x509_parser::prelude::X509Certificate;

pub use config_kube::identity::NODE_EXTENSION_OID;

/// The extension's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeExtension {
    /// `metadata.uid` of the Machine.
    pub machine_uid: String,
    /// Id of the image that the machine attested; empty where nothing was attested.
    pub image_id: String,
    /// `metadata.generation` of the policy that admitted the machine.
    pub policy_generation: u64,
    /// `sha256:<hex>` of the SubjectPublicKeyInfo of the node key that the machine proved: a
    /// serving certificate is over another key, and is valid only as long as the node key. Empty if
    /// the certificate does not name it.
    pub node_key: String,
}

impl NodeExtension {
    /// The DER of the extension's value.
    pub fn to_der(&self) -> Vec<u8> {
        let mut body = Vec::new();
        tlv(&mut body, 0x0c, self.machine_uid.as_bytes());
        tlv(&mut body, 0x0c, self.image_id.as_bytes());
        let bytes = self.policy_generation.to_be_bytes();
        let first = bytes
            .iter()
            .position(|b| *b != 0)
            .unwrap_or(bytes.len() - 1);
        let mut number = Vec::with_capacity(9);
        if bytes[first] & 0x80 != 0 {
            number.push(0);
        }
        number.extend_from_slice(&bytes[first..]);
        tlv(&mut body, 0x02, &number);
        if !self.node_key.is_empty() {
            tlv(&mut body, 0x0c, self.node_key.as_bytes());
        }
        let mut out = Vec::with_capacity(body.len() + 4);
        tlv(&mut out, 0x30, &body);
        out
    }

    /// Parses an extension's value; `None` where it is not in this form.
    pub fn from_der(der: &[u8]) -> Option<Self> {
        let (rest, sequence) = Sequence::from_der(der).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let (rest, uid) = Utf8String::from_der(&sequence.content).ok()?;
        let (rest, image) = Utf8String::from_der(rest).ok()?;
        let (rest, generation) = Integer::from_der(rest).ok()?;
        let (rest, node_key) = if rest.is_empty() {
            (rest, String::new())
        } else {
            let (rest, key) = Utf8String::from_der(rest).ok()?;
            (rest, Some(key.string()).filter(|key| !key.is_empty())?)
        };
        if !rest.is_empty() {
            return None;
        }
        Some(Self {
            machine_uid: uid.string(),
            image_id: image.string(),
            policy_generation: generation.as_u64().ok()?,
            node_key,
        })
    }

    /// The extension of a certificate (DER); `None` where there is none, or it cannot be parsed.
    pub fn of_certificate(certificate: &[u8]) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        parsed
            .extensions()
            .iter()
            .find(|e| e.oid.iter().is_some_and(|arcs| arcs.eq(NODE_EXTENSION_OID)))
            .and_then(|e| Self::from_der(e.value))
    }
}

/// Appends one DER element; lengths up to 65,535.
fn tlv(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    let [high, low] = length.to_be_bytes();
    match length {
        0..=0x7f => out.push(low),
        0x80..=0xff => out.extend_from_slice(&[0x81, low]),
        0x100.. => out.extend_from_slice(&[0x82, high, low]),
    }
    out.extend_from_slice(&value[..usize::from(length)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (generation, image, key) in [
            (0, "", ""),
            (127, "worker-1", "sha256:aa"),
            (128, &*"x".repeat(300), ""),
            (u64::MAX >> 1, "ä", "sha256:bb"),
        ] {
            let extension = NodeExtension {
                machine_uid: "0a-1b".to_owned(),
                image_id: image.to_owned(),
                policy_generation: generation,
                node_key: key.to_owned(),
            };
            assert_eq!(
                NodeExtension::from_der(&extension.to_der()),
                Some(extension)
            );
        }
    }

    #[test]
    fn cut_or_lengthened_values_are_refused() {
        let extension = NodeExtension {
            machine_uid: "u".to_owned(),
            image_id: "i".to_owned(),
            policy_generation: 7,
            node_key: "sha256:aa".to_owned(),
        };
        let without = NodeExtension {
            node_key: String::new(),
            ..extension.clone()
        };
        for der in [extension.to_der(), without.to_der()] {
            for end in 0..der.len() {
                assert_eq!(NodeExtension::from_der(&der[..end]), None, "{end}");
            }
            let mut longer = der.clone();
            longer.push(0);
            assert_eq!(NodeExtension::from_der(&longer), None);
        }
        // A field beyond the last one, and an empty node key.
        for (base, more) in [(&extension, &[0x0c, 1, b'x'][..]), (&without, &[0x0c, 0])] {
            let mut longer = [&base.to_der(), more].concat();
            longer[1] += u8::try_from(more.len()).unwrap();
            assert_eq!(NodeExtension::from_der(&longer), None, "{more:?}");
        }
    }
}
