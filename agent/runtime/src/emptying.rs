//! Removes what containers wrote, before containerd removes their layers.
//!
//! containerd holds a descriptor for each level of a folder that it removes, and if it runs out of
//! them, it leaves the rest on the disk for ever. It removes all layers in one task, so that one
//! with millions of files delays all others. Here descriptors do not grow with the depth, and the
//! layers of one namespace do not delay those of another.
//!
//! Each step blocks a thread of its own: the runtime's threads are for shorter calls.

use agent_confine::NamedTurns;
use agent_sys::beneath::Beneath;
use std::io;
use std::path::Path;
use tokio::sync::oneshot;

/// Layers that are emptied at the same time, and of these those of one namespace.
const AT_ONCE: usize = 2;
const OF_A_NAMESPACE: usize = 1;
/// Directory entries that are removed in one turn: about a second's work.
const SLICE: u64 = 100_000;

/// Turns to empty layers, by the namespaces of their pods.
#[derive(Debug)]
pub(crate) struct Emptying(NamedTurns);

impl Default for Emptying {
    fn default() -> Self {
        Self(NamedTurns::new(AT_ONCE, OF_A_NAMESPACE))
    }
}

impl Emptying {
    /// Removes the folder of what a container wrote, with all its content, [`SLICE`] directory
    /// entries in each turn; it is no error if it does not exist. No link is followed, no mount
    /// entered, and nothing outside of `state`, the engine's root directory, is touched.
    ///
    /// # Errors
    /// The layer is not below `state`, something in it can't be removed (a mount, a file that may
    /// not be changed), or there is no thread for it.
    pub(crate) async fn remove(
        &self,
        namespace: &str,
        state: &Path,
        layer: &Path,
    ) -> io::Result<()> {
        loop {
            let turn = self.0.turn(namespace).await;
            let (state, layer) = (state.to_owned(), layer.to_owned());
            let (finished, done) = oneshot::channel();
            let thread = std::thread::Builder::new().name("layers".to_owned());
            thread.spawn(move || {
                // Held until the step ends, also if nobody waits for it any more.
                let _turn = turn;
                drop(finished.send(remove_some(&state, &layer, SLICE)));
            })?;
            if done.await.map_err(io::Error::other)?? {
                return Ok(());
            }
        }
    }
}

/// Removes at most `most` directory entries of a layer; false if some are left.
fn remove_some(state: &Path, layer: &Path, most: u64) -> io::Result<bool> {
    let inside = layer.strip_prefix(state).map_err(io::Error::other)?;
    Beneath::root(state)?.remove_some(inside, most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// More than the descriptors that a process gets from the kernel.
    const DEEP: usize = 5000;

    /// An engine's root directory with a layer, and a folder beside it.
    fn made(dir: &Path) -> [PathBuf; 3] {
        let state = dir.join("state");
        let all = [
            state.clone(),
            state.join("snapshots/1/fs"),
            dir.join("outside"),
        ];
        for folder in &all[1..] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join("file"), "").unwrap();
        }
        all
    }

    #[tokio::test]
    async fn a_layer_is_removed_however_deep_and_nothing_behind_its_links() {
        let dir = tempfile::tempdir().unwrap();
        let [state, layer, outside] = made(dir.path());
        symlink(&outside, layer.join("link")).unwrap();
        let deep: PathBuf = std::iter::repeat_n("d", DEEP).collect();
        let root = Beneath::root(&layer).unwrap();
        let last = root.make_dirs(&deep, 0o700).unwrap();
        last.link(&outside, Path::new("link")).unwrap();
        let emptying = Emptying::default();
        // The second time nothing is there.
        for _ in 0..2 {
            emptying.remove("n", &state, &layer).await.unwrap();
            assert!(layer.symlink_metadata().is_err());
        }
        assert!(state.join("snapshots/1").exists());
        assert!(outside.join("file").exists());
    }

    #[tokio::test]
    async fn nothing_outside_of_the_engines_state_is_removed_as_a_layer() {
        let dir = tempfile::tempdir().unwrap();
        let [state, layer, outside] = made(dir.path());
        symlink(&outside, state.join("snapshots/2")).unwrap();
        let emptying = Emptying::default();
        let by_link = state.join("snapshots/2/file");
        let back = state.join("../outside");
        for wrong in [&outside, &by_link, &back, &state] {
            let refused = emptying.remove("n", &state, wrong).await;
            assert!(refused.is_err(), "{}", wrong.display());
        }
        assert!(outside.join("file").exists() && layer.join("file").exists());
    }

    /// On a runtime with one thread, which no step holds.
    #[tokio::test]
    async fn the_layers_of_one_namespace_keep_those_of_no_other_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let [state, layer, _outside] = made(dir.path());
        let emptying = Emptying::default();
        let _held = emptying.0.turn("a").await;
        emptying.remove("b", &state, &layer).await.unwrap();
        assert!(!layer.exists());
    }
}
