//! Certificate requests that a node may not make.

use super::{Anonymous, Outcome, Proven, accepted, expect, lab, refused};
use config_protocol::Code;
use config_protocol::wire::{Blob, Der};
use rcgen::{ExtendedKeyUsagePurpose, KeyUsagePurpose};
use tests_machines::{EkKind, Requester, SoftMachine, World};

/// A join with a changed client request.
fn client(code: Code, change: impl Fn(&mut Requester)) {
    refused(Proven, code, |world, machine| {
        change(&mut machine.client_request);
        world.join(machine)
    });
}

/// A join with a changed serving request.
fn serving(code: Code, change: impl Fn(&mut Requester)) {
    refused(Proven, code, |world, machine| {
        change(&mut machine.serving_request);
        world.join(machine)
    });
}

#[test]
fn a_node_may_ask_only_for_its_own_subject() {
    for name in [
        "system:node:worker-2",
        "admin",
        "system:node:",
        "system:node:WORKER-1",
    ] {
        client(Code::CsrCommonName, |request| {
            request.common_name = name.to_owned();
        });
        serving(Code::CsrCommonName, |request| {
            request.common_name = name.to_owned();
        });
    }
    for organization in ["system:masters", "", "system:nodes "] {
        client(Code::CsrOrganization, |request| {
            request.organization = organization.to_owned();
        });
        serving(Code::CsrOrganization, |request| {
            request.organization = organization.to_owned();
        });
    }
    client(Code::CsrSubject, |request| {
        request.unit = Some("operations".to_owned());
    });
    serving(Code::CsrSubject, |request| {
        request.unit = Some("operations".to_owned());
    });
}

#[test]
fn a_node_may_ask_only_for_names_of_the_inventory() {
    serving(Code::CsrSan, |request| {
        request.names.push("worker-2".to_owned());
    });
    serving(Code::CsrSan, |request| {
        request.names.push("192.168.77.12".to_owned());
    });
    serving(Code::CsrSan, |request| {
        request.email = Some("root@worker-1".to_owned());
    });
    serving(Code::CsrSanWildcard, |request| {
        request.names.push("*.worker-1".to_owned());
    });
    for name in [
        "kubernetes",
        "kubernetes.default.svc",
        "10.96.0.1",
        "192.168.77.10",
    ] {
        serving(Code::CsrSanApiServer, |request| {
            request.names.push(name.to_owned());
        });
    }
    client(Code::CsrSan, |request| {
        request.names.push("worker-1".to_owned());
    });
}

#[test]
fn without_an_inventory_entry_a_node_gets_claimed_addresses_that_no_other_has() {
    let open = |claimed: &str| -> Outcome {
        let (mut world, mut machine) = lab();
        world.rule.certificate.sans = String::new();
        world.object("worker-1").spec.addresses.clear();
        world.machine("worker-2", "192.168.77.12", EkKind::P256);
        machine.claims.addresses = vec![claimed.to_owned()];
        machine.serving_request.names = vec!["worker-1".to_owned(), claimed.to_owned()];
        world.join(&machine)
    };
    accepted(open("10.0.2.15"));
    accepted(open("fd00::15"));
    expect(Proven, Code::CsrSan, open("192.168.77.12"));
    expect(Proven, Code::CsrSan, open("127.0.0.1"));
    expect(Proven, Code::CsrSan, open("169.254.169.254"));
    expect(Proven, Code::CsrSan, open("worker-3"));
    expect(Proven, Code::CsrSanApiServer, open("10.96.0.1"));
    // The same address written as IPv6, which clients treat as equal.
    accepted(open("::ffff:10.0.2.15"));
    expect(Proven, Code::CsrSan, open("::ffff:192.168.77.12"));
    expect(Proven, Code::CsrSan, open("::ffff:127.0.0.1"));
    expect(Proven, Code::CsrSanApiServer, open("::ffff:10.96.0.1"));
}

#[test]
fn extensions_ask_for_no_more_than_a_node_has() {
    let ca = |critical| {
        (
            vec![2, 5, 29, 19],
            vec![0x30, 0x03, 0x01, 0x01, 0xff],
            critical,
        )
    };
    client(Code::CsrCa, |request| request.extensions.push(ca(true)));
    serving(Code::CsrCa, |request| request.extensions.push(ca(false)));
    client(Code::CsrUsage, |request| {
        request.usages.push(KeyUsagePurpose::KeyCertSign);
    });
    serving(Code::CsrUsage, |request| {
        request.usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign];
    });
    client(Code::CsrUsage, |request| {
        request
            .extended_usages
            .push(ExtendedKeyUsagePurpose::ServerAuth);
    });
    serving(Code::CsrUsage, |request| {
        request.extended_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
    });
    serving(Code::CsrUsage, |request| {
        request.extended_usages.push(ExtendedKeyUsagePurpose::Any);
    });
    for critical in [true, false] {
        let unknown = (vec![1, 3, 6, 1, 4, 1, 99999, 1], vec![0x05, 0x00], critical);
        client(Code::CsrExtension, |request| {
            request.extensions.push(unknown.clone());
        });
        serving(Code::CsrExtension, |request| {
            request.extensions.push(unknown.clone());
        });
    }
}

