//! The config maps and secrets that a pod's volumes or a container's variables need, and how much
//! of them is in memory at a time.
//!
//! A pod names as many as it likes, each of up to a mebibyte, of which it may need one key: no more
//! is kept of an object than the keys that are needed, and what is kept is counted as it is read.

use agent_runtime::{NamedTurns, Turn};
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, KeyToPath, Secret};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::{BTreeMap, BTreeSet};

/// Most objects that volumes, or variables, may name: each is a request to the master.
const MOST_OBJECTS: usize = 512;
/// Most bytes of keys and values for a pod's volumes: these refuse more than 16 MiB of values and
/// 10,237 files, whose keys have 253 bytes at most, so this refuses no pod that they take.
const OF_VOLUMES: u64 = 20 << 20;
/// Most bytes of them for a container's variables: twice what these may have together, as one may
/// take the place of another.
const OF_VARIABLES: u64 = 4 << 20;
/// Who keeps more waits for a turn before the rest is read.
const LARGE: u64 = 256 << 10;

/// The keys that are needed of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keys {
    /// All that it has.
    All,
    /// These.
    These(BTreeSet<String>),
}

impl Keys {
    /// The keys that a volume's `items` choose: all, where there are none.
    pub fn chosen(items: Option<&[KeyToPath]>) -> Self {
        match items {
            None | Some([]) => Self::All,
            Some(items) => Self::These(items.iter().map(|item| item.key.clone()).collect()),
        }
    }

    /// One key.
    pub fn one(key: &str) -> Self {
        Self::These(BTreeSet::from([key.to_owned()]))
    }

    fn has(&self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::These(keys) => keys.contains(key),
        }
    }

    fn add(&mut self, more: Self) {
        match more {
            Self::All => *self = Self::All,
            Self::These(more) => {
                if let Self::These(keys) = self {
                    keys.extend(more);
                }
            }
        }
    }
}

/// The objects, in the pod's namespace, from which variables or volumes are made, by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceNames {
    /// Config maps.
    pub config_maps: BTreeMap<String, Keys>,
    /// Secrets.
    pub secrets: BTreeMap<String, Keys>,
}

impl SourceNames {
    /// Needs these keys of a config map, too.
    pub fn config_map(&mut self, name: &str, keys: Keys) {
        add(&mut self.config_maps, name, keys);
    }

    /// Needs these keys of a secret, too.
    pub fn secret(&mut self, name: &str, keys: Keys) {
        add(&mut self.secrets, name, keys);
    }
}

fn add(all: &mut BTreeMap<String, Keys>, name: &str, keys: Keys) {
    match all.get_mut(name) {
        Some(known) => known.add(keys),
        None => drop(all.insert(name.to_owned(), keys)),
    }
}

/// A config map or a secret.
pub trait Keyed {
    /// Drops all but these keys with their values; returns the bytes of what is left.
    fn keep(&mut self, keys: &Keys) -> u64;
}

impl Keyed for ConfigMap {
    fn keep(&mut self, keys: &Keys) -> u64 {
        self.metadata = ObjectMeta::default();
        let bytes = keep(&mut self.binary_data, keys, |value| value.0.len());
        bytes + keep(&mut self.data, keys, String::len)
    }
}

impl Keyed for Secret {
    fn keep(&mut self, keys: &Keys) -> u64 {
        self.metadata = ObjectMeta::default();
        // Only who writes a secret has it.
        self.string_data = None;
        keep(&mut self.data, keys, |value| value.0.len())
    }
}

fn keep<T>(
    data: &mut Option<BTreeMap<String, T>>,
    keys: &Keys,
    length: impl Fn(&T) -> usize,
) -> u64 {
    let Some(data) = data else {
        return 0;
    };
    data.retain(|key, _| keys.has(key));
    let lengths = data.iter();
    let lengths = lengths.map(|(key, value)| (key.len() + length(value)) as u64);
    lengths.sum()
}

/// What is kept for a pod's volumes, or for a container's variables, until it is dropped.
#[derive(Debug)]
pub struct Budget {
    whose: &'static str,
    most: u64,
    kept: u64,
    turn: Option<Turn>,
}

impl Budget {
    /// For the volumes of a pod.
    ///
    /// # Errors
    /// They name too many objects.
    pub fn of_volumes(needs: &SourceNames) -> Result<Self, String> {
        Self::new("the volumes of a pod", OF_VOLUMES, needs)
    }

    /// For the variables of a container.
    ///
    /// # Errors
    /// They name too many objects.
    pub fn of_variables(needs: &SourceNames) -> Result<Self, String> {
        Self::new("the variables of a container", OF_VARIABLES, needs)
    }

