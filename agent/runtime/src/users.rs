//! Determines user and groups of a container's process: ids for the names in images, from the
//! image's own files.
//!
//! The files are read from the layers' directories on the host, without a mount. Nothing of the
//! image is trusted: symbolic links are not followed, sizes are bounded.

use crate::model::{ContainerSpec, GroupsPolicy, User};
use agent_containerd::{Error, ErrorClass};
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most bytes of a passwd or group file that are read.
const MAX_FILE: u64 = 1 << 20;
/// Most groups that a process gets from the image.
const MAX_GROUPS: usize = 1024;
/// The highest user or group id, as in pods' specs. To setresuid(2), `u32::MAX` means "no change":
/// the process would stay root.
const MAX_ID: u32 = i32::MAX.unsigned_abs();

/// User and group ids of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

impl Identity {
    /// User and groups of a container's first process: the pod's groups, and the image's by the
    /// pod's policy.
    pub(crate) fn user(&self, spec: &ContainerSpec) -> User {
        let mut groups = match spec.groups_policy {
            GroupsPolicy::Merge => self.groups.clone(),
            GroupsPolicy::Strict => vec![self.gid],
        };
        groups.extend(&spec.supplemental_groups);
        groups.sort_unstable();
        groups.dedup();
        User {
            uid: self.uid,
            gid: self.gid,
            groups,
        }
    }
}

/// User and group ids in the pod's spec.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestedIds {
    pub(crate) user: Option<u32>,
    pub(crate) group: Option<u32>,
}

/// The image's passwd and group files, as text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Accounts {
    pub(crate) passwd: String,
    pub(crate) group: String,
}

impl Accounts {
    /// Reads both files from the layers of a root file system that isn't mounted yet.
    pub(crate) fn read(layers: &[PathBuf]) -> Self {
        Self {
            passwd: read_in(layers, "passwd"),
            group: read_in(layers, "group"),
        }
    }

    /// The ids for the image's user (`name|uid[:group|gid]`) and the ids in the pod's spec, which
    /// take precedence.
    pub(crate) fn identity(
        &self,
        image_user: &str,
        requested: RequestedIds,
    ) -> Result<Identity, Error> {
        let (user, group) = match (requested.user, image_user.split_once(':')) {
            (Some(uid), _) => (uid.to_string(), None),
            (None, Some((user, group))) => (user.to_owned(), Some(group)),
            (None, None) => (image_user.to_owned(), None),
        };
        let account = self.account(if user.is_empty() { "0" } else { &user })?;
        let gid = match (requested.group, group) {
            (Some(gid), _) => gid,
            (None, Some(group)) if !group.is_empty() => self.group(group)?,
            (None, _) => account.gid,
        };
        for (what, id) in [("user", account.uid), ("group", gid)] {
            if id > MAX_ID {
                let text = format!("the {what} id would be {id}: {MAX_ID} is the highest");
                return Err(Error::new(ErrorClass::Config, text));
            }
        }
        let mut groups = vec![gid];
        if let Some(name) = &account.name {
            groups.extend(self.groups_of(name));
        }
        groups.sort_unstable();
        groups.dedup();
        Ok(Identity {
            uid: account.uid,
            gid,
            groups,
        })
    }

    fn account(&self, user: &str) -> Result<Account, Error> {
        let number = user.parse::<u32>().ok();
        let found = self
            .passwd
            .lines()
            .filter_map(Account::read)
            .find(|account| match number {
                Some(uid) => account.uid == uid,
                None => account.name.as_deref() == Some(user),
            });
        match (found, number) {
            (Some(account), _) => Ok(account),
            (None, Some(uid)) => Ok(Account {
                name: None,
                uid,
                gid: 0,
            }),
            (None, None) => Err(unknown("user", user)),
        }
    }

    /// Sets `HOME` for a process of this user in its specification, unless it is set. Without it
    /// the runtime reads the container's own passwd file, and blocks as long as that does.
    pub(crate) fn give_home(&self, uid: u32, specification: &mut Value) {
        let Some(all) = specification["process"]["env"].as_array_mut() else {
            return;
        };
        let is_home = |entry: &Value| entry.as_str().is_some_and(|text| text.starts_with("HOME="));
        if all.iter().any(is_home) {
            return;
        }
        let mut accounts = self.passwd.lines();
        let own = accounts.find(|line| Account::read(line).is_some_and(|one| one.uid == uid));
        let home = own.and_then(|line| line.split(':').nth(5));
        let home = home.filter(|home| home.starts_with('/') && !home.contains(char::is_control));
        all.push(format!("HOME={}", home.unwrap_or("/")).into());
    }

    fn group(&self, group: &str) -> Result<u32, Error> {
        if let Ok(gid) = group.parse() {
            return Ok(gid);
        }
        let find = |line: &str| {
            let mut fields = line.split(':');
            (fields.next() == Some(group))
                .then(|| fields.nth(1)?.parse().ok())
                .flatten()
        };
        self.group
            .lines()
            .find_map(find)
            .ok_or_else(|| unknown("group", group))
    }

    fn groups_of<'a>(&'a self, user: &'a str) -> impl Iterator<Item = u32> + 'a {
        let member = move |line: &'a str| {
            let mut fields = line.split(':');
            let gid = fields.nth(2)?.parse().ok()?;
            fields
                .next()?
                .split(',')
                .any(|name| name.trim() == user)
                .then_some(gid)
        };
        self.group
            .lines()
            .filter_map(member)
            .filter(|gid| *gid <= MAX_ID)
            .take(MAX_GROUPS)
    }
}

