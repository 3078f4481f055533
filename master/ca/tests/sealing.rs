//! Kept keys under a keeper whose seals depend on the machine's image: the migration to it,
//! interrupted at each step, and planted keys.
#![allow(
    clippy::unwrap_used,
    reason = "a test may stop at the first surprise, its helpers too"
)]

use master_ca::{Authority, Error, FileKeeper, Keeper, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;
use zeroize::Zeroizing;

/// Every file with a key.
const KEYS: [&str; 5] = [
    "root.key",
    "intermediate.key",
    "service-account.key",
    "discovery.key",
    "verdicts.key",
];

/// A keeper that seals like a TPM, without encryption: a seal names its floor. It fails after a
/// number of calls, like a power cut.
#[derive(Debug)]
struct Machine {
    /// Version of the image that runs.
    svn: u64,
    /// Floor of the machine's state; `None` for a machine from before boot policies.
    floor: Option<u64>,
    calls: AtomicUsize,
}

impl Machine {
    fn new(svn: u64, floor: Option<u64>) -> Self {
        Self::cut(svn, floor, usize::MAX)
    }

    fn cut(svn: u64, floor: Option<u64>, calls: usize) -> Self {
        let calls = AtomicUsize::new(calls);
        Self { svn, floor, calls }
    }

    fn live(&self) -> Result<()> {
        let one = |left: usize| left.checked_sub(1);
        let left = self
            .calls
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one);
        left.map(drop).map_err(|_dead| Error::Key("no power"))
    }
}

impl Keeper for Machine {
    fn name(&self) -> &'static str {
        "tpm"
    }

    fn cure(&self) -> &'static str {
        "with this test"
    }

    fn seal(&self, purpose: &str, secret: &[u8]) -> Result<Vec<u8>> {
        self.live()?;
        Ok(serde_json::to_vec(&(self.floor, purpose, secret)).unwrap())
    }

    fn open(&self, purpose: &str, kept: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        let floor = floor(kept);
        match self.floor {
            Some(_) if floor.is_none() => Err(Error::Key("UNBOUND")),
            None if floor.is_some() => Err(Error::Key("BOUND")),
            _ if floor > Some(self.svn) => Err(Error::Key("FLOOR")),
            _ => self.secret(purpose, kept),
        }
    }

    fn floor(&self) -> Result<Option<u64>> {
        self.live().map(|()| self.floor)
    }

    fn open_unbound(&self, purpose: &str, kept: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        if floor(kept).is_some() {
            return Err(Error::Key("BOUND"));
        }
        self.secret(purpose, kept)
    }
}

impl Machine {
    fn secret(&self, purpose: &str, kept: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        self.live()?;
        let (_, sealed_for, secret): (Option<u64>, String, Vec<u8>) =
            serde_json::from_slice(kept).unwrap();
        assert_eq!(sealed_for, purpose);
        Ok(Zeroizing::new(secret))
    }
}

fn floor(kept: &[u8]) -> Option<u64> {
    let (floor, _, _): (Option<u64>, String, Vec<u8>) = serde_json::from_slice(kept).unwrap();
    floor
}

/// The floor of a file's seal.
fn floor_of(path: &Path) -> Option<u64> {
    use base64::Engine as _;
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let secret = record["secret"].as_str().unwrap();
    floor(
        &base64::engine::general_purpose::STANDARD
            .decode(secret)
            .unwrap(),
    )
}

/// The secret in a file's seal.
fn secret_of(path: &Path) -> Vec<u8> {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let kept = STANDARD.decode(record["secret"].as_str().unwrap()).unwrap();
    let (_, _, secret): (Option<u64>, String, Vec<u8>) = serde_json::from_slice(&kept).unwrap();
    secret
}

fn floors(folder: &Path) -> Vec<Option<u64>> {
    let all = KEYS.map(|name| floor_of(&folder.join(name)));
    all.to_vec()
}

fn open(folder: &Path, keeper: impl Keeper + 'static) -> Result<Authority> {
    Authority::open(folder, "lab", Arc::new(keeper), SystemTime::now())
}

