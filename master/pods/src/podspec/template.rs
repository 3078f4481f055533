//! Validation of pod templates.

use super::annotations;
use super::context::SpecOwner;
use master_schema::validate::forms::has;
use master_schema::validate::{Faults, FieldPath, Fields, get, items, labels, object};

/// Validates a template's labels and annotations; upstream reports their faults beside the
/// metadata.
pub fn template_metadata(template: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let metadata = object(template, "metadata").unwrap_or(super::context::no_fields());
    let spec = object(template, "spec").unwrap_or(super::context::no_fields());
    labels::labels(object(metadata, "labels"), &at.field("labels"), faults);
    let own = object(metadata, "annotations");
    labels::annotations(own, &at.field("annotations"), faults);
    annotations::of_pod(own, spec, &at.field("annotations"), faults);
}

/// Validates a template.
pub fn template(template: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    template_metadata(template, at, faults);
    let spec = object(template, "spec").unwrap_or(super::context::no_fields());
    let place = at.field("spec");
    super::validate(spec, SpecOwner::TEMPLATE, &place, faults);
    let own = object(template, "metadata").and_then(|metadata| object(metadata, "annotations"));
    annotations::on_create(own, spec, &place, faults);
    if !items(spec, "ephemeralContainers").is_empty() {
        faults.forbidden(
            &place.field("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        );
    }
}

/// Validates a template of a controller that keeps pods running: restart policy `Always` and no
/// deadline.
pub fn kept_running(template: &Fields, kind: &str, at: &FieldPath<'_>, faults: &mut Faults) {
    let spec = object(template, "spec").unwrap_or(super::context::no_fields());
    let place = at.field("spec");
    if get(spec, "restartPolicy") != "Always" {
        let policy = master_schema::validate::forms::word(spec, "restartPolicy");
        faults.unsupported(&place.field("restartPolicy"), policy, &["Always"]);
    }
    // Pods that end by a deadline would be replaced without end.
    if has(spec, "activeDeadlineSeconds") {
        let words = format!("activeDeadlineSeconds in {kind} is not Supported");
        faults.forbidden(&place.field("activeDeadlineSeconds"), words);
    }
}
