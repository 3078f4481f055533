//! The StorageClass of volumes that are folders of nodes: created with the first machine's Node. In
//! a cluster without machines nothing could provision such a volume, and claims would wait for one
//! in vain.
//!
//! It is created once in the life of a process, so that an admin's change or deletion stays until
//! the master's next start.

use config_kube::k8s_openapi::api::storage::v1::StorageClass;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use config_kube::local_volume;
use master_client::{ApiError, Delta, Key};
use master_control::controller::{Controller, Now, Plan, Right, right};
use master_control::setup::Setup;
use master_control::views::node::NodeView;
use master_control::writer::Writer;
use std::sync::atomic::{AtomicBool, Ordering};

/// Marks the class that claims get which name none.
const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// The controller. Its only key is the class; a new Node of a machine concerns it.
#[derive(Debug)]
pub struct LocalClass {
    /// Whether this process has made it, or found it.
    made: AtomicBool,
}

/// The class is to be made.
#[derive(Debug, PartialEq, Eq)]
pub struct CreateClass;

impl Controller for LocalClass {
    const NAME: &'static str = "local-class";
    const RIGHTS: &'static [Right] = &[
        right("", "nodes", &["list", "watch"]),
        right("storage.k8s.io", "storageclasses", &["create"]),
    ];
    type Facts = ();
    type Action = CreateClass;

    fn new(setup: &mut Setup<'_>) -> Self {
        setup.follow(|delta: &Delta<NodeView>, keys| {
            let [before, after] = [&delta.before, &delta.after]
                .map(|node| node.as_ref().is_some_and(|node| node.of_machine));
            if after && !before {
                keys.push(Key::cluster(local_volume::CLASS));
            }
        });
        Self {
            made: AtomicBool::new(false),
        }
    }

    fn facts(&self, _: &Key, _: Now) -> Option<()> {
        (!self.made.load(Ordering::Relaxed)).then_some(())
    }

    fn plan((): &(), _: Now) -> Plan<CreateClass> {
        Plan::act(CreateClass)
    }

    async fn carry_out(&self, _: CreateClass, writer: &Writer) -> Result<(), ApiError> {
        match writer.create(&class()).await {
            Err(error) if !error.is_already_exists() => return Err(error),
            Ok(_) | Err(_) => {}
        }
        self.made.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// The default class, until an admin changes its annotation.
fn class() -> StorageClass {
    StorageClass {
        metadata: ObjectMeta {
            name: Some(local_volume::CLASS.to_owned()),
            annotations: Some([(DEFAULT.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        provisioner: local_volume::PROVISIONER.to_owned(),
        reclaim_policy: Some("Delete".to_owned()),
        volume_binding_mode: Some("WaitForFirstConsumer".to_owned()),
        allow_volume_expansion: Some(false),
        ..StorageClass::default()
    }
}
