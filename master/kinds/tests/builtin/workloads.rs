//! Defaults, validation and warnings of workloads.

use crate::common::{changed, faults as created, kind, made, messages, short};
use master_schema::registry::Kind;
use master_schema::validate::Faults;
use serde_json::{Value, json};

fn template() -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// An object that selects its template, with further fields in its spec.
fn object(more: Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template()});
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().cloned().unwrap());
    json!({"metadata": {"name": "w", "namespace": "n", "uid": "u"}, "spec": spec})
}

/// A job, which generates its selector.
fn job(more: Value) -> Value {
    let mut job = object(more);
    let spec = job["spec"].as_object_mut().unwrap();
    spec.remove("selector");
    spec["template"]["spec"]["restartPolicy"] = json!("Never");
    job
}

fn updated(kind: &Kind, old: &Value, change: impl FnOnce(&mut Value)) -> Vec<String> {
    let old = made(kind, old);
    let mut new = Value::Object(old.clone());
    change(&mut new);
    let new = changed(kind, &new, &old);
    let mut faults = Faults::default();
    (kind.strategy.validate)(&new, &mut faults);
    (kind.strategy.validate_update)(&new, &old, &mut faults);
    messages(faults)
}

/// Every kind with a template, with a valid object of it.
fn all() -> Vec<(Kind, Value)> {
    let cron = json!({"metadata": {"name": "w", "namespace": "n"}, "spec": {
        "schedule": "* * * * *", "jobTemplate": {"spec": job(json!({}))["spec"]},
    }});
    let pod_template = json!({"metadata": {"name": "w"}, "template": template()});
    let controller = json!({"metadata": {"name": "w"}, "spec": {"template": template()}});
    vec![
        (kind("apps", "deployments"), object(json!({}))),
        (kind("apps", "replicasets"), object(json!({}))),
        (
            kind("apps", "statefulsets"),
            object(json!({"serviceName": "s"})),
        ),
        (kind("apps", "daemonsets"), object(json!({}))),
        (kind("batch", "jobs"), job(json!({}))),
        (kind("batch", "cronjobs"), cron),
        (kind("", "podtemplates"), pod_template),
        (kind("", "replicationcontrollers"), controller),
    ]
}

#[test]
fn defaulted_objects_are_valid_and_defaulting_is_idempotent() {
    for (kind, object) in all() {
        assert_eq!(
            created(&kind, &object),
            Vec::<String>::new(),
            "{}",
            kind.plural
        );
        let once = made(&kind, &object);
        let mut twice = once.clone();
        (kind.strategy.defaults)(&mut twice);
        assert_eq!(once, twice, "{}", kind.plural);
        assert_eq!(
            updated(&kind, &object, |_| ()),
            Vec::<String>::new(),
            "{}",
            kind.plural
        );
    }
}

