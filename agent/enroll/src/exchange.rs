//! One exchange on one TLS 1.3 connection: hello, challenge, evidence, certificates.

use crate::Error;
use crate::endpoint::{Endpoints, tls};
use crate::identity::CertificateSlot;
use crate::keys::NodeKey;
use crate::prover::Prover;
use crate::request::{CertificateRequests, requests};
use crate::step::{Failed, Step};
use agent_tpm::EndorsementKey;
use bytes::Bytes;
use config_http::Limits;
use config_protocol::question::{Channel, Purpose};
use config_protocol::wire::{
    Certificates, Challenge, Claims, EXPORTER_LABEL, Evidence, Problem, RENEWALS_PATH,
    SESSIONS_PATH, evidence_path,
};
use config_protocol::{Code, name, prover, unproven};
use config_tls::{Pins, spki_hash};
use config_tpm::Digest;
use config_tpm::Public;
use http::{Method, Request, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::client::ResolvesClientCert;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

/// Largest answer: certificates with their chains.
const ANSWER_LIMIT: usize = 256 * 1024;
/// Longest exchange; the master gives a challenge 30 s, and a TPM under emulation takes most of
/// them.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(120);

/// The node's claims and the masters that it enrols with.
#[derive(Debug, Clone)]
pub(crate) struct Party {
    pub(crate) endpoints: Endpoints,
    pub(crate) pins: Pins,
    pub(crate) identity_proof: IdentityProof,
    pub(crate) node_key: NodeKey,
    pub(crate) claims: Claims,
}

/// How a machine proves its identity.
#[derive(Debug, Clone)]
pub(crate) enum IdentityProof {
    /// Its TPM.
    Tpm(Box<Prover>),
    /// By no TPM: it proves only that it holds its key.
    Nothing,
}

/// The result of an accepted exchange.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) certificates: Certificates,
    pub(crate) requests: CertificateRequests,
    pub(crate) cost: Cost,
}

/// The cost of an exchange.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Bytes of the bodies, both ways, without HTTP's and TLS's own.
    pub bytes: usize,
    /// From the TPM's first command to the certificates.
    pub time: Duration,
}

impl Party {
    /// Joins, as an anonymous client. `turn` chooses the endorsement key.
    pub(crate) async fn join(&self, turn: usize) -> Result<Accepted, Failed> {
        self.exchange(Purpose::Join, None, turn).await
    }

    /// Renews over mTLS with the certificate in `identity`.
    pub(crate) async fn renew(
        &self,
        identity: Arc<CertificateSlot>,
        turn: usize,
    ) -> Result<Accepted, Failed> {
        self.exchange(Purpose::Renew, Some(identity), turn).await
    }

    /// One exchange within [`EXCHANGE_TIMEOUT`].
    async fn exchange(
        &self,
        purpose: Purpose,
        identity: Option<Arc<dyn ResolvesClientCert>>,
        turn: usize,
    ) -> Result<Accepted, Failed> {
        // Outside of the work, so that it is known also where the time limit drops the work.
        let mut step = Step::Hello;
        let work = async {
            let tls = tls(self.pins.clone(), identity, &[b"http/1.1"])?;
            match &self.identity_proof {
                IdentityProof::Tpm(prover) => {
                    self.prove(prover, purpose, &tls, turn, &mut step).await
                }
                IdentityProof::Nothing => self.ask(purpose, &tls, &mut step).await,
            }
        };
        let outcome = timeout(EXCHANGE_TIMEOUT, work).await;
        outcome
            .unwrap_or(Err(Error::Silent(EXCHANGE_TIMEOUT)))
            .map_err(|error| Failed { step, error })
    }

