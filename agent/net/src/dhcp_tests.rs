//! The client against a server that another implementation's messages make, and against noise.

use std::net::Ipv4Addr;
use std::time::Duration;

use dhcproto::v4::{DhcpOption, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};
use proptest::prelude::*;

use super::{Client, Output};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn client() -> Client {
    Client::new(MAC, Some("worker-1".to_owned()), 7, at(0))
}

fn decode(bytes: &[u8]) -> Message {
    Message::decode(&mut Decoder::new(bytes)).expect("the client's packets are valid")
}

fn sent(outputs: &[Output]) -> Message {
    match outputs {
        [Output::Anonymous(bytes) | Output::Broadcast(bytes) | Output::Unicast(_, bytes)] => {
            decode(bytes)
        }
        other => unreachable!("one packet was expected, not {other:?}"),
    }
}

fn answer(asked: &Message, kind: MessageType, seconds: u32) -> Message {
    let none = Ipv4Addr::UNSPECIFIED;
    let mut message = Message::new_with_id(asked.xid(), none, ADDRESS, none, none, asked.chaddr());
    message.set_opcode(Opcode::BootReply);
    let options = message.opts_mut();
    options.insert(DhcpOption::MessageType(kind));
    options.insert(DhcpOption::ServerIdentifier(SERVER));
    options.insert(DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)));
    options.insert(DhcpOption::Router(vec![SERVER]));
    options.insert(DhcpOption::DomainNameServer(vec![Ipv4Addr::new(
        192, 0, 2, 53,
    )]));
    options.insert(DhcpOption::AddressLeaseTime(seconds));
    message
}

fn bytes(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message
        .encode(&mut Encoder::new(&mut bytes))
        .expect("it fits");
    bytes
}

/// A client with a lease of 1000 s taken at 0.
fn bound() -> Client {
    let mut client = client();
    let discover = sent(&client.tick(at(0)));
    let request = sent(&client.packet(at(0), &bytes(&answer(&discover, MessageType::Offer, 1000))));
    let outputs = client.packet(at(0), &bytes(&answer(&request, MessageType::Ack, 1000)));
    assert!(matches!(outputs.as_slice(), [Output::Use(_)]));
    client
}

#[test]
fn discover_offer_request_ack_gives_the_lease() {
    let mut client = client();
    let discover = sent(&client.tick(at(0)));
    assert_eq!(discover.opts().msg_type(), Some(MessageType::Discover));
    assert!(
        discover.flags().broadcast(),
        "the interface has no address to be answered at"
    );
    let request = sent(&client.packet(at(1), &bytes(&answer(&discover, MessageType::Offer, 1000))));
    assert_eq!(
        request.opts().get(OptionCode::RequestedIpAddress),
        Some(&DhcpOption::RequestedIpAddress(ADDRESS))
    );
    let outputs = client.packet(at(1), &bytes(&answer(&request, MessageType::Ack, 1000)));
    let [Output::Use(lease)] = outputs.as_slice() else {
        unreachable!("a lease was expected, not {outputs:?}")
    };
    assert_eq!(
        (lease.address, lease.prefix, lease.gateway),
        (ADDRESS, 24, Some(SERVER))
    );
    assert_eq!(
        (lease.renew, lease.rebind, lease.time),
        (at(500), at(875), at(1000))
    );
    assert_eq!(client.deadline(), at(501));
}

#[test]
fn a_lease_is_renewed_with_its_server_and_then_with_anybody() {
    let mut client = bound();
    let outputs = client.tick(at(500));
    assert!(matches!(outputs.as_slice(), [Output::Unicast(SERVER, _)]));
    let renewal = sent(&outputs);
    assert_eq!(renewal.ciaddr(), ADDRESS);
    assert_eq!(
        renewal.opts().get(OptionCode::ServerIdentifier),
        None,
        "RFC 2131, table 5"
    );
    let mut again = client.clone();
    let outputs = again.packet(at(501), &bytes(&answer(&renewal, MessageType::Ack, 1000)));
    assert!(matches!(outputs.as_slice(), [Output::Use(_)]));
    assert_eq!(again.deadline(), at(1001));
    let mut now = client.deadline();
    while now < at(875) {
        assert!(matches!(
            client.tick(now).as_slice(),
            [Output::Unicast(SERVER, _)]
        ));
        now = client.deadline();
    }
    assert!(matches!(
        client.tick(now).as_slice(),
        [Output::Broadcast(_)]
    ));
}

