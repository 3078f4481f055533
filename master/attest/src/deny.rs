//! The deny list: which clients the API rejects although their certificates have not expired.
//!
//! It is derived from the Machines and the Node objects, so it needs no storage and no revocation
//! list. The API asks it for each request, and for open watches whenever it changes.

use crate::access::{AccessTable, MachineAccess, RecordedKey};
use config_kube::Machine;
use config_kube::identity::node_of_user;
use master_ca::NodeExtension;
use master_client::UserInfo;
use master_listener::{DenyList, Peer};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// How often open connections are checked for certificates that have expired.
const EXPIRY_CHECK: Duration = Duration::from_secs(15);

/// The deny list.
///
/// Guarantees:
/// - A certificate with the node extension passes only while its Machine is in the inventory, is
///   not retired, not Untrusted and not replaced by another board; only for the Machine's present
///   node name; only over the node key of its last attestation. A node's serving certificate passes
///   only as long as the client certificate of the node key that it names.
/// - A node's certificate without the extension (an ordinary kubelet's) passes only while no
///   Machine has that node name.
/// - A user that is bound to a node (the kubelet, tokens of pods on it) is denied while the node
///   is. The node of a former Machine stays denied until its Node object is deleted or another
///   Machine of that name attests.
/// - No certificate passes after its notAfter, even on a connection that began before.
///
/// Assumption: Machines and Nodes were loaded once before the API serves
/// ([`crate::AttestationService::ready`]).
#[derive(Debug)]
pub struct MachineDenyList {
    table: RwLock<AccessTable>,
    /// Facts of certificates seen before, by their DER. Asked several times in each request:
    /// certificates differ early, in their serial number, so that comparing them costs less than a
    /// hash of all their bytes.
    facts: RwLock<BTreeMap<Box<[u8]>, Arc<CertificateFacts>>>,
    changed: watch::Sender<u64>,
}

/// Why a certificate over another key than that of the last attestation is denied.
const EARLIER_KEY: &str =
    "the certificate is for an earlier node key: the machine has proved another since";

/// The parts of a certificate that the list compares. Parsed once: all requests of a connection
/// present the same certificate.
#[derive(Debug)]
struct CertificateFacts {
    /// notAfter, in Unix seconds; `None` where it cannot be parsed.
    end: Option<u64>,
    /// Uid of the Machine that it was issued to, from the node extension.
    machine: Option<String>,
    /// The node in its common name, `system:node:<name>`.
    node: Option<String>,
    /// `sha256:<hex>` of its SubjectPublicKeyInfo.
    key: String,
}

/// Certificates in the cache at most; a full cache is cleared.
const MAX_CACHED: usize = 8192;

impl CertificateFacts {
    fn of(certificate: &[u8]) -> Self {
        let parsed = X509Certificate::from_der(certificate)
            .ok()
            .map(|(_, parsed)| parsed);
        let end = parsed
            .as_ref()
            .map(|parsed| u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0));
        let subject = parsed.as_ref().and_then(|parsed| {
            parsed
                .subject()
                .iter_common_name()
                .next()
                .and_then(|name| name.as_str().ok())
                .map(str::to_owned)
        });
        let node = subject.as_deref().and_then(node_of_user).map(str::to_owned);
        let key = parsed
            .map(|parsed| master_ca::spki_hash(parsed.public_key().raw))
            .unwrap_or_default();
        let machine =
            NodeExtension::of_certificate(certificate).map(|extension| extension.machine_uid);
        Self {
            end,
            machine,
            node,
            key,
        }
    }

    fn expired(&self, now: SystemTime) -> bool {
        self.end
            .is_some_and(|end| crate::time::unix_seconds(now) > end)
    }
}

impl Default for MachineDenyList {
    fn default() -> Self {
        Self {
            table: RwLock::default(),
            facts: RwLock::default(),
            changed: watch::Sender::new(0),
        }
    }
}

