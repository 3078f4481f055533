//! Validation of admission policies and their bindings (upstream:
//! `admissionregistration/validation`). Expressions must be present; whether they compile is not
//! checked.

use super::admission_validate::{FAILURE, MATCH, OPERATIONS, conditions, rule};
use master_schema::object::meta_text;
use master_schema::object::spec;
use master_schema::validate::forms::{choice, formed, has, word};
use master_schema::validate::{
    Faults, FieldPath, Fields, conditions as status_conditions, get, items, labels, names, object,
    text,
};
use std::collections::HashSet;

const NO_EXPRESSION: &str = "expression is not specified";
/// Annotations per policy, and bytes of an annotation's expression.
const ANNOTATIONS: usize = 20;
const ANNOTATION: usize = 5 << 10;
/// Operations that a mutating policy may match.
const CHANGES: &[&str] = &["CREATE", "UPDATE"];
/// Reserved words that no variable may be named.
const RESERVED: &[&str] = &[
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Validates a ValidatingAdmissionPolicy.
pub(super) fn validating(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    common(spec, OPERATIONS, &at, faults);
    let (validations, annotations) = (items(spec, "validations"), items(spec, "auditAnnotations"));
    let (place, notes) = (at.field("validations"), at.field("auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        let words = "validations or auditAnnotations must contain at least one item";
        faults.required(&place, words);
        faults.required(&notes, words);
    }
    for (index, validation) in validations.iter().enumerate() {
        if let Some(validation) = validation.as_object() {
            self::validation(validation, &place.index(index), faults);
        }
    }
    if annotations.len() > ANNOTATIONS {
        let words = format!("must not have more than {ANNOTATIONS} auditAnnotations");
        faults.invalid(&notes, get(spec, "auditAnnotations"), words);
    }
    let mut known = HashSet::new();
    for (index, note) in annotations.iter().enumerate() {
        let (at, Some(note)) = (notes.index(index), note.as_object()) else {
            continue;
        };
        let key = text(note, "key");
        // The key in the audit log is made of both names, so both together must fit.
        let full = format!("{}/{key}", meta_text(fields, "name"));
        formed(&full.into(), &at.field("key"), names::qualified, faults);
        let expression = text(note, "valueExpression").trim();
        if expression.is_empty() {
            faults.required(
                &at.field("valueExpression"),
                "valueExpression is not specified",
            );
        } else if expression.len() > ANNOTATION {
            // Upstream reports the length as a missing value, too.
            faults.required(
                &at.field("valueExpression"),
                &format!("must not exceed {ANNOTATION} bytes in length"),
            );
        }
        if !known.insert(key) {
            faults.duplicate(&at.field("key"), word(note, "key"));
        }
    }
}

/// Validates a MutatingAdmissionPolicy.
pub(super) fn mutating(fields: &Fields, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    common(spec, CHANGES, &at, faults);
    let place = at.field("mutations");
    if items(spec, "mutations").is_empty() {
        faults.required(&place, "mutations must contain at least one item");
    }
    for (index, mutation) in items(spec, "mutations").iter().enumerate() {
        if let Some(mutation) = mutation.as_object() {
            self::mutation(mutation, &place.index(index), faults);
        }
    }
    choice(
        spec,
        "reinvocationPolicy",
        &at,
        &["IfNeeded", "Never"],
        faults,
    );
}

/// Validates what both kinds of policies share.
fn common(spec: &Fields, operations: &[&str], at: &FieldPath<'_>, faults: &mut Faults) {
    choice(spec, "failurePolicy", at, FAILURE, faults);
    if let Some(kind) = object(spec, "paramKind") {
        param_kind(kind, &at.field("paramKind"), faults);
    }
    let place = at.field("matchConstraints");
    match object(spec, "matchConstraints") {
        None => faults.required(&place, ""),
        Some(constraints) => {
            resources(constraints, operations, &place, faults);
            if items(constraints, "resourceRules").is_empty() {
                faults.required(&place.field("resourceRules"), "");
            }
        }
    }
    conditions(spec, at, faults);
    let place = at.field("variables");
    for (index, variable) in items(spec, "variables").iter().enumerate() {
        let (at, Some(variable)) = (place.index(index), variable.as_object()) else {
            continue;
        };
        let name = text(variable, "name");
        if name.trim().is_empty() {
            faults.required(&at.field("name"), "name is not specified");
        } else if names::identifier(name).is_err() || RESERVED.contains(&name) {
            faults.invalid(
                &at.field("name"),
                get(variable, "name"),
                "name is not a valid CEL identifier",
            );
        }
        if text(variable, "expression").trim().is_empty() {
            faults.required(&at.field("expression"), NO_EXPRESSION);
        }
    }
}

fn param_kind(kind: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let (version, place) = (text(kind, "apiVersion"), at.field("apiVersion"));
    let parts: Vec<&str> = version.split('/').collect();
    match parts.as_slice() {
        [""] => faults.required(&place, ""),
        [version] => formed(&(*version).into(), &place, names::dns_label, faults),
        [group, version] => {
            if !group.is_empty() {
                formed(&(*group).into(), &place, names::subdomain, faults);
            }
            if version.is_empty() {
                faults.invalid(&place, get(kind, "apiVersion"), "version must be specified");
            } else {
                formed(&(*version).into(), &place, names::dns_label, faults);
            }
        }
        _ => faults.invalid(
            &place,
            get(kind, "apiVersion"),
            format!("unexpected GroupVersion string: {version}"),
        ),
    }
    let name = text(kind, "kind");
    if name.is_empty() {
        faults.required(&at.field("kind"), "");
    } else if let Err(fault) = names::dns_label(&name.to_lowercase()) {
        let words = format!("may have mixed case, but should otherwise match: {fault}");
        faults.invalid(&at.field("kind"), get(kind, "kind"), words);
    }
}

fn resources(constraints: &Fields, operations: &[&str], at: &FieldPath<'_>, faults: &mut Faults) {
    choice(constraints, "matchPolicy", at, MATCH, faults);
    for key in ["namespaceSelector", "objectSelector"] {
        match object(constraints, key) {
            None => faults.required(&at.field(key), ""),
            selector => labels::selector(selector, &at.field(key), faults),
        }
    }
    for key in ["resourceRules", "excludeResourceRules"] {
        let at = at.field(key);
        for (number, named) in items(constraints, key).iter().enumerate() {
            let (at, Some(named)) = (at.index(number), named.as_object()) else {
                continue;
            };
            let (list, place) = (items(named, "resourceNames"), at.field("resourceNames"));
            let mut known = HashSet::new();
            for (index, name) in list.iter().enumerate() {
                formed(name, &place.index(index), names::path_segment, faults);
                if !known.insert(name) {
                    faults.duplicate(&place.index(index), name);
                }
            }
            rule(named, operations, &at, faults);
        }
    }
}

fn validation(validation: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if text(validation, "expression").trim().is_empty() {
        faults.required(&at.field("expression"), NO_EXPRESSION);
    }
    let blank =
        |key: &str| !text(validation, key).is_empty() && text(validation, key).trim().is_empty();
    if blank("messageExpression") {
        let value = get(validation, "messageExpression");
        faults.invalid(
            &at.field("messageExpression"),
            value,
            "must be non-empty if specified",
        );
    }
    let message = get(validation, "message");
    if blank("message") {
        faults.invalid(
            &at.field("message"),
            message,
            "message must be non-empty if specified",
        );
    } else if text(validation, "message").trim().contains(['\n', '\r']) {
        faults.invalid(
            &at.field("message"),
            message,
            "message must not contain line breaks",
        );
    }
    if has(validation, "reason") {
        let known = [
            "Forbidden",
            "Invalid",
            "RequestEntityTooLarge",
            "Unauthorized",
        ];
        faults.one_of(&at.field("reason"), get(validation, "reason"), &known);
    }
}

fn mutation(mutation: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let (apply, patch) = (
        ("ApplyConfiguration", "applyConfiguration"),
        ("JSONPatch", "jsonPatch"),
    );
    let (own, other) = match text(mutation, "patchType") {
        "ApplyConfiguration" => (apply, patch),
        "JSONPatch" => (patch, apply),
        _ => {
            return choice(
                mutation,
                "patchType",
                at,
                &["ApplyConfiguration", "JSONPatch"],
                faults,
            );
        }
    };
    let place = at.field(own.1);
    match object(mutation, own.1) {
        None => faults.required(
            &place,
            &format!("must be specified when patchType is {}", own.0),
        ),
        Some(how) if text(how, "expression").trim().is_empty() => {
            faults.required(&place.field("expression"), NO_EXPRESSION);
        }
        Some(_) => {}
    }
    if has(mutation, other.1) {
        let words = format!("must not be specified when patchType is {}", own.0);
        faults.invalid(&at.field(other.1), get(mutation, other.1), words);
    }
}

/// Validates the type-checking result in a policy's status.
pub(super) fn status(fields: &Fields, faults: &mut Faults) {
    let Some(status) = object(fields, "status") else {
        return;
    };
    let at = FieldPath::root("status");
    let checking = at.field("typeChecking");
    let place = checking.field("expressionWarnings");
    let warnings = object(status, "typeChecking")
        .map_or(&[][..], |checking| items(checking, "expressionWarnings"));
    for (index, warning) in warnings.iter().enumerate() {
        let (at, Some(warning)) = (place.index(index), warning.as_object()) else {
            continue;
        };
        for key in ["warning", "fieldRef"] {
            if text(warning, key).trim().is_empty() {
                faults.required(&at.field(key), "");
            }
        }
    }
    status_conditions::all(items(status, "conditions"), &at.field("conditions"), faults);
}

/// Validates a binding of a policy; one of a validating policy has actions.
pub(super) fn binding(fields: &Fields, refuses: bool, faults: &mut Faults) {
    let (spec, at) = (spec(fields), FieldPath::root("spec"));
    if text(spec, "policyName").is_empty() {
        faults.required(&at.field("policyName"), "");
    } else {
        formed(
            get(spec, "policyName"),
            &at.field("policyName"),
            names::subdomain,
            faults,
        );
    }
    if let Some(param) = object(spec, "paramRef") {
        param_ref(param, &at.field("paramRef"), faults);
    }
    if let Some(constraints) = object(spec, "matchResources") {
        // Upstream's spelling of the path.
        let operations = if refuses { OPERATIONS } else { CHANGES };
        resources(constraints, operations, &at.field("matchResouces"), faults);
    }
    if refuses {
        actions(spec, &at.field("validationActions"), faults);
    }
}

fn param_ref(param: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    const BOTH: &str = "name and selector are mutually exclusive";
    let (name, selector) = (text(param, "name"), object(param, "selector"));
    if !name.is_empty() {
        formed(
            get(param, "name"),
            &at.field("name"),
            names::path_segment,
            faults,
        );
        if selector.is_some() {
            faults.forbidden(&at.field("name"), BOTH);
        }
    }
    if selector.is_some() {
        labels::selector(selector, &at.field("selector"), faults);
        if !name.is_empty() {
            faults.forbidden(&at.field("selector"), BOTH);
        }
    } else if name.is_empty() {
        faults.required(at, "one of name or selector must be specified");
    }
    choice(
        param,
        "parameterNotFoundAction",
        at,
        &["Deny", "Allow"],
        faults,
    );
}

fn actions(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let mut known = HashSet::new();
    for (number, action) in items(spec, "validationActions").iter().enumerate() {
        faults.one_of(&at.index(number), action, &["Audit", "Deny", "Warn"]);
        if !known.insert(action.as_str()) {
            faults.duplicate(&at.index(number), action);
        }
    }
    if known.contains(&Some("Deny")) && known.contains(&Some("Warn")) {
        let text = "must not contain both Deny and Warn (repeating the same validation failure information in the API \
                    response and headers serves no purpose)";
        faults.invalid(at, get(spec, "validationActions"), text);
    }
    if known.is_empty() {
        faults.required(at, "at least one validation action is required");
    }
}
