//! Decoders of this room that only its own functions call, for the fuzz targets of `tests/fuzz`.

use crate::reader::{LogOptions, Reader};
use agent_sys::beneath::Beneath;
use jiff::Timestamp;
use std::io;
use std::path::Path;

/// Reads the log `0.log` in a folder as this query wants it; how many bytes it shows.
///
/// # Errors
/// A query that is not understood, and a log that can't be read.
pub fn log(folder: &Path, query: &str) -> io::Result<usize> {
    let options = LogOptions::parse(query, Timestamp::UNIX_EPOCH).map_err(io::Error::other)?;
    let mut reader = Reader::open(Beneath::root(folder)?, "0.log", options)?;
    let mut bytes = 0;
    while let Some(piece) = reader.piece()? {
        bytes += piece.len();
    }
    Ok(bytes)
}
