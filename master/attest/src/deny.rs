//! Who is shut out although the certificate is still valid: derived from the Machines, so it survives every restart.

use config_kube::identity::node_of_user;
use config_kube::{Machine, MachineState};
use master_api::{DenyList, Peer};
use master_ca::NodeExtension;
use master_client::UserInfo;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// How often listeners look again at expiry.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// Where a Machine stands, as far as its certificates are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    /// It may speak, with certificates over this node key where one is on record.
    Admitted(Option<String>),
    Replaced,
    Untrusted(String),
    Retired,
}

impl Standing {
    fn of(machine: &Machine) -> Self {
        if machine.spec.retired {
            return Self::Retired;
        }
        let Some(status) = &machine.status else {
            return Self::Admitted((!machine.spec.is_static).then(String::new));
        };
        if status.bound_ek.is_some() && machine.binding().is_none() {
            return Self::Replaced;
        }
        match status.state {
            MachineState::Untrusted => Self::Untrusted(status.reason.clone()),
            // What an admin issued ends with the word that made it good; of its own it has proved nothing yet.
            MachineState::Pending if !machine.spec.is_static => Self::Admitted(Some(String::new())),
            MachineState::Pending
            | MachineState::Trusted
            | MachineState::Unproven
            | MachineState::Suspect => Self::Admitted(status.node_key.clone()),
        }
    }

    /// Whether something was proved, or issued, that it may speak by.
    fn vouches(&self) -> bool {
        matches!(self, Self::Admitted(Some(key)) if !key.is_empty())
            || *self == Self::Admitted(None)
    }

    /// Why nothing that comes from it is let pass.
    fn shut_out(&self) -> Option<String> {
        match self {
            Self::Admitted(_) => None,
            Self::Replaced => Some(
                "the machine was replaced by another board, or its endorsement key was taken off"
                    .to_owned(),
            ),
            Self::Untrusted(code) => Some(format!("the machine is Untrusted: {code}")),
            Self::Retired => Some("the machine is retired".to_owned()),
        }
    }
}

/// All Machines by uid, with what follows for nodes.
#[derive(Debug, Default)]
struct Standings {
    machines: HashMap<String, (String, Standing)>,
    /// Nodes that were made for Machines, by their objects: they outlive the Machine, and the name that it had.
    made: HashSet<String>,
    /// Nodes of which every Machine is shut out, and why; and those that were a Machine's and are nobody's now.
    nodes: HashMap<String, String>,
    /// Nodes that are Machines'.
    taken: HashSet<String>,
}

impl Standings {
    /// Counts anew; a node has one Machine, and for a moment two where an admin makes another one.
    fn recount(&mut self) {
        self.nodes.clear();
        self.taken = self
            .machines
            .values()
            .map(|(node, _)| node.clone())
            .collect();
        for (node, standing) in self.machines.values() {
            if let Some(why) = standing.shut_out() {
                self.nodes.insert(node.clone(), why);
            }
        }
        for node in &self.made {
            let why = "its machine is another node now, or was taken out of the inventory, and no other has proved itself";
            self.nodes
                .entry(node.clone())
                .or_insert_with(|| why.to_owned());
        }
        for (node, standing) in self.machines.values() {
            let speaks = if self.made.contains(node) {
                standing.vouches()
            } else {
                standing.shut_out().is_none()
            };
            if speaks {
                self.nodes.remove(node);
            }
        }
    }
}

/// The deny list.
///
/// Guarantee: a certificate with a node extension is let pass only while its Machine is in the inventory, not retired, not
/// Untrusted and not another board, only for the node that the Machine is, and only over the node key of its last proof; one without it, as an ordinary kubelet has,
/// only while no Machine has its name; nothing that is bound to a node passes
/// while the node is shut out, as one is that was a Machine's until its Node is deleted; and no certificate is let pass after its
/// end. Assumption: the list was filled once before the API serves.
#[derive(Debug)]
pub struct MachineDenyList {
    standings: RwLock<Standings>,
    /// What certificates say that were met before, by their bytes.
    noted: RwLock<HashMap<Box<[u8]>, Arc<Noted>>>,
    changed: watch::Sender<u64>,
}

/// What a certificate says that matters here. Read once: every request on a connection shows the same one.
#[derive(Debug)]
struct Noted {
    /// Its end, in seconds since 1970.
    end: Option<u64>,
    /// The Machine that it was issued to, where it is a node's.
    machine: Option<String>,
    /// The node that its subject names.
    node: Option<String>,
    /// `sha256:<hex>` of its SubjectPublicKeyInfo.
    key: String,
}

