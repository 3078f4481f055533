//! Frames of zstd (RFC 8878) in a blob that comes in pieces, and the memory that unpacking them
//! takes.
//!
//! Who unpacks a frame keeps as many of its last bytes as its header says: its window. A frame of a
//! few KiB may ask for gigabytes, and unpack to as much. containerd grants 512 MiB to each, from
//! memory that is charged to no pod, and whatever media type the blob is said to have. So headers
//! are read here before it has the whole blob. Blobs that do not begin as zstd pass unread; of
//! those that do, each byte must be a frame's, so that none is unpacked that was not seen.

/// The widest window of a frame in bytes. RFC 8878 recommends 8 MiB to both sides, and BuildKit,
/// podman and others that use the same encoder in Go came to 32 MiB with their strongest level, as
/// `zstd --ultra -20` does. As many images as a machine pulls at the same time by default take 160
/// MiB together, less than what it keeps for its own programs.
const MAX_WINDOW: u64 = 32 << 20;

/// Magic number of a frame.
const FRAME: u64 = 0xFD2F_B528;
/// Magic number of frames that are skipped; its last four bits may be any.
const SKIPPED: u64 = 0x184D_2A50;
/// The longest item: what follows on a header's descriptor.
const LONGEST: usize = 13;
/// Bits of a descriptor: the window is all of the content; a checksum follows on the last block.
const SINGLE_SEGMENT: u64 = 1 << 5;
const CHECKSUM: u64 = 1 << 2;

/// Why a blob is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ZstdFault {
    /// Its size in bytes.
    #[error("a zstd frame has a window of {0} bytes, and {most} are allowed", most = MAX_WINDOW)]
    Window(u64),
    #[error("the data does not begin with a zstd frame, or does not go on with one")]
    NoFrame,
    #[error("a zstd frame has a block of the reserved type")]
    NoBlock,
}

/// Reads the frames of one blob, piece by piece.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// What comes next, after the bytes that are passed over.
    item: Item,
    passed_over: u64,
    /// Its bytes that have come.
    held: [u8; LONGEST],
    count: usize,
}

/// What a blob is made of, but for content and checksums, which are passed over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Item {
    /// The first bytes, by which containerd decides whether the blob is zstd.
    #[default]
    First,
    /// The magic number of a further frame.
    Magic,
    /// The size of a frame that is skipped.
    SkippedSize,
    /// The first byte of a frame's header.
    Descriptor,
    /// The rest of the header, whose fields the descriptor tells.
    Header(u64),
    /// The header of a block.
    Block { has_checksum: bool },
    /// No zstd.
    Other,
}

/// Lengths of the fields of a frame's header, in their order.
struct Fields {
    window: usize,
    dictionary: usize,
    size: usize,
}

impl Frames {
    /// Reads on.
    ///
    /// # Errors
    /// The blob must not be unpacked. Further calls say so again.
    pub(crate) fn read(&mut self, piece: &[u8]) -> Result<(), ZstdFault> {
        let mut left = piece;
        while self.item != Item::Other && !left.is_empty() {
            let passed = usize::try_from(self.passed_over).unwrap_or(usize::MAX);
            let passed = passed.min(left.len());
            self.passed_over -= passed as u64;
            left = &left[passed..];
            let missing = self.item.length() - self.count;
            let (taken, rest) = left.split_at(missing.min(left.len()));
            self.held[self.count..][..taken.len()].copy_from_slice(taken);
            self.count += taken.len();
            left = rest;
            if taken.len() == missing {
                (self.item, self.passed_over) = self.item.after(&self.held[..self.count])?;
                self.count = 0;
            }
        }
        Ok(())
    }
}

impl Item {
    /// In bytes.
    fn length(self) -> usize {
        match self {
            Self::First | Self::Magic | Self::SkippedSize => 4,
            Self::Descriptor => 1,
            Self::Header(descriptor) => {
                let fields = Fields::of(descriptor);
                fields.window + fields.dictionary + fields.size
            }
            Self::Block { .. } => 3,
            Self::Other => 0,
        }
    }

