//! FAT volumes: the EFI system partition and NoCloud volumes. Made in memory, with fixed times and
//! a given volume id.

use std::io::{Cursor, Write};

/// A volume that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FatError {
    /// Writing failed, for example because the files don't fit.
    #[error("cannot write {what} into a volume of {size} bytes")]
    Write {
        /// Which file, or the volume itself.
        what: String,
        /// The volume's size.
        size: usize,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A label is 1 to 11 bytes of ASCII.
    #[error("volume label {0:?} is not 1 to 11 ASCII characters")]
    Label(String),
}

/// A volume of `size` bytes with a label and files. The folders of a file's path (separated by
/// slashes) are made.
///
/// # Errors
/// [`FatError`]: a label or a name that the format cannot hold, or files that do not fit.
pub fn volume(
    size: usize,
    label: &str,
    id: u32,
    files: &[(&str, &[u8])],
) -> Result<Vec<u8>, FatError> {
    let mut padded = [b' '; 11];
    if label.is_empty() || !label.is_ascii() {
        return Err(FatError::Label(label.to_owned()));
    }
    padded
        .get_mut(..label.len())
        .ok_or_else(|| FatError::Label(label.to_owned()))?
        .copy_from_slice(label.as_bytes());
    let mut bytes = vec![0; size];
    let fault = |what: &str| {
        let what = what.to_owned();
        move |source| FatError::Write { what, size, source }
    };
    let options = fatfs::FormatVolumeOptions::new()
        .volume_id(id)
        .volume_label(padded);
    fatfs::format_volume(Cursor::new(&mut bytes[..]), options).map_err(fault("the volume"))?;
    let volume = fatfs::FileSystem::new(Cursor::new(&mut bytes[..]), fatfs::FsOptions::new())
        .map_err(fault("the volume"))?;
    for (path, content) in files {
        let mut folder = volume.root_dir();
        let mut rest = *path;
        while let Some((first, next)) = rest.split_once('/') {
            folder = folder.create_dir(first).map_err(fault(path))?;
            rest = next;
        }
        let mut file = folder.create_file(rest).map_err(fault(path))?;
        file.write_all(content).map_err(fault(path))?;
        file.flush().map_err(fault(path))?;
    }
    volume.unmount().map_err(fault("the volume"))?;
    Ok(bytes)
}

/// A NoCloud volume (label CIDATA) with user-data and the meta-data file that cloud-init's
/// datasource asks for.
///
/// # Errors
/// The user-data do not fit into 2 MiB.
pub fn cidata(user_data: &[u8]) -> Result<Vec<u8>, FatError> {
    volume(
        2 << 20,
        "CIDATA",
        0x5052_4154,
        &[("user-data", user_data), ("meta-data", b"")],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
    use std::io::Read;

    #[test]
    fn files_are_read_again() {
        let mut bytes = volume(
            4 << 20,
            "ESP",
            7,
            &[("EFI/BOOT/BOOTX64.EFI", &vec![5; 70_000])],
        )
        .unwrap();
        let volume =
            fatfs::FileSystem::new(Cursor::new(&mut bytes[..]), fatfs::FsOptions::new()).unwrap();
        let mut content = Vec::new();
        volume
            .root_dir()
            .open_file("EFI/BOOT/BOOTX64.EFI")
            .unwrap()
            .read_to_end(&mut content)
            .unwrap();
        assert_eq!(content, vec![5; 70_000]);
    }

    /// Without its long name the kernel shows `user-d~1`, and init does not find the configuration.
    #[test]
    fn names_are_kept_in_full() {
        let mut bytes = cidata(b"version = 1\n").unwrap();
        let volume =
            fatfs::FileSystem::new(Cursor::new(&mut bytes[..]), fatfs::FsOptions::new()).unwrap();
        let names: Vec<_> = volume
            .root_dir()
            .iter()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["user-data", "meta-data"]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(volume(1 << 20, "ESP", 7, &[("A", &vec![0; 2 << 20])]).is_err());
        assert!(matches!(
            volume(1 << 20, "LONGER THAN ELEVEN", 7, &[]),
            Err(FatError::Label(_))
        ));
    }

    #[test]
    fn a_cidata_volume_is_the_golden_one() {
        let bytes = cidata(b"version = 1\n").unwrap();
        assert_eq!(
            hex::encode(Sha256::digest(bytes)),
            "c5a93f3387e96e295e0b299059aa8b5be10a1fe8230b5d85b0f4bce9b422f34f"
        );
    }
}
