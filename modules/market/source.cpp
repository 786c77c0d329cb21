// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A tenant's connection: the machine of :tenant under a lock, a thread for the socket, and a thread
// for callbacks, which take neither.
module;
#include <cerrno>

#include "process.hpp"

module vmm.market;

import vmm.backend;
import vmm.base;
import vmm.std;
import :failures;

namespace vmm {
namespace {

// Each attempt without a welcome doubles the time to the next one.
constexpr std::int64_t reconnect_ns = 1'000'000, reconnect_ns_max = 100'000'000;

class tenant_source final : public memory_source {
 public:
  tenant_source(tenant_options options, const source_callbacks& callbacks);
  tenant_source(const tenant_source&) = delete;
  tenant_source& operator=(const tenant_source&) = delete;
  ~tenant_source() override;

  [[nodiscard]] status start();
  [[nodiscard]] status take(const lot_request& what, lent_list& out) override;
  [[nodiscard]] status check_possible(std::uint64_t bytes) const override;
  void give(std::span<const lent_handle> handles) noexcept override;
  [[nodiscard]] source_totals totals() const noexcept override;
  [[nodiscard]] std::string last_refusal() const override;

 private:
  using guard = std::unique_lock<std::mutex>;
  struct letter {
    market_bytes bytes{};
    std::vector<int> descriptors{};  // of the table or the witness: not closed
  };
  struct outcome {
    bool is_granted = false;
    market_reason reason = market_reason::none;
    std::string refusal{};
  };
  struct recall {
    std::uint64_t request = 0;
    recall_request what{};
    std::uint64_t drop = 0;  // a handle, or 0 for an ask
  };
  struct conditions {
    std::condition_variable changed;
    std::condition_variable recalled;
  };

  void run_socket() noexcept;
  void run_callbacks() noexcept;
  void connect(guard& held);
  void disconnect();
  void connect_later() noexcept;
  void receive_all();
  void receive_one(const market_message& message, const std::vector<int>& descriptors);
  void act();
  void send(const market_message& message);
  void flush();
  void call_back(guard& held, const recall& each);
  [[nodiscard]] lent_handle lent(const market_handle& handle) const;

