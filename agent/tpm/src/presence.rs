//! The TPM of a machine, as the kernel shows it; checked before a machine joins without one.

use std::path::Path;

/// What the kernel shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// A TPM 2.0, or one whose version only opening it can show.
    Tpm,
    /// A TPM 1.2: it has neither the registers nor the keys of this protocol.
    Tpm12,
    /// The firmware names a TPM 2.0, and the kernel drives none.
    NotDriven,
    /// None.
    Absent,
}

impl Presence {
    /// Looks for the TPM that `tcti` names, in tpm2-tss's notation, and for others in `sys`
    /// (`/sys`). If in doubt, there is one.
    pub fn of(tcti: &str, sys: &Path) -> Self {
        let Some(device) = tcti.strip_prefix("device:").map(Path::new) else {
            return Self::Tpm;
        };
        if device.exists() {
            return Self::Tpm;
        }
        // Linux shows each TPM here, with its version since 5.6.
        let tpms = std::fs::read_dir(sys.join("class/tpm"))
            .into_iter()
            .flatten()
            .flatten();
        let versions: Vec<String> = tpms
            .map(|tpm| {
                std::fs::read_to_string(tpm.path().join("tpm_version_major")).unwrap_or_default()
            })
            .collect();
        if versions.iter().any(|version| version.trim() != "1") {
            return Self::Tpm;
        }
        if sys.join("firmware/acpi/tables/TPM2").exists() {
            return Self::NotDriven;
        }
        if versions.is_empty() {
            Self::Absent
        } else {
            Self::Tpm12
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_counts_as_without_a_tpm_only_if_that_is_certain() {
        let sys = tempfile::tempdir().expect("a directory");
        let at = |path: &str| sys.path().join(path);
        let device = at("tpmrm0");
        let tcti = format!("device:{}", device.display());
        let found = || Presence::of(&tcti, sys.path());
        assert_eq!(
            Presence::of("swtpm:host=127.0.0.1,port=1", sys.path()),
            Presence::Tpm
        );
        assert_eq!(found(), Presence::Absent);
        std::fs::create_dir_all(at("firmware/acpi/tables")).expect("a directory");
        std::fs::write(at("firmware/acpi/tables/TPM2"), "").expect("a file");
        assert_eq!(found(), Presence::NotDriven);
        std::fs::remove_file(at("firmware/acpi/tables/TPM2")).expect("the file");
        std::fs::create_dir_all(at("class/tpm/tpm0")).expect("a directory");
        assert_eq!(found(), Presence::Tpm, "a version that is not reported");
        std::fs::write(at("class/tpm/tpm0/tpm_version_major"), "1\n").expect("a file");
        assert_eq!(found(), Presence::Tpm12);
        std::fs::write(at("class/tpm/tpm0/tpm_version_major"), "2\n").expect("a file");
        assert_eq!(
            found(),
            Presence::Tpm,
            "a TPM 2.0 whose device is missing is not none"
        );
        std::fs::write(&device, "").expect("a file");
        assert_eq!(found(), Presence::Tpm);
    }
}
