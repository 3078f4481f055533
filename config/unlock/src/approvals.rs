//! Which boots may open a machine's secrets: TPM policies that a release key approves.
//!
//! A key in the TPM (an NV index with the state's key, or a sealed blob) carries one policy: "any
//! policy that this release key approved under this reference" (PolicyAuthorize, TPM 2.0 part 3,
//! 23.16). The image build approves the registers that it predicts for its own image (PolicyPCR,
//! 23.7), so that each image of the same release key opens it and nothing else does. The reference
//! names the image's role, so that a worker's image opens nothing of a master, and it carries a
//! floor: an image of SVN n is approved for the floors up to n alone, so that a TPM whose floor was
//! raised to f opens nothing for an image below f, and needs no counter.
//!
//! The policy of the state's key has a second part, which no release key can predict: the Secure
//! Boot settings under which the key was made ([`state_key_policy`]). Without it, anyone who
//! switches Secure Boot off on the machine could load a driver that changes the genuine kernel in
//! memory, and no predicted register would show that.
//!
//! Approvals need not be secret or measured: the TPM verifies each signature before it accepts one.

use config_tpm::Digest;
use config_tpm::boot::Boot;
use config_tpm::pcr::Selection;
use config_tpm::{Attributes, Curve, HashAlg, Key, Public, Scheme, Symmetric};
use p256::ecdsa::signature::hazmat::{PrehashSigner as _, PrehashVerifier as _};
use p256::ecdsa::{Signature, SigningKey, VerifyingKey};
use std::collections::BTreeMap;

/// The register that init extends once it has opened the state, or failed to. Nothing else extends
/// it, and no quote covers it. The state's key can be used only while it is zero.
pub const CAP_PCR: u8 = 8;
/// What init extends into it.
pub const CAP_EVENT: &[u8] = b"pratique: the state was opened in this boot";
/// The register of Secure Boot's settings: whether it is on, its keys and lists, and the key that
/// the boot was verified by (TCG PC Client Platform Firmware Profile, 3.3.4.8).
pub const SECURE_BOOT_PCR: u8 = 7;
/// How many floors an image is approved for, its own SVN the highest. Where an update skips more
/// versions, a worker makes a new state, and a master refuses the image; `image-build write`
/// refuses it beforehand. ([`AREA`] has no room for all floors.)
pub const FLOORS: u64 = 32;
/// Room for the approvals, at the end of the image's verity partition.
pub const AREA: usize = 64 << 10;
/// Most combinations of register values of one boot variant.
const MAX_VARIANTS: usize = 16;

const MAGIC: &[u8; 8] = b"PRATAPR1";
const ENTRY: usize = 1 + 8 + 32 + 64;
/// More do not fit into [`AREA`].
const MAX_ENTRIES: usize = (AREA - 12) / ENTRY;

const POLICY_PCR: [u8; 4] = 0x0000_017f_u32.to_be_bytes();
const POLICY_AUTHORIZE: [u8; 4] = 0x0000_016a_u32.to_be_bytes();

/// What an approved boot opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// The state partition: once in a boot, before anything but the image is measured.
    State,
    /// The master's keys: during the whole boot, under any configuration.
    Seal,
}

impl Use {
    /// Both.
    pub const ALL: [Self; 2] = [Self::State, Self::Seal];

    /// The registers that must hold what the build predicts; those that it does not predict must be
    /// zero.
    pub fn pcrs(self) -> &'static [u8] {
        match self {
            Self::State => &[4, CAP_PCR, 9, 11, 12, 13],
            Self::Seal => &[4, 9, 11, 12],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Seal => "seal",
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::State => 1,
            Self::Seal => 2,
        }
    }

    /// The policyRef of a role's images and a floor: `pratique-ROLE-USE-svn-` and the floor, 64
    /// bits, big-endian.
    pub fn reference(self, role: Role, floor: u64) -> Vec<u8> {
        let label = format!("pratique-{}-{}-svn-", role.name(), self.name());
        [label.as_bytes(), &floor.to_be_bytes()].concat()
    }

    /// The policyDigest of PolicyPCR over these values; a register without one counts as zero.
    pub fn policy(self, values: &BTreeMap<u8, Digest>) -> Digest {
        with_registers(&Digest::ZERO, self.pcrs(), values)
    }

    /// The authPolicy of an object that only approved boots of the approver's role can open.
    pub fn auth_policy(self, approver: &Approver, floor: u64) -> Digest {
        let name = approver.public().name();
        let named =
            Digest::of_parts(&[Digest::ZERO.as_bytes(), &POLICY_AUTHORIZE, name.as_bytes()]);
        Digest::of_parts(&[named.as_bytes(), &self.reference(approver.role, floor)])
    }

    /// What is signed (part 3, 23.16): aHash = H(approvedPolicy ‖ policyRef).
    pub fn approval(self, role: Role, policy: &Digest, floor: u64) -> Digest {
        Digest::of_parts(&[policy.as_bytes(), &self.reference(role, floor)])
    }
}

