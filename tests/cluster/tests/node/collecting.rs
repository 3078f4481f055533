//! Programs that collect containers' logs, by links that have upstream's names.

use crate::cluster::{Cluster, shell};
use crate::site::{eventually, texts};
use config_model::host_path::HostPath;
use serde_json::json;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// Where the links are.
fn links(cluster: &Cluster) -> PathBuf {
    cluster.config().machine.log_links()
}

/// The names of the links to logs of a pod of this name.
fn of_pod(cluster: &Cluster, pod: &str) -> Vec<String> {
    let all = std::fs::read_dir(links(cluster)).unwrap();
    let names = all.map(|link| link.unwrap().file_name().into_string().unwrap());
    let begins = format!("{pod}_default_");
    names.filter(|name| name.starts_with(&begins)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_reads_its_neighbours_logs_by_links_that_come_and_go_with_them() {
    let cluster = Cluster::new().await;
    let folders = [cluster.config().machine.logs, links(&cluster)];
    let folders = folders.map(|folder| folder.display().to_string());
    let listed = folders.iter().map(|folder| HostPath {
        path: folder.parse().unwrap(),
        writable: false,
    });
    let listed = listed.collect();
    let mut cluster = cluster.again(listed).await;
    let web = shell("echo of the web; exec sleep 100000");
    cluster.create("web", json!({"containers": [web]})).await;
    let status = cluster.reaches("web", "/phase", json!("Running")).await;
    let id = status["containerStatuses"][0]["containerID"].as_str();
    let id = id.unwrap().strip_prefix("containerd://").unwrap();
    let link = format!("web_default_main-{id}.log");
    let is_there = || async { (of_pod(&cluster, "web") == [link.clone()]).then_some(()) };
    eventually("the link to the log", is_there).await;
    let pod = cluster.pod("web").await.unwrap();
    eventually("the log itself", || async {
        (!cluster.log(&pod, 0).is_empty()).then_some(())
    })
    .await;

    let mut main = shell(&format!("cat {}/web_*.log; exec sleep 100000", folders[1]));
    let names = ["logs", "links"].into_iter().zip(&folders);
    let volumes = names
        .clone()
        .map(|(name, path)| json!({"name": name, "hostPath": {"path": path}}));
    let mounts = names.map(|(name, path)| json!({"name": name, "mountPath": path}));
    main["volumeMounts"] = mounts.collect();
    let volumes: serde_json::Value = volumes.collect();
    let spec = json!({"containers": [main], "volumes": volumes});
    cluster.create("collector", spec).await;
    cluster
        .reaches("collector", "/phase", json!("Running"))
        .await;
    let collector = cluster.pod("collector").await.unwrap();
    eventually("the collector to have read the log", || async {
        let log = cluster.log(&collector, 0);
        let read = texts(&log).iter().any(|line| line.ends_with("of the web"));
        read.then_some(())
    })
    .await;

    // An agent that begins makes good what another one has left.
    cluster.end().await;
    let left = links(&cluster).join("gone_default_main-0a.log");
    symlink(cluster.config().machine.logs.join("gone/0.log"), &left).unwrap();
    std::fs::remove_file(links(&cluster).join(&link)).unwrap();
    cluster.begin();
    eventually("the links to be complete", || async {
        let is_there = of_pod(&cluster, "web") == [link.clone()];
        (is_there && left.symlink_metadata().is_err()).then_some(())
    })
    .await;
    cluster.delete("web", 0).await;
    eventually("the pod to be gone", || async {
        cluster.pod("web").await.is_none().then_some(())
    })
    .await;
    eventually("its link to be gone, too", || async {
        of_pod(&cluster, "web").is_empty().then_some(())
    })
    .await;
    assert_eq!(of_pod(&cluster, "collector").len(), 1);
}
