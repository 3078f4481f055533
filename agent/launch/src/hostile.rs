//! Attacks by a pod through its own files on the agent that reads and writes them.

use crate::machine::Machine;
use crate::machine::tests::{MountGuard, machine};
use crate::stage::memory_folder;
use crate::volumes::{self, VolumeLocation};
use agent_claims::Right;
use agent_content::Sources;
use agent_sys::beneath::{Beneath, Links};
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Pod};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const ATTEMPTS: usize = 2_000;
/// If that many attempts meet only one side of the race, there is no race.
const MOST_ATTEMPTS: usize = 100 * ATTEMPTS;

fn pod(volume: Value) -> Pod {
    let mut volume = volume;
    volume["name"] = json!("v");
    serde_json::from_value(
        json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": [volume]}}),
    )
    .unwrap()
}

fn map() -> Pod {
    pod(json!({"configMap": {"name": "m"}}))
}

fn sources(text: &str) -> Sources {
    let map: ConfigMap = serde_json::from_value(json!({"data": {"a": text}})).unwrap();
    Sources {
        config_maps: [("m".to_owned(), Some(map))].into(),
        ..Sources::default()
    }
}

/// A configuration in memory, as the content of volumes must be.
fn in_memory() -> (tempfile::TempDir, Machine) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let machine = machine(dir.path());
    (dir, machine)
}

fn held(source: &VolumeLocation) -> PathBuf {
    match source {
        VolumeLocation::Held(path) | VolumeLocation::Own(path) => path.clone(),
        VolumeLocation::Host(..)
        | VolumeLocation::Driver(_)
        | VolumeLocation::ReadOnly(_)
        | VolumeLocation::Image { .. } => {
            panic!("{source:?}")
        }
    }
}

/// The result of `work`, unless it hangs.
fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver
        .recv_timeout(Duration::from_secs(60))
        .expect("the agent's worker thread hangs")
}

