//! Processes in containers with streams for a client (exec), besides the container's own: their
//! start, terminal size, and end.
//!
//! Such a process has what the container's own has (user, capabilities, system call filter, no new
//! privileges, limits): its specification is the container's own with other arguments, and the
//! runtime applies the container's filter to it.
//!
//! A process whose [`Control`] is dropped is killed with its session, so that a client that
//! disconnects leaves nothing behind.

use crate::log::read_rest;
use crate::pids::{Depth, kill_session};
use crate::taps::Tap;
use agent_containerd::{Error, ErrorClass, failed, request, settled, unlimited};
use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::services::v1::{
    CloseIoRequest, DeleteProcessRequest, ExecProcessRequest, KillRequest, ResizePtyRequest,
    StartRequest, WaitRequest,
};
use containerd_client::tonic::Code;
use containerd_client::tonic::transport::Channel;
use prost_types::Any;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::task::coop::consume_budget;

/// Type of a process specification in containerd's messages.
const PROCESS_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
/// Bytes taken from an output at once.
const CHUNK: usize = 32 * 1024;

/// A process that a client runs in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Whether it reads what the client sends.
    pub stdin: bool,
    /// Its outputs.
    pub outputs: Outputs,
}

/// The outputs of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outputs {
    /// A terminal of its own, which has one output.
    Terminal,
    /// A pipe for each output. The caller drops an output that the client does not read.
    Pipes {
        /// Whether the client reads stdout.
        stdout: bool,
        /// Whether the client reads stderr.
        stderr: bool,
    },
}

/// One output of a process.
#[derive(Debug)]
pub struct Output(pub(crate) Receiver);

impl Output {
    /// The next bytes, appended to `out`. An output has no end of its own: [`Control::wait`]
    /// returns at the process's end.
    ///
    /// Cancel-safe: what was read is in `out`.
    ///
    /// # Errors
    /// `read(2)` fails for another reason than that no data is available yet (`EAGAIN`).
    pub async fn read(&self, out: &mut Vec<u8>) -> std::io::Result<()> {
        // A pipe that is never empty is always readable, and a loop that reads it would never let
        // other tasks run.
        consume_budget().await;
        loop {
            self.0.readable().await?;
            out.reserve(CHUNK);
            match self.0.try_read_buf(out) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                result => return result.map(drop),
            }
        }
    }

    /// What is left after [`Control::clear`]: no more than a pipe holds.
    pub fn rest(self) -> Vec<u8> {
        let mut rest = Vec::new();
        read_rest(self.0, |piece| rest.extend_from_slice(piece));
        rest
    }
}

/// The input of a process.
#[derive(Debug)]
pub struct Input(pub(crate) Sender);

impl Input {
    /// Writes some of the bytes; returns how many.
    ///
    /// Cancel-safe: if it is dropped, nothing was written.
    ///
    /// # Errors
    /// The process has closed its input (`EPIPE`), or has ended.
    pub async fn write(&self, bytes: &[u8]) -> std::io::Result<usize> {
        // As in `Output::read`.
        consume_budget().await;
        loop {
            self.0.writable().await?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }
}

/// A process that was started, with its streams.
#[derive(Debug)]
pub struct Process {
    /// Its input.
    pub stdin: Option<Input>,
    /// Its stdout, or its terminal's output.
    pub stdout: Option<Output>,
    /// Its stderr; `None` if it has a terminal. The caller must read both outputs, also one that
    /// the client does not read.
    pub stderr: Option<Output>,
    /// The process itself.
    pub control: Control,
}

/// A container's own process, with streams for a client.
#[derive(Debug)]
pub struct Attached {
    /// Its input.
    pub stdin: Option<Input>,
    /// Its output from now on.
    pub output: Tap,
    /// The process itself, which continues when this is dropped.
    pub control: Control,
}

/// A process. It is killed when this is dropped before [`Control::clear`], unless it is a
/// container's own.
#[derive(Debug)]
pub struct Control {
    channel: Channel,
    container: String,
    exec_id: String,
    /// The folder of its FIFOs.
    folder: PathBuf,
    /// Its PID in the engine's PID namespace, and that namespace's depth; `None` before the start.
    started: Option<(u32, Depth)>,
    /// The container's control group.
    cgroup: String,
    over: bool,
}

/// The specification of a process, as containerd takes it.
pub(crate) fn any(process: &Value) -> Any {
    Any {
        type_url: PROCESS_TYPE.to_owned(),
        value: process.to_string().into_bytes(),
    }
}

impl Control {
    /// A process that is not started yet.
    pub(crate) fn new(
        channel: Channel,
        container: &str,
        exec_id: String,
        folder: PathBuf,
        cgroup: &str,
    ) -> Self {
        Self {
            channel,
            container: container.to_owned(),
            exec_id,
            folder,
            started: None,
            cgroup: cgroup.to_owned(),
            over: false,
        }
    }

    /// The container's own process: it ends by itself, or with the pod.
    pub(crate) fn own(channel: Channel, container: &str) -> Self {
        let mut own = Self::new(channel, container, String::new(), PathBuf::new(), "");
        own.over = true;
        own
    }

    fn tasks(&self) -> TasksClient<Channel> {
        TasksClient::new(self.channel.clone())
    }

