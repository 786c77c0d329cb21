// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstdio>

module vmm.backend;

import vmm.base;
import vmm.std;

namespace vmm {

const char* name_of(errc code) noexcept {
  switch (code) {
    case errc::none: return "no error";
    case errc::invalid_argument: return "invalid argument";
    case errc::bad_option: return "bad option";
    case errc::out_of_memory: return "out of memory";
    case errc::out_of_host_memory: return "out of host memory";
    case errc::out_of_addresses: return "out of addresses";
    case errc::out_of_mappings: return "out of mappings";
    case errc::over_budget: return "over budget";
    case errc::unknown_address: return "unknown address";
    case errc::not_allocated: return "not allocated";
    case errc::overlap: return "overlap";
    case errc::in_use: return "in use";
    case errc::not_supported: return "not supported";
    case errc::not_permitted: return "not permitted";
    case errc::unavailable: return "unavailable";
    case errc::device_lost: return "device lost";
    case errc::foreign_error: return "foreign error";
    case errc::internal: return "internal error";
  }
  return "unknown error code";
}

const char* name_of(call where) noexcept {
  static constexpr std::array<const char*, call_count> names{"none",
                                                             "query_granularity",
                                                             "memory_info",
                                                             "reserve",
                                                             "free_reservation",
                                                             "create",
                                                             "release",
                                                             "map",
                                                             "unmap",
                                                             "set_access",
                                                             "get_access",
                                                             "retain",
                                                             "create_stream",
                                                             "destroy_stream",
                                                             "synchronize_stream",
                                                             "create_event",
                                                             "destroy_event",
                                                             "record_event",
                                                             "query_event",
                                                             "wait_event",
                                                             "synchronize_event",
                                                             "copy",
                                                             "fill",
                                                             "write",
                                                             "read",
                                                             "export_handle",
                                                             "import_handle",
                                                             "create_multicast",
                                                             "add_multicast_device",
                                                             "bind_multicast",
                                                             "unbind_multicast",
                                                             "get_properties",
                                                             "query_capture",
                                                             "record_all",
                                                             "query_peer",
                                                             "export_range",
                                                             "synchronize_all"};
  const auto index = static_cast<std::size_t>(where);
  return index < names.size() ? names[index] : "unknown call";
}

namespace {

// Text that is cut at the end of the buffer.
class short_text {
 public:
  explicit short_text(std::span<char> out) noexcept : out_(out) {
    check(!out.empty(), "a text has no room for its end");
    out_[0] = '\0';
  }
  template <class... Given>
  void add(const char* format, Given... given) noexcept {
    const int wanted = std::snprintf(out_.data() + size_, out_.size() - size_, format, given...);
    check(wanted >= 0, "a text has a wrong format");
    size_ = std::min(size_ + static_cast<std::size_t>(wanted), out_.size() - 1);
  }
  // A size in the largest unit of `unit_of`; two decimals if it is not a whole number.
  void add_size(std::uint64_t size_bytes, std::uint64_t unit_of, bool with_unit) noexcept {
    check(size_bytes <= unit_of || unit_of == 0, "a part is larger than the whole");
    constexpr std::array<const char*, 6> names{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    std::size_t unit = 0;
    while (unit + 1 < names.size() && unit_of >> (10 * (unit + 1)) != 0) ++unit;
    const std::uint64_t unit_bytes = std::uint64_t{1} << (10 * unit);
    if (size_bytes % unit_bytes == 0) {
      add("%llu", static_cast<unsigned long long>(size_bytes / unit_bytes));
    } else {
      add("%.2f", static_cast<double>(size_bytes) / static_cast<double>(unit_bytes));
    }
    if (with_unit) add(" %s", names[unit]);
  }
  void add_size(std::uint64_t size_bytes) noexcept { add_size(size_bytes, size_bytes, true); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  std::span<char> out_;
  std::size_t size_ = 0;
};

const char* exceeded(errc code) noexcept {
  check(code != errc::none, "a success has a limit");
  switch (code) {
    case errc::over_budget: return "exceeds the budget";
    case errc::out_of_addresses: return "finds no free addresses";
    case errc::out_of_mappings: return "meets a limit of the system";
    default: return "exceeds the available memory";
  }
}

}  // namespace

std::size_t write_figures(const error& failure, std::span<char> out) noexcept {
  const shortage_figures& known = failure.figures;
  short_text text(out);
  if (known.requested_bytes == 0) return 0;
  text.add("%s", known.is_growth ? "growth by " : "request of ");
  text.add_size(known.requested_bytes);
  text.add(" %s: ", exceeded(failure.code));
  if (known.limit_bytes != 0) {
    const bool is_small = known.used_bytes < known.limit_bytes / 256;
    text.add_size(known.used_bytes, is_small ? known.used_bytes : known.limit_bytes, is_small);
    text.add("%s", " of ");
    text.add_size(known.limit_bytes);
    text.add("%s", " in use, ");
  }
  if (known.held_bytes != known.used_bytes || known.limit_bytes == 0) {
    text.add_size(known.held_bytes);
    text.add("%s", " held here, ");
  }
  text.add("%s", "largest free block ");
  text.add_size(known.largest_free_bytes);
  text.add("%s", ". ");
  check(text.size() < out.size(), "a text has no end");
  return text.size();
}

std::string describe(const error& failure) {
  check(failure.native_name != nullptr && failure.detail != nullptr, "an error has no texts");
  std::string text = name_of(failure.code);
  if (failure.where != call::none) {
    text += " in ";
    text += name_of(failure.where);
  }
  if (failure.native_name[0] != '\0' || failure.native != 0) {
    text += " (";
    text += failure.native_name[0] != '\0' ? failure.native_name : "code";
    // Code 0: the name of the missing object, a driver call for example.
    if (failure.native != 0) text += ' ' + std::to_string(failure.native);
    text += ')';
  }
  std::array<char, 256> figures;
  const std::size_t figures_size = write_figures(failure, figures);
  if (figures_size != 0 || failure.detail[0] != '\0') text += ": ";
  text.append(figures.data(), figures_size);
  text += failure.detail;
  return text;
}

void print_live_blocks(void*, const live_blocks& left) noexcept {
  check(left.owner != nullptr && left.count > 0,
        "a leak report without an owner or without "
        "blocks");
  static std::atomic<std::uint32_t> report_count = 0;
  const std::uint32_t number = report_count.fetch_add(1, std::memory_order_relaxed);
  if (number >= leak_report_count_max) return;
  const bool is_last = number + 1 == leak_report_count_max;
  without_write_signals([&] {
    std::fprintf(stderr,
                 "vmm: a %s ends with %llu live block%s of %llu bytes; it gives %s back%s\n",
                 left.owner, static_cast<unsigned long long>(left.count),
                 left.count == 1 ? "" : "s", static_cast<unsigned long long>(left.size_bytes),
                 left.count == 1 ? "it" : "them", is_last ? " (no further report is printed)" : "");
  });
}

}  // namespace vmm
