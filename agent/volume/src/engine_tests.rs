//! The engine against a disk and a TPM in memory, with the power cut after each write.

use super::*;
use config_state::generation::Generation;
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

/// A machine's disk and TPM, and how many writes it has power for.
#[derive(Debug, Clone)]
struct State {
    copies: [Vec<u8>; 2],
    slots: [SlotContent; 2],
    writes: usize,
    /// The version of the running image: slots above it are closed.
    svn: u64,
    /// The digest of the configuration, of a worker.
    configuration: Option<[u8; 32]>,
    /// Whether it can be recovered, as a master's.
    recoverable: bool,
}

/// The value of each boot.
const BOOT: BootNonce = [0xB0; 8];

#[derive(Debug, Clone)]
struct Machine(Rc<RefCell<State>>);

#[derive(Debug, thiserror::Error)]
#[error("the power is off")]
struct Off;

impl Machine {
    fn new() -> Self {
        let copies = [vec![0; header::SIZE], vec![0; header::SIZE]];
        let slots = [SlotContent::Absent, SlotContent::Absent];
        Self(Rc::new(RefCell::new(State {
            copies,
            slots,
            writes: usize::MAX,
            svn: 5,
            configuration: Some([1; 32]),
            recoverable: true,
        })))
    }

    /// A machine with a finished state.
    fn made() -> (Self, VolumeKey) {
        let machine = Self::new();
        let OpenOutcome::Closed(closed) = machine.look(true).unwrap() else {
            panic!("a state from nowhere")
        };
        assert_eq!(
            closed,
            ClosedVolume {
                reason: Reason::FirstStart,
                renewals: 0,
                finished: false,
                floor: None,
                other_role: false,
            }
        );
        let volume = machine.make(closed).unwrap().volume;
        machine.finish().unwrap();
        (machine, volume)
    }

    fn copy(&self) -> Self {
        Self(Rc::new(RefCell::new(self.0.borrow().clone())))
    }

    fn spend(&self) -> Result<(), Off> {
        let left = self.0.borrow().writes.checked_sub(1).ok_or(Off)?;
        self.0.borrow_mut().writes = left;
        Ok(())
    }

    fn with_power(&self, writes: usize) -> &Self {
        self.0.borrow_mut().writes = writes;
        self
    }

    fn look(&self, fresh: bool) -> Result<OpenOutcome, VolumeError<Off>> {
        open(&mut self.clone(), &mut self.clone(), self.kind(fresh))
    }

    fn kind(&self, fresh: bool) -> BootFacts {
        BootFacts {
            fresh,
            configuration: self.configuration(),
            recoverable: self.0.borrow().recoverable,
        }
    }

    fn configuration(&self) -> Option<[u8; 32]> {
        self.0.borrow().configuration
    }

    fn finish(&self) -> Result<(), VolumeError<Off>> {
        finish(&mut self.clone(), &mut self.clone(), self.kind(false), BOOT)
    }

    fn make(&self, closed: ClosedVolume) -> Result<NewVolume, VolumeError<Off>> {
        let svn = self.0.borrow().svn;
        let boot = self.kind(false);
        make(&mut self.clone(), &mut self.clone(), svn, closed, boot)
    }

    fn opened(&self) -> OpenVolume {
        match self.look(false).unwrap() {
            OpenOutcome::Opened(open) => *open,
            OpenOutcome::Closed(closed) => panic!("{closed:?}"),
        }
    }

    fn reason(&self) -> Reason {
        match self.look(false).unwrap() {
            OpenOutcome::Closed(closed) => closed.reason,
            OpenOutcome::Opened(open) => panic!("{open:?} opened"),
        }
    }

    /// A boot: returns the volume's key, and moves to the next generation.
    fn boot(&self, floor: u64) -> VolumeKey {
        let open = self.opened();
        let volume = open.volume.clone();
        open.advance(&mut self.clone(), &mut self.clone(), floor, BOOT)
            .unwrap();
        volume
    }

    fn copies(&self) -> [Vec<u8>; 2] {
        self.0.borrow().copies.clone()
    }
}

impl Disk for Machine {
    fn read(&mut self, copy: usize) -> Result<Vec<u8>, std::io::Error> {
        Ok(self.0.borrow().copies[copy].clone())
    }

    fn write(&mut self, copy: usize, bytes: &[u8]) -> Result<(), std::io::Error> {
        self.spend().map_err(std::io::Error::other)?;
        self.0.borrow_mut().copies[copy] = bytes.to_vec();
        Ok(())
    }
}

