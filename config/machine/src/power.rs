//! The order that ends a machine: what the master posts to the kubelet, and the exit code by which
//! the agent hands it to init.

/// The first part of the kubelet's path: `POST /power/reboot`, `POST /power/poweroff`. Only the
/// master asks for it, and its proxy to nodes hands nothing on to it.
pub const FOLDER: &str = "power";

/// How a machine is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// It starts again.
    Reboot,
    /// It stays off until somebody switches it on.
    PowerOff,
}

impl Order {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Reboot, Self::PowerOff];

    /// Its word, in paths and commands.
    pub fn word(self) -> &'static str {
        match self {
            Self::Reboot => "reboot",
            Self::PowerOff => "poweroff",
        }
    }

    /// The order of this word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|order| order.word() == word)
    }

    /// The agent's exit code that asks init for it. No error of a program has it: the codes of
    /// `sysexits.h` end at 78.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Reboot => 100,
            Self::PowerOff => 101,
        }
    }

    /// The kubelet's path.
    pub fn path(self) -> String {
        format!("/{FOLDER}/{}", self.word())
    }
}

/// Whether a path of the kubelet leads to an order, as the kubelet takes paths apart.
pub fn is_order(path: &str) -> bool {
    let mut parts = path.trim_start_matches('/').split(['/', '?']);
    parts.next() == Some(FOLDER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_order_has_a_word_a_path_and_a_code_of_its_own() {
        for order in Order::ALL {
            assert_eq!(Order::of(order.word()), Some(order));
            assert!(is_order(&order.path()));
        }
        assert_ne!(Order::Reboot.exit_code(), Order::PowerOff.exit_code());
        assert_eq!(Order::of("halt"), None);
    }

    #[test]
    fn no_path_around_an_order_is_missed_and_no_other_is_taken_for_one() {
        for path in [
            "/power/reboot",
            "power/x",
            "//power/reboot",
            "/power",
            "/power?a=b",
        ] {
            assert!(is_order(path), "{path}");
        }
        for path in [
            "/",
            "",
            "/powers/reboot",
            "/pods/power",
            "/%70ower/reboot",
            "/./power",
        ] {
            assert!(!is_order(path), "{path}");
        }
    }
}