/// Uses every key of an authority once; returns their public halves.
fn used(authority: &Authority) -> Result<Vec<Vec<u8>>> {
    let accounts = authority.service_account_key()?;
    let log = authority.log_signer(SystemTime::now())?;
    Ok(vec![
        authority.root_spki(),
        authority.intermediates()[0].to_vec(),
        accounts.to_vec(),
        authority.discovery_spki()?,
        log.certificate().to_vec(),
    ])
}

/// An authority with every key; returns its folder and its public halves.
fn founded(keeper: impl Keeper + 'static) -> (tempfile::TempDir, Vec<Vec<u8>>) {
    let folder = tempfile::tempdir().unwrap();
    let known = used(&open(folder.path(), keeper).unwrap()).unwrap();
    (folder, known)
}

/// A folder from before there were lists.
fn before() -> (tempfile::TempDir, Vec<Vec<u8>>) {
    let (folder, known) = founded(Machine::new(3, None));
    std::fs::remove_file(folder.path().join("kept-keys.json")).unwrap();
    (folder, known)
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read(entry.path()).unwrap())
    });
    entries.collect()
}

#[test]
fn a_new_cluster_has_a_policy_on_each_key_from_its_first_start() {
    let (folder, known) = founded(Machine::new(3, Some(3)));
    assert_eq!(floors(folder.path()), [Some(3); 5]);
    let again = open(folder.path(), Machine::new(4, Some(3))).unwrap();
    assert_eq!((used(&again).unwrap(), again.kept_from()), (known, Some(3)));
}

#[test]
fn seals_without_a_policy_are_migrated_once_and_refused_afterwards() {
    let (folder, known) = before();
    let old = files(folder.path());
    let moved = open(folder.path(), Machine::new(3, Some(3))).unwrap();
    assert_eq!(
        (used(&moved).unwrap(), moved.kept_from()),
        (known.clone(), Some(3))
    );
    assert_eq!(floors(folder.path()), [Some(3); 5]);
    // The genuine keys in their old seals, which any system on the machine could open.
    for name in KEYS {
        let new = std::fs::read(folder.path().join(name)).unwrap();
        std::fs::write(folder.path().join(name), &old[name]).unwrap();
        let opened = open(folder.path(), Machine::new(3, Some(3))).and_then(|authority| {
            used(&authority)?;
            authority.begin_rotation(None, SystemTime::now())
        });
        assert!(
            matches!(opened, Err(Error::Key("UNBOUND"))),
            "{name}: {opened:?}"
        );
        std::fs::write(folder.path().join(name), new).unwrap();
    }
    // Removing the list does not make the folder look old either.
    std::fs::remove_file(folder.path().join("kept-keys.json")).unwrap();
    let opened = open(folder.path(), Machine::new(3, Some(3)));
    assert!(matches!(opened, Err(Error::Key("BOUND"))), "{opened:?}");
}

#[test]
fn a_raised_floor_shuts_the_older_image_out() {
    let (folder, known) = founded(Machine::new(3, Some(3)));
    // The update runs and is not admitted yet: the older image may still come back.
    drop(open(folder.path(), Machine::new(5, Some(3))).unwrap());
    assert_eq!(
        used(&open(folder.path(), Machine::new(3, Some(3))).unwrap()).unwrap(),
        known
    );
    let raised = open(folder.path(), Machine::new(5, Some(5))).unwrap();
    assert_eq!(used(&raised).unwrap(), known);
    assert_eq!(floors(folder.path()), [Some(5); 5]);
    // Whichever floor the older image is given.
    for given in [3, 5] {
        let opened = open(folder.path(), Machine::new(3, Some(given)));
        assert!(matches!(opened, Err(Error::Key("FLOOR"))), "{opened:?}");
    }
}

