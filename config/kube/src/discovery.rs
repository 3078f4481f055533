//! The objects that connect the admin's tool and the master for discovery: a public ConfigMap and a
//! Secret.

/// Namespace of the ConfigMap with public information.
pub const PUBLIC_NAMESPACE: &str = "kube-public";
/// Namespace of the Secret with the credentials.
pub const SECRET_NAMESPACE: &str = "kube-system";
/// Name of both.
pub const NAME: &str = "pratique-discovery";

/// Key in the ConfigMap: PEM of the discovery key's public part.
pub const PUBLIC_KEY: &str = "publicKey";
/// Key in the ConfigMap: `sha256:…` of that key, which machines pin.
pub const PIN: &str = "pin";
/// Key in the ConfigMap: the last signed generation.
pub const GENERATION: &str = "generation";
/// Key in the ConfigMap: expiry of the last document, RFC 3339.
pub const EXPIRES: &str = "expires";
/// Key in the ConfigMap: the URIs of the last document, one per line.
pub const URIS: &str = "uris";
/// Key in the ConfigMap: `published`, `unused`, or an error.
pub const STATUS: &str = "status";

/// Suffix of a key in the Secret, after a cluster's id: its URI.
pub const URI_SUFFIX: &str = ".uri";
/// Suffix of a key in the Secret, after a cluster's id: its credential.
pub const CREDENTIAL_SUFFIX: &str = ".credential";
/// Key in the Secret: the addresses of the masters, `https://HOST:PORT` separated by commas, if the
/// default is wrong.
pub const ENDPOINTS: &str = "endpoints";
