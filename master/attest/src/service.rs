//! The attestation service: its paths, and the followers that run beside them.

use crate::answer::ServiceAnswer;
use crate::bootstrap::BootstrapService;
use crate::deny::MachineDenyList;
use crate::error::Error;

use crate::exchange::ExchangeService;
use crate::exchange_limits::ExchangeLimits;
use crate::facts::ClusterFacts;
use crate::in_force::in_force;
use crate::inventory::{ReferenceKind, ReferenceTables};
use crate::machine_changes::{Decided, MachineChanges};
use crate::records::Records;
use crate::session_tables::SessionTables;

use crate::request_queue::RequestQueue;
use crate::rule_changes::changed;
use crate::settings::AttestationConfig;
use crate::{figures, requests, ring, statuses};
use config_errors::chain;
use config_kube::identity::ROLE_LABEL;
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::{CertificatePolicy, FromJson as _, ImageRelease, Machine};
use config_protocol::unproven;
use config_protocol::wire::{
    BOOTSTRAP_ADMIT_PATH, BOOTSTRAP_CHALLENGE_PATH, BOOTSTRAP_HELLO_PATH, RENEWALS_PATH,
    SESSIONS_PATH, SessionId, session_of_path,
};
use http::{Method, Request, Response, StatusCode};
use master_ca::Authority;
use master_client::{
    ApiError, Body, BoxFuture, Change, Client, Follower, ListParams, Reason, UserInfo,
};
use master_journal::{Journal, Known, Lacking};
use master_listener::{Extensions, Peer};
use master_nodes::marks;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio::sync::mpsc;

/// Edits of Machines that may wait to be written into the log of verdicts. More are not written:
/// the log then has a record with their number.
const DECISIONS: usize = 8192;

/// What is to be written into the log of verdicts about Machines.
#[derive(Debug)]
enum MachineReport {
    /// An edit.
    Edited(Box<Decided>),
    /// What the log lacks of the Machines that were there at the start.
    Found(Vec<Lacking>),
}

/// The attestation service.
#[derive(Debug)]
pub struct AttestationService {
    client: Client,
    authority: Arc<Authority>,
    inventory: Arc<ReferenceTables>,
    queue: Arc<RequestQueue>,
    deny: Arc<MachineDenyList>,
    exchange: ExchangeService,
    bootstrap: BootstrapService,
    journal: Arc<Journal>,
    writer: Mutex<Option<ring::RingWriter>>,
}

impl AttestationService {
    /// The user with which the service reads and writes; the client of [`AttestationService::new`]
    /// must have it.
    pub fn user() -> UserInfo {
        ring::user()
    }

    /// Builds the service over a client of [`AttestationService::user`]; nothing runs yet.
    ///
    /// # Errors
    /// The record of the bootstrap or the file of pins cannot be read or written.
    pub fn new(
        config: &AttestationConfig,
        authority: Arc<Authority>,
        client: Client,
    ) -> Result<Arc<Self>, Error> {
        let deny = Arc::new(MachineDenyList::default());
        let inventory = Arc::new(ReferenceTables::new(
            config.release_keys.clone(),
            deny.clone(),
        ));
        let (ring, writer) = ring::ring(client.clone());
        let journal = Arc::new(Journal::new(config.log.clone(), client.clone()));
        let bootstrap =
            BootstrapService::open(config, authority.clone(), client.clone(), journal.clone())?;
        let queue = Arc::new(RequestQueue::default());
        let exchange = ExchangeService {
            facts: ClusterFacts::new(config),
            limits: ExchangeLimits::new(),
            sessions: SessionTables::new(config.exchanges),
            records: Records::new(client.clone(), inventory.clone(), journal.clone(), ring),
            authority: authority.clone(),
            inventory: inventory.clone(),
            queue: queue.clone(),
            client: client.clone(),
        };
        let writer = Mutex::new(Some(writer));
        Ok(Arc::new(Self {
            client,
            authority,
            inventory,
            queue,
            deny,
            exchange,
            bootstrap,
            journal,
            writer,
        }))
    }

    /// The deny list for the API.
    pub fn deny_list(&self) -> Arc<MachineDenyList> {
        self.deny.clone()
    }

    /// The service's paths for the API.
    pub fn paths(self: &Arc<Self>) -> Arc<dyn Extensions> {
        Arc::new(Paths(self.clone()))
    }

    /// Whether the bootstrap took place.
    pub fn is_bootstrapped(&self) -> bool {
        self.bootstrap.is_done()
    }

