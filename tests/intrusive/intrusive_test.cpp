// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the index keeps keys in order, equal ones latest first, and finds bounds; the pool recycles
// objects as they are.
// Method: small cases by hand, then random operations against a std::multimap; misuse must end the
// process with its own message.
#include "../support/test.h"

import vmm.backend;

namespace {

using vmm::ordered_index;
// The node's type has no exported name: users of an index derive exported types from it.
using node = std::remove_pointer_t<decltype(std::declval<ordered_index&>().first())>;

// ---- the index

TEST(OrderedIndex, ANodeCanComeBack) {
  ordered_index index;
  node only{};
  index.insert(only, 3);
  index.erase(only);
  EXPECT_FALSE(only.linked);
  EXPECT_TRUE(index.empty());
  index.insert(only, 4);
  EXPECT_EQ(index.at_least(0), &only);
  EXPECT_EQ(only.key, 4u);
}

TEST(OrderedIndex, ValidateSeesDamage) {
  ordered_index index;
  std::vector<node> nodes(3);
  for (std::size_t i = 0; i < 3; ++i) index.insert(nodes[i], i + 1);
  nodes[1].key = 9;
  EXPECT_FALSE(index.validate()) << "order";
  nodes[1].key = 2;
  EXPECT_TRUE(index.validate());
  nodes[0].linked = false;
  EXPECT_FALSE(index.validate()) << "a node that says it is not linked";
  nodes[0].linked = true;
  EXPECT_TRUE(index.validate());
}

// The naive model: a multimap in which a new key goes before its equals.
struct ModelledIndex : testing::Test {
  using model = std::multimap<std::uint64_t, node*>;

  void insert(std::uint64_t key) {
    node& fresh = *nodes.emplace_back(std::make_unique<node>());
    index.insert(fresh, key);
    expected.emplace_hint(expected.lower_bound(key), key, &fresh);
  }
  void erase(std::size_t nth) {
    const auto gone = std::next(expected.begin(), static_cast<std::ptrdiff_t>(nth));
    index.erase(*gone->second);
    expected.erase(gone);
  }
  void expect_bounds(std::uint64_t key) const {
    const auto above = expected.lower_bound(key);
    EXPECT_EQ(index.at_least(key), above == expected.end() ? nullptr : above->second);
    const auto beyond = expected.upper_bound(key);
    if (beyond == expected.begin()) {
      EXPECT_EQ(index.at_most(key), nullptr);
    } else {
      const auto first_equal = expected.lower_bound(std::prev(beyond)->first);
      EXPECT_EQ(index.at_most(key), first_equal->second);
    }
  }
  void expect_same() const {
    ASSERT_TRUE(index.validate());
    ASSERT_EQ(index.size(), expected.size());
    node* at = index.first();
    for (const auto& [key, wanted] : expected) {
      ASSERT_EQ(at, wanted);
      ASSERT_EQ(at->key, key);
      at = index.next(*at);
    }
    ASSERT_EQ(at, nullptr);
    at = index.last();
    for (auto wanted = expected.rbegin(); wanted != expected.rend(); ++wanted) {
      ASSERT_EQ(at, wanted->second);
      at = index.previous(*at);
    }
    ASSERT_EQ(at, nullptr);
  }

  std::vector<std::unique_ptr<node>> nodes;
  ordered_index index;
  model expected;
};

TEST_F(ModelledIndex, AgreesWithAMultimap) {
  std::mt19937_64 random(1);
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t key = random() % 97;  // many equal ones
    const bool grow = expected.size() < 8 || (expected.size() < 300 && random() % 100 < 52);
    if (grow) {
      insert(key);
    } else {
      erase(static_cast<std::size_t>(random() % expected.size()));
    }
    expect_bounds(random() % 99);
    if (step % 100 == 0) expect_same();
    if (HasFailure()) FAIL() << "at step " << step;
  }
}

TEST(OrderedIndexDeathTest, MisuseEndsTheProcess) {
  ordered_index index;
  node first{};
  node second{};
  index.insert(first, 1);
  EXPECT_DEATH(index.insert(first, 2), "inserted into an index twice");
  EXPECT_DEATH(index.erase(second), "a node outside of the index is erased");
  EXPECT_DEATH((void)index.next(second), "without an index");
  EXPECT_DEATH((void)index.previous(second), "without an index");
}

// ---- the pool

struct thing {
  std::vector<int> learned;
  thing* next_free = nullptr;
};

TEST(ObjectPool, RecyclesAnObjectAsItIs) {
  vmm::object_pool<thing> pool;
  thing* const first = pool.acquire();
  ASSERT_NE(first, nullptr);
  first->learned.reserve(100);
  const std::size_t capacity = first->learned.capacity();
  pool.release(*first);
  EXPECT_EQ(pool.live_count(), 0u);
  thing* const again = pool.acquire();
  EXPECT_EQ(again, first) << "the warmest object is reused first";
  EXPECT_EQ(again->learned.capacity(), capacity);
  EXPECT_EQ(again->next_free, nullptr);
  pool.release(*again);
}

TEST(ObjectPool, HandsOutEveryObjectOnce) {
  vmm::object_pool<thing> pool;
  std::set<thing*> distinct;
  for (int i = 0; i < 1000; ++i) distinct.insert(pool.acquire());
  EXPECT_EQ(distinct.size(), 1000u);
  EXPECT_EQ(pool.live_count(), 1000u);
  for (thing* const each : distinct) pool.release(*each);
  std::set<thing*> again;
  for (int i = 0; i < 1000; ++i) again.insert(pool.acquire());
  EXPECT_EQ(again, distinct) << "released objects serve before new ones are made";
  for (thing* const each : again) pool.release(*each);
  EXPECT_EQ(pool.live_count(), 0u);
}

TEST(ObjectPoolDeathTest, MisuseEndsTheProcess) {
  vmm::object_pool<thing> pool;
  thing stranger;
  EXPECT_DEATH(pool.release(stranger), "a pool without live objects");
  EXPECT_DEATH(
      {
        vmm::object_pool<thing> going;
        (void)going.acquire();
      },
      "is destroyed while objects of it are in use");
}

}  // namespace
