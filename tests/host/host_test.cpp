// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the host driver does with real memory what the contract says, also where Linux would do
// something else.
// Method: small layouts, their bytes read and written through plain pointers; each refusal compared
// with the resource counts before it; the kernel reads or writes a byte for this process, and
// returns an error if a plain access would fault. The resource counts are zero after every test.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "facts.hpp"

namespace {

using vmm::access, vmm::address, vmm::address_range, vmm::errc, vmm::physical_handle;

constexpr std::uint64_t unit = 16 * page;

std::uint8_t* pointer(address at) { return at.as<std::uint8_t>(); }

struct Host : testing::Test {
  void SetUp() override {
    auto opened = vmm::host_driver::open({.minimum_bytes = page});
    ASSERT_TRUE(opened) << vmm::describe(opened.error());
    driver_.emplace(std::move(*opened));
  }
  void TearDown() override { EXPECT_TRUE(driver_->resource_counts().empty()); }

  vmm::host_driver& driver() { return *driver_; }

  address_range reserve(std::uint64_t size_bytes) {
    return driver().reserve({.size_bytes = size_bytes}).value();
  }
  physical_handle create(std::uint64_t size_bytes) {
    return driver().create({.size_bytes = size_bytes, .where = vmm::host()}).value();
  }
  void map(address at, physical_handle memory, std::uint64_t size_bytes,
           std::uint64_t offset_bytes = 0) {
    const auto done = driver().map({at, size_bytes, memory, offset_bytes});
    ASSERT_TRUE(done) << vmm::describe(done.error());
  }
  vmm::status allow(address_range range, access rights = access::read_write) {
    const vmm::access_grant grant{vmm::host(), rights};
    return driver().set_access(range, {&grant, 1});
  }
  void map_usable(address at, physical_handle memory, std::uint64_t size_bytes,
                  std::uint64_t offset_bytes = 0) {
    map(at, memory, size_bytes, offset_bytes);
    ASSERT_TRUE(allow({at, size_bytes}));
  }
  void clear(address_range reservation, std::initializer_list<address_range> mapped) {
    for (const address_range each : mapped) ASSERT_TRUE(driver().unmap(each));
    ASSERT_TRUE(driver().free_reservation(reservation));
  }

 private:
  std::optional<vmm::host_driver> driver_;
};

// What the kernel may do with a byte of this process: what a plain access may, without a fault.
class byte_probe {
 public:
  byte_probe() {
    if (::pipe(ends_) != 0) std::abort();
  }
  byte_probe(const byte_probe&) = delete;
  byte_probe& operator=(const byte_probe&) = delete;
  ~byte_probe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }

  [[nodiscard]] bool reads(const std::uint8_t* at) const {
    std::uint8_t taken = 0;
    return ::write(ends_[1], at, 1) == 1 && ::read(ends_[0], &taken, 1) == 1;
  }
  /// Writes `value` where it may.
  [[nodiscard]] bool writes(std::uint8_t* at, std::uint8_t value) const {
    std::uint8_t left = 0;
    if (::write(ends_[1], &value, 1) != 1) std::abort();
    if (::read(ends_[0], at, 1) == 1) return true;
    (void)!::read(ends_[0], &left, 1);  // the byte stays in the pipe when it cannot be written
    return false;
  }

 private:
  int ends_[2]{};
};

TEST_F(Host, SaysWhatItIs) {
  EXPECT_EQ(driver().name(), "host");
  EXPECT_EQ(driver().home(), vmm::host());
  EXPECT_TRUE(driver().feature_set().host_accessible);
  EXPECT_FALSE(driver().feature_set().streams);
  EXPECT_FALSE(driver().feature_set().lazy_commit);
  const auto granule = *driver().query_granularity({.where = vmm::host()});
  EXPECT_EQ(granule.minimum_bytes, page);
  EXPECT_EQ(granule.recommended_bytes, 2u << 20);
  EXPECT_EQ(code_of(driver().query_granularity({.where = vmm::device(0)})), errc::invalid_argument);
  const auto memory = *driver().query_memory(vmm::host());
  EXPECT_GT(memory.free_bytes, 0u);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
}

