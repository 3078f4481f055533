//! Shares of the file system in memory that holds the content of volumes.
//!
//! It is one for all pods, counts against no pod's limit and is bounded for the machine alone. Pods
//! that need little of it, as nearly all do, always have their room: those that take more have
//! three quarters of it together, and those of one namespace a half. What such a pod takes is noted
//! beside its volumes: the note goes with them, and an agent that starts anew finds it.

use agent_content::Taken;
use agent_sys::beneath::Beneath;
use config_errors::chain;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// What every pod may take: its token with the certificates, and some config maps. For 110 pods
/// that is some quarter of the file system on a machine of 1 GiB.
const SMALL: Taken = Taken {
    bytes: 256 << 10,
    names: 64,
};
/// A pod's note, in its folder there, and the longest.
const NOTE: &str = "share";
const NOTE_LIMIT: u64 = 512;

/// Held while what others have is counted and a pod's part is noted.
static COUNTED: Mutex<()> = Mutex::new(());

/// Notes what a pod's content takes of the file system at `held`, before any of it is written
/// there.
///
/// # Errors
/// It would leave too little to others; or the note can't be written.
pub(crate) fn take(held: &Path, uid: &str, namespace: &str, wanted: Taken) -> Result<(), String> {
    if wanted == Taken::default() {
        return Ok(());
    }
    let text = |error: io::Error| format!("note what volumes take of memory: {}", chain(&error));
    let folder = Beneath::make_root(held).map_err(text)?;
    let note = Path::new(uid).join(NOTE);
    if fits(wanted, SMALL) {
        return folder.remove_file(&note).map_err(text);
    }
    let _alone = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut own, mut all) = (wanted, wanted);
    for other in folder.names(usize::MAX).map_err(text)? {
        let Some((taken, of)) = noted(&folder, Path::new(&other)).filter(|_| other != uid) else {
            continue;
        };
        all = sum(all, taken);
        if of == namespace {
            own = sum(own, taken);
        }
    }
    let whole = whole(held).map_err(text)?;
    let (half, most) = (part(whole, 2), part(whole, 3));
    refuse_beyond(half, own, &format!("the namespace {namespace}"))?;
    refuse_beyond(most, all, "all pods that take more than a little")?;
    let write = || {
        folder.make_dirs(Path::new(uid), 0o755)?;
        let words = format!("{} {} {namespace}", wanted.bytes, wanted.names);
        folder.rewrite(&note, 0o600)?.write_all(words.as_bytes())
    };
    write().map_err(text)
}

/// What a pod takes, and its namespace, if it takes more than a little.
fn noted(folder: &Beneath, uid: &Path) -> Option<(Taken, String)> {
    let text = folder.read(&uid.join(NOTE), NOTE_LIMIT).ok()?;
    let text = String::from_utf8(text).ok()?;
    let mut words = text.split(' ');
    let mut number = || -> Option<u64> { words.next()?.parse().ok() };
    let (bytes, names) = (number()?, number()?);
    Some((Taken { bytes, names }, words.next()?.to_owned()))
}

/// The size of the file system.
fn whole(held: &Path) -> io::Result<Taken> {
    let size = nix::sys::statvfs::statvfs(held)?;
    let names = match size.files() {
        // It has no bound of them.
        0 => u64::MAX,
        names => names,
    };
    Ok(Taken {
        bytes: size.blocks() * size.fragment_size(),
        names,
    })
}

/// As many quarters of it.
fn part(whole: Taken, quarters: u64) -> Taken {
    Taken {
        bytes: whole.bytes / 4 * quarters,
        names: whole.names / 4 * quarters,
    }
}

fn sum(one: Taken, other: Taken) -> Taken {
    Taken {
        bytes: one.bytes.saturating_add(other.bytes),
        names: one.names.saturating_add(other.names),
    }
}

fn fits(taken: Taken, room: Taken) -> bool {
    taken.bytes <= room.bytes && taken.names <= room.names
}

fn refuse_beyond(room: Taken, taken: Taken, whose: &str) -> Result<(), String> {
    if fits(taken, room) {
        return Ok(());
    }
    Err(format!(
        "the config maps, secrets and the like of this node's volumes would take {} KiB and {} names of memory for \
         {whose}, which may have {} KiB and {}: use fewer or smaller ones, fewer such pods on a node, or a node of \
         more memory; a pod of at most {} KiB and {} names always has its room",
        taken.bytes >> 10,
        taken.names,
        room.bytes >> 10,
        room.names,
        SMALL.bytes >> 10,
        SMALL.names
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;
    use crate::stage;

    const MIB: u64 = 1 << 20;

    fn taken(bytes: u64, names: u64) -> Taken {
        Taken { bytes, names }
    }

    /// The file system of a small machine: 64 MiB and 16,384 names.
    #[test]
    fn a_namespace_that_fills_the_memory_for_volumes_leaves_room_to_all_others() {
        let dir = tempfile::tempdir().unwrap();
        let machine = machine(dir.path());
        stage::begin(&machine, 0);
        let held = machine.run.join("held");
        let take = |uid: &str, namespace: &str, wanted| take(&held, uid, namespace, wanted);
        let large = taken(16 * MIB, 40);
        for uid in ["a1", "a2"] {
            take(uid, "a", large).unwrap();
        }
        let refused = take("a3", "a", large).unwrap_err();
        assert!(
            refused.contains("the namespace a, which may have 32768 KiB"),
            "{refused}"
        );
        // What was refused is not counted, what is made again once.
        assert_eq!(take("a2", "a", large), Ok(()));
        assert_eq!(take("b1", "b", large), Ok(()));
        let refused = take("c1", "c", large).unwrap_err();
        assert!(refused.contains("all pods"), "{refused}");
        for uid in ["a4", "c1"] {
            assert_eq!(take(uid, uid, SMALL), Ok(()), "{uid} has its token");
        }
        // A pod that takes less than before, and one that is gone.
        assert_eq!(take("a1", "a", SMALL), Ok(()));
        stage::forget(&machine, "b1").unwrap();
        for uid in ["a3", "c1"] {
            take(uid, &uid[..1], large).unwrap();
        }
        // Many small files are as good as few large ones.
        let names = taken(MIB, 9000);
        let refused = take("d1", "d", names).unwrap_err();
        assert!(refused.contains("9000 names"), "{refused}");
        agent_sys::mount::detach(&held.to_string_lossy()).unwrap();
    }
}
