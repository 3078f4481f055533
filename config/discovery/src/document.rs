//! The signed content: raw JSON, and the checked document.

use crate::fault::DocumentFault;
use crate::{MAX_LIFE, MAX_LIST, VERSION, object};
use config_model::discovery::ClusterId;
use config_model::format::{Endpoint, FormatError, Pin};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::str::FromStr;

/// The masters of a cluster, and the roots that identify them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The cluster's id at the endpoint.
    pub cluster: ClusterId,
    /// Increases with every document that the cluster signs.
    pub generation: u64,
    /// Time of signing, Unix seconds.
    pub issued: u64,
    /// Expiry, Unix seconds.
    pub expires: u64,
    /// Masters, in the order in which to try them; at least one.
    pub endpoints: Vec<Endpoint>,
    /// SHA-256 of the SubjectPublicKeyInfo of the cluster's roots; at least one.
    pub ca_pins: Vec<Pin>,
}

/// The document as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Raw {
    version: u64,
    cluster: String,
    generation: u64,
    issued: u64,
    expires: u64,
    endpoints: Vec<String>,
    ca_pins: Vec<String>,
}

/// The version alone, so that another version is reported as such whatever else differs.
#[derive(Deserialize)]
struct VersionOnly {
    version: u64,
}

impl Document {
    /// The exact bytes that are signed.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, DocumentFault> {
        let raw = Raw {
            version: VERSION,
            cluster: self.cluster.to_string(),
            generation: self.generation,
            issued: self.issued,
            expires: self.expires,
            endpoints: self.endpoints.iter().map(ToString::to_string).collect(),
            ca_pins: self.ca_pins.iter().map(ToString::to_string).collect(),
        };
        let bytes = serde_json::to_vec(&raw)
            .map_err(|error| DocumentFault::Malformed(error.to_string()))?;
        Self::decode(&bytes)?;
        Ok(bytes)
    }

    /// Decodes signed bytes. Anything but an object, duplicate keys, unknown keys and trailing
    /// bytes are faults.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DocumentFault> {
        let VersionOnly { version } = object::parse(bytes)?;
        if version != VERSION {
            return Err(DocumentFault::Version { found: version });
        }
        let raw: Raw = object::parse(bytes)?;
        if raw.expires <= raw.issued || raw.expires - raw.issued > MAX_LIFE {
            let why = format!("`expires` must lie after `issued`, by at most {MAX_LIFE} s");
            return Err(DocumentFault::Malformed(why));
        }
        Ok(Self {
            cluster: raw
                .cluster
                .parse()
                .map_err(|error: FormatError| DocumentFault::Malformed(error.to_string()))?,
            generation: raw.generation,
            issued: raw.issued,
            expires: raw.expires,
            endpoints: list("endpoints", &raw.endpoints)?,
            ca_pins: list("caPins", &raw.ca_pins)?,
        })
    }
}

/// One to [`MAX_LIST`] values, each in canonical form, without duplicates.
fn list<T: FromStr + Display + PartialEq>(
    name: &str,
    texts: &[String],
) -> Result<Vec<T>, DocumentFault> {
    let fault = |why: &str| DocumentFault::Malformed(format!("`{name}` {why}"));
    if texts.is_empty() || texts.len() > MAX_LIST {
        return Err(fault("must have 1 to 16 elements"));
    }
    let mut values = Vec::new();
    for text in texts {
        let value: T = text
            .parse()
            .ok()
            .filter(|value: &T| value.to_string() == *text)
            .ok_or_else(|| fault("has an element that is not in its form"))?;
        if values.contains(&value) {
            return Err(fault("has an element twice"));
        }
        values.push(value);
    }
    Ok(values)
}