TEST(HostOptions, RefusesWhatCannotBe) {
  EXPECT_EQ(code_of(vmm::host_driver::open({.minimum_bytes = 1000})), errc::bad_option);
  EXPECT_EQ(code_of(vmm::host_driver::open({.minimum_bytes = page / 2})), errc::bad_option);
  EXPECT_EQ(code_of(vmm::host_driver::open({.recommended_bytes = 0})), errc::bad_option);
  EXPECT_EQ(code_of(vmm::host_driver::open({.minimum_bytes = 4u << 20})), errc::bad_option);
  EXPECT_EQ(code_of(vmm::host_driver::open({.minimum_bytes = page, .huge_pages = true})),
            errc::bad_option);
}

TEST_F(Host, ReservationsAreAlignedAndHintsExact) {
  const auto wide = *driver().reserve({.size_bytes = unit, .alignment_bytes = 1u << 30});
  EXPECT_EQ(wide.base.value % (1u << 30), 0u);
  EXPECT_EQ(wide.size_bytes, unit);
  const auto after = *driver().reserve({.size_bytes = unit, .hint = wide.end()});
  EXPECT_EQ(after.base, wide.end()) << "what was reserved for the alignment's sake is free";
  const auto below = *driver().reserve({.size_bytes = unit, .hint = {wide.base.value - unit}});
  EXPECT_EQ(below.end(), wide.base);
  ASSERT_TRUE(driver().free_reservation(after));
  ASSERT_TRUE(driver().free_reservation(below));
  ASSERT_TRUE(driver().free_reservation(wide));
}

TEST_F(Host, RefusesReservationsThatCannotBe) {
  EXPECT_EQ(code_of(driver().reserve({.size_bytes = 1ull << 60})), errc::out_of_addresses);
  EXPECT_EQ(code_of(driver().reserve({.size_bytes = ~0ull - page + 1})), errc::out_of_addresses);
}

TEST_F(Host, RefusesMapsThatLinuxWouldTake) {
  const auto range = reserve(4 * unit);
  const auto memory = create(2 * unit);
  for (const std::uint64_t offset_bytes : {std::uint64_t{0} - page, std::uint64_t{1}, 2 * unit})
    EXPECT_EQ(code_of(driver().map({range.base, unit, memory, offset_bytes})),
              errc::invalid_argument);
  ASSERT_TRUE(driver().release(memory));
  clear(range, {});
}

TEST_F(Host, RightsAreTheHosts) {
  const auto range = reserve(unit);
  const auto memory = create(unit);
  map(range.base, memory, unit);
  EXPECT_EQ(code_of(driver().get_access(range.base, vmm::device(0))), errc::invalid_argument);
  const vmm::access_grant device{vmm::device(0), access::read_write};
  EXPECT_EQ(code_of(driver().set_access(range, {&device, 1})), errc::invalid_argument);
  ASSERT_TRUE(driver().release(memory));
  clear(range, {range});
}

TEST_F(Host, EnforcesRights) {
  const byte_probe kernel;
  const auto range = reserve(4 * unit);
  const auto memory = create(3 * unit);
  map(range.base, memory, 3 * unit);
  ASSERT_TRUE(allow({range.base, unit}, access::read_write));
  ASSERT_TRUE(allow({range.base + unit, unit}, access::read));
  std::uint8_t* const bytes = pointer(range.base);
  bytes[0] = 1;
  EXPECT_EQ(bytes[unit], 0);
  EXPECT_TRUE(kernel.writes(bytes, 2));
  EXPECT_EQ(bytes[0], 2);
  EXPECT_TRUE(kernel.reads(bytes + unit));
  EXPECT_FALSE(kernel.writes(bytes + unit, 1)) << "it may be read only";
  EXPECT_EQ(bytes[unit], 0);
  EXPECT_FALSE(kernel.reads(bytes + 2 * unit)) << "no access was set";
  EXPECT_FALSE(kernel.reads(bytes + 3 * unit)) << "nothing is mapped";
  ASSERT_TRUE(allow({range.base, unit}, access::none));
  EXPECT_FALSE(kernel.reads(bytes)) << "the right was taken away";
  ASSERT_TRUE(driver().release(memory));
  clear(range, {{range.base, 3 * unit}});
}

TEST_F(Host, RefusesCopiesItMayNotMake) {
  const auto range = reserve(unit);
  const auto memory = create(unit);
  map_usable(range.base, memory, unit);
  std::vector<std::byte> bytes(16);
  for (const address foreign : {address{8}, address{~0ull - 8}})
    EXPECT_EQ(code_of(driver().read(bytes, foreign)), errc::invalid_argument);
  EXPECT_EQ(code_of(driver().copy({range.base, range.base, 1, vmm::stream_handle{1}})),
            errc::invalid_argument);
  EXPECT_EQ(code_of(driver().fill({{range.base, 1}, 0, vmm::stream_handle{1}})),
            errc::invalid_argument);
  ASSERT_TRUE(driver().release(memory));
  clear(range, {range});
}

