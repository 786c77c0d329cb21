// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// An owner, its tenants and their processes in one thread: messages, kills, stops, forks, clocks
// and a driver, all by one seed. Each step checks what must hold; `broken` has the first failure.
#pragma once

#include <deque>
#include <queue>

#include "../support/test.h"
#include "loans.hpp"

namespace market_test {

using vmm::market_handle, vmm::market_kind, vmm::market_message, vmm::market_owner,
    vmm::market_reason, vmm::market_tenant, vmm::owner_action, vmm::tenant_action,
    vmm::tenant_stage;

inline constexpr std::int64_t us = 1000, ms = 1000 * us, s = 1000 * ms;

// The driver's memory: it lives while something refers to it.
struct memory {
  std::uint64_t size_bytes = 0;
  int references = 0;
  int mapped_by = -1;  // the number of a process
  int group = 0;       // of its bytes; 0: cleared by the driver
  int job = 0;
};

struct letter {
  market_message message{};
  std::shared_ptr<const std::vector<int>> memories{};  // descriptors, each a reference
};

// A connection of one tenant with one owner.
struct connection {
  int tenant = 0;
  int process = 0;  // the tenant's at that time
  std::uint64_t epoch = 0;
  bool is_open = true;
  std::int64_t to_owner_ns = 0, to_tenant_ns = 0;  // of the last delivery: messages keep order
};

// A process of a tenant, also after its end while children or the device use its memory.
struct process {
  int tenant = 0;
  int children = 0;
  bool has_ended = false;
  bool has_closed = false;  // its witness
  bool is_torn_down = false;
  std::uint64_t owner_number = 0;  // the tenant's number, once it has one
  std::uint64_t epoch = 0;
  std::map<std::uint64_t, int> imports{};  // handle to memory
  std::map<std::uint64_t, market_handle> used{};
};

struct tenant_side {
  std::unique_ptr<market_tenant> machine{};
  market_tenant::identity self{};
  int process = -1;
  int group = 0, job = 0;
  std::uint64_t shared_process = 0;  // as the owner sees it; 0: not known
  std::uint64_t link = 0;            // 0: none
  bool is_stopped = false;
  bool gives_never = false;
  bool is_program = false;  // of one thread: it does nothing while it waits
  int turn = 0;
  bool is_done = false;
  std::int64_t stopped_ns = 0;  // when it ran again last
  std::map<std::uint64_t, std::int64_t> deadlines{};
  std::map<std::uint64_t, std::uint64_t> least_bytes{}, unit_bytes{};
  std::map<std::uint64_t, std::int64_t> since_ns{};
  std::vector<std::function<void()>> backlog{};
};

struct event {
  std::int64_t at_ns = 0;
  std::uint64_t order = 0;
  std::function<void()> run{};
  friend bool operator<(const event& a, const event& b) {
    return std::tie(a.at_ns, a.order) > std::tie(b.at_ns, b.order);
  }
};

class simulation {
 public:
  explicit simulation(std::uint64_t seed);
  ~simulation();
  simulation(const simulation&) = delete;
  simulation& operator=(const simulation&) = delete;

  // Runs the schedule to its quiet end. False: `broken` says what did not hold.
  bool run();

  std::string broken{};
  std::uint64_t hash = 1469598103934665603u;         // of what happened
  std::map<std::string_view, std::uint64_t> counts;  // of what happened, by its name

 private:
  std::uint64_t draw(std::uint64_t below) { return below == 0 ? 0 : random_() % below; }
  bool chance(unsigned percent) { return draw(100) < percent; }
  void at(std::int64_t in_ns, std::function<void()> what);
  void fail(const std::string& what);
  void note(std::uint64_t value) { hash = (hash ^ value) * 1099511628211u; }

  // memory
  int create_memory(std::uint64_t size_bytes);
  void refer(int memory, int by);
  void map(int tenant, const market_handle& handle);
  void unmap(process& from, std::uint64_t handle);
  void tear_down(int process);

  // owner
  void start_owner();
  void kill_owner();
  void pump_owner();
  void to_owner(const std::function<void()>& what);
  void driver_create(std::uint64_t handle, std::uint64_t size_bytes);
  void check_owner();
  void check_denial(const market_message& message, std::uint64_t link);
  void check_deadlock(std::int64_t since_ns);
  [[nodiscard]] bool is_to_blame(const vmm::tenant_record& holder, std::int64_t since_ns) const;
  void change_share();
  void deliver_to_owner(std::uint64_t link, letter what);
  void schedule_owner_tick();

  // tenants
  void start_tenant(int index);
  void connect(int index);
  void pump_tenant(int index);
  void act(int index, const tenant_action& action);
  void send_to_owner(int index, const market_message& message);
  void deliver_to_tenant(std::uint64_t link, letter what);
  void notice_end(int number);
  void notice_witness(int number);
  void close_links();
  void close_link(std::uint64_t link);
  void app_step(int index);
  void app_want(int index);
  void app_want(int index, const market_tenant::wanted& what);
  void program_step(int index);
  void check_cut(const std::vector<market_handle>& lot, std::uint64_t unit_bytes);
  void app_give(int index, std::uint64_t bytes);
  void app_ask(int index, const market_message& ask);
  void kill_tenant(int index);
  void end_process(int number);
  void stop_tenant(int index);
  void resume_tenant(int index);
  void fork_child(int index);
  void schedule_tenant_tick(int index);
  void check_deadlines(int index);
  void finish_tenant(int index);

  void check_end();
  void trace(const char* what, std::uint64_t link, const market_message& message) const;
  // A message whose descriptors close with its last copy.
  [[nodiscard]] letter seal(const market_message& message, std::vector<int> memories);

  std::mt19937_64 random_;
  std::int64_t now_ns_ = 1 * s;
  std::uint64_t order_ = 0;
  std::priority_queue<event> events_;
  std::vector<memory> memories_;
  std::uint64_t device_bytes_ = 0, used_bytes_ = 0, outside_bytes_ = 0;
  bool is_winding_down_ = false;

  std::unique_ptr<market_owner> owner_;
  std::uint64_t epoch_ = 0;
  std::map<std::uint64_t, int> owner_memory_;
  bool owner_stopped_ = false, owner_had_any_ = false, owner_has_ended_ = false;
  std::vector<std::function<void()>> owner_backlog_;
  const std::vector<int>* receiving_ = nullptr;
  bool spoils_ = false;  // the message that the owner receives is not the tenant's
  int creates_in_flight_ = 0;
  std::int64_t owner_ran_ns_ = 0;
  std::map<std::uint64_t, std::uint64_t> claims_;  // of the owner's tenants, after the last event

  std::map<std::uint64_t, connection> links_;
  std::uint64_t last_link_ = 0;
  std::vector<process> processes_;
  std::vector<tenant_side> tenants_;
  int steps_left_ = 0;
  unsigned trouble_ = 0;  // percent of steps that hurt
};

}  // namespace market_test
