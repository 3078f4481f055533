//! The encoding of a rule's steps: each is an expression with a name and attributes.

use super::Family;
use super::batch::{DATA_VALUE, DATA_VERDICT, verdict};
use super::filter::{Register, Share, Step, Verdict};
use super::message::Attributes;

/// `NFT_REG_VERDICT` and `NFT_META_MARK`.
const VERDICT_REGISTER: u32 = 0;
const MARK: u32 = 3;
/// The register in which a mark is changed: the last, which no key reaches.
const MARK_REGISTER: Register = 15;

/// A step with those that it needs before it.
pub(super) fn whole(step: &Step) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Step::SetMark(bits) = step {
        steps.push(Step::LoadMark(MARK_REGISTER));
        // Keeps all other bits, and turns on these.
        steps.push(Step::MaskAndFlip {
            of: MARK_REGISTER,
            mask: (!bits).to_ne_bytes().to_vec(),
            flip: bits.to_ne_bytes().to_vec(),
        });
    }
    steps.push(step.clone());
    steps
}

/// The kernel's number of a register of 32 bits (`NFT_REG32_00`).
fn register(register: Register) -> u32 {
    register.saturating_add(8)
}

fn bitwise(of: Register, mask: &[u8], flip: &[u8]) -> (&'static str, Attributes) {
    let value = |bytes: &[u8]| Attributes::new().bytes(DATA_VALUE, bytes);
    let data = Attributes::new()
        .network_number(1, register(of))
        .network_number(2, register(of))
        .network_number(3, u32::try_from(mask.len()).unwrap_or_default())
        .nest(4, &value(mask))
        .nest(5, &value(flip));
    ("bitwise", data)
}

/// `NFT_DYNSET_OP_UPDATE` and `NFT_DYNSET_OP_DELETE`.
const UPDATE: u32 = 1;
const DELETE: u32 = 2;

/// What changes a map's element (`NFTA_DYNSET_*`).
fn element(operation: u32, key: Register, map: &str, value: Register) -> Attributes {
    Attributes::new()
        .text(1, map)
        .network_number(3, operation)
        .network_number(4, register(key))
        .network_number(5, register(value))
}

/// What counts a packet under a key and holds where that is beyond its share (`NFTA_DYNSET_*`,
/// `NFTA_CONNLIMIT_*`, `NFTA_LIMIT_*`; both count what is over by a flag).
fn beyond(key: Register, set: &str, share: Share) -> (&'static str, Attributes) {
    let over = 1;
    let dynset = Attributes::new()
        .text(1, set)
        .network_number(3, UPDATE)
        .network_number(4, register(key));
    let long = |number: u64| number.to_be_bytes();
    let (dynset, name, of_share) = match share {
        Share::Connections(most) => {
            let data = Attributes::new()
                .network_number(1, most)
                .network_number(2, over);
            (dynset, "connlimit", data)
        }
        Share::PerSecond {
            packets,
            burst,
            kept,
        } => {
            let data = Attributes::new()
                .bytes(1, &long(packets.into()))
                .bytes(2, &long(1))
                .network_number(3, burst)
                .network_number(5, over);
            (dynset.bytes(6, &long(kept)), "limit", data)
        }
    };
    let of_share = Attributes::new().text(1, name).nest(2, &of_share);
    ("dynset", dynset.nest(7, &of_share))
}

/// What loads the address of an end of a connection (`NFT_CT_SRC_IP`, `NFT_CT_SRC_IP6`).
fn end(family: Family) -> u32 {
    match family {
        Family::V4 => 19,
        Family::V6 => 21,
    }
}

/// The code by which ICMP says that a port can't be reached (RFC 792; RFC 4443, section 3.1).
fn no_such_port(family: Family) -> u8 {
    match family {
        Family::V4 => 3,
        Family::V6 => 4,
    }
}

/// Another source (0) or destination (1).
fn translation(
    family: Family,
    kind: u32,
    address: Register,
    port: Option<Register>,
) -> (&'static str, Attributes) {
    let data = Attributes::new()
        .network_number(1, kind)
        .network_number(2, family.number().into())
        .network_number(3, register(address));
    let data = match port {
        Some(port) => data.network_number(5, register(port)),
        None => data,
    };
    ("nat", data)
}

/// The attributes of an expression that loads a register.
fn to(at: Register) -> Attributes {
    Attributes::new().network_number(1, register(at))
}

/// What loads a fact of the packet besides its bytes.
fn meta(key: u32, at: Register) -> (&'static str, Attributes) {
    ("meta", to(at).network_number(2, key))
}

/// What loads bytes from behind a header's begin.
fn payload(base: u32, offset: u32, length: u32, at: Register) -> (&'static str, Attributes) {
    let data = to(at)
        .network_number(2, base)
        .network_number(3, offset)
        .network_number(4, length);
    ("payload", data)
}

