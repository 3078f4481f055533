//! The authority on disk: chains that verify, restarts, rotation, recovery.
#![allow(
    clippy::unwrap_used,
    reason = "a test may stop at the first surprise, its helpers too"
)]

use config_kube::identity::{MASTERS_GROUP, NODES_GROUP};
use master_ca::{ApprovedRequest, Authority, CertificateRequest, FileKeeper, profile, spki_hash};
use rcgen::{CertificateParams, DnType, KeyPair, PublicKeyData as _};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

fn open(folder: &std::path::Path, now: SystemTime) -> Authority {
    Authority::open(folder, "lab", Arc::new(FileKeeper), now).unwrap()
}

fn verify(
    authority: &Authority,
    chain: &[CertificateDer<'_>],
    usage: webpki::KeyUsage,
    at: SystemTime,
) -> bool {
    let root = authority.root();
    let root = webpki::anchor_from_trusted_cert(&root).unwrap();
    let leaf = webpki::EndEntityCert::try_from(&chain[0]).unwrap();
    let at = UnixTime::since_unix_epoch(at.duration_since(SystemTime::UNIX_EPOCH).unwrap());
    leaf.verify_for_usage(
        webpki::ALL_VERIFICATION_ALGS,
        &[root],
        &chain[1..],
        at,
        usage,
        None,
        None,
    )
    .is_ok()
}

fn admin_request() -> (KeyPair, Vec<u8>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "somebody else");
    params
        .distinguished_name
        .push(DnType::OrganizationName, NODES_GROUP);
    let der = params.serialize_request(&key).unwrap().der().to_vec();
    (key, der)
}

#[test]
fn leaves_chain_to_the_root_for_their_use_only() {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let authority = open(folder.path(), now);
    let serving = authority
        .make_serving(&["127.0.0.1".to_owned(), "api.example".to_owned()], now)
        .unwrap();
    let chain = serving.issued.chain();
    assert!(verify(
        &authority,
        &chain,
        webpki::KeyUsage::server_auth(),
        now
    ));
    assert!(!verify(
        &authority,
        &chain,
        webpki::KeyUsage::client_auth(),
        now
    ));
    let leaf = webpki::EndEntityCert::try_from(&chain[0]).unwrap();
    assert!(
        leaf.verify_is_valid_for_subject_name(&ServerName::try_from("127.0.0.1").unwrap())
            .is_ok()
    );
    assert!(
        leaf.verify_is_valid_for_subject_name(&ServerName::try_from("other.example").unwrap())
            .is_err()
    );
    let client = authority.make_kubelet_client(now).unwrap();
    assert!(verify(
        &authority,
        &client.issued.chain(),
        webpki::KeyUsage::client_auth(),
        now
    ));
}

#[test]
fn an_admins_subject_comes_from_the_profile_and_not_from_the_request() {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let authority = open(folder.path(), now);
    let (key, der) = admin_request();
    let request = CertificateRequest::from_der(&der).unwrap();
    let hash = spki_hash(&key.subject_public_key_info());
    let issued = authority.issue_admin(&request, &hash, now).unwrap();
    let (_, parsed) = X509Certificate::from_der(&issued.certificate).unwrap();
    assert_eq!(
        parsed.subject().to_string(),
        format!("O={MASTERS_GROUP}, CN=admin")
    );
    assert!(authority.issue_admin(&request, "sha256:00", now).is_err());
}

#[test]
fn a_restart_finds_the_same_root_and_intermediate() {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let first = open(folder.path(), now);
    let (pin, intermediate) = (first.pin(), first.intermediates());
    drop(first);
    let second = open(folder.path(), now);
    assert_eq!(second.pin(), pin);
    assert_eq!(second.intermediates(), intermediate);
}

#[test]
fn the_intermediate_rotates_and_old_leaves_stay_good() {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let authority = open(folder.path(), now);
    let before = authority.make_kubelet_client(now).unwrap();
    let old = authority.intermediates();
    assert!(!authority.renew_if_due(now).unwrap());
    let later = now + profile::INTERMEDIATE_LIFE / 2 + Duration::from_secs(1);
    assert!(authority.renew_if_due(later).unwrap());
    assert_ne!(authority.intermediates(), old);
    assert!(verify(
        &authority,
        &before.issued.chain(),
        webpki::KeyUsage::client_auth(),
        now
    ));
    let after = authority.make_kubelet_client(later).unwrap();
    assert!(verify(
        &authority,
        &after.issued.chain(),
        webpki::KeyUsage::client_auth(),
        later
    ));
    assert_eq!(
        open(folder.path(), later).intermediates(),
        authority.intermediates()
    );
}

