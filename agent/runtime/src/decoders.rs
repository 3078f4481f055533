//! Decoders of this room that only its own functions call, for the fuzz targets of `tests/fuzz`.

use crate::users::{Accounts, RequestedIds};

/// The numbers of a process, by an image's user and its files: user, group, then all groups; `None`
/// where the image has no such user.
pub fn process_ids(passwd: String, group: String, user: &str) -> Option<Vec<u32>> {
    let requested = RequestedIds {
        user: None,
        group: None,
    };
    let found = Accounts { passwd, group }.identity(user, requested).ok()?;
    Some([vec![found.uid, found.gid], found.groups].concat())
}
