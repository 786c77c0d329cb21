// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cerrno>

#include "linux.hpp"

module vmm.host;

import vmm.std;
import vmm.support;

namespace vmm {
namespace {

// Sparse and never filled: extents are not reused, so no allocator of file offsets is needed.
constexpr std::uint64_t shared_file_bytes = 1ull << 62;
// Left to the rest of the system when memory is committed; less on small machines.
constexpr std::uint64_t keep_free_bytes_max = 256ull << 20;
constexpr std::uint64_t keep_free_part = 16;

// A piece of physical memory: an extent of the shared file, or a file of its own.
struct memory {
  std::uint64_t key = 0;
  linux_os::extent pages{};
  int own_file = -1;
  share_kind shareable = share_kind::none;
  bool created_here = false;
  std::uint64_t handles = 0;
  std::uint64_t mapped_bytes = 0;

  [[nodiscard]] bool referred_to() const noexcept { return handles != 0 || mapped_bytes != 0; }
};

// A mapping, or the part of one that unmap or set_access left.
struct mapping {
  std::uint64_t size_bytes = 0;
  memory* behind = nullptr;
  access rights = access::none;
};

using reservation_map = std::map<std::uint64_t, std::uint64_t>;  // base to size
using mapping_map = std::map<std::uint64_t, mapping>;            // by base

error kernel_error(call where, errc code, int number, const char* detail) noexcept {
  check(code != errc::none && number != 0, "the kernel refused and named no error");
  return {code, where, number, linux_os::errno_name(number), detail};
}

// A refusal of the driver's own table. It carries the errno that says the same.
error bad_call(call where, errc code, const char* detail) noexcept {
  check(detail != nullptr, "a refusal has no text");
  int number = EINVAL;
  switch (code) {
    case errc::out_of_memory:
    case errc::out_of_host_memory:
    case errc::out_of_addresses: number = ENOMEM; break;
    case errc::overlap: number = EEXIST; break;
    case errc::in_use: number = EBUSY; break;
    case errc::not_supported: number = EOPNOTSUPP; break;
    default: break;
  }
  return kernel_error(where, code, number, detail);
}

error unknown_handle(call where) noexcept {
  return kernel_error(where, errc::invalid_argument, EBADF, "no such handle, or released before");
}

// What a call says to a place where this driver has nothing.
error unknown_place(call where, location place) noexcept {
  check(place != host(), "the only place that there is, is refused");
  if (place.kind == location::place::device) {
    return bad_call(where, errc::invalid_argument, "the host driver has no devices: use host()");
  }
  return bad_call(where, errc::not_supported,
                  "the host driver cannot choose NUMA nodes: use host()");
}

error no_host_memory(call where) noexcept {
  return bad_call(where, errc::out_of_host_memory,
                  "operator new failed in the host driver's table");
}

error too_many_mappings(call where) noexcept {
  return kernel_error(
      where, errc::out_of_mappings, ENOMEM,
      "the process has as many kernel mappings as it may: map larger pieces, or raise "
      "vm.max_map_count");
}

// The kernel says ENOMEM both for its own memory and for too many mappings.
error mapping_error(call where, int number) noexcept {
  check(number != 0, "a mapping failed without an error");
  if (number != ENOMEM)
    return kernel_error(where, errc::internal, number, "the kernel refused to change a mapping");
  if (linux_os::mapping_limit_reached()) return too_many_mappings(where);
  return kernel_error(where, errc::out_of_host_memory, number,
                      "the kernel has no memory for its own tables");
}

error figures_error(call where, errc code, int number) noexcept {
  return kernel_error(where, code, number,
                      "what the system has available cannot be read from /proc/meminfo");
}

// What may still be committed, with something left to the rest of the system.
std::uint64_t committable_bytes(const linux_os::memory_figures& now) noexcept {
  check(now.failure == 0, "figures are used that could not be read");
  const std::uint64_t keep = std::min(keep_free_bytes_max, now.total_bytes / keep_free_part);
  return now.available_bytes > keep ? now.available_bytes - keep : 0;
}

// False when operator new failed.
template <class Work>
[[nodiscard]] bool allocates(Work&& work) noexcept {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

constexpr const char* moved_from = "a host_driver is used that was moved from";

linux_os::span span_of(address_range range) noexcept {
  check(!range.empty(), "a range of size 0 is passed to the kernel");
  return {range.base.value, range.size_bytes};
}

linux_os::protection protection_of(access rights) noexcept {
  switch (rights) {
    case access::none: return linux_os::protection::none;
    case access::read: return linux_os::protection::read;
    case access::read_write: return linux_os::protection::read_write;
  }
  check(false, "access is not one of the enumerators");
  return linux_os::protection::none;
}

bool is_power_of_two(std::uint64_t value) noexcept {
  return value != 0 && (value & (value - 1)) == 0;
}

std::byte* bytes_at(address at) noexcept {
  check(static_cast<bool>(at), "bytes at no address are touched");
  return reinterpret_cast<std::byte*>(
      static_cast<std::uintptr_t>(at.value));  // NOLINT(performance-no-int-to-ptr)
}

bool wraps(address base, std::uint64_t size_bytes) noexcept {
  return size_bytes > std::numeric_limits<std::uint64_t>::max() - base.value;
}

}  // namespace

struct host_driver::state {
  process_mark made_in;
  host_options options{};
  granularity granule{};
  features can{};
  linux_os::page_kind pages = linux_os::page_kind::normal;