#[test]
fn a_lease_that_nobody_renews_is_given_up_at_its_end() {
    let mut client = bound();
    let mut lost = None;
    for _ in 0..100 {
        let now = client.deadline();
        if client.tick(now) == [Output::Lost] {
            lost = Some(now);
            break;
        }
    }
    assert_eq!(lost, Some(at(1000)));
    assert_eq!(
        sent(&client.tick(at(1000))).opts().msg_type(),
        Some(MessageType::Discover)
    );
}

#[test]
fn a_refused_renewal_starts_anew_with_a_new_transaction() {
    let mut client = bound();
    let renewal = sent(&client.tick(at(500)));
    assert_eq!(
        client.packet(at(500), &bytes(&answer(&renewal, MessageType::Nak, 0))),
        [Output::Lost]
    );
    assert_ne!(sent(&client.tick(at(500))).xid(), renewal.xid());
}

#[test]
fn answers_for_others_change_nothing() {
    let mut client = client();
    let discover = sent(&client.tick(at(0)));
    let mut other = answer(&discover, MessageType::Offer, 1000);
    other.set_xid(99);
    assert_eq!(client.packet(at(0), &bytes(&other)), []);
    let mut other = answer(&discover, MessageType::Offer, 1000);
    other.set_chaddr(&[2, 0, 0, 0, 0, 2]);
    assert_eq!(client.packet(at(0), &bytes(&other)), []);
    let early = answer(&discover, MessageType::Ack, 1000);
    assert_eq!(
        client.packet(at(0), &bytes(&early)),
        [],
        "nothing was requested"
    );
    let mut holes = answer(&discover, MessageType::Offer, 1000);
    holes
        .opts_mut()
        .insert(DhcpOption::SubnetMask(Ipv4Addr::new(255, 0, 255, 0)));
    assert_eq!(client.packet(at(0), &bytes(&holes)), []);
}

#[test]
fn an_offer_that_is_not_kept_makes_the_client_ask_around_again() {
    let mut client = client();
    let discover = sent(&client.tick(at(0)));
    client.packet(at(0), &bytes(&answer(&discover, MessageType::Offer, 1000)));
    let mut kinds = Vec::new();
    for _ in 0..6 {
        let now = client.deadline();
        kinds.extend(
            client
                .tick(now)
                .iter()
                .map(|out| sent(std::slice::from_ref(out)).opts().msg_type()),
        );
    }
    let request = Some(MessageType::Request);
    assert_eq!(
        kinds,
        [
            request,
            request,
            request,
            Some(MessageType::Discover),
            Some(MessageType::Discover)
        ]
    );
}

proptest! {
    /// Any bytes at all, also in our own transaction, are survived, and the client never stops
    /// asking.
    #[test]
    fn noise_is_survived(packets in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..600), any::<bool>(), 0_u64..5), 1..40)) {
        let mut client = client();
        let asked = sent(&client.tick(at(0)));
        let head = bytes(&answer(&asked, MessageType::Offer, 30));
        let mut now = at(0);
        for (mut noise, ours, pause) in packets {
            now += at(pause);
            if ours {
                let mut packet = head[..240].to_vec();
                packet.append(&mut noise);
                noise = packet;
            }
            client.packet(now, &noise);
            client.tick(now);
            prop_assert!(client.deadline() <= now + Duration::from_secs(u64::from(u32::MAX)));
        }
        let due = client.deadline().max(now);
        prop_assert!(!client.tick(due).is_empty() || client.deadline() >= due);
    }
}
