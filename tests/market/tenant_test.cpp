// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: tenants of one owner hand memory to each other, and none sees the bytes of another job,
// whichever process ends or stops.
// Method: vmm-owner over the host driver; tenants in this process and in children that are killed
// or stopped.
#include <fcntl.h>
#include <sys/resource.h>

#include "../process/child.hpp"
#include "tenants.hpp"

import vmm.manager;
import vmm.registry;

namespace {

using market_test::capacity_bytes, market_test::second_ns;
using market_test::open_host_tenant;
using market_test::options_of;
using vmm::errc;

// Memory of a driver, mapped for the host.
struct mapped_memory {
  vmm::driver_interface& driver;
  vmm::physical_handle handle = vmm::physical_handle::none;
  vmm::address_range range{};
  std::string failure;

  mapped_memory(vmm::driver_interface& of, std::uint64_t size_bytes) : driver(of) {
    const auto made = driver.create({.size_bytes = size_bytes, .where = driver.home()});
    if (!made) {
      failure = vmm::describe(made.error());
      return;
    }
    handle = *made;
    range = driver.reserve({size_bytes, 0, {}}).value();
    const vmm::access_grant own{driver.home(), vmm::access::read_write};
    EXPECT_TRUE(driver.map({range.base, size_bytes, handle, 0}));
    EXPECT_TRUE(driver.set_access(range, {&own, 1}));
  }
  mapped_memory(const mapped_memory&) = delete;
  mapped_memory& operator=(const mapped_memory&) = delete;
  ~mapped_memory() { give(); }

  void give() {
    if (range.empty()) return;
    EXPECT_TRUE(driver.unmap(range));
    EXPECT_TRUE(driver.free_reservation(range));
    EXPECT_TRUE(driver.release(handle));
    range = {};
  }
  std::span<std::uint64_t> words() const {
    return {range.base.as<std::uint64_t>(), range.size_bytes / 8};
  }
  void write(std::uint64_t word) const { std::ranges::fill(words(), word); }
  std::size_t count(std::uint64_t word) const {
    return static_cast<std::size_t>(std::ranges::count(words(), word));
  }
};

// A refusal that has the text: on a slow host a tenant ends its request before the owner does.
std::string refusal_with(vmm::driver_interface& driver, std::uint64_t bytes, const char* text) {
  std::string refused;
  for (int left = 60; left > 0 && !contains(refused, text); --left)
    refused = mapped_memory(driver, bytes).failure;
  return refused;
}

// A child that is a tenant, has memory with this word, and waits to be killed.
class tenant_child {
 public:
  tenant_child(const market_test::owner_process& owner, std::uint64_t bytes, std::uint64_t word,
               bool forks) {
    std::array<int, 2> ready{};
    EXPECT_EQ(::pipe2(ready.data(), O_CLOEXEC), 0);
    child_ = ::fork();
    if (child_ == 0) {
      auto tenant = open_host_tenant(options_of(owner, "child"));
      if (!tenant) std::_Exit(1);
      const mapped_memory memory(**tenant, bytes);
      if (!memory.failure.empty()) std::_Exit(2);
      memory.write(word);
      const pid_t grandchild = forks ? ::fork() : 0;
      if (grandchild == 0 && forks) {
        ::close(ready[1]);
        for (;;) ::pause();
      }
      (void)!::write(ready[1], &grandchild, sizeof grandchild);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    EXPECT_EQ(::read(ready[0], &grandchild_, sizeof grandchild_),
              static_cast<ssize_t>(sizeof grandchild_));
    ::close(ready[0]);
  }
  tenant_child(const tenant_child&) = delete;
  tenant_child& operator=(const tenant_child&) = delete;
  ~tenant_child() {
    kill();
    kill_grandchild();
  }
  void signal(int number) const { ::kill(child_, number); }
  void kill() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(std::exchange(child_, -1), nullptr, 0);
  }
  void kill_grandchild() {
    if (grandchild_ > 0) ::kill(std::exchange(grandchild_, 0), SIGKILL);
  }

