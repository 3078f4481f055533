//! The targets, by the room whose decoder they feed.

mod api;
mod attest;
mod documents;
mod machine;
mod merge;

use crate::run::Target;

/// Every target.
pub fn all() -> Vec<Target> {
    let mut all = attest::targets();
    all.extend(api::targets());
    all.extend(documents::targets());
    all.extend(machine::targets());
    all.extend(merge::targets());
    all
}
