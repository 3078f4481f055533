//! `agent state-key` as init runs it, with a software TPM and a file as the partition.

mod recovery;
mod roles;

use agent_tpm::Tpm;
use agent_volume::generation::BootNonce;
use agent_volume::header::{COPIES, DATA_OFFSET, SIZE};
use agent_volume::report::InitAnswer;
use agent_volume::{Reason, Report};
use config_machine::state_key;
use config_tpm::Digest;
use config_tpm::boot::Boot;
use config_tpm::pcr::extended;
use config_unlock::approvals::{
    AREA, Approvals, Approver, CAP_EVENT, CAP_PCR, FLOORS, Role, SECURE_BOOT_PCR,
};
use p256::ecdsa::SigningKey;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use tempfile::TempDir;
use tests_harness::swtpm::Swtpm;
use tests_support::images::tool;

const MEASURED: [u8; 3] = [4, 9, 11];

/// A board with its disk, and images for it.
struct Machine {
    dir: TempDir,
    swtpm: Swtpm,
    /// A number in place of the firmware's Secure Boot settings.
    settings: u8,
    /// A number in place of the user-data.
    configuration: u8,
    /// Of the image that was booted last.
    role: &'static str,
}

/// An image: its version, what it measures, its release key and its role.
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

const MASTER: Image = Image {
    role: "master",
    ..WORKER
};
/// The value of each boot, where it does not matter.
const BOOT: BootNonce = [0xB0; 8];

