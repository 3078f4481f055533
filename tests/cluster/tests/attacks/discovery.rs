//! A cluster on a discovery endpoint, from the admin's command to what a machine finds; and an
//! endpoint that turns hostile.

use crate::site::Site;
use agent_discover::{Finder, Progress, ProgressCallback};
use config_model::Document;
use config_model::discovery::Discovery;
use config_model::machine::Membership;
use http::{Method, StatusCode};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tests_harness::process::Owned;
use tests_harness::programs;
use tests_harness::wait::eventually;
use tokio::sync::mpsc::unbounded_channel;

const LIMIT: Duration = Duration::from_secs(180);

/// The endpoint as a process, on a port that stays over restarts.
struct Endpoint {
    process: Owned,
    port: u16,
}

impl Endpoint {
    fn start(bin: &Path, dir: &Path, port: u16) -> Self {
        let mut command = Command::new(bin.join("discovery"));
        command
            .arg("--data")
            .arg(dir.join("endpoint"))
            .arg("--listen")
            .arg(format!("127.0.0.1:{port}"));
        let process = Owned::start(command, &dir.join("discovery.log")).unwrap();
        let found = eventually("the discovery endpoint", LIMIT, "", || {
            Ok(std::net::TcpStream::connect(("127.0.0.1", port))
                .is_ok()
                .then_some(()))
        });
        found.unwrap();
        Self { process, port }
    }
}

fn free_port() -> u16 {
    tests_harness::port::free().unwrap()
}

/// What `pratique discovery create` prints, as the user-data of a machine.
async fn create(site: &Site, endpoint: &Endpoint, token: &[&str]) -> Result<Discovery, String> {
    let mut command = Command::new(programs::folder().join("pratique"));
    command
        .args(["discovery", "create", "--endpoint"])
        .arg(format!("http://127.0.0.1:{}", endpoint.port));
    command
        .arg("--kubeconfig")
        .arg(site.kubeconfig())
        .arg("--master")
        .arg(format!("https://{}", site.address));
    command.args(token);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = format!("version = 1\n{}", String::from_utf8(output.stdout).unwrap());
    let Document::Machine(machine) = config_model::parse(&text, "printed").unwrap() else {
        panic!("{text}")
    };
    let Membership::Discovers(terms) = machine.membership else {
        panic!("{text}")
    };
    Ok(terms)
}

/// The first answer to a machine with this user-data.
async fn first(terms: &Discovery, memory: &Path) -> String {
    let (sender, mut reports) = unbounded_channel();
    let report: ProgressCallback = Arc::new(move |news: &Progress<'_>| {
        drop(sender.send(match news {
            Progress::Failed { failure, .. } => failure.code().unwrap_or("failed").to_owned(),
            Progress::Found {
                document,
                remembered: false,
            } => {
                let pins: Vec<String> = document.ca_pins.iter().map(ToString::to_string).collect();
                format!(
                    "{} {} {}",
                    document.generation,
                    document.endpoints[0],
                    pins.join(",")
                )
            }
            Progress::Again { .. }
            | Progress::FirstUse { .. }
            | Progress::Forgotten { .. }
            | Progress::Found { .. } => String::new(),
        }));
    });
    let mut finder = Finder::new(terms.clone(), memory, report).unwrap();
    let finding = tokio::spawn(async move { finder.find().await });
    let line = tokio::time::timeout(LIMIT, reports.recv())
        .await
        .unwrap()
        .unwrap();
    finding.abort();
    line
}

async fn config_map(site: &Site) -> serde_json::Value {
    let path = "/api/v1/namespaces/kube-public/configmaps/pratique-discovery";
    site.api(Method::GET, path, Vec::new()).await.json["data"].clone()
}

