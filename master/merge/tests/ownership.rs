//! Managed fields after writes and applies, as upstream has them.

mod common;

use common::{Kind, Object};
use master_merge::write::Given;
use master_schema::error::Reason;
use serde_json::{Map, Value, json};

const T1: &str = "2026-01-01T00:00:00Z";
const T2: &str = "2026-01-01T00:00:05Z";

fn deployment(replicas: u32, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{
                "name": "web", "image": image, "ports": [{"containerPort": 80}], "resources": {},
            }]},
        }},
    })
}

#[test]
fn a_creation_is_owned_as_upstream_writes_it_down() {
    let object = Object::made(Kind::Deployment, "kubectl-create", T1, deployment(3, "a"));
    let expected = concat!(
        r#"[{"manager":"kubectl-create","operation":"Update","apiVersion":"apps/v1","time":"2026-01-01T00:00:00Z","#,
        r#""fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"#,
        r#""f:spec":{"f:replicas":{},"f:selector":{},"f:template":{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"#,
        r#""f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:image":{},"f:name":{},"f:ports":{".":{},"#,
        r#""k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}},"f:resources":{}}}}}}}}]"#,
    );
    assert_eq!(object.managed.as_deref(), Some(expected));
}

#[test]
fn a_conflict_names_managers_fields_and_versions() {
    let object = Object::made(
        Kind::Deployment,
        "kubectl-client-side-apply",
        T1,
        deployment(3, "a"),
    );
    let wanted = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 5}});
    let error = object
        .apply(Kind::Deployment, "other", T2, &wanted, false)
        .unwrap_err();
    assert_eq!((error.reason, error.code), (Reason::Conflict, 409));
    assert_eq!(
        error.message,
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using apps/v1: .spec.replicas"
    );
    let [cause] = error.details.causes.as_slice() else {
        panic!("{error:?}")
    };
    assert_eq!(cause.reason, "FieldManagerConflict");
    assert_eq!(
        cause.message,
        "conflict with \"kubectl-client-side-apply\" using apps/v1"
    );
    assert_eq!(cause.field, ".spec.replicas");
    let mut image = deployment(5, "b");
    image["spec"]["template"]["spec"]["containers"][0]["image"] = json!("b");
    let error = object
        .apply(Kind::Deployment, "other", T2, &image, false)
        .unwrap_err();
    assert_eq!(
        error.message,
        "Apply failed with 2 conflicts: conflicts with \"kubectl-client-side-apply\" using apps/v1:\n- .spec.replicas\n\
         - .spec.template.spec.containers[name=\"web\"].image"
    );
    let forced = object
        .apply(Kind::Deployment, "other", T2, &wanted, true)
        .unwrap();
    assert_eq!(forced.fields["spec"]["replicas"], 5);
    assert_eq!(forced.owned("other"), json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(
        forced.owned("kubectl-client-side-apply")["f:spec"].get("f:replicas"),
        None
    );
}

#[test]
fn a_field_without_other_owners_is_removed_when_no_longer_applied() {
    let config = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data});
    let object = Object::applied(
        Kind::ConfigMap,
        "a",
        T1,
        &config(json!({"x": "1", "y": "1", "z": "1"})),
    );
    let object = object
        .apply(Kind::ConfigMap, "b", T1, &config(json!({"y": "1"})), false)
        .unwrap();
    let object = object
        .apply(Kind::ConfigMap, "a", T2, &config(json!({"z": "1"})), false)
        .unwrap();
    assert_eq!(object.fields["data"], json!({"y": "1", "z": "1"}));
    assert_eq!(object.owned("a"), json!({"f:data": {"f:z": {}}}));
    assert_eq!(object.owned("b"), json!({"f:data": {"f:y": {}}}));
    let gone = object
        .apply(Kind::ConfigMap, "b", T2, &config(json!({})), false)
        .unwrap();
    assert_eq!(gone.fields["data"], json!({"z": "1"}));
}

#[test]
fn a_second_owner_of_the_same_value_has_no_conflict() {
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"x": "1"}});
    let object = Object::applied(Kind::ConfigMap, "a", T1, &config);
    let object = object
        .apply(Kind::ConfigMap, "b", T2, &config, false)
        .unwrap();
    assert_eq!(object.owned("a"), object.owned("b"));
    let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"x": "2"}});
    assert!(
        object
            .apply(Kind::ConfigMap, "a", T2, &other, false)
            .is_err()
    );
    let forced = object
        .apply(Kind::ConfigMap, "a", T2, &other, true)
        .unwrap();
    assert_eq!(forced.owned("b"), Value::Null);
}