    fn new(whose: &'static str, most: u64, needs: &SourceNames) -> Result<Self, String> {
        let named = needs.config_maps.len() + needs.secrets.len();
        if named > MOST_OBJECTS {
            return Err(format!(
                "{whose} may name {MOST_OBJECTS} config maps and secrets, and these name {named}: put what they hold \
                 into fewer"
            ));
        }
        Ok(Self {
            whose,
            most,
            kept: 0,
            turn: None,
        })
    }

    /// Counts what is kept of an object. Who keeps much then waits for one of the `turns` of its
    /// namespace, which it has until this is dropped: what all pods keep together has a bound.
    ///
    /// # Errors
    /// It is more than may be kept.
    pub async fn add(
        &mut self,
        bytes: u64,
        turns: &NamedTurns,
        namespace: &str,
    ) -> Result<(), String> {
        self.kept = self.kept.saturating_add(bytes);
        if self.kept > self.most {
            return Err(format!(
                "{} may take {} MiB from config maps and secrets: name only the keys that are needed, or share them out \
                 among several pods",
                self.whose,
                self.most >> 20
            ));
        }
        if self.kept > LARGE && self.turn.is_none() {
            self.turn = Some(turns.turn(namespace).await);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;
    use tokio::time::timeout;

    fn these(keys: &[&str]) -> Keys {
        Keys::These(keys.iter().map(|&key| key.to_owned()).collect())
    }

    #[test]
    fn of_an_object_no_more_is_kept_than_the_keys_that_are_needed() {
        let mut needs = SourceNames::default();
        needs.config_map("m", Keys::one("a"));
        needs.config_map("m", Keys::one("b"));
        assert_eq!(needs.config_maps["m"], these(&["a", "b"]));
        let large = "x".repeat(1 << 20);
        let map = json!({"metadata": {"annotations": {"note": large}},
            "data": {"a": "1", "large": large}, "binaryData": {"b": "MjI=", "c": "Mw=="}});
        let mut map: ConfigMap = serde_json::from_value(map).unwrap();
        assert_eq!(map.keep(&needs.config_maps["m"]), 5);
        let left = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {},
            "data": {"a": "1"}, "binaryData": {"b": "MjI="}});
        assert_eq!(serde_json::to_value(map).unwrap(), left);

        let secret = json!({"data": {"a": "MQ==", "b": "MjI="}});
        let secret: Secret = serde_json::from_value(secret).unwrap();
        assert_eq!(secret.clone().keep(&Keys::one("b")), 3);
        assert_eq!(secret.clone().keep(&Keys::All), 5);
        for keys in [Keys::All, Keys::chosen(None), Keys::chosen(Some(&[]))] {
            needs.config_map("m", keys);
            assert_eq!(needs.config_maps["m"], Keys::All, "all stays all");
            needs.config_map("m", Keys::one("a"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_keep_much_wait_for_each_other_and_those_that_keep_little_for_nobody() {
        let (turns, needs) = (NamedTurns::new(2, 1), SourceNames::default());
        let mut first = Budget::of_volumes(&needs).unwrap();
        let mut next = Budget::of_variables(&needs).unwrap();
        assert_eq!(first.add(LARGE + 1, &turns, "a").await, Ok(()));
        assert_eq!(next.add(LARGE, &turns, "a").await, Ok(()));
        let wait = Duration::from_secs(60);
        assert!(timeout(wait, next.add(1, &turns, "a")).await.is_err());
        let mut other = Budget::of_volumes(&needs).unwrap();
        assert_eq!(other.add(LARGE + 1, &turns, "b").await, Ok(()));
        drop(first);
        assert_eq!(next.add(1, &turns, "a").await, Ok(()));
        let refused = next.add(OF_VARIABLES, &turns, "a").await.unwrap_err();
        assert!(refused.contains("a container may take 4 MiB"), "{refused}");
        let refused = other.add(OF_VOLUMES, &turns, "b").await.unwrap_err();
        assert!(refused.contains("a pod may take 20 MiB"), "{refused}");
    }

    #[test]
    fn objects_that_are_named_in_their_thousands_are_refused_before_one_is_read() {
        let mut needs = SourceNames::default();
        for number in 0..512 {
            needs.secret(&number.to_string(), Keys::All);
        }
        assert!(Budget::of_volumes(&needs).is_ok());
        needs.config_map("one more", Keys::All);
        let refused = Budget::of_variables(&needs).unwrap_err();
        assert!(refused.contains("these name 513"), "{refused}");
    }
}
