// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A life of one of everything on a driver's library, as a list of steps, and the order in which a
// sweep makes its entry points fail: before each step each entry point that the step uses, with
// each code, once and for ever. It imports what it uses, so it is the last include except others
// with imports.
#pragma once

#include "test.h"

import vmm.backend;
import vmm.fake;

namespace entry_points {

template <class T, class Into>
vmm::status store(const vmm::result<T>& made, Into& into) {
  if (!made) return made.error();
  into = *made;
  return {};
}
template <class T>
vmm::status drop(const vmm::result<T>& seen) {
  if (!seen) return seen.error();
  return {};
}

inline constexpr std::uint64_t unit = 2ull << 20;

/// One of everything, and a call of each kind.
template <class Driver>
struct life {
  explicit life(Driver& on) : driver(on) {}
  Driver& driver;
  vmm::address_range range{};
  vmm::physical_handle memory{};
  vmm::stream_handle stream{};
  vmm::event_handle event{};
  std::array<std::byte, 8> bytes{};

  vmm::status query_granularity() {
    return drop(driver.query_granularity({.size_bytes = unit, .where = driver.home()}));
  }
  vmm::status reserve() { return store(driver.reserve({.size_bytes = 2 * unit}), range); }
  vmm::status map() { return driver.map({range.base, unit, memory, 0}); }
  vmm::status allow(vmm::access rights) {
    const vmm::access_grant all[] = {{driver.home(), rights}};
    return driver.set_access({range.base, unit}, all);
  }
  vmm::status give_access() { return allow(vmm::access::read_write); }
  vmm::status create_stream() { return store(driver.create_stream(), stream); }
  vmm::status create_event() { return store(driver.create_event(), event); }
  vmm::status fill() { return driver.fill({{range.base, unit / 2}, 7, stream}); }
  vmm::status copy() { return driver.copy({range.base + unit / 2, range.base, 64, stream}); }
  vmm::status record_event() { return driver.record_event(event, stream); }
  vmm::status query_event() { return drop(driver.query_event(event)); }
  vmm::status wait_event() { return driver.wait_event(stream, event); }
  vmm::status synchronize_event() { return driver.synchronize_event(event); }
  vmm::status synchronize_stream() { return driver.synchronize_stream(stream); }
  vmm::status synchronize_all() { return driver.synchronize_all(); }
  vmm::status write() { return driver.write(range.base, bytes); }
  vmm::status read() { return driver.read(bytes, range.base); }
  vmm::status destroy_event() { return driver.destroy_event(event); }
  vmm::status destroy_stream() { return driver.destroy_stream(stream); }
  vmm::status unmap() { return driver.unmap({range.base, unit}); }
  vmm::status release() { return driver.release(memory); }
  vmm::status free_reservation() { return driver.free_reservation(range); }
};

template <class Life>
struct step {
  vmm::call where;
  std::vector<const char*> symbols;  // the entry points that the step goes through
  std::function<vmm::status(Life&)> run;
};
template <class Life>
using steps = std::vector<step<Life>>;

template <class Life>
steps<Life> joined(steps<Life> all, const std::vector<steps<Life>>& more) {
  for (const steps<Life>& each : more) all.insert(all.end(), each.begin(), each.end());
  return all;
}

/// `Library` has a driver's life, the controls of its simulation, its codes, the entry points that
/// every step goes through, and its exceptions.
template <class Library>
struct Sweep : testing::Test {
  using life_type = typename Library::life;
  using code_type = typename decltype(Library::codes)::value_type;
  using step_type = step<life_type>;

  static auto& fake() { return *static_cast<vmm::fake_driver*>(Library::controls().fake()); }

  // One entry point of one step fails with one code.
  void inject(const step_type& what, life_type& l, const char* symbol, code_type code,
              bool forever) {
    // Not a failure of an event query, but its other result.
    const bool is_query = what.where == vmm::call::query_event && symbol == what.symbols.front();
    if (is_query && code == Library::not_ready) return;
    const vmm::fake::resource_counts before = fake().resource_counts();
    Library::controls().fail(symbol, code, 1, forever);
    const vmm::status outcome = what.run(l);
    Library::controls().clear_failures();
    ++injected_;
    if (outcome && Library::is_tried_again(what.where, code, forever)) {
      ASSERT_TRUE(l.free_reservation());
      return;
    }
    ASSERT_FALSE(outcome) << symbol << " returned " << code;
    EXPECT_EQ(outcome.error().where, what.where) << symbol;
    EXPECT_EQ(outcome.error().native, code) << symbol;
    EXPECT_NE(outcome.error().code, vmm::errc::none) << symbol;
    EXPECT_STRNE(outcome.error().native_name, "") << symbol;
    EXPECT_STRNE(outcome.error().detail, "") << symbol;
    EXPECT_TRUE(same(before, fake().resource_counts())) << symbol << " returned " << code;
  }

  // The steps in their order, each with every failure first, and a count of the failures.
  void sweep(const steps<life_type>& all, life_type& l) {
    std::size_t possible = 0;
    for (const step_type& each : all) {
      std::vector<const char*> symbols = each.symbols;
      symbols.insert(symbols.end(), Library::every_symbol.begin(), Library::every_symbol.end());
      possible += 2 * (symbols.size() * Library::codes.size() -
                       (each.where == vmm::call::query_event ? 1 : 0));
      for (const char* symbol : symbols) {
        for (const code_type code : Library::codes)
          for (const bool forever : {false, true}) inject(each, l, symbol, code, forever);
      }
      if (HasFatalFailure()) return;
      const vmm::status outcome = each.run(l);
      ASSERT_TRUE(outcome) << vmm::describe(outcome.error());
    }
    std::printf("%zu of %zu possible failures injected\n", injected_, possible);
    EXPECT_EQ(injected_, possible);
  }

 private:
  static bool same(const vmm::fake::resource_counts& a, const vmm::fake::resource_counts& b) {
    return a.reservations == b.reservations && a.handles == b.handles && a.memories == b.memories &&
           a.mappings == b.mappings && a.accessible_mappings == b.accessible_mappings &&
           a.streams == b.streams &&
           (!Library::has_same_work || (a.events == b.events && a.pending_work == b.pending_work));
  }

  std::size_t injected_ = 0;
};

}  // namespace entry_points
