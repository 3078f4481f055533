//! The state's key on a real software TPM: which boots open it, and what the owner of the hierarchy
//! can't do.

use agent_tpm::{Error, SLOT_SIZE, StateSlot, Tpm, Unlock};
use config_tpm::Digest;
use config_tpm::pcr::Selection;
use config_unlock::approvals::{
    Approver, CAP_EVENT, CAP_PCR, Index, Role, SECURE_BOOT_PCR, Use, state_key_policy,
};
use tests_harness::swtpm::Swtpm;
use tests_support::bus;
use tests_support::images::{boot, boot_under, image, image_of, release_key, tapped, tool};
use zeroize::Zeroizing;

fn content(seed: u8) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(
        (0..u8::try_from(SLOT_SIZE).expect("small"))
            .map(|n| n ^ seed)
            .collect(),
    )
}

fn open(floor: u64, seed: u8) -> StateSlot {
    StateSlot::Open {
        floor,
        content: content(seed),
    }
}

fn slot(tpm: &Tpm, unlock: &Unlock) -> StateSlot {
    tpm.state_slots(unlock).expect("looked").swap_remove(0)
}

/// The digest that we compute equals the one that the TPM computes.
#[test]
fn the_policies_are_the_tpms_own() {
    let mut swtpm = Swtpm::blank();
    let tpm = boot_under(&mut swtpm, 1, 5);
    let values = tpm.read_pcrs(Use::State.pcrs()).expect("registers");
    drop(tpm);
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let pcrs = Use::State
        .pcrs()
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",");
    tool(
        &swtpm,
        &format!(
            "tpm2_createpolicy --policy-pcr -l sha256:{pcrs} -L {}",
            path("pcr")
        ),
    )
    .expect("a policy");
    assert_eq!(
        std::fs::read(path("pcr")).expect("read"),
        Use::State.policy(&values).as_bytes()
    );
    assert_eq!(Selection::of(Use::State.pcrs()).iter().count(), 6);

    let approver = Approver::new(*release_key(1).verifying_key(), Role::Worker);
    std::fs::write(path("name"), approver.public().name().as_bytes()).expect("written");
    std::fs::write(path("ref"), Use::State.reference(Role::Worker, 3)).expect("written");
    let session = path("session");
    tool(&swtpm, &format!("tpm2_startauthsession -S {session}")).expect("a trial");
    let line = format!(
        "tpm2_policyauthorize -S {session} -L {} -i {} -q {} -n {}",
        path("out"),
        path("pcr"),
        path("ref"),
        path("name")
    );
    tool(&swtpm, &line).expect("a policy");
    assert_eq!(
        std::fs::read(path("out")).expect("read"),
        Use::State.auth_policy(&approver, 3).as_bytes()
    );
    let pcr = SECURE_BOOT_PCR;
    let line = format!(
        "tpm2_policypcr -S {session} -l sha256:{pcr} -L {}",
        path("out")
    );
    tool(&swtpm, &line).expect("a policy");
    let settings = tpm_settings(&swtpm);
    assert_eq!(
        std::fs::read(path("out")).expect("read"),
        state_key_policy(&approver, 3, settings).as_bytes()
    );
}

fn tpm_settings(swtpm: &Swtpm) -> Digest {
    let tpm = Tpm::open(&swtpm.tcti()).expect("open");
    tpm.read_pcrs(&[SECURE_BOOT_PCR]).expect("registers")[&SECURE_BOOT_PCR]
}