impl Store for Machine {
    type Error = Off;

    fn slots(&mut self) -> Result<Vec<SlotContent>, Off> {
        let state = self.0.borrow();
        let seen = |slot: &SlotContent| {
            let above = open_key(slot)
                .map(|(floor, _)| floor)
                .filter(|floor| *floor > state.svn);
            above.map_or_else(|| slot.clone(), SlotContent::Closed)
        };
        Ok(state.slots.iter().map(seen).collect())
    }

    fn write(&mut self, slot: usize, floor: u64, kept: &Kept) -> Result<(), Off> {
        self.spend()?;
        self.0.borrow_mut().slots[slot] = SlotContent::Open(floor, kept.clone());
        Ok(())
    }

    fn delete(&mut self, slot: usize) -> Result<(), Off> {
        self.spend()?;
        self.0.borrow_mut().slots[slot] = SlotContent::Absent;
        Ok(())
    }
}

/// init tells copies of the files by it: the TPM has the value of a boot once it has the generation
/// of that boot, and not before.
#[test]
fn the_tpm_records_which_boot_moved_the_state_with_the_generation() {
    let (machine, _volume) = Machine::made();
    for last in [1, 2, 3, usize::MAX] {
        let cut = machine.copy();
        let open = cut.opened();
        let before = open.kept.clone();
        let (mut disk, mut store) = (cut.with_power(last - 1).clone(), cut.clone());
        let moved = open.advance(&mut disk, &mut store, 0, [9; 8]).is_ok();
        let kept = cut.with_power(usize::MAX).opened().kept;
        let expected = if last > 2 {
            (before.generation + 1, [9; 8])
        } else {
            (before.generation, BOOT)
        };
        assert_eq!((kept.generation, kept.boot), expected, "{last}");
        assert_eq!(moved, last > 3);
    }
}

/// Somebody who has the board boots the genuine image with user-data of their own: it neither opens
/// what the machine stored, nor can it leave anything that the machine takes for its own later.
#[test]
fn a_state_is_of_one_configuration() {
    let (machine, volume) = Machine::made();
    assert_eq!(machine.boot(0), volume);
    let (own, before) = (machine.configuration(), machine.copies());
    for other in [Some([2; 32]), None] {
        machine.0.borrow_mut().configuration = other;
        assert_eq!(machine.reason(), Reason::OtherConfiguration, "{other:?}");
    }
    assert_eq!(machine.copies(), before);
    machine.0.borrow_mut().configuration = own;
    assert_eq!(machine.boot(0), volume, "as before");

    machine.0.borrow_mut().configuration = Some([2; 32]);
    machine.0.borrow_mut().copies = [vec![0; header::SIZE], vec![0; header::SIZE]];
    let OpenOutcome::Closed(closed) = machine.look(false).unwrap() else {
        panic!("without a header")
    };
    machine.make(closed).unwrap();
    machine.finish().unwrap();
    machine.boot(0);
    machine.0.borrow_mut().configuration = own;
    assert_eq!(machine.reason(), Reason::OtherConfiguration, "planted");
}

#[test]
fn a_state_opens_in_each_boot_and_an_older_copy_of_the_disk_never() {
    let (machine, volume) = Machine::made();
    let mut past = Vec::new();
    for _ in 0..4 {
        past.push(machine.copies());
        assert_eq!(machine.boot(0), volume);
    }
    let now = machine.copies();
    for copies in past {
        machine.0.borrow_mut().copies = copies;
        assert_eq!(machine.reason(), Reason::OlderCopy);
    }
    machine.0.borrow_mut().copies = now;
    assert_eq!(machine.boot(0), volume, "the negative control");
}

#[test]
fn a_header_of_another_key_is_not_trusted() {
    let (machine, _) = Machine::made();
    let (other, _) = Machine::made();
    let (own, foreign) = (machine.copies(), other.copies());
    machine.0.borrow_mut().copies = foreign;
    assert_eq!(machine.reason(), Reason::OtherKey, "another machine's disk");
    machine.0.borrow_mut().copies = [vec![0; header::SIZE], vec![0x53; header::SIZE]];
    assert_eq!(machine.reason(), Reason::NoHeader, "a plain partition");
    machine.0.borrow_mut().copies = own;
    let slots = machine.0.borrow().slots.clone();
    for (found, reason) in [
        (SlotContent::Absent, Reason::NoKey),
        (SlotContent::Unwritten, Reason::NoKey),
        (SlotContent::Foreign, Reason::ForeignIndex),
        (SlotContent::OtherRole, Reason::OtherRole),
        (SlotContent::Closed(9), Reason::Floor(9)),
    ] {
        machine.0.borrow_mut().slots = [found, SlotContent::Absent];
        assert_eq!(machine.reason(), reason);
    }
    machine.0.borrow_mut().slots = slots;
    machine.opened();
}