#[test]
fn the_usages_that_a_node_has_may_be_asked_for() {
    let (mut world, mut machine) = lab();
    machine.client_request.usages = vec![KeyUsagePurpose::DigitalSignature];
    machine.client_request.extended_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    machine.serving_request.usages = vec![KeyUsagePurpose::DigitalSignature];
    machine.serving_request.extended_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    accepted(world.join(&machine));
}

/// A join with requests of the attacker's own making, announced as they are.
fn requests(
    world: &mut World,
    machine: &SoftMachine,
    client: Vec<u8>,
    serving: Vec<u8>,
) -> Outcome {
    let hello =
        config_protocol::prover::hello(machine.keys(), &client, &serving, machine.claims.clone());
    let challenge = world.challenge(&hello)?;
    let hello = (hello, client, serving);
    let evidence = machine.evidence(
        config_protocol::Purpose::Join,
        &hello,
        &challenge,
        &world.channel,
    );
    world.verify(&challenge, &evidence)
}

#[test]
fn a_request_must_parse_and_be_signed_by_its_own_key() {
    refused(Proven, Code::CsrMalformed, |world, machine| {
        requests(world, machine, b"garbage".to_vec(), machine.serving_csr())
    });
    refused(Proven, Code::CsrMalformed, |world, machine| {
        let mut client = machine.client_csr();
        client.push(0);
        requests(world, machine, client, machine.serving_csr())
    });
    // The same length with one more octet: another encoding of the same request.
    refused(Proven, Code::CsrMalformed, |world, machine| {
        let client = machine.client_csr();
        let [0x30, 0x81, length, rest @ ..] = client.as_slice() else {
            panic!("a sequence of 128 to 255 octets")
        };
        let longer = [&[0x30, 0x82, 0, *length], rest].concat();
        requests(world, machine, longer, machine.serving_csr())
    });
    let damaged = |mut request: Vec<u8>| {
        if let Some(last) = request.last_mut() {
            *last ^= 1;
        }
        request
    };
    refused(Proven, Code::CsrSignature, |world, machine| {
        requests(
            world,
            machine,
            machine.client_csr(),
            damaged(machine.serving_csr()),
        )
    });
    refused(Proven, Code::CsrSignature, |world, machine| {
        requests(
            world,
            machine,
            damaged(machine.client_csr()),
            machine.serving_csr(),
        )
    });
}

#[test]
fn the_client_key_is_the_node_key_and_the_serving_key_is_not() {
    refused(Proven, Code::CsrKey, |world, machine| {
        let client = machine.client_request.request(&machine.serving);
        requests(world, machine, client, machine.serving_csr())
    });
    refused(Proven, Code::CsrServingKey, |world, machine| {
        let serving = machine.serving_request.request(&machine.nk);
        requests(world, machine, machine.client_csr(), serving)
    });
    // Keys of other types, with valid signatures.
    for algorithm in [&rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519] {
        let key = rcgen::KeyPair::generate_for(algorithm).expect("a key");
        refused(Proven, Code::CsrKey, |world, machine| {
            let client = machine.client_request.request_by(&key);
            requests(world, machine, client, machine.serving_csr())
        });
        refused(Proven, Code::CsrServingKey, |world, machine| {
            let serving = machine.serving_request.request_by(&key);
            requests(world, machine, machine.client_csr(), serving)
        });
    }
}

#[test]
fn requests_swapped_between_the_steps_are_seen() {
    refused(Anonymous, Code::CsrHash, |world, machine| {
        let other = machine.serving_csr();
        world.join_with(machine, |evidence| {
            evidence.client_csr = Der::new(other).expect("within the limit");
        })
    });
    // Also when the announcement in the transcript is swapped with them.
    refused(Anonymous, Code::CsrHash, |world, machine| {
        let client = Requester {
            organization: "system:masters".to_owned(),
            ..machine.client_request.clone()
        };
        let client = client.request(&machine.nk);
        world.join_with(machine, |evidence| {
            evidence.proof.transcript.csr_hash =
                config_protocol::wire::csr_hash(&client, evidence.serving_csr.as_bytes());
            evidence.client_csr = Blob::new(client).expect("within the limit");
        })
    });
}
