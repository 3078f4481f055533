//! Seals on a real software TPM: which boots open the master's secrets, and what the owner of the
//! hierarchy can't do.

use agent_tpm::{Error, SLOT_SIZE, Seal, Sealing, Tpm, Unlock};
use config_tpm::Digest;
use config_unlock::approvals::{CAP_EVENT, CAP_PCR, Role, state_key_policy};
use tests_harness::swtpm::Swtpm;
use tests_support::bus;
use tests_support::images::{boot, image_of, release_key, tapped, tool};
use zeroize::Zeroizing;

type Opened = Result<Zeroizing<Vec<u8>>, Error>;

const SECRET: [u8; 300] = [0x5A; 300];

fn seal(tpm: &Tpm, unlock: &Unlock) -> Vec<u8> {
    let sealed = tpm.seal(
        &Sealing::Approved(unlock.clone()),
        Zeroizing::new(SECRET.to_vec()),
    );
    sealed.expect("sealed")
}

fn open(tpm: &Tpm, unlock: &Unlock, sealed: &[u8]) -> Opened {
    tpm.unseal(&Sealing::Approved(unlock.clone()), Seal::Current, sealed)
}

fn opens(tpm: &Tpm, unlock: &Unlock, sealed: &[u8]) {
    assert_eq!(*open(tpm, unlock, sealed).expect("opened"), SECRET);
}

/// The machine was admitted for this version: the state moves to its floor.
fn raise(tpm: &Tpm, unlock: &Unlock, slot: usize, floor: u64) {
    let content = Zeroizing::new(vec![7; usize::from(SLOT_SIZE)]);
    tpm.write_state_slot(unlock, slot, floor, content)
        .expect("raised");
    tpm.delete_state_slot(1 - slot).expect("removed");
}

fn floor(tpm: &Tpm, unlock: &Unlock) -> Option<u64> {
    tpm.seal_floor(&Sealing::Approved(unlock.clone()))
        .expect("asked")
}

#[test]
fn each_image_of_the_release_key_opens_a_seal_and_a_foreign_system_does_not() {
    let mut swtpm = Swtpm::new();
    let (one, two) = (
        image_of(Role::Master, &release_key(1), 3, 1),
        image_of(Role::Master, &release_key(1), 4, 2),
    );
    let sealed = seal(&boot(&mut swtpm, 1), &one);
    // The next boot, an update, and a boot with Secure Boot switched the other way.
    for (seed, unlock) in [(1, &one), (2, &two), (0xEE, &two)] {
        opens(&boot(&mut swtpm, seed), unlock, &sealed);
    }
    // Another system, with the genuine image's approvals.
    let tpm = boot(&mut swtpm, 9);
    let opened = open(&tpm, &one, &sealed);
    assert!(matches!(opened, Err(Error::BootNotApproved)), "{opened:?}");
    let made = tpm.seal(
        &Sealing::Approved(one.clone()),
        Zeroizing::new(SECRET.to_vec()),
    );
    assert!(matches!(made, Err(Error::BootNotApproved)), "{made:?}");
    // One that claims that seals have no policy.
    let opened = tpm.unseal(&Sealing::AnyBoot, Seal::Current, &sealed);
    assert!(matches!(opened, Err(Error::BoundSeal)), "{opened:?}");
    // One with approvals by its own release key, which the TPM accepts for seals of that key only.
    let own = image_of(Role::Master, &release_key(2), 3, 9);
    opens(&tpm, &own, &seal(&tpm, &own));
    let opened = open(&tpm, &own, &sealed);
    assert!(matches!(opened, Err(Error::OtherReleaseKey)), "{opened:?}");
    // A worker's image of the same release key.
    let worker = image_of(Role::Worker, &release_key(1), 3, 9);
    let opened = open(&tpm, &worker, &sealed);
    assert!(matches!(opened, Err(Error::OtherReleaseKey)), "{opened:?}");
    // And one without our checks: then the TPM itself refuses.
    let lying = Unlock {
        approvals: own.approvals,
        ..one.clone()
    };
    let opened = open(&tpm, &lying, &sealed);
    assert!(matches!(opened, Err(Error::BootNotApproved)), "{opened:?}");
    drop(tpm);
    opens(&boot(&mut swtpm, 1), &one, &sealed);
}

