use super::*;
use crate::index::Index;
use crate::zone::tests::known;
use crate::zone::{Kind, look_up};
use agent_proxy::DOMAIN;
use proptest::prelude::*;
use std::fmt::Debug;

fn origin() -> Origin {
    Origin {
        boot: "8a4b".to_owned(),
        node: "n1".to_owned(),
    }
}

fn snapshot(known: Arc<Known>) -> Snapshot {
    let own = [("10.1.0.1", "10.1.0.0/24"), ("fd00:1::1", "fd00:1::/64")];
    let own = own.map(|(address, range)| OwnAddress {
        address: address.parse().unwrap(),
        range: range.parse().unwrap(),
    });
    Snapshot {
        own: own.into(),
        known,
    }
}

fn written(snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    snapshot.write(&origin(), &mut bytes).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<Snapshot, Refused> {
    Snapshot::read(bytes, &origin())
}

/// Names of all that is known, and of some that is not.
fn questions(known: &Known) -> Vec<String> {
    let mut all: Vec<String> = ["", "svc.", "dns-version.", "no.svc.", "a.no.svc."]
        .map(|name| format!("{name}{DOMAIN}"))
        .into();
    let reversed = |address: IpAddr| match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let digits = format!("{:032x}", u128::from(address));
            let digits = digits.chars().rev().map(String::from);
            digits.collect::<Vec<_>>().join(".") + ".ip6.arpa"
        }
    };
    for namespace in known.namespaces.iter().flatten() {
        all.extend(["svc", "pod"].map(|kind| format!("{namespace}.{kind}.{DOMAIN}")));
        all.push(format!("10-1-0-9.{namespace}.pod.{DOMAIN}"));
    }
    for (key, service) in known.services.iter().flatten() {
        let name = format!("{}.{}.svc.{DOMAIN}", key.name, key.namespace);
        for protocol in ["_tcp", "_udp"] {
            all.push(format!("{protocol}.{name}"));
            let ports = service.ports.iter();
            all.extend(ports.map(|port| format!("_{}.{protocol}.{name}", port.name)));
        }
        all.extend(service.addresses.iter().copied().map(reversed));
        let slices = known.slices.iter().flatten();
        for endpoint in slices.flat_map(|(_, slice)| &slice.endpoints) {
            let dashed = endpoint.address.to_string().replace(['.', ':'], "-");
            let host = endpoint.hostname.clone().unwrap_or(dashed);
            all.push(format!("{host}.{name}"));
            all.push(reversed(endpoint.address));
        }
        all.push(name);
    }
    all
}

fn assert_answers_as(read: &Known, known: &Known) {
    let kinds = [
        Kind::A,
        Kind::Aaaa,
        Kind::Srv,
        Kind::Ptr,
        Kind::Txt,
        Kind::Cname,
        Kind::Other,
    ];
    let [own, other] = [read, known].map(|known| Index::of(Arc::new(known.clone())));
    for name in questions(known) {
        for kind in kinds {
            let (own, other) = (look_up(&own, &name, kind), look_up(&other, &name, kind));
            assert_eq!(own, other, "{name} {kind:?}");
        }
    }
}

#[test]
fn the_next_agent_answers_each_name_as_the_one_before() {
    let known = Arc::new(known());
    let read = read(&written(&snapshot(Arc::clone(&known)))).unwrap();
    assert_eq!(read.own, snapshot(Arc::clone(&known)).own);
    assert_answers_as(&read.known, &known);
    let slices = read.known.slices.as_ref().unwrap();
    assert_eq!(slices.len(), 3, "and services have endpoints");
}

fn address(net: &'static str) -> impl Strategy<Value = IpAddr> {
    (any::<bool>(), 1_u8..4).prop_map(move |(six, last)| {
        let text = if six {
            format!("fd00:{net}::{last}")
        } else {
            format!("10.{net}.0.{last}")
        };
        text.parse().unwrap()
    })
}

fn ports_of<T: Debug>(
    port: impl Fn(String, Protocol, u16) -> T + Copy,
) -> impl Strategy<Value = Vec<T>> {
    let one = (
        prop_oneof![Just(""), Just("web"), Just("dns")],
        prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)],
        80_u16..83,
    );
    let one = one.prop_map(move |(name, protocol, number)| port(name.to_owned(), protocol, number));
    proptest::collection::vec(one, 0..3)
}

