// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "trace.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>
#include <unordered_map>

#include "accounts.h"
#include "file_name.h"
#include "output_file.h"
#include "settings.h"

import vmm.base;

namespace vmm::preload::trace {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{64} << 10;
constexpr std::size_t line_bytes_max = 80;
constexpr std::uint64_t events_max = 67'108'864;
constexpr std::uint64_t streams_max = 65'536;
constexpr std::uint64_t size_bytes_max = std::uint64_t{1} << 48;

std::atomic<bool> incomplete;

struct recording {
  int descriptor = -1;  // none once a write has failed
  std::size_t used = 0;
  std::uint64_t event_count = 0;
  std::uint64_t written_bytes = 0;  // to the file, up to the end of a line
  std::array<char, buffer_bytes> buffer;

  void flush() noexcept {
    const auto done =
        write_whole(descriptor, {reinterpret_cast<const std::byte*>(buffer.data()), used});
    if (done.failure != 0) stop(done.count, done.failure);
    written_bytes += used;
    used = 0;
  }
  // The file ends with a whole line, as far as it can be cut, and takes no more.
  void stop(std::size_t done, int failure) noexcept {
    while (done != 0 && buffer[done - 1] != '\n') --done;
    (void)!ftruncate(descriptor, static_cast<off_t>(written_bytes + done));
    (void)close(descriptor);
    descriptor = -1;
    incomplete.store(true, std::memory_order_relaxed);
    complain_of("the trace is incomplete: ", chosen_settings().trace_to, failure);
  }
};

struct recorder {
  std::mutex lock;
  std::array<recording*, device_slots> files{};
  std::unordered_map<std::uint64_t, std::uint64_t> streams;
  std::uint64_t last_number = 0;
  bool is_finishing = false;
};

recorder& the() noexcept {
  static recorder* const only = new recorder;
  return *only;
}

// Pipes and other non-files cannot be truncated.
bool is_file(int descriptor) noexcept {
  struct stat found{};
  return fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode);
}

// A second process with the same name writes beside the first.
int open_file(std::size_t slot) noexcept {
  file_name name(chosen_settings().trace_to);
  if (slot != 0) name.add(".device").add_number(slot);
  int descriptor = open_output(name.c_str(), existing_file::emptied);
  if (descriptor >= 0 && is_file(descriptor) && flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    close(descriptor);
    name.add(".").add_number(static_cast<std::uint64_t>(getpid()));
    descriptor = open_output(name.c_str(), existing_file::emptied);
  }
  if (descriptor >= 0 && is_file(descriptor) && ftruncate(descriptor, 0) != 0) {
    const int failure = errno;
    close(descriptor);
    descriptor = -failure;
  }
  if (descriptor < 0) complain_of("the trace cannot be written: ", name.c_str(), -descriptor);
  return descriptor;
}

recording* file_of(recorder& r, std::size_t slot) {
  if (r.files[slot] != nullptr) return r.files[slot];
  auto made = std::make_unique<recording>();
  made->descriptor = open_file(slot);
  r.files[slot] = made.release();
  return r.files[slot];
}

// The place for one more line; null where the recording takes none.
recording* room_in(recorder& r, std::size_t slot) {
  recording* file = file_of(r, slot);
  if (file->descriptor < 0 || file->event_count >= events_max) return nullptr;
  if (buffer_bytes - file->used < line_bytes_max) file->flush();
  return file->descriptor < 0 ? nullptr : file;
}

void put(recording& file, std::string_view text) noexcept {
  for (const char each : text) file.buffer[file.used++] = each;
}

void put(recording& file, std::uint64_t value) noexcept {
  char* const begin = file.buffer.data() + file.used;
  file.used += static_cast<std::size_t>(std::to_chars(begin, begin + 24, value).ptr - begin);
}

void end_line(recorder& r, recording& file) noexcept {
  put(file, "\n");
  ++file.event_count;
  if (r.is_finishing) file.flush();
}

}  // namespace

std::uint64_t add(std::size_t slot, std::uint64_t size_bytes, std::uint64_t stream_key) noexcept {
  recorder& r = the();
  const std::lock_guard<std::mutex> turn(r.lock);
  try {
    recording* file = room_in(r, slot);
    const auto stream = r.streams.try_emplace(stream_key, r.streams.size()).first->second;
    if (file == nullptr || stream >= streams_max || size_bytes > size_bytes_max) {
      incomplete.store(true, std::memory_order_relaxed);
      return 0;
    }
    put(*file, "a ");
    put(*file, ++r.last_number);
    put(*file, " ");
    put(*file, size_bytes);
    put(*file, " ");
    put(*file, stream);
    end_line(r, *file);
    return r.last_number;
  } catch (const std::bad_alloc&) {
    incomplete.store(true, std::memory_order_relaxed);
    return 0;
  }
}

void remove(std::size_t slot, std::uint64_t number) noexcept {
  recorder& r = the();
  const std::lock_guard<std::mutex> turn(r.lock);
  recording* file = room_in(r, slot);
  if (file == nullptr) {
    incomplete.store(true, std::memory_order_relaxed);
    return;
  }
  put(*file, "f ");
  put(*file, number);
  end_line(r, *file);
}

bool is_incomplete() noexcept { return incomplete.load(std::memory_order_relaxed); }

void finish() noexcept {
  recorder& r = the();
  const std::lock_guard<std::mutex> turn(r.lock);
  r.is_finishing = true;
  for (recording* each : r.files) {
    if (each != nullptr && each->descriptor >= 0) each->flush();
  }
}

void before_fork() noexcept { the().lock.lock(); }

// The child has the parent's buffers: they are the parent's to write.
void after_fork(bool is_child) noexcept {
  recorder& r = the();
  if (is_child) {
    for (recording*& each : r.files) {
      if (each != nullptr && each->descriptor >= 0) close(each->descriptor);
      delete each;
      each = nullptr;
    }
    r.streams.clear();
  }
  r.lock.unlock();
}

}  // namespace vmm::preload::trace
