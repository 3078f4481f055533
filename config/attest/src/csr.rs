//! Strict checks of certificate requests: a node may ask for what its profile lists, and for
//! nothing else.

use crate::verdict::{Checks, Stop};
use config_certificates::{San, x509};
use config_kube::identity::{NODES_GROUP, node_user};
use config_protocol::Code;
use std::collections::BTreeSet;
use std::net::IpAddr;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{
    ExtendedKeyUsage, GeneralName, KeyUsage, ParsedExtension, X509Extension,
};
use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME};
use x509_parser::prelude::FromDer as _;

/// Which of the two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestUse {
    Client,
    Serving,
}

impl RequestUse {
    fn name(self) -> &'static str {
        match self {
            Self::Client => "client request",
            Self::Serving => "serving request",
        }
    }
}

/// What a request may ask for.
pub(crate) struct Allowed<'a> {
    /// The Node's name.
    pub(crate) node: &'a str,
    /// Names and addresses of the serving certificate.
    pub(crate) sans: BTreeSet<San>,
    /// Names and addresses of the API server, which no node may have.
    pub(crate) api: BTreeSet<San>,
}

/// What a request asked for. Holding one proves that the request is within its profile and signed
/// by its own key.
#[derive(Debug, Clone)]
pub(crate) struct CheckedRequest {
    pub(crate) spki: Vec<u8>,
    pub(crate) sans: Vec<San>,
}

/// The largest number of names in a request.
const MAX_SANS: usize = 32;
const ECDSA_SHA256: &str = "1.2.840.10045.4.3.2";

/// Checks a request against its profile. Every fault is recorded; without the structure nothing
/// else can be.
pub(crate) fn check(
    der: &[u8],
    profile: RequestUse,
    allowed: &Allowed<'_>,
    checks: &mut Checks,
) -> Result<CheckedRequest, Stop> {
    let name = profile.name();
    // One encoding only, DER's: in another, parsers can disagree on what is asked for.
    let request = match X509CertificationRequest::from_der(der) {
        Ok(([], request)) if x509::lengths_are_shortest(der) && x509::request_is_exact(der) => {
            request
        }
        Ok(([], _)) if x509::lengths_are_shortest(der) => {
            let found = "trailing data in a structure, or another version";
            return Err(checks.fail(name, Code::CsrMalformed, "one PKCS #10 request", found));
        }
        Ok(([], _)) => {
            return Err(checks.fail(
                name,
                Code::CsrMalformed,
                "DER",
                "a length that is not in DER's shortest form",
            ));
        }
        Ok(_) => {
            return Err(checks.fail(
                name,
                Code::CsrMalformed,
                "one PKCS #10 request",
                "bytes after it",
            ));
        }
        Err(fault) => {
            return Err(checks.fail(name, Code::CsrMalformed, "one PKCS #10 request", fault));
        }
    };
    let info = &request.certification_request_info;
    let algorithm = request.signature_algorithm.algorithm.to_id_string();
    // A signature by another type of key is not checked here: `check_requests` refuses the key.
    let signed = !is_p256(info.subject_pki.raw)
        || algorithm == ECDSA_SHA256
            && x509::verifies(
                &algorithm,
                info.subject_pki.raw,
                info.raw,
                &request.signature_value.data,
            );
    checks.must(
        &format!("{name}: signature"),
        Code::CsrSignature,
        signed,
        "ECDSA P-256 with SHA-256 by its own key",
        if signed {
            "verified"
        } else {
            "does not verify"
        },
    )?;
    subject(info, name, allowed, checks);
    let sans = extensions(&request, profile, allowed, checks);
    Ok(CheckedRequest {
        spki: info.subject_pki.raw.to_vec(),
        sans,
    })
}

/// Whether a SubjectPublicKeyInfo is that of an ECDSA P-256 key.
pub(crate) fn is_p256(spki: &[u8]) -> bool {
    use p256::pkcs8::DecodePublicKey as _;
    p256::PublicKey::from_public_key_der(spki).is_ok()
}

