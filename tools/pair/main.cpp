// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-pair - two GPUs of one host: rights by trial, copies, imports, kills, and NCCL on vmm's
// memory. Each word does one of them and prints what it saw; 77 where there are not two devices.
//
//   rights         a kernel of each device reads and writes under each right, in a child process,
//                  since a kernel that is refused takes its context along
//   copies         between mapped memory of both, beside cuMemcpyPeerAsync of cuMemAlloc memory
//   import         a block of device 0, checked by a kernel of device 1 in another process
//   kill [COUNT]   the importer is killed while it holds the block; the memory comes back (100)
//   nccl           all-reduce on registered memory and on memory that is not, before and after a
//                  move. NVLink multicast has to be switched off by name in the environment.
#include <cuda.h>
#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../program/usage.hpp"

import vmm;
import vmm.kernels;

namespace {

constexpr const char* usage =
    "usage: vmm-pair rights | copies | import | kill [COUNT] | nccl\n"
    "  What two GPUs of one host do with vmm's memory; 77 where there are not two.\n";
constexpr std::uint64_t MiB = std::uint64_t{1} << 20;
constexpr int no_pair = 77;
constexpr int was_refused = 3;  // of a child: its kernel was stopped

[[noreturn]] void stop(const vmm::error& what) {
  std::fprintf(stderr, "vmm-pair: %s\n", vmm::describe(what).c_str());
  std::exit(1);
}
[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "vmm-pair: %s\n", what);
  std::exit(1);
}
void must(const vmm::status& done) {
  if (!done) stop(done.error());
}
template <class T>
T must(vmm::result<T> made) {
  if (!made) stop(made.error());
  return std::move(*made);
}

vmm::cuda_driver open(std::int32_t device) {
  auto opened = vmm::cuda_driver::open({.device = device});
  if (opened) return std::move(*opened);
  std::fprintf(stderr, "vmm-pair: %s\n", vmm::describe(opened.error()).c_str());
  std::exit(opened.error().code == vmm::errc::unavailable ? no_pair : 1);
}

double now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

// What `work` answers, in a child that has no driver yet.
template <class Work>
int in_child(Work&& work) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) stop("fork failed");
  if (child == 0) {
    const int code = work();
    std::fflush(stdout);
    std::_Exit(code);
  }
  int state = 0;
  while (waitpid(child, &state, 0) < 0) {
  }
  return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

// ---- rights ------------------------------------------------------------------------

struct trial {
  vmm::access rights;  // of device 1 to memory of device 0
  bool writes;
  bool is_allowed;
};

const char* name_of(vmm::access rights) {
  return rights == vmm::access::none ? "none" : rights == vmm::access::read ? "read" : "write";
}

int try_right(const trial& one) {
  vmm::cuda_driver first = open(0);
  vmm::cuda_driver second = open(1);
  vmm::tools::kernel_set kernels = must(vmm::tools::kernel_set::load(second));
  vmm::manager memory(first);
  const vmm::address at = must(memory.allocate(2 * MiB));
  const vmm::access_grant grant{vmm::device(1), one.rights};
  must(memory.set_access(at, {&grant, 1}));
  vmm::manager own(second);
  const vmm::address wrong = must(own.allocate(2 * MiB));
  const vmm::stream_handle stream = must(second.create_stream());
  const vmm::tools::pattern_request pattern{{at, 2 * MiB}, 1, stream};
  vmm::status ran = one.writes ? kernels.fill(pattern) : kernels.check(pattern, wrong);
  if (ran) ran = second.synchronize_stream(stream);
  std::_Exit(ran ? 0 : was_refused);  // a lost context gives nothing back
}

int rights() {
  int failures = 0;
  std::printf(
      "| right of device 1 | kernel of device 1 | seen | expected |\n| --- | --- | --- | --- |\n");
  for (const trial& one :
       {trial{vmm::access::none, false, false}, trial{vmm::access::none, true, false},
        trial{vmm::access::read, false, true}, trial{vmm::access::read, true, false},
        trial{vmm::access::read_write, false, true}, trial{vmm::access::read_write, true, true}}) {
    const int code = in_child([&] { return try_right(one); });
    if (code == no_pair) return no_pair;
    const bool is_right = code == (one.is_allowed ? 0 : was_refused);
    failures += is_right ? 0 : 1;
    std::printf("| %s | %s | %s | %s |\n", name_of(one.rights), one.writes ? "writes" : "reads",
                code == 0             ? "ran"
                : code == was_refused ? "stopped"
                                      : "failed otherwise",
                one.is_allowed ? "ran" : "stopped");
  }
  return failures;
}

// ---- copies ------------------------------------------------------------------------

double gigabytes_per_second(std::uint64_t size_bytes, double us) {
  return static_cast<double>(size_bytes) / 1000.0 / us;
}

