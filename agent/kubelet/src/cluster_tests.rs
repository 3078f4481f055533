use super::*;
use crate::kubelet::tests::{Ending, Large, shared_of};
use serde_json::json;
use tokio::time::timeout;

fn service(name: &str, version: &str, address: &str) -> Value {
    json!({
        "metadata": {"namespace": "a", "name": name, "resourceVersion": version},
        "spec": {"clusterIPs": [address], "ports": [{"port": 80}]},
    })
}

/// Objects of a kind by namespace and number; a node keeps a limited number of bytes of them.
struct Objects<K: Followed> {
    view: View<K::State>,
    bytes: KeptBytes<K::Key>,
    spec: Value,
}

impl<K: Followed> Objects<K>
where
    View<K::State>: Default,
{
    fn of(most: usize, spec: Value) -> Self {
        Self {
            view: View::default(),
            bytes: KeptBytes::of(most),
            spec,
        }
    }

    fn object(&self, namespace: &str, number: usize) -> Value {
        let name = format!("{namespace}-{number}");
        let labels = json!({"app": name, "kubernetes.io/service-name": "web"});
        let meta = json!({"namespace": namespace, "name": name, "uid": name, "labels": labels});
        let mut object = self.spec.clone();
        object["metadata"] = meta;
        object
    }

    fn change(&mut self, kind: &str, namespace: &str, number: usize) {
        let object = self.object(namespace, number);
        let line = json!({"type": kind, "object": object}).to_string();
        let mut version = String::new();
        take::<K>(&self.view, line.as_bytes(), &mut version, &mut self.bytes).unwrap();
    }

    /// The number of objects after one of `shop` and many of `flood`.
    fn flooded(&mut self) -> usize {
        self.change("ADDED", "shop", 0);
        for number in 0..200 {
            self.change("ADDED", "flood", number);
        }
        assert_eq!(self.bytes.left_out().iter().collect::<Vec<_>>(), ["flood"]);
        K::kept(&self.view.now()).unwrap().len()
    }
}

#[test]
fn of_a_namespace_with_too_many_services_keys_are_kept_and_others_lose_nothing() {
    let spec = json!({"spec": {"clusterIPs": ["10.96.0.1"], "ports": [{"port": 80}]}});
    let mut objects = Objects::<Service>::of(50_000, spec);
    assert_eq!(objects.flooded(), 201);
    let known = objects.view.now();
    let services = known.services.as_ref().unwrap();
    for (key, service) in services {
        let (is_flood, left) = (key.namespace == "flood", service.left_out);
        assert_eq!(
            (is_flood, service.ports.is_empty()),
            (left, left),
            "{key:?}"
        );
    }
    for number in 1..200 {
        assert!(!objects.bytes.is_outdated(), "{number}");
        objects.change("DELETED", "flood", number);
        if objects.bytes.is_outdated() {
            return;
        }
    }
    unreachable!("there is room again");
}

#[test]
fn pods_of_a_namespace_with_too_many_are_subtracted_as_they_are_deleted() {
    let spec = json!({"status": {"podIPs": [{"ip": "10.1.0.2"}]}});
    let mut objects = Objects::<policy::Pod>::of(50_000, spec);
    assert_eq!(objects.flooded(), 1);
    for number in 0..200 {
        objects.change("DELETED", "flood", number);
    }
    assert!(objects.bytes.is_outdated(), "there is room again");
    objects.change("DELETED", "shop", 0);
    assert!(objects.bytes.is_empty());
}

#[test]
fn namespaces_that_are_left_out_are_subtracted_as_they_are_deleted() {
    let mut objects = Objects::<policy::Labels>::of(20_000, json!({}));
    for number in 0..200 {
        objects.change("ADDED", "flood", number);
    }
    assert!(!objects.bytes.left_out().is_empty());
    assert!(!objects.bytes.is_outdated());
    for number in 0..200 {
        objects.change("DELETED", "flood", number);
    }
    assert!(objects.bytes.is_outdated(), "there is room again");
    assert!(objects.bytes.is_empty());
}

#[test]
fn policies_of_a_namespace_with_too_many_isolate_all_of_its_pods() {
    let spec = json!({"spec": {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{}]}});
    let mut objects = Objects::<policy::Policy>::of(50_000, spec);
    assert_eq!(objects.flooded(), 201);
    let world = objects.view.now();
    for (key, policy) in world.policies.as_ref().unwrap() {
        let closed = (
            policy.selects.0.is_empty(),
            policy.ingress.as_ref().is_some_and(Vec::is_empty),
        );
        let is_flood = key.namespace == "flood";
        assert_eq!(closed, (is_flood, is_flood), "{key:?}");
        assert_eq!(policy.egress.is_some(), is_flood, "{key:?}");
    }
}

