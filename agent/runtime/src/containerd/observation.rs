//! Reads what containerd has of an attempt: its record, its task, its layer. An end that is found
//! is recorded.

use super::Containerd;
use crate::labels::{self, End, Labels, Record};
use crate::log::Fifos;
use crate::memory;
use crate::model::{Change, Container, ContainerState, ExitCause};
use crate::signals::signal_name;
use agent_containerd::{CALL_LIMIT, Error, ErrorClass, failed, is_absent, request, unlimited};
use agent_images::SNAPSHOTTER;
use config_errors::chain;
use containerd_client::services::v1::{GetContainerRequest, GetRequest, ListContainersRequest};
use containerd_client::tonic::Status;
use containerd_client::types::v1::{Process, Status as TaskStatus};
use jiff::Timestamp;
use std::path::PathBuf;

/// Exit code of an attempt whose end was not observed, as when the machine went down.
const CODE_UNKNOWN: i32 = 255;

impl Containerd {
    pub(super) async fn observe_all(&self, pod_uid: Option<&str>) -> Result<Vec<Container>, Error> {
        let all = match pod_uid.and_then(|uid| self.known.of_pod(uid)) {
            Some(ids) => self.records(ids).await?,
            None => self.all_records().await?,
        };
        let mut observed = Vec::with_capacity(all.len());
        for (id, record) in all {
            if pod_uid.is_none_or(|uid| uid == record.key.pod.uid) {
                observed.extend(self.observe(id, record).await?);
            }
        }
        Ok(observed)
    }

    /// The records of those of these containers that exist.
    async fn records(&self, ids: Vec<String>) -> Result<Vec<(String, Record)>, Error> {
        let mut all = Vec::with_capacity(ids.len());
        for id in ids {
            let record = self.stored(&id).await?;
            all.extend(record.map(|record| (id, record)));
        }
        Ok(all)
    }