#[test]
fn workloads_get_upstreams_defaults() {
    let cases: [(&str, &str, Value, &[(&str, Value)]); 6] = [
        (
            "apps",
            "deployments",
            object(json!({})),
            &[
                ("/spec/replicas", json!(1)),
                ("/spec/strategy/type", json!("RollingUpdate")),
                (
                    "/spec/strategy/rollingUpdate",
                    json!({"maxUnavailable": "25%", "maxSurge": "25%"}),
                ),
                ("/spec/revisionHistoryLimit", json!(10)),
                ("/spec/progressDeadlineSeconds", json!(600)),
                ("/spec/template/spec/restartPolicy", json!("Always")),
            ],
        ),
        (
            "apps",
            "statefulsets",
            object(json!({"volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {}}]})),
            &[
                ("/spec/podManagementPolicy", json!("OrderedReady")),
                (
                    "/spec/updateStrategy",
                    json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}),
                ),
                (
                    "/spec/persistentVolumeClaimRetentionPolicy",
                    json!({"whenDeleted": "Retain", "whenScaled": "Retain"}),
                ),
                (
                    "/spec/volumeClaimTemplates/0/spec/volumeMode",
                    json!("Filesystem"),
                ),
                (
                    "/spec/volumeClaimTemplates/0/status/phase",
                    json!("Pending"),
                ),
            ],
        ),
        (
            "apps",
            "daemonsets",
            object(json!({})),
            &[
                (
                    "/spec/updateStrategy/rollingUpdate",
                    json!({"maxUnavailable": 1, "maxSurge": 0}),
                ),
                (
                    "/metadata/annotations/deprecated.daemonset.template.generation",
                    json!("1"),
                ),
            ],
        ),
        (
            "batch",
            "jobs",
            job(json!({})),
            &[
                ("/spec/completions", json!(1)),
                ("/spec/parallelism", json!(1)),
                ("/spec/backoffLimit", json!(6)),
                ("/spec/completionMode", json!("NonIndexed")),
                ("/spec/suspend", json!(false)),
                ("/spec/podReplacementPolicy", json!("TerminatingOrFailed")),
                (
                    "/spec/selector/matchLabels",
                    json!({"batch.kubernetes.io/controller-uid": "u"}),
                ),
                ("/spec/template/metadata/labels/job-name", json!("w")),
                ("/metadata/labels", json!({"a": "b"})),
            ],
        ),
        (
            "batch",
            "cronjobs",
            all().remove(5).1,
            &[
                ("/spec/concurrencyPolicy", json!("Allow")),
                ("/spec/successfulJobsHistoryLimit", json!(3)),
                ("/spec/failedJobsHistoryLimit", json!(1)),
                (
                    "/spec/jobTemplate/spec/template/spec/dnsPolicy",
                    json!("ClusterFirst"),
                ),
            ],
        ),
        (
            "",
            "replicationcontrollers",
            all().remove(7).1,
            &[
                ("/spec/selector", json!({"a": "b"})),
                ("/metadata/labels", json!({"a": "b"})),
                ("/spec/replicas", json!(1)),
            ],
        ),
    ];
    for (group, plural, object, expected) in cases {
        let made = Value::Object(made(&kind(group, plural), &object));
        for (pointer, value) in expected {
            assert_eq!(made.pointer(pointer), Some(value), "{plural}: {pointer}");
        }
    }
}

#[test]
fn workloads_must_select_their_template_and_restart_always() {
    let bad = |plural: &str| {
        let kind = kind("apps", plural);
        let mut sick = object(json!({"replicas": -1, "minReadySeconds": -1}));
        sick["spec"]["selector"] = json!({"matchLabels": {"a": "c"}});
        sick["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
        sick["spec"]["template"]["spec"]["activeDeadlineSeconds"] = json!(1);
        short(created(&kind, &sick))
    };
    let template = [
        "spec.template.metadata.labels Invalid",
        "spec.template.spec.restartPolicy Unsupported",
        "spec.template.spec.activeDeadlineSeconds Forbidden",
    ];
    let with =
        |first: &[&'static str], last: &[&'static str]| [first, &template[..], last].concat();
    assert_eq!(
        bad("deployments"),
        with(
            &["spec.replicas Invalid"],
            &["spec.minReadySeconds Invalid"]
        )
    );
    assert_eq!(
        bad("replicasets"),
        with(
            &["spec.replicas Invalid", "spec.minReadySeconds Invalid"],
            &[]
        )
    );
    assert_eq!(
        bad("statefulsets"),
        with(
            &["spec.replicas Invalid", "spec.minReadySeconds Invalid"],
            &[]
        )
    );
    assert_eq!(
        bad("daemonsets"),
        with(&[], &["spec.minReadySeconds Invalid"])
    );
    let deployment = kind("apps", "deployments");
    let words = created(
        &deployment,
        &json!({"metadata": {"name": "w"}, "spec": {"template": template_without_labels()}}),
    );
    assert_eq!(words[0], "spec.selector: Required value");
    let words = created(&deployment, &object(json!({"selector": {}})));
    assert_eq!(
        words,
        ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"]
    );
}

fn template_without_labels() -> Value {
    json!({"spec": template()["spec"]})
}

#[test]
fn rollouts_leave_something_to_roll() {
    for (plural, field, strategy, expected) in [
        (
            "deployments",
            "strategy",
            json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": "0%"}}),
            "spec.strategy.rollingUpdate.maxUnavailable Invalid",
        ),
        (
            "deployments",
            "strategy",
            json!({"rollingUpdate": {"maxUnavailable": "101%"}}),
            "spec.strategy.rollingUpdate.maxUnavailable Invalid",
        ),
        (
            "deployments",
            "strategy",
            json!({"type": "Recreate", "rollingUpdate": {}}),
            "spec.strategy.rollingUpdate Forbidden",
        ),
        (
            "deployments",
            "strategy",
            json!({"type": "x"}),
            "spec.strategy Unsupported",
        ),
        (
            "statefulsets",
            "updateStrategy",
            json!({"type": "OnDelete", "rollingUpdate": {}}),
            "spec.updateStrategy.rollingUpdate Invalid",
        ),
        (
            "statefulsets",
            "updateStrategy",
            json!({"rollingUpdate": {"maxUnavailable": 0}}),
            "spec.updateStrategy.rollingUpdate.maxUnavailable Invalid",
        ),
        (
            "daemonsets",
            "updateStrategy",
            json!({"rollingUpdate": {"maxUnavailable": 0}}),
            "spec.updateStrategy.rollingUpdate.maxUnavailable Required",
        ),
        (
            "daemonsets",
            "updateStrategy",
            json!({"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}}),
            "spec.updateStrategy.rollingUpdate.maxSurge Invalid",
        ),
    ] {
        let shown = strategy.to_string();
        let faults = created(&kind("apps", plural), &object(json!({field: strategy})));
        assert_eq!(short(faults), [expected], "{plural} {shown}");
    }
}

#[test]
fn immutable_fields_do_not_change() {
    for plural in ["deployments", "replicasets", "daemonsets"] {
        let faults = updated(&kind("apps", plural), &object(json!({})), |new| {
            new["spec"]["selector"] =
                json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]});
        });
        assert_eq!(short(faults), ["spec.selector Invalid"], "{plural}");
    }
    let set = kind("apps", "statefulsets");
    for (field, value, refused) in [
        ("replicas", json!(3), false),
        ("minReadySeconds", json!(3), false),
        ("revisionHistoryLimit", json!(3), false),
        ("serviceName", json!("x"), true),
        ("podManagementPolicy", json!("Parallel"), true),
        (
            "volumeClaimTemplates",
            json!([{"metadata": {"name": "v"}, "spec": {}}]),
            true,
        ),
    ] {
        let faults = updated(&set, &object(json!({})), |new| new["spec"][field] = value);
        let expected: &[&str] = if refused { &["spec Forbidden"] } else { &[] };
        assert_eq!(short(faults), expected, "{field}");
    }
    let revision = kind("apps", "controllerrevisions");
    let faults = updated(
        &revision,
        &json!({"metadata": {"name": "r"}, "data": {"a": 1}, "revision": 1}),
        |new| {
            new["data"]["a"] = json!(2);
        },
    );
    assert_eq!(short(faults), ["data Invalid"]);
}

#[test]
fn a_daemon_sets_template_is_counted() {
    let set = kind("apps", "daemonsets");
    let old = made(&set, &object(json!({})));
    let mut new = Value::Object(old.clone());
    new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("other");
    let new = changed(&set, &new, &old);
    assert_eq!(
        new["metadata"]["annotations"]["deprecated.daemonset.template.generation"],
        "2"
    );
}

#[test]
fn all_faults_of_jobs_are_reported() {
    let jobs = kind("batch", "jobs");
    let mut always = job(json!({}));
    always["spec"]["template"]["spec"]["restartPolicy"] = json!("Always");
    assert_eq!(
        created(&jobs, &always),
        [
            "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""
        ]
    );
    for (more, expected) in [
        (
            json!({"parallelism": -1, "backoffLimit": -1}),
            vec!["spec.parallelism Invalid", "spec.backoffLimit Invalid"],
        ),
        (
            json!({"completionMode": "Indexed", "parallelism": 1}),
            vec!["spec.completions Required"],
        ),
        (
            json!({"backoffLimitPerIndex": 1}),
            vec!["spec.backoffLimitPerIndex Invalid"],
        ),
        (
            json!({"completionMode": "Indexed", "completions": 2, "maxFailedIndexes": 3}),
            vec![
                "spec.backoffLimitPerIndex Required",
                "spec.maxFailedIndexes Invalid",
            ],
        ),
        (json!({"managedBy": "x"}), vec!["spec.managedBy Invalid"]),
        (
            json!({"podReplacementPolicy": "x"}),
            vec!["spec.podReplacementPolicy Unsupported"],
        ),
        (
            json!({"podFailurePolicy": {"rules": [{"action": "FailIndex"}, {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [0, 2, 1, 1], "containerName": "x"}}]}}),
            vec![
                "spec.podFailurePolicy.rules[0].action Invalid",
                "spec.podFailurePolicy.rules[0] Invalid",
                "spec.podFailurePolicy.rules[1].onExitCodes.containerName Invalid",
                "spec.podFailurePolicy.rules[1].onExitCodes.values[0] Invalid",
                "spec.podFailurePolicy.rules[1].onExitCodes.values[3] Duplicate",
                "spec.podFailurePolicy.rules[1].onExitCodes.values Invalid",
            ],
        ),
        (
            json!({"successPolicy": {"rules": []}}),
            vec!["spec.successPolicy Invalid"],
        ),
        (
            json!({"completionMode": "Indexed", "completions": 3, "successPolicy": {"rules": [{}, {"succeededIndexes": "0,5"}, {"succeededIndexes": "0-1", "succeededCount": 3}]}}),
            vec![
                "spec.successPolicy.rules[0] Required",
                "spec.successPolicy.rules[1].succeededIndexes Invalid",
                "spec.successPolicy.rules[2].succeededCount Invalid",
            ],
        ),
    ] {
        let shown = more.to_string();
        assert_eq!(short(created(&jobs, &job(more))), expected, "{shown}");
    }
}

