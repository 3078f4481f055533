//! Controllers and the one driver that runs them: each controller reconciles a part of the
//! cluster's state, only through the API.
//!
//! Enter by [`controller::Controller`] for the trait, by [`Controllers`] to run some. The
//! controllers themselves are in rooms by their subject (`master/control-cluster`, `-network`,
//! `-nodes`, `-scaling`, `-workloads`); `master/controllers` has all of them in one list.
//!
//! A controller is one file. Where its plan is too long for that (Deployments, Jobs, the garbage
//! collector) it is one folder, whose `mod.rs` has what the room registers, with the plan in files
//! beside it; the autoscaler of pods has a room for itself (`master/control-scaling`). Each
//! declares the views that it follows, with the keys that a change concerns and the indexes that it
//! needs; its facts (a snapshot of what its plan for one key depends on); its plan (pure); how its
//! actions are carried out; its rights. The parts that all share:
//!
//! - `setup`: one follower and one store per view, however many controllers read it
//! - `every_kind`: the metadata of objects of every kind, for controllers that can't name the kinds
//!   they look after
//! - `queue`: a work queue per controller: a key is never run twice at once, namespaces take turns,
//!   failures back off, writes are expectations
//! - `driver`: feeds the queues, lets controllers plan in turn, carries out actions
//! - `writer`: calls to the API that remember what they will show in the stores
//! - `rights`: a user and a role for each controller
//! - `figures`: depth, latency and errors of the queues
//! - `views`: what is kept of kinds that several controllers read
//! - `options`: settings, keys and connections that the master's program passes to controllers
//!
//! The driver is one future, without tasks and channels: it holds its writes as futures. All is
//! level-triggered: a write that was lost is planned again.
//!
//! # How to add a controller
//!
//! One file in the room that it belongs to, and two lines in that room's `lib.rs`: its `mod`, and
//! its line in `CONTROLLERS`. This one labels each namespace with its own name, as far as a label
//! can hold it:
//!
//! ```
//! use config_kube::k8s_openapi::api::core::v1::Namespace;
//! use master_client::{ApiError, Key, Patch, Store, View};
//! use master_control::controller::{Controller, Now, Plan, Right, right};
//! use master_control::setup::Setup;
//! use master_control::writer::Writer;
//! use serde_json::json;
//!
//! const LABEL: &str = "example.com/name";
//!
//! /// What it keeps of each namespace: only changes of this lead to plans.
//! #[derive(Debug, PartialEq)]
//! struct Labelled(bool);
//!
//! impl View for Labelled {
//!     type Object = Namespace;
//!     fn read(namespace: Namespace) -> Self {
//!         Self(namespace.metadata.labels.is_some_and(|labels| labels.contains_key(LABEL)))
//!     }
//! }
//!
//! struct Labels {
//!     namespaces: Store<Labelled>,
//! }
//!
//! impl Controller for Labels {
//!     const NAME: &'static str = "namespace-labels";
//!     const RIGHTS: &'static [Right] = &[right("", "namespaces", &["list", "watch", "patch"])];
//!     type Facts = (String, bool);
//!     type Action = String;
//!
//!     fn new(setup: &mut Setup<'_>) -> Self {
//!         let namespaces = setup.follow_keys();
//!         Self { namespaces }
//!     }
//!
//!     fn facts(&self, key: &Key, _: Now) -> Option<Self::Facts> {
//!         Some((key.name.clone(), self.namespaces.get(key)?.0))
//!     }
//!
//!     fn plan((name, labelled): &Self::Facts, _: Now) -> Plan<String> {
//!         (!labelled).then(|| name.clone()).into()
//!     }
//!
//!     async fn carry_out(&self, name: String, writer: &Writer) -> Result<(), ApiError> {
//!         let patch = json!({"metadata": {"labels": {LABEL: name}}});
//!         writer.patch::<Namespace>(&Key::cluster(&name), &Patch::Merge(patch)).await.map(drop)
//!     }
//! }
//!
//! // Its test needs no API: it fills the stores itself.
//! let (labels, mut stores) = Setup::for_test::<Labels>(&Default::default());
//! let keys = stores.set(Key::cluster("team"), Labelled(false));
//! let facts = labels.facts(&keys[0], Now::read()).unwrap();
//! assert_eq!(Labels::plan(&facts, Now::read()).actions, ["team"]);
//! ```
//!
//! - A change of another object concerns a key: `setup.follow` with a function from the change to
//!   keys; find them by an [`Index`](master_client::Index), never by a scan of all objects.
//! - Something is due at a time: [`Plan::wait`](controller::Plan::wait), or `requeue_in` beside
//!   actions.
//! - A plan may follow its own write at once, so write through [`writer::Writer`]: the key waits
//!   until the write is seen.
//! - The declared rights are all that it may do: [`roles`] makes a role of them for a user that
//!   only this controller is.

pub mod controller;
mod driver;
pub mod every_kind;
mod figures;
pub mod options;
pub mod pod_range;
pub mod queue;
mod rights;
pub mod setup;
pub mod views;
pub mod writer;

pub use driver::{Controllers, Registration};
pub use figures::Figures;
pub use options::Options;
pub use rights::roles;
