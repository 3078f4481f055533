//! Which Machine a caller's endorsement key belongs to, and whether it may join.

use super::Reference;
use crate::code::Code;
use crate::digest::Digest;
use crate::ek::{self, EkIssuer};
use crate::inventory::{bound_ek, readmitted, state};
use crate::policy::Require;
use crate::verdict::{Checks, Stop};
use crate::wire::Claims;
use config_kube::{Machine, MachineState};

/// Finds the Machine of an EK. The claimed name chooses only between machines that the key already fits.
pub(super) fn find<'a>(
    ek: &Digest,
    claims: &Claims,
    reference: &Reference<'a>,
    checks: &mut Checks,
) -> Result<&'a Machine, Stop> {
    const CHECK: &str = "inventory";
    let inventory = reference.inventory;
    let listing = inventory.listing(ek);
    let named = |machine: &&&Machine| claims.name.is_empty() || machine.node_name() == claims.name;
    let machine = if let Some(bound) = inventory.bound_to(ek) {
        if !named(&&bound) {
            let elsewhere = listing.iter().any(|machine| machine.node_name() == claims.name);
            let code = if elsewhere { Code::EkBoundElsewhere } else { Code::NameMismatch };
            return Err(checks.fail(CHECK, code, bound.node_name(), &claims.name));
        }
        bound
    } else if listing.is_empty() {
        by_name(ek, claims, reference, checks)?
    } else {
        let mut fitting = listing.iter().filter(named);
        match (fitting.next(), fitting.next()) {
            (Some(machine), None) => machine,
            (None, _) => {
                let fitting: Vec<&str> = listing.iter().map(|machine| machine.node_name()).collect();
                return Err(checks.fail(CHECK, Code::NameMismatch, fitting.join(", "), &claims.name));
            }
            (Some(_), Some(_)) => {
                let found = "several: remove the hash from all but one";
                return Err(checks.fail(CHECK, Code::MachineUnknown, "one Machine with this EK", found));
            }
        }
    };
    // A Machine that lists hashes is only ever a machine with one of them, whatever else the rule takes.
    let hashes = &machine.spec.ek.hashes;
    let listed = hashes.is_empty() || listing.iter().any(|other| other.metadata.name == machine.metadata.name);
    let wanted = if hashes.is_empty() { "a Machine for this EK".to_owned() } else { hashes.join(", ") };
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    checks.must(CHECK, Code::MachineUnknown, listed, wanted, format!("{name} with {}", ek.to_text()))?;
    Ok(machine)
}

/// A Machine that trusts an issuer instead of listing hashes is found by the claimed name.
fn by_name<'a>(
    ek: &Digest,
    claims: &Claims,
    reference: &Reference<'a>,
    checks: &mut Checks,
) -> Result<&'a Machine, Stop> {
    let wanted = "a Machine that lists this EK or its issuer";
    let hashes_needed = reference.rule.ek_inventory && reference.rule.ek_require == Require::All;
    let named = reference.inventory.of_node(&claims.name);
    match named.as_slice() {
        [machine] if !hashes_needed && !machine.spec.ek.issuers.is_empty() => Ok(machine),
        _ => Err(checks.fail("inventory", Code::MachineUnknown, wanted, ek.to_text())),
    }
}

/// Whether this Machine may join with this EK and these claims at all.
pub(super) fn admissible(
    machine: &Machine,
    ek: &Digest,
    claims: &Claims,
    reference: &Reference<'_>,
    now: u64,
    checks: &mut Checks,
) -> Result<(), Stop> {
    let bound = bound_ek(machine);
    let show = |ek: Option<Digest>| ek.map_or_else(|| "none".to_owned(), |ek| ek.to_text());
    checks.must(
        "EK binding",
        Code::MachineBoundToOtherEk,
        bound.is_none_or(|bound| bound == *ek),
        show(bound),
        ek.to_text(),
    )?;
    let rivals: Vec<&str> = reference
        .inventory
        .of_node(machine.node_name())
        .into_iter()
        .filter(|other| other.metadata.name != machine.metadata.name)
        .filter_map(|other| other.metadata.name.as_deref())
        .collect();
    checks.must(
        "node name",
        Code::MachineBoundToOtherEk,
        rivals.is_empty(),
        format!("no other Machine for node {}", machine.node_name()),
        if rivals.is_empty() { "none".to_owned() } else { rivals.join(", ") },
    )?;
    let retired = machine.spec.retired;
    checks.must("retired", Code::MachineRetired, !retired, "false", retired)?;
    let issued = machine.spec.is_static;
    checks.must("static", Code::MachineStatic, !issued, "false", issued)?;
    let state = state(machine);
    let admitted = state != MachineState::Untrusted || readmitted(machine, now);
    checks.must("state", Code::MachineUntrusted, admitted, "not Untrusted, or re-admitted", format!("{state:?}"))?;
    let role = machine.spec.role.as_str();
    let roles = &reference.rule.roles;
    checks.must(
        "role",
        Code::RoleNotAdmitted,
        roles.iter().any(|admitted| admitted == role),
        roles.join(", "),
        role,
    )?;
    checks.must(
        "claimed role",
        Code::RoleMismatch,
        claims.role.is_empty() || claims.role == role,
        role,
        if claims.role.is_empty() { "none" } else { &claims.role },
    )
}

/// Whether the EK is known in the way that the rule wants: listed, and signed for.
pub(super) fn endorsed(
    machine: &Machine,
    ek: &Digest,
    spki: &[u8],
    certificate: Option<&[u8]>,
    reference: &Reference<'_>,
    now: u64,
    checks: &mut Checks,
) -> Result<(), Stop> {
    let rule = reference.rule;
    let mut passed = Vec::new();
    let mut failed = Vec::new();
    if rule.ek_inventory {
        let listed = machine.spec.ek.hashes.iter().any(|hash| hash.parse() == Ok(*ek));
        let wanted = machine.spec.ek.hashes.join(", ");
        let outcome = (listed, "EK hash", Code::MachineUnknown, wanted, ek.to_text());
        if listed { passed.push(outcome) } else { failed.push(outcome) }
    }
    if !rule.ek_issuers.is_empty() {
        let names: Vec<&String> = rule
            .ek_issuers
            .iter()
            .filter(|name| machine.spec.ek.issuers.is_empty() || machine.spec.ek.issuers.contains(name))
            .collect();
        let issuers: Vec<&EkIssuer> =
            reference.issuers.iter().filter(|issuer| names.iter().any(|name| *name == issuer.name())).collect();
        let wanted = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
        let result = match certificate {
            Some(der) => ek::check(der, spki, &issuers, now),
            None => Err((Code::EkCertificateMissing, "none".to_owned())),
        };
        match result {
            Ok(issuer) => passed.push((true, "EK certificate", Code::EkCertificateIssuer, wanted, issuer.to_owned())),
            Err((code, found)) => failed.push((false, "EK certificate", code, wanted, found)),
        }
    }
    let enough = match rule.ek_require {
        Require::All => failed.is_empty(),
        Require::Any => !passed.is_empty(),
    };
    for (_, check, code, wanted, found) in passed {
        checks.test(check, code, true, wanted, found);
    }
    let mut stop = Ok(());
    for (_, check, code, wanted, found) in failed {
        if enough {
            checks.test(check, code, true, format!("{wanted} (not needed: require = any)"), found);
        } else {
            stop = stop.and(Err(checks.fail(check, code, wanted, found)));
        }
    }
    stop
}
