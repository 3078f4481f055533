//! Discovery, OpenAPI, health and events.

use super::play;

#[tokio::test]
async fn the_server_tells_its_kinds_and_versions() {
    play(&[], DISCOVERY).await;
}

const DISCOVERY: &str = "
$ api-resources
    pods                                po
    machines
    NAMESPACED   KIND
$ api-resources --verbs=list,create --namespaced=false -o name --sort-by=name
    nodes
    clusterroles.rbac.authorization.k8s.io
    ~ pods
$ api-resources --api-group=apps -o wide
    apps/v1      true         Deployment           create,delete,deletecollection,get,list,patch,update,watch   all
$ api-resources --categories=all -o name
    replicasets.apps
$ api-versions
    apps/v1
    rbac.authorization.k8s.io/v1
    pratique.dev/v1alpha1
$ version
    Server Version: v1.36
$ version -o json
    \"minor\": \"36
$ cluster-info
    Kubernetes control plane
$ cluster-info dump --namespaces=default
    \"kind\": \"ServiceList\"
$ get --raw /readyz?verbose
    [+]etcd ok
    [+]poststarthook/rbac/bootstrap-roles ok
    readyz check passed
$ get --raw /livez/ping
    ok
$ get --raw /metrics
    apiserver_request_total{
    process_resident_memory_bytes
$ get --raw /openapi/v3
    apis/apps/v1
$ get apiservices v1.apps
    v1.apps   Local     True
! get crd nothing
    not found
! get --raw /nothing
    the server could not find the requested resource
! top nodes
    metrics not available yet
";

#[tokio::test]
async fn every_field_is_explained_down_to_the_leaves() {
    play(&[], EXPLAIN).await;
}

const EXPLAIN: &str = "
$ explain pods
    KIND:       Pod
    VERSION:    v1
    FIELDS:
$ explain po.spec.containers.env
    FIELD: env <[]EnvVar>
$ explain pods --recursive
    terminationGracePeriodSeconds\t<integer>
$ explain deployments.spec.strategy.rollingUpdate
    GROUP:      apps
    maxSurge\t<IntOrString>
$ explain hpa --api-version=autoscaling/v1 --recursive
    targetCPUUtilizationPercentage
$ explain hpa --recursive
    stabilizationWindowSeconds
$ explain networkpolicies --recursive
    ipBlock
$ explain ingresses.spec.rules.http.paths
    pathType\t<string> -required-
$ explain persistentvolumeclaims --recursive
    volumeAttributesClassName
$ explain roles.rbac.authorization.k8s.io --recursive
    nonResourceURLs
$ explain cronjobs.spec.concurrencyPolicy
    Forbid
$ explain machines.spec.nodeName
    Name of its Node
$ explain services.spec --output=plaintext-openapiv2
    sessionAffinity
! explain pods.spec.nothing
    field \"nothing\" does not exist
";

#[tokio::test]
async fn events_are_listed_by_object_and_type() {
    let event = |name: &str, kind: &str, reason: &str| {
        format!(
            "apiVersion: v1\nkind: Event\nmetadata: {{name: {name}}}\ntype: {kind}\nreason: {reason}\ncount: 2\n\
             message: told\ninvolvedObject: {{apiVersion: v1, kind: Pod, name: web, namespace: default}}\n"
        )
    };
    play(
        &[
            ("one", &event("one", "Normal", "Pulled")),
            ("two", &event("two", "Warning", "Failed")),
        ],
        EVENTS,
    )
    .await;
}

const EVENTS: &str = "
$ create -f - < one
$ create -f - < two
$ events
    Pulled
    Pod/web
$ events --for=pod/web --types=Warning
    Failed
    ~ Pulled
$ events --for=pod/other
    No events found
$ events -A -o json
    \"reason\": \"Pulled\"
$ events --watch --request-timeout=5s
    Failed
$ get events --field-selector=reason=Failed,involvedObject.name=web
    LAST SEEN   TYPE      REASON   OBJECT    MESSAGE
    Warning   Failed   pod/web   told
$ get events.events.k8s.io one -o jsonpath={.regarding.name}/{.deprecatedCount}
    web/2
";
