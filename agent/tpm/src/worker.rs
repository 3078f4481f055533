//! The thread that owns the TPM, and the handle that others use.

use crate::device::Device;
use crate::import::WrappedKey;
use crate::key_types::{EndorsementKey, PublicKey};
use crate::prove::{Attestation, Quote};
use crate::seal::{Seal, Sealing};
use crate::state::{StateSlot, Unlock};
use crate::{Error, PcrValue};
use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Requests that may wait; further callers block until there is room, at most [`ROOM_TIMEOUT`].
const QUEUE: usize = 32;
/// Longest wait for room: as long as the request that the TPM works on may take.
const ROOM_TIMEOUT: Duration = ANSWER_TIMEOUT;
/// Pause between two looks for room.
const ROOM_POLL: Duration = Duration::from_millis(10);
/// Longest wait for an answer. Key creation on a slow discrete TPM takes seconds; a self-test, tens
/// of them.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

type Job = Box<dyn FnOnce(&mut Device) + Send>;

/// A handle on the TPM's thread. The thread ends, and everything it loaded is flushed, when the
/// last handle is dropped.
#[derive(Debug, Clone)]
pub struct Tpm {
    jobs: SyncSender<Job>,
}

impl Tpm {
    /// Opens the TPM described by `tcti`, in tpm2-tss's notation: `device:/dev/tpmrm0`,
    /// `swtpm:host=127.0.0.1,port=2321`.
    ///
    /// # Errors
    /// The TPM cannot be reached, or is no TPM 2.0.
    pub fn open(tcti: &str) -> Result<Self, Error> {
        let (jobs, queue) = sync_channel::<Job>(QUEUE);
        let (ready, opened) = sync_channel(1);
        let tcti = tcti.to_owned();
        let thread = move || {
            let mut device = match Device::open(&tcti) {
                Ok(device) => device,
                Err(error) => {
                    // If this fails, the opener has given up, and no one needs the result.
                    ready.send(Err(error)).ok();
                    return;
                }
            };
            if ready.send(Ok(())).is_err() {
                return;
            }
            while let Ok(job) = queue.recv() {
                job(&mut device);
            }
        };
        std::thread::Builder::new()
            .name("tpm".to_owned())
            .spawn(thread)
            .map_err(Error::Thread)?;
        match opened.recv_timeout(ANSWER_TIMEOUT) {
            Ok(outcome) => outcome.map(|()| Self { jobs }),
            Err(RecvTimeoutError::Timeout) => Err(Error::TimedOut(ANSWER_TIMEOUT)),
            Err(RecvTimeoutError::Disconnected) => Err(Error::Gone),
        }
    }

    /// Checks that the TPM has what the proof needs.
    ///
    /// # Errors
    /// [`Error::Lacks`] names what is missing, and what a person can do.
    pub fn check(&self) -> Result<(), Error> {
        self.call(Device::check)
    }

    /// The endorsement keys that the TPM has, the preferred one first, with their certificates
    /// where it holds them.
    ///
    /// # Errors
    /// [`Error::NoEndorsementKey`] where the TPM holds none and derives none; otherwise it failed
    /// to show which it has.
    pub fn endorsement_keys(&self) -> Result<Vec<EndorsementKey>, Error> {
        self.call(Device::endorsement_keys)
    }

    /// The attestation key.
    ///
    /// # Errors
    /// The TPM failed to derive the key, which it does at the first use; or it did not answer for
    /// two minutes ([`Error::TimedOut`]).
    pub fn attestation_key(&self) -> Result<PublicKey, Error> {
        self.call(Device::attestation_key)
    }

    /// The node key of this boot, bound to the registers [`config_tpm::pcr::NK_PCRS`] as they were
    /// at its first use.
    ///
    /// # Errors
    /// As [`Self::attestation_key`], and where the registers can't be read.
    pub fn node_key(&self) -> Result<PublicKey, Error> {
        self.call(Device::node_key)
    }

    /// Signs a SHA-256 digest with the node key: r and s of an ECDSA P-256 signature, 32 bytes
    /// each.
    ///
    /// # Errors
    /// [`Error::PolicyBroken`] once a register that the key is bound to has changed.
    pub fn sign(&self, digest: [u8; 32]) -> Result<[u8; 64], Error> {
        self.call(move |device| device.sign(digest))
    }

    /// Imports a key that was wrapped to one of this TPM's endorsement keys; [`Tpm::sign_imported`]
    /// uses it from then on.
    ///
    /// # Errors
    /// [`Error::ForAnotherTpm`] where this TPM does not have that endorsement key,
    /// [`Error::NotImported`] where the TPM refuses the wrapped key.
    pub fn import(&self, wrapped: WrappedKey) -> Result<PublicKey, Error> {
        self.call(move |device| device.import(&wrapped))
    }