template <class Copy>
double best_us(vmm::cuda_driver& driver, vmm::stream_handle stream, Copy&& copy) {
  double best = 1e300;
  for (int round = 0; round < 10; ++round) {
    const double begin = now_us();
    copy();
    must(driver.synchronize_stream(stream));
    best = std::min(best, now_us() - begin);
  }
  return best;
}

int copies() {
  constexpr std::uint64_t size_bytes = 1024 * MiB;
  vmm::cuda_driver first = open(0);
  vmm::cuda_driver second = open(1);
  const vmm::stream_handle stream = must(first.create_stream());
  vmm::manager here(first);
  vmm::manager_options how;
  how.placement = vmm::device(1);
  vmm::manager there(first, how);
  const vmm::address from = must(here.allocate(size_bytes));
  const vmm::address to = must(there.allocate(size_bytes));
  const double ours =
      best_us(first, stream, [&] { must(first.copy({to, from, size_bytes, stream})); });
  const auto allocate =
      reinterpret_cast<decltype(&cuMemAlloc)>(first.entry_point("cuMemAlloc", 3020));
  const auto release = reinterpret_cast<decltype(&cuMemFree)>(first.entry_point("cuMemFree", 3020));
  const auto peer =
      reinterpret_cast<decltype(&cuMemcpyPeerAsync)>(first.entry_point("cuMemcpyPeerAsync", 4000));
  if (allocate == nullptr || release == nullptr || peer == nullptr)
    stop("the driver lacks cuMemcpyPeerAsync");
  const auto plain = [&](vmm::cuda_driver& of) {
    CUdeviceptr made = 0;
    if (!of.push_context()) stop("a context could not be made current");
    if (allocate(&made, size_bytes) != CUDA_SUCCESS) stop("cuMemAlloc failed");
    of.pop_context();
    return made;
  };
  const CUdeviceptr source = plain(first);
  const CUdeviceptr target = plain(second);
  const auto context = [](const vmm::cuda_driver& of) {
    return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(of.native_context()));
  };
  const double theirs = best_us(first, stream, [&] {
    if (!first.push_context()) stop("a context could not be made current");
    const CUresult code = peer(target, context(second), source, context(first), size_bytes,
                               vmm::native_stream<CUstream>(stream));
    first.pop_context();
    if (code != CUDA_SUCCESS) stop("cuMemcpyPeerAsync failed");
  });
  std::printf(
      "copy of 1 GiB from device 0 to device 1: mapped %.1f GB/s, cuMemcpyPeerAsync %.1f "
      "GB/s, ratio %.3f\n",
      gigabytes_per_second(size_bytes, ours), gigabytes_per_second(size_bytes, theirs),
      theirs / ours);
  for (vmm::cuda_driver* of : {&first, &second}) {
    if (!of->push_context()) stop("a context could not be made current");
    if (release(of == &first ? source : target) != CUDA_SUCCESS) stop("cuMemFree failed");
    of->pop_context();
  }
  must(here.free(from));
  must(there.free(to));
  must(first.destroy_stream(stream));
  return theirs / ours >= 0.98 ? 0 : 1;
}

// ---- another process -----------------------------------------------------------------

constexpr std::uint64_t lent_bytes = 256 * MiB;
constexpr std::uint64_t lent_seed = 0x5EED;

struct ends {
  std::array<int, 2> sockets{-1, -1};
  vmm::share_options options;
};

ends make_ends() {
  ends made;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, made.sockets.data()) != 0)
    stop("socketpair failed");
  made.options.secret = must(vmm::share_secret::make());
  made.options.timeout_ms = 20'000;
  return made;
}

// Device 1 in another process: 0 when its kernel found every word.
int import_and_check(const ends& with, bool stays) {
  close(with.sockets[0]);
  vmm::cuda_driver driver = open(1);
  vmm::tools::kernel_set kernels = must(vmm::tools::kernel_set::load(driver));
  auto channel =
      must(vmm::share_channel::adopt(with.sockets[1], vmm::share_role::connecting, with.options));
  vmm::imported_block block = must(channel.borrow(driver, {.any_device = true}));
  vmm::manager own(driver);
  const vmm::address wrong = must(own.allocate(2 * MiB));
  const vmm::stream_handle stream = must(driver.create_stream());
  must(driver.fill({{wrong, 8}, 0, stream}));
  must(kernels.check({{block.data_address(), lent_bytes}, lent_seed, stream}, wrong));
  must(driver.synchronize_stream(stream));
  std::array<std::byte, 8> counted{};
  must(driver.read(counted, wrong));
  std::uint64_t wrong_count = 0;
  std::memcpy(&wrong_count, counted.data(), sizeof wrong_count);
  std::printf(
      "device 1, in another process: %llu wrong words of %llu; the memory lies on device "
      "%d\n",
      static_cast<unsigned long long>(wrong_count), static_cast<unsigned long long>(lent_bytes / 8),
      block.where().ordinal);
  std::fflush(stdout);
  if (stays) pause();
  must(channel.give_back(block));
  must(own.free(wrong));
  return wrong_count == 0 ? 0 : 1;
}

