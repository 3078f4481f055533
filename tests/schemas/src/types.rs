//! The types whose definitions are served: every kind, and the other types of requests and answers.

use config_kube::k8s_openapi::api::{
    admissionregistration, apps, authentication, authorization, autoscaling, batch, certificates,
    coordination, core, discovery, events, flowcontrol, networking, node, policy, rbac, resource,
    scheduling, storage,
};
use config_kube::k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use config_kube::k8s_openapi::kube_aggregator::pkg::apis::apiregistration;
use config_kube::metrics::{NodeMetrics, PodMetrics};
use config_kube::{CertificatePolicy, ImageRelease, Machine, NodeAttestation};
use schemars::SchemaGenerator;

macro_rules! types {
    ($($kind:ty),* $(,)?) => {
        /// Registers all types with a generator.
        pub(crate) fn register(generator: &mut SchemaGenerator) {
            $( drop(generator.subschema_for::<$kind>()); )*
        }
    };
}

types!(
    admissionregistration::v1::MutatingAdmissionPolicy,
    admissionregistration::v1::MutatingAdmissionPolicyBinding,
    admissionregistration::v1::MutatingWebhookConfiguration,
    admissionregistration::v1::ValidatingWebhookConfiguration,
    admissionregistration::v1::ValidatingAdmissionPolicy,
    admissionregistration::v1::ValidatingAdmissionPolicyBinding,
    apiextensions::v1::CustomResourceDefinition,
    apiregistration::v1::APIService,
    apps::v1::ControllerRevision,
    apps::v1::DaemonSet,
    apps::v1::Deployment,
    apps::v1::ReplicaSet,
    apps::v1::StatefulSet,
    authentication::v1::SelfSubjectReview,
    authentication::v1::TokenRequest,
    authentication::v1::TokenReview,
    authorization::v1::LocalSubjectAccessReview,
    authorization::v1::SelfSubjectAccessReview,
    authorization::v1::SelfSubjectRulesReview,
    authorization::v1::SubjectAccessReview,
    autoscaling::v1::HorizontalPodAutoscaler,
    autoscaling::v1::Scale,
    autoscaling::v2::HorizontalPodAutoscaler,
    batch::v1::CronJob,
    batch::v1::Job,
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::Binding,
    core::v1::ComponentStatus,
    core::v1::ConfigMap,
    core::v1::Endpoints,
    core::v1::Event,
    core::v1::LimitRange,
    core::v1::Namespace,
    core::v1::Node,
    core::v1::PersistentVolume,
    core::v1::PersistentVolumeClaim,
    core::v1::Pod,
    core::v1::PodTemplate,
    core::v1::ReplicationController,
    core::v1::ResourceQuota,
    core::v1::Secret,
    core::v1::Service,
    core::v1::ServiceAccount,
    discovery::v1::EndpointSlice,
    events::v1::Event,
    flowcontrol::v1::FlowSchema,
    flowcontrol::v1::PriorityLevelConfiguration,
    networking::v1::Ingress,
    networking::v1::IngressClass,
    networking::v1::IPAddress,
    networking::v1::NetworkPolicy,
    networking::v1::ServiceCIDR,
    node::v1::RuntimeClass,
    policy::v1::Eviction,
    policy::v1::PodDisruptionBudget,
    rbac::v1::ClusterRole,
    rbac::v1::ClusterRoleBinding,
    rbac::v1::Role,
    rbac::v1::RoleBinding,
    resource::v1::DeviceClass,
    resource::v1::ResourceClaim,
    resource::v1::ResourceClaimTemplate,
    resource::v1::ResourceSlice,
    scheduling::v1::PriorityClass,
    storage::v1::CSIDriver,
    storage::v1::CSINode,
    storage::v1::CSIStorageCapacity,
    storage::v1::StorageClass,
    storage::v1::VolumeAttachment,
    storage::v1::VolumeAttributesClass,
    meta::DeleteOptions,
    meta::ListMeta,
    meta::Patch,
    meta::Status,
    CertificatePolicy,
    ImageRelease,
    Machine,
    NodeAttestation,
    NodeMetrics,
    PodMetrics,
);
