//! `node` of a rule: labels and taints of its machines' Nodes. A rule can set those that a kubelet
//! may set itself and the admin's own, but none that Kubernetes or the master sets.

use crate::defaults::MAX_NODE_TAINTS;
use crate::fault::{FaultKind, Sink};
use crate::format::{DnsName, FormatError, one_of, text_type};
use crate::raw::{RawRuleNode, Texts};
use crate::read::At;
use config_kube::policy::{NodeRule, NodeTaint};
use config_kube::taints::{NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE};
use config_kube::{Decides, PolicyName, identity};
use std::fmt;
use std::str::FromStr;

/// Signers for nodes that are machines of this project.
const MACHINES: [&str; 2] = [identity::NODE_CLIENT_SIGNER, identity::NODE_SERVING_SIGNER];
/// The signer for other kubelets.
const KUBELETS: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// Characters of a label's or taint's name after its prefix, and of a value (upstream's limits).
const MAX_NAME: usize = 63;

text_type!(
    /// The key of a label that a rule may give.
    LabelKey,
    label_key
);
text_type!(
    /// The key of a taint that a rule may give.
    TaintKey,
    taint_key
);
text_type!(
    /// The value of a label or taint.
    LabelValue,
    label_value
);

/// Letters and digits, with `-`, `_` and `.` inside.
fn word(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let ends = [text.bytes().next(), text.bytes().last()];
    text.len() <= MAX_NAME
        && ends
            .iter()
            .all(|end| end.is_some_and(|b| b.is_ascii_alphanumeric()))
        && text.bytes().all(inner)
}

/// A key's prefix; empty if it has none.
fn prefix<'a>(text: &'a str, what: &str) -> Result<&'a str, FormatError> {
    let error = || {
        FormatError::new(&format!(
            "the key of a {what}: at most {MAX_NAME} letters, digits, `-`, `_` and `.`, or a DNS name, `/` and that"
        ))
    };
    let (prefix, name) = text
        .rsplit_once('/')
        .map_or(("", text), |(prefix, name)| (prefix, name));
    let named = prefix.is_empty() != text.contains('/')
        && (prefix.is_empty() || prefix.parse::<DnsName>().is_ok());
    if named && word(name) {
        Ok(prefix)
    } else {
        Err(error())
    }
}

/// Whether a prefix belongs to a domain.
fn of(prefix: &str, domain: &str) -> bool {
    prefix == domain
        || prefix
            .strip_suffix(domain)
            .is_some_and(|rest| rest.ends_with('.'))
}

/// Whether Kubernetes reserves the domain.
fn upstreams(prefix: &str) -> bool {
    of(prefix, "kubernetes.io") || of(prefix, "k8s.io")
}

fn label_key(text: &str) -> Result<(), FormatError> {
    let prefix = prefix(text, "label")?;
    let error = |expected: &str, hint: &str| Err(FormatError::new(expected).hint(hint));
    if of(prefix, identity::GROUP) || text == "kubernetes.io/hostname" {
        return error(
            "a label that is not the master's own",
            "take it out: the master sets it by what was proved",
        );
    }
    let role = text.strip_prefix(identity::NODE_ROLE_LABEL_PREFIX);
    if let Some(role) = role.filter(|role| ["worker", "control-plane", "master"].contains(role)) {
        return error(
            "another role than those that machines prove",
            &format!("the Machine's role says `{role}`"),
        );
    }
    let given = [
        "kubelet.kubernetes.io",
        "node.kubernetes.io",
        "node-restriction.kubernetes.io",
    ];
    if !upstreams(prefix)
        || role.is_some()
        || identity::KUBELET_LABELS.contains(&text)
        || given.iter().any(|domain| of(prefix, domain))
    {
        return Ok(());
    }
    error(
        "a label outside kubernetes.io, or one of those that it has for nodes",
        "`node-restriction.kubernetes.io/NAME` is for labels that no node can give itself",
    )
}

fn taint_key(text: &str) -> Result<(), FormatError> {
    let prefix = prefix(text, "taint")?;
    if of(prefix, identity::GROUP) {
        return Err(FormatError::new("a taint that is not the master's own")
            .hint("the Machine's state gives it"));
    }
    if !upstreams(prefix) || text.starts_with(identity::NODE_ROLE_LABEL_PREFIX) {
        return Ok(());
    }
    let error = FormatError::new("a taint outside kubernetes.io, or one of a node's role");
    Err(error.hint("taints of kubernetes.io come and go with a node's conditions"))
}

fn label_value(text: &str) -> Result<(), FormatError> {
    if text.is_empty() || word(text) {
        return Ok(());
    }
    let expected = format!(
        "at most {MAX_NAME} letters, digits, `-`, `_` and `.`, the first and last no sign; or nothing"
    );
    Err(FormatError::new(&expected))
}

/// A taint in the notation of kubelet and kubectl: `key=value:Effect` or `key:Effect`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taint(NodeTaint);

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Taint {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let form =
            || FormatError::new("a taint of the form \"KEY=VALUE:EFFECT\" or \"KEY:EFFECT\"");
        let (left, effect) = text.rsplit_once(':').ok_or_else(form)?;
        let (key, value) = left.split_once('=').unwrap_or((left, ""));
        taint_key(key)?;
        label_value(value)?;
        let effects = [NO_SCHEDULE, PREFER_NO_SCHEDULE, NO_EXECUTE].map(|effect| (effect, effect));
        let effect = one_of(effect, &effects)?.to_owned();
        Ok(Self(NodeTaint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect,
        }))
    }
}

