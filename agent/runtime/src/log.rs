//! Writes container output from two FIFOs into one file in the CRI format, rotated by size.
//!
//! Format of a line (Kubernetes, "CRI logging"): RFC 3339 time with nanoseconds, `stdout` or
//! `stderr`, `F` for a full line or `P` for a part of one, the text. Each container has one pump, a
//! task. It opens the FIFOs for reading and writing, so that it never sees an end before
//! [`Pumps::finish`] is called.
//!
//! A container may print without an end, and the kernel blocks writers to a slow disk. So the task
//! reads no more than a chunk at once, and lines are made and written on a few blocking threads,
//! which all containers share in turn.
//!
//! All logs are below one folder; links and pipes there are not followed, since some pods can write
//! there.

use crate::taps::{Stream, Tap, Taps};
use agent_sys::beneath::Beneath;
use config_errors::chain;
use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::unix::pipe::{OpenOptions, Receiver};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};

/// Longest text of one line in the file; a longer line becomes several parts.
const MAX_LINE: usize = 16 * 1024;
/// A log that reaches this size in bytes is rotated (upstream's containerLogMaxSize).
pub const LONGEST_LOG: u64 = 10 << 20;
/// Rotated logs that are kept (upstream's containerLogMaxFiles minus the current one).
pub const KEPT_LOGS: usize = 4;
/// Most names that are read in a container's folder of logs; there are usually a handful for each
/// of two attempts.
const MAX_NAMES: usize = 4096;
/// Bytes taken from a FIFO at once.
const CHUNK: usize = 8 * 1024;
/// Logs that are written at once: each holds one of the runtime's blocking threads.
pub const LOG_WRITES: usize = 2;
/// Most bytes that an ended process left in a FIFO: the kernel's limit for one
/// (`fs.pipe-max-size`). What is written after that is not read.
const MOST_LEFT: u64 = 1 << 20;
/// The end of the name of a rotated file: the time of the rotation.
const ASIDE: &str = ".%Y%m%d-%H%M%S-%3f";

/// The log file of one container.
#[derive(Debug)]
struct LogFile {
    dir: Beneath,
    name: String,
    file: File,
    size: u64,
}

impl LogFile {
    /// Opens the log at `path`, which must be below `root`.
    fn open(root: &Path, path: &Path) -> io::Result<Self> {
        let outside = || io::Error::other(format!("{} is no log of this machine", path.display()));
        let below = path.strip_prefix(root).map_err(|_not_below| outside())?;
        let name = below
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(outside)?
            .to_owned();
        let dir =
            Beneath::make_root(root)?.make_dirs(below.parent().ok_or_else(outside)?, 0o755)?;
        Self::open_in(dir, name)
    }

    fn open_in(dir: Beneath, name: String) -> io::Result<Self> {
        let file = dir.append(Path::new(&name), 0o640)?;
        let size = file.metadata()?.len();
        Ok(Self {
            dir,
            name,
            file,
            size,
        })
    }

