//! Reading container logs: from the CRI format back to what the container wrote, with the limits of
//! a request.

use agent_runtime::rotated;
use agent_sys::beneath::Beneath;
use config_http::percent;
use jiff::Timestamp;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes looked at from the end of a file at once, in search of its last lines.
const BLOCK: u64 = 64 * 1024;
/// Bytes of a line's beginning in which time, stream and tag are.
const HEAD: usize = 64;
/// Longest line of a file that is looked at: the writer's longest, with its head.
const MAX_LINE: u64 = 64 * 1024;
/// Bytes of a file, from its end, in which the last lines are looked for where their number of
/// bytes is limited, too: in these are far more lines than anybody asks for, or far more bytes.
const NEAR: u64 = 256 * 1024;
/// How often the files of a log are listed until two lists are the same. In a log whose files
/// rotate faster the last list counts.
const LOOKS: usize = 8;

/// The options of a request for a log (upstream: `PodLogOptions`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LogOptions {
    /// What comes later, too.
    pub(crate) follow: bool,
    /// The log of the attempt that ended last, before the one that runs or is to run.
    pub(crate) previous: bool,
    /// Each line begins with its time.
    pub(crate) timestamps: bool,
    /// The number of lines from the end.
    pub(crate) tail_lines: Option<u64>,
    /// Lines from then on.
    pub(crate) since: Option<Timestamp>,
    /// Most bytes of the container's output.
    pub(crate) limit_bytes: Option<u64>,
    /// `Stdout` or `Stderr` alone.
    pub(crate) stream: Option<&'static str>,
    /// The last lines are looked for in so many bytes at the end of each file.
    near: Option<u64>,
}

/// The last `lines` lines of a container's log as the container wrote them; of these the last
/// `bytes` bytes. `name` is the log's in the folder `dir`. What is read is bounded, however long
/// the lines are: this is for callers that ask often, and for a few lines and bytes.
///
/// # Errors
/// The log is not there, is no regular file, or can't be read.
pub fn log_end(dir: Beneath, name: &str, lines: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let options = LogOptions {
        tail_lines: Some(lines),
        near: Some(NEAR),
        ..LogOptions::default()
    };
    let mut reader = Reader::open(dir, name, options)?;
    let mut end = Vec::new();
    while let Some(text) = reader.piece()? {
        end.extend(text);
        end.drain(..end.len().saturating_sub(bytes));
    }
    Ok(end)
}

impl LogOptions {
    /// Reads the query of a request.
    ///
    /// # Errors
    /// Names the parameter that is not understood.
    pub(crate) fn parse(query: &str, now: Timestamp) -> Result<Self, String> {
        let mut options = Self::default();
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value = percent::decode_query(value)
                .ok_or_else(|| format!("{key}: {value:?} is not properly percent-encoded"))?;
            let bad = || format!("{key}: {value:?} is not understood");
            let truth = || matches!(value.as_str(), "true" | "1");
            let count = || value.parse::<u64>().ok().ok_or_else(bad);
            match key {
                "follow" => options.follow = truth(),
                "previous" => options.previous = truth(),
                "timestamps" => options.timestamps = truth(),
                "tailLines" => options.tail_lines = Some(count()?),
                "limitBytes" => options.limit_bytes = Some(count()?),
                "sinceSeconds" => {
                    options.since = now
                        .checked_sub(std::time::Duration::from_secs(count()?))
                        .ok();
                }
                "sinceTime" => options.since = Some(value.parse().ok().ok_or_else(bad)?),
                "stream" if value == "Stdout" => options.stream = Some("stdout"),
                "stream" if value == "Stderr" => options.stream = Some("stderr"),
                _ => {}
            }
        }
        Ok(options)
    }
}

/// The file of a log after another one.
#[derive(Debug)]
struct Successor {
    file: (BufReader<File>, u64),
    /// No file between the two was removed.
    adjoins: bool,
}

/// Reads one container's log, file after file; never blocks for more to come. Where files are
/// removed faster than they are read, it goes on with the oldest that is kept.
#[derive(Debug)]
pub(crate) struct Reader {
    options: LogOptions,
    /// The folder of the container's logs, and the name of this one.
    dir: Beneath,
    name: String,
    /// The file that is read, and which it is.
    file: Option<(BufReader<File>, u64)>,
    /// The file after it: once there is one, no more is written to the one that is read.
    next: Option<Successor>,
    left: Option<u64>,
    /// The last line had no end yet.
    partial: Vec<u8>,
    /// The previous piece of text did not end its line, so the next has no time of its own.
    inside_line: bool,
}