#[test]
fn a_suspended_jobs_node_selection_can_change() {
    let jobs = kind("batch", "jobs");
    let place =
        |new: &mut Value| new["spec"]["template"]["spec"]["nodeSelector"] = json!({"x": "y"});
    assert_eq!(
        short(updated(&jobs, &job(json!({})), place)),
        ["spec.template Invalid"]
    );
    assert_eq!(
        updated(&jobs, &job(json!({"suspend": true})), place),
        Vec::<String>::new()
    );
    let affinity = |new: &mut Value| {
        new["spec"]["template"]["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}});
    };
    assert_eq!(
        updated(&jobs, &job(json!({"suspend": true})), affinity),
        Vec::<String>::new()
    );
    let image =
        |new: &mut Value| new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("x");
    assert_eq!(
        short(updated(&jobs, &job(json!({"suspend": true})), image)),
        ["spec.template Invalid"]
    );
    let indexed = || job(json!({"completionMode": "Indexed", "completions": 2, "parallelism": 2}));
    let both = |new: &mut Value| {
        new["spec"]["completions"] = json!(3);
        new["spec"]["parallelism"] = json!(3);
    };
    assert_eq!(updated(&jobs, &indexed(), both), Vec::<String>::new());
    assert_eq!(
        short(updated(
            &jobs,
            &indexed(),
            |new| new["spec"]["completions"] = json!(3)
        )),
        ["spec.completions Invalid"]
    );
}

#[test]
fn a_suspended_jobs_resources_can_change_once_its_pods_are_gone() {
    let jobs = kind("batch", "jobs");
    let more = |new: &mut Value| {
        new["spec"]["template"]["spec"]["nodeSelector"] = json!({"x": "y"});
        new["spec"]["template"]["spec"]["containers"][0]["resources"] =
            json!({"requests": {"cpu": "2"}});
    };
    let begun = "2026-01-01T00:00:00Z";
    let suspended = json!([{"type": "Suspended", "status": "True"}]);
    let resumed = json!([{"type": "Suspended", "status": "False"}]);
    for (suspend, status, allowed) in [
        (true, json!({}), true),
        (
            true,
            json!({"startTime": begun, "conditions": suspended}),
            true,
        ),
        (
            true,
            json!({"startTime": begun, "conditions": suspended, "active": 1}),
            false,
        ),
        (
            true,
            json!({"startTime": begun, "conditions": resumed}),
            false,
        ),
        (true, json!({"startTime": begun}), false),
        (false, json!({}), false),
    ] {
        let mut old = job(json!({"suspend": suspend}));
        old["status"] = status.clone();
        let found = short(updated(&jobs, &old, more));
        let expected = if allowed {
            vec![]
        } else {
            vec!["spec.template Invalid"]
        };
        assert_eq!(found, expected, "{suspend} {status}");
    }
    let renamed = |new: &mut Value| {
        let container = &mut new["spec"]["template"]["spec"]["containers"][0];
        container["resources"] = json!({"requests": {"cpu": "2"}});
        container["name"] = json!("other");
    };
    assert_eq!(
        short(updated(&jobs, &job(json!({"suspend": true})), renamed)),
        ["spec.template Invalid"]
    );
}

#[test]
fn all_faults_of_cron_jobs_are_reported() {
    let crons = kind("batch", "cronjobs");
    let with = |more: Value| {
        let mut cron = all().remove(5).1;
        cron["spec"]
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().cloned().unwrap());
        cron
    };
    for (more, expected) in [
        (
            json!({"schedule": ""}),
            vec!["spec.schedule: Required value"],
        ),
        (
            json!({"schedule": "* *"}),
            vec![
                "spec.schedule: Invalid value: \"* *\": expected exactly 5 fields, found 2: [* *]",
            ],
        ),
        // Longer than 292 years, which is all that a duration of Go's holds.
        (
            json!({"schedule": "@every 2562048h"}),
            vec![
                "spec.schedule: Invalid value: \"@every 2562048h\": failed to parse duration @every 2562048h: time: invalid duration \"2562048h\"",
            ],
        ),
        (
            json!({"timeZone": "Mars/Olympus"}),
            vec!["spec.timeZone: Invalid value: \"Mars/Olympus\": unknown time zone Mars/Olympus"],
        ),
        (json!({"timeZone": "Europe/Berlin"}), vec![]),
        (
            json!({"schedule": "TZ=UTC * * * * *"}),
            vec![
                "spec.schedule: Invalid value: \"TZ=UTC * * * * *\": cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
            ],
        ),
        (
            json!({"concurrencyPolicy": "x", "startingDeadlineSeconds": -1}),
            vec![
                "spec.startingDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0",
                "spec.concurrencyPolicy: Unsupported value: \"x\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
            ],
        ),
    ] {
        assert_eq!(created(&crons, &with(more)), expected);
    }
    let mut long = with(json!({}));
    long["metadata"]["name"] = json!("x".repeat(53));
    assert_eq!(short(created(&crons, &long)), ["metadata.name Invalid"]);
}