#[test]
fn a_removed_partition_differs_from_a_first_start() {
    let (machine, old) = Machine::made();
    machine.0.borrow_mut().copies = Machine::new().copies();
    let OpenOutcome::Closed(closed) = machine.look(true).unwrap() else {
        panic!("a state from nowhere")
    };
    assert_eq!(
        closed,
        ClosedVolume {
            reason: Reason::PartitionGone,
            renewals: 0,
            finished: true,
            floor: None,
            other_role: false,
        }
    );
    let made = machine.make(closed).unwrap();
    assert_eq!(made.renewals, 1);
    assert_ne!(made.volume, old);
    assert_eq!(
        (machine.boot(0), machine.opened().kept.renewals),
        (made.volume, 1)
    );
}

/// What the TPM holds, and not the partition table, says whether a state was finished.
#[test]
fn a_state_is_finished_once_its_making_was_answered() {
    let machine = Machine::new();
    let finished = || match machine.look(true).unwrap() {
        OpenOutcome::Closed(closed) => closed.finished,
        OpenOutcome::Opened(open) => panic!("{open:?} opened"),
    };
    let closed = ClosedVolume {
        reason: Reason::FirstStart,
        renewals: 0,
        finished: false,
        floor: None,
        other_role: false,
    };
    let made = machine.make(closed).unwrap();
    assert!(!finished(), "a power cut before there was a file system");
    machine.finish().unwrap();
    assert!(finished());
    assert_eq!(machine.boot(0), made.volume);
    machine.0.borrow_mut().svn = 3;
    assert!(finished(), "an older image, which sees less");
    for (found, expected) in [
        (SlotContent::Unwritten, false),
        (SlotContent::Foreign, true),
        (SlotContent::OtherRole, true),
        (SlotContent::Closed(9), true),
    ] {
        machine.0.borrow_mut().slots = [SlotContent::Absent, found];
        assert_eq!(finished(), expected);
    }
}

#[test]
fn a_raised_floor_shuts_out_older_images_for_good() {
    let (machine, volume) = Machine::made();
    machine.0.borrow_mut().svn = 7;
    assert_eq!(machine.boot(0), volume, "a newer image, not admitted yet");
    machine.0.borrow_mut().svn = 5;
    assert_eq!(
        machine.boot(0),
        volume,
        "so that the older one may come back"
    );
    machine.0.borrow_mut().svn = 7;
    assert_eq!(machine.boot(7), volume);
    assert_eq!(machine.boot(3), volume, "a floor never sinks");
    machine.0.borrow_mut().svn = 5;
    assert_eq!(machine.reason(), Reason::Floor(7));
    machine.0.borrow_mut().svn = 7;
    assert_eq!(machine.opened().floor, 7);
}

/// The header, the index of the higher floor, and the deletion of the lower one.
const WRITES_OF_A_RISE: usize = 3;

/// After a power cut before the lower index is deleted, both images open the state, in any order.
/// Nothing written before that shuts the older one out, and nothing after it lets it in.
#[test]
fn the_deletion_of_the_lower_index_raises_the_floor() {
    for writes in 0..=WRITES_OF_A_RISE {
        let (machine, volume) = Machine::made();
        machine.0.borrow_mut().svn = 7;
        let open = machine.opened();
        machine.with_power(writes);
        let advanced = open.advance(&mut machine.clone(), &mut machine.clone(), 7, BOOT);
        machine.with_power(usize::MAX);
        machine.0.borrow_mut().svn = 5;
        if writes == WRITES_OF_A_RISE {
            assert_eq!(machine.reason(), Reason::Floor(7));
        } else {
            assert!(advanced.is_err(), "{writes} writes are a whole rise");
            assert_eq!(machine.boot(0), volume, "cut after {writes} writes");
        }
        machine.0.borrow_mut().svn = 7;
        assert_eq!(machine.boot(7), volume, "cut after {writes} writes");
        machine.0.borrow_mut().svn = 5;
        assert_eq!(machine.reason(), Reason::Floor(7));
    }
}

