//! The endorsement keys: which of them the TPM has, and their certificates.

use crate::device::{Device, flush_after};
use crate::error::{AtStep, Authorized};
use crate::key_types::EndorsementKey;
use crate::templates::EkKind;
use crate::{Error, templates};
use tss_esapi::abstraction::nv;
use tss_esapi::constants::CapabilityType;
use tss_esapi::constants::tss::{TPM2_NV_INDEX_FIRST, TPM2_PERSISTENT_FIRST};
use tss_esapi::handles::{
    KeyHandle, NvIndexTpmHandle, ObjectHandle, PersistentTpmHandle, TpmHandle,
};
use tss_esapi::interface_types::resource_handles::{Hierarchy, NvAuth};
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::{
    CapabilityData, CreatePrimaryKeyResult, EccPoint, Public, PublicKeyRsa,
};
use tss_esapi::traits::Marshall;

/// `PolicyC` for SHA-384 (TCG EK Credential Profile 2.5, B.6.4): the other branch of template H's
/// policy.
pub(crate) const POLICY_C_SHA384: [u8; 48] = [
    0xd6, 0x03, 0x2c, 0xe6, 0x1f, 0x2f, 0xb3, 0xc2, 0x40, 0xeb, 0x3c, 0xf6, 0xa3, 0x32, 0x37, 0xef,
    0x2b, 0x6a, 0x16, 0xf4, 0x29, 0x3c, 0x22, 0xb4, 0x55, 0xe2, 0x61, 0xcf, 0xfd, 0x21, 0x7a, 0xd5,
    0xb4, 0x94, 0x7c, 0x2d, 0x73, 0xe6, 0x30, 0x05, 0xee, 0xd2, 0xdc, 0x2b, 0x35, 0x93, 0xd1, 0x65,
];
/// Handles asked for at once; a TPM has far fewer.
const HANDLES: u32 = 254;
/// Largest certificate that is read; EK certificates take 1 to 2 KiB.
const CERTIFICATE_LIMIT: usize = 8 * 1024;

impl Device {
    /// The endorsement keys of which the TPM holds a copy or a certificate. If it holds none, one
    /// key by its template: P-256, or RSA where the TPM makes no P-256 one.
    pub(crate) fn endorsement_keys(&mut self) -> Result<Vec<EndorsementKey>, Error> {
        if let Some(keys) = &self.endorsement {
            return Ok(keys.clone());
        }
        let certificates = self.handles(TPM2_NV_INDEX_FIRST)?;
        let mut keys = Vec::new();
        for kind in EkKind::ALL {
            let has_certificate = certificates.contains(&kind.certificate_index());
            let persisted = self.persisted(kind)?;
            if persisted.is_none() && !has_certificate {
                continue;
            }
            let public = match persisted {
                Some(handle) => self.read_and_close(handle)?,
                None => self.derived_public(kind)?,
            };
            let certificate = if has_certificate {
                self.certificate(kind)?
            } else {
                None
            };
            keys.push(EndorsementKey {
                kind,
                public,
                certificate,
            });
        }
        if keys.is_empty() {
            keys.push(match self.bare(EkKind::P256) {
                Err(Error::NoEndorsementKey) => self.bare(EkKind::Rsa2048)?,
                outcome => outcome?,
            });
        }
        Ok(self.endorsement.insert(keys).clone())
    }

    /// An endorsement key of which the TPM holds neither a copy nor a certificate.
    fn bare(&mut self, kind: EkKind) -> Result<EndorsementKey, Error> {
        match self.derived_public(kind) {
            Ok(public) => Ok(EndorsementKey {
                kind,
                public,
                certificate: None,
            }),
            // It has its own cure, and no kind of key can be derived before.
            Err(error @ Error::Authorization { .. }) => Err(error),
            Err(_unsupported) => Err(Error::NoEndorsementKey),
        }
    }

    /// A handle on the persisted key, if there is one and it is by the template. To be closed by
    /// the caller.
    pub(crate) fn persisted(&mut self, kind: EkKind) -> Result<Option<ObjectHandle>, Error> {
        let number = kind.persisted_handle();
        if !self.handles(TPM2_PERSISTENT_FIRST)?.contains(&number) {
            return Ok(None);
        }
        let handle = PersistentTpmHandle::new(number).step("name the EK's handle")?;
        let mut object = self
            .context
            .execute_without_session(|context| {
                context.tr_from_tpm_public(TpmHandle::Persistent(handle))
            })
            .step("open the persisted EK")?;
        let public = self
            .context
            .execute_without_session(|context| context.read_public(KeyHandle::from(object)))
            .step("read the persisted EK")?;
        if by_template(public.0, kind)? {
            return Ok(Some(object));
        }
        self.context.tr_close(&mut object).step("close a handle")?;
        Ok(None)
    }

