//! Plans of the controllers of namespaces, service accounts, tokens, certificate requests, events
//! and quotas.

use super::{Scene, key, named, pod};
use jiff::{SignedDuration, Timestamp};
use master_client::Key;
use master_control::controller::Plan;
use master_control::options::Options;
use master_control::views::account::AccountView;
use master_control::views::fingerprint;
use master_control::views::namespace::NamespaceView;
use master_control::views::pod::PodView;
use master_control::views::request::RequestView;
use master_control::views::token::{SigningToken, TokenView};
use master_control_cluster::{
    account_tokens, aggregation, bootstrap_signer, bootstrap_tokens, ephemeral_volume, event_ttl,
    flow_schemas, in_use, namespace, quota, root_ca, service_account,
};
use master_control_network::service_ranges;
use master_control_nodes::{approver, csr_cleaner};
use serde_json::json;
use std::time::Duration;

#[test]
fn events_go_an_hour_after_they_were_seen_last() {
    let mut scene = Scene::<event_ttl::EventTtl>::new();
    for (name, seconds) in [("old", 0), ("young", 1)] {
        let event = event_ttl::EventView {
            uid: name.to_owned(),
            times: vec![scene.clock.after(seconds).wall],
        };
        scene.set(key(name), event);
    }
    let gone = event_ttl::Delete {
        key: key("old"),
        uid: "old".to_owned(),
    };
    assert_eq!(scene.plan(&key("old"), 3600), Plan::act(gone));
    assert_eq!(
        scene.plan(&key("young"), 3600),
        Plan::wait(Duration::from_secs(1))
    );
}

#[test]
fn an_event_of_the_far_future_goes_an_hour_after_it_was_made() {
    let mut scene = Scene::<event_ttl::EventTtl>::new();
    let at = |seconds| scene.clock.after(seconds).wall;
    let end: Timestamp = "9999-01-01T00:00:00Z".parse().unwrap();
    // The time of the second one passes at some point: it stays an hour longer then, not for ever.
    let events = [
        ("forever", vec![at(0), end]),
        ("ahead", vec![at(0), at(1800), end]),
    ];
    for (name, times) in events {
        let uid = name.to_owned();
        scene.set(key(name), event_ttl::EventView { uid, times });
    }
    assert_eq!(
        scene.plan(&key("forever"), 60),
        Plan::wait(Duration::from_secs(3540))
    );
    assert_eq!(
        scene.busy(&[&key("forever"), &key("ahead")], 3600),
        ["forever"]
    );
    assert_eq!(scene.busy(&[&key("ahead")], 7200), ["ahead"]);
}

#[test]
fn a_flow_schema_says_whether_its_priority_level_is_there() {
    let mut scene = Scene::<flow_schemas::FlowSchemas>::new();
    let schema = |condition: Option<(&str, &str)>| flow_schemas::SchemaView {
        uid: "uid".to_owned(),
        level: "low".to_owned(),
        condition: condition.map(|(status, message)| (status.to_owned(), message.to_owned())),
    };
    let update = |found: bool, message: &str| {
        Plan::act(flow_schemas::UpdateStatus {
            name: "all".to_owned(),
            uid: "uid".to_owned(),
            found,
            message: message.to_owned(),
        })
    };
    let all = Key::cluster("all");
    let missing = "This FlowSchema references the PriorityLevelConfiguration object named \"low\" but there is no such object";
    let found = "This FlowSchema references the PriorityLevelConfiguration object named \"low\" and it exists";
    scene.set(all.clone(), schema(None));
    assert_eq!(scene.plan(&all, 0), update(false, missing));
    scene.set(all.clone(), schema(Some(("True", missing))));
    assert_eq!(scene.plan(&all, 0), Plan::nothing());
    scene.set(Key::cluster("low"), flow_schemas::LevelView);
    assert_eq!(scene.plan(&all, 0), update(true, found));
    scene.set(all.clone(), schema(Some(("False", found))));
    assert_eq!(scene.plan(&all, 0), Plan::nothing());
}

