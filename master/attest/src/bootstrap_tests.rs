//! The admission that took the cluster is answered again for a short time, and nothing else is.

use super::*;
use crate::fake_api::FakeApi;
use config_kube::machine::AdminVerdict;
use config_protocol::wire::Blob;
use http_body_util::BodyExt as _;
use master_ca::{FileKeeper, certificates_of_pem, spki_of};
use master_client::body;
use master_journal::VerdictLog;
use serde_json::Value;
use tests_machines::{EkKind, SoftMachine};

/// A master's keys, log and record, which outlive a restart, and the admin's key.
struct Lab {
    folder: tempfile::TempDir,
    authority: Arc<Authority>,
    log: Arc<VerdictLog>,
    admin: SoftMachine,
}

impl Lab {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (ca, now) = (folder.path().join("ca"), SystemTime::now());
        let authority = Authority::open(&ca, "lab", Arc::new(FileKeeper), now).unwrap();
        let signer = authority.log_signer(now).unwrap();
        let log = VerdictLog::open(&folder.path().join("log"), signer).unwrap();
        Self {
            folder,
            authority: Arc::new(authority),
            log: Arc::new(log),
            admin: SoftMachine::new("admin", EkKind::P256),
        }
    }

    /// The service after a start, whose configuration names this admin's key, before an API that
    /// has this Machine.
    fn start(&self, admin: &SoftMachine, machine: Option<Machine>) -> BootstrapService {
        let config = AttestationConfig {
            cluster: "lab".to_owned(),
            api_names: Vec::new(),
            release_keys: Vec::new(),
            ek_issuers: Vec::new(),
            policy: CertificatePolicySpec::default(),
            server_spki: Digest::of(b"the API's key"),
            bootstrap: BootstrapConfig {
                admin_key: Some(Digest::of(&admin.nk_spki())),
                record: self.folder.path().join("bootstrap.json"),
                ca_pin: None,
                attestor: None,
                name: "master-1".to_owned(),
                addresses: Vec::new(),
                configurations: None,
            },
            exchanges: 1,
            log: self.log.clone(),
        };
        let client = FakeApi::client(machine);
        let journal = Arc::new(Journal::new(self.log.clone(), client.clone()));
        BootstrapService::open(&config, self.authority.clone(), client, journal).unwrap()
    }

    /// The service of the admin, before an API without a Machine.
    fn service(&self) -> BootstrapService {
        self.start(&self.admin, None)
    }

    /// An admission by the admin, with a statement that is so many seconds old.
    fn admission(&self, age: u64) -> BootstrapAdmit {
        let statement = AdminStatement {
            cluster: "lab".to_owned(),
            machine: "master-1".to_owned(),
            root_spki: Digest::of(&self.authority.root_spki()),
            time: unix_seconds(SystemTime::now()) - age,
            ..AdminStatement::default()
        };
        let (statement, signature) = statement.sign(&self.admin.nk).unwrap();
        BootstrapAdmit {
            admin_csr: Der::new(self.admin.client_csr()).unwrap(),
            statement: Blob::new(statement).unwrap(),
            signature: Blob::new(signature).unwrap(),
        }
    }

    /// How often the log says that an admin's certificate was renewed.
    async fn renewals(&self) -> usize {
        let records = self.log.read().unwrap().collect().await.unwrap();
        let records = String::from_utf8(records.to_bytes().to_vec()).unwrap();
        let key = Digest::of(&self.admin.nk_spki()).to_text();
        records
            .lines()
            .filter(|record| record.contains("certificate was renewed") && record.contains(&key))
            .count()
    }
}

async fn sent(service: &BootstrapService, bytes: Vec<u8>) -> (StatusCode, Value) {
    let answer = service.admit(body(bytes)).await.into_response();
    let status = answer.status();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap())
}

async fn admit(service: &BootstrapService, message: &BootstrapAdmit) -> (StatusCode, Value) {
    sent(service, serde_json::to_vec(message).unwrap()).await
}

async fn is_admitted(lab: &Lab, service: &BootstrapService, message: &BootstrapAdmit) {
    let (status, answer) = admit(service, message).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let admitted: BootstrapAdmitted = serde_json::from_value(answer).unwrap();
    assert_eq!(admitted.ca_pin, lab.authority.pin());
    let chain = certificates_of_pem(&admitted.certificate);
    assert_eq!(spki_of(&chain[0]).unwrap(), lab.admin.nk_spki());
}

