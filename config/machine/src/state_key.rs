//! Exit codes of `agent state-key` for faults that only a person can fix. init then stops the boot
//! instead of rebooting for ever; the numbers are those of sysexits.

/// Someone changed the authorization of the TPM's owner hierarchy (`EX_NOPERM`).
pub const AUTHORIZATION: u8 = 77;
/// The TPM's NV memory has no room for the state's key (`EX_CANTCREAT`).
pub const FULL: u8 = 73;
