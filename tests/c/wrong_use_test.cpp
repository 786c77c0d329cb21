// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: no argument that a caller of the C interface can pass ends the process or is taken for
// another: every wrong one is refused with its code, and changes nothing.
// Method: tables of every call with every handle that is none; of every output that is null; of
// every struct with every size that cannot be; then each call's own wrong values, in options too.
// The fixture validates pool and manager after each test, and closes all.
#include <cmath>
#include <regex>

#include "bench.hpp"
#include "calls.hpp"
#include "vmm.h"

namespace {

using c_test::arguments, c_test::Bench, c_test::call_with_handle, c_test::given,
    c_test::manager_defaults, c_test::own_driver, c_test::own_pool, c_test::pool_defaults,
    c_test::says, c_test::sized, c_test::takes, c_test::queried;

struct WrongUse : Bench {
  [[nodiscard]] void* handle_of(takes kind) const {
    switch (kind) {
      case takes::driver: return driver;
      case takes::pool: return pool;
      case takes::manager: return manager;
    }
    return nullptr;
  }
};

constexpr vmm_status invalid = VMM_ERROR_INVALID_ARGUMENT;

// The simulated driver gives no address below 64 GiB; an object's own may be one of those it gives.
void* const address_of_none = reinterpret_cast<void*>(std::uintptr_t{4096});

// ---- handles -----------------------------------------------------------------------------------

TEST_F(WrongUse, TheTablesHaveEveryCallThatTakesAHandle) {
  std::ifstream file(VMM_HEADER);
  const std::string header((std::istreambuf_iterator<char>(file)), {});
  const std::regex declared(R"(\b(vmm_\w+)\(vmm_(driver|pool|manager)\* )");
  std::set<std::string> in_header;
  for (auto at = std::sregex_iterator(header.begin(), header.end(), declared);
       at != std::sregex_iterator(); ++at) {
    in_header.insert((*at)[1]);
  }
  std::set<std::string> in_tables;
  c_test::for_each_call([&](const call_with_handle& each) { in_tables.insert(each.name); });
  for (const call_with_handle& each : c_test::ending_calls) in_tables.insert(each.name);
  EXPECT_EQ(in_header, in_tables);
  EXPECT_GE(in_header.size(), 40u);
}

TEST_F(WrongUse, HandlesThatAreNone) {
  int on_the_stack = 0;
  const std::vector<void*> none{
      nullptr,
      &on_the_stack,
      reinterpret_cast<void*>(std::uintptr_t{1}),
      reinterpret_cast<void*>(~std::uintptr_t{0}),
      reinterpret_cast<void*>(std::uintptr_t{0xC7} << 56),
      reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(pool) + 1),
      reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(pool) + 0x10000),
      reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(pool) ^ (std::uintptr_t{7} << 48))};
  for (void* const handle : none) {
    c_test::for_each_call([&](const call_with_handle& each) {
      EXPECT_EQ(each.make(handle), VMM_ERROR_INVALID_HANDLE) << each.name << " of " << handle;
    });
    for (const call_with_handle& each : c_test::ending_calls) {
      EXPECT_EQ(each.make(handle), handle == nullptr ? VMM_SUCCESS : VMM_ERROR_INVALID_HANDLE)
          << each.name << " of " << handle;
    }
  }
}

TEST_F(WrongUse, HandlesOfAnotherKind) {
  const auto refused = [&](const call_with_handle& each) {
    for (const takes kind : {takes::driver, takes::pool, takes::manager}) {
      if (kind == each.kind) continue;
      EXPECT_EQ(each.make(handle_of(kind)), VMM_ERROR_INVALID_HANDLE) << each.name;
    }
  };
  c_test::for_each_call(refused);
  for (const call_with_handle& each : c_test::ending_calls) refused(each);
}

TEST_F(WrongUse, HandlesThatWereDestroyed) {
  vmm_driver* const old_driver = driver;
  vmm_pool* const old_pool = pool;
  vmm_manager* const old_manager = manager;
  TearDown();
  SetUp();  // the same slots, other handles
  EXPECT_NE(pool, old_pool);
  const auto refused = [&](const call_with_handle& each) {
    void* handle = old_driver;
    if (each.kind == takes::pool) handle = old_pool;
    if (each.kind == takes::manager) handle = old_manager;
    EXPECT_EQ(each.make(handle), VMM_ERROR_INVALID_HANDLE) << each.name;
  };
  c_test::for_each_call(refused);
  for (const call_with_handle& each : c_test::ending_calls) refused(each);
}

TEST_F(WrongUse, ADriverThatIsUsedStays) {
  EXPECT_FAILS(vmm_driver_close(driver), VMM_ERROR_IN_USE);
  EXPECT_GOOD(vmm_manager_destroy(manager));
  manager = nullptr;
  EXPECT_FAILS(vmm_driver_close(driver), VMM_ERROR_IN_USE);
  EXPECT_STREQ(queried(vmm_driver_query, driver).name, "fake-cuda") << "it works on";
}

// ---- outputs and structs -----------------------------------------------------------------------

