//! Deletes the UDP conntrack entries of pods that are gone.
//!
//! The kernel keeps a UDP flow as long as packets of it arrive, from either end, also if the pod
//! that started it is gone. The next pod at its address would get the other end's packets as
//! answers, which no ingress policy of that pod judges.

use agent_sys::Result;
use agent_sys::netlink::connections::{Connections, Flow, MOST_FLOWS};
use std::net::IpAddr;

/// How often conntrack entries are listed and deleted: enough for the largest connection table that
/// a machine has.
const MOST_ROUNDS: usize = 128;

/// Deletes the UDP flows that these addresses started.
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
