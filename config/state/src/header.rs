//! The volume's header: 4096 bytes at the start of the partition, twice.
//!
//! Layout, numbers big-endian: 16 bytes magic and version, u64 generation, u64 offset of the data
//! in bytes, u8 whether there is a recovery slot, the recovery slot (zeros where there is none),
//! the key slot, 32 bytes that name the key of the admin who moved the volume to this board (zeros
//! if it was made here), 32 bytes with the digest of the configuration that the volume belongs to
//! (zeros if it belongs to none), zeros. A slot is a nonce of 12 bytes and the volume key of 64
//! bytes, encrypted by AES-256-GCM, with its tag of 16. The recovery slot authenticates magic and
//! offset, as it outlives generations; the key slot authenticates all that lies before it, the
//! admin's key and the configuration.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroizing;

/// Bytes of a copy of the header.
pub const SIZE: usize = 4096;
/// Where the copies lie, in bytes from the partition's start. Writes alternate between them, so
/// that a power cut damages one at most.
pub const COPIES: [u64; 2] = [0, 64 << 10];
/// Where the data begins, in bytes from the partition's start.
pub const DATA_OFFSET: u64 = 1 << 20;
/// Where a second recovery copy of the master's keys lies: the one in the state can't be read when
/// the TPM is gone. Anyone can read it, only the holder of the admin's key can decrypt it. Twice,
/// written one after the other; text, then zeros.
pub const RECOVERY_COPIES: [u64; 2] = [128 << 10, 512 << 10];
/// Most bytes of it.
pub const MAX_RECOVERY: usize = 256 << 10;
/// Where the one-off key lies that opens the volume on another board.
pub const ONE_OFF: u64 = 768 << 10;
/// Bytes that are read there.
pub const MAX_ONE_OFF: usize = 64 << 10;
/// Bytes of a volume key: two keys of AES-256, for XTS.
pub const VOLUME_KEY: usize = 64;
/// Bytes of a key that wraps it.
pub const WRAPPING_KEY: usize = 32;

/// Written by init in place of a header when a volume opened and its file system is damaged: the
/// next boot makes a new volume. An attacker who writes it destroys the volume, as with any
/// other bytes.
pub const DAMAGED: &[u8; 16] = b"PRATIQUE DAMAGED";

const MAGIC: &[u8; 16] = b"PRATIQUE STATE\0\x01";
const TAG: usize = 16;
const SLOT: usize = NONCE_LEN + VOLUME_KEY + TAG;
const HEAD: usize = 16 + 8 + 8;
const RECOVERY_AT: usize = HEAD + 1;
const KEY_AT: usize = RECOVERY_AT + SLOT;
const ADMIN_AT: usize = KEY_AT + SLOT;
const CONFIGURATION_AT: usize = ADMIN_AT + ADMIN;
const END: usize = CONFIGURATION_AT + CONFIGURATION;
/// SHA-256 of the SubjectPublicKeyInfo of an admin's key.
const ADMIN: usize = 32;
/// The digest of a configuration, as it is measured.
const CONFIGURATION: usize = 32;

/// The key that encrypts the volume.
pub type VolumeKey = Zeroizing<[u8; VOLUME_KEY]>;
/// A key that wraps a volume key.
pub type WrappingKey = Zeroizing<[u8; WRAPPING_KEY]>;

/// Why bytes are not a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Another magic, or another version.
    #[error("there is no header of an encrypted state")]
    Absent,
    /// A field is malformed; the text names it.
    #[error("the header's {0} is wrong")]
    Malformed(&'static str),
    /// The system gives no random bytes, or the cipher failed.
    #[error("the header cannot be encrypted")]
    Encrypt,
}

/// A parsed header. Nothing in it is trusted before a slot was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Counts the boots that opened the volume.
    pub generation: u64,
    recovery: Option<[u8; SLOT]>,
    key: [u8; SLOT],
    admin: Option<[u8; ADMIN]>,
    configuration: Option<[u8; CONFIGURATION]>,
}

/// 32 random bytes.
///
/// # Errors
/// [`HeaderError::Encrypt`] where the system gives no random bytes.
pub fn random_key() -> Result<WrappingKey, HeaderError> {
    random()
}

/// The wrapping key under which a board's TPM keeps a volume that was moved to it: HMAC-SHA-256 by
/// the recovery key over the volume's generation and a value that only this board has. It is
/// derived and not random, so that a move that a power cut interrupted continues with the same key.
pub fn wrapping_key_on(recovery: &WrappingKey, generation: u64, board: &[u8; 32]) -> WrappingKey {
    let mut context =
        hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, recovery.as_slice()));
    context.update(b"pratique state on another board/v1");
    context.update(&generation.to_be_bytes());
    context.update(board);
    let mut key = Zeroizing::new([0; WRAPPING_KEY]);
    // Both are 32 bytes.
    key.iter_mut()
        .zip(context.sign().as_ref())
        .for_each(|(to, from)| *to = *from);
    key
}