    /// Unseals a secret that was wrapped to one of this TPM's endorsement keys for boots like this
    /// one, at this floor.
    ///
    /// # Errors
    /// [`Error::ForAnotherTpm`] where this TPM does not have that endorsement key,
    /// [`Error::NotImported`] where the TPM refuses the wrapped secret, [`Error::Malformed`] where
    /// the secret is for images of another release key or floor or for other Secure Boot settings,
    /// [`Error::NotApproved`] where this boot is not approved for the floor.
    pub fn unwrap_secret(
        &self,
        unlock: &Unlock,
        floor: u64,
        wrapped: WrappedKey,
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let unlock = unlock.clone();
        self.call(move |device| device.unwrap_secret(&unlock, floor, &wrapped))
    }

    /// Signs a SHA-256 digest with the imported key: r and s, 32 bytes each.
    ///
    /// # Errors
    /// No key was imported, or the TPM failed.
    pub fn sign_imported(&self, digest: [u8; 32]) -> Result<[u8; 64], Error> {
        self.call(move |device| device.sign_imported(digest))
    }

    /// Quotes the registers `pcrs` (SHA-256 bank) by the attestation key, with the values that the
    /// quote is about.
    ///
    /// # Errors
    /// The TPM failed to quote or to read registers, or these changed meanwhile, more often than is
    /// tried.
    pub fn quote(&self, qualifying: [u8; 32], pcrs: &[u8]) -> Result<Quote, Error> {
        let pcrs = pcrs.to_vec();
        self.call(move |device| device.quote(qualifying, &pcrs))
    }

    /// Has the attestation key certify the node key.
    ///
    /// # Errors
    /// The TPM failed to derive one of the keys, or to run `TPM2_Certify`; or it did not answer for
    /// two minutes ([`Error::TimedOut`]).
    pub fn certify(&self, qualifying: [u8; 32]) -> Result<Attestation, Error> {
        self.call(move |device| device.certify(qualifying))
    }

    /// Opens a credential that was made for the endorsement key `ek` and the attestation key.
    ///
    /// `credential` and `secret` are the contents of `TPM2B_ID_OBJECT` and
    /// `TPM2B_ENCRYPTED_SECRET`, without their sizes.
    ///
    /// # Errors
    /// The credential was made for other keys, or the TPM failed.
    pub fn activate(
        &self,
        ek: &EndorsementKey,
        credential: &[u8],
        secret: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let (kind, credential, secret) = (ek.kind, credential.to_vec(), secret.to_vec());
        self.call(move |device| device.activate(kind, &credential, &secret))
    }

    /// Reads registers of the SHA-256 bank, all at one moment.
    ///
    /// # Errors
    /// The TPM failed, or has no such register.
    pub fn read_pcrs(&self, pcrs: &[u8]) -> Result<BTreeMap<u8, PcrValue>, Error> {
        let pcrs = pcrs.to_vec();
        self.call(move |device| device.read_pcrs(&pcrs))
    }

    /// Extends a register of the SHA-256 bank. On a machine `init` measures; this is for hosts and
    /// tests.
    ///
    /// # Errors
    /// The TPM failed, or has no such register.
    pub fn extend_pcr(&self, pcr: u8, digest: PcrValue) -> Result<(), Error> {
        self.call(move |device| device.extend_pcr(pcr, digest))
    }

    /// The lowest image version that can open what is sealed now; `None` if any boot can.
    ///
    /// # Errors
    /// The TPM failed to show from which floor on the state's key opens, which only
    /// [`Sealing::Approved`] asks for.
    pub fn seal_floor(&self, sealing: &Sealing) -> Result<Option<u64>, Error> {
        let sealing = sealing.clone();
        self.call(move |device| device.seal_floor(&sealing))
    }

    /// Seals at most [`crate::SEAL_LIMIT`] bytes to this TPM and to the boots that `sealing`
    /// allows.
    ///
    /// # Errors
    /// [`Error::BootNotApproved`] and [`Error::SealFloor`] where this boot could not open it again.
    pub fn seal(&self, sealing: &Sealing, secret: Zeroizing<Vec<u8>>) -> Result<Vec<u8>, Error> {
        let sealing = sealing.clone();
        self.call(move |device| device.seal(&sealing, &secret))
    }

