//! A pod's volumes in real folders: what is made, where each is found, and what is measured.

use super::*;
use crate::machine::tests::machine;
use config_kube::k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// A folder in memory, as the content of volumes must be.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn prepare(pod: &Pod, dir: &Path, sources: &Sources) -> Result<BTreeMap<String, PathBuf>, String> {
    let places = super::prepare(pod, "u", &machine(dir), sources)?;
    let path = |source| match source {
        VolumeLocation::Held(path) | VolumeLocation::Own(path) => path,
        VolumeLocation::Host(host, _) => host.path.into(),
        other @ (VolumeLocation::ReadOnly(_)
        | VolumeLocation::Driver(_)
        | VolumeLocation::Image { .. }) => {
            panic!("{other:?}")
        }
    };
    Ok(places
        .into_iter()
        .map(|(name, source)| (name, path(source)))
        .collect())
}

fn pod(volume: Value) -> Pod {
    let mut volume = volume;
    volume["name"] = json!("v");
    serde_json::from_value(
        json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": [volume]}}),
    )
    .unwrap()
}

fn sources(data: &Value) -> Sources {
    let map: ConfigMap = serde_json::from_value(json!({"data": data})).unwrap();
    Sources {
        config_maps: [("m".to_owned(), Some(map))].into(),
        ..Sources::default()
    }
}

#[test]
fn an_update_replaces_all_files_and_removes_what_is_gone() {
    let dir = in_memory();
    let pod = pod(json!({"configMap": {"name": "m"}}));
    let place =
        prepare(&pod, dir.path(), &sources(&json!({"a": "1", "b": "2"}))).unwrap()["v"].clone();
    assert_eq!(fs::read_to_string(place.join("a")).unwrap(), "1");
    prepare(&pod, dir.path(), &sources(&json!({"a": "3", "c": "4"}))).unwrap();
    assert_eq!(fs::read_to_string(place.join("a")).unwrap(), "3");
    assert_eq!(fs::read_to_string(place.join("c")).unwrap(), "4");
    assert!(!place.join("b").exists());
    let before = fs::read_link(place.join("..data")).unwrap();
    prepare(&pod, dir.path(), &sources(&json!({"a": "3", "c": "4"}))).unwrap();
    assert_eq!(
        fs::read_link(place.join("..data")).unwrap(),
        before,
        "nothing changed, nothing is written"
    );
}

#[test]
fn what_is_gone_from_its_source_goes_from_below_a_folder_that_stays() {
    let dir = in_memory();
    let keys = |of: &str| json!([{"key": of, "path": format!("conf/deep/{of}")}]);
    let secret = json!({"secret": {"name": "s", "optional": true, "items": keys("b")}});
    let map = json!({"configMap": {"name": "m", "items": [{"key": "a", "path": "conf/a"}]}});
    let pod = pod(json!({"projected": {"sources": [map, secret]}}));
    let with = |secret: Option<Value>| {
        let secret = secret.map(|secret| serde_json::from_value(secret).unwrap());
        Sources {
            secrets: [("s".to_owned(), secret)].into(),
            ..sources(&json!({"a": "1"}))
        }
    };
    let there = with(Some(json!({"data": {"b": "Mg=="}})));
    let place = prepare(&pod, dir.path(), &there).unwrap()["v"].clone();
    let file = place.join("conf/deep/b");
    assert_eq!(fs::read_to_string(&file).unwrap(), "2");
    // Nothing that is still wanted has changed.
    prepare(&pod, dir.path(), &with(None)).unwrap();
    assert!(!place.join("conf/deep").exists(), "{}", file.display());
    assert_eq!(fs::read_to_string(place.join("conf/a")).unwrap(), "1");
    let before = fs::read_link(place.join("..data")).unwrap();
    prepare(&pod, dir.path(), &with(None)).unwrap();
    let after = fs::read_link(place.join("..data")).unwrap();
    assert_eq!(after, before, "nothing changed, nothing is written");
    // The same for one of two files in one folder.
    prepare(&pod, dir.path(), &there).unwrap();
    let other = with(Some(json!({"data": {"c": "Mg=="}})));
    prepare(&pod, dir.path(), &other).unwrap();
    assert!(!file.exists(), "a key that was removed");
}

