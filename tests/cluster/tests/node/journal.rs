//! A node's own logs, by the real kubectl through the master's API: no node has a shell to look
//! from.

use crate::site::eventually;
use crate::tunnels::Site;
use config_machine::journal::{BOOT_ID, Boot, KEPT, Stamp};
use std::io::Write as _;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, BufReader};

const LOGS: &str = "/api/v1/nodes/worker-1/proxy/logs/";

impl Site {
    /// Writes a line as init does, `age` milliseconds ago: less than the host has run.
    fn log(&self, service: &str, age: u64, text: &str) {
        let since = u64::try_from(agent_sys::clock::since_boot().as_millis()).unwrap();
        let stamp = Stamp {
            boot: Boot::of(&std::fs::read_to_string(BOOT_ID).unwrap()),
            // Before the clock was set.
            unix: 0,
            since_boot: since - age,
        };
        self.write(service, &stamp, text);
    }

    /// Writes a line as init did in the boot before, `age` milliseconds ago.
    fn log_of_the_boot_before(&self, service: &str, age: u64, text: &str) {
        let now = jiff::Timestamp::now().as_millisecond();
        let stamp = Stamp {
            boot: Boot::of("00000000-0000-4000-8000-000000000000"),
            unix: u64::try_from(now).unwrap() - age,
            since_boot: 60_000,
        };
        self.write(service, &stamp, text);
    }

    fn write(&self, service: &str, stamp: &Stamp, text: &str) {
        let folder = self.cluster.site.dir.path().join("machine-logs");
        std::fs::create_dir_all(&folder).unwrap();
        let mut file = std::fs::File::options();
        let file = file.append(true).create(true);
        let mut file = file.open(folder.join(format!("{service}.log"))).unwrap();
        writeln!(file, "{stamp} {text}").unwrap();
    }

    /// `kubectl get --raw` below the node's logs: its output, or its error.
    async fn logs(&self, below: &str, more: &[&str]) -> Result<String, String> {
        let path = format!("{LOGS}{below}");
        let words = [&["get", "--raw", &path], more].concat();
        let (code, out, errors) = self.run(&words, None).await;
        let out = String::from_utf8(out).unwrap();
        if code == 0 { Ok(out) } else { Err(errors) }
    }
}

/// `pratique logs` with the admin's kubeconfig: its output, or its error.
async fn pratique(site: &Site, words: &[&str]) -> Result<String, String> {
    let said = site.pratique(&[&["logs"], words].concat()).await;
    said.map(|(out, _)| out)
}

