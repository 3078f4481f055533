//! `[[rule]]` and `kind = "policy"`: the rules that decide certificate requests.

use crate::check::{Names, named, quoted};
use crate::defaults::{
    CERTIFICATE_TTL, CERTIFICATE_TTL_MAX, CERTIFICATE_TTL_MIN, MIN_SVN, QUEUE_MAX_WAITING,
    QUEUE_WAIT_MAX, QUEUE_WAIT_MIN,
};
use crate::fault::{FaultKind, Position, Sink};
use crate::format::{DnsLabel, FormatError, HumanDuration, one_of, text_type};
use crate::raw::{
    RawPolicyDocument, RawRule, RawRuleCertificate, RawRuleConfig, RawRuleEk, RawRuleEvents,
    RawRuleImages, RawRuleQueue, Texts,
};
use crate::read::{At, Entries};
use crate::suggest::nearest;
use config_kube::policy::POLICY_NAME;
use config_kube::policy::{
    CertificateRule, ConfigRule, EkRule, EventRule, ImageRule, QueueRule, TpmVersion,
};
use config_kube::{CertificatePolicySpec, Decides, PolicyName, Rule, identity};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// A policy document: the content of the `CertificatePolicy` of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyConfig {
    /// Name of the object.
    pub name: DnsLabel,
    /// Its rules. Release keys and EK issuers are names only; the cluster shows in the object's
    /// status whether it knows them.
    pub spec: CertificatePolicySpec,
}

/// The names that rules may refer to.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) release_keys: Names,
    pub(crate) ek_issuers: Names,
}

text_type!(
    /// A signer's name: a domain and a path, such as `pratique.dev/node-client`.
    Signer,
    signer
);

/// Known signers; others are allowed, but a near miss is a fault.
const SIGNERS: [&str; 5] = [
    identity::NODE_CLIENT_SIGNER,
    identity::NODE_SERVING_SIGNER,
    "kubernetes.io/kube-apiserver-client-kubelet",
    "kubernetes.io/kubelet-serving",
    "kubernetes.io/kube-apiserver-client",
];

fn signer(text: &str) -> Result<(), FormatError> {
    let error = || {
        FormatError::new(&format!(
            "a signer's name of the form DOMAIN/NAME, such as `{}`",
            SIGNERS[0]
        ))
    };
    if SIGNERS.contains(&text) {
        return Ok(());
    }
    if let Some(near) = nearest(text, &SIGNERS) {
        return Err(error().hint(format!("did you mean \"{near}\"?")));
    }
    let (domain, name) = text.split_once('/').ok_or_else(error)?;
    let dotted = domain.contains('.') && domain.parse::<crate::format::DnsName>().is_ok();
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._:/".contains(&b);
    if !dotted || name.is_empty() || text.len() > 253 || !name.bytes().all(plain) {
        return Err(error());
    }
    Ok(())
}

/// The role of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A node.
    Worker,
    /// A node that also runs the control plane.
    Master,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Worker => "worker",
            Self::Master => "master",
        })
    }
}

impl FromStr for Role {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        one_of(text, &[("worker", Self::Worker), ("master", Self::Master)])
    }
}

/// Checks a policy document.
pub(crate) fn check_document(raw: RawPolicyDocument, sink: &mut Sink<'_>) -> Option<PolicyConfig> {
    let name = raw.policy.and_then(|policy| policy.value.name);
    let name = name.map_or_else(|| POLICY_NAME.parse().ok(), |name| sink.parse(&name));
    let rules = sink.required(
        raw.rule,
        &Position::default(),
        "rule",
        "at least one `[[rule]]`",
    );
    let spec = check(rules, None, sink);
    Some(PolicyConfig { name: name?, spec })
}

