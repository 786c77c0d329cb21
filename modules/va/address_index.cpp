// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Boost.Intrusive's trees stay in this unit: their headers hold entities that cannot cross a
// module's interface.
module;
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include <boost/intrusive/set.hpp>

module vmm.va;

import vmm.backend;

namespace vmm {

namespace {

namespace intrusive = boost::intrusive;

using tree_hook = intrusive::set_base_hook<intrusive::link_mode<intrusive::normal_link>,
                                           intrusive::optimize_size<true>>;

/// The tree's links of the block with the same place in the array of records.
struct tree_links : tree_hook {};

struct by_offset {
  block_table::places_view places{};
  const tree_links* links = nullptr;

  [[nodiscard]] std::uint32_t offset_of(const tree_links& block) const noexcept {
    return places.offset(static_cast<std::uint32_t>(&block - links));
  }
  bool operator()(const tree_links& a, const tree_links& b) const noexcept {
    return offset_of(a) < offset_of(b);
  }
  bool operator()(std::uint32_t offset, const tree_links& block) const noexcept {
    return offset < offset_of(block);
  }
  bool operator()(const tree_links& block, std::uint32_t offset) const noexcept {
    return offset_of(block) < offset;
  }
};

using block_tree =
    intrusive::set<tree_links, intrusive::compare<by_offset>, intrusive::constant_time_size<false>>;

}  // namespace

struct address_index::tree {
  tree(reserved_memory&& array, by_offset order)
      : memory(std::move(array)), compare(order), blocks(order) {}

  [[nodiscard]] tree_links* links() const noexcept {
    return reinterpret_cast<tree_links*>(memory.data());
  }

  reserved_memory memory;
  by_offset compare;
  block_tree blocks;
};

void address_index::destroy::operator()(address_index* index) const noexcept {
  delete index->tree_;
  delete index;
}

result<address_index::owner> address_index::create(block_table::places_view places,
                                                   std::uint64_t count_max) noexcept {
  constexpr const char* no_memory = "no host memory for the look-up by address";
  result<reserved_memory> memory = reserved_memory::reserve(count_max * sizeof(tree_links));
  if (!memory) return memory.error();
  owner index(new (std::nothrow) address_index);
  if (index == nullptr) return refuse(errc::out_of_host_memory, no_memory);
  const auto* links = reinterpret_cast<const tree_links*>(memory->data());
  index->tree_ = new (std::nothrow) tree(std::move(*memory), by_offset{places, links});
  if (index->tree_ == nullptr) return refuse(errc::out_of_host_memory, no_memory);
  return result<owner>(std::move(index));
}

bool address_index::commit(std::uint64_t node_count) noexcept {
  return tree_->memory.commit(node_count * sizeof(tree_links));
}

void address_index::insert_first(std::uint32_t index) noexcept {
  check(tree_->blocks.empty(), "the first block of an index comes when there is another");
  tree_->blocks.push_back(*::new (tree_->links() + index) tree_links);
}

void address_index::insert_after(std::uint32_t before, std::uint32_t index) noexcept {
  auto place = tree_->blocks.iterator_to(tree_->links()[before]);
  tree_->blocks.insert_before(++place, *::new (tree_->links() + index) tree_links);
}

void address_index::erase(std::uint32_t index) noexcept {
  tree_->blocks.erase(tree_->blocks.iterator_to(tree_->links()[index]));
}

std::uint32_t address_index::find(std::uint32_t offset) const noexcept {
  auto after = tree_->blocks.upper_bound(offset, tree_->compare);
  check(after != tree_->blocks.begin(), "no block of the range begins at its start");
  return static_cast<std::uint32_t>(&*--after - tree_->links());
}

const char* address_index::broken_invariant(std::uint32_t expected_count) const noexcept {
  const block_record* const blocks = tree_->compare.places.blocks;
  std::uint32_t expected = blocks[0].after;
  std::uint32_t seen_count = 0;
  for (const tree_links& block : tree_->blocks) {
    if (&block - tree_->links() != expected)
      return "the look-up's order is not the neighbours' order";
    expected = blocks[expected].after;
    ++seen_count;
  }
  return seen_count == expected_count ? nullptr : "the look-up does not hold every block";
}

}  // namespace vmm
