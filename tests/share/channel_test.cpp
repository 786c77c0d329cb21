// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: a connection opens for permitted peers, at safe places; a hostile peer's messages close it
// with a typed error and leave no descriptor; blocks are lent, updated, withdrawn and returned.
// Method: both ends in one process, or one end played by hand with raw messages; descriptors are
// counted around every case.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>

#include "both_sides.hpp"

import vmm.host;

namespace {

using share_test::channels, share_test::code, share_test::make_channels, share_test::options_of,
    vmm::errc, vmm::exported_block, vmm::share_channel, vmm::share_event, vmm::share_listener,
    vmm::share_role;

struct Channel : ::testing::Test {
  void SetUp() override {
    (void)vmm::sign_bytes({}, {});  // loads a library, whose descriptors are not ours
    before_ = share_test::descriptor_count();
  }
  void TearDown() override { EXPECT_EQ(share_test::descriptor_count(), before_); }

  vmm::host_driver lender = vmm::host_driver::open().value();
  vmm::host_driver user = vmm::host_driver::open().value();

 private:
  std::ptrdiff_t before_ = 0;
};

// ---- opening ----

TEST_F(Channel, OpensBetweenTwoThatHaveTheSecret) {
  channels both = make_channels();
  EXPECT_TRUE(both.client.is_open() && both.server.is_open());
  both.client.close();
  const auto seen = both.server.next();
  EXPECT_EQ(code(seen), errc::unavailable);
  EXPECT_EQ(seen.error().native, ECONNRESET);
  EXPECT_FALSE(both.server.is_open());
  EXPECT_EQ(code(both.server.next()), errc::unavailable) << "still";
}

TEST_F(Channel, AnOpenChannelHasNoSecretAnyMore) {
  const channels both = make_channels();
  const vmm::share_secret wanted = share_test::secret_of(1);
  for (const share_channel* each : {&both.client, &both.server}) {
    const auto* const begin = reinterpret_cast<const std::byte*>(each);
    const auto* const end = begin + sizeof *each;
    EXPECT_EQ(std::search(begin, end, wanted.bytes.begin(), wanted.bytes.end()), end);
  }
}

TEST_F(Channel, AnotherSecretIsRefused) {
  const auto ends = share_test::socket_pair();
  std::thread client([&] {
    const auto made = share_channel::adopt(ends[0], share_role::connecting, options_of(2));
    EXPECT_EQ(code(made), errc::unavailable) << "the other side closes";
  });
  const auto made = share_channel::adopt(ends[1], share_role::accepting, options_of(1));
  EXPECT_EQ(code(made), errc::not_permitted);
  client.join();
  for (const int each : ends) EXPECT_EQ(::close(each), 0) << "the caller's still";
}

TEST_F(Channel, AnotherUserIsRefusedBeforeAByteIsRead) {
  const auto ends = share_test::socket_pair();
  ASSERT_EQ(::write(ends[0], "x", 1), 1);
  vmm::share_options options = options_of(1);
  options.peer_uid = ::geteuid() + 1;
  EXPECT_EQ(code(share_channel::adopt(ends[1], share_role::accepting, options)),
            errc::not_permitted)
      << "foreign_error, had the message been looked at";
  for (const int each : ends) EXPECT_EQ(::close(each), 0);
}

TEST_F(Channel, WhoSaysNothingIsNotWaitedForLonger) {
  const auto ends = share_test::socket_pair();
  const auto made = share_channel::adopt(ends[1], share_role::accepting, options_of(1, 20));
  EXPECT_EQ(code(made), errc::unavailable);
  EXPECT_EQ(made.error().native, ETIMEDOUT);
  for (const int each : ends) EXPECT_EQ(::close(each), 0);
}

// And stay the caller's.
TEST_F(Channel, OtherDescriptorsAreRefused) {
  std::array<int, 2> stream{};
  std::array<int, 2> pipe{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, stream.data()), 0);
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const int lonely = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
  for (const int end : {stream[0], pipe[0], lonely, -1}) {
    const auto made = share_channel::adopt(end, share_role::accepting, options_of(1));
    EXPECT_EQ(code(made), errc::invalid_argument) << end;
  }
  for (const int each : {stream[0], stream[1], pipe[0], pipe[1], lonely})
    EXPECT_EQ(::close(each), 0);
}