    /// Waits until the bootstrap took place.
    pub async fn bootstrapped(&self) {
        self.bootstrap.done().await;
    }

    /// Waits until the inventory and the deny list are filled. [`AttestationService::run`] fills
    /// them.
    pub async fn ready(&self) {
        self.inventory.ready().await;
    }

    /// Runs the followers and the writers of derived objects. Call it once, after the bootstrap;
    /// drop it to stop.
    pub async fn run(&self) {
        let writer = self
            .writer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let write = async {
            if let Some(writer) = writer {
                writer.run().await;
            }
        };
        self.bootstrap.seed_until_done().await;
        let recorded = self.journal.recorded().await;
        self.journal.started(&self.authority.pins()).await;
        let (reports, decisions) = mpsc::channel(DECISIONS);
        tokio::join!(
            self.follow_machines(recorded.machines, reports),
            self.follow_nodes(),
            self.record_decisions(decisions),
            self.follow_releases(recorded.releases),
            self.follow_policies(recorded.policies),
            statuses::keep_statuses(&self.client, &self.inventory, &self.exchange),
            requests::keep_requests(&self.client, &self.queue, &self.journal),
            self.deny.notify_periodically(),
            write,
        );
    }

    /// Follows Machines. A change is in force before it is written into the log of verdicts, and
    /// does not wait for the disk.
    async fn follow_machines(&self, recorded: Known, sender: mpsc::Sender<MachineReport>) {
        let mut follower =
            Follower::<Machine>::new(self.client.clone(), None, ListParams::default());
        let mut changes = MachineChanges::default();
        let mut began = false;
        loop {
            let change = follower.next().await;
            let decided = changes.take(&change).into_iter();
            let decided = decided.map(|one| MachineReport::Edited(Box::new(one)));
            let lacking = match &change {
                Change::Listed(now) if !began => recorded.lacks_machines(now),
                Change::Listed(_) | Change::Set(_) | Change::Deleted(_) => Vec::new(),
            };
            began = true;
            let lacking = Some(lacking).filter(|lacking| !lacking.is_empty());
            let reports: Vec<MachineReport> =
                decided.chain(lacking.map(MachineReport::Found)).collect();
            // Sent before the inventory is updated, because the admin's request waits for the
            // inventory.
            match &change {
                Change::Listed(now) => now.iter().for_each(|new| self.bootstrap.machine_is(new)),
                Change::Set(new) => self.bootstrap.machine_is(new),
                Change::Deleted(_) => {}
            }
            self.inventory.take_machine(change, follower.reached());
            for one in reports {
                if sender.try_send(one).is_err() {
                    tracing::error!(
                        "a decision is missing in the log of verdicts: they come faster than the disk can write them"
                    );
                    self.journal.log().missed();
                }
            }
        }
    }

    /// Follows the Nodes that were created for Machines, by a label that only the master sets.
    async fn follow_nodes(&self) {
        let params = ListParams {
            labels: Some(ROLE_LABEL.to_owned()),
            ..ListParams::default()
        };
        let name = |node: Node| node.metadata.name.unwrap_or_default();
        let mut follower = Follower::reading(self.client.clone(), None, params, name);
        loop {
            self.inventory.take_nodes(follower.next().await);
        }
    }

    async fn record_decisions(&self, mut decisions: mpsc::Receiver<MachineReport>) {
        while let Some(one) = decisions.recv().await {
            match one {
                MachineReport::Edited(decided) => {
                    let (old, new) = *decided;
                    self.journal
                        .machine_edited(old.as_ref(), new.as_ref())
                        .await;
                }
                MachineReport::Found(lacking) => self.journal.record_found(lacking).await,
            }
        }
    }

    async fn follow_releases(&self, recorded: Known) {
        let mut follower =
            Follower::<ImageRelease>::new(self.client.clone(), None, ListParams::default());
        let mut began = false;
        loop {
            let change = follower.next().await;
            let known = self.inventory.releases().into_iter();
            let known: Vec<_> = known.map(|release| release.object).collect();
            let changed = changed(&known, &change, |old, new| old.spec == new.spec);
            let lacking = match &change {
                Change::Listed(now) if !began => recorded.lacks_releases(now),
                Change::Listed(_) | Change::Set(_) | Change::Deleted(_) => Vec::new(),
            };
            self.inventory.take_release(change);
            self.journal.record_found(lacking).await;
            // The first list is compared with what earlier processes have recorded.
            for (release, gone) in changed.into_iter().filter(|_| began) {
                self.journal.release_changed(&release, gone).await;
            }
            began = true;
        }
    }

