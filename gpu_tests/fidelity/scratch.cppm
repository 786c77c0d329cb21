// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm.fidelity:scratch - what one probe of a driver makes, and its undoing.
//
// - Whatever a try_ call made is recorded, so that a call that was expected to be refused leaves
//   nothing either.
// - Set-up calls (room, memory, join, open, ...) throw setup_failure when the driver refuses
//   them.
//
// Thread safety: one scratch a thread. Cost: the driver's, and a list entry for each object.
export module vmm.fidelity:scratch;

import vmm.backend;
import vmm.std;

namespace vmm::fidelity {

export struct setup_failure {
  error why;
};

/// "SUCCESS", or the driver's name for its code without the common beginning, or vmm's name if the
/// driver has none.
export inline std::string text(const error& failure) {
  const std::string_view name = failure.native_name;
  constexpr std::string_view common = "CUDA_ERROR_";
  if (name.empty()) return std::string("vmm: ") + name_of(failure.code);
  return std::string(name.starts_with(common) ? name.substr(common.size()) : name);
}
export inline std::string text(const status& outcome) {
  return outcome ? "SUCCESS" : text(outcome.error());
}
export template <class T>
std::string text(const result<T>& outcome) {
  return outcome ? "SUCCESS" : text(outcome.error());
}
export inline std::string text(const result<access>& outcome) {
  if (!outcome) return text(outcome.error());
  if (*outcome == access::none) return "SUCCESS none";
  return *outcome == access::read ? "SUCCESS read" : "SUCCESS read_write";
}
export inline std::string text(const result<bool>& outcome) {
  if (!outcome) return text(outcome.error());
  return *outcome ? "SUCCESS finished" : "SUCCESS unfinished";
}

/// The result of a probe before its last call: the words, and why a call was refused.
export struct said {
  std::string text;
};

export class scratch {
 public:
  explicit scratch(driver_ref on) : driver(on) {
    const result<granularity> unit = b.query_granularity({.where = b.home()});
    if (!unit) throw setup_failure{unit.error()};
    g = unit->minimum_bytes;
  }
  ~scratch() {
    for (const stream_handle each : streams_) {
      static_cast<void>(b.synchronize_stream(each));
      static_cast<void>(b.destroy_stream(each));
    }
    for (const event_handle each : events_) static_cast<void>(b.destroy_event(each));
    for (const address_range& each : mappings_) static_cast<void>(b.unmap(each));
    for (const physical_handle each : handles_) static_cast<void>(b.release(each));
    for (const address_range& each : rooms_) static_cast<void>(b.free_reservation(each));
  }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;

  // ---- set-up: must work ----
  address_range room(std::uint64_t granules) {
    return must(try_reserve({.size_bytes = granules * g}));
  }
  physical_handle memory(std::uint64_t granules, share_kind share = share_kind::none) {
    return must(try_create({.size_bytes = granules * g, .where = b.home(), .shareable = share}));
  }
  void join(address at, physical_handle handle, std::uint64_t granules) {
    must(try_map({at, granules * g, handle, 0}));
  }
  void open(address_range range, access rights = access::read_write) {
    must(try_access(range, b.home(), rights));
  }
  /// `granules` of fresh memory, one handle, usable by the home device.
  address_range mapped(std::uint64_t granules, access rights = access::read_write) {
    const address_range range = room(granules);
    put(range.base, granules);
    open(range, rights);
    return range;
  }
  /// `granules` of fresh memory at an address, without access.
  void put(address at, std::uint64_t granules) { join(at, memory(granules), granules); }
  /// `granules` with a fresh one mapped at each of `places`, without access.
  address_range room_with(std::uint64_t granules, std::initializer_list<std::uint64_t> places) {
    const address_range range = room(granules);
    for (const std::uint64_t each : places) put(range.base + each * g, 1);
    return range;
  }
  struct mapped_handle {
    address_range range;
    physical_handle handle;
  };
  /// A mapped granule without access.
  mapped_handle joined() {
    const mapped_handle made{room(1), memory(1)};
    join(made.range.base, made.handle, 1);
    return made;
  }
  physical_handle released() {
    const physical_handle handle = memory(1);
    need(try_release(handle), "first: ");
    return handle;
  }
  event_handle event() {
    const event_handle made = must(b.create_event());
    events_.push_back(made);
    return made;
  }
  stream_handle stream() {
    const stream_handle made = must(b.create_stream());
    streams_.push_back(made);
    return made;
  }

  // ---- calls whose refusal is the result of the probe ----
  void need(const status& outcome, const char* words = "") {
    if (!outcome) throw said{words + text(outcome)};
  }
  template <class T>
  T need(const result<T>& outcome, const char* words = "") {
    if (!outcome) throw said{words + text(outcome)};
    return *outcome;
  }
  /// What the driver granted of a request.
  physical_properties granted(const physical_request& request) {
    return need(b.get_properties(need(try_create(request))), "read back: ");
  }

