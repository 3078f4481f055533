//! A CSI driver in the test's own process: it registers at an agent, and mounts file systems in
//! memory.
//!
//! It checks that the agent's calls are in the order of the CSI specification, and misbehaves where
//! a test asks for it.

use crate::silent::Silent;
use agent_csi::messages::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesResponse,
    NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodeServiceCapability, NodeServiceRpc, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, PluginInfo, RegistrationStatus, Topology,
    VolumeUsage, capability, unit,
};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use prost::Message;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::UnixListener;
use tokio::task::JoinSet;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// How a driver behaves at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It never answers.
    Hangs,
    /// Its answer has no end.
    Endless,
    /// It refuses.
    Refuses,
    /// It carries the call out, and answers with an error.
    Lies,
    /// It answers with success, and has done nothing.
    Idle,
    /// It puts a link to the machine's root in the place of the mount.
    Links,
    /// It mounts a file system whose server never answers, until the volume is unpublished.
    Silent,
}

/// A driver, with its sockets below the folder of a machine's volumes. Its mounts are removed
/// when it is dropped.
#[derive(Debug)]
pub struct Driver {
    state: Arc<Mutex<State>>,
    sockets: [PathBuf; 2],
    _servers: JoinSet<()>,
}

#[derive(Debug, Default)]
struct State {
    name: String,
    endpoint: String,
    topology: BTreeMap<String, String>,
    faults: BTreeMap<String, Fault>,
    calls: Vec<String>,
    publishes: Vec<NodePublishVolumeRequest>,
    stages: Vec<NodeStageVolumeRequest>,
    registration: Option<RegistrationStatus>,
    /// Where volumes are staged, by their ids.
    staged: BTreeMap<String, String>,
    /// Which volumes are published, by targets.
    published: BTreeMap<String, String>,
    /// What is mounted and never answers, by targets.
    silent: BTreeMap<String, Silent>,
    violations: Vec<String>,
}

impl Driver {
    /// Starts a driver of this name.
    pub fn start(data: &Path, name: &str) -> Self {
        Self::start_with(data, name, name, &[])
    }

    /// As [`Driver::start`], with a socket file of another name than the driver reports, and with a
    /// topology of the node.
    pub fn start_with(data: &Path, file: &str, name: &str, topology: &[(&str, &str)]) -> Self {
        let folder = data.join("plugins").join(file);
        let registration = data.join("plugins_registry");
        fs::create_dir_all(&folder).expect("a folder");
        fs::create_dir_all(&registration).expect("a folder");
        let own = folder.join("csi.sock");
        let registration = registration.join(format!("{file}-reg.sock"));
        let segments = topology.iter();
        let state = Arc::new(Mutex::new(State {
            name: name.to_owned(),
            endpoint: own.display().to_string(),
            topology: segments
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..State::default()
        }));
        let mut servers = JoinSet::new();
        for path in [&own, &registration] {
            fs::remove_file(path).ok();
            let listener = UnixListener::bind(path).expect("a socket");
            servers.spawn(serve(listener, state.clone()));
        }
        Self {
            state,
            sockets: [registration, own],
            _servers: servers,
        }
    }

    /// The node service's calls that it was asked for, each with its volume.
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// The publications that it was asked for.
    pub fn publishes(&self) -> Vec<NodePublishVolumeRequest> {
        self.state().publishes.clone()
    }

    /// The stagings that it was asked for.
    pub fn stages(&self) -> Vec<NodeStageVolumeRequest> {
        self.state().stages.clone()
    }

    /// The agent's answer to its registration.
    pub fn registration(&self) -> Option<RegistrationStatus> {
        self.state().registration.clone()
    }

    /// Sets its fault at calls of this name; `None` ends it.
    pub fn misbehave(&self, method: &str, fault: Option<Fault>) {
        let faults = &mut self.state().faults;
        match fault {
            Some(fault) => faults.insert(method.to_owned(), fault),
            None => faults.remove(method),
        };
    }

    /// What is staged or published, and where the agent broke the order of calls.
    pub fn left(&self) -> (usize, usize, Vec<String>) {
        let state = self.state();
        let (staged, published) = (state.staged.len(), state.published.len());
        (staged, published, state.violations.clone())
    }

