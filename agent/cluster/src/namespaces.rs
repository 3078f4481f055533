//! Makes the namespaces of a sandbox, and its memory.

use crate::error::Error;
use crate::sandbox::Sandbox;
use agent_sys::mount::{Limits, mount};
use agent_sys::namespace::{self, Kind};
use agent_sys::netlink::links::{LOOPBACK, Links};
use std::fs;
use std::path::PathBuf;

/// Mount options of a pod's `/dev/shm` (upstream's). Its memory counts against the limit of the
/// container that writes it.
const SHM_OPTIONS: &str = "mode=1777,size=65536k";
/// Settings of every pod's own network namespace, as other engines have them (containerd 2, CRI-O):
/// programs need no capability to listen below port 1024 or to ping.
const POD_SETTINGS: [(&str, &str); 2] = [
    ("net/ipv4/ip_unprivileged_port_start", "0"),
    ("net/ipv4/ping_group_range", "0 2147483647"),
];

/// Makes a sandbox's namespaces, sets them up, and holds them by mounts.
pub(crate) fn make_namespaces(sandbox: &Sandbox) -> Result<(), Error> {
    let kinds = sandbox.wanted.kinds();
    let places = kinds.iter().map(|kind| sandbox.folder.join(kind.name()));
    let places: Vec<PathBuf> = places.collect();
    let places = || {
        kinds
            .iter()
            .copied()
            .zip(places.iter().map(PathBuf::as_path))
    };
    if let Some(first) = sandbox.first_id {
        namespace::hold_owned(first, &places().collect::<Vec<_>>())?;
        // The machine's root may set them from outside of the user namespace, which no thread can
        // enter.
        let entered = places().filter(|(kind, _)| *kind != Kind::User);
        namespace::inside(&entered.collect::<Vec<_>>(), || set_namespaces(sandbox))?;
    } else {
        namespace::in_new(&kinds, || {
            set_namespaces(sandbox)?;
            places().try_for_each(|(kind, path)| namespace::hold(kind, path))
        })?;
    }
    Ok(())
}

/// Sets host name and kernel settings of the calling thread's namespaces, which are the sandbox's.
fn set_namespaces(sandbox: &Sandbox) -> agent_sys::Result<()> {
    let wanted = &sandbox.wanted;
    if let Some(name) = &wanted.hostname {
        namespace::name_host(name)?;
    }
    if wanted.network {
        Links::open()?.switch_on(LOOPBACK)?;
        for (setting, value) in POD_SETTINGS {
            namespace::set(setting, value)?;
        }
    }
    let settings = wanted.settings.iter();
    let (of_network, others): (Vec<_>, Vec<_>) =
        settings.partition(|(setting, _)| setting.starts_with("net/"));
    for (setting, value) in of_network {
        namespace::set(setting, value)?;
    }
    let mut others = others.into_iter();
    others.try_for_each(|(setting, value)| match sandbox.first_id {
        Some(first) => namespace::set_as_owner(first, setting, value),
        None => namespace::set(setting, value),
    })
}

/// Mounts the tmpfs that is the pod's `/dev/shm`.
pub(crate) fn make_memory(sandbox: &Sandbox) -> Result<(), Error> {
    let Some(shm) = sandbox.shm() else {
        return Ok(());
    };
    fs::create_dir(&shm).map_err(Error::file("make", &shm))?;
    let limits = Limits {
        no_suid: true,
        no_dev: true,
        no_exec: true,
        ..Limits::default()
    };
    let owner = sandbox
        .first_id
        .map(|first| format!(",uid={first},gid={first}"));
    let options = format!("{SHM_OPTIONS}{}", owner.unwrap_or_default());
    mount("shm", &shm.to_string_lossy(), "tmpfs", limits, &options)?;
    Ok(())
}