// At the limit of open files the receiver of a block loses its descriptors, and learns why.
TEST_F(Channel, ALimitOfOpenFilesIsNamed) {
  channels both = make_channels();
  auto block = exported_block::make(lender, {.size_bytes = 4 * MiB, .handle_bytes = 2 * MiB});
  ASSERT_TRUE(block) << vmm::describe(block.error());
  ASSERT_TRUE(both.client.send(*block));
  ::rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const ::rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto came = both.server.next();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(came);
  EXPECT_EQ(came.error().native, EMFILE);
  EXPECT_STREQ(came.error().detail,
               "descriptors of a message were lost: the process is at its limit of 0 open files: "
               "close some, or raise it (ulimit -n)");
  EXPECT_EQ(code(both.client.next()), errc::unavailable);
  EXPECT_TRUE(block->release());
}

// ---- places ----

struct Place : Channel {
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "vmm_share_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    Channel::SetUp();
  }
  void TearDown() override {
    Channel::TearDown();
    std::filesystem::remove_all(folder_);
  }
  std::string path(const std::string& name = "socket") const { return folder_ + "/" + name; }
  // A thread of a peer that connects, and goes.
  [[nodiscard]] std::thread connecting() const {
    return std::thread([where = path()] {
      const auto made = share_channel::connect(where, options_of(1));
      EXPECT_TRUE(made) << vmm::describe(made.error());
    });
  }

  std::string folder_;
};

TEST_F(Place, AListenerIsFoundByItsPath) {
  auto listener = share_listener::open(path());
  ASSERT_TRUE(listener) << vmm::describe(listener.error());
  std::thread client([&] {
    auto made = share_channel::connect(path(), options_of(1));
    ASSERT_TRUE(made) << vmm::describe(made.error());
    EXPECT_EQ(code(made->next()), errc::unavailable);
  });
  auto made = listener->accept(options_of(1));
  EXPECT_TRUE(made) << vmm::describe(made.error());
  made->close();
  client.join();
  listener->close();
  EXPECT_FALSE(std::filesystem::exists(path())) << "the name goes with the listener";
  EXPECT_EQ(code(share_channel::connect(path(), options_of(1))), errc::unavailable);
}

TEST_F(Place, NobodyComesInTime) {
  auto listener = share_listener::open(path());
  const auto made = listener->accept(options_of(1, 20));
  EXPECT_EQ(code(made), errc::unavailable);
  EXPECT_EQ(made.error().native, ETIMEDOUT);
}

