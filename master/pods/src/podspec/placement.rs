//! Validation of tolerations and topology spread constraints.

use master_schema::validate::forms::{POSITIVE, formed, has, number, optional_choice, word};
use master_schema::validate::limits::{self, at_most};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, labels, names, object, text};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};

/// Validates tolerations.
pub fn tolerations(tolerations: &[Value], at: &FieldPath<'_>, faults: &mut Faults) {
    if tolerations.len() > limits::OF_POD {
        faults.too_many(at, tolerations.len(), limits::OF_POD);
    }
    for (index, toleration) in tolerations.iter().enumerate() {
        if let Some(toleration) = toleration.as_object() {
            self::toleration(toleration, &at.index(index), faults);
        }
    }
}

fn toleration(toleration: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let (key, operator) = (text(toleration, "key"), text(toleration, "operator"));
    let place = at.field("operator");
    if !key.is_empty() {
        formed(
            get(toleration, "key"),
            &at.field("key"),
            names::qualified,
            faults,
        );
    } else if operator != "Exists" {
        let words = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        faults.invalid(&place, word(toleration, "operator"), words);
    }
    // Only NoExecute evicts running pods, so only it has a time.
    if has(toleration, "tolerationSeconds") && text(toleration, "effect") != "NoExecute" {
        let words = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        faults.invalid(&at.field("effect"), word(toleration, "effect"), words);
    }
    match operator {
        // An absent operator means Equal.
        "" | "Equal" => formed(
            word(toleration, "value"),
            &place,
            names::label_value,
            faults,
        ),
        "Exists" if !text(toleration, "value").is_empty() => {
            faults.invalid(
                &place,
                get(toleration, "value"),
                "value must be empty when `operator` is 'Exists'",
            );
        }
        "Exists" => {}
        _ => faults.unsupported(&place, get(toleration, "operator"), &["Equal", "Exists"]),
    }
    if !text(toleration, "effect").is_empty() {
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        faults.one_of(&at.field("effect"), get(toleration, "effect"), &effects);
    }
}

/// Validates topology spread constraints.
pub(super) fn spread(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let constraints = items(spec, "topologySpreadConstraints");
    if constraints.len() > limits::SPREAD_CONSTRAINTS {
        faults.too_many(at, constraints.len(), limits::SPREAD_CONSTRAINTS);
    }
    let pair = |one: &Fields| {
        let texts = [text(one, "topologyKey"), text(one, "whenUnsatisfiable")];
        texts.map(str::to_owned)
    };
    // How often each comes from here on.
    let mut left: HashMap<[String; 2], usize> = HashMap::new();
    for one in constraints.iter().filter_map(Value::as_object) {
        *left.entry(pair(one)).or_default() += 1;
    }
    for (index, constraint) in constraints.iter().enumerate() {
        let Some(constraint) = constraint.as_object() else {
            continue;
        };
        let at = at.index(index);
        if number(constraint, "maxSkew") <= 0 {
            faults.invalid(
                &at.field("maxSkew"),
                &number(constraint, "maxSkew").into(),
                POSITIVE,
            );
        }
        let (key, action) = (
            text(constraint, "topologyKey"),
            text(constraint, "whenUnsatisfiable"),
        );
        if key.is_empty() {
            faults.required(&at.field("topologyKey"), "can not be empty");
        }
        let actions = ["DoNotSchedule", "ScheduleAnyway"];
        faults.one_of(
            &at.field("whenUnsatisfiable"),
            word(constraint, "whenUnsatisfiable"),
            &actions,
        );
        let later = left.get_mut(&pair(constraint)).map_or(0, |left| {
            *left -= 1;
            *left
        });
        // Upstream compares each with those after it, so that the earlier of two is reported.
        if later > 0 {
            let shown = Value::from(format!("{{{key}, {action}}}"));
            faults.duplicate(&at.field("{topologyKey, whenUnsatisfiable}"), &shown);
        }
        domains(constraint, &at.field("minDomains"), faults);
        for key in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            optional_choice(constraint, key, &at, &["Honor", "Ignore"], faults);
        }
        at_most(
            constraint,
            "matchLabelKeys",
            limits::LABEL_KEYS,
            &at,
            faults,
        );
        label_keys(constraint, &at.field("matchLabelKeys"), faults);
        labels::selector(
            object(constraint, "labelSelector"),
            &at.field("labelSelector"),
            faults,
        );
    }
}

fn domains(constraint: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let value = get(constraint, "minDomains");
    let Some(least) = value.as_i64() else { return };
    if least <= 0 {
        faults.invalid(at, value, POSITIVE);
    }
    // KEP-3022: a constraint that is only preferred has nothing to hold the pod back with.
    let action = text(constraint, "whenUnsatisfiable");
    if action != "DoNotSchedule" {
        let words =
            format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
        faults.invalid(at, value, words);
    }
}

fn label_keys(constraint: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    // KEP-3243: they narrow the selector to pods of one template, and need one.
    let keys = items(constraint, "matchLabelKeys");
    if keys.is_empty() {
        return;
    }
    let mut selected: BTreeSet<&str> = BTreeSet::new();
    match object(constraint, "labelSelector") {
        Some(selector) => {
            selected.extend(
                object(selector, "matchLabels")
                    .into_iter()
                    .flatten()
                    .map(|(key, _)| key.as_str()),
            );
            let expressions = items(selector, "matchExpressions")
                .iter()
                .filter_map(Value::as_object);
            selected.extend(expressions.map(|expression| text(expression, "key")));
        }
        None => faults.forbidden(at, "must not be specified when labelSelector is not set"),
    }
    for (index, key) in keys.iter().enumerate() {
        formed(key, &at.index(index), names::qualified, faults);
        if key.as_str().is_some_and(|key| selected.contains(key)) {
            faults.invalid(
                &at.index(index),
                key,
                "exists in both matchLabelKeys and labelSelector",
            );
        }
    }
}