/// A new volume's key.
///
/// # Errors
/// [`HeaderError::Encrypt`] where the system gives no random bytes.
pub fn random_volume_key() -> Result<VolumeKey, HeaderError> {
    random()
}

fn random<const N: usize>() -> Result<Zeroizing<[u8; N]>, HeaderError> {
    let mut bytes = Zeroizing::new([0; N]);
    SystemRandom::new()
        .fill(bytes.as_mut_slice())
        .map_err(|_unspecified| HeaderError::Encrypt)?;
    Ok(bytes)
}

impl Header {
    /// A header by which `wrapping` opens the volume, and `recovery`, too, where it is given.
    ///
    /// # Errors
    /// As [`Header::renewed`].
    pub fn seal(
        generation: u64,
        volume: &VolumeKey,
        wrapping: &WrappingKey,
        recovery: Option<&WrappingKey>,
    ) -> Result<Self, HeaderError> {
        let recovery = recovery
            .map(|key| seal(key, &recovery_head(), volume))
            .transpose()?;
        Self {
            generation,
            recovery,
            key: [0; SLOT],
            admin: None,
            configuration: None,
        }
        .with_key(volume, wrapping)
    }

    /// The header of the same volume on another board, moved there by the admin whose key has this
    /// SHA-256 (of its SubjectPublicKeyInfo). Each later header of the volume names that key.
    ///
    /// # Errors
    /// As [`Header::renewed`].
    pub fn moved_to(
        &self,
        generation: u64,
        volume: &VolumeKey,
        wrapping: &WrappingKey,
        admin: [u8; ADMIN],
    ) -> Result<Self, HeaderError> {
        Self {
            generation,
            admin: Some(admin),
            ..self.clone()
        }
        .with_key(volume, wrapping)
    }

    /// The key of the admin who moved the volume to this board. Trusted only after [`Header::open`]
    /// succeeded.
    pub fn admin(&self) -> Option<[u8; ADMIN]> {
        self.admin
    }

    /// The header of a volume that belongs to the configuration with this digest. Each later header
    /// of the volume names it.
    ///
    /// # Errors
    /// As [`Header::renewed`].
    pub fn made_under(
        &self,
        configuration: [u8; CONFIGURATION],
        volume: &VolumeKey,
        wrapping: &WrappingKey,
    ) -> Result<Self, HeaderError> {
        Self {
            configuration: Some(configuration),
            ..self.clone()
        }
        .with_key(volume, wrapping)
    }

    /// The digest of the configuration that the volume belongs to. Trusted only after
    /// [`Header::open`] succeeded.
    pub fn configuration(&self) -> Option<[u8; CONFIGURATION]> {
        self.configuration
    }

    /// The same volume in another generation, or under another key; the recovery slot stays.
    ///
    /// # Errors
    /// [`HeaderError::Encrypt`] where the slot cannot be encrypted.
    pub fn renewed(
        &self,
        generation: u64,
        volume: &VolumeKey,
        wrapping: &WrappingKey,
    ) -> Result<Self, HeaderError> {
        Self {
            generation,
            ..self.clone()
        }
        .with_key(volume, wrapping)
    }

    /// Removes the recovery slot; returns whether there was one. The key slot authenticates it: the
    /// header opens again once it is [`Header::renewed`].
    pub fn drop_recovery(&mut self) -> bool {
        self.recovery.take().is_some()
    }

    fn with_key(mut self, volume: &VolumeKey, wrapping: &WrappingKey) -> Result<Self, HeaderError> {
        self.key = seal(wrapping, &self.authenticated(), volume)?;
        Ok(self)
    }

    /// The volume key, if `wrapping` is the key of this header and no byte of the header was
    /// changed.
    pub fn open(&self, wrapping: &WrappingKey) -> Option<VolumeKey> {
        open(wrapping, &self.authenticated(), &self.key)
    }

    /// The volume key by the recovery key.
    pub fn recover(&self, recovery: &WrappingKey) -> Option<VolumeKey> {
        open(recovery, &recovery_head(), self.recovery.as_ref()?)
    }

    fn head(&self) -> Vec<u8> {
        let mut head = MAGIC.to_vec();
        head.extend(self.generation.to_be_bytes());
        head.extend(DATA_OFFSET.to_be_bytes());
        head.push(u8::from(self.recovery.is_some()));
        head.extend(self.recovery.unwrap_or([0; SLOT]));
        head
    }

    /// What the key slot authenticates. A header without an admin's key or without a configuration
    /// keeps the encoding from before that field existed: its length says which fields are there.
    fn authenticated(&self) -> Vec<u8> {
        let mut head = self.head();
        head.extend(self.fields());
        head
    }

