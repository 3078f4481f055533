//! From nothing to an identity, and from one certificate to the next.

use crate::Error;
use crate::client::MasterClient;
use crate::endpoint::Endpoints;
use crate::exchange::{Accepted, Cost, IdentityProof, Party, blocking};
use crate::figures::{FailedRenewals, IdentityFigures};
use crate::identity::{CertificateSlot, PinnedRoots};
use crate::keys::NodeKey;
use crate::pace::{Backoff, Cadence, NextAction, fraction, spread};
use crate::prover::Prover;
use crate::request::install;
use crate::step::{Failed, Step};
use config_protocol::Code;
use config_protocol::wire::Claims;
use config_tls::Pins;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// What a node needs to know to enrol.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where masters are.
    pub endpoints: Endpoints,
    /// The pins of their roots.
    pub pins: Pins,
    /// The node's claims. Without a name it asks under the one derived from its endorsement key,
    /// until the master answers with its own.
    pub claims: Claims,
}

/// Progress, for the console.
#[derive(Debug)]
pub enum Milestone<'a> {
    /// An attempt to join begins.
    Enrolling {
        /// The first master that is tried.
        endpoint: String,
    },
    /// The master refused.
    Refused {
        /// In which step.
        step: Step,
        /// Its code.
        code: &'a str,
        /// Its message.
        message: &'a str,
        /// When the next attempt comes.
        again: Duration,
    },
    /// The machine proved itself, and a person must decide.
    Queued {
        /// The master's message, with the command by which the person approves.
        message: &'a str,
        /// When the next look comes.
        again: Duration,
    },
    /// An attempt failed without a verdict.
    Failed {
        /// In which step.
        step: Step,
        /// The cause.
        error: &'a Error,
        /// When the next attempt comes.
        again: Duration,
    },
    /// The node has its first certificates since the agent started.
    Enrolled {
        /// Its name.
        node: &'a str,
        /// Unix seconds at which the certificates end.
        not_after: u64,
        /// The bytes and the time of the exchange.
        cost: Cost,
    },
    /// The certificates were renewed.
    Renewed {
        /// Unix seconds at which the new ones end.
        not_after: u64,
    },
    /// The certificates ended before a renewal; the node joins anew.
    Expired,
}

/// Callback for every milestone; called from any task.
pub type MilestoneCallback = Arc<dyn Fn(&Milestone<'_>) + Send + Sync>;

/// A node's identity, kept fresh by [`Enroller::keep`].
#[derive(Debug, Clone)]
pub struct Identity {
    /// The node's name.
    pub node: String,
    /// The way to the master's API.
    pub client: MasterClient,
    /// The kubelet API's certificate; swapped at each renewal.
    pub serving: Arc<CertificateSlot>,
    /// The client certificate that `client` shows; swapped at each renewal.
    pub certificate: Arc<CertificateSlot>,
    /// The pins of the masters' roots.
    pub pins: Pins,
    /// The cluster's pinned roots, which verify the master as a client.
    pub roots: PinnedRoots,
    /// How often the certificates could not be renewed.
    pub failed_renewals: FailedRenewals,
}

impl Identity {
    /// Its metrics.
    pub fn figures(&self) -> IdentityFigures {
        IdentityFigures {
            client: self.client.clone(),
            certificate: Arc::clone(&self.certificate),
            serving: Arc::clone(&self.serving),
            failed: self.failed_renewals.clone(),
        }
    }
}

/// Joins, and joins again, until the end of the process.
pub struct Enroller {
    party: Party,
    report: MilestoneCallback,
    client: Arc<CertificateSlot>,
    serving: Arc<CertificateSlot>,
    roots: PinnedRoots,
    turn: usize,
}

impl fmt::Debug for Enroller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enroller")
            .field("party", &self.party)
            .finish_non_exhaustive()
    }
}

/// Renews the identity after [`Enroller::enroll`].
#[derive(Debug)]
pub struct Renewer {
    enroller: Enroller,
    client: MasterClient,
    cadence: Cadence,
    /// The zero of the monotonic clock.
    start: Instant,
    failed: FailedRenewals,
}