TEST_F(WrongUse, OutputsThatAreNull) {
  arguments& with = given();
  void* const block = take(4096);
  EXPECT_FAILS(vmm_list_drivers(nullptr, 0, nullptr), invalid);
  EXPECT_FAILS(vmm_list_drivers(nullptr, 1, &with.number), invalid);
  EXPECT_FAILS(vmm_driver_open("fake", -1, nullptr), invalid);
  EXPECT_FAILS(vmm_driver_query(driver, nullptr), invalid);
  EXPECT_FAILS(vmm_driver_create_stream(driver, nullptr), invalid);
  EXPECT_FAILS(vmm_driver_write(driver, nullptr, &with, 1), invalid);
  EXPECT_FAILS(vmm_driver_write(driver, block, nullptr, 1), invalid);
  EXPECT_FAILS(vmm_driver_read(driver, nullptr, block, 1), invalid);
  EXPECT_FAILS(vmm_driver_read(driver, &with, nullptr, 1), invalid);
  EXPECT_FAILS(vmm_driver_fill(driver, nullptr, 0, 1, nullptr), invalid);
  EXPECT_GOOD(vmm_driver_memory(driver, nullptr, nullptr));
  EXPECT_FAILS(vmm_pool_create(driver, nullptr, nullptr), invalid);
  EXPECT_FAILS(vmm_pool_options_init(nullptr, sizeof(vmm_pool_options)), invalid);
  EXPECT_FAILS(vmm_pool_allocate(pool, 1, nullptr, nullptr), invalid);
  EXPECT_FAILS(vmm_pool_allocate_aligned(pool, 1, 1, nullptr, nullptr), invalid);
  EXPECT_FAILS(vmm_pool_capture_number(pool, nullptr, nullptr), invalid);
  EXPECT_FAILS(vmm_pool_get_statistics(pool, nullptr), invalid);
  EXPECT_FAILS(vmm_pool_regions(pool, nullptr, 0, nullptr), invalid);
  EXPECT_FAILS(vmm_pool_regions(pool, nullptr, 1, &with.number), invalid);
  EXPECT_FAILS(vmm_pool_dump(pool, nullptr, 0, nullptr), invalid);
  EXPECT_FAILS(vmm_pool_dump(pool, nullptr, 1, &with.number), invalid);
  EXPECT_FAILS(vmm_pool_last_shortage(pool, nullptr), invalid);
  EXPECT_FAILS(vmm_pool_subscribe(pool, nullptr, nullptr, &with.number), invalid);
  EXPECT_FAILS(vmm_pool_subscribe(pool, &c_test::ignore, nullptr, nullptr), invalid);
  EXPECT_FAILS(vmm_pool_remap_epoch(pool, nullptr), invalid);
  EXPECT_GOOD(vmm_pool_trim(pool, 0, nullptr));
  EXPECT_FAILS(vmm_manager_create(driver, nullptr, nullptr), invalid);
  EXPECT_FAILS(vmm_manager_options_init(nullptr, sizeof(vmm_manager_options)), invalid);
  EXPECT_FAILS(vmm_manager_allocate(manager, nullptr, &with.at), invalid);
  EXPECT_FAILS(vmm_manager_allocate(manager, &with.request, nullptr), invalid);
  EXPECT_FAILS(vmm_manager_resize(manager, nullptr, &with.at), invalid);
  EXPECT_FAILS(vmm_manager_resize(manager, &with.resize, nullptr), invalid);
  EXPECT_FAILS(vmm_manager_copy(manager, nullptr), invalid);
  EXPECT_FAILS(vmm_manager_find(manager, block, nullptr), invalid);
  EXPECT_FAILS(vmm_manager_get_statistics(manager, nullptr), invalid);
  EXPECT_FAILS(vmm_manager_extents(manager, nullptr, 0, nullptr), invalid);
  EXPECT_FAILS(vmm_manager_extents(manager, nullptr, 1, &with.number), invalid);
  EXPECT_GOOD(vmm_manager_trim(manager, 0, nullptr));
  EXPECT_EQ(vmm_last_error(nullptr), invalid);
  EXPECT_GOOD(vmm_pool_free(pool, block, nullptr));
}

// A struct with a member more than any version has: what follows the known ones.
template <class Struct>
struct later {
  Struct known;
  std::uint64_t added;
};

// What a struct has gained since it first was: a caller of then has less.
template <class Struct>
inline constexpr std::uint64_t gained_bytes = 0;
template <>
inline constexpr std::uint64_t gained_bytes<vmm_pool_options> = 16;
template <>
inline constexpr std::uint64_t gained_bytes<vmm_manager_options> = 8;
template <>
inline constexpr std::uint64_t gained_bytes<vmm_pool_statistics> = 40;
template <>
inline constexpr std::uint64_t gained_bytes<vmm_manager_statistics> = 16;

// A refused vmm_last_error() records nothing.
template <class Struct>
inline constexpr bool is_recorded = true;
template <>
inline constexpr bool is_recorded<vmm_error_info> = false;

// `call` gets a Struct with a size set.
template <class Struct, class Call>
void refuses_sizes(Struct good, Call&& call) {
  constexpr std::uint64_t first = sizeof(Struct) - gained_bytes<Struct>;
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{8}, first - 8, first - 1, first + 4, sizeof(Struct) - 1,
        sizeof(Struct) + 1, std::uint64_t{4097}, ~std::uint64_t{0}}) {
    Struct wrong = good;
    wrong.struct_size = size;
    EXPECT_EQ(call(&wrong), VMM_ERROR_INVALID_ARGUMENT) << "a struct of " << size << " bytes";
    if (is_recorded<Struct>) {
      EXPECT_TRUE(says("struct_size of vmm_"));
      EXPECT_TRUE(says(" is " + std::to_string(size) + ", and multiples of 8 from " +
                       std::to_string(first)));
      EXPECT_TRUE(says("to 4096 are accepted, of which this version's has " +
                       std::to_string(sizeof(Struct)) + ": "));
    }
  }
}

// Of one that is written: members of a later version become 0.
template <class Struct, class Call>
void writes_later(Call&& call) {
  refuses_sizes(sized<Struct>(), call);
  later<Struct> wide{};
  wide.known.struct_size = sizeof(wide);
  wide.added = 4711;
  EXPECT_EQ(call(&wide.known), VMM_SUCCESS);
  EXPECT_EQ(wide.added, 0u);
  EXPECT_EQ(wide.known.struct_size, sizeof(wide)) << "the caller's own";
  constexpr std::size_t first = sizeof(Struct) - gained_bytes<Struct>;
  Struct narrow;
  std::memset(&narrow, 0x5a, sizeof(narrow));
  narrow.struct_size = first;
  EXPECT_EQ(call(&narrow), VMM_SUCCESS) << "a caller of the first version";
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&narrow);
  for (std::size_t at = first; at < sizeof(Struct); ++at) EXPECT_EQ(bytes[at], 0x5a) << at;
}

