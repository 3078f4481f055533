//! Makes DNS answers (RFC 1035, RFC 6891) from the cluster's names (pure).

use super::index::Index;
use super::zone::{Data, Kind, Outcome, is_cut, look_up};
use agent_proxy::DOMAIN;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Seconds for which an answer may be kept: as upstream's DNS, so that changes are seen soon.
const TTL: u32 = 5;
/// Bytes of a datagram where the client says nothing (RFC 1035, section 2.3.4).
const SMALLEST: u16 = 512;
/// Most bytes of a datagram: no packet of it is cut on the way (the operators' DNS flag day 2020).
const LARGEST: u16 = 1232;
// The header's third byte, and a code of the fourth (RFC 1035, section 4.1.1).
/// QR: the message is a response.
const IS_ANSWER: u8 = 0x80;
/// The bits of the OPCODE.
const OPCODE: u8 = 0x78;
/// RD: the client asks for recursion.
const RECURSION_DESIRED: u8 = 0x01;
/// RCODE: the server does not know this kind of query.
const NOT_IMPLEMENTED: u8 = 4;
/// Bytes of a record at least: the root's name, type, class, time and length (RFC 1035, section
/// 3.2.1).
const LEAST_RECORD: usize = 11;
/// Longest chain of CNAMEs within the cluster.
const MOST_NAMES: usize = 8;

/// A question of a client.
#[derive(Debug, Clone)]
pub struct Question {
    /// The whole message.
    pub message: Message,
    /// What it asks.
    pub query: Query,
    /// Most bytes of the answer: what a datagram to the client may have, unless it asks otherwise.
    pub limit: usize,
}

impl Question {
    /// Reads a client's message.
    ///
    /// # Errors
    /// If it is none that can be answered; what is sent back, if anything.
    pub fn read(bytes: &[u8]) -> Result<Self, Option<Vec<u8>>> {
        // An answer is never answered: two servers would talk for ever.
        let Some([high, low, flags]) = bytes
            .first_chunk::<3>()
            .filter(|[_, _, flags]| flags & IS_ANSWER == 0)
        else {
            return Err(None);
        };
        if flags & OPCODE != 0 {
            // What is not a question may be laid out otherwise: nothing but its header is read.
            let flags = IS_ANSWER | flags & (OPCODE | RECURSION_DESIRED);
            let header = [*high, *low, flags, NOT_IMPLEMENTED];
            return Err(Some([&header[..], &[0; 8]].concat()));
        }
        let malformed = || {
            let id = u16::from_be_bytes([*high, *low]);
            let said = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
            Err(said.to_vec().ok())
        };
        let Ok(message) = Message::from_vec(bytes) else {
            return malformed();
        };
        let [query] = message.queries.as_slice() else {
            return malformed();
        };
        let said = message.edns.as_ref().map_or(SMALLEST, Edns::max_payload);
        let question = Self {
            query: query.clone(),
            limit: said.clamp(SMALLEST, LARGEST).into(),
            message,
        };
        match question.refusal() {
            Some(code) => Err(question.answer(code).to_vec().ok()),
            None => Ok(question),
        }
    }

    /// Why it is refused, if it is.
    fn refusal(&self) -> Option<ResponseCode> {
        let version = self.message.edns.as_ref().map_or(0, Edns::version);
        let whole_zone = [RecordType::AXFR, RecordType::IXFR];
        if version > 0 {
            // The answer's OPT says which one is known (RFC 6891, section 6.1.3).
            Some(ResponseCode::BADVERS)
        } else if self.query.query_class() != DNSClass::IN
            || whole_zone.contains(&self.query.query_type())
        {
            Some(ResponseCode::Refused)
        } else {
            None
        }
    }

    /// The name in small letters, without the dot at its end.
    pub fn name(&self) -> String {
        plain(self.query.name())
    }

    /// An answer without anything in it.
    pub fn answer(&self, code: ResponseCode) -> Message {
        let asked = &self.message.metadata;
        let mut answer = Message::response(asked.id, OpCode::Query);
        answer.metadata.recursion_desired = asked.recursion_desired;
        answer.metadata.recursion_available = true;
        answer.metadata.response_code = code;
        answer.add_query(self.query.clone());
        if self.message.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(LARGEST);
            answer.set_edns(edns);
        }
        answer
    }
}

/// A name in small letters, without the dot at its end.
pub(super) fn plain(name: &Name) -> String {
    let text = name.to_lowercase().to_ascii();
    text.trim_end_matches('.').to_owned()
}

/// The local resolution of a question.
#[derive(Debug)]
pub enum Resolution {
    /// The complete answer.
    Whole(Message),
    /// A chain of CNAMEs that leaves the zone: append the upstream server's answer for the name.
    Then(Message, Name),
    /// The name is not in the zone: forward the question.
    Foreign,
}

