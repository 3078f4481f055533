//! `auth`, impersonation, tokens and certificates.

use super::play;
use crate::common;
use crate::common::kubectl::Cluster;

#[tokio::test]
async fn whoami_and_can_i_answer_for_the_caller() {
    play(&[("roles", ROLES)], AUTH).await;
}

const ROLES: &str = "
apiVersion: v1
kind: List
items:
- apiVersion: rbac.authorization.k8s.io/v1
  kind: Role
  metadata: {name: reader, namespace: default}
  rules: [{apiGroups: [''], resources: [pods, pods/log], verbs: [get, list]}]
- apiVersion: rbac.authorization.k8s.io/v1
  kind: RoleBinding
  metadata: {name: readers, namespace: default}
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
  subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}]
";

const AUTH: &str = "
$ auth whoami
    [system:masters system:authenticated]
$ auth whoami -o jsonpath={.status.userInfo.username} --as=jane --as-group=team
    jane
$ auth can-i '*' '*'
    yes
! auth can-i get pods --as=jane
    no
! get pods --as=jane
    pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\"
$ auth reconcile -f - --dry-run=client < roles
    reconciled (dry run)
! get role reader
    not found
$ auth reconcile -f - < roles
    role.rbac.authorization.k8s.io/reader reconciled
    rolebinding.rbac.authorization.k8s.io/readers reconciled
$ auth reconcile -f - < roles
$ auth can-i list pods --as=jane
    yes
$ auth can-i get pods --subresource=log --as=jane
    yes
! auth can-i list pods -n kube-system --as=jane
    no
! auth can-i get /metrics --as=jane
    no
$ auth can-i --list --as=jane
    pods/log
    [get list]
    selfsubjectreviews.authentication.k8s.io
    [/healthz]
$ get pods --as=jane
    No resources found
! create configmap m --as=jane
    configmaps is forbidden: User \"jane\" cannot create resource \"configmaps\"
$ create serviceaccount robot
$ create rolebinding robots --role=reader --serviceaccount=default:robot
$ auth can-i list pods --as=system:serviceaccount:default:robot
    yes
! get pods --as-group=team
    without impersonating a user
! get pods --token=wrong --client-certificate=/dev/null --client-key=/dev/null
";

#[tokio::test]
async fn certificates_are_requested_approved_and_denied() {
    let cluster = Cluster::start().await;
    let request = |name: &str| {
        let pem = common::signing_request("jane");
        format!(
            "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{name: {name}}}\n\
             spec: {{request: {pem}, signerName: kubernetes.io/kube-apiserver-client, usages: [client auth]}}\n"
        )
    };
    let (good, bad) = (request("good"), request("bad"));
    cluster
        .run_transcript(&[("good", &good), ("bad", &bad)], CERTIFICATES)
        .await;
    cluster.server.stop().await;
}

const CERTIFICATES: &str = "
$ create -f - < good
$ create -f - < bad
$ get csr
    kubernetes.io/kube-apiserver-client   admin
    Pending
$ certificate approve good
    certificatesigningrequest.certificates.k8s.io/good approved
$ certificate deny -f - < bad
    bad denied
! certificate approve bad
    is already Denied
$ get csr good bad
    Approved
    Denied
$ describe csr good
    Requesting User:    admin
$ get csr good -o jsonpath={.status.conditions[0].reason}/{.spec.groups}
    KubectlApprove/[\"system:masters\",\"system:authenticated\"]
";