/// The policyDigest of a policy followed by PolicyPCR over these registers.
fn with_registers(policy: &Digest, pcrs: &[u8], values: &BTreeMap<u8, Digest>) -> Digest {
    let selection = Selection::of(pcrs);
    Digest::of_parts(&[
        policy.as_bytes(),
        &POLICY_PCR,
        &selection.to_tpm(),
        selection.digest(values).as_bytes(),
    ])
}

/// The authPolicy of the state's key on a machine with these Secure Boot settings (the value of
/// [`SECURE_BOOT_PCR`]): what the approver approved, and the same settings.
pub fn state_key_policy(approver: &Approver, floor: u64, secure_boot: Digest) -> Digest {
    with_registers(
        &Use::State.auth_policy(approver, floor),
        &[SECURE_BOOT_PCR],
        &BTreeMap::from([(SECURE_BOOT_PCR, secure_boot)]),
    )
}

/// The role of the images that a release key approves. One key signs images of both roles, and
/// neither opens the secrets of the other: a worker that opened a master's state could read the
/// cluster's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Images of nodes.
    Worker,
    /// Images of masters.
    Master,
}

impl Role {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Worker, Self::Master];

    /// The role's name in an image's description.
    pub fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Master => "master",
        }
    }

    /// The one that this is not.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Worker => Self::Master,
            Self::Master => Self::Worker,
        }
    }

    /// The reverse of [`Role::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// The public half of a release key, as a TPM loads it, and the role of the images that it
/// approves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approver {
    key: VerifyingKey,
    role: Role,
}

impl Approver {
    /// The approver of a role's images, by the public point of a release key.
    pub fn new(key: VerifyingKey, role: Role) -> Self {
        Self { key, role }
    }

    /// The approver of the other role's images, by the same release key.
    #[must_use]
    pub fn of_other_role(&self) -> Self {
        Self::new(self.key, self.role.other())
    }

    /// From an uncompressed point (SEC 1), 65 bytes in hexadecimal, as the image's description has
    /// it.
    pub fn from_hex(text: &str, role: Role) -> Option<Self> {
        let point = hex::decode(text).ok().filter(|point| point.len() == 65)?;
        let key = VerifyingKey::from_sec1_bytes(&point).ok()?;
        Some(Self { key, role })
    }

    /// The reverse of [`Approver::from_hex`].
    pub fn to_hex(&self) -> String {
        hex::encode(self.key.to_encoded_point(false).as_bytes())
    }

    /// The role of the images that it approves.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The public area under which every TPM knows the key; its Name is part of the policy.
    pub fn public(&self) -> Public {
        let point = self.key.to_encoded_point(false);
        let coordinate = |value: Option<&p256::FieldBytes>| {
            value.map(|bytes| bytes.to_vec()).unwrap_or_default()
        };
        Public {
            name_alg: HashAlg::Sha256,
            attributes: Attributes::USER_WITH_AUTH.with(Attributes::SIGN),
            auth_policy: Vec::new(),
            key: Key::Ecc {
                symmetric: Symmetric::Null,
                scheme: Scheme::Ecdsa(HashAlg::Sha256),
                curve: Curve::P256,
                x: coordinate(point.x()),
                y: coordinate(point.y()),
            },
        }
    }
}