  mutable std::shared_mutex guard;
  int shared_file = -1;
  std::uint64_t shared_file_used_bytes = 0;
  std::uint64_t created_bytes = 0;
  std::uint64_t last_token = 0;
  reservation_map reservations;
  mapping_map mappings;
  std::unordered_map<std::uint64_t, memory>
      memories;  // by memory::key; its nodes stay where they are
  std::unordered_map<std::uint64_t, memory*> handles;  // by token
  linux_os::spare_mappings spare;

  state() = default;
  state(const state&) = delete;
  state& operator=(const state&) = delete;
  ~state();

  // Everything below expects the caller to hold the guard.

  [[nodiscard]] bool aligned(std::uint64_t value) const noexcept {
    check(granule.minimum_bytes != 0, "a driver has no granularity");
    return value % granule.minimum_bytes == 0;
  }
  [[nodiscard]] bool well_formed(address_range range) const noexcept {
    return !range.empty() && aligned(range.base.value) && aligned(range.size_bytes) &&
           !wraps(range.base, range.size_bytes);
  }
  [[nodiscard]] bool reserved(address_range range) const noexcept;
  [[nodiscard]] bool any_mapped(address_range range) const noexcept;
  [[nodiscard]] bool all_mapped(address_range range) const noexcept;
  [[nodiscard]] memory* find(physical_handle handle) const noexcept;
  [[nodiscard]] const mapping* mapping_at(address at) const noexcept;
  [[nodiscard]] status usable(call where, address_range range, access wanted) const noexcept;

  [[nodiscard]] status check_room(std::uint64_t size_bytes) const noexcept;
  [[nodiscard]] status obtain(memory& fresh) noexcept;
  [[nodiscard]] result<physical_handle> enter(call where, const memory& facts) noexcept;
  void forget(physical_handle handle) noexcept;
  [[nodiscard]] status reclaim(call where, memory& unused) noexcept;
  [[nodiscard]] bool restore_rights(address_range range) noexcept;

  // Runs a call that lowers the count of kernel mappings; at the limit, with the spare ones lent to
  // it.
  template <class Work>
  [[nodiscard]] int with_spare(Work&& work) noexcept {
    int failure = work();
    check(failure >= 0, "an error of the kernel is below zero");
    if (failure != ENOMEM) return failure;
    spare.lend();
    failure = work();
    spare.take_back();
    check(failure >= 0, "an error of the kernel is below zero");
    return failure;
  }
};

namespace {

// Cuts the pieces that stick out of a range, and mends them again unless the cut is kept.
class boundary_cut {
 public:
  boundary_cut(mapping_map& mappings, address_range range) noexcept
      : mappings_(mappings), range_(range) {
    check(!range.empty(), "mappings are cut at a range of no size");
    whole_ = allocates([&] {
      cut_base_ = cut(range_.base.value);
      cut_end_ = cut(range_.end().value);
    });
  }
  boundary_cut(const boundary_cut&) = delete;
  boundary_cut& operator=(const boundary_cut&) = delete;
  ~boundary_cut() {
    if (cut_end_) mend(range_.end().value);
    if (cut_base_) mend(range_.base.value);
    debug_check([this] { return !(cut_base_ || cut_end_) || !mappings_.empty(); },
                "cut mappings were mended and are gone");
  }

  [[nodiscard]] bool made() const noexcept { return whole_; }
  void keep() noexcept {
    check(whole_, "a cut is kept that was not made");
    cut_base_ = cut_end_ = false;
  }

 private:
  bool cut(std::uint64_t at) {
    const auto after = mappings_.upper_bound(at);
    if (after == mappings_.begin()) return false;
    const auto left = std::prev(after);
    const std::uint64_t left_bytes = at - left->first;
    if (left_bytes == 0 || left_bytes >= left->second.size_bytes) return false;
    mapping right = left->second;
    right.size_bytes -= left_bytes;
    mappings_.emplace_hint(after, at, right);
    left->second.size_bytes = left_bytes;
    check(right.size_bytes != 0 && left->second.behind == right.behind, "a mapping is cut wrongly");
    return true;
  }

  void mend(std::uint64_t at) noexcept {
    const auto right = mappings_.find(at);
    check(right != mappings_.end() && right != mappings_.begin(), "I4: a cut mapping lost a half");
    check(std::prev(right)->second.behind == right->second.behind, "halves of two mappings meet");
    std::prev(right)->second.size_bytes += right->second.size_bytes;
    mappings_.erase(right);
  }

