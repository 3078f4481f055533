//! A running master, as a process, and the admin's way to it.

use crate::wire::{Answer, Connection, Identity, config};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_kube::k8s_openapi::Resource;
use http::Method;
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tests_harness::process::Owned;
use tests_harness::programs;
use tests_harness::wait::eventually;

/// Time for the master to come up or go down.
const LIMIT: Duration = Duration::from_secs(180);

/// A master.
pub(crate) struct Site {
    dir: tempfile::TempDir,
    program: PathBuf,
    process: Mutex<Owned>,
    pub(crate) address: SocketAddr,
    pub(crate) root: Vec<u8>,
    pub(crate) admin: Arc<ClientConfig>,
    pub(crate) anonymous: Arc<ClientConfig>,
}

impl Site {
    /// Starts a master with a cluster document.
    pub(crate) async fn start(document: &str) -> Self {
        Self::start_on(document, |_| {}).await
    }

    /// The same on a data folder that something prepared.
    pub(crate) async fn start_on(document: &str, prepare: impl FnOnce(&Path)) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), document, prepare).await
    }

    /// The same at an address of this host.
    pub(crate) async fn start_at(
        host: IpAddr,
        document: &str,
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let program = programs::built("master").unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cluster.toml"), document).unwrap();
        prepare(&dir.path().join("data"));
        let port = tests_harness::port::free().unwrap();
        let address = SocketAddr::new(host, port);
        let process = spawn(&program, dir.path(), address);
        let kubeconfig = dir.path().join("data/admin.kubeconfig");
        let found = eventually("the admin's kubeconfig", LIMIT, "", || {
            Ok(std::fs::read(&kubeconfig).ok())
        });
        let text = match found {
            Ok(text) => text,
            Err(error) => {
                process.kill().unwrap();
                panic!("{error}\n{}", log(dir.path()));
            }
        };
        let (root, admin) = first(&text);
        let (admin, anonymous) = (config(&root, Some(&admin)), config(&root, None));
        let site = Self {
            dir,
            program,
            process: Mutex::new(process),
            address,
            root,
            admin,
            anonymous,
        };
        site.wait_ready().await;
        site
    }

    /// Goes on with the root and the certificate of a kubeconfig.
    pub(crate) fn trust(&mut self, kubeconfig: &Path) {
        let (root, admin) = first(&std::fs::read(kubeconfig).unwrap());
        (self.admin, self.anonymous) = (config(&root, Some(&admin)), config(&root, None));
        self.root = root;
    }

    /// Cuts the master's power and starts it again.
    pub(crate) async fn cut_and_restart(&self) {
        // A development master writes a fresh kubeconfig, with the same root.
        self.cut_and_change(async |_| {}).await;
    }

    /// Cuts the master's power, has something happen to its data folder, and starts it again.
    pub(crate) async fn cut_and_change(&self, change: impl AsyncFnOnce(&Path)) {
        self.process().kill().unwrap();
        change(&self.dir.path().join("data")).await;
        *self.process.lock().unwrap() = spawn(&self.program, self.dir.path(), self.address);
        self.wait_ready().await;
    }

    pub(crate) fn stop(&self) {
        self.process().stop(Duration::from_secs(20)).unwrap();
    }

    fn process(&self) -> Owned {
        self.process.lock().unwrap().clone()
    }

    /// The admin's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("data/admin.kubeconfig")
    }

    /// Another program that was built with the master.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.program.with_file_name(name))
    }

    pub(crate) fn log(&self) -> String {
        log(self.dir.path())
    }

    /// Resident memory in KiB.
    pub(crate) fn resident(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process().pid)).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    async fn wait_ready(&self) {
        let start = std::time::Instant::now();
        loop {
            if let Ok(mut connection) = Connection::open(self.address, self.anonymous.clone()).await
                && let Ok(answer) = connection
                    .request(Method::GET, "/readyz", "text/plain", Vec::new())
                    .await
                && answer.status().is_success()
            {
                return;
            }
            assert!(
                start.elapsed() < LIMIT,
                "the master is not ready:\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A request by the admin.
    pub(crate) async fn api(&self, method: Method, path: &str, body: Vec<u8>) -> Answer {
        Connection::open(self.address, self.admin.clone())
            .await
            .unwrap()
            .send(method, path, body)
            .await
    }

    /// The answer of a path to the admin, as text.
    pub(crate) async fn text(&self, path: &str) -> String {
        let mut connection = Connection::open(self.address, self.admin.clone())
            .await
            .unwrap();
        let answer = connection
            .request(Method::GET, path, "", Vec::new())
            .await
            .unwrap();
        let body = http_body_util::BodyExt::collect(answer.into_body())
            .await
            .unwrap()
            .to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    /// Creates an object, which must work.
    pub(crate) async fn create<T: Resource + Serialize>(&self, object: &T) {
        let answer = self
            .api(
                Method::POST,
                &collection::<T>(),
                serde_json::to_vec(object).unwrap(),
            )
            .await;
        assert!(answer.status.is_success(), "{:?}", answer.json);
    }

    /// Reads an object, which must be there.
    pub(crate) async fn get<T: Resource + DeserializeOwned>(&self, name: &str) -> T {
        let answer = self
            .api(
                Method::GET,
                &format!("{}/{name}", collection::<T>()),
                Vec::new(),
            )
            .await;
        assert!(answer.status.is_success(), "{:?}", answer.json);
        serde_json::from_value(answer.json).unwrap()
    }

    /// Merge-patches an object, which must work.
    pub(crate) async fn patch<T: Resource>(&self, name: &str, patch: &Value) {
        let at = format!("{}/{name}", collection::<T>());
        let answer = self
            .api(Method::PATCH, &at, serde_json::to_vec(patch).unwrap())
            .await;
        assert!(answer.status.is_success(), "{:?}", answer.json);
    }

    /// Deletes an object, which must work.
    pub(crate) async fn delete<T: Resource>(&self, name: &str) {
        let at = format!("{}/{name}", collection::<T>());
        let answer = self.api(Method::DELETE, &at, Vec::new()).await;
        assert!(answer.status.is_success(), "{:?}", answer.json);
    }

    /// All objects of a kind.
    pub(crate) async fn list<T: Resource + DeserializeOwned>(&self) -> Vec<T> {
        let mut answer = self.api(Method::GET, &collection::<T>(), Vec::new()).await;
        assert!(answer.status.is_success(), "{:?}", answer.json);
        serde_json::from_value(answer.json["items"].take()).unwrap()
    }
}

pub(crate) fn collection<T: Resource>() -> String {
    match T::GROUP {
        "" => format!("/api/{}/{}", T::VERSION, T::URL_PATH_SEGMENT),
        group => format!("/apis/{group}/{}/{}", T::VERSION, T::URL_PATH_SEGMENT),
    }
}

fn spawn(program: &Path, dir: &Path, address: SocketAddr) -> Owned {
    let master = programs::master(program, dir, address);
    Owned::start(master, &dir.join("master.log")).unwrap()
}

fn log(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("master.log")).unwrap_or_default()
}

/// The first root and the admin's certificate of a kubeconfig.
pub(crate) fn first(text: &[u8]) -> (Vec<u8>, Identity) {
    let (mut roots, admin) = credentials(text);
    (roots.remove(0), admin)
}

/// Roots and admin certificate of a kubeconfig.
pub(crate) fn credentials(text: &[u8]) -> (Vec<Vec<u8>>, Identity) {
    let value: Value = serde_json::from_slice(text).unwrap();
    let field = |pointer: &str| {
        STANDARD
            .decode(value.pointer(pointer).unwrap().as_str().unwrap())
            .unwrap()
    };
    let all = |pem: Vec<u8>| {
        CertificateDer::pem_slice_iter(&pem)
            .map(|der| der.unwrap().to_vec())
            .collect()
    };
    let roots = all(field("/clusters/0/cluster/certificate-authority-data"));
    let chain = all(field("/users/0/user/client-certificate-data"));
    let key = PrivatePkcs8KeyDer::from_pem_slice(&field("/users/0/user/client-key-data")).unwrap();
    (
        roots,
        Identity {
            chain,
            key: key.secret_pkcs8_der().to_vec(),
        },
    )
}