struct Account {
    name: Option<String>,
    uid: u32,
    gid: u32,
}

impl Account {
    fn read(line: &str) -> Option<Self> {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Self {
            name: Some(name),
            uid,
            gid,
        })
    }
}

fn unknown(what: &str, name: &str) -> Error {
    Error::new(
        ErrorClass::Config,
        format!("the image has no {what} named {name:?}: set runAsUser to a number"),
    )
}

/// The file `etc/<name>` of the topmost layer that has it; empty if none does.
fn read_in(layers: &[PathBuf], name: &str) -> String {
    layers
        .iter()
        .find_map(|layer| read_plain(&layer.join("etc"), name))
        .unwrap_or_default()
}

fn read_plain(dir: &Path, name: &str) -> Option<String> {
    if !dir.symlink_metadata().ok()?.is_dir() {
        return None;
    }
    let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK;
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits())
        .open(dir.join(name))
        .ok()?;
    if !file.metadata().ok()?.is_file() {
        return Some(String::new());
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const NOTHING_REQUESTED: RequestedIds = RequestedIds {
        user: None,
        group: None,
    };

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/:/bin/false\nbroken".into(),
            group: "root:x:0:\nweb:x:34:\nlogs:x:50:web,other\n".into(),
        }
    }

    #[test]
    fn an_image_without_user_runs_as_root() {
        assert_eq!(
            accounts().identity("", NOTHING_REQUESTED).unwrap(),
            Identity {
                uid: 0,
                gid: 0,
                groups: vec![0]
            }
        );
    }

    #[test]
    fn a_name_brings_its_groups() {
        assert_eq!(
            accounts().identity("web", NOTHING_REQUESTED).unwrap(),
            Identity {
                uid: 33,
                gid: 34,
                groups: vec![34, 50]
            }
        );
        assert_eq!(
            accounts()
                .identity("web:logs", NOTHING_REQUESTED)
                .unwrap()
                .gid,
            50
        );
    }

    #[test]
    fn ids_in_the_pods_spec_take_precedence() {
        let requested = RequestedIds {
            user: Some(1000),
            group: Some(7),
        };
        assert_eq!(
            accounts().identity("web", requested).unwrap(),
            Identity {
                uid: 1000,
                gid: 7,
                groups: vec![7]
            }
        );
    }

    /// To setresuid(2) this number means "no change", so that the process would stay root, also
    /// under `runAsNonRoot`.
    #[test]
    fn no_image_stays_root_by_a_number_that_means_no_change() {
        let last = "4294967295";
        let accounts = Accounts {
            passwd: format!("user:x:{last}:5::/:/bin/sh\ngroup:x:5:{last}::/:/bin/sh\n"),
            group: format!("all:x:{last}:plain\nfew:x:7:plain\n"),
        };
        let of = |user: &str| accounts.identity(user, NOTHING_REQUESTED);
        for user in [
            last,
            "2147483648",
            "user",
            "group",
            "5:all",
            &format!("5:{last}"),
        ] {
            let error = of(user).expect_err(user);
            assert_eq!(error.class, ErrorClass::Config, "{user}");
        }
        assert_eq!(of("2147483647:0").unwrap().uid, 2_147_483_647);
        let named = Accounts {
            passwd: "plain:x:5:5::/:/bin/sh".into(),
            ..accounts
        };
        assert_eq!(
            named.identity("plain", NOTHING_REQUESTED).unwrap().groups,
            [5, 7]
        );
    }

    #[test]
    fn every_process_has_a_home() {
        let home = |uid: u32, given: &[&str]| {
            let mut specification = json!({"process": {"env": given}});
            accounts().give_home(uid, &mut specification);
            let all = specification["process"]["env"].as_array().unwrap().clone();
            all.last().unwrap().as_str().unwrap().to_owned()
        };
        assert_eq!(home(0, &["A=b"]), "HOME=/root");
        assert_eq!(home(33, &[]), "HOME=/");
        assert_eq!(home(1000, &[]), "HOME=/");
        assert_eq!(home(0, &["HOME=/mine", "A=b"]), "A=b");
    }

    #[test]
    fn a_name_that_the_image_lacks_is_an_error() {
        assert_eq!(
            accounts()
                .identity("nobody", NOTHING_REQUESTED)
                .unwrap_err()
                .class,
            ErrorClass::Config
        );
    }

    #[test]
    fn the_topmost_layer_wins_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        for layer in ["up", "low"] {
            std::fs::create_dir_all(dir.path().join(layer).join("etc")).unwrap();
        }
        std::fs::write(dir.path().join("low/etc/passwd"), "low:x:1:1").unwrap();
        std::fs::write(dir.path().join("low/etc/group"), "low:x:1:").unwrap();
        std::fs::write(dir.path().join("up/etc/passwd"), "up:x:2:2").unwrap();
        std::os::unix::fs::symlink("/etc/group", dir.path().join("up/etc/group")).unwrap();
        let read = Accounts::read(&["up", "low"].map(|layer| dir.path().join(layer)));
        assert_eq!(read.passwd, "up:x:2:2");
        assert_eq!(read.group, "low:x:1:", "the link is passed over");
    }

    proptest! {
        #[test]
        fn no_file_content_panics(passwd in "\\PC{0,200}", group in "\\PC{0,200}", user in "\\PC{0,20}") {
            if let Ok(found) = (Accounts { passwd, group }).identity(&user, NOTHING_REQUESTED) {
                prop_assert!(found.groups.iter().chain([&found.uid]).all(|id| *id <= MAX_ID));
            }
        }
    }
}