  mapping_map& mappings_;
  address_range range_;
  bool cut_base_ = false;
  bool cut_end_ = false;
  bool whole_ = false;
};

}  // namespace

host_driver::state::~state() {
  check(made_in.is_here(), "a child destroys what its parent has");
  check(mappings.empty() || !reservations.empty(), "memory is mapped outside of all reservations");
  for (const auto& [base, size_bytes] : reservations) {
    (void)with_spare([&] { return linux_os::unreserve({base, size_bytes}); });
  }
  for (const auto& [key, each] : memories) {
    if (each.own_file >= 0) linux_os::close(each.own_file);
  }
  if (shared_file >= 0) linux_os::close(shared_file);
}

bool host_driver::state::reserved(address_range range) const noexcept {
  const auto after = reservations.upper_bound(range.base.value);
  if (after == reservations.begin()) return false;
  const auto& [base, size_bytes] = *std::prev(after);
  check(base <= range.base.value && size_bytes != 0, "a reservation has no addresses");
  return address_range{{base}, size_bytes}.contains(range);
}

bool host_driver::state::any_mapped(address_range range) const noexcept {
  const auto after = mappings.lower_bound(range.end().value);
  if (after == mappings.begin()) return false;
  const auto& [base, last] = *std::prev(after);
  debug_check([&] { return reserved({{base}, last.size_bytes}); }, "a mapping lies outside");
  return base + last.size_bytes > range.base.value;
}

bool host_driver::state::all_mapped(address_range range) const noexcept {
  auto next = mappings.upper_bound(range.base.value);
  if (next == mappings.begin()) return false;
  --next;
  std::uint64_t covered_to = range.base.value;
  while (next != mappings.end() && next->first <= covered_to && covered_to < range.end().value) {
    check(next->second.size_bytes != 0, "a mapping is empty");
    covered_to = std::max(covered_to, next->first + next->second.size_bytes);
    ++next;
  }
  return covered_to >= range.end().value;
}

memory* host_driver::state::find(physical_handle handle) const noexcept {
  const auto found = handles.find(static_cast<std::uint64_t>(handle));
  if (found == handles.end()) return nullptr;
  check(found->second != nullptr && found->second->handles != 0, "I2: a handle has no memory");
  return found->second;
}

const mapping* host_driver::state::mapping_at(address at) const noexcept {
  const auto after = mappings.upper_bound(at.value);
  if (after == mappings.begin()) return nullptr;
  const auto& [base, last] = *std::prev(after);
  check(base <= at.value && last.behind != nullptr, "I2: a mapping has no memory");
  return at.value - base < last.size_bytes ? &last : nullptr;
}

status host_driver::state::usable(call where, address_range range, access wanted) const noexcept {
  check(wanted != access::none, "memory is used with no right");
  if (range.empty()) return {};
  if (wraps(range.base, range.size_bytes) || !all_mapped(range)) {
    return bad_call(where, errc::invalid_argument, "a part of the range has no memory behind it");
  }
  for (auto next = std::prev(mappings.upper_bound(range.base.value));
       next != mappings.end() && next->first < range.end().value; ++next) {
    if (next->second.rights < wanted) {
      return bad_call(where, errc::invalid_argument,
                      "a part of the range lacks the access right: see set_access");
    }
  }
  return {};
}

status host_driver::state::check_room(std::uint64_t size_bytes) const noexcept {
  const std::uint64_t capacity = options.capacity_bytes;
  check(capacity == 0 || created_bytes <= capacity, "I3: more was created than there may be");
  if (capacity != 0 && size_bytes > capacity - created_bytes) {
    return bad_call(call::create, errc::out_of_memory,
                    "host_options::capacity_bytes would be exceeded");
  }
  // Of huge pages the kernel never promises more than there are: it refuses when it commits them.
  if (options.commit == commit_mode::lazy || options.huge_pages) return {};
  const linux_os::memory_figures now = linux_os::query_memory(pages);
  if (now.failure != 0) return figures_error(call::create, errc::out_of_memory, now.failure);
  if (size_bytes > committable_bytes(now)) {
    return bad_call(call::create, errc::out_of_memory,
                    "more than the system has available; committing it would end the process");
  }
  return {};
}

status host_driver::state::obtain(memory& fresh) noexcept {
  check(fresh.own_file < 0 && fresh.pages.size_bytes != 0,
        "memory is obtained twice, or of no size");
  int file = shared_file;
  if (fresh.shareable != share_kind::none) {
    const linux_os::opened made = linux_os::open_memory_file(fresh.pages.size_bytes, pages, true);
    if (made.failure != 0) {
      const char* detail = made.failure == EFBIG
                               ? "shareable memory is a file, and larger than the limit on file "
                                 "sizes (ulimit -f): raise it"
                               : "no file for shareable memory: release some, or raise the limit "
                                 "on open files";
      return kernel_error(call::create, errc::out_of_memory, made.failure, detail);
    }
    file = fresh.own_file = made.descriptor;
  } else {
    if (fresh.pages.size_bytes > shared_file_bytes - shared_file_used_bytes) {
      return bad_call(call::create, errc::out_of_memory,
                      "the driver's file has no offsets left: open a new driver");
    }
    fresh.pages.offset_bytes = shared_file_used_bytes;
  }
  check(file >= 0, "memory lies in no file");
  const int failure =
      options.commit == commit_mode::eager ? linux_os::commit(file, fresh.pages) : 0;
  if (failure != 0) {
    if (fresh.own_file >= 0) linux_os::close(fresh.own_file);
    return kernel_error(call::create, errc::out_of_memory, failure,
                        "the system has no memory left");
  }
  if (fresh.own_file < 0) shared_file_used_bytes += fresh.pages.size_bytes;
  check(shared_file_used_bytes <= shared_file_bytes, "memory lies past the end of the file");
  return {};
}

// Writes memory and a first handle to it into the table.
result<physical_handle> host_driver::state::enter(call where, const memory& facts) noexcept {
  const std::uint64_t token = last_token + 1;
  check(!memories.contains(token) && !handles.contains(token), "a handle is given out twice");
  memory* entered = nullptr;
  const bool done = allocates([&] {
    entered = &memories.try_emplace(token, facts).first->second;
    handles.try_emplace(token, entered);
  });
  if (!done) {
    memories.erase(token);
    return no_host_memory(where);
  }
  check(entered != nullptr && token > last_token, "a handle is given out that was before");
  entered->key = token;
  entered->handles = 1;
  last_token = token;
  return physical_handle{token};
}

// Takes back an enter().
void host_driver::state::forget(physical_handle handle) noexcept {
  const std::size_t erased = handles.erase(static_cast<std::uint64_t>(handle)) +
                             memories.erase(static_cast<std::uint64_t>(handle));
  check(erased == 2, "what is taken back was not entered");
}

status host_driver::state::reclaim(call where, memory& unused) noexcept {
  check(!unused.referred_to(), "memory given back while something refers to it");
  if (unused.own_file >= 0) {
    linux_os::close(unused.own_file);
  } else if (const int failure = linux_os::decommit(shared_file, unused.pages); failure != 0) {
    return kernel_error(where, errc::device_lost, failure, "the kernel does not take memory back");
  }
  check(!unused.created_here || created_bytes >= unused.pages.size_bytes,
        "more memory is given back than was created");
  if (unused.created_here) created_bytes -= unused.pages.size_bytes;
  const std::size_t erased = memories.erase(unused.key);
  check(erased == 1, "memory is given back that is in no table");
  return {};
}

// Gives every piece in the range the rights that the table says it has.
bool host_driver::state::restore_rights(address_range range) noexcept {
  bool restored = true;
  for (auto next = mappings.lower_bound(range.base.value);
       next != mappings.end() && next->first < range.end().value; ++next) {
    check(range.contains(address_range{{next->first}, next->second.size_bytes}),
          "rights are restored outside of a range");
    const linux_os::span where{next->first, next->second.size_bytes};
    const auto rights = protection_of(next->second.rights);
    restored &= with_spare([&] { return linux_os::protect(where, rights); }) == 0;
  }
  return restored;
}

host_driver::host_driver(std::unique_ptr<state> made) noexcept : state_(std::move(made)) {
  check(state_ != nullptr && state_->shared_file >= 0, "a driver object is made of nothing opened");
}
host_driver::~host_driver() { leave_if_forked(); }
host_driver::host_driver(host_driver&&) noexcept = default;
host_driver& host_driver::operator=(host_driver&& other) noexcept {
  if (this != &other) {
    users_ = std::move(other.users_);
    leave_if_forked();
    state_ = std::move(other.state_);
    check(other.state_ == nullptr, "an object that was moved from has a state");
  }
  return *this;
}

// The table may have been changing at the fork, and the ranges and descriptors in it are the
// parent's.
void host_driver::leave_if_forked() noexcept {
  if (state_ != nullptr && !state_->made_in.is_here()) leave_behind(state_.release());
  check(state_ == nullptr || state_->made_in.is_here(),
        "a parent's state is about to be destroyed");
}

namespace {

features host_features(const host_options& options) noexcept {
  features can;
  can.offset_map = can.short_map = true;
  can.partial_unmap = can.spanning_unmap = can.partial_access = true;
  can.release_while_mapped = true;
  can.exact_hint = true;
  can.lazy_commit = options.commit == commit_mode::lazy;
  can.fresh_memory_zero = true;
  can.host_accessible = true;
  can.copy = can.retain = true;
  can.host_location = true;
  can.export_posix_fd = true;
  can.alias = alias_level::coherent;
  can.read_only = read_only_level::enforced;
  can.max_mapping_count = linux_os::mapping_limit();
  return can;
}

result<granularity> chosen_granularity(const host_options& options) noexcept {
  const std::uint64_t page =
      options.huge_pages ? linux_os::huge_page_bytes : linux_os::page_size_bytes();
  const std::uint64_t minimum = options.minimum_bytes == 0 ? page : options.minimum_bytes;
  if (!is_power_of_two(minimum) || minimum < page) {
    return refuse(errc::bad_option,
                  "host_options::minimum_bytes is 0 or a power of two of at least a page");
  }
  if (options.recommended_bytes == 0 || options.recommended_bytes % minimum != 0) {
    return refuse(errc::bad_option, "host_options::recommended_bytes is a multiple of the minimum");
  }
  check(minimum % page == 0, "the granule is not a multiple of the page size");
  return granularity{minimum, options.recommended_bytes};
}

}  // namespace

result<host_driver> host_driver::open(const host_options& options) noexcept {
  const result<granularity> granule = chosen_granularity(options);
  if (!granule) return granule.error();
  std::unique_ptr<state> made;
  if (!allocates([&] { made = std::make_unique<state>(); })) return no_host_memory(call::none);
  made->options = options;
  made->granule = *granule;
  made->can = host_features(options);
  made->pages = options.huge_pages ? linux_os::page_kind::huge : linux_os::page_kind::normal;
  const linux_os::opened file = linux_os::open_memory_file(shared_file_bytes, made->pages, false);
  if (file.failure == EFBIG) {
    return kernel_error(call::none, errc::unavailable, file.failure,
                        "the limit on file sizes leaves no memory file: raise it (ulimit -f)");
  }
  if (file.failure != 0) {
    return kernel_error(call::none, errc::unavailable, file.failure,
                        "this system makes no memory files (memfd_create)");
  }
  check(file.descriptor >= 0, "a file was opened and has no descriptor");
  made->shared_file = file.descriptor;
  made->spare.take_back();
  return host_driver{std::move(made)};
}

const features& host_driver::feature_set() const noexcept {
  check(state_ != nullptr, moved_from);
  return state_->can;
}

result<granularity> host_driver::query_granularity(const physical_request& request) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::query_granularity);
  if (request.where != host()) {
    return unknown_place(call::query_granularity, request.where);
  }
  return state_->granule;
}

