//! The paths beside the API through which admins rotate the root.
//!
//! Each step goes to disk first (`master_ca`), then to the API's certificate, to the controller
//! that publishes the roots and to the log of verdicts. A master that is killed in between
//! continues at its next start from the state on disk. A step goes on if its client goes away.

use crate::chain;
use crate::serving::Serving;
use config_kube::identity::MASTERS_GROUP;
use config_kube::k8s_openapi::api::core::v1::Node;
use config_kube::roots::is_ready_for;
use config_kube::{Machine, MachineState};
use config_tpm::Digest;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use master_attest::AttestationService;
use master_ca::{
    AdminAccess, Authority, CERTIFICATE_PATH, ROOT_PATH, RootPhase, Rotation, UnreadyNode, spki_of,
};
use master_client::{ApiError, Body, BoxFuture, Client, ListParams, UserInfo, body};
use master_listener::{Extensions, Peer};
use serde::Serialize;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::{Mutex, watch};

/// Carries out the steps of a rotation.
#[derive(Debug)]
pub(crate) struct Rotator {
    authority: Arc<Authority>,
    serving: Arc<Serving>,
    service: Arc<AttestationService>,
    client: Client,
    /// The key to which the recovery copy is encrypted.
    admin_key: Option<Digest>,
    /// The roots that are published (PEM).
    published: watch::Sender<String>,
    /// One step at a time.
    turn: Mutex<()>,
}

/// Why a step is refused.
struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
        }
    }
}

impl From<master_ca::Error> for Refusal {
    fn from(error: master_ca::Error) -> Self {
        let (status, code) = if matches!(error, master_ca::Error::Rotation(_)) {
            (StatusCode::CONFLICT, "ROTATION_STATE")
        } else if matches!(error, master_ca::Error::Request(_)) {
            (StatusCode::FORBIDDEN, "FORBIDDEN")
        } else {
            (StatusCode::INTERNAL_SERVER_ERROR, "AUTHORITY")
        };
        Self::new(status, code, chain(&error))
    }
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "API", chain(&error))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RotationStep {
    Rotate,
    Finish { force: bool },
    Abandon,
}

impl Rotator {
    pub(crate) fn new(
        authority: Arc<Authority>,
        serving: Arc<Serving>,
        service: Arc<AttestationService>,
        client: Client,
        admin_key: Option<Digest>,
    ) -> Self {
        let published = watch::Sender::new(authority.roots_pem());
        Self {
            authority,
            serving,
            service,
            client,
            admin_key,
            published,
            turn: Mutex::new(()),
        }
    }

    /// The roots as they are to be published (PEM).
    pub(crate) fn published(&self) -> watch::Receiver<String> {
        self.published.subscribe()
    }

