//! `node.unsafe_sysctls`: kernel settings that pods may choose beside the safe ones.
//!
//! Only settings that are of a pod's own namespaces can be listed (upstream's rule): any other one
//! is the machine's.

use crate::format::{FormatError, text_type};

text_type!(
    /// A kernel setting's name with dots, such as `net.core.somaxconn`, or what names begin with
    /// and `*`, such as `kernel.msg*`; all that it means are of a namespace.
    Sysctls,
    check
);

/// The namespace that a kernel setting is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    /// That of communication between processes.
    Ipc,
    /// The network's.
    Network,
}

impl Namespace {
    /// That of a setting, by its name with dots, or by what names begin with; none where it is the
    /// machine's.
    pub fn of(name: &str) -> Option<Self> {
        let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."];
        if name == "kernel.sem" || ipc.iter().any(|prefix| name.starts_with(prefix)) {
            return Some(Self::Ipc);
        }
        name.starts_with("net.").then_some(Self::Network)
    }
}

impl Sysctls {
    /// Whether it means a setting, by its name with dots.
    pub fn means(&self, name: &str) -> bool {
        match self.as_str().strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == self.as_str(),
        }
    }
}

fn check(text: &str) -> Result<(), FormatError> {
    let name = text.strip_suffix('*').unwrap_or(text);
    let letter =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-/".contains(&byte);
    let plain = !name.is_empty() && name.len() <= 253 && name.bytes().all(letter);
    if plain && Namespace::of(name).is_some() {
        return Ok(());
    }
    let error = FormatError::new(
        "a setting of the network (`net.…`) or of communication between processes (`kernel.shm…`, `kernel.msg…`, `kernel.sem`, \
         `fs.mqueue.…`), perhaps with `*` at its end",
    );
    let dotted = text.replace('/', ".");
    Err(if dotted != text && check(&dotted).is_ok() {
        error.hint(format!("write \"{dotted}\""))
    } else if plain {
        error.hint("what is of no namespace would be changed for the whole machine")
    } else {
        error
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_means_all_that_begin_so_and_another_name_itself_alone() {
        let means = |listed: &str, name| listed.parse::<Sysctls>().unwrap().means(name);
        assert!(means("kernel.msg*", "kernel.msgmax"));
        assert!(!means("kernel.msg*", "kernel.sem"));
        assert!(means("net.core.somaxconn", "net.core.somaxconn"));
        assert!(!means("net.core.somaxconn", "net.core.somaxconn_"));
        assert!(means("net.*", "net.ipv4.conf.eth0/1.forwarding"));
    }

    #[test]
    fn what_is_of_no_namespace_can_not_be_listed() {
        for text in [
            "*",
            "",
            "net*",
            "kernel.*",
            "kernel.core_pattern",
            "vm.swappiness",
            "net.core.*max",
            "net/core/somaxconn",
        ] {
            assert!(text.parse::<Sysctls>().is_err(), "{text}");
        }
    }
}
