//! The targets, by the room whose decoder they feed.

mod api;
mod attest;
mod boot;
mod documents;
mod images;
mod journal;
mod keys;
mod machine;
mod merge;
mod node;
mod pods;
mod start;
mod tunnel;
mod usage;

use crate::run::{Target, corpus, kept};
use std::io;

/// Every target, with the inputs that the corpus keeps before its other seeds.
///
/// # Errors
/// A file of the corpus that can't be read.
pub fn all() -> io::Result<Vec<Target>> {
    let mut all = attest::targets();
    all.extend(api::targets());
    all.extend(boot::targets()?);
    all.extend(documents::targets());
    all.extend(images::targets());
    all.extend(journal::targets());
    all.extend(keys::targets()?);
    all.extend(machine::targets());
    all.extend(node::targets()?);
    all.extend(pods::targets());
    all.extend(start::targets()?);
    all.extend(merge::targets());
    all.extend(tunnel::targets());
    all.extend(usage::targets());
    for target in &mut all {
        target.seeds.splice(0..0, kept(&corpus(), target.name)?);
    }
    Ok(all)
}