    /// Opens what [`Tpm::seal`] made. That it opens does not prove who made it: anyone with the
    /// owner hierarchy can seal under the same policy.
    ///
    /// # Errors
    /// [`Error::BootNotApproved`], [`Error::SealFloor`] and [`Error::OtherReleaseKey`] where this
    /// boot may not open it; [`Error::UnboundSeal`] and [`Error::BoundSeal`] where it is a seal of
    /// the other kind; [`Error::NotSealedHere`] where another TPM made it, or it was altered.
    pub fn unseal(
        &self,
        sealing: &Sealing,
        which: Seal,
        sealed: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Error> {
        let (sealing, sealed) = (sealing.clone(), sealed.to_vec());
        self.call(move |device| device.unseal(&sealing, which, &sealed))
    }

    /// Whether the image's release key approved the registers' current values, and the state was
    /// not opened yet.
    ///
    /// # Errors
    /// The TPM failed to read the registers. That nothing approves their values is no error.
    pub fn approved(&self, unlock: &Unlock) -> Result<bool, Error> {
        let unlock = unlock.clone();
        self.call(move |device| device.approved(&unlock))
    }

    /// The contents of the slots of the state's key, in order.
    ///
    /// # Errors
    /// The TPM failed to read its registers, to list its indexes, or to read one that is open. An
    /// absent, foreign or closed slot is no error but a [`StateSlot`].
    pub fn state_slots(&self, unlock: &Unlock) -> Result<Vec<StateSlot>, Error> {
        let unlock = unlock.clone();
        self.call(move |device| device.state_slots(&unlock))
    }

    /// Writes [`crate::SLOT_SIZE`] bytes into a slot that opens from `floor` on; what was there
    /// before is removed where it is of another floor or foreign.
    ///
    /// # Errors
    /// [`Error::NotApproved`] where this boot is not approved for the floor.
    pub fn write_state_slot(
        &self,
        unlock: &Unlock,
        slot: usize,
        floor: u64,
        content: Zeroizing<Vec<u8>>,
    ) -> Result<(), Error> {
        let unlock = unlock.clone();
        self.call(move |device| device.write_state_slot(&unlock, slot, floor, &content))
    }

    /// Removes a slot; one that is absent is no error.
    ///
    /// # Errors
    /// There is no slot of this number, or the TPM failed to remove its index: another system has
    /// set an authorization value for the owner hierarchy.
    pub fn delete_state_slot(&self, slot: usize) -> Result<(), Error> {
        self.call(move |device| device.delete_state_slot(slot))
    }

    fn call<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut Device) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = sync_channel(1);
        let job = Box::new(move |device: &mut Device| {
            // A caller that timed out is gone, and its answer with it.
            reply.send(request(device)).ok();
        });
        enqueue(&self.jobs, job, ROOM_TIMEOUT)?;
        match answer.recv_timeout(ANSWER_TIMEOUT) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => Err(Error::TimedOut(ANSWER_TIMEOUT)),
            Err(RecvTimeoutError::Disconnected) => Err(Error::Gone),
        }
    }
}

/// Gives a request to the TPM's thread, as soon as fewer than [`QUEUE`] others wait.
///
/// # Errors
/// [`Error::Busy`] where there was no room within `limit`, [`Error::Gone`] without a thread.
fn enqueue(jobs: &SyncSender<Job>, mut job: Job, limit: Duration) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        job = match jobs.try_send(job) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Disconnected(_)) => return Err(Error::Gone),
            Err(TrySendError::Full(_)) if begun.elapsed() >= limit => {
                return Err(Error::Busy {
                    waited: limit,
                    others: QUEUE,
                });
            }
            Err(TrySendError::Full(job)) => job,
        };
        std::thread::sleep(ROOM_POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_room_and_for_a_limited_time() {
        let job = || -> Job { Box::new(|_device: &mut Device| {}) };
        let (jobs, queue) = sync_channel(1);
        enqueue(&jobs, job(), Duration::ZERO).unwrap();
        let error = enqueue(&jobs, job(), ROOM_POLL * 2).unwrap_err();
        assert!(matches!(error, Error::Busy { waited, .. } if waited == ROOM_POLL * 2));
        let busy = Error::Busy {
            waited: ROOM_TIMEOUT,
            others: QUEUE,
        };
        let error = busy.to_string();
        let text = "the TPM took no further request within 120 s, as 32 others wait for it: if that lasts, it hangs; power the machine off and on";
        assert_eq!(error, text);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| enqueue(&jobs, job(), Duration::from_secs(60)));
            assert!(queue.recv().is_ok());
            waiting.join().unwrap().unwrap();
        });
        drop(queue);
        let error = enqueue(&jobs, job(), ROOM_TIMEOUT).unwrap_err();
        assert!(matches!(error, Error::Gone));
    }
}
