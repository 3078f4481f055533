//! Publishes where this cluster's masters are, signed, at the discovery endpoints that the admin named.
//!
//! What is to be done is in the Secret that `pratique discovery create` writes, what was done in the public ConfigMap beside it
//! (`config_kube::discovery`). One future, level-triggered: it looks, publishes what is due, writes the outcome, and waits.

use crate::chain;
use config_discovery::{Document, pin_of};
use config_kube::discovery as names;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_model::discovery::DiscoveryUri;
use config_model::format::{Endpoint, Host, Pin};
use master_ca::Authority;
use master_client::{ApiError, Client};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// For how long a document is good, in seconds: machines that boot while the master is away for a week still find it.
const LIFE: u64 = 7 * 24 * 3600;
/// How far before the moment of signing a document begins, in seconds: clocks differ.
const BACKDATED: u64 = 60;
/// Between two looks at the Secret.
const LOOK: Duration = Duration::from_secs(3);
/// First wait after a publication that failed.
const FIRST: Duration = Duration::from_secs(5);
/// Longest wait after publications that failed.
const LONGEST: Duration = Duration::from_secs(300);
/// Most endpoints and registrations, as of the document.
const MOST: usize = config_discovery::MAX_LIST;

/// Where the cluster is published, and how.
#[derive(Debug, Clone, Default, PartialEq)]
struct Wish {
    /// Address and credential.
    registrations: Vec<(DiscoveryUri, String)>,
    endpoints: Vec<Endpoint>,
    /// Pins of the cluster's roots.
    pins: Vec<Pin>,
}

/// The publisher.
pub(crate) struct Publisher {
    client: Client,
    authority: Arc<Authority>,
    own: Vec<Endpoint>,
    done: Option<(Wish, SystemTime)>,
    /// What failed, when it is tried again, and after which wait.
    retry: Option<(Wish, Instant, Duration)>,
}

impl Publisher {
    /// A publisher for masters at these addresses.
    pub(crate) fn new(client: Client, authority: Arc<Authority>, own: Vec<Endpoint>) -> Self {
        Self {
            client,
            authority,
            own,
            done: None,
            retry: None,
        }
    }

