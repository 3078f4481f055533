//! The parts of ELF that are needed to find a program's libraries and to give it another loader.
//!
//! 64-bit little-endian only. Total over any bytes: every offset is checked.

/// A file that can't be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a readable 64-bit little-endian ELF file: {0}")]
pub struct ElfError(&'static str);

/// The needs of a program or library.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// The loader's path; none in libraries and static programs.
    pub interpreter: Option<String>,
    /// Names of the libraries it needs (`DT_NEEDED`).
    pub libraries: Vec<String>,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const SEGMENT: usize = 56;

struct Segment {
    at: usize,
    kind: u32,
    offset: u64,
    address: u64,
    /// Bytes in the file.
    stored: u64,
}

/// Whether the bytes begin as an ELF file does.
pub fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(
        bytes.get(at..at.checked_add(2)?)?.try_into().ok()?,
    ))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(
        bytes.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(
        bytes.get(at..at.checked_add(8)?)?.try_into().ok()?,
    ))
}

fn text_at(bytes: &[u8], at: usize) -> Option<String> {
    let rest = bytes.get(at..)?;
    let end = rest.iter().take(4096).position(|b| *b == 0)?;
    String::from_utf8(rest[..end].to_vec()).ok()
}

fn segments(bytes: &[u8]) -> Result<Vec<Segment>, ElfError> {
    if !is_elf(bytes) || bytes.get(4..6) != Some(&[2, 1]) {
        return Err(ElfError("no such magic"));
    }
    let short = ElfError("header cut short");
    let table = u64_at(bytes, 32)
        .and_then(|v| usize::try_from(v).ok())
        .ok_or(short.clone())?;
    let count = u16_at(bytes, 56).ok_or(short.clone())?;
    (0..usize::from(count))
        .map(|i| {
            let at = table.checked_add(i * SEGMENT)?;
            Some(Segment {
                at,
                kind: u32_at(bytes, at)?,
                offset: u64_at(bytes, at.checked_add(8)?)?,
                address: u64_at(bytes, at.checked_add(16)?)?,
                stored: u64_at(bytes, at.checked_add(32)?)?,
            })
        })
        .collect::<Option<Vec<_>>>()
        .ok_or(short)
}

fn file_offset(segments: &[Segment], address: u64) -> Option<usize> {
    segments
        .iter()
        .filter(|s| s.kind == PT_LOAD)
        .find_map(|s| {
            address
                .checked_sub(s.address)
                .filter(|d| *d < s.stored)?
                .checked_add(s.offset)
        })
        .and_then(|at| usize::try_from(at).ok())
}

/// Reads the file's needs.
///
/// # Errors
/// It is no 64-bit ELF file, or a header points outside it.
pub fn needs(bytes: &[u8]) -> Result<Needs, ElfError> {
    let segments = segments(bytes)?;
    let mut out = Needs::default();
    for segment in &segments {
        let offset = usize::try_from(segment.offset).map_err(|_e| ElfError("offset too large"))?;
        if segment.kind == PT_INTERP {
            out.interpreter = Some(text_at(bytes, offset).ok_or(ElfError("loader's name"))?);
        }
        if segment.kind == PT_DYNAMIC {
            out.libraries = libraries(bytes, &segments, offset, segment.stored)
                .ok_or(ElfError("dynamic section"))?;
        }
    }
    Ok(out)
}

fn libraries(bytes: &[u8], segments: &[Segment], at: usize, size: u64) -> Option<Vec<String>> {
    let count = usize::try_from(size / 16).ok()?;
    let entries: Vec<(u64, u64)> = (0..count)
        .map_while(|i| {
            let entry = at.checked_add(i.checked_mul(16)?)?;
            Some((u64_at(bytes, entry)?, u64_at(bytes, entry.checked_add(8)?)?))
        })
        .take_while(|(tag, _)| *tag != 0)
        .collect();
    let table = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?.1;
    let table = file_offset(segments, table)?;
    entries
        .iter()
        .filter(|(tag, _)| *tag == DT_NEEDED)
        .map(|(_, name)| text_at(bytes, table.checked_add(usize::try_from(*name).ok()?)?))
        .collect()
}

/// The program with another loader. The kernel reads the loader's name by file offset, so the new
/// name is appended and only its place and length in the program header change.
///
/// # Errors
/// It is no 64-bit ELF file, or a static program.
pub fn with_interpreter(bytes: &[u8], loader: &str) -> Result<Vec<u8>, ElfError> {
    let segments = segments(bytes)?;
    let header = segments
        .iter()
        .find(|s| s.kind == PT_INTERP)
        .ok_or(ElfError("a static program has no loader"))?;
    let mut out = bytes.to_vec();
    let offset = out.len() as u64;
    let size = loader.len() as u64 + 1;
    out[header.at + 8..header.at + 16].copy_from_slice(&offset.to_le_bytes());
    out[header.at + 32..header.at + 40].copy_from_slice(&size.to_le_bytes());
    out.extend_from_slice(loader.as_bytes());
    out.push(0);
    Ok(out)
}

/// The loaded part of a program: without section headers, symbols and debugging information, which
/// follow the last segment. Deterministic, unlike a host's `strip`.
///
/// # Errors
/// It is no 64-bit ELF file, or a segment ends outside it.
pub fn loaded_part(bytes: &[u8]) -> Result<Vec<u8>, ElfError> {
    let segments = segments(bytes)?;
    let end = segments
        .iter()
        .filter_map(|s| s.offset.checked_add(s.stored))
        .max()
        .unwrap_or(0);
    let end = usize::try_from(end).map_err(|_e| ElfError("offset too large"))?;
    let mut out = bytes
        .get(..end)
        .filter(|part| part.len() >= 64)
        .ok_or(ElfError("segment beyond the end"))?
        .to_vec();
    out[40..48].fill(0);
    out[60..64].fill(0);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_names_its_loader_and_libraries() {
        let bytes = std::fs::read("/bin/sh").unwrap();
        let needs = needs(&bytes).unwrap();
        assert!(needs.interpreter.unwrap().contains("ld-linux"));
        assert!(needs.libraries.iter().any(|l| l == "libc.so.6"));
    }

    #[test]
    fn another_loader_replaces_the_name_and_nothing_else_that_is_needed() {
        let bytes = std::fs::read("/bin/sh").unwrap();
        let before = needs(&bytes).unwrap();
        let after = needs(&with_interpreter(&bytes, "/tools/ld.so").unwrap()).unwrap();
        assert_eq!(after.interpreter.as_deref(), Some("/tools/ld.so"));
        assert_eq!(after.libraries, before.libraries);
    }

    #[test]
    fn the_loaded_part_still_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("true");
        let bytes = std::fs::read("/bin/true").unwrap();
        let part = loaded_part(&bytes).unwrap();
        assert!(part.len() < bytes.len());
        std::fs::write(&path, part).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        assert!(
            std::process::Command::new(&path)
                .status()
                .unwrap()
                .success()
        );
    }

    #[test]
    fn cut_or_foreign_files_are_refused() {
        let bytes = std::fs::read("/bin/sh").unwrap();
        assert!(needs(b"#!/bin/sh\n").is_err());
        assert!(needs(&bytes[..100]).is_err());
    }
}
