//! Who comes: certificates of endorsement keys, the inventory, names, roles.

use crate::lab::{CONFIG, EK_USAGE, Lab};
use crate::{Case, nothing};
use config_attest::Code;
use config_attest::testing::{EkKind, SoftMachine, ek_certificate};
use config_kube::{Machine, MachineState};
use serde_json::json;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::anonymous("an EK certificate of an unknown maker", Code::EkCertificateIssuer, |_, machine| {
            let maker = SoftMachine::new("another maker", EkKind::P256).ak;
            machine.ek_certificate = Some(ek_certificate("lab-ca", &maker, &machine.ek_spki(), EK_USAGE, 2090));
            nothing()
        }),
        Case::anonymous("an expired EK certificate", Code::EkCertificateExpired, |lab, machine| {
            machine.ek_certificate = Some(ek_certificate("lab-ca", &lab.maker, &machine.ek_spki(), EK_USAGE, 2021));
            nothing()
        }),
        Case::anonymous("an EK certificate for another use", Code::EkCertificateUsage, |lab, machine| {
            let server = [1, 3, 6, 1, 5, 5, 7, 3, 1];
            machine.ek_certificate = Some(ek_certificate("lab-ca", &lab.maker, &machine.ek_spki(), &server, 2090));
            nothing()
        }),
        Case::anonymous("an EK certificate of another EK", Code::EkCertificateOtherKey, |lab, machine| {
            let other = SoftMachine::new("another EK", EkKind::P256).ek_spki();
            machine.ek_certificate = Some(ek_certificate("lab-ca", &lab.maker, &other, EK_USAGE, 2090));
            nothing()
        }),
        Case::anonymous("no EK certificate", Code::EkCertificateMissing, |_, machine| {
            machine.ek_certificate = None;
            nothing()
        }),
        Case::anonymous("another node's name", Code::NameMismatch, |_, machine| {
            "worker-of-somebody-else".clone_into(&mut machine.claims.name);
            nothing()
        }),
        Case::anonymous("a worker that declares itself master", Code::RoleMismatch, |_, machine| {
            "master".clone_into(&mut machine.claims.role);
            nothing()
        }),
    ]
}

/// The same machine is refused while the inventory does not know it, and joins once it does.
pub(crate) async fn outside_the_inventory(lab: &Lab) {
    let machine = lab.stranger();
    lab.refused(&lab.join(&machine).await, Code::MachineUnknown, false).await;
    lab.register(&machine, &machine.node).await;
    lab.join(&machine).await.accepted();
}

/// An EK that is bound to one Machine is no second one, even where an admin lists it by mistake.
pub(crate) async fn one_ek_under_a_second_name(lab: &Lab) {
    let mut machine = lab.machine().await;
    lab.join(&machine).await.accepted();
    let second = format!("{}-again", machine.node);
    let mut object: Machine = lab.site.get(&machine.node).await;
    object = Machine::named(&second, object.spec);
    object.spec.addresses.clear();
    lab.site.create(&object).await;
    machine.claims.name.clone_from(&second);
    // Until the second line of the inventory is known, the name is simply another's.
    let outcome = lab.until(Code::EkBoundElsewhere, || lab.join(&machine)).await;
    lab.refused(&outcome, Code::EkBoundElsewhere, false).await;
    machine.claims.name.clone_from(&machine.node);
    lab.join(&machine).await.accepted();
}

/// A name that is bound to one EK is not another EK's, though the inventory lists both.
pub(crate) async fn one_name_under_a_second_ek(lab: &Lab) {
    let machine = lab.machine().await;
    lab.join(&machine).await.accepted();
    let mut other = SoftMachine::new("a replaced board", EkKind::P256);
    other.claims = machine.claims.clone();
    other.ek_certificate = Some(ek_certificate("lab-ca", &lab.maker, &other.ek_spki(), EK_USAGE, 2090));
    other.boot(&lab.image, "nocloud", CONFIG);
    let hashes = json!([machine.ek_hash().to_text(), other.ek_hash().to_text()]);
    lab.site.patch::<Machine>(&machine.node, &json!({ "spec": { "ek": { "hashes": hashes } } })).await;
    let outcome = lab.until(Code::MachineBoundToOtherEk, || lab.join(&other)).await;
    lab.refused(&outcome, Code::MachineBoundToOtherEk, false).await;
    lab.join(&machine).await.accepted();
}

/// A Machine that proved something bad stays out, with its certificate and without, until an admin's act.
pub(crate) async fn untrusted_until_an_admin_acts(lab: &Lab) {
    let mut machine = lab.machine().await;
    let mut bad = lab.image.clone();
    bad.kernel[0] ^= 1;
    machine.boot(&bad, "nocloud", CONFIG);
    lab.refused(&lab.join(&machine).await, Code::ImageLoader, true).await;
    machine.boot(&lab.image, "nocloud", CONFIG);
    lab.refused(&lab.join(&machine).await, Code::MachineUntrusted, false).await;
    assert_eq!(lab.status(&machine.node).await.state, MachineState::Untrusted);
    let until = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    lab.site.patch::<Machine>(&machine.node, &json!({ "spec": { "readmitUntil": until.to_string() } })).await;
    let start = std::time::Instant::now();
    loop {
        let outcome = lab.join(&machine).await;
        if outcome.answer.status.is_success() {
            break;
        }
        assert!(start.elapsed().as_secs() < 20, "{:?}", outcome.answer.json);
    }
    assert_eq!(lab.status(&machine.node).await.state, MachineState::Trusted);
}
