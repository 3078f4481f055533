//! Two places for a kernel image in one EFI system partition, so that one sector decides which of
//! them the firmware starts.
//!
//! An image's partition (FAT16, as [`crate::fat`] makes it) uses the first clusters and no more
//! than half of all. A newer image's clusters go into the half that is not in use, moved by a fixed
//! number of clusters together with their entries in the file allocation tables. Nothing leads
//! there until the first sector of the root directory is written, which names the folder of the
//! kernel image: before that write the firmware finds the older image whole, after it the newer
//! one.
//!
//! Other content of the disk, such as files that a person copied there, is not kept.

use std::ops::Range;

const SECTOR: usize = 512;
/// Bytes of an entry of a folder, and of the file allocation table (FAT: General Overview, version
/// 1.03).
const ENTRY: usize = 32;
const LINK: usize = 2;
/// Links in a sector of the file allocation table.
const LINKS: usize = SECTOR / LINK;
/// The first cluster of the data.
const FIRST: usize = 2;
/// From this link on there is no next cluster.
const END: u16 = 0xfff8;
/// Fewer and more clusters are of other kinds of FAT.
const CLUSTERS: Range<usize> = 4085..65525;
/// The volume's id, in which alone the boot sectors of images differ.
const ID: Range<usize> = 39..43;
/// The fields of a folder's entry that are needed: its flags, and its first cluster.
const FLAGS: usize = 11;
const CLUSTER: usize = 26;
/// Flags: the volume's label, or a part of a long name; a folder.
const LABEL: u8 = 0x08;
const FOLDER: u8 = 0x10;
/// The beginning of the primary descriptor of a volume of ISO 9660 (ECMA-119, 8.4).
pub const ISO_MARK: &[u8; 7] = b"\x01CD001\x01";
/// Where the descriptor is, in bytes from the volume's beginning.
pub const ISO_OFFSET: usize = 32768;
/// The first byte of a removed entry.
const DELETED: u8 = 0xe5;

/// Bytes to write at an offset of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The offset.
    pub offset: usize,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Reads these bytes of a volume.
pub type Read<'a> = &'a dyn Fn(Range<usize>) -> Option<Vec<u8>>;

/// The writes that bring the files of `image`, which [`crate::fat`] made, into the volume `disk`:
/// in this order, each on the medium before the next. The last one is of one sector, and switches
/// to the new files. The list is empty if the files are there already.
///
/// `None` if the two volumes differ in their boot sector, if the disk's is one of ISO 9660 too or
/// has more in its root directory than these writes replace, if the files on the disk lie in both
/// halves or there are none, or if the image does not fit into a half: then the whole volume has to
/// be written.
pub fn switch(disk: Read<'_>, image: Read<'_>) -> Option<Vec<Write>> {
    let (disk, image) = (Volume::open(disk)?, Volume::open(image)?);
    // Init takes a volume for one with user-data by the label in its boot sector, or in its
    // descriptor of ISO 9660.
    let descriptor = (disk.read)(ISO_OFFSET..ISO_OFFSET + ISO_MARK.len())?;
    if disk.boot != image.boot || descriptor == ISO_MARK || !disk.has_short_root()? {
        return None;
    }
    let half = image.clusters.div_ceil(2).next_multiple_of(LINKS);
    let (own, other) = match disk.reached()?.clusters {
        some if some.end <= half => (0, half),
        some if some.start >= half => (half, 0),
        _ => return None,
    };
    let is_there = |write: &Write| {
        let end = write.offset + write.bytes.len();
        (disk.read)(write.offset..end).is_some_and(|bytes| bytes == write.bytes)
    };
    if image.moved(own, half)?.iter().all(is_there) {
        return Some(Vec::new());
    }
    image.moved(other, half)
}

/// A FAT16 volume: where its parts are, and which cluster follows which.
struct Volume<'a> {
    read: Read<'a>,
    /// The boot sector without the volume's id.
    boot: Vec<u8>,
    /// Bytes in a cluster.
    cluster: usize,
    /// The first byte of each table.
    tables: Vec<usize>,
    /// The first byte of the root directory, and of the data.
    root: usize,
    data: usize,
    /// How many clusters there are.
    clusters: usize,
    /// The links of the first table.
    table: Vec<u16>,
}

