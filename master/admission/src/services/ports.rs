//! Node ports: chosen at random from the configured range, recorded under keys of their own.

use super::{Allocation, Owner, below, reserved};
use bytes::Bytes;
use master_network::{needs_health_check, node_ports};
use master_objects::store_error;
use master_schema::error::{ApiError, Reason};
use master_schema::validate::{Faults, FieldPath, Fields, get, items, limits, text};
use master_store::Op;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};

/// Ports tried at random before the range is searched.
const PROBES: usize = 16;
pub(crate) const TABLE: &str = "nodeports/";

const TAKEN: &str = "provided port is already allocated";

/// The node ports in a service's spec, with that of health checks; each once.
pub(super) fn of(spec: &Fields) -> BTreeSet<i64> {
    let mut ports: BTreeSet<i64> = node_ports(spec).into_iter().collect();
    if needs_health_check(spec) {
        ports.extend(
            get(spec, "healthCheckNodePort")
                .as_i64()
                .filter(|port| *port != 0),
        );
    }
    ports
}

/// The ports of one attempt.
struct Chosen {
    /// Whether the service exists already.
    exists: bool,
    /// Ports that the service had before.
    before: BTreeSet<i64>,
    /// Ports that this attempt allocated.
    now: BTreeSet<i64>,
}

/// Allocates the ports that a service needs and frees those that it no longer has.
pub(super) async fn give(
    allocation: &mut Allocation<'_>,
    spec: &mut Fields,
    old: Option<&Fields>,
) -> Result<(), ApiError> {
    let mut chosen = Chosen {
        exists: old.is_some(),
        before: old.map(of).unwrap_or_default(),
        now: BTreeSet::new(),
    };
    let wanted = match text(spec, "type") {
        "NodePort" => Some(true),
        "LoadBalancer" => Some(get(spec, "allocateLoadBalancerNodePorts") != &Value::Bool(false)),
        _ => None,
    };
    if let Some(all) = wanted {
        // Each is looked for in the store: validation refuses more of them, and comes later.
        let found = items(spec, "ports").len();
        let before = old.map_or(0, |old| items(old, "ports").len());
        if found > limits::SERVICE_PORTS.max(before) {
            return too_many(found, &allocation.owner);
        }
        service_ports(allocation, spec, &mut chosen, all).await?;
    }
    if needs_health_check(spec) {
        health_port(allocation, spec, &mut chosen).await?;
    }
    let after = if wanted.is_some() {
        of(spec)
    } else {
        BTreeSet::new()
    };
    for port in chosen.before.difference(&after) {
        allocation.free_port(*port).await?;
    }
    Ok(())
}

fn too_many(found: usize, owner: &Owner) -> Result<(), ApiError> {
    let mut faults = Faults::default();
    let at = FieldPath::root("spec");
    faults.too_many(&at.field("ports"), found, limits::SERVICE_PORTS);
    super::refuse(faults, owner)
}

/// `all`: ports that request no node port get one too.
async fn service_ports(
    allocation: &mut Allocation<'_>,
    spec: &mut Fields,
    chosen: &mut Chosen,
    all: bool,
) -> Result<(), ApiError> {
    let requested: Vec<(i64, i64)> = items(spec, "ports")
        .iter()
        .map(|port| (number(port, "port"), number(port, "nodePort")))
        .collect();
    // By port number, the first node port that is asked for, and the first that was given.
    let mut asked: HashMap<i64, i64> = HashMap::new();
    for (port, node) in requested.iter().filter(|(_, node)| *node != 0) {
        asked.entry(*port).or_insert(*node);
    }
    let mut first: HashMap<i64, i64> = HashMap::new();
    let mut given: Vec<i64> = Vec::with_capacity(requested.len());
    for (place, (port, node)) in requested.iter().copied().enumerate() {
        // A port number with two protocols gets the same node port for both.
        let earlier = first.get(&port).copied();
        let earlier = earlier.filter(|_| chosen.before.is_empty());
        let later = asked.get(&port).copied();
        let node = match (node, earlier.or(later)) {
            (0, _) if !all => 0,
            (0, Some(shared)) => shared,
            (0, None) => allocation.any_port(chosen).await?,
            (node, _) => node,
        };
        // An update may give one node port to several ports; validation refuses those of one
        // protocol (upstream: `updateNodePorts`).
        let is_taken = earlier == Some(node) || (chosen.exists && chosen.now.contains(&node));
        if node != 0 && !chosen.before.contains(&node) && !is_taken {
            allocation.take_port(node, place, chosen).await?;
        }
        if node != 0 {
            first.entry(port).or_insert(node);
        }
        given.push(node);
    }
    for (port, node) in spec
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .zip(given)
    {
        if let (Some(port), true) = (port.as_object_mut(), node != 0) {
            port.insert("nodePort".to_owned(), node.into());
        }
    }
    Ok(())
}

