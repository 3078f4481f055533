//! The encrypted state: its header on the disk, and when it is believed.
//!
//! The state's volume is encrypted by a volume key; the [`header`] holds that key wrapped by a key that lies in the TPM
//! ([`kept`]), and once more by a recovery key. [`engine`] decides: a volume is opened only where the header opens with a key
//! that the TPM keeps for boots like this one and is not older than the TPM's generation; whatever else lies on the disk is
//! not believed, and [`reason`] says why. [`report`] is what the agent, who speaks with the TPM, tells init.
//!
//! No I/O: disk and TPM are traits. No tasks, no channels. Enter at [`engine::open`].

pub mod engine;
pub mod kept;
pub mod reason;
pub mod report;

pub use config_state::header;
pub use engine::{Disk, Found, Opening, Store};
pub use kept::Kept;
pub use reason::Reason;
pub use report::Report;
