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
struct object_pool {};
struct nvtx_declarer {};
struct block_request {};
struct engine {};
struct mapping_plan {};
struct physical_pool {};
struct memory_list {};
struct check {};
struct round_up {};
struct ticket {};
struct timeline {};
struct tracker {};
struct address_space {};
struct region_map {};
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
    count<parse_bytes, object_pool, nvtx_declarer, block_request, engine, mapping_plan,
          physical_pool, memory_list, check, round_up, ticket, timeline, tracker, address_space,
          region_map, fake_driver, call_log, share_channel, suspender, peer_topology,
          stream_backend, sync::mutex>;
}  // namespace seen

int use_hidden() {
  std::printf("%d names of parts are not visible\n", seen::hidden_count);
  return sizeof(seen::found) == sizeof(vmm::address) ? 0 : 1;
}
