//! Compares sets of rules, to prevent privilege escalation: a writer can only grant rights that it
//! has.

use crate::rule::{Rule, Who};
use std::collections::{BTreeMap, BTreeSet};

/// Combinations of group, resource, name and verb that a role may have where its writer must hold
/// each: lists of a rule multiply, so that a short one can have more than memory holds.
const MAX_PARTS: usize = 100_000;
/// Words that are compared at most for one role.
const MAX_WORDS: usize = 100_000_000;
/// Combinations that an error lists.
const MAX_SHOWN: usize = 1000;

/// The part of `wanted` that no rule of `owned` covers, in the smallest possible rules.
pub fn lacking(owned: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    wanted
        .iter()
        .flat_map(smallest)
        .filter(|part| !owned.iter().any(|rule| covers(rule, part)))
        .collect()
}

/// Splits a rule into rules with one verb and one resource, name or path each.
fn smallest(rule: &Rule) -> Vec<Rule> {
    let one = |text: &String| vec![text.clone()];
    let mut parts = Vec::new();
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                let part = Rule {
                    api_groups: one(group),
                    resources: one(resource),
                    verbs: one(verb),
                    ..Rule::default()
                };
                if rule.resource_names.is_empty() {
                    parts.push(part);
                    continue;
                }
                parts.extend(rule.resource_names.iter().map(|name| Rule {
                    resource_names: one(name),
                    ..part.clone()
                }));
            }
        }
    }
    for path in &rule.non_resource_urls {
        let with = |verb| Rule {
            non_resource_urls: one(path),
            verbs: one(verb),
            ..Rule::default()
        };
        parts.extend(rule.verbs.iter().map(with));
    }
    parts
}

/// The number of rules into which [`smallest`] splits a rule.
fn parts(rule: &Rule) -> usize {
    let names = rule.resource_names.len().max(1);
    let resources = [&rule.api_groups, &rule.resources, &rule.verbs]
        .into_iter()
        .fold(names, |product, list| product.saturating_mul(list.len()));
    let paths = rule
        .non_resource_urls
        .len()
        .saturating_mul(rule.verbs.len());
    resources.saturating_add(paths)
}

/// How many words of a rule a comparison looks at.
fn words(rule: &Rule) -> usize {
    let lists = [
        &rule.api_groups,
        &rule.resources,
        &rule.verbs,
        &rule.resource_names,
        &rule.non_resource_urls,
    ];
    lists.into_iter().map(Vec::len).sum()
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == wanted)
}

fn star_or_all(list: &[String], wanted: &[String]) -> bool {
    has(list, "*") || wanted.iter().all(|one| has(list, one))
}

fn covers(owned: &Rule, part: &Rule) -> bool {
    let named = owned.resource_names.is_empty()
        || !part.resource_names.is_empty()
            && part
                .resource_names
                .iter()
                .all(|name| has(&owned.resource_names, name));
    named
        && star_or_all(&owned.verbs, &part.verbs)
        && star_or_all(&owned.api_groups, &part.api_groups)
        && part
            .resources
            .iter()
            .all(|resource| covers_resource(&owned.resources, resource))
        && part
            .non_resource_urls
            .iter()
            .all(|path| covers_path(&owned.non_resource_urls, path))
}

fn covers_resource(owned: &[String], resource: &str) -> bool {
    let every = || {
        resource
            .split_once('/')
            .is_some_and(|(_, sub)| has(owned, &format!("*/{sub}")))
    };
    has(owned, "*") || has(owned, resource) || every()
}

fn covers_path(owned: &[String], path: &str) -> bool {
    owned.iter().any(|known| match known.strip_suffix('*') {
        Some(start) => path.starts_with(start.trim_end_matches('*')),
        None => known == path,
    })
}

/// Upstream's error for granting rights that the user does not have; `None` if everything is
/// covered.
pub fn escalation(
    who: &Who<'_>,
    owned: &[Rule],
    missing: &[String],
    wanted: &[Rule],
) -> Option<String> {
    let words: usize = owned.iter().map(words).sum();
    let parts = wanted.iter().map(parts).fold(0, usize::saturating_add);
    if parts > MAX_PARTS || parts.saturating_mul(words) > MAX_WORDS {
        return Some(format!(
            "user {:?} is attempting to grant more combinations of API groups, resources, names and verbs than can be compared \
             with its own permissions ({MAX_PARTS} at most): split the role",
            who.name
        ));
    }
    let mut lacking = lacking(owned, wanted);
    if lacking.is_empty() {
        return None;
    }
    lacking.truncate(MAX_SHOWN);
    let lines: BTreeSet<String> = compact(lacking).iter().map(shown).collect();
    let lines: Vec<String> = lines.into_iter().collect();
    let mut text = format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        who.name,
        quoted(who.groups),
        lines.join("\n")
    );
    if !missing.is_empty() {
        let errors = crate::snapshot::joined(missing.to_vec());
        text = format!("{text}; resolution errors: [{errors}]");
    }
    Some(text)
}

