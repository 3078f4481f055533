//! The security context of a container, from its own and its pod's (pure).

use agent_runtime::{Capabilities, Confinement, GroupsPolicy, Seccomp};
use config_kube::k8s_openapi::api::core::v1::{PodSecurityContext, SecurityContext};

/// The security contexts of pod and container; the container's fields win.
pub(crate) struct Security<'a> {
    pod: Option<&'a PodSecurityContext>,
    container: Option<&'a SecurityContext>,
}

impl<'a> Security<'a> {
    /// The contexts of a container in a pod.
    pub(crate) fn of(
        pod: Option<&'a PodSecurityContext>,
        container: Option<&'a SecurityContext>,
    ) -> Self {
        Self { pod, container }
    }

    /// A user or group id: the container's, else the pod's.
    ///
    /// # Errors
    /// The number is negative or more than 2³² - 2: the last one means "unchanged" to `chown(2)`.
    pub(crate) fn id(
        &self,
        of_pod: impl FnOnce(&PodSecurityContext) -> Option<i64>,
        of_container: impl FnOnce(&SecurityContext) -> Option<i64>,
    ) -> Result<Option<u32>, String> {
        let number = self
            .container
            .and_then(of_container)
            .or_else(|| self.pod.and_then(of_pod));
        number.map(checked_id).transpose()
    }

    /// The supplemental groups, to which `fsGroup` belongs.
    ///
    /// # Errors
    /// As [`Self::id`], for any of the groups.
    pub(crate) fn groups(&self) -> Result<Vec<u32>, String> {
        let pod = self.pod.cloned().unwrap_or_default();
        pod.supplemental_groups
            .into_iter()
            .flatten()
            .chain(pod.fs_group)
            .map(checked_id)
            .collect()
    }

    /// Whether the image's own groups count (`supplementalGroupsPolicy`).
    pub(crate) fn groups_policy(&self) -> GroupsPolicy {
        let policy = self
            .pod
            .and_then(|pod| pod.supplemental_groups_policy.as_deref());
        match policy {
            Some("Strict") => GroupsPolicy::Strict,
            Some(_) | None => GroupsPolicy::Merge,
        }
    }

    /// Capabilities that the container adds and drops.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let wanted = self
            .container
            .and_then(|container| container.capabilities.clone())
            .unwrap_or_default();
        Capabilities {
            add: wanted.add.unwrap_or_default(),
            drop: wanted.drop.unwrap_or_default(),
        }
    }

    /// What else the container asks to be kept from.
    pub(crate) fn confinement(&self) -> Confinement {
        let non_root = self
            .container
            .and_then(|container| container.run_as_non_root);
        Confinement {
            run_as_non_root: non_root.or_else(|| self.pod.and_then(|pod| pod.run_as_non_root))
                == Some(true),
            read_only_root: self
                .container
                .and_then(|container| container.read_only_root_filesystem)
                == Some(true),
            no_new_privileges: self
                .container
                .and_then(|container| container.allow_privilege_escalation)
                == Some(false),
        }
    }

    /// Whether the container is privileged.
    pub(crate) fn privileged(&self) -> bool {
        self.container.and_then(|container| container.privileged) == Some(true)
    }

    /// The system calls that it may make.
    pub(crate) fn seccomp(&self) -> Seccomp {
        let own = self
            .container
            .and_then(|container| container.seccomp_profile.as_ref());
        let profile = own.or_else(|| self.pod.and_then(|pod| pod.seccomp_profile.as_ref()));
        match profile.map(|profile| profile.type_.as_str()) {
            Some("Unconfined") => Seccomp::Unconfined,
            Some(_) | None => Seccomp::RuntimeDefault,
        }
    }
}

fn checked_id(number: i64) -> Result<u32, String> {
    u32::try_from(number)
        .ok()
        .filter(|number| *number < u32::MAX)
        .ok_or_else(|| format!("{number} is no user or group id"))
}
