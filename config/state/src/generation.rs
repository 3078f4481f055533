//! The text in which the state names the header's generation to which its files belong.
//!
//! The state is encrypted by AES-XTS and not authenticated. Somebody who has the disk can put back
//! older blocks of 16 bytes, shorten a file by an older inode, or put in place of a sector one
//! whose content a pod chose. So this text carries a MAC, under a key that is derived from the
//! volume's key and lies nowhere in the volume ([`GenerationKey`]); each boot writes another
//! number, and init refuses every number but the header's and the next. What else must not be set
//! back lies beside the number, under the same MAC.
//!
//! A boot that ends before the TPM's record is updated can be repeated on another copy of the data,
//! and each such boot writes the same number. So each boot also has a random value ([`BootNonce`]),
//! which the TPM keeps, and the text names this boot's value and that of the boot before: of all
//! copies with the same number, only the one for which the TPM was updated has the TPM's value.
//!
//! Guarantees of [`Generation::read`]: what it returns was written as a whole by a holder of the
//! key; no other bytes of any length are read, nor are parts of several texts. It says nothing
//! about when: an older text of the same volume is read, and its number is compared by init.
//!
//! The number fills the first 32 bytes, which are all that the oldest programs read. A program from
//! before there was the MAC writes none, and its text is refused.

use crate::header::VolumeKey;
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// Bytes of each text.
pub const LENGTH: usize = 256;
/// Most bytes that a reader takes from the file: one more than a text has, so that a longer one is
/// refused.
pub const LIMIT: u64 = LENGTH as u64 + 1;
/// Bytes of the number's line, its end included.
const FIRST: usize = 32;
/// What the line of the MAC begins with.
const MAC: &str = "mac ";
/// Bytes before that line, which the MAC is over: lines, and spaces that fill them up.
const BODY: usize = LENGTH - MAC.len() - 2 * HASH - 1;
/// Bytes of SHA-256, and of the key.
const HASH: usize = 32;

/// A random value that init draws in each boot. Zeros stand for no boot: the TPM's record of a
/// state that was just made or moved to this board, and texts and records from before there was the
/// value.
pub type BootNonce = [u8; 8];

/// The value of a boot that begins now.
///
/// # Errors
/// The system gives no random bytes.
pub fn draw() -> Result<BootNonce, NoRandom> {
    let mut value = BootNonce::default();
    let drawn = SystemRandom::new().fill(&mut value);
    drawn.map(|()| value).map_err(|_unspecified| NoRandom)
}

/// The system gives no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes")]
pub struct NoRandom;

/// The key of the MAC: HMAC-SHA-256 by the volume's key over a label. It stays the same as long as
/// the volume exists, also on another board. Its holder can write any text, but can't open the
/// volume.
#[derive(Clone, PartialEq, Eq)]
pub struct GenerationKey(Zeroizing<[u8; HASH]>);

/// What the state says beside the header's generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Generation {
    /// The header's generation to which the files belong.
    pub number: u64,
    /// Whether the state lists the configurations that it allows: then the list may not be missing.
    pub listed: bool,
    /// How the machine joined the cluster that the state belongs to: then the record of that
    /// cluster may not be missing. `None` before it joined.
    pub joined: Option<Joined>,
    /// The generation in which a master last began to serve the state's store: then the store says
    /// so, too. `None` before one did; never above the number.
    pub served: Option<u64>,
    /// The value of the boot that wrote the number.
    pub boot: BootNonce,
    /// What the TPM kept when that boot began: the value of the boot before.
    pub after: BootNonce,
}

/// How a machine joined the cluster that its state belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// The master admitted it.
    Admitted,
    /// By an identity in its user-data, without asking the master. Holds the digest of the
    /// user-data without the identity.
    Issued([u8; 32]),
}

/// Why bytes are not the text of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoGeneration {
    /// They are what an image wrote that knows no MAC; or an attacker did.
    #[error(
        "it has no authentication code, as earlier images wrote it: it can't be told from an older copy's"
    )]
    Unauthenticated,
    /// They are of another length, or the MAC is not theirs: parts of several texts, or not of this
    /// volume.
    #[error(
        "its authentication code does not hold: it was changed, or put together from older copies"
    )]
    Changed,
    /// The writer had the key, and wrote something else.
    #[error("it is not the text of a generation")]
    Malformed,
}

