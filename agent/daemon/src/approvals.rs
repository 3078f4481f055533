//! What the booted image contains to open its machine's secrets: the release key that it names, and
//! that key's approvals.

use crate::machine::ImageDescription;
use agent_tpm::Unlock;
use config_unlock::approvals::{AREA, Approvals, Approver, Role};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Reads the approvals from the end of the image's verity partition; `None` for an image that no
/// release key signed.
///
/// # Errors
///
/// The partition cannot be read.
pub(crate) fn read(image: &ImageDescription, partition: &Path) -> io::Result<Option<Unlock>> {
    let approver = Role::from_name(&image.role)
        .zip(image.release_key.as_deref())
        .and_then(|(role, key)| Approver::from_hex(key, role));
    let svn = image.svn.and_then(|svn| u64::try_from(svn).ok());
    let (Some(approver), Some(svn)) = (approver, svn) else {
        return Ok(None);
    };
    let approvals = Approvals::parse(&area(partition)?).ok();
    Ok(approvals.map(|approvals| Unlock {
        approver,
        approvals,
        svn,
    }))
}

/// The last [`AREA`] bytes of a partition.
fn area(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = i64::try_from(AREA).map_err(io::Error::other)?;
    file.seek(SeekFrom::End(-length))?;
    let mut bytes = vec![0; AREA];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}
