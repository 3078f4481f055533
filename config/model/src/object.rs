//! Checks the rules of a `CertificatePolicy` object. They are written as the TOML document that
//! means the same, and that is parsed: so objects and documents are held to the same rules and get
//! the same faults.

use crate::document::parse;
use config_kube::policy::{
    CertificateRule, ConfigRule, EkRule, EventRule, ImageRule, NodeRule, QueueRule,
};
use config_kube::{CertificatePolicySpec, Decides, Rule, identity};
use std::fmt::Write as _;

/// A fault of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFault {
    /// The path in the object: `spec.rules[0].images.minSvn`.
    pub path: String,
    /// What was found, what was expected, and what to do if there is a likely cause.
    pub text: String,
}

/// All faults of a policy's rules. Whether the cluster knows the keys and issuers that they name is
/// shown in the object's status.
pub fn check_policy(spec: &CertificatePolicySpec) -> Vec<ObjectFault> {
    let Err(faults) = parse(document(spec), "") else {
        return signers_apart(spec).into_iter().collect();
    };
    let lines = faults.list.into_iter().map(|fault| {
        let suggestion = fault
            .suggestion
            .map(|text| format!("; {text}"))
            .unwrap_or_default();
        let text = format!(
            "found {}, expected {}{suggestion}",
            fault.found, fault.expected
        );
        ObjectFault {
            path: path(&fault.key),
            text,
        }
    });
    lines.collect()
}

/// The fault of rules that decide a node's two certificates separately: they are issued together.
fn signers_apart(spec: &CertificatePolicySpec) -> Option<ObjectFault> {
    let deciding = |signer| {
        spec.rules
            .iter()
            .position(|rule| rule.signers.iter().any(|name| name == signer))
    };
    let [client, serving] =
        [identity::NODE_CLIENT_SIGNER, identity::NODE_SERVING_SIGNER].map(deciding);
    let at = client.or(serving).filter(|_| client != serving)?;
    let text = format!(
        "found one of a node's two signers, or two rules that decide one each, expected both in one rule; name `{}` and `{}`",
        identity::NODE_CLIENT_SIGNER,
        identity::NODE_SERVING_SIGNER
    );
    Some(ObjectFault {
        path: format!("spec.rules[{at}].signers"),
        text,
    })
}

/// The document that is equivalent to the object.
fn document(spec: &CertificatePolicySpec) -> String {
    let mut text = String::from("version = 1\nkind = \"policy\"\n");
    for rule in &spec.rules {
        text.push_str("[[rule]]\n");
        for (key, value) in fields(rule) {
            // Writing to a String cannot fail.
            writeln!(text, "{key} = {value}").ok();
        }
    }
    if spec.rules.is_empty() {
        text.push_str("rule = []\n");
    }
    text
}

