//! From a pod's volume, its PersistentVolume and the driver's CSIDriver to what the driver is sent.
//! Pure.
//!
//! What the node does not do for a driver is refused here, with the reason.

use crate::messages::{AccessMode, MountVolume, VolumeCapability, mode};
use crate::paths::{is_name, is_plain};
use config_kube::k8s_openapi::api::core::v1::{
    CSIVolumeSource, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod,
    SecretReference,
};
use config_kube::k8s_openapi::api::storage::v1::CSIDriver;
use config_kube::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use config_kube::quantity::Amount;
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// A pod's volume that a driver makes.
#[derive(Debug, Clone, Copy)]
pub enum DriverVolume<'a> {
    /// The volume to which the pod's claim is bound.
    Claimed {
        /// The claim.
        claim: &'a PersistentVolumeClaim,
        /// The volume.
        volume: &'a PersistentVolume,
        /// Whether the pod may only read it.
        read_only: bool,
    },
    /// A volume that is made for the pod and goes with it.
    Inline {
        /// The name of the pod's volume.
        name: &'a str,
        /// The volume's source in the pod's spec.
        source: &'a CSIVolumeSource,
    },
}

/// Where a secret is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The secrets that go with the calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Secrets {
    pub(crate) stage: Option<SecretName>,
    pub(crate) publish: Option<SecretName>,
    pub(crate) expand: Option<SecretName>,
}

/// A volume that is larger than its claim shows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Growth {
    /// The size that it has.
    pub(crate) bytes: i64,
    /// The same, as its PersistentVolume has it.
    pub(crate) size: Quantity,
}

/// A volume as it is requested from a driver, independent of the capabilities of its node service.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    /// The pod's namespace.
    pub(crate) namespace: String,
    pub(crate) driver: String,
    pub(crate) handle: String,
    /// The volume's name in the pod's folder: the PersistentVolume's or, inline, the pod's own.
    pub(crate) name: String,
    /// Whether it is made for the pod alone; it is not staged then.
    pub(crate) inline: bool,
    pub(crate) read_only: bool,
    pub(crate) fs_type: String,
    pub(crate) mount_options: Vec<String>,
    /// The first of the volume's access modes.
    pub(crate) access: String,
    /// The volume's attributes.
    pub(crate) attributes: HashMap<String, String>,
    /// What the driver wants to know of the pod.
    pub(crate) pod: HashMap<String, String>,
    pub(crate) secrets: Secrets,
    /// The group of the pod's files.
    pub(crate) group: Option<Group>,
    /// Whether the driver is to be asked again and again.
    pub(crate) republish: bool,
    /// The size that the volume has and its claim does not show yet.
    pub(crate) growth: Option<Growth>,
}

/// The group of a pod's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) id: u32,
    /// Whether the node gives it to the volume's files, where the driver doesn't.
    pub(crate) given: bool,
    /// Whether files are left as they are where the volume's folder has it already.
    pub(crate) only_on_mismatch: bool,
}

/// What a driver's node service can do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "capabilities are independent, as in the CSI specification"
)]
pub(crate) struct Abilities {
    /// `STAGE_UNSTAGE_VOLUME`
    pub(crate) stages: bool,
    /// `EXPAND_VOLUME`
    pub(crate) expands: bool,
    /// `GET_VOLUME_STATS`
    pub(crate) measures: bool,
    /// `SINGLE_NODE_MULTI_WRITER`
    pub(crate) tells_writers: bool,
    /// `VOLUME_MOUNT_GROUP`
    pub(crate) gives_group: bool,
}

