//! Asks the endpoints one after another, trusts only the document's signature, and asks again
//! before the document expires.

use crate::fetch::{FetchError, fetch};
use crate::memory::{Memory, MemoryError};
use bytes::Bytes;
use config_discovery::{Document, DocumentFault, Expected, Trust, VerifiedDocument, check};
use config_model::discovery::{Discovery, DiscoveryTrust, DiscoveryUri};
use config_model::format::Pin;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// First wait after a round in which no endpoint gave a good document.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait between rounds.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Shortest time between two rounds that start because no master is reachable.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// Longest time until the document is fetched again, however long it is valid.
const REFRESH: Duration = Duration::from_secs(24 * 3600);
/// Most endpoints that are asked in one round.
const MAX_URIS: usize = 16;

/// Why an endpoint gave no document that can be used.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It served no document.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The document is refused.
    #[error(transparent)]
    Refused(#[from] DocumentFault),
    /// The document cannot be saved, so it is not used.
    #[error("the document cannot be saved")]
    Memory(#[from] MemoryError),
}

impl Failure {
    /// The code, if a document was refused.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::Refused(fault) | Self::Fetch(FetchError::TooLarge(fault)) => Some(fault.code()),
            Self::Fetch(
                FetchError::Connect(_)
                | FetchError::Exchange(_)
                | FetchError::Silent
                | FetchError::Status(_),
            )
            | Self::Memory(_) => None,
        }
    }

    /// What a person can do about it.
    pub fn cure(&self) -> &'static str {
        match self {
            Self::Refused(fault) | Self::Fetch(FetchError::TooLarge(fault)) => fault.cure(),
            Self::Fetch(FetchError::Status(_)) => {
                "check the URI, and whether the master has published (`pratique discovery show`)"
            }
            Self::Fetch(FetchError::Connect(_) | FetchError::Exchange(_) | FetchError::Silent) => {
                "check the URI, this machine's network, and whether the endpoint runs"
            }
            Self::Memory(_) => "check the state partition",
        }
    }
}

/// Progress, for the console.
#[derive(Debug)]
pub enum Progress<'a> {
    /// An endpoint gave nothing that can be used.
    Failed {
        /// The endpoint.
        uri: &'a DiscoveryUri,
        /// The cause.
        failure: &'a Failure,
    },
    /// No endpoint gave a good document.
    Again {
        /// When the next round comes.
        wait: Duration,
    },
    /// A key was seen for the first time and is trusted from now on, insecurely.
    FirstUse {
        /// The key.
        key: Pin,
    },
    /// The memory file cannot be read, so discovery starts with an empty memory.
    Forgotten {
        /// The cause.
        error: &'a MemoryError,
    },
    /// A discovery document was verified.
    Found {
        /// Its content.
        document: &'a Document,
        /// Whether it is the saved one, because no endpoint has a good one.
        remembered: bool,
    },
}

