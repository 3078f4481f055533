//! The text of `status.nextStep`: what an admin does about a refusal, with the command where there
//! is one.

use config_protocol::Code;
use jiff::{SignedDuration, Timestamp, Unit};

/// Duration of the re-admission in the command.
const OFFERED: SignedDuration = SignedDuration::from_hours(1);

/// The first step by code.
const STEPS: &[(&[Code], &str)] = &[
    (
        &[Code::FirmwareChanged],
        "if you made this firmware update, allow it with the command below; the new firmware is pinned then",
    ),
    (
        &[Code::SecureBootDatabase],
        "enrol the image's keys, or, if its keys and lists are the manufacturer's or yours, allow them with the command below; they are pinned then",
    ),
    (
        &[
            Code::ImageUnknown,
            Code::ImageLoader,
            Code::ImageCommandLine,
            Code::ImageSections,
            Code::ImageUnsigned,
            Code::ImageRole,
        ],
        "boot a released image, or allow the one that was booted: kubectl apply -f IMAGE.release.json",
    ),
    (
        &[Code::TpmFirmware],
        "update the TPM's firmware with the manufacturer's tool, or lower ek.minFirmware of the rule: kubectl edit certificatepolicy cluster",
    ),
    (
        &[Code::ImageSvn],
        "boot an image at or above the policy's minSvn (kubectl get certificatepolicy cluster -o yaml)",
    ),
    (
        &[Code::ImageConcurrency],
        "boot the newest image of its role, or raise images.maxConcurrent: kubectl edit certificatepolicy cluster; the machine tries again by itself",
    ),
    (
        &[
            Code::ConfigNotMeasured,
            Code::ConfigEvent,
            Code::ConfigChanged,
        ],
        "give the machine the user-data that the inventory lists, or allow its present one: put the digest that was found (see the checks) into spec.configDigests: kubectl edit machine NAME",
    ),
    (
        &[Code::PrivilegedPods],
        "take `privileged = true` out of the machine's [node] and list the new digest in spec.configDigests, or accept such machines: set config.privilegedPods to allow (kubectl edit certificatepolicy cluster)",
    ),
    (
        &[
            Code::SecureBootOff,
            Code::OutsideArguments,
            Code::EventUnknown,
        ],
        "check the machine's firmware settings and who can change them, and correct them",
    ),
    (
        &[Code::CountersWentBack],
        "was a virtual machine restored from a snapshot? If it is another board: put its EK into spec.ek.hashes (kubectl edit machine NAME)",
    ),
    (
        &[Code::RenewalAfterReset],
        "nothing: after a reboot or a resume the machine joins again by itself; check it if it does not",
    ),
    (
        &[
            Code::CsrCommonName,
            Code::CsrOrganization,
            Code::CsrSubject,
            Code::CsrSan,
            Code::CsrSanWildcard,
            Code::CsrSanApiServer,
            Code::CsrCa,
            Code::CsrUsage,
            Code::CsrExtension,
            Code::CsrKey,
        ],
        "our agent never asks for this: find out what runs there; if only an address is missing, add it to spec.addresses (kubectl edit machine NAME)",
    ),
];

/// The step after a refusal that left the machine Suspect or Untrusted.
pub(crate) fn next_step(code: Code, machine: &str, untrusted: bool, now: Timestamp) -> String {
    let known = STEPS
        .iter()
        .find(|(codes, _)| codes.contains(&code))
        .map(|(_, step)| *step);
    let first = known.unwrap_or(
        "a sound machine never sends such evidence: check the machine and the recorded checks",
    );
    if !untrusted {
        return first.replace("NAME", machine);
    }
    let until = now
        .checked_add(OFFERED)
        .and_then(|until| until.round(Unit::Second))
        .unwrap_or(now);
    format!(
        "{}; then let it prove itself again: kubectl patch machine {machine} --type=merge -p '{{\"spec\":{{\"readmitUntil\":\"{until}\"}}}}'",
        first.replace("NAME", machine)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_is_a_command_that_can_be_pasted() {
        let now: Timestamp = "2026-01-01T10:00:00.5Z".parse().unwrap();
        let step = next_step(Code::FirmwareChanged, "worker-1", true, now);
        assert!(
            step.contains(r#"patch machine worker-1 --type=merge -p '{"spec":{"readmitUntil":"2026-01-01T11:00:0"#),
            "{step}"
        );
        let step = next_step(Code::ImageConcurrency, "worker-1", false, now);
        assert!(
            !step.contains("readmitUntil") && !step.contains("NAME"),
            "{step}"
        );
    }
}
