//! Why a machine has no state, and what it and a person do next.

use crate::fatal::Fatal;
use crate::generation::GenerationError;
use crate::gpt::GptError;
use crate::unlock::UnlockError;
use agent_sys::process::Ended;
use agent_volume::Reason;

/// What a person can do, by what is wrong.
pub(crate) const CURE: &str = "check the disk; a worker's state can be made anew by writing the whole image again (what the machine stored is lost)";
const ROOM_CURE: &str = "enlarge the disk behind the image";
const CLEAR: &str = "clear the TPM in the machine's firmware setup; a worker's state is then made anew, and a master's opens again by \
                     `pratique recover-state` (the admin's guide has the steps)";
const MAKE_ROOM: &str = "remove those indices with another system on this machine (`tpm2_nvundefine`), or clear the TPM in the machine's \
                         firmware setup; once it is cleared, a worker's state is made anew, and a master's opens again by \
                         `pratique recover-state` (the admin's guide has the steps)";
/// What the machine does next.
pub(crate) const LATER: &str = "trying again by a reboot in a minute";
pub(crate) const RENEWED: &str =
    "it is made anew by a reboot in a minute; what the machine stored is lost";
const MASTER_CURE: &str = "a master's state is never made anew: put back its disk, its board, or an image of its version; where the \
                           board is gone, `pratique recover-state` opens the state on this one (the admin's guide has the steps)";
const MASTER_DAMAGED: &str = "a master's state is never made anew by itself: put back a copy of this disk that was taken after its \
                              last start, or clear the TPM, write the whole image again and bring back the cluster from a snapshot by \
                              `master restore` (the admin's guide has the steps)";
const MASTER_EARLIER: &str = "if this master's last start was under an image from before the state's generation had an authentication code, \
                              boot that image again, see that the cluster is as you left it and take a snapshot (`kubectl get --raw \
                              /snapshot`); if not, put back a copy of this disk that was taken after its last start, or take the snapshot \
                              that you have. Then clear the TPM, write the whole image and bring back the cluster by `master restore` \
                              (the admin's guide has the steps)";
const MASTER_GONE: &str = "a master's state is never made anew by itself: put back its disk, or the partition's entry and its label \
                           `pratique-state`; where its disk comes from another board, `pratique recover-state` opens the state on this \
                           one; to begin a new cluster here, clear the TPM in the machine's firmware setup (the admin's guide has the \
                           steps)";

/// Why a volume that opened is not usable.
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why there is no state.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("the disk of the running root cannot be found")]
    NoDisk,
    #[error("the disk {0} can't take a state partition")]
    Table(String, #[source] GptError),
    #[error("cannot read or write {0}")]
    Write(String, #[source] std::io::Error),
    #[error("partition {number} of {disk} did not appear")]
    NoNode { disk: String, number: u32 },
    #[error("mke2fs on {0} ended with {1:?}: {2}")]
    Format(String, Ended, String),
}

/// A state that is refused.
#[derive(Debug, thiserror::Error)]
#[error("the state is not opened: {0}")]
struct Refused(Reason);

/// A master's state that does not open.
pub(crate) fn refused(reason: Reason) -> Fatal {
    let cure = if reason == Reason::PartitionGone {
        MASTER_GONE
    } else {
        MASTER_CURE
    };
    Fatal::hold("STATE", cure, Refused(reason))
}

/// What to do about a master's volume that opened on its own board and is not usable.
pub(crate) fn masters_cure(cause: &Cause) -> &'static str {
    if is_of_an_earlier_image(cause) {
        MASTER_EARLIER
    } else {
        MASTER_DAMAGED
    }
}

/// The same for one that the admin moves to another board.
pub(crate) fn recovery_cure(cause: &Cause) -> &'static str {
    if is_of_an_earlier_image(cause) {
        MASTER_EARLIER
    } else {
        CURE
    }
}

fn is_of_an_earlier_image(cause: &Cause) -> bool {
    let of_generation = cause.downcast_ref::<GenerationError>();
    of_generation.is_some_and(GenerationError::is_of_an_earlier_image)
}

/// A failure with the disk: the boot stops.
pub(crate) fn fatal(cause: StateError) -> Fatal {
    let cure = if matches!(cause, StateError::Table(..)) {
        ROOM_CURE
    } else {
        CURE
    };
    Fatal::hold("STATE", cure, cause)
}

/// A failure to get the key, or to move the state to its next generation: the boot stops if only a
/// person can fix it, as reboots would hide the reason and change nothing.
pub(crate) fn later(cause: UnlockError) -> Fatal {
    match cause {
        UnlockError::Authorization => Fatal::hold("STATE", CLEAR, cause),
        UnlockError::Full => Fatal::hold("STATE", MAKE_ROOM, cause),
        UnlockError::Errand(_)
        | UnlockError::Failed(_)
        | UnlockError::Report
        | UnlockError::Pipe(_) => Fatal::retry("STATE", LATER, cause),
    }
}

/// A system call that failed: the boot stops.
pub(crate) fn system(cause: agent_sys::Error) -> Fatal {
    Fatal::hold("STATE", CURE, cause)
}

#[cfg(test)]
mod tests {
    use super::{Cause, later, masters_cure, recovery_cure, refused};
    use crate::fatal::{AfterFailure, Fatal};
    use crate::generation::GenerationError;
    use crate::unlock::UnlockError;
    use agent_volume::Reason;
    use config_state::generation::NoGeneration;

    #[test]
    fn a_master_of_an_image_without_the_generations_code_learns_how_to_go_on() {
        let causes = |why| [(); 2].map(|()| -> Cause { GenerationError::Untrusted(why).into() });
        let [own, moved] = causes(NoGeneration::Unauthenticated);
        for (cure, cause) in [(masters_cure(&own), own), (recovery_cure(&moved), moved)] {
            let line = Fatal::hold("STATE", cure, cause).line();
            for part in [
                "no authentication code",
                "that image again",
                "master restore",
            ] {
                assert!(line.contains(part), "no {part:?} in {line}");
            }
        }
        // Of one that was put together from older copies no older image is to be booted.
        let [own, moved] = causes(NoGeneration::Changed);
        for cure in [masters_cure(&own), recovery_cure(&moved)] {
            assert!(!cure.contains("that image again"), "{cure}");
        }
        assert!(masters_cure(&own).contains("master restore"));
    }

    #[test]
    fn a_master_whose_state_is_missing_is_held_and_learns_how_to_begin_anew() {
        let fatal = refused(Reason::PartitionGone);
        let line = fatal.line();
        assert_eq!(fatal.then, AfterFailure::Hold, "{line}");
        for part in [
            "FATAL STATE",
            "recover-state",
            "pratique-state`",
            "clear the TPM",
        ] {
            assert!(line.contains(part), "no {part:?} in {line}");
        }
        assert!(!refused(Reason::OtherKey).line().contains("clear the TPM"));
    }

    #[test]
    fn a_refusal_by_the_tpms_owner_stops_the_boot_and_says_what_to_do() {
        for (cause, word) in [
            (
                UnlockError::Authorization,
                "authorization of the TPM's owner",
            ),
            (UnlockError::Full, "NV memory is full"),
        ] {
            let fatal = later(cause);
            let line = fatal.line();
            assert_eq!(fatal.then, AfterFailure::Hold, "{line}");
            for part in ["FATAL STATE", word, "clear the TPM", "recover-state"] {
                assert!(line.contains(part), "no {part:?} in {line}");
            }
        }
        assert_eq!(
            later(UnlockError::Failed(70)).then,
            AfterFailure::RebootLater
        );
    }
}
