//! Debian packages by digest: a private apt state, a lock file, unpacked trees and the tools tree.
//!
//! The host may run another release than the image: a [`apt::State`] of our own is made from the
//! mirror that the host's apt is configured with ([`mirror`]), so that the host's lists stay
//! untouched. A [`lock::Lock`] lists the packages of a [`sets::Set`] with versions and digests;
//! [`fetch::Fetcher`] brings exactly these into a cache, or reports what it used instead.
//! [`tools::build`] makes the tools tree: QEMU, firmware, swtpm, kubectl and other programs of
//! tests and builds, independent of the host's release.
//!
//! No tasks, no threads of its own: it runs `apt-get` and `dpkg-deb` one after another. Enter by
//! [`fetch::Fetcher::fetch`] and [`tools::build`].

pub mod apt;
pub mod elf;
pub mod fetch;
pub mod lock;
pub mod mirror;
pub mod run;
pub mod sets;
pub mod tools;
pub mod unpack;

pub use fetch::{Fetcher, Package};
pub use sets::Set;
