//! The writer thread: service output to bounded log files on the state partition and, rationed, to the console.
//!
//! The supervisor hands lines over by a bounded channel and never waits; lines that don't fit are counted, and the
//! count is written when there is room again.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SendError, SyncSender, TrySendError, sync_channel,
};
use std::time::Duration;

use crate::console::Console;
use crate::lines::{Gate, Rotation};

const DIRECTORY: &str = "/var/log/pratique";
/// Lines on their way; with the longest lines 4 MiB.
const QUEUE: usize = 1024;
const ROTATION: Rotation = Rotation {
    limit: 4 << 20,
    keep: 3,
};
/// Services whose lines `pratique: …` are shown as they are.
const OURS: [&str; 2] = ["agent", "master"];
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

enum Message {
    Line(usize, Vec<u8>),
    Close(SyncSender<()>),
}

/// The supervisor's end of the channel.
#[derive(Debug)]
pub struct Output {
    sender: SyncSender<Message>,
    dropped: Vec<u64>,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line(service, line) => write!(f, "Line({service}, {} bytes)", line.len()),
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
        }
    }

    /// Hands a service's line over, or counts it where the writer is behind.
    pub fn line(&mut self, service: usize, line: Vec<u8>) {
        let Some(dropped) = self.dropped.get_mut(service) else {
            return;
        };
        if *dropped > 0 {
            let note = format!("init: {dropped} lines were lost: the disk or the console is slow");
            if self
                .sender
                .try_send(Message::Line(service, note.into_bytes()))
                .is_ok()
            {
                *dropped = 0;
            }
        }
        match self.sender.try_send(Message::Line(service, line)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => *dropped += 1,
        }
    }

    /// Lets the writer finish and close its files, for a bounded time.
    pub fn close(self) {
        let (done, wait) = sync_channel(1);
        if self.sender.try_send(Message::Close(done)).is_ok() {
            // A writer that hangs on a dead disk must not stop the machine's end.
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
        let path = format!("{DIRECTORY}/{name}.log");
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

    fn store(&mut self, line: &[u8]) {
        let mut text = line.to_vec();
        text.push(b'\n');
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        let moves = ROTATION.before(&self.path, self.size, length);
        if !moves.is_empty() {
            for (from, to) in moves {
                // Old files that are not there yet can't be moved.
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
        // Only our own programs may speak to the console's readers directly, and even they not without end.
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
            console.line(&format!(
                "{}: ({held_back} lines only in the log)",
                self.name
            ));
        }
        if marked {
            console.line(&text);
        } else {
            console.line(&format!("{}: {text}", self.name));
        }
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
            Message::Line(service, line) => {
                if let Some(sink) = sinks.get_mut(service) {
                    sink.store(&line);
                    sink.show(console, &line);
                }
            }
            Message::Close(done) => {
                drop(sinks);
                // Nobody waits any more where the time was over.
                let _: Result<(), SendError<()>> = done.send(());
                return;
            }
        }
    }
}
