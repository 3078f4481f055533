//! Publishes the signed addresses of this cluster's masters at the discovery endpoints that the
//! admin configured.
//!
//! The Secret that `pratique discovery create` writes says what to publish; the public ConfigMap
//! records what was published (`config_kube::discovery`).

use config_discovery::{Document, pin_of};
use config_errors::chain;
use config_kube::discovery as names;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_model::discovery::DiscoveryUri;
use config_model::format::{Endpoint, Pin};
use jiff::Timestamp;
use master_client::{ApiError, Delta, Key, Scope, Store, View};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::options::Discovery;
use master_control::setup::Setup;
use master_control::writer::Writer;
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For how long a document is valid: machines that boot while the master is away for a week still
/// find it.
const DOCUMENT_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// How far before the moment of signing a document begins, in seconds: clocks differ.
const BACKDATE: u64 = 60;
/// First wait after a publication that failed.
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// Longest wait after publications that failed.
const MAX_RETRY: Duration = Duration::from_secs(300);
/// Most endpoints and registrations, as of the document.
const MAX_ENTRIES: usize = config_discovery::MAX_LIST;

/// The endpoints at which to publish the cluster, and the settings.
#[derive(Clone, Default, PartialEq)]
pub struct Target {
    /// Address and credential.
    registrations: Vec<(DiscoveryUri, String)>,
    endpoints: Vec<Endpoint>,
    /// Pins of the cluster's roots.
    pins: Vec<Pin>,
}

impl Debug for Target {
    /// Without the credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uris = self.registrations.iter().map(|(uri, _)| uri.to_string());
        f.debug_list().entries(uris).finish_non_exhaustive()
    }
}

/// The data of the Secret.
#[derive(PartialEq)]
pub struct Registrations(BTreeMap<String, String>);

impl Debug for Registrations {
    /// Without the credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// Both objects have one name, each in a namespace of its own.
fn scope(namespace: &'static str) -> Scope {
    Scope {
        namespace: Some(namespace),
        fields: Some(format!("metadata.name={}", names::NAME)),
    }
}

impl View for Registrations {
    type Object = Secret;

    fn scope() -> Scope {
        scope(names::SECRET_NAMESPACE)
    }

    fn read(secret: Secret) -> Self {
        let data = secret.data.into_iter().flatten();
        let text = |value: Vec<u8>| String::from_utf8_lossy(&value).into_owned();
        Self(data.map(|(key, value)| (key, text(value.0))).collect())
    }
}

/// The published document, as the ConfigMap records it.
#[derive(Debug, PartialEq)]
pub struct Published(BTreeMap<String, String>);

impl View for Published {
    type Object = ConfigMap;

    fn scope() -> Scope {
        scope(names::PUBLIC_NAMESPACE)
    }

    fn read(map: ConfigMap) -> Self {
        Self(map.data.unwrap_or_default())
    }
}

/// How the last publication ended.
#[derive(Debug, Clone)]
pub enum LastPublication {
    /// It is valid for long enough until then.
    Done(Target, Timestamp),
    /// It failed; the next attempt is then, after this wait.
    Failed(Target, Instant, Duration),
}

/// The controller. It has one key. Without [`Discovery`] it does nothing.
#[derive(Debug)]
pub struct DiscoveryPublisher {
    discovery: Option<Discovery>,
    wanted: Store<Registrations>,
    published: Store<Published>,
    last: Mutex<Option<LastPublication>>,
}

/// What to publish, and the result of the last attempt.
#[derive(Debug)]
pub struct Facts {
    wanted: Result<Target, String>,
    last: Option<LastPublication>,
    /// Whether the ConfigMap is there.
    written: bool,
}

/// The cluster is published, or the ConfigMap says why not.
#[derive(Debug, PartialEq)]
pub struct Action(Result<Target, String>);

impl Controller for DiscoveryPublisher {
    const NAME: &'static str = "discovery-publisher";
    const RIGHTS: &'static [Right] = &[
        right("", "secrets", &["list", "watch"]).named(&[names::NAME]),
        right("", "configmaps", &["create"]),
        right("", "configmaps", &["get", "list", "watch", "update"]).named(&[names::NAME]),
    ];
    type Facts = Facts;
    type Action = Action;

    fn new(setup: &mut Setup<'_>) -> Self {
        setup.always([key()]);
        if let Some(roots) = setup.options().root_ca.clone() {
            setup.watch(roots, || vec![key()]);
        }
        Self {
            wanted: setup.follow(|_: &Delta<Registrations>, keys| keys.push(key())),
            published: setup.follow(|_: &Delta<Published>, keys| keys.push(key())),
            discovery: setup.options().discovery.clone(),
            last: Mutex::default(),
        }
    }

