//! Keys with wrong attributes, and attestations of other structures.

use super::{Anonymous, Outcome, Proven, accepted, lab, refused};
use config_protocol::Code;
use config_protocol::wire::{Blob, Signed};
use config_tpm::Digest;
use config_tpm::pcr::{QUOTE_PCRS, Selection};
use config_tpm::{Attested, Attributes, HashAlg, Scheme};
use tests_machines::{EkKind, SoftMachine, World};

fn without(attributes: Attributes, bit: Attributes) -> Attributes {
    Attributes(attributes.0 & !bit.0)
}

#[test]
fn an_ak_of_another_tpm_cannot_open_the_credential() {
    refused(Anonymous, Code::CredentialNotActivated, |world, machine| {
        // The attacker sends the good machine's EK with an AK of a TPM that does not hold that EK.
        let mut forged = SoftMachine::new("worker-1", EkKind::P384);
        forged.ek_public = machine.ek_public.clone();
        forged.ek_certificate.clone_from(&machine.ek_certificate);
        forged.bank = machine.bank.clone();
        forged.bind_nk();
        world.join(&forged)
    });
}

#[test]
fn ak_attributes_are_exact() {
    let cases = [
        (Attributes::RESTRICTED, Code::AkUnrestricted),
        (Attributes::SENSITIVE_DATA_ORIGIN, Code::AkExternal),
        (Attributes::FIXED_TPM, Code::AkDuplicable),
        (Attributes::FIXED_PARENT, Code::AkDuplicable),
        (Attributes::USER_WITH_AUTH, Code::AkTemplate),
        (Attributes::SIGN, Code::AkTemplate),
    ];
    for (bit, code) in cases {
        refused(Anonymous, code, |world, machine| {
            machine.ak_public.attributes = without(machine.ak_public.attributes, bit);
            world.join(machine)
        });
    }
    refused(Anonymous, Code::AkTemplate, |world, machine| {
        machine.ak_public.attributes = machine.ak_public.attributes.with(Attributes::DECRYPT);
        world.join(machine)
    });
    refused(Anonymous, Code::AkTemplate, |world, machine| {
        machine.ak_public.auth_policy = vec![0; 32];
        world.join(machine)
    });
}

/// `noDA` only keeps the TPM from locking the keys, so it is optional.
#[test]
fn keys_may_lack_no_da() {
    let (mut world, mut machine) = lab();
    machine.ak_public.attributes = without(machine.ak_public.attributes, Attributes::NO_DA);
    machine.nk_public.attributes = without(machine.nk_public.attributes, Attributes::NO_DA);
    accepted(world.join(&machine));
    accepted(world.renew(&machine));
}

#[test]
fn nk_attributes_are_exact() {
    let cases = [
        (Attributes::SENSITIVE_DATA_ORIGIN, Code::NkExternal),
        (Attributes::FIXED_TPM, Code::NkDuplicable),
        (Attributes::FIXED_PARENT, Code::NkDuplicable),
        (Attributes::SIGN, Code::NkTemplate),
    ];
    for (bit, code) in cases {
        refused(Anonymous, code, |world, machine| {
            machine.nk_public.attributes = without(machine.nk_public.attributes, bit);
            world.join(machine)
        });
    }
    for bit in [
        Attributes::USER_WITH_AUTH,
        Attributes::ADMIN_WITH_POLICY,
        Attributes::RESTRICTED,
    ] {
        refused(Anonymous, Code::NkTemplate, |world, machine| {
            machine.nk_public.attributes = machine.nk_public.attributes.with(bit);
            world.join(machine)
        });
    }
    refused(Anonymous, Code::NkTemplate, |world, machine| {
        machine.nk_public.auth_policy.clear();
        world.join(machine)
    });
}

#[test]
fn a_signing_key_with_another_scheme_is_not_of_the_template() {
    refused(Anonymous, Code::AkTemplate, |world, machine| {
        if let config_tpm::Key::Ecc { scheme, .. } = &mut machine.ak_public.key {
            *scheme = Scheme::Ecdsa(HashAlg::Sha1);
        }
        world.join(machine)
    });
}

#[test]
fn an_ek_that_is_not_of_a_tcg_template_is_refused() {
    refused(Anonymous, Code::EkTemplate, |world, machine| {
        machine.ek_public.attributes =
            without(machine.ek_public.attributes, Attributes::RESTRICTED);
        world.join(machine)
    });
    refused(Anonymous, Code::EkTemplate, |world, machine| {
        machine.ek_public.auth_policy = vec![0; 32];
        world.join(machine)
    });
    // A point that is not on the curve.
    refused(Anonymous, Code::EkTemplate, |world, machine| {
        if let config_tpm::Key::Ecc { x, .. } = &mut machine.ek_public.key {
            x[5] ^= 1;
        }
        world.join(machine)
    });
}

#[test]
fn a_node_key_with_another_policy_or_made_before_the_registers_changed_is_refused() {
    refused(Proven, Code::NkAuthPolicy, |world, machine| {
        machine.nk_public.auth_policy = vec![1; 32];
        world.join(machine)
    });
    for pcr in [12, 13] {
        refused(Proven, Code::NkAuthPolicy, |world, machine| {
            machine
                .bank
                .extend(pcr, &Digest::of(b"after the node key was made"));
            world.join(machine)
        });
    }
}

