//! Tables of faults: each case is a part of a spec, and the paths and reasons that upstream
//! reports.

#![allow(clippy::needless_pass_by_value, reason = "cases are written in place")]

use super::*;
use proptest::prelude::*;
use serde_json::json;

/// Faults of a spec after defaulting, as `path reason`.
fn faults_of(spec: Value, place: SpecOwner<'_>) -> Vec<String> {
    let mut spec = spec.as_object().cloned().unwrap();
    pod_defaults(&mut spec);
    let mut faults = Faults::default();
    validate(&spec, place, &FieldPath::root("spec"), &mut faults);
    faults
        .found()
        .map(|(field, reason, _)| format!("{field} {}", reason.trim_start_matches("FieldValue")))
        .collect()
}

fn of_pod(spec: Value) -> Vec<String> {
    faults_of(
        spec,
        SpecOwner {
            pod: true,
            name: "p",
        },
    )
}

/// A spec of one container with more fields.
fn with(more: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().cloned().unwrap());
    spec
}

/// A spec of one container that has more fields.
fn container(more: Value) -> Value {
    let mut container = json!({"name": "c", "image": "i"});
    container
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().cloned().unwrap());
    json!({"containers": [container], "volumes": [
        {"name": "v", "emptyDir": {}}, {"name": "pvc", "persistentVolumeClaim": {"claimName": "x"}},
    ]})
}

fn check(cases: Vec<(Value, &[&str])>) {
    for (spec, expected) in cases {
        let shown = spec.to_string();
        assert_eq!(of_pod(spec), expected, "{shown}");
    }
}

#[test]
fn a_valid_spec_has_no_faults() {
    check(vec![
        (with(json!({})), &[]),
        (
            with(json!({"nodeSelector": {"a/b": "c"}, "hostname": "h", "os": {"name": "linux"}})),
            &[],
        ),
        (
            container(
                json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}}]}),
            ),
            &[],
        ),
        (
            container(json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]})),
            &[],
        ),
        (
            container(json!({"volumeDevices": [{"name": "pvc", "devicePath": "/dev/x"}]})),
            &[],
        ),
    ]);
}

#[test]
fn faults_of_the_spec_itself() {
    let case = |more: Value, expected: &'static [&'static str]| (with(more), expected);
    check(vec![
        (json!({"containers": []}), &["spec.containers Required"]),
        case(
            json!({"restartPolicy": "Sometimes", "dnsPolicy": "x"}),
            &[
                "spec.restartPolicy NotSupported",
                "spec.dnsPolicy NotSupported",
            ],
        ),
        case(json!({"dnsPolicy": "None"}), &["spec.dnsConfig Required"]),
        case(
            json!({"dnsPolicy": "None", "dnsConfig": {}}),
            &["spec.dnsConfig.nameservers Required"],
        ),
        case(
            json!({"dnsConfig": {"nameservers": ["a", "1.1.1.1", "1.1.1.2", "1.1.1.3"], "searches": ["A", "ok.", "."], "options": [{"value": "1"}]}}),
            &[
                "spec.dnsConfig.nameservers Invalid",
                "spec.dnsConfig.nameservers[0] Invalid",
                "spec.dnsConfig.searches[0] Invalid",
                "spec.dnsConfig.options[0] Required",
            ],
        ),
        case(
            json!({"activeDeadlineSeconds": 0, "nodeName": "A", "priorityClassName": "_", "runtimeClassName": ""}),
            &[
                "spec.nodeName Invalid",
                "spec.activeDeadlineSeconds Invalid",
                "spec.priorityClassName Invalid",
                "spec.runtimeClassName Invalid",
            ],
        ),
        case(
            json!({"hostname": "a.b", "subdomain": "_"}),
            &["spec.hostname Invalid", "spec.subdomain Invalid"],
        ),
        case(
            json!({"hostAliases": [{"ip": "x", "hostnames": ["-"]}]}),
            &[
                "spec.hostAliases[0].ip Invalid",
                "spec.hostAliases[0].hostnames[0] Invalid",
            ],
        ),
    ]);
}

