//! `[registries]` and `[[registry]]`: sources of container images, their TLS roots, and
//! credentials.

use crate::check::Names;
use crate::defaults::DEFAULT_REGISTRY;
use crate::fault::{FaultKind, Position, Sink};
use crate::format::{FormatError, HostPort, MirrorUrl};
use crate::pem;
use crate::raw::{RawRegistries, RawRegistry};
use crate::read::At;

pub use crate::secret::Secret;

/// Bytes of a user name.
const MAX_USERNAME: usize = 255;
/// Bytes of a password or token: tokens of clouds have a few thousand.
const MAX_SECRET: usize = 16 * 1024;

/// Sources of container images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registries {
    /// The registry of image names without a host, with its port if it has one.
    pub default: String,
    /// TLS roots for all registries besides those of the image, DER.
    pub ca: Vec<Vec<u8>>,
    /// Registries with settings of their own.
    pub list: Vec<Registry>,
}

/// How to pull images of one registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    /// The registry's host, as in image names.
    pub host: HostPort,
    /// Mirrors, tried in order before the registry itself.
    pub mirrors: Vec<MirrorUrl>,
    /// Whether the registry itself is never contacted.
    pub mirrors_only: bool,
    /// Whether plain http is allowed: for mirrors with an http URL; if there is none, for the
    /// registry itself.
    pub insecure: bool,
    /// TLS roots for it and its mirrors besides those for all, DER.
    pub ca: Vec<Vec<u8>>,
    /// Hosts of token services, besides its own, to which its credentials may be sent.
    pub token_hosts: Vec<HostPort>,
    /// The machine's credentials at the registry, for all of its pods.
    pub credential: Option<Credential>,
}

/// One way to authenticate at a registry: the machine by its configuration, or a pod by its pull
/// secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// `username` and `password`, for Basic authentication (RFC 7617) at the registry or at its
    /// token service.
    Password {
        /// The name; it has no colon.
        username: String,
        /// The password.
        password: Secret,
    },
    /// `identity_token`: an OAuth 2.0 refresh token, which the registry's token service changes for
    /// an access token (RFC 6749, section 6).
    IdentityToken(Secret),
    /// `registry_token`: a token that the registry itself accepts.
    RegistryToken(Secret),
}

impl Registries {
    /// Whether the document contains credentials.
    pub fn has_credentials(&self) -> bool {
        self.list
            .iter()
            .any(|registry| registry.credential.is_some())
    }
}

/// Checks both tables.
pub(crate) fn check(
    common: Option<At<RawRegistries>>,
    list: Option<At<Vec<At<RawRegistry>>>>,
    sink: &mut Sink<'_>,
) -> Registries {
    let common = common.map(|table| table.value).unwrap_or_default();
    let default = common
        .default
        .and_then(|text| sink.parse::<HostPort>(&text));
    let ca = roots(common.ca.as_ref(), sink);
    let mut names = Names::default();
    let entries = list.map(|list| list.value).unwrap_or_default();
    let list = entries
        .into_iter()
        .filter_map(|entry| registry(entry, &mut names, sink))
        .collect();
    Registries {
        default: default.map_or_else(|| DEFAULT_REGISTRY.to_owned(), |host| host.to_string()),
        ca,
        list,
    }
}

fn roots(text: Option<&At<String>>, sink: &mut Sink<'_>) -> Vec<Vec<u8>> {
    text.and_then(|text| sink.parsed(text, pem::certificates(&text.value)))
        .unwrap_or_default()
}

fn registry(entry: At<RawRegistry>, names: &mut Names, sink: &mut Sink<'_>) -> Option<Registry> {
    let At {
        value: mut raw,
        place,
    } = entry;
    let host = sink.required(
        raw.host.take(),
        &place,
        "host",
        "the registry's host as in image names",
    );
    let host = host.and_then(|text| Some((sink.parse::<HostPort>(&text)?, text.place)));
    if let Some((host, place)) = &host {
        names.add(&host.to_string(), place, sink);
    }
    let insecure = raw.insecure.as_ref().is_some_and(|flag| flag.value);
    let mirrors: Vec<MirrorUrl> = sink.parse_list(raw.mirrors.as_ref());
    for text in raw.mirrors.iter().flat_map(|list| &list.value) {
        if !insecure && text.value.starts_with("http://") {
            let suggestion =
                Some("add `insecure = true` if the network to it is trusted".to_owned());
            let found = format!(
                "the mirror {} without TLS",
                crate::check::quoted(&text.value)
            );
            sink.suggest(FaultKind::Conflict, &text.place, found, "https", suggestion);
        }
    }
    let ca = roots(raw.ca.as_ref(), sink);
    let token_hosts = sink.parse_list(raw.token_hosts.as_ref());
    let only = raw.mirrors_only.take().filter(|flag| flag.value);
    let mirrors_only = only.is_some();
    if let (Some(flag), true) = (
        &only,
        raw.mirrors
            .as_ref()
            .is_none_or(|list| list.value.is_empty()),
    ) {
        let found = "`mirrors_only = true` without `mirrors`";
        sink.fault(
            FaultKind::Conflict,
            &flag.place,
            found,
            "at least one mirror: with `mirrors_only` nothing else is asked",
        );
    }
    let plain = insecure && mirrors.iter().all(|mirror| mirror.tls);
    let at = credential_place(&raw);
    let credential = credential(raw, &place, sink);
    if let Some(at) = at {
        never_sent(&at, mirrors_only, plain, sink);
    }
    Some(Registry {
        host: host?.0,
        mirrors,
        mirrors_only,
        insecure,
        ca,
        token_hosts,
        credential,
    })
}

