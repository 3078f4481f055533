//! Constants about a running machine that image, init, agent and tests share, without dependencies,
//! so that the static init can use them: the kernel's settings ([`kernel`]), where programs are
//! ([`programs`]), containerd's configuration ([`containerd`]), how long the machine's end may take
//! ([`end`]), how it is ordered ([`power`]), how the lines of services are stored ([`journal`]),
//! where the specifications of containers lie ([`specification`]), and the exit codes of
//! `agent state-key` ([`state_key`]).
//!
//! No tasks, no channels, no I/O: the image build writes [`kernel::WORDS`] into the command line,
//! init writes [`kernel::SYSCTLS`] and looks at [`kernel::PROOFS`], and a story in a machine
//! compares all three with what runs.

pub mod containerd;
pub mod end;
pub mod journal;
pub mod kernel;
pub mod power;
pub mod programs;
pub mod specification;
pub mod state_key;
