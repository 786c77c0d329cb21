// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.suspend;

import vmm.backend;
import vmm.base;
import vmm.manager;
import vmm.optimizer;
import vmm.physical;
import vmm.std;
import vmm.stream;

namespace vmm {

namespace {

constexpr std::uint64_t verify_step_bytes = std::uint64_t{1} << 20;
constexpr int wait_attempts = 3;
constexpr std::uint64_t sum_start = 0xcbf29ce484222325;
constexpr std::uint64_t sum_factor = 0x100000001b3;

std::uint64_t add_to_sum(std::uint64_t sum, std::span<const std::byte> bytes) noexcept {
  for (const std::byte each : bytes) sum = (sum ^ static_cast<std::uint64_t>(each)) * sum_factor;
  return sum;
}

// Reads each part in steps; `look` returns whether the bytes are as expected.
template <class Look>
status look_at(suspended_region& of, const suspension_part& part, std::vector<std::byte>& buffer,
               Look&& look) {
  const std::uint64_t size_bytes = part.range().size_bytes;
  for (std::uint64_t at = 0; at < size_bytes;) {
    const std::uint64_t step_bytes = std::min<std::uint64_t>(buffer.size(), size_bytes - at);
    const std::span<std::byte> bytes(buffer.data(), step_bytes);
    check(!bytes.empty(), "a check of 0 bytes");
    if (status seen = of.driver.read(bytes, part.at + at); !seen) return seen;
    if (status right = look(bytes); !right) return right;
    at += step_bytes;
  }
  return {};
}

status verify(suspended_region& of) {
  if (of.promised == suspend_contents::discard) return {};
  std::vector<std::byte> buffer(verify_step_bytes);
  check(of.is_begun, "contents of a suspended region are checked");
  for (const suspension_part& part : of.parts) {
    std::uint64_t sum = sum_start;
    bool is_zero = true;
    const status seen = look_at(of, part, buffer, [&](std::span<const std::byte> bytes) -> status {
      sum = add_to_sum(sum, bytes);
      is_zero = is_zero && std::all_of(bytes.begin(), bytes.end(),
                                       [](std::byte each) { return each == std::byte{0}; });
      return {};
    });
    if (!seen) return seen;
    const bool is_right =
        of.promised == suspend_contents::zero ? is_zero : sum == part.memory->backup_sum;
    if (!is_right) {
      return refuse(errc::internal, "suspend_options::verify: restored contents differ");
    }
  }
  return {};
}

// ---- contents --------------------------------------------------------------------------

std::span<std::byte> bytes_of(const suspended_region& of, const suspension_part& part) noexcept {
  return of.bytes_at(part.memory->backup_offset, part.range().size_bytes);
}

status copy_in(suspended_region& of) {
  check(of.backup != nullptr && of.backup->is_taken, "suspend I2: kept contents have no backup");
  for (const suspension_part& part : of.parts) {
    const status copied =
        of.backup->tier == backup_tier::pinned
            ? of.driver.copy({part.at, of.backup->range.base + part.memory->backup_offset,
                              part.range().size_bytes, of.stream})
            : of.driver.write(part.at, bytes_of(of, part));
    if (copied) continue;
    (void)of.finish_copies();
    return copied;
  }
  return of.finish_copies();
}

status fill(suspended_region& of, std::uint8_t value) {
  if (status provided = of.provide_stream(); !provided) return provided;  // none if it was left
  for (const suspension_part& part : of.parts) {
    const status filled = of.driver.fill({part.range(), value, of.stream});
    if (filled) continue;
    (void)of.finish_copies();
    return filled;
  }
  check(of.has_stream || !of.driver.feature_set().streams, "memory is filled without a stream");
  return of.finish_copies();
}

status restore(suspended_region& of, bool is_verified) {
  if (of.is_intact) return of.is_copying ? of.finish_copies() : status{};
  if (of.parts.empty()) return {};
  status done;
  switch (of.promised) {
    case suspend_contents::keep: done = copy_in(of); break;
    case suspend_contents::zero: done = fill(of, 0); break;
    case suspend_contents::discard:
      if (is_verified) done = fill(of, poison_byte);
      break;
  }
  check(of.is_begun, "contents are restored to a suspended region");
  return done && is_verified ? verify(of) : done;
}

}  // namespace

void suspended_region::take_left() noexcept {
  check(!is_suspended, "memory is taken twice");
  const left_contents left = allocator->take_left();
  is_suspended = left != left_contents::none;
  is_intact = left == left_contents::intact;
  is_copying = is_suspended && allocator->has_left_copies();
  if (left == left_contents::zero) promised = suspend_contents::zero;
  if (left == left_contents::discard) promised = suspend_contents::discard;
}

void suspended_region::leave() noexcept {
  check(backup == nullptr, "memory is left with a backup");
  if (!is_suspended) return;
  left_contents left = is_intact ? left_contents::intact : left_contents::lost;
  if (promised == suspend_contents::zero) left = left_contents::zero;
  if (promised == suspend_contents::discard) left = left_contents::discard;
  allocator->leave(left, is_copying);
}

// A wait that fails once is made again: nothing is unmapped, or goes, that a copy uses.
status suspended_region::finish_copies() {
  if (!driver.feature_set().streams) return {};
  if (!has_stream) {  // copies of the suspender that left the memory
    check(is_copying, "a wait for copies without a stream");
    const status finished = driver.synchronize_all();
    is_copying = !finished;
    return finished;
  }
  const status first = driver.synchronize_stream(stream);
  status finished = first;
  for (int left = wait_attempts - 1; left > 0 && !finished; --left)
    finished = driver.synchronize_stream(stream);
  if (!finished) finished = driver.synchronize_all();
  is_copying = !finished;
  return first;
}

// What was freed meanwhile, of a pool whose frees promise to clear.
status suspended_region::clear_freed() {
  check(is_begun, "memory is cleared of a region that is not being changed");
  if (!allocator->clears_freed() || parts.empty()) return {};
  if (status provided = provide_stream(); !provided) return provided;
  const status cleared = allocator->clear_freed(stream);
  const status finished = finish_copies();
  return cleared ? finished : cleared;
}

// A stream that waits for no other.
status suspended_region::provide_stream() {
  if (has_stream || !driver.feature_set().streams) return {};
  const result<stream_handle> made = driver.create_stream();
  if (!made) return made.error();
  check(*made != stream_handle::default_stream, "a region's own stream is the default stream");
  stream = *made;
  has_stream = true;
  return {};
}

bool suspended_region::is_readable() const noexcept {
  check(is_begun, "rights of an unchanged region are read");
  return std::all_of(parts.begin(), parts.end(), [&](const suspension_part& part) {
    if (part.own_rights == nullptr) return true;
    const auto all = part.own_rights->all();
    return std::none_of(all.begin(), all.end(), [&](const access_grant& each) {
      return each.grantee == driver.home() && each.rights == access::none;
    });
  });
}

status suspended_region::make_sums() {
  std::vector<std::byte> buffer(verify_step_bytes);
  for (const suspension_part& part : parts) {
    std::uint64_t sum = sum_start;
    const status seen =
        look_at(*this, part, buffer, [&](std::span<const std::byte> bytes) -> status {
          sum = add_to_sum(sum, bytes);
          return {};
        });
    if (!seen) return seen;
    part.memory->backup_sum = sum;
  }
  check(buffer.size() == verify_step_bytes, "a buffer has changed its size");
  return {};
}

std::span<std::byte> suspended_region::bytes_at(std::uint64_t offset,
                                                std::uint64_t size_bytes) const noexcept {
  const backup_space& space = *backup;
  check(offset + size_bytes <= space.size_bytes, "contents lie outside of their backup");
  return {space.bytes + offset, size_bytes};
}

status suspended_region::copy_out() {
  check(backup != nullptr, "suspend I2: kept contents have no backup");
  std::uint64_t offset = 0;
  kept.clear();
  kept.reserve(parts.size());
  for (const suspension_part& part : parts) {
    part.memory->backup_offset = offset;
    const std::uint64_t size_bytes = part.range().size_bytes;
    kept.push_back({part.range(), offset});
    offset += size_bytes;
    const status copied = backup->tier == backup_tier::pinned
                              ? driver.copy({backup->range.base + part.memory->backup_offset,
                                             part.at, size_bytes, stream})
                              : driver.read(bytes_of(*this, part), part.at);
    if (copied) continue;
    (void)finish_copies();
    return copied;
  }
  return finish_copies();
}

status suspended_region::attach(bool is_verified) {
  suspension_list open = parts;
  for (suspension_part& part : open) part.own_rights = nullptr;
  if (status attached = attach_parts(core(), open); !attached) return attached;
  if (status restored = restore(*this, is_verified); !restored) return restored;
  if (status cleared = clear_freed(); !cleared) return cleared;
  for (const suspension_part& part : parts) {
    if (part.own_rights == nullptr) continue;
    const status given = core().remaps.give_access(part.range(), part.own_rights);
    if (!given) return given;
  }
  check(are_attached(parts), "suspend I1: a region is resumed without its memory");
  return {};
}

// ---- shortages -----------------------------------------------------------------------

bool relieve_for(region_span regions) noexcept {
  std::uint64_t given_bytes = 0;
  for (suspended_region* each : regions)
    given_bytes += each->relief().relieve(each->suspended_bytes());
  return given_bytes != 0;
}

bool borrow_for(region_span regions, std::vector<std::unique_ptr<relief_loan>>& loans,
                std::int64_t& until_ns) {
  bool has_memory = false;
  for (auto each = regions.begin(); each != regions.end(); ++each) {
    relief_member& first = (*each)->relief();
    const auto is_near = [&](suspended_region* other) {
      return other->relief().key() == first.key();
    };
    if (std::any_of(regions.begin(), each, is_near)) continue;
    std::uint64_t wanted_bytes = 0;
    for (suspended_region* other : regions)
      wanted_bytes += is_near(other) ? other->suspended_bytes() : 0;
    loans.push_back(std::make_unique<relief_loan>(first, wanted_bytes, until_ns));
    has_memory = loans.back()->has_memory() || has_memory;
  }
  return has_memory;
}

}  // namespace vmm
