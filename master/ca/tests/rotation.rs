//! From one root to the next: which peers still verify each other, and the state after a power cut.
#![allow(
    clippy::unwrap_used,
    reason = "a test may stop at the first surprise, its helpers too"
)]

use master_ca::{
    Authority, Error, FileKeeper, Keeper, OwnCertificate, Result, RootPhase, certificates_of_pem,
    pem, spki_hash,
};
use rcgen::{KeyPair, PublicKeyData as _};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use zeroize::Zeroizing;

fn open(folder: &Path) -> Authority {
    Authority::open(folder, "lab", Arc::new(FileKeeper), SystemTime::now()).unwrap()
}

/// Whether a chain leads to a root, by webpki.
fn leads(chain: &[CertificateDer<'_>], root: &CertificateDer<'_>) -> bool {
    let root = webpki::anchor_from_trusted_cert(root).unwrap();
    let leaf = webpki::EndEntityCert::try_from(&chain[0]).unwrap();
    let (usage, now) = (webpki::KeyUsage::server_auth(), UnixTime::now());
    leaf.verify_for_usage(
        webpki::ALL_VERIFICATION_ALGS,
        &[root],
        &chain[1..],
        now,
        usage,
        None,
        None,
    )
    .is_ok()
}

/// The same by OpenSSL, if its command is installed. It may use the roots that the server shows.
fn leads_by_openssl(
    chain: &[CertificateDer<'_>],
    trusted: &[CertificateDer<'_>],
    shown: &[CertificateDer<'_>],
) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, all: &[CertificateDer<'_>]| {
        let path = folder.path().join(name);
        std::fs::write(
            &path,
            all.iter()
                .map(|der| pem("CERTIFICATE", der))
                .collect::<String>(),
        )
        .unwrap();
        path
    };
    let others: Vec<_> = chain[1..].iter().chain(shown).cloned().collect();
    let (trusted, others, leaf) = (
        write("trusted", trusted),
        write("others", &others),
        write("leaf", &chain[..1]),
    );
    let mut command = Command::new("openssl");
    command
        .args(["verify", "-purpose", "sslserver", "-CAfile"])
        .arg(trusted)
        .arg("-untrusted")
        .arg(others)
        .arg(leaf);
    match command.output() {
        Ok(output) => output.status.success(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => unreachable!("{error}"),
    }
}

fn serving(authority: &Authority) -> OwnCertificate {
    authority
        .make_serving(&["127.0.0.1".to_owned()], SystemTime::now())
        .unwrap()
}

#[test]
fn during_a_rotation_a_leaf_leads_to_both_roots_and_then_only_to_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let authority = open(folder.path());
    let (old, before) = (authority.root(), serving(&authority).issued.chain());
    let generation = authority.generation();
    authority.begin_rotation(None, SystemTime::now()).unwrap();
    assert_ne!(authority.generation(), generation);
    let [first, new] = authority.roots().try_into().unwrap();
    assert_eq!(first, old);
    assert_eq!(authority.pins().len(), 2);
    let during = serving(&authority).issued.chain();
    let both = [old.clone(), new.clone()];
    assert!(leads(&during, &old) && leads(&during, &new));
    assert!(
        leads_by_openssl(&during, &both[..1], &both) && leads_by_openssl(&during, &both, &both)
    );
    assert!(
        leads(&before, &old) && !leads(&before, &new),
        "what was signed before ends with the old root"
    );
    authority.finish_rotation().unwrap();
    assert_eq!(authority.roots(), std::slice::from_ref(&new));
    let after = serving(&authority).issued.chain();
    assert!(leads(&after, &new) && !leads(&after, &old));
    assert!(leads_by_openssl(&after, &both[1..], &both[1..]) && leads(&during, &new));
    let reopened = open(folder.path());
    assert_eq!(reopened.roots(), std::slice::from_ref(&new));
    assert!(leads(&serving(&reopened).issued.chain(), &new));
    for gone in [
        "root.key",
        "root.crt",
        "intermediate.key",
        "intermediate.crt",
    ] {
        assert!(!folder.path().join(gone).exists(), "{gone} is left");
    }
}

/// OpenSSL, if installed, refuses a bad chain: the control of the assertions above.
#[test]
fn another_root_is_refused() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (one, other) = (open(one.path()), open(other.path()));
    let chain = serving(&one).issued.chain();
    assert!(!leads(&chain, &other.root()));
    if Command::new("openssl").arg("version").output().is_ok() {
        assert!(!leads_by_openssl(&chain, &other.roots(), &[]));
    }
}

#[test]
fn a_rotation_is_begun_once_abandoned_and_begun_again() {
    let folder = tempfile::tempdir().unwrap();
    let authority = open(folder.path());
    let old = authority.root();
    assert!(
        matches!(authority.finish_rotation(), Err(Error::Rotation(_))),
        "nothing to finish"
    );
    assert!(
        matches!(authority.abandon_rotation(), Err(Error::Rotation(_))),
        "nothing to abandon"
    );
    authority.begin_rotation(None, SystemTime::now()).unwrap();
    assert!(
        matches!(
            authority.begin_rotation(None, SystemTime::now()),
            Err(Error::Rotation(_))
        ),
        "begun already"
    );
    let phases: Vec<RootPhase> = authority
        .roots_in_force()
        .unwrap()
        .iter()
        .map(|root| root.phase)
        .collect();
    assert_eq!(phases, [RootPhase::Old, RootPhase::New]);
    let abandoned = authority.roots()[1].clone();
    authority.abandon_rotation().unwrap();
    assert_eq!(
        (authority.roots(), authority.rotating_since()),
        (vec![old.clone()], None)
    );
    let chain = serving(&authority).issued.chain();
    assert!(leads(&chain, &old) && !leads(&chain, &abandoned));
    authority.begin_rotation(None, SystemTime::now()).unwrap();
    assert!(
        !authority.roots().contains(&abandoned),
        "another root, not the one that was given up"
    );
    authority.finish_rotation().unwrap();
    authority.begin_rotation(None, SystemTime::now()).unwrap();
    authority.finish_rotation().unwrap();
    assert!(
        leads(
            &serving(&open(folder.path())).issued.chain(),
            &authority.root()
        ),
        "any number of times"
    );
}

#[test]
fn the_intermediate_is_renewed_under_both_roots() {
    let folder = tempfile::tempdir().unwrap();
    let authority = open(folder.path());
    authority.begin_rotation(None, SystemTime::now()).unwrap();
    let before = serving(&authority).issued.chain();
    let due = authority.renewal_due();
    assert!(authority.renew_if_due(due).unwrap() && !authority.renew_if_due(due).unwrap());
    let later = authority
        .make_serving(&["127.0.0.1".to_owned()], due)
        .unwrap()
        .issued;
    assert_eq!(later.intermediates.len(), 2);
    assert!(authority.roots().iter().all(|root| leads(&before, root)));
    assert_eq!(
        open(folder.path()).intermediates(),
        authority.intermediates()
    );
}

#[test]
fn the_recovery_copy_holds_both_keys_before_either_changes() {
    let folder = tempfile::tempdir().unwrap();
    let authority = open(folder.path());
    let admin = KeyPair::generate().unwrap();
    authority
        .begin_rotation(Some(&admin.subject_public_key_info()), SystemTime::now())
        .unwrap();
    let file = std::fs::read_to_string(folder.path().join("recovery.json")).unwrap();
    let plain = master_ca::recovery::decrypt(&admin.serialize_pem(), &file).unwrap();
    let text = String::from_utf8(plain.to_vec()).unwrap();
    let keys: Vec<String> = text
        .split_inclusive("-----END PRIVATE KEY-----\n")
        .filter_map(|part| KeyPair::from_pem(part).ok())
        .map(|key| spki_hash(&key.subject_public_key_info()))
        .collect();
    assert_eq!(keys[..2], authority.pins()[..]);
    assert_eq!(
        certificates_of_pem(&text),
        authority
            .roots()
            .iter()
            .map(|der| der.to_vec())
            .collect::<Vec<_>>()
    );
}

/// A keeper that fails after a number of calls, like a power cut.
#[derive(Debug)]
struct FailingKeeper(AtomicUsize);

impl FailingKeeper {
    fn take_call(&self) -> Result<()> {
        let left = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        left.map(drop)
            .map_err(|_spent| Error::Key("the keeper fails"))
    }
}

impl Keeper for FailingKeeper {
    fn name(&self) -> &'static str {
        FileKeeper.name()
    }

    fn cure(&self) -> &'static str {
        FileKeeper.cure()
    }

    fn seal(&self, purpose: &str, secret: &[u8]) -> Result<Vec<u8>> {
        self.take_call()
            .and_then(|()| FileKeeper.seal(purpose, secret))
    }

    fn open(&self, purpose: &str, kept: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        self.take_call()
            .and_then(|()| FileKeeper.open(purpose, kept))
    }
}

