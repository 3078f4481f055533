//! The resolver's file.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// As many as resolvers read (`MAXNS` of glibc).
const MOST: usize = 3;

/// The first servers, each once, in their order.
pub fn choose(servers: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut chosen = Vec::new();
    for server in servers {
        if chosen.len() < MOST && !chosen.contains(&server) {
            chosen.push(server);
        }
    }
    chosen
}

/// The file's text.
pub fn file(servers: &[IpAddr]) -> String {
    servers
        .iter()
        .map(|server| format!("nameserver {server}\n"))
        .collect::<Vec<_>>()
        .concat()
}

/// Replaces the file in one step, so that no reader sees half of it.
///
/// # Errors
/// The new file cannot be written, or not put in the old one's place.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::{choose, file, write};
    use std::net::IpAddr;

    #[test]
    fn three_servers_at_most_each_once() {
        let of = |last| IpAddr::from([192, 0, 2, last]);
        let chosen = choose([of(1), of(2), of(1), of(3), of(4)].into_iter());
        assert_eq!(chosen, [of(1), of(2), of(3)]);
        assert_eq!(
            file(&chosen[..2]),
            "nameserver 192.0.2.1\nnameserver 192.0.2.2\n"
        );
    }

    #[test]
    fn the_file_is_replaced_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("resolv.conf");
        write(&path, "nameserver 192.0.2.1\n").expect("written");
        write(&path, "").expect("written again");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "");
    }
}
