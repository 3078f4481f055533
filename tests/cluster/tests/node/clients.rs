//! Client libraries: tunnels by the Python client of PyPI and by kube-rs, unmodified, and kube-rs
//! in a pod. kubectl's own tunnels are in `tunnels`, `attach` and `forward`.

use crate::cluster::{Cluster, shell};
use crate::forward;
use crate::network::on_a_machine;
use crate::site::LIMIT;
use crate::tunnels::Site;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Pod};
use config_model::host_path::HostPath;
use http::Method;
use kube::api::{Api, AttachParams, AttachedProcess};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use std::path::Path;
use std::process::Stdio;
use tests_support::programs::{PACKED, pack, packed};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// Echoes each line until its input ends.
const REPEATS: &str = "while read line; do echo got $line; done";

/// Everything that the client offers: commands with their streams and codes, files by tar, a
/// container's own streams, and ports.
const PYTHON: &str = r#"
import io, tarfile
from kubernetes import client, config
from kubernetes.stream import stream, portforward
config.load_kube_config()
core = client.CoreV1Api()

def run(command, **more):
    open_stream = stream(core.connect_get_namespaced_pod_exec, "web", "default", command=command, container="main",
                         stdout=True, stderr=True, stdin=more.pop("stdin", False), tty=False, _preload_content=False, **more)
    return open_stream

ended = run(["sh", "-c", "echo out; echo err >&2; exit 3"])
ended.run_forever(timeout=60)
assert (ended.read_stdout(), ended.read_stderr(), ended.returncode) == ("out\n", "err\n", 3), ended.returncode

talk = run(["sh", "-c", "read line; echo got $line; exit 4"], stdin=True)
talk.write_stdin("hello\n")
talk.run_forever(timeout=60)
assert (talk.read_stdout(), talk.returncode) == ("got hello\n", 4), talk.returncode

content = bytes(range(251)) * 4000
archive = io.BytesIO()
with tarfile.open(fileobj=archive, mode="w") as tar:
    member = tarfile.TarInfo("file")
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
# This client can't end its input, and tar of busybox reads to the end.
packed = archive.getvalue()
copy = run(["sh", "-c", f"busybox head -c {len(packed)} | busybox tar xf - -C /tmp"], stdin=True, binary=True)
copy.write_stdin(packed)
copy.run_forever(timeout=60)
assert copy.returncode == 0, copy.read_stderr()
back = run(["cat", "/tmp/file"], binary=True)
back.run_forever(timeout=60)
assert back.read_stdout() == content

attached = stream(core.connect_get_namespaced_pod_attach, "repeats", "default", container="main", stdin=True, stdout=True,
                  stderr=True, tty=False, _preload_content=False)
attached.write_stdin("line\n")
said = ""
while "got line\n" not in said and attached.is_open():
    attached.update(timeout=60)
    said += attached.read_stdout(timeout=0) or ""
assert said == "got line\n", said
attached.close()

ports = portforward(core.connect_get_namespaced_pod_portforward, "web", "default", ports="8080")
web = ports.socket(8080)
web.settimeout(60)
web.sendall(b"GET /hello HTTP/1.0\r\n\r\n")
answer = b""
while not answer.endswith(b"hello\n"):
    part = web.recv(4096)
    assert part, answer
    answer += part
assert ports.error(8080) is None, ports.error(8080)
print("tunnels work")
"#;

/// A pod of the machine's network that repeats what it reads.
async fn repeats(site: &Site) {
    let mut main = shell(REPEATS);
    main["stdin"] = json!(true);
    let spec = json!({"restartPolicy": "Never", "containers": [main]});
    site.cluster.create("repeats", spec).await;
    let running = json!("Running");
    site.cluster.reaches("repeats", "/phase", running).await;
}

#[test]
fn the_python_client_runs_commands_copies_attaches_and_forwards() {
    on_a_machine(|| async {
        let site = forward::site().await;
        repeats(&site).await;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
        let python = root.unwrap().join(".pratique/tools/python/bin/python3");
        let mut command = tokio::process::Command::new(python);
        command
            .args(["-c", PYTHON])
            .env("KUBECONFIG", site.kubeconfig())
            .env("HOME", site.cluster.site.dir.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let ended = timeout(LIMIT, command.output()).await;
        let output = ended.expect("the client ends in time").unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.contains("tunnels work"),
            "{said}"
        );
    });
}

/// What a process writes, and its exit code.
async fn ended(mut process: AttachedProcess) -> (Vec<u8>, Option<String>) {
    let mut out = Vec::new();
    let status = process.take_status().unwrap();
    let mut stdout = process.stdout().unwrap();
    stdout.read_to_end(&mut out).await.unwrap();
    let status = status.await.unwrap();
    process.join().await.unwrap();
    let causes = status.details.and_then(|details| details.causes);
    let code = causes.into_iter().flatten();
    let code = code
        .into_iter()
        .find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    (out, code.and_then(|cause| cause.message))
}