    async fn answer(
        &self,
        method: &Method,
        path: &str,
        query: &str,
        peer: &Peer,
        user: &UserInfo,
    ) -> Response<Body> {
        let outcome = if user.in_group(MASTERS_GROUP) {
            self.perform(method, path, query, peer, user).await
        } else {
            Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "FORBIDDEN",
                "only members of the group system:masters may see and rotate the cluster's root",
            ))
        };
        outcome.unwrap_or_else(
            |Refusal {
                 status,
                 code,
                 message,
             }| {
                tracing::info!(path, user = user.name, code, message, "refused");
                json(
                    status,
                    &serde_json::json!({ "code": code, "message": message }),
                )
            },
        )
    }

    async fn perform(
        &self,
        method: &Method,
        path: &str,
        query: &str,
        peer: &Peer,
        user: &UserInfo,
    ) -> Result<Response<Body>, Refusal> {
        let _turn = self.turn.lock().await;
        let act = match (method, path.strip_prefix(ROOT_PATH)) {
            (&Method::GET, Some("")) => None,
            (&Method::POST, Some("/rotate")) => Some(RotationStep::Rotate),
            (&Method::POST, Some("/finish")) => Some(RotationStep::Finish {
                force: query == "force=true",
            }),
            (&Method::POST, Some("/abandon")) => Some(RotationStep::Abandon),
            (&Method::POST, None) if path == CERTIFICATE_PATH => {
                return Ok(json(StatusCode::OK, &self.renewed(peer, user).await?));
            }
            _ => {
                return Err(Refusal::new(
                    StatusCode::NOT_FOUND,
                    "NOT_FOUND",
                    "there is nothing at this path",
                ));
            }
        };
        if let Some(act) = act {
            self.act(act, peer, user).await?;
        }
        Ok(json(StatusCode::OK, &self.state().await?))
    }

    /// A new certificate for the admin's present key, under the current hierarchy. It leaves the
    /// master after its record is on disk: a copy of the key does not renew unseen.
    async fn renewed(&self, peer: &Peer, user: &UserInfo) -> Result<AdminAccess, Refusal> {
        let issued = self
            .authority
            .renew_admin(&peer.certificates, SystemTime::now())?;
        let key = Digest::of(&shown_key(peer)).to_text();
        let recorded = self.service.admin_renewed(&user.name, &key).await;
        recorded.map_err(|error| {
            Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "NOT_RECORDED",
                chain(&error),
            )
        })?;
        Ok(AdminAccess {
            certificate: issued.chain_pem(),
            roots: self.authority.roots_pem(),
        })
    }

    async fn act(&self, act: RotationStep, peer: &Peer, user: &UserInfo) -> Result<(), Refusal> {
        let before = self.authority.pins().join(" and ");
        let record = match act {
            RotationStep::Rotate => "the rotation of the root is begun",
            RotationStep::Abandon => "the rotation of the root is abandoned",
            RotationStep::Finish { force } => {
                self.may_finish(force, peer).await?;
                if force {
                    "the old root is ended, also for nodes that know no other"
                } else {
                    "the old root is ended"
                }
            }
        };
        let spki = if act == RotationStep::Rotate {
            self.recipient(peer)?
        } else {
            None
        };
        let authority = Arc::clone(&self.authority);
        let changed = tokio::task::spawn_blocking(move || match act {
            RotationStep::Rotate => authority.begin_rotation(spki.as_deref(), SystemTime::now()),
            RotationStep::Finish { .. } => authority.finish_rotation(),
            RotationStep::Abandon => authority.abandon_rotation(),
        });
        changed.await.map_err(|ended| {
            Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "AUTHORITY",
                ended.to_string(),
            )
        })??;
        let after = self.authority.pins().join(" and ");
        tracing::warn!(user = user.name, before, after, "{record}");
        // Everything is tried even if a part fails: the rotation's step itself is done.
        let served = self.serving.renew(&self.authority, SystemTime::now());
        self.published.send_replace(self.authority.roots_pem());
        // Clients of a removed root are disconnected at once, not at their certificate's end.
        self.service.deny_list().notify_listeners();
        let message = format!("{record}: known by {after}, before by {before}");
        let recorded = self.service.authority_changed(&user.name, &message).await;
        let fault = |text: String| {
            let message =
                format!("{record}, but not all that follows from it: {text}; restart the master");
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "NOT_FOLLOWED", message)
        };
        recorded.map_err(|error| fault(chain(&error)))?;
        served.map_err(|error| fault(chain(&error)))
    }

    /// The recipient of the recovery copy: the admin key of the configuration, which must be the
    /// caller's.
    fn recipient(&self, peer: &Peer) -> Result<Option<Vec<u8>>, Refusal> {
        let Some(admin_key) = self.admin_key else {
            return Ok(None);
        };
        let spki = shown_key(peer);
        if Digest::of(&spki) == admin_key {
            return Ok(Some(spki));
        }
        let why = format!(
            "the recovery copy of the new root's key is encrypted to the admin key of the cluster's configuration ({}): ask \
             with the kubeconfig that has that key",
            admin_key.to_text()
        );
        Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "NOT_THE_ADMIN_KEY",
            why,
        ))
    }

    async fn may_finish(&self, force: bool, peer: &Peer) -> Result<(), Refusal> {
        let premature = |why: String| {
            Err(Refusal::new(
                StatusCode::CONFLICT,
                "ROTATION_PREMATURE",
                why,
            ))
        };
        let Some(new) = self.new_root()? else {
            return Ok(());
        };
        if !peer.certificates.is_empty() && !self.authority.chain_leads_to(&peer.certificates, &new)
        {
            let why = "your own certificate ends with the old root, and you would be locked out: renew it with `pratique root \
                       trust` and ask again";
            return premature(why.to_owned());
        }
        let waiting = self.state().await?.waiting;
        if force || waiting.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = waiting
            .iter()
            .map(|waiting| waiting.name.as_str())
            .take(20)
            .collect();
        premature(format!(
            "{} of the nodes would be locked out: {}{}; `pratique root show` says what each one lacks, --force leaves them \
             behind",
            waiting.len(),
            names.join(", "),
            if waiting.len() > names.len() {
                ", …"
            } else {
                ""
            }
        ))
    }

    /// Pin of the root that stays.
    fn new_root(&self) -> Result<Option<String>, Refusal> {
        let roots = self.authority.roots_in_force()?;
        Ok(roots
            .into_iter()
            .find(|root| root.phase == RootPhase::New)
            .map(|root| root.pin))
    }

    async fn state(&self) -> Result<Rotation, Refusal> {
        let since = self
            .authority
            .rotating_since()
            .and_then(|time| jiff::Timestamp::try_from(time).ok());
        let (mut waiting, mut aside) = (Vec::new(), Vec::new());
        if let Some(pin) = self.new_root()? {
            let machines = self
                .client
                .list::<Machine>(None, &ListParams::default())
                .await?
                .items;
            let nodes = self
                .client
                .list::<Node>(None, &ListParams::default())
                .await?
                .items;
            (waiting, aside) = unready_nodes(&machines, &nodes, &pin);
        }
        let roots = self.authority.roots_in_force()?;
        Ok(Rotation {
            roots,
            since: since.map(|since| since.to_string()),
            waiting,
            aside,
        })
    }
}

