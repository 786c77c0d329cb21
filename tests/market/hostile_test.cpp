// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the threat model of the market: another user's process gets no byte and sends none, and a
// peer of the same user that breaks the protocol ends its own connection, no other one's.
// Method: vmm-owner as a process, and peers with raw sockets: of another user, as far as the test
// may become one, with wrong messages, descriptors and witnesses, that read nothing, and that are
// owners themselves.
#include <grp.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "../../modules/market/process.hpp"
#include "processes.hpp"

namespace {

using namespace market_test;
using vmm::market_bytes, vmm::market_kind, vmm::market_message;

constexpr ::uid_t other_user = 65534;

bool become_another_user() {
  return ::setgroups(0, nullptr) == 0 && ::setgid(other_user) == 0 && ::setuid(other_user) == 0 &&
         ::prctl(PR_SET_DUMPABLE, 1) == 0;
}

market_message message_of(market_kind kind, std::uint64_t epoch = 0) {
  market_message message;
  message.kind = kind;
  message.epoch = epoch;
  message.device = vmm::make_market_device(device());
  return message;
}

// A connection as an attacker has it.
class raw_peer {
 public:
  explicit raw_peer(const std::string& path) {
    const auto made =
        vmm::unix_os::connect_at(path.data(), path.size(), vmm::unix_os::deadline_in(5000));
    end_ = made.descriptor;
    EXPECT_GE(end_, 0) << made.failure;
  }
  ~raw_peer() { ::close(end_); }
  raw_peer(const raw_peer&) = delete;
  raw_peer& operator=(const raw_peer&) = delete;

  bool send(const market_bytes& bytes, const std::vector<int>& passed = {},
            std::size_t size = vmm::market_message_bytes) const {
    return vmm::unix_os::send_message(end_, {bytes.data(), size}, {passed.data(), passed.size()},
                                      vmm::unix_os::deadline_in(2000)) == 0;
  }
  bool send(const market_message& message, const std::vector<int>& passed = {}) const {
    return send(vmm::encode_market_message(message), passed);
  }
  // Nothing: the connection has ended.
  std::optional<market_message> receive(std::vector<int>* came = nullptr) const {
    market_bytes bytes{};
    std::array<int, vmm::unix_os::descriptors_max> descriptors{};
    const auto got = vmm::unix_os::receive_message(
        end_, bytes.data(), bytes.size(), descriptors.data(), vmm::unix_os::deadline_in(5000));
    for (std::size_t i = 0; i < got.descriptor_count; ++i) {
      if (came != nullptr) came->push_back(descriptors[i]);
      if (came == nullptr) ::close(descriptors[i]);
    }
    if (got.fault != vmm::unix_os::receive_fault::none) return std::nullopt;
    auto message = vmm::decode_market_message(bytes);
    return message ? std::optional(*message) : std::nullopt;
  }
  // The refusal, and then the end.
  bool is_ended() const {
    while (const auto message = receive()) {
      if (message->kind != market_kind::refused) return false;
    }
    return true;
  }
  // Returns early if a message comes.
  void wait_ns(std::int64_t time_ns) const {
    vmm::unix_os::watched here{.descriptor = end_};
    vmm::unix_os::wait_for_events(&here, 1, vmm::unix_os::clock_ns() + time_ns);
  }
  // Of a connection to which nothing is sent.
  [[nodiscard]] bool has_ended() const {
    vmm::unix_os::watched here{.descriptor = end_};
    vmm::unix_os::wait_for_events(&here, 1, vmm::unix_os::clock_ns() + std::int64_t{patience_ns});
    return here.is_ready;
  }
  // Greets with the descriptor as its witness; the owner's welcome.
  std::optional<market_message> greet(int witness, const market_message& hello) const {
    if (!send(hello, {witness})) return std::nullopt;
    return receive();
  }

 private:
  int end_ = -1;
};

struct MarketHostile : MarketProcesses {
  [[nodiscard]] std::string path() const { return folder_ + "/owner-" + device(); }
  // A tenant that has memory, and keeps it through all that others do.
  void start(const rlimit* files = nullptr) {
    start_owner({}, files);
    tenant_ = join(options("honest"));
    ASSERT_TRUE(tenant_);
    ASSERT_TRUE(tenant_->take({64 * MiB, patience_ns}, lot_));
  }
  void expect_unharmed() {
    lent_list more;
    EXPECT_TRUE(tenant_->take({2 * MiB, patience_ns}, more)) << tenant_->last_refusal();
    EXPECT_EQ(tenant_->totals().charged_bytes, 66 * MiB);
    tenant_->give(more);
  }

