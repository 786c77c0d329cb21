// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The sources of a process that are one tenant, and the loans of a source.
module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.std;

namespace vmm {

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

std::atomic<guarantee_claim> claim_of_process = nullptr;

struct held_claim {
  explicit held_claim(const tenant_options& of)
      : claim(claim_of_process.load(std::memory_order_acquire)),
        uuid(market_device_text(of.device)),
        is_held(of.share.guarantee_bytes != 0 && (claim == nullptr || claim(uuid.c_str(), 1))) {}
  held_claim(const held_claim&) = delete;
  held_claim& operator=(const held_claim&) = delete;
  ~held_claim() {
    if (is_held && claim != nullptr) (void)claim(uuid.c_str(), -1);
  }

  const guarantee_claim claim;
  const std::string uuid;
  const bool is_held;
};

// Owned by its members, which are removed while no callback runs.
struct joint_source {
  explicit joint_source(const tenant_options& of) : options(of), guarantee(of) {}

  tenant_options options;
  held_claim guarantee;     // until `inside` has left
  std::shared_mutex calls;  // shared over callbacks
  std::vector<source_callbacks> members;
  std::unique_ptr<memory_source> inside;

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
  std::mutex mutex;                // over a join, which may wait for guarantees, and an end
  std::mutex listing;              // over changes of the list
  std::vector<joint_source*> all;  // each has a member
};

class member_source final : public memory_source {
 public:
  // Under the table's lock.
  member_source(joint_source& joint, const source_callbacks& callbacks)
      : joint_(joint), of_(callbacks.of) {
    const std::lock_guard<std::shared_mutex> lock(joint_.calls);
    joint_.members.push_back(callbacks);
  }
  member_source(const member_source&) = delete;
  member_source& operator=(const member_source&) = delete;
  // The last one leaves the market, before another may join.
  ~member_source() override {
    joint_table& table = joint_table::here();
    const std::lock_guard<std::mutex> turn(table.mutex);
    bool is_last = false;
    {
      const std::lock_guard<std::shared_mutex> lock(joint_.calls);
      std::erase_if(joint_.members, [this](const auto& each) { return each.of == of_; });
      is_last = joint_.members.empty();
    }
    if (!is_last) return;
    {
      const std::lock_guard<std::mutex> lock(table.listing);
      std::erase(table.all, &joint_);
    }
    delete &joint_;
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
  joint_source& joint_;
  void* of_;
};

}  // namespace

result<std::unique_ptr<memory_source>> join_market_once(const tenant_options& options,
                                                        const source_callbacks& callbacks) {
  joint_table& table = joint_table::here();
  const std::lock_guard<std::mutex> lock(table.mutex);
  for (joint_source* const each : table.all) {
    if (each->options == options)
      return std::unique_ptr<memory_source>(std::make_unique<member_source>(*each, callbacks));
  }
  {
    const std::lock_guard<std::mutex> listing(table.listing);
    table.all.reserve(table.all.size() + 1);
  }
  auto made = std::make_unique<joint_source>(options);
  tenant_options own = options;
  if (!made->guarantee.is_held) own.leave_guarantee();
  auto joined = join_market(own, {made.get(), joint_source::ask, joint_source::drop});
  if (!joined) return joined;
  made->inside = std::move(*joined);
  auto member = std::make_unique<member_source>(*made, callbacks);
  const std::lock_guard<std::mutex> listing(table.listing);
  table.all.push_back(made.release());
  return std::unique_ptr<memory_source>(std::move(member));
}

void set_guarantee_claim(guarantee_claim claim) noexcept {
  claim_of_process.store(claim, std::memory_order_release);
}

std::uint64_t market_charged_bytes(const market_key& device) {
  joint_table& table = joint_table::here();
  const std::lock_guard<std::mutex> lock(table.listing);
  std::uint64_t bytes = 0;
  for (const joint_source* const each : table.all) {
    if (each->options.device == device) bytes += each->inside->totals().charged_bytes;
  }
  return bytes;
}

}  // namespace vmm
