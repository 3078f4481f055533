//! The log of verdicts on disk: append-only segments, each record signed, chained to the one before
//! and flushed.
//!
//! Guarantee: when [`VerdictLog::append`] returns, the record is on disk. Concurrent callers share
//! one flush. After a crash an incomplete last record is cut off, with a warning. Any other damage
//! is an error at the start that names the file. Size and number of segments are bounded: the
//! oldest is deleted, and the chain of hashes continues.
//!
//! How many records could not be written is kept in a file beside the segments, whose one block was
//! allocated when there was room, so that the count outlives a master which ends because the disk
//! is full. On a disk that takes no writes at all the count is lost with the process.

use crate::error::{Error, file};
use crate::missing::{COUNT, Noted, open_count};
use crate::recorded::Recorded;
use bytes::Bytes;
use config_errors::chain;
use config_tpm::Digest;
use config_verdicts::{
    Entry, FORMAT, Head, Kind, MAX_LINE, Record, Segment, digests, line, resume,
};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use master_ca::LogSigner;
use master_client::Body;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio::sync::oneshot;

/// Bytes after which a segment is closed: it is read at every start, so it is small.
const SEGMENT: usize = 1 << 20;
/// Segments that are kept: 64 MiB, some 150,000 verdicts.
const KEPT: usize = 64;
/// Records that wait for the disk at most; beyond it a caller gets [`Error::Busy`].
const QUEUE: usize = 4096;

/// A record that waits to be written.
#[derive(Debug)]
struct WaitingRecord {
    entry: Entry,
    /// Reports to the caller whether it is on disk.
    reply: oneshot::Sender<Result<(), Error>>,
}

/// The log of verdicts; one in a process.
#[derive(Debug)]
pub struct VerdictLog {
    waiting: Mutex<Vec<WaitingRecord>>,
    writer: Arc<tokio::sync::Mutex<Writer>>,
    folder: PathBuf,
    /// Number of the segment in use, and its bytes that are on disk.
    flushed: Arc<Mutex<(u64, u64)>>,
    missing: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Writer {
    folder: PathBuf,
    signer: LogSigner,
    file: Option<File>,
    segment: u64,
    size: usize,
    head: Head,
    flushed: Arc<Mutex<(u64, u64)>>,
    /// Missing records that no record in the log counts yet.
    missing: Arc<AtomicU64>,
    /// The file [`COUNT`]; `None` where it can't be made.
    count: Option<File>,
}

impl VerdictLog {
    /// Opens the log in `folder`, or begins one. Blocks.
    ///
    /// # Errors
    /// A file cannot be read or written, or a segment is damaged.
    pub fn open(folder: &Path, signer: LogSigner) -> Result<Self, Error> {
        std::fs::create_dir_all(folder).map_err(|source| file("make", folder, source))?;
        let flushed = Arc::new(Mutex::new((0, 0)));
        let missing = Arc::new(AtomicU64::new(0));
        let mut writer = Writer {
            folder: folder.to_owned(),
            signer,
            file: None,
            segment: 0,
            size: 0,
            head: Head::default(),
            flushed: flushed.clone(),
            missing: missing.clone(),
            count: None,
        };
        writer.resume()?;
        match open_count(&folder.join(COUNT)) {
            Ok((file, noted)) => {
                // A record that was written since counts them.
                if noted.after == writer.head.number {
                    missing.store(noted.missing, Ordering::Relaxed);
                }
                writer.count = Some(file);
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "missing verdicts are counted until the master ends");
            }
        }
        Ok(Self {
            waiting: Mutex::default(),
            writer: Arc::new(tokio::sync::Mutex::new(writer)),
            folder: folder.to_owned(),
            flushed,
            missing,
        })
    }

