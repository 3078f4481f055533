//! `pratique recover-state`: opens a master's state on another board after its own was lost.
//!
//! Reads the data in front of the encrypted state, which anyone with the disk can write, and trusts
//! only what the admin's key and the cluster's root prove: the recovery copy must hold the private
//! key of a pinned root, and the state's recovery key in the same copy must open the header of this
//! disk. Writes a one-off key ([`config_unlock::one_off`]) for one board, and nothing unencrypted.

use crate::bootstrap::expect::{release, release_key};
use crate::error::{Error, Result};
use crate::{ek, files};
use config_attest::release::{KnownRelease, ReleaseKey};
use config_state::header::{self, Header, WrappingKey};
use config_tpm::{Digest, Public, template};
use config_unlock::approvals::{Approver, Role, SECURE_BOOT_PCR};
use config_unlock::one_off;
use config_unlock::one_off::Terms;
use master_ca::recovery::{Recovered, decrypt};
use p256::ecdsa::SigningKey;
use p256::pkcs8::DecodePrivateKey as _;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// What to open, and for which board.
#[derive(Debug, clap::Args)]
pub(crate) struct RecoverStateArgs {
    /// The admin's private key.
    #[arg(long)]
    admin_key: PathBuf,
    /// Pin of the cluster's root, `sha256:…`, as workers have it in `ca_pins`; once more while the
    /// root is rotated.
    #[arg(long, required = true, value_name = "sha256:HASH")]
    ca_pin: Vec<String>,
    /// File with the new board's endorsement key: its certificate, public key or TPM public area.
    #[arg(long, value_name = "FILE")]
    ek: PathBuf,
    /// The release of the image that the new board boots: *.release.json of the image build.
    #[arg(long, value_name = "FILE")]
    release: PathBuf,
    /// PEM public key that must have signed that release.
    #[arg(long, value_name = "FILE")]
    release_key: PathBuf,
    /// Open it under any Secure Boot settings of the new board, and not only with Secure Boot on
    /// and the keys for which that image was built.
    #[arg(long)]
    any_secure_boot: bool,
    /// The recovery copy, where the one in front of the state can't be used.
    #[arg(long, value_name = "FILE")]
    copy: Option<PathBuf>,
    /// Write the one-off key into this new file, and not in front of the state.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The state partition (/dev/disk/by-partlabel/pratique-state of the master's disk), or a copy
    /// of its first MiB.
    partition: PathBuf,
}

/// Checks everything, then writes the one-off key.
pub(crate) fn run(args: &RecoverStateArgs) -> Result<()> {
    let ek = board(&args.ek)?;
    let image = image(args)?;
    let header = write(args, &ek, &image)?;
    let hash = ek::hash_of_file(&args.ek)?.to_text();
    let place = match &args.out {
        Some(out) => format!(
            "wrote {0}; put it in front of the state: dd if={0} of=STATE-PARTITION bs=1024 seek={1} conv=notrunc",
            out.display(),
            header::ONE_OFF / 1024
        ),
        None => format!(
            "wrote the one-off key in front of {}",
            args.partition.display()
        ),
    };
    let settings = if image.secure_boot.is_some() {
        "with Secure Boot on and the image's keys"
    } else {
        "under any Secure Boot settings: let nobody else have the board until the master has started"
    };
    files::tell(&format!(
        "{place}\nIt opens this disk once, in its present generation ({}), on that board alone, booted with a master's image of that \
         release key from security version {} on, {settings}.\nNext: put the disk into the board, give it the master's user-data and power \
         it on; then name its endorsement key in its Machine:\n  kubectl patch machine MASTER --type=merge -p \
         '{{\"spec\":{{\"ek\":{{\"hashes\":[\"{hash}\"]}}}}}}'",
        header.generation, image.floor,
    ));
    Ok(())
}

