//! The next step for a claim or a volume, by upstream's rules. Pure.

use config_kube::Amount;
use config_kube::local_volume;
use master_claims::{Claim, Class, ReachableFrom, Volume, best, fault};
use master_client::Key;
use std::sync::Arc;

/// A claim or a volume, and what its next step depends on.
#[derive(Debug)]
pub enum Facts {
    /// A claim.
    Claim {
        /// The object's key.
        key: Key,
        /// Its facts.
        claim: Arc<Claim>,
        /// The volume that it names.
        volume: Option<Arc<Volume>>,
        /// Volumes that it may get: those that are for it, and the free ones of its class.
        others: Vec<(String, Arc<Volume>)>,
        /// Its class.
        class: Option<Arc<Class>>,
        /// The class that it gets if it names none.
        default: Option<String>,
        /// A pod that uses it.
        user: Option<String>,
    },
    /// A volume.
    Volume {
        /// The object's name.
        name: String,
        /// Its facts.
        volume: Arc<Volume>,
        /// The claim of the name that it is for.
        claim: Option<Arc<Claim>>,
    },
}

/// An event about a claim or volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BinderEvent {
    /// Whether it needs attention.
    pub warning: bool,
    /// Upstream's reason.
    pub reason: &'static str,
    /// Upstream's words.
    pub message: String,
}

/// A step of a claim.
#[derive(Debug, PartialEq, Eq)]
pub enum ClaimStep {
    /// It is bound to this volume permanently.
    SetVolumeName {
        /// The volume's name.
        volume: String,
        /// Whether the controller chose it, not a person.
        chosen: bool,
    },
    /// Its status shows the volume.
    SetBound {
        /// The volume's size.
        size: Amount,
        /// The volume's access modes.
        modes: Vec<String>,
        /// The volume's `VolumeAttributesClass` (empty: none), if the claim was not bound before:
        /// who changes the class of a bound volume writes it to the claim, too (upstream).
        attributes: Option<String>,
    },
    /// Its phase changes.
    SetPhase {
        /// To this one.
        phase: &'static str,
        /// The event about it.
        event: Option<BinderEvent>,
    },
    /// Its volume is gone, or is another claim's.
    MarkLost {
        /// The volume that is not there.
        missing: Option<String>,
        /// The event about it.
        event: BinderEvent,
    },
    /// A provisioner is asked for a volume.
    RequestProvisioning(String),
    /// It gets the default class.
    SetDefaultClass(String),
    /// Nothing is written; an event says why it waits.
    RecordEvent(BinderEvent),
}

/// Why a claim that asks for more than its volume has stays as it is: the master resizes none, its
/// class's driver may.
fn grows() -> BinderEvent {
    BinderEvent {
        warning: false,
        reason: "ExternalExpanding",
        message: "waiting for an external controller to expand this PVC".to_owned(),
    }
}

/// A step of a volume.
#[derive(Debug, PartialEq, Eq)]
pub enum VolumeStep {
    /// It is for this claim and for no other.
    SetClaimRef {
        /// The claim's key.
        claim: Key,
        /// The claim's UID.
        uid: String,
        /// Whether the controller chose it, not a person.
        chosen: bool,
    },
    /// Its claim has another volume: it is for no claim any more, or for any of the name that a
    /// person wrote.
    ClearClaimRef {
        /// Whether nothing stays of the claim.
        whole: bool,
    },
    /// Its claim is gone.
    Release {
        /// The claim that it was for.
        claim: Key,
        /// The claim's UID.
        uid: String,
    },
    /// Its phase changes.
    SetPhase {
        /// To this one.
        phase: &'static str,
        /// The event about it.
        event: Option<BinderEvent>,
    },
}

/// One step.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// A step of a claim.
    Claim {
        /// The object's key.
        key: Key,
        /// The resource version at which it was read.
        version: String,
        /// The step.
        step: ClaimStep,
    },
    /// A step of a volume.
    Volume {
        /// The object's name.
        name: String,
        /// The resource version at which it was read.
        version: String,
        /// The step.
        step: VolumeStep,
    },
}

/// The next step; none where all is as it should be.
pub(super) fn plan(facts: &Facts) -> Option<Action> {
    match facts {
        Facts::Volume {
            name,
            volume,
            claim,
        } => {
            let step = of_volume(name, volume, claim.as_deref())?;
            Some(Action::Volume {
                name: name.clone(),
                version: volume.version.clone(),
                step,
            })
        }
        Facts::Claim {
            key,
            claim,
            volume,
            others,
            class,
            default,
            user,
        } => {
            let claim_context = ClaimContext {
                key,
                claim,
                others,
                class: class.as_deref(),
                default: default.as_ref(),
                user: user.as_deref(),
            };
            match (claim.bound, volume) {
                (true, volume) => claim_context.bound(volume.as_deref()),
                (false, Some(volume)) => claim_context.named(volume),
                (false, None) if !claim.volume.is_empty() => claim_context.pending(None),
                (false, None) => claim_context.open(),
            }
        }
    }
}

