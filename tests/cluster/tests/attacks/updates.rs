//! Intended changes: another image, another firmware. A good one joins by itself or by one
//! action of an admin, which allows nothing else.

use crate::after_join::{ask, joined, own_node};
use crate::lab::{CONFIG, LIMIT, Lab, identity};
use config_kube::k8s_openapi::api::core::v1::{Event as Happening, Node};
use config_kube::{Machine, MachineState};
use config_protocol::Code;
use config_tpm::Digest;
use config_tpm::eventlog::Event;
use http::{Method, StatusCode};
use serde_json::json;
use std::time::{Duration, Instant};
use tests_machines::SoftImage;

/// A machine that boots the next allowed image stays the same node, without further action; the key
/// of the previous boot is denied from then on, an image without a release is refused, and only a
/// limited number of old images is admitted.
pub(crate) async fn the_next_allowed_image_joins_without_an_admin() {
    let lab = Lab::start().await;
    let (mut machine, before) = joined(&lab).await;
    let (mut slow, stays) = joined(&lab).await;
    assert_eq!(
        ask(&lab, &before, Method::GET, &own_node(&machine), json!(null)).await,
        StatusCode::OK
    );
    let next = |svn: u64| SoftImage::new(&format!("worker-{svn}"), "worker", svn);
    lab.release(&next(8), true).await;
    machine.boot(&next(8), "nocloud", CONFIG);
    let after = identity(&machine, &lab.until_accepted(&machine).await);
    let status = lab.status(&machine.node).await;
    assert_eq!(
        (status.state, status.image.map(|image| image.id).as_deref()),
        (MachineState::Trusted, Some("worker-8"))
    );
    assert_eq!(
        ask(&lab, &after, Method::GET, &own_node(&machine), json!(null)).await,
        StatusCode::OK
    );
    assert_eq!(
        ask(&lab, &before, Method::GET, &own_node(&machine), json!(null)).await,
        StatusCode::UNAUTHORIZED
    );
    until("the Node's label says its image", async || {
        let node: Node = lab.site.get(&machine.node).await;
        node.metadata
            .labels
            .unwrap_or_default()
            .get("pratique.dev/image")
            .map(String::as_str)
            == Some("worker-8")
    })
    .await;

    // One old image beside the newest: worker-7 is one.
    limit(&lab, 1).await;
    let stays = identity(&slow, &lab.renew(&slow, &stays).await.accepted());
    slow.clock.clock += 1000;
    lab.release(&next(9), true).await;
    let outcome = lab
        .until(Code::ImageConcurrency, async || {
            lab.renew(&slow, &stays).await
        })
        .await;
    lab.refused(&outcome, Code::ImageConcurrency, true).await;
    slow.clock.clock += 1000;
    lab.refused(&lab.renew(&slow, &stays).await, Code::RenewalState, false)
        .await;
    machine.clock.clock += 1000;
    lab.renew(&machine, &after).await.accepted();
    // It heals by booting one that is admitted.
    slow.boot(&next(9), "nocloud", CONFIG);
    lab.join(&slow).await.accepted();
    assert_eq!(lab.status(&slow.node).await.state, MachineState::Trusted);

    slow.boot(
        &SoftImage {
            command_line: "another".to_owned(),
            ..next(10)
        },
        "nocloud",
        CONFIG,
    );
    lab.refused(&lab.join(&slow).await, Code::ImageUnknown, true)
        .await;
    lab.site.stop();
}

/// Sets how many images are admitted beside the newest.
async fn limit(lab: &Lab, most: u32) {
    lab.change_rule(|rule| rule["images"]["maxConcurrent"] = json!(most))
        .await;
}

