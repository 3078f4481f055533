//! The binder's plans: upstream's rules one by one, and what holds in any order of changes, of
//! stale looks and of restarts.

use config_kube::Amount;
use config_kube::local_volume::PROVISIONER;
use http::{Request, Response, StatusCode};
use master_claims::{Claim, ClaimRef, Class, Volume};
use master_client::{
    ApiError, Body, BoxFuture, Client, Key, Reason, Resource, Transport, UserInfo, body,
};
use master_control::controller::{Controller, Now, Plan};
use master_control::setup::{Setup, TestStores};
use master_control_cluster::volume_binder::{Action, ClaimStep, VolumeBinder, VolumeStep};
use master_control_cluster::volume_provisioner::{self, VolumeProvisioner};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

fn claim(uid: &str, size: i64) -> Claim {
    Claim {
        uid: uid.to_owned(),
        version: "1".to_owned(),
        class: Some("c".to_owned()),
        size: Amount::units(size),
        modes: vec!["ReadWriteOnce".to_owned()],
        phase: "Pending".to_owned(),
        ..Claim::default()
    }
}

fn volume(size: i64) -> Volume {
    Volume {
        version: "1".to_owned(),
        class: "c".to_owned(),
        size: Amount::units(size),
        modes: vec!["ReadWriteOnce".to_owned()],
        phase: "Available".to_owned(),
        policy: "Retain".to_owned(),
        ..Volume::default()
    }
}

fn class(provisioner: &str, waits: bool) -> Class {
    Class {
        provisioner: provisioner.to_owned(),
        waits,
        policy: "Delete".to_owned(),
        ..Class::default()
    }
}

fn key(name: &str) -> Key {
    Key::new("ns", name)
}

/// A binder with its stores.
struct Scene(VolumeBinder, TestStores);

impl Scene {
    fn new() -> Self {
        let (binder, stand) = Setup::for_test(&master_control::Options::default());
        Self(binder, stand)
    }

    fn step(&self, key: &Key) -> Option<Action> {
        let now = Now::read();
        let facts = self.0.facts(key, now);
        let plan = facts.map_or_else(Plan::nothing, |facts| VolumeBinder::plan(&facts, now));
        plan.actions.into_iter().next()
    }

    /// Reason and message of a claim's event.
    fn event(&self, name: &str) -> (&'static str, String) {
        let Some(Action::Claim { step, .. }) = self.step(&key(name)) else {
            return ("", String::new());
        };
        match step {
            ClaimStep::RecordEvent(event) | ClaimStep::MarkLost { event, .. } => {
                (event.reason, event.message)
            }
            ClaimStep::SetPhase { event, .. } => {
                event.map_or(("", String::new()), |event| (event.reason, event.message))
            }
            ClaimStep::SetVolumeName { .. }
            | ClaimStep::SetBound { .. }
            | ClaimStep::RequestProvisioning(_)
            | ClaimStep::SetDefaultClass(_) => ("", String::new()),
        }
    }
}

#[test]
fn a_waiting_claim_has_upstreams_event() {
    let mut scene = Scene::new();
    scene.1.set(key("data"), claim("u", 1));
    assert_eq!(
        scene.event("data").0,
        "ProvisioningFailed",
        "its class is not there"
    );
    scene.1.set(
        Key::cluster("c"),
        class("kubernetes.io/no-provisioner", false),
    );
    assert_eq!(scene.event("data").0, "FailedBinding");
    scene.1.set(Key::cluster("c"), class("example.com/p", true));
    let (reason, words) = scene.event("data");
    assert_eq!(reason, "WaitForFirstConsumer");
    assert_eq!(
        words,
        "waiting for first consumer to be created before binding"
    );
    let chosen = Claim {
        node: "n".into(),
        ..claim("u", 1)
    };
    scene.1.set(key("data"), chosen.clone());
    let asks = |action| matches!(action, Some(Action::Claim { step: ClaimStep::RequestProvisioning(who), .. }) if who == "example.com/p");
    assert!(asks(scene.step(&key("data"))));
    let provisioner = "example.com/p".to_owned();
    scene.1.set(
        key("data"),
        Claim {
            provisioner,
            ..chosen
        },
    );
    assert_eq!(scene.event("data").0, "ExternalProvisioning");
}

