//! Tests of pods: defaults, QoS class, grace period.

#![allow(clippy::needless_pass_by_value, reason = "cases are written in place")]

use super::*;

fn defaulted(object: Value) -> Value {
    let Value::Object(mut fields) = object else {
        panic!("not an object")
    };
    (pod().strategy.defaults)(&mut fields);
    create(&mut fields);
    Value::Object(fields)
}

#[test]
fn a_bare_pod_gets_upstreams_defaults() {
    let pod = defaulted(
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "a/b"}]}}),
    );
    for (pointer, value) in [
        ("/spec/restartPolicy", json!("Always")),
        ("/spec/terminationGracePeriodSeconds", json!(30)),
        ("/spec/dnsPolicy", json!("ClusterFirst")),
        ("/spec/schedulerName", json!("default-scheduler")),
        ("/spec/containers/0/imagePullPolicy", json!("Always")),
        (
            "/spec/containers/0/terminationMessagePath",
            json!("/dev/termination-log"),
        ),
        ("/status/phase", json!("Pending")),
        ("/status/qosClass", json!("BestEffort")),
    ] {
        assert_eq!(pod.pointer(pointer), Some(&value), "{pointer}");
    }
}

#[test]
fn a_tagged_image_is_pulled_only_if_absent_and_limits_make_requests() {
    let limits = json!({"cpu": "1", "memory": "1Gi"});
    let pod = defaulted(json!({"spec": {"hostNetwork": true, "containers": [
        {"name": "c", "image": "r:5000/a:1", "resources": {"limits": limits}, "ports": [{"containerPort": 80}]},
    ]}}));
    assert_eq!(
        pod.pointer("/spec/containers/0/imagePullPolicy"),
        Some(&json!("IfNotPresent"))
    );
    assert_eq!(
        pod.pointer("/spec/containers/0/resources/requests"),
        Some(&limits)
    );
    assert_eq!(
        pod.pointer("/spec/containers/0/ports/0"),
        Some(&json!({"containerPort": 80, "hostPort": 80, "protocol": "TCP"}))
    );
    assert_eq!(pod.pointer("/status/qosClass"), Some(&json!("Guaranteed")));
}

#[test]
fn grace_is_nothing_where_no_kubelet_has_the_pod() {
    let of = |pod: Value, asked| grace(pod.as_object().unwrap(), asked);
    assert_eq!(of(json!({"spec": {}}), Some(10)), 0);
    assert_eq!(of(json!({"spec": {"nodeName": "n"}}), None), 30);
    assert_eq!(
        of(
            json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 5}}),
            None
        ),
        5
    );
    assert_eq!(of(json!({"spec": {"nodeName": "n"}}), Some(0)), 0);
    assert_eq!(
        of(
            json!({"spec": {"nodeName": "n"}, "status": {"phase": "Failed"}}),
            None
        ),
        0
    );
}

fn made(spec: Value) -> Fields {
    let pod = defaulted(json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec}));
    pod.as_object().cloned().unwrap()
}

fn faults_of(check: impl FnOnce(&mut Faults)) -> Vec<String> {
    let mut faults = Faults::default();
    check(&mut faults);
    faults
        .found()
        .map(|(field, reason, _)| format!("{field} {}", reason.trim_start_matches("FieldValue")))
        .collect()
}

/// The faults of a change of a pod's spec; each step sets a pointer below the spec.
fn changed(spec: Value, pointer: &str, value: Value) -> Vec<String> {
    let old = made(spec);
    let mut new = Value::Object(old.clone());
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    let place = new["spec"].pointer_mut(parent).unwrap();
    match place.as_array_mut() {
        Some(items) => items.insert(last.parse().unwrap(), value),
        None => place[last] = value,
    }
    faults_of(|faults| change::validate(new.as_object().unwrap(), &old, faults))
}

fn plain() -> Value {
    json!({"containers": [{"name": "c", "image": "a:1"}], "tolerations": [{"key": "x", "operator": "Exists"}]})
}

