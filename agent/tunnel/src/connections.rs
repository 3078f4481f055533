//! The connections of one port-forward, all served by one task.
//!
//! A program's output has no buffer here: it stays in the kernel until the client takes it. A
//! client's input that a program has not read yet is held here, within one bound for all
//! connections ([`Connections::held`]).

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite as _;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

/// Bytes taken from a program at once.
const CHUNK: usize = 32 * 1024;

/// A connection that is being made; the error is for the client.
pub(crate) type Dialing = Pin<Box<dyn Future<Output = Result<TcpStream, String>> + Send>>;

enum State {
    Dialing(Dialing),
    Open(TcpStream),
}

struct Connection {
    number: u32,
    state: State,
    /// What the client sent and the program has not taken.
    queue: Vec<u8>,
    /// The client sends no more.
    input_ended: bool,
    /// The program has been informed of it.
    shut: bool,
    /// The program writes no more.
    output_ended: bool,
    _permit: OwnedSemaphorePermit,
}

/// What happened to a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Its program wrote what is in [`Connections::piece`].
    Output(u32),
    /// Its program writes no more.
    Ended(u32),
    /// It broke, and is gone.
    Broken(u32),
    /// It can't be made, and is gone.
    Refused(u32, String),
    /// It was made, its program took bytes, or it was shut for input: nothing to report.
    Progress,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Connections {
    all: Vec<Connection>,
    /// The index of the connection that is served next (round robin), so that a busy one does not
    /// starve the others.
    next: usize,
    pub(crate) piece: Vec<u8>,
}

impl Connections {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Bytes that programs have not taken yet.
    pub(crate) fn held(&self) -> usize {
        self.all.iter().map(|one| one.queue.len()).sum()
    }

    /// One more, which gives its permit back when it is over.
    pub(crate) fn add(&mut self, number: u32, dialing: Dialing, permit: OwnedSemaphorePermit) {
        self.all.push(Connection {
            number,
            state: State::Dialing(dialing),
            queue: Vec::new(),
            input_ended: false,
            shut: false,
            output_ended: false,
            _permit: permit,
        });
    }

    /// Bytes of the client; they are dropped where the connection is gone.
    pub(crate) fn input(&mut self, number: u32, bytes: &[u8], ends: bool) {
        if let Some(one) = self.all.iter_mut().find(|one| one.number == number) {
            one.queue.extend_from_slice(bytes);
            one.input_ended |= ends;
        }
    }

    /// The client does not read from it any more.
    pub(crate) fn remove(&mut self, number: u32) {
        self.all.retain(|one| one.number != number);
    }

    /// The next thing that happens. What programs write is read only with `room`.
    ///
    /// Cancel-safe: nothing has happened where it is dropped.
    pub(crate) async fn turn(&mut self, room: bool) -> Turn {
        poll_fn(|context| self.poll(context, room)).await
    }

    fn poll(&mut self, context: &mut Context<'_>, room: bool) -> Poll<Turn> {
        self.piece.clear();
        let count = self.all.len();
        for step in 0..count {
            let at = (self.next + step) % count;
            let one = &mut self.all[at];
            if let Poll::Ready(turn) = one.poll(context, room, &mut self.piece) {
                let over = one.output_ended && one.shut;
                if over || matches!(turn, Turn::Broken(_) | Turn::Refused(..)) {
                    self.all.remove(at);
                    self.next = at;
                } else {
                    self.next = at + 1;
                }
                return Poll::Ready(turn);
            }
        }
        Poll::Pending
    }
}

impl Connection {
    fn poll(&mut self, context: &mut Context<'_>, room: bool, piece: &mut Vec<u8>) -> Poll<Turn> {
        let number = self.number;
        let stream = match &mut self.state {
            State::Dialing(dialing) => {
                return match ready!(dialing.as_mut().poll(context)) {
                    Ok(stream) => {
                        self.state = State::Open(stream);
                        Poll::Ready(Turn::Progress)
                    }
                    Err(why) => Poll::Ready(Turn::Refused(number, why)),
                };
            }
            State::Open(stream) => stream,
        };
        if !self.queue.is_empty() {
            if let Poll::Ready(written) = write(stream, context, &self.queue) {
                return Poll::Ready(match written {
                    Ok(count) => {
                        self.queue.drain(..count);
                        Turn::Progress
                    }
                    Err(_broken) => Turn::Broken(number),
                });
            }
        } else if self.input_ended && !self.shut {
            let shut = ready!(Pin::new(&mut *stream).poll_shutdown(context));
            self.shut = true;
            // Where the program has ended the connection as well, nothing is lost by that.
            let broken = shut.is_err() && !self.output_ended;
            return Poll::Ready(if broken {
                Turn::Broken(number)
            } else {
                Turn::Progress
            });
        }
        if room && !self.output_ended {
            return Poll::Ready(match ready!(read(stream, context, piece)) {
                Ok(0) => {
                    self.output_ended = true;
                    Turn::Ended(number)
                }
                Ok(_) => Turn::Output(number),
                Err(_broken) => Turn::Broken(number),
            });
        }
        Poll::Pending
    }
}