/// The class of attributes is the binder's as long as the claim waits, and then the driver's.
#[test]
fn a_claim_shows_its_volumes_attributes_once_when_it_is_bound() {
    let mut scene = Scene::new();
    let of = Volume {
        attributes: "gold".into(),
        claim: Some(ClaimRef {
            key: key("data"),
            uid: "u".into(),
        }),
        ..volume(1)
    };
    scene.1.set(Key::cluster("v"), of);
    let mut bound = |phase: &str| {
        let claim = Claim {
            phase: phase.into(),
            bound: true,
            volume: "v".into(),
            ..claim("u", 1)
        };
        scene.1.set(key("data"), claim);
        match scene.step(&key("data")) {
            Some(Action::Claim {
                step: ClaimStep::SetBound { attributes, .. },
                ..
            }) => attributes,
            other => unreachable!("{phase}: {other:?}"),
        }
    };
    assert_eq!(bound("Pending").as_deref(), Some("gold"));
    assert_eq!(bound("Bound"), None, "its size or access modes differ");
    assert_eq!(bound("Lost"), None);
}

#[test]
fn a_claim_without_a_class_gets_the_default_one_when_there_is_one() {
    let mut scene = Scene::new();
    scene.1.set(
        key("data"),
        Claim {
            class: None,
            ..claim("u", 1)
        },
    );
    assert_eq!(scene.event("data").0, "FailedBinding");
    let default = Class {
        is_default: true,
        ..class("example.com/p", true)
    };
    let keys = scene.1.set(Key::cluster("c"), default);
    assert!(keys.contains(&key("data")), "the claim is looked at again");
    let step = scene.step(&key("data"));
    assert!(
        matches!(step, Some(Action::Claim { step: ClaimStep::SetDefaultClass(class), .. }) if class == "c")
    );
    scene.1.set(
        key("data"),
        Claim {
            class: Some(String::new()),
            ..claim("u", 1)
        },
    );
    assert_eq!(scene.event("data").0, "FailedBinding", "none on purpose");
}

#[test]
fn a_claim_that_outgrows_its_volume_says_who_has_to_expand_it() {
    let mut scene = Scene::new();
    let of = ClaimRef {
        key: key("data"),
        uid: "u".to_owned(),
    };
    let has = |size: i64| Volume {
        claim: Some(of.clone()),
        phase: "Bound".to_owned(),
        ..volume(size)
    };
    let asks = |size: i64, shown: i64| Claim {
        volume: "v".to_owned(),
        bound: true,
        phase: "Bound".to_owned(),
        shown: (Some(Amount::units(shown)), vec!["ReadWriteOnce".to_owned()]),
        ..claim("u", size)
    };
    scene.1.set(Key::cluster("v"), has(2));
    scene.1.set(key("data"), asks(2, 2));
    assert_eq!(scene.step(&key("data")), None);
    scene.1.set(key("data"), asks(3, 2));
    let (reason, words) = scene.event("data");
    assert_eq!(reason, "ExternalExpanding");
    assert_eq!(
        words,
        "waiting for an external controller to expand this PVC"
    );
    scene.1.set(Key::cluster("v"), has(3));
    scene.1.set(key("data"), asks(3, 3));
    assert_eq!(scene.step(&key("data")), None, "its driver expanded it");
}

#[test]
fn a_claim_whose_volume_went_is_lost() {
    let mut scene = Scene::new();
    let bound = Claim {
        bound: true,
        volume: "v".into(),
        phase: "Bound".into(),
        ..claim("u", 1)
    };
    scene.1.set(key("data"), bound);
    assert_eq!(scene.event("data").0, "ClaimLost");
    let other = ClaimRef {
        key: key("other"),
        uid: "x".into(),
    };
    scene.1.set(
        Key::cluster("v"),
        Volume {
            claim: Some(other),
            ..volume(1)
        },
    );
    assert_eq!(scene.event("data").0, "ClaimMisbound");
}

