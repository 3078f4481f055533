//! How the machine reports that another system locked it out of the TPM's hierarchies.

use agent_tpm::{Error, SLOT_SIZE, StateSlot, Tpm, Unlock};
use tests_harness::swtpm::Swtpm;
use tests_support::images::{boot, image, release_key, tool};
use zeroize::Zeroizing;

fn content() -> Zeroizing<Vec<u8>> {
    Zeroizing::new(vec![7; usize::from(SLOT_SIZE)])
}

/// A machine that keeps its state's key in the first slot.
fn machine() -> (Swtpm, Unlock) {
    let mut swtpm = Swtpm::new();
    let unlock = image(&release_key(1), 1, 1);
    boot(&mut swtpm, 1)
        .write_state_slot(&unlock, 0, 1, content())
        .expect("written");
    (swtpm, unlock)
}

/// After a clear the TPM keeps a key again.
fn cured(swtpm: &mut Swtpm, unlock: &Unlock) {
    tool(swtpm, "tpm2_clear -c p").expect("cleared, as the firmware's setup does");
    let tpm = boot(swtpm, 1);
    let slots = tpm.state_slots(unlock).expect("looked");
    assert_eq!(slots, [StateSlot::Absent, StateSlot::Absent]);
    tpm.write_state_slot(unlock, 0, 1, content())
        .expect("written again");
}

fn of_owner<T: std::fmt::Debug>(outcome: &Result<T, Error>) {
    assert!(
        matches!(
            outcome,
            Err(Error::Authorization {
                hierarchy: "owner",
                ..
            })
        ),
        "{outcome:?}"
    );
}

#[test]
fn another_authorization_of_the_owner_hierarchy_is_named() {
    let (mut swtpm, unlock) = machine();
    tool(&swtpm, "tpm2_changeauth -c o secret").expect("changed");
    let tpm: Tpm = boot(&mut swtpm, 1);
    of_owner(&tpm.state_slots(&unlock));
    of_owner(&tpm.write_state_slot(&unlock, 0, 1, content()));
    of_owner(&tpm.delete_state_slot(0));
    drop(tpm);
    cured(&mut swtpm, &unlock);
}

#[test]
fn another_authorization_of_the_endorsement_hierarchy_is_named() {
    // Without certificates, keys are derived to find out which of them the TPM has.
    let swtpm = Swtpm::blank();
    tool(&swtpm, "tpm2_changeauth -c e secret").expect("changed");
    let tpm = Tpm::open(&swtpm.tcti()).expect("open");
    let keys = tpm.endorsement_keys();
    assert!(
        matches!(
            keys,
            Err(Error::Authorization {
                hierarchy: "endorsement",
                ..
            })
        ),
        "{keys:?}"
    );
}

#[test]
fn a_full_nv_memory_is_named_and_existing_indices_are_used() {
    let (mut swtpm, unlock) = machine();
    let mut index = 0x0150_0000;
    for size in [2048, 256, 32, 1] {
        while tool(&swtpm, &format!("tpm2_nvdefine {index:#x} -C o -s {size}")).is_ok() {
            index += 1;
        }
    }
    let tpm = boot(&mut swtpm, 1);
    tpm.write_state_slot(&unlock, 0, 1, content())
        .expect("no room is needed");
    let refused = tpm.write_state_slot(&unlock, 1, 1, content());
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    drop(tpm);
    cured(&mut swtpm, &unlock);
}