#[test]
fn all_faults_of_budgets_are_reported() {
    let budgets = kind("policy", "poddisruptionbudgets");
    let with = |spec: Value| json!({"metadata": {"name": "b"}, "spec": spec});
    assert!(
        created(
            &budgets,
            &with(json!({"minAvailable": "50%", "selector": {}}))
        )
        .is_empty()
    );
    let faults = created(
        &budgets,
        &with(
            json!({"minAvailable": -1, "maxUnavailable": "101%", "unhealthyPodEvictionPolicy": "x"}),
        ),
    );
    let expected = [
        "spec Invalid",
        "spec.minAvailable Invalid",
        "spec.maxUnavailable Invalid",
        "spec.unhealthyPodEvictionPolicy Unsupported",
    ];
    assert_eq!(short(faults), expected);
}

#[test]
fn autoscalers_are_defaulted_and_all_their_faults_reported() {
    let scalers: Vec<Kind> = master_kinds::builtin::all()
        .into_iter()
        .filter(|kind| kind.plural == "horizontalpodautoscalers")
        .collect();
    let newer = scalers.iter().find(|kind| kind.version == "v2").unwrap();
    let older = scalers.iter().find(|kind| kind.version == "v1").unwrap();
    let with = |more: Value| {
        let mut spec =
            json!({"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 3});
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().cloned().unwrap());
        json!({"metadata": {"name": "a"}, "spec": spec})
    };
    let made_new = made(newer, &with(json!({"behavior": {"scaleDown": {}}})));
    assert_eq!(
        made_new["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"],
        80
    );
    assert_eq!(
        made_new["spec"]["behavior"]["scaleUp"]["policies"][1]["type"],
        "Percent"
    );
    assert_eq!(
        made_new["spec"]["behavior"]["scaleDown"]["selectPolicy"],
        "Max"
    );
    let made_old = made(older, &with(json!({})));
    assert_eq!(made_old["spec"]["targetCPUUtilizationPercentage"], 80);
    assert_eq!(made_old["spec"]["minReplicas"], 1);
    for (more, expected) in [
        (json!({}), vec![]),
        (
            json!({"minReplicas": 0, "maxReplicas": 0}),
            vec![
                "spec.minReplicas Invalid",
                "spec.maxReplicas Invalid",
                "spec.metrics Forbidden",
            ],
        ),
        (
            json!({"scaleTargetRef": {"name": "a/b"}}),
            vec![
                "spec.scaleTargetRef.kind Required",
                "spec.scaleTargetRef.name Invalid",
            ],
        ),
        (
            json!({"metrics": [{"type": "Pods", "resource": {"name": "cpu", "target": {}}}]}),
            vec![
                "spec.metrics[0].resource.target.type Required",
                "spec.metrics[0].resource.target.type Invalid",
                "spec.metrics[0].resource.target.averageUtilization Required",
                "spec.metrics[0].pods Required",
            ],
        ),
        (
            json!({"metrics": [{"type": "Object", "object": {"target": {"type": "Value", "value": "-1"}}}]}),
            vec![
                "spec.metrics[0].object.describedObject.kind Required",
                "spec.metrics[0].object.describedObject.name Required",
                "spec.metrics[0].object.metric.name Required",
                "spec.metrics[0].object.target.value Invalid",
            ],
        ),
        (
            json!({"behavior": {"scaleUp": {"stabilizationWindowSeconds": 3601, "policies": [{"type": "x", "value": 0, "periodSeconds": 1801}]}}}),
            vec![
                "spec.behavior.scaleUp.stabilizationWindowSeconds Invalid",
                "spec.behavior.scaleUp.policies[0].type Unsupported",
                "spec.behavior.scaleUp.policies[0].value Invalid",
                "spec.behavior.scaleUp.policies[0].periodSeconds Invalid",
            ],
        ),
    ] {
        let shown = more.to_string();
        assert_eq!(short(created(newer, &with(more))), expected, "{shown}");
    }
    assert_eq!(
        short(created(
            older,
            &with(json!({"targetCPUUtilizationPercentage": 0}))
        )),
        ["spec.metrics[0].resource.target.averageUtilization Invalid"]
    );
}
