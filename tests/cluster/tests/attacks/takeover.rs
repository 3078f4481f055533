//! A fresh master and an attacker: between the admin and the master, and in the admin's place; and
//! a network that loses the answer to the takeover.

use crate::first_master::FirstMaster;
use crate::impostor::{Impostor, self_made};
use crate::wire::{Connection, Identity};
use config_attest::bootstrap::AdminStatement;
use config_protocol::Code;
use config_protocol::wire::{
    BOOTSTRAP_ADMIT_PATH, BOOTSTRAP_HELLO_PATH, Blob, BootstrapAdmit, BootstrapHello, Der,
};
use config_tpm::Digest;
use http::StatusCode;
use p256::ecdsa::SigningKey;
use p256::pkcs8::DecodePrivateKey as _;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{SystemTime, UNIX_EPOCH};
use tests_machines::{EkKind, SoftMachine};

/// An attacker's root, and a server's certificate under it.
fn own_root() -> (Vec<u8>, Identity) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let (key, server) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let root = params.self_signed(&key).unwrap().der().to_vec();
    let mut leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let leaf = leaf
        .signed_by(&server, &Issuer::new(params, key))
        .unwrap()
        .der()
        .to_vec();
    (
        root,
        Identity {
            chain: vec![leaf],
            key: server.serialize_der(),
        },
    )
}

/// The attacker passes on all messages of the admin and the master, except the root. In its place
/// it shows no root; or the master's, in which its own connection does not end; or its own, for
/// which the master's TPM does not vouch.
pub(crate) async fn no_attacker_between_the_admin_and_a_fresh_master_takes_it_over(
    first: &FirstMaster,
    ek: &str,
) {
    let (own, server) = own_root();
    let leaf = self_made("master-1");
    let none = leaf.chain[0].clone();
    let attacks = [
        (leaf.clone(), Some(none), Code::BootstrapRoot),
        (leaf, None, Code::MasterKey),
        (server, Some(own), Code::CsrHash),
    ];
    for (shown, root, code) in attacks {
        let (address, tls) = (first.address, first.anonymous().await);
        let between = Impostor::start(&shown, move |method, path, body| {
            let (tls, root) = (tls.clone(), root.clone());
            async move {
                let mut master = Connection::open(address, tls).await.unwrap();
                let answer = master.send(method, &path, body.to_vec()).await;
                let Some(root) = root.filter(|_| path == BOOTSTRAP_HELLO_PATH) else {
                    return answer.json.to_string().into_bytes();
                };
                let mut hello: BootstrapHello = serde_json::from_value(answer.json).unwrap();
                hello.root = Der::new(root).unwrap();
                serde_json::to_vec(&hello).unwrap()
            }
        })
        .await;
        first.failed(
            &first.bootstrap_at(between.address, ek, "user-data.toml"),
            code.as_str(),
        );
    }
}

/// A statement with its signature, the request beside it, and the code of the refusal.
type Verdict = ((Vec<u8>, Vec<u8>), Vec<u8>, Code);

/// Verdicts that are not the admin's, or not on this master.
fn verdicts(own: &AdminStatement, admin: &SigningKey, thief: &SoftMachine) -> Vec<Verdict> {
    let elsewhere = AdminStatement {
        cluster: "another".to_owned(),
        ..own.clone()
    };
    let another_root = AdminStatement {
        root_spki: Digest::of(b"another root"),
        ..own.clone()
    };
    let request = thief.client_csr();
    let changed = |(mut statement, signature): (Vec<u8>, Vec<u8>)| {
        *statement.last_mut().unwrap() = b' ';
        (statement, signature)
    };
    vec![
        (
            own.clone().sign(&thief.ak).unwrap(),
            request.clone(),
            Code::BootstrapVerdict,
        ),
        (
            elsewhere.sign(admin).unwrap(),
            request.clone(),
            Code::BootstrapVerdict,
        ),
        (
            another_root.sign(admin).unwrap(),
            request.clone(),
            Code::BootstrapVerdict,
        ),
        (
            changed(own.clone().sign(admin).unwrap()),
            request,
            Code::BootstrapVerdict,
        ),
        (
            own.clone().sign(admin).unwrap(),
            b"garbage".to_vec(),
            Code::CsrMalformed,
        ),
    ]
}

