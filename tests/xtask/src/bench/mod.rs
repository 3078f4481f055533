//! `cargo xtask bench`: the figures of tests/FIGURES.md, measured in one run and printed with what
//! they are held against.

mod api;
mod bare;
mod control;
mod disk;
mod guest;
mod image;
mod join;
mod network;
mod node;
mod peers;

pub(crate) use api::soak;

use crate::build::Profile;
use crate::host::repository;
use crate::steps::{Failure, Outcome};
use clap::{Subcommand, ValueEnum};
use std::fmt::Display;
use std::path::PathBuf;
use std::process::Command;

/// What is measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// The sizes of the images, part by part, and their executable files.
    Image,
    /// From power-on to Ready, memory on the nodes, the verifier's rate.
    Join {
        /// The images that are there, and the machines alone.
        #[arg(long)]
        built: bool,
    },
    /// Latency, throughput, processor time and memory of the API.
    Api {
        /// Only these parts: objects, watch, watchers, collection, crowd.
        #[arg(long, value_name = "NAME[,NAME]…")]
        only: Option<String>,
    },
    /// What controllers cost in a large cluster, idle and for one changed pod, and how many pods
    /// the scheduler binds.
    Control {
        /// Pods in the cluster.
        #[arg(long, value_name = "N", default_value_t = 50_000)]
        pods: u32,
    },
    /// What services, names, network policies and sandboxes cost one node of a large cluster.
    Network {
        /// Services in the cluster.
        #[arg(long, value_name = "N", default_value_t = 10_000)]
        services: u32,
    },
    /// What many machines cost a node as peers of its tunnel.
    Peers {
        /// Machines.
        #[arg(long, value_name = "N", default_value_t = 500)]
        machines: u32,
        /// How many of them answer.
        #[arg(long, value_name = "N", default_value_t = 500)]
        answering: u32,
        /// The test that measures, where it is built: `peers` of `agent-cluster`.
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
    },
    /// How fast pods come to run, and commands, forwarded ports and logs are; what they cost the
    /// agent.
    Node {
        /// Pods of the node.
        #[arg(long, value_name = "N", default_value_t = 110)]
        pods: u32,
    },
    /// What the encryption of the state costs.
    Disk {
        /// One of the two parts.
        #[arg(value_enum)]
        part: Option<DiskPart>,
        /// With the tools and images that are there.
        #[arg(long)]
        built: bool,
    },
    /// The guest's half of `disk`.
    #[command(hide = true)]
    DiskGuest,
}

/// A part of [`Bench::Disk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiskPart {
    /// Sequential writes and reads, and fsync.
    Rates,
    /// From the key in the TPM to the mounted state.
    Unlock,
}

/// Measures what is named, with programs and images of this profile where it makes any.
pub(crate) fn bench(what: Bench, profile: Profile) -> Outcome {
    match what {
        Bench::Image => image::image(profile),
        Bench::Join { built } => join::join(built, profile),
        Bench::Api { only } => api::api(only.as_deref()),
        Bench::Control { pods } => control::control(pods),
        Bench::Network { services } => network::network(services),
        Bench::Peers {
            machines,
            answering,
            program,
        } => peers::peers(machines, answering, program.as_deref()),
        Bench::Node { pods } => node::node(pods),
        Bench::Disk { part, built } => disk::disk(part, built, profile),
        Bench::DiskGuest => guest::guest(),
    }
}

/// Runs a test that measures, with these values in its environment.
fn measure<V: Display>(test: &[&str], values: &[(&str, V)]) -> Outcome {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let values = values.iter();
    let status = Command::new(cargo)
        .current_dir(repository())
        .args(["test", "--locked"])
        .args(test)
        .args(["--", "--nocapture"])
        .envs(values.map(|(name, value)| (name, value.to_string())))
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new(
            format!("the measurement ended with {status}"),
            "what it printed says which promise did not hold",
        )),
        Err(error) => Err(Failure::new(
            format!("cargo cannot be started: {error}"),
            "run this by `cargo xtask`",
        )),
    }
}
