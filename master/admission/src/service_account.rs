//! `ServiceAccount`: every pod runs as an existing service account and gets a volume with that
//! account's token.

use crate::entry_cache::EntryCache;
use crate::plugin::{Admitted, Operation, Plugin, Request, name_of, read};
use master_client::BoxFuture;
use master_pods::podspec;
use master_schema::error::ApiError;
use master_schema::object::{meta_text, metadata};
use master_schema::validate::{Fields, get, items, object, text};
use master_store::Entry;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// The service account of pods that name none.
const DEFAULT: &str = "default";
/// Where the token is mounted in containers.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Prefix of the names of token volumes.
const VOLUME: &str = "kube-api-access-";
/// Lifetime of the token in seconds: an hour, plus seven that mark tokens of this kind (upstream).
const TOKEN_SECONDS: i64 = 3607;
/// Annotation of a service account whose pods may use only the secrets that it names.
const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";
/// Annotation of mirror pods, which a kubelet creates for its static pods.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Reads of a service account that a controller is about to create.
const ATTEMPTS: usize = 10;
/// Pause between two reads.
const PAUSE: Duration = Duration::from_millis(100);

/// The plugin.
#[derive(Debug, Default)]
pub(crate) struct ServiceAccount {
    /// The accounts; `None` if one can't be read.
    accounts: EntryCache<Option<Arc<Fields>>>,
}

impl Plugin for ServiceAccount {
    fn concerns(&self, request: &Request<'_>) -> bool {
        let created = request.operation == Operation::Create && request.writes("", "pods");
        let extended = request.operation == Operation::Update
            && request.is("", "pods")
            && request
                .subresource
                .is_some_and(|subresource| subresource.name() == "ephemeralcontainers");
        created || extended
    }

    fn admit<'a>(
        &'a self,
        request: &'a Request<'a>,
        pod: &'a mut Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            if request.operation != Operation::Create || mirrors(pod) {
                return Ok(());
            }
            let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
                return Ok(());
            };
            if text(spec, "serviceAccountName").is_empty() {
                spec.insert("serviceAccountName".to_owned(), DEFAULT.into());
            }
            // The deprecated field for the same name, which clients still read.
            let name = text(spec, "serviceAccountName").to_owned();
            spec.insert("serviceAccount".to_owned(), name.into());
            let account = self.account(request, pod).await?;
            let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
                return Ok(());
            };
            if automounts(spec, &account) {
                mount_token(spec);
            }
            if items(spec, "imagePullSecrets").is_empty()
                && !items(&account, "imagePullSecrets").is_empty()
            {
                spec.insert(
                    "imagePullSecrets".to_owned(),
                    get(&account, "imagePullSecrets").clone(),
                );
            }
            Ok(())
        })
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        pod: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let empty = Fields::new();
            let spec = object(pod, "spec").unwrap_or(&empty);
            let fault = if mirrors(pod) {
                mirror_fault(spec)
            } else {
                let account = self.account(request, pod).await?;
                let enforces = object(metadata(&account), "annotations")
                    .is_some_and(|all| text(all, ENFORCE) == "true");
                if enforces {
                    secret_fault(spec, &account)
                } else {
                    None
                }
            };
            fault.map_or(Ok(()), |fault| Err(request.forbidden(name_of(pod), &fault)))
        })
    }
}

fn mirrors(pod: &Fields) -> bool {
    object(metadata(pod), "annotations").is_some_and(|annotations| annotations.contains_key(MIRROR))
}

impl ServiceAccount {
    /// The pod's service account. That of a new namespace may not exist yet.
    async fn account(&self, request: &Request<'_>, pod: &Fields) -> Result<Arc<Fields>, ApiError> {
        let namespace = meta_text(pod, "namespace");
        let name = object(pod, "spec").map_or("", |spec| text(spec, "serviceAccountName"));
        let key = format!("serviceaccounts/{namespace}/{name}");
        let attempts = if name == DEFAULT { ATTEMPTS } else { 1 };
        for look in 0..attempts {
            if look > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            let found = request.get(&key).await?;
            let decode = |entry: &Entry| read(entry).map(Arc::new);
            if let Some(account) = found.and_then(|entry| self.accounts.of(&entry, decode)) {
                return Ok(account);
            }
        }
        let text = format!(
            "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
        );
        Err(request.forbidden(name_of(pod), &text))
    }
}

