//! Big-endian reading and writing of TPM structures.

use super::TpmError;

/// Reads a TPM structure; `what` names it in errors.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], TpmError> {
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

    pub(crate) fn u8(&mut self) -> Result<u8, TpmError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, TpmError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, TpmError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, TpmError> {
        self.array().map(u64::from_be_bytes)
    }

    /// A TPM2B of at most `max` bytes.
    pub(crate) fn sized(&mut self, max: usize) -> Result<&'a [u8], TpmError> {
        let size = usize::from(self.u16()?);
        if size > max {
            return Err(TpmError::Malformed(self.what));
        }
        self.take(size)
    }

    /// How many bytes are left.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    /// What is left, unread.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Nothing may be left.
    pub(crate) fn finish(self) -> Result<(), TpmError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(TpmError::Malformed(self.what))
        }
    }
}

/// Appends a TPM2B. Callers hold at most a few hundred bytes; longer ones are cut at the 16-bit limit.
pub(crate) fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    let size = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(bytes.get(..usize::from(size)).unwrap_or_default());
}
