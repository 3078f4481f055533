//! The attestor socket, through which this machine's master uses the agent's TPM.
//!
//! Guarantees: only requests of root and of the agent's own user are answered; a line is at most
//! [`MAX_LINE`] long and comes within [`LINE_TIMEOUT`]; at most [`CONNECTIONS`] are served at once,
//! further ones wait. Nothing is sealed or unsealed unless approvals or a flag say which boots may
//! open it.

use crate::error::Error;
use agent_enroll::{ProveError, Prover};
use agent_tpm::{Seal, Sealing};
use config_errors::chain;
use config_protocol::attestor::{
    EvidenceAnswer, EvidenceRequest, HelloAnswer, MAX_LINE, Refused, Request, SealAnswer,
    StatusAnswer, UnsealAnswer, refusal as code,
};
use config_protocol::wire::{Blob, Claims, Problem};
use config_protocol::{Channel, Purpose};
use serde::Serialize;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use zeroize::Zeroizing;

/// Connections that are served at once; the master opens one at a time.
const CONNECTIONS: usize = 4;
/// Longest time for reading a request and for sending its answer.
const LINE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const NO_APPROVALS: &str = "nothing says which boots may open the master's keys: boot an image that a release key signed, or, on a \
                            host without one, start the agent with --seal-for-any-boot";

/// The bound socket.
#[derive(Debug)]
pub(crate) struct AttestorSocket {
    listener: UnixListener,
    machine: Arc<Responder>,
}

/// What is needed to answer requests.
#[derive(Debug)]
struct Responder {
    prover: Prover,
    claims: Claims,
    /// Which boots open a seal; `None` if nothing says which.
    sealing: Option<Sealing>,
}

impl AttestorSocket {
    /// Binds the socket with access for its owner only. A socket left by an earlier agent is
    /// replaced.
    pub(crate) fn bind(
        path: &Path,
        prover: Prover,
        claims: Claims,
        sealing: Option<Sealing>,
    ) -> Result<Self, Error> {
        let fault = |source| Error::File {
            what: "listen on",
            path: path.to_owned(),
            source,
        };
        match std::fs::remove_file(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(fault(source)),
        }
        let listener = UnixListener::bind(path).map_err(fault)?;
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(fault)?;
        let machine = Arc::new(Responder {
            prover,
            claims,
            sealing,
        });
        Ok(Self { listener, machine })
    }

