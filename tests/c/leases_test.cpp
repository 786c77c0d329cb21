// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the counter of a process that was killed becomes 0, at whatever step it was killed, and
// that of one whose work may go on keeps its value.
// Method: processes that hold counters of this one and are killed. A counter that must keep its
// value is looked at after that of another process, killed later, has become 0.
#include <sys/mman.h>

#include "../support/program.hpp"
#include "bench.hpp"

namespace {

constexpr std::uint64_t head_bytes = 64;
constexpr std::size_t count = 8;
constexpr std::size_t size_bytes = head_bytes + count * sizeof(std::int64_t);

// A child starts threads, which ThreadSanitizer allows on request.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

struct Leases : testing::Test {
  void SetUp() override {
    const int file =
        ::open(("/dev/shm" + name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ASSERT_GE(file, 0);
    ASSERT_EQ(::ftruncate(file, size_bytes), 0);
    void* const at = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ASSERT_NE(at, MAP_FAILED);
    ::close(file);
    counters_ = reinterpret_cast<std::int64_t*>(static_cast<char*>(at) + head_bytes);
    for (std::size_t i = 0; i < count; ++i) counters_[i] = 1;
    memory_ = c_test::make_allocator("host");
    ASSERT_GOOD(vmm_allocator_allocate(memory_, 3 << 20, 0, nullptr, &block_));
    ASSERT_GOOD(vmm_allocator_export(memory_, block_, &exported));
    for (std::size_t i = 0; i < count; ++i) ASSERT_GOOD(lend(i));
  }
  void TearDown() override {
    running_.clear();
    ::unlink(("/dev/shm" + name).c_str());
    ::munmap(reinterpret_cast<char*>(counters_) - head_bytes, size_bytes);
    EXPECT_GOOD(vmm_allocator_free(memory_, block_));
    EXPECT_GOOD(vmm_allocator_destroy(memory_));
  }
  // A process that does this, is ready, and goes on until it is killed.
  template <class Work>
  program& start(Work&& work) {
    program& made =
        *running_.emplace_back(std::make_unique<program>([&](const program::line& talk) {
          work();
          talk.say(HasFailure() ? 'x' : 'r');
          while (true) ::pause();
        }));
    EXPECT_EQ(made.talk().hear(), 'r');
    return made;
  }
  program& start_holding(std::size_t counter) {
    return start([&] { EXPECT_GOOD(hold(counter)); });
  }
  // Returns after all that ended before were looked at.
  void pass() {
    start_holding(count - 1).kill();
    wait_for_zero(count - 1);
  }
  void wait_for_zero(std::size_t counter) const {
    while (value_of(counter) != 0) std::this_thread::yield();
  }
  [[nodiscard]] std::int64_t value_of(std::size_t counter) const {
    return std::atomic_ref(counters_[counter]).load();
  }
  void count_down(std::size_t counter) const { std::atomic_ref(counters_[counter]).store(0); }
  [[nodiscard]] vmm_status lend(std::size_t counter) const {
    return vmm_block_lend(&exported, name.c_str(), head_bytes + counter * sizeof(std::int64_t));
  }
  [[nodiscard]] vmm_status hold(std::size_t counter) const {
    return vmm_block_hold(&exported, name.c_str(), head_bytes + counter * sizeof(std::int64_t));
  }

  // A name is used once, as PyTorch's are.
  static inline int number_ = 0;
  const std::string name = "/vmm_" + std::to_string(::getpid()) + "_" + std::to_string(++number_);
  vmm_block_export exported{};

 private:
  std::int64_t* counters_ = nullptr;
  vmm_allocator* memory_ = nullptr;
  void* block_ = nullptr;
  std::vector<std::unique_ptr<program>> running_;
};

TEST_F(Leases, AProcessThatIsKilledCountsDown) {
  const auto map_block = [&](bool ends) {
    vmm_allocator* const own = c_test::make_allocator("host");
    void* at = nullptr;
    EXPECT_GOOD(vmm_allocator_import(own, &exported, 0, &at));
    if (ends) EXPECT_GOOD(vmm_allocator_end_import(own, at));
  };
  const auto start_importing = [&](std::size_t counter, bool ends) -> program& {
    return start([&] {
      EXPECT_GOOD(hold(counter));
      map_block(ends);
    });
  };
  program* const steps[] = {&start_holding(0), &start_importing(1, false),
                            &start_importing(2, true)};
  for (std::size_t i = 0; i < std::size(steps); ++i) {
    EXPECT_EQ(value_of(i), 1);
    steps[i]->kill();
    wait_for_zero(i);
  }
}

TEST_F(Leases, OthersCountersKeepTheirValue) {
  program& killed = start_holding(0);
  start_holding(1);
  start([] {}).kill();  // has reported nothing
  killed.kill();
  wait_for_zero(0);
  pass();
  for (const std::size_t each : {1U, 2U, 3U}) EXPECT_EQ(value_of(each), 1);
}

TEST_F(Leases, OneProcessHasManyCounters) {
  program& many = start([&] {
    for (std::size_t i = 0; i < 5; ++i) EXPECT_GOOD(hold(i));
    count_down(2);
  });
  many.kill();
  for (std::size_t i = 0; i < 5; ++i) wait_for_zero(i);
  EXPECT_EQ(value_of(5), 1);
}

// It has the driver's descriptors, too, and the device may work for it.
TEST_F(Leases, AForkedChildThatLivesKeepsThem) {
  int there[2];
  ASSERT_EQ(::pipe(there), 0);
  program& parent = start([&] {
    EXPECT_GOOD(hold(0));
    const pid_t child = ::fork();
    if (child == 0) {
      while (true) ::pause();
    }
    EXPECT_EQ(::write(there[1], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  });
  pid_t child = 0;
  ASSERT_EQ(::read(there[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  parent.kill();
  pass();
  EXPECT_EQ(value_of(0), 1);
  ::kill(child, SIGKILL);
  wait_for_zero(0);
  for (const int each : there) ::close(each);
}

TEST_F(Leases, AProcessThatClosesItsDescriptorsKeepsThem) {
  program& daemon = start([&] {
    EXPECT_GOOD(hold(0));
    std::vector<int> closed;
    for (int each = 3; each < 200; ++each) {
      const bool is_pipe =
          ::lseek(each, 0, SEEK_CUR) < 0 && errno == ESPIPE && ::fcntl(each, F_GETPIPE_SZ) > 0;
      if (!is_pipe && ::close(each) == 0) closed.push_back(each);
    }
    while (!closed.empty() && ::open("/dev/null", O_RDONLY) <= closed.back()) continue;
    EXPECT_GOOD(hold(1));
    for (const int each : closed) EXPECT_EQ(::fcntl(each, F_GETFD), 0);  // still /dev/null
  });
  pass();
  EXPECT_EQ(value_of(0), 1);
  daemon.kill();
  for (const std::size_t each : {0U, 1U}) wait_for_zero(each);
}

TEST_F(Leases, WrongOnesAreRefused) {
  const vmm_block_export other{};
  EXPECT_FAILS(vmm_block_lend(&other, name.c_str(), head_bytes), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_block_hold(&other, name.c_str(), head_bytes), VMM_ERROR_INVALID_ARGUMENT);
  for (const char* const each : {"", "/", "vmm", "/../shm/vmm", "/vmm_is_not_there"})
    EXPECT_FAILS(vmm_block_lend(&exported, each, head_bytes), VMM_ERROR_UNAVAILABLE);
  for (const std::uint64_t each : {size_bytes, size_bytes - 7, head_bytes + 1, ~std::uint64_t{0}})
    EXPECT_FAILS(vmm_block_lend(&exported, name.c_str(), each), VMM_ERROR_UNAVAILABLE);
  count_down(0);
  EXPECT_FAILS(lend(0), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_block_lend(&exported, nullptr, 0), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_block_hold(nullptr, name.c_str(), 0), VMM_ERROR_INVALID_ARGUMENT);
  vmm_block_export gone = exported;
  gone.bytes[16] ^= 1;  // of a process that there is not
  EXPECT_FAILS(vmm_block_hold(&gone, name.c_str(), head_bytes), VMM_ERROR_UNAVAILABLE);
}

}  // namespace
