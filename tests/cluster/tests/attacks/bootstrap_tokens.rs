//! Ordinary kubelets in upstream's way: a bootstrap token requests a certificate, a person or a
//! rule approves, and the token expires. All by stock kubectl.

use crate::lab::Lab;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tests_harness::tools::Tools;

const LIMIT: Duration = Duration::from_secs(180);
const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// kubectl as a given user, without this host's own configuration.
struct Kubectl {
    tools: Tools,
    dir: tempfile::TempDir,
    server: String,
    admin: PathBuf,
}

impl Kubectl {
    fn new(lab: &Lab) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let pem = master_ca::pem("CERTIFICATE", &lab.site.root);
        std::fs::write(dir.path().join("ca.crt"), pem).unwrap();
        let server = format!("https://{}", lab.site.address);
        Self {
            tools: Tools::find(root).unwrap(),
            dir,
            server,
            admin: lab.site.kubeconfig(),
        }
    }

    fn base(&self) -> Command {
        let mut kubectl = self.tools.command("kubectl");
        kubectl
            .env("HOME", self.dir.path())
            .env_remove("KUBECONFIG");
        kubectl
    }

    fn admin(&self, words: &[&str]) -> String {
        let output = self
            .base()
            .arg("--kubeconfig")
            .arg(&self.admin)
            .args(words)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn by(&self, credential: &[String], words: &[&str]) -> Output {
        let mut kubectl = self.base();
        kubectl
            .arg("--kubeconfig=/dev/null")
            .arg("--server")
            .arg(&self.server);
        kubectl
            .arg("--certificate-authority")
            .arg(self.dir.path().join("ca.crt"));
        kubectl.args(credential).args(words).output().unwrap()
    }

    fn apply(&self, credential: &[String], name: &str, text: &str) -> Output {
        let file = self.dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        self.by(credential, &["create", "-f", &file.display().to_string()])
    }

    /// Asks by a token for a kubelet's certificate; the key.
    fn request(&self, token: &str, name: &str) -> KeyPair {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "system:nodes");
        params
            .distinguished_name
            .push(DnType::CommonName, format!("system:node:{name}"));
        self.ask(
            &[format!("--token={token}")],
            name,
            (SIGNER, "client auth"),
            &params,
            &key,
        );
        key
    }

    /// Requests a certificate for a usage, as a given user.
    fn ask(
        &self,
        credential: &[String],
        name: &str,
        (signer, usage): (&str, &str),
        params: &CertificateParams,
        key: &KeyPair,
    ) {
        let pem = STANDARD.encode(params.serialize_request(key).unwrap().pem().unwrap());
        let text = format!(
            "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{name: {name}}}\nspec:\n  \
             request: {pem}\n  signerName: {signer}\n  usages: [digital signature, {usage}]\n"
        );
        let output = self.apply(credential, name, &text);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Creates what a file says, as the admin.
    fn make(&self, name: &str, text: &str) {
        let file = self.dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        self.admin(&["create", "-f", &file.display().to_string()]);
    }

    /// Gives a role to all who come by a token of the lab.
    fn bind(&self, name: &str, role: &str) {
        let role = format!("--clusterrole={role}");
        let group = "--group=system:bootstrappers:lab";
        self.admin(&["create", "clusterrolebinding", name, &role, group]);
    }

    /// The reasons in a request's conditions.
    fn reasons(&self, name: &str) -> String {
        self.admin(&[
            "get",
            "csr",
            name,
            "-o",
            "jsonpath={.status.conditions[*].reason}",
        ])
    }

    /// Waits for a condition of a request.
    async fn until(&self, name: &str, condition: &str) {
        let start = Instant::now();
        let words = [
            "get",
            "csr",
            name,
            "-o",
            "jsonpath={.status.conditions[*].type}",
        ];
        while !self.admin(&words).contains(condition) {
            assert!(
                start.elapsed() < LIMIT,
                "{}",
                self.admin(&["describe", "csr", name])
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(
            self.admin(&["get", "csr", name, "-o", "jsonpath={.status.certificate}"])
                .is_empty(),
            "{name} is signed"
        );
    }

    /// Waits for the certificate, and gives kubectl's words for it.
    async fn certificate(&self, name: &str, key: &KeyPair) -> Vec<String> {
        let start = Instant::now();
        let pem = loop {
            let text = self.admin(&["get", "csr", name, "-o", "jsonpath={.status.certificate}"]);
            if !text.is_empty() {
                break STANDARD.decode(text).unwrap();
            }
            assert!(
                start.elapsed() < LIMIT,
                "no certificate: {}",
                self.admin(&["describe", "csr", name])
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let at = |end: &str| {
            self.dir
                .path()
                .join(format!("{name}.{end}"))
                .display()
                .to_string()
        };
        std::fs::write(at("crt"), pem).unwrap();
        std::fs::write(at("key"), key.serialize_pem()).unwrap();
        vec![
            format!("--client-certificate={}", at("crt")),
            format!("--client-key={}", at("key")),
        ]
    }
}

fn token(id: &str, secret: &str, seconds: i64) -> String {
    let end = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: bootstrap-token-{id}, namespace: kube-system}}\n\
         type: bootstrap.kubernetes.io/token\nstringData:\n  token-id: {id}\n  token-secret: {secret}\n  expiration: \"{end:.0}\"\n  \
         usage-bootstrap-authentication: \"true\"\n  auth-extra-groups: system:bootstrappers:lab\n"
    )
}

/// A token's request waits for a person until a binding says otherwise; the certificate is a
/// node's; an ended token is refused, and gone.
pub(crate) async fn an_ordinary_kubelet_gets_its_certificate_by_an_expiring_token(lab: &Lab) {
    let kubectl = Kubectl::new(lab);
    kubectl.make("token", &token("abcdef", "0123456789abcdef", 3600));
    kubectl.bind("lab-bootstrap", "system:node-bootstrapper");
    let credential = approved_by_a_person(&kubectl).await;
    it_makes_its_own_node_alone(&kubectl, &credential);
    serving_certificates(&kubectl, &credential).await;
    kubectl.admin(&["delete", "node", "kubelet-1"]);
    its_name_becomes_a_machines(lab, &kubectl, &credential).await;
    kubectl.admin(&["delete", "machine", "kubelet-1"]);
    approved_by_a_rule(&kubectl).await;
    a_token_does_nothing_else_and_ends(&kubectl).await;
}

/// Gives kubectl's words for the certificate.
async fn approved_by_a_person(kubectl: &Kubectl) -> Vec<String> {
    let key = kubectl.request("abcdef.0123456789abcdef", "kubelet-1");
    let waiting = kubectl.admin(&[
        "get",
        "csr",
        "kubelet-1",
        "-o",
        "jsonpath={.status.conditions}",
    ]);
    assert!(waiting.is_empty(), "approved by nobody: {waiting}");
    kubectl.admin(&["certificate", "approve", "kubelet-1"]);
    let credential = kubectl.certificate("kubelet-1", &key).await;
    let who = kubectl.by(
        &credential,
        &[
            "auth",
            "whoami",
            "-o",
            "jsonpath={.status.userInfo.username}",
        ],
    );
    assert_eq!(
        String::from_utf8_lossy(&who.stdout),
        "system:node:kubelet-1",
        "{who:?}"
    );
    assert_eq!(kubectl.reasons("kubelet-1"), "KubectlApprove");
    credential
}

/// It creates its own Node, as an ordinary kubelet does, and no other.
fn it_makes_its_own_node_alone(kubectl: &Kubectl, credential: &[String]) {
    let node = |name: &str, labels: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{{labels}}}}}\n"
        );
        kubectl.apply(credential, "node", &text)
    };
    for bad in [
        node("kubelet-9", ""),
        node("kubelet-1", "pratique.dev/role: worker"),
        node("kubelet-1", "pool: a"),
    ] {
        assert!(
            String::from_utf8_lossy(&bad.stderr).contains("Forbidden"),
            "{bad:?}"
        );
    }
    let own = node("kubelet-1", "kubernetes.io/os: linux");
    assert!(own.status.success(), "{own:?}");
}

