//! Links to containers' logs by upstream's names, which say of which pod a log is: programs that
//! collect logs look for them in `/var/log/containers`.
//!
//! The folder is the agent's own. A link is made and removed through the folder's descriptor, and
//! the agent follows none: a link's log is looked for by the path that it has, below the folder of
//! all logs.

use crate::machine::Machine;
use agent_pods::{log_file, log_link, pod_logs};
use agent_runtime::{ContainerKey, PodRef, container_id};
use agent_sys::beneath::{self, Beneath};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// Links that are looked at in one call; there are two for each container at most.
const MOST: usize = 65_536;

/// Makes the link to an attempt's log.
///
/// # Errors
/// The folder for the links can't be made or opened, or the link can't be made in it.
pub fn make(machine: &Machine, key: &ContainerKey) -> io::Result<()> {
    link(&Beneath::make_root(&machine.log_links())?, machine, key)
}

/// Removes the link to an attempt's log.
///
/// # Errors
/// The folder for the links can't be opened, or the link can't be removed. A link that is not there
/// is no error.
pub fn remove(machine: &Machine, key: &ContainerKey) -> io::Result<()> {
    let (name, log) = (name(key), log(machine, key));
    let Some(links) = there(&machine.log_links())? else {
        return Ok(());
    };
    // A name that was cut can be another container's.
    if links.read_link(&name).is_ok_and(|target| target == log) {
        links.remove_file(&name)?;
    }
    Ok(())
}

/// Removes the links to the logs of a pod.
///
/// # Errors
/// The folder for the links can't be opened or listed, or one of the links can't be removed.
pub fn forget(machine: &Machine, pod: &PodRef) -> io::Result<()> {
    let logs = machine.logs.join(pod_logs(pod));
    there(&machine.log_links())?.map_or(Ok(()), |links| {
        remove_those(&links, |target| target.starts_with(&logs))
    })
}

/// Makes the links that these attempts lack whose logs are there, and removes those whose log is
/// gone: an agent that was ended in between has left both. `attempts` are all that the engine has;
/// the log of one of them is away for a moment while it is put aside.
///
/// # Errors
/// A folder can't be opened or listed, or one of the links can't be made or removed.
pub fn settle(machine: &Machine, attempts: &[ContainerKey]) -> io::Result<()> {
    let Some(logs) = there(&machine.logs)? else {
        return Ok(());
    };
    let links = Beneath::make_root(&machine.log_links())?;
    let known: BTreeSet<PathBuf> = attempts.iter().map(|key| log(machine, key)).collect();
    let look = |log: &Path| {
        let path = log.strip_prefix(&machine.logs);
        let path = path.map_err(|_elsewhere| io::Error::from(io::ErrorKind::NotFound))?;
        logs.handle(path, beneath::Links::Refused)
    };
    let is_gone = |log: &Path| look(log).is_err_and(|error| is_absent(&error));
    remove_those(&links, |target| !known.contains(target) && is_gone(target))?;
    let is_logged = |key: &&ContainerKey| look(&log(machine, key)).is_ok_and(|log| log.is_file());
    let mut logged = attempts.iter().filter(is_logged);
    logged.try_for_each(|key| link(&links, machine, key))
}

/// The log of an attempt.
fn log(machine: &Machine, key: &ContainerKey) -> PathBuf {
    log_file(&machine.logs, &key.pod, &key.container, key.attempt)
}

/// The name of its link.
fn name(key: &ContainerKey) -> PathBuf {
    let id = container_id(&key.pod.uid, &key.container, key.attempt);
    log_link(&key.pod, &key.container, &id).into()
}