#[test]
fn a_volume_is_kept_up_to_date_beside_one_whose_source_is_gone_and_not_made_beside_it() {
    let dir = in_memory();
    let map = |name: &str| json!({"name": name, "configMap": {"name": name}});
    let volumes = json!([map("m"), map("other")]);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": volumes}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let gone = |text: &str| sources(&json!({"a": text}));
    let refused = prepare(&pod, dir.path(), &gone("1")).unwrap_err();
    assert!(
        refused.contains("configmap \"other\" not found"),
        "{refused}"
    );
    assert!(!machine(dir.path()).held_dir("u").exists());
    let mut both = gone("1");
    let other = both.config_maps["m"].clone();
    both.config_maps.insert("other".to_owned(), other);
    let place = prepare(&pod, dir.path(), &both).unwrap()["m"].clone();
    prepare(&pod, dir.path(), &gone("2")).unwrap_err();
    assert_eq!(fs::read_to_string(place.join("a")).unwrap(), "2");
}

#[test]
fn a_volume_that_is_refused_counts_with_what_it_has_there() {
    let dir = in_memory();
    let map = |name: &str| json!({"name": name, "configMap": {"name": name}});
    let volumes = json!([map("m"), map("other")]);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": volumes}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let (small, large) = (json!({"a": "1"}), json!({"a": "x".repeat(1 << 20)}));
    let with_other = |data: &Value| {
        let mut both = sources(&small);
        let other = sources(data).config_maps["m"].clone();
        both.config_maps.insert("other".to_owned(), other);
        both
    };
    let note = machine(dir.path()).held_dir("u").join("share");
    let noted = || -> u64 {
        let text = fs::read_to_string(&note).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    };
    prepare(&pod, dir.path(), &with_other(&large)).unwrap();
    assert!(noted() > 1 << 20);
    // Its map is gone, and its files are not.
    prepare(&pod, dir.path(), &sources(&small)).unwrap_err();
    assert!(noted() > 1 << 20);
    prepare(&pod, dir.path(), &sources(&large)).unwrap_err();
    assert!(noted() >= 2 << 20, "what grows meanwhile counts beside it");
    prepare(&pod, dir.path(), &with_other(&small)).unwrap();
    assert!(!note.exists());
}

