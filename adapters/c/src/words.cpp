// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "words.hpp"

#include <string_view>

import vmm.base;

namespace vmm_c {
namespace {

struct replacement {
  const char* text;  // the modules' text, in names of C++
  const char* in_c;
};

// tests/c/words_test.py compares both sides with the sources and the headers.
constexpr replacement replacements[] = {
    {"memory_options::reservation_bytes is from 1 to 2^56",
     "reservation_bytes of the options is from 1 to 2^56"},
    {"memory_options::budget_bytes is from 0 to 2^56, where 0 means no budget",
     "budget_bytes of the options is from 0 to 2^56, where 0 means no budget"},
    {"manager_policy::fragment_ratio is a number from 0 to 1",
     "fragment_ratio of the options is a number from 0 to 1, or VMM_POLICY_RATIO"},
    {"manager_policy::chunk_bytes is at most 2^56, or 0 for no chunks",
     "chunk_bytes of the options is at most 2^56, 0 for no chunks, or VMM_POLICY_CHUNK"},
    {"manager_policy::chunk_bytes (VMM_CHUNK_SIZE) is a multiple of the device's granularity, or 0 "
     "for no "
     "chunks",
     "chunk_bytes of the options (VMM_CHUNK_SIZE) is a multiple of the device's granularity, 0 for "
     "no chunks, or VMM_POLICY_CHUNK"},
    {"manager_policy::chunk_bytes (VMM_CHUNK_SIZE) is at most the device's memory",
     "chunk_bytes of the options (VMM_CHUNK_SIZE) is at most the device's memory"},
    {"the backend keeps contents at their addresses (VMM_CUDA_MEMORY=plain): blocks of a manager "
     "could not move; only a stream_pool works there",
     "the driver keeps contents at their addresses (VMM_CUDA_MEMORY=plain): blocks of a manager "
     "could not move; only a vmm_pool works there"},
    {"a border of the part lies inside a mapping of the block, which has one set of rights: "
     "manager::segments() lists the mappings",
     "a border of the part lies inside a mapping of the block, which has one set of rights: "
     "vmm_manager_parts() lists the mappings"},
    {"the manager's memory cannot be shared: set manager_options::shareable",
     "the manager's memory cannot be shared: set shareable of vmm_manager_options"},
    {"the manager's memory was not made for this kind of sharing: set manager_options::shareable",
     "the manager's memory was not made for this kind of sharing: set shareable of "
     "vmm_manager_options"},
    {"manager_options::shareable: the driver cannot share memory in that way",
     "shareable of the options: the driver cannot share memory in that way"},
    {"manager_options::rdma_capable: the device cannot make memory that RDMA can reach",
     "rdma_capable of the options: the device cannot make memory that RDMA can reach"},
    {"win32 handles are shared on Windows only: use posix_fd or fabric",
     "VMM_SHARE_WIN32 works on Windows only: use VMM_SHARE_POSIX_FD or VMM_SHARE_FABRIC"},
    {"a block is shared as posix_fd or as fabric",
     "a block is shared as VMM_SHARE_POSIX_FD or as VMM_SHARE_FABRIC"},
    {"the host driver shares memory as posix_fd only",
     "the host driver shares memory as VMM_SHARE_POSIX_FD only"},
    {"the memory is not on the device that the peer named; if the processes number devices "
     "differently, set import_options::any_device",
     "the memory is not on the device that the peer named; if the processes number devices "
     "differently, set any_device of vmm_import_request"},
    {"the block shares a mapping with other memory of the pool: allocate it with "
     "allocate_dedicated(), "
     "or give rights to all of the pool's memory",
     "the block shares a mapping with other memory of the pool: allocate it with "
     "vmm_pool_allocate_dedicated(), or give rights to all of the pool's memory"},
    {"the stream is being captured into a graph: allocate and free before or after, or open the "
     "pool with capture_rule::private_memory",
     "the stream is being captured into a graph: allocate and free before or after, or make the "
     "pool with VMM_CAPTURE_PRIVATE"},
    {"the stream is being captured, and no capture was announced: call captures().begin() before, "
     "or leave pool_options::captures_announced unset",
     "the stream is being captured, and no capture was announced: call vmm_pool_capture_begin() "
     "before, or leave captures_announced of the options 0"},
    {"no capture was announced with captures().begin()",
     "no capture was announced with vmm_pool_capture_begin()"},
    {"as many streams are in use as a pool serves at a time (stream_pool::max_streams, 4000): "
     "forget() destroyed streams",
     "as many streams are in use as a pool serves at a time (4000): call vmm_pool_forget_stream() "
     "for destroyed ones"},
    {"a pool's streams and captured graphs have no record left: forget() destroyed streams and "
     "captures().release() destroyed graphs",
     "a pool's streams and captured graphs have no record left: call vmm_pool_forget_stream() and "
     "vmm_pool_capture_release() for destroyed ones"},
    {"history_options::event_count is a power of two from 2^10 to 2^26",
     "event_count of vmm_history_options is a power of two from 2^10 to 2^26"},
    {"history_options::clock_interval is a power of two from 1 to 4096",
     "clock_interval of vmm_history_options is a power of two from 1 to 4096"},
    {"no history is recorded: set memory_options::recorder, or start a history",
     "no history is recorded: call vmm_history_start() first"},
    {"the device or the driver cannot do this: check feature_set() first",
     "the device or the driver cannot do this: check features of vmm_driver_info first"},
    {"cuda_options::device is not a device that the CUDA driver sees",
     "the CUDA driver sees no device of this number: devices are numbered from 0"},
    {"this call needs mapped memory, and that of cuda_memory::plain (VMM_CUDA_MEMORY) is not",
     "this call needs mapped memory, and with VMM_CUDA_MEMORY=plain it is not"},
    {"level_zero_options::device is not a GPU that the Level Zero drivers see",
     "the Level Zero drivers see no GPU of this number: GPUs are numbered from 0"},
    {"the host driver has no devices: use host()",
     "the host driver has no devices: use VMM_PLACE_HOST"},
    {"the host driver cannot choose NUMA nodes: use host()",
     "the host driver cannot choose NUMA nodes: use VMM_PLACE_HOST"},
    {"set_access granted no such right here", "the memory here may not be used in this way"},
    {"a part of the range lacks the access right: see set_access",
     "a part of the range may not be used in this way"},
    {"set_access granted no right to a part of the range",
     "a part of the range may not be used in this way"},
    {"A pool's block fits into one segment, which has memory_options::reservation_bytes of "
     "addresses and at most 512 GiB; a manager has larger blocks.",
     "A pool's block fits into one segment, which has reservation_bytes of the options of "
     "addresses and at most 512 GiB; a manager has larger blocks."},
    {"growable_options::segment_bytes_max is from 1 to 2^56",
     "segment_bytes_max of the options is from 1 to 2^56"},
    {"growable_options::segment_count is from 1 to 2^20",
     "segment_count of the options is from 1 to 2^20"},
    {"growable_options::handle_bytes is a multiple of the manager's granularity, 0, or few_handles",
     "handle_bytes of the options is a multiple of the manager's granularity, 0, or "
     "VMM_GROWABLE_FEW_HANDLES"},
    {"growable_options: segment_bytes_max times segment_count is at most 2^56",
     "segment_bytes_max of the options times segment_count is at most 2^56"},
    {"this driver cannot fill memory: set growable_options::zero_new to false",
     "this driver cannot fill memory: set keep_dirty of the options to 1"},
    {"the segments named are below growable_options::segment_count",
     "the segments named are below segment_count of the options"},
    {"a size is at most growable_options::segment_bytes_max",
     "a size is at most segment_bytes_max of the options"},
    {"an index is below growable_options::segment_count",
     "an index is below segment_count of the options"},
    {"this backend does not have the call: see its features",
     "this driver does not have the call: see features of vmm_driver_info"},
    {"this driver has no pinned memory of the host: use backup_tier::pageable",
     "this driver has no pinned memory of the host: use VMM_BACKUP_PAGEABLE"},
    {"the memory is suspended, or is being suspended: resume it first, by suspender::resume(); if "
     "its suspender was closed, add the allocator to another suspender, and resume it there",
     "the memory is suspended, or is being suspended: resume it first, by vmm_suspender_resume(); "
     "if its suspender was closed, add the allocator to another suspender, and resume it there"},
    {"suspend_options::verify: restored contents differ",
     "verify of vmm_suspender_options: restored contents differ"},
    {"memory_options::peers names the home or the placement, which always have read and write "
     "access",
     "the grants name the driver's device or the memory's place, which always have read and write "
     "access"},
    {"memory_options::peers has more locations than a list can hold",
     "the grants name more locations than VMM_GRANTS_MAX"},
    {"the device cannot access this memory: call query_peer first",
     "the device cannot access this memory: call vmm_driver_query_peer() first"},
};

}  // namespace

// A value that was refused follows some of the texts ("; not 'VALUE'").
const char* words_of_c(const char* text) noexcept {
  const std::string_view whole = text;
  for (const replacement& each : replacements) {
    if (!whole.starts_with(each.text)) continue;
    const std::string_view rest = whole.substr(std::string_view(each.text).size());
    if (rest.empty()) return each.in_c;
    if (rest.starts_with("; not '"))
      return vmm::detail_text().add(each.in_c).add(rest).keep(each.in_c);
  }
  return text;
}

}  // namespace vmm_c
