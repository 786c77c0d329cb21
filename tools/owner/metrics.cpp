// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// An owner's state as Prometheus' text format, by HTTP on a Unix socket.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

#include "../program/usage.hpp"
#include "service.hpp"

namespace vmm::tools {
namespace {

constexpr std::size_t monitors_max = 16;

// A label's value: names are any bytes.
std::string label_of(const market_name& name) {
  std::string label;
  for (const char each : text_of(name)) {
    if (each == '"' || each == '\\') label += '\\';
    label += each >= ' ' && each <= '~' ? each : '_';
  }
  return label;
}

}  // namespace

int open_metrics(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  errno = ENAMETOOLONG;
  if (path.size() >= sizeof name.sun_path) return -1;
  std::copy(path.begin(), path.end(), name.sun_path);
  (void)::unlink(path.c_str());
  const int made = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made >= 0 && ::bind(made, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0 &&
      ::listen(made, 4) == 0)
    return made;
  const int failure = errno;
  unix_os::close(made);
  errno = failure;
  return -1;
}

void close_metrics(int descriptor, const std::string& path) {
  if (descriptor < 0) return;
  (void)::unlink(path.c_str());
  ::close(descriptor);
}

// One report to each monitor, whatever it requests, and when: a slow one waits for nothing here.
void owner_service::serve_metrics() {
  const int monitor = ::accept4(metrics_socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (monitor < 0) return;
  const std::string body = metrics();
  const std::string text =
      "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  (void)!::send(monitor, text.data(), text.size(), MSG_NOSIGNAL);
  (void)::shutdown(monitor, SHUT_WR);
  monitors_.push_back(monitor);  // closed before its request it would see a broken connection
  if (monitors_.size() <= monitors_max) return;
  ::close(monitors_.front());
  monitors_.pop_front();
}

bool owner_service::is_of_monitor(int descriptor) {
  const auto found = std::find(monitors_.begin(), monitors_.end(), descriptor);
  if (found == monitors_.end()) return false;
  char request[4096];
  const ssize_t came = ::recv(descriptor, request, sizeof request, MSG_DONTWAIT);
  if (came < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  ::close(descriptor);
  monitors_.erase(found);
  return true;
}

std::string owner_service::metrics() const {
  const owner_state& state = owner_->state();
  const market_sums& sums = state.records.sums();
  const owner_statistics& counts = state.counts;
  std::string text;
  const auto add = [&](const char* name, const char* kind, auto value) {
    text += std::string("# TYPE vmm_market_") + name + " " + kind + "\nvmm_market_" + name + " " +
            std::to_string(value) + "\n";
  };
  text += std::string("# TYPE vmm_market_owner_info gauge\nvmm_market_owner_info{version=\"") +
          library_version + "\"} 1\n";
  add("capacity_bytes", "gauge", state.options.capacity_bytes);
  add("free_bytes", "gauge", sums.free_bytes);
  add("lent_bytes", "gauge", sums.granted_bytes);
  add("quarantined_bytes", "gauge", sums.quarantined_bytes);
  add("void_bytes", "gauge", sums.void_bytes);
  add("waiting_requests", "gauge", state.records.requests.size());
  add("grants_total", "counter", counts.granted_count);
  add("granted_bytes_total", "counter", counts.granted_bytes);
  add("refusals_total", "counter", counts.denied_count);
  add("recalls_total", "counter", counts.ask_count);
  add("recalled_bytes_total", "counter", counts.given_bytes);
  add("overdue_total", "counter", counts.overdue_count);
  add("refault_bytes_total", "counter", counts.refault_bytes);
  add("creates_total", "counter", counts.created_count);
  add("refused_creates_total", "counter", counts.refused_count);
  add("deadlocks_total", "counter", counts.deadlock_count);
  add("waited_seconds_total", "counter", static_cast<double>(counts.waited_ns) * 1e-9);
  add("some_waited_seconds_total", "counter", static_cast<double>(counts.some_waited_ns) * 1e-9);
  add("all_waited_seconds_total", "counter", static_cast<double>(counts.all_waited_ns) * 1e-9);
  for (const char* kind : {"held", "guaranteed", "waiting", "borrowed"}) {
    text += std::string("# TYPE vmm_market_tenant_") + kind + "_bytes gauge\n";
    for (const market_row& each : state.rows()) {
      const std::string_view what = kind;
      const std::uint64_t guarantee = each.share.guarantee_bytes;
      std::uint64_t value = each.waiting_bytes;
      if (what == "held") value = each.held_bytes;
      if (what == "guaranteed") value = guarantee;
      if (what == "borrowed") value = each.held_bytes - std::min(each.held_bytes, guarantee);
      text += std::string("vmm_market_tenant_") + kind + "_bytes{tenant=\"" +
              std::to_string(each.tenant) + "\",name=\"" + label_of(each.name) + "\"} " +
              std::to_string(value) + "\n";
    }
  }
  return text;
}

}  // namespace vmm::tools
