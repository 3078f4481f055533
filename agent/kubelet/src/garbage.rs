//! Removes unused images when the disk fills up.

use crate::shared::Shared;
use agent_images::Swept;
use agent_runtime::{Container, Error, Image};
use config_kube::k8s_openapi::api::core::v1::{Pod, PodSpec};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two checks of the disk (upstream's).
const PERIOD: Duration = Duration::from_secs(300);

/// How much to free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Enough to bring the disk below the lower mark, if it is above the higher.
    Marks,
    /// All unused images.
    All,
}

/// Checks the disk periodically, for ever.
pub(crate) async fn collect(shared: Arc<Shared>) {
    let mut failed = false;
    loop {
        let fault = relieve(&shared).await.err();
        if let Some(fault) = &fault {
            tracing::warn!(error = fault, "unused images not removed");
            // A first failure may pass by itself (upstream's rule).
            if failed {
                shared.warn("ImageGCFailed", fault);
            }
        }
        failed = fault.is_some();
        tokio::time::sleep(PERIOD).await;
    }
}

/// Brings the disk below the marks; the error is for an event.
async fn relieve(shared: &Shared) -> Result<(), String> {
    let swept = sweep(shared, Goal::Marks).await;
    let swept = swept.map_err(|error| error.chain())?;
    swept.failure().map_or(Ok(()), Err)?;
    swept.lack().map_or(Ok(()), |lack| {
        shared.warn("FreeDiskSpaceFailed", &lack);
        Err(lack)
    })
}

/// Removes unused images, except those fetched recently; the result says which could not be.
///
/// # Errors
/// containerd cannot list images or containers.
pub(crate) async fn sweep(shared: &Shared, goal: Goal) -> Result<Swept, Error> {
    let mut uses = shared.images.lock().await;
    let images = shared.runtime.images().await?;
    let taken = of_containers(shared, shared.runtime.list(None).await?);
    let shown = shown(&shared.all_pods(), |image| shared.runtime.full_name(image));
    let in_use = |image: &Image| taken.contains(&image.id()) || shown.contains(&image.name);
    let unused = uses.unused(&images, in_use, Instant::now());
    let space = shared.facts.space();
    let marks = &shared.config.thresholds.images;
    let wanted = (goal == Goal::Marks).then(|| marks.excess(space.size, space.free));
    let mut swept = Swept::begin(wanted, space.size, space.free);
    for image in unused {
        if swept.is_done() {
            break;
        }
        let removed = shared.runtime.remove_image(&image.name).await;
        swept.note(image, &removed);
        if removed.is_ok() {
            tracing::info!(
                image = image.name,
                size = image.size,
                "unused image removed to free disk space"
            );
        }
    }
    Ok(swept)
}

/// The ids of the images of containers: by the engine's names, not the pod's, as a name without a
/// host means the default registry. Containers of a pod that has released its resources have no
/// layers any more, and use no image.
fn of_containers(shared: &Shared, seen: Vec<Container>) -> BTreeSet<String> {
    let handles = shared.handles();
    let has_layers = |one: &Container| {
        let handle = handles.get(&one.key.pod.uid);
        handle.is_none_or(|handle| !handle.released.is_set())
    };
    let seen = seen.into_iter().filter(has_layers);
    seen.map(|one| one.image_id).collect()
}

/// The names of the images in image volumes of pods that have not ended: their layers stay in use,
/// so that their removal would free nothing.
fn shown(pods: &[Arc<Pod>], full_name: impl Fn(&str) -> Option<String>) -> BTreeSet<String> {
    let is_over = |pod: &&Arc<Pod>| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    let specs = pods
        .iter()
        .filter(|pod| !is_over(pod))
        .filter_map(|pod| pod.spec.as_ref());
    let volumes = specs.flat_map(|spec| {
        let mounts = mounted(spec);
        let volumes = spec.volumes.iter().flatten();
        volumes.filter(move |volume| mounts.contains(volume.name.as_str()))
    });
    let images = volumes.filter_map(|volume| volume.image.as_ref()?.reference.as_deref());
    images.filter_map(full_name).collect()
}

