//! Everything that a test process starts ends with it, however it ends.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests may stop at the first surprise"
)]

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;
use tests_harness::lifetime::Lifetime;
use tests_harness::process::Owned;
use tests_harness::wait::eventually;

/// Tells the test process of the test how it is to end; the same test binary is both.
const ENDS: &str = "HARNESS_LIFETIME_ENDS";
const LIMIT: Duration = Duration::from_secs(60);

/// A child, a grandchild, and two that left their parent and its session, as a daemon does.
/// Argument: how long they sleep.
const FAMILY: &str = "sleep $0 & setsid sh -c 'sleep $0 & exec sleep $0' $0 & wait";
/// Of them, those that sleep.
const SLEEPERS: usize = 3;
/// As containers are: in namespaces of their own, and without the test's environment.
const CONTAINED: &str =
    "unshare --mount --pid --fork --kill-child sh -c 'env -i sleep $0 & wait' $0 & ";

/// Not a test of its own: the process that is ended. It starts children, reports that all run, and
/// ends as requested.
#[test]
fn child_starts_a_family() {
    let Ok(request) = std::env::var(ENDS) else {
        return;
    };
    let (way, seconds) = request.split_once(' ').unwrap();
    let dir = tempfile::tempdir().unwrap();
    let contained = nix::unistd::geteuid().is_root();
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(if contained {
            [CONTAINED, FAMILY].concat()
        } else {
            FAMILY.to_owned()
        })
        .arg(seconds);
    let _family = Owned::start(command, &dir.path().join("log")).unwrap();
    let whole = || Ok((sleepers(seconds).len() == SLEEPERS + usize::from(contained)).then_some(()));
    eventually("the family", LIMIT, "", whole).unwrap();
    eprintln!("ready");
    match way {
        "panic" => panic!("as a failed test does"),
        "wait" => std::thread::sleep(LIMIT),
        _ => {}
    }
}

/// Processes that sleep for this time.
fn sleepers(seconds: &str) -> Vec<i32> {
    let line = format!("sleep\0{seconds}\0");
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|process| {
        let same =
            std::fs::read(process.path().join("cmdline")).is_ok_and(|own| own == line.as_bytes());
        same.then(|| process.file_name().to_str()?.parse().ok())?
    })
    .collect()
}

/// Ends a test process in one way, and looks for what it leaves.
fn nothing_is_left(way: &str) {
    // No other process sleeps for this time.
    let seconds = format!("{}.{}", 5000 + way.len(), std::process::id());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_starts_a_family", "--nocapture"])
        .env(ENDS, format!("{way} {seconds}"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(
        lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line == "ready")
    );
    if way == "wait" {
        assert!(sleepers(&seconds).len() >= SLEEPERS);
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    } else {
        drop(lines);
        assert_eq!(child.wait().unwrap().success(), way == "end");
    }
    let gone = eventually("nothing to be left", LIMIT, "", || {
        Ok(sleepers(&seconds).is_empty().then_some(()))
    });
    if gone.is_err() {
        let left = sleepers(&seconds);
        for pid in &left {
            nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(*pid),
                nix::sys::signal::Signal::SIGKILL,
            )
            .ok();
        }
        panic!("left behind: {left:?}");
    }
}

#[test]
fn a_test_process_that_is_killed_leaves_nothing() {
    nothing_is_left("wait");
}

#[test]
fn a_test_process_that_panics_leaves_nothing() {
    nothing_is_left("panic");
}

#[test]
fn a_test_process_that_forgets_what_it_started_leaves_nothing() {
    nothing_is_left("end");
}

#[test]
fn a_span_ends_what_is_bound_to_it_and_nothing_else() {
    let (one, other) = (Lifetime::begin().unwrap(), Lifetime::begin().unwrap());
    let start = |lifetime: &Lifetime| {
        lifetime
            .bind(Command::new("sleep").arg("5000"))
            .spawn()
            .unwrap()
    };
    let (mut ended, mut spared) = (start(&one), start(&other));
    // A process that was started a moment ago need not show its mark yet.
    let pid = ended.id().cast_signed();
    let shown = || Ok((!one.left().is_empty()).then_some(()));
    eventually("the started process", LIMIT, "it should run", shown).unwrap();
    let left: Vec<i32> = one.left().iter().map(|(pid, _)| *pid).collect();
    assert_eq!(left, [pid]);
    one.end().unwrap();
    assert_eq!(ended.wait().unwrap().signal(), Some(9));
    assert!(spared.try_wait().unwrap().is_none());
    other.end().unwrap();
    spared.wait().unwrap();
}

#[test]
fn temporary_files_of_a_span_end_with_it_and_files_behind_a_mount_stay() {
    let span = Lifetime::begin_with_folder().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let kept = outside.path().join("kept");
    std::fs::write(&kept, "").unwrap();
    let script = "echo \"$TMPDIR\"; cd \"$TMPDIR\" && mkdir -p left/behind && touch left/behind/file && \
        { [ \"$(id -u)\" != 0 ] || mount --bind \"$0\" left/behind; }";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(outside.path());
    let output = span.bind(&mut command).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let folder = String::from_utf8(output.stdout).unwrap();
    let folder = std::path::Path::new(folder.trim_end());
    assert!(folder.join("left/behind").exists());
    span.end().unwrap();
    assert!(!folder.exists());
    assert!(kept.exists());
}
