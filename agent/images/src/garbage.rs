//! Which unused images go when the disk fills up. Pure: the kubelet knows what is in use, and
//! removes them.

use crate::image::Image;
use config_kube::written::binary_size;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// An image that was just fetched is kept for the container that is to come (upstream's).
pub const MIN_IMAGE_AGE: Duration = Duration::from_secs(120);

/// When each image that is here was first seen and last used, by name.
#[derive(Debug, Default)]
pub struct ImageUses(BTreeMap<String, Known>);

/// What is known of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Known {
    /// When it was last seen in use; none if it never was.
    used: Option<Instant>,
    /// When it was first seen here.
    first: Instant,
}

impl ImageUses {
    /// The unused images, except those fetched recently: first those whose last use is longest
    /// ago, and of those never used the oldest (upstream's order). Takes note of what is in use
    /// now.
    pub fn unused<'a>(
        &mut self,
        images: &'a [Image],
        in_use: impl Fn(&Image) -> bool,
        now: Instant,
    ) -> Vec<&'a Image> {
        let Self(known) = self;
        known.retain(|name, _| images.iter().any(|image| image.name == *name));
        let mut unused = Vec::new();
        for image in images {
            let first = Known {
                used: None,
                first: now,
            };
            let own = known.entry(image.name.clone()).or_insert(first);
            if in_use(image) {
                own.used = Some(now);
            } else if now.duration_since(own.first) >= MIN_IMAGE_AGE {
                unused.push((*own, image));
            }
        }
        unused.sort_by_key(|(known, _)| *known);
        unused.into_iter().map(|(_, image)| image).collect()
    }
}

/// The first of the images whose removal frees so many bytes.
pub fn surplus<'a>(unused: &[&'a Image], mut excess: u64) -> Vec<&'a Image> {
    let mut chosen = Vec::new();
    for image in unused {
        if excess == 0 {
            break;
        }
        excess = excess.saturating_sub(image.size.max(1));
        chosen.push(*image);
    }
    chosen
}

/// What a sweep has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// Images that were removed.
    pub images: usize,
    /// Their bytes.
    pub freed: u64,
    /// The bytes that were to be freed.
    pub wanted: u64,
    /// Bytes of the disk.
    pub size: u64,
    /// Bytes of it that were free before.
    pub free: u64,
}

impl Swept {
    /// The warning for a sweep that freed less than it was to, in upstream's words.
    pub fn lack(&self) -> Option<String> {
        let Self { size, free, .. } = *self;
        let percent = 100 - u128::from(free) * 100 / u128::from(size.max(1));
        (self.freed < self.wanted).then(|| {
            format!(
                "Insufficient free disk space on the node's image filesystem ({percent}% of {} used). Failed to free sufficient space by deleting unused images (freed {} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
                binary_size(size),
                self.freed
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, size: u64) -> Image {
        Image {
            name: name.into(),
            digest: String::new(),
            size,
            pulled: false,
        }
    }

    #[test]
    fn the_image_whose_last_use_is_longest_ago_goes_first() {
        let (begin, mut uses) = (Instant::now(), ImageUses::default());
        let images = ["early", "late", "never", "young"].map(|name| image(name, 1));
        let mut look = |number: usize, used: &[&str], seconds: u64| -> Vec<String> {
            let in_use = |image: &Image| used.contains(&image.name.as_str());
            let now = begin + Duration::from_secs(seconds);
            let unused = uses.unused(&images[..number], in_use, now);
            unused.into_iter().map(|image| image.name.clone()).collect()
        };
        assert!(look(1, &["early"], 0).is_empty());
        assert!(look(2, &["early", "late"], 300).is_empty());
        assert!(look(3, &["late"], 600) == ["early"], "the third is young");
        assert_eq!(look(4, &[], 900), ["never", "early", "late"]);
    }

    #[test]
    fn a_disk_that_is_full_of_other_things_is_reported() {
        let swept = |freed| Swept {
            images: 1,
            freed,
            wanted: 1000,
            size: 107_374_182_400,
            free: 10_737_418_240,
        };
        assert_eq!(swept(1000).lack(), None);
        assert_eq!(
            swept(7).lack().unwrap(),
            "Insufficient free disk space on the node's image filesystem (90% of 100.0 GiB used). Failed to free sufficient space by deleting unused images (freed 7 bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
        );
    }
}
