//! The first master and its admin.

use super::{accepted, lab};
use config_attest::Refusal;
use config_attest::bootstrap::{self, AdminStatement, StatementError};
use config_attest::verifier::AttestedMachine;
use config_protocol::wire::{BOOTSTRAP_PROTOCOL, BootstrapHello, Der, Proof};
use config_protocol::{Code, Purpose};
use config_tpm::Digest;
use p256::pkcs8::EncodePublicKey as _;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use tests_machines::{EkKind, SeededRng, SoftImage, SoftMachine, World};

/// The admin's side knows the master's EK, image and configuration; the master stands ready.
fn first_master() -> (World, SoftMachine, BootstrapHello) {
    let mut world = World::new();
    world.image = SoftImage::new("master-7", "master", 7);
    world.releases = vec![
        world
            .image
            .manifest()
            .sign(&[&world.release_signer])
            .expect("a release"),
    ];
    world.rule.certificate.roles = vec!["master".to_owned()];
    let machine = world.machine("master-1", "192.168.77.10", EkKind::P384);
    "master".clone_into(&mut world.object("master-1").spec.role);
    let hello = BootstrapHello {
        protocol: BOOTSTRAP_PROTOCOL.to_owned(),
        cluster: "lab".to_owned(),
        root: Der::new(root(true)).expect("within the limit"),
        keys: Some(machine.keys()),
        claims: machine.claims.clone(),
    };
    (world, machine, hello)
}

