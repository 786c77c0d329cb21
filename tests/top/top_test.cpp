// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: vmm-top shows what the allocators of a live process have, and nothing of one that is gone;
// what is not the user's own, or not what vmm writes, is refused and harms nothing; a sample that
// is being written is never shown in part. Method: child processes that publish, or lie, in a
// folder of the test's own.
#include <sys/mman.h>
#include <sys/stat.h>

#include "../support/program.hpp"

import vmm.fake;
import vmm.host;
import vmm.manager;
import vmm.stream;
import vmm.top_tools;

namespace {

namespace fs = std::filesystem;
using vmm::tools::top_listing;

// A process that does its work, says so, and goes on when it may.
class child : public program {
 public:
  struct side : line {
    void pause() const {
      say('p');
      if (hear() == '\0') ::_exit(3);
    }
  };
  explicit child(const std::function<void(const side&)>& does)
      : program([&](line to) { does(side{to}); }) {
    wait();
  }
  void let_go() const { talk().say('g'); }
  void go_on() const {
    let_go();
    wait();
  }

 private:
  void wait() const { EXPECT_EQ(talk().hear(), 'p') << "the child has ended"; }
};

struct Top : testing::Test {
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "vmm_top_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    runtime = name;
    folder = runtime / "vmm";
    ::setenv("XDG_RUNTIME_DIR", runtime.c_str(), 1);
    ::unsetenv("VMM_TOP");
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(runtime, ignored);
  }
  // Of the test's own folder: the other one may have files of the user's processes.
  [[nodiscard]] top_listing look() const {
    top_listing out;
    vmm::tools::read_top_folder(folder.string(), out);
    return out;
  }
  // The last listing, once it is as awaited or half a minute has passed.
  template <class Awaited>
  [[nodiscard]] top_listing look_until(Awaited&& is_there) const {
    constexpr int looks_max = 3000;
    top_listing seen = look();
    for (int looks = 1; looks < looks_max && !is_there(seen); ++looks) {
      ::usleep(10'000);
      seen = look();
    }
    return seen;
  }
  [[nodiscard]] fs::path file_of(const child& of) const {
    return folder / ("top." + std::to_string(of.process()));
  }
  // One that has the lock of its file, and what the test writes in it.
  [[nodiscard]] std::unique_ptr<child> liar() const {
    fs::create_directories(folder);
    fs::permissions(folder, fs::perms::owner_all);
    return std::make_unique<child>([this](const child::side& self) {
      const fs::path path = folder / ("top." + std::to_string(::getpid()));
      const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      struct ::flock whole{};
      whole.l_type = F_WRLCK;
      whole.l_whence = SEEK_SET;
      if (::fcntl(file, F_SETLK, &whole) != 0) ::_exit(4);
      while (true) self.pause();
    });
  }
  static void write(const fs::path& path, const std::vector<unsigned char>& bytes) {
    const int file = ::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
    ASSERT_GE(file, 0);
    EXPECT_EQ(::write(file, bytes.data(), bytes.size()), static_cast<::ssize_t>(bytes.size()));
    ::close(file);
  }
  // What vmm itself would write for the process.
  [[nodiscard]] static std::vector<unsigned char> honest(::pid_t process) {
    std::vector<unsigned char> bytes(vmm::top_file_bytes);
    vmm::top_head head{.slot_count = vmm::top_slot_count,
                       .process = static_cast<std::uint64_t>(process)};
    std::memcpy(head.program.data(), "honest", 6);
    std::memcpy(bytes.data(), &head, sizeof(head));
    vmm::top_sample sample{.number = 1, .held_bytes = 2 * MiB, .live_bytes = MiB};
    sample.set_names("pool", "fake");
    vmm::top_slot slot{2, vmm::encode_sample(sample)};
    std::memcpy(bytes.data() + sizeof(head), &slot, sizeof(slot));
    return bytes;
  }

  fs::path runtime;
  fs::path folder;
};

template <class Options>
Options published(bool by_option = true) {
  Options options;
  options.publish = by_option;
  options.leak_hook.hook = nullptr;
  return options;
}

template <class Driver>
void publish_a_pool(const child::side& self, Driver& driver, bool by_option) {
  {
    const auto options = published<vmm::pool_options>(by_option);
    vmm::stream_pool pool(driver, options);
    if (!pool.allocate(3 * MiB, vmm::stream_handle::default_stream)) ::_exit(5);
    vmm::manager manager(driver, published<vmm::manager_options>(by_option));
    if (!manager.allocate(5 * MiB)) ::_exit(6);
    self.pause();
    vmm::stream_pool third(driver, options);
    if (!third.set_up()) ::_exit(7);
    self.pause();
  }
  self.pause();
  ::_exit(0);
}

void publish(const child::side& self) {
  vmm::fake_driver driver;
  publish_a_pool(self, driver, true);
}

TEST_F(Top, ALiveProcessIsShownAsLongAsItHasAllocators) {
  const child live(publish);
  top_listing seen = look();
  ASSERT_TRUE(seen.complaints.empty()) << seen.complaints.front();
  ASSERT_EQ(seen.processes.size(), 1u);
  EXPECT_EQ(seen.processes[0].process, static_cast<std::uint64_t>(live.process()));
  ASSERT_EQ(seen.processes[0].allocators.size(), 2u);
  EXPECT_EQ(seen.processes[0].allocators[1].kind, vmm::top_kind::manager);
  live.go_on();
  // The child's writer shows the allocations with its next sample, and in its own time.
  seen = look_until([](const top_listing& now) {
    if (now.processes.size() != 1 || now.processes[0].allocators.size() != 3) return false;
    const auto& shown = now.processes[0].allocators;
    return shown[0].live_bytes != 0 && shown[1].live_bytes != 0;
  });
  ASSERT_EQ(seen.processes.size(), 1u);
  ASSERT_EQ(seen.processes[0].allocators.size(), 3u);
  const vmm::top_sample& pool = seen.processes[0].allocators[0];
  EXPECT_EQ(pool.kind, vmm::top_kind::pool);
  EXPECT_EQ(pool.live_bytes, 3 * MiB);
  EXPECT_EQ(pool.live_count, 1u);
  EXPECT_GE(pool.held_bytes, pool.live_bytes);
  EXPECT_STREQ(pool.driver.data(), "fake-cuda");
  EXPECT_STREQ(pool.policy.data(), "pool");
  EXPECT_GE(seen.processes[0].allocators[1].live_bytes, 5 * MiB);
  const std::string table = to_table(seen);
  EXPECT_TRUE(contains(table, std::to_string(live.process())));
  EXPECT_TRUE(contains(to_json(seen), "\"live_bytes\": " + std::to_string(3 * MiB)));
  // The peak of live bytes is right, or absent.
  EXPECT_GE(pool.peak_live_bytes, pool.live_bytes);
  const std::string json = to_json(seen);
  for (std::size_t at = json.find("{\"process\""), end = 0; at != std::string::npos;
       at = json.find("{\"process\"", end)) {
    end = json.find('}', at);
    const std::string_view one = std::string_view(json).substr(at, end - at);
    EXPECT_EQ(one.find("\"peak_live_bytes\"") != std::string::npos,
              one.find("\"kind\": \"pool\"") != std::string::npos)
        << one;
  }
  struct ::stat found{};
  ASSERT_EQ(::stat(file_of(live).c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0600u);
  ASSERT_EQ(::stat(folder.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777U, 0700u);
  live.go_on();
  EXPECT_FALSE(fs::exists(file_of(live))) << "its last allocator has gone";
}

TEST_F(Top, TheVariableAsksForItOnTheHostsMemoryToo) {
  ::setenv("VMM_TOP", "1", 1);
  child live([](const child::side& self) {
    vmm::host_driver driver = std::move(*vmm::host_driver::open());
    publish_a_pool(self, driver, false);
  });
  const top_listing seen = look();
  ASSERT_EQ(seen.processes.size(), 1u);
  EXPECT_STREQ(seen.processes[0].allocators[0].driver.data(), "host");
}

TEST_F(Top, NobodyIsShownWhoDoesNotAsk) {
  for (const char* value : {"", "0", "off", "perhaps"}) {
    ::setenv("VMM_TOP", value, 1);
    child live([](const child::side& self) {
      ::close(STDERR_FILENO);  // "perhaps" is reported there
      vmm::fake_driver driver;
      publish_a_pool(self, driver, false);
    });
    EXPECT_FALSE(fs::exists(folder)) << value;
  }
}

TEST_F(Top, AProcessThatIsGoneIsNotShownAndItsFileIsRemoved) {
  child gone(publish);
  const fs::path file = file_of(gone);
  ASSERT_TRUE(fs::exists(file));
  gone.kill();
  ASSERT_TRUE(fs::exists(file)) << "it was not removed";
  fs::resize_file(file, 100);  // whatever became of it
  const top_listing seen = look();
  EXPECT_TRUE(seen.processes.empty());
  EXPECT_TRUE(seen.complaints.empty());
  EXPECT_FALSE(fs::exists(file));
}

TEST_F(Top, AForkedChildShowsItsOwn) {
  child parent([](const child::side& self) {
    vmm::fake_driver driver;
    vmm::stream_pool pool(driver, published<vmm::pool_options>());
    if (!pool.set_up()) ::_exit(5);
    if (::fork() == 0) {
      vmm::fake_driver own;
      vmm::stream_pool mine(own, published<vmm::pool_options>());
      if (!mine.set_up()) ::_exit(6);
      self.pause();
      ::_exit(0);
    }
    while (true) ::pause();
  });
  const top_listing seen = look();
  EXPECT_EQ(seen.processes.size(), 2u);
  for (const auto& each : seen.processes) EXPECT_EQ(each.allocators.size(), 1u);
  for (const auto& each : seen.processes)
    if (each.process != static_cast<std::uint64_t>(parent.process()))
      ::kill(static_cast<::pid_t>(each.process), SIGKILL);
}

TEST_F(Top, AProcessThatOpensItsOwnFileIsStillShown) {
  child live([this](const child::side& self) {
    vmm::fake_driver driver;
    vmm::stream_pool pool(driver, published<vmm::pool_options>());
    if (!pool.set_up()) ::_exit(5);
    const fs::path own = folder / ("top." + std::to_string(::getpid()));
    ::close(::open(own.c_str(), O_RDONLY | O_CLOEXEC));  // as a backup program in it may
    while (true) self.pause();
  });
  EXPECT_EQ(look().processes.size(), 1u);
  EXPECT_TRUE(fs::exists(file_of(live)));
}

TEST_F(Top, AForkedChildKeepsNoLockOfItsParent) {
  child parent([](const child::side& self) {
    vmm::fake_driver driver;
    vmm::stream_pool pool(driver, published<vmm::pool_options>());
    if (!pool.set_up()) ::_exit(5);
    if (::fork() == 0) {
      self.pause();  // its parent is ended meanwhile
      ::_exit(0);
    }
    while (true) ::pause();
  });
  const fs::path file = file_of(parent);
  ASSERT_TRUE(fs::exists(file));
  parent.kill();
  EXPECT_TRUE(look().processes.empty());
  EXPECT_FALSE(fs::exists(file));
  parent.let_go();
}

// `sudo -E` keeps the user's folder in the environment.
TEST_F(Top, RootPublishesNoFolderOfAUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  ASSERT_EQ(::chown(runtime.c_str(), 65534, 65534), 0);
  const child live(publish);
  EXPECT_TRUE(fs::is_empty(runtime));
  top_listing seen;
  vmm::tools::read_top_folder("/tmp/vmm-0", seen);
  EXPECT_TRUE(std::any_of(seen.processes.begin(), seen.processes.end(), [&](const auto& each) {
    return each.process == static_cast<std::uint64_t>(live.process());
  }));
  live.go_on();
  live.go_on();
}

TEST_F(Top, AFolderThatOthersMayEnterIsRefused) {
  fs::create_directories(folder);
  fs::permissions(folder, fs::perms::owner_all | fs::perms::group_read);
  EXPECT_EQ(look().complaints.size(), 1u);
  const child shy([](const child::side& self) {
    ::close(STDERR_FILENO);
    publish(self);
  });
  EXPECT_TRUE(fs::is_empty(folder)) << "nothing is published there";
  fs::permissions(folder, fs::perms::owner_all);
  fs::rename(folder, runtime / "elsewhere");
  fs::create_directory_symlink(runtime / "elsewhere", folder);
  EXPECT_EQ(look().complaints.size(), 1u) << "a link may lead anywhere";
}

TEST_F(Top, FilesThatAreNotTheUsersOwnAreRefused) {
  const auto other = liar();
  const fs::path file = file_of(*other);
  write(file, honest(other->process()));
  ASSERT_EQ(look().processes.size(), 1u) << "it is right as it is";
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write | fs::perms::others_read);
  EXPECT_TRUE(look().processes.empty()) << "others may read it";
  EXPECT_EQ(look().complaints.size(), 1u);
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(file.c_str(), 65534, 65534), 0);
    EXPECT_TRUE(look().processes.empty()) << "it is another user's";
    EXPECT_EQ(look().complaints.size(), 1u);
    ASSERT_EQ(::chown(file.c_str(), 0, 0), 0);
  }
  const fs::path wrong = folder / "top.1";
  fs::copy_file(file, wrong);
  fs::permissions(wrong, fs::perms::owner_read | fs::perms::owner_write);
  fs::remove(file);
  fs::create_symlink(wrong, file);
  const top_listing seen = look();
  EXPECT_TRUE(seen.processes.empty()) << "a link is not followed";
  EXPECT_FALSE(seen.complaints.empty());
  fs::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_TRUE(look().processes.empty()) << "and a pipe is not waited for";
}