    /// Serves until it is dropped.
    pub(crate) async fn serve(self) {
        let Self { listener, machine } = self;
        let (permits, mut connections) = (Arc::new(Semaphore::new(CONNECTIONS)), JoinSet::new());
        loop {
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
                return;
            };
            while connections.try_join_next().is_some() {}
            match listener.accept().await {
                Ok((stream, _)) => {
                    let machine = Arc::clone(&machine);
                    connections.spawn(async move {
                        if let Err(error) = connection(stream, machine).await {
                            tracing::warn!(
                                error = chain(&error),
                                "a connection to the attestor socket broke"
                            );
                        }
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(error = chain(&error), "the attestor socket cannot accept");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// One request and its answer. A client that connects and sends nothing only checks whether the
/// socket is there.
async fn connection(stream: UnixStream, machine: Arc<Responder>) -> io::Result<()> {
    let caller = stream.peer_cred()?.uid();
    let (input, mut output) = stream.into_split();
    if caller != 0 && caller != nix::unistd::geteuid().as_raw() {
        tracing::warn!(caller, "refused a user on the attestor socket");
        return write(
            &mut output,
            refusal("FORBIDDEN", "this socket is the master's"),
        )
        .await;
    }
    let mut line = Zeroizing::new(Vec::new());
    let mut input = BufReader::new(input.take(MAX_LINE as u64));
    timeout(LINE_TIMEOUT, input.read_until(b'\n', &mut line)).await??;
    if line.is_empty() {
        return Ok(());
    }
    let answer = match serde_json::from_slice::<Request>(&line) {
        Ok(request) => {
            let operation = request.op();
            let answer = tokio::task::spawn_blocking(move || answer(request, &machine)).await?;
            tracing::info!(operation, "TPM operation for the master");
            answer
        }
        Err(error) => refusal("MALFORMED", &error.to_string()),
    };
    write(&mut output, answer).await
}

async fn write(
    output: &mut tokio::net::unix::OwnedWriteHalf,
    mut line: Zeroizing<Vec<u8>>,
) -> io::Result<()> {
    line.push(b'\n');
    timeout(LINE_TIMEOUT, output.write_all(&line)).await?
}

fn answer(request: Request, machine: &Responder) -> Zeroizing<Vec<u8>> {
    match perform(request, machine) {
        Ok(line) => line,
        Err(error) => {
            let text = chain(&error);
            tracing::warn!(error = text, "a TPM operation for the master failed");
            refusal(code_of(&error), &text)
        }
    }
}

/// The code of a refusal: why something is not sealed or unsealed, or that the TPM failed.
fn code_of(error: &ProveError) -> &'static str {
    use agent_tpm::Error as Tpm;
    let ProveError::Tpm(error) = error else {
        return "TPM";
    };
    match error {
        Tpm::BootNotApproved => code::NOT_APPROVED,
        Tpm::SealFloor { .. } => code::FLOOR,
        Tpm::OtherReleaseKey => code::OTHER_RELEASE_KEY,
        Tpm::UnboundSeal => code::UNBOUND,
        Tpm::BoundSeal => code::BOUND,
        Tpm::NotSealedHere => code::NOT_SEALED_HERE,
        Tpm::Tcti { .. }
        | Tpm::Open { .. }
        | Tpm::Lacks { .. }
        | Tpm::Authorization { .. }
        | Tpm::Full { .. }
        | Tpm::Command { .. }
        | Tpm::PolicyBroken { .. }
        | Tpm::Unsteady { .. }
        | Tpm::NoEndorsementKey
        | Tpm::Malformed { .. }
        | Tpm::NotApproved
        | Tpm::ForAnotherTpm { .. }
        | Tpm::NotImported { .. }
        | Tpm::Thread(_)
        | Tpm::Gone
        | Tpm::Busy { .. }
        | Tpm::TimedOut(_) => "TPM",
    }
}

fn perform(request: Request, machine: &Responder) -> Result<Zeroizing<Vec<u8>>, ProveError> {
    let prover = &machine.prover;
    let ek = |turn| prover.endorsement_key(turn);
    Ok(match (request, machine.sealing.as_ref()) {
        (Request::Status, sealing) => {
            prover.tpm().read_pcrs(&[0])?;
            let floor = sealing.map(|sealing| prover.tpm().seal_floor(sealing));
            let floor = floor.transpose()?.flatten();
            line(&StatusAnswer { ready: true, floor })
        }
        (Request::Hello, _) => line(&HelloAnswer {
            keys: prover.keys(&ek(0)?)?,
            claims: machine.claims.clone(),
        }),
        (Request::Evidence(asked), _) => {
            let EvidenceRequest {
                csr_hash,
                claims,
                challenge,
                server_spki,
                exporter,
            } = *asked;
            let channel = Channel {
                server_spki,
                exporter,
            };
            let proof = prover.prove(
                Purpose::Bootstrap,
                &ek(0)?,
                csr_hash,
                &claims,
                &challenge,
                &channel,
            )?;
            line(&EvidenceAnswer { proof })
        }
        (Request::Seal { .. } | Request::Unseal { .. }, None) => {
            refusal(code::NO_APPROVALS, NO_APPROVALS)
        }
        (Request::Seal { data }, Some(sealing)) => {
            let data = Zeroizing::new(data.as_bytes().to_vec());
            let sealed = prover.tpm().seal(sealing, data)?;
            blob(sealed).map_or_else(|line| line, |sealed| line(&SealAnswer { sealed }))
        }
        (Request::Unseal { sealed, unbound }, Some(sealing)) => {
            let which = if unbound {
                Seal::Unbound
            } else {
                Seal::Current
            };
            let data = prover.tpm().unseal(sealing, which, sealed.as_bytes())?;
            blob(data.to_vec()).map_or_else(|line| line, |data| line(&UnsealAnswer { data }))
        }
    })
}

/// Bytes within the limit of their field, else the line that says that they are not.
fn blob<const MAX: usize>(bytes: Vec<u8>) -> Result<Blob<MAX>, Zeroizing<Vec<u8>>> {
    Blob::new(bytes).map_err(|error| refusal("TOO_LARGE", &error.to_string()))
}

fn refusal(code: &str, message: &str) -> Zeroizing<Vec<u8>> {
    line(&Refused {
        error: Problem {
            code: code.to_owned(),
            message: message.to_owned(),
            ..Problem::default()
        },
    })
}

fn line(answer: &impl Serialize) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(serde_json::to_vec(answer).unwrap_or_default())
}