#[test]
fn each_image_of_the_release_key_opens_the_state_and_a_foreign_system_does_not() {
    let mut swtpm = Swtpm::new();
    let (one, two) = (image(&release_key(1), 3, 1), image(&release_key(1), 4, 2));
    let tpm = boot(&mut swtpm, 1);
    assert!(tpm.approved(&one).expect("asked"));
    assert_eq!(
        tpm.state_slots(&one).expect("looked"),
        [StateSlot::Absent, StateSlot::Absent]
    );
    tpm.write_state_slot(&one, 0, 3, content(7))
        .expect("written");
    assert_eq!(
        tpm.state_slots(&one).expect("looked"),
        [open(3, 7), StateSlot::Absent]
    );
    drop(tpm);
    // The next boot, an update, and the other boot variant that the build predicts.
    for (seed, unlock) in [(1, &one), (2, &two), (0xEE, &two)] {
        let tpm = boot(&mut swtpm, seed);
        assert_eq!(slot(&tpm, unlock), open(3, 7), "{seed}");
        tpm.write_state_slot(unlock, 0, 3, content(7))
            .expect("written again");
    }
    // Another system, with the genuine image's approvals.
    let tpm = boot(&mut swtpm, 9);
    assert!(!tpm.approved(&one).expect("asked"));
    assert_eq!(slot(&tpm, &one), StateSlot::Closed { floor: 3 });
    let refused = tpm.write_state_slot(&one, 0, 3, content(8));
    assert!(matches!(refused, Err(Error::NotApproved)), "{refused:?}");
    // And with approvals by its own release key.
    let own = image(&release_key(2), 3, 9);
    assert!(tpm.approved(&own).expect("asked"), "the negative control");
    assert_eq!(slot(&tpm, &own), StateSlot::Foreign);
}

/// With Secure Boot switched off, or under another's keys, a driver that the firmware loads changes
/// the genuine kernel in memory, and no predicted register tells of it.
#[test]
fn the_genuine_image_under_other_secure_boot_settings_does_not_open_the_state() {
    let mut swtpm = Swtpm::new();
    let unlock = image(&release_key(1), 3, 1);
    boot_under(&mut swtpm, 1, 1)
        .write_state_slot(&unlock, 0, 3, content(7))
        .expect("written");
    for settings in [2, 0] {
        let tpm = boot_under(&mut swtpm, 1, settings);
        assert!(
            tpm.approved(&unlock).expect("asked"),
            "the negative control"
        );
        assert_eq!(slot(&tpm, &unlock), StateSlot::Foreign, "{settings}");
    }
    // The index as such: the image's approval does not read it either.
    let policy = state_key_policy(&unlock.approver, 3, Digest([0; 32]));
    assert_ne!(
        policy,
        state_key_policy(&unlock.approver, 3, Digest([1; 32]))
    );
    assert_ne!(policy, Use::State.auth_policy(&unlock.approver, 3));
    let tpm = boot_under(&mut swtpm, 1, 1);
    assert_eq!(slot(&tpm, &unlock), open(3, 7), "the machine's own");
}

/// One release key signs the images of both roles. A worker's image that opened a master's state
/// would expose it to pods.
#[test]
fn an_image_of_the_other_role_does_not_open_the_state() {
    let mut swtpm = Swtpm::new();
    let master = image_of(Role::Master, &release_key(1), 3, 1);
    let worker = image_of(Role::Worker, &release_key(1), 3, 2);
    boot(&mut swtpm, 1)
        .write_state_slot(&master, 0, 3, content(7))
        .expect("written");
    let tpm = boot(&mut swtpm, 2);
    assert!(
        tpm.approved(&worker).expect("asked"),
        "the negative control"
    );
    assert_eq!(slot(&tpm, &worker), StateSlot::OtherRole);
    // Of another release key it is anybody's.
    let strangers = image_of(Role::Worker, &release_key(2), 3, 2);
    assert_eq!(slot(&tpm, &strangers), StateSlot::Foreign);
    // A worker's image that claims to be a master's: its approvals are for workers.
    let lying = Unlock {
        approver: master.approver.clone(),
        ..worker
    };
    assert_eq!(slot(&tpm, &lying), StateSlot::Closed { floor: 3 });
    assert_eq!(slot(&boot(&mut swtpm, 1), &master), open(3, 7));
}

#[test]
fn the_state_opens_once_in_a_boot_and_not_after_a_further_measurement() {
    let mut swtpm = Swtpm::new();
    let unlock = image(&release_key(1), 1, 1);
    let tpm = boot(&mut swtpm, 1);
    tpm.write_state_slot(&unlock, 0, 1, content(7))
        .expect("written");
    drop(tpm);
    for (pcr, event) in [
        (CAP_PCR, Digest::of(CAP_EVENT)),
        (12, Digest([5; 32])),
        (13, Digest([5; 32])),
    ] {
        let tpm = boot(&mut swtpm, 1);
        assert_eq!(slot(&tpm, &unlock), open(1, 7));
        tpm.extend_pcr(pcr, event).expect("extended");
        assert_eq!(
            slot(&tpm, &unlock),
            StateSlot::Closed { floor: 1 },
            "PCR {pcr}"
        );
        assert!(
            matches!(
                tpm.write_state_slot(&unlock, 0, 1, content(8)),
                Err(Error::NotApproved)
            ),
            "PCR {pcr}"
        );
    }
    assert_eq!(slot(&boot(&mut swtpm, 1), &unlock), open(1, 7));
}

