// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: an owner and tenants as processes: memory moves between them, and a tenant or an owner that
// is killed or stopped at any point costs no byte, no second user, and at most a deadline.
// Method: vmm-owner over the host driver, tenants in forked processes that map the descriptors.
#include "processes.hpp"

import vmm.share;

namespace {

using namespace market_test;

// Handles as a driver maps them: each import once, for its life.
class mapped_lot {
 public:
  explicit mapped_lot(const lent_list& lot) : lot_(lot) {
    auto opened = vmm::open_backend(variable("VMM_TEST_BACKEND", "host"));
    EXPECT_TRUE(opened) << vmm::describe(opened.error());
    driver_.emplace(std::move(*opened));
    for (const vmm::lent_handle& each : lot) {
      vmm::shared_handle shared;
      shared.kind = vmm::share_kind::posix_fd;
      shared.descriptor = each.descriptor;
      shared.size_bytes = each.size_bytes;
      const auto memory = driver_->import_handle(shared);
      const auto range = driver_->reserve({.size_bytes = each.size_bytes});
      EXPECT_TRUE(memory && range);
      const vmm::access_grant both{driver_->home(), vmm::access::read_write};
      EXPECT_TRUE(driver_->map({range->base, each.size_bytes, *memory, 0}));
      EXPECT_TRUE(driver_->set_access(*range, std::span(&both, 1)));
      parts_.push_back({*memory, *range});
    }
  }
  mapped_lot(const mapped_lot&) = delete;
  mapped_lot& operator=(const mapped_lot&) = delete;
  ~mapped_lot() {
    for (const part& each : parts_) {
      EXPECT_TRUE(driver_->unmap(each.range));
      EXPECT_TRUE(driver_->release(each.memory));
      EXPECT_TRUE(driver_->free_reservation(each.range));
    }
  }
  // Every word of some lines in each MiB has the value, its handle and its place.
  void write(std::uint64_t value) {
    visit(value, [&](vmm::address at, std::span<std::uint64_t> words) {
      EXPECT_TRUE(driver_->write(at, std::as_bytes(words)));
      return std::uint64_t{0};
    });
  }
  [[nodiscard]] std::uint64_t wrong(std::uint64_t value) {
    return visit(value, [&](vmm::address at, std::span<std::uint64_t> words) {
      std::vector<std::uint64_t> found(words.size());
      EXPECT_TRUE(driver_->read(std::as_writable_bytes(std::span(found)), at));
      std::uint64_t differing = 0;
      for (std::size_t i = 0; i < words.size(); ++i) differing += found[i] != words[i] ? 1 : 0;
      return differing;
    });
  }

 private:
  struct part {
    vmm::physical_handle memory{};
    vmm::address_range range{};
  };
  std::uint64_t visit(
      std::uint64_t value,
      const std::function<std::uint64_t(vmm::address, std::span<std::uint64_t>)>& call) {
    std::uint64_t sum = 0;
    std::array<std::uint64_t, 64> words{};
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      for (std::uint64_t at = 0; at < lot_[i].size_bytes; at += MiB) {
        for (std::size_t w = 0; w < words.size(); ++w) words[w] = value + lot_[i].id + at + w;
        sum += call(parts_[i].range.base + at, words);
      }
    }
    return sum;
  }

  lent_list lot_;
  std::optional<vmm::any_backend> driver_;
  std::vector<part> parts_;
};

void write_words(const lent_list& lot, std::uint64_t value) { mapped_lot(lot).write(value); }
std::uint64_t wrong_words(const lent_list& lot, std::uint64_t value) {
  return mapped_lot(lot).wrong(value);
}

std::uint64_t bytes_of(const lent_list& lot) {
  std::uint64_t sum = 0;
  for (const vmm::lent_handle& each : lot) sum += each.size_bytes;
  return sum;
}

// A tenant that gives on request what `kept` has.
struct giving {
  std::unique_ptr<memory_source> source;
  std::mutex mutex;
  lent_list kept;

  static std::uint64_t ask(void* of, const vmm::recall_request& what) noexcept {
    giving& self = *static_cast<giving*>(of);
    const std::lock_guard<std::mutex> lock(self.mutex);
    lent_list given;
    while (!self.kept.empty() && bytes_of(given) < what.bytes) {
      given.push_back(self.kept.back());
      self.kept.pop_back();
    }
    self.source->give(given);
    return bytes_of(given);
  }
  [[nodiscard]] vmm::source_callbacks callbacks() { return {.of = this, .ask = &giving::ask}; }
};

