//! What a metrics reading covers: the node's pods, their running containers, and the control groups
//! of both.

use crate::qos;
use agent_runtime::{Container as Seen, ContainerState, Error};
use config_kube::k8s_openapi::api::core::v1::Pod;
use jiff::Timestamp;
use nix::sys::statvfs::Statvfs;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The file system with the pods' data: bytes, and inodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Disk {
    /// Its size.
    pub size: u64,
    /// What is free of it.
    pub free: u64,
    /// Its inodes.
    pub inodes: u64,
    /// Those that are free.
    pub free_inodes: u64,
}

impl Disk {
    /// The file system of an open folder; all zero if the system call fails.
    pub(crate) fn of(folder: BorrowedFd<'_>) -> Self {
        nix::sys::statvfs::fstatvfs(folder).map_or(Self::default(), Self::from)
    }
}

impl From<Statvfs> for Disk {
    fn from(stat: Statvfs) -> Self {
        Self {
            size: stat.blocks() * stat.fragment_size(),
            free: stat.blocks_available() * stat.fragment_size(),
            inodes: stat.files(),
            free_inodes: stat.files_available(),
        }
    }
}

/// How the node's ends of its pods' veth pairs are named.
#[derive(Debug, Clone, Copy)]
pub struct Links {
    /// Their common prefix.
    pub prefix: &'static str,
    /// The name for the pod with a UID.
    pub name: fn(&str) -> String,
}

/// The pods and containers that a reading covers.
#[derive(Debug, Default)]
pub struct Subjects {
    pub(crate) pods: Vec<PodSubject>,
    pub(crate) links_of_pods: &'static str,
    pub(crate) disk: Disk,
    /// containerd did not answer, so that no container is listed.
    pub(crate) incomplete: bool,
}

#[derive(Debug)]
pub(crate) struct PodSubject {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) group: String,
    /// The node's end of its link, where it has one.
    pub(crate) link: String,
    pub(crate) started: Option<Timestamp>,
    pub(crate) containers: Vec<ContainerSubject>,
}

#[derive(Debug)]
pub(crate) struct ContainerSubject {
    pub(crate) name: String,
    /// As the pod names it.
    pub(crate) image: String,
    pub(crate) group: String,
    pub(crate) started: Timestamp,
}

impl Subjects {
    /// The pods that have not ended, and the running containers among those of the engine.
    #[must_use]
    pub fn new(
        pods: &[Arc<Pod>],
        seen: Result<Vec<Seen>, Error>,
        links: Links,
        disk: Disk,
    ) -> Self {
        let incomplete = seen.is_err();
        if let Err(error) = &seen {
            tracing::debug!(error = %error.chain(), "cannot list containers for metrics");
        }
        let mut by_pod: BTreeMap<String, Vec<Seen>> = BTreeMap::new();
        for one in seen.unwrap_or_default() {
            by_pod.entry(one.key.pod.uid.clone()).or_default().push(one);
        }
        let mut all: Vec<PodSubject> = pods
            .iter()
            .filter_map(|pod| subject(pod, links, &mut by_pod))
            .collect();
        all.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        Self {
            pods: all,
            links_of_pods: links.prefix,
            disk,
            incomplete,
        }
    }
}

fn subject(
    pod: &Pod,
    links: Links,
    by_pod: &mut BTreeMap<String, Vec<Seen>>,
) -> Option<PodSubject> {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let uid = pod.metadata.uid.clone()?;
    let group = qos::cgroup(pod, &uid);
    let started = status
        .and_then(|status| status.start_time.as_ref())
        .or(pod.metadata.creation_timestamp.as_ref());
    Some(PodSubject {
        namespace: pod.metadata.namespace.clone()?,
        name: pod.metadata.name.clone()?,
        started: started.map(|time| time.0),
        link: (links.name)(&uid),
        containers: containers(&group, by_pod.remove(&uid).unwrap_or_default()),
        group,
        uid,
    })
}

/// The newest running attempt of each container. Its control group lies below the pod's, named by
/// its id in containerd.
fn containers(group: &str, seen: Vec<Seen>) -> Vec<ContainerSubject> {
    let mut newest: BTreeMap<String, (u32, ContainerSubject)> = BTreeMap::new();
    for one in seen.into_iter().filter(|one| one.this_boot) {
        let ContainerState::Running { started_at } = one.state else {
            continue;
        };
        let attempt = one.key.attempt;
        let name = one.key.container;
        if newest.get(&name).is_some_and(|(known, _)| *known > attempt) {
            continue;
        }
        let subject = ContainerSubject {
            group: format!("{group}/{}", one.id),
            started: started_at,
            image: one.image,
            name: name.clone(),
        };
        newest.insert(name, (attempt, subject));
    }
    newest.into_values().map(|(_, subject)| subject).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_runtime::{ErrorClass, PodRef};
    use serde_json::json;
    use tests_support::containers::container;

    fn pod(name: &str, phase: &str) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"namespace": "default", "name": name, "uid": format!("uid-{name}")},
            "spec": {"containers": [{"name": "main"}]},
            "status": {"phase": phase, "startTime": "2026-01-01T00:00:00Z"},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn seen(pod: &str, attempt: u32, state: ContainerState) -> Seen {
        let pod = PodRef {
            namespace: "default".into(),
            name: pod.into(),
            uid: format!("uid-{pod}"),
        };
        let mut seen = container(pod, "main", state);
        seen.id = format!("{}-{attempt}", seen.key.pod.name);
        seen.key.attempt = attempt;
        seen
    }

    fn links() -> Links {
        Links {
            prefix: "pod-",
            name: |uid| format!("pod-{uid}"),
        }
    }

    fn running() -> ContainerState {
        ContainerState::Running {
            started_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn running_pods_and_their_running_containers_have_figures() {
        let before = Seen {
            round: 0,
            this_boot: false,
            stop_signal: None,
            needs: None,
            ..seen("b", 3, running())
        };
        let found = Subjects::new(
            &[pod("b", "Running"), pod("a", "Pending"), pod("c", "Failed")],
            Ok(vec![
                seen("b", 1, running()),
                seen("b", 0, ContainerState::Created),
                seen("c", 0, running()),
                before,
            ]),
            links(),
            Disk::default(),
        );
        let names: Vec<&str> = found.pods.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let [only] = found.pods[1].containers.as_slice() else {
            unreachable!("one container runs");
        };
        assert_eq!(only.group, "/kubepods/besteffort/poduid-b/b-1");
        assert_eq!(found.pods[1].link, "pod-uid-b");
        assert!(found.pods[0].containers.is_empty() && !found.incomplete);
    }

    #[test]
    fn an_engine_that_does_not_answer_leaves_pods_without_containers() {
        let error = Error::new(ErrorClass::Unavailable, "no engine");
        let found = Subjects::new(&[pod("a", "Running")], Err(error), links(), Disk::default());
        assert!(found.incomplete);
        assert_eq!(found.pods.len(), 1);
    }
}
