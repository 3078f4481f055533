//! Stores a container's identity and end as labels in containerd, from which a later agent reads
//! them.

use crate::model::{ContainerKey, ContainerKind, PodRef, User};
use agent_images::SNAPSHOTTER;
use jiff::Timestamp;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

/// Upstream's label of the pod's uid; the one by which containers are listed.
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const CONTAINER: &str = "io.kubernetes.container.name";
const KIND: &str = "pratique.dev/kind";
const ATTEMPT: &str = "pratique.dev/attempt";
const IMAGE: &str = "pratique.dev/image";
const IMAGE_ID: &str = "pratique.dev/image-id";
const LOG: &str = "pratique.dev/log";
const BACKOFF: &str = "pratique.dev/backoff-seconds";
const ROUND: &str = "pratique.dev/round";
const BOOT: &str = "pratique.dev/boot-id";
const STOP_SIGNAL: &str = "pratique.dev/stop-signal";
const CREATED: &str = "pratique.dev/created-at";
pub(crate) const NEEDS: &str = "pratique.dev/needs";
pub(crate) const USER: &str = "pratique.dev/user";
pub(crate) const STARTED: &str = "pratique.dev/started-at";
pub(crate) const FINISHED: &str = "pratique.dev/finished-at";
pub(crate) const EXIT_CODE: &str = "pratique.dev/exit-code";
pub(crate) const OOM: &str = "pratique.dev/oom-killed";
pub(crate) const START_ERROR: &str = "pratique.dev/start-error";
const UNSEEN: &str = "pratique.dev/end-unseen";

/// Type of a runtime specification in containerd's messages.
pub(crate) const SPEC_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";

/// The label by which a container protects another snapshot than its own from containerd's garbage
/// collector.
pub(crate) fn kept(number: usize) -> String {
    format!("containerd.io/gc.ref.snapshot.{SNAPSHOTTER}/{number}")
}

/// Longest start error that is kept; containerd refuses labels beyond 4,096 bytes.
const MAX_ERROR: usize = 1024;
/// Longest list of a user's groups that is kept.
const MAX_USER: usize = 3072;

/// Labels as containerd has them.
pub(crate) type Labels = HashMap<String, String>;

/// The content of a container's labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: ContainerKey,
    pub(crate) image: String,
    pub(crate) image_id: String,
    pub(crate) log: PathBuf,
    pub(crate) backoff: Option<Duration>,
    pub(crate) round: u32,
    pub(crate) boot: String,
    pub(crate) stop_signal: u32,
    pub(crate) needs: Option<String>,
    pub(crate) user: Option<User>,
    pub(crate) created_at: Timestamp,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) end: Option<End>,
    pub(crate) oom_killed: bool,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) at: Timestamp,
    pub(crate) code: i32,
    pub(crate) start_error: Option<String>,
    /// Whether it was not observed.
    pub(crate) unseen: bool,
}

impl End {
    /// The labels to add when it has ended.
    pub(crate) fn labels(&self) -> Vec<(&'static str, String)> {
        let mut labels = vec![
            (FINISHED, self.at.to_string()),
            (EXIT_CODE, self.code.to_string()),
        ];
        if let Some(error) = &self.start_error {
            labels.push((START_ERROR, clip(error, MAX_ERROR)));
        }
        if self.unseen {
            labels.push((UNSEEN, "true".to_owned()));
        }
        labels
    }
}