/// Statements that are not the admin's for this cluster, and a malformed request: all are refused,
/// and the master keeps waiting.
pub(crate) async fn nobody_else_takes_it(first: &FirstMaster) {
    let text = std::fs::read(first.at("admin.key")).unwrap();
    let der = PrivatePkcs8KeyDer::from_pem_slice(&text).unwrap();
    let admin = SigningKey::from_pkcs8_der(der.secret_pkcs8_der()).unwrap();
    let thief = SoftMachine::new("thief", EkKind::P256);
    let tls = first.anonymous().await;
    let mut master = Connection::open(first.address, tls).await.unwrap();
    let hello = master
        .send(http::Method::GET, BOOTSTRAP_HELLO_PATH, Vec::new())
        .await;
    let hello: BootstrapHello = serde_json::from_value(hello.json).unwrap();
    let (_, root) = x509_parser::parse_x509_certificate(hello.root.as_bytes()).unwrap();
    let own = AdminStatement {
        cluster: hello.cluster.clone(),
        machine: "master-1".to_owned(),
        node_name: "master-1".to_owned(),
        root_spki: Digest::of(root.public_key().raw),
        time: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs(),
        ..AdminStatement::default()
    };
    for ((statement, signature), request, code) in verdicts(&own, &admin, &thief) {
        let message = BootstrapAdmit {
            admin_csr: Der::new(request).unwrap(),
            statement: Blob::new(statement).unwrap(),
            signature: Blob::new(signature).unwrap(),
        };
        let answer = master.post(BOOTSTRAP_ADMIT_PATH, &message).await;
        let found = (answer.status, answer.json["code"].as_str());
        assert_eq!(
            found,
            (StatusCode::FORBIDDEN, Some(code.as_str())),
            "{:?}",
            answer.json
        );
    }
}

/// The address of a way to the master that loses the answer to the takeover: it cuts the connection
/// with the first bytes of the master's that come after the takeover was recorded. Later
/// connections are whole.
pub(crate) fn losing_the_answer(first: &FirstMaster) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (master, record) = (first.address, first.at("data/bootstrap.json"));
    std::thread::spawn(move || {
        let mut lost = false;
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(master).unwrap();
            pass(&client, &server, || {
                let cut = !lost && record.exists();
                lost |= cut;
                cut
            });
        }
    });
    address
}

/// Passes on what either end sends, until one of them ends or the connection is to be cut.
fn pass(client: &TcpStream, server: &TcpStream, mut is_cut: impl FnMut() -> bool) {
    let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    std::thread::spawn(move || {
        std::io::copy(&mut from, &mut to).ok();
        to.shutdown(Shutdown::Write).ok();
    });
    let (mut client, mut server) = (client, server);
    let mut piece = [0; 4096];
    while let Ok(length) = server.read(&mut piece)
        && length > 0
        && !is_cut()
        && client.write_all(&piece[..length]).is_ok()
    {}
    client.shutdown(Shutdown::Both).ok();
    server.shutdown(Shutdown::Both).ok();
}

/// The statement and its signature are in the master's Machine. Once the admin has used its
/// certificate, they get nobody another one: neither for a key of their own nor for the admin's.
pub(crate) async fn the_statement_of_the_takeover_opens_nothing(first: &FirstMaster) {
    let record = std::fs::read(first.at("data/bootstrap.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let admin = KeyPair::from_pem(&std::fs::read_to_string(first.at("admin.key")).unwrap());
    let copied = CertificateParams::default()
        .serialize_request(&admin.unwrap())
        .unwrap();
    let thief = SoftMachine::new("thief", EkKind::P256);
    let tls = first.anonymous().await;
    let mut master = Connection::open(first.address, tls).await.unwrap();
    for request in [thief.client_csr(), copied.der().to_vec()] {
        let message = BootstrapAdmit {
            admin_csr: Der::new(request).unwrap(),
            statement: serde_json::from_value(record["statement"].clone()).unwrap(),
            signature: serde_json::from_value(record["signature"].clone()).unwrap(),
        };
        let answer = master.post(BOOTSTRAP_ADMIT_PATH, &message).await;
        let found = (answer.status, answer.json["code"].as_str());
        let taken = (StatusCode::CONFLICT, Some("ALREADY_BOOTSTRAPPED"));
        assert_eq!(found, taken, "{:?}", answer.json);
    }
}
