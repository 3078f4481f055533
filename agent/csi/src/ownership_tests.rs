use super::*;
use crate::request::DriverVolume;
use crate::served::{Fate, Served};
use config_kube::k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use std::fs;
use std::sync::mpsc;

const LIMIT: Duration = Duration::from_secs(60);

fn group(id: u32) -> Group {
    Group {
        id,
        given: true,
        only_on_mismatch: false,
    }
}

#[test]
fn all_in_a_volume_gets_the_group_and_nothing_beyond_it() {
    let dir = tempfile::tempdir().unwrap();
    let (volume, outside) = (dir.path().join("v"), dir.path().join("outside"));
    fs::create_dir_all(volume.join("a/b")).unwrap();
    fs::write(volume.join("a/b/f"), "").unwrap();
    fs::set_permissions(volume.join("a/b/f"), Permissions::from_mode(0o600)).unwrap();
    fs::write(&outside, "").unwrap();
    std::os::unix::fs::symlink(&outside, volume.join("link")).unwrap();
    let before = fs::metadata(&outside).unwrap();
    let give = |id, only_on_mismatch| {
        let group = Group {
            only_on_mismatch,
            ..group(id)
        };
        give(dir.path(), Path::new("v"), group, &Steps::default()).unwrap();
    };
    give(7, false);
    let meta = |path: &str| fs::symlink_metadata(volume.join(path)).unwrap();
    for path in ["", "a", "a/b", "a/b/f", "link"] {
        assert_eq!(meta(path).gid(), 7, "{path}");
    }
    assert_eq!(meta("a/b/f").mode() & 0o7777, 0o660);
    assert_eq!(meta("a").mode() & 0o2070, 0o2070);
    let after = fs::metadata(&outside).unwrap();
    assert_eq!((after.gid(), after.mode()), (before.gid(), before.mode()));

    fs::write(volume.join("new"), "").unwrap();
    let new = || meta("new").gid();
    fs::set_permissions(volume.join("new"), Permissions::from_mode(0o600)).unwrap();
    give(7, true);
    assert_eq!(
        meta("new").mode() & 0o777,
        0o600,
        "as the folder had the group"
    );
    give(8, true);
    assert_eq!(new(), 8);
}

#[test]
fn every_file_of_a_folder_gets_the_group_however_many_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let folders: Vec<PathBuf> = (0..40)
        .map(|folder| dir.path().join(format!("{folder}/{folder}-below")))
        .collect();
    for folder in &folders {
        fs::create_dir_all(folder).unwrap();
        for file in 0..50 {
            fs::write(folder.join(format!("file-{file}")), "").unwrap();
        }
    }
    // More than the system tells in one answer.
    for file in 0..2000 {
        fs::write(dir.path().join(format!("file-{file}")), "").unwrap();
    }
    give(dir.path(), Path::new(""), group(7), &Steps::default()).unwrap();
    for folder in folders.iter().map(PathBuf::as_path).chain([dir.path()]) {
        for file in fs::read_dir(folder).unwrap() {
            let file = file.unwrap();
            assert_eq!(file.metadata().unwrap().gid(), 7, "{:?}", file.path());
        }
    }
}

/// 32,768 names of 255 bytes and a NUL are the most that may wait.
#[tokio::test]
async fn a_walk_through_a_volume_of_many_folders_has_a_bound_of_memory_and_says_so() {
    // In memory, as many new folders take a disk seconds.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let make = |number: u32| fs::create_dir(dir.path().join(format!("{number:0255}"))).unwrap();
    (0..32_768).for_each(make);
    let groups = Groups::new(LIMIT);
    let source = serde_json::from_value(json!({"driver": "d.example"})).unwrap();
    let source = DriverVolume::Inline {
        name: "data",
        source: &source,
    };
    let rules = json!({"metadata": {}, "spec": {"volumeLifecycleModes": ["Ephemeral"]}});
    let rules = serde_json::from_value(rules).unwrap();
    let request = Request::of(&Pod::default(), source, Some(&rules)).unwrap();
    let given = groups.give(&request, group(7), dir.path(), PathBuf::new());
    given.await.unwrap();
    make(32_768);
    let given = groups.give(&request, group(8), dir.path(), PathBuf::new());
    let refused = given.await.unwrap_err();
    assert!(
        refused.starts_with("volume data: it has too many"),
        "{refused}"
    );
    assert!(
        refused.ends_with("start the pod without fsGroup"),
        "{refused}"
    );
    let own = fs::metadata(dir.path()).unwrap().gid();
    assert_eq!(own, 7, "the sign that all has the group is not set");
}

#[tokio::test]
async fn a_server_that_repeats_the_folder_itself_for_ever_keeps_no_thread() {
    let dir = tempfile::tempdir().unwrap();
    let _served = Served::mount(dir.path(), vec![(".", Fate::ForEver)]);
    let (ended, end) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let root = dir.path().to_owned();
    let walk = move |steps: &Steps| {
        may_go.recv().unwrap();
        let given = give(&root, Path::new(""), group(7), steps);
        ended.send(given.unwrap_err().to_string()).ok();
        Ok(())
    };
    let dropped = tokio::time::timeout(Duration::from_millis(20), apart(LIMIT, (), walk)).await;
    assert!(dropped.is_err(), "nobody waits");
    go.send(()).unwrap();
    let why = end.recv_timeout(LIMIT).unwrap();
    assert!(why.contains("nobody waits"), "{why}");
}

#[test]
fn what_went_meanwhile_or_is_refused_keeps_no_other_file_from_the_group() {
    let files = vec![
        ("a", Fate::Given),
        ("gone", Fate::Gone),
        ("refused", Fate::Refused),
        ("z", Fate::Given),
    ];
    let dir = tempfile::tempdir().unwrap();
    let served = Served::mount(dir.path(), files);
    let refused = give(dir.path(), Path::new(""), group(7), &Steps::default()).unwrap();
    assert_eq!(refused.failures, 2, "its group and its mode");
    let (path, error) = refused.first.unwrap();
    assert_eq!(path, Path::new("refused"));
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(served.given(), ["a", "z"]);
}

#[test]
fn a_file_that_cannot_be_looked_at_is_no_link() {
    let dir = tempfile::tempdir().unwrap();
    let files = vec![("a", Fate::Given), ("bad", Fate::Fails)];
    let _served = Served::mount(dir.path(), files);
    let given = give(dir.path(), Path::new(""), group(7), &Steps::default());
    let error = given.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::EIO as i32));
}