// Empty without an owner. The request comes late.
std::string read_metrics(const std::string& folder) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string path = folder + "/owner-" + device() + ".metrics";
  std::copy(path.begin(), path.end(), name.sun_path);
  const int monitor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string text;
  if (::connect(monitor, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0) {
    char part[4096];
    for (ssize_t came = 0; (came = ::read(monitor, part, sizeof part)) > 0;)
      text.append(part, static_cast<std::size_t>(came));
    EXPECT_EQ(::send(monitor, "GET /", 5, MSG_NOSIGNAL), 5);
  }
  ::close(monitor);
  return text;
}

TEST_F(MarketProcesses, MemoryMovesAndTheOwnerEndsWithTheLast) {
  start_owner();
  auto one = join(options("one"));
  auto two = join(options("two"));
  ASSERT_TRUE(one && two);
  lent_list lot;
  ASSERT_TRUE(one->take({800 * MiB, patience_ns}, lot));
  EXPECT_EQ(bytes_of(lot), 800 * MiB);
  EXPECT_EQ(one->totals().charged_bytes, 800 * MiB);
  write_words(lot, 7);
  lent_list other;
  const vmm::status refused = two->take({800 * MiB, second_ns / 20}, other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, vmm::errc::out_of_memory);
  EXPECT_TRUE(contains(two->last_refusal(), "one: 800 MiB held"));
  EXPECT_TRUE(contains(vmm::describe(refused.error()),
                       "request of 800 MiB: the memory was not given back in time; free memory in "
                       "a holder, or reserve it with guarantee=BYTES in VMM_TENANT (device 1024 "
                       "MiB; one: 800 MiB held, 0 guaranteed; two: 0 MiB held"));
  const auto text_at_once = [&](memory_source& source, std::uint64_t bytes) {
    EXPECT_FALSE(source.take({bytes, 0}, other));
    return source.last_refusal();
  };
  EXPECT_TRUE(contains(text_at_once(*two, 800 * MiB),
                       "request of 800 MiB: the memory is not free now; free memory in a holder"));
  EXPECT_TRUE(contains(text_at_once(*one, 800 * MiB),
                       "request of 800 MiB: this tenant holds 800 of the 1024 MiB that it can "
                       "have: free memory of it (device 1024 MiB; one: 800 MiB"));
  EXPECT_TRUE(contains(text_at_once(*two, 2048 * MiB),
                       "request of 2048 MiB: it exceeds the owner's 1024 MiB: request less ("));
  EXPECT_TRUE(other.empty());
  EXPECT_EQ(wrong_words(lot, 7), 0u);
  one->give(lot);
  ASSERT_TRUE(two->take({800 * MiB, patience_ns}, other));
  EXPECT_EQ(bytes_of(other), 800 * MiB);
  EXPECT_TRUE(other.front().must_clear) << "it has the bytes of another job";
  two->give(other);
  one.reset();
  two.reset();
  wait_owner();  // or the test does not end
}

TEST_F(MarketProcesses, AnOwnerThatStaysHasNoMemoryWithoutATenant) {
  start_owner({"--stay"});
  for (int turn = 0; turn < 2; ++turn) {
    auto one = join(options("one"));
    ASSERT_TRUE(one);
    lent_list lot;
    ASSERT_TRUE(one->take({800 * MiB, patience_ns}, lot));
    one->give(lot);
    one.reset();
    std::string text = read_metrics(folder_);
    while (!text.empty() && !contains(text, "vmm_market_free_bytes 0\n")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      text = read_metrics(folder_);
    }
    ASSERT_FALSE(text.empty()) << "the owner has ended";
    EXPECT_TRUE(contains(text, "vmm_market_void_bytes 0\n"));
  }
  (void)control({"drain", folder_, device()});
  wait_owner();
}

