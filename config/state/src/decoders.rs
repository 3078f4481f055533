//! Decoders of this room that only its own functions call, for the fuzz targets of `tests/fuzz`.

use crate::generation::{Generation, NoGeneration, fields};

/// The lines of a generation's text, of which the MAC holds.
///
/// # Errors
/// [`NoGeneration::Malformed`]: they are no generation.
pub fn generation(body: &str) -> Result<Generation, NoGeneration> {
    fields(body)
}
