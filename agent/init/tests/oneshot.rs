//! A program that runs once, to its end or to its limit. In a test program of its own and as its
//! only test, since [`run`] reaps every child of its process, which would take those of other
//! tests.

use agent_init::console::Console;
use agent_init::oneshot::{OneshotError, run};
use agent_sys::process::Program;
use std::time::{Duration, Instant};
use tests_support::programs::shell;

#[test]
fn a_oneshot_program_ends_with_its_code_or_is_ended() {
    let console = Console::open();
    let limit = Duration::from_secs(20);
    assert!(matches!(
        run(&console, "test", &shell("exit 3"), limit),
        Ok(3)
    ));
    assert!(matches!(
        run(&console, "test", &shell("kill -9 $$"), limit),
        Err(OneshotError::Signal(9))
    ));
    let absent = Program {
        path: "/nonexistent".to_owned(),
        ..shell("")
    };
    assert!(matches!(
        run(&console, "test", &absent, limit),
        Err(OneshotError::Start(_))
    ));
    let begin = Instant::now();
    let slow = run(
        &console,
        "test",
        &shell("exec sleep 60"),
        Duration::from_millis(300),
    );
    assert!(
        matches!(slow, Err(OneshotError::TooLong(_))) && begin.elapsed() < limit,
        "{slow:?}"
    );
}
