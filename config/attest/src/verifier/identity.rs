//! Which Machine a caller's endorsement key belongs to, and whether it may join.

use super::{Reference, Subject};
use crate::inventory::{Inventory, bound_ek, machine_id, readmitted, state};
use crate::policy::{CheckedRule, Require};
use crate::verdict::{Checks, Stop};
use config_certificates::{EkFault, EkIssuer, check_ek_certificate};
use config_kube::machine::EkMatch;
use config_kube::{Machine, MachineSpec, MachineState};
use config_protocol::wire::Claims;
use config_protocol::{Code, name};
use config_tpm::Digest;

/// The Machine that an EK belongs to.
pub(super) enum EkOwner<'a> {
    /// This Machine, which lists it or is bound to it ([`spec_accepts`]).
    Known(&'a Machine),
    /// This Machine, whose name was claimed and which trusts an issuer: only a valid EK certificate
    /// makes the EK its own.
    ByIssuer(&'a Machine),
    /// No Machine (a stranger). Under a rule where a person decides or every request is
    /// approved, this Machine would be created.
    Stranger(Box<Machine>),
}

impl EkOwner<'_> {
    /// The Machine, or the one that would be created.
    pub(super) fn machine(&self) -> &Machine {
        match self {
            EkOwner::Known(machine) | EkOwner::ByIssuer(machine) => machine,
            EkOwner::Stranger(machine) => machine,
        }
    }

    pub(super) fn is_stranger(&self) -> bool {
        matches!(self, EkOwner::Stranger(_))
    }

    /// Whether the EK is the Machine's by its list or binding, and not only by an issuer's
    /// certificate.
    pub(super) fn is_own(&self) -> bool {
        matches!(self, EkOwner::Known(_))
    }

    pub(super) fn subject(self) -> Subject {
        match self {
            EkOwner::Known(machine) | EkOwner::ByIssuer(machine) => {
                Subject::Known(machine_id(machine))
            }
            EkOwner::Stranger(machine) => Subject::Stranger(machine),
        }
    }
}

/// Finds the Machine of an EK. The claimed name chooses only between machines that the key already
/// fits.
pub(super) fn find<'a>(
    ek: &Digest,
    claims: &Claims,
    reference: &Reference<'a>,
    checks: &mut Checks,
) -> Result<EkOwner<'a>, Stop> {
    const CHECK: &str = "inventory";
    let inventory = reference.inventory;
    let listing = inventory.listing(ek);
    // A machine that claims no name takes the one of its key's Machine.
    let named = |machine: &&&Machine| claims.name.is_empty() || machine.node_name() == claims.name;
    // A binding comes before a listing: a board that has proved itself as one Machine can't choose
    // another by its claim.
    let machine = if let Some(bound) = inventory.bound_to(ek) {
        let elsewhere = listing
            .iter()
            .any(|machine| machine.node_name() == claims.name);
        let code = if elsewhere {
            Code::EkBoundElsewhere
        } else {
            Code::NameMismatch
        };
        checks.must(
            "name of the EK's Machine",
            code,
            named(&&bound),
            bound.node_name(),
            &claims.name,
        )?;
        bound
    } else if listing.is_empty() {
        // Only here does the claimed name choose: a board that is listed cannot become, by a claim,
        // a Machine that takes every board of an issuer.
        return by_name(ek, claims, reference, checks);
    } else {
        let mut fitting = listing.iter().filter(named);
        match (fitting.next(), fitting.next()) {
            (Some(machine), None) => machine,
            (None, _) => {
                let fitting: Vec<&str> =
                    listing.iter().map(|machine| machine.node_name()).collect();
                return Err(checks.fail(
                    CHECK,
                    Code::NameMismatch,
                    fitting.join(", "),
                    &claims.name,
                ));
            }
            // Neither may be guessed: the certificate would be for one of two nodes.
            (Some(_), Some(_)) => {
                let found = "several: remove the hash from all but one";
                return Err(checks.fail(
                    CHECK,
                    Code::MachineUnknown,
                    "one Machine with this EK",
                    found,
                ));
            }
        }
    };
    spec_accepts(machine, ek, reference, checks)?;
    Ok(EkOwner::Known(machine))
}