#[test]
fn requests_go_an_hour_after_the_decision_or_after_a_day() {
    let mut scene = Scene::<csr_cleaner::CsrCleaner>::new();
    for (name, decided) in [("decided", true), ("pending", false)] {
        let request = RequestView {
            uid: name.to_owned(),
            last: scene.clock.1,
            decided,
            signer: String::new(),
        };
        scene.set(named(name), request);
    }
    let keys = [&named("decided"), &named("pending")];
    assert_eq!(scene.busy(&keys, 3599), [""; 0]);
    assert_eq!(scene.busy(&keys, 3600), ["decided"]);
    assert_eq!(scene.busy(&keys, 24 * 3600).len(), 2);
}

fn namespace(terminating: bool, unfinished: bool) -> NamespaceView {
    NamespaceView {
        uid: "uid".to_owned(),
        terminating,
        unfinished,
    }
}

#[test]
fn every_namespace_that_stays_gets_its_account() {
    use service_account::Create;
    let mut scene = Scene::<service_account::ServiceAccounts>::new();
    scene.set(named("default"), namespace(false, true));
    scene.set(named("going"), namespace(true, true));
    let account = || vec![Create::Account(key("default"))];
    assert_eq!(scene.actions(&named("default"), 0), account());
    assert_eq!(scene.actions(&named("going"), 0), []);
    for name in ["kube-system", "kube-public", "kube-node-lease"] {
        assert_eq!(
            scene.actions(&named(name), 0),
            [Create::Namespace(name.to_owned())]
        );
    }
    let changed = scene.set(key("default"), AccountView::default());
    assert_eq!(changed, [named("default")]);
    assert_eq!(scene.actions(&named("default"), 0), []);
    scene.stand.remove::<AccountView>(&key("default"));
    assert_eq!(scene.actions(&named("default"), 0), account());
}

#[test]
fn only_deleted_namespaces_are_emptied() {
    let mut scene = Scene::<namespace::Namespaces>::new();
    scene.set(named("alive"), namespace(false, true));
    scene.set(named("going"), namespace(true, true));
    scene.set(named("held-by-others"), namespace(true, false));
    let keys = ["alive", "going", "held-by-others"].map(named);
    assert_eq!(scene.busy(&keys.each_ref(), 0), ["going"]);
    assert!(
        scene.plan(&named("going"), 0).requeue.is_some(),
        "until it is empty"
    );
}

#[test]
fn only_open_requests_of_kubelets_are_considered_for_approval() {
    let mut scene = Scene::<approver::Approver>::new();
    let kubelets = "kubernetes.io/kube-apiserver-client-kubelet";
    for (name, decided, signer) in [
        ("open", false, kubelets),
        ("done", true, kubelets),
        ("other", false, "example.com/other"),
    ] {
        let request = RequestView {
            uid: name.to_owned(),
            last: Timestamp::UNIX_EPOCH,
            decided,
            signer: signer.to_owned(),
        };
        scene.set(named(name), request);
    }
    let keys = ["open", "done", "other"].map(named);
    assert_eq!(scene.busy(&keys.each_ref(), 0), ["open"]);
}

fn token(expires: Option<Timestamp>, signing: Option<SigningToken>) -> TokenView {
    TokenView {
        uid: "uid".to_owned(),
        expires,
        signing,
    }
}

#[test]
fn bootstrap_tokens_go_when_their_time_is_over() {
    let mut scene = Scene::<bootstrap_tokens::BootstrapTokens>::new();
    let start = scene.clock.1;
    for (name, seconds) in [("over", Some(-1)), ("later", Some(30)), ("never", None)] {
        let expires = seconds.map(|seconds| start + SignedDuration::from_secs(seconds));
        scene.set(key(name), token(expires, None));
    }
    let keys = ["over", "later", "never"].map(key);
    assert_eq!(scene.busy(&keys.each_ref(), 0), ["over"]);
    assert_eq!(
        scene.plan(&key("later"), 0),
        Plan::wait(Duration::from_secs(30)),
        "in time for the end"
    );
    assert_eq!(scene.plan(&key("never"), 0), Plan::nothing());
}

