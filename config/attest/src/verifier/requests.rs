//! What a node may ask for: its keys, and the names and addresses of its certificates.

use super::Reference;
use crate::code::Code;
use crate::csr::{self, Allowed, Profile, Request, San};
use crate::inventory::Inventory;
use crate::verdict::{Checks, Stop};
use crate::wire::Claims;
use config_kube::Machine;
use config_kube::identity::node_user;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Both requests, within what the node may ask for.
#[derive(Debug)]
pub(super) struct Requested {
    pub(super) client: Request,
    pub(super) serving: Request,
}

/// What is asked, and by whom.
pub(super) struct Asks<'a> {
    pub(super) claims: &'a Claims,
    /// The name of a machine that claims none.
    pub(super) derived: Option<String>,
    pub(super) nk_spki: &'a [u8],
    /// The inventory does not have it.
    pub(super) stranger: bool,
    pub(super) client: &'a [u8],
    pub(super) serving: &'a [u8],
}

/// That the requests ask for what this node may have.
pub(super) fn check_requests(
    asks: &Asks<'_>,
    machine: &Machine,
    reference: &Reference<'_>,
    now: u64,
    checks: &mut Checks,
) -> Result<Requested, Stop> {
    assigned(asks, machine, checks)?;
    let allowed = allowed(machine, asks, reference);
    let client = csr::check(asks.client, Profile::Client, &allowed, checks)?;
    let serving = csr::check(asks.serving, Profile::Serving, &allowed, checks)?;
    let is_nk = client.spki == asks.nk_spki;
    let found = if is_nk { "the node key" } else { "another" };
    checks.test(
        "client request: key",
        Code::CsrKey,
        is_nk,
        "the node key",
        found,
    );
    let own = serving.spki != asks.nk_spki && csr::is_p256(&serving.spki);
    let wanted = "a P-256 key of its own";
    checks.test(
        "serving request: key",
        Code::CsrServingKey,
        own,
        wanted,
        if own { wanted } else { "another" },
    );
    untaken(&serving, machine, (reference.inventory, now), checks);
    checks.all_passed()?;
    Ok(Requested { client, serving })
}

/// That no other machine holds a certificate for an address which this one asks for on no more than its claim.
fn untaken(
    serving: &Request,
    machine: &Machine,
    (inventory, now): (&Inventory, u64),
    checks: &mut Checks,
) {
    if let Some((address, holder)) = taken(&serving.sans, machine, inventory, now) {
        let wanted = "addresses that no other machine holds a certificate for";
        let found = format!("{address}, which is in the certificate of {holder}");
        checks.test(
            "serving request: addresses",
            Code::AddressTaken,
            false,
            wanted,
            found,
        );
    }
}

/// The first address among these names that another machine holds a certificate for, and that machine. What the inventory
/// gives to a machine is its own, whoever claimed it before.
pub(super) fn taken<'a>(
    names: &[San],
    machine: &Machine,
    inventory: &'a Inventory,
    now: u64,
) -> Option<(IpAddr, &'a str)> {
    claimed_addresses(names, machine)
        .into_iter()
        .find_map(|address| {
            let holder = inventory.holder(&address, machine, now)?;
            Some((address, holder.metadata.name.as_deref().unwrap_or_default()))
        })
}

/// The addresses among these names that the inventory does not give to the machine.
pub(super) fn claimed_addresses(names: &[San], machine: &Machine) -> Vec<IpAddr> {
    let listed: BTreeSet<San> = machine
        .spec
        .addresses
        .iter()
        .map(|text| San::from_text(text))
        .collect();
    let claimed = names.iter().filter(|name| !listed.contains(name));
    claimed
        .filter_map(|name| match name {
            San::Ip(address) => Some(*address),
            San::Dns(_) => None,
        })
        .collect()
}

/// A machine that claims no name asks under the one that its key gives. Where the inventory has another for it, it is told,
/// now that it has proved whose it is.
fn assigned(asks: &Asks<'_>, machine: &Machine, checks: &mut Checks) -> Result<(), Stop> {
    let Some(derived) = asks
        .derived
        .as_deref()
        .filter(|_| asks.claims.name.is_empty())
    else {
        return Ok(());
    };
    let own = machine.node_name();
    let wanted = csr::common_name(asks.client);
    if own == derived || wanted != Some(node_user(derived)) {
        return Ok(());
    }
    Err(checks.fail("node name", Code::NameAssigned, own, derived))
}

fn allowed<'a>(machine: &'a Machine, asks: &Asks<'_>, reference: &Reference<'_>) -> Allowed<'a> {
    let claims = asks.claims;
    // What a stranger claims is all that there is; the person who approves it sees it.
    let by_claims = !reference.rule.sans_inventory || asks.stranger;
    let listed: BTreeSet<San> = machine
        .spec
        .addresses
        .iter()
        .map(|text| San::from_text(text))
        .collect();
    let mut sans = listed.clone();
    sans.insert(San::from_text(machine.node_name()));
    if by_claims {
        let addresses = claims
            .addresses
            .iter()
            .filter_map(|text| text.parse::<IpAddr>().ok());
        sans.extend(
            addresses
                .map(|address| address.to_canonical())
                .filter(usable)
                .map(San::Ip),
        );
    }
    for other in reference
        .inventory
        .iter()
        .filter(|other| other.metadata.name != machine.metadata.name)
    {
        // What the inventory gives to another machine, this one cannot claim.
        for taken in other.spec.addresses.iter().map(|text| San::from_text(text)) {
            if !listed.contains(&taken) {
                sans.remove(&taken);
            }
        }
    }
    let mut api: BTreeSet<San> = reference
        .api_names
        .iter()
        .map(|text| San::from_text(text))
        .collect();
    if machine.spec.role == "master" {
        // The API server runs on this machine: its own name and its own listed addresses are both.
        let own = San::from_text(machine.node_name());
        api.retain(|name| *name != own && !listed.contains(name));
    }
    Allowed {
        node: machine.node_name(),
        sans,
        api,
    }
}

/// An address that a node can be reached at.
fn usable(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || link_local)
}
