// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// What writer and reader share: the layout, and where the files lie.
module;
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

module vmm.observe;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

namespace {

static_assert(std::endian::native == std::endian::little, "the file is little endian");

template <std::size_t Size>
void set_text(std::array<char, Size>& to, std::string_view from) noexcept {
  const std::size_t count = std::min(from.size(), Size - 1);
  to.fill('\0');
  std::copy_n(from.begin(), count, to.begin());
  check(to.back() == '\0', "a text has no end");
}

constexpr std::size_t number_words = 13;
constexpr std::size_t policy_words = top_sample::policy_chars / 8;
constexpr std::size_t driver_words = top_sample::driver_chars / 8;
static_assert(number_words + policy_words + driver_words <= top_slot::word_count);

// Why a folder cannot be opened, with errno's code.
[[nodiscard]] error no_folder(const std::string& path) noexcept {
  const int number = errno;
  check(number > 0, "an error of the system's has no number");
  struct ::stat found{};
  const bool is_there = ::lstat(path.c_str(), &found) == 0;
  const char* why = file_text(number, "the folder cannot be opened");
  if (number == ENOENT) why = "the folder does not exist";
  if (is_there && S_ISLNK(found.st_mode)) {
    why = "the path is a symbolic link: name the folder itself";
  } else if (is_there && !S_ISDIR(found.st_mode)) {
    why = "the path is not a folder";
  }
  error failure = refuse(number == ENOENT ? errc::unavailable : errc::not_permitted, why);
  failure.native = number;
  failure.native_name = errno_name(number);
  return failure;
}

}  // namespace

void top_sample::set_names(std::string_view policy_name, std::string_view driver_name) noexcept {
  set_text(policy, policy_name);
  set_text(driver, driver_name);
}

std::array<std::uint64_t, top_slot::word_count> encode_sample(const top_sample& from) noexcept {
  std::array<std::uint64_t, top_slot::word_count> to{};
  const std::array<std::uint64_t, number_words> numbers{
      from.number,          static_cast<std::uint64_t>(from.kind),
      from.time_ns,         from.held_bytes,
      from.peak_held_bytes, from.live_bytes,
      from.peak_live_bytes, from.free_bytes,
      from.reserved_bytes,  from.budget_bytes,
      from.live_count,      from.slow_count,
      from.moved_bytes};
  check(from.policy.back() == '\0' && from.driver.back() == '\0', "a text has no end");
  check(from.kind <= top_kind::handle_cache, "an allocator is of no kind");
  std::copy_n(numbers.begin(), number_words, to.begin());
  std::memcpy(&to[number_words], from.policy.data(), from.policy.size());
  std::memcpy(&to[number_words + policy_words], from.driver.data(), from.driver.size());
  return to;
}

result<top_sample> decode_sample(
    const std::array<std::uint64_t, top_slot::word_count>& from) noexcept {
  top_sample to;
  std::memcpy(to.policy.data(), &from[number_words], to.policy.size());
  std::memcpy(to.driver.data(), &from[number_words + policy_words], to.driver.size());
  if (to.policy.back() != '\0' || to.driver.back() != '\0')
    return refuse(errc::invalid_argument, "a name has no end");
  if (from[1] > static_cast<std::uint64_t>(top_kind::handle_cache))
    return refuse(errc::invalid_argument, "an allocator is of no kind");
  to.number = from[0];
  to.kind = static_cast<top_kind>(from[1]);
  to.time_ns = from[2];
  to.held_bytes = from[3];
  to.peak_held_bytes = from[4];
  to.live_bytes = from[5];
  to.peak_live_bytes = from[6];
  to.free_bytes = from[7];
  to.reserved_bytes = from[8];
  to.budget_bytes = from[9];
  to.live_count = from[10];
  to.slow_count = from[11];
  to.moved_bytes = from[12];
  check(to.policy.back() == '\0', "a text has no end");
  return to;
}

status check_head(const top_head& read, std::uint64_t process) noexcept {
  check(process != 0, "a file is looked for of no process");
  if (read.magic != top_head::magic_number)
    return refuse(errc::invalid_argument, "this is not a file of vmm-top: its first bytes differ");
  if (read.version != top_head::version_number)
    return refuse(errc::not_supported, "the file is of a version that this vmm-top does not read");
  if (read.slot_count != top_slot_count || read.program.back() != '\0')
    return refuse(errc::invalid_argument, "the file's head is not one that vmm writes");
  if (read.process != process)
    return refuse(errc::invalid_argument, "the file's process is not the one in its name");
  return {};
}

std::vector<std::string> top_folders() {
  std::vector<std::string> out;
  const char* const runtime = environment_text("XDG_RUNTIME_DIR");
  struct ::stat found{};
  // Of root by `sudo -E` it is the user's, whose processes a folder of root's would stop.
  const bool is_own = runtime != nullptr && *runtime == '/' && ::stat(runtime, &found) == 0 &&
                      found.st_uid == ::geteuid();
  if (is_own) out.push_back(std::string(runtime) + "/vmm");
  out.push_back("/tmp/vmm-" + std::to_string(::geteuid()));
  check(!out.empty() && out.front().front() == '/', "a folder has no path");
  return out;
}

result<int> open_own_folder(const std::string& path, folder_rule rule) noexcept {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return no_folder(path);
  struct ::stat found{};
  const bool is_own = ::fstat(folder, &found) == 0 && found.st_uid == ::geteuid();
  check(!is_own || S_ISDIR(found.st_mode), "the path of a folder is not a folder");
  const bool is_private = rule == folder_rule::is_private;
  if (is_own && (found.st_mode & (is_private ? 077U : 022U)) == 0) return folder;
  ::close(folder);
  detail_text why;
  if (!is_own) {
    why.add("the folder is of user ").add_number(found.st_uid).add(", and this is user ");
    why.add_number(::geteuid()).add(is_private ? ": remove it" : ": name another");
  } else {
    constexpr std::string_view digits = "01234567";
    const char mode[] = {'0', digits[found.st_mode >> 6 & 7], digits[found.st_mode >> 3 & 7],
                         digits[found.st_mode & 7], '\0'};
    why.add("the folder has mode ").add(mode).add(", so that other users can ");
    why.add(is_private ? "enter it: run chmod 700 on it, or remove it"
                       : "write to it: name a folder in it, which is made");
  }
  return refuse(errc::not_permitted,
                why.keep("the folder is another user's, or other users have rights to it"));
}

}  // namespace vmm
