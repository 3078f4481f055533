//! Shares of the file system in memory that holds the content of volumes.
//!
//! It is one for all pods, counts against no pod's limit and is bounded for the machine alone. Pods
//! that need little of it, as nearly all do, have their room: those that take more have three
//! quarters of it together, and those of one namespace a half. What such a pod takes is noted
//! beside its volumes: the note goes with them, and an agent that starts anew finds it. Not noted
//! is what an update takes while it lies beside the old content.

use agent_content::Taken;
use agent_sys::beneath::Beneath;
use config_errors::chain;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What every pod may take: its token with the certificates, and some config maps. For 110 pods
/// that is some quarter of the file system on a machine of 1 GiB.
const SMALL: Taken = Taken {
    bytes: 256 << 10,
    names: 64,
};
/// A pod's note, in its folder there, its name until it is written, and the longest.
const NOTE: &str = "share";
const NEW_NOTE: &str = "share.new";
const NOTE_LIMIT: u64 = 512;

/// Held while what others have is counted and a pod's part is noted.
static COUNTED: Mutex<()> = Mutex::new(());

/// What the file system at `held` has of a pod's volumes without those that are to be `written`,
/// each by its kind and name: a volume that is refused keeps what it has there.
///
/// # Errors
/// It can't be read.
pub(crate) fn kept(held: &Path, uid: &str, written: &BTreeSet<PathBuf>) -> Result<Taken, String> {
    kept_beside(&held.join(uid), written).map_err(|error| {
        let error = chain(&error);
        format!("count what volumes have of memory: {error}")
    })
}

fn kept_beside(place: &Path, written: &BTreeSet<PathBuf>) -> io::Result<Taken> {
    let mut all = Taken::default();
    let folder = match Beneath::root(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(all),
        found => found?,
    };
    let notes = [NOTE, NEW_NOTE];
    let kinds = folder.names(usize::MAX)?.into_iter();
    for kind in kinds.filter(|name| notes.iter().all(|note| name != note)) {
        let volumes = folder.dir(Path::new(&kind))?;
        for name in volumes.names(usize::MAX)? {
            if written.contains(&Path::new(&kind).join(&name)) {
                continue;
            }
            let usage = volumes.dir(Path::new(&name))?.usage(u64::MAX)?;
            all = all.and(Taken {
                bytes: usage.bytes,
                // Its own, too.
                names: usage.entries + 1,
            });
        }
    }
    Ok(all)
}

/// Notes what a pod's content takes of the file system at `held`, before any of it is written
/// there: all of it, with what of its volumes is there already and stays.
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
        all = all.and(taken);
        if of == namespace {
            own = own.and(taken);
        }
    }
    let whole = whole(held).map_err(text)?;
    let (half, most) = (part(whole, 2), part(whole, 3));
    refuse_beyond(half, own, &format!("the namespace {namespace}"))?;
    refuse_beyond(most, all, "all pods that take more than a little")?;
    let write = || {
        folder.make_dirs(Path::new(uid), 0o755)?;
        let words = format!("{} {} {namespace}", wanted.bytes, wanted.names);
        // Renamed last, so that a note is whole.
        let new = Path::new(uid).join(NEW_NOTE);
        folder.rewrite(&new, 0o600)?.write_all(words.as_bytes())?;
        folder.rename(&new, &note)
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
         more memory; a pod of at most {} KiB and {} names has its room",
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
    use crate::machine::tests::{MountGuard, machine};
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
        let _mount = MountGuard(held.clone());
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
    }
}