/// What the root directory leads to.
struct Reached {
    /// The clusters of folders.
    folders: Vec<usize>,
    /// From the first cluster to the last one.
    clusters: Range<usize>,
}

impl<'a> Volume<'a> {
    fn open(read: Read<'a>) -> Option<Self> {
        let mut boot = read(0..SECTOR)?;
        let byte = |at: usize| boot.get(at).copied().map(usize::from);
        let number = |at: usize| Some(byte(at)? | (byte(at + 1)? << 8));
        let (per_cluster, reserved, tables) = (byte(13)?, number(14)?, byte(16)?);
        let (entries, table_sectors) = (number(17)?, number(22)?);
        let sectors = match number(19)? {
            0 => number(32)? | (number(34)? << 16),
            some => some,
        };
        let tables: Vec<usize> = (0..tables)
            .map(|index| (reserved + index * table_sectors) * SECTOR)
            .collect();
        let first = *tables.first()?;
        let root = first + tables.len() * table_sectors * SECTOR;
        let data = root + (entries * ENTRY).next_multiple_of(SECTOR);
        let clusters = sectors
            .checked_sub(data / SECTOR)?
            .checked_div(per_cluster)?;
        let fits = table_sectors * LINKS >= clusters + FIRST;
        if number(11)? != SECTOR || entries == 0 || !fits || !CLUSTERS.contains(&clusters) {
            return None;
        }
        let table = read(first..first + table_sectors * SECTOR)?;
        let links = table.as_chunks::<LINK>().0.iter();
        boot.get_mut(ID)?.fill(0);
        Some(Self {
            read,
            boot,
            cluster: per_cluster * SECTOR,
            tables,
            root,
            data,
            clusters,
            table: links.map(|link| u16::from_le_bytes(*link)).collect(),
        })
    }

    /// The bytes of a cluster, which is one of the volume's.
    fn place(&self, cluster: usize) -> Range<usize> {
        let start = self.data + (cluster - FIRST) * self.cluster;
        start..start + self.cluster
    }

    /// Whether nothing lies behind the first sector of the root directory. Linux finds files there,
    /// as it reads on behind a free entry.
    fn has_short_root(&self) -> Option<bool> {
        let rest = (self.read)(self.root + SECTOR..self.data)?;
        Some(rest.iter().all(|byte| *byte == 0))
    }

    /// The writes that put this volume's files `by` clusters further; `None` if they don't fit into
    /// `half` clusters.
    fn moved(&self, by: usize, half: usize) -> Option<Vec<Write>> {
        let Reached { folders, clusters } = self.reached()?;
        let root = self.root..self.root + SECTOR;
        let used = clusters.end;
        if used > half || half + used > self.clusters + FIRST || !self.has_short_root()? {
            return None;
        }
        let mut data = (self.read)(self.data..self.place(used - 1).end)?;
        for cluster in folders {
            let start = self.place(cluster).start - self.data;
            relocate(data.get_mut(start..start + self.cluster)?, by)?;
        }
        let mut sector = (self.read)(root.clone())?;
        relocate(&mut sector, by)?;
        let links = links(self.table.get(..used.next_multiple_of(LINKS))?, by)?;
        let tables = self.tables.iter().map(|at| (at + by * LINK, links.clone()));
        let data = (self.data + by * self.cluster, data);
        let all = [data]
            .into_iter()
            .chain(tables)
            .chain([(root.start, sector)]);
        Some(all.map(|(offset, bytes)| Write { offset, bytes }).collect())
    }

    /// Follows folders and files; `None` where a link leads nowhere or in circles, and where there
    /// is nothing.
    fn reached(&self) -> Option<Reached> {
        let mut open = first_clusters(&(self.read)(self.root..self.data)?);
        let (mut folders, mut all) = (Vec::new(), Vec::new());
        while let Some((first, is_folder)) = open.pop() {
            let mut next = first;
            while next < usize::from(END) {
                if !(FIRST..self.clusters + FIRST).contains(&next) || all.len() >= self.clusters {
                    return None;
                }
                all.push(next);
                if is_folder {
                    folders.push(next);
                    open.extend(first_clusters(&(self.read)(self.place(next))?));
                }
                next = usize::from(*self.table.get(next)?);
            }
        }
        let clusters = *all.iter().min()?..*all.iter().max()? + 1;
        Some(Reached { folders, clusters })
    }
}

