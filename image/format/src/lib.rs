//! Pure writers and hashers of an image's parts.
//!
//! Bytes in, bytes out: nothing here opens a file (the FAT writer works in memory), reads a clock
//! or draws randomness, so that the same inputs make the same image, bit for bit. No tasks, no
//! channels.
//!
//! Enter by [`gpt`] for the disk, [`table`] for a disk that has one, [`fat`] for its EFI system
//! partition and for NoCloud volumes, [`slots`] for an EFI system partition that has an older
//! kernel image, [`pe`] for the unified kernel image and its Authenticode hash, [`authenticode`]
//! for its signature, [`verity`] for the root's hash tree, [`cpio`] and [`tar`] for archives,
//! [`efivars`] for the firmware's variables, [`guid`] for identifiers.

pub mod authenticode;
pub mod cpio;
mod der;
pub mod efivars;
pub mod fat;
pub mod gpt;
pub mod guid;
pub mod pe;
pub mod slots;
pub mod table;
pub mod tar;
pub mod verity;

pub use guid::Guid;
