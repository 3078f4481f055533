//! Resets a machine, once, whose kernel stalls before init's first line.
//!
//! Under software emulation on a crowded host a guest's timer can fail to fire while its kernel
//! comes up: this is the emulator's fault, not the image's, and it does not recover by itself. A
//! stall after init's first line is reported.

use crate::Result;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a kernel is watched; it boots much faster, or reports its stall within this time.
const LIMIT: Duration = Duration::from_secs(240);
/// Pause between two looks at the console.
const PAUSE: Duration = Duration::from_millis(500);

/// A machine that is watched.
pub(crate) trait Watched: Send + 'static {
    /// Whether it still runs.
    fn alive(&self) -> bool;

    /// The console so far.
    fn console_text(&self) -> String;

    /// The console's file.
    fn console(&self) -> PathBuf;

    /// Resets it, as the reset button does.
    ///
    /// # Errors
    /// The machine does not take commands.
    fn reset(&self) -> Result<()>;
}

/// Watches a machine that was just started, from the console's byte `mark` on, in parallel to its
/// test.
pub(crate) fn watch(machine: impl Watched, mark: usize) {
    std::thread::spawn(move || {
        let start = Instant::now();
        while start.elapsed() < LIMIT && machine.alive() {
            let whole = machine.console_text();
            match kernel(whole.get(mark.min(whole.len())..).unwrap_or_default()) {
                Kernel::Silent => std::thread::sleep(PAUSE),
                Kernel::Up => return,
                Kernel::Stalled => {
                    let outcome = machine
                        .reset()
                        .map_or_else(|error| error.to_string(), |()| "reset".to_owned());
                    note(
                        &machine,
                        &format!("the kernel stalled before init: {outcome}"),
                    );
                    return;
                }
            }
        }
    });
}

/// Writes a line into the console's file, where a person looks first for the cause of a failure.
fn note(machine: &impl Watched, text: &str) {
    let file = OpenOptions::new().append(true).open(machine.console());
    drop(file.and_then(|mut file| writeln!(file, "\ntest harness: {text}")));
}

/// The state of the kernel, from the console.
#[derive(Debug, PartialEq, Eq)]
enum Kernel {
    /// Nothing yet: a quiet kernel prints errors only.
    Silent,
    /// Init has printed its first line.
    Up,
    /// It reports a stall, and init has not started.
    Stalled,
}

fn kernel(console: &str) -> Kernel {
    if console.contains("pratique: ") {
        return Kernel::Up;
    }
    let stall = |line: &str| line.contains("rcu") && line.contains("stall");
    if console.lines().any(stall) {
        Kernel::Stalled
    } else {
        Kernel::Silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stall_before_init_is_one() {
        let firmware = "BdsDxe: starting Boot0001 \"UEFI Misc Device\"\n";
        let stall = "[   25.1] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\n";
        let init = "pratique: 5907 initrd\n";
        assert_eq!(kernel(firmware), Kernel::Silent);
        assert_eq!(kernel(&[firmware, stall].concat()), Kernel::Stalled);
        assert_eq!(kernel(&[firmware, init, stall].concat()), Kernel::Up);
    }
}
