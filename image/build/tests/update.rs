//! A newer image on a machine's disk, beside its state.

use config_tpm::Digest;
use config_tpm::boot::Boot;
use config_unlock::approvals::{Approvals, FLOORS, Role};
use image_build::disk::{self, Content};
use image_build::update::{Step, Update};
use image_format::Guid;
use image_format::gpt::{SECTOR, crc32, kind};
use image_format::table::{Entry, Table};
use p256::ecdsa::SigningKey;
use p256::pkcs8::{EncodePublicKey as _, LineEnding};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Cursor, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// The content of the state's partition.
const STATE: &[u8] = b"a state that only its machine opens";
const ENTRY: usize = 128;

/// An image: its version, role and release key; everything else follows from the version.
#[derive(Clone, Copy)]
struct Image {
    svn: u64,
    role: Role,
    key: u8,
}

const WORKER: Image = Image {
    svn: 40,
    role: Role::Worker,
    key: 1,
};

impl Image {
    fn of(svn: u64) -> Self {
        Self { svn, ..WORKER }
    }

    fn root_hash(self) -> [u8; 32] {
        [u8::try_from(self.svn).expect("as made here"); 32]
    }

    fn key(self) -> SigningKey {
        SigningKey::from_slice(&[self.key; 32]).expect("a key")
    }

    /// What the kernel image, the root or the verity tree begins with.
    fn bytes(self, what: &str) -> Vec<u8> {
        format!("{what} of version {}", self.svn).into_bytes()
    }

    fn write(self, path: &Path) {
        let value = Digest([7; 32]);
        let boot = Boot {
            secure_boot: false,
            pcrs: [4, 9, 11].map(|pcr| (pcr, vec![value])).into(),
            events: BTreeMap::new(),
        };
        let signed = Approvals::sign(&self.key(), self.role, self.svn, &[boot]);
        let content = Content {
            id: &format!("image-{}", self.svn),
            uki: &self.bytes("kernel"),
            root: &self.bytes("root"),
            verity: &self.bytes("verity"),
            root_hash: &self.root_hash(),
            approvals: &signed.to_bytes().expect("as made here"),
        };
        disk::write(path, &content).expect("written");
    }
}

/// A folder with a machine's disk, images and the release key's public half.
struct Bench(TempDir);

impl Bench {
    /// A disk on which `image` has run: larger than the image, with a state behind it.
    fn with(image: Image) -> Self {
        let bench = Self(tempfile::tempdir().expect("a folder"));
        image.write(&bench.disk());
        let file = File::options().read(true).write(true).open(bench.disk());
        let file = file.expect("as made here");
        let end = file.metadata().expect("as made here").len();
        file.set_len(end + (64 << 20)).expect("written");
        let mut entry = [0; ENTRY];
        entry[..16].copy_from_slice(&kind::LINUX.to_bytes());
        entry[16..32].copy_from_slice(&Guid::new(99).to_bytes());
        let last = (end + (60 << 20)) / SECTOR - 1;
        entry[32..40].copy_from_slice(&(end / SECTOR).to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
        for (unit, byte) in "pratique-state".bytes().enumerate() {
            entry[56 + 2 * unit] = byte;
        }
        let mut entries = vec![0; ENTRY * 128];
        file.read_exact_at(&mut entries, 2 * SECTOR).expect("read");
        entries[5 * ENTRY..6 * ENTRY].copy_from_slice(&entry);
        let mut head = [0; 92];
        file.read_exact_at(&mut head, SECTOR).expect("read");
        head[88..92].copy_from_slice(&crc32(&entries).to_le_bytes());
        head[16..20].fill(0);
        let sum = crc32(&head).to_le_bytes();
        head[16..20].copy_from_slice(&sum);
        file.write_all_at(&entries, 2 * SECTOR).expect("written");
        file.write_all_at(&head, SECTOR).expect("written");
        file.write_all_at(STATE, end).expect("written");
        let public = image
            .key()
            .verifying_key()
            .to_public_key_pem(LineEnding::LF);
        std::fs::write(bench.release_key(), public.expect("written")).expect("written");
        bench
    }

    fn disk(&self) -> PathBuf {
        self.0.path().join("disk")
    }

    fn release_key(&self) -> PathBuf {
        self.0.path().join("release.pub")
    }

    fn image(&self, image: Image) -> PathBuf {
        let path = self.0.path().join("image.raw");
        image.write(&path);
        path
    }

    fn update(&self, image: &Path) -> Update {
        Update::open(image, &self.disk()).expect("an image on it")
    }

    /// Why the state would not be kept.
    fn refusal(&self, image: Image) -> String {
        let image = self.image(image);
        let error = self.update(&image).keeps_the_state(&self.release_key());
        error.expect_err("a refusal").to_string()
    }

    fn table(&self) -> Table {
        let file = File::open(self.disk()).expect("a file");
        Table::read(
            file.metadata().expect("as made here").len(),
            |offset, length| {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, offset).map(|()| bytes)
            },
        )
        .expect("as made here")
    }

