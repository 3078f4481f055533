//! Tunnels into pods by the real kubectl, through the master's API to the kubelet's port and the
//! real containerd.

use crate::cluster::{Cluster, shell};
use crate::port::Authority;
use crate::site::{LIMIT, eventually};
use agent_server::serve;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_kube::k8s_openapi::api::core::v1::Node;
use config_tunnel::command::{ERROR, RESIZE, STDIN, STDOUT};
use config_tunnel::websocket::{Decoder, Event, Kind, Sender, masked_frame};
use master_api::{DialError, NodeDialer, NodeStream, NodeTarget};
use master_client::BoxFuture;
use master_listener::ServeOptions;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use tests_harness::tools::Tools;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

/// How the master reaches the one node there is.
#[derive(Debug)]
struct Dialer {
    kubelet: SocketAddr,
    tls: Arc<ClientConfig>,
}

async fn dial(
    kubelet: SocketAddr,
    tls: Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("node.example").unwrap();
    let stream = TcpStream::connect(kubelet).await?;
    TlsConnector::from(tls).connect(name, stream).await
}

impl NodeDialer for Dialer {
    fn dial(&self, target: NodeTarget) -> BoxFuture<'_, Result<Box<dyn NodeStream>, DialError>> {
        let (kubelet, tls) = (self.kubelet, self.tls.clone());
        Box::pin(async move {
            let stream = dial(kubelet, tls).await.map_err(|error| DialError {
                node: target.name,
                address: target.address.to_string(),
                source: error.into(),
            })?;
            Ok(Box::new(stream) as Box<dyn NodeStream>)
        })
    }
}

fn pem(kind: &str, der: &[u8]) -> String {
    // OpenSSL, by which Python reads it, takes lines of 64 characters (RFC 7468).
    let text = STANDARD.encode(der);
    let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy);
    let text = lines.collect::<Vec<_>>().join("\n");
    format!("-----BEGIN {kind}-----\n{text}\n-----END {kind}-----\n")
}

/// A cluster with its kubelet's port and its API on sockets.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    authority: Authority,
    kubelet: SocketAddr,
    api: SocketAddr,
    node: watch::Sender<bool>,
    /// kubectl speaks SPDY, as before 1.31.
    pub(crate) spdy: bool,
    _end: tokio_util::sync::DropGuard,
}

impl Site {
    pub(crate) async fn new() -> Self {
        Self::over(Cluster::new().await).await
    }

    pub(crate) async fn over(cluster: Cluster) -> Self {
        let authority = Authority::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let kubelet = listener.local_addr().unwrap();
        let (node, ended) = watch::channel(false);
        let port = cluster.port.clone().unwrap();
        tokio::spawn(serve(listener, authority.server(), port, ended));
        let tls = authority.client(Some((&authority, "system:kube-apiserver")));
        let dialer = Dialer { kubelet, tls };
        assert!(cluster.server.set_node_dialer(Arc::new(dialer)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = listener.local_addr().unwrap();
        let (chain, key) = authority.sign("master");
        let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
        let own = SingleCertAndKey::from(CertifiedKey::new(chain, key));
        let tls = master_listener::tls_config(Arc::new(own), authority.verifier()).unwrap();
        let end = CancellationToken::new();
        tokio::spawn(master_listener::serve(
            listener,
            Arc::new(tls),
            Arc::new(cluster.server.clone()),
            ServeOptions::default(),
            end.clone(),
        ));
        let site = Self {
            cluster,
            authority,
            kubelet,
            api,
            node,
            spdy: false,
            _end: end.drop_guard(),
        };
        site.write_kubeconfig();
        eventually("the node's address", || async {
            let node: Node = site.cluster.admin.get(None, "worker-1").await.ok()?;
            node.status?.addresses
        })
        .await;
        site
    }

    /// The address of the API.
    pub(crate) fn api(&self) -> SocketAddr {
        self.api
    }

    /// The certificate of the authority that the API's one leads to, PEM.
    pub(crate) fn root(&self) -> String {
        pem("CERTIFICATE", self.authority.root())
    }

    /// Ends the kubelet's port; its containers run on.
    pub(crate) fn stop_port(&self) {
        self.node.send_replace(true);
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.cluster.site.dir.path().join("kubeconfig")
    }

    fn write_kubeconfig(&self) {
        let (chain, key) = self.authority.sign_as("admin", &["system:masters"]);
        let pem = |kind: &str, der: &[u8]| STANDARD.encode(pem(kind, der));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://{}", self.api),
                "certificate-authority-data": pem("CERTIFICATE", self.authority.root()),
            }}],
            "users": [{"name": "u", "user": {
                "client-certificate-data": pem("CERTIFICATE", &chain[0]),
                "client-key-data": pem("PRIVATE KEY", key.secret_der()),
            }}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(self.kubeconfig(), config.to_string()).unwrap();
    }

