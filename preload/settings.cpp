// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "settings.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>

#include "device_pools.h"
#include "writer.h"

import vmm.backend;
import vmm.environment;

namespace vmm::preload {
namespace {

std::atomic<run_mode> current_mode = run_mode::unread;
settings chosen;
once_here reading;

std::string_view text_of(const char* name) noexcept {
  const char* const text = environment_text(name);
  return text == nullptr ? std::string_view{} : std::string_view{text};
}

// Each returns false if the value is not valid for the variable.

bool read_mode(settings& into) noexcept {
  const std::string_view text = text_of("VMM_MODE");
  if (text.empty() || text == "off") {
    into.mode = run_mode::off;
  } else if (text == "monitor") {
    into.mode = run_mode::monitor;
  } else if (text == "vmm") {
    into.mode = run_mode::managed;
  } else if (text == "cache") {
    into.mode = run_mode::cache;
  } else {
    complain("VMM_MODE takes one of off, monitor, vmm, cache");
    return false;
  }
  return true;
}

bool read_report(settings& into) noexcept {
  const std::string_view form = text_of("VMM_REPORT_FORMAT");
  if (!form.empty() && form != "text" && form != "json") {
    complain("VMM_REPORT_FORMAT takes one of text, json");
    return false;
  }
  into.report_as_json = form == "json";
  const std::string_view to = text_of("VMM_REPORT");
  if (to.empty()) {
    into.report_to = into.mode == run_mode::monitor ? "stderr" : "";
  } else {
    into.report_to = to == "off" ? "" : to.data();
  }
  const std::string_view on = text_of("VMM_REPORT_SIGNAL");
  if (!on.empty() && on != "usr1" && on != "off") {
    complain("VMM_REPORT_SIGNAL takes one of usr1, off");
    return false;
  }
  into.report_on_signal = on == "usr1" || (on.empty() && into.mode == run_mode::monitor);
  return true;
}

bool read_ipc(settings& into) noexcept {
  const std::string_view ipc = text_of("VMM_IPC");
  if (ipc.empty() || ipc == "share") {
    into.ipc = ipc_rule::share;
  } else if (ipc == "refuse") {
    into.ipc = ipc_rule::refuse;
  } else if (ipc == "plain") {
    into.ipc = ipc_rule::plain;
  } else {
    complain("VMM_IPC takes one of share, refuse, plain");
    return false;
  }
  return true;
}

bool read_copy(settings& into) noexcept {
  const std::string_view copy = text_of("VMM_COPY");
  if (copy.empty() || copy == "off") {
    into.copy = copy_rule::off;
  } else if (copy == "alias") {
    into.copy = copy_rule::alias;
  } else if (copy == "move") {
    into.copy = copy_rule::move;
  } else {
    complain("VMM_COPY takes one of off, alias, move");
    return false;
  }
  return true;
}

bool read_rest(settings& into) noexcept {
  if (const std::string_view to = text_of("VMM_TRACE"); !to.empty()) into.trace_to = to.data();
  if (!read_ipc(into) || !read_copy(into)) return false;
  const std::string_view free = text_of("VMM_FREE");
  if (!free.empty() && free != "later" && free != "wait") {
    complain("VMM_FREE takes one of later, wait");
    return false;
  }
  into.is_free_waiting = free == "wait";
  const status keep =
      read_bytes_option("VMM_KEEP", into.keep_bytes,
                        "VMM_KEEP is a size: a whole number with a unit, such as 512MiB");
  if (!keep) complain(keep.error().detail);
  if (!keep) return false;
  const status limit =
      read_bytes_option("VMM_CACHE_LIMIT", into.cache_limit_bytes,
                        "VMM_CACHE_LIMIT is a size: a whole number with a unit, such as 4GiB");
  if (!limit) complain(limit.error().detail);
  return static_cast<bool>(limit);
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
    case EEXIST: why = "it is another user's, or has another name as well"; break;
    case EFBIG: why = "the limit of file size is reached"; break;
    case EISDIR: why = "it is a folder"; break;
    case ELOOP: why = "it is a symbolic link to a file; name the file itself"; break;
    case ENOENT: why = "its folder is not there"; break;
    case ENOSPC: why = "no space is left"; break;
    case EPIPE: why = "its reader is gone"; break;
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