/// A change, with the admin's public key.
type Act = fn(&Authority, &[u8]) -> Result<()>;

/// Each change, interrupted at each call of the keeper: the next start finds the complete old or
/// new state, and works.
#[test]
fn an_interrupted_change_is_done_completely_or_not_at_all() {
    let admin = KeyPair::generate().unwrap().subject_public_key_info();
    let acts: [(&str, bool, Act); 3] = [
        ("begin", false, |authority, admin| {
            authority.begin_rotation(Some(admin), SystemTime::now())
        }),
        ("finish", true, |authority, _| authority.finish_rotation()),
        ("abandon", true, |authority, _| authority.abandon_rotation()),
    ];
    for (name, rotating, act) in acts {
        let mut cuts = 0;
        loop {
            let folder = tempfile::tempdir().unwrap();
            let ready = open(folder.path());
            if rotating {
                ready.begin_rotation(None, SystemTime::now()).unwrap();
            }
            let before = ready.roots();
            // One call to open the intermediate's key, and then as many as this round allows.
            let keeper = Arc::new(FailingKeeper(AtomicUsize::new(1 + cuts)));
            let authority =
                Authority::open(folder.path(), "lab", keeper, SystemTime::now()).unwrap();
            let done = act(&authority, &admin).is_ok();
            let found = open(folder.path());
            assert_eq!(
                found.roots(),
                authority.roots(),
                "{name} cut after {cuts}: what is on disk is in force"
            );
            assert_eq!(done, found.roots() != before, "{name} cut after {cuts}");
            let chain = serving(&found).issued.chain();
            assert!(
                found.roots().iter().all(|root| leads(&chain, root)),
                "{name} cut after {cuts}"
            );
            if done {
                break;
            }
            act(&found, &admin).unwrap();
            cuts += 1;
            assert!(cuts < 20, "{name} never works");
        }
        assert!(cuts > 0, "{name} was never cut");
    }
}

