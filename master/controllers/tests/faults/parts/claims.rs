//! A StatefulSet with a volume for each pod: a folder on the pod's first node.

use super::{CPU, Part, Start, Wish, another_image, is_active, object, template};
use crate::api::Deletion;
use crate::dice::Dice;
use crate::history::History;
use crate::kinds::Any;
use crate::machines::node_of;
use crate::pods::{app, is_ready, name, uid};
use crate::rest::done;
use crate::simulation::Worker;
use crate::world::World;
use config_kube::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use config_kube::local_volume::{CLASS, NODE_ANNOTATION, PROVISIONER};
use master_claims::SELECTED_NODE;
use master_control::controller::Controller as _;
use master_control_cluster::in_use::InUse;
use master_control_cluster::volume_binder::VolumeBinder;
use master_control_cluster::volume_provisioner::VolumeProvisioner;
use master_control_workloads::stateful_set::{StatefulSets, ordinal};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const CONTROLLERS: &[Start] = &[
    Worker::<StatefulSets>::boxed,
    Worker::<VolumeBinder>::boxed,
    Worker::<VolumeProvisioner>::boxed,
    Worker::<InUse>::boxed,
];
const NAME: &str = "disk";

pub(crate) struct Disks {
    replicas: i32,
    images: usize,
    spec: Value,
    pub(super) first: i32,
    pub(super) in_order: bool,
    /// Whether claims are deleted when their pods are scaled down.
    pub(super) scaled: bool,
    /// The volume of each claim, by UID and name.
    volumes: BTreeMap<String, String>,
    claims: BTreeSet<String>,
    known: BTreeSet<String>,
    /// Folders without a volume: the volume is yet to be created, or was deleted.
    loose: BTreeMap<Folder, Loose>,
}

/// The folder of a volume: its node and its name.
type Folder = (String, String);

/// A folder that no volume has.
#[derive(Debug, Default)]
struct Loose {
    /// How often the provisioner had restarted when the claim was last there.
    restarts: usize,
    /// Whether its node has been out of the cluster since.
    was_away: bool,
}

impl Disks {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        let replicas = i32::try_from(1 + dice.below(3)).unwrap();
        let first = *dice.pick(&[0, 2]).unwrap();
        let (in_order, scaled) = (dice.below(2) == 0, dice.below(2) == 0);
        let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "storageClassName": CLASS, "resources": {"requests": {"storage": "1Gi"}}}});
        let container = json!({"name": "c", "image": "registry.example/c:0",
            "resources": {"requests": {"cpu": format!("{CPU}m")}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}]});
        let spec = json!({"replicas": replicas, "serviceName": NAME, "selector": {"matchLabels": {"app": NAME}},
            "podManagementPolicy": if in_order { "OrderedReady" } else { "Parallel" },
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain",
                "whenScaled": if scaled { "Delete" } else { "Retain" }},
            "ordinals": {"start": first}, "volumeClaimTemplates": [claim],
            "template": template(NAME, CPU, &json!({"containers": [container]}))});
        Self {
            replicas,
            images: 0,
            spec,
            first,
            in_order,
            scaled,
            volumes: BTreeMap::new(),
            claims: BTreeSet::new(),
            known: BTreeSet::new(),
            loose: BTreeMap::new(),
        }
    }

    /// Notes which folders no volume has.
    fn look_for_loose(&mut self, world: &World, volumes: &[&PersistentVolume]) {
        let mut folders = world.processes.api.folders();
        for volume in volumes {
            folders.remove(&folder(volume));
        }
        self.loose.retain(|known, _| folders.contains(known));
        let restarts = world.processes.restarts(VolumeProvisioner::NAME);
        for (node, name) in folders {
            let machine = world.machine(&node);
            let is_away = machine.is_some_and(|machine| machine.removed.is_some());
            let uid = name.strip_prefix("pvc-");
            let has_claim = uid.is_some_and(|uid| self.claims.contains(uid));
            let is_new = !self.loose.contains_key(&(node.clone(), name.clone()));
            let loose = self.loose.entry((node, name)).or_default();
            loose.was_away |= is_away;
            if is_new || has_claim {
                loose.restarts = restarts;
            }
        }
    }

    /// A pod of an ordered set is created only when those before it are available.
    fn check_order(&mut self, world: &World, pods: &[&Pod]) {
        let place = |pod: &Pod| ordinal(NAME, name(pod)).unwrap();
        let serving: BTreeSet<i32> = pods
            .iter()
            .filter(|pod| is_ready(pod))
            .map(|pod| place(pod))
            .collect();
        for new in pods
            .iter()
            .filter(|pod| self.in_order && !self.known.contains(&uid(pod)))
        {
            let mut before = self.first..place(new);
            let is_in_order = before.all(|place| serving.contains(&place));
            assert!(
                is_in_order || world.is_stormy(),
                "{} came before {serving:?}",
                name(new)
            );
        }
        self.known.extend(pods.iter().map(|pod| uid(pod)));
    }
}