 private:
  pid_t child_ = -1;
  pid_t grandchild_ = 0;
};

std::unique_ptr<vmm::tenant_driver> opened(const vmm::tenant_options& options,
                                           std::uint64_t wait_ns = 10 * second_ns) {
  auto made = open_host_tenant(options, wait_ns);
  EXPECT_TRUE(made) << vmm::describe(made.error());
  return made ? std::move(*made) : nullptr;
}

// ---- two tenants ---------------------------------------------------------------------

TEST(MarketTenant, HandsMemoryOnWithoutItsBytes) {
  const market_test::owner_process owner;
  const auto first = opened(options_of(owner, "first"));
  const auto second = opened(options_of(owner, "second"), 0);
  mapped_memory mine(*first, capacity_bytes);
  ASSERT_EQ(mine.failure, "");
  mine.write(0x5a5a);
  const std::string refused = refusal_with(*second, 2 * MiB, "first");
  for (const char* const text : {"out of memory", "first", "64 MiB"})
    EXPECT_TRUE(contains(refused, text)) << refused;
  EXPECT_EQ(second->query_memory(second->home())->free_bytes, capacity_bytes)
      << "what others hold does not change a tenant's view";
  mine.give();
  const auto patient = opened(options_of(owner, "patient"));
  const mapped_memory got(*patient, capacity_bytes);
  ASSERT_EQ(got.failure, "");
  EXPECT_EQ(got.count(0), got.words().size());
  EXPECT_EQ(patient->query_memory(patient->home())->free_bytes, 0u);
}

TEST(MarketTenant, HandsMemoryOnAsItIsInsideAJob) {
  const market_test::owner_process owner;
  vmm::tenant_options options = options_of(owner, "first");
  options.job = 7;
  const auto first = opened(options);
  options.name = vmm::make_market_name("second");
  const auto second = opened(options);
  mapped_memory mine(*first, capacity_bytes);
  ASSERT_EQ(mine.failure, "");
  mine.write(0x5a5a);
  mine.give();
  const mapped_memory got(*second, capacity_bytes);
  ASSERT_EQ(got.failure, "");
  EXPECT_EQ(got.count(0x5a5a), got.words().size());
}

// Drivers with equal options are one tenant: one share, and one another's idle memory.
TEST(MarketTenant, TheDriversOfAProcessAreOneTenant) {
  const market_test::owner_process owner;
  vmm::tenant_options options = options_of(owner, "process");
  options.share = {.guarantee_bytes = 48 * MiB, .limit_bytes = 48 * MiB};
  const auto first = opened(options);
  auto second = opened(options);
  ASSERT_TRUE(first && second) << "two guarantees do not fit";
  vmm::manager idle(*first);
  vmm::manager busy(*second);
  ASSERT_TRUE(idle.free(idle.allocate(40 * MiB).value()));
  EXPECT_EQ(second->query_memory(second->home())->free_bytes, 8 * MiB);
  const auto block = busy.allocate(48 * MiB);
  ASSERT_TRUE(block) << vmm::describe(block.error());
  EXPECT_TRUE(busy.free(*block));
  EXPECT_EQ(busy.trim(0).failure.code, errc::none);
  const auto other = opened(options_of(owner, "other"));
  ASSERT_TRUE(idle.free(idle.allocate(40 * MiB).value()));
  EXPECT_EQ(second->source().totals().charged_bytes, 40 * MiB);
  EXPECT_EQ(vmm::market_charged_bytes(options.device), 40 * MiB);
}

// Idle memory of a manager goes to a tenant that waits.
TEST(MarketTenant, GivesIdleMemoryOnRequest) {
  const market_test::owner_process owner;
  const auto first = opened(options_of(owner, "first"));
  const auto second = opened(options_of(owner, "second"));
  vmm::manager idle(*first);
  const auto block = idle.allocate(48 * MiB);
  ASSERT_TRUE(block) << vmm::describe(block.error());
  ASSERT_TRUE(idle.free(*block));
  ASSERT_GE(first->source().totals().charged_bytes, 48 * MiB);
  const mapped_memory got(*second, capacity_bytes);
  EXPECT_EQ(got.failure, "");
}

// A giver of the program runs after idle memory, with what is missing.
TEST(MarketTenant, RunsGiversOfTheProgram) {
  const market_test::owner_process owner;
  const auto first = opened(options_of(owner, "first"));
  const auto second = opened(options_of(owner, "second"));
  mapped_memory mine(*first, 32 * MiB);
  first->add_giver({&mine, [](void* of, const vmm::timed_bytes&) noexcept -> std::uint64_t {
                      static_cast<mapped_memory*>(of)->give();
                      return 32 * MiB;
                    }});
  const mapped_memory got(*second, capacity_bytes);
  EXPECT_EQ(got.failure, "");
  EXPECT_TRUE(mine.range.empty());
}

TEST(MarketTenant, SeesItsShareAsTheDevice) {
  const market_test::owner_process owner;
  vmm::tenant_options options = options_of(owner, "guaranteed");
  options.share = {.guarantee_bytes = 16 * MiB, .limit_bytes = 32 * MiB};
  const auto tenant = opened(options);
  const auto before = tenant->query_memory(tenant->home());
  EXPECT_EQ(before->total_bytes, 16 * MiB);
  EXPECT_EQ(before->free_bytes, 16 * MiB);
  const mapped_memory mine(*tenant, 24 * MiB);
  EXPECT_EQ(mine.failure, "");
  EXPECT_EQ(tenant->query_memory(tenant->home())->free_bytes, 0u);
  const mapped_memory more(*tenant, 16 * MiB);
  EXPECT_TRUE(contains(more.failure, "out of memory")) << "the limit";
  vmm::manager blocks(*tenant);
  EXPECT_TRUE(contains(vmm::describe(blocks.allocate(16 * MiB).error()),
                       "request of 16 MiB exceeds the available memory: "));
  vmm::tenant_options second = options_of(owner, "second");
  second.share.guarantee_bytes = 60 * MiB;
  const auto refused = open_host_tenant(second);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, errc::out_of_memory);
  EXPECT_TRUE(contains(refused.error().detail, "guaranteed"));
}