/// Writes the one-off key for these images; the header that it is for.
fn write(args: &RecoverStateArgs, ek: &Public, image: &Image) -> Result<Header> {
    let pem = Zeroizing::new(files::read_text(&args.admin_key)?);
    let admin = SigningKey::from_pkcs8_pem(&pem).map_err(|_no_key| {
        let cure = "name the key that `pratique admin-key` made for this cluster";
        let why = "not a P-256 key in PKCS#8 PEM";
        Error::input(args.admin_key.display().to_string(), why, cure)
    })?;
    let disk = Disk::open(&args.partition, args.out.is_none())?;
    let recovered = copy(args, &disk, &pem)?;
    let state_key = recovered.state_key.as_ref().ok_or_else(|| {
        let cure = "give a later copy with --copy; a master writes one at its bootstrap and whenever the root is rotated";
        let why = "it holds no key of the state: it is of a master that had none then";
        Error::input("the recovery copy", why, cure)
    })?;
    let header = disk.header(state_key)?;
    let terms = Terms {
        generation: header.generation,
        approver: &Approver::new(image.key.key(), Role::Master),
        floor: image.floor,
        ek,
        secure_boot: image.secure_boot,
    };
    let mut content = Zeroizing::new(Vec::with_capacity(one_off::MAX_CONTENT));
    content.extend_from_slice(state_key.as_slice());
    content.extend_from_slice(recovered.keys.as_bytes());
    let made = one_off::make(terms, &content, &admin, &mut rand_core::OsRng);
    let bytes = made.map_err(|e| {
        let cure = "check the endorsement key and the recovery copy";
        Error::input("the one-off key", e.to_string(), cure)
    })?;
    match &args.out {
        Some(out) => files::write_private(out, &bytes, false)?,
        None => disk.put(&bytes)?,
    }
    Ok(header)
}

/// The new board's endorsement key.
fn board(path: &Path) -> Result<Public> {
    template::ek_of_spki(&ek::read(path)?).ok_or_else(|| {
        Error::input(
            path.display().to_string(),
            "not an endorsement key of a TCG template",
            "give the new board's RSA-2048, ECC P-256 or ECC P-384 endorsement key",
        )
    })
}

/// The images that may open the state, and how they are booted.
struct Image {
    /// Their release key.
    key: ReleaseKey,
    /// Their lowest version.
    floor: u64,
    /// The Secure Boot settings of the new board; `None`: any.
    secure_boot: Option<Digest>,
}

/// What the given release and its key say about them.
fn image(args: &RecoverStateArgs) -> Result<Image> {
    let key = release_key(&args.release_key)?;
    let subject = args.release.display().to_string();
    let known =
        KnownRelease::open(&release(&args.release)?, std::slice::from_ref(&key)).map_err(|e| {
            let cure = "name the *.release.json of the image build";
            Error::input(&subject, config_errors::chain(&e), cure)
        })?;
    let manifest = known.manifest();
    let fault = |why: &str, cure: &str| Err(Error::input(&subject, why, cure));
    if known.verified_by().is_empty() {
        return fault(
            "the given release key has not signed it",
            "give the key that signed it with --release-key",
        );
    }
    if manifest.role != "master" {
        return fault(
            "not the release of a master's image",
            "name the master's; a worker's state is disposable and is made anew by itself",
        );
    }
    let mut on = manifest.boots.iter().filter(|boot| boot.secure_boot);
    let settings = on.find_map(|boot| boot.pcrs.get(&SECURE_BOOT_PCR)?.first().copied());
    if settings.is_none() && !args.any_secure_boot {
        return fault(
            "it is of an image without keys for Secure Boot",
            "name the release of one with keys, or give --any-secure-boot: anyone who has the board before the master's first start there \
             can then read its keys",
        );
    }
    let floor = manifest.svn;
    Ok(Image {
        key,
        floor,
        secure_boot: settings.filter(|_| !args.any_secure_boot),
    })
}

/// Opens the first recovery copy that is of this cluster: it holds the private key of a pinned
/// root.
fn copy(args: &RecoverStateArgs, disk: &Disk, pem: &str) -> Result<Recovered> {
    let texts = match &args.copy {
        Some(path) => vec![files::read_text(path)?],
        None => disk.recovery_copies()?,
    };
    let mut refused = Error::input(
        args.partition.display().to_string(),
        "no recovery copy lies in front of the state",
        "name the master's state partition (a worker's has none and is disposable), or give a copy with --copy",
    );
    for text in texts {
        match decrypt(pem, &text).and_then(|plain| Recovered::parse(&plain)) {
            Ok(found) => {
                let pins = found.root_pins();
                if pins.iter().any(|pin| args.ca_pin.contains(pin)) {
                    return Ok(found);
                }
                refused = Error::input(
                    "the recovery copy",
                    "it does NOT hold the key of the cluster's root: somebody else made it, or the pin is another cluster's",
                    "check --ca-pin; if it is right, somebody wrote on this disk: give a copy of your own with --copy",
                );
            }
            Err(source) => {
                refused = Error::Ca {
                    what: "open the recovery copy",
                    source,
                };
            }
        }
    }
    Err(refused)
}

/// The data in front of the volume.
struct Disk {
    file: File,
    path: PathBuf,
}

impl Disk {
    fn open(path: &Path, write: bool) -> Result<Self> {
        let file = File::options().read(true).write(write).open(path);
        Ok(Self {
            file: file.map_err(Error::file("open", path))?,
            path: path.to_owned(),
        })
    }

