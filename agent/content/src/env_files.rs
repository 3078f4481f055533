//! Variables from a file that a container of the pod has written into an `emptyDir` (`fileKeyRef`).
//!
//! The file is read when the container starts that names it, below the volume and through no link:
//! it holds what the pod writes.

use agent_sys::beneath::Beneath;
use config_kube::k8s_openapi::api::core::v1::{Container, FileKeySelector};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Longest file, as upstream's.
const MOST: u64 = 64 << 10;

/// What the files hold that a container's variables name, by volume and path; nothing for one that
/// isn't there.
pub type EnvFiles = BTreeMap<(String, String), Option<String>>;

/// Reads the files that a container's variables name; `folder` says where a volume is that a pod
/// may fill.
///
/// # Errors
/// A volume isn't there, or a file can't be read or is too long.
pub fn read<'p>(
    container: &Container,
    folder: impl Fn(&str) -> Option<&'p Path>,
) -> Result<EnvFiles, String> {
    let variables = container.env.iter().flatten();
    let sources = variables.filter_map(|variable| variable.value_from.as_ref());
    let wanted = sources.filter_map(|source| source.file_key_ref.as_ref());
    let mut files = EnvFiles::new();
    for file in wanted {
        let (volume, path) = (&file.volume_name, &file.path);
        let fault = |error: io::Error| {
            format!(
                "failed to read environment variable file {path:?} of volume {volume:?}: {error}"
            )
        };
        let folder = folder(volume).ok_or_else(|| {
            format!("the volume {volume:?} of an environment variable file is no emptyDir")
        })?;
        let held = Beneath::root(folder).map_err(fault)?;
        let bytes = match held.read(Path::new(path), MOST) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            bytes => Some(bytes.map_err(fault)?),
        };
        let text = bytes.map(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
        let text = text.transpose().map_err(fault)?;
        files.insert((volume.clone(), path.clone()), text);
    }
    Ok(files)
}

/// The value that a reference leads to; `None` for an optional one that leads nowhere.
///
/// # Errors
/// It leads nowhere and isn't optional, or the file is no list of variables.
pub(crate) fn value(files: &EnvFiles, at: &FileKeySelector) -> Result<Option<String>, String> {
    let (volume, path, key) = (&at.volume_name, &at.path, &at.key);
    let text = files.get(&(volume.clone(), path.clone()));
    let text = text.and_then(Option::as_deref);
    let found = match text {
        Some(text) => find(text, key).map_err(|line| {
            format!("line {line} of environment variable file {path:?} is not NAME='VALUE'")
        })?,
        None => None,
    };
    if found.is_some() || at.optional == Some(true) {
        return Ok(found.map(str::to_owned));
    }
    Err(match text {
        Some(_) => format!("environment variable key {key:?} not found in file {path:?}"),
        None => format!("environment variable file {path:?} not found in volume {volume:?}"),
    })
}

/// The value of the last `NAME='VALUE'` of that name. Values are in single quotes, with nothing
/// special inside, and may have several lines; empty lines and those that begin with `#` say
/// nothing. The error is the number of a line that is something else.
pub(crate) fn find<'t>(text: &'t str, key: &str) -> Result<Option<&'t str>, usize> {
    // Counted for the error alone: done at each line, it costs the square of the file's length.
    let line = |rest: &str| 1 + text[..text.len() - rest.len()].matches('\n').count();
    let mut found = None;
    let mut rest = text;
    while !rest.is_empty() {
        let (first, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let first = first.trim();
        if first.is_empty() || first.starts_with('#') {
            rest = after;
            continue;
        }
        let (name, after) = rest.split_once("='").ok_or_else(|| line(rest))?;
        let (value, after) = after.split_once('\'').ok_or_else(|| line(rest))?;
        let (tail, after) = after.split_once('\n').unwrap_or((after, ""));
        let (name, tail) = (name.trim_start(), tail.trim());
        let strange = |letter: char| letter.is_whitespace() || "='\"#".contains(letter);
        let is_comment = tail.starts_with('#');
        if name.is_empty() || name.contains(strange) || !(tail.is_empty() || is_comment) {
            return Err(line(rest));
        }
        if name == key {
            found = Some(value);
        }
        rest = after;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::fs;

    #[test]
    fn a_file_has_names_with_values_in_single_quotes() {
        let text = "# first\n\n  A='a b' # last\nB='x=\"$A\"\n# two'\nA='again'\nC=''";
        assert_eq!(find(text, "A"), Ok(Some("again")));
        assert_eq!(find(text, "B"), Ok(Some("x=\"$A\"\n# two")));
        assert_eq!(find(text, "C"), Ok(Some("")));
        assert_eq!(find(text, "D"), Ok(None));
        assert_eq!(find("", "D"), Ok(None));
        for (text, line) in [
            ("A=plain", 1),
            ("A='a'\nB=\"b\"\n", 2),
            ("\nA = 'a'", 2),
            ("A='open\n", 1),
            ("A='a''b'", 1),
            ("A='a' b", 1),
            ("export A='a'", 1),
            ("='a'", 1),
            ("A='two\nlines'\nB\nC='c'", 3),
        ] {
            assert_eq!(find(text, "A"), Err(line), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_pod_writes_is_read_to_its_end(text in "[A='# \n\u{e9}]{0,40}") {
            let _ = find(&text, "A");
        }
    }

    fn selected(file: &Path, path: &str, optional: bool) -> Result<Option<String>, String> {
        let source = json!({"volumeName": "v", "path": path, "key": "A", "optional": optional});
        let container =
            json!({"name": "c", "env": [{"name": "X", "valueFrom": {"fileKeyRef": source}}]});
        let container = serde_json::from_value(container).unwrap();
        let files = read(&container, |volume| (volume == "v").then_some(file))?;
        value(&files, &serde_json::from_value(source).unwrap())
    }

    #[test]
    fn what_is_not_there_is_told_unless_it_is_optional() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        fs::write(path.join("a"), "A='a'\n").unwrap();
        fs::write(path.join("b"), "B='b'\n").unwrap();
        fs::write(path.join("long"), "#".repeat(65_537)).unwrap();
        fs::write(path.join("wrong"), "A=a\n").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path.join("link")).unwrap();
        assert_eq!(selected(path, "a", false), Ok(Some("a".to_owned())));
        for (name, words) in [
            (
                "b",
                "environment variable key \"A\" not found in file \"b\"",
            ),
            (
                "c",
                "environment variable file \"c\" not found in volume \"v\"",
            ),
        ] {
            assert_eq!(selected(path, name, false), Err(words.to_owned()));
            assert_eq!(selected(path, name, true), Ok(None));
        }
        for name in ["long", "link", "wrong"] {
            assert!(selected(path, name, true).is_err(), "{name}");
        }
        let gone = selected(&path.join("none"), "a", true).unwrap_err();
        assert!(gone.starts_with("failed to read"), "{gone}");
    }
}
