//! Histories that no controller may write, to show that every invariant can fail: each is right
//! until its last revision, which breaks one invariant. There is one for each assertion in a file
//! of invariants.

use super::api::Deletion;
use super::machines::{Machine, State};
use super::parts::{self, Part};
use super::world::{Style, World};
use super::{Scenario, Scope};
use config_kube::taints::{NO_EXECUTE, UNREACHABLE};
use serde_json::{Value, json};
use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tokio::runtime::Runtime;

/// A revision of the store, or another change that invariants see.
pub(crate) enum Step {
    /// An object of a kind exists in this state.
    Is(&'static str, Value),
    /// The object of a kind and name is deleted.
    Gone(&'static str, &'static str),
    /// A user deletes the object of a kind and name.
    Deletes(&'static str, &'static str, &'static str),
    /// A change of the world beside the store, such as what runs on its machines.
    World(fn(&mut World)),
}

/// A history, and the expected message of its invariant at the last step.
pub(crate) struct Wrong {
    pub(crate) says: &'static str,
    pub(crate) steps: Vec<Step>,
}

pub(crate) fn wrong(says: &'static str, steps: impl Into<Vec<Step>>) -> Wrong {
    let steps = steps.into();
    Wrong { says, steps }
}

/// A world at its start: three machines that are up, two replicas of `web` with no `maxUnavailable`
/// and a `maxSurge` of one, and a Job with two pods at once.
fn world(runtime: &Runtime, scope: Scope, part: Option<Box<dyn Part>>) -> World {
    let scenario = Scenario::calm(scope);
    let mut world = runtime.block_on(World::empty(0, scenario));
    (world.replicas, world.most) = (2, 2);
    (world.missing, world.surge) = (0, 1);
    (world.parallelism, world.completions) = (2, 2);
    world.style = Style::default();
    let now = world.processes.now;
    world.machines = (0..scenario.machines)
        .map(|number| Machine {
            state: State::Up,
            removed: None,
            ..Machine::new(number, now)
        })
        .collect();
    world.parts.extend(part);
    world
}

/// Makes a step and checks the invariants; returns their message if one fails.
fn take(runtime: &Runtime, world: &mut World, step: Step) -> Result<(), String> {
    let taken = catch_unwind(AssertUnwindSafe(|| {
        match step {
            Step::Is(kind, object) => world.history.invent(kind, &object),
            Step::Gone(kind, name) => world.history.invent_end(kind, name),
            Step::Deletes(by, kind, name) => world.processes.api.invent(Deletion {
                by: by.to_owned(),
                kind,
                name: name.to_owned(),
            }),
            Step::World(change) => change(world),
        }
        runtime.block_on(world.look());
        world.check();
    }));
    taken.map_err(|panic| words(&*panic))
}

/// The message of a panic.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_default()
}

/// Plays a history; returns what is wrong with it: it breaks another invariant, breaks it too
/// early, or breaks none.
fn fault(scope: Scope, part: Option<Box<dyn Part>>, mut wrong: Wrong) -> Option<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut world = world(&runtime, scope, part);
    let last = wrong.steps.pop().unwrap();
    for (number, step) in wrong.steps.into_iter().enumerate() {
        if let Err(said) = take(&runtime, &mut world, step) {
            return Some(format!("{:?}: step {number} says {said:?}", wrong.says));
        }
    }
    match take(&runtime, &mut world, last) {
        Err(said) if said.contains(wrong.says) => None,
        other => Some(format!("{:?}: the last step says {other:?}", wrong.says)),
    }
}

/// Some fields of an object, in place of its own or beside them.
pub(crate) fn with(mut object: Value, more: &Value) -> Value {
    for (field, value) in more.as_object().unwrap() {
        let own = object[field].take();
        object[field] = if own.is_object() && value.is_object() {
            with(own, value)
        } else {
            value.clone()
        };
    }
    object
}

/// An object with its name as UID.
pub(crate) fn named(name: &str, more: &Value) -> Value {
    let meta = json!({"namespace": "default", "name": name, "uid": name});
    with(json!({"metadata": meta, "spec": {}}), more)
}

/// A pod of an application.
pub(crate) fn pod(app: &str, name: &str, more: &Value) -> Step {
    let usual = json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": []},
        "status": {"phase": "Running"}});
    Step::Is("pods", with(named(name, &usual), more))
}

/// Fields of a pod on a node.
pub(crate) fn on(node: &str) -> Value {
    json!({"spec": {"nodeName": node}})
}

/// Fields of a pod that serves.
pub(crate) fn ready() -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

/// Fields of an object that another controls.
pub(crate) fn owned(api: &str, kind: &str, name: &str) -> Value {
    let owner =
        json!({"apiVersion": api, "kind": kind, "name": name, "uid": name, "controller": true});
    json!({"metadata": {"ownerReferences": [owner]}})
}