    fn read(&self, length: usize, at: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let read = self.file.read_exact_at(&mut bytes, at);
        read.map_err(Error::file("read the first MiB of", &self.path))?;
        Ok(bytes)
    }

    /// The texts of the recovery copies, unverified.
    fn recovery_copies(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for place in header::RECOVERY_COPIES {
            let bytes = self.read(header::MAX_RECOVERY, place)?;
            let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            let text = std::str::from_utf8(text)
                .ok()
                .filter(|text| !text.is_empty());
            found.extend(text.map(str::to_owned));
        }
        Ok(found)
    }

    /// The newest header that the recovery key opens.
    fn header(&self, key: &[u8; 32]) -> Result<Header> {
        let mut headers = Vec::new();
        for place in header::COPIES {
            headers.extend(Header::parse(&self.read(header::SIZE, place)?).ok());
        }
        let subject = self.path.display().to_string();
        if headers.is_empty() {
            return Err(Error::input(
                subject,
                "no header of an encrypted state is there",
                "name the partition pratique-state of the master's disk",
            ));
        }
        let key: WrappingKey = Zeroizing::new(*key);
        headers.retain(|header| header.recover(&key).is_some());
        headers
            .into_iter()
            .max_by_key(|header| header.generation)
            .ok_or_else(|| {
                Error::input(
                    subject,
                    "the state's key in the recovery copy does not open it: the copy is of another disk, or the header is damaged",
                    "bring disk and copy of one master together; without that, found the cluster anew from a backup of its store",
                )
            })
    }

