//! The encrypted state: its header on the disk, and when the volume is trusted.
//!
//! The state's volume is encrypted by a volume key; the [`header`] holds that key wrapped by a key
//! that lies in the TPM ([`kept`]), and once more by a recovery key. [`engine`] decides: a volume
//! is opened only where the header opens with a key that the TPM keeps for boots like this one and
//! is not older than the TPM's generation; anything else on the disk is not trusted, and [`reason`]
//! says why. The agent, which talks to the TPM, sends init a [`report`].
//!
//! No I/O: disk and TPM are traits. No tasks, no channels. Enter at [`engine::open`].

pub mod engine;
pub mod kept;
pub mod reason;
pub mod report;

pub use config_state::{generation, header};
pub use engine::{BootFacts, Disk, OpenOutcome, SlotContent, Store};
pub use kept::Kept;
pub use reason::Reason;
pub use report::Report;
