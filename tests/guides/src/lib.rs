//! What each program's own test asks of its command line: that it understands every line that a
//! document for people shows ([`understood`]), and that its help is complete ([`without_help`]).
//! The parsers are private to the programs, so the tests stand there, and what they share stands
//! here. kubectl is no program of ours: its lines are compared with its help
//! ([`kubectl::understood`]).

pub mod kubectl;

use clap::error::ErrorKind;
use std::path::{Path, PathBuf};

/// Folders with documents for people, besides the repository's own.
const FOLDERS: [&str; 5] = ["agent", "config", "image", "master", "tests"];
/// What follows a command in its line and is the shell's: pipes, redirections, comments, and the
/// next command.
const ENDS: [&str; 6] = [" |", " >", " <", " #", " &&", ";"];

/// A command line of a document.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    document: PathBuf,
    /// The program and its arguments.
    words: Vec<String>,
    /// Whether it stands in a block, to be copied as it is; a text may show a part of a command.
    is_whole: bool,
}

/// Parses all command lines that begin with `program` (several words, such as `cargo run -p x --`,
/// are its name) in the shell blocks and in the inline code of the documents, and returns their
/// number. Inline code without options names a command, and is none.
///
/// # Errors
/// A document cannot be read, or a line is not understood.
pub fn understood<T>(
    program: &str,
    parse: impl Fn(&[String]) -> Result<T, clap::Error>,
) -> Result<usize, String> {
    let all = all_shown(program)?;
    for shown in &all {
        match parse(&shown.words) {
            Ok(_) => {}
            Err(error) if !shown.is_whole && lacks_a_word(&error, &shown.words) => {}
            Err(error) => return Err(shown.fault(&error.to_string())),
        }
    }
    Ok(all.len())
}

impl Shown {
    /// A fault with its place.
    fn fault(&self, why: &str) -> String {
        let line = self.words.join(" ");
        format!("{}: {line}: {why}", self.document.display())
    }
}

/// The command lines of a program in all documents.
fn all_shown(program: &str) -> Result<Vec<Shown>, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut all = Vec::new();
    for document in documents(&root).map_err(|error| error.to_string())? {
        let text = std::fs::read_to_string(root.join(&document));
        let text = text.map_err(|error| format!("{}: {error}", document.display()))?;
        all.extend(commands(&document, &text, program));
    }
    Ok(all)
}

/// Whether a line is not understood only because it says no more: a required argument, or the value
/// of its last option.
fn lacks_a_word(error: &clap::Error, words: &[String]) -> bool {
    let ends_with_option = words.last().is_some_and(|word| word.starts_with("--"));
    error.kind() == ErrorKind::MissingRequiredArgument
        || (error.kind() == ErrorKind::InvalidValue && ends_with_option)
}

/// The command lines of a program in a document's text.
fn commands(document: &Path, text: &str, program: &str) -> Vec<Shown> {
    let whole = in_blocks(text).into_iter().map(|line| (line, true));
    let parts = inline(text).into_iter().map(|line| (line, false));
    let mut shown = Vec::new();
    for (line, is_whole) in whole.chain(parts) {
        let commands = in_line(&line).filter_map(|command| words(command, program));
        shown.extend(commands.map(|words| Shown {
            document: document.to_owned(),
            words,
            is_whole,
        }));
    }
    shown
}

/// The commands of a line, which pipes, `&&` and semicolons part; its comment is none.
fn in_line(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split(" #").next().unwrap_or_default();
    let piped = code.split(" |");
    let commands = piped.flat_map(|part| part.split(" &&"));
    commands.flat_map(|part| part.split(';')).map(str::trim)
}

