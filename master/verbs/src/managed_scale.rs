//! Managed fields of an object's number of replicas when it is written through the scale
//! subresource.

use super::call::Call;
use super::managed::{Served, forced, manager};
use config_kube::k8s_openapi::api::autoscaling::v1::Scale;
use master_merge::apply::apply;
use master_merge::scale::{SCALE, from_scale, to_scale};
use master_merge::write::{Given, Versions, Write, update};
use master_schema::error::{ApiError, Reason};
use master_schema::schema::{self, SchemaPosition, Schemas, Source};
use master_schema::validate::Fields;
use std::sync::LazyLock;

/// The only version of Scale.
struct Scales;

static SCHEMA: LazyLock<(Schemas, Source)> = LazyLock::new(|| {
    let source = Source::of::<Scale>();
    let definitions = schema::definitions(std::slice::from_ref(&source));
    (Schemas::compile(&definitions), source)
});

impl Versions for Scales {
    fn place(&self, api_version: &str) -> Option<SchemaPosition<'_>> {
        (api_version == SCALE).then(|| SCHEMA.0.place(SCHEMA.1.name()))
    }

    fn convert(&self, object: &Fields, api_version: &str) -> Option<Fields> {
        (api_version == SCALE).then(|| object.clone())
    }
}

/// Calls `run` with the function that gives the path of the replicas in a version of the kind.
fn with_paths<T>(call: &Call, run: impl FnOnce(&dyn Fn(&str) -> Option<Vec<String>>) -> T) -> T {
    let served = Served {
        registry: &call.registry,
        kind: &call.kind,
    };
    run(&|version: &str| {
        let places = served.find(version)?.scale.as_ref()?;
        Some(
            places
                .replicas
                .split('/')
                .filter(|step| !step.is_empty())
                .map(str::to_owned)
                .collect(),
        )
    })
}

fn unreadable(error: &str) -> ApiError {
    ApiError::new(
        Reason::InternalError,
        format!("the managed fields cannot be read: {error}"),
    )
}

impl Call {
    fn with_scale<T>(&self, run: impl FnOnce(&Write<'_>) -> T) -> T {
        run(&Write {
            manager: &manager(self),
            api_version: SCALE,
            subresource: &self.target.subresource,
            now: &self.clock.text(),
            reset: &[],
            versions: &Scales,
        })
    }

    /// The object's managed fields after its scale was replaced or patched.
    pub(super) fn scale_managed_fields(
        &self,
        live: Option<&str>,
        old: &Fields,
        new: &Fields,
    ) -> Result<Option<String>, ApiError> {
        with_paths(self, |paths| {
            let before = to_scale(live, paths).map_err(|error| unreadable(&error))?;
            let after =
                self.with_scale(|write| update(old, new, before.as_deref(), Given::Nothing, write));
            let after = after.map_err(|error| unreadable(&error))?;
            from_scale(live, after.as_deref(), &self.kind.api_version(), paths)
                .map_err(|error| unreadable(&error))
        })
    }

    /// The scale after a configuration was applied to it, and the object's managed fields.
    pub(super) fn scale_applied(
        &self,
        live: Option<&str>,
        old: &Fields,
        config: &Fields,
    ) -> Result<(Fields, Option<String>), ApiError> {
        with_paths(self, |paths| {
            let before = to_scale(live, paths).map_err(|error| unreadable(&error))?;
            let done = self.with_scale(|write| {
                apply(old, before.as_deref(), config, forced(&self.query), write)
            })?;
            let managed = from_scale(
                live,
                done.managed.as_deref(),
                &self.kind.api_version(),
                paths,
            );
            Ok((done.object, managed.map_err(|error| unreadable(&error))?))
        })
    }
}