impl fmt::Debug for GenerationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GenerationKey")
    }
}

impl GenerationKey {
    /// The key for the state in a volume.
    pub fn of(volume: &VolumeKey) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, volume.as_slice());
        let derived = hmac::sign(&key, b"pratique generation of the state/v1");
        let mut own = Zeroizing::new([0; HASH]);
        // Both are 32 bytes.
        own.iter_mut()
            .zip(derived.as_ref())
            .for_each(|(to, from)| *to = *from);
        Self(own)
    }

    /// The key in a file's content, which is its bytes; `None` for another length.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HASH] = bytes.try_into().ok()?;
        Some(Self(Zeroizing::new(*bytes)))
    }

    /// The key's bytes, for a file that no pod can read.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_slice()
    }

    fn mac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.bytes())
    }
}

impl fmt::Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admitted => f.write_str("admitted"),
            Self::Issued(digest) => write!(f, "issued {}", hex(digest)),
        }
    }
}

impl FromStr for Joined {
    type Err = NoGeneration;

    fn from_str(text: &str) -> Result<Self, NoGeneration> {
        if text == "admitted" {
            return Ok(Self::Admitted);
        }
        let digits = text.strip_prefix("issued ");
        digits
            .and_then(unhex)
            .map(Self::Issued)
            .ok_or(NoGeneration::Malformed)
    }
}

impl Generation {
    /// [`LENGTH`] bytes of text for the file.
    pub fn text(&self, key: &GenerationKey) -> String {
        let mut text = format!("{:<width$}\n", self.body(), width = BODY - 1);
        let mac = hmac::sign(&key.mac(), text.as_bytes());
        text.push_str(MAC);
        text.push_str(&hex(mac.as_ref()));
        text.push('\n');
        text
    }

    fn body(&self) -> String {
        let mark = if self.listed { "+" } else { "" };
        let number = format!("{mark}{}", self.number);
        let mut body = format!("{number:width$}\n", width = FIRST - 1);
        body.extend(self.joined.map(|joined| format!("joined {joined}\n")));
        body.extend(self.served.map(|served| format!("served {served}\n")));
        for (name, value) in [("boot", self.boot), ("after", self.after)] {
            let written = value != BootNonce::default();
            body.extend(written.then(|| format!("{name} {}\n", hex(&value))));
        }
        body
    }

    /// Whether the data is that for which the TPM was last updated, by the value that it keeps: of
    /// that boot, or of one that followed it and ended before it updated the TPM.
    pub fn follows(&self, kept: BootNonce) -> bool {
        self.boot == kept || self.after == kept
    }

    /// Reads a file's content, of which [`LIMIT`] bytes are enough. Total over all bytes.
    ///
    /// # Errors
    /// [`NoGeneration`]: the bytes are not a whole text that a holder of the key wrote.
    pub fn read(bytes: &[u8], key: &GenerationKey) -> Result<Self, NoGeneration> {
        let authenticated = bytes.split_at_checked(BODY).and_then(|(body, rest)| {
            let line = std::str::from_utf8(rest).ok()?;
            let digits = line.strip_prefix(MAC)?.strip_suffix('\n')?;
            unhex::<HASH>(digits).map(|mac| (body, mac))
        });
        let Some((body, mac)) = authenticated else {
            return Err(without(bytes));
        };
        hmac::verify(&key.mac(), body, &mac).map_err(|_unspecified| NoGeneration::Changed)?;
        let body = std::str::from_utf8(body).map_err(|_other| NoGeneration::Malformed)?;
        fields(body)
    }
}

/// Why there is no MAC in a file's content.
fn without(bytes: &[u8]) -> NoGeneration {
    let text = std::str::from_utf8(bytes).ok();
    match text.filter(|text| !text.contains(MAC)).map(fields) {
        Some(Ok(_)) => NoGeneration::Unauthenticated,
        Some(Err(_)) | None => NoGeneration::Changed,
    }
}