impl MachineDenyList {
    /// Replaces all Machines.
    pub(crate) fn fill<'a>(&self, machines: impl Iterator<Item = &'a Machine>) {
        let fresh: HashMap<String, (String, MachineAccess)> = machines.filter_map(entry).collect();
        self.change(|known| {
            let changed = known.machines != fresh;
            known.machines = fresh;
            changed
        });
    }

    /// Replaces the names of Node objects that were created for Machines.
    pub(crate) fn fill_node_objects(&self, nodes: impl Iterator<Item = String>) {
        let fresh: HashSet<String> = nodes.collect();
        self.change(|known| {
            let changed = known.node_objects != fresh;
            known.node_objects = fresh;
            changed
        });
    }

    /// Adds or removes the name of a Node object that was created for a Machine.
    pub(crate) fn set_node_object(&self, node: &str, made: bool) {
        self.change(|known| {
            if made {
                known.node_objects.insert(node.to_owned())
            } else {
                known.node_objects.remove(node)
            }
        });
    }

    /// Adds or updates one Machine.
    pub fn set(&self, machine: &Machine) {
        let Some((uid, fresh)) = entry(machine) else {
            return;
        };
        self.change(|known| known.machines.insert(uid, fresh.clone()) != Some(fresh));
    }

    /// Removes a deleted Machine, by its UID.
    pub(crate) fn remove(&self, uid: &str) {
        self.change(|known| known.machines.remove(uid).is_some());
    }

    fn change(&self, make: impl FnOnce(&mut AccessTable) -> bool) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if make(&mut table) {
            table.derive_nodes();
            drop(table);
            self.notify_listeners();
        }
    }

    /// Makes every listener of [`DenyList::changed`] check its connection again.
    pub fn notify_listeners(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    /// Notifies listeners periodically, so that an open watch ends soon after its certificate does.
    /// Runs until it is dropped.
    pub(crate) async fn notify_periodically(&self) {
        loop {
            tokio::time::sleep(EXPIRY_CHECK).await;
            self.notify_listeners();
        }
    }

    fn facts_of(&self, certificate: &[u8]) -> Arc<CertificateFacts> {
        if let Some(known) = self
            .facts
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(certificate)
        {
            return known.clone();
        }
        let fresh = Arc::new(CertificateFacts::of(certificate));
        let mut cache = self.facts.write().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_CACHED {
            cache.clear();
        }
        cache.insert(certificate.into(), fresh.clone());
        fresh
    }

    /// Why a certificate with this Machine uid, node key and node name is denied; `None` where it
    /// passes.
    fn machine_denial(&self, uid: &str, key: &str, node: Option<&str>) -> Option<String> {
        match self
            .table
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .machines
            .get(uid)
        {
            Some((own, _)) if node != Some(own.as_str()) => {
                let node = node.unwrap_or("nothing");
                Some(format!(
                    "the certificate names node {node}, and the machine is node {own}"
                ))
            }
            Some((_, MachineAccess::Allowed(RecordedKey::Only(known)))) if known != key => {
                Some(EARLIER_KEY.to_owned())
            }
            Some((_, MachineAccess::Allowed(RecordedKey::None))) => Some(EARLIER_KEY.to_owned()),
            Some((_, access)) => access.denial(),
            None => Some("the machine is not in the inventory".to_owned()),
        }
    }
}

fn entry(machine: &Machine) -> Option<(String, (String, MachineAccess))> {
    Some((
        machine.metadata.uid.clone()?,
        (machine.node_name().to_owned(), MachineAccess::of(machine)),
    ))
}

/// Key in `UserInfo.extra` with the node that a service account token is bound to (upstream's
/// name).
const BOUND_NODE: &str = "authentication.kubernetes.io/node-name";

impl MachineDenyList {
    /// Why this client is denied at `now`; `None` where it is not.
    pub fn denied_at(&self, user: &UserInfo, peer: &Peer, now: SystemTime) -> Option<String> {
        let bound = user
            .extra
            .get(BOUND_NODE)
            .and_then(|names| names.first())
            .map(String::as_str);
        if let Some(why) = bound
            .or(user.node())
            .and_then(|node| self.node_denied(node))
        {
            return Some(why);
        }
        let leaf = peer.certificates.first()?;
        let facts = self.facts_of(leaf);
        if facts.expired(now) {
            // TLS compared the time at the handshake only, and a connection may outlive the
            // certificate.
            return Some("the certificate has expired".to_owned());
        }
        match &facts.machine {
            Some(uid) => self.machine_denial(uid, &facts.key, facts.node.as_deref()),
            None => self.unattested_denial(facts.node.as_deref()?),
        }
    }

