//! Defaults and validation of FlowSchemas and PriorityLevelConfigurations (upstream:
//! `flowcontrol/validation`).

use super::fairness_defaults::{self, EXEMPT, is_mandatory};
use master_schema::object::meta_text;
use master_schema::object::spec;
use master_schema::validate::forms::{has, needed, number, word};
use master_schema::validate::{
    Faults, FieldPath, Fields, default_to, get, items, names, object, object_mut, text,
};
use serde_json::{Value, json};
use std::collections::HashSet;

/// Highest `matchingPrecedence` (upstream: `FlowSchemaMaxMatchingPrecedence`).
const MAX_PRECEDENCE: i64 = 10_000;
const VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "proxy",
    "update",
    "watch",
];
const MAX_QUEUES: i64 = 10_000_000;
/// Bits of the hash from which shuffle sharding deals queues.
const HASH_BITS: i64 = 60;
const NOT_NEGATIVE: &str = "must be a non-negative integer";

/// Sets a number that is missing or zero.
fn fill(fields: &mut Fields, key: &str, value: i64) {
    // Upstream's fields are plain integers, in which zero and absent are the same.
    if number(fields, key) == 0 {
        fields.insert(key.to_owned(), value.into());
    }
}

/// Sets defaults of a FlowSchema.
pub(super) fn schema_defaults(fields: &mut Fields) {
    if let Some(spec) = object_mut(fields, "spec") {
        fill(spec, "matchingPrecedence", 1000);
    }
}

/// Sets defaults of a PriorityLevelConfiguration.
pub(super) fn level_defaults(fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    if text(spec, "type") == "Exempt" {
        default_to(spec, "exempt", json!({}));
    }
    if let Some(exempt) = spec.get_mut("exempt").and_then(Value::as_object_mut) {
        default_to(exempt, "nominalConcurrencyShares", 0);
        default_to(exempt, "lendablePercent", 0);
    }
    let Some(limited) = spec.get_mut("limited").and_then(Value::as_object_mut) else {
        return;
    };
    // A pointer upstream since `v1`: zero is a value, of a level that has only what it borrows.
    default_to(limited, "nominalConcurrencyShares", 30);
    default_to(limited, "lendablePercent", 0);
    let queuing = limited
        .get_mut("limitResponse")
        .and_then(|response| response.get_mut("queuing"));
    if let Some(queuing) = queuing.and_then(Value::as_object_mut) {
        fill(queuing, "queues", 64);
        fill(queuing, "handSize", 8);
        fill(queuing, "queueLengthLimit", 50);
    }
}

fn star(list: &[Value]) -> bool {
    list.iter().any(|item| item == "*")
}

/// Validates a FlowSchema.
pub(super) fn schema(fields: &Fields, faults: &mut Faults) {
    let (name, spec, at) = (
        meta_text(fields, "name"),
        spec(fields),
        FieldPath::root("spec"),
    );
    let (precedence, place) = (
        number(spec, "matchingPrecedence"),
        at.field("matchingPrecedence"),
    );
    let shown = precedence.into();
    if precedence <= 0 {
        faults.invalid(&place, &shown, "must be a positive value");
    }
    if precedence > MAX_PRECEDENCE {
        faults.invalid(
            &place,
            &shown,
            format!("must not be greater than {MAX_PRECEDENCE}"),
        );
    }
    // Nothing is matched before the schema that keeps an admin's requests from being limited.
    if precedence == 1 && name != EXEMPT {
        faults.invalid(
            &place,
            &shown,
            "only the schema named 'exempt' may have matchingPrecedence 1",
        );
    }
    if let Some(method) = object(spec, "distinguisherMethod") {
        let place = at.field("distinguisherMethod");
        faults.one_of(
            &place.field("type"),
            word(method, "type"),
            &["ByNamespace", "ByUser"],
        );
    }
    let nothing = Fields::new();
    let level = object(spec, "priorityLevelConfiguration").unwrap_or(&nothing);
    let place = at.field("priorityLevelConfiguration");
    if text(level, "name").is_empty() {
        faults.required(&place.field("name"), "must reference a priority level");
    } else if let Err(fault) = names::subdomain(text(level, "name")) {
        faults.invalid(&place.field("name"), get(level, "name"), fault);
    }
    let place = at.field("rules");
    for (index, rule) in items(spec, "rules").iter().enumerate() {
        if let Some(rule) = rule.as_object() {
            self::rule(rule, &place.index(index), faults);
        }
    }
    // Without one of them an admin could be locked out (`exempt`), or a request be of no level
    // (`catch-all`).
    if is_mandatory(name) && !is_fixed(name, spec, &fairness_defaults::schemas()) {
        faults.invalid(
            &at,
            get(fields, "spec"),
            format!("spec of '{name}' must equal the fixed value"),
        );
    }
    conditions(fields, faults);
}

