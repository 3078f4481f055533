//! Tunnels into pods over SPDY/3.1, as kubectl before 1.31 and older client libraries ask for them:
//! by the real kubectl with WebSockets disabled.

use crate::attach::{input_ends_with_its_client, until};
use crate::site::{LIMIT, eventually};
use crate::tunnels::{Site, a_killed_client_leaves_nothing, commands_run};
use std::process::Stdio;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

async fn site() -> Site {
    let mut site = Site::new().await;
    site.spdy = true;
    site
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_that_speaks_spdy_runs_commands_and_leaves_nothing() {
    let site = site().await;
    commands_run(&site).await;
    // It is SPDY indeed: a WebSocket begins with GET.
    let words = ["-v=6", "exec", "talks", "--", "true"];
    let (code, _, said) = site.run(&words, None).await;
    assert_eq!(code, 0, "{said}");
    let posted = |line: &str| line.contains("POST") && line.contains("/exec?");
    assert!(said.lines().any(posted), "{said}");
    a_killed_client_leaves_nothing(&site).await;
    a_client_that_reads_nothing_holds_up_no_other(&site).await;
}

/// A command writes without end to a client that does not read: it is held up, and what goes on
/// beside it is not.
async fn a_client_that_reads_nothing_holds_up_no_other(site: &Site) {
    let script = "echo begun; busybox yes 55555";
    let mut idle = site
        .kubectl(&["exec", "talks", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    let mut begun = [0; 6];
    let read = idle.stdout.as_mut().unwrap().read_exact(&mut begun);
    timeout(LIMIT, read).await.expect("it begins").unwrap();
    let before = resident();
    let input: Vec<u8> = (0..=250).cycle().take(2_000_000).collect();
    let words = ["exec", "-i", "talks", "--", "cat"];
    let (code, out, errors) = site.run(&words, Some(input.clone())).await;
    assert_eq!(code, 0, "{errors}");
    assert!(out == input, "{} bytes came back", out.len());
    // What is written meanwhile waits in the pipe: the node holds no more of it than a tunnel's
    // buffers.
    let grown = resident().saturating_sub(before);
    assert!(grown < 200 << 20, "{grown} bytes");
    idle.kill().await.unwrap();
    eventually("the command of a client that is killed to end", || async {
        (!site.has_process("talks", "55555").await).then_some(())
    })
    .await;
}

/// Bytes of memory that this process, and the node in it, has.
fn resident() -> usize {
    let all = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = all.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_that_speaks_spdy_attaches() {
    input_ends_with_its_client(&site().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_over_spdy_follows_the_size_of_the_clients() {
    let site = site().await;
    site.runs("talks", "sleep 100000").await;
    // The command says when its terminal is small, and the shell around kubectl makes its own large
    // then, until that is heard: kubectl forgets a size that comes while another waits to be sent,
    // and stty changes rows and columns one after another. Neither command line holds the words
    // that are looked for: `script` begins its file with both.
    let inside = "until busybox stty size | grep -q '24 80'; do sleep 0.1; done; echo sm\"\"all; \
        until busybox stty size | grep -q '43 132'; do sleep 0.1; done; echo lar\"\"ge; read word; echo got $word; exit 5";
    let log = site.cluster.site.dir.path().join("terminal");
    let kubectl = site.kubectl(&["exec", "-it", "talks", "--", "sh", "-c", inside]);
    let kubectl = kubectl.as_std();
    let quoted = |word: &std::ffi::OsStr| {
        let word = word.to_str().unwrap().replace('\'', "'\\''");
        format!("'{word}'")
    };
    let words: Vec<String> = std::iter::once(kubectl.get_program())
        .chain(kubectl.get_args())
        .map(quoted)
        .collect();
    let around = format!(
        "stty rows 24 cols 80; (until grep -q '[s]mall' {log}; do sleep 0.1; done; \
         until grep -q '[l]arge' {log}; do stty rows 43 cols 131 </dev/tty; sleep 0.1; stty cols 132 </dev/tty; sleep 0.3; done) & {}",
        words.join(" "),
        log = log.display()
    );
    let mut script = Command::new("script");
    script.args(["-qefc", &around]).arg(&log);
    for (name, value) in kubectl.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = script.kill_on_drop(true).spawn().unwrap();
    until(&mut script, "large").await;
    script
        .stdin
        .as_mut()
        .unwrap()
        .write_all(b"word\n")
        .await
        .unwrap();
    until(&mut script, "got word").await;
    let ended = timeout(LIMIT, script.wait()).await;
    assert_eq!(ended.expect("it ends in time").unwrap().code(), Some(5));
}
