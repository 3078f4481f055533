//! Approves client certificates of kubelets whose user has the right to automatic approval
//! (upstream: csrapproving).
//!
//! For a certificate of its own node a user needs the right to create
//! `certificatesigningrequests/selfnodeclient`, for another node
//! `certificatesigningrequests/nodeclient`. Without the right the request waits for a person.

use config_kube::identity::{NODE_USER_PREFIX, NODES_GROUP};
use config_kube::k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use config_kube::k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use master_client::{ApiError, Client, Key, Reason, Store};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::request::{RequestView, condition, is_undecided};
use master_control::writer::Writer;
use std::sync::Arc;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;
use x509_parser::x509::AttributeTypeAndValue;

/// The signer of these requests.
const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// The controller. Its keys are certificate signing requests.
#[derive(Debug)]
pub struct Approver {
    requests: Store<RequestView>,
}

/// A request and its facts.
#[derive(Debug)]
pub struct Facts {
    name: String,
    request: Arc<RequestView>,
}

/// Approves the request, if its sender has the right.
#[derive(Debug, PartialEq, Eq)]
pub struct Approve {
    /// The object's name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl Controller for Approver {
    const NAME: &'static str = "certificatesigningrequest-approving-controller";
    const RIGHTS: &'static [Right] = &[
        right(
            "certificates.k8s.io",
            "certificatesigningrequests",
            &["get", "list", "watch"],
        ),
        right(
            "certificates.k8s.io",
            "certificatesigningrequests/approval",
            &["update"],
        ),
        right("certificates.k8s.io", "signers", &["approve"]).named(&[SIGNER]),
        right("authorization.k8s.io", "subjectaccessreviews", &["create"]),
    ];
    type Facts = Facts;
    type Action = Approve;

    fn new(setup: &mut Setup<'_>) -> Self {
        let requests = setup.follow_keys();
        Self { requests }
    }

    fn facts(&self, key: &Key, _: Now) -> Option<Facts> {
        let (name, request) = (key.name.clone(), self.requests.get(key)?);
        Some(Facts { name, request })
    }

    fn plan(facts: &Facts, _: Now) -> Plan<Approve> {
        let open = facts.request.signer == SIGNER && !facts.request.decided;
        let action = open.then(|| Approve {
            name: facts.name.clone(),
            uid: facts.request.uid.clone(),
        });
        action.into()
    }

    async fn carry_out(&self, request: Approve, writer: &Writer) -> Result<(), ApiError> {
        approve(writer, &request.name, &request.uid).await
    }
}

/// Approves a request if it is a kubelet's and its sender has the right.
async fn approve(writer: &Writer, name: &str, uid: &str) -> Result<(), ApiError> {
    let client = writer.client();
    let mut request: CertificateSigningRequest = client.get(None, name).await?;
    if request.metadata.uid.as_deref() != Some(uid) || !is_undecided(&request) {
        return Ok(());
    }
    let user = match node_user(&request.spec) {
        Ok(Some(user)) => user,
        Ok(None) => return Ok(()),
        Err(Unreadable(part)) => {
            // No error: it is as unreadable next time.
            tracing::warn!(
                request = name,
                "not approved: {part} cannot be read, and the signer refuses it too; make the \
                 request again with UTF8String or PrintableString"
            );
            return Ok(());
        }
    };
    let own = request.spec.username.as_deref() == Some(&user);
    let ways = [
        (
            "selfnodeclient",
            own,
            "Auto approving self kubelet client certificate after SubjectAccessReview.",
        ),
        (
            "nodeclient",
            true,
            "Auto approving kubelet client certificate after SubjectAccessReview.",
        ),
    ];
    for (subresource, fits, message) in ways {
        if !fits || !may(client, &request.spec, subresource).await? {
            continue;
        }
        let now = writer.now().wall;
        let approved = condition("Approved", "AutoApproved", message.to_owned(), now);
        request
            .status
            .get_or_insert_default()
            .conditions
            .get_or_insert_default()
            .push(approved);
        return writer
            .update_subresource(&request, "approval")
            .await
            .map(drop);
    }
    // An error, so that it is checked again later with a growing delay: the right may be granted.
    let text = format!(
        "recognized csr {name:?} as a kubelet's but subject access review was not approved"
    );
    Err(ApiError::new(Reason::Forbidden, text))
}

