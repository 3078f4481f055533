//! Reads a pod's claims and their volumes from the master, and has drivers mount volumes.

use super::Supplies;
use agent_api::{ApiError, get};
use agent_claims::{Claimed, Mounted, What};
use agent_csi::DriverVolume;
use config_kube::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use std::collections::BTreeMap;

impl Supplies {
    /// Resolves the pod's claims and inline volumes, by the volumes' names.
    pub(super) async fn claims(&self, pod: &Pod) -> Result<BTreeMap<String, Mounted>, String> {
        let mut found = BTreeMap::new();
        let fault = |volume: &str, error: String| {
            format!("MountVolume.SetUp failed for volume {volume:?} : {error}")
        };
        for (volume, wanted) in agent_claims::wanted(pod) {
            let mounted = self.claimed(pod, &wanted).await;
            let mounted = mounted.map_err(|error| fault(&volume, error))?;
            found.insert(volume, mounted);
        }
        let volumes = pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten());
        for volume in volumes {
            let Some(source) = &volume.csi else {
                continue;
            };
            let name = &volume.name;
            let mounted = self
                .driven(pod, DriverVolume::Inline { name, source })
                .await;
            let mounted = mounted.map_err(|error| fault(name, error))?;
            found.insert(name.clone(), mounted);
        }
        Ok(found)
    }

    /// Reads a claim and its volume from the master. Lost data is reported on the claim, too.
    async fn claimed(&self, pod: &Pod, wanted: &Claimed) -> Result<Mounted, String> {
        let text = |error: ApiError| error.chain();
        let (api, path) = (&*self.shared.api, wanted.path(&self.pod.namespace)?);
        let claim: PersistentVolumeClaim = get(api, path).await.map_err(text)?;
        let path = wanted.volume_path(pod, &claim)?;
        let volume: PersistentVolume = get(api, path).await.map_err(text)?;
        let mounted = self.shared.folders.mounted(pod, wanted, &claim, &volume);
        let mounted = mounted.map_err(|fault| {
            if fault.lost {
                let about = agent_claims::reference(&claim);
                self.shared
                    .events
                    .record(about, true, "VolumeLost", &fault.text);
            }
            fault.text
        })?;
        if let Some(mounted) = mounted {
            return Ok(mounted);
        }
        let source = DriverVolume::Claimed {
            claim: &claim,
            volume: &volume,
            read_only: wanted.read_only,
        };
        self.driven(pod, source).await
    }

    /// Has a driver mount a volume.
    async fn driven(&self, pod: &Pod, source: DriverVolume<'_>) -> Result<Mounted, String> {
        let path = self.shared.csi.mount(pod, source).await?;
        Ok(Mounted {
            what: What::Driver(path),
            read_only: source.is_read_only(),
        })
    }
}