/// The lines. Those of a later program are passed over, as are the spaces that fill the text up.
pub(crate) fn fields(body: &str) -> Result<Generation, NoGeneration> {
    let mut lines = body.lines();
    let first = lines.next().unwrap_or_default().trim_end();
    let digits = first.strip_prefix('+');
    let mut read = Generation {
        number: number(digits.unwrap_or(first))?,
        listed: digits.is_some(),
        ..Generation::default()
    };
    for line in lines {
        match line.split_once(' ') {
            Some(("joined", joined)) => read.joined = Some(joined.parse()?),
            Some(("served", served)) => read.served = Some(number(served)?),
            Some(("boot", value)) => read.boot = unhex(value).ok_or(NoGeneration::Malformed)?,
            Some(("after", value)) => read.after = unhex(value).ok_or(NoGeneration::Malformed)?,
            Some(_) | None => {}
        }
    }
    if read.served.is_some_and(|served| served > read.number) {
        return Err(NoGeneration::Malformed);
    }
    Ok(read)
}

fn number(digits: &str) -> Result<u64, NoGeneration> {
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(NoGeneration::Malformed);
    }
    digits.parse().map_err(|_none| NoGeneration::Malformed)
}

/// Bytes in lower-case hex, so that they have one text.
fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    digits.extend(bytes.iter().map(|byte| format!("{byte:02x}")));
    digits
}

