//! The kernel's settings: written from the table that image, init and tests share, read back, and
//! proved.
//!
//! Only the value that the kernel reports afterwards counts. If a setting that protects the machine
//! is not in force, no service starts. The cause can only be a kernel for which this image was not
//! made, or a fault of the image.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use config_machine::kernel::{
    self, LOCKDOWN_STATE, Lockdown, PROOFS, Proof, SECURITY_MODULES, Sysctl, Weight,
};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

/// Where the kernel's settings are.
pub const SETTINGS: &str = "/proc/sys";

/// A setting that is not in force.
#[derive(Debug, thiserror::Error)]
pub enum NotInForce {
    /// The kernel doesn't have it, or refuses it.
    #[error("the kernel setting {path} can't be made {value:?} ({why})")]
    Refused {
        /// Its path below [`SETTINGS`].
        path: &'static str,
        /// What was wanted.
        value: String,
        /// What it is for.
        why: &'static str,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// The kernel accepted it, and shows another value.
    #[error("the kernel setting {path} is {found:?} and not {value:?} ({why})")]
    Differs {
        /// Its path below [`SETTINGS`].
        path: &'static str,
        /// What was wanted.
        value: String,
        /// What it is for.
        why: &'static str,
        /// The actual value.
        found: String,
    },
    /// A word of the command line had no effect.
    #[error("the kernel ignored `{word}` of its command line: {path} shows {found:?}")]
    Ignored {
        /// The word, as it is on the command line.
        word: &'static str,
        /// The file that would show it.
        path: &'static str,
        /// The actual value.
        found: String,
    },
    /// A security module of the kernel is not in force.
    #[error("the kernel runs without its security module {name} ({why}): it lists {found:?}")]
    NoModule {
        /// Its name.
        name: &'static str,
        /// What it is for.
        why: &'static str,
        /// The modules in force.
        found: String,
    },
    /// The command line asks for no lockdown that this program knows, or for two.
    #[error("the kernel's command line asks for no single `lockdown=`")]
    NoLockdown,
}

/// Writes one kernel setting below `settings`, and reads it back.
///
/// # Errors
/// The kernel doesn't have it, refuses it, or shows another value afterwards.
pub fn set<V: AsRef<str>>(settings: &Path, setting: &Sysctl<V>) -> Result<(), NotInForce> {
    let (path, why, value) = (setting.path, setting.why, setting.value.as_ref());
    let refused = |cause| NotInForce::Refused {
        path,
        value: value.to_owned(),
        why,
        cause,
    };
    let file = settings.join(path);
    // Opened without creating the file, so that a missing setting is an error.
    let written = File::options()
        .write(true)
        .truncate(true)
        .open(&file)
        .and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(refused)?;
    let found = fs::read_to_string(&file).map_err(refused)?;
    if kernel::same(&found, value) {
        return Ok(());
    }
    Err(NotInForce::Differs {
        path,
        value: value.to_owned(),
        why,
        found: found.trim().to_owned(),
    })
}

/// Writes a table of settings; returns those that are not in force afterwards, each with its
/// weight.
pub fn apply<V: AsRef<str>>(settings: &Path, table: &[Sysctl<V>]) -> Vec<(Weight, NotInForce)> {
    table
        .iter()
        .filter_map(|setting| Some((setting.weight, set(settings, setting).err()?)))
        .collect()
}

/// Writes the settings that are shares of the machine's memory, by what `info` (`/proc/meminfo`)
/// says of it; as [`apply`]. Without that the kernel's own values stay.
///
/// # Errors
/// `info` can't be read, or has no line `MemTotal` in kB. A setting that the kernel refuses is no
/// error but a part of the answer.
pub fn apply_shares(settings: &Path, info: &Path) -> io::Result<Vec<(Weight, NotInForce)>> {
    let text = fs::read_to_string(info)?;
    let kib = text.lines().find_map(|line| {
        let value = line.strip_prefix("MemTotal:")?.strip_suffix("kB")?;
        value.trim().parse::<u64>().ok()
    });
    let kib = kib.ok_or_else(|| io::Error::other("no line MemTotal"))?;
    Ok(apply(
        settings,
        &kernel::of_memory(kib.saturating_mul(1024)),
    ))
}

/// Checks that the kernel accepted the words of its command line, as far as it shows them, and that
/// the security modules are in force. Returns the lockdown mode. `root` is where `/sys` and its
/// securityfs are mounted.
///
/// # Errors
/// With the first word that had no effect, or the first module that is missing.
pub fn prove(root: &Path, command_line: &str) -> Result<Lockdown, NotInForce> {
    let read = |path: &str| {
        fs::read_to_string(root.join(path.trim_start_matches('/'))).unwrap_or_default()
    };
    for Proof { word, path, shows } in PROOFS {
        let found = read(path);
        if !found.split_ascii_whitespace().any(|word| word == shows) {
            return Err(NotInForce::Ignored {
                word,
                path,
                found: found.trim().to_owned(),
            });
        }
    }
    let modules = read(SECURITY_MODULES);
    if let Some(kernel::Module { name, why }) = kernel::missing_module(&modules) {
        return Err(NotInForce::NoModule {
            name,
            why,
            found: modules.trim().to_owned(),
        });
    }
    let wanted = kernel::lockdown_of(command_line).ok_or(NotInForce::NoLockdown)?;
    let found = read(LOCKDOWN_STATE);
    if kernel::is_locked_down(&found, wanted) {
        return Ok(wanted);
    }
    Err(NotInForce::Ignored {
        word: kernel::LOCKDOWN,
        path: LOCKDOWN_STATE,
        found: found.trim().to_owned(),
    })
}

/// The limits of a process that count what all processes of its user id have together: processes,
/// signals and timers that wait, messages in POSIX queues.
const OF_USERS: [Resource; 3] = [
    Resource::RLIMIT_NPROC,
    Resource::RLIMIT_SIGPENDING,
    Resource::RLIMIT_MSGQUEUE,
];

/// Lifts those for this process and all that it starts. Pods choose their user ids, and one could
/// use up what others of the same id have. Each pod has its own bounds instead: its control group
/// counts processes and, by their memory, signals; its IPC namespace counts queues.
///
/// # Errors
/// The kernel refuses, as it does without CAP_SYS_RESOURCE.
pub fn unbind_users() -> nix::Result<()> {
    lift(setrlimit)
}

/// `set` takes a limit, and both its values.
fn lift(mut set: impl FnMut(Resource, u64, u64) -> nix::Result<()>) -> nix::Result<()> {
    OF_USERS
        .into_iter()
        .try_for_each(|limit| set(limit, RLIM_INFINITY, RLIM_INFINITY))
}

#[cfg(test)]
mod tests {
    use super::{NotInForce, apply, apply_shares, lift, prove, set};
    use config_machine::kernel::{
        LAST, LOCKDOWN_STATE, Lockdown, PROOFS, SECURITY_MODULES, SYSCTLS, Weight, of_memory,
    };
    use nix::sys::resource::{RLIM_INFINITY, Resource};
    use std::fs;

