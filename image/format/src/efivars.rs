//! The firmware's variable store as OVMF keeps it in flash (EDK II, `VariableFormat.h`,
//! authenticated variables), and the signature lists of Secure Boot (UEFI specification 2.10,
//! 32.4.1).

use crate::guid::Guid;

/// Owner of PK, KEK and most others.
pub const GLOBAL: Guid = Guid::new(0x8be4_df61_93ca_11d2_aa0d_00e0_9803_2b8c);
/// Owner of db and dbx.
pub const SECURITY_DATABASE: Guid = Guid::new(0xd719_b2cb_3d3a_4596_a3bc_dad0_0e67_656f);
const SECURE_BOOT_ENABLE: Guid = Guid::new(0xf0a3_0bc7_af08_4556_99c4_0010_09c9_3a44);
const CUSTOM_MODE: Guid = Guid::new(0xc076_ec0c_7028_4399_a072_71ee_5c44_8b9f);
const X509: Guid = Guid::new(0xa5c0_59a1_94e4_4aa7_87b5_ab15_5c2b_f072);
const FIRMWARE_VOLUME: Guid = Guid::new(0xfff1_2b8d_7696_4c8b_a985_2747_075b_4f50);
const AUTHENTICATED_STORE: Guid = Guid::new(0xaaf3_2c78_947b_439a_a180_2e14_4ec3_7792);

/// Non-volatile, for boot services.
const BOOT: u32 = 0x03;
/// Non-volatile, for boot services and at run time, written with a signature over a time.
const SIGNED: u32 = 0x27;
/// 2026-01-01 00:00 as `EFI_TIME`: any earlier signed update is refused.
const TIME: [u8; 16] = [0xea, 0x07, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A template that can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an empty OVMF variable store: {0}")]
pub struct StoreError(&'static str);

/// One signature: who put it there, and the certificate. `EFI_SIGNATURE_DATA`, as a PCR 7 authority
/// event measures it.
pub fn signature_data(owner: Guid, certificate: &[u8]) -> Vec<u8> {
    [&owner.to_bytes(), certificate].concat()
}

/// A list of one X.509 certificate.
pub fn signature_list(owner: Guid, certificate: &[u8]) -> Vec<u8> {
    let data = signature_data(owner, certificate);
    let mut out = X509.to_bytes().to_vec();
    for number in [28 + data.len(), 0, data.len()] {
        out.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
    }
    out.extend(data);
    out
}

/// An empty store of the firmware's package, with PK, KEK and db enrolled and Secure Boot on.
///
/// # Errors
/// The template is no empty variable store, or has no room.
pub fn enrolled(template: &[u8], pk: &[u8], kek: &[u8], db: &[u8]) -> Result<Vec<u8>, StoreError> {
    let start = store_start(template)?;
    let end = start + store_size(template, start)?;
    let mut at = start + 28;
    if template.get(at..at + 2) != Some(&[0xff, 0xff]) {
        return Err(StoreError("it holds variables"));
    }
    let mut out = template.to_vec();
    let variables = [
        (CUSTOM_MODE, "CustomMode", BOOT, &[0][..]),
        (SECURE_BOOT_ENABLE, "SecureBootEnable", BOOT, &[1]),
        (SECURITY_DATABASE, "db", SIGNED, db),
        (GLOBAL, "KEK", SIGNED, kek),
        (GLOBAL, "PK", SIGNED, pk),
    ];
    for (owner, name, attributes, data) in variables {
        let bytes = variable(owner, name, attributes, data);
        let next = at + bytes.len();
        if next > end {
            return Err(StoreError("the keys do not fit"));
        }
        out[at..next].copy_from_slice(&bytes);
        at = next.next_multiple_of(4);
    }
    Ok(out)
}

fn store_start(template: &[u8]) -> Result<usize, StoreError> {
    if template.get(16..32) != Some(&FIRMWARE_VOLUME.to_bytes())
        || template.get(40..44) != Some(b"_FVH")
    {
        return Err(StoreError("no firmware volume"));
    }
    let length: [u8; 2] = template
        .get(48..50)
        .and_then(|b| b.try_into().ok())
        .ok_or(StoreError("cut short"))?;
    let start = usize::from(u16::from_le_bytes(length));
    if template.get(start..start + 16) != Some(&AUTHENTICATED_STORE.to_bytes()) {
        return Err(StoreError("no store of authenticated variables"));
    }
    Ok(start)
}

fn store_size(template: &[u8], start: usize) -> Result<usize, StoreError> {
    let size: [u8; 4] = template
        .get(start + 16..start + 20)
        .and_then(|b| b.try_into().ok())
        .ok_or(StoreError("cut short"))?;
    let size = usize::try_from(u32::from_le_bytes(size)).map_err(|_e| StoreError("size"))?;
    if start
        .checked_add(size)
        .is_none_or(|end| end > template.len())
    {
        return Err(StoreError("size"));
    }
    Ok(size)
}

fn variable(owner: Guid, name: &str, attributes: u32, data: &[u8]) -> Vec<u8> {
    let name: Vec<u8> = name
        .encode_utf16()
        .chain([0])
        .flat_map(u16::to_le_bytes)
        .collect();
    let mut out = vec![0xaa, 0x55, 0x3f, 0];
    out.extend(attributes.to_le_bytes());
    out.extend([0; 8]);
    out.extend(if attributes == SIGNED { TIME } else { [0; 16] });
    out.extend([0; 4]);
    for length in [name.len(), data.len()] {
        out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    }
    out.extend(owner.to_bytes());
    out.extend(name);
    out.extend_from_slice(data);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_list_says_how_long_it_is() {
        let list = signature_list(GLOBAL, &[1; 100]);
        assert_eq!(list.len(), 28 + 16 + 100);
        assert_eq!(list[16..20], 144_u32.to_le_bytes());
        assert_eq!(list[24..28], 116_u32.to_le_bytes());
    }

    #[test]
    fn what_is_no_empty_store_is_refused() {
        assert!(enrolled(&[0xff; 4096], &[], &[], &[]).is_err());
        assert!(enrolled(&[], &[], &[], &[]).is_err());
    }
}
