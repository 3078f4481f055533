//! The admin's access to the API: a kubeconfig with embedded credentials, and one connection with
//! it.

use crate::connection::{Connection, Endpoint};
use crate::error::{Error, Result};
use crate::{files, tls};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_http::Body;
use http::Method;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

const KUBECONFIG_HINT: &str = "use the kubeconfig that `pratique bootstrap` wrote, or `kubectl config view --flatten --minify --raw`";

#[derive(Debug, Deserialize)]
struct KubeconfigFile {
    #[serde(rename = "current-context")]
    current: String,
    contexts: Vec<NamedEntry>,
    clusters: Vec<NamedEntry>,
    users: Vec<NamedEntry>,
}

#[derive(Debug, Deserialize)]
struct NamedEntry {
    name: String,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

/// The API as an admin reaches it.
pub(crate) struct Api {
    connection: Connection,
    /// The cluster's root certificates, DER; at least one.
    pub(crate) roots: Vec<Vec<u8>>,
    /// `https://host:port`.
    pub(crate) server: String,
}

impl Api {
    /// Connects as the kubeconfig's current context says.
    pub(crate) async fn open(path: &Path) -> Result<Self> {
        let text = files::read_text(path)?;
        let fault = |why: String| Error::input(path.display().to_string(), why, KUBECONFIG_HINT);
        let file: KubeconfigFile =
            serde_yaml_ng::from_str(&text).map_err(|e| fault(format!("not a kubeconfig: {e}")))?;
        let context = field(&file.contexts, &file.current, "context")
            .ok_or_else(|| fault("no current context".into()))?;
        let part = |kind: &str| {
            context
                .get(kind)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let entry = |list: &[NamedEntry], name: String, kind: &str| {
            field(list, &name, kind).ok_or_else(|| fault(format!("no {kind} `{name}`")))
        };
        let cluster = entry(&file.clusters, part("cluster"), "cluster")?;
        let user = entry(&file.users, part("user"), "user")?;
        let data = |table: &Value, key: &str| {
            let text = table
                .get(key)
                .and_then(Value::as_str)
                .and_then(|text| STANDARD.decode(text).ok());
            text.ok_or_else(|| fault(format!("no `{key}` in it")))
        };
        let authority = data(&cluster, "certificate-authority-data")?;
        let certificate = data(&user, "client-certificate-data")?;
        let key = data(&user, "client-key-data")?;
        let server = cluster
            .get("server")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let roots = master_ca::certificates_of_pem(&String::from_utf8_lossy(&authority));
        if roots.is_empty() {
            return Err(fault("no certificate of the cluster's root".into()));
        }
        let key = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|_no_key| fault("no private key of the user".into()))?;
        let chain = master_ca::certificates_of_pem(&String::from_utf8_lossy(&certificate));
        let config = tls::proven(&roots, chain, key.secret_der().to_vec())?;
        let endpoint = Endpoint::parse(&server)?;
        Ok(Self {
            connection: Connection::open(&endpoint, config).await?,
            roots,
            server: endpoint.url,
        })
    }

    /// One request; `None` where the object is not there.
    pub(crate) async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Option<Value>> {
        let bytes = body
            .map(|body| body.to_string().into_bytes())
            .unwrap_or_default();
        // The only form of a change that the tool sends.
        let content_type = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let what = format!("{method} {path}");
        let (status, answer) = self
            .connection
            .send(method, path, content_type, bytes)
            .await?;
        let value: Value = serde_json::from_slice(&answer).unwrap_or_default();
        if status.is_success() {
            return Ok(Some(value));
        }
        if status == http::StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let message = value
            .get("message")
            .and_then(Value::as_str)
            .unwrap_or("no reason given")
            .to_owned();
        Err(Error::Refused {
            what,
            status: status.as_u16(),
            message,
        })
    }

    /// GET, whose answer is read piece by piece.
    pub(crate) async fn stream(&mut self, path: &str) -> Result<(http::StatusCode, Body)> {
        self.connection.stream(path).await
    }

    /// As [`Api::call`], for an object that must exist.
    pub(crate) async fn must(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        let what = format!("{method} {path}");
        let answer = self.call(method, path, body).await?;
        answer.ok_or(Error::Refused {
            what,
            status: 404,
            message: "it is not there".to_owned(),
        })
    }
}

/// The kubeconfig's text with other roots (PEM) and another certificate (PEM) for its key.
/// Everything else stays, except comments and the order of fields.
pub(crate) fn renewed(path: &Path, text: &str, roots: &str, certificate: &str) -> Result<String> {
    let fault = |why: &str| Error::input(path.display().to_string(), why, KUBECONFIG_HINT);
    let mut file: Value =
        serde_yaml_ng::from_str(text).map_err(|_no_yaml| fault("not a kubeconfig"))?;
    let current = file["current-context"].clone();
    let context = |kind: &str| {
        let named = file["contexts"]
            .as_array()?
            .iter()
            .find(|entry| entry["name"] == current)?;
        Some(named["context"][kind].clone())
    };
    let (cluster, user) = (context("cluster"), context("user"));
    let mut set = |list: &str, name: Option<Value>, part: &str, field: &str, pem: &str| {
        let entry = file[list]
            .as_array_mut()?
            .iter_mut()
            .find(|entry| Some(&entry["name"]) == name.as_ref())?;
        entry
            .get_mut(part)?
            .as_object_mut()?
            .insert(field.to_owned(), STANDARD.encode(pem).into())
    };
    set(
        "clusters",
        cluster,
        "cluster",
        "certificate-authority-data",
        roots,
    )
    .ok_or_else(|| fault("no such cluster"))?;
    set(
        "users",
        user,
        "user",
        "client-certificate-data",
        certificate,
    )
    .ok_or_else(|| fault("no such user"))?;
    // A file that bootstrap wrote is JSON, and stays JSON.
    if text.trim_start().starts_with('{') {
        return Ok(format!("{file:#}\n"));
    }
    serde_yaml_ng::to_string(&file).map_err(|error| fault(&error.to_string()))
}

fn field(list: &[NamedEntry], name: &str, kind: &str) -> Option<Value> {
    list.iter()
        .find(|entry| entry.name == name)?
        .rest
        .get(kind)
        .cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "current-context: b\ncontexts: [{name: a, context: {cluster: a, user: a}}, {name: b, context: {cluster: \
                        b, user: ub, namespace: n}}]\nclusters: [{name: a, cluster: {certificate-authority-data: QQ==}}, {name: \
                        b, cluster: {server: s, certificate-authority-data: QQ==}}]\nusers: [{name: ub, user: \
                        {client-certificate-data: QQ==, client-key-data: a2V5}}]\n";

    #[test]
    fn only_the_current_contexts_trust_and_certificate_are_renewed() {
        let renewed = renewed(Path::new("k"), FILE, "roots", "chain").unwrap();
        let value: Value = serde_yaml_ng::from_str(&renewed).unwrap();
        assert_eq!(
            value["clusters"][0]["cluster"]["certificate-authority-data"],
            "QQ=="
        );
        assert_eq!(
            value["clusters"][1]["cluster"]["certificate-authority-data"],
            STANDARD.encode("roots")
        );
        assert_eq!(
            value["users"][0]["user"]["client-certificate-data"],
            STANDARD.encode("chain")
        );
        assert_eq!(value["users"][0]["user"]["client-key-data"], "a2V5");
        assert_eq!(value["contexts"][1]["context"]["namespace"], "n");
        assert!(super::renewed(Path::new("k"), "current-context: c", "", "").is_err());
    }
}
