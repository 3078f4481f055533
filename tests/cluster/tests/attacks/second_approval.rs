//! Two approvals of one machine that no admin knows yet: it gets one Machine of them.

use crate::approval::{comes_by, request_of, set_policy};
use crate::lab::Lab;
use crate::removal::{Removal, approve, is_queued_without_a_machine, remove};
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use config_protocol::Code;
use serde_json::json;
use tests_machines::SoftMachine;

/// The same machine after a change that needs an approval of its own.
fn changed(machine: &SoftMachine, address: &str) -> SoftMachine {
    let mut machine = machine.clone();
    machine.claims.addresses.push(address.to_owned());
    machine.serving_request.names.push(address.to_owned());
    machine
}

/// A stranger has a request approved, comes with other claims before it joins, and is approved for
/// these. It joins by either approval, and keeps none: once an admin removed it, a person decides
/// anew, whatever happened to the request by which it joined.
pub(crate) async fn a_second_approval_brings_no_removed_machine_back() {
    let lab = &Lab::start().await;
    set_policy(lab, "queue", &json!({})).await;
    for (number, joins_by_the_first, request_is_deleted) in
        [(1, false, false), (2, false, true), (3, true, false)]
    {
        let first = lab.stranger();
        comes_by(lab, Code::Queued, || lab.join(&first)).await;
        let kept = request_of(lab, &first.node).await;
        approve(lab, &kept).await;
        // Approvals become known in their order. One that is not known yet gives way to the next.
        let later = lab.stranger();
        comes_by(lab, Code::Queued, || lab.join(&later)).await;
        approve(lab, &request_of(lab, &later.node).await).await;
        lab.until_accepted(&later).await;
        let second = changed(&first, &format!("10.99.1.{number}"));
        let kept = kept.metadata.name.unwrap();
        comes_by(lab, Code::Queued, || lab.join(&second)).await;
        let other = another_request(lab, &first.node, &kept).await;
        approve(lab, &other).await;
        let (mut used, mut banked, by) = if joins_by_the_first {
            (first, second, kept)
        } else {
            (second, first, other.metadata.name.unwrap())
        };
        lab.until_accepted(&used).await;
        if request_is_deleted {
            lab.site.delete::<CertificateSigningRequest>(&by).await;
        }
        remove(lab, &used, Removal::Deleted).await;
        for machine in [&mut banked, &mut used] {
            machine.clock.clock += 10_000;
            is_queued_without_a_machine(lab, machine).await;
        }
        // The control: a person lets it in again.
        approve(lab, &request_of(lab, &used.node).await).await;
        used.clock.clock += 1000;
        lab.until_accepted(&used).await;
    }
    lab.site.stop();
}

/// The request of a node beside the one of this name, which stays.
async fn another_request(lab: &Lab, node: &str, kept: &str) -> CertificateSigningRequest {
    let start = format!("{node}-");
    let all: Vec<CertificateSigningRequest> = lab.site.list().await;
    let names = all.iter().map(|one| one.metadata.name.as_deref());
    assert!(names.into_iter().any(|name| name == Some(kept)), "{kept}");
    let mut others = all.into_iter().filter(|one| {
        let name = one.metadata.name.as_deref().unwrap();
        name.starts_with(&start) && name != kept
    });
    others.next().expect("a second request")
}
