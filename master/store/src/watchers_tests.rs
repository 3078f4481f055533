//! Tests of the index of watchers: which watchers a key concerns, and when one is woken.

use super::*;
use proptest::prelude::*;

/// Text of few characters, one of several bytes, so that much of it begins alike.
fn text() -> impl Strategy<Value = String> {
    "[ab/\u{e4}]{0,6}"
}

proptest! {
    #[test]
    fn a_key_concerns_the_watchers_whose_prefix_it_begins_with(
        prefixes in proptest::collection::vec(text(), 0..24),
        gone in proptest::collection::vec(any::<bool>(), 24),
        key in text(),
    ) {
        let watchers: Arc<Watchers> = Arc::default();
        let all: Vec<Watching> = prefixes.iter().map(|prefix| watchers.add(prefix)).collect();
        let all = all.into_iter().zip(&gone).filter(|(_, gone)| !**gone);
        let all: Vec<Watching> = all.map(|(watching, _)| watching).collect();
        let woken = watchers.mark([(&*key, 7)].into_iter());
        for watching in &all {
            let first = key.starts_with(&*watching.prefix).then_some(7);
            prop_assert_eq!(watching.mark().first(), first, "{}", watching.prefix);
        }
        let concerned = all.iter().filter(|watching| watching.mark().first().is_some());
        prop_assert_eq!(woken.0.len(), concerned.count());
        drop(all);
        prop_assert!(watchers.index().is_empty(), "what is not watched is not kept");
    }
}

#[test]
fn a_watcher_is_woken_for_the_first_of_its_changes_and_again_once_it_returned_them() {
    let watchers: Arc<Watchers> = Arc::default();
    let watching = watchers.add("t/a");
    let mark = |revision| watchers.mark([("t/a", revision)].into_iter()).0.len();
    assert_eq!((mark(2), mark(3)), (1, 0));
    assert_eq!(watching.mark().first(), Some(2));
    watching.mark().moved(None);
    assert_eq!(mark(4), 1);
}