    /// Appends a record and returns when it is on disk. The caller that gets the writer first
    /// writes all waiting records.
    ///
    /// # Errors
    /// Too many records wait, or the disk failed.
    pub async fn append(&self, entry: Entry) -> Result<(), Error> {
        let entry = entry.bounded();
        let (reply, replied) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.len() >= QUEUE {
                return Err(Error::Busy);
            }
            waiting.push(WaitingRecord { entry, reply });
        }
        let mut writer = self.writer.clone().lock_owned().await;
        let batch =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        if batch.is_empty() {
            drop(writer);
        } else {
            // The closure owns the writer and the records, so the write completes also when this
            // caller is cancelled.
            let write = move || writer.write(batch);
            tokio::task::spawn_blocking(write)
                .await
                .map_err(Error::Task)?;
        }
        replied.await.unwrap_or(Err(Error::Busy))
    }

    /// Counts a decision whose record could not be written. The next record is preceded by one with
    /// the number of missing records, so that the log shows each of its gaps.
    pub fn missed(&self) {
        self.missing.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps the count of [`VerdictLog::missed`] for the next start, as far as the disk allows it.
    pub async fn note_missing(&self) {
        let writer = self.writer.clone().lock_owned().await;
        let noted = tokio::task::spawn_blocking(move || writer.note_missing()).await;
        if let Ok(Err(error)) = noted {
            tracing::debug!(
                error = chain(&error),
                "the number of missing verdicts cannot be kept"
            );
        }
    }

    /// What the log last recorded of policies, releases and Machines. Reads all of it.
    ///
    /// # Errors
    /// A segment cannot be read.
    pub async fn recorded(&self) -> Result<Recorded, Error> {
        let folder = self.folder.clone();
        let read = move || {
            let mut recorded = Recorded::nothing();
            for (_, path) in segments(&folder)? {
                let bytes = std::fs::read(&path).map_err(|source| file("read", &path, source))?;
                digests(&bytes).for_each(|entry| recorded.take(entry));
            }
            Ok(recorded)
        };
        tokio::task::spawn_blocking(read)
            .await
            .map_err(Error::Task)?
    }

    /// Signs with another key from the next record on, which begins a new segment. The same key
    /// changes nothing.
    pub async fn sign_with(&self, signer: LogSigner) {
        let mut writer = self.writer.lock().await;
        if writer.signer.certificate() != signer.certificate() {
            writer.signer = signer;
            writer.file = None;
        }
    }

    /// The flushed records of all segments as a response body, oldest first.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn read(&self) -> Result<Body, Error> {
        let (segment, size) = *self.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = segments(&self.folder)?;
        all.retain(|(number, _)| *number <= segment);
        let pieces = all.into_iter().filter_map(move |(number, path)| {
            let limit = if number == segment { size } else { u64::MAX };
            let mut bytes = Vec::new();
            // A segment deleted meanwhile is the oldest: without it the rest is still a valid
            // chain.
            let file = File::open(path).ok()?;
            file.take(limit).read_to_end(&mut bytes).ok()?;
            Some(Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(
                bytes,
            ))))
        });
        let body = StreamBody::new(futures_util::stream::iter(pieces));
        Ok(body
            .map_err(|never: std::convert::Infallible| match never {})
            .boxed_unsync())
    }
}

impl Writer {
    /// Continues the newest segment: reads it, cuts off an incomplete last record, finds the head
    /// of the chain.
    fn resume(&mut self) -> Result<(), Error> {
        let Some((number, path)) = segments(&self.folder)?.pop() else {
            return Ok(());
        };
        let bytes = std::fs::read(&path).map_err(|source| file("read", &path, source))?;
        let certificate = self.certificate();
        match resume(&bytes) {
            Ok(found) => {
                if found.whole < bytes.len() {
                    tracing::warn!(path = %path.display(), bytes = bytes.len() - found.whole, "an incomplete last record was cut off");
                }
                let open = std::fs::OpenOptions::new().write(true).open(&path);
                let segment = open.map_err(|source| file("open", &path, source))?;
                let whole = u64::try_from(found.whole).unwrap_or(u64::MAX);
                segment
                    .set_len(whole)
                    .and_then(|()| segment.sync_all())
                    .map_err(|source| file("cut", &path, source))?;
                (self.head, self.segment, self.size) = (found.head, number, found.whole);
                *self.flushed.lock().unwrap_or_else(PoisonError::into_inner) = (number, whole);
                // With another signing key the next record begins a new segment.
                if found.certificate == certificate {
                    let open = std::fs::OpenOptions::new().append(true).open(&path);
                    self.file = Some(open.map_err(|source| file("open", &path, source))?);
                }
                Ok(())
            }
            // Only an incomplete header: the crash came before the first record.
            Err((1, _)) if bytes.len() <= MAX_LINE && !bytes.contains(&b'\n') => {
                std::fs::remove_file(&path).map_err(|source| file("remove", &path, source))?;
                self.resume()
            }
            Err((line, why)) => Err(Error::Damaged { path, line, why }),
        }
    }

