//! A rule with a fault that no write can create: it is in the store from a version that accepted
//! it.

use crate::lab::{LIMIT, Lab};
use config_kube::{CertificatePolicy, MachineState};
use config_protocol::Code;
use master_store::{EmbeddedStore, Op, Store as _};
use serde_json::{Value, json};
use std::path::Path;

/// The policy's key in the store.
const KEY: &str = "certificatepolicies.pratique.dev/cluster";

/// Writes the policy's rules into a store without a running master.
async fn put(data: &Path, change: impl Fn(&mut Value)) {
    let store = EmbeddedStore::open(&data.join("store")).unwrap();
    let entry = store.get(KEY).await.unwrap().entry.expect("the policy");
    let mut object: Value = serde_json::from_slice(&entry.value.bytes()).unwrap();
    change(&mut object["spec"]["rules"][0]);
    let value = serde_json::to_vec(&object).unwrap();
    store
        .commit(vec![Op::update(KEY, entry.modified, value.into())])
        .await
        .unwrap();
}

/// A faulty rule admits no machine, and removes none; the policy's status names the fault, and once
/// corrected the policy decides again.
pub(crate) async fn a_faulty_rule_admits_and_removes_no_machine() {
    let lab = Lab::start().await;
    let machine = lab.machine().await;
    lab.join(&machine).await.accepted();
    lab.site
        .cut_and_change(async |data| put(data, |rule| rule["ek"]["require"] = json!("some")).await)
        .await;
    let outcome = lab.join(&machine).await;
    lab.refused(&outcome, Code::PolicyInvalid, false).await;
    assert_eq!(lab.status(&machine.node).await.state, MachineState::Trusted);
    let start = std::time::Instant::now();
    loop {
        let policy: CertificatePolicy = lab.site.get("cluster").await;
        if policy
            .status
            .unwrap_or_default()
            .faults
            .iter()
            .any(|fault| fault.contains("ek.require"))
        {
            break;
        }
        assert!(
            start.elapsed() < LIMIT,
            "the policy does not say its fault:\n{}",
            lab.site.log()
        );
    }
    lab.change_rule(|rule| rule["ek"]["require"] = json!("all"))
        .await;
    lab.until_accepted(&machine).await;
    lab.site.stop();
}
