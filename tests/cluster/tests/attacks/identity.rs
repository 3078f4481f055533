//! Identity: certificates of endorsement keys, the inventory, names, roles.

use crate::lab::{CONFIG, EK_USAGE, LIMIT, Lab, identity};
use crate::site::collection;
use crate::wire::Identity;
use crate::{Case, nothing};
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::{Machine, MachineState};
use config_protocol::Code;
use http::{Method, StatusCode};
use serde_json::json;
use tests_machines::{EkKind, SoftMachine, ek_certificate};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = certificates();
    cases.extend(without_a_certificate_or_with_another_name());
    cases
}

/// Certificates of another maker, time, use or key.
fn certificates() -> Vec<Case> {
    vec![
        Case::anonymous(
            "an EK certificate of an unknown maker",
            Code::EkCertificateIssuer,
            |_, machine| {
                let maker = SoftMachine::new("another maker", EkKind::P256).ak;
                machine.ek_certificate = Some(ek_certificate(
                    "lab-ca",
                    &maker,
                    &machine.ek_spki(),
                    EK_USAGE,
                    2090,
                ));
                nothing()
            },
        ),
        Case::anonymous(
            "an expired EK certificate",
            Code::EkCertificateExpired,
            |lab, machine| {
                machine.ek_certificate = Some(ek_certificate(
                    "lab-ca",
                    &lab.maker,
                    &machine.ek_spki(),
                    EK_USAGE,
                    2021,
                ));
                nothing()
            },
        ),
        Case::anonymous(
            "an EK certificate for another use",
            Code::EkCertificateUsage,
            |lab, machine| {
                let server = [1, 3, 6, 1, 5, 5, 7, 3, 1];
                machine.ek_certificate = Some(ek_certificate(
                    "lab-ca",
                    &lab.maker,
                    &machine.ek_spki(),
                    &server,
                    2090,
                ));
                nothing()
            },
        ),
        Case::anonymous(
            "an EK certificate of another EK",
            Code::EkCertificateOtherKey,
            |lab, machine| {
                let other = SoftMachine::new("another EK", EkKind::P256).ek_spki();
                machine.ek_certificate =
                    Some(ek_certificate("lab-ca", &lab.maker, &other, EK_USAGE, 2090));
                nothing()
            },
        ),
    ]
}

/// Malformed and missing certificates, and claims of another's name or role.
fn without_a_certificate_or_with_another_name() -> Vec<Case> {
    vec![
        Case::anonymous(
            "an EK certificate with its index's padding",
            Code::EkCertificateMalformed,
            |_, machine| {
                machine.ek_certificate.get_or_insert_default().push(0xff);
                nothing()
            },
        ),
        Case::anonymous(
            "bytes that are no EK certificate",
            Code::EkCertificateMalformed,
            |_, machine| {
                machine.ek_certificate = Some(b"not DER".to_vec());
                nothing()
            },
        ),
        Case::anonymous(
            "no EK certificate",
            Code::EkCertificateMissing,
            |_, machine| {
                machine.ek_certificate = None;
                nothing()
            },
        ),
        Case::anonymous("another node's name", Code::NameMismatch, |_, machine| {
            "worker-of-somebody-else".clone_into(&mut machine.claims.name);
            nothing()
        }),
        Case::anonymous(
            "a worker that declares itself master",
            Code::RoleMismatch,
            |_, machine| {
                "master".clone_into(&mut machine.claims.role);
                nothing()
            },
        ),
    ]
}

/// The same machine is refused while the inventory does not know it, and joins once it does.
pub(crate) async fn a_machine_outside_the_inventory_is_refused_until_it_is_added(lab: &Lab) {
    let machine = lab.stranger();
    lab.refused(&lab.join(&machine).await, Code::MachineUnknown, false)
        .await;
    lab.register(&machine, &machine.node).await;
    lab.join(&machine).await.accepted();
}

/// A machine of the inventory is refused while the rule does not admit its role.
pub(crate) async fn a_role_that_the_rule_does_not_admit_is_refused(lab: &Lab) {
    let machine = lab.machine().await;
    let role = async |role: &str| {
        lab.site
            .patch::<Machine>(&machine.node, &json!({ "spec": { "role": role } }))
            .await;
    };
    role("master").await;
    let outcome = lab
        .until(Code::RoleNotAdmitted, || lab.join(&machine))
        .await;
    lab.refused(&outcome, Code::RoleNotAdmitted, false).await;
    role("worker").await;
    lab.until_accepted(&machine).await;
}

