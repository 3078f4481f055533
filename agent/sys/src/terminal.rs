//! Terminals for output: opened without blocking, and set to a speed.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{ControlFlags, SetArg, tcgetattr, tcsetattr};

use crate::error::{Context, Error, Result};

/// Opens a terminal for writing. It does not become this process's own, so that no key typed there
/// sends it a signal; neither opening nor writing waits for a carrier, for flow control or for a
/// slow line.
///
/// # Errors
/// There is no such terminal.
pub fn open(path: &str) -> Result<File> {
    let file = File::options()
        .write(true)
        .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path);
    file.map_err(|cause| Error::new("open", path, cause))
}

/// Waits until something can be written, at most `limit`; false where the time was over.
pub fn wait_writable(file: &File, limit: Duration) -> bool {
    let mut files = [PollFd::new(file.as_fd(), PollFlags::POLLOUT)];
    let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    poll(&mut files, timeout).is_ok_and(|ready| ready > 0)
}

/// Sets a serial line to 8 bits without parity at `baud` bits a second.
///
/// # Errors
/// For a speed that is none of 9600, 19200, 57600 and 115200 (those of the ACPI table SPCR), and
/// for a file that is no terminal.
pub fn set_speed(file: &File, name: &str, baud: u32) -> Result<()> {
    let speed = match baud {
        9_600 => libc::B9600,
        19_200 => libc::B19200,
        57_600 => libc::B57600,
        115_200 => libc::B115200,
        _ => {
            return Err(Error::new(
                "set the speed of",
                name,
                std::io::Error::from(std::io::ErrorKind::InvalidInput),
            ));
        }
    };
    let mut state = tcgetattr(file).at("read the state of", name)?;
    // The speed is a field of these flags (termios(3)); cfsetspeed, which sets it, is not there for
    // a static program.
    let field = libc::CBAUD | libc::CSIZE | libc::PARENB | libc::CRTSCTS;
    let flags = (state.control_flags.bits() & !field) | speed | libc::CS8 | libc::CLOCAL;
    state.control_flags = ControlFlags::from_bits_retain(flags);
    tcsetattr(file, SetArg::TCSANOW, &state).at("set the speed of", name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_reader_that_blocks_is_waited_for_only_up_to_the_limit() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut file = File::from(OwnedFd::from(ours));
        assert!(wait_writable(&file, Duration::ZERO));
        while file.write(&[0; 4096]).is_ok() {}
        assert!(!wait_writable(&file, Duration::ZERO));
        drop(theirs);
    }

    #[test]
    fn a_file_that_is_no_serial_line_has_no_speed() {
        let file = File::options().write(true).open("/dev/null").unwrap();
        assert!(set_speed(&file, "/dev/null", 115_200).is_err());
        assert!(set_speed(&file, "/dev/null", 110).is_err());
    }
}
