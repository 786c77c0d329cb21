// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: what is pinned stays where it is, freed or not, whatever is done to the pool meanwhile, and
// is given back once when its last pin goes. Method: a kernel that no stream orders stands for a
// network card; the pool is made to move, trim and hand out all it can while it runs.
#include "fake_pool.hpp"

namespace {

using vmm::address, vmm::errc;

class Pins : public FakePool {};

TEST_F(Pins, AFreedBlockStaysUntilItsPinGoes) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  ASSERT_TRUE(driver.write_tag({at, 8 * MiB}, 42));
  fine(managed->pin(at));
  free(at, a);
  EXPECT_EQ(managed->statistics().live_bytes, 8 * MiB);
  std::vector<address> others;
  for (const std::uint64_t size : {8 * MiB, 4 * MiB, 2 * MiB, 8 * MiB, 16 * MiB}) {
    others.push_back(allocate(size, a));
    EXPECT_TRUE(others.back() >= at + 8 * MiB || others.back() + size <= at);
  }
  for (const address other : others) free(other, b);
  (void)managed->trim(0);
  fine(managed->synchronize());
  EXPECT_EQ(driver.read_tag(at).value_or(0), 42u);
  EXPECT_EQ(driver.read_tag(at + (8 * MiB - 8)).value_or(0), 42u);
  fine(managed->unpin(at));
  EXPECT_EQ(managed->statistics().live_bytes, 0u);
  EXPECT_EQ(managed->trim(0).released_bytes, 8 * MiB);
}

TEST_F(Pins, TheUseOfACardThatNoStreamOrdersIsSafe) {
  open(moving());
  const vmm::stream_handle card = *driver.create_stream();
  const address at = allocate(8 * MiB, a);
  fine(managed->pin(at));
  run(card, {at, 8 * MiB}, 1e6);
  free(at, a);
  const address other = allocate(8 * MiB, a);
  run(a, {other, 8 * MiB}, 10);  // the driver reports a misuse when this is the card's memory
  (void)managed->trim(0);
  ASSERT_TRUE(driver.synchronize_stream(card));
  fine(managed->unpin(at));
  EXPECT_EQ(allocate(8 * MiB, a), at) << "and then it is as free as any";
  ASSERT_TRUE(driver.destroy_stream(card));
}

TEST_F(Pins, AFreedBlockBelongsToItsStreamAfterAllItsWork) {
  open(moving());
  const address at = allocate(8 * MiB, a);
  fine(managed->pin(at));
  free(at, a);
  run(a, {at, 8 * MiB}, 1e6);  // until the pin goes the block may still be used on its stream
  fine(managed->unpin(at));
  const address other = allocate(8 * MiB, b);
  EXPECT_EQ(other, at);
  EXPECT_EQ(driver.calls(vmm::call::wait_event), 1u) << "b waits for the work of a";
  run_and_free(b, {other, 8 * MiB}, 10);
}

TEST_F(Pins, ManyAtATime) {
  std::vector<address> blocks;
  for (int i = 0; i < 3000; ++i) {
    blocks.push_back(allocate(512 + 512 * static_cast<std::uint64_t>(i % 7), a));
    fine(managed->pin(blocks.back()));
  }
  for (const address at : blocks) free(at, b);
  EXPECT_EQ(managed->statistics().live_count, 3000u);
  for (const address at : blocks) fine(managed->unpin(at));
  EXPECT_EQ(managed->statistics().live_count, 0u);
}

}  // namespace
