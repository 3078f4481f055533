//! Attacks on the proof of what was booted: log, image, Secure Boot, configuration, firmware,
//! counters.

use super::{Proven, accepted, expect, lab, refused};
use config_kube::MachineState;
use config_protocol::Code;
use config_protocol::wire::Blob;
use config_tpm::Digest;
use config_tpm::eventlog::{Event, EventLog, kind};
use tests_machines::{EkKind, SoftImage, SoftMachine, World};

const CONFIG: &[u8] = b"version = 1\n";

/// A join with a changed event log.
fn with_log(
    world: &mut World,
    machine: &SoftMachine,
    change: impl FnOnce(&mut EventLog),
) -> super::Outcome {
    let mut log = machine.log.clone();
    change(&mut log);
    world.join_with(machine, |evidence| {
        evidence.proof.event_log = Blob::new(log.to_bytes()).expect("within the limit");
    })
}

fn last_of(log: &EventLog, pcr: u8) -> usize {
    log.events
        .iter()
        .rposition(|event| event.pcr == pcr)
        .expect("an event of the register")
}

#[test]
fn a_truncated_log_is_refused_wherever_it_is_cut() {
    refused(Proven, Code::EventLogTruncated, |world, machine| {
        world.join_with(machine, |evidence| {
            let bytes = evidence.proof.event_log.as_bytes();
            let cut = bytes[..bytes.len() - 5].to_vec();
            evidence.proof.event_log = Blob::new(cut).expect("shorter");
        })
    });
    // Cut between events: the events of PCR 11 and 9 are missing.
    refused(Proven, Code::EventLogTruncated, |world, machine| {
        with_log(world, machine, |log| {
            log.events.retain(|event| event.pcr != 11 && event.pcr != 9);
        })
    });
    refused(Proven, Code::EventLogTruncated, |world, machine| {
        with_log(world, machine, |log| log.events.clear())
    });
}

#[test]
fn bytes_that_are_no_log_are_malformed() {
    for garbage in [Vec::new(), b"garbage".to_vec(), vec![0xff; 4096]] {
        refused(Proven, Code::EventLogMalformed, |world, machine| {
            world.join_with(machine, |evidence| {
                evidence.proof.event_log = Blob::new(garbage).expect("within the limit");
            })
        });
    }
}

#[test]
fn added_removed_or_reordered_events_and_another_boots_log_do_not_replay() {
    refused(Proven, Code::EventLogReplay, |world, machine| {
        with_log(world, machine, |log| {
            log.events.push(Event {
                pcr: 4,
                kind: kind::EFI_ACTION,
                digest: Digest::of(b"x"),
                data: b"x".to_vec(),
            });
        })
    });
    refused(Proven, Code::EventLogReplay, |world, machine| {
        with_log(world, machine, |log| {
            log.events.remove(last_of(log, 4));
        })
    });
    refused(Proven, Code::EventLogReplay, |world, machine| {
        with_log(world, machine, |log| {
            let last = last_of(log, 11);
            log.events.swap(last, last - 1);
        })
    });
    refused(Proven, Code::EventLogReplay, |world, machine| {
        let other = SoftImage::new("worker-6", "worker", 6).log();
        with_log(world, machine, |log| *log = other)
    });
    // A measured event declared as an unmeasured one.
    refused(Proven, Code::EventLogReplay, |world, machine| {
        with_log(world, machine, |log| {
            let last = last_of(log, 4);
            log.events[last].kind = kind::NO_ACTION;
        })
    });
}

#[test]
fn a_rewritten_event_type_is_unknown_to_policy() {
    for pcr in [4, 7, 9, 11] {
        refused(Proven, Code::EventUnknown, |world, machine| {
            with_log(world, machine, |log| {
                let last = last_of(log, pcr);
                log.events[last].kind = 0x8000_0002;
            })
        });
    }
    // The variable SecureBoot under another event type.
    refused(Proven, Code::EventUnknown, |world, machine| {
        with_log(world, machine, |log| {
            let first = log
                .events
                .iter()
                .position(|event| event.pcr == 7)
                .expect("an event");
            log.events[first].kind = kind::EFI_VARIABLE_AUTHORITY;
        })
    });
    // Where the manifest lists events, a type that the policy knows still differs from the listed
    // one.
    let (mut world, _) = lab();
    let mut image = world.image.clone();
    image.list_events = true;
    world.releases = vec![
        image
            .manifest()
            .sign(&[&world.release_signer])
            .expect("a release"),
    ];
    let machine = world.machine("worker-2", "192.168.77.12", EkKind::P256);
    let outcome = with_log(&mut world, &machine, |log| {
        let last = last_of(log, 4);
        log.events[last].kind = kind::EFI_ACTION;
    });
    expect(Proven, Code::EventUnknown, outcome);
}