fn root(ca: bool) -> Vec<u8> {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    if ca {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    params
        .self_signed(&key)
        .expect("a certificate")
        .der()
        .to_vec()
}

/// The whole exchange; `proved_root` is what the master's TPM vouched for.
fn attest(
    world: &World,
    machine: &SoftMachine,
    hello: &BootstrapHello,
    proved_root: &Der,
    change: impl FnOnce(&mut Proof),
) -> Result<AttestedMachine, Box<Refusal>> {
    let exporter = Digest::of(b"the admin's connection");
    let references = world.references();
    let (admitted, root) = bootstrap::check_hello(hello, &references.get(), exporter, world.now)?;
    let (pending, challenge) = bootstrap::challenge(admitted, &mut SeededRng::new("admin"))?;
    let proved = bootstrap::Root::from_der(proved_root.as_bytes()).expect("a root");
    let channel = proved.channel(exporter);
    let keys = machine.keys();
    let mut proof = machine.proof(
        Purpose::Bootstrap,
        &keys,
        proved.hash,
        &hello.claims,
        &challenge,
        &channel,
    );
    change(&mut proof);
    bootstrap::check(
        pending,
        &proof,
        &references.get(),
        &root,
        exporter,
        world.now,
    )
}

#[track_caller]
fn refused(code: Code, result: Result<AttestedMachine, Box<Refusal>>) {
    let (world, machine, hello) = first_master();
    attest(&world, &machine, &hello, &hello.root, |_| {}).expect("negative control");
    match result {
        Ok(attested) => panic!("accepted, expected {code}: {attested:?}"),
        Err(refusal) => assert_eq!(refusal.code(), code, "{refusal}"),
    }
}

#[test]
fn the_admin_attests_the_first_master_and_its_root() {
    let (world, machine, hello) = first_master();
    let attested = attest(&world, &machine, &hello, &hello.root, |_| {}).expect("a good master");
    let (proved, verdict) = bootstrap::proved(&attested);
    assert_eq!(proved.ek_hash, machine.ek_hash());
    assert_eq!(proved.image.id, "master-7");
    assert!(verdict.checks.iter().all(|check| check.ok));
}

#[test]
fn a_root_that_the_tpm_did_not_vouch_for_is_refused() {
    let (world, machine, hello) = first_master();
    let other = Der::new(root(true)).expect("within the limit");
    refused(
        Code::CsrHash,
        attest(&world, &machine, &hello, &other, |_| {}),
    );
}

#[test]
fn a_root_that_is_no_ca_is_refused() {
    let (world, machine, mut hello) = first_master();
    let good = hello.root.clone();
    hello.root = Der::new(root(false)).expect("within the limit");
    refused(
        Code::BootstrapRoot,
        attest(&world, &machine, &hello, &good, |_| {}),
    );
}

#[test]
fn a_wrong_master_is_refused() {
    let (world, mut machine, hello) = first_master();
    machine.boot(
        &SoftImage::new("master-6", "master", 6),
        "nocloud",
        b"version = 1\n",
    );
    let keys = BootstrapHello {
        keys: Some(machine.keys()),
        ..hello.clone()
    };
    refused(
        Code::ImageCommandLine,
        attest(&world, &machine, &keys, &hello.root, |_| {}),
    );

    let (world, machine, mut hello) = first_master();
    hello.cluster = "another".to_owned();
    refused(
        Code::BootstrapVerdict,
        attest(&world, &machine, &hello, &hello.root, |_| {}),
    );

    let (world, machine, mut hello) = first_master();
    hello.protocol = "cloud-verify/v1".to_owned();
    refused(
        Code::ProtocolVersion,
        attest(&world, &machine, &hello, &hello.root, |_| {}),
    );

    let (world, machine, mut hello) = first_master();
    hello.keys = None;
    refused(
        Code::EkTemplate,
        attest(&world, &machine, &hello, &hello.root, |_| {}),
    );

    let (world, machine, hello) = first_master();
    let zero = |proof: &mut Proof| proof.mac = Digest::ZERO;
    refused(
        Code::CredentialNotActivated,
        attest(&world, &machine, &hello, &hello.root, zero),
    );
}

/// The admin's statement about a master that booted with `config`.
fn statement(world: &World, machine: &SoftMachine, hello: &BootstrapHello) -> AdminStatement {
    let attested = attest(world, machine, hello, &hello.root, |_| {}).expect("a good master");
    AdminStatement {
        cluster: "lab".to_owned(),
        machine: "master-1".to_owned(),
        proved: Some(bootstrap::proved(&attested).0),
        ..AdminStatement::default()
    }
}

#[test]
fn the_statement_is_the_admins_and_of_this_cluster() {
    let (world, machine, hello) = first_master();
    let spki = world
        .admin
        .verifying_key()
        .to_public_key_der()
        .expect("a key");
    let admin = Digest::of(spki.as_bytes());
    let (bytes, signature) = statement(&world, &machine, &hello)
        .sign(&world.admin)
        .expect("a statement");
    assert!(AdminStatement::open(&bytes, &signature, &admin).is_ok());
    let mut changed = bytes.clone();
    let at = changed
        .windows(3)
        .position(|window| window == b"lab")
        .expect("the cluster's name");
    changed[at] = b'L';
    assert!(matches!(
        AdminStatement::open(&changed, &signature, &admin),
        Err(StatementError::Signature)
    ));
    let (bytes, signature) = statement(&world, &machine, &hello)
        .sign(&machine.ak)
        .expect("a statement");
    assert!(matches!(
        AdminStatement::open(&bytes, &signature, &admin),
        Err(StatementError::Signature)
    ));
}

#[test]
fn the_first_masters_own_configuration_is_the_one_that_the_admin_attested() {
    let (mut world, mut machine, hello) = first_master();
    let (bytes, signature) = statement(&world, &machine, &hello)
        .sign(&world.admin)
        .expect("a statement");
    // Its Machine cannot list the digest of its own configuration; the admin's verdict
    // replaces that.
    world.object("master-1").spec.config_digests.clear();
    super::expect(super::Proven, Code::ConfigChanged, world.join(&machine));
    let verdict = bootstrap::to_admin_verdict(&bytes, &signature);
    world
        .object("master-1")
        .status
        .get_or_insert_default()
        .admin_verdict = Some(verdict);
    accepted(world.join(&machine));
    // Not for another configuration, and not for another Machine.
    machine.boot(&world.image.clone(), "nocloud", b"changed");
    super::expect(super::Proven, Code::ConfigChanged, world.join(&machine));
    let (mut other_world, other) = lab();
    let verdict = world
        .object("master-1")
        .status
        .clone()
        .and_then(|status| status.admin_verdict);
    let object = other_world.object("worker-1");
    object.spec.config_digests.clear();
    object.status.get_or_insert_default().admin_verdict = verdict;
    super::expect(super::Proven, Code::ConfigChanged, other_world.join(&other));
}

#[test]
fn a_master_may_carry_its_own_listed_api_address() {
    let (mut world, machine, _) = first_master();
    let verified = accepted(world.join(&machine));
    assert!(
        verified
            .serving_names()
            .iter()
            .any(|name| name.to_string() == "IP:192.168.77.10")
    );
}