    async fn follow_policies(&self, recorded: Known) {
        let mut follower =
            Follower::<CertificatePolicy>::new(self.client.clone(), None, ListParams::default());
        let mut began = false;
        loop {
            let change = follower.next().await;
            let known = self.inventory.policies();
            let changed = changed(&known, &change, |old, new| old.spec == new.spec);
            let lacking = match &change {
                Change::Listed(now) if !began => recorded.lacks_policies(now),
                Change::Listed(_) | Change::Set(_) | Change::Deleted(_) => Vec::new(),
            };
            self.inventory.take_policy(change);
            self.journal.record_found(lacking).await;
            // The first list is compared with what earlier processes have recorded.
            for (policy, gone) in changed.into_iter().filter(|_| began) {
                self.journal.policy_changed(&policy, gone).await;
            }
            began = true;
        }
    }

    /// After a change of the cluster's roots: writes the pins for the agent of this machine,
    /// continues the log of verdicts with a key under the first root, and records who made the
    /// change. Earlier records verify with their own root.
    ///
    /// # Errors
    /// The file of pins, the CA or the log failed.
    pub async fn authority_changed(&self, by: &str, message: &str) -> Result<(), Error> {
        self.bootstrap.write_pin()?;
        let authority = Arc::clone(&self.authority);
        let signer = tokio::task::spawn_blocking(move || authority.log_signer(SystemTime::now()));
        self.journal
            .log()
            .sign_with(signer.await.map_err(Error::Task)?.map_err(Error::Issue)?)
            .await;
        Ok(self.journal.authority_changed(by, message).await?)
    }

    /// Writes into the log of verdicts that an admin's certificate was renewed over the key with
    /// this hash. The record is on disk when this returns.
    ///
    /// # Errors
    /// The log failed.
    pub async fn admin_renewed(&self, by: &str, key: &str) -> Result<(), Error> {
        Ok(self.journal.admin_renewed(by, key).await?)
    }

    async fn answer(&self, request: Request<Body>, peer: Peer) -> ServiceAnswer {
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
            return ServiceAnswer::of(
                StatusCode::SERVICE_UNAVAILABLE,
                "NOT_BOOTSTRAPPED",
                "this master was not bootstrapped yet: run `pratique bootstrap`",
            );
        }
        let exchange = &self.exchange;
        match path {
            SESSIONS_PATH if post => exchange.hello(incoming, &peer).await,
            RENEWALS_PATH if post => exchange.renewal(incoming, &peer).await,
            unproven::SESSIONS_PATH if post => exchange.unproven_hello(incoming, &peer).await,
            unproven::RENEWALS_PATH if post => exchange.unproven_renewal(incoming, &peer).await,
            _ if post => {
                if let Some(session) = session_in([SESSIONS_PATH, RENEWALS_PATH], path) {
                    exchange.evidence(&session, incoming, &peer).await
                } else if let Some(session) =
                    session_in([unproven::SESSIONS_PATH, unproven::RENEWALS_PATH], path)
                {
                    exchange.unproven_evidence(&session, incoming, &peer).await
                } else {
                    nothing_here()
                }
            }
            _ => nothing_here(),
        }
    }
}

/// Whether a step of an exchange is behind a path.
fn is_exchange(path: &str) -> bool {
    let hellos = [
        SESSIONS_PATH,
        RENEWALS_PATH,
        unproven::SESSIONS_PATH,
        unproven::RENEWALS_PATH,
    ];
    let evidence = |hello: &&str| session_of_path(hello, path).is_some();
    hellos.contains(&path) || hellos.iter().any(evidence)
}

/// The session in an evidence path under either of two paths.
fn session_in(paths: [&str; 2], path: &str) -> Option<SessionId> {
    paths
        .iter()
        .find_map(|sessions| session_of_path(sessions, path))
}

fn nothing_here() -> ServiceAnswer {
    ServiceAnswer::of(
        StatusCode::NOT_FOUND,
        "NOT_FOUND",
        "there is nothing at this path and method",
    )
}

/// The API's hook. Before the bootstrap the service claims every path except the health checks, so
/// that nothing else answers.
#[derive(Debug)]
struct Paths(Arc<AttestationService>);

/// Paths that answer also before the bootstrap.
const HEALTH: [&str; 4] = ["/livez", "/readyz", "/healthz", "/version"];