// A process of this user that connects and does nothing more.
int connect_silently(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  const int made = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(made, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  return made;
}

TEST_F(Place, SilentConnectionsDelayNoOther) {
  auto listener = share_listener::open(path());
  std::vector<int> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(connect_silently(path()));
  const vmm::share_bytes garbage{};
  ASSERT_EQ(::send(silent[0], garbage.data(), 1, 0), 1);  // is refused, and only that
  std::thread client = connecting();
  auto made = listener->accept(options_of(1, 8'000));
  while (!made && made.error().code == errc::foreign_error)
    made = listener->accept(options_of(1, 8'000));
  EXPECT_TRUE(made) << vmm::describe(made.error());
  client.join();
  for (const int each : silent) ::close(each);
}

TEST_F(Place, ConnectionsThatHaveEndedDelayNoOther) {
  auto listener = share_listener::open(path());
  const int greeted = connect_silently(path());
  EXPECT_EQ(listener->accept(options_of(1, 20)).error().native, ETIMEDOUT);
  ::close(greeted);
  ::close(connect_silently(path()));
  std::thread client = connecting();
  auto made = listener->accept(options_of(1, 8'000));
  EXPECT_TRUE(made) << vmm::describe(made.error());
  client.join();
}

TEST_F(Place, AConnectionThatProvesNothingInItsTimeIsClosed) {
  auto listener = share_listener::open(path());
  const int silent = connect_silently(path());
  for (int i = 0; i < 2; ++i) {
    const auto made = listener->accept(options_of(1, 20));
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().native, ETIMEDOUT);
  }
  vmm::share_bytes hello{};
  EXPECT_EQ(::recv(silent, hello.data(), hello.size(), 0), ssize_t{sizeof hello});
  EXPECT_EQ(::recv(silent, hello.data(), hello.size(), 0), 0) << "the end";
  ::close(silent);
}

TEST_F(Place, AWaitThatIsInterruptedGoesOnInTheNextCall) {
  auto listener = share_listener::open(path());
  const int silent = connect_silently(path());
  int left = 3;
  const auto count_down = [](void* of) { return --*static_cast<int*>(of) <= 0; };
  const vmm::share_options options = options_of(1, 20'000);
  {
    const vmm::share_interruption interruption(count_down, &left);
    EXPECT_EQ(listener->accept(options).error().native, EINTR);
    EXPECT_EQ(left, 0);
    EXPECT_EQ(share_channel::connect(path(), options).error().native, EINTR)
        << "it is not accepted";
  }
  std::thread client([&] {
    auto made = share_channel::connect(path(), options);
    ASSERT_TRUE(made) << vmm::describe(made.error());
    EXPECT_EQ(made->next().error().native, ECONNRESET);
  });
  auto made = listener->accept(options);
  EXPECT_TRUE(made) << vmm::describe(made.error());
  {
    const vmm::share_interruption interruption(count_down, &left);
    EXPECT_EQ(made->next().error().native, EINTR);
    EXPECT_TRUE(made->is_open()) << "as after a timeout";
  }
  made->close();
  client.join();
  ::close(silent);
}

TEST_F(Place, OpenDirectoriesAreRefused) {
  for (const mode_t mode : {0755U, 0710U, 0701U, 01700U}) {
    ASSERT_EQ(::chmod(folder_.c_str(), mode), 0);
    for (const vmm::error& why : {share_listener::open(path()).error(),
                                  share_channel::connect(path(), options_of(1)).error()}) {
      EXPECT_EQ(why.code, errc::not_permitted) << mode;
      const std::string octal = std::to_string(mode >> 9 & 7) + std::to_string(mode >> 6 & 7) +
                                std::to_string(mode >> 3 & 7) + std::to_string(mode & 7);
      const std::string advice = mode == 01700U ? "make one of that mode in" : "change that of";
      EXPECT_EQ(why.detail, "the socket's directory must have mode 0700, not " + octal + ": " +
                                advice + ": '" + folder_ + "'");
    }
  }
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
}

TEST_F(Place, SymbolicLinksAreRefused) {
  ASSERT_EQ(::mkdir(path("real").c_str(), 0700), 0);
  ASSERT_EQ(::symlink(path("real").c_str(), path("link").c_str()), 0);
  EXPECT_EQ(code(share_listener::open(path("link") + "/socket")), errc::not_permitted);
  auto listener = share_listener::open(path("real") + "/socket");
  ASSERT_TRUE(listener);
  EXPECT_EQ(code(share_channel::connect(path("link") + "/socket", options_of(1))),
            errc::not_permitted);
  ASSERT_EQ(::symlink((path("real") + "/socket").c_str(), path("other").c_str()), 0);
  EXPECT_EQ(code(share_channel::connect(path("other"), options_of(1))), errc::not_permitted);
}

TEST_F(Place, WhatHasTheNameStays) {
  ::close(::open(path().c_str(), O_CREAT | O_WRONLY, 0600));
  EXPECT_EQ(code(share_listener::open(path())), errc::in_use);
  EXPECT_TRUE(std::filesystem::is_regular_file(path()));
  EXPECT_EQ(code(share_channel::connect(path(), options_of(1))), errc::not_permitted);
  auto listener = share_listener::open(path("second"));
  EXPECT_EQ(code(share_listener::open(path("second"))), errc::in_use);
  std::filesystem::remove(path("second"));
  ::close(::open(path("second").c_str(), O_CREAT | O_WRONLY, 0600));
  listener->close();
  EXPECT_TRUE(std::filesystem::exists(path("second"))) << "it is not the listener's any more";
}

TEST_F(Place, NamesThatAreNoneAreRefused) {
  const std::string abstract_name("\0abstract", 9);
  for (const std::string& name :
       {std::string{}, folder_ + "/", folder_ + "/.", folder_ + "/..", path(std::string(64, 'x')),
        abstract_name, folder_ + std::string("/a\0b", 4)}) {
    EXPECT_EQ(code(share_listener::open(name)), errc::invalid_argument) << name;
    EXPECT_EQ(code(share_channel::connect(name, options_of(1))), errc::invalid_argument) << name;
  }
  const auto nowhere = share_listener::open("/nowhere/at/all");
  ASSERT_EQ(code(nowhere), errc::unavailable);
  EXPECT_STREQ(nowhere.error().detail,
               "the socket's directory does not exist: create it with mode 0700: '/nowhere/at'");
  const std::string long_path = path(std::string(64, 'x'));
  EXPECT_EQ(share_listener::open(long_path).error().detail,
            "a socket's path ends in a name of at most 63 bytes, not 64: '" + long_path + "'");
  const auto endless = share_channel::connect("/" + std::string(5000, 'y'), options_of(1));
  EXPECT_TRUE(std::string_view(endless.error().detail)
                  .starts_with("a socket's path has at most 4095 bytes, not 5001: '/yyy"))
      << endless.error().detail;
  const std::string named = ": '" + path("absent") + "'";
  const auto absent = share_channel::connect(path("absent"), options_of(1));
  EXPECT_TRUE(contains(absent.error().detail, named));
  const auto inside = share_listener::open(path("absent") + "/socket");
  EXPECT_TRUE(contains(inside.error().detail, named));
}

TEST_F(Place, ASecretLiesInAPrivateFile) {
  const auto store = [&](std::size_t size, mode_t mode) {
    const int file = ::open(path("key").c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    const std::string bytes(size, 'k');
    EXPECT_EQ(::write(file, bytes.data(), size), static_cast<ssize_t>(size));
    EXPECT_EQ(::fchmod(file, mode), 0);
    ::close(file);
    return vmm::share_secret::from_file(path("key").c_str());
  };
  EXPECT_EQ(store(32, 0600).value().bytes[31], std::byte{'k'});
  EXPECT_EQ(code(store(32, 0640)), errc::not_permitted);
  EXPECT_EQ(code(store(32, 0602)), errc::not_permitted);
  const auto says = [&](const auto& read, const char* what) {
    const std::string detail = read ? "" : read.error().detail;
    EXPECT_TRUE(contains(detail, what));
    EXPECT_TRUE(contains(detail, path("")));
  };
  EXPECT_EQ(code(store(31, 0600)), errc::invalid_argument);
  EXPECT_EQ(code(store(33, 0600)), errc::invalid_argument);
  says(store(33, 0600), "exactly 32 bytes, not 33: '");
  says(store(32, 0640), "chmod 600: '");
  ASSERT_EQ(::symlink(path("key").c_str(), path("alias").c_str()), 0);
  EXPECT_EQ(code(vmm::share_secret::from_file(path("alias").c_str())), errc::unavailable);
  says(vmm::share_secret::from_file(path("alias").c_str()), "a symbolic link");
}

TEST(Secret, IsRandom) {
  EXPECT_FALSE(vmm::is_same_digest(vmm::share_secret::make().value().bytes,
                                   vmm::share_secret::make().value().bytes));
}

// ---- lending ----

TEST_F(Channel, ABlockIsLentAndGivenBack) {
  channels both = make_channels();
  {
    auto block = exported_block::make(lender, {.size_bytes = 6 * MiB,
                                               .handle_bytes = 2 * MiB,
                                               .label = vmm::make_share_label("weights")});
    ASSERT_TRUE(block);
    std::thread importing([&] {
      auto borrowed = both.server.borrow(user);
      ASSERT_TRUE(borrowed) << vmm::describe(borrowed.error());
      EXPECT_EQ(borrowed->block().label, vmm::make_share_label("weights"));
      EXPECT_EQ(borrowed->size_bytes(), 6 * MiB);
      EXPECT_EQ(borrowed->data_address().as<char>()[5 * MiB], 'a');
      borrowed->data_address().as<char>()[MiB] = 'b';
      const auto asked = both.server.next();
      ASSERT_TRUE(asked) << vmm::describe(asked.error());
      EXPECT_EQ(asked->kind, share_event::what::withdrawn);
      EXPECT_TRUE(both.server.give_back(*borrowed));
      EXPECT_TRUE(user.resource_counts().empty());
    });
    block->data_address().as<char>()[5 * MiB] = 'a';
    const auto id = both.client.lend(*block);
    EXPECT_TRUE(id) << vmm::describe(id.error());
    EXPECT_TRUE(block->is_lent());
    EXPECT_EQ(code(block->release()), errc::in_use);
    EXPECT_TRUE(both.client.take_back(*id));
    EXPECT_FALSE(block->is_lent());
    EXPECT_EQ(block->data_address().as<char>()[MiB], 'b');
    importing.join();
    EXPECT_TRUE(block->release());
  }
  EXPECT_TRUE(lender.resource_counts().empty());
}

TEST_F(Channel, TheLargestBlockGoesInOneMessage) {
  auto finer = vmm::host_driver::open({.recommended_bytes = 8192}).value();
  channels both = make_channels();
  auto block = exported_block::make(
      finer, {.size_bytes = vmm::share_parts_max * 8192, .handle_bytes = 8192});
  ASSERT_TRUE(block) << vmm::describe(block.error());
  ASSERT_EQ(block->part_count(), vmm::share_parts_max);
  ASSERT_TRUE(both.client.send(*block));
  auto borrowed = both.server.borrow(user);
  ASSERT_TRUE(borrowed) << vmm::describe(borrowed.error());
  EXPECT_EQ(user.resource_counts().handles, block->part_count());
  EXPECT_EQ(both.client.next().value().kind, share_event::what::accepted);
  EXPECT_TRUE(both.server.give_back(*borrowed));
  EXPECT_EQ(both.client.next().value().kind, share_event::what::released);
}

TEST_F(Channel, TheEndOfAConnectionEndsItsLoans) {
  vmm::manager owner(lender, share_test::shareable());
  const vmm::address at = owner.allocate(2 * MiB).value();
  channels both = make_channels();
  {
    auto block = *exported_block::from(owner, at);
    ASSERT_TRUE(both.client.send(block));
  }
  EXPECT_EQ(code(owner.free(at)), errc::in_use) << "the loan pins it";
  auto borrowed = *both.server.borrow(user);
  borrowed.data_address().as<char>()[0] = 'x';
  both.server.close();
  EXPECT_EQ(both.client.next().value().kind, share_event::what::accepted);
  EXPECT_EQ(code(both.client.next()), errc::unavailable);
  EXPECT_EQ(both.client.lent_count(), 0U);
  EXPECT_EQ(at.as<char>()[0], 'x');
  EXPECT_TRUE(owner.free(at));
  EXPECT_EQ(borrowed.data_address().as<char>()[0], 'x') << "its memory stays as long as it does";
  EXPECT_EQ(code(both.server.give_back(borrowed)), errc::unavailable);
  EXPECT_TRUE(user.resource_counts().empty()) << "released all the same";
}

TEST_F(Channel, AFollowedBlockIsUpdated) {
  vmm::manager owner(lender, share_test::shareable());
  vmm::address at = owner.allocate(2 * MiB).value();
  (void)owner.allocate(2 * MiB).value();
  channels both = make_channels();
  auto block = exported_block::from(owner, at, {.rule = vmm::export_rule::followed});
  ASSERT_TRUE(block);
  const std::uint64_t id = both.client.send(*block).value();
  EXPECT_EQ(code(both.client.update(id)), errc::invalid_argument) << "not accepted yet";
  auto borrowed = *both.server.borrow(user);
  EXPECT_EQ(both.client.next().value().kind, share_event::what::accepted);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    at = owner.resize({.at = at, .size_bytes = (2 + 2 * round) * MiB}).value();
    ASSERT_TRUE(block->moved_to(at));
    EXPECT_EQ(both.client.update(id).value(), round);
    const auto changed = both.server.next();
    ASSERT_TRUE(changed) << vmm::describe(changed.error());
    ASSERT_EQ(changed->kind, share_event::what::updated);
    EXPECT_EQ(changed->epoch, round);
    EXPECT_EQ(both.client.accepted_epoch(id), round - 1);
    ASSERT_TRUE(borrowed.update(changed->block));
    ASSERT_TRUE(both.server.accept(id));
    EXPECT_EQ(both.client.next().value().epoch, round);
    EXPECT_EQ(both.client.accepted_epoch(id), round);
    at.as<char>()[(1 + 2 * round) * MiB] = 'r';
    EXPECT_EQ(borrowed.data_address().as<char>()[(1 + 2 * round) * MiB], 'r');
  }
  EXPECT_TRUE(both.server.give_back(borrowed));
  EXPECT_EQ(both.client.next().value().kind, share_event::what::released);
  EXPECT_TRUE(block->release());
}

TEST_F(Channel, ARefusalSaysWhy) {
  auto coarse =
      vmm::host_driver::open({.minimum_bytes = 8 * MiB, .recommended_bytes = 8 * MiB}).value();
  channels both = make_channels();
  auto block = exported_block::make(lender, {.size_bytes = 2 * MiB});
  ASSERT_TRUE(block && both.client.send(*block));
  const auto made = both.server.borrow(coarse);
  ASSERT_FALSE(made);
  const auto answer = *both.client.next();
  EXPECT_EQ(answer.kind, share_event::what::refused);
  EXPECT_EQ(answer.reason, made.error().code);
  EXPECT_FALSE(block->is_lent());
  EXPECT_TRUE(coarse.resource_counts().empty());
}

// ---- a hostile peer ----

// One side is a share_channel, the other a session whose messages the test sends as it likes.
struct hostile {
  vmm::share_channel channel;
  vmm::share_session session{share_role::connecting, share_test::secret_of(1),
                             share_test::secret_of(9).bytes};
  int end = -1;

  hostile() {
    const auto ends = share_test::socket_pair();
    end = ends[0];
    std::thread accepting([&] {
      auto made = share_channel::adopt(ends[1], share_role::accepting, options_of(1));
      ASSERT_TRUE(made) << vmm::describe(made.error());
      channel = std::move(*made);
    });
    say(session.hello());
    hear();
    say(session.proof().value());
    hear();
    accepting.join();
    EXPECT_TRUE(session.is_open());
  }
  hostile(const hostile&) = delete;
  hostile& operator=(const hostile&) = delete;
  ~hostile() { ::close(end); }

  void hear() {
    vmm::share_bytes bytes{};
    ASSERT_EQ(::recv(end, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    ASSERT_TRUE(session.take(vmm::decode_message(bytes).value()));
  }
  void say(const vmm::share_message& message, std::size_t descriptors = 0) const {
    const vmm::share_bytes bytes = vmm::encode_message(message);
    send(bytes.data(), bytes.size(), descriptors);
  }
  // With so many copies of a descriptor.
  void send(const void* data, std::size_t size, std::size_t descriptors) const {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(253 * sizeof(int))> control{};
    iovec part{const_cast<void*>(data), size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    const int open = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (descriptors != 0) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
      cmsghdr* const head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
      for (std::size_t i = 0; i < descriptors; ++i)
        std::memcpy(CMSG_DATA(head) + i * sizeof(int), &open, sizeof open);
    }
    ASSERT_EQ(::sendmsg(end, &message, MSG_NOSIGNAL), static_cast<ssize_t>(size));
    ::close(open);
  }
};

// What comes is refused with this code, and the channel is closed.
void expect_dropped(const std::function<void(hostile&)>& attack, errc wanted,
                    const std::string& what) {
  hostile peer;
  const std::ptrdiff_t before = share_test::descriptor_count();
  attack(peer);
  const auto seen = peer.channel.next();
  EXPECT_EQ(code(seen), wanted) << what;
  EXPECT_FALSE(peer.channel.is_open()) << what;
  EXPECT_EQ(share_test::descriptor_count(), before - 1) << what << ": the channel's own";
}

TEST_F(Channel, DescriptorsAreCountedExactly) {
  const auto expect_refused = [](vmm::share_kind kind, std::size_t count) {
    expect_dropped(
        [&](hostile& peer) {
          auto block = share_test::block_of(3, 4096);
          block.kind = kind;
          peer.say(peer.session.offer(block).value(), count);
        },
        errc::foreign_error, "offer of 3 with " + std::to_string(count));
  };
  for (const std::size_t count : {0U, 1U, 2U, 4U, 253U})
    expect_refused(vmm::share_kind::posix_fd, count);
  expect_refused(vmm::share_kind::fabric, 3);
}

TEST_F(Channel, OtherSizesOfMessagesAreRefused) {
  const std::array<std::byte, 4096> bytes{};
  for (const std::size_t size : {1U, 2047U, 2049U, 4096U}) {
    expect_dropped([&](hostile& peer) { peer.send(bytes.data(), size, 2); }, errc::foreign_error,
                   std::to_string(size) + " bytes");
  }
  expect_dropped([&](hostile& peer) { peer.send(bytes.data(), 2048, 0); }, errc::foreign_error,
                 "zeros");
}

TEST_F(Channel, AFileThatIsNoMemoryIsRefused) {
  hostile peer;
  auto block = share_test::block_of(1, 2 * MiB);
  peer.say(peer.session.offer(block).value(), 1);
  EXPECT_EQ(code(peer.channel.borrow(user)), errc::invalid_argument);
  EXPECT_TRUE(user.resource_counts().empty());
  EXPECT_TRUE(peer.channel.is_open()) << "refused, as any block may be";
}

TEST_F(Channel, WhoFillsTheQueueIsDropped) {
  hostile peer;
  auto block = exported_block::make(lender, {.size_bytes = 2 * MiB});
  ASSERT_TRUE(block);
  std::thread flood([&] {
    for (std::size_t i = 0; i < vmm::share_loans_max + 1; ++i) {
      auto offered = share_test::block_of(1, 4096);
      offered.kind = vmm::share_kind::fabric;
      auto message = peer.session.offer(offered);
      if (!message) {  // one more than the session allows, by hand
        offered.id = i + 1;
        vmm::share_message by_hand;
        by_hand.kind = vmm::share_message_kind::offer;
        by_hand.sequence = i + 2;
        by_hand.block = offered;
        peer.say(by_hand);
        return;
      }
      peer.say(*message);
    }
  });
  EXPECT_EQ(code(peer.channel.lend(*block)), errc::foreign_error);
  flood.join();
  EXPECT_FALSE(block->is_lent());
}

}  // namespace
