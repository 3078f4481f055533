//! The attacks that need no virtual machine, mounted against a running master over TLS; each is refused with its own code,
//! and the same exchange without it is accepted (the negative control). The machines are in software, bit for bit on the
//! wire what a TPM says.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "tests may stop at the first surprise"
)]
#![allow(clippy::print_stdout, reason = "figures are told")]
#![allow(clippy::large_futures, reason = "a test's future lives once")]

mod bootstrap_tokens;
mod coverage;
mod crowd;
mod csr;
mod discovery;
mod drift;
mod first_master;
mod freshness;
mod guest;
mod identity;
mod impostor;
mod issued;
mod keys;
mod lab;
mod life;
mod marks;
mod power;
mod privileged;
mod queue;
mod real_attacks;
mod real_keys;
mod real_tpm;
mod rotation;
mod rules;
mod seized;
mod sessions;
mod site;
mod state;
mod strangers;
mod taken;
mod takeover;
mod unproven;
mod updates;
mod wire;

use config_protocol::Code;
use config_protocol::wire::Evidence;
use lab::Lab;
use libtest_mimic::{Arguments, Trial};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tests_machines::{SoftImage, SoftMachine};
use tokio::runtime::Runtime;

/// A change of the evidence in transit.
pub(crate) type Change = Box<dyn FnOnce(&mut Evidence) + Send>;

/// The evidence is sent unchanged.
pub(crate) fn nothing() -> Change {
    Box::new(|_| {})
}

/// An attack on one join: the machine is changed before its hello, the evidence on its way.
pub(crate) struct Case {
    name: &'static str,
    code: Code,
    proven: bool,
    mount: fn(&Lab, &mut SoftMachine) -> Change,
}

impl Case {
    /// An attack that the machine itself proves.
    pub(crate) fn proven(
        name: &'static str,
        code: Code,
        mount: fn(&Lab, &mut SoftMachine) -> Change,
    ) -> Self {
        Self {
            name,
            code,
            proven: true,
            mount,
        }
    }

    /// An attack that proves nothing, and changes nothing for the Machine.
    pub(crate) fn anonymous(
        name: &'static str,
        code: Code,
        mount: fn(&Lab, &mut SoftMachine) -> Change,
    ) -> Self {
        Self {
            name,
            code,
            proven: false,
            mount,
        }
    }

    async fn run(&self, lab: &Lab) {
        let control = lab.machine().await;
        lab.join(&control).await.accepted();
        let mut machine = lab.machine().await;
        let change = (self.mount)(lab, &mut machine);
        let outcome = lab.join_with(&machine, change).await;
        lab.refused(&outcome, self.code, self.proven).await;
    }
}

/// A story with the shared master.
type Story = for<'a> fn(&'a Lab) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Names a story and boxes its future.
macro_rules! stories {
    ($($function:path),* $(,)?) => {
        [$((stringify!($function), (|lab| Box::pin($function(lab))) as Story)),*]
    };
}