#[test]
fn kube_rs_runs_commands_attaches_and_forwards() {
    on_a_machine(|| async {
        let site = forward::site().await;
        repeats(&site).await;
        let config = Kubeconfig::read_from(site.kubeconfig()).unwrap();
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(config, &options).await;
        let client = kube::Client::try_from(config.unwrap()).unwrap();
        let pods: Api<Pod> = Api::namespaced(client, "default");
        let whole = async {
            let script = ["sh", "-c", "echo out; exit 3"];
            let ask = AttachParams::default().stderr(false);
            let process = pods.exec("web", script, &ask).await.unwrap();
            assert_eq!(
                ended(process).await,
                (b"out\n".to_vec(), Some("3".to_owned()))
            );

            let ask = AttachParams::default().stdin(true).stderr(false);
            let mut process = pods.exec("web", ["cat"], &ask).await.unwrap();
            let mut stdin = process.stdin().unwrap();
            let input = vec![b'x'; 1 << 20];
            let sent = input.clone();
            let writing = tokio::spawn(async move {
                stdin.write_all(&sent).await.unwrap();
                stdin.shutdown().await.unwrap();
            });
            let mut stdout = process.stdout().unwrap();
            let mut back = vec![0; input.len()];
            stdout.read_exact(&mut back).await.unwrap();
            assert!(back == input);
            writing.await.unwrap();
            process.abort();

            let mut process = pods.attach("repeats", &ask).await.unwrap();
            let mut stdin = process.stdin().unwrap();
            stdin.write_all(b"line\n").await.unwrap();
            let mut said = [0; 9];
            let mut stdout = process.stdout().unwrap();
            stdout.read_exact(&mut said).await.unwrap();
            assert_eq!(&said, b"got line\n");
            process.abort();

            let mut ports = pods.portforward("web", &[8080]).await.unwrap();
            let mut web = ports.take_stream(8080).unwrap();
            web.write_all(b"GET /hello HTTP/1.0\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            web.read_to_end(&mut answer).await.unwrap();
            assert!(answer.ends_with(b"hello\n"));
        };
        timeout(LIMIT, whole).await.expect("it ends in time");
    });
}

/// What pods of the namespace need to use the API: rights of its service account over config maps,
/// and the root's certificate.
async fn give_rights(site: &Site) {
    let meta = |name: &str| json!({"name": name, "namespace": "default"});
    let core = "/api/v1/namespaces/default";
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch", "create"]}]);
    let account = json!([{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]);
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "answers"});
    let root = json!({"ca.crt": site.root()});
    for (path, object) in [
        (
            format!("{core}/configmaps"),
            json!({"metadata": meta("kube-root-ca.crt"), "data": root}),
        ),
        (
            format!("{core}/configmaps"),
            json!({"metadata": meta("question")}),
        ),
        (
            format!("{rbac}/roles"),
            json!({"metadata": meta("answers"), "rules": rules}),
        ),
        (
            format!("{rbac}/rolebindings"),
            json!({"metadata": meta("answers"), "subjects": account, "roleRef": role}),
        ),
    ] {
        site.cluster.ask(Method::POST, &path, &object).await;
    }
}

#[test]
fn kube_rs_in_a_pod_uses_the_api_by_the_pods_token() {
    on_a_machine(|| async {
        let cluster = Cluster::new().await;
        let folder = cluster.site.dir.path().join("program");
        pack(Path::new(env!("CARGO_BIN_EXE_in-cluster")), &folder);
        let path = folder.display().to_string();
        let entry = HostPath {
            path: path.parse().unwrap(),
            writable: false,
        };
        let site = Site::over(cluster.again(vec![entry]).await).await;
        give_rights(&site).await;
        let mut main = shell("");
        main["command"] = json!(packed(&[]));
        let (host, port) = (site.api().ip().to_string(), site.api().port().to_string());
        main["env"] = json!([
            {"name": "KUBERNETES_SERVICE_HOST", "value": host},
            {"name": "KUBERNETES_SERVICE_PORT", "value": port},
        ]);
        main["volumeMounts"] = json!([{"name": "program", "mountPath": PACKED, "readOnly": true}]);
        let pod = json!({
            "metadata": {"name": "asks", "namespace": "default"},
            "spec": {
                "nodeName": "worker-1", "hostNetwork": true, "restartPolicy": "Never", "containers": [main],
                "volumes": [{"name": "program", "hostPath": {"path": path, "type": "Directory"}}],
            },
        });
        let pods = "/api/v1/namespaces/default/pods";
        site.cluster.ask(Method::POST, pods, &pod).await;
        let running = json!("Running");
        site.cluster.reaches("asks", "/phase", running).await;
        let question = "/api/v1/namespaces/default/configmaps/question";
        let word = json!({"data": {"word": "hello"}});
        site.cluster.patch(question, &word).await;
        site.cluster
            .reaches("asks", "/phase", json!("Succeeded"))
            .await;
        let answer: ConfigMap = site
            .cluster
            .admin
            .get(Some("default"), "answer")
            .await
            .unwrap();
        let user = "system:serviceaccount:default:default";
        let wanted = [("secrets", "403"), ("user", user), ("word", "hello")];
        let wanted = wanted.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(answer.data, Some(wanted.into()));
    });
}