/// Answers a question from the zone.
pub fn answer(index: &Index, question: &Question) -> Resolution {
    let kind = kind(question.query.query_type());
    let mut name = question.name();
    let mut targets = Targets::default();
    let mut answer = question.answer(ResponseCode::NoError);
    answer.metadata.authoritative = true;
    if question.query.query_type() == RecordType::SOA && name == DOMAIN {
        answer.add_answers(authority());
        return Resolution::Whole(answer);
    }
    for step in 0..MOST_NAMES {
        let (Ok(owner), outcome) = (absolute(&name), look_up(index, &name, kind)) else {
            return Resolution::Whole(question.answer(ResponseCode::ServFail));
        };
        let found = match outcome {
            Outcome::Foreign if step == 0 => return Resolution::Foreign,
            Outcome::Foreign => return Resolution::Then(answer, owner),
            Outcome::Unknown => return Resolution::Whole(question.answer(ResponseCode::ServFail)),
            Outcome::Missing => {
                answer.metadata.response_code = ResponseCode::NXDomain;
                answer.add_authorities(authority());
                return Resolution::Whole(answer);
            }
            Outcome::Found(found) => found,
        };
        answer.metadata.truncation |= is_cut(&found);
        let found = turned(found, question.message.metadata.id);
        let mut next = None;
        if found.is_empty() {
            answer.add_authorities(authority());
        }
        for data in found {
            // So many do not fit, and `written` says so: the others need not be made.
            if answer.answers.len() > question.limit / LEAST_RECORD {
                break;
            }
            if let Data::Cname(other) = &data {
                next = Some(other.clone());
            }
            add(&mut answer, &mut targets, &owner, data);
        }
        match next.filter(|_| kind != Kind::Cname) {
            Some(other) => name = other,
            None => return Resolution::Whole(answer),
        }
    }
    Resolution::Whole(question.answer(ResponseCode::ServFail))
}

/// The same, beginning with another one for each question, whose id is random: many clients take
/// the first address alone (upstream's DNS does so, too).
fn turned(mut found: Vec<Data>, id: u16) -> Vec<Data> {
    let first = usize::from(id).checked_rem(found.len());
    found.rotate_left(first.unwrap_or_default());
    found
}

fn kind(of: RecordType) -> Kind {
    let known = [
        (RecordType::A, Kind::A),
        (RecordType::AAAA, Kind::Aaaa),
        (RecordType::SRV, Kind::Srv),
        (RecordType::PTR, Kind::Ptr),
        (RecordType::TXT, Kind::Txt),
        (RecordType::CNAME, Kind::Cname),
    ];
    let mut known = known.into_iter().filter(|(kind, _)| *kind == of);
    known.next().map_or(Kind::Other, |(_, kind)| kind)
}

fn absolute(name: &str) -> Result<Name, hickory_proto::ProtoError> {
    let mut name = Name::from_ascii(name)?;
    name.set_fqdn(true);
    Ok(name)
}

/// What an answer has of targets: one may have several addresses, and a host several ports.
#[derive(Debug, Default)]
struct Targets {
    ports: BTreeSet<(u16, String)>,
    addresses: BTreeSet<(String, IpAddr)>,
}

fn add(answer: &mut Message, targets: &mut Targets, owner: &Name, data: Data) {
    let rdata = match data {
        Data::Address(address) => Some(address_data(address)),
        Data::Text(text) => Some(RData::TXT(TXT::new(vec![text.to_owned()]))),
        Data::Ptr(name) => absolute(&name).ok().map(|name| RData::PTR(PTR(name))),
        Data::Cname(name) => absolute(&name).ok().map(|name| RData::CNAME(CNAME(name))),
        Data::Srv {
            port,
            weight,
            host,
            address,
        } => absolute(&host).ok().and_then(|target| {
            if targets.addresses.insert((host.clone(), address)) {
                let beside = Record::from_rdata(target.clone(), TTL, address_data(address));
                answer.add_additional(beside);
            }
            let is_new = targets.ports.insert((port, host));
            is_new.then(|| RData::SRV(SRV::new(0, weight, port, target)))
        }),
    };
    if let Some(rdata) = rdata {
        answer.add_answer(Record::from_rdata(owner.clone(), TTL, rdata));
    }
}

fn address_data(address: IpAddr) -> RData {
    match address {
        IpAddr::V4(address) => RData::A(A(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(address)),
    }
}

/// The zone's SOA record; its minimum bounds negative caching (RFC 2308).
fn authority() -> Option<Record> {
    let zone = absolute(DOMAIN).ok()?;
    let server = absolute(&format!("ns.dns.{DOMAIN}")).ok()?;
    let person = absolute(&format!("hostmaster.{DOMAIN}")).ok()?;
    let soa = SOA::new(server, person, 1, 7200, 1800, 86_400, TTL);
    Some(Record::from_rdata(zone, TTL, RData::SOA(soa)))
}

/// An answer's bytes; one that is too long for a datagram says that it was cut, and the client asks
/// by TCP. As many records as fit stay: a client that knows no TCP (musl before 1.2.4) takes these,
/// and finds no address otherwise.
pub fn written(answer: &Message, limit: usize) -> Option<Vec<u8>> {
    let records = [&answer.answers, &answer.authorities, &answer.additionals];
    let records: usize = records.map(Vec::len).iter().sum();
    if records <= limit / LEAST_RECORD {
        let bytes = answer.to_vec().ok()?;
        if bytes.len() <= limit {
            return Some(bytes);
        }
    }
    let with = |records: usize| {
        let mut cut = Message::new(answer.metadata.id, MessageType::Response, OpCode::Query);
        cut.metadata = answer.metadata;
        cut.metadata.truncation = true;
        cut.add_queries(answer.queries.clone());
        cut.edns.clone_from(&answer.edns);
        cut.add_answers(answer.answers.iter().take(records).cloned());
        let bytes = cut.to_vec().ok();
        bytes.filter(|bytes| bytes.len() <= limit || records == 0)
    };
    let (mut fit, mut most) = (0, answer.answers.len().min(limit / LEAST_RECORD));
    while fit < most {
        let middle = fit + (most - fit).div_ceil(2);
        if with(middle).is_some() {
            fit = middle;
        } else {
            most = middle - 1;
        }
    }
    with(fit)
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
