//! The master's address, for a machine whose configuration has `[discovery]`: found before it
//! enrols, followed afterwards.

use crate::RunArguments;
use crate::console::{refused, say};
use crate::error::Error;
use crate::settings::endpoint;
use agent_discover::{Finder, Progress, ProgressCallback};
use agent_enroll::{Endpoint, Endpoints, Pin, Pins};
use config_discovery::Document;
use config_errors::chain;
use config_model::MachineConfig;
use config_model::machine::Membership;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The masters' endpoints and root pins, shared: an update is visible to all clones.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    pub(crate) endpoints: Endpoints,
    pub(crate) pins: Pins,
    /// Notified when no master could be reached: they may have moved.
    pub(crate) doubt: Arc<Notify>,
}

impl Location {
    pub(crate) fn new(endpoints: Endpoints, pins: Vec<Pin>) -> Self {
        Self {
            endpoints,
            pins: pins.into(),
            doubt: Arc::new(Notify::new()),
        }
    }
}

/// Finds the master by discovery and spawns a task that follows it. `None` where the configuration
/// has no discovery.
pub(crate) async fn locate(
    arguments: &RunArguments,
    machine: &MachineConfig,
    tasks: &mut JoinSet<Result<(), Error>>,
) -> Result<Option<Location>, Error> {
    let Membership::Discovers(terms) = &machine.membership else {
        return Ok(None);
    };
    let memory = arguments.data.join("discovery.json");
    let report: ProgressCallback = Arc::new(news);
    let mut finder = Finder::new(terms.clone(), &memory, report).map_err(|error| {
        let why =
            "the key that discovery trusts since its first use cannot be read, and no other is taken in its place";
        let cure = "name the key in `discovery.pins`, or install the machine anew";
        Error::NotForAnAgent(format!("{why} ({}); {cure}", chain(&error)))
    })?;
    say("looking for the master by discovery");
    let document = finder.find().await;
    let (endpoints, pins) = usable(&document)?;
    let endpoints = Endpoints::new(endpoints).ok_or_else(|| {
        Error::NotForAnAgent("the discovered document names no master".to_owned())
    })?;
    let location = Location::new(endpoints, pins);
    let (held, doubt) = (location.clone(), Arc::clone(&location.doubt));
    tasks.spawn(async move {
        finder
            .follow(document, doubt, |document| {
                if let Ok((endpoints, pins)) = usable(document) {
                    // The pins are replaced first: they are a list, so that a rotation can overlap.
                    held.pins.replace(pins);
                    held.endpoints.replace(endpoints);
                }
            })
            .await;
        Err(Error::Part("discovery", "it should never end".into()))
    });
    Ok(Some(location))
}

fn usable(document: &Document) -> Result<(Vec<Endpoint>, Vec<Pin>), Error> {
    let endpoints = document
        .endpoints
        .iter()
        .map(endpoint)
        .collect::<Result<_, _>>()?;
    Ok((
        endpoints,
        document.ca_pins.iter().map(|pin| pin.0).collect(),
    ))
}

/// Prints discovery progress to the console.
fn news(news: &Progress<'_>) {
    match news {
        Progress::Failed { uri, failure } => {
            let text = format!("discovery at {uri}: {}; {}", chain(failure), failure.cure());
            match failure.code() {
                Some(code) => refused(code, &text),
                None => say(&text),
            }
        }
        Progress::Again { wait } => {
            say(&format!(
                "no endpoint gave a document that can be used (next attempt in {} s)",
                wait.as_secs().max(1)
            ));
        }
        Progress::FirstUse { key } => say(&format!(
            "INSECURE: discovery trusts the first key that it saw, {key}, permanently; name it in `discovery.pins` instead"
        )),
        Progress::Forgotten { error } => {
            say(&format!(
                "{}: the saved state of discovery is dropped, and only the configuration counts",
                chain(error)
            ));
        }
        Progress::Found {
            document,
            remembered,
        } => {
            let endpoints: Vec<String> =
                document.endpoints.iter().map(ToString::to_string).collect();
            let source = if *remembered {
                " (saved: no endpoint has one now)"
            } else {
                ""
            };
            say(&format!(
                "master by discovery: {}, generation {}{source}",
                endpoints.join(", "),
                document.generation
            ));
        }
    }
}
