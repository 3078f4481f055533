//! LimitRanges and ResourceQuotas.

use super::limits_validate as rules;
use config_kube::k8s_openapi::api::core::v1::{LimitRange, ResourceQuota};
use master_schema::cells::{AGE, CREATED};
use master_schema::registry::{Kind, Strategy, Subresource, column, words};
use master_schema::validate::{Fields, object, text};

pub(super) fn range() -> Kind {
    Kind {
        short_names: words(&["limits"]),
        columns: vec![CREATED],
        strategy: Strategy {
            defaults: rules::range_defaults,
            validate: rules::range,
            made_by_update: true,
            ..Strategy::default()
        },
        ..Kind::of::<LimitRange>(true)
    }
}

pub(super) fn quota() -> Kind {
    Kind {
        short_names: words(&["quota"]),
        subresources: vec![Subresource::Status],
        columns: vec![
            column("Request", |fields, _| used(fields, false).into()),
            column("Limit", |fields, _| used(fields, true).into()),
            AGE,
        ],
        strategy: Strategy {
            validate: rules::quota,
            validate_update: rules::quota_update,
            ..Strategy::default()
        },
        ..Kind::of::<ResourceQuota>(true)
    }
}

/// Used and hard amounts, of limits or of everything else.
fn used(fields: &Fields, limits: bool) -> String {
    let Some(status) = object(fields, "status") else {
        return String::new();
    };
    let (Some(hard), used) = (object(status, "hard"), object(status, "used")) else {
        return String::new();
    };
    let mut names: Vec<&String> = hard
        .keys()
        .filter(|name| name.starts_with("limits.") == limits)
        .collect();
    names.sort_unstable();
    let shown = names.iter().map(|name| {
        let used = used.map_or("", |used| text(used, name));
        format!(
            "{name}: {}/{}",
            if used.is_empty() { "0" } else { used },
            text(hard, name)
        )
    });
    shown.collect::<Vec<_>>().join(", ")
}