/// What loads a fact of the connection.
fn connection(key: u32, at: Register) -> (&'static str, Attributes) {
    ("ct", to(at).network_number(2, key))
}

/// What loads a fact of the connection's packets in one direction: that of the first packet (0), or
/// of answers (1).
fn side(key: u32, direction: u8, at: Register) -> (&'static str, Attributes) {
    let (name, data) = connection(key, at);
    (name, data.bytes(3, &[direction]))
}

fn compare(at: Register, operation: u32, bytes: &[u8]) -> (&'static str, Attributes) {
    let value = Attributes::new().bytes(DATA_VALUE, bytes);
    ("cmp", to(at).network_number(2, operation).nest(3, &value))
}

fn lookup(at: Register, set: &str, flags: u32) -> (&'static str, Attributes) {
    let data = Attributes::new()
        .text(1, set)
        .network_number(2, register(at))
        .network_number(5, flags);
    ("lookup", data)
}

/// What finds a value in a map; `into` is the kernel's number of a register.
fn find(key: Register, map: &str, into: u32) -> (&'static str, Attributes) {
    let (name, data) = lookup(key, map, 0);
    (name, data.network_number(3, into))
}

fn random(below: u32, at: Register) -> (&'static str, Attributes) {
    let random = 1;
    let data = to(at)
        .network_number(2, below)
        .network_number(3, random)
        .network_number(4, 0);
    ("numgen", data)
}

fn set_mark() -> (&'static str, Attributes) {
    let data = Attributes::new()
        .network_number(2, MARK)
        .network_number(3, register(MARK_REGISTER));
    ("meta", data)
}

fn reject(family: Family) -> (&'static str, Attributes) {
    let data = Attributes::new()
        .network_number(1, 0)
        .bytes(2, &[no_such_port(family)]);
    ("reject", data)
}

fn decide(own: &Verdict) -> (&'static str, Attributes) {
    let data = Attributes::new().nest(DATA_VERDICT, &verdict(own));
    let data = Attributes::new().network_number(1, 0).nest(2, &data);
    ("immediate", data)
}

/// Name and data of an expression in a table of a family.
pub(super) fn expression(family: Family, step: &Step) -> (&'static str, Attributes) {
    match step {
        Step::LoadInName(at) => meta(6, *at),
        Step::LoadOutName(at) => meta(7, *at),
        Step::LoadProtocol(at) => meta(16, *at),
        Step::LoadNetwork { offset, length, to } => payload(1, *offset, *length, *to),
        Step::LoadTransport { offset, length, to } => payload(2, *offset, *length, *to),
        Step::LoadState(at) => connection(0, *at),
        Step::LoadStatus(at) => connection(2, *at),
        Step::LoadDirection(at) => connection(1, *at),
        Step::LoadClient(at) => side(end(family), 0, *at),
        Step::LoadServer(at) => side(end(family), 1, *at),
        // `NFT_CT_PROTO_SRC`.
        Step::LoadServerPort(at) => side(11, 1, *at),
        Step::Mask { of, mask } => bitwise(*of, mask, &vec![0; mask.len()]),
        Step::MaskAndFlip { of, mask, flip } => bitwise(*of, mask, flip),
        Step::Is(at, bytes) => compare(*at, 0, bytes),
        Step::IsNot(at, bytes) => compare(*at, 1, bytes),
        Step::AtMost(at, bytes) => compare(*at, 3, bytes),
        Step::AtLeast(at, bytes) => compare(*at, 5, bytes),
        Step::In(at, set) => lookup(*at, set, 0),
        Step::NotIn(at, set) => lookup(*at, set, 1),
        Step::Follow(at, map) => find(*at, map, VERDICT_REGISTER),
        Step::Find { key, map, to } => find(*key, map, register(*to)),
        Step::Remember {
            key,
            map,
            value,
            milliseconds,
        } => {
            let data = element(UPDATE, *key, map, *value);
            ("dynset", data.bytes(6, &milliseconds.to_be_bytes()))
        }
        Step::Forget { key, map, value } => ("dynset", element(DELETE, *key, map, *value)),
        Step::Beyond { key, set, share } => beyond(*key, set, *share),
        Step::Untracked => ("notrack", Attributes::new()),
        Step::LoadRandom { below, to } => random(*below, *to),
        Step::LoadMark(at) => meta(MARK, *at),
        Step::SetMark(_) => set_mark(),
        Step::Destination { address, port } => translation(family, 1, *address, Some(*port)),
        Step::Source { address } => translation(family, 0, *address, None),
        Step::Reject => reject(family),
        Step::Reset => ("reject", Attributes::new().network_number(1, 1)),
        Step::Count => ("counter", Attributes::new()),
        Step::Masquerade => ("masq", Attributes::new()),
        Step::Verdict(own) => decide(own),
    }
}
