//! From one root to the next, with a time in between in which both count.
//!
//! While both count, one intermediate key has a certificate under each, so that whatever is signed is good to whoever knows
//! either; a root that is signed by the other would break the path length that the roots allow. The intermediate is a fresh
//! one: what was signed before the rotation began ends with the old root.

use crate::authority::Authority;
use crate::error::{Error, Result};
use crate::hierarchy::{self, State};
use crate::names::{pem, spki_hash, spki_of};
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a root is while it is one of two, or the only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// No rotation is under way.
    Only,
    /// Ends with the rotation.
    Old,
    /// Stays.
    New,
}

/// One root in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Root {
    /// `sha256:<hex>` of its key: what machines have in `ca_pins`.
    pub pin: String,
    /// What it is.
    pub standing: Standing,
    /// Unix seconds of its end.
    pub not_after: u64,
    /// PEM.
    pub certificate: String,
}

/// Path of the rotation's state; the acts are `/rotate`, `/finish` (`?force=true`) and `/abandon` below it, by POST.
pub const ROOT_PATH: &str = "/authority/v1/root";
/// Path at which an admin gets a new certificate for the key of his present one, by POST.
pub const CERTIFICATE_PATH: &str = "/authority/v1/certificate";

/// Where the rotation of the root stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    /// The roots in force, the old one first.
    pub roots: Vec<Root>,
    /// RFC 3339 time since which there are two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Who has not been seen with the new root, and would be locked out by the end of the old one.
    pub waiting: Vec<Waiting>,
    /// Of whom nothing can be known, for whom nothing waits.
    pub aside: Vec<Waiting>,
}

/// A machine or node, and what is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// Its name.
    pub name: String,
    /// What is missing.
    pub why: String,
}

/// What an admin needs to go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdminAccess {
    /// PEM: a certificate for his key, then intermediates.
    pub certificate: String,
    /// PEM: the roots in force.
    pub roots: String,
}

impl Authority {
    /// The roots in force, the old one first.
    pub fn standings(&self) -> Result<Vec<Root>> {
        let current = self.current();
        let all = current.roots.iter().enumerate().map(|(index, root)| {
            let standing = match (index, current.roots.len()) {
                (_, 1) => Standing::Only,
                (0, _) => Standing::Old,
                _ => Standing::New,
            };
            let (_, until) = hierarchy::validity(root)?;
            Ok(Root {
                pin: spki_hash(&spki_of(root).unwrap_or_default()),
                standing,
                not_after: until
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default()
                    .as_secs(),
                certificate: pem("CERTIFICATE", root),
            })
        });
        all.collect()
    }

    /// When the root that stays ends, and the cluster with it unless it is rotated before.
    pub fn root_ends(&self) -> Result<SystemTime> {
        let current = self.current();
        let root = current
            .roots
            .last()
            .ok_or(Error::Key("no root is in force"))?;
        hierarchy::validity(root).map(|(_, until)| until)
    }

    /// Whether a chain that a caller showed (leaf first) leads to the root with this pin: whether it counts when others end.
    pub fn vouches_under(&self, chain: &[CertificateDer<'_>], pin: &str) -> bool {
        let roots = self.roots();
        let root = roots
            .iter()
            .find(|root| spki_of(root).is_some_and(|spki| spki_hash(&spki) == pin));
        root.is_some_and(|root| hierarchy::leads_to(chain, root))
    }

    /// Since when the root is rotated, if it is.
    pub fn rotating_since(&self) -> Option<SystemTime> {
        self.current()
            .state
            .next
            .as_ref()
            .map(|next| UNIX_EPOCH + Duration::from_secs(next.begun))
    }

    /// Makes another root, and has both count from now on. With the public key of an admin (SubjectPublicKeyInfo DER) the
    /// recovery copy holds both before either changes. Blocks on the keeper.
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
        // Before the state names both: the one that stays at the end has to have signed the list.
        self.listed()
            .write(folder, &hierarchy::root_keys(folder, keeper, &fresh.state)?)?;
        self.put(fresh)
    }

    /// Ends the rotation with the new root alone; the old one's key is removed. Blocks on the keeper.
    pub fn finish_rotation(&self) -> Result<()> {
        self.end(State::finished)
    }

    /// Ends the rotation with the old root alone; the new one's key is removed. Blocks on the keeper.
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
