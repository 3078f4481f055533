//! Kinds that are answered and never stored: reviews, which question authentication and
//! authorization, bindings, and the status of components.

use config_kube::k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenReview};
use config_kube::k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};
use config_kube::k8s_openapi::api::core::v1::{Binding, ComponentStatus};
use master_schema::registry::{Kind, Review, column, words};
use master_schema::validate::{Fields, items, text};
use serde_json::Value;

pub(super) fn self_subject() -> Kind {
    Kind {
        review: Some(Review::SelfSubject),
        ..Kind::of::<SelfSubjectReview>(false)
    }
}

pub(super) fn token() -> Kind {
    Kind {
        review: Some(Review::Token),
        ..Kind::of::<TokenReview>(false)
    }
}

pub(super) fn local_subject_access() -> Kind {
    Kind {
        review: Some(Review::LocalSubjectAccess),
        ..Kind::of::<LocalSubjectAccessReview>(true)
    }
}

pub(super) fn self_subject_access() -> Kind {
    Kind {
        review: Some(Review::SelfSubjectAccess),
        ..Kind::of::<SelfSubjectAccessReview>(false)
    }
}

pub(super) fn self_subject_rules() -> Kind {
    Kind {
        review: Some(Review::SelfSubjectRules),
        ..Kind::of::<SelfSubjectRulesReview>(false)
    }
}

pub(super) fn subject_access() -> Kind {
    Kind {
        review: Some(Review::SubjectAccess),
        ..Kind::of::<SubjectAccessReview>(false)
    }
}

/// The deprecated kind that binds a pod.
pub(super) fn binding() -> Kind {
    Kind {
        review: Some(Review::Binding),
        ..Kind::of::<Binding>(true)
    }
}

/// The status of the cluster's components.
pub(super) fn component() -> Kind {
    Kind {
        short_names: words(&["cs"]),
        columns: vec![
            column("Status", |fields, _| {
                match healthy(fields).map(|condition| text(condition, "status")) {
                    Some("True") => "Healthy".into(),
                    Some(_) => "Unhealthy".into(),
                    None => "Unknown".into(),
                }
            }),
            column("Message", |fields, _| {
                healthy(fields)
                    .map_or("", |condition| text(condition, "message"))
                    .into()
            }),
            column("Error", |fields, _| {
                healthy(fields)
                    .map_or("", |condition| text(condition, "error"))
                    .into()
            }),
        ],
        review: Some(Review::Components),
        deprecated: Some("v1 ComponentStatus is deprecated in v1.19+".into()),
        ..Kind::of::<ComponentStatus>(false)
    }
}

fn healthy(fields: &Fields) -> Option<&Fields> {
    let mut conditions = items(fields, "conditions")
        .iter()
        .filter_map(Value::as_object);
    conditions.find(|condition| text(condition, "type") == "Healthy")
}