    /// The exchange of a machine with a TPM (cloud-verify/v1).
    async fn prove(
        &self,
        prover: &Prover,
        purpose: Purpose,
        tls: &Arc<ClientConfig>,
        turn: usize,
        step: &mut Step,
    ) -> Result<Accepted, Error> {
        let path = if purpose == Purpose::Renew {
            RENEWALS_PATH
        } else {
            SESSIONS_PATH
        };
        let began = Instant::now();
        // The TPM's part of the hello comes first, so that the master need not wait for it on an
        // open connection.
        let (party, own) = (self.clone(), prover.clone());
        let (ek, keys, requests) = blocking(move || {
            let ek = own.endorsement_key(turn)?;
            let name = party.own_name(&ek);
            Ok((
                ek.clone(),
                own.keys(&ek)?,
                requests(&party.node_key, &name)?,
            ))
        })
        .await?;
        let stream = self.endpoints.connect(tls).await?;
        let channel = channel(&stream)?;
        let mut connection = Connection::new(stream, self.authority()).await?;
        let hello = prover::hello(
            keys,
            &requests.client,
            &requests.serving,
            self.claims.clone(),
        );
        let csr_hash = hello.csr_hash;
        let challenge: Challenge = connection.post(path, &hello, step).await?;
        *step = Step::Evidence;
        let (claims, own) = (self.claims.clone(), prover.clone());
        let session = challenge.session;
        let proof =
            blocking(move || Ok(own.prove(purpose, &ek, csr_hash, &claims, &challenge, &channel)?))
                .await?;
        let evidence = Evidence {
            proof,
            client_csr: der(&requests.client)?,
            serving_csr: der(&requests.serving)?,
        };
        let certificates = connection
            .post(&evidence_path(path, &session), &evidence, step)
            .await?;
        *step = Step::Certificates;
        let cost = Cost {
            bytes: connection.bytes,
            time: began.elapsed(),
        };
        Ok(Accepted {
            certificates,
            requests,
            cost,
        })
    }

    /// The exchange of a machine without a TPM (unproven/v1), which proves only that it holds the
    /// key.
    async fn ask(
        &self,
        purpose: Purpose,
        tls: &Arc<ClientConfig>,
        step: &mut Step,
    ) -> Result<Accepted, Error> {
        let path = if purpose == Purpose::Renew {
            unproven::RENEWALS_PATH
        } else {
            unproven::SESSIONS_PATH
        };
        let began = Instant::now();
        let requests = requests(&self.node_key, &self.claims.name)?;
        let key = der(self.node_key.spki())?;
        let stream = self.endpoints.connect(tls).await?;
        let channel = channel(&stream)?;
        let mut connection = Connection::new(stream, self.authority()).await?;
        let hello = unproven::hello(
            key,
            &requests.client,
            &requests.serving,
            self.claims.clone(),
        );
        let challenge: unproven::Challenge = connection.post(path, &hello, step).await?;
        *step = Step::Evidence;
        let (transcript, signed) = unproven::answer(purpose, &hello, &challenge, &channel);
        let evidence = unproven::Evidence {
            transcript,
            signature: der(&self.node_key.sign_answer(&signed)?)?,
            client_csr: der(&requests.client)?,
            serving_csr: der(&requests.serving)?,
        };
        let path = evidence_path(path, &challenge.session);
        let certificates = connection.post(&path, &evidence, step).await?;
        *step = Step::Certificates;
        let cost = Cost {
            bytes: connection.bytes,
            time: began.elapsed(),
        };
        Ok(Accepted {
            certificates,
            requests,
            cost,
        })
    }

    /// The name in the certificate requests: the claimed one, or the one derived from the
    /// endorsement key.
    fn own_name(&self, ek: &EndorsementKey) -> String {
        if !self.claims.name.is_empty() {
            return self.claims.name.clone();
        }
        let spki = Public::parse(&ek.public)
            .ok()
            .and_then(|public| public.spki().ok());
        // The master refuses a malformed key in any case, so the name does not matter.
        name::derived(&spki.map_or(Digest::ZERO, |spki| Digest::of(&spki)))
    }

    fn authority(&self) -> String {
        self.endpoints
            .current()
            .map(|endpoint| endpoint.to_string())
            .unwrap_or_default()
    }
}

/// One HTTP connection, with what went over it.
struct Connection {
    http: config_http::Connection,
    authority: String,
    /// Bytes of bodies that went over it.
    bytes: usize,
}

