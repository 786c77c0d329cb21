// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: whatever driver call fails in an operation of vmm.multi_device, of rights, of spilling or
// of clearing, with whatever code, once, for ever, or a second time while the first is being
// undone, the error is the one reported or the operation succeeds all the same, and nothing leaks.
//
// Method: each operation runs once to count its driver calls, then once for every call, code and
// way of failing; what it made is released afterwards, and the driver's counts and misuses are
// empty.
#include "../support/fault_sweep.h"

import vmm.manager;
import vmm.multi_device;
import vmm.stream;

namespace {

using sweeps::fault_list, sweeps::outcome, vmm::access, vmm::address, vmm::device, vmm::status;

vmm::fake::profile two_devices() {
  vmm::fake::profile made = vmm::fake::profile::cuda();
  made.device_count = 2;
  made.can.multicast = true;
  made.device_memory_bytes = 256 * MiB;
  return made;
}

constexpr vmm::access_grant peer_reads{device(1), access::read};

status of(const auto& answer) { return answer ? status{} : status{answer.error()}; }

// What an operation works on; its destructor gives everything back.
struct stage {
  stage() : driver(two_devices()) {}
  vmm::fake_driver driver;
  std::vector<vmm::physical_handle> handles;
  std::unique_ptr<vmm::manager> managed;
  std::unique_ptr<vmm::stream_pool> pool;
  vmm::multicast_team team;
  vmm::aliased_memory alias;
  std::vector<address> blocks;
};

struct scenario {
  const char* name;
  std::function<void(stage&)> prepare;  // none: nothing
  std::function<status(stage&)> operate;
  bool is_short = false;  // it may also answer that memory is short
};

void make_team(stage& s) {
  for (int i = 0; i < 2; ++i) s.handles.push_back(*s.driver.create({4 * MiB, device(i)}));
  s.team = *vmm::multicast_team::create(s.driver, {4 * MiB, 2});
}

status map_team(stage& s) {
  for (int i = 0; i < 2; ++i)
    if (status added = s.team.add(device(i)); !added) return added;
  for (int i = 0; i < 2; ++i) {
    const auto which = static_cast<std::size_t>(i);
    if (status bound = s.team.bind({device(i), s.handles[which], 0, 0, 4 * MiB}); !bound)
      return bound;
  }
  const vmm::access_grant grants[] = {{device(0)}, {device(1)}};
  if (const auto where = s.team.map(grants); !where) return where.error();
  return s.team.unmap();
}

void make_manager(stage& s, const vmm::manager_options& options, int count) {
  s.managed = std::make_unique<vmm::manager>(s.driver, options);
  for (int i = 0; i < count; ++i)
    s.blocks.push_back(*s.managed->allocate({.size_bytes = 8 * MiB, .growth_bytes = 32 * MiB}));
}

const std::vector<scenario> scenarios{
    {"ask for the topology", nullptr,
     [](stage& s) {
       vmm::driver_ref with(s.driver);
       return of(vmm::peer_topology::query(*with));
     }},
    {"make an alias and a second view", nullptr,
     [](stage& s) {
       auto made = vmm::aliased_memory::make(s.driver, {.size_bytes = 4 * MiB});
       if (!made) return of(made);
       s.alias = std::move(*made);
       return of(s.alias.add_mapping());
     }},
    {"build and map a team", make_team, map_team},
    {"rights of a block", [](stage& s) { make_manager(s, {}, 1); },
     [](stage& s) { return s.managed->set_access(s.blocks[0], {&peer_reads, 1}); }},
    {"peers of a manager", [](stage& s) { make_manager(s, {}, 3); },
     [](stage& s) { return s.managed->set_peers({&peer_reads, 1}); }},
    {"growth of a block with rights",
     [](stage& s) {
       make_manager(s, {}, 1);
       ASSERT_TRUE(s.managed->set_access(s.blocks[0], {&peer_reads, 1}));
     },
     [](stage& s) { return of(s.managed->resize({s.blocks[0], 24 * MiB, 0, false})); }},
    {"peers of a pool",
     [](stage& s) {
       s.pool = std::make_unique<vmm::stream_pool>(s.driver);
       for (int i = 0; i < 3; ++i) s.blocks.push_back(*s.pool->allocate(40 * MiB, {}));
     },
     [](stage& s) { return s.pool->set_peers({&peer_reads, 1}); }},
    {"peers of one block of a pool",
     [](stage& s) {
       s.pool = std::make_unique<vmm::stream_pool>(s.driver);
       s.blocks.push_back(*s.pool->allocate_dedicated(40 * MiB, {}));
     },
     [](stage& s) { return s.pool->set_access(s.blocks[0], {&peer_reads, 1}); }},
    {"a whole block whose rights end",
     [](stage& s) {
       s.pool = std::make_unique<vmm::stream_pool>(s.driver);
       s.blocks.push_back(*s.pool->allocate_dedicated(40 * MiB, {}));
       ASSERT_TRUE(s.pool->set_access(s.blocks[0], {&peer_reads, 1}));
     },
     [](stage& s) {
       if (status freed = s.pool->free(s.blocks[0], {}); !freed) return freed;
       s.blocks.clear();
       const auto made = s.pool->allocate_dedicated(16 * MiB, {});
       if (made) s.blocks.push_back(*made);
       return of(made);
     }},
    {"a manager spills", [](stage& s) { make_manager(s, {{.spill = vmm::host_node(0)}}, 1); },
     [](stage& s) {
       const auto made = s.managed->allocate(400 * MiB);
       if (made) s.blocks.push_back(*made);
       return of(made);
     },
     true},
    {"a pool spills",
     [](stage& s) {
       const vmm::pool_options how{{.spill = vmm::host_node(0)}};
       s.pool = std::make_unique<vmm::stream_pool>(s.driver, how);
     },
     [](stage& s) {
       const auto made = s.pool->allocate(400 * MiB, {});
       if (made) s.blocks.push_back(*made);
       return of(made);
     },
     true},
    {"zeroed blocks come, grow and go",
     [](stage& s) { make_manager(s, {{.contents = vmm::contents_rule::poison}}, 1); },
     [](stage& s) {
       if (const auto grown = s.managed->resize({s.blocks[0], 24 * MiB}); !grown) return of(grown);
       if (status freed = s.managed->free(s.blocks[0]); !freed) return freed;
       const auto made = s.managed->allocate(8 * MiB);
       if (made) s.blocks[0] = *made;
       return of(made);
     }},
    {"memory that is registered", nullptr, [](stage& s) {
       vmm::driver_ref with(s.driver);
       const auto options = vmm::registrable_options(*with);
       if (!options) return of(options);
       if (!s.managed) s.managed = std::make_unique<vmm::manager>(s.driver, *options);
       const auto made = s.managed->allocate(8 * MiB);
       if (!made) return of(made);
       return of(vmm::check_registrable(*s.managed, *made));
     }}};

// The access of blocks is as before, or for all of them as requested.
void expect_rights(stage& s, bool given, const std::string& what) {
  for (const address each : s.blocks) {
    const auto seen = s.driver.get_access(each, device(1));
    if (!seen) continue;
    EXPECT_EQ(*seen, given ? access::read : access::none) << what;
  }
}

struct SpecialSweep : testing::Test {
  outcome inject(const scenario& one, const fault_list& faults) {
    stage s;
    if (one.prepare) one.prepare(s);
    outcome seen = sweeps::run_under(s.driver, faults, [&] { return one.operate(s); });
    const std::string what = std::string(one.name) + sweeps::describe(faults);
    if (!seen.result) {
      const bool is_short = one.is_short && seen.result.error().code == vmm::errc::out_of_memory;
      EXPECT_TRUE(sweeps::is_injected(seen.result.error(), faults) || is_short)
          << what << " reports " << vmm::describe(seen.result.error());
    }
    const bool stays = faults.size() > 1 || (!faults.empty() && faults.front().forever);
    const bool is_peers = std::string(one.name).starts_with("peers of");
    if (is_peers && !stays) expect_rights(s, seen.result.has_value(), what);
    if (s.managed) EXPECT_TRUE(s.managed->validate()) << what;
    if (s.pool) EXPECT_TRUE(s.pool->validate()) << what;
    EXPECT_TRUE(s.team.release()) << what;
    EXPECT_TRUE(s.alias.release()) << what;
    quiet(s);
    s.managed.reset();
    s.pool.reset();
    for (const vmm::physical_handle each : s.handles) EXPECT_TRUE(s.driver.release(each)) << what;
    EXPECT_EQ(s.driver.misuse_count(), 0u) << what;
    EXPECT_TRUE(s.driver.check_empty()) << what << "\n" << s.driver.report();
    return seen;
  }
  // Live blocks at the end are meant.
  static void quiet(stage& s) {
    for (const address each : s.blocks) {
      if (s.managed) (void)s.managed->free(each);
      if (s.pool) (void)s.pool->free(each, {});
    }
    if (!s.managed) return;
    while (const auto listed = s.managed->extents()) {
      const auto live = std::ranges::find(*listed, vmm::extent_kind::live, &vmm::extent_info::kind);
      if (live == listed->end() || !s.managed->free(live->where.base)) return;
    }
  }
};

TEST_F(SpecialSweep, EveryCallOfEveryOperation) {
  sweeps::sweep_scenarios(
      "two devices", two_devices(), scenarios,
      [&](const scenario& one, const fault_list& faults) { return inject(one, faults); });
}

}  // namespace