#[test]
fn an_image_below_the_floor_opens_nothing() {
    let mut swtpm = Swtpm::new();
    let (old, new) = (image(&release_key(1), 4, 1), image(&release_key(1), 5, 2));
    let tpm = boot(&mut swtpm, 2);
    tpm.write_state_slot(&new, 0, 4, content(7))
        .expect("written");
    tpm.write_state_slot(&new, 1, 5, content(7))
        .expect("raised");
    tpm.delete_state_slot(0).expect("removed");
    drop(tpm);
    let tpm = boot(&mut swtpm, 1);
    assert_eq!(
        tpm.state_slots(&old).expect("looked"),
        [StateSlot::Absent, StateSlot::Closed { floor: 5 }]
    );
    // An approval for another floor is not valid for this one.
    let mut lying = old.clone();
    lying.svn = 5;
    assert!(matches!(
        tpm.write_state_slot(&lying, 1, 5, content(8)),
        Err(Error::NotApproved)
    ));
    drop(tpm);
    let tpm = boot(&mut swtpm, 2);
    assert_eq!(
        tpm.state_slots(&new).expect("looked"),
        [StateSlot::Absent, open(5, 7)]
    );
}

/// Anyone with the disk can write approvals.
#[test]
fn approvals_without_the_release_keys_signature_are_ignored() {
    let mut swtpm = Swtpm::new();
    let genuine = image(&release_key(1), 1, 1);
    let tpm = boot(&mut swtpm, 1);
    tpm.write_state_slot(&genuine, 0, 1, content(7))
        .expect("written");
    drop(tpm);
    let tpm = boot(&mut swtpm, 9);
    let forged = Unlock {
        approvals: image(&release_key(2), 1, 9).approvals,
        ..genuine
    };
    assert!(!tpm.approved(&forged).expect("asked"));
    assert_eq!(slot(&tpm, &forged), StateSlot::Closed { floor: 1 });
}