#[test]
fn the_target_of_data_is_not_removed_wherever_it_leads() {
    let (dir, machine) = in_memory();
    let victim = dir.path().join("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("precious"), "1").unwrap();
    let place = held(&volumes::prepare(&map(), "u", &machine, &sources("1")).unwrap()["v"]);
    for target in [victim.as_path(), Path::new("../../../../victim")] {
        fs::remove_file(place.join("..data")).unwrap();
        symlink(target, place.join("..data")).unwrap();
        volumes::prepare(&map(), "u", &machine, &sources("2")).unwrap();
        assert!(
            victim.join("precious").exists(),
            "a folder of the host was removed"
        );
        assert_eq!(fs::read_to_string(place.join("a")).unwrap(), "2");
    }
}

#[test]
fn a_pipe_in_a_volume_freezes_nobody() {
    let (_dir, machine) = in_memory();
    let place = held(&volumes::prepare(&map(), "u", &machine, &sources("1")).unwrap()["v"]);
    fs::remove_file(place.join("..data/a")).unwrap();
    nix::unistd::mkfifo(&place.join("..data/a"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    within(move || volumes::prepare(&map(), "u", &machine, &sources("1")).unwrap());
    assert_eq!(
        fs::read_to_string(place.join("a")).unwrap(),
        "1",
        "and the file is there again"
    );
}

#[test]
fn a_link_to_a_device_exhausts_nothing() {
    let (_dir, machine) = in_memory();
    let place = held(&volumes::prepare(&map(), "u", &machine, &sources("1")).unwrap()["v"]);
    fs::remove_file(place.join("..data/a")).unwrap();
    symlink("/dev/zero", place.join("..data/a")).unwrap();
    within(move || volumes::prepare(&map(), "u", &machine, &sources("1")).unwrap());
    assert_eq!(fs::read_to_string(place.join("a")).unwrap(), "1");
}

#[test]
fn what_would_lie_on_a_disk_is_not_written() {
    // The folder of the tests' own programs is on a disk everywhere that they run.
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    if agent_sys::mount::is_in_memory(dir.path()) {
        return;
    }
    let error = volumes::prepare(&map(), "u", &machine(dir.path()), &sources("1")).unwrap_err();
    assert!(error.contains("would be written to a disk"), "{error}");
}

#[test]
fn a_pod_gets_no_more_memory_for_its_content_than_there_is_for_one() {
    let (_dir, machine) = in_memory();
    let volumes: Vec<Value> = (0..20)
        .map(|n| json!({"name": format!("v{n}"), "configMap": {"name": "m"}}))
        .collect();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": volumes}});
    let error = volumes::prepare(
        &serde_json::from_value(pod).unwrap(),
        "u",
        &machine,
        &sources(&"x".repeat(1 << 20)),
    );
    assert!(error.unwrap_err().contains("16 MiB"));
}

#[test]
fn content_that_never_fits_leaves_the_memory_for_volumes_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let machine = machine(dir.path());
    let place = machine.run.join("held");
    fs::create_dir_all(&place).unwrap();
    memory_folder(&place, 128 << 10, "mode=0700").unwrap();
    let _mount = MountGuard(place);
    let content = |bytes: usize| sources(&"x".repeat(bytes));
    for _ in 0..20 {
        let failed = volumes::prepare(&map(), "u", &machine, &content(200 << 10)).unwrap_err();
        assert!(failed.contains("No space left"), "{failed}");
    }
    let other = volumes::prepare(&map(), "other", &machine, &content(64 << 10));
    assert!(other.is_ok(), "{other:?}");
}

#[test]
fn a_volume_that_can_never_be_published_leaves_nothing_at_each_try() {
    let (_dir, machine) = in_memory();
    let place = held(&volumes::prepare(&map(), "u", &machine, &sources("1")).unwrap()["v"]);
    // No link takes the place of a folder.
    fs::remove_file(place.join("..data")).unwrap();
    fs::create_dir_all(place.join("..data/in the way")).unwrap();
    for _ in 0..20 {
        volumes::prepare(&map(), "u", &machine, &sources("2")).unwrap_err();
    }
    let left = fs::read_dir(&place).unwrap();
    let mut left: Vec<_> = left.map(|one| one.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["..data", "..swap", "a"]);
    fs::remove_dir_all(place.join("..data")).unwrap();
    volumes::prepare(&map(), "u", &machine, &sources("2")).unwrap();
    assert_eq!(fs::read_to_string(place.join("a")).unwrap(), "2");
    assert!(!place.join("..swap").is_symlink());
}

#[test]
fn what_an_update_left_that_was_cut_short_goes_before_the_next() {
    let (_dir, machine) = in_memory();
    let place = held(&volumes::prepare(&map(), "u", &machine, &sources("1")).unwrap()["v"]);
    for left in ["..1", "..7", "..swap"] {
        fs::create_dir(place.join(left)).unwrap();
        fs::write(place.join(left).join("a"), "half").unwrap();
    }
    // Also where nothing has changed meanwhile.
    volumes::prepare(&map(), "u", &machine, &sources("1")).unwrap();
    assert_eq!(fs::read_dir(&place).unwrap().count(), 3, "..data, ..0, a");
    // And a link for which there was no room.
    fs::remove_file(place.join("a")).unwrap();
    volumes::prepare(&map(), "u", &machine, &sources("1")).unwrap();
    assert_eq!(fs::read_to_string(place.join("a")).unwrap(), "1");
}

#[test]
fn folders_and_volumes_without_a_file_count_for_a_pods_content() {
    let (_dir, machine) = in_memory();
    let deep =
        |number: usize| json!({"key": "a", "path": format!("{number}{}", "/d".repeat(2000))});
    let items: Vec<Value> = (0..20).map(deep).collect();
    let folders = pod(json!({"configMap": {"name": "m", "items": items}}));
    let volumes = (0..5000).map(|number| {
        let map = json!({"name": "none", "optional": true});
        json!({"name": format!("v{number}"), "configMap": map})
    });
    let volumes: Vec<Value> = volumes.collect();
    let empty = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": volumes}});
    for pod in [folders, serde_json::from_value(empty).unwrap()] {
        let refused = volumes::prepare(&pod, "u", &machine, &sources("1")).unwrap_err();
        assert!(refused.contains("take 20480 names"), "{refused}");
    }
    assert!(!machine.held_dir("u").exists(), "nothing is written");
}

/// Makes a folder `x` and returns its device and inode number.
fn folder_in(outside: &Path) -> (u64, u64) {
    fs::create_dir(outside.join("x")).unwrap();
    let root = Beneath::root(outside).unwrap();
    root.handle(Path::new("x"), Links::Refused).unwrap().id()
}

/// Runs `attempt` many times while a neighbour exchanges the folder `d` and a link `l` to
/// `outside`, without a pause: after one more exchange each time, and until some met the folder and
/// some the link. Returns how many won.
fn flipping(base: &Path, outside: &Path, attempt: impl Fn() -> Result<bool, String>) -> usize {
    fs::create_dir_all(base.join("d/x")).unwrap();
    symlink(outside, base.join("l")).unwrap();
    let (stop, flips) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut won, mut tried, mut met) = (0, 0, [0; 2]);
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| {
            let (a, b, at) = (base.join("d"), base.join("l"), nix::fcntl::AT_FDCWD);
            while !stop.load(Ordering::Relaxed) {
                nix::fcntl::renameat2(at, &a, at, &b, nix::fcntl::RenameFlags::RENAME_EXCHANGE)
                    .unwrap();
                flips.fetch_add(1, Ordering::Relaxed);
            }
        });
        while tried < ATTEMPTS || met.contains(&0) && tried < MOST_ATTEMPTS {
            let seen = flips.load(Ordering::Relaxed);
            while flips.load(Ordering::Relaxed) == seen && !neighbour.is_finished() {
                std::thread::yield_now();
            }
            match attempt() {
                // Who followed the link met it, too.
                Ok(true) => (won, met[1]) = (won + 1, met[1] + 1),
                Ok(false) => met[0] += 1,
                Err(error) => met[1] += usize::from(error.contains("link")),
            }
            tried += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(!met.contains(&0), "folder and link were met {met:?} times");
    won
}

#[test]
fn a_neighbour_that_flips_folder_and_link_wins_no_sub_path() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let x = folder_in(outside.path());
    let machine = machine(dir.path());
    let base = dir.path().join("volume");
    let source = VolumeLocation::Own(base.clone());
    let place = || volumes::place(&machine, &source, Some("d/x"), false);
    let won = flipping(&base, outside.path(), || Ok(place()?.id() == x));
    assert_eq!(won, 0);
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn a_neighbour_that_flips_folder_and_link_makes_nothing_elsewhere() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let machine = machine(dir.path());
    let base = dir.path().join("volume");
    let source = VolumeLocation::Own(base.clone());
    let count = std::cell::Cell::new(0);
    let place = || {
        count.set(count.get() + 1);
        let path = format!("d/new{}", count.get() % 50);
        volumes::place(&machine, &source, Some(&path), false).map(|_| false)
    };
    flipping(&base, outside.path(), place);
    let made = fs::read_dir(outside.path()).unwrap().count();
    assert_eq!(made, 0, "a folder was made outside of the volume");
}

