use super::*;
use crate::index::Index;
use crate::zone::{Kind, Outcome, look_up};
use agent_proxy::Node;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use tokio::time::{Instant, sleep};

const WEB: &str = "web.shop.svc.cluster.local";

fn origin() -> Origin {
    Origin {
        boot: "8a4b".to_owned(),
        node: "n1".to_owned(),
    }
}

fn own() -> Vec<OwnAddress> {
    vec![OwnAddress {
        address: "10.1.0.1".parse().unwrap(),
        range: "10.1.0.0/24".parse().unwrap(),
    }]
}

/// The names of an agent whose snapshot is in this folder.
fn names(folder: &Path) -> Names {
    Names::new(Options {
        view: View::default(),
        snapshot: folder.join("names"),
        origin: origin(),
        machine: Vec::new(),
        resolv_conf: "/dev/null".into(),
        stub_domains: Vec::new(),
    })
}

fn asked(names: &Names) -> Outcome {
    look_up(&Index::of(names.answered.now()), WEB, Kind::A)
}

fn is_found(names: &Names) -> bool {
    matches!(asked(names), Outcome::Found(_))
}

/// What an agent leaves that knows these names.
fn left(folder: &Path) {
    let known = Arc::new(crate::zone::tests::known());
    let snapshot = Snapshot { own: own(), known };
    snapshot.save(&folder.join("names"), &origin()).unwrap();
}

/// Lets the names do what they have to do at once.
async fn turn() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn names_are_as_an_earlier_agent_left_them_until_the_master_has_sent_all() {
    let folder = tempfile::tempdir().unwrap();
    left(folder.path());
    let names = names(folder.path());
    assert_eq!(*names.own.borrow(), own());
    assert!(is_found(&names));
    let lists = async {
        let view = names.view();
        view.change(|_| true, |known| known.services = Some(BTreeMap::new()));
        turn().await;
        assert!(is_found(&names), "slices and namespaces are not known");
        view.change(|_| true, |known| known.slices = Some(BTreeMap::new()));
        turn().await;
        assert!(is_found(&names), "namespaces are not known");
        view.change(
            |_| true,
            |known| known.namespaces = Some(["shop".into()].into()),
        );
        turn().await;
        assert!(!is_found(&names), "the service has gone meanwhile");
        view.change(|_| true, |known| *known = crate::zone::tests::known());
        turn().await;
        assert!(is_found(&names), "and is back");
    };
    tokio::select! {
        never = names.take_over() => match never {},
        () = lists => {}
    }
}

#[tokio::test]
async fn the_first_agent_of_a_boot_answers_as_soon_as_services_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let names = names(folder.path());
    assert_eq!(asked(&names), Outcome::Unknown);
    let lists = async {
        let mut known = crate::zone::tests::known();
        known.namespaces = None;
        names.view().change(|_| true, |now| *now = known);
        turn().await;
        assert!(is_found(&names));
    };
    tokio::select! {
        never = names.take_over() => match never {},
        () = lists => {}
    }
}

#[test]
fn what_no_agent_of_this_boot_left_is_not_answered() {
    let folder = tempfile::tempdir().unwrap();
    left(folder.path());
    let path = folder.path().join("names");
    let text = std::fs::read_to_string(&path).unwrap();
    for other in [
        text.replace("8a4b", "8a4c"),
        text.replace("10.96.0.10", "10.96.0.1x"),
        text.trim_end().to_owned(),
        String::new(),
    ] {
        std::fs::write(&path, other).unwrap();
        let names = names(folder.path());
        assert_eq!(asked(&names), Outcome::Unknown);
        assert!(names.own.borrow().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn names_are_left_soon_after_each_change_of_them_and_not_more_often() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names");
    let names = names(folder.path());
    let begun = Instant::now();
    let file = || std::fs::metadata(&path).ok().map(|meta| meta.ino());
    let another = async |before: Option<u64>| {
        while file() == before || file().is_none() {
            sleep(Duration::from_millis(100)).await;
        }
        file()
    };
    let changes = async {
        let view = names.view();
        let known = crate::zone::tests::known();
        view.change(|_| true, |now| *now = known.clone());
        sleep(2 * PAUSE).await;
        assert_eq!(file(), None, "where it answers is not known");
        names.serve_at(&own());
        let first = another(None).await;
        assert!(begun.elapsed() < 3 * PAUSE);
        let then = Instant::now();
        let rename = |name: &str| {
            let only = [name.to_owned()].into();
            view.change(|_| true, |now| now.namespaces = Some(only));
        };
        rename("a");
        let second = another(first).await;
        // The first look of the next agent is late by a step of this one's.
        assert!(then.elapsed() + Duration::from_millis(200) >= PAUSE);
        assert!(then.elapsed() < 2 * PAUSE);
        let spaces = |left: &Snapshot| left.known.namespaces.clone().unwrap_or_default();
        let read = || Snapshot::load(&path, &origin()).unwrap().unwrap();
        assert_eq!(spaces(&read()), ["a".to_owned()].into());
        // Of many changes the last one.
        for name in ["b", "c", "d"] {
            rename(name);
        }
        let third = another(second).await;
        assert_eq!(spaces(&read()), ["d".to_owned()].into());
        let node = Arc::new(Node::default());
        view.change(
            |_| true,
            |now| now.nodes = Some([("n2".to_owned(), node)].into()),
        );
        sleep(4 * PAUSE).await;
        assert_eq!(file(), third, "names need no nodes");
    };
    tokio::select! {
        never = names.save_snapshots() => match never {},
        () = changes => {}
    }
}
