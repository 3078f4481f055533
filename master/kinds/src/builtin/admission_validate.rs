//! Validation of webhook configurations, and of what they share with policies (upstream:
//! `admissionregistration/validation`).

use master_schema::validate::forms::{needed, optional_choice, word};
use master_schema::validate::{
    Faults, FieldPath, Fields, default_to, get, items, labels, names, net, object, object_mut, text,
};
use serde_json::{Value, json};
use std::collections::HashSet;

pub(super) const FAILURE: &[&str] = &["Fail", "Ignore"];
pub(super) const MATCH: &[&str] = &["Equivalent", "Exact"];
const SCOPES: &[&str] = &["*", "Cluster", "Namespaced"];
pub(super) const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
/// Match conditions of one webhook or policy.
const CONDITIONS: usize = 64;

/// The warning for every writer of a webhook configuration.
pub(super) fn warn_hooks(fields: &Fields, _: Option<&Fields>, warnings: &mut Vec<String>) {
    if !items(fields, "webhooks").is_empty() {
        warnings.push(
            "admission webhooks are stored but not called by this version: nothing is enforced"
                .to_owned(),
        );
    }
}

/// The warning for every writer of a policy or binding.
pub(super) fn warn_policy(_: &Fields, _: Option<&Fields>, warnings: &mut Vec<String>) {
    warnings.push(
        "admission policies are stored but not evaluated by this version: nothing is enforced"
            .to_owned(),
    );
}

/// Sets defaults of webhooks.
pub(super) fn hook_defaults(fields: &mut Fields, mutating: bool) {
    for hook in fields
        .get_mut("webhooks")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let Some(hook) = hook.as_object_mut() else {
            continue;
        };
        // The defaults of `v1`: `v1beta1` ignored failures and waited for 30 s.
        default_to(hook, "failurePolicy", "Fail");
        default_to(hook, "matchPolicy", "Equivalent");
        default_to(hook, "namespaceSelector", json!({}));
        default_to(hook, "objectSelector", json!({}));
        default_to(hook, "timeoutSeconds", 10);
        if mutating {
            default_to(hook, "reinvocationPolicy", "Never");
        }
        rule_scopes(hook, "rules");
        let service = hook
            .get_mut("clientConfig")
            .and_then(|config| config.get_mut("service"));
        if let Some(service) = service.and_then(Value::as_object_mut) {
            default_to(service, "port", 443);
        }
    }
}

fn rule_scopes(fields: &mut Fields, key: &str) {
    for rule in fields
        .get_mut(key)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Some(rule) = rule.as_object_mut() {
            default_to(rule, "scope", "*");
        }
    }
}

/// Sets defaults of a policy or binding.
pub(super) fn policy_defaults(fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    let key = if spec.contains_key("matchResources") {
        "matchResources"
    } else {
        "matchConstraints"
    };
    // A binding names a policy, and fails as that one does.
    if !spec.contains_key("policyName") {
        default_to(spec, "failurePolicy", "Fail");
    }
    let Some(constraints) = spec.get_mut(key).and_then(Value::as_object_mut) else {
        return;
    };
    default_to(constraints, "matchPolicy", "Equivalent");
    default_to(constraints, "namespaceSelector", json!({}));
    default_to(constraints, "objectSelector", json!({}));
    rule_scopes(constraints, "resourceRules");
    rule_scopes(constraints, "excludeResourceRules");
}

/// Validates webhooks.
pub(super) fn hooks(fields: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("webhooks");
    let mut known = HashSet::new();
    for (number, hook) in items(fields, "webhooks").iter().enumerate() {
        let (at, Some(hook)) = (at.index(number), hook.as_object()) else {
            continue;
        };
        self::hook(hook, &at, faults);
        review_versions(hook, &at, faults);
        let name = text(hook, "name");
        if !name.is_empty() && !known.insert(name) {
            faults.duplicate(&at.field("name"), get(hook, "name"));
        }
    }
}

