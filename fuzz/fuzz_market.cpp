// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: no bytes and no peer break the market: a message that is taken is exactly what could have
// been sent, a peer that breaks the protocol loses its connection and takes no memory of others,
// each request ends, and no descriptor stays open.
// Method: the first byte chooses. The rest is a message; or four peers follow the rest into an
// owner's machine: honest messages, messages in wrong order, distorted ones, ends, a driver that
// refuses; or an owner follows it into a tenant's machine; or peers with sockets and descriptors,
// too many, too few, of the wrong kind, at a whole owner; or an owner with a socket at a tenant.
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "../tools/owner/service.hpp"
#include "input.hpp"

import vmm.backend;
import vmm.base;
import vmm.market;

namespace {

using fuzz::insist, fuzz::reader;
using vmm::market_bytes, vmm::market_handle, vmm::market_kind, vmm::market_message,
    vmm::owner_action, vmm::tenant_action, vmm::tenant_stage;

constexpr std::uint64_t unit = vmm::market_granule_bytes;
constexpr std::int64_t ms = 1'000'000;
const vmm::market_key host = vmm::make_market_device("host");

void parse(reader in) {
  market_bytes bytes{};
  std::memcpy(bytes.data(), in.data, std::min(in.size, bytes.size()));
  const std::span<const std::byte> whole(reinterpret_cast<const std::byte*>(in.data), in.size);
  for (const std::span<const std::byte> given : {whole, std::span<const std::byte>(bytes)}) {
    const auto message = vmm::decode_market_message(given);
    if (!message) continue;
    insist(given.size() == vmm::market_message_bytes, "a message of another size is taken");
    const market_bytes again = vmm::encode_market_message(*message);
    insist(std::memcmp(again.data(), given.data(), again.size()) == 0, "bytes do not come back");
    insist(vmm::descriptor_count_of(*message) <= vmm::market_handles_max, "too many descriptors");
  }
}

// Bytes changed as the input says: none, or a few.
void distort(market_bytes& bytes, reader& in) {
  for (std::uint8_t left = in.byte(); left > 252; --left) {
    const std::size_t at = in.byte() | (in.byte() & 15U) << 8U;
    bytes[at % bytes.size()] ^= static_cast<std::byte>(in.byte());
  }
}

// What a peer has received from the other side.
struct knowledge {
  std::uint64_t epoch = 0;
  std::uint64_t tenant = 0;
  vmm::market_key resume{};
  std::vector<market_handle> handles{};  // that were granted to it
  std::uint64_t last = 0;
};

std::uint64_t bytes_of(reader& in) {
  const std::uint8_t how = in.byte();
  if (how == 255) return ~std::uint64_t{0} - in.byte();
  if (how == 254) return std::uint64_t{1} << in.byte() % 64;
  return (1 + how % 16) * unit - (how >= 250 ? 1 : 0);
}

market_handle handle_of(const knowledge& known, reader& in) {
  const std::uint8_t how = in.byte();
  market_handle made{.id = 1ULL + how, .generation = how % 4U, .granules = 1U << how % 4};
  if (how < 224 && !known.handles.empty()) made = known.handles[how % known.handles.size()];
  const std::uint8_t change = in.byte();
  if (change % 16 == 15) ++made.generation;
  if (change % 16 == 14) made.granules = 1U << change / 16 % 10;
  made.must_clear = (change & 1) != 0;
  made.in_use = (change & 2) != 0;
  made.has_descriptor = (change & 4) != 0;
  return made;
}

// A message of a kind, mostly with what the peer has received.
market_message message_of(market_kind kind, knowledge& known, reader& in) {
  market_message message;
  message.kind = kind;
  const std::uint8_t how = in.byte();
  message.epoch = how % 32 == 31 ? 3 : known.epoch;
  message.request = how % 8 == 7 ? in.byte() : ++known.last;
  message.bytes = bytes_of(in);
  message.wish_bytes = how % 4 == 3 ? bytes_of(in) : message.bytes;
  message.within_ns = static_cast<std::uint64_t>(in.byte()) * 4 * ms;
  message.tenant = how % 8 == 6 ? in.byte() % 8 : known.tenant;
  message.resume = known.resume;
  message.job = how % 3;
  message.group = vmm::make_market_name((how & 64) != 0 ? "one" : "two");
  message.share = {.guarantee_bytes = (how & 16) != 0 ? bytes_of(in) : 0,
                   .limit_bytes = (how & 32) != 0 ? bytes_of(in) : 0,
                   .priority = static_cast<std::uint8_t>(how % 9),
                   .elastic = how % 5 == 0};
  message.reason = static_cast<vmm::market_reason>(how % 17);
  message.more = how % 16 == 5;
  const bool has_table = kind == market_kind::inventory || kind == market_kind::give ||
                         kind == market_kind::dropped || kind == market_kind::grant ||
                         kind == market_kind::drop;
  if (has_table) {
    message.handle_count = in.byte() % 5;
    for (std::uint32_t i = 0; i < message.handle_count; ++i)
      message.handles[i] = handle_of(known, in);
  }
  return message;
}

// ---- an owner's machine -----------------------------------------------------------------

vmm::owner_options options_of(std::uint8_t shape) {
  return {.epoch = 9,
          .first_handle = 100,
          .capacity_bytes = 32 * unit,
          .context_bytes = 0,
          .reserve_bytes = 2 * unit,
          .takes_stock = (shape & 1) != 0};
}

class attacked_owner {
 public:
  explicit attacked_owner(std::uint8_t shape) : owner_(options_of(shape), now_ns_) {
    for (knowledge& each : peers_) each.epoch = 9;
  }