    fn facts(&self, _: &Key, _: Now) -> Option<Facts> {
        let discovery = self.discovery.as_ref()?;
        let secret = Key::new(names::SECRET_NAMESPACE, names::NAME);
        let pins = discovery.authority.pins();
        let pins: Vec<Pin> = pins.iter().filter_map(|pin| pin.parse().ok()).collect();
        let wanted = self.wanted.get(&secret);
        let wanted = wanted.map_or_else(
            || Ok(Target::default()),
            |wanted| target(&wanted, &discovery.endpoints, &pins),
        );
        Some(Facts {
            wanted,
            last: self.last().clone(),
            written: self.published.get(&key()).is_some(),
        })
    }

    fn plan(facts: &Facts, now: Now) -> Plan<Action> {
        let none = Target::default();
        let wanted = facts.wanted.as_ref().unwrap_or(&none);
        match &facts.last {
            Some(LastPublication::Failed(target, at, _))
                if target == wanted && now.instant < *at =>
            {
                return Plan::wait(at.saturating_duration_since(now.instant));
            }
            Some(LastPublication::Done(target, _))
                if target == wanted && facts.written && is_unused(wanted) =>
            {
                return Plan::nothing();
            }
            Some(LastPublication::Done(target, until)) if target == wanted && facts.written => {
                if let Some(left) = now.until(*until) {
                    return Plan::wait(left);
                }
            }
            Some(_) | None => {}
        }
        let mut plan = Plan::act(Action(facts.wanted.clone()));
        // The result decides when to publish again.
        plan.requeue_in(FIRST_RETRY);
        plan
    }

    async fn carry_out(&self, action: Action, writer: &Writer) -> Result<(), ApiError> {
        let Some(discovery) = &self.discovery else {
            return Ok(());
        };
        let client = writer.client();
        let map = client
            .get_opt::<ConfigMap>(Some(names::PUBLIC_NAMESPACE), names::NAME)
            .await?;
        let data = map.as_ref().and_then(|map| map.data.clone());
        let mut data = data.unwrap_or_default();
        let target = action.0.clone().unwrap_or_default();
        let outcome = match action.0 {
            Err(fault) => Err(fault),
            Ok(target) => publish(discovery, &target, &mut data, writer.now().wall).await,
        };
        let status = match &outcome {
            Ok(()) if is_unused(&target) => "unused".to_owned(),
            Ok(()) => "published".to_owned(),
            Err(why) => format!("failed: {why}"),
        };
        data.insert(names::STATUS.to_owned(), status);
        write(writer, map, data).await?;
        self.remember(target, outcome, writer.now().wall);
        Ok(())
    }
}

impl DiscoveryPublisher {
    fn last(&self) -> MutexGuard<'_, Option<LastPublication>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how a publication ended that was planned then.
    fn remember(&self, target: Target, outcome: Result<(), String>, planned: Timestamp) {
        let mut last = self.last();
        *last = Some(match outcome {
            Ok(()) => LastPublication::Done(target, planned + DOCUMENT_LIFETIME / 2),
            Err(error) => {
                let wait = match &*last {
                    Some(LastPublication::Failed(failed, _, wait)) if *failed == target => {
                        *wait * 2
                    }
                    Some(_) | None => FIRST_RETRY,
                };
                let wait = wait.min(MAX_RETRY);
                tracing::warn!(
                    error,
                    again_in = wait.as_secs(),
                    "discovery: cannot publish the master's endpoints; trying again"
                );
                // From its end, as an attempt may take longer than the wait.
                LastPublication::Failed(target, Instant::now() + wait, wait)
            }
        });
    }
}

/// The one key: the ConfigMap's.
fn key() -> Key {
    Key::new(names::PUBLIC_NAMESPACE, names::NAME)
}

fn is_unused(target: &Target) -> bool {
    target.registrations.is_empty()
}

