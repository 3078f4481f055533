//! `PodSecurity`: the levels of the Pod Security Standards, as a namespace's labels demand them.
//!
//! A pod that violates the level of `enforce` is refused; one that violates that of `warn` causes a
//! warning, as do workloads that would create such pods. The level of `audit` has no effect, as
//! there is no audit log; setting it causes a warning that says so.

mod baseline;
mod labels;
mod restricted;
mod view;

use crate::entry_cache::EntryCache;
use crate::plugin::{Admitted, Operation, Plugin, Request, name_of, read};
use labels::{Level, Policies, Policy};
use master_client::BoxFuture;
use master_schema::error::{ApiError, Reason};
use master_schema::object::{meta_text, metadata};
use master_schema::validate::{Fields, object};
use master_store::Entry;
use serde_json::Value;
use std::collections::HashMap;
use view::Pod;

/// Pods that are checked when a namespace gets a stricter level.
const MAX_CHECKED: usize = 3000;
/// Warnings about pods when a namespace gets a stricter level.
const MAX_WARNINGS: usize = 10;

/// The plugin.
#[derive(Debug, Default)]
pub(crate) struct PodSecurity {
    /// The policies of a namespace; `None` if it can't be read.
    policies: EntryCache<Option<Policies>>,
}

/// Workloads, and the path of their pod template.
const TEMPLATES: &[(&str, &str, &str)] = &[
    ("", "podtemplates", "/template"),
    ("", "replicationcontrollers", "/spec/template"),
    ("apps", "daemonsets", "/spec/template"),
    ("apps", "deployments", "/spec/template"),
    ("apps", "replicasets", "/spec/template"),
    ("apps", "statefulsets", "/spec/template"),
    ("batch", "cronjobs", "/spec/jobTemplate/spec/template"),
    ("batch", "jobs", "/spec/template"),
];

fn template(request: &Request<'_>) -> Option<&'static str> {
    let found = TEMPLATES
        .iter()
        .find(|(group, plural, _)| request.writes(group, plural));
    found.map(|(_, _, pointer)| *pointer)
}

fn is_pod(request: &Request<'_>) -> bool {
    let spec = request
        .subresource
        .is_none_or(|sub| matches!(sub.name(), "ephemeralcontainers" | "resize"));
    request.is("", "pods") && spec
}

impl Plugin for PodSecurity {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete
            && (is_pod(request) || request.writes("", "namespaces") || template(request).is_some())
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        object: &'a Fields,
        admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            if request.writes("", "namespaces") {
                return namespace(request, object, admitted).await;
            }
            let policies = self
                .policies(request, meta_text(object, "namespace"))
                .await?;
            if policies.is_privileged() {
                return Ok(());
            }
            if let Some(pointer) = template(request) {
                let found = at(object, pointer);
                let same = request.old.is_some_and(|old| at(old, pointer) == found);
                if let Some(found) = found.filter(|_| !same)
                    && let Some(text) = violation(&policies.warn, found)
                {
                    admitted.warnings.push(format!(
                        "would violate PodSecurity {:?}: {text}",
                        policies.warn.name()
                    ));
                }
                return Ok(());
            }
            if request.old.is_some_and(|old| !significant(object, old)) {
                return Ok(());
            }
            if let Some(text) = violation(&policies.enforce, object) {
                let text = format!("violates PodSecurity {:?}: {text}", policies.enforce.name());
                return Err(request.forbidden(name_of(object), &text));
            }
            // The same violation causes one warning only.
            if policies.warn != policies.enforce
                && let Some(text) = violation(&policies.warn, object)
            {
                admitted.warnings.push(format!(
                    "would violate PodSecurity {:?}: {text}",
                    policies.warn.name()
                ));
            }
            Ok(())
        })
    }
}

fn at<'a>(object: &'a Fields, pointer: &str) -> Option<&'a Fields> {
    let (first, rest) = pointer
        .trim_start_matches('/')
        .split_once('/')
        .unwrap_or((pointer.trim_start_matches('/'), ""));
    let value = object.get(first)?;
    if rest.is_empty() {
        value.as_object()
    } else {
        value.pointer(&format!("/{rest}"))?.as_object()
    }
}

