//! The attacks that need no virtual machine, mounted against a running master over TLS; each is
//! refused with its own code, and the same exchange without it is accepted (the negative control).
//! The machines are in software, bit for bit on the wire what a TPM says.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "tests may stop at the first surprise"
)]
#![allow(clippy::print_stdout, reason = "figures are printed")]
#![allow(clippy::large_futures, reason = "a test's future lives once")]

mod after_join;
mod approval;
mod bootstrap_tokens;
mod captured_boot;
mod coverage;
mod csr;
mod discovery;
mod drift;
mod faulty_rule;
mod first_master;
mod freshness;
mod identity;
mod impostor;
mod keys;
mod lab;
mod late_records;
mod measured_state;
mod no_tpm;
mod node_labels;
mod privileged;
mod rack;
mod real_tpm;
mod real_tpm_evidence;
mod real_tpm_keys;
mod reboot_order;
mod removal;
mod retired_midway;
mod rotation;
mod second_approval;
mod seized_tpm;
mod session_table;
mod site;
mod static_join;
mod stranger_flood;
mod takeover;
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

/// An attack on the master that most attacks share.
type Shared = for<'a> fn(&'a Lab) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// An attack that makes and ends a master of its own.
type Alone = fn() -> Pin<Box<dyn Future<Output = ()>>>;

/// Attacks with the shared master, each under the name of its function.
macro_rules! shared {
    ($($function:path),* $(,)?) => {
        [$((stringify!($function), (|lab| Box::pin($function(lab))) as Shared)),*]
    };
}

/// Attacks with masters of their own, each under the name of its function.
macro_rules! alone {
    ($($function:path),* $(,)?) => {
        [$((stringify!($function), (|| Box::pin($function())) as Alone)),*]
    };
}

