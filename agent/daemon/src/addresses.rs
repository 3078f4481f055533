//! The machine's addresses, as leases and routers give and take them.

use crate::console::say;
use crate::error::Error;
use crate::machine;
use config_model::MachineConfig;
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How often the links are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// Follows the machine's addresses; on a host, where the agent does not own the links, reads them
/// once. If the machine has none, the last ones stay: a link that is down for a while loses all of
/// its addresses, and a Node without addresses cannot be reached.
pub(crate) fn follow(
    machine: &MachineConfig,
    on_machine: bool,
    tasks: &mut JoinSet<Result<(), Error>>,
) -> watch::Receiver<Vec<IpAddr>> {
    let (sender, addresses) = watch::channel(machine::addresses(machine));
    if !on_machine {
        return addresses;
    }
    let machine = machine.clone();
    tasks.spawn(async move {
        loop {
            tokio::time::sleep(LOOK).await;
            let now = machine::addresses(&machine);
            if take(&sender, now.clone()) {
                let texts: Vec<String> = now.iter().map(IpAddr::to_string).collect();
                say(&format!(
                    "this machine's addresses are now {}",
                    texts.join(", ")
                ));
            }
        }
    });
    addresses
}

/// Sends the addresses if they differ from the last ones; true if they do.
fn take(sender: &watch::Sender<Vec<IpAddr>>, now: Vec<IpAddr>) -> bool {
    sender.send_if_modified(|before| {
        let changed = !now.is_empty() && *before != now;
        if changed {
            *before = now;
        }
        changed
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::bring_up;
    use agent_sys::socket::udp_on_interface;
    use config_model::{Document, parse};
    use std::net::Ipv4Addr;
    use tests_support::network::{ADDRESS, SERVER, dhcp_of, runtime, with_peer};
    use tokio::net::UdpSocket;
    use tokio::time::timeout;

    /// Longest wait for leases, which come within seconds.
    const LIMIT: Duration = Duration::from_secs(180);
    /// The address that comes after the first one.
    const NEXT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);

    #[test]
    fn other_addresses_are_reported_and_none_at_all_are_not() {
        let all = |texts: &[&str]| -> Vec<IpAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let (sender, addresses) = watch::channel(all(&["192.0.2.1"]));
        assert!(!take(&sender, all(&["192.0.2.1"])));
        assert!(!take(&sender, Vec::new()));
        assert!(take(&sender, all(&["192.0.2.7", "2001:db8::1"])));
        assert_eq!(*addresses.borrow(), all(&["192.0.2.7", "2001:db8::1"]));
    }

    #[test]
    fn another_lease_is_followed() {
        let pin = "ab".repeat(32);
        let text = format!(
            "version = 1\n[master]\nendpoints = [\"https://192.0.2.1:6443\"]\nca_pins = [\"sha256:{pin}\"]\n\
             [[network.interface]]\nname = \"inside\"\ndhcp = true\n"
        );
        let Document::Machine(machine) = parse(text, "user-data").expect("a document") else {
            unreachable!("its kind is a machine's");
        };
        let (lease, lent) = watch::channel(ADDRESS);
        let leases = || async move {
            let socket = udp_on_interface("outside", 67).expect("a socket");
            let socket = UdpSocket::from_std(socket.into()).expect("a socket");
            dhcp_of(socket, SERVER, lent).await;
        };
        with_peer(&[(SERVER, 24)], leases, move || {
            let folder = tempfile::tempdir().expect("a folder");
            let followed = async {
                let mut tasks = JoinSet::new();
                let ready = bring_up(&machine, folder.path(), &mut tasks).await;
                ready.expect("the network is up");
                let mut addresses = follow(&machine, true, &mut tasks);
                assert_eq!(*addresses.borrow(), [IpAddr::from(ADDRESS)]);
                lease.send_replace(NEXT);
                addresses.changed().await.expect("somebody looks");
                assert_eq!(*addresses.borrow(), [IpAddr::from(NEXT)]);
            };
            let in_time = runtime().block_on(async { timeout(LIMIT, followed).await });
            in_time.expect("another address comes");
        });
    }
}
