// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.stream;

import vmm.backend;
import vmm.history;
import vmm.physical;
import vmm.std;
import vmm.support;
import vmm.sync;
import vmm.timeline;
import vmm.va;

namespace vmm {

// ---- numbers -----------------------------------------------------------------------

pool_statistics pool_state::statistics() const noexcept {
  pool_statistics now = totals_;
  std::uint64_t free_granules = 0;
  std::uint64_t captured_granules = 0;
  std::uint64_t hole_granules = 0;
  for (const auto& in : segments_) {
    now.reserved_bytes += in->where().range.size_bytes;
    hole_granules += in->regions().listed_granules(hole_kind);
    for (std::uint32_t stream = 0; stream < streams_.count(); ++stream) {
      const bool kept = streams_.is_capture(stream);
      const std::uint64_t listed = in->regions().listed_granules(kind_of(stream));
      (kept ? captured_granules : free_granules) += listed;
      if (streams_.is_batch(stream)) now.after_all_bytes += listed * granule_bytes;
    }
  }
  std::uint64_t live_granules = mappings_.live_granules();
  if (fronts_ != nullptr) {
    fronts_->for_each([&](std::uint32_t number, const front& of) {
      const front_lease& lease = fronts_->lease_of(number);
      const front_numbers numbers = of.numbers();
      live_granules += numbers.live_granules - lease.counted_granules;
      free_granules += lease.lent_granules - numbers.live_granules;
      now.live_count += numbers.live_count;
      ++now.front_count;
      now.front_bytes += (lease.lent_granules - numbers.live_granules) * granule_bytes;
    });
  }
  check(free_granules <= mappings_.handle_granules(), "more is free than there is");
  check(captured_granules <= live_granules, "more is kept for graphs than is live");
  now.mapped_bytes = mappings_.handle_granules() * granule_bytes;
  now.live_bytes = (live_granules - captured_granules) * granule_bytes;
  now.peak_live_bytes = std::max(mappings_.peak_live_granules(), live_granules) * granule_bytes;
  now.reusable_bytes = free_granules * granule_bytes;
  now.captured_bytes = captured_granules * granule_bytes;
  now.hole_bytes = hole_granules * granule_bytes;
  now.zombie_bytes = mappings_.stale_bytes();
  now.zombie_count = mappings_.stale_count();
  for (const auto& in : segments_) now.live_count += in->block_count();
  check(now.pinned_count <= now.live_count, "more blocks are pinned than live");
  check(now.live_count != 0 || now.live_bytes == 0, "granules are live in no block");
  check(now.live_bytes + now.captured_bytes <= now.mapped_bytes, "more is live than is mapped");
  check((now.zombie_count == 0) == (now.zombie_bytes == 0), "a stale mapping has no addresses");
  check(now.mapped_bytes + now.zombie_bytes + now.hole_bytes <= now.reserved_bytes,
        "more addresses are used than are reserved");
  for (std::uint32_t stream = 0; stream < streams_.count(); ++stream)
    now.stream_count += streams_.phase_of(stream) == stream_phase::active ? 1U : 0U;
  return now;
}

// ---- regions -----------------------------------------------------------------------

pool_region pool_state::shown(const segment& in, region_id region) const noexcept {
  const granule_range where = in.range(region);
  check(where.count != 0, "a region is empty");
  pool_region shown{{in.address_of(where.offset), where.count * granule_bytes}};
  const region_kind kind = in.kind(region);
  if (is_free_kind(kind)) {
    shown.kind = pool_region_kind::free;
    shown.stream = streams_.progress().shown_handle(stream_of(kind));
  } else if (kind == region_kind::unlisted) {
    const region_state state = state_of(in.regions().tag(region));
    shown.kind = state == region_state::live    ? pool_region_kind::live
                 : state == region_state::stale ? pool_region_kind::zombie
                                                : pool_region_kind::busy;
  }
  return shown;
}

// An arena's regions within a range.
void pool_state::list_lent(const segment& in, region_id region,
                           std::vector<pool_region>& out) const {
  const std::uint32_t number = in.lent_to(region);
  const granule_range within = in.range(region);
  std::vector<front_part> parts;
  fronts_->at(number).list(within, parts);
  check(!parts.empty() && parts.front().where.offset == within.offset,
        "an arena lacks memory of its refills");
  const stream_handle whose = streams_.progress().shown_handle(fronts_->lease_of(number).record);
  for (const front_part& part : parts) {
    check(part.where.count != 0 && part.where.end() <= within.end(),
          "an arena's region exceeds its range");
    pool_region shown{{in.address_of(part.where.offset), part.where.count * granule_bytes},
                      part.is_live ? pool_region_kind::live : pool_region_kind::free};
    if (!part.is_live) shown.stream = whose;
    out.push_back(shown);
  }
}

status pool_state::list_regions(std::vector<pool_region>& out) const {
  try {
    for (const auto& in : segments_) {
      const region_map& regions = in->regions();
      for (region_id r = regions.first(); r != region_id::none; r = regions.after(r)) {
        if (in->is_lent(r)) {
          list_lent(*in, r, out);
          continue;
        }
        const pool_region next = shown(*in, r);
        const bool continues = next.kind == pool_region_kind::zombie && !out.empty() &&
                               out.back().kind == pool_region_kind::zombie &&
                               out.back().range.end() == next.range.base;
        if (continues) {
          out.back().range.size_bytes += next.range.size_bytes;
        } else {
          check(out.empty() || !out.back().range.contains(next.range.base), "two regions overlap");
          out.push_back(next);
        }
      }
    }
    return {};
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a list of regions");
  }
}

// The mappings that the range touches, in address order.
status pool_state::list_segments(address_range range, std::vector<memory_segment>& out) const {
  const auto list = [&](const segment& in) -> status {
    const address base = in.where().range.base;
    if (!in.where().range.contains(range))
      return refuse(errc::unknown_address, "the range does not lie in one stretch of the pool");
    for (address at = range.base; at < range.end();) {
      const auto offset = static_cast<std::uint32_t>((at - base) / granule_bytes);
      const mapping* const m = in.mapping_at(offset);
      if (m == nullptr || m->is_stale())
        return refuse(errc::not_allocated, "a part of the range has no memory behind it");
      if (m->memory->is_suspended) return memory_suspended;
      check(m->memory != nullptr, "a mapping has no memory");
      const address_range where{in.address_of(m->offset), m->memory->size_bytes};
      check(where.contains(at), "a mapping does not lie where it is found");
      out.push_back({where, m->memory->handle});
      at = where.end();
    }
    return {};
  };
  status done = refuse(errc::unknown_address, "the address is not of this pool");
  for (const auto& in : segments_) {
    if (in->where().range.contains(range.base)) done = list(*in);
  }
  check(!done || range.empty() || !out.empty(), "a range with bytes touches no mapping");
  return done;
}

namespace {

const char* name_of(pool_region_kind kind) noexcept {
  check(kind <= pool_region_kind::busy, "a region is of no kind");
  switch (kind) {
    case pool_region_kind::live: return "live";
    case pool_region_kind::free: return "free";
    case pool_region_kind::hole: return "hole";
    case pool_region_kind::zombie: return "stale";
    default: return "busy";
  }
}

void append_numbers(std::string& text, const pool_statistics& now) {
  const std::pair<const char*, std::uint64_t> lines[] = {
      {"mapped", now.mapped_bytes},     {"reserved", now.reserved_bytes}, {"live", now.live_bytes},
      {"reusable", now.reusable_bytes}, {"captured", now.captured_bytes}, {"holes", now.hole_bytes},
      {"stale", now.zombie_bytes}};
  for (const auto& [name, bytes] : lines)
    text.append(name).append(" ").append(std::to_string(bytes)).append("\n");
  check(!text.empty(), "a pool has no numbers");
}

std::string hexadecimal(std::uint64_t value) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), digits[value % 16]);
    value /= 16;
  } while (value != 0);
  check(text.size() <= 16, "a number of 64 bits has more digits than it can");
  return "0x" + text;
}

void append_region(std::string& text, const pool_region& each) {
  check(!each.range.empty(), "an empty region is shown");
  text.append(hexadecimal(each.range.base.value)).append(" ");
  text.append(std::to_string(each.range.size_bytes)).append(" ").append(name_of(each.kind));
  if (each.kind == pool_region_kind::free)
    text.append(" stream ").append(hexadecimal(static_cast<std::uint64_t>(each.stream)));
  text.append("\n");
}

}  // namespace

std::string written(const pool_statistics& now, std::span<const pool_region> regions) {
  std::string text;
  append_numbers(text, now);
  for (const pool_region& each : regions) append_region(text, each);
  return text;
}

}  // namespace vmm