/// The key of the certificate that a caller showed (SubjectPublicKeyInfo); empty where there is
/// none.
fn shown_key(peer: &Peer) -> Vec<u8> {
    let leaf = peer.certificates.first();
    leaf.and_then(|leaf| spki_of(leaf)).unwrap_or_default()
}

/// Nodes that are not ready for the root with this pin, and machines of which that is not known.
fn unready_nodes(
    machines: &[Machine],
    nodes: &[Node],
    pin: &str,
) -> (Vec<UnreadyNode>, Vec<UnreadyNode>) {
    let (mut waiting, mut aside) = (Vec::new(), Vec::new());
    let unready = |name: &str, why: String| UnreadyNode {
        name: name.to_owned(),
        why,
    };
    for node in nodes {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let machine = machines.iter().find(|machine| machine.node_name() == name);
        let conditions = node
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref())
            .unwrap_or_default();
        if is_ready_for(conditions, pin) {
            continue;
        }
        let unknown = conditions
            .iter()
            .find(|condition| condition.type_ == config_kube::roots::ROOT_UNKNOWN);
        match machine {
            None => {
                let why = "an ordinary kubelet, which can't say what it knows: put both roots into its kubeconfig, and let it \
                           renew its certificate";
                waiting.push(unready(name, why.to_owned()));
            }
            Some(machine) if machine.spec.retired => {}
            Some(machine) if state(machine) == MachineState::Untrusted => {
                aside.push(unready(name, "Untrusted: it is shut out anyway".to_owned()));
            }
            Some(_) => waiting.push(unready(
                name,
                match unknown.filter(|unknown| unknown.status == "True") {
                    Some(unknown) => unknown.message.clone().unwrap_or_default(),
                    None => format!("its kubelet has not reported since the rotation began; it needs {pin} among its pins"),
                },
            )),
        }
    }
    let node = |machine: &&Machine| {
        nodes
            .iter()
            .any(|node| node.metadata.name.as_deref() == Some(machine.node_name()))
    };
    for machine in machines
        .iter()
        .filter(|machine| !machine.spec.retired && !node(machine))
    {
        let name = machine.metadata.name.as_deref().unwrap_or_default();
        aside.push(unready(
            name,
            format!("it has no Node yet; its user-data needs {pin} among the pins"),
        ));
    }
    (waiting, aside)
}