#[test]
fn data_that_was_not_measured_is_refused() {
    // The log says that Secure Boot was on, in data that its digest does not cover.
    refused(Proven, Code::EventData, |world, machine| {
        machine.log = machine.log.clone();
        with_log(world, machine, |log| {
            let first = log
                .events
                .iter()
                .position(|event| event.pcr == 7)
                .expect("an event");
            let end = log.events[first].data.len() - 1;
            log.events[first].data[end] ^= 1;
        })
    });
    refused(Proven, Code::EventData, |world, machine| {
        with_log(world, machine, |log| {
            let separator = log
                .events
                .iter()
                .position(|event| event.pcr == 4 && event.kind == kind::EFI_ACTION);
            log.events[separator.expect("an action")].data =
                b"Returning from EFI Application".to_vec();
        })
    });
}

#[test]
fn an_event_in_a_register_that_holds_none_is_unknown_unless_the_rule_lets_it_pass() {
    let measure = |machine: &mut SoftMachine, pcr| {
        let event = Event {
            pcr,
            kind: kind::IPL,
            digest: Digest::of(b"moklist"),
            data: b"moklist".to_vec(),
        };
        machine.bank.extend(pcr, &event.digest);
        machine.log.events.push(event);
    };
    for pcr in [14, 15] {
        refused(Proven, Code::EventUnknown, |world, machine| {
            measure(machine, pcr);
            world.join(machine)
        });
        let (mut world, mut machine) = lab();
        world.rule.events.allow_unknown = true;
        measure(&mut machine, pcr);
        accepted(world.join(&machine));
    }
}

#[test]
fn a_register_changed_behind_the_log_is_refused() {
    for pcr in [0, 2, 4, 7, 9, 11, 12, 13, 14, 15] {
        let code = match pcr {
            12 => Code::OutsideArguments,
            13 => Code::ConfigEvent,
            // Nothing is measured into this register, so an honest log has no event of it.
            14 | 15 => Code::EventLogTruncated,
            _ => Code::EventLogReplay,
        };
        refused(Proven, code, |world, machine| {
            machine.bank.extend(pcr, &Digest::of(b"an implant"));
            machine.bind_nk();
            world.join(machine)
        });
        refused(Proven, Code::EventLogReplay, |world, machine| {
            with_log(world, machine, |log| {
                let digest = Digest::of(b"never measured");
                log.events.push(Event {
                    pcr,
                    kind: kind::IPL,
                    digest,
                    data: Vec::new(),
                });
            })
        });
    }
}

#[test]
fn a_log_without_the_events_of_one_register_is_truncated() {
    for pcr in [0, 2, 4, 7, 9, 11] {
        refused(Proven, Code::EventLogTruncated, |world, machine| {
            with_log(world, machine, |log| {
                log.events.retain(|event| event.pcr != pcr);
            })
        });
    }
    // The event that says that Secure Boot is on is there, the events after it are missing.
    refused(Proven, Code::EventLogTruncated, |world, machine| {
        with_log(world, machine, |log| {
            let mut variables = 0;
            log.events.retain(|event| {
                variables += usize::from(event.pcr == 7);
                event.pcr != 7 || variables <= 5
            });
        })
    });
}

#[test]
fn secure_boot_variables_must_come_in_order() {
    // Measured in another order, so that the first event says nothing about Secure Boot.
    refused(Proven, Code::EventUnknown, |world, machine| {
        let first = machine
            .log
            .events
            .iter()
            .position(|event| event.pcr == 7)
            .expect("an event");
        machine.log.events.swap(first, first + 1);
        let config = machine.bank.get(13);
        machine.bank = machine.log.replay();
        machine.bank.set(13, config);
        machine.bind_nk();
        world.join(machine)
    });
}

/// Measures a text into a register, in the log as well.
fn measured(machine: &mut SoftMachine, pcr: u8, text: &[u8]) {
    let event = Event {
        pcr,
        kind: kind::IPL,
        digest: Digest::of(text),
        data: Vec::new(),
    };
    machine.bank.extend(pcr, &event.digest);
    machine.log.events.push(event);
}

