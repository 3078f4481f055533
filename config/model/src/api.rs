//! `[cluster.api]`: authentication, authorization, admission and limits of the API.

use crate::defaults::{API_EXCHANGES, API_LIMIT_MAX, API_READS, API_WATCHES, API_WRITES};
use crate::fault::{FaultKind, Sink};
use crate::format::{FormatError, one_of, text_type};
use crate::pem;
use crate::raw::{RawAdmission, RawApi, RawApiLimits};
use crate::read::At;

/// How the API authenticates, authorizes and admits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiConfig {
    /// Authorization modes, in order.
    pub authorization: Vec<Authorization>,
    /// CAs whose client certificates are accepted besides the cluster's own, as DER.
    pub client_cas: Vec<Vec<u8>>,
    /// A file with static tokens (upstream's CSV).
    pub token_file: Option<FilePath>,
    /// Issuer of service account tokens; `None`: the cluster's own name for its API.
    pub issuer: Option<Issuer>,
    /// Audiences of these tokens besides their issuer.
    pub audiences: Vec<Audience>,
    /// Admission plugins that are enabled besides the default ones, by upstream's names.
    pub admission_on: Vec<PluginName>,
    /// Admission plugins that are disabled.
    pub admission_off: Vec<PluginName>,
    /// Concurrent requests.
    pub limits: ApiLimits,
}

/// An authorization mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authorization {
    /// Nodes may use their own objects.
    Node,
    /// Roles and bindings.
    Rbac,
    /// Every caller may do everything.
    AlwaysAllow,
}

/// Limits of concurrent requests; further ones get 429.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiLimits {
    /// Requests that read.
    pub reads: u32,
    /// Requests that write.
    pub writes: u32,
    /// Open watches.
    pub watches: u32,
    /// Attestation exchanges in progress, for joins; the same number again for renewals.
    pub exchanges: u32,
}

text_type!(
    /// An absolute path on the master's machine.
    FilePath,
    file_path
);
text_type!(
    /// An issuer of tokens: `https://`, a host and an optional path, without query or fragment.
    Issuer,
    issuer
);
text_type!(
    /// An audience of tokens: any text without white space.
    Audience,
    audience
);
text_type!(
    /// The name of an admission plugin, such as `PodSecurity`.
    PluginName,
    plugin
);

fn file_path(text: &str) -> Result<(), FormatError> {
    let clean = text.len() > 1 && text.len() <= 4096 && !text.contains('\0');
    if clean && text.starts_with('/') && !text.split('/').any(|part| part == "..") {
        return Ok(());
    }
    Err(FormatError::new(
        "an absolute path without `..`, such as `/etc/pratique/tokens.csv`",
    ))
}

fn issuer(text: &str) -> Result<(), FormatError> {
    let error = || {
        FormatError::new(
            "an `https://` URL without query or fragment, such as `https://api.example`",
        )
    };
    let rest = text.strip_prefix("https://").ok_or_else(error)?;
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"?#\"\\<>@".contains(&byte);
    if rest.is_empty() || rest.starts_with('/') || text.len() > 1024 || !rest.bytes().all(plain) {
        return Err(error());
    }
    Ok(())
}

fn audience(text: &str) -> Result<(), FormatError> {
    let plain =
        !text.is_empty() && text.len() <= 1024 && text.bytes().all(|byte| byte.is_ascii_graphic());
    if plain {
        Ok(())
    } else {
        Err(FormatError::new("1 to 1024 visible ASCII characters"))
    }
}

fn plugin(text: &str) -> Result<(), FormatError> {
    let word = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if word && text.starts_with(|first: char| first.is_ascii_uppercase()) && text.len() <= 64 {
        return Ok(());
    }
    Err(FormatError::new(
        "an admission plugin's name as upstream writes it, such as `PodSecurity`",
    ))
}

