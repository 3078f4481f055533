//! Rotation of the root: begin, then finish with the new root or abandon it; both roots are in
//! force in between.
//!
//! During the rotation the intermediate key has a certificate under each root, so a leaf verifies
//! for a peer that trusts either root. Cross-signing the roots would not work: their path length
//! constraint is 1. The rotation begins with a new intermediate; leaves of earlier intermediates
//! verify under the old root only.

use crate::authority::Authority;
use crate::error::{Error, Result};
use crate::hierarchy::{self, State};
use crate::names::{pem, spki_hash, spki_of};
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The part that a root has in a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RootPhase {
    /// There is no rotation: it is the only root.
    Only,
    /// It is removed when the rotation finishes.
    Old,
    /// It is the only root after the rotation finishes.
    New,
}

/// One root in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RootInForce {
    /// `sha256:<hex>` of its SubjectPublicKeyInfo, as in a machine's `ca_pins`.
    pub pin: String,
    /// Its part in a rotation.
    #[serde(rename = "standing")]
    pub phase: RootPhase,
    /// End of its validity, Unix seconds.
    pub not_after: u64,
    /// The certificate, PEM.
    pub certificate: String,
}

/// Path of the rotation's state (GET); POST to `/rotate`, `/finish` (`?force=true`) or `/abandon`
/// below it changes the state.
pub const ROOT_PATH: &str = "/authority/v1/root";
/// Path at which an admin gets a new certificate for the key of the present one (POST).
pub const CERTIFICATE_PATH: &str = "/authority/v1/certificate";

/// The state of the rotation, as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    /// The roots in force, the old one first.
    pub roots: Vec<RootInForce>,
    /// RFC 3339 time at which the rotation began; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Nodes that have not reported the new root: finishing the rotation now would lock them out.
    pub waiting: Vec<UnreadyNode>,
    /// Machines whose readiness is unknown, for which the rotation does not wait.
    pub aside: Vec<UnreadyNode>,
}

/// A machine or node that is not known to be ready for the new root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnreadyNode {
    /// Its name.
    pub name: String,
    /// What it lacks.
    pub why: String,
}

/// The credentials that an admin gets during a rotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdminAccess {
    /// PEM: a certificate for the admin's present key, then the intermediates.
    pub certificate: String,
    /// PEM: the roots in force.
    pub roots: String,
}

impl Authority {
    /// The roots in force with their phases, the old one first.
    ///
    /// # Errors
    /// A root's certificate cannot be parsed.
    pub fn roots_in_force(&self) -> Result<Vec<RootInForce>> {
        let current = self.current();
        let all = current.roots.iter().enumerate().map(|(index, root)| {
            let phase = match (index, current.roots.len()) {
                (_, 1) => RootPhase::Only,
                (0, _) => RootPhase::Old,
                _ => RootPhase::New,
            };
            let (_, until) = hierarchy::validity(root)?;
            Ok(RootInForce {
                pin: spki_hash(&spki_of(root).unwrap_or_default()),
                phase,
                not_after: until
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default()
                    .as_secs(),
                certificate: pem("CERTIFICATE", root),
            })
        });
        all.collect()
    }

    /// End of validity of the newest root. No certificate verifies after it: the root must be
    /// rotated before.
    ///
    /// # Errors
    /// The root's certificate cannot be parsed.
    pub fn root_ends(&self) -> Result<SystemTime> {
        let current = self.current();
        let root = current
            .roots
            .last()
            .ok_or(Error::Key("no root is in force"))?;
        hierarchy::validity(root).map(|(_, until)| until)
    }

    /// Whether a caller's chain (leaf first) leads to the root with this pin, so that it stays
    /// valid when other roots end. False if no root in force has the pin.
    pub fn chain_leads_to(&self, chain: &[CertificateDer<'_>], pin: &str) -> bool {
        let roots = self.roots();
        let root = roots
            .iter()
            .find(|root| spki_of(root).is_some_and(|spki| spki_hash(&spki) == pin));
        root.is_some_and(|root| hierarchy::leads_to(chain, root))
    }

    /// When the rotation began; `None` where there is none.
    pub fn rotating_since(&self) -> Option<SystemTime> {
        self.current()
            .state
            .next
            .as_ref()
            .map(|next| UNIX_EPOCH + Duration::from_secs(next.begun))
    }

    /// Begins a rotation: makes a second root and a new intermediate; both roots are in force from
    /// now on. With the public key of an admin (SubjectPublicKeyInfo DER) a recovery copy with both
    /// roots' keys is written first. Blocks on the keeper.
    ///
    /// # Errors
    /// A rotation is under way, the clock is before the keys' making, or the keeper or the disk
    /// fails; the old state stays.
    pub fn begin_rotation(&self, admin_spki: Option<&[u8]>, now: SystemTime) -> Result<()> {
        let _changing = self.change();
        let current = self.current();
        current.check_clock(now)?;
        if current.state.next.is_some() {
            return Err(Error::Rotation(
                "the root is being rotated already: finish that, or abandon it",
            ));
        }
        let state = current.state.with_next_root(now);
        let (folder, cluster, keeper) = (&self.folder, &self.cluster, self.keeper.as_ref());
        if let Some(next) = &state.next {
            let (_, certificate) = hierarchy::make_root(folder, cluster, keeper, &next.root, now)?;
            hierarchy::write_root(folder, &next.root, &certificate)?;
        }
        let fresh = hierarchy::make_intermediate(folder, cluster, keeper, state, now)?;
        if let Some(spki) = admin_spki {
            self.recovery_of(&fresh, spki)?;
        }
        // Before the state names both roots, so that the list is signed by the one that stays in
        // the end.
        self.listed()
            .write(folder, &hierarchy::root_keys(folder, keeper, &fresh.state)?)?;
        self.put(fresh)
    }

    /// Finishes the rotation: the new root is the only one, the old root's key is removed. Blocks
    /// on the keeper.
    ///
    /// # Errors
    /// There is no rotation, or the keeper or the disk fails; the old state stays.
    pub fn finish_rotation(&self) -> Result<()> {
        self.end(State::finished)
    }

    /// Abandons the rotation: the old root is the only one again, the new root's key is removed.
    /// Blocks on the keeper.
    ///
    /// # Errors
    /// There is no rotation, or the keeper or the disk fails; the old state stays.
    pub fn abandon_rotation(&self) -> Result<()> {
        self.end(State::abandoned)
    }

    fn end(&self, ended: impl FnOnce(&State) -> Option<State>) -> Result<()> {
        let _changing = self.change();
        let state = ended(&self.current().state);
        let state = state.ok_or(Error::Rotation(
            "the root is not being rotated: begin that first",
        ))?;
        self.put(hierarchy::read(&self.folder, self.keeper.as_ref(), state)?)
    }
}
