//! `pratique node drain`: cordon, then evictions until no pod is left that must leave.
//!
//! Each round lists the node's pods and asks for the eviction of those that are not ending yet. An
//! eviction that a budget refuses for now (429) is repeated in the next round, until the time is
//! over; then the remaining pods are named with the reason. [`plan`] decides (pure).

use super::{Access, cordon};
use crate::error::{Error, Result};
use crate::files::tell;
use crate::kubeconfig::Api;
use crate::plain::escaped;
use config_kube::FromJson as _;
use config_kube::k8s_openapi::api::core::v1::Pod;
use http::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

/// Between two rounds (kubectl waits five seconds after a budget's refusal).
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Pods in one answer, so that it stays within the 4 MiB that are read.
const PAGE_SIZE: usize = 100;
/// Answers of one list: no node has more pods.
const MAX_PAGES: usize = 50;
/// Annotation of a pod that the node itself has from its configuration.
const MIRROR: &str = "kubernetes.io/config.mirror";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Pods of DaemonSets stay, as they would come back at once. A pod that no controller makes anew is not evicted without --force, and \
one with an emptyDir not without --delete-emptydir-data; nothing is evicted then.

Rights: `patch` and `get` on `nodes`, `list` on `pods`, `create` on `pods/eviction`.")]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    access: Access,
    /// Also evict pods that no controller recreates.
    #[arg(long)]
    force: bool,
    /// Evict pods, too, whose emptyDir volumes are lost thereby.
    #[arg(long)]
    delete_emptydir_data: bool,
    /// Seconds that each pod gets to end, in place of its own.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    grace_period: Option<u32>,
    /// Seconds after which the drain is given up; the node stays cordoned.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    timeout: u32,
}

/// A pod by its namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PodName {
    namespace: String,
    name: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The plan for the pods of a node.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// Pods to evict now.
    evict: Vec<PodName>,
    /// Pods that are terminating already.
    ending: Vec<PodName>,
    /// Pods of DaemonSets, which stay.
    daemons: usize,
    /// Pods that are evicted only with a flag, and the flag.
    refused: Vec<String>,
}

impl Plan {
    fn is_done(&self) -> bool {
        self.evict.is_empty() && self.ending.is_empty()
    }
}

/// Decides for each pod of a node (upstream's filters of `kubectl drain`).
fn plan(pods: &[Pod], force: bool, delete_emptydir: bool) -> Plan {
    let mut plan = Plan::default();
    for pod in pods {
        let meta = &pod.metadata;
        let name = PodName {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        };
        let mirrored = meta.annotations.as_ref();
        if mirrored.is_some_and(|marks| marks.contains_key(MIRROR)) {
            continue;
        }
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let over = matches!(phase, Some("Succeeded" | "Failed"));
        let owners = meta.owner_references.iter().flatten();
        let owner = owners
            .filter(|owner| owner.controller == Some(true))
            .map(|owner| owner.kind.as_str())
            .next();
        if owner == Some("DaemonSet") && !over {
            plan.daemons += 1;
            continue;
        }
        if meta.deletion_timestamp.is_some() {
            plan.ending.push(name);
            continue;
        }
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
        let volatile = volumes
            .unwrap_or_default()
            .iter()
            .any(|volume| volume.empty_dir.is_some());
        if owner.is_none() && !over && !force {
            plan.refused
                .push(format!("{name}: no controller makes it anew (--force)"));
        } else if volatile && !over && !delete_emptydir {
            plan.refused.push(format!(
                "{name}: its emptyDir would be lost (--delete-emptydir-data)"
            ));
        } else {
            plan.evict.push(name);
        }
    }
    plan
}

/// Drains a node.
pub(super) async fn drain(args: &DrainArgs) -> Result<()> {
    let node = &args.access.node;
    let mut api = Api::open(&args.access.kubeconfig).await?;
    cordon(&mut api, node, true).await?;
    let end = Instant::now() + Duration::from_secs(args.timeout.into());
    let mut blocked = BTreeMap::new();
    let mut evicted = BTreeSet::new();
    let mut first = true;
    loop {
        let pods = pods_of(&mut api, node).await?;
        let plan = plan(&pods, args.force, args.delete_emptydir_data);
        if !plan.refused.is_empty() {
            return Err(Error::input(
                format!("node {node}"),
                format!(
                    "these pods are not evicted:\n    {}",
                    plan.refused.join("\n    ")
                ),
                "give these words, or move the pods yourself; the node stays cordoned",
            ));
        }
        if first && plan.daemons > 0 {
            tell(&format!("{} pods of DaemonSets stay", plan.daemons));
        }
        first = false;
        blocked.clear();
        for pod in &plan.evict {
            match evict(&mut api, pod, args.grace_period).await? {
                None => {
                    if evicted.insert(pod.clone()) {
                        tell(&format!("evicting {pod}"));
                    }
                }
                Some(why) => drop(blocked.insert(pod.clone(), why)),
            }
        }
        if plan.is_done() {
            tell(&format!("node {node} is drained"));
            return Ok(());
        }
        if Instant::now() >= end {
            let left = plan.evict.iter().chain(&plan.ending);
            return Err(late(node, left, &blocked));
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// The error when the time is over.
fn late<'a>(
    node: &str,
    left: impl Iterator<Item = &'a PodName>,
    blocked: &BTreeMap<PodName, String>,
) -> Error {
    let lines: Vec<String> = left
        .map(|pod| {
            let why = blocked.get(pod);
            let why = why.map_or("has not ended yet", String::as_str);
            format!("{pod}: {why}")
        })
        .collect();
    Error::input(
        format!("node {node}"),
        format!("the time is over; left are:\n    {}", lines.join("\n    ")),
        "look at the budgets (`kubectl get pdb -A`) and drain again; the node stays cordoned, `pratique node uncordon` ends that",
    )
}

/// Asks for an eviction; returns the reason where it is not allowed now.
async fn evict(api: &mut Api, pod: &PodName, grace: Option<u32>) -> Result<Option<String>> {
    let PodName { namespace, name } = pod;
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name},
        "deleteOptions": {"gracePeriodSeconds": grace},
    });
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction");
    match api.call(Method::POST, &path, Some(&eviction)).await {
        // A pod that is gone needs no eviction.
        Ok(Some(_) | None) => Ok(None),
        // 429: a budget. 500: more than one budget, which upstream's kubectl tries again, too.
        Err(Error::Refused {
            status: 429 | 500,
            message,
            ..
        }) => Ok(Some(message)),
        // The namespace is being deleted with its pods.
        Err(Error::Refused {
            status: 403,
            message,
            ..
        }) if message.contains("being terminated") => Ok(Some(message)),
        Err(error) => Err(error),
    }
}