/// Interrupted at each call of the keeper, in both migrations: the next start opens the folder with
/// the same keys.
#[test]
fn an_interrupted_migration_loses_nothing_and_continues() {
    let moves = [(None, 3), (Some(3), 5)];
    for (from, to) in moves {
        let mut cuts = 0;
        loop {
            let (folder, known) = if from.is_some() {
                founded(Machine::new(5, from))
            } else {
                before()
            };
            let cut = open(folder.path(), Machine::cut(5, Some(to), cuts));
            let done = cut.is_ok();
            let next = open(folder.path(), Machine::new(5, Some(to)))
                .unwrap_or_else(|error| panic!("{from:?} cut after {cuts}: {error}"));
            assert_eq!(used(&next).unwrap(), known, "{from:?} cut after {cuts}");
            assert_eq!(floors(folder.path()), [Some(to); 5]);
            if done {
                break;
            }
            cuts += 1;
            assert!(cuts < 100, "it never ends");
        }
        assert!(cuts > 15, "{from:?} was cut {cuts} times only");
    }
}

/// An attacker with the folder or the TPM's hierarchy seals other keys, complete with their
/// certificates.
#[test]
fn a_planted_key_is_refused() {
    let keepers: [fn() -> Arc<dyn Keeper>; 2] = [
        || Arc::new(FileKeeper),
        || Arc::new(Machine::new(3, Some(3))),
    ];
    for name in KEYS {
        for (number, keeper) in keepers.iter().enumerate() {
            let at = |folder: &Path| Authority::open(folder, "lab", keeper(), SystemTime::now());
            let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            used(&at(folder.path()).unwrap()).unwrap();
            used(&at(elsewhere.path()).unwrap()).unwrap();
            std::fs::copy(elsewhere.path().join(name), folder.path().join(name)).unwrap();
            let opened = at(folder.path()).and_then(|authority| {
                used(&authority)?;
                authority.begin_rotation(None, SystemTime::now())
            });
            assert!(
                matches!(opened, Err(Error::Planted { .. })),
                "{name}, keeper {number}: {opened:?}"
            );
        }
    }
}

/// Tokens verify by these public keys, so that a planted one signs tokens of any account.
#[test]
fn a_planted_retired_key_is_refused() {
    use rcgen::PublicKeyData as _;
    let keeper = || Machine::new(3, Some(3));
    let (folder, _) = founded(keeper());
    let path = folder.path().join("service-account.retired.pem");
    let planted = rcgen::KeyPair::generate().unwrap();
    let planted = master_ca::pem("PUBLIC KEY", &planted.subject_public_key_info());
    let authority = open(folder.path(), keeper()).unwrap();
    std::fs::write(&path, &planted).unwrap();
    let found = authority.retired_service_account_keys();
    assert!(matches!(found, Err(Error::Planted { .. })), "{found:?}");
    std::fs::remove_file(&path).unwrap();
    // Beside a genuine one, which the master lists when it replaces it.
    authority.rotate_service_account_key().unwrap();
    let authority = open(folder.path(), keeper()).unwrap();
    assert_eq!(authority.retired_service_account_keys().unwrap().len(), 1);
    let genuine = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, genuine + &planted).unwrap();
    let found = authority.retired_service_account_keys();
    assert!(matches!(found, Err(Error::Planted { .. })), "{found:?}");
}

/// In a migration of an old folder, and when the floor rises, every key is compared with its known
/// public half.
#[test]
fn a_key_planted_before_a_migration_is_not_sealed_again() {
    let (elsewhere, _) = before();
    for name in ["root.key", "intermediate.key"] {
        let (folder, _) = before();
        std::fs::copy(elsewhere.path().join(name), folder.path().join(name)).unwrap();
        let opened = open(folder.path(), Machine::new(3, Some(3)));
        assert!(
            matches!(opened, Err(Error::Planted { .. })),
            "{name}: {opened:?}"
        );
        assert_eq!(floor_of(&folder.path().join(name)), None);
    }
    let (elsewhere, _) = founded(Machine::new(3, Some(3)));
    for name in &KEYS[..4] {
        let (folder, _) = founded(Machine::new(3, Some(3)));
        std::fs::copy(elsewhere.path().join(name), folder.path().join(name)).unwrap();
        let opened = open(folder.path(), Machine::new(4, Some(4)));
        assert!(
            matches!(opened, Err(Error::Planted { .. })),
            "{name}: {opened:?}"
        );
        assert_eq!(floor_of(&folder.path().join(name)), Some(3));
    }
}