#[test]
fn faults_of_gates_shared_namespaces_and_systems() {
    let case = |more: Value, expected: &'static [&'static str]| (with(more), expected);
    check(vec![
        case(
            json!({"readinessGates": [{"conditionType": "-"}], "schedulingGates": [{"name": "a"}, {"name": "a"}]}),
            &[
                "spec.readinessGates[0].conditionType Invalid",
                "spec.schedulingGates[1] Duplicate",
            ],
        ),
        case(
            json!({"hostPID": true, "shareProcessNamespace": true}),
            &["spec.securityContext.shareProcessNamespace Invalid"],
        ),
        case(
            json!({"hostUsers": false, "hostNetwork": true, "hostPID": true}),
            &["spec.hostNetwork Forbidden", "spec.HostPID Forbidden"],
        ),
        case(
            json!({"os": {"name": "windows"}, "securityContext": {"runAsUser": 1}}),
            &["spec.securityContext.runAsUser Forbidden"],
        ),
        case(json!({"os": {"name": "plan9"}}), &["spec.os NotSupported"]),
        case(
            json!({"preemptionPolicy": "x", "overhead": {"cpu": "-1"}}),
            &[
                "spec.preemptionPolicy NotSupported",
                "spec.overhead.limits[cpu] Invalid",
            ],
        ),
    ]);
}

#[test]
fn faults_of_containers() {
    check(vec![
        (
            json!({"containers": [{"name": "A"}]}),
            &[
                "spec.containers[0].name Invalid",
                "spec.containers[0].image Required",
            ],
        ),
        (
            json!({"containers": [{"image": " i "}]}),
            &[
                "spec.containers[0].name Required",
                "spec.containers[0].image Invalid",
            ],
        ),
        (
            json!({"containers": [{"name": "a", "image": "i"}, {"name": "a", "image": "i"}], "initContainers": [{"name": "a", "image": "i"}]}),
            &[
                "spec.containers[1].name Duplicate",
                "spec.initContainers[0].name Duplicate",
            ],
        ),
        (
            container(json!({"imagePullPolicy": "x", "terminationMessagePolicy": "y"})),
            &[
                "spec.containers[0].terminationMessagePolicy NotSupported",
                "spec.containers[0].imagePullPolicy NotSupported",
            ],
        ),
        (
            container(json!({"ports": [
                {"name": "80", "containerPort": 0}, {"name": "a", "containerPort": 70000, "protocol": "x"},
                {"name": "a", "containerPort": 1, "hostPort": 1}, {"containerPort": 2, "hostPort": 1},
            ]})),
            &[
                "spec.containers[0].ports[0].name Invalid",
                "spec.containers[0].ports[0].containerPort Required",
                "spec.containers[0].ports[1].containerPort Invalid",
                "spec.containers[0].ports[1].protocol NotSupported",
                "spec.containers[0].ports[2].name Duplicate",
                "spec.containers[0].ports[3].hostPort Duplicate",
            ],
        ),
        (
            container(json!({"env": [
                {"name": ""}, {"name": "a=b"}, {"name": "a", "valueFrom": {}},
                {"name": "b", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "c", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}},
                {"name": "d", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}},
                {"name": "e", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}}},
            ]})),
            &[
                "spec.containers[0].env[0].name Required",
                "spec.containers[0].env[1].name Invalid",
                "spec.containers[0].env[2].valueFrom Invalid",
                "spec.containers[0].env[3].valueFrom Invalid",
                "spec.containers[0].env[4].valueFrom.fieldRef.fieldPath Invalid",
                "spec.containers[0].env[5].valueFrom.fieldRef.fieldPath NotSupported",
                "spec.containers[0].env[6].valueFrom.resourceFieldRef.divisor Invalid",
            ],
        ),
    ]);
}

