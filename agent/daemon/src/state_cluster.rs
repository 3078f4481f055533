//! Binds the machine's state to one cluster, by the pins of its roots, and to the way in which the
//! machine joined it.
//!
//! The TPM opens the state for each image of the release key, under any configuration. User-data
//! that names another cluster must not expose volumes, images and logs to that cluster's pods. So
//! the state keeps the pins of its cluster's roots, and masters with other roots are refused. A
//! rotation needs no action: a pinned root that such a master sends with the node's certificates is
//! added.
//!
//! The same holds for user-data with an issued identity: no master judges it, and its static pods
//! would run at once, with the rights that it gives them. So a state keeps how its machine joined
//! ([`crate::state_joined`]): that of an admitted machine opens for no issued identity, and that of
//! an issued identity for no other user-data. The note can't be set back, and where it is there the
//! pins may not be missing.

use crate::RunArguments;
use crate::error::Error;
use crate::state_joined::JoinNote;
use agent_discover::read_pins;
use agent_enroll::{Identity, Pin, PinnedRoots, Pins, pins_text, spki_hash};
use config_errors::chain;
use config_state::generation::Joined;
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

/// The cluster that the state belongs to, and how this boot joins it.
#[derive(Debug, Clone)]
pub(crate) struct StateCluster {
    data: PathBuf,
    note: JoinNote,
    joins: Joined,
}

impl StateCluster {
    /// The state's cluster; a master's own machine has no note, as its state names the
    /// configurations that it allows.
    pub(crate) fn of(arguments: &RunArguments, founds: bool, joins: Joined) -> Self {
        let file = arguments.state_generation.as_deref();
        let key = arguments.state_generation_key.as_deref();
        Self {
            data: arguments.data.clone(),
            note: JoinNote::at(file.filter(|_| !founds), key),
            joins,
        }
    }

