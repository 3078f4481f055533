//! Tests of the plan of EndpointSlices: labels, conditions, families, and slices that fill and
//! empty.

use super::super::{Target, ZoneView};
use super::*;
use jiff::Timestamp;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn port(name: &str, target: Target) -> PortView {
    PortView {
        name: name.to_owned(),
        protocol: "TCP".to_owned(),
        app_protocol: None,
        target,
    }
}

fn service() -> ServiceView {
    ServiceView {
        uid: "service-uid".to_owned(),
        selector: [("app".to_owned(), "web".to_owned())].into(),
        families: vec!["IPv4".to_owned()],
        ports: vec![port("", Target::Number(8080))],
        ..ServiceView::default()
    }
}

fn pod(number: u8) -> Backend {
    Backend {
        uid: format!("uid-{number}"),
        node: "n".into(),
        addresses: [format!("10.0.0.{number}"), format!("fd00::{number}")]
            .map(|text| text.parse::<IpAddr>().unwrap())
            .into(),
        ready: true,
        ..Backend::default()
    }
}

fn facts(service: ServiceView, pods: Vec<Backend>) -> Facts {
    let zone = Some("z".to_owned());
    let selected = |pod: Backend| Selected {
        name: pod.uid.replace("uid", "pod"),
        pod: Arc::new(pod),
        node: Some(Arc::new(ZoneView { zone: zone.clone() })),
    };
    Facts {
        key: Key::new("shop", "web"),
        service: Arc::new(service),
        pods: pods.into_iter().map(selected).collect(),
        slices: Vec::new(),
    }
}

/// The slices after these actions, as the API would hold them.
fn after(facts: &Facts, actions: Vec<Action>, made: &mut usize) -> Vec<(Arc<Key>, Arc<SliceView>)> {
    let mut slices: BTreeMap<Key, Arc<SliceView>> = facts
        .slices
        .iter()
        .map(|(key, slice)| ((**key).clone(), Arc::clone(slice)))
        .collect();
    for action in actions {
        match action {
            Action::Create(mut slice) => {
                *made += 1;
                assert_eq!(slice.metadata.generate_name.as_deref(), Some("web-"));
                slice.metadata.name = Some(format!("web-{made:05}"));
                slice.metadata.uid = Some(format!("slice-{made}"));
                let key = Key::of(&slice.metadata);
                slices.insert(key, Arc::new(master_client::View::read(*slice)));
            }
            Action::Update(slice) => {
                let key = Key::of(&slice.metadata);
                let before = slices.insert(key, Arc::new(master_client::View::read(*slice)));
                assert!(before.is_some(), "what is not there can't change");
            }
            Action::Delete { key, .. } => assert!(slices.remove(&key).is_some()),
        }
    }
    let shared = |(key, slice)| (Arc::new(key), slice);
    slices.into_iter().map(shared).collect()
}

fn addresses(slices: &[(Arc<Key>, Arc<SliceView>)]) -> Vec<String> {
    let all = slices.iter().flat_map(|(_, slice)| &slice.endpoints);
    let mut all: Vec<String> = all.flat_map(|one| one.addresses.clone()).collect();
    all.sort();
    all
}

#[test]
fn a_services_first_slice_names_its_pods_its_owner_and_its_keeper() {
    let mut service = service();
    service.labels.insert("team".to_owned(), "a".to_owned());
    let facts = facts(service, vec![pod(1)]);
    let actions = reconcile(&facts);
    let [Action::Create(slice)] = actions.as_slice() else {
        unreachable!("{actions:?}")
    };
    let labels = slice.metadata.labels.as_ref().unwrap();
    let expected = [(MANAGED_BY, MANAGER), (SERVICE_NAME, "web"), ("team", "a")];
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    assert_eq!(labels.clone().into_iter().collect::<Vec<_>>(), expected);
    let owners = slice.metadata.owner_references.as_ref().unwrap();
    assert_eq!(
        (owners[0].kind.as_str(), &*owners[0].uid),
        ("Service", "service-uid")
    );
    let endpoint = &slice.endpoints.as_ref().unwrap()[0];
    assert_eq!(endpoint.addresses, ["10.0.0.1"]);
    assert_eq!(endpoint.node_name.as_deref(), Some("n"));
    assert_eq!(endpoint.zone.as_deref(), Some("z"));
    let target = endpoint.target_ref.as_ref().unwrap();
    assert_eq!(
        (target.name.as_deref(), target.uid.as_deref()),
        (Some("pod-1"), Some("uid-1"))
    );
    assert_eq!(slice.ports.as_ref().unwrap()[0].port, Some(8080));
}