/// A release key's approval: a boot may open something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootApproval {
    /// What it may open.
    pub of: Use,
    /// The floor of what it may open.
    pub floor: u64,
    /// The policy of its registers.
    pub policy: Digest,
    /// r and s of an ECDSA P-256 signature over [`Use::approval`].
    pub signature: [u8; 64],
}

impl BootApproval {
    /// Whether the approver's key signed it for images of its role. The TPM asks the same before it
    /// opens anything.
    pub fn is_by(&self, approver: &Approver) -> bool {
        let digest = self.of.approval(approver.role, &self.policy, self.floor);
        Signature::from_slice(&self.signature).is_ok_and(|signature| {
            approver
                .key
                .verify_prehash(digest.as_bytes(), &signature)
                .is_ok()
        })
    }
}

/// Why bytes hold no approvals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ApprovalsError {
    /// Nothing was written there: the image is unsigned, or older than approvals.
    #[error("there are no approvals")]
    Absent,
    /// A count or a field with a value that is not allowed.
    #[error("the approvals are malformed")]
    Malformed,
}

/// All approvals of an image, in the order of use, floor and policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Approvals(Vec<BootApproval>);

impl Approvals {
    /// Approves each boot variant of an image of this role and `svn`. Signatures are deterministic
    /// (RFC 6979).
    pub fn sign(key: &SigningKey, role: Role, svn: u64, boots: &[Boot]) -> Self {
        let mut all = Vec::new();
        for of in Use::ALL {
            let policies: std::collections::BTreeSet<Digest> = boots
                .iter()
                .flat_map(|boot| variants(boot, of))
                .map(|values| of.policy(&values))
                .collect();
            for floor in svn.saturating_sub(FLOORS - 1)..=svn {
                for &policy in &policies {
                    let digest = of.approval(role, &policy, floor);
                    let signed: Result<Signature, _> = key.sign_prehash(digest.as_bytes());
                    // Signing fails only for a digest shorter than half of the curve's order.
                    let Ok(signature) = signed else { continue };
                    all.push(BootApproval {
                        of,
                        floor,
                        policy,
                        signature: signature.to_bytes().into(),
                    });
                }
            }
        }
        Self(all)
    }

    /// All approvals, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &BootApproval> {
        self.0.iter()
    }

    /// The approval of a boot whose registers have this policy, for objects with this floor.
    pub fn find(&self, of: Use, policy: &Digest, floor: u64) -> Option<&BootApproval> {
        self.0.iter().find(|approval| {
            approval.of == of && approval.floor == floor && approval.policy == *policy
        })
    }

    /// Magic, a count of 32 bits, and for each its use, floor, policy and signature; numbers are
    /// big-endian.
    ///
    /// # Errors
    /// [`ApprovalsError::Malformed`] where there are more than fit into [`AREA`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, ApprovalsError> {
        let count = u32::try_from(self.0.len())
            .ok()
            .filter(|_| self.0.len() <= MAX_ENTRIES);
        let mut out = MAGIC.to_vec();
        out.extend(count.ok_or(ApprovalsError::Malformed)?.to_be_bytes());
        for BootApproval {
            of,
            floor,
            policy,
            signature,
        } in &self.0
        {
            out.push(of.code());
            out.extend(floor.to_be_bytes());
            out.extend(policy.as_bytes());
            out.extend(signature);
        }
        Ok(out)
    }

    /// Reads what [`Approvals::to_bytes`] wrote; bytes after it are ignored. Does not check who
    /// signed.
    ///
    /// # Errors
    /// [`ApprovalsError::Absent`] where something else is there, [`ApprovalsError::Malformed`]
    /// where the count or an entry is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Self, ApprovalsError> {
        let malformed = ApprovalsError::Malformed;
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return Err(ApprovalsError::Absent);
        };
        let (count, rest) = rest.split_first_chunk::<4>().ok_or(malformed)?;
        let count = usize::try_from(u32::from_be_bytes(*count))
            .ok()
            .filter(|count| *count <= MAX_ENTRIES);
        let entries = rest
            .get(..count.ok_or(malformed)? * ENTRY)
            .ok_or(malformed)?;
        entries
            .chunks_exact(ENTRY)
            .map(entry)
            .collect::<Option<Vec<_>>>()
            .map(Self)
            .ok_or(malformed)
    }
}

