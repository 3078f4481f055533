//! The admin's way to the API: what a kubeconfig with everything inside says, and one connection by it.

use crate::connection::{Connection, Endpoint};
use crate::error::{Error, Result};
use crate::{files, tls};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

const CURE: &str =
    "use the kubeconfig that `pratique bootstrap` wrote, or `kubectl config view --flatten --minify --raw`";

#[derive(Debug, Deserialize)]
struct File {
    #[serde(rename = "current-context")]
    current: String,
    contexts: Vec<Named>,
    clusters: Vec<Named>,
    users: Vec<Named>,
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

/// The API as an admin reaches it.
pub(crate) struct Api {
    connection: Connection,
    /// The cluster's root certificate, DER.
    pub(crate) root: Vec<u8>,
    /// `https://host:port`.
    pub(crate) server: String,
}

impl Api {
    /// Connects as the kubeconfig's current context says.
    pub(crate) async fn open(path: &Path) -> Result<Self> {
        let text = files::read_text(path)?;
        let fault = |why: String| Error::input(path.display().to_string(), why, CURE);
        let file: File = serde_yaml_ng::from_str(&text).map_err(|e| fault(format!("not a kubeconfig: {e}")))?;
        let context =
            field(&file.contexts, &file.current, "context").ok_or_else(|| fault("no current context".into()))?;
        let part = |kind: &str| context.get(kind).and_then(Value::as_str).unwrap_or_default().to_owned();
        let entry = |list: &[Named], name: String, kind: &str| {
            field(list, &name, kind).ok_or_else(|| fault(format!("no {kind} `{name}`")))
        };
        let cluster = entry(&file.clusters, part("cluster"), "cluster")?;
        let user = entry(&file.users, part("user"), "user")?;
        let data = |table: &Value, key: &str| {
            let text = table.get(key).and_then(Value::as_str).and_then(|text| STANDARD.decode(text).ok());
            text.ok_or_else(|| fault(format!("no `{key}` in it")))
        };
        let authority = data(&cluster, "certificate-authority-data")?;
        let certificate = data(&user, "client-certificate-data")?;
        let key = data(&user, "client-key-data")?;
        let server = cluster.get("server").and_then(Value::as_str).unwrap_or_default().to_owned();
        let roots = master_ca::certificates_of_pem(&String::from_utf8_lossy(&authority));
        let root = roots.into_iter().next().ok_or_else(|| fault("no certificate of the cluster's root".into()))?;
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_no_key| fault("no private key of the user".into()))?;
        let chain = master_ca::certificates_of_pem(&String::from_utf8_lossy(&certificate));
        let config = tls::proven(&root, chain, key.secret_der().to_vec())?;
        let endpoint = Endpoint::parse(&server)?;
        Ok(Self { connection: Connection::open(&endpoint, config).await?, root, server: endpoint.url })
    }

    /// One request; `None` where the object is not there.
    pub(crate) async fn call(&mut self, method: Method, path: &str, body: Option<&Value>) -> Result<Option<Value>> {
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let what = format!("{method} {path}");
        let (status, answer) = self.connection.send(method, path, "application/json", bytes).await?;
        let value: Value = serde_json::from_slice(&answer).unwrap_or_default();
        if status.is_success() {
            return Ok(Some(value));
        }
        if status == http::StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let message = value.get("message").and_then(Value::as_str).unwrap_or("no reason given").to_owned();
        Err(Error::Refused { what, status: status.as_u16(), message })
    }

    /// As [`Api::call`], for what must be there.
    pub(crate) async fn must(&mut self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let what = format!("{method} {path}");
        let answer = self.call(method, path, body).await?;
        answer.ok_or(Error::Refused { what, status: 404, message: "it is not there".to_owned() })
    }
}

fn field(list: &[Named], name: &str, kind: &str) -> Option<Value> {
    list.iter().find(|entry| entry.name == name)?.rest.get(kind).cloned()
}