/// Merges rules about the same resource.
fn compact(rules: Vec<Rule>) -> Vec<Rule> {
    let mut simple: BTreeMap<(String, String, Option<String>), Rule> = BTreeMap::new();
    let mut rest = Vec::new();
    for rule in rules {
        let (Some(group), Some(resource)) = (rule.api_groups.first(), rule.resources.first())
        else {
            rest.push(rule);
            continue;
        };
        let key = (
            group.clone(),
            resource.clone(),
            rule.resource_names.first().cloned(),
        );
        match simple.get_mut(&key) {
            Some(known) => known.verbs.extend(rule.verbs),
            None => drop(simple.insert(key, rule)),
        }
    }
    rest.extend(simple.into_values());
    rest
}

/// A list as upstream's messages print it: `["a" "b"]`.
pub fn quoted(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(|one| format!("{one:?}")).collect();
    format!("[{}]", quoted.join(" "))
}

fn shown(rule: &Rule) -> String {
    let parts = [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.non_resource_urls),
        ("ResourceNames", &rule.resource_names),
        ("Verbs", &rule.verbs),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(name, list)| format!("{name}:{}", quoted(list)))
        .collect();
    format!("{{{}}}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defaults::{on, paths};

    #[test]
    fn a_right_is_covered_by_the_same_or_a_wider_one() {
        let owned = [
            on("get list", "core", "pods */scale"),
            on("*", "apps", "*"),
            paths("get", "/healthz /api/*"),
        ];
        for covered in [
            on("get", "core", "pods"),
            on("get", "core", "pods").named("a b"),
            on("list", "core", "replicationcontrollers/scale"),
            on("escalate", "apps", "deployments/status"),
            paths("get", "/healthz /api/v1"),
        ] {
            assert_eq!(
                lacking(&owned, std::slice::from_ref(&covered)),
                [],
                "{covered:?}"
            );
        }
        for wider in [
            on("delete", "core", "pods"),
            on("get", "core", "*"),
            on("get", "*", "pods"),
            on("get", "core", "pods/exec"),
            paths("get", "/api"),
            paths("*", "/healthz"),
            paths("get", "*"),
        ] {
            assert!(
                !lacking(&owned, std::slice::from_ref(&wider)).is_empty(),
                "{wider:?}"
            );
        }
        let named = [on("get", "core", "secrets").named("a")];
        assert!(
            !lacking(&named, &[on("get", "core", "secrets")]).is_empty(),
            "one is not every one"
        );
        assert_eq!(
            lacking(&named, &[on("get", "core", "secrets").named("a b")]).len(),
            1
        );
    }

    #[test]
    fn a_rule_whose_lists_multiply_beyond_all_memory_is_refused_before_it_is_split() {
        let who = Who {
            name: "u",
            groups: &[],
        };
        let all = |letter: &str, count: usize| -> Vec<String> {
            (0..count)
                .map(|number| format!("{letter}{number}"))
                .collect()
        };
        let rule = |count: usize| Rule {
            api_groups: all("g", count),
            resources: all("r", count),
            verbs: all("v", count),
            resource_names: all("n", count),
            ..Rule::default()
        };
        let own = [on("*", "*", "*")];
        assert_eq!(escalation(&who, &own, &[], &[rule(10)]), None);
        for owned in [&own[..], &[]] {
            let refused = escalation(&who, owned, &[], &[rule(10_000)]).unwrap();
            assert!(refused.contains("split the role"), "{refused}");
        }
        let many: Vec<Rule> = vec![on("get", "core", "pods"); 10_000];
        let refused = escalation(&who, &many, &[], &[rule(15)]).unwrap();
        assert!(
            refused.contains("split the role"),
            "each would be compared with each"
        );
        let listed = escalation(&who, &[], &[], &[rule(10)]).unwrap();
        assert!(listed.lines().count() <= MAX_SHOWN + 1);
    }

    #[test]
    fn an_escalation_is_refused_in_upstreams_words() {
        let groups = ["g".to_owned(), "system:authenticated".to_owned()];
        let who = Who {
            name: "u",
            groups: &groups,
        };
        let owned = [on("get", "core", "pods")];
        let wanted = [
            on("get list delete", "core", "pods"),
            on("get", "core", "secrets").named("a"),
            paths("get", "/x"),
        ];
        assert_eq!(escalation(&who, &owned, &[], &wanted[..0]), None);
        assert_eq!(
            escalation(&who, &owned, &[], &wanted).unwrap(),
            "user \"u\" (groups=[\"g\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n\
             {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\" \"list\"]}\n\
             {APIGroups:[\"\"], Resources:[\"secrets\"], ResourceNames:[\"a\"], Verbs:[\"get\"]}\n\
             {NonResourceURLs:[\"/x\"], Verbs:[\"get\"]}"
        );
    }
}
