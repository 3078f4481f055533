//! The file system and the label of a volume, from its first bytes.
//!
//! Sources: Microsoft's FAT specification (boot sector), ECMA-119 (primary volume descriptor). Pure
//! and total.

/// A file system of a configuration volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// FAT12, FAT16 or FAT32.
    Vfat,
    /// ISO 9660.
    Iso9660,
}

impl Kind {
    /// The kernel's name of the filesystem.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vfat => "vfat",
            Self::Iso9660 => "iso9660",
        }
    }
}

/// Byte offset of the sector that [`iso9660`] reads.
pub const ISO_OFFSET: u64 = 32768;

/// The label of a FAT volume, from its first 512 bytes.
pub fn vfat(sector: &[u8]) -> Option<String> {
    if sector.get(510..512)? != [0x55, 0xAA] {
        return None;
    }
    let label = match (sector.get(0x36..0x39)?, sector.get(0x52..0x57)?) {
        (b"FAT", _) => sector.get(0x2B..0x36)?,
        (_, b"FAT32") => sector.get(0x47..0x52)?,
        (_, _) => return None,
    };
    Some(text(label))
}

/// The label of an ISO 9660 volume, from the 2048 bytes at [`ISO_OFFSET`].
pub fn iso9660(descriptor: &[u8]) -> Option<String> {
    let primary = descriptor.starts_with(b"\x01CD001\x01");
    primary.then(|| descriptor.get(40..72).map(text)).flatten()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .trim_end_matches([' ', '\0'])
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::{iso9660, vfat};

    fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
        bytes[at..at + what.len()].copy_from_slice(what);
    }

    #[test]
    fn fat_labels_are_read_in_both_layouts() {
        let mut small = vec![0; 512];
        put(&mut small, 510, &[0x55, 0xAA]);
        put(&mut small, 0x2B, b"CIDATA     FAT12   ");
        assert_eq!(vfat(&small).as_deref(), Some("CIDATA"));
        let mut large = vec![0; 512];
        put(&mut large, 510, &[0x55, 0xAA]);
        put(&mut large, 0x47, b"cidata     FAT32   ");
        assert_eq!(vfat(&large).as_deref(), Some("cidata"));
        assert_eq!(vfat(&large[..511]), None);
        assert_eq!(vfat(&[0; 512]), None);
    }

    #[test]
    fn iso_labels_are_read() {
        let mut sector = vec![b' '; 2048];
        put(&mut sector, 0, b"\x01CD001\x01");
        put(&mut sector, 40, b"cidata");
        assert_eq!(iso9660(&sector).as_deref(), Some("cidata"));
        assert_eq!(iso9660(&sector[..60]), None);
        assert_eq!(iso9660(&[0; 2048]), None);
    }
}
