//! A container's environment: values, references to config maps, secrets and the pod itself, and
//! `$(NAME)`.

use crate::env_files::{self, EnvFiles};
use crate::needs::{Keys, SourceNames};
use crate::quote::quoted;
use crate::tokens::Tokens;
use agent_claims::Mounted;
use agent_pods::Addresses;
use agent_resources::qos;
use config_kube::k8s_openapi::ByteString;
use config_kube::k8s_openapi::api::core::v1::{
    ConfigMap, Container, EnvVarSource, Pod, ResourceFieldSelector, Secret,
};
use config_kube::quantity::Amount;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// What references of variables can lead to; fetched before, so that resolving is pure.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// By name; `None` for one that isn't there.
    pub config_maps: BTreeMap<String, Option<ConfigMap>>,
    /// By name; `None` for one that isn't there.
    pub secrets: BTreeMap<String, Option<Secret>>,
    /// The files of variables that the pod has written (`fileKeyRef`).
    pub env_files: EnvFiles,
    /// The pod's service account tokens.
    pub tokens: Tokens,
    /// The pod's and the node's addresses.
    pub addresses: Addresses,
    /// Variables for services (`…_SERVICE_HOST`), if the pod wants them (`enableServiceLinks`).
    pub services: Vec<(String, String)>,
    /// What the claims of the pod's volumes lead to, by the volumes' names.
    pub claims: BTreeMap<String, Mounted>,
    /// The node's allocatable amounts, which `resourceFieldRef` takes for missing limits.
    pub allocatable: BTreeMap<&'static str, Amount>,
}

/// The objects that a container's environment needs.
pub fn needs(container: &Container) -> SourceNames {
    let mut needs = SourceNames::default();
    for from in container.env_from.iter().flatten() {
        if let Some(source) = &from.config_map_ref {
            needs.config_map(&source.name, Keys::All);
        }
        if let Some(source) = &from.secret_ref {
            needs.secret(&source.name, Keys::All);
        }
    }
    let variables = container.env.iter().flatten();
    for source in variables.filter_map(|variable| variable.value_from.as_ref()) {
        if let Some(at) = &source.config_map_key_ref {
            needs.config_map(&at.name, Keys::one(&at.key));
        }
        if let Some(at) = &source.secret_key_ref {
            needs.secret(&at.name, Keys::one(&at.key));
        }
    }
    needs
}

/// Most bytes of a container's variables, of its command and of its arguments: more than the kernel
/// takes for all of them (`execve(2)`: a quarter of the stack's 8 MiB). A value may contain another
/// many times, so a few lines of a pod's spec could otherwise expand to more than the machine's
/// memory.
const MOST: usize = 2 << 20;
/// Longest path that the kernel takes (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;

/// The variables of a container, in order; later ones of the same name replace earlier ones.
#[derive(Debug, Default)]
pub struct Vars {
    list: Vec<(String, String)>,
    places: HashMap<String, usize>,
    bytes: usize,
}

impl Vars {
    fn set(&mut self, name: String, value: String) -> Result<(), String> {
        let place = self.places.get(&name).copied();
        let before = place.map_or(0, |at| name.len() + self.list[at].1.len());
        self.bytes = self.bytes + name.len() + value.len() - before;
        if self.bytes > MOST {
            return Err(too_much());
        }
        if let Some(at) = place {
            self.list[at].1 = value;
        } else {
            self.places.insert(name.clone(), self.list.len());
            self.list.push((name, value));
        }
        Ok(())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.places.get(name).map(|at| self.list[*at].1.as_str())
    }

    /// The variables with their values.
    pub fn into_list(self) -> Vec<(String, String)> {
        self.list
    }

    /// Each text with its references replaced.
    ///
    /// # Errors
    /// Together they are longer than a program takes.
    pub fn expand_all(&self, texts: &[String]) -> Result<Vec<String>, String> {
        let mut bytes = 0;
        let one = |text: &String| {
            let text = self.expand(text)?;
            bytes += text.len();
            if bytes > MOST {
                return Err(too_much());
            }
            Ok(text)
        };
        texts.iter().map(one).collect()
    }

    /// Replaces references to these variables, see [`replace`].
    fn expand(&self, text: &str) -> Result<String, String> {
        replace(text, MOST, |name| self.get(name)).ok_or_else(too_much)
    }
}

fn too_much() -> String {
    format!(
        "the variables, the command and the arguments of a container may have {} MiB each",
        MOST >> 20
    )
}