/// The pod's setting overrides the service account's.
fn automounts(spec: &Fields, account: &Fields) -> bool {
    let says = |fields| get(fields, "automountServiceAccountToken").as_bool();
    says(spec).or_else(|| says(account)).unwrap_or(true)
}

/// Mounts the token into every container that mounts nothing at that path.
fn mount_token(spec: &mut Fields) {
    let present = items(spec, "volumes")
        .iter()
        .filter_map(|volume| volume.get("name").and_then(Value::as_str));
    let present = present
        .filter(|name| name.starts_with(VOLUME))
        .map(str::to_owned)
        .next();
    let name = present
        .clone()
        .unwrap_or_else(|| master_objects::generate(VOLUME));
    let mut needed = false;
    podspec::change_containers(spec, &["initContainers", "containers"], |_, container| {
        let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
        let Some(mounts) = mounts.as_array_mut() else {
            return;
        };
        if !mounts.iter().any(|mount| {
            mount
                .get("mountPath")
                .is_some_and(|path| path == MOUNT_PATH)
        }) {
            mounts.push(json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}));
            needed = true;
        }
    });
    if needed && present.is_none() {
        let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
        if let Some(volumes) = volumes.as_array_mut() {
            volumes.push(token_volume(&name));
        }
    }
}

fn token_volume(name: &str) -> Value {
    let namespace = json!({"apiVersion": "v1", "fieldPath": "metadata.namespace"});
    json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": namespace}]}},
    ]}})
}

/// Mirror pods reference no API objects: the pod's content comes from a file of the kubelet.
fn mirror_fault(spec: &Fields) -> Option<String> {
    if !text(spec, "serviceAccountName").is_empty() {
        return Some("a mirror pod may not reference service accounts".to_owned());
    }
    let volumes = || items(spec, "volumes").iter();
    let has = |key: &str| volumes().any(|volume| volume.get(key).is_some());
    let sources = || {
        let lists = volumes().filter_map(|volume| {
            volume
                .pointer("/projected/sources")
                .and_then(Value::as_array)
        });
        lists.flatten()
    };
    let reads = |env: &str, from: &str| {
        containers(spec).any(|(_, container)| {
            items(container, "env")
                .iter()
                .any(|item| item.pointer(&format!("/valueFrom/{env}")).is_some())
                || items(container, "envFrom")
                    .iter()
                    .any(|item| item.get(from).is_some())
        })
    };
    let projects = |key: &str| sources().any(|source| source.get(key).is_some());
    let pulls = !items(spec, "imagePullSecrets").is_empty();
    if has("secret") || projects("secret") || reads("secretKeyRef", "secretRef") || pulls {
        return Some("a mirror pod may not reference secrets".to_owned());
    }
    if has("configMap") || projects("configMap") || reads("configMapKeyRef", "configMapRef") {
        return Some("a mirror pod may not reference configmaps".to_owned());
    }
    if projects("serviceAccountToken") {
        return Some("a mirror pod may not use ServiceAccountToken volume projections".to_owned());
    }
    if projects("clusterTrustBundle") {
        return Some("a mirror pod may not reference clustertrustbundles".to_owned());
    }
    if has("persistentVolumeClaim") {
        return Some("a mirror pod may not reference persistentvolumeclaims".to_owned());
    }
    let claims = !items(spec, "resourceClaims").is_empty();
    claims.then(|| "a mirror pod may not reference resourceclaims".to_owned())
}

/// Containers of all types, each with upstream's name of the type.
fn containers(spec: &Fields) -> impl Iterator<Item = (&'static str, &Fields)> {
    let sorts = [
        ("initContainers", "init container"),
        ("containers", "container"),
        ("ephemeralContainers", "ephemeral container"),
    ];
    sorts.into_iter().flat_map(|(list, word)| {
        items(spec, list)
            .iter()
            .filter_map(Value::as_object)
            .map(move |container| (word, container))
    })
}

