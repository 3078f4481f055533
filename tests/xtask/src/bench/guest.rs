//! The half of `bench disk` that runs in the guest: the same disk, plain, encrypted, and encrypted
//! with authentication.

use crate::steps::{Failure, Outcome};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::time::Instant;

/// How a line with figures begins.
pub(super) const FIGURE: &str = "figure ";

const DISK: &str = "/dev/vda";
/// Each kind is measured so often, in turns.
const ROUNDS: usize = 3;
const MIB: usize = 1 << 20;
/// How much is written and read sequentially, in MiB: the whole volume, as unwritten blocks have no
/// valid tags.
const SEQUENTIAL: usize = 128;
/// The volume, in sectors of 512 bytes.
const SECTORS: u64 = (SEQUENTIAL * MIB / 512) as u64;
/// Writes of 4096 bytes, each brought to the medium.
const FSYNCS: u32 = 200;
const BLOCK: u64 = 4096;

/// One kind's measurements in one round.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    /// The kind's name.
    pub(super) kind: String,
    /// Sequential, flushed at the end, MiB/s.
    pub(super) write: f64,
    /// Sequential, nothing cached, MiB/s.
    pub(super) read: f64,
    /// Flushed writes of 4096 bytes a second.
    pub(super) fsync: f64,
}

impl Figure {
    /// The reverse of what the guest prints.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let kind = words.next()?.to_owned();
        let mut number = || words.next()?.parse().ok();
        Some(Self {
            kind,
            write: number()?,
            read: number()?,
            fsync: number()?,
        })
    }

    fn text(&self) -> String {
        let Self {
            kind,
            write,
            read,
            fsync,
        } = self;
        format!("{FIGURE}{kind} {write:.2} {read:.2} {fsync:.2}")
    }
}

/// The layer over the disk.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Plain,
    Xts,
    /// XTS with HMAC-SHA-256 over dm-integrity, in this mode: J, with a journal, or D, without.
    /// (Its bitmap mode needs dm-integrity's own hash, and does not support dm-crypt's tags.)
    Authenticated(char),
}

impl Kind {
    const ALL: [Self; 4] = [
        Self::Plain,
        Self::Xts,
        Self::Authenticated('J'),
        Self::Authenticated('D'),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Xts => "xts",
            Self::Authenticated('J') => "authenticated-journal",
            Self::Authenticated(_) => "authenticated-direct",
        }
    }

    /// Makes the volume, measures it, and removes it.
    fn measure(self) -> Outcome<Figure> {
        let mut devices = vec!["volume"];
        match self {
            Self::Plain => create("volume", &format!("0 {SECTORS} linear {DISK} 0"))?,
            Self::Xts => {
                let key = "5a".repeat(32) + &"a5".repeat(32);
                let table = format!(
                    "0 {SECTORS} crypt aes-xts-plain64 {key} 0 {DISK} 0 1 sector_size:4096"
                );
                create("volume", &table)?;
            }
            Self::Authenticated(mode) => {
                integrity(mode)?;
                devices.push("integrity");
                let key = "5a".repeat(32) + &"a5".repeat(32) + &"3c".repeat(32);
                let cipher = "capi:authenc(hmac(sha256),xts(aes))-plain64";
                let table = format!(
                    "0 {SECTORS} crypt {cipher} {key} 0 /dev/mapper/integrity 0 2 integrity:32:aead sector_size:4096"
                );
                create("volume", &table)?;
            }
        }
        let figure = figure(self.name());
        for name in devices {
            dmsetup(&["remove", name])?;
        }
        figure
    }
}

/// Measures every kind, in turns, and prints a line for each.
pub(super) fn guest() -> Outcome {
    // The first writes to a new disk pay for its room on the host.
    create("volume", &format!("0 {SECTORS} linear {DISK} 0"))?;
    figure("warm")?;
    dmsetup(&["remove", "volume"])?;
    for _ in 0..ROUNDS {
        for kind in Kind::ALL {
            println!("{}", kind.measure()?.text());
        }
    }
    Ok(())
}

/// dm-integrity over the disk, formatted, with room for a tag of 32 bytes for each 4096.
fn integrity(mode: char) -> Outcome {
    let disk = File::options().write(true).open(DISK);
    disk.and_then(|disk| {
        disk.write_all_at(&[0; 4096], 0)?;
        disk.sync_all()
    })
    .map_err(|error| fault(&error))?;
    let table =
        |sectors: u64| format!("0 {sectors} integrity {DISK} 0 32 {mode} 1 block_size:4096");
    // The kernel formats what has no superblock, and asks for a length of one block then.
    create("integrity", &table(8))?;
    dmsetup(&["remove", "integrity"])?;
    create("integrity", &table(SECTORS))
}

fn figure(kind: &str) -> Outcome<Figure> {
    let path = "/dev/mapper/volume";
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|error| fault(&error))?;
    let measured = || -> std::io::Result<(f64, f64, f64)> {
        let block = vec![0x42; MIB];
        let start = Instant::now();
        for at in 0..SEQUENTIAL {
            file.write_all_at(&block, at as u64 * MIB as u64)?;
        }
        file.sync_data()?;
        let write = start.elapsed().as_secs_f64();
        fs::write("/proc/sys/vm/drop_caches", "3")?;
        let start = Instant::now();
        let mut reader = File::open(path)?;
        let mut buffer = vec![0; MIB];
        for _ in 0..SEQUENTIAL {
            reader.read_exact(&mut buffer)?;
        }
        let read = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for at in 0..FSYNCS {
            file.write_all_at(&block[..4096], u64::from(at) * 16 * BLOCK)?;
            file.sync_data()?;
        }
        Ok((write, read, start.elapsed().as_secs_f64()))
    };
    let (write, read, fsync) = measured().map_err(|error| fault(&error))?;
    let mib = f64::from(u32::try_from(SEQUENTIAL).unwrap_or(u32::MAX));
    Ok(Figure {
        kind: kind.to_owned(),
        write: mib / write,
        read: mib / read,
        fsync: f64::from(FSYNCS) / fsync,
    })
}

fn create(name: &str, table: &str) -> Outcome {
    dmsetup(&["create", name, "--table", table])
}

fn dmsetup(words: &[&str]) -> Outcome {
    let mut command = Command::new("/bin/dmsetup");
    command.args(words).env("DM_DISABLE_UDEV", "1");
    let output = command.output().map_err(|error| fault(&error))?;
    if output.status.success() {
        return Ok(());
    }
    std::io::stderr().write_all(&output.stderr).ok();
    Err(Failure::new(
        format!("dmsetup {}", words.join(" ")),
        "see the kernel's messages",
    ))
}

fn fault(error: &std::io::Error) -> Failure {
    Failure::new(error.to_string(), "")
}

#[cfg(test)]
mod tests {
    use super::{FIGURE, Figure};

    #[test]
    fn a_figure_is_read_again() {
        let figure = Figure {
            kind: "xts".to_owned(),
            write: 12.5,
            read: 20.0,
            fsync: 300.25,
        };
        let text = figure.text();
        assert_eq!(
            text.strip_prefix(FIGURE).and_then(Figure::parse),
            Some(figure)
        );
        assert_eq!(Figure::parse("xts 1 2"), None);
    }
}
