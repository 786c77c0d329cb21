// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fidelity:cases - the invalid and boundary calls that the fake driver is held to, in words and
// in code: one list for every backend.
//
// A probe marked `alone` might end the process or spoil the context on a real driver, so it runs in
// a process of its own there.
export module vmm.fidelity:cases;

import vmm.backend;
import vmm.base;
import vmm.std;
import :scratch;

namespace vmm::fidelity {

/// Whether a probe may run beside others or needs a process of its own on a real driver.
export enum class company : std::uint8_t { any, alone };

export template <class B>
struct probe {
  const char* id;    ///< stable: identifies the recorded results
  const char* what;  ///< for people
  company with;
  std::string (*run)(scratch<B>& s);
};

export template <class B>
using probe_list = std::vector<probe<B>>;

template <class B>
struct adder {
  using run_function = std::string (*)(scratch<B>&);
  void operator()(const char* id, const char* what, run_function run) const {
    to.push_back({id, what, company::any, run});
  }
  void operator()(const char* id, const char* what, company with, run_function run) const {
    to.push_back({id, what, with, run});
  }
  probe_list<B>& to;
};

template <class B>
void add_reserve_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("reserve-zero", "reserve 0 bytes", [](S s) { return text(s.try_reserve({})); });
  add("reserve-page", "reserve 4 KiB",
      [](S s) { return text(s.try_reserve({.size_bytes = 4096})); });
  add("reserve-odd", "reserve a granule and one byte",
      [](S s) { return text(s.try_reserve({.size_bytes = s.g + 1})); });
  add("reserve-half", "reserve half a granule",
      [](S s) { return text(s.try_reserve({.size_bytes = s.g / 2})); });
  add("reserve-align-three", "reserve with an alignment that is not a power of two",
      [](S s) { return text(s.try_reserve({.size_bytes = s.g, .alignment_bytes = 3 * s.g})); });
  add("reserve-align-page", "reserve with an alignment of 4 KiB",
      [](S s) { return text(s.try_reserve({.size_bytes = s.g, .alignment_bytes = 4096})); });
  add("reserve-align-one", "reserve with an alignment of 1",
      [](S s) { return text(s.try_reserve({.size_bytes = s.g, .alignment_bytes = 1})); });
  add("reserve-align-1gib", "reserve with an alignment of 1 GiB", [](S s) {
    const auto made = s.try_reserve({.size_bytes = s.g, .alignment_bytes = 1ull << 30});
    if (!made) return text(made);
    return std::string(made->base.value % (1ull << 30) == 0 ? "SUCCESS" : "SUCCESS unaligned");
  });
  add("reserve-64tib", "reserve 64 TiB",
      [](S s) { return text(s.try_reserve({.size_bytes = 1ull << 46})); });
  add("reserve-128tib", "reserve 128 TiB",
      [](S s) { return text(s.try_reserve({.size_bytes = 1ull << 47})); });
  add("reserve-huge", "reserve 2^62 bytes",
      [](S s) { return text(s.try_reserve({.size_bytes = 1ull << 62})); });
  add("reserve-hint-taken", "reserve at the address of a live reservation", [](S s) {
    const address_range first = s.room(1);
    const auto made = s.try_reserve({.size_bytes = s.g, .hint = first.base});
    if (!made) return text(made);
    return std::string(made->base == first.base ? "SUCCESS same address" : "SUCCESS");
  });
  add("reserve-hint-odd", "reserve at an unaligned address", [](S s) {
    const address_range first = s.room(4);
    return text(s.try_reserve({.size_bytes = s.g, .hint = first.base + 4097}));
  });
}

template <class B>
void add_free_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("free-zero", "free 0 bytes of a reservation",
      [](S s) { return text(s.b.free_reservation({s.room(2).base, 0})); });
  add("free-half", "free the first half of a reservation",
      [](S s) { return text(s.b.free_reservation({s.room(2).base, s.g})); });
  add("free-second-half", "free the second half of a reservation",
      [](S s) { return text(s.b.free_reservation({s.room(2).base + s.g, s.g})); });
  add("free-double-size", "free twice a reservation's size",
      [](S s) { return text(s.b.free_reservation({s.room(2).base, 4 * s.g})); });
  add("free-twice", "free a reservation again", [](S s) {
    const address_range range = s.room(1);
    if (const status first = s.try_free(range); !first) return "first: " + text(first);
    return text(s.b.free_reservation(range));
  });
  add("free-never", "free addresses that were never reserved",
      [](S s) { return text(s.b.free_reservation({{1ull << 40}, s.g})); });
  add("free-null", "free address 0", [](S s) { return text(s.b.free_reservation({{0}, s.g})); });
  add("free-mapped", "free a reservation with a live mapping", [](S s) {
    const address_range range = s.mapped(1);
    return text(s.try_free(range));
  });
}

