//! Every kind of certificate that the authority signs, and what it requires before it signs.

use crate::authority::{Authority, IssuedCertificate, OwnCertificate};
use crate::error::{Error, Result};
use crate::extension::NodeExtension;
use crate::hierarchy;
use crate::profile::{self, Profile};
use crate::request::{ApprovedRequest, CertificateRequest};
use config_attest::verifier::CertificateGrant;
use config_certificates::San;
use config_kube::identity::{APISERVER_KUBELET_USER, MASTERS_GROUP};
use rustls_pki_types::CertificateDer;
use std::time::{Duration, SystemTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The two certificates of a node; both end at the same time.
#[derive(Debug, Clone)]
pub struct NodeCertificates {
    /// Client certificate for the API, over the node key.
    pub client: IssuedCertificate,
    /// Serving certificate of the kubelet API, over the serving key.
    pub serving: IssuedCertificate,
}

impl Authority {
    /// Signs a node's certificates. Names, keys and life come from the grant, which only the
    /// verifier makes: no other value can reach a node certificate by attestation.
    ///
    /// # Errors
    /// The clock is before the authority's keys, or a certificate cannot be built.
    pub fn issue_node(
        &self,
        grant: &CertificateGrant,
        policy_generation: u64,
        now: SystemTime,
    ) -> Result<NodeCertificates> {
        let (shortest, longest) = profile::NODE_LIFE_BOUNDS;
        let life = Duration::from_secs(grant.ttl_seconds()).clamp(shortest, longest);
        let extension = NodeExtension {
            machine_uid: grant.machine_id().uid.clone(),
            image_id: grant
                .image()
                .map(|image| image.id.clone())
                .unwrap_or_default(),
            policy_generation,
            node_key: crate::names::spki_hash(grant.client_spki()),
        };
        let node = grant.node_name().to_owned();
        let client = Profile::NodeClient {
            node: node.clone(),
            extension: extension.clone(),
        };
        let names = grant.serving_names().iter().map(text_of).collect();
        let serving = Profile::NodeServing {
            node,
            names,
            extension,
        };
        Ok(NodeCertificates {
            client: self.sign_leaf(&client, grant.client_spki(), now, life)?,
            serving: self.sign_leaf(&serving, grant.serving_spki(), now, life)?,
        })
    }

    /// Signs a request to one of upstream's signers that a person or a rule approved.
    ///
    /// # Errors
    /// The clock is before the authority's keys, or the certificate cannot be built.
    pub fn issue_approved(
        &self,
        approved: &ApprovedRequest,
        now: SystemTime,
    ) -> Result<IssuedCertificate> {
        self.sign_leaf(&approved.profile, &approved.spki, now, approved.life)
    }

    /// Signs the first admin's certificate, at the bootstrap. Assumption: `admin_key` is the hash
    /// from the cluster's configuration. Only the public key comes from the request.
    ///
    /// # Errors
    /// The request's key is not the admin's, the clock is before the authority's keys, or the
    /// certificate cannot be built.
    pub fn issue_admin(
        &self,
        request: &CertificateRequest,
        admin_key: &str,
        now: SystemTime,
    ) -> Result<IssuedCertificate> {
        if crate::names::spki_hash(&request.spki) != admin_key {
            return Err(Error::Request(
                "its key is not the admin key of the cluster's configuration".to_owned(),
            ));
        }
        self.sign_leaf(&admin_profile(), &request.spki, now, profile::ADMIN_LIFE)
    }

    /// Renews an admin's certificate: same key, same name. Assumption: the client presented `chain`
    /// (leaf first) in a TLS handshake, and TLS verified it.
    ///
    /// # Errors
    /// The chain does not lead to a root of this cluster, or its leaf is not an admin's; the clock
    /// is before the authority's keys, or the certificate cannot be built.
    pub fn renew_admin(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<IssuedCertificate> {
        let refuse = |why: &str| Error::Request(why.to_owned());
        let leaf = chain
            .first()
            .ok_or_else(|| refuse("the caller did not present a certificate"))?;
        // The configuration may let the API accept clients of other CAs. Those must not get a
        // certificate of this one.
        if !self
            .roots()
            .iter()
            .any(|root| hierarchy::leads_to(chain, root))
        {
            return Err(refuse(
                "the present certificate is not one of the cluster's own",
            ));
        }
        let (_, leaf) =
            X509Certificate::from_der(leaf).map_err(|_opaque| refuse("it is not a certificate"))?;
        let name = |value: Option<&x509_parser::x509::AttributeTypeAndValue<'_>>| {
            value
                .and_then(|value| value.as_str().ok())
                .unwrap_or_default()
                .to_owned()
        };
        let (user, group) = (
            name(leaf.subject().iter_common_name().next()),
            name(
                leaf.subject()
                    .iter_organization()
                    .find(|group| group.as_str().ok() == Some(MASTERS_GROUP)),
            ),
        );
        if user.is_empty() || group.is_empty() {
            return Err(refuse("the present certificate is not an admin's"));
        }
        let profile = Profile::Client {
            user,
            group: Some(group),
        };
        self.sign_leaf(&profile, leaf.public_key().raw, now, profile::ADMIN_LIFE)
    }

    /// An admin's certificate over a key made here: only for a development master without an admin
    /// key.
    ///
    /// # Errors
    /// The clock is before the authority's keys, or key or certificate cannot be built.
    pub fn make_development_admin(&self, now: SystemTime) -> Result<OwnCertificate> {
        self.make_identity(&admin_profile(), now, profile::ADMIN_LIFE)
    }

    /// The master's API certificate for these DNS names and IP addresses, over a new key.
    ///
    /// # Errors
    /// A name is neither, the clock is before the authority's keys, or key or certificate cannot be
    /// built.
    pub fn make_serving(&self, names: &[String], now: SystemTime) -> Result<OwnCertificate> {
        self.make_identity(
            &Profile::MasterServing {
                names: names.to_vec(),
            },
            now,
            profile::MASTER_LIFE,
        )
    }

    /// A new API certificate over the key of an earlier one (SubjectPublicKeyInfo DER).
    ///
    /// # Errors
    /// As [`Authority::make_serving`].
    pub fn renew_serving(
        &self,
        names: &[String],
        spki: &[u8],
        now: SystemTime,
    ) -> Result<IssuedCertificate> {
        self.sign_leaf(
            &Profile::MasterServing {
                names: names.to_vec(),
            },
            spki,
            now,
            profile::MASTER_LIFE,
        )
    }

    /// The client certificate with which the API server authenticates to kubelets.
    ///
    /// # Errors
    /// The clock is before the authority's keys, or key or certificate cannot be built.
    pub fn make_kubelet_client(&self, now: SystemTime) -> Result<OwnCertificate> {
        let profile = Profile::Client {
            user: APISERVER_KUBELET_USER.to_owned(),
            group: None,
        };
        self.make_identity(&profile, now, profile::MASTER_LIFE)
    }
}

fn text_of(name: &San) -> String {
    match name {
        San::Dns(name) => name.clone(),
        San::Ip(address) => address.to_string(),
    }
}

fn admin_profile() -> Profile {
    Profile::Client {
        user: "admin".to_owned(),
        group: Some(MASTERS_GROUP.to_owned()),
    }
}