/// Checks rules; with `known`, names must be in it.
pub(crate) fn check(
    raw: Option<At<Vec<At<RawRule>>>>,
    known: Option<&Known>,
    sink: &mut Sink<'_>,
) -> CertificatePolicySpec {
    let mut names = Names::default();
    let entries = raw.map(|list| list.value).unwrap_or_default();
    let rules = entries
        .into_iter()
        .filter_map(|entry| rule(entry, known, &mut names, sink))
        .collect();
    CertificatePolicySpec { rules }
}

fn rule(
    entry: At<RawRule>,
    known: Option<&Known>,
    names: &mut Names,
    sink: &mut Sink<'_>,
) -> Option<Rule> {
    let At { value: raw, place } = entry;
    let name = named(raw.name, &place, names, sink);
    let expected = format!(
        "the signers that it decides for, such as [\"{}\"]",
        SIGNERS[0]
    );
    let signers = sink.required(raw.signers, &place, "signers", &expected);
    if let Some(list) = &signers {
        sink.not_empty(list, "at least one signer");
    }
    let raw_signers = signers;
    let signers: Vec<Signer> = sink.parse_list(raw_signers.as_ref());
    let policy = policy(raw.policy, &place, sink)?;
    let conditions = Conditions {
        ek: raw.ek,
        images: raw.images,
        events: raw.events,
        config: raw.config,
    };
    let verified = policy.decides() == Decides::Verifier;
    if !verified {
        conditions.refuse(sink);
    }
    let checked = conditions.check(&place, known, verified, sink);
    if verified {
        refuse_other_signers(raw_signers.as_ref(), sink);
    }
    let certificate = certificate(raw.certificate, policy, sink);
    let queue = queue(raw.queue, policy, sink);
    let insecure_no_tpm = no_tpm(raw.insecure_no_tpm.as_ref(), policy, &signers, sink);
    let signers: Vec<String> = signers.iter().map(ToString::to_string).collect();
    let node = crate::node_rule::check(raw.node, &signers, policy, sink);
    let mut rule = Rule {
        name: name?.to_string(),
        signers,
        policy,
        certificate,
        queue,
        insecure_no_tpm,
        node,
        ..Rule::default()
    };
    if verified {
        rule.ek = checked.ek;
        rule.images = checked.images;
        rule.events = checked.events;
        rule.config = checked.config;
    }
    Some(rule)
}

fn policy(text: Option<At<String>>, place: &Position, sink: &mut Sink<'_>) -> Option<PolicyName> {
    let words = PolicyName::ALL.map(|policy| (policy.as_str(), policy));
    let text = sink.required(
        text,
        place,
        "policy",
        "what decides, such as \"cloud-verify\"",
    )?;
    sink.parsed(&text, one_of(&text.value, &words))
}

/// The conditions that only `cloud-verify` checks.
#[derive(Debug, Default)]
struct Conditions {
    ek: Option<At<RawRuleEk>>,
    images: Option<At<RawRuleImages>>,
    events: Option<At<RawRuleEvents>>,
    config: Option<At<RawRuleConfig>>,
}

/// The conditions of a rule, checked.
struct CheckedConditions {
    ek: EkRule,
    images: ImageRule,
    events: EventRule,
    config: ConfigRule,
}

impl Conditions {
    /// Reports conditions that a policy without evidence cannot check.
    fn refuse(&self, sink: &mut Sink<'_>) {
        let ek = self.ek.as_ref().map(|at| &at.place);
        let images = self.images.as_ref().map(|at| &at.place);
        let events = self.events.as_ref().map(|at| &at.place);
        let config = self.config.as_ref().map(|at| &at.place);
        for place in [ek, images, events, config].into_iter().flatten() {
            let suggestion =
                Some("set `policy = \"cloud-verify\"` or take the condition out".to_owned());
            sink.suggest(
                FaultKind::Conflict,
                place,
                "a condition",
                "no such condition: only cloud-verify sees evidence",
                suggestion,
            );
        }
    }