    /// The records of all pods' containers.
    async fn all_records(&self) -> Result<Vec<(String, Record)>, Error> {
        let fail = failed(ErrorClass::Create, "list containers");
        let list = ListContainersRequest {
            filters: vec![format!("labels.\"{}\"", labels::POD_UID)],
        };
        let reading = async {
            let mut stream = self
                .containers()
                .list_stream(unlimited(list))
                .await?
                .into_inner();
            let mut all = Vec::new();
            while let Some(message) = stream.message().await? {
                let stored = message.container.unwrap_or_default();
                if let Some(record) = Record::read(&stored.labels) {
                    all.push((stored.id, record));
                }
            }
            Ok(all)
        };
        // A call's limit covers only the first answer; this one covers the whole list.
        let all = tokio::time::timeout(CALL_LIMIT, reading)
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("the list does not end")))
            .map_err(fail)?;
        let ids = all.iter();
        self.known
            .add_all(ids.map(|(id, record)| (record.key.pod.uid.as_str(), id.as_str())));
        Ok(all)
    }

    /// Determines the state of one container; if it has ended, that is recorded before it is
    /// returned.
    async fn observe(&self, id: String, mut record: Record) -> Result<Option<Container>, Error> {
        if record.end.is_some() {
            self.complete(&id).await;
            return Ok(Some(self.container(id, record, false)));
        }
        if self.known.is_starting(&id) {
            record.started_at = None;
        }
        let task = self.task(&id).await?;
        let status = task
            .as_ref()
            .and_then(|task| TaskStatus::try_from(task.status).ok());
        match (task, status) {
            // Unknown: its shim did not answer containerd in time (2 s), as on a busy machine. Then
            // the record counts: a running container must not be removed as one that never started.
            (Some(_), Some(TaskStatus::Unknown) | None) if record.started_at.is_some() => {
                Ok(Some(self.container(id, record, true)))
            }
            (Some(_), Some(TaskStatus::Running | TaskStatus::Paused | TaskStatus::Pausing)) => {
                let fifos = Fifos::of(&self.options.fifos, &id);
                if let Err(error) = self.pumps.begin(&id, &fifos, &record.log) {
                    tracing::warn!(
                        container = id,
                        error = chain(&error),
                        "cannot reopen a container's output FIFOs"
                    );
                }
                Ok(Some(self.container(id, record, true)))
            }
            (Some(task), Some(TaskStatus::Stopped)) => {
                let at = task
                    .exited_at
                    .and_then(instant)
                    .unwrap_or_else(Timestamp::now);
                let code = i32::try_from(task.exit_status).unwrap_or(CODE_UNKNOWN);
                self.finish(
                    id,
                    End {
                        at,
                        code,
                        start_error: None,
                        unseen: false,
                    },
                )
                .await
            }
            (None, _) if record.started_at.is_some() => match self.stored(&id).await? {
                // Another call was faster.
                Some(record) if record.end.is_some() => Ok(Some(self.container(id, record, false))),
                Some(_) => {
                    self.finish(
                        id,
                        End {
                            at: Timestamp::now(),
                            code: CODE_UNKNOWN,
                            start_error: None,
                            unseen: true,
                        },
                    )
                    .await
                }
                None => Ok(None),
            },
            (_, Some(TaskStatus::Created | TaskStatus::Unknown) | None) | (None, Some(_)) => {
                Ok(Some(self.container(id, record, false)))
            }
        }
    }

    async fn finish(&self, id: String, end: End) -> Result<Option<Container>, Error> {
        let mut labels = end.labels();
        // Before the task is deleted, and the group with it.
        if self
            .group(&id)
            .await?
            .is_some_and(|group| memory::ran_out(&group))
        {
            labels.push((labels::OOM, "true".to_owned()));
        }
        self.note(&id, labels).await?;
        self.drop_task(&id).await?;
        Ok(self
            .stored(&id)
            .await?
            .map(|record| self.container(id, record, false)))
    }

    /// Deletes the task of a container whose end is recorded: the call that recorded it may have
    /// been dropped before it did so, as one for a client that is gone.
    async fn complete(&self, id: &str) {
        if self.pumps.has(id)
            && let Err(error) = self.drop_task(id).await
        {
            let error = error.chain();
            tracing::debug!(container = id, error, "cannot delete an ended task");
        }
    }

    /// The control group that a container's specification names.
    async fn group(&self, id: &str) -> Result<Option<String>, Error> {
        let result = self
            .containers()
            .get(request(GetContainerRequest { id: id.to_owned() }))
            .await;
        if is_absent(&result) {
            return Ok(None);
        }
        let fail = failed(ErrorClass::Create, format!("look at container {id}"));
        let spec = result
            .map_err(fail)?
            .into_inner()
            .container
            .and_then(|stored| stored.spec)
            .unwrap_or_default();
        let document: serde_json::Value = serde_json::from_slice(&spec.value).unwrap_or_default();
        Ok(document
            .pointer("/linux/cgroupsPath")
            .and_then(|path| path.as_str())
            .map(str::to_owned))
    }

    fn container(&self, id: String, record: Record, running: bool) -> Container {
        let started_at = record.started_at.unwrap_or(record.created_at);
        let state = match record.end {
            Some(end) => ContainerState::Exited {
                started_at,
                finished_at: end.at,
                code: end.code,
                cause: match end.start_error {
                    Some(why) => ExitCause::NotStarted(why),
                    None if record.oom_killed => ExitCause::OutOfMemory,
                    None if end.unseen => ExitCause::Unseen,
                    None => ExitCause::Own,
                },
            },
            None if running => ContainerState::Running { started_at },
            None => ContainerState::Created,
        };
        Container {
            id,
            key: record.key,
            image: record.image,
            image_id: record.image_id,
            state,
            backoff: record.backoff,
            round: record.round,
            this_boot: record.boot == self.boot,
            stop_signal: signal_name(record.stop_signal),
            needs: record.needs,
            user: record.user,
        }
    }

    /// Whether containerd has a container of this id, a pod's or not.
    pub(super) async fn is_known(&self, id: &str) -> Result<bool, Error> {
        let get = GetContainerRequest { id: id.to_owned() };
        let result = self.containers().get(request(get)).await;
        if is_absent(&result) {
            return Ok(false);
        }
        let fail = failed(ErrorClass::Create, format!("look at container {id}"));
        result.map(|_| true).map_err(fail)
    }

    pub(super) async fn stored(&self, id: &str) -> Result<Option<Record>, Error> {
        let result = self
            .containers()
            .get(request(GetContainerRequest { id: id.to_owned() }))
            .await;
        if is_absent(&result) {
            return Ok(None);
        }
        let fail = failed(ErrorClass::Create, format!("look at container {id}"));
        Ok(result
            .map_err(fail)?
            .into_inner()
            .container
            .and_then(|stored| Record::read(&stored.labels)))
    }

    /// The news in an event of a container: its pod's, also for the process that holds a pod's PID
    /// namespace. None for a container that is no pod's, and for one that is gone: the task of its
    /// pod has removed it.
    pub(crate) async fn change_of(&self, id: &str) -> Option<Change> {
        let get = GetContainerRequest { id: id.to_owned() };
        let result = self.containers().get(request(get)).await;
        if is_absent(&result) {
            return None;
        }
        let Ok(found) = result else {
            // It may be any pod's.
            return Some(Change::All);
        };
        change_by(&found.into_inner().container?.labels)
    }

    pub(super) async fn task(&self, id: &str) -> Result<Option<Process>, Error> {
        let get = GetRequest {
            container_id: id.to_owned(),
            exec_id: String::new(),
        };
        let result = self.tasks().get(request(get)).await;
        if is_absent(&result) {
            return Ok(None);
        }
        let fail = failed(ErrorClass::Create, format!("look at task {id}"));
        Ok(result.map_err(fail)?.into_inner().process)
    }

    /// The upper folder of a container's overlay.
    pub(super) async fn upper(&self, id: &str) -> Result<Option<PathBuf>, Error> {
        let key = containerd_client::services::v1::snapshots::MountsRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: id.to_owned(),
        };
        let result = self.snapshots().mounts(request(key)).await;
        if is_absent(&result) {
            return Ok(None);
        }
        let fail = failed(ErrorClass::Create, format!("look at the layer of {id}"));
        let mounts = result.map_err(fail)?.into_inner().mounts;
        let mut options = mounts.iter().flat_map(|mount| &mount.options);
        Ok(options
            .find_map(|option| option.strip_prefix("upperdir="))
            .map(PathBuf::from))
    }
}

