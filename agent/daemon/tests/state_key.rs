//! `agent state-key` as init runs it, with a software TPM and a file as the partition: what a thief, an owner of the TPM, an
//! older image and a power cut come to.

use agent_tpm::Tpm;
use agent_volume::header::{COPIES, DATA_OFFSET, SIZE};
use agent_volume::{Reason, Report};
use config_attest::Digest;
use config_attest::pcr::extended;
use config_attest::release::Boot;
use config_attest::unlock::{AREA, Approvals, Approver, CAP_EVENT, CAP_PCR};
use p256::ecdsa::SigningKey;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use tempfile::TempDir;
use tests_harness::swtpm::Swtpm;

const MEASURED: [u8; 3] = [4, 9, 11];

/// A board with its disk, and images for it.
struct Machine {
    dir: TempDir,
    swtpm: Swtpm,
}

/// An image: its version, what it measures, who signed it, what it is for.
#[derive(Clone, Copy)]
struct Image {
    svn: u64,
    seed: u8,
    key: u8,
    role: &'static str,
}

const WORKER: Image = Image {
    svn: 3,
    seed: 1,
    key: 1,
    role: "worker",
};

/// A running `agent state-key` that told its report.
struct Asked {
    process: Child,
    input: ChildStdin,
    report: Report,
}

impl Machine {
    fn new() -> Self {
        let machine = Self {
            dir: tempfile::tempdir().expect("a folder"),
            swtpm: Swtpm::new(),
        };
        machine.set_disk(&[]);
        machine
    }

    fn partition(&self) -> PathBuf {
        self.dir.path().join("partition")
    }

    fn disk(&self) -> Vec<u8> {
        std::fs::read(self.partition()).expect("a partition")
    }

    fn set_disk(&self, bytes: &[u8]) {
        let mut whole = bytes.to_vec();
        whole.resize(usize::try_from(DATA_OFFSET).expect("small") + 4096, 0);
        std::fs::write(self.partition(), whole).expect("written");
    }

    /// Power off and on, and what the firmware measures of an image. `tell` asks for the state's key.
    fn boot(&mut self, image: Image) {
        self.swtpm.power_cycle();
        let tpm = Tpm::open(&self.swtpm.tcti()).expect("open");
        for pcr in MEASURED {
            tpm.extend_pcr(pcr, Digest([image.seed; 32]))
                .expect("measured");
        }
        let key = SigningKey::from_slice(&[image.key; 32]).expect("a key");
        let value = extended(&Digest::ZERO, &Digest([image.seed; 32]));
        let pcrs: BTreeMap<u8, Vec<Digest>> =
            MEASURED.map(|pcr| (pcr, vec![value])).into_iter().collect();
        let boot = Boot {
            secure_boot: false,
            pcrs,
            events: BTreeMap::new(),
        };
        let mut area = Approvals::sign(&key, image.svn, &[boot])
            .to_bytes()
            .expect("they fit");
        area.resize(AREA, 0);
        std::fs::write(
            self.dir.path().join("approvals"),
            [&[7; 4096][..], &area].concat(),
        )
        .expect("written");
        let approver = Approver::from(*key.verifying_key()).to_hex();
        let Image { svn, role, .. } = image;
        let text =
            format!("id = \"x\"\nrole = \"{role}\"\nsvn = {svn}\nrelease_key = \"{approver}\"\n");
        std::fs::write(self.dir.path().join("image.toml"), text).expect("written");
    }

    fn ask(&self, fresh: bool) -> Asked {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_agent"));
        command.args([
            "state-key",
            "--partition",
            &path("partition"),
            "--approvals",
            &path("approvals"),
        ]);
        command.args(["--image", &path("image.toml"), "--tcti", &self.swtpm.tcti()]);
        command.args(fresh.then_some("--fresh"));
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the agent");
        let (input, output) = (
            process.stdin.take().expect("a pipe"),
            process.stdout.take().expect("a pipe"),
        );
        let mut text = String::new();
        let mut lines = BufReader::new(output);
        while !text.ends_with(Report::END) && lines.read_line(&mut text).expect("text") > 0 {}
        let report = Report::parse(&text).expect("a report");
        Asked {
            process,
            input,
            report,
        }
    }

    /// A whole boot of an image, up to the cap; `admitted` is what init finds in the state.
    fn start(&mut self, image: Image, admitted: u64) -> Report {
        self.boot(image);
        let report = self.ask(false).end(admitted);
        self.cap();
        report
    }

    fn cap(&self) {
        let tpm = Tpm::open(&self.swtpm.tcti()).expect("open");
        tpm.extend_pcr(CAP_PCR, Digest::of(CAP_EVENT))
            .expect("capped");
    }

    /// A first start, and a second one.
    fn settled(&mut self, image: Image) -> Vec<u8> {
        self.boot(image);
        let report = self.ask(true).end(0);
        assert_eq!(
            renewed(&report),
            Some((Reason::FirstStart, 0)),
            "{report:?}"
        );
        let key = if let Report::Made { key, .. } = report {
            key.to_vec()
        } else {
            Vec::new()
        };
        self.cap();
        assert_eq!(opened(&self.start(image, image.svn)), Some(key.clone()));
        key
    }
}

impl Asked {
    /// Answers and waits for the end.
    fn end(mut self, admitted: u64) -> Report {
        // Where nothing is asked, nothing listens.
        self.input
            .write_all(format!("admitted {admitted}\n").as_bytes())
            .ok();
        drop(self.input);
        assert!(
            self.process.wait().expect("an end").success(),
            "{:?}",
            self.report
        );
        self.report
    }

