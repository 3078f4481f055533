//! A master whose store was put back behind the generation of its machine's state, as a process.

use config_state::generation::{Generation, GenerationKey};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A master's machine: its data folder, and init's beside it.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().expect("a folder"));
        fs::create_dir(machine.at("init")).expect("made");
        fs::write(machine.at("key"), key().bytes()).expect("written");
        machine.note(Generation {
            number: 7,
            ..Generation::default()
        });
        machine
    }

    fn note(&self, state: Generation) {
        fs::write(self.at("init/generation"), state.text(&key())).expect("written");
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn generation(&self) -> Generation {
        let text = fs::read(self.at("init/generation")).expect("read");
        Generation::read(&text, &key()).expect("a generation")
    }

    /// As init does it, then the master.
    fn boot(&self) -> Result<(), String> {
        let state = self.generation();
        let number = state.number + 1;
        self.note(Generation { number, ..state });
        self.start()
    }

    /// The master until it serves; its output if it ends instead.
    fn start(&self) -> Result<(), String> {
        let config =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/model/examples/cluster.toml");
        let mut command = self.master("run");
        command.arg("--config").arg(config);
        command.args(["--listen", "127.0.0.1:0", "--state-generation"]);
        let mut master = command
            .arg(self.at("init/generation"))
            .arg("--state-generation-key")
            .arg(self.at("key"))
            .stderr(Stdio::piped())
            .spawn()
            .expect("a master");
        let mut output = BufReader::new(master.stderr.take().expect("a pipe"));
        let (mut text, mut serves) = (String::new(), false);
        while !serves && output.read_line(&mut text).expect("text") > 0 {
            serves = text.contains("serving address=");
        }
        master.kill().expect("ended, or to be ended");
        output.read_to_string(&mut text).expect("text");
        master.wait().expect("an end");
        if serves { Ok(()) } else { Err(text) }
    }

    fn master(&self, command: &str) -> Command {
        let mut master = Command::new(env!("CARGO_BIN_EXE_master"));
        master.arg(command).arg("--data").arg(self.at("master"));
        master
    }

    fn copy(&self, from: &str, to: &str) {
        fs::create_dir(self.at(to)).expect("made");
        for entry in fs::read_dir(self.at(from)).expect("a folder") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), self.at(to).join(entry.file_name())).expect("copied");
        }
    }
}

/// The key of the generation's text, as init has it of the volume's.
fn key() -> GenerationKey {
    GenerationKey::parse(&[7; 32]).expect("a key")
}

/// Who has the disk puts back all sectors of an older copy but those of the generation's file.
#[test]
fn an_older_copy_of_the_store_is_refused_and_a_restored_snapshot_served() {
    let machine = Machine::new();
    machine.boot().expect("a first start");
    machine.copy("master/store", "older");
    let snapshot = machine.at("snapshot");
    let taken = machine
        .master("snapshot")
        .arg("--out")
        .arg(&snapshot)
        .status();
    assert!(taken.expect("a master").success());
    machine.boot().expect("a second start");
    assert_eq!(machine.generation().served, Some(9));
    machine.copy("master/store", "newest");

    fs::remove_dir_all(machine.at("master/store")).expect("removed");
    machine.copy("older", "master/store");
    for _ in 0..2 {
        let text = machine.boot().expect_err("an older store is served");
        for words in [
            "is an older copy",
            "generation 8",
            "notes 9",
            "master restore",
        ] {
            assert!(text.contains(words), "no {words:?} in {text}");
        }
    }

    fs::remove_dir_all(machine.at("master/store")).expect("removed");
    machine.copy("newest", "master/store");
    machine.boot().expect("the negative control");

    // The documented way back, which an admin takes with an earlier snapshot.
    fs::remove_dir_all(machine.at("master/store")).expect("removed");
    let restored = machine
        .master("restore")
        .arg("--from")
        .arg(&snapshot)
        .arg("--state-generation-key")
        .arg(machine.at("key"))
        .status();
    assert!(restored.expect("a master").success());
    machine.boot().expect("a restored store");
    machine.boot().expect("and again");
}

/// The same, and in the generation's file itself the number is of now and all else of the older
/// copy: AES-XTS encrypts each 16 bytes of a sector by themselves, and the number's line is two of
/// these.
#[test]
fn an_older_copy_of_the_store_with_the_number_of_now_is_refused() {
    let machine = Machine::new();
    machine.boot().expect("a first start");
    machine.copy("master/store", "older");
    let older = fs::read(machine.at("init/generation")).expect("read");
    machine.boot().expect("a second start");
    machine.copy("master/store", "newest");
    let now = fs::read(machine.at("init/generation")).expect("read");
    fs::remove_dir_all(machine.at("master/store")).expect("removed");
    machine.copy("older", "master/store");

    let number = now.iter().position(|&byte| byte == b'\n').expect("a line") + 1;
    assert_eq!(number % 16, 0, "blocks of the number's line");
    let spliced = [&now[..number], &older[number..]].concat();
    let fields = spliced
        .strip_suffix(&older[older.len() - 69..])
        .expect("the code");
    let lines = String::from_utf8_lossy(fields).trim_end().to_owned() + "\n";
    for (made, words) in [
        (spliced.clone(), "does not hold"),
        // Of the number alone, by the inode of a shorter file.
        (now[..number].to_vec(), "no authentication code"),
        // As a pod can write it, and earlier images wrote it.
        (lines.into_bytes(), "no authentication code"),
    ] {
        fs::write(machine.at("init/generation"), &made).expect("written");
        let text = machine.start().expect_err("an older store is served");
        assert!(text.contains(words), "no {words:?} in {text}");
    }

    fs::remove_dir_all(machine.at("master/store")).expect("removed");
    machine.copy("newest", "master/store");
    fs::write(machine.at("init/generation"), now).expect("written");
    machine.boot().expect("the negative control");
}