#[test]
fn a_clock_before_the_keys_signs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let authority = open(folder.path());
    let back = |hours: u64| SystemTime::now() - Duration::from_secs(hours * 3600);
    assert!(
        authority
            .make_serving(&["127.0.0.1".to_owned()], back(2))
            .is_ok(),
        "off by a time zone"
    );
    let back = back(48);
    let error = authority
        .make_serving(&["127.0.0.1".to_owned()], back)
        .unwrap_err();
    assert!(
        matches!(error, Error::Clock) && error.to_string().contains("network.ntp"),
        "{error}"
    );
}

#[test]
fn an_admins_certificate_is_renewed_for_the_same_key_only() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (authority, foreign) = (open(folder.path()), open(elsewhere.path()));
    let now = SystemTime::now();
    let admin = authority.make_development_admin(now).unwrap();
    authority.begin_rotation(None, now).unwrap();
    let new = authority.pins()[1].clone();
    assert!(!authority.chain_leads_to(&admin.issued.chain(), &new));
    let fresh = authority.renew_admin(&admin.issued.chain(), now).unwrap();
    assert!(authority.chain_leads_to(&fresh.chain(), &new));
    assert_eq!(master_ca::spki_of(&fresh.certificate).unwrap(), admin.spki);
    let others = [
        foreign.make_development_admin(now).unwrap(),
        authority.make_kubelet_client(now).unwrap(),
    ];
    for other in others {
        assert!(matches!(
            authority.renew_admin(&other.issued.chain(), now),
            Err(Error::Request(_))
        ));
    }
    assert!(matches!(
        authority.renew_admin(&[], now),
        Err(Error::Request(_))
    ));
}

/// A client of another CA, which the configuration may accept, shows an intermediate of the cluster
/// beside its own leaf: a certificate of the cluster in the chain does not make the leaf the
/// cluster's.
#[test]
fn a_chain_is_verified_by_signatures_and_not_by_the_shown_certificates() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (authority, foreign) = (open(folder.path()), open(elsewhere.path()));
    let now = SystemTime::now();
    let (own, other) = (
        authority.make_development_admin(now).unwrap(),
        foreign.make_development_admin(now).unwrap(),
    );
    let (leaf, stranger) = (
        own.issued.certificate.clone(),
        other.issued.certificate.clone(),
    );
    let (ours, theirs) = (
        own.issued.intermediates[0].clone(),
        other.issued.intermediates[0].clone(),
    );
    let root = authority.root();
    let pin = authority.pin();
    let believed = |chain: &[CertificateDer<'_>]| {
        let renewed = authority.renew_admin(chain, now).is_ok();
        assert_eq!(
            renewed,
            authority.chain_leads_to(chain, &pin),
            "one answer to both"
        );
        renewed
    };
    assert!(believed(&[leaf.clone(), ours.clone()]), "the control");
    assert!(
        believed(&[leaf.clone(), theirs.clone(), ours.clone()]),
        "whatever is shown beside it"
    );
    for bad in [
        vec![stranger.clone(), theirs.clone(), ours.clone()],
        vec![stranger.clone(), ours.clone()],
        vec![stranger.clone(), ours.clone(), root.clone()],
        vec![stranger.clone(), leaf.clone(), ours.clone()],
        vec![stranger, theirs],
        vec![leaf.clone()],
        vec![leaf.clone(), root.clone()],
        vec![leaf, foreign.root()],
        vec![ours.clone(), root.clone()],
        vec![ours, root.clone(), root],
    ] {
        assert!(!believed(&bad), "{} certificates", bad.len());
    }
}