impl Enroller {
    /// Derives the node key, which binds it to the registers as they are now.
    ///
    /// # Errors
    /// The TPM failed to derive the node key.
    pub async fn new(
        prover: Prover,
        settings: Settings,
        report: MilestoneCallback,
    ) -> Result<Self, Error> {
        let tpm = prover.tpm().clone();
        let node_key = blocking(move || Ok(NodeKey::new(tpm)?)).await?;
        Ok(Self::with(
            IdentityProof::Tpm(Box::new(prover)),
            node_key,
            settings,
            report,
        ))
    }

    /// For a machine without a TPM, with a key in memory. The claims must have a name.
    pub fn without_tpm(node_key: NodeKey, settings: Settings, report: MilestoneCallback) -> Self {
        Self::with(IdentityProof::Nothing, node_key, settings, report)
    }

    fn with(
        identity_proof: IdentityProof,
        node_key: NodeKey,
        settings: Settings,
        report: MilestoneCallback,
    ) -> Self {
        let Settings {
            endpoints,
            pins,
            claims,
        } = settings;
        let party = Party {
            endpoints,
            pins,
            identity_proof,
            node_key,
            claims,
        };
        let (client, serving, roots) = (Arc::default(), Arc::default(), Vec::new().into());
        Self {
            party,
            report,
            client,
            serving,
            roots,
            turn: 0,
        }
    }

    /// Tries to join until the master accepts. Cancel by dropping: nothing is left behind but a
    /// half-open session.
    ///
    /// # Errors
    /// Only what another attempt cannot fix: the identity cannot be put in use, or no client can be
    /// made with it. Refusals and an unreachable master are reported and tried again.
    pub async fn enroll(mut self) -> Result<(Identity, Renewer), Error> {
        let accepted = self.join().await;
        self.put_in_use(&accepted)?;
        let cadence = Cadence::new(
            Duration::ZERO,
            accepted.certificates.renew_after_seconds,
            fraction(),
        );
        let client = MasterClient::new(
            self.party.endpoints.clone(),
            self.party.pins.clone(),
            Arc::clone(&self.client),
        )?;
        let node = accepted.certificates.node_name.clone();
        let not_after = accepted.certificates.not_after;
        (self.report)(&Milestone::Enrolled {
            node: &node,
            not_after,
            cost: accepted.cost,
        });
        let (serving, certificate) = (Arc::clone(&self.serving), Arc::clone(&self.client));
        let (pins, roots) = (self.party.pins.clone(), self.roots.clone());
        let failed = FailedRenewals::default();
        let identity = Identity {
            node,
            client: client.clone(),
            serving,
            certificate,
            pins,
            roots,
            failed_renewals: failed.clone(),
        };
        Ok((
            identity,
            Renewer {
                enroller: self,
                client,
                cadence,
                start: Instant::now(),
                failed,
            },
        ))
    }

    /// Tries until the master accepts and its certificates are good.
    async fn join(&mut self) -> Accepted {
        let mut backoff = Backoff::new();
        loop {
            let endpoint = self
                .party
                .endpoints
                .current()
                .map(|endpoint| endpoint.to_string())
                .unwrap_or_default();
            (self.report)(&Milestone::Enrolling { endpoint });
            let outcome = self
                .party
                .join(self.turn)
                .await
                .and_then(|accepted| self.check(accepted));
            match outcome {
                Ok(accepted) => return accepted,
                Err(failed) => {
                    self.next_endorsement_key(&failed);
                    self.pause(&failed, backoff.step()).await;
                }
            }
        }
    }

    /// After a refusal that may be due to the endorsement key, the next attempt shows another key
    /// of the same TPM: the inventory may list that one.
    fn next_endorsement_key(&mut self, failed: &Failed) {
        // Before the key is proved the master may give no reason, so that each may be this one.
        let unproved = failed.step == Step::Challenge;
        let generic = |code: &str| code == Code::Refused.as_str();
        if matches!(&failed.error, Error::Refused { code, .. } if unproved || generic(code)) {
            self.turn = self.turn.wrapping_add(1);
        }
    }

