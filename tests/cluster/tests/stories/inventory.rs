//! Only admins decide which machines belong to the cluster, not nodes.

use crate::world::{Cluster, World, expect};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::{Error, Result, file_error};

/// A name that the inventory does not have.
const STRANGER: &str = "stranger-1";
const NODE: &[&str] = &["--as=system:node:worker-1", "--as-group=system:nodes"];
const ACCOUNT: &[&str] = &["--as=system:serviceaccount:default:default"];
const SOMEBODY: &[&str] = &["--as=jane"];

/// A node, a pod's account and an ordinary user add nothing to inventory and cluster and remove
/// nothing of it; an admin does.
pub(crate) fn only_admins_add_and_remove_machines_and_nodes(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let before = members(cluster)?;
    let who = cluster.lab.kubectl(
        &[
            NODE,
            &[
                "auth",
                "whoami",
                "-o",
                "jsonpath={.status.userInfo.username}",
            ],
        ]
        .concat(),
    )?;
    expect(
        who == "system:node:worker-1",
        &format!("`--as` makes {who:?} of us"),
    )?;
    cluster
        .lab
        .kubectl(&[NODE, &["get", "node", "worker-1"]].concat())?;
    let machine = json!({ "apiVersion": "pratique.dev/v1alpha1", "kind": "Machine", "metadata": { "name": STRANGER },
        "spec": { "role": "worker", "ek": { "hashes": [format!("sha256:{}", "0a".repeat(32))] } } });
    let machine = file(cluster, "machine", &machine)?;
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": STRANGER } });
    let node = file(cluster, "node", &node)?;
    let request = file(cluster, "request", &request(STRANGER)?)?;
    let retire = "{\"spec\":{\"retired\":true}}";
    let of_anybody: [&[&str]; 4] = [
        &["create", "--validate=false", "-f", &machine],
        &["create", "--validate=false", "-f", &node],
        &["delete", "machine", "master-1", "--wait=false"],
        &["delete", "node", "master-1", "--wait=false"],
    ];
    let of_a_node: [&[&str]; 5] = [
        &["delete", "machine", "worker-1", "--wait=false"],
        &["patch", "machine", "worker-1", "--type=merge", "-p", retire],
        &["delete", "node", "worker-1", "--wait=false"],
        &["delete", "nodes", "--all", "--wait=false"],
        &["create", "--validate=false", "-f", &request],
    ];
    let of_all = [NODE, ACCOUNT, SOMEBODY]
        .into_iter()
        .flat_map(|who| of_anybody.map(|words| (who, words)));
    for (who, words) in of_all.chain(of_a_node.map(|words| (NODE, words))) {
        forbidden(cluster, &[who, words].concat())?;
    }
    expect(
        members(cluster)? == before,
        &format!("other members than before: {before}"),
    )?;
    cluster.lab.wait_ready("worker-1", BOOT_LIMIT)?;
    // The control.
    cluster.lab.kubectl(&["create", "-f", &machine])?;
    expect(
        members(cluster)?.contains(STRANGER),
        "an admin's Machine is not in the inventory",
    )?;
    cluster
        .lab
        .kubectl(&["delete", "machine", STRANGER, "--timeout=600s"])?;
    expect(
        members(cluster)? == before,
        &format!("other members than before: {before}"),
    )
}

fn forbidden(cluster: &Cluster, words: &[&str]) -> Result<()> {
    match cluster.lab.kubectl(words) {
        Ok(printed) => Err(Error::Missing(format!(
            "`kubectl {}` was done: {printed}",
            words.join(" ")
        ))),
        Err(error) => {
            let text = tests_harness::chain(&error);
            expect(
                text.contains("(Forbidden)"),
                &format!("`kubectl {}` failed otherwise: {text}", words.join(" ")),
            )
        }
    }
}

/// Machines and Nodes by name and uid.
fn members(cluster: &Cluster) -> Result<String> {
    let path = "jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid}{\"\\n\"}{end}";
    cluster.lab.kubectl(&["get", "machines,nodes", "-o", path])
}

fn file(cluster: &Cluster, name: &str, object: &Value) -> Result<String> {
    let file = cluster.lab.dir.join(format!("{name}.json"));
    std::fs::write(&file, object.to_string()).map_err(file_error("cannot write", &file))?;
    Ok(file.display().to_string())
}

/// A request for a node's certificate by the cluster's own signer.
fn request(node: &str) -> Result<Value> {
    let fault = |error: rcgen::Error| Error::Missing(format!("no request: {error}"));
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(DnType::CommonName, format!("system:node:{node}"));
    let key = KeyPair::generate().map_err(fault)?;
    let pem = params
        .serialize_request(&key)
        .and_then(|request| request.pem())
        .map_err(fault)?;
    Ok(
        json!({ "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": node },
        "spec": { "request": STANDARD.encode(pem), "signerName": "pratique.dev/node-client", "usages": ["client auth"] } }),
    )
}