fn hook(hook: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    full_name(hook, at, faults);
    let place = at.field("rules");
    for (number, rule) in items(hook, "rules").iter().enumerate() {
        if let Some(rule) = rule.as_object() {
            self::rule(rule, OPERATIONS, &place.index(number), faults);
        }
    }
    optional_choice(hook, "failurePolicy", at, FAILURE, faults);
    optional_choice(hook, "matchPolicy", at, MATCH, faults);
    // `Some` and `Unknown` were allowed in `v1beta1`: a dry run could not call such a webhook.
    let (effects, place) = (get(hook, "sideEffects"), at.field("sideEffects"));
    if effects.is_null() {
        faults.required(&place, "must specify one of None, NoneOnDryRun");
    } else {
        faults.one_of(&place, effects, &["None", "NoneOnDryRun"]);
    }
    let timeout = get(hook, "timeoutSeconds");
    if timeout
        .as_i64()
        .is_some_and(|seconds| !(1..=30).contains(&seconds))
    {
        let text = "the timeout value must be between 1 and 30 seconds";
        faults.invalid(&at.field("timeoutSeconds"), timeout, text);
    }
    for key in ["namespaceSelector", "objectSelector"] {
        labels::selector(object(hook, key), &at.field(key), faults);
    }
    optional_choice(
        hook,
        "reinvocationPolicy",
        at,
        &["IfNeeded", "Never"],
        faults,
    );
    client(
        object(hook, "clientConfig"),
        &at.field("clientConfig"),
        faults,
    );
    conditions(hook, at, faults);
}

/// A webhook's name is a fully qualified domain name.
fn full_name(hook: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let (name, at) = (text(hook, "name"), at.field("name"));
    if name.is_empty() {
        faults.required(&at, "");
    } else if let Err(fault) = names::subdomain(name) {
        faults.invalid(&at, get(hook, "name"), fault);
    } else if name.split('.').count() < 3 {
        let words = "should be a domain with at least three segments separated by dots";
        faults.invalid(&at, get(hook, "name"), words);
    }
}

fn review_versions(hook: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let (versions, place) = (
        items(hook, "admissionReviewVersions"),
        at.field("admissionReviewVersions"),
    );
    if versions.is_empty() {
        return faults.required(&place, "must specify one of v1, v1beta1");
    }
    let mut known = HashSet::new();
    for (index, version) in versions.iter().enumerate() {
        if !known.insert(version) {
            faults.invalid(&place.index(index), version, "duplicate version");
        } else if let Err(fault) = names::dns_label(version.as_str().unwrap_or_default()) {
            faults.invalid(&place.index(index), version, fault);
        }
    }
    // A server sends one of these two, and could not call a webhook that knows neither.
    if !versions
        .iter()
        .any(|version| version == "v1" || version == "v1beta1")
    {
        let text = "must include at least one of v1, v1beta1";
        faults.invalid(&place, get(hook, "admissionReviewVersions"), text);
    }
}

fn client(config: Option<&Fields>, at: &FieldPath<'_>, faults: &mut Faults) {
    let url = config.map_or(&Value::Null, |config| get(config, "url"));
    let service = config.and_then(|config| object(config, "service"));
    match (url.as_str(), service) {
        (None, None) | (Some(_), Some(_)) => {
            faults.required(at, "exactly one of url or service is required");
        }
        (Some(text), None) => self::url(text, &at.field("url"), faults),
        (None, Some(service)) => self::service(service, &at.field("service"), faults),
    }
}

/// A URL has the scheme https and a host, and neither user info, query nor fragment.
fn url(text: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (scheme, rest) = rest.split_once("://").unwrap_or(("", rest));
    let host = if scheme.is_empty() {
        ""
    } else {
        rest.split('/').next().unwrap_or_default()
    };
    let (user, host) = host.rsplit_once('@').unwrap_or(("", host));
    if scheme != "https" {
        faults.invalid(
            at,
            &scheme.into(),
            format!("'https' is the only allowed URL scheme{FORM}"),
        );
    }
    if host.is_empty() {
        faults.invalid(at, &"".into(), format!("host must be specified{FORM}"));
    }
    for (part, words) in [
        (user, "user information is not permitted in the URL"),
        (fragment, "fragments are not permitted in the URL"),
        (query, "query parameters are not permitted in the URL"),
    ] {
        if !part.is_empty() {
            faults.invalid(at, &part.into(), words);
        }
    }
}

fn service(service: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    for key in ["name", "namespace"] {
        needed(service, key, at, faults);
    }
    let port = get(service, "port");
    if !port
        .as_i64()
        .is_some_and(|port| (1..=65535).contains(&port))
    {
        faults.invalid(
            &at.field("port"),
            port,
            format!("port is not valid: {}", net::NO_PORT),
        );
    }
    let (value, at) = (get(service, "path"), at.field("path"));
    let path = value.as_str().unwrap_or_default();
    if path == "//" {
        return faults.invalid(&at, value, "segment[0] may not be empty");
    }
    if matches!(path, "" | "/") {
        return;
    }
    if !path.starts_with('/') {
        faults.invalid(&at, value, "must start with a '/'");
    }
    let steps = path.get(1..).unwrap_or_default();
    for (index, step) in steps
        .strip_suffix('/')
        .unwrap_or(steps)
        .split('/')
        .enumerate()
    {
        if step.is_empty() {
            faults.invalid(&at, value, format!("segment[{index}] may not be empty"));
        } else if let Err(fault) = names::subdomain(step) {
            faults.invalid(&at, value, format!("segment[{index}]: {fault}"));
        }
    }
}

