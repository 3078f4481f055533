//! How `agent state-key` ends where only a person can cure it. init holds the machine then, in the place of trying again by
//! a reboot for ever; the numbers are those of sysexits.

/// Somebody changed the authorization of the TPM's owner hierarchy (`EX_NOPERM`).
pub const AUTHORIZATION: u8 = 77;
/// The TPM's NV memory has no room for the state's key (`EX_CANTCREAT`).
pub const FULL: u8 = 73;