#[test]
fn a_volume_whose_claim_went_is_released_and_only_its_provisioner_deletes_it() {
    let mut scene = Scene::new();
    let of = ClaimRef {
        key: key("data"),
        uid: "u".into(),
    };
    let kept = Volume {
        claim: Some(of),
        phase: "Bound".into(),
        ..volume(1)
    };
    let at = Key::cluster("v");
    scene.1.set(at.clone(), kept.clone());
    let released = |step| {
        matches!(
            step,
            Some(Action::Volume {
                step: VolumeStep::Release { .. },
                ..
            })
        )
    };
    assert!(released(scene.step(&at)));
    let newer = Claim {
        volume: "v".into(),
        ..claim("newer", 1)
    };
    scene.1.set(key("data"), newer);
    assert!(
        released(scene.step(&at)),
        "another claim of the name does not hold it"
    );
    let of = |policy: &str, by: &str| Volume {
        phase: "Released".into(),
        policy: policy.into(),
        provisioned_by: by.into(),
        ..kept.clone()
    };
    let fails = |step| {
        matches!(
            step,
            Some(Action::Volume {
                step: VolumeStep::SetPhase {
                    phase: "Failed",
                    ..
                },
                ..
            })
        )
    };
    for (policy, by, failed) in [
        ("Retain", "", false),
        ("Delete", "example.com/p", false),
        ("Delete", "", true),
        ("Recycle", "", true),
    ] {
        scene.1.set(at.clone(), of(policy, by));
        assert_eq!(fails(scene.step(&at)), failed, "{policy} {by}");
    }
}

#[test]
fn a_folder_is_removed_only_after_its_claim_and_its_volume_goes_only_after_the_folder() {
    let (provisioner, mut stand) =
        Setup::for_test::<VolumeProvisioner>(&master_control::Options::default());
    let ours = Volume {
        uid: "v-uid".into(),
        ours: true,
        held: true,
        policy: "Delete".into(),
        node: "n".into(),
        ..volume(1)
    };
    let mut planned = |volume: Volume| {
        let at = Key::cluster("pvc-1");
        stand.set(at.clone(), volume);
        let now = Now::read();
        let facts = provisioner.facts(&at, now).expect("the volume is there");
        VolumeProvisioner::plan(&facts, now)
            .actions
            .into_iter()
            .next()
    };
    let phase = |phase: &str| Volume {
        phase: phase.into(),
        ..ours.clone()
    };
    let removes = |action| matches!(action, Some(volume_provisioner::Action::Remove { .. }));
    for (volume, removed) in [
        (phase("Bound"), false),
        (phase("Available"), false),
        (phase("Released"), true),
        (
            Volume {
                leaving: true,
                ..phase("Bound")
            },
            false,
        ),
        (
            Volume {
                leaving: true,
                ..phase("Released")
            },
            true,
        ),
        (
            Volume {
                ours: false,
                ..phase("Released")
            },
            false,
        ),
        (
            Volume {
                held: false,
                ..phase("Released")
            },
            false,
        ),
        (
            Volume {
                policy: "Retain".into(),
                ..phase("Released")
            },
            false,
        ),
    ] {
        let text = format!("{volume:?}");
        assert_eq!(removes(planned(volume)), removed, "{text}");
    }
    let kept = Volume {
        leaving: true,
        policy: "Retain".into(),
        ..phase("Released")
    };
    let goes = planned(kept);
    assert!(
        matches!(goes, Some(volume_provisioner::Action::LetGo { .. })),
        "its folder stays"
    );
}

/// A provisioner with its stores, which have its class.
fn with_class() -> (VolumeProvisioner, TestStores) {
    let (provisioner, mut stand) = Setup::for_test(&master_control::Options::default());
    stand.set(Key::cluster("c"), class(PROVISIONER, true));
    (provisioner, stand)
}

/// The claim `data`, for which the scheduler chose a node.
fn on(node: &str) -> Claim {
    Claim {
        provisioner: PROVISIONER.into(),
        node: node.into(),
        ..claim("u", 1)
    }
}

/// The nodes that are asked to remove folders of the claim `data`.
fn abandons(provisioner: &VolumeProvisioner) -> Vec<String> {
    let now = Now::read();
    let facts = provisioner.facts(&key("data"), now);
    let plan = facts.map_or_else(Plan::nothing, |facts| VolumeProvisioner::plan(&facts, now));
    let left = plan.actions.into_iter().filter_map(|action| match action {
        volume_provisioner::Action::Abandon { attempt, .. } => Some(attempt.node),
        volume_provisioner::Action::Refuse { .. }
        | volume_provisioner::Action::Provision { .. }
        | volume_provisioner::Action::Remove { .. }
        | volume_provisioner::Action::LetGo { .. } => None,
    });
    left.collect()
}