result<memory_info> host_driver::query_memory(location where) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::memory_info);
  if (where != host()) return unknown_place(call::memory_info, where);
  const linux_os::memory_figures now = linux_os::query_memory(state_->pages);
  if (now.failure != 0) return figures_error(call::memory_info, errc::unavailable, now.failure);
  memory_info info{committable_bytes(now), now.total_bytes};
  if (state_->options.huge_pages) info.free_bytes = now.available_bytes;
  const std::uint64_t capacity = state_->options.capacity_bytes;
  if (capacity == 0) return info;
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  check(state_->created_bytes <= capacity, "I3: more was created than there may be");
  info.free_bytes = std::min(info.free_bytes, capacity - state_->created_bytes);
  info.total_bytes = capacity;
  return info;
}

namespace {

// An aligned range of the requested size, at an address of the kernel's choice. ENOMEM is the
// kernel's error for too large a size; ENOSPC stands for too many mappings.
linux_os::placed reserve_aligned(std::uint64_t size_bytes, std::uint64_t alignment_bytes) noexcept {
  check(alignment_bytes >= linux_os::page_size_bytes(), "an alignment is less than a page");
  const std::uint64_t extra = alignment_bytes - linux_os::page_size_bytes();
  const linux_os::placed wide = linux_os::reserve({0, size_bytes + extra});
  if (wide.failure == ENOMEM && linux_os::no_mapping_left()) return {0, ENOSPC};
  if (wide.failure != 0 || extra == 0) return wide;
  const std::uint64_t base = round_up(wide.base, alignment_bytes);
  const std::uint64_t head = base - wide.base;
  check(head <= extra, "an aligned range begins behind the one that was reserved");
  const std::uint64_t tail = extra - head;
  int failure = 0;
  if (tail != 0) failure = linux_os::unreserve({base + size_bytes, tail});
  if (failure == 0 && head != 0) failure = linux_os::unreserve({wide.base, head});
  if (failure == 0) return {base, 0};
  (void)linux_os::unreserve({wide.base, size_bytes + extra});
  return {0, failure == ENOMEM ? ENOSPC : failure};
}

}  // namespace

