//! The node against real parts on this host: containerd, crun, a registry, and the master's API in
//! process.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests may stop at the first surprise"
)]

mod api;
mod attach;
mod claims;
mod clients;
mod cluster;
mod collecting;
mod containers;
mod content;
mod crashes;
mod csi;
mod csi_foreign;
mod debug;
mod floor;
mod forward;
mod health;
mod hostile;
mod journal;
mod lifecycle;
mod machine;
mod mounts;
mod network;
mod pace;
mod pods;
mod port;
mod pressure;
mod proxy;
mod registry;
mod resources;
mod sharing;
mod site;
mod spdy;
mod starts;
mod static_pods;
mod suites;
mod traffic;
mod tunnels;
mod usage;
mod users;