/// Checks that the Machine's spec names this EK, whatever the Machine was bound to before. A rule
/// that enforces its verdict requires an admin's entry: a hash or an issuer. `seen`, written when a
/// machine was admitted without a decision, is no such entry. For an issuer, [`endorsement`] checks
/// the certificate later.
pub(super) fn spec_accepts(
    machine: &Machine,
    ek: &Digest,
    reference: &Reference<'_>,
    checks: &mut Checks,
) -> Result<(), Stop> {
    let spec = &machine.spec.ek;
    let good = match spec.match_of(&ek.to_text()) {
        Some(EkMatch::Hash | EkMatch::Issuer) => true,
        Some(EkMatch::Seen) => !reference.rule.enforces(),
        None => false,
    };
    let wanted = if !spec.hashes.is_empty() {
        spec.hashes.join(", ")
    } else if !spec.issuers.is_empty() {
        format!("a key of {}", spec.issuers.join(", "))
    } else {
        "its hash in spec.ek.hashes, or its issuer in spec.ek.issuers: an admin has listed neither"
            .to_owned()
    };
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    checks.must(
        "inventory",
        Code::MachineUnknown,
        good,
        wanted,
        format!("{name} with {}", ek.to_text()),
    )?;
    issuer_still_named(machine, ek, checks)
}

/// Checks an EK to which the Machine was bound by its issuer: the spec must still name the issuer
/// that signed its certificate at the last proof. Naming another issuer instead is how an admin
/// replaces the board.
fn issuer_still_named(machine: &Machine, ek: &Digest, checks: &mut Checks) -> Result<(), Stop> {
    let (spec, status) = (&machine.spec.ek, machine.status.clone().unwrap_or_default());
    // The recorded binding without its effect ([`bound_ek`]): the spec has changed since.
    let was_bound = status.bound_ek == Some(ek.to_text());
    if !was_bound || bound_ek(machine).is_some() || spec.issuers.is_empty() {
        return Ok(());
    }
    let wanted = spec.issuers.join(", ");
    let found = status.ek_issuer.as_deref().unwrap_or("none of them");
    Err(checks.fail(
        "issuer of the Machine",
        Code::EkCertificateIssuer,
        wanted,
        found,
    ))
}

/// Whether the rule accepts only keys whose hashes are listed.
fn hashes_needed(rule: &CheckedRule) -> bool {
    rule.enforces() && rule.ek_inventory && rule.ek_require == Require::All
}

/// Whether the result of the inventory's checks is held back until the caller has proved that it
/// has the EK. Public keys and EK certificates are not secret: if the answer to a hello depended on
/// the claimed name, anyone could find out names. A caller is refused at once if no Machine can
/// have its key under any name.
pub(super) fn is_held_back(
    ek: &Digest,
    spki: &[u8],
    certificate: Option<&[u8]>,
    reference: &Reference<'_>,
    now: u64,
) -> bool {
    let rule = reference.rule;
    // Under such a rule every caller may be admitted, as a stranger at least.
    if !rule.enforces() || reference.inventory.has_ek(ek) {
        return true;
    }
    let names = rule.issuers(reference.issuers);
    let issuers: Vec<&EkIssuer> = reference
        .issuers
        .iter()
        .filter(|issuer| names.contains(&issuer.name()))
        .collect();
    !hashes_needed(rule)
        && certificate.is_some_and(|der| check_ek_certificate(der, spki, &issuers, now).is_ok())
}

/// Finds a Machine that trusts an issuer instead of listing hashes, by the claimed name; else the
/// caller is a stranger.
fn by_name<'a>(
    ek: &Digest,
    claims: &Claims,
    reference: &Reference<'a>,
    checks: &mut Checks,
) -> Result<EkOwner<'a>, Stop> {
    const CHECK: &str = "inventory";
    let rule = reference.rule;
    let wanted = "a Machine that lists this EK or its issuer";
    let named = reference.inventory.of_node(&claims.name);
    match named.as_slice() {
        // A Machine that lists hashes takes those alone, even if it names issuers, too.
        [machine]
            if !hashes_needed(rule)
                && !machine.spec.ek.issuers.is_empty()
                && machine.spec.ek.hashes.is_empty() =>
        {
            let name = machine.metadata.name.as_deref().unwrap_or_default();
            checks.pass(CHECK, wanted, format!("{name}, by its issuer"));
            Ok(EkOwner::ByIssuer(machine))
        }
        _ if rule.enforces() => Err(checks.fail(CHECK, Code::MachineUnknown, wanted, ek.to_text())),
        _ => stranger(ek, claims, reference, checks)
            .map(|machine| EkOwner::Stranger(Box::new(machine))),
    }
}

