//! PE32+ files: the unified kernel image and the Authenticode hash (Microsoft PE/COFF; "Windows
//! Authenticode Portable Executable Signature Format"). Total over any bytes.

use sha2::{Digest, Sha256};

/// A file that is not a usable PE32+ program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a usable PE32+ program: {0}")]
pub struct PeError(&'static str);

const SECTION_HEADER: usize = 40;
/// Readable initialized data.
const DATA: u32 = 0x4000_0040;
/// Readable executable code.
const CODE: u32 = 0x6000_0020;
/// Index of the certificate table among the data directories.
const SECURITY: usize = 4;

/// Offsets of the fields of a PE32+ header.
struct Header {
    /// Of the COFF header, after the signature.
    coff: usize,
    /// Of the optional header.
    optional: usize,
    /// Of the section headers.
    sections: usize,
    count: usize,
    headers_end: usize,
}

struct Section {
    address: u32,
    memory: u32,
    offset: usize,
    size: usize,
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, PeError> {
    let field = at
        .checked_add(2)
        .and_then(|end| bytes.get(at..end))
        .and_then(|f| f.try_into().ok());
    field.map(u16::from_le_bytes).ok_or(PeError("cut short"))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, PeError> {
    let field = at
        .checked_add(4)
        .and_then(|end| bytes.get(at..end))
        .and_then(|f| f.try_into().ok());
    field.map(u32::from_le_bytes).ok_or(PeError("cut short"))
}

fn size_at(bytes: &[u8], at: usize) -> Result<usize, PeError> {
    usize::try_from(u32_at(bytes, at)?).map_err(|_e| PeError("size"))
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(field) = bytes.get_mut(at..at + 4) {
        field.copy_from_slice(&value.to_le_bytes());
    }
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Self, PeError> {
        if bytes.get(..2) != Some(b"MZ") {
            return Err(PeError("no MZ"));
        }
        let pe = size_at(bytes, 0x3c)?;
        if u32_at(bytes, pe)? != u32::from_le_bytes(*b"PE\0\0") {
            return Err(PeError("no PE signature"));
        }
        let coff = pe + 4;
        let optional = coff + 20;
        if u16_at(bytes, optional)? != 0x20b {
            return Err(PeError("not PE32+"));
        }
        let sections = optional + usize::from(u16_at(bytes, coff + 16)?);
        let count = usize::from(u16_at(bytes, coff + 2)?);
        let directories = size_at(bytes, optional + 108)?;
        if directories <= SECURITY || sections < optional + 112 + (SECURITY + 1) * 8 {
            return Err(PeError("no certificate directory"));
        }
        let headers_end = size_at(bytes, optional + 60)?;
        if headers_end > bytes.len() || sections + count * SECTION_HEADER > headers_end {
            return Err(PeError("header size"));
        }
        Ok(Self {
            coff,
            optional,
            sections,
            count,
            headers_end,
        })
    }

    /// Offset of the certificate table's directory entry.
    fn security(&self) -> usize {
        self.optional + 112 + SECURITY * 8
    }

    fn sections(&self, bytes: &[u8]) -> Result<Vec<Section>, PeError> {
        (0..self.count)
            .map(|i| {
                let at = self.sections + i * SECTION_HEADER;
                Ok(Section {
                    memory: u32_at(bytes, at + 8)?,
                    address: u32_at(bytes, at + 12)?,
                    size: size_at(bytes, at + 16)?,
                    offset: size_at(bytes, at + 20)?,
                })
            })
            .collect()
    }
}

/// The Authenticode SHA-256 of a program: all but the checksum, the certificate directory entry and
/// the certificates.
///
/// # Errors
/// It is no PE32+ program, or a section lies outside it, or over the headers or another section.
pub fn authenticode_hash(bytes: &[u8]) -> Result<[u8; 32], PeError> {
    let header = Header::read(bytes)?;
    let (checksum, security) = (header.optional + 64, header.security());
    let mut hash = Sha256::new();
    hash.update(&bytes[..checksum]);
    hash.update(&bytes[checksum + 4..security]);
    hash.update(&bytes[security + 8..header.headers_end]);
    let mut sections = header.sections(bytes)?;
    sections.sort_by_key(|s| s.offset);
    let (mut hashed, mut last_end) = (header.headers_end, header.headers_end);
    for section in sections.iter().filter(|s| s.size > 0) {
        if section.offset < last_end {
            return Err(PeError("sections overlap"));
        }
        let end = section
            .offset
            .checked_add(section.size)
            .ok_or(PeError("section size"))?;
        hash.update(
            bytes
                .get(section.offset..end)
                .ok_or(PeError("section beyond the end"))?,
        );
        last_end = end;
        hashed = hashed
            .checked_add(section.size)
            .ok_or(PeError("section sizes"))?;
    }
    let certificates = size_at(bytes, security + 4)?;
    let end = bytes
        .len()
        .checked_sub(certificates)
        .ok_or(PeError("certificate table"))?;
    if end > hashed {
        hash.update(&bytes[hashed..end]);
    }
    Ok(hash.finalize().into())
}

/// The content of a named section, as long as it is in memory.
///
/// # Errors
/// It is no PE32+ program, or has no such section.
pub fn section<'a>(bytes: &'a [u8], name: &str) -> Result<&'a [u8], PeError> {
    let header = Header::read(bytes)?;
    for (i, section) in header.sections(bytes)?.iter().enumerate() {
        let at = header.sections + i * SECTION_HEADER;
        let found = bytes.get(at..at + 8).ok_or(PeError("cut short"))?;
        if found
            .iter()
            .position(|b| *b == 0)
            .map_or(found, |end| &found[..end])
            == name.as_bytes()
        {
            let size = usize::try_from(section.memory)
                .map_err(|_e| PeError("size"))?
                .min(section.size);
            let end = section
                .offset
                .checked_add(size)
                .ok_or(PeError("section size"))?;
            return bytes
                .get(section.offset..end)
                .ok_or(PeError("section beyond the end"));
        }
    }
    Err(PeError("no such section"))
}

/// The stub with sections appended in the given order: a unified kernel image. `.linux` is
/// executable, others are data.
///
/// # Errors
/// Where the stub is not a PE32+ program, has no room for the headers, or a section's name has more
/// than 8 bytes.
pub fn with_sections(stub: &[u8], added: &[(&str, &[u8])]) -> Result<Vec<u8>, PeError> {
    let header = Header::read(stub)?;
    let align = size_at(stub, header.optional + 32)?;
    let file_align = size_at(stub, header.optional + 36)?;
    if align == 0 || file_align == 0 {
        return Err(PeError("alignment"));
    }
    let first_data = header
        .sections(stub)?
        .iter()
        .filter(|s| s.size > 0)
        .map(|s| s.offset)
        .min();
    let end_of_headers = header.sections + (header.count + added.len()) * SECTION_HEADER;
    if end_of_headers > header.headers_end || first_data.is_some_and(|first| end_of_headers > first)
    {
        return Err(PeError("no room for section headers"));
    }
    let mut out = stub.to_vec();
    out.resize(out.len().next_multiple_of(file_align), 0);
    let mut address = 0;
    for section in header.sections(stub)? {
        address = address.max(u64::from(section.address) + u64::from(section.memory));
    }
    let narrow = |n: usize| u32::try_from(n).map_err(|_e| PeError("too large"));
    for (i, (name, data)) in added.iter().enumerate() {
        address = address.next_multiple_of(align as u64);
        let at = header.sections + (header.count + i) * SECTION_HEADER;
        let offset = out.len();
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(file_align), 0);
        let stored = narrow(out.len() - offset)?;
        let field = out
            .get_mut(at..at + name.len())
            .filter(|_| name.len() <= 8)
            .ok_or(PeError("section name"))?;
        field.copy_from_slice(name.as_bytes());
        put(&mut out, at + 8, narrow(data.len())?);
        put(
            &mut out,
            at + 12,
            u32::try_from(address).map_err(|_e| PeError("too large"))?,
        );
        put(&mut out, at + 16, stored);
        put(&mut out, at + 20, narrow(offset)?);
        put(
            &mut out,
            at + 36,
            if *name == ".linux" { CODE } else { DATA },
        );
        address += data.len() as u64;
    }
    let count =
        u16::try_from(header.count + added.len()).map_err(|_e| PeError("too many sections"))?;
    out[header.coff + 2..header.coff + 4].copy_from_slice(&count.to_le_bytes());
    let memory =
        u32::try_from(address.next_multiple_of(align as u64)).map_err(|_e| PeError("too large"))?;
    put(&mut out, header.optional + 56, memory);
    Ok(out)
}

