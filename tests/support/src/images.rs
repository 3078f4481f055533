//! Images of release keys, how a software TPM boots them, and a listener on its bus.

use agent_tpm::{Tpm, Unlock};
use config_tpm::Digest;
use config_tpm::boot::Boot;
use config_tpm::pcr::extended;
use config_unlock::approvals::{Approvals, Approver, Role, SECURE_BOOT_PCR};
use p256::ecdsa::SigningKey;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use tests_harness::swtpm::Swtpm;

/// The registers that firmware and stub extend with what they start.
const MEASURED: [u8; 3] = [4, 9, 11];

/// A release key.
pub fn release_key(seed: u8) -> SigningKey {
    SigningKey::from_slice(&[seed; 32]).expect("a key")
}

/// A worker's image of `svn` that measures `seed`, approved by the key.
pub fn image(key: &SigningKey, svn: u64, seed: u8) -> Unlock {
    image_of(Role::Worker, key, svn, seed)
}

/// An image of a role, of `svn`, that measures `seed`, approved by the key.
pub fn image_of(role: Role, key: &SigningKey, svn: u64, seed: u8) -> Unlock {
    let value = extended(&Digest::ZERO, &Digest([seed; 32]));
    let boot = |value| Boot {
        secure_boot: false,
        pcrs: MEASURED.map(|pcr| (pcr, vec![value])).into_iter().collect(),
        events: BTreeMap::new(),
    };
    let other = extended(&Digest::ZERO, &Digest([0xEE; 32]));
    let approvals = Approvals::sign(key, role, svn, &[boot(other), boot(value)]);
    Unlock {
        approver: Approver::new(*key.verifying_key(), role),
        approvals,
        svn,
    }
}

/// Power-cycles the TPM, and extends what firmware and stub measure of an image.
pub fn boot(swtpm: &mut Swtpm, seed: u8) -> Tpm {
    swtpm.power_cycle();
    let tpm = Tpm::open(&swtpm.tcti()).expect("open");
    for pcr in MEASURED {
        tpm.extend_pcr(pcr, Digest([seed; 32])).expect("measured");
    }
    tpm
}

/// As [`boot`], under Secure Boot settings that the firmware measured as one event.
pub fn boot_under(swtpm: &mut Swtpm, seed: u8, settings: u8) -> Tpm {
    let tpm = boot(swtpm, seed);
    tpm.extend_pcr(SECURE_BOOT_PCR, Digest([settings; 32]))
        .expect("measured");
    tpm
}

/// Runs a command of tpm2-tools, as the owner of the hierarchy on a foreign system can; returns its
/// output, or the error.
pub fn tool(swtpm: &Swtpm, line: &str) -> Result<Vec<u8>, String> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).env("TPM2TOOLS_TCTI", swtpm.tcti());
    let output = command
        .output()
        .expect("tpm2-tools must be in PATH: install the package tpm2-tools");
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Records the traffic between here and a TPM.
pub fn tapped(swtpm: &Swtpm) -> (String, Arc<Mutex<Vec<u8>>>) {
    let tcti = swtpm.tcti();
    let port: u16 = tcti
        .rsplit('=')
        .next()
        .and_then(|port| port.parse().ok())
        .expect("a port");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (first, second) = loop {
        let first = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = first.local_addr().expect("an address").port();
        if let Some(Ok(second)) = port
            .checked_add(1)
            .map(|port| TcpListener::bind(("127.0.0.1", port)))
        {
            break (first, second);
        }
    };
    let own = first.local_addr().expect("an address").port();
    for (listener, to) in [(first, port), (second, port + 1)] {
        let heard = Arc::clone(&heard);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", to)).expect("the TPM");
                let back = (
                    server.try_clone().expect("a socket"),
                    client.try_clone().expect("a socket"),
                );
                for (from, to) in [(client, server), back] {
                    let heard = Arc::clone(&heard);
                    std::thread::spawn(move || copy(from, to, &heard));
                }
            }
        });
    }
    (format!("swtpm:host=127.0.0.1,port={own}"), heard)
}

fn copy(mut from: TcpStream, mut to: TcpStream, heard: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(length) = from.read(&mut buffer) {
        // Before it is sent on: the other direction records the answer.
        heard
            .lock()
            .expect("not poisoned")
            .extend(&buffer[..length]);
        if length == 0 || to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    to.shutdown(std::net::Shutdown::Both).ok();
}
