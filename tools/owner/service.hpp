// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The owner of a device's memory as a process: sockets, descriptors and the driver around the
// decisions of vmm.market:owner.
//
// A file with a lock, in a folder of mode 0700, makes it the only one there; it has a letter in it
// while an owner runs, so that the next one takes stock after a kill. A second one, in the folder
// that VMM_OWNER=auto names, makes it this user's only one of the device, whatever the folder: it
// has the owner's process and folder. One thread, one poll.
#pragma once

#include <deque>

#include "../../modules/market/process.hpp"
#include "device.hpp"

import vmm.backend;
import vmm.base;
import vmm.market;

namespace vmm::tools {

struct service_options {
  std::string directory{};
  std::string device{};
  std::uint64_t capacity_bytes = 0;              ///< 0: the device's
  std::optional<std::uint64_t> context_bytes{};  ///< of a tenant; of CUDA 528 MiB
  std::uint32_t quiet_ms = 200;
  std::uint32_t linger_ms = 200;  ///< after the last tenant
  bool stays = false;             ///< without a tenant; free memory goes back to the driver
};

/// The places of an owner.
struct owner_paths {
  explicit owner_paths(const service_options& options);
  std::string socket{}, lock{}, metrics{}, log{};
  std::string device_lock{};  ///< empty for memory of the host
};

/// A stream socket at the path; -1, with errno: none. Monitors connect to it and read one report.
[[nodiscard]] int open_metrics(const std::string& path);
void close_metrics(int descriptor, const std::string& path);

class owner_service {
 public:
  explicit owner_service(const service_options& options) : options_(options), paths_(options) {}
  owner_service(const owner_service&) = delete;
  owner_service& operator=(const owner_service&) = delete;
  ~owner_service();

  /// Becomes the device's owner and listens. Empty, or why not. `is_owned`: another one is there.
  [[nodiscard]] std::string claim(bool& is_owned);
  /// Opens the device. Empty, or why not.
  [[nodiscard]] std::string open();
  /// Serves until the last tenant has left (with `stays` for ever), or SIGTERM, SIGINT or SIGHUP
  /// comes. Its files then go, and the tenants keep what they hold.
  void run();

 private:
  struct letter {
    market_bytes bytes{};
    std::vector<int> descriptors{};  // of handles: not closed here
  };
  struct connection {
    int descriptor = -1;
    int process = -1;            // a pidfd
    std::uint64_t identity = 0;  // of the process
    std::deque<letter> outbox{};
  };
  struct watched_tenant {
    int process = -1;
    int witness = -1;
    bool has_ended = false;
  };

  void open_device_lock();
  [[nodiscard]] std::string claim_device();
  void name_itself() const;
  void accept_all();
  void receive_all(std::uint64_t number);
  void take(std::uint64_t number, const market_message& message, std::vector<int>& descriptors);
  void watch_tenant(std::uint64_t connection_number, int witness);
  void act(std::vector<int>* received);
  void send(std::uint64_t number, const market_message& message);
  void flush(std::uint64_t number);
  void close_connection(std::uint64_t number, bool is_lost);
  void poll_once();
  void look_at(const unix_os::watched& what);
  void serve_metrics();
  [[nodiscard]] bool is_of_monitor(int descriptor);
  [[nodiscard]] std::string metrics() const;
  [[nodiscard]] bool has_tenants() const;

  service_options options_;
  owner_paths paths_;
  int device_lock_ = -1, device_failure_ = 0;
  int lock_ = -1;
  unix_os::listening listening_{};
  int metrics_socket_ = -1;
  std::deque<int> monitors_;  // they have their report, and may send their request later
  std::unique_ptr<owner_device> device_;
  std::unique_ptr<market_owner> owner_;
  std::map<std::uint64_t, device_memory> memories_;
  std::map<std::uint64_t, connection> connections_;
  std::map<std::uint64_t, watched_tenant> tenants_;
  std::uint64_t last_connection_ = 0;
  std::int64_t idle_since_ns_ = 0;
  int signals_ = -1;
  int spare_ = -1;  // closed to accept a connection at the limit of open files
  bool has_end_signal_ = false;
  bool was_stopped_ = false;  // the previous owner did not end by itself
};

}  // namespace vmm::tools