template <class B>
void add_create_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("create-zero", "create 0 bytes",
      [](S s) { return text(s.try_create({.where = s.b.home()})); });
  add("create-byte", "create 1 byte",
      [](S s) { return text(s.try_create({.size_bytes = 1, .where = s.b.home()})); });
  add("create-odd", "create a granule and one byte",
      [](S s) { return text(s.try_create({.size_bytes = s.g + 1, .where = s.b.home()})); });
  add("create-half", "create half a granule",
      [](S s) { return text(s.try_create({.size_bytes = s.g / 2, .where = s.b.home()})); });
  add("create-too-much", "create a granule more than the device has in all", [](S s) {
    const auto info = s.b.query_memory(s.b.home());
    if (!info) return "query: " + text(info);
    const std::uint64_t whole = info->total_bytes / s.g * s.g + s.g;
    return text(s.try_create({.size_bytes = whole, .where = s.b.home()}));
  });
  add("create-huge", "create 2^62 bytes",
      [](S s) { return text(s.try_create({.size_bytes = 1ull << 62, .where = s.b.home()})); });
  add("create-device-99", "create on device 99",
      [](S s) { return text(s.try_create({.size_bytes = s.g, .where = device(99)})); });
  add("create-device-minus", "create on device -1",
      [](S s) { return text(s.try_create({.size_bytes = s.g, .where = device(-1)})); });
  add("create-host", "create on the host",
      [](S s) { return text(s.try_create({.size_bytes = s.g, .where = host()})); });
  add("create-node-0", "create on host NUMA node 0",
      [](S s) { return text(s.try_create({.size_bytes = s.g, .where = host_node(0)})); });
  add("create-node-99", "create on host NUMA node 99",
      [](S s) { return text(s.try_create({.size_bytes = s.g, .where = host_node(99)})); });
}

template <class B>
void add_kind_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("create-fd", "create to be shared by descriptor", [](S s) {
    return text(
        s.try_create({.size_bytes = s.g, .where = s.b.home(), .shareable = share_kind::posix_fd}));
  });
  add("create-fabric", "create to be shared by fabric handle", [](S s) {
    return text(
        s.try_create({.size_bytes = s.g, .where = s.b.home(), .shareable = share_kind::fabric}));
  });
  add("create-win32", "create to be shared by Windows handle", [](S s) {
    return text(
        s.try_create({.size_bytes = s.g, .where = s.b.home(), .shareable = share_kind::win32}));
  });
  add("create-host-fd", "create on the host, to be shared by descriptor", [](S s) {
    return text(
        s.try_create({.size_bytes = s.g, .where = host(), .shareable = share_kind::posix_fd}));
  });
  add("create-node-fd", "create on a NUMA node, to be shared by descriptor", [](S s) {
    return text(s.try_create(
        {.size_bytes = s.g, .where = host_node(0), .shareable = share_kind::posix_fd}));
  });
  add("create-compressible", "create compressible memory, and what was granted", [](S s) {
    const auto made = s.try_create({.size_bytes = s.g, .where = s.b.home(), .compressible = true});
    if (!made) return text(made);
    const auto granted = s.b.get_properties(*made);
    if (!granted) return "read back: " + text(granted);
    return std::string(granted->compressible ? "SUCCESS compressible" : "SUCCESS plain");
  });
  add("create-rdma", "create memory for RDMA, and what was granted", [](S s) {
    const auto made = s.try_create({.size_bytes = s.g, .where = s.b.home(), .rdma_capable = true});
    if (!made) return text(made);
    const auto granted = s.b.get_properties(*made);
    if (!granted) return "read back: " + text(granted);
    return std::string(granted->rdma_capable ? "SUCCESS rdma" : "SUCCESS plain");
  });
  add("granularity-device-99", "ask for the granularity of device 99",
      [](S s) { return text(s.b.query_granularity({.where = device(99)})); });
  add("granularity-node-0", "ask for the granularity of host NUMA node 0", [](S s) {
    const auto unit = s.b.query_granularity({.where = host_node(0)});
    return unit ? "SUCCESS " + std::to_string(unit->minimum_bytes) : text(unit);
  });
  add("memory-device-99", "ask for the memory of device 99",
      [](S s) { return text(s.b.query_memory(device(99))); });
}

