//! The files that init keeps of a service, read as one log.

use crate::source::{Line, Micros, Source, clean, micros, within};
use agent_sys::beneath::Beneath;
use config_machine::journal::{Boot, KEPT, MAX_STORED, Stamp};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// This boot, and when it began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// Its name.
    pub(crate) boot: Boot,
    /// When its kernel started, by the clock of now.
    pub(crate) epoch: Micros,
}

/// One file of the log.
struct LogFile {
    file: BufReader<File>,
    inode: u64,
    changed: Micros,
}

/// The log of one service, from its oldest file to the one that is written.
pub(crate) struct Files {
    dir: Beneath,
    name: String,
    now: Now,
    /// The boot whose lines are wanted; all where none is named.
    boot: Option<Boot>,
    file: Option<LogFile>,
    /// The file was rotated: nothing is added to it any more, but it may still hold unread lines.
    rotated: bool,
    /// The beginning of an unfinished line.
    partial: Vec<u8>,
    /// The time of the last line; lines without a stamp get it too.
    last: Option<Micros>,
    /// Lines were removed before they were read.
    missed: bool,
    /// A line that was read already; the notice about lost lines is sent before it.
    held: Option<Vec<u8>>,
}

impl Files {
    /// Opens the log `NAME.log` at its oldest line.
    ///
    /// # Errors
    /// The folder can't be read.
    pub(crate) fn open(folder: &Path, name: &str, now: Now) -> io::Result<Self> {
        Ok(Self {
            dir: Beneath::root(folder)?,
            name: format!("{name}.log"),
            now,
            boot: None,
            file: None,
            rotated: false,
            partial: Vec::new(),
            last: None,
            missed: false,
            held: None,
        })
    }

    /// Whether the service has a log; only regular files count.
    pub(crate) fn is_there(&self) -> bool {
        self.dir.open(Path::new(&self.name)).is_ok()
    }

    /// Selects the lines of an earlier boot, counted back from this one. False if the log holds no
    /// line of it.
    ///
    /// # Errors
    /// The log's folder can't be listed, or a file of the log can't be opened or read.
    pub(crate) fn select_boot(&mut self, back: u32) -> io::Result<bool> {
        let mut boots: Vec<Boot> = Vec::new();
        while let Some(line) = self.line()? {
            if let Some((stamp, _)) = Stamp::split(&line)
                && boots.last() != Some(&stamp.boot)
            {
                boots.push(stamp.boot);
            }
        }
        if boots.last() != Some(&self.now.boot) {
            boots.push(self.now.boot);
        }
        (self.file, self.rotated, self.missed) = (None, false, false);
        self.partial.clear();
        let back = usize::try_from(back).unwrap_or(usize::MAX);
        self.boot = boots.into_iter().rev().nth(back);
        Ok(self.boot.is_some())
    }

