//! Keeps a container's OCI specification: in a file on a tmpfs, if the runtime that containerd
//! starts reads it there, or in containerd's database.

use crate::containerd::{Containerd, Options};
use crate::labels;
use agent_containerd::{Error, ErrorClass, failed, request};
use config_machine::specification::path;
use containerd_client::services::v1::GetContainerRequest;
use prost_types::Any;
use serde_json::{Map, Value, json};
use std::fs::{DirBuilder, OpenOptions, read};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Writes the specification of the container `id` to its file, unless containerd keeps it.
///
/// # Errors
/// The file can't be written ([`ErrorClass::Create`]).
pub(crate) fn keep(options: &Options, id: &str, whole: &Value) -> Result<(), Error> {
    if options.programs.is_none() {
        return Ok(());
    }
    write(&path(&options.fifos, id), whole.to_string().as_bytes()).map_err(|error| {
        let text = format!("write the specification of {id}");
        Error::caused(ErrorClass::Create, text, error)
    })
}

/// The part of a container's specification that containerd gets.
pub(crate) fn given(options: &Options, whole: &Value) -> Any {
    if options.programs.is_none() {
        return any(whole);
    }
    // If a container has no PID namespace of its own, the shim kills all its processes with the
    // first one: so it needs the namespaces. The control group is read when the container has ended
    // (crate::memory). By the id mappings, containerd gives a pod's root access to the container's
    // folder.
    let linux = ["namespaces", "cgroupsPath", "uidMappings", "gidMappings"];
    let linux = linux.map(|key| (key.to_owned(), whole["linux"][key].clone()));
    let linux: Map<String, Value> = linux.into_iter().collect();
    any(&json!({"ociVersion": whole["ociVersion"], "linux": linux}))
}

/// The specification by which a container was made.
///
/// # Errors
/// The container or its file is gone ([`ErrorClass::NotFound`]), or what was kept is no JSON
/// ([`ErrorClass::Create`]).
pub(crate) async fn of(engine: &Containerd, id: &str) -> Result<Value, Error> {
    let bytes = if engine.options.programs.is_some() {
        let fail = |error| {
            Error::caused(
                ErrorClass::NotFound,
                format!("look at container {id}"),
                error,
            )
        };
        read(path(&engine.options.fifos, id)).map_err(fail)?
    } else {
        stored(engine, id).await?
    };
    serde_json::from_slice(&bytes).map_err(|error| {
        let text = format!("read the specification of {id}");
        Error::caused(ErrorClass::Create, text, error)
    })
}

async fn stored(engine: &Containerd, id: &str) -> Result<Vec<u8>, Error> {
    let fail = failed(ErrorClass::NotFound, format!("look at container {id}"));
    let get = GetContainerRequest { id: id.to_owned() };
    let answer = engine.containers().get(request(get)).await.map_err(fail)?;
    let spec = answer.into_inner().container.and_then(|stored| stored.spec);
    Ok(spec.map(|spec| spec.value).unwrap_or_default())
}

/// A specification in the form of containerd's messages.
fn any(document: &Value) -> Any {
    Any {
        type_url: labels::SPEC_TYPE.to_owned(),
        value: document.to_string().into_bytes(),
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(bytes)
}