// Of one that is read: a later member is taken where it is 0.
template <class Struct, class Call>
void reads_later(Struct good, Call&& call) {
  refuses_sizes(good, call);
  later<Struct> wide{good, 0};
  wide.known.struct_size = sizeof(wide);
  EXPECT_EQ(call(&wide.known), VMM_SUCCESS) << vmm_last_error_text();
  wide.added = 1;
  EXPECT_EQ(call(&wide.known), VMM_ERROR_NOT_SUPPORTED);
  constexpr std::size_t first = sizeof(Struct) - gained_bytes<Struct>;
  Struct narrow = good;
  narrow.struct_size = first;
  std::memset(reinterpret_cast<unsigned char*>(&narrow) + first, 0x5a, sizeof(narrow) - first);
  EXPECT_EQ(call(&narrow), VMM_SUCCESS) << "a caller of the first version";
}

TEST_F(WrongUse, StructsThatAreWritten) {
  void* const block = build(4096);
  writes_later<vmm_error_info>([](vmm_error_info* to) { return vmm_last_error(to); });
  writes_later<vmm_driver_info>([&](vmm_driver_info* to) { return vmm_driver_query(driver, to); });
  writes_later<vmm_trim_report>([&](vmm_trim_report* to) { return vmm_pool_trim(pool, 0, to); });
  writes_later<vmm_preallocate_report>(
      [&](vmm_preallocate_report* to) { return vmm_pool_preallocate(pool, 4096, nullptr, to); });
  writes_later<vmm_trim_report>(
      [&](vmm_trim_report* to) { return vmm_manager_trim(manager, 0, to); });
  writes_later<vmm_pool_statistics>(
      [&](vmm_pool_statistics* to) { return vmm_pool_get_statistics(pool, to); });
  writes_later<vmm_shortage>([&](vmm_shortage* to) { return vmm_pool_last_shortage(pool, to); });
  writes_later<vmm_block_info>(
      [&](vmm_block_info* to) { return vmm_manager_find(manager, block, to); });
  writes_later<vmm_manager_statistics>(
      [&](vmm_manager_statistics* to) { return vmm_manager_get_statistics(manager, to); });
  EXPECT_GOOD(vmm_manager_free(manager, block));
}

TEST_F(WrongUse, StructsThatAreRead) {
  reads_later(pool_defaults(), [&](vmm_pool_options* from) {
    vmm_pool* made = nullptr;
    const vmm_status answered = vmm_pool_create(driver, from, &made);
    EXPECT_GOOD(vmm_pool_destroy(made));
    return answered;
  });
  reads_later(manager_defaults(), [&](vmm_manager_options* from) {
    vmm_manager* made = nullptr;
    const vmm_status answered = vmm_manager_create(driver, from, &made);
    EXPECT_GOOD(vmm_manager_destroy(made));
    return answered;
  });
  auto request = sized<vmm_block_request>(4096);
  reads_later(request, [&](vmm_block_request* from) {
    void* at = nullptr;
    const vmm_status answered = vmm_manager_allocate(manager, from, &at);
    EXPECT_EQ(at == nullptr, answered != VMM_SUCCESS);
    EXPECT_GOOD(vmm_manager_free(manager, at));
    return answered;
  });
  void* block = build(4096);
  auto resize = sized<vmm_resize_request>(4096);
  resize.at = block;
  reads_later(resize,
              [&](vmm_resize_request* from) { return vmm_manager_resize(manager, from, &block); });
  auto copy = sized<vmm_copy_request>();
  copy.target = block;
  copy.source = block;
  reads_later(copy, [&](vmm_copy_request* from) { return vmm_manager_copy(manager, from); });
  EXPECT_GOOD(vmm_manager_free(manager, block));
}

TEST_F(WrongUse, AnInitialisedStructOfALaterVersion) {
  later<vmm_pool_options> wide{{}, 4711};
  EXPECT_GOOD(vmm_pool_options_init(&wide.known, sizeof(wide)));
  EXPECT_EQ(wide.added, 0u);
  EXPECT_EQ(wide.known.struct_size, sizeof(wide));
}

// The status may be overlooked: the next call refuses the struct.
template <class Options>
void refuses_to_begin(vmm_status (*init)(Options*, std::uint64_t), const char* name) {
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{8}, std::uint64_t{1} << 20}) {
    Options options;
    std::memset(&options, 0x5a, sizeof(options));
    options.struct_size = sizeof(options);
    EXPECT_EQ(init(&options, size), VMM_ERROR_INVALID_ARGUMENT) << name;
    EXPECT_TRUE(says(std::string("struct_size of ") + name + " is " + std::to_string(size)));
    EXPECT_EQ(options.struct_size, 0u);
    EXPECT_EQ(reinterpret_cast<const unsigned char*>(&options)[sizeof(options) - 1], 0x5a);
  }
}

