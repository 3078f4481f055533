//! A machine is retired while the master has its request in part. The rest of the request comes
//! after the admin's answer: it is not answered with success, and has no effect.

use crate::after_join::joined;
use crate::lab::Lab;
use crate::wire::{Halved, Identity, config};
use config_kube::Machine;
use config_protocol::Purpose;
use config_protocol::wire::{Challenge, SESSIONS_PATH, evidence_path};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tests_machines::SoftMachine;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

async fn halved(lab: &Lab, who: Option<&Identity>) -> Halved {
    Halved::open(lab.site.address, config(&lab.site.root, who))
        .await
        .unwrap()
}

async fn retire(lab: &Lab, machine: &SoftMachine) {
    lab.site
        .patch::<Machine>(&machine.node, &json!({ "spec": { "retired": true } }))
        .await;
}

/// A node that makes its lease, in two parts.
pub(crate) async fn a_write_whose_machine_is_retired_while_it_is_sent_is_not_made(lab: &Lab) {
    for retired in [false, true] {
        let (machine, who) = joined(lab).await;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": machine.node }, "spec": { "holderIdentity": machine.node },
        });
        let lease = lease.to_string().into_bytes();
        let mut connection = halved(lab, Some(&who)).await;
        let rest = connection.begin(LEASES, &lease).await;
        if retired {
            retire(lab, &machine).await;
        }
        let status = connection.finish(rest).await.status;
        let path = format!("{LEASES}/{}", machine.node);
        let made = lab.site.api(Method::GET, &path, Vec::new()).await.status;
        if retired {
            assert_eq!(status, StatusCode::UNAUTHORIZED);
            assert_eq!(made, StatusCode::NOT_FOUND, "the write was made");
        } else {
            assert_eq!(status, StatusCode::CREATED, "the control");
            assert_eq!(made, StatusCode::OK, "the control");
        }
    }
}

/// A machine that joins anew, without a certificate of its node: its evidence comes in two parts.
pub(crate) async fn evidence_of_a_machine_that_is_retired_while_it_is_sent_is_refused(lab: &Lab) {
    for retired in [false, true] {
        let (machine, _) = joined(lab).await;
        let greeting = machine.hello();
        let mut connection = halved(lab, None).await;
        let hello = serde_json::to_vec(&greeting.0).unwrap();
        let rest = connection.begin(SESSIONS_PATH, &hello).await;
        let answer = connection.finish(rest).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        let challenge: Challenge = serde_json::from_value(answer.json).unwrap();
        let evidence = machine.evidence(Purpose::Join, &greeting, &challenge, &connection.channel);
        let evidence = serde_json::to_vec(&evidence).unwrap();
        let path = evidence_path(SESSIONS_PATH, &challenge.session);
        let rest = connection.begin(&path, &evidence).await;
        if retired {
            retire(lab, &machine).await;
        }
        let before = lab.status(&machine.node).await;
        let answer = connection.finish(rest).await;
        if !retired {
            assert_eq!(answer.status, StatusCode::OK, "the control: {answer:?}");
            continue;
        }
        assert!(!answer.status.is_success(), "{answer:?}");
        assert_eq!(answer.json["client"], Value::Null);
        let after = lab.status(&machine.node).await;
        assert_eq!(
            (after.last_attestation, after.certificate),
            (before.last_attestation, before.certificate),
            "it was admitted"
        );
    }
}