#[test]
fn chosen_keys_get_their_paths_and_modes() {
    let dir = in_memory();
    let volume = json!({"configMap": {"name": "m", "items": [{"key": "a", "path": "sub/x", "mode": 0o400}]}});
    let place = prepare(
        &pod(volume),
        dir.path(),
        &sources(&json!({"a": "1", "b": "2"})),
    )
    .unwrap()["v"]
        .clone();
    assert_eq!(
        fs::metadata(place.join("sub/x"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o400
    );
    assert!(!place.join("b").exists());
}

#[test]
fn a_projected_volume_holds_the_files_of_all_its_sources() {
    let dir = in_memory();
    let volume = json!({"projected": {"defaultMode": 0o400, "sources": [
        {"configMap": {"name": "m", "items": [{"key": "a", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"secret": {"name": "s", "optional": true}},
    ]}});
    let pod = pod(volume);
    let mut needed = SourceNames::default();
    needed.config_map("m", Keys::one("a"));
    needed.secret("s", Keys::All);
    assert_eq!(needs(&pod), needed);
    let place =
        prepare(&pod, dir.path(), &sources(&json!({"a": "1", "b": "2"}))).unwrap()["v"].clone();
    assert_eq!(fs::read_to_string(place.join("ca.crt")).unwrap(), "1");
    assert_eq!(fs::read_to_string(place.join("name")).unwrap(), "p");
    assert_eq!(
        fs::metadata(place.join("name"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o400
    );
    assert!(!place.join("b").exists());
}

#[test]
fn a_key_that_is_not_there_is_reported_with_the_kind_of_its_object() {
    let dir = in_memory();
    let mut sources = sources(&json!({"a": "1"}));
    let secret = json!({"data": {"a": "MQ=="}});
    let secret = serde_json::from_value(secret).unwrap();
    sources.secrets.insert("s".to_owned(), Some(secret));
    let items = json!([{"key": "b", "path": "b"}]);
    let projected = |source: Value| json!({"projected": {"sources": [source]}});
    for (volume, kind) in [
        (
            json!({"configMap": {"name": "m", "items": items}}),
            "config",
        ),
        (
            json!({"secret": {"secretName": "s", "items": items}}),
            "secret",
        ),
        (
            projected(json!({"configMap": {"name": "m", "items": items}})),
            "config",
        ),
        (
            projected(json!({"secret": {"name": "s", "items": items}})),
            "secret",
        ),
    ] {
        let fault = prepare(&pod(volume), dir.path(), &sources).unwrap_err();
        let words = format!("references non-existent {kind} key: b");
        assert!(fault.ends_with(&words), "{fault}");
    }
}

#[test]
fn an_object_that_is_named_many_times_is_refused_before_it_is_copied() {
    let dir = in_memory();
    let map = json!({"a": "x".repeat(1 << 20)});
    let source = |number: usize| json!({"configMap": {"name": "m", "items": [{"key": "a", "path": format!("f{number}")}]}});
    let all = |count: usize| {
        let all: Vec<Value> = (0..count).map(source).collect();
        prepare(
            &pod(json!({"projected": {"sources": all}})),
            dir.path(),
            &sources(&map),
        )
    };
    assert!(all(16).is_ok());
    // 98 GiB of content.
    assert!(all(100_000).unwrap_err().contains("16 MiB"));
}

#[test]
fn a_volume_whose_token_was_not_given_is_not_made() {
    let dir = in_memory();
    let pod = pod(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}));
    assert_eq!(tokens(&pod).len(), 1);
    let error = prepare(&pod, dir.path(), &Sources::default()).unwrap_err();
    assert_eq!(
        error,
        "MountVolume.SetUp failed for volume \"v\" : its token is not there"
    );
}

#[test]
fn a_path_that_leaves_its_volume_is_refused() {
    let dir = in_memory();
    for path in ["../x", "/x", "a/../../x", ""] {
        let volume = json!({"configMap": {"name": "m", "items": [{"key": "a", "path": path}]}});
        assert!(
            prepare(&pod(volume), dir.path(), &sources(&json!({"a": "1"}))).is_err(),
            "{path:?}"
        );
    }
}

#[test]
fn a_path_has_one_file_and_what_no_folder_can_hold_is_refused_before_anything_is_written() {
    let dir = in_memory();
    let sources = sources(&json!({"a": "1", "b": "2"}));
    let of = |paths: [&str; 2]| -> Result<PathBuf, String> {
        let items = json!([{"key": "a", "path": paths[0]}, {"key": "b", "path": paths[1]}]);
        let volume = json!({"configMap": {"name": "m", "items": items}});
        Ok(prepare(&pod(volume), dir.path(), &sources)?["v"].clone())
    };
    let long = "x".repeat(256);
    for (paths, words) in [
        (["a", "a/b"], "can't be in the folder a"),
        (["a/b/c", "a/b"], "can't be in the folder a/b"),
        (["a", "..b"], "must not start with '..'"),
        (["a", "..data/b"], "must not start with '..'"),
        (["a", &long], "longer than 255 bytes"),
    ] {
        let refused = of(paths).unwrap_err();
        assert!(refused.contains(words), "{refused}");
    }
    assert!(!machine(dir.path()).held_dir("u").exists());
    // As upstream: the later stays, and paths are taken as the kernel takes them.
    let place = of(["f", "f"]).unwrap();
    assert_eq!(fs::read_to_string(place.join("f")).unwrap(), "2");
    let place = of(["x/..y", "./z//w"]).unwrap();
    assert_eq!(fs::read_to_string(place.join("x/..y")).unwrap(), "1");
    assert_eq!(fs::read_to_string(place.join("z/w")).unwrap(), "2");
    assert!(!place.join("f").exists());
}

#[test]
fn a_missing_source_is_named_unless_it_is_optional() {
    let dir = in_memory();
    let error = prepare(
        &pod(json!({"secret": {"secretName": "s"}})),
        dir.path(),
        &Sources::default(),
    )
    .unwrap_err();
    assert_eq!(
        error,
        "MountVolume.SetUp failed for volume \"v\" : secret \"s\" not found"
    );
    let optional = pod(json!({"secret": {"secretName": "s", "optional": true}}));
    assert!(prepare(&optional, dir.path(), &Sources::default()).is_ok());
}

#[test]
fn a_sub_path_of_content_is_a_key_of_it() {
    let dir = in_memory();
    let machine = machine(dir.path());
    let places = super::prepare(
        &pod(json!({"configMap": {"name": "m"}})),
        "u",
        &machine,
        &sources(&json!({"a": "1"})),
    );
    let source = places.unwrap()["v"].clone();
    assert!(place(&machine, &source, Some("a"), true).unwrap().is_file());
    assert!(place(&machine, &source, None, true).unwrap().is_dir());
    assert!(place(&machine, &source, Some("b"), true).is_err());
}

#[test]
fn an_empty_dir_stays_as_the_pod_leaves_it() {
    let dir = in_memory();
    let mut pod = pod(json!({"emptyDir": {}}));
    let place = prepare(&pod, dir.path(), &Sources::default()).unwrap()["v"].clone();
    assert_eq!(
        fs::metadata(&place).unwrap().permissions().mode() & 0o7777,
        0o777
    );
    fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(place.join("mine"), "1").unwrap();
    prepare(&pod, dir.path(), &Sources::default()).unwrap();
    assert!(place.join("mine").exists());
    assert_eq!(
        fs::metadata(&place).unwrap().permissions().mode() & 0o7777,
        0o700
    );
    pod.spec.as_mut().unwrap().security_context =
        Some(serde_json::from_value(json!({"fsGroup": 7})).unwrap());
    let other = in_memory();
    let place = prepare(&pod, other.path(), &Sources::default()).unwrap()["v"].clone();
    let meta = fs::metadata(place).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o2777);
    assert_eq!(std::os::unix::fs::MetadataExt::gid(&meta), 7);
}

#[test]
fn a_part_of_a_volume_in_memory_is_made_as_the_volume_is() {
    let dir = in_memory();
    let mut pod = pod(json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}));
    pod.spec.as_mut().unwrap().security_context =
        Some(serde_json::from_value(json!({"fsGroup": 123})).unwrap());
    let volume = prepare(&pod, dir.path(), &Sources::default()).unwrap()["v"].clone();
    let machine = machine(dir.path());
    place(
        &machine,
        &VolumeLocation::Own(volume.clone()),
        Some("part"),
        false,
    )
    .unwrap();
    for place in [volume.clone(), volume.join("part")] {
        let meta = fs::metadata(&place).unwrap();
        let group = std::os::unix::fs::MetadataExt::gid(&meta);
        let mode = meta.permissions().mode() & 0o7777;
        assert_eq!((mode, group), (0o3777, 123), "{}", place.display());
    }
    crate::stage::forget(&machine, "u").unwrap();
}

#[test]
fn labels_are_followed_where_a_volume_shows_them() {
    let pod = |volume: Value| -> Pod {
        let meta = json!({"labels": {"app": "web"}});
        serde_json::from_value(json!({"metadata": meta, "spec": {
            "containers": [], "volumes": [volume],
        }}))
        .unwrap()
    };
    let items = |path: &str| json!({"items": [{"path": "f", "fieldRef": {"fieldPath": path}}]});
    let direct = |path: &str| pod(json!({"name": "v", "downwardAPI": items(path)}));
    let one = direct("metadata.labels['app']");
    let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
    assert_eq!(shown_notes(&one), Some([labels, BTreeMap::new()]));
    let sources = json!([{"downwardAPI": items("metadata.annotations")}]);
    let projected = pod(json!({"name": "v", "projected": {"sources": sources}}));
    assert!(shown_notes(&projected).is_some());
    assert_eq!(shown_notes(&direct("metadata.name")), None);
}

#[test]
fn what_a_pod_fills_is_measured_by_its_files_and_a_claim_by_its_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let machine = machine(dir.path());
    let volumes = json!([
        {"name": "scratch", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "mine"}},
        {"name": "map", "configMap": {"name": "c"}},
        {"name": "host", "hostPath": {"path": "/listed"}},
    ]);
    let spec = json!({"containers": [], "volumes": volumes});
    let pod = serde_json::from_value(json!({"spec": spec})).unwrap();
    let reference = PodRef {
        namespace: "n".into(),
        name: "p".into(),
        uid: "u".into(),
    };
    let own = |name: &str| VolumeLocation::Own(machine.pod_dir("u").join(name));
    let host = serde_json::from_value(json!({"path": "/listed"})).unwrap();
    let made = BTreeMap::from([
        ("scratch".to_owned(), own("scratch")),
        (
            "memory".to_owned(),
            VolumeLocation::Own(machine.memory_dir("u")),
        ),
        (
            "data".to_owned(),
            VolumeLocation::ReadOnly(Box::new(own("data"))),
        ),
        (
            "map".to_owned(),
            VolumeLocation::Held(machine.held_dir("u")),
        ),
        ("host".to_owned(), VolumeLocation::Host(host, Right::Listed)),
    ]);
    let places = measured(&machine, &pod, &reference, &made);
    assert_eq!(places.logs, machine.logs.join("n_p_u"));
    let all = places.volumes.iter();
    let all = all.map(|one| (one.name.as_str(), one.measure, one.claim.as_deref()));
    let expected = [
        ("scratch", Measure::Files, None),
        ("memory", Measure::FilesInMemory, None),
        ("data", Measure::FileSystem, Some("mine")),
        ("map", Measure::FilesInMemory, None),
    ];
    assert_eq!(all.collect::<Vec<_>>(), expected);
}
