//! Fuzz targets for what a node decodes: TPM seals, images, logs, answers of probes, drivers and
//! DNS servers.

use super::boot::{folder, target};
use crate::run::{Shape, Target};
use agent_csi::decoders as csi;
use agent_csi::messages::{NodeGetCapabilitiesResponse, NodeGetInfoResponse, PluginInfo};
use agent_images::decoders as images;
use agent_names::answer::written;
use agent_names::heard;
use agent_runtime::decoders as runtime;
use agent_tpm::decoders as tpm;
use bytes::Bytes;
use std::fs;
use std::io;

/// The highest user or group id that an image may name; `u32::MAX` means "no change" to the kernel.
const HIGHEST_ID: u32 = 0x7fff_ffff;
/// Bytes of a DNS answer by UDP if the client names no size (no EDNS).
const DATAGRAM: usize = 512;
const DIGEST: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000aa";

/// All targets of this file.
///
/// # Errors
/// No folder can be made for the files that targets read.
pub(super) fn targets() -> io::Result<Vec<Target>> {
    let (archives, logs) = (folder()?, folder()?);
    Ok(vec![
        target(
            "agent-tpm/seal",
            seal(),
            Box::new(|input| {
                if let Some(parts) = tpm::seal(input) {
                    assert_eq!(parts.concat(), input, "a seal is its parts, in their order");
                }
            }),
        ),
        target(
            "agent-runtime/process-ids",
            b"web:logs\n\nweb:x:33:34::/:/bin/sh\n\nlogs:x:50:web\n".to_vec(),
            Box::new(ids),
        ),
        target(
            "agent-images/archive",
            archive()?,
            Box::new(move |input| {
                let path = archives.path().join("image.tar");
                fs::write(&path, input).expect("a file takes what is written");
                images::image_archive(path).ok();
            }),
        ),
        target(
            "agent-handlers/health",
            vec![0, 0, 0, 0, 2, 8, 1],
            Box::new(|input| {
                agent_handlers::decoders::health(Bytes::copy_from_slice(input));
            }),
        ),
        target(
            "agent-server/log",
            b"tailLines=2&timestamps=true\n2026-01-01T00:00:00Z stdout P a\n2026-01-01T00:00:00Z stdout F b\n"
                .to_vec(),
            Box::new(move |input| {
                let mut parts = input.splitn(2, |byte| *byte == b'\n');
                let [query, log] = [(); 2].map(|()| parts.next().unwrap_or_default());
                fs::write(logs.path().join("0.log"), log).expect("a file takes what is written");
                let query = String::from_utf8_lossy(query);
                if let Ok(shown) = agent_server::decoders::log(logs.path(), &query) {
                    assert!(shown <= log.len(), "more is shown than is there");
                }
            }),
        ),
        target("agent-csi/answer", driver(), Box::new(driver_said)),
        target("agent-proxy/server", server(), Box::new(server_said)),
        document(),
    ])
}

