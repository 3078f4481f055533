//! The pins of a cluster's roots in a file, one a line: what a machine's state keeps of its
//! cluster, and what a master writes for the agent on its own machine.

use config_tls::Pin;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Longest text that is read as pins, in bytes: a few lines of `sha256:` and 64 digits.
const LIMIT: u64 = 512;

/// The pins, if the file is there and whole.
pub fn read_pins(path: &Path) -> Option<Vec<Pin>> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    let length = file.take(LIMIT + 1).read_to_string(&mut text).ok()?;
    let pin = |line: &str| {
        line.trim()
            .parse::<config_model::format::Pin>()
            .ok()
            .map(|pin| pin.0)
    };
    text.lines()
        .map(pin)
        .collect::<Option<Vec<Pin>>>()
        .filter(|pins| !pins.is_empty() && length as u64 <= LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_pins_are_ignored() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ca-pin");
        let line = |digit: &str| format!("sha256:{}\n", digit.repeat(32));
        assert_eq!(read_pins(&path), None);
        for half in ["", "sha256:00", &format!("{}sha256:00", line("0a"))] {
            std::fs::write(&path, half).expect("a file");
            assert_eq!(read_pins(&path), None, "{half}");
        }
        std::fs::write(&path, line("0a") + &line("0b")).expect("a file");
        assert_eq!(read_pins(&path), Some(vec![[10; 32], [11; 32]]));
    }

    #[test]
    fn a_file_that_is_longer_than_pins_are_has_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ca-pin");
        let line = format!("sha256:{}\n", "0a".repeat(32));
        std::fs::write(&path, line.repeat(7)).expect("a file");
        assert_eq!(read_pins(&path), Some(vec![[10; 32]; 7]));
        std::fs::write(&path, line.repeat(8)).expect("a file");
        assert_eq!(read_pins(&path), None);
    }
}