impl Record {
    /// All labels of a container that is about to be created.
    pub(crate) fn labels(&self) -> Labels {
        let kind = match self.key.kind {
            ContainerKind::Init => "init",
            ContainerKind::Sidecar => "sidecar",
            ContainerKind::Ephemeral => "ephemeral",
            ContainerKind::Main => "main",
        };
        let mut labels: Labels = [
            (POD_UID, self.key.pod.uid.clone()),
            (POD_NAME, self.key.pod.name.clone()),
            (POD_NAMESPACE, self.key.pod.namespace.clone()),
            (CONTAINER, self.key.container.clone()),
            (KIND, kind.to_owned()),
            (ATTEMPT, self.key.attempt.to_string()),
            (IMAGE, self.image.clone()),
            (IMAGE_ID, self.image_id.clone()),
            (LOG, self.log.to_string_lossy().into_owned()),
            (BOOT, self.boot.clone()),
            (STOP_SIGNAL, self.stop_signal.to_string()),
            (CREATED, self.created_at.to_string()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
        let mut add = |key: &str, value: Option<String>| {
            value.map(|value| labels.insert(key.to_owned(), value))
        };
        add(
            BACKOFF,
            self.backoff.map(|backoff| backoff.as_secs().to_string()),
        );
        add(ROUND, (self.round > 0).then(|| self.round.to_string()));
        add(NEEDS, self.needs.clone());
        add(USER, self.user.as_ref().and_then(user_text));
        add(STARTED, self.started_at.map(|at| at.to_string()));
        add(OOM, self.oom_killed.then(|| "true".to_owned()));
        for (key, value) in self.end.iter().flat_map(End::labels) {
            labels.insert(key.to_owned(), value);
        }
        labels
    }

    /// Reads labels back; `None` for a container that isn't a pod's.
    pub(crate) fn read(labels: &Labels) -> Option<Self> {
        let text = |key: &str| labels.get(key).cloned();
        let time = |key: &str| {
            labels
                .get(key)
                .and_then(|text| text.parse::<Timestamp>().ok())
        };
        let kind = match labels.get(KIND)?.as_str() {
            "init" => ContainerKind::Init,
            "sidecar" => ContainerKind::Sidecar,
            "ephemeral" => ContainerKind::Ephemeral,
            "main" => ContainerKind::Main,
            _ => return None,
        };
        let pod = PodRef {
            namespace: text(POD_NAMESPACE)?,
            name: text(POD_NAME)?,
            uid: text(POD_UID)?,
        };
        let key = ContainerKey {
            pod,
            container: text(CONTAINER)?,
            kind,
            attempt: text(ATTEMPT)?.parse().ok()?,
        };
        let end = time(FINISHED).map(|at| End {
            at,
            code: text(EXIT_CODE)
                .and_then(|code| code.parse().ok())
                .unwrap_or(255),
            start_error: text(START_ERROR),
            unseen: labels.contains_key(UNSEEN),
        });
        Some(Self {
            key,
            image: text(IMAGE)?,
            image_id: text(IMAGE_ID)?,
            log: text(LOG)?.into(),
            backoff: text(BACKOFF)
                .and_then(|seconds| seconds.parse().ok())
                .map(Duration::from_secs),
            round: text(ROUND)
                .and_then(|round| round.parse().ok())
                .unwrap_or_default(),
            boot: text(BOOT)?,
            stop_signal: text(STOP_SIGNAL)
                .and_then(|signal| signal.parse().ok())
                .unwrap_or(15),
            needs: text(NEEDS),
            user: labels.get(USER).and_then(|text| read_user(text)),
            created_at: time(CREATED)?,
            started_at: time(STARTED),
            end,
            oom_killed: labels.contains_key(OOM),
        })
    }
}

/// A user as a label: its ids and those of its groups; `None` if that is too long for a label.
pub(crate) fn user_text(user: &User) -> Option<String> {
    let numbers = [user.uid, user.gid]
        .into_iter()
        .chain(user.groups.iter().copied());
    let texts: Vec<String> = numbers.map(|number| number.to_string()).collect();
    Some(texts.join(" ")).filter(|text| text.len() <= MAX_USER)
}

fn read_user(text: &str) -> Option<User> {
    let mut numbers = text.split(' ').map(|word| word.parse().ok());
    Some(User {
        uid: numbers.next()??,
        gid: numbers.next()??,
        groups: numbers.collect::<Option<_>>()?,
    })
}

/// The first `limit` bytes of a text, or fewer, cut between characters.
fn clip(text: &str, limit: usize) -> String {
    let end = (0..=limit.min(text.len()))
        .rev()
        .find(|&end| text.is_char_boundary(end))
        .unwrap_or(0);
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = Record> {
        let time = (0_i64..4_000_000_000).prop_map(|s| Timestamp::from_second(s).unwrap());
        let end = (
            time.clone(),
            any::<i32>(),
            proptest::option::of("[ -~]{0,40}"),
            any::<bool>(),
        )
            .prop_map(|(at, code, start_error, unseen)| End {
                at,
                code,
                start_error,
                unseen,
            });
        let identity = (
            "[a-z]{1,8}",
            "[a-z]{1,8}",
            "[a-f0-9]{8}",
            "[a-z]{1,8}",
            prop_oneof![
                Just(ContainerKind::Init),
                Just(ContainerKind::Sidecar),
                Just(ContainerKind::Ephemeral),
                Just(ContainerKind::Main)
            ],
            any::<u32>(),
        );
        (
            identity,
            proptest::option::of(0_u64..300),
            time.clone(),
            proptest::option::of(time),
            proptest::option::of(end),
            any::<bool>(),
        )
            .prop_map(
                |(
                    (namespace, name, uid, container, kind, attempt),
                    backoff,
                    created_at,
                    started_at,
                    end,
                    oom_killed,
                )| {
                    let pod = PodRef {
                        namespace,
                        name,
                        uid,
                    };
                    Record {
                        key: ContainerKey {
                            pod,
                            container,
                            kind,
                            attempt,
                        },
                        image: "registry.example/app:1".into(),
                        image_id: "registry.example/app@sha256:0".into(),
                        log: "/var/log/pods/a/0.log".into(),
                        backoff: backoff.map(Duration::from_secs),
                        round: attempt % 3,
                        boot: "b".into(),
                        stop_signal: 15,
                        needs: oom_killed.then(|| "{}".into()),
                        user: oom_killed.then(|| User {
                            uid: attempt,
                            gid: 7,
                            groups: vec![7, attempt],
                        }),
                        created_at,
                        started_at,
                        end,
                        oom_killed,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(record in record()) {
            prop_assert_eq!(Record::read(&record.labels()), Some(record));
        }
    }

    #[test]
    fn containers_of_others_are_not_ours() {
        assert_eq!(Record::read(&Labels::new()), None);
    }

    #[test]
    fn a_user_of_more_groups_than_a_label_holds_is_not_kept() {
        let user = |groups: u32| User {
            uid: 1,
            gid: 0,
            groups: (0..groups).map(|group| 1_000_000_000 + group).collect(),
        };
        assert_eq!(read_user(&user_text(&user(100)).unwrap()), Some(user(100)));
        assert_eq!(user_text(&user(400)), None);
        assert_eq!(read_user("1 0 x"), None);
    }

    #[test]
    fn a_long_error_is_cut_between_characters() {
        let end = End {
            at: Timestamp::UNIX_EPOCH,
            code: 128,
            start_error: Some("é".repeat(4000)),
            unseen: false,
        };
        assert!(
            end.labels()
                .iter()
                .all(|(key, value)| key.len() + value.len() < 4096)
        );
    }
}