/// Checks a rule's settings of Nodes; `signers` and `policy` are the rule's.
pub(crate) fn check(
    raw: Option<At<RawRuleNode>>,
    signers: &[String],
    policy: PolicyName,
    sink: &mut Sink<'_>,
) -> NodeRule {
    let Some(At { value: raw, place }) = raw else {
        return NodeRule::default();
    };
    let decides = |signer: &str| {
        policy.decides() != Decides::Never && signers.iter().any(|name| name == signer)
    };
    let machines = MACHINES.iter().any(|signer| decides(signer));
    let marks = [
        raw.labels.as_ref().map(|at| &at.place),
        raw.taints.as_ref().map(|at| &at.place),
    ];
    if !machines {
        for place in marks.into_iter().flatten() {
            let expected =
                "no `node` table: this rule admits no machines, whose Nodes the master could mark";
            sink.fault(FaultKind::Conflict, place, "marks of Nodes", expected);
        }
    }
    if !machines
        && !decides(KUBELETS)
        && let Some(flag) = &raw.registers_itself
    {
        let expected = "no such key: no machine becomes a node by this rule";
        sink.fault(
            FaultKind::Conflict,
            &flag.place,
            format!("`{}`", flag.value),
            expected,
        );
    }
    if raw.labels.is_none() && raw.taints.is_none() && raw.registers_itself.is_none() {
        sink.fault(
            FaultKind::BadValue,
            &place,
            "nothing",
            "`labels`, `taints` or `registers_itself`",
        );
    }
    NodeRule {
        labels: raw
            .labels
            .iter()
            .flat_map(|at| &at.value.0)
            .filter_map(|(key, value)| label(key, value, sink))
            .collect(),
        taints: taints(raw.taints.as_ref(), sink),
        registers_itself: raw.registers_itself.map(|flag| flag.value),
    }
}

fn label(key: &At<String>, value: &At<String>, sink: &mut Sink<'_>) -> Option<(String, String)> {
    let key = sink.parse::<LabelKey>(key);
    let value = sink.parse::<LabelValue>(value);
    Some((key?.to_string(), value?.to_string()))
}

fn taints(list: Option<&At<Texts>>, sink: &mut Sink<'_>) -> Vec<NodeTaint> {
    let mut taints: Vec<NodeTaint> = Vec::new();
    if let Some(list) = list.filter(|list| list.value.len() > MAX_NODE_TAINTS) {
        let found = format!("{} taints", list.value.len());
        sink.fault(
            FaultKind::BadValue,
            &list.place,
            found,
            &format!("at most {MAX_NODE_TAINTS}"),
        );
    }
    for text in list.iter().flat_map(|list| &list.value) {
        let Some(Taint(taint)) = sink.parse::<Taint>(text) else {
            continue;
        };
        if taints
            .iter()
            .any(|other| other.key == taint.key && other.effect == taint.effect)
        {
            let found = format!(
                "{} with the effect {} a second time",
                taint.key, taint.effect
            );
            sink.fault(
                FaultKind::Duplicate,
                &text.place,
                found,
                "each key once for an effect",
            );
            continue;
        }
        taints.push(taint);
    }
    taints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_the_system_sets_are_refused() {
        for good in [
            "pool",
            "example.com/rack",
            "topology.kubernetes.io/zone",
            "node.kubernetes.io/instance-type",
            "node-restriction.kubernetes.io/tenant",
            "node-role.kubernetes.io/gpu",
            "kubelet.kubernetes.io/x",
        ] {
            assert!(good.parse::<LabelKey>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "a b",
            "/x",
            "x/",
            "-x",
            "Example.com/x",
            "a/b/c",
            "kubernetes.io/hostname",
            "kubernetes.io/x",
            "evil.kubernetes.io/x",
            "k8s.io/x",
            "pratique.dev/image",
            "x.pratique.dev/y",
            "node-role.kubernetes.io/control-plane",
            "node-role.kubernetes.io/worker",
            &"x".repeat(64),
        ] {
            assert!(bad.parse::<LabelKey>().is_err(), "{bad}");
        }
    }

    #[test]
    fn taints_are_read_as_kubectl_writes_them() {
        let taint = |text: &str| {
            text.parse::<Taint>()
                .map(|Taint(taint)| (taint.key, taint.value, taint.effect))
        };
        let words = |key: &str, value: &str, effect: &str| {
            Ok((key.to_owned(), value.to_owned(), effect.to_owned()))
        };
        assert_eq!(
            taint("dedicated=batch:NoSchedule"),
            words("dedicated", "batch", "NoSchedule")
        );
        assert_eq!(
            taint("example.com/gpu:NoExecute"),
            words("example.com/gpu", "", "NoExecute")
        );
        assert_eq!(
            taint("node-role.kubernetes.io/control-plane:PreferNoSchedule"),
            words(
                "node-role.kubernetes.io/control-plane",
                "",
                "PreferNoSchedule"
            )
        );
        for bad in [
            "dedicated",
            "a:Nope",
            ":NoSchedule",
            "a=b c:NoSchedule",
            "pratique.dev/untrusted:NoSchedule",
            "node.kubernetes.io/not-ready:NoExecute",
        ] {
            assert!(taint(bad).is_err(), "{bad}");
        }
        let near = "a:NoShedule".parse::<Taint>().unwrap_err().suggestion;
        assert_eq!(near.as_deref(), Some("did you mean \"NoSchedule\"?"));
    }
}
