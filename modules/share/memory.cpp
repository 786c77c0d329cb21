// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdio>

#include "system.hpp"

module vmm.share;

import vmm.backend;
import vmm.base;
import vmm.manager;
import vmm.std;
import :failures;

namespace vmm {
namespace {

constexpr int close_attempts_max = 3;

bool includes(share_kind kinds, share_kind kind) noexcept {
  return (static_cast<unsigned>(kinds) & static_cast<unsigned>(kind)) != 0;
}

void report_left(const char* what, const error& failure) noexcept {
  check(failure.code != errc::none, "a released block is reported as retained");
  without_write_signals([&] {
    std::fprintf(stderr,
                 "vmm: %s could not release everything: %s, %s; the rest stays with the process\n",
                 what, name_of(failure.code), failure.detail);
  });
}

// A real descriptor, and not a token of the fake driver's.
bool is_descriptor(std::int64_t value) noexcept {
  return value >= 0 && value <= std::numeric_limits<int>::max();
}

status check_kind(share_kind kind) noexcept {
  if (kind == share_kind::win32) {
    return refuse(errc::not_supported,
                  "win32 handles are shared on Windows only: use posix_fd or fabric");
  }
  if (kind == share_kind::posix_fd || kind == share_kind::fabric) return {};
  return refuse(errc::invalid_argument, "a block is shared as posix_fd or as fabric");
}

// The same rights for the driver's home and for the location of the memory.
struct two_grants {
  std::array<access_grant, 2> grants{};
  std::size_t count = 0;
  [[nodiscard]] std::span<const access_grant> all() const noexcept {
    return std::span(grants).first(count);
  }
};
two_grants grants_in(const driver_interface& driver, location where, access rights) noexcept {
  two_grants list{{{{driver.home(), rights}, {where, rights}}}, 2};
  if (driver.home() == where) list.count = 1;
  return list;
}

}  // namespace

// ---- mapped_parts --------------------------------------------------------------------

mapped_parts::~mapped_parts() {
  if (!made_in_.is_here()) {
    leave_parts_behind(parts_);
    return;
  }
  status closed = close();
  for (int left = close_attempts_max - 1; left > 0 && !closed; --left) closed = close();
  if (!closed) report_left("a shared block", closed.error());
  check(!closed || parts_.empty(), "a block is closed and has handles left");
}

std::uint64_t mapped_parts::size_bytes() const noexcept {
  std::uint64_t sum_bytes = 0;
  for (const block_part& part : parts_) {
    sum_bytes += part.size_bytes;
    check(sum_bytes >= part.size_bytes, "the sum of a block's parts exceeds 64 bits");
  }
  check(where_.empty() || sum_bytes == where_.size_bytes, "a block is not mapped whole");
  return sum_bytes;
}

status mapped_parts::add(physical_handle handle, std::uint64_t size_bytes) noexcept {
  check(where_.empty() && size_bytes != 0, "a part is added to a block that is mapped, or is none");
  check(handle != physical_handle::none, "a part without memory is added");
  try {
    parts_.push_back({handle, size_bytes});
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, no_block_memory);
  }
  return {};
}

status mapped_parts::map(location where, access rights) noexcept {
  if (!made_in_.is_here()) return refuse_forked(call::map);
  check(!parts_.empty() && !mapped_,
        "I1: a block is mapped that has no parts, or is mapped already");
  if (status undone = unmap(); !undone) return undone;  // what an earlier try left
  check(rights != access::none, "a block is mapped without access");
  check(mapped_count_ == 0, "a block is mapped twice");
  const result<address_range> reserved = driver_->reserve({.size_bytes = size_bytes()});
  if (!reserved) return reserved.error();
  where_ = *reserved;
  check(where_.size_bytes == size_bytes(), "a reservation does not have the requested size");
  address at = where_.base;
  status done;
  while (done && mapped_count_ < parts_.size()) {
    check(where_.contains(address_range{at, parts_[mapped_count_].size_bytes}),
          "a part is mapped outside of its block");
    const block_part& part = parts_[mapped_count_];
    done = driver_->map({at, part.size_bytes, part.handle, 0});
    if (done) ++mapped_count_;
    at = at + part.size_bytes;
  }
  if (done) done = driver_->set_access(where_, grants_in(*driver_, where, rights).all());
  if (!done) {
    (void)unmap();
    return done;
  }
  check(at == where_.end(), "I1: the parts do not fill their addresses");
  check(mapped_count_ == parts_.size(), "a part of a block was not mapped");
  mapped_ = true;
  return {};
}

