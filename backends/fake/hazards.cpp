// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fake - hazards: access to memory that unfinished work uses.
//
// Each memory lists the unfinished work that uses it, by part and by the address it goes through.
// Two works on one part, one of them writing, must be ordered: by their queue, or by an event. What
// takes an address or a right away must wait for the work that goes through it; a mapping of the
// same memory elsewhere may come and go.
module vmm.fake;

import vmm.backend;
import vmm.base;
import vmm.std;
import :machine;
import :state;

namespace vmm::fake {

namespace {

bool overlap(const use_record& used, std::uint64_t offset, std::uint64_t size_bytes) noexcept {
  check(used.size_bytes != 0 && size_bytes != 0, "a part without bytes is used");
  return used.offset_bytes < offset + size_bytes && offset < used.offset_bytes + used.size_bytes;
}

}  // namespace

// May throw, and then has noted nothing.
void fake_state::note_uses(work& what, std::uint32_t where) {
  check(where < queues.size(), "work is given to no queue");
  struct noted {
    std::uint64_t memory;
    use_record use;
  };
  std::vector<noted> found;
  const auto gather = [&](const std::vector<address_range>& ranges, bool writes) {
    for (const address_range& range : ranges) {
      if (range.empty()) continue;  // it touches nothing
      // Unmapped addresses may be mapped when the work starts, and are checked then.
      for (auto next = first_in(range); next != mappings.end(); ++next) {
        if (next->first >= range.end().value) break;
        const std::uint64_t low = std::max(range.base.value, next->first);
        const std::uint64_t high =
            std::min(range.end().value, next->first + next->second.size_bytes);
        check(high > low, "work uses memory that it does not touch");
        const std::uint64_t offset = next->second.offset_bytes + (low - next->first);
        found.push_back({next->second.memory,
                         {this, where, queues[where].tail_seq + 1, offset, high - low, low, writes,
                          what.what == work::kind::copy, what.device}});
      }
    }
  };
  gather(what.reads, false);
  gather(what.writes, true);
  check(what.memories.empty(), "the uses of work are noted twice");
  what.memories.reserve(found.size());
  for (const noted& each : found) {
    std::vector<use_record>& uses = machine->memories.find(each.memory)->uses;
    uses.reserve(uses.size() + found.size());
  }
  const std::vector<std::uint64_t>& after = queues[where].after;
  for (const noted& each : found) {
    std::vector<use_record>& uses = machine->memories.find(each.memory)->uses;
    for (const use_record& other : uses) {
      if (other.owner != this || other.queue == where || !(other.writes || each.use.writes))
        continue;
      if (other.queue < after.size() && after[other.queue] >= other.seq) continue;
      if (!overlap(other, each.use.offset_bytes, each.use.size_bytes)) continue;
      misused(misuse_kind::unordered, call::none, {address{each.use.at}, each.use.size_bytes},
              what.serial, what.name);
      break;
    }
  }
  for (const noted& each : found) {
    machine->memories.find(each.memory)->uses.push_back(each.use);
    what.memories.push_back(each.memory);
  }
  check(what.memories.size() == found.size(), "a use of work is not noted");
}

void fake_state::forget_uses(const work& what, work_point at) noexcept {
  for (const std::uint64_t token : what.memories) {
    check(at.queue < queues.size(), "work ends in a missing queue");
    memory* used = machine->memories.find(token);
    if (used == nullptr) continue;  // freed under the work, which has been reported
    std::erase_if(used->uses, [&](const use_record& each) {
      return each.owner == this && each.queue == at.queue && each.seq == at.seq;
    });
  }
}

void fake_state::check_unmap(call where, std::uint64_t at, const mapping& joined) noexcept {
  check(machine->memories.find(joined.memory) != nullptr, "a mapping has no memory");
  for (const use_record& each : machine->memories.find(joined.memory)->uses) {
    if (each.owner != this || each.at + each.size_bytes <= at || each.at >= at + joined.size_bytes)
      continue;
    misused(misuse_kind::in_flight, where, {address{each.at}, each.size_bytes}, each.seq,
            "unfinished work goes through these addresses");
    return;
  }
}

void fake_state::check_revoke(std::uint64_t at, const mapping& joined,
                              rights_word rights) noexcept {
  check(machine->memories.find(joined.memory) != nullptr, "a mapping has no memory");
  for (const use_record& each : machine->memories.find(joined.memory)->uses) {
    if (each.owner != this || each.at + each.size_bytes <= at || each.at >= at + joined.size_bytes)
      continue;
    const access left = rights_of(rights, slot_of(each.device));
    if (left >= (each.writes ? access::read_write : access::read)) continue;
    misused(misuse_kind::in_flight, call::set_access, {address{each.at}, each.size_bytes}, each.seq,
            "unfinished work needs the right that is taken away");
    return;
  }
}

void fake_state::check_host_use(call where, const mapped_part& part, address at,
                                bool writes) noexcept {
  check(part.from != nullptr && part.size_bytes != 0, "a part is part of nothing");
  for (const use_record& each : part.from->uses) {
    if (each.owner != this || !(each.writes || writes)) continue;
    if (!overlap(each, part.offset, part.size_bytes)) continue;
    misused(misuse_kind::in_flight, where, {at, part.size_bytes}, each.seq,
            "unfinished work uses this memory");
    return;
  }
}

}  // namespace vmm::fake
