//! Step 4: the check of the certificate requests: keys, names and addresses that a node may have.

use super::Reference;
use crate::csr::{self, Allowed, CheckedRequest, RequestUse};
use crate::inventory::{Inventory, earlier_names, forget_ended};
use crate::verdict::{Checks, Stop};
use config_certificates::San;
use config_kube::Machine;
use config_kube::identity::node_user;
use config_protocol::Code;
use config_protocol::wire::Claims;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// How many names a Machine may have in earlier certificates that have not ended.
const MAX_EARLIER_NAMES: usize = 128;

/// Both certificate requests. Holding one proves: they ask for no more than the node may have.
#[derive(Debug)]
pub(super) struct Requested {
    pub(super) client: CheckedRequest,
    pub(super) serving: CheckedRequest,
}

/// The certificate requests and the machine that sent them.
pub(super) struct RequestContext<'a> {
    pub(super) claims: &'a Claims,
    /// The node name of a machine that claims none.
    pub(super) derived: Option<String>,
    pub(super) nk_spki: &'a [u8],
    /// Whether the inventory does not have the machine.
    pub(super) stranger: bool,
    pub(super) client: &'a [u8],
    pub(super) serving: &'a [u8],
}

/// Checks that the requests ask for no more than this node may have.
pub(super) fn check_requests(
    asks: &RequestContext<'_>,
    machine: &Machine,
    reference: &Reference<'_>,
    now: u64,
    checks: &mut Checks,
) -> Result<Requested, Stop> {
    // First: the check of the subject would refuse the derived name without telling the right one.
    check_assigned_name(asks, machine, checks)?;
    let allowed = allowed(machine, asks, reference);
    let client = csr::check(asks.client, RequestUse::Client, &allowed, checks)?;
    let serving = csr::check(asks.serving, RequestUse::Serving, &allowed, checks)?;
    let is_nk = client.spki == asks.nk_spki;
    let found = if is_nk { "the node key" } else { "another" };
    checks.test(
        "client request: key",
        Code::CsrKey,
        is_nk,
        "the node key",
        found,
    );
    // The serving key is not the NK: a TLS server signs before it knows its client, so anyone could
    // have the TPM sign, and a TPM is slow.
    let own = serving.spki != asks.nk_spki && csr::is_p256(&serving.spki);
    let wanted = "a P-256 key of its own";
    checks.test(
        "serving request: key",
        Code::CsrServingKey,
        own,
        wanted,
        if own { wanted } else { "another" },
    );
    check_addresses_are_free(&serving, machine, reference.inventory, now, checks);
    check_earlier_names(&serving, machine, now, checks);
    checks.all_passed()?;
    Ok(Requested { client, serving })
}

/// Checks that no other machine holds a certificate for an address that this one claims and the
/// inventory does not give it.
fn check_addresses_are_free(
    serving: &CheckedRequest,
    machine: &Machine,
    inventory: &Inventory,
    now: u64,
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

/// Checks that a machine has not collected too many names in certificates that are still valid, by
/// changing its claims again and again.
fn check_earlier_names(serving: &CheckedRequest, machine: &Machine, now: u64, checks: &mut Checks) {
    let Some(status) = &machine.status else {
        return;
    };
    let names: Vec<String> = serving.sans.iter().map(San::text).collect();
    let mut earlier = earlier_names(status, &names);
    forget_ended(&mut earlier, now);
    if earlier.len() > MAX_EARLIER_NAMES {
        checks.test(
            "serving request: names in earlier certificates",
            Code::AddressTaken,
            false,
            format!("at most {MAX_EARLIER_NAMES} until those certificates have ended"),
            earlier.len(),
        );
    }
}

/// The first claimed address that another machine holds a certificate for, and that machine.
/// Addresses that the inventory gives to this machine are skipped: they are its own, also if
/// another machine claimed one before.
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

/// Refuses a machine that asked for the name derived from its EK although its Machine has another
/// name; the answer tells the machine that name. Only now may it learn the name: it has proved that
/// it has the EK.
fn check_assigned_name(
    asks: &RequestContext<'_>,
    machine: &Machine,
    checks: &mut Checks,
) -> Result<(), Stop> {
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

fn allowed<'a>(
    machine: &'a Machine,
    asks: &RequestContext<'_>,
    reference: &Reference<'_>,
) -> Allowed<'a> {
    let claims = asks.claims;
    // For a stranger there is no inventory entry; the person who approves it sees what it claims.
    // The same holds for a machine that was admitted without a decision, whose entry no admin has
    // edited; a rule that enforces its verdict ignores its claims.
    let (rule, spec) = (reference.rule, &machine.spec);
    let listed_nothing =
        spec.ek.hashes.is_empty() && spec.ek.issuers.is_empty() && spec.addresses.is_empty();
    let unedited = !rule.enforces() && listed_nothing;
    let by_claims = !rule.sans_inventory || asks.stranger || unedited;
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
                // An IPv4 address in IPv6 form is the same address, and must not pass beside it.
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
        // An address that the inventory gives to another machine cannot be claimed.
        for taken in other.spec.addresses.iter().map(|text| San::from_text(text)) {
            // Where the inventory lists it for both, an admin wants that.
            if !listed.contains(&taken) {
                sans.remove(&taken);
            }
        }
    }
    // With a name of the API server a node could pose as it.
    let mut api: BTreeSet<San> = reference
        .api_names
        .iter()
        .map(|text| San::from_text(text))
        .collect();
    if machine.spec.role == "master" {
        // The API server runs on this machine: its name and its listed addresses are also the API
        // server's.
        let own = San::from_text(machine.node_name());
        api.retain(|name| *name != own && !listed.contains(name));
    }
    Allowed {
        node: machine.node_name(),
        sans,
        api,
    }
}

/// Whether a node can be reached at this address from other hosts.
fn usable(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || link_local)
}