template <class B>
void add_release_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("release-none", "release handle 0", company::alone,
      [](S s) { return text(s.b.release(physical_handle::none)); });
  add("release-garbage", "release a number that is not a handle", company::alone,
      [](S s) { return text(s.b.release(static_cast<physical_handle>(0x1234567))); });
  add("release-twice", "release a handle again", company::alone, [](S s) {
    const physical_handle handle = s.memory(1);
    if (const status first = s.try_release(handle); !first) return "first: " + text(first);
    return text(s.b.release(handle));
  });
  add("release-mapped", "release a mapped handle, then write and read through the mapping",
      company::any, [](S s) {
        const address_range range = s.room(1);
        const physical_handle handle = s.memory(1);
        s.join(range.base, handle, 1);
        s.open(range);
        if (const status outcome = s.try_release(handle); !outcome) return text(outcome);
        return s.carries(range.base, range.base);
      });
  add("release-mapped-access", "release a mapped handle, then set access", company::any, [](S s) {
    const address_range range = s.room(1);
    const physical_handle handle = s.memory(1);
    s.join(range.base, handle, 1);
    if (const status outcome = s.try_release(handle); !outcome) return text(outcome);
    return text(s.try_access(range, s.b.home(), access::read_write));
  });
}

template <class B>
void add_retain_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("properties-none", "ask for the properties of handle 0", company::alone,
      [](S s) { return text(s.b.get_properties(physical_handle::none)); });
  add("properties-released", "ask for the properties of a released handle", company::alone,
      [](S s) {
        const physical_handle handle = s.memory(1);
        if (const status first = s.try_release(handle); !first) return "first: " + text(first);
        return text(s.b.get_properties(handle));
      });
  add("retain-inside", "retain from an address in the middle of a mapping", company::any, [](S s) {
    const address_range range = s.mapped(2);
    return text(s.keep(s.b.retain(range.base + s.g + 17)));
  });
  add("retain-reserved", "retain from an address with nothing behind it", company::any,
      [](S s) { return text(s.keep(s.b.retain(s.room(1).base))); });
  add("retain-never", "retain from an address that was never reserved", company::any,
      [](S s) { return text(s.keep(s.b.retain({1ull << 40}))); });
  add("retain-null", "retain from address 0", company::any,
      [](S s) { return text(s.keep(s.b.retain({}))); });
  add("retain-released", "retain after the handle was released", company::any, [](S s) {
    const address_range range = s.room(1);
    const physical_handle handle = s.memory(1);
    s.join(range.base, handle, 1);
    if (const status outcome = s.try_release(handle); !outcome) return text(outcome);
    return text(s.keep(s.b.retain(range.base)));
  });
}

template <class B>
void add_map_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("map-unreserved", "map at an address that was never reserved",
      [](S s) { return text(s.try_map({{1ull << 40}, s.g, s.memory(1), 0})); });
  add("map-null", "map at address 0",
      [](S s) { return text(s.try_map({{}, s.g, s.memory(1), 0})); });
  add("map-offset", "map the second granule of a handle of two",
      [](S s) { return text(s.try_map({s.room(1).base, s.g, s.memory(2), s.g})); });
  add("map-offset-page", "map from 4 KiB inside a handle",
      [](S s) { return text(s.try_map({s.room(1).base, s.g, s.memory(2), 4096})); });
  add("map-offset-end", "map from the end of a handle",
      [](S s) { return text(s.try_map({s.room(1).base, s.g, s.memory(1), s.g})); });
  add("map-short", "map the first granule of a handle of two",
      [](S s) { return text(s.try_map({s.room(1).base, s.g, s.memory(2), 0})); });
  add("map-long", "map two granules of a handle of one",
      [](S s) { return text(s.try_map({s.room(2).base, 2 * s.g, s.memory(1), 0})); });
  add("map-zero", "map 0 bytes",
      [](S s) { return text(s.try_map({s.room(1).base, 0, s.memory(1), 0})); });
  add("map-odd-size", "map a granule less 4 KiB",
      [](S s) { return text(s.try_map({s.room(1).base, s.g - 4096, s.memory(1), 0})); });
  add("map-odd-address", "map at 4 KiB inside a reservation",
      [](S s) { return text(s.try_map({s.room(2).base + 4096, s.g, s.memory(1), 0})); });
}

