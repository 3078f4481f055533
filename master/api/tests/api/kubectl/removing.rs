//! `delete` in all its forms.

use super::{DEPLOYMENT, POD, play};

#[tokio::test]
async fn objects_go_by_name_label_field_file_and_all_at_once() {
    play(&[("pod", POD), ("deployment", DEPLOYMENT)], DELETE).await;
}

const DELETE: &str = "
$ create configmap a
$ create configmap b
$ create configmap c
$ create configmap d
$ create configmap e
$ label configmap b c on=1
$ delete configmap a --dry-run=server
    configmap \"a\" deleted
    (server dry run)
$ delete configmap a -o name
    configmap/a
$ delete configmaps -l on=1
    \"b\" deleted
    \"c\" deleted
$ delete configmaps --field-selector=metadata.name=d
    \"d\" deleted
! delete configmap a
    configmaps \"a\" not found
$ delete configmap a --ignore-not-found
! delete configmaps
    resource(s) were provided, but no name was specified
$ delete configmaps --all -n default
    \"e\" deleted
$ create -f - < pod
$ delete -f - --now < pod
    pod \"web\" deleted
$ create -f - < pod
$ delete pod web --grace-period=0 --force
    Immediate deletion does not wait for confirmation
    \"web\" force deleted
$ create -f - < pod
$ delete pods,services -l app=web --grace-period=1
    pod \"web\" deleted
$ create configmap raw
$ delete --raw /api/v1/namespaces/default/configmaps/raw
    \"status\":\"Success\"
! delete deployment web --cascade=somehow
    invalid cascade value
";

#[tokio::test]
async fn a_deletion_sets_the_propagation_policy() {
    play(&[("deployment", DEPLOYMENT)], CASCADE).await;
}

const CASCADE: &str = "
$ create -f - < deployment
$ delete deployment web --cascade=background
    \"web\" deleted
$ create -f - < deployment
$ delete deployment web --cascade=orphan --wait=false
    \"web\" deleted
$ get deployment web -o jsonpath={.metadata.finalizers}/{.metadata.deletionGracePeriodSeconds}
    [\"orphan\"]/0
$ delete deployment web --cascade=foreground --wait=false
$ get deployment web -o jsonpath={.metadata.finalizers}
    foregroundDeletion
! wait --for=delete deployment/web --timeout=100ms
$ patch deployment web --type=merge -p '{\"metadata\":{\"finalizers\":null}}'
! get deployment web
    not found
";
