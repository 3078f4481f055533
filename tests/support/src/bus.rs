//! What a listener on a TPM's bus can make of the secrets that cross it (TPM 2.0 Library, parts 1
//! and 3). Parameters are encrypted by a key that anyone can compute who heard the session's begin,
//! unless its salt was encrypted to a key of the TPM.

use std::collections::HashMap;

/// A command that carries a secret: its code, how many handles come first, and the attribute of a
/// session that encrypts the secret: `decrypt` for what goes to the TPM, `encrypt` for what comes.
const SECRETS: [(u32, &str, usize, u8); 4] = [
    (0x137, "NV_Write", 2, DECRYPT),
    (0x14E, "NV_Read", 2, ENCRYPT),
    (0x153, "Create", 1, DECRYPT),
    (0x15E, "Unseal", 1, ENCRYPT),
];
const DECRYPT: u8 = 1 << 5;
const ENCRYPT: u8 = 1 << 6;
const START_AUTH_SESSION: u32 = 0x176;
/// The code of an answer.
const SUCCESS: u32 = 0;
/// The key of a session without a salt.
const NO_KEY: u32 = 0x4000_0007;
/// Bytes of a header: tag, size, code.
const HEADER: usize = 10;
/// Longest message that is looked for.
const LONGEST: usize = 4096;

/// The commands in recorded traffic that carried a secret, each with whether it was kept from a
/// listener.
pub fn secrets(heard: &[u8]) -> Vec<(&'static str, bool)> {
    let (mut found, mut salted, mut begun) = (Vec::new(), HashMap::new(), None);
    let mut at = 0;
    while let Some(rest) = heard.get(at..).filter(|rest| rest.len() >= HEADER) {
        let Some((code, message)) = message(rest) else {
            at += 1;
            continue;
        };
        at += message.len();
        if let Some(has_salt) = begun.take().filter(|_| code == SUCCESS) {
            salted.insert(number(message, HEADER), has_salt);
        }
        if code == START_AUTH_SESSION {
            let nonce = usize::from(short(message, HEADER + 8));
            let salt = short(message, HEADER + 10 + nonce);
            begun = Some(number(message, HEADER) != NO_KEY && salt > 0);
        }
        let secret = SECRETS.iter().find(|(known, ..)| *known == code);
        if let Some((_, name, handles, attribute)) = secret {
            let kept =
                sessions(message, HEADER + 4 * handles)
                    .into_iter()
                    .any(|(session, attributes)| {
                        salted.get(&session) == Some(&true) && attributes & attribute != 0
                    });
            found.push((*name, kept));
        }
    }
    found
}

/// The message at the begin of these bytes, a command or an answer, and its code.
fn message(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (tag, size, code) = (short(bytes, 0), number(bytes, 2), number(bytes, 6));
    let size = usize::try_from(size).ok()?;
    let known = code == SUCCESS || (0x11F..=0x1FF).contains(&code);
    let good = [0x8001, 0x8002].contains(&tag) && known && (HEADER..=LONGEST).contains(&size);
    good.then(|| bytes.get(..size).map(|message| (code, message)))?
}

/// Handle and attributes of each session of a command.
fn sessions(message: &[u8], area: usize) -> Vec<(u32, u8)> {
    let end = area + 4 + usize::try_from(number(message, area)).expect("small");
    let (mut at, mut found) = (area + 4, Vec::new());
    while at < end {
        let nonce = usize::from(short(message, at + 4));
        let attributes = message[at + 6 + nonce];
        let hmac = usize::from(short(message, at + 7 + nonce));
        found.push((number(message, at), attributes));
        at += 9 + nonce + hmac;
    }
    found
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