status mapped_parts::unmap() noexcept {
  check(mapped_count_ <= parts_.size(), "more parts are mapped than there are");
  check(mapped_count_ == 0 || !where_.empty(), "parts are mapped without addresses");
  if (!made_in_.is_here()) return refuse_forked(call::unmap);
  mapped_ = false;
  while (mapped_count_ > 0) {
    address at = where_.base;
    for (std::size_t i = 0; i + 1 < mapped_count_; ++i) at = at + parts_[i].size_bytes;
    check(where_.contains(at), "a part is unmapped outside of its block");
    if (status gone = driver_->unmap({at, parts_[mapped_count_ - 1].size_bytes}); !gone)
      return gone;
    --mapped_count_;
  }
  if (where_.empty()) return {};
  if (status freed = driver_->free_reservation(where_); !freed) return freed;
  where_ = {};
  return {};
}

status mapped_parts::close() noexcept {
  if (status unmapped = unmap(); !unmapped) return unmapped;
  check(mapped_count_ == 0 && where_.empty(), "I2: handles are released before they are unmapped");
  while (!parts_.empty()) {
    if (status released = driver_->release(parts_.back().handle); !released) return released;
    check(parts_.back().handle != physical_handle::none, "a part has no memory");
    parts_.pop_back();
  }
  check(!mapped_, "a block without handles is said to be mapped");
  return {};
}

// ---- export_state --------------------------------------------------------------------

export_state::~export_state() {
  if (owner == nullptr || rule != export_rule::pinned || !own.is_here()) return;
  check(owner_use.has_value() && at, "I3: a manager's block does not keep its manager");
  if (const status ended = owner->exports().end(at); !ended)
    report_left("an exported block", ended.error());
}

result<share_description> export_state::refresh() noexcept {
  check(owner == nullptr || owner_use.has_value(),
        "I3: a manager's block does not keep its manager");
  if (!own.is_here()) return refuse_forked(call::export_handle);
  if (owner == nullptr || rule == export_rule::pinned) return block;
  result<exported_range> now = owner->exports().begin(at, export_rule::followed, number);
  if (!now) return now.error();
  share_description next = block;
  next.size_bytes = now->size_bytes;
  next.part_count = 0;
  next.part_bytes = {};
  if (now->parts.size() > share_parts_max || (one_handle && now->parts.size() != 1)) {
    return refuse(errc::invalid_argument,
                  "the block has more handles than can be sent, or more than the one that was "
                  "requested");
  }
  for (const block_part& part : now->parts) next.part_bytes[next.part_count++] = part.size_bytes;
  check(next.part_count == now->parts.size(), "a block is described without a part");
  check(next.part_count != 0 && next.size_bytes != 0, "a followed block has no memory");
  block = next;
  parts = std::move(now->parts);
  return block;
}

// ---- exported_block ------------------------------------------------------------------