#[test]
fn only_upstreams_few_fields_of_a_pod_change() {
    let toleration = json!({"key": "k", "operator": "Exists"});
    for (pointer, value) in [
        ("/containers/0/image", json!("b:1")),
        ("/activeDeadlineSeconds", json!(5)),
        ("/tolerations/0", toleration.clone()),
    ] {
        assert!(changed(plain(), pointer, value).is_empty(), "{pointer}");
    }
    for (pointer, value, expected) in [
        ("/containers/0/command", json!(["x"]), "spec Forbidden"),
        ("/hostNetwork", json!(true), "spec Forbidden"),
        ("/nodeName", json!("other"), "spec Forbidden"),
        ("/nodeSelector", json!({"a": "b"}), "spec Forbidden"),
        ("/terminationGracePeriodSeconds", json!(1), "spec Forbidden"),
        (
            "/containers/0",
            json!({"name": "d", "image": "d"}),
            "spec.containers Forbidden",
        ),
        ("/tolerations", json!([]), "spec.tolerations Forbidden"),
        (
            "/schedulingGates",
            json!([{"name": "g"}]),
            "spec.schedulingGates[0].name Forbidden",
        ),
    ] {
        assert_eq!(changed(plain(), pointer, value), [expected], "{pointer}");
    }
}

#[test]
fn a_negative_grace_period_is_the_shortest_one() {
    let short = |seconds: i64| {
        let mut pod = plain();
        pod["spec"]["terminationGracePeriodSeconds"] = seconds.into();
        let mut fields = pod.as_object().unwrap().clone();
        (super::pod().strategy.defaults)(&mut fields);
        Value::Object(fields)
    };
    assert_eq!(short(-5)["spec"]["terminationGracePeriodSeconds"], 1);
    assert_eq!(short(0)["spec"]["terminationGracePeriodSeconds"], 0);
    assert_eq!(
        (
            short(1),
            short(30)["spec"]["terminationGracePeriodSeconds"].clone()
        ),
        (short(-1), json!(30)),
        "an update from 1 to -1 changes nothing"
    );
    let mut template = json!({"template": {"spec": {"terminationGracePeriodSeconds": -5}}});
    podspec::template_defaults(template.as_object_mut().unwrap());
    assert_eq!(
        template["template"]["spec"]["terminationGracePeriodSeconds"],
        -5
    );
}

#[test]
fn a_deadline_only_comes_nearer() {
    let with = || json!({"containers": [{"name": "c", "image": "a"}], "activeDeadlineSeconds": 10});
    assert!(changed(with(), "/activeDeadlineSeconds", json!(9)).is_empty());
    assert_eq!(
        changed(with(), "/activeDeadlineSeconds", json!(11)),
        ["spec.activeDeadlineSeconds Invalid"]
    );
    assert_eq!(
        changed(with(), "/activeDeadlineSeconds", Value::Null),
        ["spec.activeDeadlineSeconds Invalid", "spec Forbidden"][..1]
    );
}

#[test]
fn gated_pods_can_ask_for_more_of_their_node() {
    let term = json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]});
    let required = |terms: Value| json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    let gated = || {
        json!({
            "containers": [{"name": "c", "image": "a"}], "schedulingGates": [{"name": "g"}],
            "nodeSelector": {"a": "1"}, "affinity": required(json!([term])),
        })
    };
    assert!(changed(gated(), "/nodeSelector", json!({"a": "1", "b": "2"})).is_empty());
    assert_eq!(
        changed(gated(), "/nodeSelector", json!({"b": "2"})),
        ["spec.nodeSelector Invalid"]
    );
    assert!(changed(gated(), "/schedulingGates", json!([])).is_empty());
    let mut more = term.clone();
    more["matchExpressions"]
        .as_array_mut()
        .unwrap()
        .push(json!({"key": "b", "operator": "Exists"}));
    assert!(changed(gated(), "/affinity", required(json!([more]))).is_empty());
    let path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    assert_eq!(
        changed(gated(), "/affinity", required(json!([]))),
        [format!("{path} Invalid")]
    );
    let other = json!({"matchExpressions": [{"key": "b", "operator": "Exists"}]});
    assert_eq!(
        changed(gated(), "/affinity", required(json!([other]))),
        [format!("{path}[0] Invalid")]
    );
}

