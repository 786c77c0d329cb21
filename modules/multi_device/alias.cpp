// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdio>

module vmm.multi_device;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

constexpr const char* no_memory_text = "the memory was released, or moved from";

// A fault that strikes once leaves no trace.
template <class Step>
status insist(Step&& step) {
  status done = step();
  for (int left = 2; left > 0 && !done; --left) done = step();
  check(done || done.error().code != errc::none, "a step fails without a reason");
  return done;
}

}  // namespace

result<aliased_memory> aliased_memory::make(driver_ref driver, const alias_request& request) {
  if (request.size_bytes == 0)
    return refuse(errc::invalid_argument, "a size of 0 bytes cannot be allocated");
  physical_request like;
  like.where = request.placement.value_or(driver->home());
  like.size_bytes = request.size_bytes;
  const result<granularity> unit = driver->query_granularity(like);
  if (!unit) return unit.error();
  like.size_bytes = round_up(request.size_bytes, unit->recommended_bytes);
  check(like.size_bytes >= request.size_bytes, "a size was rounded down");
  std::unique_ptr<state> made{new (std::nothrow) state(driver)};
  if (made == nullptr)
    return refuse(errc::out_of_host_memory, "no host memory is left for an alias");
  made->size_bytes = like.size_bytes;
  made->rights = request.rights;
  if (made->rights.empty()) {
    (void)made->rights.set({driver->home(), access::read_write});
    (void)made->rights.set({like.where, access::read_write});
  }
  check(!made->rights.empty(), "memory is mapped without access");
  const result<physical_handle> memory = driver->create(like);
  if (!memory) return memory.error();
  made->memory = *memory;
  aliased_memory owner(std::move(made));
  if (const result<address_range> first = owner.add_mapping(); !first) return first.error();
  return owner;
}

result<address_range> aliased_memory::add_mapping() {
  if (state_ == nullptr) return refuse(errc::invalid_argument, no_memory_text);
  state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked();
  if (!s.mappings.empty() && level() == alias_level::none)
    return refuse(errc::not_supported, "this backend maps a handle at one address only");
  check(s.memory != physical_handle::none, "a mapping shows no memory");
  if (status room = reserve_more(s.mappings, 1); !room) return room.error();
  if (status room = reserve_more(s.unmapped, 1); !room) return room.error();
  const result<address_range> where = s.driver->reserve({s.size_bytes, 0, {}});
  if (!where) return where.error();
  check(where->size_bytes == s.size_bytes, "I1: a view and its memory differ in size");
  status done = s.driver->map({where->base, s.size_bytes, s.memory, 0});
  const bool mapped = done.has_value();
  if (done) done = s.driver->set_access(*where, s.rights.all());
  if (done) {
    s.mappings.push_back(*where);
    return *where;
  }
  // A mapping that the driver refuses to undo is a view that was never returned.
  if (mapped && !insist([&] { return s.driver->unmap(*where); })) {
    s.mappings.push_back(*where);
  } else if (!insist([&] { return s.driver->free_reservation(*where); })) {
    s.unmapped.push_back(*where);
  }
  return done.error();
}

status aliased_memory::state::unmap_one(address_range mapping) {
  check(unmapped.capacity() > unmapped.size(), "the list of remaining addresses is full");
  if (status undone = driver->unmap(mapping); !undone) return undone;
  std::erase(mappings, mapping);
  if (insist([&] { return driver->free_reservation(mapping); })) return {};
  unmapped.push_back(mapping);
  return {};
}

status aliased_memory::drop_mapping(address at) {
  if (state_ == nullptr) return refuse(errc::invalid_argument, no_memory_text);
  state& s = *state_;
  if (!s.made_in.is_here()) return refuse_forked();
  const auto found = std::find_if(s.mappings.begin(), s.mappings.end(),
                                  [&](const address_range& each) { return each.base == at; });
  if (found == s.mappings.end()) return refuse(errc::unknown_address, "no mapping begins there");
  if (s.mappings.size() == 1)
    return refuse(errc::invalid_argument, "the last view ends with the memory: release it");
  if (status room = reserve_more(s.unmapped, 1); !room) return room;
  return s.unmap_one(address_range{*found});
}

status aliased_memory::order(stream_handle writer, stream_handle reader) {
  if (state_ == nullptr) return refuse(errc::invalid_argument, no_memory_text);
  driver_interface& driver = *state_->driver;
  if (!state_->made_in.is_here()) return refuse_forked();
  if (!driver.feature_set().streams || writer == reader) return {};
  const result<event_handle> event = driver.create_event();
  if (!event) return event.error();
  check(*event != event_handle::none, "an event has no name");
  status ordered = driver.record_event(*event, writer);
  if (ordered) ordered = driver.wait_event(reader, *event);
  const status gone = insist([&] { return driver.destroy_event(*event); });
  return ordered ? gone : ordered;
}

status aliased_memory::state::close() {
  if (!made_in.is_here()) return refuse_forked();
  while (!mappings.empty()) {
    if (status room = reserve_more(unmapped, 1); !room) return room;
    const address_range last = mappings.back();
    if (status undone = insist([&] { return unmap_one(last); }); !undone) return undone;
  }
  while (!unmapped.empty()) {
    const address_range last = unmapped.back();
    if (status freed = insist([&] { return driver->free_reservation(last); }); !freed) return freed;
    unmapped.pop_back();
  }
  if (memory == physical_handle::none) return {};
  status released = insist([&] { return driver->release(memory); });
  if (released) memory = physical_handle::none;
  check(mappings.empty() && unmapped.empty(), "I2: mapped memory is released");
  return released;
}

status aliased_memory::release() {
  if (state_ == nullptr) return {};
  status closed = state_->close();
  check(!closed || state_->memory == physical_handle::none, "memory is forgotten, not released");
  if (closed) state_.reset();
  return closed;
}

aliased_memory::state::~state() {
  if (!made_in.is_here()) return;
  const status closed = close();
  if (closed) return;
  check(closed.error().detail != nullptr, "a failure has no text");
  without_write_signals([&] {
    std::fprintf(stderr,
                 "vmm: aliased memory could not be released: %s; it stays with the process\n",
                 name_of(closed.error().code));
  });
}

std::span<const address_range> aliased_memory::mappings() const noexcept {
  if (state_ == nullptr) return {};
  return state_->mappings;
}

std::uint64_t aliased_memory::size_bytes() const noexcept {
  return state_ == nullptr ? 0 : state_->size_bytes;
}

alias_level aliased_memory::level() const noexcept {
  return state_ == nullptr ? alias_level::none : state_->driver->feature_set().alias;
}

}  // namespace vmm
