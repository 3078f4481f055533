//! Ends an attempt: sends signals, deletes the task, and removes its layer, or everything of it.

use super::Containerd;
use crate::log::Fifos;
use agent_containerd::{Error, ErrorClass, failed, request, settled};
use agent_images::SNAPSHOTTER;
use config_errors::chain;
use containerd_client::services::v1::snapshots::RemoveSnapshotRequest;
use containerd_client::services::v1::{DeleteContainerRequest, DeleteTaskRequest, KillRequest};
use containerd_client::tonic::{Code, Status};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How often the deletion of a killed task is tried, and the pause between two tries.
const DELETE_TRIES: u32 = 40;
const DELETE_PAUSE: Duration = Duration::from_millis(50);
/// How long one call waits for the removal of what a container wrote.
const EMPTYING: Duration = Duration::from_secs(20);

impl Containerd {
    /// Kills and deletes the task, if there is one; its whole output is in the log then.
    pub(super) async fn drop_task(&self, id: &str) -> Result<(), Error> {
        let doing = || format!("delete task {id}");
        let turn = self.deletions.of(id, Mutex::default);
        let _turn = turn.lock().await;
        let mut result = self.delete_task(id).await;
        for _ in 0..DELETE_TRIES {
            if !result.as_ref().is_err_and(may_live) {
                break;
            }
            // It is alive, or was just killed and has not ended yet.
            self.signal(id, 9, true).await?;
            tokio::time::sleep(DELETE_PAUSE).await;
            result = self.delete_task(id).await;
        }
        settled(result, Code::NotFound).map_err(failed(ErrorClass::Create, doing()))?;
        self.pumps.finish(id).await;
        Ok(())
    }

    async fn delete_task(&self, id: &str) -> Result<(), Status> {
        self.tasks()
            .delete(request(DeleteTaskRequest {
                container_id: id.to_owned(),
            }))
            .await
            .map(drop)
    }

    pub(super) async fn signal(&self, id: &str, signal: u32, all: bool) -> Result<(), Error> {
        let kill = KillRequest {
            container_id: id.to_owned(),
            exec_id: String::new(),
            signal,
            all,
        };
        let result = self.tasks().kill(request(kill)).await;
        settled(result, Code::NotFound).map_err(failed(
            ErrorClass::Create,
            format!("signal {signal} to {id}"),
        ))
    }

    /// Removes everything of an attempt except its log. What can't be removed of its layer here is
    /// left to containerd, so that no pod can delay its own end, or its other containers.
    pub(super) async fn clear(&self, id: &str) -> Result<(), Error> {
        self.drop_task(id).await?;
        if let Err(why) = self.empty_layer(id).await {
            tracing::warn!(
                container = id,
                error = why,
                "cannot remove what a container wrote; leaving it to containerd"
            );
        }
        self.remove_records(id).await
    }

    /// Removes the layer of an attempt that has ended. Its record stays, and its log.
    ///
    /// # Errors
    /// It has not ended; containerd is unreachable; or something in the layer can't be removed
    /// here, or not within [`EMPTYING`]. Then the layer is kept: containerd would leave the rest on
    /// the disk.
    pub(super) async fn drop_layer(&self, id: &str) -> Result<(), Error> {
        let Some(record) = self.stored(id).await? else {
            return Ok(());
        };
        let fail = |why: String| {
            let text = format!("remove what container {id} wrote: {why}");
            Error::new(ErrorClass::Create, text)
        };
        if record.end.is_none() {
            return Err(fail("it has not ended".to_owned()));
        }
        // The end is recorded before the task is deleted, and an agent may have ended in between.
        self.drop_task(id).await?;
        self.empty_layer(id).await.map_err(fail)?;
        self.remove_snapshot(id).await
    }

    /// As [`Containerd::clear`], for an attempt of which nothing has run.
    pub(super) async fn clear_unused(&self, id: &str) -> Result<(), Error> {
        self.drop_task(id).await?;
        self.remove_records(id).await
    }