/// A time of containerd's messages.
fn instant(time: prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(time.seconds, time.nanos).ok()
}

/// The news of the pod that a container's labels name.
fn change_by(labels: &Labels) -> Option<Change> {
    labels.get(labels::POD_UID).cloned().map(Change::Pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::empty_engine::empty_engine;
    use crate::model::{ContainerKey, ContainerKind, PodRef};
    use std::fs::File;
    use std::io::Write as _;

    /// The record of a container that has ended.
    fn ended(log: PathBuf) -> Record {
        let at = Timestamp::UNIX_EPOCH;
        Record {
            key: ContainerKey {
                pod: PodRef {
                    namespace: "n".to_owned(),
                    name: "p".to_owned(),
                    uid: "u".to_owned(),
                },
                container: "c".to_owned(),
                kind: ContainerKind::Main,
                attempt: 0,
            },
            image: String::new(),
            image_id: String::new(),
            log,
            backoff: None,
            round: 0,
            boot: String::new(),
            stop_signal: 15,
            needs: None,
            user: None,
            created_at: at,
            started_at: Some(at),
            end: Some(End {
                at,
                code: 3,
                start_error: None,
                unseen: false,
            }),
            oom_killed: false,
        }
    }

    #[tokio::test]
    async fn an_end_that_a_dropped_call_has_only_recorded_is_completed_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let (engine, serving) = empty_engine(dir.path(), |_request| std::future::ready(()));
        let log = dir.path().join("logs/0.log");
        let fifos = Fifos::of(&engine.options.fifos, "c");
        engine.pumps.begin("c", &fifos, &log).unwrap();
        let mut output = File::options().write(true).open(&fifos.stdout).unwrap();
        output.write_all(b"last words").unwrap();
        let seen = engine.observe("c".to_owned(), ended(log.clone())).await;
        let state = seen.unwrap().unwrap().state;
        assert!(matches!(state, ContainerState::Exited { code: 3, .. }));
        let text = std::fs::read_to_string(log).unwrap();
        assert!(text.ends_with(" P last words\n"), "{text}");
        assert!(!engine.pumps.has("c"));
        serving.abort();
    }

    #[tokio::test]
    async fn the_end_of_a_container_wakes_its_own_pod_and_no_other() {
        // As the process that holds a pod's PID namespace has them.
        let labels = Labels::from([(labels::POD_UID.to_owned(), "u".to_owned())]);
        assert_eq!(change_by(&labels), Some(Change::Pod("u".to_owned())));
        assert_eq!(change_by(&Labels::new()), None, "it is no pod's");
        let dir = tempfile::tempdir().unwrap();
        let (engine, serving) = empty_engine(dir.path(), |_request| std::future::ready(()));
        assert_eq!(engine.change_of("gone").await, None);
        serving.abort();
        let nowhere = dir.path().join("none");
        std::fs::create_dir(&nowhere).unwrap();
        let (engine, serving) = empty_engine(&nowhere, |_request| std::future::ready(()));
        serving.abort();
        drop(serving.await);
        let change = engine.change_of("unknown").await;
        assert_eq!(change, Some(Change::All), "it may be any pod's");
    }
}
