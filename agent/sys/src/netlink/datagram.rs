//! A buffer for the kernel's answers.

use nix::sys::socket::{MsgFlags, recv};
use std::os::fd::{AsRawFd as _, OwnedFd};
use zeroize::Zeroize as _;

/// Largest datagram that the kernel sends (`NLMSG_GOODSIZE` is a page, dumps use up to 32 KiB).
const MAX_DATAGRAM: usize = 64 * 1024;

/// A buffer of one datagram after the other. One of the kernel's answers contains the tunnel's
/// private key, so what was received is wiped when the buffer is dropped. The rest is not: most
/// answers are short, and wiping all of the buffer costs more than the request.
pub(super) struct Datagram {
    bytes: Vec<u8>,
    /// Bytes from the start that were written since the last wipe.
    written: usize,
}

impl Datagram {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; MAX_DATAGRAM],
            written: 0,
        }
    }

    /// Waits for the next datagram.
    ///
    /// # Errors
    /// The call was interrupted, or the socket fails.
    pub(super) fn receive(&mut self, socket: &OwnedFd) -> nix::Result<&[u8]> {
        let length = recv(socket.as_raw_fd(), &mut self.bytes, MsgFlags::empty())?;
        self.written = self.written.max(length);
        Ok(self.bytes.get(..length).unwrap_or_default())
    }

    fn wipe(&mut self) {
        if let Some(written) = self.bytes.get_mut(..self.written) {
            written.zeroize();
        }
        self.written = 0;
    }
}

impl Drop for Datagram {
    fn drop(&mut self) {
        self.wipe();
    }
}

#[cfg(test)]
mod tests {
    use super::Datagram;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use nix::unistd::write;

    #[test]
    fn all_that_was_received_is_wiped_also_what_a_shorter_datagram_followed() {
        let kind = (AddressFamily::Unix, SockType::Datagram);
        let (kernel, own) = socketpair(kind.0, kind.1, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let mut datagram = Datagram::new();
        for content in [[7_u8; 300].as_slice(), &[8; 10]] {
            write(&kernel, content).unwrap();
            assert_eq!(datagram.receive(&own).unwrap(), content);
        }
        assert!(datagram.bytes.contains(&7), "it is there until it is wiped");
        datagram.wipe();
        assert!(datagram.bytes.iter().all(|byte| *byte == 0));
    }
}