/// From then on the certificate, which is not based on a proof, is denied.
async fn its_name_becomes_a_machines(lab: &Lab, kubectl: &Kubectl, credential: &[String]) {
    let (machine, address) = (lab.stranger(), lab.site.address);
    lab.list(&machine, "kubelet-1").await;
    let start = Instant::now();
    while kubectl.by(credential, &["auth", "whoami"]).status.success() {
        assert!(
            start.elapsed() < LIMIT,
            "an ordinary kubelet's certificate speaks for a Machine's node at {address}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The rule is a binding.
async fn approved_by_a_rule(kubectl: &Kubectl) {
    kubectl.bind(
        "lab-approve",
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
    );
    let key = kubectl.request("abcdef.0123456789abcdef", "kubelet-2");
    let credential = kubectl.certificate("kubelet-2", &key).await;
    assert_eq!(kubectl.reasons("kubelet-2"), "AutoApproved");
    let stolen = kubectl.by(&credential, &["get", "secrets", "-A"]);
    assert!(
        !stolen.status.success(),
        "a kubelet reads no secrets of others"
    );
}

async fn a_token_does_nothing_else_and_ends(kubectl: &Kubectl) {
    let more = kubectl.by(
        &["--token=abcdef.0123456789abcdef".to_owned()],
        &["get", "nodes"],
    );
    assert!(
        String::from_utf8_lossy(&more.stderr).contains("Forbidden"),
        "{more:?}"
    );
    kubectl.make("short", &token("ffffff", "fedcba9876543210", 3));
    let start = Instant::now();
    let short = ["--token=ffffff.fedcba9876543210".to_owned()];
    while kubectl.by(&short, &["auth", "whoami"]).status.success() {
        assert!(start.elapsed() < LIMIT, "the token outlived its end");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let names = ["-n", "kube-system", "get", "secret", "-o", "name"];
    while kubectl.admin(&names).contains("bootstrap-token-ffffff") {
        assert!(start.elapsed() < LIMIT, "an ended token is kept");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(
        kubectl.admin(&names).contains("bootstrap-token-abcdef"),
        "one that has not ended is kept"
    );
}

/// An ordinary kubelet's serving certificate waits for a person, is for its own names, and never
/// for the API server's.
async fn serving_certificates(kubectl: &Kubectl, credential: &[String]) {
    let serving = ("kubernetes.io/kubelet-serving", "server auth");
    for (name, dns, signed) in [
        ("serving-1", "kubelet-1", true),
        ("serving-2", "kubernetes.default.svc", false),
    ] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![dns.to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "system:nodes");
        params
            .distinguished_name
            .push(DnType::CommonName, "system:node:kubelet-1");
        kubectl.ask(credential, name, serving, &params, &key);
        kubectl.admin(&["certificate", "approve", name]);
        if signed {
            kubectl.certificate(name, &key).await;
        } else {
            kubectl.until(name, "Failed").await;
        }
    }
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(DnType::CommonName, "system:node:kubelet-1");
    kubectl.ask(
        credential,
        "client-denied",
        (SIGNER, "client auth"),
        &params,
        &key,
    );
    kubectl.admin(&["certificate", "deny", "client-denied"]);
    kubectl.until("client-denied", "Denied").await;
}

/// A stolen token, and an admin who approves by the name alone: only the machine's own proof makes
/// the node of a Machine. The control is the story above, in which the same request for a node that
/// is no Machine's is signed.
pub(crate) async fn a_stolen_token_gets_no_certificate_for_a_machines_node(lab: &Lab) {
    let kubectl = Kubectl::new(lab);
    let machine = lab.machine().await;
    let file = kubectl.dir.path().join("token");
    std::fs::write(&file, token("bbbbbb", "0123456789abcdef", 3600)).unwrap();
    kubectl.admin(&["create", "-f", &file.display().to_string()]);
    let who = "--user=system:bootstrap:bbbbbb";
    kubectl.admin(&[
        "create",
        "clusterrolebinding",
        "thief",
        "--clusterrole=system:node-bootstrapper",
        who,
    ]);
    kubectl.request("bbbbbb.0123456789abcdef", &machine.node);
    kubectl.admin(&["certificate", "approve", &machine.node]);
    let start = Instant::now();
    let said = |path: &str| {
        kubectl.admin(&[
            "get",
            "csr",
            &machine.node,
            "-o",
            &format!("jsonpath={path}"),
        ])
    };
    while !said("{.status.conditions[*].type}").contains("Failed") {
        assert!(
            said("{.status.certificate}").is_empty(),
            "a token and a name made a certificate of {}",
            machine.node
        );
        assert!(
            start.elapsed() < LIMIT,
            "{}",
            kubectl.admin(&["describe", "csr", &machine.node])
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(said("{.status.conditions[*].message}").contains("by attestation"));
    lab.join(&machine).await.accepted();
}
