//! Exposes decoders that are private to this crate to the fuzz targets of `tests/fuzz`.

use crate::labels::{Labels, Record};
use crate::users::{Accounts, RequestedIds};
use std::collections::BTreeMap;

/// The ids of a process, by an image's user and its files: user, group, then all groups; `None` if
/// the image has no such user.
pub fn process_ids(passwd: String, group: String, user: &str) -> Option<Vec<u32>> {
    let requested = RequestedIds {
        user: None,
        group: None,
    };
    let found = Accounts { passwd, group }.identity(user, requested).ok()?;
    Some([vec![found.uid, found.gid], found.groups].concat())
}

/// The labels that an agent would write for a container from which it has read these; `None` for a
/// container that isn't a pod's.
pub fn container_labels(labels: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    let labels: Labels = labels.clone().into_iter().collect();
    let record = Record::read(&labels)?;
    Some(record.labels().into_iter().collect())
}
