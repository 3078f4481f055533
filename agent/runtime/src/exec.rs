//! Runs commands inside containers, for probes and hooks: reads their output, and kills them when
//! they take too long, or when their caller stops waiting.

use crate::c_strings;
use crate::containerd::Containerd;
use crate::log::{Fifos, read_rest};
use crate::model::ExecOutput;
use crate::process::{self, Control};
use crate::specification;
use agent_containerd::{Error, ErrorClass, failed, request, settled, unlimited};
use containerd_client::services::v1::{
    DeleteProcessRequest, ExecProcessRequest, StartRequest, WaitRequest,
};
use containerd_client::tonic::{Code, Status};
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::unix::pipe::{OpenOptions, Receiver};
use tokio::task::coop::consume_budget;
use tokio::time::timeout;

/// Most output that is kept (upstream's limit for probes).
const MAX_OUTPUT: usize = 10 * 1024;

/// Numbers executions, so that their ids differ.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// An id for an execution that no other has, also of earlier agents.
pub(crate) fn next_id() -> String {
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("exec-{}-{number}", std::process::id())
}

/// Runs `command` in the container and waits for its end; after `limit` it is killed, as it is if
/// the caller stops waiting.
pub(crate) async fn run(
    engine: &Containerd,
    id: &str,
    command: &[String],
    limit: Duration,
) -> Result<ExecOutput, Error> {
    let exec_id = next_id();
    let name = format!("{id}-{exec_id}");
    let fifos = Fifos::of(&engine.options.fifos, &name);
    let folder = engine.options.fifos.join(name);
    // Made before the start: it is dropped with this call, at whatever step that is.
    let control = Control::new(engine.channel.clone(), id, exec_id.clone(), folder, "");
    let result = run_with(engine, id, &exec_id, command, &fifos, limit).await;
    if result.as_ref().is_ok_and(|output| output.code.is_some()) {
        control.clear().await;
    } else {
        // Kills it, and deletes it once it has ended: its shim would keep it otherwise.
        drop(control);
    }
    result
}

async fn run_with(
    engine: &Containerd,
    id: &str,
    exec_id: &str,
    command: &[String],
    fifos: &Fifos,
    limit: Duration,
) -> Result<ExecOutput, Error> {
    let running = Running {
        engine,
        id,
        exec_id,
    };
    let local = |error| Error::caused(ErrorClass::Create, "open the command's output", error);
    let own = own_process(engine, id, command).await?;
    fifos.make().map_err(local)?;
    let output = OpenOptions::new()
        .read_write(true)
        .open_receiver(&fifos.stdout)
        .map_err(local)?;
    running.start(&own, &fifos.stdout).await?;
    let mut text = Vec::new();
    let Ok(ended) = timeout(limit, running.end(&output, &mut text)).await else {
        return Ok(ExecOutput {
            code: None,
            output: text,
        });
    };
    let code = Some(i32::try_from(ended?).unwrap_or(255));
    running.delete(&output, &mut text).await?;
    read_rest(output, |piece| keep(piece, &mut text));
    Ok(ExecOutput { code, output: text })
}

/// A command in a container, by containerd's ids of both.
struct Running<'a> {
    engine: &'a Containerd,
    id: &'a str,
    exec_id: &'a str,
}

impl Running<'_> {
    fn fail(&self) -> impl FnOnce(Status) -> Error + use<> {
        let doing = format!("run a command in container {}", self.id);
        failed(ErrorClass::NotFound, doing)
    }

    /// Starts the process; both its outputs go into one pipe.
    async fn start(&self, process: &Value, output: &Path) -> Result<(), Error> {
        let output = output.to_string_lossy().into_owned();
        let exec = ExecProcessRequest {
            container_id: self.id.to_owned(),
            stdout: output.clone(),
            stderr: output,
            spec: Some(process::any(process)),
            exec_id: self.exec_id.to_owned(),
            ..ExecProcessRequest::default()
        };
        let mut tasks = self.engine.tasks();
        tasks.exec(request(exec)).await.map_err(self.fail())?;
        let start = StartRequest {
            container_id: self.id.to_owned(),
            exec_id: self.exec_id.to_owned(),
        };
        tasks.start(request(start)).await.map_err(self.fail())?;
        Ok(())
    }

    /// Waits until the process ends; returns its exit status. Its output is read meanwhile: a
    /// process whose pipe is full would never end.
    async fn end(&self, output: &Receiver, text: &mut Vec<u8>) -> Result<u32, Error> {
        let wait = WaitRequest {
            container_id: self.id.to_owned(),
            exec_id: self.exec_id.to_owned(),
        };
        let mut tasks = self.engine.tasks();
        let ended = tokio::select! {
            // Reading never ends by itself; the arms are dropped only when the command has ended or
            // its limit is over.
            ended = tasks.wait(unlimited(wait)) => ended,
            () = keep_reading(output, text) => unreachable_status(),
        };
        Ok(ended.map_err(self.fail())?.into_inner().exit_status)
    }

    /// Deletes the process, which has ended. The shim may still be copying its output: it has
    /// finished when this returns.
    async fn delete(&self, output: &Receiver, text: &mut Vec<u8>) -> Result<(), Error> {
        let delete = DeleteProcessRequest {
            container_id: self.id.to_owned(),
            exec_id: self.exec_id.to_owned(),
        };
        let mut tasks = self.engine.tasks();
        tokio::select! {
            deleted = tasks.delete_process(request(delete)) => {
                settled(deleted, Code::NotFound).map_err(self.fail())
            }
            () = keep_reading(output, text) => Ok(()),
        }
    }
}

