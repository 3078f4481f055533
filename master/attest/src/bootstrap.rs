//! The bootstrap: the admin attests this first master, then the master signs the admin's
//! certificate request. It happens once.
//!
//! Its answer may be lost on the way, and then nobody could use the cluster. So the master answers
//! the same admission again for a few minutes. Guarantee: only the holder of the admin's private
//! key gets anything by it, and nobody does once the admin has used its certificate.

use crate::answer::{self, BODY_TIME, ServiceAnswer};
use crate::error::Error;
use crate::settings::{AttestationConfig, BootstrapConfig};
use crate::time::unix_seconds;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_attest::bootstrap::AdminStatement;
use config_errors::chain;
use config_kube::policy::POLICY_NAME;
use config_kube::{CertificatePolicy, CertificatePolicySpec, Machine};
use config_protocol::Code;
use config_protocol::attestor::{EvidenceAnswer, EvidenceRequest, HelloAnswer, Request};
use config_protocol::wire::{
    BOOTSTRAP_PROTOCOL, BootstrapAdmit, BootstrapAdmitted, BootstrapHello, Challenge, Claims, Der,
    MAX_ADMIT_BODY, MAX_HELLO_BODY,
};
use config_tpm::Digest;
use http::StatusCode;
use master_ca::{Authority, CertificateRequest, IssuedCertificate};
use master_client::{ApiError, Body, Client};
use master_journal::Journal;
use master_listener::Peer;
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tokio::sync::{Mutex, Semaphore, watch};

/// Pause between two attempts to create the first policy.
const PAUSE: Duration = Duration::from_secs(1);

/// Proofs in progress at most: anyone may ask for one, and a TPM makes one after another.
const PROOFS: usize = 4;

/// Seconds after the statement's time within which its admission is answered again: enough for some
/// tries of the admin's tool, of up to two minutes each, and for a restart of the master.
const REPEAT_TIME: u64 = 600;

/// The record of the bootstrap on disk.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BootstrapRecord {
    version: u32,
    /// Base64 of the admin's statement.
    statement: String,
    /// Base64 of its signature.
    signature: String,
}

/// What the admin took the cluster with. The signature was verified before.
#[derive(Debug)]
struct Takeover {
    statement: Vec<u8>,
    signature: Vec<u8>,
    stated: AdminStatement,
}

impl Takeover {
    /// From the record; `None` where an older master wrote what this one cannot read.
    fn of(record: &BootstrapRecord) -> Option<Self> {
        let statement = STANDARD.decode(&record.statement).ok()?;
        Some(Self {
            stated: serde_json::from_slice(&statement).ok()?,
            signature: STANDARD.decode(&record.signature).ok()?,
            statement,
        })
    }
}

/// Answers the paths of the bootstrap.
#[derive(Debug)]
pub(crate) struct BootstrapService {
    cluster: String,
    config: BootstrapConfig,
    policy: CertificatePolicySpec,
    authority: Arc<Authority>,
    client: Client,
    journal: Arc<Journal>,
    /// The keys and claims of this machine. Its lock also makes admissions run one after another.
    shown: Mutex<Option<HelloAnswer>>,
    proofs: Semaphore,
    /// Set before `done`, where there is an admin key and the record can be read.
    takeover: OnceLock<Takeover>,
    done: watch::Sender<bool>,
}

impl BootstrapService {
    pub(crate) fn open(
        config: &AttestationConfig,
        authority: Arc<Authority>,
        client: Client,
        journal: Arc<Journal>,
    ) -> Result<Self, Error> {
        let own = &config.bootstrap;
        let record = read_record(&own.record)?;
        let done = own.admin_key.is_none() || record.is_some();
        let recorded = record.as_ref().and_then(Takeover::of);
        let service = Self {
            cluster: config.cluster.clone(),
            config: own.clone(),
            policy: config.policy.clone(),
            authority,
            client,
            journal,
            shown: Mutex::new(None),
            proofs: Semaphore::new(PROOFS),
            takeover: recorded.map_or_else(OnceLock::new, OnceLock::from),
            done: watch::Sender::new(done),
        };
        if done {
            service.write_pin()?;
        }
        Ok(service)
    }

    pub(crate) fn is_done(&self) -> bool {
        *self.done.borrow()
    }

    pub(crate) async fn done(&self) {
        // The sender lives as long as self.
        drop(self.done.subscribe().wait_for(|done| *done).await);
    }