fn main() {
    let arguments = Arguments::from_args();
    let runtime = Arc::new(Runtime::new().unwrap());
    let mut trials = Vec::new();
    for (name, attack) in alone() {
        let runtime = runtime.clone();
        trials.push(Trial::test(name, move || {
            runtime.block_on(attack());
            Ok(())
        }));
    }
    let needed = !arguments.list;
    let lab = needed.then(|| Arc::new(runtime.block_on(prepared())));
    for case in [
        measured_state::cases(),
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
    for (name, attack) in shared() {
        let (runtime, lab) = (runtime.clone(), lab.clone());
        trials.push(Trial::test(name, move || {
            runtime.block_on(attack(&lab.unwrap()));
            Ok(())
        }));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(lab) = lab {
        lab.site.stop();
    }
    conclusion.exit();
}

/// The attacks with the shared master.
fn shared() -> Vec<(&'static str, Shared)> {
    Vec::from(shared![
        identity::a_machine_outside_the_inventory_is_refused_until_it_is_added,
        identity::a_machine_without_a_name_learns_it_from_the_inventory,
        identity::a_role_that_the_rule_does_not_admit_is_refused,
        identity::a_retired_machine_is_refused_until_an_admin_reinstates_it,
        identity::an_ek_of_one_machine_is_refused_under_a_second_name,
        identity::a_name_of_one_machine_is_refused_to_a_second_ek,
        identity::an_untrusted_machine_is_refused_until_an_admin_readmits_it,
        freshness::evidence_with_a_replayed_nonce_is_refused,
        freshness::evidence_for_an_expired_session_is_refused,
        freshness::a_second_answer_in_a_session_is_refused,
        freshness::evidence_for_an_invented_session_is_refused,
        freshness::evidence_that_was_held_back_makes_no_machine_untrusted,
        csr::malformed_and_unsigned_certificate_requests_are_refused,
        captured_boot::a_captured_boot_is_admitted_and_an_altered_one_refused,
        freshness::evidence_bound_to_another_tls_connection_is_refused,
        freshness::evidence_on_another_connection_than_its_hello_is_refused,
        freshness::evidence_for_an_impostors_tls_key_is_refused,
        freshness::a_proof_for_the_bootstrap_admits_no_node,
        freshness::an_older_protocol_version_is_refused,
        freshness::forged_evidence_in_a_machines_name_changes_nothing_for_it,
        freshness::one_tpm_that_answers_as_two_machines_is_one_node,
        freshness::a_flood_from_its_own_address_does_not_stop_a_node,
        freshness::malformed_and_oversized_bodies_are_refused,
        after_join::a_join_is_recorded_in_machine_node_and_requests,
        after_join::a_certificate_is_renewed_by_a_fresh_quote,
        after_join::a_renewal_without_a_fresh_quote_is_refused,
        after_join::a_renewal_with_another_nodes_certificate_is_refused,
        after_join::a_tpm_whose_counters_went_back_is_refused,
        updates::changed_firmware_is_refused_until_an_admin_readmits_it,
        updates::changed_secure_boot_databases_are_refused_until_an_admin_readmits_them,
        updates::a_renewal_from_another_boot_or_key_is_refused,
        after_join::certificates_of_retired_and_deleted_machines_are_denied,
        removal::a_client_request_with_a_machines_node_name_is_not_signed,
        removal::no_request_of_a_retired_machine_is_answered,
        retired_midway::a_write_whose_machine_is_retired_while_it_is_sent_is_not_made,
        retired_midway::evidence_of_a_machine_that_is_retired_while_it_is_sent_is_refused,
        removal::a_guessed_name_gets_the_answer_of_the_right_one,
        drift::a_machine_that_proves_a_bad_image_is_denied_at_once_with_its_pods,
        drift::a_changed_verdict_log_is_found_and_only_an_admin_reads_it,
        drift::the_minimum_svn_falls_only_by_an_explicit_write,
        identity::certificates_of_a_replaced_board_are_denied,
        after_join::a_node_stays_within_its_rights,
        after_join::a_suspect_node_keeps_its_taint_until_it_proves_itself,
        impostor::the_master_sends_nothing_to_an_impostor_at_a_nodes_address,
        after_join::a_serving_certificate_is_no_client_certificate,
        after_join::a_client_certificate_request_is_signed_once_approved,
        bootstrap_tokens::an_ordinary_kubelet_gets_its_certificate_by_an_expiring_token,
        bootstrap_tokens::a_stolen_token_gets_no_certificate_for_a_machines_node,
        static_join::a_static_machine_is_shown_as_unproven_and_denied_with_its_record,
        static_join::a_static_node_cannot_renew_enrol_or_request,
        static_join::a_wrapped_key_is_usable_on_its_own_tpm_alone,
        reboot_order::only_a_logged_order_of_an_admin_reboots_a_machine,
        freshness::a_flood_of_hellos_is_limited_and_machines_still_join,
        session_table::unfinished_evidence_of_a_node_blocks_no_renewal_and_no_join,
    ])
}

/// The attacks that make and end masters of their own.
fn alone() -> Vec<(&'static str, Alone)> {
    let mut all = Vec::new();
    // Under a rule that asks for a proof.
    all.extend(alone![
        after_join::a_valid_certificate_is_denied_once_its_machine_proves_a_bad_image,
        coverage::every_refusal_code_has_an_attack,
        session_table::full_session_tables_turn_away_no_machine_and_no_node,
        late_records::a_change_whose_record_was_lost_is_reported_at_the_next_start,
        faulty_rule::a_faulty_rule_admits_and_removes_no_machine,
        privileged::machines_with_privileged_pods_join_only_where_the_rule_allows_them,
        rack::a_rack_joins_under_a_flood,
        stranger_flood::ten_thousand_hostile_addresses_stop_no_renewal_and_no_join,
        stranger_flood::an_owner_of_thousands_of_ipv6_addresses_stops_no_renewal_and_no_join,
        first_master::the_first_master_is_taken_over_once_by_its_admin_alone,
        first_master::the_first_masters_tpm_firmware_must_reach_the_minimum,
        discovery::a_published_cluster_is_found_and_an_older_document_refused,
        real_tpm::a_real_tpm_joins_and_renews_only_with_what_it_booted,
        real_tpm_evidence::altered_evidence_of_a_real_tpm_is_refused,
        real_tpm_keys::keys_that_a_tpms_owner_makes_are_refused,
    ]);
    // Under a rule by which a person decides, or no one.
    all.extend(alone![
        approval::a_person_approves_or_denies_each_machine,
        approval::an_admission_without_a_check_is_shown_everywhere,
        no_tpm::a_machine_without_a_tpm_joins_only_where_the_rule_allows_it,
        no_tpm::a_machine_with_a_tpm_never_joins_by_the_claim_of_having_none,
        no_tpm::replayed_spliced_and_cross_protocol_messages_are_refused,
        no_tpm::an_agent_without_a_tpm_joins_after_approval_and_renews,
        removal::a_key_that_no_admin_listed_is_refused_by_an_enforcing_rule,
        removal::a_renamed_machine_loses_certificates_and_tokens_of_its_old_name,
        removal::tpm_firmware_below_the_minimum_is_refused,
        removal::a_claim_beyond_its_approval_waits_for_a_new_one,
        removal::a_removed_machine_does_not_come_back_by_its_old_approval,
        second_approval::a_second_approval_brings_no_removed_machine_back,
        removal::an_address_that_two_machines_claim_is_given_to_one,
        approval::a_draft_policy_shows_its_verdicts_and_decides_nothing,
        node_labels::labels_and_taints_of_a_rule_go_with_it_and_an_admins_stay,
        approval::requests_to_upstreams_signers_wait_for_approval_unless_a_rule_decides,
    ]);
    // Over the time in which images and the cluster's keys change.
    all.extend(alone![
        updates::the_next_allowed_image_joins_without_an_admin,
        rotation::nodes_renew_without_failure_while_the_intermediate_changes,
        rotation::the_root_is_rotated_with_both_pins_in_force,
    ]);
    all
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
