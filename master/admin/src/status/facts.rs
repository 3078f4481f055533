//! The facts about a machine from the API: each part, or why it is missing.

use crate::error::{Error, Result};
use crate::kubeconfig::Api;
use config_kube::identity::NODE_LEASE_NAMESPACE;
use config_kube::k8s_openapi::api::coordination::v1::Lease;
use config_kube::k8s_openapi::api::core::v1::{Event, Node, Pod};
use config_kube::{FromJson, ImageRelease, Machine, NodeAttestation};
use http::Method;
use serde::Deserialize;
use serde_json::Value;

/// The project's kinds.
const API_PATH: &str = "/apis/pratique.dev/v1alpha1";
/// Objects in one answer, so that it stays within the 4 MiB that are read, and answers of one list.
const PAGE_SIZE: usize = 100;
const MAX_PAGES: usize = 50;

/// The requested part, or why it is missing.
#[derive(Debug)]
pub(super) enum Part<T> {
    Got(T),
    Missing(String),
}

impl<T> Part<T> {
    /// The requested part, if it exists.
    pub(super) fn got(&self) -> Option<&T> {
        match self {
            Self::Got(got) => Some(got),
            Self::Missing(_) => None,
        }
    }
}

/// All parts of the page.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) name: String,
    pub(super) node: Part<Node>,
    pub(super) machine: Part<Machine>,
    /// The last record of an exchange.
    pub(super) attestation: Part<NodeAttestation>,
    pub(super) release: Part<ImageRelease>,
    pub(super) lease: Part<Lease>,
    pub(super) pods: Part<Vec<Pod>>,
    /// Warnings of the whole cluster.
    pub(super) warnings: Part<Vec<Event>>,
    pub(super) used: Part<Used>,
    /// Neither a Node nor a Machine of the name exists.
    pub(super) absent: bool,
}

