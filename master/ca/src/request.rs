//! Certificate requests (PKCS#10): how they are read, and the rules of upstream's signers for
//! approved ones.

use crate::error::{Error, Result};
use crate::profile::Profile;
use config_kube::identity::{
    APISERVER_KUBELET_USER, APISERVER_USER, CONTROLLER_MANAGER_USER, NODE_USER_PREFIX, NODES_GROUP,
    OWN_USER_PREFIX, SCHEDULER_USER, node_of_user,
};
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use std::ops::RangeInclusive;
use std::time::Duration;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer as _;

/// Longest request that is read, in octets.
pub const REQUEST_LIMIT: usize = 16 * 1024;
/// Upstream's signer of client certificates for the API.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Upstream's signer of kubelets' client certificates.
pub const KUBELET_CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Upstream's signer of kubelets' serving certificates.
pub const KUBELET_SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
/// Upstream's signers that this authority signs for.
pub const UPSTREAM_SIGNERS: [&str; 3] =
    [CLIENT_SIGNER, KUBELET_CLIENT_SIGNER, KUBELET_SERVING_SIGNER];

/// Shortest and longest life that a request of upstream's signers may ask for, in seconds.
const LIFE_BOUNDS: RangeInclusive<u64> = 600..=365 * 86_400;
/// Life where a request asks for none, in seconds.
const DEFAULT_LIFE: u64 = 365 * 86_400;

/// A parsed request. Holding one proves: its signature verifies with the key in it (proof of
/// possession).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    /// SubjectPublicKeyInfo DER.
    pub spki: Vec<u8>,
    /// Common name.
    pub user: String,
    /// Organizations.
    pub groups: Vec<String>,
    /// DNS names and IP addresses that it asks for.
    pub names: Vec<String>,
    /// Number of other subject alternative names (mail, URI), which no profile has.
    pub other_names: usize,
}

impl CertificateRequest {
    /// Reads a PKCS#10 request (DER) and verifies its signature.
    ///
    /// # Errors
    /// It is too long, not PKCS#10, not signed by its own key, or has not exactly one common name.
    pub fn from_der(der: &[u8]) -> Result<Self> {
        if der.len() > REQUEST_LIMIT {
            return Err(Error::Request(format!(
                "{} octets, at most {REQUEST_LIMIT} are read",
                der.len()
            )));
        }
        let (rest, parsed) = X509CertificationRequest::from_der(der)
            .map_err(|e| Error::Request(format!("not PKCS#10: {e}")))?;
        if !rest.is_empty() {
            return Err(Error::Request("octets follow the request".to_owned()));
        }
        parsed
            .verify_signature()
            .map_err(|_opaque| Error::Request("it is not signed by its own key".to_owned()))?;
        let info = &parsed.certification_request_info;
        let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            value
                .as_str()
                .map(str::to_owned)
                .map_err(|_opaque| Error::Request("its subject is not text".to_owned()))
        };
        let users: Vec<String> = info
            .subject
            .iter_common_name()
            .map(text)
            .collect::<Result<_>>()?;
        let groups = info
            .subject
            .iter_organization()
            .map(text)
            .collect::<Result<_>>()?;
        let [user] = <[String; 1]>::try_from(users).map_err(|found| {
            Error::Request(format!(
                "its subject has {} common names, not one",
                found.len()
            ))
        })?;
        let mut request = Self {
            spki: info.subject_pki.raw.to_vec(),
            user,
            groups,
            names: Vec::new(),
            other_names: 0,
        };
        for extension in parsed.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(names) = extension {
                names
                    .general_names
                    .iter()
                    .for_each(|name| request.take_name(name));
            }
        }
        Ok(request)
    }

    fn take_name(&mut self, name: &GeneralName<'_>) {
        match name {
            GeneralName::DNSName(dns) => self.names.push((*dns).to_owned()),
            GeneralName::IPAddress(bytes) => match address(bytes) {
                Some(address) => self.names.push(address.to_string()),
                None => self.other_names += 1,
            },
            GeneralName::OtherName(..)
            | GeneralName::RFC822Name(_)
            | GeneralName::X400Address(_)
            | GeneralName::DirectoryName(_)
            | GeneralName::EDIPartyName(_)
            | GeneralName::URI(_)
            | GeneralName::RegisteredID(_)
            | GeneralName::Invalid(..) => self.other_names += 1,
        }
    }
}

fn address(bytes: &[u8]) -> Option<std::net::IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(Into::into)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(Into::into))
        .ok()
}

