// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

module vmm.observe;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {
namespace {

std::uint64_t sum(const std::array<std::atomic<std::uint64_t>, call_count>& counts) noexcept {
  std::uint64_t total = 0;
  for (const auto& each : counts) total += each.load(std::memory_order_relaxed);
  return total;
}

struct file_closer {
  void operator()(std::FILE* file) const noexcept {
    without_write_signals([&] { std::fclose(file); });
  }
};
using file_owner = std::unique_ptr<std::FILE, file_closer>;

constexpr const char* no_host_memory = "operator new failed for the call log";

[[nodiscard]] error cannot_open(int failure) noexcept {
  constexpr const char* otherwise = "name stderr or a writable path";
  const char* const why = file_text(failure, otherwise);
  error refused = refuse(errc::bad_option,
                         detail_text().add("the log file cannot be opened: ").add(why).keep(why));
  refused.native = failure;
  refused.native_name = errno_name(failure);
  return refused;
}

// A line of bounded length; what does not fit is cut off.
class line {
 public:
  [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) noexcept {
    check(used_ < text_.size(), "a line of the log is longer than its room");
    std::va_list values;
    va_start(values, format);
    const int length = std::vsnprintf(text_.data() + used_, text_.size() - used_, format, values);
    va_end(values);
    if (length > 0) used_ = std::min(used_ + static_cast<std::size_t>(length), text_.size() - 1);
    check(used_ < text_.size(), "a line of the log has no room for its end");
  }
  // 0, or the system's code.
  [[nodiscard]] int write(std::FILE* sink) noexcept {
    check(sink != nullptr && used_ < text_.size(), "a line has no target, or is too long");
    text_[used_] = '\n';
    int failure = 0;
    without_write_signals([&] {
      errno = 0;
      const bool is_taken = std::fwrite(text_.data(), 1, used_ + 1, sink) == used_ + 1;
      if (!is_taken || std::ferror(sink) != 0) failure = errno != 0 ? errno : EIO;
      std::clearerr(sink);
    });
    return failure;
  }

