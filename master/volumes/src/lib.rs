//! The kinds of volumes: volumes and claims, classes, storage drivers, capacities, attachments.
//!
//! Each function of the first level is the descriptor of one kind; `master-kinds` has all of them
//! in one list. The files `*_validate` hold the rules. No tasks, no channels, no I/O.

mod storage;
mod storage_validate;
mod volume;
mod volume_sources;
mod volume_validate;

pub use storage::{
    attachment, attributes_class, capacity, class as storage_class, driver as storage_driver,
    node as storage_node,
};
pub use volume::{claim, volume};
