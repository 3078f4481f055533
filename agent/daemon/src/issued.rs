//! A node whose certificates and key an admin issued beforehand: no proof, no request, no renewal.

use crate::RunArguments;
use crate::approach::{Approach, approach};
use crate::console::say;
use crate::discovery::Location;
use crate::ending::Ending;
use crate::error::Error;
use crate::machine::ImageDescription;
use crate::state_cluster::StateCluster;
use crate::{addresses, issued_configuration, names, node, settings};
use agent_enroll::issued::{self, Issued};
use agent_kubelet::{Notice, Notices};
use agent_tpm::{Tpm, WrappedKey};
use config_machine::power::Order;
use config_model::MachineConfig;
use config_model::identity::{IssuedIdentity, IssuedKey};
use config_state::generation::Joined;
use config_tpm::Digest;
use config_tpm::Duplicate;
use jiff::Timestamp;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

const DAY: u64 = 86_400;
/// The Node's condition.
const CONDITION: &str = "CertificateExpiring";

/// Runs the node until it is asked to end, or its master orders the end of the machine, which it
/// returns then.
pub(crate) async fn operate(
    arguments: &RunArguments,
    machine: &MachineConfig,
    image: &ImageDescription,
    name: String,
    identity: IssuedIdentity,
    on_machine: bool,
    ending: &mut Ending,
) -> Result<Option<Order>, Error> {
    check_plaintext_key(arguments, &identity)?;
    let mut tasks = JoinSet::new();
    let names = names::begin(arguments, machine, &name, &mut tasks)?;
    // Cancel-safe: the documentation of `approach` says why.
    let Approach { clock, found } = tokio::select! {
        ready = approach(arguments, machine, image, on_machine, &mut tasks) => ready?,
        () = ending.signal_came() => return Ok(None),
    };
    let location = location(machine, found)?;
    let joins = Joined::Issued(configuration(&arguments.config)?);
    let state = StateCluster::of(arguments, machine.cluster().is_some(), joins);
    state.bind(&location.pins)?;
    let doubt = Arc::clone(&location.doubt);
    let (tcti, node) = (arguments.tcti.clone(), name.clone());
    let taken = tokio::task::spawn_blocking(move || take(&tcti, node, identity, location)).await;
    let (identity, end) = taken.map_err(|error| Error::Part("identity", error.into()))??;
    // Before the first pod: from here on the state is this user-data's.
    state.keep(&identity)?;
    state.spawn(&identity, &mut tasks);
    watch_end(name, end, clock.notices(), &mut tasks);
    let addresses = addresses::follow(machine, on_machine, &mut tasks);
    let outcome = node::serve(
        arguments,
        machine,
        image,
        node::Identified {
            identity,
            doubt,
            clock,
            addresses,
            names,
            on_machine,
        },
        ending,
        &mut tasks,
    )
    .await;
    tasks.shutdown().await;
    outcome
}

/// The digest of the user-data without the identity.
fn configuration(path: &Path) -> Result<[u8; 32], Error> {
    let read = std::fs::read_to_string(path).map_err(|source| Error::File {
        what: "read",
        path: path.to_owned(),
        source,
    })?;
    let digest = issued_configuration::digest(&read);
    // It was parsed before.
    digest
        .map(|digest| digest.0)
        .ok_or_else(|| Error::Configuration(path.to_owned()))
}

/// Refuses an unencrypted key from a metadata service, and warns about one from any other source.
fn check_plaintext_key(arguments: &RunArguments, identity: &IssuedIdentity) -> Result<(), Error> {
    if matches!(identity.key, IssuedKey::Plaintext(_)) {
        let instead = "wrap it to the machine's TPM with `pratique issue --ek FILE`, and treat this key as leaked";
        settings::not_from_a_service(arguments, "a private key in the clear", instead)?;
        say(
            "WARNING: this node's private key is unencrypted in its user-data: anyone who reads it can impersonate this node",
        );
    }
    Ok(())
}