fn is_fixed(name: &str, spec: &Fields, all: &[(&str, Value)]) -> bool {
    all.iter()
        .any(|(own, fixed)| *own == name && fixed.as_object() == Some(spec))
}

fn rule(rule: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let (subjects, place) = (items(rule, "subjects"), at.field("subjects"));
    if subjects.is_empty() {
        faults.required(&place, "subjects must contain at least one value");
    }
    for (index, subject) in subjects.iter().enumerate() {
        if let Some(subject) = subject.as_object() {
            self::subject(subject, &place.index(index), faults);
        }
    }
    let (resources, others) = (
        items(rule, "resourceRules"),
        items(rule, "nonResourceRules"),
    );
    if resources.is_empty() && others.is_empty() {
        faults.required(
            at,
            "at least one of resourceRules and nonResourceRules has to be non-empty",
        );
    }
    let place = at.field("resourceRules");
    for (index, rule) in resources.iter().enumerate() {
        if let Some(rule) = rule.as_object() {
            resource_rule(rule, &place.index(index), faults);
        }
    }
    let place = at.field("nonResourceRules");
    for (index, rule) in others.iter().enumerate() {
        if let Some(rule) = rule.as_object() {
            other_rule(rule, &place.index(index), faults);
        }
    }
}

/// A subject's kind and the field that holds it.
const SUBJECTS: &[(&str, &str)] = &[
    ("ServiceAccount", "serviceAccount"),
    ("User", "user"),
    ("Group", "group"),
];

fn subject(subject: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let kind = text(subject, "kind");
    let Some((_, own)) = SUBJECTS.iter().find(|(known, _)| *known == kind) else {
        faults.unsupported(
            &at.field("kind"),
            word(subject, "kind"),
            &["Group", "ServiceAccount", "User"],
        );
        return;
    };
    let place = at.field(own);
    match object(subject, own) {
        None => faults.required(
            &place,
            &format!("{own} is required when subject kind is '{kind}'"),
        ),
        Some(account) if *own == "serviceAccount" => self::account(account, &place, faults),
        Some(named) => needed(named, "name", &place, faults),
    }
    for (other, field) in SUBJECTS.iter().filter(|(other, _)| *other != kind) {
        if has(subject, field) {
            faults.forbidden(
                &at.field(field),
                format!("{field} is forbidden when subject kind is not '{other}'"),
            );
        }
    }
}

fn account(account: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let (name, namespace) = (text(account, "name"), text(account, "namespace"));
    if name.is_empty() {
        faults.required(&at.field("name"), "");
    } else if name != "*"
        && let Err(fault) = names::subdomain(name)
    {
        faults.invalid(&at.field("name"), get(account, "name"), fault);
    }
    if namespace.is_empty() {
        faults.required(
            &at.field("namespace"),
            "must specify namespace for service account",
        );
    } else if let Err(fault) = names::label(namespace) {
        faults.invalid(&at.field("namespace"), get(account, "namespace"), fault);
    }
}

fn verbs(rule: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let (verbs, place) = (items(rule, "verbs"), at.field("verbs"));
    if verbs.is_empty() {
        faults.required(&place, "verbs must contain at least one value");
    } else if star(verbs) {
        if verbs.len() > 1 {
            faults.invalid(
                &place,
                get(rule, "verbs"),
                "if '*' is present, must not specify other verbs",
            );
        }
    } else if verbs
        .iter()
        .any(|verb| !VERBS.contains(&verb.as_str().unwrap_or_default()))
    {
        // Upstream shows the whole list here, not the verb that is unknown.
        faults.unsupported(&place, get(rule, "verbs"), VERBS);
    }
}