/// Commands and arguments of a program, down to the last, that have no help. Hidden ones need none.
pub fn without_help(program: clap::Command) -> Vec<String> {
    let mut missing = Vec::new();
    let mut pending = vec![program];
    while let Some(command) = pending.pop() {
        let name = command.get_name();
        if command.get_about().is_none() && !command.is_hide_set() {
            missing.push(name.to_owned());
        }
        let arguments = command.get_arguments();
        let bare = arguments.filter(|argument| argument.get_help().is_none());
        missing.extend(bare.map(|argument| format!("{name} {}", argument.get_id())));
        pending.extend(command.get_subcommands().cloned());
    }
    missing
}

fn documents(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = vec![PathBuf::from("README.md")];
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(PathBuf::from).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// The lines of the shell blocks; one that ends with a backslash goes on in the next.
fn in_blocks(text: &str) -> Vec<String> {
    let blocks = text.split("```sh\n").skip(1);
    let code = blocks.filter_map(|rest| rest.split("```").next());
    let joined = code.collect::<String>().replace("\\\n", " ");
    joined.lines().map(|line| line.trim().to_owned()).collect()
}

/// Inline code with arguments, outside of blocks. A word in capitals stands for what the reader
/// fills in; in small letters it is read as a name.
fn inline(text: &str) -> Vec<String> {
    let outside = text.split("```").step_by(2).collect::<String>();
    let code = outside.split('`').skip(1).step_by(2);
    let shows_arguments = |code: &&str| code.contains(" --") && !code.contains('…');
    let filled_in = |word: &str| {
        if word.bytes().all(|byte| byte.is_ascii_uppercase()) {
            word.to_lowercase()
        } else {
            word.to_owned()
        }
    };
    let filled_in = |code: &str| code.split(' ').map(filled_in).collect::<Vec<_>>().join(" ");
    code.filter(shows_arguments).map(filled_in).collect()
}

/// The words of a command line of the program.
fn words(line: &str, program: &str) -> Option<Vec<String>> {
    let arguments = line.strip_prefix(program)?.strip_prefix(' ')?;
    let end = ENDS.iter().filter_map(|end| line.find(end)).min();
    let from = line.len() - arguments.len();
    let arguments = line.get(from..end.unwrap_or(line.len()))?;
    let given = arguments.split_whitespace().map(str::to_owned);
    Some([program.to_owned()].into_iter().chain(given).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_where_the_shell_goes_on() {
        let words = |line: &str| words(line, "tool").map(|words| words.join(" "));
        assert_eq!(
            words("tool a --b c | less"),
            Some("tool a --b c".to_owned())
        );
        assert_eq!(words("tool a   # why"), Some("tool a".to_owned()));
        assert_eq!(words("tool a && other b"), Some("tool a".to_owned()));
        assert_eq!(words("toolbox a"), None);
        assert_eq!(words("other tool a"), None);
    }

    #[test]
    fn each_command_of_a_line_is_found() {
        let in_line = |line| in_line(line).collect::<Vec<_>>();
        assert_eq!(in_line("a b | c && d; e"), ["a b", "c", "d", "e"]);
        assert_eq!(in_line("a b   # c; d"), ["a b"]);
        let text = "```sh\nother a | \\\n  tool b\n```\n";
        let found = commands(Path::new("a.md"), text, "tool");
        let words = ["tool", "b"].map(str::to_owned).to_vec();
        let expected = Shown {
            document: PathBuf::from("a.md"),
            words,
            is_whole: true,
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn blocks_and_inline_code_with_arguments_are_read() {
        let text = "Run `tool x --y FILE`, not `tool x` or `tool --z …`:\n```sh\ntool a \\\n  --b\n```\nand `tool c --d`.";
        assert_eq!(in_blocks(text), ["tool a    --b"]);
        assert_eq!(inline(text), ["tool x --y file", "tool c --d"]);
    }

    #[test]
    fn what_has_no_help_is_named() {
        let argument = clap::Arg::new("bare").long("bare");
        let inner = clap::Command::new("inner").about("a").arg(argument);
        let program = clap::Command::new("outer").subcommand(inner);
        assert_eq!(without_help(program), ["outer", "inner bare"]);
    }
}