// ---- ends ----------------------------------------------------------------------------

TEST(MarketTenant, MemoryOfAKilledTenantIsLentAgainWithoutItsBytes) {
  VMM_SKIP_UNDER_TSAN();
  const market_test::owner_process owner;
  const std::size_t rounds = 10;
  for (std::size_t round = 0; round < rounds; ++round) {
    tenant_child child(owner, capacity_bytes, 0x5a5a, false);
    child.kill();
    const auto successor = opened(options_of(owner, "successor"));
    const mapped_memory got(*successor, capacity_bytes);
    ASSERT_EQ(got.failure, "") << round;
    EXPECT_EQ(got.count(0), got.words().size()) << round;
  }
}

TEST(MarketTenant, AForkedChildKeepsTheMemoryOfAKilledTenantAway) {
  VMM_SKIP_UNDER_TSAN();
  const market_test::owner_process owner;
  tenant_child child(owner, capacity_bytes, 0x5a5a, true);
  child.kill();
  {
    const auto early = opened(options_of(owner, "early"), second_ns / 2);
    const mapped_memory refused(*early, 2 * MiB);
    EXPECT_TRUE(contains(refused.failure, "refuses a handle of 2 MiB: ")) << refused.failure;
  }
  child.kill_grandchild();
  const auto successor = opened(options_of(owner, "successor"));
  const mapped_memory got(*successor, capacity_bytes);
  ASSERT_EQ(got.failure, "");
  EXPECT_EQ(got.count(0), got.words().size());
}

TEST(MarketTenant, AStoppedTenantDelaysOthersUpToTheirDeadline) {
  VMM_SKIP_UNDER_TSAN();
  const market_test::owner_process owner;
  const tenant_child child(owner, capacity_bytes / 2, 0x5a5a, false);
  child.signal(SIGSTOP);
  {
    const auto other = opened(options_of(owner, "other"), second_ns);
    const auto begin = std::chrono::steady_clock::now();
    (void)mapped_memory(*other, capacity_bytes);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30)) << "it has 1 s";
    const std::string refused = refusal_with(*other, capacity_bytes, "child");
    EXPECT_TRUE(contains(refused, "child")) << refused;
  }
  const auto patient = opened(options_of(owner, "patient"));
  const mapped_memory got(*patient, capacity_bytes / 2);
  EXPECT_EQ(got.failure, "");
}

