//! Kernel settings of sandboxes: which are safe, and their names (pure).

/// Kernel settings that any pod may choose: each belongs to the pod's own namespaces, so that it
/// affects no other pod (upstream's safe sysctls).
pub const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// A setting's path below `/proc/sys`, by its name with dots or slashes.
pub fn path(name: &str) -> String {
    swapped(&dotted(name))
}

/// A setting's name with dots between its parts, as in `sysctl`. The sign that separates the first
/// two parts separates all; the other sign stands for a dot within a part
/// (`net/ipv4/conf/eth0.1/forwarding`).
pub fn dotted(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name.get(at..).is_some_and(|rest| rest.starts_with('/')) => swapped(name),
        Some(_) | None => name.to_owned(),
    }
}

fn swapped(name: &str) -> String {
    let other = |sign| match sign {
        '.' => '/',
        '/' => '.',
        letter => letter,
    };
    name.chars().map(other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settings_path_is_the_same_whichever_sign_parts_its_name() {
        for name in [
            "net.ipv4.conf.eth0/1.forwarding",
            "net/ipv4/conf/eth0.1/forwarding",
        ] {
            assert_eq!(path(name), "net/ipv4/conf/eth0.1/forwarding");
        }
    }
}
