//! A master's state on another board, by the admin's one-off key.

use crate::{MASTER, Machine, WORKER, opened, refused, renewed};
use agent_tpm::Tpm;
use agent_volume::header::{COPIES, MAX_ONE_OFF, ONE_OFF, SIZE};
use agent_volume::{Reason, Report};
use config_tpm::pcr::extended;
use config_tpm::{Digest, Public};
use config_unlock::approvals::{Approver, Role};
use config_unlock::one_off::{self, Terms};
use p256::ecdsa::SigningKey;
use p256::pkcs8::EncodePublicKey as _;
use rand_core::OsRng;

/// Stands for the master's keys.
const KEYS: &[u8] = b"-----BEGIN PRIVATE KEY-----";

fn admin() -> SigningKey {
    SigningKey::from_slice(&[0x77; 32]).expect("a key")
}

/// The fields of an admin's one-off key besides the board.
#[derive(Clone, Copy)]
struct Word<'a> {
    recovery: &'a [u8],
    generation: u64,
    floor: u64,
    release_key: u8,
    /// A number in place of the Secure Boot settings; `None`: any.
    settings: Option<u8>,
}

impl Machine {
    /// A master's first start and a second one: the volume's key, and the recovery key.
    fn founded(&mut self) -> (Vec<u8>, Vec<u8>) {
        self.boot(MASTER);
        let report = self.ask(true).end(0);
        self.cap();
        let (key, recovery) = if let Report::Made { key, recovery, .. } = report {
            (key.to_vec(), recovery.expect("a master's").to_vec())
        } else {
            (Vec::new(), Vec::new())
        };
        assert_eq!(opened(&self.start(MASTER, 3)), Some(key.clone()));
        (key, recovery)
    }

    /// A one-off key for this board.
    fn one_off(&self, word: Word<'_>) -> Vec<u8> {
        let tpm = Tpm::open(&self.swtpm.tcti()).expect("open");
        let ek = tpm.endorsement_keys().expect("keys").remove(0);
        let key = SigningKey::from_slice(&[word.release_key; 32]).expect("a key");
        let settings = |number: u8| extended(&Digest::ZERO, &Digest([number; 32]));
        let terms = Terms {
            generation: word.generation,
            approver: &Approver::new(*key.verifying_key(), Role::Master),
            floor: word.floor,
            ek: &Public::parse(&ek.public).expect("an EK"),
            secure_boot: word.settings.map(settings),
        };
        let content = [word.recovery, KEYS].concat();
        one_off::make(terms, &content, &admin(), &mut OsRng).expect("made")
    }

    /// Puts a disk into the machine, with a one-off key in front of its state.
    fn give(&self, disk: &[u8], one_off: &[u8]) {
        let mut disk = disk.to_vec();
        let at = usize::try_from(ONE_OFF).expect("small");
        disk[at..at + MAX_ONE_OFF].fill(0);
        disk[at..at + one_off.len()].copy_from_slice(one_off);
        std::fs::write(self.partition(), disk).expect("written");
    }
}

/// The volume's key of a state that came from another board.
fn recovered(report: &Report) -> Option<Vec<u8>> {
    let spki = admin().verifying_key().to_public_key_der().expect("DER");
    if let Report::Recovered {
        key, admin, keys, ..
    } = report
    {
        assert_eq!((*admin, &keys[..]), (Digest::of(spki.as_bytes()).0, KEYS));
        Some(key.to_vec())
    } else {
        None
    }
}

/// The generation of the newest header.
fn generation(disk: &[u8]) -> u64 {
    let of = |copy: u64| {
        let at = usize::try_from(copy).expect("small");
        agent_volume::header::Header::parse(&disk[at..at + SIZE]).expect("a header")
    };
    COPIES
        .map(|copy| of(copy).generation)
        .into_iter()
        .max()
        .expect("two")
}

#[test]
fn another_board_opens_a_masters_state_once_by_the_one_off_key() {
    let (mut old, mut board, mut second) = (Machine::new(), Machine::new(), Machine::new());
    let (key, recovery) = old.founded();
    let disk = old.disk();
    board.set_disk(&disk);
    assert_eq!(refused(&board.start(MASTER, 3)), Some(Reason::NoKey));
    let word = Word {
        recovery: &recovery,
        generation: generation(&disk),
        floor: 3,
        release_key: 1,
        settings: None,
    };
    let one_off = board.one_off(word);

    second.give(&disk, &one_off);
    assert_eq!(
        refused(&second.start(MASTER, 3)),
        Some(Reason::OneOffOtherBoard),
        "a second board with the same file"
    );

    // init could not mount it, or the power was cut: nothing was written, and it opens again.
    board.give(&disk, &one_off);
    let given = board.disk();
    board.boot(MASTER);
    let asked = board.ask(false);
    assert_eq!(recovered(&asked.report), Some(key.clone()));
    asked.cut();
    assert_eq!(board.disk(), given);
    assert_eq!(recovered(&board.start(MASTER, 0)), Some(key.clone()));

    let after = board.disk();
    let at = usize::try_from(ONE_OFF).expect("small");
    assert!(after[at..at + MAX_ONE_OFF].iter().all(|byte| *byte == 0));
    let spki = admin().verifying_key().to_public_key_der().expect("DER");
    for _ in 0..2 {
        let report = board.start(MASTER, 3);
        assert_eq!(opened(&report), Some(key.clone()));
        let Report::Opened { admin, .. } = report else {
            return;
        };
        assert_eq!(admin, Some(Digest::of(spki.as_bytes()).0));
    }
    // The old disk again, with the same one-off key.
    board.give(&disk, &one_off);
    assert_eq!(refused(&board.start(MASTER, 3)), Some(Reason::OneOffUsed));
    old.set_disk(&after);
    assert_eq!(
        refused(&old.start(MASTER, 3)),
        Some(Reason::OtherKey),
        "the old board no longer opens it"
    );
}