/// After a power cut before the lower index is deleted, the newer image takes the index of the
/// higher floor, even where the older image wrote its own last, and deletes the other.
#[test]
fn a_newer_image_ends_a_rise_that_a_power_cut_left() {
    for older_image_between in [false, true] {
        let (machine, volume) = Machine::made();
        let boot_before_the_deletion = |svn| {
            machine.0.borrow_mut().svn = svn;
            let open = machine.opened();
            machine.with_power(WRITES_OF_A_RISE - 1);
            let cut = open.advance(&mut machine.clone(), &mut machine.clone(), svn, BOOT);
            assert!(cut.is_err(), "{svn}: the power was not cut");
            machine.with_power(usize::MAX);
        };
        boot_before_the_deletion(7);
        if older_image_between {
            boot_before_the_deletion(5);
        }
        machine.0.borrow_mut().svn = 7;
        let order = format!("the older image booted in between: {older_image_between}");
        assert_eq!(machine.opened().floor, 7, "{order}");
        assert_eq!(machine.boot(0), volume);
        machine.0.borrow_mut().svn = 5;
        assert_eq!(machine.reason(), Reason::Floor(7), "{order}");
    }
}

/// Boots while the floor is being raised, the older image's among them, each cut off at any write:
/// init's own text, which it writes first, is believed by the next boot.
#[test]
fn a_cut_rise_leaves_files_that_the_next_boot_takes_for_the_states_own() {
    let images = [7, 5, 7, 7];
    for cuts in 0..usize::pow(WRITES_OF_A_RISE + 1, 4) {
        let (machine, volume) = Machine::made();
        let mut text = Generation {
            number: machine.opened().generation(),
            boot: BOOT,
            ..Generation::default()
        };
        let (mut closed, mut rest) = (false, cuts);
        for (svn, boot) in images.into_iter().zip(1..) {
            let writes = rest % (WRITES_OF_A_RISE + 1);
            rest /= WRITES_OF_A_RISE + 1;
            machine.0.borrow_mut().svn = svn;
            if closed && svn == 5 {
                assert_eq!(machine.reason(), Reason::Floor(7), "{cuts}, boot {boot}");
                continue;
            }
            let open = machine.opened();
            let at = format!(
                "{cuts}, boot {boot}: {text:?} by {open:?} and {:?}",
                open.boots
            );
            let ahead = text.number.checked_sub(open.generation());
            assert!(ahead.is_some_and(|ahead| ahead <= 1), "{at}");
            assert!(open.boots.iter().any(|kept| text.follows(*kept)), "{at}");
            let value = [boot; 8];
            text = Generation {
                number: open.generation() + 1,
                boot: value,
                after: open.boots[0],
                ..text
            };
            machine.with_power(writes);
            let moved = open.advance(&mut machine.clone(), &mut machine.clone(), svn, value);
            machine.with_power(usize::MAX);
            closed |= svn == 7 && moved.is_ok();
        }
        machine.0.borrow_mut().svn = 7;
        assert_eq!(machine.boot(7), volume);
    }
}

/// The disk of a machine in a machine that has other slots.
fn moved(from: &Machine, slots: [SlotContent; 2]) -> Machine {
    let there = from.copy();
    there.0.borrow_mut().slots = slots;
    there
}

fn made_with_recovery() -> (Machine, NewVolume) {
    let machine = Machine::new();
    let closed = ClosedVolume {
        reason: Reason::FirstStart,
        renewals: 0,
        finished: false,
        floor: None,
        other_role: false,
    };
    let made = machine.make(closed).unwrap();
    machine.boot(0);
    (machine, made)
}

/// The recovery by an admin who saw this generation.
fn word(made: &NewVolume, generation: u64) -> Recovery {
    Recovery {
        key: made.recovery.clone().unwrap(),
        generation,
        admin: [5; 32],
        board: [6; 32],
    }
}

impl Machine {
    fn recover(&self, by: &Recovery) -> Result<RecoveredVolume, Reason> {
        match recover(&mut self.clone(), &mut self.clone(), by).unwrap() {
            RecoverOutcome::Recovered(recovered) => Ok(*recovered),
            RecoverOutcome::Refused(reason) => Err(reason),
        }
    }

    fn recovered(&self, by: &Recovery) -> Result<VolumeKey, Reason> {
        let found = self.recover(by)?;
        let volume = found.volume.clone();
        found
            .bind(&mut self.clone(), &mut self.clone(), 5, BOOT)
            .unwrap();
        Ok(volume)
    }
}

