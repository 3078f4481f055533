//! Kubeconfig files for kubectl, with embedded credentials and no paths to other files.

use serde_json::json;

/// The content of a kubeconfig.
#[derive(Debug, Clone)]
pub struct Kubeconfig<'a> {
    /// Name of the cluster.
    pub cluster: &'a str,
    /// `https://host:port`.
    pub server: &'a str,
    /// Base64 of the PEM of the root certificate.
    pub ca: &'a str,
    /// Base64 of the PEM of the client certificate and its intermediate.
    pub certificate: &'a str,
    /// Base64 of the PEM of the client's private key.
    pub key: &'a str,
}

impl Kubeconfig<'_> {
    /// The file's text (JSON, which is YAML).
    pub fn text(&self) -> String {
        let user = format!("admin@{}", self.cluster);
        let value = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": self.cluster,
            "clusters": [{
                "name": self.cluster,
                "cluster": { "server": self.server, "certificate-authority-data": self.ca },
            }],
            "users": [{
                "name": user,
                "user": { "client-certificate-data": self.certificate, "client-key-data": self.key },
            }],
            "contexts": [{ "name": self.cluster, "context": { "cluster": self.cluster, "user": user } }],
        });
        format!("{value:#}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_names_cluster_and_user() {
        let text = Kubeconfig {
            cluster: "lab",
            server: "https://127.0.0.1:1",
            ca: "Y2E=",
            certificate: "Yw==",
            key: "aw==",
        }
        .text();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value["contexts"][0]["context"]["user"],
            value["users"][0]["name"]
        );
        assert_eq!(value["current-context"], value["contexts"][0]["name"]);
        assert_eq!(
            value["contexts"][0]["context"]["cluster"],
            value["clusters"][0]["name"]
        );
    }
}
