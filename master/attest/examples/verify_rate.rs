//! Verifications per second on one core:
//! `cargo run --release -p master-attest --example verify_rate`.
//!
//! One verification is the master's whole work on one exchange except HTTP and JSON: hello (key
//! templates, inventory, EK chain), MakeCredential, and evidence (HMAC, two TPM signatures, log,
//! image, both requests). Release signatures are verified once for each release, not for each
//! exchange, as in the master.

use config_attest::sessions::Sessions;
use config_attest::verifier::{check_evidence, check_hello};
use config_protocol::{Purpose, wire};
use config_tpm::{Agreement, Curve, Entropy};
use master_attest::SystemEntropy;
use rand_core::{CryptoRng, RngCore};
use std::io::Write as _;
use std::time::Duration;
use tests_machines::{EkKind, SeededRng, World};

/// The extended key usage of EK certificates (TCG EK Credential Profile, 3.2.16).
const TCG_KP_EK_CERTIFICATE: [u64; 5] = [2, 23, 133, 8, 1];
/// How long each kind is measured, in CPU time.
const SPAN: Duration = Duration::from_secs(3);

/// The same session, nonce and secret each time, so that one piece of evidence answers all; key
/// agreement works as in the master.
struct Repeating(SeededRng);

impl RngCore for Repeating {
    fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn fill_bytes(&mut self, dest: &mut [u8]) {
        self.0.fill_bytes(dest);
    }

    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), rand_core::Error> {
        self.0.try_fill_bytes(dest)
    }
}

impl CryptoRng for Repeating {}

impl Entropy for Repeating {
    fn agree(&mut self, curve: Curve, peer: &[u8]) -> Option<Agreement> {
        SystemEntropy.agree(curve, peer)
    }
}

/// CPU time of this thread, which does not depend on other load on the machine.
fn cpu() -> std::io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse().ok());
    nanoseconds
        .map(Duration::from_nanos)
        .ok_or_else(|| std::io::Error::other("no CPU time in schedstat"))
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for kind in [EkKind::Rsa, EkKind::P256, EkKind::P384] {
        let mut world = World::new();
        let mut machine = world.machine("worker-1", "192.168.77.11", kind);
        machine.ek_certificate = Some(world.endorse(&machine, &TCG_KP_EK_CERTIFICATE, 2090));
        let references = world.references();
        let reference = references.get();
        let hello = machine.hello();
        let admit = || {
            check_hello(&hello.0, &reference, &world.channel, world.now)
                .map_err(std::io::Error::other)
        };
        let open = |admitted| {
            let mut sessions = Sessions::default();
            let challenge =
                sessions.open(admitted, world.now, &mut Repeating(SeededRng::new("rate")));
            challenge
                .map(|challenge| (sessions, challenge))
                .map_err(std::io::Error::other)
        };
        let (_, challenge) = open(admit()?)?;
        let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
        let (start, mut count, mut hello_time, mut total) =
            (cpu()?, 0_u32, Duration::ZERO, Duration::ZERO);
        while total < SPAN {
            let before = cpu()?;
            let (mut sessions, challenge) = open(admit()?)?;
            hello_time += cpu()?.saturating_sub(before);
            let pending = sessions
                .take(&challenge.session, world.now)
                .map_err(|code| std::io::Error::other(code.as_str()))?;
            check_evidence(pending, &evidence, &reference, &world.channel, world.now)
                .map_err(std::io::Error::other)?;
            count += 1;
            total = cpu()?.saturating_sub(start);
        }
        let size = |bytes: Result<Vec<u8>, _>| bytes.map_or(0, |bytes: Vec<u8>| bytes.len());
        let travels = size(serde_json::to_vec(&hello.0))
            + size(serde_json::to_vec::<wire::Challenge>(&challenge))
            + size(serde_json::to_vec(&evidence));
        writeln!(
            out,
            "EK {kind:?}: {:.0} verifications/s/core, {:.2} ms each (hello {:.2} ms), {travels} bytes of JSON",
            f64::from(count) / total.as_secs_f64(),
            total.as_secs_f64() * 1000.0 / f64::from(count),
            hello_time.as_secs_f64() * 1000.0 / f64::from(count),
        )?;
    }
    Ok(())
}
