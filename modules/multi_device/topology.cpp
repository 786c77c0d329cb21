// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.multi_device;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

const char* name_of(link_kind link) noexcept {
  switch (link) {
    case link_kind::none: return "none";
    case link_kind::itself: return "itself";
    case link_kind::peer: return "peer";
    case link_kind::host: return "host";
  }
  check(false, "a link is of no kind");
  return "";
}

result<peer_topology> peer_topology::query(driver_interface& driver) {
  if (!driver.feature_set().peers) {
    return refuse(
        errc::not_supported,
        "the driver has no rights for each device: they need a driver with peers, such as cuda");
  }
  peer_topology seen;
  for (; seen.device_count_ < devices_max; ++seen.device_count_) {
    const location next = device(seen.device_count_);
    const result<peer_info> there = driver.query_peer({next, next});
    if (!there && there.error().code != errc::invalid_argument) return there.error();
    if (!there) break;
    check(there->link == link_kind::itself, "a device has no link to itself");
  }
  try {
    const auto count = static_cast<std::size_t>(seen.device_count_);
    seen.links_.reserve(count * count);
    for (std::int32_t from = 0; from < seen.device_count_; ++from) {
      for (std::int32_t to = 0; to < seen.device_count_; ++to) {
        const result<peer_info> link = driver.query_peer({device(from), device(to)});
        if (!link) return link.error();
        seen.links_.push_back(*link);
      }
    }
    check(seen.links_.size() == count * count, "I1: a pair of devices was not queried");
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a list of links");
  }
  return seen;
}

const peer_info& peer_topology::link(location from, location to) const noexcept {
  using place = location::place;
  check(from.kind == place::device && to.kind == place::device, "a link of the host is recorded");
  check(from.ordinal >= 0 && from.ordinal < device_count_, "the accessing device does not exist");
  check(to.ordinal >= 0 && to.ordinal < device_count_, "the accessed device does not exist");
  return links_[static_cast<std::size_t>(from.ordinal) * static_cast<std::size_t>(device_count_) +
                static_cast<std::size_t>(to.ordinal)];
}

result<std::vector<location>> peer_topology::peers_of(location memory_at) const {
  check(memory_at.kind == location::place::device, "peers are queried of a device");
  std::vector<location> found;
  try {
    for (std::int32_t i = 0; i < device_count_; ++i) {
      const location other = device(i);
      if (other != memory_at && link(other, memory_at).is_reachable()) found.push_back(other);
    }
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "no host memory is left for a list of devices");
  }
  return found;
}

std::string peer_topology::to_text() const {
  std::string text;
  for (std::int32_t from = 0; from < device_count_; ++from) {
    text += "device " + std::to_string(from) + ":";
    for (std::int32_t to = 0; to < device_count_; ++to) {
      const peer_info& between = link(device(from), device(to));
      text += std::string(" ") + name_of(between.link);
      if (between.link == link_kind::peer && between.native_atomics) text += "+atomics";
    }
    text += "\n";
  }
  check(text.empty() == (device_count_ == 0), "a device has no line");
  return text;
}

}  // namespace vmm
