//! Look-ups of names that pods choose: hosts of probes and hooks, and registries of images.
//!
//! A name is looked up by the C library, on a thread that goes on when nobody waits any more, for
//! as long as name servers take. A pod chooses the name, and may have its own server answer slowly.
//! So look-ups at once have a limit, and none takes one of the runtime's threads for what blocks,
//! on which the agent reads files: each has a thread of its own.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use tokio::sync::{Semaphore, oneshot};

/// Look-ups with places of their own, so that those of others don't take them. A place is that of a
/// look-up which nobody waits for any more, too.
#[derive(Debug)]
pub struct Lookups(Semaphore);

/// For probes and hooks.
pub static OF_HANDLERS: Lookups = Lookups::new(16);
/// For images: pods that name registries which are never found leave places to others. A pod has
/// one or two, as it pulls one image after another and later again.
pub static OF_IMAGES: Lookups = Lookups::new(32);

impl Lookups {
    /// As many at once.
    const fn new(most: usize) -> Self {
        Self(Semaphore::const_new(most))
    }

    /// The addresses of a host, which is an address or a name.
    ///
    /// Cancel-safe: a look-up that nobody waits for keeps its place until it ends.
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

    /// Waits for a place and for the answer. The place is free when the look-up ends.
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
            // Nobody may wait for it any more.
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
                // Without a thread of its own it would begin only when that one has ended.
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