    /// `GET /bootstrap/v1/hello`.
    pub(crate) async fn hello(&self) -> ServiceAnswer {
        if self.is_done() {
            return taken();
        }
        let shown = match self.show().await {
            Ok(shown) => shown,
            Err(error) => return unanswered(&error),
        };
        let (keys, claims) = match shown {
            Some(HelloAnswer { keys, claims }) => (Some(keys), claims),
            None => (None, self.claims()),
        };
        let Ok(root) = Der::new(self.authority.root().to_vec()) else {
            return ServiceAnswer::unavailable("the root certificate is too long for the protocol");
        };
        ServiceAnswer::json(&BootstrapHello {
            protocol: BOOTSTRAP_PROTOCOL.to_owned(),
            cluster: self.cluster.clone(),
            root,
            keys,
            claims,
        })
    }

    /// `POST /bootstrap/v1/challenge`.
    pub(crate) async fn challenge(&self, incoming: Body, peer: &Peer) -> ServiceAnswer {
        if self.is_done() {
            return taken();
        }
        let challenge: Challenge = match answer::read(incoming, MAX_HELLO_BODY, BODY_TIME).await {
            Ok(challenge) => challenge,
            Err(answer) => return answer,
        };
        let Some(exporter) = peer.exporter.map(Digest) else {
            return ServiceAnswer::problem(
                Code::Channel,
                "bootstrap needs a TLS 1.3 connection of its own",
            );
        };
        let Ok(_turn) = self.proofs.try_acquire() else {
            return ServiceAnswer::problem(
                Code::RateLimited,
                "this machine's TPM is busy with other proofs; try again",
            );
        };
        match self.prove(challenge, exporter).await {
            Ok(Some(EvidenceAnswer { proof })) => ServiceAnswer::json(&proof),
            Ok(None) => ServiceAnswer::of(
                StatusCode::NOT_IMPLEMENTED,
                "NO_TPM",
                "this master has no TPM to prove itself with",
            ),
            Err(error) => unanswered(&error),
        }
    }

    /// `POST /bootstrap/v1/admit`.
    pub(crate) async fn admit(&self, incoming: Body) -> ServiceAnswer {
        // After that time a body is not even read.
        if self.is_done() && self.repeatable().is_none() {
            return taken();
        }
        let admit: BootstrapAdmit = match answer::read(incoming, MAX_ADMIT_BODY, BODY_TIME).await {
            Ok(admit) => admit,
            Err(_) if self.is_done() => return taken(),
            Err(answer) => return answer,
        };
        let _one_at_a_time = self.shown.lock().await;
        if self.is_done() {
            return self.admit_again(&admit).await.unwrap_or_else(taken);
        }
        let Some(admin_key) = self.config.admin_key else {
            return taken();
        };
        let refuse = |why: &str| ServiceAnswer::problem(Code::BootstrapVerdict, why);
        let (statement, signature) = (admit.statement.as_bytes(), admit.signature.as_bytes());
        let stated = match AdminStatement::open(statement, signature, &admin_key) {
            Ok(stated) => stated,
            Err(error) => return refuse(&error.to_string()),
        };
        if stated.cluster != self.cluster
            || stated.root_spki != Digest::of(&self.authority.root_spki())
        {
            return refuse("the statement is about another cluster or another root");
        }
        let request = match CertificateRequest::from_der(admit.admin_csr.as_bytes()) {
            Ok(request) => request,
            Err(error) => return ServiceAnswer::problem(Code::CsrMalformed, &chain(&error)),
        };
        let issued =
            match self
                .authority
                .issue_admin(&request, &admin_key.to_text(), SystemTime::now())
            {
                Ok(issued) => issued,
                Err(error) => return ServiceAnswer::problem(Code::CsrKey, &chain(&error)),
            };
        let takeover = Takeover {
            statement: statement.to_vec(),
            signature: signature.to_vec(),
            stated,
        };
        if let Err(error) = self.take(&request.spki, takeover).await {
            tracing::error!(error = %chain(&error), "the bootstrap could not be recorded");
            return ServiceAnswer::unavailable(
                "the master could not record the bootstrap; see its log",
            );
        }
        tracing::info!(
            admin = admin_key.to_text(),
            "bootstrapped: the cluster is the admin's"
        );
        self.admitted(&issued)
    }

