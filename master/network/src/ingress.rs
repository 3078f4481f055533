//! Ingresses and IngressClasses.

use crate::ingress_validate as rules;
use config_kube::k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use master_schema::cells::{AGE, at, load_balancer};
use master_schema::object::spec;
use master_schema::registry::{Kind, Strategy, Subresource, column, words};
use master_schema::validate::{Fields, default_to, items, object, object_mut, text};

/// Hosts that a cell shows.
const SHOWN: usize = 3;

/// The kind Ingress.
pub fn ingress() -> Kind {
    Kind {
        short_names: words(&["ing"]),
        subresources: vec![Subresource::Status],
        columns: vec![
            column("Class", |fields, _| {
                at(fields, "spec", "/ingressClassName").into()
            }),
            column("Hosts", |fields, _| hosts(fields).into()),
            column("Address", |fields, _| load_balancer(fields).into()),
            column("Ports", |fields, _| ports(fields).into()),
            AGE,
        ],
        strategy: Strategy {
            validate: rules::ingress,
            validate_create: rules::ingress_create,
            validate_update: rules::ingress_update,
            generation: true,
            ..Strategy::default()
        },
        ..Kind::of::<Ingress>(true)
    }
}

/// The first hosts, and the number of further rules (upstream counts those without a host, too).
fn hosts(fields: &Fields) -> String {
    let rules = items(spec(fields), "rules");
    let named = rules.iter().enumerate().filter_map(|(at, rule)| {
        let host = rule.get("host")?.as_str()?;
        (!host.is_empty()).then_some((at, host))
    });
    let shown: Vec<(usize, &str)> = named.take(SHOWN).collect();
    if shown.is_empty() {
        return "*".to_owned();
    }
    let hosts: Vec<&str> = shown.iter().map(|(_, host)| *host).collect();
    let hosts = hosts.join(",");
    let last = shown.get(SHOWN - 1);
    if last.is_some_and(|(at, _)| at + 1 < rules.len()) {
        format!("{hosts} + {} more...", rules.len() - SHOWN)
    } else {
        hosts
    }
}

fn ports(fields: &Fields) -> &'static str {
    if items(spec(fields), "tls").is_empty() {
        "80"
    } else {
        "80, 443"
    }
}

/// The kind IngressClass.
pub fn class() -> Kind {
    Kind {
        columns: vec![
            column("Controller", |fields, _| {
                text(spec(fields), "controller").into()
            }),
            column("Parameters", |fields, _| parameters(fields).into()),
            AGE,
        ],
        strategy: Strategy {
            defaults: |fields| {
                let parameters =
                    object_mut(fields, "spec").and_then(|spec| spec.get_mut("parameters"));
                if let Some(parameters) = parameters.and_then(serde_json::Value::as_object_mut) {
                    default_to(parameters, "scope", "Cluster");
                }
            },
            validate: rules::class,
            validate_update: rules::class_update,
            generation: true,
            ..Strategy::default()
        },
        ..Kind::of::<IngressClass>(false)
    }
}

fn parameters(fields: &Fields) -> String {
    let Some(parameters) = object(spec(fields), "parameters") else {
        return "<none>".to_owned();
    };
    let (group, kind, name) = (
        text(parameters, "apiGroup"),
        text(parameters, "kind"),
        text(parameters, "name"),
    );
    let kind = if group.is_empty() {
        kind.to_owned()
    } else {
        format!("{kind}.{group}")
    };
    format!("{kind}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cell_shows_the_first_hosts_and_counts_the_rules_after_them() {
        for (of_rules, expected) in [
            (vec![], "*"),
            (vec![""], "*"),
            (vec!["", "a"], "a"),
            (vec!["", "a", "b", "c"], "a,b,c"),
            (vec!["a", "b", "c", ""], "a,b,c + 1 more..."),
            (vec!["a", "b", "c", "d", "e"], "a,b,c + 2 more..."),
        ] {
            let rules = of_rules.iter().map(|host| json!({"host": host}));
            let ingress = json!({"spec": {"rules": rules.collect::<Vec<_>>()}});
            assert_eq!(hosts(ingress.as_object().unwrap()), expected);
        }
    }
}
