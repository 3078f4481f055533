//! A private apt state: lists and caches of our own, so that the host's stay as they are.
//!
//! Guarantees: nothing under /var/lib/apt, /var/cache/apt or /var/lib/dpkg is read or written; of
//! the host's apt configuration only the network settings are used (proxies, retries, credentials).

use crate::lock::Locked;
use crate::mirror::{self, MirrorError, Source};
use crate::run::{RunError, output};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the host's apt is configured.
const HOST_APT: &str = "/etc/apt";

/// The parts of the host's `Acquire::` configuration that are used: network settings.
const TAKEN_OVER: [&str; 5] = [
    "Acquire::http",
    "Acquire::https",
    "Acquire::Retries",
    "Acquire::ForceIPv",
    "Acquire::Check-Valid-Until",
];

/// A package as apt resolved it from signed lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// SHA-256, hex, of the package file.
    pub sha256: String,
    /// Size in bytes.
    pub size: u64,
}

/// Why packages could not be resolved or downloaded.
#[derive(Debug, thiserror::Error)]
pub enum AptError {
    /// No mirror or keyring.
    #[error("cannot tell where packages come from")]
    Mirror(#[from] MirrorError),
    /// apt itself failed.
    #[error("apt could not {doing}")]
    Run {
        /// The operation.
        doing: &'static str,
        /// Its output.
        #[source]
        source: RunError,
    },
    /// The private state could not be written.
    #[error("cannot write apt's private state at {path}")]
    State {
        /// The path.
        path: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// apt's answer was not understood.
    #[error("apt's answer has an unexpected line: {line:?}")]
    Answer {
        /// The line.
        line: String,
    },
}

/// A private apt state in a folder.
#[derive(Debug)]
pub struct State {
    folder: PathBuf,
}

impl State {
    /// Makes the state's folders and configuration from the host's mirror; fetches nothing.
    ///
    /// # Errors
    /// The host has no apt, mirror or keyring, or the folders cannot be made.
    pub fn open(folder: &Path) -> Result<Self, AptError> {
        let sources = mirror::of_host(Path::new(HOST_APT))?;
        let keyring = mirror::keyring()?;
        let state = Self {
            folder: std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()),
        };
        for name in ["lists/partial", "archives/partial", "empty"] {
            let path = state.folder.join(name);
            std::fs::create_dir_all(&path).map_err(|source| state.fault(&path, source))?;
        }
        let taken =
            output(Command::new("apt-config").arg("dump")).map_err(|source| AptError::Run {
                doing: "show its configuration",
                source,
            })?;
        state.put("status", "")?;
        state.put("private.sources", &stanzas(&sources, keyring))?;
        state.put(
            "apt.conf",
            &state.configuration(&String::from_utf8_lossy(&taken)),
        )?;
        Ok(state)
    }

    fn fault(&self, path: &Path, source: std::io::Error) -> AptError {
        let path = if path.starts_with(&self.folder) {
            path
        } else {
            &self.folder
        };
        AptError::State {
            path: path.display().to_string(),
            source,
        }
    }

    fn put(&self, name: &str, text: &str) -> Result<(), AptError> {
        let path = self.folder.join(name);
        std::fs::write(&path, text).map_err(|source| self.fault(&path, source))
    }

    fn configuration(&self, host: &str) -> String {
        let at = self.folder.display();
        let mut text: String = host
            .lines()
            .filter(|line| TAKEN_OVER.iter().any(|start| line.starts_with(start)))
            .fold(String::new(), |text, line| text + line + "\n");
        let ours = [
            ("Dir::Etc::main", "/dev/null".to_owned()),
            ("Dir::Etc::parts", format!("{at}/empty")),
            ("Dir::Etc::sourcelist", format!("{at}/private.sources")),
            ("Dir::Etc::sourceparts", format!("{at}/empty")),
            ("Dir::Etc::preferences", "/dev/null".to_owned()),
            ("Dir::Etc::preferencesparts", format!("{at}/empty")),
            ("Dir::State", at.to_string()),
            ("Dir::State::lists", format!("{at}/lists")),
            ("Dir::State::status", format!("{at}/status")),
            ("Dir::Cache", at.to_string()),
            ("Dir::Cache::archives", format!("{at}/archives")),
            ("APT::Architecture", "amd64".to_owned()),
            ("APT::Install-Recommends", "false".to_owned()),
            ("APT::Sandbox::User", String::new()),
            ("Acquire::Languages", "none".to_owned()),
            ("Acquire::ForceHash", "SHA256".to_owned()),
        ];
        for (key, value) in ours {
            text.extend([key, " \"", &value, "\";\n"]);
        }
        text.push_str("APT::Architectures { \"amd64\"; };\n");
        text
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("APT_CONFIG", self.folder.join("apt.conf"))
            .env("LC_ALL", "C.UTF-8")
            .env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Whether lists have been fetched at some time.
    pub fn has_lists(&self) -> bool {
        std::fs::read_dir(self.folder.join("lists")).is_ok_and(|mut dir| {
            dir.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().contains("_Packages")))
        })
    }