/// Only a root in force can sign a list.
#[test]
fn a_list_that_no_root_signed_is_refused() {
    let (folder, _) = founded(Machine::new(3, Some(3)));
    let (elsewhere, _) = founded(Machine::new(3, Some(3)));
    let path = folder.path().join("kept-keys.json");
    let genuine = std::fs::read_to_string(&path).unwrap();
    let foreign = std::fs::read_to_string(elsewhere.path().join("kept-keys.json")).unwrap();
    let lowered = genuine.replace("floor\\\":3", "floor\\\":1");
    assert_ne!(lowered, genuine);
    for text in [foreign, lowered, "{}".to_owned(), String::new()] {
        std::fs::write(&path, &text).unwrap();
        let opened = open(folder.path(), Machine::new(3, Some(3)));
        assert!(
            matches!(opened, Err(Error::Damaged { .. })),
            "{text}: {opened:?}"
        );
    }
}

/// A root of an attacker's beside the cluster's own, as during a rotation: clients would be known
/// by it, too.
#[test]
fn a_root_beside_the_clusters_own_is_refused() {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::SigningKey as _;
    let keeper = || Machine::new(3, Some(3));
    let ((folder, _), (elsewhere, _)) = (founded(keeper()), founded(keeper()));
    let (at, from) = (folder.path(), elsewhere.path());
    std::fs::copy(from.join("root.crt"), at.join("root-9.crt")).unwrap();
    std::fs::copy(from.join("root.key"), at.join("root-9.key")).unwrap();
    let read = |folder: &Path| std::fs::read_to_string(folder.join("intermediate.crt")).unwrap();
    std::fs::write(at.join("intermediate.crt"), read(at) + &read(from)).unwrap();
    let state = serde_json::json!({
        "version": 1, "root": "root", "next": {"root": "root-9", "begun": 1},
        "intermediate": "intermediate", "last": 9,
    });
    std::fs::write(at.join("authority.json"), state.to_string()).unwrap();
    let opened = open(at, keeper());
    assert!(matches!(opened, Err(Error::Damaged { .. })), "{opened:?}");
    // With its signature beside the genuine one.
    let path = at.join("kept-keys.json");
    let mut list: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let text = list["list"].as_str().unwrap().as_bytes();
    let message = [&b"pratique kept keys/v1\0"[..], text].concat();
    let key = secret_of(&at.join("root-9.key"));
    let key = rcgen::KeyPair::try_from(key.as_slice()).unwrap();
    let signature = STANDARD.encode(key.sign(&message).unwrap());
    let signatures = list["signatures"].as_array_mut().unwrap();
    signatures.push(signature.into());
    std::fs::write(&path, list.to_string()).unwrap();
    let opened = open(at, keeper());
    assert!(matches!(opened, Err(Error::Planted { .. })), "{opened:?}");
}

#[test]
fn the_list_goes_with_the_root_and_with_the_keys_that_it_names() {
    let (folder, before) = founded(Machine::new(3, Some(3)));
    let authority = open(folder.path(), Machine::new(3, Some(3))).unwrap();
    let accounts = folder.path().join("service-account.key");
    let retired = std::fs::read(&accounts).unwrap();
    authority.rotate_service_account_key().unwrap();
    authority.begin_rotation(None, SystemTime::now()).unwrap();
    drop(open(folder.path(), Machine::new(3, Some(3))).unwrap());
    authority.finish_rotation().unwrap();
    let found = used(&open(folder.path(), Machine::new(3, Some(3))).unwrap()).unwrap();
    assert!(found[0] != before[0] && found[2] != before[2] && found[3] == before[3]);
    // The replaced key is no longer the cluster's.
    std::fs::write(accounts, retired).unwrap();
    let authority = open(folder.path(), Machine::new(3, Some(3))).unwrap();
    let opened = authority.service_account_key();
    assert!(matches!(opened, Err(Error::Planted { .. })), "{opened:?}");
}
