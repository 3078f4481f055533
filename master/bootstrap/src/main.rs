//! `discovery`: the endpoint through which machines find their masters, for a host outside the
//! clusters.
//!
//! One process, one folder, one port; start at [`main`]. `SIGTERM` ends it after open requests.

use clap::Parser;
use config_model::discovery::DiscoveryEndpoint;
use master_bootstrap::{Clusters, DEFAULT_CLUSTERS, Endpoint, Limits, Rates, serve};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Serves signed documents of clusters to machines that look for their masters. The endpoint needs
/// no trust: machines verify the signature.
#[derive(Debug, Parser)]
#[command(name = "discovery", version)]
struct Arguments {
    /// Address and port to listen on
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Folder of the stored documents
    #[arg(long)]
    data: PathBuf,
    /// Public URL of this endpoint, http://HOST[:PORT][/PATH] or https; defaults to the address of
    /// --listen
    #[arg(long)]
    url: Option<String>,
    /// File with a token that is required to create clusters. Without it every client may, up to
    /// --clusters
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// Maximum number of clusters
    #[arg(long, default_value_t = DEFAULT_CLUSTERS)]
    clusters: usize,
    /// Certificate chain (PEM) for TLS
    #[arg(long, requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key (PEM) of the certificate
    #[arg(long, requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(run(arguments)),
        Err(error) => Err(format!("threads cannot be started: {error}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error, "the discovery endpoint ends");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), String> {
    let token = arguments.token_file.as_deref().map(token).transpose()?;
    if token.is_none() {
        tracing::warn!(
            clusters = arguments.clusters,
            "no --token-file: every client may create clusters"
        );
    }
    let tls = match (&arguments.tls_cert, &arguments.tls_key) {
        (Some(cert), Some(key)) => Some(tls(cert, key)?),
        (_, _) => None,
    };
    let listener = TcpListener::bind(arguments.listen).await.map_err(|error| {
        format!(
            "cannot listen on {}: {error}; another process may have the port",
            arguments.listen
        )
    })?;
    let listen = listener.local_addr().unwrap_or(arguments.listen);
    let address = address(arguments.url.as_deref(), listen, tls.is_some())?;
    let clusters = Clusters::open(&arguments.data, arguments.clusters)
        .await
        .map_err(|error| {
            format!(
                "cannot open {}: {error}: {:?}",
                arguments.data.display(),
                error
            )
        })?;
    let endpoint = Arc::new(Endpoint::new(
        clusters,
        address.clone(),
        token.as_deref(),
        Rates::default(),
    ));
    let (mut term, mut int) = match (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) {
        (Ok(term), Ok(int)) => (term, int),
        (Err(error), _) | (_, Err(error)) => {
            return Err(format!("signals cannot be received: {error}"));
        }
    };
    // Cancel-safe: a dropped signal is not needed.
    let end = async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    };
    tracing::info!(%listen, url = %address, "serving");
    serve(listener, tls, endpoint, Limits::default(), end).await;
    Ok(())
}

/// The public address of this endpoint.
fn address(url: Option<&str>, listen: SocketAddr, tls: bool) -> Result<DiscoveryEndpoint, String> {
    let Some(url) = url else {
        if listen.ip().is_unspecified() {
            return Err(format!(
                "{listen} is every address: say with --url how others reach this endpoint"
            ));
        }
        let url = format!("http{}://{listen}", if tls { "s" } else { "" });
        return url.parse().map_err(|error| format!("{url}: {error}"));
    };
    url.parse()
        .map_err(|error: config_model::format::FormatError| {
            let hint = error
                .suggestion
                .as_ref()
                .map(|hint| format!("; {hint}"))
                .unwrap_or_default();
            format!("--url {url}: {error}{hint}")
        })
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn token(path: &Path) -> Result<String, String> {
    let text = String::from_utf8(read(path)?)
        .unwrap_or_default()
        .trim()
        .to_owned();
    if text.len() < 16 || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(format!(
            "{} holds no token: write at least 16 printable characters",
            path.display()
        ));
    }
    Ok(text)
}

fn tls(cert: &Path, key: &Path) -> Result<Arc<rustls::ServerConfig>, String> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&read(cert)?)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("{}: {error}", cert.display()))?;
    let secret = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|error| format!("{}: {error}", key.display()))?;
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .and_then(|builder| {
        builder
            .with_no_client_auth()
            .with_single_cert(chain, secret)
    })
    .map_err(|error| format!("TLS with {} and {}: {error}", cert.display(), key.display()))?;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_line_in_a_guide_is_understood() {
        let count = tests_guides::understood("discovery", |words| Arguments::try_parse_from(words));
        assert!(count.unwrap_or_else(|fault| panic!("{fault}")) >= 1);
    }
}