    fn certificate(&self) -> String {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(self.signer.certificate())
    }

    /// Writes and flushes a batch, and replies to each caller.
    fn write(&mut self, batch: Vec<WaitingRecord>) {
        let batch = batch.into_iter().map(|one| (one.entry, one.reply));
        let (mut entries, replies): (Vec<_>, Vec<_>) = batch.unzip();
        let missing = self.missing.swap(0, Ordering::Relaxed);
        if missing > 0 {
            let mut gap = Entry::of(Kind::Missing, "");
            gap.count = Some(missing);
            entries.insert(0, gap);
        }
        let outcome = self.write_all(entries);
        if let Err(error) = &outcome {
            self.missing.fetch_add(missing, Ordering::Relaxed);
            tracing::error!(error = %chain(error), "verdicts could not be written");
            // A failed write may have left part of the batch: read the segment again, as at a
            // start. Before that, all that was not flushed goes: after a failed flush the kernel
            // counts it as written, and a second flush would say nothing of it.
            self.file = None;
            self.cut_unflushed();
            if let Err(error) = self.resume() {
                tracing::error!(error = %chain(&error), "the log of verdicts cannot be opened");
            }
        }
        for reply in replies {
            // A caller that was cancelled has dropped its receiver.
            let written = outcome.as_ref().copied();
            drop(reply.send(written.or(Err(Error::Busy))));
        }
    }

    fn note_missing(&self) -> std::io::Result<()> {
        let Some(file) = &self.count else {
            return Ok(());
        };
        let noted = Noted {
            after: self.head.number,
            missing: self.missing.load(Ordering::Relaxed),
        };
        file.write_all_at(noted.text().as_bytes(), 0)?;
        file.sync_data()
    }

    /// Cuts the segment in use to what is known to be on disk.
    fn cut_unflushed(&self) {
        let size = u64::try_from(self.size).unwrap_or(u64::MAX);
        let cut = std::fs::OpenOptions::new()
            .write(true)
            .open(self.path(self.segment))
            .and_then(|segment| segment.set_len(size).and_then(|()| segment.sync_all()));
        if let Err(error) = cut {
            // Where there is no segment yet there is nothing to cut.
            tracing::debug!(
                error = chain(&error),
                "the log's segment cannot be cut to what was flushed"
            );
        }
    }

    fn write_all(&mut self, entries: Vec<Entry>) -> Result<(), Error> {
        if self.file.is_none() || self.size >= SEGMENT {
            self.begin()?;
        }
        let path = self.path(self.segment);
        let Some(segment) = self.file.as_mut() else {
            return Err(Error::Busy);
        };
        let mut head = self.head;
        let mut bytes = Vec::new();
        for verdict in entries {
            let record = Record {
                number: head.number + 1,
                previous: head.hash,
                time: now(),
                verdict,
            };
            let json = serde_json::to_vec(&record).map_err(Error::Encode)?;
            bytes.extend(line(&json, &self.signer.sign(&json).map_err(Error::Sign)?));
            head = Head {
                number: record.number,
                hash: Digest::of(&json),
            };
        }
        segment
            .write_all(&bytes)
            .and_then(|()| segment.sync_data())
            .map_err(|source| file("write", &path, source))?;
        self.head = head;
        self.size += bytes.len();
        self.publish_flushed();
        Ok(())
    }