#[test]
fn the_public_kubeconfig_is_signed_with_the_tokens_that_may_and_with_no_other() {
    use bootstrap_signer::{BootstrapSigner, ClusterInfoView, Sign};
    let mut scene = Scene::<BootstrapSigner>::new();
    let (start, info_key) = (scene.clock.1, Key::new("kube-public", "cluster-info"));
    for (id, seconds, signs) in [
        ("aaaaaa", None, true),
        ("bbbbbb", Some(30), true),
        ("cccccc", Some(-1), true),
        ("dddddd", None, false),
    ] {
        let signing = signs.then(|| SigningToken {
            id: id.to_owned(),
            secret: "secret".to_owned(),
        });
        let expires = seconds.map(|seconds| start + SignedDuration::from_secs(seconds));
        let keys = scene.set(Key::new("kube-system", id), token(expires, signing));
        assert_eq!(keys, std::slice::from_ref(&info_key));
    }
    assert_eq!(
        scene.plan(&info_key, 0),
        Plan::nothing(),
        "there is nothing to sign"
    );
    let mut info = ClusterInfoView {
        version: "7".to_owned(),
        content: Some("kubeconfig".to_owned()),
        ..ClusterInfoView::default()
    };
    let stale = ("eeeeee".to_owned(), "old".to_owned());
    info.signatures.extend([stale]);
    scene.set(info_key.clone(), info.clone());
    let plan = scene.plan(&info_key, 0);
    let [Sign { version, data }] = plan.actions.as_slice() else {
        panic!("{plan:?}")
    };
    let names: Vec<&String> = data.as_object().expect("a map").keys().collect();
    let wanted = ["aaaaaa", "bbbbbb", "eeeeee"].map(|id| format!("jws-kubeconfig-{id}"));
    assert_eq!((version.as_str(), names), ("7", wanted.iter().collect()));
    assert!(
        data["jws-kubeconfig-eeeeee"].is_null(),
        "nobody knows the token any more"
    );
    assert_eq!(
        plan.requeue,
        Some(Duration::from_secs(30)),
        "in time for the end of a token"
    );
    let signed = ["aaaaaa", "bbbbbb"].map(|id| {
        let text = data[format!("jws-kubeconfig-{id}")].as_str();
        (id.to_owned(), text.expect("text").to_owned())
    });
    info.signatures = signed.into();
    scene.set(info_key.clone(), info);
    assert!(scene.actions(&info_key, 0).is_empty(), "all is signed");
    let rest = json!({"jws-kubeconfig-aaaaaa": data["jws-kubeconfig-aaaaaa"], "jws-kubeconfig-bbbbbb": null});
    let sign = Sign {
        version: "7".to_owned(),
        data: rest,
    };
    assert_eq!(scene.actions(&info_key, 31), [sign]);
}

#[test]
fn ranges_are_settled_until_they_serve_or_are_gone() {
    use service_ranges::{AddressView, RangeView, ServiceRanges};
    let mut scene = Scene::<ServiceRanges>::new();
    for (name, terminating, held, ready) in [
        ("serves", false, true, true),
        ("loose", false, false, true),
        ("silent", false, true, false),
        ("going", true, true, false),
        ("gone", true, false, false),
    ] {
        let range = RangeView {
            uid: name.to_owned(),
            terminating,
            held,
            ready,
        };
        scene.set(named(name), range);
    }
    let keys = ["going", "gone", "loose", "serves", "silent"].map(named);
    assert_eq!(
        scene.busy(&keys.each_ref(), 0),
        ["going", "loose", "silent"]
    );
    scene.set(named("10.0.0.1"), AddressView);
    assert_eq!(
        scene.stand.remove::<AddressView>(&named("10.0.0.1")),
        ["going", "gone"].map(named),
        "an address that goes may be the last of a range"
    );
}

#[test]
fn claims_go_once_no_pod_that_runs_uses_them() {
    use in_use::{ClaimView, InUse, VolumeView};
    let mut scene = Scene::<InUse>::new();
    for name in ["used", "ended", "free", "waited"] {
        let uid = name.to_owned();
        scene.set(key(name), ClaimView { uid, waits: true });
    }
    for (claim, phase) in [("used", "Running"), ("ended", "Succeeded")] {
        let user = PodView {
            phase: phase.into(),
            node: "n".into(),
            claims: vec![claim.to_owned()],
            ..PodView::default()
        };
        assert_eq!(scene.set(key(&format!("pod-{claim}")), user), [key(claim)]);
    }
    let pending = |node: &str| PodView {
        phase: "Pending".into(),
        node: node.into(),
        claims: vec!["waited".to_owned()],
        ..PodView::default()
    };
    scene.set(key("pod-waited"), pending(""));
    for (name, bound) in [("bound", true), ("loose", false)] {
        let volume = VolumeView {
            uid: name.to_owned(),
            waits: true,
            bound,
        };
        scene.set(named(name), volume);
    }
    let claims = ["ended", "free", "used", "waited"].map(key);
    assert_eq!(
        scene.busy(&claims.each_ref(), 0),
        ["ended", "free", "waited"],
        "a pod without a node waits for a claim, and holds none"
    );
    let planned = scene.set(key("pod-waited"), pending("n"));
    assert!(planned.contains(&key("waited")));
    assert_eq!(
        scene.busy(&claims.each_ref(), 0),
        ["ended", "free"],
        "on a node it holds them"
    );
    let volumes = ["bound", "loose"].map(named);
    assert_eq!(scene.busy(&volumes.each_ref(), 0), ["loose"]);
}