async fn may(
    client: &Client,
    spec: &CertificateSigningRequestSpec,
    subresource: &str,
) -> Result<bool, ApiError> {
    let attributes = ResourceAttributes {
        group: Some("certificates.k8s.io".to_owned()),
        resource: Some("certificatesigningrequests".to_owned()),
        subresource: Some(subresource.to_owned()),
        verb: Some("create".to_owned()),
        version: Some("*".to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: spec.username.clone(),
        uid: spec.uid.clone(),
        groups: spec.groups.clone(),
        extra: spec.extra.clone(),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview {
        spec,
        ..SubjectAccessReview::default()
    };
    Ok(client
        .create(&review)
        .await?
        .status
        .is_some_and(|status| status.allowed))
}

/// The part of a request that cannot be read, though it decides whether it is a kubelet's.
#[derive(Debug, PartialEq, Eq)]
struct Unreadable(&'static str);

/// The node's user in a kubelet's request; `None` if it is not a kubelet's.
///
/// # Errors
/// The request is not PKCS#10 in PEM, or its subject is in an encoding that is not read.
fn node_user(spec: &CertificateSigningRequestSpec) -> Result<Option<String>, Unreadable> {
    let usages = spec.usages.as_deref().unwrap_or_default();
    let known = |usage: &String| {
        matches!(
            usage.as_str(),
            "client auth" | "digital signature" | "key encipherment"
        )
    };
    let needed = ["client auth", "digital signature"];
    if !usages.iter().all(known)
        || !needed
            .iter()
            .all(|usage| usages.iter().any(|own| own == usage))
    {
        return Ok(None);
    }
    let (_, pem) = x509_parser::pem::parse_x509_pem(&spec.request.0)
        .map_err(|_not_pem| Unreadable("its PEM"))?;
    let (_, parsed) = X509CertificationRequest::from_der(&pem.contents)
        .map_err(|_not_der| Unreadable("its PKCS#10"))?;
    let named = parsed.requested_extensions().into_iter().flatten();
    if named
        .into_iter()
        .any(|extension| matches!(extension, ParsedExtension::SubjectAlternativeName(_)))
    {
        return Ok(None);
    }
    let subject = &parsed.certification_request_info.subject;
    let groups: Vec<&str> = subject
        .iter_organization()
        .map(AttributeTypeAndValue::as_str)
        .collect::<Result<_, _>>()
        .map_err(|_not_text| Unreadable("its subject's organization (O)"))?;
    let users: Vec<&str> = subject
        .iter_common_name()
        .map(AttributeTypeAndValue::as_str)
        .collect::<Result<_, _>>()
        .map_err(|_not_text| Unreadable("its subject's common name (CN)"))?;
    Ok(match (groups.as_slice(), users.as_slice()) {
        ([group], [user]) if *group == NODES_GROUP => {
            let node = user.strip_prefix(NODE_USER_PREFIX);
            node.filter(|node| !node.is_empty())
                .map(|_| (*user).to_owned())
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::ByteString;

    /// `O=system:nodes, CN=system:node:n`, as UTF8String.
    const READABLE: &str = "\
-----BEGIN CERTIFICATE REQUEST-----\n\
MIHqMIGRAgEAMC8xFTATBgNVBAoMDHN5c3RlbTpub2RlczEWMBQGA1UEAwwNc3lz\n\
dGVtOm5vZGU6bjBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABC8M1b/lIkpGV0rr\n\
zChjj722lSiynXfoQmwDc0KthijeRkO23hUwa3MWrgsEtqrPaNPc45sIJn5fRaB7\n\
tpnet4OgADAKBggqhkjOPQQDAgNIADBFAiEA3yRbuNyw6rki8mwAuGkHfv+Eon4P\n\
yN0dvtG3MEiajEsCIGfHq7R2Gk1idE8BHLKOAw9sFFGEqZ5P5RWZRxLd6C2f\n\
-----END CERTIFICATE REQUEST-----\n";

    /// The same, as BMPString, which is not read.
    const UNREADABLE: &str = "\
-----BEGIN CERTIFICATE REQUEST-----\n\
MIIBAzCBqgIBADBIMSEwHwYDVQQKHhgAcwB5AHMAdABlAG0AOgBuAG8AZABlAHMx\n\
IzAhBgNVBAMeGgBzAHkAcwB0AGUAbQA6AG4AbwBkAGUAOgBuMFkwEwYHKoZIzj0C\n\
AQYIKoZIzj0DAQcDQgAEDZ9f6WCcSktfytAOi3bQCafH8Eshy3ZgtSx8ZACp+Gt7\n\
FV54p5xWeyvkTGrjHQMpn0/H5JK3nuOYALg/uvbtCKAAMAoGCCqGSM49BAMCA0gA\n\
MEUCICV6tBPfqcuSm++ua7ygY+OJ7ct8PbhCit6gd+uf9IvPAiEAuoY4QGonFC6U\n\
jc/CvViYxD7FJX1oalt4XnfN9Ckb97Y=\n\
-----END CERTIFICATE REQUEST-----\n";

    #[test]
    fn a_subject_that_is_not_read_is_told_from_one_of_another_client() {
        let usages = ["client auth", "digital signature"].map(str::to_owned);
        let user = |request: &str| {
            node_user(&CertificateSigningRequestSpec {
                request: ByteString(request.as_bytes().to_vec()),
                usages: Some(usages.to_vec()),
                ..CertificateSigningRequestSpec::default()
            })
        };
        assert_eq!(user(READABLE), Ok(Some("system:node:n".to_owned())));
        let unreadable = Unreadable("its subject's organization (O)");
        assert_eq!(user(UNREADABLE), Err(unreadable));
        assert_eq!(user("no request"), Err(Unreadable("its PEM")));
    }
}