TEST_F(MarketProcesses, AForkedChildEndsItsCopyOfASource) {
  start_owner();
  auto one = join(options("one"));
  ASSERT_TRUE(one);
  lent_list lot;
  ASSERT_TRUE(one->take({2 * MiB, second_ns}, lot));
  const ::pid_t child = ::fork();
  if (child == 0) {
    ::alarm(5);
    one.reset();
    ::_exit(0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the child waits for a thread of its parent";
  one->give(lot);
  EXPECT_TRUE(one->take({2 * MiB, second_ns}, lot)) << "the parent's lease has ended";
}

TEST_F(MarketProcesses, ABorrowerGivesOnRequest) {
  start_owner();
  giving one;
  one.source = join(options("borrower"), one.callbacks());
  ASSERT_TRUE(one.source);
  for (int i = 0; i < 14; ++i) ASSERT_TRUE(one.source->take({64 * MiB, patience_ns}, one.kept));
  auto two = join(options("engine", 512 * MiB));
  ASSERT_TRUE(two);
  lent_list lot;
  ASSERT_TRUE(two->take({512 * MiB, patience_ns}, lot)) << two->last_refusal();
  EXPECT_EQ(bytes_of(lot), 512 * MiB);
  EXPECT_GE(one.source->totals().charged_bytes, 384 * MiB) << "more was recalled than needed";
  two->give(lot);
  const std::lock_guard<std::mutex> lock(one.mutex);
  one.source->give(one.kept);
}

TEST_F(MarketProcesses, TwoEnginesThatWantFourFifths) {
  start_owner();
  auto first = options("first", 800 * MiB);
  auto second = options("second", 800 * MiB);
  const auto one = join(first);
  ASSERT_TRUE(one);
  const auto begin = std::chrono::steady_clock::now();
  const auto two = vmm::join_market(second, {});
  ASSERT_FALSE(two);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  EXPECT_TRUE(contains(vmm::describe(two.error()), "first: 0 MiB held, 800 guaranteed"));
}

TEST_F(MarketProcesses, AKilledTenantsMemoryIsLentAgain) {
  start_owner();
  for (int round = 0; round < 20; ++round) {
    program tenant([&](const program::line& talk) {
      auto source = join(options("killed"));
      lent_list lot;
      talk.say(source && source->take({1000 * MiB, patience_ns}, lot) ? 'y' : 'n');
      (void)talk.hear();
    });
    ASSERT_EQ(tenant.talk().hear(), 'y') << round;
    auto source = join(options("next"));
    ASSERT_TRUE(source);
    tenant.kill();
    lent_list lot;
    ASSERT_TRUE(source->take({1000 * MiB, patience_ns}, lot)) << source->last_refusal();
    source->give(lot);
  }
}

TEST_F(MarketProcesses, AForkedChildHoldsItsParentsMemory) {
  start_owner();
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  program tenant([&](const program::line& talk) {
    auto source = join(options("parent"));
    lent_list lot;
    if (!source || !source->take({1000 * MiB, patience_ns}, lot)) return;
    if (::fork() == 0) {
      char letter = 0;
      ::close(ends[1]);
      (void)!::read(ends[0], &letter, 1);
      ::_exit(0);
    }
    talk.say('y');
    (void)talk.hear();
  });
  ASSERT_EQ(tenant.talk().hear(), 'y');
  auto source = join(options("next"));
  ASSERT_TRUE(source);
  tenant.kill();
  expect_refused_with(*source, 1000 * MiB, "parent: 1000 MiB held, 0 guaranteed, not connected");
  ::close(ends[0]);
  ::close(ends[1]);  // the child ends
  lent_list lot;
  EXPECT_TRUE(source->take({1000 * MiB, patience_ns}, lot)) << source->last_refusal();
}

TEST_F(MarketProcesses, AKilledOwnerIsReplacedAndTakesStock) {
  start_owner();
  auto one = join(options("one"));
  ASSERT_TRUE(one);
  lent_list lot;
  ASSERT_TRUE(one->take({600 * MiB, patience_ns}, lot));
  write_words(lot, 11);
  const std::string socket = folder_ + "/owner-" + device();
  for (int round = 0; round < 3; ++round) {
    const bool is_killed = round != 1;
    const int status = stop_owner(is_killed ? SIGKILL : SIGTERM);
    EXPECT_EQ(WIFEXITED(status), !is_killed) << status;
    EXPECT_EQ(std::filesystem::exists(socket), is_killed);
    EXPECT_EQ(std::filesystem::exists(socket + ".metrics"), is_killed);
    start_owner();
    lent_list more;
    ASSERT_TRUE(one->take({64 * MiB, patience_ns}, more)) << round << one->last_refusal();
    auto two = join(options("two"));
    ASSERT_TRUE(two);
    lent_list other;
    EXPECT_FALSE(two->take({400 * MiB, second_ns / 10}, other)) << "the device is full";
    ASSERT_TRUE(two->take({320 * MiB, patience_ns}, other)) << two->last_refusal();
    write_words(other, 13);
    EXPECT_EQ(wrong_words(lot, 11), 0u) << "memory was lent twice";
    EXPECT_EQ(wrong_words(other, 13), 0u);
    one->give(more);
    two->give(other);
  }
  one->give(lot);
}

TEST_F(MarketProcesses, AStoppedTenantCostsAtMostTheDeadlineAndIsNamed) {
  start_owner();
  program tenant([&](const program::line& talk) {
    giving self;
    self.source = join(options("sleeper"), self.callbacks());
    {
      const std::lock_guard<std::mutex> lock(self.mutex);
      talk.say(self.source && self.source->take({900 * MiB, patience_ns}, self.kept) ? 'y' : 'n');
    }
    (void)talk.hear();
  });
  ASSERT_EQ(tenant.talk().hear(), 'y');
  tenant.stop();  // before anything may be requested of it
  auto source = join(options("engine", 512 * MiB));
  ASSERT_TRUE(source);
  expect_refused_with(*source, 512 * MiB, "overdue");
  expect_refused_with(*source, 512 * MiB, "sleeper: 900 MiB held");
  EXPECT_FALSE(contains(source->last_refusal(), "guarantee=")) << "it has one";
  tenant.signal(SIGCONT);
  lent_list lot;
  EXPECT_TRUE(source->take({512 * MiB, patience_ns}, lot)) << source->last_refusal();
}

TEST_F(MarketProcesses, TheFirstTenantStartsTheOwner) {
  tenant_options with_program = options("one");
  with_program.program = owner_program();
  std::vector<std::unique_ptr<program>> tenants;
  for (int i = 0; i < 4; ++i) {
    tenants.push_back(std::make_unique<program>([&](const program::line& talk) {
      auto source = vmm::join_market(with_program, {});
      lent_list lot;
      talk.say(source && (*source)->take({8 * MiB, patience_ns}, lot) ? 'y' : 'n');
      (void)talk.hear();
    }));
  }
  for (const auto& each : tenants) EXPECT_EQ(each->talk().hear(), 'y');
  EXPECT_TRUE(contains(control({"list", folder_, device()}), "one"));
}

TEST_F(MarketProcesses, Control) {
  start_owner();
  auto source = join(options("engine"));
  ASSERT_TRUE(source);
  expect_control({"list", folder_, device()}, 0, "engine\ndevice host: 1024 MiB, 0 lent\n");
  expect_control({"share", folder_, device(), "1", "--guarantee", "256MiB", "--limit", "512MiB"}, 0,
                 "256         0    512");
  expect_control({"share", folder_, device(), "1", "--priority", "3"}, 0,
                 "256         0    512        0      3  engine\ndevice");  // the rest stays
  expect_control({"share", folder_, device(), "1"}, 2, "takes --guarantee");
  lent_list lot;
  EXPECT_EQ(source->take({640 * MiB, second_ns}, lot).error().code, vmm::errc::over_budget);
  EXPECT_TRUE(contains(source->last_refusal(), "it exceeds the tenant's limit of 512 MiB: raise"));
  EXPECT_EQ(source->totals().total_bytes, 256 * MiB);
  expect_control(
      {"share", folder_, device(), "1", "--guarantee", "2GiB", "--limit", "2GiB"}, 1,
      "the guarantees exceed the device's memory: 2048 MiB of 1024 MiB, of which 64 MiB are kept "
      "for contexts and 0 MiB are guaranteed to others");
  expect_control({"share", folder_, device(), "1", "--guarantee", "600MiB"}, 1,
                 "above 7: a guarantee of 600 MiB, a limit of 512 MiB, priority 3");
  const std::string text = read_metrics(folder_);
  EXPECT_TRUE(contains(text, "vmm_market_owner_info{version=\""));
  EXPECT_TRUE(contains(text, "vmm_market_capacity_bytes 1073741824\n"));
  EXPECT_TRUE(contains(text,
                       "vmm_market_tenant_guaranteed_bytes{tenant=\"1\",name=\"engine\"} "
                       "268435456\n"));
  expect_control({"share", folder_, device(), "99", "--limit", "1GiB"}, 1,
                 "no tenant has this number");
  expect_control({"share", folder_, device(), "-1", "--limit", "1GiB"}, 2, "unknown option -1");
  expect_program({owner_program(), "serve", folder_, device(), "--daemon"}, 0,
                 "an owner of " + device() + " listens in " + folder_ + " already");
  const std::vector<std::string> larger{owner_program(), "serve",      folder_, device(),
                                        "--daemon",      "--capacity", "2GiB"};
  expect_program(larger, 1, "has 1024 MiB already, not 2048: drain it");
  ::kill(owner_, SIGSTOP);
  expect_program(
      larger, 1,
      "an owner of " + device() + " listens in " + folder_ + ", or begins or ends there");
  ::kill(owner_, SIGCONT);
  expect_control({"drain", folder_, device()}, 0, "ends with its last tenant");
  expect_program(larger, 1, "ends with its last tenant; serve again");
  const auto late = vmm::join_market(options("late"), {});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, vmm::errc::unavailable);
  source.reset();
  wait_owner();
}

TEST_F(MarketProcesses, TopShowsTheTenants) {
  start_owner();
  auto source = join(options("engine", 256 * MiB));
  ASSERT_TRUE(source);
  lent_list lot;
  ASSERT_TRUE(source->take({320 * MiB, patience_ns}, lot));
  ::setenv("VMM_OWNER", folder_.c_str(), 1);
  expect_program({VMM_TEST_TOP_PROGRAM, "--once"}, 0,
                 "     1       320         256        64      0        0      0  engine\n"
                 "device host: 1024 MiB, 320 lent\n");
  expect_program({VMM_TEST_TOP_PROGRAM, "--json"}, 0,
                 R"({"kind": "tenant", "device": "host", "name": "engine", "tenant": 1, )"
                 R"("held_bytes": 335544320, "guaranteed_bytes": 268435456, )"
                 R"("borrowed_bytes": 67108864, "limit_bytes": 0, "waiting_bytes": 0, )"
                 R"("priority": 0, "overdue": false, "connected": true})");
  stop_owner();
  expect_program({VMM_TEST_TOP_PROGRAM, "--once"}, 1, "no owner listens at " + folder_);
  for (const auto& [owner, why] : std::vector<std::array<const char*, 2>>{
           {"nowhere", "or the absolute path of the folder of an owner's socket; not 'nowhere'"},
           {"/nowhere", "vmm-top: /nowhere: the path, or a folder of it, does not exist"},
           {"/dev/null", "vmm-top: /dev/null: a part of the path is not a folder"}}) {
    ::setenv("VMM_OWNER", owner, 1);
    expect_program({VMM_TEST_TOP_PROGRAM, "--once"}, 1, why);
  }
  ::unsetenv("VMM_OWNER");
}

TEST_F(MarketProcesses, AnEngineWaitsForTheGuaranteeOfAnother) {
  start_owner();
  auto first = options("first", 800 * MiB);
  auto second = options("second", 800 * MiB);
  second.wait_ms = 10'000;
  auto one = join(first);
  ASSERT_TRUE(one);
  program late([&](const program::line& talk) {
    const auto source = vmm::join_market(second, {});
    lent_list lot;
    talk.say(source && (*source)->take({800 * MiB, patience_ns}, lot) ? 'y' : 'n');
    (void)talk.hear();
  });
  while (!contains(control({"list", folder_, device()}), "800      0  second")) {
  }
  one.reset();
  EXPECT_EQ(late.talk().hear(), 'y');
}

// As a signal's handler ends a wait of Python: nothing is held, lent or requested any more.
TEST_F(MarketProcesses, AnInterruptionEndsAWait) {
  start_owner();
  auto one = join(options("one", 800 * MiB));
  auto two = join(options("two"));
  ASSERT_TRUE(one && two);
  lent_list lot, other;
  ASSERT_TRUE(one->take({800 * MiB, patience_ns}, lot));
  auto late = options("late", 800 * MiB);
  late.wait_ms = 3'600'000;
  int left = 3;
  const auto count_down = [](void* of) { return --*static_cast<int*>(of) <= 0; };
  {
    const vmm::share_interruption interruption(count_down, &left);
    EXPECT_EQ(two->take({800 * MiB, patience_ns}, other).error().native, EINTR);
    EXPECT_EQ(left, 0);
    for (left = 3; const auto wait : {vmm::join_market, vmm::join_market_once})
      EXPECT_EQ(wait(late, {}).error().native, EINTR);
  }
  EXPECT_TRUE(other.empty());
  EXPECT_EQ(two->totals().charged_bytes, 0u);
  while (!contains(read_metrics(folder_), "vmm_market_waiting_requests 0\n") ||
         contains(control({"list", folder_, device()}), "late")) {
  }
  one->give(lot);
  one.reset();
  EXPECT_TRUE(two->take({800 * MiB, patience_ns}, other)) << two->last_refusal();
}

TEST_F(MarketProcesses, AForkedChildIsNotATenant) {
  start_owner();
  auto source = join(options("parent"));
  ASSERT_TRUE(source);
  program child([&](const program::line& talk) {
    lent_list lot;
    const vmm::status taken = source->take({8 * MiB, second_ns}, lot);
    talk.say(!taken && taken.error().code == vmm::errc::not_permitted ? 'y' : 'n');
    (void)talk.hear();
  });
  EXPECT_EQ(child.talk().hear(), 'y');
  lent_list lot;
  EXPECT_TRUE(source->take({8 * MiB, patience_ns}, lot));
}

// Each error names what is missing, where, and what helps.
TEST_F(MarketProcesses, AMissingOwnerIsNamed) {
  tenant_options given = options("one");
  given.timeout_ms = 300;
  const auto text = [&] {
    const auto made = vmm::join_market(given, {});
    return made ? std::string("joined") : vmm::describe(made.error());
  };
  EXPECT_TRUE(contains(text(), "no owner of the device's memory listens in " + folder_ +
                                   ": start it with vmm-owner serve"));
  given.program = "vmm-owner-that-is-not-there";
  EXPECT_TRUE(contains(text(), "vmm-owner-that-is-not-there cannot be run (ENOENT; PATH"));
  given.program = "/bin/true";
  const std::string step = ". If it is not vmm-owner, unset VMM_OWNER_PROGRAM or set it";
  EXPECT_TRUE(contains(text(), "/bin/true has ended and left none" + step));
  given.directory = "/nowhere/market";
  EXPECT_TRUE(contains(text(), "in /nowhere/market: it cannot be made (ENOENT): the folder above"));
  given.directory = folder_;
  given.program = "/bin/false";
  EXPECT_TRUE(contains(text(), folder_ + ". /bin/false ends with an error: see owner-" + device() +
                                   ".log there" + step));
  given.program = folder_ + "/hangs";
  std::ofstream(given.program) << "#!/bin/sh\nexec sleep 1000\n";
  ASSERT_EQ(::chmod(given.program.c_str(), 0700), 0);
  EXPECT_TRUE(contains(text(), "/hangs did not end in 5 s and was killed: see owner-" + device()));
  EXPECT_TRUE(::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) << "it goes on";
  given.program = "/bin/yes";  // refuses serve's options, each time that it is started
  testing::internal::CaptureStderr();
  EXPECT_TRUE(contains(text(), "/bin/yes ends with an error"));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("--daemon"), said.npos) << said;
  EXPECT_EQ(said.find("--daemon"), said.rfind("--daemon")) << "from each start: " << said;
  given.program = "";
  start_owner();
  given.timeout_ms = 5000;
  given.share.guarantee_bytes = 2048 * MiB;
  const std::string refused = text();
  EXPECT_TRUE(contains(refused,
                       "a guarantee of 2048 MiB: the guarantees exceed the device's memory, of "
                       "which 64 MiB are kept for contexts and 0 MiB are guaranteed to others"));
  EXPECT_TRUE(contains(refused, "(device 1024 MiB)"));
  EXPECT_FALSE(contains(refused, "wait=")) << "no tenant can give it";
  auto one = join(options("one"));
  ASSERT_TRUE(one);
  given.timeout_ms = 300;
  ASSERT_EQ(::kill(owner_, SIGSTOP), 0);
  const std::string number = std::to_string(owner_);
  const std::string silent = "the owner in " + folder_ + ", process " + number + ", is silent: ";
  EXPECT_TRUE(contains(text(), silent + "continue it with kill -CONT " + number + ", or end it"));
  EXPECT_TRUE(contains(control({"list", folder_, device()}), silent));
  stop_owner();
  lent_list lot;
  const vmm::status taken = one->take({64 * MiB, second_ns / 20}, lot);
  ASSERT_FALSE(taken);
  EXPECT_TRUE(contains(vmm::describe(taken.error()),
                       "the owner in " + folder_ + " has ended: start it again"));
}

