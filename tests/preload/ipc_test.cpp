// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: no other process reaches what legacy IPC shares, or makes an opener map what it was not
// given, keep a descriptor, or wait. Method: processes that attack, one with the library and one at
// the other end of its socket; each lie beside the same reply without it.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "../../modules/share/ipc_wire.hpp"
#include "../support/test.h"
#include "child.h"

namespace {

std::string opened_as(const std::string& lie) {
  const child::outcome seen = child::preloaded("vmm", {"ipc_impostor", lie}, {"VMM_REPORT=off"});
  EXPECT_EQ(seen.code, 0) << seen.err;
  return seen.out;
}

// A socket as a process leaves it that was killed long ago, and the descriptor of one that is used.
struct old_socket {
  vmm::ipc::place_name name;
  int listening = -1;

  explicit old_socket(std::uint64_t token) {
    using namespace vmm::ipc;
    name = socket_in(folder_at(0, geteuid()), token);
    sockaddr_un place{};
    place.sun_family = AF_UNIX;
    std::memcpy(place.sun_path, name.text.data(), name.size);
    (void)unlink(name.text.data());
    listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const timespec long_ago[2] = {{1'000'000'000, 0}, {1'000'000'000, 0}};
    EXPECT_EQ(bind(listening, reinterpret_cast<const sockaddr*>(&place), sizeof place), 0);
    EXPECT_EQ(listen(listening, 4), 0);
    EXPECT_EQ(utimensat(AT_FDCWD, name.text.data(), long_ago, 0), 0);
  }
  old_socket(const old_socket&) = delete;
  old_socket& operator=(const old_socket&) = delete;
  ~old_socket() {
    close();
    (void)unlink(name.text.data());
  }
  void close() {
    if (listening >= 0) ::close(listening);
    listening = -1;
  }
  [[nodiscard]] bool is_there() const { return access(name.text.data(), F_OK) == 0; }
};

constexpr const char* refused = "open 1, more descriptors 0, requested 1\n";

}  // namespace

TEST(LegacyIpc, AnAnswerThatIsRightIsTaken) {
  EXPECT_EQ(opened_as("nothing"), "open 0, more descriptors 0, requested 1\n");
}

TEST(LegacyIpc, AServerOfAnotherUserIsSentNothingAndGivesNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  EXPECT_EQ(opened_as("user"), "open 1, more descriptors 0, requested 0\n");
}

TEST(LegacyIpc, SumsOfAPeersNumbersDoNotWrap) {
  for (const char* lie : {"offset", "sum"}) EXPECT_EQ(opened_as(lie), refused);
}

TEST(LegacyIpc, ABlockOfAnotherSizeIsRefused) {
  for (const char* lie : {"size", "count"}) EXPECT_EQ(opened_as(lie), refused);
}

TEST(LegacyIpc, AnotherNumberOfDescriptorsIsRefusedAndNoneStaysOpen) {
  for (const char* lie : {"two", "many", "none"}) EXPECT_EQ(opened_as(lie), refused);
}

TEST(LegacyIpc, SilentConnectionsStopNoOther) {
  child::expect_output("vmm", {"ipc_silent"}, "open 0, close 0\nchild 0\n");
}

TEST(LegacyIpc, AProcessOfAnotherUserIsNotAnswered) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  child::expect_output("vmm", {"ipc_stranger"}, "sees the socket 0\ngets a reply 0\nchild 0\n");
}

TEST(LegacyIpc, TheFoldersAreThisUsersAlone) {
  using vmm::ipc::folder_at;
  EXPECT_EQ(folder_at(0, 1000).view(), "/tmp/vmm-1000");
  EXPECT_EQ(folder_at(1, 4294967295).view(), "/run/user/4294967295/vmm");
  const child::outcome seen = child::preloaded("vmm", {"ipc_within"});
  ASSERT_EQ(seen.code, 0) << seen.err;
  struct stat about{};
  if (stat(folder_at(0, geteuid()).text.data(), &about) != 0)
    GTEST_SKIP() << "/tmp takes no folder here";
  EXPECT_EQ(about.st_mode & 07777U, 0700U);
  EXPECT_EQ(about.st_uid, geteuid());
}

TEST(LegacyIpc, NamesOfProcessesThatWereKilledAreRemovedAndOthersStay) {
  if (child::preloaded("vmm", {"ipc_within"}).code != 0) FAIL() << "nothing is shared";
  if (access(vmm::ipc::folder_at(0, geteuid()).text.data(), W_OK) != 0)
    GTEST_SKIP() << "/tmp takes no folder here";
  const std::uint64_t token = static_cast<std::uint64_t>(getpid()) << 8U;
  old_socket killed(token);
  const old_socket used(token + 1);
  killed.close();
  EXPECT_EQ(child::preloaded("vmm", {"ipc_within"}).code, 0);
  EXPECT_FALSE(killed.is_there());
  EXPECT_TRUE(used.is_there());
}
