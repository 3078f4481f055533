//! An attacker with the board boots its genuine image with other user-data.

use crate::world::{World, expect};
use tests_harness::cluster::BOOT_LIMIT;
use tests_harness::{Result, file_error};

const OPENED: &str = "state opened generation=";
const KEPT_CLOSED: &str = "the state is in memory and lasts only until the next reboot";

/// An image of which each state belongs to the user-data that made it opens the state in its next
/// boot, does not open it with user-data in which every pod may be root, says why, and leaves it
/// for the boot with its own.
pub(crate) fn a_state_that_belongs_to_user_data_opens_under_no_other(
    world: &mut World,
) -> Result<()> {
    let cluster = world.cluster()?;
    let description = cluster.lab.dir.join("bound-image.toml");
    let text = "version = 1\nkind = \"image\"\n[image]\nstate = \"user-data\"\n";
    std::fs::write(&description, text).map_err(file_error("cannot write", &description))?;
    let description = description.display().to_string();
    let image = cluster
        .lab
        .worker_image("bound", &["--description", &description])?;
    let (mut blueprint, own) = cluster.unregistered("bound")?;
    blueprint.image = image.join("worker.raw");
    let other = format!("{own}\n[node]\nprivileged = true\n");
    let mut mark = 0;
    for (boot, text, line) in [
        ("the first", &own, "state made: it is encrypted"),
        ("the next", &own, OPENED),
        ("with other user-data", &other, KEPT_CLOSED),
        ("as before", &own, OPENED),
    ] {
        let lab = &world.cluster()?.lab;
        lab.give_user_data(&mut blueprint, text)?;
        let machine = world.guest(&blueprint)?;
        let reason = machine.wait_after(mark, line, BOOT_LIMIT)?;
        machine.wait_after(mark, "state mounted", BOOT_LIMIT)?;
        if line == KEPT_CLOSED {
            expect(
                reason.contains("it was made under other user-data than this boot's"),
                &format!("the reason is not on the console: {reason}"),
            )?;
        }
        machine.cut_power()?;
        mark = machine.mark();
        println!("  {boot} boot: {reason}");
    }
    Ok(())
}
