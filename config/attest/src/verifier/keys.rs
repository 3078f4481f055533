//! Step 2: the check of the public keys: endorsement key, attestation key, node key.

use crate::verdict::{Checks, Stop};
use config_protocol::wire::Keys;
use config_protocol::{Code, Names};
use config_tpm::Digest;
use config_tpm::{Attributes, Public, template};

/// The public keys, parsed.
#[derive(Debug)]
pub(super) struct ParsedKeys {
    pub(super) ek: Public,
    pub(super) ak: p256::PublicKey,
    pub(super) nk: Public,
    pub(super) nk_spki: Vec<u8>,
}

/// Keys of the right form, and the TPM Names by which evidence is bound to them.
pub(super) struct CheckedKeys {
    pub(super) ek_hash: Digest,
    pub(super) parsed: ParsedKeys,
    pub(super) ek_certificate: Option<Vec<u8>>,
    pub(super) names: Names,
}

/// An endorsement key of the right form, and the hash by which the inventory knows it.
pub(super) struct CheckedEndorsementKey {
    pub(super) public: Public,
    pub(super) spki: Vec<u8>,
    pub(super) hash: Digest,
}

/// Parses the endorsement key, which must be of a TCG template.
pub(super) fn endorsement_key(
    keys: &Keys,
    checks: &mut Checks,
) -> Result<CheckedEndorsementKey, Stop> {
    const CHECK: &str = "EK template";
    const WANTED: &str = "RSA-2048, ECC P-256 or P-384 by a TCG template";
    let ek = Public::parse(keys.ek.as_bytes())
        .map_err(|fault| checks.fail(CHECK, Code::EkTemplate, WANTED, fault))?;
    // The template makes it a restricted decryption key: TPM2_RSA_Decrypt refuses that, and
    // TPM2_ActivateCredential opens the challenge only where the AK is in the same TPM. Any other
    // key would open it for an AK that is elsewhere.
    checks.must(
        CHECK,
        Code::EkTemplate,
        template::is_ek(&ek),
        WANTED,
        describe(&ek),
    )?;
    let spki = ek
        .spki()
        .map_err(|fault| checks.fail(CHECK, Code::EkTemplate, WANTED, fault))?;
    let hash = Digest::of(&spki);
    Ok(CheckedEndorsementKey {
        public: ek,
        spki,
        hash,
    })
}

/// Checks the attestation key and the node key, and computes their Names: the credential of step 2
/// is bound to the AK's.
pub(super) fn checked_keys(
    keys: &Keys,
    ek: Public,
    ek_hash: Digest,
    checks: &mut Checks,
) -> Result<CheckedKeys, Stop> {
    let ak = attestation_key(keys.ak.as_bytes(), checks)?;
    let nk = node_key(keys.nk.as_bytes(), checks)?;
    let names = Names {
        ek: ek.name(),
        ak: ak.name(),
        nk: nk.name(),
    };
    // A point off the curve must not reach the check of a signature.
    let on_curve = |fault| (fault, "a point on P-256");
    let ak = ak
        .p256()
        .map_err(on_curve)
        .map_err(|(fault, wanted)| checks.fail("AK template", Code::AkTemplate, wanted, fault))?;
    let nk_spki = nk
        .spki()
        .map_err(on_curve)
        .map_err(|(fault, wanted)| checks.fail("NK template", Code::NkTemplate, wanted, fault))?;
    let ek_certificate = keys
        .ek_certificate
        .as_ref()
        .map(|der| der.as_bytes().to_vec());
    Ok(CheckedKeys {
        ek_hash,
        parsed: ParsedKeys {
            ek,
            ak,
            nk,
            nk_spki,
        },
        ek_certificate,
        names,
    })
}

fn attestation_key(bytes: &[u8], checks: &mut Checks) -> Result<Public, Stop> {
    const CHECK: &str = "AK template";
    let mut wanted = template::ak();
    let ak = Public::parse(bytes)
        .map_err(|fault| checks.fail(CHECK, Code::AkTemplate, describe(&wanted), fault))?;
    wanted.attributes = wanted.attributes.no_da_of(ak.attributes);
    // The code names the attack. Without sensitiveDataOrigin the private key was loaded from
    // outside; without fixedTPM and fixedParent it can be copied to where no TPM guards it; an
    // unrestricted key signs any bytes, a forged quote too.
    let code = if !ak.attributes.has(Attributes::SENSITIVE_DATA_ORIGIN) {
        Code::AkExternal
    } else if !ak
        .attributes
        .has(Attributes::FIXED_TPM.with(Attributes::FIXED_PARENT))
    {
        Code::AkDuplicable
    } else if !ak.attributes.has(Attributes::RESTRICTED) {
        Code::AkUnrestricted
    } else {
        Code::AkTemplate
    };
    checks.must(
        CHECK,
        code,
        template::matches(&ak, &wanted),
        describe(&wanted),
        describe(&ak),
    )?;
    Ok(ak)
}

fn node_key(bytes: &[u8], checks: &mut Checks) -> Result<Public, Stop> {
    const CHECK: &str = "NK template";
    let mut wanted = template::nk(&std::collections::BTreeMap::new());
    let nk = Public::parse(bytes)
        .map_err(|fault| checks.fail(CHECK, Code::NkTemplate, describe(&wanted), fault))?;
    // As for the AK; unrestricted is right here, as the key signs TLS handshakes.
    let code = if !nk.attributes.has(Attributes::SENSITIVE_DATA_ORIGIN) {
        Code::NkExternal
    } else if !nk
        .attributes
        .has(Attributes::FIXED_TPM.with(Attributes::FIXED_PARENT))
    {
        Code::NkDuplicable
    } else {
        Code::NkTemplate
    };
    wanted.attributes = wanted.attributes.no_da_of(nk.attributes);
    // The policy is compared with the quoted registers in step 4, when they are known; here only
    // its length is checked.
    if nk.auth_policy.len() == wanted.auth_policy.len() {
        wanted.auth_policy.clone_from(&nk.auth_policy);
    }
    checks.must(
        CHECK,
        code,
        template::matches(&nk, &wanted),
        describe(&wanted),
        describe(&nk),
    )?;
    Ok(nk)
}

/// A key's parameters without its public value, for messages.
fn describe(key: &Public) -> String {
    use config_tpm::Key;
    let kind = match &key.key {
        Key::Rsa {
            bits, symmetric, ..
        } => format!("RSA-{bits} {symmetric:?}"),
        Key::Ecc {
            curve,
            scheme,
            symmetric,
            ..
        } => format!("ECC {curve:?} {scheme:?} {symmetric:?}"),
    };
    format!(
        "{kind} {:?} {} policy {}",
        key.name_alg,
        key.attributes,
        hex::encode(&key.auth_policy)
    )
}
