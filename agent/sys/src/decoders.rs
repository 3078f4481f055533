//! Decoders of this room that only its own functions call, for the fuzz targets of `tests/fuzz`.

use crate::mounted::Mounted;

/// The mount that a line of the kernel's list describes; `None` for a line of another form.
pub fn mount(line: &[u8]) -> Option<Mounted> {
    Mounted::read(line)
}
