//! Software TPMs (swtpm): made with an EK and its certificate, as a factory would, then run beside
//! one machine.

use crate::port;
use crate::process::{Owned, run, tail};
use crate::tools::Tools;
use crate::wait::eventually;
use crate::{Error, Result, file_error};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A software TPM's state on disk.
#[derive(Debug, Clone)]
pub struct SoftTpm {
    dir: PathBuf,
}

impl SoftTpm {
    /// Makes a TPM in `dir` with RSA-2048 and ECC P-384 EKs certified by the local authority in
    /// `authority`; keeps one that is there.
    pub fn manufacture(tools: &Tools, dir: &Path, authority: &Path) -> Result<Self> {
        let tpm = Self {
            dir: dir.to_owned(),
        };
        if tpm.ek_certificate().exists() {
            return Ok(tpm);
        }
        for folder in [dir, authority] {
            std::fs::create_dir_all(folder).map_err(file_error("cannot make", folder))?;
        }
        let config = authority.join("setup.conf");
        write_authority(authority, &config)?;
        let mut setup = tools.command("swtpm_setup");
        setup.args([
            "--tpm2",
            "--create-ek-cert",
            "--create-platform-cert",
            "--pcr-banks",
            "sha256",
            "--overwrite",
        ]);
        setup
            .arg("--tpm-state")
            .arg(dir)
            .arg("--config")
            .arg(&config);
        setup
            .arg("--write-ek-cert-files")
            .arg(dir)
            .arg("--logfile")
            .arg(dir.join("setup.log"));
        run(setup)?;
        Ok(tpm)
    }

    /// The EK certificate (RSA-2048), DER.
    pub fn ek_certificate(&self) -> PathBuf {
        self.dir.join("ek-rsa2048.crt")
    }

    /// The folder of its state.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs it; QEMU connects to the returned control socket and ends it when it ends itself.
    pub fn start(&self, tools: &Tools, socket: &Path, log: &Path) -> Result<Owned> {
        std::fs::remove_file(socket).ok();
        let mut command = tools.command("swtpm");
        command.args(["socket", "--tpm2", "--terminate"]);
        command
            .arg("--tpmstate")
            .arg(format!("dir={},mode=0600", self.dir.display()));
        command
            .arg("--ctrl")
            .arg(format!("type=unixio,path={}", socket.display()));
        let process = Owned::start(command, log)?;
        let hint = format!("see {}", log.display());
        eventually(
            "the software TPM's socket",
            Duration::from_secs(300),
            &hint,
            || {
                running(&process, log)?;
                Ok(socket.exists().then_some(()))
            },
        )?;
        Ok(process)
    }
}

/// A machine's TPM as a foreign system on the same board finds it: powered on, without the
/// measurements of an image, and usable with the owner hierarchy's empty authorization. It ends
/// when this is dropped.
#[derive(Debug)]
pub struct Foreign {
    process: Owned,
    port: u16,
    tools: Tools,
}

impl SoftTpm {
    /// Powers the TPM on without its machine, whose power must be off.
    ///
    /// # Errors
    /// A TPM that does not answer.
    pub fn foreign(&self, tools: &Tools, log: &Path) -> Result<Foreign> {
        let port = port::free_pair()?;
        let mut command = tools.command("swtpm");
        command
            .args(["socket", "--tpm2", "--flags", "not-need-init,startup-clear"])
            .arg("--tpmstate")
            .arg(format!("dir={},mode=0600", self.dir.display()))
            .args(["--server", &listening(port), "--ctrl", &listening(port + 1)]);
        let foreign = Foreign {
            process: Owned::start(command, log)?,
            port,
            tools: tools.clone(),
        };
        let hint = format!("see {}", log.display());
        let limit = Duration::from_secs(300);
        eventually("the software TPM to answer", limit, &hint, || {
            running(&foreign.process, log)?;
            Ok(foreign.tool("tpm2_getcap properties-fixed").ok())
        })?;
        Ok(foreign)
    }
}

/// An error with the end of its log where a software TPM has ended: nobody waits for it.
fn running(process: &Owned, log: &Path) -> Result<()> {
    if process.alive() {
        return Ok(());
    }
    let output = std::fs::read_to_string(log).map_err(file_error("cannot read", log))?;
    Err(Error::Failed {
        program: process.program.clone(),
        status: "before it was ready".to_owned(),
        output: tail(&output, 30),
    })
}

impl Foreign {
    /// Runs a command of tpm2-tools, with its arguments separated by single spaces; returns its
    /// output.
    ///
    /// # Errors
    /// The command fails, as where the TPM refuses it.
    pub fn tool(&self, line: &str) -> Result<String> {
        let mut words = line.split(' ');
        let mut command = self.tools.command(words.next().unwrap_or_default());
        let tcti = format!("swtpm:host=127.0.0.1,port={}", self.port);
        command.args(words).env("TPM2TOOLS_TCTI", tcti);
        run(command)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // A TPM that can't be ended keeps its lock, which the next user of it tells.
        self.process.stop(Duration::from_secs(5)).ok();
    }
}

fn listening(port: u16) -> String {
    format!("type=tcp,port={port},bindaddr=127.0.0.1")
}

/// The local authority's configuration: `swtpm_setup` calls `swtpm_localca`, which makes its keys
/// on first use.
fn write_authority(authority: &Path, config: &Path) -> Result<()> {
    let localca = authority.join("localca.conf");
    let options = authority.join("localca.options");
    let root = authority.display();
    let texts = [
        (
            config.to_owned(),
            format!(
                "create_certs_tool = swtpm_localca\ncreate_certs_tool_config = {}\ncreate_certs_tool_options = {}\n",
                localca.display(),
                options.display()
            ),
        ),
        (
            localca.clone(),
            format!(
                "statedir = {root}\nsigningkey = {root}/signkey.pem\nissuercert = {root}/issuercert.pem\ncertserial = {root}/certserial\n"
            ),
        ),
        (
            options.clone(),
            "--platform-manufacturer Pratique\n--platform-version 1\n--platform-model QEMU\n"
                .to_owned(),
        ),
    ];
    for (path, text) in texts {
        std::fs::write(&path, text).map_err(file_error("cannot write", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn nobody_waits_for_a_software_tpm_that_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such state >&2; exit 1"]);
        let process = Owned::start(command, &log).unwrap();
        let limit = Duration::from_secs(60);
        eventually(
            "the end",
            limit,
            "",
            || Ok((!process.alive()).then_some(())),
        )
        .unwrap();
        let error = running(&process, &log).unwrap_err().to_string();
        assert!(error.contains("no such state"), "{error}");
    }
}
