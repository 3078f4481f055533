//! The page (pure): every part, or why it is missing.

use super::facts::{Facts, Part};
use super::table::{Text, missing, row};
use super::units::{age, age_of, age_of_text};
use super::{pods, resources};
use config_kube::identity::TUNNEL_ANNOTATION;
use config_kube::k8s_openapi::api::core::v1::{Node, NodeCondition};
use config_kube::{Machine, MachineState, MachineStatus};
use jiff::Timestamp;

/// The Node's condition about its state partition in this boot.
const STATE: &str = "StateRenewed";
const NO_STATE: &str = "the Node has no condition StateRenewed: it was not booted from an image, or has not reported it yet";

/// The whole page.
pub(super) fn page(facts: &Facts, now: Timestamp) -> String {
    let mut text = Text::default();
    node(&mut text, facts, now);
    trust(&mut text, facts, now);
    software(&mut text, facts);
    places(&mut text, facts);
    conditions(&mut text, facts, now);
    resources::resources(&mut text, facts);
    pods::pods(&mut text, facts);
    pods::warnings(&mut text, facts, now);
    text.whole()
}

fn conditions_of(node: &Node) -> &[NodeCondition] {
    let status = node.status.as_ref();
    status
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default()
}

fn node(text: &mut Text, facts: &Facts, now: Timestamp) {
    let name = &facts.name;
    match &facts.node {
        Part::Missing(why) => text.say("Node", &format!("{name}, {}", missing(why))),
        Part::Got(node) => {
            let ready = conditions_of(node).iter().find(|one| one.type_ == "Ready");
            let readiness = match ready {
                None => "has not reported whether it is ready".to_owned(),
                Some(ready) if ready.status == "True" => {
                    format!(
                        "Ready for {}",
                        age_of(ready.last_transition_time.as_ref(), now)
                    )
                }
                Some(ready) => format!(
                    "NOT READY for {}: {}: {}",
                    age_of(ready.last_transition_time.as_ref(), now),
                    ready.reason.as_deref().unwrap_or("no reason"),
                    ready.message.as_deref().unwrap_or("no message")
                ),
            };
            text.say("Node", &format!("{name}, {readiness}"));
            taints(text, node);
        }
    }
    let lease_age = match &facts.lease {
        Part::Missing(why) => missing(why),
        Part::Got(lease) => {
            let renewed = lease
                .spec
                .as_ref()
                .and_then(|spec| spec.renew_time.as_ref());
            renewed.map_or_else(
                || missing("the lease has no time"),
                |renewed| format!("{} ago, by its lease", age(renewed.0, now)),
            )
        }
    };
    text.say("Last heard", &lease_age);
}

fn taints(text: &mut Text, node: &Node) {
    let spec = node.spec.as_ref();
    if spec.and_then(|spec| spec.unschedulable) == Some(true) {
        text.say(
            "",
            "cordoned: takes no new pods (`pratique node uncordon` ends it)",
        );
    }
    let all = spec
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default();
    let all: Vec<String> = all
        .iter()
        .map(|taint| {
            let value = taint.value.as_deref().filter(|value| !value.is_empty());
            let value = value.map(|value| format!("={value}")).unwrap_or_default();
            format!("{}{value}:{}", taint.key, taint.effect)
        })
        .collect();
    let shown = if all.is_empty() {
        "none".to_owned()
    } else {
        all.join(", ")
    };
    text.say("Taints", &shown);
}

fn trust(text: &mut Text, facts: &Facts, now: Timestamp) {
    match &facts.machine {
        Part::Missing(why) => {
            text.say("Machine", &missing(why));
            text.say("Trust", "missing: the Machine is not known");
        }
        Part::Got(machine) => trust_of(text, machine, now),
    }
    let last = match &facts.attestation {
        Part::Missing(why) => missing(why),
        Part::Got(last) => {
            let status = last.status.clone().unwrap_or_default();
            let when = age_of_text(&status.time, now);
            let failed = status.checks.iter().filter(|check| !check.ok);
            let failed = failed.map(|check| {
                let (name, wanted, found) = (&check.name, &check.expected, &check.actual);
                format!("; {name}: expected {wanted}, found {found}")
            });
            let failed: Vec<String> = failed.collect();
            let failed = failed.concat();
            let code = [&*status.code, &*status.message].map(|word| {
                let word = (!word.is_empty()).then(|| format!(": {word}"));
                word.unwrap_or_default()
            });
            let (verdict, remote) = (&status.verdict, &last.spec.remote);
            format!("{verdict} {when}, from {remote}{}{failed}", code.concat())
        }
    };
    text.say("Last exchange", &last);
}

