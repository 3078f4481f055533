//! Callers at the kubelet's port, as the master judges them.

use crate::Parts;
use agent_api::{Api, ApiError, JSON, post};
use agent_port::{ClusterUser, Reviews, Unreviewed};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A review's answer.
#[derive(Debug, Deserialize)]
struct Reviewed<T> {
    #[serde(default)]
    status: T,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TokenStatus {
    authenticated: bool,
    user: Option<UserInfo>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct UserInfo {
    username: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
    denied: bool,
}

async fn review<T: Default + for<'de> Deserialize<'de>>(
    api: &dyn Api,
    path: &str,
    question: &Value,
) -> Result<T, Unreviewed> {
    let answer: Result<Reviewed<T>, ApiError> = post(api, path.to_owned(), JSON, question).await;
    match answer {
        Ok(reviewed) => Ok(reviewed.status),
        Err(error) => Err(Unreviewed(error.chain())),
    }
}

impl Reviews for Parts {
    async fn token(&self, token: &str) -> Result<Option<ClusterUser>, Unreviewed> {
        let question = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        });
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let status: TokenStatus = review(&*self.api, path, &question).await?;
        let user = status
            .user
            .filter(|user| status.authenticated && !user.username.is_empty());
        Ok(user.map(|user| ClusterUser {
            name: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra.into_iter().collect(),
        }))
    }

    async fn may(
        &self,
        user: &ClusterUser,
        verb: &str,
        subresource: &str,
    ) -> Result<bool, Unreviewed> {
        let extra: BTreeMap<&str, &[String]> = user
            .extra
            .iter()
            .map(|(name, values)| (&**name, &**values))
            .collect();
        let question = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user.name,
                "uid": user.uid,
                "groups": user.groups,
                "extra": extra,
                "resourceAttributes": {
                    "verb": verb,
                    "version": "v1",
                    "resource": "nodes",
                    "subresource": subresource,
                    "name": self.name,
                },
            },
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let status: AccessStatus = review(&*self.api, path, &question).await?;
        Ok(status.allowed && !status.denied)
    }
}
