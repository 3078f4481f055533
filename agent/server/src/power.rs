//! `POST /power/reboot` and `/power/poweroff`: end the machine, for the master alone. Users ask the
//! master, which authorizes them and logs the order.
//!
//! The order is passed on only after the answer is sent, because carrying it out closes this port.

use agent_port::{Caller, Reply, text};
use config_machine::power::{FOLDER, Order};
use http::{HeaderValue, Method, Response, StatusCode, header};
use tokio::sync::mpsc;

/// Answers a request for an order.
pub(crate) fn answer(
    orders: Option<&mpsc::Sender<Order>>,
    caller: &Caller,
    method: &Method,
    path: &str,
) -> Reply {
    match order_of(caller, method, path).and_then(|order| Ok((order, supervisor(orders)?))) {
        Err((status, why)) => Reply::Whole(text(status, why)),
        Ok((order, orders)) => {
            let mut head = Response::new(());
            *head.status_mut() = StatusCode::ACCEPTED;
            let close = HeaderValue::from_static("close");
            head.headers_mut().insert(header::CONNECTION, close);
            let work = Box::pin(async move {
                tracing::info!(order = order.word(), "the master ends this machine");
                // A second order finds the first one waiting, which counts.
                orders.try_send(order).ok();
            });
            Reply::Tunnel(head, work)
        }
    }
}

/// The order that a caller may give.
fn order_of(
    caller: &Caller,
    method: &Method,
    path: &str,
) -> Result<Order, (StatusCode, &'static str)> {
    if *caller != Caller::Master {
        let why =
            "only the master ends a machine: ask it by `pratique node reboot NODE` or `poweroff`\n";
        return Err((StatusCode::FORBIDDEN, why));
    }
    if *method != Method::POST {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "an order is posted\n"));
    }
    let word = path.trim_start_matches('/').strip_prefix(FOLDER);
    let word = word.and_then(|rest| rest.strip_prefix('/'));
    let order = word.and_then(Order::of);
    order.ok_or((StatusCode::NOT_FOUND, "there is no such order\n"))
}

/// The way to the supervisor that ends the machine.
fn supervisor(
    orders: Option<&mpsc::Sender<Order>>,
) -> Result<mpsc::Sender<Order>, (StatusCode, &'static str)> {
    orders.cloned().ok_or((
        StatusCode::BAD_REQUEST,
        "this host was not booted from an image of Pratique, and no init would act upon it: end the host by its own means\n",
    ))
}