fn main() {
    let arguments = Arguments::from_args();
    let runtime = Arc::new(Runtime::new().unwrap());
    let mut trials = lonely(&runtime);
    let needed = !arguments.list;
    let lab = needed.then(|| Arc::new(runtime.block_on(prepared())));
    for case in [
        state::cases(),
        keys::cases(),
        csr::cases(),
        identity::cases(),
    ]
    .into_iter()
    .flatten()
    {
        let (runtime, lab) = (runtime.clone(), lab.clone());
        let name = format!("{}: {}", case.code, case.name);
        trials.push(Trial::test(name, move || {
            runtime.block_on(case.run(&lab.unwrap()));
            Ok(())
        }));
    }
    for (name, story) in shared() {
        let (runtime, lab) = (runtime.clone(), lab.clone());
        trials.push(Trial::test(name, move || {
            runtime.block_on(story(&lab.unwrap()));
            Ok(())
        }));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(lab) = lab {
        lab.site.stop();
    }
    conclusion.exit();
}

/// The stories with the shared master.
fn shared() -> Vec<(&'static str, Story)> {
    Vec::from(stories![
        identity::outside_the_inventory,
        identity::without_a_name,
        identity::a_role_that_the_rule_does_not_admit,
        identity::retired,
        identity::one_ek_under_a_second_name,
        identity::one_name_under_a_second_ek,
        identity::untrusted_until_an_admin_acts,
        freshness::replayed_nonce,
        freshness::expired_session,
        freshness::two_answers,
        freshness::invented_session,
        freshness::overtaken,
        csr::requests_that_are_none,
        guest::a_captured_boot_is_judged_as_it_was,
        freshness::spliced_connection,
        freshness::moved_connection,
        freshness::impersonated_master,
        freshness::another_purpose,
        freshness::downgrade,
        freshness::denunciation,
        freshness::one_tpm_two_nodes,
        freshness::a_flood_from_its_own_address_does_not_stop_a_node,
        freshness::malformed_and_huge,
        life::a_join_is_recorded,
        life::renewal,
        life::renewal_without_a_quote,
        life::renewal_with_anothers_certificate,
        life::restored_snapshot,
        updates::firmware_is_learned_and_pinned,
        updates::secure_boot_databases_are_learned_and_pinned,
        updates::a_renewal_is_of_the_same_boot,
        life::retired_and_deleted,
        taken::a_machines_name_in_no_organization_is_not_signed,
        taken::nothing_is_answered_after_retired,
        taken::a_guessed_name_is_answered_as_the_right_one,
        drift::revocation,
        drift::the_log_of_verdicts,
        drift::the_floor_of_images,
        identity::replaced_board,
        life::a_node_stays_within_its_rights,
        life::a_suspect_stays_tainted,
        impostor::the_master_asks_nobody_in_a_nodes_place,
        life::certificates_serve_their_use_only,
        life::an_approved_request_is_signed,
        bootstrap_tokens::an_ordinary_kubelet_gets_its_certificate_by_a_token_that_ends,
        bootstrap_tokens::a_stolen_token_does_not_make_a_machine,
        issued::a_static_machine_is_its_admins_word,
        issued::a_static_node_gets_nothing_by_proof,
        issued::a_wrapped_key_makes_a_node_on_its_tpm_alone,
        power::a_machine_ends_by_an_order_that_is_written_down,
        freshness::flood,
        sessions::evidence_that_never_ends,
    ])
}

/// The stories that make and end their own masters.
fn lonely(runtime: &Arc<Runtime>) -> Vec<Trial> {
    let mut trials = decided_by_proof(runtime);
    trials.extend(undecided_by_proof(runtime));
    trials.extend(over_time(runtime));
    trials
}

/// Attacks under a rule that asks for a proof.
fn decided_by_proof(runtime: &Arc<Runtime>) -> Vec<Trial> {
    vec![
        alone(
            runtime,
            "life::bad_image_with_a_live_certificate",
            life::bad_image_with_a_live_certificate,
        ),
        alone(
            runtime,
            "coverage::every_code_has_an_attack",
            coverage::every_code_has_an_attack,
        ),
        alone(
            runtime,
            "sessions::a_full_table",
            sessions::a_full_table_keeps_what_it_holds,
        ),
        alone(
            runtime,
            "rules::a_rule_with_a_fault",
            rules::a_rule_with_a_fault_decides_nothing,
        ),
        alone(
            runtime,
            "privileged::taken_by_a_rule_that_says_so",
            privileged::taken_by_a_rule_that_says_so_and_shown,
        ),
        alone(
            runtime,
            "crowd::a_rack_joins_under_a_flood",
            crowd::a_rack_joins_under_a_flood,
        ),
        alone(
            runtime,
            "strangers::ten_thousand",
            strangers::ten_thousand_addresses_keep_nobody_out,
        ),
        alone(
            runtime,
            "first_master::the_first_master_is_its_admins",
            first_master::the_first_master_is_its_admins,
        ),
        alone(
            runtime,
            "first_master::held_to_the_floor_of_its_tpms_firmware",
            first_master::the_first_masters_tpm_is_held_to_the_floor,
        ),
        alone(
            runtime,
            "discovery::published_and_found",
            discovery::published_found_and_never_taken_back,
        ),
        alone(
            runtime,
            "real_tpm::joins_renews",
            real_tpm::joins_renews_and_is_held_to_what_it_booted,
        ),
        alone(
            runtime,
            "real_attacks::what_a_real_tpm_did_not_say",
            real_attacks::what_a_real_tpm_did_not_say,
        ),
        alone(
            runtime,
            "real_keys::keys_that_a_real_tpm_gives",
            real_keys::keys_that_a_real_tpm_gives_its_owner,
        ),
    ]
}

/// Attacks under a rule by which a person decides, or no one.
fn undecided_by_proof(runtime: &Arc<Runtime>) -> Vec<Trial> {
    vec![
        alone(runtime, "queue::a_person_decides", queue::a_person_decides),
        alone(
            runtime,
            "queue::nobody_looks_and_all_hear_of_it",
            queue::nobody_looks_and_all_hear_of_it,
        ),
        alone(
            runtime,
            "unproven::only_where_the_rule_says_so",
            unproven::only_where_the_rule_says_so,
        ),
        alone(
            runtime,
            "unproven::no_way_round_a_tpm",
            unproven::no_way_round_a_tpm,
        ),
        alone(
            runtime,
            "unproven::bound_fresh_and_apart",
            unproven::bound_fresh_and_apart,
        ),
        alone(
            runtime,
            "unproven::the_agent_asks_without_a_tpm",
            unproven::the_agent_asks_without_a_tpm,
        ),
        alone(
            runtime,
            "taken::what_was_seen_is_no_listing",
            taken::what_was_seen_is_no_listing,
        ),
        alone(
            runtime,
            "taken::another_node_name",
            taken::another_node_name,
        ),
        alone(
            runtime,
            "taken::a_tpm_below_its_makers_floor",
            taken::a_tpm_below_its_makers_floor,
        ),
        alone(
            runtime,
            "taken::more_than_was_approved",
            taken::more_than_was_approved_is_asked_about,
        ),
        alone(
            runtime,
            "taken::one_address_two_machines",
            taken::one_address_two_machines,
        ),
        alone(
            runtime,
            "queue::a_policy_is_tried_out_first",
            queue::a_policy_is_tried_out_first,
        ),
        alone(
            runtime,
            "marks::a_rule_marks_nodes",
            marks::a_rule_marks_nodes_and_what_is_an_admins_stays,
        ),
        alone(
            runtime,
            "queue::policies_of_upstreams_signers",
            queue::policies_of_upstreams_signers,
        ),
    ]
}

/// Attacks that take the time in which images and roots change.
fn over_time(runtime: &Arc<Runtime>) -> Vec<Trial> {
    vec![
        alone(
            runtime,
            "updates::the_next_image",
            updates::the_next_image_joins_by_itself,
        ),
        alone(
            runtime,
            "rotation::the_intermediate",
            rotation::the_intermediate_is_renewed_unnoticed,
        ),
        alone(
            runtime,
            "rotation::the_root",
            rotation::the_root_is_rotated_with_overlapping_pins,
        ),
    ]
}

/// A story that makes and ends its own master.
fn alone<F: Future<Output = ()> + 'static>(
    runtime: &Arc<Runtime>,
    name: &str,
    story: fn() -> F,
) -> Trial {
    let runtime = runtime.clone();
    Trial::test(name, move || {
        runtime.block_on(story());
        Ok(())
    })
}

/// A master that knows the images that the attacks boot.
async fn prepared() -> Lab {
    let lab = Lab::start().await;
    lab.release(&SoftImage::new("worker-unsigned", "worker", 9), false)
        .await;
    lab.release(&SoftImage::new("worker-old", "worker", 3), true)
        .await;
    lab.release(&SoftImage::new("master-7", "master", 7), true)
        .await;
    lab
}