/// With addresses, headless or an alias, and what names do not need.
fn any_service() -> impl Strategy<Value = Service> {
    let port = |name, protocol, port| Port {
        name,
        protocol,
        port,
        node_port: Some(30_000 + port),
    };
    let addresses = proptest::collection::vec(address("96"), 0..3);
    let alias = proptest::option::weighted(0.2, Just("Example.com.".to_owned()));
    (addresses, any::<bool>(), alias, ports_of(port)).prop_map(
        |(addresses, headless, external_name, ports)| Service {
            uid: "u".to_owned(),
            addresses,
            headless,
            external_name,
            ports,
            external: vec![[192, 0, 2, 1].into()],
            affinity: Some(7),
            ..Service::default()
        },
    )
}

fn any_slice() -> impl Strategy<Value = Slice> {
    let port = |name, protocol, port| SlicePort {
        name,
        protocol,
        port,
    };
    let hostname = proptest::option::of(prop_oneof![Just("a-0"), Just("a-1")]);
    let endpoint = (address("1"), any::<bool>(), hostname);
    let endpoint = endpoint.prop_map(|(address, ready, hostname)| Endpoint {
        address,
        ready,
        serving: true,
        terminating: !ready,
        hostname: hostname.map(str::to_owned),
        node: Some("n1".to_owned()),
        hints: None,
    });
    let endpoints = proptest::collection::vec(endpoint, 0..4);
    (0_u8..4, ports_of(port), endpoints).prop_map(|(service, ports, endpoints)| Slice {
        service: format!("s{service}"),
        ports,
        endpoints,
        foreign: false,
    })
}

/// Few services in two namespaces, and slices, some of which are of none.
pub(crate) fn any_known() -> impl Strategy<Value = Known> {
    let key = |kind: &'static str| {
        (any::<bool>(), 0_u8..3).prop_map(move |(other, number)| {
            let namespace = if other { "other" } else { "shop" };
            Arc::new(Key {
                namespace: namespace.to_owned(),
                name: format!("{kind}{number}"),
            })
        })
    };
    let services =
        proptest::collection::btree_map(key("s"), any_service().prop_map(Arc::new), 0..5);
    let slices = proptest::collection::btree_map(key("l"), any_slice().prop_map(Arc::new), 0..5);
    let namespaces = prop_oneof![Just(&["shop"][..]), Just(&["bare", "other", "shop"][..])];
    (services, slices, namespaces).prop_map(|(services, slices, namespaces)| Known {
        services: Some(services),
        slices: Some(slices),
        namespaces: Some(namespaces.iter().map(|name| (*name).to_owned()).collect()),
        ..Known::default()
    })
}

proptest! {
    #[test]
    fn a_snapshot_answers_each_name_as_what_it_was_made_of(known in any_known()) {
        let known = Arc::new(known);
        let read = read(&written(&snapshot(Arc::clone(&known)))).unwrap();
        assert_answers_as(&read.known, &known);
        prop_assert_eq!(&self::read(&written(&read)).unwrap(), &read);
    }

    #[test]
    fn what_is_cut_or_changed_is_refused_or_read_and_never_more(
        cut in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let whole = written(&snapshot(Arc::new(known())));
        let at = cut.index(whole.len());
        prop_assert!(read(&whole[..at]).is_err(), "cut at {at}");
        let mut changed = whole.clone();
        changed[at] = byte;
        if let Ok(read) = read(&changed) {
            // A slice whose service is missing, or an alias, is not written.
            let once = written(&read);
            prop_assert_eq!(written(&self::read(&once).unwrap()), once);
        }
    }
}

#[test]
fn a_snapshot_of_another_boot_node_or_version_is_refused() {
    let bytes = written(&snapshot(Arc::new(known())));
    for other in [
        Origin {
            boot: "8a4c".to_owned(),
            ..origin()
        },
        Origin {
            node: "n2".to_owned(),
            ..origin()
        },
    ] {
        let refused = Snapshot::read(&*bytes, &other).unwrap_err();
        assert!(matches!(refused, Refused::Foreign), "{refused:?}");
    }
    let text = String::from_utf8(bytes).unwrap();
    let other = text.replacen("\"version\":1", "\"version\":2", 1);
    assert_ne!(other, text);
    let refused = read(other.as_bytes()).unwrap_err();
    assert!(matches!(refused, Refused::Foreign), "{refused:?}");
}