/// The common name that a request asks for, whatever else is wrong with it.
pub(crate) fn common_name(der: &[u8]) -> Option<String> {
    let (_, request) = X509CertificationRequest::from_der(der).ok()?;
    let mut names = request
        .certification_request_info
        .subject
        .iter_common_name();
    names.next()?.as_str().ok().map(str::to_owned)
}

fn subject(
    info: &x509_parser::certification_request::X509CertificationRequestInfo<'_>,
    name: &str,
    allowed: &Allowed<'_>,
    checks: &mut Checks,
) {
    let (mut common, mut organizations, mut other) = (Vec::new(), Vec::new(), Vec::new());
    for attribute in info.subject.iter_attributes() {
        let text = attribute.as_str().unwrap_or("(not text)").to_owned();
        if *attribute.attr_type() == OID_X509_COMMON_NAME {
            common.push(text);
        } else if *attribute.attr_type() == OID_X509_ORGANIZATION_NAME {
            organizations.push(text);
        } else {
            other.push(format!("{}={text}", attribute.attr_type()));
        }
    }
    // Exactly one of each: of two common names or organizations, parsers differ in which they take.
    let user = node_user(allowed.node);
    let check = |what: &str| format!("{name}: {what}");
    checks.test(
        &check("common name"),
        Code::CsrCommonName,
        common == [user.clone()],
        user,
        common.join(", "),
    );
    checks.test(
        &check("organization"),
        Code::CsrOrganization,
        organizations == [NODES_GROUP],
        NODES_GROUP,
        organizations.join(", "),
    );
    checks.test(
        &check("subject"),
        Code::CsrSubject,
        other.is_empty(),
        "nothing else",
        other.join(", "),
    );
}

fn extensions(
    request: &X509CertificationRequest<'_>,
    profile: RequestUse,
    allowed: &Allowed<'_>,
    checks: &mut Checks,
) -> Vec<San> {
    let name = profile.name();
    let mut sans = Vec::new();
    let mut seen = BTreeSet::new();
    let mut unwanted = Vec::new();
    for attribute in request.certification_request_info.iter_attributes() {
        let ParsedCriAttribute::ExtensionRequest(requested) = attribute.parsed_attribute() else {
            unwanted.push(format!("attribute {}", attribute.oid));
            continue;
        };
        for extension in &requested.extensions {
            // RFC 5280, 4.2 allows one of each; parsers differ in which of two they take.
            if !seen.insert(extension.oid.to_id_string()) {
                unwanted.push(format!("{} twice", extension.oid));
            }
            one_extension(
                extension,
                profile,
                allowed,
                checks,
                &mut sans,
                &mut unwanted,
            );
        }
    }
    let none = unwanted.is_empty();
    checks.test(
        &format!("{name}: extensions"),
        Code::CsrExtension,
        none,
        "only those that nodes use",
        if none {
            "none".to_owned()
        } else {
            unwanted.join(", ")
        },
    );
    sans
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "whatever is not named is unwanted, whatever the parser learns"
)]
fn one_extension(
    extension: &X509Extension<'_>,
    profile: RequestUse,
    allowed: &Allowed<'_>,
    checks: &mut Checks,
    sans: &mut Vec<San>,
    unwanted: &mut Vec<String>,
) {
    let name = profile.name();
    match extension.parsed_extension() {
        ParsedExtension::BasicConstraints(constraints) => {
            let what = if constraints.ca {
                "CA:true"
            } else {
                "CA:false"
            };
            checks.test(
                &format!("{name}: CA"),
                Code::CsrCa,
                !constraints.ca,
                "CA:false",
                what,
            );
        }
        ParsedExtension::KeyUsage(usage) => {
            let good = only_digital_signature(*usage);
            checks.test(
                &format!("{name}: key usage"),
                Code::CsrUsage,
                good,
                "Digital Signature",
                usage,
            );
        }
        ParsedExtension::ExtendedKeyUsage(usage) => {
            let good = extended_usage_fits(usage, profile);
            let (wanted, found) = (
                match profile {
                    RequestUse::Client => "client authentication",
                    RequestUse::Serving => "server authentication",
                },
                if good { "the same" } else { "another usage" },
            );
            checks.test(
                &format!("{name}: extended key usage"),
                Code::CsrUsage,
                good,
                wanted,
                found,
            );
        }
        ParsedExtension::SubjectAlternativeName(names) => {
            // One beyond the limit at most, so that a request with very many names makes no long
            // list of checks.
            for general in names.general_names.iter().take(MAX_SANS + 1) {
                if let Some(san) = one_name(general, profile, allowed, checks) {
                    sans.push(san);
                }
            }
            if names.general_names.len() > MAX_SANS {
                unwanted.push(format!("more than {MAX_SANS} names"));
            }
        }
        _ => unwanted.push(format!("extension {}", extension.oid)),
    }
}

