//! What upstream extends its API with. Neither can be written: CustomResourceDefinitions are not
//! supported yet, and there are none; APIServices say which groups this server serves by itself.

use config_kube::k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use config_kube::k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use master_schema::cells::AGE;
use master_schema::registry::{Kind, Review, column, words};
use master_schema::validate::{items, object};

pub(super) fn definition() -> Kind {
    Kind {
        short_names: words(&["crd", "crds"]),
        categories: words(&["api-extensions"]),
        columns: vec![AGE],
        refused: Some(
            "custom resources are not supported by this version: it serves built-in kinds alone, and a \
             CustomResourceDefinition would have no effect"
                .into(),
        ),
        ..Kind::of::<CustomResourceDefinition>(false)
    }
}

pub(super) fn service() -> Kind {
    Kind {
        categories: words(&["api-extensions"]),
        columns: vec![
            column("Service", |_, _| "Local".into()),
            column("Available", |fields, _| {
                let conditions =
                    object(fields, "status").map_or(&[][..], |status| items(status, "conditions"));
                let available = conditions.first().and_then(|first| first.get("status"));
                available.cloned().unwrap_or_default()
            }),
            AGE,
        ],
        review: Some(Review::Groups),
        refused: Some(
            "aggregation is not supported by this version: APIServices are made by the server, one for each version of each \
             group that it serves"
                .into(),
        ),
        ..Kind::of::<APIService>(false)
    }
}