impl DriverVolume<'_> {
    /// Whether the pod may only read the volume.
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Claimed { read_only, .. } => *read_only,
            Self::Inline { source, .. } => source.read_only == Some(true),
        }
    }

    /// The name of the driver.
    ///
    /// # Errors
    /// The volume has none, or it can't be one.
    pub(crate) fn driver(&self) -> Result<&str, String> {
        let name = match self {
            Self::Claimed { volume, .. } => {
                let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
                csi.map(|csi| csi.driver.as_str())
            }
            Self::Inline { source, .. } => Some(source.driver.as_str()),
        };
        let name = name.unwrap_or_default();
        if is_name(name) {
            Ok(name)
        } else {
            Err(format!("{name:?} is no name of a CSI driver"))
        }
    }
}

/// Why the node does nothing for a driver, by its CSIDriver, where there is one.
///
/// # Errors
/// In words that say what to change.
pub(crate) fn accept(name: &str, rules: Option<&CSIDriver>, inline: bool) -> Result<(), String> {
    let spec = rules.map(|rules| &rules.spec);
    if inline {
        let modes = spec.and_then(|spec| spec.volume_lifecycle_modes.as_ref());
        if !modes.is_some_and(|modes| modes.iter().any(|mode| mode == "Ephemeral")) {
            return Err(format!(
                "volume mode \"Ephemeral\" not supported by driver {name} (no CSIDriver object with it)"
            ));
        }
    } else {
        let modes = spec.and_then(|spec| spec.volume_lifecycle_modes.as_ref());
        if modes
            .is_some_and(|modes| !modes.is_empty() && modes.iter().all(|mode| mode != "Persistent"))
        {
            return Err(format!(
                "volume mode \"Persistent\" not supported by driver {name} (only supports inline volumes)"
            ));
        }
        // As upstream, a driver without a CSIDriver object attaches. Inline volumes are never
        // attached.
        if spec.is_none_or(|spec| spec.attach_required != Some(false)) {
            return Err(format!(
                "driver {name} attaches volumes, which is not available yet: only drivers whose CSIDriver object says \
                 attachRequired: false are"
            ));
        }
    }
    let tokens = spec.and_then(|spec| spec.token_requests.as_ref());
    if tokens.is_some_and(|tokens| !tokens.is_empty()) {
        return Err(format!(
            "driver {name} asks for tokens of the pod's service account (tokenRequests), which is not available yet"
        ));
    }
    Ok(())
}

