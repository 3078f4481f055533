//! The cluster's first objects: releases, a policy where the configuration seeded none, and the
//! master's own Machine with the admin's signed verdict.

use super::expect::Expected;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::files::tell;
use bytes::Bytes;
use config_kube::identity::{NODE_CLIENT_SIGNER, NODE_SERVING_SIGNER};
use config_kube::k8s_openapi::Resource;
use config_kube::machine::AdminVerdict;
use config_kube::policy::{CertificateRule, ConfigRule, EkRule, ImageRule};
use config_kube::{CertificatePolicy, CertificatePolicySpec, Machine, PolicyName, Rule, ToJson};
use http::{Method, StatusCode};
use serde_json::json;

/// Name of the policy that the master uses.
const POLICY: &str = "cluster";

/// Creates what is missing.
pub(crate) async fn create(
    api: &mut Connection,
    expected: &Expected,
    verdict: &AdminVerdict,
) -> Result<()> {
    for release in &expected.releases {
        put_in(
            api,
            release,
            release.metadata.name.as_deref().unwrap_or_default(),
        )
        .await?;
    }
    if expected.cluster.policy.rules.is_empty() {
        let policy = CertificatePolicy::named(POLICY, default_policy(expected));
        put_in(api, &policy, POLICY).await?;
    }
    let name = expected.machine_name().to_owned();
    put_in(api, &expected.machine, &name).await?;
    show_verdict(api, &name, verdict).await
}

/// Creates an object; one of that name that is there already stays.
async fn put_in<T: Resource + ToJson>(api: &mut Connection, object: &T, name: &str) -> Result<()> {
    let path = collection::<T>();
    let what = format!("{} `{name}`", T::KIND);
    let (status, body) = api
        .send(
            Method::POST,
            &path,
            "application/json",
            encode(object, &what)?,
        )
        .await?;
    match status {
        StatusCode::CONFLICT => tell(&format!("{what} was there already and is left as it is")),
        status if status.is_success() => tell(&format!("created {what}")),
        status => return Err(refused(&what, status, &body)),
    }
    Ok(())
}

/// Writes the admin's verdict into the Machine's status: by a patch, as the master has begun to
/// write there, too, and a whole status that was read before would be refused.
async fn show_verdict(api: &mut Connection, name: &str, verdict: &AdminVerdict) -> Result<()> {
    let what = format!("the verdict on Machine `{name}`");
    let change = json!({"status": {"adminVerdict": verdict}});
    let path = format!("{}/{name}/status", collection::<Machine>());
    let (status, body) = api
        .send(
            Method::PATCH,
            &path,
            "application/merge-patch+json",
            change.to_string().into_bytes(),
        )
        .await?;
    if status.is_success() {
        Ok(())
    } else {
        Err(refused(&what, status, &body))
    }
}

fn collection<T: Resource>() -> String {
    format!("/apis/{}/{}", T::API_VERSION, T::URL_PATH_SEGMENT)
}

fn encode(object: &impl ToJson, what: &str) -> Result<Vec<u8>> {
    object.to_json().map_err(|e| Error::Answer {
        what: what.to_owned(),
        why: e.to_string(),
    })
}

/// The error of an API `Status`, or of any other body.
fn refused(what: &str, status: StatusCode, body: &Bytes) -> Error {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let message = value
        .get("message")
        .and_then(serde_json::Value::as_str)
        .unwrap_or("no reason given");
    Error::Refused {
        what: what.to_owned(),
        status: status.as_u16(),
        message: message.to_owned(),
    }
}

/// Machines of the inventory, with its EKs and configurations, on releases by the cluster's keys.
fn default_policy(expected: &Expected) -> CertificatePolicySpec {
    let keys = expected
        .cluster
        .release_keys
        .iter()
        .map(|key| key.name.to_string())
        .collect();
    let rule = Rule {
        name: "machines".to_owned(),
        signers: vec![
            NODE_CLIENT_SIGNER.to_owned(),
            NODE_SERVING_SIGNER.to_owned(),
        ],
        policy: PolicyName::CloudVerify,
        ek: EkRule {
            issuers: Vec::new(),
            hashes: "inventory".to_owned(),
            require: "all".to_owned(),
            ..EkRule::default()
        },
        images: ImageRule {
            release_keys: keys,
            min_svn: 0,
            max_concurrent: 0,
        },
        config: ConfigRule {
            measured: true,
            digests: "inventory".to_owned(),
            privileged_pods: super::expect::allowed(expected.privileged),
        },
        certificate: CertificateRule {
            sans: "inventory".to_owned(),
            roles: vec!["worker".to_owned(), "master".to_owned()],
            ..CertificateRule::default()
        },
        ..Rule::default()
    };
    CertificatePolicySpec { rules: vec![rule] }
}
