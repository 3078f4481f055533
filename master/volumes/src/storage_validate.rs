//! Validation of the kinds of `storage.k8s.io` (upstream: `storage/validation`).

use master_schema::object::metadata;
use master_schema::object::spec;
use master_schema::quantity::Quantity;
use master_schema::validate::forms::driver_name;
use master_schema::validate::{
    Faults, FieldPath, Fields, default_to, get, items, labels, limits, names, object, object_mut,
    text,
};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// Parameters of a class: their number, and their bytes in total.
const PARAMETERS: usize = 512;
const PARAMETER_BYTES: usize = 256 << 10;
const NODE_ID: usize = 256;
/// Bytes of an error message.
const MESSAGE: usize = 1024;
/// Minimum interval in seconds at which a node's capacity is reported.
const PERIOD: i64 = 10;

/// Sets defaults of a StorageClass.
pub(crate) fn class_defaults(fields: &mut Fields) {
    // Volumes that are made on demand go with their claims; those that people make stay.
    default_to(fields, "reclaimPolicy", "Delete");
    default_to(fields, "volumeBindingMode", "Immediate");
}

fn parameters(fields: &Fields, needed: bool, faults: &mut Faults) {
    let at = FieldPath::root("parameters");
    let nothing = Fields::new();
    let parameters = object(fields, "parameters").unwrap_or(&nothing);
    if needed && parameters.is_empty() {
        faults.required(&at, "must contain at least one key/value pair");
    }
    if parameters.len() > PARAMETERS {
        return faults.too_long(&at, PARAMETERS);
    }
    let mut size = 0;
    for (key, value) in parameters {
        if key.is_empty() {
            faults.invalid(&at, &key.as_str().into(), "field can not be empty.");
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > PARAMETER_BYTES {
        faults.too_long(&at, PARAMETER_BYTES);
    }
}

fn provisioner(fields: &Fields, key: &str, faults: &mut Faults) {
    let at = FieldPath::root(key);
    match text(fields, key) {
        "" => faults.required(&at, ""),
        name => {
            // Capitals are allowed: upstream checks the lower-case form.
            if let Err(fault) = names::qualified(&name.to_lowercase()) {
                faults.invalid(&at, get(fields, key), fault);
            }
        }
    }
}

/// Validates a StorageClass.
pub(crate) fn class(fields: &Fields, faults: &mut Faults) {
    provisioner(fields, "provisioner", faults);
    parameters(fields, false, faults);
    let at = FieldPath::root("reclaimPolicy");
    faults.one_of(&at, get(fields, "reclaimPolicy"), &["Delete", "Retain"]);
    let at = FieldPath::root("volumeBindingMode");
    faults.one_of(
        &at,
        get(fields, "volumeBindingMode"),
        &["Immediate", "WaitForFirstConsumer"],
    );
    let at = FieldPath::root("allowedTopologies");
    let terms = items(fields, "allowedTopologies");
    if terms.len() > limits::TOPOLOGIES {
        faults.too_many(&at, terms.len(), limits::TOPOLOGIES);
    }
    let mut known: HashSet<&Value> = HashSet::new();
    for (number, term) in terms.iter().enumerate() {
        let at = at.index(number);
        if !known.insert(term) {
            faults.duplicate(&at.field("matchLabelExpressions"), &"".into());
        }
        topology(term, &at, faults);
    }
}

fn topology(term: &Value, at: &FieldPath<'_>, faults: &mut Faults) {
    let Some(term) = term.as_object() else { return };
    let at = at.field("matchLabelExpressions");
    let mut keys = HashSet::new();
    for (number, expression) in items(term, "matchLabelExpressions").iter().enumerate() {
        let (at, Some(expression)) = (at.index(number), expression.as_object()) else {
            continue;
        };
        if items(expression, "values").is_empty() {
            faults.required(&at.field("values"), "");
        }
        let place = at.field("values");
        let mut values = HashSet::new();
        for (number, value) in items(expression, "values").iter().enumerate() {
            if !values.insert(value.as_str()) {
                faults.duplicate(&place.index(number), value);
            }
        }
        let key = text(expression, "key");
        if let Err(fault) = names::qualified(key) {
            faults.invalid(&at.field("key"), get(expression, "key"), fault);
        }
        if !keys.insert(key) {
            faults.duplicate(&at.field("key"), get(expression, "key"));
        }
    }
}

fn never(new: &Fields, old: &Fields, keys: &[&str], faults: &mut Faults) {
    for key in keys {
        if get(new, key) != get(old, key) {
            faults.forbidden(
                &FieldPath::root(key),
                format!("updates to {key} are forbidden."),
            );
        }
    }
}

/// Parameters, provisioner, reclaim and binding mode are immutable: volumes were made by them.
pub(crate) fn class_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    never(
        new,
        old,
        &["parameters", "provisioner", "reclaimPolicy"],
        faults,
    );
    let key = "volumeBindingMode";
    faults.immutable(&FieldPath::root(key), get(new, key), get(old, key));
}

/// Validates a VolumeAttributesClass.
pub(crate) fn attributes(fields: &Fields, faults: &mut Faults) {
    provisioner(fields, "driverName", faults);
    parameters(fields, true, faults);
}

/// Driver and parameters are immutable: volumes were modified by them.
pub(crate) fn attributes_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    never(new, old, &["driverName", "parameters"], faults);
}

