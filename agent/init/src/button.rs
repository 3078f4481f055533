//! The power button, as the kernel's input events.
//!
//! Layout: `struct input_event` of linux/input.h on 64-bit machines, 24 bytes.

use std::fs::{self, File};
use std::io::Read as _;
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

/// Reads what is queued and says whether the power key was pressed.
pub fn pressed(mut device: &File) -> bool {
    let mut buffer = [0; EVENT * 64];
    let mut found = false;
    while let Ok(length @ 1..) = device.read(&mut buffer) {
        found |= is_power(buffer.get(..length).unwrap_or_default());
    }
    found
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
    use super::is_power;

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
}
