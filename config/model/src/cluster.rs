//! `kind = "cluster"`, and the same sections in the first master's machine document.

use crate::api::{self, ApiConfig};
use crate::check::{Names, named};
use crate::defaults::{CLUSTER_NAME, NODE_PORTS};
use crate::fault::{FaultKind, Sink};
use crate::format::{Cidr, DnsLabel, FormatError, Host, Pin, one_of};
use crate::pem::{self, P256PublicKey};
use crate::pod_range::{self, PodRange};
use crate::raw::{RawCluster, RawEkIssuer, RawReleaseKey, RawRule, RawStorage};
use crate::read::At;
use crate::rule::{self, Known};
use crate::scheduler::{self, SchedulerProfile};
use crate::service_range;
use config_kube::CertificatePolicySpec;
use std::ops::RangeInclusive;

/// The configuration of a cluster, for its first master.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterConfig {
    /// The cluster's name, used in certificates and kubeconfigs.
    pub name: DnsLabel,
    /// SHA-256 of the SubjectPublicKeyInfo of the admin's key: only this key may bootstrap the
    /// cluster. `None` only on a plain host in development, where the master writes the admin's
    /// kubeconfig itself.
    pub admin_key: Option<Pin>,
    /// Addresses and names in the API server's certificate besides those of the machine.
    pub api_names: Vec<Host>,
    /// Ranges of cluster IPs: one, or one per family, the first of which services have without
    /// asking.
    pub service_cidrs: Vec<Cidr>,
    /// Ranges of which each node gets a part for its pods, at most one per family; empty if
    /// something other than the master gives nodes their ranges.
    pub pod_ranges: Vec<PodRange>,
    /// Range of node ports.
    pub node_ports: RangeInclusive<u16>,
    /// Authentication, authorization, admission and limits of the API.
    pub api: ApiConfig,
    /// The scheduler's profiles beside or in place of the default one.
    pub schedulers: Vec<SchedulerProfile>,
    /// Keys that sign accepted images, by name.
    pub release_keys: Vec<ReleaseKey>,
    /// Issuers of endorsement key certificates, by name.
    pub ek_issuers: Vec<EkIssuer>,
    /// The initial rules of the `CertificatePolicy`; without rules every request is refused.
    pub policy: CertificatePolicySpec,
    /// Where the state is stored.
    pub storage: Storage,
}

impl ClusterConfig {
    /// The release key with this name.
    pub fn release_key(&self, name: &str) -> Option<&ReleaseKey> {
        self.release_keys
            .iter()
            .find(|key| key.name.as_str() == name)
    }

    /// The EK issuer with this name.
    pub fn ek_issuer(&self, name: &str) -> Option<&EkIssuer> {
        self.ek_issuers
            .iter()
            .find(|issuer| issuer.name.as_str() == name)
    }
}

/// A key that signs images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseKey {
    /// Name that rules refer to.
    pub name: DnsLabel,
    /// The key.
    pub public_key: P256PublicKey,
}

/// An issuer of endorsement key certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EkIssuer {
    /// Name that rules refer to.
    pub name: DnsLabel,
    /// Its certificates as DER: roots and intermediates; at least one.
    pub certificates: Vec<Vec<u8>>,
}

/// Where the state is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Storage {
    /// In the master process.
    #[default]
    Embedded,
}

/// The sections that a cluster document and a first master's document share.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) cluster: Option<At<RawCluster>>,
    pub(crate) rule: Option<At<Vec<At<RawRule>>>>,
    pub(crate) storage: Option<At<RawStorage>>,
}

impl Parts {
    /// Reports sections that only a cluster may have.
    pub(crate) fn refuse_without_cluster(&self, sink: &mut Sink<'_>) {
        let rule = self.rule.as_ref().map(|at| ("`[[rule]]`", &at.place));
        let storage = self.storage.as_ref().map(|at| ("`[storage]`", &at.place));
        for (section, place) in [rule, storage].into_iter().flatten() {
            let suggestion = Some("it belongs to the first master's document".to_owned());
            sink.suggest(
                FaultKind::Conflict,
                place,
                section,
                "no such section without `[cluster]`",
                suggestion,
            );
        }
    }
}

