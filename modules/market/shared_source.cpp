// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The sources of a process that are one tenant, the loans of a source, and waits for an owner.
module;
#include <cerrno>

#include "process.hpp"

module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

// ---- waits ---------------------------------------------------------------------------

wait_end wait_for(std::unique_lock<std::mutex>& held, std::condition_variable& changed,
                  std::int64_t until_ns, const std::function<bool()>& is_done) {
  constexpr std::int64_t slice_ns = 100'000'000;
  while (!is_done()) {
    const std::int64_t rest_ns = until_ns - unix_os::clock_ns();
    if (rest_ns <= 0) return wait_end::late;
    const bool is_interruptible = unix_os::is_interruptible();
    if (!is_interruptible && until_ns == std::numeric_limits<std::int64_t>::max()) {
      changed.wait(held, is_done);
      return wait_end::done;
    }
    const std::int64_t next_ns = is_interruptible ? std::min(rest_ns, slice_ns) : rest_ns;
    if (changed.wait_for(held, std::chrono::nanoseconds(next_ns), is_done)) return wait_end::done;
    held.unlock();
    const bool is_over = unix_os::is_interrupted();
    held.lock();
    if (is_over) return wait_end::interrupted;
  }
  return wait_end::done;
}

error interrupted_wait() noexcept {
  return {errc::unavailable, call::none, EINTR, errno_name(EINTR),
          "the wait for the owner of the device's memory was interrupted"};
}

// ---- loans ---------------------------------------------------------------------------

source_loans::loan source_loans::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = of_.find(std::this_thread::get_id());
  if (found == of_.end()) return {};
  loan taken = std::move(found->second);
  of_.erase(found);
  return taken;
}

void source_loans::put(loan&& next) {
  const std::lock_guard<std::mutex> lock(mutex_);
  of_[std::this_thread::get_id()] = std::move(next);
}

void source_loans::use(std::uint64_t size_bytes, lent_list& out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = of_.find(std::this_thread::get_id());
  if (found == of_.end()) return;
  lent_list& handles = found->second.handles;
  out.reserve(out.size() + handles.size());
  for (auto at = handles.begin(); at != handles.end() && size_bytes != 0;) {
    if (at->size_bytes > size_bytes) {
      ++at;
      continue;
    }
    size_bytes -= at->size_bytes;
    out.push_back(*at);
    at = handles.erase(at);
  }
}

std::uint64_t source_loans::bytes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::uint64_t sum_bytes = 0;
  for (const auto& [thread, each] : of_) {
    for (const lent_handle& lent : each.handles) sum_bytes += lent.size_bytes;
  }
  return sum_bytes;
}

// ---- one tenant for a process --------------------------------------------------------

namespace {

// Owned by its members, which are removed while no callback runs.
struct joint_source {
  explicit joint_source(const tenant_options& of) : options(of) {}

  const tenant_options options;
  std::shared_mutex calls;  // shared over callbacks
  std::vector<source_callbacks> members;
  // Under the table's lock: `inside` is null while it joins and while it leaves.
  std::size_t member_count = 0;
  std::unique_ptr<memory_source> inside;
  std::thread::id joins_in = std::this_thread::get_id();  // none: it has joined

  static std::uint64_t ask(void* of, const recall_request& what) noexcept {
    auto& self = *static_cast<joint_source*>(of);
    const std::shared_lock<std::shared_mutex> lock(self.calls);
    std::uint64_t given_bytes = 0;
    for (const source_callbacks& each : self.members) {
      if (given_bytes >= what.bytes) break;
      if (each.ask != nullptr)
        given_bytes +=
            each.ask(each.of, {what.bytes - given_bytes, what.within_ns, what.only_idle});
    }
    return given_bytes;
  }
  static void drop(void* of, std::uint64_t id) noexcept {
    auto& self = *static_cast<joint_source*>(of);
    const std::shared_lock<std::shared_mutex> lock(self.calls);
    for (const source_callbacks& each : self.members) {
      if (each.drop != nullptr) each.drop(each.of, id);
    }
  }
};

// Of this process: a forked child leaves its parent's behind.
struct joint_table {
  [[nodiscard]] static joint_table& here() {
    static std::atomic<joint_table*> current = nullptr;
    joint_table* found = current.load(std::memory_order_acquire);
    while (found == nullptr || !found->made_in.is_here()) {
      auto made = std::make_unique<joint_table>();
      if (!current.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) continue;
      leave_behind(found);
      return *made.release();
    }
    return *found;
  }