    /// Reports what went wrong and waits; if a person must decide, as long as the master asked for.
    /// A node that has just learned its name tries again under that name at once.
    async fn pause(&mut self, failed: &Failed, again: Duration) {
        let Failed { step, error } = failed;
        let step = *step;
        if let Error::Named(name) = error
            && self.party.claims.name.is_empty()
        {
            self.party.claims.name.clone_from(name);
            return;
        }
        let again = if let Error::Queued { after, .. } = error {
            spread(*after)
        } else {
            again
        };
        if let Error::Refused { code, message, .. } = error {
            (self.report)(&Milestone::Refused {
                step,
                code,
                message,
                again,
            });
        } else if let Error::Queued { message, .. } = error {
            (self.report)(&Milestone::Queued { message, again });
        } else {
            (self.report)(&Milestone::Failed { step, error, again });
        }
        sleep(again).await;
    }

    /// Whether the certificates can be put in use.
    fn check(&self, accepted: Accepted) -> Result<Accepted, Failed> {
        install(
            &accepted.requests,
            &accepted.certificates,
            &self.party.node_key,
            &self.party.pins.configured(),
        )
        .map(|_| accepted)
        .map_err(|error| Failed {
            step: Step::Certificates,
            error,
        })
    }

    fn put_in_use(&self, accepted: &Accepted) -> Result<(), Error> {
        let Accepted {
            certificates,
            requests,
            ..
        } = accepted;
        let installed = install(
            requests,
            certificates,
            &self.party.node_key,
            &self.party.pins.configured(),
        )?;
        self.client.set(installed.client);
        self.serving.set(installed.serving);
        self.roots.replace(installed.roots);
        Ok(())
    }
}

impl Renewer {
    /// Renews at a third of the lifetime with a fresh quote, for as long as it is polled. A refused
    /// renewal is followed by attempts to join again, while the old certificate is valid and after
    /// that.
    pub async fn keep(mut self) -> Error {
        let mut ended = false;
        loop {
            let turn = self.enroller.turn;
            let next = self.cadence.next(self.start.elapsed());
            let outcome = match next {
                NextAction::Wait(time) => {
                    sleep(time).await;
                    continue;
                }
                NextAction::Renew => {
                    self.enroller
                        .party
                        .renew(Arc::clone(&self.enroller.client), turn)
                        .await
                }
                NextAction::Rejoin => self.enroller.party.join(turn).await,
                NextAction::Expired => {
                    if !std::mem::replace(&mut ended, true) {
                        (self.enroller.report)(&Milestone::Expired);
                    }
                    self.enroller.party.join(turn).await
                }
            };
            match outcome.and_then(|accepted| self.enroller.check(accepted)) {
                Ok(accepted) => {
                    ended = false;
                    if let Err(error) = self.use_renewed(&accepted) {
                        return error;
                    }
                }
                Err(failed) => {
                    self.failed.one_more();
                    if next != NextAction::Renew {
                        self.enroller.next_endorsement_key(&failed);
                    }
                    // A plain 401 means that the certificate is denied: only a join without it may
                    // still succeed.
                    let refused = matches!(
                        failed.error,
                        Error::Refused { .. } | Error::Status(http::StatusCode::UNAUTHORIZED)
                    );
                    let again = self
                        .cadence
                        .failed(self.start.elapsed(), refused, fraction());
                    self.enroller.pause(&failed, again).await;
                }
            }
        }
    }

    /// Fails only if good certificates cannot be put in use.
    fn use_renewed(&mut self, accepted: &Accepted) -> Result<(), Error> {
        self.enroller.put_in_use(accepted)?;
        let certificates = &accepted.certificates;
        self.cadence = Cadence::new(
            self.start.elapsed(),
            certificates.renew_after_seconds,
            fraction(),
        );
        self.client.reconnect();
        (self.enroller.report)(&Milestone::Renewed {
            not_after: certificates.not_after,
        });
        Ok(())
    }
}