#[test]
fn an_interrupted_rotation_is_repaired_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let pin = open(folder.path(), now).pin();
    std::fs::remove_file(folder.path().join("intermediate.crt")).unwrap();
    let authority = open(folder.path(), now);
    assert_eq!(authority.pin(), pin);
    let serving = authority
        .make_serving(&["a.example".to_owned()], now)
        .unwrap();
    assert!(verify(
        &authority,
        &serving.issued.chain(),
        webpki::KeyUsage::server_auth(),
        now
    ));
}

#[test]
fn a_lost_root_is_never_replaced_silently() {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    drop(open(folder.path(), now));
    std::fs::remove_file(folder.path().join("root.crt")).unwrap();
    let error = Authority::open(folder.path(), "lab", Arc::new(FileKeeper), now).unwrap_err();
    assert!(matches!(error, master_ca::Error::Damaged { .. }), "{error}");
}

#[test]
fn the_recovery_copy_gives_the_admin_the_root_key() {
    let folder = tempfile::tempdir().unwrap();
    let authority = open(folder.path(), SystemTime::now());
    let admin = KeyPair::generate().unwrap();
    let path = authority
        .write_recovery(&admin.subject_public_key_info())
        .unwrap();
    let file = std::fs::read_to_string(path).unwrap();
    let plain = master_ca::recovery::decrypt(&admin.serialize_pem(), &file).unwrap();
    let text = String::from_utf8(plain.to_vec()).unwrap();
    let root_key = KeyPair::from_pem(&text).unwrap();
    assert_eq!(root_key.subject_public_key_info(), authority.root_spki());
}

/// The copy of a machine with an encrypted state holds the state's key, too, and shows which root
/// it is of.
#[test]
fn the_recovery_copy_carries_the_states_key() {
    let folder = tempfile::tempdir().unwrap();
    let admin = KeyPair::generate().unwrap();
    let file = folder.path().join("state-recovery");
    let authority = open(folder.path(), SystemTime::now()).with_state_key(file.clone());
    let copy = || {
        let path = authority.write_recovery(&admin.subject_public_key_info())?;
        let text = std::fs::read_to_string(path).unwrap();
        let plain = master_ca::recovery::decrypt(&admin.serialize_pem(), &text)?;
        master_ca::recovery::Recovered::parse(&plain)
    };
    assert_eq!(copy().unwrap().state_key, None, "no encrypted state");
    std::fs::write(&file, "a7".repeat(32)).unwrap();
    let found = copy().unwrap();
    assert_eq!(found.state_key.as_deref(), Some(&[0xa7; 32]));
    assert_eq!(found.root_pins(), [authority.pin()]);
    assert!(found.keys.contains("PRIVATE KEY") && !found.keys.contains("STATE"));
    std::fs::write(&file, "a7".repeat(31)).unwrap();
    assert!(matches!(copy(), Err(master_ca::Error::Damaged { .. })));
}

/// A copy with the root's certificate and another key is not the cluster's: the certificate is
/// public.
#[test]
fn a_planted_copy_shows_no_root() {
    let folder = tempfile::tempdir().unwrap();
    let authority = open(folder.path(), SystemTime::now());
    let stranger = KeyPair::generate().unwrap();
    let text = format!("{}{}", stranger.serialize_pem(), authority.roots_pem());
    let found = master_ca::recovery::Recovered::parse(text.as_bytes()).unwrap();
    assert_eq!(found.root_pins(), Vec::<String>::new());
}

/// A keeper like another board's TPM, which can't open this board's seals.
#[derive(Debug)]
struct Board(u8);

impl master_ca::Keeper for Board {
    fn name(&self) -> &'static str {
        "tpm"
    }

    fn cure(&self) -> &'static str {
        "on its board"
    }

    fn seal(&self, _purpose: &str, secret: &[u8]) -> master_ca::Result<Vec<u8>> {
        Ok([&[self.0], secret].concat())
    }

    fn open(&self, _purpose: &str, kept: &[u8]) -> master_ca::Result<zeroize::Zeroizing<Vec<u8>>> {
        let opened = kept.strip_prefix(&[self.0]).map(<[u8]>::to_vec);
        opened
            .map(zeroize::Zeroizing::new)
            .ok_or(master_ca::Error::Key("sealed by another TPM"))
    }
}