#[test]
fn faults_of_mounts_and_restart_policies_are_reported() {
    check(vec![
        (
            container(json!({"envFrom": [{}, {"configMapRef": {"name": ""}}]})),
            &[
                "spec.containers[0].envFrom Invalid",
                "spec.containers[0].envFrom[1].configMapRef.name Required",
            ],
        ),
        (
            container(json!({"volumeMounts": [
                {"name": "x", "mountPath": "/a"}, {"name": "v", "mountPath": "/a", "subPath": "../b"}, {"name": "v"},
                {"name": "v", "mountPath": "/c", "mountPropagation": "Bidirectional", "recursiveReadOnly": "Enabled"},
            ]})),
            &[
                "spec.containers[0].volumeMounts[0].name NotFound",
                "spec.containers[0].volumeMounts[1].mountPath Invalid",
                "spec.containers[0].volumeMounts.subPath Invalid",
                "spec.containers[0].volumeMounts[2].mountPath Required",
                "spec.containers[0].volumeMounts.mountPropagation Forbidden",
                "spec.containers[0].volumeMounts.recursiveReadOnly Forbidden",
                "spec.containers[0].volumeMounts.recursiveReadOnly Forbidden",
            ],
        ),
        (
            container(json!({"volumeDevices": [{"name": "v", "devicePath": "a/../b"}]})),
            &[
                "spec.containers[0].volumeDevices[0].name Invalid",
                "spec.containers[0].volumeDevices[0].devicePath Invalid",
            ],
        ),
        (
            container(json!({"restartPolicyRules": [{"action": "x"}]})),
            &[
                "spec.containers[0].restartPolicy Required",
                "spec.containers[0].restartPolicyRules[0].action NotSupported",
                "spec.containers[0].restartPolicyRules[0].exitCodes Required",
            ],
        ),
    ]);
}

#[test]
fn faults_of_probes_and_hooks() {
    check(vec![
        (
            container(
                json!({"livenessProbe": {}, "readinessProbe": {"exec": {}, "terminationGracePeriodSeconds": 1}}),
            ),
            &[
                "spec.containers[0].livenessProbe Required",
                "spec.containers[0].readinessProbe.exec.command Required",
                "spec.containers[0].readinessProbe.terminationGracePeriodSeconds Invalid",
            ],
        ),
        (
            container(
                json!({"startupProbe": {"httpGet": {"port": 0}, "tcpSocket": {"port": 1}, "periodSeconds": -1, "successThreshold": 2}}),
            ),
            &[
                "spec.containers[0].startupProbe.httpGet.port Invalid",
                "spec.containers[0].startupProbe.tcpSocket Forbidden",
                "spec.containers[0].startupProbe.periodSeconds Invalid",
                "spec.containers[0].startupProbe.successThreshold Invalid",
            ],
        ),
        (
            container(
                json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}, "postStart": {}, "stopSignal": "SIGTERM"}}),
            ),
            &[
                "spec.containers[0].lifecycle.postStart Required",
                "spec.containers[0].lifecycle.preStop.sleep Invalid",
                "spec.containers[0].lifecycle.stopSignal Forbidden",
            ],
        ),
        (
            json!({"containers": [{"name": "c", "image": "i"}], "initContainers": [
                {"name": "i", "image": "i", "readinessProbe": {"exec": {"command": ["x"]}}},
                {"name": "s", "image": "i", "restartPolicy": "Always", "readinessProbe": {"exec": {"command": ["x"]}}},
            ]}),
            &["spec.initContainers[0].readinessProbe Forbidden"],
        ),
    ]);
}