async fn is_taken(why: &str, service: &BootstrapService, message: &BootstrapAdmit) {
    let (status, answer) = admit(service, message).await;
    let code = answer["code"].as_str();
    assert_eq!(
        (status, code),
        (StatusCode::CONFLICT, Some("ALREADY_BOOTSTRAPPED")),
        "{why}: {answer}"
    );
}

#[tokio::test]
async fn an_admission_is_answered_again_also_after_a_restart_and_each_time_on_record() {
    let lab = Lab::new();
    let (service, message) = (lab.service(), lab.admission(5));
    is_admitted(&lab, &service, &message).await;
    assert_eq!(lab.renewals().await, 0);
    is_admitted(&lab, &service, &message).await;
    assert_eq!(lab.renewals().await, 1);
    is_admitted(&lab, &lab.service(), &message).await;
    assert_eq!(lab.renewals().await, 2);
    assert!(service.is_done() && lab.service().is_done());
}

#[tokio::test]
async fn no_other_admission_is_answered_once_the_cluster_is_taken() {
    let lab = Lab::new();
    let (service, message) = (lab.service(), lab.admission(5));
    is_admitted(&lab, &service, &message).await;
    let thief = SoftMachine::new("thief", EkKind::P256);
    let other = lab.admission(7);
    let csr = |der: Vec<u8>| BootstrapAdmit {
        admin_csr: Der::new(der).unwrap(),
        ..message.clone()
    };
    let mut unsigned = lab.admin.client_csr();
    *unsigned.last_mut().unwrap() ^= 1;
    let statement = BootstrapAdmit {
        statement: other.statement.clone(),
        ..message.clone()
    };
    let signature = BootstrapAdmit {
        signature: other.signature.clone(),
        ..message.clone()
    };
    for (why, changed) in [
        ("another's request", csr(thief.client_csr())),
        ("a request that the key did not sign", csr(unsigned)),
        ("no request", csr(b"garbage".to_vec())),
        ("another statement", statement),
        ("another signature", signature),
        ("another admission by the admin", other),
    ] {
        is_taken(why, &service, &changed).await;
        is_taken(why, &lab.service(), &changed).await;
    }
    let (status, answer) = sent(&service, b"{".to_vec()).await;
    assert_eq!(
        (status, answer["code"].as_str()),
        (StatusCode::CONFLICT, Some("ALREADY_BOOTSTRAPPED"))
    );
    assert_eq!(lab.renewals().await, 0);
    is_admitted(&lab, &service, &message).await;
}

#[tokio::test]
async fn an_admission_is_answered_again_for_ten_minutes_of_its_statement() {
    let lab = Lab::new();
    let (service, message) = (lab.service(), lab.admission(REPEAT_TIME + 1));
    is_admitted(&lab, &service, &message).await;
    is_taken("too late", &service, &message).await;
    is_taken("too late after a restart", &lab.service(), &message).await;
    assert_eq!(lab.renewals().await, 0);
}

#[tokio::test]
async fn an_admission_is_not_answered_again_once_the_admin_has_used_or_lost_the_cluster() {
    let lab = Lab::new();
    let message = lab.admission(5);
    is_admitted(&lab, &lab.service(), &message).await;
    let mut machine = Machine::default();
    let unused = lab.start(&lab.admin, Some(machine.clone()));
    is_admitted(&lab, &unused, &message).await;
    machine.status.get_or_insert_default().admin_verdict = Some(AdminVerdict::default());
    let used = lab.start(&lab.admin, Some(machine));
    is_taken("the admin has used its certificate", &used, &message).await;
    let heir = SoftMachine::new("heir", EkKind::P256);
    let named = lab.start(&heir, None);
    is_taken("the configuration names another", &named, &message).await;
    let by_heir = BootstrapAdmit {
        admin_csr: Der::new(heir.client_csr()).unwrap(),
        ..message.clone()
    };
    is_taken("by the other", &named, &by_heir).await;
    lab.authority
        .begin_rotation(None, SystemTime::now())
        .unwrap();
    is_taken("the root is rotated", &lab.service(), &message).await;
    assert_eq!(lab.renewals().await, 1);
}