    /// Begins a segment. Its header is on disk before the first record is written.
    fn begin(&mut self) -> Result<(), Error> {
        use base64::Engine as _;
        let number = self.segment + 1;
        let path = self.path(number);
        let segment = Segment {
            format: FORMAT.to_owned(),
            cluster: self.signer.cluster().to_owned(),
            time: now(),
            next: self.head.number + 1,
            previous: self.head.hash,
            certificate: self.certificate(),
            root: base64::engine::general_purpose::STANDARD.encode(self.signer.root()),
        };
        let json = serde_json::to_vec(&segment).map_err(Error::Encode)?;
        let bytes = line(&json, &self.signer.sign(&json).map_err(Error::Sign)?);
        let fail = |source| file("write", &path, source);
        let mut open = std::fs::OpenOptions::new();
        let mut fresh = open
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(fail)?;
        let written = fresh
            .write_all(&bytes)
            .and_then(|()| fresh.sync_all())
            .and_then(|()| File::open(&self.folder)?.sync_all());
        if let Err(source) = written {
            // A beginning that may not be on disk is not continued.
            drop(std::fs::remove_file(&path));
            return Err(fail(source));
        }
        (self.file, self.segment, self.size) = (Some(fresh), number, bytes.len());
        self.publish_flushed();
        let mut all = segments(&self.folder)?;
        let surplus = all.len().saturating_sub(KEPT);
        for (_, old) in all.drain(..surplus) {
            std::fs::remove_file(&old).map_err(|source| file("remove", &old, source))?;
        }
        Ok(())
    }

    /// Makes what is on disk visible to readers.
    fn publish_flushed(&self) {
        let size = u64::try_from(self.size).unwrap_or(u64::MAX);
        *self.flushed.lock().unwrap_or_else(PoisonError::into_inner) = (self.segment, size);
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:012}.log"))
    }
}

/// The segments of a folder by their numbers.
fn segments(folder: &Path) -> Result<Vec<(u64, PathBuf)>, Error> {
    let fail = |source| file("list", folder, source);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_suffix(".log")?.parse().ok());
        found.extend(number.map(|number| (number, path)));
    }
    found.sort();
    Ok(found)
}