#[test]
fn faults_of_resources() {
    check(vec![
        (
            container(
                json!({"resources": {"limits": {"cpu": "1", "foo": "1"}, "requests": {"cpu": "2", "example.com/gpu": "1", "foo": "1"}}}),
            ),
            &[
                "spec.containers[0].resources.limits[foo] Invalid",
                "spec.containers[0].resources.limits[foo] Invalid",
                "spec.containers[0].resources.requests Invalid",
                "spec.containers[0].resources.limits Required",
                "spec.containers[0].resources.requests[foo] Invalid",
                "spec.containers[0].resources.requests[foo] Invalid",
            ],
        ),
        (
            container(json!({"resources": {"limits": {"hugepages-2Mi": "3Mi"}}})),
            &[
                "spec.containers[0].resources.limits[hugepages-2Mi] Invalid",
                "spec.containers[0].resources.requests[hugepages-2Mi] Invalid",
                "spec.containers[0].resources Forbidden",
            ],
        ),
        (
            container(json!({"resources": {"claims": [{"name": "x"}]}})),
            &["spec.containers[0].resources.claims[0] NotFound"],
        ),
        (
            with(
                json!({"resourceClaims": [{"name": "a"}, {"name": "a", "resourceClaimName": "x"}]}),
            ),
            &[
                "spec.resourceClaims[0] Invalid",
                "spec.resourceClaims[1].name Duplicate",
            ],
        ),
        (
            with(json!({"resources": {"limits": {"ephemeral-storage": "1Gi"}}})),
            &[
                "spec.resources.limits[ephemeral-storage] NotSupported",
                "spec.resources.requests[ephemeral-storage] NotSupported",
            ],
        ),
    ]);
}

#[test]
fn faults_of_volumes() {
    let volume = |volume: Value, expected: &'static [&'static str]| {
        (with(json!({"volumes": [volume]})), expected)
    };
    check(vec![
        volume(
            json!({"name": "A", "emptyDir": {}}),
            &["spec.volumes[0].name Invalid"],
        ),
        volume(
            json!({"name": "a", "emptyDir": {}, "hostPath": {"path": "/"}}),
            &["spec.volumes[0].hostPath Forbidden"],
        ),
        volume(
            json!({"name": "a", "hostPath": {"path": "/a/../b", "type": "x"}}),
            &[
                "spec.volumes[0].hostPath.path Invalid",
                "spec.volumes[0].hostPath.type NotSupported",
            ],
        ),
        volume(
            json!({"name": "a", "configMap": {"defaultMode": 512, "items": [{"path": "../a", "mode": -1}]}}),
            &[
                "spec.volumes[0].configMap.name Required",
                "spec.volumes[0].configMap.defaultMode Invalid",
                "spec.volumes[0].configMap.items[0].key Required",
                "spec.volumes[0].configMap.items[0].path Invalid",
                "spec.volumes[0].configMap.items[0].mode Invalid",
            ],
        ),
        volume(
            json!({"name": "a", "gcePersistentDisk": {}}),
            &["spec.volumes[0].persistentDisk.pdName Required"],
        ),
        volume(
            json!({"name": "a", "iscsi": {"targetPortal": "p", "iqn": "iqn.x", "lun": 300}}),
            &[
                "spec.volumes[0].iscsi.iqn Invalid",
                "spec.volumes[0].iscsi.lun Invalid",
            ],
        ),
        volume(
            json!({"name": "a", "csi": {"driver": "-"}}),
            &["spec.volumes[0].csi.driver Invalid"],
        ),
    ]);
}

#[test]
fn faults_of_projected_ephemeral_and_image_volumes() {
    let volume = |volume: Value, expected: &'static [&'static str]| {
        (with(json!({"volumes": [volume]})), expected)
    };
    check(vec![
        volume(
            json!({"name": "a", "projected": {"sources": [
                {"serviceAccountToken": {"expirationSeconds": 1}, "secret": {"name": ""}},
                {"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "metadata.name"}}, {"path": "x"}]}},
            ]}}),
            &[
                "spec.volumes[0].projected.sources[0].secret.name Required",
                "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds Invalid",
                "spec.volumes[0].projected.path Required",
                "spec.volumes[0].projected.sources[0] Forbidden",
                "spec.volumes[0].projected.sources[1].downwardAPI Required",
                "spec.volumes[0].projected Invalid",
            ],
        ),
        volume(
            json!({"name": "a", "ephemeral": {"volumeClaimTemplate": {"metadata": {"name": "x"}, "spec": {}}}}),
            &[
                "spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.name Forbidden",
                "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.accessModes Required",
                "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources[storage] Required",
            ],
        ),
        volume(
            json!({"name": "a", "image": {}}),
            &["spec.volumes[0].image.reference Required"],
        ),
    ]);
}

