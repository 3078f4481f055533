//! The writer thread: service output to bounded log files on the state partition and, rate-limited,
//! to the console.
//!
//! The supervisor sends lines over a bounded channel and never waits; lines that don't fit are
//! counted, and the count is written when there is room again. Each line is stored with its
//! [`Stamp`], by which the agent reads it (`agent/journal`).

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SendError, SyncSender, TrySendError, sync_channel,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config_machine::journal::{BOOT_ID, Boot, FOLDER, KEPT, MAX_FILE, Stamp};

use crate::console::Console;
use crate::lines::{Gate, Rotation};

/// Lines on their way; with the longest lines 4 MiB.
const QUEUE: usize = 1024;
const ROTATION: Rotation = Rotation {
    limit: MAX_FILE,
    keep: KEPT,
};
/// Services whose lines `pratique: …` are shown as they are.
const OURS: [&str; 2] = ["agent", "master"];
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

enum Message {
    Line(Line),
    Close(SyncSender<()>),
}

/// A line of a service, or init's own about it.
struct Line {
    service: usize,
    stamp: Stamp,
    text: Vec<u8>,
    /// It goes to the console, too.
    shown: bool,
}

/// The supervisor's end of the channel.
#[derive(Debug)]
pub struct Output {
    sender: SyncSender<Message>,
    dropped: Vec<u64>,
    boot: Boot,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line(line) => write!(f, "Line({}, {} bytes)", line.service, line.text.len()),
            Self::Close(_) => f.write_str("Close"),
        }
    }
}

impl Output {
    /// Starts the writer thread for services of these names.
    pub fn start(names: &[&'static str], console: Console) -> Self {
        let (sender, receiver) = sync_channel(QUEUE);
        let sinks = names.iter().map(|name| Sink::new(name)).collect();
        // Detached: it ends with the channel, or with the machine.
        drop(std::thread::spawn(move || {
            write_all(&receiver, sinks, &console);
        }));
        Self {
            sender,
            dropped: vec![0; names.len()],
            boot: Boot::of(&fs::read_to_string(BOOT_ID).unwrap_or_default()),
        }
    }

    /// Sends a service's line to the writer, or counts it if the channel is full.
    pub fn line(&mut self, service: usize, text: Vec<u8>) {
        self.hand_over(service, text, true);
    }

    /// Notes in a service's log what init has done with the service; the console gets its own line.
    pub fn note(&mut self, service: usize, text: &str) {
        self.hand_over(service, format!("init: {text}").into_bytes(), false);
    }

    fn hand_over(&mut self, service: usize, text: Vec<u8>, shown: bool) {
        let Some(dropped) = self.dropped.get_mut(service) else {
            return;
        };
        let stamp = now(self.boot);
        let line = |text: Vec<u8>, shown| {
            Message::Line(Line {
                service,
                stamp,
                text,
                shown,
            })
        };
        if *dropped > 0 {
            let note = format!("init: {dropped} lines were lost: the disk or the console is slow");
            if self.sender.try_send(line(note.into_bytes(), true)).is_ok() {
                *dropped = 0;
            }
        }
        match self.sender.try_send(line(text, shown)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => *dropped += 1,
        }
    }

    /// Lets the writer finish and close its files, for a bounded time.
    pub fn close(self) {
        let (done, wait) = sync_channel(1);
        if self.sender.try_send(Message::Close(done)).is_ok() {
            // A writer that hangs on a dead disk must not stop the shutdown.
            let _: Result<(), RecvTimeoutError> = wait.recv_timeout(CLOSE_LIMIT);
        }
    }
}

struct Sink {
    name: &'static str,
    path: String,
    file: Option<File>,
    size: u64,
    gate: Gate,
    marked: Gate,
}

impl Sink {
    fn new(name: &'static str) -> Self {
        let path = format!("{FOLDER}/{name}.log");
        let file = open(&path);
        let size = file
            .as_ref()
            .and_then(|file| file.metadata().ok())
            .map_or(0, |meta| meta.len());
        let now = agent_sys::clock::since_boot();
        Self {
            name,
            path,
            file,
            size,
            gate: Gate::new(now),
            marked: Gate::new(now),
        }
    }

    fn store(&mut self, stamp: Stamp, line: &[u8]) {
        let mut text = format!("{stamp} ").into_bytes();
        text.extend_from_slice(line);
        text.push(b'\n');
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        let moves = ROTATION.before(&self.path, self.size, length);
        if !moves.is_empty() {
            for (from, to) in moves {
                // Fails for old files that don't exist yet, which is no fault.
                drop(fs::rename(from, to));
            }
            self.file = open(&self.path);
            self.size = 0;
        }
        if self
            .file
            .as_mut()
            .is_some_and(|file| file.write_all(&text).is_ok())
        {
            self.size += length;
        }
    }

    fn show(&mut self, console: &Console, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        // Only our own programs may write to the console directly, and at a limited rate.
        let marked = OURS.contains(&self.name) && text.starts_with("pratique: ");
        let gate = if marked {
            &mut self.marked
        } else {
            &mut self.gate
        };
        let Some(held_back) = gate.pass(agent_sys::clock::since_boot()) else {
            return;
        };
        if held_back > 0 {
            console.show(&format!(
                "{}: ({held_back} lines only in the log)",
                self.name
            ));
        }
        if marked {
            console.show(&text);
        } else {
            console.show(&format!("{}: {text}", self.name));
        }
    }
}

/// The current time, by a clock that may be wrong.
fn now(boot: Boot) -> Stamp {
    let whole = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Stamp {
        boot,
        unix: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, whole),
        since_boot: whole(agent_sys::clock::since_boot()),
    }
}

fn open(path: &str) -> Option<File> {
    File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .ok()
}

fn write_all(receiver: &Receiver<Message>, mut sinks: Vec<Sink>, console: &Console) {
    for message in receiver {
        match message {
            Message::Line(line) => {
                if let Some(sink) = sinks.get_mut(line.service) {
                    sink.store(line.stamp, &line.text);
                    if line.shown {
                        sink.show(console, &line.text);
                    }
                }
            }
            Message::Close(done) => {
                drop(sinks);
                // If `close` gave up, no one receives this.
                let _: Result<(), SendError<()>> = done.send(());
                return;
            }
        }
    }
}