    fn read(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let file = File::open(self.disk()).expect("a file");
        file.read_exact_at(&mut bytes, at).expect("read");
        bytes
    }

    /// The entries with both identifiers of an image's root, where its root and tree stand.
    fn boots(&self, image: Image) -> bool {
        let (root, verity) = Guid::of_root_hash(&image.root_hash());
        let stands = |unique: Guid, what: &str| {
            let wanted = image.bytes(what);
            (0..128)
                .filter_map(|index| self.table().entry(index))
                .filter(|entry| entry.unique == unique.to_bytes())
                .any(|entry| self.read(entry.extent.start, wanted.len()) == wanted)
        };
        stands(root, "root") && stands(verity, "verity")
    }

    /// Whether the firmware finds the kernel image of an image, whole.
    fn kernel_is_of(&self, image: Image) -> bool {
        let esp = self.table().entry(0).expect("an entry").extent;
        let size = usize::try_from(esp.size).expect("as made here");
        let volume = Cursor::new(self.read(esp.start, size));
        let volume = fatfs::FileSystem::new(volume, fatfs::FsOptions::new()).expect("a volume");
        let mut content = Vec::new();
        let file = volume.root_dir().open_file("EFI/BOOT/BOOTX64.EFI");
        file.and_then(|mut file| file.read_to_end(&mut content))
            .is_ok()
            && content == image.bytes("kernel")
    }

    fn state(&self) -> (Entry, Vec<u8>) {
        let entry = self.table().labelled("pratique-state").expect("an entry");
        let bytes = self.read(entry.extent.start, STATE.len());
        (entry, bytes)
    }

    fn run(&self, image: &Path, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_image-build"));
        command.arg("write").arg(image).arg(self.disk());
        command.args(arguments).output().expect("a run")
    }
}

