// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: every exported name is reachable through `import vmm;` by a program that includes nothing
// but <cstdio>.
// Method: a using-declaration for each name, so that one that is not exported (any more) does not
// compile; the tidiness test fails when an interface unit exports a name that is not here.
#include <cstdio>

import vmm;

namespace names {

// vmm.backend
using vmm::access;
using vmm::access_grant;
using vmm::address;
using vmm::address_range;
using vmm::alias_level;
using vmm::any_backend;
using vmm::backend;
using vmm::call;
using vmm::call_count;
using vmm::call_counter;
using vmm::call_facts;
using vmm::call_log;
using vmm::call_observer;
using vmm::call_record;
using vmm::can_capture;
using vmm::capture_backend;
using vmm::context_backend;
using vmm::capture_info;
using vmm::capture_mode;
using vmm::capture_state;
using vmm::check;
using vmm::check_backend;
using vmm::check_level;
using vmm::copy_backend;
using vmm::copy_request;
using vmm::debug_check;
using vmm::describe;
using vmm::device;
using vmm::driver_interface;
using vmm::driver_ref;
using vmm::errc;
using vmm::error;
using vmm::event_handle;
using vmm::fail_check;
using vmm::fail_plan;
using vmm::features;
using vmm::fill_request;
using vmm::granularity;
using vmm::host;
using vmm::host_node;
using vmm::leave_behind;
using vmm::leave_parts_behind;
using vmm::live_blocks;
using vmm::live_report;
using vmm::live_report_count_max;
using vmm::location;
using vmm::map_request;
using vmm::memory_info;
using vmm::multicast_backend;
using vmm::multicast_binding;
using vmm::multicast_handle;
using vmm::multicast_request;
using vmm::name_of;
using vmm::observed_backend;
using vmm::paranoid_check;
using vmm::parse_bytes;
using vmm::parse_number;
using vmm::physical_handle;
using vmm::physical_properties;
using vmm::physical_request;
using vmm::process_mark;
using vmm::print_live_blocks;
using vmm::property_backend;
using vmm::read_bytes_option;
using vmm::read_number_option;
using vmm::read_only_level;
using vmm::read_switch_option;
using vmm::read_text_option;
using vmm::refuse;
using vmm::refuse_forked;
using vmm::reserve_request;
using vmm::result;
using vmm::retain_backend;
using vmm::round_up;
using vmm::share_kind;
using vmm::shared_handle;
using vmm::sharing_backend;
using vmm::status;
using vmm::stream_backend;
using vmm::stream_handle;
using vmm::use_of;
using vmm::used_object;
using vmm::user_count;

// vmm.fake
using vmm::fake_driver;
namespace fake {
using vmm::fake::cost_curve;
using vmm::fake::cost_table;
using vmm::fake::dialect;
using vmm::fake::fault;
using vmm::fake::graph_handle;
using vmm::fake::kernel;
using vmm::fake::ledger_counts;
using vmm::fake::max_device_count;
using vmm::fake::max_node_count;
using vmm::fake::misuse;
using vmm::fake::misuse_kind;
using vmm::fake::name_of;
using vmm::fake::native_error;
using vmm::fake::profile;
using vmm::fake::trap_set;
using vmm::fake::world;
}  // namespace fake

// vmm.backends
using vmm::backend_entry;
using vmm::backend_entry_count;
using vmm::backend_names;
using vmm::driver_in;
using vmm::open_backend;

// vmm.host
using vmm::commit_mode;
using vmm::host_driver;
using vmm::host_ledger;
using vmm::host_options;

// vmm.cuda
using vmm::cuda_description;
using vmm::cuda_driver;
using vmm::cuda_memory;
using vmm::cuda_options;

// vmm.level_zero
using vmm::level_zero_description;
using vmm::level_zero_driver;
using vmm::level_zero_options;

// vmm.intrusive
using vmm::index_node;
using vmm::object_pool;
using vmm::ordered_index;

// vmm.sync
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

// vmm.timeline
using vmm::ticket;
using vmm::ticket_ref;
using vmm::timeline;

// vmm.physical
using vmm::is_shortage;
using vmm::physical_options;
using vmm::physical_pool;
using vmm::physical_statistics;
using vmm::piece;
using vmm::piece_list;
using vmm::reserve_more;
using vmm::trim_report;

// vmm.reservation
using vmm::reservation_options;
using vmm::reservation_space;

// vmm.tracker
using vmm::range_info;
using vmm::range_sizes;
using vmm::tracked_range;
using vmm::tracker;

// vmm.optimizer
using vmm::block;
using vmm::block_request;
using vmm::engine;
using vmm::engine_options;
using vmm::grant_list;
using vmm::grants_for;
using vmm::mapping_plan;
using vmm::remap_outcome;
using vmm::remapper;
using vmm::resize_plan;

// vmm.manager
using vmm::allocate_request;
using vmm::copy_mode;
using vmm::extent_kind;
using vmm::extent_view;
using vmm::free_rule;
using vmm::manager;
using vmm::manager_options;
using vmm::manager_statistics;
using vmm::policy;
using vmm::resize_request;

// vmm.nvtx
using vmm::nvtx_declarer;

// vmm.stream
using vmm::block_watcher;
using vmm::capture_rule;
using vmm::pool_options;
using vmm::pool_policy;
using vmm::pool_region;
using vmm::pool_region_kind;
using vmm::pool_statistics;
using vmm::remap_callback;
using vmm::remap_kind;
using vmm::remap_notice;
using vmm::remap_subscription;
using vmm::shortage_report;
using vmm::stream_pool;

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
using vmm::owner_words;
using vmm::range_allocator;
using vmm::range_options;
using vmm::range_statistics;
using vmm::region_id;
using vmm::region_kind;
using vmm::region_map;
using vmm::region_map_options;
using vmm::region_note;
using vmm::reservation_id;

// vmm.vector
using vmm::vector;

}  // namespace names

int use_names() {
  std::printf("every exported name is reachable\n");
  return 0;
}
