//! The services whose lines a query can name.

use std::fmt;

/// A program of the machine, or its kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoggedService {
    /// The kernel.
    Kernel,
    /// PID 1.
    Init,
    /// The container engine.
    Containerd,
    /// This program.
    Agent,
    /// The control plane, on a master's machine.
    Master,
}

impl LoggedService {
    /// All that a machine may have.
    pub const ALL: [Self; 5] = [
        Self::Kernel,
        Self::Init,
        Self::Containerd,
        Self::Agent,
        Self::Master,
    ];

    /// Its name in queries, and before each line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Init => "init",
            Self::Containerd => "containerd",
            Self::Agent => "agent",
            Self::Master => "master",
        }
    }

    /// The service of a name; the kubelet is a part of the agent.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "kubelet" => Some(Self::Agent),
            "dmesg" => Some(Self::Kernel),
            _ => Self::ALL.into_iter().find(|one| one.name() == name),
        }
    }

    /// Whether its lines are in the kernel's log.
    pub(crate) fn is_in_kernel_log(self) -> bool {
        matches!(self, Self::Kernel | Self::Init)
    }
}

impl fmt::Display for LoggedService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
