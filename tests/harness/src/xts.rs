//! AES-256-XTS (IEEE 1619) as the kernel's dm-crypt does it with `plain64` and sectors of 4096
//! bytes: for volumes that an attacker with the key writes without the kernel.

use aes::Aes256;
use aes::cipher::generic_array::GenericArray;
use aes::cipher::{BlockEncrypt as _, KeyInit as _};

/// Bytes of a sector.
pub const SECTOR: usize = 4096;
/// Bytes of a key: one for the data, one for the tweak.
pub const KEY: usize = 64;
/// dm-crypt counts in these units for any sector size.
const COUNTED: u64 = 512;

/// Encrypts whole sectors, the first of them being the volume's `first`.
pub fn encrypt(key: &[u8; KEY], first: u64, bytes: &mut [u8]) {
    let (data, tweak) = key.split_at(KEY / 2);
    let data = Aes256::new(GenericArray::from_slice(data));
    let tweak = Aes256::new(GenericArray::from_slice(tweak));
    for (sector, number) in bytes.chunks_exact_mut(SECTOR).zip(first..) {
        unit(&data, &tweak, number * (SECTOR as u64 / COUNTED), sector);
    }
}

/// Encrypts one data unit.
fn unit(data: &Aes256, tweak: &Aes256, number: u64, bytes: &mut [u8]) {
    let mut factor = u128::from(number).to_le_bytes();
    tweak.encrypt_block(GenericArray::from_mut_slice(&mut factor));
    let mut factor = u128::from_le_bytes(factor);
    for block in bytes.chunks_exact_mut(16) {
        let mask = factor.to_le_bytes();
        let mix = |block: &mut [u8]| {
            for (byte, mask) in block.iter_mut().zip(mask) {
                *byte ^= mask;
            }
        };
        mix(block);
        data.encrypt_block(GenericArray::from_mut_slice(block));
        mix(block);
        // Times x in GF(2^128), modulo x^128 + x^7 + x^2 + x + 1.
        factor = (factor << 1) ^ (0x87 * (factor >> 127));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IEEE 1619-2007, vector 10: XTS-AES-256, data unit 0xff, 512 bytes 00 01 … ff 00 …; the first
    /// and the last block.
    #[test]
    fn it_is_the_standards_cipher() {
        let key = "2718281828459045235360287471352662497757247093699959574966967627\
                   3141592653589793238462643383279502884197169399375105820974944592";
        let key: Vec<u8> = (0..KEY)
            .map(|at| u8::from_str_radix(&key[2 * at..][..2], 16).unwrap())
            .collect();
        let (data, tweak) = key.split_at(32);
        let data = Aes256::new(GenericArray::from_slice(data));
        let tweak = Aes256::new(GenericArray::from_slice(tweak));
        let mut bytes: Vec<u8> = (0..512_u16).map(|at| at.to_le_bytes()[0]).collect();
        unit(&data, &tweak, 0xff, &mut bytes);
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
        };
        assert_eq!(hex(&bytes[..16]), "1c3b3a102f770386e4836c99e370cf9b");
        assert_eq!(hex(&bytes[496..]), "c4f36ffda9fcea70b9c6e693e148c151");
    }

    #[test]
    fn a_sector_counts_as_eight() {
        let key = [7; KEY];
        let mut two = vec![1; 2 * SECTOR];
        encrypt(&key, 0, &mut two);
        let mut second = vec![1; SECTOR];
        encrypt(&key, 1, &mut second);
        assert_eq!(two[SECTOR..], second);
        assert_ne!(two[..SECTOR], second);
    }
}
