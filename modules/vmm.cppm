// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm - the umbrella: the names that most programs use. `import vmm;` brings these and no others.
//
// Other modules are imported by name: vmm.share, vmm.suspend, vmm.multi_device and vmm.level_zero;
// vmm.observe, for histories, logs of calls and NVTX; vmm.backend and vmm.base, for a driver of
// the program's own; vmm.testing, for tests without a device; and the parts vmm.va, vmm.physical,
// vmm.timeline, vmm.tracker and vmm.optimizer.
export module vmm;

import vmm.backend;
import vmm.containers;
import vmm.cuda;
import vmm.host;
import vmm.manager;
import vmm.registry;
import vmm.stream;

namespace vmm {

// vocabulary
export using vmm::access;
export using vmm::access_grant;
export using vmm::address;
export using vmm::address_range;
export using vmm::any_backend;
export using vmm::backend;
export using vmm::call;
export using vmm::describe;
export using vmm::device;
export using vmm::driver_interface;
export using vmm::driver_ref;
export using vmm::errc;
export using vmm::error;
export using vmm::features;
export using vmm::grant_list;
export using vmm::granularity;
export using vmm::host;
export using vmm::host_node;
export using vmm::is_shortage;
export using vmm::is_wrong_address;
export using vmm::leak_report;
export using vmm::live_blocks;
export using vmm::location;
export using vmm::memory_info;
export using vmm::memory_options;
export using vmm::name_of;
export using vmm::native_stream;
export using vmm::peer_info;
export using vmm::peer_query;
export using vmm::print_live_blocks;
export using vmm::range_info;
export using vmm::range_sizes;
export using vmm::result;
export using vmm::share_kind;
export using vmm::status;
export using vmm::stream_from_native;
export using vmm::stream_handle;
export using vmm::trim_report;

// contents of memory
export using vmm::contents_rule;
export using vmm::memory_segment;
export using vmm::poison_byte;

// drivers
export using vmm::backend_names;
export using vmm::cuda_driver;
export using vmm::cuda_memory;
export using vmm::cuda_options;
export using vmm::host_driver;
export using vmm::host_options;
export using vmm::open_backend;

// manager
export using vmm::allocate_request;
export using vmm::copy_mode;
export using vmm::copy_request;
export using vmm::extent_info;
export using vmm::extent_kind;
export using vmm::free_rule;
export using vmm::manager;
export using vmm::manager_options;
export using vmm::manager_policy;
export using vmm::manager_statistics;
export using vmm::resize_request;

// ranges that grow
export using vmm::few_handles;
export using vmm::growable_change;
export using vmm::growable_options;
export using vmm::growable_pin;
export using vmm::growable_range;
export using vmm::growable_request;
export using vmm::growable_segment_count_max;
export using vmm::growable_statistics;
export using vmm::pin_request;

// pool
export using vmm::arena_rule;
export using vmm::capture_rule;
export using vmm::pool_options;
export using vmm::pool_policy;
export using vmm::pool_region;
export using vmm::pool_region_kind;
export using vmm::pool_statistics;
export using vmm::pool_tuning;
export using vmm::preallocate_report;
export using vmm::remap_kind;
export using vmm::remap_listener;
export using vmm::remap_notice;
export using vmm::remap_subscription;
export using vmm::shortage_report;
export using vmm::stream_pool;

// containers
export using vmm::allocator_ref;
export using vmm::device_array;
export using vmm::device_buffer;
export using vmm::host_memory_resource;
export using vmm::stream_allocator;
export using vmm::vector;

}  // namespace vmm