impl Reader {
    /// A reader at the first line that the options ask for.
    ///
    /// # Errors
    /// The log is no regular file: links are not followed.
    pub(crate) fn open(dir: Beneath, name: &str, options: LogOptions) -> io::Result<Self> {
        let left = options.limit_bytes;
        let mut reader = Self {
            left,
            dir,
            name: name.to_owned(),
            file: None,
            next: None,
            partial: Vec::new(),
            inside_line: false,
            options,
        };
        // Again where a file was rotated meanwhile, which would be missed.
        for _ in 0..LOOKS {
            let names = reader.names()?;
            match reader.options.tail_lines {
                None => reader.file = Some(reader.oldest(&names)?),
                Some(lines) => reader.seek_tail(lines, &names)?,
            }
            if reader.names()? == names {
                break;
            }
        }
        Ok(reader)
    }

    /// All files of the log, the oldest first; the current one is the last.
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = rotated(&self.dir, &self.name)?;
        names.push(self.name.clone());
        Ok(names)
    }

    /// The oldest of the files that is still there.
    fn oldest(&self, names: &[String]) -> io::Result<(BufReader<File>, u64)> {
        let kept = names.iter().find_map(|name| self.kept(name).transpose());
        kept.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()))
    }

    /// Places the reader before the last `lines` lines, looking into older files only as far as
    /// needed and as they are kept.
    fn seek_tail(&mut self, lines: u64, names: &[String]) -> io::Result<()> {
        let mut missing = lines;
        self.file = None;
        for name in names.iter().rev() {
            let Some((file, inode)) = self.kept(name)? else {
                break;
            };
            let mut file = file.into_inner();
            let near = self.options.near.unwrap_or(u64::MAX);
            let (at, found) = tail_offset(&mut file, missing, near)?;
            missing -= found;
            file.seek(SeekFrom::Start(at))?;
            self.file = Some((BufReader::new(file), inode));
            if missing == 0 {
                break;
            }
        }
        if self.file.is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(())
    }

    /// The next piece of the log, which is empty for a line that the options exclude; `None` at the
    /// end of what is written; [`Reader::finished`] tells whether more can follow.
    ///
    /// # Errors
    /// The log's file, or the one after it in the rotation, can't be opened or read.
    pub(crate) fn piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        while !self.finished() {
            let Some((file, _)) = &mut self.file else {
                return Ok(None);
            };
            let room = MAX_LINE.saturating_sub(self.partial.len() as u64);
            let count = file
                .by_ref()
                .take(room)
                .read_until(b'\n', &mut self.partial)?;
            let whole = self.partial.last() == Some(&b'\n') || room == 0;
            if whole {
                let line = std::mem::take(&mut self.partial);
                return Ok(Some(self.convert(&line).unwrap_or_default()));
            }
            if count == 0 && !self.advance()? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// At the end of a file: goes on to the one after it. Once that is there, the end is looked for
    /// again, as what came between the look and the rotation is in this file.
    fn advance(&mut self) -> io::Result<bool> {
        if let Some(Successor { file, adjoins }) = self.next.take() {
            // The beginning of a line whose rest was never written.
            self.partial.clear();
            self.inside_line &= adjoins;
            self.file = Some(file);
            return Ok(true);
        }
        self.next = self.successor()?;
        Ok(self.next.is_some())
    }

    /// The file after the one that is read. Where that was removed, the oldest: those before it
    /// were removed, too.
    fn successor(&self) -> io::Result<Option<Successor>> {
        let Some((_, current)) = self.file else {
            return Ok(None);
        };
        for _ in 0..LOOKS {
            let names = self.names()?;
            let mut files = Vec::new();
            for name in &names {
                files.extend(self.kept(name)?);
            }
            // A file that was rotated or removed meanwhile would be missed.
            if self.names()? != names {
                continue;
            }
            let at = files.iter().position(|(_, inode)| *inode == current);
            let next = files.into_iter().nth(at.map_or(0, |at| at + 1));
            return Ok(next.map(|file| Successor {
                file,
                adjoins: at.is_some(),
            }));
        }
        Ok(None)
    }

    /// A file of the log, and which it is; `None` if it is there no longer.
    fn kept(&self, name: &str) -> io::Result<Option<(BufReader<File>, u64)>> {
        let file = match self.dir.open(Path::new(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let inode = file.metadata()?.ino();
        Ok(Some((BufReader::new(file), inode)))
    }

    /// The limit is reached.
    pub(crate) fn finished(&self) -> bool {
        self.left == Some(0)
    }

    /// A line of the file as the container wrote it; `None` if the options exclude it.
    fn convert(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        let mut parts = line.splitn(4, |&byte| byte == b' ');
        let time = std::str::from_utf8(parts.next()?).ok()?;
        let stream = parts.next()?;
        let full = parts.next()? == b"F";
        let text = parts.next()?;
        if self
            .options
            .stream
            .is_some_and(|wanted| wanted.as_bytes() != stream)
        {
            return None;
        }
        if let Some(since) = self.options.since
            && time.parse::<Timestamp>().is_ok_and(|time| time < since)
        {
            return None;
        }
        let mut out = Vec::with_capacity(line.len());
        if self.options.timestamps && !self.inside_line {
            out.extend_from_slice(time.as_bytes());
            out.push(b' ');
        }
        self.inside_line = !full;
        out.extend_from_slice(if full {
            text
        } else {
            text.strip_suffix(b"\n").unwrap_or(text)
        });
        if let Some(left) = &mut self.left {
            out.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= out.len() as u64;
        }
        Some(out)
    }
}

/// Where the last `lines` lines of a file begin, and how many there are. The file is read once,
/// whatever its lines are, and not much more than its last `most` bytes: where these have fewer
/// lines, the first of them is the last part of a line.
fn tail_offset(file: &mut (impl Read + Seek), lines: u64, most: u64) -> io::Result<(u64, u64)> {
    let length = file.seek(SeekFrom::End(0))?;
    let (mut at, mut found) = (length, 0);
    if lines == 0 {
        return Ok((length, 0));
    }
    // Where a line begins of which it is yet to be seen whether the one before it goes on in it.
    let mut next = None;
    while at > 0 {
        if length - at >= most {
            return Ok((next.unwrap_or(length), lines));
        }
        let start = at.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(start))?;
        let mut block = Vec::new();
        file.by_ref().take(at - start).read_to_end(&mut block)?;
        let ends = block.iter().enumerate().rev();
        for (index, _) in ends.filter(|(_, byte)| **byte == b'\n') {
            let after = start + index as u64 + 1;
            if let Some(next) = next.take()
                && is_full(file, after, &block[index + 1..])?
            {
                found += 1;
                if found == lines {
                    return Ok((next, found));
                }
            }
            // The end of the last line begins none.
            next = (after < length).then_some(after);
        }
        at = start;
    }
    if let Some(next) = next
        && is_full(file, 0, &[])?
    {
        found += 1;
        if found == lines {
            return Ok((next, found));
        }
    }
    Ok((0, if length > 0 { found + 1 } else { 0 }))
}

/// True if the line of the file that begins at `at` is a full one or the last part of one. `known`
/// is what is known of the file from there on.
fn is_full(file: &mut (impl Read + Seek), at: u64, known: &[u8]) -> io::Result<bool> {
    let mut head = known.get(..HEAD).unwrap_or(known).to_vec();
    if head.len() < HEAD {
        head.clear();
        file.seek(SeekFrom::Start(at))?;
        file.by_ref().take(HEAD as u64).read_to_end(&mut head)?;
    }
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    Ok(line.splitn(4, |&byte| byte == b' ').nth(2) != Some(b"P"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::path::PathBuf;

    fn line(second: u32, stream: &str, tag: &str, text: &str) -> String {
        format!("2026-01-01T00:00:{second:02}.000000000Z {stream} {tag} {text}\n")
    }

    fn open(path: &Path, options: LogOptions) -> Reader {
        Reader::open(
            Beneath::root(path.parent().unwrap()).unwrap(),
            "0.log",
            options,
        )
        .unwrap()
    }

    fn read(path: &Path, query: &str) -> String {
        let mut reader = open(path, LogOptions::parse(query, Timestamp::now()).unwrap());
        let mut all = Vec::new();
        while let Some(text) = reader.piece().unwrap() {
            all.extend(text);
        }
        String::from_utf8(all).unwrap()
    }

    fn log() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let old = line(1, "stdout", "F", "one") + &line(2, "stderr", "F", "two");
        fs::write(dir.path().join("0.log.20260101-000000-000"), old).unwrap();
        let new = line(3, "stdout", "P", "long ")
            + &line(3, "stdout", "F", "three")
            + &line(4, "stdout", "F", "four");
        fs::write(&path, new).unwrap();
        (dir, path)
    }

    #[test]
    fn all_files_are_read_in_order_and_parts_are_joined() {
        let (_dir, path) = log();
        assert_eq!(read(&path, ""), "one\ntwo\nlong three\nfour\n");
    }

    #[test]
    fn the_last_lines_may_lie_in_older_files() {
        let (_dir, path) = log();
        assert_eq!(read(&path, "tailLines=0"), "");
        assert_eq!(read(&path, "tailLines=1"), "four\n");
        assert_eq!(read(&path, "tailLines=2"), "long three\nfour\n");
        assert_eq!(read(&path, "tailLines=3"), "two\nlong three\nfour\n");
        assert_eq!(read(&path, "tailLines=99"), "one\ntwo\nlong three\nfour\n");
    }

    #[test]
    fn time_bytes_and_stream_limit_what_is_read() {
        let (_dir, path) = log();
        assert_eq!(
            read(&path, "sinceTime=2026-01-01T00:00:03Z"),
            "long three\nfour\n"
        );
        assert_eq!(read(&path, "limitBytes=5"), "one\nt");
        assert_eq!(read(&path, "stream=Stderr"), "two\n");
        assert_eq!(
            read(&path, "timestamps=true&tailLines=2"),
            "2026-01-01T00:00:03.000000000Z long three\n2026-01-01T00:00:04.000000000Z four\n"
        );
        assert!(LogOptions::parse("tailLines=x", Timestamp::now()).is_err());
        assert_eq!(
            LogOptions::parse("sinceTime=2026-01-01T00%3A00%3A03Z", Timestamp::now())
                .unwrap()
                .since,
            "2026-01-01T00:00:03Z".parse().ok()
        );
    }

    #[test]
    fn a_follower_goes_on_over_a_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        fs::write(&path, line(1, "stdout", "F", "one")).unwrap();
        let mut reader = open(
            &path,
            LogOptions {
                follow: true,
                ..LogOptions::default()
            },
        );
        assert_eq!(reader.piece().unwrap().unwrap(), b"one\n");
        assert_eq!(reader.piece().unwrap(), None);
        fs::rename(&path, dir.path().join("0.log.20260101-000000-000")).unwrap();
        fs::write(&path, line(2, "stdout", "F", "two")).unwrap();
        assert_eq!(reader.piece().unwrap().unwrap(), b"two\n");
    }

    /// The log is written and rotated as by the kubelet: two files are kept beside the current one.
    struct Writer(tempfile::TempDir, u32);

    impl Writer {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap(), 0)
        }

        fn follower(&self) -> Reader {
            let options = LogOptions {
                follow: true,
                ..LogOptions::default()
            };
            open(&self.0.path().join("0.log"), options)
        }

        fn write(&self, text: &str) {
            let path = self.0.path().join("0.log");
            let mut file = File::options().append(true).create(true).open(path);
            let line = line(1, "stdout", "F", text);
            io::Write::write_all(file.as_mut().unwrap(), line.as_bytes()).unwrap();
        }

        fn rotate(&mut self) {
            let aside = |number| {
                self.0
                    .path()
                    .join(format!("0.log.20260101-000000-{number:03}"))
            };
            fs::rename(self.0.path().join("0.log"), aside(self.1)).unwrap();
            if let Some(old) = self.1.checked_sub(2) {
                fs::remove_file(aside(old)).unwrap();
            }
            self.1 += 1;
            fs::write(self.0.path().join("0.log"), "").unwrap();
        }
    }

    fn all(reader: &mut Reader) -> String {
        let mut all = Vec::new();
        while let Some(text) = reader.piece().unwrap() {
            all.extend(text);
        }
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn a_follower_reads_every_file_that_was_put_aside_meanwhile() {
        let mut log = Writer::new();
        log.write("1");
        let mut reader = log.follower();
        assert_eq!(all(&mut reader), "1\n");
        for text in ["2", "3"] {
            log.write(text);
            log.rotate();
        }
        log.write("4");
        assert_eq!(all(&mut reader), "2\n3\n4\n");
    }

    #[test]
    fn a_follower_whose_next_files_are_gone_goes_on_with_the_oldest_that_is_kept() {
        let mut log = Writer::new();
        for text in ["1", "2", "3"] {
            log.write(text);
            log.rotate();
        }
        let mut reader = log.follower();
        assert_eq!(reader.piece().unwrap().unwrap(), b"2\n");
        for text in ["4", "5", "6", "7"] {
            log.write(text);
            log.rotate();
        }
        log.write("8");
        assert_eq!(all(&mut reader), "6\n7\n8\n");
        log.write("9");
        assert_eq!(all(&mut reader), "9\n", "nothing comes twice");
    }

    #[test]
    fn what_was_written_between_the_look_at_the_end_and_the_rotation_is_read() {
        let mut log = Writer::new();
        log.write("1");
        let mut reader = log.follower();
        assert_eq!(all(&mut reader), "1\n");
        log.write("2");
        log.rotate();
        log.write("3");
        // As after a read that found the end before the second line was there.
        assert!(reader.advance().unwrap());
        assert_eq!(all(&mut reader), "2\n3\n");
    }

    proptest! {
        #[test]
        fn a_follower_repeats_nothing_and_misses_only_what_is_gone(turns in proptest::collection::vec(0_u8..4, 1..60)) {
            let mut log = Writer::new();
            log.write("0");
            let mut reader = log.follower();
            let (mut written, mut read) = (1_u32, Vec::new());
            // Of each file put aside, the first number that is not in it.
            let mut ends = Vec::new();
            for turn in turns {
                match turn {
                    0 => {
                        log.rotate();
                        ends.push(written);
                    }
                    1 => if let Some(text) = reader.piece().unwrap() {
                        read.push(String::from_utf8(text).unwrap());
                    },
                    _ => {
                        log.write(&written.to_string());
                        written += 1;
                    }
                }
            }
            read.extend(all(&mut reader).split_inclusive('\n').map(str::to_owned));
            let read: Vec<u32> = read.iter().map(|text| text.trim_end().parse().unwrap()).collect();
            prop_assert!(read.windows(2).all(|pair| pair[0] < pair[1]), "{read:?}");
            let kept = ends.iter().rev().nth(2).copied().unwrap_or(0);
            prop_assert!((kept..written).all(|number| read.contains(&number)), "{read:?} of {written}, kept from {kept}");
        }
    }

    /// Counts what is read of a file.
    struct Counted(io::Cursor<Vec<u8>>, usize);

    impl Read for Counted {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.0.read(into)?;
            self.1 += count;
            Ok(count)
        }
    }

    impl Seek for Counted {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    #[test]
    fn the_end_of_a_log_of_short_lines_is_found_by_reading_it_once() {
        let tags = ["F", "P", "F", "F", "P", "P", "F"];
        let text = |number: usize| "x".repeat(number % 7);
        let lines: Vec<String> = (0..20_000)
            .map(|number| line(1, "stdout", tags[number % tags.len()], &text(number)))
            .collect();
        let all = lines.concat();
        // Where each line of the container's begins, the last first.
        let mut begins = vec![0];
        let mut at = 0;
        for (number, text) in lines.iter().enumerate() {
            at += text.len();
            if tags[number % tags.len()] == "F" && at < all.len() {
                begins.push(at);
            }
        }
        begins.reverse();
        for wanted in [1, 2, 3, 1000, 9999, begins.len(), begins.len() + 1] {
            let mut file = Counted(io::Cursor::new(all.clone().into_bytes()), 0);
            let found = tail_offset(&mut file, wanted as u64, u64::MAX).unwrap();
            let count = wanted.min(begins.len());
            assert_eq!(found, (begins[count - 1] as u64, count as u64));
            assert!(file.1 <= all.len() + all.len() / 8, "{} bytes read", file.1);
        }
    }

    #[test]
    fn the_end_of_a_log_is_what_the_container_wrote_last() {
        let (_dir, path) = log();
        let end = |lines, bytes| {
            let folder = Beneath::root(path.parent().unwrap()).unwrap();
            String::from_utf8(log_end(folder, "0.log", lines, bytes).unwrap()).unwrap()
        };
        assert_eq!(end(3, 2048), "two\nlong three\nfour\n");
        assert_eq!(end(3, 12), " three\nfour\n");
        assert_eq!(end(0, 2048), "");
        // A line of two mebibytes.
        let part = line(1, "stdout", "P", &"x".repeat(16 << 10)).repeat(128);
        fs::write(&path, part + &line(1, "stdout", "F", "  end")).unwrap();
        assert_eq!(end(80, 8), "xx  end\n");
        let mut file = Counted(io::Cursor::new(fs::read(&path).unwrap()), 0);
        let (at, _) = tail_offset(&mut file, 80, NEAR).unwrap();
        let near = usize::try_from(NEAR + BLOCK).unwrap();
        assert!(file.1 <= near + near / 8, "{} bytes read", file.1);
        assert!(file.0.get_ref().len() - usize::try_from(at).unwrap() <= near);
    }

    proptest! {
        #[test]
        fn no_file_content_panics(content in proptest::collection::vec(any::<u8>(), 0..300), tail in proptest::option::of(0_u64..5)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("0.log");
            fs::write(&path, content).unwrap();
            let mut reader = open(&path, LogOptions { tail_lines: tail, ..LogOptions::default() });
            while reader.piece().unwrap().is_some() {}
        }
    }
}
