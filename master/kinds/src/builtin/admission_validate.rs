//! What webhooks and policies of admission must be (upstream: `admissionregistration/validation`).

use super::service::spec;
use crate::validate::{At, Faults, Fields, default_to, get, items, labels, names, net, object, object_mut, text};
use serde_json::{Value, json};
use std::collections::HashSet;

const FAILURE: &[&str] = &["Fail", "Ignore"];
const MATCH: &[&str] = &["Equivalent", "Exact"];
const SCOPES: &[&str] = &["*", "Cluster", "Namespaced"];
const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
/// Conditions of one webhook or policy.
const CONDITIONS: usize = 64;

/// What every writer of a webhook is told.
pub(super) fn warn_hooks(fields: &Fields, warnings: &mut Vec<String>) {
    if !items(fields, "webhooks").is_empty() {
        warnings.push("admission webhooks are stored but not called by this version: nothing is enforced".to_owned());
    }
}

/// What every writer of a policy or binding is told.
pub(super) fn warn_policy(_: &Fields, warnings: &mut Vec<String>) {
    warnings.push("admission policies are stored but not evaluated by this version: nothing is enforced".to_owned());
}

/// Fills in webhooks.
pub(super) fn hook_defaults(fields: &mut Fields, mutating: bool) {
    for hook in fields.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(hook) = hook.as_object_mut() else { continue };
        default_to(hook, "failurePolicy", "Fail");
        default_to(hook, "matchPolicy", "Equivalent");
        default_to(hook, "namespaceSelector", json!({}));
        default_to(hook, "objectSelector", json!({}));
        default_to(hook, "timeoutSeconds", 10);
        if mutating {
            default_to(hook, "reinvocationPolicy", "Never");
        }
        rule_scopes(hook, "rules");
        let service = hook.get_mut("clientConfig").and_then(|config| config.get_mut("service"));
        if let Some(service) = service.and_then(Value::as_object_mut) {
            default_to(service, "port", 443);
        }
    }
}

fn rule_scopes(fields: &mut Fields, key: &str) {
    for rule in fields.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(rule) = rule.as_object_mut() {
            default_to(rule, "scope", "*");
        }
    }
}

/// Fills in a policy or binding.
pub(super) fn policy_defaults(fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else { return };
    let key = if spec.contains_key("matchResources") { "matchResources" } else { "matchConstraints" };
    if !spec.contains_key("policyName") {
        default_to(spec, "failurePolicy", "Fail");
    }
    let Some(constraints) = spec.get_mut(key).and_then(Value::as_object_mut) else { return };
    default_to(constraints, "matchPolicy", "Equivalent");
    default_to(constraints, "namespaceSelector", json!({}));
    default_to(constraints, "objectSelector", json!({}));
    rule_scopes(constraints, "resourceRules");
    rule_scopes(constraints, "excludeResourceRules");
}

/// Checks webhooks.
pub(super) fn hooks(fields: &Fields, faults: &mut Faults) {
    let at = At::root("webhooks");
    let mut known = HashSet::new();
    for (number, hook) in items(fields, "webhooks").iter().enumerate() {
        let (at, Some(hook)) = (at.index(number), hook.as_object()) else { continue };
        let name = text(hook, "name");
        if name.is_empty() {
            faults.required(&at.field("name"), "");
        } else if name.split('.').count() < 3 {
            let text = "should be a domain with at least three segments separated by dots";
            faults.invalid(&at.field("name"), get(hook, "name"), text);
        } else if let Err(fault) = names::subdomain(name) {
            faults.invalid(&at.field("name"), get(hook, "name"), fault);
        }
        if !known.insert(name) {
            faults.duplicate(&at.field("name"), get(hook, "name"));
        }
        self::hook(hook, &at, faults);
    }
}