// Device 0 lends; answers how the child ended.
int lend(const ends& with, pid_t child, bool kills) {
  close(with.sockets[1]);
  vmm::cuda_driver driver = open(0);
  vmm::tools::kernel_set kernels = must(vmm::tools::kernel_set::load(driver));
  const std::uint64_t before = must(driver.query_memory(driver.home())).free_bytes;
  {
    auto block =
        must(vmm::exported_block::make(driver, {.size_bytes = lent_bytes, .handle_bytes = 0}));
    must(kernels.fill({{block.data_address(), lent_bytes}, lent_seed, {}}));
    must(driver.synchronize_stream({}));
    auto channel =
        must(vmm::share_channel::adopt(with.sockets[0], vmm::share_role::accepting, with.options));
    (void)must(channel.lend(block));
    if (kills) kill(child, SIGKILL);
    int state = 0;
    while (waitpid(child, &state, 0) < 0) {
    }
    if (!kills && (!WIFEXITED(state) || WEXITSTATUS(state) != 0)) return 1;
  }
  const std::uint64_t after = must(driver.query_memory(driver.home())).free_bytes;
  if (after + 2 * MiB >= before) return 0;
  std::printf("%llu MiB did not come back\n",
              static_cast<unsigned long long>((before - after) / MiB));
  return 1;
}

int share_once(bool kills) {
  const ends with = make_ends();
  std::fflush(stdout);
  const pid_t child = fork();  // before there is a driver: a child of one has none
  if (child < 0) stop("fork failed");
  if (child == 0) std::_Exit(import_and_check(with, kills));
  return lend(with, child, kills);
}

int kill_rounds(std::uint64_t count) {
  std::uint64_t failed_count = 0;
  for (std::uint64_t round = 0; round < count; ++round)
    failed_count += in_child([] { return share_once(true); }) == 0 ? 0U : 1U;
  std::printf("%llu importers killed, %llu rounds failed\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(failed_count));
  return failed_count == 0 ? 0 : 1;
}

// ---- NCCL --------------------------------------------------------------------------

// Programs that may use NVLink multicast by themselves start only where that is off by name.
bool is_multicast_off() {
  struct switch_off {
    const char* name;
    std::string_view value;
  };
  for (const switch_off& each :
       {switch_off{"NCCL_NVLS_ENABLE", "0"}, switch_off{"TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"},
        switch_off{"NVSHMEM_DISABLE_NVLS", "1"}}) {
    const char* found = std::getenv(each.name);
    if (found != nullptr && found == each.value) continue;
    std::fprintf(stderr, "vmm-pair: set %s=%s before NCCL is started\n", each.name,
                 std::string(each.value).c_str());
    return false;
  }
  return true;
}

// The few calls of NCCL that are used, as its header declares them.
struct nccl_calls {
  int (*init_all)(void** comms, int count, const int* devices) = nullptr;
  int (*destroy)(void* comm) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int, int, void*, void*) = nullptr;
  int (*enter)(void* comm, void* at, std::size_t size, void** handle) = nullptr;
  int (*leave)(void* comm, void* handle) = nullptr;
};

nccl_calls load_nccl() {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "vmm-pair: %s\n", dlerror());
    std::exit(2);
  }
  nccl_calls found;
  const auto find = [&](const char* name, auto& into) {
    into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(dlsym(library, name));
    if (into == nullptr) stop(name);
  };
  find("ncclCommInitAll", found.init_all);
  find("ncclCommDestroy", found.destroy);
  find("ncclGroupStart", found.group_start);
  find("ncclGroupEnd", found.group_end);
  find("ncclAllReduce", found.all_reduce);
  find("ncclCommRegister", found.enter);
  find("ncclCommDeregister", found.leave);
  return found;
}

struct rank {
  explicit rank(std::int32_t device)
      : driver(open(device)), memory(driver, options_for(driver, device)) {
    stream = must(driver.create_stream());
  }
  // Both devices may reach both blocks, as NCCL asks of memory in one process.
  static vmm::manager_options options_for(vmm::cuda_driver& driver, std::int32_t device) {
    vmm::manager_options how;
    if (!how.peers.set({vmm::device(1 - device), vmm::access::read_write})) stop("no peer");
    return must(vmm::registrable_options(*vmm::driver_ref(driver), how));
  }
  vmm::cuda_driver driver;
  vmm::manager memory;
  vmm::stream_handle stream{};
  vmm::address at{};
  void* comm = nullptr;
  void* handle = nullptr;
};