/// A claim and what it may get.
struct ClaimContext<'a> {
    key: &'a Key,
    claim: &'a Claim,
    others: &'a [(String, Arc<Volume>)],
    class: Option<&'a Class>,
    default: Option<&'a String>,
    user: Option<&'a str>,
}

impl ClaimContext<'_> {
    fn make(&self, step: ClaimStep) -> Action {
        Action::Claim {
            key: self.key.clone(),
            version: self.claim.version.clone(),
            step,
        }
    }

    /// It waits; with the reason where there is one.
    fn pending(&self, event: Option<BinderEvent>) -> Option<Action> {
        if self.claim.phase != "Pending" {
            return Some(self.make(ClaimStep::SetPhase {
                phase: "Pending",
                event,
            }));
        }
        event.map(|event| self.make(ClaimStep::RecordEvent(event)))
    }

    fn lost(&self, missing: bool, reason: &'static str, message: &str) -> Option<Action> {
        if self.claim.phase == "Lost" {
            return None;
        }
        Some(self.make(ClaimStep::MarkLost {
            missing: missing.then(|| self.claim.volume.clone()),
            event: warning(reason, message.to_owned()),
        }))
    }

    /// Both sides were written once (upstream: `syncBoundClaim`).
    fn bound(&self, volume: Option<&Volume>) -> Option<Action> {
        let claim = self.claim;
        if claim.volume.is_empty() {
            let text =
                "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
            return self.lost(false, "ClaimLost", text);
        }
        let Some(volume) = volume else {
            let text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            return self.lost(true, "ClaimLost", text);
        };
        match &volume.claim {
            None => Some(self.keep(&claim.volume, volume)),
            Some(claim_ref) if claim_ref.key == *self.key && claim_ref.uid == claim.uid => {
                self.shown(volume)
            }
            Some(claim_ref) if claim_ref.key == *self.key && claim_ref.uid.is_empty() => {
                Some(self.keep(&claim.volume, volume))
            }
            Some(_) => {
                let text = "Two claims are bound to the same volume, this one is bound incorrectly";
                self.lost(false, "ClaimMisbound", text)
            }
        }
    }

    /// The status of a bound claim.
    fn shown(&self, volume: &Volume) -> Option<Action> {
        let claim = self.claim;
        let shown = (Some(volume.size), volume.modes.clone());
        if claim.phase == "Bound" && claim.shown == shown {
            return (claim.size > volume.size).then(|| self.make(ClaimStep::RecordEvent(grows())));
        }
        Some(self.make(ClaimStep::SetBound {
            size: volume.size,
            modes: volume.modes.clone(),
            attributes: (claim.phase == "Pending").then(|| volume.attributes.clone()),
        }))
    }

    /// A volume is kept for the claim.
    fn keep(&self, name: &str, volume: &Volume) -> Action {
        Action::Volume {
            name: name.to_owned(),
            version: volume.version.clone(),
            step: VolumeStep::SetClaimRef {
                claim: self.key.clone(),
                uid: self.claim.uid.clone(),
                chosen: volume.claim.is_none(),
            },
        }
    }

    /// A volume fits the claim: the volume is written first, then the claim.
    fn bind(&self, name: &str, volume: &Volume) -> Action {
        let kept = volume
            .claim
            .as_ref()
            .is_some_and(|claim_ref| !claim_ref.uid.is_empty());
        if !kept {
            return self.keep(name, volume);
        }
        self.make(ClaimStep::SetVolumeName {
            volume: name.to_owned(),
            chosen: self.claim.volume.is_empty(),
        })
    }

    /// It asks for a volume by name (upstream: `syncUnboundClaim`, the second half).
    fn named(&self, volume: &Volume) -> Option<Action> {
        let name = &self.claim.volume;
        if volume.claim.is_none() {
            return match fault(self.claim, volume) {
                None => Some(self.bind(name, volume)),
                Some(fault) => {
                    let text = format!("Cannot bind to requested volume {name:?}: {fault}");
                    self.pending(Some(warning("VolumeMismatch", text)))
                }
            };
        }
        if volume.is_for(self.key, self.claim) {
            return Some(self.bind(name, volume));
        }
        let text = format!("volume {name:?} already bound to a different claim.");
        self.pending(Some(warning("FailedBinding", text)))
    }

    /// Binds any volume that fits (upstream: `syncUnboundClaim`, the first half).
    fn open(&self) -> Option<Action> {
        let waits = self.class.is_some_and(|class| class.waits);
        let all = self.others.iter();
        let all = all.map(|(name, volume)| (name.as_str(), &**volume));
        let from = if waits {
            ReachableFrom::Kept
        } else {
            ReachableFrom::Anywhere
        };
        if let Some(name) = best(self.key, self.claim, all, from) {
            let mut all = self.others.iter();
            let (name, volume) = all.find(|(own, _)| own == name)?;
            return Some(self.bind(name, volume));
        }
        if let Some(class) = self.default {
            return Some(self.make(ClaimStep::SetDefaultClass(class.clone())));
        }
        if waits && self.claim.node.is_empty() {
            let text = match self.user {
                Some(pod) => format!("waiting for pod {pod} to be scheduled"),
                None => "waiting for first consumer to be created before binding".to_owned(),
            };
            let reason = if self.user.is_some() {
                "WaitForPodScheduled"
            } else {
                "WaitForFirstConsumer"
            };
            return self.pending(Some(normal(reason, text)));
        }
        self.provision()
    }

    fn provision(&self) -> Option<Action> {
        let name = self.claim.class_name();
        if name.is_empty() {
            let text = "no persistent volumes available for this claim and no storage class is set";
            return self.pending(Some(normal("FailedBinding", text.to_owned())));
        }
        let Some(class) = self.class else {
            let text = format!("storageclass.storage.k8s.io {name:?} not found");
            return self.pending(Some(warning("ProvisioningFailed", text)));
        };
        if !class.is_dynamic() {
            // Upstream's text, for every provisioner of the class.
            let text = "no persistent volumes available for this claim and no storage class is set";
            return self.pending(Some(normal("FailedBinding", text.to_owned())));
        }
        if self.claim.provisioner != class.provisioner {
            return Some(self.make(ClaimStep::RequestProvisioning(class.provisioner.clone())));
        }
        let text = format!(
            "Waiting for a volume to be created either by the external provisioner '{}' or manually by the system \
             administrator. If volume creation is delayed, please verify that the provisioner is running and correctly \
             registered.",
            class.provisioner
        );
        self.pending(Some(normal("ExternalProvisioning", text)))
    }
}

