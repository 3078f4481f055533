//! Machines that must not get in: each is refused with its own code, and none becomes Ready.
//!
//! The negative control of all of them is the good worker: the same image, the same user-data but
//! for its name and address, and no attack, and it is Ready.

use crate::partition_table;
use crate::update::release_name;
use crate::world::{World, expect};
use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use tests_harness::Result;
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::{Error, file_error};

/// How a refusal reads on the console.
const REFUSED: &str = "pratique: REFUSED";

/// An EK that no Machine names.
pub(crate) fn a_machine_with_an_unknown_ek_is_refused(world: &mut World) -> Result<()> {
    let (blueprint, _) = world.cluster()?.unregistered("stranger")?;
    let machine = world.guest(&blueprint)?;
    machine.wait(REFUSED, BOOT_LIMIT)?;
    let cluster = world.cluster()?;
    let words = [
        "get",
        "nodeattestations",
        "-o",
        "jsonpath={.items[*].status.code}",
    ];
    cluster
        .lab
        .kubectl_until(&words, "a refused NodeAttestation", BOOT_LIMIT, |text| {
            text.contains(code::UNKNOWN_EK)
        })?;
    cluster.never_ready("stranger")
}

/// A registered machine that claims the good worker's name.
pub(crate) fn a_machine_that_claims_another_nodes_name_is_refused(world: &mut World) -> Result<()> {
    let (mut blueprint, _) = world.second_worker("impostor")?;
    let cluster = world.cluster()?;
    let text = cluster
        .lab
        .worker_user_data(2, &cluster.pin)
        .replace("worker-2", "worker-1");
    cluster.lab.give_user_data(&mut blueprint, &text)?;
    refused_by_console_and_record(world, &blueprint, "impostor", code::WRONG_NAME)
}

/// User-data that differs from the inventory's digest by one comment.
pub(crate) fn user_data_that_the_inventory_does_not_know_is_refused(
    world: &mut World,
) -> Result<()> {
    let (mut blueprint, data) = world.second_worker("edited")?;
    let text = std::fs::read_to_string(&data).map_err(file_error("cannot read", &data))?;
    world
        .cluster()?
        .lab
        .give_user_data(&mut blueprint, &format!("{text}\n# changed\n"))?;
    refused_as_machine(world, &blueprint, "edited", code::CONFIG)
}

/// The genuine master's machine, disk and TPM, with user-data that lets everybody do everything:
/// its state opens, and nothing is served from it. With another partition table, in which there is
/// no state, it makes none. With its own user-data and table it is the cluster's master again.
pub(crate) fn a_master_with_changed_user_data_or_partition_table_serves_nothing(
    world: &mut World,
) -> Result<()> {
    let cluster = world.cluster()?;
    let path = cluster.master_blueprint.dir.join("user-data.toml");
    let genuine = std::fs::read_to_string(&path).map_err(file_error("cannot read", &path))?;
    cluster.master.cut_power()?;
    let hostile = format!("{genuine}\n[cluster.api]\nauthorization = [\"AlwaysAllow\"]\n");
    cluster
        .lab
        .give_user_data(&mut cluster.master_blueprint, &hostile)?;
    let mark = cluster.master.mark();
    cluster.master = cluster.master_blueprint.start(&cluster.lab.tools)?;
    let line = cluster
        .master
        .wait_after(mark, "FATAL CONFIG_OTHER", BOOT_LIMIT)?;
    cluster
        .master
        .wait_after(mark, "held: no service is started", BOOT_LIMIT)?;
    expect(
        line.contains("spec.configDigests"),
        &format!("the console does not name the cure: {line}"),
    )?;
    cluster.master.cut_power()?;
    cluster
        .lab
        .give_user_data(&mut cluster.master_blueprint, &genuine)?;
    partition_table::is_exchanged_and_mended(cluster)?;
    let mark = cluster.master.mark();
    cluster.master = cluster.master_blueprint.start(&cluster.lab.tools)?;
    cluster
        .master
        .wait_after(mark, "state opened generation=", BOOT_LIMIT)?;
    for node in ["master-1", "worker-1"] {
        cluster.lab.wait_ready(node, BOOT_LIMIT)?;
    }
    Ok(())
}

