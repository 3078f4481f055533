//! The layout of netlink messages (RFC 3549, `include/uapi/linux/netlink.h`): a header, the part's
//! own header, and attributes of type, length and value, each padded to four bytes.

/// `NLM_F_*`: what a request asks for.
pub const REQUEST: u16 = 0x1;
/// An answer also where nothing went wrong.
pub const ACK: u16 = 0x4;
/// `NLM_F_DUMP`: all objects of a kind.
pub const DUMP: u16 = 0x300;
/// `NLM_F_EXCL`: refused if the object exists.
pub const EXCLUSIVE: u16 = 0x200;
/// `NLM_F_REPLACE`: replaces an existing object.
pub const REPLACE: u16 = 0x100;
/// `NLM_F_CREATE`: made if it doesn't exist.
pub const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`: added at the end of the list.
pub const APPEND: u16 = 0x800;

/// Marks an attribute that holds attributes.
const NESTED: u16 = 0x8000;
/// The bits of an attribute's type that are no marks.
const TYPE: u16 = 0x3FFF;
/// Bytes of a message's header and of an attribute's.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;

/// Attributes in the order in which they were put.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one with these bytes as they are.
    #[must_use]
    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(ATTRIBUTE + value.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        pad(&mut self.0);
        self
    }

    /// Adds a number in the machine's order, as routing wants it.
    #[must_use]
    pub fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds a number in the network's order, as the packet filter wants it.
    #[must_use]
    pub fn network_number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Adds a text with the zero that ends it.
    #[must_use]
    pub fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    /// Adds one that holds others.
    #[must_use]
    pub fn nest(self, kind: u16, inside: &Self) -> Self {
        self.bytes(kind | NESTED, &inside.0)
    }

    /// Adds one that holds others behind a header of their own, as the other end of a veth pair
    /// is described.
    #[must_use]
    pub fn nest_with_header(self, kind: u16, header: &[u8], inside: &Self) -> Self {
        self.bytes(kind | NESTED, &[header, inside.0.as_slice()].concat())
    }
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    kind: u16,
    flags: u16,
    header: Vec<u8>,
    attributes: Attributes,
}

impl Message {
    /// A request of this type, with [`REQUEST`] and these flags; `header` is the kernel part's own.
    pub fn new(kind: u16, flags: u16, header: &[u8], attributes: Attributes) -> Self {
        Self {
            kind,
            flags: flags | REQUEST,
            header: header.to_vec(),
            attributes,
        }
    }

    /// The same, with an answer wanted.
    #[must_use]
    pub fn answered(mut self) -> Self {
        self.flags |= ACK;
        self
    }

    /// Whether the kernel answers it: it asks for an answer, or for a list.
    pub fn is_answered(&self) -> bool {
        self.flags & ACK != 0 || self.flags & DUMP == DUMP
    }

    /// Writes it behind others.
    pub fn write(&self, sequence: u32, out: &mut Vec<u8>) {
        let header = self.header.len().next_multiple_of(4);
        let length = HEADER + header + self.attributes.0.len();
        out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
        out.extend(self.kind.to_ne_bytes());
        out.extend(self.flags.to_ne_bytes());
        out.extend(sequence.to_ne_bytes());
        // The kernel knows the sender by its socket.
        out.extend(0_u32.to_ne_bytes());
        out.extend(&self.header);
        pad(out);
        out.extend(&self.attributes.0);
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// A message of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its type.
    pub kind: u16,
    /// The request that it answers.
    pub sequence: u32,
    /// What follows the header.
    pub body: Vec<u8>,
}

impl Part {
    /// The number in an error's message: 0 for an answer without fault, else negative.
    pub(crate) fn error_number(&self) -> Option<i32> {
        Some(i32::from_ne_bytes(self.body.first_chunk().copied()?))
    }

    /// The part's own header, `length` bytes of it.
    pub fn header(&self, length: usize) -> Option<&[u8]> {
        self.body.get(..length)
    }

    /// The attributes behind a header of this length, by type. Those that don't fit their length
    /// end the list.
    pub fn attributes(&self, header: usize) -> Vec<(u16, &[u8])> {
        let rest = self.body.get(header.next_multiple_of(4)..);
        attributes_of(rest.unwrap_or_default())
    }
}

/// The attributes in these bytes, by type. Those that don't fit their length end the list.
pub fn attributes_of(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let Some((length, kind)) = attribute(rest) {
        let Some(value) = rest.get(ATTRIBUTE..length) else {
            break;
        };
        found.push((kind, value));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// Length and type of the attribute at the front.
fn attribute(bytes: &[u8]) -> Option<(usize, u16)> {
    let length = u16::from_ne_bytes(bytes.first_chunk().copied()?);
    let kind = u16::from_ne_bytes(bytes.get(2..)?.first_chunk().copied()?);
    (usize::from(length) >= ATTRIBUTE).then_some((usize::from(length), kind & TYPE))
}

/// The messages of a datagram. One that doesn't fit its length ends the list.
pub fn parts(datagram: &[u8]) -> Vec<Part> {
    let mut rest = datagram;
    let mut found = Vec::new();
    while let Some((part, length)) = part(rest) {
        found.push(part);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

fn part(bytes: &[u8]) -> Option<(Part, usize)> {
    let number = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..)?.first_chunk().copied()?));
    let length = usize::try_from(number(0)?).ok()?;
    let part = Part {
        kind: u16::from_ne_bytes(bytes.get(4..)?.first_chunk().copied()?),
        sequence: number(8)?,
        body: bytes.get(HEADER..length)?.to_vec(),
    };
    Some((part, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_is_laid_out_as_the_kernel_reads_it() {
        let inside = Attributes::new().network_number(2, 1);
        let attributes = Attributes::new().text(1, "ab").nest(3, &inside);
        let mut bytes = Vec::new();
        Message::new(0x10, CREATE, &[7, 0, 0], attributes).write(9, &mut bytes);
        let expected: &[&[u8]] = &[
            &40_u32.to_ne_bytes(),
            &0x10_u16.to_ne_bytes(),
            &(CREATE | REQUEST).to_ne_bytes(),
            &9_u32.to_ne_bytes(),
            &0_u32.to_ne_bytes(),
            // Header and padding.
            &[7, 0, 0, 0],
            // A text of three bytes with its zero, padded to four.
            &7_u16.to_ne_bytes(),
            &1_u16.to_ne_bytes(),
            b"ab\0\0",
            // A nest around a number in the network's order.
            &12_u16.to_ne_bytes(),
            &(3 | NESTED).to_ne_bytes(),
            &8_u16.to_ne_bytes(),
            &2_u16.to_ne_bytes(),
            &[0, 0, 0, 1],
        ];
        assert_eq!(bytes, expected.concat());
    }

    #[test]
    fn lists_and_wishes_are_answered_and_other_flags_ask_for_nothing() {
        let with = |flags| Message::new(1, flags, &[], Attributes::new()).is_answered();
        assert!(with(ACK) && with(DUMP));
        assert!(!with(0) && !with(CREATE | REPLACE) && !with(EXCLUSIVE));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            kind in 0_u16..=TYPE,
            values in proptest::collection::vec((0_u16..=TYPE, proptest::collection::vec(any::<u8>(), 0..40)), 0..8),
        ) {
            let attributes = values
                .iter()
                .fold(Attributes::new(), |all, (kind, value)| all.bytes(*kind, value));
            let mut bytes = Vec::new();
            Message::new(kind, 0, &[1, 2, 3, 4], attributes.clone()).write(1, &mut bytes);
            Message::new(kind, 0, &[5, 6, 7, 8], attributes).write(2, &mut bytes);
            let read = parts(&bytes);
            prop_assert_eq!(read.len(), 2);
            for (sequence, part) in (1_u32..).zip(&read) {
                prop_assert_eq!((part.kind, part.sequence), (kind, sequence));
                let found: Vec<(u16, Vec<u8>)> = part
                    .attributes(4)
                    .into_iter()
                    .map(|(kind, value)| (kind, value.to_vec()))
                    .collect();
                prop_assert_eq!(&found, &values);
            }
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for part in parts(&bytes) {
                part.attributes(4);
                part.attributes(1000);
            }
        }
    }
}