fn state(machine: &Machine) -> MachineState {
    machine
        .status
        .as_ref()
        .map_or(MachineState::Pending, |status| status.state)
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let mut response = Response::new(body(serde_json::to_vec(value).unwrap_or_default()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The paths of attestation, and beside them those of the rotation.
#[derive(Debug)]
pub(crate) struct Paths {
    pub(crate) attestation: Arc<dyn Extensions>,
    pub(crate) rotation: Arc<dyn Extensions>,
    /// The metrics of the controllers' work queues.
    pub(crate) controllers: Arc<master_control::Figures>,
}

impl Extensions for Paths {
    fn claims(&self, path: &str) -> bool {
        self.rotation.claims(path) || self.attestation.claims(path)
    }

    fn limits_itself(&self, method: &Method, path: &str) -> bool {
        self.attestation.limits_itself(method, path)
    }

    fn warnings(
        &self,
        kind: &str,
        object: &serde_json::Map<String, serde_json::Value>,
    ) -> Vec<String> {
        self.attestation.warnings(kind, object)
    }

    fn may_register(&self, node: &str) -> Result<(), String> {
        self.attestation.may_register(node)
    }

    fn figures(&self) -> String {
        self.attestation.figures() + &self.controllers.text()
    }

    fn in_force(&self, plural: &str, name: &str) -> BoxFuture<'static, bool> {
        self.attestation.in_force(plural, name)
    }

    fn verdicts(&self) -> Option<BoxFuture<'static, Result<Body, ApiError>>> {
        self.attestation.verdicts()
    }

    fn order_given(
        &self,
        node: &str,
        by: &str,
        order: &'static str,
        outcome: &str,
    ) -> Option<BoxFuture<'static, Result<(), ApiError>>> {
        self.attestation.order_given(node, by, order, outcome)
    }

    fn handle(
        &self,
        request: Request<Body>,
        peer: Peer,
        user: UserInfo,
    ) -> BoxFuture<'static, Response<Body>> {
        let part = if self.rotation.claims(request.uri().path()) {
            &self.rotation
        } else {
            &self.attestation
        };
        part.handle(request, peer, user)
    }
}

/// The paths of the rotation.
#[derive(Debug)]
pub(crate) struct RotationPaths(pub(crate) Arc<Rotator>);

impl Extensions for RotationPaths {
    /// Until the cluster is bootstrapped the attestation answers every path.
    fn claims(&self, path: &str) -> bool {
        path.starts_with("/authority/") && self.0.service.is_bootstrapped()
    }

