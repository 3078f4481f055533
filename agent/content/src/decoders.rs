//! Decoders of this room that only its own functions call, for the fuzz targets of `tests/fuzz`.

use crate::env_files::find;

/// The value of a variable in the text of a file that a pod wrote.
///
/// # Errors
/// The number of the first line that is neither a variable nor empty nor a comment.
pub fn variable<'t>(text: &'t str, name: &str) -> Result<Option<&'t str>, usize> {
    find(text, name)
}
