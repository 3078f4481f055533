//! A master process on loopback, and the CPU time and memory that it uses.

use crate::client::Access;
use crate::{Error, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tests_harness::process::Owned;
use tests_harness::programs;

const CLUSTER: &str = "version = 1\nkind = \"cluster\"\n\n[cluster]\nname = \"load\"\n";
/// Time for the master to be ready.
const LIMIT: Duration = Duration::from_secs(300);
/// Clock ticks in a second, as /proc counts CPU time on Linux.
const TICKS: f64 = 100.0;

/// A master's folder, port and process.
#[derive(Debug)]
pub struct Site {
    program: PathBuf,
    dir: tempfile::TempDir,
    port: u16,
    process: Option<Owned>,
}

impl Site {
    /// A place for `program`; nothing runs yet.
    pub fn new(program: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("cluster.toml"), CLUSTER)?;
        let port = tests_harness::port::free()?;
        Ok(Self {
            program: program.to_owned(),
            dir,
            port,
            process: None,
        })
    }

    /// Starts the master; returns the time until `/readyz` succeeded.
    pub async fn start(&mut self) -> Result<Duration> {
        let kubeconfig = self.dir.path().join("data/admin.kubeconfig");
        // From an earlier run; the master writes it again.
        std::fs::remove_file(&kubeconfig).ok();
        let listen = SocketAddr::from(([127, 0, 0, 1], self.port));
        let master = programs::master(&self.program, self.dir.path(), listen);
        let log = self.log();
        let began = Instant::now();
        let process = Owned::start(master, &log)?;
        self.process = Some(process.clone());
        while began.elapsed() < LIMIT && process.alive() {
            if kubeconfig.exists()
                && let Ok(access) = self.access()
                && let Ok(mut connection) = access.connect().await
                && let Ok((200, _)) = connection.send("GET", "/readyz", b"").await
            {
                return Ok(began.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let text = std::fs::read_to_string(log).unwrap_or_default();
        Err(Error::Protocol(format!(
            "the master is not ready:\n{}",
            tests_harness::process::tail(&text, 20)
        )))
    }

    /// The data folder.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Where the master's output goes.
    pub fn log(&self) -> PathBuf {
        self.dir.path().join("master.log")
    }

    /// The admin's access.
    pub fn access(&self) -> Result<Access> {
        Access::read(&self.data().join("admin.kubeconfig"))
    }

    /// Ends the master as a power cut would.
    pub fn kill(&mut self) -> Result<()> {
        self.process
            .take()
            .map_or(Ok(()), |process| Ok(process.kill()?))
    }

    /// Ends the master with a graceful shutdown.
    pub fn stop(&mut self) -> Result<()> {
        self.process
            .take()
            .map_or(Ok(()), |process| Ok(process.stop(Duration::from_secs(30))?))
    }

    fn proc(&self, file: &str) -> String {
        let pid = self.process.as_ref().map_or(0, |process| process.pid);
        std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
    }

    /// Seconds of CPU that the master used so far, in user and kernel mode.
    pub fn cpu(&self) -> f64 {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat
            .rsplit_once(')')
            .map_or("", |(_, rest)| rest)
            .split_whitespace()
            .collect();
        let ticks = |at: usize| {
            fields
                .get(at)
                .and_then(|text| text.parse::<f64>().ok())
                .unwrap_or_default()
        };
        (ticks(11) + ticks(12)) / TICKS
    }

    /// Resident memory in MiB.
    pub fn resident(&self) -> f64 {
        self.memory("VmRSS:")
    }

    /// The most resident memory, in MiB, since [`Site::forget_peak`].
    pub fn peak(&self) -> f64 {
        self.memory("VmHWM:")
    }

    /// Resets the kernel's peak of resident memory.
    pub fn forget_peak(&self) -> Result<()> {
        let pid = self.process.as_ref().map_or(0, |process| process.pid);
        Ok(std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
    }

    fn memory(&self, name: &str) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|text| text.trim().trim_end_matches(" kB").parse::<f64>().ok());
        kib.unwrap_or_default() / 1024.0
    }

    /// Waits until the master has been idle for a moment, at most `limit`, so that its memory no
    /// longer holds what requests needed.
    pub async fn settle(&self, limit: Duration) {
        let began = Instant::now();
        while began.elapsed() < limit {
            let before = self.cpu();
            tokio::time::sleep(Duration::from_secs(1)).await;
            if self.cpu() - before < 0.03 {
                return;
            }
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            // It is ours and not needed any more.
            process.kill().ok();
        }
    }
}