// The condition that failed, and what was found.
TEST_F(MarketProcesses, APlaceThatIsNotAnOwnersIsRefused) {
  const std::string file = folder_ + "/file", link = folder_ + "/link", wide = folder_ + "/wide";
  std::ofstream(file) << "x";
  std::filesystem::create_symlink(folder_, link);
  std::filesystem::create_directory(wide);
  ::chmod(wide.c_str(), 0755);
  std::vector<std::array<std::string, 2>> places{
      {wide, "/wide: it has mode 0755, and must have 0700: name a folder in it, which is made"},
      {"/tmp", "/tmp: it has mode 1777, and must have 0700: name a folder in it, which is made"},
      {link, "/link: it is a symbolic link: name a folder"},
      {file, "/file: it is not a folder: name a folder"},
      {folder_ + "/" + std::string(300, 'x'), "it cannot be made (ENAMETOOLONG): the path or a"},
      {folder_ + "/none/a", "/none/a: it cannot be made (ENOENT): the folder above it is to be"}};
  if (::geteuid() == 0) {
    const std::string others = folder_ + "/others";
    std::filesystem::create_directory(others);
    EXPECT_EQ(::chown(others.c_str(), 7, 7), 0);
    places.push_back({others, "/others: it is of user 7, and this is user 0: name another"});
  } else {
    places.erase(places.begin() + 1);
  }
  for (const auto& [place, why] : places) {
    EXPECT_TRUE(contains(run_program({owner_program(), "serve", place, device()}), why)) << place;
    tenant_options given = options("one");
    given.timeout_ms = 300;
    given.directory = place;
    if (contains(why, "cannot be made")) continue;  // only a program makes one
    const auto source = vmm::join_market(given, {});
    ASSERT_FALSE(source);
    EXPECT_EQ(source.error().code, vmm::errc::not_permitted);
    EXPECT_TRUE(contains(source.error().detail, why)) << source.error().detail;
  }
}

