//! `kubectl debug` by the real kubectl: of a running pod, and of a node that allows privileged
//! pods, where what works is shown, and what the person reads of the rest.

use crate::attach::{say, until};
use crate::network::{on_a_machine, with_addresses};
use crate::site::{IMAGE, LIMIT, eventually, texts};
use crate::tunnels::Site;
use config_kube::k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use master_client::{ListParams, Patch};
use serde_json::{Value, json};
use std::process::Stdio;
use tokio::time::timeout;

/// The pod that kubectl has made to look into the node.
async fn debugger(site: &Site) -> Option<Pod> {
    let params = ListParams::default();
    let all = site.cluster.admin.list::<Pod>(Some("default"), &params);
    let all = all.await.unwrap().items;
    all.into_iter().find(|pod| {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        name.starts_with("node-debugger-worker-1-")
    })
}

/// Looks into the node by a profile; the debugging pod's status once it is over, and its log.
async fn looked(site: &Site, more: &[&str], script: &str) -> (Value, Vec<String>) {
    let mut words = vec!["debug", "node/worker-1", "--image", IMAGE];
    words.extend(more);
    words.extend(["--", "sh", "-c", script]);
    let (code, _, errors) = site.run(&words, None).await;
    assert_eq!(code, 0, "{errors}");
    let pod = eventually("the debugging pod to be over", || async {
        let pod = debugger(site).await?;
        let phase = pod.status.as_ref()?.phase.as_deref()?;
        matches!(phase, "Succeeded" | "Failed").then_some(pod)
    })
    .await;
    let name = pod.metadata.name.clone().unwrap();
    let log = std::fs::read_to_string(log_of(site, &pod)).unwrap_or_default();
    let lines = texts(&log).into_iter().map(str::to_owned).collect();
    site.cluster.delete(&name, 0).await;
    eventually("the debugging pod to be gone", || async {
        debugger(site).await.is_none().then_some(())
    })
    .await;
    (serde_json::to_value(pod.status).unwrap(), lines)
}

fn log_of(site: &Site, pod: &Pod) -> std::path::PathBuf {
    let (name, uid) = (&pod.metadata.name, &pod.metadata.uid);
    let (name, uid) = (name.as_deref().unwrap(), uid.as_deref().unwrap());
    let logs = site.cluster.config().machine.logs;
    logs.join(format!("default_{name}_{uid}/debugger/0.log"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_debugs_a_running_pod_and_attaches_to_the_debugger() {
    let site = Site::new().await;
    site.runs("debugged", "exec sleep 54321").await;
    let words = ["debug", "debugged", "--image", IMAGE, "--target=main"];
    let more = ["--profile=baseline", "--container=look", "--stdin", "--"];
    let script = "read line; echo read $line; busybox tr '\\0' ' ' < /proc/1/cmdline; echo";
    let all = [&words[..], &more, &["sh", "-c", script]].concat();
    let mut kubectl = site.kubectl(&all);
    let mut kubectl = kubectl.stdin(Stdio::piped()).spawn().unwrap();
    // An input that ends would end the attaching, as the container's goes on.
    say(&mut kubectl, "by attach\n").await;
    until(&mut kubectl, "read by attach\nsleep 54321").await;
    let ended = timeout(LIMIT, kubectl.wait()).await;
    assert!(ended.expect("it ends in time").unwrap().success());
    let exit = "/ephemeralContainerStatuses/0/state/terminated/exitCode";
    site.cluster.reaches("debugged", exit, json!(0)).await;
    site.cluster.delete("debugged", 0).await;
}

#[test]
fn kubectl_debugs_a_node_by_the_profiles_that_need_no_files_of_the_machine() {
    on_a_machine(|| async {
        let cluster = with_addresses().await.with_privileged_pods().await;
        // No controllers run here that would make the certificate for a token's volume.
        let none = Patch::Merge(json!({"automountServiceAccountToken": false}));
        let at = Some("default");
        let patched = cluster.admin.patch::<ServiceAccount>(at, "default", &none);
        patched.await.unwrap();
        let site = Site::over(cluster).await;

        // kubectl asks for the machine's root folder, which no pod gets.
        for profile in ["--profile=general", "--profile=sysadmin"] {
            let (status, _) = looked(&site, &[profile], "true").await;
            let message = status["message"].as_str().unwrap_or_default();
            assert_eq!(status["reason"], "HostPathForbidden", "{profile}: {status}");
            assert!(message.contains("hostPath / is not allowed"), "{message}");
        }
        let (status, _) = looked(&site, &["--profile=netadmin"], "true").await;
        assert_eq!(status["reason"], "CapabilityNotAllowed", "{status}");
        let (status, lines) = looked(&site, &["--profile=baseline"], "echo seen").await;
        assert_eq!(status["phase"], "Succeeded", "{status}");
        assert_eq!(lines, ["seen"]);

        // Root of the machine, as its configuration allows.
        let file = site.cluster.site.dir.path().join("root.json");
        std::fs::write(&file, r#"{"securityContext": {"privileged": true}}"#).unwrap();
        let custom = format!("--custom={}", file.display());
        let script = "grep CapEff /proc/self/status; [ -c /dev/kmsg ] && echo devices";
        let (status, lines) = looked(&site, &["--profile=baseline", &custom], script).await;
        assert_eq!(status["phase"], "Succeeded", "{status}");
        let granted = lines[0].split_whitespace().next_back().unwrap();
        let granted = u64::from_str_radix(granted, 16).unwrap();
        assert!(granted & (1 << 21) != 0, "CAP_SYS_ADMIN: {lines:?}");
        assert_eq!(lines[1], "devices");
    });
}