    /// What lies behind the key slot, up to the last field that is there.
    fn fields(&self) -> Vec<u8> {
        let admin = self.admin.as_ref();
        let Some(configuration) = self.configuration else {
            return admin.map_or_else(Vec::new, |admin| admin.to_vec());
        };
        [*admin.unwrap_or(&[0; ADMIN]), configuration].concat()
    }

    /// [`SIZE`] bytes for the disk.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.head();
        out.extend(self.key);
        out.extend(self.fields());
        out.resize(SIZE, 0);
        out
    }

    /// Reads a copy. Total over all bytes.
    ///
    /// # Errors
    /// [`HeaderError::Absent`] where something else is there, [`HeaderError::Malformed`] with the
    /// malformed field.
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        let malformed = HeaderError::Malformed;
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return Err(HeaderError::Absent);
        };
        let (generation, rest) = rest.split_first_chunk::<8>().ok_or(malformed("length"))?;
        let (offset, rest) = rest.split_first_chunk::<8>().ok_or(malformed("length"))?;
        if u64::from_be_bytes(*offset) != DATA_OFFSET {
            return Err(malformed("offset of the data"));
        }
        let (present, rest) = rest.split_first().ok_or(malformed("length"))?;
        let (recovery, rest) = rest
            .split_first_chunk::<SLOT>()
            .ok_or(malformed("length"))?;
        let (key, rest) = rest
            .split_first_chunk::<SLOT>()
            .ok_or(malformed("length"))?;
        let (admin, rest) = rest
            .split_first_chunk::<ADMIN>()
            .ok_or(malformed("length"))?;
        let (configuration, rest) = rest
            .split_first_chunk::<CONFIGURATION>()
            .ok_or(malformed("length"))?;
        let recovery = match present {
            0 if *recovery == [0; SLOT] => None,
            1 => Some(*recovery),
            _ => return Err(malformed("recovery slot")),
        };
        if rest.len() != SIZE - END || rest.iter().any(|byte| *byte != 0) {
            return Err(malformed("end"));
        }
        Ok(Self {
            generation: u64::from_be_bytes(*generation),
            recovery,
            key: *key,
            admin: (*admin != [0; ADMIN]).then_some(*admin),
            configuration: (*configuration != [0; CONFIGURATION]).then_some(*configuration),
        })
    }
}

/// What the recovery slot authenticates.
fn recovery_head() -> Vec<u8> {
    [&MAGIC[..], &DATA_OFFSET.to_be_bytes()].concat()
}

fn cipher(key: &WrappingKey) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM, key.as_slice())
        .ok()
        .map(LessSafeKey::new)
}

fn seal(key: &WrappingKey, head: &[u8], volume: &VolumeKey) -> Result<[u8; SLOT], HeaderError> {
    let nonce = *random::<NONCE_LEN>()?;
    let mut slot = Zeroizing::new([0; SLOT]);
    let (start, rest) = slot.split_at_mut(NONCE_LEN);
    let (text, tag) = rest.split_at_mut(VOLUME_KEY);
    start.copy_from_slice(&nonce);
    text.copy_from_slice(volume.as_slice());
    let cipher = cipher(key).ok_or(HeaderError::Encrypt)?;
    let made = cipher
        .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(head), text)
        .map_err(|_unspecified| HeaderError::Encrypt)?;
    tag.copy_from_slice(made.as_ref());
    Ok(*slot)
}