/// Whether the only policy of a view isolates all pods of `shop`.
fn closes_shop(view: &View<World>) -> bool {
    let world = view.now();
    let policies = world.policies.as_ref().unwrap();
    let key = Key {
        namespace: "shop".to_owned(),
        name: "shop-0".to_owned(),
    };
    assert_eq!(policies.keys().collect::<Vec<_>>(), [&key]);
    *policies[&key] == policy::Policy::closed("shop".to_owned())
}

#[tokio::test]
async fn a_policy_that_cannot_be_decoded_isolates_all_pods_of_its_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let good = json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{}]});
    for bad in [
        json!(7),
        json!({"podSelector": []}),
        json!({"podSelector": {"matchLabels": {"app": 7}}}),
        json!({"podSelector": {}, "policyTypes": "Ingress"}),
        json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": {}}),
        json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": 7}}]}]}),
        json!({"podSelector": {}, "ingress": [{"ports": [{"port": 1.5}]}]}),
        json!({"podSelector": {}, "egress": [{"ports": [{"port": 80, "endPort": "90"}]}]}),
    ] {
        let mut objects = Objects::<policy::Policy>::of(POLICIES, json!({ "spec": bad }));
        objects.change("ADDED", "shop", 0);
        assert!(closes_shop(&objects.view), "{bad} comes");
        objects.spec = json!({ "spec": good });
        objects.change("MODIFIED", "shop", 0);
        assert!(!closes_shop(&objects.view), "it is mended");
        objects.spec = json!({ "spec": bad });
        objects.change("MODIFIED", "shop", 0);
        assert!(closes_shop(&objects.view), "{bad} replaces it");

        let listed = Arc::new(Large(vec![objects.object("shop", 0)]));
        let shared = shared_of(dir.path(), Vec::new(), listed);
        let view = View::default();
        let mut bytes = KeptBytes::of(POLICIES);
        let list = list::<policy::Policy>(&shared, &view, &mut bytes);
        list.await.unwrap();
        assert!(closes_shop(&view), "{bad} is listed");

        objects.change("DELETED", "shop", 0);
        assert_eq!(objects.view.now().policies, Some(BTreeMap::new()), "{bad}");
        assert!(objects.bytes.is_empty());
    }
}

/// It was decoded before, and its earlier content must not count any more.
#[test]
fn a_change_that_cannot_be_decoded_takes_away_what_was_kept() {
    let good = json!({"status": {"podIPs": [{"ip": "10.1.0.2"}]}});
    for kind in ["MODIFIED", "DELETED"] {
        let mut objects = Objects::<policy::Pod>::of(PODS, good.clone());
        objects.change("ADDED", "shop", 0);
        assert_eq!(objects.view.now().pods.as_ref().unwrap().len(), 1);
        objects.spec = json!({"spec": 7});
        objects.change(kind, "shop", 0);
        assert_eq!(objects.view.now().pods, Some(BTreeMap::new()), "{kind}");
        assert!(objects.bytes.is_empty(), "{kind}");
    }
    // Of one whose namespace is left out, too.
    let mut objects = Objects::<policy::Pod>::of(50_000, good);
    objects.flooded();
    objects.spec = json!({"spec": 7});
    for number in 0..200 {
        objects.change("DELETED", "flood", number);
    }
    objects.change("DELETED", "shop", 0);
    assert!(objects.bytes.is_empty());
}

#[test]
fn slices_and_pods_of_a_namespace_with_too_many_are_ignored() {
    let endpoint = json!({"addresses": ["10.1.0.2"], "conditions": {}});
    let spec = json!({"addressType": "IPv4", "endpoints": [endpoint]});
    let mut slices = Objects::<Slice>::of(50_000, spec);
    assert_eq!(slices.flooded(), 201);
    let known = slices.view.now();
    let all = known.slices.as_ref().unwrap();
    let with_endpoints = all.values().filter(|slice| !slice.endpoints.is_empty());
    assert_eq!(with_endpoints.count(), 1);
    assert!(known.slices_left_out.contains("flood"));
    let spec = json!({"status": {"podIPs": [{"ip": "10.1.0.2"}]}});
    assert_eq!(Objects::<policy::Pod>::of(50_000, spec).flooded(), 1);
}

#[tokio::test]
async fn a_list_publishes_that_nothing_is_left_out_though_objects_are_the_same() {
    let endpoint = json!({"addresses": ["10.1.0.2"], "conditions": {}});
    let spec = json!({"addressType": "IPv4", "endpoints": [endpoint]});
    let mut slices = Objects::<Slice>::of(50_000, spec);
    slices.flooded();
    for number in 0..200 {
        slices.change("DELETED", "flood", number);
    }
    assert!(slices.view.now().slices_left_out.contains("flood"));
    let dir = tempfile::tempdir().unwrap();
    let listed = Arc::new(Large(vec![slices.object("shop", 0)]));
    let shared = shared_of(dir.path(), Vec::new(), listed);
    let before = slices.view.now();
    let list = list::<Slice>(&shared, &slices.view, &mut slices.bytes);
    list.await.unwrap();
    let known = slices.view.now();
    assert_eq!(known.slices, before.slices);
    assert!(known.slices_left_out.is_empty());
}