TEST_F(Top, HostileContentsAreRefusedOrShownAsPlainText) {
  const auto other = liar();
  const fs::path file = file_of(*other);
  const std::vector<unsigned char> right = honest(other->process());
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, right.size() - 1, right.size() + 1}) {
    std::vector<unsigned char> bytes = right;
    bytes.resize(size);
    write(file, bytes);
    EXPECT_TRUE(look().processes.empty()) << size;
  }
  std::mt19937 random(5);
  int refused = 0;
  for (int turn = 0; turn < 400; ++turn) {
    std::vector<unsigned char> bytes = right;
    const std::size_t range = turn % 2 == 0 ? 64 : 320;  // the head, or the first slots as well
    for (unsigned changes = 1 + random() % 12; changes != 0; --changes)
      bytes[random() % range] = static_cast<unsigned char>(random());
    write(file, bytes);
    const top_listing seen = look();
    refused += seen.complaints.empty() ? 0 : 1;
    EXPECT_LE(seen.processes.size(), 1u);
    for (const char each : to_table(seen) + to_json(seen))
      ASSERT_TRUE(each == '\n' || (each >= ' ' && each <= '~')) << static_cast<int>(each);
  }
  EXPECT_GT(refused, 100);
  std::vector<unsigned char> busy = right;
  busy[sizeof(vmm::top_head)] = 3;  // its writer died in the middle, or never ends
  write(file, busy);
  const top_listing seen = look();
  ASSERT_EQ(seen.processes.size(), 1u);
  EXPECT_TRUE(seen.processes[0].allocators.empty());
  EXPECT_EQ(seen.processes[0].busy_count, 1u);
}