    /// The next line of the files, without its newline; `None` at the current end.
    fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        if let Some(line) = self.held.take() {
            return Ok(Some(line));
        }
        loop {
            let Some(current) = &mut self.file else {
                if !self.advance()? {
                    return Ok(None);
                }
                continue;
            };
            let room = MAX_STORED.saturating_sub(self.partial.len());
            let mut rest = current.file.by_ref().take(room as u64);
            let count = rest.read_until(b'\n', &mut self.partial)?;
            if self.partial.last() == Some(&b'\n') {
                self.partial.pop();
                return Ok(Some(std::mem::take(&mut self.partial)));
            }
            if room <= count {
                return Ok(Some(std::mem::take(&mut self.partial)));
            }
            if count > 0 {
                continue;
            }
            if self.rotated {
                // No line continues in the next file.
                if !self.partial.is_empty() {
                    return Ok(Some(std::mem::take(&mut self.partial)));
                }
            }
            if !self.advance()? {
                return Ok(None);
            }
        }
    }

    /// Goes on to the next file, once the current one was rotated and is read to its end. False at
    /// the end of the newest.
    fn advance(&mut self) -> io::Result<bool> {
        let mut files = self.files()?;
        let Some(current) = &self.file else {
            self.file = files.pop();
            return Ok(self.file.is_some());
        };
        match files.iter().position(|file| file.inode == current.inode) {
            Some(0) => return Ok(false),
            // Lines written between the last read and the rename are read first.
            Some(_) if !self.rotated => {
                self.rotated = true;
                return Ok(true);
            }
            Some(at) => {
                files.truncate(at);
                self.file = files.pop();
            }
            None if files.is_empty() => return Ok(false),
            None if !self.rotated => {
                self.rotated = true;
                return Ok(true);
            }
            None => {
                self.file = files.pop();
                self.missed = true;
            }
        }
        self.rotated = false;
        Ok(true)
    }

    /// The files, the newest first. They are opened in the opposite order of the renames: a file
    /// that is rotated meanwhile is found twice, and none is missed.
    fn files(&self) -> io::Result<Vec<LogFile>> {
        let mut files: Vec<LogFile> = Vec::new();
        for number in 0..=KEPT {
            let name = if number == 0 {
                self.name.clone()
            } else {
                format!("{}.{number}", self.name)
            };
            let file = match self.dir.open(Path::new(&name)) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let about = file.metadata()?;
            let inode = about.ino();
            if files.iter().all(|file| file.inode != inode) {
                files.push(LogFile {
                    file: BufReader::with_capacity(64 << 10, file),
                    inode,
                    changed: within(about.mtime().saturating_mul(1_000_000)),
                });
            }
        }
        Ok(files)
    }

    /// A line for the answer; `None` if it is of another boot than the wanted one.
    fn line_for_answer(&mut self, line: &[u8]) -> Option<Line> {
        let split = Stamp::split(line);
        if self.boot.is_some() && self.boot != split.map(|(stamp, _)| stamp.boot) {
            return None;
        }
        let time = match split {
            Some((stamp, _)) if stamp.boot == self.now.boot => {
                within(self.now.epoch.saturating_add(micros(stamp.since_boot)))
            }
            Some((stamp, _)) => micros(stamp.unix),
            None => self
                .last
                .or(self.file.as_ref().map(|file| file.changed))
                .unwrap_or_default(),
        };
        self.last = Some(time);
        Some(Line {
            time,
            text: clean(split.map_or(line, |(_, text)| text)),
        })
    }
}