/// The TPM itself refuses: by auth value, and by a session with the policy of another boot.
#[test]
fn the_tpm_opens_no_seal_without_the_policy() {
    let mut swtpm = Swtpm::new();
    let unlock = image_of(Role::Master, &release_key(1), 3, 1);
    let sealed = seal(&boot(&mut swtpm, 1), &unlock);
    // The same object under the head of a seal without a policy, which is opened by its (empty)
    // auth value.
    let stripped = [&[1][..], &sealed[9..]].concat();
    for seed in [1, 9] {
        let tpm = boot(&mut swtpm, seed);
        let opened = tpm.unseal(&Sealing::AnyBoot, Seal::Unbound, &stripped);
        assert!(
            matches!(opened, Err(Error::Command { step: "unseal", .. })),
            "{opened:?}"
        );
    }
    let tpm = boot(&mut swtpm, 1);
    let bare = tpm
        .seal(&Sealing::AnyBoot, Zeroizing::new(SECRET.to_vec()))
        .expect("sealed");
    // The other way round: a seal without a policy under the head of one that has it.
    let opened = open(&tpm, &unlock, &[&sealed[..9], &bare[1..]].concat());
    assert!(matches!(opened, Err(Error::OtherReleaseKey)), "{opened:?}");
    // No bit of the head can be changed.
    for position in 0..9 {
        let mut altered = sealed.clone();
        altered[position] ^= 1;
        assert!(open(&tpm, &unlock, &altered).is_err(), "byte {position}");
    }
    opens(&tpm, &unlock, &sealed);
}

#[test]
fn a_seal_opens_after_the_cap_and_the_configuration_and_not_after_an_argument_from_outside() {
    let mut swtpm = Swtpm::new();
    let unlock = image_of(Role::Master, &release_key(1), 1, 1);
    let tpm = boot(&mut swtpm, 1);
    let sealed = seal(&tpm, &unlock);
    for (pcr, event) in [(CAP_PCR, Digest::of(CAP_EVENT)), (13, Digest([5; 32]))] {
        tpm.extend_pcr(pcr, event).expect("extended");
        opens(&tpm, &unlock, &sealed);
    }
    drop(tpm);
    for pcr in [4, 9, 11, 12] {
        let tpm = boot(&mut swtpm, 1);
        opens(&tpm, &unlock, &sealed);
        tpm.extend_pcr(pcr, Digest([5; 32])).expect("extended");
        let opened = open(&tpm, &unlock, &sealed);
        assert!(
            matches!(opened, Err(Error::BootNotApproved)),
            "PCR {pcr}: {opened:?}"
        );
    }
}

#[test]
fn an_image_below_the_floor_opens_no_seal() {
    let mut swtpm = Swtpm::new();
    let (old, new) = (
        image_of(Role::Master, &release_key(1), 4, 1),
        image_of(Role::Master, &release_key(1), 5, 2),
    );
    let tpm = boot(&mut swtpm, 1);
    assert_eq!(
        floor(&tpm, &old),
        Some(4),
        "without a state the image's own"
    );
    raise(&tpm, &old, 0, 4);
    let before = seal(&tpm, &old);
    drop(tpm);
    // The update, before it is admitted: what it seals the older image still opens.
    let tpm = boot(&mut swtpm, 2);
    assert_eq!(floor(&tpm, &new), Some(4));
    opens(&tpm, &new, &before);
    let between = seal(&tpm, &new);
    drop(tpm);
    opens(&boot(&mut swtpm, 1), &old, &between);
    // After the admission.
    let tpm = boot(&mut swtpm, 2);
    raise(&tpm, &new, 1, 5);
    assert_eq!(floor(&tpm, &new), Some(5));
    opens(&tpm, &new, &before);
    let after = seal(&tpm, &new);
    drop(tpm);
    let tpm = boot(&mut swtpm, 1);
    let refused = |opened: &Opened| matches!(opened, Err(Error::SealFloor { floor: 5, svn: 4 }));
    let opened = open(&tpm, &old, &after);
    assert!(refused(&opened), "{opened:?}");
    let made = tpm.seal(
        &Sealing::Approved(old.clone()),
        Zeroizing::new(SECRET.to_vec()),
    );
    assert!(
        matches!(made, Err(Error::SealFloor { floor: 5, svn: 4 })),
        "{made:?}"
    );
    // Claiming a higher version does not help without an approval of the release key.
    let lying = Unlock {
        svn: 5,
        ..old.clone()
    };
    let opened = open(&tpm, &lying, &after);
    assert!(matches!(opened, Err(Error::BootNotApproved)), "{opened:?}");
    drop(tpm);
    opens(&boot(&mut swtpm, 2), &new, &after);
}

