//! Reading container logs: from the CRI format back to what the container wrote, with the limits of a request.

use agent_runtime::rotated;
use agent_sys::beneath::Beneath;
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

/// What a request wants of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// What comes later, too.
    pub(crate) follow: bool,
    /// The log of the attempt before the newest.
    pub(crate) previous: bool,
    /// Each line begins with its time.
    pub(crate) timestamps: bool,
    /// So many lines from the end.
    pub(crate) tail_lines: Option<u64>,
    /// Lines from then on.
    pub(crate) since: Option<Timestamp>,
    /// So many bytes of what the container wrote.
    pub(crate) limit_bytes: Option<u64>,
    /// `Stdout` or `Stderr` alone.
    pub(crate) stream: Option<&'static str>,
}

impl Wish {
    /// Reads the query of a request.
    ///
    /// # Errors
    /// Names the parameter that is not understood.
    pub(crate) fn parse(query: &str, now: Timestamp) -> Result<Self, String> {
        let mut wish = Self::default();
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value = unescape(value);
            let bad = || format!("{key}: {value:?} is not understood");
            let truth = || matches!(value.as_str(), "true" | "1");
            let count = || value.parse::<u64>().ok().ok_or_else(bad);
            match key {
                "follow" => wish.follow = truth(),
                "previous" => wish.previous = truth(),
                "timestamps" => wish.timestamps = truth(),
                "tailLines" => wish.tail_lines = Some(count()?),
                "limitBytes" => wish.limit_bytes = Some(count()?),
                "sinceSeconds" => {
                    wish.since = now
                        .checked_sub(std::time::Duration::from_secs(count()?))
                        .ok();
                }
                "sinceTime" => wish.since = Some(value.parse().ok().ok_or_else(bad)?),
                "stream" if value == "Stdout" => wish.stream = Some("stdout"),
                "stream" if value == "Stderr" => wish.stream = Some("stderr"),
                _ => {}
            }
        }
        Ok(wish)
    }
}

/// Undoes the percent encoding of a query's value.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let code = (byte == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(code.unwrap_or(if byte == b'+' { b' ' } else { byte }));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Reads one container's log, file after file; never blocks for more to come.
#[derive(Debug)]
pub(crate) struct Reader {
    wish: Wish,
    /// The folder of the container's logs, and the name of this one.
    dir: Beneath,
    name: String,
    /// Files that were put aside and are to be read before the current one, newest last.
    older: Vec<String>,
    file: Option<(BufReader<File>, u64)>,
    left: Option<u64>,
    /// The last line had no end yet.
    partial: Vec<u8>,
    /// The previous piece of text did not end its line, so the next has no time of its own.
    inside_line: bool,
}

impl Reader {
    /// A reader placed where the wish begins.
    ///
    /// # Errors
    /// If the log is no regular file: a link, say, is followed by nobody.
    pub(crate) fn open(dir: Beneath, name: &str, wish: Wish) -> io::Result<Self> {
        let left = wish.limit_bytes;
        let mut older = rotated(&dir, name)?;
        older.reverse();
        let mut reader = Self {
            left,
            dir,
            name: name.to_owned(),
            older: Vec::new(),
            file: None,
            partial: Vec::new(),
            inside_line: false,
            wish,
        };
        match reader.wish.tail_lines {
            None => {
                // The oldest is last, so that it is taken first.
                older.insert(0, name.to_owned());
                reader.older = older;
                reader.next_file()?;
            }
            Some(lines) => reader.seek_tail(lines, older)?,
        }
        Ok(reader)
    }

    /// Places the reader before the last `lines` lines, looking into older files only as far as needed.
    fn seek_tail(&mut self, lines: u64, older: Vec<String>) -> io::Result<()> {
        let mut missing = lines;
        let mut later = Vec::new();
        for name in std::iter::once(self.name.clone()).chain(older) {
            let mut file = self.dir.open(Path::new(&name))?;
            let (at, found) = tail_offset(&mut file, missing)?;
            missing -= found;
            if missing == 0 || found == 0 && lines == 0 {
                file.seek(SeekFrom::Start(at))?;
                let inode = file.metadata()?.ino();
                self.file = Some((BufReader::new(file), inode));
                self.older = later;
                return Ok(());
            }
            later.push(name);
        }
        self.older = later;
        self.next_file()
    }