TEST(MarketTenant, ANewOwnerTakesStock) {
  VMM_SKIP_UNDER_TSAN();
  market_test::owner_process owner;
  const auto tenant = opened(options_of(owner, "tenant"));
  mapped_memory mine(*tenant, 32 * MiB);
  ASSERT_EQ(mine.failure, "");
  mine.write(0x5a5a);
  for (int round = 0; round < 5; ++round) {
    owner.kill();
    EXPECT_EQ(mine.count(0x5a5a), mine.words().size());
    owner.start();
    const mapped_memory more(*tenant, 32 * MiB);
    EXPECT_EQ(more.failure, "") << round;
    EXPECT_EQ(more.count(0x5a5a), 0u);
    const auto other = opened(options_of(owner, "other"), second_ns / 5);
    const mapped_memory refused(*other, 2 * MiB);
    EXPECT_TRUE(contains(refused.failure, "out of memory")) << "lent twice in round " << round;
  }
  EXPECT_EQ(mine.count(0x5a5a), mine.words().size());
}

TEST(MarketTenant, AForkedChildsCallsAreRefused) {
  VMM_SKIP_UNDER_TSAN();
  const market_test::owner_process owner;
  auto tenant = opened(options_of(owner, "parent"));
  auto mine = std::make_unique<mapped_memory>(*tenant, 2 * MiB);
  const auto seen = process_test::in_child(
      [&] {
        process_test::expect_refused(
            tenant->create({.size_bytes = 2 * MiB, .where = tenant->home()}), "create");
        process_test::expect_refused(tenant->release(mine->handle), "release");
        process_test::expect_refused(tenant->unmap(mine->range), "unmap");
        process_test::expect_refused(tenant->query_memory(tenant->home()), "query_memory");
        (void)mine.release();
        tenant.reset();
      },
      process_test::leave_by::quick_exit);
  process_test::expect_good(seen, "the child");
  mine->write(1);
  EXPECT_EQ(mine->count(1), mine->words().size());
}

// ---- mistakes ------------------------------------------------------------------------

