//! The volumes of drivers on this machine: one call at a time for each, on the way that
//! [`crate::volume`] plans.

use crate::calls::{Calls, is_mounted};
use crate::driver::Driver;
use crate::jobs::Jobs;
use crate::ledger::{Ledger, key};
use crate::node;
use crate::ownership::Groups;
use crate::paths::{self, DriverOptions, MOUNT, is_plain};
use crate::registry::Registry;
use crate::request::{DriverVolume, Request};
use crate::usage::Usage;
use crate::volume::{Goal, Progress, Step, Volume};
use agent_api::{Api, MERGE, get, send};
use config_kube::k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use config_kube::k8s_openapi::api::storage::v1::CSIDriver;
use config_kube::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use http::Method;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex as Lock, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Mutex;

/// Between two looks for volumes that are staged and published nowhere.
const SWEEP: Duration = Duration::from_secs(10);
/// How long a pod's task waits for a driver to unmount; then it comes again.
const PATIENCE: Duration = Duration::from_secs(5);
/// The condition of a claim whose file system is still to grow.
const GROWING: &str = "FileSystemResizePending";

/// The drivers of a machine and their volumes.
#[derive(Debug)]
pub struct Csi {
    options: DriverOptions,
    api: Arc<dyn Api>,
    registry: Arc<Registry>,
    ledger: Arc<Ledger>,
    boot: String,
    known: Lock<Known>,
    jobs: Jobs,
    groups: Groups,
}

/// What is, or may be, mounted.
#[derive(Debug, Default)]
struct Known {
    /// The volumes, by [`key`].
    volumes: BTreeMap<String, Slot>,
    /// The keys of the volumes that pods use, by the pods' uids.
    users: BTreeMap<String, BTreeSet<String>>,
}

/// A volume, held by the task that makes calls for it.
type Slot = Arc<Mutex<Volume>>;

/// Ends the background jobs when [`Csi::run`] is dropped.
struct EndsJobs(Arc<Csi>);

impl Drop for EndsJobs {
    fn drop(&mut self) {
        self.0.jobs.end();
    }
}

impl Csi {
    /// The drivers of this machine, with what an earlier agent has left mounted.
    pub fn open(options: DriverOptions, api: Arc<dyn Api>) -> Self {
        let ledger = Ledger::new(options.data.join("csi"));
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let boot = boot.unwrap_or_default().trim().to_owned();
        let found = if options.allowed {
            ledger.all()
        } else {
            Vec::new()
        };
        let mut known = Known::default();
        for mut volume in found {
            volume.enter(&boot);
            let key = key(&volume.driver, &volume.handle);
            for uid in volume
                .targets
                .keys()
                .filter_map(|target| paths::pod_of(target))
            {
                let uses = known.users.entry(uid.to_owned()).or_default();
                uses.insert(key.clone());
            }
            known.volumes.insert(key, Arc::new(Mutex::new(volume)));
        }
        let registry = Registry::new(options.clone(), api.clone());
        Self {
            registry: Arc::new(registry),
            ledger: Arc::new(ledger),
            known: Lock::new(known),
            boot,
            jobs: Jobs::default(),
            groups: Groups::new(options.call_limit),
            options,
            api,
        }
    }

    /// Registers drivers, and unstages what no pod uses any more, until dropped.
    pub async fn run(self: Arc<Self>) {
        if !self.options.allowed {
            return std::future::pending().await;
        }
        let _end = EndsJobs(self.clone());
        let registry = self.registry.clone();
        let node = node::keep(
            registry.clone(),
            self.options.node.clone(),
            self.api.clone(),
        );
        tokio::join!(registry.run(), node, self.sweep());
    }

    /// The pods for which something is, or may be, mounted.
    pub fn pods(&self) -> Vec<String> {
        self.known().users.keys().cloned().collect()
    }

    /// Has a pod's volume mounted, and grown where its claim shows less than it has; returns the
    /// place, below the folder of the machine's volumes. The driver is asked for what is missing:
    /// calling this again costs little.
    ///
    /// # Errors
    /// Why it isn't mounted, for a person.
    pub async fn mount(&self, pod: &Pod, source: DriverVolume<'_>) -> Result<PathBuf, String> {
        let name = source.driver()?;
        if !self.options.allowed {
            return Err(format!(
                "no volume plugin matched: CSI driver {name} can't run here, as privileged pods run only on machines whose \
                 measured configuration says `[node] privileged = true`"
            ));
        }
        let rules = self.rules(name).await?;
        let request = Request::of(pod, source, rules.as_ref())?;
        let uid = pod.metadata.uid.as_deref().filter(|uid| is_plain(uid));
        let uid = uid.ok_or("the pod has no plain uid")?;
        let target = paths::target(uid, &request.name);
        let folder = paths::target_folder(&target).ok_or("the volume has no plain name")?;
        let driver = self.driver(name)?;
        let calls = self.calls(&driver);
        let slot = self.slot(uid, &request);
        let mut volume = slot.lock().await;
        self.publish(&mut volume, calls, &request, &target).await?;
        self.grow(calls, &request, source, &target).await?;
        Ok(folder.join(MOUNT))
    }

