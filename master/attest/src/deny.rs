//! Who is shut out although the certificate is still valid: derived from the Machines, so it survives every restart.

use config_kube::{Machine, MachineState};
use master_api::{DenyList, Peer, UserInfo};
use master_ca::NodeExtension;
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};
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
    changed: watch::Sender<u64>,
}

impl Default for MachineDenyList {
    fn default() -> Self {
        Self { standings: RwLock::default(), changed: watch::Sender::new(0) }
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
        if expired(leaf, SystemTime::now()) {
            // TLS looked at the handshake; a connection lives on.
            return Some("the certificate has expired".to_owned());
        }
        let extension = NodeExtension::of_certificate(leaf)?;
        self.verdict(&extension.machine_uid)
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

fn expired(certificate: &[u8], now: SystemTime) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, parsed)| {
        let end = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        crate::exchange::seconds(now) > end
    })
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
