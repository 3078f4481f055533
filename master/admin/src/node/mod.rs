//! `pratique node`: acts on a node, by way of the API server.

mod drain;
mod end;

use crate::error::Result;
use crate::files::tell;
use crate::kubeconfig::Api;
use crate::plain::node_name;
use crate::runtime::block_on;
use config_machine::power::Order;
use http::Method;
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum NodeCommand {
    /// Cordon a node and evict its pods, as disruption budgets allow; pods of DaemonSets stay.
    Drain(drain::DrainArgs),
    /// Let new pods onto a node again.
    Uncordon(Access),
    /// Reboot a node's machine; its containers are stopped first, with their grace periods.
    Reboot(end::EndArgs),
    /// Switch a node's machine off; its containers are stopped first, with their grace periods.
    Poweroff(end::EndArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Access {
    /// The node.
    #[arg(value_parser = node_name)]
    node: String,
    /// The admin's kubeconfig.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: PathBuf,
}

/// Runs the command.
pub(crate) fn run(command: &NodeCommand) -> Result<()> {
    block_on(async {
        match command {
            NodeCommand::Drain(args) => drain::drain(args).await,
            NodeCommand::Uncordon(access) => {
                let mut api = Api::open(&access.kubeconfig).await?;
                cordon(&mut api, &access.node, false).await
            }
            NodeCommand::Reboot(args) => end::order(args, Order::Reboot).await,
            NodeCommand::Poweroff(args) => end::order(args, Order::PowerOff).await,
        }
    })
}

/// Keeps new pods off a node, or lets them onto it.
async fn cordon(api: &mut Api, node: &str, off: bool) -> Result<()> {
    let change = json!({"spec": {"unschedulable": off.then_some(true)}});
    let path = format!("/api/v1/nodes/{node}");
    api.must(Method::PATCH, &path, Some(&change)).await?;
    let what = if off {
        "takes no new pods (cordoned)"
    } else {
        "takes new pods (uncordoned)"
    };
    tell(&format!("node {node} {what}"));
    Ok(())
}
