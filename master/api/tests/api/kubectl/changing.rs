//! `edit`, `replace`, `patch`, `label`, `annotate` and `set`.

use super::{DEPLOYMENT, POD, play};

#[tokio::test]
async fn objects_are_edited_replaced_and_patched() {
    let moved = POD
        .replace("app: web", "app: other")
        .replace("name: c", "name: d");
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: b}\n";
    let stale = map.replace("name: m", "name: m, resourceVersion: '1'");
    play(
        &[
            ("pod", POD),
            ("moved", &moved),
            ("map", map),
            ("stale", &stale),
        ],
        CHANGE,
    )
    .await;
}

const CHANGE: &str = "
$ create -f - < pod
$ EDITOR='sed -i s,reg/x:1,reg/x:2,' edit pod web
    pod/web edited
$ EDITOR='sed -i s,reg/x:2,reg/x:3,' edit pod web --output-patch
    Patch: {\"spec\":{
$ EDITOR=true edit pod web
    Edit cancelled, no changes made.
! EDITOR='sed -i s,reg/x:3,,' edit pod web
    pods \"web\" is invalid
$ get pod web --show-managed-fields -o jsonpath={.spec.containers[0].image}:{.metadata.managedFields[*].manager}
    reg/x:3:
    kubectl-edit
$ create configmap m
$ replace -f - --dry-run=server < map
    configmap/m replaced (server dry run)
$ replace -f - < map
    configmap/m replaced
$ get configmap m -o jsonpath={.data.a}
    b
! replace -f - < stale
    (Conflict)
    please apply your changes to the latest version and try again
! replace -f - < moved
    Forbidden: pod updates may not change fields other than
$ replace -f - --force < moved
    pod/web replaced
$ get pod web -o jsonpath={.metadata.labels.app}/{.spec.containers[0].name}
    other/d
$ patch pod web -p '{\"spec\":{\"containers\":[{\"name\":\"d\",\"image\":\"reg/x:4\"}]}}'
    pod/web patched
$ patch pod web -p '{\"metadata\":{\"labels\":{\"app\":\"other\"}}}'
    pod/web patched (no change)
$ patch pod web --type=merge -p 'metadata: {labels: {app: null, b: \"1\"}}'
$ patch pod web --type=json -p '[{\"op\":\"test\",\"path\":\"/metadata/labels/b\",\"value\":\"1\"},{\"op\":\"add\",\"path\":\"/metadata/labels/c\",\"value\":\"2\"}]'
! patch pod web --type=json -p '[{\"op\":\"test\",\"path\":\"/metadata/labels/b\",\"value\":\"9\"}]'
    the server rejected our request due to an error in our request
$ get pod web -o jsonpath={.metadata.labels}/{.spec.containers[0].image}
    {\"b\":\"1\",\"c\":\"2\"}/reg/x:4
$ patch -f - -p '{\"metadata\":{\"annotations\":{\"n\":\"1\"}}}' --dry-run=server -o jsonpath={.metadata.annotations.n} < pod
    1
$ patch -f - --local -p '{\"spec\":{\"restartPolicy\":\"Never\"}}' -o yaml < pod
    restartPolicy: Never
$ patch pod web --subresource=status -p '{\"status\":{\"message\":\"well\"}}'
$ get pod web -o jsonpath={.status.message}
    well
";

#[tokio::test]
async fn labels_and_annotations_are_set_and_removed() {
    play(&[("pod", POD)], LABELS).await;
}

const LABELS: &str = "
$ create -f - < pod
$ label pod web tier=front
    pod/web labeled
! label pod web tier=back
    'tier' already has a value (front), and --overwrite is false
$ label pods --all tier=back --overwrite
$ label pod web tier=back
    pod/web not labeled
$ label pod web --list
    tier=back
$ label pods -l tier=back x=1 --dry-run=server
    pod/web labeled (server dry run)
$ label pod web tier-
    pod/web unlabeled
! label pod web x=1 --resource-version=1
    (Conflict)
! label pod web bad_key/=x
    metadata.labels: Invalid value: \"bad_key/\"
$ label -f - --local y=1 -o jsonpath={.metadata.labels} < pod
    \"y\":\"1\"
$ get pod web -o jsonpath={.metadata.labels}
    {\"app\":\"web\"}
$ annotate pod web note=a
    pod/web annotated
$ annotate pod web note=b --overwrite
$ annotate pod web --list
    note=b
$ annotate pod web note-
! annotate pod web bad_key/=x
    metadata.annotations: Invalid value: \"bad_key/\"
";

#[tokio::test]
async fn parts_of_workloads_are_set() {
    play(
        &[
            ("deployment", DEPLOYMENT),
            (
                "service",
                "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n",
            ),
        ],
        SET,
    )
    .await;
}

const SET: &str = "
$ create -f - < deployment
$ set image deployment/web x=reg/x:2
    deployment.apps/web image updated
! set image deployment/web none=reg/x:2
    unable to find container named \"none\"
$ set image deployments --all *=reg/x:3
$ set env deployment/web A=1 B=2
$ set env deployment/web B- --dry-run=server
$ set env deployment/web --list
    A=1
    B=2
$ set env deployment/web B-
$ create configmap env --from-literal=c=3
$ set env deployment/web --from=configmap/env --prefix=M_
$ set resources deployment web --limits=cpu=200m,memory=64Mi --requests=cpu=100m
    resource requirements updated
! set resources deployment web --requests=cpu=300m
    must be less than or equal to cpu limit of 200m
$ set serviceaccount deployment web robot
    serviceaccount updated
$ get deployment web -o yaml
    image: reg/x:3
    name: M_C
    serviceAccountName: robot
    memory: 64Mi
    generation: 8
$ create service clusterip s --tcp=80
$ set selector service s role=own
    service/s selector updated
! set selector service s role=x --resource-version=1
    (Conflict)
$ set selector -f - --local a=b -o jsonpath={.spec.selector} < service
    {\"a\":\"b\"}
$ create rolebinding b --clusterrole=view --user=jane
$ set subject rolebinding b --user=joe --group=team --serviceaccount=default:robot
    subjects updated
$ get rolebinding b -o wide
    jane, joe
    team
    default/robot
";