template <class B>
void add_shape_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("map-over", "map over a mapping", [](S s) {
    const address_range range = s.mapped(1);
    return text(s.try_map({range.base, s.g, s.memory(1), 0}));
  });
  add("map-over-half", "map over the second half of a mapping", [](S s) {
    const address_range range = s.room(3);
    s.join(range.base, s.memory(2), 2);
    return text(s.try_map({range.base + s.g, 2 * s.g, s.memory(2), 0}));
  });
  add("map-past-end", "map past the end of a reservation",
      [](S s) { return text(s.try_map({s.room(1).base, 2 * s.g, s.memory(2), 0})); });
  add("map-past-end-inside", "map from the last of four granules past the end",
      [](S s) { return text(s.try_map({s.room(4).base + 3 * s.g, 2 * s.g, s.memory(2), 0})); });
  add("map-across-rooms", "map over the border of two adjacent reservations", [](S s) {
    const address_range both = s.room(4);
    if (const status freed = s.try_free(both); !freed) return "free: " + text(freed);
    const auto low = s.try_reserve({.size_bytes = 2 * s.g, .hint = both.base});
    const auto high = s.try_reserve({.size_bytes = 2 * s.g, .hint = both.base + 2 * s.g});
    if (!low || !high || high->base != low->end()) return std::string("not adjacent");
    return text(s.try_map({low->base + s.g, 2 * s.g, s.memory(2), 0}));
  });
  add("map-alias", "map one handle at two addresses, write at one, read at the other", [](S s) {
    const address_range range = s.room(2);
    const physical_handle handle = s.memory(1);
    s.join(range.base, handle, 1);
    if (const auto outcome = s.try_map({range.base + s.g, s.g, handle, 0}); !outcome) {
      return text(outcome);
    }
    s.open(range);
    return s.carries(range.base, range.base + s.g);
  });
  add("map-none", "map handle 0", company::alone,
      [](S s) { return text(s.try_map({s.room(1).base, s.g, physical_handle::none, 0})); });
  add("map-released", "map a released handle", company::alone, [](S s) {
    const physical_handle handle = s.memory(1);
    if (const status first = s.try_release(handle); !first) return "first: " + text(first);
    return text(s.try_map({s.room(1).base, s.g, handle, 0}));
  });
  add("map-retained", "map a handle that was retained from an address", [](S s) {
    const address_range range = s.mapped(1);
    const auto handle = s.keep(s.b.retain(range.base));
    if (!handle) return "retain: " + text(handle);
    return text(s.try_map({s.room(1).base, s.g, *handle, 0}));
  });
  add("map-freed-room", "map in a reservation that was freed", [](S s) {
    const address_range range = s.room(1);
    if (const status first = s.try_free(range); !first) return "first: " + text(first);
    return text(s.try_map({range.base, s.g, s.memory(1), 0}));
  });
}

template <class B>
void add_unmap_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("unmap-never-mapped", "unmap a reservation that was never mapped",
      [](S s) { return text(s.try_unmap(s.room(2))); });
  add("unmap-never-mapped-part", "unmap half of a reservation that was never mapped",
      [](S s) { return text(s.try_unmap({s.room(2).base, s.g})); });
  add("unmap-twice", "unmap again", [](S s) {
    const address_range range = s.mapped(1);
    if (const status first = s.try_unmap(range); !first) return "first: " + text(first);
    return text(s.try_unmap(range));
  });
  add("unmap-first-half", "unmap the first half of a mapping",
      [](S s) { return text(s.try_unmap({s.mapped(2).base, s.g})); });
  add("unmap-second-half", "unmap the second half of a mapping",
      [](S s) { return text(s.try_unmap({s.mapped(2).base + s.g, s.g})); });
  add("unmap-two", "unmap two adjacent mappings", [](S s) {
    const address_range range = s.room(2);
    s.join(range.base, s.memory(1), 1);
    s.join(range.base + s.g, s.memory(1), 1);
    return text(s.try_unmap(range));
  });
  add("unmap-one-and-half", "unmap a mapping and half of the next", [](S s) {
    const address_range range = s.room(3);
    s.join(range.base, s.memory(1), 1);
    s.join(range.base + s.g, s.memory(2), 2);
    return text(s.try_unmap({range.base, 2 * s.g}));
  });
}

