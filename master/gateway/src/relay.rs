//! Relays bytes between a client and a node, once both have agreed on a tunnel.

use std::io;
use std::time::Duration;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader,
};

/// Time for a client to close its side, so that the last bytes reach it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Relays bytes in both directions until one side ends. After the node's end, the client gets
/// ten seconds to read the last bytes and close; after the client's end, the node's bytes are
/// not wanted any more. Holds at most `buffer` bytes of each direction.
///
/// # Errors
/// A side can't be read or written.
pub async fn relay<C, N>(client: C, node: N, buffer: usize) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite,
    N: AsyncRead + AsyncWrite,
{
    let (from_client, mut to_client) = tokio::io::split(client);
    let (from_node, mut to_node) = tokio::io::split(node);
    let mut from_client = BufReader::with_capacity(buffer, from_client);
    let mut from_node = BufReader::with_capacity(buffer, from_node);
    // Cancel-safe: the direction that goes on is not needed any more, or only to be drained.
    tokio::select! {
        sent = send(&mut from_client, &mut to_node) => return sent,
        answered = tokio::io::copy_buf(&mut from_node, &mut to_client) => answered?,
    };
    to_client.shutdown().await?;
    let mut unread = tokio::io::sink();
    let rest = tokio::io::copy_buf(&mut from_client, &mut unread);
    // A client that does not close in time is disconnected; that is no error.
    let rest = tokio::time::timeout(CLOSE_TIMEOUT, rest).await;
    rest.map_or(Ok(()), |copied| copied.map(drop))
}

/// Sends the client's bytes to the node until the client ends. If the node takes no more bytes, it
/// may still send its last ones: what the client sends from then on is read and dropped.
async fn send(
    from_client: &mut (impl AsyncBufRead + Unpin),
    to_node: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut taken = true;
    loop {
        let bytes = from_client.fill_buf().await?;
        let length = bytes.len();
        if length == 0 {
            return Ok(());
        }
        taken = taken && to_node.write_all(bytes).await.is_ok() && to_node.flush().await.is_ok();
        from_client.consume(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn the_last_bytes_of_a_node_reach_a_client_that_writes_on() {
        // Which direction is looked at first is decided by chance.
        for _ in 0..64 {
            last_bytes().await;
        }
    }

    async fn last_bytes() {
        let (mut client, near) = tokio::io::duplex(64);
        let (far, mut node) = tokio::io::duplex(64);
        let passing = tokio::spawn(relay(near, far, 16));
        client.write_all(b"ping").await.unwrap();
        let mut came = [0; 4];
        node.read_exact(&mut came).await.unwrap();
        assert_eq!(&came, b"ping");
        node.write_all(b"the last words").await.unwrap();
        drop(node);
        client.write_all(b"not read any more").await.unwrap();
        let mut last = String::new();
        client.read_to_string(&mut last).await.unwrap();
        assert_eq!(last, "the last words");
        drop(client);
        passing.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_client_that_ends_ends_the_node() {
        let (client, near) = tokio::io::duplex(64);
        let (far, mut node) = tokio::io::duplex(64);
        let passing = tokio::spawn(relay(near, far, 16));
        drop(client);
        assert_eq!(node.read(&mut [0; 8]).await.unwrap(), 0);
        passing.await.unwrap().unwrap();
    }
}
