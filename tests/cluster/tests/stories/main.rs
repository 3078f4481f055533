//! Stories in real machines: one master and one good worker, shared by all; each story gives one verdict.
//!
//! They run one after another, in the order of the list below; `cargo test -p tests-cluster --test stories NAME`
//! runs one. The images must be built (`cargo xtask test build`). Consoles stay in `.pratique/stories`.

#![allow(
    clippy::print_stdout,
    reason = "stories tell their times and what they could not end"
)]

mod disk;
mod drift;
mod inventory;
mod join;
mod life;
mod network;
mod offline;
mod plant;
mod power;
mod queue;
mod recover;
mod refuse;
mod signals;
mod unproven;
mod update;
mod world;

use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use world::World;

type Story = fn(&mut World) -> tests_harness::Result<()>;

/// Every story, in the order in which they run.
const STORIES: &[(&str, Story)] = &[
    (
        "join_from_power_on_to_a_running_pod_with_logs",
        join::power_on_to_pod,
    ),
    (
        "pods_of_a_node_reach_each_other_and_the_api_by_addresses_of_its_range",
        network::pods_of_a_node,
    ),
    (
        "a_service_is_reached_by_its_name_across_machines",
        network::service_by_name_across_machines,
    ),
    (
        "a_deployment_is_rolled_under_traffic_without_a_failed_request",
        network::rolled_under_traffic,
    ),
    (
        "predicted_registers_equal_the_machines",
        join::predictions_hold,
    ),
    (
        "images_hold_no_shell_and_no_tpm_reaches_a_container",
        join::nothing_to_hold_on_to,
    ),
    (
        "machines_without_a_shell_show_their_logs",
        join::logs_of_machines,
    ),
    (
        "the_kernel_is_as_its_table_says",
        join::kernel_as_the_table_says,
    ),
    (
        "no_signal_of_a_pod_reaches_init_agent_or_master",
        signals::stay_within_containers,
    ),
    (
        "only_admins_add_and_remove_machines_and_nodes",
        inventory::admins_alone,
    ),
    (
        "join_with_a_cloud_config_from_fw_cfg",
        join::cloud_config_from_fw_cfg,
    ),
    (
        "join_with_user_data_from_a_metadata_service",
        join::user_data_from_a_metadata_service,
    ),
    (
        "join_with_user_data_from_smbios_and_the_time_from_a_server",
        join::user_data_from_smbios_and_time_from_a_server,
    ),
    (
        "join_by_certificates_that_an_admin_issued",
        join::issued_certificates,
    ),
    ("join_by_discovery", join::by_discovery),
    (
        "join_without_a_tpm_where_a_rule_says_so",
        unproven::without_a_tpm,
    ),
    (
        "join_without_a_name_by_a_persons_word",
        queue::nameless_and_approved,
    ),
    ("renew_without_a_lapse", life::renew),
    (
        "power_off_gives_pods_their_grace_and_they_come_back_under_a_new_proof",
        life::reboot,
    ),
    (
        "drift_shuts_a_machine_out_until_an_admin_readmits_it",
        drift::out_and_back,
    ),
    ("rotate_the_root_and_think_better_of_it", life::rotate_root),
    (
        "refuse_a_machine_that_is_not_in_the_inventory",
        refuse::unknown_ek,
    ),
    ("refuse_another_nodes_name", refuse::another_name),
    (
        "refuse_user_data_that_the_inventory_does_not_know",
        refuse::user_data_changed,
    ),
    (
        "refuse_a_kernel_argument_from_outside",
        refuse::kernel_argument,
    ),
    ("refuse_secure_boot_off", refuse::secure_boot_off),
    ("refuse_a_flipped_byte_in_the_uki", refuse::flipped_uki),
    ("refuse_a_flipped_byte_in_the_root", refuse::flipped_root),
    ("power_cut_in_pod_churn_loses_nothing", power::cut_worker),
    (
        "an_admins_order_reboots_a_machine_and_turns_it_off",
        power::ended_by_order,
    ),
    (
        "power_cut_of_the_master_lets_nodes_go_on",
        power::cut_master,
    ),
    (
        "refuse_a_master_with_somebody_elses_user_data",
        refuse::masters_user_data_changed,
    ),
    ("refuse_an_older_copy_of_the_whole_disk", disk::older_copy),
    (
        "recover_a_masters_state_on_another_board",
        recover::board_replaced,
    ),
    (
        "offline_a_volume_and_a_key_of_the_boards_owner_are_not_believed",
        offline::volume_of_the_boards_owner,
    ),
    (
        "offline_a_plain_file_system_in_the_volumes_place_is_not_believed",
        offline::plain_file_system,
    ),
    (
        "offline_another_machines_disk_is_not_believed",
        offline::another_machines_disk,
    ),
    (
        "offline_older_data_behind_the_present_header_is_not_believed",
        offline::older_data_behind_the_header,
    ),
    (
        "offline_spoiled_sectors_end_in_a_state_of_the_machines_own",
        offline::spoiled_sectors,
    ),
    (
        "update_to_a_newer_image_that_carries_its_user_data",
        update::newer_image,
    ),
    // Last: these change what the whole cluster holds good, and a good machine that renews meanwhile is refused, too.
    (
        "refuse_a_release_that_no_release_key_signed",
        refuse::unsigned_release,
    ),
    ("refuse_an_image_below_the_minimum_svn", refuse::old_image),
];

/// Refusals that the attacks and the agent's tests show, too, with a software TPM and no machine: told only with
/// `--include-ignored` (`cargo xtask test tail`), as each boots a machine to learn nothing that only a machine can show.
const TAIL: &[&str] = &[
    "recover_a_masters_state_on_another_board",
    "refuse_an_older_copy_of_the_whole_disk",
    "offline_a_plain_file_system_in_the_volumes_place_is_not_believed",
    "offline_another_machines_disk_is_not_believed",
    "offline_older_data_behind_the_present_header_is_not_believed",
    "offline_spoiled_sectors_end_in_a_state_of_the_machines_own",
    "refuse_another_nodes_name",
    "refuse_user_data_that_the_inventory_does_not_know",
    "refuse_a_release_that_no_release_key_signed",
    "refuse_an_image_below_the_minimum_svn",
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
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