#[test]
fn kernel_arguments_from_outside_are_refused() {
    refused(Proven, Code::OutsideArguments, |world, machine| {
        measured(machine, 12, b"init=/bin/sh");
        machine.bind_nk();
        world.join(machine)
    });
}

/// A join of a machine that booted a variant of the image, whose claims say the honest id.
fn booted(
    world: &mut World,
    machine: &mut SoftMachine,
    change: impl FnOnce(&mut SoftImage),
) -> super::Outcome {
    let mut image = world.image.clone();
    change(&mut image);
    machine.boot(&image, "nocloud", CONFIG);
    world.join(machine)
}

#[test]
fn a_changed_image_is_refused_by_what_changed() {
    refused(Proven, Code::ImageLoader, |world, machine| {
        booted(world, machine, |image| image.kernel[3] ^= 1)
    });
    refused(Proven, Code::ImageCommandLine, |world, machine| {
        booted(world, machine, |image| {
            image.command_line.push_str(" pratique.roothash=other");
        })
    });
    refused(Proven, Code::ImageUnknown, |world, machine| {
        booted(world, machine, |image| {
            *image = SoftImage::new("worker-666", "worker", 666);
            image.command_line = "another".to_owned();
        })
    });
}

#[test]
fn a_changed_section_that_only_pcr_11_shows_is_noticed() {
    refused(Proven, Code::ImageSections, |world, machine| {
        measured(machine, 11, b".sbat");
        machine.bind_nk();
        world.join(machine)
    });
}

#[test]
fn an_image_that_no_release_key_of_the_rule_signed_is_unsigned() {
    refused(Proven, Code::ImageUnsigned, |world, machine| {
        world.releases[0].spec.signatures.clear();
        world.join(machine)
    });
    refused(Proven, Code::ImageUnsigned, |world, machine| {
        let stranger = SoftMachine::new("stranger", EkKind::P256).ak;
        world.releases = vec![
            world
                .image
                .manifest()
                .sign(&[&stranger])
                .expect("a release"),
        ];
        world.join(machine)
    });
    // Signed, then edited.
    refused(Proven, Code::ImageUnsigned, |world, machine| {
        let manifest = &mut world.releases[0].spec.manifest;
        *manifest = manifest.replace("\"svn\":7", "\"svn\":8");
        world.join(machine)
    });
    // A configured key that this rule does not name.
    refused(Proven, Code::ImageUnsigned, |world, machine| {
        world.rule.images.release_keys = vec!["rel-2027".to_owned()];
        world.join(machine)
    });
}

#[test]
fn an_image_below_the_minimum_security_version_is_refused() {
    refused(Proven, Code::ImageSvn, |world, machine| {
        world.rule.images.min_svn = 8;
        world.join(machine)
    });
}

#[test]
fn a_master_image_on_a_worker_is_refused() {
    refused(Proven, Code::ImageRole, |world, machine| {
        let image = SoftImage::new("master-7", "master", 7);
        world.releases.push(
            image
                .manifest()
                .sign(&[&world.release_signer])
                .expect("a release"),
        );
        machine.boot(&image, "nocloud", CONFIG);
        world.join(machine)
    });
}

#[test]
fn only_so_many_images_are_admitted_beside_the_newest() {
    let publish = |world: &mut World, svn: u64, role: &str| {
        let image = SoftImage::new(&format!("{role}-{svn}"), role, svn);
        world.releases.push(
            image
                .manifest()
                .sign(&[&world.release_signer])
                .expect("a release"),
        );
        image
    };
    // The world's image is worker-7; a newer one of another role does not count.
    let (mut world, first) = lab();
    world.rule.images.max_concurrent = 1;
    publish(&mut world, 9, "master");
    publish(&mut world, 8, "worker");
    let second = world.machine("worker-2", "192.168.77.12", EkKind::P256);
    accepted(world.join(&first));
    accepted(world.join(&second));
    let newest = publish(&mut world, 9, "worker");
    expect(Proven, Code::ImageConcurrency, world.join(&first));
    // Without a limit every image is accepted, and the newest one under every limit.
    world.rule.images.max_concurrent = 0;
    accepted(world.join(&first));
    world.rule.images.max_concurrent = 1;
    world.image = newest;
    let third = world.machine("worker-3", "192.168.77.13", EkKind::P256);
    accepted(world.join(&third));
}

