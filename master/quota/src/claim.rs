//! Quota usage of a volume claim: its number and size, in total and per storage class.

use master_schema::quantity::{Quantities, Quantity};
use master_schema::validate::{Fields, get, object, text};

const CLAIMS: &str = "persistentvolumeclaims";
const STORAGE: &str = "requests.storage";
const OF_CLASS: &str = ".storageclass.storage.k8s.io/";

pub(crate) fn tracks(resource: &str) -> bool {
    let of_class = |name: &str| name == STORAGE || name == CLAIMS;
    of_class(resource)
        || resource
            .split_once(OF_CLASS)
            .is_some_and(|(_, name)| of_class(name))
}

pub(crate) fn usage(fields: &Fields) -> Quantities {
    let mut used = Quantities::default();
    used.set(CLAIMS, Quantity::count(1));
    let class = class(fields);
    if !class.is_empty() {
        used.set(format!("{class}{OF_CLASS}{CLAIMS}"), Quantity::count(1));
    }
    if let Some(size) = size(fields) {
        used.set(STORAGE, size);
        if !class.is_empty() {
            used.set(format!("{class}{OF_CLASS}{STORAGE}"), size);
        }
    }
    used
}

/// The storage class, from the field or the deprecated annotation.
fn class(fields: &Fields) -> &str {
    let annotations = object(master_schema::object::metadata(fields), "annotations");
    let old = annotations.map_or("", |annotations| {
        text(annotations, "volume.beta.kubernetes.io/storage-class")
    });
    if old.is_empty() {
        object(fields, "spec").map_or("", |spec| text(spec, "storageClassName"))
    } else {
        old
    }
}

/// The requested size, or the allocated size if that is larger.
fn size(fields: &Fields) -> Option<Quantity> {
    let requests = object(fields, "spec").and_then(|spec| object(spec, "resources"));
    let requests = requests.and_then(|resources| object(resources, "requests"));
    let given = object(fields, "status").and_then(|status| object(status, "allocatedResources"));
    let storage =
        |list: Option<&Fields>| list.and_then(|list| Quantity::read(get(list, "storage")));
    storage(requests).max(storage(given))
}
