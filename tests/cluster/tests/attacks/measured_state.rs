//! Attacks on the proof of what was booted: registers, log, image, Secure Boot, configuration.

use crate::lab::{CONFIG, Lab};
use crate::{Case, Change, nothing};
use config_protocol::Code;
use config_protocol::wire::Blob;
use config_tpm::Digest;
use config_tpm::eventlog::{Event, EventLog, kind};
use config_tpm::pcr::{QUOTE_PCRS, Selection};
use config_tpm::{Attest, Attested, HashAlg};
use tests_machines::{SoftImage, SoftMachine};

/// Sends a changed log.
fn log(machine: &SoftMachine, change: impl FnOnce(&mut EventLog)) -> Change {
    let mut log = machine.log.clone();
    change(&mut log);
    let bytes = log.to_bytes();
    Box::new(move |evidence| evidence.proof.event_log = Blob::new(bytes).unwrap())
}

fn last_of(log: &EventLog, pcr: u8) -> usize {
    log.events
        .iter()
        .rposition(|event| event.pcr == pcr)
        .unwrap()
}

/// Boots a variant of the image.
fn boot(lab: &Lab, machine: &mut SoftMachine, change: impl FnOnce(&mut SoftImage)) -> Change {
    let mut image = lab.image.clone();
    change(&mut image);
    machine.boot(&image, "nocloud", CONFIG);
    nothing()
}

/// Measures something more, with its event.
fn measure(machine: &mut SoftMachine, pcr: u8, data: &[u8]) -> Change {
    let event = Event {
        pcr,
        kind: kind::IPL,
        digest: Digest::of(data),
        data: data.to_vec(),
    };
    machine.bank.extend(pcr, &event.digest);
    machine.log.events.push(event);
    machine.bind_nk();
    nothing()
}

/// Quotes another selection than asked for.
fn select(machine: &SoftMachine, bank: HashAlg, pcrs: &[u8]) -> Change {
    let (signer, pcrs) = (machine.clone(), pcrs.to_vec());
    Box::new(move |evidence| {
        let mut quote = Attest::parse(evidence.proof.quote.attest.as_bytes()).unwrap();
        let selection = Selection::of(&pcrs);
        let values = signer.bank.values(selection);
        let mut tpm = selection.to_pcr_selection();
        tpm.bank = bank.id();
        let digest = selection.digest(&values).as_bytes().to_vec();
        quote.attested = Attested::Quote {
            selection: vec![tpm],
            digest,
        };
        evidence.proof.quote = signer.sign(&quote);
        evidence.proof.pcrs = values;
    })
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = registers();
    cases.extend(logs());
    cases.extend(images());
    cases.extend(settings());
    cases
}

fn registers() -> Vec<Case> {
    vec![
        Case::proven(
            "a register value that was not quoted",
            Code::PcrDigest,
            |_, _| {
                Box::new(|evidence| {
                    evidence.proof.pcrs.insert(11, Digest::ZERO);
                })
            },
        ),
        Case::proven("fewer registers", Code::PcrSelection, |_, machine| {
            let fewer: Vec<u8> = QUOTE_PCRS
                .iter()
                .copied()
                .filter(|pcr| *pcr != 12)
                .collect();
            select(machine, HashAlg::Sha256, &fewer)
        }),
        Case::proven("the SHA-1 bank", Code::PcrBank, |_, machine| {
            select(machine, HashAlg::Sha1, QUOTE_PCRS)
        }),
        Case::proven(
            "a register changed behind the log",
            Code::EventLogReplay,
            |_, machine| {
                machine.bank.extend(0, &Digest::of(b"firmware implant"));
                nothing()
            },
        ),
    ]
}