    /// The power goes before the answer.
    fn cut(mut self) {
        self.process.kill().expect("a running agent");
        self.process.wait().expect("an end");
    }
}

fn opened(report: &Report) -> Option<Vec<u8>> {
    if let Report::Opened { key, .. } = report {
        Some(key.to_vec())
    } else {
        None
    }
}

/// Why it was made anew, and how often.
fn renewed(report: &Report) -> Option<(Reason, u32)> {
    if let Report::Made {
        reason, renewals, ..
    } = report
    {
        Some((*reason, *renewals))
    } else {
        None
    }
}

#[test]
fn an_update_opens_the_state_and_nothing_else_does() {
    let mut machine = Machine::new();
    let key = machine.settled(WORKER);
    let update = Image {
        svn: 4,
        seed: 2,
        ..WORKER
    };
    assert_eq!(
        opened(&machine.start(update, 0)),
        Some(key.clone()),
        "an update"
    );
    assert_eq!(
        opened(&machine.start(WORKER, 3)),
        Some(key.clone()),
        "and back, as it was not admitted"
    );
    // A foreign system with the genuine approvals, and one with approvals of its own; both as programs that ask as ours does.
    machine.boot(WORKER);
    let tpm = Tpm::open(&machine.swtpm.tcti()).expect("open");
    tpm.extend_pcr(4, Digest([9; 32])).expect("another program");
    drop(tpm);
    let before = machine.disk();
    let report = machine.ask(false).end(9);
    assert!(
        matches!(
            report,
            Report::Temporary {
                reason: Reason::NotApproved,
                ..
            }
        ),
        "{report:?}"
    );
    assert_eq!(machine.disk(), before, "the header was touched");
    assert_eq!(opened(&machine.start(update, 4)), Some(key.clone()));
    // The floor is 4 now.
    let report = machine.start(WORKER, 3);
    assert_eq!(renewed(&report), Some((Reason::Floor(4), 1)), "{report:?}");
    assert!(opened(&machine.start(WORKER, 3)).is_some_and(|new| new != key));
}

#[test]
fn a_boot_opens_the_state_once() {
    let mut machine = Machine::new();
    machine.settled(WORKER);
    machine.start(WORKER, 3);
    let report = machine.ask(false).end(3);
    assert!(
        matches!(
            report,
            Report::Temporary {
                reason: Reason::NotApproved,
                ..
            }
        ),
        "{report:?}"
    );
}

/// Whatever lies on the disk is the machine's own of the last boot, or it is not opened.
#[test]
fn another_disk_a_plain_one_and_an_older_one_are_not_believed() {
    let (mut machine, mut other) = (Machine::new(), Machine::new());
    let key = machine.settled(WORKER);
    other.settled(WORKER);
    let past = machine.disk();
    assert_eq!(opened(&machine.start(WORKER, 3)), Some(key.clone()));
    assert_eq!(opened(&machine.start(WORKER, 3)), Some(key.clone()));
    let good = machine.disk();
    let mut flipped = good.clone();
    for copy in COPIES {
        flipped[usize::try_from(copy).expect("small") + 100] ^= 1;
    }
    let plain = vec![0x53; SIZE * 40];
    for (count, (disk, reason)) in [
        (other.disk(), Reason::OtherKey),
        (plain, Reason::NoHeader),
        (past, Reason::OtherKey),
        (flipped, Reason::OtherKey),
    ]
    .into_iter()
    .enumerate()
    {
        machine.set_disk(&disk);
        let report = machine.start(WORKER, 3);
        assert_eq!(
            renewed(&report),
            Some((reason, u32::try_from(count).expect("few") + 1)),
            "{report:?}"
        );
    }
    // An older copy of what the machine has now.
    machine.start(WORKER, 3);
    let past = machine.disk();
    machine.start(WORKER, 3);
    machine.start(WORKER, 3);
    machine.set_disk(&past);
    assert_eq!(
        renewed(&machine.start(WORKER, 3)),
        Some((Reason::OlderCopy, 5))
    );
    // A partition that went, and a TPM that forgot.
    machine.boot(WORKER);
    assert_eq!(
        renewed(&machine.ask(true).end(3)),
        Some((Reason::PartitionGone, 6))
    );
    machine.boot(WORKER);
    let tpm = Tpm::open(&machine.swtpm.tcti()).expect("open");
    for slot in 0..agent_tpm::SLOTS {
        tpm.delete_state_slot(slot).expect("removed");
    }
    drop(tpm);
    assert_eq!(
        renewed(&machine.ask(false).end(3)),
        Some((Reason::NoKey, 1)),
        "the TPM counts, and forgot that, too"
    );
}

#[test]
fn a_masters_state_is_never_made_anew() {
    let mut machine = Machine::new();
    let master = Image {
        role: "master",
        ..WORKER
    };
    let key = machine.settled(master);
    let good = machine.disk();
    machine.set_disk(&[]);
    let report = machine.start(master, 3);
    assert_eq!(
        report,
        Report::Refused {
            reason: Reason::NoHeader
        }
    );
    machine.set_disk(&good);
    assert_eq!(
        opened(&machine.start(master, 3)),
        Some(key),
        "and nothing was lost by looking"
    );
}

#[test]
fn a_power_cut_before_the_answer_loses_nothing() {
    let mut machine = Machine::new();
    let key = machine.settled(WORKER);
    for _ in 0..3 {
        machine.boot(WORKER);
        let asked = machine.ask(false);
        assert_eq!(opened(&asked.report), Some(key.clone()));
        asked.cut();
    }
    assert_eq!(opened(&machine.start(WORKER, 3)), Some(key));
}