type Field = (&'static str, String);

fn fields(rule: &Rule) -> Vec<Field> {
    let decides = rule.policy.decides();
    let verified = decides == Decides::Verifier;
    let mut fields = vec![
        ("signers", list(&rule.signers)),
        ("policy", quoted(rule.policy.as_str())),
    ];
    fields.extend(text("name", &rule.name));
    if verified || rule.ek != EkRule::default() {
        fields.push(("ek", ek(&rule.ek)));
    }
    if verified || rule.images != ImageRule::default() {
        fields.push(("images", images(&rule.images)));
    }
    if verified || rule.events != EventRule::default() {
        let EventRule {
            secure_boot,
            allow_unknown,
        } = rule.events;
        let events = [
            ("secure_boot", secure_boot.to_string()),
            ("allow_unknown", allow_unknown.to_string()),
        ];
        fields.push(("events", table(events)));
    }
    if verified || rule.config != ConfigRule::default() {
        fields.push(("config", config(&rule.config)));
    }
    let machines = [identity::NODE_CLIENT_SIGNER, identity::NODE_SERVING_SIGNER];
    let issues =
        decides != Decides::Never && rule.signers.iter().any(|s| machines.contains(&s.as_str()));
    if issues || rule.certificate != CertificateRule::default() {
        fields.push(("certificate", certificate(&rule.certificate, issues)));
    }
    if rule.queue != QueueRule::default() {
        fields.push(("queue", queue(&rule.queue)));
    }
    if rule.insecure_no_tpm {
        fields.push(("insecure_no_tpm", "true".to_owned()));
    }
    if rule.node != NodeRule::default() {
        fields.push(("node", node(&rule.node)));
    }
    fields
}

fn node(rule: &NodeRule) -> String {
    let mut fields = Vec::new();
    if !rule.labels.is_empty() {
        let labels = rule
            .labels
            .iter()
            .map(|(key, value)| format!("{} = {}", quoted(key), quoted(value)));
        fields.push((
            "labels",
            format!("{{ {} }}", labels.collect::<Vec<_>>().join(", ")),
        ));
    }
    if !rule.taints.is_empty() {
        let taints: Vec<String> = rule.taints.iter().map(ToString::to_string).collect();
        fields.push(("taints", list(&taints)));
    }
    fields.extend(
        rule.registers_itself
            .map(|flag| ("registers_itself", flag.to_string())),
    );
    table(fields)
}

fn ek(rule: &EkRule) -> String {
    let mut fields = vec![("hashes", word(&rule.hashes, "any"))];
    if !rule.issuers.is_empty() {
        fields.push(("issuers", list(&rule.issuers)));
    }
    fields.extend(text("require", &rule.require));
    if !rule.min_firmware.is_empty() {
        let floors = rule
            .min_firmware
            .iter()
            .map(|(issuer, version)| format!("{} = {}", quoted(issuer), quoted(version)));
        fields.push((
            "min_firmware",
            format!("{{ {} }}", floors.collect::<Vec<_>>().join(", ")),
        ));
    }
    table(fields)
}

fn images(rule: &ImageRule) -> String {
    let (svn, most) = (rule.min_svn.to_string(), rule.max_concurrent.to_string());
    table([
        ("release_keys", list(&rule.release_keys)),
        ("min_svn", svn),
        ("max_concurrent", most),
    ])
}

fn config(rule: &ConfigRule) -> String {
    let mut fields = vec![("measured", rule.measured.to_string())];
    if rule.measured || !rule.digests.is_empty() {
        fields.push(("digests", word(&rule.digests, "any")));
    }
    fields.extend(text("privileged_pods", &rule.privileged_pods));
    table(fields)
}

fn certificate(rule: &CertificateRule, issues: bool) -> String {
    let mut fields = vec![("sans", word(&rule.sans, "claims"))];
    if rule.ttl_seconds > 0 {
        fields.push(("ttl", quoted(&format!("{}s", rule.ttl_seconds))));
    }
    if issues || !rule.roles.is_empty() {
        fields.push(("roles", list(&rule.roles)));
    }
    table(fields)
}

fn queue(rule: &QueueRule) -> String {
    let mut fields = Vec::new();
    if rule.expires_seconds > 0 {
        fields.push(("expires", quoted(&format!("{}s", rule.expires_seconds))));
    }
    if rule.max_waiting > 0 {
        fields.push(("max_waiting", rule.max_waiting.to_string()));
    }
    table(fields)
}

/// An optional text.
fn text(key: &'static str, value: &str) -> Option<Field> {
    (!value.is_empty()).then(|| (key, quoted(value)))
}

/// A text where an empty value of the object means `nothing`, a word of the document.
fn word(value: &str, nothing: &str) -> String {
    quoted(if value.is_empty() { nothing } else { value })
}

fn table(fields: impl IntoIterator<Item = Field>) -> String {
    let fields: Vec<String> = fields
        .into_iter()
        .map(|(key, value)| format!("{key} = {value}"))
        .collect();
    format!("{{ {} }}", fields.join(", "))
}

fn list(values: &[String]) -> String {
    let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
    format!("[{}]", values.join(", "))
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            // Writing to a String cannot fail.
            c if c.is_control() => write!(out, "\\u{:04X}", u32::from(c)).unwrap_or_default(),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The path in the object for a key of the document: `rule[0].images.min_svn` becomes
/// `spec.rules[0].images.minSvn`.
fn path(key: &str) -> String {
    let renamed = key
        .replacen("rule", "rules", 1)
        .replace("certificate.ttl", "certificate.ttlSeconds");
    let renamed = renamed.replace("queue.expires", "queue.expiresSeconds");
    let mut out = String::from("spec.");
    // In brackets is a number or the admin's own key, which stays as it is.
    let (mut after_underscore, mut in_brackets) = (false, false);
    for c in renamed.chars() {
        match c {
            '[' | ']' => {
                in_brackets = c == '[';
                out.push(c);
            }
            c if in_brackets => out.push(c),
            '_' => after_underscore = true,
            c if after_underscore => {
                out.push(c.to_ascii_uppercase());
                after_underscore = false;
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Document;
    use config_kube::PolicyName;

    fn policy(toml: &str) -> CertificatePolicySpec {
        match parse(toml, "policy.toml") {
            Ok(Document::Policy(policy)) => policy.spec,
            other => unreachable!("not a policy: {other:?}"),
        }
    }

    const EXAMPLE: &str = include_str!("../examples/policy.toml");

    /// A valid document gives an object without faults, whose document is the same again.
    #[test]
    fn a_valid_document_is_a_valid_object() {
        let spec = policy(EXAMPLE);
        assert!(spec.rules.len() > 1);
        assert_eq!(check_policy(&spec), []);
        assert_eq!(policy(&document(&spec)), spec);
    }

    #[test]
    fn every_fault_has_its_path_in_the_object() {
        let mut spec = policy(EXAMPLE);
        "Bad \"name\"\n".clone_into(&mut spec.rules[0].name);
        spec.rules[0].images.release_keys.clear();
        spec.rules[0].certificate.ttl_seconds = 1;
        spec.rules[0].ek.require = "most".to_owned();
        spec.rules[1].signers = vec!["kubernetes.io/kubelet-servin".to_owned()];
        let faults = check_policy(&spec);
        let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
        for path in [
            "spec.rules[0].name",
            "spec.rules[0].images.releaseKeys",
            "spec.rules[0].certificate.ttlSeconds",
            "spec.rules[0].ek.require",
            "spec.rules[1].signers[0]",
        ] {
            assert!(paths.contains(&path), "{path} is not in {paths:?}");
        }
        let near = faults
            .iter()
            .find(|fault| fault.path == "spec.rules[1].signers[0]")
            .map(|fault| fault.text.as_str());
        assert!(
            near.is_some_and(
                |text| text.contains("did you mean \"kubernetes.io/kubelet-serving\"?")
            ),
            "{near:?}"
        );
    }

    /// In brackets is the admin's own key, which is reported unchanged.
    #[test]
    fn a_faulty_label_is_reported_under_its_own_key() {
        let mut spec = policy(EXAMPLE);
        spec.rules[0]
            .node
            .labels
            .insert("my_label.kubernetes.io/of_rule".to_owned(), "x".to_owned());
        spec.rules[0].node.taints[0].effect = "Sometimes".to_owned();
        let paths: Vec<String> = check_policy(&spec)
            .into_iter()
            .map(|fault| fault.path)
            .collect();
        assert_eq!(
            paths,
            [
                "spec.rules[0].node.labels[my_label.kubernetes.io/of_rule]",
                "spec.rules[0].node.taints[0]"
            ]
        );
    }

    #[test]
    fn insecure_no_tpm_needs_a_policy_that_does_not_verify() {
        let mut spec = policy(EXAMPLE);
        spec.rules[0].insecure_no_tpm = true;
        let faults = check_policy(&spec);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0].path, "spec.rules[0].insecureNoTpm");
        assert!(faults[0].text.contains("queue"), "{faults:?}");
        let rule = "version = 1\nkind = \"policy\"\n[[rule]]\nname = \"edge\"\ninsecure_no_tpm = true\n\
                    signers = [\"pratique.dev/node-client\", \"pratique.dev/node-serving\"]\n";
        for word in ["queue", "insecure-always-approve"] {
            let spec = policy(&format!("{rule}policy = \"{word}\"\n"));
            assert!(spec.rules[0].insecure_no_tpm);
            assert_eq!(check_policy(&spec), []);
            assert_eq!(policy(&document(&spec)), spec);
        }
    }

    #[test]
    fn conditions_on_evidence_need_a_policy_and_signers_with_evidence() {
        let mut spec = policy(EXAMPLE);
        spec.rules[0].policy = PolicyName::Queue;
        let paths: Vec<String> = check_policy(&spec)
            .into_iter()
            .map(|fault| fault.path)
            .collect();
        assert!(
            paths.contains(&"spec.rules[0].images".to_owned()),
            "{paths:?}"
        );
        let mut spec = policy(EXAMPLE);
        spec.rules[0]
            .signers
            .push("kubernetes.io/kubelet-serving".to_owned());
        assert_eq!(check_policy(&spec).len(), 1, "{:?}", check_policy(&spec));
    }
}