impl PodSecurity {
    /// The policies of a namespace. An invalid label counts as the strictest level (upstream).
    async fn policies(&self, request: &Request<'_>, namespace: &str) -> Result<Policies, ApiError> {
        let found = request.get(&format!("namespaces/{namespace}")).await?;
        let found = found.and_then(|entry| self.policies.of(&entry, policies_of));
        found.ok_or_else(|| {
            ApiError::new(
                Reason::NotFound,
                format!("namespaces {namespace:?} not found"),
            )
            .about("", "namespaces", namespace)
        })
    }
}

/// What a stored namespace's labels demand.
fn policies_of(namespace: &Entry) -> Option<Policies> {
    let namespace = read(namespace)?;
    Some(Policies::of(object(metadata(&namespace), "labels")).0)
}

/// How a pod (or its template) violates a policy, in upstream's words; `None` if it does not.
fn violation(policy: &Policy, pod: &Fields) -> Option<String> {
    let pod = Pod::of(pod);
    let mut found: Vec<String> = Vec::new();
    if policy.level >= Level::Baseline {
        found.extend(baseline::faults(&pod, policy));
    }
    if policy.level == Level::Restricted {
        found.extend(restricted::faults(&pod, policy));
    }
    (!found.is_empty()).then(|| found.join(", "))
}

/// Whether an update changes fields that the levels check. Images may change: no level checks them.
fn significant(new: &Fields, old: &Fields) -> bool {
    let spec = |fields: &Fields| {
        let mut spec = object(fields, "spec").cloned().unwrap_or_default();
        for key in [
            "activeDeadlineSeconds",
            "tolerations",
            "schedulingGates",
            "terminationGracePeriodSeconds",
        ] {
            spec.remove(key);
        }
        for list in ["containers", "initContainers", "ephemeralContainers"] {
            for container in spec
                .get_mut(list)
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                if let Some(container) = container.as_object_mut() {
                    container.remove("image");
                    container.remove("resources");
                }
            }
        }
        spec
    };
    let annotations = |fields| {
        object(metadata(fields), "annotations").map(|all| {
            all.iter()
                .filter(|(key, _)| key.starts_with(view::APP_ARMOR))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect::<Fields>()
        })
    };
    spec(new) != spec(old)
        || annotations(new).unwrap_or_default() != annotations(old).unwrap_or_default()
}

/// Whether a namespace's pods may violate its new policy although they fitted the one before. Other
/// versions of the standard have other checks: to compare levels suffices only within a version
/// (upstream).
fn demands_more(new: Policy, before: Policy) -> bool {
    new.level > Level::Privileged && (new.minor != before.minor || new.level > before.level)
}