#[test]
fn an_object_from_before_the_first_apply_has_an_owner_for_what_it_holds() {
    let bare = Object {
        fields: common::fields(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "uid": "u"}, "data": {"x": "1", "y": "1"},
        })),
        managed: None,
    };
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"x": "1"}});
    let object = bare
        .apply(Kind::ConfigMap, "a", T2, &config, false)
        .unwrap();
    assert_eq!(
        object.owned("before-first-apply"),
        json!({"f:data": {".": {}, "f:x": {}, "f:y": {}}})
    );
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"x": "2"}});
    let error = bare
        .apply(Kind::ConfigMap, "a", T2, &config, false)
        .unwrap_err();
    assert_eq!(
        error.details.causes[0].message,
        "conflict with \"before-first-apply\" using v1"
    );
}

#[test]
fn kubectl_takes_over_what_its_client_side_apply_set() {
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"x": "1"}});
    let mut made = config.clone();
    made["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": config.to_string()});
    let object = Object::made(Kind::ConfigMap, "kubectl-client-side-apply", T1, made);
    let next = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"x": "2"}});
    assert!(
        object
            .apply(Kind::ConfigMap, "other", T2, &next, false)
            .is_err()
    );
    let taken = object
        .apply(Kind::ConfigMap, "kubectl", T2, &next, false)
        .unwrap();
    assert_eq!(taken.fields["data"]["x"], "2");
    let annotation = &taken.fields["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
    assert_eq!(*annotation, json!(format!("{next}\n")));
    // Fields that another manager changed since do not belong to kubectl.
    let mut drifted = Value::Object(object.fields.clone());
    drifted["data"]["x"] = json!("drift");
    let drifted = object.updated(Kind::ConfigMap, "hand", T2, drifted);
    let error = drifted
        .apply(Kind::ConfigMap, "kubectl", T2, &next, false)
        .unwrap_err();
    assert_eq!(
        error.details.causes[0].message,
        "conflict with \"hand\" using v1"
    );
}

#[test]
fn a_write_that_changes_nothing_keeps_the_time_and_one_that_does_moves_it() {
    let object = Object::made(Kind::Deployment, "m", T1, deployment(3, "a"));
    let same = object.updated(Kind::Deployment, "m", T2, deployment(3, "a"));
    assert_eq!(same.managed, object.managed);
    let changed = object.updated(Kind::Deployment, "m", T2, deployment(4, "a"));
    assert_eq!(changed.list()[0]["time"], T2);
    assert_eq!(changed.list().as_array().unwrap().len(), 1);
    let by_other = object.updated(Kind::Deployment, "n", T2, deployment(4, "a"));
    assert_eq!(by_other.owned("n"), json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(by_other.owned("m")["f:spec"].get("f:replicas"), None);
}

#[test]
fn clients_forget_all_managers_by_an_empty_list_or_one_empty_entry() {
    let object = Object::made(Kind::Deployment, "m", T1, deployment(3, "a"));
    for reset in [json!([]), json!([{}])] {
        let cleared = object.given(
            Kind::Deployment,
            "n",
            T2,
            deployment(4, "a"),
            Given::List(&reset),
        );
        assert_eq!(cleared.managed, None);
    }
    let broken = json!([{"manager": "x", "operation": "Guess"}]);
    let kept = object.given(
        Kind::Deployment,
        "m",
        T2,
        deployment(3, "a"),
        Given::List(&broken),
    );
    assert_eq!(kept.managed, object.managed);
    let mine = json!([{
        "manager": "x", "operation": "Apply", "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:replicas": {}}},
    }]);
    let edited = object.given(
        Kind::Deployment,
        "m",
        T2,
        deployment(3, "a"),
        Given::List(&mine),
    );
    assert_eq!(edited.list(), mine);
}

#[test]
fn the_oldest_updaters_are_put_together() {
    let map = |n: usize| json!({"metadata": {"name": "c"}, "data": (0..=n).map(|n| (format!("k{n:02}"), json!("x"))).collect::<Map<_, _>>()});
    let mut object = Object::made(Kind::ConfigMap, "m00", T1, map(0));
    for n in 1..14 {
        object = object.updated(
            Kind::ConfigMap,
            &format!("m{n:02}"),
            &format!("2026-01-01T00:01:{n:02}Z"),
            map(n),
        );
    }
    let managers = object.managers();
    assert_eq!(managers.0.len(), 10);
    assert_eq!(managers.0[0].name, "ancient-changes");
    assert_eq!(
        object.owned("ancient-changes")["f:data"]
            .as_object()
            .unwrap()
            .len(),
        5 + 1
    );
}