template <class B>
void add_unmap_border_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("unmap-hole-between", "unmap two mappings with a hole between them", [](S s) {
    const address_range range = s.room(3);
    s.join(range.base, s.memory(1), 1);
    s.join(range.base + 2 * s.g, s.memory(1), 1);
    return text(s.try_unmap(range));
  });
  add("unmap-hole-after", "unmap a mapping and the hole after it", [](S s) {
    const address_range range = s.room(2);
    s.join(range.base, s.memory(1), 1);
    return text(s.try_unmap(range));
  });
  add("unmap-hole-before", "unmap a mapping and the hole before it", [](S s) {
    const address_range range = s.room(2);
    s.join(range.base + s.g, s.memory(1), 1);
    return text(s.try_unmap(range));
  });
  add("unmap-unreserved", "unmap addresses that were never reserved",
      [](S s) { return text(s.try_unmap({{1ull << 40}, s.g})); });
  add("unmap-null", "unmap address 0", [](S s) { return text(s.try_unmap({{}, s.g})); });
  add("unmap-zero", "unmap 0 bytes of a mapping",
      [](S s) { return text(s.b.unmap({s.mapped(1).base, 0})); });
  add("unmap-odd-size", "unmap a granule less 4 KiB of a mapping",
      [](S s) { return text(s.try_unmap({s.mapped(1).base, s.g - 4096})); });
  add("unmap-odd-address", "unmap from 4 KiB inside a mapping",
      [](S s) { return text(s.try_unmap({s.mapped(1).base + 4096, s.g})); });
  add("unmap-past-end", "unmap a mapping and addresses past its reservation", [](S s) {
    const address_range range = s.mapped(1);
    return text(s.try_unmap({range.base, 1024 * s.g}));
  });
}

template <class B>
void add_access_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("access-first-half", "set access on the first half of a mapping",
      [](S s) { return text(s.try_access({s.mapped(2).base, s.g}, s.b.home(), access::read)); });
  add("access-second-half", "set access on the second half of a mapping", [](S s) {
    return text(s.try_access({s.mapped(2).base + s.g, s.g}, s.b.home(), access::read));
  });
  add("access-two", "set access on two adjacent mappings", [](S s) {
    const address_range range = s.room(2);
    s.join(range.base, s.memory(1), 1);
    s.join(range.base + s.g, s.memory(1), 1);
    return text(s.try_access(range, s.b.home(), access::read_write));
  });
  add("access-hole", "set access over a hole between two mappings", [](S s) {
    const address_range range = s.room(3);
    s.join(range.base, s.memory(1), 1);
    s.join(range.base + 2 * s.g, s.memory(1), 1);
    return text(s.try_access(range, s.b.home(), access::read_write));
  });
  add("access-hole-before", "set access over a hole and the mapping after it", [](S s) {
    const address_range range = s.room(2);
    s.join(range.base + s.g, s.memory(1), 1);
    return text(s.try_access(range, s.b.home(), access::read_write));
  });
  add("access-hole-after", "set access over a mapping and the hole after it", [](S s) {
    const address_range range = s.room(2);
    s.join(range.base, s.memory(1), 1);
    return text(s.try_access(range, s.b.home(), access::read_write));
  });
  add("access-unmapped", "set access on a reservation that is not mapped",
      [](S s) { return text(s.try_access(s.room(1), s.b.home(), access::read_write)); });
  add("access-unreserved", "set access on addresses that were never reserved",
      [](S s) { return text(s.try_access({{1ull << 40}, s.g}, s.b.home(), access::read_write)); });
  add("access-zero", "set access on 0 bytes of a mapping", [](S s) {
    return text(s.try_access({s.mapped(1).base, 0}, s.b.home(), access::read_write));
  });
  add("access-odd-size", "set access on a granule less 4 KiB of a mapping", [](S s) {
    return text(s.try_access({s.mapped(1).base, s.g - 4096}, s.b.home(), access::read_write));
  });
}