    /// Why a kubelet's serving certificate does not belong to this node; `None` where it does. The
    /// API server asks before it sends a request to the kubelet.
    pub fn serving_denied(&self, node: &str, certificate: &[u8]) -> Option<String> {
        let Some(extension) = NodeExtension::of_certificate(certificate) else {
            return self.unattested_denial(node);
        };
        self.attested_serving_denial(node, &extension)
    }

    pub(crate) fn attested_serving_denial(
        &self,
        node: &str,
        extension: &NodeExtension,
    ) -> Option<String> {
        let uid = extension.machine_uid.as_str();
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let machine = table.machines.get(uid);
        if machine.is_none_or(|(own, _)| own != node) {
            return Some("the certificate belongs to another machine than this node's".to_owned());
        }
        drop(table);
        self.machine_denial(uid, &extension.node_key, Some(node))
    }

    /// Why a certificate without the node extension may not act as this node; `None` where it may:
    /// no Machine has the name.
    pub(crate) fn unattested_denial(&self, node: &str) -> Option<String> {
        let taken = self
            .table
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .machine_nodes
            .contains(node);
        taken.then(|| {
            format!(
                "node {node} belongs to a Machine, and the certificate was not issued for its attestation"
            )
        })
    }
}

impl DenyList for MachineDenyList {
    fn denied(&self, user: &UserInfo, peer: &Peer) -> Option<String> {
        self.denied_at(user, peer, SystemTime::now())
    }

