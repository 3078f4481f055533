//! `pratique bootstrap`: attests a fresh master with the verifier that later attests nodes, and
//! only then takes the admin's certificate from it and gives it its first objects.

pub(crate) mod expect;
#[cfg(test)]
mod lost_answer;
mod objects;

use crate::connection::{Connection, Endpoint};
use crate::error::{Error, Result};
use crate::files::{say, tell, write_private};
use crate::key::AdminKey;
use crate::runtime::block_on;
use crate::tls;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_attest::Refusal;
use config_attest::bootstrap::{self, AdminStatement, ProvedMaster, Root};
use config_kube::Kubeconfig;
use config_model::machine::USER_DATA_SOURCES;
use config_protocol::wire::{
    BOOTSTRAP_ADMIT_PATH, BOOTSTRAP_CHALLENGE_PATH, BOOTSTRAP_HELLO_PATH, Blob, BootstrapAdmit,
    BootstrapAdmitted, BootstrapHello, Der, Problem, Proof,
};
use config_tpm::Digest;
use expect::Expected;
use http::{Method, StatusCode};
use rustls::ClientConfig;
use rustls::pki_types::UnixTime;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Pause between two tries to reach a master that is still coming up.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// What the admin knows about the master in advance.
#[derive(Debug, clap::Args)]
pub(crate) struct BootstrapArgs {
    /// The master's address.
    #[arg(long, value_name = "https://HOST:PORT")]
    endpoint: String,
    /// File with the master's endorsement key: its certificate, public key or TPM public area.
    /// Repeat for each.
    #[arg(long, value_name = "FILE")]
    ek: Vec<PathBuf>,
    /// Hash of the master's endorsement key, instead of a file.
    #[arg(long, value_name = "sha256:HEX")]
    ek_hash: Vec<String>,
    /// PEM certificates of the TPM's manufacturer; if given, the EK certificate must chain to them.
    #[arg(long, value_name = "FILE")]
    ek_issuer: Option<PathBuf>,
    /// Release manifest: the master's own image, and others that the cluster shall know. Repeat.
    #[arg(long, value_name = "FILE", required = true)]
    release: Vec<PathBuf>,
    /// PEM public key that must have signed the master's release. Repeat to allow others.
    #[arg(long, value_name = "FILE", required = true)]
    release_key: Vec<PathBuf>,
    /// The exact user-data that the master booted with.
    #[arg(long, value_name = "FILE")]
    user_data: PathBuf,
    /// The source of the master's user-data.
    #[arg(long, default_value = "nocloud", value_parser = USER_DATA_SOURCES)]
    user_data_source: String,
    /// The admin's private key; made if there is none.
    #[arg(long, value_name = "FILE")]
    admin_key: PathBuf,
    /// The file for the admin's kubeconfig.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Seconds to try again while the master is coming up, is busy or cannot be reached: so long
    /// for its proof, again for the answer to the takeover, and again for the first objects.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    wait: u64,
}

/// Runs the command.
pub(crate) fn run(args: &BootstrapArgs) -> Result<()> {
    block_on(bootstrap(args))
}

async fn bootstrap(args: &BootstrapArgs) -> Result<()> {
    let endpoint = Endpoint::parse(&args.endpoint)?;
    let (key, made) = AdminKey::open(&args.admin_key)?;
    if made {
        tell(&format!(
            "made the admin's key in {}",
            args.admin_key.display()
        ));
    }
    let expected = Expected::load(args, &key)?;
    let limit = Duration::from_secs(args.wait);
    let unproven = tls::unproven()?;
    let Reached {
        connection,
        hello,
        proven,
    } = patiently(&endpoint, limit, async || {
        reach(&endpoint, unproven.clone(), &expected).await
    })
    .await?;
    tell(&format!(
        "taking over the cluster `{}`",
        expected.cluster.name
    ));
    let message = admission(&key, &proven)?;
    let root = hello.root.as_bytes();
    let admitted = take_over(&endpoint, limit, connection, root, &message).await?;
    if admitted.ca_pin != proven.root.spki.to_text() {
        return Err(Error::answer(
            "admission",
            "it names another root than the one that was proven",
        ));
    }
    write_kubeconfig(args, &endpoint, &expected, &key, &hello, &admitted)?;
    say(&format!("ca_pins = [\"{}\"]", admitted.ca_pin));
    let chain = master_ca::certificates_of_pem(&admitted.certificate);
    let config = tls::proven(&[root.to_vec()], chain, key.der())?;
    // The cluster is taken, and this command cannot be repeated.
    patiently(&endpoint, limit, async || {
        let mut api = Connection::open(&endpoint, config.clone()).await?;
        objects::create(&mut api, &expected, &proven.verdict).await
    })
    .await?;
    tell(&format!(
        "the cluster is yours: kubectl --kubeconfig {} get machines,imagereleases,certificatepolicies",
        args.kubeconfig.display()
    ));
    Ok(())
}

