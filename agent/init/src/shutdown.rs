//! The last steps of a shutdown: unmounts in order, so that the state's file system ends clean.

use agent_sys::mount::{detach, make_read_only, unmount};
use agent_sys::power::{End, end, sync};

use crate::console::Console;
use crate::state_partition::TARGET;

/// Most mounts that are examined; the kernel's own limit is 100,000.
const MAX_MOUNTS: usize = 100_000;

/// The mount points at and below `roots` in the text of `/proc/self/mountinfo`, latest mounted
/// first.
pub fn unmount_order<'a>(mountinfo: &'a str, roots: &[&str]) -> Vec<String> {
    let target = |line: &'a str| line.split(' ').nth(4).map(unescaped);
    let below = |path: &String| {
        roots
            .iter()
            .any(|root| path == root || path.starts_with(&format!("{root}/")))
    };
    let mut found: Vec<String> = mountinfo
        .lines()
        .take(MAX_MOUNTS)
        .filter_map(target)
        .filter(below)
        .collect();
    found.reverse();
    found
}

/// Undoes the octal escapes of mountinfo (blank, tab, line end, backslash).
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

/// Syncs, unmounts the state, and powers off or reboots. Assumes that all processes are gone.
pub fn finish(console: &Console, how: End) -> agent_sys::Error {
    sync();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for target in unmount_order(&mounts, &["/run/containerd", "/run/pratique", "/var"]) {
        match unmount(&target) {
            Err(_) if target == TARGET => {
                // Still in use by the kernel: remounted read-only it ends clean as well.
                if make_read_only(&target).is_err() {
                    console.line(
                        "pratique: WARNING STATE: the state could not be unmounted; its journal will be replayed",
                    );
                }
            }
            Err(_) => drop(detach(&target)),
            Ok(()) => {}
        }
    }
    sync();
    console.milestone(match how {
        End::Reboot => "rebooting",
        End::PowerOff => "powering off",
    });
    end(how)
}

#[cfg(test)]
mod tests {
    use super::unmount_order;

    #[test]
    fn children_go_before_parents_and_others_stay() {
        let text = "22 1 0:5 / / ro - erofs /dev/dm-0 ro\n\
                    30 22 8:6 / /var rw - ext4 /dev/vda6 rw\n\
                    31 22 0:9 / /variant rw - tmpfs tmpfs rw\n\
                    32 30 0:8 / /var/lib/a\\040b rw - overlay overlay rw\n";
        assert_eq!(unmount_order(text, &["/var"]), ["/var/lib/a b", "/var"]);
        assert_eq!(
            unmount_order("garbage\n\n1 2", &["/var"]),
            Vec::<String>::new()
        );
    }
}
