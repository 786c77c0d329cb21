// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Files are read by pread(), never mapped: one that is cut while it is read is only short.
module;
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

module vmm.top_tools;

import vmm.backend;
import vmm.observe;
import vmm.std;

namespace vmm::tools {

namespace {

class descriptor {
 public:
  explicit descriptor(int number) noexcept : number_(number) {}
  ~descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  [[nodiscard]] int get() const noexcept { return number_; }

 private:
  int number_;
};

template <class T>
[[nodiscard]] bool read_at(int file, std::size_t offset_bytes, T& into) {
  const ::ssize_t count = ::pread(file, &into, sizeof(into), static_cast<::off_t>(offset_bytes));
  return count == static_cast<::ssize_t>(sizeof(into));
}

// A text of a file as plain ASCII. Of what ends with a 0.
template <std::size_t Size>
[[nodiscard]] std::string shown(const std::array<char, Size>& text) {
  std::string out;
  for (const char each : text) {
    if (each == '\0') break;
    const bool is_plain = each >= ' ' && each <= '~' && each != '"' && each != '\\';
    out += is_plain ? each : '?';
  }
  return out;
}

// "top.4711" is process 4711's.
[[nodiscard]] std::optional<std::uint64_t> process_of(std::string_view name) {
  constexpr std::string_view prefix = "top.";
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  std::uint64_t number = 0;
  const auto [rest, failure] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_whole = failure == std::errc{} && rest == name.data() + name.size();
  return is_whole && number != 0 && !name.starts_with('0') ? std::optional(number) : std::nullopt;
}

// The process that has the file's lock; nothing where none has.
[[nodiscard]] std::optional<::pid_t> owner_of(int file) {
  struct ::flock whole{};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(file, F_GETLK, &whole) != 0 || whole.l_type == F_UNLCK) return std::nullopt;
  return whole.l_pid;
}

// Only if it is still the file that was checked.
void remove_stale(int folder, const std::string& name, const struct ::stat& seen) {
  struct ::stat now{};
  if (::fstatat(folder, name.c_str(), &now, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (now.st_dev == seen.st_dev && now.st_ino == seen.st_ino)
    (void)::unlinkat(folder, name.c_str(), 0);
}

// Empty, or what is wrong with the file.
[[nodiscard]] std::string why_refused(const struct ::stat& found) {
  if (!S_ISREG(found.st_mode)) return "is not a regular file";
  if (found.st_uid != ::geteuid()) return "is another user's";
  if ((found.st_mode & 077U) != 0) return "may be read by others";
  return "";
}

// Empty, or what is wrong.
[[nodiscard]] std::string read_file(int folder, const std::string& name, std::uint64_t process,
                                    std::vector<top_process>& into) {
  const descriptor file(
      ::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct ::stat found{};
  if (file.get() < 0 || ::fstat(file.get(), &found) != 0) {
    struct ::stat still{};  // it may be removed since the folder was listed
    return ::fstatat(folder, name.c_str(), &still, AT_SYMLINK_NOFOLLOW) == 0 ? "cannot be opened"
                                                                             : "";
  }
  if (std::string why = why_refused(found); !why.empty()) return why;
  const std::optional<::pid_t> owner = owner_of(file.get());
  if (!owner) {
    remove_stale(folder, name, found);
    return "";
  }
  if (found.st_size != static_cast<::off_t>(top_file_bytes)) return "is of another size";
  if (*owner > 0 && static_cast<std::uint64_t>(*owner) != process)
    return "is held by another process than its name says";
  top_head head;
  if (!read_at(file.get(), 0, head)) return "is cut short";
  if (const status right = check_head(head, process); !right) return right.error().detail;
  top_process made{process, shown(head.program), head.hidden_count, 0, {}};
  for (std::uint32_t place = 0; place < top_slot_count; ++place) {
    const result<top_sample> sample = read_slot(file.get(), place);
    if (sample) {
      if (sample->number != 0) made.allocators.push_back(*sample);
    } else if (sample.error().code == errc::unavailable) {
      ++made.busy_count;
    } else {
      return sample.error().detail;
    }
  }
  into.push_back(std::move(made));
  return "";
}

[[nodiscard]] std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; amount >= 1024 && unit + 1 < units.size(); ++unit) amount /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", amount, units[unit]);
  return text;
}

[[nodiscard]] const char* name_of(top_kind kind) {
  if (kind == top_kind::handle_cache) return "cache";
  return kind == top_kind::pool ? "pool" : "manager";
}

[[nodiscard]] std::string row_of(const top_process& process, const top_sample& each) {
  char ratio[16] = "-";
  if (each.live_bytes != 0)
    std::snprintf(ratio, sizeof(ratio), "%.3f",
                  static_cast<double>(each.held_bytes) / static_cast<double>(each.live_bytes));
  char row[256];
  std::snprintf(
      row, sizeof(row), "%8llu %-15s %-7s %-12.12s %-12.12s %11s %11s %11s %7s %11s %9llu\n",
      static_cast<unsigned long long>(process.process), process.program.c_str(), name_of(each.kind),
      shown(each.policy).c_str(), shown(each.driver).c_str(), bytes_text(each.held_bytes).c_str(),
      bytes_text(each.peak_held_bytes).c_str(), bytes_text(each.live_bytes).c_str(), ratio,
      each.budget_bytes == 0 ? "-" : bytes_text(each.budget_bytes).c_str(),
      static_cast<unsigned long long>(each.live_count));
  return row;
}

void add_number(std::string& to, const char* name, std::uint64_t number) {
  to += std::string(", \"") + name + "\": " + std::to_string(number);
}

}  // namespace

result<top_sample> read_slot(int file, std::uint32_t place) {
  constexpr int tries = 1000;
  const std::size_t at = sizeof(top_head) + std::size_t{place} * sizeof(top_slot);
  for (int i = 0; i < tries; ++i) {
    std::uint64_t before = 0;
    top_slot read;
    std::uint64_t after = 0;
    const bool is_there =
        read_at(file, at, before) && read_at(file, at, read) && read_at(file, at, after);
    if (!is_there) return refuse(errc::invalid_argument, "the file is cut short");
    if (before == after && before % 2 == 0)
      return before == 0 ? top_sample{} : decode_sample(read.words);
    (void)::sched_yield();
  }
  return refuse(errc::unavailable, "the sample is being written");
}

void read_top_folder(const std::string& path, top_listing& into) {
  const result<int> opened = open_own_folder(path, folder_rule::is_private);
  if (!opened) {
    if (opened.error().code != errc::unavailable)
      into.complaints.push_back(path + ": " + opened.error().detail);
    return;
  }
  const descriptor folder(*opened);
  const int listed = ::openat(*opened, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ::DIR* const stream = listed < 0 ? nullptr : ::fdopendir(listed);
  if (stream == nullptr) {
    if (listed >= 0) ::close(listed);
    into.complaints.push_back(path + ": the folder cannot be listed");
    return;
  }
  std::vector<std::pair<std::uint64_t, std::string>> names;
  while (const ::dirent* const entry = ::readdir(stream))
    if (const auto process = process_of(entry->d_name)) names.emplace_back(*process, entry->d_name);
  ::closedir(stream);
  std::sort(names.begin(), names.end());
  for (const auto& [process, name] : names) {
    const std::string why = read_file(folder.get(), name, process, into.processes);
    if (!why.empty()) into.complaints.push_back(path + "/" + name + ": " + why);
  }
}

top_listing read_top() {
  top_listing out;
  for (const std::string& folder : top_folders()) read_top_folder(folder, out);
  std::sort(out.processes.begin(), out.processes.end(),
            [](const auto& a, const auto& b) { return a.process < b.process; });
  return out;
}

std::string to_table(const top_listing& listing) {
  char head[256];
  std::snprintf(head, sizeof(head), "%8s %-15s %-7s %-12s %-12s %11s %11s %11s %7s %11s %9s\n",
                "PROCESS", "PROGRAM", "KIND", "POLICY", "DRIVER", "HELD", "MOST HELD", "LIVE",
                "RATIO", "BUDGET", "BLOCKS");
  std::string out = head;
  std::uint64_t hidden = 0;
  for (const top_process& process : listing.processes) {
    for (const top_sample& each : process.allocators) out += row_of(process, each);
    hidden += process.hidden_count + process.busy_count;
  }
  if (hidden != 0) out += std::to_string(hidden) + " more could not be shown\n";
  return out;
}

std::string to_json(const top_listing& listing, std::string_view more) {
  std::string out = "[";
  bool is_first = true;
  for (const top_process& process : listing.processes) {
    for (const top_sample& each : process.allocators) {
      out += std::exchange(is_first, false) ? "\n" : ",\n";
      out += "{\"process\": " + std::to_string(process.process) + ", \"program\": \"" +
             process.program + "\", \"kind\": \"" + name_of(each.kind) + "\", \"policy\": \"" +
             shown(each.policy) + "\", \"driver\": \"" + shown(each.driver) + "\"";
      add_number(out, "number", each.number);
      add_number(out, "time_ns", each.time_ns);
      add_number(out, "held_bytes", each.held_bytes);
      add_number(out, "peak_held_bytes", each.peak_held_bytes);
      add_number(out, "live_bytes", each.live_bytes);
      // Managers and the preload library's handles do not count it.
      if (each.kind == top_kind::pool) add_number(out, "peak_live_bytes", each.peak_live_bytes);
      add_number(out, "free_bytes", each.free_bytes);
      add_number(out, "reserved_bytes", each.reserved_bytes);
      add_number(out, "budget_bytes", each.budget_bytes);
      add_number(out, "live_count", each.live_count);
      add_number(out, "slow_count", each.slow_count);
      add_number(out, "moved_bytes", each.moved_bytes);
      out += "}";
    }
  }
  return out.append(more) + "\n]\n";
}

}  // namespace vmm::tools