impl Connection {
    async fn new(stream: TlsStream<TcpStream>, authority: String) -> Result<Self, Error> {
        let limits = Limits {
            time: EXCHANGE_TIMEOUT,
            body: ANSWER_LIMIT,
            ..Limits::default()
        };
        let (stream, executor) = (TokioIo::new(stream), TokioExecutor::new());
        let timer = TokioTimer::new();
        let http = config_http::Connection::open(stream, &executor, timer, limits);
        Ok(Self {
            http: http.await.map_err(Error::Connection)?,
            authority,
            bytes: 0,
        })
    }

    /// Sends the message of `step`. Once the master answers, `step` is the one in which it does.
    async fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
        step: &mut Step,
    ) -> Result<T, Error> {
        let body = serde_json::to_vec(body).map_err(Error::Encode)?;
        self.bytes += body.len();
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(Bytes::from(body))
            .map_err(Error::Request)?;
        let response = self.http.send(request).await.map_err(Error::Connection)?;
        *step = step.answered();
        let status = response.status();
        let after = response
            .headers()
            .get(header::RETRY_AFTER)
            .and_then(|text| text.to_str().ok()?.parse().ok());
        let body = response.into_body().whole().await;
        let body = body.map_err(|error| Error::Body(error.into()))?;
        self.bytes += body.len();
        if status.is_success() && status != StatusCode::ACCEPTED {
            return serde_json::from_slice(&body).map_err(Error::Decode);
        }
        Err(match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) if status == StatusCode::ACCEPTED => Error::queued(&problem.message, after),
            Ok(problem)
                if !problem.node_name.is_empty() && problem.code == Code::NameAssigned.as_str() =>
            {
                Error::Named(problem.node_name)
            }
            Ok(problem) => Error::refused(&problem.code, &problem.message),
            Err(_not_a_problem) => Error::Status(status),
        })
    }
}

/// The TLS exporter (channel binding, RFC 9266).
fn channel(stream: &TlsStream<TcpStream>) -> Result<Channel, Error> {
    let (_, tls) = stream.get_ref();
    let exporter = tls
        .export_keying_material([0; 32], EXPORTER_LABEL, Some(&[]))
        .map_err(Error::Tls)?;
    let leaf = tls.peer_certificates().and_then(|chain| chain.first());
    let server_spki = leaf
        .and_then(|leaf| spki_hash(leaf))
        .ok_or(Error::NoServerKey)?;
    Ok(Channel {
        server_spki: Digest(server_spki),
        exporter: Digest(exporter),
    })
}

fn der<const MAX: usize>(bytes: &[u8]) -> Result<config_protocol::wire::Blob<MAX>, Error> {
    config_protocol::wire::Blob::new(bytes).map_err(Error::TooLong)
}

/// Runs calls that block (TPM commands, a look-up of a name) on a thread of their own: the
/// runtime's blocking threads may all be held by the work of pods, and the master waits 30 s for an
/// answer to its challenge.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (answer, answered) = oneshot::channel();
    let thread = std::thread::Builder::new().name("enrolment".to_owned());
    // The caller's future may have been dropped: then the result goes nowhere.
    let begun = thread.spawn(move || drop(answer.send(work())));
    begun.map_err(Error::Thread)?;
    answered
        .await
        .unwrap_or_else(|ended| Err(Error::Ended(ended)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tpms_part_of_a_renewal_needs_no_thread_that_pods_can_hold() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let (release, hold) = std::sync::mpsc::channel::<()>();
        runtime.block_on(async {
            let busy = tokio::task::spawn_blocking(move || hold.recv().is_err());
            // Without a thread of its own it would begin only when that one has ended.
            let guard = Duration::from_secs(60);
            let done = timeout(guard, blocking(|| Ok(7))).await;
            drop(release);
            assert!(busy.await.expect("the other work ends"));
            assert_eq!(done.expect("it waits for nothing").expect("it is done"), 7);
        });
    }
}
