//! Errors of the TPM.

use std::time::Duration;
use tss_esapi::constants::response_code::Tss2ResponseCodeKind;
use tss_esapi::interface_types::resource_handles::Hierarchy;

/// A failed request to the TPM.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The transport's description could not be understood.
    #[error(
        "\"{tcti}\" names no TPM; write \"device:/dev/tpmrm0\" or \"swtpm:host=127.0.0.1,port=2321\""
    )]
    Tcti {
        /// What was configured.
        tcti: String,
        /// Why it was refused.
        #[source]
        source: tss_esapi::Error,
    },
    /// The TPM did not answer at the start.
    #[error("the TPM at \"{tcti}\" cannot be opened")]
    Open {
        /// What was configured.
        tcti: String,
        /// Why it was refused.
        #[source]
        source: tss_esapi::Error,
    },
    /// The TPM lacks something that the proof needs.
    #[error("the TPM has no {what}, so this machine cannot prove what it is: {cure}")]
    Lacks {
        /// What is missing.
        what: &'static str,
        /// What a person can do.
        cure: &'static str,
    },
    /// A TPM command failed.
    #[error("the TPM failed to {step}")]
    Command {
        /// What the command was for.
        step: &'static str,
        /// The response code.
        #[source]
        source: tss_esapi::Error,
    },
    /// Another system on this machine set an authorization value for a hierarchy; the machine uses
    /// the empty one.
    #[error(
        "the TPM does not {step}: another system on this machine changed the authorization of the TPM's {hierarchy} hierarchy; clear the \
         TPM in the machine's firmware setup"
    )]
    Authorization {
        /// What the command was for.
        step: &'static str,
        /// The hierarchy's name.
        hierarchy: &'static str,
        /// The response code.
        #[source]
        source: tss_esapi::Error,
    },
    /// The TPM's NV memory is full.
    #[error(
        "the TPM does not {step}: its NV memory is full of what other systems on this machine left in it; clear the TPM in the machine's \
         firmware setup"
    )]
    Full {
        /// What the command was for.
        step: &'static str,
        /// The response code.
        #[source]
        source: tss_esapi::Error,
    },
    /// The registers differ from those that the node key was made for, so it can no longer be used.
    #[error(
        "the node key's policy no longer holds: a register it is bound to has changed since it was made; reboot"
    )]
    PolicyBroken {
        /// The response code.
        #[source]
        source: tss_esapi::Error,
    },
    /// The registers were extended again and again while they were being used.
    #[error("the TPM's registers kept changing during {attempts} attempts to {step}")]
    Unsteady {
        /// What was attempted.
        step: &'static str,
        /// How often.
        attempts: u32,
    },
    /// The TPM has no endorsement key of a supported type.
    #[error("the TPM has no endorsement key (looked for RSA 2048, ECC P-256 and ECC P-384)")]
    NoEndorsementKey,
    /// A value from outside is malformed or too large.
    #[error("{what} is malformed or too large")]
    Malformed {
        /// Which value.
        what: &'static str,
    },
    /// The sealed bytes were not made by this TPM, or were altered.
    #[error("the sealed bytes do not open: made by another TPM, or altered")]
    NotSealedHere,
    /// The release key did not approve the registers' values.
    #[error(
        "the release key did not approve what was booted, or the state was opened already in this boot"
    )]
    NotApproved,
    /// The release key did not approve the registers' values for sealed data.
    #[error(
        "the release key did not approve what this machine booted, so nothing is sealed and nothing sealed opens: boot the image's own \
         kernel file, unchanged and without arguments from outside"
    )]
    BootNotApproved,
    /// The image is not approved for a seal's floor.
    #[error(
        "the sealed bytes open for images from version {floor} on, and for 31 versions after it; the image that runs has version {svn}"
    )]
    SealFloor {
        /// The seal's floor.
        floor: u64,
        /// The image's version.
        svn: u64,
    },
    /// A seal has the policy of another release key, or can be opened without its policy.
    #[error("the sealed bytes open for images of another release key")]
    OtherReleaseKey,
    /// A seal has no policy, although this machine's seals have one.
    #[error(
        "the sealed bytes have no boot policy: any system on this machine opens them, and this machine's master does not use them"
    )]
    UnboundSeal,
    /// A seal has a policy, although one without was requested, or nothing approves this boot.
    #[error(
        "the sealed bytes open only for images of a release key, and a seal without a policy was requested"
    )]
    BoundSeal,
    /// A wrapped key is for another endorsement key than this TPM has.
    #[error(
        "the key was wrapped to the endorsement key {wanted}, and this TPM has {have}: issue one for this machine with `pratique issue --ek FILE`"
    )]
    ForAnotherTpm {
        /// Hash of the key's endorsement key.
        wanted: String,
        /// Hashes of those of this TPM.
        have: String,
    },
    /// A wrapped key for this TPM does not open.
    #[error(
        "the TPM does not open the wrapped key: the document was altered, or the TPM was cleared since"
    )]
    NotImported {
        /// The response code.
        #[source]
        source: tss_esapi::Error,
    },
    /// The TPM's thread could not be started.
    #[error("the TPM's thread cannot be started")]
    Thread(#[source] std::io::Error),
    /// The TPM's thread has ended.
    #[error("the TPM's thread has ended")]
    Gone,
    /// The TPM had no room for another request in time.
    #[error(
        "the TPM took no further request within {} s, as {} others wait for it: if that lasts, it hangs; power the machine off and on",
        .waited.as_secs(), .others
    )]
    Busy {
        /// How long it was waited.
        waited: Duration,
        /// Requests that have their place in the queue.
        others: usize,
    },
    /// The TPM did not answer in time.
    #[error("the TPM did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
}