/// What the master's TPM proved, with the admin's signature on it.
struct Proven {
    root: Root,
    statement: Vec<u8>,
    signature: Vec<u8>,
    verdict: config_kube::machine::AdminVerdict,
}

/// A master that proved what it must, on a connection that is bound to the proof.
struct Reached {
    connection: Connection,
    hello: BootstrapHello,
    proven: Proven,
}

/// Connects, gets the master's hello and its proof.
async fn reach(
    endpoint: &Endpoint,
    config: Arc<ClientConfig>,
    expected: &Expected,
) -> Result<Reached> {
    let mut connection = Connection::open(endpoint, config).await?;
    let hello: BootstrapHello =
        exchange(&mut connection, Method::GET, BOOTSTRAP_HELLO_PATH, &()).await?;
    let proven = attest(&mut connection, &hello, expected).await?;
    Ok(Reached {
        connection,
        hello,
        proven,
    })
}

/// Tries until it works or fails for a reason that does not pass, for so long at most: the master
/// may be coming up, or be busy with all that begins after the bootstrap.
async fn patiently<T>(
    endpoint: &Endpoint,
    limit: Duration,
    attempt: impl AsyncFn() -> Result<T>,
) -> Result<T> {
    let start = Instant::now();
    let mut printed = false;
    loop {
        match attempt().await {
            Err(error) if error.may_pass() && start.elapsed() < limit => {
                if !printed {
                    tell(&format!("waiting for the master at {}", endpoint.url));
                    printed = true;
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            other => return other,
        }
    }
}

/// Checks the proof; nothing received before it on this connection was trusted.
async fn attest(
    connection: &mut Connection,
    hello: &BootstrapHello,
    expected: &Expected,
) -> Result<Proven> {
    let exporter = Digest(connection.exporter);
    let reference = expected.reference();
    let (admitted, root) = bootstrap::check_hello(hello, &reference, exporter, now())
        .map_err(|refusal| untrusted(&refusal))?;
    let time = UnixTime::since_unix_epoch(Duration::from_secs(now()));
    if !config_tls::ends_in(&connection.chain, hello.root.as_bytes(), time) {
        return Err(Error::Untrusted {
            code: config_protocol::Code::MasterKey.as_str().to_owned(),
            message: "its TLS certificate does not chain to the root that it shows".to_owned(),
        });
    }
    let (pending, challenge) = bootstrap::challenge(admitted, &mut rand_core::OsRng)
        .map_err(|refusal| untrusted(&refusal))?;
    tell("the master's keys are those of the machine; asking its TPM for a proof");
    let proof: Proof = exchange(
        connection,
        Method::POST,
        BOOTSTRAP_CHALLENGE_PATH,
        &challenge,
    )
    .await?;
    let attested = bootstrap::check(pending, &proof, &reference, &root, exporter, now())
        .map_err(|refusal| untrusted(&refusal))?;
    let (proved, verdict) = bootstrap::proved(&attested);
    tell(&format!(
        "proven: image {} (role {}, svn {}), {} checks passed",
        proved.image.id,
        proved.image.role,
        proved.image.svn,
        verdict.checks.iter().filter(|check| check.ok).count()
    ));
    sign(expected, root, proved)
}

fn sign(expected: &Expected, root: Root, proved: ProvedMaster) -> Result<Proven> {
    let statement = AdminStatement {
        cluster: expected.cluster.name.to_string(),
        machine: expected.machine_name().to_owned(),
        node_name: expected.machine.node_name().to_owned(),
        addresses: expected.machine.spec.addresses.clone(),
        root_spki: root.spki,
        time: now(),
        proved: Some(proved),
        ..AdminStatement::default()
    };
    let (statement, signature) = statement.sign(&expected.signing_key).map_err(|e| {
        Error::input(
            "the statement",
            e.to_string(),
            "report this, it is a fault of the program",
        )
    })?;
    let verdict = bootstrap::to_admin_verdict(&statement, &signature);
    Ok(Proven {
        root,
        statement,
        signature,
        verdict,
    })
}

/// The message that takes over the cluster: the admin's certificate request and its statement.
fn admission(key: &AdminKey, proven: &Proven) -> Result<BootstrapAdmit> {
    let too_long = |e: config_protocol::wire::TooLong| Error::answer("admission", &e.to_string());
    Ok(BootstrapAdmit {
        admin_csr: Der::new(key.request()?).map_err(too_long)?,
        statement: Blob::new(proven.statement.clone()).map_err(too_long)?,
        signature: Blob::new(proven.signature.clone()).map_err(too_long)?,
    })
}

/// Takes over the cluster. Where no answer comes, the master may have recorded the takeover all the
/// same. It answers the same message again for some minutes, so that it is sent again over other
/// connections. The TPM's proof is not bound to these: only a server under the proven root (DER)
/// gets the message, or is believed.
async fn take_over(
    endpoint: &Endpoint,
    limit: Duration,
    mut connection: Connection,
    root: &[u8],
    message: &BootstrapAdmit,
) -> Result<BootstrapAdmitted> {
    let path = BOOTSTRAP_ADMIT_PATH;
    let mut answer: Result<BootstrapAdmitted> =
        exchange(&mut connection, Method::POST, path, message).await;
    drop(connection);
    if let Err(error) = &answer
        && error.may_pass()
    {
        let why = config_errors::chain(error);
        tell(&format!("asking again to take over the cluster: {why}"));
        let config = tls::of_root(root)?;
        let again = patiently(endpoint, limit, async || {
            let mut connection = Connection::open(endpoint, config.clone()).await?;
            exchange(&mut connection, Method::POST, path, message).await
        });
        answer = again.await.map_err(|source| Error::Unanswered {
            source: Box::new(source),
        });
    }
    let admitted = answer?;
    let roots = master_ca::certificates_of_pem(&admitted.roots);
    if roots.first().map(Vec::as_slice) != Some(root) {
        return Err(Error::answer(
            "admission",
            "it holds another root than the one that was proven",
        ));
    }
    Ok(admitted)
}

fn write_kubeconfig(
    args: &BootstrapArgs,
    endpoint: &Endpoint,
    expected: &Expected,
    key: &AdminKey,
    hello: &BootstrapHello,
    admitted: &BootstrapAdmitted,
) -> Result<()> {
    let text = Kubeconfig {
        cluster: expected.cluster.name.as_str(),
        server: &endpoint.url,
        ca: &STANDARD.encode(master_ca::pem("CERTIFICATE", hello.root.as_bytes())),
        certificate: &STANDARD.encode(&admitted.certificate),
        key: &STANDARD.encode(key.pem()),
    }
    .text();
    write_private(&args.kubeconfig, text.as_bytes(), true)?;
    tell(&format!("wrote {}", args.kubeconfig.display()));
    Ok(())
}

/// One request of the bootstrap protocol, with its answer.
async fn exchange<T: DeserializeOwned>(
    connection: &mut Connection,
    method: Method,
    path: &str,
    message: &impl Serialize,
) -> Result<T> {
    let body = if method == Method::GET {
        Ok(Vec::new())
    } else {
        serde_json::to_vec(message)
    };
    let body = body.map_err(|e| Error::answer(path, &e.to_string()))?;
    let (status, bytes) = connection
        .send(method, path, "application/json", body)
        .await?;
    if status.is_success() {
        return serde_json::from_slice(&bytes).map_err(|e| Error::answer(path, &e.to_string()));
    }
    let problem: Option<Problem> = serde_json::from_slice(&bytes).ok();
    let text = |problem: &Problem| format!("{}: {}", problem.code, problem.message);
    let mut message = problem
        .as_ref()
        .map_or_else(|| "no reason given".to_owned(), text);
    if status == StatusCode::CONFLICT {
        message.push_str(
            "\n  what to do: use the kubeconfig of that time; if it was not you, power the machine off and make it anew",
        );
    }
    Err(Error::Refused {
        what: path.to_owned(),
        status: status.as_u16(),
        message,
    })
}

fn untrusted(refusal: &Refusal) -> Error {
    Error::Untrusted {
        code: refusal.code().as_str().to_owned(),
        message: refusal.message(),
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// How often something is tried that has these answers one after the other, and its end.
    async fn tried(limit: Duration, answers: &[u16]) -> (usize, Option<u16>) {
        let left = RefCell::new(answers.iter());
        let endpoint = Endpoint::parse("https://127.0.0.1:6443").unwrap();
        let outcome = patiently(&endpoint, limit, async || match left.borrow_mut().next() {
            None => Ok(()),
            Some(status) => Err(Error::Refused {
                what: "an object".to_owned(),
                status: *status,
                message: String::new(),
            }),
        });
        let end = match outcome.await {
            Ok(()) => None,
            Err(Error::Refused { status, .. }) => Some(status),
            Err(other) => panic!("{other}"),
        };
        (answers.len() - left.borrow().len(), end)
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_is_tried_again_and_nothing_else_is() {
        let long = Duration::from_secs(60);
        assert_eq!(tried(long, &[503, 429, 504]).await, (3, None));
        assert_eq!(tried(long, &[503, 403, 503]).await, (2, Some(403)));
        assert_eq!(tried(long, &[409, 503]).await, (1, Some(409)));
        assert_eq!(tried(Duration::ZERO, &[503, 503]).await, (1, Some(503)));
    }
}