#[test]
fn conditions_say_who_is_ready_who_serves_and_who_goes() {
    let conditions = |service: ServiceView, pod: Backend| {
        let facts = facts(service, vec![pod]);
        let all = endpoints(&facts, "IPv4");
        all.first().map(|one| {
            let conditions = one.endpoint.conditions.clone().unwrap();
            let all = [conditions.ready, conditions.serving, conditions.terminating];
            all.map(Option::unwrap)
        })
    };
    let with = |ready, terminating, ended| Backend {
        ready,
        terminating,
        ended,
        ..pod(1)
    };
    assert_eq!(
        conditions(service(), with(true, false, false)),
        Some([true, true, false])
    );
    assert_eq!(
        conditions(service(), with(false, false, false)),
        Some([false, false, false])
    );
    assert_eq!(
        conditions(service(), with(true, true, false)),
        Some([false, true, true])
    );
    assert_eq!(conditions(service(), with(true, false, true)), None);
    let all = ServiceView {
        publish_not_ready: true,
        ..service()
    };
    assert_eq!(
        conditions(all.clone(), with(false, true, false)),
        Some([true, false, true])
    );
    let waiting = Backend {
        addresses: Box::default(),
        ..pod(1)
    };
    assert_eq!(conditions(all, waiting), None);
}

#[test]
fn pods_of_a_node_that_is_gone_count_only_where_all_do() {
    let mut gone = facts(service(), vec![pod(1)]);
    gone.pods[0].node = None;
    assert!(endpoints(&gone, "IPv4").is_empty());
    gone.service = Arc::new(ServiceView {
        publish_not_ready: true,
        ..service()
    });
    assert_eq!(endpoints(&gone, "IPv4").len(), 1);
}

#[test]
fn each_family_has_slices_of_its_own_and_one_without_endpoints_says_so() {
    let both = ServiceView {
        families: vec!["IPv4".to_owned(), "IPv6".to_owned()],
        ..service()
    };
    let mut made = 0;
    let mut state = facts(both, vec![pod(1)]);
    state.slices = after(&state, reconcile(&state), &mut made);
    assert_eq!(addresses(&state.slices), ["10.0.0.1", "fd00::1"]);
    state.pods.clear();
    state.slices = after(&state, reconcile(&state), &mut made);
    assert_eq!(state.slices.len(), 2, "one for each family");
    assert!(addresses(&state.slices).is_empty());
    assert_eq!(reconcile(&state), [], "and they stay");
    state.service = Arc::new(service());
    state.slices = after(&state, reconcile(&state), &mut made);
    let [(_, slice)] = state.slices.as_slice() else {
        unreachable!("{:?}", state.slices)
    };
    assert_eq!(slice.family, "IPv4");
}

#[test]
fn pods_whose_named_ports_differ_are_in_different_slices() {
    let named = ServiceView {
        ports: vec![port("http", Target::Name("web".to_owned()))],
        ..service()
    };
    let with = |number, port| Backend {
        ports: [("web".to_owned(), "TCP".to_owned(), port)].into(),
        ..pod(number)
    };
    let mut state = facts(named, vec![with(1, 80), with(2, 8080), with(3, 80), pod(4)]);
    state.slices = after(&state, reconcile(&state), &mut 0);
    let ports = |slice: &SliceView| slice.ports.iter().map(|port| port.port).collect();
    let mut seen: Vec<(Vec<Option<i32>>, usize)> = state
        .slices
        .iter()
        .map(|(_, slice)| (ports(slice), slice.endpoints.len()))
        .collect();
    seen.sort();
    // The last pod has no port of that name.
    assert_eq!(
        seen,
        [(vec![], 1), (vec![Some(80)], 2), (vec![Some(8080)], 1)]
    );
}

