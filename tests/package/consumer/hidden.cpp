// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: `import vmm;` shows only the names of its list: nothing of the parts, of fakes, of sharing.
// Method: a name of a part is declared in another namespace, and looked up where both namespaces
// are open. A name that vmm showed, too, would be ambiguous, and this file would not compile.
#include <cstdio>

import vmm;

namespace ours {
struct parse_bytes {};
struct parse_number {};
struct read_bytes_option {};
struct read_number_option {};
struct read_switch_option {};
struct read_text_option {};
struct index_node {};
struct object_pool {};
struct ordered_index {};
struct nvtx_declarer {};
struct block {};
struct block_request {};
struct engine {};
struct engine_options {};
struct spill_permit {};
struct grants_for {};
struct mapping_plan {};
struct remap_outcome {};
struct remapper {};
struct resize_plan {};
struct physical_options {};
struct physical_pool {};
struct physical_statistics {};
struct physical_memory {};
struct memory_list {};
struct reserve_more {};
struct reservation_options {};
struct reservation_space {};
struct check {};
struct check_level {};
struct debug_check {};
struct fail_check {};
struct leave_behind {};
struct leave_parts_behind {};
struct paranoid_check {};
struct process_mark {};
struct round_up {};
struct use_of {};
struct used_object {};
struct user_count {};
struct ticket {};
struct ticket_ref {};
struct timeline {};
struct tracked_range {};
struct tracker {};
struct address_request {};
struct address_space {};
struct address_space_options {};
struct address_space_statistics {};
struct block_id {};
struct block_info {};
struct extent {};
struct extent_id {};
struct granule_range {};
struct granule_request {};
struct max_range_granules {};
struct owner_words {};
struct range_allocator {};
struct range_options {};
struct range_statistics {};
struct region_id {};
struct region_kind {};
struct region_map {};
struct region_map_options {};
struct region_note {};
struct reservation_id {};
struct fake_driver {};
struct call_log {};
struct share_channel {};
struct suspender {};
struct peer_topology {};
struct stream_backend {};
namespace sync {
struct mutex {};
}  // namespace sync
}  // namespace ours

namespace seen {
using namespace vmm;
using namespace ours;
// What is public is found, so that both namespaces are looked into.
using found = address;

template <class... Names>
inline constexpr int count = sizeof...(Names);
constexpr int hidden_count =
    count<parse_bytes, parse_number, read_bytes_option, read_number_option, read_switch_option,
          read_text_option, index_node, object_pool, ordered_index, nvtx_declarer, block,
          block_request, engine, engine_options, spill_permit, grants_for, mapping_plan,
          remap_outcome, remapper, resize_plan, physical_options, physical_pool,
          physical_statistics, physical_memory, memory_list, reserve_more, reservation_options,
          reservation_space, check, check_level, debug_check, fail_check, leave_behind,
          leave_parts_behind, paranoid_check, process_mark, round_up, use_of, used_object,
          user_count, ticket, ticket_ref, timeline, tracked_range, tracker, address_request,
          address_space, address_space_options, address_space_statistics, block_id, block_info,
          extent, extent_id, granule_range, granule_request, max_range_granules, owner_words,
          range_allocator, range_options, range_statistics, region_id, region_kind, region_map,
          region_map_options, region_note, reservation_id, fake_driver, call_log, share_channel,
          suspender, peer_topology, stream_backend, sync::mutex>;
}  // namespace seen

int use_hidden() {
  std::printf("%d names of parts are not visible\n", seen::hidden_count);
  return sizeof(seen::found) == sizeof(vmm::address) ? 0 : 1;
}
