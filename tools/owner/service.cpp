// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include "service.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <limits>

namespace vmm::tools {
namespace {

constexpr std::int64_t first_tenant_ns = 10'000'000'000;
constexpr std::size_t outbox_max = 4096;
constexpr std::uint64_t open_files_min = 64;

std::uint64_t random_number() {
  std::uint64_t number = 0;
  (void)unix_os::random_bytes(reinterpret_cast<std::byte*>(&number), sizeof number);
  return number | 1;
}

// Of the signals that end the owner. Requires: the process has one thread, the mask's heir.
int end_signals() {
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int each : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&ends, each);
  (void)::sigprocmask(SIG_BLOCK, &ends, nullptr);
  return ::signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
}

int open_nothing() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

// Why a file of the owner cannot be used, and what helps.
std::string file_problem(int failure) {
  if (failure == EISDIR || failure == ELOOP || failure == EADDRINUSE)
    return std::string("it is ") +
           (failure == ELOOP ? "a symbolic link" : "not a file of an owner") + ": remove it";
  return std::string(file_text(failure, "it cannot be opened")) + " (" + errno_name(failure) + ")";
}

std::string mebibytes(std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

owner_paths::owner_paths(const service_options& options) {
  socket = options.directory + "/" + market_socket_name(make_market_device(options.device));
  lock = socket + ".lock";
  metrics = socket + ".metrics";
  log = socket + ".log";
  if (options.device != "host" && options.device != "fake")
    device_lock = default_market_directory() + "/device-" + options.device + ".lock";
}

// ---- life ----------------------------------------------------------------------------

owner_service::~owner_service() {
  for (auto& [number, each] : connections_) {
    unix_os::close(each.descriptor);
    unix_os::close(each.process);
  }
  for (auto& [number, each] : tenants_) {
    unix_os::close(each.process);
    unix_os::close(each.witness);
  }
  for (auto& [id, memory] : memories_) device_->release(memory);
  if (listening_.descriptor >= 0)
    unix_os::stop_listening(listening_, paths_.socket.data(), paths_.socket.size());
  close_metrics(metrics_socket_, paths_.metrics);
  for (const int each : monitors_) ::close(each);
  if (signals_ >= 0) ::close(signals_);
  unix_os::close(spare_);
  if (device_lock_ >= 0) {
    (void)!::ftruncate(device_lock_, 0);
    ::close(device_lock_);
  }
  if (lock_ >= 0) {
    if (!has_tenants()) (void)!::ftruncate(lock_, 0);
    if (owner_ == nullptr && !was_stopped_) (void)::unlink(paths_.lock.c_str());
    ::close(lock_);
  }
}

// Opened before the other lock, and so closed before it at a kill: the next owner has both.
void owner_service::open_device_lock() {
  if (paths_.device_lock.empty()) return;
  const std::string folder = paths_.device_lock.substr(0, paths_.device_lock.rfind('/'));
  const int failure = unix_os::make_private_folder(folder.c_str());
  if (failure == 0)
    device_lock_ =
        ::open(paths_.device_lock.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  device_failure_ = failure != 0 ? failure : errno;
}

// Two owners would each lend the device's memory. Empty, or why not.
std::string owner_service::claim_device() {
  if (paths_.device_lock.empty()) return "";
  if (device_lock_ < 0) {
    std::fprintf(stderr, "vmm-owner: %s: %s; owners in other folders are not noticed\n",
                 paths_.device_lock.c_str(), file_problem(device_failure_).c_str());
    return "";
  }
  if (::flock(device_lock_, LOCK_EX | LOCK_NB) == 0) {
    name_itself();
    return "";
  }
  char other[4096] = "";
  const ssize_t count = ::pread(device_lock_, other, sizeof other, 0);
  ::close(std::exchange(device_lock_, -1));
  const std::string text(other, count > 0 ? static_cast<std::size_t>(count) : 0);
  const std::size_t space = text.find(' ');
  if (space == text.npos)
    return "another owner of " + options_.device + " begins or ends: serve again after that";
  const std::string place = text.substr(space + 1);
  return "an owner of " + options_.device + ", process " + text.substr(0, space) + ", serves in " +
         place + ", and two would lend the same memory: join it with VMM_OWNER=" + place +
         ", or end it with vmm-owner ctl drain " + place + " " + options_.device;
}

// A daemon is not the process of claim().
void owner_service::name_itself() const {
  if (device_lock_ < 0) return;
  const std::string text = std::to_string(::getpid()) + " " + options_.directory;
  (void)!::ftruncate(device_lock_, 0);
  (void)!::pwrite(device_lock_, text.data(), text.size(), 0);
}

std::string owner_service::claim(bool& is_owned) {
  is_owned = false;
  if (const std::uint64_t limit = unix_os::raise_descriptor_limit(); limit < open_files_min)
    return "the limit of open files is " + std::to_string(limit) + ", and an owner needs " +
           std::to_string(open_files_min) +
           ", 3 more for each tenant and 1 for each handle of memory: raise it (ulimit -n)";
  if (signals_ < 0) signals_ = end_signals();
  if (const int failure = unix_os::make_private_folder(options_.directory.c_str()); failure != 0) {
    char why[200];
    unix_os::explain_folder(options_.directory.c_str(), failure, why, sizeof why);
    return options_.directory + ": " + why;
  }
  open_device_lock();
  lock_ = ::open(paths_.lock.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (lock_ < 0) {
    const int failure = errno;
    unix_os::close(std::exchange(device_lock_, -1));
    return paths_.lock + ": " + file_problem(failure);
  }
  struct stat facts{}, named{};
  // An owner that did not begin removes its lock: this one may be locked without a name.
  const bool is_locked = ::flock(lock_, LOCK_EX | LOCK_NB) == 0;
  is_owned = is_locked ? false : errno == EWOULDBLOCK;
  if (is_locked) {
    is_owned = ::fstat(lock_, &facts) != 0 || ::lstat(paths_.lock.c_str(), &named) != 0 ||
               facts.st_ino != named.st_ino;
  }
  if (!is_locked || is_owned) {
    unix_os::close(std::exchange(device_lock_, -1));
    ::close(std::exchange(lock_, -1));
    return "an owner of " + options_.device + " listens in " + options_.directory +
           ", or begins or ends there: programs join it with VMM_OWNER=" + options_.directory +
           "; vmm-owner ctl list shows its tenants, ctl drain ends it";
  }
  if (std::string elsewhere = claim_device(); !elsewhere.empty()) {
    if (facts.st_size == 0) (void)::unlink(paths_.lock.c_str());
    ::close(std::exchange(lock_, -1));
    return elsewhere;
  }
  was_stopped_ = facts.st_size != 0;
  (void)!::pwrite(lock_, "1", 1, 0);
  // Under the lock a socket of that name is one of a dead owner.
  if (::lstat(paths_.socket.c_str(), &facts) == 0) {
    if (!S_ISSOCK(facts.st_mode)) return paths_.socket + ": " + file_problem(EADDRINUSE);
    (void)::unlink(paths_.socket.c_str());
  }
  listening_ = unix_os::listen_at(paths_.socket.data(), paths_.socket.size());
  if (listening_.descriptor < 0) return paths_.socket + ": " + file_problem(listening_.failure);
  metrics_socket_ = open_metrics(paths_.metrics);
  if (metrics_socket_ < 0)
    std::fprintf(stderr, "vmm-owner: %s: %s; no figures are served\n", paths_.metrics.c_str(),
                 file_problem(errno).c_str());
  return "";
}

std::string owner_service::open() {
  spare_ = open_nothing();
  name_itself();
  // The process that its peers see is the one that listens: a daemon is not the one of claim().
  (void)::listen(listening_.descriptor, SOMAXCONN);
  std::string why;
  device_ = open_device(options_.device, why);
  if (device_ == nullptr) return why;
  owner_options made;
  made.epoch = random_number();
  made.first_handle = random_number() >> 16;
  made.capacity_bytes =
      options_.capacity_bytes != 0 ? options_.capacity_bytes : device_->total_bytes();
  made.device = make_market_device(options_.device);
  if (options_.device == "host" || options_.device == "fake") made.context_bytes = 0;
  made.context_bytes = options_.context_bytes.value_or(made.context_bytes);
  if (made.capacity_bytes > device_->total_bytes())
    return "--capacity is " + mebibytes(made.capacity_bytes) + ", and the device has " +
           mebibytes(device_->total_bytes()) + ": make it smaller";
  if (made.context_bytes >= made.capacity_bytes)
    return "--context is " + mebibytes(made.context_bytes) + ", and the memory to share is " +
           mebibytes(made.capacity_bytes) + ": make it smaller";
  made.reserve_bytes = std::min(made.reserve_bytes, made.capacity_bytes / 16);
  (void)unix_os::random_bytes(made.key.data(), made.key.size());
  made.takes_stock = was_stopped_;
  made.quiet_delay_ns = std::int64_t{options_.quiet_ms} * 1'000'000;
  owner_ = std::make_unique<market_owner>(made, unix_os::clock_ns());
  idle_since_ns_ = unix_os::clock_ns() + first_tenant_ns;
  return "";
}

bool owner_service::has_tenants() const {
  if (owner_ == nullptr) return false;
  const auto tenants = owner_->state().records.tenants();
  return std::any_of(tenants.begin(), tenants.end(),
                     [](const tenant_record& each) { return each.is_there(); });
}

void owner_service::run() {
  while (!has_end_signal_) {
    poll_once();
    const std::int64_t now_ns = unix_os::clock_ns();
    if (owner_->next_deadline_ns() <= now_ns) owner_->tick(now_ns);
    act(nullptr);
    if (has_tenants()) {
      idle_since_ns_ = now_ns + std::int64_t{options_.linger_ms} * 1'000'000;
    } else if (owner_->state().is_draining || (now_ns >= idle_since_ns_ && !options_.stays)) {
      return;
    } else if (now_ns >= idle_since_ns_) {
      owner_->release_free(now_ns);
      act(nullptr);
      // Bytes of the last tenant become free when its work and its process have ended.
      const bool is_empty = owner_->state().records.sums().created_bytes() == 0;
      idle_since_ns_ = is_empty ? std::numeric_limits<std::int64_t>::max()
                                : now_ns + std::int64_t{options_.linger_ms} * 1'000'000;
    }
  }
}

// ---- events --------------------------------------------------------------------------

void owner_service::poll_once() {
  std::vector<unix_os::watched> list;
  list.push_back({.descriptor = listening_.descriptor});
  if (signals_ >= 0) list.push_back({.descriptor = signals_});
  if (metrics_socket_ >= 0) list.push_back({.descriptor = metrics_socket_});
  for (const int each : monitors_) list.push_back({.descriptor = each});
  for (const auto& [number, each] : connections_)
    list.push_back({.descriptor = each.descriptor, .for_writing = !each.outbox.empty()});
  for (const auto& [number, each] : tenants_) {
    if (each.process >= 0 && !each.has_ended) list.push_back({.descriptor = each.process});
    if (each.witness >= 0) list.push_back({.descriptor = each.witness});
  }
  std::int64_t until_ns = owner_->next_deadline_ns();
  if (!has_tenants()) until_ns = std::min(until_ns, idle_since_ns_);
  unix_os::wait_for_events(list.data(), list.size(), until_ns);
  for (const unix_os::watched& each : list) {
    if (each.is_ready || each.is_writable) look_at(each);
  }
}

void owner_service::look_at(const unix_os::watched& what) {
  if (what.descriptor == listening_.descriptor) return accept_all();
  if (what.descriptor == signals_) {
    has_end_signal_ = true;
    return;
  }
  if (what.descriptor == metrics_socket_) return serve_metrics();
  if (is_of_monitor(what.descriptor)) return;
  for (const auto& [number, each] : connections_) {
    if (each.descriptor != what.descriptor) continue;
    const std::uint64_t of = number;
    if (what.is_writable) flush(of);
    if (what.is_ready) receive_all(of);
    return;
  }
  for (auto& [number, each] : tenants_) {
    const std::uint64_t of = number;
    // The number may be another descriptor's by now.
    if (each.process == what.descriptor) {
      unix_os::watched again{.descriptor = each.process};
      unix_os::wait_for_events(&again, 1, 0);
      if (!again.is_ready || each.has_ended) return;
      each.has_ended = true;
      owner_->ended(of, unix_os::clock_ns());
      return act(nullptr);
    }
    if (each.witness != what.descriptor) continue;
    char bytes[256];
    const ssize_t came = ::recv(each.witness, bytes, sizeof bytes, MSG_DONTWAIT);
    // What is not a connected socket would be ready for ever.
    if (came > 0 || (came < 0 && (errno == EAGAIN || errno == EINTR))) return;
    unix_os::close(std::exchange(each.witness, -1));
    // Where the kernel has no descriptor of a process, its witness stands for it.
    if (each.process < 0) owner_->ended(of, unix_os::clock_ns());
    owner_->witness_closed(of, unix_os::clock_ns());
    return act(nullptr);
  }
}

void owner_service::accept_all() {
  for (int left = 16; left > 0; --left) {
    unix_os::opened made = unix_os::accept_now(listening_.descriptor);
    if (made.failure == EMFILE || made.failure == ENFILE) {
      // The connection would make the socket ready for ever: it is ended instead.
      std::fprintf(stderr, "vmm-owner: a connection is refused: %s\n", limit_text(made.failure));
      unix_os::close(std::exchange(spare_, -1));
      made = unix_os::accept_now(listening_.descriptor);
      unix_os::close(made.descriptor);
      spare_ = open_nothing();
      return;
    }
    if (made.descriptor < 0) return;
    const unix_os::peer peer = unix_os::peer_of(made.descriptor);
    if (peer.failure != 0 || peer.uid != unix_os::own_uid()) {
      unix_os::close(made.descriptor);
      continue;
    }
    const int process = unix_os::process_of(made.descriptor);
    connections_[++last_connection_] = {.descriptor = made.descriptor,
                                        .process = process,
                                        .identity = unix_os::identity_of(made.descriptor, process)};
  }
}

void owner_service::receive_all(std::uint64_t number) {
  for (int left = 64; left > 0; --left) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) return;
    market_bytes bytes{};
    std::array<int, unix_os::descriptors_max> came{};
    const unix_os::received got = unix_os::receive_message(
        found->second.descriptor, bytes.data(), bytes.size(), came.data(), unix_os::deadline{0});
    std::vector<int> descriptors(came.begin(),
                                 came.begin() + static_cast<std::ptrdiff_t>(got.descriptor_count));
    if (got.fault == unix_os::receive_fault::failed && got.failure == ETIMEDOUT) return;
    const bool is_over =
        got.fault == unix_os::receive_fault::ended || got.fault == unix_os::receive_fault::failed;
    const auto message = decode_market_message(bytes);
    if (got.fault == unix_os::receive_fault::none && message &&
        descriptor_count_of(*message) == descriptors.size()) {
      take(number, *message, descriptors);
    } else if (!is_over) {
      owner_->reject(number, unix_os::clock_ns());
      act(nullptr);
    }
    for (const int each : descriptors) unix_os::close(each);
    if (is_over) close_connection(number, true);
  }
}

void owner_service::take(std::uint64_t number, const market_message& message,
                         std::vector<int>& descriptors) {
  const bool is_hello = message.kind == market_kind::hello;
  owner_->receive(number, message, unix_os::clock_ns(), connections_.at(number).identity);
  if (is_hello && owner_->tenant_of(number) != 0)
    watch_tenant(number, std::exchange(descriptors[0], -1));
  act(&descriptors);
}

void owner_service::watch_tenant(std::uint64_t connection_number, int witness) {
  watched_tenant& each = tenants_[owner_->tenant_of(connection_number)];
  connection& from = connections_.at(connection_number);
  unix_os::close(each.process);
  unix_os::close(each.witness);
  each = {.process = std::exchange(from.process, -1), .witness = witness};
  // It may have left before run() looks.
  idle_since_ns_ = unix_os::clock_ns() + std::int64_t{options_.linger_ms} * 1'000'000;
}

void owner_service::close_connection(std::uint64_t number, bool is_lost) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  flush(number);
  unix_os::end_connection(found->second.descriptor);
  unix_os::close(found->second.process);
  connections_.erase(found);
  if (!is_lost) return;
  owner_->lost(number, unix_os::clock_ns());
  act(nullptr);
}

// ---- actions -------------------------------------------------------------------------

void owner_service::send(std::uint64_t number, const market_message& message) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  letter made{encode_market_message(message), {}};
  for (const market_handle& each : message.handle_list()) {
    if (message.kind == market_kind::grant && each.has_descriptor)
      made.descriptors.push_back(memories_.at(each.id).descriptor);
  }
  found->second.outbox.push_back(std::move(made));
  flush(number);
}

