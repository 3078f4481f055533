//! The table of merge facts, for every definition that a served kind uses.

use Fact::{
    AtomicMap, Default, Granular, Keyed, KeyedBy, Mapped, Merged, MergedSet, Replaced, RetainKeys,
    Retained, Set, Struct,
};

/// One fact about a field. Without a fact, a list is atomic, and an object or map is granular.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fact {
    /// Items are objects with this key, merged by patch and apply.
    Keyed(&'static str),
    /// Patch merges by one key, apply by several.
    KeyedBy(&'static str, &'static [&'static str]),
    /// Patch merges by a key; apply treats it as atomic.
    Merged(&'static str),
    /// Apply merges by these keys; patch replaces it.
    Mapped(&'static [&'static str]),
    /// As [`Fact::Keyed`], and clients send `$retainKeys` in items.
    Retained(&'static str),
    /// Simple values, each at most once, for patch and apply.
    MergedSet,
    /// Simple values, each at most once for apply; patch replaces the list.
    Set,
    /// A map or object that is owned as a whole.
    AtomicMap,
    /// An object that is granular although its definition is atomic.
    Granular,
    /// An object with which clients send `$retainKeys`.
    RetainKeys,
    /// An object that patch replaces.
    Replaced,
    /// An object that is always present, possibly empty (upstream has it by value, not by pointer).
    Struct,
    /// The value of an absent field.
    Default(&'static str),
}

/// Definition and its fields with their facts, sorted by definition.
pub(super) const FACTS: &[(&str, &[(&str, Fact)])] = &[
    (
        "admissionregistration.v1.MutatingAdmissionPolicySpec",
        &[("matchConditions", Keyed("name"))],
    ),
    (
        "admissionregistration.v1.MutatingWebhook",
        &[("clientConfig", Struct), ("matchConditions", Keyed("name"))],
    ),
    (
        "admissionregistration.v1.MutatingWebhookConfiguration",
        &[("webhooks", Keyed("name"))],
    ),
    (
        "admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec",
        &[("validationActions", Set)],
    ),
    (
        "admissionregistration.v1.ValidatingAdmissionPolicySpec",
        &[
            ("matchConditions", Keyed("name")),
            ("variables", Keyed("name")),
        ],
    ),
    (
        "admissionregistration.v1.ValidatingAdmissionPolicyStatus",
        &[("conditions", Mapped(&["type"]))],
    ),
    (
        "admissionregistration.v1.ValidatingWebhook",
        &[("clientConfig", Struct), ("matchConditions", Keyed("name"))],
    ),
    (
        "admissionregistration.v1.ValidatingWebhookConfiguration",
        &[("webhooks", Keyed("name"))],
    ),
    (
        "apiextensions.v1.CustomResourceDefinitionSpec",
        &[("names", Struct)],
    ),
    (
        "apiextensions.v1.CustomResourceDefinitionStatus",
        &[("acceptedNames", Struct), ("conditions", Mapped(&["type"]))],
    ),
    (
        "apiregistration.v1.APIServiceStatus",
        &[("conditions", Keyed("type"))],
    ),
    (
        "apps.v1.DaemonSetSpec",
        &[("template", Struct), ("updateStrategy", Struct)],
    ),
    ("apps.v1.DaemonSetStatus", &[("conditions", Keyed("type"))]),
    (
        "apps.v1.DeploymentSpec",
        &[
            ("strategy", RetainKeys),
            ("strategy", Struct),
            ("template", Struct),
        ],
    ),
    ("apps.v1.DeploymentStatus", &[("conditions", Keyed("type"))]),
    ("apps.v1.ReplicaSetSpec", &[("template", Struct)]),
    ("apps.v1.ReplicaSetStatus", &[("conditions", Keyed("type"))]),
    (
        "apps.v1.StatefulSetSpec",
        &[("template", Struct), ("updateStrategy", Struct)],
    ),
    (
        "apps.v1.StatefulSetStatus",
        &[("conditions", Keyed("type"))],
    ),
    (
        "autoscaling.v1.HorizontalPodAutoscalerSpec",
        &[("scaleTargetRef", Struct)],
    ),
    (
        "autoscaling.v2.ContainerResourceMetricSource",
        &[("target", Struct)],
    ),
    (
        "autoscaling.v2.ContainerResourceMetricStatus",
        &[("current", Struct)],
    ),
    (
        "autoscaling.v2.ExternalMetricSource",
        &[("metric", Struct), ("target", Struct)],
    ),
    (
        "autoscaling.v2.ExternalMetricStatus",
        &[("current", Struct), ("metric", Struct)],
    ),
    (
        "autoscaling.v2.HorizontalPodAutoscalerSpec",
        &[("scaleTargetRef", Struct)],
    ),
    (
        "autoscaling.v2.HorizontalPodAutoscalerStatus",
        &[("conditions", Keyed("type"))],
    ),
    (
        "autoscaling.v2.ObjectMetricSource",
        &[
            ("describedObject", Struct),
            ("metric", Struct),
            ("target", Struct),
        ],
    ),
    (
        "autoscaling.v2.ObjectMetricStatus",
        &[
            ("current", Struct),
            ("describedObject", Struct),
            ("metric", Struct),
        ],
    ),
    (
        "autoscaling.v2.PodsMetricSource",
        &[("metric", Struct), ("target", Struct)],
    ),
    (
        "autoscaling.v2.PodsMetricStatus",
        &[("current", Struct), ("metric", Struct)],
    ),
    ("autoscaling.v2.ResourceMetricSource", &[("target", Struct)]),
    (
        "autoscaling.v2.ResourceMetricStatus",
        &[("current", Struct)],
    ),
    ("batch.v1.CronJobSpec", &[("jobTemplate", Struct)]),
    ("batch.v1.JobSpec", &[("template", Struct)]),
    ("batch.v1.JobStatus", &[("conditions", Merged("type"))]),
    (
        "batch.v1.JobTemplateSpec",
        &[("metadata", Struct), ("spec", Struct)],
    ),
    (
        "batch.v1.PodFailurePolicyOnExitCodesRequirement",
        &[("values", Set)],
    ),
    (
        "batch.v1.UncountedTerminatedPods",
        &[("failed", Set), ("succeeded", Set)],
    ),
    (
        "certificates.v1.CertificateSigningRequestStatus",
        &[("conditions", Mapped(&["type"]))],
    ),
    ("core.v1.ComponentStatus", &[("conditions", Keyed("type"))]),
    (
        "core.v1.Container",
        &[
            ("env", Keyed("name")),
            (
                "ports",
                KeyedBy("containerPort", &["containerPort", "protocol"]),
            ),
            ("resources", Struct),
            ("volumeDevices", Keyed("devicePath")),
            ("volumeMounts", Keyed("mountPath")),
        ],
    ),
    ("core.v1.ContainerPort", &[("protocol", Default("TCP"))]),
    (
        "core.v1.ContainerRestartRuleOnExitCodes",
        &[("values", Set)],
    ),
    (
        "core.v1.ContainerStatus",
        &[
            ("allocatedResourcesStatus", Keyed("name")),
            ("lastState", Struct),
            ("state", Struct),
            ("volumeMounts", Keyed("mountPath")),
        ],
    ),
    (
        "core.v1.EphemeralContainer",
        &[
            ("env", Keyed("name")),
            (
                "ports",
                KeyedBy("containerPort", &["containerPort", "protocol"]),
            ),
            ("resources", Struct),
            ("volumeDevices", Keyed("devicePath")),
            ("volumeMounts", Keyed("mountPath")),
        ],
    ),
    (
        "core.v1.Event",
        &[("involvedObject", Struct), ("source", Struct)],
    ),
    ("core.v1.LocalObjectReference", &[("name", Default(""))]),
    ("core.v1.NamespaceStatus", &[("conditions", Keyed("type"))]),
    (
        "core.v1.NodeAllocatableResourceClaimStatus",
        &[("containers", Set)],
    ),
    (
        "core.v1.NodeDaemonEndpoints",
        &[("kubeletEndpoint", Struct)],
    ),
    ("core.v1.NodeSpec", &[("podCIDRs", MergedSet)]),
    (
        "core.v1.NodeStatus",
        &[
            ("addresses", Keyed("type")),
            ("conditions", Keyed("type")),
            ("daemonEndpoints", Struct),
            ("nodeInfo", Struct),
        ],
    ),
    (
        "core.v1.PersistentVolumeClaimSpec",
        &[("resources", Struct)],
    ),
    (
        "core.v1.PersistentVolumeClaimStatus",
        &[
            ("allocatedResourceStatuses", Granular),
            ("conditions", Keyed("type")),
        ],
    ),
    (
        "core.v1.PersistentVolumeClaimTemplate",
        &[("metadata", Struct), ("spec", Struct)],
    ),
    ("core.v1.PersistentVolumeSpec", &[("claimRef", Granular)]),
    (
        "core.v1.PodSpec",
        &[
            ("containers", Keyed("name")),
            ("ephemeralContainers", Keyed("name")),
            ("hostAliases", Keyed("ip")),
            ("imagePullSecrets", Keyed("name")),
            ("initContainers", Keyed("name")),
            ("nodeSelector", AtomicMap),
            ("resourceClaims", Retained("name")),
            ("schedulingGates", Keyed("name")),
            (
                "topologySpreadConstraints",
                KeyedBy("topologyKey", &["topologyKey", "whenUnsatisfiable"]),
            ),
            ("volumes", Retained("name")),
        ],
    ),
    (
        "core.v1.PodStatus",
        &[
            ("conditions", Keyed("type")),
            ("hostIPs", Merged("ip")),
            ("podIPs", Keyed("ip")),
            ("resourceClaimStatuses", Retained("name")),
        ],
    ),
    ("core.v1.PodTemplate", &[("template", Struct)]),
    (
        "core.v1.PodTemplateSpec",
        &[("metadata", Struct), ("spec", Struct)],
    ),
    ("core.v1.PreferredSchedulingTerm", &[("preference", Struct)]),
    (
        "core.v1.ReplicationControllerSpec",
        &[("selector", AtomicMap)],
    ),
    (
        "core.v1.ReplicationControllerStatus",
        &[("conditions", Keyed("type"))],
    ),
    (
        "core.v1.ResourceRequirements",
        &[("claims", Mapped(&["name"]))],
    ),
    (
        "core.v1.ResourceStatus",
        &[("resources", Mapped(&["resourceID"]))],
    ),
    ("core.v1.ServiceAccount", &[("secrets", Keyed("name"))]),
    ("core.v1.ServicePort", &[("protocol", Default("TCP"))]),
    (
        "core.v1.ServiceSpec",
        &[
            ("ports", KeyedBy("port", &["port", "protocol"])),
            ("selector", AtomicMap),
        ],
    ),
    (
        "core.v1.ServiceStatus",
        &[("conditions", Keyed("type")), ("loadBalancer", Struct)],
    ),
    (
        "core.v1.WeightedPodAffinityTerm",
        &[("podAffinityTerm", Struct)],
    ),
    (
        "discovery.v1.Endpoint",
        &[("addresses", Set), ("conditions", Struct)],
    ),
    (
        "events.v1.Event",
        &[("deprecatedSource", Struct), ("regarding", Struct)],
    ),
    (
        "flowcontrol.v1.FlowSchemaSpec",
        &[("priorityLevelConfiguration", Struct)],
    ),
    (
        "flowcontrol.v1.FlowSchemaStatus",
        &[("conditions", Keyed("type"))],
    ),
    (
        "flowcontrol.v1.LimitedPriorityLevelConfiguration",
        &[("limitResponse", Struct)],
    ),
    (
        "flowcontrol.v1.NonResourcePolicyRule",
        &[("nonResourceURLs", Set), ("verbs", Set)],
    ),
    (
        "flowcontrol.v1.PriorityLevelConfigurationStatus",
        &[("conditions", Keyed("type"))],
    ),
    (
        "flowcontrol.v1.ResourcePolicyRule",
        &[
            ("apiGroups", Set),
            ("namespaces", Set),
            ("resources", Set),
            ("verbs", Set),
        ],
    ),
    (
        "meta.v1.ObjectMeta",
        &[("finalizers", MergedSet), ("ownerReferences", Keyed("uid"))],
    ),
    ("networking.v1.HTTPIngressPath", &[("backend", Struct)]),
    ("networking.v1.IngressServiceBackend", &[("port", Struct)]),
    ("networking.v1.IngressStatus", &[("loadBalancer", Struct)]),
    (
        "networking.v1.NetworkPolicySpec",
        &[("podSelector", Struct)],
    ),
    (
        "networking.v1.ServiceCIDRStatus",
        &[("conditions", Keyed("type"))],
    ),
    ("node.v1.Scheduling", &[("nodeSelector", AtomicMap)]),
    (
        "policy.v1.PodDisruptionBudgetSpec",
        &[("selector", Replaced)],
    ),
    (
        "policy.v1.PodDisruptionBudgetStatus",
        &[("conditions", Keyed("type"))],
    ),
    ("rbac.v1.ClusterRoleBinding", &[("roleRef", Struct)]),
    ("rbac.v1.RoleBinding", &[("roleRef", Struct)]),
    (
        "resource.v1.AllocatedDeviceStatus",
        &[("conditions", Mapped(&["type"]))],
    ),
    ("resource.v1.AllocationResult", &[("devices", Struct)]),
    ("resource.v1.ResourceClaimSpec", &[("devices", Struct)]),
    (
        "resource.v1.ResourceClaimStatus",
        &[
            ("devices", Mapped(&["driver", "device", "pool", "shareID"])),
            ("reservedFor", Keyed("uid")),
        ],
    ),
    (
        "resource.v1.ResourceClaimTemplateSpec",
        &[("metadata", Struct), ("spec", Struct)],
    ),
    ("resource.v1.ResourceSliceSpec", &[("pool", Struct)]),
    ("storage.v1.CSIDriverSpec", &[("volumeLifecycleModes", Set)]),
    ("storage.v1.CSINodeSpec", &[("drivers", Keyed("name"))]),
    ("storage.v1.VolumeAttachmentSpec", &[("source", Struct)]),
];

/// Definitions of atomic objects, sorted.
pub(super) const ATOMIC: &[&str] = &[
    "admissionregistration.v1.MatchResources",
    "admissionregistration.v1.NamedRuleWithOperations",
    "admissionregistration.v1.ParamKind",
    "admissionregistration.v1.ParamRef",
    "admissionregistration.v1.Variable",
    "autoscaling.v1.CrossVersionObjectReference",
    "core.v1.ConfigMapKeySelector",
    "core.v1.EndpointAddress",
    "core.v1.EndpointPort",
    "core.v1.FileKeySelector",
    "core.v1.LocalObjectReference",
    "core.v1.NodeSelector",
    "core.v1.NodeSelectorTerm",
    "core.v1.ObjectFieldSelector",
    "core.v1.ObjectReference",
    "core.v1.ResourceFieldSelector",
    "core.v1.ScopeSelector",
    "core.v1.SecretKeySelector",
    "core.v1.SecretReference",
    "core.v1.TopologySelectorTerm",
    "core.v1.TypedLocalObjectReference",
    "discovery.v1.EndpointPort",
    "meta.v1.LabelSelector",
    "meta.v1.OwnerReference",
    "networking.v1.ServiceBackendPort",
    "rbac.v1.RoleRef",
    "rbac.v1.Subject",
];