#[test]
fn a_state_on_another_board_gets_its_keys_from_the_recovery_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (data, recovered) = (
        folder.path().join("ca"),
        folder.path().join("recovered.pem"),
    );
    let now = SystemTime::now();
    let on = |board| Authority::open(&data, "lab", Arc::new(Board(board)), now);
    let restore =
        |board| master_ca::restore(&data, "lab", &Board(board), &recovered, SystemTime::now());
    let old = on(1).unwrap();
    let admin = KeyPair::generate().unwrap();
    old.log_signer(now).unwrap();
    let path = old
        .write_recovery(&admin.subject_public_key_info())
        .unwrap();
    let (pin, accounts) = (old.pin(), old.service_account_key().unwrap());
    let copy = std::fs::read_to_string(path).unwrap();
    let plain = master_ca::recovery::decrypt(&admin.serialize_pem(), &copy).unwrap();

    assert!(on(2).is_err(), "the old board's TPM sealed them");
    assert!(!restore(2).unwrap(), "there is no file with keys");
    std::fs::write(&recovered, "").unwrap();
    assert!(!restore(2).unwrap(), "there are no keys in the file");
    let other = KeyPair::generate().unwrap().serialize_pem().repeat(3);
    std::fs::write(&recovered, other).unwrap();
    assert!(matches!(restore(2), Err(master_ca::Error::Restore(_))));
    assert!(
        recovered.exists() && on(1).is_ok(),
        "a refusal changes nothing"
    );

    // After a power cut before the last step, it is done again.
    for _ in 0..2 {
        std::fs::write(&recovered, &*plain).unwrap();
        assert!(restore(2).unwrap());
        assert!(!recovered.exists());
    }
    let new = on(2).unwrap();
    assert_eq!(new.pin(), pin);
    assert_eq!(new.service_account_key().unwrap(), accounts);
    new.log_signer(now).unwrap();
    new.write_recovery(&admin.subject_public_key_info())
        .unwrap();
    let issued = new.make_serving(&["127.0.0.1".to_owned()], now).unwrap();
    assert!(verify(
        &new,
        &issued.issued.chain(),
        webpki::KeyUsage::server_auth(),
        now
    ));
}

#[test]
fn an_approved_request_is_signed_for_its_key_and_no_longer_than_the_intermediate() {
    use config_kube::k8s_openapi::api::certificates::v1::{
        CertificateSigningRequest, CertificateSigningRequestCondition,
    };
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let authority = open(folder.path(), now);
    let (key, _) = admin_request();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "jane");
    let mut object = CertificateSigningRequest::default();
    object.spec.signer_name = "kubernetes.io/kube-apiserver-client".to_owned();
    object.spec.request.0 = params
        .serialize_request(&key)
        .unwrap()
        .pem()
        .unwrap()
        .into_bytes();
    object.spec.usages = Some(vec!["client auth".to_owned()]);
    object.status.get_or_insert_default().conditions =
        Some(vec![CertificateSigningRequestCondition {
            type_: "Approved".to_owned(),
            status: "True".to_owned(),
            ..Default::default()
        }]);
    let approved = ApprovedRequest::from_object(&object).unwrap().unwrap();
    let late = now + Duration::from_secs(100 * 86_400);
    let issued = authority.issue_approved(&approved, late).unwrap();
    assert!(verify(
        &authority,
        &issued.chain(),
        webpki::KeyUsage::client_auth(),
        late
    ));
    assert!(issued.not_after <= now + profile::INTERMEDIATE_LIFE);
    let (_, parsed) = X509Certificate::from_der(&issued.certificate).unwrap();
    assert_eq!(parsed.public_key().raw, key.subject_public_key_info());
}

#[test]
fn a_new_service_account_key_keeps_the_old_ones_public_half() {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let authority = open(folder.path(), now);
    let public = |authority: &Authority| {
        KeyPair::try_from(authority.service_account_key().unwrap().as_slice())
            .unwrap()
            .subject_public_key_info()
    };
    assert_eq!(
        authority.retired_service_account_keys().unwrap(),
        Vec::<Vec<u8>>::new()
    );
    let first = public(&authority);
    authority.rotate_service_account_key().unwrap();
    let second = public(&authority);
    assert_ne!(first, second);
    authority.rotate_service_account_key().unwrap();
    let authority = open(folder.path(), now);
    assert_eq!(
        authority.retired_service_account_keys().unwrap(),
        [first, second]
    );
    std::fs::write(
        folder.path().join("service-account.retired.pem"),
        "nonsense",
    )
    .unwrap();
    assert!(
        authority.retired_service_account_keys().unwrap().is_empty(),
        "explanation around nothing"
    );
}