/// Other firmware than at the first admission shuts a machine out; an admin's one act learns the
/// new one, is on record, and counts for that firmware and no other.
pub(crate) async fn changed_firmware_is_refused_until_an_admin_readmits_it(lab: &Lab) {
    let (mut machine, who) = joined(lab).await;
    let first = lab.status(&machine.node).await.pinned_pcrs;
    let update = |machine: &mut tests_machines::SoftMachine, what: &[u8]| {
        machine.boot(&lab.image, "nocloud", CONFIG);
        let event = Event {
            pcr: 0,
            kind: 0x8000_0004,
            digest: Digest::of(what),
            data: Vec::new(),
        };
        machine.bank.extend(0, &event.digest);
        machine.log.events.push(event);
        machine.bind_nk();
    };
    update(&mut machine, b"firmware 2");
    lab.refused(&lab.join(&machine).await, Code::FirmwareChanged, true)
        .await;
    assert_eq!(
        ask(lab, &who, Method::GET, &own_node(&machine), json!(null)).await,
        StatusCode::UNAUTHORIZED
    );
    lab.refused(&lab.join(&machine).await, Code::MachineUntrusted, false)
        .await;
    let until_then = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let act = json!({ "spec": { "readmitUntil": until_then.to_string() } });
    lab.site.patch::<Machine>(&machine.node, &act).await;
    let fresh = identity(&machine, &lab.until_accepted(&machine).await);
    let object: Machine = lab.site.get(&machine.node).await;
    let by = object
        .metadata
        .annotations
        .unwrap_or_default()
        .remove("pratique.dev/decided-by")
        .unwrap_or_default();
    assert!(
        by.starts_with("admin at "),
        "who let the new firmware in: {by:?}"
    );
    let status = object.status.unwrap_or_default();
    assert_eq!(status.state, MachineState::Trusted);
    assert_ne!(status.pinned_pcrs["0"], first["0"]);
    assert_eq!(status.pinned_pcrs["2"], first["2"]);
    until("an event reports the new firmware", async || {
        let events: Vec<Happening> = lab.site.list().await;
        let own = |event: &&Happening| {
            event.involved_object.name.as_deref() == Some(machine.node.as_str())
        };
        events
            .iter()
            .filter(own)
            .any(|event| event.reason.as_deref() == Some("FirmwareChanged"))
    })
    .await;
    // The act was made use of, and is over before its time is: what was learned is held to.
    assert_eq!(status.readmitted, Some(until_then.to_string()));
    machine.clock.clock += 1000;
    lab.renew(&machine, &fresh).await.accepted();
    update(&mut machine, b"firmware 3");
    lab.refused(&lab.join(&machine).await, Code::FirmwareChanged, true)
        .await;
    // Nor does it admit a machine that became Untrusted since, with the pinned firmware.
    update(&mut machine, b"firmware 2");
    lab.refused(&lab.join(&machine).await, Code::MachineUntrusted, false)
        .await;
}

/// A maker's keys and its list of revoked programs shut a machine out until an admin's one act
/// learns them; that act is worth nothing for the list after them.
pub(crate) async fn changed_secure_boot_databases_are_refused_until_an_admin_readmits_them(
    lab: &Lab,
) {
    let (mut machine, _) = joined(lab).await;
    let boot = |machine: &mut tests_machines::SoftMachine, dbx: &[u8]| {
        let mut image = lab.image.clone();
        image.keys.dbx = dbx.to_vec();
        machine.boot(&image, "nocloud", CONFIG);
    };
    boot(&mut machine, b"revoked 1");
    lab.refused(&lab.join(&machine).await, Code::SecureBootDatabase, true)
        .await;
    let until_then = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let act = json!({ "spec": { "readmitUntil": until_then.to_string() } });
    lab.site.patch::<Machine>(&machine.node, &act).await;
    let fresh = identity(&machine, &lab.until_accepted(&machine).await);
    let status = lab.status(&machine.node).await;
    assert_eq!(status.state, MachineState::Trusted);
    assert!(
        status.pinned_pcrs.contains_key("7"),
        "{:?}",
        status.pinned_pcrs
    );
    machine.clock.clock += 1000;
    lab.renew(&machine, &fresh).await.accepted();
    boot(&mut machine, b"revoked 1 and 2");
    lab.refused(&lab.join(&machine).await, Code::SecureBootDatabase, true)
        .await;
}

/// A renewal is of the boot and the keys of the whole exchange before it; who becomes Suspect is
/// given no new pods, and heals by the whole exchange.
pub(crate) async fn a_renewal_from_another_boot_or_key_is_refused(lab: &Lab) {
    let (mut machine, who) = joined(lab).await;
    machine.clock.reset_count += 1;
    lab.refused(
        &lab.renew(&machine, &who).await,
        Code::RenewalAfterReset,
        true,
    )
    .await;
    until(
        "a Suspect machine's Node is given no new pods",
        async || {
            let node: Node = lab.site.get(&machine.node).await;
            let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            taints
                .iter()
                .any(|taint| taint.key == "pratique.dev/suspect" && taint.effect == "NoSchedule")
        },
    )
    .await;
    machine.clock.clock += 1000;
    lab.refused(&lab.renew(&machine, &who).await, Code::RenewalState, false)
        .await;
    machine.clock.clock += 1000;
    let healed = identity(&machine, &lab.join(&machine).await.accepted());
    until("the taint goes with the proof", async || {
        let node: Node = lab.site.get(&machine.node).await;
        node.spec
            .and_then(|spec| spec.taints)
            .unwrap_or_default()
            .iter()
            .all(|taint| taint.key != "pratique.dev/suspect")
    })
    .await;
    // Another boot has another node key.
    machine.boot(&lab.image, "nocloud", CONFIG);
    lab.refused(
        &lab.renew(&machine, &healed).await,
        Code::RenewalKeys,
        false,
    )
    .await;
    lab.join(&machine).await.accepted();
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < LIMIT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