    /// What follows on the item with these bytes, and how many bytes come before that.
    fn after(self, bytes: &[u8]) -> Result<(Self, u64), ZstdFault> {
        let number = number(bytes);
        match self {
            Self::First | Self::Magic if number == FRAME => Ok((Self::Descriptor, 0)),
            Self::First | Self::Magic if number & !0xF == SKIPPED => Ok((Self::SkippedSize, 0)),
            Self::First | Self::Other => Ok((Self::Other, 0)),
            Self::Magic => Err(ZstdFault::NoFrame),
            Self::SkippedSize => Ok((Self::Magic, number)),
            Self::Descriptor => Ok((Self::Header(number), 0)),
            Self::Header(descriptor) => {
                let window = Fields::of(descriptor).window(bytes);
                if window > MAX_WINDOW {
                    return Err(ZstdFault::Window(window));
                }
                let has_checksum = descriptor & CHECKSUM != 0;
                Ok((Self::Block { has_checksum }, 0))
            }
            Self::Block { has_checksum } => {
                let content = match (number >> 1) & 3 {
                    0 | 2 => number >> 3,
                    // One byte that is repeated.
                    1 => 1,
                    _ => return Err(ZstdFault::NoBlock),
                };
                if number & 1 == 0 {
                    return Ok((self, content));
                }
                Ok((Self::Magic, content + if has_checksum { 4 } else { 0 }))
            }
        }
    }
}

impl Fields {
    fn of(descriptor: u64) -> Self {
        let is_single = descriptor & SINGLE_SEGMENT != 0;
        Self {
            window: usize::from(!is_single),
            dictionary: match descriptor & 3 {
                0 => 0,
                1 => 1,
                2 => 2,
                _ => 4,
            },
            size: match descriptor >> 6 {
                0 => usize::from(is_single),
                1 => 2,
                2 => 4,
                _ => 8,
            },
        }
    }

    /// The window, in bytes, of a header with these fields (RFC 8878, 3.1.1.1).
    fn window(&self, header: &[u8]) -> u64 {
        if self.window > 0 {
            let byte = number(&header[..self.window]);
            let base = 1_u64 << (10 + (byte >> 3));
            return base + base / 8 * (byte & 7);
        }
        let size = number(&header[self.dictionary..]);
        // Two bytes tell sizes from 256 on.
        if self.size == 2 { size + 256 } else { size }
    }
}