fn now() -> String {
    jiff::Timestamp::try_from(SystemTime::now())
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_verdicts::{LogFile, verify};
    use master_ca::{Authority, FileKeeper};

    fn authority(folder: &Path) -> Authority {
        Authority::open(folder, "lab", Arc::new(FileKeeper), SystemTime::now()).unwrap()
    }

    fn files(folder: &Path) -> Vec<LogFile> {
        let all = segments(folder).unwrap().into_iter();
        all.map(|(number, path)| LogFile::new(number.to_string(), std::fs::read(path).unwrap()))
            .collect()
    }

    async fn append(log: &VerdictLog, many: usize) {
        let all = (0..many).map(|_| log.append(Entry::of(Kind::Joined, "worker-1")));
        for outcome in futures_util::future::join_all(all).await {
            outcome.unwrap();
        }
    }

    /// Concurrent records, over restarts and power cuts at every length of the last record: the log
    /// is intact, and only the torn record is lost.
    #[tokio::test]
    async fn the_log_survives_cuts_and_verifies_with_the_roots_pin() {
        let (keys, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let authority = authority(keys.path());
        let pin: Digest = authority.pin().parse().unwrap();
        let open = || {
            VerdictLog::open(
                folder.path(),
                authority.log_signer(SystemTime::now()).unwrap(),
            )
            .unwrap()
        };
        append(&open(), 50).await;
        append(&open(), 1).await;
        let whole = files(folder.path());
        assert_eq!(verify(&whole, &[pin], &[]).unwrap().head.number, 51);
        let (_, path) = segments(folder.path()).unwrap().pop().unwrap();
        for cut in [1, 40, 200] {
            std::fs::write(&path, &whole[0].bytes[..whole[0].bytes.len() - cut]).unwrap();
            append(&open(), 1).await;
            assert_eq!(
                verify(&files(folder.path()), &[pin], &[])
                    .unwrap()
                    .head
                    .number,
                51
            );
        }
        let body = open().read().unwrap().collect().await.unwrap().to_bytes();
        assert_eq!(
            verify(&[LogFile::new("download", body.to_vec())], &[pin], &[])
                .unwrap()
                .head
                .number,
            51
        );
    }

    #[tokio::test]
    async fn records_that_could_not_be_written_are_counted_before_the_next_one() {
        let (keys, parent) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let authority = authority(keys.path());
        let pin: Digest = authority.pin().parse().unwrap();
        let folder = parent.path().join("log");
        let signer = authority.log_signer(SystemTime::now()).unwrap();
        let log = VerdictLog::open(&folder, signer).unwrap();
        log.missed();
        // The disk fails: the count of what is missing is kept until it can be written.
        std::fs::remove_dir_all(&folder).unwrap();
        log.append(Entry::of(Kind::Joined, "lost"))
            .await
            .unwrap_err();
        log.missed();
        std::fs::create_dir(&folder).unwrap();
        append(&log, 2).await;
        let written = files(&folder);
        assert_eq!(verify(&written, &[pin], &[]).unwrap().head.number, 3);
        let text = String::from_utf8(written[0].bytes.clone()).unwrap();
        let kinds = text.lines().filter_map(|line| {
            let (_, kind) = line.split_once(r#""kind":"#)?;
            kind.split_once('}').map(|(kind, _)| kind)
        });
        assert_eq!(
            kinds.collect::<Vec<_>>(),
            [
                r#""missing","count":2"#,
                r#""joined","name":"worker-1""#,
                r#""joined","name":"worker-1""#
            ]
        );
    }

    /// A master whose disk is full ends, and the next one records how many records are missing.
    #[tokio::test]
    async fn the_count_of_missing_records_outlives_the_master() {
        let (keys, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let authority = authority(keys.path());
        let open = || {
            let signer = authority.log_signer(SystemTime::now()).unwrap();
            VerdictLog::open(folder.path(), signer).unwrap()
        };
        let log = open();
        append(&log, 1).await;
        for _ in 0..2 {
            // A file that is open for reading alone fails the next write.
            let mut writer = log.writer.lock().await;
            writer.file = Some(File::open(writer.path(writer.segment)).unwrap());
            drop(writer);
            log.append(Entry::of(Kind::State, "lost"))
                .await
                .unwrap_err();
            log.missed();
            log.note_missing().await;
        }
        drop(log);
        append(&open(), 1).await;
        // The record that counts them is there: the next start counts none.
        append(&open(), 1).await;
        let written = files(folder.path());
        let pin = authority.pin().parse().unwrap();
        let summary = verify(&written, &[pin], &[]).unwrap();
        assert_eq!((summary.head.number, summary.kinds[&Kind::Missing]), (4, 1));
        let text = String::from_utf8(written[0].bytes.clone()).unwrap();
        assert!(text.contains(r#""kind":"missing","count":2"#), "{text}");
        std::fs::write(folder.path().join(COUNT), b"no count \xff").unwrap();
        append(&open(), 1).await;
    }

    /// What the log recorded is found over segments and by the last record of a name.
    #[tokio::test]
    async fn the_last_record_of_each_object_is_found_in_the_log() {
        let (keys, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let authority = authority(keys.path());
        let log = VerdictLog::open(
            folder.path(),
            authority.log_signer(SystemTime::now()).unwrap(),
        )
        .unwrap();
        let policy = |name: &str, digest: &str| {
            let mut entry = Entry::of(Kind::Policy, name);
            digest.clone_into(&mut entry.digest);
            entry.message = r#"no "digest":"sha256:00" of its own"#.to_owned();
            entry
        };
        for entry in [
            policy("a", "sha256:01"),
            policy("b", "sha256:02"),
            policy("a", "sha256:03"),
            policy("b", config_verdicts::GONE),
            policy("c", ""),
        ] {
            log.append(entry).await.unwrap();
            log.writer.lock().await.size = SEGMENT;
        }
        let found = format!("{:?}", log.recorded().await.unwrap().policies);
        assert!(found.contains("sha256:03"), "{found}");
        assert!(
            !found.contains("sha256:01") && !found.contains(r#""b""#),
            "{found}"
        );
        assert!(!found.contains(r#""c""#), "{found}");
    }

    /// A person with a name as long as a certificate or a header allows does not end the log.
    #[tokio::test]
    async fn a_record_of_texts_without_end_is_cut_and_the_log_goes_on() {
        let (keys, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let authority = authority(keys.path());
        let open = || {
            let signer = authority.log_signer(SystemTime::now()).unwrap();
            VerdictLog::open(folder.path(), signer).unwrap()
        };
        for text in ["\"", "\u{1}", "é", "x"] {
            let long = text.repeat(20 << 10);
            let mut entry = Entry::of(Kind::Decision, &long);
            (entry.by, entry.message, entry.uid) = (long.clone(), long.clone(), long.clone());
            (entry.code, entry.ek, entry.image) = (long.clone(), long.clone(), long.clone());
            (entry.serial, entry.digest) = (long.clone(), long);
            open().append(entry).await.unwrap();
        }
        append(&open(), 1).await;
        let pin = authority.pin().parse().unwrap();
        let summary = verify(&files(folder.path()), &[pin], &[]).unwrap();
        assert_eq!(summary.head.number, 5);
    }

    /// What a failed flush left in the segment is not taken for a record later.
    #[tokio::test]
    async fn what_was_not_flushed_is_not_continued() {
        let (keys, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let authority = authority(keys.path());
        let signer = || authority.log_signer(SystemTime::now()).unwrap();
        let log = VerdictLog::open(folder.path(), signer()).unwrap();
        append(&log, 1).await;
        {
            let mut writer = log.writer.lock().await;
            let path = writer.path(writer.segment);
            let flushed = (writer.head, writer.size);
            writer
                .write_all(vec![Entry::of(Kind::Joined, "unflushed")])
                .unwrap();
            // As if the flush had failed: the bytes are in the file, and no caller has its answer.
            // A file that is open for reading alone fails the next write, too.
            (writer.head, writer.size) = flushed;
            writer.file = Some(File::open(path).unwrap());
        }
        log.append(Entry::of(Kind::Joined, "refused"))
            .await
            .unwrap_err();
        append(&log, 1).await;
        let written = files(folder.path());
        let pin = authority.pin().parse().unwrap();
        assert_eq!(verify(&written, &[pin], &[]).unwrap().head.number, 2);
        assert!(!String::from_utf8_lossy(&written[0].bytes).contains("unflushed"));
    }

    /// A log with damage that no crash causes is not continued.
    #[tokio::test]
    async fn a_log_damaged_in_the_middle_is_refused_by_name() {
        let (keys, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let authority = authority(keys.path());
        let signer = || authority.log_signer(SystemTime::now()).unwrap();
        append(&VerdictLog::open(folder.path(), signer()).unwrap(), 3).await;
        let (_, path) = segments(folder.path()).unwrap().pop().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let second = bytes
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n')
            .nth(1)
            .unwrap()
            .0;
        bytes[second - 3] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let error = VerdictLog::open(folder.path(), signer()).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
    }

    #[tokio::test]
    async fn the_oldest_segments_are_deleted_and_the_chain_stays_intact() {
        let (keys, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let authority = authority(keys.path());
        let log = VerdictLog::open(
            folder.path(),
            authority.log_signer(SystemTime::now()).unwrap(),
        )
        .unwrap();
        for _ in 0..KEPT + 3 {
            append(&log, 2).await;
            log.writer.lock().await.size = SEGMENT;
        }
        let all = files(folder.path());
        assert_eq!(all.len(), KEPT);
        let summary = verify(&all, &[authority.pin().parse().unwrap()], &[]).unwrap();
        assert_eq!(
            (summary.first, summary.head.number),
            (7, 2 * (KEPT as u64 + 3))
        );
    }
}
