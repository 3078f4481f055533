//! Big-endian reading and writing of TPM structures.

use super::TpmError;

/// Reads a TPM structure from its beginning.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// A reader at the first of `bytes`; `what` names the structure in errors.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`TpmError::Malformed`] where fewer bytes are left.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], TpmError> {
        let (head, tail) = self
            .rest
            .split_at_checked(count)
            .ok_or(TpmError::Malformed(self.what))?;
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TpmError> {
        self.take(N)?
            .try_into()
            .map_err(|_wrong_length| TpmError::Malformed(self.what))
    }

    /// A byte.
    ///
    /// # Errors
    /// [`TpmError::Malformed`] where fewer bytes are left.
    pub fn u8(&mut self) -> Result<u8, TpmError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// 16 bits, big-endian.
    ///
    /// # Errors
    /// [`TpmError::Malformed`] where fewer bytes are left.
    pub fn u16(&mut self) -> Result<u16, TpmError> {
        self.array().map(u16::from_be_bytes)
    }

    /// 32 bits, big-endian.
    ///
    /// # Errors
    /// [`TpmError::Malformed`] where fewer bytes are left.
    pub fn u32(&mut self) -> Result<u32, TpmError> {
        self.array().map(u32::from_be_bytes)
    }

    /// 64 bits, big-endian.
    ///
    /// # Errors
    /// [`TpmError::Malformed`] where fewer bytes are left.
    pub fn u64(&mut self) -> Result<u64, TpmError> {
        self.array().map(u64::from_be_bytes)
    }

    /// A TPM2B of at most `max` bytes.
    ///
    /// # Errors
    /// [`TpmError::Malformed`] where it is longer, or fewer bytes are left.
    pub fn sized(&mut self, max: usize) -> Result<&'a [u8], TpmError> {
        let size = usize::from(self.u16()?);
        if size > max {
            return Err(TpmError::Malformed(self.what));
        }
        self.take(size)
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// What is left, unread.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// [`TpmError::Malformed`] where bytes are left.
    pub fn finish(self) -> Result<(), TpmError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(TpmError::Malformed(self.what))
        }
    }
}

/// Appends a TPM2B. Callers hold at most a few hundred bytes; longer ones are cut at the 16-bit
/// limit.
pub fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    let size = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(bytes.get(..usize::from(size)).unwrap_or_default());
}