impl Extensions for Paths {
    fn claims(&self, path: &str) -> bool {
        let own = path.starts_with("/attest/") || path.starts_with("/bootstrap/");
        let health = HEALTH.iter().any(|h| {
            path.strip_prefix(h)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        own || (!health && !self.0.is_bootstrapped())
    }

    /// True for the steps of an exchange after the bootstrap: [`ExchangeLimits`] counts them by the
    /// caller's credentials. The API server limits all other requests.
    fn limits_itself(&self, method: &Method, path: &str) -> bool {
        method == Method::POST && is_exchange(path) && self.0.is_bootstrapped()
    }

    fn warnings(
        &self,
        kind: &str,
        object: &serde_json::Map<String, serde_json::Value>,
    ) -> Vec<String> {
        if kind != "ImageRelease" {
            return Vec::new();
        }
        let parsed = ImageRelease::from_tree(&serde_json::Value::Object(object.clone()));
        let fault = parsed
            .ok()
            .and_then(|release| self.0.inventory.fault_of(release));
        fault
            .map(|fault| format!("this release admits no machine: {fault}"))
            .into_iter()
            .collect()
    }

    fn may_register(&self, node: &str) -> Result<(), String> {
        let (inventory, machines) = (&self.0.inventory, self.0.inventory.machines());
        let machine = machines.iter().find(|machine| machine.node_name() == node);
        let policy = inventory.policy();
        marks::may_register(machine, policy.as_ref().map(|policy| &policy.spec))
    }

    fn figures(&self) -> String {
        let service = &self.0;
        figures::write(
            service.journal.counters(),
            &service.inventory.machines(),
            service.exchange.sessions.counts(),
            SystemTime::now(),
        )
    }

    fn in_force(&self, plural: &str, name: &str) -> BoxFuture<'static, bool> {
        let kind = match plural {
            "machines" => ReferenceKind::Machine,
            "imagereleases" => ReferenceKind::Release,
            "certificatepolicies" => ReferenceKind::Policy,
            _ => return Box::pin(std::future::ready(true)),
        };
        let (service, name) = (self.0.clone(), name.to_owned());
        Box::pin(async move { in_force(&service.client, &service.inventory, kind, &name).await })
    }

    fn verdicts(&self) -> Option<BoxFuture<'static, Result<Body, ApiError>>> {
        let service = self.0.clone();
        Some(Box::pin(async move {
            service
                .journal
                .log()
                .read()
                .map_err(|error| ApiError::new(Reason::InternalError, chain(&error)))
        }))
    }

    fn order_given(
        &self,
        node: &str,
        by: &str,
        order: &'static str,
        outcome: &str,
    ) -> Option<BoxFuture<'static, Result<(), ApiError>>> {
        let machines = self.0.inventory.machines();
        let machine = machines.iter().find(|machine| machine.node_name() == node);
        let machine = machine.cloned();
        let (service, node, by) = (self.0.clone(), node.to_owned(), by.to_owned());
        let outcome = outcome.to_owned();
        Some(Box::pin(async move {
            let (subject, outcome) = (machine.as_ref().ok_or(&*node), &*outcome);
            let given = service.journal.order_given(subject, &by, order, outcome);
            given
                .await
                .map_err(|error| ApiError::new(Reason::ServiceUnavailable, chain(&error)))
        }))
    }

    fn handle(
        &self,
        request: Request<Body>,
        peer: Peer,
        _user: UserInfo,
    ) -> BoxFuture<'static, Response<Body>> {
        let service = self.0.clone();
        Box::pin(async move {
            Box::pin(service.answer(request, peer))
                .await
                .into_response()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_steps_of_an_exchange_are_outside_of_the_servers_limits() {
        let session = "0123456789abcdef".repeat(2);
        for hello in [
            SESSIONS_PATH,
            RENEWALS_PATH,
            unproven::SESSIONS_PATH,
            unproven::RENEWALS_PATH,
        ] {
            assert!(is_exchange(hello));
            assert!(is_exchange(&format!("{hello}/{session}/evidence")));
            assert!(!is_exchange(&format!("{hello}/{session}")));
            assert!(!is_exchange(&format!("{hello}/x/evidence")));
        }
        for path in ["/attest/", "/attest/v1/nothing", BOOTSTRAP_HELLO_PATH, "/"] {
            assert!(!is_exchange(path), "{path}");
        }
    }
}