/// Reads some bytes behind those that `piece` has.
fn read(
    stream: &TcpStream,
    context: &mut Context<'_>,
    piece: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_read_ready(context))?;
        piece.reserve(CHUNK);
        match stream.try_read_buf(piece) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
    }
}

fn write(stream: &TcpStream, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_write_ready(context))?;
        match stream.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::sync::Semaphore;

    /// A connection, and its program's end of it.
    async fn made(connections: &mut Connections, number: u32) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let dialing = async move {
            TcpStream::connect(at)
                .await
                .map_err(|error| error.to_string())
        };
        connections.add(number, Box::pin(dialing), permit);
        assert_eq!(connections.turn(true).await, Turn::Progress);
        listener.accept().await.unwrap().0
    }

    #[tokio::test]
    async fn each_half_of_a_connection_ends_by_itself_and_both_free_its_place() {
        let mut connections = Connections::default();
        let mut program = made(&mut connections, 3).await;
        connections.input(3, b"ask", true);
        while !connections.all[0].shut {
            assert_eq!(connections.turn(true).await, Turn::Progress);
        }
        let mut asked = String::new();
        program.read_to_string(&mut asked).await.unwrap();
        assert_eq!(asked, "ask");
        program.write_all(b"answer").await.unwrap();
        assert_eq!(connections.turn(true).await, Turn::Output(3));
        assert_eq!(connections.piece, b"answer");
        drop(program);
        assert_eq!(connections.turn(true).await, Turn::Ended(3));
        assert_eq!(connections.count(), 0);

        let mut program = made(&mut connections, 5).await;
        program.shutdown().await.unwrap();
        assert_eq!(connections.turn(true).await, Turn::Ended(5));
        connections.input(5, b"more", true);
        while connections.count() > 0 {
            assert_eq!(connections.turn(true).await, Turn::Progress);
        }
        let mut more = String::new();
        program.read_to_string(&mut more).await.unwrap();
        assert_eq!(more, "more", "a program that has ended its half reads on");
    }

    #[tokio::test]
    async fn a_busy_connection_does_not_keep_another_from_its_turn() {
        let mut connections = Connections::default();
        let mut busy = made(&mut connections, 1).await;
        let mut other = made(&mut connections, 3).await;
        busy.write_all(&vec![0; 200_000]).await.unwrap();
        other.write_all(b"x").await.unwrap();
        // The other's byte is there already, and the busy one has more than one piece.
        other.flush().await.unwrap();
        let mut turns = Vec::new();
        while !turns.contains(&Turn::Output(3)) {
            turns.push(connections.turn(true).await);
        }
        assert!(turns.len() <= 5, "{turns:?}");
    }

    #[tokio::test]
    async fn without_room_nothing_is_read_and_what_a_program_does_not_take_is_counted() {
        let mut connections = Connections::default();
        let mut program = made(&mut connections, 1).await;
        program.write_all(b"waits").await.unwrap();
        connections.input(1, b"ab", false);
        assert_eq!(connections.held(), 2);
        assert_eq!(connections.turn(false).await, Turn::Progress);
        assert_eq!((connections.held(), connections.piece.len()), (0, 0));
        let waits = poll_fn(|context| Poll::Ready(connections.poll(context, false).is_pending()));
        assert!(waits.await);
        assert_eq!(connections.turn(true).await, Turn::Output(1));
        connections.remove(1);
        assert_eq!(program.read(&mut [0; 8]).await.unwrap(), 2);
        assert_eq!(
            program.read(&mut [0; 8]).await.unwrap(),
            0,
            "a connection that is dropped is closed"
        );
    }
}