/// Upstream: `syncVolume`.
fn of_volume(name: &str, volume: &Volume, claim: Option<&Claim>) -> Option<VolumeStep> {
    let phase = |phase: &'static str| {
        (volume.phase != phase).then_some(VolumeStep::SetPhase { phase, event: None })
    };
    let Some(claim_ref) = volume.claim.as_ref() else {
        return phase("Available");
    };
    if claim_ref.uid.is_empty() {
        return phase("Available");
    }
    match claim.filter(|claim| claim.uid == claim_ref.uid) {
        None if !matches!(volume.phase.as_str(), "Released" | "Failed") => {
            Some(VolumeStep::Release {
                claim: claim_ref.key.clone(),
                uid: claim_ref.uid.clone(),
            })
        }
        None => reclaim(name, volume),
        // The claim's own steps come first.
        Some(claim) if claim.volume.is_empty() => None,
        Some(claim) if claim.volume == name => phase("Bound"),
        // A volume provisioned for a claim that is bound to another one is unused.
        Some(_) if !volume.provisioned_by.is_empty() && volume.policy == "Delete" => {
            match volume.phase.as_str() {
                "Released" | "Failed" => reclaim(name, volume),
                _ => phase("Released"),
            }
        }
        Some(_) => Some(VolumeStep::ClearClaimRef {
            whole: volume.by_controller,
        }),
    }
}

/// A released volume. Its provisioner deletes a provisioned one; no one can delete the others.
fn reclaim(name: &str, volume: &Volume) -> Option<VolumeStep> {
    let failed = |reason: &'static str, message: String| {
        (volume.phase != "Failed").then(|| VolumeStep::SetPhase {
            phase: "Failed",
            event: Some(warning(reason, message)),
        })
    };
    let provisioned = !volume.provisioned_by.is_empty();
    match volume.policy.as_str() {
        "Delete" if volume.provisioned_by == local_volume::PROVISIONER && !volume.ours => {
            let text = format!(
                "volume {name:?} says that {} provisioned it, and is no folder of it: {}",
                local_volume::PROVISIONER,
                local_volume::path(name)
            );
            failed("VolumeFailedDelete", text)
        }
        "Delete" if !provisioned => {
            let text = format!(
                "error getting deleter volume plugin for volume {name:?}: no volume plugin matched"
            );
            failed("VolumeFailedDelete", text)
        }
        "Recycle" => {
            let text = "No recycler plugin found for the volume!".to_owned();
            failed("VolumeFailedRecycle", text)
        }
        _ => None,
    }
}

fn normal(reason: &'static str, message: String) -> BinderEvent {
    BinderEvent {
        warning: false,
        reason,
        message,
    }
}

fn warning(reason: &'static str, message: String) -> BinderEvent {
    BinderEvent {
        warning: true,
        reason,
        message,
    }
}
