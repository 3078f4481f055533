//! `pratique node reboot` and `poweroff`: the order that ends a node's machine.

use super::Access;
use crate::error::Result;
use crate::files::tell;
use crate::kubeconfig::Api;
use config_machine::power::Order;
use http::Method;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The node's agent ends the containers, each in the grace of its pod and none later than after 60 seconds; init ends the machine then. \
Disruption budgets are not asked: drain the node first where they must hold. A machine that is off has to be switched on by hand or \
by its platform. The log of verdicts says who gave the order.

Rights: `create` on `nodes/power`.")]
pub(crate) struct EndArgs {
    #[command(flatten)]
    access: Access,
}

/// Gives the order.
pub(super) async fn order(args: &EndArgs, order: Order) -> Result<()> {
    let Access { node, kubeconfig } = &args.access;
    let mut api = Api::open(kubeconfig).await?;
    let path = format!("/api/v1/nodes/{node}/power?action={}", order.word());
    api.must(Method::POST, &path, None).await?;
    let what = match order {
        Order::Reboot => "reboots",
        Order::PowerOff => "powers off",
    };
    tell(&format!(
        "node {node} {what} once its containers have ended"
    ));
    Ok(())
}