    /// Restricts the pins to those of the state's cluster; no restriction if the state belongs to
    /// none yet.
    ///
    /// # Errors
    /// [`Error::OtherCluster`] if the configuration pins none of its roots, [`Error::OtherJoin`] if
    /// the machine joined otherwise, [`Error::ClusterGone`] if the roots are missing;
    /// [`Error::File`] if they cannot be read.
    pub(crate) fn bind(&self, pins: &Pins) -> Result<(), Error> {
        let path = self.data.join(FILE);
        let unread = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::File {
                what: "read",
                path,
                source,
            }
        };
        let noted = self.note.read().map_err(unread(self.note.place()))?;
        if let Some(noted) = noted.filter(|noted| *noted != self.joins) {
            return Err(Error::OtherJoin {
                before: how(noted, "earlier"),
                now: how(self.joins, "this"),
            });
        }
        match std::fs::symlink_metadata(&path) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                return noted.map_or(Ok(()), |_| Err(Error::ClusterGone(path)));
            }
            found => found.map(drop).map_err(unread(&path))?,
        }
        let own =
            read_pins(&path).ok_or_else(|| unread(&path)(io::Error::other("it names no roots")))?;
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

    /// Keeps the roots of the node's identity, and how it joined. A state that was bound before
    /// stays bound by its earlier roots, which [`Self::bind`] has checked. Where a full disk takes
    /// no newer ones, the node runs, as its evictions make room, and the task of [`Self::spawn`]
    /// warns and tries again.
    ///
    /// # Errors
    /// [`Error::File`] if that cannot be written, and the state is not bound: then no pod may run
    /// on it.
    pub(crate) fn keep(&self, identity: &Identity) -> Result<(), Error> {
        // Before the write, which may fail when half of it is there.
        let was_bound = self.is_bound();
        let kept = self.keep_roots(&identity.pins, &hashes(&identity.roots));
        match kept {
            Err(source) if !was_bound => Err(Error::File {
                what: "write",
                path: self.data.join(FILE),
                source,
            }),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Whether the state names its cluster, and, where it lasts, how its machine joined.
    fn is_bound(&self) -> bool {
        read_pins(&self.data.join(FILE)).is_some() && self.note.is_written(self.joins)
    }

    /// Spawns a task that saves the roots of the node's identity, which came from an accepted
    /// master.
    pub(crate) fn spawn(self, identity: &Identity, tasks: &mut JoinSet<Result<(), Error>>) {
        let (pins, roots) = (identity.pins.clone(), identity.roots.clone());
        tasks.spawn(async move { match self.follow(pins, roots).await {} });
    }

    async fn follow(self, pins: Pins, roots: PinnedRoots) -> Infallible {
        let mut kept = Vec::new();
        loop {
            let now = hashes(&roots);
            if now != kept {
                match self.keep_roots(&pins, &now) {
                    Ok(()) => kept = now,
                    Err(error) => {
                        tracing::warn!(
                            error = chain(&error),
                            "the roots of this state's cluster cannot be kept; trying again"
                        );
                    }
                }
            }
            sleep(LOOK).await;
        }
    }

    fn keep_roots(&self, pins: &Pins, now: &[Pin]) -> io::Result<()> {
        if now.is_empty() {
            return Ok(());
        }
        if read_pins(&self.data.join(FILE)).as_deref() != Some(now) {
            write(&self.data, now)?;
        }
        pins.keep_within(Some(now.to_vec()));
        // Last, as from then on the roots may not be missing.
        self.note.write(self.joins)
    }
}

/// How a machine joined, for a message to its admin. `when` says beside which user-data.
fn how(joined: Joined, when: &str) -> String {
    match joined {
        Joined::Admitted => "its master's admission".to_owned(),
        Joined::Issued(_) => format!("an `[identity]` beside {when} user-data"),
    }
}

fn hashes(roots: &PinnedRoots) -> Vec<Pin> {
    let all = roots.get();
    all.iter().filter_map(|root| spki_hash(root)).collect()
}

fn write(data: &Path, roots: &[Pin]) -> io::Result<()> {
    let (path, neighbour) = (data.join(FILE), data.join("cluster-roots.new"));
    let mut file = std::fs::File::create(&neighbour)?;
    file.write_all(pins_text(roots).replace(", ", "\n").as_bytes())?;
    file.sync_all()?;
    std::fs::rename(neighbour, path)?;
    std::fs::File::open(data)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_state::generation::{Generation, GenerationKey};

    fn state(data: &Path, joins: Joined) -> StateCluster {
        StateCluster {
            data: data.to_owned(),
            note: JoinNote::at(Some(&data.join("generation")), Some(&data.join("key"))),
            joins,
        }
    }

    /// A state of which nothing is noted, as init leaves a new one.
    fn note(data: &Path, number: u64) {
        let key = GenerationKey::of(&zeroize::Zeroizing::new([7; 64]));
        let generation = Generation {
            number,
            ..Generation::default()
        };
        std::fs::write(data.join("key"), key.bytes()).expect("written");
        std::fs::write(data.join("generation"), generation.text(&key)).expect("written");
    }

    fn configured(pins: &[Pin]) -> Pins {
        Pins::from(pins.to_vec())
    }

    #[test]
    fn a_state_of_one_cluster_refuses_masters_of_another() {
        let dir = tempfile::tempdir().expect("a folder");
        let data = dir.path();
        let own_state = state(data, Joined::Admitted);
        let (own, next, other) = ([1; 32], [2; 32], [3; 32]);
        let bind = |pins: &Pins| own_state.bind(pins);
        bind(&configured(&[other])).expect("a state of no cluster yet");
        write(data, &[own, next]).expect("kept");

        let pins = configured(&[other, own]);
        bind(&pins).expect("its own cluster is among them");
        assert_eq!(pins.get()[..], [own]);
        // A signed document that names other roots changes nothing.
        pins.replace(vec![other]);
        assert!(pins.get().is_empty());

        let refused = bind(&configured(&[other])).expect_err("another cluster");
        let text = refused.to_string();
        assert!(
            matches!(refused, Error::OtherCluster { .. })
                && text.contains("sha256:0101")
                && text.contains("sha256:0303"),
            "{text}"
        );
        bind(&configured(&[next])).expect("after the rotation");
        std::fs::write(data.join(FILE), "nothing").expect("written");
        assert!(bind(&configured(&[own])).is_err());
    }

    /// An attacker who has the disk puts back the folder of the agent's data as it was before the
    /// machine first joined, and gives the machine user-data that names a cluster of their own.
    #[test]
    fn a_state_that_joined_a_cluster_takes_no_other_once_the_record_is_gone() {
        let dir = tempfile::tempdir().expect("a folder");
        let data = dir.path();
        note(data, 7);
        let (own, other) = ([1; 32], [3; 32]);
        let state = state(data, Joined::Admitted);
        state.bind(&configured(&[own])).expect("before the join");
        state
            .keep_roots(&configured(&[own]), &[own])
            .expect("joined");
        state.bind(&configured(&[own])).expect("joined");
        std::fs::remove_file(data.join(FILE)).expect("put back");
        for pin in [other, own] {
            let refused = state.bind(&configured(&[pin])).expect_err("gone");
            let text = refused.to_string();
            assert!(
                matches!(refused, Error::ClusterGone(_)) && text.contains("whole image"),
                "{text}"
            );
        }
        // A state without the note gets it with its next join.
        note(data, 8);
        write(data, &[own]).expect("kept");
        state
            .keep_roots(&configured(&[own]), &[own])
            .expect("joined");
        std::fs::remove_file(data.join(FILE)).expect("put back");
        assert!(state.bind(&configured(&[other])).is_err());
    }

    /// An attacker who has the board gives it an issued identity of the same cluster, or adds a
    /// static pod.
    #[test]
    fn a_state_opens_for_no_issued_identity_but_its_own_user_datas() {
        let dir = tempfile::tempdir().expect("a folder");
        let data = dir.path();
        let own = [1; 32];
        let ways = [
            Joined::Admitted,
            Joined::Issued([1; 32]),
            Joined::Issued([2; 32]),
        ];
        for before in ways {
            note(data, 7);
            state(data, before)
                .keep_roots(&configured(&[own]), &[own])
                .expect("joined");
            for now in ways {
                let bound = state(data, now).bind(&configured(&[own]));
                if now == before {
                    bound.expect("as before");
                    continue;
                }
                let refused = bound.expect_err("otherwise");
                let text = refused.to_string();
                assert!(
                    matches!(refused, Error::OtherJoin { .. }) && text.contains("user-data"),
                    "{text}"
                );
            }
        }
    }
}
