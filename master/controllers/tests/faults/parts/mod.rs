//! Parts that a world can have besides the usual workloads: each creates objects of some kinds,
//! simulates people who change them, and checks what must hold. A seed picks some parts.
//!
//! To add a kind: its line in the table of `kinds.rs`, a file here with a [`Part`], its `mod` and
//! its line in [`ALL`]. To add an invariant: an assertion in the [`Part::check`] of its kind, which
//! is called at every revision of the store, and a history in [`wrong`] that breaks it; or a line
//! in its [`Part::rest`]. A comment there says in one sentence what must hold.

mod claims;
mod cron;
mod daemons;
mod folders;
mod jobs;
mod notes;
mod priorities;
mod quotas;
mod scaling;
pub(crate) mod wrong;

use super::api::Deletion;
use super::dice::Dice;
use super::history::History;
use super::kinds::{Any, path};
use super::laws::TOLERATED;
use super::pods::has_ended;
use super::simulation::Process;
use super::world::World;
use config_kube::k8s_openapi::api::core::v1::Pod;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_kube::taints::{NOT_READY, UNREACHABLE};
use http::{Method, Request};
use http_body_util::BodyExt as _;
use master_client::body;
use serde_json::{Value, json};

/// Thousandths of a CPU of a pod by default: few enough that all pods that must run fit on two
/// machines of three.
pub(crate) const CPU: usize = 50;
/// Number of parts in a world.
const AT_ONCE: usize = 3;

/// Makes a part with random settings.
type New = fn(&mut Dice) -> Box<dyn Part>;

/// All parts.
const ALL: &[New] = &[
    |dice| Box::new(cron::Cron::new(dice)),
    |dice| Box::new(jobs::Once::new(dice)),
    |dice| Box::new(quotas::Quota::new(dice)),
    |dice| Box::new(priorities::Priorities::new(dice)),
    |dice| Box::new(daemons::Daemons::new(dice)),
    |dice| Box::new(claims::Disks::new(dice)),
    |dice| Box::new(scaling::Scaling::new(dice)),
];

/// Starts a controller.
pub(crate) type Start = fn(&History) -> Box<dyn Process>;

/// Something that people do.
#[derive(Debug)]
pub(crate) enum Wish {
    /// They make an object of a kind.
    Make(&'static str, Value),
    /// They change one, by kind and name.
    Patch(&'static str, String, Value),
    /// They delete one, by kind and name.
    Delete(&'static str, String),
}

/// A part of a world.
pub(crate) trait Part {
    /// The controllers that it needs. Parts may share some.
    fn controllers(&self) -> &'static [Start];
    /// Its initial objects, each with its kind.
    fn objects(&self) -> Vec<(&'static str, Value)>;
    /// Something that people may do now.
    fn wish(&mut self, dice: &mut Dice, history: &History) -> Option<Wish>;
    /// What people do in the end, so that everything can become stable.
    fn last_wish(&self) -> Option<Wish> {
        None
    }
    /// Asserts what must hold at every revision; with the objects that processes have deleted
    /// since the revision before.
    fn check(&mut self, world: &World, deleted: &[(Deletion, Any)]);
    /// Whether everything is as it should be in the end.
    fn rest(&self, world: &World) -> Result<(), String>;
}

impl World {
    /// Adds the parts that the seed picks.
    pub(crate) async fn add_parts(&mut self, seed: u64) {
        let mut dice = Dice(seed.rotate_left(48));
        let mut left: Vec<New> = ALL.to_vec();
        while left.len() + AT_ONCE > ALL.len() {
            let new = left.remove(dice.below(left.len()));
            self.parts.push(new(&mut dice));
        }
        let mut all = Vec::new();
        for part in &self.parts {
            all.extend(part.objects());
            for start in part.controllers() {
                let process = start(&self.history);
                let known = self
                    .processes
                    .all
                    .iter()
                    .any(|one| one.name() == process.name());
                if !known {
                    self.processes.all.push(process);
                }
            }
        }
        for (kind, object) in all {
            self.carry_out(Wish::Make(kind, object)).await;
        }
    }

    /// People do something to one of the parts.
    pub(crate) async fn wish_of_a_part(&mut self) {
        let number = self.dice.below(self.parts.len());
        let wish = self.parts[number].wish(&mut self.dice, &self.history);
        if let Some(wish) = wish {
            self.carry_out(wish).await;
        }
    }

    pub(crate) async fn make_last_wishes(&mut self) {
        let all: Vec<Wish> = self
            .parts
            .iter()
            .filter_map(|part| part.last_wish())
            .collect();
        for wish in all {
            self.carry_out(wish).await;
        }
    }

    pub(crate) fn check_parts(&mut self, deleted: &[(Deletion, Any)]) {
        let mut parts = std::mem::take(&mut self.parts);
        for part in &mut parts {
            part.check(self, deleted);
        }
        self.parts = parts;
    }

    async fn carry_out(&mut self, wish: Wish) {
        let (method, path, content) = match wish {
            Wish::Make(kind, object) => (Method::POST, path(kind), object),
            Wish::Patch(kind, name, patch) => {
                (Method::PATCH, format!("{}/{name}", path(kind)), patch)
            }
            Wish::Delete(kind, name) => {
                let options = json!({"propagationPolicy": "Background"});
                (Method::DELETE, format!("{}/{name}", path(kind)), options)
            }
        };
        let form = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let request = Request::builder().method(method).uri(&path);
        let request = request.header("content-type", form);
        let request = request.body(body(content.to_string())).unwrap();
        let answer = self.history.admin.call(request).await;
        let (status, content) = (answer.status(), answer.into_body());
        let content = content.collect().await.unwrap().to_bytes();
        assert!(
            status.is_success() || status.as_u16() == 404,
            "{path}: {status} {}",
            String::from_utf8_lossy(&content)
        );
        self.look().await;
    }

    /// Whether pods fail, machines vanish or answers are lost: bounds that these break without any
    /// fault of a controller do not hold then.
    pub(crate) fn is_stormy(&self) -> bool {
        self.scenario.disruption || self.scenario.faults.lost > 0
    }
}

/// The template of pods of an application, with more fields of its spec; `cpu` in thousandths,
/// none where it is zero.
fn template(app: &str, cpu: usize, more: &Value) -> Value {
    let mut container = json!({"name": "c", "image": "registry.example/c:0"});
    if cpu > 0 {
        container["resources"] = json!({"requests": {"cpu": format!("{cpu}m")}});
    }
    let tolerated = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED});
    let mut spec = json!({"automountServiceAccountToken": false, "containers": [container],
        "tolerations": [tolerated(NOT_READY), tolerated(UNREACHABLE)]});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    json!({"metadata": {"labels": {"app": app}}, "spec": spec})
}

/// An object with a name and a spec.
fn object(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec})
}

/// A patch that gives the pods of a workload another template.
fn another_image(number: usize) -> Value {
    json!({"spec": {"template": {"metadata": {"annotations": {"image": number.to_string()}}}}})
}

/// Whether a pod runs or is to run.
fn is_active(pod: &Pod) -> bool {
    !has_ended(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// The UID of an object's controller.
fn owner(meta: &ObjectMeta) -> Option<&str> {
    let mut owners = meta.owner_references.iter().flatten();
    let own = owners.find(|owner| owner.controller == Some(true));
    own.map(|owner| owner.uid.as_str())
}
