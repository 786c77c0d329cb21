// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <boost/intrusive/rbtree_algorithms.hpp>
#include <cstddef>
#include <cstdint>

module vmm.intrusive;

import vmm.backend;

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

void ordered_index::insert(index_node& node, std::uint64_t key) noexcept {
  check(!node.linked, "a node is inserted into an index twice");
  node.key = key;
  node.linked = true;
  tree::insert_equal_lower_bound(&header_, &node, key_order{});
  ++count_;
}

void ordered_index::erase(index_node& node) noexcept {
  check(node.linked, "a node is erased that is in no index");
  check(count_ > 0, "a node is erased from an empty index");
  tree::erase(&header_, &node);
  node.linked = false;
  --count_;
}

index_node* ordered_index::at_least(std::uint64_t key) const noexcept {
  index_node* const found = tree::lower_bound(&header_, key, key_order{});
  return found == &header_ ? nullptr : found;
}

index_node* ordered_index::at_most(std::uint64_t key) const noexcept {
  if (count_ == 0) return nullptr;
  index_node* const above = tree::upper_bound(&header_, key, key_order{});
  if (above == tree::begin_node(&header_)) return nullptr;
  // Before `above` stands the oldest of the equal keys; the latest is the first of them.
  return at_least(tree::prev_node(above)->key);
}

index_node* ordered_index::first() const noexcept {
  return count_ == 0 ? nullptr : tree::begin_node(&header_);
}

index_node* ordered_index::last() const noexcept {
  return count_ == 0 ? nullptr : tree::prev_node(&header_);
}

index_node* ordered_index::next(const index_node& node) const noexcept {
  check(node.linked, "the neighbour of a node is asked for that is in no index");
  index_node* const found = tree::next_node(const_cast<index_node*>(&node));
  return found == &header_ ? nullptr : found;
}

index_node* ordered_index::previous(const index_node& node) const noexcept {
  check(node.linked, "the neighbour of a node is asked for that is in no index");
  if (&node == tree::begin_node(&header_)) return nullptr;
  return tree::prev_node(const_cast<index_node*>(&node));
}

bool ordered_index::validate() const noexcept {
  std::size_t seen = 0;
  const index_node* before = nullptr;
  for (const index_node* node = first(); node != nullptr; node = next(*node)) {
    if (!node->linked || (before != nullptr && before->key > node->key)) return false;
    if (++seen > count_) return false;
    before = node;
  }
  return seen == count_;
}

}  // namespace vmm