    fn check(
        self,
        rule: &Position,
        known: Option<&Known>,
        verified: bool,
        sink: &mut Sink<'_>,
    ) -> CheckedConditions {
        let no_images =
            self.images.is_none() && !sink.has_fault_at(&rule.below("images", 0..0).key);
        if verified && no_images {
            let place = rule.below("images", rule.span.clone());
            sink.fault(
                FaultKind::Missing,
                &place,
                "no `images`",
                "`images = { release_keys = […] }` with the keys to trust",
            );
        }
        let ek = ek(self.ek, known, sink);
        let images = images(self.images, known, sink);
        let events = self.events.map(|at| at.value).unwrap_or_default();
        let events = EventRule {
            secure_boot: events.secure_boot.is_none_or(|flag| flag.value),
            allow_unknown: events.allow_unknown.is_some_and(|flag| flag.value),
        };
        let config = config(self.config, sink);
        CheckedConditions {
            ek,
            images,
            events,
            config,
        }
    }
}

/// `inventory`, or a word that disables the condition and is stored as an empty string.
fn inventory(text: Option<&At<String>>, lifted: &str, sink: &mut Sink<'_>) -> String {
    let words = [("inventory", "inventory"), (lifted, "")];
    let given = text.and_then(|text| sink.parsed(text, one_of(&text.value, &words)));
    given.unwrap_or("inventory").to_owned()
}

fn ek(raw: Option<At<RawRuleEk>>, known: Option<&Known>, sink: &mut Sink<'_>) -> EkRule {
    let At { value: raw, place } = raw.unwrap_or_default();
    let issuers = references(
        raw.issuers.as_ref(),
        known.map(|known| &known.ek_issuers),
        "[[cluster.ek_issuer]]",
        sink,
    );
    let hashes = inventory(raw.hashes.as_ref(), "any", sink);
    let require = raw
        .require
        .as_ref()
        .and_then(|text| sink.parsed(text, one_of(&text.value, &[("all", "all"), ("any", "any")])));
    let no_issuers = raw
        .issuers
        .as_ref()
        .is_none_or(|list| list.value.is_empty());
    if hashes.is_empty() && no_issuers {
        let suggestion = Some("name `issuers`, or keep `hashes = \"inventory\"`".to_owned());
        let found = "a rule that takes every endorsement key, so every TPM in the world";
        sink.suggest(
            FaultKind::Conflict,
            &place,
            found,
            "issuers, or hashes from the inventory",
            suggestion,
        );
    }
    let min_firmware = floors(raw.min_firmware, &issuers, sink);
    EkRule {
        issuers,
        hashes,
        require: require.unwrap_or("all").to_owned(),
        min_firmware,
    }
}

/// Minimum versions of TPM firmware, each for an issuer that the rule names: the issuer's
/// certificate identifies the TPM's manufacturer.
fn floors(
    raw: Option<At<Entries<String>>>,
    issuers: &[String],
    sink: &mut Sink<'_>,
) -> BTreeMap<String, String> {
    let mut floors = BTreeMap::new();
    for (issuer, version) in raw.into_iter().flat_map(|raw| raw.value.0) {
        if !issuers.contains(&issuer.value) {
            let wanted = "one of the rule's `issuers`";
            sink.fault(
                FaultKind::BadValue,
                &issuer.place,
                quoted(&issuer.value),
                wanted,
            );
        }
        if version.value.parse::<TpmVersion>().is_err() {
            let wanted =
                "a version of one to four decimal numbers of at most 65535, as in \"7.85.4555.0\"";
            sink.fault(
                FaultKind::BadValue,
                &version.place,
                quoted(&version.value),
                wanted,
            );
        }
        floors.insert(issuer.value, version.value);
    }
    floors
}