impl Source for Files {
    fn next(&mut self) -> io::Result<Option<Line>> {
        while let Some(line) = self.line()? {
            if std::mem::take(&mut self.missed) {
                self.held = Some(line);
                return Ok(Some(Line {
                    time: self.last.unwrap_or_default(),
                    text: "(lines were removed from the log before they were read)".to_owned(),
                }));
            }
            if let Some(line) = self.line_for_answer(&line) {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::io::Write as _;

    const NOW: Now = Now {
        boot: Boot(2),
        epoch: 1_000_000_000,
    };

    /// A log as init writes it, with files of `limit` bytes.
    struct Log {
        dir: tempfile::TempDir,
        limit: u64,
    }

    impl Log {
        fn new(limit: u64) -> Self {
            let dir = tempfile::tempdir().unwrap();
            Self { dir, limit }
        }

        fn put(&self, line: &str) {
            let path = self.dir.path().join("agent.log");
            let name = |number: u32| path.with_extension(format!("log.{number}"));
            let size = fs::metadata(&path).map_or(0, |about| about.len());
            if size > 0 && size + line.len() as u64 + 1 > self.limit {
                for number in (1..KEPT).rev() {
                    fs::rename(name(number), name(number + 1)).ok();
                }
                fs::rename(&path, name(1)).unwrap();
            }
            let mut options = File::options();
            let mut file = options.append(true).create(true).open(&path).unwrap();
            writeln!(file, "{line}").unwrap();
        }

        fn open(&self) -> Files {
            Files::open(self.dir.path(), "agent", NOW).unwrap()
        }
    }

    fn stamped(boot: u32, millis: u64, text: &str) -> String {
        let stamp = Stamp {
            boot: Boot(boot),
            unix: 10 + millis,
            since_boot: millis,
        };
        format!("{stamp} {text}")
    }

    fn rest(files: &mut Files) -> Vec<(Micros, String)> {
        std::iter::from_fn(|| files.next().unwrap())
            .map(|line| (line.time, line.text))
            .collect()
    }

    #[test]
    fn lines_of_this_boot_have_times_by_the_current_clock() {
        let log = Log::new(1000);
        log.put("before there were stamps");
        log.put(&stamped(1, 5, "old"));
        log.put("torn\u{1b}");
        log.put(&stamped(2, 7, "new"));
        let lines = rest(&mut log.open());
        assert!(lines[0].0 > 1_700_000_000_000_000, "the file's own time");
        assert_eq!(
            lines[1..],
            [
                (15_000, "old".to_owned()),
                (15_000, "torn\u{fffd}".to_owned()),
                (1_000_007_000, "new".to_owned()),
            ]
        );
    }

    #[test]
    fn a_boot_is_counted_back_from_this_one() {
        let log = Log::new(60);
        for (boot, text) in [(7, "a"), (7, "b"), (9, "c"), (2, "d")] {
            log.put(&stamped(boot, 1, text));
        }
        for (back, wanted) in [(0, "d"), (1, "c"), (2, "ab")] {
            let mut files = log.open();
            assert!(files.select_boot(back).unwrap());
            let texts: String = rest(&mut files).into_iter().map(|(_, text)| text).collect();
            assert_eq!(texts, wanted);
        }
        assert!(!log.open().select_boot(3).unwrap());
        // This boot has written nothing yet.
        let quiet = Log::new(60);
        quiet.put(&stamped(9, 1, "c"));
        let mut files = quiet.open();
        assert!(files.select_boot(1).unwrap());
        assert_eq!(rest(&mut files).len(), 1);
        let mut files = quiet.open();
        assert!(files.select_boot(0).unwrap());
        assert_eq!(rest(&mut files).len(), 0);
    }

    #[test]
    fn a_link_in_the_folder_is_no_log() {
        let log = Log::new(60);
        let path = log.dir.path().join("agent.log");
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        let mut files = log.open();
        assert!(!files.is_there());
        assert!(files.next().is_err());
        fs::remove_file(&path).unwrap();
        assert!(!files.is_there());
        assert_eq!(rest(&mut files), []);
        fs::create_dir(&path).unwrap();
        assert!(!files.is_there());
    }

    #[test]
    fn a_line_without_an_end_waits_for_it_and_a_long_one_is_cut() {
        let log = Log::new(1 << 20);
        let path = log.dir.path().join("agent.log");
        fs::write(&path, stamped(2, 1, "half")).unwrap();
        let mut files = log.open();
        assert_eq!(rest(&mut files), []);
        log.put(&format!(" and half\n{}", "x".repeat(3 * MAX_STORED)));
        let lines = rest(&mut files);
        assert_eq!(lines[0].1, "half and half");
        assert!(lines.iter().all(|(_, text)| text.len() <= MAX_STORED));
        assert_eq!(
            lines
                .iter()
                .skip(1)
                .map(|(_, text)| text.len())
                .sum::<usize>(),
            3 * MAX_STORED
        );
    }

    #[test]
    fn a_follower_that_missed_lines_gets_a_notice() {
        let log = Log::new(60);
        log.put(&stamped(2, 0, "first"));
        let mut files = log.open();
        assert_eq!(rest(&mut files).len(), 1);
        for number in 1..50 {
            log.put(&stamped(2, number, "more"));
        }
        let lines = rest(&mut files);
        // First the rest of the file that it held open, then the files that are kept.
        let notice = lines
            .iter()
            .position(|(_, text)| text.starts_with("(lines were removed"));
        assert!(notice.is_some_and(|at| at < 3), "{lines:?}");
        assert_eq!(lines.last().unwrap().0, 1_000_049_000);
    }

    proptest! {
        /// However the writer and a follower take turns, the follower sees each line once and in
        /// order, unless all kept files were replaced since its last read.
        #[test]
        fn a_follower_misses_nothing_over_rotations(turns in proptest::collection::vec(0_usize..6, 1..40)) {
            let log = Log::new(120);
            let mut files = log.open();
            let (mut written, mut seen) = (0_u64, Vec::new());
            for count in turns {
                for _ in 0..count {
                    log.put(&stamped(2, written, "text"));
                    written += 1;
                }
                seen.extend(rest(&mut files).into_iter().map(|(time, _)| time));
            }
            let all: Vec<Micros> = (0..written).map(|number| NOW.epoch + micros(number)).collect();
            prop_assert_eq!(seen, all);
        }

        /// For any content of the disk each line has a valid time and no control characters.
        #[test]
        fn no_content_panics_or_controls_a_terminal(content in proptest::collection::vec(any::<u8>(), 0..400)) {
            let log = Log::new(1000);
            fs::write(log.dir.path().join("agent.log"), content).unwrap();
            for (time, text) in rest(&mut log.open()) {
                prop_assert_eq!(time, within(time));
                prop_assert!(text.chars().all(|c| !c.is_control() || c == '\t'));
            }
        }
    }
}
