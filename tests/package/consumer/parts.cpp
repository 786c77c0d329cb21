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
import vmm.multi_device;
import vmm.nvtx;
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
using vmm::alias_level;
using vmm::all_wait_backend;
using vmm::all_work_backend;
using vmm::call_count;
using vmm::call_facts;
using vmm::call_observer;
using vmm::call_record;
using vmm::can_capture;
using vmm::capture_backend;
using vmm::capture_info;
using vmm::capture_mode;
using vmm::capture_state;
using vmm::check_backend;
using vmm::check_options;
using vmm::context_backend;
using vmm::copy_backend;
using vmm::dma_buf;
using vmm::environment_is_trusted;
using vmm::environment_text;
using vmm::event_handle;
using vmm::fill_request;
using vmm::index_node;
using vmm::leak_report_count_max;
using vmm::link_kind;
using vmm::map_request;
using vmm::multicast_address_binding;
using vmm::multicast_backend;
using vmm::multicast_binding;
using vmm::multicast_handle;
using vmm::multicast_request;
using vmm::object_pool;
using vmm::observed_backend;
using vmm::option_bytes_max;
using vmm::option_is_set;
using vmm::option_row;
using vmm::option_rule;
using vmm::ordered_index;
using vmm::parse_bytes;
using vmm::parse_number;
using vmm::peer_backend;
using vmm::physical_handle;
using vmm::physical_properties;
using vmm::physical_request;
using vmm::property_backend;
using vmm::quick_capture_backend;
using vmm::range_export_backend;
using vmm::read_bytes_option;
using vmm::read_number_option;
using vmm::read_only_level;
using vmm::read_option;
using vmm::read_switch_option;
using vmm::read_text_option;
using vmm::refuse;
using vmm::refuse_forked;
using vmm::refuse_number;
using vmm::refuse_value;
using vmm::refuse_variable;
using vmm::reserve_request;
using vmm::retain_backend;
using vmm::shared_handle;
using vmm::sharing_backend;
using vmm::shortage_figures;
using vmm::stream_backend;
using vmm::stream_identity_backend;
using vmm::write_figures;

// vmm.base
using vmm::check;
using vmm::check_level;
using vmm::debug_check;
using vmm::detail_bytes_max;
using vmm::detail_text;
using vmm::fail_check;
using vmm::fetch_ahead;
using vmm::flat_table;
using vmm::fork_listener;
using vmm::has_history;
using vmm::kept_count_max;
using vmm::leave_behind;
using vmm::leave_parts_behind;
using vmm::paranoid_check;
using vmm::process_mark;
using vmm::round_up;
using vmm::use_of;
using vmm::used_object;
using vmm::user_count;
using vmm::without_write_signals;
using vmm::write_whole;
using vmm::written_bytes;
using vmm::sync::assume_locked;
using vmm::sync::atomic;
using vmm::sync::has_schedule_points;
using vmm::sync::lock_guard;
using vmm::sync::mutex;
using vmm::sync::recursive_mutex;
using vmm::sync::schedule_observer;
using vmm::sync::set_schedule_observer;
using vmm::sync::shared_guard;
using vmm::sync::shared_mutex;
using vmm::sync::spin_lock;
using vmm::sync::step;
using vmm::sync::watched_mutex;

// vmm.cuda
using vmm::cuda_description;

// vmm.fake
using vmm::fake_driver;
namespace fake {
using vmm::fake::busy_table;
using vmm::fake::cost_curve;
using vmm::fake::cost_table;
using vmm::fake::error_code_set;
using vmm::fake::fault;
using vmm::fake::graph_handle;
using vmm::fake::kernel;
using vmm::fake::machine;
using vmm::fake::max_device_count;
using vmm::fake::max_node_count;
using vmm::fake::misuse;
using vmm::fake::misuse_kind;
using vmm::fake::name_of;
using vmm::fake::native_error;
using vmm::fake::profile;
using vmm::fake::resource_counts;
using vmm::fake::trap_set;
}  // namespace fake

// vmm.host
using vmm::commit_mode;
using vmm::host_resource_counts;

// vmm.level_zero
using vmm::level_zero_description;
using vmm::level_zero_driver;
using vmm::level_zero_options;

// vmm.manager
using vmm::block_part;
using vmm::export_rule;
using vmm::exported_range;
using vmm::suspension_listener;

// vmm.multi_device
using vmm::alias_request;
using vmm::aliased_memory;
using vmm::check_registrable;
using vmm::granted_of;
using vmm::multicast_part;
using vmm::multicast_phase;
using vmm::multicast_team;
using vmm::peer_topology;
using vmm::pool_registrations;
using vmm::probe_memory;
using vmm::registered_blocks;
using vmm::registrable_options;
using vmm::registration_hooks;
using vmm::registration_report;

// vmm.nvtx
using vmm::nvtx_declarer;
using vmm::nvtx_ranges;

