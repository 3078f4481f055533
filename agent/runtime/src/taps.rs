//! Sends a container's output to attached clients, besides its log.
//!
//! The log comes first: output is in the log before a client gets it. A client that does not read
//! delays the container for a short time, then it is cut off.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, timeout_at};

/// Pieces that wait for a client; each has 8 KiB at most, except the last.
const PIECES: usize = 32;
/// How long a client may read nothing while its pieces wait.
const PATIENCE: Duration = Duration::from_secs(5);

/// An output of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output; a terminal's only one.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Some bytes of an output.
type Piece = (Stream, Arc<[u8]>);

/// A container's output from the moment of the call on.
#[derive(Debug)]
pub struct Tap {
    pieces: Receiver<Piece>,
    cut: Arc<AtomicBool>,
}

impl Tap {
    /// The next bytes, of one output; `None` at the end.
    ///
    /// Cancel-safe: if it is dropped, nothing was taken.
    pub async fn next(&mut self) -> Option<Piece> {
        self.pieces.recv().await
    }

    /// Whether the end came because the client read nothing for too long, and not because the
    /// container has ended.
    pub fn was_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }
}

#[derive(Debug, Clone)]
struct Client {
    pieces: Sender<Piece>,
    cut: Arc<AtomicBool>,
}

/// The clients of one container.
#[derive(Debug, Default)]
pub(crate) struct Taps(Mutex<Option<Vec<Client>>>);

impl Taps {
    /// No clients yet.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Vec::new()))))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Option<Vec<Client>>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One more client; `None` once the output has ended.
    pub(crate) fn add(&self) -> Option<Tap> {
        self.with(|clients| {
            let clients = clients.as_mut()?;
            let (sender, pieces) = channel(PIECES);
            let cut = Arc::new(AtomicBool::new(false));
            clients.push(Client {
                pieces: sender,
                cut: cut.clone(),
            });
            Some(Tap { pieces, cut })
        })
    }

    /// Sends bytes to all clients, and cuts off those that take none in time.
    pub(crate) async fn send(&self, stream: Stream, bytes: &[u8]) {
        let clients = self.with(|clients| clients.clone().unwrap_or_default());
        if clients.is_empty() || bytes.is_empty() {
            return;
        }
        let piece: Arc<[u8]> = bytes.into();
        let until = Instant::now() + PATIENCE;
        for client in clients {
            let sending = client.pieces.send((stream, piece.clone()));
            let gone = match timeout_at(until, sending).await {
                Ok(sent) => sent.is_err(),
                Err(_elapsed) => {
                    client.cut.store(true, Ordering::Release);
                    true
                }
            };
            if gone {
                let others = |other: &Client| !other.pieces.same_channel(&client.pieces);
                self.with(|clients| clients.iter_mut().for_each(|all| all.retain(others)));
            }
        }
    }

    /// Ends the output: clients read what they were sent, and then the end.
    pub(crate) fn close(&self) {
        self.with(|clients| *clients = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_clients_have_all_bytes_and_then_the_end() {
        let taps = Taps::new();
        taps.send(Stream::Stdout, b"before anybody came").await;
        let mut both = [taps.add().unwrap(), taps.add().unwrap()];
        taps.send(Stream::Stdout, b"out").await;
        taps.send(Stream::Stderr, b"err").await;
        taps.close();
        assert!(taps.add().is_none(), "it has ended");
        for tap in &mut both {
            assert_eq!(tap.next().await, Some((Stream::Stdout, b"out"[..].into())));
            assert_eq!(tap.next().await, Some((Stream::Stderr, b"err"[..].into())));
            assert_eq!(tap.next().await, None);
            assert!(!tap.was_cut());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_cut_and_others_go_on() {
        let taps = Taps::new();
        let (mut stuck, mut reads) = (taps.add().unwrap(), taps.add().unwrap());
        let reading = tokio::spawn(async move {
            let mut count = 0;
            while reads.next().await.is_some() {
                count += 1;
            }
            count
        });
        let begun = Instant::now();
        for _ in 0..1000 {
            taps.send(Stream::Stdout, b"x").await;
        }
        assert!(begun.elapsed() <= PATIENCE, "it holds the others up once");
        taps.close();
        assert_eq!(reading.await.unwrap(), 1000);
        let mut left = 0;
        while stuck.next().await.is_some() {
            left += 1;
        }
        assert_eq!((left, stuck.was_cut()), (PIECES, true));
    }

    #[tokio::test]
    async fn a_client_that_disconnects_is_forgotten() {
        let taps = Taps::new();
        drop(taps.add());
        taps.send(Stream::Stdout, b"x").await;
        assert!(taps.with(|clients| clients.as_ref().is_some_and(Vec::is_empty)));
    }
}