/// Certificates that are remembered at most; then memory starts anew.
const NOTED: usize = 8192;

impl Noted {
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
            .is_some_and(|end| crate::exchange::seconds(now) > end)
    }
}

impl Default for MachineDenyList {
    fn default() -> Self {
        Self {
            standings: RwLock::default(),
            noted: RwLock::default(),
            changed: watch::Sender::new(0),
        }
    }
}

impl MachineDenyList {
    /// Replaces everything.
    pub(crate) fn fill<'a>(&self, machines: impl Iterator<Item = &'a Machine>) {
        let fresh: HashMap<String, (String, Standing)> = machines.filter_map(entry).collect();
        self.change(|known| {
            let changed = known.machines != fresh;
            known.machines = fresh;
            changed
        });
    }

    /// Replaces the nodes that were made for Machines.
    pub(crate) fn fill_nodes(&self, nodes: impl Iterator<Item = String>) {
        let fresh: HashSet<String> = nodes.collect();
        self.change(|known| {
            let changed = known.made != fresh;
            known.made = fresh;
            changed
        });
    }

    /// A node was made for a Machine, or is not any more.
    pub(crate) fn set_node(&self, node: &str, made: bool) {
        self.change(|known| {
            if made {
                known.made.insert(node.to_owned())
            } else {
                known.made.remove(node)
            }
        });
    }

    /// Whether a node was made for a Machine, now or once.
    pub(crate) fn made_node(&self, node: &str) -> bool {
        self.standings
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .made
            .contains(node)
    }

    /// Takes one Machine's new state.
    pub fn set(&self, machine: &Machine) {
        let Some((uid, fresh)) = entry(machine) else {
            return;
        };
        self.change(|known| known.machines.insert(uid, fresh.clone()) != Some(fresh));
    }

    /// A Machine is gone.
    pub(crate) fn remove(&self, machine: &Machine) {
        let Some(uid) = machine.metadata.uid.as_ref() else {
            return;
        };
        self.change(|known| known.machines.remove(uid).is_some());
    }

    fn change(&self, make: impl FnOnce(&mut Standings) -> bool) {
        let mut standings = self
            .standings
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if make(&mut standings) {
            standings.recount();
            drop(standings);
            self.look_again();
        }
    }

    /// Has listeners look again, as something else changed by which they judge.
    pub fn look_again(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    /// Has listeners look again from time to time, so that an open watch ends with the certificate that it stands on.
    pub(crate) async fn tick(&self) {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            self.look_again();
        }
    }

    fn noted(&self, certificate: &[u8]) -> Arc<Noted> {
        if let Some(noted) = self
            .noted
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(certificate)
        {
            return noted.clone();
        }
        let fresh = Arc::new(Noted::of(certificate));
        let mut noted = self.noted.write().unwrap_or_else(PoisonError::into_inner);
        if noted.len() >= NOTED {
            noted.clear();
        }
        noted.insert(certificate.into(), fresh.clone());
        fresh
    }

    /// Why a certificate is denied that says this of its Machine, its key and its node.
    fn verdict(&self, uid: &str, key: &str, node: Option<&str>) -> Option<String> {
        match self
            .standings
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .machines
            .get(uid)
        {
            Some((own, _)) if node != Some(own.as_str()) => {
                let node = node.unwrap_or("nothing");
                Some(format!(
                    "the certificate is of node {node}, and the machine is node {own}"
                ))
            }
            Some((_, Standing::Admitted(Some(known)))) if known != key => Some(
                "the certificate is of an earlier node key: the machine has proved another since"
                    .to_owned(),
            ),
            Some((_, standing)) => standing.shut_out(),
            None => Some("the machine is not in the inventory".to_owned()),
        }
    }
}

fn entry(machine: &Machine) -> Option<(String, (String, Standing))> {
    Some((
        machine.metadata.uid.clone()?,
        (machine.node_name().to_owned(), Standing::of(machine)),
    ))
}

/// The fact by which a token tells the node that it is bound to (upstream's name).
const BOUND_NODE: &str = "authentication.kubernetes.io/node-name";