    fn write(&mut self, bytes: &[u8], now: Timestamp) -> io::Result<()> {
        if self.size >= LONGEST_LOG {
            self.rotate(now)?;
        }
        self.file.write_all(bytes)?;
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Renames the file to `<name>.<time>` and starts a new one; removes the oldest beyond the
    /// limit.
    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        let newest = rotated(&self.dir, &self.name)?.pop();
        let newest = newest.and_then(|newest| put_aside(newest.strip_prefix(&self.name)?));
        // Readers rely on the order of the names, so a clock that was set back must not change it;
        // nor may a file replace one of the same millisecond.
        let time = newest
            .and_then(|newest| newest.checked_add(Duration::from_millis(1)).ok())
            .map_or(now, |least| least.max(now));
        let aside = format!("{}{}", self.name, time.strftime(ASIDE));
        match self.dir.rename(Path::new(&self.name), Path::new(&aside)) {
            // The last rotation failed after this, or another program has removed or renamed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        let old = rotated(&self.dir, &self.name)?;
        for name in old.iter().take(old.len().saturating_sub(KEPT_LOGS)) {
            // A folder of that name, say: the container's output must not be lost for it.
            if let Err(error) = self.dir.remove_file(Path::new(name)) {
                tracing::debug!(name, error = chain(&error), "cannot remove a rotated log");
            }
        }
        self.file = self.dir.append(Path::new(&self.name), 0o640)?;
        self.size = 0;
        Ok(())
    }
}

/// When a file was rotated, by the end of its name.
fn put_aside(end: &str) -> Option<Timestamp> {
    let time = civil::DateTime::strptime(ASIDE, end).ok()?;
    TimeZone::UTC.to_timestamp(time).ok()
}

/// The rotated files of the log `name` in a folder, oldest first.
///
/// # Errors
/// If the folder can't be read.
pub fn rotated(dir: &Beneath, name: &str) -> io::Result<Vec<String>> {
    let prefix = format!("{name}.");
    let names = dir
        .names(MAX_NAMES)?
        .into_iter()
        .filter_map(|name| name.into_string().ok());
    let mut all: Vec<String> = names.filter(|other| other.starts_with(&prefix)).collect();
    all.sort_unstable();
    Ok(all)
}

/// Cuts one output into lines.
#[derive(Debug)]
struct Lines {
    stream: Stream,
    rest: Vec<u8>,
}

impl Lines {
    fn new(stream: Stream) -> Self {
        Self {
            stream,
            rest: Vec::new(),
        }
    }

    /// Takes new output, and appends whole lines (or parts of the greatest length) in the file's
    /// format to `out`.
    fn take(&mut self, mut bytes: &[u8], time: &Stamp, out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let end = bytes.iter().position(|&byte| byte == b'\n');
            let room = MAX_LINE - self.rest.len();
            let text = end.unwrap_or(bytes.len()).min(room);
            self.rest.extend_from_slice(&bytes[..text]);
            bytes = &bytes[text..];
            if bytes.first() == Some(&b'\n') {
                bytes = &bytes[1..];
                self.put(b'F', time, out);
            } else if self.rest.len() == MAX_LINE {
                self.put(b'P', time, out);
            }
        }
    }

    /// Appends what is left without a line end.
    fn flush(&mut self, time: &Stamp, out: &mut Vec<u8>) {
        if !self.rest.is_empty() {
            self.put(b'P', time, out);
        }
        self.rest = Vec::new();
    }

    fn put(&mut self, tag: u8, time: &Stamp, out: &mut Vec<u8>) {
        let stream = match self.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        out.extend_from_slice(time.text.as_bytes());
        out.extend_from_slice(stream.as_bytes());
        out.extend_from_slice(&[b' ', tag, b' ']);
        out.append(&mut self.rest);
        out.push(b'\n');
    }
}

/// When a chunk was read, as a time and as the start of its lines. Made once for each chunk, as a
/// chunk may be thousands of empty lines.
#[derive(Debug)]
struct Stamp {
    time: Timestamp,
    text: String,
}

impl Stamp {
    fn of(time: Timestamp) -> Self {
        let text = time.strftime("%Y-%m-%dT%H:%M:%S.%9fZ ").to_string();
        Self { time, text }
    }
}

/// The files and buffers of a pump. They move to a blocking thread and back.
#[derive(Debug)]
struct Writer {
    file: LogFile,
    outputs: [Lines; 2],
    /// What was read of an output.
    chunk: Vec<u8>,
    /// The lines of it.
    out: Vec<u8>,
}

impl Writer {
    fn new(file: LogFile) -> Self {
        Self {
            file,
            outputs: [Stream::Stdout, Stream::Stderr].map(Lines::new),
            chunk: vec![0; CHUNK],
            out: Vec::new(),
        }
    }