#[test]
fn secure_boot_off_is_refused_where_required_and_accepted_where_not() {
    refused(Proven, Code::SecureBootOff, |world, machine| {
        booted(world, machine, |image| image.keys.enabled = false)
    });
    let (mut world, mut machine) = lab();
    world.rule.events.secure_boot = false;
    accepted(booted(&mut world, &mut machine, |image| {
        image.keys.enabled = false;
    }));
}

#[test]
fn changed_secure_boot_databases_are_refused() {
    refused(Proven, Code::SecureBootDatabase, |world, machine| {
        booted(world, machine, |image| {
            image.keys.db = b"db with another signer".to_vec();
        })
    });
    refused(Proven, Code::SecureBootDatabase, |world, machine| {
        booted(world, machine, |image| image.keys.dbx = Vec::new())
    });
}

#[test]
fn a_changed_configuration_is_refused_and_an_unmeasured_one() {
    refused(Proven, Code::ConfigChanged, |world, machine| {
        machine.boot(&world.image, "nocloud", b"version = 1\n# changed\n");
        world.join(machine)
    });
    // The same bytes from another source are another event.
    refused(Proven, Code::ConfigChanged, |world, machine| {
        machine.boot(&world.image, "smbios", CONFIG);
        world.join(machine)
    });
    refused(Proven, Code::ConfigNotMeasured, |world, machine| {
        machine.bank = machine.log.replay();
        machine.config_event = None;
        machine.bind_nk();
        world.join(machine)
    });
    refused(Proven, Code::ConfigEvent, |world, machine| {
        machine.config_event = None;
        world.join(machine)
    });
    // Measured twice: the register no longer holds the one event.
    refused(Proven, Code::ConfigEvent, |world, machine| {
        machine.bank.extend(13, &Digest::of(b"second"));
        machine.bind_nk();
        world.join(machine)
    });
    // An event that names another register.
    refused(Proven, Code::ConfigEvent, |world, machine| {
        machine.config_event.as_mut().expect("an event").pcr = 12;
        world.join(machine)
    });
    // The log has the listed event, the register holds another.
    refused(Proven, Code::ConfigEvent, |world, machine| {
        let honest = machine.config_event.clone();
        machine.boot(&world.image, "nocloud", b"hostile");
        machine.config_event = honest;
        world.join(machine)
    });
}

#[test]
fn a_rule_may_take_any_measured_configuration() {
    let (mut world, mut machine) = lab();
    world.rule.config.digests = String::new();
    machine.boot(&world.image, "smbios", b"anything");
    let verified = accepted(world.join(&machine));
    let config = world
        .object("worker-1")
        .status
        .clone()
        .and_then(|status| status.config)
        .expect("a configuration");
    assert_eq!(config.source, "smbios");
    assert_eq!(verified.image().expect("an image").id, "worker-7");
}

#[test]
fn firmware_is_pinned_at_the_first_admission() {
    for pcr in [0, 2] {
        let (mut world, mut machine) = lab();
        accepted(world.join(&machine));
        machine.clock.clock += 1;
        accepted(world.join(&machine));
        let update = |machine: &mut SoftMachine, what: &[u8]| {
            let implant = Event {
                pcr,
                kind: 0x8000_0004,
                digest: Digest::of(what),
                data: Vec::new(),
            };
            machine.bank.extend(pcr, &implant.digest);
            machine.log.events.push(implant);
        };
        let readmitted = |world: &mut World, until: &str| {
            world.object("worker-1").spec.readmit_until = Some(until.to_owned());
        };
        let used = |world: &mut World| {
            world
                .object("worker-1")
                .status
                .clone()
                .and_then(|status| status.readmitted)
        };
        update(&mut machine, b"implant");
        expect(Proven, Code::FirmwareChanged, world.join(&machine));
        // A re-admission pins the new firmware once, and does not cover a later change.
        readmitted(&mut world, "2030-01-01T00:00:00Z");
        accepted(world.join(&machine));
        assert_eq!(used(&mut world).as_deref(), Some("2030-01-01T00:00:00Z"));
        accepted(world.join(&machine));
        update(&mut machine, b"another");
        expect(Proven, Code::FirmwareChanged, world.join(&machine));
        readmitted(&mut world, "2030-01-01T00:00:01Z");
        accepted(world.join(&machine));
        // A re-admission given early stays valid until it is needed.
        readmitted(&mut world, "2030-01-01T00:00:02Z");
        accepted(world.join(&machine));
        accepted(world.renew(&machine));
        assert_eq!(used(&mut world).as_deref(), Some("2030-01-01T00:00:01Z"));
        update(&mut machine, b"a third");
        accepted(world.join(&machine));
        world.object("worker-1").spec.readmit_until = None;
        accepted(world.join(&machine));
        update(&mut machine, b"a fourth");
        expect(Proven, Code::FirmwareChanged, world.join(&machine));
    }
}