#[test]
fn the_recovery_key_binds_a_volume_to_another_tpm_once() {
    let (machine, made) = made_with_recovery();
    let past = machine.copies();
    machine.boot(0);
    let own = machine.opened();
    assert_eq!(own.admin(), None);
    let generation = own.generation();
    for slots in [
        [SlotContent::Absent, SlotContent::Absent],
        [SlotContent::Absent, SlotContent::Foreign],
        [SlotContent::Closed(9), SlotContent::Absent],
        Machine::made().0.0.borrow().slots.clone(),
    ] {
        let there = moved(&machine, slots);
        let other = Recovery {
            key: header::random_key().unwrap(),
            ..word(&made, generation)
        };
        assert_eq!(there.recovered(&other), Err(Reason::OneOffOtherDisk));
        let newer = word(&made, generation + 1);
        assert_eq!(there.recovered(&newer), Err(Reason::OneOffOlderCopy));
        assert_eq!(there.copies(), machine.copies(), "a refusal wrote");
        let good = word(&made, generation);
        assert_eq!(there.recovered(&good), Ok(made.volume.clone()));
        let open = there.opened();
        assert_eq!(
            (open.admin(), open.generation()),
            (Some([5; 32]), generation + 1)
        );
        assert_eq!(there.recovered(&good), Err(Reason::OneOffUsed));
        // On a board that never used the key, the generation of the header refuses it.
        let cleared = moved(&there, [SlotContent::Absent, SlotContent::Absent]);
        assert_eq!(cleared.recovered(&good), Err(Reason::OneOffUsed));
        // The old disk again: the one-off key was for one opening.
        let newest = there.copies();
        there.0.borrow_mut().copies = machine.copies();
        assert_eq!(there.reason(), Reason::OtherKey);
        assert_eq!(there.recovered(&good), Err(Reason::OneOffUsed));
        there.0.borrow_mut().copies = past.clone();
        assert_eq!(there.recovered(&good), Err(Reason::OneOffOlderCopy));
        there.0.borrow_mut().copies = newest;
        assert_eq!(there.boot(0), made.volume, "the negative control");
        assert_eq!(there.opened().admin(), Some([5; 32]));
    }
    machine.opened();
}

/// The volume's key by a recovery key, from either copy.
fn recovered_offline(machine: &Machine, key: &WrappingKey) -> Option<VolumeKey> {
    let headers = machine.copies().into_iter();
    let mut headers = headers.filter_map(|copy| Header::parse(&copy).ok());
    headers.find_map(|header| header.recover(key))
}

/// Somebody was root on a worker for a moment and read the recovery key that was kept there.
#[test]
fn a_workers_state_has_no_key_besides_the_tpms() {
    let machine = Machine::new();
    machine.0.borrow_mut().recoverable = false;
    let OpenOutcome::Closed(closed) = machine.look(true).unwrap() else {
        panic!("a state from nowhere")
    };
    let made = machine.make(closed).unwrap();
    assert_eq!(made.recovery, None);
    machine.finish().unwrap();
    for copy in machine.copies() {
        // The byte that says whether there is a recovery slot.
        assert_eq!(copy[32], 0);
    }
    assert_eq!(machine.boot(0), made.volume);

    // As earlier versions made each state.
    let (machine, made) = made_with_recovery();
    let key = made.recovery.unwrap();
    machine.boot(0);
    assert_eq!(recovered_offline(&machine, &key), Some(made.volume.clone()));
    machine.0.borrow_mut().recoverable = false;
    assert_eq!(machine.boot(0), made.volume);
    assert_eq!(recovered_offline(&machine, &key), None);
    assert_eq!(machine.boot(0), made.volume);
}

#[test]
fn each_move_of_a_volume_needs_a_new_recovery() {
    let (machine, made) = made_with_recovery();
    let there = moved(&machine, [SlotContent::Absent, SlotContent::Absent]);
    let generation = there
        .copies()
        .into_iter()
        .filter_map(|copy| Header::parse(&copy).ok());
    let generation = generation.map(|header| header.generation).max().unwrap();
    there.recovered(&word(&made, generation)).unwrap();
    there.boot(0);
    let back = moved(&there, machine.0.borrow().slots.clone());
    assert_eq!(
        back.reason(),
        Reason::OtherKey,
        "the old board's key is worth nothing now"
    );
    let next = there.opened().generation();
    assert_eq!(back.recovered(&word(&made, next)), Ok(made.volume.clone()));
    assert_eq!(back.boot(0), made.volume);
}

