//! Connections to a host that a pod names.

use agent_runtime::OF_HANDLERS;
use std::io;
use tokio::net::TcpStream;

/// A connection with the first of a host's addresses that answers.
///
/// # Errors
/// The host has no address, or none of them answers.
pub(crate) async fn connect(place: &str, port: u16) -> io::Result<TcpStream> {
    TcpStream::connect(&*OF_HANDLERS.find(place, port).await?).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[test]
    fn a_host_is_an_address_or_a_name_and_takes_no_thread_from_what_blocks() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (release, hold) = std::sync::mpsc::channel::<()>();
        runtime.block_on(async {
            let busy = tokio::task::spawn_blocking(move || hold.recv().is_err());
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            for host in ["127.0.0.1", "localhost"] {
                let connected = timeout(Duration::from_secs(60), connect(host, port)).await;
                assert!(connected.is_ok_and(|connected| connected.is_ok()), "{host}");
            }
            drop(release);
            assert!(busy.await.unwrap());
        });
    }
}