    /// Moves what another one has mounted and noted to this one, as a driver that begins again.
    pub fn inherit(&self, other: &Self) {
        let mut other = other.state();
        let mut own = self.state();
        own.staged = std::mem::take(&mut other.staged);
        own.published = std::mem::take(&mut other.published);
        own.silent = std::mem::take(&mut other.silent);
        own.violations = std::mem::take(&mut other.violations);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        for socket in &self.sockets {
            fs::remove_file(socket).ok();
        }
        let mut state = self.state();
        state.silent.clear();
        for path in state.published.keys().chain(state.staged.values()) {
            unmount(path);
        }
    }
}

async fn serve(listener: UnixListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let state = state.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| answer(state.clone(), request));
            let connection = http2::Builder::new(TokioExecutor::new());
            connection
                .serve_connection(TokioIo::new(stream), service)
                .await
                .ok();
        });
    }
}

async fn answer(
    state: Arc<Mutex<State>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let method = request
        .uri()
        .path()
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_owned();
    let body = request.into_body().collect().await?.to_bytes();
    let message = body.slice(body.len().min(5)..);
    let fault = {
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.faults.get(&method).copied()
    };
    match fault {
        Some(Fault::Hangs) => std::future::pending().await,
        Some(Fault::Endless) => {
            let frames = stream::repeat_with(|| Ok(Frame::data(Bytes::from(vec![0; 1 << 14]))));
            return Ok(response(StreamBody::new(frames).boxed_unsync()));
        }
        Some(Fault::Refuses) => return Ok(ended(None, "13")),
        Some(Fault::Lies | Fault::Idle | Fault::Links | Fault::Silent) | None => {}
    }
    let answer = {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.answer(&method, &message, fault)
    };
    if fault == Some(Fault::Lies) {
        return Ok(ended(None, "14"));
    }
    Ok(match answer {
        Some(answer) => ended(Some(answer), "0"),
        None => ended(None, "12"),
    })
}

fn response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", grpc);
    response
}

/// An answer with its message, if any, and its status.
fn ended(message: Option<Vec<u8>>, status: &'static str) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    trailers.insert(
        "grpc-message",
        HeaderValue::from_static("as the test wants"),
    );
    let data = message.map(|message| {
        let mut frame = vec![0];
        frame.extend(u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
        frame.extend(message);
        Ok(Frame::data(frame.into()))
    });
    let frames = data.into_iter().chain([Ok(Frame::trailers(trailers))]);
    response(StreamBody::new(stream::iter(frames)).boxed_unsync())
}

impl State {
    fn answer(&mut self, method: &str, message: &[u8], fault: Option<Fault>) -> Option<Vec<u8>> {
        match method {
            "GetInfo" => return Some(self.info().encode_to_vec()),
            "NodeGetInfo" => return Some(self.node().encode_to_vec()),
            "NodeGetCapabilities" => return Some(capabilities().encode_to_vec()),
            "NodeExpandVolume" => {
                let request = NodeExpandVolumeRequest::decode(message).ok()?;
                self.note("Expand", &request.volume_id);
                let capacity_bytes = request.capacity_range?.required_bytes;
                return Some(NodeExpandVolumeResponse { capacity_bytes }.encode_to_vec());
            }
            "NodeGetVolumeStats" => {
                let request = NodeGetVolumeStatsRequest::decode(message).ok()?;
                return Some(self.usage(&request)?.encode_to_vec());
            }
            "NotifyRegistrationStatus" => {
                self.registration = RegistrationStatus::decode(message).ok();
            }
            "NodeStageVolume" => self.stage(NodeStageVolumeRequest::decode(message).ok()?),
            "NodePublishVolume" => {
                self.publish(NodePublishVolumeRequest::decode(message).ok()?, fault);
            }
            "NodeUnpublishVolume" => {
                self.unpublish(&NodeUnpublishVolumeRequest::decode(message).ok()?);
            }
            "NodeUnstageVolume" => self.unstage(&NodeUnstageVolumeRequest::decode(message).ok()?),
            _ => return None,
        }
        Some(Vec::new())
    }

    fn note(&mut self, call: &str, volume: &str) {
        self.calls.push(format!("{call} {volume}"));
    }

