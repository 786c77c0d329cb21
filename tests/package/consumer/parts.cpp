// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: each module can be imported by itself, without the umbrella, and the names that
// the umbrella does not bring are reachable through their own modules.
// Method: import them one by one; a using-declaration for each name of the parts, one thing of each
// other module. The tidiness test fails when a part exports a name that is not here.
#include <cstdio>

import vmm.backend;
import vmm.base;
import vmm.containers;
import vmm.cuda;
import vmm.fake;
import vmm.host;
import vmm.level_zero;
import vmm.manager;
import vmm.market;
import vmm.multi_device;
import vmm.observe;
import vmm.optimizer;
import vmm.physical;
import vmm.registry;
import vmm.share;
import vmm.stream;
import vmm.suspend;
import vmm.testing;
import vmm.timeline;
import vmm.tracker;
import vmm.va;

namespace parts {

// vmm.backend
using vmm::alias_level, vmm::all_wait_backend, vmm::all_work_backend, vmm::call_count,
    vmm::call_facts, vmm::call_observer, vmm::call_record, vmm::can_capture, vmm::capture_backend,
    vmm::capture_info, vmm::capture_mode, vmm::capture_state, vmm::check_backend,
    vmm::check_options, vmm::context_backend, vmm::copy_backend, vmm::dma_buf,
    vmm::environment_is_trusted, vmm::environment_text, vmm::event_handle, vmm::fill_request,
    vmm::forwarding_driver, vmm::index_node, vmm::link_kind, vmm::leak_report_count_max,
    vmm::map_request, vmm::multicast_address_binding, vmm::multicast_backend,
    vmm::multicast_binding, vmm::multicast_handle, vmm::multicast_request, vmm::object_pool,
    vmm::observed_backend, vmm::option_bytes_max, vmm::option_is_set, vmm::option_row,
    vmm::option_rule, vmm::ordered_index, vmm::parse_bytes, vmm::parse_number, vmm::peer_backend,
    vmm::physical_handle, vmm::physical_properties, vmm::physical_request, vmm::property_backend,
    vmm::quick_capture_backend, vmm::range_export_backend, vmm::read_bytes_option,
    vmm::read_number_option, vmm::read_only_level, vmm::read_option, vmm::read_switch_option,
    vmm::read_text_option, vmm::refuse, vmm::refuse_forked, vmm::refuse_number, vmm::refuse_value,
    vmm::refuse_variable, vmm::reserve_request, vmm::retain_backend, vmm::shared_handle,
    vmm::sharing_backend, vmm::shortage_figures, vmm::stream_backend, vmm::stream_identity_backend,
    vmm::write_figures;

// vmm.base
using vmm::check, vmm::check_level, vmm::debug_check, vmm::detail_bytes_max, vmm::detail_text,
    vmm::errno_name, vmm::fail_check, vmm::fetch_ahead, vmm::file_text, vmm::flat_table,
    vmm::fork_listener, vmm::kept_count_max, vmm::leave_behind, vmm::leave_parts_behind,
    vmm::limit_text, vmm::load_named, vmm::loaded_library, vmm::open_named, vmm::opened_file,
    vmm::paranoid_check, vmm::process_mark, vmm::round_up, vmm::use_of, vmm::used_object,
    vmm::user_count, vmm::without_write_signals, vmm::write_whole, vmm::written_bytes,
    vmm::sync::assume_locked, vmm::sync::atomic, vmm::sync::has_schedule_points,
    vmm::sync::lock_guard, vmm::sync::mutex, vmm::sync::recursive_mutex,
    vmm::sync::schedule_observer, vmm::sync::set_schedule_observer, vmm::sync::shared_guard,
    vmm::sync::shared_mutex, vmm::sync::spin_lock, vmm::sync::step, vmm::sync::watched_mutex;

// vmm.cuda
using vmm::check_cuda_environment, vmm::cuda_description;

// vmm.fake
using vmm::fake_driver;
namespace fake {
using vmm::fake::busy_table, vmm::fake::cost_curve, vmm::fake::cost_table,
    vmm::fake::error_code_set, vmm::fake::fault, vmm::fake::graph_handle, vmm::fake::kernel,
    vmm::fake::machine, vmm::fake::max_device_count, vmm::fake::max_node_count, vmm::fake::misuse,
    vmm::fake::misuse_kind, vmm::fake::name_of, vmm::fake::native_error, vmm::fake::profile,
    vmm::fake::resource_counts, vmm::fake::trap_set;
}  // namespace fake

// vmm.host
using vmm::commit_mode, vmm::host_resource_counts;

// vmm.level_zero
using vmm::level_zero_description, vmm::level_zero_driver, vmm::level_zero_options;

// vmm.manager
using vmm::block_part, vmm::export_rule, vmm::exported_range, vmm::suspension_listener;

// vmm.market
using vmm::ask_record, vmm::claimed_bytes, vmm::decode_market_message,
    vmm::default_market_directory, vmm::encode_market_message, vmm::handle_state, vmm::held_handle,
    vmm::held_handles, vmm::is_market_size, vmm::join_market, vmm::join_market_once,
    vmm::lent_handle, vmm::lent_list, vmm::lot_request, vmm::make_market_device,
    vmm::make_market_name, vmm::market_bytes, vmm::market_device_of, vmm::market_device_text,
    vmm::market_granule_bytes, vmm::market_handle, vmm::market_handle_bytes_max,
    vmm::market_handles_max, vmm::market_header_bytes, vmm::market_key, vmm::market_kind,
    vmm::market_message, vmm::market_message_bytes, vmm::market_name, vmm::market_owner,
    vmm::market_priority_max, vmm::market_reach, vmm::market_reason, vmm::market_records,
    vmm::market_row, vmm::market_rows_max, vmm::market_share, vmm::market_socket_name,
    vmm::market_sums, vmm::market_tenant, vmm::market_tenants_max, vmm::market_version,
    vmm::memory_source, vmm::next_market_size, vmm::open_tenant, vmm::owned_handle,
    vmm::owner_action, vmm::owner_options, vmm::owner_state, vmm::owner_statistics,
    vmm::recall_request, vmm::request_record, vmm::source_callbacks, vmm::source_totals,
    vmm::tenant_action, vmm::tenant_driver, vmm::tenant_driver_options, vmm::tenant_giver,
    vmm::tenant_options, vmm::tenant_options_from_environment, vmm::tenant_record,
    vmm::tenant_stage, vmm::text_of, vmm::timed_bytes;

// vmm.multi_device
using vmm::alias_request, vmm::aliased_memory, vmm::check_registrable, vmm::granted_of,
    vmm::multicast_part, vmm::multicast_phase, vmm::multicast_team, vmm::peer_topology,
    vmm::pool_registrations, vmm::probe_memory, vmm::registered_blocks, vmm::registrable_options,
    vmm::registration_hooks, vmm::registration_report;

// vmm.observe
using vmm::add_fact, vmm::block_observer, vmm::call_counter, vmm::call_log, vmm::check_head,
    vmm::decode_history, vmm::decode_sample, vmm::encode_history, vmm::encode_sample,
    vmm::fail_plan, vmm::folder_rule, vmm::history, vmm::history_event, vmm::history_fact,
    vmm::history_frame, vmm::history_kind, vmm::history_label, vmm::history_line,
    vmm::history_line_max, vmm::history_listener, vmm::history_mapping, vmm::history_note,
    vmm::history_options, vmm::history_port, vmm::history_region, vmm::history_region_kind,
    vmm::history_ring, vmm::history_steps, vmm::history_tag, vmm::is_history_label,
    vmm::no_history_memory, vmm::no_recording, vmm::nvtx_declarer, vmm::nvtx_ranges,
    vmm::peak_record, vmm::peak_source, vmm::run_peak, vmm::open_own_folder,
    vmm::publish_allocators, vmm::set_history_label, vmm::take_from, vmm::top_file_bytes,
    vmm::top_folders, vmm::top_head, vmm::top_kind, vmm::top_sample, vmm::top_slot,
    vmm::top_slot_count, vmm::top_source, vmm::top_use, vmm::write_history;

// vmm.optimizer
using vmm::add_grants, vmm::are_attached, vmm::attach_parts, vmm::beside_change, vmm::block,
    vmm::block_cut, vmm::block_listener, vmm::block_request, vmm::change_peers, vmm::check_grants,
    vmm::check_handle_size, vmm::check_reach, vmm::close_attempts, vmm::close_core,
    vmm::content_filler, vmm::core_options, vmm::core_plan, vmm::detach_parts, vmm::device_core,
    vmm::engine, vmm::grants_for, vmm::growable_blocks_request, vmm::is_device_shortage,
    vmm::left_contents, vmm::mapping_plan, vmm::memory_rights, vmm::memory_suspended,
    vmm::own_rights_change, vmm::plan_core, vmm::provide_parts, vmm::refuse_beyond,
    vmm::relaxed_capture, vmm::release_parts, vmm::relief_key, vmm::relief_loan, vmm::relief_member,
    vmm::relief_pass, vmm::relief_pause, vmm::relief_rank, vmm::relieve, vmm::remap_outcome,
    vmm::remapper, vmm::report_unclosed, vmm::reservation_options, vmm::reservation_space,
    vmm::resize_plan, vmm::retry_while_short, vmm::rights_scope, vmm::shortage_ladder,
    vmm::single_rung, vmm::sum_of, vmm::suspendable, vmm::suspension_list, vmm::suspension_part,
    vmm::suspension_phase, vmm::suspension_phases, vmm::too_many_grants, vmm::try_to_attach,
    vmm::try_to_close, vmm::try_to_detach, vmm::unmap_answer, vmm::unmap_entry, vmm::unmap_list,
    vmm::unmap_queue, vmm::with_relief;

// vmm.physical
using vmm::budget_spent, vmm::creation, vmm::device_full, vmm::memory_list, vmm::physical_memory,
    vmm::physical_options, vmm::physical_pool, vmm::physical_statistics, vmm::reserve_more,
    vmm::spill_permit;

// vmm.registry
using vmm::backend_entry, vmm::backend_entry_count, vmm::check_backend_name, vmm::driver_in;

// vmm.share
using vmm::block_export, vmm::check_share_description, vmm::decode_message,
    vmm::descriptor_count_of, vmm::encode_message, vmm::export_request, vmm::exported_block,
    vmm::import_options, vmm::imported_block, vmm::is_same_digest, vmm::loan_state,
    vmm::make_share_label, vmm::received_block, vmm::share_bytes, vmm::share_channel,
    vmm::share_description, vmm::share_digest, vmm::share_event, vmm::share_fabric,
    vmm::share_fabric_bytes, vmm::share_fabric_parts_max, vmm::share_header_bytes, vmm::share_label,
    vmm::share_listener, vmm::share_loans_max, vmm::share_message, vmm::share_message_bytes,
    vmm::share_message_kind, vmm::share_options, vmm::share_parts_max, vmm::share_role,
    vmm::share_secret, vmm::share_session, vmm::share_step, vmm::share_version, vmm::share_watch,
    vmm::sign_bytes;

// vmm.suspend
using vmm::backup_tier, vmm::retain_reason, vmm::suspend_contents, vmm::suspend_options,
    vmm::suspend_region, vmm::retained_memory, vmm::suspend_report, vmm::suspend_request,
    vmm::suspender;

// vmm.timeline
using vmm::check_stream, vmm::pending_frees, vmm::per_thread_stream, vmm::point_answer,
    vmm::record_order, vmm::recorded_event, vmm::stream_phase, vmm::stream_point,
    vmm::stream_progress, vmm::ticket, vmm::ticket_ref, vmm::timeline;

// vmm.tracker
using vmm::pinned_record, vmm::tracked_range, vmm::tracker;

// vmm.va
using vmm::address_request, vmm::address_space, vmm::address_space_options,
    vmm::address_space_statistics, vmm::block_id, vmm::block_info, vmm::extent, vmm::extent_id,
    vmm::granule_range, vmm::granule_request, vmm::max_range_granules, vmm::range_allocator,
    vmm::range_options, vmm::range_statistics, vmm::region_id, vmm::region_kind, vmm::region_map,
    vmm::region_map_options, vmm::region_note, vmm::reservation_id;

}  // namespace parts

int use_parts() {
  const unsigned long long total =
      sizeof(vmm::address) + sizeof(vmm::allocator_ref) + sizeof(vmm::cuda_options) +
      sizeof(vmm::fake_driver) + sizeof(vmm::growable_request) + sizeof(vmm::host_memory_resource) +
      sizeof(vmm::host_options) + sizeof(vmm::manager_policy) + sizeof(vmm::pool_options) +
      sizeof(vmm::vector<int>);
  std::printf("one thing of each module takes %llu bytes\n", total);
  return 0;
}