impl Request {
    /// What the driver is sent for a pod's volume.
    ///
    /// # Errors
    /// Why the node does not mount it.
    pub(crate) fn of(
        pod: &Pod,
        source: DriverVolume<'_>,
        rules: Option<&CSIDriver>,
    ) -> Result<Self, String> {
        let driver = source.driver()?;
        let inline = matches!(source, DriverVolume::Inline { .. });
        accept(driver, rules, inline)?;
        let spec = rules.map(|rules| &rules.spec);
        let informed = spec.is_some_and(|spec| spec.pod_info_on_mount == Some(true));
        let mut request = Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            driver: driver.to_owned(),
            handle: String::new(),
            name: String::new(),
            inline,
            read_only: false,
            fs_type: String::new(),
            mount_options: Vec::new(),
            access: "ReadWriteOnce".to_owned(),
            attributes: HashMap::new(),
            pod: HashMap::new(),
            secrets: Secrets::default(),
            group: group_of(pod),
            republish: spec.is_some_and(|spec| spec.requires_republish == Some(true)),
            growth: None,
        };
        if informed {
            request.pod = about(pod, inline);
        }
        match source {
            DriverVolume::Claimed {
                claim,
                volume,
                read_only,
            } => {
                request.read_only = read_only;
                request.persistent(claim, volume)?;
            }
            DriverVolume::Inline { name, source } => request.inline(pod, name, source)?,
        }
        let policy = spec.and_then(|spec| spec.fs_group_policy.as_deref());
        let given = request.is_given(policy, volume_spec(&source));
        request.group = request.group.map(|group| Group { given, ..group });
        Ok(request)
    }

    fn persistent(
        &mut self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<(), String> {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        if !is_plain(name) {
            return Err(format!("{name:?} is no name of a volume"));
        }
        let spec = volume.spec.clone().unwrap_or_default();
        let csi = spec.csi.as_ref().ok_or("the volume is of no CSI driver")?;
        if csi.volume_handle.is_empty() {
            return Err("the volume has no volumeHandle".to_owned());
        }
        name.clone_into(&mut self.name);
        self.handle.clone_from(&csi.volume_handle);
        self.fs_type = csi.fs_type.clone().unwrap_or_default();
        self.mount_options = spec.mount_options.clone().unwrap_or_default();
        if let Some(first) = spec.access_modes.iter().flatten().next() {
            self.access.clone_from(first);
        }
        self.attributes = csi
            .volume_attributes
            .clone()
            .into_iter()
            .flatten()
            .collect();
        let secret = |reference: &Option<SecretReference>| {
            let reference = reference.as_ref()?;
            Some(SecretName {
                namespace: reference.namespace.clone()?,
                name: reference.name.clone()?,
            })
        };
        self.secrets = Secrets {
            stage: secret(&csi.node_stage_secret_ref),
            publish: secret(&csi.node_publish_secret_ref),
            expand: secret(&csi.node_expand_secret_ref),
        };
        self.growth = growth(claim, &spec);
        Ok(())
    }

    fn inline(&mut self, pod: &Pod, name: &str, source: &CSIVolumeSource) -> Result<(), String> {
        // A volume's name is a DNS label at the master; here it becomes a folder's.
        if !is_plain(name) {
            return Err(format!("{name:?} is no name of a volume"));
        }
        let meta = &pod.metadata;
        let uid = meta.uid.as_deref().unwrap_or_default();
        // Upstream's handle: the same for the same volume of the same pod.
        let mut hash = Sha256::new();
        hash.update(uid.as_bytes());
        hash.update(name.as_bytes());
        self.handle = format!("csi-{}", hex::encode(hash.finalize()));
        name.clone_into(&mut self.name);
        self.read_only = source.read_only == Some(true);
        self.fs_type = source.fs_type.clone().unwrap_or_default();
        self.attributes = source
            .volume_attributes
            .clone()
            .into_iter()
            .flatten()
            .collect();
        let secret = source.node_publish_secret_ref.as_ref();
        self.secrets.publish = secret.map(|secret| SecretName {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: secret.name.clone(),
        });
        Ok(())
    }

    /// Whether the node gives files the pod's group (upstream's rule of `fsGroupPolicy`).
    fn is_given(&self, policy: Option<&str>, volume: Option<&PersistentVolumeSpec>) -> bool {
        if self.read_only {
            return false;
        }
        match policy {
            Some("None") => false,
            Some("File") => true,
            Some(_) | None => {
                let modes = volume.and_then(|spec| spec.access_modes.as_deref());
                let once = |mode: &String| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod";
                !self.fs_type.is_empty() && modes.unwrap_or_default().iter().any(once)
            }
        }
    }

    /// How the volume is used, as the calls say it.
    pub(crate) fn capability(&self, abilities: Abilities) -> VolumeCapability {
        let mode = match self.access.as_str() {
            "ReadOnlyMany" => mode::MULTI_NODE_READER_ONLY,
            "ReadWriteMany" => mode::MULTI_NODE_MULTI_WRITER,
            "ReadWriteOncePod" if abilities.tells_writers => mode::SINGLE_NODE_SINGLE_WRITER,
            _ if abilities.tells_writers => mode::SINGLE_NODE_MULTI_WRITER,
            _ => mode::SINGLE_NODE_WRITER,
        };
        let group = self.group.filter(|_| abilities.gives_group);
        VolumeCapability {
            mount: Some(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self.mount_options.clone(),
                volume_mount_group: group.map_or_else(String::new, |group| group.id.to_string()),
            }),
            access_mode: Some(AccessMode { mode }),
        }
    }
}

