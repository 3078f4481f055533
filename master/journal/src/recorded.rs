//! What the log of verdicts last recorded of each policy, release and Machine, and how the objects
//! that the API has at a start differ from it.
//!
//! A change is in force before its record is on disk, so a full disk or a power cut can leave a
//! change without a record. The next master finds it here, and records it then. Pure: the log is
//! read by [`crate::VerdictLog::recorded`], the differences are written by
//! [`crate::Journal::record_found`].
//!
//! Limits: an object whose last record was deleted with its segment is recorded again as one
//! without a record, and its deletion, if that has no record either, is not found.

use crate::changes::{SpecChange, decided_digest, digest_of, spec_changes};
use config_kube::identity::{ATTESTATION_USER, DECIDED_BY};
use config_kube::{CertificatePolicy, ImageRelease, Machine, MachineSpec};
use config_tpm::Digest;
use config_verdicts::{Entry, GONE, Kind};
use master_client::Object;
use std::collections::{BTreeMap, BTreeSet};

/// Annotation of a Machine that an approval created: who approved which request, with reason and
/// message.
pub const APPROVED_REQUEST: &str = "pratique.dev/approved-request";

/// What the log last recorded, by kind. It is as large as the records with a digest in a log of
/// bounded size.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Of CertificatePolicies.
    pub policies: Known,
    /// Of ImageReleases.
    pub releases: Known,
    /// Of Machines.
    pub machines: Known,
}

impl Recorded {
    /// Of a log without records.
    pub(crate) fn nothing() -> Self {
        let none = || Known(Some(BTreeMap::new()));
        Self {
            policies: none(),
            releases: none(),
            machines: none(),
        }
    }

    /// Takes the next record of the log.
    pub(crate) fn take(&mut self, entry: Entry) {
        let known = match entry.kind {
            Kind::Policy => &mut self.policies,
            Kind::Release => &mut self.releases,
            Kind::Decision => &mut self.machines,
            Kind::Started
            | Kind::Joined
            | Kind::Renewed
            | Kind::Refused
            | Kind::State
            | Kind::Authority
            | Kind::Missing => return,
        };
        let known = known.0.get_or_insert_default();
        if entry.digest == GONE {
            known.remove(&entry.name);
        } else {
            let last = Last {
                uid: entry.uid,
                digest: entry.digest,
            };
            known.insert(entry.name, last);
        }
    }
}

/// A record that the log lacks.
#[derive(Debug, PartialEq, Eq)]
pub struct Lacking {
    pub(crate) entry: Entry,
    /// Whether the log says otherwise, in place of nothing.
    pub(crate) differs: bool,
}

/// The objects of one kind that are there by the log, by name. The default is that of a log which
/// can't be read: it lacks nothing.
#[derive(Debug, Default)]
pub struct Known(Option<BTreeMap<String, Last>>);

#[derive(Debug, PartialEq, Eq)]
struct Last {
    uid: String,
    digest: String,
}

impl Known {
    /// The records that the log lacks of these CertificatePolicies, which are all that there are.
    pub fn lacks_policies(&self, now: &[CertificatePolicy]) -> Vec<Lacking> {
        self.lacks(Kind::Policy, now, policy_digest, |policy| {
            policy_entry(policy, false)
        })
    }

    /// The records that the log lacks of these ImageReleases, which are all that there are.
    pub fn lacks_releases(&self, now: &[ImageRelease]) -> Vec<Lacking> {
        self.lacks(Kind::Release, now, release_digest, |release| {
            release_entry(release, false)
        })
    }

    /// The records that the log lacks of these Machines, which are all that there are.
    pub fn lacks_machines(&self, now: &[Machine]) -> Vec<Lacking> {
        self.lacks(Kind::Decision, now, decided_digest, found_machine)
    }