/// Makes a link, unless one of its name is there.
fn link(links: &Beneath, machine: &Machine, key: &ContainerKey) -> io::Result<()> {
    match links.link(&log(machine, key), &name(key)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Removes the links whose targets are meant; what is no link stays.
fn remove_those(links: &Beneath, is_meant: impl Fn(&Path) -> bool) -> io::Result<()> {
    let names = links.names(MOST)?;
    let mut meant = names.iter().map(Path::new).filter(|name| {
        let target = links.read_link(name);
        target.is_ok_and(|target| is_meant(&target))
    });
    meant.try_for_each(|name| links.remove_file(name))
}

/// A folder, where it is there.
fn there(path: &Path) -> io::Result<Option<Beneath>> {
    match Beneath::root(path) {
        Err(error) if is_absent(&error) => Ok(None),
        found => found.map(Some),
    }
}

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;
    use agent_runtime::ContainerKind;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn key(pod: &str, uid: &str, attempt: u32) -> ContainerKey {
        ContainerKey {
            pod: PodRef {
                namespace: "n".into(),
                name: pod.into(),
                uid: uid.into(),
            },
            container: "c".into(),
            kind: ContainerKind::Main,
            attempt,
        }
    }

    /// A machine where these attempts have logs, each with its own words.
    fn machine_with(dir: &Path, keys: &[&ContainerKey]) -> Machine {
        let machine = machine(dir);
        for key in keys {
            let log = log(&machine, key);
            fs::create_dir_all(log.parent().unwrap()).unwrap();
            fs::write(log, format!("{} {}", key.pod.uid, key.attempt)).unwrap();
        }
        machine
    }

    /// The names of all links, and what a collector reads there.
    fn read(machine: &Machine) -> Vec<(String, String)> {
        let all = fs::read_dir(machine.log_links()).unwrap();
        let mut all: Vec<_> = all
            .map(|entry| entry.unwrap().path())
            .map(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                (name, fs::read_to_string(path).unwrap_or_default())
            })
            .collect();
        all.sort_unstable();
        all
    }

    fn words(machine: &Machine) -> Vec<String> {
        read(machine).into_iter().map(|(_, words)| words).collect()
    }

    #[test]
    fn a_log_has_a_link_by_upstreams_name_that_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second, other) = (key("p", "u", 0), key("p", "u", 1), key("p", "again", 0));
        let machine = machine_with(dir.path(), &[&first, &second, &other]);
        // Nothing is there to be removed.
        remove(&machine, &first).unwrap();
        forget(&machine, &first.pod).unwrap();
        for _ in 0..2 {
            make(&machine, &first).unwrap();
        }
        let id = container_id("u", "c", 0);
        let name = format!("p_n_c-{id}.log");
        assert_eq!(read(&machine), [(name, "u 0".to_owned())]);
        make(&machine, &second).unwrap();
        make(&machine, &other).unwrap();
        remove(&machine, &first).unwrap();
        let mut left = words(&machine);
        left.sort_unstable();
        assert_eq!(left, ["again 0", "u 1"]);
        forget(&machine, &first.pod).unwrap();
        assert_eq!(words(&machine), ["again 0"], "of another pod of that name");
    }

    #[test]
    fn what_an_agent_has_left_is_made_good_and_nothing_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (lacks, away, gone) = (
            key("lacks", "1", 0),
            key("away", "2", 0),
            key("gone", "3", 0),
        );
        let machine = machine_with(dir.path(), &[&lacks, &gone]);
        make(&machine, &away).unwrap();
        make(&machine, &gone).unwrap();
        fs::remove_file(log(&machine, &gone)).unwrap();
        // A pod that writes to its logs' folder made its log a link, and a folder.
        let (turned, folder) = (key("turned", "4", 0), key("folder", "5", 0));
        let secret = dir.path().join("secret");
        fs::write(&secret, "of the machine").unwrap();
        fs::create_dir_all(log(&machine, &turned).parent().unwrap()).unwrap();
        symlink(&secret, log(&machine, &turned)).unwrap();
        fs::create_dir_all(log(&machine, &folder)).unwrap();
        let place = machine.log_links();
        symlink(&secret, place.join("foreign")).unwrap();
        fs::write(place.join("file"), "").unwrap();
        fs::create_dir(place.join("folder")).unwrap();
        let attempts = [lacks.clone(), away.clone(), turned, folder];
        settle(&machine, &attempts).unwrap();
        let left: Vec<String> = read(&machine).into_iter().map(|(name, _)| name).collect();
        let [lacks, away] = [lacks, away].map(|key| name(&key).display().to_string());
        assert!(left.contains(&lacks) && left.contains(&away), "{left:?}");
        let others = left.iter().filter(|name| ![&lacks, &away].contains(name));
        assert_eq!(others.collect::<Vec<_>>(), ["file", "folder"]);
        assert_eq!(fs::read_to_string(&secret).unwrap(), "of the machine");
    }

    #[test]
    fn a_name_that_was_cut_is_the_first_containers() {
        let dir = tempfile::tempdir().unwrap();
        let long = "p".repeat(246);
        let (first, second) = (key(&long, "1", 0), key(&long, "2", 0));
        let machine = machine_with(dir.path(), &[&first, &second]);
        for key in [&first, &second] {
            make(&machine, key).unwrap();
        }
        assert_eq!(words(&machine), ["1 0"]);
        assert_eq!(read(&machine)[0].0.len(), 255);
        remove(&machine, &second).unwrap();
        settle(&machine, &[first.clone(), second.clone()]).unwrap();
        assert_eq!(words(&machine), ["1 0"]);
        remove(&machine, &first).unwrap();
        settle(&machine, &[second]).unwrap();
        assert_eq!(words(&machine), ["2 0"]);
    }
}
