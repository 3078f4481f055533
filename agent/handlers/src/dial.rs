//! Connections to a host that a pod names.
//!
//! A name is looked up by the C library, on a thread that goes on when nobody waits any more, for
//! as long as name servers take. A pod chooses the name, and may have its own server answer slowly;
//! so lookups at once have a limit, or probes of one pod would come to hold all threads on which
//! the agent reads files.

use std::io;
use std::net::{IpAddr, SocketAddr};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::Semaphore;

/// Lookups at once, also those that nobody waits for any more; of the 512 threads for what blocks.
const MAX_LOOKUPS: usize = 16;

static LOOKUPS: Lookups = Lookups(Semaphore::const_new(MAX_LOOKUPS));

struct Lookups(Semaphore);

/// A connection with the first of a host's addresses that answers.
///
/// # Errors
/// The host has no address, or none of them answers.
pub(crate) async fn connect(place: &str, port: u16) -> io::Result<TcpStream> {
    if let Ok(address) = place.parse::<IpAddr>() {
        return TcpStream::connect((address, port)).await;
    }
    let place = place.to_owned();
    let lookup = async move { Ok(lookup_host((place, port)).await?.collect()) };
    let found = LOOKUPS.find(lookup).await?;
    TcpStream::connect(&*found).await
}

impl Lookups {
    /// Waits for a turn and for the answer. The turn ends with the lookup, also if the caller no
    /// longer waits.
    async fn find(
        &'static self,
        lookup: impl Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        let turn = self.0.acquire().await.map_err(io::Error::other)?;
        let looking = tokio::spawn(async move {
            let found = lookup.await;
            drop(turn);
            found
        });
        looking.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use std::time::Duration;
    use tokio::time::timeout;

    static TWO: Lookups = Lookups(Semaphore::const_new(2));

    #[tokio::test(start_paused = true)]
    async fn lookups_that_nobody_waits_for_still_count() {
        let patience = Duration::from_secs(1);
        assert!(TWO.find(ready(Ok(Vec::new()))).await.is_ok());
        for _ in 0..2 {
            assert!(timeout(patience, TWO.find(pending())).await.is_err());
        }
        let third = timeout(patience, TWO.find(ready(Ok(Vec::new())))).await;
        assert!(third.is_err(), "both turns are taken");
    }

    #[tokio::test]
    async fn a_host_is_an_address_or_a_name() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "localhost"] {
            assert!(connect(host, port).await.is_ok(), "{host}");
        }
    }
}