    fn lacks<T: Object>(
        &self,
        kind: Kind,
        now: &[T],
        digest: impl Fn(&T) -> String,
        entry: impl Fn(&T) -> Entry,
    ) -> Vec<Lacking> {
        let Some(known) = &self.0 else {
            return Vec::new();
        };
        let mut lacking = Vec::new();
        let mut there = BTreeSet::new();
        for object in now {
            let metadata = object.metadata();
            let name = metadata.name.as_deref().unwrap_or_default();
            there.insert(name);
            let is = Last {
                uid: metadata.uid.clone().unwrap_or_default(),
                digest: digest(object),
            };
            let last = known.get(name);
            if last == Some(&is) {
                continue;
            }
            let (differs, mut entry) = (last.is_some(), entry(object));
            let found = if differs {
                "changed while no record could be written"
            } else {
                "found at the start, and the log has no record of it"
            };
            entry.message = format!("{found}: {}", entry.message);
            lacking.push(Lacking { entry, differs });
        }
        for (name, last) in known {
            if there.contains(name.as_str()) {
                continue;
            }
            let mut entry = Entry::of(kind, name);
            entry.uid.clone_from(&last.uid);
            GONE.clone_into(&mut entry.digest);
            "removed while no record could be written".clone_into(&mut entry.message);
            lacking.push(Lacking {
                entry,
                differs: true,
            });
        }
        lacking
    }
}

fn policy_digest(policy: &CertificatePolicy) -> String {
    digest_of(&policy.spec)
}

fn release_digest(release: &ImageRelease) -> String {
    digest_of(&release.spec)
}

/// The record of a CertificatePolicy that was created or changed, or deleted (`gone`).
pub(crate) fn policy_entry(policy: &CertificatePolicy, gone: bool) -> Entry {
    let rules: Vec<&str> = policy
        .spec
        .rules
        .iter()
        .map(|rule| rule.name.as_str())
        .collect();
    let (digest, generation) = (
        policy_digest(policy),
        policy.metadata.generation.unwrap_or_default(),
    );
    let mut entry = about(Kind::Policy, policy);
    entry.message = format!(
        "{}generation {generation}, rules {}, {digest}",
        if gone { "removed, " } else { "" },
        rules.join(", ")
    );
    entry.digest = if gone { GONE.to_owned() } else { digest };
    entry
}

/// The record of an ImageRelease that was created or changed, or deleted (`gone`).
pub(crate) fn release_entry(release: &ImageRelease, gone: bool) -> Entry {
    let manifest = Digest::of(release.spec.manifest.as_bytes()).to_text();
    let (what, digest) = if gone {
        ("removed", GONE.to_owned())
    } else {
        ("applied", release_digest(release))
    };
    let mut entry = about(Kind::Release, release);
    entry.message = format!("{what}, manifest {manifest}");
    entry.digest = digest;
    entry
}

/// The record of a Machine as it is, where the version before is not known.
fn found_machine(machine: &Machine) -> Entry {
    let plain = Machine::named("", MachineSpec::default());
    let is: Vec<String> = spec_changes(Some(&plain), Some(machine))
        .into_iter()
        .map(|SpecChange { reason, message }| format!("{reason}: {message}"))
        .collect();
    let mut entry = about(Kind::Decision, machine);
    entry.by = decided_by(machine);
    entry.message = is.join("; ");
    entry.digest = decided_digest(machine);
    entry
}

/// An empty record about an object.
pub(crate) fn about(kind: Kind, object: &impl Object) -> Entry {
    let metadata = object.metadata();
    let mut entry = Entry::of(kind, metadata.name.as_deref().unwrap_or_default());
    entry.uid = metadata.uid.clone().unwrap_or_default();
    entry
}

