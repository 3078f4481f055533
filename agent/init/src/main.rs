//! `init`: PID 1 of the machine, in the initrd and, started again with `stage2`, on the verified
//! root. As any other process it is the container runtime of containerd's shim.

use std::path::Path;
use std::process::ExitCode;

use agent_init::console::Console;
use agent_init::{initrd, launch, services, stage2};
use config_machine::specification;

fn main() -> ExitCode {
    if std::process::id() != 1 {
        return launch::crun(Path::new(specification::FOLDER));
    }
    services::reboot_on_panic();
    // The argument alone does not decide: the kernel also passes words of its command line to the
    // first stage.
    let is_stage2 = std::env::args()
        .nth(1)
        .is_some_and(|argument| argument == "stage2");
    if is_stage2 && agent_sys::mount::root_is_erofs() {
        let console = Console::open();
        stage2::run(&console)
    } else {
        let fatal = initrd::run();
        let console = Console::open();
        console.fatal(&fatal);
        initrd::stop(&fatal)
    }
}