// vmm.observe
using vmm::add_fact;
using vmm::call_counter;
using vmm::call_log;
using vmm::check_head;
using vmm::decode_history;
using vmm::decode_sample;
using vmm::encode_history;
using vmm::encode_sample;
using vmm::fail_plan;
using vmm::history;
using vmm::history_event;
using vmm::history_fact;
using vmm::history_frame;
using vmm::history_kind;
using vmm::history_label;
using vmm::history_line;
using vmm::history_line_max;
using vmm::history_listener;
using vmm::history_mapping;
using vmm::history_note;
using vmm::history_options;
using vmm::history_port;
using vmm::history_region;
using vmm::history_region_kind;
using vmm::history_ring;
using vmm::history_steps;
using vmm::history_tag;
using vmm::is_history_label;
using vmm::no_history_memory;
using vmm::no_recording;
using vmm::open_top_folder;
using vmm::publish_allocators;
using vmm::set_history_label;
using vmm::take_from;
using vmm::top_file_bytes;
using vmm::top_folders;
using vmm::top_head;
using vmm::top_kind;
using vmm::top_sample;
using vmm::top_slot;
using vmm::top_slot_count;
using vmm::top_source;
using vmm::top_use;
using vmm::write_history;

// vmm.optimizer
using vmm::add_grants;
using vmm::are_attached;
using vmm::attach_parts;
using vmm::block;
using vmm::block_cut;
using vmm::block_listener;
using vmm::block_request;
using vmm::change_peers;
using vmm::check_grants;
using vmm::check_handle_size;
using vmm::check_reach;
using vmm::close_attempts;
using vmm::close_core;
using vmm::content_filler;
using vmm::core_options;
using vmm::core_plan;
using vmm::detach_parts;
using vmm::device_core;
using vmm::engine;
using vmm::grants_for;
using vmm::growable_blocks_request;
using vmm::is_device_shortage;
using vmm::mapping_plan;
using vmm::memory_rights;
using vmm::memory_suspended;
using vmm::own_rights_change;
using vmm::plan_core;
using vmm::provide_parts;
using vmm::refuse_beyond;
using vmm::relaxed_capture;
using vmm::release_parts;
using vmm::relief_key;
using vmm::relief_ladder;
using vmm::relief_member;
using vmm::relief_pass;
using vmm::relief_pause;
using vmm::remap_outcome;
using vmm::remapper;
using vmm::report_unclosed;
using vmm::reservation_options;
using vmm::reservation_space;
using vmm::resize_plan;
using vmm::retry_while_short;
using vmm::rights_scope;
using vmm::single_rung;
using vmm::sum_of;
using vmm::suspendable;
using vmm::suspension_list;
using vmm::suspension_part;
using vmm::suspension_phase;
using vmm::suspension_phases;
using vmm::too_many_grants;
using vmm::try_to_attach;
using vmm::try_to_close;
using vmm::try_to_detach;
using vmm::unmap_answer;
using vmm::unmap_entry;
using vmm::unmap_list;
using vmm::unmap_queue;
using vmm::with_relief;

// vmm.physical
using vmm::budget_spent;
using vmm::creation;
using vmm::device_full;
using vmm::memory_list;
using vmm::physical_memory;
using vmm::physical_options;
using vmm::physical_pool;
using vmm::physical_statistics;
using vmm::reserve_more;
using vmm::spill_permit;

// vmm.registry
using vmm::backend_entry;
using vmm::backend_entry_count;
using vmm::driver_in;

// vmm.share
using vmm::block_export;
using vmm::check_share_description;
using vmm::decode_message;
using vmm::descriptor_count_of;
using vmm::encode_message;
using vmm::export_request;
using vmm::exported_block;
using vmm::import_options;
using vmm::imported_block;
using vmm::is_same_digest;
using vmm::loan_state;
using vmm::make_share_label;
using vmm::received_block;
using vmm::share_bytes;
using vmm::share_channel;
using vmm::share_description;
using vmm::share_digest;
using vmm::share_event;
using vmm::share_fabric;
using vmm::share_fabric_bytes;
using vmm::share_fabric_parts_max;
using vmm::share_header_bytes;
using vmm::share_label;
using vmm::share_listener;
using vmm::share_loans_max;
using vmm::share_message;
using vmm::share_message_bytes;
using vmm::share_message_kind;
using vmm::share_options;
using vmm::share_parts_max;
using vmm::share_role;
using vmm::share_secret;
using vmm::share_session;
using vmm::share_step;
using vmm::share_version;
using vmm::share_watch;
using vmm::sign_bytes;

// vmm.stream
using vmm::block_observer;

// vmm.suspend
using vmm::backup_tier;
using vmm::retain_reason;
using vmm::retained_memory;
using vmm::suspend_contents;
using vmm::suspend_options;
using vmm::suspend_region;
using vmm::suspend_report;
using vmm::suspend_request;
using vmm::suspender;

// vmm.timeline
using vmm::pending_frees;
using vmm::per_thread_stream;
using vmm::point_answer;
using vmm::record_order;
using vmm::recorded_event;
using vmm::stream_phase;
using vmm::stream_point;
using vmm::stream_progress;
using vmm::ticket;
using vmm::ticket_ref;
using vmm::timeline;

// vmm.tracker
using vmm::pinned_record;
using vmm::tracked_range;
using vmm::tracker;

// vmm.va
using vmm::address_request;
using vmm::address_space;
using vmm::address_space_options;
using vmm::address_space_statistics;
using vmm::block_id;
using vmm::block_info;
using vmm::extent;
using vmm::extent_id;
using vmm::granule_range;
using vmm::granule_request;
using vmm::max_range_granules;
using vmm::range_allocator;
using vmm::range_options;
using vmm::range_statistics;
using vmm::region_id;
using vmm::region_kind;
using vmm::region_map;
using vmm::region_map_options;
using vmm::region_note;
using vmm::reservation_id;

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