fn entry(bytes: &[u8]) -> Option<BootApproval> {
    let (code, rest) = bytes.split_first()?;
    let of = Use::ALL.into_iter().find(|of| of.code() == *code)?;
    let (floor, rest) = rest.split_first_chunk::<8>()?;
    let (policy, signature) = rest.split_at_checked(32)?;
    Some(BootApproval {
        of,
        floor: u64::from_be_bytes(*floor),
        policy: Digest::from_slice(policy)?,
        signature: signature.try_into().ok()?,
    })
}

/// Each combination of the values that a boot variant allows for the registers of the policy.
fn variants(boot: &Boot, of: Use) -> Vec<BTreeMap<u8, Digest>> {
    let mut all = vec![BTreeMap::new()];
    for (pcr, values) in boot.pcrs.iter().filter(|(pcr, _)| of.pcrs().contains(pcr)) {
        let with = |chosen: &BTreeMap<u8, Digest>, value: &Digest| {
            let mut chosen = chosen.clone();
            chosen.insert(*pcr, *value);
            chosen
        };
        all = all
            .iter()
            .flat_map(|chosen| values.iter().map(move |value| with(chosen, value)))
            .collect();
        all.truncate(MAX_VARIANTS);
    }
    all
}

/// An NV index that holds a machine's key for its state. Its Name binds every bit of what the TPM
/// enforces about it: if an index has the Name of this template, only an approved boot can have
/// written its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Its handle.
    pub handle: u32,
    /// Its policy: [`state_key_policy`].
    pub policy: Digest,
    /// Bytes of its data.
    pub size: u16,
}

/// TPMA_NV_POLICYWRITE, TPMA_NV_POLICYREAD and TPMA_NV_NO_DA: neither the owner nor an auth value
/// reads or writes it.
pub const INDEX_ATTRIBUTES: u32 = 1 << 3 | 1 << 19 | 1 << 25;
/// TPMA_NV_WRITTEN: the TPM sets it with the first write.
const WRITTEN: u32 = 1 << 29;