/// Refuses invalid labels of a namespace, and warns about existing pods that violate a stricter
/// policy.
async fn namespace(
    request: &Request<'_>,
    new: &Fields,
    admitted: &mut Admitted,
) -> Result<(), ApiError> {
    let name = meta_text(new, "name");
    let (policies, faults) = Policies::of(object(metadata(new), "labels"));
    let audited = request
        .old
        .map(|old| Policies::of(object(metadata(old), "labels")).0.audit);
    if policies.audit.level > Level::Privileged && audited != Some(policies.audit) {
        let text =
            "the PodSecurity level of \"audit\" has no effect: this version keeps no audit log";
        admitted.warnings.push(text.to_owned());
    }
    let Some(old) = request.old else {
        return faults.into_error("", "Namespace", name);
    };
    let (before, known) = Policies::of(object(metadata(old), "labels"));
    if !faults.is_empty() {
        // A change of something else must not fail because of labels that were invalid before.
        return if known.is_empty() {
            faults.into_error("", "Namespace", name)
        } else {
            Ok(())
        };
    }
    if !demands_more(policies.enforce, before.enforce) {
        return Ok(());
    }
    let mut pods = request.stored("pods", name).await?;
    pods.truncate(MAX_CHECKED);
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (_, pod) in &pods {
        let Some(text) = violation(&policies.enforce, pod) else {
            continue;
        };
        let title = meta_text(pod, "name").to_owned();
        if let Some((_, names)) = places.get(&text).and_then(|place| found.get_mut(*place)) {
            names.push(title);
        } else {
            places.insert(text.clone(), found.len());
            found.push((text, vec![title]));
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    admitted.warnings.push(format!(
        "existing pods in namespace {name:?} violate the new PodSecurity enforce level {:?}",
        policies.enforce.name()
    ));
    let lines = found.into_iter().map(|(text, names)| {
        let first = names.first().cloned().unwrap_or_default();
        match names.len() {
            1 => format!("{first}: {text}"),
            2 => format!("{first} (and 1 other pod): {text}"),
            more => format!("{first} (and {} other pods): {text}", more - 1),
        }
    });
    admitted.warnings.extend(lines.take(MAX_WARNINGS));
    Ok(())
}

/// The names of the containers that a predicate selects.
fn those<'a>(pod: &Pod<'a>, chosen: impl Fn(&view::Container<'a>) -> bool) -> Vec<&'a str> {
    pod.containers
        .iter()
        .filter(|container| chosen(container))
        .map(|container| container.name)
        .collect()
}

/// `one` or `many`.
fn plural<'a>(count: usize, one: &'a str, many: &'a str) -> &'a str {
    if count == 1 { one } else { many }
}

/// `container "a"`, `containers "a", "b"`.
fn containers(names: &[&str]) -> String {
    format!(
        "{} {}",
        plural(names.len(), "container", "containers"),
        quoted(names)
    )
}

/// `"a", "b"`.
fn quoted<S: AsRef<str>>(texts: &[S]) -> String {
    texts
        .iter()
        .map(|text| format!("{:?}", text.as_ref()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Sorted, without duplicates.
fn sorted<S: Ord>(mut list: Vec<S>) -> Vec<S> {
    list.sort();
    list.dedup();
    list
}

/// What sets something forbidden: the pod, containers, or both; `None` if nothing does.
fn setters(pod: bool, bad: &[&str]) -> Option<String> {
    let pod = pod.then(|| "pod".to_owned());
    let bad = (!bad.is_empty()).then(|| containers(bad));
    let all: Vec<String> = pod.into_iter().chain(bad).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

#[cfg(test)]
#[allow(
    clippy::needless_pass_by_value,
    reason = "literals are passed, and read better so"
)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(level: Level, pod: Value) -> Option<String> {
        violation(&Policy { level, minor: None }, pod.as_object().unwrap())
    }

    fn pod(spec: Value) -> Value {
        json!({"metadata": {}, "spec": spec})
    }

    /// A container without violations.
    fn good() -> Value {
        json!({"name": "a", "securityContext": {"allowPrivilegeEscalation": false, "runAsNonRoot": true,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}})
    }

    #[test]
    fn a_plain_pod_is_baseline_and_not_restricted() {
        let plain = pod(json!({"containers": [{"name": "a"}]}));
        assert_eq!(found(Level::Baseline, plain.clone()), None);
        assert_eq!(
            found(Level::Restricted, plain).unwrap(),
            "allowPrivilegeEscalation != false (container \"a\" must set securityContext.allowPrivilegeEscalation=false), \
             unrestricted capabilities (container \"a\" must set securityContext.capabilities.drop=[\"ALL\"]), \
             runAsNonRoot != true (pod or container \"a\" must set securityContext.runAsNonRoot=true), \
             seccompProfile (pod or container \"a\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \
             \"Localhost\")"
        );
        assert_eq!(
            found(Level::Restricted, pod(json!({"containers": [good()]}))),
            None
        );
        assert_eq!(
            found(Level::Privileged, pod(json!({"hostNetwork": true}))),
            None
        );
    }

    #[test]
    fn each_baseline_fault_is_reported_in_upstreams_words() {
        let container = |more: Value| {
            let mut container = json!({"name": "a"});
            container
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().cloned().unwrap());
            json!({"containers": [container]})
        };
        let context = |more: Value| container(json!({"securityContext": more}));
        let cases = [
            (
                json!({"hostNetwork": true, "hostPID": true, "hostIPC": true}),
                "host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)",
            ),
            (
                json!({"volumes": [{"name": "v", "hostPath": {}}, {"name": "w", "hostPath": {}}]}),
                "hostPath volumes (volumes \"v\", \"w\")",
            ),
            (
                container(json!({"ports": [{"hostPort": 80}, {"hostPort": 443}]})),
                "hostPort (container \"a\" uses hostPorts 443, 80)",
            ),
            (
                container(json!({"livenessProbe": {"httpGet": {"host": "x"}}})),
                "probe or lifecycle host (container \"a\" uses probe or lifecycle host \"x\")",
            ),
            (
                context(json!({"privileged": true})),
                "privileged (container \"a\" must not set securityContext.privileged=true)",
            ),
            (
                context(json!({"capabilities": {"add": ["NET_ADMIN", "CHOWN"]}})),
                "non-default capabilities (container \"a\" must not include \"NET_ADMIN\" in securityContext.capabilities.add)",
            ),
            (
                context(json!({"procMount": "Unmasked"})),
                "procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")",
            ),
            (
                context(json!({"appArmorProfile": {"type": "Unconfined"}})),
                "forbidden AppArmor profile (container \"a\" must not set AppArmor profile type to \"Unconfined\")",
            ),
            (
                context(json!({"seLinuxOptions": {"type": "spc_t", "user": "u"}})),
                "seLinuxOptions (container \"a\" set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set)",
            ),
            (
                json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
                "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
            ),
            (
                json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax"}, {"name": "net.ipv4.tcp_syncookies"}]}}),
                "forbidden sysctls (kernel.msgmax)",
            ),
            (
                context(json!({"windowsOptions": {"hostProcess": true}})),
                "hostProcess (container \"a\" must not set securityContext.windowsOptions.hostProcess=true)",
            ),
        ];
        for (spec, text) in cases {
            assert_eq!(
                found(Level::Baseline, pod(spec.clone())).as_deref(),
                Some(text),
                "{spec}"
            );
        }
    }

    #[test]
    fn each_restricted_fault_is_reported_in_upstreams_words() {
        let mut root = good();
        root["securityContext"]["runAsUser"] = 0.into();
        let mut adds = good();
        adds["securityContext"]["capabilities"]["add"] = json!(["CHOWN", "NET_BIND_SERVICE"]);
        let cases = [
            (
                json!({"containers": [root]}),
                "runAsUser=0 (container \"a\" must not set runAsUser=0)",
            ),
            (
                json!({"containers": [adds]}),
                "unrestricted capabilities (container \"a\" must not include \"CHOWN\" in securityContext.capabilities.add)",
            ),
            (
                json!({"containers": [good()], "volumes": [{"name": "v", "nfs": {}}]}),
                "restricted volume types (volume \"v\" uses restricted volume type \"nfs\")",
            ),
            (
                json!({"containers": [good()], "volumes": [{"name": "v", "hostPath": {}}]}),
                "restricted volume types (volume \"v\" uses restricted volume type \"hostPath\")",
            ),
            (
                json!({"containers": [good()], "securityContext": {"runAsNonRoot": false}}),
                "runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false)",
            ),
        ];
        for (spec, text) in cases {
            assert_eq!(
                found(Level::Restricted, pod(spec.clone())).as_deref(),
                Some(text),
                "{spec}"
            );
        }
    }

    #[test]
    fn an_older_version_of_the_standard_has_fewer_checks() {
        let probe = pod(
            json!({"containers": [{"name": "a", "livenessProbe": {"tcpSocket": {"host": "x"}}}]}),
        );
        let old = Policy {
            level: Level::Baseline,
            minor: Some(33),
        };
        assert_eq!(violation(&old, probe.as_object().unwrap()), None);
        assert_eq!(old.name(), "baseline:v1.33");
    }

    #[test]
    fn pods_are_checked_when_a_namespace_gets_a_stricter_level_or_another_version() {
        use Level::{Baseline, Privileged, Restricted};
        let policy = |level, minor| Policy { level, minor };
        for (new, before, checks) in [
            (policy(Baseline, None), policy(Baseline, None), false),
            (policy(Baseline, None), policy(Restricted, None), false),
            (policy(Restricted, None), policy(Baseline, None), true),
            (policy(Baseline, None), policy(Baseline, Some(33)), true),
            (policy(Baseline, None), policy(Restricted, Some(33)), true),
            (policy(Privileged, None), policy(Baseline, Some(33)), false),
        ] {
            assert_eq!(demands_more(new, before), checks, "{new:?} {before:?}");
        }
    }

    #[test]
    fn new_images_cause_no_new_check() {
        let with = |image: &str, privileged: bool| {
            pod(
                json!({"containers": [{"name": "a", "image": image, "securityContext": {"privileged": privileged}}]}),
            )
        };
        let differs =
            |a: &Value, b: &Value| significant(a.as_object().unwrap(), b.as_object().unwrap());
        assert!(!differs(&with("x", false), &with("y", false)));
        assert!(differs(&with("x", false), &with("x", true)));
    }
}
