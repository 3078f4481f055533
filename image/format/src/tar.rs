//! tar archives in the "ustar" form (POSIX.1-1988), as mkfs.erofs reads them.

/// An entry of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A folder with permission bits.
    Folder(u32),
    /// A file with permission bits and content.
    File(u32, Vec<u8>),
    /// A symbolic link.
    Link(String),
}

/// A path or link that does not fit the form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("path too long for a tar archive: {0}")]
pub struct TooLong(String);

const BLOCK: usize = 512;

/// An archive of entries in the given order, owned by root, all of one time (seconds since 1970).
/// Paths are relative.
///
/// # Errors
/// A path of more than 255 bytes that can't be cut at a slash, or a link target of more than 100.
pub fn archive(entries: &[(String, Entry)], time: u64) -> Result<Vec<u8>, TooLong> {
    let mut out = Vec::new();
    for (path, entry) in entries {
        let (mode, kind, target, content): (u32, u8, &str, &[u8]) = match entry {
            Entry::Folder(mode) => (*mode, b'5', "", &[]),
            Entry::File(mode, content) => (*mode, b'0', "", content),
            Entry::Link(target) => (0o777, b'2', target, &[]),
        };
        out.extend(header(path, mode, content.len(), time, kind, target)?);
        out.extend(content);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    Ok(out)
}

fn header(
    path: &str,
    mode: u32,
    size: usize,
    time: u64,
    kind: u8,
    target: &str,
) -> Result<Vec<u8>, TooLong> {
    let (prefix, name) = split(path).ok_or_else(|| TooLong(path.to_owned()))?;
    if target.len() > 100 {
        return Err(TooLong(target.to_owned()));
    }
    let mut out = vec![0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, format!("{mode:07o}").as_bytes());
    put(108, b"0000000");
    put(116, b"0000000");
    put(124, format!("{size:011o}").as_bytes());
    put(136, format!("{time:011o}").as_bytes());
    put(148, b"        ");
    put(156, &[kind]);
    put(157, target.as_bytes());
    put(257, b"ustar\x0000");
    put(345, prefix.as_bytes());
    let sum: u32 = out.iter().map(|b| u32::from(*b)).sum();
    out[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(out)
}

/// Prefix (≤ 155 bytes) and name (≤ 100), joined by a slash.
fn split(path: &str) -> Option<(&str, &str)> {
    if path.len() <= 100 {
        return Some(("", path));
    }
    path.match_indices('/')
        .map(|(at, _)| (&path[..at], &path[at + 1..]))
        .find(|(prefix, name)| prefix.len() <= 155 && name.len() <= 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    #[test]
    fn an_archive_is_the_golden_one() {
        let entries = [
            ("usr".to_owned(), Entry::Folder(0o755)),
            (
                "usr/init".to_owned(),
                Entry::File(0o755, b"program".to_vec()),
            ),
            ("bin".to_owned(), Entry::Link("usr/bin".to_owned())),
        ];
        let archive = archive(&entries, 1).unwrap();
        assert_eq!(
            hex::encode(Sha256::digest(archive)),
            "19c7efaa89dfbcbe541f846e0c0eafe536c5b74d3aa9a1b6ed8bc8aabad9ad4d"
        );
    }

    #[test]
    fn long_paths_are_cut_at_a_slash_or_refused() {
        let long = format!("{}/{}", "a".repeat(90), "b".repeat(90));
        assert_eq!(
            split(&long).map(|(p, n)| (p.len(), n.len())),
            Some((90, 90))
        );
        assert!(archive(&[("c".repeat(300), Entry::Folder(0o755))], 0).is_err());
    }
}