/// A node's reported usage (the shown parts of upstream's `stats/summary`).
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Used {
    pub(super) node: UsedByNode,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct UsedByNode {
    pub(super) cpu: UsedCpu,
    pub(super) memory: UsedMemory,
    pub(super) fs: UsedDisk,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct UsedCpu {
    pub(super) usage_nano_cores: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct UsedMemory {
    pub(super) working_set_bytes: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct UsedDisk {
    pub(super) used_bytes: Option<u64>,
}

impl Facts {
    /// Whether nothing of this name exists.
    pub(super) fn is_unknown(&self) -> bool {
        self.absent
    }
}

/// Requests all parts; fails only if the API itself can't be reached.
pub(super) async fn gather(api: &mut Api, name: &str) -> Result<Facts> {
    let node = one(api, &format!("/api/v1/nodes/{name}")).await?;
    let machine = machine(api, name).await?;
    let absent = matches!((&node, &machine), (Found::Nothing, Found::Nothing));
    let node: Part<Node> = node.or("there is no Node of this name: the machine has not joined");
    let machine: Part<Machine> =
        machine.or("there is no Machine whose Node this is: nothing is proven about it");
    let own = machine.got().and_then(|own| own.metadata.name.as_deref());
    let attestation = match own {
        Some(own) => last_attestation(api, own).await?,
        None => Part::Missing("the Machine is not known".to_owned()),
    };
    let image = machine
        .got()
        .and_then(|machine| machine.status.as_ref()?.image.as_ref());
    let release = match image {
        Some(image) => one(api, &format!("{API_PATH}/imagereleases/{}", image.id))
            .await?
            .or("the release is gone: its images are not admitted any more"),
        None if machine.got().is_none() => Part::Missing("the Machine is not known".to_owned()),
        None => Part::Missing("no image is proven".to_owned()),
    };
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{NODE_LEASE_NAMESPACE}/leases");
    let lease = one(api, &format!("{lease}/{name}")).await?;
    let pods = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{name}");
    let pods = list(api, &pods).await?;
    let warnings = list(api, "/api/v1/events?fieldSelector=type%3DWarning").await?;
    // Last: a node that does not answer takes the whole time limit.
    let used = ask(api, &format!("/api/v1/nodes/{name}/proxy/stats/summary")).await?;
    let used: Found<Used> = used.and_then(|tree| understood(serde_json::from_value(tree)));
    Ok(Facts {
        name: name.to_owned(),
        node,
        machine,
        attestation,
        release,
        lease: lease.or("the node has never renewed one"),
        pods: pods.or("the API has no pods"),
        warnings: warnings.or("the API has no events"),
        used: used.or("the node does not tell it"),
        absent,
    })
}

/// The result of a request.
enum Found<T> {
    Here(T),
    Nothing,
    Hidden(String),
}

impl<T> Found<T> {
    fn and_then<U>(self, then: impl FnOnce(T) -> Found<U>) -> Found<U> {
        match self {
            Self::Here(here) => then(here),
            Self::Nothing => Found::Nothing,
            Self::Hidden(why) => Found::Hidden(why),
        }
    }

    /// As a part of the page; `nothing` explains a missing object.
    fn or(self, nothing: &str) -> Part<T> {
        match self {
            Self::Here(here) => Part::Got(here),
            Self::Nothing => Part::Missing(nothing.to_owned()),
            Self::Hidden(why) => Part::Missing(why),
        }
    }
}

/// One object.
async fn one<T: FromJson>(api: &mut Api, path: &str) -> Result<Found<T>> {
    let answer = ask(api, path).await?;
    Ok(answer.and_then(|tree| understood(T::from_tree(&tree))))
}

/// What the API answers.
async fn ask(api: &mut Api, path: &str) -> Result<Found<Value>> {
    match api.call(Method::GET, path, None).await {
        Ok(Some(value)) => Ok(Found::Here(value)),
        Ok(None) => Ok(Found::Nothing),
        Err(Error::Refused {
            status, message, ..
        }) => Ok(Found::Hidden(why(status, &message))),
        Err(Error::Answer { why, .. }) => Ok(Found::Hidden(why)),
        Err(error) => Err(error),
    }
}

fn understood<T>(read: serde_json::Result<T>) -> Found<T> {
    read.map_or_else(
        |error| Found::Hidden(format!("the answer is not understood: {error}")),
        Found::Here,
    )
}

/// A cause, with what helps.
fn why(status: u16, message: &str) -> String {
    match status {
        401 => "who asks is not known: renew the kubeconfig with `pratique root trust`".to_owned(),
        403 => format!("no right to see it: {message}"),
        502..=504 => format!("the node does not answer: {message}"),
        _ => format!("{message} ({status})"),
    }
}

/// The objects of a list, page by page.
async fn list<T: FromJson>(api: &mut Api, path: &str) -> Result<Found<Vec<T>>> {
    let (mut all, mut next) = (Vec::new(), String::new());
    let sign = if path.contains('?') { '&' } else { '?' };
    for _ in 0..MAX_PAGES {
        let page = format!("{path}{sign}limit={PAGE_SIZE}&continue={next}");
        match ask(api, &page).await? {
            Found::Here(list) => {
                let items = list.get("items").and_then(Value::as_array);
                let items = items.into_iter().flatten().map(T::from_tree).collect();
                match understood::<Vec<T>>(items) {
                    Found::Here(items) => all.extend(items),
                    other @ (Found::Nothing | Found::Hidden(_)) => return Ok(other),
                }
                let token = list.pointer("/metadata/continue").and_then(Value::as_str);
                match token.filter(|token| !token.is_empty()) {
                    Some(token) => next = crate::plain::escaped(token),
                    None => return Ok(Found::Here(all)),
                }
            }
            Found::Nothing => return Ok(Found::Nothing),
            Found::Hidden(why) => return Ok(Found::Hidden(why)),
        }
    }
    Ok(Found::Hidden(format!(
        "there are more than {}: ask kubectl",
        PAGE_SIZE * MAX_PAGES
    )))
}

/// The Machine whose Node this is; it mostly has the same name.
async fn machine(api: &mut Api, node: &str) -> Result<Found<Machine>> {
    let same = one::<Machine>(api, &format!("{API_PATH}/machines/{node}")).await?;
    match same {
        Found::Here(machine) if machine.node_name() == node => Ok(Found::Here(machine)),
        Found::Hidden(why) => Ok(Found::Hidden(why)),
        Found::Here(_) | Found::Nothing => Ok(
            match list::<Machine>(api, &format!("{API_PATH}/machines")).await? {
                Found::Here(all) => all
                    .into_iter()
                    .find(|machine| machine.node_name() == node)
                    .map_or(Found::Nothing, Found::Here),
                Found::Nothing => Found::Nothing,
                Found::Hidden(why) => Found::Hidden(why),
            },
        ),
    }
}

/// The last record of an exchange with a Machine.
async fn last_attestation(api: &mut Api, machine: &str) -> Result<Part<NodeAttestation>> {
    let path = format!("{API_PATH}/nodeattestations?fieldSelector=status.machine%3D{machine}");
    let all = list::<NodeAttestation>(api, &path).await?;
    let last = |all: Vec<NodeAttestation>| {
        let time = |one: &NodeAttestation| {
            let status = one.status.as_ref();
            status.and_then(|status| status.time.parse::<jiff::Timestamp>().ok())
        };
        all.into_iter().max_by_key(time)
    };
    Ok(match all {
        Found::Here(all) => last(all).map_or(Found::Nothing, Found::Here),
        Found::Nothing => Found::Nothing,
        Found::Hidden(why) => Found::Hidden(why),
    }
    .or("none is kept: records live for a day"))
}