    fn admitted(&self, issued: &IssuedCertificate) -> ServiceAnswer {
        ServiceAnswer::json(&BootstrapAdmitted {
            certificate: issued.chain_pem(),
            roots: self.authority.roots_pem(),
            ca_pin: self.authority.pin(),
        })
    }

    /// The recorded takeover, as long as its admission may be answered again: for a short time, and
    /// only under the root that the admin accepted, as a rotation may be meant to shut out someone
    /// who has the key.
    fn repeatable(&self) -> Option<&Takeover> {
        let takeover = self.takeover.get()?;
        let now = unix_seconds(SystemTime::now());
        let is_recent = now.abs_diff(takeover.stated.time) <= REPEAT_TIME;
        let has_its_root = || self.authority.pins() == [takeover.stated.root_spki.to_text()];
        (is_recent && has_its_root()).then_some(takeover)
    }

    /// The answer to the admission that took the cluster, once more; `None` for any other, and once
    /// the admin has used its certificate. The statement is no secret: the signature of the
    /// certificate request proves that the caller holds the admin's key. As with a renewal, the
    /// certificate is a new one, and leaves the master after its record is on disk.
    async fn admit_again(&self, admit: &BootstrapAdmit) -> Option<ServiceAnswer> {
        let takeover = self.repeatable()?;
        let (statement, signature) = (admit.statement.as_bytes(), admit.signature.as_bytes());
        if takeover.statement != statement || takeover.signature != signature {
            return None;
        }
        let admin_key = self.config.admin_key?;
        // Since the record was made, the machine may have come up with another admin's key.
        AdminStatement::open(statement, signature, &admin_key).ok()?;
        let request = CertificateRequest::from_der(admit.admin_csr.as_bytes()).ok()?;
        let (key, now) = (admin_key.to_text(), SystemTime::now());
        let issued = self.authority.issue_admin(&request, &key, now).ok()?;
        match self.has_been_used(&takeover.stated.machine).await {
            Ok(false) => {}
            Ok(true) => return None,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the bootstrap cannot be answered again now");
                return Some(ServiceAnswer::unavailable("the API does not answer yet"));
            }
        }
        if let Err(error) = self.journal.admin_renewed("admin", &key).await {
            tracing::error!(error = %chain(&error), "the admin's certificate could not be recorded");
            return Some(ServiceAnswer::unavailable(
                "the master could not record the certificate; see its log",
            ));
        }
        tracing::warn!(admin = key, "the bootstrap was answered once more");
        Some(self.admitted(&issued))
    }

    /// Whether the admin has used its certificate: its verdict is then in this master's Machine,
    /// where it outlives a restart and a clock that is set back.
    async fn has_been_used(&self, machine: &str) -> Result<bool, ApiError> {
        let machine = self.client.get_opt::<Machine>(None, machine).await?;
        let status = machine.and_then(|machine| machine.status);
        Ok(status.is_some_and(|status| status.admin_verdict.is_some()))
    }

    /// Takes a Machine from the API: this master's own Machine lists the configurations with which
    /// its machine may boot.
    pub(crate) fn machine_is(&self, machine: &Machine) {
        if let Some(configurations) = &self.config.configurations
            && let Some(takeover) = self.takeover.get()
            && machine.metadata.name.as_ref() == Some(&takeover.stated.machine)
        {
            configurations.follow(machine);
        }
    }

    /// Seeds the policy from the configuration, and tries again until the API accepts it.
    pub(crate) async fn seed_until_done(&self) {
        while let Err(error) = self.seed().await {
            tracing::warn!(error = %chain(&error), "the configuration's policy could not be written; trying again");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Creates the first policy; an existing one stays, because after that the API decides.
    async fn seed(&self) -> Result<(), Error> {
        if self.policy.rules.is_empty() {
            return Ok(());
        }
        let policy = CertificatePolicy::named(POLICY_NAME, self.policy.clone());
        match self.client.create(&policy).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_already_exists() => Ok(()),
            Err(source) => Err(Error::Api {
                what: "the CertificatePolicy",
                source,
            }),
        }
    }

    /// Writes the recovery copy, then the record that makes the bootstrap final, then the pins and
    /// the first policy.
    async fn take(&self, admin_spki: &[u8], takeover: Takeover) -> Result<(), Error> {
        let (authority, spki) = (self.authority.clone(), admin_spki.to_vec());
        let copied = tokio::task::spawn_blocking(move || authority.write_recovery(&spki))
            .await
            .map_err(Error::Task)?;
        let copy = copied.map_err(Error::Issue)?;
        tracing::info!(path = %copy.display(), "the recovery copy was written for the admin's key");
        let record = BootstrapRecord {
            version: 1,
            statement: STANDARD.encode(&takeover.statement),
            signature: STANDARD.encode(&takeover.signature),
        };
        write_record(&self.config.record, &record)?;
        self.write_pin()?;
        drop(self.takeover.set(takeover));
        // The API answers from here on, and the first policy can be written.
        self.done.send_replace(true);
        if let Err(error) = self.seed().await {
            tracing::warn!(error = %chain(&error), "the configuration's policy is written later");
        }
        Ok(())
    }

    /// Writes the roots' pins, one a line, for the agent of this machine.
    pub(crate) fn write_pin(&self) -> Result<(), Error> {
        let Some(path) = &self.config.ca_pin else {
            return Ok(());
        };
        write_whole(
            path,
            format!("{}\n", self.authority.pins().join("\n")).as_bytes(),
        )
    }

    /// The claims of a machine without a TPM, from the configuration.
    fn claims(&self) -> Claims {
        Claims {
            name: self.config.name.clone(),
            role: "master".to_owned(),
            addresses: self.config.addresses.clone(),
            ..Claims::default()
        }
    }

    /// The machine's keys and claims from the attestor. They stay the same while the machine runs,
    /// so it is asked once.
    async fn show(&self) -> Result<Option<HelloAnswer>, Error> {
        let Some(attestor) = self.config.attestor.clone() else {
            return Ok(None);
        };
        let mut shown = self.shown.lock().await;
        if shown.is_none() {
            let ask =
                tokio::task::spawn_blocking(move || attestor.call::<HelloAnswer>(&Request::Hello));
            *shown = Some(ask.await.map_err(Error::Task)?.map_err(Error::Attestor)?);
        }
        Ok(shown.clone())
    }

    async fn prove(
        &self,
        challenge: Challenge,
        exporter: Digest,
    ) -> Result<Option<EvidenceAnswer>, Error> {
        let (Some(attestor), Some(shown)) = (self.config.attestor.clone(), self.show().await?)
        else {
            return Ok(None);
        };
        let request = Request::Evidence(Box::new(EvidenceRequest {
            csr_hash: Digest::of(&self.authority.root()),
            claims: shown.claims,
            challenge,
            server_spki: Digest::of(&self.authority.root_spki()),
            exporter,
        }));
        let ask = tokio::task::spawn_blocking(move || attestor.call::<EvidenceAnswer>(&request));
        ask.await
            .map_err(Error::Task)?
            .map_err(Error::Attestor)
            .map(Some)
    }
}

