//! Validation of PriorityClass and RuntimeClass (upstream: `scheduling/validation`,
//! `node/validation`).

use master_pods::podspec;
use master_schema::object::meta_text;
use master_schema::validate::{Faults, FieldPath, Fields, get, items, labels, names, object, text};
use std::collections::HashSet;

/// The highest priority that users may set.
const HIGHEST: i64 = 1_000_000_000;
/// System classes and their values.
const SYSTEM: [(&str, i64); 2] = [
    ("system-cluster-critical", 2_000_000_000),
    ("system-node-critical", 2_000_001_000),
];

/// Validates a PriorityClass.
pub(super) fn priority(fields: &Fields, faults: &mut Faults) {
    let (name, value) = (
        meta_text(fields, "name"),
        get(fields, "value").as_i64().unwrap_or_default(),
    );
    if name.starts_with("system-") {
        let root = FieldPath::root("metadata");
        if !SYSTEM.contains(&(name, value)) {
            let text = "priority class names with 'system-' prefix are reserved for system use only. error: ";
            let known = SYSTEM.iter().find(|(known, _)| *known == name);
            let why = match known {
                Some((_, right)) => format!("value of {name} PriorityClass must be {right}"),
                None => format!("{name} is not a known system priority class"),
            };
            faults.forbidden(&root.field("name"), format!("{text}{why}"));
        }
    } else if value > HIGHEST {
        let text = format!("maximum allowed value of a user defined priority is {HIGHEST}");
        faults.forbidden(&FieldPath::root("value"), text);
    }
    let at = FieldPath::root("preemptionPolicy");
    if !get(fields, "preemptionPolicy").is_null() {
        faults.one_of(
            &at,
            get(fields, "preemptionPolicy"),
            &["Never", "PreemptLowerPriority"],
        );
    }
}

/// Value and preemption policy are immutable: pods have copies of them.
pub(super) fn priority_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    if get(new, "value") != get(old, "value") {
        faults.forbidden(
            &FieldPath::root("value"),
            "may not be changed in an update.",
        );
    }
    let key = "preemptionPolicy";
    faults.immutable(&FieldPath::root(key), get(new, key), get(old, key));
}

/// Validates a RuntimeClass.
pub(super) fn runtime(fields: &Fields, faults: &mut Faults) {
    if let Err(fault) = names::label(text(fields, "handler")) {
        faults.invalid(&FieldPath::root("handler"), get(fields, "handler"), fault);
    }
    if let Some(fixed) = object(fields, "overhead").and_then(|overhead| overhead.get("podFixed")) {
        // Validated as the limits of a container, at their own path.
        let limits = Fields::from_iter([("limits".to_owned(), fixed.clone())]);
        podspec::requirements(&limits, &FieldPath::root("overhead"), faults);
    }
    let Some(scheduling) = object(fields, "scheduling") else {
        return;
    };
    let at = FieldPath::root("scheduling");
    labels::labels(
        object(scheduling, "nodeSelector"),
        &at.field("nodeSelector"),
        faults,
    );
    let (tolerations, at) = (items(scheduling, "tolerations"), at.field("tolerations"));
    // They become tolerations of pods.
    podspec::tolerations(tolerations, &at, faults);
    let mut known = HashSet::new();
    for (number, toleration) in tolerations.iter().enumerate() {
        if !known.insert(toleration) {
            faults.duplicate(&at.index(number), toleration);
        }
    }
}

/// The handler is immutable: running pods use it.
pub(super) fn runtime_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    faults.immutable(
        &FieldPath::root("handler"),
        get(new, "handler"),
        get(old, "handler"),
    );
}