/// The Machine that would be created for a stranger: its name must be free, its role one that the
/// rule admits.
fn stranger(
    ek: &Digest,
    claims: &Claims,
    reference: &Reference<'_>,
    checks: &mut Checks,
) -> Result<Machine, Stop> {
    let node = if claims.name.is_empty() {
        name::derived(ek)
    } else {
        claims.name.clone()
    };
    let good = name::is_node_name(&node);
    checks.must(
        "claimed name",
        Code::NameInvalid,
        good,
        "a DNS name in lower case",
        &node,
    )?;
    unclaimed(&node, reference.inventory, checks)?;
    // Without a claim, a rule's only role is meant. With several the empty role is refused later.
    let only = match reference.rule.roles.as_slice() {
        [only] => only.as_str(),
        _ => "",
    };
    let role = if claims.role.is_empty() {
        only
    } else {
        &claims.role
    };
    let spec = MachineSpec {
        role: role.to_owned(),
        ..MachineSpec::default()
    };
    Ok(Machine::named(&node, spec))
}

/// Checks that no Machine has this node name.
pub(super) fn unclaimed(
    node: &str,
    inventory: &Inventory,
    checks: &mut Checks,
) -> Result<(), Stop> {
    // The new Machine gets the node's name as its own: no object may have that, whatever Node it
    // is.
    let mut owners = inventory.of_node(node);
    owners.extend(inventory.get(node));
    let bound = owners
        .first()
        .is_some_and(|owner| bound_ek(owner).is_some());
    let code = if bound {
        Code::MachineBoundToOtherEk
    } else {
        Code::NameMismatch
    };
    checks.must(
        "claimed name",
        code,
        owners.is_empty(),
        "a name that no Machine has",
        node,
    )
}

/// Checks whether this Machine may join with this EK and these claims.
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
    may_join(machine, claims, reference, now, checks)
}

/// The part of [`admissible`] that does not depend on a key.
pub(super) fn may_join(
    machine: &Machine,
    claims: &Claims,
    reference: &Reference<'_>,
    now: u64,
    checks: &mut Checks,
) -> Result<(), Stop> {
    // Certificates of both would have the same common name: one user to the API server.
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
        if rivals.is_empty() {
            "none".to_owned()
        } else {
            rivals.join(", ")
        },
    )?;
    let retired = machine.spec.retired;
    checks.must("retired", Code::MachineRetired, !retired, "false", retired)?;
    let issued = machine.spec.is_static;
    checks.must("static", Code::MachineStatic, !issued, "false", issued)?;
    let state = state(machine);
    let admitted = state != MachineState::Untrusted || readmitted(machine, now);
    checks.must(
        "state",
        Code::MachineUntrusted,
        admitted,
        "not Untrusted, or re-admitted since",
        format!("{state:?}"),
    )?;
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
        if claims.role.is_empty() {
            "none"
        } else {
            &claims.role
        },
    )
}

/// Checks that the EK is known in the way that the rule asks for, and returns the issuer of its
/// certificate if that is valid. A rule that does not enforce needs the certificate only where the
/// EK belongs to the Machine by its issuer alone; then in every exchange.
pub(super) fn endorsement(
    machine: &Machine,
    ek: &Digest,
    spki: &[u8],
    certificate: Option<&[u8]>,
    reference: &Reference<'_>,
    now: u64,
    checks: &mut Checks,
) -> Result<Option<String>, Stop> {
    let mut judgement = Checks::default();
    let (issuer, outcome) = endorsed(
        machine,
        ek,
        spki,
        certificate,
        reference,
        now,
        &mut judgement,
    );
    let enforces = reference.rule.enforces();
    checks.judged(judgement, enforces);
    if enforces {
        outcome?;
    } else if machine.spec.ek.match_of(&ek.to_text()) == Some(EkMatch::Issuer) {
        let wanted = machine.spec.ek.issuers.join(", ");
        let found = issuer.as_deref().unwrap_or("no good certificate of them");
        checks.must(
            "issuer of the Machine",
            Code::EkCertificateIssuer,
            issuer.is_some(),
            wanted,
            found,
        )?;
    }
    Ok(issuer)
}