fn images(raw: Option<At<RawRuleImages>>, known: Option<&Known>, sink: &mut Sink<'_>) -> ImageRule {
    let Some(At { value: raw, place }) = raw else {
        return ImageRule::default();
    };
    let expected = "the names of release keys, any of which must have signed";
    let keys = sink.required(raw.release_keys, &place, "release_keys", expected);
    if let Some(list) = &keys {
        sink.not_empty(list, expected);
    }
    let release_keys = references(
        keys.as_ref(),
        known.map(|known| &known.release_keys),
        "[[cluster.release_key]]",
        sink,
    );
    let min_svn = raw
        .min_svn
        .as_ref()
        .and_then(|svn| sink.number(svn, &(0..=i64::MAX)));
    let max_concurrent = raw
        .max_concurrent
        .as_ref()
        .and_then(|count| sink.number(count, &(0..=i64::from(u32::MAX))));
    ImageRule {
        release_keys,
        min_svn: min_svn.unwrap_or(MIN_SVN),
        max_concurrent: max_concurrent.unwrap_or(0),
    }
}

fn config(raw: Option<At<RawRuleConfig>>, sink: &mut Sink<'_>) -> ConfigRule {
    let At { value: raw, .. } = raw.unwrap_or_default();
    let measured = raw.measured.as_ref().is_none_or(|flag| flag.value);
    if !measured
        && let Some(digests) = raw
            .digests
            .as_ref()
            .filter(|text| text.value == "inventory")
    {
        let expected = "`measured = true`: only a measured configuration has a digest";
        sink.fault(
            FaultKind::Conflict,
            &digests.place,
            "digests of a configuration that need not be measured",
            expected,
        );
    }
    let digests = if measured {
        inventory(raw.digests.as_ref(), "any", sink)
    } else {
        String::new()
    };
    let words = [("refuse", ""), ("allow", "allow")];
    let privileged_pods = raw
        .privileged_pods
        .as_ref()
        .and_then(|text| sink.parsed(text, one_of(&text.value, &words)));
    ConfigRule {
        measured,
        digests,
        privileged_pods: privileged_pods.unwrap_or_default().to_owned(),
    }
}

/// Reports signers whose requests contain no evidence.
fn refuse_other_signers(list: Option<&At<Texts>>, sink: &mut Sink<'_>) {
    let machines = [identity::NODE_CLIENT_SIGNER, identity::NODE_SERVING_SIGNER];
    let known = SIGNERS.iter().filter(|signer| !machines.contains(signer));
    let known: Vec<&str> = known.copied().collect();
    for text in list
        .iter()
        .flat_map(|list| &list.value)
        .filter(|text| known.contains(&text.value.as_str()))
    {
        let suggestion =
            Some("name it in a rule of its own with `queue` or `always-reject`".to_owned());
        let expected = "signers of machines: requests of others contain no evidence that cloud-verify could check";
        sink.suggest(
            FaultKind::Conflict,
            &text.place,
            quoted(&text.value),
            expected,
            suggestion,
        );
    }
}

/// Whether machines without a TPM are admitted: only with `queue` or `insecure-always-approve`, as
/// there is nothing to verify.
fn no_tpm(
    flag: Option<&At<bool>>,
    policy: PolicyName,
    signers: &[Signer],
    sink: &mut Sink<'_>,
) -> bool {
    let Some(At { place, .. }) = flag.filter(|flag| flag.value) else {
        return false;
    };
    let machines = [identity::NODE_CLIENT_SIGNER, identity::NODE_SERVING_SIGNER];
    let found = "`insecure_no_tpm = true`";
    if !policy.decides().takes_unproven() {
        let suggestion = "set `policy = \"queue\"`, so that a person decides, or take it out";
        let expected = "none: a machine without a TPM proves nothing, so only `queue` and `insecure-always-approve` \
                        can let it in";
        sink.suggest(
            FaultKind::Conflict,
            place,
            found,
            expected,
            Some(suggestion.to_owned()),
        );
    } else if !signers
        .iter()
        .any(|signer| machines.contains(&signer.to_string().as_str()))
    {
        let expected = "a rule that names the signers of machines";
        sink.suggest(
            FaultKind::Conflict,
            place,
            found,
            expected,
            Some("take it out".to_owned()),
        );
    }
    true
}

