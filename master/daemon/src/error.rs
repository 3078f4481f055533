//! Why the master does not start, or ends by itself.

use crate::chain;
use std::io::ErrorKind;
use std::path::PathBuf;

/// A failure of the master as a whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The objects that every cluster has could not be made.
    #[error("the namespaces, roles and bindings of every cluster could not be created")]
    Prepare(#[source] master_client::ApiError),
    /// A file.
    #[error("cannot {what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The configuration has faults.
    #[error("the configuration has faults:\n{0}")]
    Faults(config_model::Faults),
    /// An unknown admission plugin.
    #[error("[cluster.api] admission: {0}")]
    Admission(String),
    /// The token file.
    #[error("the token file {} cannot be used", path.display())]
    Tokens {
        path: PathBuf,
        #[source]
        source: master_auth::TokenFileError,
    },
    /// The service accounts' key.
    #[error("service accounts' tokens cannot be signed")]
    TokenKey(#[source] master_auth::TokenKeyError),
    /// The document has no faults but is not a master's.
    #[error("{}: it has no [cluster], so it is not a master's configuration; write `kind = \"cluster\"` or a first master's user-data", .0.display())]
    NotAMaster(PathBuf),
    /// The attestor.
    #[error("the machine's TPM cannot be reached through the agent")]
    Attestor(#[source] master_ca::attestor::AttestorError),
    /// The state's admin.
    #[error(
        "this machine's state came from another board by the admin key {brought_by}, and the configuration names {configured}: \
         give the machine the user-data of that admin's cluster, or, for a new one, clear the TPM and write the whole image again"
    )]
    OtherAdmin {
        brought_by: String,
        configured: String,
    },
    /// Keys and certificates.
    #[error("cannot open the cluster's keys")]
    Authority(#[source] master_ca::Error),
    /// The API's certificate.
    #[error("the API has no certificate")]
    Serving(#[source] crate::serving::ServingError),
    /// A certificate of the master itself.
    #[error("cannot issue a certificate")]
    Issue(#[source] master_ca::Error),
    /// TLS.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    /// TLS of the listener.
    #[error("cannot set up TLS for the API")]
    ApiTls(#[source] master_listener::TlsError),
    /// The roots under which client certificates are accepted.
    #[error("cannot set up the verification of client certificates")]
    Clients(#[source] config_tls::RootsError),
    /// The verifier of nodes.
    #[error("cannot set up the verification of nodes: {0}")]
    Verifier(String),
    /// The store.
    #[error("cannot open the store in {}", path.display())]
    Store {
        path: PathBuf,
        #[source]
        source: master_store::StoreError,
    },
    /// The store, while it is in use.
    #[error(
        "the store can't write any more, so the master ends; what it acknowledged is on the disk, and a restart reads what \
         the disk holds"
    )]
    StoreFailed(#[source] std::sync::Arc<master_store::StoreError>),
    /// The store was set back.
    #[error(
        "the store in {} is an older copy: it was last served in generation {stored} of this machine's state, and the state notes \
         {served}: machines that were retired and policies that were replaced since would be in force again. Put back this \
         machine's disk as it was after its last start, or bring back the cluster from a snapshot by `master restore` (the \
         admin's guide has the steps)", path.display()
    )]
    OlderStore {
        path: PathBuf,
        /// By the store.
        stored: String,
        /// By the state.
        served: u64,
    },
    /// A snapshot.
    #[error("the snapshot failed")]
    Snapshot(#[source] master_store::SnapshotError),
    /// A master is running, and there is no kubeconfig to ask it.
    #[error("a master runs in {}: ask it with --kubeconfig FILE, an admin's", .0.display())]
    Running(PathBuf),
    /// A kubeconfig.
    #[error("the kubeconfig {} cannot be used: {why}", path.display())]
    Kubeconfig { path: PathBuf, why: String },
    /// A running master.
    #[error("the master at {server} did not give what was asked for")]
    Remote {
        server: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The attestation service.
    #[error("cannot set up attestation")]
    Attest(#[source] master_attest::Error),
    /// The log of verdicts.
    #[error("cannot open the log of verdicts")]
    Journal(#[source] master_journal::Error),
    /// The port.
    #[error("cannot listen on {address}; another process may have the port")]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        source: std::io::Error,
    },
    /// The runtime.
    #[error("cannot start the runtime")]
    Runtime(#[source] std::io::Error),
    /// A task that must not end.
    #[error("a task of the master panicked or was cancelled")]
    Task(#[source] tokio::task::JoinError),
}

impl Error {
    /// The error with its causes in one line, and what to do where a full disk is one of them.
    pub(crate) fn chain(&self) -> String {
        let text = chain(self);
        let first: &(dyn std::error::Error + 'static) = self;
        let mut causes = std::iter::successors(Some(first), |error| error.source());
        let is_full = |cause: &(dyn std::error::Error + 'static)| {
            let kind = cause
                .downcast_ref::<std::io::Error>()
                .map(std::io::Error::kind);
            matches!(
                kind,
                Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
            )
        };
        if causes.any(is_full) {
            return format!("{text}; free some of the disk, and the master starts again");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_reported_with_its_cure() {
        let error = |number| Error::File {
            what: "write",
            path: "data".into(),
            source: std::io::Error::from_raw_os_error(number),
        };
        let full = error(nix::libc::ENOSPC).chain();
        assert!(full.ends_with("; free some of the disk, and the master starts again"));
        let other = error(nix::libc::EACCES).chain();
        assert!(other.ends_with("(os error 13)"), "{other}");
    }
}