    fn next_file(&mut self) -> io::Result<()> {
        if let Some(name) = self.older.pop() {
            self.file = Some(self.file_named(&name)?);
        }
        Ok(())
    }

    /// The next piece of the log; `None` at the end of what is written; [`Reader::finished`] tells whether more can follow.
    ///
    /// # Errors
    /// The file can't be read.
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
                if let Some(text) = self.convert(&line) {
                    return Ok(Some(text));
                }
            } else if count == 0 && !self.advance()? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Goes on to the file after this one, if the log went on there.
    fn advance(&mut self) -> io::Result<bool> {
        if !self.older.is_empty() {
            self.next_file()?;
            return Ok(true);
        }
        let current = self.file.as_ref().map(|(_, inode)| *inode);
        match self.file_named(&self.name) {
            Ok(now) if Some(now.1) != current => {
                self.file = Some(now);
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A file of the log, and which it is.
    fn file_named(&self, name: &str) -> io::Result<(BufReader<File>, u64)> {
        let file = self.dir.open(Path::new(name))?;
        let inode = file.metadata()?.ino();
        Ok((BufReader::new(file), inode))
    }

    /// The limit is reached.
    pub(crate) fn finished(&self) -> bool {
        self.left == Some(0)
    }

    /// A line of the file as the container wrote it; `None` if the wish excludes it.
    fn convert(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        let mut parts = line.splitn(4, |&byte| byte == b' ');
        let time = std::str::from_utf8(parts.next()?).ok()?;
        let stream = parts.next()?;
        let full = parts.next()? == b"F";
        let text = parts.next()?;
        if self
            .wish
            .stream
            .is_some_and(|wanted| wanted.as_bytes() != stream)
        {
            return None;
        }
        if let Some(since) = self.wish.since
            && time.parse::<Timestamp>().is_ok_and(|time| time < since)
        {
            return None;
        }
        let mut out = Vec::with_capacity(line.len());
        if self.wish.timestamps && !self.inside_line {
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

/// Where the last `lines` lines of a file begin, and how many there are. The file is read once, whatever its lines are.
fn tail_offset(file: &mut (impl Read + Seek), lines: u64) -> io::Result<(u64, u64)> {
    let length = file.seek(SeekFrom::End(0))?;
    let (mut at, mut found) = (length, 0);
    if lines == 0 {
        return Ok((length, 0));
    }
    // Where a line begins of which it is yet to be seen whether the one before it goes on in it.
    let mut next = None;
    while at > 0 {
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

/// True if the line of the file that begins at `at` is a full one or the last part of one. `known` is what is known of the file
/// from there on.
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

    fn open(path: &Path, wish: Wish) -> Reader {
        Reader::open(
            Beneath::root(path.parent().unwrap()).unwrap(),
            "0.log",
            wish,
        )
        .unwrap()
    }

    fn read(path: &Path, query: &str) -> String {
        let mut reader = open(path, Wish::parse(query, Timestamp::now()).unwrap());
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
        assert!(Wish::parse("tailLines=x", Timestamp::now()).is_err());
        assert_eq!(
            Wish::parse("sinceTime=2026-01-01T00%3A00%3A03Z", Timestamp::now())
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
            Wish {
                follow: true,
                ..Wish::default()
            },
        );
        assert_eq!(reader.piece().unwrap().unwrap(), b"one\n");
        assert_eq!(reader.piece().unwrap(), None);
        fs::rename(&path, dir.path().join("0.log.20260101-000000-000")).unwrap();
        fs::write(&path, line(2, "stdout", "F", "two")).unwrap();
        assert_eq!(reader.piece().unwrap().unwrap(), b"two\n");
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
            let found = tail_offset(&mut file, wanted as u64).unwrap();
            let count = wanted.min(begins.len());
            assert_eq!(found, (begins[count - 1] as u64, count as u64));
            assert!(file.1 <= all.len() + all.len() / 8, "{} bytes read", file.1);
        }
    }

    proptest! {
        #[test]
        fn no_file_content_panics(content in proptest::collection::vec(any::<u8>(), 0..300), tail in proptest::option::of(0_u64..5)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("0.log");
            fs::write(&path, content).unwrap();
            let mut reader = open(&path, Wish { tail_lines: tail, ..Wish::default() });
            while reader.piece().unwrap().is_some() {}
        }
    }
}
