//! The public certificate authorities: one file, as programs expect it, joined from Debian's
//! `ca-certificates`.
//!
//! The package ships a file for each authority (those that Mozilla trusts for servers) and leaves
//! it to a script with a shell and OpenSSL to join them. Here they are joined in the order of their
//! names, so that two builds are equal. The machine's configuration says for which connections they
//! count; never for the master, which is pinned.

use crate::error::{Error, Result, at, read};
use std::path::Path;

/// Where the image has the authorities, without leading slash; programs of every Debian look there.
pub const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";
/// Where the package has them.
const FOLDER: &str = "usr/share/ca-certificates/mozilla";
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";
/// Fewer would mean that the package changed its layout: Mozilla has listed more than 100 for
/// years.
const MIN_CERTIFICATES: usize = 100;

/// The authorities of an unpacked tree as one PEM file.
///
/// # Errors
/// Where the package's folder can't be read, where a file of it is no single certificate, and where
/// there are fewer than [`MIN_CERTIFICATES`].
pub fn bundle(tree: &Path) -> Result<Vec<u8>> {
    let folder = tree.join(FOLDER);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(at("list", &folder))? {
        files.push(entry.map_err(at("list", &folder))?.path());
    }
    files.sort();
    let certificates = files
        .iter()
        .map(|path| one(&read(path)?, path))
        .collect::<Result<Vec<String>>>()?;
    if certificates.len() < MIN_CERTIFICATES {
        return Err(Error::Image(format!(
            "{} holds {} certificates, expected at least {MIN_CERTIFICATES}",
            folder.display(),
            certificates.len()
        )));
    }
    Ok(certificates.concat().into_bytes())
}

/// The text of a file that holds one certificate and nothing else, ended by one line end.
fn one(bytes: &[u8], path: &Path) -> Result<String> {
    let text = std::str::from_utf8(bytes).unwrap_or_default().trim();
    let inner = text
        .strip_prefix(BEGIN)
        .and_then(|rest| rest.strip_suffix(END));
    let base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=' | '\n' | '\r');
    match inner {
        Some(inner) if !inner.trim().is_empty() && inner.chars().all(base64) => {
            Ok(format!("{text}\n"))
        }
        Some(_) | None => Err(Error::Image(format!(
            "{} is no single PEM certificate",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: impl IntoIterator<Item = (String, String)>) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let folder = tree.path().join(FOLDER);
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            std::fs::write(folder.join(name), text).unwrap();
        }
        tree
    }

    fn many() -> Vec<(String, String)> {
        // Made in another order than their names'.
        (0..MIN_CERTIFICATES)
            .rev()
            .map(|n| {
                (
                    format!("{n:03}.crt"),
                    format!("{BEGIN}\nAA{n:03}A==\n{END}"),
                )
            })
            .collect()
    }

    #[test]
    fn authorities_are_joined_in_the_order_of_their_names() {
        let text = String::from_utf8(bundle(tree(many()).path()).unwrap()).unwrap();
        assert!(
            text.starts_with(&format!(
                "{BEGIN}\nAA000A==\n{END}\n{BEGIN}\nAA001A==\n{END}\n"
            )),
            "{text}"
        );
        assert_eq!(text.matches(END).count(), MIN_CERTIFICATES);
    }

    #[test]
    fn a_package_that_holds_something_else_is_refused() {
        assert!(
            bundle(tree(many().into_iter().skip(1)).path()).is_err(),
            "too few"
        );
        for odd in [
            "",
            "no certificate",
            &format!("{BEGIN}\n{END}"),
            &format!("{BEGIN}\nA\n{END}\n{BEGIN}\nA\n{END}"),
        ] {
            let files = many()
                .into_iter()
                .chain([("999.crt".to_owned(), odd.to_owned())]);
            assert!(bundle(tree(files).path()).is_err(), "{odd:?}");
        }
    }
}