    /// Derives an endorsement key by its template. To be flushed by the caller.
    pub(crate) fn derive_endorsement_key(
        &mut self,
        kind: EkKind,
    ) -> Result<CreatePrimaryKeyResult, Error> {
        let template = templates::endorsement(kind).step("describe the EK")?;
        self.context
            .execute_with_session(Some(AuthSession::Password), |context| {
                context.create_primary(Hierarchy::Endorsement, template, None, None, None, None)
            })
            .authorized(Hierarchy::Endorsement, "derive the EK")
    }

    fn derived_public(&mut self, kind: EkKind) -> Result<Vec<u8>, Error> {
        let made = self.derive_endorsement_key(kind)?;
        flush_after(
            &mut self.context,
            made.key_handle.into(),
            encode(&made.out_public),
        )
    }

    fn read_and_close(&mut self, mut handle: ObjectHandle) -> Result<Vec<u8>, Error> {
        let read = self
            .context
            .execute_without_session(|context| context.read_public(KeyHandle::from(handle)))
            .step("read the persisted EK");
        self.context
            .tr_close(&mut handle)
            .step("close the EK's handle")?;
        encode(&read?.0)
    }

    fn certificate(&mut self, kind: EkKind) -> Result<Option<Vec<u8>>, Error> {
        let index =
            NvIndexTpmHandle::new(kind.certificate_index()).step("name the EK certificate")?;
        let bytes = self
            .context
            .execute_with_session(Some(AuthSession::Password), |context| {
                let handle = context.execute_without_session(|context| {
                    context.tr_from_tpm_public(TpmHandle::NvIndex(index))
                })?;
                // Reading closes its own handle on the index, which is this one.
                nv::read_full(context, NvAuth::NvIndex(handle.into()), index)
            });
        Ok(der_prefix(&bytes.step("read the EK certificate")?))
    }

    /// The handles of one kind that the TPM has now.
    pub(crate) fn handles(&mut self, first: u32) -> Result<Vec<u32>, Error> {
        let (data, _) = self
            .context
            .execute_without_session(|context| {
                context.get_capability(CapabilityType::Handles, first, HANDLES)
            })
            .step("list handles")?;
        if let CapabilityData::Handles(list) = data {
            Ok(list.into_inner().into_iter().map(u32::from).collect())
        } else {
            Err(Error::Malformed {
                what: "the TPM's list of handles",
            })
        }
    }
}

/// Whether a key has every property of the template; only the key itself may differ.
fn by_template(public: Public, kind: EkKind) -> Result<bool, Error> {
    let template = blank(templates::endorsement(kind).step("describe the EK")?);
    Ok(blank(public) == template)
}

/// The public area without the key itself.
fn blank(public: Public) -> Public {
    match public {
        Public::Rsa {
            object_attributes,
            name_hashing_algorithm,
            auth_policy,
            parameters,
            ..
        } => Public::Rsa {
            object_attributes,
            name_hashing_algorithm,
            auth_policy,
            parameters,
            unique: PublicKeyRsa::default(),
        },
        Public::Ecc {
            object_attributes,
            name_hashing_algorithm,
            auth_policy,
            parameters,
            ..
        } => Public::Ecc {
            object_attributes,
            name_hashing_algorithm,
            auth_policy,
            parameters,
            unique: EccPoint::default(),
        },
        other @ (Public::KeyedHash { .. } | Public::SymCipher { .. }) => other,
    }
}

fn encode(public: &Public) -> Result<Vec<u8>, Error> {
    public.marshall().step("encode the EK")
}

/// The DER SEQUENCE at the start of `bytes`: indices may be larger than the certificate that they
/// hold.
fn der_prefix(bytes: &[u8]) -> Option<Vec<u8>> {
    let (&[tag, first], rest) = bytes.split_first_chunk::<2>()?;
    if tag != 0x30 {
        return None;
    }
    let (length_bytes, length) = match first {
        0..=0x7f => (0, usize::from(first)),
        0x81 => (1, usize::from(*rest.first()?)),
        0x82 => (
            2,
            usize::from(u16::from_be_bytes([*rest.first()?, *rest.get(1)?])),
        ),
        _ => return None,
    };
    let total = length.checked_add(2)?.checked_add(length_bytes)?;
    bytes
        .get(..total)
        .filter(|der| der.len() <= CERTIFICATE_LIMIT)
        .map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_cut_from_its_padded_index() {
        assert_eq!(
            der_prefix(&[0x30, 2, 1, 2, 0xff, 0xff]),
            Some(vec![0x30, 2, 1, 2])
        );
        let mut long = vec![0x30, 0x82, 1, 0];
        long.resize(4 + 256 + 9, 7);
        assert_eq!(der_prefix(&long).map(|der| der.len()), Some(260));
    }

    #[test]
    fn bytes_that_are_no_certificate_are_left_out() {
        for bytes in [
            &[][..],
            &[0x30],
            &[0xff; 16],
            &[0x30, 0x82, 1],
            &[0x30, 0x84, 0, 0, 0, 1, 0],
            &[0x30, 9, 0],
        ] {
            assert_eq!(der_prefix(bytes), None, "{bytes:?}");
        }
    }
}