/// The owner of the hierarchy makes an index like ours, but can't write it: the floor stays that of
/// the state.
#[test]
fn an_index_without_content_does_not_change_the_floor() {
    let mut swtpm = Swtpm::new();
    let unlock = image_of(Role::Master, &release_key(1), 4, 1);
    raise(&boot(&mut swtpm, 1), &unlock, 0, 4);
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("policy");
    for planted in [1, 9] {
        let policy = state_key_policy(&unlock.approver, planted, Digest::ZERO);
        std::fs::write(&path, policy.as_bytes()).expect("written");
        let define = format!(
            "tpm2_nvdefine 0x1807073 -C o -s 48 -L {} -a policywrite|policyread|no_da",
            path.display()
        );
        tool(&swtpm, &define).expect("planted");
        assert_eq!(floor(&boot(&mut swtpm, 1), &unlock), Some(4));
        tool(&swtpm, "tpm2_nvundefine 0x1807073 -C o").expect("removed");
    }
}

#[test]
fn seals_without_a_policy_open_only_on_request() {
    let mut swtpm = Swtpm::new();
    let unlock = image_of(Role::Master, &release_key(1), 3, 1);
    let approved = Sealing::Approved(unlock.clone());
    let tpm = boot(&mut swtpm, 1);
    let bare = tpm
        .seal(&Sealing::AnyBoot, Zeroizing::new(SECRET.to_vec()))
        .expect("sealed");
    let opened = tpm.unseal(&approved, Seal::Current, &bare);
    assert!(matches!(opened, Err(Error::UnboundSeal)), "{opened:?}");
    let opened = tpm.unseal(&approved, Seal::Unbound, &bare);
    assert_eq!(*opened.expect("opened"), SECRET);
    let bound = seal(&tpm, &unlock);
    let opened = tpm.unseal(&approved, Seal::Unbound, &bound);
    assert!(matches!(opened, Err(Error::BoundSeal)), "{opened:?}");
}

#[test]
fn no_sealed_key_crosses_the_bus_in_the_clear() {
    let mut swtpm = Swtpm::new();
    let unlock = image_of(Role::Master, &release_key(1), 1, 1);
    drop(boot(&mut swtpm, 1));
    let (tcti, heard) = tapped(&swtpm);
    let tpm = Tpm::open(&tcti).expect("open");
    let mut blobs = Vec::new();
    for sealing in [Sealing::Approved(unlock), Sealing::AnyBoot] {
        let sealed = tpm
            .seal(&sealing, Zeroizing::new(SECRET.to_vec()))
            .expect("sealed");
        let opened = tpm.unseal(&sealing, Seal::Current, &sealed);
        assert_eq!(*opened.expect("opened"), SECRET);
        blobs.push(sealed);
    }
    let registers = tpm.read_pcrs(&[4]).expect("read");
    drop(tpm);
    let heard = heard.lock().expect("not poisoned");
    let control = registers[&4].as_bytes();
    assert!(
        heard.windows(control.len()).any(|window| window == control),
        "the negative control: other data is recorded"
    );
    let secrets = bus::secrets(&heard);
    for command in ["Create", "Unseal"] {
        let mut all = secrets.iter().filter(|(name, _)| *name == command);
        assert_eq!(all.clone().count(), 2, "{secrets:?}");
        assert!(
            all.all(|(_, kept)| *kept),
            "a listener can compute the key of the session: {secrets:?}"
        );
    }
    // Every 32 recorded bytes, tried as the key of a blob.
    for blob in blobs {
        assert!(
            !heard.windows(32).any(|window| opens_by(&blob, window)),
            "the key of a seal went over the bus in the clear"
        );
    }
}

/// Whether a key is that of a blob: nonce, text and tag are its end.
fn opens_by(blob: &[u8], key: &[u8]) -> bool {
    use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
    let text = SECRET.len() + AES_256_GCM.tag_len();
    let (head, text) = blob.split_at(blob.len() - text);
    let (head, nonce) = head.split_at(head.len() - NONCE_LEN);
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("a key"));
    let nonce = Nonce::try_assume_unique_for_key(nonce).expect("a nonce");
    key.open_in_place(nonce, Aad::from(head), &mut text.to_vec())
        .is_ok()
}
