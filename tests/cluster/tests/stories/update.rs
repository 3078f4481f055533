//! A machine boots a newer image of its role.

use crate::world::{Cluster, World, expect};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::disk::Disk;
use tests_harness::process::run;
use tests_harness::{Result, file_error};

/// The stories' images are of 1.
const SVN: u64 = 2;

/// A newer image, which carries its machines' user-data and names none of them, is allowed by its
/// release and the digest of that user-data. It is written onto the worker's disk beside the state,
/// which the machine opens with it; the worker joins without further action, under the inventory's
/// name. Afterwards the older image opens nothing, and leaves the state as it is.
pub(crate) fn a_machine_boots_a_newer_image_that_carries_its_user_data(
    world: &mut World,
) -> Result<()> {
    let cluster = world.cluster()?;
    let (file, own) = (
        cluster.lab.dir.join("fleet.toml"),
        "[machine]\nname = \"worker-1\"\n\n",
    );
    let text = cluster.lab.worker_user_data(1, &cluster.pin);
    let unnamed = text.replace(own, "");
    expect(
        unnamed != text,
        &format!("no name to take out of the user-data:\n{text}"),
    )?;
    std::fs::write(&file, unnamed).map_err(file_error("cannot write", &file))?;
    let (svn, user_data) = (SVN.to_string(), file.display().to_string());
    let arguments = ["--svn", &svn, "--user-data", &user_data];
    let built = cluster.lab.worker_image(&svn, &arguments)?;
    let release = built.join("worker.release.json");
    let id = release_name(&release)?;
    let before = cluster.machine_field("worker-1", ".status.image.id")?;
    expect(
        id.starts_with("worker-") && id != before,
        &format!("the newer image is {id:?}, the older {before:?}"),
    )?;
    let uid = ["get", "node", "worker-1", "-o", "jsonpath={.metadata.uid}"];
    let node = cluster.lab.kubectl(&uid)?;
    let names = ["get", "nodes,machines", "-o", "name"];
    let members = cluster.lab.kubectl(&names)?;

    cluster
        .lab
        .kubectl(&["apply", "-f", &release.display().to_string()])?;
    // With the power off: what the inventory does not name any more would be drift.
    cluster.worker.cut_power()?;
    let before_update = cluster.worker_blueprint.clone();
    let key = cluster.lab.keys.join("release.pub");
    let signed_by = ["--release-key", &key.display().to_string()];
    write_image(cluster, &built.join("worker.raw"), &signed_by)?;
    let blueprint = &mut cluster.worker_blueprint;
    (blueprint.image, blueprint.cidata) = (built.join("worker.raw"), None);
    cluster.lab.register(
        "worker-1",
        &cluster.worker_blueprint,
        &file,
        "192.168.77.11",
    )?;
    let blueprint = cluster.worker_blueprint.clone();
    cluster.restart_worker(&blueprint)?;

    let words = [
        "get",
        "machine",
        "worker-1",
        "-o",
        "jsonpath={.status.image.id} {.status.image.svn} {.status.state}",
    ];
    let wanted = format!("{id} {SVN} Trusted");
    cluster.lab.kubectl_until(
        &words,
        "the newer image in the Machine's status",
        BOOT_LIMIT,
        |text| text == wanted,
    )?;
    cluster.lab.wait_ready("worker-1", BOOT_LIMIT)?;
    let source = cluster.machine_field("worker-1", ".status.config.source")?;
    expect(
        source == "image",
        &format!("the Machine shows the source {source:?}"),
    )?;
    expect(
        cluster
            .machine_field("worker-1", ".status.admission.by")?
            .is_empty(),
        "a person let it in",
    )?;
    let labels = [
        "get",
        "node",
        "worker-1",
        "-o",
        "jsonpath={.metadata.labels.pratique\\.dev/image}",
    ];
    cluster.lab.kubectl_until(
        &labels,
        "the Node's label of the newer image",
        BOOT_LIMIT,
        |text| text == id,
    )?;
    the_state_is_kept(cluster)?;
    expect(cluster.lab.kubectl(&uid)? == node, "it is another Node")?;
    let now = cluster.lab.kubectl(&names)?;
    expect(
        now == members,
        &format!("before there were\n{members}\nand now\n{now}"),
    )?;
    let older = before_update.image;
    the_older_image_opens_nothing(cluster, &older)
}

fn the_state_is_kept(cluster: &Cluster) -> Result<()> {
    let state = [
        "get",
        "node",
        "worker-1",
        "-o",
        crate::older_disk::STATE_RENEWED,
    ];
    cluster
        .lab
        .kubectl_until(&state, "the Node's word on its state", BOOT_LIMIT, |text| {
            text == "False StateKept"
        })
        .map(drop)
}

/// The boot after the admission raises the floor to the newer image's version.
fn the_older_image_opens_nothing(cluster: &mut Cluster, older: &Path) -> Result<()> {
    let blueprint = cluster.worker_blueprint.clone();
    // In order, so that what the agent noted of the admission is on the disk.
    cluster.worker.power_off(BOOT_LIMIT)?;
    let mark = cluster.worker.mark();
    cluster.restart_worker(&blueprint)?;
    let opened = "state opened generation=";
    cluster.worker.wait_after(mark, opened, BOOT_LIMIT)?;
    cluster
        .worker
        .wait_after(mark, "state mounted", BOOT_LIMIT)?;
    cluster.worker.cut_power()?;
    write_image(cluster, older, &["--lose-state"])?;
    let mark = cluster.worker.mark();
    cluster.restart_worker(&blueprint)?;
    let line = cluster
        .worker
        .wait_after(mark, "the state is in memory", BOOT_LIMIT)?;
    let floor = format!("security version {SVN} or above");
    expect(
        line.contains(&floor),
        &format!("the older image says: {line}"),
    )
}

/// Writes an image onto the worker's disk, as an admin does while the machine is off.
fn write_image(cluster: &Cluster, image: &Path, arguments: &[&str]) -> Result<()> {
    let (tools, blueprint) = (&cluster.lab.tools, &cluster.worker_blueprint);
    // The disk that the machine has refers to the file that the last call made.
    let name = image.parent().and_then(Path::file_name).unwrap_or_default();
    let path = blueprint.dir.join(name).with_extension("raw");
    let disk = Disk::copy_of(blueprint, tools, &path)?;
    let mut write = Command::new(cluster.lab.programs.join("image-build"));
    write.arg("write").arg(image).arg(&path).args(arguments);
    run(write)?;
    disk.give_to(blueprint, tools)
}

/// The image's id.
pub(crate) fn release_name(file: &Path) -> Result<String> {
    let text = std::fs::read(file).map_err(file_error("cannot read", file))?;
    let object: Value = serde_json::from_slice(&text).unwrap_or_default();
    Ok(object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned())
}