  void step(reader& in) {
    const std::uint8_t how = in.byte();
    actor_ = how % 4;
    const std::uint64_t connection = connections_[actor_];
    switch (how / 4 % 16) {
      case 0: {
        owner_.lost(connection, now_ns_);
        connections_[actor_] = ++last_connection_;
        break;
      }
      case 1: owner_.ended(1 + in.byte() % 8, now_ns_); break;
      case 2: owner_.witness_closed(1 + in.byte() % 8, now_ns_); break;
      case 3:
        now_ns_ += in.byte() * 8 * ms;
        owner_.tick(now_ns_);
        break;
      case 4:
        if (creating_ != 0) {
          const std::uint64_t made = std::exchange(creating_, 0);
          const bool has_memory = in.byte() % 8 != 0;
          if (has_memory) memories_.insert(made);
          owner_.created(made, has_memory, now_ns_);
        }
        break;
      case 5: owner_.reject(connection, now_ns_); break;
      default: say(connection, in);
    }
    pump();
    check();
  }

  // Everyone ends, and the owner has nothing.
  void end() {
    for (const std::uint64_t each : connections_) owner_.lost(each, now_ns_);
    for (std::uint64_t number = 1; number <= 255; ++number) {
      owner_.ended(number, now_ns_);
      owner_.witness_closed(number, now_ns_);
      pump();
    }
    for (int i = 0; i < 4; ++i) {
      if (creating_ != 0) owner_.created(std::exchange(creating_, 0), false, now_ns_);
      pump();
      now_ns_ += 10'000 * ms;
      owner_.tick(now_ns_);
      pump();
    }
    check();
    insist(owner_.state().records.sums().granted_bytes == 0, "memory stays with the dead");
    insist(owner_.state().records.requests.empty(), "a request outlives its tenant");
  }

 private:
  void say(std::uint64_t connection, reader& in) {
    knowledge& peer = peers_[actor_];
    // In the order of the protocol, mostly.
    const std::uint8_t which = in.byte();
    auto kind = static_cast<market_kind>(1 + which % 20);
    if (which >= 128) kind = static_cast<market_kind>(3 + which % 5);
    if (owner_.tenant_of(connection) == 0 && which % 16 != 0) kind = market_kind::hello;
    if (peer.tenant != 0 && !has_stock(connection) && which % 16 != 1)
      kind = market_kind::inventory;
    market_message message = message_of(kind, peer, in);
    if (kind == market_kind::hello && which % 4 != 0) message.tenant = message.epoch = 0;
    // An encoder has no handle of no size, and a decoder neither.
    market_bytes bytes = vmm::encode_market_message(message);
    distort(bytes, in);
    const auto came = vmm::decode_market_message(bytes);
    if (!came) return owner_.reject(connection, now_ns_);
    received_count_ = came->kind == market_kind::inventory ? came->handle_count : 0;
    owner_.receive(connection, *came, now_ns_, actor_ / 2);  // two are of one process
  }

  [[nodiscard]] bool has_stock(std::uint64_t connection) {
    const std::uint64_t number = owner_.tenant_of(connection);
    const vmm::tenant_record* const found = owner_.state().records.tenant(number);
    return found != nullptr && found->has_stock;
  }

