//! A client that talks to a session, for tests.

use super::session::{Streams, take};
use super::{Headers, Opener, data};

/// A client, the session that serves it, and all that the session answered.
#[derive(Default)]
pub(crate) struct Talk<S> {
    pub(crate) session: S,
    opener: Opener,
    pub(crate) answered: Vec<u8>,
}

impl<S: Streams> Talk<S> {
    /// Sends bytes and hands each event of the session to `each`.
    pub(crate) fn each<'a>(&mut self, bytes: &'a [u8], mut each: impl FnMut(S::Event<'a>)) {
        let mut rest = bytes;
        while let (used, Some(event)) = take(&mut self.session, rest, &mut self.answered).unwrap() {
            each(event);
            rest = &rest[used..];
        }
    }

    /// Sends bytes and returns the session's events as text.
    pub(crate) fn say(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut all = Vec::new();
        self.each(bytes, |event| all.push(format!("{event:?}")));
        all
    }

    pub(crate) fn open(&mut self, stream: u32, headers: &Headers) -> Vec<String> {
        let mut bytes = Vec::new();
        self.opener.open(stream, headers, &mut bytes);
        self.say(&bytes)
    }

    pub(crate) fn send(&mut self, stream: u32, bytes: &[u8], ends: bool) -> Vec<String> {
        let mut frame = Vec::new();
        data(stream, bytes, ends, &mut frame);
        self.say(&frame)
    }
}