#[test]
fn faults_of_placement() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    check(vec![
        (
            with(json!({"tolerations": [
                {"key": "a", "operator": "x"}, {"operator": "Equal"}, {"key": "a", "operator": "Exists", "value": "v"},
                {"key": "a", "tolerationSeconds": 1, "effect": "x"},
            ]})),
            &[
                "spec.tolerations[0].operator NotSupported",
                "spec.tolerations[1].operator Invalid",
                "spec.tolerations[2].operator Invalid",
                "spec.tolerations[3].effect Invalid",
                "spec.tolerations[3].effect NotSupported",
            ],
        ),
        (
            with(json!({"topologySpreadConstraints": [
                {"maxSkew": 0, "topologyKey": "k", "whenUnsatisfiable": "x", "minDomains": 0, "matchLabelKeys": ["a"]},
                {"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "x"},
            ]})),
            &[
                "spec.topologySpreadConstraints[0].maxSkew Invalid",
                "spec.topologySpreadConstraints[0].whenUnsatisfiable NotSupported",
                "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable} Duplicate",
                "spec.topologySpreadConstraints[0].minDomains Invalid",
                "spec.topologySpreadConstraints[0].minDomains Invalid",
                "spec.topologySpreadConstraints[0].matchLabelKeys Forbidden",
                "spec.topologySpreadConstraints[1].whenUnsatisfiable NotSupported",
            ],
        ),
        (
            with(json!({"affinity": {
                "nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]}, preferred: [{"weight": 0, "preference": {}}]},
                "podAffinity": {required: [{"topologyKey": ""}]},
            }})),
            &[
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values Required",
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight Invalid",
                "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey Required",
                "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey Invalid",
            ],
        ),
    ]);
}

#[test]
fn faults_of_security() {
    check(vec![
        (
            with(json!({"securityContext": {
                "runAsUser": -1, "supplementalGroups": [-1], "sysctls": [{"name": "A"}, {"name": "a.b"}, {"name": "a.b"}],
                "fsGroupChangePolicy": "x", "seccompProfile": {"type": "Localhost"}, "appArmorProfile": {},
            }})),
            &[
                "spec.securityContext.runAsUser Invalid",
                "spec.securityContext.supplementalGroups[0] Invalid",
                "spec.securityContext.sysctls[0].name Invalid",
                "spec.securityContext.sysctls[2].name Duplicate",
                "spec.securityContext.fsGroupChangePolicy NotSupported",
                "spec.securityContext.seccompProfile.localhostProfile Required",
                "spec.securityContext.appArmorProfile.type Required",
            ],
        ),
        (
            container(
                json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": false, "procMount": "Unmasked"}}),
            ),
            &[
                "spec.containers[0].securityContext.procMount Invalid",
                "spec.containers[0].securityContext Invalid",
            ],
        ),
    ]);
}

#[test]
fn a_template_may_leave_ports_and_images_to_its_pods() {
    let spec = json!({
        "hostNetwork": true, "restartPolicy": "Always", "dnsPolicy": "Default", "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "c", "image": " ", "imagePullPolicy": "Always", "terminationMessagePolicy": "File",
            "ports": [{"containerPort": 1, "protocol": "TCP"}]}],
    });
    let said = |place| {
        let mut faults = Faults::default();
        validate(
            spec.as_object().unwrap(),
            place,
            &FieldPath::root("spec"),
            &mut faults,
        );
        faults.found().count()
    };
    assert_eq!(said(SpecOwner::TEMPLATE), 0);
    assert_eq!(
        said(SpecOwner {
            pod: true,
            name: "p"
        }),
        2
    );
}