/// The command of a probe, with its references to the container's own `env` replaced by what is
/// written there: a value is taken as it is, and one with `valueFrom` is empty (upstream's
/// `ExpandContainerCommandOnlyStatic`). Variables of `envFrom` and of services are not replaced.
///
/// # Errors
/// The variables or the command are longer than a program takes.
pub fn expand_static(command: &[String], container: &Container) -> Result<Vec<String>, String> {
    let mut own = Vars::default();
    for var in container.env.iter().flatten() {
        own.set(var.name.clone(), var.value.clone().unwrap_or_default())?;
    }
    own.expand_all(command)
}

/// The variables of a container.
///
/// # Errors
/// A reference leads nowhere, or they are longer than a program takes.
pub fn resolve(pod: &Pod, container: &Container, sources: &Sources) -> Result<Vars, String> {
    let mut all = Vars::default();
    for (name, value) in &sources.services {
        all.set(name.clone(), value.clone())?;
    }
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(source) = &from.config_map_ref {
            let map = sources.config_map(&source.name, source.optional)?;
            for (name, value) in map.iter().flat_map(|map| map.data.iter().flatten()) {
                all.set(format!("{prefix}{name}"), value.clone())?;
            }
        }
        if let Some(source) = &from.secret_ref {
            let secret = sources.secret(&source.name, source.optional)?;
            for (name, value) in secret
                .iter()
                .flat_map(|secret| secret.data.iter().flatten())
            {
                all.set(format!("{prefix}{name}"), text(value))?;
            }
        }
    }
    for var in container.env.iter().flatten() {
        let value = match (&var.value, &var.value_from) {
            (_, Some(source)) => referred(pod, container, source, sources)?,
            (value, None) => Some(all.expand(value.as_deref().unwrap_or_default())?),
        };
        if let Some(value) = value {
            all.set(var.name.clone(), value)?;
        }
    }
    Ok(all)
}

/// The value that a reference leads to; `None` for an optional one that leads nowhere.
fn referred(
    pod: &Pod,
    container: &Container,
    source: &EnvVarSource,
    sources: &Sources,
) -> Result<Option<String>, String> {
    if let Some(field) = &source.field_ref {
        return pod_field(pod, &field.field_path, &sources.addresses).map(Some);
    }
    if let Some(field) = &source.resource_field_ref {
        return resource_field(pod, container, field, sources).map(Some);
    }
    if let Some(file) = &source.file_key_ref {
        return env_files::value(&sources.env_files, file);
    }
    let (kind, name, key, optional, value) = if let Some(at) = &source.config_map_key_ref {
        let map = sources.config_map(&at.name, at.optional)?;
        let value = map.and_then(|map| map.data.as_ref()?.get(&at.key).cloned());
        ("ConfigMap", &at.name, &at.key, at.optional, value)
    } else if let Some(at) = &source.secret_key_ref {
        let secret = sources.secret(&at.name, at.optional)?;
        let value = secret.and_then(|secret| secret.data.as_ref()?.get(&at.key).map(text));
        ("Secret", &at.name, &at.key, at.optional, value)
    } else {
        return Err("a variable's valueFrom is of a kind that is not available yet".to_owned());
    };
    if value.is_some() || optional == Some(true) {
        return Ok(value);
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    Err(format!(
        "couldn't find key {key} in {kind} {namespace}/{name}"
    ))
}

impl Sources {
    fn config_map(&self, name: &str, optional: Option<bool>) -> Result<Option<&ConfigMap>, String> {
        let found = self.config_maps.get(name).and_then(Option::as_ref);
        there(found, "configmap", name, optional)
    }

    fn secret(&self, name: &str, optional: Option<bool>) -> Result<Option<&Secret>, String> {
        let found = self.secrets.get(name).and_then(Option::as_ref);
        there(found, "secret", name, optional)
    }
}

fn text(ByteString(value): &ByteString) -> String {
    String::from_utf8_lossy(value).into_owned()
}

fn there<'s, T>(
    found: Option<&'s T>,
    kind: &str,
    name: &str,
    optional: Option<bool>,
) -> Result<Option<&'s T>, String> {
    if found.is_some() || optional == Some(true) {
        Ok(found)
    } else {
        Err(format!("{kind} {name:?} not found"))
    }
}

