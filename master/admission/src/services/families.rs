//! Address families of a service, from its spec and the cluster's configuration. Pure.

use super::texts;
use master_network::{family_of, validate_families};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, object, text};
use serde_json::Value;
use std::net::IpAddr;

const SINGLE: &str = "SingleStack";
const REQUIRED: &str = "RequireDualStack";
const PREFERRED: &str = "PreferDualStack";

/// Fills in policy and families; `configured` are the cluster's families, the primary one first.
pub(super) fn settle(
    spec: &mut Fields,
    old: Option<&Fields>,
    configured: &[&'static str],
    faults: &mut Faults,
) {
    if text(spec, "type") == "ExternalName" || old.is_some_and(|old| stays_preferred(spec, old)) {
        return;
    }
    let selectorless =
        text(spec, "clusterIP") == "None" && object(spec, "selector").is_none_or(Fields::is_empty);
    if get(spec, "ipFamilyPolicy").is_null() {
        let kept = old
            .map(|old| text(old, "ipFamilyPolicy"))
            .filter(|policy| !policy.is_empty());
        let policy = kept
            .unwrap_or(if selectorless { REQUIRED } else { SINGLE })
            .to_owned();
        spec.insert("ipFamilyPolicy".to_owned(), policy.into());
    }
    let at = FieldPath::root("spec");
    validate_families(spec, &at, faults);
    if !faults.is_empty() {
        return;
    }
    if let Some(old) = old {
        shrink(spec, old, &at, faults);
    }
    contradictions(spec, &at, faults);
    infer(spec, configured, &at, faults);
    if !faults.is_empty() {
        return;
    }
    if selectorless {
        return complete(spec, configured, true);
    }
    if text(spec, "ipFamilyPolicy") == REQUIRED && configured.len() < 2 {
        let text = "this cluster is not configured for dual-stack services";
        faults.invalid(
            &at.field("ipFamilyPolicy"),
            get(spec, "ipFamilyPolicy"),
            text,
        );
    }
    let place = at.field("ipFamilies");
    for (number, asked) in items(spec, "ipFamilies").iter().enumerate() {
        if !configured.iter().any(|known| asked == known) {
            faults.invalid(
                &place.index(number),
                asked,
                "not configured on this cluster",
            );
        }
    }
    if faults.is_empty() {
        complete(spec, configured, configured.len() == 2);
    }
}

/// A service with `PreferDualStack` that is written unchanged stays as it is, even if the cluster's
/// families changed.
fn stays_preferred(spec: &Fields, old: &Fields) -> bool {
    let same = ["clusterIP", "clusterIPs", "ipFamilies"]
        .iter()
        .all(|key| get(spec, key) == get(old, key));
    same && [spec, old]
        .iter()
        .all(|spec| text(spec, "ipFamilyPolicy") == PREFERRED)
        && text(old, "type") != "ExternalName"
}

/// Going back to one family drops the second; dropping it otherwise needs `SingleStack`.
fn shrink(spec: &mut Fields, old: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    let single = text(spec, "ipFamilyPolicy") == SINGLE;
    for (key, what) in [
        ("clusterIPs", "secondary cluster IP"),
        ("ipFamilies", "secondary IP family"),
    ] {
        if single {
            if get(spec, key) == get(old, key)
                && let Some(list) = spec.get_mut(key).and_then(Value::as_array_mut)
            {
                list.truncate(1);
            }
        } else if items(spec, key).len() == 1 && items(old, key).len() == 2 {
            let text = format!("must be 'SingleStack' to release the {what}");
            faults.invalid(
                &at.field("ipFamilyPolicy"),
                get(spec, "ipFamilyPolicy"),
                text,
            );
        }
    }
}

fn contradictions(spec: &Fields, at: &FieldPath<'_>, faults: &mut Faults) {
    if text(spec, "ipFamilyPolicy") != SINGLE {
        return;
    }
    for (key, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
        if items(spec, key).len() == 2 {
            let text = format!(
                "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
            );
            faults.invalid(
                &at.field("ipFamilyPolicy"),
                get(spec, "ipFamilyPolicy"),
                text,
            );
        }
    }
}

/// Derives the families from requested addresses.
fn infer(spec: &mut Fields, configured: &[&'static str], at: &FieldPath<'_>, faults: &mut Faults) {
    let addresses: Vec<IpAddr> = texts(spec, "clusterIPs")
        .filter_map(|address| address.parse().ok())
        .collect();
    let known = items(spec, "ipFamilies").len();
    let place = at.field("clusterIPs");
    for (number, address) in addresses.iter().enumerate().skip(known) {
        let family = family_of(*address);
        if configured.contains(&family) {
            push(spec, family);
        } else {
            let text = format!("{family} is not configured on this cluster");
            faults.invalid(&place.index(number), get(spec, "clusterIPs"), text);
        }
    }
}

/// Adds the primary family if none is given, and the other if both are wanted and configured.
fn complete(spec: &mut Fields, configured: &[&'static str], other: bool) {
    if items(spec, "ipFamilies").is_empty() {
        spec.remove("ipFamilies");
        push(spec, configured.first().copied().unwrap_or("IPv4"));
    }
    if other && text(spec, "ipFamilyPolicy") != SINGLE && items(spec, "ipFamilies").len() == 1 {
        let first = items(spec, "ipFamilies")
            .first()
            .is_some_and(|family| family == "IPv4");
        push(spec, if first { "IPv6" } else { "IPv4" });
    }
}

fn push(spec: &mut Fields, family: &str) {
    let list = spec
        .entry("ipFamilies")
        .or_insert_with(|| Value::Array(Vec::new()));
    if let Some(list) = list.as_array_mut() {
        list.push(family.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn settled(
        spec: Value,
        old: Option<Value>,
        configured: &[&'static str],
    ) -> Result<Value, String> {
        let Value::Object(mut spec) = spec else {
            unreachable!("a test's spec is an object")
        };
        let old = old.and_then(|old| old.as_object().cloned());
        let mut faults = Faults::default();
        settle(&mut spec, old.as_ref(), configured, &mut faults);
        faults
            .into_error("", "Service", "a")
            .map_err(|error| error.message)?;
        Ok(Value::Object(spec))
    }

    const ONE: &[&str] = &["IPv4"];
    const BOTH: &[&str] = &["IPv6", "IPv4"];

    #[test]
    fn a_service_gets_the_clusters_usual_family() {
        let spec = settled(json!({"type": "ClusterIP"}), None, ONE).unwrap();
        assert_eq!(
            (&spec["ipFamilyPolicy"], &spec["ipFamilies"]),
            (&json!("SingleStack"), &json!(["IPv4"]))
        );
        let spec = settled(json!({"type": "ClusterIP"}), None, BOTH).unwrap();
        assert_eq!(spec["ipFamilies"], json!(["IPv6"]));
    }

    #[test]
    fn a_service_that_prefers_both_families_gets_the_configured_ones() {
        let ask = json!({"type": "ClusterIP", "ipFamilyPolicy": "PreferDualStack"});
        assert_eq!(
            settled(ask.clone(), None, ONE).unwrap()["ipFamilies"],
            json!(["IPv4"])
        );
        assert_eq!(
            settled(ask, None, BOTH).unwrap()["ipFamilies"],
            json!(["IPv6", "IPv4"])
        );
        let demand = json!({"type": "ClusterIP", "ipFamilyPolicy": "RequireDualStack"});
        let error = settled(demand, None, ONE).unwrap_err();
        assert!(
            error.contains("this cluster is not configured for dual-stack services"),
            "{error}"
        );
    }

    #[test]
    fn a_headless_service_without_selector_has_both() {
        let spec = settled(
            json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]}),
            None,
            ONE,
        )
        .unwrap();
        assert_eq!(
            (&spec["ipFamilyPolicy"], &spec["ipFamilies"]),
            (&json!("RequireDualStack"), &json!(["IPv4", "IPv6"]))
        );
    }

    #[test]
    fn families_follow_addresses() {
        let ask = json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]});
        assert_eq!(
            settled(ask.clone(), None, BOTH).unwrap()["ipFamilies"],
            json!(["IPv4"])
        );
        let error = settled(ask, None, &["IPv6"]).unwrap_err();
        assert!(
            error.contains("IPv4 is not configured on this cluster"),
            "{error}"
        );
    }

    #[test]
    fn the_second_family_is_dropped_only_on_request() {
        let old = json!({
            "type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"],
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack",
        });
        let mut new = old.clone();
        new["ipFamilyPolicy"] = json!("SingleStack");
        let spec = settled(new.clone(), Some(old.clone()), BOTH).unwrap();
        assert_eq!(
            (&spec["clusterIPs"], &spec["ipFamilies"]),
            (&json!(["10.0.0.1"]), &json!(["IPv4"]))
        );
        new["ipFamilyPolicy"] = json!("RequireDualStack");
        new["clusterIPs"] = json!(["10.0.0.1"]);
        let error = settled(new, Some(old), BOTH).unwrap_err();
        assert!(
            error.contains("must be 'SingleStack' to release the secondary cluster IP"),
            "{error}"
        );
    }
}