    /// Publishes for as long as it is polled.
    pub(crate) async fn run(mut self) {
        loop {
            if let Err(error) = self.round().await {
                tracing::warn!(error = %chain(&error), "discovery: the cluster's own objects cannot be read or written");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let secret = self
            .client
            .get_opt::<Secret>(Some(names::SECRET_NAMESPACE), names::NAME)
            .await?;
        let map = self
            .client
            .get_opt::<ConfigMap>(Some(names::PUBLIC_NAMESPACE), names::NAME)
            .await?;
        let pins = self
            .authority
            .pins()
            .iter()
            .filter_map(|pin| pin.parse().ok())
            .collect::<Vec<Pin>>();
        let (wish, fault) = match secret.as_ref().map(|secret| wish(secret, &self.own, &pins)) {
            None => (Wish::default(), None),
            Some(Ok(wish)) => (wish, None),
            Some(Err(fault)) => (Wish::default(), Some(fault)),
        };
        if !self.due(&wish, map.is_some()) {
            return Ok(());
        }
        let mut data = map
            .as_ref()
            .and_then(|map| map.data.clone())
            .unwrap_or_default();
        let outcome = match fault {
            Some(fault) => Err(fault),
            None => self.publish(&wish, &mut data).await,
        };
        match outcome {
            Ok(()) => {
                self.retry = None;
                let status = if wish.registrations.is_empty() {
                    "unused"
                } else {
                    "published"
                };
                data.insert(names::STATUS.to_owned(), status.to_owned());
                self.done = Some((wish, SystemTime::now() + Duration::from_secs(LIFE / 2)));
            }
            Err(why) => {
                let last = self.retry.take().filter(|(failed, ..)| *failed == wish);
                let wait = last.map_or(FIRST, |(.., wait)| (wait * 2).min(LONGEST));
                tracing::warn!(
                    why,
                    again_in = wait.as_secs(),
                    "discovery: where the master is could not be published"
                );
                data.insert(names::STATUS.to_owned(), format!("failed: {why}"));
                self.retry = Some((wish, Instant::now() + wait, wait));
            }
        }
        self.write(map, data).await
    }

    /// Whether there is something to do: another wish, half of the time over, a failure long enough ago, or no ConfigMap.
    fn due(&self, wish: &Wish, written: bool) -> bool {
        if let Some((failed, at, _)) = &self.retry
            && failed == wish
            && Instant::now() < *at
        {
            return false;
        }
        let stands = self.done.as_ref().is_some_and(|(done, until)| {
            done == wish && (SystemTime::now() < *until || wish.registrations.is_empty())
        });
        !(stands && written)
    }

    /// Signs one generation and sets it everywhere; `data` is what is known of it. What was set stays set where a part fails.
    async fn publish(
        &self,
        wish: &Wish,
        data: &mut BTreeMap<String, String>,
    ) -> Result<(), String> {
        let authority = Arc::clone(&self.authority);
        let spki = blocking(move || authority.discovery_spki()).await?;
        data.insert(
            names::PUBLIC_KEY.to_owned(),
            master_ca::pem("PUBLIC KEY", &spki),
        );
        data.insert(names::PIN.to_owned(), pin_of(&spki).to_string());
        data.remove(names::URIS);
        if wish.registrations.is_empty() {
            return Ok(());
        }
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let last = data
            .get(names::GENERATION)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        let generation = next(last, now);
        // Known before it is used, so that it is never used twice.
        data.insert(names::GENERATION.to_owned(), generation.to_string());
        let (mut set, mut faults) = (Vec::new(), Vec::new());
        for (uri, credential) in &wish.registrations {
            let document = Document {
                cluster: uri.cluster.clone(),
                generation,
                issued: now.saturating_sub(BACKDATED),
                expires: now + LIFE,
                endpoints: wish.endpoints.clone(),
                ca_pins: wish.pins.clone(),
            };
            let authority = Arc::clone(&self.authority);
            let signed = blocking(move || authority.sign_discovery(&document)).await?;
            match master_bootstrap::Client::set(uri, credential, signed).await {
                Ok(()) => set.push(uri.to_string()),
                Err(error) => faults.push(format!("{uri}: {}", chain(&error))),
            }
        }
        if !set.is_empty() {
            tracing::info!(
                generation,
                at = set.join(" "),
                "discovery: published where the master is"
            );
            let end = UNIX_EPOCH + Duration::from_secs(now + LIFE);
            data.insert(names::EXPIRES.to_owned(), humantime(end));
            data.insert(names::URIS.to_owned(), set.join("\n"));
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults.join("; "))
        }
    }

    async fn write(
        &self,
        map: Option<ConfigMap>,
        data: BTreeMap<String, String>,
    ) -> Result<(), ApiError> {
        if let Some(map) = map {
            if map.data.as_ref() != Some(&data) {
                self.client
                    .update(&ConfigMap {
                        data: Some(data),
                        ..map
                    })
                    .await?;
            }
            return Ok(());
        }
        let metadata = ObjectMeta {
            name: Some(names::NAME.to_owned()),
            namespace: Some(names::PUBLIC_NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        };
        self.client
            .create(&ConfigMap {
                metadata,
                data: Some(data),
                ..ConfigMap::default()
            })
            .await
            .map(drop)
    }
}

/// A generation above the last one. By the time, so that it also rises where what was written last is lost with its disk.
fn next(last: u64, now: u64) -> u64 {
    now.max(last.saturating_add(1))
}

/// What the Secret asks for.
fn wish(secret: &Secret, own: &[Endpoint], pins: &[Pin]) -> Result<Wish, String> {
    let data = secret.data.as_ref();
    let text = |key: &str| {
        data.and_then(|data| data.get(key))
            .map(|value| String::from_utf8_lossy(&value.0).into_owned())
    };
    let at = format!("Secret {}/{}", names::SECRET_NAMESPACE, names::NAME);
    let mut registrations = Vec::new();
    for id in data
        .into_iter()
        .flat_map(BTreeMap::keys)
        .filter_map(|key| key.strip_suffix(names::URI_SUFFIX))
    {
        let uri = text(&format!("{id}{}", names::URI_SUFFIX)).unwrap_or_default();
        let uri: DiscoveryUri = uri
            .trim()
            .parse()
            .map_err(|error| format!("{at}: {id}{}: {error}", names::URI_SUFFIX))?;
        let credential = text(&format!("{id}{}", names::CREDENTIAL_SUFFIX)).unwrap_or_default();
        // What is no header value would be an error that shows it.
        if credential.is_empty() || !credential.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(format!(
                "{at}: {id}{}: found no credential",
                names::CREDENTIAL_SUFFIX
            ));
        }
        registrations.push((uri, credential));
    }
    let mut endpoints = own.to_vec();
    if let Some(list) = text(names::ENDPOINTS).filter(|list| !list.trim().is_empty()) {
        let parse = |text: &str| {
            text.trim()
                .parse()
                .map_err(|error| format!("{at}: {}: {error}", names::ENDPOINTS))
        };
        endpoints = list.split(',').map(parse).collect::<Result<_, _>>()?;
    }
    if registrations.len() > MOST || endpoints.is_empty() || endpoints.len() > MOST {
        return Err(format!(
            "{at}: found {} clusters and {} endpoints, expected 1 to {MOST} of each",
            registrations.len(),
            endpoints.len()
        ));
    }
    Ok(Wish {
        registrations,
        endpoints,
        pins: pins.to_vec(),
    })
}

/// Where nodes find this master: the names that the configuration gives the API, then the machine's own addresses; none
/// that every machine has for itself.
pub(crate) fn endpoints(
    hosts: &[Host],
    addresses: &[std::net::SocketAddr],
    port: u16,
) -> Vec<Endpoint> {
    let named = hosts.iter().cloned();
    let own = addresses.iter().map(|address| Host::Ip(address.ip()));
    let mut all: Vec<Endpoint> = Vec::new();
    let elsewhere = |host: &Host| match host {
        Host::Ip(ip) => !ip.is_loopback() && !ip.is_unspecified(),
        Host::Name(name) => name.as_str() != "localhost",
    };
    for host in named.chain(own).filter(elsewhere) {
        let endpoint = Endpoint { host, port };
        if !all.contains(&endpoint) && all.len() < MOST {
            all.push(endpoint);
        }
    }
    all
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> master_ca::Result<T> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome.map_err(|error| chain(&error)),
        Err(ended) => Err(ended.to_string()),
    }
}