/// The entries of a folder up to its end.
fn entries(folder: &[u8]) -> impl Iterator<Item = &[u8; ENTRY]> {
    let all = folder.as_chunks::<ENTRY>().0.iter();
    all.take_while(|entry| entry[0] != 0)
}

/// The first clusters of the files and folders in a folder, and which of them are folders.
fn first_clusters(folder: &[u8]) -> Vec<(usize, bool)> {
    let is_one =
        |entry: &&[u8; ENTRY]| entry[FLAGS] & LABEL == 0 && entry[0] != DELETED && entry[0] != b'.';
    entries(folder)
        .filter(is_one)
        .map(|entry| (first_cluster(entry), entry[FLAGS] & FOLDER != 0))
        .filter(|(cluster, _)| *cluster != 0)
        .collect()
}

fn first_cluster(entry: &[u8; ENTRY]) -> usize {
    u16::from_le_bytes([entry[CLUSTER], entry[CLUSTER + 1]]).into()
}

/// Adds `by` to the first cluster of each of a folder's entries. Entries without one, such as parts
/// of long names and the `..` of a folder in the root, stay.
fn relocate(folder: &mut [u8], by: usize) -> Option<()> {
    let count = entries(folder).count();
    for entry in folder.as_chunks_mut::<ENTRY>().0.iter_mut().take(count) {
        let cluster = first_cluster(entry);
        if cluster != 0 {
            let moved = u16::try_from(cluster + by).ok()?;
            entry[CLUSTER..CLUSTER + 2].copy_from_slice(&moved.to_le_bytes());
        }
    }
    Some(())
}