result<address_range> host_driver::reserve(const reserve_request& request) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::reserve);
  const std::uint64_t size = request.size_bytes;
  const std::uint64_t wanted = request.alignment_bytes;
  if (size == 0 || !state_->aligned(size)) {
    return bad_call(call::reserve, errc::invalid_argument,
                    "the size is not a multiple of the granularity, or is 0");
  }
  if (wanted != 0 && !is_power_of_two(wanted)) {
    return bad_call(call::reserve, errc::invalid_argument,
                    "the alignment is not a power of two, nor 0");
  }
  const granularity& granule = state_->granule;
  const std::uint64_t alignment =
      std::max(granule.minimum_bytes, wanted == 0 ? linux_os::huge_page_bytes : wanted);
  if (wraps({size}, alignment)) {
    return bad_call(call::reserve, errc::out_of_addresses,
                    "the size and its alignment exceed the address space");
  }
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  linux_os::placed place{0, EEXIST};
  const std::uint64_t hint_unit = wanted == 0 ? granule.minimum_bytes : alignment;
  if (request.hint && request.hint.value % hint_unit == 0)
    place = linux_os::reserve({request.hint.value, size});
  if (place.failure != 0) place = reserve_aligned(size, alignment);
  if (place.failure != 0) {
    if (place.failure == ENOSPC) return too_many_mappings(call::reserve);
    return kernel_error(call::reserve, errc::out_of_addresses, place.failure,
                        "no range of that size is free in this process, or its limit on address "
                        "space is lower (ulimit -v)");
  }
  if (!allocates([&] { state_->reservations.emplace(place.base, size); })) {
    (void)state_->with_spare([&] { return linux_os::unreserve({place.base, size}); });
    return no_host_memory(call::reserve);
  }
  check(place.base != 0 && place.base % granule.minimum_bytes == 0,
        "a range is reserved at no address, or not aligned");
  check(wanted == 0 || place.base % wanted == 0, "a range does not have the requested alignment");
  debug_check([&] { return !state_->any_mapped({{place.base}, size}); },
              "fresh addresses have a mapping");
  return address_range{{place.base}, size};
}