fn volume_spec<'a>(source: &DriverVolume<'a>) -> Option<&'a PersistentVolumeSpec> {
    match source {
        DriverVolume::Claimed { volume, .. } => volume.spec.as_ref(),
        DriverVolume::Inline { .. } => None,
    }
}

/// The group of a pod's files; not yet whether the node gives it.
fn group_of(pod: &Pod) -> Option<Group> {
    let security = pod.spec.as_ref()?.security_context.as_ref()?;
    let policy = security.fs_group_change_policy.as_deref();
    Some(Group {
        id: u32::try_from(security.fs_group?).ok()?,
        given: false,
        only_on_mismatch: policy == Some("OnRootMismatch"),
    })
}

/// Upstream's words about a pod.
fn about(pod: &Pod, inline: bool) -> HashMap<String, String> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let account = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.clone());
    let all = [
        ("pod.name", text(&pod.metadata.name)),
        ("pod.namespace", text(&pod.metadata.namespace)),
        ("pod.uid", text(&pod.metadata.uid)),
        ("serviceAccount.name", account.unwrap_or_default()),
        ("ephemeral", inline.to_string()),
    ];
    let named = |(key, value)| (format!("csi.storage.k8s.io/{key}"), value);
    all.into_iter().map(named).collect()
}

/// The size of the volume where it is more than its claim shows.
fn growth(claim: &PersistentVolumeClaim, volume: &PersistentVolumeSpec) -> Option<Growth> {
    let bytes = |amount| Some(Amount::try_from(amount).ok()?.ceil_units());
    let shown = claim.status.as_ref()?.capacity.as_ref()?.get("storage")?;
    let size = volume.capacity.as_ref()?.get("storage")?;
    let has = bytes(size)?;
    (has > bytes(shown)?).then(|| Growth {
        bytes: has,
        size: size.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn driver(spec: &Value) -> CSIDriver {
        serde_json::from_value(json!({"metadata": {"name": "disk.example"}, "spec": spec})).unwrap()
    }

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [], "serviceAccountName": "sa", "securityContext": {"fsGroup": 7}},
        }))
        .unwrap()
    }

    fn claimed(rules: &Value, change: impl FnOnce(&mut Value)) -> Result<Request, String> {
        let mut volume = json!({"metadata": {"name": "pv"}, "spec": {
            "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"],
            "csi": {"driver": "disk.example", "volumeHandle": "h", "fsType": "ext4", "volumeAttributes": {"a": "1"},
                "nodePublishSecretRef": {"namespace": "s", "name": "key"}},
        }});
        change(&mut volume);
        let volume = serde_json::from_value(volume).unwrap();
        let claim = json!({"status": {"capacity": {"storage": "1Gi"}}});
        let source = DriverVolume::Claimed {
            claim: &serde_json::from_value(claim).unwrap(),
            volume: &volume,
            read_only: false,
        };
        Request::of(&pod(), source, Some(&driver(rules)))
    }

    fn secret(namespace: &str) -> SecretName {
        SecretName {
            namespace: namespace.to_owned(),
            name: "key".to_owned(),
        }
    }

    const PLAIN: fn() -> Value = || json!({"attachRequired": false});

    #[test]
    fn a_claimed_volume_has_what_its_volume_says() {
        let request = claimed(&PLAIN(), |_| {}).unwrap();
        assert_eq!(
            (request.name.as_str(), request.handle.as_str()),
            ("pv", "h")
        );
        let growth = Growth {
            bytes: 2 << 30,
            size: Quantity("2Gi".into()),
        };
        assert_eq!(request.growth, Some(growth));
        assert_eq!(request.secrets.publish, Some(secret("s")));
        assert!(request.group.unwrap().given && request.pod.is_empty());
        let group = |abilities| {
            let capability = request.capability(abilities);
            (
                capability.mount.unwrap().volume_mount_group,
                capability.access_mode.unwrap().mode,
            )
        };
        assert_eq!(
            group(Abilities::default()),
            (String::new(), mode::SINGLE_NODE_WRITER)
        );
        let all = Abilities {
            tells_writers: true,
            gives_group: true,
            ..Abilities::default()
        };
        assert_eq!(group(all), ("7".to_owned(), mode::SINGLE_NODE_MULTI_WRITER));
    }

    #[test]
    fn the_node_gives_the_group_by_the_drivers_policy() {
        let owned = |policy: &str, modes: Value, fs_type: &str| {
            let rules = json!({"attachRequired": false, "fsGroupPolicy": policy});
            let change = |volume: &mut Value| {
                volume["spec"]["accessModes"] = modes;
                volume["spec"]["csi"]["fsType"] = json!(fs_type);
            };
            claimed(&rules, change).unwrap().group.unwrap().given
        };
        let once = || json!(["ReadWriteOnce"]);
        assert!(owned("ReadWriteOnceWithFSType", once(), "ext4"));
        assert!(!owned("ReadWriteOnceWithFSType", once(), ""));
        assert!(!owned(
            "ReadWriteOnceWithFSType",
            json!(["ReadWriteMany"]),
            "ext4"
        ));
        assert!(owned("File", json!(["ReadWriteMany"]), ""));
        assert!(!owned("None", once(), "ext4"));
    }

    #[test]
    fn what_the_node_does_not_do_is_refused_with_its_reason() {
        let refused = |rules: Value| claimed(&rules, |_| {}).unwrap_err();
        assert!(refused(json!({})).contains("attachRequired: false"));
        let tokens = json!({"attachRequired": false, "tokenRequests": [{"audience": "a"}]});
        assert!(refused(tokens).contains("tokenRequests"));
        let inline = json!({"attachRequired": false, "volumeLifecycleModes": ["Ephemeral"]});
        assert!(refused(inline).contains("only supports inline volumes"));
        let volume = serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": {"csi":
            {"driver": "disk.example", "volumeHandle": "h"}}}))
        .unwrap();
        let source = DriverVolume::Claimed {
            claim: &PersistentVolumeClaim::default(),
            volume: &volume,
            read_only: false,
        };
        let unknown = Request::of(&pod(), source, None).unwrap_err();
        assert!(unknown.contains("attaches volumes"), "{unknown}");
    }

    #[test]
    fn an_inline_volume_is_the_pods_own_and_tells_of_the_pod() {
        let source = json!({"driver": "disk.example", "readOnly": true, "nodePublishSecretRef": {"name": "key"}});
        let source = serde_json::from_value(source).unwrap();
        let source = DriverVolume::Inline {
            name: "v",
            source: &source,
        };
        let rules = json!({"podInfoOnMount": true, "volumeLifecycleModes": ["Ephemeral"]});
        let request = Request::of(&pod(), source, Some(&driver(&rules))).unwrap();
        assert!(request.inline && request.read_only && !request.group.unwrap().given);
        assert!(request.handle.starts_with("csi-") && request.handle.len() == 68);
        assert_eq!(request.secrets.publish, Some(secret("n")));
        let pod_info = |key: &str| request.pod[&format!("csi.storage.k8s.io/{key}")].clone();
        assert_eq!(
            ["pod.name", "pod.uid", "serviceAccount.name", "ephemeral"].map(pod_info),
            ["p", "u", "sa", "true"]
        );
        let persistent = driver(&json!({"volumeLifecycleModes": ["Persistent"]}));
        let refused = Request::of(&pod(), source, Some(&persistent)).unwrap_err();
        assert!(refused.contains("\"Ephemeral\" not supported"), "{refused}");
    }

    #[test]
    fn a_volume_whose_name_leads_elsewhere_is_refused() {
        for name in ["..", "a/b", ""] {
            let refused = claimed(&PLAIN(), |volume| volume["metadata"]["name"] = json!(name));
            assert!(refused.unwrap_err().contains("no name of a volume"));
        }
    }
}