/// The program with a certificate table that holds one PKCS #7 signature. An earlier table must not
/// be there.
///
/// # Errors
/// It is no PE32+ program, has a signature already, or a length that is no multiple of 8.
pub fn with_signature(program: &[u8], pkcs7: &[u8]) -> Result<Vec<u8>, PeError> {
    let header = Header::read(program)?;
    if u32_at(program, header.security() + 4)? != 0 {
        return Err(PeError("already signed"));
    }
    if !program.len().is_multiple_of(8) {
        return Err(PeError("length is no multiple of 8"));
    }
    let mut out = program.to_vec();
    let length = (8 + pkcs7.len()).next_multiple_of(8);
    let narrow = |n: usize| u32::try_from(n).map_err(|_e| PeError("too large"));
    put(&mut out, header.security(), narrow(program.len())?);
    put(&mut out, header.security() + 4, narrow(length)?);
    out.extend(narrow(length)?.to_le_bytes());
    out.extend(0x0200_u16.to_le_bytes());
    out.extend(0x0002_u16.to_le_bytes());
    out.extend_from_slice(pkcs7);
    out.resize(program.len() + length, 0);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest stub: headers with room, one section of 512 bytes.
    pub(crate) fn stub() -> Vec<u8> {
        let mut out = vec![0; 0x600];
        out[..2].copy_from_slice(b"MZ");
        put(&mut out, 0x3c, 0x40);
        out[0x40..0x44].copy_from_slice(b"PE\0\0");
        out[0x46] = 1;
        out[0x54..0x56].copy_from_slice(&240_u16.to_le_bytes());
        out[0x58..0x5a].copy_from_slice(&0x20b_u16.to_le_bytes());
        put(&mut out, 0x58 + 32, 0x1000);
        put(&mut out, 0x58 + 36, 0x200);
        put(&mut out, 0x58 + 60, 0x400);
        put(&mut out, 0x58 + 108, 16);
        let section = 0x58 + 240;
        out[section..section + 5].copy_from_slice(b".text");
        put(&mut out, section + 8, 16);
        put(&mut out, section + 12, 0x1000);
        put(&mut out, section + 16, 0x200);
        put(&mut out, section + 20, 0x400);
        out
    }

    #[test]
    fn added_sections_are_found_again() {
        let uki = with_sections(&stub(), &[(".linux", &[7; 700]), (".cmdline", b"quiet")]).unwrap();
        assert_eq!(section(&uki, ".linux").unwrap(), [7; 700]);
        assert_eq!(section(&uki, ".cmdline").unwrap(), b"quiet");
        assert_eq!(section(&uki, ".none"), Err(PeError("no such section")));
        assert!(uki.len().is_multiple_of(0x200));
    }

    #[test]
    fn signing_does_not_change_the_authenticode_hash() {
        let uki = with_sections(&stub(), &[(".linux", &[7; 700])]).unwrap();
        let signed = with_signature(&uki, &[1; 333]).unwrap();
        assert_eq!(authenticode_hash(&uki), authenticode_hash(&signed));
        assert_eq!(
            with_signature(&signed, &[1]),
            Err(PeError("already signed"))
        );
    }

    #[test]
    fn every_other_change_does() {
        let uki = with_sections(&stub(), &[(".linux", &[7; 700])]).unwrap();
        let before = authenticode_hash(&uki).unwrap();
        for at in [0x20, 0x58 + 56, 0x450, uki.len() - 1] {
            let mut changed = uki.clone();
            changed[at] ^= 1;
            assert_ne!(authenticode_hash(&changed).unwrap(), before, "at {at:#x}");
        }
    }

    #[test]
    fn a_section_over_the_headers_or_another_section_is_refused() {
        let uki = with_sections(&stub(), &[(".linux", &[7; 700])]).unwrap();
        let offset = 0x58 + 240 + SECTION_HEADER + 20;
        let with = |start: u32| {
            let mut changed = uki.clone();
            put(&mut changed, offset, start);
            authenticode_hash(&changed)
        };
        assert!(with(0x600).is_ok(), "as it was made");
        for start in [0x3ff, 0x400, 0x5ff] {
            assert_eq!(with(start), Err(PeError("sections overlap")), "{start:#x}");
        }
    }

    #[test]
    fn cut_files_are_refused_without_a_panic() {
        let uki = with_sections(&stub(), &[(".linux", &[7; 700])]).unwrap();
        for end in 0..0x5ff {
            assert!(authenticode_hash(&uki[..end]).is_err(), "cut at {end}");
        }
    }
}
