//! Checks the serving certificate of a node before a kept connection to it is used again.

use crate::deny::MachineDenyList;
use master_ca::NodeExtension;
use std::time::SystemTime;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The certificate that a node showed when a connection to it was opened, parsed once. Holding one
/// proves nothing.
#[derive(Debug)]
pub struct ServingCertificate {
    node: String,
    /// notAfter, in Unix seconds; `None` where it cannot be parsed.
    end: Option<u64>,
    extension: Option<NodeExtension>,
}

impl ServingCertificate {
    /// The certificate (DER) that the server of a node showed.
    pub fn of(node: &str, certificate: &[u8]) -> Self {
        let parsed = X509Certificate::from_der(certificate).ok();
        let end = parsed.map(|(_, parsed)| parsed.validity().not_after.timestamp());
        Self {
            node: node.to_owned(),
            end: end.and_then(|end| u64::try_from(end).ok()),
            extension: NodeExtension::of_certificate(certificate),
        }
    }
}

impl MachineDenyList {
    /// Why a connection with this certificate may not be used at `now`: the certificate is not its
    /// node's any more, or the node is denied. `None` if it may. The API server asks when this list
    /// changes, and before it uses the connection again.
    ///
    /// Assumption: chain and subject were verified when the connection was opened.
    pub fn serving_denied_at(
        &self,
        certificate: &ServingCertificate,
        now: SystemTime,
    ) -> Option<String> {
        let ServingCertificate {
            node,
            end,
            extension,
        } = certificate;
        if end.is_none_or(|end| crate::time::unix_seconds(now) > end) {
            return Some("the certificate has expired".to_owned());
        }
        match extension {
            Some(extension) => self.attested_serving_denial(node, extension),
            None => self.unattested_denial(node),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::{Machine, MachineSpec, MachineState, MachineStatus};
    use std::time::{Duration, UNIX_EPOCH};

    fn certificate(key: Option<&str>) -> ServingCertificate {
        ServingCertificate {
            node: "a".to_owned(),
            end: Some(1000),
            extension: key.map(|key| NodeExtension {
                machine_uid: "uid".to_owned(),
                image_id: "worker-7".to_owned(),
                policy_generation: 1,
                node_key: key.to_owned(),
            }),
        }
    }

    fn set(list: &MachineDenyList, state: MachineState, key: &str) {
        let mut machine = Machine::named("a", MachineSpec::default());
        machine.metadata.uid = Some("uid".to_owned());
        machine.status = Some(MachineStatus {
            state,
            node_key: Some(key.to_owned()),
            ..MachineStatus::default()
        });
        list.set(&machine);
    }

    #[test]
    fn a_connection_ends_with_its_certificate_its_node_key_and_its_machine() {
        let list = MachineDenyList::default();
        let at = |second| UNIX_EPOCH + Duration::from_secs(second);
        let (own, ordinary) = (certificate(Some("sha256:aa")), certificate(None));
        let denied = |list: &MachineDenyList| list.serving_denied_at(&own, at(1000));
        assert!(denied(&list).is_some(), "no such machine");
        assert_eq!(list.serving_denied_at(&ordinary, at(1000)), None);
        set(&list, MachineState::Trusted, "sha256:aa");
        assert_eq!(denied(&list), None);
        assert!(list.serving_denied_at(&own, at(1001)).is_some(), "expired");
        let taken = list.serving_denied_at(&ordinary, at(1000));
        assert!(taken.is_some(), "the name is a machine's now");
        set(&list, MachineState::Trusted, "sha256:bb");
        assert!(denied(&list).unwrap().contains("earlier node key"));
        set(&list, MachineState::Untrusted, "sha256:aa");
        assert!(denied(&list).is_some(), "untrusted");
        list.remove("uid");
        assert!(denied(&list).is_some(), "gone");
    }

    #[test]
    fn what_is_no_certificate_is_never_used_again() {
        let list = MachineDenyList::default();
        let none = ServingCertificate::of("a", b"no certificate");
        assert!(list.serving_denied_at(&none, UNIX_EPOCH).is_some());
    }
}