/// A running `agent state-key` that has sent its report.
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
            settings: 1,
            configuration: 1,
            role: "",
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

    /// Reboots and measures an image as the firmware does. `tell` asks for the state's key.
    fn boot(&mut self, image: Image) {
        self.swtpm.power_cycle();
        let tpm = Tpm::open(&self.swtpm.tcti()).expect("open");
        for pcr in MEASURED {
            tpm.extend_pcr(pcr, Digest([image.seed; 32]))
                .expect("measured");
        }
        tpm.extend_pcr(SECURE_BOOT_PCR, Digest([self.settings; 32]))
            .expect("measured");
        let key = SigningKey::from_slice(&[image.key; 32]).expect("a key");
        let value = extended(&Digest::ZERO, &Digest([image.seed; 32]));
        let pcrs: BTreeMap<u8, Vec<Digest>> =
            MEASURED.map(|pcr| (pcr, vec![value])).into_iter().collect();
        let boot = Boot {
            secure_boot: false,
            pcrs,
            events: BTreeMap::new(),
        };
        let role = Role::from_name(image.role).expect("a role");
        let mut area = Approvals::sign(&key, role, image.svn, &[boot])
            .to_bytes()
            .expect("they fit");
        area.resize(AREA, 0);
        std::fs::write(
            self.dir.path().join("approvals"),
            [&[7; 4096][..], &area].concat(),
        )
        .expect("written");
        let approver = Approver::new(*key.verifying_key(), role).to_hex();
        let Image { svn, role, .. } = image;
        self.role = role;
        let text =
            format!("id = \"x\"\nrole = \"{role}\"\nsvn = {svn}\nrelease_key = \"{approver}\"\n");
        std::fs::write(self.dir.path().join("image.toml"), text).expect("written");
    }

    fn command(&self, fresh: bool) -> Command {
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
        if self.role == "worker" {
            command.args([
                "--configuration",
                &Digest([self.configuration; 32]).to_hex(),
            ]);
        }
        command.stdin(Stdio::null());
        command
    }

    fn ask(&self, fresh: bool) -> Asked {
        let mut process = self
            .command(fresh)
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

    /// Asks and expects no report: returns the exit code and the message.
    fn refused(&self, fresh: bool) -> (Option<i32>, String) {
        let output = self.command(fresh).output().expect("the agent");
        assert_eq!(output.stdout, b"", "it wrote a report");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
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
        let key = if let Report::Made { key, recovery, .. } = report {
            // A worker's state opens by its TPM alone.
            assert_eq!(recovery.is_some(), image.role == "master");
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
    fn end(self, admitted: u64) -> Report {
        self.answered(InitAnswer {
            admitted,
            boot: BOOT,
        })
    }

    /// The same in the boot with this value, of a machine that was never admitted.
    fn end_in(self, boot: BootNonce) -> Report {
        self.answered(InitAnswer { admitted: 0, boot })
    }

    fn answered(mut self, answer: InitAnswer) -> Report {
        // If no answer is expected, nothing reads it.
        self.input.write_all(answer.to_text().as_bytes()).ok();
        drop(self.input);
        assert!(
            self.process.wait().expect("an end").success(),
            "{:?}",
            self.report
        );
        self.report
    }

    /// Waits for the end without an answer, as init does with a state that it can't use.
    fn unanswered(self) -> Report {
        let Self {
            mut process,
            input,
            report,
        } = self;
        drop(input);
        assert!(process.wait().expect("an end").success(), "{report:?}");
        report
    }

    /// A power cut before the answer.
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

/// Why a new state was made, and how often so far.
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

fn refused(report: &Report) -> Option<Reason> {
    if let Report::Refused { reason } = report {
        Some(*reason)
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
    // A foreign system with the genuine approvals, and one with its own approvals; both ask as our
    // program does.
    machine.boot(WORKER);
    let tpm = Tpm::open(&machine.swtpm.tcti()).expect("open");
    tpm.extend_pcr(4, Digest([9; 32])).expect("another program");
    drop(tpm);
    let before = machine.disk();
    let report = machine.ask(false).end(9);
    assert_temporary(&report, Reason::NotApproved);
    assert_eq!(machine.disk(), before, "the header was touched");
    assert_eq!(opened(&machine.start(update, 4)), Some(key.clone()));
    // The floor is 4 now.
    // The older image makes no state, which would be of a lower floor: what is known to be wrong
    // with that image would have filled it for the newer one.
    let before = machine.disk();
    assert_temporary(&machine.start(WORKER, 3), Reason::Floor(4));
    assert_eq!(machine.disk(), before, "the header was touched");
    // Nor where the disk says that there is none: its headers are gone, or its table was changed.
    machine.set_disk(&[]);
    assert_temporary(&machine.start(WORKER, 3), Reason::Floor(4));
    machine.boot(WORKER);
    assert_temporary(&machine.ask(true).end(0), Reason::Floor(4));
    machine.set_disk(&before);
    assert_eq!(opened(&machine.start(update, 4)), Some(key));
}

/// Anyone who has the board can boot the genuine image with user-data of their own: pods of their
/// choice as root, a master of their own.
#[test]
fn a_workers_state_is_neither_opened_nor_planted_under_other_user_data() {
    let mut machine = Machine::new();
    let key = machine.settled(WORKER);
    let before = machine.disk();
    machine.configuration = 2;
    assert_temporary(&machine.start(WORKER, 3), Reason::OtherConfiguration);
    assert_eq!(machine.disk(), before, "the header was touched");
    machine.configuration = 1;
    assert_eq!(opened(&machine.start(WORKER, 3)), Some(key), "as before");

    machine.configuration = 2;
    machine.set_disk(&[]);
    assert_eq!(
        renewed(&machine.start(WORKER, 3)),
        Some((Reason::NoHeader, 1))
    );
    assert!(opened(&machine.start(WORKER, 3)).is_some(), "theirs");
    machine.configuration = 1;
    assert_temporary(&machine.start(WORKER, 3), Reason::OtherConfiguration);
}

/// A boot that may not open the state gets one for as long as it lasts.
#[track_caller]
fn assert_temporary(report: &Report, why: Reason) {
    assert!(
        matches!(report, Report::Temporary { reason, .. } if *reason == why),
        "{report:?}"
    );
}

#[test]
fn a_boot_opens_the_state_once() {
    let mut machine = Machine::new();
    machine.settled(WORKER);
    machine.start(WORKER, 3);
    let report = machine.ask(false).end(3);
    assert_temporary(&report, Reason::NotApproved);
}

/// init tells copies of the state's files by it.
#[test]
fn a_report_names_the_boot_for_which_the_tpm_moved() {
    let mut machine = Machine::new();
    machine.settled(WORKER);
    let mut last = BOOT;
    for boot in [[1; 8], [2; 8]] {
        machine.boot(WORKER);
        // Cut off, as by a power cut after init's own note.
        let report = machine.ask(false).unanswered();
        assert!(
            matches!(&report, Report::Opened { boots, .. } if *boots == [last]),
            "{report:?}"
        );
        let report = machine.ask(false).end_in(boot);
        assert!(
            matches!(&report, Report::Opened { boots, .. } if *boots == [last]),
            "{report:?}"
        );
        last = boot;
    }
}

/// A disk opens only if it is the machine's own, from its last boot.
#[test]
fn another_disk_a_plain_one_and_an_older_one_are_not_opened() {
    let (mut machine, mut other) = (Machine::new(), Machine::new());
    let key = machine.settled(WORKER);
    other.settled(WORKER);
    let past = machine.disk();
    assert_eq!(opened(&machine.start(WORKER, 3)), Some(key.clone()));
    assert_eq!(opened(&machine.start(WORKER, 3)), Some(key.clone()));
    let good = machine.disk();
    let mut flipped = good.clone();
    for copy in COPIES {
        // In the slot of the key that the TPM keeps.
        flipped[usize::try_from(copy).expect("small") + 150] ^= 1;
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
    // A partition table in which the state is new, with the disk as it was, and a cleared TPM.
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
        "the count is lost with the TPM's content"
    );
}

/// Whatever the disk looks like: blank, or with a partition table in which the state is missing or
/// was never finished (`fresh`), as an attacker with the disk can write it.
#[test]
fn a_masters_state_is_never_made_anew() {
    let mut machine = Machine::new();
    let master = MASTER;
    let key = machine.settled(master);
    let good = machine.disk();
    let older = Image { svn: 2, ..master };
    for (image, fresh, disk, reason) in [
        (master, false, &[][..], Reason::NoHeader),
        (master, true, &good, Reason::PartitionGone),
        (master, true, &[], Reason::PartitionGone),
        (older, true, &good, Reason::PartitionGone),
    ] {
        machine.set_disk(disk);
        let before = machine.disk();
        machine.boot(image);
        assert_eq!(machine.ask(fresh).end(3), Report::Refused { reason });
        assert!(machine.disk() == before, "{reason}: something was written");
    }
    machine.set_disk(&good);
    assert_eq!(
        opened(&machine.start(master, 3)),
        Some(key),
        "the attempts lost nothing"
    );
    // The deliberate way to start anew.
    machine.swtpm.power_cycle();
    tool(&machine.swtpm, "tpm2_clear -c p").expect("cleared");
    machine.boot(master);
    assert_eq!(
        renewed(&machine.ask(true).end(0)),
        Some((Reason::FirstStart, 0))
    );
}

/// A first start whose power was cut before there was a file system is begun again.
#[test]
fn a_masters_first_start_can_be_interrupted() {
    let mut machine = Machine::new();
    machine.boot(MASTER);
    machine.ask(true).cut();
    machine.boot(MASTER);
    let again = machine.ask(true);
    assert_eq!(
        renewed(&again.report),
        Some((Reason::PartitionGone, 1)),
        "{:?}",
        again.report
    );
    again.end(0);
    machine.boot(MASTER);
    let report = machine.ask(true).end(0);
    assert_eq!(refused(&report), Some(Reason::PartitionGone), "{report:?}");
    assert!(opened(&machine.start(MASTER, 3)).is_some());
}

/// An image is approved for its own version and 31 floors below. One that is further ahead opens
/// nothing, and the reason says how far it may be; an image in between, once it is admitted, leads
/// there.
#[test]
fn an_image_too_far_above_the_floor_opens_nothing_and_says_so() {
    let mut machine = Machine::new();
    let key = machine.settled(MASTER);
    let at = |svn| Image { svn, ..MASTER };
    let floor = MASTER.svn;
    let (last, beyond) = (floor + FLOORS - 1, floor + FLOORS);
    assert_eq!(opened(&machine.start(at(last), 0)), Some(key.clone()));
    let reason = refused(&machine.start(at(beyond), 0)).expect("a master is refused");
    assert_eq!(reason, Reason::Floor(floor));
    let wanted = format!(
        "security version {floor} or above, by {} at most",
        FLOORS - 1
    );
    assert!(reason.to_string().contains(&wanted), "{reason}");
    let between = floor + 1;
    assert_eq!(
        opened(&machine.start(at(between), between)),
        Some(key.clone())
    );
    assert_eq!(opened(&machine.start(at(beyond), 0)), Some(key));

    let mut worker = Machine::new();
    worker.settled(WORKER);
    let ahead = Image {
        svn: WORKER.svn + FLOORS,
        ..WORKER
    };
    let report = worker.start(ahead, 0);
    assert_eq!(
        renewed(&report),
        Some((Reason::Floor(WORKER.svn), 1)),
        "{report:?}"
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

/// A master's files turn out to be damaged, or of another boot than their header: its admin puts
/// back the disk of its last start, or boots the previous image.
#[test]
fn a_state_that_init_cannot_use_stays_as_it_is() {
    let mut machine = Machine::new();
    let key = machine.settled(MASTER);
    let before = machine.disk();
    for _ in 0..3 {
        machine.boot(MASTER);
        let report = machine.ask(false).unanswered();
        assert_eq!(opened(&report), Some(key.clone()), "{report:?}");
        assert!(machine.disk() == before, "the disk was touched");
    }
    assert_eq!(opened(&machine.start(MASTER, 3)), Some(key.clone()));
    assert!(machine.disk() != before, "the negative control");
}

/// The owner changes the hierarchy's authorization: the agent reports that by its exit code at each
/// boot, and changes nothing; after the TPM is cleared, a worker starts anew and a master waits for
/// the admin's one-off key.
#[test]
fn another_authorization_of_the_owner_hierarchy_is_named() {
    let mut machine = Machine::new();
    machine.settled(WORKER);
    tool(&machine.swtpm, "tpm2_changeauth -c o secret").expect("changed");
    let before = machine.disk();
    for _ in 0..2 {
        machine.boot(WORKER);
        let (code, said) = machine.refused(false);
        assert_eq!(code, Some(i32::from(state_key::AUTHORIZATION)), "{said}");
        assert!(
            said.contains("authorization of the TPM's owner hierarchy"),
            "{said}"
        );
        assert!(machine.disk() == before, "the disk was touched");
    }
    tool(&machine.swtpm, "tpm2_clear -c p").expect("cleared");
    machine.boot(MASTER);
    let report = machine.ask(false).end(3);
    let refused = Report::Refused {
        reason: Reason::NoKey,
    };
    assert_eq!(report, refused, "a master waits for the admin");
    assert_eq!(
        renewed(&machine.start(WORKER, 3)),
        Some((Reason::NoKey, 1)),
        "a worker starts anew"
    );
}

/// The owner fills the NV memory: a state that opens can't be moved to a higher floor, and one that
/// must be made can't; the exit code names each, and freeing space fixes it.
#[test]
fn a_full_nv_memory_of_the_tpm_is_named() {
    let mut machine = Machine::new();
    let key = machine.settled(WORKER);
    let squatter = fill(&machine.swtpm);
    assert_eq!(
        opened(&machine.start(WORKER, 3)),
        Some(key.clone()),
        "an opened state needs no room"
    );
    let update = Image {
        svn: 4,
        seed: 2,
        ..WORKER
    };
    machine.boot(update);
    let mut asked = machine.ask(false);
    assert_eq!(opened(&asked.report), Some(key.clone()));
    let answer = InitAnswer {
        admitted: 4,
        boot: BOOT,
    };
    let sent = asked.input.write_all(answer.to_text().as_bytes());
    sent.expect("answered");
    let ended = asked.process.wait().expect("an end");
    assert_eq!(
        ended.code(),
        Some(i32::from(state_key::FULL)),
        "the floor rises"
    );

    tool(&machine.swtpm, "tpm2_nvundefine 0x1807072 -C o").expect("deleted");
    tool(&machine.swtpm, "tpm2_nvdefine 0x1500f00 -C o -s 48").expect("its room is taken");
    machine.boot(update);
    let (code, said) = machine.refused(false);
    assert_eq!(code, Some(i32::from(state_key::FULL)), "{said}");
    assert!(said.contains("NV memory is full"), "{said}");
    for index in ["0x1500f00".to_owned(), format!("{squatter:#x}")] {
        tool(&machine.swtpm, &format!("tpm2_nvundefine {index} -C o")).expect("room");
    }
    let report = machine.start(update, 4);
    assert!(renewed(&report).is_some(), "{report:?}");
}

/// Fills the TPM's NV memory completely; returns the first index that it made.
fn fill(swtpm: &Swtpm) -> u32 {
    let first = 0x0150_0000;
    let mut next = first;
    for size in [2048, 256, 32, 1] {
        while next < first + 0xf00
            && tool(swtpm, &format!("tpm2_nvdefine {next:#x} -C o -s {size}")).is_ok()
        {
            next += 1;
        }
    }
    assert!(
        next > first && next < first + 0xf00,
        "the TPM never gets full"
    );
    first
}