/// Checks the sections of a cluster.
pub(crate) fn check(parts: Parts, sink: &mut Sink<'_>) -> Option<ClusterConfig> {
    let raw = parts
        .cluster
        .map(|cluster| cluster.value)
        .unwrap_or_default();
    let name = raw
        .name
        .map_or_else(|| CLUSTER_NAME.parse().ok(), |name| sink.parse(&name));
    let admin_key = raw.admin_key.and_then(|pin| sink.parse(&pin));
    let api_names = sink.parse_list(raw.api_names.as_ref());
    let services = service_range::check(raw.service_cidr, sink);
    let pods_place = raw.pod_cidrs.as_ref().map(|list| list.place.clone());
    let written = pod_range::Written {
        pod_cidrs: raw.pod_cidrs,
        node_cidr_mask_ipv4: raw.node_cidr_mask_ipv4,
        node_cidr_mask_ipv6: raw.node_cidr_mask_ipv6,
    };
    let pod_ranges = pod_range::check(&written, services.as_deref().unwrap_or_default(), sink);
    let fitting = services.as_ref().zip(pod_ranges.as_ref());
    let fitting = fitting.and_then(|(services, pods)| {
        service_range::check_pods(services, pods, pods_place.as_ref(), sink)
    });
    let node_ports = node_ports(raw.node_ports, sink);
    let api = api::check(raw.api, sink);
    let schedulers = scheduler::check(raw.scheduler, sink);
    let storage = storage(parts.storage, sink);
    let mut keys = Names::default();
    let entries = raw.release_key.map(|list| list.value).unwrap_or_default();
    let release_keys = entries
        .into_iter()
        .filter_map(|entry| release_key(entry, &mut keys, sink))
        .collect();
    let mut issuers = Names::default();
    let entries = raw.ek_issuer.map(|list| list.value).unwrap_or_default();
    let ek_issuers = entries
        .into_iter()
        .filter_map(|entry| ek_issuer(entry, &mut issuers, sink))
        .collect();
    let known = Known {
        release_keys: keys,
        ek_issuers: issuers,
    };
    let policy = rule::check(parts.rule, Some(&known), sink);
    fitting?;
    Some(ClusterConfig {
        name: name?,
        admin_key,
        api_names,
        service_cidrs: services?.into_iter().map(|(range, _)| range).collect(),
        pod_ranges: pod_ranges?,
        node_ports: node_ports?,
        api,
        schedulers,
        release_keys,
        ek_issuers,
        policy,
        storage,
    })
}

fn node_ports(text: Option<At<String>>, sink: &mut Sink<'_>) -> Option<RangeInclusive<u16>> {
    let read = |text: &str| {
        let (first, last) = text.split_once('-')?;
        let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (0 < first && first <= last).then_some(first..=last)
    };
    let Some(text) = text else {
        return read(NODE_PORTS);
    };
    let range = read(&text.value).ok_or_else(|| {
        FormatError::new("two port numbers from small to large, such as 30000-32767")
    });
    sink.parsed(&text, range)
}

fn storage(raw: Option<At<RawStorage>>, sink: &mut Sink<'_>) -> Storage {
    let engine = raw.and_then(|storage| storage.value.engine);
    engine
        .and_then(|text| {
            sink.parsed(
                &text,
                one_of(&text.value, &[("embedded", Storage::Embedded)]),
            )
        })
        .unwrap_or_default()
}

fn release_key(
    entry: At<RawReleaseKey>,
    names: &mut Names,
    sink: &mut Sink<'_>,
) -> Option<ReleaseKey> {
    let At { value: raw, place } = entry;
    let name = named(raw.name, &place, names, sink);
    let text = sink.required(
        raw.public_key,
        &place,
        "public_key",
        "the key as a PEM block",
    )?;
    let public_key = sink.parsed(&text, pem::public_key(&text.value));
    Some(ReleaseKey {
        name: name?,
        public_key: public_key?,
    })
}

fn ek_issuer(entry: At<RawEkIssuer>, names: &mut Names, sink: &mut Sink<'_>) -> Option<EkIssuer> {
    let At { value: raw, place } = entry;
    let name = named(raw.name, &place, names, sink);
    let text = sink.required(
        raw.certificates,
        &place,
        "certificates",
        "the issuer's certificates as PEM blocks",
    )?;
    let certificates = sink.parsed(&text, pem::certificates(&text.value));
    Some(EkIssuer {
        name: name?,
        certificates: certificates?,
    })
}