#[test]
fn a_neighbour_that_flips_folder_and_link_wins_no_host_path() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let x = folder_in(outside.path());
    let base = dir.path().join("listed");
    fs::create_dir(&base).unwrap();
    let mut machine = machine(dir.path().join("agent").as_path());
    let path = base.display().to_string().parse().unwrap();
    machine.host_paths = vec![config_model::host_path::HostPath {
        path,
        writable: true,
    }];
    // By way of `..`, as a link that begins at `/` leads nowhere below the agent's own descriptor.
    let link = Path::new("../..").join(outside.path().file_name().unwrap());
    // What is there, by each type that mounts a folder, and then what is made.
    for (path, kind) in [
        ("d/x", ""),
        ("d/x", "Directory"),
        ("d/x", "DirectoryOrCreate"),
        ("d/new", ""),
        ("d/new", "DirectoryOrCreate"),
        ("d/new", "FileOrCreate"),
    ] {
        let host = json!({"path": base.join(path), "type": kind});
        let source = VolumeLocation::Host(serde_json::from_value(host).unwrap(), Right::Listed);
        let place = || volumes::place(&machine, &source, None, false);
        let won = flipping(&base, &link, || Ok(place()?.id() == x));
        assert_eq!(
            won, 0,
            "{path} of type {kind:?} led to a folder that is not listed"
        );
        let found = fs::read_dir(outside.path()).unwrap().count();
        assert_eq!(found, 1, "{kind:?} was made in a folder that is not listed");
        fs::remove_dir_all(&base).unwrap();
        fs::create_dir(&base).unwrap();
    }
}
