//! `create` with all its subcommands, and its errors.

use super::POD;
use crate::common::kubectl::Cluster;

#[tokio::test]
async fn every_kind_that_create_knows_is_created() {
    let cluster = Cluster::start().await;
    let pair = cluster.server.authority.issue("web", &[], &["web.example"]);
    cluster.file("tls.crt", &pair.certificate_pem);
    cluster.file("tls.key", &pair.key.serialize_pem());
    cluster.file("vars", "ONE=1\nTWO=2\n");
    cluster.run_transcript(&[], CREATE).await;
    cluster.server.stop().await;
}

const CREATE: &str = "
$ create namespace team
    namespace/team created
! create namespace team
    (AlreadyExists): namespaces \"team\" already exists
$ create configmap m --from-env-file=vars
$ create configmap f --from-file=vars --from-literal=a=b
$ get configmap m f -o jsonpath={.items[*].data}
    {\"ONE\":\"1\",\"TWO\":\"2\"} {\"a\":\"b\",\"vars\":\"ONE=1\\nTWO=2\\n\"}
$ create secret generic s --from-literal=k=v --type=example.com/t
$ get secret s -o jsonpath={.type}/{.data.k}
    example.com/t/dg==
$ create secret tls t --cert=tls.crt --key=tls.key
$ create secret docker-registry r --docker-server=reg --docker-username=u --docker-password=p
$ get secrets
    kubernetes.io/tls
    kubernetes.io/dockerconfigjson
$ create deployment d --image=reg/x:1 --replicas=2 --port=80 -- sleep 1
$ get deployment d -o jsonpath={.spec.replicas}/{.spec.template.spec.containers[0].command}
    2/[\"sleep\",\"1\"]
$ create job j --image=reg/x:1 -- true
$ create cronjob nightly --image=reg/x:1 --schedule='0 3 * * *' -- true
$ create job now --from=cronjob/nightly
$ get job now -o jsonpath={.metadata.ownerReferences[0].kind}/{.metadata.annotations}
    CronJob/
    cronjob.kubernetes.io/instantiate\":\"manual
! create cronjob never --image=x --schedule='61 * * * *'
    spec.schedule: Invalid value: \"61 * * * *\"
$ create service clusterip c --tcp=80:8080
$ create service clusterip headless --clusterip=None
$ create service nodeport n --tcp=80 --node-port=30080
$ create service loadbalancer l --tcp=80
$ create service externalname e --external-name=example.com
$ get services c headless n l e
    ClusterIP
    None
    80:30080/TCP
    LoadBalancer
    ExternalName
    example.com
$ create ingress i --class=own --rule='example.com/path*=c:80,tls=t'
$ get ingress i
    own
    example.com
    80, 443
$ create serviceaccount robot
$ create role reader --verb=get,list --resource=pods,deployments.apps --resource-name=web
$ create rolebinding readers --role=reader --user=jane --group=team --serviceaccount=default:robot
$ create clusterrole urls --verb=get --non-resource-url=/metrics
$ create clusterrole sum --aggregation-rule=sum=yes
$ create clusterrolebinding seers --clusterrole=urls --user=jane
$ describe rolebinding readers
    User            jane
    ServiceAccount  robot  default
$ create quota q --hard=pods=3,requests.cpu=2 --scopes=NotTerminating
$ create priorityclass high --value=1000 --description=first
$ create poddisruptionbudget p --selector=app=web --min-available=50%
! create quota bad --hard=pods=-1
    spec.hard[pods]: Invalid value: \"-1\": must be greater than or equal to 0
$ create token robot --duration=20m --audience=own
    ey
! create token nobody
    serviceaccounts \"nobody\" not found
";

#[tokio::test]
async fn documents_are_tried_edited_and_sent_raw() {
    let typo = POD.replace("containers", "conteiners");
    let raw = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"raw"},"spec":{"containers":[{"name":"c","image":"x"}]}}"#;
    let cluster = Cluster::start().await;
    cluster.file("edited.yaml", &POD.replace("name: web", "name: edited"));
    cluster
        .run_transcript(&[("pod", POD), ("typo", &typo), ("json", raw)], DOCUMENTS)
        .await;
    cluster.server.stop().await;
}

const DOCUMENTS: &str = "
$ create -f - --dry-run=client < pod
    pod/web created (dry run)
$ create -f - --dry-run=server -o yaml < pod
    restartPolicy: Always
! get pod web
    (NotFound): pods \"web\" not found
! create -f - < typo
    strict decoding error: unknown field \"spec.conteiners\"
! create -f - --validate=ignore < typo
    spec.containers: Required value
! create -f - --validate=warn < typo
    Warning: unknown field \"spec.conteiners\"
    spec.containers: Required value
$ create -f - --save-config --field-manager=me < pod
    pod/web created
$ get pod web -o yaml --show-managed-fields
    last-applied-configuration
    manager: me
$ delete pod web --now
$ create --raw /api/v1/namespaces/default/pods -f - < json
    \"phase\":\"Pending\"
! create --raw /api/v1/namespaces -f - < json
    Pod in version \"v1\" cannot be handled as a Namespace: converting (v1.Pod) to (core.Namespace): unknown conversion
! create --raw /api/v1/namespaces -f - < pod
    the object provided is unrecognized (must be of type Namespace): couldn't get version/kind; json parse error
$ EDITOR='sed -i s,reg/x:1,reg/x:9,' create --edit -f edited.yaml
    pod/edited created
$ get pod edited -o jsonpath={.spec.containers[0].image}
    reg/x:9
$ EDITOR=true create --edit -f edited.yaml
    Edit cancelled
";
