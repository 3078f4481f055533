//! The documents of an image (OCI image specification): indexes, manifests and configurations, read
//! without I/O.

use crate::content::Descriptor;
use crate::image::ImageDefaults;
use agent_containerd::{Error, ErrorClass};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// An image manifest.
#[derive(Debug, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// An image configuration.
#[derive(Debug, Deserialize)]
pub(crate) struct Configuration {
    #[serde(default)]
    pub(crate) config: Option<ImageDefaults>,
    pub(crate) rootfs: RootFs,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

/// What the layers unpack to, in order.
#[derive(Debug, Deserialize)]
pub(crate) struct RootFs {
    pub(crate) diff_ids: Vec<String>,
}

/// The lists by which index and manifest are told apart.
#[derive(Deserialize)]
struct Shape {
    manifests: Option<Vec<Descriptor>>,
    layers: Option<IgnoredAny>,
    config: Option<IgnoredAny>,
}

/// The manifests of an index; none where the document is no index.
///
/// # Errors
/// A document that is index and manifest at once: two programs would see two images behind one
/// digest (CVE-2021-41190).
pub(crate) fn manifests(document: &[u8]) -> Result<Option<Vec<Descriptor>>, Error> {
    let Ok(shape) = serde_json::from_slice::<Shape>(document) else {
        return Ok(None);
    };
    if shape.manifests.is_some() && (shape.layers.is_some() || shape.config.is_some()) {
        return Err(bad(
            "the document is both an index and a manifest".to_owned()
        ));
    }
    Ok(shape.manifests)
}

/// The manifest of an index that is for this machine: one that names its platform, and for the
/// oldest processors, goes before others.
pub(crate) fn choose(manifests: Vec<Descriptor>) -> Result<Descriptor, Error> {
    let rank = |descriptor: &Descriptor| match &descriptor.platform {
        Some(platform) if platform.os != "linux" || platform.architecture != architecture() => None,
        Some(platform) if matches!(platform.variant.as_str(), "" | "v1" | "v8") => Some(0),
        Some(_) => Some(1),
        None => Some(2),
    };
    let fitting = manifests
        .into_iter()
        .filter_map(|one| Some((rank(&one)?, one)));
    let found = fitting.min_by_key(|(rank, _)| *rank).map(|(_, one)| one);
    found.ok_or_else(|| {
        bad(format!(
            "the image has no manifest for linux/{}",
            architecture()
        ))
    })
}

impl Configuration {
    /// Refuses an image for another platform; one that names none is taken.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let fits = |named: &str, own: &str| named.is_empty() || named == own;
        if fits(&self.os, "linux") && fits(&self.architecture, architecture()) {
            return Ok(());
        }
        let cut = |text: &str| {
            text.chars()
                .filter(|c| !c.is_control())
                .take(32)
                .collect::<String>()
        };
        let (os, of) = (cut(&self.os), cut(&self.architecture));
        Err(bad(format!(
            "the image is for {os}/{of}, and this machine is linux/{}",
            architecture()
        )))
    }
}

fn bad(message: String) -> Error {
    Error::new(ErrorClass::ImagePull, message)
}

/// This machine's architecture in the words of image indexes.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn entry(digest: &str, platform: &Value) -> Descriptor {
        let descriptor =
            json!({"mediaType": "m", "digest": digest, "size": 1, "platform": platform});
        serde_json::from_value(descriptor).unwrap()
    }

    #[test]
    fn an_index_is_known_by_its_manifests_and_is_nothing_else() {
        let index = br#"{"manifests":[{"mediaType":"m","digest":"sha256:0","size":1}]}"#;
        assert_eq!(manifests(index).unwrap().map(|list| list.len()), Some(1));
        assert_eq!(
            manifests(br#"{"config":{"digest":"sha256:0","size":1},"layers":[]}"#).unwrap(),
            None
        );
        assert_eq!(manifests(b"{").unwrap(), None);
        assert!(manifests(br#"{"manifests":[],"layers":[]}"#).is_err());
        assert!(manifests(br#"{"manifests":[],"config":{}}"#).is_err());
    }

    #[test]
    fn the_manifest_for_this_machine_is_chosen_and_the_one_for_all_its_processors_first() {
        let of = |variant: &str| json!({"os": "linux", "architecture": architecture(), "variant": variant});
        let other = entry("other", &json!({"os": "linux", "architecture": "s390x"}));
        let attestation = entry(
            "attestation",
            &json!({"os": "unknown", "architecture": "unknown"}),
        );
        let all = vec![
            other.clone(),
            attestation.clone(),
            entry("v3", &of("v3")),
            entry("plain", &of("")),
        ];
        assert_eq!(choose(all).unwrap().digest, "plain");
        assert_eq!(
            choose(vec![other.clone(), entry("v3", &of("v3"))])
                .unwrap()
                .digest,
            "v3"
        );
        assert_eq!(
            choose(vec![
                entry("silent", &Value::Null),
                entry("plain", &of("v1"))
            ])
            .unwrap()
            .digest,
            "plain"
        );
        assert!(choose(vec![other, attestation]).is_err());
    }

    #[test]
    fn an_image_for_another_platform_is_refused() {
        let check = |text: &str| serde_json::from_str::<Configuration>(text).unwrap().check();
        assert!(check(r#"{"rootfs":{"diff_ids":[]}}"#).is_ok());
        assert!(
            check(
                &json!({"rootfs":{"diff_ids":[]},"os":"linux","architecture":architecture()})
                    .to_string()
            )
            .is_ok()
        );
        let error =
            check(r#"{"rootfs":{"diff_ids":[]},"os":"linux","architecture":"s390x"}"#).unwrap_err();
        assert!(
            error.message.contains("the image is for linux/s390x"),
            "{}",
            error.message
        );
    }
}