/// An image's index, manifest and configuration.
fn document() -> Target {
    let platform = r#""platform":{"architecture":"amd64","os":"linux","variant":"v2"}"#;
    let descriptor = format!(r#"{{"mediaType":"m","digest":"{DIGEST}","size":7,{platform}}}"#);
    let seeds = [
        format!(r#"{{"schemaVersion":2,"manifests":[{descriptor}]}}"#),
        format!(r#"{{"schemaVersion":2,"config":{descriptor},"layers":[{descriptor}]}}"#),
        format!(
            r#"{{"architecture":"amd64","os":"linux","rootfs":{{"type":"layers","diff_ids":["{DIGEST}"]}},"config":{{"User":"web","Env":["A=b"],"Entrypoint":["/a"],"Cmd":["b"],"WorkingDir":"/","StopSignal":"SIGINT"}}}}"#
        ),
    ];
    Target {
        name: "agent-images/document",
        shape: Shape::Json,
        seeds: seeds.map(String::into_bytes).into(),
        decode: Box::new(images::image_document),
    }
}

/// An image's user, its passwd and its group, separated by empty lines.
fn ids(input: &[u8]) {
    let text = String::from_utf8_lossy(input).into_owned();
    let mut parts = text.splitn(3, "\n\n");
    let [user, passwd, group] = [(); 3].map(|()| parts.next().unwrap_or_default());
    let found = runtime::process_ids(passwd.to_owned(), group.to_owned(), user);
    let high = found.is_some_and(|ids| ids.iter().any(|id| *id > HIGHEST_ID));
    assert!(!high, "a number that may stand for root");
}

/// A gRPC status, the driver's message, and a body, separated by line ends.
fn driver_said(input: &[u8]) {
    let mut parts = input.splitn(3, |byte| *byte == b'\n');
    let [status, words, body] = [(); 3].map(|()| parts.next().unwrap_or_default());
    let body = Bytes::copy_from_slice(body);
    let said = [
        csi::answer::<NodeGetInfoResponse>(status, words, body.clone()).err(),
        csi::answer::<NodeGetCapabilitiesResponse>(status, words, body.clone()).err(),
        csi::answer::<PluginInfo>(status, words, body).err(),
    ];
    for words in said.into_iter().flatten() {
        assert!(
            words.chars().count() < 4096 && !words.contains('\n'),
            "{words}"
        );
    }
}

/// The answer of another DNS server.
fn server_said(input: &[u8]) {
    if let Some((answer, seconds)) = heard(input) {
        assert_ne!(seconds, Some(0), "remembered for no time");
        written(&answer, DATAGRAM);
    }
}

/// A seal with a policy of floor 7: public and private part, nonce, text.
fn seal() -> Vec<u8> {
    let public = config_tpm::template::ek_p256().to_bytes();
    let size = u16::try_from(public.len()).unwrap_or_default();
    let mut blob = vec![2, 0, 0, 0, 0, 0, 0, 0, 7];
    blob.extend((size + 2).to_be_bytes());
    blob.extend(size.to_be_bytes());
    blob.extend(public);
    blob.extend([0, 3, 1, 2, 3]);
    blob.extend([5; 12 + 32]);
    blob
}

/// An OCI layout in a tar: its index, and a blob that it names.
fn archive() -> io::Result<Vec<u8>> {
    let index = format!(
        r#"{{"manifests":[{{"mediaType":"m","digest":"{DIGEST}","size":5,"annotations":{{"io.containerd.image.name":"a.example/b:1"}}}}]}}"#
    );
    let blob = format!("blobs/{}", DIGEST.replacen(':', "/", 1));
    let mut builder = tar::Builder::new(Vec::new());
    for (name, data) in [
        ("index.json", index.as_bytes()),
        (blob.as_str(), &b"layer"[..]),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append_data(&mut header, name, data)?;
    }
    builder.into_inner()
}

/// A node's name and topology.
fn driver() -> Vec<u8> {
    let info = NodeGetInfoResponse {
        node_id: "node-1".to_owned(),
        ..NodeGetInfoResponse::default()
    };
    let message = prost::Message::encode_to_vec(&info);
    let size = u32::try_from(message.len()).unwrap_or_default();
    let head = [&b"0\nall%20well\n\0"[..], &size.to_be_bytes()].concat();
    [head, message].concat()
}

/// A DNS answer (RFC 1035) with an A record and a SOA record.
fn server() -> Vec<u8> {
    let mut message = vec![0, 7, 0x81, 0x80, 0, 1, 0, 1, 0, 1, 0, 0];
    message.extend(b"\x03web\x07example\0\0\x01\0\x01");
    message.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x09");
    message.extend(b"\xc0\x10\0\x06\0\x01\0\0\0\x3c\0\x18\xc0\x0c\xc0\x0c");
    message.extend([0; 20]);
    message
}
