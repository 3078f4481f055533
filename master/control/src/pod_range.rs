//! A range of pod addresses, of which each node gets a part: how many parts it has, and which
//! addresses are whose (pure).

use master_schema::validate::net::Range;

/// Most bits by which a node's part is longer than its range: the parts of a range are counted in a
/// table.
const MAX_BITS: u8 = 16;

/// A range of pod addresses, of which each node gets a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodRange {
    range: Range,
    node_prefix: u8,
}

impl PodRange {
    /// A range and the prefix length of a node's part; none where that is shorter than the range's,
    /// longer than an address or more than 16 bits longer than the range's.
    pub fn new(range: Range, node_prefix: u8) -> Option<Self> {
        let parts = range.prefix()..=range.prefix().saturating_add(MAX_BITS);
        let fits = Range::new(range.first(), node_prefix).is_some();
        (fits && parts.contains(&node_prefix)).then_some(Self { range, node_prefix })
    }

    /// The whole range.
    pub fn range(&self) -> Range {
        self.range
    }

    /// How many parts it has.
    pub fn parts(&self) -> usize {
        let bits = self.node_prefix.saturating_sub(self.range.prefix());
        1_usize.checked_shl(bits.into()).unwrap_or(1)
    }

    /// Addresses of a part.
    pub fn size(&self) -> u128 {
        Range::new(self.range.first(), self.node_prefix).map_or(1, Range::size)
    }

    /// A part by its number.
    pub fn part(&self, number: usize) -> Option<Range> {
        let offset = u128::try_from(number).ok()?.checked_mul(self.size())?;
        Range::new(self.range.at(offset), self.node_prefix)
    }

    /// The numbers of the parts that have addresses in common with a range.
    pub fn parts_of(&self, other: Range) -> std::ops::Range<usize> {
        let number = |offset: u128| usize::try_from(offset / self.size().max(1)).unwrap_or(0);
        match self.range.offset(other.first()) {
            Some(first) => {
                let last = first.saturating_add(other.size().saturating_sub(1));
                number(first)..number(last).saturating_add(1).min(self.parts())
            }
            None if other.contains(self.range.first()) => 0..self.parts(),
            None => 0..0,
        }
    }
}