// `sudo -E` keeps the user's folder in the environment: one of root's in it would stop the user.
TEST_F(MarketProcesses, RootPublishesNoFolderOfAUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  const std::string own = folder_ + "/runtime";
  std::filesystem::create_directory(own);
  ASSERT_EQ(::setenv("XDG_RUNTIME_DIR", own.c_str(), 1), 0);
  EXPECT_EQ(vmm::default_market_directory(), own + "/vmm-market");
  ASSERT_EQ(::chown(own.c_str(), 65534, 65534), 0);
  EXPECT_EQ(vmm::default_market_directory(), "/tmp/vmm-market-0");
  ASSERT_EQ(::setenv("XDG_RUNTIME_DIR", "relative", 1), 0);
  EXPECT_EQ(vmm::default_market_directory(), "/tmp/vmm-market-0");
  ASSERT_EQ(::unsetenv("XDG_RUNTIME_DIR"), 0);
}

TEST_F(MarketProcesses, AFailedStartLeavesNothing) {
  const std::string place = folder_ + "/owner-" + device(), lock = place + ".lock";
  const auto expect_refused = [&](const std::string& options, const std::string& text) {
    expect_program({"/bin/sh", "-c", "ulimit " + options + "; exec \"$0\" \"$@\"", owner_program(),
                    "serve", folder_, device(), "--capacity", "60PiB"},
                   1, text);
  };
  expect_refused("-n 1000", "--capacity is 64424509440 MiB");
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "a file is left";
  expect_refused("-n 32",
                 "the limit of open files is 32, and an owner needs 64, 3 more for each tenant and "
                 "1 for each handle of memory: raise it (ulimit -n)");
  std::filesystem::create_directory(lock);
  expect_refused("-n 1000", ".lock: it is not a file of an owner: remove it");
  std::filesystem::remove(lock);
  std::filesystem::create_directory(place);
  expect_refused("-n 1000", ": it is not a file of an owner: remove it");
  std::filesystem::remove(place);
  std::filesystem::create_directory(place + ".metrics");
  expect_refused("-n 1000", ".metrics: it is not a file of an owner: remove it; no fig");
}

}  // namespace
