//! What pods choose and a node reads back: files of variables, mounts, and the labels of containers
//! and images in containerd's database.

use super::boot::target;
use crate::run::{Shape, Target};
use agent_content::decoders as content;
use agent_images::PullSecret;
use agent_images::decoders as images;
use agent_runtime::decoders as runtime;
use agent_sys::decoders as sys;
use agent_sys::mounted::Mounted;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A file with comments, a value of two lines, and a name that comes twice.
const VARIABLES: &str = "# first\n\n  A='a b' # last\nB='x=\"$A\"\n# two'\nA='again'\nC=''";
/// Two mounts as the kernel lists them, in whose paths are a space and a backslash.
const MOUNTS: &str = r"36 35 98:0 /a\040b /mnt2/\134x ro,nosuid,noatime master:1 - ext3 /dev/root rw,errors=continue
37 36 0:45 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw";
/// The labels of a container that has ended.
const CONTAINER: &str = r#"{"io.kubernetes.pod.uid":"u","io.kubernetes.pod.name":"p",
    "io.kubernetes.pod.namespace":"n","io.kubernetes.container.name":"c","pratique.dev/kind":"main",
    "pratique.dev/attempt":"2","pratique.dev/image":"a.example/b:1","pratique.dev/image-id":"a.example/b@sha256:0",
    "pratique.dev/log":"/var/log/pods/n_p_u/c/2.log","pratique.dev/backoff-seconds":"20","pratique.dev/round":"1",
    "pratique.dev/boot-id":"b","pratique.dev/stop-signal":"15","pratique.dev/created-at":"2026-01-01T00:00:00Z",
    "pratique.dev/needs":"{}","pratique.dev/user":"1000 0 0 50","pratique.dev/started-at":"2026-01-01T00:00:01.5Z",
    "pratique.dev/finished-at":"2026-01-01T00:00:02Z","pratique.dev/exit-code":"-1","pratique.dev/oom-killed":"true",
    "pratique.dev/start-error":"no such file","pratique.dev/end-unseen":"true"}"#;
/// The labels by which it is known whose container it is.
const IDENTITY: [&str; 4] = [
    "io.kubernetes.pod.uid",
    "io.kubernetes.pod.name",
    "io.kubernetes.pod.namespace",
    "io.kubernetes.container.name",
];
/// The labels of images: for everybody, and for the pods that have one of two pull secrets.
const IMAGES: [&str; 2] = [
    r#"{"pratique.dev/readers":"all"}"#,
    r#"{"pratique.dev/reader.uid-1":"team/other","pratique.dev/reader.uid-2":"team/pull"}"#,
];

pub(super) fn targets() -> Vec<Target> {
    vec![
        target(
            "agent-content/variables",
            VARIABLES.into(),
            Box::new(variables),
        ),
        target("agent-sys/mounts", MOUNTS.into(), Box::new(mounts)),
        Target {
            shape: Shape::Json,
            ..target(
                "agent-runtime/labels",
                CONTAINER.into(),
                Box::new(container),
            )
        },
        Target {
            shape: Shape::Json,
            seeds: IMAGES.map(Into::into).into(),
            ..target("agent-images/readers", Vec::new(), Box::new(readers))
        },
    ]
}

/// A file of variables.
fn variables(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    match content::variable(text, "A") {
        Ok(found) => {
            let there = found.is_none_or(|value| text.contains(&format!("A='{value}'")));
            assert!(there, "a value that is not in the file");
            let more = format!("{text}\nA='another'\n");
            assert_eq!(content::variable(&more, "A"), Ok(Some("another")));
        }
        Err(line) => assert!((1..=text.lines().count()).contains(&line), "line {line}"),
    }
}

/// A list of mounts.
fn mounts(input: &[u8]) {
    for line in input.split(|byte| *byte == b'\n') {
        if let Some(mount) = sys::mount(line) {
            let again = sys::mount(&written(&mount));
            assert_eq!(again, Some(mount), "two texts of one mount");
        }
    }
}

/// The kernel's line of a mount, as far as it is read.
fn written(mount: &Mounted) -> Vec<u8> {
    let limits = [
        (mount.limits.read_only, "ro"),
        (mount.limits.no_suid, "nosuid"),
        (mount.limits.no_dev, "nodev"),
        (mount.limits.no_exec, "noexec"),
    ];
    let limits = limits.iter().filter(|(is_set, _)| *is_set);
    let limits: Vec<&str> = limits.map(|(_, name)| *name).collect();
    let fields = [
        mount.id.to_string().into_bytes(),
        b"0".to_vec(),
        mount.device.clone().into_bytes(),
        escaped(&mount.root),
        escaped(&mount.point),
        limits.join(",").into_bytes(),
    ];
    fields.join(&b' ')
}

/// A path as the kernel writes it.
fn escaped(path: &Path) -> Vec<u8> {
    let bytes = path.as_os_str().as_bytes().iter().copied();
    let escape = |byte: u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        plain => vec![plain],
    };
    bytes.flat_map(escape).collect()
}

/// Labels in JSON.
fn labels(input: &[u8]) -> Option<BTreeMap<String, String>> {
    serde_json::from_slice(input).ok()
}

/// A container's labels: an agent that starts anew knows the container as its predecessor did.
fn container(input: &[u8]) {
    let Some(labels) = labels(input) else {
        return;
    };
    let Some(written) = runtime::container_labels(&labels) else {
        return;
    };
    for name in IDENTITY {
        assert_eq!(written.get(name), labels.get(name), "another container");
    }
    let again = runtime::container_labels(&written);
    assert_eq!(again, Some(written), "another record of one container");
}

/// An image's labels: one reader more changes nothing for the others.
fn readers(input: &[u8]) {
    let Some(labels) = labels(input) else {
        return;
    };
    let [one, other] = ["uid-1", "uid-2"].map(|uid| PullSecret {
        namespace: "team".into(),
        name: "pull".into(),
        uid: uid.into(),
    });
    if images::may_run(&labels, None) {
        assert!(images::may_run(&labels, Some(&one)), "all are some");
    }
    let Some(more) = images::with_reader(&labels, &one) else {
        return;
    };
    assert!(images::may_run(&more, Some(&one)), "the reader is not one");
    for holder in [None, Some(&other)] {
        let before = images::may_run(&labels, holder);
        assert_eq!(images::may_run(&more, holder), before, "{holder:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_understood() {
        assert_eq!(content::variable(VARIABLES, "A"), Ok(Some("again")));
        for line in MOUNTS.lines() {
            assert!(sys::mount(line.as_bytes()).is_some(), "{line}");
        }
        let ended = labels(CONTAINER.as_bytes()).expect("labels");
        assert_eq!(runtime::container_labels(&ended), Some(ended));
        for (image, is_everybodys) in IMAGES.into_iter().zip([true, false]) {
            let image = labels(image.as_bytes()).expect("labels");
            assert_eq!(images::may_run(&image, None), is_everybodys);
        }
    }
}