    /// Fetches the archive's signed lists.
    ///
    /// # Errors
    /// The archive cannot be reached, or its lists are not signed by the keyring.
    pub fn update(&self) -> Result<(), AptError> {
        let mut command = self.command("apt-get");
        command.args(["update", "--error-on=any", "-q"]);
        output(&mut command).map_err(|source| AptError::Run {
            doing: "fetch the archive's lists",
            source,
        })?;
        Ok(())
    }

    /// The closure of `roots` over their dependencies, as if nothing were installed.
    ///
    /// # Errors
    /// A package is unknown to the archive, or cannot be installed with the others.
    pub fn resolve(&self, roots: &[String]) -> Result<Vec<Resolved>, AptError> {
        let mut command = self.command("apt-get");
        command
            .args([
                "install",
                "-qq",
                "--print-uris",
                "--no-install-recommends",
                "-y",
                "--",
            ])
            .args(roots);
        let answer = output(&mut command).map_err(|source| AptError::Run {
            doing: "resolve the packages",
            source,
        })?;
        String::from_utf8_lossy(&answer)
            .lines()
            .filter(|l| l.starts_with('\''))
            .map(parse_uri_line)
            .collect()
    }

    /// Downloads exact versions into `into`; apt checks them against the signed lists.
    ///
    /// # Errors
    /// The archive has not that version (any more), or it is not what the signed lists say.
    pub fn download(&self, wanted: &[Locked], into: &Path) -> Result<(), AptError> {
        let mut command = self.command("apt-get");
        command.current_dir(into).args(["download", "-qq", "--"]);
        let exact = |package: &Locked| format!("{}={}", package.name, package.version);
        command.args(wanted.iter().map(exact));
        output(&mut command).map_err(|source| AptError::Run {
            doing: "download the packages",
            source,
        })?;
        Ok(())
    }
}

fn stanzas(sources: &[Source], keyring: &str) -> String {
    let mut text = String::new();
    for Source { uri, suite } in sources {
        text.extend([
            "Types: deb\nURIs: ",
            uri,
            "\nSuites: ",
            suite,
            "\nComponents: main\nArchitectures: amd64\n",
        ]);
        text.extend(["Signed-By: ", keyring, "\n\n"]);
    }
    text
}

/// A line of `--print-uris`: `'URI' name_version_arch.deb size SHA256:hex`.
fn parse_uri_line(line: &str) -> Result<Resolved, AptError> {
    let fault = || AptError::Answer {
        line: line.to_owned(),
    };
    let mut words = line.split_whitespace().skip(1);
    let (Some(file), Some(size), Some(hash)) = (words.next(), words.next(), words.next()) else {
        return Err(fault());
    };
    let mut parts = file.split('_');
    let (Some(name), Some(version)) = (parts.next(), parts.next()) else {
        return Err(fault());
    };
    let sha256 = hash.strip_prefix("SHA256:").ok_or_else(fault)?;
    Ok(Resolved {
        name: name.to_owned(),
        version: version.replace("%3a", ":").replace("%3A", ":"),
        sha256: sha256.to_owned(),
        size: size.parse().map_err(|_e| fault())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolved_line_gives_name_version_and_digest() {
        let line = "'http://mirror.example/q.deb' qemu_1%3a10.0+ds-1_amd64.deb 42 SHA256:abcd";
        let expected = Resolved {
            name: "qemu".into(),
            version: "1:10.0+ds-1".into(),
            sha256: "abcd".into(),
            size: 42,
        };
        assert_eq!(parse_uri_line(line).unwrap(), expected);
        assert!(
            parse_uri_line("'http://mirror.example/q.deb' q_1_amd64.deb 42 MD5Sum:ab").is_err()
        );
    }

    #[test]
    fn of_the_hosts_configuration_only_the_network_is_taken_over() {
        let state = State {
            folder: PathBuf::from("/state"),
        };
        let text = state
            .configuration("Acquire::http::Proxy \"http://proxy.example\";\nAPT::Update::Post-Invoke:: \"rm x\";\n");
        assert!(text.contains("proxy.example"));
        assert!(!text.contains("Post-Invoke"));
        assert!(text.contains("Dir::State::status \"/state/status\";"));
    }
}
