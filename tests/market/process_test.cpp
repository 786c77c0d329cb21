// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: an owner and tenants as processes: memory moves between them, and a tenant or an owner that
// is killed or stopped at any point costs no byte, no second user, and at most a deadline.
// Method: vmm-owner over the host driver, tenants in forked processes that map the descriptors.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <chrono>

#include "../support/test.h"

import vmm;
import vmm.backend;
import vmm.market;

namespace {

using vmm::lent_list, vmm::memory_source, vmm::tenant_options;

constexpr std::uint64_t second_ns = 1'000'000'000;

// The device of the tests: "host", or with VMM_TEST_DEVICE=UUID that of VMM_TEST_BACKEND=cuda:N.
std::string variable(const char* name, const char* usual) {
  const char* const text = std::getenv(name);
  return text == nullptr ? usual : text;
}
std::string device() { return variable("VMM_TEST_DEVICE", "host"); }

const char* owner_program() {
  const char* const other = std::getenv("VMM_TEST_OWNER");
  return other != nullptr ? other : VMM_TEST_OWNER_PROGRAM;
}

std::string run_program(const std::vector<std::string>& words, int* code = nullptr) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "";
  const ::pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    std::vector<char*> line;
    for (const std::string& each : words) line.push_back(const_cast<char*>(each.c_str()));
    line.push_back(nullptr);
    ::execv(line[0], line.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t came = 0; (came = ::read(ends[0], part, sizeof part)) > 0;)
    text.append(part, static_cast<std::size_t>(came));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (code != nullptr) *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return text;
}

// A program of a tenant: forked, with a line to the test in each direction.
class program {
 public:
  // Both ends are single letters.
  struct line {
    int read_end = -1;
    int write_end = -1;
    void say(char letter) const { (void)!::write(write_end, &letter, 1); }
    char hear() const {
      char letter = 0;
      return ::read(read_end, &letter, 1) == 1 ? letter : '\0';
    }
  };

  explicit program(const std::function<void(line)>& body) {
    int down[2], up[2];
    EXPECT_EQ(::pipe2(down, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(up, O_CLOEXEC), 0);
    number_ = ::fork();
    if (number_ == 0) {
      ::close(down[1]);
      ::close(up[0]);
      body({down[0], up[1]});
      ::_exit(0);
    }
    ::close(down[0]);
    ::close(up[1]);
    line_ = {up[0], down[1]};
  }
  program(const program&) = delete;
  program& operator=(const program&) = delete;
  ~program() {
    ::close(line_.write_end);
    if (number_ > 0) {
      ::kill(number_, SIGKILL);
      reap();
    }
    ::close(line_.read_end);
  }
  void signal(int what) const { ::kill(number_, what); }
  void kill() {
    ::kill(number_, SIGKILL);
    reap();
  }
  void reap() {
    int status = 0;
    if (number_ > 0) ::waitpid(number_, &status, 0);
    number_ = -1;
  }
  [[nodiscard]] const line& talk() const { return line_; }

 private:
  ::pid_t number_ = -1;
  line line_{};
};

class MarketProcesses : public testing::Test {
 protected:
  MarketProcesses() {
    char name[] = "/tmp/vmm-market-test-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~MarketProcesses() override {
    stop_owner();
    std::filesystem::remove_all(folder_);
  }
  void start_owner(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{owner_program(), "serve",   folder_,      device(),
                                   "--capacity",    "1024MiB", "--quiet-ms", "50"};
    words.insert(words.end(), more.begin(), more.end());
    owner_ = ::fork();
    if (owner_ == 0) {
      std::vector<char*> line;
      for (std::string& each : words) line.push_back(each.data());
      line.push_back(nullptr);
      ::execv(line[0], line.data());
      ::_exit(127);
    }
  }
  void stop_owner(int how = SIGKILL) {
    if (owner_ <= 0) return;
    ::kill(owner_, how);
    wait_owner();
  }
  void wait_owner() {
    int status = 0;
    ::waitpid(owner_, &status, 0);
    owner_ = -1;
  }
  [[nodiscard]] tenant_options options(const char* name) const {
    tenant_options made;
    made.directory = folder_;
    made.device = vmm::make_market_device(device());
    made.name = vmm::make_market_name(name);
    made.timeout_ms = 5000;
    return made;
  }
  std::string control(std::vector<std::string> words, int* code = nullptr) const {
    words.insert(words.begin(), {owner_program(), "ctl"});
    return run_program(words, code);
  }

