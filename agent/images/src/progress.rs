//! How far the pull of an image is, for people who wait for it.

use crate::content::Descriptor;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How far the pull of an image is, once its manifest is here. Layers are fetched first and
/// unpacked then; what was on the machine before counts as fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of its layers and its configuration, as its manifest says: [`crate::Image::size`].
    pub bytes: u64,
    /// Those of them that have come.
    pub fetched: u64,
    /// Its layers.
    pub layers: usize,
    /// Those of them that have come whole.
    pub fetched_layers: usize,
    /// Those of them that are unpacked.
    pub unpacked: usize,
}

impl Progress {
    /// Whether nothing is left but to unpack.
    pub fn is_fetched(&self) -> bool {
        self.fetched_layers == self.layers
    }
}

/// Counts the pulls of one image, of which one is made at a time.
#[derive(Debug, Default)]
pub(crate) struct Count(Mutex<Option<Counted>>);

#[derive(Debug, Default)]
struct Counted {
    progress: Progress,
    /// Bytes of the parts that have come whole.
    whole: u64,
}

/// A pull that is counted; dropping it ends that.
#[derive(Debug)]
pub(crate) struct Counting<'a>(&'a Count);

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

impl Count {
    fn lock(&self) -> MutexGuard<'_, Option<Counted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a pull from now on; its parts are not known yet.
    pub(crate) fn begin(&self) -> Counting<'_> {
        *self.lock() = None;
        Counting(self)
    }

    /// The parts are known: the configuration, and the layers.
    pub(crate) fn expect(&self, configuration: &Descriptor, layers: &[Descriptor]) {
        let parts = std::iter::once(configuration).chain(layers);
        let progress = Progress {
            bytes: parts.map(size).fold(0, u64::saturating_add),
            layers: layers.len(),
            ..Progress::default()
        };
        *self.lock() = Some(Counted { progress, whole: 0 });
    }

    /// So many bytes of a part have come.
    pub(crate) fn came(&self, bytes: usize) {
        if let Some(Counted { progress, .. }) = &mut *self.lock() {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            progress.fetched = progress.fetched.saturating_add(bytes).min(progress.bytes);
        }
    }

    /// A part is here, however much of it had to be sent.
    pub(crate) fn has(&self, part: &Descriptor, is_layer: bool) {
        if let Some(Counted { progress, whole }) = &mut *self.lock() {
            *whole = whole.saturating_add(size(part)).min(progress.bytes);
            progress.fetched = *whole;
            progress.fetched_layers += usize::from(is_layer);
        }
    }

    /// One more layer is unpacked.
    pub(crate) fn unpacked(&self) {
        if let Some(Counted { progress, .. }) = &mut *self.lock() {
            progress.unpacked += 1;
        }
    }

    /// How far it is; none while the manifest is not here, and where nothing is pulled.
    pub(crate) fn progress(&self) -> Option<Progress> {
        self.lock().as_ref().map(|counted| counted.progress)
    }
}

fn size(part: &Descriptor) -> u64 {
    u64::try_from(part.size).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn part(size: i64) -> Descriptor {
        serde_json::from_value(json!({"digest": "sha256:0", "size": size})).unwrap()
    }

    #[test]
    fn a_pull_is_counted_from_its_manifest_to_its_end() {
        let count = Count::default();
        let counting = count.begin();
        // The manifest itself is no part of the image's size.
        count.came(400);
        assert_eq!(count.progress(), None);
        let (configuration, layers) = (part(10), [part(100), part(200)]);
        count.expect(&configuration, &layers);
        let progress = || count.progress().unwrap();
        assert_eq!((progress().fetched, progress().bytes), (0, 310));
        count.came(10);
        count.has(&configuration, false);
        count.came(60);
        assert_eq!((progress().fetched, progress().fetched_layers), (70, 0));
        count.came(40);
        count.has(&layers[0], true);
        assert!(!progress().is_fetched());
        // One that was on the machine before is not sent.
        count.has(&layers[1], true);
        let all = Progress {
            bytes: 310,
            fetched: 310,
            layers: 2,
            fetched_layers: 2,
            unpacked: 0,
        };
        assert!(progress() == all && all.is_fetched());
        count.unpacked();
        assert_eq!(progress(), Progress { unpacked: 1, ..all });
        drop(counting);
        assert_eq!(count.progress(), None);
    }

    #[test]
    fn sizes_that_a_manifest_invents_give_no_figure_beyond_them() {
        let count = Count::default();
        let layers = [part(i64::MAX), part(i64::MAX), part(i64::MAX), part(-1)];
        count.expect(&part(-1), &layers);
        count.came(usize::MAX);
        count.came(usize::MAX);
        for layer in &layers {
            count.has(layer, true);
        }
        let progress = count.progress().unwrap();
        assert_eq!((progress.fetched, progress.bytes), (u64::MAX, u64::MAX));
        count.expect(&part(1), &[]);
        count.came(7);
        assert_eq!(count.progress().unwrap().fetched, 1);
    }
}
