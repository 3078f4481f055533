//! Builds the pods of Jobs.

use super::plan::New;
use crate::workload::make;
use crate::workload::pod::JOB_TRACKING;
use config_kube::k8s_openapi::api::batch::v1::Job;
use config_kube::k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod,
};
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use master_client::Key;

/// The names under which a pod has its index (annotation, label and variable), and the annotations
/// with the failures before it.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// A pod of a Job.
pub(super) fn pod(job: &Job, owner: &OwnerReference, key: &Key, new: &New) -> Pod {
    let Some(spec) = &job.spec else {
        return Pod::default();
    };
    let mut pod = make::pod_of(&spec.template, owner, &key.namespace);
    let meta = &mut pod.metadata;
    let finalizers = meta.finalizers.get_or_insert_default();
    finalizers.push(JOB_TRACKING.to_owned());
    let Some(index) = new.index else { return pod };
    let index = index.to_string();
    meta.generate_name = Some(format!("{}-{index}-", key.name));
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(INDEX.to_owned(), index.clone());
    if let Some(failures) = new.failures {
        annotations.insert(FAILURES.to_owned(), failures.to_string());
        if new.ignored > 0 {
            annotations.insert(IGNORED.to_owned(), new.ignored.to_string());
        }
    }
    let labels = meta.labels.get_or_insert_default();
    labels.insert(INDEX.to_owned(), index.clone());
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(format!("{}-{index}", key.name));
        let init = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(init) {
            add_index(container);
        }
    }
    pod
}

fn add_index(container: &mut Container) {
    let variables = container.env.get_or_insert_default();
    if variables.iter().any(|known| known.name == INDEX_VARIABLE) {
        return;
    }
    variables.push(EnvVar {
        name: INDEX_VARIABLE.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: None,
                field_path: format!("metadata.labels['{INDEX}']"),
            }),
            ..EnvVarSource::default()
        }),
    });
}
