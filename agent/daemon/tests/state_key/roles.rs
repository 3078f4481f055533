//! Images of both roles on one board: neither opens the other's state, nor loses it.

use crate::{Image, MASTER, Machine, WORKER, assert_temporary, opened, refused, renewed};
use agent_volume::Reason;
use tests_support::images::tool;

/// Whatever the disk holds: a worker's image is booted from it, from another one, or from one whose
/// table calls the state new.
#[test]
fn a_workers_image_on_a_masters_board_leaves_its_state_as_it_is() {
    let mut board = Machine::new();
    let key = board.settled(MASTER);
    let disk = board.disk();
    let newer = Image { svn: 9, ..WORKER };
    for image in [WORKER, newer] {
        for found in [&disk[..], &[][..]] {
            board.set_disk(found);
            let before = board.disk();
            assert_temporary(&board.start(image, image.svn), Reason::OtherRole);
            board.boot(image);
            assert_temporary(&board.ask(true).end(image.svn), Reason::OtherRole);
            assert!(board.disk() == before, "the disk was touched");
        }
    }
    board.set_disk(&disk);
    assert_eq!(opened(&board.start(MASTER, 3)), Some(key));

    // The deliberate way to make the board a worker's.
    board.swtpm.power_cycle();
    tool(&board.swtpm, "tpm2_clear -c p").expect("cleared");
    assert_eq!(
        renewed(&board.start(WORKER, 3)),
        Some((Reason::NoKey, 1)),
        "a worker starts anew"
    );
}

#[test]
fn a_masters_image_on_a_workers_board_leaves_its_state_as_it_is() {
    let mut board = Machine::new();
    let key = board.settled(WORKER);
    let disk = board.disk();
    assert_eq!(refused(&board.start(MASTER, 3)), Some(Reason::OtherRole));
    assert!(board.disk() == disk, "the disk was touched");
    assert_eq!(opened(&board.start(WORKER, 3)), Some(key));
}