#[test]
fn images_alternate_between_two_places_and_the_state_stays() {
    let bench = Bench::with(Image::of(40));
    let state = bench.state();
    let key = bench.release_key().display().to_string();
    for (now, before) in [(41, 40), (42, 41), (42, 42)] {
        let image = bench.image(Image::of(now));
        let output = bench.run(&image, &["--release-key", &key]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert!(
            said.contains("state partition of 60.0 MiB was not touched"),
            "{said}"
        );
        assert!(bench.boots(Image::of(now)) && bench.kernel_is_of(Image::of(now)));
        assert!(
            bench.boots(Image::of(before)),
            "the older root went too early"
        );
        assert!(now == before || !bench.kernel_is_of(Image::of(before)));
        assert_eq!(bench.state(), state);
        assert_eq!(state.1, STATE);
    }
    assert!(
        !bench.boots(Image::of(40)),
        "a third image takes the oldest one's place"
    );
}

/// What a power cut leaves of a step: its first half, in sectors.
fn half(step: &Step) -> Step {
    match step.clone() {
        Step::Copy { mut from, to } => {
            from.size = from.size / 2 / SECTOR * SECTOR;
            Step::Copy { from, to }
        }
        Step::Write { offset, mut bytes } => {
            let sector = usize::try_from(SECTOR).expect("a small number");
            bytes.truncate(bytes.len() / 2 / sector * sector);
            Step::Write { offset, bytes }
        }
        clear @ Step::Clear { .. } => clear,
    }
}

/// Somebody who had the disk made volumes with user-data of the disk itself, of its EFI system
/// partition, of the older root and its tree, and of the unused ones.
#[test]
fn no_volume_with_user_data_that_somebody_planted_in_an_images_place_is_left() {
    let (old, new) = (Image::of(40), Image::of(41));
    let bench = Bench::with(old);
    let state = bench.state();
    let planted = image_format::fat::cidata(b"planted").expect("a volume");
    let starts: Vec<u64> = (0..5)
        .map(|index| bench.table().entry(index).expect("an entry").extent.start)
        .chain([0])
        .collect();
    let file = File::options().write(true).open(bench.disk());
    let file = file.expect("as made here");
    for start in &starts {
        // A label by which the EFI system partition is found is compared with the image's own.
        if *start != starts[0] {
            for part in [43..446, 510..512] {
                let at = start + part.start as u64;
                file.write_all_at(&planted[part], at).expect("written");
            }
        }
        let mut descriptor = [b' '; 72];
        descriptor[..7].copy_from_slice(b"\x01CD001\x01");
        descriptor[40..46].copy_from_slice(b"CIDATA");
        let at = start + 32768;
        file.write_all_at(&descriptor, at).expect("written");
    }
    let labels = || {
        let at = |start: &u64| {
            let sector = bench.read(*start, 512);
            let fat = sector[43..49] == *b"CIDATA" && sector[54..57] == *b"FAT";
            (fat, bench.read(start + 32769, 5) == b"CD001")
        };
        starts.iter().map(at).collect::<Vec<_>>()
    };
    let all = labels();
    assert_eq!(all[0], (false, true));
    assert_eq!(all[1..], [(true, true); 5], "the positive control");
    let image = bench.image(new);
    // The second run finds the image there, and does not copy it again.
    for run in ["first", "second"] {
        for start in &starts[1..] {
            file.write_all_at(&planted[43..446], start + 43)
                .expect("written");
        }
        let output = bench.run(&image, &["--lose-state"]);
        assert!(output.status.success(), "{run}");
        assert_eq!(labels(), [(false, false); 6], "{run}");
        assert!(bench.boots(new) && bench.kernel_is_of(new), "{run}");
        assert!(bench.boots(old), "{run}");
        assert_eq!(bench.state(), state, "{run}");
    }
}

/// As a power cut left it in an older version of the command.
#[test]
fn a_spoilt_efi_system_partition_is_written_as_a_whole() {
    let new = Image::of(41);
    let bench = Bench::with(Image::of(40));
    let esp = bench.table().entry(0).expect("an entry").extent;
    let file = File::options().write(true).open(bench.disk());
    let file = file.expect("as made here");
    file.write_all_at(&[0; 4096], esp.start).expect("written");
    let image = bench.image(new);
    let output = bench.run(&image, &["--lose-state"]);
    assert!(output.status.success());
    assert!(bench.boots(new) && bench.kernel_is_of(new));
}

#[test]
fn a_power_cut_in_any_step_leaves_a_disk_that_boots_and_can_be_written_again() {
    let (old, new) = (Image::of(40), Image::of(41));
    let bench = Bench::with(old);
    let state = bench.state();
    let image = bench.image(new);
    let steps = bench.update(&image).plan();
    assert!(
        matches!(steps.last(), Some(Step::Write { bytes, .. }) if bytes.len() as u64 == SECTOR),
        "one sector decides, and is last"
    );
    for (done, next) in steps.iter().enumerate() {
        let bench = Bench::with(old);
        let update = bench.update(&image);
        for step in &steps[..done] {
            update.carry_out(step).expect("carried out");
        }
        update.carry_out(&half(next)).expect("carried out");
        assert!(
            bench.boots(old) && bench.kernel_is_of(old),
            "after {done} steps"
        );
        assert_eq!(bench.state(), state);
        let again = bench.update(&image);
        for step in again.plan() {
            again.carry_out(&step).expect("carried out");
        }
        assert!(
            bench.boots(new) && bench.kernel_is_of(new),
            "again after {done} steps"
        );
        assert!(bench.boots(old));
        assert_eq!(bench.state(), state);
    }
}

/// An image may be 31 versions above what the machine was admitted with.
#[test]
fn an_image_that_would_not_open_the_state_is_refused() {
    let bench = Bench::with(WORKER);
    let last = WORKER.svn + FLOORS - 1;
    let fits = bench.image(Image::of(last));
    bench
        .update(&fits)
        .keeps_the_state(&bench.release_key())
        .expect("as made here");
    let beyond = bench.refusal(Image::of(last + 1));
    for part in [
        "security version 72",
        "a floor of 41",
        "an image of 40",
        "at most 71",
    ] {
        assert!(beyond.contains(part), "no {part:?} in {beyond}");
    }
    let older = bench.refusal(Image::of(39));
    assert!(
        older.contains("39") && older.contains("no older image"),
        "{older}"
    );
    let role = bench.refusal(Image {
        role: Role::Master,
        ..Image::of(41)
    });
    assert!(role.contains("a master's"), "{role}");
    let key = bench.refusal(Image {
        key: 2,
        ..Image::of(41)
    });
    assert!(key.contains("not signed by this release key"), "{key}");

    let image = bench.image(Image::of(39));
    let state = bench.state();
    let neither = bench.run(&image, &[]);
    assert!(!neither.status.success());
    assert!(bench.kernel_is_of(WORKER), "something was written");
    let forced = bench.run(&image, &["--lose-state"]);
    assert!(
        forced.status.success(),
        "{}",
        String::from_utf8_lossy(&forced.stderr)
    );
    assert!(bench.boots(Image::of(39)) && bench.kernel_is_of(Image::of(39)));
    assert_eq!(
        bench.state(),
        state,
        "it lies there, and is the machine's to open or not"
    );
}

#[test]
fn a_disk_that_is_not_an_images_is_refused() {
    let bench = Bench::with(WORKER);
    let image = bench.image(Image::of(41));
    let refusal = || {
        let error = Update::open(&image, &bench.disk()).expect_err("a refusal");
        config_errors::chain(&error)
    };
    // Another layout: a smaller partition.
    let file = File::options()
        .write(true)
        .open(bench.disk())
        .expect("a file");
    let mut table = bench.table();
    table.swap(0, 1);
    for (offset, bytes) in table.writes() {
        file.write_all_at(&bytes, offset).expect("written");
    }
    assert!(
        refusal().contains("does not fit beside the state"),
        "{}",
        refusal()
    );
    file.set_len(0).expect("written");
    assert!(
        refusal().contains("no GUID partition table"),
        "{}",
        refusal()
    );
}