/// A field of the pod, by the paths of the downward API.
pub(crate) fn pod_field(pod: &Pod, path: &str, addresses: &Addresses) -> Result<String, String> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let text = |value: Option<&String>| value.cloned().unwrap_or_default();
    let all = |addresses: &[IpAddr]| {
        let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        texts.join(",")
    };
    let first = |addresses: &[IpAddr]| all(addresses.get(..1).unwrap_or_default());
    let entry = |map: &Option<BTreeMap<String, String>>, key: &str| {
        text(map.as_ref().and_then(|map| map.get(key)))
    };
    let key = |name: &str| {
        path.strip_prefix(name)?
            .strip_prefix("['")?
            .strip_suffix("']")
    };
    if let Some(key) = key("metadata.labels") {
        return Ok(entry(&meta.labels, key));
    }
    if let Some(key) = key("metadata.annotations") {
        return Ok(entry(&meta.annotations, key));
    }
    Ok(match path {
        "metadata.name" => text(meta.name.as_ref()),
        "metadata.namespace" => text(meta.namespace.as_ref()),
        "metadata.uid" => text(meta.uid.as_ref()),
        "metadata.labels" => listed(meta.labels.as_ref()),
        "metadata.annotations" => listed(meta.annotations.as_ref()),
        "spec.nodeName" => text(spec.and_then(|spec| spec.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|spec| spec.service_account_name.as_ref())),
        "status.hostIP" => first(&addresses.host),
        "status.podIP" => first(&addresses.pod),
        "status.hostIPs" => all(&addresses.host),
        "status.podIPs" => all(&addresses.pod),
        _ => return Err(format!("fieldPath {path:?} is not one of the downward API")),
    })
}

/// A map as the downward API writes it: a line `key="value"` for each entry.
fn listed(map: Option<&BTreeMap<String, String>>) -> String {
    map.into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", quoted(value)))
        .collect::<Vec<_>>()
        .join("\n")
}

/// An amount of a container, divided and rounded up as the downward API does.
pub(crate) fn resource_field(
    pod: &Pod,
    container: &Container,
    field: &ResourceFieldSelector,
    sources: &Sources,
) -> Result<String, String> {
    let unknown = || {
        format!(
            "resource {:?} is not one of the downward API",
            field.resource
        )
    };
    let named = field.container_name.as_deref().unwrap_or(&container.name);
    let spec = pod.spec.as_ref().into_iter().flat_map(|spec| {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
    });
    let of = spec
        .into_iter()
        .find(|other| other.name == named)
        .ok_or_else(|| format!("no container named {named:?}"))?;
    let (which, resource) = field.resource.split_once('.').ok_or_else(unknown)?;
    let whole = || sources.allocatable.get(resource).copied();
    let amount = match which {
        "limits" => qos::limit(of, resource)
            .or_else(|| qos::pod_limit(pod, resource))
            .or_else(whole),
        "requests" => Some(qos::request(of, resource).unwrap_or(Amount::ZERO)),
        _ => return Err(unknown()),
    };
    let amount = amount.ok_or_else(unknown)?;
    let divisor = field
        .divisor
        .as_ref()
        .and_then(|divisor| Amount::try_from(divisor).ok());
    let divisor = divisor
        .filter(|divisor| *divisor > Amount::ZERO)
        .unwrap_or(Amount::units(1));
    // A thousandth is the smallest divisor of the downward API.
    let (amount, divisor) = (
        i128::from(amount.ceil_milli()),
        i128::from(divisor.ceil_milli().max(1)),
    );
    Ok(((amount + divisor - 1) / divisor).to_string())
}

/// The variables of a container, indexed by name for the paths of its mounts (`subPathExpr`): there
/// may be a hundred thousand variables and a thousand mounts.
#[derive(Debug)]
pub struct PathVars<'a>(HashMap<&'a str, &'a str>);

impl<'a> PathVars<'a> {
    /// Indexes the variables that are not empty.
    pub fn of(vars: &'a [(String, String)]) -> Self {
        let set = vars.iter().filter(|(_, value)| !value.is_empty());
        let set = set.map(|(name, value)| (name.as_str(), value.as_str()));
        Self(set.collect())
    }

    /// A `subPathExpr` with its variables replaced.
    ///
    /// # Errors
    /// One of them isn't set, or is empty; or the path is longer than a path can be.
    pub fn sub_path(&self, text: &str) -> Result<String, String> {
        let mut missing = BTreeSet::new();
        let path = replace(text, LONGEST_PATH, |name| {
            let value = self.0.get(name).copied();
            if value.is_none() {
                missing.insert(name.to_owned());
            }
            value
        });
        if missing.is_empty() {
            return path.ok_or_else(|| format!("it is longer than {LONGEST_PATH} bytes"));
        }
        let names: Vec<String> = missing.into_iter().collect();
        Err(format!("missing value for {}", names.join(", ")))
    }
}