TEST_F(WrongUse, StructsOfImpossibleSizesAreNotInitialised) {
  refuses_to_begin(&vmm_pool_options_init, "vmm_pool_options");
  refuses_to_begin(&vmm_manager_options_init, "vmm_manager_options");
  refuses_to_begin(&vmm_growable_options_init, "vmm_growable_options");
  refuses_to_begin(&vmm_suspender_options_init, "vmm_suspender_options");
  refuses_to_begin(&vmm_share_options_init, "vmm_share_options");
  refuses_to_begin(&vmm_history_options_init, "vmm_history_options");
  refuses_to_begin(&vmm_allocator_options_init, "vmm_allocator_options");
  vmm_pool_options options;
  std::memset(&options, 0x5a, sizeof(options));
  EXPECT_FAILS(vmm_pool_options_init(&options, 0), invalid);
  vmm_pool* made = nullptr;
  EXPECT_FAILS(vmm_pool_create(driver, &options, &made), invalid);
  EXPECT_TRUE(says("struct_size of vmm_pool_options is 0"));
}

// ---- values ------------------------------------------------------------------------------------

TEST_F(WrongUse, DriversThatAreNone) {
  vmm_driver* made = driver;
  const std::string endless(100'000, 'x');
  for (const char* name : {"nvidia", "cuda:x", "cuda:-1", "fake:", "fake:cuda:1", "host:0",
                           endless.c_str(), "cuda:99999999999"}) {
    EXPECT_FAILS(vmm_driver_open(name, VMM_ANY_DEVICE, &made), VMM_ERROR_BAD_OPTION);
    EXPECT_EQ(made, nullptr);
  }
  const auto refuses = [&](const char* name, std::int32_t device, const char* because) {
    EXPECT_FAILS(vmm_driver_open(name, device, &made), VMM_ERROR_BAD_OPTION);
    EXPECT_TRUE(says(because));
  };
  refuses("fake", 1, "this driver has one device");
  refuses("host", 1, "this driver has one device");
  for (const std::int32_t device : {0, 1}) {
    refuses("cuda:0", device, "the name has a device's number");
    refuses("level_zero:1", device, "the name has a device's number");
    refuses(nullptr, device, "without a name the library chooses");
  }
  refuses("host", -2, "device is a number from 0 on, or VMM_ANY_DEVICE");
  refuses("nvidia", 1, "cuda");  // the names that there are
  EXPECT_GOOD(vmm_driver_open("host", 0, &made));
  EXPECT_GOOD(vmm_driver_close(made));
}

TEST_F(WrongUse, SizesThatCannotBe) {
  void* at = driver;
  EXPECT_FAILS(vmm_pool_allocate(pool, 0, nullptr, &at), invalid);
  EXPECT_EQ(at, nullptr);
  for (const std::uint64_t size : {~std::uint64_t{0}, std::uint64_t{1} << 63,
                                   std::uint64_t{1} << 60, std::uint64_t{1} << 48}) {
    EXPECT_FAILS(vmm_pool_allocate(pool, size, nullptr, &at), VMM_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(at, nullptr);
  }
  EXPECT_FAILS(vmm_pool_allocate(pool, std::uint64_t{1} << 38, nullptr, &at),
               VMM_ERROR_OUT_OF_MEMORY);
  for (const std::uint64_t alignment : {0u, 3u, 513u}) {
    EXPECT_FAILS(vmm_pool_allocate_aligned(pool, 1, alignment, nullptr, &at), invalid);
  }
  EXPECT_FAILS(vmm_pool_allocate_aligned(pool, 1, 4u << 20, nullptr, &at), VMM_ERROR_NOT_SUPPORTED);
  EXPECT_FAILS(vmm_pool_allocate_aligned(pool, 1, std::uint64_t{1} << 63, nullptr, &at),
               VMM_ERROR_NOT_SUPPORTED);
  auto request = sized<vmm_block_request>();
  EXPECT_FAILS(vmm_manager_allocate(manager, &request, &at), invalid);
  request.size_bytes = ~std::uint64_t{0};
  EXPECT_FAILS(vmm_manager_allocate(manager, &request, &at), invalid);
  request.size_bytes = 4096;
  request.growth_bytes = ~std::uint64_t{0};
  EXPECT_FAILS(vmm_manager_allocate(manager, &request, &at), invalid);
  request.growth_bytes = 0;
  for (const std::uint64_t alignment : {std::uint64_t{3}, std::uint64_t{1} << 63}) {
    request.alignment_bytes = alignment;
    EXPECT_FAILS(vmm_manager_allocate(manager, &request, &at), invalid);
  }
}

TEST_F(WrongUse, AddressesOfAPool) {
  void* const block = take(4096);
  auto* const inside = static_cast<unsigned char*>(block) + 512;
  EXPECT_FAILS(vmm_pool_free(pool, address_of_none, nullptr), VMM_ERROR_UNKNOWN_ADDRESS);
  EXPECT_FAILS(vmm_pool_free(pool, inside, nullptr), invalid);
  EXPECT_FAILS(vmm_pool_pin(pool, inside), invalid);
  EXPECT_FAILS(vmm_pool_pin(pool, nullptr), VMM_ERROR_UNKNOWN_ADDRESS);
  EXPECT_FAILS(vmm_pool_unpin(pool, block), invalid);
  EXPECT_GOOD(vmm_pool_free(pool, nullptr, nullptr));
  EXPECT_GOOD(vmm_pool_free_sized(pool, block, 4096, nullptr));
  EXPECT_FAILS(vmm_pool_free(pool, block, nullptr), VMM_ERROR_NOT_ALLOCATED);
  EXPECT_FAILS(vmm_pool_free_unordered(pool, block), VMM_ERROR_NOT_ALLOCATED);
  EXPECT_FAILS(vmm_pool_capture_end(pool), invalid);
  EXPECT_FAILS(vmm_pool_unsubscribe(pool, 0), invalid);
  EXPECT_FAILS(vmm_pool_unsubscribe(pool, ~std::uint64_t{0}), invalid);
}

TEST_F(WrongUse, AddressesOfAManager) {
  void* block = build(4 * MiB);
  auto* const inside = static_cast<unsigned char*>(block) + 512;
  auto info = sized<vmm_block_info>();
  EXPECT_FAILS(vmm_manager_free(manager, address_of_none), VMM_ERROR_UNKNOWN_ADDRESS);
  EXPECT_FAILS(vmm_manager_free(manager, inside), invalid);
  EXPECT_FAILS(vmm_manager_synchronize(manager, inside), invalid);
  EXPECT_FAILS(vmm_manager_synchronize(manager, nullptr), VMM_ERROR_UNKNOWN_ADDRESS);
  EXPECT_FAILS(vmm_manager_find(manager, nullptr, &info), VMM_ERROR_UNKNOWN_ADDRESS);
  EXPECT_GOOD(vmm_manager_find(manager, inside, &info));
  EXPECT_EQ(info.base, block);
  auto resize = sized<vmm_resize_request>();
  resize.at = block;
  void* moved = block;
  EXPECT_FAILS(vmm_manager_resize(manager, &resize, &moved), invalid);
  resize.size_bytes = ~std::uint64_t{0};
  EXPECT_FAILS(vmm_manager_resize(manager, &resize, &moved), invalid);
  resize.size_bytes = 1;
  resize.names_stream = 2;
  EXPECT_FAILS(vmm_manager_resize(manager, &resize, &moved), invalid);
  EXPECT_EQ(moved, block);
  EXPECT_GOOD(vmm_manager_free(manager, nullptr));
  EXPECT_GOOD(vmm_manager_free_on(manager, nullptr, nullptr));
  EXPECT_GOOD(vmm_manager_free_idle(manager, nullptr));
  EXPECT_GOOD(vmm_manager_free(manager, block));
  EXPECT_FAILS(vmm_manager_free(manager, block), VMM_ERROR_NOT_ALLOCATED);
}

TEST_F(WrongUse, Copies) {
  void* const block = build(2 * MiB);
  auto copy = sized<vmm_copy_request>(~std::uint64_t{0});
  copy.target = block;
  copy.source = block;
  EXPECT_FAILS(vmm_manager_copy(manager, &copy), invalid);
  copy.size_bytes = 3 * MiB;
  for (const std::uint32_t mode : {VMM_COPY_BYTES, VMM_COPY_ALIAS, VMM_COPY_MOVE}) {
    copy.mode = mode;
    EXPECT_FAILS(vmm_manager_copy(manager, &copy), VMM_ERROR_NOT_ALLOCATED);
  }
  copy.mode = 3;
  EXPECT_FAILS(vmm_manager_copy(manager, &copy), invalid);
  copy.mode = VMM_COPY_BYTES;
  copy.reserved = 1;
  EXPECT_FAILS(vmm_manager_copy(manager, &copy), invalid);
  EXPECT_FAILS(vmm_driver_fill(driver, block, 0, ~std::uint64_t{0}, nullptr), invalid);
  EXPECT_FAILS(vmm_driver_write(driver, block, &copy, ~std::uint64_t{0}), invalid);
  EXPECT_FAILS(vmm_driver_read(driver, &copy, block, ~std::uint64_t{0}), invalid);
  EXPECT_GOOD(vmm_manager_free(manager, block));
}

TEST_F(WrongUse, StreamsThatAreNone) {
  auto* const never = reinterpret_cast<vmm_stream>(std::uintptr_t{4711});
  EXPECT_FAILS(vmm_driver_destroy_stream(driver, nullptr), invalid);
  EXPECT_FAILS(vmm_driver_destroy_stream(driver, never), invalid);
  EXPECT_FAILS(vmm_driver_synchronize_stream(driver, never), invalid);
  const own_driver host("host");
  EXPECT_GOOD(vmm_driver_synchronize_stream(host, nullptr));
  EXPECT_FAILS(vmm_driver_synchronize_stream(host, never), VMM_ERROR_NOT_SUPPORTED);
  void* const block = build(4096);
  EXPECT_FAILS(vmm_manager_free_on(manager, block, never), invalid);
  EXPECT_GOOD(vmm_manager_free(manager, block));
  EXPECT_GOOD(vmm_pool_forget_stream(pool, never));
  EXPECT_FAILS(vmm_pool_capture_number(pool, nullptr, &given().number), invalid);
  EXPECT_GOOD(vmm_pool_capture_release(pool, 4711, nullptr));
}

// ---- options -----------------------------------------------------------------------------------

TEST_F(WrongUse, PoolOptionsOutOfRange) {
  const auto refuses = [&](auto&& change, vmm_status code = VMM_ERROR_BAD_OPTION) {
    vmm_pool_options options = pool_defaults();
    change(options);
    vmm_pool* made = pool;
    EXPECT_FAILS(vmm_pool_create(driver, &options, &made), code);
    EXPECT_EQ(made, nullptr);
  };
  refuses([](vmm_pool_options& o) { o.policy = "best"; });
  refuses([](vmm_pool_options& o) { o.policy = ""; });
  refuses([](vmm_pool_options& o) { o.capture = 3; });
  EXPECT_TRUE(
      says("capture is one of VMM_CAPTURE_REFUSE, VMM_CAPTURE_PRIVATE, "
           "VMM_CAPTURE_UNCHECKED; not 3"));
  for (const std::uint32_t arenas : {3U, ~0U}) {
    refuses([=](vmm_pool_options& o) { o.stream_arenas = arenas; });
    EXPECT_TRUE(
        says("the rule for arenas is one of VMM_ARENAS_WHEN_CONTENDED, VMM_ARENAS_ALWAYS, "
             "VMM_ARENAS_NEVER; not " +
             std::to_string(arenas)));
  }
  refuses([](vmm_pool_options& o) { o.reserved = 1; });
  refuses([](vmm_pool_options& o) { o.reservation_bytes = 0; });
  refuses([](vmm_pool_options& o) { o.reservation_bytes = 4096; });
  for (const std::uint64_t page : {std::uint64_t{1}, 3 * MiB}) {  // rounded up, as a variable's
    vmm_pool_options options = pool_defaults();
    options.page_bytes = page;
    const own_pool made(driver, options);
  }
  refuses([](vmm_pool_options& o) { o.page_bytes = std::uint64_t{1} << 39; });
  refuses([](vmm_pool_options& o) { o.page_count = ~std::uint64_t{0}; });
  refuses([](vmm_pool_options& o) {
    o.use_place = 1;
    o.place = 3;
  });
  refuses([](vmm_pool_options& o) {
    o.use_place = 1;
    o.place_ordinal = -1;
  });
  refuses([](vmm_pool_options& o) {
    o.use_place = 1;
    o.place = VMM_PLACE_HOST;
    o.place_ordinal = 1;
  });
  refuses([](vmm_pool_options& o) { o.budget_bytes = MiB; });
  refuses(
      [](vmm_pool_options& o) {
        o.budget_bytes = 4 * MiB;
        o.page_count = 3;
      },
      VMM_ERROR_OVER_BUDGET);
}

TEST_F(WrongUse, ManagerOptionsOutOfRange) {
  const auto refuses = [&](auto&& change) {
    vmm_manager_options options = manager_defaults();
    change(options);
    vmm_manager* made = manager;
    EXPECT_FAILS(vmm_manager_create(driver, &options, &made), VMM_ERROR_BAD_OPTION);
    EXPECT_EQ(made, nullptr);
  };
  refuses([](vmm_manager_options& o) { o.policy = "best"; });
  refuses([](vmm_manager_options& o) { o.fragment_ratio = 1.5; });
  refuses([](vmm_manager_options& o) { o.fragment_ratio = -0.5; });
  refuses([](vmm_manager_options& o) { o.fragment_ratio = std::nan(""); });
  refuses([](vmm_manager_options& o) { o.fragment_ratio = HUGE_VAL; });
  refuses([](vmm_manager_options& o) { o.chunk_bytes = 3; });
  refuses([](vmm_manager_options& o) { o.chunk_bytes = ~std::uint64_t{0} - 1; });
  refuses([](vmm_manager_options& o) { o.reservation_bytes = 0; });
  refuses([](vmm_manager_options& o) { o.shareable = 8; });
  refuses([](vmm_manager_options& o) { o.reserved = 1; });
  refuses([](vmm_manager_options& o) {
    o.use_place = 1;
    o.place = 4711;
  });
}

// A member that says yes or no, and another number in it.
template <class Struct>
struct flag {
  const char* name;
  std::uint32_t Struct::* member;
};
#define FLAG(type, member) {#member, &type::member}

// `make`, given each flag with each wrong number, returns `code` and names the flag.
template <class Struct, class Make>
void refuses_flags(const Struct& good, vmm_status code, std::vector<flag<Struct>> flags,
                   Make&& make) {
  for (const flag<Struct>& each : flags) {
    for (const std::uint32_t number : {2U, 5U, ~0U}) {
      Struct wrong = good;
      wrong.*each.member = number;
      EXPECT_EQ(make(wrong), code) << each.name;
      EXPECT_EQ(vmm_last_error_text(),
                std::string(code == VMM_ERROR_BAD_OPTION ? "bad_option: " : "invalid_argument: ") +
                    each.name + " is 0 or 1; not " + std::to_string(number));
    }
  }
}

TEST_F(WrongUse, FlagsThatAreNeitherYesNorNo) {
  refuses_flags<vmm_pool_options>(
      pool_defaults(), VMM_ERROR_BAD_OPTION,
      {FLAG(vmm_pool_options, wait_when_short), FLAG(vmm_pool_options, use_place),
       FLAG(vmm_pool_options, read_environment), FLAG(vmm_pool_options, report_live),
       FLAG(vmm_pool_options, captures_announced), FLAG(vmm_pool_options, streams_forgotten)},
      [&](const vmm_pool_options& wrong) {
        vmm_pool* made = nullptr;
        return vmm_pool_create(driver, &wrong, &made);
      });
  refuses_flags<vmm_manager_options>(
      manager_defaults(), VMM_ERROR_BAD_OPTION,
      {FLAG(vmm_manager_options, wait_when_short), FLAG(vmm_manager_options, compressible),
       FLAG(vmm_manager_options, rdma_capable), FLAG(vmm_manager_options, use_place),
       FLAG(vmm_manager_options, read_environment), FLAG(vmm_manager_options, report_live),
       FLAG(vmm_manager_options, streams_forgotten)},
      [&](const vmm_manager_options& wrong) {
        vmm_manager* made = nullptr;
        return vmm_manager_create(driver, &wrong, &made);
      });
  void* block = build(4096);
  auto resize = sized<vmm_resize_request>(4096);
  resize.at = block;
  refuses_flags<vmm_resize_request>(
      resize, VMM_ERROR_INVALID_ARGUMENT,
      {FLAG(vmm_resize_request, in_place), FLAG(vmm_resize_request, names_stream)},
      [&](const vmm_resize_request& wrong) { return vmm_manager_resize(manager, &wrong, &block); });
  EXPECT_GOOD(vmm_manager_free(manager, block));
  auto request = sized<vmm_export_request>(MiB);
  refuses_flags<vmm_export_request>(
      request, VMM_ERROR_INVALID_ARGUMENT,
      {FLAG(vmm_export_request, followed), FLAG(vmm_export_request, one_handle)},
      [&](const vmm_export_request& wrong) {
        vmm_export* made = nullptr;
        return vmm_share_export(driver, &wrong, &made);
      });
  vmm_allocator_options options;
  EXPECT_GOOD(vmm_allocator_options_init(&options, sizeof(options)));
  refuses_flags<vmm_allocator_options>(options, VMM_ERROR_BAD_OPTION,
                                       {FLAG(vmm_allocator_options, read_environment)},
                                       [](const vmm_allocator_options& wrong) {
                                         vmm_allocator* made = nullptr;
                                         return vmm_allocator_create(&wrong, &made);
                                       });
}

// What is in none of the modules' tests: the same texts in words of C.
TEST_F(WrongUse, TextsNameWhatIsInTheHeader) {
  vmm_pool_options options = pool_defaults();
  options.reservation_bytes = 0;
  vmm_pool* made = nullptr;
  EXPECT_FAILS(vmm_pool_create(driver, &options, &made), VMM_ERROR_BAD_OPTION);
  EXPECT_TRUE(says("bad_option: reservation_bytes of the options is"));
  EXPECT_FAILS(vmm_pool_capture_end(pool), invalid);
  EXPECT_TRUE(says("vmm_pool_capture_begin()"));
  EXPECT_FAILS(vmm_history_dump(pool, 0, "none"), invalid);
  EXPECT_TRUE(says("call vmm_history_start() first"));
  vmm_manager_options chunks = manager_defaults();
  chunks.chunk_bytes = 3;
  vmm_manager* other = nullptr;
  EXPECT_FAILS(vmm_manager_create(driver, &chunks, &other), VMM_ERROR_BAD_OPTION);
  EXPECT_TRUE(says("chunk_bytes of the options (VMM_CHUNK_SIZE)"));
  const own_driver host("host");
  options = pool_defaults();
  options.use_place = 1;
  options.place = VMM_PLACE_DEVICE;
  EXPECT_NE(vmm_pool_create(host, &options, &made), VMM_SUCCESS);
  EXPECT_TRUE(says("use VMM_PLACE_HOST"));
}

// What no request would be served for is refused where it is set up.
TEST_F(WrongUse, OptionsThatTheDriverCannotMeet) {
  const own_driver host("host");
  vmm_manager* made = nullptr;
  for (const std::uint32_t kinds : {VMM_SHARE_WIN32, VMM_SHARE_FABRIC}) {
    vmm_manager_options options = manager_defaults();
    options.shareable = kinds;
    EXPECT_FAILS(vmm_manager_create(host, &options, &made), VMM_ERROR_NOT_SUPPORTED);
    EXPECT_TRUE(says("shareable of the options"));
  }
  vmm_manager_options options = manager_defaults();
  options.rdma_capable = 1;
  EXPECT_FAILS(vmm_manager_create(host, &options, &made), VMM_ERROR_NOT_SUPPORTED);
  options = manager_defaults();
  options.shareable = VMM_SHARE_POSIX_FD;
  options.compressible = 1;  // a wish
  EXPECT_GOOD(vmm_manager_create(host, &options, &made));
  EXPECT_GOOD(vmm_manager_destroy(made));
}

TEST_F(WrongUse, StreamsOfADriverWithoutAny) {
  const own_driver host("host");
  const own_pool of_host(host);
  auto* const stream = reinterpret_cast<vmm_stream>(std::uintptr_t{99});
  void* at = nullptr;
  EXPECT_FAILS(vmm_pool_allocate(of_host, 4096, stream, &at), invalid);
  EXPECT_TRUE(says("a driver without streams has only NULL"));
  ASSERT_GOOD(vmm_pool_allocate(of_host, 4096, nullptr, &at));
  EXPECT_FAILS(vmm_pool_free(of_host, at, stream), invalid);
  vmm_suspender* sleeper = nullptr;
  ASSERT_GOOD(vmm_suspender_create(nullptr, &sleeper));
  ASSERT_GOOD(vmm_suspender_add_pool(sleeper, of_host, "kv", VMM_CONTENTS_KEEP));
  auto request = sized<vmm_suspend_request>();
  request.streams = &stream;
  request.stream_count = 1;
  EXPECT_FAILS(vmm_suspender_suspend(sleeper, &request, nullptr), invalid);
  EXPECT_TRUE(says("a driver without streams has only NULL"));
  EXPECT_GOOD(vmm_suspender_destroy(sleeper));
  EXPECT_GOOD(vmm_pool_free(of_host, at, nullptr));
}

TEST_F(WrongUse, TheHostHasNoNumber) {
  const own_driver host("host");
  std::uint32_t rights = 0;
  for (vmm_driver* const each : {static_cast<vmm_driver*>(host), driver}) {
    EXPECT_FAILS(vmm_driver_get_access(each, &rights, VMM_PLACE_HOST, 2, &rights), invalid);
    EXPECT_TRUE(says("0 on the host; not 2"));
  }
  const vmm_grant grant{VMM_PLACE_HOST, 2, VMM_RIGHTS_READ, 0};
  EXPECT_FAILS(vmm_pool_set_peers(pool, &grant, 1), invalid);
  EXPECT_TRUE(says("0 on the host"));
}

// Those of the other kind of allocator, too.
TEST_F(WrongUse, VariablesThatACallDoesNotUse) {
  auto pools = pool_defaults();
  auto managers = manager_defaults();
  pools.read_environment = managers.read_environment = 1;
  vmm_pool* made_pool = nullptr;
  vmm_manager* made_manager = nullptr;
  ::setenv("VMM_POLICY", "foo", 1);
  EXPECT_FAILS(vmm_pool_create(driver, &pools, &made_pool), VMM_ERROR_BAD_OPTION);
  EXPECT_TRUE(says("VMM_POLICY takes one of"));
  ::unsetenv("VMM_POLICY");
  ::setenv("VMM_POOL_POLICY", "foo", 1);
  EXPECT_FAILS(vmm_manager_create(driver, &managers, &made_manager), VMM_ERROR_BAD_OPTION);
  EXPECT_TRUE(says("VMM_POOL_POLICY takes one of"));
  ::unsetenv("VMM_POOL_POLICY");
}

TEST_F(WrongUse, TheLastNumberIsNoStream) {
  auto* const last = reinterpret_cast<vmm_stream>(~std::uintptr_t{0});
  auto request = sized<vmm_block_request>(MiB);
  request.stream = last;
  void* at = nullptr;
  EXPECT_FAILS(vmm_manager_allocate(manager, &request, &at), invalid);
  EXPECT_TRUE(says("not a stream of the driver"));
  EXPECT_FAILS(vmm_pool_allocate(pool, 4096, last, &at), invalid);
  ASSERT_GOOD(vmm_pool_allocate(pool, 4096, nullptr, &at));
  EXPECT_FAILS(vmm_pool_free(pool, at, last), invalid);
  EXPECT_GOOD(vmm_pool_free(pool, at, nullptr));
  vmm_pool_options options = pool_defaults();
  options.first_stream = last;
  vmm_pool* made = nullptr;
  EXPECT_FAILS(vmm_pool_create(driver, &options, &made), invalid);
}

TEST_F(WrongUse, DriversAndDevicesOfAllocators) {
  vmm_allocator_options options;
  EXPECT_GOOD(vmm_allocator_options_init(&options, sizeof(options)));
  vmm_allocator* made = nullptr;
  options.driver = "foo";
  EXPECT_FAILS(vmm_allocator_create(&options, &made), VMM_ERROR_BAD_OPTION);
  EXPECT_TRUE(says("unknown backend 'foo'"));
  options.driver = "host";
  ASSERT_GOOD(vmm_allocator_create(&options, &made));
  void* at = nullptr;
  EXPECT_FAILS(vmm_allocator_allocate(made, 4096, 1, nullptr, &at), invalid);
  EXPECT_TRUE(says("has one device, 0"));
  EXPECT_FAILS(vmm_allocator_set_limit(made, 1, MiB), invalid);
  auto* const stream = reinterpret_cast<vmm_stream>(std::uintptr_t{99});
  EXPECT_FAILS(vmm_allocator_allocate(made, 4096, 0, stream, &at), invalid);
  ASSERT_GOOD(vmm_allocator_allocate(made, 4096, 0, nullptr, &at));
  EXPECT_FAILS(vmm_allocator_record_stream(made, at, stream), invalid);
  EXPECT_GOOD(vmm_allocator_free(made, at));
  EXPECT_GOOD(vmm_allocator_destroy(made));
}

TEST_F(WrongUse, FractionsOfMemory) {
  const c_test::own_allocator made("fake");
  EXPECT_GOOD(vmm_plugin_use(made));
  const auto limit = [&] { return c_test::numbers(made).limit_bytes; };
  vmm_plugin_memory_fraction(0.5, 0);
  const std::uint64_t half = limit();
  EXPECT_NE(half, 0u);
  for (const double wrong : {-1.0, -1e300, std::nan(""), -HUGE_VAL}) {
    vmm_plugin_memory_fraction(wrong, 0);
    EXPECT_TRUE(says("a fraction of memory is a number from 0 to 1"));
    EXPECT_EQ(limit(), half);
  }
  EXPECT_GOOD(vmm_plugin_use(nullptr));
}

TEST_F(WrongUse, FailuresAreToldApart) {
  auto info = sized<vmm_error_info>();
  void* at = nullptr;
  void* const held = build(64 * MiB);
  const std::uint64_t free_bytes = memory_now().free_bytes;
  EXPECT_FAILS(vmm_pool_allocate(pool, free_bytes + MiB, nullptr, &at), VMM_ERROR_OUT_OF_MEMORY);
  EXPECT_GOOD(vmm_last_error(&info));
  EXPECT_GOOD(vmm_manager_free(manager, held));
  EXPECT_EQ(info.status, VMM_ERROR_OUT_OF_MEMORY);
  EXPECT_STREQ(info.name, "out_of_memory");
  EXPECT_STREQ(info.call, "create");
  EXPECT_STREQ(info.native_name, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(info.native_code, 2);
  EXPECT_TRUE(contains(info.text, "CUDA_ERROR_OUT_OF_MEMORY"));
  EXPECT_FAILS(vmm_pool_free(pool, &info, nullptr), VMM_ERROR_UNKNOWN_ADDRESS);
  EXPECT_GOOD(vmm_last_error(&info));
  EXPECT_EQ(info.status, VMM_ERROR_UNKNOWN_ADDRESS);
  EXPECT_STREQ(info.call, "none");
  EXPECT_EQ(info.native_code, 0);
  EXPECT_NE(info.advice[0], '\0');
  void* const block = take(4096);
  EXPECT_GOOD(vmm_pool_free(pool, block, nullptr));
  EXPECT_GOOD(vmm_last_error(&info));
  EXPECT_EQ(info.status, VMM_ERROR_UNKNOWN_ADDRESS) << "success forgets nothing";
}

TEST(Statuses, EveryCodeHasItsName) {
  for (vmm_status code = VMM_SUCCESS; code <= VMM_ERROR_INVALID_HANDLE; ++code)
    EXPECT_STRNE(vmm_status_name(code), "VMM_ERROR_UNKNOWN") << code;
  for (const vmm_status none :
       {-1, VMM_ERROR_INVALID_HANDLE + 1, std::numeric_limits<vmm_status>::max(),
        std::numeric_limits<vmm_status>::min()}) {
    EXPECT_STREQ(vmm_status_name(none), "VMM_ERROR_UNKNOWN") << none;
  }
  EXPECT_STREQ(vmm_status_name(VMM_ERROR_FOREIGN), "VMM_ERROR_FOREIGN");
  EXPECT_EQ(vmm_version(), 100u);
}

}  // namespace
