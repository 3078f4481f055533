//! Webhook configurations and admission policies: stored and validated but not enforced, which each
//! write is warned of.

use super::{admission_policy as policies, admission_validate as rules};
use config_kube::k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, MutatingWebhookConfiguration,
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};
use master_schema::cells::AGE;
use master_schema::object::spec;
use master_schema::registry::{Column, Kind, Strategy, Subresource, column, integer, words};
use master_schema::validate::{Fields, items, object, text};

const HOOKS: &[Column] = &[
    integer("Webhooks", |fields, _| {
        items(fields, "webhooks").len().into()
    }),
    AGE,
];

/// The kinds of admission.
pub(super) fn all() -> [Kind; 6] {
    [
        mutating_policy(),
        mutating_binding(),
        mutating_hooks(),
        validating_policy(),
        validating_binding(),
        validating_hooks(),
    ]
}

fn mutating_hooks() -> Kind {
    Kind {
        columns: HOOKS.to_vec(),
        categories: words(&["api-extensions"]),
        strategy: Strategy {
            defaults: |fields| rules::hook_defaults(fields, true),
            ..hooks()
        },
        ..Kind::of::<MutatingWebhookConfiguration>(false)
    }
}

fn validating_hooks() -> Kind {
    Kind {
        columns: HOOKS.to_vec(),
        categories: words(&["api-extensions"]),
        strategy: Strategy {
            defaults: |fields| rules::hook_defaults(fields, false),
            ..hooks()
        },
        ..Kind::of::<ValidatingWebhookConfiguration>(false)
    }
}

fn hooks() -> Strategy {
    Strategy {
        validate: rules::hooks,
        warn: rules::warn_hooks,
        generation: true,
        ..Strategy::default()
    }
}

fn policy() -> Strategy {
    Strategy {
        defaults: rules::policy_defaults,
        warn: rules::warn_policy,
        generation: true,
        ..Strategy::default()
    }
}

const PARAM_KIND: Column = column("ParamKind", |fields, _| param_kind(fields).into());

const BINDING: &[Column] = &[
    column("PolicyName", |fields, _| {
        text(spec(fields), "policyName").into()
    }),
    column("ParamRef", |fields, _| param(fields).into()),
    AGE,
];

fn param_kind(fields: &Fields) -> String {
    match object(spec(fields), "paramKind") {
        None => "<unset>".to_owned(),
        Some(kind) => format!("{}/{}", text(kind, "apiVersion"), text(kind, "kind")),
    }
}

fn param(fields: &Fields) -> String {
    let Some(param) = object(spec(fields), "paramRef") else {
        return "<unset>".to_owned();
    };
    match (text(param, "namespace"), text(param, "name")) {
        ("", "") => "<unset>".to_owned(),
        ("", name) => format!("*/{name}"),
        (namespace, "") => format!("{namespace}/*"),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

fn validating_policy() -> Kind {
    Kind {
        categories: words(&["api-extensions"]),
        subresources: vec![Subresource::Status],
        columns: vec![
            integer("Validations", |fields, _| {
                items(spec(fields), "validations").len().into()
            }),
            PARAM_KIND,
            AGE,
        ],
        strategy: Strategy {
            validate: policies::validating,
            validate_through: |_, new, _, faults| policies::status(new, faults),
            ..policy()
        },
        ..Kind::of::<ValidatingAdmissionPolicy>(false)
    }
}

fn validating_binding() -> Kind {
    Kind {
        columns: BINDING.to_vec(),
        categories: words(&["api-extensions"]),
        strategy: Strategy {
            validate: |fields, faults| policies::binding(fields, true, faults),
            ..policy()
        },
        ..Kind::of::<ValidatingAdmissionPolicyBinding>(false)
    }
}

fn mutating_policy() -> Kind {
    Kind {
        categories: words(&["api-extensions"]),
        columns: vec![
            integer("Mutations", |fields, _| {
                items(spec(fields), "mutations").len().into()
            }),
            PARAM_KIND,
            AGE,
        ],
        strategy: Strategy {
            validate: policies::mutating,
            ..policy()
        },
        ..Kind::of::<MutatingAdmissionPolicy>(false)
    }
}

fn mutating_binding() -> Kind {
    Kind {
        columns: BINDING.to_vec(),
        categories: words(&["api-extensions"]),
        strategy: Strategy {
            validate: |fields, faults| policies::binding(fields, false, faults),
            ..policy()
        },
        ..Kind::of::<MutatingAdmissionPolicyBinding>(false)
    }
}
