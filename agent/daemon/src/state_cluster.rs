//! Binds the machine's state to one cluster, by the pins of its roots.
//!
//! The TPM opens the state for each image of the release key, under any configuration. User-data
//! that names another cluster must not expose volumes, images and logs to that cluster's pods. So
//! the state keeps the pins of its cluster's roots, and masters with other roots are refused. A
//! rotation needs no action: a pinned root that such a master sends with the node's certificates is
//! added.

use crate::error::Error;
use crate::roots::read_pins;
use agent_enroll::{Identity, Pin, Pins, Roots, pins_text, spki_hash};
use std::convert::Infallible;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The file in the agent's data, one pin a line.
const FILE: &str = "cluster-roots";
/// Time between two checks for other roots.
const LOOK: Duration = Duration::from_secs(2);

/// Restricts the pins to those of the state's cluster; no restriction if the state belongs to none
/// yet.
///
/// # Errors
/// [`Error::OtherCluster`] if the configuration pins none of its roots; [`Error::File`] if they
/// cannot be read.
pub(crate) fn bind(data: &Path, pins: &Pins) -> Result<(), Error> {
    let path = data.join(FILE);
    if let Err(source) = std::fs::symlink_metadata(&path) {
        if source.kind() == io::ErrorKind::NotFound {
            return Ok(());
        }
        let what = "read";
        return Err(Error::File { what, path, source });
    }
    let own = read_pins(&path).ok_or_else(|| Error::File {
        what: "read",
        path: path.clone(),
        source: io::Error::other("it names no roots"),
    })?;
    let pinned = pins.get();
    pins.keep_within(Some(own.clone()));
    if pins.get().is_empty() {
        return Err(Error::OtherCluster {
            own: pins_text(&own),
            pinned: pins_text(pinned.iter()),
        });
    }
    Ok(())
}

/// Spawns a task that saves the roots of the node's identity, which came from an accepted master.
pub(crate) fn spawn(data: &Path, identity: &Identity, tasks: &mut JoinSet<Result<(), Error>>) {
    let (data, pins, roots) = (
        data.to_owned(),
        identity.pins.clone(),
        identity.roots.clone(),
    );
    tasks.spawn(async move { match follow(data, pins, roots).await {} });
}

async fn follow(data: PathBuf, pins: Pins, roots: Roots) -> Infallible {
    let mut kept = read_pins(&data.join(FILE)).unwrap_or_default();
    loop {
        let now: Vec<Pin> = roots
            .get()
            .iter()
            .filter_map(|root| spki_hash(root))
            .collect();
        if !now.is_empty() && now != kept {
            match write(&data, &now) {
                Ok(()) => {
                    pins.keep_within(Some(now.clone()));
                    kept = now;
                }
                Err(error) => {
                    tracing::warn!(%error, "the roots of this state's cluster cannot be kept; trying again");
                }
            }
        }
        sleep(LOOK).await;
    }
}

fn write(data: &Path, roots: &[Pin]) -> io::Result<()> {
    let (path, neighbour) = (data.join(FILE), data.join("cluster-roots.new"));
    let mut file = std::fs::File::create(&neighbour)?;
    file.write_all(pins_text(roots).replace(", ", "\n").as_bytes())?;
    file.sync_all()?;
    std::fs::rename(neighbour, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_one_cluster_refuses_masters_of_another() {
        let dir = tempfile::tempdir().expect("a folder");
        let data = dir.path();
        let (own, next, other) = ([1; 32], [2; 32], [3; 32]);
        let configured = |pins: &[Pin]| Pins::from(pins.to_vec());
        bind(data, &configured(&[other])).expect("a state of no cluster yet");
        write(data, &[own, next]).expect("kept");

        let pins = configured(&[other, own]);
        bind(data, &pins).expect("its own cluster is among them");
        assert_eq!(pins.get()[..], [own]);
        // A signed document that names other roots changes nothing.
        pins.replace(vec![other]);
        assert!(pins.get().is_empty());

        let refused = bind(data, &configured(&[other])).expect_err("another cluster");
        let text = refused.to_string();
        assert!(
            matches!(refused, Error::OtherCluster { .. })
                && text.contains("sha256:0101")
                && text.contains("sha256:0303"),
            "{text}"
        );
        bind(data, &configured(&[next])).expect("after the rotation");
        std::fs::write(data.join(FILE), "nothing").expect("written");
        assert!(bind(data, &configured(&[own])).is_err());
    }
}
