//! Keys: whose they are, where they were made, what they may do; and attestations of the wrong
//! form.

use crate::{Case, Change, nothing};
use config_protocol::Code;
use config_protocol::wire::{Blob, Signed};
use config_tpm::Digest;
use config_tpm::{Attest, Attested, Attributes};
use tests_machines::{EkKind, SoftMachine};

/// TPM_RH_OWNER (TPM 2.0 Library, part 2, 7.4).
const OWNER_HIERARCHY: u32 = 0x4000_0001;

fn without(attributes: Attributes, bit: Attributes) -> Attributes {
    Attributes(attributes.0 & !bit.0)
}

/// Changes the quote's bytes and signs them with the AK, as one that is not restricted would.
fn requote(machine: &SoftMachine, change: impl FnOnce(&mut Vec<u8>) + Send + 'static) -> Change {
    let signer = machine.clone();
    Box::new(move |evidence| {
        let mut bytes = evidence.proof.quote.attest.as_bytes().to_vec();
        change(&mut bytes);
        evidence.proof.quote = signer.sign_bytes(&bytes);
    })
}

/// Names SHA-1 in a signature (TPMT_SIGNATURE: algorithm, hash, r, s).
fn over_sha1(signed: &mut Signed) {
    let mut bytes = signed.signature.as_bytes().to_vec();
    bytes[3] = 0x04;
    signed.signature = Blob::new(bytes).unwrap();
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = attributes();
    cases.extend(bindings());
    cases.extend(signatures());
    cases.extend(forms());
    cases
}

fn attributes() -> Vec<Case> {
    vec![
        Case::anonymous("an unrestricted AK", Code::AkUnrestricted, |_, machine| {
            machine.ak_public.attributes =
                without(machine.ak_public.attributes, Attributes::RESTRICTED);
            nothing()
        }),
        Case::anonymous(
            "an AK loaded from outside",
            Code::AkExternal,
            |_, machine| {
                machine.ak_public.attributes = without(
                    machine.ak_public.attributes,
                    Attributes::SENSITIVE_DATA_ORIGIN,
                );
                nothing()
            },
        ),
        Case::anonymous(
            "an NK loaded from outside",
            Code::NkExternal,
            |_, machine| {
                machine.nk_public.attributes = without(
                    machine.nk_public.attributes,
                    Attributes::SENSITIVE_DATA_ORIGIN,
                );
                nothing()
            },
        ),
        Case::anonymous("a duplicable AK", Code::AkDuplicable, |_, machine| {
            machine.ak_public.attributes =
                without(machine.ak_public.attributes, Attributes::FIXED_PARENT);
            nothing()
        }),
        Case::anonymous("a duplicable NK", Code::NkDuplicable, |_, machine| {
            machine.nk_public.attributes =
                without(machine.nk_public.attributes, Attributes::FIXED_TPM);
            nothing()
        }),
        Case::anonymous(
            "an AK that a policy may use too",
            Code::AkTemplate,
            |_, machine| {
                machine.ak_public.auth_policy = vec![0; 32];
                nothing()
            },
        ),
        Case::anonymous(
            "an NK that needs no policy",
            Code::NkTemplate,
            |_, machine| {
                machine.nk_public.attributes = machine
                    .nk_public
                    .attributes
                    .with(Attributes::USER_WITH_AUTH);
                nothing()
            },
        ),
        Case::anonymous(
            "an EK of no TCG template",
            Code::EkTemplate,
            |_, machine| {
                machine.ek_public.auth_policy = vec![0; 32];
                nothing()
            },
        ),
    ]
}

