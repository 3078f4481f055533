//! The objects by which the admin's tool and the master agree on discovery: a public ConfigMap and a Secret.

/// Namespace of the ConfigMap with what everybody may know.
pub const PUBLIC_NAMESPACE: &str = "kube-public";
/// Namespace of the Secret with the credentials.
pub const SECRET_NAMESPACE: &str = "kube-system";
/// Name of both.
pub const NAME: &str = "pratique-discovery";

/// Of the ConfigMap: PEM of the discovery key's public part.
pub const PUBLIC_KEY: &str = "publicKey";
/// Of the ConfigMap: `sha256:…` of that key, as machines pin it.
pub const PIN: &str = "pin";
/// Of the ConfigMap: the generation that was signed last.
pub const GENERATION: &str = "generation";
/// Of the ConfigMap: when the last document ends, RFC 3339.
pub const EXPIRES: &str = "expires";
/// Of the ConfigMap: the URIs where the last document is served, a line each.
pub const URIS: &str = "uris";
/// Of the ConfigMap: `published`, `unused`, or what is wrong.
pub const STATUS: &str = "status";

/// Of the Secret, after a cluster's id: its URI.
pub const URI_SUFFIX: &str = ".uri";
/// Of the Secret, after a cluster's id: its credential.
pub const CREDENTIAL_SUFFIX: &str = ".credential";
/// Of the Secret: where the masters are, `https://HOST:PORT` with commas between, where the master's own idea is not right.
pub const ENDPOINTS: &str = "endpoints";