    /// Writes the first `count` bytes of the chunk, which are of one output.
    fn write(&mut self, output: usize, count: usize, now: &Stamp) {
        self.outputs[output].take(&self.chunk[..count], now, &mut self.out);
        save(&mut self.file, &mut self.out, now.time);
    }

    /// Writes what is left in the FIFO of one output, and its last line; returns what was left.
    fn write_rest(&mut self, output: usize, fifo: Receiver, now: &Stamp) -> Vec<u8> {
        let Self { file, out, .. } = self;
        let lines = &mut self.outputs[output];
        let mut rest = Vec::new();
        read_rest(fifo, |chunk| {
            lines.take(chunk, now, out);
            save(file, out, now.time);
            rest.extend_from_slice(chunk);
        });
        lines.flush(now, out);
        save(file, out, now.time);
        rest
    }

    /// Does some work on a blocking thread, once it is this pump's turn. `None` if the runtime ends
    /// meanwhile, or the work panics.
    async fn blocking<T: Send + 'static>(
        mut self,
        turns: &Arc<Semaphore>,
        work: impl FnOnce(&mut Self) -> T + Send + 'static,
    ) -> Option<(Self, T)> {
        let turn = turns.clone().acquire_owned().await.ok()?;
        let working = spawn_blocking(move || {
            let done = work(&mut self);
            drop(turn);
            (self, done)
        });
        working
            .await
            .inspect_err(|error| {
                tracing::warn!(error = chain(error), "a container log is no longer written");
            })
            .ok()
    }
}

/// The FIFOs of a container.
#[derive(Debug, Clone)]
pub(crate) struct Fifos {
    /// Only for a container that has an input.
    pub(crate) stdin: PathBuf,
    pub(crate) stdout: PathBuf,
    pub(crate) stderr: PathBuf,
}

impl Fifos {
    /// The FIFOs of the container `id` under `dir`; they outlive the agent.
    pub(crate) fn of(dir: &Path, id: &str) -> Self {
        let dir = dir.join(id);
        Self {
            stdin: dir.join("stdin"),
            stdout: dir.join("stdout"),
            stderr: dir.join("stderr"),
        }
    }

    /// Makes the FIFOs of the outputs, unless they exist.
    pub(crate) fn make(&self) -> io::Result<()> {
        Self::make_all(&[&self.stdout, &self.stderr])
    }

    /// Makes the FIFO of the input, unless it exists.
    pub(crate) fn make_input(&self) -> io::Result<()> {
        Self::make_all(&[&self.stdin])
    }