  void pump() {
    for (auto actions = owner_.take_actions(); !actions.empty(); actions = owner_.take_actions()) {
      for (const owner_action& each : actions) act(each);
    }
    received_count_ = 0;
  }

  void act(const owner_action& each) {
    switch (each.kind) {
      case owner_action::what::send: {
        (void)vmm::encode_market_message(each.message);
        for (knowledge& peer : peers_) {
          if (connections_[static_cast<std::size_t>(&peer - peers_.data())] != each.connection)
            continue;
          record(peer, each.message);
        }
        break;
      }
      case owner_action::what::create:
        insist(creating_ == 0, "two creates at a time");
        creating_ = each.handle;
        break;
      case owner_action::what::release:
        insist(memories_.erase(each.handle) == 1, "memory is released that is not there");
        owner_.released(each.handle, now_ns_);
        break;
      case owner_action::what::adopt:
        insist(each.index < received_count_, "a handle is adopted without a descriptor");
        insist(memories_.insert(each.handle).second, "a handle is adopted twice");
        break;
      case owner_action::what::close:
        for (std::uint64_t& connection : connections_) {
          if (connection == each.connection) connection = ++last_connection_;
        }
        break;
      case owner_action::what::end: break;
    }
  }

  void record(knowledge& peer, const market_message& message) {
    if (message.kind == market_kind::welcome) {
      peer.tenant = message.tenant;
      peer.resume = message.resume;
    }
    if (message.kind != market_kind::grant) return;
    for (const market_handle& handle : message.handle_list()) {
      insist(memories_.contains(handle.id), "a grant has no memory");
      sent_.insert({handle.id, handle.generation});
      if (peer.handles.size() < 64) peer.handles.push_back(handle);
    }
  }

  // A peer's event takes no handle from another one that has received it, and lives.
  void check() {
    const vmm::status valid = owner_.validate();
    insist(valid.has_value(), valid ? "" : valid.error().detail);
    const auto& records = owner_.state().records;
    for (const vmm::request_record& each : records.requests) {
      const std::int64_t late_ns = each.is_building() ? 1000 * ms : 0;
      insist(owner_.state().now_ns <= each.deadline_ns + late_ns, "a request has no end");
    }
    std::map<std::uint64_t, holding> now;
    for (const vmm::owned_handle& each : records.handles()) {
      if (each.state != vmm::handle_state::granted) continue;
      now[each.id] = {each.holder, each.generation};
    }
    for (const auto& [id, before] : holders_) {
      const auto found = now.find(id);
      if (found != now.end() && found->second.tenant == before.tenant) continue;
      const vmm::tenant_record* const loser = records.tenant(before.tenant);
      if (loser == nullptr || loser->has_ended || !sent_.contains({id, before.generation}))
        continue;
      const bool is_own = loser->number == peers_[actor_].tenant;
      insist(is_own || loser->is_earlier, "a peer takes another one's memory");
    }
    holders_ = std::move(now);
  }

  struct holding {
    std::uint64_t tenant = 0;
    std::uint32_t generation = 0;
  };

  std::int64_t now_ns_ = 1000 * ms;
  vmm::market_owner owner_;
  std::array<knowledge, 4> peers_{};
  std::array<std::uint64_t, 4> connections_{1, 2, 3, 4};
  std::uint64_t last_connection_ = 4;
  std::size_t actor_ = 0;
  std::uint64_t creating_ = 0;
  std::uint32_t received_count_ = 0;
  std::set<std::uint64_t> memories_;
  std::set<std::pair<std::uint64_t, std::uint32_t>> sent_;
  std::map<std::uint64_t, holding> holders_;
};

void play_owner(reader in) {
  attacked_owner owner(in.byte());
  for (int left = 200; left > 0 && !in.empty(); --left) owner.step(in);
  owner.end();
}

// ---- a tenant's machine -----------------------------------------------------------------

class attacked_tenant {
 public:
  void step(reader& in) {
    const std::uint8_t how = in.byte();
    if (machine_.stage() == tenant_stage::alone) machine_.connected(now_ns_);
    switch (how % 8) {
      case 0: {
        const std::uint64_t least = (1 + in.byte() % 16) * unit;
        const std::uint64_t request =
            machine_.want({least, least + in.byte() % 4 * unit, in.byte() * 4ULL * ms}, now_ns_);
        waiting_[request] = least;
        break;
      }
      case 1: {
        std::vector<market_handle> given;
        for (auto& [id, handle] : used_) given.push_back(handle);
        used_.clear();
        machine_.give(given);
        break;
      }
      case 2:
        now_ns_ += in.byte() * 8 * ms;
        machine_.tick(now_ns_);
        break;
      case 3: machine_.lost(now_ns_); break;
      default: {
        const std::uint8_t which = in.byte();
        auto kind = static_cast<market_kind>(1 + which % 20);
        if (which >= 64) kind = market_kind::grant;
        if (machine_.stage() == tenant_stage::greeting) kind = market_kind::welcome;
        market_message message = message_of(kind, owner_, in);
        if (!waiting_.empty() && which % 2 == 0) message.request = waiting_.begin()->first;
        market_bytes bytes = vmm::encode_market_message(message);
        distort(bytes, in);
        if (const auto came = vmm::decode_market_message(bytes)) {
          if (came->kind == market_kind::grant) {
            for (const market_handle& each : came->handle_list()) owner_.handles.push_back(each);
          }
          machine_.receive(*came, now_ns_);
        }
      }
    }
    pump();
    const vmm::status valid = machine_.validate();
    insist(valid.has_value(), valid ? "" : valid.error().detail);
    insist(machine_.next_deadline_ns() > now_ns_ - 1 || how % 8 != 2, "a request has no end");
  }

