//! Every output format.

use super::{DEPLOYMENT, POD, play};
use crate::common::kubectl::Cluster;

#[tokio::test]
async fn objects_are_printed_in_every_form() {
    let cluster = Cluster::start().await;
    cluster.file("path", "{.items[*].data.k}");
    cluster.file("template", "{{range .items}}{{.data.k}};{{end}}");
    cluster.file("columns", "NAME          KEY\n.metadata.name .data.k\n");
    cluster.run_transcript(&[], FORMS).await;
    cluster.server.stop().await;
}

const FORMS: &str = "
$ create configmap b --from-literal=k=2
$ create configmap a --from-literal=k=3
$ create configmap c --from-literal=k=1
$ get cm a -o json
    \"kind\": \"ConfigMap\"
    ~ managedFields
$ get cm -o yaml
    kind: List
$ get cm -o name
    configmap/a
$ get cm -o jsonpath={.items[*].data.k}
    3 2 1
$ get cm a -o jsonpath-as-json={.data}
    \"k\": \"3\"
$ get cm -o jsonpath-file=path
    3 2 1
$ get cm -o go-template={{range.items}}{{.metadata.name}},{{end}}
    a,b,c,
$ get cm -o go-template-file=template
    3;2;1;
$ get cm -o custom-columns=N:.metadata.name,K:.data.k
    a     3
$ get cm -o custom-columns-file=columns
    KEY
$ get cm --sort-by={.data.k} -o name
    configmap/c
$ get cm --sort-by=.metadata.name --no-headers
    ~ NAME
$ get cm --chunk-size=1
    NAME   DATA   AGE
    c      1
$ get cm --server-print=false
    NAME   AGE
$ get cm a --show-kind --show-labels
    configmap/a
    <none>
$ label cm a b tier=front
$ get cm -L tier -l tier
    front
    ~ c
$ get cm -l 'tier notin (front),!x' -o name
    configmap/c
    ~ configmap/a
$ get cm --field-selector=metadata.name!=a -o name
    ~ configmap/a
! get cm --field-selector=data.k=1
    \"data.k\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"
$ get cm,secrets -A --ignore-not-found
    NAMESPACE
$ get cm nothing --ignore-not-found
    ~ NotFound
$ get cm a nothing --ignore-not-found -o name
    configmap/a
! get nothings
    the server doesn't have a resource type \"nothings\"
$ get cm a --output-watch-events --watch --request-timeout=5s
    EVENT   NAME
    ADDED   a
$ get --raw '/api/v1/namespaces/default/configmaps?limit=1'
    remainingItemCount
$ get ns default kube-system
    Active
";

#[tokio::test]
async fn workloads_and_their_parts_are_shown_and_described() {
    play(&[("pod", POD), ("deployment", DEPLOYMENT)], KINDS).await;
}

const KINDS: &str = "
$ create -f - < pod
$ create -f - < deployment
$ get -f - < deployment
    NAME   READY   UP-TO-DATE   AVAILABLE   AGE
    web    0/2     0            0
$ get deploy,po -o wide
    CONTAINERS   IMAGES    SELECTOR
    NOMINATED NODE   READINESS GATES
$ get all
    pod/web
    deployment.apps/web
    service/kubernetes
$ get deployment web --subresource=scale
    NAME   DESIRED   AVAILABLE
    web    2         0
$ get pod web --subresource=status
    Pending
! get pod web --subresource=scale
    the server could not find the requested resource
$ describe deployment web
    Replicas:               2 desired | 0 updated | 0 total | 0 available | 0 unavailable
    StrategyType:           RollingUpdate
$ describe pod web
    QoS Class:                   BestEffort
    Tolerations:                 node.kubernetes.io/not-ready:NoExecute op=Exists for 300s
$ describe service kubernetes
    Session Affinity:         None
$ describe namespace default
    No resource quota.
$ describe pods -l app=web --show-events=false --chunk-size=1
    Name:             web
    ~ Events:
$ get pods --field-selector=status.phase=Pending,spec.restartPolicy=Always -o name
    pod/web
";
