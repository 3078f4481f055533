//! `pratique status`: one page about a machine, from the API.
//!
//! [`facts`] requests, [`page`] writes (pure). A missing part is shown with the cause and never
//! left out.

mod facts;
mod page;
mod pods;
mod resources;
mod table;
mod units;

use crate::error::{Error, Result};
use crate::files::say;
use crate::kubeconfig::Api;
use crate::plain::node_name;
use crate::runtime::block_on;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pratique status worker-1

Rights, each for its part of the page: `get` on `nodes`, `machines`, `imagereleases` and `leases` (in kube-node-lease), `list` on \
`machines`, `nodeattestations`, `pods` and `events`, `get` on `nodes/proxy` for what the node uses. A part without \
its right says `missing`.")]
pub(crate) struct StatusArgs {
    /// The node.
    #[arg(value_parser = node_name)]
    node: String,
    /// The admin's kubeconfig.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    block_on(async {
        let mut api = Api::open(&args.kubeconfig).await?;
        let facts = facts::gather(&mut api, &args.node).await?;
        if facts.is_unknown() {
            return Err(Error::input(
                format!("node {}", args.node),
                "there is neither a Node nor a Machine of this name",
                "`kubectl get nodes,machines` names them",
            ));
        }
        say(page::page(&facts, jiff::Timestamp::now()).trim_end());
        Ok(())
    })
}