#[test]
fn a_new_pod_cannot_be_on_a_node_and_gated_nor_be_debugged() {
    let pod = made(json!({
        "containers": [{"name": "c", "image": "a"}], "schedulingGates": [{"name": "g"}], "nodeName": "n",
        "ephemeralContainers": [{"name": "e", "image": "b"}],
    }));
    assert_eq!(pod["status"]["conditions"][0]["reason"], "SchedulingGated");
    let expected = [
        "spec.ephemeralContainers Forbidden",
        "spec.nodeName Forbidden",
    ];
    assert_eq!(faults_of(|faults| validate_create(&pod, faults)), expected);
}

/// The result of a write through a subresource, and its faults.
fn written(
    subresource: Subresource,
    old: &Fields,
    change: impl FnOnce(&mut Value),
) -> (Fields, Vec<String>) {
    let mut sent = Value::Object(old.clone());
    change(&mut sent);
    let sent = sent.as_object().cloned().unwrap();
    let mut result = old.clone();
    change::through(subresource, &mut result, &sent, old);
    let faults = faults_of(|faults| change::validate_through(subresource, &result, old, faults));
    (result, faults)
}

#[test]
fn ephemeral_containers_are_added_and_stay() {
    let old = made(plain());
    let (debugged, faults) = written(Subresource::EphemeralContainers, &old, |pod| {
        pod["spec"]["ephemeralContainers"] =
            json!([{"name": "e", "image": "b", "targetContainerName": "c"}]);
        pod["spec"]["hostNetwork"] = json!(true);
    });
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(
        debugged["spec"]["ephemeralContainers"][0]["imagePullPolicy"],
        "Always"
    );
    assert_eq!(debugged["spec"].get("hostNetwork"), None);
    let (_, faults) = written(Subresource::EphemeralContainers, &debugged, |pod| {
        pod["spec"]["ephemeralContainers"][0]["image"] = json!("other");
    });
    assert_eq!(faults, ["spec.ephemeralContainers Forbidden"]);
    let (_, faults) = written(Subresource::EphemeralContainers, &old, |pod| {
        pod["spec"]["ephemeralContainers"] = json!([{"name": "c", "image": "b", "targetContainerName": "x", "ports": [{"containerPort": 1}]}]);
    });
    let at = "spec.ephemeralContainers[0]";
    let expected = [
        format!("{at}.name Duplicate"),
        format!("{at}.targetContainerName NotFound"),
        format!("{at}.ports Forbidden"),
    ];
    assert_eq!(faults, expected);
}