    fn node_denied(&self, node: &str) -> Option<String> {
        self.table
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .denied_nodes
            .get(node)
            .cloned()
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::{MachineSpec, MachineState, MachineStatus};

    fn machine(uid: &str, state: MachineState) -> Machine {
        let mut machine = Machine::named(uid, MachineSpec::default());
        machine.metadata.uid = Some(uid.to_owned());
        machine.status = Some(MachineStatus {
            state,
            reason: "IMAGE_SVN".to_owned(),
            ..MachineStatus::default()
        });
        machine
    }

    #[test]
    fn only_machines_of_the_inventory_that_are_not_untrusted_pass() {
        let list = MachineDenyList::default();
        list.fill(
            [
                machine("a", MachineState::Trusted),
                machine("b", MachineState::Untrusted),
            ]
            .iter(),
        );
        assert_eq!(list.machine_denial("a", "", Some("a")), None);
        assert!(
            list.machine_denial("b", "", Some("b"))
                .unwrap()
                .contains("IMAGE_SVN")
        );
        assert!(list.machine_denial("c", "", Some("c")).is_some());
        let mut retired = machine("a", MachineState::Trusted);
        retired.spec.retired = true;
        list.set(&retired);
        assert!(list.machine_denial("a", "", Some("a")).is_some());
    }

    /// The certificate of an ordinary kubelet is valid for its node name only until a Machine has
    /// that name.
    #[test]
    fn a_certificate_without_a_proof_is_denied_for_a_machines_node() {
        let list = MachineDenyList::default();
        assert_eq!(list.unattested_denial("a"), None);
        list.set(&machine("a", MachineState::Trusted));
        assert!(
            list.unattested_denial("a")
                .unwrap()
                .contains("its attestation")
        );
        assert_eq!(list.unattested_denial("b"), None);
        assert!(list.serving_denied("a", b"no certificate").is_some());
        assert_eq!(list.serving_denied("b", b"no certificate"), None);
    }

    /// The certificates of a static machine are valid only while it is static, and only the last
    /// ones.
    #[test]
    fn issued_certificates_are_denied_once_the_machine_is_not_static() {
        let list = MachineDenyList::default();
        let mut object = machine("a", MachineState::Pending);
        object.spec.is_static = true;
        object.status.get_or_insert_default().node_key = Some("sha256:aa".to_owned());
        list.set(&object);
        assert_eq!(list.machine_denial("a", "sha256:aa", Some("a")), None);
        assert!(
            list.machine_denial("a", "sha256:99", Some("a")).is_some(),
            "an earlier one"
        );
        object.spec.is_static = false;
        list.set(&object);
        assert!(list.machine_denial("a", "sha256:aa", Some("a")).is_some());
    }

    /// Another board under the same name: the old board's certificates are denied, before and after
    /// the new one's proof.
    #[test]
    fn a_replaced_boards_certificates_are_denied() {
        let list = MachineDenyList::default();
        let mut object = machine("a", MachineState::Trusted);
        object.spec.ek.hashes = vec!["sha256:01".to_owned()];
        let status = object.status.get_or_insert_default();
        (status.bound_ek, status.node_key) =
            (Some("sha256:01".to_owned()), Some("sha256:aa".to_owned()));
        list.set(&object);
        assert_eq!(list.machine_denial("a", "sha256:aa", Some("a")), None);
        object.spec.ek.hashes = vec!["sha256:02".to_owned()];
        list.set(&object);
        assert!(
            list.machine_denial("a", "sha256:aa", Some("a"))
                .unwrap()
                .contains("replaced")
        );
        assert!(list.node_denied("a").is_some());
        let status = object.status.get_or_insert_default();
        (status.bound_ek, status.node_key) =
            (Some("sha256:02".to_owned()), Some("sha256:bb".to_owned()));
        list.set(&object);
        assert!(
            list.machine_denial("a", "sha256:aa", Some("a"))
                .unwrap()
                .contains("earlier node key")
        );
        assert_eq!(
            (
                list.machine_denial("a", "sha256:bb", Some("a")),
                list.node_denied("a")
            ),
            (None, None)
        );
    }

    /// A serving certificate is valid for the boot whose node key it names, also after renewals;
    /// one of another board or of an earlier admission is denied, and so is one without a node key.
    #[test]
    fn a_serving_certificate_ends_with_its_node_key() {
        let list = MachineDenyList::default();
        let mut object = machine("a", MachineState::Trusted);
        object.spec.ek.hashes = vec!["sha256:01".to_owned()];
        let serving = |key: &str| NodeExtension {
            machine_uid: "a".to_owned(),
            image_id: "worker-7".to_owned(),
            policy_generation: 1,
            node_key: key.to_owned(),
        };
        let mut prove = |board: &str, key: &str, serial: &str| {
            object.spec.ek.hashes = vec![board.to_owned()];
            let status = object.status.get_or_insert_default();
            (status.bound_ek, status.node_key) = (Some(board.to_owned()), Some(key.to_owned()));
            status.certificate.get_or_insert_default().serial = serial.to_owned();
            list.set(&object);
        };
        prove("sha256:01", "sha256:aa", "1");
        let old = serving("sha256:aa");
        assert_eq!(list.attested_serving_denial("a", &old), None);
        assert!(list.attested_serving_denial("b", &old).is_some());
        assert!(list.attested_serving_denial("a", &serving("")).is_some());
        prove("sha256:01", "sha256:aa", "2");
        assert_eq!(
            list.attested_serving_denial("a", &old),
            None,
            "over a renewal, in the same boot"
        );
        prove("sha256:02", "sha256:bb", "3");
        let why = list.attested_serving_denial("a", &old).unwrap();
        assert!(why.contains("earlier node key"), "another board: {why}");
        assert_eq!(
            list.attested_serving_denial("a", &serving("sha256:bb")),
            None
        );
        prove("sha256:02", "sha256:cc", "4");
        assert!(
            list.attested_serving_denial("a", &serving("sha256:bb"))
                .is_some(),
            "after a reboot"
        );
    }

    /// Tokens bound to a node are denied with its machine, unless a second Machine of that node is
    /// allowed.
    #[test]
    fn what_is_bound_to_a_node_is_denied_with_its_machine() {
        let list = MachineDenyList::default();
        let mut pod =
            UserInfo::authenticated("system:serviceaccount:default:x", Vec::<String>::new());
        pod.extra
            .insert(BOUND_NODE.to_owned(), vec!["a".to_owned()]);
        let free = UserInfo::authenticated("system:serviceaccount:default:x", Vec::<String>::new());
        list.set(&machine("a", MachineState::Suspect));
        assert_eq!(list.denied(&pod, &Peer::default()), None);
        list.set(&machine("a", MachineState::Untrusted));
        assert!(list.denied(&pod, &Peer::default()).is_some());
        assert_eq!(list.denied(&free, &Peer::default()), None);
        let kubelet = UserInfo::authenticated("system:node:a", ["system:nodes"]);
        assert!(list.denied(&kubelet, &Peer::default()).is_some());
        let mut second = machine("b", MachineState::Trusted);
        second.spec.node_name = Some("a".to_owned());
        list.set(&second);
        assert_eq!(list.denied(&pod, &Peer::default()), None);
    }

    #[test]
    fn the_cache_of_certificates_is_bounded() {
        let list = MachineDenyList::default();
        for number in 0..MAX_CACHED + 10 {
            let facts = list.facts_of(&number.to_be_bytes());
            assert!(
                facts.end.is_none() && facts.machine.is_none() && !facts.expired(SystemTime::now())
            );
        }
        assert!(list.facts.read().unwrap().len() <= MAX_CACHED);
        let ended = CertificateFacts {
            end: Some(5),
            machine: None,
            node: None,
            key: String::new(),
        };
        assert!(ended.expired(SystemTime::now()) && !ended.expired(SystemTime::UNIX_EPOCH));
    }

    #[test]
    fn listeners_are_notified_of_changes_only() {
        let list = MachineDenyList::default();
        list.set(&machine("a", MachineState::Trusted));
        let mut listener = list.changed();
        listener.mark_unchanged();
        list.set(&machine("a", MachineState::Trusted));
        assert!(!listener.has_changed().unwrap());
        list.set(&machine("a", MachineState::Untrusted));
        assert!(listener.has_changed().unwrap());
    }

    /// A Machine that becomes another node: its certificates with the old name are denied, and
    /// tokens bound to the old Node are denied as long as that Node exists, whatever happens to the
    /// Machine.
    #[test]
    fn a_former_node_name_of_a_machine_is_denied() {
        let list = MachineDenyList::default();
        let mut object = machine("a", MachineState::Trusted);
        object.status.get_or_insert_default().node_key = Some("sha256:aa".to_owned());
        list.fill_node_objects(["a".to_owned()].into_iter());
        list.set(&object);
        assert_eq!(
            (
                list.machine_denial("a", "sha256:aa", Some("a")),
                list.node_denied("a")
            ),
            (None, None)
        );
        object.spec.node_name = Some("b".to_owned());
        list.set(&object);
        assert!(
            list.machine_denial("a", "sha256:aa", Some("a"))
                .unwrap()
                .contains("node b")
        );
        assert!(
            list.machine_denial("a", "sha256:aa", None).is_some(),
            "a certificate that names no node"
        );
        assert_eq!(
            list.machine_denial("a", "sha256:aa", Some("b")),
            None,
            "the node that it is"
        );
        assert!(list.node_denied("a").is_some() && list.node_denied("b").is_none());
        list.remove(object.metadata.uid.as_deref().unwrap());
        assert!(
            list.node_denied("a").is_some(),
            "a Machine that was deleted"
        );
        // Another Machine of the name is allowed once it has proved itself.
        let mut other = machine("c", MachineState::Pending);
        other.spec.node_name = Some("a".to_owned());
        list.set(&other);
        assert!(list.node_denied("a").is_some());
        // A proof that was refused is none, also where it only makes the Machine Suspect.
        other.status.get_or_insert_default().state = MachineState::Suspect;
        list.set(&other);
        assert!(list.node_denied("a").is_some());
        assert!(list.machine_denial("c", "", Some("a")).is_some());
        let board = "sha256:01".to_owned();
        other.spec.ek.hashes = vec![board.clone()];
        let status = other.status.get_or_insert_default();
        (status.state, status.node_key) = (MachineState::Trusted, Some("sha256:cc".to_owned()));
        status.bound_ek = Some(board);
        list.set(&other);
        assert_eq!(list.node_denied("a"), None);
        other.status.get_or_insert_default().state = MachineState::Suspect;
        list.set(&other);
        assert_eq!(list.node_denied("a"), None, "Suspect after its proof");
        list.remove(other.metadata.uid.as_deref().unwrap());
        list.set_node_object("a", false);
        assert_eq!(
            list.node_denied("a"),
            None,
            "its Node was deleted: the name is free"
        );
    }

    /// A certificate of a machine without a TPM is valid only while an admin says that it has none.
    #[test]
    fn a_certificate_without_a_tpm_is_denied_once_the_spec_forbids_it() {
        let ends: [fn(&mut Machine); 4] = [
            |machine| machine.spec.insecure_no_tpm = false,
            |machine| machine.spec.ek.hashes.push("sha256:01".to_owned()),
            |machine| machine.spec.ek.issuers.push("maker".to_owned()),
            |machine| machine.spec.ek.seen.push("sha256:01".to_owned()),
        ];
        for end in ends {
            for state in [MachineState::Unproven, MachineState::Suspect] {
                let list = MachineDenyList::default();
                let mut object = machine("a", state);
                object.spec.insecure_no_tpm = true;
                object.status.get_or_insert_default().node_key = Some("sha256:aa".to_owned());
                list.set(&object);
                assert_eq!(list.machine_denial("a", "sha256:aa", Some("a")), None);
                end(&mut object);
                list.set(&object);
                let why = list.machine_denial("a", "sha256:aa", Some("a")).unwrap();
                assert!(why.contains("without a TPM"), "{why}");
                assert!(list.node_denied("a").is_some());
            }
        }
    }

    /// A key that an admin removed is denied at once, however it was removed.
    #[test]
    fn certificates_of_a_removed_key_are_denied() {
        use config_kube::machine::EkSelector;
        let listed = |hashes: &[&str], issuers: &[&str], seen: &[&str]| {
            let [hashes, issuers, seen] = [hashes, issuers, seen]
                .map(|list| list.iter().map(|&one| one.to_owned()).collect());
            EkSelector {
                hashes,
                issuers,
                seen,
            }
        };
        let cases = [
            (listed(&["sha256:01"], &[], &[]), None, true),
            (
                listed(&["sha256:02", "sha256:01"], &["maker"], &[]),
                None,
                true,
            ),
            (listed(&[], &["maker"], &[]), Some("maker"), true),
            (listed(&[], &["other", "maker"], &[]), Some("maker"), true),
            (listed(&[], &["other"], &[]), Some("maker"), false),
            // Known by its hash until now, and not by an issuer's certificate.
            (listed(&[], &["maker"], &[]), None, false),
            (listed(&[], &[], &["sha256:01"]), None, true),
            (listed(&[], &[], &[]), Some("maker"), false),
            (listed(&[], &[], &["sha256:02"]), None, false),
            (listed(&["sha256:02"], &[], &["sha256:01"]), None, false),
            (
                listed(&["sha256:02"], &["maker"], &[]),
                Some("maker"),
                false,
            ),
        ];
        for (ek, issuer, good) in cases {
            let list = MachineDenyList::default();
            let mut object = machine("a", MachineState::Trusted);
            object.spec.ek = ek.clone();
            let status = object.status.get_or_insert_default();
            status.ek_issuer = issuer.map(str::to_owned);
            (status.bound_ek, status.node_key) =
                (Some("sha256:01".to_owned()), Some("sha256:aa".to_owned()));
            list.set(&object);
            assert_eq!(
                list.machine_denial("a", "sha256:aa", Some("a")).is_none(),
                good,
                "{ek:?}"
            );
        }
    }
}