template <class B>
void add_grant_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("access-no-grants", "set access with an empty list",
      [](S s) { return text(s.b.set_access(s.mapped(1), {})); });
  add("access-same-twice", "set access with two rights for one device", [](S s) {
    const access_grant two[] = {{s.b.home(), access::read_write}, {s.b.home(), access::read}};
    const address_range range = s.mapped(1);
    if (const status outcome = s.b.set_access(range, two); !outcome) return text(outcome);
    return text(s.b.get_access(range.base, s.b.home()));
  });
  add("access-device-99", "set access for device 99",
      [](S s) { return text(s.try_access(s.mapped(1), device(99), access::read_write)); });
  add("access-host-on-device", "set access for the host on device memory",
      [](S s) { return text(s.try_access(s.mapped(1), host(), access::read_write)); });
  add("access-node-on-device", "set access for a NUMA node on device memory",
      [](S s) { return text(s.try_access(s.mapped(1), host_node(0), access::read_write)); });
  add("access-read", "set access to read, and ask", [](S s) {
    const address_range range = s.mapped(1, access::read);
    return text(s.b.get_access(range.base, s.b.home()));
  });
  add("access-none", "set access to none, and ask", [](S s) {
    const address_range range = s.mapped(1);
    if (const auto outcome = s.try_access(range, s.b.home(), access::none); !outcome) {
      return text(outcome);
    }
    return text(s.b.get_access(range.base, s.b.home()));
  });
  add("access-on-node-memory", "set access for device and node on NUMA memory", [](S s) {
    const auto unit = s.b.query_granularity({.where = host_node(0)});
    const std::uint64_t size = unit ? round_up(s.g, unit->minimum_bytes) : s.g;
    const auto made = s.try_create({.size_bytes = size, .where = host_node(0)});
    if (!made) return "create: " + text(made);
    const auto range = s.try_reserve({.size_bytes = size});
    if (!range) return "reserve: " + text(range);
    if (const auto joined = s.try_map({range->base, size, *made, 0}); !joined) {
      return "map: " + text(joined);
    }
    const access_grant both[] = {{s.b.home(), access::read_write},
                                 {host_node(0), access::read_write}};
    return text(s.b.set_access(*range, both));
  });
}

template <class B>
void add_get_access_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("get-access-fresh", "ask for the access of a fresh mapping", [](S s) {
    const address_range range = s.room(1);
    s.join(range.base, s.memory(1), 1);
    return text(s.b.get_access(range.base, s.b.home()));
  });
  add("get-access-middle", "ask for the access of an odd address inside a mapping",
      [](S s) { return text(s.b.get_access(s.mapped(2).base + s.g + 17, s.b.home())); });
  add("get-access-unmapped", "ask for the access of a reservation that is not mapped",
      [](S s) { return text(s.b.get_access(s.room(1).base, s.b.home())); });
  add("get-access-unreserved", "ask for the access of an address that was never reserved",
      [](S s) { return text(s.b.get_access({1ull << 40}, s.b.home())); });
  add("get-access-device-99", "ask for the access of device 99",
      [](S s) { return text(s.b.get_access(s.mapped(1).base, device(99))); });
  add("get-access-remapped", "ask for the access after unmapping and mapping again", [](S s) {
    const address_range range = s.mapped(1);
    if (const status outcome = s.try_unmap(range); !outcome) return "unmap: " + text(outcome);
    s.join(range.base, s.memory(1), 1);
    return text(s.b.get_access(range.base, s.b.home()));
  });
}

template <class B>
void add_byte_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("bytes-fresh", "fresh memory reads as zero", company::any, [](S s) {
    std::array<std::byte, 64> out{};
    out.fill(std::byte{1});
    if (const auto outcome = s.b.read(out, s.mapped(1).base + s.g / 2); !outcome) {
      return text(outcome);
    }
    const bool zero =
        std::all_of(out.begin(), out.end(), [](std::byte b) { return b == std::byte{}; });
    return std::string(zero ? "SUCCESS zero" : "SUCCESS not zero");
  });
  add("bytes-zero-size", "write 0 bytes", company::any,
      [](S s) { return text(s.b.write(s.mapped(1).base, {})); });
  add("bytes-odd", "write and read 8 bytes at an odd address over a border of two handles",
      company::any, [](S s) {
        const address_range range = s.room(2);
        s.join(range.base, s.memory(1), 1);
        s.join(range.base + s.g, s.memory(1), 1);
        s.open(range);
        return s.carries(range.base + (s.g - 3), range.base + (s.g - 3));
      });
  add("bytes-read-only-read", "read memory that the device may only read", company::any, [](S s) {
    std::array<std::byte, 8> out{};
    return text(s.b.read(out, s.mapped(1, access::read).base));
  });
}

