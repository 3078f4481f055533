//! User-data from the metadata service of the machine's cloud: which service, and the run of the
//! agent that asks it.
//!
//! init itself has no network. It starts `agent metadata`, which brings up the only network before
//! the measurement, fetches the bytes and takes the network down again; init only reads the bytes,
//! and measures them before any code parses them.

use std::fs;
use std::time::Duration;

use agent_metadata::{Dmi, Platform, exit};
use agent_sys::process::Program;

use crate::console::Console;
use crate::oneshot;
use crate::user_data::{Found, SourceError, read_file};

const AGENT: &str = "/usr/bin/agent";
const BYTES: &str = "/run/pratique/metadata";
const GROUP: &str = "/sys/fs/cgroup/pratique/metadata";
/// How long the agent may take: its own limits for an address and for the exchange, and a margin.
const LIMIT: Duration = Duration::from_secs(120);
/// Most bytes read of one DMI field.
const DMI_BYTES: usize = 256;

/// The machine's DMI fields; empty if the firmware has none.
pub fn dmi() -> Dmi {
    let read = |name: &str| {
        let text = fs::read_to_string(format!("/sys/class/dmi/id/{name}")).unwrap_or_default();
        text.trim().chars().take(DMI_BYTES).collect()
    };
    Dmi {
        sys_vendor: read("sys_vendor"),
        product_name: read("product_name"),
        chassis_asset_tag: read("chassis_asset_tag"),
    }
}

/// Fetches the user-data from `platform`'s service.
///
/// # Errors
/// The agent cannot be started, ends with an error, or leaves no user-data.
pub fn fetch(console: &Console, platform: Platform) -> Result<Found, SourceError> {
    let label = platform.label();
    console.milestone(&format!(
        "no user-data on the machine: asking the metadata service of {label}"
    ));
    let made = fs::create_dir_all(GROUP).is_ok();
    let program = Program {
        path: AGENT.to_owned(),
        arguments: ["metadata", "--platform", label, "--out", BYTES]
            .map(str::to_owned)
            .to_vec(),
        environment: Vec::new(),
        cgroup: made.then(|| GROUP.to_owned()),
        oom_score: 0,
        open_files: None,
    };
    let ended = oneshot::run(console, "metadata", &program, LIMIT);
    // The control group is normally gone with its processes; what remains is empty.
    drop(fs::remove_dir(GROUP));
    let code = ended.map_err(|cause| SourceError::Errand(label, cause))?;
    let is = |wanted: u8| code == i32::from(wanted);
    if is(exit::DONE) {
        let bytes = read_file(BYTES, label);
        drop(fs::remove_file(BYTES));
        return Ok(Found {
            label,
            bytes: bytes?,
        });
    }
    Err(if is(exit::NOTHING) {
        SourceError::NoUserData(label)
    } else if is(exit::REFUSED) {
        SourceError::Service(label)
    } else {
        SourceError::NoAnswer(label)
    })
}
