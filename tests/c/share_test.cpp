// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the C interface lends, updates, takes back and ends blocks as its header says, refuses
// wrong handles, and leaves a parent alone in a forked child. An allocator's block has the same
// bytes in another process, and neither process keeps anything of it, however the other one ends.
// Method: two ends of a connection in one process, each with a driver on the host's memory; one is
// played by a thread. Allocators: two processes.
#include <pthread.h>
#include <sys/socket.h>

#include "../support/child.hpp"
#include "bench.hpp"
#include "vmm.h"

namespace {

using c_test::manager_defaults, c_test::own_allocator, c_test::says, c_test::sized, c_test::queried;

struct Share : testing::Test {
  void SetUp() override {
    ASSERT_GOOD(vmm_share_options_init(&options, sizeof(options)));
    EXPECT_EQ(options.timeout_ms, 1000U);
    ASSERT_GOOD(vmm_share_make_secret(options.secret));
    options.timeout_ms = 20'000;
    ASSERT_GOOD(vmm_driver_open("host", VMM_ANY_DEVICE, &lender));
    ASSERT_GOOD(vmm_driver_open("host", VMM_ANY_DEVICE, &borrower));
    int ends[2] = {-1, -1};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    std::thread accepting([&] { EXPECT_GOOD(vmm_share_adopt(ends[1], 1, &options, &theirs)); });
    EXPECT_GOOD(vmm_share_adopt(ends[0], 0, &options, &ours));
    accepting.join();
  }
  void TearDown() override {
    EXPECT_GOOD(vmm_share_close(ours));
    EXPECT_GOOD(vmm_share_close(theirs));
    EXPECT_GOOD(vmm_driver_close(lender));
    EXPECT_GOOD(vmm_driver_close(borrower));
  }
  // Lends to the other end, which borrows.
  void lend(vmm_export* block, std::uint64_t* id, vmm_import** borrowed) {
    std::thread borrowing(
        [&] { EXPECT_GOOD(vmm_share_borrow(theirs, borrower, nullptr, borrowed)); });
    EXPECT_GOOD(vmm_share_lend(ours, block, id));
    borrowing.join();
  }
  static vmm_shared_info info_of(vmm_export* block) {
    return queried(vmm_share_query_export, block);
  }
  static vmm_shared_info info_of(vmm_import* block) {
    return queried(vmm_share_query_import, block);
  }
  // The next event of a channel, whose kind is given.
  static vmm_share_event next(vmm_channel* of, std::uint32_t kind) {
    auto event = sized<vmm_share_event>();
    EXPECT_GOOD(vmm_share_next(of, 20'000, &event));
    EXPECT_EQ(event.kind, kind);
    return event;
  }
  vmm_export* make_block(const vmm_export_request& request) const {
    vmm_export* block = nullptr;
    EXPECT_GOOD(vmm_share_export(lender, &request, &block));
    return block;
  }

  vmm_share_options options{};
  vmm_driver* lender = nullptr;
  vmm_driver* borrower = nullptr;
  vmm_channel* ours = nullptr;
  vmm_channel* theirs = nullptr;
};

TEST_F(Share, ABlockOfItsOwn) {
  auto request = sized<vmm_export_request>(6 * MiB);
  request.handle_bytes = 2 * MiB;
  std::strcpy(request.label, "weights");
  vmm_export* const block = make_block(request);
  EXPECT_FAILS(vmm_driver_close(lender), VMM_ERROR_IN_USE);
  std::uint64_t id = 0;
  vmm_import* borrowed = nullptr;
  lend(block, &id, &borrowed);
  EXPECT_EQ(id, 1U);
  EXPECT_EQ(info_of(block).lent, 1U);
  EXPECT_EQ(info_of(block).part_count, 3U);
  const vmm_shared_info there = info_of(borrowed);
  EXPECT_EQ(there.size_bytes, 6 * MiB);
  EXPECT_STREQ(there.label, "weights");
  static_cast<char*>(info_of(block).base)[5 * MiB] = 's';
  EXPECT_EQ(static_cast<char*>(there.base)[5 * MiB], 's');
  EXPECT_FAILS(vmm_share_end_export(block), VMM_ERROR_IN_USE);
  std::thread giving([&] {
    (void)next(theirs, VMM_SHARE_WITHDRAWN);
    EXPECT_GOOD(vmm_share_give_back(theirs, borrowed));
    EXPECT_GOOD(vmm_share_end_import(borrowed));
  });
  EXPECT_GOOD(vmm_share_take_back(ours, id));
  giving.join();
  EXPECT_EQ(info_of(block).lent, 0U);
  EXPECT_GOOD(vmm_share_end_export(block));
}

// Of calls that end early, on the stack of a thread, which is read once the thread has ended: later
// frames of a longer call would overwrite it.
TEST_F(Share, NoCopyOfTheSecretStaysOnAStack) {
  vmm_share_options reserved = options;
  reserved.reserved = 1;
  const auto call = [](void* of) -> void* {
    vmm_channel* made = nullptr;
    EXPECT_NE(vmm_share_adopt(-1, 0, static_cast<const vmm_share_options*>(of), &made),
              VMM_SUCCESS);
    return nullptr;
  };
  for (vmm_share_options* each : {&options, &reserved}) {
    std::vector<unsigned char> stack(MiB);
    ::pthread_t thread{};
    ::pthread_attr_t rules;
    ASSERT_EQ(::pthread_attr_init(&rules), 0);
    ASSERT_EQ(::pthread_attr_setstack(&rules, stack.data(), stack.size()), 0);
    ASSERT_EQ(::pthread_create(&thread, &rules, call, each), 0);
    (void)::pthread_attr_destroy(&rules);
    ASSERT_EQ(::pthread_join(thread, nullptr), 0);
    const auto found = std::search(stack.begin(), stack.end(), options.secret,
                                   options.secret + sizeof options.secret / 2);
    EXPECT_EQ(found, stack.end()) << stack.end() - found << " bytes below the top";
  }
}

// A manager's block of 2 MiB that is exported: pinned, or followed by its borrower.
struct ManagersBlock : Share {
  void begin(bool followed) {
    vmm_manager_options memory = manager_defaults();
    memory.shareable = VMM_SHARE_POSIX_FD;
    ASSERT_GOOD(vmm_manager_create(lender, &memory, &manager));
    auto wanted = sized<vmm_block_request>(2 * MiB);
    ASSERT_GOOD(vmm_manager_allocate(manager, &wanted, &at));
    auto request = sized<vmm_export_request>();
    request.followed = followed ? 1 : 0;
    ASSERT_GOOD(vmm_share_export_block(manager, at, &request, &block));
  }
  void grow(std::uint64_t size_bytes) {
    auto larger = sized<vmm_resize_request>(size_bytes);
    larger.at = at;
    EXPECT_GOOD(vmm_manager_resize(manager, &larger, &at));
    EXPECT_GOOD(vmm_share_moved(block, at));
  }
  void end() {
    EXPECT_GOOD(vmm_share_end_export(block));
    EXPECT_GOOD(vmm_manager_free(manager, at));
    EXPECT_GOOD(vmm_manager_destroy(manager));
  }

  vmm_manager* manager = nullptr;
  void* at = nullptr;
  vmm_export* block = nullptr;
  std::uint64_t id = 0;
  vmm_import* borrowed = nullptr;
};

TEST_F(ManagersBlock, IsFollowed) {
  ASSERT_NO_FATAL_FAILURE(begin(true));
  EXPECT_FAILS(vmm_manager_destroy(manager), VMM_ERROR_IN_USE);
  lend(block, &id, &borrowed);
  EXPECT_FAILS(vmm_share_apply(theirs, borrowed), VMM_ERROR_INVALID_ARGUMENT);

  grow(8 * MiB);
  std::uint64_t epoch = 0;
  EXPECT_GOOD(vmm_share_update(ours, id, &epoch));
  EXPECT_EQ(epoch, 1U);
  (void)next(theirs, VMM_SHARE_UPDATED);
  EXPECT_GOOD(vmm_share_apply(theirs, borrowed));
  EXPECT_EQ(info_of(borrowed).size_bytes, 8 * MiB);
  static_cast<char*>(at)[7 * MiB] = 'f';
  EXPECT_EQ(static_cast<char*>(info_of(borrowed).base)[7 * MiB], 'f');
  EXPECT_EQ(next(ours, VMM_SHARE_ACCEPTED).epoch, 1U);

  EXPECT_GOOD(vmm_share_give_back(theirs, borrowed));
  EXPECT_GOOD(vmm_share_end_import(borrowed));
  (void)next(ours, VMM_SHARE_RELEASED);
  end();
}

// Two changes are received before one is applied: the last one.
TEST_F(ManagersBlock, TheLastChangeIsTaken) {
  ASSERT_NO_FATAL_FAILURE(begin(true));
  lend(block, &id, &borrowed);
  for (std::uint64_t round = 1; round <= 2; ++round) {
    grow((2 + 2 * round) * MiB);
    EXPECT_GOOD(vmm_share_update(ours, id, nullptr));
    EXPECT_EQ(next(theirs, VMM_SHARE_UPDATED).epoch, round);
  }
  EXPECT_GOOD(vmm_share_apply(theirs, borrowed));
  EXPECT_EQ(info_of(borrowed).size_bytes, 6 * MiB);
  EXPECT_EQ(next(ours, VMM_SHARE_ACCEPTED).epoch, 2U);
  EXPECT_FAILS(vmm_share_apply(theirs, borrowed), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_GOOD(vmm_share_give_back(theirs, borrowed));
  EXPECT_GOOD(vmm_share_end_import(borrowed));
  (void)next(ours, VMM_SHARE_RELEASED);
  end();
}

TEST_F(ManagersBlock, StaysWherePinned) {
  ASSERT_NO_FATAL_FAILURE(begin(false));
  EXPECT_FAILS(vmm_manager_free(manager, at), VMM_ERROR_IN_USE);
  EXPECT_FAILS(vmm_share_moved(block, at), VMM_ERROR_INVALID_ARGUMENT);
  end();
}

TEST_F(Share, AnOfferThatWasToldOfIsBorrowed) {
  vmm_export* const block = make_block(sized<vmm_export_request>(2 * MiB));
  std::uint64_t id = 0;
  vmm_import* borrowed = nullptr;
  std::thread importing([&] {
    (void)next(theirs, VMM_SHARE_OFFERED);
    auto reading = sized<vmm_import_request>();
    for (std::uint32_t vmm_import_request::* const each :
         {&vmm_import_request::read_only, &vmm_import_request::any_device}) {
      vmm_import_request wrong = reading;
      wrong.*each = 2;
      EXPECT_FAILS(vmm_share_borrow(theirs, borrower, &wrong, &borrowed),
                   VMM_ERROR_INVALID_ARGUMENT);
      EXPECT_EQ(borrowed, nullptr);
    }
    reading.read_only = 1;
    EXPECT_GOOD(vmm_share_borrow(theirs, borrower, &reading, &borrowed));
  });
  EXPECT_GOOD(vmm_share_lend(ours, block, &id));
  importing.join();
  // The end of the connection ends the loan; the importer keeps what it has.
  EXPECT_GOOD(vmm_share_close(theirs));
  theirs = nullptr;
  auto event = sized<vmm_share_event>();
  EXPECT_FAILS(vmm_share_next(ours, 20'000, &event), VMM_ERROR_UNAVAILABLE);
  EXPECT_GOOD(vmm_share_end_export(block));
  EXPECT_EQ(static_cast<char*>(info_of(borrowed).base)[0], 0);
  EXPECT_GOOD(vmm_share_end_import(borrowed));
}

TEST_F(Share, ATimeoutIsNamed) {
  auto event = sized<vmm_share_event>();
  EXPECT_FAILS(vmm_share_next(ours, 10, &event), VMM_ERROR_UNAVAILABLE);
  auto info = sized<vmm_error_info>();
  EXPECT_GOOD(vmm_last_error(&info));
  EXPECT_STREQ(info.native_name, "ETIMEDOUT");
  std::int32_t descriptor = -1;
  EXPECT_GOOD(vmm_share_descriptor(ours, &descriptor));
  EXPECT_GE(descriptor, 0) << "it stays open";
}

TEST_F(Share, ACloseEndsWaitsOfOtherThreads) {
  std::vector<std::thread> waiting;
  std::atomic<int> inside = 0;
  for (int i = 0; i < 3; ++i) {  // one waits for the peer, and others for that one
    waiting.emplace_back([&] {
      auto event = sized<vmm_share_event>();
      inside.fetch_add(1);
      const vmm_status ended = vmm_share_next(ours, 20'000, &event);
      EXPECT_TRUE(ended == VMM_ERROR_UNAVAILABLE || ended == VMM_ERROR_INVALID_HANDLE) << ended;
    });
  }
  while (inside.load() < 3) std::this_thread::yield();
  EXPECT_GOOD(vmm_share_close(ours));
  for (std::thread& each : waiting) each.join();
  auto event = sized<vmm_share_event>();
  EXPECT_FAILS(vmm_share_next(ours, 0, &event), VMM_ERROR_INVALID_HANDLE);
  ours = nullptr;
  EXPECT_FAILS(vmm_share_next(theirs, 20'000, &event), VMM_ERROR_UNAVAILABLE);
}

TEST_F(Share, WrongUseIsRefused) {
  auto event = sized<vmm_share_event>();
  auto info = sized<vmm_shared_info>();
  std::uint64_t id = 0;
  const auto none = VMM_ERROR_INVALID_HANDLE;
  auto* const no_channel = reinterpret_cast<vmm_channel*>(lender);
  auto* const no_export = reinterpret_cast<vmm_export*>(ours);
  auto* const no_import = reinterpret_cast<vmm_import*>(ours);
  vmm_channel* made = nullptr;
  EXPECT_FAILS(vmm_share_next(no_channel, 0, &event), none);
  EXPECT_FAILS(vmm_share_next(nullptr, 0, &event), none);
  EXPECT_FAILS(vmm_share_take_back(no_channel, 1), none);
  EXPECT_FAILS(vmm_share_update(no_channel, 1, nullptr), none);
  EXPECT_FAILS(vmm_share_lend(ours, no_export, &id), none);
  EXPECT_FAILS(vmm_share_moved(no_export, nullptr), none);
  EXPECT_FAILS(vmm_share_query_export(no_export, &info), none);
  EXPECT_FAILS(vmm_share_end_export(no_export), none);
  EXPECT_FAILS(vmm_share_apply(ours, no_import), none);
  EXPECT_FAILS(vmm_share_query_import(no_import, &info), none);
  EXPECT_FAILS(vmm_share_give_back(ours, no_import), none);
  EXPECT_FAILS(vmm_share_end_import(no_import), none);
  EXPECT_FAILS(vmm_share_close(no_channel), none);
  EXPECT_FAILS(vmm_share_stop(reinterpret_cast<vmm_listener*>(ours)), none);
  EXPECT_FAILS(vmm_share_accept(reinterpret_cast<vmm_listener*>(ours), &options, &made), none);
  EXPECT_FAILS(vmm_share_next(ours, 0, nullptr), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_share_make_secret(nullptr), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_share_connect("relative/", &options, &made), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_share_adopt(-1, 0, &options, &made), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_share_connect("/nowhere/a", &options, &made), VMM_ERROR_UNAVAILABLE);
  options.timeout_ms = 0;
  EXPECT_FAILS(vmm_share_connect("/nowhere/a", &options, &made), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_FAILS(vmm_share_take_back(ours, 7), VMM_ERROR_INVALID_ARGUMENT);
  event.struct_size = 1;
  EXPECT_FAILS(vmm_share_next(ours, 0, &event), VMM_ERROR_INVALID_ARGUMENT);
  auto request = sized<vmm_export_request>();
  vmm_export* block = nullptr;
  EXPECT_FAILS(vmm_share_export(lender, &request, &block), VMM_ERROR_INVALID_ARGUMENT);
  request.size_bytes = MiB;
  request.kind = VMM_SHARE_WIN32;
  EXPECT_FAILS(vmm_share_export(lender, &request, &block), VMM_ERROR_NOT_SUPPORTED);
  request.kind = 3;
  EXPECT_FAILS(vmm_share_export(lender, &request, &block), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(block, nullptr);
}

TEST_F(Share, AForkedChildIsRefused) {
  vmm_export* const block = make_block(sized<vmm_export_request>(2 * MiB));
  const int code = code_of_child([&] {
    auto event = sized<vmm_share_event>();
    auto info = sized<vmm_shared_info>();
    const auto is_refused = [](vmm_status answered) { return answered == VMM_ERROR_NOT_PERMITTED; };
    std::uint64_t id = 0;
    if (!is_refused(vmm_share_next(ours, 0, &event))) return 1;
    if (!is_refused(vmm_share_lend(ours, block, &id))) return 2;
    if (!is_refused(vmm_share_query_export(block, &info))) return 3;
    if (vmm_share_end_export(block) != VMM_SUCCESS) return 4;
    return vmm_share_close(ours) == VMM_SUCCESS ? 0 : 5;
  });
  EXPECT_EQ(code, 0);
  static_cast<char*>(info_of(block).base)[0] = 'p';
  EXPECT_GOOD(vmm_share_end_export(block));
}

// ---- blocks of allocators ----------------------------------------------------------------------

std::size_t count_of(const char* folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}
std::size_t reserved_count() {  // mappings of the process
  std::ifstream maps("/proc/self/maps");
  return static_cast<std::size_t>(
      std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n'));
}

// Two processes, with a pipe each way. Both have an allocator on the host's memory. A child of a
// process with threads starts one, which ThreadSanitizer allows on request.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

struct TwoProcesses : testing::Test {
  template <class Work>
  void start(Work&& work) {
    ASSERT_EQ(::pipe(there_), 0);
    ASSERT_EQ(::pipe(back_), 0);
    child = ::fork();
    if (child != 0) return make();
    std::swap(there_, back_);
    make();
    work();
    ::_exit(HasFailure() ? 1 : 0);
  }
  void TearDown() override {
    int state = 0;
    EXPECT_EQ(::waitpid(child, &state, 0), child);
    EXPECT_EQ(state, is_killed ? SIGKILL : 0);
    for (const int each : {there_[0], there_[1], back_[0], back_[1]}) ::close(each);
    EXPECT_GOOD(vmm_allocator_destroy(memory));
  }
  void end_child() {
    is_killed = true;
    EXPECT_EQ(::kill(child, SIGKILL), 0);
    siginfo_t ended;
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  }
  void send(const vmm_block_export& what) const {
    EXPECT_EQ(::write(there_[1], &what, sizeof what), static_cast<ssize_t>(sizeof what));
  }
  [[nodiscard]] vmm_block_export receive() const {
    vmm_block_export what{};
    EXPECT_EQ(::read(back_[0], &what, sizeof what), static_cast<ssize_t>(sizeof what));
    return what;
  }
  [[nodiscard]] std::uint64_t* take(std::uint64_t size_bytes) const {
    void* at = nullptr;
    EXPECT_GOOD(vmm_allocator_allocate(memory, size_bytes, 0, nullptr, &at));
    return static_cast<std::uint64_t*>(at);
  }
  [[nodiscard]] vmm_block_export exported(const void* at) const {
    vmm_block_export made{};
    EXPECT_GOOD(vmm_allocator_export(memory, at, &made));
    return made;
  }
  [[nodiscard]] std::uint64_t* imported(const vmm_block_export& from) const {
    void* at = nullptr;
    EXPECT_GOOD(vmm_allocator_import(memory, &from, 0, &at));
    return static_cast<std::uint64_t*>(at);
  }

  pid_t child = 0;
  bool is_killed = false;
  vmm_allocator* memory = nullptr;

 private:
  void make() { memory = c_test::make_allocator("host"); }
  int there_[2] = {-1, -1};
  int back_[2] = {-1, -1};
};

bool is_same(const vmm_block_export& a, const vmm_block_export& b) {
  return std::memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0;
}

TEST_F(TwoProcesses, ABlockHasTheSameBytesInBoth) {
  // In one physical handle, in a part of several, and in whole ones.
  constexpr std::uint64_t sizes[] = {1000, 1 * MiB, 3 * MiB + 512, 150 * MiB, 256 * MiB};
  start([&] {
    std::size_t files = 0;
    std::size_t mappings = 0;
    for (int turn = 0; turn < 3; ++turn) {
      for (const std::uint64_t size_bytes : sizes) {
        const vmm_block_export from = receive();
        std::uint64_t* const at = imported(from);
        const std::size_t last = size_bytes / 8 - 1;
        EXPECT_EQ(at[0], size_bytes);
        EXPECT_EQ(at[last], ~size_bytes);
        at[last / 2] = size_bytes + 7;
        EXPECT_GOOD(vmm_allocator_end_import(memory, at));
        EXPECT_FAILS(vmm_allocator_end_import(memory, at), VMM_ERROR_UNKNOWN_ADDRESS);
        send(from);
      }
      if (turn == 0) files = count_of("/proc/self/fd"), mappings = reserved_count();
    }
    EXPECT_EQ(count_of("/proc/self/fd"), files);
    EXPECT_EQ(reserved_count(), mappings);
  });
  std::size_t files = 0;
  for (int turn = 0; turn < 3; ++turn) {
    for (const std::uint64_t size_bytes : sizes) {
      std::uint64_t* const at = take(size_bytes);
      const std::size_t last = size_bytes / 8 - 1;
      at[0] = size_bytes;
      at[last] = ~size_bytes;
      const vmm_block_export made = exported(at);
      EXPECT_TRUE(is_same(made, exported(at)));
      send(made);
      EXPECT_TRUE(is_same(receive(), made));
      EXPECT_EQ(at[last / 2], size_bytes + 7);
      EXPECT_GOOD(vmm_allocator_free(memory, at));
      std::uint64_t* const again = take(size_bytes);
      EXPECT_FALSE(is_same(exported(again), made));
      EXPECT_GOOD(vmm_allocator_free(memory, again));
      EXPECT_GOOD(vmm_allocator_trim(memory, 0, 0, nullptr));
    }
    if (turn == 0) files = count_of("/proc/self/fd");
  }
  EXPECT_EQ(count_of("/proc/self/fd"), files);
}

TEST_F(TwoProcesses, ADeadImporterLeavesNothing) {
  start([&] {
    (void)imported(receive());
    send({});
    ::pause();
  });
  std::uint64_t* const kept = take(MiB);
  (void)exported(kept);  // starts the thread
  const std::size_t files = count_of("/proc/self/fd");
  std::uint64_t* const at = take(100 * MiB);
  send(exported(at));
  (void)receive();
  end_child();
  EXPECT_GOOD(vmm_allocator_free(memory, at));
  EXPECT_GOOD(vmm_allocator_trim(memory, 0, 0, nullptr));
  EXPECT_EQ(count_of("/proc/self/fd"), files);
  EXPECT_GOOD(vmm_allocator_end_import(memory, imported(exported(kept))));  // goes on
}

TEST_F(TwoProcesses, ADeadExporterLeavesWhatIsMapped) {
  start([&] {
    std::uint64_t* const at = take(70 * MiB);
    at[5] = 11;
    send(exported(at));
    ::pause();
  });
  const vmm_block_export from = receive();
  EXPECT_GOOD(vmm_allocator_end_import(memory, imported(from)));
  const std::size_t files = count_of("/proc/self/fd");
  std::uint64_t* const at = imported(from);
  end_child();
  EXPECT_EQ(at[5], 11U);
  void* second = nullptr;
  EXPECT_FAILS(vmm_allocator_import(memory, &from, 0, &second), VMM_ERROR_UNAVAILABLE);
  EXPECT_TRUE(says("that process has ended"));
  EXPECT_EQ(second, nullptr);
  EXPECT_GOOD(vmm_allocator_end_import(memory, at));
  EXPECT_EQ(count_of("/proc/self/fd"), files);
}

TEST_F(TwoProcesses, WhatIsNotExportedIsRefused) {
  start([&] {});
  std::uint64_t* const at = take(MiB);
  vmm_block_export made = exported(at);
  void* there = nullptr;
  EXPECT_FAILS(vmm_allocator_export(memory, at + 1, &made), VMM_ERROR_UNKNOWN_ADDRESS);
  EXPECT_FAILS(vmm_allocator_end_import(memory, at), VMM_ERROR_UNKNOWN_ADDRESS);
  const vmm_block_export other{};
  EXPECT_FAILS(vmm_allocator_import(memory, &other, 0, &there), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_GOOD(vmm_allocator_free(memory, at));
  EXPECT_FAILS(vmm_allocator_import(memory, &made, 0, &there), VMM_ERROR_UNAVAILABLE);
  EXPECT_EQ(there, nullptr);
  const own_allocator simulated("fake");
  void* block = nullptr;
  ASSERT_GOOD(vmm_allocator_allocate(simulated, MiB, 0, nullptr, &block));
  EXPECT_FAILS(vmm_allocator_export(simulated, block, &made), VMM_ERROR_NOT_SUPPORTED);
  EXPECT_GOOD(vmm_allocator_free(simulated, block));
}

// A free in another thread ends the export, whichever comes first.
TEST_F(TwoProcesses, AnExportBesideAFreeEndsWithTheBlock) {
  start([&] {});
  (void)exported(take(MiB));  // starts the thread
  for (int round = 0; round < 300; ++round) {
    std::uint64_t* const at = take(600 * 1024);
    std::atomic<bool> begins = false;
    vmm_block_export made{};
    vmm_status status = VMM_SUCCESS;
    std::thread exporting([&] {
      begins = true;
      status = vmm_allocator_export(memory, at, &made);
    });
    while (!begins) continue;
    EXPECT_GOOD(vmm_allocator_free(memory, at));
    exporting.join();
    void* there = nullptr;
    if (status == VMM_SUCCESS)
      EXPECT_FAILS(vmm_allocator_import(memory, &made, 0, &there), VMM_ERROR_UNAVAILABLE);
  }
}

// An allocator ends only its own imports, so another one may be destroyed, or capture, beside it.
TEST_F(TwoProcesses, AnAllocatorEndsItsOwnImportsOnly) {
  start([&] {});
  const vmm_block_export made = exported(take(64 * MiB));
  const own_allocator other("host");
  void* at = nullptr;
  ASSERT_GOOD(vmm_allocator_import(other, &made, 0, &at));
  EXPECT_FAILS(vmm_allocator_end_import(memory, at), VMM_ERROR_UNKNOWN_ADDRESS);
  ASSERT_GOOD(vmm_allocator_begin_capture(other));
  ASSERT_GOOD(vmm_allocator_end_import(other, at));
  EXPECT_GOOD(vmm_allocator_end_import(memory, imported(made)));  // leaves the other's
  EXPECT_EQ(static_cast<std::uint64_t*>(at)[0], 0U);              // still mapped
  ASSERT_GOOD(vmm_allocator_end_capture(other));
}

// A child of the exporter: it keeps none of its parent's memory, and exports by a socket of its
// own.
TEST_F(TwoProcesses, AForkedChildExportsByItself) {
  start([&] {});
  const vmm_block_export made = exported(take(MiB));
  (void)vmm_allocator_end_import(memory, imported(made));
  const std::size_t files = count_of("/proc/self/fd");
  const int code = code_of_child([&] {
    EXPECT_LE(count_of("/proc/self/fd") + 3, files);  // a socket, its folder and a descriptor
    vmm_allocator* const parents = std::exchange(memory, nullptr);
    memory = c_test::make_allocator("host");
    std::uint64_t* const at = take(MiB);
    at[0] = 3;
    EXPECT_EQ(imported(exported(at))[0], 3U);
    (void)parents;
    return HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_GOOD(vmm_allocator_end_import(memory, imported(made)));
}

}  // namespace
