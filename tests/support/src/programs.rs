//! Programs as init starts them.

use agent_sys::process::Program;

/// The host's shell with a script.
pub fn shell(script: &str) -> Program {
    Program {
        path: "/bin/sh".to_owned(),
        arguments: vec!["-c".to_owned(), script.to_owned()],
        environment: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        cgroup: None,
        oom_score: 0,
    }
}
