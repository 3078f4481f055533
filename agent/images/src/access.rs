//! Who may run an image that is on the machine (KEP-2535), as labels of the image in containerd,
//! and who has been sent the blobs that it consists of, as labels of these.
//!
//! A registry that gives an image to everybody, or to this machine's own credential, gives it to
//! all pods of the machine; one that gave it to a pull secret gave it to the pods that have this
//! secret. Others must ask the registry. The labels name the Secret and hold neither its contents
//! nor a hash of them. An image without any label belongs to no one: the next pod asks the
//! registry.

use crate::keyring::PullSecret;
use crate::registry::Reader;
use std::collections::HashMap;

/// Labels of an image.
pub(crate) type Labels = HashMap<String, String>;

/// The label of an image that all pods may run.
const EVERYONE: &str = "pratique.dev/readers";
/// Its value.
const ALL: &str = "all";
/// Start of the labels of pull secrets, before the Secret's uid; the value is its namespace and
/// name.
const HOLDER: &str = "pratique.dev/reader.";
/// Most pull secrets that are remembered of one image; pods with others ask the registry each time.
const MAX_HOLDERS: usize = 64;
/// Longest uid; containerd takes 4,096 bytes of key and value.
const MAX_UID: usize = 128;

/// Whether a pod with these pull secrets may run the image.
pub(crate) fn allows(labels: &Labels, holders: &[&PullSecret]) -> bool {
    let held = |secret: &&PullSecret| {
        label(secret)
            .is_some_and(|(key, value)| labels.get(&key).is_some_and(|known| *known == value))
    };
    labels.get(EVERYONE).is_some_and(|value| value == ALL) || holders.iter().any(held)
}

/// Whether a blob with these labels has been sent to this reader, or to everybody.
pub(crate) fn was_sent(labels: &Labels, reader: &Reader) -> bool {
    match reader {
        Reader::Everyone => allows(labels, &[]),
        Reader::Holder(secret) => allows(labels, &[secret]),
    }
}

/// The labels of an image that only this reader may run.
pub(crate) fn only(reader: &Reader) -> Labels {
    with(&Labels::new(), reader).unwrap_or_default()
}

/// The labels with one more reader; none if that reader is among them already, or there is no room.
pub(crate) fn with(labels: &Labels, reader: &Reader) -> Option<Labels> {
    let (key, value) = match reader {
        Reader::Everyone => (EVERYONE.to_owned(), ALL.to_owned()),
        Reader::Holder(secret) => {
            let known = labels.keys().filter(|key| key.starts_with(HOLDER)).count();
            label(secret).filter(|_| known < MAX_HOLDERS)?
        }
    };
    if labels.get(&key) == Some(&value) {
        return None;
    }
    let mut labels = labels.clone();
    labels.insert(key, value);
    Some(labels)
}

/// A pull secret's label; none for a uid that is not one.
fn label(secret: &PullSecret) -> Option<(String, String)> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    let fits = (1..=MAX_UID).contains(&secret.uid.len()) && secret.uid.bytes().all(plain);
    fits.then(|| {
        (
            format!("{HOLDER}{}", secret.uid),
            format!("{}/{}", secret.namespace, secret.name),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, uid: &str) -> PullSecret {
        PullSecret {
            namespace: "team".into(),
            name: name.into(),
            uid: uid.into(),
        }
    }

    #[test]
    fn an_image_is_for_the_holders_of_the_secret_that_fetched_it() {
        let (mine, theirs) = (secret("pull", "uid-1"), secret("pull", "uid-2"));
        let labels = only(&Reader::Holder(mine.clone()));
        assert!(allows(&labels, &[&theirs, &mine]));
        assert!(!allows(&labels, &[&theirs]) && !allows(&labels, &[]));
        assert!(
            !allows(
                &labels,
                &[&PullSecret {
                    namespace: "other".into(),
                    ..mine
                }]
            ),
            "another namespace's"
        );
        let both = with(&labels, &Reader::Holder(theirs.clone())).unwrap();
        assert!(allows(&both, &[&theirs]));
        assert_eq!(
            with(&both, &Reader::Holder(theirs)),
            None,
            "it says so already"
        );
    }

    #[test]
    fn a_blob_that_one_reader_was_sent_is_not_anothers() {
        let (mine, theirs) = (secret("pull", "uid-1"), secret("pull", "uid-2"));
        let labels = only(&Reader::Holder(mine.clone()));
        assert!(was_sent(&labels, &Reader::Holder(mine.clone())));
        assert!(!was_sent(&labels, &Reader::Holder(theirs)));
        assert!(!was_sent(&labels, &Reader::Everyone), "who gives no secret");
        let labels = only(&Reader::Everyone);
        assert!(was_sent(&labels, &Reader::Everyone) && was_sent(&labels, &Reader::Holder(mine)));
    }

    #[test]
    fn an_image_for_everybody_needs_no_secret_and_one_without_label_is_nobodys() {
        assert!(allows(&only(&Reader::Everyone), &[]));
        let secret = secret("pull", "uid-1");
        assert!(!allows(&Labels::new(), &[&secret]));
    }

    #[test]
    fn holders_are_bounded_and_uids_are_uids() {
        let many = (0..200).fold(Labels::new(), |labels, n| {
            with(&labels, &Reader::Holder(secret("s", &format!("uid-{n}")))).unwrap_or(labels)
        });
        assert_eq!(many.len(), MAX_HOLDERS);
        assert_eq!(only(&Reader::Holder(secret("s", "a/../b"))), Labels::new());
        assert_eq!(only(&Reader::Holder(secret("s", ""))), Labels::new());
    }
}