/// The cluster is published by one command; a machine finds it by what the command printed, and
/// only it. A restarted master publishes a higher generation, and what was served before is refused
/// from then on. Neither key nor credential shows.
pub(crate) async fn a_published_cluster_is_found_and_an_older_document_refused() {
    let dir = tempfile::tempdir().unwrap();
    let site =
        Site::start("version = 1\nkind = \"cluster\"\n[cluster]\nname = \"lab\"\npod_cidrs = []\n")
            .await;
    let endpoint = Endpoint::start(&programs::folder(), dir.path(), free_port());
    let terms = create(&site, &endpoint, &[])
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", site.log()));
    let memory = dir.path().join("memory.json");
    let found = first(&terms, &memory).await;
    let pin = master_ca::spki_hash(&spki_of(&site.root));
    let at = format!("https://{} {pin}", site.address);
    assert!(found.ends_with(&at), "{found}, not {at}");
    // A machine that pins another key gets nothing from the same endpoint.
    let mut other = terms.clone();
    other.trust =
        config_model::discovery::DiscoveryTrust::Pins(vec![config_model::format::Pin([1; 32])]);
    assert_eq!(
        first(&other, &dir.path().join("other.json")).await,
        "PIN_UNKNOWN"
    );
    the_credential_is_in_the_secret_alone(&site, dir.path()).await;
    // An old state of the endpoint's own disk is restored after the master published a newer
    // document.
    let old = dir.path().join("old");
    endpoint.process.stop(LIMIT).unwrap();
    copy(&dir.path().join("endpoint"), &old);
    let endpoint = Endpoint::start(&programs::folder(), dir.path(), endpoint.port);
    site.cut_and_restart().await;
    let before: u64 = found.split(' ').next().unwrap().parse().unwrap();
    let start = std::time::Instant::now();
    loop {
        let now: u64 = first(&terms, &memory)
            .await
            .split(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        if now > before {
            break;
        }
        assert!(
            start.elapsed() < LIMIT,
            "a restarted master publishes nothing:\n{}",
            site.log()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    both_roots_are_found(&site, &terms, &memory, &pin).await;
    endpoint.process.stop(LIMIT).unwrap();
    std::fs::remove_dir_all(dir.path().join("endpoint")).unwrap();
    copy(&old, &dir.path().join("endpoint"));
    let endpoint = Endpoint::start(&programs::folder(), dir.path(), endpoint.port);
    assert_eq!(first(&terms, &memory).await, "GENERATION_BACK");
    endpoint.process.stop(LIMIT).unwrap();
    site.stop();
}

/// Only authorized users read the Secret; the endpoint stores only the credential's hash.
async fn the_credential_is_in_the_secret_alone(site: &Site, dir: &Path) {
    let public = config_map(site).await.to_string();
    let secret = "/api/v1/namespaces/kube-system/secrets/pratique-discovery";
    let anonymous = crate::wire::Connection::open(site.address, site.anonymous.clone())
        .await
        .unwrap();
    let answer = { anonymous }.send(Method::GET, secret, Vec::new()).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    let data = site.api(Method::GET, secret, Vec::new()).await.json["data"].clone();
    let credential = data
        .as_object()
        .unwrap()
        .iter()
        .find(|(key, _)| key.ends_with(".credential"))
        .unwrap()
        .1;
    let credential = decode(credential.as_str().unwrap());
    for text in [
        public,
        site.log(),
        std::fs::read_to_string(dir.join("discovery.log")).unwrap(),
    ] {
        assert!(
            !text.contains(&credential) && !text.contains("PRIVATE KEY"),
            "{text}"
        );
    }
}

/// While the root is rotated, what is published names both, so that machines follow by themselves.
async fn both_roots_are_found(site: &Site, terms: &Discovery, memory: &Path, old: &str) {
    let mut rotate = Command::new(programs::folder().join("pratique"));
    rotate
        .args(["root", "rotate", "--kubeconfig"])
        .arg(site.kubeconfig());
    let output = tokio::task::spawn_blocking(move || rotate.output().unwrap())
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let start = std::time::Instant::now();
    loop {
        let line = first(terms, memory).await;
        let pins: Vec<&str> = line.rsplit(' ').next().unwrap().split(',').collect();
        if pins.len() == 2 {
            assert_eq!(pins[0], old);
            break;
        }
        assert!(start.elapsed() < LIMIT, "{line}:\n{}", site.log());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn spki_of(certificate: &[u8]) -> Vec<u8> {
    use x509_parser::prelude::{FromDer as _, X509Certificate};
    X509Certificate::from_der(certificate)
        .unwrap()
        .1
        .public_key()
        .raw
        .to_vec()
}

fn decode(text: &str) -> String {
    use base64::Engine as _;
    String::from_utf8(
        base64::engine::general_purpose::STANDARD
            .decode(text)
            .unwrap(),
    )
    .unwrap()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