/// Each pod has a list of ports of its own, and all start with the same ones: comparing them with
/// each other and with each slice would take longer than any test may run.
#[test]
fn lists_of_ports_are_not_compared_with_each_other() {
    const PODS: usize = 500;
    let mut ports: Vec<PortView> = (0..1_000)
        .map(|number| port(&format!("p{number}"), Target::Number(number)))
        .collect();
    ports.push(port("last", Target::Name("own".to_owned())));
    let service = ServiceView { ports, ..service() };
    let with = |number: usize| Backend {
        uid: format!("uid-{number}"),
        ports: [(
            "own".to_owned(),
            "TCP".to_owned(),
            i32::try_from(number).unwrap(),
        )]
        .into(),
        ..pod(1)
    };
    let mut state = facts(service, (1..=PODS).map(with).collect());
    let lists: Vec<Group> = groups(&state, "IPv4");
    assert_eq!(lists.len(), PODS);
    // Slices of which all but one are no longer wanted.
    let slice = |number: usize| {
        let ports = super::ports(&state.service, &lists[number].numbers);
        let ports = ports.into_iter().rev().collect();
        let slice = SliceView {
            uid: format!("slice-{number}"),
            family: "IPv4".to_owned(),
            ports,
            ..SliceView::default()
        };
        let key = Key::new("shop", &format!("web-{number}"));
        (Arc::new(key), Arc::new(slice))
    };
    let slices: Vec<_> = (0..200).map(slice).collect();
    state.slices = slices;
    let mut own = OwnSlices::of(&state, "IPv4");
    for group in &lists {
        let ports = super::ports(&state.service, &group.numbers);
        assert!(own.take(&ports).is_empty());
    }
    let kept = own.take(&state.slices[7].1.ports);
    assert_eq!(kept.len(), 1);
    assert_eq!(own.rest().count(), 199);
}

#[test]
fn a_slice_says_when_the_change_came_about_that_it_shows() {
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    let said = |actions: &[Action]| {
        let (Some(Action::Create(slice) | Action::Update(slice)), 1) =
            (actions.first(), actions.len())
        else {
            unreachable!("{actions:?}")
        };
        let annotations = slice.metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(TRIGGER).cloned())
    };
    let with = |ready: bool, second: i64, number| Backend {
        ready,
        changed: Some(at(second)),
        ..pod(number)
    };
    let made = ServiceView {
        created: Some(at(7)),
        ..service()
    };
    let mut made_slices = 0;
    let mut state = facts(made, vec![with(true, 20, 1), with(false, 10, 2)]);
    let actions = reconcile(&state);
    assert_eq!(said(&actions), Some(at(7).to_string()), "the service");
    state.slices = after(&state, actions, &mut made_slices);
    state.pods[1].pod = Arc::new(with(true, 30, 2));
    let actions = reconcile(&state);
    assert_eq!(said(&actions), Some(at(30).to_string()), "a pod is ready");
    state.slices = after(&state, actions, &mut made_slices);
    assert_eq!(reconcile(&state).len(), 0);
    // The deletion of a pod has no known time.
    state.pods[0].pod = Arc::new(Backend {
        terminating: true,
        ..with(true, 20, 1)
    });
    assert_eq!(said(&reconcile(&state)), None);
}

#[test]
fn a_node_without_a_zone_has_its_own_callers() {
    let hints = |distribution: &str, zone: Option<&str>, node: &str| {
        let near = ServiceView {
            distribution: Some(distribution.to_owned()),
            publish_not_ready: true,
            ..service()
        };
        let placed = Backend {
            node: node.into(),
            ..pod(1)
        };
        let mut state = facts(near, vec![placed]);
        state.pods[0].node = Some(Arc::new(ZoneView {
            zone: zone.map(str::to_owned),
        }));
        let hints = endpoints(&state, "IPv4").remove(0).endpoint.hints?;
        let nodes = hints.for_nodes.map(|mut all| all.remove(0).name);
        let zones = hints.for_zones.map(|mut all| all.remove(0).name);
        Some((nodes, zones))
    };
    let name = |name: &str| Some(name.to_owned());
    assert_eq!(hints("PreferSameNode", None, "n"), Some((name("n"), None)));
    assert_eq!(
        hints("PreferSameNode", Some("z"), "n"),
        Some((name("n"), name("z")))
    );
    assert_eq!(hints("PreferSameNode", None, ""), None);
    assert_eq!(
        hints("PreferClose", Some("z"), "n"),
        Some((None, name("z")))
    );
    assert_eq!(hints("PreferClose", None, "n"), None);
}

#[test]
fn slices_have_hosts_of_a_headless_service_and_hints_to_near_endpoints() {
    let headless = ServiceView {
        headless: true,
        distribution: Some("PreferSameNode".to_owned()),
        ..service()
    };
    let hosts = Backend {
        hostname: "web-0".into(),
        subdomain: "web".into(),
        ..pod(1)
    };
    let state = facts(headless, vec![hosts]);
    let endpoint = endpoints(&state, "IPv4").remove(0).endpoint;
    assert_eq!(endpoint.hostname.as_deref(), Some("web-0"));
    let hints = endpoint.hints.unwrap();
    assert_eq!(hints.for_zones.unwrap()[0].name, "z");
    assert_eq!(hints.for_nodes.unwrap()[0].name, "n");
    let Action::Create(slice) = reconcile(&state).remove(0) else {
        unreachable!("a slice is made")
    };
    assert!(slice.metadata.labels.unwrap().contains_key(HEADLESS));
}