    /// Has a claimed volume's file system grown to the size that the volume has, where its driver
    /// does that, and writes the size into the claim's status.
    async fn grow(
        &self,
        calls: Calls<'_>,
        request: &Request,
        source: DriverVolume<'_>,
        target: &str,
    ) -> Result<(), String> {
        let (Some(growth), DriverVolume::Claimed { claim, .. }) = (&request.growth, source) else {
            return Ok(());
        };
        if calls.driver.abilities.expands {
            calls.expand(request, target, growth.bytes).await?;
            self.tell_size(claim, &growth.size).await?;
        }
        Ok(())
    }

    /// How much is used of the volume that is published at this path below the folder of the
    /// machine's volumes; none where its driver says nothing of that, or does not answer in a few
    /// seconds.
    pub async fn usage(&self, path: &Path) -> Option<Usage> {
        let target = paths::target_at(path)?;
        let volume = self.published(&target)?;
        let driver = self.registry.driver(&volume.driver)?;
        let is_asked = driver.abilities.measures;
        if !is_asked || !is_mounted(&self.options.data, &target).unwrap_or(false) {
            return None;
        }
        let usage = self.calls(&driver).usage(&volume, &target).await;
        usage
            .map_err(|error| {
                let name = &driver.name;
                tracing::debug!(driver = name, error, "a volume is not measured");
            })
            .ok()
    }

    /// The volume of a target, as it is unless a call for it is being made.
    fn published(&self, target: &str) -> Option<Volume> {
        let known = self.known();
        let keys = known.users.get(paths::pod_of(target)?)?;
        let slots = keys.iter().filter_map(|key| known.volumes.get(key));
        let mut volumes = slots.filter_map(|slot| slot.try_lock().ok());
        let of_target = |volume: &Volume| volume.targets.contains_key(target);
        let found = volumes.find(|volume| of_target(volume))?;
        Some(found.clone())
    }

    /// Unmounts all volumes of a pod whose containers are gone. Returns at once where it has none,
    /// and in a few seconds otherwise: the work goes on, and the next call returns its result.
    ///
    /// # Errors
    /// Why something of it is, or may be, still mounted.
    pub async fn release(self: &Arc<Self>, uid: &str) -> Result<(), String> {
        if !self.known().users.contains_key(uid) {
            return Ok(());
        }
        let (csi, pod) = (self.clone(), uid.to_owned());
        let begin = move || async move { csi.unpublish(&pod).await };
        self.jobs.attempt(uid, PATIENCE, begin).await
    }

    /// Takes all volumes from a pod.
    async fn unpublish(&self, uid: &str) -> Result<(), String> {
        let slots: Vec<Slot> = {
            let known = self.known();
            let keys = known.users.get(uid).into_iter().flatten();
            keys.filter_map(|key| known.volumes.get(key).cloned())
                .collect()
        };
        for slot in slots {
            let mut volume = slot.lock().await;
            let of_pod = |target: &&String| paths::pod_of(target) == Some(uid);
            let targets: Vec<String> = volume.targets.keys().filter(of_pod).cloned().collect();
            for target in targets {
                let goal = Goal::Gone { target: &target };
                let gone = self.withdraw(&mut volume, goal).await;
                if volume.targets.contains_key(&target) {
                    return gone;
                }
                // The pod need not wait for what is staged, of which the sweep takes care.
            }
        }
        self.known().users.remove(uid);
        Ok(())
    }

    /// Brings a volume to a target; first its stage, where the driver has one.
    async fn publish(
        &self,
        volume: &mut Volume,
        calls: Calls<'_>,
        request: &Request,
        target: &str,
    ) -> Result<(), String> {
        let staged = calls.driver.abilities.stages && !request.inline;
        let goal = Goal::Published { target, staged };
        if volume.next(goal).is_none() {
            if request.republish {
                return calls.publish(request, target).await;
            }
            if is_mounted(&self.options.data, target)? {
                return Ok(());
            }
            volume.targets.insert(target.to_owned(), Progress::Begun);
        }
        while let Some(step) = volume.next(goal) {
            volume.begin(step);
            self.keep(volume).await?;
            match step {
                Step::Stage => calls.stage(request).await?,
                Step::Publish(target) => {
                    calls.publish(request, target).await?;
                    calls.give_group(request, target).await?;
                }
                Step::Unpublish(_) | Step::Unstage | Step::Forget => break,
            }
            volume.done(step);
            self.keep(volume).await?;
        }
        Ok(())
    }