  // ---- the calls under test ----
  result<address_range> try_reserve(const reserve_request& request) {
    return keep(b.reserve(request));
  }
  status try_free(address_range range) { return forget_room(range, b.free_reservation(range)); }
  result<physical_handle> try_create(const physical_request& request) {
    return keep(b.create(request));
  }
  status try_release(physical_handle handle) { return forget(handle, b.release(handle)); }
  status try_map(const map_request& request) { return keep_mapping(request, b.map(request)); }
  status try_unmap(address_range range) { return forget_mappings(range, b.unmap(range)); }
  status try_access(address_range range, location grantee, access rights) {
    const access_grant one[] = {{grantee, rights}};
    return b.set_access(range, one);
  }

  // ---- and their results in words ----
  std::string reserve(const reserve_request& request) { return text(try_reserve(request)); }
  std::string create(std::uint64_t size_bytes) { return create(size_bytes, b.home()); }
  std::string create(std::uint64_t size_bytes, location where,
                     share_kind share = share_kind::none) {
    return text(try_create({.size_bytes = size_bytes, .where = where, .shareable = share}));
  }
  std::string map(const map_request& request) { return text(try_map(request)); }
  std::string unmap(address_range range) { return text(try_unmap(range)); }
  std::string allow(address_range range, access rights = access::read_write) {
    return allow(range, rights, b.home());
  }
  std::string allow(address_range range, access rights, location grantee) {
    return text(try_access(range, grantee, rights));
  }
  std::string access_at(address at) { return text(b.get_access(at, b.home())); }

  std::string write(address at) { return text(b.write(at, std::array<std::byte, 8>{})); }
  std::string read(address at) {
    std::array<std::byte, 8> bytes{};
    return text(b.read(bytes, at));
  }
  std::string fill(address_range range, std::uint8_t value = 7) {
    const stream_handle on = stream();
    return finish(b.fill({range, value, on}), on);
  }
  std::string copy(address target, address source, std::uint64_t size_bytes) {
    const stream_handle on = stream();
    return finish(b.copy({target, source, size_bytes, on}), on);
  }

  // ---- the records, for a caller that makes the call itself; each returns its argument ----
  result<address_range> keep(result<address_range> made) {
    if (made) rooms_.push_back(*made);
    return made;
  }
  result<physical_handle> keep(result<physical_handle> made) {
    if (made) handles_.push_back(*made);
    return made;
  }
  status keep_mapping(const map_request& request, status outcome) {
    if (outcome) mappings_.push_back({request.at, request.size_bytes});
    return outcome;
  }
  status forget_room(address_range range, status outcome) {
    if (outcome) {
      std::erase_if(rooms_, [&](const address_range& room) { return room.base == range.base; });
    }
    return outcome;
  }
  status forget(physical_handle handle, status outcome) {
    const auto found = std::find(handles_.begin(), handles_.end(), handle);
    if (outcome && found != handles_.end()) handles_.erase(found);
    return outcome;
  }
  status forget_mappings(address_range range, status outcome) {
    if (outcome) {
      std::erase_if(mappings_, [&](const address_range& one) { return range.contains(one); });
    }
    return outcome;
  }

  /// Writes eight bytes and reads them back from another place: "SUCCESS" when they are the same.
  std::string carries(address to, address from) {
    constexpr std::array<std::byte, 8> sent{std::byte{0x5a}, std::byte{1}, std::byte{2},
                                            std::byte{3},    std::byte{4}, std::byte{5},
                                            std::byte{6},    std::byte{7}};
    if (const status outcome = b.write(to, sent); !outcome) return text(outcome);
    std::array<std::byte, 8> received{};
    if (const status outcome = b.read(received, from); !outcome) return text(outcome);
    return received == sent ? "SUCCESS" : "other contents";
  }
  /// What device work on `stream` came to.
  std::string finish(const status& submitted, stream_handle stream) {
    return submitted ? text(b.synchronize_stream(stream)) : text(submitted);
  }

  driver_ref driver;
  driver_interface& b = *driver;
  std::uint64_t g = 0;  // bytes in a granule

 private:
  template <class T>
  static T must(const result<T>& outcome) {
    if (!outcome) throw setup_failure{outcome.error()};
    return *outcome;
  }
  static void must(const status& outcome) {
    if (!outcome) throw setup_failure{outcome.error()};
  }

  std::vector<address_range> rooms_;
  std::vector<address_range> mappings_;
  std::vector<physical_handle> handles_;
  std::vector<event_handle> events_;
  std::vector<stream_handle> streams_;
};

}  // namespace vmm::fidelity
