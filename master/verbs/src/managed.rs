//! Managed fields of a written object: the bridge to `master_merge`.

use super::call::Call;
use crate::authorize;
use http::header;
use master_auth::Authorizer;
use master_merge::apply::{Applied, apply};
use master_merge::managed::Managers;
use master_merge::write::{Given, Versions, Write, update};
use master_objects::MANAGED;
use master_schema::error::ApiError;
use master_schema::object::meta_text;
use master_schema::registry::{Kind, Registry, Subresource};
use master_schema::schema::SchemaPosition;
use master_schema::selector::Selector;
use master_schema::validate::Fields;
use master_wire::path::{Query, Target, Verb};
use serde_json::Value;

/// Bytes of a manager's name at most.
const NAME: usize = 128;

/// The versions in which a kind is served.
pub(super) struct Served<'a> {
    pub(super) registry: &'a Registry,
    pub(super) kind: &'a Kind,
}

impl Served<'_> {
    /// The kind in a version.
    pub(super) fn find(&self, api_version: &str) -> Option<&Kind> {
        if api_version == self.kind.api_version() {
            return Some(self.kind);
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let found = self.registry.find(group, version, &self.kind.plural)?;
        (found.table == self.kind.table).then_some(found)
    }
}

impl Versions for Served<'_> {
    fn place(&self, api_version: &str) -> Option<SchemaPosition<'_>> {
        Some(
            self.registry
                .schemas()
                .place(self.find(api_version)?.source.name()),
        )
    }

    fn convert(&self, object: &Fields, api_version: &str) -> Option<Fields> {
        let from = object.get("apiVersion").and_then(Value::as_str);
        let from = from.map_or(Some(self.kind), |from| self.find(from))?;
        Some(master_objects::convert(
            from,
            self.find(api_version)?,
            object.clone(),
        ))
    }
}

/// How a write changes ownership.
pub(super) enum Ownership {
    /// Found by comparison with the object before, starting from the managed fields that the client
    /// sent, if any.
    Tracked(Option<Value>),
    /// Server-side apply, which computed the managed fields.
    Applied(Option<String>),
}

impl Ownership {
    /// Takes the managed fields that a client sent out of its object. Those from a node are
    /// ignored: with them it could write more than a node may.
    pub(super) fn of(call: &Call, fields: &mut Fields) -> Self {
        let metadata = fields.get_mut("metadata").and_then(Value::as_object_mut);
        // A string is the stored form, not what the client sent.
        Self::Tracked(
            metadata
                .and_then(|metadata| metadata.remove(MANAGED))
                .filter(|given| given.is_array() && call.user.node().is_none()),
        )
    }
}

/// The manager: as the query names it, else the first part of the user agent.
pub(super) fn manager(call: &Call) -> String {
    let named = call.query.get("fieldManager");
    if !named.is_empty() {
        return named.to_owned();
    }
    let agent = call
        .headers
        .get(header::USER_AGENT)
        .map(|value| String::from_utf8_lossy(value.as_bytes()));
    let agent = agent.unwrap_or_default();
    let mut name = String::new();
    for c in agent
        .split('/')
        .next()
        .unwrap_or_default()
        .chars()
        .filter(|c| !c.is_control())
    {
        if name.len() + c.len_utf8() > NAME {
            break;
        }
        name.push(c);
    }
    name
}

/// Whether an apply takes fields from other managers (upstream's reading of a boolean).
pub(super) fn forced(query: &Query) -> bool {
    query.has("force") && !matches!(query.get("force"), "false" | "0")
}

impl Call {
    fn with_write<T>(&self, run: impl FnOnce(&Write<'_>) -> T) -> T {
        let strategy = &self.kind.strategy;
        let versions = Served {
            registry: &self.registry,
            kind: &self.kind,
        };
        let status = self.kind.subresource(&self.target.subresource) == Some(Subresource::Status);
        run(&Write {
            manager: &manager(self),
            api_version: &self.kind.api_version(),
            subresource: &self.target.subresource,
            now: &self.clock.text(),
            reset: &strategy.reset.paths(status),
            versions: &versions,
        })
    }

    /// The managed fields after a write. Neither object contains any; `old` is empty at creation.
    pub(super) fn managed_fields(
        &self,
        old: &Fields,
        new: &Fields,
        live: Option<&str>,
        ownership: &Ownership,
    ) -> Option<String> {
        let given = match ownership {
            Ownership::Applied(text) => return text.clone(),
            Ownership::Tracked(Some(list)) => Given::List(list),
            Ownership::Tracked(None) => Given::Nothing,
        };
        let managed = self.with_write(|write| update(old, new, live, given, write));
        managed.unwrap_or_else(|error| {
            // A write never fails because of its managed fields.
            tracing::warn!(
                kind = self.kind.kind,
                error,
                "managed fields cannot be updated and stay as they were"
            );
            live.map(str::to_owned)
        })
    }

    /// Applies a configuration to an object, which is empty if it does not exist.
    pub(super) fn applied(
        &self,
        live: &Fields,
        managed: Option<&str>,
        config: &Fields,
    ) -> Result<Applied, ApiError> {
        self.with_write(|write| apply(live, managed, config, forced(&self.query), write))
    }

    /// Refuses a request that creates by another verb (an update or apply of a missing object, exec
    /// by GET), if the caller may not create.
    pub(super) async fn may_create(&self, authorizer: &Authorizer) -> Result<(), ApiError> {
        let target = Target {
            verb: Verb::Create,
            ..self.target.clone()
        };
        authorize::resource(authorizer, &self.user, &target, &Selector::default()).await
    }
}

/// Whether two lists of managers differ only in their times.
pub(super) fn same_but_times(one: &str, other: &str) -> bool {
    match (Managers::decode(one), Managers::decode(other)) {
        (Ok(one), Ok(other)) => one.without_times() == other.without_times(),
        _ => false,
    }
}

/// Refuses a configuration with a UID when the object does not exist.
pub(super) fn named_other(config: &Fields, call: &Call) -> Result<(), ApiError> {
    let uid = meta_text(config, "uid");
    if uid.is_empty() {
        return Ok(());
    }
    Err(call.conflict(&format!(
        "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
    )))
}
