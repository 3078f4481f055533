//! Finds the edits of Machines for the log of verdicts.
//!
//! Versions are compared as the watch reports them, one after the other. The inventory won't do: it
//! takes the service's own writes at once, which are based on edits that the watch reports later.

use config_kube::Machine;
use master_client::{Change, Gone};
use master_journal::spec_changes;
use std::collections::BTreeMap;

/// A Machine before and after a write by an admin; `None` where it did not exist.
pub(crate) type Decided = (Option<Machine>, Option<Machine>);

/// The Machines that the watch has reported, without their status.
#[derive(Debug, Default)]
pub(crate) struct MachineChanges(Option<BTreeMap<String, Machine>>);

impl MachineChanges {
    /// The admin's decisions in a change. The first list has none: it is compared with the log.
    pub(crate) fn take(&mut self, change: &Change<Machine>) -> Vec<Decided> {
        let began = self.0.is_some();
        let known = self.0.get_or_insert_default();
        let mut decided: Vec<Decided> = Vec::new();
        match change {
            Change::Listed(now) => {
                let before = std::mem::take(known);
                *known = now
                    .iter()
                    .map(|one| (name(one), decided_part(one)))
                    .collect();
                let is_there = |old: &Machine| {
                    let now = known.get(&name(old));
                    now.is_some_and(|now| now.metadata.uid == old.metadata.uid)
                };
                let deleted = before.values().filter(|old| !is_there(old));
                decided.extend(deleted.map(|old| (Some(old.clone()), None)));
                for (name, new) in known.iter() {
                    decided.push(versions(before.get(name).cloned(), new));
                }
            }
            Change::Set(new) => {
                let (name, new) = (name(new), decided_part(new));
                let before = known.insert(name, new.clone());
                let replaced = before
                    .iter()
                    .filter(|old| old.metadata.uid != new.metadata.uid);
                decided.extend(replaced.map(|old| (Some(old.clone()), None)));
                decided.push(versions(before, &new));
            }
            Change::Deleted(gone) => {
                let is_it = |old: &Machine| Gone::of(&old.metadata).is(gone);
                if known.get(&gone.key.name).is_some_and(is_it) {
                    decided.push((known.remove(&gone.key.name), None));
                }
            }
        }
        decided.retain(|(old, new)| began && !spec_changes(old.as_ref(), new.as_ref()).is_empty());
        decided
    }
}

/// An existing Machine, with the version before it if that is of the same object.
fn versions(before: Option<Machine>, new: &Machine) -> Decided {
    let old = before.filter(|old| old.metadata.uid == new.metadata.uid);
    (old, Some(new.clone()))
}

fn name(machine: &Machine) -> String {
    machine.metadata.name.clone().unwrap_or_default()
}

/// The part of a Machine that an admin decides, with the annotation that says who did.
fn decided_part(machine: &Machine) -> Machine {
    let mut part = Machine::named(&name(machine), machine.spec.clone());
    part.metadata = machine.metadata.clone();
    part.metadata.managed_fields = None;
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::MachineSpec;

    fn machine(name: &str, uid: &str) -> Machine {
        let mut machine = Machine::named(name, MachineSpec::default());
        machine.metadata.uid = Some(uid.to_owned());
        machine
    }

    fn retired(name: &str, uid: &str) -> Machine {
        let mut machine = machine(name, uid);
        machine.spec.retired = true;
        machine
    }

    /// Names and uids before and after.
    fn take(changes: &mut MachineChanges, change: &Change<Machine>) -> Vec<String> {
        let of = |one: Option<Machine>| {
            let one = one.map(|one| format!("{}{}", name(&one), one.metadata.uid.unwrap()));
            one.unwrap_or_default()
        };
        let all = changes.take(change).into_iter();
        all.map(|(old, new)| format!("{}>{}", of(old), of(new)))
            .collect()
    }

    #[test]
    fn a_list_after_lost_history_shows_edits_and_deletions() {
        let mut changes = MachineChanges::default();
        let known = vec![machine("a", "1"), machine("b", "2"), machine("c", "3")];
        assert_eq!(take(&mut changes, &Change::Listed(known)), [] as [&str; 0]);
        let now = vec![retired("b", "2"), machine("c", "9")];
        let found = take(&mut changes, &Change::Listed(now.clone()));
        assert_eq!(found, ["a1>", "c3>", "b2>b2", ">c9"]);
        assert_eq!(take(&mut changes, &Change::Listed(now)), [] as [&str; 0]);
    }

    #[test]
    fn each_edit_is_found_once_as_the_watch_reports_it() {
        let mut changes = MachineChanges::default();
        take(&mut changes, &Change::Listed(vec![machine("a", "1")]));
        let mut steps = |change: Change<Machine>| take(&mut changes, &change);
        assert_eq!(steps(Change::Set(machine("a", "1"))), [] as [&str; 0]);
        assert_eq!(steps(Change::Set(retired("a", "1"))), ["a1>a1"]);
        assert_eq!(steps(Change::Set(retired("a", "1"))), [] as [&str; 0]);
        assert_eq!(steps(Change::Set(machine("b", "2"))), [">b2"]);
        let gone = |one: &Machine| Change::Deleted(Gone::of(&one.metadata));
        assert_eq!(steps(gone(&machine("b", "2"))), ["b2>"]);
        assert_eq!(steps(gone(&machine("b", "2"))), [] as [&str; 0]);
        assert_eq!(steps(Change::Set(machine("a", "3"))), ["a1>", ">a3"]);
    }
}
