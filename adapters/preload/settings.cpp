// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "settings.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <string_view>

#include "account_records.h"
#include "device_pools.h"
#include "output_file.h"
#include "writer.h"

import vmm.backend;

namespace vmm::preload {
namespace {

std::atomic<run_mode> current_mode = run_mode::unread;
std::atomic<run_mode> mode_unset = run_mode::off;  // the mode without VMM_MODE
settings chosen;
once_here reading;

std::string_view text_of(const char* name) noexcept {
  const char* const text = environment_text(name);
  return text == nullptr ? std::string_view{} : std::string_view{text};
}

template <class Value>
struct choice {
  std::string_view word;
  Value value;
};

// Unset, the setting stays as it is. False if the value is none of the words.
template <class Value, std::size_t Count>
bool read_choice(const char* name, const choice<Value> (&words)[Count], const char* detail,
                 Value& into) noexcept {
  const std::string_view text = text_of(name);
  if (text.empty()) return true;
  for (const choice<Value>& each : words) {
    if (each.word != text) continue;
    into = each.value;
    return true;
  }
  complain(refuse_value(text, detail).detail);
  return false;
}

bool read_size(const char* name, std::uint64_t& into, const char* detail) noexcept {
  const status read = read_bytes_option(name, into, detail);
  if (!read) complain(read.error().detail);
  return static_cast<bool>(read);
}

// Each returns false if a value is not valid for its variable.

bool read_mode(settings& into) noexcept {
  constexpr choice<run_mode> words[] = {{"off", run_mode::off},
                                        {"monitor", run_mode::monitor},
                                        {"vmm", run_mode::managed},
                                        {"cache", run_mode::cache}};
  if (const std::string_view off = text_of("VMM_DISABLE"); !off.empty() && off != "0") return true;
  into.mode = mode_unset.load(std::memory_order_relaxed);
  return read_choice("VMM_MODE", words, "VMM_MODE takes one of off, monitor, vmm, cache",
                     into.mode);
}

bool read_report(settings& into) noexcept {
  constexpr choice<bool> forms[] = {{"text", false}, {"json", true}};
  constexpr choice<bool> signals[] = {{"usr1", true}, {"off", false}};
  into.report_on_signal = into.mode == run_mode::monitor;
  const std::string_view to = text_of("VMM_REPORT");
  if (to.empty()) {
    into.report_to = into.mode == run_mode::monitor ? "stderr" : "";
  } else {
    into.report_to = to == "off" ? "" : to.data();
  }
  return read_choice("VMM_REPORT_FORMAT", forms, "VMM_REPORT_FORMAT takes one of text, json",
                     into.report_as_json) &&
         read_choice("VMM_REPORT_SIGNAL", signals, "VMM_REPORT_SIGNAL takes one of usr1, off",
                     into.report_on_signal);
}

bool read_rest(settings& into) noexcept {
  constexpr choice<ipc_rule> ipc[] = {
      {"share", ipc_rule::share}, {"refuse", ipc_rule::refuse}, {"plain", ipc_rule::plain}};
  constexpr choice<copy_rule> copy[] = {
      {"off", copy_rule::off}, {"alias", copy_rule::alias}, {"move", copy_rule::move}};
  constexpr choice<bool> free[] = {{"later", false}, {"wait", true}};
  if (const std::string_view to = text_of("VMM_TRACE"); !to.empty()) into.trace_to = to.data();
  return read_choice("VMM_IPC", ipc, "VMM_IPC takes one of share, refuse, plain", into.ipc) &&
         read_choice("VMM_COPY", copy, "VMM_COPY takes one of off, alias, move", into.copy) &&
         read_choice("VMM_FREE", free, "VMM_FREE takes one of later, wait", into.is_free_waiting) &&
         read_size("VMM_KEEP", into.keep_bytes,
                   "VMM_KEEP is a size: a number with a unit, such as 512MiB") &&
         read_size("VMM_CACHE_LIMIT", into.cache_limit_bytes,
                   "VMM_CACHE_LIMIT is a size: a number with a unit, such as 4GiB");
}

void read_all() noexcept {
  settings found;
  bool is_right = read_mode(found);
  if (is_right && found.mode != run_mode::off) is_right = read_report(found) && read_rest(found);
  if (is_right && found.mode == run_mode::managed) {
    const char* problem = managed::check_settings();
    if (problem != nullptr) complain(problem);
    is_right = problem == nullptr;
  }
  if (!is_right) complain("the program runs unmanaged");
  chosen = found;
  if (!is_right) chosen.mode = run_mode::off;
  current_mode.store(chosen.mode, std::memory_order_release);
}

run_mode read_settings() noexcept {
  reading.run(read_all);
  return current_mode.load(std::memory_order_acquire);
}

}  // namespace

const settings& chosen_settings() noexcept {
  if (current_mode.load(std::memory_order_acquire) == run_mode::unread) (void)read_settings();
  return chosen;
}

const char* mode_name(run_mode mode) noexcept {
  switch (mode) {
    case run_mode::monitor: return "monitor";
    case run_mode::managed: return "vmm";
    case run_mode::cache: return "cache";
    default: return "off";
  }
}

bool is_passive() noexcept {
  const run_mode mode = current_mode.load(std::memory_order_acquire);
  return (mode == run_mode::unread ? read_settings() : mode) == run_mode::off;
}

void become_passive() noexcept { current_mode.store(run_mode::off, std::memory_order_release); }

void complain(const char* text, const char* more) noexcept {
  writer line(STDERR_FILENO);
  line.text("vmm_preload: ").text(text).text(more).text("\n");
}

// strerror() takes locks and host memory, and this is also called in a signal handler.
void complain_of(const char* text, const char* more, int failure) noexcept {
  const char* why = nullptr;
  switch (failure) {
    case EACCES: why = "permission denied"; break;
    case EAGAIN: why = "the pipe is full"; break;
    case EEXIST: why = "another user owns it, or it has a second name"; break;
    case EFBIG: why = "the limit of file size is reached"; break;
    case EISDIR: why = "it is a folder"; break;
    case ELOOP: why = "it is a symbolic link to a file; name the file itself"; break;
    case ENOENT: why = "its folder does not exist"; break;
    case ENAMETOOLONG: why = "the path or a name in it is too long"; break;
    case ENOTDIR: why = "a part of the path is not a folder"; break;
    case ENXIO: why = not_a_file_text; break;
    case ENOSPC: why = "no space is left"; break;
    case EPIPE: why = "its reader is gone"; break;
    case EROFS: why = "its file system is read-only"; break;
    default: break;
  }
  writer line(STDERR_FILENO);
  line.text("vmm_preload: ").text(text).text(more).text(": ");
  if (why != nullptr) {
    line.text(why);
  } else {
    line.text("error ").number(static_cast<std::uint64_t>(failure)).text(" of the system");
  }
  line.text("\n");
}

}  // namespace vmm::preload

// Of VMM=1, which has loaded the library without LD_PRELOAD: without VMM_MODE the mode is vmm, and
// the sums are counted in `page`, which is zero and shared with other processes.
extern "C" [[gnu::visibility("default"), gnu::used]] void vmm_preload_serve(void* page) {
  using namespace vmm::preload;
  mode_unset.store(run_mode::managed, std::memory_order_relaxed);
  accounts::show(page);
}
