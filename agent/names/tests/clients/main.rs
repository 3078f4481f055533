//! Programs that ask for names, as a pod's: the resolvers of glibc and musl through a pod's search
//! paths, and `dig`, by which people and upstream's tests look; and one that asks too much. Needs
//! root.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod crowded;
mod dig;
mod node;
mod resolvers;