#[test]
fn a_one_off_key_for_anything_else_is_refused_with_its_reason() {
    let (mut old, mut other, mut board) = (Machine::new(), Machine::new(), Machine::new());
    let (key, recovery) = old.founded();
    let past = old.disk();
    assert_eq!(opened(&old.start(MASTER, 3)), Some(key.clone()));
    assert_eq!(opened(&old.start(MASTER, 3)), Some(key.clone()));
    let disk = old.disk();
    other.founded();
    let word = Word {
        recovery: &recovery,
        generation: generation(&disk),
        floor: 3,
        release_key: 1,
        settings: None,
    };
    board.boot(MASTER);
    let good = board.one_off(word);
    let mut flipped = good.clone();
    flipped[200] ^= 1;
    let of = |word: Word<'_>| board.one_off(word);
    let foreign = of(Word {
        release_key: 2,
        ..word
    });
    let above = of(Word { floor: 4, ..word });
    let stale = of(Word {
        generation: word.generation - 1,
        ..word
    });
    for (disk, one_off, reason) in [
        (&disk, &flipped, Reason::OneOffDamaged),
        (&disk, &foreign, Reason::OneOffOtherImage),
        (&disk, &above, Reason::OneOffOtherImage),
        (&other.disk(), &good, Reason::OneOffOtherDisk),
        (&past, &good, Reason::OneOffOlderCopy),
        (&disk, &stale, Reason::OneOffUsed),
    ] {
        board.give(disk, one_off);
        let before = board.disk();
        assert_eq!(refused(&board.start(MASTER, 3)), Some(reason));
        assert_eq!(board.disk(), before, "{reason}: something was written");
    }
    // A foreign system on the board, and a worker's image.
    board.give(&disk, &good);
    board.boot(MASTER);
    let tpm = Tpm::open(&board.swtpm.tcti()).expect("open");
    tpm.extend_pcr(4, Digest([9; 32])).expect("another program");
    drop(tpm);
    assert_eq!(refused(&board.ask(false).end(3)), Some(Reason::NotApproved));
    assert_eq!(
        recovered(&board.start(MASTER, 3)),
        Some(key),
        "the negative control"
    );
    let mut worker = Machine::new();
    worker.give(&disk, &good);
    assert_eq!(
        renewed(&worker.start(WORKER, 3)),
        Some((Reason::NoKey, 1)),
        "a worker's state is disposable"
    );
}

/// Somebody who has the new board and the disk switches Secure Boot off before the first start, and
/// loads a driver that changes the genuine kernel.
#[test]
fn a_one_off_key_opens_nothing_under_other_secure_boot_settings_than_the_admins() {
    let (mut old, mut board) = (Machine::new(), Machine::new());
    let (key, recovery) = old.founded();
    let disk = old.disk();
    board.boot(MASTER);
    let word = Word {
        recovery: &recovery,
        generation: generation(&disk),
        floor: 3,
        release_key: 1,
        settings: Some(1),
    };
    board.give(&disk, &board.one_off(word));
    board.settings = 2;
    assert_eq!(
        refused(&board.start(MASTER, 3)),
        Some(Reason::OneOffOtherImage)
    );
    board.settings = 1;
    assert_eq!(
        recovered(&board.start(MASTER, 0)),
        Some(key),
        "the negative control"
    );
}

#[test]
fn under_other_secure_boot_settings_a_master_waits_for_its_admin_and_a_worker_starts_anew() {
    let mut master = Machine::new();
    let (key, recovery) = master.founded();
    let disk = master.disk();
    master.settings = 2;
    assert_eq!(
        refused(&master.start(MASTER, 3)),
        Some(Reason::ForeignIndex)
    );
    assert_eq!(master.disk(), disk, "something was written");
    master.settings = 1;
    assert_eq!(
        opened(&master.start(MASTER, 3)),
        Some(key.clone()),
        "set back"
    );

    // They stay changed: the admin's one-off key, for the same board.
    let disk = master.disk();
    let word = Word {
        recovery: &recovery,
        generation: generation(&disk),
        floor: 3,
        release_key: 1,
        settings: None,
    };
    let one_off = master.one_off(word);
    master.settings = 2;
    master.give(&disk, &one_off);
    assert_eq!(recovered(&master.start(MASTER, 0)), Some(key.clone()));
    assert_eq!(opened(&master.start(MASTER, 3)), Some(key));

    let mut worker = Machine::new();
    worker.settled(WORKER);
    worker.settings = 2;
    assert_eq!(
        renewed(&worker.start(WORKER, 3)),
        Some((Reason::ForeignIndex, 1))
    );
    worker.settings = 1;
    assert_eq!(
        renewed(&worker.start(WORKER, 3)),
        Some((Reason::ForeignIndex, 1)),
        "the record of what was made anew lies under the other settings"
    );
}