impl MachineDenyList {
    /// Why this caller is denied at a moment; none where it is not.
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
        let noted = self.noted(leaf);
        if noted.expired(now) {
            // TLS looked at the handshake; a connection lives on.
            return Some("the certificate has expired".to_owned());
        }
        match &noted.machine {
            Some(uid) => self.verdict(uid, &noted.key, noted.node.as_deref()),
            None => self.of_no_proof(noted.node.as_deref()?),
        }
    }

    /// Why a node's serving certificate is none of its own; none where it is.
    pub fn serving_denied(&self, node: &str, certificate: &[u8]) -> Option<String> {
        let Some(uid) =
            NodeExtension::of_certificate(certificate).map(|extension| extension.machine_uid)
        else {
            return self.of_no_proof(node);
        };
        match self
            .standings
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .machines
            .get(&uid)
        {
            Some((own, standing)) if own == node => standing.shut_out(),
            Some(_) | None => {
                Some("the certificate is of a machine that the node is not".to_owned())
            }
        }
    }

    /// Why a certificate that no machine's proof led to does not speak for a node.
    fn of_no_proof(&self, node: &str) -> Option<String> {
        let taken = self
            .standings
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .taken
            .contains(node);
        taken.then(|| {
            format!(
                "node {node} is a Machine's, and the certificate is of no proof of that machine"
            )
        })
    }
}

impl DenyList for MachineDenyList {
    fn denied(&self, user: &UserInfo, peer: &Peer) -> Option<String> {
        self.denied_at(user, peer, SystemTime::now())
    }

    fn node_denied(&self, node: &str) -> Option<String> {
        self.standings
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .nodes
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
    use config_kube::{MachineSpec, MachineStatus};

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
        assert_eq!(list.verdict("a", "", Some("a")), None);
        assert!(
            list.verdict("b", "", Some("b"))
                .unwrap()
                .contains("IMAGE_SVN")
        );
        assert!(list.verdict("c", "", Some("c")).is_some());
        let mut retired = machine("a", MachineState::Trusted);
        retired.spec.retired = true;
        list.set(&retired);
        assert!(list.verdict("a", "", Some("a")).is_some());
    }

    /// A certificate that an ordinary kubelet was given speaks for its name only until that is a Machine's.
    #[test]
    fn what_no_proof_led_to_does_not_speak_for_a_machines_node() {
        let list = MachineDenyList::default();
        assert_eq!(list.of_no_proof("a"), None);
        list.set(&machine("a", MachineState::Trusted));
        assert!(list.of_no_proof("a").unwrap().contains("no proof"));
        assert_eq!(list.of_no_proof("b"), None);
        assert!(list.serving_denied("a", b"no certificate").is_some());
        assert_eq!(list.serving_denied("b", b"no certificate"), None);
    }

    /// What was issued to a static machine counts while it is static, and the last of it alone.
    #[test]
    fn issued_certificates_end_with_the_word_that_made_them_good() {
        let list = MachineDenyList::default();
        let mut object = machine("a", MachineState::Pending);
        object.spec.is_static = true;
        object.status.get_or_insert_default().node_key = Some("sha256:aa".to_owned());
        list.set(&object);
        assert_eq!(list.verdict("a", "sha256:aa", Some("a")), None);
        assert!(
            list.verdict("a", "sha256:99", Some("a")).is_some(),
            "an earlier one"
        );
        object.spec.is_static = false;
        list.set(&object);
        assert!(list.verdict("a", "sha256:aa", Some("a")).is_some());
    }

    /// Another board under the same name: what the old one holds is worth nothing, before and after the new one's proof.
    #[test]
    fn a_replaced_boards_certificates_are_denied() {
        let list = MachineDenyList::default();
        let mut object = machine("a", MachineState::Trusted);
        object.spec.ek.hashes = vec!["sha256:01".to_owned()];
        let status = object.status.get_or_insert_default();
        (status.bound_ek, status.node_key) =
            (Some("sha256:01".to_owned()), Some("sha256:aa".to_owned()));
        list.set(&object);
        assert_eq!(list.verdict("a", "sha256:aa", Some("a")), None);
        object.spec.ek.hashes = vec!["sha256:02".to_owned()];
        list.set(&object);
        assert!(
            list.verdict("a", "sha256:aa", Some("a"))
                .unwrap()
                .contains("replaced")
        );
        assert!(list.node_denied("a").is_some());
        let status = object.status.get_or_insert_default();
        (status.bound_ek, status.node_key) =
            (Some("sha256:02".to_owned()), Some("sha256:bb".to_owned()));
        list.set(&object);
        assert!(
            list.verdict("a", "sha256:aa", Some("a"))
                .unwrap()
                .contains("earlier node key")
        );
        assert_eq!(
            (
                list.verdict("a", "sha256:bb", Some("a")),
                list.node_denied("a")
            ),
            (None, None)
        );
    }