namespace {

// The driver queries that both ways of exporting a block make.
result<share_description> describe_parts(driver_interface& driver,
                                         const physical_properties& granted, share_kind kind,
                                         std::span<const block_part> parts) noexcept {
  const std::size_t most = kind == share_kind::fabric ? share_fabric_parts_max : share_parts_max;
  if (parts.empty() || parts.size() > most) {
    return refuse(errc::invalid_argument,
                  "a shared block has 1 to 240 handles, 26 of fabric: use larger handles, or one");
  }
  share_description block;
  block.kind = kind;
  block.where = granted.where;
  block.compressible = granted.compressible;
  block.rdma_capable = granted.rdma_capable;
  for (const block_part& part : parts) {
    block.part_bytes[block.part_count++] = part.size_bytes;
    block.size_bytes += part.size_bytes;
  }
  check(block.part_count == parts.size() && block.size_bytes != 0, "a block lacks a part");
  physical_request like{.size_bytes = block.size_bytes, .where = granted.where};
  like.shareable = kind;
  const result<granularity> unit = driver.query_granularity(like);
  if (!unit) return unit.error();
  block.granularity_bytes = unit->minimum_bytes;
  return block;
}

// Creates handles of `handle_bytes` each, up to `size_bytes`.
status create_parts(mapped_parts& to, physical_request like, std::uint64_t size_bytes,
                    std::uint64_t handle_bytes) noexcept {
  check(size_bytes != 0 && handle_bytes != 0, "a block is made of handles without a size");
  for (std::uint64_t left_bytes = size_bytes; left_bytes != 0;) {
    like.size_bytes = std::min(left_bytes, handle_bytes);
    const result<physical_handle> made = to.driver().create(like);
    if (!made) return made.error();
    if (status added = to.add(*made, like.size_bytes); !added) {
      (void)to.driver().release(*made);
      return added;
    }
    check(like.size_bytes != 0 && like.size_bytes <= left_bytes, "a part exceeds its request");
    left_bytes -= like.size_bytes;
  }
  check(to.size_bytes() == size_bytes, "the handles of a block are not its size");
  return {};
}

template <class T, class... Arguments>
std::shared_ptr<T> try_make_shared(Arguments&&... arguments) noexcept {
  try {
    return std::make_shared<T>(std::forward<Arguments>(arguments)...);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

result<exported_block> exported_block::make(driver_ref driver,
                                            const export_request& request) noexcept {
  constexpr std::uint64_t size_bytes_max = std::uint64_t{1} << 56;
  if (const status known = check_kind(request.kind); !known) return known.error();
  physical_request like;
  like.size_bytes = std::max<std::uint64_t>(request.size_bytes, 1);
  like.where = request.placement.value_or(driver->home());
  like.shareable = request.kind;
  like.compressible = request.compressible;
  like.rdma_capable = request.rdma_capable;
  const result<granularity> unit = driver->query_granularity(like);
  if (!unit) return unit.error();
  const auto refused = [](const detail_text& text, const char* otherwise) {
    return refuse(errc::invalid_argument, text.keep(otherwise));
  };
  if (request.size_bytes == 0 || request.size_bytes > size_bytes_max) {
    constexpr const char* detail = "a shared block has from 1 to 2^56 bytes";
    return refused(detail_text().add(detail).add("; not ").add_number(request.size_bytes), detail);
  }
  if (request.handle_bytes % unit->minimum_bytes != 0) {
    constexpr const char* detail = "a shared block's handles are whole granules";
    return refused(detail_text()
                       .add(detail)
                       .add(" of ")
                       .add_number(unit->minimum_bytes)
                       .add(" bytes; not ")
                       .add_number(request.handle_bytes),
                   detail);
  }
  const std::uint64_t size_bytes = round_up(request.size_bytes, unit->recommended_bytes);
  const std::uint64_t handle_bytes = request.handle_bytes == 0 ? size_bytes : request.handle_bytes;
  if ((size_bytes - 1) / handle_bytes >= share_parts_max) {
    constexpr const char* detail = "a shared block has at most 240 handles: make them larger";
    const std::uint64_t count = (size_bytes - 1) / handle_bytes + 1;
    return refused(detail_text().add(detail).add("; not ").add_number(count), detail);
  }
  std::shared_ptr<export_state> state = try_make_shared<export_state>(driver);
  check(handle_bytes % unit->minimum_bytes == 0, "a handle is not whole granules");
  if (state == nullptr) return refuse(errc::out_of_host_memory, no_block_memory);
  if (const status made = create_parts(state->own, like, size_bytes, handle_bytes); !made)
    return made.error();
  const result<physical_properties> granted =
      driver->get_properties(state->own.parts().front().handle);
  check(state->own.parts().size() <= share_parts_max, "a block has more parts than can be sent");
  if (!granted) return granted.error();
  const result<share_description> block =
      describe_parts(*driver, *granted, request.kind, state->own.parts());
  if (!block) return block.error();
  if (const status mapped = state->own.map(granted->where, access::read_write); !mapped)
    return mapped.error();
  check(block->size_bytes == size_bytes, "a block does not have the requested size");
  check(state->own.where().size_bytes == size_bytes, "a block is not mapped whole");
  state->block = *block;
  state->block.label = request.label;
  state->at = state->own.where().base;
  return exported_block(std::move(state));
}

result<exported_block> exported_block::from(manager& owner, address at,
                                            const block_export& how) noexcept {
  if (const status known = check_kind(how.kind); !known) return known.error();
  if (!includes(owner.options().shareable, how.kind)) {
    return refuse(errc::not_supported,
                  "the manager's memory was not made for this kind of sharing: set "
                  "manager_options::shareable");
  }
  std::shared_ptr<export_state> state = try_make_shared<export_state>(driver_ref(owner.driver()));
  if (state == nullptr) return refuse(errc::out_of_host_memory, no_block_memory);
  result<exported_range> made = owner.exports().begin(at, how.rule);
  if (!made) return made.error();
  check(made->base == at && !made->parts.empty(), "the exported block is not the requested one");
  // From here on the state owns the export and ends it.
  state->rule = how.rule;
  state->at = at;
  state->number = made->number;
  state->owner = &owner;
  state->owner_use.emplace(owner);
  if (how.one_handle && made->parts.size() != 1) {
    return refuse(errc::invalid_argument,
                  "the block has several handles: trim the manager before, or use a policy whose "
                  "chunk is the whole block");
  }
  const result<share_description> block =
      describe_parts(owner.driver(), made->granted, how.kind, made->parts);
  if (!block) return block.error();
  check(block->size_bytes == made->size_bytes, "the parts of a block are not its size");
  state->one_handle = how.one_handle;
  state->block = *block;
  state->block.label = how.label;
  state->parts = std::move(made->parts);
  return exported_block(std::move(state));
}

address exported_block::data_address() const noexcept {
  check(state_ == nullptr || state_->at, "an exported block lies at no address");
  return state_ == nullptr ? address{} : state_->at;
}
std::uint64_t exported_block::size_bytes() const noexcept {
  check(state_ == nullptr || state_->block.size_bytes != 0, "an exported block has no size");
  return state_ == nullptr ? 0 : state_->block.size_bytes;
}
std::size_t exported_block::part_count() const noexcept {
  check(state_ == nullptr || state_->block.part_count <= share_parts_max,
        "a block has more parts than can be sent");
  return state_ == nullptr ? 0 : state_->block.part_count;
}

status exported_block::moved_to(address at) noexcept {
  if (state_ == nullptr || state_->owner == nullptr || state_->rule != export_rule::followed)
    return refuse(errc::invalid_argument, "only a block that is followed moves");
  const address before = std::exchange(state_->at, at);
  const result<share_description> now = state_->refresh();
  check(!now || state_->block.part_count == state_->parts.size(),
        "a moved block's number of handles is wrong");
  if (now) return {};
  state_->at = before;
  return now.error();
}

status exported_block::release() noexcept {
  if (state_ == nullptr) return {};
  if (!state_->own.is_here()) return refuse_forked(call::release);
  if (is_lent()) return refuse(errc::in_use, "the block is lent: withdraw it first");
  if (state_->owner == nullptr) {
    if (status closed = state_->own.close(); !closed) return closed;
  } else if (state_->rule == export_rule::pinned) {
    if (status ended = state_->owner->exports().end(state_->at); !ended) return ended;
    state_->owner = nullptr;
  }
  check(state_->own.parts().empty() && !state_->own.is_mapped(), "a block ended in part");
  state_.reset();
  return {};
}

status exported_block::export_handles(std::span<shared_handle> to) const noexcept {
  if (state_ == nullptr) return refuse(errc::invalid_argument, "an empty block has no handles");
  if (!state_->own.is_here()) return refuse_forked(call::export_handle);
  const std::span<const block_part> parts =
      state_->owner == nullptr ? state_->own.parts() : std::span<const block_part>(state_->parts);
  check(parts.size() == state_->block.part_count, "a block's number of handles is wrong");
  if (to.size() < parts.size())
    return refuse(errc::invalid_argument, "too little space for handles");
  driver_interface& driver = state_->own.driver();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const result<shared_handle> made = driver.export_handle(parts[i].handle, state_->block.kind);
    if (!made) {
      for (const shared_handle& earlier : to.first(i)) {
        if (earlier.kind == share_kind::posix_fd && is_descriptor(earlier.descriptor))
          unix_os::close(static_cast<int>(earlier.descriptor));
      }
      return made.error();
    }
    check(made->kind == state_->block.kind, "a handle is not of the requested kind");
    to[i] = *made;
    to[i].size_bytes = parts[i].size_bytes;
  }
  return {};
}

result<share_description> exported_block::describe() const noexcept {
  if (state_ == nullptr) return refuse(errc::invalid_argument, "an empty block has no description");
  result<share_description> block = state_->refresh();
  if (!block || block->kind != share_kind::fabric) return block;
  std::array<shared_handle, share_fabric_parts_max> handles{};
  if (const status made = export_handles(handles); !made) return made.error();
  check(block->part_count <= handles.size(), "a block has more handles than a message takes");
  for (std::size_t i = 0; i < block->part_count; ++i)
    std::copy_n(handles[i].fabric, share_fabric_bytes, block->fabric[i].begin());
  return block;
}

}  // namespace vmm
