//! Reviews: questions to authentication and authorization, which are created only and never stored.

use crate::registry::{Kind, Review};
use config_kube::k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenReview};
use config_kube::k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};
use config_kube::k8s_openapi::api::core::v1::Binding;

pub(super) fn self_subject() -> Kind {
    Kind { review: Some(Review::SelfSubject), ..Kind::of::<SelfSubjectReview>(false) }
}

pub(super) fn token() -> Kind {
    Kind { review: Some(Review::Token), ..Kind::of::<TokenReview>(false) }
}

pub(super) fn local_subject_access() -> Kind {
    Kind { review: Some(Review::LocalSubjectAccess), ..Kind::of::<LocalSubjectAccessReview>(true) }
}

pub(super) fn self_subject_access() -> Kind {
    Kind { review: Some(Review::SelfSubjectAccess), ..Kind::of::<SelfSubjectAccessReview>(false) }
}

pub(super) fn self_subject_rules() -> Kind {
    Kind { review: Some(Review::SelfSubjectRules), ..Kind::of::<SelfSubjectRulesReview>(false) }
}

pub(super) fn subject_access() -> Kind {
    Kind { review: Some(Review::SubjectAccess), ..Kind::of::<SubjectAccessReview>(false) }
}

/// The older way to bind a pod.
pub(super) fn binding() -> Kind {
    Kind { review: Some(Review::Binding), ..Kind::of::<Binding>(true) }
}
