//! Tests of the history of tables: values are packed while a store is read.

use super::*;

const LIMITS: HistoryLimits = HistoryLimits {
    events: 300,
    bytes: 1 << 20,
    unpacked: 64 << 10,
};
const KEYS: usize = 700;

/// A value of a kilobyte, most of which is that of all others.
fn value(number: usize) -> Bytes {
    let fields = (0..100_usize).map(|field| (field * field * 7919).to_string());
    let fields: Vec<String> = fields.collect();
    format!("{number} {}", fields.join(",")).into()
}

/// Bytes that a table holds as they were written.
fn plain(published: &Published) -> usize {
    let table = published.tables.get("pods").unwrap();
    let entries = table.entries.values();
    let own = entries.filter_map(|entry| entry.value.plain());
    own.map(Bytes::len).sum()
}

#[test]
fn values_are_packed_while_they_are_read_and_read_as_they_were_written() {
    let mut published = Published::unpacked(1, LIMITS);
    let (mut most, mut whole) = (0, 0);
    for number in 0..2_000 {
        let key = format!("pods/{}", number % KEYS);
        published.replay(number as Revision + 2, &key, Some(value(number)));
        whole = published.tables["pods"].entries.len() * value(number).len();
        most = plain(&published).max(most);
    }
    let recent = (RECENT + 1) * value(0).len();
    assert!(most <= LIMITS.unpacked + 2 * recent, "{most} of {whole}");
    published.pack();
    assert!(plain(&published) <= 2 * recent, "{}", plain(&published));
    for number in 2_000 - KEYS..2_000 {
        let entry = published.get(&format!("pods/{}", number % KEYS)).unwrap();
        assert_eq!(entry.value, value(number));
        assert_eq!(entry.modified, number as Revision + 2);
    }
    let room = Room {
        events: 1_000,
        bytes: usize::MAX,
    };
    let (events, head) = published.events_after(Some("pods/"), 1_950, room).unwrap();
    assert_eq!((events.len(), head), (51, 2_001));
    for event in events {
        let number = usize::try_from(event.revision).unwrap() - 2;
        assert_eq!(event.value().unwrap(), value(number));
        assert_eq!(event.before.as_ref().unwrap().value, value(number - KEYS));
    }
}

#[test]
fn a_watch_takes_no_more_bytes_at_once_than_it_has_room_for() {
    let mut published = Published::new(1, LIMITS);
    let large = Bytes::from(vec![b'x'; 10_000]);
    for revision in 2..12 {
        published.replay(revision, "pods/a", Some(large.clone()));
    }
    let room = |bytes| Room { events: 100, bytes };
    for prefix in [Some("pods/"), None] {
        let taken = |bytes| published.events_after(prefix, 1, room(bytes)).unwrap();
        // All but the first supersede a value, which counts, too.
        for (bytes, last) in [(1, 2), (10_000, 2), (10_001, 3), (45_000, 4), (50_001, 5)] {
            let (events, through) = taken(bytes);
            let shown = events.last().map(|event| event.revision);
            assert_eq!((shown, through), (Some(last), last), "{bytes}");
        }
        let (events, through) = taken(usize::MAX);
        assert_eq!((events.len(), through), (10, 11));
    }
}