impl Index {
    /// Its Name (part 1, 16): the hash algorithm and the digest of TPMS_NV_PUBLIC (part 2, 13.5).
    pub fn name(&self, written: bool) -> Vec<u8> {
        let attributes = INDEX_ATTRIBUTES | if written { WRITTEN } else { 0 };
        let hash = HashAlg::Sha256.id().to_be_bytes();
        let policy = self.policy.as_bytes();
        let length = u16::try_from(policy.len())
            .unwrap_or_default()
            .to_be_bytes();
        let (handle, size) = (self.handle.to_be_bytes(), self.size.to_be_bytes());
        let digest = Digest::of_parts(&[
            &handle,
            &hash,
            &attributes.to_be_bytes(),
            &length,
            policy,
            &size,
        ]);
        [&hash[..], digest.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn boot(seed: u8) -> Boot {
        let pcrs = [4, 7, 9, 11].map(|pcr| (pcr, vec![Digest([seed ^ pcr; 32])]));
        Boot {
            secure_boot: false,
            pcrs: BTreeMap::from(pcrs),
            events: BTreeMap::new(),
        }
    }

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_slice(&[seed; 32]).unwrap()
    }

    fn worker(seed: u8) -> Approver {
        Approver::new(*key(seed).verifying_key(), Role::Worker)
    }

    #[test]
    fn an_image_of_one_role_is_not_approved_for_the_secrets_of_the_other() {
        let approvals = Approvals::sign(&key(1), Role::Worker, 1, &[boot(1)]);
        let master = Approver::new(*key(1).verifying_key(), Role::Master);
        assert!(approvals.iter().all(|approval| approval.is_by(&worker(1))));
        assert!(!approvals.iter().any(|approval| approval.is_by(&master)));
        for of in Use::ALL {
            assert_ne!(of.auth_policy(&worker(1), 1), of.auth_policy(&master, 1));
        }
    }

    #[test]
    fn an_image_is_approved_only_for_its_floor_and_lower_ones() {
        let approvals = Approvals::sign(&key(1), Role::Worker, 40, &[boot(1), boot(2)]);
        let approver = worker(1);
        let values = variants(&boot(2), Use::State).remove(0);
        assert_eq!(
            values.keys().copied().collect::<Vec<_>>(),
            [4, 9, 11],
            "what is not predicted must be zero"
        );
        let policy = Use::State.policy(&values);
        for floor in [9, 40] {
            let approval = approvals
                .find(Use::State, &policy, floor)
                .expect("approved");
            assert!(approval.is_by(&approver) && !approval.is_by(&worker(2)));
            for wrong in [
                BootApproval {
                    floor: floor + 1,
                    ..approval.clone()
                },
                BootApproval {
                    of: Use::Seal,
                    ..approval.clone()
                },
                BootApproval {
                    policy: Digest::ZERO,
                    ..approval.clone()
                },
            ] {
                assert!(!wrong.is_by(&approver), "{wrong:?}");
            }
        }
        assert!(
            approvals.find(Use::State, &policy, 8).is_none()
                && approvals.find(Use::State, &policy, 41).is_none()
        );
        assert_eq!(approvals.iter().count(), 2 * 2 * 32);
        assert_eq!(
            Approvals::sign(&key(1), Role::Worker, 1, &[boot(1)])
                .iter()
                .count(),
            2 * 2,
            "floors 0 and 1"
        );
    }

    #[test]
    fn each_value_that_a_register_may_have_is_approved() {
        let mut boot = boot(1);
        boot.pcrs.insert(9, vec![Digest([7; 32]), Digest([8; 32])]);
        assert_eq!(variants(&boot, Use::Seal).len(), 2);
        boot.pcrs
            .insert(4, (0..100).map(|n| Digest([n; 32])).collect());
        assert_eq!(variants(&boot, Use::Seal).len(), MAX_VARIANTS, "bounded");
    }

    #[test]
    fn use_floor_and_key_make_another_policy() {
        let (one, two) = (worker(1), worker(2));
        let policy = Use::State.auth_policy(&one, 1);
        assert_ne!(policy, Use::State.auth_policy(&one, 2));
        assert_ne!(policy, Use::State.auth_policy(&two, 1));
        assert_ne!(policy, Use::Seal.auth_policy(&one, 1));
        assert_eq!(Approver::from_hex(&one.to_hex(), Role::Worker), Some(one));
    }

    /// The Name covers handle, attributes, policy and size.
    #[test]
    fn an_index_with_other_properties_has_another_name() {
        let index = Index {
            handle: 0x0180_0001,
            policy: Digest([1; 32]),
            size: 48,
        };
        let name = index.name(true);
        assert_eq!(name.len(), 34);
        assert_ne!(name, index.name(false));
        for other in [
            Index {
                handle: 0x0180_0002,
                ..index.clone()
            },
            Index {
                policy: Digest([2; 32]),
                ..index.clone()
            },
            Index {
                size: 49,
                ..index.clone()
            },
        ] {
            assert_ne!(name, other.name(true), "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn approvals_survive_their_encoding(svn in 0_u64..100, count in 0_u8..3) {
            let boots: Vec<Boot> = (0..count).map(boot).collect();
            let approvals = Approvals::sign(&key(3), Role::Master, svn, &boots);
            let mut bytes = approvals.to_bytes().unwrap();
            prop_assert!(bytes.len() <= AREA);
            let whole = bytes.len();
            bytes.resize(AREA, 0);
            prop_assert_eq!(Approvals::parse(&bytes), Ok(approvals));
            for cut in [0, 7, 11, whole - 1] {
                prop_assert!(cut >= whole || Approvals::parse(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn any_bytes_are_survived(mut bytes in prop::collection::vec(any::<u8>(), 0..2000), ours in any::<bool>()) {
            if ours && bytes.len() > 12 {
                bytes[..12].copy_from_slice(b"PRATAPR1\0\0\0\x02");
            }
            if let Ok(found) = Approvals::parse(&bytes) {
                let again = found.to_bytes().unwrap();
                prop_assert_eq!(&bytes[..again.len()], &again[..]);
            }
        }
    }
}