  void end() {
    now_ns_ += 3'700'000 * ms;
    machine_.lost(now_ns_);
    machine_.tick(now_ns_);
    pump();
    insist(waiting_.empty(), "a request has no end");
  }

 private:
  void pump() {
    for (const tenant_action& each : machine_.take_actions()) {
      if (each.kind == tenant_action::what::send) (void)vmm::encode_market_message(each.message);
      if (each.kind == tenant_action::what::denied)
        insist(waiting_.erase(each.request) == 1, "a request ends twice");
      if (each.kind == tenant_action::what::drop) {
        insist(!used_.contains(each.handle.id), "an import is dropped that is in use");
        (void)machine_.dropped(each.handle.id);
      }
      if (each.kind != tenant_action::what::granted) continue;
      const auto asked = waiting_.find(each.request);
      insist(asked != waiting_.end(), "a request ends twice");
      std::uint64_t sum = 0;
      for (const market_handle& part : machine_.take_lot(each.request)) {
        sum += part.size_bytes();
        insist(used_.insert({part.id, part}).second, "a handle is in two lots");
      }
      insist(sum >= asked->second, "a lot is smaller than its request");
      waiting_.erase(asked);
    }
  }

  std::int64_t now_ns_ = 1000 * ms;
  vmm::market_tenant machine_{{.name = vmm::make_market_name("t")}};
  knowledge owner_{.epoch = 9};
  std::map<std::uint64_t, std::uint64_t> waiting_;  // to the least bytes
  std::map<std::uint64_t, market_handle> used_;
};

void play_tenant(reader in) {
  attacked_tenant tenant;
  for (int left = 200; left > 0 && !in.empty(); --left) tenant.step(in);
  tenant.end();
}

// ---- sockets ----------------------------------------------------------------------------

int descriptor_of(std::uint8_t kind) {
  if (kind % 4 == 3) return ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int file = ::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  insist(::ftruncate(file, kind % 4 == 1 ? 4096 : static_cast<off_t>(unit)) == 0, "no file");
  if (kind % 4 != 2) (void)::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  return file;
}

struct parcel {
  std::size_t size = vmm::market_message_bytes;
  std::size_t count = 0;
  std::uint8_t kind = 0;
};

void send_raw(int end, const market_bytes& bytes, const parcel& how) {
  std::vector<int> passed;
  for (std::size_t i = 0; i < how.count; ++i)
    passed.push_back(descriptor_of(static_cast<std::uint8_t>(how.kind + i)));
  (void)vmm::unix_os::send_message(end, {bytes.data(), how.size}, {passed.data(), passed.size()},
                                   vmm::unix_os::deadline{0});
  for (const int each : passed) ::close(each);
}

void send(int end, const market_message& what, const parcel& how = {}) {
  send_raw(end, vmm::encode_market_message(what), how);
}

// As many descriptors as the message has, or not.
parcel parcel_of(const market_message& message, reader& in) {
  const std::uint8_t how = in.byte();
  parcel made{.count = vmm::descriptor_count_of(message), .kind = in.byte()};
  if (how % 16 == 15) made.size -= how;
  if (how % 8 == 7) made.count = how / 8 % 8;
  return made;
}

std::size_t open_count() {
  std::size_t count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

// An owner that serves as long as this process.
class whole_owner {
 public:
  whole_owner() {
    char name[] = "/tmp/vmm-fuzz-market-XXXXXX";
    insist(::mkdtemp(name) != nullptr, "no folder");
    folder_ = name;
    static std::string place = folder_;
    (void)std::atexit([] {
      std::error_code ignored;
      std::filesystem::remove_all(place, ignored);
    });
    service_ = std::make_unique<vmm::tools::owner_service>(
        vmm::tools::service_options{.directory = folder_,
                                    .device = "host",
                                    .capacity_bytes = 32 * unit,
                                    .quiet_ms = 0,
                                    .linger_ms = 1'000'000'000});
    bool is_owned = false;
    insist(service_->claim(is_owned).empty() && service_->open().empty(), "no owner");
    std::thread([this] { service_->run(); }).detach();
    // A tenant that stays: an owner without a first one ends.
    stay_ = connect();
    send(stay_, {.kind = market_kind::hello, .device = host}, {.count = 1});
    insist(hear(stay_).kind == market_kind::welcome, "an honest tenant is refused");
  }

  [[nodiscard]] int connect() const {
    const std::string path = folder_ + "/owner-host";
    const auto made =
        vmm::unix_os::connect_at(path.data(), path.size(), vmm::unix_os::deadline_in(5000));
    insist(made.descriptor >= 0, "the owner does not listen");
    return made.descriptor;
  }

  // The next message; a query where the connection has ended.
  static market_message hear(int end, knowledge* known = nullptr) {
    market_bytes bytes{};
    std::array<int, vmm::unix_os::descriptors_max> came{};
    const auto got = vmm::unix_os::receive_message(end, bytes.data(), bytes.size(), came.data(),
                                                   vmm::unix_os::deadline_in(5000));
    for (std::size_t i = 0; i < got.descriptor_count; ++i) ::close(came[i]);
    if (got.fault != vmm::unix_os::receive_fault::none) return {};
    const auto message = vmm::decode_market_message(bytes);
    insist(message.has_value(), "the owner sends other bytes than messages");
    insist(vmm::descriptor_count_of(*message) == got.descriptor_count, "the owner's descriptors");
    if (known != nullptr && message->kind == market_kind::welcome) {
      *known = {message->epoch, message->tenant, message->resume, {}, 0};
    }
    for (const market_handle& each : message->handle_list()) {
      if (known != nullptr && message->kind == market_kind::grant) known->handles.push_back(each);
    }
    return *message;
  }

  // Messages up to the reply of a query: the owner has seen everything before it.
  void finish(int end, knowledge& known) const {
    send(end, {.kind = market_kind::query});
    for (;;) {
      const market_message message = hear(end, &known);
      if (message.kind == market_kind::report && !message.more) return;
      if (message.kind == market_kind::query) return;  // it is closed
    }
  }

  // The tenant comes back as an honest one, and leaves.
  void leave(const knowledge& known) const {
    if (known.tenant == 0) return;
    const int end = connect();
    send(end,
         {.kind = market_kind::hello,
          .epoch = known.epoch,
          .tenant = known.tenant,
          .device = host,
          .resume = known.resume},
         {.count = 1});
    if (hear(end).kind == market_kind::welcome) {
      for (const market_kind each : {market_kind::inventory, market_kind::leave})
        send(end, {.kind = each, .epoch = known.epoch});
      while (hear(end).kind != market_kind::query) {
      }
    }
    ::close(end);
  }

  [[nodiscard]] int stay() const { return stay_; }

 private:
  std::string folder_;
  std::unique_ptr<vmm::tools::owner_service> service_;
  int stay_ = -1;
};

void play_peers(reader in) {
  static const whole_owner& owner = *new whole_owner;
  std::array<int, 3> ends{};
  std::array<knowledge, 3> known{};
  std::vector<knowledge> joined;
  for (int& each : ends) each = owner.connect();
  for (int left = 60; left > 0 && !in.empty(); --left) {
    const std::uint8_t how = in.byte();
    const std::size_t peer = how % 3;
    auto kind = static_cast<market_kind>(1 + how / 3 % 20);
    const std::uint8_t which = in.byte();
    if (known[peer].tenant == 0 && which % 8 != 0) kind = market_kind::hello;
    if (kind == market_kind::drain) kind = market_kind::want;  // it would end
    market_message message = message_of(kind, known[peer], in);
    if (kind == market_kind::set_share) message.tenant = known[peer].tenant;
    if (kind == market_kind::hello && which % 16 != 15) {
      message.device = host;
      message.tenant = message.epoch = 0;
    }
    market_bytes bytes = vmm::encode_market_message(message);
    distort(bytes, in);
    bytes[2] = bytes[2] == static_cast<std::byte>(market_kind::drain) ? std::byte{0} : bytes[2];
    send_raw(ends[peer], bytes, parcel_of(message, in));
    const std::uint64_t before = known[peer].tenant;
    owner.finish(ends[peer], known[peer]);
    if (known[peer].tenant != before) {
      joined.push_back(known[peer]);
      if (which % 4 != 3)
        send(ends[peer], {.kind = market_kind::inventory, .epoch = known[peer].epoch});
    }
    if (how < 230) continue;
    ::close(ends[peer]);
    ends[peer] = owner.connect();
    known[peer] = {};
  }
  for (const int each : ends) ::close(each);
  for (const knowledge& each : joined) owner.leave(each);
  knowledge any;
  for (int i = 0; i < 2; ++i) owner.finish(owner.stay(), any);  // every end was seen
}

// An owner's socket; what it sends is the input's.
void play_false_owner(reader in) {
  char name[] = "/tmp/vmm-fuzz-owner-XXXXXX";
  insist(::mkdtemp(name) != nullptr, "no folder");
  const std::string folder = name;
  const std::string path = folder + "/owner-host";
  const auto listening = vmm::unix_os::listen_at(path.data(), path.size());
  insist(listening.descriptor >= 0, "no socket");
  std::thread owner([&] {
    vmm::unix_os::watched wait{.descriptor = listening.descriptor};
    vmm::unix_os::wait_for_events(&wait, 1, vmm::unix_os::clock_ns() + 50 * ms);
    const auto made = vmm::unix_os::accept_now(listening.descriptor);
    if (made.descriptor < 0) return;
    knowledge known{.epoch = 9};
    bool is_first = true;
    while (!in.empty()) {
      const std::uint8_t which = in.byte();
      auto kind = static_cast<market_kind>(9 + which % 8);
      if (is_first) kind = which % 16 == 15 ? market_kind::refused : market_kind::welcome;
      is_first = false;
      market_message message = message_of(kind, known, in);
      if (kind == market_kind::grant && which % 4 != 3) message.request = 1;
      market_bytes bytes = vmm::encode_market_message(message);
      distort(bytes, in);
      send_raw(made.descriptor, bytes, parcel_of(message, in));
    }
    market_bytes last{};
    std::array<int, vmm::unix_os::descriptors_max> came{};
    for (int left = 8; left > 0; --left) {
      const auto got = vmm::unix_os::receive_message(made.descriptor, last.data(), last.size(),
                                                     came.data(), vmm::unix_os::deadline_in(2));
      for (std::size_t i = 0; i < got.descriptor_count; ++i) ::close(came[i]);
      if (got.fault != vmm::unix_os::receive_fault::none) break;
    }
    ::close(made.descriptor);
  });
  {
    auto source = vmm::join_market({.directory = folder, .device = host, .timeout_ms = 5}, {});
    if (source) {
      vmm::lent_list lot;
      const bool is_taken = (*source)->take({unit, 3 * ms}, lot).has_value();
      std::uint64_t sum = 0;
      for (const vmm::lent_handle& each : lot) {
        sum += each.size_bytes;
        insist(::fcntl(static_cast<int>(each.descriptor), F_GETFD) >= 0, "a handle has no memory");
      }
      insist(is_taken ? sum == unit : lot.empty(), "a lot of another size is taken");
      if (is_taken && sum % 3 == 0) (*source)->give(lot);
    }
  }
  owner.join();
  vmm::unix_os::stop_listening(listening, path.data(), path.size());
  (void)::rmdir(folder.c_str());
}

// The owner keeps what it has created, at most 32 handles with two descriptors each. Anything else
// grows with the inputs.
void check_descriptors() {
  play_peers({nullptr, 0});
  static const std::size_t usual = open_count();
  insist(open_count() <= usual + 80, "a descriptor stays open");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const reader rest{data + 1, size - 1};
  switch (data[0] % 16) {
    case 0: parse(rest); break;
    case 1:
      play_peers(rest);
      check_descriptors();
      break;
    case 2:
      play_false_owner(rest);
      check_descriptors();
      break;
    default:
      if (data[0] % 2 == 0) {
        play_tenant(rest);
      } else {
        play_owner(rest);
      }
  }
  return 0;
}
