//! `apply`, client-side and server-side, `diff` and pruning.

use super::{DEPLOYMENT, POD, play};
use crate::common::kubectl::Cluster;

#[tokio::test]
async fn applied_objects_are_diffed_kept_and_pruned() {
    let other = POD.replace("name: web", "name: other");
    let changed = POD.replace("reg/x:1", "reg/x:2");
    let renamed = POD.replace("name: c", "name: d");
    let unknown = "apiVersion: example.com/v1\nkind: Bogus\nmetadata: {name: b}\n";
    play(
        &[
            ("pod", POD),
            ("other", &other),
            ("changed", &changed),
            ("renamed", &renamed),
            ("unknown", unknown),
        ],
        APPLY,
    )
    .await;
}

const APPLY: &str = "
$ apply -f - --dry-run=server < pod
    pod/web created (server dry run)
! diff -f - < pod
    +  name: web
$ apply -f - < pod
    pod/web created
$ diff -f - < pod
! diff -f - < changed
    +  - image: reg/x:2
! diff -f - --server-side --force-conflicts < changed
    +  - image: reg/x:2
$ apply view-last-applied pod web
    image: reg/x:1
$ apply -f - < changed
    pod/web configured
$ apply set-last-applied -f - < pod
    pod/web configured
$ apply view-last-applied pod web -o json
    \"image\": \"reg/x:1\"
$ EDITOR='sed -i s,reg/x:1,reg/x:7,' apply edit-last-applied pod web
    edited
$ apply view-last-applied pod web
    image: reg/x:7
! apply -f - < unknown
    no matches for kind \"Bogus\" in version \"example.com/v1\"
! apply -f - < renamed
    pod updates may not change fields other than
$ apply -f - --force < renamed
    pod/web configured
$ apply -f - --prune -l app=web --prune-allowlist=core/v1/Pod < other
    pod/other created
    pod/web pruned
";

#[tokio::test]
async fn a_folder_and_a_list_are_applied_as_one() {
    let cluster = Cluster::start().await;
    cluster.file(
        "set/kustomization.yaml",
        "namePrefix: my-\nresources: [deployment.yaml]\n",
    );
    cluster.file("set/deployment.yaml", DEPLOYMENT);
    cluster.file("more/a/pod.yaml", POD);
    cluster.file(
        "more/map.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n",
    );
    cluster.file(
        "more/bad.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Bad}\n",
    );
    cluster.run_transcript(&[], FOLDERS).await;
    cluster.server.stop().await;
}

const FOLDERS: &str = "
$ apply -k set
    deployment.apps/my-web created
$ apply -k set
    deployment.apps/my-web unchanged
$ delete -k set
    \"my-web\" deleted
! apply -R -f more
    configmap/m created
    pod/web created
    metadata.name: Invalid value: \"Bad\"
$ KUBECTL_APPLYSET=true apply -n kube-public --prune --applyset=mine -f more/map.yaml
    configmap/m
$ get configmap m -n kube-public --show-labels
    applyset.kubernetes.io/part-of=
";

#[tokio::test]
async fn managed_fields_name_the_owner_of_each_field() {
    let scaled = DEPLOYMENT.replace("replicas: 2", "replicas: 5");
    let status =
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nstatus: {replicas: 3}\n";
    play(
        &[
            ("deployment", DEPLOYMENT),
            ("scaled", &scaled),
            ("status", status),
        ],
        SERVER_SIDE,
    )
    .await;
}

const SERVER_SIDE: &str = "
$ apply --server-side -f - < deployment
    deployment.apps/web serverside-applied
$ scale deployment web --replicas=4
! apply --server-side -f - < scaled
    conflict with \"kubectl\" with subresource \"scale\"
    .spec.replicas
$ apply --server-side --force-conflicts -f - < scaled
$ apply --server-side --subresource=status --field-manager=watcher -f - < status
$ get deployment web -o jsonpath={.spec.replicas}/{.status.replicas}
    5/3
$ get deployment web --show-managed-fields -o jsonpath='{range .metadata.managedFields[*]}{.manager}:{.operation}:{.subresource};{end}'
    kubectl:Apply:;
    watcher:Apply:status;
";