    pub(crate) fn kubectl(&self, words: &[&str]) -> tokio::process::Command {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap();
        let mut kubectl = Tools::find(root).unwrap().command("kubectl");
        kubectl
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(words);
        kubectl
            .env("HOME", self.cluster.site.dir.path())
            .env_remove("KUBECONFIG");
        let speaks = if self.spdy { "false" } else { "true" };
        for what in ["REMOTE_COMMAND", "PORT_FORWARD"] {
            kubectl.env(format!("KUBECTL_{what}_WEBSOCKETS"), speaks);
        }
        let mut kubectl = tokio::process::Command::from(kubectl);
        kubectl
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        kubectl
    }

    /// Runs kubectl: its exit code and what it wrote.
    pub(crate) async fn run(
        &self,
        words: &[&str],
        input: Option<Vec<u8>>,
    ) -> (i32, Vec<u8>, String) {
        let mut kubectl = self.kubectl(words);
        if input.is_some() {
            kubectl.stdin(Stdio::piped());
        }
        let mut child = kubectl.spawn().unwrap();
        let stdin = child.stdin.take();
        let writing = tokio::spawn(async move {
            if let (Some(mut stdin), Some(input)) = (stdin, input) {
                stdin.write_all(&input).await.unwrap();
            }
        });
        let ended = timeout(LIMIT, child.wait_with_output()).await;
        let ended = ended.expect("kubectl ends in time").unwrap();
        writing.await.unwrap();
        let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
        (ended.status.code().unwrap_or(-1), ended.stdout, errors)
    }

