//! The service: its parts, its paths, and what runs beside them.

use crate::answer::Answer;
use crate::bootstrap::{Bootstrap, BootstrapDesk};
use crate::deny::MachineDenyList;
use crate::error::Error;
use crate::exchange::Desk;
use crate::inventory::Inventory;
use crate::{ring, signer, standing};
use config_attest::release::ReleaseKey;
use config_attest::wire::{
    BOOTSTRAP_ADMIT_PATH, BOOTSTRAP_CHALLENGE_PATH, BOOTSTRAP_HELLO_PATH, RENEWALS_PATH, SESSIONS_PATH, session_of_path,
};
use config_attest::{Digest, EkIssuer};
use config_kube::CertificatePolicySpec;
use http::{Method, Request, Response, StatusCode};
use master_api::{ApiServer, Body, BoxFuture, Client, Extensions, Follower, ListParams, Peer, UserInfo};
use master_ca::Authority;
use std::sync::{Arc, Mutex, PoisonError};

/// What the cluster's configuration says, as the service needs it.
#[derive(Debug)]
pub struct Terms {
    /// The cluster's name.
    pub cluster: String,
    /// DNS names and addresses of the API server.
    pub api_names: Vec<String>,
    /// Keys that may sign releases.
    pub release_keys: Vec<ReleaseKey>,
    /// Issuers of EK certificates.
    pub ek_issuers: Vec<EkIssuer>,
    /// The rules that seed the `CertificatePolicy`.
    pub policy: CertificatePolicySpec,
    /// SHA-256 of the SubjectPublicKeyInfo that the API's certificate has.
    pub server_spki: Digest,
    /// How the cluster becomes the admin's.
    pub bootstrap: Bootstrap,
}

/// The attestation service.
#[derive(Debug)]
pub struct AttestationService {
    client: Client,
    authority: Arc<Authority>,
    inventory: Arc<Inventory>,
    deny: Arc<MachineDenyList>,
    desk: Desk,
    bootstrap: BootstrapDesk,
    writer: Mutex<Option<ring::RingWriter>>,
}

impl AttestationService {
    /// Builds the service; nothing runs yet.
    pub fn new(terms: &Terms, authority: Arc<Authority>, api: &ApiServer) -> Result<Arc<Self>, Error> {
        let client = api.client(ring::user());
        let deny = Arc::new(MachineDenyList::default());
        let inventory = Arc::new(Inventory::new(terms.release_keys.clone(), deny.clone()));
        let (ring, writer) = ring::ring(client.clone());
        let bootstrap = BootstrapDesk::open(terms, authority.clone(), client.clone())?;
        let desk = Desk::new(terms, authority.clone(), inventory.clone(), client.clone(), ring);
        let writer = Mutex::new(Some(writer));
        Ok(Arc::new(Self { client, authority, inventory, deny, desk, bootstrap, writer }))
    }

    /// The deny list for the API.
    pub fn deny_list(&self) -> Arc<MachineDenyList> {
        self.deny.clone()
    }

    /// The service's paths for the API.
    pub fn paths(self: &Arc<Self>) -> Arc<dyn Extensions> {
        Arc::new(Paths(self.clone()))
    }

    /// Whether the cluster is the admin's.
    pub fn is_bootstrapped(&self) -> bool {
        self.bootstrap.is_done()
    }

    /// Waits until it is.
    pub async fn bootstrapped(&self) {
        self.bootstrap.done().await;
    }

    /// Waits until the reference values are there and the deny list is whole. Needs [`AttestationService::run`].
    pub async fn ready(&self) {
        self.inventory.ready().await;
    }

    /// Follows the reference values and writes what follows from them. Call it once, after the bootstrap; drop it to stop.
    pub async fn run(&self) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let write = async {
            if let Some(writer) = writer {
                writer.run().await;
            }
        };
        self.bootstrap.seed_until_done().await;
        tokio::join!(
            self.follow_machines(),
            self.follow_releases(),
            self.follow_policies(),
            standing::keep_taints(&self.client, &self.inventory),
            standing::keep_statuses(&self.client, &self.inventory),
            signer::sign_approved(&self.client, &self.authority),
            self.deny.tick(),
            write,
        );
    }

    async fn follow_machines(&self) {
        let mut follower = Follower::new(self.client.clone(), None, ListParams::default());
        loop {
            self.inventory.take_machine(follower.next().await);
        }
    }

    async fn follow_releases(&self) {
        let mut follower = Follower::new(self.client.clone(), None, ListParams::default());
        loop {
            self.inventory.take_release(follower.next().await);
        }
    }

    async fn follow_policies(&self) {
        let mut follower = Follower::new(self.client.clone(), None, ListParams::default());
        loop {
            self.inventory.take_policy(follower.next().await);
        }
    }

    async fn answer(&self, request: Request<Body>, peer: Peer) -> Answer {
        let (parts, incoming) = request.into_parts();
        let path = parts.uri.path();
        let post = parts.method == Method::POST;
        if path.starts_with("/bootstrap/") {
            return match path {
                BOOTSTRAP_HELLO_PATH if parts.method == Method::GET => self.bootstrap.hello().await,
                BOOTSTRAP_CHALLENGE_PATH if post => self.bootstrap.challenge(incoming, &peer).await,
                BOOTSTRAP_ADMIT_PATH if post => self.bootstrap.admit(incoming).await,
                _ => nothing_here(),
            };
        }
        if !self.is_bootstrapped() {
            return Answer::of(
                StatusCode::SERVICE_UNAVAILABLE,
                "NOT_BOOTSTRAPPED",
                "this master was not bootstrapped yet: run `pratique bootstrap`",
            );
        }
        let desk = &self.desk;
        match path {
            SESSIONS_PATH if post => desk.hello(incoming, &peer).await,
            RENEWALS_PATH if post => desk.renewal(incoming, &peer).await,
            _ if post => match (session_of_path(SESSIONS_PATH, path), session_of_path(RENEWALS_PATH, path)) {
                (Some(session), _) | (None, Some(session)) => desk.evidence(&session, incoming, &peer).await,
                (None, None) => nothing_here(),
            },
            _ => nothing_here(),
        }
    }
}

fn nothing_here() -> Answer {
    Answer::of(StatusCode::NOT_FOUND, "NOT_FOUND", "there is nothing at this path and method")
}

/// The hook for the API: before the bootstrap every path but health is the service's, so that nothing else answers.
#[derive(Debug)]
struct Paths(Arc<AttestationService>);

/// What anybody may ask at any time.
const HEALTH: [&str; 4] = ["/livez", "/readyz", "/healthz", "/version"];

impl Extensions for Paths {
    fn claims(&self, path: &str) -> bool {
        let own = path.starts_with("/attest/") || path.starts_with("/bootstrap/");
        let health =
            HEALTH.iter().any(|h| path.strip_prefix(h).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
        own || (!health && !self.0.is_bootstrapped())
    }

    fn handle(&self, request: Request<Body>, peer: Peer, _user: UserInfo) -> BoxFuture<'static, Response<Body>> {
        let service = self.0.clone();
        Box::pin(async move { Box::pin(service.answer(request, peer)).await.into_response() })
    }
}