fn resource_rule(rule: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    verbs(rule, at, faults);
    for (key, one, others) in [
        ("apiGroups", "api group", "api groups"),
        ("resources", "resource", "resources"),
    ] {
        let (list, place) = (items(rule, key), at.field(key));
        if list.is_empty() {
            faults.required(
                &place,
                &format!("resource rules must supply at least one {one}"),
            );
        } else if list.len() > 1 && star(list) {
            faults.invalid(
                &place,
                get(rule, key),
                format!("if '*' is present, must not specify other {others}"),
            );
        }
    }
    let (namespaces, place) = (items(rule, "namespaces"), at.field("namespaces"));
    if namespaces.is_empty() {
        // Without namespaces it could match requests that name none, which `clusterScope` alone
        // allows.
        if get(rule, "clusterScope") != &Value::Bool(true) {
            let words =
                "resource rules that are not cluster scoped must supply at least one namespace";
            faults.required(&place, words);
        }
    } else if star(namespaces) {
        if namespaces.len() > 1 {
            let words = "if '*' is present, must not specify other namespaces";
            faults.invalid(&place, get(rule, "namespaces"), words);
        }
    } else {
        for (index, namespace) in namespaces.iter().enumerate() {
            if let Err(fault) = names::label(namespace.as_str().unwrap_or_default()) {
                let words =
                    format!("each member of this list must be '*' or a DNS-1123 label; {fault}");
                faults.invalid(&place.index(index), namespace, words);
            }
        }
    }
}

fn other_rule(rule: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    verbs(rule, at, faults);
    let (urls, place) = (items(rule, "nonResourceURLs"), at.field("nonResourceURLs"));
    if urls.is_empty() {
        faults.required(&place, "nonResourceURLs must contain at least one value");
    } else if star(urls) {
        if urls.len() > 1 {
            let words = "if '*' is present, must not specify other non-resource URLs";
            faults.invalid(&place, get(rule, "nonResourceURLs"), words);
        }
    } else {
        for (index, url) in urls.iter().enumerate() {
            if let Some(fault) = url_fault(url.as_str().unwrap_or_default()) {
                faults.invalid(&place.index(index), url, fault);
            }
        }
    }
}

fn url_fault(url: &str) -> Option<&'static str> {
    match url {
        "" => Some("must not be empty"),
        "/" => None,
        url if !url.starts_with('/') => Some("must start with slash"),
        url if url.contains(' ') => Some("must not contain white-space"),
        url if url.contains("//") => Some("must not contain double slash"),
        // One star is enough: it matches slashes, too.
        url if url.matches('*').count() > 1 || url.contains('*') && !url.ends_with("/*") => {
            Some("wildcard can only do suffix matching")
        }
        _ => None,
    }
}

/// Validates the conditions of a status.
fn conditions(fields: &Fields, faults: &mut Faults) {
    let root = FieldPath::root("status");
    let at = root.field("conditions");
    let mut known = HashSet::new();
    let conditions = object(fields, "status").map_or(&[][..], |status| items(status, "conditions"));
    for (index, condition) in conditions.iter().enumerate() {
        let (at, Some(condition)) = (at.index(index), condition.as_object()) else {
            continue;
        };
        if !known.insert(text(condition, "type")) {
            faults.duplicate(&at.field("type"), word(condition, "type"));
        }
        if text(condition, "type").is_empty() {
            faults.required(&at.field("type"), "must not be empty");
        }
    }
}

/// Validates a status that is written through its subresource.
pub(super) fn status(fields: &Fields, faults: &mut Faults) {
    conditions(fields, faults);
}

/// Validates a PriorityLevelConfiguration.
pub(super) fn level(fields: &Fields, faults: &mut Faults) {
    let (name, spec, at) = (
        meta_text(fields, "name"),
        spec(fields),
        FieldPath::root("spec"),
    );
    let kind = text(spec, "type");
    let place = at.field("type");
    if (name == EXEMPT) != (kind == "Exempt") {
        faults.invalid(
            &place,
            word(spec, "type"),
            "type must be 'Exempt' if and only if name is 'exempt'",
        );
    }
    match kind {
        "Exempt" => {
            if has(spec, "limited") {
                faults.forbidden(
                    &at.field("limited"),
                    "must be nil if the type is not Limited",
                );
            }
            if let Some(exempt) = object(spec, "exempt") {
                shares(exempt, &at.field("exempt"), faults);
            }
        }
        "Limited" => {
            if has(spec, "exempt") {
                faults.forbidden(&at.field("exempt"), "must be nil if the type is Limited");
            }
            match object(spec, "limited") {
                None => faults.required(
                    &at.field("limited"),
                    "must not be empty when type is Limited",
                ),
                Some(limited) => self::limited(limited, &at.field("limited"), faults),
            }
        }
        _ => faults.unsupported(&place, word(spec, "type"), &["Exempt", "Limited"]),
    }
    mandatory(name, spec, get(fields, "spec"), faults);
    conditions(fields, faults);
}