fn hook(hook: &Fields, at: &At<'_>, faults: &mut Faults) {
    let place = at.field("rules");
    for (number, rule) in items(hook, "rules").iter().enumerate() {
        if let Some(rule) = rule.as_object() {
            self::rule(rule, &place.index(number), faults);
        }
    }
    faults.one_of(&at.field("failurePolicy"), get(hook, "failurePolicy"), FAILURE);
    faults.one_of(&at.field("matchPolicy"), get(hook, "matchPolicy"), MATCH);
    let (effects, place) = (get(hook, "sideEffects"), at.field("sideEffects"));
    if effects.is_null() {
        faults.required(&place, "must specify one of None, NoneOnDryRun");
    } else {
        faults.one_of(&place, effects, &["None", "NoneOnDryRun"]);
    }
    let timeout = get(hook, "timeoutSeconds");
    if timeout.as_i64().is_some_and(|seconds| !(1..=30).contains(&seconds)) {
        let text = "the timeout value must be between 1 and 30 seconds";
        faults.invalid(&at.field("timeoutSeconds"), timeout, text);
    }
    for key in ["namespaceSelector", "objectSelector"] {
        labels::selector(object(hook, key), &at.field(key), faults);
    }
    if !get(hook, "reinvocationPolicy").is_null() {
        faults.one_of(&at.field("reinvocationPolicy"), get(hook, "reinvocationPolicy"), &["IfNeeded", "Never"]);
    }
    let (versions, place) = (items(hook, "admissionReviewVersions"), at.field("admissionReviewVersions"));
    if versions.is_empty() {
        faults.required(&place, "must specify one of v1, v1beta1");
    } else if !versions.iter().any(|version| version == "v1" || version == "v1beta1") {
        let text = "must include at least one of v1, v1beta1";
        faults.invalid(&place, get(hook, "admissionReviewVersions"), text);
    }
    client(object(hook, "clientConfig"), &at.field("clientConfig"), faults);
    conditions(hook, at, faults);
}

fn client(config: Option<&Fields>, at: &At<'_>, faults: &mut Faults) {
    let url = config.map_or(&Value::Null, |config| get(config, "url"));
    let service = config.and_then(|config| object(config, "service"));
    match (url.as_str(), service) {
        (None, None) | (Some(_), Some(_)) => faults.required(at, "exactly one of url or service is required"),
        (Some(text), None) => {
            if !text.starts_with("https://") {
                faults.invalid(&at.field("url"), url, "'https' is the only allowed URL scheme");
            } else if text.contains('@') || text.contains('?') || text.contains('#') {
                faults.invalid(
                    &at.field("url"),
                    url,
                    "user information, query parameters and fragments are not permitted",
                );
            }
        }
        (None, Some(service)) => {
            let at = at.field("service");
            for key in ["name", "namespace"] {
                if text(service, key).is_empty() {
                    faults.required(&at.field(key), format!("service {key} is required").as_str());
                }
            }
            net::port(get(service, "port"), &at.field("port"), faults);
            let path = get(service, "path");
            if path.as_str().is_some_and(|path| !path.starts_with('/')) {
                faults.invalid(&at.field("path"), path, "must start with a '/'");
            }
        }
    }
}

fn rule(rule: &Fields, at: &At<'_>, faults: &mut Faults) {
    for key in ["apiGroups", "apiVersions", "resources", "operations"] {
        let (list, place) = (items(rule, key), at.field(key));
        if list.is_empty() {
            faults.required(&place, "");
        }
        let star = list.iter().any(|value| value == "*");
        if star && list.len() > 1 && key != "resources" {
            let text = format!("if '*' is present, must not specify other {}", spelled(key));
            faults.invalid(&place, get(rule, key), text);
        }
        for (number, value) in list.iter().enumerate() {
            let empty = value.as_str().is_some_and(str::is_empty);
            if key == "operations" {
                faults.one_of(&place.index(number), value, OPERATIONS);
            } else if empty && key != "apiGroups" {
                faults.required(&place.index(number), "");
            }
        }
    }
    if !get(rule, "scope").is_null() {
        faults.one_of(&at.field("scope"), get(rule, "scope"), SCOPES);
    }
}

fn spelled(key: &str) -> &str {
    match key {
        "apiGroups" => "API groups",
        "apiVersions" => "API versions",
        other => other,
    }
}

fn conditions(fields: &Fields, at: &At<'_>, faults: &mut Faults) {
    let at = at.field("matchConditions");
    let conditions = items(fields, "matchConditions");
    if conditions.len() > CONDITIONS {
        faults.too_many(&at, conditions.len(), CONDITIONS);
    }
    let mut known = HashSet::new();
    for (number, condition) in conditions.iter().enumerate() {
        let (at, Some(condition)) = (at.index(number), condition.as_object()) else { continue };
        if text(condition, "expression").trim().is_empty() {
            faults.required(&at.field("expression"), "");
        }
        let name = text(condition, "name");
        if name.is_empty() {
            faults.required(&at.field("name"), "");
        } else if let Err(fault) = names::qualified(name) {
            faults.invalid(&at.field("name"), get(condition, "name"), fault);
        }
        if !known.insert(name) {
            faults.duplicate(&at.field("name"), get(condition, "name"));
        }
    }
}

