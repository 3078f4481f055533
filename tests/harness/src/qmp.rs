//! QEMU's monitor (QMP): one command, one answer.

use crate::{Error, Result, file_error};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The longest that the monitor may take to answer.
const LIMIT: Duration = Duration::from_secs(20);

/// Sends one command to the monitor at `socket` and returns its answer.
pub fn execute(socket: &Path, command: &str) -> Result<Value> {
    execute_with(socket, command, &json!({}))
}

/// As [`execute`], with arguments.
pub fn execute_with(socket: &Path, command: &str, arguments: &Value) -> Result<Value> {
    let stream = UnixStream::connect(socket)
        .map_err(file_error("cannot reach QEMU's monitor at", socket))?;
    stream
        .set_read_timeout(Some(LIMIT))
        .map_err(file_error("cannot set a limit on", socket))?;
    let mut writer = stream
        .try_clone()
        .map_err(file_error("cannot share", socket))?;
    let mut lines = BufReader::new(stream).lines();
    let mut call = |name: &str, arguments: &Value| -> Result<Value> {
        let command = json!({ "execute": name, "arguments": arguments });
        writeln!(writer, "{command}").map_err(file_error("cannot write to", socket))?;
        for line in lines.by_ref() {
            let line = line.map_err(file_error("cannot read from", socket))?;
            let answer: Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
            if answer.get("error").is_some() {
                return Err(Error::Monitor {
                    command: name.to_owned(),
                    answer: line,
                });
            }
        }
        Err(Error::Monitor {
            command: name.to_owned(),
            answer: "it closed the connection".to_owned(),
        })
    };
    call("qmp_capabilities", &json!({}))?;
    call(command, arguments)
}