/// A number of eight bytes at most, the lowest first.
fn number(bytes: &[u8]) -> u64 {
    let highest_first = bytes.iter().rev();
    highest_first.fold(0_u64, |number, byte| (number << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

    fn read(blob: &[u8], piece: usize) -> Result<(), ZstdFault> {
        let mut frames = Frames::default();
        blob.chunks(piece).try_for_each(|piece| frames.read(piece))
    }

    /// A frame with one block, the last, of no bytes.
    fn frame(header: &[u8]) -> Vec<u8> {
        [MAGIC.as_slice(), header, &[1, 0, 0]].concat()
    }

    #[test]
    fn a_window_beyond_the_limit_is_refused_in_each_form_of_a_header() {
        let window = |header: &[u8]| read(&frame(header), 100);
        // Exponent and eighths: 32 MiB, the next one, the widest that there is.
        assert_eq!(window(&[0, 0x78]), Ok(()));
        assert_eq!(window(&[0, 0x79]), Err(ZstdFault::Window(36 << 20)));
        assert_eq!(window(&[0, 0xFF]), Err(ZstdFault::Window(15 << 38)));
        // The size of the content: in one byte, in two, after a dictionary's four, in eight.
        assert_eq!(window(&[0x20, 0xFF]), Ok(()));
        assert_eq!(window(&[0x60, 0xFF, 0xFF]), Ok(()));
        let beyond = Err(ZstdFault::Window((32 << 20) + 1));
        assert_eq!(window(&[0xA0, 1, 0, 0, 2]), beyond);
        assert_eq!(window(&[0xA3, 9, 9, 9, 9, 1, 0, 0, 2]), beyond);
        assert_eq!(window(&[0xA3, 9, 9, 9, 9, 0, 0, 0, 2]), Ok(()));
        let all = Err(ZstdFault::Window(u64::MAX));
        assert_eq!(window(&[0xE0, 255, 255, 255, 255, 255, 255, 255, 255]), all);
        // Beside a window, the size tells nothing of memory.
        assert_eq!(
            window(&[0xC0, 0x78, 255, 255, 255, 255, 255, 255, 255, 255]),
            Ok(())
        );
    }

    #[test]
    fn no_frame_hides_behind_another_or_behind_what_is_none() {
        let wide = frame(&[0, 0x98]);
        let skipped: [u8; 10] = [0x5A, 0x2A, 0x4D, 0x18, 2, 0, 0, 0, 7, 7];
        let refused = Err(ZstdFault::Window(512 << 20));
        assert_eq!(read(&[&skipped[..], &wide].concat(), 1), refused);
        // One block of two bytes, a repeated byte, and a checksum.
        let first: [u8; 15] = [4, 0x50, 16, 0, 0, 8, 8, 0xFB, 0xFF, 0xFF, 8, 9, 9, 9, 9];
        let both = [&MAGIC[..], &first, &wide].concat();
        assert_eq!(read(&both, 1), refused);
        // What a decoder might pass over.
        let padded = [frame(&[0, 0x50]), vec![0; 4], wide.clone()].concat();
        assert_eq!(read(&padded, 1), Err(ZstdFault::NoFrame));
        let reserved = [&MAGIC[..], &[0, 0x50, 6, 0, 0], &wide].concat();
        assert_eq!(read(&reserved, 1), Err(ZstdFault::NoBlock));
    }

    #[test]
    fn a_blob_of_another_kind_passes_whatever_is_in_it() {
        let wide = frame(&[0, 0x98]);
        for begin in [&[0x1F, 0x8B, 0x08, 0][..], b"{   ", b"bin/"] {
            assert_eq!(read(&[begin, &wide].concat(), 3), Ok(()));
        }
        assert_eq!(read(&MAGIC[..3], 1), Ok(()));
        assert_eq!(read(&[], 1), Ok(()));
    }

    /// A frame of the blob that the property makes.
    #[derive(Debug, Clone)]
    struct Made {
        skips: bool,
        window: u8,
        has_checksum: bool,
        /// Sizes, and whether it is one byte that is repeated.
        blocks: Vec<(u16, bool)>,
    }

    impl Made {
        fn bytes(&self) -> Vec<u8> {
            if self.skips {
                let content = vec![0x28; usize::from(self.window)];
                let head: [u8; 8] = [0x50, 0x2A, 0x4D, 0x18, self.window, 0, 0, 0];
                return [&head[..], &content].concat();
            }
            let checksum: u8 = if self.has_checksum { 4 } else { 0 };
            let mut all = [&MAGIC[..], &[checksum, self.window]].concat();
            let last = self.blocks.len() - 1;
            for (place, (size, repeats)) in self.blocks.iter().enumerate() {
                let kind = u32::from(*repeats) << 1;
                let header = (u32::from(*size) << 3) | kind | u32::from(place == last);
                all.extend_from_slice(&header.to_le_bytes()[..3]);
                let content = if *repeats { 1 } else { usize::from(*size) };
                all.extend(vec![0xFD; content]);
            }
            all.extend_from_slice(&[0xB5, 0x28, 0x2F, 0xFD][..usize::from(checksum)]);
            all
        }

        /// The window, by the formula of the RFC in whole eighths.
        fn window(&self) -> Option<u64> {
            let eighths = 8 + u64::from(self.window % 8);
            (!self.skips).then(|| eighths << (7 + self.window / 8))
        }
    }

    fn made() -> impl Strategy<Value = Made> {
        let blocks = vec((0_u16..300, any::<bool>()), 1..4);
        let parts = (any::<bool>(), any::<u8>(), any::<bool>(), blocks);
        parts.prop_map(|(skips, window, has_checksum, blocks)| Made {
            skips,
            // Mostly one that is allowed.
            window: if window < 0xC0 { window % 0x79 } else { window },
            has_checksum,
            blocks,
        })
    }

    proptest! {
        #[test]
        fn the_first_window_beyond_the_limit_is_found_however_the_blob_is_cut(
            all in vec(made(), 1..6),
            piece in 1_usize..64,
        ) {
            let blob: Vec<u8> = all.iter().flat_map(Made::bytes).collect();
            let mut windows = all.iter().filter_map(Made::window);
            let beyond = windows.find(|window| *window > MAX_WINDOW);
            let wanted = beyond.map_or(Ok(()), |window| Err(ZstdFault::Window(window)));
            prop_assert_eq!(read(&blob, piece), wanted);
        }

        #[test]
        fn any_bytes_are_read_and_the_cut_changes_nothing(
            begin in prop_oneof![Just(Vec::<u8>::new()), Just(MAGIC.to_vec())],
            rest in vec(any::<u8>(), 0..200),
            piece in 1_usize..16,
        ) {
            let blob = [begin, rest].concat();
            prop_assert_eq!(read(&blob, piece), read(&blob, 1000));
        }
    }
}
