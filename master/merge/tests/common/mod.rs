//! An object of one kind, written and applied by several managers in turn.

#![allow(dead_code, reason = "each test target uses what it needs")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests fails them"
)]

use config_kube::k8s_openapi::api::apps::v1::Deployment;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use master_merge::apply::apply;
use master_merge::managed::Managers;
use master_merge::write::{Given, Versions, Write, update};
use master_schema::error::ApiError;
use master_schema::schema::{self, SchemaPosition, Schemas, Source};
use master_schema::validate::Fields;
use serde_json::{Value, json};
use std::sync::LazyLock;

static SCHEMAS: LazyLock<(Schemas, Vec<String>)> = LazyLock::new(|| {
    let sources: &[Source] = &[
        Source::of::<ConfigMap>(),
        Source::of::<Deployment>(),
        Source::of::<Service>(),
        Source::of::<Pod>(),
    ];
    let names = sources.iter().map(|source| source.name().to_owned());
    (
        Schemas::compile(&schema::definitions(sources)),
        names.collect(),
    )
});

/// A kind of the tests.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    ConfigMap,
    Deployment,
    Service,
    Pod,
}

impl Kind {
    pub(crate) fn version(self) -> &'static str {
        if matches!(self, Self::Deployment) {
            "apps/v1"
        } else {
            "v1"
        }
    }
}

impl Versions for Kind {
    fn place(&self, api_version: &str) -> Option<SchemaPosition<'_>> {
        let index = *self as usize;
        (api_version == self.version()).then(|| SCHEMAS.0.place(&SCHEMAS.1[index]))
    }

    fn convert(&self, _object: &Fields, _api_version: &str) -> Option<Fields> {
        None
    }
}

/// An object and its managed fields.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Object {
    pub(crate) fields: Fields,
    pub(crate) managed: Option<String>,
}

pub(crate) fn fields(value: Value) -> Fields {
    let Value::Object(fields) = value else {
        panic!("{value} is no object")
    };
    fields
}

fn at<'a>(kind: &'a Kind, manager: &'a str, now: &'a str) -> Write<'a> {
    Write {
        manager,
        api_version: kind.version(),
        subresource: "",
        now,
        reset: &["status"],
        versions: kind,
    }
}

impl Object {
    /// Created by an update.
    pub(crate) fn made(kind: Kind, manager: &str, now: &str, value: Value) -> Self {
        let new = fields(value);
        let list = update(
            &Fields::new(),
            &new,
            None,
            Given::Nothing,
            &at(&kind, manager, now),
        )
        .unwrap();
        let mut object = Self {
            fields: new,
            managed: list,
        };
        object.live();
        object
    }

    /// Created by an apply.
    pub(crate) fn applied(kind: Kind, manager: &str, now: &str, config: &Value) -> Self {
        let none = Self {
            fields: Fields::new(),
            managed: None,
        };
        let mut object = none.apply(kind, manager, now, config, false).unwrap();
        object.live();
        object
    }

    /// Sets the fields that the server sets in every object.
    fn live(&mut self) {
        self.fields["metadata"]["uid"] = json!("u");
    }

    pub(crate) fn updated(&self, kind: Kind, manager: &str, now: &str, value: Value) -> Self {
        self.given(kind, manager, now, value, Given::Nothing)
    }

    pub(crate) fn given(
        &self,
        kind: Kind,
        manager: &str,
        now: &str,
        value: Value,
        given: Given<'_>,
    ) -> Self {
        let mut new = fields(value);
        new["metadata"]["uid"] = json!("u");
        let list = update(
            &self.fields,
            &new,
            self.managed.as_deref(),
            given,
            &at(&kind, manager, now),
        )
        .unwrap();
        Self {
            fields: new,
            managed: list,
        }
    }

    pub(crate) fn apply(
        &self,
        kind: Kind,
        manager: &str,
        now: &str,
        config: &Value,
        force: bool,
    ) -> Result<Self, ApiError> {
        let config = fields(config.clone());
        let done = apply(
            &self.fields,
            self.managed.as_deref(),
            &config,
            force,
            &at(&kind, manager, now),
        )?;
        Ok(Self {
            fields: done.object,
            managed: done.managed,
        })
    }

    /// The managed fields as JSON.
    pub(crate) fn list(&self) -> Value {
        self.managed
            .as_deref()
            .map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
    }

    pub(crate) fn managers(&self) -> Managers<'_> {
        Managers::decode(self.managed.as_deref().unwrap_or("[]")).unwrap()
    }

    /// The fields of a manager as `FieldsV1`.
    pub(crate) fn owned(&self, manager: &str) -> Value {
        let list = self.list();
        let entry = list
            .as_array()
            .into_iter()
            .flatten()
            .find(|entry| entry["manager"] == manager);
        entry.map_or(Value::Null, |entry| entry["fieldsV1"].clone())
    }
}
