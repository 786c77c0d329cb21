// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a block that is exported is one memory on both sides, as many handles as it may have; what
// a peer says of it is believed only as far as the driver agrees; nothing stays, whatever fails.
// Method: exporter and importer are two drivers, real ones on the host with contents compared, fake
// ones with tags; every driver call of every operation fails with every code, once, for ever, and
// during undoing.
#include "../support/fault_sweep.h"
#include "both_sides.hpp"

import vmm.host;

namespace {

using vmm::errc, vmm::exported_block, vmm::imported_block, vmm::received_block;

void close_all(std::vector<vmm::shared_handle>& handles) {
  for (const vmm::shared_handle& each : handles) ::close(static_cast<int>(each.descriptor));
  handles.clear();
}

std::vector<vmm::shared_handle> handles_of(const exported_block& block) {
  std::vector<vmm::shared_handle> handles(block.part_count());
  EXPECT_TRUE(block.export_handles(handles));
  return handles;
}

vmm::share_description numbered(const exported_block& block) {
  vmm::share_description made = block.describe().value();
  made.id = 1;
  return made;
}

struct HostMemory : ::testing::Test {
  void TearDown() override {
    EXPECT_TRUE(exporter.resource_counts().empty());
    EXPECT_TRUE(importer.resource_counts().empty());
  }
  vmm::host_driver exporter = vmm::host_driver::open().value();
  vmm::host_driver importer = vmm::host_driver::open().value();
};

TEST_F(HostMemory, SeveralHandlesAreOneBlock) {
  auto block = *exported_block::make(exporter, {.size_bytes = 12 * MiB, .handle_bytes = 4 * MiB});
  EXPECT_EQ(block.part_count(), 3U);
  auto handles = handles_of(block);
  {
    const auto received = *received_block::of(numbered(block), handles);
    auto borrowed = *imported_block::import_block(importer, received);
    EXPECT_EQ(importer.resource_counts().reservations, 0U) << "addresses come with map()";
    const auto at = *borrowed.map();
    EXPECT_EQ(importer.resource_counts().reserved_bytes, 12 * MiB) << "exactly its size";
    EXPECT_EQ(borrowed.map().value(), at) << "again: where it lies";
    auto* const here = block.data_address().as<unsigned char>();
    auto* const there = at.as<unsigned char>();
    for (std::uint64_t i = 0; i < 12 * MiB; i += 4096)
      here[i] = static_cast<unsigned char>(i >> 12);
    for (std::uint64_t i = 0; i < 12 * MiB; i += 4096)
      ASSERT_EQ(there[i], static_cast<unsigned char>(i >> 12)) << i;
    there[7 * MiB] = 99;
    EXPECT_EQ(here[7 * MiB], 99);
    ASSERT_TRUE(block.release());
    EXPECT_EQ(there[7 * MiB], 99) << "the exporter is gone, the memory is not";
    ASSERT_TRUE(borrowed.release());
    ASSERT_TRUE(borrowed.release()) << "nothing is left to do";
  }
  close_all(handles);
}

TEST_F(HostMemory, OneHandleWhereOneIsAskedFor) {
  auto block = *exported_block::make(exporter, {.size_bytes = 9 * MiB});
  EXPECT_EQ(block.part_count(), 1U);
  EXPECT_EQ(block.size_bytes(), 10 * MiB) << "whole granules";
}

TEST_F(HostMemory, WhatCannotBeMadeIsNamed) {
  const auto code = [&](const vmm::export_request& request) {
    return share_test::code(exported_block::make(exporter, request));
  };
  EXPECT_EQ(code({.size_bytes = 0}), errc::invalid_argument);
  EXPECT_EQ(code({.size_bytes = 4 * MiB, .handle_bytes = 100}), errc::invalid_argument);
  EXPECT_EQ(code({.size_bytes = 241 * 2 * MiB, .handle_bytes = 2 * MiB}), errc::invalid_argument);
  EXPECT_EQ(code({.size_bytes = MiB, .kind = vmm::share_kind::win32}), errc::not_supported);
  EXPECT_EQ(code({.size_bytes = MiB, .kind = vmm::share_kind::fabric}), errc::not_supported);
  EXPECT_EQ(code({.size_bytes = MiB, .kind = vmm::share_kind::none}), errc::invalid_argument);
  EXPECT_EQ(code({.size_bytes = MiB, .placement = vmm::device(0)}), errc::invalid_argument);
}

TEST_F(HostMemory, WhatThePeerSaysIsChecked) {
  auto block = *exported_block::make(exporter, {.size_bytes = 4 * MiB, .handle_bytes = 2 * MiB});
  auto handles = handles_of(block);
  const auto code = [&](const std::function<void(vmm::share_description&)>& lie) {
    vmm::share_description said = numbered(block);
    lie(said);
    const auto received = received_block::of(said, handles);
    if (!received) return received.error().code;
    return share_test::code(imported_block::import_block(importer, *received));
  };
  using description = vmm::share_description;
  EXPECT_EQ(code([](description&) {}), errc::none);
  EXPECT_EQ(code([](description& d) { d.where = vmm::device(0); }), errc::foreign_error);
  EXPECT_EQ(code([](description& d) { d.where = vmm::host_node(0); }), errc::foreign_error);
  EXPECT_EQ(code([](description& d) {
              d.part_bytes[0] = 3 * MiB;
              d.part_bytes[1] = MiB;
            }),
            errc::invalid_argument);
  EXPECT_EQ(code([](description& d) {
              d.granularity_bytes = 512;
              d.part_bytes[0] += 512;
              d.size_bytes += 512;
            }),
            errc::invalid_argument);
  EXPECT_EQ(code([](description& d) { d.part_count = 1; }), errc::invalid_argument);
  close_all(handles);
}

TEST_F(HostMemory, ReadersOnlyRead) {
  auto block = exported_block::make(exporter, {.size_bytes = 2 * MiB});
  auto handles = handles_of(*block);
  const auto received = received_block::of(numbered(*block), handles).value();
  auto borrowed = *imported_block::import_block(importer, received, {.rights = vmm::access::read});
  const auto at = *borrowed.map();
  EXPECT_EQ(importer.get_access(at, vmm::host()).value(), vmm::access::read);
  const vmm::access_grant none{vmm::host(), vmm::access::none};
  ASSERT_TRUE(borrowed.set_access({at, 2 * MiB}, {&none, 1}));
  EXPECT_EQ(importer.get_access(at, vmm::host()).value(), vmm::access::none);
  EXPECT_EQ(borrowed.set_access({at, 4 * MiB}, {&none, 1}).error().code, errc::invalid_argument);
  ASSERT_TRUE(borrowed.release());
  close_all(handles);
}

// ---- a manager's block ----

TEST_F(HostMemory, APinnedBlockStaysAsItIs) {
  vmm::manager owner(exporter, share_test::shareable());
  const vmm::address at = owner.allocate(4 * MiB).value();
  const vmm::address other = owner.allocate(4 * MiB).value();
  auto block = *exported_block::from(owner, at);
  auto twice = *exported_block::from(owner, at);
  const auto stays = [&] {
    EXPECT_EQ(owner.free(at).error().code, errc::in_use);
    EXPECT_EQ(owner.free_idle(at).error().code, errc::in_use);
    EXPECT_EQ(owner.resize({.at = at, .size_bytes = 8 * MiB}).error().code, errc::in_use);
    at.as<char>()[0] = 'x';
    EXPECT_TRUE(
        owner.copy({.target = other, .source = at, .size_bytes = 4 * MiB}, vmm::copy_mode::move));
    EXPECT_EQ(at.as<char>()[0], 'x') << "copied, not moved away";
    EXPECT_TRUE(owner.synchronize(at));
  };
  stays();
  EXPECT_EQ(block.moved_to(at).error().code, errc::invalid_argument) << "it is not followed";
  ASSERT_TRUE(twice.release());
  stays();
  ASSERT_TRUE(block.release());
  EXPECT_EQ(owner.exports().end(at).error().code, errc::invalid_argument);
  EXPECT_TRUE(owner.free(at));
  EXPECT_TRUE(owner.validate());
}

TEST_F(HostMemory, WhatWasExportedServesNobodyElse) {
  for (const vmm::manager_policy& policy :
       {vmm::manager_policy::va_pool(), vmm::manager_policy::keep_mapped()}) {
    vmm::manager_options options = share_test::shareable();
    options.policy = policy;
    vmm::manager owner(exporter, options);
    const vmm::address at = owner.allocate(4 * MiB).value();
    auto block = exported_block::from(owner, at);
    ASSERT_TRUE(block);
    auto handles = handles_of(*block);
    const auto received = received_block::of(numbered(*block), handles).value();
    auto borrowed = *imported_block::import_block(importer, received);
    auto* const there = borrowed.map()->as<char>();
    ASSERT_TRUE(block->release());
    ASSERT_TRUE(owner.free(at));
    EXPECT_EQ(owner.statistics().held_bytes, 0U) << "it went back to the driver";
    const vmm::address next = owner.allocate(4 * MiB).value();
    next.as<char>()[5] = 'n';
    EXPECT_EQ(there[5], 0) << "the importer sees nothing of the next block";
    ASSERT_TRUE(owner.validate());
    ASSERT_TRUE(borrowed.release());
    close_all(handles);
  }
}

TEST_F(HostMemory, AFollowedBlockGrowsAndMoves) {
  vmm::manager owner(exporter, share_test::shareable());
  vmm::address at = owner.allocate(4 * MiB).value();
  (void)owner.allocate(2 * MiB).value();
  auto block = exported_block::from(owner, at, {.rule = vmm::export_rule::followed});
  ASSERT_TRUE(block);
  auto handles = handles_of(*block);
  auto borrowed =
      imported_block::import_block(importer, received_block::of(numbered(*block), handles).value());
  ASSERT_TRUE(borrowed && borrowed->map());
  at.as<char>()[3 * MiB] = 'k';
  at = owner.resize({.at = at, .size_bytes = 8 * MiB}).value();
  ASSERT_NE(at, block->data_address()) << "it had to move";
  EXPECT_EQ(borrowed->data_address().as<char>()[3 * MiB], 'k') << "the importer has what it had";
  ASSERT_TRUE(block->moved_to(at));
  EXPECT_EQ(block->size_bytes(), 8 * MiB);
  close_all(handles);
  handles = handles_of(*block);
  ASSERT_TRUE(borrowed->update(received_block::of(numbered(*block), handles).value()));
  EXPECT_EQ(borrowed->size_bytes(), 8 * MiB);
  EXPECT_EQ(importer.resource_counts().reserved_bytes, 8 * MiB) << "the old mapping has gone";
  at.as<char>()[7 * MiB] = 'm';
  EXPECT_EQ(borrowed->data_address().as<char>()[7 * MiB], 'm');
  EXPECT_EQ(borrowed->data_address().as<char>()[3 * MiB], 'k');
  close_all(handles);
  ASSERT_TRUE(borrowed->release());
  ASSERT_TRUE(block->release());
  ASSERT_TRUE(owner.free(at)) << "a followed block was never pinned";
}

TEST_F(HostMemory, ABlockThatCannotBeExportedIsNamed) {
  vmm::manager plain(exporter, {});
  const vmm::address at = plain.allocate(2 * MiB).value();
  EXPECT_EQ(exported_block::from(plain, at).error().code, errc::not_supported);
  vmm::manager owner(exporter, share_test::shareable());
  EXPECT_EQ(exported_block::from(owner, at).error().code, errc::unknown_address);
  const vmm::address other = owner.allocate(2 * MiB).value();
  EXPECT_EQ(exported_block::from(owner, other + 4096).error().code, errc::invalid_argument);
  EXPECT_EQ(exported_block::from(owner, other, {.kind = vmm::share_kind::fabric}).error().code,
            errc::not_supported);
  vmm::address grown = owner.resize({.at = other, .size_bytes = 4 * MiB}).value();
  const auto several = exported_block::from(owner, grown, {.one_handle = true});
  EXPECT_EQ(several.error().code, errc::invalid_argument);
  EXPECT_TRUE(owner.free(grown)) << "a refusal pins nothing";
}

// ---- faults ----

struct two_fakes {
  two_fakes() : machine(profile()), exporter(profile(), machine), importer(profile(), machine) {}
  static vmm::fake::profile profile() {
    vmm::fake::profile made = vmm::fake::profile::cuda();
    made.fabric_permitted = true;
    return made;
  }
  vmm::fake::machine machine;
  vmm::fake_driver exporter;
  vmm::fake_driver importer;
};

// Every fault of the driver in the operation leaves its error, and nothing else on either driver of
// `watched`. A fault that stays would keep memory for ever, as it must: those are left out.
template <class Operation>
void sweep(vmm::fake_driver& tested, const std::vector<vmm::fake_driver*>& watched,
           Operation&& operation) {
  vmm::fake_driver any(two_fakes::profile());
  sweeps::totals sums;
  const sweeps::outcome clean = sweeps::run_under(tested, {}, operation);
  ASSERT_TRUE(clean.result) << vmm::describe(clean.result.error());
  const auto inject = [&](const sweeps::fault_list& faults) {
    if (std::ranges::any_of(faults, [](const auto& f) { return f.forever; })) return clean;
    const sweeps::outcome seen = sweeps::run_under(tested, faults, operation);
    const std::string planned = sweeps::describe(faults);
    if (!seen.result) {
      EXPECT_TRUE(sweeps::is_injected(seen.result.error(), faults))
          << vmm::describe(seen.result.error()) << planned;
    }
    for (vmm::fake_driver* const each : watched) {
      EXPECT_TRUE(each->check_empty()) << each->report() << planned;
      EXPECT_EQ(each->misuse_count(), 0U) << planned;
    }
    return seen;
  };
  sweeps::sweep_calls(any, clean, inject, sums);
  EXPECT_GT(sums.injected_count, 100U);
}

TEST(FaultSweep, OfMaking) {
  two_fakes both;
  sweep(both.exporter, {&both.exporter, &both.importer}, [&]() -> vmm::status {
    auto made =
        exported_block::make(both.exporter, {.size_bytes = 12 * MiB, .handle_bytes = 4 * MiB});
    return made ? made->release() : vmm::status{made.error()};
  });
}

TEST(FaultSweep, OfImporting) {
  two_fakes both;
  auto block = exported_block::make(
      both.exporter,
      {.size_bytes = 12 * MiB, .handle_bytes = 4 * MiB, .kind = vmm::share_kind::fabric});
  ASSERT_TRUE(block) << vmm::describe(block.error());
  const auto received = received_block::of(numbered(*block), {});
  ASSERT_TRUE(received) << vmm::describe(received.error());
  sweep(both.importer, {&both.importer}, [&]() -> vmm::status {
    auto made = imported_block::import_block(both.importer, *received);
    if (!made) return made.error();
    if (const auto at = made->map(); !at) return at.error();
    if (const auto at = made->update(*received); !at) return at.error();
    return made->release();
  });
  ASSERT_TRUE(block->release());
  EXPECT_TRUE(both.exporter.check_empty()) << both.exporter.report();
}

// As over MPI: bytes there, and nothing else.
TEST(Fabric, GoesAsBytes) {
  two_fakes both;
  auto block = exported_block::make(
      both.exporter,
      {.size_bytes = 8 * MiB, .handle_bytes = 4 * MiB, .kind = vmm::share_kind::fabric});
  ASSERT_TRUE(block);
  vmm::share_message sent;
  sent.kind = vmm::share_message_kind::offer;
  sent.block = numbered(*block);
  const vmm::share_bytes bytes = vmm::encode_message(sent);
  const auto came = vmm::decode_message(bytes);
  ASSERT_TRUE(came) << vmm::describe(came.error());
  const auto received = *received_block::of(came->block, {});
  auto borrowed = imported_block::import_block(both.importer, received);
  ASSERT_TRUE(borrowed) << vmm::describe(borrowed.error());
  const auto at = *borrowed->map();
  ASSERT_TRUE(both.exporter.write_tag({block->data_address(), 8 * MiB}, 7));
  EXPECT_EQ(both.importer.read_tag(at + 6 * MiB).value(), 7U);
  ASSERT_TRUE(borrowed->release());
  ASSERT_TRUE(block->release());
  EXPECT_TRUE(both.exporter.check_empty() && both.importer.check_empty());
}

// Both sides number the one device there is: another number is another device, or the same one in a
// process that numbers devices differently.
TEST(Fabric, AnotherDeviceIsTakenIfTheImporterAllowsIt) {
  two_fakes both;
  auto block = *exported_block::make(both.exporter,
                                     {.size_bytes = 4 * MiB, .kind = vmm::share_kind::fabric});
  vmm::share_description said = numbered(block);
  ASSERT_EQ(said.where, vmm::device(0));
  said.where = vmm::device(1);
  const auto received = *received_block::of(said, {});
  EXPECT_EQ(imported_block::import_block(both.importer, received).error().code,
            errc::foreign_error);
  auto taken = imported_block::import_block(both.importer, received, {.any_device = true});
  ASSERT_TRUE(taken) << vmm::describe(taken.error());
  ASSERT_TRUE(taken->release());
  ASSERT_TRUE(block.release());
  EXPECT_TRUE(both.exporter.check_empty() && both.importer.check_empty());
}

TEST(Fabric, WhereItIsNotPermittedItSaysSo) {
  vmm::fake_driver driver;
  EXPECT_EQ(exported_block::make(driver, {.size_bytes = 2 * MiB, .kind = vmm::share_kind::fabric})
                .error()
                .code,
            errc::not_permitted);
}

}  // namespace