#[test]
fn a_folder_is_abandoned_only_where_no_volume_will_need_it() {
    let made = Volume {
        ours: true,
        held: true,
        node: "m".into(),
        ..volume(1)
    };
    let nothing: [&str; 0] = [];
    let (provisioner, mut stand) = with_class();
    for node in ["n", "m"] {
        stand.set(key("data"), on(node));
        let while_it_waits = abandons(&provisioner);
        assert_eq!(while_it_waits, nothing, "its volume may be on its way");
    }
    stand.set(Key::cluster("pvc-u"), made.clone());
    assert_eq!(abandons(&provisioner), ["n"], "its volume is elsewhere");
    let (provisioner, mut stand) = with_class();
    for node in ["n", "m"] {
        stand.set(key("data"), on(node));
        assert_eq!(abandons(&provisioner), nothing);
    }
    stand.remove::<Claim>(&key("data"));
    assert_eq!(abandons(&provisioner), ["m", "n"], "it is gone");
    stand.set(Key::cluster("pvc-u"), made);
    assert_eq!(abandons(&provisioner), ["n"], "a volume keeps its folder");
    let newer = Claim {
        uid: "newer".into(),
        ..on("n")
    };
    stand.set(key("data"), newer);
    assert_eq!(abandons(&provisioner), ["n"], "that of the older claim");
}

/// An API that has the claim `data` and no nodes.
#[derive(Debug)]
struct NoNodes;

impl Transport for NoNodes {
    fn call(&self, request: Request<Body>, _user: UserInfo) -> BoxFuture<'_, Response<Body>> {
        let answer = if request
            .uri()
            .path()
            .ends_with("/persistentvolumeclaims/data")
        {
            let meta = json!({"namespace": "ns", "name": "data", "uid": "u"});
            let claim =
                json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta});
            Response::new(body(claim.to_string()))
        } else {
            let missing = ApiError::new(Reason::NotFound, "not found").to_status();
            let mut answer = Response::new(body(missing.to_string()));
            *answer.status_mut() = StatusCode::NOT_FOUND;
            answer
        };
        Box::pin(std::future::ready(answer))
    }

    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }

    fn resources(&self) -> Vec<Resource> {
        Vec::new()
    }
}

/// Who may write a claim chooses what its annotation says, as often as wanted.
#[tokio::test]
async fn nodes_that_are_never_asked_for_a_folder_are_not_remembered() {
    let api = Client::new(Arc::new(NoNodes), UserInfo::admin("test"));
    let (provisioner, mut stand) = with_class();
    let refused = Claim {
        modes: vec!["ReadWriteMany".to_owned()],
        ..on("a")
    };
    for claim in [refused, on("not-there"), on(&"n".repeat(254))] {
        stand.set(key("data"), claim);
        let at = key("data");
        let _outcome = stand.run(&provisioner, &at, Now::read(), &api).await;
    }
    stand.remove::<Claim>(&key("data"));
    assert_eq!(abandons(&provisioner), Vec::<String>::new());
}

/// The API's objects, with the versions on which its writes are conditional.
#[derive(Debug, Clone, Default)]
struct World {
    claims: BTreeMap<Key, Claim>,
    volumes: BTreeMap<String, Volume>,
    writes: u64,
}

impl World {
    fn new(claims: &[i64], volumes: &[i64]) -> Self {
        let mut world = Self::default();
        for (number, size) in claims.iter().enumerate() {
            let (name, uid) = (format!("c{number}"), format!("u{number}"));
            world.claims.insert(key(&name), claim(&uid, *size));
        }
        for (number, size) in volumes.iter().enumerate() {
            world.volumes.insert(format!("v{number}"), volume(*size));
        }
        world
    }

    fn keys(&self) -> Vec<Key> {
        let volumes = self.volumes.keys().map(|name| Key::cluster(name));
        self.claims.keys().cloned().chain(volumes).collect()
    }

    /// A process that begins and knows all of it.
    fn scene(&self) -> Scene {
        let mut scene = Scene::new();
        scene.1.set(
            Key::cluster("c"),
            class("kubernetes.io/no-provisioner", false),
        );
        for key in self.keys() {
            self.show(&mut scene, &key);
        }
        scene
    }

    fn show(&self, scene: &mut Scene, key: &Key) {
        if let Some(claim) = self.claims.get(key) {
            scene.1.set(key.clone(), claim.clone());
        }
        if let Some(volume) = self
            .volumes
            .get(&key.name)
            .filter(|_| key.namespace.is_empty())
        {
            scene.1.set(key.clone(), volume.clone());
        }
    }