void check_nccl(int code, const char* what) {
  if (code == 0) return;
  std::fprintf(stderr, "vmm-pair: %s answered %d\n", what, code);
  std::exit(1);
}

constexpr std::uint64_t reduced_bytes = 256 * MiB;

double reduce_gbps(const nccl_calls& nccl, std::array<rank, 2>& ranks) {
  constexpr int is_float = 7;
  constexpr int is_sum = 0;
  double best = 1e300;
  for (int round = 0; round < 10; ++round) {
    const double begin = now_us();
    check_nccl(nccl.group_start(), "ncclGroupStart");
    for (rank& each : ranks) {
      check_nccl(
          nccl.all_reduce(each.at.as<void>(), each.at.as<void>(), reduced_bytes / 4, is_float,
                          is_sum, each.comm, vmm::native_stream<CUstream>(each.stream)),
          "ncclAllReduce");
    }
    check_nccl(nccl.group_end(), "ncclGroupEnd");
    for (rank& each : ranks) must(each.driver.synchronize_stream(each.stream));
    best = std::min(best, now_us() - begin);
  }
  return gigabytes_per_second(reduced_bytes, best);
}

// Every element is 1.0 on both; after `times` sums in place it is 2^times.
void check_sum(rank& of, int times) {
  std::array<std::byte, 4> seen{};
  float expected = 1;
  for (int i = 0; i < times; ++i) expected *= 2;
  for (const std::uint64_t offset : {std::uint64_t{0}, reduced_bytes / 2, reduced_bytes - 4}) {
    must(of.driver.read(seen, of.at + offset));
    float value = 0;
    std::memcpy(&value, seen.data(), sizeof value);
    if (value != expected) stop("an all-reduce has a wrong sum");
  }
}

void write_ones(rank& of) {
  std::vector<float> ones(reduced_bytes / 4, 1.0F);
  must(of.driver.write(of.at, std::as_bytes(std::span(ones))));
}

int nccl() {
  if (!is_multicast_off()) return 2;
  std::array<rank, 2> ranks{rank(0), rank(1)};
  const nccl_calls nccl = load_nccl();
  constexpr std::array<int, 2> devices{0, 1};
  std::array<void*, 2> comms{};
  check_nccl(nccl.init_all(comms.data(), 2, devices.data()), "ncclCommInitAll");
  for (std::size_t i = 0; i < 2; ++i) {
    ranks[i].comm = comms[i];
    ranks[i].at = must(ranks[i].memory.allocate(reduced_bytes));
    if (!must(vmm::check_registrable(ranks[i].memory, ranks[i].at)).is_registrable())
      stop("memory for registration is not registrable");
  }
  const auto play = [&](const char* name) {
    for (rank& each : ranks) write_ones(each);
    const double rate = reduce_gbps(nccl, ranks);
    for (rank& each : ranks) check_sum(each, 10);
    std::printf("| %s | %.1f |\n", name, rate);
  };
  const auto enter = [&](rank& of) {
    check_nccl(nccl.enter(of.comm, of.at.as<void>(), reduced_bytes, &of.handle),
               "ncclCommRegister");
  };
  const auto leave = [&](rank& of) {
    check_nccl(nccl.leave(of.comm, of.handle), "ncclCommDeregister");
  };
  std::printf("| all-reduce of 256 MiB on two devices | GB/s |\n| --- | --- |\n");
  play("not registered");
  for (rank& each : ranks) enter(each);
  play("registered");
  for (rank& each : ranks) {
    leave(each);
    const vmm::address fence = must(each.memory.allocate(2 * MiB));
    const vmm::address moved = must(each.memory.resize({each.at, 2 * reduced_bytes}));
    if (moved == each.at) stop("the block did not move");
    each.at = moved;
    must(each.memory.free(fence));
    enter(each);
  }
  play("registered again after a move");
  for (rank& each : ranks) {
    leave(each);
    check_nccl(nccl.destroy(each.comm), "ncclCommDestroy");
    must(each.memory.free(each.at));
    must(each.driver.destroy_stream(each.stream));
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  vmm::tools::answer_help(count, words, usage);
  const std::string_view word = count > 1 ? words[1] : "";
  if (word == "rights" && count == 2) return rights();
  if (word == "copies" && count == 2) return copies();
  if (word == "import" && count == 2) return share_once(false);
  if (word == "nccl" && count == 2) return nccl();
  if (word == "kill" && count <= 3) {
    const auto rounds = count == 3 ? vmm::tools::read_count(words[2], 1) : std::uint64_t{100};
    if (rounds) return kill_rounds(*rounds);
  }
  std::fputs(usage, stderr);
  return 2;
}