#[test]
fn what_every_pod_needs_is_kept_whatever_else_its_namespace_has() {
    let spec = json!({"spec": {"clusterIPs": ["10.96.0.1"], "ports": [{"port": 443}]}});
    let mut objects = Objects::<Service>::of(50_000, spec);
    for number in 0..200 {
        objects.change("ADDED", "default", number);
    }
    let api = json!({"metadata": {"namespace": "default", "name": "kubernetes"}, "spec": {"ports": [{"port": 443}]}});
    let line = json!({"type": "ADDED", "object": api}).to_string();
    let mut version = String::new();
    take::<Service>(
        &objects.view,
        line.as_bytes(),
        &mut version,
        &mut objects.bytes,
    )
    .unwrap();
    let known = objects.view.now();
    let services = known.services.as_ref().unwrap().values();
    assert_eq!(services.filter(|service| !service.left_out).count(), 1);
}

#[tokio::test]
async fn what_a_list_has_too_much_of_is_left_out() {
    let services = (1..=12).map(|n| service(&format!("web{n}"), "7", &format!("10.96.0.{n}")));
    let dir = tempfile::tempdir().unwrap();
    let shared = shared_of(dir.path(), Vec::new(), Arc::new(Large(services.collect())));
    let view = View::default();
    let mut bytes = KeptBytes::of(2000);
    list::<Service>(&shared, &view, &mut bytes).await.unwrap();
    let known = view.now();
    let services = known.services.as_ref().unwrap();
    assert_eq!(services.len(), 12);
    assert!(services.values().all(|service| service.left_out));
    let mut bytes = KeptBytes::of(SERVICES);
    list::<Service>(&shared, &view, &mut bytes).await.unwrap();
    let known = view.now();
    let mut services = known.services.as_ref().unwrap().values();
    assert!(services.all(|service| !service.left_out));
}

fn taken(view: &View, kind: &str, object: &Value) -> (bool, String) {
    let mut changes = view.changes();
    changes.mark_unchanged();
    let mut version = String::new();
    let line = json!({"type": kind, "object": object}).to_string();
    let mut bytes = KeptBytes::of(SERVICES);
    take::<Service>(view, line.as_bytes(), &mut version, &mut bytes).unwrap();
    (changes.has_changed().unwrap(), version)
}

#[tokio::test]
async fn services_too_large_for_one_answer_are_listed() {
    let services = (1..=12).map(|n| service(&format!("web{n}"), "7", &format!("10.96.0.{n}")));
    let dir = tempfile::tempdir().unwrap();
    let shared = shared_of(dir.path(), Vec::new(), Arc::new(Large(services.collect())));
    let view = View::default();
    let mut bytes = KeptBytes::of(SERVICES);
    let listed = list::<Service>(&shared, &view, &mut bytes).await;
    assert_eq!(listed.unwrap(), "9");
    assert_eq!(view.now().services.as_ref().unwrap().len(), 12);
}

#[tokio::test(start_paused = true)]
async fn followed_kinds_are_watched_without_a_break() {
    let dir = tempfile::tempdir().unwrap();
    for (lives, pause) in [(300, 0), (0, 1)] {
        let master = Arc::new(Ending::after(lives));
        let shared = shared_of(dir.path(), Vec::new(), master.clone());
        let view = View::default();
        let follow = follow_kind::<Service>(&shared, &view);
        let followed = timeout(Duration::from_secs(650), follow).await;
        assert!(followed.is_err(), "it is followed for ever");
        let pauses = master.pauses();
        assert!(pauses.len() > 1, "{pauses:?}");
        for taken in pauses {
            assert_eq!(taken.as_secs(), pause, "after {lives} s: {taken:?}");
        }
    }
}

#[test]
fn changes_are_published_once_and_versions_are_kept() {
    let view = View::default();
    let first = service("web", "7", "10.96.0.1");
    assert_eq!(taken(&view, "ADDED", &first), (true, "7".to_owned()));
    let same = service("web", "8", "10.96.0.1");
    assert_eq!(taken(&view, "MODIFIED", &same), (false, "8".to_owned()));
    let mark = json!({"metadata": {"resourceVersion": "9"}});
    assert_eq!(taken(&view, "BOOKMARK", &mark), (false, "9".to_owned()));
    assert_eq!(view.now().services.as_ref().unwrap().len(), 1);
    assert!(taken(&view, "DELETED", &same).0);
    assert!(view.now().services.as_ref().unwrap().is_empty());
}