/// An approved request of one of upstream's signers.
///
/// Holding one proves: the object has a condition Approved and none Denied or Failed, its signer is
/// one of upstream's three, and the request keeps the rules that the documentation of
/// certificates/v1 gives for that signer.
#[derive(Debug, Clone)]
pub struct ApprovedRequest {
    pub(crate) profile: Profile,
    pub(crate) spki: Vec<u8>,
    pub(crate) life: Duration,
}

impl ApprovedRequest {
    /// Reads an object; `Ok(None)` where it is of another signer, not approved, or already signed.
    ///
    /// # Errors
    /// Its request cannot be parsed, or breaks the signer's rules.
    pub fn from_object(object: &CertificateSigningRequest) -> Result<Option<Self>> {
        let signer = object.spec.signer_name.as_str();
        if !UPSTREAM_SIGNERS.contains(&signer) {
            return Ok(None);
        }
        let Some(request) = open_request(object)? else {
            return Ok(None);
        };
        let profile = profile_of(
            signer,
            &request,
            &object.spec.usages.clone().unwrap_or_default(),
        )?;
        let life = requested_life(object, &LIFE_BOUNDS, DEFAULT_LIFE);
        Ok(Some(Self {
            profile,
            spki: request.spki,
            life,
        }))
    }

    /// Subject alternative names of the certificate.
    pub fn names(&self) -> &[String] {
        match &self.profile {
            Profile::ApprovedServing { names, .. } => names,
            Profile::Client { .. }
            | Profile::NodeClient { .. }
            | Profile::NodeServing { .. }
            | Profile::MasterServing { .. } => &[],
        }
    }

    /// The node whose name the certificate has, if it is one.
    pub fn node(&self) -> Option<&str> {
        match &self.profile {
            // The group does not matter: an authorizer may decide by the user name alone.
            Profile::Client { user, .. } | Profile::ApprovedServing { user, .. } => {
                node_of_user(user)
            }
            Profile::NodeClient { .. }
            | Profile::NodeServing { .. }
            | Profile::MasterServing { .. } => None,
        }
    }
}

/// The life that a request asks for, within the signer's bounds (in seconds); `otherwise` where it
/// asks for none.
pub(crate) fn requested_life(
    object: &CertificateSigningRequest,
    bounds: &RangeInclusive<u64>,
    otherwise: u64,
) -> Duration {
    let (shortest, longest) = (*bounds.start(), *bounds.end());
    let requested = object.spec.expiration_seconds;
    let requested = requested.and_then(|seconds| u64::try_from(seconds).ok());
    Duration::from_secs(requested.unwrap_or(otherwise).clamp(shortest, longest))
}

/// The request of an object that is approved, not denied, not failed and without a certificate;
/// `Ok(None)` for others.
pub(crate) fn open_request(
    object: &CertificateSigningRequest,
) -> Result<Option<CertificateRequest>> {
    let status = object.status.clone().unwrap_or_default();
    let has = |kind: &str| {
        status
            .conditions
            .as_ref()
            .is_some_and(|all| all.iter().any(|c| c.type_ == kind && c.status == "True"))
    };
    if !has("Approved") || has("Denied") || has("Failed") || status.certificate.is_some() {
        return Ok(None);
    }
    CertificateRequest::from_der(&pem_request(&object.spec.request.0)?).map(Some)
}

/// The request in a PEM text that has only one reading. The person or controller that approved it
/// used another parser, and parsers differ in where a line ends, and in which of several blocks is
/// the request.
fn pem_request(text: &[u8]) -> Result<Vec<u8>> {
    use rustls_pki_types::pem::PemObject as _;
    const BEGIN: &[u8] = b"-----BEGIN";
    let blocks = text.windows(BEGIN.len()).filter(|part| *part == BEGIN);
    let mut returns = text.split(|byte| *byte == b'\r').skip(1);
    if blocks.count() > 1 || returns.any(|after| !after.starts_with(b"\n")) {
        return Err(Error::Request(
            "spec.request must be one PEM block, with lines that end with LF or CR LF".to_owned(),
        ));
    }
    rustls_pki_types::CertificateSigningRequestDer::from_pem_slice(text)
        .map(|der| der.to_vec())
        .map_err(|_opaque| {
            Error::Request("spec.request is not a PEM certificate request".to_owned())
        })
}