fn humantime(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .map(|time| time.to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::ByteString;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn secret(entries: &[(&str, &str)]) -> Secret {
        let entry = |(key, value): &(&str, &str)| {
            ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))
        };
        Secret {
            data: Some(entries.iter().map(entry).collect()),
            ..Secret::default()
        }
    }

    #[test]
    fn a_generation_rises_whatever_the_clock_does() {
        assert_eq!(next(0, 1000), 1000);
        assert_eq!(next(1000, 1000), 1001);
        assert_eq!(next(5000, 1000), 5001, "the clock went back");
    }

    #[test]
    fn a_wish_is_read_or_refused_with_its_place() {
        let own = ["https://192.168.77.10:6443".parse().unwrap()];
        let (uri, credential) = (format!("http://d:80/v1/clusters/{ID}"), "secret-word");
        let (uri_key, credential_key) = (format!("{ID}.uri"), format!("{ID}.credential"));
        let good = secret(&[(&uri_key, &uri), (&credential_key, credential)]);
        let read = wish(&good, &own, &[]).unwrap();
        assert_eq!(
            (read.registrations[0].0.to_string(), read.endpoints),
            (uri.clone(), own.to_vec())
        );
        let moved = secret(&[
            (&uri_key, &uri),
            (&credential_key, credential),
            ("endpoints", "https://a:1, https://b:2"),
        ]);
        assert_eq!(wish(&moved, &own, &[]).unwrap().endpoints.len(), 2);
        for (bad, words) in [
            (secret(&[(&uri_key, &uri)]), "no credential"),
            (
                secret(&[(&uri_key, "d"), (&credential_key, credential)]),
                ".uri",
            ),
            (
                secret(&[
                    (&uri_key, &uri),
                    (&credential_key, credential),
                    ("endpoints", "http://a:1"),
                ]),
                "endpoints",
            ),
        ] {
            let error = wish(&bad, &own, &[]).unwrap_err();
            assert!(
                error.contains(words)
                    && error.contains("kube-system")
                    && !error.contains(credential),
                "{error}"
            );
        }
        assert!(wish(&good, &[], &[]).is_err(), "nowhere to send machines");
    }

    #[test]
    fn masters_are_named_before_they_are_numbered() {
        let names = ["127.0.0.1", "localhost", "api.example", "192.168.77.10"]
            .map(|host| host.parse().unwrap());
        let all = endpoints(&names, &["192.168.77.10:6443".parse().unwrap()], 6443);
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(
            all,
            ["https://api.example:6443", "https://192.168.77.10:6443"]
        );
    }
}