status host_driver::free_reservation(address_range range) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::free_reservation);
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  const auto found = state_->reservations.find(range.base.value);
  if (found == state_->reservations.end() || found->second != range.size_bytes) {
    return bad_call(call::free_reservation, errc::invalid_argument,
                    "not exactly one earlier reservation");
  }
  if (state_->any_mapped(range)) {
    return bad_call(call::free_reservation, errc::in_use,
                    "memory is mapped in the reservation: unmap it first");
  }
  const int failure = state_->with_spare([&] { return linux_os::unreserve(span_of(range)); });
  if (failure != 0) return mapping_error(call::free_reservation, failure);
  state_->reservations.erase(found);
  debug_check([&] { return !state_->reserved(range); }, "a reservation was freed and stays");
  return {};
}

result<physical_handle> host_driver::create(const physical_request& request) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::create);
  if (request.where != host()) {
    return unknown_place(call::create, request.where);
  }
  if (request.size_bytes == 0 || !state_->aligned(request.size_bytes)) {
    return bad_call(call::create, errc::invalid_argument,
                    "the size is not a multiple of the granularity, or is 0");
  }
  if (request.shareable != share_kind::none && request.shareable != share_kind::posix_fd) {
    return bad_call(call::create, errc::not_supported,
                    "the host driver shares memory as posix_fd only");
  }
  if (request.rdma_capable) {
    return bad_call(call::create, errc::not_supported,
                    "the host driver makes no RDMA-capable memory");
  }
  memory fresh;
  fresh.pages.size_bytes = request.size_bytes;
  fresh.shareable = request.shareable;
  fresh.created_here = true;
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  if (const status room = state_->check_room(request.size_bytes); !room) return room.error();
  const result<physical_handle> handle = state_->enter(call::create, fresh);
  if (!handle) return handle;
  check(state_->find(*handle) != nullptr, "memory was entered and is in no table");
  if (const status obtained = state_->obtain(*state_->find(*handle)); !obtained) {
    state_->forget(*handle);
    return obtained.error();
  }
  state_->created_bytes += request.size_bytes;
  check(state_->created_bytes >= request.size_bytes, "more memory was created than can be counted");
  return handle;
}

status host_driver::release(physical_handle handle) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::release);
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  memory* behind = state_->find(handle);
  if (behind == nullptr) return unknown_handle(call::release);
  const std::size_t erased = state_->handles.erase(static_cast<std::uint64_t>(handle));
  check(erased == 1, "a handle is released that is in no table");
  check(behind->handles != 0, "a count of handles would fall below zero");
  --behind->handles;
  return behind->referred_to() ? status{} : state_->reclaim(call::release, *behind);
}

status host_driver::map(const map_request& request) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::map);
  const address_range range{request.at, request.size_bytes};
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  if (!state_->well_formed(range) || !state_->aligned(request.offset_bytes)) {
    return bad_call(call::map, errc::invalid_argument,
                    "address, size and offset are multiples of the granularity");
  }
  memory* behind = state_->find(request.memory);
  if (behind == nullptr) return unknown_handle(call::map);
  const linux_os::extent pages = behind->pages;
  if (request.offset_bytes > pages.size_bytes ||
      range.size_bytes > pages.size_bytes - request.offset_bytes) {
    return bad_call(call::map, errc::invalid_argument, "the range runs past the end of the memory");
  }
  if (!state_->reserved(range)) {
    return bad_call(call::map, errc::invalid_argument, "the range is not inside one reservation");
  }
  if (state_->any_mapped(range))
    return bad_call(call::map, errc::overlap, "a part of the range is mapped already");
  const mapping mapped{range.size_bytes, behind, access::none};
  mapping_map::iterator entered;
  if (!allocates([&] { entered = state_->mappings.emplace(range.base.value, mapped).first; })) {
    return no_host_memory(call::map);
  }
  check(state_->aligned(pages.offset_bytes), "memory begins inside a granule");
  const int file = behind->own_file >= 0 ? behind->own_file : state_->shared_file;
  const int failure =
      linux_os::map(span_of(range), file, pages.offset_bytes + request.offset_bytes);
  if (failure != 0) {
    state_->mappings.erase(entered);
    return mapping_error(call::map, failure);
  }
  behind->mapped_bytes += range.size_bytes;
  check(behind->referred_to() && behind->mapped_bytes >= range.size_bytes,
        "a mapping is not counted");
  return {};
}

status host_driver::unmap(address_range range) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::unmap);
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  if (!state_->well_formed(range)) {
    return bad_call(call::unmap, errc::invalid_argument,
                    "address and size are multiples of the granularity");
  }
  if (!state_->reserved(range)) {
    return bad_call(call::unmap, errc::invalid_argument, "the range is not inside one reservation");
  }
  if (!state_->any_mapped(range)) return {};
  if (!state_->all_mapped(range)) {
    return bad_call(call::unmap, errc::invalid_argument, "the range has a hole: unmap its parts");
  }
  boundary_cut cut(state_->mappings, range);
  if (!cut.made()) return no_host_memory(call::unmap);
  const int failure = state_->with_spare([&] { return linux_os::unmap(span_of(range)); });
  if (failure != 0) return mapping_error(call::unmap, failure);
  cut.keep();
  status outcome;
  auto next = state_->mappings.find(range.base.value);
  while (next != state_->mappings.end() && next->first < range.end().value) {
    memory* behind = next->second.behind;
    check(behind->mapped_bytes >= next->second.size_bytes, "more is unmapped than was mapped");
    behind->mapped_bytes -= next->second.size_bytes;
    next = state_->mappings.erase(next);
    if (behind->referred_to()) continue;
    if (const status reclaimed = state_->reclaim(call::unmap, *behind); !reclaimed)
      outcome = reclaimed;
  }
  debug_check([&] { return !state_->any_mapped(range); }, "a range was unmapped and is mapped");
  return outcome;
}

