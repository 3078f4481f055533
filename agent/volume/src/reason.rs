//! Why a state was not opened: one word for machines, one sentence for people.

use std::fmt;

/// How far above a state's floor an image may be: the release key approves as many floors
/// (`config_unlock::approvals::FLOORS`, the image's own version included).
pub const MOST_ABOVE: u64 = 31;

/// Why there is no state that can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Neither disk nor TPM have anything: the machine's first start.
    FirstStart,
    /// The TPM has a key, and the disk has no state partition, or one that was not finished: what
    /// made it was cut off.
    PartitionGone,
    /// The partition has no header: it is unencrypted, made by another system, or was overwritten.
    NoHeader,
    /// The disk has a header, and the TPM has no key: another machine's disk, or a cleared TPM.
    NoKey,
    /// The TPM's index was made by another system, or under other Secure Boot settings.
    ForeignIndex,
    /// The TPM's key is for images of the other role: a worker's image on a master's board, or the
    /// reverse.
    OtherRole,
    /// The TPM's key is for images of at least this version, and of at most [`MOST_ABOVE`] more.
    Floor(u64),
    /// The header is encrypted by another key, or was changed.
    OtherKey,
    /// The header is older than the TPM's generation: an older copy of the disk.
    OlderCopy,
    /// It was made under other user-data. A boot of an approved image under other user-data gets
    /// neither what another configuration stored, nor has what theirs stored believed.
    OtherConfiguration,
    /// The volume was opened, and its file system is damaged, or not there: what made the volume
    /// anew was cut off before.
    Damaged,
    /// The release key did not approve the boot, or the state was opened already in this boot.
    NotApproved,
    /// The image has no approvals that its release key signed.
    NoApprovals,
    /// The machine has no TPM 2.0.
    NoTpm,
    /// The one-off key in front of the volume is cut short, or was changed.
    OneOffDamaged,
    /// The one-off key is for the TPM of another board.
    OneOffOtherBoard,
    /// The one-off key is for images of another release key or of a higher security version, or for
    /// other Secure Boot settings.
    OneOffOtherImage,
    /// The one-off key is for another disk.
    OneOffOtherDisk,
    /// The one-off key was made for a newer copy of the disk.
    OneOffOlderCopy,
    /// The one-off key was used, or the state was opened elsewhere since it was made.
    OneOffUsed,
}

impl Reason {
    const PLAIN: [Self; 19] = [
        Self::FirstStart,
        Self::PartitionGone,
        Self::NoHeader,
        Self::NoKey,
        Self::ForeignIndex,
        Self::OtherRole,
        Self::OtherKey,
        Self::OlderCopy,
        Self::OtherConfiguration,
        Self::Damaged,
        Self::NotApproved,
        Self::NoApprovals,
        Self::NoTpm,
        Self::OneOffDamaged,
        Self::OneOffOtherBoard,
        Self::OneOffOtherImage,
        Self::OneOffOtherDisk,
        Self::OneOffOlderCopy,
        Self::OneOffUsed,
    ];
    const FLOOR: &'static str = "Floor-";

    /// Its name, in the form of a condition's reason.
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstStart => "FirstStart",
            Self::PartitionGone => "PartitionGone",
            Self::NoHeader => "NoHeader",
            Self::NoKey => "NoKey",
            Self::ForeignIndex => "ForeignIndex",
            Self::OtherRole => "OtherRole",
            Self::Floor(_) => "Floor",
            Self::OtherKey => "OtherKey",
            Self::OlderCopy => "OlderCopy",
            Self::OtherConfiguration => "OtherConfiguration",
            Self::Damaged => "Damaged",
            Self::NotApproved => "NotApproved",
            Self::NoApprovals => "NoApprovals",
            Self::NoTpm => "NoTpm",
            Self::OneOffDamaged => "OneOffDamaged",
            Self::OneOffOtherBoard => "OneOffOtherBoard",
            Self::OneOffOtherImage => "OneOffOtherImage",
            Self::OneOffOtherDisk => "OneOffOtherDisk",
            Self::OneOffOlderCopy => "OneOffOlderCopy",
            Self::OneOffUsed => "OneOffUsed",
        }
    }

    /// The reason as it is written in a report: the name, and for a floor its number.
    pub fn word(self) -> String {
        if let Self::Floor(floor) = self {
            format!("{}{floor}", Self::FLOOR)
        } else {
            self.name().to_owned()
        }
    }

    /// The reverse of [`Reason::word`].
    pub fn of_word(word: &str) -> Option<Self> {
        if let Some(floor) = word.strip_prefix(Self::FLOOR) {
            return floor.parse().ok().map(Self::Floor);
        }
        Self::PLAIN.into_iter().find(|reason| reason.name() == word)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FirstStart => "it is the machine's first start",
            Self::PartitionGone => {
                "the TPM has a key for it, and the disk has no state partition, or one whose making was cut off"
            }
            Self::NoHeader => "the state partition was not encrypted by this machine: it is plain, or was overwritten",
            Self::NoKey => "the TPM has no key for it: the disk is another machine's, or the TPM was cleared",
            Self::ForeignIndex => {
                "the TPM's index for its key was made by another system, or under other Secure Boot settings (PCR 7) than this boot's"
            }
            Self::OtherRole => {
                "the TPM keeps its key for images of the other role: a master's, or a worker's"
            }
            Self::Floor(floor) => {
                return write!(
                    f,
                    "the TPM keeps its key for images of security version {floor} or above, by {MOST_ABOVE} at most"
                );
            }
            Self::OtherKey => "it is encrypted by another key than the TPM's, or its header was changed",
            Self::OlderCopy => "it is an older copy of the disk than this machine used last",
            Self::OtherConfiguration => "it was made under other user-data than this boot's",
            Self::Damaged => "its file system is damaged, or its making was cut off by a reboot",
            Self::NotApproved => "the release key did not approve what was booted",
            Self::NoApprovals => "no release key signed this image",
            Self::NoTpm => "the machine has no TPM 2.0",
            Self::OneOffDamaged => "the one-off key in front of it is damaged",
            Self::OneOffOtherBoard => "the one-off key in front of it is for the TPM of another board",
            Self::OneOffOtherImage => {
                "the one-off key in front of it is for images of another release key or of a higher security version, or for other Secure \
                 Boot settings"
            }
            Self::OneOffOtherDisk => "the one-off key in front of it is for another disk",
            Self::OneOffOlderCopy => {
                "the one-off key in front of it was made for a newer copy of this disk"
            }
            Self::OneOffUsed => {
                "the one-off key in front of it was used already, or the state was opened since it was made"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn each_word_is_understood_again() {
        for reason in Reason::PLAIN {
            assert_eq!(Reason::of_word(&reason.word()), Some(reason));
        }
        assert_eq!(
            Reason::of_word(&Reason::Floor(7).word()),
            Some(Reason::Floor(7))
        );
        assert_eq!(Reason::of_word("Floor-x"), None);
    }
}