void owner_service::flush(std::uint64_t number) {
  connection& to = connections_.at(number);
  while (!to.outbox.empty()) {
    const letter& first = to.outbox.front();
    const int failure = unix_os::send_message(
        to.descriptor, {first.bytes.data(), first.bytes.size()},
        {first.descriptors.data(), first.descriptors.size()}, unix_os::deadline{0});
    if (failure == ETIMEDOUT && to.outbox.size() < outbox_max) return;
    if (failure != 0) {
      to.outbox.clear();
      (void)::shutdown(to.descriptor, SHUT_RDWR);  // its end comes as an event
      return;
    }
    to.outbox.pop_front();
  }
}

// `received`: the descriptors of the message whose actions these are; an adopted one is taken out.
void owner_service::act(std::vector<int>* received) {
  for (;;) {
    const std::vector<owner_action> actions = owner_->take_actions();
    if (actions.empty()) break;
    for (const owner_action& each : actions) {
      switch (each.kind) {
        case owner_action::what::send: send(each.connection, each.message); break;
        case owner_action::what::create: {
          const std::optional<device_memory> made = device_->create(each.bytes);
          if (made) memories_[each.handle] = *made;
          owner_->created(each.handle, made.has_value(), unix_os::clock_ns());
          break;
        }
        case owner_action::what::release:
          device_->release(memories_.at(each.handle));
          memories_.erase(each.handle);
          owner_->released(each.handle, unix_os::clock_ns());
          break;
        case owner_action::what::adopt:
          memories_[each.handle] = {0, std::exchange(received->at(each.index), -1)};
          break;
        case owner_action::what::close: close_connection(each.connection, false); break;
        case owner_action::what::end: break;  // run() looks
      }
    }
  }
  // The descriptors of a tenant end with its record.
  std::erase_if(tenants_, [this](auto& each) {
    const auto all = owner_->state().records.tenants();
    if (std::any_of(all.begin(), all.end(),
                    [&](const tenant_record& one) { return one.number == each.first; }))
      return false;
    unix_os::close(each.second.process);
    unix_os::close(each.second.witness);
    return true;
  });
}

}  // namespace vmm::tools
