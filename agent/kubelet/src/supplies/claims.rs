//! The claims of a pod, asked of the master.

use super::Supplies;
use agent_api::{ApiError, get};
use agent_claims::{Claimed, Mounted};
use config_kube::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use std::collections::BTreeMap;

impl Supplies {
    /// What the claims of the pod's volumes lead to, by the volumes' names.
    pub(super) async fn claims(&self, pod: &Pod) -> Result<BTreeMap<String, Mounted>, String> {
        let mut found = BTreeMap::new();
        for (volume, wanted) in agent_claims::wanted(pod) {
            let mounted = self.claimed(pod, &wanted).await;
            let fault = |error| format!("MountVolume.SetUp failed for volume {volume:?} : {error}");
            found.insert(volume.clone(), mounted.map_err(fault)?);
        }
        Ok(found)
    }

    /// Asks the master for a claim and its volume. Lost data is reported on the claim, too.
    async fn claimed(&self, pod: &Pod, wanted: &Claimed) -> Result<Mounted, String> {
        let text = |error: ApiError| error.chain();
        let (api, path) = (&*self.shared.api, wanted.path(&self.pod.namespace)?);
        let claim: PersistentVolumeClaim = get(api, path).await.map_err(text)?;
        let path = wanted.volume_path(pod, &claim)?;
        let volume: PersistentVolume = get(api, path).await.map_err(text)?;
        let mounted = self.shared.folders.mounted(pod, wanted, &claim, &volume);
        mounted.map_err(|fault| {
            if fault.lost {
                let about = agent_claims::reference(&claim);
                self.shared
                    .events
                    .tell(about, true, "VolumeLost", &fault.text);
            }
            fault.text
        })
    }
}