/// Validates a VolumeAttachment.
pub(crate) fn attachment(fields: &Fields, faults: &mut Faults) {
    let spec = spec(fields);
    let at = FieldPath::root("spec");
    match text(spec, "attacher") {
        "" => faults.required(&at.field("attacher"), ""),
        _ => driver_name(get(spec, "attacher"), &at.field("attacher"), faults),
    }
    let nothing = Fields::new();
    let source = object(spec, "source").unwrap_or(&nothing);
    let place = at.field("source");
    let one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (
        get(source, "inlineVolumeSpec").is_null(),
        get(source, "persistentVolumeName").as_str(),
    ) {
        (true, None) => faults.required(&place, one),
        (false, Some(_)) => faults.forbidden(&place, one),
        (true, Some("")) => {
            faults.required(
                &place.field("persistentVolumeName"),
                "must specify non empty persistentVolumeName",
            );
        }
        (true, Some(_)) | (false, None) => {}
    }
    if let Err(fault) = names::subdomain(text(spec, "nodeName")) {
        faults.invalid(&at.field("nodeName"), get(spec, "nodeName"), fault);
    }
}

/// The spec is immutable.
pub(crate) fn attachment_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    faults.immutable(&FieldPath::root("spec"), get(new, "spec"), get(old, "spec"));
}

/// Validates the status of a VolumeAttachment.
pub(crate) fn attachment_status(fields: &Fields, faults: &mut Faults) {
    let Some(status) = object(fields, "status") else {
        return;
    };
    let at = FieldPath::root("status");
    let facts = object(status, "attachmentMetadata").into_iter().flatten();
    if facts
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum::<usize>()
        > PARAMETER_BYTES
    {
        faults.too_long(&at.field("attachmentMetadata"), PARAMETER_BYTES);
    }
    for key in ["attachError", "detachError"] {
        if object(status, key).is_some_and(|error| text(error, "message").len() > MESSAGE) {
            faults.too_long(&at.field(key).field("message"), MESSAGE);
        }
    }
}

/// Sets defaults of a CSIDriver.
pub(crate) fn driver_defaults(fields: &mut Fields) {
    let Some(spec) = object_mut(fields, "spec") else {
        return;
    };
    default_to(spec, "attachRequired", true);
    for key in [
        "podInfoOnMount",
        "storageCapacity",
        "requiresRepublish",
        "seLinuxMount",
    ] {
        default_to(spec, key, false);
    }
    default_to(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    if items(spec, "volumeLifecycleModes").is_empty() {
        spec.insert("volumeLifecycleModes".to_owned(), json!(["Persistent"]));
    }
}

/// Validates a CSIDriver.
pub(crate) fn driver(fields: &Fields, faults: &mut Faults) {
    let root = FieldPath::root("metadata");
    driver_name(get(metadata(fields), "name"), &root.field("name"), faults);
    let spec = spec(fields);
    let at = FieldPath::root("spec");
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    faults.one_of(
        &at.field("fsGroupPolicy"),
        get(spec, "fsGroupPolicy"),
        &policies,
    );
    for mode in items(spec, "volumeLifecycleModes") {
        faults.one_of(
            &at.field("volumeLifecycleModes"),
            mode,
            &["Ephemeral", "Persistent"],
        );
    }
    let period = get(spec, "nodeAllocatableUpdatePeriodSeconds");
    if period.as_i64().is_some_and(|period| period < PERIOD) {
        let place = at.field("nodeAllocatableUpdatePeriodSeconds");
        faults.invalid(
            &place,
            period,
            format!("must be greater than or equal to {PERIOD} seconds"),
        );
    }
    let place = at.field("tokenRequests");
    let mut audiences = HashSet::new();
    for (number, request) in items(spec, "tokenRequests").iter().enumerate() {
        let (at, Some(request)) = (place.index(number), request.as_object()) else {
            continue;
        };
        if !audiences.insert(text(request, "audience")) {
            faults.duplicate(&at.field("audience"), get(request, "audience"));
        }
        let seconds = get(request, "expirationSeconds");
        let place = at.field("expirationSeconds");
        match seconds.as_i64() {
            Some(..600) => faults.invalid(
                &place,
                seconds,
                "may not specify a duration less than 10 minutes",
            ),
            Some(4_294_967_297..) => {
                faults.invalid(
                    &place,
                    seconds,
                    "may not specify a duration larger than 2^32 seconds",
                );
            }
            Some(_) | None => {}
        }
    }
}

/// Whether the driver attaches volumes and the lifecycle modes are immutable: existing volumes
/// depend on them.
pub(crate) fn driver_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("spec");
    // Upstream's spelling of the first path.
    for (key, place) in [
        ("attachRequired", "attachedRequired"),
        ("volumeLifecycleModes", "volumeLifecycleModes"),
    ] {
        faults.immutable(&at.field(place), get(spec(new), key), get(spec(old), key));
    }
}

