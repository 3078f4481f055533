//! Look-ups of names that pods choose: hosts of probes and hooks, and registries of images.
//!
//! The C library looks up a name, in a call that cannot be cancelled and takes as long as the name
//! servers do. A pod chooses the name, and may have its own server answer slowly. So concurrent
//! look-ups are limited, and each has a thread of its own: none takes one of the runtime's blocking
//! threads, on which the agent reads files.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use tokio::sync::{Semaphore, oneshot};

/// A limit of concurrent look-ups for one purpose. A look-up counts until its thread ends, also if
/// its caller has gone.
#[derive(Debug)]
pub struct Lookups(Semaphore);

/// For probes and hooks.
pub static OF_HANDLERS: Lookups = Lookups::new(16);
/// For images. A pod has one or two look-ups at a time, as it pulls one image after another, so a
/// few pods with registries that are never found leave room for others.
pub static OF_IMAGES: Lookups = Lookups::new(32);

impl Lookups {
    /// A limit of `most` concurrent look-ups.
    const fn new(most: usize) -> Self {
        Self(Semaphore::const_new(most))
    }

    /// The addresses of a host, which is an address or a name.
    ///
    /// Cancel-safe: a look-up whose caller is gone counts for the limit until it ends.
    ///
    /// # Errors
    /// The name has no address, or there is no thread to look it up.
    pub async fn find(&'static self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![(address, port).into()]);
        }
        let place = (host.to_owned(), port);
        self.run(move || Ok(place.to_socket_addrs()?.collect()))
            .await
    }

    /// Waits for a free slot of the limit, and for the answer. The slot is free when the thread
    /// ends.
    async fn run<T: Send + 'static>(
        &'static self,
        look: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let place = self.0.acquire().await.map_err(io::Error::other)?;
        let (answer, answered) = oneshot::channel();
        let thread = std::thread::Builder::new().name("lookup".to_owned());
        thread.spawn(move || {
            let found = look();
            drop(place);
            // The caller may be gone.
            drop(answer.send(found));
        })?;
        answered.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;
    use tokio::time::timeout;

    static TWO: Lookups = Lookups::new(2);

    #[tokio::test(start_paused = true)]
    async fn lookups_that_nobody_waits_for_still_count() {
        let patience = Duration::from_secs(1);
        TWO.run(|| Ok(())).await.unwrap();
        let (release, hold) = mpsc::channel::<()>();
        let (ended, end) = mpsc::channel();
        let hold = std::sync::Arc::new(std::sync::Mutex::new(hold));
        for _ in 0..2 {
            let (hold, ended) = (hold.clone(), ended.clone());
            let hangs = TWO.run(move || {
                ended.send(hold.lock().unwrap().recv().is_err()).unwrap();
                Ok(())
            });
            assert!(timeout(patience, hangs).await.is_err());
        }
        let third = timeout(patience, TWO.run(|| Ok(()))).await;
        assert!(third.is_err(), "both places are taken");
        drop(release);
        for _ in 0..2 {
            assert!(end.recv().unwrap());
        }
        TWO.run(|| Ok(())).await.unwrap();
    }

    #[test]
    fn a_lookup_takes_no_thread_from_what_blocks() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (release, hold) = mpsc::channel::<()>();
        runtime.block_on(async {
            let busy = tokio::task::spawn_blocking(move || hold.recv().is_err());
            for sort in [&OF_HANDLERS, &OF_IMAGES] {
                // Without a thread of its own it would start only when that one has ended.
                let found = timeout(Duration::from_secs(60), sort.find("localhost", 1));
                assert!(
                    !found
                        .await
                        .expect("it waits for nothing")
                        .unwrap()
                        .is_empty()
                );
                assert_eq!(
                    sort.find("::1", 1).await.unwrap(),
                    ["[::1]:1".parse().unwrap()]
                );
            }
            drop(release);
            assert!(busy.await.unwrap());
        });
    }
}
