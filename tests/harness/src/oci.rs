//! OCI images made from Debian's static busybox, laid out for a registry or as an archive.

use crate::tools::Tools;
use crate::{Error, Result, file_error};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// An image of one layer.
#[derive(Debug)]
pub struct Image {
    manifest: Blob,
    config: Blob,
    layer: Blob,
}

/// What an image of a test has beside its program.
#[derive(Debug, Clone, Copy)]
pub enum Entry<'a> {
    /// A folder.
    Folder(&'a str),
    /// A symbolic link, and what it leads to.
    Link(&'a str, &'a str),
    /// A named pipe, in place of what the image has there.
    Pipe(&'a str),
    /// A character device that everybody may read and write, with its numbers.
    Device(&'a str, u32, u32),
}

/// Bytes by digest.
#[derive(Debug)]
struct Blob {
    hex: String,
    bytes: Vec<u8>,
}

/// `sha256:<hex>` of a blob.
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", Blob::new(bytes.to_vec()).hex)
}

impl Blob {
    fn new(bytes: Vec<u8>) -> Self {
        let hex = Sha256::digest(&bytes)
            .iter()
            .fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        Self { hex, bytes }
    }

    fn descriptor(&self, media: &str) -> Value {
        json!({ "mediaType": media, "digest": format!("sha256:{}", self.hex), "size": self.bytes.len() })
    }
}

impl Image {
    /// An image that holds the static busybox of `binary` and the links that scripts expect.
    pub fn busybox(binary: &Path) -> Result<Self> {
        Self::with(binary, &[])
    }

    /// The same image with more in its one layer.
    pub fn with(binary: &Path, entries: &[Entry<'_>]) -> Result<Self> {
        let program = std::fs::read(binary).map_err(file_error("cannot read", binary))?;
        let layer = layer(&program, entries).map_err(file_error("cannot pack", binary))?;
        let layer = Blob::new(layer);
        let config = json!({
            "architecture": "amd64", "os": "linux",
            "config": { "Env": ["PATH=/bin"], "Cmd": ["/bin/sh"], "WorkingDir": "/" },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", layer.hex)] },
        });
        let config = Blob::new(config.to_string().into_bytes());
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": config.descriptor(CONFIG), "layers": [layer.descriptor(LAYER)],
        });
        Ok(Self {
            manifest: Blob::new(manifest.to_string().into_bytes()),
            config,
            layer,
        })
    }

    /// `sha256:<hex>` of the manifest.
    pub fn digest(&self) -> String {
        format!("sha256:{}", self.manifest.hex)
    }

    /// Digest and bytes of manifest, configuration and layer.
    pub fn blobs(&self) -> [(String, Vec<u8>); 3] {
        [&self.manifest, &self.config, &self.layer]
            .map(|blob| (format!("sha256:{}", blob.hex), blob.bytes.clone()))
    }

    /// Lays the image out as docker-registry's filesystem driver keeps it under its root directory.
    pub fn into_registry(&self, root: &Path, name: &str, tag: &str) -> Result<()> {
        let base = root.join("docker/registry/v2");
        let repository = base.join("repositories").join(name);
        for blob in [&self.manifest, &self.config, &self.layer] {
            write(
                &base
                    .join("blobs/sha256")
                    .join(&blob.hex[..2])
                    .join(&blob.hex)
                    .join("data"),
                &blob.bytes,
            )?;
        }
        for blob in [&self.config, &self.layer] {
            link(&repository.join("_layers/sha256"), blob)?;
        }
        let manifests = repository.join("_manifests");
        link(&manifests.join("revisions/sha256"), &self.manifest)?;
        link(
            &manifests.join("tags").join(tag).join("index/sha256"),
            &self.manifest,
        )?;
        write(
            &manifests.join("tags").join(tag).join("current/link"),
            self.digest().as_bytes(),
        )
    }

    /// Writes the image as an OCI archive (a tar of an image layout) under a full reference.
    pub fn into_archive(&self, file: &Path, reference: &str) -> Result<()> {
        let mut entry = self.manifest.descriptor(MANIFEST);
        entry["annotations"] = json!({ "io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference });
        let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string();
        let mut archive = tar::Builder::new(Vec::new());
        let mut add = |path: &str, bytes: &[u8]| append(&mut archive, path, 0o644, bytes);
        let mut all = || -> std::io::Result<()> {
            add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
            add("index.json", index.as_bytes())?;
            for blob in [&self.manifest, &self.config, &self.layer] {
                add(&format!("blobs/sha256/{}", blob.hex), &blob.bytes)?;
            }
            Ok(())
        };
        all().map_err(file_error("cannot pack", file))?;
        write(
            file,
            &archive
                .into_inner()
                .map_err(file_error("cannot pack", file))?,
        )
    }
}

/// Fills a registry's root directory with `busybox:1`, from the tools tree or the host.
pub fn busybox(tools: &Tools, root: &Path) -> Result<Image> {
    let image = Image::busybox(&find_busybox(Some(tools))?)?;
    image.into_registry(root, "busybox", "1")?;
    Ok(image)
}

/// Debian's static busybox: the tools tree's, else the host's.
pub fn find_busybox(tools: Option<&Tools>) -> Result<PathBuf> {
    let places = ["/usr/bin/busybox", "/bin/busybox"];
    let own = tools
        .into_iter()
        .flat_map(|tools| places.iter().map(|place| tools.file(place)));
    let mut all = own.chain(places.iter().map(PathBuf::from));
    all.find(|path| path.is_file())
        .ok_or_else(|| Error::Missing("no busybox: install busybox-static".to_owned()))
}

fn layer(program: &[u8], entries: &[Entry<'_>]) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for folder in ["bin/", "etc/", "tmp/", "proc/", "sys/", "dev/"] {
        append(&mut archive, folder, 0o755, &[])?;
    }
    append(&mut archive, "bin/busybox", 0o755, program)?;
    let is_pipe = |entry: &Entry<'_>| matches!(entry, Entry::Pipe("etc/passwd"));
    if !entries.iter().any(is_pipe) {
        let accounts = b"root:x:0:0:root:/:/bin/sh\n";
        append(&mut archive, "etc/passwd", 0o644, accounts)?;
    }
    for name in [
        "sh", "ls", "cat", "echo", "sleep", "true", "false", "grep", "id", "ps", "wget", "nc",
        "httpd", "env",
    ] {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_mode(0o777);
        header.set_size(0);
        archive.append_link(&mut header, format!("bin/{name}"), "/bin/busybox")?;
    }
    let mut header = tar::Header::new_ustar();
    header.set_mode(0o640);
    header.set_uid(7);
    header.set_gid(8);
    header.set_size(0);
    archive.append_data(&mut header, "etc/of-user-7", &[][..])?;
    for entry in entries {
        add(&mut archive, *entry)?;
    }
    archive.into_inner()
}

fn add(archive: &mut tar::Builder<Vec<u8>>, entry: Entry<'_>) -> std::io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(0);
    header.set_mode(0o666);
    match entry {
        Entry::Folder(path) => append(archive, &format!("{path}/"), 0o755, &[]),
        Entry::Link(path, to) => {
            header.set_entry_type(tar::EntryType::Symlink);
            archive.append_link(&mut header, path, to)
        }
        Entry::Pipe(path) => {
            header.set_entry_type(tar::EntryType::Fifo);
            archive.append_data(&mut header, path, &[][..])
        }
        Entry::Device(path, major, minor) => {
            header.set_entry_type(tar::EntryType::Char);
            header.set_device_major(major)?;
            header.set_device_minor(minor)?;
            archive.append_data(&mut header, path, &[][..])
        }
    }
}

fn append(
    archive: &mut tar::Builder<Vec<u8>>,
    path: &str,
    mode: u32,
    bytes: &[u8],
) -> std::io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(if path.ends_with('/') {
        tar::EntryType::Directory
    } else {
        tar::EntryType::Regular
    });
    header.set_mode(mode);
    header.set_size(bytes.len() as u64);
    archive.append_data(&mut header, path, bytes)
}

fn link(folder: &Path, blob: &Blob) -> Result<()> {
    write(
        &folder.join(&blob.hex).join("link"),
        format!("sha256:{}", blob.hex).as_bytes(),
    )
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(file_error("cannot make", folder))?;
    }
    std::fs::write(path, bytes).map_err(file_error("cannot write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_program_makes_the_same_image() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("busybox");
        std::fs::write(&program, b"program").unwrap();
        let (one, two) = (
            Image::busybox(&program).unwrap(),
            Image::busybox(&program).unwrap(),
        );
        assert_eq!(one.digest(), two.digest());
        let manifest: Value = serde_json::from_slice(&one.manifest.bytes).unwrap();
        assert_eq!(
            manifest["layers"][0]["digest"],
            format!("sha256:{}", one.layer.hex)
        );
    }
}