    /// Starts it, with FIFOs for its streams. `depth`: the engine's PID namespace.
    pub(crate) async fn begin(
        mut self,
        process: Value,
        terminal: bool,
        streams: [&Option<PathBuf>; 3],
        depth: Depth,
    ) -> Result<Self, Error> {
        let fail = || failed(ErrorClass::NotFound, "start the command");
        let [stdin, stdout, stderr] = streams.map(|path| {
            let path = path.as_ref().map(|path| path.to_string_lossy());
            path.unwrap_or_default().into_owned()
        });
        let exec = ExecProcessRequest {
            container_id: self.container.clone(),
            stdin,
            stdout,
            stderr,
            terminal,
            spec: Some(any(&process)),
            exec_id: self.exec_id.clone(),
        };
        self.tasks().exec(request(exec)).await.map_err(fail())?;
        let start = StartRequest {
            container_id: self.container.clone(),
            exec_id: self.exec_id.clone(),
        };
        let started = self.tasks().start(request(start)).await.map_err(fail())?;
        self.started = Some((started.into_inner().pid, depth));
        Ok(self)
    }

    /// Waits for the process's end, however long it takes; returns its exit code.
    ///
    /// # Errors
    /// containerd is not reached, or does not know the process any more ([`ErrorClass::NotFound`]).
    pub async fn wait(&self) -> Result<i32, Error> {
        let wait = WaitRequest {
            container_id: self.container.clone(),
            exec_id: self.exec_id.clone(),
        };
        let ended = self.tasks().wait(unlimited(wait)).await;
        let ended = ended.map_err(failed(ErrorClass::NotFound, "wait for the command"))?;
        Ok(i32::try_from(ended.into_inner().exit_status).unwrap_or(255))
    }

    /// Ends the process's input; the client's side of it is closed already.
    ///
    /// # Errors
    /// containerd is not reached, or refuses. It is no error if the process has ended.
    pub async fn end_input(&self) -> Result<(), Error> {
        let close = CloseIoRequest {
            container_id: self.container.clone(),
            exec_id: self.exec_id.clone(),
            stdin: true,
        };
        let closed = self.tasks().close_io(request(close)).await;
        settled(closed, Code::NotFound)
            .map_err(failed(ErrorClass::NotFound, "end the input of the command"))
    }

    /// Changes the size of the process's terminal.
    ///
    /// # Errors
    /// It has none, or the engine can't be asked.
    pub async fn resize(&self, width: u16, height: u16) -> Result<(), Error> {
        let resize = ResizePtyRequest {
            container_id: self.container.clone(),
            exec_id: self.exec_id.clone(),
            width: width.into(),
            height: height.into(),
        };
        let resized = self.tasks().resize_pty(request(resize)).await;
        resized.map(drop).map_err(failed(
            ErrorClass::NotFound,
            "resize the command's terminal",
        ))
    }

    /// Removes an ended process: when this returns, the shim has copied all its output. Its outputs
    /// must be read meanwhile, else the shim gives up after some seconds.
    pub async fn clear(mut self) {
        self.over = true;
        clear(self.tasks(), &self.container, &self.exec_id, &self.folder).await;
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        if let Some((pid, depth)) = self.started.filter(|_| self.cgroup.len() > 1) {
            kill_session(&self.cgroup, pid, depth);
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let mut tasks = self.tasks();
        let (container, exec_id) = (self.container.clone(), self.exec_id.clone());
        let folder = std::mem::take(&mut self.folder);
        runtime.spawn(async move {
            let kill = KillRequest {
                container_id: container.clone(),
                exec_id: exec_id.clone(),
                signal: 9,
                all: false,
            };
            let killed = settled(tasks.kill(request(kill)).await, Code::NotFound);
            if let Err(status) = killed {
                tracing::debug!(container, %status, "cannot kill a command");
            }
            let wait = WaitRequest {
                container_id: container.clone(),
                exec_id: exec_id.clone(),
            };
            // A process that is not waited for can't be deleted; an error means that there is none.
            drop(tasks.wait(request(wait)).await);
            clear(tasks, &container, &exec_id, &folder).await;
        });
    }
}

async fn clear(mut tasks: TasksClient<Channel>, container: &str, exec_id: &str, folder: &Path) {
    let delete = DeleteProcessRequest {
        container_id: container.to_owned(),
        exec_id: exec_id.to_owned(),
    };
    let deleted = settled(tasks.delete_process(request(delete)).await, Code::NotFound);
    if let Err(status) = deleted {
        tracing::debug!(container, %status, "cannot delete an ended command");
    }
    // Nothing is lost if this fails: /run is empty after a boot.
    drop(std::fs::remove_dir_all(folder));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endless::{endless, steps};

    #[tokio::test]
    async fn reading_an_endless_output_leaves_the_worker_to_others() {
        let output = Output(endless());
        let reading = async {
            let mut bytes = Vec::new();
            while output.read(&mut bytes).await.is_ok() {
                bytes.clear();
            }
        };
        tokio::select! {
            () = steps() => {}
            () = reading => {}
        }
        let left = output.0.try_read(&mut [0; 8]);
        assert!(left.is_ok(), "nothing else ran until it ended");
    }
}
