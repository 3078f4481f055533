//! The body of a list: assembled from the stored bytes piece by piece, as the client reads it.
//!
//! A list of megabytes assembled at once costs more in memory allocation than in copying, and is
//! held once per client. The size is known beforehand, so the answer has a length and can be
//! compressed like any other.

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use master_client::{Body, BodyError};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Approximate bytes of a piece: four TLS records.
pub const PIECE: usize = 64 << 10;
/// What follows the last item.
const END: &[u8] = b"]}\n";

/// An item of a list: its stored bytes, which are read when the piece that holds them is assembled.
pub trait Item: Send + Unpin + 'static {
    /// Its revision.
    fn revision(&self) -> u64;
    /// How many bytes it has.
    fn size(&self) -> usize;
    /// Writes its bytes.
    fn put(&self, piece: &mut Vec<u8>);
}

/// The body.
#[derive(Debug)]
pub struct Pieces<T> {
    /// What precedes the items; sent with the first piece.
    start: Bytes,
    /// What precedes each item's revision, and what follows the item.
    head: Bytes,
    tail: &'static [u8],
    items: std::vec::IntoIter<T>,
    first: bool,
    left: u64,
}

/// Digits of a number.
fn digits(number: u64) -> u64 {
    number.checked_ilog10().map_or(1, |log| u64::from(log) + 1)
}

/// Writes a number in decimal. `write!` would cost half of the time that a whole item takes.
fn put_number(mut number: u64, piece: &mut Vec<u8>) {
    let from = piece.len();
    loop {
        let [digit, ..] = (number % 10).to_le_bytes();
        piece.push(b'0' + digit);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    piece[from..].reverse();
}

impl<T: Item> Pieces<T> {
    /// A list that begins with `start`, with `items` that each begin with `head` and end with
    /// `tail`.
    pub fn new(start: Bytes, head: Bytes, tail: &'static [u8], items: Vec<T>) -> Self {
        // Each item: head, revision, `",`, stored bytes, tail; and a comma before all but the
        // first.
        let own = (head.len() + tail.len()) as u64 + 2;
        let all: u64 = items
            .iter()
            .map(|item| own + digits(item.revision()) + item.size() as u64)
            .sum();
        let commas = (items.len() as u64).saturating_sub(1);
        let left = start.len() as u64 + all + commas + END.len() as u64;
        Self {
            start,
            head,
            tail,
            items: items.into_iter(),
            first: true,
            left,
        }
    }

    /// As a body.
    pub fn body(self) -> Body {
        self.boxed_unsync()
    }

    fn piece(&mut self) -> Bytes {
        let mut piece = Vec::with_capacity(
            usize::try_from(self.left)
                .unwrap_or(PIECE)
                .min(PIECE + (8 << 10)),
        );
        piece.extend_from_slice(&std::mem::take(&mut self.start));
        while piece.len() < PIECE {
            let Some(item) = self.items.next() else {
                piece.extend_from_slice(END);
                break;
            };
            if !std::mem::take(&mut self.first) {
                piece.push(b',');
            }
            piece.extend_from_slice(&self.head);
            put_number(item.revision(), &mut piece);
            piece.extend_from_slice(b"\",");
            item.put(&mut piece);
            piece.extend_from_slice(self.tail);
        }
        self.left = self.left.saturating_sub(piece.len() as u64);
        piece.into()
    }
}

impl<T: Item> http_body::Body for Pieces<T> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready((self.left > 0).then(|| Ok(Frame::data(self.piece()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Body as _;

    impl Item for (u64, Bytes) {
        fn revision(&self) -> u64 {
            self.0
        }

        fn size(&self) -> usize {
            self.1.len()
        }

        fn put(&self, piece: &mut Vec<u8>) {
            piece.extend_from_slice(&self.1);
        }
    }

    async fn whole(count: u64, size: usize, tail: &'static [u8]) -> (u64, Bytes) {
        let kept = Bytes::from(format!("\"pad\":\"{}\"}}", "x".repeat(size)));
        let items = (0..count)
            .map(|number| (number * number * 97, kept.clone()))
            .collect();
        let start = Bytes::from_static(br#"{"items":["#);
        let head = Bytes::from_static(br#"{"metadata":{"resourceVersion":""#);
        let pieces = Pieces::new(start, head, tail, items);
        let said = pieces.size_hint().exact().unwrap();
        (said, pieces.collect().await.unwrap().to_bytes())
    }

    #[tokio::test]
    async fn lists_of_any_size_are_complete_with_the_declared_length() {
        for (count, size) in [
            (0, 0),
            (1, 0),
            (2, 10),
            (70, 1000),
            (1000, 1500),
            (3, 200_000),
        ] {
            let (said, bytes) = whole(count, size, b"}").await;
            assert_eq!(said, bytes.len() as u64, "{count} items of {size}");
            let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            let items = value["items"].as_array().unwrap();
            assert_eq!(items.len() as u64, count);
            for (number, item) in (0..count).zip(items) {
                assert_eq!(
                    item["metadata"]["resourceVersion"],
                    (number * number * 97).to_string()
                );
            }
        }
    }
}