fn unreachable_status<T>() -> Result<T, Status> {
    Err(Status::internal(
        "the command's output ended before the command",
    ))
}

/// The container's own process with other arguments.
async fn own_process(engine: &Containerd, id: &str, command: &[String]) -> Result<Value, Error> {
    let mut process = specification::of(engine, id).await?["process"].take();
    process["args"] = command.into();
    process["terminal"] = false.into();
    c_strings::check("process", &process)?;
    Ok(process)
}

/// Reads as long as it is polled. A pipe that is never empty is always readable, so each piece
/// takes a part of the task's budget: then other tasks run, too, and the command's time limit is
/// kept.
async fn keep_reading(output: &Receiver, text: &mut Vec<u8>) {
    while output.readable().await.is_ok() {
        consume_budget().await;
        let mut piece = [0; 4096];
        if let Ok(count) = output.try_read(&mut piece) {
            keep(&piece[..count], text);
        }
    }
}

/// Appends output up to [`MAX_OUTPUT`]; the rest is dropped.
fn keep(piece: &[u8], text: &mut Vec<u8>) {
    let room = MAX_OUTPUT.saturating_sub(text.len()).min(piece.len());
    text.extend_from_slice(&piece[..room]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::empty_engine::empty_engine;
    use crate::endless::{endless, steps};
    use std::sync::Arc;
    use tokio::sync::watch;
    use tokio::task::JoinHandle;

    /// The names of the calls that containerd got.
    type Calls = watch::Receiver<Vec<String>>;

    /// A containerd without objects, whose calls are seen; it never answers the call `held`.
    fn seen_engine(dir: &Path, held: &'static str) -> (Containerd, JoinHandle<()>, Calls) {
        let calls = Arc::new(watch::Sender::new(Vec::new()));
        let seen = calls.subscribe();
        let (engine, serving) = empty_engine(dir, move |request| {
            let call = request.uri().path().rsplit('/').next();
            let call = call.unwrap_or_default().to_owned();
            let answered = call != held;
            calls.send_modify(|all: &mut Vec<String>| all.push(call));
            async move {
                if !answered {
                    std::future::pending::<()>().await;
                }
            }
        });
        (engine, serving, seen)
    }

    /// All calls until one that deletes the command.
    async fn until_deleted(seen: &mut Calls) -> Vec<String> {
        let deleted = |all: &Vec<String>| all.iter().any(|call| call == "DeleteProcess");
        seen.wait_for(deleted).await.unwrap().clone()
    }

    #[tokio::test]
    async fn a_command_that_gave_no_exit_code_is_deleted_once_it_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let (engine, serving, mut seen) = seen_engine(dir.path(), "");
        run(&engine, "c", &[], Duration::ZERO).await.unwrap_err();
        // `Get` asks for the container's own specification.
        let all = until_deleted(&mut seen).await;
        assert_eq!(all, ["Get", "Kill", "Wait", "DeleteProcess"]);
        serving.abort();
    }

    #[tokio::test]
    async fn a_command_whose_caller_stops_waiting_is_killed_and_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let (engine, serving, mut seen) = seen_engine(dir.path(), "Get");
        let limit = Duration::from_secs(60);
        tokio::select! {
            ended = run(&engine, "c", &[], limit) => panic!("it ended: {ended:?}"),
            called = seen.wait_for(|all| !all.is_empty()) => drop(called.unwrap()),
        }
        let all = timeout(limit, until_deleted(&mut seen)).await.unwrap();
        assert_eq!(all, ["Get", "Kill", "Wait", "DeleteProcess"]);
        serving.abort();
    }

    #[tokio::test]
    async fn a_command_that_prints_without_an_end_leaves_the_worker_to_others() {
        let (output, mut text) = (endless(), Vec::new());
        tokio::select! {
            () = steps() => {}
            () = keep_reading(&output, &mut text) => {}
        }
        let left = output.try_read(&mut [0; 8]);
        assert!(left.is_ok(), "nothing else ran until it ended");
    }
}