/// The owner of the hierarchy can delete the index. The owner can neither read it nor write one
/// that is trusted: a machine does not encrypt by a key that the owner chose, nor open a volume
/// that the owner made.
#[test]
fn the_owner_of_the_hierarchy_can_neither_read_nor_plant_a_key() {
    let mut swtpm = Swtpm::new();
    let unlock = image(&release_key(1), 1, 1);
    let tpm = boot(&mut swtpm, 1);
    tpm.write_state_slot(&unlock, 0, 1, content(7))
        .expect("written");
    drop(tpm);
    drop(boot(&mut swtpm, 9));
    let handle = "0x1807072";
    for access in ["-C o", ""] {
        let read = tool(&swtpm, format!("tpm2_nvread {handle} {access}").trim_end());
        assert!(read.is_err(), "the owner reads the state's key: {read:?}");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (chosen, policy) = (dir.path().join("chosen"), dir.path().join("policy"));
    std::fs::write(&chosen, &*content(0x66)).expect("written");
    let index = Index {
        handle: 0x0180_7072,
        policy: state_key_policy(&unlock.approver, 1, Digest::ZERO),
        size: SLOT_SIZE,
    };
    std::fs::write(&policy, index.policy.as_bytes()).expect("written");
    let (chosen, policy) = (chosen.display(), policy.display());

    // An index with our policy that the owner can write, too.
    tool(&swtpm, &format!("tpm2_nvundefine {handle} -C o")).expect("deleted");
    let attributes = "ownerwrite|ownerread|policywrite|policyread|no_da";
    tool(
        &swtpm,
        &format!("tpm2_nvdefine {handle} -C o -s 48 -L {policy} -a {attributes}"),
    )
    .expect("planted");
    tool(&swtpm, &format!("tpm2_nvwrite {handle} -C o -i {chosen}")).expect("written");
    assert_eq!(
        tool(&swtpm, &format!("tpm2_nvread {handle} -C o")).expect("read"),
        *content(0x66),
        "the negative control"
    );
    let tpm = boot(&mut swtpm, 1);
    assert_eq!(slot(&tpm, &unlock), StateSlot::Foreign);
    drop(tpm);

    // An index that equals ours: the owner can't write it.
    tool(&swtpm, &format!("tpm2_nvundefine {handle} -C o")).expect("deleted");
    tool(
        &swtpm,
        &format!("tpm2_nvdefine {handle} -C o -s 48 -L {policy} -a policywrite|policyread|no_da"),
    )
    .expect("made");
    for access in ["-C o ", ""] {
        let written = tool(
            &swtpm,
            &format!("tpm2_nvwrite {handle} {access}-i {chosen}"),
        );
        assert!(written.is_err(), "the owner writes the state's key");
    }
    let tpm = boot(&mut swtpm, 1);
    assert_eq!(slot(&tpm, &unlock), StateSlot::Unwritten { floor: 1 });
    // The machine uses or replaces the owner's index, and then it is the machine's own.
    tpm.write_state_slot(&unlock, 0, 1, content(8))
        .expect("written");
    assert_eq!(slot(&tpm, &unlock), open(1, 8));
    tpm.delete_state_slot(0).expect("removed");
    tpm.delete_state_slot(0)
        .expect("removing what is absent is no error");
}

/// The policy of an index is no secret, so that the owner can make an empty one of any floor. If it
/// passed for a key that newer images open, a worker would keep its state in memory from then on,
/// for an image that opens nothing.
#[test]
fn an_empty_index_of_a_higher_floor_passes_for_no_key() {
    let mut swtpm = Swtpm::new();
    let unlock = image(&release_key(1), 1, 1);
    drop(boot(&mut swtpm, 9));
    let dir = tempfile::tempdir().expect("a folder");
    let policy = dir.path().join("policy");
    let newer = state_key_policy(&unlock.approver, 2, Digest::ZERO);
    std::fs::write(&policy, newer.as_bytes()).expect("written");
    let (policy, attributes) = (policy.display(), "policywrite|policyread|no_da");
    tool(
        &swtpm,
        &format!("tpm2_nvdefine 0x1807072 -C o -s 48 -L {policy} -a {attributes}"),
    )
    .expect("made");
    let tpm = boot(&mut swtpm, 1);
    assert_eq!(slot(&tpm, &unlock), StateSlot::Unwritten { floor: 2 });
    tpm.write_state_slot(&unlock, 0, 1, content(7))
        .expect("made anew");
    assert_eq!(slot(&tpm, &unlock), open(1, 7));
}

#[test]
fn the_states_key_does_not_cross_the_bus_in_the_clear() {
    let mut swtpm = Swtpm::new();
    let unlock = image(&release_key(1), 1, 1);
    drop(boot(&mut swtpm, 1));
    let (tcti, heard) = tapped(&swtpm);
    let tpm = Tpm::open(&tcti).expect("open");
    tpm.write_state_slot(&unlock, 0, 1, content(7))
        .expect("written");
    assert_eq!(slot(&tpm, &unlock), open(1, 7));
    let registers = tpm.read_pcrs(&[4]).expect("read");
    drop(tpm);
    let heard = heard.lock().expect("not poisoned");
    let in_the_clear = |bytes: &[u8]| heard.windows(bytes.len()).any(|window| window == bytes);
    assert!(
        in_the_clear(registers[&4].as_bytes()),
        "the negative control: other data is recorded"
    );
    assert!(
        !content(7).chunks(8).any(in_the_clear),
        "a part of the key went over the bus in the clear"
    );
    let secrets = bus::secrets(&heard);
    for command in ["NV_Write", "NV_Read"] {
        let mut all = secrets.iter().filter(|(name, _)| *name == command);
        assert!(all.clone().count() > 0, "{secrets:?}");
        assert!(
            all.all(|(_, kept)| *kept),
            "a listener can compute the key of the session: {secrets:?}"
        );
    }
}