    fn put(&self, one_off: &[u8]) -> Result<()> {
        let mut area = one_off.to_vec();
        area.resize(header::MAX_ONE_OFF, 0);
        let written = self.file.write_all_at(&area, header::ONE_OFF);
        written
            .and_then(|()| self.file.sync_all())
            .map_err(Error::file("write", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config_unlock::one_off::OneOff;
    use master_ca::{Authority, FileKeeper};
    use p256::pkcs8::{EncodePrivateKey as _, EncodePublicKey as _, LineEnding};
    use std::sync::Arc;
    use std::time::SystemTime;

    const STATE_KEY: [u8; 32] = [0x5a; 32];

    /// The front of a master's disk with a genuine recovery copy, and all that the admin has.
    struct RecoveryCase {
        dir: tempfile::TempDir,
        args: RecoverStateArgs,
        image: Image,
    }

    fn ek() -> Public {
        let key = p256::SecretKey::random(&mut rand_core::OsRng).public_key();
        template::ek_of_spki(key.to_public_key_der().unwrap().as_bytes()).unwrap()
    }

    impl RecoveryCase {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            let admin = p256::SecretKey::random(&mut rand_core::OsRng);
            let pem = admin.to_pkcs8_pem(LineEnding::LF).unwrap();
            std::fs::write(at("admin.key"), pem.as_bytes()).unwrap();
            std::fs::write(at("state-recovery"), "5a".repeat(32)).unwrap();
            let keeper = Arc::new(FileKeeper);
            let authority = Authority::open(&at("ca"), "lab", keeper, SystemTime::now());
            let authority = authority.unwrap().with_state_key(at("state-recovery"));
            let spki = admin.public_key().to_public_key_der().unwrap();
            let copy = authority.write_recovery(spki.as_bytes()).unwrap();
            let mut disk = vec![0; 1 << 20];
            put(
                &mut disk,
                header::RECOVERY_COPIES[1],
                &std::fs::read(copy).unwrap(),
            );
            for (place, generation) in header::COPIES.into_iter().zip([8, 7]) {
                put(&mut disk, place, &sealed(generation, STATE_KEY));
            }
            std::fs::write(at("front"), disk).unwrap();
            let release = p256::SecretKey::random(&mut rand_core::OsRng).public_key();
            let release = release.to_public_key_pem(LineEnding::LF).unwrap();
            let args = RecoverStateArgs {
                admin_key: at("admin.key"),
                ca_pin: vec![authority.pin()],
                ek: at("ek"),
                release: at("release"),
                release_key: at("release.pub"),
                any_secure_boot: false,
                copy: None,
                out: Some(at("one-off")),
                partition: at("front"),
            };
            let image = Image {
                key: ReleaseKey::from_pem("dev", &release).unwrap(),
                floor: 3,
                secure_boot: Some(Digest([7; 32])),
            };
            Self { dir, args, image }
        }

        fn write(&self) -> Result<Header> {
            write(&self.args, &ek(), &self.image)
        }

        fn refused(&self) -> String {
            let error = self.write().err().map(|error| config_errors::chain(&error));
            assert!(!self.dir.path().join("one-off").exists());
            error.unwrap_or_default()
        }

        fn change(&self, at: u64, bytes: &[u8]) {
            let mut disk = std::fs::read(&self.args.partition).unwrap();
            put(&mut disk, at, bytes);
            std::fs::write(&self.args.partition, disk).unwrap();
        }
    }

    fn put(disk: &mut [u8], at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).unwrap();
        disk[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn sealed(generation: u64, recovery: [u8; 32]) -> Vec<u8> {
        let (volume, wrapping) = ([1; 64].into(), [2; 32].into());
        let header = Header::seal(generation, &volume, &wrapping, Some(&recovery.into()));
        header.unwrap().to_bytes()
    }

    #[test]
    fn a_one_off_key_is_for_the_newest_header_and_holds_nothing_in_the_clear() {
        let mut case = RecoveryCase::new();
        assert_eq!(case.write().unwrap().generation, 8);
        let written = std::fs::read(case.dir.path().join("one-off")).unwrap();
        let read = OneOff::parse(&written).unwrap();
        assert_eq!((read.generation, read.floor), (8, 3));
        let approver = Approver::new(case.image.key.key(), Role::Master);
        assert!(read.is_for(&approver, Digest([7; 32])));
        assert!(!read.is_for(&approver, Digest([8; 32])), "other settings");
        let clear = [&b"PRIVATE KEY"[..], &STATE_KEY];
        for part in clear {
            assert!(!written.windows(part.len()).any(|window| window == part));
        }
        assert!(case.write().is_err(), "a file that is there is kept");
        // On the disk itself: there and nowhere else.
        case.args.out = None;
        let before = std::fs::read(&case.args.partition).unwrap();
        case.write().unwrap();
        let after = std::fs::read(&case.args.partition).unwrap();
        let at = usize::try_from(header::ONE_OFF).unwrap();
        let area = at..at + header::MAX_ONE_OFF;
        assert_eq!(OneOff::parse(&after[area.clone()]).unwrap().generation, 8);
        assert_eq!(
            (&after[..area.start], &after[area.end..]),
            (&before[..area.start], &before[area.end..])
        );
    }

    #[test]
    fn a_copy_of_another_cluster_is_refused_with_its_reason() {
        let mut case = RecoveryCase::new();
        let pin = std::mem::replace(&mut case.args.ca_pin, vec!["sha256:00".to_owned()]);
        assert!(case.refused().contains("does NOT hold the key"));
        case.args.ca_pin = pin;
        // A forged copy beside the genuine one, for another admin's key or for this one's: the
        // genuine one is found. A forged copy alone is refused.
        let (other, good) = (
            RecoveryCase::new(),
            std::fs::read(&case.args.partition).unwrap(),
        );
        let planted = std::fs::read(&other.args.partition).unwrap();
        let at = |copy: usize| usize::try_from(header::RECOVERY_COPIES[copy]).unwrap();
        let copy = |disk: &[u8]| disk[at(1)..at(1) + header::MAX_RECOVERY].to_vec();
        case.change(header::RECOVERY_COPIES[0], &copy(&planted));
        case.write().unwrap();
        std::fs::remove_file(case.dir.path().join("one-off")).unwrap();
        case.change(header::RECOVERY_COPIES[1], &copy(&planted));
        assert!(case.refused().contains("encrypted to another key"));
        let pem = std::fs::read_to_string(&case.args.admin_key).unwrap();
        let admin = p256::SecretKey::from_pkcs8_pem(&pem).unwrap().public_key();
        let spki = admin.to_public_key_der().unwrap();
        let mut forged = master_ca::recovery::encrypt(spki.as_bytes(), b"keys")
            .unwrap()
            .into_bytes();
        forged.resize(header::MAX_RECOVERY, 0);
        case.change(header::RECOVERY_COPIES[1], &forged);
        assert!(case.refused().contains("does NOT hold the key"));
        case.change(header::RECOVERY_COPIES[0], &forged);
        case.change(header::RECOVERY_COPIES[1], &copy(&good));
        case.write().unwrap();
        std::fs::remove_file(case.dir.path().join("one-off")).unwrap();

        for place in header::COPIES {
            case.change(place, &sealed(8, [0x5b; 32]));
        }
        assert!(case.refused().contains("of another disk"));
        for place in header::COPIES {
            case.change(place, &[0; header::SIZE]);
        }
        assert!(case.refused().contains("no header"));
        for place in header::RECOVERY_COPIES {
            case.change(place, &vec![0; header::MAX_RECOVERY]);
        }
        assert!(case.refused().contains("no recovery copy"));
        std::fs::write(&case.args.partition, "short").unwrap();
        assert!(case.refused().contains("first MiB"));
    }
}