fn bindings() -> Vec<Case> {
    vec![
        Case::anonymous(
            "an AK of another TPM than the EK",
            Code::CredentialNotActivated,
            |_, machine| {
                // It can't open what was made for the EK and this AK.
                let ek = machine.ek_public.clone();
                let mut elsewhere = SoftMachine::new("elsewhere", EkKind::P256);
                elsewhere.node.clone_from(&machine.node);
                elsewhere.names.clone_from(&machine.names);
                elsewhere.claims = machine.claims.clone();
                elsewhere.client_request = machine.client_request.clone();
                elsewhere.serving_request = machine.serving_request.clone();
                elsewhere.ek_certificate.clone_from(&machine.ek_certificate);
                elsewhere.bank = machine.bank.clone();
                elsewhere.log = machine.log.clone();
                elsewhere.config_event.clone_from(&machine.config_event);
                elsewhere.ek_public = ek;
                elsewhere.bind_nk();
                *machine = elsewhere;
                nothing()
            },
        ),
        Case::proven(
            "an NK with another policy",
            Code::NkAuthPolicy,
            |_, machine| {
                machine.nk_public.auth_policy = vec![1; 32];
                nothing()
            },
        ),
        Case::proven(
            "an NK used after PCR 12 changed",
            Code::NkAuthPolicy,
            |_, machine| {
                machine
                    .bank
                    .extend(12, &Digest::of(b"after the node key was made"));
                nothing()
            },
        ),
        Case::proven(
            "an NK used after PCR 13 changed",
            Code::NkAuthPolicy,
            |_, machine| {
                machine
                    .bank
                    .extend(13, &Digest::of(b"after the node key was made"));
                nothing()
            },
        ),
    ]
}

/// Signatures of one key over another, and of another TPM.
fn signatures() -> Vec<Case> {
    vec![
        Case::proven(
            "a certification of another key",
            Code::CertifyOtherKey,
            |_, machine| {
                let honest = machine.clone();
                Box::new(move |evidence| {
                    let quote = Attest::parse(evidence.proof.quote.attest.as_bytes()).unwrap();
                    let mut certify =
                        honest.certify(&Digest::from_slice(&quote.extra_data).unwrap());
                    let other = honest.ek_public.name().as_bytes().to_vec();
                    certify.attested = Attested::Certify {
                        name: other.clone(),
                        qualified_name: other,
                    };
                    evidence.proof.certify = honest.sign(&certify);
                })
            },
        ),
        Case::proven(
            "a certification from another TPM",
            Code::CertifySignature,
            |_, _| {
                let other = SoftMachine::new("elsewhere", EkKind::P256);
                Box::new(move |evidence| {
                    evidence.proof.certify =
                        other.sign_bytes(evidence.proof.certify.attest.as_bytes());
                })
            },
        ),
        Case::proven(
            "a certification of another exchange",
            Code::CertifyExtraData,
            |_, machine| {
                let old = machine.sign(&machine.certify(&Digest::of(b"another exchange")));
                Box::new(move |evidence| evidence.proof.certify = old)
            },
        ),
        Case::proven(
            "an AK of the owner's hierarchy",
            Code::AkHierarchy,
            |_, machine| {
                machine.ak_hierarchy = OWNER_HIERARCHY;
                nothing()
            },
        ),
        Case::proven(
            "an NK that outlives the boot",
            Code::NkHierarchy,
            |_, machine| {
                machine.nk_hierarchy = OWNER_HIERARCHY;
                nothing()
            },
        ),
        Case::anonymous("a quote from another TPM", Code::QuoteSignature, |_, _| {
            let other = SoftMachine::new("elsewhere", EkKind::P256);
            Box::new(move |evidence| {
                evidence.proof.quote = other.sign_bytes(evidence.proof.quote.attest.as_bytes());
            })
        }),
    ]
}

fn forms() -> Vec<Case> {
    vec![
        Case::anonymous("a wrong magic", Code::AttestMagic, |_, machine| {
            requote(machine, |bytes| bytes[0] ^= 1)
        }),
        Case::anonymous(
            "a wrong attestation type",
            Code::AttestType,
            |_, machine| requote(machine, |bytes| bytes[5] = 0x19),
        ),
        Case::anonymous(
            "a truncated attestation",
            Code::AttestMalformed,
            |_, machine| {
                requote(machine, |bytes| {
                    bytes.pop();
                })
            },
        ),
        Case::anonymous(
            "a quote that is signed over SHA-1",
            Code::AttestAlgorithm,
            |_, _| Box::new(|evidence| over_sha1(&mut evidence.proof.quote)),
        ),
        Case::proven(
            "a certification that is signed over SHA-1",
            Code::AttestAlgorithm,
            |_, _| Box::new(|evidence| over_sha1(&mut evidence.proof.certify)),
        ),
        Case::proven(
            "a quote in the certification's place",
            Code::AttestType,
            |_, _| Box::new(|evidence| evidence.proof.certify = evidence.proof.quote.clone()),
        ),
    ]
}