  const process_mark made_in{};
  std::mutex mutex;                 // over no wait except for `changed`
  std::condition_variable changed;  // a source has joined or left
  std::vector<joint_source*> all;
};

// In the table while it joins, and where that failed not any more.
class joining {
 public:
  joining(joint_table& table, std::unique_ptr<joint_source> made) : table_(table) {
    table.all.push_back(made.get());
    joint_ = made.release();
  }
  joining(const joining&) = delete;
  joining& operator=(const joining&) = delete;
  ~joining() {
    const std::unique_ptr<joint_source> failed(joint_);
    const std::lock_guard<std::mutex> lock(table_.mutex);
    if (failed) std::erase(table_.all, failed.get());
    table_.changed.notify_all();
  }
  [[nodiscard]] joint_source& joint() const noexcept { return *joint_; }
  void succeed(std::unique_ptr<memory_source> inside) {
    const std::lock_guard<std::mutex> lock(table_.mutex);
    joint_->inside = std::move(inside);
    joint_->joins_in = {};
    joint_->member_count = 1;
    joint_ = nullptr;
  }

 private:
  joint_table& table_;
  joint_source* joint_ = nullptr;
};

class member_source final : public memory_source {
 public:
  // Counted among the members.
  member_source(joint_source& joint, const source_callbacks& callbacks)
      : joint_(joint), of_(callbacks.of) {
    const std::lock_guard<std::shared_mutex> lock(joint_.calls);
    joint_.members.push_back(callbacks);
  }
  member_source(const member_source&) = delete;
  member_source& operator=(const member_source&) = delete;
  ~member_source() override {
    {
      const std::lock_guard<std::shared_mutex> lock(joint_.calls);
      std::erase_if(joint_.members, [this](const auto& each) { return each.of == of_; });
    }
    leave(joint_);
  }
  [[nodiscard]] static std::unique_ptr<memory_source> make(joint_source& joint,
                                                           const source_callbacks& callbacks) {
    try {
      return std::make_unique<member_source>(joint, callbacks);
    } catch (...) {
      leave(joint);
      throw;
    }
  }

  [[nodiscard]] status take(const lot_request& what, lent_list& out) override {
    return joint_.inside->take(what, out);
  }
  [[nodiscard]] status check_possible(std::uint64_t bytes) const override {
    return joint_.inside->check_possible(bytes);
  }
  void give(std::span<const lent_handle> handles) noexcept override {
    joint_.inside->give(handles);
  }
  [[nodiscard]] source_totals totals() const noexcept override { return joint_.inside->totals(); }
  [[nodiscard]] std::string last_refusal() const override { return joint_.inside->last_refusal(); }
  [[nodiscard]] const void* identity() const noexcept override { return &joint_; }
  [[nodiscard]] source_loans& loans() noexcept override { return joint_.inside->loans(); }

 private:
  // The last one leaves the market, before another with its options joins.
  static void leave(joint_source& joint) {
    joint_table& table = joint_table::here();
    std::unique_ptr<memory_source> ended;
    {
      const std::lock_guard<std::mutex> lock(table.mutex);
      if (--joint.member_count != 0) return;
      ended = std::move(joint.inside);
    }
    ended.reset();
    const std::unique_ptr<joint_source> gone(&joint);
    const std::lock_guard<std::mutex> lock(table.mutex);
    std::erase(table.all, gone.get());
    table.changed.notify_all();
  }

  joint_source& joint_;
  void* of_;
};

}  // namespace

result<std::unique_ptr<memory_source>> join_market_once(const tenant_options& options,
                                                        const source_callbacks& callbacks) {
  joint_table& table = joint_table::here();
  std::unique_lock<std::mutex> lock(table.mutex);
  const auto find = [&] {
    return std::find_if(table.all.begin(), table.all.end(),
                        [&](const joint_source* each) { return each->options == options; });
  };
  if (const auto found = find();
      found != table.all.end() && (*found)->joins_in == std::this_thread::get_id())
    return refuse(
        errc::in_use,
        "this thread is joining the owner of the device's memory, in a call that a signal "
        "handler interrupts: raise an exception, which ends the call");
  const auto is_settled = [&] {
    const auto found = find();
    return found == table.all.end() || (*found)->inside != nullptr;
  };
  if (wait_for(lock, table.changed, std::numeric_limits<std::int64_t>::max(), is_settled) !=
      wait_end::done)
    return interrupted_wait();
  if (const auto found = find(); found != table.all.end()) {
    joint_source& joint = **found;
    ++joint.member_count;
    lock.unlock();
    return member_source::make(joint, callbacks);
  }
  joining entry(table, std::make_unique<joint_source>(options));
  lock.unlock();
  joint_source& joint = entry.joint();
  auto joined = join_market(options, {&joint, joint_source::ask, joint_source::drop});
  if (!joined) return joined;
  entry.succeed(std::move(*joined));
  return member_source::make(joint, callbacks);
}

std::uint64_t market_charged_bytes(const market_key& device) {
  joint_table& table = joint_table::here();
  const std::lock_guard<std::mutex> lock(table.mutex);
  std::uint64_t bytes = 0;
  for (const joint_source* const each : table.all) {
    if (each->inside != nullptr && each->options.device == device)
      bytes += each->inside->totals().charged_bytes;
  }
  return bytes;
}

}  // namespace vmm