/// A machine that claims no name learns the one that the inventory has for its key, after its
/// proof.
pub(crate) async fn a_machine_without_a_name_learns_it_from_the_inventory(lab: &Lab) {
    let machine = lab.machine().await;
    let derived = config_protocol::name::derived(&machine.ek_hash());
    let mut unnamed = machine.clone();
    unnamed.claims.name.clear();
    unnamed.client_request.common_name = format!("system:node:{derived}");
    unnamed.serving_request.common_name = format!("system:node:{derived}");
    unnamed.serving_request.names = vec![derived];
    let answer = lab.join(&unnamed).await.answer;
    assert_eq!(answer.status, StatusCode::CONFLICT, "{:?}", answer.json);
    assert_eq!(
        (&answer.json["code"], &answer.json["nodeName"]),
        (&json!("NAME_ASSIGNED"), &json!(machine.node))
    );
    lab.join(&machine).await.accepted();
}

/// A retired machine stays out until an admin reinstates it.
pub(crate) async fn a_retired_machine_is_refused_until_an_admin_reinstates_it(lab: &Lab) {
    let mut machine = lab.machine().await;
    lab.join(&machine).await.accepted();
    machine.clock.clock += 1000;
    lab.site
        .patch::<Machine>(&machine.node, &json!({ "spec": { "retired": true } }))
        .await;
    lab.until(Code::MachineRetired, async || lab.join(&machine).await)
        .await;
    lab.refused(&lab.join(&machine).await, Code::MachineRetired, false)
        .await;
    lab.site
        .patch::<Machine>(&machine.node, &json!({ "spec": { "retired": false } }))
        .await;
    lab.until_accepted(&machine).await;
}

/// An EK that is bound to one Machine is refused for a second one, even if an admin lists it there
/// by mistake.
pub(crate) async fn an_ek_of_one_machine_is_refused_under_a_second_name(lab: &Lab) {
    let mut machine = lab.machine().await;
    lab.join(&machine).await.accepted();
    let second = format!("{}-again", machine.node);
    let mut object: Machine = lab.site.get(&machine.node).await;
    object = Machine::named(&second, object.spec);
    object.spec.addresses.clear();
    lab.site.create(&object).await;
    machine.claims.name.clone_from(&second);
    // Until the second line of the inventory is known, the name is simply another's.
    let outcome = lab
        .until(Code::EkBoundElsewhere, || lab.join(&machine))
        .await;
    lab.refused(&outcome, Code::EkBoundElsewhere, false).await;
    machine.claims.name.clone_from(&machine.node);
    lab.join(&machine).await.accepted();
}

/// A name that is bound to one EK is refused to another EK, even if the inventory lists both.
pub(crate) async fn a_name_of_one_machine_is_refused_to_a_second_ek(lab: &Lab) {
    let machine = lab.machine().await;
    lab.join(&machine).await.accepted();
    let mut other = SoftMachine::new("a replaced board", EkKind::P256);
    other.claims = machine.claims.clone();
    other.ek_certificate = Some(ek_certificate(
        "lab-ca",
        &lab.maker,
        &other.ek_spki(),
        EK_USAGE,
        2090,
    ));
    other.boot(&lab.image, "nocloud", CONFIG);
    let hashes = json!([machine.ek_hash().to_text(), other.ek_hash().to_text()]);
    lab.site
        .patch::<Machine>(
            &machine.node,
            &json!({ "spec": { "ek": { "hashes": hashes } } }),
        )
        .await;
    let outcome = lab
        .until(Code::MachineBoundToOtherEk, || lab.join(&other))
        .await;
    lab.refused(&outcome, Code::MachineBoundToOtherEk, false)
        .await;
    lab.join(&machine).await.accepted();
}

