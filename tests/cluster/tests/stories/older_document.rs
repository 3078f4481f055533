//! A discovery endpoint whose owner has kept an older document of the cluster: from before its
//! master moved.

use crate::world::expect;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_kube::discovery as names;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use tests_harness::cluster::{BOOT_LIMIT, Lab};
use tests_harness::{Error, Result, file_error};

/// The cluster's master, and where the older document says that it is. Nothing has that address.
const MASTER: &str = "https://192.168.77.10:6443";
const FORMER: &str = "https://192.168.77.250:6443";
const SERVED: &str = "cannot serve discovery documents on";
/// Most lines of a request's head.
const LINES: usize = 64;

/// What an endpoint serves a machine.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// The section `[discovery]` of the machine, which asks for no less than the newest generation.
    pub(crate) block: String,
    newest: String,
}

impl Endpoint {
    /// Publishes the cluster as it was before its master moved, and as it is. Then the endpoint's
    /// owner answers the first question with the older document and all others with the newer one;
    /// the endpoint ends with the test's process.
    pub(crate) fn start(lab: &Lab) -> Result<Self> {
        let (process, block) = lab.discovery()?;
        let documents = documents(lab, &block);
        process.kill()?;
        let (older, newer, newest) = documents?;
        let address = (Ipv4Addr::LOCALHOST, lab.discovery_port);
        let listener = TcpListener::bind(address).map_err(file_error(
            SERVED,
            Path::new(&lab.discovery_port.to_string()),
        ))?;
        drop(std::thread::spawn(move || {
            let mut served = vec![newer, older];
            for stream in listener.incoming().map_while(std::io::Result::ok) {
                let last = served.last().cloned().unwrap_or_default();
                // A guest that went away asks again.
                if answer(stream, &last).is_ok() && served.len() > 1 {
                    served.pop();
                }
            }
        }));
        let least = |line: &str| match line.split_once('=') {
            Some((key, _)) if key.trim() == "min_generation" => format!("{key}= {newest}"),
            Some(_) | None => line.to_owned(),
        };
        let lines: Vec<String> = block.trim_end().lines().map(least).collect();
        Ok(Self {
            block: lines.join("\n"),
            newest,
        })
    }

    /// Whether a machine's console shows that it refused the older document, found its master by
    /// the newest one, and remembered none.
    pub(crate) fn expect_found(&self, console: &str) -> Result<()> {
        let found = format!("master by discovery: {MASTER}, generation {}", self.newest);
        let found = console
            .lines()
            .any(|line| line.trim_end().ends_with(&found));
        expect(
            console.contains("GENERATION_BACK") && found && !console.contains(FORMER),
            "the console does not show that the older document was refused and the master found by the newer one",
        )
    }
}

/// The older document and the newer one, and the newer one's generation.
fn documents(lab: &Lab, block: &str) -> Result<(Vec<u8>, Vec<u8>, String)> {
    let id = block
        .split_once("/v1/clusters/")
        .and_then(|(_, rest)| rest.split_once('"'))
        .map(|(id, _)| id.to_owned());
    let id = id.ok_or_else(|| Error::Missing(format!("no cluster in {block}")))?;
    let mut found = Vec::new();
    for master in [FORMER, MASTER] {
        let before = generation(lab, "the cluster", |_| true)?;
        let patch = format!(
            "{{\"data\":{{\"{}\":\"{}\"}}}}",
            names::ENDPOINTS,
            STANDARD.encode(master)
        );
        let space = ["-n", names::SECRET_NAMESPACE];
        let words = ["patch", "secret", names::NAME, "--type=merge", "-p", &patch];
        lab.kubectl(&[&space[..], &words].concat())?;
        let now = generation(lab, "a newer document", |now| now != before)?;
        found.push((document(lab, &id)?, now));
    }
    match <[_; 2]>::try_from(found) {
        Ok([(older, _), (newer, newest)]) => Ok((older, newer, newest)),
        Err(found) => Err(Error::Missing(format!("{} documents", found.len()))),
    }
}

/// The generation that the master has published.
fn generation(lab: &Lab, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
    let (status, number) = (names::STATUS, names::GENERATION);
    let path = format!("jsonpath={{.data.{status}}} {{.data.{number}}}");
    let space = ["-n", names::PUBLIC_NAMESPACE];
    let words = ["get", "configmap", names::NAME, "-o", &path];
    let published = |text: &str| text.strip_prefix("published ").map(str::to_owned);
    let what = format!("{what} to be published");
    let words = [&space[..], &words].concat();
    let shown = lab.kubectl_until(&words, &what, BOOT_LIMIT, |text| {
        published(text).is_some_and(|now| wanted(&now))
    })?;
    Ok(published(&shown).unwrap_or_default())
}

/// The document that the endpoint serves.
fn document(lab: &Lab, id: &str) -> Result<Vec<u8>> {
    let port = lab.discovery_port;
    let get = || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        write!(
            stream,
            "GET /v1/clusters/{id}/master HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n"
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).map(|_| answer)
    };
    let answer = get().map_err(file_error(SERVED, Path::new(&port.to_string())))?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    match text.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.into()),
        Some(_) | None => Err(Error::Missing(format!("no document: {text}"))),
    }
}

fn answer(mut stream: TcpStream, document: &[u8]) -> std::io::Result<()> {
    let head = BufReader::new(stream.try_clone()?).lines().take(LINES);
    for line in head {
        if line?.is_empty() {
            break;
        }
    }
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        document.len()
    )?;
    stream.write_all(document)
}
