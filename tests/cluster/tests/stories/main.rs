//! Stories in real machines: one master and one good worker, shared by all; each story gives one
//! verdict.
//!
//! They run one after another, in the order of the list below; `cargo test -p tests-cluster --test
//! stories NAME` runs one. The images must be built (`cargo xtask test build`). Consoles stay in
//! `.pratique/stories`, which one run at a time uses.

#![allow(
    clippy::print_stdout,
    reason = "stories tell their times and what they could not end"
)]

mod approval;
mod bound_state;
mod drift;
mod eviction;
mod inventory;
mod join;
mod lifetime;
mod network;
mod no_tpm;
mod offline_attacks;
mod older_disk;
mod older_document;
mod partition_table;
mod planted_state;
mod pods;
mod power;
mod recovery;
mod refusal;
mod signals;
mod update;
mod workloads;
mod world;

use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use tests_harness::folder;
use world::World;

type Story = fn(&mut World) -> tests_harness::Result<()>;

/// Stories, each under the name of its function.
macro_rules! stories {
    ($($function:path),* $(,)?) => {
        &[$((stringify!($function), $function as Story)),*]
    };
}

/// Every story, in the order in which they run.
const STORIES: &[(&str, Story)] = stories![
    join::power_on_ends_in_a_running_pod_with_logs,
    network::pods_of_a_node_reach_each_other_and_the_api,
    network::a_service_is_reached_by_its_name_across_machines,
    network::ports_of_a_node_are_reached_and_a_policy_holds_between_machines,
    workloads::an_indexed_job_says_which_index_failed,
    workloads::a_drain_waits_for_a_budget,
    workloads::pods_of_a_lost_machine_move_and_it_comes_back,
    network::a_machine_that_is_not_trusted_is_cut_off,
    network::a_machine_that_is_retired_is_cut_off,
    network::a_deployment_is_rolled_under_traffic_without_a_failed_request,
    pods::a_pod_shares_process_ids_has_limits_as_a_whole_and_reads_an_image,
    join::quoted_registers_equal_the_predicted_ones,
    join::images_hold_no_shell_and_containers_get_no_tpm,
    join::machines_without_a_shell_show_their_logs,
    join::the_kernel_runs_with_the_settings_of_its_table,
    signals::no_signal_of_a_pod_reaches_init_agent_or_master,
    inventory::only_admins_add_and_remove_machines_and_nodes,
    join::a_machine_joins_with_a_cloud_config_from_fw_cfg,
    join::a_machine_joins_with_user_data_from_a_metadata_service,
    join::a_machine_joins_with_user_data_from_smbios_and_time_from_a_server,
    join::a_machine_joins_by_certificates_that_an_admin_issued,
    join::a_machine_joins_a_master_that_it_found_by_discovery,
    no_tpm::a_machine_without_a_tpm_joins_where_a_rule_allows_it,
    approval::a_machine_without_a_name_joins_after_approval,
    lifetime::a_certificate_is_renewed_without_a_lapse,
    network::no_packet_is_lost_while_wireguards_keys_are_renewed,
    lifetime::pods_get_their_grace_at_power_off_and_a_reboot_proves_anew,
    drift::a_machine_that_drifts_is_shut_out_until_an_admin_readmits_it,
    lifetime::a_root_rotation_that_would_lock_out_a_node_is_refused_and_given_up,
    refusal::a_machine_with_an_unknown_ek_is_refused,
    refusal::a_machine_that_claims_another_nodes_name_is_refused,
    refusal::user_data_that_the_inventory_does_not_know_is_refused,
    refusal::a_kernel_argument_from_outside_is_refused,
    refusal::a_machine_with_secure_boot_off_is_refused,
    refusal::a_uki_with_a_flipped_byte_does_not_start,
    refusal::a_root_with_a_flipped_byte_does_not_run,
    bound_state::a_state_that_belongs_to_user_data_opens_under_no_other,
    eviction::a_machine_low_on_memory_or_disk_evicts_the_pod_that_took_it_and_recovers,
    power::a_power_cut_of_a_worker_loses_no_pod,
    power::an_admins_order_reboots_a_machine_and_turns_it_off,
    power::a_power_cut_of_the_master_lets_nodes_go_on,
    refusal::a_master_with_changed_user_data_or_partition_table_serves_nothing,
    older_disk::an_older_copy_of_the_whole_disk_is_not_trusted,
    recovery::a_masters_state_is_recovered_on_another_board,
    offline_attacks::a_volume_and_key_planted_by_the_tpms_owner_are_not_trusted,
    offline_attacks::a_plain_file_system_in_the_volumes_place_is_not_trusted,
    offline_attacks::another_machines_disk_is_not_trusted,
    offline_attacks::older_data_behind_the_current_header_is_not_trusted,
    offline_attacks::corrupted_sectors_end_in_the_machines_own_state_or_a_new_one,
    update::a_machine_boots_a_newer_image_that_carries_its_user_data,
    // Last: these change what the whole cluster accepts, and a good machine that renews meanwhile
    // is refused, too.
    refusal::a_release_that_no_release_key_signed_is_refused,
    refusal::an_image_below_the_minimum_svn_is_refused,
];

