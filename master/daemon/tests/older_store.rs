//! A master whose store was put back behind the generation of its machine's state, as a process.

use config_state::generation::Generation;
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
        fs::write(machine.at("init/generation"), "7\n").expect("written");
        machine
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn generation(&self) -> Generation {
        let text = fs::read_to_string(self.at("init/generation")).expect("read");
        text.parse().expect("a generation")
    }

    /// As init does it, then the master until it serves; its output if it ends instead.
    fn boot(&self) -> Result<(), String> {
        let state = self.generation();
        let number = state.number + 1;
        let next = Generation { number, ..state }.to_string();
        fs::write(self.at("init/generation"), next).expect("written");
        let config =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/model/examples/cluster.toml");
        let mut command = self.master("run");
        command.arg("--config").arg(config);
        command.args(["--listen", "127.0.0.1:0", "--state-generation"]);
        let mut master = command
            .arg(self.at("init/generation"))
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

    // The documented way back, which an admin takes with a snapshot of before.
    fs::remove_dir_all(machine.at("master/store")).expect("removed");
    let restored = machine
        .master("restore")
        .arg("--from")
        .arg(&snapshot)
        .status();
    assert!(restored.expect("a master").success());
    machine.boot().expect("a restored store");
    machine.boot().expect("and again");
}