/// A kernel argument handed over by SMBIOS, which the stub measures into PCR 12.
pub(crate) fn a_kernel_argument_from_outside_is_refused(world: &mut World) -> Result<()> {
    let (mut blueprint, _) = world.second_worker("argued")?;
    blueprint
        .smbios
        .push("io.systemd.stub.kernel-cmdline-extra=init=/bin/sh".to_owned());
    refused_as_machine(world, &blueprint, "argued", code::PCR12)
}

/// The worker's release, signed by a key that policy does not name.
pub(crate) fn a_release_that_no_release_key_signed_is_refused(world: &mut World) -> Result<()> {
    let (blueprint, _) = world.second_worker("unsigned")?;
    let cluster = world.cluster()?;
    let name = release_name(&cluster.lab.images.join("worker.release.json"))?;
    let good = cluster
        .lab
        .kubectl(&["get", "imagerelease", &name, "-o", "json"])?;
    let mut forged: serde_json::Value = serde_json::from_str(&good).unwrap_or_default();
    forged["spec"]["signatures"] = serde_json::json!([]);
    let outcome = cluster
        .replace_release(&name, &forged.to_string())
        .and_then(|()| refused_as_machine(world, &blueprint, "unsigned", code::UNSIGNED_RELEASE));
    let cluster = world.cluster()?;
    cluster.replace_release(&name, &good)?;
    outcome
}

/// The policy's minimum is raised above the image's security version.
pub(crate) fn an_image_below_the_minimum_svn_is_refused(world: &mut World) -> Result<()> {
    let (blueprint, _) = world.second_worker("old")?;
    let cluster = world.cluster()?;
    let policy = cluster.lab.kubectl(&[
        "get",
        "certificatepolicies",
        "-o",
        "jsonpath={.items[0].metadata.name}",
    ])?;
    let minimum = |value: u64| {
        format!("[{{\"op\":\"add\",\"path\":\"/spec/rules/0/images/minSvn\",\"value\":{value}}}]")
    };
    let set = |cluster: &crate::world::Cluster, value: u64| {
        cluster
            .lab
            .kubectl(&[
                "patch",
                "certificatepolicy",
                &policy,
                "--type=json",
                "-p",
                &minimum(value),
            ])
            .map(drop)
    };
    set(cluster, 1000)?;
    let outcome = refused_as_machine(world, &blueprint, "old", code::SVN);
    let cluster = world.cluster()?;
    let rule = cluster.lab.kubectl(&[
        "get",
        "certificatepolicies",
        "-o",
        "jsonpath={.items[0].spec.rules[0].name}",
    ])?;
    // A lower minimum needs an annotation that names it.
    let consent = format!("pratique.dev/lower-min-svn={}=1", rule.trim());
    cluster.lab.kubectl(&[
        "annotate",
        "certificatepolicy",
        &policy,
        "--overwrite",
        &consent,
    ])?;
    set(cluster, 1)?;
    outcome
}

/// Firmware without enrolled keys boots the same image, and policy asks for Secure Boot.
pub(crate) fn a_machine_with_secure_boot_off_is_refused(world: &mut World) -> Result<()> {
    let (mut blueprint, _) = world.second_worker("unenrolled")?;
    let keys = world.cluster()?.lab.keys.clone();
    blueprint.vars = keys.join("vars-blank.fd");
    refused_as_machine(world, &blueprint, "unenrolled", code::SECURE_BOOT)
}

/// One byte of the UKI's command line is flipped: the firmware does not start it.
pub(crate) fn a_uki_with_a_flipped_byte_does_not_start(world: &mut World) -> Result<()> {
    let (mut blueprint, _) = world.second_worker("cut-uki")?;
    blueprint.image = flipped(&blueprint.image, &blueprint.dir, b"pratique.roothash=")?;
    let machine = world.guest(&blueprint)?;
    machine.wait("Access Denied", BOOT_LIMIT)?;
    world.cluster()?.never_ready("cut-uki")
}

/// One byte of the root is flipped: verity stops the machine before anything of it runs.
pub(crate) fn a_root_with_a_flipped_byte_does_not_run(world: &mut World) -> Result<()> {
    let (mut blueprint, _) = world.second_worker("cut-root")?;
    // erofs: the superblock's magic, little-endian 0xE0F5E1E2, at 1024 bytes into the file system.
    blueprint.image = flipped(&blueprint.image, &blueprint.dir, &[0xe2, 0xe1, 0xf5, 0xe0])?;
    let machine = world.guest(&blueprint)?;
    machine.wait("pratique: FATAL", BOOT_LIMIT)?;
    world.cluster()?.never_ready("cut-root")
}