#[test]
fn what_no_agent_writes_is_refused() {
    let text = String::from_utf8(written(&snapshot(Arc::new(known())))).unwrap();
    for (from, to) in [
        ("\"own\":[[\"10.1.0.1\"", "\"own\":[[\"10.2.0.1\""),
        ("\"10.1.0.0/24\"", "\"10.1.0.0/33\""),
        ("\"TCP\"", "\"SCTP\""),
        ("{\"namespace\":\"bare\"}", "{\"pod\":\"bare\"}"),
        ("{\"namespace\":\"bare\"}\n", ""),
        ("\"headless\":true", "\"headless\":true,\"foreign\":false"),
        ("{\"end\":10}\n", "{\"end\":10}"),
        ("{\"end\":10}\n", "{\"end\":18446744073709551615}\n"),
        ("{\"end\":10}\n", "{\"end\":10}\n{\"namespace\":\"b\"}\n"),
    ] {
        let other = text.replacen(from, to, 1);
        assert_ne!(other, text, "{from}");
        assert!(read(other.as_bytes()).is_err(), "{to}");
    }
}

/// A cluster whose snapshot would be too large, and the bytes of one that has only these
/// namespaces.
fn large() -> (Snapshot, Vec<u8>) {
    let count = MOST / 40;
    let namespaces: BTreeSet<String> = (0..count).map(|one| format!("{one:040}")).collect();
    let end = format!("{{\"end\":{count}}}\n");
    let lines = namespaces.iter();
    let lines: Vec<String> = lines
        .map(|name| format!("{{\"namespace\":\"{name}\"}}\n"))
        .collect();
    let lines = lines.concat();
    let known = Known {
        services: Some(BTreeMap::new()),
        slices: Some(BTreeMap::new()),
        ..Known::default()
    };
    let small = written(&snapshot(Arc::new(known.clone())));
    let small = String::from_utf8(small).unwrap();
    let bytes = small.replace("{\"end\":0}\n", &(lines + &end)).into_bytes();
    let known = Known {
        namespaces: Some(namespaces),
        ..known
    };
    (snapshot(Arc::new(known)), bytes)
}

#[test]
fn a_snapshot_that_is_too_large_is_neither_left_nor_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names");
    let (large, bytes) = large();
    snapshot(Arc::new(known())).save(&path, &origin()).unwrap();
    let error = large.save(&path, &origin()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(
        left, 0,
        "no earlier snapshot stays, as it is no longer right"
    );
    fs::write(&path, bytes).unwrap();
    let refused = Snapshot::load(&path, &origin()).unwrap_err();
    assert!(matches!(refused, Refused::TooLarge), "{refused:?}");
}

#[test]
fn what_others_could_have_written_is_refused() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names");
    assert!(Snapshot::load(&path, &origin()).unwrap().is_none());
    let whole = snapshot(Arc::new(known()));
    // Remains of an agent that was killed as it wrote.
    fs::write(path.with_extension("new"), "{").unwrap();
    whole.save(&path, &origin()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert!(Snapshot::load(&path, &origin()).unwrap().is_some());
    for mode in [0o620, 0o602] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let refused = Snapshot::load(&path, &origin()).unwrap_err();
        assert!(matches!(refused, Refused::NotOwn), "{mode:o}: {refused:?}");
    }
    whole.save(&path, &origin()).unwrap();
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    let refused = Snapshot::load(&link, &origin()).unwrap_err();
    assert!(matches!(refused, Refused::Unread(_)), "{refused:?}");
    let refused = Snapshot::load(folder.path(), &origin()).unwrap_err();
    assert!(matches!(refused, Refused::NotOwn), "{refused:?}");
    // Nobody writes to it, and nobody waits for that.
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let refused = Snapshot::load(&pipe, &origin()).unwrap_err();
    assert!(matches!(refused, Refused::NotOwn), "{refused:?}");
}