fn open(key: &WrappingKey, head: &[u8], slot: &[u8; SLOT]) -> Option<VolumeKey> {
    let (nonce, sealed) = slot.split_first_chunk::<NONCE_LEN>()?;
    let mut text = Zeroizing::new(sealed.to_vec());
    let plain = cipher(key)?
        .open_in_place(
            Nonce::assume_unique_for_key(*nonce),
            Aad::from(head),
            &mut text,
        )
        .ok()?;
    let mut volume = Zeroizing::new([0; VOLUME_KEY]);
    volume.copy_from_slice(plain.get(..VOLUME_KEY)?);
    Some(volume)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys() -> (VolumeKey, WrappingKey, WrappingKey) {
        (
            random_volume_key().unwrap(),
            random_key().unwrap(),
            random_key().unwrap(),
        )
    }

    #[test]
    fn a_header_names_its_configuration_beside_its_admin_or_alone() {
        let (volume, wrapping, recovery) = keys();
        let plain = Header::seal(7, &volume, &wrapping, Some(&recovery)).unwrap();
        let moved = plain.moved_to(8, &volume, &wrapping, [3; 32]).unwrap();
        for (header, admin) in [(plain.clone(), None), (moved, Some([3; 32]))] {
            let made = header.made_under([9; 32], &volume, &wrapping).unwrap();
            let later = made.renewed(9, &volume, &wrapping).unwrap();
            let read = Header::parse(&later.to_bytes()).unwrap();
            assert_eq!(read.configuration(), Some([9; 32]));
            assert_eq!(read.admin(), admin);
            assert!(read.open(&wrapping).is_some());
        }
        // An admin's key in one place is no configuration in the other.
        let moved = plain.moved_to(8, &volume, &wrapping, [3; 32]).unwrap();
        let mut bytes = moved.to_bytes();
        bytes.copy_within(ADMIN_AT..CONFIGURATION_AT, CONFIGURATION_AT);
        let both = Header::parse(&bytes).unwrap();
        assert!(both.open(&wrapping).is_none());
        bytes[ADMIN_AT..CONFIGURATION_AT].fill(0);
        assert!(Header::parse(&bytes).unwrap().open(&wrapping).is_none());
    }

    #[test]
    fn either_key_opens_the_volume_and_no_other() {
        let (volume, wrapping, recovery) = keys();
        let header = Header::seal(7, &volume, &wrapping, Some(&recovery)).unwrap();
        let read = Header::parse(&header.to_bytes()).unwrap();
        assert_eq!(read, header);
        assert_eq!(read.open(&wrapping), Some(volume.clone()));
        assert_eq!(read.recover(&recovery), Some(volume.clone()));
        assert_eq!(
            (read.open(&recovery), read.recover(&wrapping)),
            (None, None)
        );
        let later = read.renewed(8, &volume, &wrapping).unwrap();
        assert_eq!(
            (later.open(&wrapping), later.recover(&recovery)),
            (Some(volume.clone()), Some(volume))
        );
        let without = Header::seal(7, &keys().0, &wrapping, None).unwrap();
        assert_eq!(
            Header::parse(&without.to_bytes())
                .unwrap()
                .recover(&recovery),
            None
        );
    }

    /// A header with a changed generation, offset or recovery slot does not open, or does not
    /// parse.
    #[test]
    fn no_byte_of_a_header_can_be_changed() {
        let (volume, wrapping, recovery) = keys();
        let good = Header::seal(7, &volume, &wrapping, Some(&recovery))
            .unwrap()
            .to_bytes();
        for at in 0..SIZE {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let opened = Header::parse(&bad)
                .ok()
                .and_then(|header| header.open(&wrapping));
            assert_eq!(opened, None, "byte {at}");
        }
        for length in [0, 16, 31, END, SIZE - 1] {
            assert!(Header::parse(&good[..length]).is_err(), "{length} bytes");
        }
    }

    /// The header of a moved volume names the admin's key; with another name, or without one, it
    /// does not open.
    #[test]
    fn the_admin_who_brought_a_volume_is_part_of_its_header() {
        let (volume, wrapping, recovery) = keys();
        let here = Header::seal(7, &volume, &wrapping, Some(&recovery)).unwrap();
        assert_eq!(here.admin(), None);
        let there = here.moved_to(8, &volume, &wrapping, [5; 32]).unwrap();
        let later = there.renewed(9, &volume, &wrapping).unwrap();
        for header in [there, later] {
            let read = Header::parse(&header.to_bytes()).unwrap();
            assert_eq!(
                (read.admin(), read.open(&wrapping), read.recover(&recovery)),
                (Some([5; 32]), Some(volume.clone()), Some(volume.clone()))
            );
            for named in [[0; 32], [6; 32]] {
                let mut bytes = header.to_bytes();
                bytes[ADMIN_AT..CONFIGURATION_AT].copy_from_slice(&named);
                assert_eq!(Header::parse(&bytes).unwrap().open(&wrapping), None);
            }
        }
    }

    #[test]
    fn the_key_is_not_in_the_clear_and_never_twice_the_same() {
        let (volume, wrapping, _) = keys();
        let [one, two] = [(); 2].map(|()| {
            Header::seal(1, &volume, &wrapping, None)
                .unwrap()
                .to_bytes()
        });
        assert_ne!(one, two);
        assert!(
            !one.windows(16)
                .any(|window| volume.windows(16).any(|part| part == window))
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(mut bytes in prop::collection::vec(any::<u8>(), 0..SIZE + 4), ours in any::<bool>()) {
            if ours && bytes.len() >= HEAD {
                bytes[..16].copy_from_slice(MAGIC);
                bytes[24..32].copy_from_slice(&DATA_OFFSET.to_be_bytes());
                bytes.resize(SIZE, 0);
                bytes[END..].fill(0);
            }
            if let Ok(header) = Header::parse(&bytes) {
                prop_assert_eq!(header.to_bytes(), bytes);
                prop_assert_eq!(header.open(&Zeroizing::new([7; 32])), None);
            }
        }
    }
}
