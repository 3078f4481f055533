//! A machine as its admin sees and drains it by `pratique`, through the master's API.

use crate::cluster::shell;
use crate::site::eventually;
use crate::tunnels::Site;
use config_kube::k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

/// Runs until it gets SIGTERM.
const HOLD: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

impl Site {
    /// Makes an object as it is.
    async fn make(&self, object: &Value) {
        let words = ["create", "--validate=false", "-f", "-"];
        let (code, _, errors) = self.run(&words, Some(object.to_string().into())).await;
        assert_eq!(code, 0, "{errors}");
    }

    /// Makes a pod that a controller of a kind owns, and waits until it runs.
    async fn owned(&self, name: &str, owner: &str) {
        let owner = json!({"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "u", "controller": true});
        self.make(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "default", "labels": {"app": name}, "ownerReferences": [owner],
            },
            "spec": {
                "nodeName": "worker-1", "hostNetwork": true, "automountServiceAccountToken": false,
                "containers": [shell(HOLD)],
            },
        }))
        .await;
        self.cluster.reaches(name, "/phase", json!("Running")).await;
    }

    /// Tells how many pods the budget `few` allows to go, as its controller would.
    async fn allow(&self, number: i32) {
        let status = json!({"status": {
            "observedGeneration": 1, "disruptionsAllowed": number, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1,
        }})
        .to_string();
        let words = [
            "patch",
            "pdb",
            "few",
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ];
        let (code, _, errors) = self.run(&words, None).await;
        assert_eq!(code, 0, "{errors}");
    }

    async fn is_cordoned(&self) -> bool {
        let node: Node = self.cluster.admin.get(None, "worker-1").await.unwrap();
        node.spec.and_then(|spec| spec.unschedulable) == Some(true)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admin_sees_a_machine_on_one_page_and_what_is_missing_with_its_cause() {
    let site = Site::new().await;
    site.owned("well", "ReplicaSet").await;
    let missing = json!({"restartPolicy": "Never", "containers": [
        {"name": "main", "image": "registry.example/absent:1"}
    ]});
    site.cluster.create("troubled", missing).await;
    let whole = eventually("the page of a node that runs", || async {
        let (page, _) = site.pratique(&["status", "worker-1"]).await.unwrap();
        let waits = page.contains("default     troubled   Pending   main: ");
        let used = page
            .lines()
            .any(|line| line.trim_start().starts_with("memory ") && !line.ends_with('-'));
        (waits && used && page.contains("Ready for ")).then_some(page)
    })
    .await;
    for line in [
        "Machine        missing: there is no Machine whose Node this is",
        "Image          missing: the Machine is not known",
        "Pods: 1 run or are done, 1 not",
        "  MemoryPressure ",
    ] {
        assert!(whole.contains(line), "{line}:\n{whole}");
    }
    site.stop_port();
    let cut = eventually("the page of a node that is silent", || async {
        let (page, _) = site.pratique(&["status", "worker-1"]).await.unwrap();
        page.contains("used         missing: ").then_some(page)
    })
    .await;
    assert!(cut.contains("cannot be reached"), "{cut}");
    assert!(cut.contains("Pods: 1 run"), "{cut}");
    let unknown = site.pratique(&["status", "worker-9"]).await.unwrap_err();
    assert!(
        unknown.contains("neither a Node nor a Machine"),
        "{unknown}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_respects_budgets_leaves_daemons_and_names_what_it_may_not_lose() {
    let site = Site::new().await;
    site.owned("served", "ReplicaSet").await;
    site.owned("daemon", "DaemonSet").await;
    site.runs("bare", HOLD).await;
    site.make(&json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "few", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "served"}}},
    }))
    .await;
    site.allow(0).await;
    let drain = ["node", "drain", "worker-1", "--timeout", "1"];
    let refused = site.pratique(&drain).await.unwrap_err();
    assert!(
        refused.contains("default/bare: no controller makes it anew (--force)"),
        "{refused}"
    );
    assert!(site.is_cordoned().await);
    // Nothing was evicted without the flag.
    assert!(site.cluster.pod("served").await.is_some() && site.cluster.pod("bare").await.is_some());

    let bold = [&drain[..], &["--force"]].concat();
    let late = eventually("only the budget holds a pod", || async {
        let late = site.pratique(&bold).await.unwrap_err();
        (!late.contains("has not ended yet")).then_some(late)
    })
    .await;
    assert!(
        late.contains("default/served: ") && late.contains("disruption budget"),
        "{late}"
    );
    assert!(site.cluster.pod("served").await.is_some());
    assert!(site.cluster.pod("bare").await.is_none());

    site.allow(1).await;
    let (_, output) = site
        .pratique(&["node", "drain", "worker-1", "--force"])
        .await
        .unwrap();
    assert!(
        output.contains("node worker-1 is drained") && output.contains("1 pods of DaemonSets stay"),
        "{output}"
    );
    assert!(site.cluster.pod("served").await.is_none());
    site.cluster
        .reaches("daemon", "/phase", json!("Running"))
        .await;

    site.pratique(&["node", "uncordon", "worker-1"])
        .await
        .unwrap();
    assert!(!site.is_cordoned().await);
}