fn claims(world: &World) -> Vec<&PersistentVolumeClaim> {
    let all = world.history.objects("persistentvolumeclaims").iter();
    let claims = all.filter_map(|any| {
        if let Any::Claim(one) = any {
            Some(&**one)
        } else {
            None
        }
    });
    claims.collect()
}

fn volumes(world: &World) -> Vec<&PersistentVolume> {
    let all = world.history.objects("persistentvolumes").iter();
    let volumes = all.filter_map(|any| {
        if let Any::Volume(one) = any {
            Some(&**one)
        } else {
            None
        }
    });
    volumes.collect()
}

/// The node of a volume.
fn node(volume: &PersistentVolume) -> &str {
    let notes = volume.metadata.annotations.as_ref();
    notes
        .and_then(|all| all.get(NODE_ANNOTATION))
        .map_or("", String::as_str)
}

/// The node that was chosen for a claim.
fn claim_node(claim: &PersistentVolumeClaim) -> Option<&String> {
    claim.metadata.annotations.as_ref()?.get(SELECTED_NODE)
}

fn folder(volume: &PersistentVolume) -> Folder {
    let name = volume.metadata.name.clone().unwrap();
    (node(volume).to_owned(), name)
}

impl Part for Disks {
    fn controllers(&self) -> &'static [Start] {
        CONTROLLERS
    }

    fn objects(&self) -> Vec<(&'static str, Value)> {
        let class = json!({"metadata": {"name": CLASS}, "provisioner": PROVISIONER,
            "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete"});
        vec![
            ("storageclasses", class),
            ("statefulsets", object(NAME, &self.spec)),
        ]
    }

    fn wish(&mut self, dice: &mut Dice, _: &History) -> Option<Wish> {
        let patch = if dice.below(3) == 0 {
            self.images += 1;
            another_image(self.images)
        } else {
            self.replicas = i32::try_from(1 + dice.below(3)).unwrap();
            json!({"spec": {"replicas": self.replicas}})
        };
        Some(Wish::Patch("statefulsets", NAME.to_owned(), patch))
    }

    fn check(&mut self, world: &World, deleted: &[(Deletion, Any)]) {
        let (claims, volumes) = (claims(world), volumes(world));
        let mut taken = BTreeSet::new();
        for claim in &claims {
            let id = claim.metadata.uid.clone().unwrap();
            let volume = claim
                .spec
                .as_ref()
                .and_then(|spec| spec.volume_name.clone());
            let Some(volume) = volume.filter(|name| !name.is_empty()) else {
                continue;
            };
            // No volume has two claims, and no claim gets another volume.
            assert!(taken.insert(volume.clone()), "{volume} has two claims");
            let before = self.volumes.insert(id, volume.clone());
            assert!(
                before.is_none_or(|before| before == volume),
                "a claim moved to {volume}"
            );
        }
        let pods = world.history.pods().into_iter();
        let own: Vec<&Pod> = pods.filter(|pod| app(pod) == NAME).collect();
        for pod in own
            .iter()
            .filter(|pod| !node_of(pod).is_empty() && is_active(pod))
        {
            // A pod with a node has a bound claim, and runs where its volume is.
            let claim = format!("data-{}", name(pod));
            let claim = claims
                .iter()
                .find(|one| one.metadata.name.as_ref() == Some(&claim));
            let spec = claim.and_then(|claim| claim.spec.as_ref());
            let volume = volumes.iter().find(|one| {
                let name = spec.and_then(|spec| spec.volume_name.as_ref());
                name.is_some() && one.metadata.name.as_ref() == name
            });
            let place = volume.map(|volume| node(volume));
            assert!(
                place == Some(node_of(pod)),
                "{} on {} has {place:?}",
                name(pod),
                node_of(pod)
            );
        }
        // No controller deletes a claim that is retained.
        for (deletion, any) in deleted {
            let is_kept = matches!(any, Any::Claim(_)) && !self.scaled;
            assert!(!is_kept, "{deletion:?}: it is kept");
        }
        let there: BTreeSet<String> = claims
            .iter()
            .map(|one| one.metadata.uid.clone().unwrap())
            .collect();
        assert!(
            self.scaled || self.claims.is_subset(&there),
            "a claim that is kept is gone"
        );
        self.claims = there;
        // The volume of a claim keeps its folder.
        self.look_for_loose(world, &volumes);
        let folders = world.processes.api.folders();
        for volume in volumes {
            let (name, phase) = (
                volume.metadata.name.clone().unwrap(),
                volume.status.as_ref(),
            );
            let is_bound = phase.and_then(|status| status.phase.as_deref()) == Some("Bound");
            let has = folders.contains(&folder(volume));
            assert!(has || !is_bound, "{name} has no folder");
        }
        let active: Vec<&Pod> = own.into_iter().filter(|pod| is_active(pod)).collect();
        self.check_order(world, &active);
    }

    /// Wanted places have pods and claims, and each claim has one volume with its folder. As
    /// upstream, the claim of a place that had no pod when it was scaled down stays; without a
    /// volume only if no node was chosen for it. A folder is left over only if its node left the
    /// cluster, or if a fault kept its volume from being created until its claim was deleted and
    /// the provisioner restarted after that: no pod has ever used it.
    fn rest(&self, world: &World) -> Result<(), String> {
        let set = world.history.object("statefulsets", NAME);
        set.map_or(Ok(()), done)?;
        let wanted = self.first..self.first + self.replicas;
        let (claims, volumes) = (claims(world), volumes(world));
        let names: BTreeSet<_> = volumes.iter().map(|one| &one.metadata.name).collect();
        let mut places = BTreeSet::new();
        for claim in &claims {
            let volume = claim.spec.as_ref().map(|spec| &spec.volume_name);
            if volume.is_some_and(|volume| names.contains(volume)) {
                places.extend(ordinal("data-disk", claim.metadata.name.as_ref().unwrap()));
            } else if claim_node(claim).is_some() {
                return Err(format!("{:?} has no volume", claim.metadata.name));
            }
        }
        let are_all = wanted.clone().all(|place| places.contains(&place));
        let folders = world.processes.api.folders();
        let own: BTreeSet<_> = volumes.iter().map(|one| folder(one)).collect();
        let restarts = world.processes.restarts(VolumeProvisioner::NAME);
        let log = &world.history.logs["persistentvolumes"];
        let had_volume = |name: &str| log.iter().any(|one| one.object.name() == name);
        let mut others = self.loose.iter();
        let is_left = others.any(|((_, name), loose)| {
            !loose.was_away && (loose.restarts == restarts || had_volume(name))
        });
        if are_all && volumes.len() == places.len() && own.is_subset(&folders) && !is_left {
            Ok(())
        } else {
            Err(format!(
                "{wanted:?} are wanted, {places:?} have volumes, which are {own:?}; the folders are {folders:?}, \
                 of no volume {:?}",
                self.loose
            ))
        }
    }
}