/// Signs one generation and sets it everywhere; `data` is what is known of it. What was set stays
/// set where a part fails.
async fn publish(
    discovery: &Discovery,
    target: &Target,
    data: &mut BTreeMap<String, String>,
    now: Timestamp,
) -> Result<(), String> {
    let authority = Arc::clone(&discovery.authority);
    let spki = blocking(move || authority.discovery_spki()).await?;
    let public_key = master_ca::pem("PUBLIC KEY", &spki);
    data.insert(names::PUBLIC_KEY.to_owned(), public_key);
    data.insert(names::PIN.to_owned(), pin_of(&spki).to_string());
    data.remove(names::URIS);
    if is_unused(target) {
        return Ok(());
    }
    let now = u64::try_from(now.as_second()).unwrap_or_default();
    let last = data.get(names::GENERATION);
    let last = last.and_then(|text| text.parse().ok()).unwrap_or(0);
    let generation = next(last, now);
    // Recorded also where the publication fails, so that the next attempt takes a higher one.
    data.insert(names::GENERATION.to_owned(), generation.to_string());
    let (mut set, mut faults) = (Vec::new(), Vec::new());
    for (uri, credential) in &target.registrations {
        let document = Document {
            cluster: uri.cluster.clone(),
            generation,
            issued: now.saturating_sub(BACKDATE),
            expires: now + DOCUMENT_LIFETIME.as_secs(),
            endpoints: target.endpoints.clone(),
            ca_pins: target.pins.clone(),
        };
        let authority = Arc::clone(&discovery.authority);
        let signed = blocking(move || authority.sign_discovery(&document)).await?;
        match discovery.publish.set(uri, credential, signed).await {
            Ok(()) => set.push(uri.to_string()),
            Err(error) => faults.push(format!("{uri}: {error}")),
        }
    }
    if !set.is_empty() {
        tracing::info!(
            generation,
            address = set.join(" "),
            "discovery: published the master's endpoints"
        );
        let end = i64::try_from(now + DOCUMENT_LIFETIME.as_secs()).ok();
        let end = end.and_then(|end| Timestamp::from_second(end).ok());
        data.insert(
            names::EXPIRES.to_owned(),
            end.map(|end| end.to_string()).unwrap_or_default(),
        );
        data.insert(names::URIS.to_owned(), set.join("\n"));
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults.join("; "))
    }
}

async fn write(
    writer: &Writer,
    map: Option<ConfigMap>,
    data: BTreeMap<String, String>,
) -> Result<(), ApiError> {
    if let Some(map) = map {
        if map.data.as_ref() == Some(&data) {
            return Ok(());
        }
        let map = ConfigMap {
            data: Some(data),
            ..map
        };
        return writer.update(&map).await.map(drop);
    }
    let metadata = ObjectMeta {
        name: Some(names::NAME.to_owned()),
        namespace: Some(names::PUBLIC_NAMESPACE.to_owned()),
        ..ObjectMeta::default()
    };
    let map = ConfigMap {
        metadata,
        data: Some(data),
        ..ConfigMap::default()
    };
    writer.create(&map).await.map(drop)
}

/// A generation above the last one. By the time, so that it also rises where what was written last
/// is lost with its disk.
fn next(last: u64, now: u64) -> u64 {
    now.max(last.saturating_add(1))
}

/// The target in the Secret.
fn target(secret: &Registrations, own: &[Endpoint], pins: &[Pin]) -> Result<Target, String> {
    let data = &secret.0;
    let at = format!("Secret {}/{}", names::SECRET_NAMESPACE, names::NAME);
    let mut registrations = Vec::new();
    let ids = data
        .keys()
        .filter_map(|key| key.strip_suffix(names::URI_SUFFIX));
    for id in ids {
        let text = |suffix: &str| {
            data.get(&format!("{id}{suffix}"))
                .cloned()
                .unwrap_or_default()
        };
        let uri: DiscoveryUri = text(names::URI_SUFFIX)
            .trim()
            .parse()
            .map_err(|error| format!("{at}: {id}{}: {error}", names::URI_SUFFIX))?;
        let credential = text(names::CREDENTIAL_SUFFIX);
        // An error about a header's value would show it.
        if credential.is_empty() || !credential.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(format!(
                "{at}: {id}{}: found no credential",
                names::CREDENTIAL_SUFFIX
            ));
        }
        registrations.push((uri, credential));
    }
    let mut endpoints = own.to_vec();
    if let Some(list) = data
        .get(names::ENDPOINTS)
        .filter(|list| !list.trim().is_empty())
    {
        let parse = |text: &str| {
            text.trim()
                .parse()
                .map_err(|error| format!("{at}: {}: {error}", names::ENDPOINTS))
        };
        endpoints = list.split(',').map(parse).collect::<Result<_, _>>()?;
    }
    if registrations.len() > MAX_ENTRIES || endpoints.is_empty() || endpoints.len() > MAX_ENTRIES {
        return Err(format!(
            "{at}: found {} clusters and {} endpoints, expected 1 to {MAX_ENTRIES} of each",
            registrations.len(),
            endpoints.len()
        ));
    }
    Ok(Target {
        registrations,
        endpoints,
        pins: pins.to_vec(),
    })
}

