//! Cluster DNS, which begins before the machine has an identity: pods find services also where the
//! agent starts again while the master is away.

use crate::RunArguments;
use crate::error::Error;
use crate::machine;
use crate::settings::RESOLV_CONF;
use agent_names::snapshot::Origin;
use agent_names::{Names, Options};
use agent_proxy::View;
use config_machine::journal::BOOT_ID;
use config_model::MachineConfig;
use std::sync::Arc;
use tokio::task::JoinSet;

/// The snapshot of names for the next agent, in the folder for data of this boot.
const FILE: &str = "names";

/// Spawns the name server of the node with this name. It answers at once where an agent of this
/// boot has left names, else once the node has a range of pod addresses.
///
/// # Errors
/// If the kernel doesn't tell which boot it is.
pub(crate) fn begin(
    arguments: &RunArguments,
    machine: &MachineConfig,
    name: &str,
    tasks: &mut JoinSet<Result<(), Error>>,
) -> Result<Arc<Names>, Error> {
    let boot = std::fs::read_to_string(BOOT_ID).map_err(|source| Error::File {
        what: "read",
        path: BOOT_ID.into(),
        source,
    })?;
    let names = Arc::new(Names::new(Options {
        view: View::default(),
        snapshot: arguments.run.join(FILE),
        origin: Origin {
            boot: boot.trim().to_owned(),
            node: name.to_owned(),
        },
        machine: machine::addresses(machine),
        resolv_conf: RESOLV_CONF.into(),
        stub_domains: machine.network.stub_domains.clone(),
    }));
    let own = Arc::clone(&names);
    tasks.spawn(async move { match own.run().await {} });
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arguments, Command};
    use agent_names::OwnAddress;
    use agent_names::snapshot::Snapshot;
    use agent_proxy::{Key, Known, Service};
    use agent_sys::namespace::{Kind, in_new};
    use agent_sys::netlink::links::{LOOPBACK, Links};
    use clap::Parser as _;
    use std::net::{IpAddr, Ipv4Addr};
    use std::path::Path;
    use std::time::Duration;
    use tests_support::network::runtime;
    use tokio::net::UdpSocket;
    use tokio::time::timeout;

    const LIMIT: Duration = Duration::from_secs(120);
    /// The node's own address in its range, and a service's.
    const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1));
    const WEB: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 7);

    /// What an earlier agent of this boot left.
    fn left(run: &Path) {
        let key = Key {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        let web = Service {
            addresses: vec![WEB.into()],
            ..Service::default()
        };
        let known = Known {
            services: Some([(Arc::new(key), Arc::new(web))].into()),
            slices: Some([].into()),
            namespaces: Some(["shop".to_owned()].into()),
            ..Known::default()
        };
        let range = "10.1.0.0/24".parse().expect("a range");
        let snapshot = Snapshot {
            own: vec![OwnAddress {
                address: OWN,
                range,
            }],
            known: Arc::new(known),
        };
        let boot = std::fs::read_to_string(BOOT_ID).expect("the boot's id");
        let origin = Origin {
            boot: boot.trim().to_owned(),
            node: "worker-1".to_owned(),
        };
        let path = run.join(FILE);
        snapshot.save(&path, &origin).expect("a snapshot");
    }

    /// An agent on a host whose master, by its user-data, is at an address where nobody answers.
    fn agent(folder: &Path) -> RunArguments {
        let config = folder.join("config.toml");
        let pin = "ab".repeat(32);
        let text = format!(
            "version = 1\n[machine]\nname = \"worker-1\"\ninsecure_no_tpm = true\n\
             [master]\nendpoints = [\"https://192.0.2.1:6443\"]\nca_pins = [\"sha256:{pin}\"]\n"
        );
        std::fs::write(&config, text).expect("a file");
        let place = |name: &str| format!("--{name}={}", folder.join(name).display());
        let words = ["data", "run", "sys", "image", "event-log"].map(place);
        let words = ["agent", "run", "--tcti=device:/nowhere"]
            .map(str::to_owned)
            .into_iter()
            .chain(words)
            .chain([format!("--config={}", config.display())]);
        let Command::Run(arguments) = Arguments::parse_from(words).command else {
            unreachable!("it is `run`");
        };
        *arguments
    }

    /// The address that the node's name server says for `web` in namespace `shop`.
    async fn asked() -> Ipv4Addr {
        let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in ["web", "shop", "svc", "cluster", "local"] {
            question.push(u8::try_from(label.len()).expect("a short label"));
            question.extend(label.bytes());
        }
        question.extend([0, 0, 1, 0, 1]);
        loop {
            let socket = UdpSocket::bind((OWN, 0)).await.expect("a socket");
            socket.connect((OWN, 53)).await.expect("a way");
            let mut answer = [0; 512];
            let sent = socket.send(&question).await;
            let said = timeout(Duration::from_millis(200), socket.recv(&mut answer)).await;
            let (Ok(_), Ok(Ok(length))) = (sent, said) else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            assert_eq!(answer[3] & 15, 0, "the answer's code");
            let address: [u8; 4] = answer[length - 4..length].try_into().expect("four bytes");
            return address.into();
        }
    }

    #[test]
    fn an_agent_that_waits_for_its_master_answers_names_as_an_earlier_one_left_them() {
        in_new(&[Kind::Network], || {
            let mut links = Links::open()?;
            links.switch_on(LOOPBACK)?;
            links.add_address(LOOPBACK, OWN, 24)?;
            let folder = tempfile::tempdir().expect("a folder");
            let arguments = agent(folder.path());
            std::fs::create_dir_all(&arguments.run).expect("a folder");
            left(&arguments.run);
            let answered = runtime().block_on(async {
                tokio::select! {
                    ended = crate::run::run(arguments) => panic!("the agent has ended: {ended:?}"),
                    answered = timeout(LIMIT, asked()) => answered.expect("an answer"),
                }
            });
            assert_eq!(answered, WEB);
            Ok(())
        })
        .expect("a network of its own");
    }
}
