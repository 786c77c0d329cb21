// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the C interface lends, updates, takes back and ends blocks as its header says, refuses
// wrong handles, and leaves a parent alone in a forked child.
// Method: two ends of a connection in one process, each with a driver on the host's memory; one is
// played by a thread.
#include <sys/socket.h>

#include "bench.hpp"
#include "vmm.h"

namespace {

using c_test::manager_defaults, c_test::sized;

class Share : public testing::Test {
 protected:
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
    auto info = sized<vmm_shared_info>();
    EXPECT_GOOD(vmm_share_query_export(block, &info));
    return info;
  }
  static vmm_shared_info info_of(vmm_import* block) {
    auto info = sized<vmm_shared_info>();
    EXPECT_GOOD(vmm_share_query_import(block, &info));
    return info;
  }

  vmm_share_options options{};
  vmm_driver* lender = nullptr;
  vmm_driver* borrower = nullptr;
  vmm_channel* ours = nullptr;
  vmm_channel* theirs = nullptr;
};

TEST_F(Share, ABlockOfItsOwn) {
  auto request = sized<vmm_export_request>();
  request.size_bytes = 6 * MiB;
  request.handle_bytes = 2 * MiB;
  std::strcpy(request.label, "weights");
  vmm_export* block = nullptr;
  ASSERT_GOOD(vmm_share_export(lender, &request, &block));
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
    auto event = sized<vmm_share_event>();
    EXPECT_GOOD(vmm_share_next(theirs, 20'000, &event));
    EXPECT_EQ(event.kind, static_cast<std::uint32_t>(VMM_SHARE_WITHDRAWN));
    EXPECT_GOOD(vmm_share_give_back(theirs, borrowed));
    EXPECT_GOOD(vmm_share_end_import(borrowed));
  });
  EXPECT_GOOD(vmm_share_take_back(ours, id));
  giving.join();
  EXPECT_EQ(info_of(block).lent, 0U);
  EXPECT_GOOD(vmm_share_end_export(block));
}

// A manager's block of 2 MiB that is exported: pinned, or followed by its borrower.
class ManagersBlock : public Share {
 protected:
  void begin(bool followed) {
    vmm_manager_options memory = manager_defaults();
    memory.shareable = VMM_SHARE_POSIX_FD;
    ASSERT_GOOD(vmm_manager_create(lender, &memory, &manager));
    auto wanted = sized<vmm_block_request>();
    wanted.size_bytes = 2 * MiB;
    ASSERT_GOOD(vmm_manager_allocate(manager, &wanted, &at));
    auto request = sized<vmm_export_request>();
    request.followed = followed ? 1 : 0;
    ASSERT_GOOD(vmm_share_export_block(manager, at, &request, &block));
  }
  void grow(std::uint64_t size_bytes) {
    auto larger = sized<vmm_resize_request>();
    larger.at = at;
    larger.size_bytes = size_bytes;
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
  auto event = sized<vmm_share_event>();
  EXPECT_GOOD(vmm_share_next(theirs, 20'000, &event));
  EXPECT_EQ(event.kind, static_cast<std::uint32_t>(VMM_SHARE_UPDATED));
  EXPECT_GOOD(vmm_share_apply(theirs, borrowed));
  EXPECT_EQ(info_of(borrowed).size_bytes, 8 * MiB);
  static_cast<char*>(at)[7 * MiB] = 'f';
  EXPECT_EQ(static_cast<char*>(info_of(borrowed).base)[7 * MiB], 'f');
  EXPECT_GOOD(vmm_share_next(ours, 20'000, &event));
  EXPECT_EQ(event.kind, static_cast<std::uint32_t>(VMM_SHARE_ACCEPTED));
  EXPECT_EQ(event.epoch, 1U);

  EXPECT_GOOD(vmm_share_give_back(theirs, borrowed));
  EXPECT_GOOD(vmm_share_end_import(borrowed));
  EXPECT_GOOD(vmm_share_next(ours, 20'000, &event));
  EXPECT_EQ(event.kind, static_cast<std::uint32_t>(VMM_SHARE_RELEASED));
  end();
}

// Two changes are received before one is applied: the last one.
TEST_F(ManagersBlock, TheLastChangeIsTaken) {
  ASSERT_NO_FATAL_FAILURE(begin(true));
  lend(block, &id, &borrowed);
  auto event = sized<vmm_share_event>();
  for (std::uint64_t round = 1; round <= 2; ++round) {
    grow((2 + 2 * round) * MiB);
    EXPECT_GOOD(vmm_share_update(ours, id, nullptr));
    EXPECT_GOOD(vmm_share_next(theirs, 20'000, &event));
    EXPECT_EQ(event.epoch, round);
  }
  EXPECT_GOOD(vmm_share_apply(theirs, borrowed));
  EXPECT_EQ(info_of(borrowed).size_bytes, 6 * MiB);
  EXPECT_GOOD(vmm_share_next(ours, 20'000, &event));
  EXPECT_EQ(event.epoch, 2U);
  EXPECT_FAILS(vmm_share_apply(theirs, borrowed), VMM_ERROR_INVALID_ARGUMENT);
  EXPECT_GOOD(vmm_share_give_back(theirs, borrowed));
  EXPECT_GOOD(vmm_share_end_import(borrowed));
  EXPECT_GOOD(vmm_share_next(ours, 20'000, &event));
  end();
}

TEST_F(ManagersBlock, StaysWherePinned) {
  ASSERT_NO_FATAL_FAILURE(begin(false));
  EXPECT_FAILS(vmm_manager_free(manager, at), VMM_ERROR_IN_USE);
  EXPECT_FAILS(vmm_share_moved(block, at), VMM_ERROR_INVALID_ARGUMENT);
  end();
}

TEST_F(Share, AnOfferThatWasToldOfIsBorrowed) {
  auto request = sized<vmm_export_request>();
  request.size_bytes = 2 * MiB;
  vmm_export* block = nullptr;
  ASSERT_GOOD(vmm_share_export(lender, &request, &block));
  std::uint64_t id = 0;
  vmm_import* borrowed = nullptr;
  std::thread importing([&] {
    auto event = sized<vmm_share_event>();
    EXPECT_GOOD(vmm_share_next(theirs, 20'000, &event));
    EXPECT_EQ(event.kind, static_cast<std::uint32_t>(VMM_SHARE_OFFERED));
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
  auto request = sized<vmm_export_request>();
  request.size_bytes = 2 * MiB;
  vmm_export* block = nullptr;
  ASSERT_GOOD(vmm_share_export(lender, &request, &block));
  const pid_t child = ::fork();
  if (child == 0) {
    auto event = sized<vmm_share_event>();
    auto info = sized<vmm_shared_info>();
    const auto is_refused = [](vmm_status answered) { return answered == VMM_ERROR_NOT_PERMITTED; };
    std::uint64_t id = 0;
    if (!is_refused(vmm_share_next(ours, 0, &event))) ::_exit(1);
    if (!is_refused(vmm_share_lend(ours, block, &id))) ::_exit(2);
    if (!is_refused(vmm_share_query_export(block, &info))) ::_exit(3);
    if (vmm_share_end_export(block) != VMM_SUCCESS) ::_exit(4);
    ::_exit(vmm_share_close(ours) == VMM_SUCCESS ? 0 : 5);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << state;
  static_cast<char*>(info_of(block).base)[0] = 'p';
  EXPECT_GOOD(vmm_share_end_export(block));
}

}  // namespace
