//! `pratique discovery`: puts a cluster on a discovery endpoint, and shows what is served there.

use crate::error::{Error, Result};
use crate::files::{read_text, say, tell};
use crate::kubeconfig::Api;
use crate::runtime::block_on;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_discovery::{Document, Expected, Trust, check, pin_of};
use config_kube::discovery as names;
use config_model::discovery::{DiscoveryEndpoint, DiscoveryUri};
use config_model::format::{Endpoint, FormatError, Pin};
use http::Method;
use master_bootstrap::Client;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Between two looks at what the master has published.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long a master may take to make its discovery key.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the master is waited for.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Subcommand)]
pub(crate) enum DiscoveryCommand {
    /// Create the cluster at an endpoint, give the master the credential, and print workers'
    /// user-data.
    Create(CreateArgs),
    /// Show what the cluster publishes, and whether what is served is good.
    Show {
        /// The admin's kubeconfig.
        #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
        kubeconfig: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// The discovery endpoint, http://HOST[:PORT] or https. What it serves need not be trusted.
    #[arg(long, value_name = "URL")]
    endpoint: String,
    /// The admin's kubeconfig.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: PathBuf,
    /// File with the operator's token, where the endpoint wants one.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Address at which machines reach the masters, https://HOST:PORT, if those that the master
    /// reports are wrong. Repeat for more.
    #[arg(long, value_name = "https://HOST:PORT")]
    master: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(command: &DiscoveryCommand) -> Result<()> {
    block_on(async {
        match command {
            DiscoveryCommand::Create(args) => create(args).await,
            DiscoveryCommand::Show { kubeconfig } => show(&mut Api::open(kubeconfig).await?).await,
        }
    })
}

async fn create(args: &CreateArgs) -> Result<()> {
    let endpoint: DiscoveryEndpoint = parse("--endpoint", &args.endpoint)?;
    let masters = args
        .master
        .iter()
        .map(|text| parse("--master", text))
        .collect::<Result<Vec<Endpoint>>>()?;
    let token = args.token_file.as_deref().map(read_text).transpose()?;
    let mut api = Api::open(&args.kubeconfig).await?;
    tell(&format!("asking the master at {}", api.server));
    let public = Public::wait(&mut api).await?;
    let created = Client::new(endpoint.clone())
        .create(&public.spki, token.as_deref().map(str::trim))
        .await
        .map_err(|source| Error::Discovery {
            what: "create the cluster",
            source,
        })?;
    let uri: DiscoveryUri = parse("the endpoint's answer", &created.uri)?;
    tell(&format!(
        "created the cluster {} at {}",
        created.cluster, uri.endpoint
    ));
    store(&mut api, &uri, &created.credential, &masters).await?;
    tell(&format!(
        "gave the master its credential, in Secret {}/{}",
        names::SECRET_NAMESPACE,
        names::NAME
    ));
    let generation = published(&mut api, &uri).await?;
    // At the address that is good here: the machines' way to the endpoint may be another.
    let here = DiscoveryUri {
        endpoint,
        cluster: uri.cluster.clone(),
    };
    let document = served(&here, public.pin, generation).await?;
    // The master reports its root, but the admin uses the root that the bootstrap proved.
    let mut known = api.roots.iter().filter_map(|root| master_ca::spki_of(root));
    if !known.all(|spki| document.ca_pins.contains(&pin_of(&spki))) {
        let why = "they do not have the roots of the kubeconfig";
        return Err(Error::input(
            "the published ca_pins",
            why,
            "use the kubeconfig of this cluster",
        ));
    }
    tell(&format!(
        "the master has published generation {generation}; in workers' user-data, instead of [master]:"
    ));
    say(&format!(
        "[discovery]\nuris = [\"{uri}\"]\npins = [\"{}\"]\nmin_generation = {}",
        public.pin, document.generation
    ));
    Ok(())
}

/// What the master publishes.
struct Public {
    spki: Vec<u8>,
    pin: Pin,
    data: Value,
}

impl Public {
    async fn read(api: &mut Api) -> Result<Self> {
        let path = format!(
            "/api/v1/namespaces/{}/configmaps/{}",
            names::PUBLIC_NAMESPACE,
            names::NAME
        );
        let map = api.call(Method::GET, &path, None).await?;
        let missing = || {
            let cure =
                "wait until the master has written it; a master older than this tool never does";
            Error::input(
                format!("ConfigMap {}/{}", names::PUBLIC_NAMESPACE, names::NAME),
                "no discovery key in it",
                cure,
            )
        };
        let data = map.ok_or_else(missing)?["data"].clone();
        let key = data[names::PUBLIC_KEY].as_str().unwrap_or_default();
        let spki = SubjectPublicKeyInfoDer::from_pem_slice(key.as_bytes())
            .map_err(|_no_key| missing())?
            .to_vec();
        Ok(Self {
            pin: pin_of(&spki),
            spki,
            data,
        })
    }

    /// The same, for a master that has only just started.
    async fn wait(api: &mut Api) -> Result<Self> {
        let start = Instant::now();
        loop {
            match Self::read(api).await {
                Err(Error::Input { .. }) if start.elapsed() < STARTUP_TIMEOUT => {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                outcome => return outcome,
            }
        }
    }

    fn text(&self, key: &str) -> &str {
        self.data[key].as_str().unwrap_or_default()
    }
}

/// Adds a registration to the Secret.
async fn store(
    api: &mut Api,
    uri: &DiscoveryUri,
    credential: &str,
    masters: &[Endpoint],
) -> Result<()> {
    let secrets = format!("/api/v1/namespaces/{}/secrets", names::SECRET_NAMESPACE);
    let path = format!("{secrets}/{}", names::NAME);
    let found = api.call(Method::GET, &path, None).await?;
    let exists = found.is_some();
    let fresh = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": names::NAME}, "data": {}});
    let mut secret = found.unwrap_or(fresh);
    let mut put = |key: String, value: &str| secret["data"][key] = STANDARD.encode(value).into();
    put(
        format!("{}{}", uri.cluster, names::URI_SUFFIX),
        &uri.to_string(),
    );
    put(
        format!("{}{}", uri.cluster, names::CREDENTIAL_SUFFIX),
        credential,
    );
    if !masters.is_empty() {
        let list: Vec<String> = masters.iter().map(ToString::to_string).collect();
        put(names::ENDPOINTS.to_owned(), &list.join(","));
    }
    let (method, path) = if exists {
        (Method::PUT, path)
    } else {
        (Method::POST, secrets)
    };
    api.must(method, &path, Some(&secret)).await.map(drop)
}

/// Waits until the master has published at an address: the generation.
async fn published(api: &mut Api, uri: &DiscoveryUri) -> Result<u64> {
    let start = Instant::now();
    loop {
        let public = Public::read(api).await?;
        if public
            .text(names::URIS)
            .lines()
            .any(|line| line == uri.to_string())
        {
            return Ok(public.text(names::GENERATION).parse().unwrap_or_default());
        }
        if start.elapsed() > PUBLISH_TIMEOUT {
            let cure = "see that the master reaches the endpoint (its log says more); it tries again by itself, and \
                        `pratique discovery show` tells when it has";
            return Err(Error::input(
                "the master's publication",
                public.text(names::STATUS),
                cure,
            ));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The document at an address, checked as a machine would.
async fn served(uri: &DiscoveryUri, pin: Pin, min_generation: u64) -> Result<Document> {
    let bytes = Client::get(uri).await.map_err(|source| Error::Discovery {
        what: "get what is served",
        source,
    })?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let expected = Expected {
        cluster: &uri.cluster,
        trust: Trust::Pins(&[pin]),
        min_generation,
        now,
    };
    let verified = check(&bytes, &expected).map_err(|fault| {
        Error::input(
            format!("what {uri} serves"),
            format!("{}: {fault}", fault.code()),
            "ask the endpoint's operator",
        )
    })?;
    Ok(verified.document().clone())
}

async fn show(api: &mut Api) -> Result<()> {
    let public = Public::read(api).await?;
    say(&format!(
        "pin: {}\nstatus: {}",
        public.pin,
        public.text(names::STATUS)
    ));
    let generation = public.text(names::GENERATION).parse().unwrap_or_default();
    for line in public.text(names::URIS).lines() {
        let uri: DiscoveryUri = parse("the master's ConfigMap", line)?;
        match served(&uri, public.pin, generation).await {
            Ok(document) => {
                let masters: Vec<String> =
                    document.endpoints.iter().map(ToString::to_string).collect();
                let end = public.text(names::EXPIRES);
                say(&format!(
                    "{uri}: good, generation {}, until {end}: {}",
                    document.generation,
                    masters.join(", ")
                ));
            }
            Err(error) => say(&format!("{uri}: {}", config_errors::lines(&error))),
        }
    }
    Ok(())
}

fn parse<T: std::str::FromStr<Err = FormatError>>(subject: &str, text: &str) -> Result<T> {
    text.parse().map_err(|error: FormatError| {
        Error::input(
            format!("{subject} {text}"),
            error.to_string(),
            error.suggestion.unwrap_or(error.expected),
        )
    })
}
