//! Objects set aside for a further attempt to write them.

use master_schema::error::{ApiError, Reason};
use master_schema::validate::Fields;

/// An object as text: attempts after the first are rare, and making this costs less than half of what a copy of the tree and its
/// end do.
///
/// Guarantee: what is read is what was set aside, as all numbers of the built-in kinds are integers.
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