#[test]
fn quality_of_service_is_upstreams() {
    let class = |containers: Value| {
        quality_of_service(json!({"containers": containers}).as_object().unwrap())
    };
    let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}});
    assert_eq!(class(json!([{}])), "BestEffort");
    assert_eq!(class(json!([{"resources": full}])), "Guaranteed");
    assert_eq!(class(json!([{"resources": full}, {}])), "Burstable");
    assert_eq!(
        class(json!([{"resources": {"requests": {"cpu": "0"}}}])),
        "BestEffort"
    );
    assert_eq!(
        class(json!([{"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}])),
        "Burstable"
    );
}

/// Names of fields of specs.
const NAMES: &str = "
    name image containers initContainers ephemeralContainers volumes env valueFrom fieldRef fieldPath ports
    containerPort hostPort resources limits requests cpu memory hugepages-2Mi claims livenessProbe httpGet port
    exec command lifecycle preStop sleep securityContext sysctls affinity nodeAffinity podAffinity
    labelSelector matchLabels matchExpressions key operator values
    requiredDuringSchedulingIgnoredDuringExecution tolerations topologySpreadConstraints projected sources
    downwardAPI items secret configMap iscsi iqn csi ephemeral volumeClaimTemplate spec metadata labels
    annotations dnsConfig nameservers searches os windowsOptions runAsUserName hostAliases ip
    terminationGracePeriodSeconds restartPolicy restartPolicyRules exitCodes overhead volumeMounts mountPath
    subPath quobyte registry resourceClaims schedulingGates resizePolicy hostNetwork serviceAccountToken
";

/// JSON of any shape, with the names of fields of specs.
fn anything() -> impl Strategy<Value = Value> {
    let names = proptest::sample::select(NAMES.split_whitespace().collect::<Vec<_>>());
    let text = prop_oneof![
        Just("Always".to_owned()),
        Just("windows".to_owned()),
        Just("In".to_owned()),
        Just("1".to_owned()),
        Just("é:é".to_owned()),
        Just("-1Gi".to_owned()),
        Just("metadata.labels['é']".to_owned()),
        ".{0,8}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(names.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn nothing_makes_defaults_or_validation_panic_and_defaults_are_idempotent(
        value in proptest::collection::btree_map("[a-z]{1,3}|containers|volumes|affinity|resources", anything(), 0..5)
    ) {
        let mut spec: Fields = value.into_iter().collect();
        pod_defaults(&mut spec);
        let once = spec.clone();
        pod_defaults(&mut spec);
        prop_assert_eq!(&spec, &once);
        validate(&spec, SpecOwner { pod: true, name: "p" }, &FieldPath::root("spec"), &mut Faults::default());
        let whole = Map::from_iter([("spec".to_owned(), Value::Object(spec.clone())), ("metadata".to_owned(), Value::Object(once))]);
        template(&whole, &FieldPath::root("template"), &mut Faults::default());
        let _class = quality_of_service(&spec);
    }

    #[test]
    fn a_filled_in_spec_of_valid_parts_is_valid(
        names in proptest::collection::btree_set("[a-z]([a-z0-9-]{0,8}[a-z0-9])?", 1..4),
        port in 1..65536_i64, host_network: bool, cpu in 1..9_i64, probe in 0..3_usize, volume in 0..6_usize,
    ) {
        let probes = [json!({"httpGet": {"port": port}}), json!({"tcpSocket": {"port": "http"}}), json!({"exec": {"command": ["x"]}})];
        let volumes = [
            json!({}), json!({"hostPath": {"path": "/x"}}), json!({"secret": {"secretName": "s"}}),
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
            json!({"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}),
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}}),
        ];
        let mut volume = volumes[volume].clone();
        volume["name"] = json!("v");
        let containers: Vec<Value> = names.iter().map(|name| json!({
            "name": name, "image": "i", "livenessProbe": probes[probe], "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "resources": {"limits": {"cpu": cpu.to_string()}},
        })).collect();
        let spec = json!({"containers": containers, "volumes": [volume], "hostNetwork": host_network});
        prop_assert_eq!(of_pod(spec), Vec::<String>::new());
    }
}
