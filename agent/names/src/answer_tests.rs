use super::*;
use crate::zone::tests as cluster;
use proptest::prelude::*;

fn question(name: &str, kind: RecordType, payload: Option<u16>) -> Question {
    let mut message = Message::query();
    message.add_query(Query::query(absolute(name).unwrap(), kind));
    message.metadata.recursion_desired = true;
    if let Some(payload) = payload {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        message.set_edns(edns);
    }
    Question::read(&message.to_vec().unwrap()).unwrap()
}

fn whole(said: Resolution) -> Message {
    let Resolution::Whole(message) = said else {
        unreachable!("{said:?}")
    };
    message
}

#[test]
fn an_answer_repeats_the_question_whatever_its_letters() {
    let asked = question("WEB.shop.svc.cluster.LOCAL", RecordType::A, Some(4096));
    let said = whole(answer(&cluster::index(), &asked));
    let read = Message::from_vec(&written(&said, asked.limit).unwrap()).unwrap();
    assert_eq!(read.metadata.id, asked.message.metadata.id);
    assert_eq!(read.queries, asked.message.queries);
    assert_eq!(read.answers.len(), 1);
    assert!(read.metadata.recursion_available && read.metadata.authoritative);
    assert_eq!(asked.limit, 1232);
}

#[test]
fn what_is_missing_may_be_remembered_for_a_while() {
    let asked = question("none.shop.svc.cluster.local", RecordType::A, None);
    let said = whole(answer(&cluster::index(), &asked));
    assert_eq!(said.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(said.authorities.len(), 1);
    let unknown = whole(answer(&Index::default(), &asked));
    assert_eq!(unknown.metadata.response_code, ResponseCode::ServFail);
}

#[test]
fn names_that_stand_for_others_are_followed() {
    let inside = question("chain.shop.svc.cluster.local", RecordType::A, None);
    let said = whole(answer(&cluster::index(), &inside));
    assert_eq!(said.answers.len(), 2, "{said:?}");
    let outside = question("out.shop.svc.cluster.local", RecordType::A, None);
    let Resolution::Then(said, name) = answer(&cluster::index(), &outside) else {
        unreachable!("another server is to be asked")
    };
    assert_eq!(said.answers.len(), 1);
    assert_eq!(name.to_ascii(), "example.com.");
    let foreign = question("example.com", RecordType::A, None);
    assert!(matches!(
        answer(&cluster::index(), &foreign),
        Resolution::Foreign
    ));
}

#[test]
fn a_long_answer_is_cut_for_datagrams_alone() {
    let asked = question(
        "_web._tcp.data.shop.svc.cluster.local",
        RecordType::SRV,
        None,
    );
    let said = whole(answer(&cluster::index(), &asked));
    assert_eq!((said.answers.len(), said.additionals.len()), (2, 2));
    let cut = Message::from_vec(&written(&said, 60).unwrap()).unwrap();
    assert!(cut.metadata.truncation && cut.answers.is_empty());
    let long = Message::from_vec(&written(&said, 65_535).unwrap()).unwrap();
    assert!(!long.metadata.truncation);
}

#[test]
fn what_fits_of_a_long_answer_stays_in_it() {
    let asked = question("many.example.", RecordType::A, None);
    let mut said = asked.answer(ResponseCode::NoError);
    let owner = absolute("many.example").unwrap();
    let mut targets = Targets::default();
    for last in 0..200 {
        add(
            &mut said,
            &mut targets,
            &owner,
            Data::Address([10, 1, 0, last].into()),
        );
    }
    for limit in [512, 700, 1232] {
        let bytes = written(&said, limit).unwrap();
        assert!(
            bytes.len() <= limit && bytes.len() + 16 > limit,
            "{}",
            bytes.len()
        );
        let cut = Message::from_vec(&bytes).unwrap();
        assert!(cut.metadata.truncation);
        assert_eq!(cut.answers, said.answers[..cut.answers.len()]);
    }
}

#[test]
fn of_a_name_with_many_ports_no_more_records_are_made_than_fit_and_the_answer_says_so() {
    let index = Index::of(cluster::crowded().into());
    for name in ["wide", "deep", "10-2-0-7.deep"] {
        let name = format!("{name}.shop.svc.cluster.local");
        let mut asked = question(&name, RecordType::SRV, Some(4096));
        for limit in [1232, 65_535] {
            asked.limit = limit;
            let said = whole(answer(&index, &asked));
            let made = said.answers.len();
            assert!(
                made <= (limit / LEAST_RECORD + 1).min(1500),
                "{made} for {limit}"
            );
            let bytes = written(&said, limit).unwrap();
            assert!(bytes.len() <= limit);
            let cut = Message::from_vec(&bytes).unwrap();
            assert!(cut.metadata.truncation && !cut.answers.is_empty());
        }
    }
    let mut asked = question("long.shop.svc.cluster.local", RecordType::A, Some(1232));
    let firsts = (0..100).map(|turn| {
        asked.message.metadata.id = 40 * turn;
        let said = whole(answer(&index, &asked));
        assert!(said.answers.len() <= 1232 / LEAST_RECORD + 1);
        said.answers[0].data.clone()
    });
    let mut firsts: Vec<RData> = firsts.collect();
    firsts.dedup();
    assert_eq!(firsts.len(), 100, "each question begins with another one");
}

#[test]
fn an_answer_has_each_target_and_each_of_their_addresses_once() {
    let asked = question("web.example.", RecordType::SRV, None);
    let owner = absolute("web.example").unwrap();
    let target = |port, last: u16, is_v6| Data::Srv {
        port,
        weight: 1,
        host: format!("pod-{last}.web.example"),
        address: if is_v6 {
            [0xfd00, 0, 0, 0, 0, 0, 0, last].into()
        } else {
            format!("10.1.0.{last}").parse().unwrap()
        },
    };
    let ports = [80, 90].into_iter();
    let found: Vec<Data> = ports
        .flat_map(|port| (0..3).flat_map(move |last| [(port, last, false), (port, last, true)]))
        .map(|(port, last, is_v6)| target(port, last, is_v6))
        .collect();
    for id in 0..12 {
        let mut said = asked.answer(ResponseCode::NoError);
        let mut targets = Targets::default();
        for data in turned(found.clone(), id) {
            add(&mut said, &mut targets, &owner, data);
        }
        assert_eq!((said.answers.len(), said.additionals.len()), (6, 6), "{id}");
    }
}

#[test]
fn each_of_several_addresses_comes_first_for_some() {
    let found: Vec<Data> = (0..3)
        .map(|last| Data::Address([10, 1, 0, last].into()))
        .collect();
    let firsts: Vec<Data> = (0..3)
        .map(|id| turned(found.clone(), id)[0].clone())
        .collect();
    assert_eq!(firsts, found);
    assert_eq!(turned(Vec::new(), 7), []);
}

#[test]
fn what_is_no_question_is_refused_or_not_answered() {
    let mut message = Message::query();
    let none = Question::read(&message.to_vec().unwrap())
        .unwrap_err()
        .unwrap();
    let none = Message::from_vec(&none).unwrap();
    assert_eq!(none.metadata.response_code, ResponseCode::FormErr);
    message.metadata.message_type = MessageType::Response;
    assert_eq!(
        Question::read(&message.to_vec().unwrap()).unwrap_err(),
        None
    );
    assert_eq!(Question::read(b"ab").unwrap_err(), None);
}

#[test]
fn a_refusal_repeats_what_it_refuses() {
    let asked = |change: &dyn Fn(&mut Message)| {
        let name = absolute("web.shop.svc.cluster.local").unwrap();
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(name, RecordType::A));
        change(&mut message);
        let refusal = Question::read(&message.to_vec().unwrap()).unwrap_err();
        (message, Message::from_vec(&refusal.unwrap()).unwrap())
    };
    let class = |message: &mut Message| {
        message.queries[0].set_query_class(DNSClass::CH);
    };
    let whole_zone = |message: &mut Message| {
        message.queries[0].set_query_type(RecordType::AXFR);
    };
    let version = |message: &mut Message| {
        let mut edns = Edns::new();
        edns.set_version(1);
        message.set_edns(edns);
    };
    for (change, code) in [
        (class as fn(&mut Message), ResponseCode::Refused),
        (whole_zone, ResponseCode::Refused),
        (version, ResponseCode::BADVERS),
    ] {
        let (asked, said) = asked(&change);
        // Two names have the number 16.
        assert_eq!(u16::from(said.metadata.response_code), u16::from(code));
        assert_eq!(said.metadata.id, asked.metadata.id);
        assert_eq!(said.queries, asked.queries);
        assert!(said.metadata.recursion_desired && said.answers.is_empty());
        assert_eq!(said.edns.map(|edns| edns.version()), asked.edns.map(|_| 0));
    }
    for code in [OpCode::Status, OpCode::Notify, OpCode::Update] {
        let (asked, said) = asked(&|message: &mut Message| message.metadata.op_code = code);
        assert_eq!(said.metadata.response_code, ResponseCode::NotImp);
        assert_eq!(
            (said.metadata.id, said.metadata.op_code),
            (asked.metadata.id, code)
        );
        assert!(said.metadata.recursion_desired && said.queries.is_empty());
    }
    // No name of an operation, and no question behind the header.
    let unknown = [1, 2, 0x78, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let said = Question::read(&unknown).unwrap_err().unwrap();
    assert_eq!(said, [1, 2, 0xF8, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn the_zone_itself_is_described() {
    let asked = question("cluster.local", RecordType::SOA, None);
    let said = whole(answer(&cluster::index(), &asked));
    assert_eq!(said.answers, authority().into_iter().collect::<Vec<_>>());
    assert!(said.authorities.is_empty());
}

proptest! {
    #[test]
    fn any_bytes_have_an_answer_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(asked) = Question::read(&bytes)
            && let Resolution::Whole(said) = answer(&cluster::index(), &asked)
        {
            prop_assert!(written(&said, asked.limit).is_none_or(|bytes| bytes.len() <= asked.limit));
        }
    }
}