  std::string folder_;
  ::pid_t owner_ = -1;
};

std::unique_ptr<memory_source> join(const tenant_options& options,
                                    const vmm::source_callbacks& callbacks = {}) {
  auto made = vmm::join_market(options, callbacks);
  EXPECT_TRUE(made) << vmm::describe(made.error());
  return made ? std::move(*made) : nullptr;
}

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

  static std::uint64_t ask(void* of, const vmm::timed_bytes& what) noexcept {
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

TEST_F(MarketProcesses, MemoryMovesAndTheOwnerEndsWithTheLast) {
  start_owner();
  auto one = join(options("one"));
  auto two = join(options("two"));
  ASSERT_TRUE(one && two);
  lent_list lot;
  ASSERT_TRUE(one->take({800 * MiB, second_ns}, lot));
  EXPECT_EQ(bytes_of(lot), 800 * MiB);
  EXPECT_EQ(one->totals().charged_bytes, 800 * MiB);
  write_words(lot, 7);
  lent_list other;
  const vmm::status refused = two->take({800 * MiB, second_ns / 20}, other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, vmm::errc::out_of_memory);
  EXPECT_TRUE(contains(two->last_refusal(), "one: 800 MiB held"));
  EXPECT_TRUE(other.empty());
  EXPECT_EQ(wrong_words(lot, 7), 0u);
  one->give(lot);
  ASSERT_TRUE(two->take({800 * MiB, second_ns}, other));
  EXPECT_EQ(bytes_of(other), 800 * MiB);
  EXPECT_TRUE(other.front().must_clear) << "it has the bytes of another job";
  two->give(other);
  one.reset();
  two.reset();
  wait_owner();  // or the test does not end
}

TEST_F(MarketProcesses, ABorrowerGivesOnRequest) {
  start_owner();
  giving one;
  one.source = join(options("borrower"), one.callbacks());
  ASSERT_TRUE(one.source);
  for (int i = 0; i < 14; ++i) ASSERT_TRUE(one.source->take({64 * MiB, second_ns}, one.kept));
  auto owned = options("engine");
  owned.share.guarantee_bytes = 512 * MiB;
  auto two = join(owned);
  ASSERT_TRUE(two);
  lent_list lot;
  ASSERT_TRUE(two->take({512 * MiB, 2 * second_ns}, lot)) << two->last_refusal();
  EXPECT_EQ(bytes_of(lot), 512 * MiB);
  EXPECT_GE(one.source->totals().charged_bytes, 384 * MiB) << "more was recalled than needed";
  two->give(lot);
  const std::lock_guard<std::mutex> lock(one.mutex);
  one.source->give(one.kept);
}

TEST_F(MarketProcesses, TwoEnginesThatWantFourFifths) {
  start_owner();
  auto first = options("first");
  first.share.guarantee_bytes = 800 * MiB;
  auto second = options("second");
  second.share.guarantee_bytes = 800 * MiB;
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
      talk.say(source && source->take({1000 * MiB, second_ns}, lot) ? 'y' : 'n');
      (void)talk.hear();
    });
    ASSERT_EQ(tenant.talk().hear(), 'y') << round;
    auto source = join(options("next"));
    ASSERT_TRUE(source);
    tenant.kill();
    lent_list lot;
    ASSERT_TRUE(source->take({1000 * MiB, 2 * second_ns}, lot)) << source->last_refusal();
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
    if (!source || !source->take({1000 * MiB, second_ns}, lot)) return;
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
  lent_list lot;
  EXPECT_FALSE(source->take({1000 * MiB, second_ns / 2}, lot)) << "a child may use it";
  EXPECT_TRUE(
      contains(source->last_refusal(), "parent: 1000 MiB held, 0 guaranteed, not connected"));
  ::close(ends[0]);
  ::close(ends[1]);  // the child ends
  EXPECT_TRUE(source->take({1000 * MiB, 2 * second_ns}, lot)) << source->last_refusal();
}