/// Validates the rule that selects requests for a webhook or policy.
pub(super) fn rule(rule: &Fields, operations: &[&str], at: &FieldPath<'_>, faults: &mut Faults) {
    let place = at.field("operations");
    stars(rule, "operations", "operations", &place, faults);
    for (number, value) in items(rule, "operations").iter().enumerate() {
        faults.one_of(&place.index(number), value, operations);
    }
    // An empty group is that of `v1` and no fault, an empty version is one.
    stars(
        rule,
        "apiGroups",
        "API groups",
        &at.field("apiGroups"),
        faults,
    );
    let place = at.field("apiVersions");
    stars(rule, "apiVersions", "API versions", &place, faults);
    for (number, value) in items(rule, "apiVersions").iter().enumerate() {
        if value == "" {
            faults.required(&place.index(number), "");
        }
    }
    resources(rule, &at.field("resources"), faults);
    optional_choice(rule, "scope", at, SCOPES, faults);
}

/// A list must have items; a `*` must be its only item.
fn stars(rule: &Fields, key: &str, words: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let list = items(rule, key);
    if list.is_empty() {
        faults.required(at, "");
    }
    if list.len() > 1 && list.iter().any(|value| value == "*") {
        faults.invalid(
            at,
            get(rule, key),
            format!("if '*' is present, must not specify other {words}"),
        );
    }
}

/// Resources and subresources: none may be listed that a wildcard in the list covers.
fn resources(rule: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let list = items(rule, "resources");
    if list.is_empty() {
        faults.required(at, "");
    }
    let (mut whole, mut everywhere) = (HashSet::new(), HashSet::new());
    let mut plain = false;
    for (index, value) in list.iter().enumerate() {
        let name = value.as_str().unwrap_or_default();
        if name.is_empty() {
            faults.required(&at.index(index), "");
            continue;
        }
        let Some((resource, sub)) = name.split_once('/') else {
            // The last such name alone decides (upstream's `hasResourceWithoutSubresource`): `pods`
            // before `*` passes, and behind it does not.
            plain = name != "*";
            continue;
        };
        // Only a wildcard that stands before the name is found, as upstream's loop finds it.
        if whole.contains(resource) {
            let words = format!("if '{resource}/*' is present, must not specify {name}");
            faults.invalid(&at.index(index), value, words);
        }
        if everywhere.contains(sub) {
            faults.invalid(
                &at.index(index),
                value,
                format!("if '*/{sub}' is present, must not specify {name}"),
            );
        }
        if sub == "*" {
            whole.insert(resource);
        }
        if resource == "*" {
            everywhere.insert(sub);
        }
    }
    let has = |name: &str| list.iter().any(|value| value == name);
    if list.len() > 1 && has("*/*") {
        faults.invalid(
            at,
            get(rule, "resources"),
            "if '*/*' is present, must not specify other resources",
        );
    }
    if has("*") && plain {
        let words = "if '*' is present, must not specify other resources without subresources";
        faults.invalid(at, get(rule, "resources"), words);
    }
}

/// Validates the match conditions of a webhook or policy.
pub(super) fn conditions(fields: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let at = at.field("matchConditions");
    let conditions = items(fields, "matchConditions");
    if conditions.len() > CONDITIONS {
        faults.too_many(&at, conditions.len(), CONDITIONS);
    }
    let mut known = HashSet::new();
    for (number, condition) in conditions.iter().enumerate() {
        let (at, Some(condition)) = (at.index(number), condition.as_object()) else {
            continue;
        };
        if text(condition, "expression").trim().is_empty() {
            faults.required(&at.field("expression"), "");
        }
        let name = text(condition, "name");
        if name.is_empty() {
            faults.required(&at.field("name"), "");
        } else if let Err(fault) = names::qualified(name) {
            faults.invalid(&at.field("name"), word(condition, "name"), fault);
        }
        if !name.is_empty() && !known.insert(name) {
            faults.duplicate(&at.field("name"), get(condition, "name"));
        }
    }
}
