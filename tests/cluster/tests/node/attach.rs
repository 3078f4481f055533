//! A container's own streams by the real kubectl: `attach` and `run`, while its log goes on.

use crate::cluster::{Cluster, shell};
use crate::site::{IMAGE, LIMIT, eventually, texts};
use crate::tunnels::{Client, Site};
use config_tunnel::command::{RESIZE, STDIN};
use config_tunnel::websocket::Kind;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Child;
use tokio::time::timeout;

/// A pod of one container with an input.
async fn runs(site: &Site, name: &str, script: &str, more: Value) {
    let mut main = shell(script);
    main["stdin"] = json!(true);
    for (key, value) in more.as_object().unwrap() {
        main[key.as_str()] = value.clone();
    }
    let spec = json!({"restartPolicy": "Never", "containers": [main]});
    site.cluster.create(name, spec).await;
    site.cluster.reaches(name, "/phase", json!("Running")).await;
}

/// Reads from kubectl until the output contains a text.
pub(crate) async fn until(child: &mut Child, wanted: &str) {
    let mut came = String::new();
    let reading = async {
        while !came.contains(wanted) {
            let mut bytes = [0; 4096];
            let count = child
                .stdout
                .as_mut()
                .unwrap()
                .read(&mut bytes)
                .await
                .unwrap();
            assert!(count > 0, "it ended after {came:?}");
            came.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    };
    timeout(LIMIT, reading).await.expect("it comes in time");
}

/// An attached kubectl whose input this test holds.
fn attach(site: &Site, name: &str) -> Child {
    let mut kubectl = site.kubectl(&["attach", "-i", name]);
    kubectl.stdin(std::process::Stdio::piped()).spawn().unwrap()
}

/// Writes to kubectl's input, which stays open.
pub(crate) async fn say(child: &mut Child, text: &str) {
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(text.as_bytes()).await.unwrap();
    stdin.flush().await.unwrap();
}

/// The text of a pod's log.
async fn log(cluster: &Cluster, name: &str) -> Vec<String> {
    let pod = cluster.pod(name).await.unwrap();
    let log = cluster.log(&pod, 0);
    texts(&log).into_iter().map(str::to_owned).collect()
}

/// Echoes each line, and reports the end of its input.
const REPEATS: &str =
    "while read line; do echo got $line; echo err $line >&2; done; echo end of input";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_attaches_to_a_containers_own_streams_and_the_log_goes_on() {
    let site = Site::new().await;
    runs(&site, "stays", REPEATS, json!({})).await;
    // Without stdinOnce the input outlives its clients, of which there may be several.
    let (mut one, mut two) = (attach(&site, "stays"), attach(&site, "stays"));
    // A client gets only output written after it attached: each sends its own line until it reads
    // it.
    for (child, word) in [(&mut one, "first"), (&mut two, "second")] {
        say(child, &format!("{word}\n")).await;
        until(child, &format!("got {word}\n")).await;
    }
    say(&mut one, "both\n").await;
    until(&mut one, "got both\n").await;
    until(&mut two, "got both\n").await;
    drop(one.stdin.take());
    let ended = timeout(LIMIT, one.wait())
        .await
        .expect("it ends in time")
        .unwrap();
    assert!(
        ended.success(),
        "a client that has said all is done: {ended}"
    );
    two.kill().await.unwrap();
    let mut three = attach(&site, "stays");
    say(&mut three, "third\n").await;
    until(&mut three, "got third\n").await;
    let log = log(&site.cluster, "stays").await;
    for line in [
        "got first",
        "got second",
        "got both",
        "got third",
        "err both",
    ] {
        assert!(log.iter().any(|one| one == line), "{line}: {log:?}");
    }
    assert!(!log.iter().any(|line| line == "end of input"), "{log:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_for_one_client_ends_with_it() {
    input_ends_with_its_client(&Site::new().await).await;
}

pub(crate) async fn input_ends_with_its_client(site: &Site) {
    for (name, killed) in [("closes", false), ("killed", true)] {
        runs(site, name, REPEATS, json!({"stdinOnce": true})).await;
        let mut client = attach(site, name);
        say(&mut client, "first\n").await;
        until(&mut client, "got first\n").await;
        if killed {
            client.kill().await.unwrap();
        } else {
            drop(client.stdin.take());
            until(&mut client, "end of input\n").await;
            let ended = timeout(LIMIT, client.wait())
                .await
                .expect("it ends in time");
            assert!(ended.unwrap().success());
        }
        site.cluster
            .reaches(name, "/phase", json!("Succeeded"))
            .await;
        // What it says of errors comes by a pipe of its own, maybe later.
        let mut log = log(&site.cluster, name).await;
        log.retain(|line| !line.starts_with("err "));
        assert_eq!(log, ["got first", "end of input"]);
    }
    let (code, _, errors) = site.run(&["attach", "closes"], None).await;
    assert!(
        code != 0 && errors.contains("cannot attach a container in a completed pod"),
        "{errors}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_containers_terminal_has_the_clients_size_and_is_left_and_taken_up_again() {
    let site = Site::new().await;
    let script = "while read word; do busybox stty size; busybox tty; echo after $word; done";
    runs(
        &site,
        "shell",
        script,
        json!({"tty": true, "stdinOnce": true}),
    )
    .await;
    let path = "/attach/default/shell/main?input=1&output=1&tty=1";
    for (size, seen) in [
        (r#"{"Width":132,"Height":43}"#, "43 132"),
        (r#"{"Width":80,"Height":24}"#, "24 80"),
    ] {
        let mut client = Client::open(&site, path).await;
        let window = [&[RESIZE][..], size.as_bytes()].concat();
        client.send(Kind::Binary, &window).await;
        client
            .send(Kind::Binary, &[&[STDIN][..], b"go\n"].concat())
            .await;
        eventually(seen, || async {
            let log = log(&site.cluster, "shell").await;
            let has = |text: &str| log.iter().any(|line| line.contains(text));
            (has(seen) && has("/dev/pts/") && has("after go")).then_some(())
        })
        .await;
        // The log is written beside the client: what is in one may come to the other later.
        client.until(seen).await;
        client.send(Kind::Close, &1000_u16.to_be_bytes()).await;
        let (_, _, code) = client.rest().await;
        assert_eq!(code, Some(1000));
    }
    site.cluster
        .reaches("shell", "/phase", json!("Running"))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_runs_a_pod_and_talks_to_it() {
    let site = Site::new().await;
    let overrides = json!({"spec": {"nodeName": "worker-1", "hostNetwork": true, "automountServiceAccountToken": false}});
    let overrides = overrides.to_string();
    let words = [
        "run",
        "once",
        "-i",
        "--rm",
        "--restart=Never",
        "--image",
        IMAGE,
        "--override-type=strategic",
        "--overrides",
        &overrides,
        "--command",
        "--",
        "sh",
        "-c",
        "read line; echo read $line; exit 3",
    ];
    let (code, out, errors) = site.run(&words, Some(b"hello\n".to_vec())).await;
    let out = String::from_utf8_lossy(&out);
    assert!(out.contains("read hello\n"), "{out} {errors}");
    assert_eq!(code, 3, "{errors}");
    eventually("the pod to be gone", || async {
        site.cluster.pod("once").await.is_none().then_some(())
    })
    .await;
}
