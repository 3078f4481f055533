//! Objects that controllers keep up to date: the root's certificate, quotas, ranges, signatures,
//! roles, approvals.

use super::{MAPS, ROOT, cluster, eventually, exists, make};
use config_kube::k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Service,
};
use config_kube::k8s_openapi::api::networking::v1::ServiceCIDR;
use futures_util::future::BoxFuture;
use master_client::{DeleteParams, Patch};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn every_namespace_has_the_roots_certificate_and_it_is_kept_right() {
    let cluster = cluster().await;
    let path = format!("{MAPS}/kube-root-ca.crt");
    let right = || async { cluster.get(&path).await["data"] == json!({"ca.crt": ROOT}) };
    eventually("it is published", || Box::pin(async { right().await })).await;
    let wrong = Patch::Merge(json!({"data": {"ca.crt": "other", "more": "x"}}));
    let name = "kube-root-ca.crt";
    cluster
        .admin
        .patch::<ConfigMap>(Some("default"), name, &wrong)
        .await
        .expect("it is spoiled");
    eventually("it is set right", || Box::pin(async { right().await })).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_counted_again_after_a_deletion() {
    let cluster = cluster().await;
    make(&cluster, MAPS, json!({"metadata": {"name": "a"}})).await;
    let root = format!("{MAPS}/kube-root-ca.crt");
    eventually("the root's certificate is there", || {
        Box::pin(async { cluster.get(&root).await.pointer("/data").is_some() })
    })
    .await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "3", "pods": "1"}}});
    make(&cluster, quotas, quota).await;
    let used = |number: &'static str| {
        let cluster = &cluster;
        move || -> BoxFuture<'_, bool> {
            Box::pin(async move {
                let quota = cluster.get(&format!("{quotas}/q")).await;
                quota["status"]["used"] == json!({"count/configmaps": number, "pods": "0"})
            })
        }
    };
    // The root's certificate is the second one.
    eventually("it is counted", used("2")).await;
    make(&cluster, MAPS, json!({"metadata": {"name": "b"}})).await;
    eventually("what is made is counted at once", used("3")).await;
    cluster
        .admin
        .delete::<ConfigMap>(Some("default"), "a", &DeleteParams::default())
        .await
        .expect("it goes");
    eventually("what goes is free again", used("2")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_says_why_a_claim_waits() {
    let cluster = cluster().await;
    for (name, class, reason) in [
        ("no-class", json!(""), "FailedBinding"),
        ("no-such-class", json!("nope"), "ProvisioningFailed"),
        ("first-consumer", json!("waits"), "WaitForFirstConsumer"),
    ] {
        let class_object = json!({"metadata": {"name": "waits"}, "provisioner": "example.com/p",
            "volumeBindingMode": "WaitForFirstConsumer"});
        if class == "waits" {
            make(
                &cluster,
                "/apis/storage.k8s.io/v1/storageclasses",
                class_object,
            )
            .await;
        }
        let spec = json!({"storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}});
        let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
        make(
            &cluster,
            claims,
            json!({"metadata": {"name": name}, "spec": spec}),
        )
        .await;
        let events = format!(
            "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name},reason={reason}"
        );
        eventually(reason, || {
            Box::pin(async {
                let all = cluster.get(&events).await;
                all["items"].as_array().is_some_and(|all| !all.is_empty())
            })
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_shows_what_its_volume_is_as_long_as_it_has_one() {
    let cluster = cluster().await;
    let volumes = "/api/v1/persistentvolumes";
    let volume = json!({"storageClassName": "", "volumeAttributesClassName": "gold", "capacity": {"storage": "2Gi"},
        "accessModes": ["ReadWriteOnce"], "csi": {"driver": "example.com", "volumeHandle": "v"}});
    make(
        &cluster,
        volumes,
        json!({"metadata": {"name": "v"}, "spec": volume}),
    )
    .await;
    let spec = json!({"storageClassName": "", "volumeAttributesClassName": "gold",
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    make(
        &cluster,
        claims,
        json!({"metadata": {"name": "data"}, "spec": spec}),
    )
    .await;
    let shows = |status: Value| {
        let cluster = &cluster;
        move || -> BoxFuture<'_, bool> {
            let status = status.clone();
            Box::pin(
                async move { cluster.get(&format!("{claims}/data")).await["status"] == status },
            )
        }
    };
    let bound = json!({"phase": "Bound", "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"],
        "currentVolumeAttributesClassName": "gold"});
    eventually("it is bound", shows(bound)).await;
    let admin = &cluster.admin;
    let params = DeleteParams::default();
    let gone = admin.delete::<PersistentVolume>(None, "v", &params).await;
    gone.expect("its deletion begins");
    // Removes the finalizer that protects it from the deletion.
    let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let gone = admin.patch::<PersistentVolume>(None, "v", &bare).await;
    gone.expect("it goes");
    eventually("it is lost", shows(json!({"phase": "Lost"}))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ephemeral_volume_has_a_claim_that_goes_with_its_pod() {
    let cluster = cluster().await;
    let request =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
    let template = json!({"metadata": {"labels": {"of": "p"}}, "spec": request});
    let spec = json!({
        "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
        "volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}],
    });
    let pods = "/api/v1/namespaces/default/pods";
    let pod = make(
        &cluster,
        pods,
        json!({"metadata": {"name": "p"}, "spec": spec}),
    )
    .await;
    let path = "/api/v1/namespaces/default/persistentvolumeclaims/p-scratch";
    let owned = || async {
        let claim = cluster.get(path).await;
        claim["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
            && claim["metadata"]["labels"]["of"] == "p"
            && claim["spec"]["resources"]["requests"]["storage"] == "1Mi"
    };
    eventually("the claim is made", || Box::pin(async { owned().await })).await;
    let params = DeleteParams::default();
    cluster
        .admin
        .delete::<Pod>(Some("default"), "p", &params)
        .await
        .expect("the pod goes");
    let gone = || async { cluster.get(path).await["reason"] == "NotFound" };
    eventually("the claim is gone", || Box::pin(async { gone().await })).await;
}

/// Upstream's end-to-end test of the same: "Automatically recreate PVC for pending pod when PVC is
/// missing".
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_a_pending_pod_can_be_deleted_and_its_set_makes_it_again() {
    let cluster = cluster().await;
    let labels = json!({"app": "web"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let claim = json!({"metadata": {"name": "data"}, "spec": {"storageClassName": "",
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
    let set = json!({"metadata": {"name": "web"}, "spec": {"replicas": 1, "serviceName": "web",
        "selector": {"matchLabels": labels}, "template": template, "volumeClaimTemplates": [claim]}});
    let sets = "/apis/apps/v1/namespaces/default/statefulsets";
    make(&cluster, sets, set).await;
    let path = "/api/v1/namespaces/default/persistentvolumeclaims/data-web-0";
    let uid = || async {
        let claim = cluster.get(path).await;
        claim.pointer("/metadata/uid").cloned()
    };
    let pod = "/api/v1/namespaces/default/pods/web-0";
    eventually("the pod is made", || {
        Box::pin(async { exists(&cluster, pod).await && uid().await.is_some() })
    })
    .await;
    let first = uid().await;
    let params = DeleteParams::default();
    let deleted =
        cluster
            .admin
            .delete::<PersistentVolumeClaim>(Some("default"), "data-web-0", &params);
    deleted.await.expect("its deletion begins");
    eventually("another claim is there", || {
        Box::pin(async {
            let now = uid().await;
            now.is_some() && now != first
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_of_addresses_is_removed_once_it_is_unused() {
    let cluster = cluster().await;
    let ranges = "/apis/networking.k8s.io/v1/servicecidrs";
    make(
        &cluster,
        ranges,
        json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.222.0.0/24"]}}),
    )
    .await;
    let services = "/api/v1/namespaces/default/services";
    make(
        &cluster,
        services,
        json!({"metadata": {"name": "s"}, "spec": {"clusterIP": "10.222.0.9", "ports": [{"port": 1}]}}),
    )
    .await;
    let params = DeleteParams::default();
    cluster
        .admin
        .delete::<ServiceCIDR>(None, "more", &params)
        .await
        .expect("it begins to go");
    let path = format!("{ranges}/more");
    eventually("it says that it waits", || {
        Box::pin(async {
            let range = cluster.get(&path).await;
            let condition = &range["status"]["conditions"][0];
            condition["status"] == "False" && condition["reason"] == "Terminating"
        })
    })
    .await;
    cluster
        .admin
        .delete::<Service>(Some("default"), "s", &params)
        .await
        .expect("it goes");
    eventually("the range is gone", || {
        Box::pin(async { cluster.get(&path).await["code"] == 404 })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_public_kubeconfig_gets_the_signatures_of_tokens() {
    let cluster = cluster().await;
    let token = json!({
        "metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"},
    });
    make(&cluster, "/api/v1/namespaces/kube-system/secrets", token).await;
    let maps = "/api/v1/namespaces/kube-public/configmaps";
    make(
        &cluster,
        maps,
        json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "a", "jws-kubeconfig-gone00": "x"}}),
    )
    .await;
    let path = format!("{maps}/cluster-info");
    eventually("it is signed", || {
        Box::pin(async {
            let data = cluster.get(&path).await["data"].clone();
            data["jws-kubeconfig-abcdef"].is_string() && data.get("jws-kubeconfig-gone00").is_none()
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregated_roles_get_the_rules_of_labelled_roles() {
    let cluster = cluster().await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let labels = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    let rule = json!({"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["get"]});
    make(
        &cluster,
        roles,
        json!({"metadata": {"name": "things", "labels": labels}, "rules": [rule]}),
    )
    .await;
    eventually("`view` has the rule", || {
        Box::pin(async {
            let view = cluster.get(&format!("{roles}/view")).await;
            view["rules"]
                .as_array()
                .is_some_and(|rules| rules.contains(&rule))
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelets_request_is_approved_if_its_sender_may() {
    let cluster = cluster().await;
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "system:node:new");
    let key = rcgen::KeyPair::generate().expect("a key");
    let pem = params
        .serialize_request(&key)
        .and_then(|request| request.pem())
        .expect("a request");
    let object = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["client auth", "digital signature"],
            "request": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &pem)}})
    };
    // The admin may everything, so he may have a node's certificate too.
    make(&cluster, requests, object("good")).await;
    eventually("it is approved", || {
        Box::pin(async {
            let request = cluster.get(&format!("{requests}/good")).await;
            request.pointer("/status/conditions/0/reason") == Some(&json!("AutoApproved"))
        })
    })
    .await;
}
