// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.registry;

import vmm.backend;
import vmm.base;
import vmm.cuda;
import vmm.fake;
import vmm.host;
import vmm.level_zero;
import vmm.market;
import vmm.observe;
import vmm.std;

namespace vmm {
namespace {

constexpr const char* known_names =
    "a backend is cuda, cuda:N (a device's number), level_zero, level_zero:N, host, fake, "
    "fake:cuda, fake:level_zero or fake:host";
constexpr const char* known_values =
    "VMM_BACKEND is cuda, cuda:N (a device's number), level_zero, level_zero:N, host, fake, "
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

result<any_backend> open_host(std::int32_t) {
  result<host_driver> opened = host_driver::open();
  if (!opened) return opened.error();
  return any_backend::own(std::move(*opened));
}

template <fake::profile (*Plays)() noexcept>
result<any_backend> open_fake(std::int32_t) {
  return any_backend::own(fake_driver(Plays()));
}

// With `is_numbered`, the name may have ":N" behind it.
struct known_backend {
  std::string_view name;
  result<any_backend> (*open)(std::int32_t device);
  bool is_numbered = false;
};

constexpr std::array<known_backend, backend_entry_count> known_backends{
    {{"cuda", open_cuda, true},
     {"level_zero", open_level_zero, true},
     {"host", open_host},
     {"fake", open_fake<fake::profile::cuda>},
     {"fake:cuda", open_fake<fake::profile::cuda>},
     {"fake:level_zero", open_fake<fake::profile::level_zero>},
     {"fake:host", open_fake<fake::profile::host>}}};

// What a name opens; without an entry, the first that is available.
struct named_backend {
  const known_backend* entry = nullptr;
  std::int32_t device = 0;
};

std::optional<named_backend> find(std::string_view name) noexcept {
  check(!name.empty(), "the empty name stands for a backend");
  for (const known_backend& each : known_backends) {
    check(each.open != nullptr && !each.name.empty(), "a backend has no name, or cannot be opened");
    if (each.name == name) return named_backend{&each, 0};
    if (!each.is_numbered || !name.starts_with(each.name)) continue;
    const std::string_view number = name.substr(each.name.size());
    std::int32_t device = 0;
    const char* const end = number.data() + number.size();
    const auto [rest, failure] = std::from_chars(number.data() + 1, end, device);
    if (number.front() == ':' && failure == std::errc{} && rest == end && device >= 0)
      return named_backend{&each, device};
  }
  return std::nullopt;
}

// An empty name is that of the variable, if it is set.
result<named_backend> resolve(std::string_view name) noexcept {
  const bool is_given = !name.empty();
  if (!is_given) read_text_option("VMM_BACKEND", name);
  if (name.empty()) return named_backend{};
  if (const std::optional<named_backend> found = find(name)) return *found;
  if (!is_given) return refuse_value(name, known_values);
  return refuse(errc::bad_option, detail_text()
                                      .add("unknown backend '")
                                      .add(name)
                                      .add("': ")
                                      .add(known_names)
                                      .keep(known_names));
}

// A malformed variable is refused also by a call that does not use it.
status check_variables() noexcept {
  std::string_view name;
  read_text_option("VMM_BACKEND", name);
  if (!name.empty() && !find(name)) return refuse_value(name, known_values);
  return check_cuda_environment();
}

result<any_backend> open_first() {
  result<any_backend> last = refuse(errc::unavailable, "no backend can be opened here");
  for (const known_backend& each : known_backends) {
    last = each.open(0);
    check(!last || last->get() != nullptr, "a backend was opened without a driver");
    if (last || last.error().code == errc::bad_option) return last;
  }
  return last;
}

// As VMM_OWNER says. Without it the driver as it is.
result<any_backend> with_owner(any_backend driver) {
  result<std::optional<tenant_options>> options = tenant_options_from_environment();
  if (!options) return options.error();
  if (!options->has_value()) return driver;
  std::optional<market_key> device;
  if (const cuda_driver* const cuda = driver.get_if<cuda_driver>(); cuda != nullptr) {
    device = market_device_of(*cuda);
  } else if (driver.get_if<host_driver>() != nullptr) {
    device = make_market_device("host");
  }
  if (!device) {
    return refuse(errc::not_supported,
                  "an owner has memory of CUDA devices and of the host driver: unset VMM_OWNER, or "
                  "choose one of these");
  }
  (*options)->device = *device;
  result<std::unique_ptr<tenant_driver>> tenant = open_tenant(std::move(driver), **options);
  if (!tenant) return tenant.error();
  return any_backend::own(std::move(*tenant));
}

constexpr const char* log_values = "VMM_LOG is off, stderr, or the path of a writable file";

result<any_backend> with_log(any_backend driver, std::string_view destination) {
  check(driver.get() != nullptr, "calls are to be logged of no driver");
  check(!destination.empty(), "a log has no name");
  if (destination == "off") return driver;
  result<std::shared_ptr<call_log>> log = call_log::open(destination);
  if (!log) {
    if (log.error().code != errc::bad_option) return log.error();
    error refused = refuse_value(destination, log_values);
    refused.detail =
        detail_text()
            .add(refused.detail)
            .add(": ")
            .add(file_text(static_cast<int>(log.error().native), "it cannot be opened"))
            .keep(log_values);
    return refused;
  }
  return any_backend::own(observed_backend(std::move(driver), std::move(*log)));
}

}  // namespace

std::array<backend_entry, backend_entry_count> backend_names() noexcept {
  std::array<backend_entry, backend_entry_count> entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    entries[i].name = known_backends[i].name;
    try {
      const result<any_backend> opened = known_backends[i].open(0);
      entries[i].available = opened.has_value();
      if (!opened) entries[i].reason = opened.error().detail;
      check(opened || entries[i].reason[0] != '\0', "a backend is unavailable without a reason");
    } catch (const std::bad_alloc&) {
      entries[i].reason = "operator new failed";
    }
  }
  return entries;
}

status check_backend_name(std::string_view name) noexcept {
  const result<named_backend> named = resolve(name);
  return named ? status{} : named.error();
}

result<any_backend> open_backend(std::string_view name) noexcept {
  const result<named_backend> named = resolve(name);
  if (!named) return named.error();
  if (status valid = check_variables(); !valid) return valid.error();
  std::string_view destination = "off";
  read_text_option("VMM_LOG", destination);
  try {
    result<any_backend> opened =
        named->entry != nullptr ? named->entry->open(named->device) : open_first();
    if (!opened) return opened;
    check(opened->get() != nullptr, "a backend was opened without a driver");
    opened = with_owner(std::move(*opened));
    if (!opened) return opened;
    return with_log(std::move(*opened), destination);
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, "operator new failed when a backend was opened");
  }
}

}  // namespace vmm