TEST_F(Host, DriversDoNotKnowEachOthersObjects) {
  auto other = *vmm::host_driver::open();
  const auto range = reserve(unit);
  EXPECT_EQ(code_of(other.free_reservation(range)), errc::invalid_argument);
  const auto memory = create(unit);
  EXPECT_EQ(code_of(other.map({range.base, unit, memory, 0})), errc::invalid_argument);
  ASSERT_TRUE(driver().release(memory));
  clear(range, {});
}

// ---- sharing ----

physical_handle create_shareable(vmm::host_driver& driver, std::uint64_t size_bytes) {
  return driver
      .create(
          {.size_bytes = size_bytes, .where = vmm::host(), .shareable = vmm::share_kind::posix_fd})
      .value();
}

TEST_F(Host, SharedMemoryCannotBeCutShort) {
  const auto memory = create_shareable(driver(), unit);
  const auto shared = *driver().export_handle(memory, vmm::share_kind::posix_fd);
  const int descriptor = static_cast<int>(shared.descriptor);
  EXPECT_NE(::ftruncate(descriptor, 0), 0);
  EXPECT_NE(::fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0);
  ::close(descriptor);
  ASSERT_TRUE(driver().release(memory));
}

TEST_F(Host, RefusesDescriptorsItCannotTrust) {
  const auto import = [&](int descriptor, std::uint64_t size_bytes) {
    vmm::shared_handle shared;
    shared.kind = vmm::share_kind::posix_fd;
    shared.descriptor = descriptor;
    shared.size_bytes = size_bytes;
    return code_of(driver().import_handle(shared));
  };
  EXPECT_EQ(import(-1, unit), errc::invalid_argument);
  EXPECT_EQ(import(1 << 20, unit), errc::invalid_argument) << "not open";
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(import(null, unit), errc::invalid_argument);
  ::close(null);
  const int unsealed = ::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(unsealed, unit), 0);
  EXPECT_EQ(import(unsealed, unit), errc::invalid_argument)
      << "its owner could cut it short under our feet";
  ASSERT_EQ(::fcntl(unsealed, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(import(unsealed, 2 * unit), errc::invalid_argument) << "the size is not true";
  EXPECT_EQ(import(unsealed, unit), errc::none);
  EXPECT_EQ(import(unsealed, 0), errc::none) << "not every driver reports the size";
  ::close(unsealed);
  EXPECT_EQ(driver().resource_counts().memory_bytes, 2 * unit);
  EXPECT_TRUE(driver().release(physical_handle{2}));
  EXPECT_TRUE(driver().release(physical_handle{1}));
}

// ---- what is left behind ----

std::size_t mapped_memory_files() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("/memfd:vmm") != std::string::npos ? 1 : 0;
  return count;
}

// Bytes that the system holds for the driver's memory files, as the kernel counts them.
std::uint64_t committed_bytes() {
  std::uint64_t total = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const auto target = std::filesystem::read_symlink(each.path(), ignored).string();
    struct ::stat facts{};
    if (target.find("/memfd:vmm") == std::string::npos || ::stat(each.path().c_str(), &facts) != 0)
      continue;
    total += static_cast<std::uint64_t>(facts.st_blocks) * 512;
  }
  return total;
}