    fn info(&self) -> PluginInfo {
        PluginInfo {
            kind: "CSIPlugin".to_owned(),
            name: self.name.clone(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["1.0.0".to_owned()],
        }
    }

    fn node(&self) -> NodeGetInfoResponse {
        let segments = self.topology.clone().into_iter().collect();
        NodeGetInfoResponse {
            node_id: "node-of-the-driver".to_owned(),
            max_volumes_per_node: 7,
            accessible_topology: (!self.topology.is_empty()).then_some(Topology { segments }),
        }
    }

    /// How much of a volume is used, as its file system says.
    fn usage(&self, request: &NodeGetVolumeStatsRequest) -> Option<NodeGetVolumeStatsResponse> {
        let staged = self.staged.get(&request.volume_id);
        if self.published.get(&request.volume_path) != Some(&request.volume_id)
            || staged.is_some_and(|staged| *staged != request.staging_target_path)
        {
            return None;
        }
        let found = nix::sys::statvfs::statvfs(request.volume_path.as_str()).ok()?;
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let size = found.fragment_size();
        let of_unit = |total: u64, free: u64, unit| VolumeUsage {
            available: number(free),
            total: number(total),
            used: number(total.saturating_sub(free)),
            unit,
        };
        let bytes = of_unit(
            found.blocks() * size,
            found.blocks_free() * size,
            unit::BYTES,
        );
        let inodes = of_unit(found.files(), found.files_free(), unit::INODES);
        let usage = vec![bytes, inodes];
        Some(NodeGetVolumeStatsResponse { usage })
    }

    fn stage(&mut self, request: NodeStageVolumeRequest) {
        self.note("Stage", &request.volume_id);
        let path = request.staging_target_path.clone();
        let staged = self.staged.entry(request.volume_id.clone());
        staged.or_insert_with(|| {
            in_memory(&path);
            path
        });
        self.stages.push(request);
    }

    fn publish(&mut self, request: NodePublishVolumeRequest, fault: Option<Fault>) {
        let (volume, target) = (request.volume_id.clone(), request.target_path.clone());
        self.note("Publish", &volume);
        let staged = request.staging_target_path.clone();
        if !staged.is_empty() && self.staged.get(&volume) != Some(&staged) {
            let text = format!("{volume} is published before it is staged");
            self.violations.push(text);
        }
        self.publishes.push(request);
        match fault {
            Some(Fault::Idle) => return,
            Some(Fault::Links) => {
                std::os::unix::fs::symlink("/", &target).ok();
                return;
            }
            Some(Fault::Hangs | Fault::Endless | Fault::Refuses | Fault::Lies | Fault::Silent)
            | None => {}
        }
        let silent = &mut self.silent;
        self.published.entry(target.clone()).or_insert_with(|| {
            fs::create_dir_all(&target).expect("the folder above is there");
            if fault == Some(Fault::Silent) {
                silent.insert(target.clone(), Silent::mount(Path::new(&target)));
            } else if staged.is_empty() {
                in_memory(&target);
            } else {
                bind(&staged, &target);
            }
            volume
        });
    }

    fn unpublish(&mut self, request: &NodeUnpublishVolumeRequest) {
        self.note("Unpublish", &request.volume_id);
        self.silent.remove(&request.target_path);
        if self.published.remove(&request.target_path).is_some() {
            unmount(&request.target_path);
        }
        fs::remove_dir(&request.target_path).ok();
    }

    fn unstage(&mut self, request: &NodeUnstageVolumeRequest) {
        self.note("Unstage", &request.volume_id);
        let mut published = self.published.values();
        if published.any(|volume| *volume == request.volume_id) {
            let text = format!("{} is unstaged while it is published", request.volume_id);
            self.violations.push(text);
        }
        if self.staged.remove(&request.volume_id).is_some() {
            unmount(&request.staging_target_path);
        }
    }
}

fn capabilities() -> NodeGetCapabilitiesResponse {
    let kinds = [
        capability::STAGE_UNSTAGE_VOLUME,
        capability::GET_VOLUME_STATS,
        capability::EXPAND_VOLUME,
    ];
    let capability = |kind| NodeServiceCapability {
        rpc: Some(NodeServiceRpc { kind }),
    };
    NodeGetCapabilitiesResponse {
        capabilities: kinds.map(capability).to_vec(),
    }
}

fn in_memory(path: &str) {
    let none = MsFlags::empty();
    mount(Some("driver"), path, Some("tmpfs"), none, Some("size=1m")).expect("a mount");
}

fn bind(from: &str, to: &str) {
    let none = None::<&str>;
    mount(Some(from), to, none, MsFlags::MS_BIND, none).expect("a bind mount");
}

fn unmount(path: &str) {
    umount2(path, MntFlags::MNT_DETACH).ok();
}
