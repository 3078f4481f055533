//! Starts processes beside a container's own, with streams for a client.

use crate::c_strings;
use crate::containerd::Containerd;
use crate::exec;
use crate::log::Fifos;
use crate::process::{Attached, Command, Control, Input, Output, Outputs, Process};
use crate::specification;
use agent_containerd::{Error, ErrorClass};
use nix::errno::Errno;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::unix::pipe::{OpenOptions, Sender};
use tokio::time::{sleep, timeout};

/// Longest wait for the shim to open the process's input; it does so before it answers the start.
const INPUT_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two attempts to open it.
const INPUT_LOOK: Duration = Duration::from_millis(1);

/// Starts a process in a running container.
pub(crate) async fn start(
    engine: &Containerd,
    id: &str,
    command: &Command,
) -> Result<Process, Error> {
    let local = |error| Error::caused(ErrorClass::Create, "open the command's streams", error);
    c_strings::check("args", &json!(command.words))?;
    let spec = specification::of(engine, id).await?;
    let exec_id = exec::next_id();
    let folder = engine.options.fifos.join(format!("{id}-{exec_id}"));
    let cgroup = spec["linux"]["cgroupsPath"].as_str().unwrap_or_default();
    let control = Control::new(engine.channel.clone(), id, exec_id, folder.clone(), cgroup);
    let path = |wanted: bool, name: &str| wanted.then(|| folder.join(name));
    // Both pipes are made whatever the client reads: without one for stderr, the engine's start of
    // the process returns only at the process's end.
    let terminal = command.outputs == Outputs::Terminal;
    let stdin = path(command.stdin, "stdin");
    let stdout = path(true, "stdout");
    let stderr = path(!terminal, "stderr");
    let all = [&stdin, &stdout, &stderr];
    make(&folder, all.into_iter().flatten()).map_err(local)?;
    let open = |path: &PathBuf| {
        let opened = OpenOptions::new().read_write(true).open_receiver(path);
        opened.map(Output).map_err(local)
    };
    let outputs = (
        stdout.as_ref().map(open).transpose()?,
        stderr.as_ref().map(open).transpose()?,
    );
    let depth = engine.depth().await.map_err(local)?;
    let process = process(spec, command);
    let control = control.begin(process, terminal, all, depth).await?;
    let stdin = match &stdin {
        Some(path) => Some(Input(open_input(path).await.map_err(local)?)),
        None => None,
    };
    Ok(Process {
        stdin,
        stdout: outputs.0,
        stderr: outputs.1,
        control,
    })
}

/// The streams of a container's own process.
pub(crate) fn attach(engine: &Containerd, id: &str, stdin: bool) -> Result<Attached, Error> {
    let ended = || Error::new(ErrorClass::NotFound, "the container has ended");
    let output = engine.pumps.tap(id).ok_or_else(ended)?;
    let fifos = Fifos::of(&engine.options.fifos, id);
    let stdin = if stdin {
        input(&fifos.stdin).map_err(|error| {
            Error::caused(ErrorClass::Create, "open the container's input", error)
        })?
    } else {
        None
    };
    Ok(Attached {
        stdin,
        output,
        control: Control::own(engine.channel.clone(), id),
    })
}

/// A container's input, if it has one and the shim still reads it.
fn input(path: &Path) -> std::io::Result<Option<Input>> {
    match OpenOptions::new().open_sender(path) {
        Ok(sender) => Ok(Some(Input(sender))),
        Err(error)
            if error.kind() == std::io::ErrorKind::NotFound
                || error.raw_os_error() == Some(Errno::ENXIO as i32) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Makes FIFOs in a folder of their own.
fn make<'a>(folder: &Path, fifos: impl Iterator<Item = &'a PathBuf>) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
    for path in fifos {
        nix::unistd::mkfifo(path, mode)?;
    }
    Ok(())
}

/// Opens the process's input for writing, once the shim reads it: bytes written earlier are lost if
/// the input ends at once.
async fn open_input(path: &Path) -> std::io::Result<Sender> {
    let opened = timeout(INPUT_LIMIT, async {
        loop {
            match OpenOptions::new().open_sender(path) {
                Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => {
                    sleep(INPUT_LOOK).await;
                }
                result => return result,
            }
        }
    });
    opened
        .await
        .unwrap_or_else(|_elapsed| Err(std::io::ErrorKind::TimedOut.into()))
}

/// The container's own process with other arguments and, if requested, a terminal.
fn process(mut spec: Value, command: &Command) -> Value {
    let mut process = spec["process"].take();
    process["args"] = command.words.as_slice().into();
    let terminal = command.outputs == Outputs::Terminal;
    process["terminal"] = terminal.into();
    if terminal {
        let named = |env: &Value| env.as_str().is_some_and(|env| env.starts_with("TERM="));
        match process["env"].as_array_mut() {
            Some(env) if env.iter().any(named) => {}
            Some(env) => env.push("TERM=xterm".into()),
            None => process["env"] = json!(["TERM=xterm"]),
        }
    }
    process
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_what_its_container_has_and_no_more() {
        let own = json!({"process": {
            "args": ["/app"], "terminal": false, "env": ["A=1"], "noNewPrivileges": true,
            "capabilities": {"bounding": ["CAP_CHOWN"]}, "user": {"uid": 7}, "cwd": "/srv",
        }});
        let command = Command {
            words: vec!["sh".to_owned()],
            stdin: false,
            outputs: Outputs::Terminal,
        };
        let made = process(own.clone(), &command);
        let mut expected = own["process"].clone();
        expected["args"] = json!(["sh"]);
        expected["terminal"] = true.into();
        expected["env"] = json!(["A=1", "TERM=xterm"]);
        assert_eq!(made, expected);
        let chosen = json!({"process": {"env": ["TERM=dumb"]}});
        assert_eq!(process(chosen, &command)["env"], json!(["TERM=dumb"]));
    }

    #[tokio::test]
    async fn input_is_opened_when_somebody_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("io/stdin");
        make(&dir.path().join("io"), [&path].into_iter()).unwrap();
        let opening = tokio::spawn({
            let path = path.clone();
            async move { open_input(&path).await }
        });
        let reader = OpenOptions::new().open_receiver(&path).unwrap();
        let input = Input(opening.await.unwrap().unwrap());
        assert_eq!(input.write(b"ab").await.unwrap(), 2);
        drop(input);
        assert_eq!(Output(reader).rest(), b"ab");
    }

    #[tokio::test]
    async fn a_container_without_an_input_or_whose_input_has_ended_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let fifos = Fifos::of(dir.path(), "c");
        assert!(input(&fifos.stdin).unwrap().is_none());
        fifos.make_input().unwrap();
        assert!(input(&fifos.stdin).unwrap().is_none(), "nobody reads it");
        let _reader = OpenOptions::new().open_receiver(&fifos.stdin).unwrap();
        assert!(input(&fifos.stdin).unwrap().is_some());
    }
}
