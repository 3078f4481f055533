//! Flows of datagrams of pods that are gone, in the kernel's table of connections.
//!
//! The kernel knows such a flow for as long as anything of it arrives, from either end, also where
//! the pod that began it is gone. The next pod at its address would get what the other end goes on
//! to send, as answers, which no policy of what may come to that pod judges.

use agent_sys::Result;
use agent_sys::netlink::connections::{Connections, Flow, MOST_FLOWS};
use std::net::IpAddr;

/// Times that flows are listed and deleted: enough for the largest table of connections that a
/// machine has.
const MOST_ROUNDS: usize = 128;

/// Deletes the flows that these addresses began.
pub(crate) fn forget(addresses: &[IpAddr]) -> Result<()> {
    if addresses.is_empty() {
        return Ok(());
    }
    let mut connections = Connections::open()?;
    let is_theirs = |flow: &Flow| addresses.contains(&flow.client.0);
    for _ in 0..MOST_ROUNDS {
        let flows = connections.datagrams(&is_theirs)?;
        for flow in &flows {
            connections.delete(flow)?;
        }
        if flows.len() < MOST_FLOWS {
            break;
        }
    }
    Ok(())
}
