//! Requests that ask for more than a node has.

use crate::freshness::Open;
use crate::lab::Lab;
use crate::{Case, nothing};
use config_protocol::wire::Der;
use config_protocol::{Code, Purpose, prover};
use config_tpm::Digest;
use p256::ecdsa::SigningKey;
use rcgen::{ExtendedKeyUsagePurpose, KeyUsagePurpose};
use tests_machines::{EkKind, SoftMachine};

/// basicConstraints with CA:true.
const CA_TRUE: (&[u64], &[u8]) = (&[2, 5, 29, 19], &[0x30, 0x03, 0x01, 0x01, 0xff]);

fn other_key() -> SigningKey {
    SoftMachine::new("another key", EkKind::P256).ak
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = names();
    cases.extend(powers());
    cases.extend(swaps());
    cases
}

fn names() -> Vec<Case> {
    vec![
        Case::proven(
            "another organization in the subject",
            Code::CsrOrganization,
            |_, machine| {
                "system:masters".clone_into(&mut machine.client_request.organization);
                nothing()
            },
        ),
        Case::proven(
            "a subject with an attribute too many",
            Code::CsrSubject,
            |_, machine| {
                machine.client_request.unit = Some("operations".to_owned());
                nothing()
            },
        ),
        Case::proven("another common name", Code::CsrCommonName, |_, machine| {
            "system:node:another".clone_into(&mut machine.client_request.common_name);
            nothing()
        }),
        Case::proven(
            "the admin's common name",
            Code::CsrCommonName,
            |_, machine| {
                "admin".clone_into(&mut machine.client_request.common_name);
                nothing()
            },
        ),
        Case::proven(
            "an address beyond the inventory's",
            Code::CsrSan,
            |_, machine| {
                machine.serving_request.names.push("10.250.0.1".to_owned());
                nothing()
            },
        ),
        Case::proven("a wildcard name", Code::CsrSanWildcard, |_, machine| {
            machine
                .serving_request
                .names
                .push(format!("*.{}", machine.node));
            nothing()
        }),
        Case::proven(
            "the API server's name",
            Code::CsrSanApiServer,
            |_, machine| {
                machine
                    .serving_request
                    .names
                    .push("kubernetes.default.svc".to_owned());
                nothing()
            },
        ),
        Case::proven(
            "the API server's address",
            Code::CsrSanApiServer,
            |_, machine| {
                machine
                    .serving_request
                    .names
                    .push("192.168.77.10".to_owned());
                nothing()
            },
        ),
    ]
}

fn powers() -> Vec<Case> {
    vec![
        Case::proven("CA:true", Code::CsrCa, |_, machine| {
            machine
                .client_request
                .extensions
                .push((CA_TRUE.0.to_vec(), CA_TRUE.1.to_vec(), true));
            nothing()
        }),
        Case::proven("extra usages", Code::CsrUsage, |_, machine| {
            machine
                .client_request
                .usages
                .push(KeyUsagePurpose::KeyCertSign);
            nothing()
        }),
        Case::proven(
            "a client's request for server use",
            Code::CsrUsage,
            |_, machine| {
                machine
                    .client_request
                    .extended_usages
                    .push(ExtendedKeyUsagePurpose::ServerAuth);
                nothing()
            },
        ),
        Case::proven("a critical extension", Code::CsrExtension, |_, machine| {
            machine.client_request.extensions.push((
                vec![1, 3, 6, 1, 4, 1, 32473, 80, 1],
                vec![5, 0],
                true,
            ));
            nothing()
        }),
    ]
}

/// A change to a request after it was made.
type Damage = fn(&mut Vec<u8>);

/// Bytes that are no request, or that the request's own key did not sign; the hello has their hash.
pub(crate) async fn malformed_and_unsigned_certificate_requests_are_refused(lab: &Lab) {
    let longer = |request: &mut Vec<u8>| request.push(0);
    let garbage = |request: &mut Vec<u8>| *request = b"garbage".to_vec();
    let damaged = |request: &mut Vec<u8>| *request.last_mut().unwrap() ^= 1;
    let attacks: [(Code, Damage); 3] = [
        (Code::CsrMalformed, garbage),
        (Code::CsrMalformed, longer),
        (Code::CsrSignature, damaged),
    ];
    for (code, change) in attacks {
        for changes_client in [true, false] {
            let machine = lab.machine().await;
            lab.join(&machine).await.accepted();
            let (mut client, mut serving) = (machine.client_csr(), machine.serving_csr());
            change(if changes_client {
                &mut client
            } else {
                &mut serving
            });
            let hello = prover::hello(machine.keys(), &client, &serving, machine.claims.clone());
            let mut open = Open::with(lab, &machine, (hello, client, serving)).await;
            let evidence = open.evidence(&machine, Purpose::Join);
            lab.refused(&open.answer(&evidence).await, code, true).await;
        }
    }
}

fn swaps() -> Vec<Case> {
    vec![
        Case::proven("a client key that is not NK", Code::CsrKey, |_, machine| {
            // The hello names this request, so that its hash is the announced one.
            machine.nk = other_key();
            nothing()
        }),
        Case::proven(
            "a serving key that is NK",
            Code::CsrServingKey,
            |_, machine| {
                machine.serving = machine.nk.clone();
                nothing()
            },
        ),
        Case::anonymous(
            "a request swapped between the steps",
            Code::CsrHash,
            |_, machine| {
                let other = machine.client_request.request(&other_key());
                Box::new(move |evidence| evidence.client_csr = Der::new(other).unwrap())
            },
        ),
        Case::anonymous(
            "claims swapped between the steps",
            Code::ClaimsMismatch,
            |_, _| {
                Box::new(|evidence| {
                    evidence.proof.transcript.claims_hash = Digest::of(b"other claims");
                })
            },
        ),
    ]
}