    /// Tokens bound to a node fall with its machine; a second Machine that may speak for the node keeps them.
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
    fn what_is_remembered_of_certificates_is_limited() {
        let list = MachineDenyList::default();
        for number in 0..NOTED + 10 {
            let noted = list.noted(&number.to_be_bytes());
            assert!(
                noted.end.is_none() && noted.machine.is_none() && !noted.expired(SystemTime::now())
            );
        }
        assert!(list.noted.read().unwrap().len() <= NOTED);
        let ended = Noted {
            end: Some(5),
            machine: None,
            node: None,
            key: String::new(),
        };
        assert!(ended.expired(SystemTime::now()) && !ended.expired(SystemTime::UNIX_EPOCH));
    }

    #[test]
    fn listeners_hear_of_changes_and_only_of_changes() {
        let list = MachineDenyList::default();
        list.set(&machine("a", MachineState::Trusted));
        let mut listener = list.changed();
        listener.mark_unchanged();
        list.set(&machine("a", MachineState::Trusted));
        assert!(!listener.has_changed().unwrap());
        list.set(&machine("a", MachineState::Untrusted));
        assert!(listener.has_changed().unwrap());
    }

    /// A Machine that becomes another node: what was issued to it under the name before is worth nothing, and what is bound to
    /// the node that it was is worth nothing as long as that Node is there, whatever becomes of the Machine.
    #[test]
    fn a_node_name_that_a_machine_had_speaks_for_nobody() {
        let list = MachineDenyList::default();
        let mut object = machine("a", MachineState::Trusted);
        object.status.get_or_insert_default().node_key = Some("sha256:aa".to_owned());
        list.fill_nodes(["a".to_owned()].into_iter());
        list.set(&object);
        assert_eq!(
            (
                list.verdict("a", "sha256:aa", Some("a")),
                list.node_denied("a")
            ),
            (None, None)
        );
        object.spec.node_name = Some("b".to_owned());
        list.set(&object);
        assert!(
            list.verdict("a", "sha256:aa", Some("a"))
                .unwrap()
                .contains("node b")
        );
        assert!(
            list.verdict("a", "sha256:aa", None).is_some(),
            "a certificate that names no node"
        );
        assert_eq!(
            list.verdict("a", "sha256:aa", Some("b")),
            None,
            "the node that it is"
        );
        assert!(list.node_denied("a").is_some() && list.node_denied("b").is_none());
        list.remove(&object);
        assert!(
            list.node_denied("a").is_some(),
            "a Machine that was deleted"
        );
        // Another Machine of the name speaks for it once it has proved itself.
        let mut other = machine("c", MachineState::Pending);
        other.spec.node_name = Some("a".to_owned());
        list.set(&other);
        assert!(list.node_denied("a").is_some());
        let status = other.status.get_or_insert_default();
        (status.state, status.node_key) = (MachineState::Trusted, Some("sha256:cc".to_owned()));
        list.set(&other);
        assert_eq!(list.node_denied("a"), None);
        list.remove(&other);
        list.set_node("a", false);
        assert_eq!(
            list.node_denied("a"),
            None,
            "its Node was deleted: the name is anybody's"
        );
        assert!(!list.made_node("a"));
    }

    /// What an admin took off counts at once, however it was taken.
    #[test]
    fn a_key_that_was_taken_off_ends_its_certificates() {
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
            (listed(&["sha256:01"], &[], &[]), true),
            (listed(&["sha256:02", "sha256:01"], &["maker"], &[]), true),
            (listed(&[], &["maker"], &[]), true),
            (listed(&[], &[], &["sha256:01"]), true),
            (listed(&[], &[], &[]), false),
            (listed(&[], &[], &["sha256:02"]), false),
            (listed(&["sha256:02"], &[], &["sha256:01"]), false),
            (listed(&["sha256:02"], &["maker"], &[]), false),
        ];
        for (ek, good) in cases {
            let list = MachineDenyList::default();
            let mut object = machine("a", MachineState::Trusted);
            object.spec.ek = ek.clone();
            let status = object.status.get_or_insert_default();
            (status.bound_ek, status.node_key) =
                (Some("sha256:01".to_owned()), Some("sha256:aa".to_owned()));
            list.set(&object);
            assert_eq!(
                list.verdict("a", "sha256:aa", Some("a")).is_none(),
                good,
                "{ek:?}"
            );
        }
    }
}