fn logs() -> Vec<Case> {
    vec![
        Case::proven("a truncated log", Code::EventLogTruncated, |_, _| {
            Box::new(|evidence| {
                let bytes = evidence.proof.event_log.as_bytes();
                let cut = bytes[..bytes.len() - 5].to_vec();
                evidence.proof.event_log = Blob::new(cut).unwrap();
            })
        }),
        Case::proven("an added event", Code::EventLogReplay, |_, machine| {
            log(machine, |log| {
                let event = Event {
                    pcr: 4,
                    kind: kind::EFI_ACTION,
                    digest: Digest::of(b"x"),
                    data: b"x".to_vec(),
                };
                log.events.push(event);
            })
        }),
        Case::proven("reordered events", Code::EventLogReplay, |_, machine| {
            log(machine, |log| {
                let last = last_of(log, 11);
                log.events.swap(last, last - 1);
            })
        }),
        Case::proven(
            "a rewritten event type",
            Code::EventUnknown,
            |_, machine| {
                log(machine, |log| {
                    let last = last_of(log, 4);
                    log.events[last].kind = 0x8000_0002;
                })
            },
        ),
        Case::proven(
            "a log entry whose text was not measured",
            Code::EventData,
            |_, machine| {
                log(machine, |log| {
                    let event = log.events.iter().position(|event| event.pcr == 7).unwrap();
                    let end = log.events[event].data.len() - 1;
                    log.events[event].data[end] ^= 1;
                })
            },
        ),
        Case::proven("another boot's log", Code::EventLogReplay, |_, machine| {
            let other = SoftImage::new("worker-6", "worker", 6).log();
            log(machine, |log| *log = other)
        }),
        Case::proven("a log that is garbage", Code::EventLogMalformed, |_, _| {
            Box::new(|evidence| evidence.proof.event_log = Blob::new(vec![0xff; 4096]).unwrap())
        }),
    ]
}

fn images() -> Vec<Case> {
    vec![
        Case::proven(
            "privileged pods under a rule that refuses them",
            Code::PrivilegedPods,
            |_, machine| {
                machine.claims.privileged_pods = true;
                nothing()
            },
        ),
        Case::proven("an unsigned image", Code::ImageUnsigned, |_, machine| {
            machine.boot(
                &SoftImage::new("worker-unsigned", "worker", 9),
                "nocloud",
                CONFIG,
            );
            nothing()
        }),
        Case::proven(
            "an image below the minimum SVN",
            Code::ImageSvn,
            |_, machine| {
                machine.boot(
                    &SoftImage::new("worker-old", "worker", 3),
                    "nocloud",
                    CONFIG,
                );
                nothing()
            },
        ),
        Case::proven(
            "a master's image on a worker",
            Code::ImageRole,
            |_, machine| {
                machine.boot(&SoftImage::new("master-7", "master", 7), "nocloud", CONFIG);
                nothing()
            },
        ),
        Case::proven(
            "an image without a release",
            Code::ImageUnknown,
            |lab, machine| {
                boot(lab, machine, |image| {
                    *image = SoftImage::new("worker-666", "worker", 666);
                    "another".clone_into(&mut image.command_line);
                })
            },
        ),
        Case::proven("a changed kernel", Code::ImageLoader, |lab, machine| {
            boot(lab, machine, |image| image.kernel[3] ^= 1)
        }),
        Case::proven(
            "a changed command line or root hash",
            Code::ImageCommandLine,
            |lab, machine| {
                boot(lab, machine, |image| {
                    image.command_line.push_str(" pratique.roothash=other");
                })
            },
        ),
        Case::proven(
            "a section that no other register shows",
            Code::ImageSections,
            |_, machine| measure(machine, 11, b".sbat"),
        ),
    ]
}

/// Measured settings other than the image: Secure Boot, arguments from outside, user-data.
fn settings() -> Vec<Case> {
    vec![
        Case::proven("Secure Boot off", Code::SecureBootOff, |lab, machine| {
            boot(lab, machine, |image| image.keys.enabled = false)
        }),
        Case::proven("a changed db", Code::SecureBootDatabase, |lab, machine| {
            boot(lab, machine, |image| {
                image.keys.db = b"db with another signer".to_vec();
            })
        }),
        Case::proven("a changed dbx", Code::SecureBootDatabase, |lab, machine| {
            boot(lab, machine, |image| image.keys.dbx = Vec::new())
        }),
        Case::proven(
            "kernel arguments from outside (SMBIOS)",
            Code::OutsideArguments,
            |_, machine| measure(machine, 12, b"init=/bin/sh"),
        ),
        Case::proven("changed user-data", Code::ConfigChanged, |lab, machine| {
            machine.boot(&lab.image, "nocloud", b"version = 1\n# changed\n");
            nothing()
        }),
        Case::proven(
            "user-data that was not measured",
            Code::ConfigNotMeasured,
            |_, machine| {
                machine.bank = machine.log.replay();
                machine.config_event = None;
                machine.bind_nk();
                nothing()
            },
        ),
        Case::proven(
            "user-data measured twice",
            Code::ConfigEvent,
            |_, machine| {
                machine.bank.extend(13, &Digest::of(b"second"));
                machine.bind_nk();
                nothing()
            },
        ),
    ]
}