/// How requests wait.
fn queue(raw: Option<At<RawRuleQueue>>, policy: PolicyName, sink: &mut Sink<'_>) -> QueueRule {
    let Some(At { value: raw, place }) = raw else {
        return QueueRule::default();
    };
    if policy.decides() != Decides::Person {
        let suggestion = Some("set `policy = \"queue\"` or take it out".to_owned());
        sink.suggest(
            FaultKind::Conflict,
            &place,
            "`queue`",
            "no such key: nothing waits under this policy",
            suggestion,
        );
        return QueueRule::default();
    }
    let mut expires_seconds = 0;
    if let Some(text) = &raw.expires
        && let Some(HumanDuration(given)) = sink.parse(text)
    {
        expires_seconds = given.as_secs();
        if !(QUEUE_WAIT_MIN..=QUEUE_WAIT_MAX).contains(&given) {
            let [least, most] = [QUEUE_WAIT_MIN, QUEUE_WAIT_MAX].map(HumanDuration);
            let expected = format!("a duration from {least} to {most}");
            sink.fault(
                FaultKind::BadValue,
                &text.place,
                quoted(&text.value),
                &expected,
            );
        }
    }
    let max_waiting = raw
        .max_waiting
        .as_ref()
        .and_then(|count| sink.number(count, &(1..=QUEUE_MAX_WAITING)));
    QueueRule {
        expires_seconds,
        max_waiting: max_waiting.unwrap_or(0),
    }
}

fn certificate(
    raw: Option<At<RawRuleCertificate>>,
    policy: PolicyName,
    sink: &mut Sink<'_>,
) -> CertificateRule {
    // For machines outside the inventory, their claims are the only information.
    let verified = policy.decides() == Decides::Verifier;
    let At { value: raw, .. } = raw.unwrap_or_default();
    let mut ttl = CERTIFICATE_TTL;
    if let Some(text) = &raw.ttl
        && let Some(HumanDuration(given)) = sink.parse(text)
    {
        ttl = given;
        if !(CERTIFICATE_TTL_MIN..=CERTIFICATE_TTL_MAX).contains(&given) {
            let [least, most] = [CERTIFICATE_TTL_MIN, CERTIFICATE_TTL_MAX].map(HumanDuration);
            sink.fault(
                FaultKind::BadValue,
                &text.place,
                quoted(&text.value),
                &format!("a duration from {least} to {most}"),
            );
        }
    }
    if let Some(list) = &raw.roles {
        sink.not_empty(list, "\"worker\", \"master\" or both");
    }
    let roles: Vec<Role> = sink.parse_list(raw.roles.as_ref());
    let roles = if raw.roles.is_none() {
        vec![Role::Worker]
    } else {
        roles
    };
    CertificateRule {
        ttl_seconds: ttl.as_secs(),
        sans: if raw.sans.is_none() && !verified {
            String::new()
        } else {
            inventory(raw.sans.as_ref(), "claims", sink)
        },
        roles: roles.iter().map(ToString::to_string).collect(),
    }
}

/// Names that refer to entries of a list of the cluster.
fn references(
    list: Option<&At<Texts>>,
    known: Option<&Names>,
    section: &str,
    sink: &mut Sink<'_>,
) -> Vec<String> {
    let labels: Vec<DnsLabel> = sink.parse_list(list);
    for text in list.iter().flat_map(|list| &list.value) {
        let Some(known) =
            known.filter(|known| !known.has(&text.value) && text.value.parse::<DnsLabel>().is_ok())
        else {
            continue;
        };
        let suggestion = match nearest(&text.value, &known.list()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("add a `{section}` with this name"),
        };
        let expected = format!("the name of a `{section}` of this document");
        sink.suggest(
            FaultKind::Dangling,
            &text.place,
            quoted(&text.value),
            &expected,
            Some(suggestion),
        );
    }
    labels.iter().map(ToString::to_string).collect()
}