fn trust_of(text: &mut Text, machine: &Machine, now: Timestamp) {
    let spec = &machine.spec;
    let status = machine.status.clone().unwrap_or_default();
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let kind = match (spec.is_static, spec.insecure_no_tpm) {
        (true, _) => ", static: an admin issued its certificates, nothing is proven",
        (_, true) => ", has no TPM: nothing is proven",
        (false, false) => "",
    };
    let retired = if spec.retired { ", RETIRED" } else { "" };
    text.say(
        "Machine",
        &format!("{name}, role {}{kind}{retired}", spec.role),
    );
    let ek = status
        .bound_ek
        .as_deref()
        .unwrap_or("not bound to a TPM yet");
    text.say("TPM", &format!("endorsement key {ek}"));
    let proved = status.last_attestation.as_deref().map_or_else(
        || "never proved anything".to_owned(),
        |time| format!("proved {}", age_of_text(time, now)),
    );
    let since = status
        .conditions
        .iter()
        .find(|one| one.type_ == "Attested")
        .map(|one| age(one.last_transition_time.0, now));
    let since = since
        .map(|since| format!(" for {since}"))
        .unwrap_or_default();
    let state = match status.state {
        MachineState::Pending => "Pending",
        MachineState::Trusted => "Trusted",
        MachineState::Unproven => "Unproven",
        MachineState::Suspect => "SUSPECT",
        MachineState::Untrusted => "UNTRUSTED",
    };
    text.say("Trust", &format!("{state}{since}, {proved}"));
    if !status.reason.is_empty() || !status.message.is_empty() {
        let code = [status.reason.as_str(), status.message.as_str()];
        let code: Vec<&str> = code.into_iter().filter(|word| !word.is_empty()).collect();
        text.say("  why", &code.join(": "));
    }
    if !status.next_step.is_empty() {
        text.say("  to do", &status.next_step);
    }
    admission_of(text, &status);
    certificate_of(text, &status, now);
}

/// The rule by which the machine was admitted, and the person if one decided.
fn admission_of(text: &mut Text, status: &MachineStatus) {
    if let Some(admission) = &status.admission {
        let by = [("request", &admission.request), ("by", &admission.by)];
        let by = by.into_iter().filter(|(_, word)| !word.is_empty());
        let by: Vec<String> = by.map(|(name, word)| format!(", {name} {word}")).collect();
        let by = by.concat();
        let (rule, policy) = (&admission.rule, admission.policy);
        text.say(
            "  admitted by",
            &format!("rule {rule} ({}){by}", policy.as_str()),
        );
    }
}

/// When the machine's certificate ends.
fn certificate_of(text: &mut Text, status: &MachineStatus, now: Timestamp) {
    if let Some(certificate) = &status.certificate {
        let end = certificate.not_after.parse::<Timestamp>();
        let end = end.map_or_else(
            |_no_time| format!("until {}", certificate.not_after),
            |end| {
                if end > now {
                    format!("ends in {}", age(end, now))
                } else {
                    format!("ENDED {} ago", age(end, now))
                }
            },
        );
        text.say("  certificate", &end);
    }
}

fn software(text: &mut Text, facts: &Facts) {
    let info = facts
        .node
        .got()
        .and_then(|node| node.status.as_ref()?.node_info.as_ref());
    let status = facts
        .machine
        .got()
        .map(|machine| machine.status.clone().unwrap_or_default());
    let unproven = || {
        missing(match &facts.machine {
            Part::Got(_) => "none is proven",
            Part::Missing(_) => "the Machine is not known",
        })
    };
    let image = status.as_ref().and_then(|status| status.image.as_ref());
    let image = image.map_or_else(unproven, |image| {
        format!("{}, role {}, SVN {}", image.id, image.role, image.svn)
    });
    text.say("Image", &image);
    text.say("  release", &release_of(facts));
    let version = info.map(|info| {
        let (os, kernel, agent) = (&info.os_image, &info.kernel_version, &info.kubelet_version);
        let engine = &info.container_runtime_version;
        format!("{os}, Linux {kernel}, kubelet {agent}, {engine}")
    });
    text.say("  version", &version.unwrap_or_else(|| not_reported(facts)));
    let boot = info
        .map(|info| info.boot_id.as_str())
        .filter(|boot| !boot.is_empty());
    let boot = boot.map_or_else(|| not_reported(facts), str::to_owned);
    text.say("Boot", &format!("{boot}{}", resets_of(status.as_ref())));
    let config = status.as_ref().and_then(|status| status.config.as_ref());
    let config = config.map_or_else(unproven, |config| {
        format!("{} from {}", config.digest, config.source)
    });
    text.say("Configuration", &config);
    if status.is_some_and(|status| status.privileged_pods) {
        text.say(
            "",
            "allows privileged pods, which can be root of this machine",
        );
    }
    text.say("State", &state_of(facts));
}

