//! One meaning for a name: types of the trust rooms, names without meaning for a Kubernetes or TPM
//! engineer, and riddles in comments, messages and documents.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The rooms in which a master is found, a machine's state is opened, and a certificate is proved,
/// decided and used, and the kind in which that is recorded. A reader goes from one to the next, so
/// a type's name means one thing in all.
const TRUST_ROOMS: &[&str] = &[
    "agent/daemon/src/",
    "agent/discover/src/",
    "agent/enroll/src/",
    "agent/tpm/src/",
    "agent/volume/src/",
    "config/attest/src/",
    "config/certificates/src/",
    "config/discovery/src/",
    "config/kube/src/machine.rs",
    "config/protocol/src/",
    "config/state/src/",
    "config/tls/src/",
    "config/tpm/src/",
    "config/unlock/src/",
    "config/verdicts/src/",
    "master/attest/src/",
    "master/ca/src/",
    "master/journal/src/",
    "master/nodes/src/",
];
/// The rooms that run a node's pods. Types that one of them shows to the others have one meaning in
/// all; what a room keeps to itself is no concern here.
const NODE_ROOMS: &[&str] = &[
    "agent/api/src/",
    "agent/claims/src/",
    "agent/cluster/src/",
    "agent/confine/src/",
    "agent/content/src/",
    "agent/csi/src/",
    "agent/handlers/src/",
    "agent/images/src/",
    "agent/journal/src/",
    "agent/kubelet/src/",
    "agent/launch/src/",
    "agent/pods/src/",
    "agent/policy/src/",
    "agent/port/src/",
    "agent/pressure/src/",
    "agent/probes/src/",
    "agent/proxy/src/",
    "agent/resources/src/",
    "agent/runtime/src/",
    "agent/server/src/",
    "agent/tunnel/src/",
];
/// A name that each room has once, for its own.
const IN_EACH_ROOM: &[&str] = &["Error"];
/// Names of types that were here once, with the field's terms for them.
const RIDDLES: &[(&str, &str)] = &[
    ("Blow", "Fault, Event"),
    ("Deed", "Action"),
    ("Desk", "SessionTable, or what it holds"),
    ("Doorman", "RateLimiter"),
    ("Hands", "Effects"),
    ("Mortal", "what ends, by its own name"),
    ("Seat", "Slot, Permit"),
    ("Shelf", "Cache, Folder"),
    ("Speech", "Log, Output"),
    ("Temper", "State"),
];
/// Phrases that make a new reader stop, with plain ones.
const RIDDLES_IN_PROSE: &[(&str, &str)] = &[
    ("as it were", "nothing: leave it out"),
    ("at sight", "without a decision"),
    ("became of", "the state of, what happened to"),
    ("become of", "the state of, what happened to"),
    ("becomes of", "the state of, what happens to"),
    ("hear of", "see, learn of"),
    ("heard of", "reported"),
    ("hears of", "sees, learns of"),
    ("in so many words", "explicitly"),
    ("knows nothing of", "does not know"),
    ("lest", "so that … not"),
    ("nobody's word", "no approval"),
    ("none any more", "no longer one, gone"),
    ("of before", "previous, earlier"),
    ("of whom", "of which, whose"),
    ("on the word of", "with the approval of"),
    ("people are told", "an event records, the log says"),
    ("person's word", "approval"),
    ("save for", "except for"),
    ("tell people", "record an event, report"),
    ("tells people", "records an event, reports"),
    ("told of", "reported, informed of"),
    ("what comes of", "the result of"),
    ("whence", "from where"),
    ("whoever", "anyone who"),
];
/// The file that names the phrases it looks for.
const OWN: &str = "tests/xtask/src/tidy/words.rs";

/// A type that two rooms of one subject declare under one name.
pub(super) fn vocabulary(texts: &BTreeMap<PathBuf, String>, faults: &mut Vec<String>) {
    one_meaning(texts, TRUST_ROOMS, declaration, "of trust", faults);
    one_meaning(texts, NODE_ROOMS, shown, "that run pods", faults);
}

/// Names that `declared` finds in the lines of more than one of these rooms, tests aside.
fn one_meaning(
    texts: &BTreeMap<PathBuf, String>,
    rooms: &[&str],
    declared: fn(&str) -> Option<&str>,
    which: &str,
    faults: &mut Vec<String>,
) {
    let mut known: BTreeMap<&str, (&str, String)> = BTreeMap::new();
    for (file, text) in texts {
        let file = file.display().to_string();
        let Some(room) = rooms.iter().find(|room| file.starts_with(**room)) else {
            continue;
        };
        if file.ends_with("tests.rs") {
            continue;
        }
        for name in text
            .lines()
            .filter_map(declared)
            .filter(|name| !IN_EACH_ROOM.contains(name))
        {
            match known.get(name) {
                Some((other, place)) if other != room => faults.push(format!(
                    "{file}: {name} is also a type in {place}; one name means one thing in the rooms {which}"
                )),
                Some(_) => {}
                None => {
                    known.insert(name, (room, file.clone()));
                }
            }
        }
    }
}

/// The name of the type that a line declares for other rooms, too.
fn shown(line: &str) -> Option<&str> {
    declaration(line).filter(|_| line.starts_with("pub "))
}