TEST(MarketTenant, LimitsOnOpenFilesAreErrors) {
  const market_test::owner_process owner;
  const auto tenant = opened(options_of(owner, "tenant"), second_ns / 2);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  // The sanitizer opens a pipe at the first call of a virtual function: three are left for it, and
  // 30 MiB are four handles.
  EXPECT_EQ(mapped_memory(*tenant, 2 * MiB).failure, "");
  const int next = ::dup(0);
  ::close(next);
  const rlimit few{static_cast<rlim_t>(next) + 3, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::string failure;
  {
    const mapped_memory refused(*tenant, 30 * MiB);
    failure = refused.failure;
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_NE(failure, "");
  const mapped_memory got(*tenant, capacity_bytes);
  const mapped_memory again(*tenant, got.failure.empty() ? 2 * MiB : capacity_bytes);
  EXPECT_TRUE(got.failure.empty() || again.failure.empty()) << got.failure << again.failure;
}

TEST(MarketTenant, PlacesOfOthersAreRefused) {
  market_test::owner_process owner("64MiB", true);
  vmm::tenant_options options = options_of(owner, "tenant");
  options.timeout_ms = 200;
  const auto code = [&] {
    const auto made = open_host_tenant(options);
    return made ? errc::none : made.error().code;
  };
  EXPECT_EQ(code(), errc::unavailable) << "no owner";
  owner.begin();
  EXPECT_EQ(code(), errc::none);
  ASSERT_EQ(::chmod(owner.in.path().c_str(), 0750), 0);
  EXPECT_EQ(code(), errc::not_permitted) << "a directory that others can read";
  ASSERT_EQ(::chmod(owner.in.path().c_str(), 0700), 0);
  const std::string link = owner.in.path() + "/link";
  std::filesystem::create_symlink(owner.in.path(), link);
  options.directory = link;
  EXPECT_EQ(code(), errc::not_permitted) << "a symbolic link";
  std::filesystem::remove(link);
}

// The door of C, Python and every program that chooses a driver by name.
TEST(MarketTenant, OneVariableMakesADriverATenant) {
  const market_test::owner_process owner;
  ::setenv("VMM_OWNER", owner.in.path().c_str(), 1);
  ::setenv("VMM_TENANT", "name=by-name,limit=32MiB", 1);
  {
    auto opened = vmm::open_backend("host");
    ASSERT_TRUE(opened) << vmm::describe(opened.error());
    EXPECT_NE(opened->get_if<vmm::tenant_driver>(), nullptr);
    EXPECT_NE(vmm::driver_in<vmm::host_driver>(*opened), nullptr);
    EXPECT_EQ(opened->query_memory(opened->home())->total_bytes, 32 * MiB);
    vmm::manager blocks(*opened);
    const auto block = blocks.allocate(20 * MiB);
    ASSERT_TRUE(block) << vmm::describe(block.error());
    EXPECT_FALSE(blocks.allocate(20 * MiB));
    EXPECT_TRUE(blocks.free(*block));
  }
  const auto other = vmm::open_backend("fake");
  EXPECT_EQ(other ? errc::none : other.error().code, errc::not_supported);
  ::unsetenv("VMM_OWNER");
  ::unsetenv("VMM_TENANT");
  auto plain = vmm::open_backend("host");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->get_if<vmm::tenant_driver>(), nullptr);
}

TEST(MarketTenant, VariablesAreChecked) {
  const auto code = [](const char* owner, const char* tenant) {
    ::setenv("VMM_OWNER", owner, 1);
    ::setenv("VMM_TENANT", tenant, 1);
    const auto read = vmm::tenant_options_from_environment();
    ::unsetenv("VMM_OWNER");
    ::unsetenv("VMM_TENANT");
    return read ? errc::none : read.error().code;
  };
  EXPECT_EQ(code("/tmp", "guarantee=20GiB,limit=60GiB,priority=1,elastic,name=a,group=b,job=7"),
            errc::none);
  EXPECT_EQ(code("tmp", ""), errc::bad_option);
  for (const char* wrong :
       {"guarantee", "guarantee=x", "priority=8", "limit=1GiB,guarantee=2GiB", "limit=1MiB",
        "limit=65PiB", "guarantee=1", "size=3", "job=-1", "name=", "elastic=1",
        "name=abcdefghijklmnopqrstuvwxyzabcdefghijkl",
        "elastic=", "limit=", "limit=1GiB,limit=2GiB", "elastic,job=1,elastic"}) {
    EXPECT_EQ(code("/tmp", wrong), errc::bad_option) << wrong;
    EXPECT_EQ(code("", wrong), errc::bad_option) << wrong;
    EXPECT_EQ(code("off", wrong), errc::none) << wrong;
  }
  ::setenv("VMM_TENANT", "limit=1GiB,priority=8", 1);
  EXPECT_STREQ(vmm::tenant_options_from_environment().error().detail,
               "priority in VMM_TENANT is a number from 0 to 7; not 'priority=8'");
  ::setenv("VMM_OWNER", "/tmp", 1);
  ::setenv("VMM_TENANT", "guarantee=20GiB,limit=60GiB,priority=1,elastic,name=a,job=7", 1);
  const auto read = vmm::tenant_options_from_environment();
  ASSERT_TRUE(read && *read);
  EXPECT_EQ((*read)->share, (vmm::market_share{20 * GiB, 60 * GiB, 1, true}));
  EXPECT_EQ((*read)->job, 7u);
  EXPECT_EQ(vmm::text_of((*read)->name), "a");
  ::unsetenv("VMM_OWNER");
  ::unsetenv("VMM_TENANT");
  const auto none = vmm::tenant_options_from_environment();
  EXPECT_TRUE(none && !*none);
}

}  // namespace