    /// Undoes calls on the way to [`Goal::Gone`] or [`Goal::Unstaged`].
    async fn withdraw(&self, volume: &mut Volume, goal: Goal<'_>) -> Result<(), String> {
        while let Some(step) = volume.next(goal) {
            if step == Step::Forget {
                return self.forget(volume).await;
            }
            let driver = self.driver(&volume.driver)?;
            let calls = self.calls(&driver);
            volume.begin(step);
            self.keep(volume).await?;
            match step {
                Step::Unpublish(target) => calls.unpublish(volume, target).await?,
                Step::Unstage => calls.unstage(volume).await?,
                Step::Stage | Step::Publish(_) | Step::Forget => break,
            }
            volume.done(step);
            self.keep(volume).await?;
        }
        Ok(())
    }

    /// Unstages volumes that are published at no target, until it is dropped.
    async fn sweep(self: &Arc<Self>) {
        loop {
            tokio::time::sleep(SWEEP).await;
            self.jobs.reap();
            for slot in self.slots() {
                let Ok(volume) = slot.try_lock() else {
                    continue;
                };
                if !volume.targets.is_empty() {
                    continue;
                }
                let name = format!("volume/{}", key(&volume.driver, &volume.handle));
                drop(volume);
                let csi = self.clone();
                let begin = move || async move {
                    let mut volume = slot.lock().await;
                    csi.withdraw(&mut volume, Goal::Unstaged).await
                };
                if let Err(error) = self.jobs.attempt(&name, Duration::ZERO, begin).await {
                    tracing::debug!(name, error, "a volume is still staged");
                }
            }
        }
    }

    fn calls<'a>(&'a self, driver: &'a Driver) -> Calls<'a> {
        Calls {
            data: &self.options.data,
            api: &*self.api,
            driver,
            groups: &self.groups,
        }
    }

    fn driver(&self, name: &str) -> Result<Arc<Driver>, String> {
        let text = || format!("driver name {name} not found in the list of registered CSI drivers");
        self.registry.driver(name).ok_or_else(text)
    }

    /// The driver's CSIDriver object, if there is one.
    async fn rules(&self, name: &str) -> Result<Option<CSIDriver>, String> {
        let path = format!("/apis/storage.k8s.io/v1/csidrivers/{name}");
        match get(&*self.api, path).await {
            Ok(rules) => Ok(Some(rules)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(format!("CSIDriver {name}: {}", error.chain())),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots(&self) -> Vec<Slot> {
        self.known().volumes.values().cloned().collect()
    }

    /// The volume of a request, which the pod uses from now on.
    fn slot(&self, uid: &str, request: &Request) -> Slot {
        let (driver, handle) = (&request.driver, &request.handle);
        let key = key(driver, handle);
        let mut known = self.known();
        let uses = known.users.entry(uid.to_owned()).or_default();
        uses.insert(key.clone());
        let new = || Arc::new(Mutex::new(Volume::new(driver, handle, &self.boot)));
        known.volumes.entry(key).or_insert_with(new).clone()
    }

    /// Writes a volume down before and after each call.
    async fn keep(&self, volume: &Volume) -> Result<(), String> {
        let (ledger, volume) = (self.ledger.clone(), volume.clone());
        let kept = tokio::task::spawn_blocking(move || ledger.keep(&volume)).await;
        let kept = kept.map_err(io::Error::other).flatten();
        kept.map_err(|error| format!("cannot write the volume's record: {error}"))
    }

    async fn forget(&self, volume: &Volume) -> Result<(), String> {
        let (ledger, gone) = (self.ledger.clone(), volume.clone());
        let forgotten = tokio::task::spawn_blocking(move || ledger.forget(&gone)).await;
        let forgotten = forgotten.map_err(io::Error::other).flatten();
        forgotten.map_err(|error| format!("cannot delete the volume's record: {error}"))?;
        let mut known = self.known();
        let key = key(&volume.driver, &volume.handle);
        // One is the map's, one the caller's: a task that has a third is about to use the volume.
        if known
            .volumes
            .get(&key)
            .is_some_and(|slot| Arc::strong_count(slot) <= 2)
        {
            known.volumes.remove(&key);
        }
        Ok(())
    }

    /// Writes into a claim's status how large its volume is now.
    async fn tell_size(
        &self,
        claim: &PersistentVolumeClaim,
        size: &Quantity,
    ) -> Result<(), String> {
        let meta = &claim.metadata;
        let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
        let (Some(namespace), Some(name)) = (namespace, name) else {
            return Err("the claim has no name".to_owned());
        };
        let status = claim.status.clone().unwrap_or_default();
        let conditions = status.conditions.into_iter().flatten();
        let others: Vec<_> = conditions
            .filter(|one| one.type_ != GROWING && one.type_ != "Resizing")
            .collect();
        let patch = json!({"status": {"capacity": {"storage": size}, "conditions": others,
            "allocatedResourceStatuses": null}});
        let at = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}/status");
        let answer = send(&*self.api, Method::PATCH, at, MERGE, &patch).await;
        answer.map_err(|error| {
            format!(
                "cannot write the volume's size into the claim's status: {}",
                error.chain()
            )
        })
    }
}