#[test]
fn a_slice_takes_the_place_of_an_empty_one_and_no_endpoint_is_missing_meanwhile() {
    let named = |target: &str| ServiceView {
        ports: vec![port("", Target::Name(target.to_owned()))],
        ..service()
    };
    let with_ports = |number: u8| Backend {
        ports: [("a", 80), ("b", 90)]
            .map(|(name, port)| (name.to_owned(), "TCP".to_owned(), port + i32::from(number)))
            .into(),
        ..pod(number)
    };
    let pods = || vec![with_ports(1), with_ports(2)];
    let mut made = 0;
    let mut state = facts(named("a"), Vec::new());
    state.slices = after(&state, reconcile(&state), &mut made);
    let mut next = |service: ServiceView, pods: Vec<Backend>| {
        let slices = std::mem::take(&mut state.slices);
        state = Facts {
            slices,
            ..facts(service, pods)
        };
        let actions = reconcile(&state);
        state.slices = after(&state, actions.clone(), &mut made);
        assert_eq!(reconcile(&state), []);
        actions
    };
    // The slice that showed that there are no endpoints.
    let actions = next(named("a"), pods());
    let [Action::Create(_), Action::Update(slice)] = actions.as_slice() else {
        unreachable!("{actions:?}")
    };
    assert_eq!(slice.metadata.name.as_deref(), Some("web-00001"));
    assert_eq!(slice.metadata.generate_name, None);
    assert_eq!(slice.endpoints.as_ref().map(Vec::len), Some(1));
    // Slices with other ports have endpoints: they stay until the new ones have them.
    let actions = next(named("b"), pods());
    let created = actions.iter().map(|one| matches!(one, Action::Create(_)));
    assert_eq!(created.collect::<Vec<_>>(), [true, true, false, false]);
    // Slices of an earlier service of the name are not reused.
    next(named("b"), Vec::new());
    let later = ServiceView {
        uid: "another".to_owned(),
        ..named("a")
    };
    let actions = next(later, vec![with_ports(1)]);
    let [Action::Create(_), Action::Delete { .. }] = actions.as_slice() else {
        unreachable!("{actions:?}")
    };
}

#[test]
fn a_change_of_one_pod_writes_one_slice() {
    let pods: Vec<Backend> = (0..=249).map(pod).collect();
    let mut made = 0;
    let mut state = facts(service(), pods.clone());
    state.slices = after(&state, reconcile(&state), &mut made);
    assert_eq!(state.slices.len(), 3);
    let mut changed = pods;
    changed[120].ready = false;
    let next = Facts {
        slices: state.slices,
        ..facts(service(), changed)
    };
    let actions = reconcile(&next);
    assert!(
        matches!(actions.as_slice(), [Action::Update(_)]),
        "{actions:?}"
    );
}

proptest! {
    /// Whatever changed before, slices are right after one round, and a second round has nothing to
    /// do.
    #[test]
    fn slices_hold_each_endpoint_once(rounds in proptest::collection::vec(
        (proptest::collection::btree_set(0_u8..=255, 0..256), any::<bool>(), any::<bool>()), 1..6,
    )) {
        let (mut made, mut slices) = (0, Vec::new());
        for (numbers, ready, dual) in rounds {
            let mut service = service();
            service.families.extend(dual.then(|| "IPv6".to_owned()));
            let pods = numbers.iter().map(|number| Backend { ready, ..pod(*number) });
            let mut state = Facts { slices, ..facts(service, pods.collect()) };
            let actions = reconcile(&state);
            state.slices = after(&state, actions, &mut made);
            let ipv4 = numbers.iter().map(|number| format!("10.0.0.{number}"));
            let ipv6 = numbers.iter().filter(|_| dual).map(|number| format!("fd00::{number}"));
            let ipv6 = ipv6.map(|text| text.parse::<IpAddr>().unwrap().to_string());
            let mut expected: Vec<String> = ipv4.chain(ipv6).collect();
            expected.sort();
            prop_assert_eq!(addresses(&state.slices), expected);
            let families: BTreeSet<&str> = state.slices.iter().map(|(_, slice)| slice.family.as_str()).collect();
            prop_assert_eq!(families.len(), if dual { 2 } else { 1 });
            for (_, slice) in &state.slices {
                prop_assert!(slice.endpoints.len() <= MAX_ENDPOINTS);
                let reports = |one: &Endpoint| one.conditions.as_ref().unwrap().ready == Some(ready);
                prop_assert!(slice.endpoints.iter().all(reports));
            }
            prop_assert_eq!(reconcile(&state), []);
            slices = state.slices;
        }
    }
}