#[test]
fn ports_are_identified_by_number_and_protocol() {
    let service = |ports: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": ports}});
    let dns = json!([{"port": 53, "protocol": "UDP", "name": "udp"}, {"port": 53, "name": "tcp"}]);
    let object = Object::applied(Kind::Service, "a", T1, &service(dns));
    assert_eq!(object.fields["spec"]["ports"].as_array().unwrap().len(), 2);
    let object = object
        .apply(
            Kind::Service,
            "b",
            T2,
            &service(json!([{"port": 80, "protocol": "TCP", "name": "web"}])),
            false,
        )
        .unwrap();
    let object = object
        .apply(
            Kind::Service,
            "a",
            T2,
            &service(json!([{"port": 53, "protocol": "TCP", "name": "tcp"}])),
            false,
        )
        .unwrap();
    let ports = &object.fields["spec"]["ports"];
    assert_eq!(
        *ports,
        json!([{"port": 53, "protocol": "TCP", "name": "tcp"}, {"port": 80, "protocol": "TCP", "name": "web"}])
    );
    let twice = service(json!([{"port": 80}, {"port": 80, "protocol": "TCP"}]));
    let error = object
        .apply(Kind::Service, "a", T2, &twice, false)
        .unwrap_err();
    assert_eq!(
        error.message,
        "failed to create typed patch object (/s; v1, Kind=Service): .spec.ports: duplicate entries for key \
         [port=80,protocol=\"TCP\"]"
    );
}

#[test]
fn an_atomic_selector_is_owned_and_replaced_as_a_whole() {
    let service = |selector: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": selector}});
    let object = Object::applied(
        Kind::Service,
        "a",
        T1,
        &service(json!({"x": "1", "y": "1"})),
    );
    assert_eq!(object.owned("a"), json!({"f:spec": {"f:selector": {}}}));
    assert!(
        object
            .apply(Kind::Service, "b", T2, &service(json!({"z": "1"})), false)
            .is_err()
    );
    let object = object
        .apply(Kind::Service, "b", T2, &service(json!({"z": "1"})), true)
        .unwrap();
    assert_eq!(object.fields["spec"]["selector"], json!({"z": "1"}));
}

#[test]
fn an_unappliable_field_is_reported_with_its_path() {
    let object = Object::made(Kind::Pod, "m", T1, json!({"metadata": {"name": "p"}}));
    let refused = |config: Value| {
        let mut whole =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"}});
        whole["spec"] = config;
        let error = object.apply(Kind::Pod, "a", T2, &whole, false).unwrap_err();
        assert_eq!((error.reason, error.code), (Reason::Unknown, 500));
        error.message
    };
    assert_eq!(
        refused(json!({"containers": [{"name": "a", "imag": "x"}]})),
        "failed to create typed patch object (n/p; v1, Kind=Pod): .spec.containers[name=\"a\"].imag: field not declared in schema"
    );
    assert_eq!(
        refused(json!({"priority": "high"})),
        "failed to create typed patch object (n/p; v1, Kind=Pod): .spec.priority: expected numeric (int or float), got string"
    );
    let managed =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "managedFields": []}});
    let error = object
        .apply(Kind::Pod, "a", T2, &managed, false)
        .unwrap_err();
    assert_eq!(
        (error.code, &*error.message),
        (400, "metadata.managedFields must be nil")
    );
}

fn config_map(entries: usize, value: impl Fn(usize) -> &'static str) -> Value {
    let entry = |number: usize| (format!("k{number:05}"), Value::from(value(number)));
    let data: Map<String, Value> = (0..entries).map(entry).collect();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

#[test]
fn of_many_conflicts_the_first_are_named() {
    let object = Object::made(Kind::ConfigMap, "one", T1, config_map(1000, |_| "1"));
    let wanted = config_map(1000, |_| "2");
    let error = object
        .apply(Kind::ConfigMap, "two", T2, &wanted, false)
        .unwrap_err();
    assert_eq!((error.code, error.details.causes.len()), (409, 100));
    let start =
        "Apply failed with 1000 conflicts: conflicts with \"one\" using v1:\n- .data.k00000\n";
    assert!(error.message.starts_with(start), "{}", error.message);
    let end = "\n- .data.k00099\n- …";
    assert!(error.message.ends_with(end), "{}", error.message);
}

/// To look at each change for each manager, and to move the fields of the oldest for each that is
/// merged with it, would take 10^9 steps.
#[test]
fn thousands_of_managers_of_a_field_each_cost_no_more_than_their_fields() {
    const ENTRIES: usize = 60_000;
    let object = Object::made(Kind::ConfigMap, "one", T1, config_map(ENTRIES, |_| "1"));
    let mut managers: Vec<Value> =
        serde_json::from_str(object.managed.as_deref().unwrap()).unwrap();
    managers.extend((0..4_000).map(|number| {
        let field = format!("f:k{:05}", ENTRIES - 1 - number);
        json!({"manager": format!("m{number}"), "operation": "Update", "apiVersion": "v1", "time": T1,
            "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {field: {}}}})
    }));
    let half = config_map(
        ENTRIES,
        |number| if number < ENTRIES / 2 { "2" } else { "1" },
    );
    let given = json!(managers);
    let object = object.given(Kind::ConfigMap, "two", T2, half, Given::List(&given));
    let managers: Vec<Value> = serde_json::from_str(object.managed.as_deref().unwrap()).unwrap();
    assert_eq!(managers.len(), 10);
    assert_eq!(managers[9]["manager"], "two");
    let of_two = managers[9]["fieldsV1"]["f:data"].as_object().unwrap();
    assert_eq!(of_two.len(), ENTRIES / 2);
}
