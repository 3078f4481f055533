//! Checks the mounts of a container that was created and does not run yet.

use super::Containerd;
use crate::model::{ContainerSpec, Mount};
use crate::pids::own_number;
use agent_confine::{ExpectedMount, mount_fault};
use agent_containerd::{Error, ErrorClass};
use agent_sys::mount::Limits;
use agent_sys::mounted::{Mounted, Namespace, own};
use containerd_client::types::v1::{Process, Status};
use std::io;
use std::time::{Duration, Instant};

/// How long a task's state is queried while its shim does not answer containerd in time (2 s), as
/// on a busy machine.
const STATE_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two queries.
const STATE_PAUSE: Duration = Duration::from_millis(500);

impl Containerd {
    /// Makes sure, before the container's first process runs anything, that its mounts are the
    /// requested ones, with their flags: see [`mount_fault`]. From then on, devices in its image,
    /// and those that it makes in its own layer, can't be opened. `pid`: the first process, in the
    /// engine's PID namespace.
    ///
    /// # Errors
    /// Something else was mounted, or the process has ended. The container must not be started
    /// then.
    pub(super) async fn confine_mounts(
        &self,
        spec: &ContainerSpec,
        id: &str,
        pid: u32,
    ) -> Result<(), Error> {
        let name = &spec.key.container;
        let fault = |text| Error::new(ErrorClass::Create, format!("container {name}: {text}"));
        let volumes = spec.mounts.clone();
        let group = format!("{}/{id}", spec.cgroup_parent);
        let depth = self.depth().await.map_err(|error| {
            Error::caused(ErrorClass::Create, "find the engine's process", error)
        })?;
        let looked = blocking(move || {
            let gone = || agent_sys::Error::new("find", "its process", io::ErrorKind::NotFound);
            Namespace::of(own_number(&group, pid, depth).ok_or_else(gone)?)
        });
        let (namespace, mounts) = looked.await?;
        let compared = blocking(move || {
            let own = own()?;
            let wanted = volumes.iter().map(|volume| wanted(volume, &own));
            let wanted: Vec<_> = wanted.collect::<agent_sys::Result<_>>()?;
            Ok(mount_fault(&wanted.concat(), &mounts))
        });
        // No other process got the PID meanwhile, if the container's first process still has it.
        let (task, found) = tokio::join!(with_state(|| self.task(id)), compared);
        let (task, found) = (task?, found?);
        let is_made = |task: &Process| task.pid == pid && task.status == Status::Created as i32;
        if task.as_ref().is_some_and(is_unknown) {
            let seconds = STATE_LIMIT.as_secs();
            return Err(fault(format!(
                "containerd did not learn in {seconds} s whether its process exists"
            )));
        }
        if !task.as_ref().is_some_and(is_made) {
            return Err(fault("its process ended before it was started".to_owned()));
        }
        if let Some(found) = found {
            let cure = "mount volumes at paths that lead through no symbolic link of a volume";
            return Err(fault(format!("{found}; {cure}")));
        }
        // The runtime drops flags of the root's mount, so this one can't be set before. Devices are
        // only in the container's /dev.
        blocking(move || namespace.ignore_devices_of_root()).await
    }
}

fn is_unknown(task: &Process) -> bool {
    task.status == Status::Unknown as i32
}

/// Queries a task until its state is known, at most for [`STATE_LIMIT`].
pub(super) async fn with_state<F>(mut look: impl FnMut() -> F) -> Result<Option<Process>, Error>
where
    F: Future<Output = Result<Option<Process>, Error>>,
{
    let begun = Instant::now();
    loop {
        let task = look().await?;
        if !task.as_ref().is_some_and(is_unknown) || begun.elapsed() >= STATE_LIMIT {
            return Ok(task);
        }
        tokio::time::sleep(STATE_PAUSE).await;
    }
}

fn wanted(volume: &Mount, own: &[Mounted]) -> agent_sys::Result<Vec<ExpectedMount>> {
    let limits = Limits {
        read_only: volume.read_only,
        no_exec: volume.no_exec,
        ..Limits::default()
    };
    ExpectedMount::of_volume(&volume.source, &volume.destination, limits, own)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> agent_sys::Result<T> + Send + 'static,
) -> Result<T, Error> {
    let doing = "look at the container's mounts";
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|error| Error::caused(ErrorClass::Create, doing, error))?;
    done.map_err(|error| Error::caused(ErrorClass::Create, doing, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_whose_shim_does_not_answer_is_asked_for_again() {
        let mut answers = vec![Status::Created, Status::Unknown, Status::Unknown];
        let look = || {
            let status = answers.pop().expect("a query too many") as i32;
            let process = Process {
                status,
                ..Process::default()
            };
            std::future::ready(Ok(Some(process)))
        };
        let task = with_state(look).await.unwrap().unwrap();
        assert_eq!(task.status, Status::Created as i32);
        assert!(
            with_state(|| std::future::ready(Ok(None)))
                .await
                .unwrap()
                .is_none()
        );
    }
}