/// A part of the file allocation table with `by` added to its links. The table's first two entries
/// belong to no clusters; at their new place they are the entries of two free clusters, and are 0.
fn links(table: &[u16], by: usize) -> Option<Vec<u8>> {
    let mut moved = Vec::with_capacity(table.len() * LINK);
    for (cluster, link) in table.iter().enumerate() {
        let link = match *link {
            _ if cluster < FIRST && by > 0 => 0,
            next if next == 0 || next >= END || cluster < FIRST => next,
            next => u16::try_from(usize::from(next) + by).ok()?,
        };
        moved.extend(link.to_le_bytes());
    }
    Some(moved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fat;
    use std::io::{Cursor, Read as _};

    const SIZE: usize = 16 << 20;
    const PATH: &str = "EFI/BOOT/BOOTX64.EFI";

    fn volume(filler: u8, length: usize) -> Vec<u8> {
        let content = vec![filler; length];
        fat::volume(SIZE, "ESP", filler.into(), &[(PATH, &content)]).unwrap()
    }

    /// The kernel image as a firmware reads it: its filler and its length.
    fn kernel(volume: &[u8]) -> Option<(u8, usize)> {
        let mut bytes = volume.to_vec();
        let volume =
            fatfs::FileSystem::new(Cursor::new(&mut bytes[..]), fatfs::FsOptions::new()).ok()?;
        let mut content = Vec::new();
        let mut file = volume.root_dir().open_file(PATH).ok()?;
        file.read_to_end(&mut content).ok()?;
        let first = *content.first()?;
        content
            .iter()
            .all(|byte| *byte == first)
            .then_some((first, content.len()))
    }

    fn switched(disk: &[u8], image: &[u8]) -> Option<Vec<Write>> {
        let read = |volume: &[u8], range| volume.get::<Range<usize>>(range).map(<[u8]>::to_vec);
        switch(&|range| read(disk, range), &|range| read(image, range))
    }

    fn apply(disk: &mut [u8], write: &Write, length: usize) {
        disk[write.offset..][..length].copy_from_slice(&write.bytes[..length]);
    }

    #[test]
    fn a_power_cut_in_any_write_leaves_the_older_kernel_or_the_newer_one() {
        let mut disk = volume(1, 70_000);
        let mut old = (1, 70_000);
        for new in [(2, 3_000_000), (3, 5), (4, 4_000_000), (5, 70_000)] {
            let image = volume(new.0, new.1);
            let writes = switched(&disk, &image).unwrap();
            let (last, before) = writes.split_last().unwrap();
            assert_eq!(last.bytes.len(), SECTOR, "one sector decides");
            let mut cut = disk.clone();
            for write in before {
                for length in [SECTOR, write.bytes.len() / 2, write.bytes.len()] {
                    apply(&mut cut, write, length.min(write.bytes.len()));
                    assert_eq!(kernel(&cut), Some(old));
                }
                // What was cut off is written from its beginning again, also by another image.
                let other = volume(9, 1_000_000);
                let mut again = cut.clone();
                for write in switched(&again, &other).unwrap() {
                    apply(&mut again, &write, write.bytes.len());
                }
                assert_eq!(kernel(&again), Some((9, 1_000_000)));
            }
            for write in &writes {
                apply(&mut disk, write, write.bytes.len());
            }
            assert_eq!(kernel(&disk), Some(new));
            assert_eq!(switched(&disk, &image), Some(Vec::new()), "it is there");
            old = new;
        }
    }

    #[test]
    fn what_somebody_put_beside_the_kernel_goes_with_the_older_image() {
        let extra = "EFI/BOOT/BOOTX64.EFI.extra.d/a.cred";
        let image = volume(2, 70_000);
        let files: [(&str, &[u8]); 3] = [(PATH, &[1; 9000]), (extra, b"x"), ("KEEP", b"x")];
        let mut disk = fat::volume(SIZE, "ESP", 1, &files).unwrap();
        for write in switched(&disk, &image).unwrap() {
            apply(&mut disk, &write, write.bytes.len());
        }
        let volume =
            fatfs::FileSystem::new(Cursor::new(&mut disk[..]), fatfs::FsOptions::new()).unwrap();
        let root = volume.root_dir();
        assert!(root.open_file(PATH).is_ok());
        assert!(root.open_file(extra).is_err() && root.open_file("KEEP").is_err());
    }

    /// Somebody who had the disk gives the volume the label of one with user-data, and hides the
    /// file where the switch writes nothing.
    #[test]
    fn a_volume_with_a_label_or_files_of_somebody_elses_is_written_as_a_whole() {
        let image = volume(2, 70_000);
        let mut labelled = volume(1, 70_000);
        labelled[43..54].copy_from_slice(b"CIDATA     ");
        assert_eq!(switched(&labelled, &image), None);
        let disk = volume(1, 70_000);
        let read = |range: Range<usize>| disk.get(range).map(<[u8]>::to_vec);
        let root = Volume::open(&read).unwrap().root;
        let mut hidden = disk.clone();
        hidden[root + SECTOR..][..11].copy_from_slice(b"USERDATA   ");
        assert_eq!(switched(&hidden, &image), None);
        let mut iso = disk.clone();
        iso[ISO_OFFSET..][..ISO_MARK.len()].copy_from_slice(ISO_MARK);
        assert_eq!(switched(&iso, &image), None);
        assert!(switched(&disk, &image).is_some(), "the negative control");
    }

    #[test]
    fn what_is_no_volume_of_an_image_is_not_switched() {
        let image = volume(2, 70_000);
        let disk = volume(1, 70_000);
        let mut foreign = disk.clone();
        foreign[13] *= 2;
        assert_eq!(switched(&foreign, &image), None, "another layout");
        let empty = fat::volume(SIZE, "ESP", 1, &[]).unwrap();
        assert_eq!(switched(&empty, &image), None, "no kernel image");
        let large = volume(2, 9 << 20);
        assert_eq!(switched(&disk, &large), None, "more than a half of it");
        assert_eq!(switched(&large, &image), None, "in both halves");
        assert_eq!(switched(&[0; SECTOR], &image), None);
        // A chain that leads in circles.
        let mut circle = disk.clone();
        let table = usize::from(u16::from_le_bytes([disk[14], disk[15]])) * SECTOR;
        circle[table + 4 * LINK..][..LINK].copy_from_slice(&[4, 0]);
        assert_eq!(switched(&circle, &image), None, "in circles");
    }
}