/// The master's address, from discovery or from the configuration.
fn location(machine: &MachineConfig, found: Option<Location>) -> Result<Location, Error> {
    match (found, settings::master(machine)?) {
        (Some(found), _) => Ok(found),
        (None, Some((endpoints, pins))) => Ok(Location::new(endpoints, pins)),
        (None, None) => Err(Error::NotForAnAgent(
            "`[identity]` is for a machine that joins a master".to_owned(),
        )),
    }
}

/// Prints until when the node runs, sets the Node's condition, and spawns a task that warns before
/// the expiry.
fn watch_end(
    name: String,
    end: issued::Expiry,
    notices: Notices,
    tasks: &mut JoinSet<Result<(), Error>>,
) {
    let until = i64::try_from(end.not_after)
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok());
    let until = until.map(|until| until.to_string()).unwrap_or_default();
    say(&format!(
        "node {name} by issued certificates until {until}; nothing about image or configuration is proven"
    ));
    let message = format!("the issued certificates end at {until}");
    notices.set(
        CONDITION,
        Notice {
            on: false,
            reason: "CertificateIsGood",
            message,
        },
    );
    let reporter = ExpiryReporter {
        notices,
        node: name,
    };
    tasks.spawn(async move {
        let never = issued::watch(end, move |left| reporter.report(left)).await;
        match never {}
    });
}

/// Opens the TPM if the key is wrapped to it, and puts certificates and key in use.
fn take(
    tcti: &str,
    node: String,
    identity: IssuedIdentity,
    location: Location,
) -> Result<(agent_enroll::Identity, issued::Expiry), Error> {
    let IssuedIdentity {
        certificate,
        serving_certificate,
        roots,
        key,
    } = identity;
    let key = match key {
        IssuedKey::Wrapped {
            ek,
            public,
            private,
            seed,
        } => {
            let wrapped = WrappedKey {
                ek: Digest(ek.0),
                key: Duplicate {
                    public,
                    private,
                    seed,
                },
            };
            issued::IssuedKey::Wrapped(Tpm::open(tcti).map_err(Error::Tpm)?, Box::new(wrapped))
        }
        IssuedKey::Plaintext(pkcs8) => issued::IssuedKey::Plaintext(pkcs8),
    };
    let all = Issued {
        node,
        certificate,
        serving_certificate,
        roots,
        key,
    };
    issued::put_in_use(all, location.endpoints, location.pins).map_err(Error::Identity)
}

/// Reports the certificates' expiry: on the console, as a condition of the Node and as events.
struct ExpiryReporter {
    notices: Notices,
    node: String,
}

impl ExpiryReporter {
    fn report(&self, left: Duration) {
        let message = ends(&self.node, left);
        say(&message);
        let reason = if left.is_zero() {
            "CertificateExpired"
        } else {
            "CertificateExpiring"
        };
        self.notices.set(
            CONDITION,
            Notice {
                on: true,
                reason,
                message,
            },
        );
    }
}

fn ends(node: &str, left: Duration) -> String {
    let cure = format!(
        "issue new ones with `pratique issue --name {node} …`, give the machine that user-data, and reboot it"
    );
    match left.as_secs() {
        0 => format!("the issued certificates have expired: the master refuses this node; {cure}"),
        1..DAY => format!("the issued certificates end within a day; {cure}"),
        seconds => format!(
            "the issued certificates end in {} days; {cure}",
            seconds / DAY
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::ends;
    use std::time::Duration;

    #[test]
    fn the_notice_says_when_and_what_to_do() {
        for (seconds, words) in [
            (14 * 86_400, "end in 14 days"),
            (5, "end within a day"),
            (0, "have expired"),
        ] {
            let text = ends("w", Duration::from_secs(seconds));
            assert!(
                text.contains(words) && text.contains("pratique issue --name w"),
                "{text}"
            );
        }
    }
}