/// A type that has a name from which a stranger learns nothing.
pub(super) fn names(texts: &BTreeMap<PathBuf, String>, faults: &mut Vec<String>) {
    for (file, text) in texts {
        for (index, line) in text.lines().enumerate() {
            let Some(name) = declaration(line) else {
                continue;
            };
            if let Some((_, terms)) = RIDDLES.iter().find(|(riddle, _)| *riddle == name) {
                faults.push(format!(
                    "{}:{}: the type {name} is a riddle; the field says: {terms}",
                    file.display(),
                    index + 1
                ));
            }
        }
    }
}

/// A phrase of a comment, a message or a document from which a stranger learns nothing.
pub(super) fn prose(texts: &BTreeMap<PathBuf, String>, faults: &mut Vec<String>) {
    for (file, text) in texts {
        if file.ends_with(OWN) {
            continue;
        }
        for (index, line) in text.lines().enumerate() {
            let line = line.to_lowercase();
            for (riddle, meaning) in RIDDLES_IN_PROSE {
                if holds(&line, riddle) {
                    faults.push(format!(
                        "{}:{}: \"{riddle}\" is a riddle; say what it means: {meaning}",
                        file.display(),
                        index + 1
                    ));
                }
            }
        }
    }
}

/// Whether a text has a phrase as whole words.
fn holds(text: &str, phrase: &str) -> bool {
    let is_letter = |found: Option<char>| found.is_some_and(char::is_alphanumeric);
    text.match_indices(phrase).any(|(start, _)| {
        let before = text.get(..start).and_then(|head| head.chars().next_back());
        let after = text.get(start + phrase.len()..);
        !is_letter(before) && !is_letter(after.and_then(|tail| tail.chars().next()))
    })
}

/// The name of the type that a line declares. Types inside of traits, functions and tests are
/// indented and no concern here.
fn declaration(line: &str) -> Option<&str> {
    if line.starts_with(char::is_whitespace) {
        return None;
    }
    let mut words = line.split_whitespace();
    let mut word = words.next()?;
    if word.starts_with("pub") {
        word = words.next()?;
    }
    if !["struct", "enum", "trait", "type"].contains(&word) {
        return None;
    }
    let name = words.next()?;
    let end = name
        .find(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .unwrap_or(name.len());
    Some(&name[..end]).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(files: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
        files
            .iter()
            .map(|(file, text)| (PathBuf::from(file), (*text).to_owned()))
            .collect()
    }

    #[test]
    fn a_type_has_one_meaning_in_the_trust_rooms() {
        let faults_of = |second: &str, text: &str| {
            let mut faults = Vec::new();
            let files = [
                ("config/attest/src/csr.rs", "pub(crate) struct Request {"),
                (second, text),
            ];
            vocabulary(&texts(&files), &mut faults);
            faults.len()
        };
        assert_eq!(
            faults_of("master/ca/src/request.rs", "pub struct Request {"),
            1
        );
        assert_eq!(
            faults_of(
                "master/ca/src/request.rs",
                "pub struct CertificateRequest {"
            ),
            0
        );
        assert_eq!(
            faults_of("config/attest/src/other.rs", "struct Request;"),
            0
        );
        assert_eq!(
            faults_of("master/api/src/request.rs", "pub struct Request {"),
            0
        );
        let tests_alone = "#[cfg(test)]\nmod tests { struct Request; }";
        assert_eq!(faults_of("master/ca/src/request.rs", tests_alone), 0);
        assert_eq!(
            faults_of("master/ca/src/request_tests.rs", "struct Request;"),
            0
        );
    }

    #[test]
    fn a_type_that_is_shown_has_one_meaning_in_the_rooms_that_run_pods() {
        let faults_of = |second: &str, text: &str| {
            let mut faults = Vec::new();
            let files = [
                ("agent/csi/src/paths.rs", "pub struct Places {"),
                (second, text),
            ];
            vocabulary(&texts(&files), &mut faults);
            faults.len()
        };
        let place = "agent/journal/src/answer.rs";
        assert_eq!(faults_of(place, "pub struct Places {"), 1);
        assert_eq!(faults_of(place, "pub(crate) struct Places {"), 0);
        assert_eq!(faults_of(place, "struct Places;"), 0);
        assert_eq!(faults_of("agent/init/src/x.rs", "pub struct Places;"), 0);
    }

    #[test]
    fn a_riddle_is_no_name_of_a_type() {
        let faults_of = |text: &str| {
            let mut faults = Vec::new();
            names(&texts(&[("agent/init/src/x.rs", text)]), &mut faults);
            faults.len()
        };
        assert_eq!(faults_of("pub(crate) struct Speech<'a> {"), 1);
        assert_eq!(faults_of("struct Desk(u8);"), 1);
        assert_eq!(faults_of("// struct Desk"), 0);
        assert_eq!(faults_of("struct DeskSize;"), 0);
    }

    #[test]
    fn a_riddle_in_a_comment_a_message_or_a_document_is_a_fault() {
        let faults_of = |text: &str| {
            let mut faults = Vec::new();
            prose(&texts(&[("agent/init/src/x.rs", text)]), &mut faults);
            faults.len()
        };
        assert_eq!(faults_of("    /// A person's word lets it in."), 1);
        assert_eq!(faults_of("//! Of whom it is heard of."), 2);
        assert_eq!(faults_of("// An unheard of length."), 0);
        assert_eq!(faults_of("/// A peer that is none any more."), 1);
        assert_eq!(faults_of("the text of before; what has become of it"), 2);
        assert_eq!(faults_of("of beforehand, from before"), 0);
        assert_eq!(faults_of("let text = \"at sight\";"), 1);
        assert_eq!(faults_of("Whoever has it, | may."), 1);
        assert_eq!(faults_of("let first = told_of(at_sight);"), 0);
    }
}
