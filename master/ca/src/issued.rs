//! Certificates of static machines. An admin requests and approves them; the private key is wrapped
//! to the machine's TPM.
//!
//! They have the Machine's uid like every node certificate, so the deny list covers them. They name
//! no image, because the machine attested nothing.

use crate::authority::{Authority, IssuedCertificate};
use crate::error::{Error, Result};
use crate::extension::NodeExtension;
use crate::profile::Profile;
use crate::request::{CertificateRequest, open_request, requested_life};
use config_kube::Machine;
use config_kube::identity::{
    NODES_GROUP, STATIC_CLIENT_SIGNER, STATIC_SERVING_SIGNER, node_of_user,
};
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

/// Shortest and longest life of such a certificate, and the default if the request asks for none,
/// in seconds.
const LIFE_BOUNDS: RangeInclusive<u64> = 3600..=365 * 86_400;
const DEFAULT_LIFE: u64 = 90 * 86_400;

/// Which of the two certificates of a node is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StaticKind {
    /// For the API.
    Client,
    /// For the kubelet API.
    Serving,
}

/// An approved request for a static machine.
///
/// Holding one proves: the object has a condition Approved and none Denied or Failed, names one of
/// the two signers, and its subject is a node's. It does not prove that the Machine is static or
/// still wanted: [`Authority::issue_static`] checks that.
#[derive(Debug, Clone)]
pub struct StaticRequest {
    kind: StaticKind,
    node: String,
    request: CertificateRequest,
    life: Duration,
}

impl StaticRequest {
    /// Reads an object; `Ok(None)` where it is of another signer, not approved, or already signed.
    ///
    /// # Errors
    /// Its request cannot be parsed, or its subject or names are not those of a node.
    pub fn from_object(object: &CertificateSigningRequest) -> Result<Option<Self>> {
        let kind = match object.spec.signer_name.as_str() {
            STATIC_CLIENT_SIGNER => StaticKind::Client,
            STATIC_SERVING_SIGNER => StaticKind::Serving,
            _ => return Ok(None),
        };
        let Some(request) = open_request(object)? else {
            return Ok(None);
        };
        let node = node_of_user(&request.user)
            .filter(|_| request.groups == [NODES_GROUP] && request.other_names == 0);
        let Some(node) = node.map(str::to_owned) else {
            return Err(Error::Request(
                "its subject must be O=system:nodes, CN=system:node:<name>".to_owned(),
            ));
        };
        if kind == StaticKind::Client && !request.names.is_empty() {
            return Err(Error::Request(
                "a client certificate carries no subject alternative names".to_owned(),
            ));
        }
        let life = requested_life(object, &LIFE_BOUNDS, DEFAULT_LIFE);
        Ok(Some(Self {
            kind,
            node,
            request,
            life,
        }))
    }

    /// Which certificate.
    pub fn kind(&self) -> StaticKind {
        self.kind
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The node key on which the certificate's validity depends: that of the client certificate,
    /// which `pratique issue` requests first.
    fn node_key(&self, machine: &Machine) -> String {
        let recorded = machine.status.as_ref();
        recorded
            .and_then(|status| status.node_key.clone())
            .filter(|key| self.kind == StaticKind::Serving && !key.is_empty())
            .unwrap_or_else(|| crate::names::spki_hash(&self.request.spki))
    }

    /// The profile under which this Machine gets the certificate; an error if it may not have it.
    fn profile(&self, machine: &Machine) -> Result<Profile> {
        let refuse = |why: String| Err(Error::Request(why));
        let uid = machine.metadata.uid.clone().unwrap_or_default();
        if machine.node_name() != self.node || uid.is_empty() {
            return refuse(format!(
                "it is for node {}, the Machine is of node {}",
                self.node,
                machine.node_name()
            ));
        }
        if !machine.spec.is_static {
            return refuse(
                "the Machine is not static: it gets its certificates by its own proof".to_owned(),
            );
        }
        if machine.spec.retired {
            return refuse("the Machine is retired".to_owned());
        }
        let node = self.node.clone();
        let extension = NodeExtension {
            machine_uid: uid,
            image_id: String::new(),
            policy_generation: 0,
            node_key: self.node_key(machine),
        };
        if self.kind == StaticKind::Client {
            return Ok(Profile::NodeClient { node, extension });
        }
        let allowed = |name: &String| *name == node || machine.spec.addresses.contains(name);
        if let Some(other) = self.request.names.iter().find(|name| !allowed(name)) {
            return refuse(format!(
                "`{other}` is neither the node's name nor an address of the Machine"
            ));
        }
        Ok(Profile::NodeServing {
            names: self.request.names.clone(),
            node,
            extension,
        })
    }
}

impl Authority {
    /// Signs a certificate for a static machine. Only the key comes from the request; its names
    /// must be in the inventory.
    ///
    /// # Errors
    /// The Machine is of another node, not static or retired, or a name is not its own; the clock
    /// is before the authority's keys, or the certificate cannot be built.
    pub fn issue_static(
        &self,
        request: &StaticRequest,
        machine: &Machine,
        now: SystemTime,
    ) -> Result<IssuedCertificate> {
        self.sign_leaf(
            &request.profile(machine)?,
            &request.request.spki,
            now,
            request.life,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileKeeper;
    use config_kube::MachineSpec;
    use config_kube::identity::node_user;
    use config_kube::k8s_openapi::ByteString;
    use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use std::sync::Arc;

    fn object(
        signer: &str,
        user: &str,
        group: &str,
        names: &[&str],
        approved: bool,
    ) -> CertificateSigningRequest {
        let mut params =
            CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>())
                .unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
        let pem = params
            .serialize_request(&KeyPair::generate().unwrap())
            .unwrap()
            .pem()
            .unwrap();
        let mut object = CertificateSigningRequest::default();
        object.spec.signer_name = signer.to_owned();
        object.spec.request = ByteString(pem.into_bytes());
        if approved {
            let condition = CertificateSigningRequestCondition {
                type_: "Approved".to_owned(),
                status: "True".to_owned(),
                ..Default::default()
            };
            object.status.get_or_insert_default().conditions = Some(vec![condition]);
        }
        object
    }

    fn machine() -> Machine {
        let addresses = vec!["192.0.2.7".to_owned()];
        let mut machine = Machine::named(
            "w",
            MachineSpec {
                is_static: true,
                addresses,
                ..MachineSpec::default()
            },
        );
        machine.metadata.uid = Some("uid-of-w".to_owned());
        machine
    }

    fn client(approved: bool) -> CertificateSigningRequest {
        object(
            STATIC_CLIENT_SIGNER,
            &node_user("w"),
            NODES_GROUP,
            &[],
            approved,
        )
    }

    #[test]
    fn an_approved_request_for_a_static_machine_is_signed_with_its_uid() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open(
            folder.path(),
            "lab",
            Arc::new(FileKeeper),
            SystemTime::now(),
        )
        .unwrap();
        let asked = StaticRequest::from_object(&client(true)).unwrap().unwrap();
        assert_eq!((asked.kind(), asked.node()), (StaticKind::Client, "w"));
        let issued = authority
            .issue_static(&asked, &machine(), SystemTime::now())
            .unwrap();
        let extension = NodeExtension::of_certificate(&issued.certificate).unwrap();
        assert_eq!(
            (extension.machine_uid.as_str(), extension.image_id.as_str()),
            ("uid-of-w", "")
        );
        assert_eq!(extension.node_key, crate::spki_hash(&asked.request.spki));
    }

