//! The end of an attempt: signals, the task's deletion, and the removal of every trace.

use super::Containerd;
use crate::log::Fifos;
use agent_containerd::{Error, ErrorClass, failed, request, settled};
use agent_images::SNAPSHOTTER;
use containerd_client::services::v1::snapshots::RemoveSnapshotRequest;
use containerd_client::services::v1::{DeleteContainerRequest, DeleteTaskRequest, KillRequest};
use containerd_client::tonic::{Code, Status};
use std::time::Duration;

/// How often a task that was killed is looked at until it can be deleted, and how far apart.
const DELETE_TRIES: u32 = 40;
const DELETE_PAUSE: Duration = Duration::from_millis(50);

impl Containerd {
    /// Ends and deletes the task, if there is one, with all of its output in the log.
    pub(super) async fn drop_task(&self, id: &str) -> Result<(), Error> {
        let doing = || format!("delete task {id}");
        let mut result = self.delete_task(id).await;
        for _ in 0..DELETE_TRIES {
            if !result.as_ref().is_err_and(may_live) {
                break;
            }
            // It lives, or it has just been killed and its end is on the way.
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

    /// Removes every trace of an attempt but its log.
    pub(super) async fn clear(&self, id: &str) -> Result<(), Error> {
        let fail = || failed(ErrorClass::Create, format!("remove container {id}"));
        self.drop_task(id).await?;
        let remove = RemoveSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: id.to_owned(),
        };
        settled(
            self.snapshots().remove(request(remove)).await,
            Code::NotFound,
        )
        .map_err(fail())?;
        let delete = DeleteContainerRequest { id: id.to_owned() };
        settled(
            self.containers().delete(request(delete)).await,
            Code::NotFound,
        )
        .map_err(fail())?;
        self.known.forget(id);
        Fifos::of(&self.options.fifos, id).remove();
        Ok(())
    }

    /// Asks the first process to end, in the way that its image chose.
    pub(super) async fn ask_to_end(&self, id: &str) -> Result<(), Error> {
        let signal = self
            .stored(id)
            .await?
            .map_or(15, |record| record.stop_signal);
        self.signal(id, signal, false).await
    }
}

/// Whether a task may be there that can't be deleted because it lives: containerd says so by one
/// code, its shim by no code at all.
fn may_live(status: &Status) -> bool {
    matches!(status.code(), Code::FailedPrecondition | Code::Unknown)
}
