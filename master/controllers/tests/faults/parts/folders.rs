//! A node's folder for a claim is removed with the claim, even if creating the volume failed.

use super::{Wish, object};
use crate::api::Fate;
use crate::machines::Machine;
use crate::simulation::Worker;
use crate::world::World;
use crate::{Scenario, Scope};
use config_kube::local_volume::{CLASS, PROVISIONER};
use master_claims::SELECTED_NODE;
use master_control_cluster::in_use::InUse;
use master_control_cluster::volume_provisioner::VolumeProvisioner;
use serde_json::json;
use std::time::Duration;

/// All processes see everything and handle what is due.
async fn act(world: &mut World) {
    for number in 0..world.processes.all.len() {
        world.see_all();
        while world.run_process(number, None).await {}
    }
}

#[tokio::test]
async fn a_folder_goes_with_its_claim_where_its_volume_was_refused() {
    let mut world = World::empty(0, Scenario::calm(Scope::Parts)).await;
    let history = &world.history;
    world.processes.all = vec![
        Worker::<VolumeProvisioner>::boxed(history),
        Worker::<InUse>::boxed(history),
    ];
    let class = json!({"metadata": {"name": CLASS}, "provisioner": PROVISIONER,
        "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete"});
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
        "resources": {"requests": {"storage": "1Gi"}}});
    let mut claim = object("data", &spec);
    claim["metadata"]["annotations"] = json!({SELECTED_NODE: "n0",
        "volume.kubernetes.io/storage-provisioner": PROVISIONER});
    let node = Machine::new(0, world.processes.now).node();
    for (kind, object) in [
        ("nodes", node),
        ("storageclasses", class),
        ("persistentvolumeclaims", claim),
    ] {
        world.carry_out(Wish::Make(kind, object)).await;
    }
    let refused = Fate::Refused(403, "Forbidden");
    world.processes.api.decide("/persistentvolumes", refused);
    act(&mut world).await;
    assert!(world.history.objects("persistentvolumes").is_empty());
    assert_eq!(world.processes.api.folders().len(), 1);
    let delete = Wish::Delete("persistentvolumeclaims", "data".to_owned());
    world.carry_out(delete).await;
    // The first round removes the finalizer.
    for _ in 0..2 {
        act(&mut world).await;
        world.processes.pass(Duration::from_secs(60));
    }
    assert!(world.history.objects("persistentvolumeclaims").is_empty());
    assert!(world.processes.api.folders().is_empty());
}
