//! Which unused images go when the disk fills up. Pure: the kubelet knows what is in use, and
//! removes them.

use crate::image::Image;
use agent_containerd::{Error, ErrorClass};
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

/// What a sweep has done so far. One image after another is removed until it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swept {
    /// Images that were removed.
    pub images: usize,
    /// Their bytes.
    pub freed: u64,
    /// The bytes that are to be freed; `None`: as many as can be.
    wanted: Option<u64>,
    /// Bytes of the disk.
    size: u64,
    /// Bytes of it that were free before.
    free: u64,
    /// Images that could not be removed, and why the first of them.
    failed: usize,
    first: Option<String>,
    /// The engine was not reached.
    lost: bool,
}

impl Swept {
    /// A sweep that has not removed anything yet, on a disk of `size` bytes of which `free` are
    /// free. `wanted`: the bytes to free; `None` for as many as can be.
    pub fn begin(wanted: Option<u64>, size: u64, free: u64) -> Self {
        Self {
            images: 0,
            freed: 0,
            wanted,
            size,
            free,
            failed: 0,
            first: None,
            lost: false,
        }
    }

    /// Whether enough was freed, or the engine is away, so that all others would fail too.
    pub fn is_done(&self) -> bool {
        self.lost || self.wanted.is_some_and(|wanted| self.freed >= wanted)
    }

    /// Takes note of the removal of an image. After one that failed the sweep goes on with the
    /// others (upstream's rule).
    pub fn note(&mut self, image: &Image, removed: &Result<(), Error>) {
        match removed {
            Ok(()) => {
                self.images += 1;
                self.freed = self.freed.saturating_add(image.size);
            }
            Err(error) => {
                self.failed += 1;
                self.first.get_or_insert_with(|| error.chain());
                self.lost = error.class == ErrorClass::Unavailable;
            }
        }
    }

    /// What went wrong if an image could not be removed, in upstream's words.
    pub fn failure(&self) -> Option<String> {
        let first = self.first.as_ref()?;
        let wanted = self
            .wanted
            .map(|wanted| format!("wanted to free {wanted} bytes, but "))
            .unwrap_or_default();
        let others = match self.failed {
            0 | 1 => String::new(),
            failed => format!(" (and {} more)", failed - 1),
        };
        Some(format!(
            "{wanted}freed {} bytes space with errors in image deletion: {first}{others}",
            self.freed
        ))
    }

    /// The warning for a sweep that freed less than it was to, in upstream's words.
    pub fn lack(&self) -> Option<String> {
        let Self { size, free, .. } = *self;
        let percent = 100 - u128::from(free) * 100 / u128::from(size.max(1));
        let is_short = self.wanted.is_some_and(|wanted| self.freed < wanted);
        is_short.then(|| {
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
            freed,
            ..Swept::begin(Some(1000), 107_374_182_400, 10_737_418_240)
        };
        assert_eq!(swept(1000).lack(), None);
        assert_eq!(
            swept(7).lack().unwrap(),
            "Insufficient free disk space on the node's image filesystem (90% of 100.0 GiB used). Failed to free sufficient space by deleting unused images (freed 7 bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
        );
    }

    #[test]
    fn a_sweep_counts_what_it_could_not_remove_and_ends_early_only_without_an_engine() {
        let failed = |class| Err(Error::new(class, "remove image a"));
        let mut swept = Swept::begin(Some(100), 1000, 0);
        swept.note(&image("a", 100), &failed(ErrorClass::ImagePull));
        assert!(!swept.is_done(), "the others may do");
        swept.note(&image("b", 100), &Ok(()));
        assert!(swept.is_done() && swept.images == 1);
        let text =
            "wanted to free 100 bytes, but freed 100 bytes space with errors in image deletion: ";
        let failure = swept.failure();
        assert_eq!(failure.unwrap(), format!("{text}remove image a"));
        let mut swept = Swept::begin(None, 1000, 0);
        for class in [ErrorClass::ImagePull, ErrorClass::Unavailable] {
            assert!(!swept.is_done());
            swept.note(&image("a", 100), &failed(class));
        }
        assert!(swept.is_done());
        let failure = swept.failure().unwrap();
        let text = "freed 0 bytes space with errors in image deletion: remove image a (and 1 more)";
        assert_eq!(failure, text);
    }
}