    /// Writes, unless the object is another than the plan saw; the key of what was written.
    fn write(&mut self, action: Action) -> Option<Key> {
        self.writes += 1;
        let next = format!("w{}", self.writes);
        match action {
            Action::Claim { key, version, step } => {
                let claim = self
                    .claims
                    .get_mut(&key)
                    .filter(|claim| claim.version == version)?;
                match step {
                    ClaimStep::SetVolumeName { volume, chosen } => {
                        (claim.volume, claim.bound, claim.by_controller) = (volume, true, chosen);
                    }
                    ClaimStep::SetBound { size, modes, .. } => {
                        "Bound".clone_into(&mut claim.phase);
                        claim.shown = (Some(size), modes);
                    }
                    ClaimStep::SetPhase { phase, .. } => phase.clone_into(&mut claim.phase),
                    ClaimStep::MarkLost { .. } => "Lost".clone_into(&mut claim.phase),
                    ClaimStep::RequestProvisioning(_)
                    | ClaimStep::SetDefaultClass(_)
                    | ClaimStep::RecordEvent(_) => return None,
                }
                claim.version = next;
                Some(key)
            }
            Action::Volume {
                name,
                version,
                step,
            } => {
                let volume = self
                    .volumes
                    .get_mut(&name)
                    .filter(|own| own.version == version)?;
                match step {
                    VolumeStep::SetClaimRef { claim, uid, chosen } => {
                        volume.claim = Some(ClaimRef { key: claim, uid });
                        volume.by_controller = chosen;
                    }
                    VolumeStep::ClearClaimRef { .. } => volume.claim = None,
                    VolumeStep::Release { .. } => "Released".clone_into(&mut volume.phase),
                    VolumeStep::SetPhase { phase, .. } => phase.clone_into(&mut volume.phase),
                }
                volume.version = next;
                Some(Key::cluster(&name))
            }
        }
    }

    /// No volume has two claims and no claim two volumes, and nothing is lost.
    fn check(&self) -> Result<(), TestCaseError> {
        let mut taken = BTreeMap::new();
        for (key, claim) in self.claims.iter().filter(|(_, claim)| claim.bound) {
            let before = taken.insert(claim.volume.clone(), key.clone());
            prop_assert!(before.is_none(), "{} has two claims", claim.volume);
            let of = self.volumes[&claim.volume].claim.as_ref();
            prop_assert!(
                of.is_some_and(|of| of.uid == claim.uid),
                "{key} names another's volume"
            );
            prop_assert!(claim.phase != "Lost");
        }
        Ok(())
    }
}

proptest! {
    /// Plans from stale state in any order, with processes that restart between any two writes.
    #[test]
    fn no_volume_and_no_claim_is_bound_twice_and_all_that_can_be_is_bound(
        claims in prop::collection::vec(1..4_i64, 1..5),
        volumes in prop::collection::vec(1..4_i64, 0..5),
        turns in prop::collection::vec((0..10_usize, 0..4_u8, any::<bool>()), 0..80),
    ) {
        let mut world = World::new(&claims, &volumes);
        let mut scene = world.scene();
        let keys = world.keys();
        for (at, what, _) in turns {
            let key = &keys[at % keys.len()];
            match what {
                0 => world.show(&mut scene, key),
                1 if at == 0 => scene = world.scene(),
                _ => {
                    let written = scene.step(key).and_then(|action| world.write(action));
                    // The process sees its own write, as its writer waits for that.
                    if let Some(written) = written {
                        world.show(&mut scene, &written);
                    }
                }
            }
            world.check()?;
        }
        let mut scene = world.scene();
        for _round in 0..20 {
            for key in &keys {
                if let Some(written) = scene.step(key).and_then(|action| world.write(action)) {
                    world.show(&mut scene, &written);
                }
                world.check()?;
            }
        }
        let free: Vec<&Volume> = world.volumes.values().filter(|volume| volume.claim.is_none()).collect();
        for (key, claim) in &world.claims {
            let could = free.iter().any(|volume| volume.size >= claim.size);
            prop_assert!(claim.bound || !could, "{key} waits beside a volume that fits");
            prop_assert!(!claim.bound || claim.phase == "Bound", "{key} is {}", claim.phase);
        }
        let half = world.volumes.values().filter(|volume| volume.claim.is_some());
        let bound = world.claims.values().filter(|claim| claim.bound);
        prop_assert_eq!(half.count(), bound.count(), "no volume is kept for nobody");
    }
}