fn number(fields: &Value, key: &str) -> i64 {
    fields.get(key).and_then(Value::as_i64).unwrap_or_default()
}

async fn health_port(
    allocation: &mut Allocation<'_>,
    spec: &mut Fields,
    chosen: &mut Chosen,
) -> Result<(), ApiError> {
    let requested = get(spec, "healthCheckNodePort")
        .as_i64()
        .filter(|port| *port != 0);
    let port = match requested {
        Some(port) if chosen.before.contains(&port) => return Ok(()),
        Some(port) => {
            let why = if chosen.now.contains(&port) {
                Some(TAKEN.to_owned())
            } else {
                allocation.unfit(port).await?
            };
            if let Some(why) = why {
                let text = format!(
                    "Internal error occurred: failed to allocate requested HealthCheck NodePort {port}: {why}"
                );
                return Err(ApiError::new(Reason::InternalError, text));
            }
            port
        }
        None => allocation.any_port(chosen).await?,
    };
    chosen.now.insert(port);
    allocation.write_port(port);
    spec.insert("healthCheckNodePort".to_owned(), port.into());
    Ok(())
}

pub(super) fn key(port: i64) -> String {
    format!("{TABLE}{port}")
}

impl Allocation<'_> {
    fn bounds(&self) -> (i64, i64) {
        let range = &self.plugin.ranges.node_ports;
        (i64::from(*range.start()), i64::from(*range.end()))
    }

    /// The reason why a requested port is not available.
    async fn unfit(&self, port: i64) -> Result<Option<String>, ApiError> {
        let (first, last) = self.bounds();
        if !(first..=last).contains(&port) {
            let text = format!(
                "provided port is not in the valid range. The range of valid ports is {first}-{last}"
            );
            return Ok(Some(text));
        }
        let taken = self
            .reader
            .get(&key(port))
            .await
            .map_err(store_error)?
            .entry
            .is_some();
        Ok(taken.then(|| TAKEN.to_owned()))
    }

    /// Allocates a port that was requested or chosen.
    async fn take_port(
        &mut self,
        port: i64,
        place: usize,
        chosen: &mut Chosen,
    ) -> Result<(), ApiError> {
        let why = if chosen.now.contains(&port) {
            Some(TAKEN.to_owned())
        } else {
            self.unfit(port).await?
        };
        let Some(why) = why else {
            chosen.now.insert(port);
            self.write_port(port);
            return Ok(());
        };
        let mut faults = Faults::default();
        let at = FieldPath::root("spec");
        let at = at.field("ports");
        faults.invalid(&at.index(place).field("nodePort"), &port.into(), why);
        super::refuse(faults, &self.owner)
    }

    /// A free port, not yet allocated.
    async fn any_port(&self, chosen: &Chosen) -> Result<i64, ApiError> {
        let (first, last) = self.bounds();
        let size = u128::try_from(last - first + 1).unwrap_or(1);
        let upper = first + i64::try_from(reserved(size, 16, 128, 32)).unwrap_or_default();
        let random = |from: i64| {
            from + i64::try_from(below(u128::try_from(last - from + 1).unwrap_or(1)))
                .unwrap_or_default()
        };
        for _ in 0..PROBES {
            let port = random(upper);
            if !chosen.now.contains(&port)
                && !chosen.before.contains(&port)
                && self.unfit(port).await?.is_none()
            {
                return Ok(port);
            }
        }
        let entries = master_objects::list(self.reader, TABLE).await?;
        let taken: BTreeSet<i64> = entries
            .iter()
            .filter_map(|entry| entry.key.strip_prefix(TABLE)?.parse().ok())
            .collect();
        let start = random(upper);
        let mut ports = (start..=last).chain(upper..start).chain(first..upper);
        ports
            .find(|port| !taken.contains(port) && !chosen.now.contains(port))
            .ok_or_else(|| {
                let text = "Internal error occurred: failed to allocate a nodePort: range is full";
                ApiError::new(Reason::InternalError, text)
            })
    }

    fn write_port(&mut self, port: i64) {
        self.ops
            .push(Op::create(&key(port), Bytes::from(self.owner.text())));
    }

    /// Adds the operation that frees a port, if it belongs to the owner.
    pub(super) async fn free_port(&mut self, port: i64) -> Result<(), ApiError> {
        let fetched = self.reader.get(&key(port)).await.map_err(store_error)?;
        if let Some(entry) = fetched.entry
            && entry.value == *self.owner.text().as_bytes()
        {
            self.ops.push(Op::delete(&entry.key, entry.modified));
        }
        Ok(())
    }
}