    fn in_force(&self, _: &str, _: &str) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(true))
    }

    fn handle(
        &self,
        request: Request<Body>,
        peer: Peer,
        user: UserInfo,
    ) -> BoxFuture<'static, Response<Body>> {
        let rotator = Arc::clone(&self.0);
        let answer = async move {
            let (method, uri) = (request.method().clone(), request.uri().clone());
            rotator
                .answer(
                    &method,
                    uri.path(),
                    uri.query().unwrap_or_default(),
                    &peer,
                    &user,
                )
                .await
        };
        // A task of its own: where the client goes away, this future is dropped, but a step that is
        // on disk must be followed by its record and by the end of denied connections.
        Box::pin(async move {
            tokio::spawn(answer).await.unwrap_or_else(|ended| {
                json(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    &serde_json::json!({ "code": "AUTHORITY", "message": ended.to_string() }),
                )
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_kube::k8s_openapi::api::core::v1::NodeCondition;
    use config_kube::roots::{ROOT_UNKNOWN, ready_for};
    use config_kube::{MachineSpec, MachineStatus};

    const PIN: &str = "sha256:bb";

    /// A fake service for paths below `/own/`, in which no write ever takes effect.
    #[derive(Debug)]
    struct Behind;

    impl Extensions for Behind {
        fn claims(&self, path: &str) -> bool {
            path.starts_with("/own/")
        }

        fn limits_itself(&self, method: &Method, path: &str) -> bool {
            method == Method::POST && self.claims(path)
        }

        fn in_force(&self, _: &str, _: &str) -> BoxFuture<'static, bool> {
            Box::pin(std::future::ready(false))
        }

        fn handle(
            &self,
            _: Request<Body>,
            _: Peer,
            _: UserInfo,
        ) -> BoxFuture<'static, Response<Body>> {
            Box::pin(std::future::ready(Response::new(body("behind"))))
        }
    }

    /// An admin's write is in effect at the answer only if the answer waits for the service that
    /// uses it.
    #[tokio::test]
    async fn an_answer_waits_for_the_attestation() {
        let paths = Paths {
            attestation: Arc::new(Behind),
            rotation: Arc::new(Behind),
            controllers: Arc::default(),
        };
        assert!(!paths.in_force("machines", "a").await);
        assert!(paths.claims("/own/x") && !paths.claims("/api"));
        assert!(paths.limits_itself(&Method::POST, "/own/x"));
        assert!(!paths.limits_itself(&Method::GET, "/own/x"));
    }

    fn node(name: &str, condition: Option<(&str, String)>) -> Node {
        let mut node = Node::default();
        node.metadata.name = Some(name.to_owned());
        let condition = condition.map(|(status, message)| NodeCondition {
            type_: ROOT_UNKNOWN.to_owned(),
            status: status.to_owned(),
            message: Some(message),
            ..NodeCondition::default()
        });
        node.status.get_or_insert_default().conditions = condition.map(|condition| vec![condition]);
        node
    }

    fn machine(name: &str, state: MachineState, retired: bool) -> Machine {
        let mut machine = Machine::named(
            name,
            MachineSpec {
                retired,
                ..MachineSpec::default()
            },
        );
        machine.status = Some(MachineStatus {
            state,
            ..MachineStatus::default()
        });
        machine
    }

    #[test]
    fn a_rotation_waits_for_nodes_that_did_not_report_ready() {
        let old = || Some(("False", ready_for(&["sha256:aa"])));
        let machines = [
            machine("ready", MachineState::Trusted, false),
            machine("old", MachineState::Trusted, false),
            machine("lacks", MachineState::Trusted, false),
            machine("retired", MachineState::Trusted, true),
            machine("bad", MachineState::Untrusted, false),
            machine("new", MachineState::Pending, false),
        ];
        let nodes = [
            node("ready", Some(("False", ready_for(&["sha256:aa", PIN])))),
            node("old", old()),
            node("lacks", Some(("True", "its pin is missing".to_owned()))),
            node("retired", old()),
            node("bad", old()),
            node("ordinary", None),
        ];
        let (waiting, aside) = unready_nodes(&machines, &nodes, PIN);
        let names =
            |all: &[UnreadyNode]| all.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&waiting), ["old", "lacks", "ordinary"]);
        assert_eq!(names(&aside), ["bad", "new"]);
        assert_eq!(waiting[1].why, "its pin is missing");
        assert!(waiting[0].why.contains(PIN));
    }
}