fn unhex<const BYTES: usize>(digits: &str) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    if digits.len() != 2 * BYTES {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        if !pair
            .bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
        {
            return None;
        }
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{BODY, Generation, GenerationKey, Joined, LENGTH, MAC, NoGeneration};
    use crate::header::{Header, random_key, random_volume_key};
    use proptest::prelude::*;
    use zeroize::Zeroizing;

    /// Bytes that AES-XTS encrypts by themselves: an attacker with two ciphertexts of a sector
    /// chooses between them in such steps.
    const BLOCK: usize = 16;

    fn key(byte: u8) -> GenerationKey {
        GenerationKey::of(&Zeroizing::new([byte; 64]))
    }

    /// Generations as boots write them one after another, and the largest fields that there are.
    fn boots() -> Vec<Generation> {
        let mut all = Vec::new();
        for joined in [
            None,
            Some(Joined::Admitted),
            Some(Joined::Issued([0xAB; 32])),
        ] {
            for (number, listed, served) in [
                (9, false, None),
                (19, true, Some(15)),
                (u64::MAX, true, Some(u64::MAX)),
            ] {
                let before = u8::try_from(all.len()).expect("nine");
                all.push(Generation {
                    number,
                    listed,
                    joined,
                    served,
                    boot: [before + 1; 8],
                    after: [before; 8],
                });
            }
        }
        all
    }

    /// The text as programs from before the MAC wrote it.
    fn plain(state: &Generation) -> String {
        let number = format!("{}{}", if state.listed { "+" } else { "" }, state.number);
        if state.joined.is_none() && state.served.is_none() {
            return number + "\n";
        }
        let joined = state.joined.map(|joined| format!("joined {joined}\n"));
        let served = state.served.map(|served| format!("served {served}\n"));
        format!("{number:31}\n") + &joined.unwrap_or_default() + &served.unwrap_or_default()
    }

    #[test]
    fn a_generation_is_read_as_it_is_written_and_by_older_programs_as_a_number() {
        for one in boots() {
            let text = one.text(&key(7));
            assert_eq!(text.len(), LENGTH, "{text}");
            assert_eq!(Generation::read(text.as_bytes(), &key(7)), Ok(one));
            // What a program read that knows the number alone.
            let first = text[..32].trim_end().trim_start_matches('+');
            assert_eq!(first.parse(), Ok(one.number), "{text}");
        }
    }

    /// Calculated by another program. If the text changes, every machine loses its state.
    #[test]
    fn the_text_is_what_it_was_for_earlier_versions() {
        let one = Generation {
            number: 7,
            listed: true,
            joined: Some(Joined::Admitted),
            served: Some(6),
            ..Generation::default()
        };
        let body = format!("{:31}\njoined admitted\nserved 6\n", "+7");
        let mac = "d555821372f17ca87a667d379e2d2682d13fa1bff3aa34ccc6a494c475a511fb";
        assert_eq!(one.text(&key(7)), format!("{body:186}\nmac {mac}\n"));
        let later = Generation {
            boot: *b"\x01of boot",
            after: *b"\x02 before",
            ..one
        };
        let body = format!("{body}boot 016f6620626f6f74\nafter 02206265666f7265\n");
        let mac = "5e06babd3e4ebde6fbc86038404a35680cfdb807fd7edb0ce772e71c9f1591dd";
        assert_eq!(later.text(&key(7)), format!("{body:186}\nmac {mac}\n"));
    }

    /// A boot that was cut off before the TPM moved is repeated on another copy of the data.
    #[test]
    fn of_two_boots_with_one_number_only_the_one_that_the_tpm_moved_for_is_followed() {
        let [before, cut, moved] = [[1; 8], [2; 8], [3; 8]];
        let of = |boot, after| Generation {
            number: 9,
            boot,
            after,
            ..Generation::default()
        };
        // While the TPM is where it was, both go on.
        assert!(of(cut, before).follows(before) && of(moved, before).follows(before));
        assert!(of(moved, before).follows(moved));
        assert!(!of(cut, before).follows(moved));
        // What the copy that was left behind was made into by then doesn't follow, either.
        assert!(!of([4; 8], cut).follows(moved));
        assert!(!Generation::default().follows(moved));
    }

    /// Somebody who has the disk and copies of it from other boots has, of the file's sector, the
    /// ciphertexts of several texts, and joins their blocks; the file's length is what the inode of
    /// any of these boots says.
    #[test]
    fn no_mixture_of_texts_in_the_ciphers_blocks_is_read() {
        let key = key(7);
        let written = |one: &Generation| one.text(&key).into_bytes();
        let mut pairs = Vec::new();
        for (at, one) in boots().iter().enumerate() {
            pairs.extend(boots()[..at].iter().map(|other| [one, other].map(written)));
        }
        // The sector may be from before there was the MAC.
        for one in &boots()[3..5] {
            pairs.push([written(one), plain(one).into_bytes()]);
        }
        let sector = |text: &[u8]| {
            let mut sector = text.to_vec();
            sector.resize(LENGTH, 0);
            sector
        };
        for [one, other] in &pairs {
            let sectors = [sector(one), sector(other)];
            let differ: Vec<usize> = (0..LENGTH / BLOCK)
                .map(|block| block * BLOCK)
                .filter(|&at| sectors[0][at..at + BLOCK] != sectors[1][at..at + BLOCK])
                .collect();
            for chosen in 0_u32..1 << differ.len() {
                let mut mixed = sectors[0].clone();
                for (bit, &at) in differ.iter().enumerate() {
                    if chosen >> bit & 1 == 1 {
                        mixed[at..at + BLOCK].copy_from_slice(&sectors[1][at..at + BLOCK]);
                    }
                }
                for length in [one.len(), other.len()] {
                    let bytes = &mixed[..length];
                    if bytes != one && bytes != other {
                        let read = Generation::read(bytes, &key);
                        let text = String::from_utf8_lossy(bytes);
                        assert!(read.is_err(), "{read:?} of {text:?}");
                    }
                }
            }
        }
    }

    /// As by an inode from when the file was shorter or longer, over the present sector.
    #[test]
    fn no_part_of_a_text_is_read_and_nothing_longer() {
        for one in boots() {
            let text = one.text(&key(7)).into_bytes();
            for length in 0..LENGTH {
                let read = Generation::read(&text[..length], &key(7));
                assert!(read.is_err(), "{read:?} by {length} bytes");
            }
            for more in [0, b' ', b'\n', b'x'] {
                let longer = [&text[..], &[more]].concat();
                let read = Generation::read(&longer, &key(7));
                assert_eq!(read, Err(NoGeneration::Changed));
            }
        }
    }

    /// A pod fills sectors with texts of its choice, and one of them takes the file's place. It has
    /// every text that there was, and no key.
    #[test]
    fn no_text_is_read_that_was_made_without_the_key() {
        let key = key(7);
        let chosen = Generation {
            number: 20,
            listed: true,
            joined: None,
            served: Some(15),
            ..Generation::default()
        };
        let body = &chosen.text(&key)[..BODY];
        let [zeros, own] = ["00".repeat(32), "ab".repeat(32)];
        let mut macs = vec![zeros, own, String::new()];
        for seen in boots() {
            macs.push(seen.text(&key)[BODY + MAC.len()..].trim_end().to_owned());
        }
        for other in [Zeroizing::new([0; 64]), Zeroizing::new([8; 64])] {
            let text = chosen.text(&GenerationKey::of(&other));
            macs.push(text[BODY + MAC.len()..].trim_end().to_owned());
        }
        let good = chosen.text(&key)[BODY + MAC.len()..].trim_end().to_owned();
        for mac in macs {
            let text = format!("{body}{MAC}{mac}\n");
            let read = Generation::read(text.as_bytes(), &key);
            assert_eq!(read, Err(NoGeneration::Changed), "{text}");
        }
        // One text each: not the same MAC in other digits.
        let text = format!("{body}{MAC}{}\n", good.to_uppercase());
        assert!(Generation::read(text.as_bytes(), &key).is_err());
        let text = format!("{body}{MAC}{good}\n");
        assert_eq!(Generation::read(text.as_bytes(), &key), Ok(chosen));
    }

    #[test]
    fn what_an_image_of_before_the_mac_wrote_is_refused_and_named() {
        for one in boots() {
            let read = Generation::read(plain(&one).as_bytes(), &key(7));
            assert_eq!(read, Err(NoGeneration::Unauthenticated));
        }
        for other in ["", "one", "7\nserved\u{20}\n", "-1\n", "7\nmac \n", "\0"] {
            let read = Generation::read(other.as_bytes(), &key(7));
            assert_eq!(read, Err(NoGeneration::Changed), "{other:?}");
        }
    }

    /// An admin moves a master's volume to another board: there another TPM keeps it, by another
    /// wrapping key.
    #[test]
    fn the_key_stays_as_long_as_the_volume_and_says_nothing_of_it() {
        let (volume, recovery) = (random_volume_key().unwrap(), random_key().unwrap());
        let here = Header::seal(7, &volume, &random_key().unwrap(), Some(&recovery)).unwrap();
        let there = here.recover(&recovery).unwrap();
        let key = GenerationKey::of(&volume);
        assert_eq!(GenerationKey::of(&there), key);
        assert_ne!(GenerationKey::of(&random_volume_key().unwrap()), key);
        assert!(
            volume
                .windows(8)
                .all(|part| !key.bytes().windows(8).any(|own| own == part))
        );
        assert_eq!(GenerationKey::parse(key.bytes()), Some(key.clone()));
        assert_eq!(GenerationKey::parse(&key.bytes()[1..]), None);
        assert_eq!(format!("{key:?}"), "GenerationKey");
    }

    #[test]
    fn a_holder_of_the_key_who_writes_something_else_is_refused() {
        let ahead = Generation {
            number: 7,
            served: Some(8),
            ..Generation::default()
        };
        let read = Generation::read(ahead.text(&key(7)).as_bytes(), &key(7));
        assert_eq!(read, Err(NoGeneration::Malformed));
        for other in [
            "",
            "+",
            "1 +",
            "7\njoined x\n",
            "7\nserved +1\n",
            "7\nboot 01\n",
            "7\nafter 0G00000000000000\n",
        ] {
            let text = signed(other);
            let read = Generation::read(text.as_bytes(), &key(7));
            assert_eq!(read, Err(NoGeneration::Malformed), "{text}");
        }
        // A line of a later program is none of this one's.
        let read = Generation::read(signed("+7\nlater field\nserved 2\n").as_bytes(), &key(7));
        assert_eq!(read.map(|read| read.served), Ok(Some(2)));
    }

    /// These lines, filled up and under the MAC.
    fn signed(lines: &str) -> String {
        let mut text = format!("{lines:<width$}\n", width = BODY - 1);
        let mac = ring::hmac::sign(&key(7).mac(), text.as_bytes());
        text += MAC;
        text.extend(mac.as_ref().iter().map(|byte| format!("{byte:02x}")));
        text + "\n"
    }

    proptest! {
        /// Blocks of any of many texts, in any of their places.
        #[test]
        fn no_blocks_of_many_texts_make_another(
            picks in prop::collection::vec((0_usize..9, 0_usize..16), 16),
        ) {
            let key = key(7);
            let texts: Vec<String> = boots().iter().map(|one| one.text(&key)).collect();
            let mixed: Vec<u8> = picks
                .iter()
                .flat_map(|&(text, block)| texts[text][block * BLOCK..(block + 1) * BLOCK].bytes())
                .collect();
            if !texts.iter().any(|text| text.as_bytes() == mixed) {
                prop_assert!(Generation::read(&mixed, &key).is_err());
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..LENGTH + 2)) {
            prop_assert!(Generation::read(&bytes, &key(7)).is_err());
        }
    }
}