namespace {

// What a list of grants gives to the one place that there is.
result<access> rights_in(std::span<const access_grant> grants) noexcept {
  if (grants.empty()) {
    return bad_call(call::set_access, errc::invalid_argument, "the list of grants is empty");
  }
  for (const access_grant& grant : grants) {
    if (grant.who != host()) return unknown_place(call::set_access, grant.who);
    if (grant.rights != grants.front().rights) {
      return bad_call(call::set_access, errc::not_supported, "two grants for host() differ");
    }
  }
  return grants.front().rights;
}

}  // namespace

status host_driver::set_access(address_range range, std::span<const access_grant> grants) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::set_access);
  const result<access> wanted = rights_in(grants);
  if (!wanted) return wanted.error();
  const access rights = *wanted;
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  if (!state_->well_formed(range)) {
    return bad_call(call::set_access, errc::invalid_argument,
                    "address and size are multiples of the granularity");
  }
  if (!state_->reserved(range)) {
    return bad_call(call::set_access, errc::invalid_argument,
                    "the range is not inside one reservation");
  }
  if (!state_->all_mapped(range)) {
    return bad_call(call::set_access, errc::invalid_argument, "a part of the range is not mapped");
  }
  boundary_cut cut(state_->mappings, range);
  if (!cut.made()) return no_host_memory(call::set_access);
  const int failure = linux_os::protect(span_of(range), protection_of(rights));
  if (failure != 0) {
    const error refused = mapping_error(call::set_access, failure);
    if (state_->restore_rights(range)) return refused;
    return kernel_error(call::set_access, errc::device_lost, failure,
                        "rights changed in part and not changed back");
  }
  cut.keep();
  for (auto next = state_->mappings.find(range.base.value);
       next != state_->mappings.end() && next->first < range.end().value; ++next) {
    check(next->second.behind != nullptr, "I2: a mapping has no memory");
    next->second.rights = rights;
  }
  debug_check(
      [&] {
        return state_->usable(call::set_access, range, access::read).has_value() ==
               (rights != access::none);
      },
      "rights were given and are others");
  return {};
}

result<access> host_driver::get_access(address at, location who) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::get_access);
  if (who != host()) {
    return unknown_place(call::get_access, who);
  }
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  const mapping* mapped = state_->mapping_at(at);
  if (mapped == nullptr)
    return bad_call(call::get_access, errc::invalid_argument, "nothing is mapped there");
  return mapped->rights;
}

namespace {

constexpr const char* streamless = "the host driver has no streams but the default one";

error no_streams(const process_mark& made_in, call where) noexcept {
  check(where != call::none, "a refusal names no call");
  if (!made_in.is_here()) return refuse_forked(where);
  return bad_call(where, errc::not_supported,
                  "the host driver has no streams and no events: work is finished when a call "
                  "returns");
}

}  // namespace

result<stream_handle> host_driver::create_stream() noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::create_stream);
}
status host_driver::destroy_stream(stream_handle) noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::destroy_stream);
}
status host_driver::synchronize_stream(stream_handle) noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::synchronize_stream);
}
result<event_handle> host_driver::create_event() noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::create_event);
}
status host_driver::destroy_event(event_handle) noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::destroy_event);
}
status host_driver::record_event(event_handle, stream_handle) noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::record_event);
}
result<bool> host_driver::query_event(event_handle) noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::query_event);
}
status host_driver::wait_event(stream_handle, event_handle) noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::wait_event);
}
status host_driver::synchronize_event(event_handle) noexcept {
  check(state_ != nullptr, moved_from);
  return no_streams(state_->made_in, call::synchronize_event);
}

status host_driver::copy(const copy_request& request) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::copy);
  if (request.stream != stream_handle::default_stream) {
    return bad_call(call::copy, errc::invalid_argument, streamless);
  }
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  const status readable =
      state_->usable(call::copy, {request.source, request.size_bytes}, access::read);
  if (!readable) return readable;
  const status writable =
      state_->usable(call::copy, {request.target, request.size_bytes}, access::read_write);
  if (!writable) return writable;
  if (request.size_bytes != 0)
    std::memmove(bytes_at(request.target), bytes_at(request.source), request.size_bytes);
  return {};
}

status host_driver::fill(const fill_request& request) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::fill);
  if (request.stream != stream_handle::default_stream) {
    return bad_call(call::fill, errc::invalid_argument, streamless);
  }
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  const status writable = state_->usable(call::fill, request.target, access::read_write);
  if (!writable) return writable;
  if (!request.target.empty())
    std::memset(bytes_at(request.target.base), request.value, request.target.size_bytes);
  return {};
}

status host_driver::write(address at, std::span<const std::byte> source) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::write);
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  const status writable = state_->usable(call::write, {at, source.size()}, access::read_write);
  if (!writable) return writable;
  if (!source.empty()) std::memcpy(bytes_at(at), source.data(), source.size());
  return {};
}

status host_driver::read(std::span<std::byte> target, address at) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::read);
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  const status readable = state_->usable(call::read, {at, target.size()}, access::read);
  if (!readable) return readable;
  if (!target.empty()) std::memcpy(target.data(), bytes_at(at), target.size());
  return {};
}

