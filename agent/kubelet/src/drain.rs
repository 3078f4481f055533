//! The end of a machine: every container is asked to end, gets the grace of its pod, and is killed after it.
//!
//! Runs after the kubelet's own tasks have ended, so that nothing is started anew meanwhile. What the master knows of the pods
//! stays as it is: they come back with the machine, or go with its Node.

use crate::kubelet::Shared;
use crate::machine::{Action, DEFAULT_GRACE, Notes, grace, plan_orphan};
use agent_runtime::{Container, ContainerState, Error};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Between two looks at what still runs.
const PAUSE: Duration = Duration::from_millis(200);
/// After its grace a container is killed; what is not gone after this time hangs in the kernel.
const KILLED: Duration = Duration::from_secs(5);

/// Ends all containers of the node.
#[derive(Debug)]
pub struct Drain {
    shared: Arc<Shared>,
}

/// How an end of all containers went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drained {
    /// Containers that ran when it began.
    pub ran: usize,
    /// Of them, those that did not end in their grace and were killed.
    pub killed: usize,
    /// Containers that still run.
    pub left: usize,
}

impl Drain {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Asks every container to end, and kills those that do not end in the grace of their pod, at most `longest`. Returns
    /// when none is left, at the latest 5 seconds after the longest grace among them.
    pub async fn end_all(self, longest: Duration) -> Drained {
        let graces = self.graces();
        let begin = Instant::now();
        // From the monotonic clock: who sets the clock back does not make graces longer.
        let wall = Timestamp::now();
        let mut notes: HashMap<String, Notes> = HashMap::new();
        let mut drained = Drained::default();
        let (mut ran, mut killed) = (BTreeSet::new(), BTreeSet::new());
        let end = longest + KILLED;
        loop {
            let containers =
                match tokio::time::timeout(KILLED, self.shared.runtime.list(None)).await {
                    Ok(Ok(containers)) => Some(containers),
                    Ok(Err(error)) => {
                        tracing::warn!(reason = error.chain(), "containers not listed");
                        None
                    }
                    Err(_too_late) => None,
                };
            if let Some(containers) = containers {
                drained.left = running(&containers).count();
                ran.extend(running(&containers).map(|container| container.id.clone()));
                let now = crate::backoff::later(wall, begin.elapsed());
                let actions = plan(&containers, &graces, longest, &mut notes, now);
                killed.extend(actions.iter().filter_map(|action| match action {
                    Action::Kill { id } => Some(id.clone()),
                    Action::Start { .. }
                    | Action::Stop { .. }
                    | Action::Remove { .. }
                    | Action::Finish => None,
                }));
                (drained.ran, drained.killed) = (ran.len(), killed.len());
                if drained.left == 0 {
                    return drained;
                }
                self.act(actions).await;
            }
            if begin.elapsed() >= end {
                return drained;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The grace of each pod that is wanted here.
    fn graces(&self) -> HashMap<String, Duration> {
        let handles = self
            .shared
            .pods
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        handles
            .iter()
            .filter_map(|(uid, handle)| Some((uid.clone(), grace(&*handle.latest()?))))
            .collect()
    }

    /// Does all of it at the same time, so that no container waits for another's engine call; bounded in time.
    async fn act(&self, actions: Vec<Action>) {
        let mut calls = JoinSet::new();
        for action in actions {
            let runtime = self.shared.runtime.clone();
            calls.spawn(async move {
                let outcome = match &action {
                    Action::Stop { id } => runtime.stop(id).await,
                    Action::Kill { id } => runtime.kill(id).await,
                    Action::Start { .. } | Action::Remove { .. } | Action::Finish => Ok(()),
                };
                if let Err(error) = outcome {
                    tracing::warn!(reason = Error::chain(&error), ?action, "not done");
                }
            });
        }
        // What takes longer goes on in no task: the next look shows what came of it.
        drop(
            tokio::time::timeout(KILLED, async { while calls.join_next().await.is_some() {} })
                .await,
        );
    }
}

fn running(containers: &[Container]) -> impl Iterator<Item = &Container> {
    containers
        .iter()
        .filter(|container| matches!(container.state, ContainerState::Running { .. }))
}

/// What to do now; `notes` remember who was asked, and when.
fn plan(
    containers: &[Container],
    graces: &HashMap<String, Duration>,
    longest: Duration,
    notes: &mut HashMap<String, Notes>,
    now: Timestamp,
) -> Vec<Action> {
    let mut pods: BTreeMap<&str, Vec<Container>> = BTreeMap::new();
    for container in containers {
        pods.entry(&container.key.pod.uid)
            .or_default()
            .push(container.clone());
    }
    let mut actions = Vec::new();
    for (uid, seen) in pods {
        let notes = notes.entry(uid.to_owned()).or_default();
        let grace = graces
            .get(uid)
            .copied()
            .unwrap_or(DEFAULT_GRACE)
            .min(longest);
        for action in plan_orphan(&seen, notes, grace, now).actions {
            match &action {
                Action::Stop { id } => drop(notes.asked.insert(id.clone(), now)),
                Action::Kill { .. } => {}
                // Nothing is tidied up: the machine's next start does that.
                Action::Start { .. } | Action::Remove { .. } | Action::Finish => continue,
            }
            actions.push(action);
        }
    }
    actions
}

#[cfg(test)]
mod tests {
    use super::plan;
    use crate::machine::Action;
    use agent_runtime::{Container, ContainerKey, ContainerState, Kind, PodRef};
    use jiff::Timestamp;
    use std::collections::HashMap;
    use std::time::Duration;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn container(pod: &str, state: ContainerState) -> Container {
        let pod = PodRef {
            namespace: "default".to_owned(),
            name: pod.to_owned(),
            uid: pod.to_owned(),
        };
        Container {
            id: format!("{}-main", pod.uid),
            key: ContainerKey {
                pod,
                container: "main".to_owned(),
                kind: Kind::Main,
                attempt: 0,
            },
            image: String::new(),
            image_id: String::new(),
            state,
            backoff: None,
            this_boot: true,
        }
    }

    #[test]
    fn each_container_gets_its_pods_grace_and_no_more_than_the_longest() {
        let runs = || ContainerState::Running { started_at: at(0) };
        let seen = [
            container("patient", runs()),
            container("quick", runs()),
            container("stubborn", runs()),
        ];
        let grace = |seconds| Duration::from_secs(seconds);
        let graces = HashMap::from([
            ("quick".to_owned(), grace(1)),
            ("stubborn".to_owned(), grace(3600)),
        ]);
        let mut notes = HashMap::new();
        let mut look = |now| plan(&seen, &graces, grace(75), &mut notes, at(now));
        let stop = |pod: &str| Action::Stop {
            id: format!("{pod}-main"),
        };
        let kill = |pod: &str| Action::Kill {
            id: format!("{pod}-main"),
        };
        assert_eq!(
            look(100),
            [stop("patient"), stop("quick"), stop("stubborn")]
        );
        assert_eq!(look(100), [], "each is asked once");
        assert_eq!(look(101), [kill("quick")]);
        assert_eq!(
            look(130),
            [kill("patient"), kill("quick")],
            "a pod that says nothing has 30 seconds"
        );
        assert_eq!(look(174).len(), 2);
        assert!(
            look(175).contains(&kill("stubborn")),
            "no grace is longer than the machine's"
        );
    }
}
