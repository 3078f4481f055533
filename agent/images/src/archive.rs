//! Images from files: OCI archives (a tar of an OCI layout) that came with the machine or lie in
//! its data.

use crate::content::{Content, Descriptor};
use crate::images::{Images, Pull, Source};
use agent_containerd::{Error, ErrorClass, Pending};
use bytes::Bytes;
use futures_util::stream;
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Largest index of an archive.
const MAX_INDEX: u64 = 1 << 20;
/// Bytes read from a layer at once.
const CHUNK: usize = 256 * 1024;
/// Where an archive names its images: containerd's annotation, then the specification's.
const NAMES: [&str; 2] = [
    "io.containerd.image.name",
    "org.opencontainers.image.ref.name",
];

#[derive(Debug, Deserialize)]
pub(crate) struct Index {
    pub(crate) manifests: Vec<Descriptor>,
}

/// One archive.
#[derive(Debug)]
pub(crate) struct Archive {
    path: PathBuf,
}

impl Archive {
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// The member `name` with its place in the file, so that blobs are read without unpacking.
    fn member(&self, name: &str) -> io::Result<Option<(u64, u64)>> {
        let mut archive = tar::Archive::new(File::open(&self.path)?);
        for entry in archive.entries_with_seek()? {
            let entry = entry?;
            let path = entry.path()?;
            if path.strip_prefix("./").unwrap_or(&path) == Path::new(name) {
                return Ok(Some((entry.raw_file_position(), entry.size())));
            }
        }
        Ok(None)
    }

    fn open(&self, name: &str) -> io::Result<io::Take<File>> {
        let missing = || {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("the archive has no {name}"),
            )
        };
        let (at, size) = self.member(name)?.ok_or_else(missing)?;
        let mut file = File::open(&self.path)?;
        io::Seek::seek(&mut file, io::SeekFrom::Start(at))?;
        Ok(file.take(size))
    }

    /// The blob of a descriptor.
    pub(crate) fn blob(&self, descriptor: &Descriptor) -> io::Result<io::Take<File>> {
        self.open(&format!(
            "blobs/{}",
            descriptor.digest.replacen(':', "/", 1)
        ))
    }

    pub(crate) fn index(&self) -> io::Result<Index> {
        let mut text = Vec::new();
        self.open("index.json")?
            .take(MAX_INDEX)
            .read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    fn error(&self, error: io::Error) -> Error {
        Error::caused(
            ErrorClass::ImagePull,
            format!("image archive {}", self.path.display()),
            error,
        )
    }
}

impl Source for Archive {
    fn bring<'a>(
        &'a self,
        content: &'a Content,
        descriptor: &'a Descriptor,
        pull: Pull<'a>,
    ) -> Pending<'a, ()> {
        Box::pin(async move {
            let blob = self.blob(descriptor).map_err(|error| self.error(error))?;
            let chunks = stream::try_unfold(blob, |mut blob| async move {
                let mut chunk = vec![0; CHUNK];
                let count = blob.read(&mut chunk).map_err(|error| self.error(error))?;
                chunk.truncate(count);
                Ok((count > 0).then(|| (Bytes::from(chunk), blob)))
            });
            content.write(descriptor, chunks, pull.lease).await
        })
    }
}

/// Imports every archive (`*.tar`) of a directory whose images aren't there yet; returns the names
/// that are there then. A directory that doesn't exist holds none; a bad archive doesn't keep the
/// others from being imported.
pub async fn import(images: &Images, dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "tar"));
    paths.sort_unstable();
    let mut names = Vec::new();
    for path in paths {
        match import_one(images, Archive::at(path)).await {
            Ok(found) => names.extend(found),
            Err(error) => tracing::warn!(error = %error.chain(), "image archive not imported"),
        }
    }
    names
}

async fn import_one(images: &Images, archive: Archive) -> Result<Vec<String>, Error> {
    let index = archive.index().map_err(|error| archive.error(error))?;
    let mut names = Vec::new();
    for manifest in &index.manifests {
        let Some(name) = NAMES.iter().find_map(|key| manifest.annotations.get(*key)) else {
            continue;
        };
        let reference = images.reference(name).map_err(|error| {
            Error::caused(
                ErrorClass::InvalidImageName,
                archive.path.display().to_string(),
                error,
            )
        })?;
        images.take_in(&reference, manifest, &archive).await?;
        names.push(reference.to_string());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(members: &[(&str, &[u8])]) -> (tempfile::TempDir, Archive) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar");
        let mut builder = tar::Builder::new(File::create(&path).unwrap());
        for (name, data) in members {
            let mut header = tar::Header::new_gnu();
            header.set_size(data.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            builder.append_data(&mut header, name, *data).unwrap();
        }
        builder.finish().unwrap();
        (dir, Archive { path })
    }

    #[test]
    fn members_are_found_in_place() {
        let (_dir, archive) = archive(&[
            ("x", b"no"),
            ("blobs/sha256/aa", b"layer"),
            ("index.json", b"{\"manifests\":[]}"),
        ]);
        let mut text = String::new();
        archive
            .open("blobs/sha256/aa")
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "layer");
        assert!(archive.index().unwrap().manifests.is_empty());
    }

    #[test]
    fn a_broken_archive_is_an_error() {
        let (_dir, archive) = archive(&[("index.json", b"{")]);
        assert!(archive.index().is_err());
        std::fs::write(&archive.path, vec![7; 2000]).unwrap();
        assert!(archive.index().is_err());
    }
}
