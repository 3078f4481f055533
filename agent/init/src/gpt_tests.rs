//! Properties of the table: it survives growth, cuts and noise.

use std::io;

use proptest::prelude::*;

use super::{Geometry, GptError, NewPartition, Partition, Table, crc32};
use crate::guid::Guid;

const SECTORS: u64 = 16 * 2048; // 16 MiB of 512 bytes
const KIND: Guid = Guid([7; 16]);

fn geometry(sectors: u64) -> Geometry {
    Geometry {
        sector: 512,
        sectors,
    }
}

/// A disk as the image build leaves it: two partitions, and `extra` sectors that appeared behind
/// its end.
fn disk(extra: u64) -> Vec<u8> {
    let mut entries = vec![[0; 128]; 128];
    for (at, (first, last)) in [(2048, 4095), (4096, 8191)].into_iter().enumerate() {
        let number = u32::try_from(at + 1).expect("small");
        entries[at] = super::entry(&Partition {
            number,
            kind: KIND,
            id: Guid([9; 16]),
            first,
            last,
            name: "x".to_owned(),
        });
    }
    let table = Table {
        geometry: geometry(SECTORS),
        disk: Guid([3; 16]),
        first_usable: 34,
        entries,
        from_copy: false,
    };
    let mut disk = vec![0; bytes(SECTORS + extra)];
    table
        .writes()
        .expect("it fits")
        .iter()
        .for_each(|write| apply(&mut disk, write));
    disk
}

fn bytes(sectors: u64) -> usize {
    usize::try_from(sectors * 512).expect("small")
}

fn apply(disk: &mut [u8], write: &super::Write) {
    let at = usize::try_from(write.offset).expect("small");
    disk[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
}

fn read(disk: &[u8]) -> Result<Table, GptError> {
    let sectors = u64::try_from(disk.len() / 512).expect("small");
    Table::read(geometry(sectors), |offset, length| {
        let at = usize::try_from(offset).map_err(io::Error::other)?;
        disk.get(at..at + length)
            .map(<[u8]>::to_vec)
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    })
}

fn state() -> NewPartition<'static> {
    NewPartition {
        kind: KIND,
        id: Guid([5; 16]),
        name: "pratique-state-new",
        least_bytes: 4 << 20,
    }
}

#[test]
fn the_checksum_is_the_one_of_the_standard() {
    assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
}

#[test]
fn the_state_partition_reaches_the_real_end_of_the_disk() {
    let mut disk = disk(32768);
    let (table, added) = read(&disk)
        .expect("valid")
        .with(&state())
        .expect("there is room");
    table
        .writes()
        .expect("fits")
        .iter()
        .for_each(|write| apply(&mut disk, write));
    let again = read(&disk).expect("valid");
    assert_eq!(again, table);
    assert_eq!(again.partitions().last(), Some(added.clone()));
    assert_eq!(
        (added.number, added.first, added.last),
        (3, 8192, SECTORS + 32768 - 2048 - 1)
    );
    let named = again.renamed(3, "pratique-state");
    assert_eq!(
        named.partitions().last().map(|part| part.name),
        Some("pratique-state".to_owned())
    );
}

#[test]
fn a_disk_without_room_says_how_much_is_missing() {
    let full = NewPartition {
        least_bytes: 1 << 30,
        ..state()
    };
    let error = read(&disk(0))
        .expect("valid")
        .with(&full)
        .expect_err("16 MiB have no room for 1 GiB");
    assert!(
        matches!(
            error,
            GptError::NoRoom {
                have: 11_534_336,
                need: 1_073_741_824
            }
        ),
        "{error:?}"
    );
}

#[test]
fn a_damaged_primary_is_replaced_by_the_copy_at_the_end() {
    let mut disk = disk(0);
    let whole = read(&disk).expect("valid");
    disk[512 + 40] ^= 1;
    let copy = read(&disk).expect("the copy is whole");
    assert_eq!(copy.entries, whole.entries);
    let end = disk.len() - 512;
    disk[end + 40] ^= 1;
    assert!(matches!(
        read(&disk),
        Err(GptError::Damaged("header checksum"))
    ));
}

#[test]
fn overlapping_partitions_are_refused() {
    let mut table = read(&disk(0)).expect("valid");
    let twin = table.entries[0];
    table.entries[5] = twin;
    let mut disk = disk(0);
    table
        .writes()
        .expect("fits")
        .iter()
        .for_each(|write| apply(&mut disk, write));
    assert!(matches!(
        read(&disk),
        Err(GptError::Damaged("partition range"))
    ));
}

proptest! {
    /// Whenever the power goes, a valid table is found: the old one or the new one.
    #[test]
    fn a_cut_while_writing_leaves_a_valid_table(whole_writes in 0_usize..4, sectors in 0_usize..40, extra in 8_u64..4000, damaged in any::<bool>()) {
        // A disk that has grown has no copy at its end.
        let mut disk = disk(if damaged { 0 } else { extra * 16 });
        if damaged {
            disk[512 + 40] ^= 1;
        }
        let old = read(&disk).expect("valid");
        let (new, _) = old.with(&state()).expect("there is room");
        for (at, write) in new.writes().expect("fits").iter().enumerate() {
            let cut = if at < whole_writes { write.bytes.len() } else { write.bytes.len().min(sectors * 512) };
            apply(&mut disk, &super::Write { offset: write.offset, bytes: write.bytes[..cut].to_vec() });
            if at >= whole_writes { break; }
        }
        let found = read(&disk).expect("one copy is valid");
        prop_assert!(found.entries == old.entries || found.entries == new.entries);
    }

    /// Any noise in the table is either harmless or refused; it never panics.
    #[test]
    fn noise_never_panics(hits in prop::collection::vec((0_usize..20_000, any::<u8>()), 1..40)) {
        let mut disk = disk(0);
        for (at, byte) in hits {
            disk[at] = byte;
        }
        if let Ok(table) = read(&disk) {
            prop_assert!(table.partitions().count() <= 256);
        }
    }

    /// A header with valid checksums and hostile fields neither panics nor passes with partitions
    /// outside of the disk.
    #[test]
    fn hostile_fields_with_good_checksums_stay_bounded(first in any::<u64>(), last in any::<u64>(), at in any::<u64>(), usable in any::<u64>(), count in any::<u32>()) {
        let mut table = read(&disk(0)).expect("valid");
        table.entries[3][..16].fill(1);
        table.entries[3][32..40].copy_from_slice(&first.to_le_bytes());
        table.entries[3][40..48].copy_from_slice(&last.to_le_bytes());
        table.first_usable = usable;
        let mut header = table.header(1, SECTORS - 1, at).expect("fits");
        header[80..84].copy_from_slice(&count.to_le_bytes());
        header[16..20].fill(0);
        let sum = crc32(&header[..92]).to_le_bytes();
        header[16..20].copy_from_slice(&sum);
        let mut disk = vec![0; bytes(SECTORS)];
        disk[512..1024].copy_from_slice(&header);
        let entries = table.entries.concat();
        disk[1024..1024 + entries.len()].copy_from_slice(&entries);
        if let Ok(table) = read(&disk) {
            prop_assert!(table.partitions().all(|part| part.first <= part.last && part.last < SECTORS));
        }
    }
}
