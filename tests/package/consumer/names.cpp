// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: `import vmm;` brings these names and no others, to a program that includes nothing but
// <cstdio>. A name more or less is an edit of this file.
// Method: a using-declaration for each name, so that one that is not exported (any more) does not
// compile; the tidiness test fails when a module that the umbrella re-exports has a name that is
// not here. parts.cpp has the other names, and hidden.cpp shows that they are not visible.
#include <cstdio>

import vmm;

namespace names {

// vmm.backend
using vmm::access;
using vmm::access_grant;
using vmm::address;
using vmm::address_range;
using vmm::alias_level;
using vmm::all_wait_backend;
using vmm::all_work_backend;
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
using vmm::capture_info;
using vmm::capture_mode;
using vmm::capture_state;
using vmm::check_backend;
using vmm::context_backend;
using vmm::copy_backend;
using vmm::copy_request;
using vmm::describe;
using vmm::device;
using vmm::dma_buf;
using vmm::driver_interface;
using vmm::driver_ref;
using vmm::errc;
using vmm::error;
using vmm::event_handle;
using vmm::fail_plan;
using vmm::features;
using vmm::fill_request;
using vmm::grant_list;
using vmm::granularity;
using vmm::host;
using vmm::host_node;
using vmm::is_shortage;
using vmm::is_wrong_address;
using vmm::link_kind;
using vmm::live_blocks;
using vmm::live_report;
using vmm::live_report_count_max;
using vmm::location;
using vmm::map_request;
using vmm::memory_info;
using vmm::memory_options;
using vmm::multicast_address_binding;
using vmm::multicast_backend;
using vmm::multicast_binding;
using vmm::multicast_handle;
using vmm::multicast_request;
using vmm::name_of;
using vmm::native_stream;
using vmm::observed_backend;
using vmm::peer_backend;
using vmm::peer_info;
using vmm::peer_query;
using vmm::physical_handle;
using vmm::physical_properties;
using vmm::physical_request;
using vmm::print_live_blocks;
using vmm::property_backend;
using vmm::quick_capture_backend;
using vmm::range_export_backend;
using vmm::range_info;
using vmm::range_sizes;
using vmm::read_only_level;
using vmm::refuse;
using vmm::refuse_forked;
using vmm::reserve_request;
using vmm::result;
using vmm::retain_backend;
using vmm::share_kind;
using vmm::shared_handle;
using vmm::sharing_backend;
using vmm::shortage_figures;
using vmm::status;
using vmm::stream_backend;
using vmm::stream_from_native;
using vmm::stream_handle;
using vmm::stream_identity_backend;
using vmm::trim_report;
using vmm::write_figures;

// vmm.backends
using vmm::backend_entry;
using vmm::backend_entry_count;
using vmm::backend_names;
using vmm::driver_in;
using vmm::open_backend;

// vmm.buffer
using vmm::allocator_ref;
using vmm::device_array;
using vmm::device_buffer;
using vmm::stream_allocator;

// vmm.cuda
using vmm::cuda_description;
using vmm::cuda_driver;
using vmm::cuda_memory;
using vmm::cuda_options;

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

// vmm.manager, ranges that grow
using vmm::few_handles;
using vmm::growable_change;
using vmm::growable_options;
using vmm::growable_pin;
using vmm::growable_range;
using vmm::growable_request;
using vmm::growable_segment_count_max;
using vmm::growable_statistics;
using vmm::pin_request;

// vmm.host
using vmm::commit_mode;
using vmm::host_driver;
using vmm::host_options;
using vmm::host_resource_counts;

// vmm.level_zero
using vmm::level_zero_description;
using vmm::level_zero_driver;
using vmm::level_zero_options;

// vmm.manager
using vmm::allocate_request;
using vmm::block_part;
using vmm::contents_rule;
using vmm::copy_mode;
using vmm::export_rule;
using vmm::exported_range;
using vmm::extent_info;
using vmm::extent_kind;
using vmm::free_rule;
using vmm::manager;
using vmm::manager_options;
using vmm::manager_statistics;
using vmm::memory_segment;
using vmm::poison_byte;
using vmm::policy;
using vmm::resize_request;
using vmm::suspension_listener;

// vmm.pmr
using vmm::host_memory_resource;

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

// vmm.special
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

// vmm.stream
using vmm::block_watcher;
using vmm::capture_rule;
using vmm::front_rule;
using vmm::pool_options;
using vmm::pool_policy;
using vmm::pool_region;
using vmm::pool_region_kind;
using vmm::pool_statistics;
using vmm::prepare_report;
using vmm::remap_kind;
using vmm::remap_listener;
using vmm::remap_notice;
using vmm::remap_subscription;
using vmm::shortage_report;
using vmm::stream_pool;

// vmm.suspend
using vmm::backup_tier;
using vmm::stay_reason;
using vmm::suspend_contents;
using vmm::suspend_options;
using vmm::suspend_region;
using vmm::suspend_remainder;
using vmm::suspend_report;
using vmm::suspend_request;
using vmm::suspender;

// vmm.vector
using vmm::vector;

}  // namespace names

int use_names() {
  std::printf("every name of the umbrella is reachable\n");
  return 0;
}
