//! The API server by the configuration: authentication, authorization, limits.

use crate::Error;
use crate::clients::{self, Clients};
use crate::settings::Settings;
use config_model::api::{ApiConfig, Authorization};
use master_admission::EnabledPlugins;
use master_api::Options;
use master_auth::{Mode, TokenIssuer, TokenList};
use master_ca::Authority;
use rustls::pki_types::CertificateDer;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of a token file at most.
const TOKEN_FILE: u64 = 16 << 20;

/// Options of the API server. Blocks: reads files, and asks the keeper for a key.
pub(crate) fn options(settings: &Settings, authority: &Authority) -> Result<Options, Error> {
    let config = &settings.cluster.api;
    let names = |list: &[config_model::api::PluginName]| {
        list.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let admission =
        EnabledPlugins::new(&names(&config.admission_on), &names(&config.admission_off));
    let usize_of = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    Ok(Options {
        in_flight: usize_of(config.limits.reads),
        in_flight_mutating: usize_of(config.limits.writes),
        watches: usize_of(config.limits.watches),
        admission: admission.map_err(Error::Admission)?,
        authorization: modes(config),
        tokens: tokens(config)?,
        issuer: Some(Arc::new(issuer(config, authority)?)),
        roles: master_control::roles(&master_controllers::all()),
        ..Options::default()
    })
}

fn modes(config: &ApiConfig) -> Vec<Mode> {
    if config.authorization.contains(&Authorization::AlwaysAllow) {
        tracing::warn!(
            "INSECURE: authorization is [\"AlwaysAllow\"]: anyone who has any credential of this cluster, be it a node's or a \
             pod's, may do everything; take it out of [cluster.api] for anything but a trial"
        );
    }
    let mode = |mode: &Authorization| match mode {
        Authorization::Node => Mode::Node,
        Authorization::Rbac => Mode::Rbac,
        Authorization::AlwaysAllow => Mode::AlwaysAllow,
    };
    config.authorization.iter().map(mode).collect()
}

fn tokens(config: &ApiConfig) -> Result<TokenList, Error> {
    let Some(path) = config
        .token_file
        .as_ref()
        .map(|path| PathBuf::from(path.as_str()))
    else {
        return Ok(TokenList::default());
    };
    let fail = |what, path: &PathBuf, source| Error::File {
        what,
        path: path.clone(),
        source,
    };
    let size = std::fs::metadata(&path)
        .map_err(|source| fail("read", &path, source))?
        .len();
    if size > TOKEN_FILE {
        let source = std::io::Error::other(format!("it has {size} bytes, more than {TOKEN_FILE}"));
        return Err(fail("read", &path, source));
    }
    let text = std::fs::read_to_string(&path).map_err(|source| fail("read", &path, source))?;
    TokenList::parse(&text).map_err(|source| Error::Tokens { path, source })
}

fn issuer(config: &ApiConfig, authority: &Authority) -> Result<TokenIssuer, Error> {
    let key = authority.service_account_key().map_err(Error::Authority)?;
    let retired = authority
        .retired_service_account_keys()
        .map_err(Error::Authority)?;
    let audiences: Vec<String> = config.audiences.iter().map(ToString::to_string).collect();
    let url = config
        .issuer
        .as_ref()
        .map(config_model::api::Issuer::as_str);
    TokenIssuer::new(url, &audiences, &key, &retired).map_err(Error::TokenKey)
}

/// The authorities whose client certificates count: the cluster's own, and those of the
/// configuration.
pub(crate) fn clients(settings: &Settings, authority: Arc<Authority>) -> Result<Clients, Error> {
    let others = settings
        .cluster
        .api
        .client_cas
        .iter()
        .map(|der| CertificateDer::from(der.clone()));
    clients::clients(authority, others.collect())
}
