//! A master whose board is gone: its state on another one, by the admin's key.

use crate::world::{Cluster, World, expect};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;
use tests_harness::cluster::{BOOT_LIMIT, Lab};
use tests_harness::process::run;
use tests_harness::{Error, Result, file_error};

/// For the renewal that follows.
const RENEWAL_LIMIT: Duration = Duration::from_secs(900);
/// What lies in front of the encrypted volume.
const FRONT: usize = 1 << 20;
const OBJECT: [&str; 3] = ["get", "configmap", "survivor"];

/// The master's board dies, TPM and firmware variables with it. On another board its disk is
/// refused until the admin gives that board a one-off key; then the master comes up with its store
/// and its keys, and the worker renews.
pub(crate) fn a_masters_state_is_recovered_on_another_board(world: &mut World) -> Result<()> {
    let cluster = world.cluster()?;
    let lab = cluster.lab.clone();
    lab.kubectl(&["create", "configmap", "survivor", "--from-literal=a=kept"])?;
    let serial = cluster.machine_field("worker-1", ".status.certificate.serial")?;
    refused_on_another_board(cluster)?;
    let ek = cluster.master_blueprint.tpm(&lab.tools)?.ek_certificate();
    give_one_off(cluster, &ek)?;

    start_master(
        cluster,
        "state of another board opened by the admin's key sha256:",
    )?;
    let kept = lab.kubectl(&[&OBJECT[..], &["-o", "jsonpath={.data.a}"]].concat())?;
    expect(kept == "kept", "what the store held is gone")?;
    readmit(cluster, &ek)?;
    renewed(cluster, &serial)?;
    lab.wait_ready("master-1", BOOT_LIMIT)?;

    // From now on it opens by the new board's TPM.
    cluster.master.cut_power()?;
    start_master(cluster, "state opened generation=")?;
    lab.kubectl_until(
        &OBJECT,
        "the store after a second boot",
        BOOT_LIMIT,
        |text| text.contains("survivor"),
    )?;
    for node in ["worker-1", "master-1"] {
        lab.wait_ready(node, BOOT_LIMIT)?;
    }
    Ok(())
}

/// Powers the master on; it is up once its console said `line`.
fn start_master(cluster: &mut Cluster, line: &str) -> Result<()> {
    let mark = cluster.master.mark();
    cluster.master = cluster.master_blueprint.start(&cluster.lab.tools)?;
    cluster.master.wait_after(mark, line, BOOT_LIMIT)?;
    cluster
        .lab
        .kubectl_until(
            &["get", "--raw", "/readyz"],
            "the master to be back",
            BOOT_LIMIT,
            |text| text == "ok",
        )
        .map(drop)
}

/// Another TPM and other firmware variables with the master's disk.
fn refused_on_another_board(cluster: &mut Cluster) -> Result<()> {
    cluster.master.cut_power()?;
    let dir = &cluster.master_blueprint.dir;
    for part in ["tpm", "vars.fd"] {
        let (from, to) = (dir.join(part), dir.join(format!("dead.{part}")));
        std::fs::rename(&from, &to).map_err(file_error("cannot move", &from))?;
    }
    let mark = cluster.master.mark();
    cluster.master = cluster.master_blueprint.start(&cluster.lab.tools)?;
    let line = cluster.master.wait_after(mark, "FATAL STATE", BOOT_LIMIT)?;
    expect(
        line.contains("the TPM has no key for it") && line.contains("pratique recover-state"),
        &format!("the console does not name the way back: {line}"),
    )?;
    cluster.master.cut_power()
}