/// The refusal is proven to be the machine's own: its Machine shows the code.
fn refused_as_machine(
    world: &mut World,
    blueprint: &tests_harness::machine::Blueprint,
    name: &str,
    code: &str,
) -> Result<()> {
    let machine = world.guest(blueprint)?;
    let console = machine.wait(REFUSED, BOOT_LIMIT)?;
    let cluster = world.cluster()?;
    cluster.refused(name, code, BOOT_LIMIT).map_err(|error| {
        Error::Missing(format!(
            "{}; the console said: {console}",
            tests_harness::chain(&error)
        ))
    })
}

/// The refusal came before any proof: the NodeAttestation shows the code.
fn refused_by_console_and_record(
    world: &mut World,
    blueprint: &tests_harness::machine::Blueprint,
    name: &str,
    code: &str,
) -> Result<()> {
    let machine = world.guest(blueprint)?;
    machine.wait(REFUSED, BOOT_LIMIT)?;
    let cluster = world.cluster()?;
    let words = [
        "get",
        "nodeattestations",
        "-o",
        "jsonpath={.items[*].status.code}",
    ];
    cluster.lab.kubectl_until(
        &words,
        &format!("a NodeAttestation refused with {code}"),
        BOOT_LIMIT,
        |text| text.contains(code),
    )?;
    cluster.never_ready(name)
}

impl crate::world::Cluster {
    fn replace_release(&self, name: &str, object: &str) -> Result<()> {
        let file = self.lab.dir.join("release.json");
        let mut value: serde_json::Value = serde_json::from_str(object).unwrap_or_default();
        // A deleted object is created again, without the fields that the server sets.
        value["metadata"] = serde_json::json!({ "name": name });
        std::fs::write(&file, value.to_string()).map_err(file_error("cannot write", &file))?;
        self.lab.kubectl(&["delete", "imagerelease", name])?;
        self.lab
            .kubectl(&["create", "-f", &file.display().to_string()])
            .map(drop)
    }
}

/// A copy of an image in which one byte after the first occurrence of `marker` is flipped.
fn flipped(image: &Path, dir: &Path, marker: &[u8]) -> Result<std::path::PathBuf> {
    let copy = dir.join("flipped.raw");
    let mut cp = std::process::Command::new("cp");
    cp.arg("--sparse=always").arg(image).arg(&copy);
    tests_harness::process::run(cp)?;
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&copy)
        .map_err(file_error("cannot open", &copy))?;
    let place = find(&mut file, marker).map_err(file_error("cannot read", &copy))?;
    let place = place
        .ok_or_else(|| Error::Missing(format!("{} does not hold the marker", copy.display())))?
        + marker.len() as u64;
    let mut byte = [0];
    let mut flip = || -> std::io::Result<()> {
        file.seek(SeekFrom::Start(place))?;
        file.read_exact(&mut byte)?;
        byte[0] ^= 1;
        file.seek(SeekFrom::Start(place))?;
        file.write_all(&byte)
    };
    flip().map_err(file_error("cannot change", &copy))?;
    Ok(copy)
}

fn find(file: &mut std::fs::File, marker: &[u8]) -> std::io::Result<Option<u64>> {
    const STEP: usize = 1 << 20;
    let mut window = Vec::new();
    let mut start = 0_u64;
    loop {
        let mut chunk = Vec::new();
        Read::by_ref(file)
            .take(STEP as u64)
            .read_to_end(&mut chunk)?;
        if chunk.is_empty() {
            return Ok(None);
        }
        window.extend_from_slice(&chunk);
        if let Some(index) = window.windows(marker.len()).position(|part| part == marker) {
            return Ok(Some(start + index as u64));
        }
        let keep = window.len().saturating_sub(marker.len() - 1);
        start += keep as u64;
        window.drain(..keep);
    }
}

/// The codes of `config/protocol`, as people see them.
mod code {
    pub(super) const UNKNOWN_EK: &str = "MACHINE_UNKNOWN";
    pub(super) const WRONG_NAME: &str = "NAME_MISMATCH";
    pub(super) const CONFIG: &str = "CONFIG_CHANGED";
    pub(super) const PCR12: &str = "OUTSIDE_ARGUMENTS";
    pub(super) const UNSIGNED_RELEASE: &str = "IMAGE_UNSIGNED";
    pub(super) const SVN: &str = "IMAGE_SVN";
    pub(super) const SECURE_BOOT: &str = "SECURE_BOOT_OFF";
}