/// The issuer of the EK's certificate, if the rule accepts it, and whether the EK is listed and
/// certified as the rule asks.
fn endorsed(
    machine: &Machine,
    ek: &Digest,
    spki: &[u8],
    certificate: Option<&[u8]>,
    reference: &Reference<'_>,
    now: u64,
    checks: &mut Checks,
) -> (Option<String>, Result<(), Stop>) {
    let rule = reference.rule;
    let mut valid_issuer = None;
    let mut passed = Vec::new();
    let mut failed = Vec::new();
    if rule.ek_inventory {
        let listed = machine
            .spec
            .ek
            .hashes
            .iter()
            .any(|hash| hash.parse() == Ok(*ek));
        let wanted = machine.spec.ek.hashes.join(", ");
        if listed {
            passed.push(EkCheck::of("EK hash", wanted, ek.to_text()));
        } else {
            let check = EkCheck::of("EK hash", wanted, ek.to_text());
            failed.push(FailedEkCheck {
                code: Code::MachineUnknown,
                check,
            });
        }
    }
    let accepted = rule.issuers(reference.issuers);
    if !accepted.is_empty() {
        let own = &machine.spec.ek.issuers;
        // A Machine that names issuers narrows the rule's, and adds none.
        let names: Vec<&str> = accepted
            .into_iter()
            .filter(|name| own.is_empty() || own.iter().any(|listed| listed == name))
            .collect();
        let issuers: Vec<&EkIssuer> = reference
            .issuers
            .iter()
            .filter(|issuer| names.contains(&issuer.name()))
            .collect();
        let wanted = names.join(", ");
        let result = match certificate {
            Some(der) => check_ek_certificate(der, spki, &issuers, now)
                .map_err(|fault| (code_of(&fault), fault.to_string())),
            None => Err((Code::EkCertificateMissing, "none".to_owned())),
        };
        match result {
            Ok(issuer) => {
                valid_issuer = Some(issuer.to_owned());
                passed.push(EkCheck::of("EK certificate", wanted, issuer.to_owned()));
            }
            Err((code, found)) => {
                let check = EkCheck::of("EK certificate", wanted, found);
                failed.push(FailedEkCheck { code, check });
            }
        }
    }
    (
        valid_issuer,
        settle(rule.ek_require, passed, failed, checks),
    )
}

/// A check of an endorsement key that may not be needed (`require = "any"`).
struct EkCheck {
    name: &'static str,
    wanted: String,
    found: String,
}

/// Such a check that failed, and the code by which it refuses the machine if it is needed.
struct FailedEkCheck {
    code: Code,
    check: EkCheck,
}

impl EkCheck {
    fn of(name: &'static str, wanted: String, found: String) -> Self {
        Self {
            name,
            wanted,
            found,
        }
    }
}

/// Records the checks of an endorsement key, and stops with the first that failed, unless the rule
/// needs only one of them and one passed.
fn settle(
    require: Require,
    passed: Vec<EkCheck>,
    failed: Vec<FailedEkCheck>,
    checks: &mut Checks,
) -> Result<(), Stop> {
    // With `any`, what failed beside a check that passed is recorded as not needed.
    let enough = match require {
        Require::All => failed.is_empty(),
        Require::Any => !passed.is_empty(),
    };
    for check in passed {
        checks.pass(check.name, check.wanted, check.found);
    }
    let mut stop = Ok(());
    for FailedEkCheck { code, check } in failed {
        let EkCheck {
            name,
            wanted,
            found,
        } = check;
        if enough {
            let wanted = format!("{wanted} (not needed: require = any)");
            checks.pass(name, wanted, found);
        } else {
            stop = stop.and(checks.must(name, code, false, wanted, found));
        }
    }
    stop
}

/// The code for an EK certificate that is refused.
fn code_of(fault: &EkFault) -> Code {
    match fault {
        EkFault::Malformed => Code::EkCertificateMalformed,
        EkFault::OtherKey => Code::EkCertificateOtherKey,
        EkFault::Usage(_) => Code::EkCertificateUsage,
        EkFault::Expired(_) => Code::EkCertificateExpired,
        EkFault::Issuer(_) => Code::EkCertificateIssuer,
    }
}