    /// A fake kernel: plain files that keep what is written to them.
    fn kernel() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let shares = of_memory(0).map(|setting| setting.path);
        let fixed = SYSCTLS.iter().chain([&LAST]).map(|setting| setting.path);
        for path in fixed.chain(shares) {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "9999999\n").unwrap();
        }
        folder
    }

    #[test]
    fn the_whole_table_is_written() {
        let folder = kernel();
        assert!(apply(folder.path(), &SYSCTLS).is_empty());
        for setting in &SYSCTLS {
            assert_eq!(
                fs::read_to_string(folder.path().join(setting.path)).unwrap(),
                setting.value
            );
        }
    }

    #[test]
    fn shares_are_of_the_memory_that_the_machine_has() {
        let folder = kernel();
        let info = folder.path().join("meminfo");
        fs::write(&info, "MemTotal:        4194304 kB\nMemFree: 1 kB\n").unwrap();
        assert!(apply_shares(folder.path(), &info).unwrap().is_empty());
        for setting in of_memory(4 << 30) {
            let written = fs::read_to_string(folder.path().join(setting.path)).unwrap();
            assert_eq!(written, setting.value, "{}", setting.path);
        }
        for text in ["MemFree: 1 kB\n", "MemTotal: much kB\n"] {
            fs::write(&info, text).unwrap();
            assert!(apply_shares(folder.path(), &info).is_err(), "{text}");
        }
    }

    #[test]
    fn a_setting_that_the_kernel_lacks_is_reported_and_not_created() {
        let folder = kernel();
        let path = folder.path().join("kernel/kptr_restrict");
        fs::remove_file(&path).unwrap();
        let failed = apply(folder.path(), &SYSCTLS);
        let [
            (
                Weight::Guard,
                NotInForce::Refused {
                    path: "kernel/kptr_restrict",
                    ..
                },
            ),
        ] = failed.as_slice()
        else {
            panic!("{failed:?}");
        };
        assert!(!path.exists());
    }

    #[test]
    fn a_setting_that_reads_back_differently_is_reported() {
        // The null device accepts everything and reads as empty.
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("kernel")).unwrap();
        std::os::unix::fs::symlink("/dev/null", folder.path().join(LAST.path)).unwrap();
        let error = set(folder.path(), &LAST).unwrap_err();
        assert!(
            matches!(&error, NotInForce::Differs { found, .. } if found.is_empty()),
            "{error}"
        );
        assert!(
            error.to_string().contains("kernel/modules_disabled"),
            "{error}"
        );
    }

    #[test]
    fn an_ignored_word_of_the_command_line_is_reported() {
        let root = tempfile::tempdir().unwrap();
        let show = |path: &str, text: &str| {
            let path = root.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for proof in PROOFS {
            show(proof.path, &format!("{}\n", proof.shows));
        }
        show(SECURITY_MODULES, "capability,landlock,lockdown,yama\n");
        show(LOCKDOWN_STATE, "none integrity [confidentiality]\n");
        let line = "quiet lockdown=confidentiality";
        assert_eq!(prove(root.path(), line).unwrap(), Lockdown::Confidentiality);
        assert!(matches!(
            prove(root.path(), "quiet"),
            Err(NotInForce::NoLockdown)
        ));
        show(SECURITY_MODULES, "capability,lockdown,yama\n");
        let error = prove(root.path(), line).unwrap_err();
        assert!(
            matches!(
                error,
                NotInForce::NoModule {
                    name: "landlock",
                    ..
                }
            ),
            "{error}"
        );
        show(SECURITY_MODULES, "capability,landlock,lockdown,yama\n");
        show(LOCKDOWN_STATE, "none [integrity] confidentiality\n");
        assert!(matches!(
            prove(root.path(), line),
            Err(NotInForce::Ignored {
                word: "lockdown",
                ..
            })
        ));
        show(PROOFS[0].path, "N\n");
        let error = prove(root.path(), line).unwrap_err();
        assert!(
            error.to_string().contains("ignored `module.sig_enforce`"),
            "{error}"
        );
        assert!(prove(std::path::Path::new("/nonexistent"), line).is_err());
    }

    /// The story in a machine reads them in a pod; few hosts let a test raise its own.
    #[test]
    fn no_limit_counts_what_other_pods_of_a_user_id_have() {
        let mut lifted = Vec::new();
        let set = |limit, soft, hard| {
            lifted.push((limit, soft, hard));
            Ok(())
        };
        lift(set).unwrap();
        let wanted = [
            Resource::RLIMIT_NPROC,
            Resource::RLIMIT_SIGPENDING,
            Resource::RLIMIT_MSGQUEUE,
        ];
        assert_eq!(
            lifted,
            wanted.map(|limit| (limit, RLIM_INFINITY, RLIM_INFINITY))
        );
    }
}
