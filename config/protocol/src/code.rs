//! Refusal codes: one for each reason, stable, in capitals so that they are valid reasons of
//! Kubernetes conditions too.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Defines the enum, its strings and the sentence that says what it means.
macro_rules! codes {
    ($($variant:ident = $text:literal, $class:ident, $doc:literal;)*) => {
        /// Why something was refused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $doc] $variant,)*
        }

        impl Code {
            /// Every code there is.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The stable string.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// What it means, for a person.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $doc,)* }
            }

            /// What a proven refusal with this code does to the Machine. An anonymous refusal with
            /// the same code changes nothing.
            pub fn consequence(self) -> Consequence {
                match self { $(Self::$variant => Consequence::$class,)* }
            }
        }
    };
}

/// What a refusal does to the Machine that proved the refused evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// Nothing: the request is refused, the Machine stays as it is.
    Nothing,
    /// The Machine becomes Suspect: no renewal, no new pods.
    Suspect,
    /// The Machine becomes Untrusted: its certificates are denied.
    Untrusted,
}

codes! {
    Refused = "REFUSED", Nothing, "the master refused and keeps the reason in its own records";
    Malformed = "MALFORMED", Nothing, "the message is not of the documented form";
    TooLarge = "TOO_LARGE", Nothing, "the message or a field is larger than its limit";
    RateLimited = "RATE_LIMITED", Nothing, "too many requests from this caller";
    ProtocolVersion = "PROTOCOL_VERSION", Nothing, "the protocol is not cloud-verify/v1";
    PolicyRejects = "POLICY_REJECTS", Nothing, "the policy that decides for this signer rejects";
    PolicyInvalid = "POLICY_INVALID", Nothing, "the rule that decides has a fault, so it approves nothing";
    Queued = "QUEUED", Nothing, "a person must decide; ask again later";
    QueueFull = "QUEUE_FULL", Nothing, "too many requests wait for a person";
    RequestDenied = "REQUEST_DENIED", Nothing, "a person denied the request";

    SessionUnknown = "SESSION_UNKNOWN", Nothing, "there is no such session";
    SessionExpired = "SESSION_EXPIRED", Nothing, "the answer came after the session's time";
    SessionUsed = "SESSION_USED", Nothing, "the session was answered before";
    SessionsFullForEk = "SESSIONS_FULL_FOR_EK", Nothing, "too many half-open sessions for this endorsement key";
    NonceReplayed = "NONCE_REPLAYED", Nothing, "the evidence answers another challenge";
    QuoteExtraData = "QUOTE_EXTRA_DATA", Nothing, "the quote does not carry the hash of this exchange (Q)";
    CertifyExtraData = "CERTIFY_EXTRA_DATA", Suspect, "the certification does not carry the hash of this exchange (Q)";
    QuoteSignature = "QUOTE_SIGNATURE", Nothing, "the quote is not signed by the attestation key";
    CertifySignature = "CERTIFY_SIGNATURE", Suspect, "the certification is not signed by the attestation key";
    CredentialNotActivated = "CREDENTIAL_NOT_ACTIVATED", Nothing,
        "the caller could not open the credential: the attestation key is not in the TPM of the endorsement key";

    EkTemplate = "EK_TEMPLATE", Nothing, "the endorsement key does not match a TCG template";
    AkUnrestricted = "AK_UNRESTRICTED", Nothing, "the attestation key is not restricted, so it may sign forged quotes";
    AkExternal = "AK_EXTERNAL", Nothing, "the attestation key was loaded from outside the TPM";
    AkDuplicable = "AK_DUPLICABLE", Nothing, "the attestation key may leave the TPM";
    AkTemplate = "AK_TEMPLATE", Nothing, "the attestation key does not match its template exactly";
    NkExternal = "NK_EXTERNAL", Nothing, "the node key was loaded from outside the TPM";
    NkDuplicable = "NK_DUPLICABLE", Nothing, "the node key may leave the TPM";
    NkTemplate = "NK_TEMPLATE", Nothing, "the node key does not match its template exactly";
    NkAuthPolicy = "NK_AUTH_POLICY", Untrusted,
        "the node key is not bound to the quoted registers: they changed after it was made, or its policy is another";
    AkHierarchy = "AK_HIERARCHY", Untrusted,
        "the attestation key is not a primary of the endorsement hierarchy, so its counters are obfuscated";
    NkHierarchy = "NK_HIERARCHY", Untrusted, "the node key is not a primary of the NULL hierarchy, so it outlives the boot";
    CertifyOtherKey = "CERTIFY_OTHER_KEY", Untrusted, "the certified key is not the node key";
    AttestMalformed = "ATTEST_MALFORMED", Nothing, "an attestation structure or signature cannot be parsed";
    AttestMagic = "ATTEST_MAGIC", Nothing, "the attestation was not made inside a TPM";
    AttestType = "ATTEST_TYPE", Nothing, "the attestation is of another type";
    AttestAlgorithm = "ATTEST_ALGORITHM", Nothing, "the signature is not ECDSA P-256 with SHA-256";

    PcrBank = "PCR_BANK", Untrusted, "the quote is over another bank than SHA-256";
    PcrSelection = "PCR_SELECTION", Untrusted, "the quote is not over exactly the registers that were asked for";
    PcrDigest = "PCR_DIGEST", Suspect, "the register values are not those that were quoted";
    EventLogMalformed = "EVENT_LOG_MALFORMED", Suspect, "the event log cannot be parsed";
    EventLogTruncated = "EVENT_LOG_TRUNCATED", Suspect, "the event log ends before what the registers hold";
    EventLogReplay = "EVENT_LOG_REPLAY", Suspect, "the event log does not replay to the quoted registers";
    EventData = "EVENT_DATA", Suspect, "an event's data is not what was measured";
    EventUnknown = "EVENT_UNKNOWN", Untrusted, "a quoted register holds an event that policy does not know";
    FirmwareChanged = "FIRMWARE_CHANGED", Untrusted, "the firmware is not the one seen at first admission";
    TpmFirmware = "TPM_FIRMWARE", Untrusted, "the TPM's firmware is below the minimum that the rule sets for its manufacturer";
    OutsideArguments = "OUTSIDE_ARGUMENTS", Untrusted,
        "kernel arguments, credentials or add-ons were given from outside the image (PCR 12)";
    ImageUnknown = "IMAGE_UNKNOWN", Untrusted, "no ImageRelease describes what was booted";
    ImageLoader = "IMAGE_LOADER", Untrusted, "the booted program is not the release's (PCR 4)";
    ImageCommandLine = "IMAGE_COMMAND_LINE", Untrusted, "kernel command line or initrd is not the release's (PCR 9)";
    ImageSections = "IMAGE_SECTIONS", Untrusted, "a section of the kernel image is not the release's (PCR 11)";
    ImageUnsigned = "IMAGE_UNSIGNED", Untrusted, "no release key that the rule names has signed the image's release";
    ImageSvn = "IMAGE_SVN", Untrusted, "the image is below the minimum security version";
    ImageRole = "IMAGE_ROLE", Untrusted, "the image's role is not the Machine's";
    ImageConcurrency = "IMAGE_CONCURRENCY", Suspect, "the image is older than the images that the policy still admits";
    SecureBootOff = "SECURE_BOOT_OFF", Untrusted, "Secure Boot is required and was off";
    SecureBootDatabase = "SECURE_BOOT_DATABASE", Untrusted, "the Secure Boot databases are neither the release's nor pinned by a re-admission (PCR 7)";
    ConfigNotMeasured = "CONFIG_NOT_MEASURED", Untrusted, "the configuration was not measured (PCR 13)";
    ConfigEvent = "CONFIG_EVENT", Untrusted, "PCR 13 holds something other than the one configuration event";
    ConfigChanged = "CONFIG_CHANGED", Untrusted, "the configuration is not one that the inventory allows";
    PrivilegedPods = "PRIVILEGED_PODS", Untrusted,
        "the machine's configuration allows privileged pods, which can become root on it, and the rule does not accept such machines";
    CountersWentBack = "COUNTERS_WENT_BACK", Untrusted, "the TPM's counters are below the recorded ones: a snapshot was restored";

    EkCertificateMissing = "EK_CERTIFICATE_MISSING", Nothing, "no endorsement key certificate was sent";
    EkCertificateMalformed = "EK_CERTIFICATE_MALFORMED", Nothing, "the endorsement key certificate cannot be parsed";
    EkCertificateIssuer = "EK_CERTIFICATE_ISSUER", Nothing, "no issuer that the rule names has signed the EK certificate";
    EkCertificateExpired = "EK_CERTIFICATE_EXPIRED", Nothing, "the EK certificate or its issuer's is not valid at this time";
    EkCertificateUsage = "EK_CERTIFICATE_USAGE", Nothing, "the certificate is not one for an endorsement key";
    EkCertificateOtherKey = "EK_CERTIFICATE_OTHER_KEY", Nothing, "the certificate is of another endorsement key";
    MachineUnknown = "MACHINE_UNKNOWN", Nothing, "no Machine of the inventory has this endorsement key";
    MachineRetired = "MACHINE_RETIRED", Nothing, "the Machine is retired";
    MachineStatic = "MACHINE_STATIC", Nothing, "the Machine is static: its certificates were issued, and it gets no others";
    MachineUntrusted = "MACHINE_UNTRUSTED", Nothing, "the Machine is Untrusted and no admin has re-admitted it";
    NameMismatch = "NAME_MISMATCH", Nothing, "the claimed name is another node's";
    EkBoundElsewhere = "EK_BOUND_ELSEWHERE", Nothing, "the endorsement key belongs to another Machine";
    MachineBoundToOtherEk = "MACHINE_BOUND_TO_OTHER_EK", Nothing, "the Machine is bound to another endorsement key";
    NameAssigned = "NAME_ASSIGNED", Nothing, "the machine claimed no name, and its Node name differs from the derived one: it must ask under its Node name";
    NameInvalid = "NAME_INVALID", Nothing, "the claimed name is not a valid node name";
    RoleNotAdmitted = "ROLE_NOT_ADMITTED", Nothing, "the rule does not admit the Machine's role";
    RoleMismatch = "ROLE_MISMATCH", Nothing, "the claimed role is not the Machine's";

    NoTpm = "NO_TPM", Nothing, "the machine has no TPM, and the rule that decides does not set insecure_no_tpm";
    TpmExpected = "TPM_EXPECTED", Nothing, "the Machine is not marked as one without a TPM, so it joins only by a TPM's proof";
    UnprovenKey = "UNPROVEN_KEY", Nothing, "the key of the machine without a TPM is not an uncompressed ECDSA P-256 key";
    UnprovenSignature = "UNPROVEN_SIGNATURE", Nothing, "the answer is not signed for this exchange by the key that was announced";
    NodeKeyInUse = "NODE_KEY_IN_USE", Nothing,
        "the Machine's certificate over another node key has not ended, and without a TPM a rebooted machine looks like any other machine";
    NotProven = "NOT_PROVEN", Nothing, "without a TPM this cannot be proven";

    CsrHash = "CSR_HASH", Nothing, "the certificate requests are not those announced";
    CsrMalformed = "CSR_MALFORMED", Suspect, "a certificate request cannot be parsed";
    CsrSignature = "CSR_SIGNATURE", Suspect, "a certificate request is not signed by its own key";
    CsrKey = "CSR_KEY", Untrusted, "the client request's key is not the node key";
    CsrServingKey = "CSR_SERVING_KEY", Suspect, "the serving key is not an ECDSA P-256 key of its own";
    CsrCommonName = "CSR_COMMON_NAME", Untrusted, "the request's common name is not the node's, or not the only one";
    CsrOrganization = "CSR_ORGANIZATION", Untrusted, "the request's organization is not system:nodes, or not the only one";
    CsrSubject = "CSR_SUBJECT", Untrusted, "the request's subject has more than common name and organization";
    CsrSan = "CSR_SAN", Untrusted, "the request asks for a name or address that is not the Machine's";
    AddressTaken = "ADDRESS_TAKEN", Nothing, "another machine holds a certificate for an address that is asked for";
    CsrSanWildcard = "CSR_SAN_WILDCARD", Untrusted, "the request asks for a wildcard name";
    CsrSanApiServer = "CSR_SAN_API_SERVER", Untrusted, "the request asks for a name of the API server";
    CsrCa = "CSR_CA", Untrusted, "the request asks for a CA certificate";
    CsrUsage = "CSR_USAGE", Untrusted, "the request asks for more key usages than a node has";
    CsrExtension = "CSR_EXTENSION", Untrusted, "the request has an extension or attribute that nodes don't use";
    ClaimsMismatch = "CLAIMS_MISMATCH", Nothing, "the claims are not those announced";

    MasterKey = "MASTER_KEY", Nothing, "the node spoke to a server with another key: there is a machine in the middle";
    Channel = "CHANNEL", Nothing, "the evidence was made for another TLS connection";

    RenewalIdentity = "RENEWAL_IDENTITY", Nothing, "the client certificate of the renewal is not a node's, is another Machine's, or is not over its node key";
    RenewalKeys = "RENEWAL_KEYS", Nothing, "the keys are not those recorded: after a reboot the machine must join again";
    RenewalAfterReset = "RENEWAL_AFTER_RESET", Suspect, "the TPM was reset, restarted or resumed since the certificate was issued";
    Overtaken = "OVERTAKEN", Nothing, "after this challenge the machine proved a newer state";
    RenewalState = "RENEWAL_STATE", Nothing, "the Machine is Suspect or Untrusted, so it may not renew";

    BootstrapRoot = "BOOTSTRAP_ROOT", Nothing, "the root certificate is not a self-signed CA";
    BootstrapVerdict = "BOOTSTRAP_VERDICT", Nothing, "the admin's verdict is not signed by the admin's key, or is of another cluster";
}

/// A string that is not a code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a refusal code")]
pub struct NotACode;

impl FromStr for Code {
    type Err = NotACode;

    fn from_str(text: &str) -> Result<Self, NotACode> {
        Self::ALL
            .iter()
            .copied()
            .find(|code| code.as_str() == text)
            .ok_or(NotACode)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_distinct_and_valid_as_condition_reasons() {
        let texts: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(texts.len(), Code::ALL.len());
        for code in Code::ALL {
            assert!(
                code.as_str()
                    .bytes()
                    .all(|byte| byte.is_ascii_uppercase() || byte == b'_'),
                "{code}"
            );
            assert_eq!(code.as_str().parse(), Ok(*code));
        }
    }
}