/// What the guide says, on the master's disk.
fn give_one_off(cluster: &Cluster, ek: &Path) -> Result<()> {
    let (lab, dir) = (&cluster.lab, &cluster.master_blueprint.dir);
    let (disk, raw, front) = (
        cluster.master_blueprint.overlay_path(),
        dir.join("disk.raw"),
        dir.join("front"),
    );
    convert(lab, &disk, "raw", &raw)?;
    let at = state_offset(&raw)?;
    let file = File::options().read(true).write(true).open(&raw);
    let file = file.map_err(file_error("cannot open", &raw))?;
    let mut bytes = vec![0; FRONT];
    file.read_exact_at(&mut bytes, at)
        .map_err(file_error("cannot read", &raw))?;
    std::fs::write(&front, &bytes).map_err(file_error("cannot write", &front))?;
    let mut recover = lab.pratique();
    recover.args(["recover-state", "--ca-pin", &cluster.pin]);
    recover.arg("--admin-key").arg(lab.admin_key());
    recover.arg("--ek").arg(ek);
    let release = lab.images.join("master.release.json");
    recover.arg("--release").arg(release);
    let key = lab.keys.join("release.pub");
    recover.arg("--release-key").arg(key).arg(&front);
    run(recover)?;
    let bytes = std::fs::read(&front).map_err(file_error("cannot read", &front))?;
    file.write_all_at(&bytes, at)
        .and_then(|()| file.sync_all())
        .map_err(file_error("cannot write", &raw))?;
    std::fs::remove_file(&disk).map_err(file_error("cannot remove", &disk))?;
    convert(lab, &raw, "qcow2", &disk)?;
    std::fs::remove_file(&raw).map_err(file_error("cannot remove", &raw))
}

/// The inventory learns the master's new board.
fn readmit(cluster: &Cluster, ek: &Path) -> Result<()> {
    let lab = &cluster.lab;
    let mut describe = lab.pratique();
    describe.args(["machine", "--name", "master-1", "--role", "master", "--ek"]);
    describe.arg(ek);
    let manifest = run(describe)?;
    let hash = manifest
        .split("sha256:")
        .nth(1)
        .and_then(|rest| rest.get(..64))
        .ok_or_else(|| Error::Missing(format!("no hash of an endorsement key in {manifest}")))?;
    let patch = format!("{{\"spec\":{{\"ek\":{{\"hashes\":[\"sha256:{hash}\"]}}}}}}");
    lab.kubectl(&["patch", "machine", "master-1", "--type=merge", "-p", &patch])
        .map(drop)
}

/// The worker gets another certificate.
fn renewed(cluster: &Cluster, serial: &str) -> Result<()> {
    let words = [
        "get",
        "machine",
        "worker-1",
        "-o",
        "jsonpath={.status.certificate.serial}",
    ];
    cluster
        .lab
        .kubectl_until(
            &words,
            "the worker to renew at the master on another board",
            RENEWAL_LIMIT,
            |text| {
                !text.is_empty()
                    && text.bytes().all(|byte| byte.is_ascii_hexdigit())
                    && text != serial
            },
        )
        .map(drop)
}

fn convert(lab: &Lab, from: &Path, kind: &str, to: &Path) -> Result<()> {
    let mut convert = lab.tools.command("qemu-img");
    convert.args(["convert", "-O", kind]).arg(from).arg(to);
    run(convert).map(drop)
}

/// Where the state partition begins on a disk, in bytes (UEFI 2.10, 5.3: GPT with entries of 128
/// bytes at sector 2).
fn state_offset(disk: &Path) -> Result<u64> {
    const ENTRY: usize = 128;
    let mut entries = vec![0; 128 * ENTRY];
    let mut file = File::open(disk).map_err(file_error("cannot open", disk))?;
    file.seek(SeekFrom::Start(1024))
        .and_then(|_| file.read_exact(&mut entries))
        .map_err(file_error("cannot read", disk))?;
    let name: Vec<u8> = "pratique-state\0"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let entry = entries
        .chunks_exact(ENTRY)
        .find(|entry| entry[56..].starts_with(&name))
        .ok_or_else(|| Error::Missing("no state partition on the master's disk".to_owned()))?;
    let first: [u8; 8] = entry[32..40].try_into().unwrap_or_default();
    Ok(u64::from_le_bytes(first) * 512)
}