/// Validates the drivers of a CSINode.
pub(crate) fn node(fields: &Fields, faults: &mut Faults) {
    let root = FieldPath::root("spec");
    limits::at_most(spec(fields), "drivers", limits::DRIVERS, &root, faults);
    let at = root.field("drivers");
    let mut known = HashSet::new();
    for (number, driver) in items(spec(fields), "drivers").iter().enumerate() {
        let (at, Some(driver)) = (at.index(number), driver.as_object()) else {
            continue;
        };
        driver_name(get(driver, "name"), &at.field("name"), faults);
        let id = text(driver, "nodeID");
        if id.is_empty() {
            faults.required(&at.field("nodeID"), "");
        } else if id.len() > NODE_ID {
            let text = format!("must be {NODE_ID} characters or less");
            faults.invalid(&at.field("nodeID"), get(driver, "nodeID"), text);
        }
        let count = object(driver, "allocatable").map_or(&Value::Null, |room| get(room, "count"));
        if count.as_i64().is_some_and(|count| count < 0) {
            faults.invalid(
                &at.field("allocatable").field("count"),
                count,
                "must be greater than or equal to 0",
            );
        }
        if !known.insert(text(driver, "name")) {
            faults.duplicate(&at.field("name"), get(driver, "name"));
        }
        let place = at.field("topologyKeys");
        let mut keys = HashSet::new();
        for key in items(driver, "topologyKeys") {
            let own = key.as_str().unwrap_or_default();
            if own.is_empty() {
                faults.required(&place, "");
            } else if let Err(fault) = names::qualified(own) {
                faults.invalid(&place, key, fault);
            }
            if !keys.insert(own) {
                faults.duplicate(&place, key);
            }
        }
    }
}

/// A driver of a node is added or removed as a whole; only its allocatable count may change.
pub(crate) fn node_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    let without_room = |driver: &Value| {
        let mut driver = driver.as_object().cloned().unwrap_or_default();
        driver.remove("allocatable");
        driver
    };
    let root = FieldPath::root("spec");
    let at = root.field("drivers");
    let mut known: HashMap<Option<&Value>, Fields> = HashMap::new();
    for before in items(spec(old), "drivers") {
        let driver = known.entry(before.get("name"));
        driver.or_insert_with(|| without_room(before));
    }
    for driver in items(spec(new), "drivers") {
        let before = known.get(&driver.get("name"));
        if before.is_some_and(|before| *before != without_room(driver)) {
            faults.invalid(&at, driver, "field is immutable");
        }
    }
}

/// Validates a CSIStorageCapacity.
pub(crate) fn capacity(fields: &Fields, faults: &mut Faults) {
    let at = FieldPath::root("storageClassName");
    if let Err(fault) = names::subdomain(text(fields, "storageClassName")) {
        faults.invalid(&at, get(fields, "storageClassName"), fault);
    }
    for key in ["capacity", "maximumVolumeSize"] {
        let value = get(fields, key);
        if value
            .as_str()
            .and_then(Quantity::parse)
            .is_some_and(Quantity::is_negative)
        {
            faults.invalid(
                &FieldPath::root(key),
                value,
                "must be greater than or equal to 0",
            );
        }
    }
    labels::selector(
        object(fields, "nodeTopology"),
        &FieldPath::root("nodeTopology"),
        faults,
    );
}

/// The capacity may change; topology and class are immutable.
pub(crate) fn capacity_update(new: &Fields, old: &Fields, faults: &mut Faults) {
    for key in ["nodeTopology", "storageClassName"] {
        faults.immutable(&FieldPath::root(key), get(new, key), get(old, key));
    }
}