/// Callback for progress; called from any task.
pub type ProgressCallback = Arc<dyn Fn(&Progress<'_>) + Send + Sync>;

/// Finds the master.
pub struct Finder {
    terms: Discovery,
    memory: Memory,
    report: ProgressCallback,
}

impl std::fmt::Debug for Finder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Finder")
            .field("terms", &self.terms)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl Finder {
    /// A finder that saves what it accepts in the file `memory`.
    ///
    /// # Errors
    /// [`MemoryError`] where the memory cannot be read under trust on first use: only it knows the
    /// key. With pins the finder starts with an empty memory, and reports that.
    pub fn new(
        terms: Discovery,
        memory: &Path,
        report: ProgressCallback,
    ) -> Result<Self, MemoryError> {
        let memory = match (Memory::open(memory), &terms.trust) {
            (Ok(found), _) => found,
            (Err(error), DiscoveryTrust::FirstUse) => return Err(error),
            (Err(error), DiscoveryTrust::Pins(_)) => {
                report(&Progress::Forgotten { error: &error });
                Memory::empty(memory)
            }
        };
        Ok(Self {
            terms,
            memory,
            report,
        })
    }

    /// Asks until there is a good document; while no endpoint has one, the saved one is used as
    /// long as it is valid.
    pub async fn find(&mut self) -> Document {
        let mut wait = FIRST;
        loop {
            if let Some(document) = self.round(false).await {
                return document;
            }
            if let Some(document) = self.remembered() {
                (self.report)(&Progress::Found {
                    document: &document,
                    remembered: true,
                });
                return document;
            }
            (self.report)(&Progress::Again { wait });
            sleep(wait).await;
            wait = (wait * 2).min(MAX_WAIT);
        }
    }

    /// Asks again when half of the document's validity is over, and when no master is reachable;
    /// each good document goes to `found`. Never ends.
    pub async fn follow(
        mut self,
        mut current: Document,
        doubt: Arc<Notify>,
        found: impl Fn(&Document),
    ) {
        let mut failed = None;
        loop {
            let pause = failed.unwrap_or_else(|| until_refresh(&current, now()));
            // When no master is reachable every endpoint is asked, and the newest document counts:
            // the first endpoint may withhold it.
            let doubted = timeout(pause, doubt.notified()).await.is_ok();
            failed = match self.round(doubted).await {
                Some(document) => {
                    found(&document);
                    current = document;
                    None
                }
                None => Some((failed.unwrap_or(FIRST) * 2).min(MAX_WAIT)),
            };
            sleep(MIN_INTERVAL).await;
        }
    }

    /// Asks the endpoints in turn: until one gives a good document, or all of them for the newest.
    async fn round(&mut self, all: bool) -> Option<Document> {
        let mut best: Option<Document> = None;
        for uri in self.terms.uris.clone().iter().take(MAX_URIS) {
            let outcome = match fetch(uri).await {
                Ok(signed) => self.accept(uri, &signed),
                Err(error) => Err(error.into()),
            };
            match outcome {
                Ok(document) => {
                    if best
                        .as_ref()
                        .is_none_or(|known| known.generation < document.generation)
                    {
                        best = Some(document);
                    }
                    if !all {
                        break;
                    }
                }
                Err(failure) => (self.report)(&Progress::Failed {
                    uri,
                    failure: &failure,
                }),
            }
        }
        if let Some(document) = &best {
            (self.report)(&Progress::Found {
                document,
                remembered: false,
            });
        }
        best
    }

    /// Verifies a document, and saves it before it is used.
    fn accept(&mut self, uri: &DiscoveryUri, signed: &Bytes) -> Result<Document, Failure> {
        let first = self.first_use();
        let verified = self.expecting(uri, |expected| check(signed, expected))?;
        self.memory.keep(uri, signed, &verified)?;
        if first {
            (self.report)(&Progress::FirstUse {
                key: verified.key(),
            });
        }
        Ok(verified.document().clone())
    }

    fn remembered(&self) -> Option<Document> {
        let last = |uri| self.expecting(uri, |expected| self.memory.last(uri, expected));
        self.terms
            .uris
            .iter()
            .find_map(last)
            .map(|verified: VerifiedDocument| verified.document().clone())
    }

    /// Whether any key would be trusted now.
    fn first_use(&self) -> bool {
        self.terms.trust == DiscoveryTrust::FirstUse && self.memory.key().is_none()
    }

    fn expecting<T>(&self, uri: &DiscoveryUri, check: impl FnOnce(&Expected<'_>) -> T) -> T {
        let known: Vec<Pin> = self.memory.key().into_iter().collect();
        let trust = match &self.terms.trust {
            DiscoveryTrust::Pins(pins) => Trust::Pins(pins),
            DiscoveryTrust::FirstUse if known.is_empty() => Trust::AnyKey,
            DiscoveryTrust::FirstUse => Trust::Pins(&known),
        };
        let min_generation = self.terms.min_generation.max(self.memory.generation());
        check(&Expected {
            cluster: &uri.cluster,
            trust,
            min_generation,
            now: now(),
        })
    }
}

/// The time until a document is fetched again: half of what is left of its validity, within
/// [`MAX_WAIT`] and [`REFRESH`].
fn until_refresh(document: &Document, now: u64) -> Duration {
    Duration::from_secs(document.expires.saturating_sub(now) / 2).clamp(MAX_WAIT, REFRESH)
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