#[test]
fn a_pod_that_runs_gets_the_claims_of_its_ephemeral_volumes() {
    use ephemeral_volume::{CreateClaims, EphemeralVolumes};
    use in_use::ClaimView;
    let mut scene = Scene::<EphemeralVolumes>::new();
    let own = |phase: &str| PodView {
        uid: "uid".to_owned(),
        phase: phase.into(),
        claims: ["shared", "p-a", "p-b"].map(str::to_owned).into(),
        own_claims: ["p-a", "p-b"].map(str::to_owned).into(),
        ..PodView::default()
    };
    assert_eq!(scene.set(key("p"), own("Pending")), [key("p")]);
    assert_eq!(
        scene.set(key("p-a"), ClaimView::default()),
        [key("p")],
        "a claim that comes or goes concerns the pod"
    );
    let make = CreateClaims {
        pod: key("p"),
        uid: "uid".to_owned(),
        claims: vec!["p-b".to_owned()],
    };
    assert_eq!(scene.actions(&key("p"), 0), [make]);
    scene.set(key("p"), own("Succeeded"));
    assert_eq!(scene.actions(&key("p"), 0), []);
    let going = PodView {
        deleted: Some(scene.clock.after(0).wall),
        ..own("Running")
    };
    scene.set(key("p"), going);
    assert_eq!(scene.actions(&key("p"), 0), []);
    let others = PodView {
        claims: vec!["shared".to_owned()],
        ..PodView::default()
    };
    assert_eq!(
        scene.set(key("q"), others),
        [],
        "no volume of it is ephemeral"
    );
}

#[test]
fn roles_that_gather_get_the_rules_of_those_they_select() {
    use aggregation::{Aggregate, Aggregation, RoleView};
    let role = |value: serde_json::Value, version: &str| RoleView {
        role: serde_json::from_value(value).expect("a role"),
        version: version.to_owned(),
    };
    let granted = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    let mut aggregate = json!({"metadata": {"name": "all"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "all"}}]}});
    let part = json!({"metadata": {"name": "one", "labels": {"to": "all"}}, "rules": [granted]});
    let other = json!({"metadata": {"name": "two"}, "rules": [granted]});
    let mut scene = Scene::<Aggregation>::new();
    scene.set(named("all"), role(aggregate.clone(), "7"));
    assert_eq!(
        scene.set(named("one"), role(part, "8")),
        ["one", "all"].map(named)
    );
    assert_eq!(
        scene.set(named("two"), role(other, "8")),
        [named("two")],
        "it is not gathered"
    );
    let action = Aggregate {
        name: "all".to_owned(),
        version: "7".to_owned(),
        rules: json!([granted]),
    };
    assert_eq!(scene.actions(&named("all"), 0), [action]);
    aggregate["rules"] = json!([granted]);
    scene.set(named("all"), role(aggregate, "9"));
    assert_eq!(scene.actions(&named("all"), 0), []);
}

fn with_root() -> Options {
    Options {
        root_ca: Some(tokio::sync::watch::channel("root".to_owned()).1),
        ..Options::default()
    }
}