    async fn remove_records(&self, id: &str) -> Result<(), Error> {
        self.remove_snapshot(id).await?;
        let delete = DeleteContainerRequest { id: id.to_owned() };
        let deleted = self.containers().delete(request(delete)).await;
        let fail = failed(ErrorClass::Create, format!("remove container {id}"));
        settled(deleted, Code::NotFound).map_err(fail)?;
        self.known.forget(id);
        Fifos::of(&self.options.fifos, id).remove();
        Ok(())
    }

    async fn remove_snapshot(&self, id: &str) -> Result<(), Error> {
        let remove = RemoveSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: id.to_owned(),
        };
        let removed = self.snapshots().remove(request(remove)).await;
        let fail = failed(ErrorClass::Create, format!("remove the layer of {id}"));
        settled(removed, Code::NotFound).map_err(fail)
    }

    /// Removes what an attempt without a task wrote.
    ///
    /// # Errors
    /// Why it is not done, also after [`EMPTYING`]; the next call continues where this one ended.
    async fn empty_layer(&self, id: &str) -> Result<(), String> {
        let emptied = timeout(EMPTYING, self.try_to_empty_layer(id)).await;
        emptied.unwrap_or_else(|_| Err(format!("not done after {} s", EMPTYING.as_secs())))
    }

    async fn try_to_empty_layer(&self, id: &str) -> Result<(), String> {
        let Some(layer) = self.upper(id).await.map_err(|error| error.chain())? else {
            return Ok(());
        };
        let record = self.stored(id).await.map_err(|error| error.chain())?;
        let namespace = record.map_or_else(String::new, |record| record.key.pod.namespace);
        let removed = self
            .emptying
            .remove(&namespace, &self.options.state, &layer);
        removed.await.map_err(|error| chain(&error))
    }

    /// Sends the recorded stop signal to the first process.
    pub(super) async fn ask_to_end(&self, id: &str) -> Result<(), Error> {
        let signal = self
            .stored(id)
            .await?
            .map_or(15, |record| record.stop_signal);
        self.signal(id, signal, false).await
    }
}

/// Whether a deletion may have failed because the task is alive: containerd's code for that is
/// `FailedPrecondition`; its shim has none (`Unknown`).
fn may_live(status: &Status) -> bool {
    matches!(status.code(), Code::FailedPrecondition | Code::Unknown)
}

#[cfg(test)]
mod tests {
    use crate::empty_engine::empty_engine;
    use http_body_util::BodyExt as _;
    use hyper::Request;
    use hyper::body::Incoming;
    use std::sync::Arc;
    use tokio::sync::watch;

    /// Deletions of tasks, which are answered only once they are `released`.
    struct Absent {
        deletions: watch::Sender<Vec<String>>,
        released: watch::Sender<bool>,
    }

    impl Absent {
        async fn see(&self, request: Request<Incoming>) {
            if request.uri().path().ends_with("Tasks/Delete") {
                let message = request.into_body().collect().await.unwrap().to_bytes();
                // A frame's head is 5 bytes, and that of the first field, the container's ID, 2.
                let id = String::from_utf8(message[7..].to_vec()).unwrap();
                self.deletions.send_modify(|all| all.push(id));
                let mut released = self.released.subscribe();
                released.wait_for(|released| *released).await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn a_task_is_deleted_by_one_call_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let absent = Arc::new(Absent {
            deletions: watch::Sender::default(),
            released: watch::Sender::default(),
        });
        let seen = absent.clone();
        let (engine, serving) = empty_engine(dir.path(), move |request| {
            let seen = seen.clone();
            async move { seen.see(request).await }
        });
        let mut deletions = absent.deletions.subscribe();
        let watching = async {
            // Calls of one connection come in the order in which they were made.
            let other = |all: &Vec<String>| all.iter().any(|id| id == "other");
            let seen = deletions.wait_for(other).await.unwrap().clone();
            absent.released.send_replace(true);
            seen
        };
        let (first, second, third, seen) = tokio::join!(
            engine.drop_task("one"),
            engine.drop_task("one"),
            engine.drop_task("other"),
            watching
        );
        first.and(second).and(third).unwrap();
        assert_eq!(seen, ["one", "other"]);
        assert_eq!(*absent.deletions.borrow(), ["one", "other", "one"]);
        serving.abort();
    }
}
