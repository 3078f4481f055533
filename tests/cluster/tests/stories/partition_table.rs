//! Attacks by the partition table, which an attacker with the disk can change.

use crate::world::{Cluster, expect};
use agent_init::gpt::{Geometry, Table};
use agent_volume::header::{COPIES, SIZE};
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::disk::Disk;
use tests_harness::{Error, Result, file_error};

/// The state's label.
const LABEL: &str = "pratique-state";
/// Bytes in a sector of the machines' disks.
const SECTOR: u64 = 512;
/// Sectors of the table in front of the partitions, and of its copy behind them.
const TABLE: u64 = 34;
const COPY: u64 = 33;

/// The master's partition table is replaced by the image's own, which has no state partition. The
/// master creates no new state: it stops before its services, prints the cure and leaves the bytes
/// of its state as they are. Then the test carries out that cure. The master's power is off before
/// and afterwards; its next boot shows whether the state is whole.
pub(crate) fn is_exchanged_and_mended(cluster: &mut Cluster) -> Result<()> {
    let tools = cluster.lab.tools.clone();
    let dir = cluster.lab.dir.join("partition-table");
    std::fs::create_dir_all(&dir).map_err(file_error("cannot make", &dir))?;
    let blueprint = cluster.master_blueprint.clone();
    let own = dir.join("own.raw");
    let disk = Disk::copy_of(&blueprint, &tools, &own)?;
    let state = disk.partition(LABEL)?.start;
    let headers = |disk: &Disk| -> Result<Vec<Vec<u8>>> {
        COPIES
            .iter()
            .map(|copy| disk.read(state + copy, SIZE))
            .collect()
    };
    let before = headers(&disk)?;
    let image = Disk::open(&blueprint.image)?;
    for (sectors, from) in [(TABLE, 0), (COPY, image.size()? - COPY * SECTOR)] {
        let part = image.read(from, usize::try_from(sectors * SECTOR).unwrap_or(0))?;
        disk.write(from, &part)?;
    }
    let blank = vec![0; usize::try_from(COPY * SECTOR).unwrap_or(0)];
    disk.write(disk.size()? - COPY * SECTOR, &blank)?;
    expect(disk.partition(LABEL).is_err(), "the image has a state")?;
    disk.give_to(&blueprint, &tools)?;

    let mark = cluster.master.mark();
    cluster.master = blueprint.start(&tools)?;
    let line = cluster.master.wait_after(mark, "FATAL STATE", BOOT_LIMIT)?;
    cluster
        .master
        .wait_after(mark, "held: no service is started", BOOT_LIMIT)?;
    expect(
        line.contains("has no state partition") && line.contains(&format!("its label `{LABEL}`")),
        &format!("the console does not say what is missing, or the cure: {line}"),
    )?;
    cluster.master.cut_power()?;

    let mended = Disk::copy_of(&blueprint, &tools, &dir.join("mended.raw"))?;
    expect(
        headers(&mended)? == before,
        "the headers of the state were overwritten",
    )?;
    label(&mended, state)?;
    mended.give_to(&blueprint, &tools)?;
    std::fs::remove_file(&own).map_err(file_error("cannot remove", &own))
}

/// Gives the partition that begins at a byte the state's label, in both copies of the table.
fn label(disk: &Disk, start: u64) -> Result<()> {
    let fault = |error: &dyn std::fmt::Display| Error::Missing(format!("the table: {error}"));
    let geometry = Geometry {
        sector: SECTOR,
        sectors: disk.size()? / SECTOR,
    };
    let read = |place, length| disk.read(place, length).map_err(std::io::Error::other);
    let table = Table::read(geometry, read).map_err(|error| fault(&error))?;
    let part = table
        .partitions()
        .find(|part| part.first * SECTOR == start)
        .ok_or_else(|| fault(&"the boot added no partition in the state's place"))?;
    let writes = table.renamed(part.number, LABEL).writes();
    for write in writes.map_err(|error| fault(&error))? {
        disk.write(write.offset, &write.bytes)?;
    }
    Ok(())
}