#[test]
fn secrets_for_tokens_are_filled_and_go_with_their_account() {
    use account_tokens::{AccountTokenView, AccountTokens, Fill};
    let mut scene = Scene::<AccountTokens>::with(&with_root());
    for (name, account, filled) in [("new", "builder", false), ("lost", "gone", true)] {
        let secret = AccountTokenView {
            uid: name.to_owned(),
            account: account.to_owned(),
            account_uid: String::new(),
            filled,
            root: 0,
        };
        scene.set(key(name), secret);
    }
    let account = AccountView {
        uid: "u".to_owned(),
    };
    assert_eq!(scene.set(key("builder"), account), [key("new")]);
    for name in ["lost", "new"] {
        let fill = Fill {
            key: key(name),
            uid: name.to_owned(),
            root: "root".to_owned(),
        };
        assert_eq!(scene.actions(&key(name), 0), [fill]);
    }
}

#[test]
fn the_secret_of_an_account_that_was_replaced_unseen_goes_though_the_name_is_there() {
    use account_tokens::{AccountTokenView, AccountTokens, Fill};
    let mut scene = Scene::<AccountTokens>::with(&with_root());
    let secret = AccountTokenView {
        uid: "s".to_owned(),
        account: "builder".to_owned(),
        account_uid: "old".to_owned(),
        filled: true,
        root: fingerprint("root"),
    };
    scene.set(key("token"), secret);
    let account = |uid: &str| AccountView {
        uid: uid.to_owned(),
    };
    scene.set(key("builder"), account("old"));
    assert_eq!(scene.actions(&key("token"), 0), []);
    assert_eq!(scene.set(key("builder"), account("new")), [key("token")]);
    let fill = Fill {
        key: key("token"),
        uid: "s".to_owned(),
        root: "root".to_owned(),
    };
    assert_eq!(scene.actions(&key("token"), 0), [fill]);
}

#[test]
fn the_roots_certificate_is_published_in_every_namespace_that_stays() {
    use root_ca::{Publish, PublishedView, RootCa};
    let mut scene = Scene::<RootCa>::with(&with_root());
    scene.set(named("default"), namespace(false, true));
    scene.set(named("going"), namespace(true, true));
    let publish = |replaces: Option<&str>| Publish {
        namespace: "default".to_owned(),
        replaces: replaces.map(str::to_owned),
        root: "root".to_owned(),
    };
    assert_eq!(scene.actions(&named("default"), 0), [publish(None)]);
    assert_eq!(scene.actions(&named("going"), 0), []);
    let wrong = PublishedView {
        version: "7".to_owned(),
        root: 0,
    };
    assert_eq!(scene.set(key(root_ca::NAME), wrong), [named("default")]);
    assert_eq!(scene.actions(&named("default"), 0), [publish(Some("7"))]);
}

#[test]
fn quotas_are_counted_when_they_come_and_when_a_pod_ends() {
    use quota::{QuotaView, Quotas, Recount};
    let mut scene = Scene::<Quotas>::new();
    scene.set(key("p"), pod("a"));
    let ended = || PodView {
        phase: "Succeeded".into(),
        ..pod("a")
    };
    assert_eq!(
        scene.set(key("q"), ended()),
        [],
        "without a quota nothing is noted"
    );
    let quota = QuotaView { settled: true };
    assert_eq!(scene.set(key("quota"), quota), [named("default")]);
    let count = |seen| Recount {
        namespace: "default".to_owned(),
        seen,
    };
    assert_eq!(scene.actions(&named("default"), 0), [count(0)]);
    assert_eq!(scene.set(key("p"), ended()), [named("default")]);
    assert_eq!(scene.actions(&named("default"), 0), [count(1)]);
    assert_eq!(scene.actions(&named("elsewhere"), 0), []);
}

#[test]
fn quotas_are_counted_when_a_pods_spec_changes() {
    use quota::{QuotaView, Quotas};
    let mut scene = Scene::<Quotas>::new();
    scene.set(key("quota"), QuotaView { settled: true });
    let version = |generation| PodView {
        generation,
        ..pod("a")
    };
    assert_eq!(scene.set(key("p"), version(1)), [], "a pod that is new");
    // A deadline, or a resize.
    assert_eq!(scene.set(key("p"), version(2)), [named("default")]);
    let ready = |pod: PodView| PodView {
        ready: !pod.ready,
        ..pod
    };
    assert_eq!(scene.set(key("p"), ready(version(2))), [], "a status");
    let going = PodView {
        deleted: Some(Timestamp::UNIX_EPOCH),
        ..version(3)
    };
    assert_eq!(scene.set(key("p"), going), [], "it still runs");
}
