//! Validation of containers: rules for all, and for main, init and ephemeral ones.

use super::context::{Context, is_sidecar};
use super::{env, handlers, mounts, network, resources, security};
use master_schema::validate::forms::{choice, has, needed, needed_form, optional_choice, word};
use master_schema::validate::limits::{self, at_most};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, names, object, text};
use serde_json::Value;
use std::collections::BTreeSet;

/// The containers of a list with their indexes.
fn each<'a>(spec: &'a Fields, list: &str) -> impl Iterator<Item = (usize, &'a Fields)> {
    items(spec, list)
        .iter()
        .enumerate()
        .filter_map(|(number, container)| Some((number, container.as_object()?)))
}

/// Names of the containers of a list.
fn names_of<'a>(spec: &'a Fields, list: &str) -> BTreeSet<&'a str> {
    each(spec, list)
        .map(|(_, container)| text(container, "name"))
        .collect()
}

/// Validates the main containers.
pub(super) fn main(spec: &Fields, context: &Context<'_>, at: &FieldPath<'_>, faults: &mut Faults) {
    let list = at.field("containers");
    if items(spec, "containers").is_empty() {
        faults.required(&list, "");
        return;
    }
    let mut names = BTreeSet::new();
    for (number, container) in each(spec, "containers") {
        let at = list.index(number);
        common(container, context, &at, faults);
        image_whitespace_of_pod(container, context, &at, faults);
        if !names.insert(text(container, "name")) {
            faults.duplicate(&at.field("name"), word(container, "name"));
        }
        handlers::lifecycle(container, spec, context, &at, faults);
        handlers::probes(container, context, &at, faults);
        let policies = ["Always", "OnFailure", "Never"];
        restart(container, &policies, &at, faults);
    }
    // Main containers run at once: two of them cannot have one port of the node.
    let mut taken = BTreeSet::new();
    for (number, container) in each(spec, "containers") {
        network::unique_host_ports(container, &mut taken, &list.index(number), faults);
    }
}

/// Validates init containers, sidecars included.
pub(super) fn initial(
    spec: &Fields,
    context: &Context<'_>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let list = at.field("initContainers");
    // Names are unique over all lists: status, logs and exec go by the name alone.
    let mut names = names_of(spec, "containers");
    for (number, container) in each(spec, "initContainers") {
        let at = list.index(number);
        common(container, context, &at, faults);
        image_whitespace_of_pod(container, context, &at, faults);
        let name = text(container, "name");
        if !name.is_empty() && !names.insert(name) {
            faults.duplicate(&at.field("name"), get(container, "name"));
        }
        // Init containers run one by one, so each has all host ports; upstream counts per
        // container.
        network::unique_host_ports(container, &mut BTreeSet::new(), &list.index(0), faults);
        if is_sidecar(container) {
            handlers::lifecycle(container, spec, context, &at, faults);
            handlers::probes(container, context, &at, faults);
        } else {
            for key in [
                "lifecycle",
                "livenessProbe",
                "readinessProbe",
                "startupProbe",
            ] {
                if has(container, key) {
                    let words = "may not be set for init containers without restartPolicy=Always";
                    faults.forbidden(&at.field(key), words);
                }
            }
        }
        // `Always` makes it a sidecar (KEP-753); the other policies came with KEP-5307.
        restart(container, &["Always", "OnFailure", "Never"], &at, faults);
    }
}

/// The fields that an ephemeral container may have.
// An allow list, so that a field that containers get later is refused here: there are no ports and
// probes, and no resources, whose sum the scheduler has granted (KEP-277).
const EPHEMERAL: &[&str] = &[
    "name",
    "image",
    "command",
    "args",
    "workingDir",
    "envFrom",
    "env",
    "volumeMounts",
    "volumeDevices",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "imagePullPolicy",
    "securityContext",
    "stdin",
    "stdinOnce",
    "tty",
    "targetContainerName",
];

/// Validates ephemeral containers.
pub(super) fn ephemeral(
    spec: &Fields,
    context: &Context<'_>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    let list = at.field("ephemeralContainers");
    let mut others = names_of(spec, "containers");
    others.extend(names_of(spec, "initContainers"));
    let mut names = others.clone();
    for (number, container) in each(spec, "ephemeralContainers") {
        let at = list.index(number);
        common(container, context, &at, faults);
        image_whitespace(container, &at, faults);
        if !names.insert(text(container, "name")) {
            faults.duplicate(&at.field("name"), word(container, "name"));
        }
        let target = text(container, "targetContainerName");
        // It joins the namespaces of a container of the pod, not of another ephemeral one.
        if !target.is_empty() && !others.contains(target) {
            faults.not_found(
                &at.field("targetContainerName"),
                get(container, "targetContainerName"),
            );
        }
        let empty = |value: &Value| {
            value.as_object().is_some_and(serde_json::Map::is_empty) || value == &Value::Null
        };
        for (key, _) in container
            .iter()
            .filter(|(key, value)| !EPHEMERAL.contains(&key.as_str()) && !empty(value))
        {
            faults.forbidden(&at.field(key), "cannot be set for an Ephemeral Container");
        }
        let mounts = at.field("volumeMounts");
        for (number, mount) in each(container, "volumeMounts") {
            for key in ["subPath", "subPathExpr"]
                .into_iter()
                .filter(|key| !text(mount, key).is_empty())
            {
                faults.forbidden(
                    &mounts.index(number).field(key),
                    "cannot be set for an Ephemeral Container",
                );
            }
        }
    }
}