/// The first bit alone (RFC 5280, 4.2.1.3): a TLS 1.3 certificate needs no other usage.
fn only_digital_signature(usage: KeyUsage) -> bool {
    usage.flags == 1
}

fn extended_usage_fits(usage: &ExtendedKeyUsage<'_>, profile: RequestUse) -> bool {
    let others = usage.any
        || usage.code_signing
        || usage.email_protection
        || usage.time_stamping
        || usage.ocsp_signing
        || !usage.other.is_empty();
    let fits = match profile {
        RequestUse::Client => usage.client_auth && !usage.server_auth,
        RequestUse::Serving => usage.server_auth && !usage.client_auth,
    };
    fits && !others
}

/// A name in the form in which names are compared. Anything but a DNS name or an address fails.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "whatever is not named is refused, whatever the parser learns"
)]
fn parsed_name(general: &GeneralName<'_>, check: &str, checks: &mut Checks) -> Option<San> {
    let (wanted, found) = match general {
        // Names are compared without regard to case (RFC 4343), addresses in one form: neither
        // spelling may pass the lists.
        GeneralName::DNSName(name) => return Some(San::Dns(name.to_ascii_lowercase())),
        GeneralName::IPAddress(bytes) => {
            let address = <[u8; 4]>::try_from(*bytes)
                .map(IpAddr::from)
                .or_else(|_not_v4| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            if let Ok(address) = address {
                return Some(San::Ip(address.to_canonical()));
            }
            ("an IPv4 or IPv6 address", hex::encode(bytes))
        }
        other => ("a DNS name or an address", other.to_string()),
    };
    checks.test(check, Code::CsrSan, false, wanted, found);
    None
}

/// One name of a request, if it passes.
fn one_name(
    general: &GeneralName<'_>,
    profile: RequestUse,
    allowed: &Allowed<'_>,
    checks: &mut Checks,
) -> Option<San> {
    let check = format!("{}: name", profile.name());
    let san = parsed_name(general, &check, checks)?;
    let listed = || {
        allowed
            .sans
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    // Wildcards and the API server's names first: their codes tell an attack from a wrong address.
    let wildcard = matches!(&san, San::Dns(name) if name.contains('*'));
    if wildcard {
        checks.test(&check, Code::CsrSanWildcard, false, listed(), &san);
    } else if san.is_api_server(&allowed.api) {
        checks.test(&check, Code::CsrSanApiServer, false, listed(), &san);
    } else if profile == RequestUse::Client {
        checks.test(
            &check,
            Code::CsrSan,
            false,
            "no names in a client request",
            &san,
        );
    } else if checks.test(
        &check,
        Code::CsrSan,
        allowed.sans.contains(&san),
        listed(),
        &san,
    ) {
        return Some(san);
    }
    None
}