/// Mandatory objects are immutable, except the shares of the exempt level.
fn mandatory(name: &str, spec: &Fields, shown: &Value, faults: &mut Faults) {
    if !is_mandatory(name) {
        return;
    }
    let mut spec = spec.clone();
    let levels = fairness_defaults::levels();
    let mut except = "";
    if name == EXEMPT {
        // The shares of the exempt level limit none of its requests. They only say how much of the
        // server is left for other levels, and that is the admin's choice.
        except = " except the 'spec.exempt' field";
        let fixed = levels
            .iter()
            .find(|(own, _)| *own == name)
            .and_then(|(_, fixed)| fixed.get("exempt"));
        spec.insert("exempt".to_owned(), fixed.cloned().unwrap_or_default());
    }
    if !is_fixed(name, &spec, &levels) {
        let words = format!("spec of '{name}'{except} must equal the fixed value");
        faults.invalid(&FieldPath::root("spec"), shown, words);
    }
}

fn shares(level: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let shares = get(level, "nominalConcurrencyShares");
    if shares.as_i64().is_some_and(|shares| shares < 0) {
        faults.invalid(&at.field("nominalConcurrencyShares"), shares, NOT_NEGATIVE);
    }
    let lendable = get(level, "lendablePercent");
    if lendable
        .as_i64()
        .is_some_and(|lendable| !(0..=100).contains(&lendable))
    {
        faults.invalid(
            &at.field("lendablePercent"),
            lendable,
            "must be between 0 and 100, inclusive",
        );
    }
}

fn limited(limited: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    shares(limited, at, faults);
    let borrowing = get(limited, "borrowingLimitPercent");
    if borrowing.as_i64().is_some_and(|borrowing| borrowing < 0) {
        let words = format!("if specified, {NOT_NEGATIVE}");
        faults.invalid(&at.field("borrowingLimitPercent"), borrowing, words);
    }
    let nothing = Fields::new();
    let response = object(limited, "limitResponse").unwrap_or(&nothing);
    let at = at.field("limitResponse");
    match (text(response, "type"), object(response, "queuing")) {
        // Upstream's words, which say Limited for Queue.
        ("Reject", Some(_)) => {
            let words = "must be nil if limited.limitResponse.type is not Limited";
            faults.forbidden(&at.field("queuing"), words);
        }
        ("Reject", None) => {}
        ("Queue", None) => {
            let words = "must not be empty if limited.limitResponse.type is Limited";
            faults.required(&at.field("queuing"), words);
        }
        ("Queue", Some(queuing)) => self::queuing(queuing, &at.field("queuing"), faults),
        _ => faults.unsupported(
            &at.field("type"),
            word(response, "type"),
            &["Queue", "Reject"],
        ),
    }
}

fn queuing(queuing: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let of = |key: &str| number(queuing, key);
    let (queues, hand, length) = (of("queues"), of("handSize"), of("queueLengthLimit"));
    if length <= 0 {
        faults.invalid(
            &at.field("queueLengthLimit"),
            &length.into(),
            "must be positive",
        );
    }
    let place = at.field("queues");
    if queues <= 0 {
        faults.invalid(&place, &queues.into(), "must be positive");
    } else if queues > MAX_QUEUES {
        faults.invalid(
            &place,
            &queues.into(),
            format!("must not be greater than {MAX_QUEUES}"),
        );
    }
    let place = at.field("handSize");
    if hand <= 0 {
        faults.invalid(&place, &hand.into(), "must be positive");
    } else if hand > queues {
        faults.invalid(
            &place,
            &hand.into(),
            format!("should not be greater than queues ({queues})"),
        );
    } else if entropy(queues, hand) > HASH_BITS {
        // The whole hand is dealt from one hash: with too few bits some hands would never be dealt.
        let words = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
        );
        faults.invalid(&place, &hand.into(), words);
    }
}

/// Bits of a hash that choose a hand of queues from a deck (shuffle sharding).
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "both are small, and it is an estimate"
)]
fn entropy(deck: i64, hand: i64) -> i64 {
    ((deck as f64).log2() * hand as f64).ceil() as i64
}
