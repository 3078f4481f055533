//! Who is shut out although the certificate is still valid: derived from the Machines, so it survives every restart.

use config_kube::{Machine, MachineState};
use master_api::{DenyList, Peer, UserInfo};
use master_ca::NodeExtension;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// How often listeners look again at expiry.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// Where a Machine stands, as far as its certificates are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    Admitted,
    Untrusted(String),
    Retired,
}

impl Standing {
    fn of(machine: &Machine) -> Self {
        if machine.spec.retired {
            return Self::Retired;
        }
        match machine.status.as_ref().map(|status| (status.state, &status.reason)) {
            Some((MachineState::Untrusted, reason)) => Self::Untrusted(reason.clone()),
            Some((MachineState::Pending | MachineState::Trusted | MachineState::Suspect, _)) | None => Self::Admitted,
        }
    }
}

/// The deny list.
///
/// Guarantee: a certificate with a node extension is let pass only while its Machine is in the inventory, not
/// retired and not Untrusted; and no certificate is let pass after its end. Assumption: the list was filled once before the API serves.
#[derive(Debug)]
pub struct MachineDenyList {
    standings: RwLock<HashMap<String, Standing>>,
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
}

/// Certificates that are remembered at most; then memory starts anew.
const NOTED: usize = 8192;

impl Noted {
    fn of(certificate: &[u8]) -> Self {
        let parsed = X509Certificate::from_der(certificate).ok();
        let end = parsed.map(|(_, parsed)| u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0));
        let machine = NodeExtension::of_certificate(certificate).map(|extension| extension.machine_uid);
        Self { end, machine }
    }

    fn expired(&self, now: SystemTime) -> bool {
        self.end.is_some_and(|end| crate::exchange::seconds(now) > end)
    }
}

impl Default for MachineDenyList {
    fn default() -> Self {
        Self { standings: RwLock::default(), noted: RwLock::default(), changed: watch::Sender::new(0) }
    }
}

impl MachineDenyList {
    /// Replaces everything.
    pub(crate) fn fill<'a>(&self, machines: impl Iterator<Item = &'a Machine>) {
        let fresh: HashMap<String, Standing> =
            machines.filter_map(|m| Some((m.metadata.uid.clone()?, Standing::of(m)))).collect();
        let mut standings = self.standings.write().unwrap_or_else(PoisonError::into_inner);
        if *standings != fresh {
            *standings = fresh;
            drop(standings);
            self.changed.send_modify(|version| *version += 1);
        }
    }

    /// Takes one Machine's new state.
    pub(crate) fn set(&self, machine: &Machine) {
        let Some(uid) = machine.metadata.uid.clone() else { return };
        let standing = Standing::of(machine);
        let mut standings = self.standings.write().unwrap_or_else(PoisonError::into_inner);
        if standings.insert(uid, standing.clone()) != Some(standing) {
            drop(standings);
            self.changed.send_modify(|version| *version += 1);
        }
    }

    /// A Machine is gone.
    pub(crate) fn remove(&self, machine: &Machine) {
        let Some(uid) = machine.metadata.uid.as_ref() else { return };
        let gone = self.standings.write().unwrap_or_else(PoisonError::into_inner).remove(uid).is_some();
        if gone {
            self.changed.send_modify(|version| *version += 1);
        }
    }

    /// Has listeners look again from time to time, so that an open watch ends with the certificate that it stands on.
    pub(crate) async fn tick(&self) {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            self.changed.send_modify(|version| *version += 1);
        }
    }

    fn noted(&self, certificate: &[u8]) -> Arc<Noted> {
        if let Some(noted) = self.noted.read().unwrap_or_else(PoisonError::into_inner).get(certificate) {
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

    fn verdict(&self, uid: &str) -> Option<String> {
        match self.standings.read().unwrap_or_else(PoisonError::into_inner).get(uid) {
            Some(Standing::Admitted) => None,
            Some(Standing::Untrusted(code)) => Some(format!("the machine is Untrusted: {code}")),
            Some(Standing::Retired) => Some("the machine is retired".to_owned()),
            None => Some("the machine is not in the inventory".to_owned()),
        }
    }
}

impl DenyList for MachineDenyList {
    fn denied(&self, _user: &UserInfo, peer: &Peer) -> Option<String> {
        let leaf = peer.certificates.first()?;
        let noted = self.noted(leaf);
        if noted.expired(SystemTime::now()) {
            // TLS looked at the handshake; a connection lives on.
            return Some("the certificate has expired".to_owned());
        }
        self.verdict(noted.machine.as_ref()?)
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
        machine.status = Some(MachineStatus { state, reason: "IMAGE_SVN".to_owned(), ..MachineStatus::default() });
        machine
    }

    #[test]
    fn only_machines_of_the_inventory_that_are_not_untrusted_pass() {
        let list = MachineDenyList::default();
        list.fill([machine("a", MachineState::Trusted), machine("b", MachineState::Untrusted)].iter());
        assert_eq!(list.verdict("a"), None);
        assert!(list.verdict("b").unwrap().contains("IMAGE_SVN"));
        assert!(list.verdict("c").is_some());
        let mut retired = machine("a", MachineState::Trusted);
        retired.spec.retired = true;
        list.set(&retired);
        assert!(list.verdict("a").is_some());
    }

    #[test]
    fn what_is_remembered_of_certificates_is_limited() {
        let list = MachineDenyList::default();
        for number in 0..NOTED + 10 {
            let noted = list.noted(&number.to_be_bytes());
            assert!(noted.end.is_none() && noted.machine.is_none() && !noted.expired(SystemTime::now()));
        }
        assert!(list.noted.read().unwrap().len() <= NOTED);
        let ended = Noted { end: Some(5), machine: None };
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
}