    /// Runs `pratique` with the admin's kubeconfig and returns stdout and stderr, or stderr alone
    /// if it fails.
    pub(crate) async fn pratique(&self, words: &[&str]) -> Result<(String, String), String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
        let program = root.unwrap().join(".pratique/bin/pratique");
        let mut command = tokio::process::Command::new(program);
        command.args(words);
        command.arg("--kubeconfig").arg(self.kubeconfig());
        let ended = timeout(LIMIT, command.kill_on_drop(true).output()).await;
        let ended = ended.expect("pratique ends in time").unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let said = text(ended.stderr);
        if ended.status.success() {
            Ok((text(ended.stdout), said))
        } else {
            Err(said)
        }
    }

    pub(crate) async fn runs(&self, name: &str, script: &str) {
        let spec = json!({"restartPolicy": "Never", "containers": [shell(script)]});
        self.cluster.create(name, spec).await;
        self.cluster.reaches(name, "/phase", json!("Running")).await;
    }

    /// Whether a process of the pod has this word among its arguments.
    pub(crate) async fn has_process(&self, pod: &str, word: &str) -> bool {
        let look = "for p in /proc/[0-9]*; do cat $p/cmdline; echo; done";
        let (code, out, errors) = self.run(&["exec", pod, "--", "sh", "-c", look], None).await;
        assert_eq!(code, 0, "{errors}");
        String::from_utf8_lossy(&out).contains(word)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_runs_commands_in_a_pod() {
    commands_run(&Site::new().await).await;
}

pub(crate) async fn commands_run(site: &Site) {
    site.runs("talks", "sleep 100000").await;

    let script = "echo out; echo err >&2; exit 3";
    let (code, out, errors) = site
        .run(&["exec", "talks", "--", "sh", "-c", script], None)
        .await;
    assert_eq!((code, out.as_slice()), (3, &b"out\n"[..]), "{errors}");
    assert!(
        errors.contains("err\n") && errors.contains("exit code 3"),
        "{errors}"
    );

    // More than any buffer on the way, and its end: `cat` ends when its input does.
    let input: Vec<u8> = (0..=250).cycle().take(2_000_000).collect();
    let (code, out, errors) = site
        .run(&["exec", "-i", "talks", "--", "cat"], Some(input.clone()))
        .await;
    assert_eq!(code, 0, "{errors}");
    assert!(out == input, "{} bytes came back", out.len());

    let (code, _, errors) = site
        .run(&["exec", "talks", "--", "no-such-program"], None)
        .await;
    assert!(code != 0 && errors.contains("no-such-program"), "{errors}");

    // What kubectl cp needs of an image is tar.
    let link = [
        "exec", "talks", "--", "busybox", "ln", "-s", "busybox", "/bin/tar",
    ];
    assert_eq!(site.run(&link, None).await.0, 0);
    let (there, back) = (
        site.cluster.site.dir.path().join("there"),
        site.cluster.site.dir.path().join("back"),
    );
    std::fs::write(&there, &input).unwrap();
    for (from, to) in [
        (there.to_str().unwrap(), "talks:/tmp/file"),
        ("talks:/tmp/file", back.to_str().unwrap()),
    ] {
        let (code, _, errors) = site.run(&["cp", from, to], None).await;
        assert_eq!(code, 0, "{errors}");
    }
    assert!(std::fs::read(back).unwrap() == input);

    each_refusal_has_its_reason(site).await;
}

async fn each_refusal_has_its_reason(site: &Site) {
    let ended = json!({"restartPolicy": "Never", "containers": [
        shell("sleep 100000"),
        {"name": "short", "image": crate::site::IMAGE, "command": ["/bin/sh", "-c", "exit 4"]},
    ]});
    site.cluster.create("half", ended).await;
    let code = "/containerStatuses/1/state/terminated/exitCode";
    site.cluster.reaches("half", code, json!(4)).await;
    for (words, reason) in [
        (&["none", "--", "true"][..], "pods \"none\" not found"),
        (&["half", "-c", "x", "--", "true"], "container x"),
        (
            &["half", "-c", "short", "--", "true"],
            "is not running: it ended with code 4",
        ),
    ] {
        let words = [&["exec"], words].concat();
        let (code, _, errors) = site.run(&words, None).await;
        assert!(code != 0 && errors.contains(reason), "{words:?}: {errors}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_has_no_more_rights_than_its_container_and_ends_with_its_client() {
    let site = Site::new().await;
    site.runs("talks", "sleep 100000").await;
    let mut rights = Vec::new();
    for process in ["1", "self"] {
        let path = format!("/proc/{process}/status");
        let words = [
            "exec",
            "talks",
            "--",
            "grep",
            "-E",
            "^(Cap|NoNewPrivs|Seccomp:|Uid|Gid|Groups)",
            &path,
        ];
        let (code, out, errors) = site.run(&words, None).await;
        assert_eq!(code, 0, "{errors}");
        rights.push(String::from_utf8(out).unwrap());
    }
    assert_eq!(
        rights[0], rights[1],
        "a command is confined as its container"
    );
    assert!(rights[1].contains("Seccomp:\t2\n"), "{}", rights[1]);

    a_killed_client_leaves_nothing(&site).await;
}

/// A shell with a child, and a client that is killed.
pub(crate) async fn a_killed_client_leaves_nothing(site: &Site) {
    let script = "sleep 77777 & echo begun; wait";
    let mut client = site
        .kubectl(&["exec", "talks", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    let mut begun = [0; 6];
    let read = client.stdout.as_mut().unwrap().read_exact(&mut begun);
    timeout(LIMIT, read).await.expect("it begins").unwrap();
    assert!(site.has_process("talks", "77777").await);
    client.kill().await.unwrap();
    eventually("the command and its child to end", || async {
        (!site.has_process("talks", "77777").await).then_some(())
    })
    .await;
    let left = || {
        let all = std::fs::read_dir(site.cluster.site.dir.path().join("io")).unwrap();
        let all = all.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
        all.filter(|name| name.contains("exec")).count()
    };
    eventually("its pipes to be removed", || {
        let left = left();
        async move { (left == 0).then_some(()) }
    })
    .await;
}

/// A client of the kubelet's port that speaks WebSocket itself.
pub(crate) struct Client {
    stream: TlsStream<TcpStream>,
    decoder: Decoder,
    /// Standard output so far.
    out: Vec<u8>,
    /// How it ended: a Status, and the code of the close frame.
    status: Value,
    code: Option<u16>,
    /// The beginning of a message.
    message: Vec<u8>,
}

impl Client {
    pub(crate) async fn open(site: &Site, path: &str) -> Self {
        let tls = site
            .authority
            .client(Some((&site.authority, "system:kube-apiserver")));
        let mut stream = dial(site.kubelet, tls).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: n\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: v4.channel.k8s.io\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        Self {
            stream,
            decoder: Decoder::new(Sender::Server),
            out: Vec::new(),
            status: Value::Null,
            code: None,
            message: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, kind: Kind, payload: &[u8]) {
        let mut frame = Vec::new();
        masked_frame(kind, payload, [1, 2, 3, 4], &mut frame);
        self.stream.write_all(&frame).await.unwrap();
    }

    /// Reads until the output has this text.
    pub(crate) async fn until(&mut self, text: &str) {
        let reading = async {
            while !String::from_utf8_lossy(&self.out).contains(text) {
                assert!(self.read().await, "it ended before {text:?}");
            }
        };
        timeout(LIMIT, reading).await.expect("it comes in time");
    }

    /// Reads until the end: the output, the status, the code of the close frame.
    pub(crate) async fn rest(mut self) -> (String, Value, Option<u16>) {
        let reading = async { while self.read().await {} };
        timeout(LIMIT, reading).await.expect("it ends in time");
        (String::from_utf8(self.out).unwrap(), self.status, self.code)
    }

    /// Reads what has come; false at the end.
    async fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let Ok(count @ 1..) = self.stream.read(&mut bytes).await else {
            return false;
        };
        let mut rest = &mut bytes[..count];
        while let (used, Some(event)) = self.decoder.take(rest).unwrap() {
            match event {
                Event::Data { bytes, ends, .. } => {
                    self.message.extend_from_slice(bytes);
                    if ends {
                        match self.message.split_first() {
                            Some((&STDOUT, text)) => self.out.extend_from_slice(text),
                            Some((&ERROR, text)) => {
                                self.status = serde_json::from_slice(text).unwrap();
                            }
                            _ => {}
                        }
                        self.message.clear();
                    }
                }
                Event::Close(code) => self.code = code,
                Event::Ping(_) | Event::Pong => {}
            }
            rest = &mut rest[used..];
        }
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_with_a_terminal_has_one_of_the_clients_size() {
    let site = Site::new().await;
    site.runs("talks", "sleep 100000").await;
    // The size is sent before the shell is asked for it: both go the same way, one after another.
    let script = "read%20line;%20busybox%20stty%20size;%20busybox%20tty;%20exit%205";
    let path = format!(
        "/exec/default/talks/main?command=sh&command=-c&command={script}&input=1&output=1&tty=1"
    );
    let mut client = Client::open(&site, &path).await;
    let window = [&[RESIZE][..], br#"{"Width":132,"Height":43}"#].concat();
    client.send(Kind::Binary, &window).await;
    client
        .send(Kind::Binary, &[&[STDIN][..], b"go\n"].concat())
        .await;
    let (out, status, code) = client.rest().await;
    assert!(out.contains("43 132") && out.contains("/dev/pts/"), "{out}");
    assert_eq!(status["details"]["causes"][0]["message"], "5", "{status}");
    assert_eq!(code, Some(1000));

    // A client that says that it leaves, and neither reads nor closes its side.
    let path =
        "/exec/default/talks/main?command=sh&command=-c&command=busybox%20yes%2055555&output=1";
    let mut leaves = Client::open(&site, path).await;
    eventually("the command to begin", || async {
        site.has_process("talks", "55555").await.then_some(())
    })
    .await;
    leaves.send(Kind::Close, &1000_u16.to_be_bytes()).await;
    eventually("the command of a client that leaves to end", || async {
        (!site.has_process("talks", "55555").await).then_some(())
    })
    .await;
    drop(leaves);
}
