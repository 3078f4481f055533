//! `run`, `expose`, `scale`, `autoscale`, `rollout`, and nodes: `taint`, `cordon`, `drain`.

use super::{DEPLOYMENT, NODE, POD, play};

#[tokio::test]
async fn workloads_are_run_exposed_and_scaled() {
    play(&[("deployment", DEPLOYMENT)], RUN).await;
}

const RUN: &str = "
$ run one --image=reg/x:1 --port=80 --expose --labels=app=one --env=A=1 --restart=Never -- sleep 1
    service/one created
    pod/one created
$ run two --image=reg/x:1 --dry-run=server -o jsonpath={.spec.restartPolicy}
    Always
$ run three --image=reg/x:1 --overrides='{\"spec\":{\"hostNetwork\":true}}'
$ get pods
    one     0/1     Pending
    three   0/1     Pending
! run one --image=reg/x:1
    pods \"one\" already exists
$ create -f - < deployment
$ expose deployment web --port=80 --target-port=8080 --type=NodePort --session-affinity=ClientIP
    service/web exposed
$ expose service web --name=again
$ expose pod one --name=headless --port=80 --cluster-ip=None
$ get services
    again
    None
$ get service web -o jsonpath={.spec.selector}/{.spec.sessionAffinityConfig}/{.spec.ports[0].targetPort}
    {\"app\":\"web\"}/{\"clientIP\":{\"timeoutSeconds\":10800}}/8080
! expose pod one --name=one --port=80
    services \"one\" already exists
$ scale deployment web --replicas=3
    deployment.apps/web scaled
$ scale -f - --current-replicas=3 --replicas=4 < deployment
! scale deployment web --current-replicas=9 --replicas=1
    Expected replicas to be 9, was 4
! scale deployment web --replicas=1 --resource-version=1
    Expected resource version to be 1
! scale pod one --replicas=1
    could not find the requested resource
$ get deployment web -o jsonpath={.spec.replicas}
    4
$ autoscale deployment web --min=2 --max=5 --cpu-percent=70
    horizontalpodautoscaler.autoscaling/web autoscaled
$ get hpa web
    Deployment/web
    2         5
$ get horizontalpodautoscalers.v1.autoscaling web -o jsonpath={.spec.targetCPUUtilizationPercentage}
    70
! autoscale deployment web --name=bad --min=3 --max=2
    --max=MAXPODS must be larger or equal to --min=MINPODS
";

#[tokio::test]
async fn rollouts_are_paused_restarted_and_looked_at() {
    let paused = DEPLOYMENT.replace("replicas: 2", "replicas: 0");
    play(&[("deployment", &paused)], ROLLOUT).await;
}

const ROLLOUT: &str = "
$ create -f - < deployment
$ rollout pause deployment/web
    deployment.apps/web paused
! rollout pause deployment/web
    already paused
! rollout restart deployment/web
    can't restart paused deployment
$ rollout resume deployment/web
    deployment.apps/web resumed
$ rollout restart deployment/web
    deployment.apps/web restarted
$ get deployment web -o yaml
    kubectl.kubernetes.io/restartedAt
$ rollout history deployment/web
    No rollout history found
! rollout undo deployment/web
    no rollout history found
$ patch deployment web --subresource=status --type=merge -p '{\"status\":{\"observedGeneration\":9}}'
$ rollout status deployment/web --timeout=10s
    successfully rolled out
";

#[tokio::test]
async fn nodes_are_tainted_cordoned_and_drained() {
    let bound = POD.replace(
        "spec: {",
        "spec: {nodeName: n1, terminationGracePeriodSeconds: 0, ",
    );
    play(&[("node", NODE), ("pod", &bound)], NODES).await;
}

const NODES: &str = "
$ create -f - < node
$ create -f - < pod
$ taint nodes n1 x=y:NoSchedule z:NoExecute
    node/n1 tainted
! taint nodes n1 x=q:NoSchedule
    already has x taint(s) with same effect(s) and --overwrite is false
$ taint nodes n1 x=q:NoSchedule --overwrite
    node/n1 modified
$ taint nodes n1 z- --dry-run=server
$ describe node n1
    x=q:NoSchedule
    z:NoExecute
    Non-terminated Pods:          (1 in total)
$ taint nodes --all x- z-
    node/n1 untainted
$ cordon n1
    node/n1 cordoned
$ cordon n1
    already cordoned
$ get nodes
    SchedulingDisabled
$ uncordon n1 --dry-run=server
    node/n1 uncordoned (server dry run)
$ uncordon n1
$ drain n1 --dry-run=server --force
    evicting pod default/web (server dry run)
! drain n1
    cannot delete Pods that declare no controller (use --force to override)
$ drain n1 --force --timeout=20s
    evicting pod default/web
    node/n1 drained
! get pod web
    not found
";
