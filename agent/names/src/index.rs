//! What is known of the cluster, with indexes of slices by service and of both by address (pure): a
//! question costs what its answer has. A change of one object costs, for each other one, a
//! comparison of two pointers.
//!
//! Guarantee: after any sequence of states, the indexes are those of the last state.

use agent_proxy::served::{changes, service_key};
use agent_proxy::{Key, Known, Service, Slice};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// A state of the cluster, with its indexes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Index {
    known: Arc<Known>,
    /// Services and their slices, also slices of services that are not there.
    slices: BTreeSet<(Arc<Key>, Arc<Key>)>,
    /// Addresses, and the services that have them.
    services: BTreeSet<(IpAddr, Arc<Key>)>,
    /// Addresses of ready endpoints, and their slices.
    endpoints: BTreeSet<(IpAddr, Arc<Key>)>,
}

impl Index {
    /// The index of a state.
    pub fn of(known: Arc<Known>) -> Self {
        let mut index = Self::default();
        index.take(known);
        index
    }

    /// Takes the present state in place of the one before.
    pub fn take(&mut self, known: Arc<Known>) {
        let before = std::mem::replace(&mut self.known, known);
        let known = &self.known;
        for (key, was, is) in changes(before.services.as_ref(), known.services.as_ref()) {
            for address in was.iter().flat_map(|service| &service.addresses) {
                self.services.remove(&(*address, Arc::clone(key)));
            }
            for address in is.iter().flat_map(|service| &service.addresses) {
                self.services.insert((*address, Arc::clone(key)));
            }
        }
        for (key, was, is) in changes(before.slices.as_ref(), known.slices.as_ref()) {
            if let Some(slice) = was {
                let of = (Arc::new(service_of(key, slice)), Arc::clone(key));
                self.slices.remove(&of);
                for address in ready(slice) {
                    self.endpoints.remove(&(address, Arc::clone(key)));
                }
            }
            if let Some(slice) = is {
                let service = service_key(known, key, slice);
                self.slices.insert((service, Arc::clone(key)));
                for address in ready(slice) {
                    self.endpoints.insert((address, Arc::clone(key)));
                }
            }
        }
    }

    /// Whether this is the index of a state, and not of an equal one.
    pub(crate) fn is_of(&self, known: &Arc<Known>) -> bool {
        Arc::ptr_eq(&self.known, known)
    }

    /// The state.
    pub(crate) fn known(&self) -> &Known {
        &self.known
    }

    /// A service; none before services are known.
    pub(crate) fn service(&self, key: &Key) -> Option<&Service> {
        let service = self.known.services.as_ref()?.get(key)?;
        Some(service)
    }

    /// The slices of a service.
    pub(crate) fn slices_of<'a>(&'a self, service: &'a Key) -> impl Iterator<Item = &'a Slice> {
        let first: (Arc<Key>, Arc<Key>) = (Arc::new(service.clone()), Arc::default());
        let own = self.slices.range(first..);
        let own = own.take_while(move |(of, _)| **of == *service);
        own.filter_map(move |(_, key)| self.slice(key))
    }

    /// The services that have an address.
    pub(crate) fn services_at(&self, address: IpAddr) -> impl Iterator<Item = &Key> {
        at(&self.services, address).map(Arc::as_ref)
    }

    /// The slices in which an address is a ready endpoint's, each with its service's key.
    pub(crate) fn slices_at(&self, address: IpAddr) -> impl Iterator<Item = (Key, &Slice)> {
        at(&self.endpoints, address).filter_map(move |key| {
            let slice = self.slice(key)?;
            Some((service_of(key, slice), slice))
        })
    }

    fn slice(&self, key: &Key) -> Option<&Slice> {
        let slice = self.known.slices.as_ref()?.get(key)?;
        Some(slice)
    }
}

/// The keys of an address.
fn at(index: &BTreeSet<(IpAddr, Arc<Key>)>, address: IpAddr) -> impl Iterator<Item = &Arc<Key>> {
    let first: (IpAddr, Arc<Key>) = (address, Arc::default());
    let own = index.range(first..);
    own.take_while(move |(of, _)| *of == address)
        .map(|(_, key)| key)
}

fn ready(slice: &Slice) -> impl Iterator<Item = IpAddr> {
    let ready = slice.endpoints.iter().filter(|endpoint| endpoint.ready);
    ready.map(|endpoint| endpoint.address)
}

fn service_of(key: &Key, slice: &Slice) -> Key {
    Key {
        namespace: key.namespace.clone(),
        name: slice.service.clone(),
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
