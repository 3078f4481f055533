//! `DefaultIngressClass`: ingresses that name no class get the class marked as default.

use super::default_storage_class::newest;
use crate::plugin::{Admitted, Operation, Plugin, Request};
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::object::metadata;
use master_schema::validate::{Fields, get, object};
use serde_json::Value;

const DEFAULT: [&str; 1] = ["ingressclass.kubernetes.io/is-default-class"];
/// The deprecated annotation that names an ingress' class.
const OLD: &str = "kubernetes.io/ingress.class";

/// The plugin.
#[derive(Debug)]
pub(crate) struct DefaultIngressClass;

impl Plugin for DefaultIngressClass {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Create && request.writes("networking.k8s.io", "ingresses")
    }

    fn admit<'a>(
        &'a self,
        request: &'a Request<'a>,
        ingress: &'a mut Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let old =
                object(metadata(ingress), "annotations").is_some_and(|all| all.contains_key(OLD));
            let named = object(ingress, "spec")
                .is_some_and(|spec| !get(spec, "ingressClassName").is_null());
            if old || named {
                return Ok(());
            }
            let classes = request
                .stored("ingressclasses.networking.k8s.io", "")
                .await?;
            let Some(name) = newest(classes.iter().map(|(_, fields)| fields), &DEFAULT) else {
                return Ok(());
            };
            let spec = ingress
                .entry("spec")
                .or_insert_with(|| Value::Object(Fields::new()));
            if let Some(spec) = spec.as_object_mut() {
                spec.insert("ingressClassName".to_owned(), name.into());
            }
            Ok(())
        })
    }
}