fn taken() -> ServiceAnswer {
    ServiceAnswer::of(
        StatusCode::CONFLICT,
        "ALREADY_BOOTSTRAPPED",
        "this cluster was taken over by its admin before",
    )
}

fn unanswered(error: &Error) -> ServiceAnswer {
    tracing::error!(error = %chain(error), "this machine's TPM cannot attest; bootstrap is impossible");
    ServiceAnswer::unavailable(&chain(error))
}

fn read_record(path: &Path) -> Result<Option<BootstrapRecord>, Error> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| Error::Record {
                path: path.to_owned(),
                source,
            }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File {
            what: "read",
            path: path.to_owned(),
            source,
        }),
    }
}

fn write_record(path: &Path, record: &BootstrapRecord) -> Result<(), Error> {
    let bytes = serde_json::to_vec(record).map_err(|source| Error::Record {
        path: path.to_owned(),
        source,
    })?;
    write_whole(path, &bytes)
}

/// Writes a file atomically and durably: a synced temporary file, then a rename.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let fail = |source| Error::File {
        what: "write",
        path: path.to_owned(),
        source,
    };
    let neighbour = path.with_extension("new");
    let mut open = std::fs::OpenOptions::new();
    let mut file = open
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&neighbour)
        .map_err(fail)?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(fail)?;
    std::fs::rename(&neighbour, path).map_err(fail)?;
    if let Some(folder) = path.parent() {
        std::fs::File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(fail)?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "bootstrap_tests.rs"]
mod tests;