#[test]
fn the_certified_key_is_the_node_key() {
    refused(Proven, Code::CertifyOtherKey, |world, machine| {
        let honest = machine.clone();
        world.join_with(machine, |evidence| {
            let question =
                Digest::from_slice(&attest(&evidence.proof.quote).extra_data).expect("Q");
            let mut certify = honest.certify(&question);
            let other = honest.ek_public.name().as_bytes().to_vec();
            certify.attested = Attested::Certify {
                name: other.clone(),
                qualified_name: other,
            };
            evidence.proof.certify = honest.sign(&certify);
        })
    });
}

fn attest(signed: &Signed) -> config_tpm::Attest {
    config_tpm::Attest::parse(signed.attest.as_bytes()).expect("an attestation")
}

/// A join in which the quote's bytes were changed and signed by the AK, as an AK that is not
/// restricted would.
fn requoted(
    world: &mut World,
    machine: &SoftMachine,
    change: impl FnOnce(&mut Vec<u8>),
) -> Outcome {
    let signer = machine.clone();
    world.join_with(machine, |evidence| {
        let mut bytes = evidence.proof.quote.attest.as_bytes().to_vec();
        change(&mut bytes);
        evidence.proof.quote = signer.sign_bytes(&bytes);
    })
}

#[test]
fn attestations_are_of_the_right_form() {
    refused(Anonymous, Code::AttestMagic, |world, machine| {
        requoted(world, machine, |bytes| bytes[0] ^= 1)
    });
    refused(Anonymous, Code::AttestMalformed, |world, machine| {
        requoted(world, machine, |bytes| bytes.push(0))
    });
    refused(Anonymous, Code::AttestMalformed, |world, machine| {
        requoted(world, machine, |bytes| {
            bytes.pop();
        })
    });
    // TPM_ST_ATTEST_TIME in place of TPM_ST_ATTEST_QUOTE.
    refused(Anonymous, Code::AttestType, |world, machine| {
        requoted(world, machine, |bytes| bytes[5] = 0x19)
    });
    refused(Anonymous, Code::AttestType, |world, machine| {
        world.join_with(machine, |evidence| {
            evidence.proof.quote = evidence.proof.certify.clone();
        })
    });
    refused(Proven, Code::AttestType, |world, machine| {
        world.join_with(machine, |evidence| {
            evidence.proof.certify = evidence.proof.quote.clone();
        })
    });
}

#[test]
fn signatures_are_ecdsa_p256_with_sha256() {
    // The hash named in the signature is SHA-1; then the algorithm is RSASSA.
    for (at, byte) in [(3, 0x04), (1, 0x14)] {
        refused(Anonymous, Code::AttestAlgorithm, |world, machine| {
            world.join_with(machine, |evidence| {
                let mut bytes = evidence.proof.quote.signature.as_bytes().to_vec();
                bytes[at] = byte;
                evidence.proof.quote.signature = Blob::new(bytes).expect("the same length");
            })
        });
        refused(Proven, Code::AttestAlgorithm, |world, machine| {
            world.join_with(machine, |evidence| {
                let mut bytes = evidence.proof.certify.signature.as_bytes().to_vec();
                bytes[at] = byte;
                evidence.proof.certify.signature = Blob::new(bytes).expect("the same length");
            })
        });
    }
}

/// A join in which the AK quoted another selection than asked for.
fn selected(world: &mut World, machine: &SoftMachine, bank: HashAlg, pcrs: &[u8]) -> Outcome {
    let signer = machine.clone();
    world.join_with(machine, |evidence| {
        let mut quote = attest(&evidence.proof.quote);
        let selection = Selection::of(pcrs);
        let values = signer.bank.values(selection);
        let mut tpm = selection.to_pcr_selection();
        tpm.bank = bank.id();
        quote.attested = Attested::Quote {
            selection: vec![tpm],
            digest: selection.digest(&values).as_bytes().to_vec(),
        };
        evidence.proof.quote = signer.sign(&quote);
        evidence.proof.pcrs = values;
    })
}

#[test]
fn fewer_or_more_registers_or_another_bank_are_refused() {
    let fewer: Vec<u8> = QUOTE_PCRS
        .iter()
        .copied()
        .filter(|pcr| *pcr != 12)
        .collect();
    refused(Proven, Code::PcrSelection, |world, machine| {
        selected(world, machine, HashAlg::Sha256, &fewer)
    });
    let more = [QUOTE_PCRS, &[16]].concat();
    refused(Proven, Code::PcrSelection, |world, machine| {
        selected(world, machine, HashAlg::Sha256, &more)
    });
    refused(Proven, Code::PcrSelection, |world, machine| {
        selected(world, machine, HashAlg::Sha256, &[])
    });
    refused(Proven, Code::PcrBank, |world, machine| {
        selected(world, machine, HashAlg::Sha1, QUOTE_PCRS)
    });
}

#[test]
fn register_values_are_the_quoted_ones() {
    refused(Proven, Code::PcrDigest, |world, machine| {
        world.join_with(machine, |evidence| {
            evidence.proof.pcrs.insert(11, Digest::ZERO);
        })
    });
    refused(Proven, Code::PcrDigest, |world, machine| {
        world.join_with(machine, |evidence| {
            evidence.proof.pcrs.remove(&15);
        })
    });
}

#[test]
fn keys_of_other_hierarchies_are_refused() {
    const OWNER: u32 = 0x4000_0001;
    refused(Proven, Code::AkHierarchy, |world, machine| {
        machine.ak_hierarchy = OWNER;
        world.join(machine)
    });
    // A node key that outlives the boot, although all its attributes are right.
    for hierarchy in [OWNER, config_tpm::ENDORSEMENT_HIERARCHY] {
        refused(Proven, Code::NkHierarchy, |world, machine| {
            machine.nk_hierarchy = hierarchy;
            world.join(machine)
        });
    }
}