proptest! {
    /// After a power cut at any write the volume opens with the same key, in boots with and without
    /// a raised floor.
    #[test]
    fn a_power_cut_at_any_write_of_a_boot_loses_nothing(
        boots in prop::collection::vec((0_usize..6, 0_u64..10), 1..12),
        recoverable in any::<bool>(),
    ) {
        let (machine, volume) = Machine::made();
        machine.0.borrow_mut().svn = 9;
        machine.0.borrow_mut().recoverable = recoverable;
        for (writes, floor) in boots {
            let open = machine.opened();
            prop_assert_eq!(&open.volume, &volume);
            let cut = machine.with_power(writes);
            // It fails if the power was cut.
            open.advance(&mut cut.clone(), &mut cut.clone(), floor, BOOT).ok();
            machine.with_power(usize::MAX);
        }
        prop_assert_eq!(machine.boot(0), volume);
    }

    /// Power cuts in boots of a newer and of an older image, in any order: the newer one opens the
    /// volume in every boot. The older one opens it as well or is refused by the newer one's floor,
    /// so that it makes no new state; once the floor is raised it never opens the volume.
    #[test]
    fn power_cuts_while_the_floor_rises_lock_out_no_newer_image_and_let_in_no_older_one(
        boots in prop::collection::vec((any::<bool>(), 0_usize..6), 1..16),
    ) {
        let (machine, volume) = Machine::made();
        let mut raised = false;
        for (newer, writes) in boots {
            let svn = if newer { 9 } else { 5 };
            machine.0.borrow_mut().svn = svn;
            match machine.look(false).unwrap() {
                OpenOutcome::Opened(open) => {
                    prop_assert!(newer || !raised, "below the floor");
                    prop_assert_eq!(&open.volume, &volume);
                    machine.with_power(writes);
                    // It fails if the power was cut.
                    open.advance(&mut machine.clone(), &mut machine.clone(), svn, BOOT).ok();
                    machine.with_power(usize::MAX);
                    raised |= newer && writes >= WRITES_OF_A_RISE;
                }
                OpenOutcome::Closed(closed) => {
                    prop_assert!(!newer, "{:?}", closed);
                    prop_assert_eq!(closed.floor, Some(9));
                }
            }
        }
    }

    /// A renewal with a power cut is either not begun, or done, or made again; nothing else is ever
    /// trusted.
    #[test]
    fn a_power_cut_in_a_renewal_leaves_it_done_or_to_be_made_again(writes in 0_usize..6) {
        let (machine, old) = Machine::made();
        let before = machine.copy();
        let closed = ClosedVolume { reason: Reason::Damaged, renewals: 0, finished: true, floor: None, other_role: false };
        let made = machine.with_power(writes).make(closed);
        machine.with_power(usize::MAX);
        match machine.look(false).unwrap() {
            OpenOutcome::Opened(open) if open.volume == old => prop_assert_eq!(machine.copies()[1].clone(), before.copies()[1].clone()),
            OpenOutcome::Opened(open) => if let Ok(made) = made { prop_assert_eq!(&open.volume, &made.volume); },
            OpenOutcome::Closed(closed) => prop_assert!(made.is_err() && closed.reason == Reason::OtherKey, "{:?}", closed),
        }
    }

    /// After a power cut at any write the volume opens, or the same recovery opens it.
    #[test]
    fn a_power_cut_in_a_recovery_leaves_it_done_or_repeatable(writes in 0_usize..8, had in any::<bool>()) {
        let (machine, made) = made_with_recovery();
        let generation = machine.opened().generation();
        let slots = if had { Machine::made().0.0.borrow().slots.clone() } else { [SlotContent::Absent, SlotContent::Absent] };
        let there = moved(&machine, slots);
        let good = word(&made, generation);
        let found = there.recover(&good).unwrap();
        let done = found.bind(&mut there.with_power(writes).clone(), &mut there.clone(), 5, BOOT).is_ok();
        there.with_power(usize::MAX);
        match there.look(false).unwrap() {
            OpenOutcome::Opened(open) => prop_assert_eq!(&open.volume, &made.volume),
            OpenOutcome::Closed(_) => {
                prop_assert!(!done);
                prop_assert_eq!(there.recovered(&good), Ok(made.volume.clone()));
            }
        }
        prop_assert_eq!(there.boot(0), made.volume);
    }
}
