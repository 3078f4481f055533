//! Controllers of addresses: they give each node ranges for its pods, and each service its
//! endpoints.
//!
//! - `node_ipam`: a range of pod addresses for each node
//! - `endpoint_slices`: the addresses of the pods that a service selects
//! - `endpoints`: the same in the older kind, for clients that read it
//! - `mirroring`: EndpointSlices for Endpoints that others write
//! - `service_ranges`: keeps ServiceCIDRs from being deleted while they are in use
//! - `allocation_repair`: repairs the allocations of service addresses and node ports

pub mod allocation_repair;
pub mod change;
pub mod endpoint_slices;
pub mod endpoints;
pub mod mirroring;
pub mod node_ipam;
pub mod service_ranges;

use master_control::Registration;

/// The controllers of this room.
pub const CONTROLLERS: &[Registration] = &[
    Registration::of::<node_ipam::NodeIpam>(),
    Registration::of::<service_ranges::ServiceRanges>(),
    Registration::of::<endpoint_slices::EndpointSlices>(),
    Registration::of::<endpoints::EndpointsKeeper>(),
    Registration::of::<mirroring::Mirroring>(),
    Registration::of::<allocation_repair::AllocationRepair>(),
];
