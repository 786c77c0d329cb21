// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <boost/intrusive/rbtree_algorithms.hpp>

module vmm.backend;

import vmm.base;
import vmm.std;

namespace vmm {
namespace {

struct node_traits {
  using node = index_node;
  using node_ptr = index_node*;
  using const_node_ptr = const index_node*;
  using color = std::uint8_t;

  static node_ptr get_parent(const_node_ptr n) noexcept { return n->parent; }
  static void set_parent(node_ptr n, node_ptr parent) noexcept { n->parent = parent; }
  static node_ptr get_left(const_node_ptr n) noexcept { return n->left; }
  static void set_left(node_ptr n, node_ptr left) noexcept { n->left = left; }
  static node_ptr get_right(const_node_ptr n) noexcept { return n->right; }
  static void set_right(node_ptr n, node_ptr right) noexcept { n->right = right; }
  static color get_color(const_node_ptr n) noexcept { return n->color; }
  static void set_color(node_ptr n, color c) noexcept { n->color = c; }
  static color black() noexcept { return 1; }
  static color red() noexcept { return 0; }
};

using tree = boost::intrusive::rbtree_algorithms<node_traits>;

struct key_order {
  bool operator()(const index_node* a, const index_node* b) const noexcept {
    return a->key < b->key;
  }
  bool operator()(const index_node* a, std::uint64_t key) const noexcept { return a->key < key; }
  bool operator()(std::uint64_t key, const index_node* b) const noexcept { return key < b->key; }
};

}  // namespace

ordered_index::ordered_index() noexcept { tree::init_header(&header_); }

// A full validation once per as many changes as there are nodes: amortised O(1).
void ordered_index::audit() noexcept {
  if constexpr (check_level >= 3) {
    if (++unaudited_count_ <= count_) return;
    unaudited_count_ = 0;
    paranoid_check([this] { return validate().has_value(); }, "a change broke an index");
  }
}

bool ordered_index::in_order(const index_node& node) const noexcept {
  const index_node* const before = previous(node);
  const index_node* const after = next(node);
  return (before == nullptr || before->key <= node.key) &&
         (after == nullptr || after->key >= node.key);
}

void ordered_index::insert(index_node& node, std::uint64_t key) noexcept {
  check(!node.linked, "I1: a node is inserted into an index twice");
  node.key = key;
  node.linked = true;
  tree::insert_equal_lower_bound(&header_, &node, key_order{});
  ++count_;
  check(count_ > 0, "an index has more nodes than can be counted");
  debug_check([&] { return in_order(node); }, "I2: a node is linked out of order");
  audit();
}

void ordered_index::erase(index_node& node) noexcept {
  check(node.linked, "a node outside of the index is erased");
  check(count_ > 0, "a node is erased from an empty index");
  debug_check([&] { return in_order(node); }, "a node's key changed while it was linked");
  tree::erase(&header_, &node);
  node.linked = false;
  --count_;
  audit();
}

index_node* ordered_index::at_least(std::uint64_t key) const noexcept {
  index_node* const found = tree::lower_bound(&header_, key, key_order{});
  if (found == &header_) return nullptr;
  check(found->linked && found->key >= key, "a search found a smaller key, or no node");
  debug_check([&] { return previous(*found) == nullptr || previous(*found)->key < key; },
              "a search missed an earlier node");
  return found;
}

index_node* ordered_index::at_most(std::uint64_t key) const noexcept {
  if (count_ == 0) return nullptr;
  index_node* const from = tree::lower_bound(&header_, key, key_order{});
  if (from != &header_ && from->key == key) return from;
  if (from == tree::begin_node(&header_)) return nullptr;
  // Before `from` stands the oldest of the equal keys; the latest is the first of them.
  index_node* const found = at_least(tree::prev_node(from)->key);
  check(found != nullptr && found->key <= key, "a search found a larger key, or no node");
  return found;
}

index_node* ordered_index::first() const noexcept {
  if (count_ == 0) return nullptr;
  index_node* const found = tree::begin_node(&header_);
  check(found != &header_, "an index that counts nodes has none");
  return found;
}

index_node* ordered_index::last() const noexcept {
  if (count_ == 0) return nullptr;
  index_node* const found = tree::prev_node(&header_);
  check(found != &header_, "an index that counts nodes has none");
  return found;
}

index_node* ordered_index::next(const index_node& node) const noexcept {
  check(node.linked, "a node without an index has no neighbours");
  check(count_ > 0, "an empty index has no neighbours");
  index_node* const found = tree::next_node(const_cast<index_node*>(&node));
  return found == &header_ ? nullptr : found;
}

index_node* ordered_index::previous(const index_node& node) const noexcept {
  check(node.linked, "a node without an index has no neighbours");
  check(count_ > 0, "an empty index has no neighbours");
  if (&node == tree::begin_node(&header_)) return nullptr;
  index_node* const found = tree::prev_node(const_cast<index_node*>(&node));
  check(found != &header_, "the first node has a neighbour before it");
  return found;
}

status ordered_index::validate() const noexcept {
  check(header_.key == 0 && !header_.linked, "the header of an index was linked as a node");
  std::size_t seen = 0;
  const index_node* before = nullptr;
  for (const index_node* node = first(); node != nullptr; node = next(*node)) {
    if (!node->linked || (before != nullptr && before->key > node->key))
      return refuse(errc::internal, "the nodes of an index are not in order");
    if (++seen > count_) return refuse(errc::internal, "an index has more nodes than it counts");
    before = node;
  }
  if (seen != count_) return refuse(errc::internal, "an index has fewer nodes than it counts");
  return {};
}

}  // namespace vmm