// A mapped file would end the process that writes behind its end.
TEST_F(Top, AFileThatIsCutHarmsNobodyWhoWritesIt) {
  const child live([](const child::side& self) {
    ::close(STDERR_FILENO);
    publish(self);
  });
  fs::resize_file(file_of(live), 0);
  EXPECT_TRUE(look().processes.empty());
  live.go_on();  // it has written since
  EXPECT_TRUE(look().processes.empty());
  EXPECT_EQ(look().complaints.size(), 1u);
  live.go_on();
  EXPECT_FALSE(fs::exists(file_of(live)));
}

TEST_F(Top, ASampleThatIsBeingWrittenIsNeverShownInPart) {
  const fs::path path = runtime / "torn";
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::ftruncate(file, static_cast<::off_t>(vmm::top_file_bytes)), 0);
  child writer([file](const child::side& self) {
    void* const at =
        ::mmap(nullptr, vmm::top_file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) ::_exit(4);
    auto* const slot =
        reinterpret_cast<vmm::top_slot*>(static_cast<std::byte*>(at) + sizeof(vmm::top_head));
    bool is_first = true;
    for (std::uint64_t i = 1;; ++i) {
      vmm::top_sample sample;
      sample.number = sample.held_bytes = sample.live_bytes = sample.moved_bytes = i;
      const auto words = vmm::encode_sample(sample);
      __atomic_store_n(&slot->sequence, 2 * i - 1, __ATOMIC_RELAXED);
      __atomic_thread_fence(__ATOMIC_RELEASE);
      for (std::size_t word = 0; word < words.size(); ++word)
        __atomic_store_n(&slot->words[word], words[word], __ATOMIC_RELAXED);
      __atomic_store_n(&slot->sequence, 2 * i, __ATOMIC_RELEASE);
      if (is_first) self.pause();
      is_first = false;
    }
  });
  int shown = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (i == 1) writer.let_go();
    const auto sample = vmm::tools::read_slot(file, 0);
    if (!sample) continue;
    ++shown;
    ASSERT_EQ(sample->held_bytes, sample->number);
    ASSERT_EQ(sample->live_bytes, sample->number);
    ASSERT_EQ(sample->moved_bytes, sample->number);
  }
  EXPECT_GT(shown, 1'000);
  ::close(file);
}

}  // namespace