/// A Machine that proved something bad is refused, with its certificate and without, until an admin
/// readmits it.
pub(crate) async fn an_untrusted_machine_is_refused_until_an_admin_readmits_it(lab: &Lab) {
    let mut machine = lab.machine().await;
    let mut bad = lab.image.clone();
    bad.kernel[0] ^= 1;
    machine.boot(&bad, "nocloud", CONFIG);
    lab.refused(&lab.join(&machine).await, Code::ImageLoader, true)
        .await;
    machine.boot(&lab.image, "nocloud", CONFIG);
    lab.refused(&lab.join(&machine).await, Code::MachineUntrusted, false)
        .await;
    assert_eq!(
        lab.status(&machine.node).await.state,
        MachineState::Untrusted
    );
    let until = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    // A readmission whose time is over has no effect.
    let ended = json!({ "spec": { "readmitUntil": "2020-01-01T00:00:00Z" } });
    lab.site.patch::<Machine>(&machine.node, &ended).await;
    lab.refused(&lab.join(&machine).await, Code::MachineUntrusted, false)
        .await;
    let status = lab.status(&machine.node).await;
    assert!(
        status.next_step.contains("readmitUntil") && status.next_step.contains(&machine.node),
        "{status:?}"
    );
    lab.site
        .patch::<Machine>(
            &machine.node,
            &json!({ "spec": { "readmitUntil": until.to_string() } }),
        )
        .await;
    let object: Machine = lab.site.get(&machine.node).await;
    let by = object
        .metadata
        .annotations
        .unwrap_or_default()
        .remove("pratique.dev/decided-by")
        .unwrap_or_default();
    assert!(by.starts_with("admin at "), "who re-admitted it: {by:?}");
    let start = std::time::Instant::now();
    loop {
        let outcome = lab.join(&machine).await;
        if outcome.answer.status.is_success() {
            break;
        }
        assert!(start.elapsed() < LIMIT, "{:?}", outcome.answer.json);
    }
    assert_eq!(lab.status(&machine.node).await.state, MachineState::Trusted);
}

/// One action moves a broken board's name to another board: the old one's certificates are denied
/// at once and permanently, and it can't come back.
pub(crate) async fn certificates_of_a_replaced_board_are_denied(lab: &Lab) {
    let mut machine = lab.machine().await;
    let old = identity(&machine, &lab.join(&machine).await.accepted());
    machine.clock.clock += 1000;
    let mut other = SoftMachine::new("a spare board", EkKind::P256);
    // Before it has the name: the machine's keys come from what it is called.
    other.boot(&lab.image, "nocloud", CONFIG);
    other.node.clone_from(&machine.node);
    other.names.clone_from(&machine.names);
    other.serving_request.clone_from(&machine.serving_request);
    other.client_request.clone_from(&machine.client_request);
    other.claims = machine.claims.clone();
    other.claims.image.clone_from(&lab.image.id);
    other.ek_certificate = Some(ek_certificate(
        "lab-ca",
        &lab.maker,
        &other.ek_spki(),
        EK_USAGE,
        2090,
    ));
    // Control: before the replacement the old board is the machine, and the other one is unknown.
    let node = format!("{}/{}", collection::<Node>(), machine.node);
    let mut kept = lab.connect_as(&old).await.unwrap();
    assert_eq!(
        kept.send(Method::GET, &node, Vec::new()).await.status,
        StatusCode::OK
    );
    lab.refused(&lab.join(&other).await, Code::MachineUnknown, false)
        .await;
    let hashes = json!({ "spec": { "ek": { "hashes": [other.ek_hash().to_text()] } } });
    lab.site.patch::<Machine>(&machine.node, &hashes).await;
    let start = std::time::Instant::now();
    while lab
        .connect_as(&old)
        .await
        .unwrap()
        .status(Method::GET, &node, Vec::new())
        .await
        != StatusCode::UNAUTHORIZED
    {
        assert!(
            start.elapsed() < LIMIT,
            "the replaced board's certificate is not denied"
        );
    }
    let fresh = identity(&other, &lab.join(&other).await.accepted());
    assert_eq!(
        lab.status(&machine.node).await.bound_ek,
        Some(other.ek_hash().to_text())
    );
    let ask = async |who: &Identity| {
        lab.connect_as(who)
            .await
            .unwrap()
            .status(Method::GET, &node, Vec::new())
            .await
    };
    assert_eq!(ask(&fresh).await, StatusCode::OK);
    assert_eq!(
        ask(&old).await,
        StatusCode::UNAUTHORIZED,
        "the new board's proof is not the old one's"
    );
    lab.refused(&lab.join(&machine).await, Code::MachineUnknown, false)
        .await;
    other.clock.clock += 1000;
    lab.renew(&other, &fresh).await.accepted();
}
