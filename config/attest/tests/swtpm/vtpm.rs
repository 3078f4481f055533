//! A software TPM for one test, spoken to with raw commands, so that nothing stands between the
//! verifier and the TPM's bytes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use tests_harness::swtpm::Swtpm;

/// Password session.
const PASSWORD: u32 = 0x4000_0009;
/// The hierarchies.
pub(crate) const ENDORSEMENT: u32 = 0x4000_000b;
pub(crate) const NULL: u32 = 0x4000_0007;

/// A running software TPM, and a directory for the test's files.
pub(crate) struct Vtpm {
    swtpm: Swtpm,
    dir: TempDir,
    stream: Option<TcpStream>,
}

impl Vtpm {
    /// A new TPM with EKs and their certificates.
    pub(crate) fn new() -> Self {
        Self {
            swtpm: Swtpm::new(),
            dir: tempfile::tempdir().expect("a temporary directory"),
            stream: None,
        }
    }

    /// PEM of the issuer of the EK certificates.
    pub(crate) fn issuer_pem(&self) -> String {
        self.swtpm.issuer_pem()
    }

    /// A path in the test's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs one of tpm2-tools against this TPM, in the test's directory. This closes our own
    /// connection.
    pub(crate) fn tool(&mut self, name: &str, arguments: &[&str]) -> Vec<u8> {
        self.stream = None;
        let output = Command::new(name)
            .args(arguments)
            .current_dir(self.dir.path())
            .env("TPM2TOOLS_TCTI", self.swtpm.tcti())
            .output()
            .unwrap_or_else(|fault| panic!("{name}: {fault}: install tpm2-tools"));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name} {arguments:?}: {text}");
        output.stdout
    }

    /// Sends a command until the TPM no longer asks for a retry; returns what follows the
    /// response's header.
    fn send(&mut self, tag: u16, code: u32, body: &[u8]) -> Vec<u8> {
        const TPM_RC_RETRY: u32 = 0x922;
        for _ in 0..5 {
            match self.once(tag, code, body) {
                (0, response) => return response,
                (TPM_RC_RETRY, _) => {}
                (result, _) => panic!("command {code:#x} gave {result:#x}"),
            }
        }
        panic!("command {code:#x}: the TPM asks for a retry again and again");
    }

    fn once(&mut self, tag: u16, code: u32, body: &[u8]) -> (u32, Vec<u8>) {
        let port = self.swtpm.port();
        let stream = self.stream.get_or_insert_with(|| {
            TcpStream::connect(("127.0.0.1", port)).expect("the software TPM listens")
        });
        let size = u32::try_from(body.len() + 10).expect("a small command");
        let mut bytes = tag.to_be_bytes().to_vec();
        bytes.extend_from_slice(&size.to_be_bytes());
        bytes.extend_from_slice(&code.to_be_bytes());
        bytes.extend_from_slice(body);
        stream.write_all(&bytes).expect("the software TPM reads");
        let mut header = [0; 10];
        stream.read_exact(&mut header).expect("a response");
        let size = u32::from_be_bytes([header[2], header[3], header[4], header[5]]) as usize;
        let result = u32::from_be_bytes([header[6], header[7], header[8], header[9]]);
        let mut rest = vec![0; size - 10];
        stream.read_exact(&mut rest).expect("a whole response");
        (result, rest)
    }

    /// A command with sessions: handles, one authorization each, parameters. Returns the response's
    /// handle part of `out_handles` handles and its parameters.
    fn authorized(
        &mut self,
        code: u32,
        handles: &[u32],
        sessions: &[u32],
        parameters: &[u8],
    ) -> Vec<u8> {
        let mut body = Vec::new();
        for handle in handles {
            body.extend_from_slice(&handle.to_be_bytes());
        }
        let mut area = Vec::new();
        for session in sessions {
            area.extend_from_slice(&session.to_be_bytes());
            area.extend_from_slice(&[0, 0, u8::from(*session != PASSWORD), 0, 0]);
        }
        body.extend_from_slice(&u32::try_from(area.len()).expect("small").to_be_bytes());
        body.extend_from_slice(&area);
        body.extend_from_slice(parameters);
        self.send(0x8002, code, &body)
    }

    /// TPM2_CreatePrimary: handle and TPMT_PUBLIC.
    pub(crate) fn create_primary(&mut self, hierarchy: u32, template: &[u8]) -> (u32, Vec<u8>) {
        let mut parameters = vec![0, 4, 0, 0, 0, 0];
        parameters.extend_from_slice(template);
        parameters.extend_from_slice(&[0, 0, 0, 0, 0, 0]);
        let response = self.authorized(0x131, &[hierarchy], &[PASSWORD], &parameters);
        let handle = u32::from_be_bytes(response[..4].try_into().expect("a handle"));
        (handle, sized(&response[8..]).0.to_vec())
    }

    /// TPM2_ReadPublic: TPMT_PUBLIC and the TPM's own value of the Name.
    pub(crate) fn read_public(&mut self, handle: u32) -> (Vec<u8>, Vec<u8>) {
        let response = self.send(0x8001, 0x173, &handle.to_be_bytes());
        let (public, rest) = sized(&response);
        (public.to_vec(), sized(rest).0.to_vec())
    }

    /// TPM2_PCR_Extend in the SHA-256 bank.
    pub(crate) fn extend(&mut self, pcr: u8, digest: &[u8; 32]) {
        let mut parameters = 1_u32.to_be_bytes().to_vec();
        parameters.extend_from_slice(&[0, 0x0b]);
        parameters.extend_from_slice(digest);
        self.authorized(0x182, &[u32::from(pcr)], &[PASSWORD], &parameters);
    }

    /// TPM2_ActivateCredential by the EK's policy (PolicySecret of the endorsement hierarchy), or
    /// by its empty auth.
    pub(crate) fn activate(
        &mut self,
        ak: u32,
        ek: u32,
        by_policy: bool,
        id_object: &[u8],
        secret: &[u8],
    ) -> Vec<u8> {
        let session = if by_policy {
            self.policy_secret()
        } else {
            PASSWORD
        };
        let parameters = [put(id_object), put(secret)].concat();
        let response = self.authorized(0x147, &[ak, ek], &[PASSWORD, session], &parameters);
        sized(&response[4..]).0.to_vec()
    }

    fn policy_secret(&mut self) -> u32 {
        let mut body = [NULL.to_be_bytes(), NULL.to_be_bytes()].concat();
        body.extend_from_slice(&put(&[0; 16]));
        body.extend_from_slice(&[0, 0, 1, 0, 0x10, 0, 0x0b]);
        let response = self.send(0x8001, 0x176, &body);
        let session = u32::from_be_bytes(response[..4].try_into().expect("a handle"));
        self.authorized(0x151, &[ENDORSEMENT, session], &[PASSWORD], &[0; 10]);
        session
    }

    /// TPM2_Quote: TPMS_ATTEST and TPMT_SIGNATURE.
    pub(crate) fn quote(&mut self, ak: u32, data: &[u8], selection: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let parameters = [put(data), vec![0, 0x10], selection.to_vec()].concat();
        attested(&self.authorized(0x158, &[ak], &[PASSWORD], &parameters))
    }

    /// TPM2_Certify with empty auth: TPMS_ATTEST and TPMT_SIGNATURE.
    pub(crate) fn certify(&mut self, key: u32, ak: u32, data: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let parameters = [put(data), vec![0, 0x10]].concat();
        attested(&self.authorized(0x148, &[key, ak], &[PASSWORD, PASSWORD], &parameters))
    }

    /// TPM2_FlushContext.
    pub(crate) fn flush(&mut self, handle: u32) {
        self.send(0x8001, 0x165, &handle.to_be_bytes());
    }
}

/// TPM2B_ATTEST and TPMT_SIGNATURE (ECDSA) of a response with sessions.
fn attested(response: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (attest, rest) = sized(&response[4..]);
    let (r, after) = sized(&rest[4..]);
    let (s, _) = sized(after);
    (attest.to_vec(), rest[..8 + r.len() + s.len()].to_vec())
}

fn sized(bytes: &[u8]) -> (&[u8], &[u8]) {
    let size = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    bytes[2..].split_at(size)
}

fn put(bytes: &[u8]) -> Vec<u8> {
    let mut out = u16::try_from(bytes.len())
        .expect("a small parameter")
        .to_be_bytes()
        .to_vec();
    out.extend_from_slice(bytes);
    out
}
