//! A registry on loopback (Debian's docker-registry) that serves images made here.

use crate::process::Owned;
use crate::tools::Tools;
use crate::wait::eventually;
use crate::{Result, file_error};
use serde::{Deserialize, Serialize};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

/// A registry that was started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Registry {
    process: Owned,
    /// Its port on 127.0.0.1.
    pub port: u16,
}

impl Registry {
    /// Serves the images of `dir`, which it fills with the demonstration image, on a loopback port.
    pub fn start(tools: &Tools, dir: &Path, port: u16) -> Result<Self> {
        crate::oci::busybox(tools, &dir.join("data"))?;
        let config = dir.join("config.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: warn, accesslog: {{disabled: true}}}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}, maintenance: {{readonly: {{enabled: true}}}}}}\n\
             http: {{addr: '127.0.0.1:{port}'}}\n",
            dir.join("data").display()
        );
        std::fs::write(&config, text).map_err(file_error("cannot write", &config))?;
        let mut command = tools.command("docker-registry");
        command.arg("serve").arg(&config);
        let log = dir.join("registry.log");
        let process = Owned::start(command, &log)?;
        let registry = Self { process, port };
        let hint = format!("see {}", log.display());
        eventually("the registry", Duration::from_secs(300), &hint, || {
            Ok(TcpStream::connect(("127.0.0.1", port))
                .is_ok()
                .then_some(()))
        })?;
        Ok(registry)
    }

    /// Whether it runs.
    pub fn alive(&self) -> bool {
        self.process.alive()
    }

    /// Ends it.
    pub fn stop(&self) -> Result<()> {
        self.process.stop(Duration::from_secs(5))
    }
}