#[test]
fn a_resize_changes_cpu_and_memory_of_running_containers() {
    let resources = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
    let old = made(json!({
        "containers": [{"name": "c", "image": "a", "resources": resources}],
        "initContainers": [{"name": "i", "image": "a", "resources": resources}],
    }));
    let (resized, faults) = written(Subresource::Resize, &old, |pod| {
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2");
        pod["spec"]["containers"][0]["image"] = json!("other");
    });
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(
        resized["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        "2"
    );
    assert_eq!(resized["spec"]["containers"][0]["image"], "a");
    for (change, expected) in [
        (
            json!({"requests": {"cpu": "1"}}),
            vec!["spec.containers[0].resources.requests Forbidden"],
        ),
        (
            json!({}),
            vec![
                "spec Invalid",
                "spec.containers[0].resources.requests Forbidden",
            ],
        ),
        (
            json!({"requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}}),
            vec!["spec Forbidden"],
        ),
        (
            json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}),
            vec![],
        ),
    ] {
        let (_, mut faults) = written(Subresource::Resize, &old, |pod| {
            pod["spec"]["containers"][0]["resources"] = change.clone();
        });
        // A pod whose init container requests resources keeps its QoS class.
        faults.retain(|fault| fault != "spec Invalid");
        let expected: Vec<&str> = expected
            .into_iter()
            .filter(|fault| *fault != "spec Invalid")
            .collect();
        assert_eq!(faults, expected, "{change}");
    }
    let (resized, faults) = written(Subresource::Resize, &old, |pod| {
        pod["spec"]["initContainers"][0]["resources"]["requests"]["cpu"] = json!("2");
    });
    assert!(faults.is_empty(), "{faults:?}");
    let init = &resized["spec"]["initContainers"][0];
    assert_eq!(init["resources"]["requests"]["cpu"], "2");
    let (_, faults) = written(Subresource::Resize, &old, |pod| {
        pod["spec"]["initContainers"][0]["resources"]["requests"] = json!({"cpu": "1"});
    });
    assert_eq!(
        faults,
        ["spec.initContainers[0].resources.requests Forbidden"]
    );
}

#[test]
fn a_resize_changes_cpu_and_memory_of_the_pod_as_a_whole() {
    let own = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}});
    let with = |whole: Value| {
        let mut spec = json!({"containers": [{"name": "c", "image": "a", "resources": own}]});
        if !whole.is_null() {
            spec["resources"] = whole;
        }
        made(spec)
    };
    let pages = json!({"requests": {"cpu": "2", "hugepages-2Mi": "2Mi"},
                       "limits": {"cpu": "4", "hugepages-2Mi": "2Mi"}});
    for (old, change, expected) in [
        (
            json!({"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}),
            json!({"requests": {"cpu": "3"}, "limits": {"cpu": "5"}}),
            vec![],
        ),
        (
            Value::Null,
            json!({"requests": {"cpu": "3"}, "limits": {"cpu": "5"}}),
            vec![],
        ),
        (
            json!({"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}),
            json!({"requests": {"cpu": "2"}}),
            vec!["spec.resources.limits Forbidden"],
        ),
        (
            json!({"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}),
            json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "4"}}),
            vec!["spec.resources.requests[cpu] Invalid"],
        ),
        (
            pages.clone(),
            json!({"requests": {"cpu": "2", "hugepages-2Mi": "4Mi"},
                   "limits": {"cpu": "4", "hugepages-2Mi": "4Mi"}}),
            vec!["spec Forbidden"],
        ),
        (
            pages,
            json!({"requests": {"cpu": "3", "hugepages-2Mi": "2Mi"},
                   "limits": {"cpu": "4", "hugepages-2Mi": "2Mi"}}),
            vec![],
        ),
    ] {
        let (resized, faults) = written(Subresource::Resize, &with(old.clone()), |pod| {
            pod["spec"]["resources"] = change.clone();
        });
        assert_eq!(faults, expected, "{old} {change}");
        assert_eq!(resized["spec"]["resources"], change);
    }
}

#[test]
fn a_resize_leaves_which_containers_there_are_and_their_order() {
    let old =
        made(json!({"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}));
    let names = [0, 1].map(|number| format!("spec.containers[{number}].name Forbidden"));
    for (first, second) in [("b", "a"), ("c", "d")] {
        let (_, faults) = written(Subresource::Resize, &old, |pod| {
            pod["spec"]["containers"][0]["name"] = json!(first);
            pod["spec"]["containers"][1]["name"] = json!(second);
        });
        assert_eq!(faults, names);
    }
    let (_, faults) = written(Subresource::Resize, &old, |pod| {
        pod["spec"]["containers"].as_array_mut().unwrap().pop();
    });
    assert_eq!(faults, ["spec.containers Forbidden"]);
}

#[test]
fn a_status_keeps_its_class_and_what_ended_stays_ended() {
    let mut old =
        made(json!({"containers": [{"name": "c", "image": "a"}], "restartPolicy": "Never"}));
    old["status"]["containerStatuses"] =
        json!([{"name": "c", "state": {"terminated": {"exitCode": 1}}}]);
    let (_, faults) = written(Subresource::Status, &old, |_| ());
    assert!(faults.is_empty(), "{faults:?}");
    let mut new = Value::Object(old.clone());
    new["status"] = json!({
        "qosClass": "Guaranteed", "containerStatuses": [{"name": "c", "state": {"running": {}}}],
        "podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}, {"ip": "x"}], "hostIP": "10.0.0.9", "hostIPs": [{"ip": "10.0.0.8"}],
        "conditions": [{"type": "-bad"}],
    });
    let faults = faults_of(|faults| status::validate(new.as_object().unwrap(), &old, faults));
    let expected = [
        "metadata.conditions[0].Type Invalid",
        "status.qosClass Invalid",
        "status.containerStatuses[0].state Forbidden",
        "status.podIPs[2] Invalid",
        "status.podIPs Invalid",
        "status.hostIPs[0].ip Invalid",
    ];
    assert_eq!(faults, expected);
}

#[test]
fn an_observed_generation_is_not_cleared() {
    let mut old = made(json!({"containers": [{"name": "c", "image": "a"}]}));
    old["status"]["observedGeneration"] = json!(4);
    old["status"]["conditions"] = json!([
        {"type": "Ready", "status": "False", "observedGeneration": 3},
        {"type": "Ready", "status": "True", "observedGeneration": 4},
        {"type": "Initialized", "status": "True"},
    ]);
    let status = |sent: Value| {
        let mut new = old.clone();
        new.insert("status".to_owned(), sent);
        let mut result = new.clone();
        change::through(Subresource::Status, &mut result, &new, &old);
        result["status"].clone()
    };
    let cleared = status(json!({"observedGeneration": 0, "conditions": [
        {"type": "Ready", "status": "True"},
        {"type": "Ready", "status": "True", "observedGeneration": 0},
        {"type": "Ready", "status": "True"},
        {"type": "Initialized", "status": "True"},
        {"type": "PodScheduled", "status": "True", "observedGeneration": 5},
    ]}));
    assert_eq!(cleared["observedGeneration"], 4);
    let all = cleared["conditions"].as_array().unwrap().iter();
    let all: Vec<Option<i64>> = all
        .map(|one| one.get("observedGeneration").and_then(Value::as_i64))
        .collect();
    assert_eq!(all, [Some(3), Some(4), None, None, Some(5)]);
    let seen = status(json!({"observedGeneration": 5}));
    assert_eq!(seen["observedGeneration"], 5);
}

#[test]
fn what_ended_runs_again_only_where_a_rule_can_start_it() {
    let again = |rules: Value| {
        let asks = json!({"name": "asks", "image": "a", "restartPolicyRules": rules});
        let containers = json!([asks, {"name": "c", "image": "a"}]);
        let mut old = made(json!({"containers": containers, "restartPolicy": "Never"}));
        let ended = |name: &str| json!({"name": name, "state": {"terminated": {"exitCode": 0}}});
        old["status"]["containerStatuses"] = json!([ended("asks"), ended("c")]);
        let mut new = Value::Object(old.clone());
        new["status"]["containerStatuses"][1]["state"] = json!({"running": {}});
        faults_of(|faults| status::validate(new.as_object().unwrap(), &old, faults))
    };
    let rule =
        |action: &str| json!([{"action": action, "exitCodes": {"operator": "In", "values": [3]}}]);
    assert_eq!(again(rule("RestartAllContainers")), [""; 0]);
    let only_itself = again(rule("Restart"));
    assert_eq!(only_itself, ["status.containerStatuses[1].state Forbidden"]);
}

#[test]
fn keys_of_affinity_take_the_pods_own_labels() {
    let pod = defaulted(
        json!({"metadata": {"name": "p", "labels": {"v": "2"}}, "spec": {
            "containers": [{"name": "c", "image": "a"}],
            "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "h", "matchLabelKeys": ["v"], "labelSelector": {"matchLabels": {"a": "b"}}},
            ]}},
        }}),
    );
    let selector = pod.pointer(
        "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/0/labelSelector",
    );
    let expected = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "v", "operator": "In", "values": ["2"]}]});
    assert_eq!(selector, Some(&expected));
}