template <class B>
void add_forbidden_byte_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("bytes-unmapped-write", "write where nothing is mapped", company::alone, [](S s) {
    const std::array<std::byte, 8> data{};
    return text(s.b.write(s.room(1).base, data));
  });
  add("bytes-unmapped-read", "read where nothing is mapped", company::alone, [](S s) {
    std::array<std::byte, 8> data{};
    return text(s.b.read(data, s.room(1).base));
  });
  add("bytes-unreserved-read", "read an address that was never reserved", company::alone, [](S s) {
    std::array<std::byte, 8> data{};
    return text(s.b.read(data, {1ull << 40}));
  });
  add("bytes-past-end", "write over the end of a mapping into a hole", company::alone, [](S s) {
    const address_range range = s.room(2);
    s.join(range.base, s.memory(1), 1);
    s.open({range.base, s.g});
    const std::array<std::byte, 8> data{};
    return text(s.b.write(range.base + (s.g - 4), data));
  });
  add("bytes-no-access-write", "write through a mapping without access", company::alone, [](S s) {
    const address_range range = s.room(1);
    s.join(range.base, s.memory(1), 1);
    const std::array<std::byte, 8> data{};
    return text(s.b.write(range.base, data));
  });
  add("bytes-no-access-fill", "fill through a mapping without access", company::alone, [](S s) {
    const address_range range = s.room(1);
    s.join(range.base, s.memory(1), 1);
    const stream_handle stream = s.stream();
    return s.finish(s.b.fill({range, 7, stream}), stream);
  });
  add("bytes-read-only-write", "write memory that the device may only read", company::alone,
      [](S s) {
        const std::array<std::byte, 8> data{};
        return text(s.b.write(s.mapped(1, access::read).base, data));
      });
  add("bytes-read-only-fill", "fill memory that the device may only read", company::alone, [](S s) {
    const stream_handle stream = s.stream();
    return s.finish(s.b.fill({s.mapped(1, access::read), 7, stream}), stream);
  });
  add("bytes-unmapped-fill", "fill where nothing is mapped", company::alone, [](S s) {
    const stream_handle stream = s.stream();
    return s.finish(s.b.fill({s.room(1), 7, stream}), stream);
  });
}

template <class B>
void add_copy_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("bytes-copy-from-hole", "copy from where nothing is mapped", company::alone, [](S s) {
    const stream_handle stream = s.stream();
    const address_range target = s.mapped(1);
    return s.finish(s.b.copy({target.base, s.room(1).base, s.g, stream}), stream);
  });
  add("bytes-copy-zero", "copy 0 bytes", company::any, [](S s) {
    const stream_handle stream = s.stream();
    const address_range range = s.mapped(2);
    return s.finish(s.b.copy({range.base, range.base + s.g, 0, stream}), stream);
  });
  add("bytes-fill-zero", "fill 0 bytes", company::any, [](S s) {
    const stream_handle stream = s.stream();
    return s.finish(s.b.fill({{s.mapped(1).base, 0}, 7, stream}), stream);
  });
  add("bytes-unmapped-after-fill", "fill, finish, unmap, map again: the bytes stay", company::any,
      [](S s) {
        const address_range range = s.room(1);
        const physical_handle handle = s.memory(1);
        s.join(range.base, handle, 1);
        s.open(range);
        const stream_handle stream = s.stream();
        const std::string filled = s.finish(s.b.fill({range, 0x5a, stream}), stream);
        if (filled != "SUCCESS") return "fill: " + filled;
        if (const status outcome = s.try_unmap(range); !outcome) return "unmap: " + text(outcome);
        s.join(range.base, handle, 1);
        s.open(range);
        std::array<std::byte, 1> out{};
        if (const status outcome = s.b.read(out, range.base + (s.g - 1)); !outcome)
          return text(outcome);
        return std::string(out[0] == std::byte{0x5a} ? "SUCCESS" : "other contents");
      });
}