/// The first secret that a pod uses and its service account does not list.
fn secret_fault(spec: &Fields, account: &Fields) -> Option<String> {
    let own = meta_text(account, "name");
    let named = |list: &str| -> HashSet<&str> {
        let items = items(account, list).iter();
        items.filter_map(|item| item["name"].as_str()).collect()
    };
    let (secrets, pull_secrets) = (named("secrets"), named("imagePullSecrets"));
    let of = |name: &str| {
        format!(
            "referencing secret.secretName={name:?} is not allowed because service account {own} does not reference that secret"
        )
    };
    let word = |value: &Value, pointer: &str| {
        value
            .pointer(pointer)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    for name in items(spec, "volumes")
        .iter()
        .filter_map(|volume| word(volume, "/secret/secretName"))
    {
        if !secrets.contains(&*name) {
            let end = format!(
                "is not allowed because service account {own} does not reference that secret"
            );
            return Some(format!("volume with secret.secretName={name:?} {end}"));
        }
    }
    for (sort, container) in containers(spec) {
        let title = text(container, "name");
        for env in items(container, "env") {
            if let Some(name) =
                word(env, "/valueFrom/secretKeyRef/name").filter(|name| !secrets.contains(&**name))
            {
                let variable = word(env, "/name").unwrap_or_default();
                return Some(format!(
                    "{sort} {title} with envVar {variable} {}",
                    of(&name)
                ));
            }
        }
        for from in items(container, "envFrom") {
            if let Some(name) =
                word(from, "/secretRef/name").filter(|name| !secrets.contains(&**name))
            {
                return Some(format!("{sort} {title} with envFrom {}", of(&name)));
            }
        }
    }
    items(spec, "imagePullSecrets").iter().enumerate().find_map(|(number, reference)| {
        let name = word(reference, "/name").unwrap_or_default();
        (!pull_secrets.contains(&*name)).then(|| {
            format!("imagePullSecrets[{number}].name={name:?} is not allowed because service account {own} does not reference that imagePullSecret")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(value: &Value) -> Fields {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn the_token_is_mounted_where_nothing_is_in_its_place() {
        let mut spec = fields(&json!({"initContainers": [{"name": "i"}], "containers": [
            {"name": "a"}, {"name": "b", "volumeMounts": [{"name": "own", "mountPath": MOUNT_PATH}]}]}));
        mount_token(&mut spec);
        let volume = spec["volumes"][0]["name"].as_str().unwrap().to_owned();
        assert!(
            volume.starts_with(VOLUME) && volume.len() == VOLUME.len() + 5,
            "{volume}"
        );
        for list in ["initContainers", "containers"] {
            assert_eq!(spec[list][0]["volumeMounts"][0]["name"], volume.as_str());
        }
        assert_eq!(
            spec["containers"][1]["volumeMounts"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
        let before = spec.clone();
        mount_token(&mut spec);
        assert_eq!(before, spec, "a second time changes nothing");
    }

    #[test]
    fn the_pods_automount_setting_overrides_the_accounts() {
        let [no, yes, silent] = [json!(false), json!(true), json!(null)]
            .map(|value| fields(&json!({"automountServiceAccountToken": value})));
        assert!(automounts(&silent, &silent) && automounts(&yes, &no));
        assert!(!automounts(&no, &yes) && !automounts(&silent, &no));
    }

    #[test]
    fn mirror_pods_refer_to_nothing_in_the_api() {
        let cases = [
            (json!({"serviceAccountName": "a"}), "service accounts"),
            (json!({"volumes": [{"secret": {}}]}), "secrets"),
            (
                json!({"containers": [{"envFrom": [{"secretRef": {}}]}]}),
                "secrets",
            ),
            (
                json!({"containers": [{"env": [{"valueFrom": {"configMapKeyRef": {}}}]}]}),
                "configmaps",
            ),
            (
                json!({"volumes": [{"persistentVolumeClaim": {}}]}),
                "persistentvolumeclaims",
            ),
            (
                json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {}}]}}]}),
                "ServiceAccountToken",
            ),
        ];
        for (spec, word) in cases {
            let fault = mirror_fault(&fields(&spec)).unwrap();
            assert!(fault.contains(word), "{spec}: {fault}");
        }
        assert_eq!(
            mirror_fault(&fields(&json!({"volumes": [{"hostPath": {}}]}))),
            None
        );
    }

    #[test]
    fn an_enforcing_account_allows_only_its_own_secrets() {
        let account = fields(
            &json!({"metadata": {"name": "sa"}, "secrets": [{"name": "mine"}],
            "imagePullSecrets": [{"name": "pull"}]}),
        );
        let good = json!({"volumes": [{"secret": {"secretName": "mine"}}], "imagePullSecrets": [{"name": "pull"}]});
        assert_eq!(secret_fault(&fields(&good), &account), None);
        let bad = json!({"containers": [{"name": "c", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "x"}}}]}]});
        assert_eq!(
            secret_fault(&fields(&bad), &account).unwrap(),
            "container c with envVar E referencing secret.secretName=\"x\" is not allowed because service account sa \
             does not reference that secret"
        );
    }
}