fn profile_of(signer: &str, request: &CertificateRequest, usages: &[String]) -> Result<Profile> {
    let refuse = |why: &str| Err(Error::Request(why.to_owned()));
    let (needed, group) = match signer {
        KUBELET_SERVING_SIGNER => ("server auth", Some(NODES_GROUP)),
        KUBELET_CLIENT_SIGNER => ("client auth", Some(NODES_GROUP)),
        _ => ("client auth", None),
    };
    let allowed = ["digital signature", "key encipherment", needed];
    if !usages.iter().any(|u| u == needed) || usages.iter().any(|u| !allowed.contains(&u.as_str()))
    {
        return Err(Error::Request(format!(
            "usages must hold `{needed}` and nothing beyond {allowed:?}"
        )));
    }
    if is_masters_own(&request.user) || request.groups.iter().any(|group| is_masters_own(group)) {
        return refuse("its subject is a user or group of the master's own components");
    }
    if request.other_names > 0 {
        return refuse("it asks for names other than DNS names and IP addresses");
    }
    if group.is_some() {
        let node = request
            .user
            .strip_prefix(NODE_USER_PREFIX)
            .unwrap_or_default();
        if node.is_empty() || request.groups != [NODES_GROUP] {
            return refuse("its subject must be O=system:nodes, CN=system:node:<name>");
        }
    }
    if signer == KUBELET_SERVING_SIGNER {
        if request.names.is_empty() {
            return refuse("a serving certificate needs a DNS name or an IP address");
        }
        // `*.default.svc` is the API server, too, as its clients read it.
        if request.names.iter().any(|name| name.contains('*')) {
            return refuse("a serving certificate is for single names, and for no wildcard");
        }
        return Ok(Profile::ApprovedServing {
            user: request.user.clone(),
            names: request.names.clone(),
        });
    }
    if !request.names.is_empty() {
        return refuse("a client certificate carries no subject alternative names");
    }
    match request.groups.as_slice() {
        [] => Ok(Profile::Client {
            user: request.user.clone(),
            group: None,
        }),
        [group] if group == config_kube::identity::MASTERS_GROUP => {
            refuse("no request may be for the group system:masters")
        }
        [group] => Ok(Profile::Client {
            user: request.user.clone(),
            group: Some(group.clone()),
        }),
        _ => refuse("more than one organization is not supported"),
    }
}

