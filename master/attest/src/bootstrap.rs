//! The bootstrap: the admin attests this first master, then the master signs the admin's
//! certificate request. It happens once.

use crate::answer::{self, BODY_TIME, ServiceAnswer};
use crate::error::Error;
use crate::settings::{AttestationConfig, BootstrapConfig};
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
use master_ca::Authority;
use master_client::{Body, Client};
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

impl BootstrapRecord {
    /// The admin's statement; its signature was verified before it was stored.
    fn stated(&self) -> Option<AdminStatement> {
        let bytes = STANDARD.decode(&self.statement).ok()?;
        serde_json::from_slice(&bytes).ok()
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
    /// The keys and claims of this machine. Its lock also makes admissions run one after another.
    shown: Mutex<Option<HelloAnswer>>,
    proofs: Semaphore,
    /// The name of this master's Machine, once the admin has stated it.
    machine: OnceLock<String>,
    done: watch::Sender<bool>,
}

impl BootstrapService {
    pub(crate) fn open(
        config: &AttestationConfig,
        authority: Arc<Authority>,
        client: Client,
    ) -> Result<Self, Error> {
        let own = &config.bootstrap;
        let record = read_record(&own.record)?;
        let done = own.admin_key.is_none() || record.is_some();
        let machine = OnceLock::new();
        if let Some(stated) = record.as_ref().and_then(BootstrapRecord::stated) {
            drop(machine.set(stated.machine));
        }
        let service = Self {
            cluster: config.cluster.clone(),
            config: own.clone(),
            policy: config.policy.clone(),
            authority,
            client,
            shown: Mutex::new(None),
            proofs: Semaphore::new(PROOFS),
            machine,
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
        if self.is_done() {
            return taken();
        }
        let admit: BootstrapAdmit = match answer::read(incoming, MAX_ADMIT_BODY, BODY_TIME).await {
            Ok(admit) => admit,
            Err(answer) => return answer,
        };
        let _one_at_a_time = self.shown.lock().await;
        if self.is_done() {
            return taken();
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
        let request = match master_ca::CertificateRequest::from_der(admit.admin_csr.as_bytes()) {
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
        if let Err(error) = self.take(&request.spki, statement, signature).await {
            tracing::error!(error = %chain(&error), "the bootstrap could not be recorded");
            return ServiceAnswer::unavailable(
                "the master could not record the bootstrap; see its log",
            );
        }
        drop(self.machine.set(stated.machine));
        tracing::info!(
            admin = admin_key.to_text(),
            "bootstrapped: the cluster is the admin's"
        );
        ServiceAnswer::json(&BootstrapAdmitted {
            certificate: issued.chain_pem(),
            roots: self.authority.roots_pem(),
            ca_pin: self.authority.pin(),
        })
    }

    /// Takes a Machine from the API: this master's own Machine lists the configurations with which
    /// its machine may boot.
    pub(crate) fn machine_is(&self, machine: &Machine) {
        if let Some(configurations) = &self.config.configurations
            && machine.metadata.name.is_some()
            && machine.metadata.name.as_ref() == self.machine.get()
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
    async fn take(
        &self,
        admin_spki: &[u8],
        statement: &[u8],
        signature: &[u8],
    ) -> Result<(), Error> {
        let (authority, spki) = (self.authority.clone(), admin_spki.to_vec());
        let copied = tokio::task::spawn_blocking(move || authority.write_recovery(&spki))
            .await
            .map_err(Error::Task)?;
        let copy = copied.map_err(Error::Issue)?;
        tracing::info!(path = %copy.display(), "the recovery copy was written for the admin's key");
        let record = BootstrapRecord {
            version: 1,
            statement: STANDARD.encode(statement),
            signature: STANDARD.encode(signature),
        };
        write_record(&self.config.record, &record)?;
        self.write_pin()?;
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
