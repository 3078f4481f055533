//! Certificate profiles: every field of a certificate but the public key. Nothing is copied from a
//! request.

use crate::error::{Error, Result};
use crate::extension::{NODE_EXTENSION_OID, NodeExtension};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SanType, SerialNumber,
};
use ring::rand::{SecureRandom as _, SystemRandom};
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;

/// notBefore is this much in the past, for peers whose clock is behind.
pub const BACKDATE: Duration = Duration::from_secs(60);
/// Life of a cluster's root.
pub const ROOT_LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Life of the issuing intermediate. It is renewed after half of it, so an admin's certificate
/// always fits into the rest.
pub const INTERMEDIATE_LIFE: Duration = Duration::from_secs(365 * 86_400);
/// Life of an admin's certificate.
pub const ADMIN_LIFE: Duration = Duration::from_secs(180 * 86_400);
/// Life of the master's own serving and client certificates.
pub const MASTER_LIFE: Duration = Duration::from_secs(30 * 86_400);
/// Shortest and longest life of a node's certificates; a rule's value is clamped to it.
pub const NODE_LIFE_BOUNDS: (Duration, Duration) =
    (Duration::from_secs(10), Duration::from_secs(7 * 86_400));

/// The purpose of a leaf, with the names in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Profile {
    /// A node's client certificate.
    NodeClient {
        /// The node's name.
        node: String,
        /// The attestation that it was issued for.
        extension: NodeExtension,
    },
    /// A node's serving certificate for the kubelet API.
    NodeServing {
        /// The node's name.
        node: String,
        /// IP addresses and DNS names.
        names: Vec<String>,
        /// The attestation that it was issued for.
        extension: NodeExtension,
    },
    /// The master's API certificate.
    MasterServing {
        /// IP addresses and DNS names.
        names: Vec<String>,
    },
    /// A client with a user name and at most one group.
    Client {
        /// Common name.
        user: String,
        /// Organization.
        group: Option<String>,
    },
    /// A serving certificate of a kubelet that does not attest, after an approval.
    ApprovedServing {
        /// Common name, `system:node:<name>`.
        user: String,
        /// IP addresses and DNS names.
        names: Vec<String>,
    },
}

impl Profile {
    /// Name in errors and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NodeClient { .. } => "node client",
            Self::NodeServing { .. } => "node serving",
            Self::MasterServing { .. } => "master serving",
            Self::Client { .. } => "client",
            Self::ApprovedServing { .. } => "kubelet serving",
        }
    }

    /// The certificate's parameters, valid from shortly before `now` to `until`.
    pub(crate) fn params(&self, now: SystemTime, until: SystemTime) -> Result<CertificateParams> {
        let mut params = base(now, until)?;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.is_ca = IsCa::ExplicitNoCa;
        let node_user = |node: &str| format!("{}{node}", config_kube::identity::NODE_USER_PREFIX);
        let (user, group, usage, names) = match self {
            Self::NodeClient { node, .. } => (
                node_user(node),
                Some(config_kube::identity::NODES_GROUP),
                ExtendedKeyUsagePurpose::ClientAuth,
                &[][..],
            ),
            Self::NodeServing { node, names, .. } => (
                node_user(node),
                Some(config_kube::identity::NODES_GROUP),
                ExtendedKeyUsagePurpose::ServerAuth,
                names.as_slice(),
            ),
            Self::MasterServing { names } => (
                "pratique-master".to_owned(),
                None,
                ExtendedKeyUsagePurpose::ServerAuth,
                names.as_slice(),
            ),
            Self::Client { user, group } => (
                user.clone(),
                group.as_deref(),
                ExtendedKeyUsagePurpose::ClientAuth,
                &[][..],
            ),
            Self::ApprovedServing { user, names } => (
                user.clone(),
                Some(config_kube::identity::NODES_GROUP),
                ExtendedKeyUsagePurpose::ServerAuth,
                names.as_slice(),
            ),
        };
        params.distinguished_name = name(group, &user);
        params.extended_key_usages = vec![usage];
        params.subject_alt_names = names
            .iter()
            .map(|n| self.alternative(n))
            .collect::<Result<_>>()?;
        if let Self::NodeClient { extension, .. } | Self::NodeServing { extension, .. } = self {
            params.custom_extensions = vec![CustomExtension::from_oid_content(
                &NODE_EXTENSION_OID,
                extension.to_der(),
            )];
        }
        Ok(params)
    }

    fn alternative(&self, name: &str) -> Result<SanType> {
        if let Ok(address) = name.parse::<IpAddr>() {
            return Ok(SanType::IpAddress(address));
        }
        if !is_dns_name(name) {
            return Err(Error::Request(format!(
                "`{name}` is neither an IP address nor a DNS name without wildcards"
            )));
        }
        name.try_into()
            .map(SanType::DnsName)
            .map_err(|source| Error::Build {
                profile: self.name(),
                source,
            })
    }
}