/// The names of the volumes that containers of a pod mount.
fn mounted(spec: &PodSpec) -> BTreeSet<&str> {
    let inits = spec.init_containers.iter().flatten();
    let mounts = inits.chain(&spec.containers);
    let mounts = mounts.flat_map(|container| container.volume_mounts.iter().flatten());
    mounts.map(|mount| mount.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::tests::{shared, with_host_port};
    use crate::shared::tests::handle;
    use crate::worker::tests::with_own_engine;
    use agent_images::MIN_IMAGE_AGE;
    use agent_pressure::{ImageMarks, Thresholds};
    use agent_resources::Disk;
    use agent_runtime::{ContainerState, PodRef};
    use serde_json::json;
    use tests_support::containers::container;

    fn image(name: &str, size: u64) -> Image {
        Image {
            name: name.into(),
            digest: String::new(),
            size,
            pulled: false,
        }
    }

    fn full(percent: u64) -> Disk {
        Disk {
            size: 1000,
            free: 1000 - percent * 10,
            ..Disk::default()
        }
    }

    fn excess(space: Disk, marks: ImageMarks) -> u64 {
        marks.excess(space.size, space.free)
    }

    #[tokio::test]
    async fn an_image_is_in_use_until_its_pod_has_released_its_resources() {
        let dir = tempfile::tempdir().unwrap();
        let shared = shared(dir.path());
        let handle = handle(with_host_port("a"));
        let released = handle.released.clone();
        shared.handles().insert("a".to_owned(), handle);
        let seen = |uid: &str| {
            let pod = PodRef {
                namespace: "shop".into(),
                name: uid.into(),
                uid: uid.into(),
            };
            Container {
                image_id: format!("of-{uid}"),
                ..container(pod, "main", ContainerState::Created)
            }
        };
        let in_use = || -> Vec<String> {
            let all = of_containers(&shared, vec![seen("a"), seen("without-a-task")]);
            all.into_iter().collect()
        };
        assert_eq!(in_use(), ["of-a", "of-without-a-task"]);
        released.set();
        assert_eq!(in_use(), ["of-without-a-task"]);
    }

    #[test]
    fn the_image_of_a_volume_is_in_use_until_its_pod_has_ended() {
        let pod = |reference: &str, phase: &str| {
            let volumes = json!([
                {"name": "v", "image": {"reference": reference}}, {"name": "e", "emptyDir": {}},
                {"name": "unmounted", "image": {"reference": "a-neighbours"}},
            ]);
            let mounts =
                json!([{"name": "v", "mountPath": "/v"}, {"name": "e", "mountPath": "/e"}]);
            let container = json!({"name": "c", "volumeMounts": mounts});
            let spec = json!({"containers": [container], "volumes": volumes});
            let pod = json!({"spec": spec, "status": {"phase": phase}});
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let pods = [pod("a", "Running"), pod("b", "Failed"), pod("?", "Pending")];
        let full = |image: &str| (image != "?").then(|| format!("registry.example/{image}"));
        let shown: Vec<String> = shown(&pods, full).into_iter().collect();
        assert_eq!(shown, ["registry.example/a"]);
    }

    /// The images that a sweep removes of these.
    fn removed<'a>(unused: &[&'a Image], wanted: u64) -> Vec<&'a str> {
        let mut swept = Swept::begin(Some(wanted), 1000, 0);
        let mut removed = Vec::new();
        for image in unused {
            if swept.is_done() {
                break;
            }
            swept.note(image, &Ok(()));
            removed.push(image.name.as_str());
        }
        removed
    }

    #[test]
    fn a_disk_with_room_loses_nothing() {
        let (a, b) = (image("a", 100), image("b", 100));
        let marks = Thresholds::default().images;
        assert!(removed(&[&a, &b], excess(full(84), marks)).is_empty());
        let never = excess(full(100), Thresholds::none().images);
        assert!(removed(&[&a, &b], never).is_empty());
    }

    #[test]
    fn as_many_images_are_removed_as_needed_and_no_more() {
        let (a, b, c) = (image("a", 60), image("b", 60), image("c", 60));
        let marks = Thresholds::default().images;
        let names = removed(&[&a, &b, &c], excess(full(90), marks));
        assert_eq!(names, ["a", "b"]);
    }

    #[tokio::test]
    async fn an_image_that_cannot_be_removed_keeps_no_other_from_being_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (shared, engine) = with_own_engine(shared(dir.path()));
        let images = vec![image("a-held", 1), image("b", 1)];
        engine.set_images(images.clone());
        let earlier = Instant::now().checked_sub(MIN_IMAGE_AGE).unwrap();
        let mut uses = shared.images.lock().await;
        assert!(uses.unused(&images, |_| false, earlier).is_empty());
        drop(uses);
        let swept = sweep(&shared, Goal::All).await.unwrap();
        assert_eq!(
            (swept.images, engine.images()),
            (1, vec![image("a-held", 1)])
        );
        let failure = swept.failure().unwrap();
        assert!(failure.contains("remove image a-held"), "{failure}");
    }
}