/// Whether the image's release can be used, and who signed it.
fn release_of(facts: &Facts) -> String {
    match &facts.release {
        Part::Missing(why) => missing(why),
        Part::Got(release) => match &release.status {
            None => "not read by the master yet".to_owned(),
            Some(status) if status.fault.is_empty() => {
                format!("signed by {}", status.verified_by.join(", "))
            }
            Some(status) => format!("UNUSABLE: {}", status.fault),
        },
    }
}

/// The text where the Node has not reported a value.
fn not_reported(facts: &Facts) -> String {
    missing(match &facts.node {
        Part::Got(_) => "the node has not reported it",
        Part::Missing(_) => "the Node is not known",
    })
}

/// The TPM's count of resets, if it was proved.
fn resets_of(status: Option<&MachineStatus>) -> String {
    let counters = status.and_then(|status| status.counters);
    let resets = counters.map(|counters| {
        let unclean = if counters.safe {
            ""
        } else {
            ", after an unclean power-off"
        };
        format!(
            ", {} resets of the TPM so far{unclean}",
            counters.reset_count
        )
    });
    resets.unwrap_or_default()
}

/// Whether the machine's encrypted state was kept, from the Node's condition.
fn state_of(facts: &Facts) -> String {
    let condition = facts.node.got().and_then(|node| {
        conditions_of(node)
            .iter()
            .find(|condition| condition.type_ == STATE)
    });
    condition.map_or_else(
        || match &facts.node {
            Part::Got(_) => missing(NO_STATE),
            Part::Missing(_) => not_reported(facts),
        },
        |condition| {
            let word = |word: &Option<String>| word.clone().unwrap_or_default();
            let (reason, message) = (word(&condition.reason), word(&condition.message));
            let anew = if condition.status == "True" {
                "NOT KEPT: "
            } else {
                ""
            };
            format!("{anew}{reason}: {message}")
        },
    )
}

fn places(text: &mut Text, facts: &Facts) {
    let Some(node) = facts.node.got() else {
        text.say("Addresses", "missing: the Node is not known");
        text.say("Tunnel", "missing: the Node is not known");
        return;
    };
    let status = node.status.as_ref();
    let all = status.and_then(|status| status.addresses.as_deref());
    let all = all.unwrap_or_default().iter();
    let all: Vec<String> = all
        .map(|one| format!("{} {}", one.type_, one.address))
        .collect();
    let all = (!all.is_empty()).then(|| all.join(", "));
    text.say(
        "Addresses",
        &all.unwrap_or_else(|| missing("the node has reported none")),
    );
    let ranges = node
        .spec
        .as_ref()
        .and_then(|spec| spec.pod_cidrs.as_deref());
    let ranges = ranges.filter(|ranges| !ranges.is_empty());
    let ranges = ranges.map_or_else(
        || missing("none is allotted yet"),
        |ranges| ranges.join(", "),
    );
    text.say("Pods' range", &ranges);
    let marks = node.metadata.annotations.as_ref();
    let tunnel = marks.is_some_and(|marks| marks.contains_key(TUNNEL_ANNOTATION));
    let tunnel = if tunnel {
        "its keys are published; peers that it does not reach are in its log (`pratique logs NODE agent --grep 'not reached'`)"
    } else {
        "no key is published: its configuration names another way to other machines' pods, or it has not got that far"
    };
    text.say("Tunnel", tunnel);
}

fn conditions(text: &mut Text, facts: &Facts, now: Timestamp) {
    text.head("Conditions");
    let Some(node) = facts.node.got() else {
        text.say("", "missing: the Node is not known");
        return;
    };
    let mut rows = vec![row(&["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"])];
    rows.extend(conditions_of(node).iter().map(|one| {
        vec![
            one.type_.clone(),
            one.status.clone(),
            age_of(one.last_transition_time.as_ref(), now),
            one.reason.clone().unwrap_or_default(),
            one.message.clone().unwrap_or_default(),
        ]
    }));
    if rows.len() == 1 {
        text.say("", "missing: the node has reported none");
    } else {
        text.table(&rows);
    }
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
