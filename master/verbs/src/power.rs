//! `POST /api/v1/nodes/NAME/power?action=reboot|poweroff`: reboots or powers off a node's machine.
//!
//! The right is `create` on `nodes/power`. The log of verdicts records who gave the order before it
//! is sent to the node, and then the node's refusal, if it refuses. The node's agent gives
//! containers their grace and hands the order to init.

use super::answer::{self, Answer};
use super::call::Call;
use super::gateway::{self, NodeGateway, REFUSAL};
use config_errors::chain;
use config_machine::power::Order;
use http::{Method, StatusCode};
use master_gateway::{Expected, NodeTarget};
use master_listener::Extensions;
use master_schema::error::{ApiError, Reason, shown};

/// Orders a reboot or poweroff.
pub(super) async fn order(
    call: &Call,
    nodes: &NodeGateway<'_>,
    extensions: Option<&dyn Extensions>,
) -> Answer {
    let action = call.query.get("action");
    let order = Order::of(action).ok_or_else(|| {
        let known = Order::ALL.map(Order::word).join(" or ");
        let text = format!("`action` is {:?}, and must be {known}", shown(action));
        ApiError::new(Reason::BadRequest, text)
    })?;
    let node = &call.target.name;
    // Before the record: an order that can't be sent must not be in the log.
    let target = gateway::target(call, nodes.reader, node).await?;
    if !call.dry_run()? {
        record(call, extensions, order, "").await?;
        if let Err(error) = ask(call, nodes, target, order).await {
            // The caller gets the node's refusal, also if recording it fails.
            let not_done = format!("not done: {}", error.message);
            if let Err(error) = record(call, extensions, order, &not_done).await {
                tracing::error!(
                    node,
                    error = chain(&error),
                    "a refused order is missing in the log of verdicts"
                );
            }
            return Err(error);
        }
    }
    answer::success(StatusCode::CREATED, None, call.accept()?)
}

/// Writes into the log of verdicts that the caller gives this order, or how it ended.
async fn record(
    call: &Call,
    extensions: Option<&dyn Extensions>,
    order: Order,
    outcome: &str,
) -> Result<(), ApiError> {
    let nowhere = || {
        let text = "this server has no log of verdicts, and without one it ends no machine";
        ApiError::new(Reason::ServiceUnavailable, text)
    };
    let extensions = extensions.ok_or_else(nowhere)?;
    let by = &call.user.name;
    let recorded = extensions.order_given(&call.target.name, by, order.word(), outcome);
    recorded.ok_or_else(nowhere)?.await
}

/// Sends the order to the node.
///
/// # Errors
/// The node refuses (its message is passed on), or can't be reached.
async fn ask(
    call: &Call,
    nodes: &NodeGateway<'_>,
    target: NodeTarget,
    order: Order,
) -> Result<(), ApiError> {
    let request = gateway::request(&Method::POST, &target, &order.path())?;
    let answer = gateway::send(call, nodes, target, request, Expected::default()).await?;
    let reason = match answer.status() {
        StatusCode::ACCEPTED => return Ok(()),
        StatusCode::BAD_REQUEST => Reason::BadRequest,
        StatusCode::SERVICE_UNAVAILABLE => Reason::ServiceUnavailable,
        _ => Reason::InternalError,
    };
    let text = answer.into_body().beginning(REFUSAL).await;
    Err(ApiError::new(reason, text.trim_end()))
}