TEST_F(MarketProcesses, AKilledOwnerIsReplacedAndTakesStock) {
  start_owner();
  auto one = join(options("one"));
  ASSERT_TRUE(one);
  lent_list lot;
  ASSERT_TRUE(one->take({600 * MiB, second_ns}, lot));
  write_words(lot, 11);
  for (int round = 0; round < 3; ++round) {
    stop_owner();
    start_owner();
    lent_list more;
    ASSERT_TRUE(one->take({64 * MiB, 5 * second_ns}, more)) << round << one->last_refusal();
    auto two = join(options("two"));
    ASSERT_TRUE(two);
    lent_list other;
    EXPECT_FALSE(two->take({400 * MiB, second_ns / 10}, other)) << "the device is full";
    ASSERT_TRUE(two->take({320 * MiB, 2 * second_ns}, other)) << two->last_refusal();
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
      talk.say(self.source && self.source->take({900 * MiB, second_ns}, self.kept) ? 'y' : 'n');
    }
    (void)talk.hear();
  });
  ASSERT_EQ(tenant.talk().hear(), 'y');
  auto owned = options("engine");
  owned.share.guarantee_bytes = 512 * MiB;
  auto source = join(owned);
  ASSERT_TRUE(source);
  tenant.signal(SIGSTOP);
  lent_list lot;
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_FALSE(source->take({512 * MiB, second_ns / 2}, lot));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  EXPECT_TRUE(contains(source->last_refusal(), "sleeper: 900 MiB held"));
  EXPECT_TRUE(contains(source->last_refusal(), "overdue"));
  tenant.signal(SIGCONT);
  EXPECT_TRUE(source->take({512 * MiB, 3 * second_ns}, lot)) << source->last_refusal();
}

TEST_F(MarketProcesses, TheFirstTenantStartsTheOwner) {
  tenant_options with_program = options("one");
  with_program.program = owner_program();
  std::vector<std::unique_ptr<program>> tenants;
  for (int i = 0; i < 4; ++i) {
    tenants.push_back(std::make_unique<program>([&](const program::line& talk) {
      auto source = vmm::join_market(with_program, {});
      lent_list lot;
      talk.say(source && (*source)->take({8 * MiB, second_ns}, lot) ? 'y' : 'n');
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
  int code = -1;
  EXPECT_TRUE(contains(control({"list", folder_, device()}, &code), "engine\ndevice 1024 MiB\n"));
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(contains(
      control({"share", folder_, device(), "1", "--guarantee", "256MiB", "--limit", "512MiB"},
              &code),
      "256    512"));
  EXPECT_EQ(code, 0);
  lent_list lot;
  EXPECT_EQ(source->take({640 * MiB, second_ns}, lot).error().code, vmm::errc::over_budget);
  EXPECT_EQ(source->totals().total_bytes, 256 * MiB);
  EXPECT_TRUE(contains(
      control({"share", folder_, device(), "1", "--guarantee", "2GiB", "--limit", "2GiB"}, &code),
      "the guarantees exceed the device's memory"));
  EXPECT_EQ(code, 1);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string path = folder_ + "/owner-" + device() + ".metrics";
  std::copy(path.begin(), path.end(), name.sun_path);
  const int monitor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::connect(monitor, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  std::string text(65536, '\0');
  std::size_t size = 0;
  for (ssize_t came = 0; (came = ::read(monitor, text.data() + size, text.size() - size)) > 0;)
    size += static_cast<std::size_t>(came);
  ::close(monitor);
  EXPECT_TRUE(contains(text, "vmm_market_capacity_bytes 1073741824\n"));
  EXPECT_TRUE(contains(text,
                       "vmm_market_tenant_guaranteed_bytes{tenant=\"1\",name=\"engine\"} "
                       "268435456\n"));
  (void)control({"drain", folder_, device()}, &code);
  EXPECT_EQ(code, 0);
  EXPECT_FALSE(vmm::join_market(options("late"), {}));
  source.reset();
  wait_owner();
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
  EXPECT_TRUE(source->take({8 * MiB, second_ns}, lot));
}

TEST_F(MarketProcesses, APlaceThatOthersCanReachIsRefused) {
  ::chmod(folder_.c_str(), 0755);
  tenant_options given = options("one");
  given.timeout_ms = 300;
  const auto source = vmm::join_market(given, {});
  ASSERT_FALSE(source);
  EXPECT_EQ(source.error().code, vmm::errc::not_permitted);
  EXPECT_TRUE(contains(run_program({owner_program(), "serve", folder_, device()}),
                       "not a folder of this user with mode 0700"));
}

}  // namespace
