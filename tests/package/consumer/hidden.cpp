// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: `import vmm;` shows only the names of its list: nothing of the parts, of fakes, of sharing.
// Method: a name of a part is declared in another namespace, and looked up where both namespaces
// are open. A name that vmm showed, too, would be ambiguous, and this file would not compile.
#include <cstdio>

import vmm;

namespace ours {
constexpr int parse_bytes = 1, object_pool = 1, nvtx_declarer = 1, block_request = 1, engine = 1,
              mapping_plan = 1, physical_pool = 1, memory_list = 1, check = 1, round_up = 1,
              ticket = 1, timeline = 1, tracker = 1, address_space = 1, region_map = 1,
              fake_driver = 1, call_log = 1, share_channel = 1, suspender = 1, peer_topology = 1,
              stream_backend = 1;
namespace sync {
constexpr int mutex = 1;
}  // namespace sync
}  // namespace ours

namespace seen {
using namespace vmm;
using namespace ours;
// What is public is found, so that both namespaces are looked into.
using found = address;

constexpr int hidden_count = parse_bytes + object_pool + nvtx_declarer + block_request + engine +
                             mapping_plan + physical_pool + memory_list + check + round_up +
                             ticket + timeline + tracker + address_space + region_map +
                             fake_driver + call_log + share_channel + suspender + peer_topology +
                             stream_backend + sync::mutex;
}  // namespace seen

int use_hidden() {
  std::printf("%d names of parts are not visible\n", seen::hidden_count);
  return sizeof(seen::found) == sizeof(vmm::address) ? 0 : 1;
}