/// Names the step that a TPM command belongs to.
pub(crate) trait AtStep<T> {
    /// Wraps a failure of the step called `step`, an infinitive such as "quote".
    fn step(self, step: &'static str) -> Result<T, Error>;
}

impl<T> AtStep<T> for Result<T, tss_esapi::Error> {
    fn step(self, step: &'static str) -> Result<T, Error> {
        self.map_err(|source| Error::Command { step, source })
    }
}

/// Names the step of a command that a hierarchy authorizes, by its empty value.
pub(crate) trait Authorized<T> {
    /// As [`AtStep::step`]; a refused authorization and a full memory, which a person must cure,
    /// have errors of their own (TPM 2.0 Library, Part 2, 6.6.3: `TPM_RC_AUTH_FAIL`,
    /// `TPM_RC_BAD_AUTH`, `TPM_RC_NV_SPACE`).
    fn authorized(self, by: Hierarchy, step: &'static str) -> Result<T, Error>;
}

impl<T> Authorized<T> for Result<T, tss_esapi::Error> {
    fn authorized(self, by: Hierarchy, step: &'static str) -> Result<T, Error> {
        let hierarchy = match by {
            Hierarchy::Owner => "owner",
            Hierarchy::Endorsement => "endorsement",
            Hierarchy::Platform => "platform",
            Hierarchy::Null => "null",
        };
        self.map_err(|source| {
            let failed = |kind| failed_with(source, kind);
            if failed(Tss2ResponseCodeKind::BadAuth) || failed(Tss2ResponseCodeKind::AuthFail) {
                Error::Authorization {
                    step,
                    hierarchy,
                    source,
                }
            } else if failed(Tss2ResponseCodeKind::NvSpace) {
                Error::Full { step, source }
            } else {
                Error::Command { step, source }
            }
        })
    }
}

/// Whether a command failed with the given response code.
pub(crate) fn failed_with(error: tss_esapi::Error, kind: Tss2ResponseCodeKind) -> bool {
    match error {
        tss_esapi::Error::Tss2Error(code) => code.kind() == Some(kind),
        tss_esapi::Error::WrapperError(_) => false,
    }
}
