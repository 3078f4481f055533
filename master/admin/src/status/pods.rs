//! A machine's pods that do not run, and the last warnings about it and them.

use super::facts::{Facts, Part};
use super::table::{Text, missing, row};
use super::units::age;
use config_kube::k8s_openapi::api::core::v1::{Event, Pod};
use jiff::Timestamp;

/// Pods and warnings that are shown.
const MAX_PODS: usize = 50;
const MAX_WARNINGS: usize = 10;

/// The pods that do not run well, with their reasons.
pub(super) fn pods(text: &mut Text, facts: &Facts) {
    let all = match &facts.pods {
        Part::Missing(why) => {
            text.head("Pods");
            return text.say("", &missing(why));
        }
        Part::Got(all) => all,
    };
    let troubled: Vec<(&Pod, String)> = all
        .iter()
        .filter_map(|pod| Some((pod, trouble(pod)?)))
        .collect();
    let well = all.len() - troubled.len();
    text.head(&format!(
        "Pods: {well} run or are done, {} not",
        troubled.len()
    ));
    if troubled.is_empty() {
        return;
    }
    let mut rows = vec![row(&["NAMESPACE", "NAME", "PHASE", "WHY"])];
    rows.extend(troubled.iter().take(MAX_PODS).map(|(pod, why)| {
        let meta = &pod.metadata;
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
        vec![
            meta.namespace.clone().unwrap_or_default(),
            meta.name.clone().unwrap_or_default(),
            phase.unwrap_or_else(|| "Unknown".to_owned()),
            why.clone(),
        ]
    }));
    text.table(&rows);
    if let Some(more) = troubled
        .len()
        .checked_sub(MAX_PODS)
        .filter(|more| *more > 0)
    {
        text.say("", &format!("and {more} more"));
    }
}

/// Why a pod does not run well; `None` where it does, or is done.
fn trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.clone().unwrap_or_default();
    let joined = |parts: [Option<String>; 2]| {
        let parts = parts.into_iter().flatten().filter(|part| !part.is_empty());
        parts.collect::<Vec<_>>().join(": ")
    };
    if pod.metadata.deletion_timestamp.is_some() {
        return Some("is being deleted".to_owned());
    }
    match status.phase.as_deref() {
        Some("Succeeded") => return None,
        Some("Failed") => {
            let why = joined([status.reason, status.message]);
            return Some(if why.is_empty() { ended(pod) } else { why });
        }
        Some(_) | None => {}
    }
    let inits = status.init_container_statuses.iter().flatten();
    let mains = status.container_statuses.iter().flatten();
    let waiting = inits.chain(mains.clone()).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.clone()?;
        let why = joined([waiting.reason, waiting.message]);
        Some(format!("{}: {why}", container.name))
    });
    if waiting.is_some() {
        return waiting;
    }
    let unready = mains.clone().find(|container| !container.ready);
    if let Some(container) = unready {
        let restarts = container.restart_count;
        return Some(format!(
            "{}: not ready, {restarts} restarts",
            container.name
        ));
    }
    if status.phase.as_deref() == Some("Running") {
        return None;
    }
    let why = joined([status.reason, status.message]);
    Some(if why.is_empty() {
        "the node has not reported on it yet".to_owned()
    } else {
        why
    })
}

/// How the containers of a failed pod ended.
fn ended(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let all = status.and_then(|status| status.container_statuses.as_deref());
    let ended = all.unwrap_or_default().iter().filter_map(|container| {
        let end = container.state.as_ref()?.terminated.as_ref()?;
        let reason = end.reason.as_deref().unwrap_or("ended");
        Some(format!(
            "{}: {reason}, code {}",
            container.name, end.exit_code
        ))
    });
    let ended: Vec<String> = ended.collect();
    if ended.is_empty() {
        "no reason is given".to_owned()
    } else {
        ended.join("; ")
    }
}

/// The last warnings about the Node, its Machine and its pods.
pub(super) fn warnings(text: &mut Text, facts: &Facts, now: Timestamp) {
    text.head("Last warnings");
    let all = match &facts.warnings {
        Part::Missing(why) => return text.say("", &missing(why)),
        Part::Got(all) => all,
    };
    let mut own: Vec<&Event> = all.iter().filter(|event| concerns(event, facts)).collect();
    own.sort_by_key(|event| std::cmp::Reverse(last_seen(event)));
    if own.is_empty() {
        return text.say("", "none is kept of this machine or its pods");
    }
    let mut rows = vec![row(&["SEEN", "OBJECT", "REASON", "MESSAGE"])];
    rows.extend(own.iter().take(MAX_WARNINGS).map(|event| {
        let about = &event.involved_object;
        let seen = last_seen(event).map_or_else(|| "-".to_owned(), |seen| age(seen, now));
        let word = |word: &Option<String>| word.clone().unwrap_or_default();
        let (kind, name) = (word(&about.kind), word(&about.name));
        let times = event.series.as_ref().and_then(|series| series.count);
        let times = times.or(event.count).filter(|times| *times > 1);
        let times = times
            .map(|times| format!(" (x{times})"))
            .unwrap_or_default();
        vec![
            seen,
            format!("{}/{name}", kind.to_lowercase()),
            format!("{}{times}", word(&event.reason)),
            word(&event.message),
        ]
    }));
    text.table(&rows);
}

/// Whether an event is about the Node, its Machine or one of its pods.
fn concerns(event: &Event, facts: &Facts) -> bool {
    let about = &event.involved_object;
    let name = about.name.as_deref().unwrap_or_default();
    match about.kind.as_deref().unwrap_or_default() {
        "Node" => name == facts.name,
        "Machine" => {
            let machine = facts.machine.got();
            let own = machine.and_then(|machine| machine.metadata.name.as_deref());
            own.unwrap_or(&facts.name) == name
        }
        "Pod" => facts.pods.got().is_some_and(|pods| {
            pods.iter().any(|pod| {
                pod.metadata.name.as_deref() == Some(name)
                    && pod.metadata.namespace == about.namespace
            })
        }),
        _ => false,
    }
}

fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref();
    let last = series.and_then(|series| series.last_observed_time.as_ref().map(|time| time.0));
    last.or(event.last_timestamp.as_ref().map(|time| time.0))
        .or(event.event_time.as_ref().map(|time| time.0))
        .or(event
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|time| time.0))
}
