//! Objects set aside for a further attempt to write them.

use master_schema::error::{ApiError, Reason};
use master_schema::validate::Fields;

/// An object as JSON text. Few writes need a second attempt, and encoding an object costs less than half as much as cloning and
/// dropping its tree.
///
/// Guarantee: reading returns the object that was set aside, up to the last bit of a fraction.
#[derive(Debug)]
pub struct Draft(Vec<u8>);

impl Draft {
    /// Sets an object aside.
    ///
    /// # Errors
    /// It cannot be written as JSON (500).
    pub fn of(object: &Fields) -> Result<Self, ApiError> {
        serde_json::to_vec(object).map(Self).map_err(|e| failed(&e))
    }

    /// The object.
    ///
    /// # Errors
    /// It cannot be read again (500).
    pub fn read(&self) -> Result<Fields, ApiError> {
        serde_json::from_slice(&self.0).map_err(|e| failed(&e))
    }
}

fn failed(error: &serde_json::Error) -> ApiError {
    let text = format!("an object cannot be set aside: {error}");
    ApiError::new(Reason::InternalError, text)
}