/// Replaces `$(NAME)` by the variable's value; `$$` is a plain `$`; what isn't set stays as it is.
/// `None` where the text becomes longer than `most`.
fn replace<'a>(
    text: &str,
    most: usize,
    mut value_of: impl FnMut(&str) -> Option<&'a str>,
) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'))
        {
            if let Some(value) = value_of(name) {
                out.push_str(value);
            } else {
                out.push_str("$(");
                out.push_str(name);
                out.push(')');
            }
            rest = after;
        } else {
            out.push('$');
        }
        if out.len() > most {
            return None;
        }
    }
    let whole = out + rest;
    (whole.len() <= most).then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn resolved(container: Value, sources: &Sources) -> Result<Vec<(String, String)>, String> {
        let mut container = container;
        container["name"] = json!("a");
        let meta = json!({"name": "p", "namespace": "n", "uid": "u", "labels": {"app": "web"}});
        let pod: Pod =
            serde_json::from_value(json!({"metadata": meta, "spec": {"containers": [container]}}))
                .unwrap();
        resolve(&pod, &pod.spec.as_ref().unwrap().containers[0], sources).map(Vars::into_list)
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn later_variables_see_earlier_ones() {
        let env = json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$$(A)-$(C)"}]});
        assert_eq!(
            resolved(env, &Sources::default()).unwrap(),
            pairs(&[("A", "1"), ("B", "1-$(A)-$(C)")])
        );
    }

    #[test]
    fn a_path_below_a_volume_needs_all_of_its_variables() {
        let vars = pairs(&[("A", "x"), ("B", "y"), ("EMPTY", "")]);
        let vars = PathVars::of(&vars);
        assert_eq!(vars.sub_path("$(A)/$(B)/$$(A)").unwrap(), "x/y/$(A)");
        let missing = vars.sub_path("$(C)/$(EMPTY)/$(A)/$(C)").unwrap_err();
        assert_eq!(missing, "missing value for C, EMPTY");
    }

    #[test]
    fn a_path_that_multiplies_a_variable_is_refused_before_it_is_made() {
        let vars = pairs(&[("A", &"x".repeat(1 << 20))]);
        let vars = PathVars::of(&vars);
        let refused = vars.sub_path(&"$(A)".repeat(300_000)).unwrap_err();
        assert_eq!(refused, "it is longer than 4096 bytes");
    }

    #[test]
    fn config_maps_and_secrets_are_followed() {
        let map: ConfigMap = serde_json::from_value(json!({"data": {"K": "v", "L": "w"}})).unwrap();
        let secret: Secret = serde_json::from_value(json!({"data": {"S": "c2VjcmV0"}})).unwrap();
        let sources = Sources {
            config_maps: [("m".to_owned(), Some(map))].into(),
            secrets: [("s".to_owned(), Some(secret)), ("gone".to_owned(), None)].into(),
            ..Sources::default()
        };
        let env = json!({
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "m"}}, {"secretRef": {"name": "gone", "optional": true}}],
            "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "S"}}},
                    {"name": "Y", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "none", "optional": true}}}],
        });
        let expected = pairs(&[("P_K", "v"), ("P_L", "w"), ("X", "secret")]);
        assert_eq!(resolved(env, &sources).unwrap(), expected);
        let gone = json!({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "S"}}}]});
        assert_eq!(
            resolved(gone, &sources).unwrap_err(),
            "secret \"gone\" not found"
        );
        let key = json!({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "T"}}}]});
        assert_eq!(
            resolved(key, &sources).unwrap_err(),
            "couldn't find key T in Secret n/s"
        );
    }

    #[test]
    fn the_pod_knows_itself() {
        let sources = Sources {
            addresses: Addresses {
                host: vec!["192.168.77.11".parse().unwrap()],
                pod: vec!["10.1.0.2".parse().unwrap()],
                ..Addresses::default()
            },
            ..Sources::default()
        };
        let field = |path: &str| {
            let env =
                json!({"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]});
            resolved(env, &sources).map(|vars| vars[0].1.clone())
        };
        assert_eq!(field("metadata.name").unwrap(), "p");
        assert_eq!(field("metadata.labels['app']").unwrap(), "web");
        assert_eq!(field("status.hostIP").unwrap(), "192.168.77.11");
        assert_eq!(field("status.podIP").unwrap(), "10.1.0.2");
        assert!(field("spec.containers").is_err());
    }

    #[test]
    fn amounts_are_divided_and_rounded_up() {
        let sources = Sources {
            allocatable: [("memory", Amount::units(1 << 30))].into(),
            ..Sources::default()
        };
        let amount = |resource: &str, divisor: &str| {
            let reference = json!({"resourceFieldRef": {"resource": resource, "divisor": divisor}});
            let env = json!({"env": [{"name": "X", "valueFrom": reference}], "resources": {"limits": {"cpu": "1500m"}}});
            resolved(env, &sources).unwrap()[0].1.clone()
        };
        assert_eq!(amount("limits.cpu", "1"), "2");
        assert_eq!(amount("limits.cpu", "1m"), "1500");
        assert_eq!(amount("limits.memory", "1Mi"), "1024");
        assert_eq!(amount("requests.memory", "1"), "0");
    }

    #[test]
    fn a_value_that_multiplies_itself_is_refused_before_it_is_made() {
        let chained = |times: usize| {
            let more = |depth: usize| json!({"name": format!("V{depth}"), "value": format!("$(V{})", depth - 1).repeat(times)});
            let first = json!({"name": "V0", "value": "x".repeat(1000)});
            let all: Vec<Value> = std::iter::once(first).chain((1..8).map(more)).collect();
            resolved(json!({ "env": all }), &Sources::default())
        };
        assert!(chained(1).is_ok());
        assert!(chained(100).unwrap_err().contains("2 MiB"));
        let map = json!({"data": {"K": "x".repeat(1 << 20)}});
        let sources = Sources {
            config_maps: [("m".to_owned(), serde_json::from_value(map).unwrap())].into(),
            ..Sources::default()
        };
        let from =
            |number: usize| json!({"prefix": format!("P{number}"), "configMapRef": {"name": "m"}});
        let from = |count: usize| json!({"envFrom": (0..count).map(from).collect::<Vec<_>>()});
        assert!(resolved(from(1), &sources).is_ok());
        assert!(
            resolved(from(2000), &sources)
                .unwrap_err()
                .contains("2 MiB")
        );
    }

    #[test]
    fn arguments_that_multiply_a_value_are_refused() {
        let mut vars = Vars::default();
        vars.set("A".to_owned(), "x".repeat(1 << 20)).unwrap();
        let texts = |text: &str, count: usize| vec![text.to_owned(); count];
        assert!(vars.expand_all(&texts("$(A)", 2)).is_ok());
        assert!(vars.expand_all(&texts("$(A)", 100_000)).is_err());
        assert!(vars.expand_all(&texts(&"$(A)".repeat(100_000), 1)).is_err());
        let again = || "x".repeat((2 << 20) - 1);
        vars.set("A".to_owned(), again()).unwrap();
        vars.set("A".to_owned(), again()).unwrap();
        assert!(vars.set("B".to_owned(), String::new()).is_err());
    }

    #[test]
    fn a_probes_command_has_the_containers_own_values_as_they_are_written() {
        let container: Container = serde_json::from_value(json!({"name": "a",
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}, {"name": "EMPTY"},
                {"name": "OF_FIELD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "envFrom": [{"configMapRef": {"name": "m", "optional": true}}]}))
        .unwrap();
        let command = ["run", "$(A)-$(B)", "$$(A)", "$(EMPTY)$(OF_FIELD)", "$(C)"];
        assert_eq!(
            expand_static(&command.map(str::to_owned), &container).unwrap(),
            ["run", "1-$(A)", "$(A)", "", "$(C)"]
        );
        let long = "x".repeat(MOST + 1);
        assert!(expand_static(&[long], &container).is_err());
    }

    fn with_a() -> Vars {
        let mut vars = Vars::default();
        vars.set("A".to_owned(), "x".to_owned()).unwrap();
        vars
    }

    proptest! {
        #[test]
        fn text_without_dollars_is_left_alone(text in "[^$]{0,80}") {
            prop_assert_eq!(with_a().expand(&text), Ok(text));
        }

        #[test]
        fn no_text_panics(text in "[$()A ]{0,30}") {
            drop(with_a().expand(&text));
        }
    }
}
