//! A cache of image documents: each start needs them twice, and documents that digests name never
//! change.

use crate::image::ImageDefaults;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Most images that are remembered; then all are forgotten.
const MAX_IMAGES: usize = 128;
/// Longest configuration of one, in bytes of its texts: who makes an image decides how long it is.
const MAX_CONFIGURATION: usize = 16 << 10;

/// What an image's manifest and configuration say.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Name of the snapshot of its topmost layer.
    pub(crate) snapshot: String,
    /// Bytes of its layers and its configuration.
    pub(crate) size: u64,
    pub(crate) defaults: ImageDefaults,
}

impl Parts {
    fn length(&self) -> usize {
        let ImageDefaults {
            env,
            entrypoint,
            cmd,
            user,
            working_dir,
            stop_signal,
        } = &self.defaults;
        let lists = [env, entrypoint, cmd].into_iter().flatten().flatten();
        let texts = [user, working_dir, stop_signal].into_iter().flatten();
        lists
            .chain(texts)
            .map(|text| text.len() + size_of::<String>())
            .sum()
    }
}

/// Parts of images by the digests that the images' names lead to.
#[derive(Debug, Default)]
pub(crate) struct Remembered(Mutex<HashMap<String, Arc<Parts>>>);

impl Remembered {
    pub(crate) fn get(&self, digest: &str) -> Option<Arc<Parts>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(digest).cloned()
    }

    pub(crate) fn put(&self, digest: &str, parts: &Arc<Parts>) {
        if parts.length() > MAX_CONFIGURATION {
            return;
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_IMAGES {
            all.clear();
        }
        all.insert(digest.to_owned(), parts.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(variable: usize) -> Arc<Parts> {
        Arc::new(Parts {
            snapshot: "sha256:aa".into(),
            size: 7,
            defaults: ImageDefaults {
                env: Some(vec!["A".repeat(variable)]),
                ..ImageDefaults::default()
            },
        })
    }

    #[test]
    fn no_number_or_length_of_images_takes_all_memory() {
        let remembered = Remembered::default();
        remembered.put("long", &parts(MAX_CONFIGURATION));
        assert!(remembered.get("long").is_none());
        for number in 0..=MAX_IMAGES {
            remembered.put(&number.to_string(), &parts(1));
        }
        assert!(remembered.get("0").is_none());
        assert_eq!(remembered.get(&MAX_IMAGES.to_string()).unwrap().size, 7);
        assert!(remembered.0.lock().unwrap().len() <= MAX_IMAGES);
    }
}
