//! Moves the cluster's keys to another board: seals those from the recovery copy with this board's
//! keeper.
//!
//! In a state from another board the keys are sealed to a TPM that is gone. The agent, which opened
//! the state with the recovery copy, wrote the copy's keys into a file inside the encrypted state.
//! That file is removed once they are sealed again. Keys that the recovery copy does not hold are
//! replaced by new ones: the intermediate, and the key of the log of verdicts.

use crate::authority::{ACCOUNTS, DISCOVERY, DISCOVERY_KEY, LOG, SERVICE_ACCOUNT_KEY};
use crate::error::{Error, Result};
use crate::hierarchy::{self, ROOT_KEY, State, read_certificate};
use crate::keeper::{self, Keeper};
use crate::names::spki_of;
use crate::recovery::{private_keys, public_of};
use std::io::Read as _;
use std::path::Path;
use std::time::SystemTime;
use zeroize::Zeroizing;

/// Most bytes of the file; keys and certificates of two roots take some 3 KiB.
const LIMIT: u64 = 64 << 10;

/// Seals the keys in `recovered` with `keeper` for the authority in `folder`, and removes that
/// file. Returns false if there is none, or an empty one, which a power cut leaves while it is
/// written. Call it before [`crate::Authority::open`]. A power cut leaves the file, and the next
/// call does everything again.
///
/// # Errors
/// [`Error::Restore`] where the keys are not those of the authority's roots; then nothing was
/// changed.
pub fn restore(
    folder: &Path,
    cluster: &str,
    keeper: &dyn Keeper,
    recovered: &Path,
    now: SystemTime,
) -> Result<bool> {
    let Some(text) = read(recovered)?.filter(|text| !text.is_empty()) else {
        return Ok(false);
    };
    let state = State::read(folder)?;
    let mut keys = private_keys(&text);
    let mut roots = Vec::new();
    for name in state.roots() {
        let certificate = read_certificate(&folder.join(format!("{name}.crt")))?;
        let wanted = spki_of(&certificate);
        let at = keys.iter().position(|key| public_of(key) == wanted);
        let at = at.ok_or(Error::Restore("they lack the key of a root in force"))?;
        roots.push((name.to_owned(), keys.remove(at)));
    }
    // The last two follow the roots' keys; one of those may be of a root that is no longer in
    // force.
    let (Some(discovery), Some(accounts)) = (keys.pop(), keys.pop()) else {
        return Err(Error::Restore(
            "they lack the keys of service accounts or discovery",
        ));
    };
    for (name, key) in &roots {
        keeper::store(keeper, &folder.join(format!("{name}.key")), ROOT_KEY, key)?;
    }
    let (at, purpose) = (folder.join(ACCOUNTS), SERVICE_ACCOUNT_KEY);
    keeper::store(keeper, &at, purpose, &accounts)?;
    keeper::store(keeper, &folder.join(DISCOVERY), DISCOVERY_KEY, &discovery)?;
    for file in LOG {
        remove(&folder.join(file))?;
    }
    let next = state.with_next_intermediate();
    let fresh = hierarchy::make_intermediate(folder, cluster, keeper, next, now)?;
    fresh.state.write(folder)?;
    remove(recovered)?;
    Ok(true)
}

fn read(path: &Path) -> Result<Option<Zeroizing<String>>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(keeper::file("cannot read", path, e)),
    };
    let mut text = Zeroizing::new(String::new());
    file.take(LIMIT)
        .read_to_string(&mut text)
        .map_err(|e| keeper::file("cannot read", path, e))?;
    Ok(Some(text))
}

/// Removes a file if it exists, and syncs the removal.
fn remove(path: &Path) -> Result<()> {
    let fail = |source| keeper::file("cannot remove", path, source);
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fail(e)),
        Ok(()) | Err(_) => {}
    }
    path.parent().map_or(Ok(()), |folder| {
        std::fs::File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(fail)
    })
}