 private:
  std::array<char, 512> text_{};
  std::size_t used_ = 0;
};

const char* name_of_place(location::place kind) noexcept {
  switch (kind) {
    case location::place::device: return "device";
    case location::place::host: return "host";
    case location::place::host_node: return "host_node";
  }
  return "unknown";
}

const char* name_of_rights(access rights) noexcept {
  switch (rights) {
    case access::none: return "none";
    case access::read: return "read";
    case access::read_write: return "read_write";
  }
  return "unknown";
}

void add_facts(line& text, const call_facts& facts) noexcept {
  if (facts.at) text.add(" at=0x%" PRIx64, facts.at.value);
  if (facts.source) text.add(" source=0x%" PRIx64, facts.source.value);
  if (facts.size_bytes != 0) text.add(" size=%" PRIu64, facts.size_bytes);
  if (facts.limit_bytes != 0) text.add(" limit=%" PRIu64, facts.limit_bytes);
  if (facts.offset_bytes != 0) text.add(" offset=%" PRIu64, facts.offset_bytes);
  if (facts.object != 0) text.add(" handle=0x%" PRIx64, facts.object);
  if (facts.stream != 0) text.add(" stream=0x%" PRIx64, facts.stream);
  if (facts.event != 0) text.add(" event=0x%" PRIx64, facts.event);
  if (facts.where)
    text.add(" where=%s:%d", name_of_place(facts.where->kind),
             static_cast<int>(facts.where->ordinal));
  if (facts.rights) text.add(" rights=%s", name_of_rights(*facts.rights));
  if (facts.value) text.add(" value=%" PRIu64, *facts.value);
}

}  // namespace

std::uint64_t call_counter::calls() const noexcept { return sum(calls_); }
std::uint64_t call_counter::failures() const noexcept { return sum(failures_); }

void call_counter::reset() noexcept {
  for (auto& each : calls_) each.store(0, std::memory_order_relaxed);
  for (auto& each : failures_) each.store(0, std::memory_order_relaxed);
}

result<std::shared_ptr<call_log>> call_log::open(std::string_view destination) noexcept {
  try {
    if (destination == "stderr") return std::make_shared<call_log>(*stderr);
    constexpr int flags = O_WRONLY | O_APPEND | O_CREAT;
    const opened_file opened = open_named(std::string{destination}.c_str(), flags);
    if (opened.failure != 0) return cannot_open(opened.failure);
    file_owner file{::fdopen(opened.descriptor, "a")};
    if (file == nullptr) {
      (void)::close(opened.descriptor);
      return refuse(errc::out_of_host_memory, no_host_memory);
    }
    // A line is written when it is complete: a forked child has no half of it to write again.
    (void)std::setvbuf(file.get(), nullptr, _IOLBF, BUFSIZ);
    auto made = std::make_shared<call_log>(*file);
    check(made->sink_ == file.get() && !made->owned_, "a log writes to another file");
    (void)file.release();
    made->owned_ = true;
    return made;
  } catch (const std::bad_alloc&) {
    return refuse(errc::out_of_host_memory, no_host_memory);
  }
}

call_log::~call_log() {
  check(!owned_ || sink_ != nullptr, "a log owns a missing file");
  if (owned_ && made_in_.is_here()) file_closer{}(sink_);
}

void call_log::after(const call_record& record) noexcept {
  check(record.kind != call::none, "a call of no kind is logged");
  check(sink_ != nullptr, "a call is logged to no file");
  check(record.failure == nullptr || record.failure->code != errc::none,
        "a call fails without a code");
  line text;
  text.add("%" PRIu64 " %s", lines_.fetch_add(1, std::memory_order_relaxed) + 1,
           name_of(record.kind));
  add_facts(text, record.arguments);
  if (record.failure == nullptr) {
    text.add(" -> ok");
    add_facts(text, record.results);
  } else {
    text.add(" -> %s", name_of(record.failure->code));
    if (record.failure->native_name[0] != '\0') {
      text.add(" (%s %" PRId64 ")", record.failure->native_name, record.failure->native);
    }
    if (record.failure->detail[0] != '\0') text.add(": %s", record.failure->detail);
  }
  const int failure = text.write(sink_);
  if (failure == 0 || sink_ == stderr || is_incomplete_.exchange(true)) return;
  without_write_signals([&] {
    std::fprintf(stderr, "vmm: the log of the driver's calls is incomplete: %s\n",
                 file_text(failure, std::strerror(failure)));
  });
}

void fail_plan::add(const rule& planned) noexcept {
  check(planned.failure.code != errc::none, "a planned failure needs a code");
  check(planned.nth != 0, "a planned failure counts calls from 1");
  const std::lock_guard<std::mutex> locked(guard_);
  check(count_ < rules_max, "too many planned failures at a time");
  check(planned.failure.native_name != nullptr && planned.failure.detail != nullptr,
        "a planned failure has no texts");
  rules_[count_++] = {planned, 0};
}

void fail_plan::clear() noexcept {
  const std::lock_guard<std::mutex> locked(guard_);
  check(count_ <= rules_max, "too many failures are planned");
  count_ = 0;
}

std::uint64_t fail_plan::struck() const noexcept {
  const std::lock_guard<std::mutex> locked(guard_);
  return struck_;
}

status fail_plan::before(const call_record& record) noexcept {
  const std::lock_guard<std::mutex> locked(guard_);
  check(count_ <= rules_max, "too many failures are planned");
  const error* chosen = nullptr;
  for (std::size_t i = 0; i < count_; ++i) {
    auto& [planned, seen] = rules_[i];
    if (planned.kind != call::none && planned.kind != record.kind) continue;
    ++seen;
    const bool strikes =
        seen >= planned.nth && (planned.times == 0 || seen - planned.nth < planned.times);
    if (strikes && chosen == nullptr) chosen = &planned.failure;
  }
  if (chosen == nullptr) return {};
  check(chosen->code != errc::none, "a planned failure has no code");
  ++struck_;
  return *chosen;
}

}  // namespace vmm