/// Who made the last decision on a Machine, from its annotations: for a Machine created by an
/// approval, the person who approved.
pub(crate) fn decided_by(machine: &Machine) -> String {
    let note = |key: &str| {
        machine
            .metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(key))
    };
    let decided = note(DECIDED_BY).map(|decided| match note(APPROVED_REQUEST) {
        Some(person) if decided.starts_with(ATTESTATION_USER) => person,
        Some(_) | None => decided,
    });
    decided.cloned().unwrap_or_else(|| "nobody yet".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::pratique::ReleaseSignature;
    use config_kube::{CertificatePolicySpec, Rule};

    fn policy(name: &str, uid: &str, rule: &str) -> CertificatePolicy {
        let rule = Rule {
            name: rule.to_owned(),
            ..Rule::default()
        };
        let mut policy =
            CertificatePolicy::named(name, CertificatePolicySpec { rules: vec![rule] });
        policy.metadata.uid = Some(uid.to_owned());
        policy
    }

    fn machine(uid: &str, retired: bool) -> Machine {
        let spec = MachineSpec {
            retired,
            ..MachineSpec::default()
        };
        let mut machine = Machine::named("worker-1", spec);
        machine.metadata.uid = Some(uid.to_owned());
        machine
    }

    fn recorded(entries: impl IntoIterator<Item = Entry>) -> Recorded {
        let mut recorded = Recorded::nothing();
        entries.into_iter().for_each(|entry| recorded.take(entry));
        recorded
    }

    /// `name: message` up to the message's first colon.
    fn summary(lacking: &[Lacking]) -> Vec<String> {
        let text = |one: &Lacking| {
            let found = one.entry.message.split(':').next().unwrap_or_default();
            format!("{}: {found}", one.entry.name)
        };
        lacking.iter().map(text).collect()
    }

    #[test]
    fn a_change_without_a_record_is_reported_once() {
        let (open, shut) = (
            policy("default", "1", "open"),
            policy("default", "1", "shut"),
        );
        let draft = policy("draft", "2", "open");
        let known = recorded([policy_entry(&open, false), policy_entry(&draft, false)]).policies;
        assert_eq!(known.lacks_policies(&[open.clone(), draft.clone()]), []);
        let lacking = known.lacks_policies(std::slice::from_ref(&shut));
        assert_eq!(
            summary(&lacking),
            [
                "default: changed while no record could be written",
                "draft: removed while no record could be written"
            ]
        );
        let before = [policy_entry(&open, false), policy_entry(&draft, false)];
        let lacking = lacking.into_iter().map(|one| one.entry);
        let after = recorded(before.into_iter().chain(lacking)).policies;
        assert_eq!(after.lacks_policies(&[shut]), [], "reported already");
        let another = policy("default", "9", "open");
        assert_eq!(
            summary(&known.lacks_policies(&[another, draft])),
            ["default: changed while no record could be written"],
            "an equal object of the name"
        );
    }

    #[test]
    fn an_object_that_the_log_knows_as_removed_or_not_at_all_is_reported() {
        let open = policy("default", "1", "open");
        let unknown = "default: found at the start, and the log has no record of it";
        let log = [policy_entry(&open, false), policy_entry(&open, true)];
        for known in [Recorded::nothing(), recorded(log)] {
            let lacking = known.policies.lacks_policies(std::slice::from_ref(&open));
            assert_eq!(summary(&lacking), [unknown]);
            assert_eq!(lacking[0].entry.digest, policy_digest(&open));
        }
        let another_kind = Entry {
            kind: Kind::State,
            ..policy_entry(&open, false)
        };
        let known = recorded([another_kind]).policies;
        let unread = Recorded::default().policies;
        assert_eq!(unread.lacks_policies(std::slice::from_ref(&open)), []);
        assert_eq!(summary(&known.lacks_policies(&[open])), [unknown]);
    }

    #[test]
    fn a_machine_is_reported_with_what_an_admin_decided_of_it() {
        let known = recorded([found_machine(&machine("1", false))]).machines;
        assert_eq!(known.lacks_machines(&[machine("1", false)]), []);
        let mut moved = machine("1", false);
        moved.spec.addresses.push("10.0.0.1".to_owned());
        assert_eq!(known.lacks_machines(&[moved]), [], "never recorded");
        let lacking = known.lacks_machines(&[machine("1", true)]);
        assert_eq!(
            lacking[0].entry.message,
            "changed while no record could be written: Retired: the machine is retired"
        );
        assert_eq!(
            summary(&known.lacks_machines(&[])),
            ["worker-1: removed while no record could be written"]
        );
    }

    #[test]
    fn a_release_is_compared_with_its_signatures() {
        let mut release = ImageRelease::default();
        let known = recorded([release_entry(&release, false)]).releases;
        assert_eq!(known.lacks_releases(std::slice::from_ref(&release)), []);
        release.spec.signatures.push(ReleaseSignature::default());
        assert_eq!(known.lacks_releases(&[release]).len(), 1);
    }
}