  std::unique_ptr<memory_source> tenant_;
  lent_list lot_;
};

// It does not turn in a loop before connections that it cannot accept.
TEST_F(MarketHostile, AnOwnerWithoutDescriptorsEndsConnections) {
  const rlimit few{64, 64};
  start(&few);
  {
    std::vector<std::unique_ptr<raw_peer>> crowd;
    while (crowd.size() < 64) crowd.push_back(std::make_unique<raw_peer>(path()));
    EXPECT_TRUE(crowd.back()->has_ended());
  }
  expect_unharmed();
}

TEST_F(MarketHostile, AnotherUsersProcessIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  start();
  // By a mistake of this user the socket is open to all, and another user has got at it.
  ASSERT_EQ(::chmod(path().c_str(), 0666), 0);
  program intruder([&](const program::line& talk) {
    const int place = ::open(path().c_str(), O_PATH | O_CLOEXEC);
    if (!become_another_user()) return talk.say('u');
    const auto try_at = [](const std::string& at) {
      sockaddr_un name{};
      name.sun_family = AF_UNIX;
      std::copy(at.begin(), at.end(), name.sun_path);
      const int end = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
      if (::connect(end, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0) return end;
      ::close(end);
      return -1;
    };
    if (try_at(path()) >= 0) return talk.say('f');  // the folder's mode is 0700
    const int end = try_at("/proc/self/fd/" + std::to_string(place));
    if (end < 0) return talk.say('p');
    const market_bytes query = vmm::encode_market_message(message_of(market_kind::query));
    (void)::send(end, query.data(), query.size(), MSG_NOSIGNAL);
    market_bytes reply{};
    talk.say(::recv(end, reply.data(), reply.size(), 0) <= 0 ? 'y' : 'n');
  });
  const char end = intruder.talk().hear();
  if (end == 'p') GTEST_SKIP() << "the system has no /proc";
  EXPECT_EQ(end, 'y') << "u: no other user, f: the folder is open, n: the owner replied";
  expect_unharmed();
}

TEST_F(MarketHostile, AnotherUsersOwnerIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string at = path();
  std::copy(at.begin(), at.end(), name.sun_path);
  const int listening = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::bind(listening, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  program intruder([&](const program::line& talk) {
    if (!become_another_user() || ::listen(listening, 4) != 0) return talk.say('u');
    talk.say('r');
    const int end = ::accept(listening, nullptr, nullptr);
    market_bytes hello{};
    talk.say(::recv(end, hello.data(), hello.size(), 0) <= 0 ? 'y' : 'n');
  });
  ASSERT_EQ(intruder.talk().hear(), 'r');
  tenant_options given = options("one");
  given.timeout_ms = 300;
  const auto source = vmm::join_market(given, {});
  ASSERT_FALSE(source);
  EXPECT_EQ(source.error().code, vmm::errc::not_permitted);
  EXPECT_EQ(intruder.talk().hear(), 'y') << "a byte was sent to another user";
  ::close(listening);
}

TEST_F(MarketHostile, AbstractNamesAreRefused) {
  for (const std::string& directory :
       {std::string("\0market", 7), std::string(), folder_ + "/.."}) {
    tenant_options given = options("one");
    given.directory = directory;
    given.timeout_ms = 200;
    EXPECT_FALSE(vmm::join_market(given, {})) << directory;
  }
  EXPECT_TRUE(contains(run_program({owner_program(), "serve", "@market", device()}),
                       "FOLDER is an absolute path"));
}

TEST_F(MarketHostile, WrongMessagesEndTheirConnectionOnly) {
  start();
  const int file = ::memfd_create("any", MFD_CLOEXEC);
  const vmm::unix_os::descriptor_pair pair = vmm::unix_os::make_pair();
  market_bytes noise{};
  for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<std::byte>(i * 37 + 11);
  const market_bytes hello = vmm::encode_market_message(message_of(market_kind::hello));
  const std::vector<std::function<bool(const raw_peer&)>> attacks{
      [&](const raw_peer& peer) { return peer.send(noise); },
      [&](const raw_peer& peer) { return peer.send(hello, {pair.first}, 256); },
      [&](const raw_peer& peer) { return peer.send(hello); },
      [&](const raw_peer& peer) { return peer.send(hello, {pair.first, file}); },
      [&](const raw_peer& peer) { return peer.send(hello, std::vector<int>(253, file)); },
      [&](const raw_peer& peer) { return peer.send(message_of(market_kind::query), {file}); },
      [&](const raw_peer& peer) { return peer.send(message_of(market_kind::want)); },
      [&](const raw_peer& peer) { return peer.send(message_of(market_kind::grant)); },
      [&](const raw_peer& peer) {
        const auto welcome = peer.greet(pair.first, message_of(market_kind::hello));
        return welcome && peer.send(message_of(market_kind::want, welcome->epoch));
      },
      [&](const raw_peer& peer) {  // it claims the honest tenant's memory
        const auto welcome = peer.greet(pair.first, message_of(market_kind::hello));
        if (!welcome) return false;
        market_message list = message_of(market_kind::inventory, welcome->epoch);
        list.handle_count = 1;
        list.handles[0] = {
            .id = lot_[0].id, .generation = lot_[0].generation, .granules = 32, .in_use = true};
        return peer.send(list, {file});
      },
      [&](const raw_peer& peer) {  // it has guessed a tenant's number, not its key
        market_message resumed = message_of(market_kind::hello);
        const raw_peer other(path());
        const auto welcome = other.greet(pair.first, resumed);
        if (!welcome) return false;
        resumed.tenant = 1;
        resumed.epoch = welcome->epoch;
        return peer.send(resumed, {pair.first});
      },
  };
  for (std::size_t i = 0; i < attacks.size(); ++i) {
    const raw_peer peer(path());
    EXPECT_TRUE(attacks[i](peer)) << i;
    EXPECT_TRUE(peer.is_ended()) << i;
    expect_unharmed();
  }
  // A give and a drop of what another tenant has change nothing.
  const raw_peer thief(path());
  const auto welcome = thief.greet(pair.first, message_of(market_kind::hello));
  ASSERT_TRUE(welcome);
  EXPECT_TRUE(thief.send(message_of(market_kind::inventory, welcome->epoch)));
  for (const market_kind kind : {market_kind::give, market_kind::dropped}) {
    market_message taken = message_of(kind, welcome->epoch);
    taken.request = 1;
    taken.handle_count = 1;
    taken.handles[0] = {.id = lot_[0].id, .generation = lot_[0].generation, .granules = 32};
    EXPECT_TRUE(thief.send(taken));
  }
  expect_unharmed();
  ::close(file);
  ::close(pair.first);
  ::close(pair.second);
}

double processor_seconds(::pid_t of) {
  std::ifstream in("/proc/" + std::to_string(of) + "/stat");
  std::string word;
  double ticks = 0;
  for (int i = 1; i <= 15 && in >> word; ++i) {
    if (i >= 14) ticks += std::strtod(word.c_str(), nullptr);
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

TEST_F(MarketHostile, AWitnessThatIsNoSocketDoesNotKeepTheOwnerBusy) {
  start();
  const int files[] = {::open("/dev/null", O_RDWR | O_CLOEXEC), ::memfd_create("any", MFD_CLOEXEC),
                       ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::vector<std::unique_ptr<raw_peer>> peers;
  for (const int each : files) {
    peers.push_back(std::make_unique<raw_peer>(path()));
    ASSERT_TRUE(peers.back()->greet(each, message_of(market_kind::hello)));
  }
  const double before = processor_seconds(owner_);
  peers.back()->wait_ns(1'000'000'000);  // nothing happens
  EXPECT_LT(processor_seconds(owner_) - before, 0.1);
  for (const int each : files) ::close(each);
}

TEST_F(MarketHostile, APeerThatReadsNothingLosesItsConnection) {
  start();
  const raw_peer deaf(path());
  const market_bytes query = vmm::encode_market_message(message_of(market_kind::query));
  bool is_over = false;
  for (int i = 0; i < 50'000 && !is_over; ++i) is_over = !deaf.send(query);
  EXPECT_TRUE(is_over) << "the owner keeps what is not read without end";
  expect_unharmed();
}

// ---- an owner that breaks the protocol ------------------------------------------------

struct MarketFalseOwner : MarketHostile {
  // Serves one connection: the welcome, then the body with the tenant's inventory read.
  void serve(const std::function<void(int)>& body) {
    const std::string at = path();
    listening_ = vmm::unix_os::listen_at(at.data(), at.size());
    ASSERT_GE(listening_.descriptor, 0);
    thread_ = std::thread([this, body] {
      vmm::unix_os::watched wait{.descriptor = listening_.descriptor};
      vmm::unix_os::wait_for_events(&wait, 1, vmm::unix_os::clock_ns() + 5'000'000'000);
      const int end = vmm::unix_os::accept_now(listening_.descriptor).descriptor;
      take(end);
      market_message welcome = message_of(market_kind::welcome, 7);
      welcome.tenant = 1;
      say(end, welcome);
      take(end);
      body(end);
      ::close(end);
    });
  }
  void stop() {
    if (thread_.joinable()) thread_.join();
    if (listening_.descriptor < 0) return;
    const std::string at = path();
    vmm::unix_os::stop_listening(listening_, at.data(), at.size());
    listening_ = {};
  }
  ~MarketFalseOwner() override { stop(); }
  static void say(int end, const market_message& message, const std::vector<int>& passed = {}) {
    const market_bytes bytes = vmm::encode_market_message(message);
    (void)vmm::unix_os::send_message(end, {bytes.data(), bytes.size()},
                                     {passed.data(), passed.size()},
                                     vmm::unix_os::deadline_in(1000));
  }
  static std::optional<market_message> take(int end) {
    market_bytes bytes{};
    std::array<int, vmm::unix_os::descriptors_max> came{};
    const auto got = vmm::unix_os::receive_message(end, bytes.data(), bytes.size(), came.data(),
                                                   vmm::unix_os::deadline_in(5000));
    for (std::size_t i = 0; i < got.descriptor_count; ++i) ::close(came[i]);
    const auto message = vmm::decode_market_message(bytes);
    if (got.fault != vmm::unix_os::receive_fault::none || !message) return std::nullopt;
    return *message;
  }

 private:
  vmm::unix_os::listening listening_{};
  std::thread thread_;
};

// A tenant that closes at once leaves what the owner said unread.
TEST(MarketMessages, ArriveFromAPeerThatEndsWithoutReading) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  for (const int each : ends)
    MarketFalseOwner::say(each, market_message{.kind = market_kind::leave});
  ::close(ends[0]);
  const auto left = MarketFalseOwner::take(ends[1]);
  EXPECT_TRUE(left && left->kind == market_kind::leave);
  EXPECT_FALSE(MarketFalseOwner::take(ends[1]));
  ::close(ends[1]);
}

TEST_F(MarketFalseOwner, ALotOfAnotherSizeEndsTheConnection) {
  for (const std::uint32_t granules : {1U, 8U}) {
    serve([&](int end) {
      const auto want = take(end);
      if (!want) return;
      market_message grant = message_of(market_kind::grant, 7);
      grant.request = want->request;
      grant.handle_count = 1;
      grant.handles[0] = {.id = 5, .generation = 1, .granules = granules, .has_descriptor = true};
      const int file = ::memfd_create("lot", MFD_CLOEXEC);
      say(end, grant, {file});
      ::close(file);
      EXPECT_FALSE(take(end)) << "the tenant takes a lot of another size";
    });
    auto source = join(options("tenant"));
    ASSERT_TRUE(source);
    lent_list lot;
    EXPECT_FALSE(source->take({8 * MiB, second_ns / 2}, lot));
    EXPECT_TRUE(lot.empty());
    source.reset();
    stop();
  }
}

TEST_F(MarketFalseOwner, FlagsThatAKindHasNoUseForAreRefused) {
  serve([&](int end) {
    (void)take(end);  // a request: the tenant has joined
    market_message drop = message_of(market_kind::drop, 7);
    drop.handle_count = 1;
    drop.handles[0] = {.id = 5, .generation = 1, .granules = 1};
    market_bytes bytes = vmm::encode_market_message(drop);
    bytes[vmm::market_header_bytes + 15] = std::byte{2};  // "its descriptor comes with it"
    (void)vmm::unix_os::send_message(end, {bytes.data(), bytes.size()}, {},
                                     vmm::unix_os::deadline_in(1000));
    while (const auto message = take(end))
      EXPECT_NE(message->kind, market_kind::dropped) << "a descriptor is read that did not come";
  });
  auto source = join(options("tenant"));
  ASSERT_TRUE(source);
  lent_list lot;
  EXPECT_FALSE(source->take({8 * MiB, second_ns / 5}, lot));
}

}  // namespace