/// The pods of a node.
async fn pods_of(api: &mut Api, node: &str) -> Result<Vec<Pod>> {
    let (mut all, mut next) = (Vec::new(), String::new());
    for _ in 0..MAX_PAGES {
        let path = format!(
            "/api/v1/pods?fieldSelector=spec.nodeName%3D{node}&limit={PAGE_SIZE}&continue={}",
            escaped(&next)
        );
        let list = api.must(Method::GET, &path, None).await?;
        let token = list.pointer("/metadata/continue").and_then(Value::as_str);
        token.unwrap_or_default().clone_into(&mut next);
        let items = list.get("items").and_then(Value::as_array);
        let items = items.into_iter().flatten().map(Pod::from_tree);
        let read: std::result::Result<Vec<Pod>, _> = items.collect();
        all.extend(read.map_err(|error| Error::Answer {
            what: path,
            why: error.to_string(),
        })?);
        if next.is_empty() {
            return Ok(all);
        }
    }
    let why = format!("there are more than {} pods on it", PAGE_SIZE * MAX_PAGES);
    Err(Error::input(
        format!("node {node}"),
        why,
        "drain it with kubectl",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, owner: &str, more: &Value) -> Pod {
        let owners = if owner.is_empty() {
            json!([])
        } else {
            json!([{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "u", "controller": true}])
        };
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "a", "ownerReferences": owners},
            "spec": {"containers": []},
            "status": {"phase": "Running"},
        });
        for (place, value) in more.as_object().unwrap() {
            *pod.pointer_mut(place).unwrap() = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    fn names(all: &[PodName]) -> Vec<&str> {
        all.iter().map(|pod| pod.name.as_str()).collect()
    }

    #[test]
    fn daemons_and_mirrors_stay_and_losing_data_needs_a_flag() {
        let scratch =
            json!({"/spec": {"containers": [], "volumes": [{"name": "v", "emptyDir": {}}]}});
        let mut ending = pod("ending", "ReplicaSet", &json!({}));
        ending.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-11-24T00:00:00Z")).unwrap();
        let mut mirror = pod("mirror", "", &json!({}));
        mirror.metadata.annotations = Some([(MIRROR.to_owned(), "x".to_owned())].into());
        let all = vec![
            pod("plain", "ReplicaSet", &json!({})),
            pod("daemon", "DaemonSet", &json!({})),
            pod("bare", "", &json!({})),
            pod("done", "", &json!({"/status": {"phase": "Succeeded"}})),
            pod("scratch", "StatefulSet", &scratch),
            ending,
            mirror,
        ];
        let careful = plan(&all, false, false);
        assert_eq!(names(&careful.evict), ["plain", "done"]);
        assert_eq!(names(&careful.ending), ["ending"]);
        assert_eq!(careful.daemons, 1);
        assert!(
            careful.refused[0].starts_with("a/bare: ") && careful.refused[0].contains("--force")
        );
        assert!(careful.refused[1].contains("a/scratch: its emptyDir"));
        assert_eq!(careful.refused.len(), 2);
        let bold = plan(&all, true, true);
        assert_eq!(names(&bold.evict), ["plain", "bare", "done", "scratch"]);
        assert!(bold.refused.is_empty() && !bold.is_done());
        assert!(plan(&all[1..2], false, false).is_done());
    }

    #[test]
    fn remaining_pods_are_named_with_their_reason() {
        let left = ["x", "y"].map(|name| PodName {
            namespace: "a".to_owned(),
            name: name.to_owned(),
        });
        let why = "Cannot evict pod as it would violate the pod's disruption budget.";
        let blocked = BTreeMap::from([(left[0].clone(), why.to_owned())]);
        let shown = late("n", left.iter(), &blocked).to_string();
        assert!(
            shown.contains(why) && shown.contains("a/y: has not ended yet"),
            "{shown}"
        );
    }
}