/// Fields of a pod for a completion index of its Job.
pub(crate) fn of_index(index: &str) -> Value {
    json!({"metadata": {"annotations": {"batch.kubernetes.io/job-completion-index": index}}})
}

/// Fields of a daemon for a node.
pub(crate) fn meant_for(node: &str) -> Value {
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
    json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}})
}

fn of_history() -> Vec<Wrong> {
    let set = named("set", &json!({"spec": {"selector": {}}}));
    vec![wrong(
        "it is garbage to the collector, and has its owner",
        [
            Step::Is("replicasets", set),
            pod("any", "a", &owned("apps/v1", "ReplicaSet", "set")),
            Step::Deletes("system:controller:garbage-collector", "pods", "a"),
        ],
    )]
}

/// The Job of every world, as its status says.
fn job(status: Value) -> Step {
    let fields = json!({"spec": {"template": {}}, "status": status});
    Step::Is("jobs", named("all", &fields))
}

/// A ReplicaSet of the Deployment of every world.
fn set(name: &str, replicas: i32) -> Step {
    let fields = json!({"spec": {"replicas": replicas, "selector": {}},
        "status": {"replicas": replicas, "availableReplicas": replicas}});
    let fields = with(fields, &owned("apps/v1", "Deployment", "web"));
    Step::Is("replicasets", named(name, &fields))
}

fn of_workloads() -> Vec<Wrong> {
    let none = json!({});
    let available =
        json!({"spec": {"selector": {}, "template": {}}, "status": {"availableReplicas": 2}});
    let succeeded: fn(&mut World) = |world| {
        let pods = ["a", "b", "c"].map(str::to_owned);
        world.succeeded.extend(pods);
    };
    vec![
        wrong(
            "a pod was taken from its node",
            [
                pod("any", "a", &none),
                Step::World(|world| world.bound.extend(["a".to_owned()])),
                Step::Gone("pods", "a"),
            ],
        ),
        wrong(
            "the Job says (0, 0) after (1, 0)",
            [
                Step::World(succeeded),
                job(json!({"succeeded": 1})),
                job(none.clone()),
            ],
        ),
        wrong(
            "(1, 0): a success is counted twice",
            [job(none.clone()), job(json!({"succeeded": 1}))],
        ),
        wrong(
            "(3, 0): more than is wanted",
            [
                Step::World(succeeded),
                job(json!({"succeeded": 2})),
                job(json!({"succeeded": 3})),
            ],
        ),
        wrong(
            "1 of 0: a failure is counted twice",
            [job(none.clone()), job(json!({"failed": 1}))],
        ),
        wrong(
            "4 replicas: beyond the surge of what was ever wanted",
            [set("web-1", 2), set("web-2", 1), set("web-2", 2)],
        ),
        wrong(
            "more run at once than the Job allows",
            ["a", "b", "c"].map(|name| pod("all", name, &none)),
        ),
        wrong(
            "two pods run for the index 0",
            ["a", "b"].map(|name| pod("all", name, &of_index("0"))),
        ),
        wrong(
            "more than the ReplicaSet wants",
            ["a", "b", "c", "d"].map(|name| pod("safe", name, &none)),
        ),
        wrong(
            "two daemons on a node",
            ["a", "b"].map(|name| pod("each", name, &meant_for("n0"))),
        ),
        wrong(
            "1 of 2 serve",
            [
                pod("web", "a", &ready()),
                pod("web", "b", &ready()),
                set("web-1", 2),
                Step::Is("deployments", named("web", &available)),
                pod("web", "b", &none),
            ],
        ),
        wrong(
            "1 are left: the budget is violated",
            [
                pod("safe", "a", &ready()),
                pod("safe", "b", &ready()),
                pod("safe", "c", &ready()),
                pod("safe", "c", &none),
                pod("safe", "b", &none),
            ],
        ),
        wrong(
            "db-1 came before {}",
            ["db-0", "db-1"].map(|name| pod("db", name, &none)),
        ),
    ]
}

/// A Node with this status of the condition `Ready`.
fn node(name: &str, ready: &str, more: &Value) -> Step {
    let conditions = json!([{"type": "Ready", "status": ready}]);
    let fields =
        json!({"metadata": {"name": name, "uid": name}, "status": {"conditions": conditions}});
    Step::Is("nodes", with(fields, more))
}