#[test]
fn a_manufacturers_secure_boot_databases_are_pinned_by_a_readmission() {
    let (mut world, mut machine) = lab();
    world.image.list_events = true;
    world.releases = vec![
        world
            .image
            .manifest()
            .sign(&[&world.release_signer])
            .expect("a release"),
    ];
    accepted(world.join(&machine));
    let maker = |dbx: &[u8]| {
        let dbx = dbx.to_vec();
        move |image: &mut SoftImage| {
            image.keys.db = b"db of a maker".to_vec();
            image.keys.dbx = dbx;
        }
    };
    let outcome = booted(&mut world, &mut machine, maker(b"revoked 1"));
    let found = outcome
        .as_ref()
        .err()
        .map(|refusal| refusal.verdict().checks.clone())
        .unwrap_or_default();
    assert!(
        found
            .iter()
            .any(|check| !check.ok && check.actual.ends_with("by another db, dbx")),
        "{found:?}"
    );
    expect(Proven, Code::SecureBootDatabase, outcome);
    world.object("worker-1").spec.readmit_until = Some("2030-01-01T00:00:00Z".to_owned());
    // A re-admission allows nothing else, and Secure Boot must be on.
    let off = booted(&mut world, &mut machine, |image| image.keys.enabled = false);
    expect(Proven, Code::SecureBootOff, off);
    accepted(booted(&mut world, &mut machine, maker(b"revoked 1")));
    accepted(booted(&mut world, &mut machine, maker(b"revoked 1")));
    let status = world.object("worker-1").status.clone().unwrap_or_default();
    assert_eq!(
        status
            .pinned_pcrs
            .keys()
            .map(String::as_str)
            .collect::<Vec<_>>(),
        ["0", "2", "7"]
    );
    // Another list needs another re-admission. The image's own keys never need one, and remove the
    // pin.
    expect(
        Proven,
        Code::SecureBootDatabase,
        booted(&mut world, &mut machine, maker(b"revoked 1 and 2")),
    );
    accepted(booted(&mut world, &mut machine, |_| {}));
    expect(
        Proven,
        Code::SecureBootDatabase,
        booted(&mut world, &mut machine, maker(b"revoked 1")),
    );
}

#[test]
fn counters_below_the_recorded_ones_are_refused_as_a_restored_snapshot() {
    let (mut world, mut machine) = lab();
    machine.clock.restart_count = 3;
    accepted(world.join(&machine));
    let seen = machine.clock;
    machine.clock.clock = seen.clock - 1;
    expect(Proven, Code::CountersWentBack, world.join(&machine));
    machine.clock = seen;
    machine.clock.restart_count -= 1;
    machine.clock.clock += 1_000_000;
    expect(Proven, Code::CountersWentBack, world.join(&machine));
    machine.clock = seen;
    machine.clock.reset_count -= 1;
    expect(Proven, Code::CountersWentBack, world.join(&machine));
    // After a power cut the clock goes back and is not safe, under a higher reset count.
    machine.clock = seen;
    machine.clock.reset_count += 1;
    machine.clock.restart_count = 0;
    machine.clock.clock = 5;
    machine.clock.safe = false;
    accepted(world.join(&machine));
}

#[test]
fn a_reboot_into_a_bad_image_makes_a_trusted_machine_untrusted() {
    let (mut world, mut machine) = lab();
    accepted(world.join(&machine));
    let refusal =
        booted(&mut world, &mut machine, |image| image.kernel[0] ^= 1).expect_err("a bad image");
    let (proven, consequence) = refusal.consequence().expect("a proven refusal");
    assert_eq!(proven.id().name, "worker-1");
    assert_eq!(consequence, config_protocol::Consequence::Untrusted);
    world
        .object("worker-1")
        .status
        .get_or_insert_default()
        .state = MachineState::Untrusted;
    machine.boot(&world.image.clone(), "nocloud", CONFIG);
    expect(
        super::Anonymous,
        Code::MachineUntrusted,
        world.join(&machine),
    );
}
