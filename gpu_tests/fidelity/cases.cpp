// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.fidelity;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm::fidelity {
namespace {

using S = scratch&;
constexpr company alone = company::alone;

constexpr probe of_ranges[] = {
    {"reserve-zero", "reserve 0 bytes", [](S s) { return s.reserve({}); }},
    {"reserve-page", "reserve 4 KiB", [](S s) { return s.reserve({.size_bytes = 4096}); }},
    {"reserve-odd", "reserve a granule and one byte",
     [](S s) { return s.reserve({.size_bytes = s.g + 1}); }},
    {"reserve-half", "reserve half a granule",
     [](S s) { return s.reserve({.size_bytes = s.g / 2}); }},
    {"reserve-align-three", "reserve with an alignment that is not a power of two",
     [](S s) { return s.reserve({.size_bytes = s.g, .alignment_bytes = 3 * s.g}); }},
    {"reserve-align-page", "reserve with an alignment of 4 KiB",
     [](S s) { return s.reserve({.size_bytes = s.g, .alignment_bytes = 4096}); }},
    {"reserve-align-one", "reserve with an alignment of 1",
     [](S s) { return s.reserve({.size_bytes = s.g, .alignment_bytes = 1}); }},
    {"reserve-align-1gib", "reserve with an alignment of 1 GiB",
     [](S s) {
       const auto made = s.try_reserve({.size_bytes = s.g, .alignment_bytes = 1ull << 30});
       if (!made) return text(made);
       return std::string(made->base.value % (1ull << 30) == 0 ? "SUCCESS" : "SUCCESS unaligned");
     }},
    {"reserve-64tib", "reserve 64 TiB", [](S s) { return s.reserve({.size_bytes = 1ull << 46}); }},
    {"reserve-128tib", "reserve 128 TiB",
     [](S s) { return s.reserve({.size_bytes = 1ull << 47}); }},
    {"reserve-huge", "reserve 2^62 bytes",
     [](S s) { return s.reserve({.size_bytes = 1ull << 62}); }},
    {"reserve-hint-taken", "reserve at the address of a live reservation",
     [](S s) {
       const address_range first = s.room(1);
       const auto made = s.try_reserve({.size_bytes = s.g, .hint = first.base});
       if (!made) return text(made);
       return std::string(made->base == first.base ? "SUCCESS same address" : "SUCCESS");
     }},
    {"reserve-hint-odd", "reserve at an unaligned address",
     [](S s) {
       const address_range first = s.room(4);
       return s.reserve({.size_bytes = s.g, .hint = first.base + 4097});
     }},
    {"free-zero", "free 0 bytes of a reservation",
     [](S s) { return text(s.b.free_reservation({s.room(2).base, 0})); }},
    {"free-half", "free the first half of a reservation",
     [](S s) { return text(s.b.free_reservation({s.room(2).base, s.g})); }},
    {"free-second-half", "free the second half of a reservation",
     [](S s) { return text(s.b.free_reservation({s.room(2).base + s.g, s.g})); }},
    {"free-double-size", "free twice a reservation's size",
     [](S s) { return text(s.b.free_reservation({s.room(2).base, 4 * s.g})); }},
    {"free-twice", "free a reservation again",
     [](S s) {
       const address_range range = s.room(1);
       s.need(s.try_free(range), "first: ");
       return text(s.b.free_reservation(range));
     }},
    {"free-never", "free addresses that were never reserved",
     [](S s) { return text(s.b.free_reservation({{1ull << 40}, s.g})); }},
    {"free-null", "free address 0", [](S s) { return text(s.b.free_reservation({{0}, s.g})); }},
    {"free-mapped", "free a reservation with a live mapping",
     [](S s) { return text(s.try_free(s.mapped(1))); }},
};

constexpr probe of_memory[] = {
    {"create-zero", "create 0 bytes", [](S s) { return s.create(0); }},
    {"create-byte", "create 1 byte", [](S s) { return s.create(1); }},
    {"create-odd", "create a granule and one byte", [](S s) { return s.create(s.g + 1); }},
    {"create-half", "create half a granule", [](S s) { return s.create(s.g / 2); }},
    {"create-too-much", "create a granule more than the device has in all",
     [](S s) {
       const std::uint64_t total_bytes =
           s.need(s.b.query_memory(s.b.home()), "query: ").total_bytes;
       return s.create(total_bytes / s.g * s.g + s.g);
     }},
    {"create-huge", "create 2^62 bytes", [](S s) { return s.create(1ull << 62); }},
    {"create-device-99", "create on device 99", [](S s) { return s.create(s.g, device(99)); }},
    {"create-device-minus", "create on device -1", [](S s) { return s.create(s.g, device(-1)); }},
    {"create-host", "create on the host", [](S s) { return s.create(s.g, host()); }},
    {"create-node-0", "create on host NUMA node 0",
     [](S s) { return s.create(s.g, host_node(0)); }},
    {"create-node-99", "create on host NUMA node 99",
     [](S s) { return s.create(s.g, host_node(99)); }},
    {"create-fd", "create to be shared by descriptor",
     [](S s) { return s.create(s.g, s.b.home(), share_kind::posix_fd); }},
    {"create-fabric", "create to be shared by fabric handle",
     [](S s) { return s.create(s.g, s.b.home(), share_kind::fabric); }},
    {"create-win32", "create to be shared by Windows handle",
     [](S s) { return s.create(s.g, s.b.home(), share_kind::win32); }},
    {"create-host-fd", "create on the host, to be shared by descriptor",
     [](S s) { return s.create(s.g, host(), share_kind::posix_fd); }},
    {"create-node-fd", "create on a NUMA node, to be shared by descriptor",
     [](S s) { return s.create(s.g, host_node(0), share_kind::posix_fd); }},
    {"create-compressible", "create compressible memory, and what was granted",
     [](S s) {
       const physical_request request{.size_bytes = s.g, .where = s.b.home(), .compressible = true};
       const bool granted = s.granted(request).compressible;
       return std::string(granted ? "SUCCESS compressible" : "SUCCESS plain");
     }},
    {"create-rdma", "create memory for RDMA, and what was granted",
     [](S s) {
       const physical_request request{.size_bytes = s.g, .where = s.b.home(), .rdma_capable = true};
       return std::string(s.granted(request).rdma_capable ? "SUCCESS rdma" : "SUCCESS plain");
     }},
    {"granularity-device-99", "ask for the granularity of device 99",
     [](S s) { return text(s.b.query_granularity({.where = device(99)})); }},
    {"granularity-node-0", "ask for the granularity of host NUMA node 0",
     [](S s) {
       const granularity unit = s.need(s.b.query_granularity({.where = host_node(0)}));
       return "SUCCESS " + std::to_string(unit.minimum_bytes);
     }},
    {"memory-device-99", "ask for the memory of device 99",
     [](S s) { return text(s.b.query_memory(device(99))); }},
    {"release-none", "release handle 0",
     [](S s) { return text(s.b.release(physical_handle::none)); }, alone},
    {"release-garbage", "release a number that is not a handle",
     [](S s) { return text(s.b.release(static_cast<physical_handle>(0x1234567))); }, alone},
    {"release-twice", "release a handle again", [](S s) { return text(s.b.release(s.released())); },
     alone},
    {"release-mapped", "release a mapped handle, then write and read through the mapping",
     [](S s) {
       const auto [range, handle] = s.joined();
       s.open(range);
       s.need(s.try_release(handle));
       return s.carries(range.base, range.base);
     }},
    {"release-mapped-access", "release a mapped handle, then set access",
     [](S s) {
       const auto [range, handle] = s.joined();
       s.need(s.try_release(handle));
       return s.allow(range);
     }},
    {"properties-none", "ask for the properties of handle 0",
     [](S s) { return text(s.b.get_properties(physical_handle::none)); }, alone},
    {"properties-released", "ask for the properties of a released handle",
     [](S s) { return text(s.b.get_properties(s.released())); }, alone},
    {"retain-inside", "retain from an address in the middle of a mapping",
     [](S s) { return text(s.keep(s.b.retain(s.mapped(2).base + s.g + 17))); }},
    {"retain-reserved", "retain from an address with nothing behind it",
     [](S s) { return text(s.keep(s.b.retain(s.room(1).base))); }},
    {"retain-never", "retain from an address that was never reserved",
     [](S s) { return text(s.keep(s.b.retain({1ull << 40}))); }},
    {"retain-null", "retain from address 0", [](S s) { return text(s.keep(s.b.retain({}))); }},
    {"retain-released", "retain after the handle was released",
     [](S s) {
       const auto [range, handle] = s.joined();
       s.need(s.try_release(handle));
       return text(s.keep(s.b.retain(range.base)));
     }},
};

constexpr probe of_mappings[] = {
    {"map-unreserved", "map at an address that was never reserved",
     [](S s) { return s.map({{1ull << 40}, s.g, s.memory(1), 0}); }},
    {"map-null", "map at address 0", [](S s) { return s.map({{}, s.g, s.memory(1), 0}); }},
    {"map-offset", "map the second granule of a handle of two",
     [](S s) { return s.map({s.room(1).base, s.g, s.memory(2), s.g}); }},
    {"map-offset-page", "map from 4 KiB inside a handle",
     [](S s) { return s.map({s.room(1).base, s.g, s.memory(2), 4096}); }},
    {"map-offset-end", "map from the end of a handle",
     [](S s) { return s.map({s.room(1).base, s.g, s.memory(1), s.g}); }},
    {"map-short", "map the first granule of a handle of two",
     [](S s) { return s.map({s.room(1).base, s.g, s.memory(2), 0}); }},
    {"map-long", "map two granules of a handle of one",
     [](S s) { return s.map({s.room(2).base, 2 * s.g, s.memory(1), 0}); }},
    {"map-zero", "map 0 bytes", [](S s) { return s.map({s.room(1).base, 0, s.memory(1), 0}); }},
    {"map-odd-size", "map a granule less 4 KiB",
     [](S s) { return s.map({s.room(1).base, s.g - 4096, s.memory(1), 0}); }},
    {"map-odd-address", "map at 4 KiB inside a reservation",
     [](S s) { return s.map({s.room(2).base + 4096, s.g, s.memory(1), 0}); }},
    {"map-over", "map over a mapping",
     [](S s) { return s.map({s.mapped(1).base, s.g, s.memory(1), 0}); }},
    {"map-over-half", "map over the second half of a mapping",
     [](S s) {
       const address_range range = s.room(3);
       s.put(range.base, 2);
       return s.map({range.base + s.g, 2 * s.g, s.memory(2), 0});
     }},
    {"map-past-end", "map past the end of a reservation",
     [](S s) { return s.map({s.room(1).base, 2 * s.g, s.memory(2), 0}); }},
    {"map-past-end-inside", "map from the last of four granules past the end",
     [](S s) { return s.map({s.room(4).base + 3 * s.g, 2 * s.g, s.memory(2), 0}); }},
    {"map-across-rooms", "map over the border of two adjacent reservations",
     [](S s) {
       const address_range both = s.room(4);
       s.need(s.try_free(both), "free: ");
       const auto low = s.try_reserve({.size_bytes = 2 * s.g, .hint = both.base});
       const auto high = s.try_reserve({.size_bytes = 2 * s.g, .hint = both.base + 2 * s.g});
       if (!low || !high || high->base != low->end()) return std::string("not adjacent");
       return s.map({low->base + s.g, 2 * s.g, s.memory(2), 0});
     }},
    {"map-alias", "map one handle at two addresses, write at one, read at the other",
     [](S s) {
       const address_range range = s.room(2);
       const physical_handle handle = s.memory(1);
       s.join(range.base, handle, 1);
       s.need(s.try_map({range.base + s.g, s.g, handle, 0}));
       s.open(range);
       return s.carries(range.base, range.base + s.g);
     }},
    {"map-none", "map handle 0",
     [](S s) { return s.map({s.room(1).base, s.g, physical_handle::none, 0}); }, alone},
    {"map-released", "map a released handle",
     [](S s) { return s.map({s.room(1).base, s.g, s.released(), 0}); }, alone},
    {"map-retained", "map a handle that was retained from an address",
     [](S s) {
       const physical_handle handle = s.need(s.keep(s.b.retain(s.mapped(1).base)), "retain: ");
       return s.map({s.room(1).base, s.g, handle, 0});
     }},
    {"map-freed-room", "map in a reservation that was freed",
     [](S s) {
       const address_range range = s.room(1);
       s.need(s.try_free(range), "first: ");
       return s.map({range.base, s.g, s.memory(1), 0});
     }},
    {"unmap-never-mapped", "unmap a reservation that was never mapped",
     [](S s) { return s.unmap(s.room(2)); }},
    {"unmap-never-mapped-part", "unmap half of a reservation that was never mapped",
     [](S s) { return s.unmap({s.room(2).base, s.g}); }},
    {"unmap-twice", "unmap again",
     [](S s) {
       const address_range range = s.mapped(1);
       s.need(s.try_unmap(range), "first: ");
       return s.unmap(range);
     }},
    {"unmap-first-half", "unmap the first half of a mapping",
     [](S s) { return s.unmap({s.mapped(2).base, s.g}); }},
    {"unmap-second-half", "unmap the second half of a mapping",
     [](S s) { return s.unmap({s.mapped(2).base + s.g, s.g}); }},
    {"unmap-two", "unmap two adjacent mappings",
     [](S s) { return s.unmap(s.room_with(2, {0, 1})); }},
    {"unmap-one-and-half", "unmap a mapping and half of the next",
     [](S s) {
       const address_range range = s.room_with(3, {0});
       s.put(range.base + s.g, 2);
       return s.unmap({range.base, 2 * s.g});
     }},
    {"unmap-hole-between", "unmap two mappings with a hole between them",
     [](S s) { return s.unmap(s.room_with(3, {0, 2})); }},
    {"unmap-hole-after", "unmap a mapping and the hole after it",
     [](S s) { return s.unmap(s.room_with(2, {0})); }},
    {"unmap-hole-before", "unmap a mapping and the hole before it",
     [](S s) { return s.unmap(s.room_with(2, {1})); }},
    {"unmap-unreserved", "unmap addresses that were never reserved",
     [](S s) { return s.unmap({{1ull << 40}, s.g}); }},
    {"unmap-null", "unmap address 0", [](S s) { return s.unmap({{}, s.g}); }},
    {"unmap-zero", "unmap 0 bytes of a mapping",
     [](S s) { return text(s.b.unmap({s.mapped(1).base, 0})); }},
    {"unmap-odd-size", "unmap a granule less 4 KiB of a mapping",
     [](S s) { return s.unmap({s.mapped(1).base, s.g - 4096}); }},
    {"unmap-odd-address", "unmap from 4 KiB inside a mapping",
     [](S s) { return s.unmap({s.mapped(1).base + 4096, s.g}); }},
    {"unmap-past-end", "unmap a mapping and addresses past its reservation",
     [](S s) { return s.unmap({s.mapped(1).base, 1024 * s.g}); }},
};

constexpr probe of_rights[] = {
    {"access-first-half", "set access on the first half of a mapping",
     [](S s) { return s.allow({s.mapped(2).base, s.g}, access::read); }},
    {"access-second-half", "set access on the second half of a mapping",
     [](S s) { return s.allow({s.mapped(2).base + s.g, s.g}, access::read); }},
    {"access-two", "set access on two adjacent mappings",
     [](S s) { return s.allow(s.room_with(2, {0, 1})); }},
    {"access-hole", "set access over a hole between two mappings",
     [](S s) { return s.allow(s.room_with(3, {0, 2})); }},
    {"access-hole-before", "set access over a hole and the mapping after it",
     [](S s) { return s.allow(s.room_with(2, {1})); }},
    {"access-hole-after", "set access over a mapping and the hole after it",
     [](S s) { return s.allow(s.room_with(2, {0})); }},
    {"access-unmapped", "set access on a reservation that is not mapped",
     [](S s) { return s.allow(s.room(1)); }},
    {"access-unreserved", "set access on addresses that were never reserved",
     [](S s) { return s.allow({{1ull << 40}, s.g}); }},
    {"access-zero", "set access on 0 bytes of a mapping",
     [](S s) { return s.allow({s.mapped(1).base, 0}); }},
    {"access-odd-size", "set access on a granule less 4 KiB of a mapping",
     [](S s) { return s.allow({s.mapped(1).base, s.g - 4096}); }},
    {"access-no-grants", "set access with an empty list",
     [](S s) { return text(s.b.set_access(s.mapped(1), {})); }},
    {"access-same-twice", "set access with two rights for one device",
     [](S s) {
       const access_grant two[] = {{s.b.home(), access::read_write}, {s.b.home(), access::read}};
       const address_range range = s.mapped(1);
       s.need(s.b.set_access(range, two));
       return s.access_at(range.base);
     }},
    {"access-device-99", "set access for device 99",
     [](S s) { return s.allow(s.mapped(1), access::read_write, device(99)); }},
    {"access-host-on-device", "set access for the host on device memory",
     [](S s) { return s.allow(s.mapped(1), access::read_write, host()); }},
    {"access-node-on-device", "set access for a NUMA node on device memory",
     [](S s) { return s.allow(s.mapped(1), access::read_write, host_node(0)); }},
    {"access-read", "set access to read, and ask",
     [](S s) { return s.access_at(s.mapped(1, access::read).base); }},
    {"access-none", "set access to none, and ask",
     [](S s) {
       const address_range range = s.mapped(1);
       s.need(s.try_access(range, s.b.home(), access::none));
       return s.access_at(range.base);
     }},
    {"access-on-node-memory", "set access for device and node on NUMA memory",
     [](S s) {
       const auto unit = s.b.query_granularity({.where = host_node(0)});
       const std::uint64_t size = unit ? round_up(s.g, unit->minimum_bytes) : s.g;
       const auto made =
           s.need(s.try_create({.size_bytes = size, .where = host_node(0)}), "create: ");
       const address_range range = s.need(s.try_reserve({.size_bytes = size}), "reserve: ");
       s.need(s.try_map({range.base, size, made, 0}), "map: ");
       const access_grant both[] = {{s.b.home(), access::read_write},
                                    {host_node(0), access::read_write}};
       return text(s.b.set_access(range, both));
     }},
    {"get-access-fresh", "ask for the access of a fresh mapping",
     [](S s) { return s.access_at(s.room_with(1, {0}).base); }},
    {"get-access-middle", "ask for the access of an odd address inside a mapping",
     [](S s) { return s.access_at(s.mapped(2).base + s.g + 17); }},
    {"get-access-unmapped", "ask for the access of a reservation that is not mapped",
     [](S s) { return s.access_at(s.room(1).base); }},
    {"get-access-unreserved", "ask for the access of an address that was never reserved",
     [](S s) { return s.access_at({1ull << 40}); }},
    {"get-access-device-99", "ask for the access of device 99",
     [](S s) { return text(s.b.get_access(s.mapped(1).base, device(99))); }},
    {"get-access-remapped", "ask for the access after unmapping and mapping again",
     [](S s) {
       const address_range range = s.mapped(1);
       s.need(s.try_unmap(range), "unmap: ");
       s.put(range.base, 1);
       return s.access_at(range.base);
     }},
};

constexpr probe of_contents[] = {
    {"bytes-fresh", "fresh memory reads as zero",
     [](S s) {
       std::array<std::byte, 64> out{};
       out.fill(std::byte{1});
       s.need(s.b.read(out, s.mapped(1).base + s.g / 2));
       return std::string(out == decltype(out){} ? "SUCCESS zero" : "SUCCESS not zero");
     }},
    {"bytes-zero-size", "write 0 bytes", [](S s) { return text(s.b.write(s.mapped(1).base, {})); }},
    {"bytes-odd", "write and read 8 bytes at an odd address over a border of two handles",
     [](S s) {
       const address_range range = s.room_with(2, {0, 1});
       s.open(range);
       return s.carries(range.base + (s.g - 3), range.base + (s.g - 3));
     }},
    {"bytes-read-only-read", "read memory that the device may only read",
     [](S s) { return s.read(s.mapped(1, access::read).base); }},
    {"bytes-unmapped-write", "write where nothing is mapped",
     [](S s) { return s.write(s.room(1).base); }, alone},
    {"bytes-unmapped-read", "read where nothing is mapped",
     [](S s) { return s.read(s.room(1).base); }, alone},
    {"bytes-unreserved-read", "read an address that was never reserved",
     [](S s) { return s.read({1ull << 40}); }, alone},
    {"bytes-past-end", "write over the end of a mapping into a hole",
     [](S s) {
       const address_range range = s.room_with(2, {0});
       s.open({range.base, s.g});
       return s.write(range.base + (s.g - 4));
     },
     alone},
    {"bytes-no-access-write", "write through a mapping without access",
     [](S s) { return s.write(s.room_with(1, {0}).base); }, alone},
    {"bytes-no-access-fill", "fill through a mapping without access",
     [](S s) { return s.fill(s.room_with(1, {0})); }, alone},
    {"bytes-read-only-write", "write memory that the device may only read",
     [](S s) { return s.write(s.mapped(1, access::read).base); }, alone},
    {"bytes-read-only-fill", "fill memory that the device may only read",
     [](S s) { return s.fill(s.mapped(1, access::read)); }, alone},
    {"bytes-unmapped-fill", "fill where nothing is mapped", [](S s) { return s.fill(s.room(1)); },
     alone},
    {"bytes-copy-from-hole", "copy from where nothing is mapped",
     [](S s) {
       const address target = s.mapped(1).base;
       return s.copy(target, s.room(1).base, s.g);
     },
     alone},
    {"bytes-copy-zero", "copy 0 bytes",
     [](S s) {
       const address_range range = s.mapped(2);
       return s.copy(range.base, range.base + s.g, 0);
     }},
    {"bytes-fill-zero", "fill 0 bytes", [](S s) { return s.fill({s.mapped(1).base, 0}); }},
    {"bytes-unmapped-after-fill", "fill, finish, unmap, map again: the bytes stay",
     [](S s) {
       const auto [range, handle] = s.joined();
       s.open(range);
       if (const std::string filled = s.fill(range, 0x5a); filled != "SUCCESS")
         return "fill: " + filled;
       s.need(s.try_unmap(range), "unmap: ");
       s.join(range.base, handle, 1);
       s.open(range);
       std::array<std::byte, 1> out{};
       s.need(s.b.read(out, range.base + (s.g - 1)));
       return std::string(out[0] == std::byte{0x5a} ? "SUCCESS" : "other contents");
     }},
};

constexpr probe of_work[] = {
    {"event-never-recorded", "ask for an event that was never recorded",
     [](S s) { return text(s.b.query_event(s.event())); }},
    {"event-wait-never-recorded", "wait for an event that was never recorded",
     [](S s) { return text(s.b.wait_event(s.stream(), s.event())); }},
    {"event-sync-never-recorded", "synchronise with an event that was never recorded",
     [](S s) { return text(s.b.synchronize_event(s.event())); }},
    {"event-recorded-twice", "record an event again, and ask",
     [](S s) {
       const stream_handle stream = s.stream();
       const event_handle event = s.event();
       for (int i = 0; i < 2; ++i) s.need(s.b.record_event(event, stream));
       s.need(s.b.synchronize_event(event));
       return text(s.b.query_event(event));
     }},
    {"all-recorded", "record an event of all work, wait for it, and ask",
     [](S s) {
       const event_handle event = s.event();
       s.need(s.b.record_all(event));
       s.need(s.b.synchronize_event(event));
       return text(s.b.query_event(event));
     }},
    {"all-waited-for", "let a stream wait for an event of all work",
     [](S s) {
       const event_handle event = s.event();
       s.need(s.b.record_all(event));
       return text(s.b.wait_event(s.stream(), event));
     }},
    {"all-record-none", "record event 0 after all work",
     [](S s) { return text(s.b.record_all(event_handle::none)); }, alone},
    {"event-query-none", "ask for event 0",
     [](S s) { return text(s.b.query_event(event_handle::none)); }, alone},
    {"event-record-none", "record event 0",
     [](S s) { return text(s.b.record_event(event_handle::none, s.stream())); }, alone},
    {"event-destroy-none", "destroy event 0",
     [](S s) { return text(s.b.destroy_event(event_handle::none)); }, alone},
    {"event-destroy-pending", "destroy an event that is recorded and not waited for",
     [](S s) {
       const stream_handle stream = s.stream();
       const event_handle event = s.need(s.b.create_event(), "create: ");
       s.need(s.b.record_event(event, stream));
       return text(s.b.destroy_event(event));
     }},
    {"stream-destroy-default", "destroy the default stream",
     [](S s) { return text(s.b.destroy_stream(stream_handle::default_stream)); }, alone},
    {"stream-sync-default", "synchronise the default stream",
     [](S s) { return text(s.b.synchronize_stream(stream_handle::default_stream)); }},
};

constexpr probe of_shares[] = {
    {"export-plain", "export memory that was not made to be shared",
     [](S s) { return text(s.b.export_handle(s.memory(1), share_kind::posix_fd)); }},
    {"export-other-kind", "export a descriptor's memory as a fabric handle",
     [](S s) {
       return text(s.b.export_handle(s.memory(1, share_kind::posix_fd), share_kind::fabric));
     }},
    {"export-none", "export handle 0",
     [](S s) { return text(s.b.export_handle(physical_handle::none, share_kind::posix_fd)); },
     alone},
    {"import-own", "import a descriptor of one's own, write here and read there",
     [](S s) {
       const physical_handle handle = s.memory(1, share_kind::posix_fd);
       const auto shared = s.need(s.b.export_handle(handle, share_kind::posix_fd), "export: ");
       const physical_handle other = s.need(s.keep(s.b.import_handle(shared)));
       const address_range range = s.room(2);
       s.join(range.base, handle, 1);
       s.join(range.base + s.g, other, 1);
       s.open(range);
       return s.carries(range.base, range.base + s.g);
     }},
    {"import-bad-descriptor", "import descriptor -1",
     [](S s) { return text(s.keep(s.b.import_handle({.kind = share_kind::posix_fd}))); }, alone},
    {"import-zero-fabric", "import a fabric handle of zeros",
     [](S s) { return text(s.keep(s.b.import_handle({.kind = share_kind::fabric}))); }, alone},
};

}  // namespace

std::vector<probe> all_probes() {
  std::vector<probe> all;
  for (const std::span<const probe> each :
       {std::span<const probe>(of_ranges), std::span<const probe>(of_memory),
        std::span<const probe>(of_mappings), std::span<const probe>(of_rights),
        std::span<const probe>(of_contents), std::span<const probe>(of_work),
        std::span<const probe>(of_shares)})
    all.insert(all.end(), each.begin(), each.end());
  return all;
}

std::string answer(driver_ref driver, const probe& asked) {
  try {
    scratch s(driver);
    return asked.run(s);
  } catch (const setup_failure& failure) {
    return "set-up failed: " + text(failure.why);
  } catch (const said& early) {
    return early.text;
  }
}

}  // namespace vmm::fidelity