impl Default for ApiLimits {
    fn default() -> Self {
        Self {
            reads: API_READS,
            writes: API_WRITES,
            watches: API_WATCHES,
            exchanges: API_EXCHANGES,
        }
    }
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            authorization: vec![Authorization::Node, Authorization::Rbac],
            client_cas: Vec::new(),
            token_file: None,
            issuer: None,
            audiences: Vec::new(),
            admission_on: Vec::new(),
            admission_off: Vec::new(),
            limits: ApiLimits::default(),
        }
    }
}

/// Checks the section.
pub(crate) fn check(raw: Option<At<RawApi>>, sink: &mut Sink<'_>) -> ApiConfig {
    let Some(At { value: raw, .. }) = raw else {
        return ApiConfig::default();
    };
    let client_cas = raw
        .client_cas
        .and_then(|text| sink.parsed(&text, pem::certificates(&text.value)));
    let (admission_on, admission_off) = admission(raw.admission, sink);
    ApiConfig {
        authorization: authorization(raw.authorization, sink),
        client_cas: client_cas.unwrap_or_default(),
        token_file: raw.token_file.and_then(|text| sink.parse(&text)),
        issuer: raw.issuer.and_then(|text| sink.parse(&text)),
        audiences: sink.parse_list(raw.audiences.as_ref()),
        admission_on,
        admission_off,
        limits: limits(raw.limits, sink),
    }
}

const MODES: &[(&str, Authorization)] = &[
    ("Node", Authorization::Node),
    ("RBAC", Authorization::Rbac),
    ("AlwaysAllow", Authorization::AlwaysAllow),
];

fn authorization(raw: Option<At<Vec<At<String>>>>, sink: &mut Sink<'_>) -> Vec<Authorization> {
    let Some(list) = raw else {
        return ApiConfig::default().authorization;
    };
    sink.not_empty(&list, "at least one of \"Node\", \"RBAC\", \"AlwaysAllow\"");
    let mut modes = Vec::new();
    for text in &list.value {
        let Some(mode) = sink.parsed(text, one_of(&text.value, MODES)) else {
            continue;
        };
        if modes.contains(&mode) {
            sink.fault(
                FaultKind::Duplicate,
                &text.place,
                format!("{} a second time", text.value),
                "each once",
            );
            continue;
        }
        modes.push(mode);
    }
    if modes.len() > 1 && modes.contains(&Authorization::AlwaysAllow) {
        sink.fault(
            FaultKind::Conflict,
            &list.place,
            "`AlwaysAllow` beside others",
            "`AlwaysAllow` alone, or only the others: beside it they decide nothing",
        );
    }
    modes
}

fn admission(
    raw: Option<At<RawAdmission>>,
    sink: &mut Sink<'_>,
) -> (Vec<PluginName>, Vec<PluginName>) {
    let Some(At { value: raw, .. }) = raw else {
        return (Vec::new(), Vec::new());
    };
    let on: Vec<PluginName> = sink.parse_list(raw.enable.as_ref());
    for text in raw.disable.iter().flat_map(|list| &list.value) {
        if on.iter().any(|name| name.as_str() == text.value) {
            sink.fault(
                FaultKind::Conflict,
                &text.place,
                format!("{} in both lists", text.value),
                "one of them",
            );
        }
    }
    (on, sink.parse_list(raw.disable.as_ref()))
}

fn limits(raw: Option<At<RawApiLimits>>, sink: &mut Sink<'_>) -> ApiLimits {
    let usual = ApiLimits::default();
    let Some(At { value: raw, .. }) = raw else {
        return usual;
    };
    let mut number = |value: Option<At<i64>>, usual| {
        value
            .and_then(|value| sink.number(&value, &(1..=API_LIMIT_MAX)))
            .unwrap_or(usual)
    };
    ApiLimits {
        reads: number(raw.reads, usual.reads),
        writes: number(raw.writes, usual.writes),
        watches: number(raw.watches, usual.watches),
        exchanges: number(raw.exchanges, usual.exchanges),
    }
}