TEST(HostLeaks, DestructionGivesEverythingBack) {
  const std::ptrdiff_t descriptors = open_descriptors();
  ASSERT_EQ(mapped_memory_files(), 0u);
  {
    auto driver = *vmm::host_driver::open({.minimum_bytes = page});
    const auto range = driver.reserve({.size_bytes = 4 * unit}).value();
    const auto plain = driver.create({.size_bytes = unit, .where = vmm::host()}).value();
    ASSERT_TRUE(driver.map({range.base, unit, plain, 0}));
    ASSERT_TRUE(driver.map({range.base + unit, unit, create_shareable(driver, unit), 0}));
    EXPECT_EQ(mapped_memory_files(), 2u);
    EXPECT_EQ(open_descriptors(), descriptors + 2);
    auto moved = std::move(driver);
    EXPECT_EQ(moved.resource_counts().mappings, 2u);
  }
  EXPECT_EQ(mapped_memory_files(), 0u);
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(HostLeaks, MemoryIsCommittedAtCreateAndGivenBackWithTheLastReference) {
  auto driver = *vmm::host_driver::open({.minimum_bytes = page});
  ASSERT_EQ(committed_bytes(), 0u);
  const auto first = driver.create({.size_bytes = 3 * unit, .where = vmm::host()}).value();
  const auto second = driver.create({.size_bytes = unit, .where = vmm::host()}).value();
  EXPECT_EQ(committed_bytes(), 4 * unit);
  const auto range = driver.reserve({.size_bytes = unit}).value();
  ASSERT_TRUE(driver.map({range.base, unit, second, 0}));
  ASSERT_TRUE(driver.release(first));
  EXPECT_EQ(committed_bytes(), unit);
  ASSERT_TRUE(driver.release(second));
  EXPECT_EQ(committed_bytes(), unit) << "the mapping keeps it";
  ASSERT_TRUE(driver.unmap(range));
  EXPECT_EQ(committed_bytes(), 0u);
}

TEST(HostLeaks, LazyMemoryComesWithTheFirstTouch) {
  auto driver = *vmm::host_driver::open({.commit = vmm::commit_mode::lazy, .minimum_bytes = page});
  EXPECT_TRUE(driver.feature_set().lazy_commit);
  const auto memory = driver.create({.size_bytes = 1ull << 40, .where = vmm::host()});
  ASSERT_TRUE(memory) << "more than this machine has";
  const auto range = driver.reserve({.size_bytes = unit}).value();
  ASSERT_TRUE(driver.map({range.base, unit, *memory, 0}));
  const vmm::access_grant grant{vmm::host(), access::read_write};
  ASSERT_TRUE(driver.set_access(range, {&grant, 1}));
  EXPECT_EQ(committed_bytes(), 0u);
  pointer(range.base)[0] = 1;
  EXPECT_EQ(committed_bytes(), page);
}

// ---- threads ----

void churn(vmm::host_driver& driver, std::uint8_t seed, int rounds, bool& right) {
  const auto range = driver.reserve({.size_bytes = 4 * unit}).value();
  const vmm::access_grant grant{vmm::host(), access::read_write};
  right = true;
  for (int round = 0; round < rounds; ++round) {
    const auto memory = driver.create({.size_bytes = unit, .where = vmm::host()}).value();
    const address at = range.base + static_cast<std::uint64_t>(round % 4) * unit;
    const auto value = static_cast<std::uint8_t>(seed + round);
    right = right && driver.map({at, unit, memory, 0}) &&
            driver.set_access({at, unit}, {&grant, 1}) && driver.fill({{at, unit}, value}) &&
            pointer(at)[unit - 1] == value && driver.release(memory) && driver.unmap({at, unit});
  }
  right = right && driver.free_reservation(range);
}

TEST_F(Host, ThreadsDoNotDisturbEachOther) {
  constexpr std::size_t count = 4;
  std::array<bool, count> right{};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back(
        [&, i] { churn(driver(), static_cast<std::uint8_t>(i * 50), 200, right[i]); });
  }
  for (auto& each : threads) each.join();
  for (const bool each : right) EXPECT_TRUE(each);
}

// Generic code that is written against stream_backend compiles, and reads in features that there is
// nothing to call.
TEST(HostStreams, AreNotSupportedAndSaySo) {
  auto opened = vmm::host_driver::open();
  auto& driver = *opened;
  EXPECT_FALSE(driver.feature_set().streams);
  const vmm::stream_handle stream = vmm::stream_handle::default_stream;
  const vmm::event_handle event{1};
  const auto expect_refused = [](const auto& answer, vmm::call where) {
    ASSERT_FALSE(answer) << vmm::name_of(where);
    EXPECT_EQ(answer.error().code, vmm::errc::not_supported) << vmm::name_of(where);
    EXPECT_EQ(answer.error().where, where);
  };
  using enum vmm::call;
  expect_refused(driver.create_stream(), create_stream);
  expect_refused(driver.destroy_stream(stream), destroy_stream);
  expect_refused(driver.synchronize_stream(stream), synchronize_stream);
  expect_refused(driver.create_event(), create_event);
  expect_refused(driver.destroy_event(event), destroy_event);
  expect_refused(driver.record_event(event, stream), record_event);
  expect_refused(driver.query_event(event), query_event);
  expect_refused(driver.wait_event(stream, event), wait_event);
  expect_refused(driver.synchronize_event(event), synchronize_event);
}

}  // namespace