/// Runs work that asks the keeper of the keys, which may be in the TPM.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> master_ca::Result<T> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome.map_err(|error| chain(&error)),
        Err(ended) => Err(ended.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn secret(entries: &[(&str, &str)]) -> Registrations {
        let entry = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Registrations(entries.iter().map(entry).collect())
    }

    fn good() -> Target {
        let uri = format!("http://d:80/v1/clusters/{ID}");
        let entries = [
            (format!("{ID}.uri"), uri),
            (format!("{ID}.credential"), "secret-word".to_owned()),
        ];
        let own = ["https://192.168.77.10:6443".parse().expect("an endpoint")];
        target(&Registrations(entries.into()), &own, &[]).expect("a good Secret")
    }

    #[test]
    fn a_generation_rises_whatever_the_clock_does() {
        assert_eq!(next(0, 1000), 1000);
        assert_eq!(next(1000, 1000), 1001);
        assert_eq!(next(5000, 1000), 5001, "the clock went back");
    }

    #[test]
    fn a_secret_is_read_or_refused_with_its_place() {
        let own = ["https://192.168.77.10:6443".parse().expect("an endpoint")];
        let (uri, credential) = (format!("http://d:80/v1/clusters/{ID}"), "secret-word");
        let (uri_key, credential_key) = (format!("{ID}.uri"), format!("{ID}.credential"));
        let read = good();
        assert_eq!(
            (read.registrations[0].0.to_string(), read.endpoints.clone()),
            (uri.clone(), own.to_vec())
        );
        assert!(!format!("{read:?}").contains(credential));
        let moved = secret(&[
            (&uri_key, &uri),
            (&credential_key, credential),
            ("endpoints", "https://a:1, https://b:2"),
        ]);
        let moved = target(&moved, &own, &[]).expect("a good Secret");
        assert_eq!(moved.endpoints.len(), 2);
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
            let error = target(&bad, &own, &[]).expect_err("a bad Secret");
            assert!(
                error.contains(words)
                    && error.contains("kube-system")
                    && !error.contains(credential),
                "{error}"
            );
        }
        let nowhere = secret(&[(&uri_key, &uri), (&credential_key, credential)]);
        assert!(
            target(&nowhere, &[], &[]).is_err(),
            "nowhere to send machines"
        );
    }

    fn plan(
        wanted: &Target,
        last: Option<LastPublication>,
        written: bool,
        now: Now,
    ) -> Plan<Action> {
        let facts = Facts {
            wanted: Ok(wanted.clone()),
            last,
            written,
        };
        DiscoveryPublisher::plan(&facts, now)
    }

    #[test]
    fn it_publishes_changed_half_expired_or_lost_documents_and_backs_off() {
        let (now, wanted, empty) = (Now::read(), good(), Target::default());
        let publishes = |plan: Plan<Action>| plan.actions.len() == 1;
        assert!(publishes(plan(&wanted, None, false, now)));
        let half = DOCUMENT_LIFETIME / 2;
        let ended = |target: &Target, until| Some(LastPublication::Done(target.clone(), until));
        let fresh = ended(&wanted, now.wall + half);
        assert_eq!(plan(&wanted, fresh.clone(), true, now).requeue, Some(half));
        assert!(
            publishes(plan(&empty, fresh.clone(), true, now)),
            "it is withdrawn"
        );
        assert!(
            publishes(plan(&wanted, fresh, false, now)),
            "the ConfigMap is lost"
        );
        let old = ended(&wanted, now.wall);
        assert!(
            publishes(plan(&wanted, old, true, now)),
            "half of its life is over"
        );
        let unused = ended(&empty, now.wall);
        assert_eq!(plan(&empty, unused, true, now), Plan::nothing());
        let failed = |at| Some(LastPublication::Failed(wanted.clone(), at, FIRST_RETRY));
        let soon = failed(now.instant + FIRST_RETRY);
        assert_eq!(
            plan(&wanted, soon.clone(), true, now),
            Plan::wait(FIRST_RETRY)
        );
        assert!(
            publishes(plan(&empty, soon, true, now)),
            "something else is wanted"
        );
        assert!(publishes(plan(&wanted, failed(now.instant), true, now)));
    }
}