    /// The extension in a request is ignored.
    #[test]
    fn an_extension_in_a_request_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open(
            folder.path(),
            "lab",
            Arc::new(FileKeeper),
            SystemTime::now(),
        )
        .unwrap();
        let foreign = NodeExtension {
            machine_uid: "another".to_owned(),
            image_id: "good".to_owned(),
            policy_generation: 9,
            node_key: "sha256:aa".to_owned(),
        };
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, node_user("w"));
        params
            .distinguished_name
            .push(DnType::OrganizationName, NODES_GROUP);
        let oid = crate::extension::NODE_EXTENSION_OID;
        params
            .custom_extensions
            .push(rcgen::CustomExtension::from_oid_content(
                &oid,
                foreign.to_der(),
            ));
        let pem = params
            .serialize_request(&KeyPair::generate().unwrap())
            .unwrap()
            .pem()
            .unwrap();
        let mut object = client(true);
        object.spec.request = ByteString(pem.into_bytes());
        let asked = StaticRequest::from_object(&object).unwrap().unwrap();
        let issued = authority
            .issue_static(&asked, &machine(), SystemTime::now())
            .unwrap();
        let extension = NodeExtension::of_certificate(&issued.certificate).unwrap();
        assert_eq!(
            (extension.machine_uid.as_str(), extension.image_id.as_str()),
            ("uid-of-w", "")
        );
    }

    #[test]
    fn requests_not_approved_or_of_other_signers_are_ignored() {
        assert!(
            StaticRequest::from_object(&client(false))
                .unwrap()
                .is_none()
        );
        let other = object(
            "pratique.dev/node-client",
            &node_user("w"),
            NODES_GROUP,
            &[],
            true,
        );
        assert!(StaticRequest::from_object(&other).unwrap().is_none());
    }

    #[test]
    fn other_subjects_names_and_machines_are_refused() {
        for (user, group, names) in [
            ("admin", "system:masters", &[][..]),
            ("system:node:w", "system:masters", &[]),
            ("system:node:", NODES_GROUP, &[]),
            ("system:node:w", NODES_GROUP, &["a.example"]),
        ] {
            let refused =
                StaticRequest::from_object(&object(STATIC_CLIENT_SIGNER, user, group, names, true));
            assert!(
                matches!(refused, Err(Error::Request(_))),
                "{user} {group} {names:?}"
            );
        }
        let asked = StaticRequest::from_object(&client(true)).unwrap().unwrap();
        asked.profile(&machine()).expect("the negative control");
        let wrong: [fn(&mut Machine); 4] = [
            |machine| machine.spec.is_static = false,
            |machine| machine.spec.retired = true,
            |machine| machine.spec.node_name = Some("other".to_owned()),
            |machine| machine.metadata.uid = None,
        ];
        for change in wrong {
            let mut machine = machine();
            change(&mut machine);
            assert!(asked.profile(&machine).is_err(), "{machine:?}");
        }
    }

    #[test]
    fn a_serving_certificate_has_the_names_of_the_inventory() {
        let asked = |names: &[&str]| {
            let object = object(
                STATIC_SERVING_SIGNER,
                &node_user("w"),
                NODES_GROUP,
                names,
                true,
            );
            StaticRequest::from_object(&object)
                .unwrap()
                .unwrap()
                .profile(&machine())
        };
        assert!(asked(&["w", "192.0.2.7"]).is_ok());
        assert!(asked(&["w", "192.0.2.8"]).is_err());
        assert!(asked(&["kubernetes"]).is_err());
    }
}