fn of_control_plane() -> Vec<Wrong> {
    let none = json!({});
    let fills = |name: &str| {
        let asked = json!({"requests": {"cpu": "600m"}});
        let spec = json!({"nodeName": "n0", "schedulerName": "default-scheduler",
            "containers": [{"name": "c", "resources": asked}]});
        pod("any", name, &json!({"spec": spec}))
    };
    let unreachable = json!({"key": UNREACHABLE, "effect": NO_EXECUTE});
    let emptied = |name: &str| {
        let taints = json!({"spec": {"taints": [unreachable]}});
        node(name, "True", &taints)
    };
    vec![
        wrong(
            "a pod is bound twice, now to n1",
            ["n0", "n1"].map(|node| pod("any", "a", &on(node))),
        ),
        wrong(
            "n0: 1200 of 1000 thousandths are given by them",
            ["a", "b"].map(fills),
        ),
        wrong(
            "db-0 runs twice",
            [
                Step::World(|world| run(world, 0)),
                Step::World(|world| run(world, 1)),
            ],
        ),
        wrong(
            "a pod is said to have failed on n0, where it may run",
            [
                pod("any", "a", &on("n0")),
                pod(
                    "any",
                    "a",
                    &with(on("n0"), &json!({"status": {"phase": "Failed"}})),
                ),
            ],
        ),
        wrong(
            "n0 is given up after 0ns",
            ["True", "Unknown"].map(|ready| node("n0", ready, &none)),
        ),
        wrong(
            "n2 is emptied Some(0ns) after another node of its zone",
            ["n0", "n2"].map(emptied),
        ),
        wrong(
            "a is driven out of n0 after None",
            [
                pod("any", "a", &on("n0")),
                Step::Deletes("system:controller:taint-eviction", "pods", "a"),
            ],
        ),
        wrong(
            "a is collected before it has a node",
            [
                pod("any", "a", &none),
                Step::Deletes("system:controller:pod-gc", "pods", "a"),
            ],
        ),
        wrong(
            "a is collected from n0, gone None",
            [
                pod("any", "a", &on("n0")),
                Step::Deletes("system:controller:pod-gc", "pods", "a"),
            ],
        ),
    ]
}

/// A place is kept for `b` until `b` is deleted.
fn of_waits() -> Vec<Wrong> {
    fn pass(world: &mut World, rounds: usize) {
        for _ in 0..rounds {
            world.pass(Duration::from_secs(10));
        }
    }
    let asking = |name, cpu: &str, more: &Value| {
        let asked = json!({"requests": {"cpu": cpu}});
        let spec = json!({"containers": [{"name": "c", "resources": asked}]});
        pod("any", name, &with(json!({"spec": spec}), more))
    };
    let nominated = json!({"status": {"nominatedNodeName": "n0"}});
    vec![wrong(
        "a waits while n0 has room, for 8 rounds",
        [
            node("n0", "True", &json!({})),
            asking("ends", "300m", &on("n0")),
            asking("b", "800m", &nominated),
            asking("a", "600m", &json!({})),
            Step::World(|world| pass(world, 8)),
            Step::Gone("pods", "b"),
            Step::World(|world| pass(world, 7)),
            Step::World(|world| pass(world, 1)),
        ],
    )]
}

/// A machine runs a pod of a StatefulSet.
fn run(world: &mut World, number: usize) {
    let pod = named("db-0", &owned("apps/v1", "StatefulSet", "db"));
    let pod = serde_json::from_value(pod).unwrap();
    let uid = format!("the one on {number}");
    world.machines[number].runs.insert(uid, pod);
}

/// Makes a part with the settings that its histories need.
pub(crate) type New = fn() -> Box<dyn Part>;

/// Invariants of a file, and a history for each.
pub(crate) struct Table {
    pub(crate) source: &'static str,
    pub(crate) scope: Scope,
    pub(crate) part: Option<New>,
    pub(crate) all: Vec<Wrong>,
}

#[test]
fn every_invariant_fails_when_a_history_breaks_it_and_not_before() {
    let table = |source, scope, all| Table {
        source,
        scope,
        part: None,
        all,
    };
    let mut tables = vec![
        table(include_str!("history.rs"), Scope::Workloads, of_history()),
        table(
            include_str!("invariants.rs"),
            Scope::Workloads,
            of_workloads(),
        ),
        table(
            include_str!("laws.rs"),
            Scope::ControlPlane,
            of_control_plane(),
        ),
        table(include_str!("waits.rs"), Scope::ControlPlane, of_waits()),
    ];
    tables.extend(parts::wrong::tables());
    let mut said = BTreeSet::new();
    let mut faults = Vec::new();
    for Table {
        source,
        scope,
        part,
        all,
    } in tables
    {
        let first = source.lines().next().unwrap_or_default();
        let asserted = source.matches("assert!(").count();
        if asserted != all.len() {
            faults.push(format!(
                "{first} {asserted} invariants, {} wrong histories",
                all.len()
            ));
        }
        for wrong in all {
            assert!(said.insert(wrong.says), "two say {:?}", wrong.says);
            faults.extend(fault(scope, part.map(|new| new()), wrong));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
