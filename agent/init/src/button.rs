//! The power button, as the kernel's input events.
//!
//! Layout: `struct input_event` of linux/input.h on 64-bit machines, 24 bytes.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt;

const DIRECTORY: &str = "/dev/input";
/// Most input devices listened to.
const MAX_DEVICES: usize = 32;
const EVENT: usize = 24;
const KEY: u16 = 1;
const POWER: u16 = 116;
const PRESSED: i32 = 1;

/// All input devices, opened without blocking; keyboards may have a power key too.
pub fn open() -> Vec<File> {
    let entries = fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    let events = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("event"));
    let flags = nix::libc::O_NONBLOCK;
    let open = |path| {
        File::options()
            .read(true)
            .custom_flags(flags)
            .open(path)
            .ok()
    };
    events
        .take(MAX_DEVICES)
        .filter_map(|entry| open(entry.path()))
        .collect()
}

/// What a read of an input device has shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Input {
    /// The power key was pressed.
    pub pressed: bool,
    /// The device was unplugged (`ENODEV`). A poll that includes it returns at once from now on,
    /// so it must be closed.
    pub gone: bool,
}

/// Reads the queued events of an input device.
pub fn read(mut device: &File) -> Input {
    let mut buffer = [0; EVENT * 64];
    let mut input = Input::default();
    loop {
        match device.read(&mut buffer) {
            Ok(length @ 1..) => {
                input.pressed |= is_power(buffer.get(..length).unwrap_or_default());
            }
            Err(cause) if cause.kind() == ErrorKind::WouldBlock => return input,
            Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => {
                input.gone = true;
                return input;
            }
        }
    }
}

/// Whether a press of the power key is among these events.
fn is_power(events: &[u8]) -> bool {
    let press = |event: &[u8; EVENT]| {
        let [.., t0, t1, c0, c1, v0, v1, v2, v3] = *event;
        let value = i32::from_ne_bytes([v0, v1, v2, v3]);
        u16::from_ne_bytes([t0, t1]) == KEY
            && u16::from_ne_bytes([c0, c1]) == POWER
            && value == PRESSED
    };
    events.as_chunks::<EVENT>().0.iter().any(press)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::{Input, is_power, read};

    fn event(kind: u16, code: u16, value: i32) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(code.to_ne_bytes());
        bytes.extend(value.to_ne_bytes());
        bytes
    }

    #[test]
    fn only_a_press_of_the_power_key_counts() {
        assert!(is_power(&[event(0, 0, 0), event(1, 116, 1)].concat()));
        for other in [
            event(1, 116, 0),
            event(1, 30, 1),
            event(0, 116, 1),
            vec![1; 23],
            vec![],
        ] {
            assert!(!is_power(&other));
        }
    }

    #[test]
    fn an_unplugged_device_is_reported_after_its_last_events() {
        let (mut plugged, end) = UnixStream::pair().expect("a pair");
        end.set_nonblocking(true).expect("set");
        let device = File::from(OwnedFd::from(end));
        assert_eq!(read(&device), Input::default());
        plugged.write_all(&event(1, 116, 1)).expect("written");
        let pressed = Input {
            pressed: true,
            gone: false,
        };
        assert_eq!(read(&device), pressed);
        plugged.write_all(&event(1, 116, 1)).expect("written");
        drop(plugged);
        let last = Input {
            pressed: true,
            gone: true,
        };
        assert_eq!(read(&device), last);
    }
}
