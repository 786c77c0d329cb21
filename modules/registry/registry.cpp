// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.registry;

import vmm.backend;
import vmm.base;
import vmm.cuda;
import vmm.fake;
import vmm.host;
import vmm.level_zero;
import vmm.observe;
import vmm.std;

namespace vmm {
namespace {

constexpr const char* known_names =
    "a backend is cuda, cuda:N (a device's number), level_zero, level_zero:N, host, fake, "
    "fake:cuda, fake:level_zero or fake:host";

result<any_backend> open_cuda(std::int32_t device) {
  check(device >= 0, "a device has a number below zero");
  result<cuda_driver> opened = cuda_driver::open({.device = device});
  if (!opened) return opened.error();
  return any_backend::own(std::move(*opened));
}

result<any_backend> open_level_zero(std::int32_t device) {
  check(device >= 0, "a device has a number below zero");
  result<level_zero_driver> opened = level_zero_driver::open({.device = device});
  if (!opened) return opened.error();
  return any_backend::own(std::move(*opened));
}

result<any_backend> open_host() {
  result<host_driver> opened = host_driver::open();
  if (!opened) return opened.error();
  return any_backend::own(std::move(*opened));
}

template <fake::profile (*Plays)() noexcept>
result<any_backend> open_fake() {
  return any_backend::own(fake_driver(Plays()));
}

struct known_backend {
  std::string_view name;
  result<any_backend> (*open)();
};

constexpr std::array<known_backend, backend_entry_count> known_backends{
    {{"cuda", [] { return open_cuda(0); }},
     {"level_zero", [] { return open_level_zero(0); }},
     {"host", open_host},
     {"fake", open_fake<fake::profile::cuda>},
     {"fake:cuda", open_fake<fake::profile::cuda>},
     {"fake:level_zero", open_fake<fake::profile::level_zero>},
     {"fake:host", open_fake<fake::profile::host>}}};

error unknown_name(std::string_view name) noexcept {
  check(!name.empty(), "the empty name stands for a backend");
  return refuse(errc::bad_option, detail_text()
                                      .add("unknown backend '")
                                      .add(name)
                                      .add("': ")
                                      .add(known_names)
                                      .keep(known_names));
}

// "cuda:N" and "level_zero:N" for any N.
result<any_backend> open_numbered(std::string_view name) {
  const std::size_t colon = name.find(':');
  const std::string_view kind = name.substr(0, colon);
  const bool is_cuda = kind == "cuda";
  if (colon == name.npos || (!is_cuda && kind != "level_zero")) {
    return unknown_name(name);
  }
  std::int32_t device = 0;
  const char* const end = name.data() + name.size();
  const auto [rest, failure] = std::from_chars(name.data() + colon + 1, end, device);
  if (failure != std::errc{} || rest != end || device < 0) {
    return unknown_name(name);
  }
  check(rest > name.data() + colon, "a device's number is not part of its name");
  return is_cuda ? open_cuda(device) : open_level_zero(device);
}

result<any_backend> open_first() {
  result<any_backend> last = refuse(errc::unavailable, "no backend can be opened here");
  for (const known_backend& each : known_backends) {
    last = each.open();
    check(!last || last->get() != nullptr, "a backend was opened without a driver");
    if (last || last.error().code == errc::bad_option) return last;
  }
  return last;
}

result<any_backend> open_named(std::string_view name) {
  if (name.empty()) return open_first();
  for (const known_backend& each : known_backends) {
    check(each.open != nullptr && !each.name.empty(), "a backend has no name, or cannot be opened");
    if (each.name == name) return each.open();
  }
  return open_numbered(name);
}

result<any_backend> with_log(any_backend driver, std::string_view destination) {
  check(driver.get() != nullptr, "calls are to be logged of no driver");
  check(!destination.empty(), "a log has no name");
  if (destination == "off") return driver;
  result<std::shared_ptr<call_log>> log = call_log::open(destination);
  if (!log) {
    if (log.error().code != errc::bad_option) return log.error();
    return refuse_value(destination, "VMM_LOG is off, stderr, or the path of a writable file");
  }
  return any_backend::own(observed_backend(std::move(driver), std::move(*log)));
}

}  // namespace

std::array<backend_entry, backend_entry_count> backend_names() noexcept {
  std::array<backend_entry, backend_entry_count> entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    entries[i].name = known_backends[i].name;
    try {
      const result<any_backend> opened = known_backends[i].open();
      entries[i].available = opened.has_value();
      if (!opened) entries[i].reason = opened.error().detail;
      check(opened || entries[i].reason[0] != '\0', "a backend is unavailable without a reason");
    } catch (const std::bad_alloc&) {
      entries[i].reason = "operator new failed";
    }
  }
  return entries;
}

result<any_backend> open_backend(std::string_view name) noexcept {
  if (name.empty()) read_text_option("VMM_BACKEND", name);
  std::string_view destination = "off";
  read_text_option("VMM_LOG", destination);
  try {
    result<any_backend> opened = open_named(name);
    if (!opened) return opened;
    check(opened->get() != nullptr, "a backend was opened without a driver");
    return with_log(std::move(*opened), destination);
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "operator new failed when a backend was opened");
  }
}

}  // namespace vmm