/// The texts of an answer, without times and services.
fn texts(answer: &str) -> Vec<&str> {
    answer
        .lines()
        .filter_map(|line| line.splitn(3, ' ').nth(2))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_reads_a_nodes_own_logs_by_a_query() {
    let site = Site::new().await;
    site.log("agent", 3000, "pratique: node worker-1 is served");
    site.log("containerd", 2000, "level=warning msg=slow");
    site.log("agent", 1000, "a line with a secret escape \u{1b}[2J");
    let services = site.logs("", &[]).await.unwrap();
    assert!(services.ends_with("containerd\nagent\n"), "{services}");
    let all = site.logs("?query=kubelet&query=containerd", &[]).await;
    let all = all.unwrap();
    let wanted = [
        "pratique: node worker-1 is served",
        "level=warning msg=slow",
        "a line with a secret escape \u{fffd}[2J",
    ];
    assert_eq!(texts(&all), wanted);
    let times: Vec<jiff::Timestamp> = all
        .lines()
        .map(|line| line.split(' ').next().unwrap().parse().unwrap())
        .collect();
    let newest = jiff::Timestamp::now().duration_since(times[2]);
    assert!(newest.as_secs() < 60, "by the clock of now: {all}");
    for (query, wanted) in [
        ("query=agent&tailLines=1", &wanted[2..]),
        ("query=agent&pattern=worker-%5Cd", &wanted[..1]),
        ("query=agent&boot=0&untilTime=2001-01-01T00:00:00Z", &[]),
    ] {
        let said = site.logs(&format!("?{query}"), &[]).await.unwrap();
        assert_eq!(texts(&said), wanted, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admin_reads_a_nodes_own_logs_by_pratique_and_learns_what_to_do() {
    let site = Site::new().await;
    site.log_of_the_boot_before("agent", 7_200_000, "two hours ago");
    site.log("containerd", 2000, "just now");
    site.log("agent", 1000, "REFUSED a+b");
    let services = pratique(&site, &["worker-1", "--list"]).await.unwrap();
    assert!(services.ends_with("containerd\nagent\n"), "{services}");
    for (words, wanted) in [
        (
            &["worker-1", "kubelet", "containerd"][..],
            &["two hours ago", "just now", "REFUSED a+b"][..],
        ),
        (&["worker-1", "agent", "--since", "10m"], &["REFUSED a+b"]),
        (&["worker-1", "agent", "--until", "1h"], &["two hours ago"]),
        (
            &["worker-1", "agent", "--grep", r"^REFUSED a\+b$"],
            &["REFUSED a+b"],
        ),
        (&["worker-1", "agent", "-b"], &["REFUSED a+b"]),
        (&["worker-1", "agent", "-n", "1"], &["REFUSED a+b"]),
    ] {
        let said = pratique(&site, words).await.unwrap();
        assert_eq!(texts(&said), wanted, "{words:?}");
    }
    // All that there is, as no service is named; of the boot before nothing is kept.
    let all = pratique(&site, &["worker-1", "--since", "1h"])
        .await
        .unwrap();
    assert!(all.contains(" containerd: just now\n"), "{all}");
    site.stop_port();
    for (words, expected) in [
        (
            &["worker-9", "agent"][..],
            "`kubectl get nodes` names the nodes",
        ),
        (&["worker-1", "agent"], "tells whether it is Ready"),
    ] {
        let said = eventually("the refusal", || async {
            let refused = pratique(&site, words).await;
            refused.err().filter(|said| said.contains(expected))
        });
        said.await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_other_file_of_a_node_is_read_and_no_query_is_too_much_for_it() {
    let site = Site::new().await;
    site.log("agent", 0, "a line");
    let folder = site.cluster.site.dir.path().join("machine-logs");
    std::os::unix::fs::symlink("/etc/shadow", folder.join("master.log")).unwrap();
    let bomb = "a%7B1000%7D%7B1000%7D";
    let giant = format!("?query=agent&pattern={}", "a".repeat(2000));
    for (below, expected) in [
        ("?query=sshd", "no service \"sshd\"; there are: "),
        ("?query=/etc/shadow", "no service \"/etc/shadow\""),
        ("?query=..%2F..%2F..%2Fetc%2Fshadow", "no service"),
        ("?query=master", "no service \"master\""),
        ("../../etc/shadow", "(NotFound)"),
        ("agent.log", "no files are served here"),
        (&*format!("?query=agent&pattern={bomb}"), "pattern: "),
        (&giant, "pattern: longer than 1 KiB"),
        ("?query=agent&tailLines=9999999", "tailLines: "),
        ("?query=agent&boot=-7", "no line is kept"),
    ] {
        let said = site.logs(below, &[]).await.unwrap_err();
        assert!(said.contains(expected), "{below}: {said}");
    }
    // Newer kubectls decode such a path, and ask for one that the API does not have.
    let said = site.logs("..%2F..%2Fetc%2Fshadow", &[]).await.unwrap_err();
    let refusals = ["no files are served here", "(NotFound)"];
    assert!(refusals.iter().any(|one| said.contains(one)), "{said}");
    // A user with all rights in one namespace.
    let words = [
        "create",
        "rolebinding",
        "author",
        "--clusterrole=admin",
        "--user=author",
    ];
    let (code, _, errors) = site.run(&words, None).await;
    assert_eq!(code, 0, "{errors}");
    let said = site.logs("?query=agent", &["--as=author"]).await;
    let said = said.unwrap_err();
    assert!(said.contains("Forbidden"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nodes_log_is_followed_over_rotations_and_ends_with_its_reader() {
    let site = Site::new().await;
    site.log("agent", 0, "line 0");
    let path = format!("{LOGS}?query=agent&follow=true");
    let mut kubectl = site.kubectl(&["get", "--raw", &path]);
    let mut child = kubectl.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let log = site.cluster.site.dir.path().join("machine-logs/agent.log");
    for number in 0..5 {
        let line = lines.next_line().await.unwrap().unwrap();
        assert!(line.ends_with(&format!(" agent: line {number}")), "{line}");
        let aside = |number: u32| log.with_extension(format!("log.{number}"));
        for older in (1..KEPT).rev().filter(|older| aside(*older).exists()) {
            std::fs::rename(aside(older), aside(older + 1)).unwrap();
        }
        std::fs::rename(&log, aside(1)).unwrap();
        site.log("agent", 0, &format!("line {}", number + 1));
    }
    child.kill().await.unwrap();
    // A place is given back: as many as there are can be had again.
    eventually("the places of followers", || async {
        let soon = jiff::Timestamp::now();
        let query = format!("?query=agent&follow=true&untilTime={soon}");
        let all = (0..8).map(|_| site.logs(&query, &[]));
        let all = futures_util::future::join_all(all).await;
        all.iter().all(Result::is_ok).then_some(())
    })
    .await;
}