result<physical_handle> host_driver::retain(address at) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::retain);
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  const mapping* mapped = state_->mapping_at(at);
  if (mapped == nullptr)
    return bad_call(call::retain, errc::invalid_argument, "nothing is mapped there");
  const std::uint64_t token = state_->last_token + 1;
  check(!state_->handles.contains(token), "a handle is given out twice");
  if (!allocates([&] { state_->handles.try_emplace(token, mapped->behind); }))
    return no_host_memory(call::retain);
  check(mapped->behind->referred_to(), "memory is mapped that nothing refers to");
  state_->last_token = token;
  ++mapped->behind->handles;
  return physical_handle{token};
}

result<physical_properties> host_driver::get_properties(physical_handle handle) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::get_properties);
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  const memory* behind = state_->find(handle);
  if (behind == nullptr) {
    return unknown_handle(call::get_properties);
  }
  return physical_properties{.where = host(), .shareable = behind->shareable};
}

result<shared_handle> host_driver::export_handle(physical_handle handle, share_kind kind) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::export_handle);
  if (kind != share_kind::posix_fd) {
    return bad_call(call::export_handle, errc::not_supported,
                    "the host driver shares memory as posix_fd only");
  }
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  const memory* behind = state_->find(handle);
  if (behind == nullptr) {
    return unknown_handle(call::export_handle);
  }
  if (behind->shareable != kind) {
    return bad_call(call::export_handle, errc::invalid_argument,
                    "the memory was not created shareable");
  }
  check(behind->own_file >= 0, "shareable memory has no file");
  const linux_os::opened copy = linux_os::duplicate(behind->own_file);
  if (copy.failure != 0) {
    return kernel_error(call::export_handle, errc::out_of_memory, copy.failure,
                        "no descriptor left: raise the limit on open files");
  }
  shared_handle shared;
  shared.kind = kind;
  shared.descriptor = copy.descriptor;
  shared.size_bytes = behind->pages.size_bytes;
  check(shared.descriptor >= 0 && shared.size_bytes != 0, "memory is exported as no file");
  return shared;
}

result<physical_handle> host_driver::import_handle(const shared_handle& shared) noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return refuse_forked(call::import_handle);
  if (shared.kind != share_kind::posix_fd) {
    return bad_call(call::import_handle, errc::not_supported,
                    "the host driver shares memory as posix_fd only");
  }
  if (shared.descriptor < 0 || shared.descriptor > std::numeric_limits<int>::max()) {
    return bad_call(call::import_handle, errc::invalid_argument, "not a descriptor");
  }
  const int descriptor = static_cast<int>(shared.descriptor);
  const linux_os::file_facts facts = linux_os::examine(descriptor);
  if (facts.failure != 0) {
    return kernel_error(call::import_handle, errc::invalid_argument, facts.failure,
                        "not an open descriptor");
  }
  if (!facts.memory_file || !facts.shrink_sealed || !facts.writable) {
    return bad_call(call::import_handle, errc::invalid_argument,
                    "not a writable memory file that is sealed against shrinking");
  }
  const bool told = shared.size_bytes != 0;
  if (facts.size_bytes == 0 || !state_->aligned(facts.size_bytes) ||
      (told && facts.size_bytes != shared.size_bytes)) {
    return bad_call(call::import_handle, errc::invalid_argument,
                    "the size is not the file's, or not in granules");
  }
  const linux_os::opened copy = linux_os::duplicate(descriptor);
  if (copy.failure != 0) {
    return kernel_error(call::import_handle, errc::out_of_memory, copy.failure,
                        "no descriptor left: raise the limit on open files");
  }
  check(copy.descriptor >= 0, "memory is imported that lies in no file");
  memory received;
  received.pages.size_bytes = facts.size_bytes;
  received.own_file = copy.descriptor;
  received.shareable = share_kind::posix_fd;
  const std::unique_lock<std::shared_mutex> locked(state_->guard);
  const result<physical_handle> handle = state_->enter(call::import_handle, received);
  if (!handle) linux_os::close(copy.descriptor);
  check(!handle || state_->find(*handle) != nullptr, "memory was imported and is in no table");
  return handle;
}

host_resource_counts host_driver::resource_counts() const noexcept {
  check(state_ != nullptr, moved_from);
  if (!state_->made_in.is_here()) return {};
  const std::shared_lock<std::shared_mutex> locked(state_->guard);
  host_resource_counts count;
  count.reservations = state_->reservations.size();
  for (const auto& [base, size_bytes] : state_->reservations) count.reserved_bytes += size_bytes;
  count.handles = state_->handles.size();
  count.memories = state_->memories.size();
  for (const auto& [key, each] : state_->memories) {
    count.memory_bytes += each.pages.size_bytes;
    count.descriptors += each.own_file >= 0 ? 1 : 0;
  }
  count.mappings = state_->mappings.size();
  for (const auto& [base, each] : state_->mappings) count.mapped_bytes += each.size_bytes;
  check(count.mapped_bytes <= count.reserved_bytes, "more is mapped than is reserved");
  check(count.handles + count.mappings != 0 || count.memories == 0,
        "memory is alive that nothing refers to");
  return count;
}

}  // namespace vmm