/// The position of the first part of a credential.
fn credential_place(raw: &RawRegistry) -> Option<Position> {
    let secrets = [&raw.password, &raw.identity_token, &raw.registry_token]
        .into_iter()
        .flatten();
    let mut places = secrets
        .map(|part| &part.place)
        .chain(raw.username.as_ref().map(|part| &part.place));
    places.next().cloned()
}

/// Credentials that would never be sent are a mistake.
fn never_sent(at: &Position, mirrors_only: bool, plain: bool, sink: &mut Sink<'_>) {
    if mirrors_only {
        let suggestion =
            "credentials of a mirror belong in a `[[registry]]` of the mirror's own host"
                .to_owned();
        let found = "a credential of a registry that is never asked";
        sink.suggest(
            FaultKind::Conflict,
            at,
            found,
            "no credential beside `mirrors_only = true`",
            Some(suggestion),
        );
    } else if plain {
        let found = "a credential beside `insecure = true`, which means this registry itself";
        sink.fault(
            FaultKind::Conflict,
            at,
            found,
            "a registry with TLS: no credential is sent over plain http",
        );
    }
}

fn credential(raw: RawRegistry, table: &Position, sink: &mut Sink<'_>) -> Option<Credential> {
    let tokens = [raw.identity_token.is_some(), raw.registry_token.is_some()];
    let pair = raw.username.is_some() || raw.password.is_some();
    if tokens
        .into_iter()
        .chain([pair])
        .filter(|given| *given)
        .count()
        > 1
    {
        let extra = raw.registry_token.as_ref().or(raw.identity_token.as_ref());
        let place = extra.map_or(table, |extra| &extra.place);
        let expected = "one of `username` and `password`, `identity_token`, `registry_token`";
        sink.fault(FaultKind::Conflict, place, "a second credential", expected);
        return None;
    }
    if let Some(token) = raw.identity_token {
        return secret(token, true, sink).map(Credential::IdentityToken);
    }
    if let Some(token) = raw.registry_token {
        return secret(token, true, sink).map(Credential::RegistryToken);
    }
    if !pair {
        return None;
    }
    let username = sink.required(
        raw.username,
        table,
        "username",
        "the name that belongs to `password`",
    );
    let password = sink.required(
        raw.password,
        table,
        "password",
        "the password that belongs to `username`",
    );
    let username = username.and_then(|text| sink.parsed(&text, user(&text.value)));
    let password = password.and_then(|text| secret(text, false, sink));
    Some(Credential::Password {
        username: username?,
        password: password?,
    })
}

fn user(text: &str) -> Result<String, FormatError> {
    let fits = (1..=MAX_USERNAME).contains(&text.len())
        && !text.contains(|c: char| c == ':' || c.is_control());
    let expected = "1 to 255 characters without `:`, which ends the name on the wire (RFC 7617)";
    if fits {
        Ok(text.to_owned())
    } else {
        Err(FormatError::new(expected))
    }
}

/// A password, or a token, which is sent unchanged in a header. No part of it is shown in a fault.
fn secret(text: At<Secret>, token: bool, sink: &mut Sink<'_>) -> Option<Secret> {
    let value = text.value.reveal();
    let fits = |c: char| {
        if token {
            c.is_ascii_graphic()
        } else {
            !c.is_control()
        }
    };
    if (1..=MAX_SECRET).contains(&value.len()) && value.chars().all(fits) {
        return Some(text.value);
    }
    let expected = if token {
        "a token of 1 to 16384 visible ASCII characters"
    } else {
        "a password of 1 to 16384 bytes"
    };
    sink.fault(FaultKind::BadValue, &text.place, "something else", expected);
    None
}