  tenant_options options_;
  source_callbacks callbacks_;
  process_mark made_in_;
  mutable std::mutex mutex_;
  std::unique_ptr<conditions> conditions_ = std::make_unique<conditions>();
  market_tenant machine_;
  unix_os::descriptor_pair witness_{};
  int wake_ = -1;
  int socket_ = -1;
  std::int64_t connect_after_ns_ = 0, reconnect_ns_ = reconnect_ns;
  std::deque<letter> outbox_;
  std::map<std::uint64_t, int> descriptors_;
  std::map<std::uint64_t, outcome> outcomes_;
  std::deque<recall> recalls_;
  std::string refusal_;
  market_reason refusal_reason_ = market_reason::none;
  unix_os::connected connected_{};  // the last attempt
  int started_ = 0;  // the program before it: 0, or why no owner; below 0: the folder
  bool is_ending_ = false, is_starting_ = false;
  std::thread socket_thread_, callback_thread_;
};

constexpr std::int64_t never_ns = std::numeric_limits<std::int64_t>::max();

std::string socket_path(const tenant_options& options) {
  return options.directory + "/" + market_socket_name(options.device);
}

// ---- life ----------------------------------------------------------------------------

tenant_source::tenant_source(tenant_options options, const source_callbacks& callbacks)
    : options_(std::move(options)),
      callbacks_(callbacks),
      machine_({.device = options_.device,
                .name = options_.name,
                .group = options_.group,
                .secret = options_.secret,
                .job = options_.job,
                .share = options_.share,
                .wait_ns = std::uint64_t{options_.wait_ms} * 1'000'000}) {}

// A forked child has neither the threads nor the connection. The destructor of a condition would
// wait for the threads.
tenant_source::~tenant_source() {
  if (!made_in_.is_here()) {
    if (socket_thread_.joinable()) socket_thread_.detach();
    if (callback_thread_.joinable()) callback_thread_.detach();
    leave_behind(conditions_.release());
    return;
  }
  {
    const guard held(mutex_);
    is_ending_ = true;
    if (machine_.handles().in_use().empty()) machine_.leave();
    act();
    flush();
    conditions_->recalled.notify_all();
    if (wake_ >= 0) unix_os::wake(wake_);
  }
  if (socket_thread_.joinable()) socket_thread_.join();
  if (callback_thread_.joinable()) callback_thread_.join();
  disconnect();
  for (const auto& [id, descriptor] : descriptors_) unix_os::close(descriptor);
  unix_os::close(wake_);
  unix_os::close(witness_.first);
  unix_os::close(witness_.second);
}

status tenant_source::start() {
  (void)unix_os::raise_descriptor_limit();
  witness_ = unix_os::make_pair();
  const unix_os::opened made = unix_os::make_wake();
  wake_ = made.descriptor;
  if (witness_.failure != 0 || made.failure != 0)
    return refuse(errc::out_of_host_memory, file_text(std::max(witness_.failure, made.failure),
                                                      "no descriptor is left for the market"));
  const std::int64_t within_ms = std::int64_t{options_.timeout_ms} + options_.wait_ms;
  const std::int64_t until_ns = unix_os::clock_ns() + within_ms * 1'000'000;
  unix_os::signals_before signals;
  unix_os::block_signals(signals);
  socket_thread_ = std::thread([this] { run_socket(); });
  callback_thread_ = std::thread([this] { run_callbacks(); });
  unix_os::restore_signals(signals);
  guard held(mutex_);
  const auto is_over = [this] {
    const bool has_hung = started_ == ETIMEDOUT && connected_.failure != 0;
    return has_hung || machine_.stage() == tenant_stage::open ||
           machine_.stage() == tenant_stage::refused;
  };
  wait_end end = wait_for(held, conditions_->changed, until_ns, is_over);
  if (end == wait_end::late && is_starting_) {
    end = wait_for(held, conditions_->changed, never_ns, [this] { return !is_starting_; });
    const std::int64_t more_ns = std::int64_t{options_.timeout_ms} * 1'000'000;
    if (end == wait_end::done && connected_.failure == 0)
      end = wait_for(held, conditions_->changed, unix_os::clock_ns() + more_ns, is_over);
  }
  if (end == wait_end::interrupted) return interrupted_wait();
  if (machine_.stage() == tenant_stage::open) return {};
  if (machine_.stage() == tenant_stage::refused) {
    detail_text why;
    why.add("the owner of the device's memory refuses: ").add(refusal_);
    return refuse(join_code(refusal_reason_), why.keep("the owner of the device's memory refuses"));
  }
  if (connected_.failure != 0) return connect_failure(options_, connected_, started_);
  char why[400];
  unix_os::explain_silence(socket_, options_.directory.c_str(), why, sizeof why);
  detail_text text;
  return refuse(errc::unavailable,
                text.add(why).keep("the owner of the device's memory is silent"));
}

// ---- requests ------------------------------------------------------------------------

lent_handle tenant_source::lent(const market_handle& handle) const {
  const auto found = descriptors_.find(handle.id);
  check(found != descriptors_.end(), "a handle is lent without its descriptor");
  return {handle.id, handle.generation, handle.size_bytes(), found->second, handle.must_clear};
}

status tenant_source::take(const lot_request& what, lent_list& out) {
  check(what.bytes % market_granule_bytes == 0, "a request of a tenant is not whole granules");
  if (!made_in_.is_here())
    return refuse(errc::not_permitted, "a forked child is not a tenant of its parent's owner");
  guard held(mutex_);
  if (machine_.stage() == tenant_stage::refused) return take_error(market_reason::broken, refusal_);
  const std::uint64_t request =
      machine_.want({what.bytes, what.bytes, what.within_ns, what.unit_bytes}, unix_os::clock_ns());
  act();
  flush();
  unix_os::wake(wake_);  // for its deadline
  const auto is_over = [&] { return outcomes_.contains(request); };
  if (wait_for(held, conditions_->changed, never_ns, is_over) == wait_end::interrupted) {
    machine_.cancel(request);
    outcomes_.erase(request);
    act();
    flush();
    return interrupted_wait();
  }
  const outcome end = std::move(outcomes_.at(request));
  outcomes_.erase(request);
  if (!end.is_granted) return take_error(end.reason, end.refusal);
  std::vector<market_handle> lot = machine_.take_lot(request);
  std::stable_sort(lot.begin(), lot.end(),
                   [](const auto& a, const auto& b) { return a.granules > b.granules; });
  for (const market_handle& each : lot) out.push_back(lent(each));
  return {};
}

status tenant_source::check_possible(std::uint64_t bytes) const {
  if (!made_in_.is_here()) return {};
  const guard held(mutex_);
  const market_reach reach = machine_.reach();
  if (reach.capacity_bytes == 0 || bytes <= reach.most_bytes()) return {};
  return take_error(reach.is_at_limit() ? market_reason::limit : market_reason::too_large,
                    beyond_text(reach));
}

void tenant_source::give(std::span<const lent_handle> handles) noexcept {
  if (!made_in_.is_here()) return;
  const guard held(mutex_);
  std::vector<market_handle> given;
  for (const lent_handle& each : handles) {
    given.push_back({.id = each.id,
                     .generation = each.generation,
                     .granules = static_cast<std::uint32_t>(each.size_bytes / market_granule_bytes),
                     .must_clear = each.must_clear});
  }
  machine_.give(given);
  act();
  flush();
}

source_totals tenant_source::totals() const noexcept {
  const guard held(mutex_);
  const market_reach reach = machine_.reach();
  return {reach.total_bytes(), machine_.handles().held_bytes(), reach.most_bytes()};
}

std::string tenant_source::last_refusal() const {
  const guard held(mutex_);
  return refusal_;
}

// ---- the socket ----------------------------------------------------------------------

void tenant_source::send(const market_message& message) {
  letter made{encode_market_message(message), {}};
  if (message.kind == market_kind::hello) made.descriptors.push_back(witness_.first);
  if (message.kind == market_kind::inventory) {
    for (const market_handle& each : message.handle_list())
      made.descriptors.push_back(descriptors_.at(each.id));
  }
  outbox_.push_back(std::move(made));
}

// Sends what the socket takes now.
void tenant_source::flush() {
  while (socket_ >= 0 && !outbox_.empty()) {
    const letter& first = outbox_.front();
    const int failure = unix_os::send_message(socket_, {first.bytes.data(), first.bytes.size()},
                                              {first.descriptors.data(), first.descriptors.size()},
                                              unix_os::deadline{0});
    if (failure == ETIMEDOUT) break;
    if (failure != 0) {
      disconnect();
      break;
    }
    outbox_.pop_front();
  }
  if (!outbox_.empty()) unix_os::wake(wake_);
}

void tenant_source::disconnect() {
  outbox_.clear();
  if (socket_ < 0) return;
  const int ended = std::exchange(socket_, -1);
  unix_os::forget_in_children(ended);
  unix_os::end_connection(ended);
  connect_later();
  machine_.lost(unix_os::clock_ns());
  act();
}

void tenant_source::connect_later() noexcept {
  connect_after_ns_ = unix_os::clock_ns() + reconnect_ns_;
  reconnect_ns_ = std::min(2 * reconnect_ns_, reconnect_ns_max);
}

void tenant_source::connect(guard& held) {
  const std::string path = socket_path(options_);
  const bool has_failed = started_ != 0;  // and has said why
  is_starting_ = !options_.program.empty();
  held.unlock();
  int started = 0;
  unix_os::connected made =
      unix_os::connect_at(path.data(), path.size(), unix_os::deadline_in(100));
  if (made.descriptor < 0 && !options_.program.empty())
    started = -unix_os::make_private_folder(options_.directory.c_str());
  if (made.descriptor < 0 && !options_.program.empty() && started == 0) {
    const std::string device = market_device_text(options_.device);
    const std::array<const char*, 6> words{
        options_.program.c_str(), "serve",    options_.directory.c_str(),
        device.c_str(),           "--daemon", nullptr};
    started = unix_os::start_daemon(words.data(), has_failed);
    made = unix_os::connect_at(path.data(), path.size(), unix_os::deadline_in(100));
  }
  if (made.descriptor >= 0) {
    const unix_os::peer peer = unix_os::peer_of(made.descriptor);
    if (peer.failure != 0 || peer.uid != unix_os::own_uid() ||
        !unix_os::close_in_children(made.descriptor)) {
      unix_os::close(made.descriptor);
      made.descriptor = -1;
      made.failure = EACCES;
      made.fault = unix_os::place_fault::not_a_socket;  // of this user
    }
  }
  held.lock();
  connected_ = made;
  started_ = started;
  is_starting_ = false;
  conditions_->changed.notify_all();
  if (made.descriptor < 0) {
    // A place of others, or a program that hangs.
    if (made.failure == EACCES || started == ETIMEDOUT) reconnect_ns_ = reconnect_ns_max;
    connect_later();
    return;
  }
  socket_ = made.descriptor;
  machine_.connected(unix_os::clock_ns());
  act();
  flush();
}

void tenant_source::run_socket() noexcept {
  guard held(mutex_);
  while (!is_ending_) {
    const bool is_alone = machine_.stage() == tenant_stage::alone && socket_ < 0;
    if (is_alone && unix_os::clock_ns() >= connect_after_ns_) connect(held);
    std::int64_t until_ns = machine_.next_deadline_ns();
    if (machine_.stage() == tenant_stage::alone && socket_ < 0)
      until_ns = std::min(until_ns, connect_after_ns_);
    std::array<unix_os::watched, 2> list{
        {{.descriptor = wake_}, {.descriptor = socket_, .for_writing = !outbox_.empty()}}};
    const std::size_t count = socket_ < 0 ? 1 : 2;
    held.unlock();
    unix_os::wait_for_events(list.data(), count, until_ns);
    held.lock();
    if (list[0].is_ready) unix_os::clear_wake(wake_);
    if (count == 2 && list[1].descriptor == socket_ && list[1].is_ready) receive_all();
    flush();
    machine_.tick(unix_os::clock_ns());
    act();
    flush();
  }
}

void tenant_source::receive_all() {
  for (int left = 64; left > 0 && socket_ >= 0; --left) {
    market_bytes bytes{};
    std::array<int, unix_os::descriptors_max> came{};
    const unix_os::received got = unix_os::receive_message(socket_, bytes.data(), bytes.size(),
                                                           came.data(), unix_os::deadline{0});
    std::vector<int> descriptors(came.begin(),
                                 came.begin() + static_cast<std::ptrdiff_t>(got.descriptor_count));
    if (got.fault == unix_os::receive_fault::failed && got.failure == ETIMEDOUT) return;
    if (got.fault == unix_os::receive_fault::none) {
      const result<market_message> message = decode_market_message(bytes);
      if (message && descriptor_count_of(*message) == descriptors.size()) {
        receive_one(*message, descriptors);
        flush();
        continue;
      }
    }
    for (const int each : descriptors) unix_os::close(each);
    disconnect();
  }
}

// A descriptor that no handle keeps is closed.
void tenant_source::receive_one(const market_message& message,
                                const std::vector<int>& descriptors) {
  std::size_t next = 0;
  for (const market_handle& each : message.handle_list()) {
    if (!each.has_descriptor) continue;
    const int descriptor = descriptors[next++];
    if (!descriptors_.emplace(each.id, descriptor).second) unix_os::close(descriptor);
  }
  machine_.receive(message, unix_os::clock_ns());
  if (machine_.stage() == tenant_stage::open) reconnect_ns_ = reconnect_ns;
  for (const market_handle& each : message.handle_list()) {
    if (!each.has_descriptor || machine_.handles().is_held(each.id)) continue;
    if (const auto unused = descriptors_.find(each.id); unused != descriptors_.end()) {
      unix_os::close(unused->second);
      descriptors_.erase(unused);
    }
  }
  if (message.kind == market_kind::refused) {
    refusal_reason_ = message.reason;
    refusal_ = refusal_text(message);
    if (message.reason == market_reason::guarantees)
      refusal_ =
          "a guarantee of " + mebibytes(options_.share.guarantee_bytes) + " MiB: " + refusal_;
  }
  act();
  conditions_->changed.notify_all();
}

void tenant_source::act() {
  for (const tenant_action& each : machine_.take_actions()) {
    switch (each.kind) {
      case tenant_action::what::send: send(each.message); break;
      case tenant_action::what::keep:
        check(descriptors_.contains(each.handle.id), "a handle comes without its descriptor");
        break;
      case tenant_action::what::granted:
        outcomes_[each.request] = {true};
        conditions_->changed.notify_all();
        break;
      case tenant_action::what::denied:
        refusal_ = socket_ >= 0 ? refusal_text(each.message) : lost_text(options_);
        outcomes_[each.request] = {false, each.message.reason, refusal_};
        conditions_->changed.notify_all();
        break;
      case tenant_action::what::ask:
        recalls_.push_back({each.request,
                            {each.message.bytes, each.message.within_ns, each.message.only_idle},
                            0});
        conditions_->recalled.notify_all();
        break;
      case tenant_action::what::drop:
        recalls_.push_back({0, {}, each.handle.id});
        conditions_->recalled.notify_all();
        break;
      case tenant_action::what::close: disconnect(); break;
    }
  }
}

// ---- callbacks -----------------------------------------------------------------------

void tenant_source::call_back(guard& held, const recall& each) {
  held.unlock();
  std::uint64_t given_bytes = 0;
  if (each.drop != 0) {
    if (callbacks_.drop != nullptr) callbacks_.drop(callbacks_.of, each.drop);
  } else if (callbacks_.ask != nullptr) {
    given_bytes = callbacks_.ask(callbacks_.of, each.what);
  }
  held.lock();
  if (each.drop != 0) {
    if (machine_.dropped(each.drop)) {
      const auto found = descriptors_.find(each.drop);
      unix_os::close(found->second);
      descriptors_.erase(found);
    }
  } else if (given_bytes < each.what.bytes) {
    machine_.cannot({each.request, each.what.bytes - given_bytes});
  }
  act();
  flush();
}

void tenant_source::run_callbacks() noexcept {
  guard held(mutex_);
  for (;;) {
    conditions_->recalled.wait(held, [this] { return is_ending_ || !recalls_.empty(); });
    if (is_ending_) return;
    const recall first = recalls_.front();
    recalls_.pop_front();
    call_back(held, first);
  }
}

}  // namespace

result<std::unique_ptr<memory_source>> join_market(const tenant_options& options,
                                                   const source_callbacks& callbacks) {
  auto made = std::make_unique<tenant_source>(options, callbacks);
  if (const status started = made->start(); !started) return started.error();
  return std::unique_ptr<memory_source>(std::move(made));
}

}  // namespace vmm
