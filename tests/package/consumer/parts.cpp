// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: each module can be imported by itself, without the umbrella, and the names of the parts
// that the umbrella does not bring are reachable through their own modules.
// Method: import them one by one; a using-declaration for each name of the parts, one thing of each
// other module. The tidiness test fails when a part exports a name that is not here.
#include <cstdio>

import vmm.backend;
import vmm.buffer;
import vmm.cuda;
import vmm.environment;
import vmm.fake;
import vmm.history;
import vmm.host;
import vmm.intrusive;
import vmm.manager;
import vmm.nvtx;
import vmm.optimizer;
import vmm.options;
import vmm.physical;
import vmm.pmr;
import vmm.reservation;
import vmm.share;
import vmm.stream;
import vmm.support;
import vmm.sync;
import vmm.texts;
import vmm.timeline;
import vmm.top;
import vmm.tracker;
import vmm.va;
import vmm.vector;

namespace parts {

// vmm.environment
using vmm::check_options;
using vmm::contents_rule;
using vmm::environment_is_trusted;
using vmm::environment_text;
using vmm::memory_options;
using vmm::option_bytes_max;
using vmm::option_is_set;
using vmm::option_row;
using vmm::option_rule;
using vmm::parse_bytes;
using vmm::parse_number;
using vmm::poison_byte;
using vmm::read_bytes_option;
using vmm::read_number_option;
using vmm::read_option;
using vmm::read_switch_option;
using vmm::read_text_option;
using vmm::refuse_number;
using vmm::refuse_value;
using vmm::refuse_variable;

// vmm.history
using vmm::add_fact;
using vmm::decode_history;
using vmm::encode_history;
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
using vmm::name_of;
using vmm::no_history_memory;
using vmm::no_recording;
using vmm::set_history_label;
using vmm::take_from;
using vmm::write_history;

// vmm.intrusive
using vmm::index_node;
using vmm::object_pool;
using vmm::ordered_index;

// vmm.nvtx
using vmm::nvtx_declarer;
using vmm::nvtx_ranges;

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
using vmm::memory_segment;
using vmm::physical_memory;
using vmm::physical_options;
using vmm::physical_pool;
using vmm::physical_statistics;
using vmm::reserve_more;
using vmm::spill_permit;

// vmm.reservation
using vmm::reservation_options;
using vmm::reservation_space;

// vmm.support
using vmm::check;
using vmm::check_level;
using vmm::debug_check;
using vmm::fail_check;
using vmm::fetch_ahead;
using vmm::flat_table;
using vmm::fork_listener;
using vmm::has_history;
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

// vmm.sync
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

// vmm.texts
using vmm::detail_bytes_max;
using vmm::detail_text;
using vmm::kept_count_max;

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

// vmm.top
using vmm::check_head;
using vmm::decode_sample;
using vmm::encode_sample;
using vmm::open_top_folder;
using vmm::publish_allocators;
using vmm::top_file_bytes;
using vmm::top_folders;
using vmm::top_head;
using vmm::top_kind;
using vmm::top_sample;
using vmm::top_slot;
using vmm::top_slot_count;
using vmm::top_source;
using vmm::top_use;

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
      sizeof(vmm::host_options) + sizeof(vmm::policy) + sizeof(vmm::pool_options) +
      sizeof(vmm::vector<int>);
  std::printf("one thing of each module takes %llu bytes\n", total);
  return 0;
}
