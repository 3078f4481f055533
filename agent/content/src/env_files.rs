//! Variables from a file that a container of the pod has written into an `emptyDir` (`fileKeyRef`).
//!
//! The file is read when a container that names it starts. Pods choose its path and content, so no
//! symbolic link is followed, and size and number of files are limited.

use agent_sys::beneath::Beneath;
use config_kube::k8s_openapi::api::core::v1::{Container, FileKeySelector};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// Longest file (upstream's limit), and most files for the variables of a container: 4 MiB
/// together, twice what all of its variables may take.
const MOST: u64 = 64 << 10;
const MOST_FILES: usize = 64;

/// The files that a container's variables name, by volume and path.
#[derive(Debug, Clone, Default)]
pub struct EnvFiles(BTreeMap<(String, String), FileContent>);

/// What was read from a file.
#[derive(Debug, Clone)]
enum FileContent {
    /// There is no such file.
    Absent,
    /// The number of the first line that is not `NAME='VALUE'`.
    Wrong(usize),
    /// The requested variables that the file has.
    Values(BTreeMap<String, String>),
}

impl FileContent {
    /// Looks for all names in one pass: a pod may name the same file many thousand times.
    fn of(text: &str, names: &BTreeSet<&str>) -> Self {
        let mut values = BTreeMap::new();
        let walked = walk(text, |name, value| {
            if names.contains(name) {
                values.insert(name, value);
            }
        });
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        match walked {
            Ok(()) => Self::Values(values.into_iter().map(own).collect()),
            Err(line) => Self::Wrong(line),
        }
    }
}

/// Reads the files that a container's variables name, each once; `folder` finds the folder of an
/// `emptyDir` by its name. Blocks as long as the volume's file system does.
///
/// # Errors
/// There are too many files, a volume is no `emptyDir`, or a file can't be read or is too long.
pub fn read<'p>(
    container: &Container,
    folder: impl Fn(&str) -> Option<&'p Path>,
) -> Result<EnvFiles, String> {
    let mut wanted = BTreeMap::<(&str, &str), BTreeSet<&str>>::new();
    let variables = container.env.iter().flatten();
    let sources = variables.filter_map(|variable| variable.value_from.as_ref());
    for file in sources.filter_map(|source| source.file_key_ref.as_ref()) {
        let at = (file.volume_name.as_str(), file.path.as_str());
        wanted.entry(at).or_default().insert(&file.key);
    }
    if wanted.len() > MOST_FILES {
        return Err(format!(
            "the variables of a container may be taken from {MOST_FILES} files, and these are from {}: put them into \
             fewer",
            wanted.len()
        ));
    }
    let mut files = BTreeMap::new();
    for ((volume, path), names) in wanted {
        let fault = |error: io::Error| {
            format!(
                "failed to read environment variable file {path:?} of volume {volume:?}: {error}"
            )
        };
        let folder = folder(volume).ok_or_else(|| {
            format!("the volume {volume:?} of an environment variable file is no emptyDir")
        })?;
        let held = Beneath::root(folder).map_err(fault)?;
        let content = match held.read(Path::new(path), MOST) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => FileContent::Absent,
            bytes => {
                let text = String::from_utf8(bytes.map_err(fault)?);
                let text = text.map_err(|error| fault(io::Error::other(error)))?;
                FileContent::of(&text, &names)
            }
        };
        files.insert((volume.to_owned(), path.to_owned()), content);
    }
    Ok(EnvFiles(files))
}

/// The value that a reference leads to; `None` for an optional one that leads nowhere.
///
/// # Errors
/// It leads nowhere and isn't optional, or the file is no list of variables.
pub(crate) fn value(
    EnvFiles(files): &EnvFiles,
    at: &FileKeySelector,
) -> Result<Option<String>, String> {
    let (volume, path, key) = (&at.volume_name, &at.path, &at.key);
    let (found, is_there) = match files.get(&(volume.clone(), path.clone())) {
        Some(FileContent::Values(values)) => (values.get(key), true),
        Some(FileContent::Wrong(line)) => {
            return Err(format!(
                "line {line} of environment variable file {path:?} is not NAME='VALUE'"
            ));
        }
        Some(FileContent::Absent) | None => (None, false),
    };
    if found.is_some() || at.optional == Some(true) {
        return Ok(found.cloned());
    }
    Err(if is_there {
        format!("environment variable key {key:?} not found in file {path:?}")
    } else {
        format!("environment variable file {path:?} not found in volume {volume:?}")
    })
}

/// The value of the last variable of that name.
///
/// # Errors
/// As [`walk`].
pub(crate) fn find<'t>(text: &'t str, key: &str) -> Result<Option<&'t str>, usize> {
    let mut found = None;
    walk(text, |name, value| {
        if name == key {
            found = Some(value);
        }
    })?;
    Ok(found)
}

/// Calls `each` with name and value of each `NAME='VALUE'`, in order. Values are in single quotes,
/// without escapes, and may span several lines; empty lines and those that begin with `#` are
/// skipped.
///
/// # Errors
/// The number of the first line that is anything else.
fn walk<'t>(text: &'t str, mut each: impl FnMut(&'t str, &'t str)) -> Result<(), usize> {
    // Only for errors: counting at each line would take time quadratic in the file's length.
    let line = |rest: &str| 1 + text[..text.len() - rest.len()].matches('\n').count();
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
        each(name, value);
        rest = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::cell::Cell;
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

    fn naming(variables: impl Iterator<Item = (String, String)>) -> Container {
        let variable = |(path, key): (String, String)| {
            let source = json!({"volumeName": "v", "path": path, "key": key});
            json!({"name": "X", "valueFrom": {"fileKeyRef": source}})
        };
        let variables: Vec<_> = variables.map(variable).collect();
        serde_json::from_value(json!({"name": "c", "env": variables})).unwrap()
    }

    #[test]
    fn a_file_that_has_many_names_is_not_read_by_each_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let name = |number: usize| format!("f{number}");
        fs::write(path.join(name(0)), format!("A='{}'\n", "x".repeat(65_000))).unwrap();
        for number in 1..1000 {
            fs::hard_link(path.join(name(0)), path.join(name(number))).unwrap();
        }
        let reads = Cell::new(0);
        let folder = |_: &str| {
            reads.set(reads.get() + 1);
            Some(path)
        };
        let of = |count: usize| naming((0..count).map(|number| (name(number), "A".to_owned())));
        let refused = read(&of(1000), folder).unwrap_err();
        assert!(refused.contains("64 files"), "{refused}");
        assert_eq!(reads.get(), 0);
        assert!(read(&of(64), folder).is_ok());
        assert_eq!(reads.get(), 64);
    }

    #[test]
    fn a_file_that_many_variables_name_is_read_once_and_no_more_of_it_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let lines: Vec<String> = (0..2000).map(|n| format!("A{n}='{n}'\n")).collect();
        fs::write(path.join("f"), lines.concat()).unwrap();
        let reads = Cell::new(0);
        let folder = |_: &str| {
            reads.set(reads.get() + 1);
            Some(path)
        };
        let keys = (0..30_000).map(|number| ("f".to_owned(), format!("A{}", number % 10)));
        let files = read(&naming(keys), folder).unwrap();
        assert_eq!(reads.get(), 1);
        let content = files.0.values().next().unwrap();
        let FileContent::Values(values) = content else {
            panic!("{content:?}");
        };
        assert_eq!(values.len(), 10);
        assert_eq!(values["A7"], "7");
    }

    #[test]
    fn what_is_not_there_is_reported_unless_it_is_optional() {
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