    fn make_all(paths: &[&PathBuf]) -> io::Result<()> {
        for path in paths {
            if let Some(dir) = path.parent() {
                fs::create_dir_all(dir)?;
            }
            match nix::unistd::mkfifo(
                path.as_path(),
                nix::sys::stat::Mode::from_bits_truncate(0o600),
            ) {
                Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Removes them with their directory.
    pub(crate) fn remove(&self) {
        if let Some(dir) = self.stdout.parent() {
            // Nothing is lost where this fails: /run is empty after a boot.
            drop(fs::remove_dir_all(dir));
        }
    }

    fn open(&self) -> io::Result<[Receiver; 2]> {
        let open = |path| OpenOptions::new().read_write(true).open_receiver(path);
        Ok([open(&self.stdout)?, open(&self.stderr)?])
    }
}

/// One container's pump.
#[derive(Debug)]
struct Pump {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    taps: Arc<Taps>,
}

/// All pumps, by container id.
#[derive(Debug)]
pub(crate) struct Pumps {
    /// The folder of all logs.
    logs: PathBuf,
    /// Turns to write, given in the order of the requests.
    turns: Arc<Semaphore>,
    running: Mutex<HashMap<String, Pump>>,
}

impl Pumps {
    /// Pumps into logs below a folder.
    pub(crate) fn new(logs: PathBuf) -> Self {
        Self {
            logs,
            turns: Arc::new(Semaphore::new(LOG_WRITES)),
            running: Mutex::default(),
        }
    }

    /// Starts a pump for the container's output, unless it has one.
    pub(crate) fn begin(&self, id: &str, fifos: &Fifos, log: &Path) -> io::Result<()> {
        let mut running = self.all();
        if running.get(id).is_some_and(|pump| !pump.task.is_finished()) {
            return Ok(());
        }
        fifos.make()?;
        let outputs = fifos.open()?;
        let writer = Writer::new(LogFile::open(&self.logs, log)?);
        let (stop, stopped) = oneshot::channel();
        let (taps, turns) = (Taps::new(), self.turns.clone());
        let task = tokio::spawn({
            let taps = taps.clone();
            async move {
                // It is `None` if the agent ends.
                let _ended: Option<()> = pump(outputs, writer, &turns, &taps, stopped).await;
                taps.close();
            }
        });
        running.insert(id.to_owned(), Pump { stop, task, taps });
        Ok(())
    }

    /// The container's output from now on; `None` if it has ended, or is not read yet.
    pub(crate) fn tap(&self, id: &str) -> Option<Tap> {
        self.all().get(id)?.taps.add()
    }

    /// Whether the container's output is not known to have ended yet ([`Pumps::finish`]).
    pub(crate) fn has(&self, id: &str) -> bool {
        self.all().contains_key(id)
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Pump>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the pump read what is left, and ends it. Assumption: the container's processes are gone
    /// and the shim has copied all of their output, as it has when its task is deleted.
    pub(crate) async fn finish(&self, id: &str) {
        let pump = self.all().remove(id);
        if let Some(Pump { stop, task, .. }) = pump {
            // A pump that is gone already has nothing to stop.
            let _stopped: Result<(), ()> = stop.send(());
            if let Err(error) = task.await {
                let error = chain(&error);
                tracing::warn!(container = id, error, "a container log writer panicked");
            }
        }
    }
}

/// The task of one pump; after `stopped` it reads all that the FIFOs hold, and ends.
///
/// Each chunk waits for a thread, so that a container whose FIFOs are never empty leaves the
/// runtime's workers to other tasks: waiting for readiness alone would not (a FIFO that is ready
/// takes nothing of a task's budget).
async fn pump(
    outputs: [Receiver; 2],
    mut writer: Writer,
    turns: &Arc<Semaphore>,
    taps: &Taps,
    mut stopped: oneshot::Receiver<()>,
) -> Option<()> {
    loop {
        let [stdout, stderr] = &outputs;
        // Cancel-safe: waiting for readiness does not consume it, so every arm may be dropped.
        tokio::select! {
            _ = stdout.readable() => {}
            _ = stderr.readable() => {}
            _ = &mut stopped => break,
        }
        let now = Timestamp::now();
        for (number, output) in outputs.iter().enumerate() {
            if let Ok(count) = output.try_read(&mut writer.chunk) {
                let work = move |writer: &mut Writer| writer.write(number, count, &Stamp::of(now));
                // In the log before any client has it.
                (writer, ()) = writer.blocking(turns, work).await?;
                let stream = writer.outputs[number].stream;
                taps.send(stream, &writer.chunk[..count]).await;
            }
        }
    }
    let now = Timestamp::now();
    for (number, output) in outputs.into_iter().enumerate() {
        let work = move |writer: &mut Writer| writer.write_rest(number, output, &Stamp::of(now));
        let rest;
        (writer, rest) = writer.blocking(turns, work).await?;
        taps.send(writer.outputs[number].stream, &rest).await;
    }
    Some(())
}

/// Reads all that a FIFO holds at this moment, past the readiness that the reactor knows of.
pub(crate) fn read_rest(receiver: Receiver, mut each: impl FnMut(&[u8])) {
    let Ok(fd) = receiver.into_nonblocking_fd() else {
        return;
    };
    let mut fifo = File::from(fd).take(MOST_LEFT);
    let mut chunk = [0; CHUNK];
    while let Ok(count @ 1..) = fifo.read(&mut chunk) {
        each(&chunk[..count]);
    }
}

/// Output that can't be stored is dropped: a full disk must not stop the container.
fn save(file: &mut LogFile, out: &mut Vec<u8>, now: Timestamp) {
    if !out.is_empty()
        && let Err(error) = file.write(out, now)
    {
        tracing::warn!(
            name = file.name,
            error = chain(&error),
            "container output lost"
        );
    }
    out.clear();
    out.shrink_to(CHUNK);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endless::{Endless, steps};
    use proptest::prelude::*;

    fn at() -> Stamp {
        Stamp::of("2026-01-02T03:04:05.000000006Z".parse().unwrap())
    }

    #[test]
    fn lines_have_the_format_that_log_readers_expect() {
        let mut lines = Lines::new(Stream::Stderr);
        let mut out = Vec::new();
        lines.take(b"one\ntw", &at(), &mut out);
        lines.take(b"o\nrest", &at(), &mut out);
        lines.flush(&at(), &mut out);
        let prefix = "2026-01-02T03:04:05.000000006Z stderr";
        assert_eq!(
            String::from_utf8(out).unwrap(),
            format!("{prefix} F one\n{prefix} F two\n{prefix} P rest\n")
        );
    }

    proptest! {
        #[test]
        fn nothing_is_lost_however_the_output_is_cut(text in proptest::collection::vec(any::<u8>(), 0..40_000), cut in 1_usize..9_000) {
            let mut lines = Lines::new(Stream::Stdout);
            let mut out = Vec::new();
            for chunk in text.chunks(cut) {
                lines.take(chunk, &at(), &mut out);
            }
            lines.flush(&at(), &mut out);
            let mut again = Vec::new();
            for line in out.split_inclusive(|&byte| byte == b'\n') {
                let body = &line["2026-01-02T03:04:05.000000006Z stdout ".len()..];
                prop_assert!(body.len() <= MAX_LINE + 3);
                again.extend_from_slice(&body[2..body.len() - 1]);
                if body[0] == b'F' { again.push(b'\n'); }
            }
            prop_assert_eq!(again, text);
        }
    }

    #[test]
    fn a_full_log_is_rotated_and_the_oldest_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut file = LogFile::open(dir.path(), &path).unwrap();
        for second in 0..8 {
            file.size = LONGEST_LOG;
            file.write(
                format!("{second}\n").as_bytes(),
                Timestamp::from_second(second).unwrap(),
            )
            .unwrap();
        }
        assert_eq!(
            rotated(&Beneath::root(dir.path()).unwrap(), "0.log")
                .unwrap()
                .len(),
            KEPT_LOGS
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "7\n");
    }

    #[test]
    fn files_put_aside_keep_their_order_whatever_the_clock_says() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = LogFile::open(dir.path(), &dir.path().join("0.log")).unwrap();
        // The clock does not advance, and is then set back by a day.
        for (number, second) in [172_800, 172_800, 86_400].into_iter().enumerate() {
            file.write(
                number.to_string().as_bytes(),
                Timestamp::from_second(second).unwrap(),
            )
            .unwrap();
            file.rotate(Timestamp::from_second(second).unwrap())
                .unwrap();
        }
        let names = rotated(&file.dir, "0.log").unwrap();
        assert_eq!(
            names,
            [
                "0.log.19700103-000000-000",
                "0.log.19700103-000000-001",
                "0.log.19700103-000000-002"
            ]
        );
        for (number, name) in names.iter().enumerate() {
            let text = fs::read_to_string(dir.path().join(name)).unwrap();
            assert_eq!(text, number.to_string(), "{name}");
        }
    }

    #[test]
    fn a_log_goes_on_after_another_program_has_changed_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut file = LogFile::open(dir.path(), &path).unwrap();
        // It can't be removed as a rotated file, and it is the oldest.
        fs::create_dir(dir.path().join("0.log.0")).unwrap();
        for _ in 0..=KEPT_LOGS {
            file.size = LONGEST_LOG;
            file.write(b"old\n", Timestamp::UNIX_EPOCH).unwrap();
        }
        fs::remove_file(&path).unwrap();
        file.size = LONGEST_LOG;
        file.write(b"new\n", Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
    }

    #[test]
    fn a_log_is_written_neither_through_a_link_nor_outside_of_its_folder() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let victim = outside.path().join("victim");
        fs::write(&victim, "1").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("0.log")).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("pod")).unwrap();
        nix::unistd::mkfifo(&dir.path().join("2.log"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for name in ["0.log", "2.log", "pod/main/0.log", "../0.log"] {
            assert!(
                LogFile::open(dir.path(), &dir.path().join(name)).is_err(),
                "{name}"
            );
        }
        assert!(
            LogFile::open(dir.path(), &victim).is_err(),
            "not below the folder of logs"
        );
        assert_eq!(fs::read_to_string(&victim).unwrap(), "1");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn what_was_written_before_the_end_is_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let fifos = Fifos::of(dir.path(), "c");
        let log = dir.path().join("logs/0.log");
        let pumps = Pumps::new(dir.path().to_owned());
        pumps.begin("c", &fifos, &log).unwrap();
        for (path, text) in [(&fifos.stdout, "out\n"), (&fifos.stderr, "err\n")] {
            File::options()
                .write(true)
                .open(path)
                .unwrap()
                .write_all(text.as_bytes())
                .unwrap();
        }
        pumps.finish("c").await;
        let text = fs::read_to_string(log).unwrap();
        assert!(
            text.contains(" stdout F out\n") && text.contains(" stderr F err\n"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_second_pump_goes_on_where_the_first_ended() {
        let dir = tempfile::tempdir().unwrap();
        let fifos = Fifos::of(dir.path(), "c");
        let log = dir.path().join("0.log");
        fifos.make().unwrap();
        let mut writer = File::options()
            .read(true)
            .write(true)
            .open(&fifos.stdout)
            .unwrap();
        writer.write_all(b"while nobody read\n").unwrap();
        let pumps = Pumps::new(dir.path().to_owned());
        pumps.begin("c", &fifos, &log).unwrap();
        pumps.finish("c").await;
        assert!(
            fs::read_to_string(log)
                .unwrap()
                .contains("while nobody read")
        );
    }

    #[test]
    fn containers_that_print_without_an_end_leave_the_workers_to_others() {
        /// Threads of the agent's runtime, and containers that print.
        const WORKERS: usize = 2;
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .enable_all()
            .build()
            .unwrap();
        let pumps = Pumps::new(dir.path().to_owned());
        let producers = (0..WORKERS).map(|number| {
            let _entered = runtime.enter();
            let id = format!("c{number}");
            let fifos = Fifos::of(dir.path(), &id);
            let log = dir.path().join(format!("{number}.log"));
            pumps.begin(&id, &fifos, &log).unwrap();
            Endless::begin(&fifos.stdout, 2 << 20)
        });
        let producers: Vec<Endless> = producers.collect();
        producers.iter().for_each(Endless::is_read);
        runtime.block_on(async {
            tokio::spawn(steps()).await.unwrap();
            for producer in &producers {
                assert!(!producer.stop(), "nothing else ran until it ended");
            }
            for number in 0..WORKERS {
                pumps.finish(&format!("c{number}")).await;
            }
        });
        for number in 0..WORKERS {
            let text = fs::read_to_string(dir.path().join(format!("{number}.log"))).unwrap();
            let kept = |line: &str| line.ends_with("Z stdout F ");
            assert!(!text.is_empty() && text.lines().all(kept), "{text:.200}");
        }
    }
}
