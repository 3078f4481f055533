use super::*;
use crate::snapshot::tests::any_known;
use proptest::prelude::*;

/// By a look at all services.
fn services_at(known: &Known, address: IpAddr) -> Vec<&Key> {
    let all = known.services.iter().flatten();
    let own = all.filter(|(_, service)| service.addresses.contains(&address));
    own.map(|(key, _)| &**key).collect()
}

/// By a look at all slices.
fn slices_at(known: &Known, address: IpAddr) -> Vec<(Key, &Slice)> {
    let all = known.slices.iter().flatten();
    let has = |slice: &Slice| ready(slice).any(|own| own == address);
    let own = all.filter(|(_, slice)| has(slice));
    own.map(|(key, slice)| (service_of(key, slice), &**slice))
        .collect()
}

/// By a look at all slices.
fn slices_of<'a>(known: &'a Known, service: &Key) -> Vec<&'a Slice> {
    let all = known.slices.iter().flatten();
    let own = all.filter(|(key, slice)| service_of(key, slice) == *service);
    own.map(|(_, slice)| &**slice).collect()
}

proptest! {
    #[test]
    fn an_index_finds_after_any_states_what_a_look_at_all_finds(
        states in proptest::collection::vec(any_known(), 1..5),
    ) {
        let mut index = Index::default();
        for known in states {
            let known = Arc::new(known);
            index.take(Arc::clone(&known));
            prop_assert!(index.is_of(&known));
            prop_assert_eq!(&index, &Index::of(Arc::clone(&known)), "nothing earlier is left");
            let addresses = ["10.96.0.", "10.1.0.", "fd00:96::", "fd00:1::"];
            let addresses = addresses.iter().flat_map(|net| (1..4).map(move |last| format!("{net}{last}")));
            for address in addresses {
                let address: IpAddr = address.parse().unwrap();
                let found: Vec<&Key> = index.services_at(address).collect();
                prop_assert_eq!(found, services_at(&known, address));
                let found: Vec<(Key, &Slice)> = index.slices_at(address).collect();
                prop_assert_eq!(found, slices_at(&known, address));
            }
            for name in ["s0", "s1", "s2", "s3"] {
                for namespace in ["other", "shop"] {
                    let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
                    let found: Vec<&Slice> = index.slices_of(&key).collect();
                    prop_assert_eq!(found, slices_of(&known, &key));
                    let service = known.services.iter().flatten().find(|(own, _)| ***own == key);
                    prop_assert_eq!(index.service(&key), service.map(|(_, service)| &**service));
                }
            }
        }
    }
}