/// Templates may have an image with spaces around it; pods may not.
fn image_whitespace_of_pod(
    container: &Fields,
    context: &Context<'_>,
    at: &FieldPath<'_>,
    faults: &mut Faults,
) {
    // Programs store templates with the image ` ` and fill it in later; upstream keeps that
    // working.
    if context.owner.pod {
        image_whitespace(container, at, faults);
    }
}

fn image_whitespace(container: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let image = text(container, "image");
    if image.trim() != image {
        faults.invalid(
            &at.field("image"),
            get(container, "image"),
            "must not have leading or trailing whitespace",
        );
    }
}

/// Validates what all containers share.
fn common(container: &Fields, context: &Context<'_>, at: &FieldPath<'_>, faults: &mut Faults) {
    needed_form(container, "name", at, names::label, faults);
    needed(container, "image", at, faults);
    choice(
        container,
        "terminationMessagePolicy",
        at,
        &["File", "FallbackToLogsOnError"],
        faults,
    );
    for list in ["envFrom", "volumeMounts", "volumeDevices"] {
        at_most(container, list, limits::OF_POD, at, faults);
    }
    at_most(container, "env", limits::VARIABLES, at, faults);
    network::ports(container, &at.field("ports"), faults);
    env::variables(container, context, at, faults);
    env::sources(container, at, faults);
    mounts::mounts(container, context, at, faults);
    mounts::devices(container, context, at, faults);
    choice(
        container,
        "imagePullPolicy",
        at,
        &["Always", "IfNotPresent", "Never"],
        faults,
    );
    if let Some(needs) = object(container, "resources") {
        resources::validate(needs, Some(&context.claims), &at.field("resources"), faults);
    }
    resize_policy(
        container,
        context.restart,
        &at.field("resizePolicy"),
        faults,
    );
    if let Some(security) = object(container, "securityContext") {
        security::of_container(
            security,
            context.host_users,
            &at.field("securityContext"),
            faults,
        );
    }
}

/// Validates the resize policy; upstream reports these faults at the list.
fn resize_policy(container: &Fields, restart: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (number, policy) in each(container, "resizePolicy") {
        let name = text(policy, "resourceName");
        if !seen.insert(name) {
            faults.duplicate(&at.index(number), get(policy, "resourceName"));
        }
        for (key, supported) in [
            ("resourceName", ["cpu", "memory"]),
            ("restartPolicy", ["NotRequired", "RestartContainer"]),
        ] {
            if text(policy, key).is_empty() {
                faults.required(at, "");
            } else {
                faults.one_of(at, get(policy, key), &supported);
            }
        }
        // A resize that restarts the container would end it for good.
        if restart == "Never" && text(policy, "restartPolicy") != "NotRequired" {
            let words = "must be 'NotRequired' when `restartPolicy` is 'Never'";
            faults.invalid(at, word(policy, "restartPolicy"), words);
        }
    }
}

/// Restart rules of a container (KEP-5307).
const MAX_RESTART_RULES: usize = 20;
/// Exit codes of a restart rule.
const MAX_EXIT_CODES: usize = 255;

/// Validates a container's own restart policy and its restart rules.
fn restart(container: &Fields, policies: &[&str], at: &FieldPath<'_>, faults: &mut Faults) {
    optional_choice(container, "restartPolicy", at, policies, faults);
    let rules = items(container, "restartPolicyRules");
    let list = at.field("restartPolicyRules");
    // Rules are exceptions from the policy of the container, not from that of the pod.
    if !rules.is_empty() && !has(container, "restartPolicy") {
        faults.required(
            &at.field("restartPolicy"),
            "must specify restartPolicy when restart rules are used",
        );
    }
    if rules.len() > MAX_RESTART_RULES {
        faults.too_many(&list, rules.len(), MAX_RESTART_RULES);
    }
    for (number, rule) in each(container, "restartPolicyRules") {
        let at = list.index(number);
        choice(
            rule,
            "action",
            &at,
            &["Restart", "RestartAllContainers"],
            faults,
        );
        let place = at.field("exitCodes");
        let Some(codes) = object(rule, "exitCodes") else {
            faults.required(&place, "must be specified");
            continue;
        };
        choice(codes, "operator", &place, &["In", "NotIn"], faults);
        let values = items(codes, "values");
        let list = place.field("values");
        if values.is_empty() {
            faults.required(&list, "must specify at least one value");
        } else if values.len() > MAX_EXIT_CODES {
            faults.too_many(&list, values.len(), MAX_EXIT_CODES);
        }
        let mut seen = BTreeSet::new();
        for (number, value) in values.iter().enumerate() {
            if !seen.insert(value.as_i64()) {
                faults.duplicate(&list.index(number), value);
            }
        }
    }
}