/// Whether this is a lower-case DNS name (RFC 1123) without a wildcard.
pub fn is_dns_name(name: &str) -> bool {
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// A root's parameters. Later roots have part of their serial number in the subject, so that no two
/// roots share a subject.
pub(crate) fn root(cluster: &str, first: bool, now: SystemTime) -> Result<CertificateParams> {
    let mut params = base(now, now + ROOT_LIFE)?;
    let subject = if first {
        "pratique root".to_owned()
    } else {
        format!("pratique root {}", tail(&params))
    };
    params.distinguished_name = name(None, &format!("{subject} of {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// An intermediate's parameters. Part of the serial number is in the subject, so that no two
/// intermediates share a subject.
pub(crate) fn intermediate(cluster: &str, now: SystemTime) -> Result<CertificateParams> {
    let mut params = base(now, now + INTERMEDIATE_LIFE)?;
    params.distinguished_name = name(
        None,
        &format!("pratique issuer {} of {cluster}", tail(&params)),
    );
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// Parameters of the certificate for the key that signs the log of verdicts: not usable in TLS.
pub(crate) fn log(cluster: &str, now: SystemTime, until: SystemTime) -> Result<CertificateParams> {
    let mut params = base(now, until)?;
    params.distinguished_name = name(None, &format!("{}{cluster}", config_verdicts::SUBJECT));
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // id-kp-documentSigning (RFC 9336): TLS peers reject it as client and as server certificate.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Other(vec![
        1, 3, 6, 1, 5, 5, 7, 3, 36,
    ])];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// The first four octets of the serial number, hex.
fn tail(params: &CertificateParams) -> String {
    let serial = params
        .serial_number
        .as_ref()
        .map(SerialNumber::to_bytes)
        .unwrap_or_default();
    crate::names::hex(&serial[..serial.len().min(4)])
}

fn base(now: SystemTime, until: SystemTime) -> Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.not_before = moment(now.checked_sub(BACKDATE).unwrap_or(UNIX_EPOCH))?;
    params.not_after = moment(until)?;
    params.serial_number = Some(serial()?);
    Ok(params)
}

fn name(group: Option<&str>, user: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(group) = group {
        name.push(DnType::OrganizationName, group);
    }
    name.push(DnType::CommonName, user);
    name
}

/// 126 random bits behind the bits 01: a positive INTEGER of exactly 16 octets (RFC 5280, 4.1.2.2
/// allows 20).
fn serial() -> Result<SerialNumber> {
    let mut bytes = [0_u8; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_opaque| Error::Key("no randomness from the system"))?;
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

pub(crate) fn moment(time: SystemTime) -> Result<OffsetDateTime> {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .map_err(|_opaque| Error::Key("the clock is before 1970"))?
        .as_secs();
    i64::try_from(seconds)
        .ok()
        .and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok())
        .ok_or(Error::Key("the clock is beyond what a certificate can say"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_plain_dns_are_refused() {
        for good in ["worker-1", "a.example", "1.example"] {
            assert!(is_dns_name(good), "{good}");
        }
        for bad in [
            "",
            "*.example",
            "A.example",
            "a..b",
            "-a",
            "a-",
            "a b",
            "a/b",
            &"a".repeat(64),
        ] {
            assert!(!is_dns_name(bad), "{bad}");
        }
    }
}
