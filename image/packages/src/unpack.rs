//! Unpacking package files into a tree laid out as Debian's merged /usr.

use crate::fetch::Package;
use crate::run::{RunError, output};
use std::path::Path;
use std::process::Command;

/// Folders that Debian's merged /usr has as links.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];

/// A tree that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// A package could not be unpacked.
    #[error("cannot unpack {name}")]
    Package {
        /// The package.
        name: String,
        /// The cause.
        #[source]
        source: RunError,
    },
    /// The tree can't be written.
    #[error("cannot write the tree at {path}")]
    Tree {
        /// The path.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

/// Unpacks packages into `tree`, making it where it isn't there. No maintainer script runs.
///
/// # Errors
/// The tree cannot be written, or a file is not a Debian package.
pub fn into_tree(packages: &[Package], tree: &Path) -> Result<(), UnpackError> {
    let fault = |source| UnpackError::Tree {
        path: tree.display().to_string(),
        source,
    };
    std::fs::create_dir_all(tree).map_err(fault)?;
    for name in MERGED {
        std::fs::create_dir_all(tree.join("usr").join(name)).map_err(fault)?;
        let link = tree.join(name);
        if std::fs::symlink_metadata(&link).is_err() {
            std::os::unix::fs::symlink(format!("usr/{name}"), link).map_err(fault)?;
        }
    }
    for package in packages {
        output(
            Command::new("dpkg-deb")
                .arg("-x")
                .arg(&package.path)
                .arg(tree),
        )
        .map_err(|source| UnpackError::Package {
            name: package.locked.name.clone(),
            source,
        })?;
    }
    Ok(())
}