/// Stories of which tests without machines show all but the machine: refusals and joins by each
/// rule (`attacks`, with a software TPM), sources of user-data, a master that is away, evictions,
/// and changes of a disk offline. They run only with `--include-ignored` (`cargo xtask test
/// tail`), as each boots machines for a minute or more.
const TAIL: &[&str] = &[
    "join::a_machine_joins_with_a_cloud_config_from_fw_cfg",
    "join::a_machine_joins_with_user_data_from_a_metadata_service",
    "join::a_machine_joins_with_user_data_from_smbios_and_time_from_a_server",
    "join::a_machine_joins_by_certificates_that_an_admin_issued",
    "join::a_machine_joins_a_master_that_it_found_by_discovery",
    "no_tpm::a_machine_without_a_tpm_joins_where_a_rule_allows_it",
    "approval::a_machine_without_a_name_joins_after_approval",
    "drift::a_machine_that_drifts_is_shut_out_until_an_admin_readmits_it",
    "lifetime::a_root_rotation_that_would_lock_out_a_node_is_refused_and_given_up",
    "refusal::a_machine_with_an_unknown_ek_is_refused",
    "refusal::a_machine_that_claims_another_nodes_name_is_refused",
    "refusal::user_data_that_the_inventory_does_not_know_is_refused",
    "refusal::a_kernel_argument_from_outside_is_refused",
    "bound_state::a_state_that_belongs_to_user_data_opens_under_no_other",
    "eviction::a_machine_low_on_memory_or_disk_evicts_the_pod_that_took_it_and_recovers",
    "power::a_power_cut_of_the_master_lets_nodes_go_on",
    "refusal::a_master_with_changed_user_data_or_partition_table_serves_nothing",
    "older_disk::an_older_copy_of_the_whole_disk_is_not_trusted",
    "recovery::a_masters_state_is_recovered_on_another_board",
    "offline_attacks::a_plain_file_system_in_the_volumes_place_is_not_trusted",
    "offline_attacks::another_machines_disk_is_not_trusted",
    "offline_attacks::older_data_behind_the_current_header_is_not_trusted",
    "offline_attacks::corrupted_sectors_end_in_the_machines_own_state_or_a_new_one",
    "refusal::a_release_that_no_release_key_signed_is_refused",
    "refusal::an_image_below_the_minimum_svn_is_refused",
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Two runs in one clone would destroy each other's files. A list of stories has none.
    let taken = (!arguments.list).then(|| folder::take(&world::folder()));
    let _folder = match taken.transpose() {
        Ok(lock) => lock,
        Err(error) => {
            println!("stories: {}", tests_harness::chain(&error));
            return ExitCode::FAILURE;
        }
    };
    // The machines share one host and one segment.
    arguments.test_threads = Some(1);
    let world = Arc::new(Mutex::new(World::default()));
    let trials = STORIES
        .iter()
        .map(|(name, story)| {
            let world = Arc::clone(&world);
            Trial::test(*name, move || {
                let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
                world
                    .tell(name, *story)
                    .map_err(|error| Failed::from(tests_harness::chain(&error)))
            })
            .with_ignored_flag(TAIL.contains(name))
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    world.lock().unwrap_or_else(PoisonError::into_inner).end();
    conclusion.exit_code()
}