template <class B>
void add_work_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("event-never-recorded", "ask for an event that was never recorded", company::any,
      [](S s) { return text(s.b.query_event(s.event())); });
  add("event-wait-never-recorded", "wait for an event that was never recorded", company::any,
      [](S s) { return text(s.b.wait_event(s.stream(), s.event())); });
  add("event-sync-never-recorded", "synchronise with an event that was never recorded",
      company::any, [](S s) { return text(s.b.synchronize_event(s.event())); });
  add("event-recorded-twice", "record an event again, and ask", company::any, [](S s) {
    const stream_handle stream = s.stream();
    const event_handle event = s.event();
    if (const status outcome = s.b.record_event(event, stream); !outcome) return text(outcome);
    if (const status outcome = s.b.record_event(event, stream); !outcome) return text(outcome);
    if (const status outcome = s.b.synchronize_event(event); !outcome) return text(outcome);
    return text(s.b.query_event(event));
  });
  if constexpr (all_work_backend<B>) {
    add("all-recorded", "record an event of all work, wait for it, and ask", company::any, [](S s) {
      const event_handle event = s.event();
      if (const status outcome = s.b.record_all(event); !outcome) return text(outcome);
      if (const status outcome = s.b.synchronize_event(event); !outcome) return text(outcome);
      return text(s.b.query_event(event));
    });
    add("all-waited-for", "let a stream wait for an event of all work", company::any, [](S s) {
      const event_handle event = s.event();
      if (const status outcome = s.b.record_all(event); !outcome) return text(outcome);
      return text(s.b.wait_event(s.stream(), event));
    });
    add("all-record-none", "record event 0 after all work", company::alone,
        [](S s) { return text(s.b.record_all(event_handle::none)); });
  }
  add("event-query-none", "ask for event 0", company::alone,
      [](S s) { return text(s.b.query_event(event_handle::none)); });
  add("event-record-none", "record event 0", company::alone,
      [](S s) { return text(s.b.record_event(event_handle::none, s.stream())); });
  add("event-destroy-none", "destroy event 0", company::alone,
      [](S s) { return text(s.b.destroy_event(event_handle::none)); });
  add("event-destroy-pending", "destroy an event that is recorded and not waited for", company::any,
      [](S s) {
        const stream_handle stream = s.stream();
        const auto event = s.b.create_event();
        if (!event) return "create: " + text(event);
        if (const status outcome = s.b.record_event(*event, stream); !outcome) return text(outcome);
        return text(s.b.destroy_event(*event));
      });
  add("stream-destroy-default", "destroy the default stream", company::alone,
      [](S s) { return text(s.b.destroy_stream(stream_handle::default_stream)); });
  add("stream-sync-default", "synchronise the default stream", company::any,
      [](S s) { return text(s.b.synchronize_stream(stream_handle::default_stream)); });
}

template <class B>
void add_share_probes(probe_list<B>& to) {
  using S = scratch<B>&;
  const adder<B> add{to};
  add("export-plain", "export memory that was not made to be shared", company::any,
      [](S s) { return text(s.b.export_handle(s.memory(1), share_kind::posix_fd)); });
  add("export-other-kind", "export a descriptor's memory as a fabric handle", company::any,
      [](S s) {
        return text(s.b.export_handle(s.memory(1, share_kind::posix_fd), share_kind::fabric));
      });
  add("export-none", "export handle 0", company::alone,
      [](S s) { return text(s.b.export_handle(physical_handle::none, share_kind::posix_fd)); });
  add("import-own", "import a descriptor of one's own, write here and read there", company::any,
      [](S s) {
        const physical_handle handle = s.memory(1, share_kind::posix_fd);
        const auto shared = s.b.export_handle(handle, share_kind::posix_fd);
        if (!shared) return "export: " + text(shared);
        const auto other = s.keep(s.b.import_handle(*shared));
        if (!other) return text(other);
        const address_range range = s.room(2);
        s.join(range.base, handle, 1);
        s.join(range.base + s.g, *other, 1);
        s.open(range);
        return s.carries(range.base, range.base + s.g);
      });
  add("import-bad-descriptor", "import descriptor -1", company::alone, [](S s) {
    shared_handle shared;
    shared.kind = share_kind::posix_fd;
    return text(s.keep(s.b.import_handle(shared)));
  });
  add("import-zero-fabric", "import a fabric handle of zeros", company::alone, [](S s) {
    shared_handle shared;
    shared.kind = share_kind::fabric;
    return text(s.keep(s.b.import_handle(shared)));
  });
}

export template <class B>
probe_list<B> all_probes() {
  probe_list<B> all;
  add_reserve_probes(all);
  add_free_probes(all);
  add_create_probes(all);
  add_kind_probes(all);
  add_release_probes(all);
  add_retain_probes(all);
  add_map_probes(all);
  add_shape_probes(all);
  add_unmap_probes(all);
  add_unmap_border_probes(all);
  add_access_probes(all);
  add_grant_probes(all);
  add_get_access_probes(all);
  add_byte_probes(all);
  add_forbidden_byte_probes(all);
  add_copy_probes(all);
  add_work_probes(all);
  if constexpr (sharing_backend<B>) add_share_probes(all);
  return all;
}

/// The answer in words; a refused set-up call is an answer too.
export template <class B>
std::string answer(B& driver, const probe<B>& asked) {
  try {
    scratch<B> s(driver);
    return asked.run(s);
  } catch (const setup_failure& failure) {
    return "set-up failed: " + text(failure.why);
  }
}

}  // namespace vmm::fidelity