/// Checks a policy: its form, not its expressions, which nothing evaluates.
pub(super) fn policy(fields: &Fields, faults: &mut Faults) {
    let spec = spec(fields);
    let at = At::root("spec");
    faults.one_of(&at.field("failurePolicy"), get(spec, "failurePolicy"), FAILURE);
    if let Some(kind) = object(spec, "paramKind") {
        for key in ["apiVersion", "kind"] {
            if text(kind, key).is_empty() {
                faults.required(&at.field("paramKind").field(key), "");
            }
        }
    }
    match object(spec, "matchConstraints") {
        None => faults.required(&at.field("matchConstraints"), ""),
        Some(constraints) => {
            let place = at.field("matchConstraints");
            if items(constraints, "resourceRules").is_empty() {
                faults.required(&place.field("resourceRules"), "");
            }
            resources(constraints, &place, faults);
        }
    }
    conditions(spec, &at, faults);
    if fields.get("kind").is_some_and(|kind| kind == "MutatingAdmissionPolicy") || spec.contains_key("mutations") {
        if items(spec, "mutations").is_empty() {
            faults.required(&at.field("mutations"), "mutations must contain at least one item");
        }
        faults.one_of(&at.field("reinvocationPolicy"), get(spec, "reinvocationPolicy"), &["IfNeeded", "Never"]);
        return;
    }
    let place = at.field("validations");
    if items(spec, "validations").is_empty() && items(spec, "auditAnnotations").is_empty() {
        let text = "validations or auditAnnotations must be specified";
        faults.required(&place, text);
    }
    for (number, validation) in items(spec, "validations").iter().enumerate() {
        let (at, Some(validation)) = (place.index(number), validation.as_object()) else { continue };
        if text(validation, "expression").trim().is_empty() {
            faults.required(&at.field("expression"), "expression is not specified");
        }
        let reason = get(validation, "reason");
        if !reason.is_null() {
            let known = ["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];
            faults.one_of(&at.field("reason"), reason, &known);
        }
    }
}

fn resources(constraints: &Fields, at: &At<'_>, faults: &mut Faults) {
    for key in ["namespaceSelector", "objectSelector"] {
        labels::selector(object(constraints, key), &at.field(key), faults);
    }
    for key in ["resourceRules", "excludeResourceRules"] {
        let at = at.field(key);
        for (number, rule) in items(constraints, key).iter().enumerate() {
            if let Some(rule) = rule.as_object() {
                self::rule(rule, &at.index(number), faults);
            }
        }
    }
}

/// Checks a binding of a policy.
pub(super) fn binding(fields: &Fields, actions: bool, faults: &mut Faults) {
    let spec = spec(fields);
    let at = At::root("spec");
    match text(spec, "policyName") {
        "" => faults.required(&at.field("policyName"), ""),
        name => {
            if let Err(fault) = names::subdomain(name) {
                faults.invalid(&at.field("policyName"), get(spec, "policyName"), fault);
            }
        }
    }
    if let Some(param) = object(spec, "paramRef") {
        let at = at.field("paramRef");
        match (text(param, "name").is_empty(), get(param, "selector").is_null()) {
            (true, true) => faults.required(&at, "one of name or selector must be specified"),
            (false, false) => faults.forbidden(&at.field("name"), "name and selector are mutually exclusive"),
            (true, false) | (false, true) => {}
        }
        let action = get(param, "parameterNotFoundAction");
        if action.is_null() {
            faults.required(&at.field("parameterNotFoundAction"), "");
        } else {
            faults.one_of(&at.field("parameterNotFoundAction"), action, &["Allow", "Deny"]);
        }
    }
    if let Some(constraints) = object(spec, "matchResources") {
        resources(constraints, &at.field("matchResources"), faults);
    }
    if !actions {
        return;
    }
    let place = at.field("validationActions");
    let list = items(spec, "validationActions");
    if list.is_empty() {
        faults.required(&place, "");
    }
    let mut known = HashSet::new();
    for (number, action) in list.iter().enumerate() {
        faults.one_of(&place.index(number), action, &["Audit", "Deny", "Warn"]);
        if !known.insert(action.as_str()) {
            faults.duplicate(&place.index(number), action);
        }
    }
    if known.contains(&Some("Deny")) && known.contains(&Some("Warn")) {
        let text = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                    response and headers serves no purpose)";
        faults.invalid(&place, get(spec, "validationActions"), text);
    }
}
