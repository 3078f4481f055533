//! Deletes the UDP conntrack entries of pods that are gone.
//!
//! The kernel keeps a UDP flow as long as packets of it arrive, from either end, also if the pod
//! that started it is gone. The next pod at its address would get the other end's packets as
//! answers, which no ingress policy of that pod judges.

use agent_sys::Result;
use agent_sys::netlink::connections::{Connections, Flow, MOST_FLOWS};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How often conntrack entries are listed and deleted: enough for the largest connection table that
/// a machine has.
const MOST_ROUNDS: usize = 128;

/// The flows of pods that are removed. The kernel lists its whole table to find them, which takes a
/// processor for a second where it is large: so one list serves all pods that are removed at once.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    /// Addresses whose flows are still to be deleted.
    waiting: Mutex<Vec<IpAddr>>,
    turn: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flows {
    /// Deletes the UDP flows that these addresses started.
    pub(crate) fn forget(&self, addresses: &[IpAddr]) -> Result<()> {
        if addresses.is_empty() {
            return Ok(());
        }
        self.together(addresses, delete)
    }

    /// Runs `work` for these addresses and for those that wait beside them, unless another call has
    /// run it for these since they were added. If that call failed, it alone says so.
    fn together(
        &self,
        addresses: &[IpAddr],
        work: impl FnOnce(&[IpAddr]) -> Result<()>,
    ) -> Result<()> {
        lock(&self.waiting).extend(addresses);
        let _turn = lock(&self.turn);
        let all = std::mem::take(&mut *lock(&self.waiting));
        if all.is_empty() {
            return Ok(());
        }
        work(&all)
    }
}

fn delete(addresses: &[IpAddr]) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    #[test]
    fn pods_that_are_removed_while_flows_are_listed_have_the_next_list_together() {
        let pod = |number: u8| IpAddr::from([10, 1, 0, number]);
        let (flows, lists, barrier) = (Flows::default(), Mutex::new(Vec::new()), Barrier::new(2));
        let note = |all: &[IpAddr]| lock(&lists).push(all.to_vec());
        thread::scope(|scope| {
            scope.spawn(|| {
                let slow = |all: &[IpAddr]| {
                    note(all);
                    // It runs, and is to go on.
                    barrier.wait();
                    barrier.wait();
                    Ok(())
                };
                flows.together(&[pod(2)], slow).unwrap();
            });
            barrier.wait();
            for number in 3..7 {
                let (flows, note) = (&flows, &note);
                scope.spawn(move || {
                    let quick = |all: &[IpAddr]| {
                        note(all);
                        Ok(())
                    };
                    flows.together(&[pod(number)], quick).unwrap();
                });
            }
            while lock(&flows.waiting).len() < 4 {
                thread::yield_now();
            }
            barrier.wait();
        });
        let mut lists = lists.into_inner().unwrap();
        lists[1].sort();
        let others: Vec<IpAddr> = (3..7).map(pod).collect();
        assert_eq!(lists, [vec![pod(2)], others]);
    }
}
