//! The lines of documents that run kubectl, against the help of a kubectl: each names a command and
//! flags that it has. Names of resources are the cluster's, and not looked at.

use crate::all_shown;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// What stands before a list of commands in the help of a command that has some of its own.
const COMMANDS: &str = "Available Commands:";
/// The command that prints the flags of all others.
const OPTIONS: &str = "options";

/// Checks all command lines of kubectl in the shell blocks and in the inline code of the documents,
/// and returns their number. `run` runs a kubectl with such arguments, and returns what it prints.
///
/// # Errors
/// A document cannot be read, kubectl fails (so it does for a command that it doesn't have), or a
/// line names a command or a flag that the help doesn't.
pub fn understood(run: impl FnMut(&[&str]) -> Result<String, String>) -> Result<usize, String> {
    let mut helps = Helps {
        run,
        texts: HashMap::new(),
    };
    let all = all_shown("kubectl")?;
    for shown in &all {
        // The first word is kubectl.
        let checked = helps.check(shown.words.get(1..).unwrap_or_default());
        checked.map_err(|why| shown.fault(&why))?;
    }
    Ok(all.len())
}

/// The help of the commands that were asked for: a program of this size starts slowly.
struct Helps<R> {
    run: R,
    texts: HashMap<String, String>,
}

impl<R: FnMut(&[&str]) -> Result<String, String>> Helps<R> {
    /// What kubectl prints for such a line.
    fn text(&mut self, line: String) -> Result<String, String> {
        let text = match self.texts.entry(line) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let words: Vec<&str> = new.key().split(' ').collect();
                let text = (self.run)(&words)?;
                new.insert(text)
            }
        };
        Ok(text.clone())
    }

    /// Looks for the command of a line and for its flags.
    fn check(&mut self, words: &[String]) -> Result<(), String> {
        let [command, rest @ ..] = words else {
            return Err("no command".to_owned());
        };
        let mut help = self.text(format!("{command} --help"))?;
        // Some commands work with and without one of their own, as `create -f`.
        if let Some(inner) = rest.first().filter(|word| !word.starts_with('-'))
            && help.contains(COMMANDS)
        {
            // Where there is no such command, kubectl prints the outer one's help.
            let text = self.text(format!("{command} {inner} --help"))?;
            if text == help {
                return Err(format!("{command} has no command {inner}"));
            }
            help = text;
        }
        let general = self.text(OPTIONS.to_owned())?;
        let flags: Vec<Flag> = flags(&help).chain(flags(&general)).collect();
        // Behind `--` begins the command of a container.
        let mut own = rest.iter().take_while(|word| *word != "--");
        match own.find(|word| !is_known(word, &flags)) {
            Some(word) => Err(format!("{command} has no flag {word}")),
            None => Ok(()),
        }
    }
}

/// A flag in a help, as in `-A, --all-namespaces=false:`.
struct Flag<'a> {
    short: Option<char>,
    long: &'a str,
    /// Whether it takes no value.
    is_switch: bool,
}

fn flags(help: &str) -> impl Iterator<Item = Flag<'_>> {
    help.lines().filter_map(|line| {
        let line = line.trim_start();
        let (short, long) = if let Some(long) = line.strip_prefix("--") {
            (None, long)
        } else {
            let (short, long) = line.strip_prefix('-')?.split_once(", --")?;
            (short.chars().next(), long)
        };
        let (long, default) = long.strip_suffix(':')?.split_once('=')?;
        Some(Flag {
            short,
            long,
            is_switch: ["true", "false"].contains(&default),
        })
    })
}

/// Whether a word is no flag, or one of these. `-it` is two switches, and in `-oyaml` a value
/// stands behind its flag.
fn is_known(word: &str, flags: &[Flag<'_>]) -> bool {
    if let Some(long) = word.strip_prefix("--") {
        let name = long.split('=').next().unwrap_or_default();
        return flags.iter().any(|flag| flag.long == name);
    }
    for letter in word.strip_prefix('-').unwrap_or_default().chars() {
        match flags.iter().find(|flag| flag.short == Some(letter)) {
            Some(flag) if flag.is_switch => {}
            Some(_) => return true,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &str = "Display resources.\n\nOptions:\n    -A, --all-namespaces=false:\n\tIf present.\n\n    -w, --watch=false:\n\tWatch.\n\n    -o, --output='':\n\tOutput format. One of: (json, --x).\n\n    --raw='':\n\tRaw URI.\n\nUsage:\n  kubectl get [options]\n";
    const TOP: &str = "Display usage.\n\nAvailable Commands:\n  node          Of nodes\n\nUsage:\n  kubectl top [flags] [options]\n";
    const TOP_NODE: &str = "Of nodes.\n\nOptions:\n    --sort-by='':\n\tSort.\n";
    const GENERAL: &str = "For all:\n\n    -n, --namespace='':\n\tThe scope.\n";

    fn check(line: &str) -> Result<(), String> {
        let run = |words: &[&str]| match words {
            ["get", "--help"] => Ok(GET.to_owned()),
            ["top", "node" | "nodes", "--help"] => Ok(TOP_NODE.to_owned()),
            ["top", .., "--help"] => Ok(TOP.to_owned()),
            ["options"] => Ok(GENERAL.to_owned()),
            _ => Err(format!("unknown command {}", words[0])),
        };
        let mut helps = Helps {
            run,
            texts: HashMap::new(),
        };
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        helps.check(&words)
    }

    #[test]
    fn commands_and_flags_of_the_help_are_understood() {
        for line in [
            "get pods",
            "get pods -A -o wide",
            "get pods -Aw -ojson --namespace=x -n x",
            "get --raw /metrics",
            "get -o -",
            "get pods -- --other -x",
            "top nodes --sort-by=cpu",
            "top",
        ] {
            assert_eq!(check(line), Ok(()), "{line}");
        }
    }

    #[test]
    fn a_misspelt_command_or_flag_is_a_fault() {
        for (line, why) in [
            ("got pods", "unknown command got"),
            ("top nodez", "top has no command nodez"),
            (
                "get pods --all-namespace",
                "get has no flag --all-namespace",
            ),
            ("get pods --sort-by=cpu", "get has no flag --sort-by=cpu"),
            ("get pods --x", "get has no flag --x"),
            ("get pods -Ax", "get has no flag -Ax"),
            ("get pods -p", "get has no flag -p"),
        ] {
            assert_eq!(check(line), Err(why.to_owned()), "{line}");
        }
    }
}