/// Whether a user or group is one of the master's own components. Nodes trust every request of the
/// first of these users, and the API gives the others rights that no person has.
fn is_masters_own(name: &str) -> bool {
    let users = [
        APISERVER_KUBELET_USER,
        APISERVER_USER,
        SCHEDULER_USER,
        CONTROLLER_MANAGER_USER,
    ];
    users.contains(&name) || name.starts_with(OWN_USER_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::ByteString;
    use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition;
    use rcgen::{CertificateParams, DnType, KeyPair};

    fn request(user: &str, group: Option<&str>, names: &[&str]) -> String {
        let mut params =
            CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>())
                .unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params
                .distinguished_name
                .push(DnType::OrganizationName, group);
        }
        params
            .serialize_request(&KeyPair::generate().unwrap())
            .unwrap()
            .pem()
            .unwrap()
    }

    fn object(signer: &str, pem: &str, usage: &str, condition: &str) -> CertificateSigningRequest {
        let mut object = CertificateSigningRequest::default();
        object.spec.signer_name = signer.to_owned();
        object.spec.request = ByteString(pem.as_bytes().to_vec());
        object.spec.usages = Some(vec!["digital signature".to_owned(), usage.to_owned()]);
        let condition = CertificateSigningRequestCondition {
            type_: condition.to_owned(),
            status: "True".to_owned(),
            ..Default::default()
        };
        object.status.get_or_insert_default().conditions = Some(vec![condition]);
        object
    }

    #[test]
    fn only_an_approved_request_is_taken() {
        let pem = request("jane", Some("dev"), &[]);
        let approved = object(CLIENT_SIGNER, &pem, "client auth", "Approved");
        assert!(ApprovedRequest::from_object(&approved).unwrap().is_some());
        let denied = object(CLIENT_SIGNER, &pem, "client auth", "Denied");
        assert!(ApprovedRequest::from_object(&denied).unwrap().is_none());
        let ours = object(
            config_kube::identity::NODE_CLIENT_SIGNER,
            &pem,
            "client auth",
            "Approved",
        );
        assert!(ApprovedRequest::from_object(&ours).unwrap().is_none());
    }

    #[test]
    fn a_request_beyond_its_signers_rules_is_refused() {
        let cases = [
            (
                CLIENT_SIGNER,
                request("x", Some("system:masters"), &[]),
                "client auth",
            ),
            (
                CLIENT_SIGNER,
                request("x", None, &["a.example"]),
                "client auth",
            ),
            (CLIENT_SIGNER, request("x", None, &[]), "server auth"),
            (
                KUBELET_CLIENT_SIGNER,
                request("x", Some("system:nodes"), &[]),
                "client auth",
            ),
            (
                KUBELET_CLIENT_SIGNER,
                request("system:node:a", Some("dev"), &[]),
                "client auth",
            ),
            (
                KUBELET_SERVING_SIGNER,
                request("system:node:a", Some("system:nodes"), &[]),
                "server auth",
            ),
            (
                KUBELET_SERVING_SIGNER,
                request(
                    "system:node:a",
                    Some("system:nodes"),
                    &["a", "*.default.svc"],
                ),
                "server auth",
            ),
        ];
        for (signer, pem, usage) in cases {
            let error = ApprovedRequest::from_object(&object(signer, &pem, usage, "Approved"));
            assert!(matches!(error, Err(Error::Request(_))), "{signer} {pem}");
        }
    }

    /// The users of the master's components, and the one by which nodes recognize the master.
    #[test]
    fn no_request_gets_a_user_of_the_masters_components() {
        let own = [
            "system:kube-apiserver",
            "system:apiserver",
            "system:kube-scheduler",
            "system:kube-controller-manager",
            "system:pratique:attestation",
            "system:pratique:usage",
            "system:pratique:controller:job",
        ];
        for name in own {
            for (user, group) in [(name, None), (name, Some("dev")), ("jane", Some(name))] {
                let pem = request(user, group, &[]);
                let object = object(CLIENT_SIGNER, &pem, "client auth", "Approved");
                let error = ApprovedRequest::from_object(&object).unwrap_err();
                assert!(error.to_string().contains("master's own"), "{error}");
            }
        }
        let pem = request("jane", Some("system:kube-readers"), &[]);
        let object = object(CLIENT_SIGNER, &pem, "client auth", "Approved");
        assert!(ApprovedRequest::from_object(&object).unwrap().is_some());
    }

    #[test]
    fn an_altered_request_is_refused() {
        use rustls_pki_types::pem::PemObject as _;
        let pem = request("jane", None, &[]);
        let der =
            rustls_pki_types::CertificateSigningRequestDer::from_pem_slice(pem.as_bytes()).unwrap();
        assert!(CertificateRequest::from_der(&der).is_ok());
        let mut altered = der.to_vec();
        let at = altered.windows(4).position(|w| w == b"jane").unwrap();
        altered[at] = b'k';
        assert!(matches!(
            CertificateRequest::from_der(&altered),
            Err(Error::Request(_))
        ));
    }

    /// What was approved is what other parsers find: the line that begins the request, or the label
    /// of its block, is none for the parser that is used here.
    #[test]
    fn a_request_that_others_read_as_another_is_not_signed() {
        let both = ["jane", "system:node:b"].map(|user| request(user, None, &[]));
        let [shown, hidden] = both;
        let lines = |text: &str, end: &str| text.lines().collect::<Vec<_>>().join(end);
        let in_one_line = lines(&hidden, "\r");
        let (_, rest) = shown.split_once('\n').unwrap();
        let other_label = shown.replace("REQUEST-----", "REQUEST-X-----");
        let from = |text: &str| {
            let object = object(CLIENT_SIGNER, text, "client auth", "Approved");
            ApprovedRequest::from_object(&object)
        };
        for text in [
            format!("x\r{in_one_line}\r\n{shown}"),
            format!("{in_one_line}\r\n{rest}"),
            format!("{other_label}{hidden}"),
            format!("{shown}{hidden}"),
        ] {
            assert!(matches!(from(&text), Err(Error::Request(_))), "{text:?}");
        }
        let with_preamble = format!("Certificate Request:\n{shown}");
        for text in [lines(&shown, "\r\n"), with_preamble] {
            let approved = from(&text).unwrap().unwrap();
            assert_eq!(approved.node(), None, "{text:?}");
        }
    }

    /// A request with a node's common name is for that node, whatever its organization is.
    #[test]
    fn a_client_that_is_named_like_a_node_is_for_that_node() {
        for (user, group, node) in [
            ("system:node:worker-1", None, Some("worker-1")),
            ("system:node:worker-1", Some("dev"), Some("worker-1")),
            (
                "system:node:worker-1",
                Some("system:nodes"),
                Some("worker-1"),
            ),
            ("jane", Some("system:nodes"), None),
            ("jane", None, None),
        ] {
            let object = object(
                CLIENT_SIGNER,
                &request(user, group, &[]),
                "client auth",
                "Approved",
            );
            let approved = ApprovedRequest::from_object(&object).unwrap().unwrap();
            assert_eq!(approved.node(), node, "{user} of {group:?}");
        }
    }
}
