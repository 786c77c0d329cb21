// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The parts rights and copies: two devices of one process.

#include "parts.hpp"

namespace vmm::gpu {
namespace {

// ---- rights ------------------------------------------------------------------------

constexpr std::uint64_t tried_bytes = 2 * mib;
constexpr int exit_stopped = 3;  // of a child: the kernel met an illegal address
constexpr int exit_lost = 5;     // of a child: its device was lost in another way
constexpr int exit_wrong = 6;    // of a child: the kernel ran and the bytes are wrong
constexpr int exit_no_pair = static_cast<int>(verdict::no_pair);

struct trial {
  const char* name;
  bool is_given;
  access rights;  // of device 1 to memory of device 0
  bool writes;
  bool is_allowed;
};

constexpr std::array<trial, 8> trials{{{"never given", false, access::none, false, false},
                                       {"never given", false, access::none, true, false},
                                       {"taken away", true, access::none, false, false},
                                       {"taken away", true, access::none, true, false},
                                       {"read", true, access::read, false, true},
                                       {"read", true, access::read, true, false},
                                       {"read and write", true, access::read_write, false, true},
                                       {"read and write", true, access::read_write, true, true}}};

int code_of(const error& what) {
  if (what.native == CUDA_ERROR_ILLEGAL_ADDRESS) return exit_stopped;
  std::fprintf(stderr, "vmm-gpu-test: %s\n", describe(what).c_str());
  return what.code == errc::device_lost ? exit_lost : static_cast<int>(verdict::failed);
}

// Ends without destructors: a device that is lost gives nothing back.
[[noreturn]] void try_right(const trial& one) {
  cuda_driver first = open_one(0);
  cuda_driver second = open_one(1);
  rig owner(first, {.memory = both_devices(first)});
  rig peer(second, {.memory = both_devices(second)});
  manager memory(first);
  const address at = must(memory.allocate(tried_bytes));
  const address_range all{at, tried_bytes};
  must(owner.try_fill(all, 1));
  if (one.is_given && one.rights == access::none) {  // there is a right to take away
    const access_grant before{device(1), access::read_write};
    must(memory.set_access(at, {&before, 1}));
  }
  const access_grant grant{device(1), one.rights};
  if (one.is_given) must(memory.set_access(at, {&grant, 1}));
  if (one.writes)
    if (const status ran = peer.try_fill(all, 2); !ran) std::_Exit(code_of(ran.error()));
  const auto wrong = one.writes ? owner.try_count(all, 2) : peer.try_count(all, 1);
  std::_Exit(!wrong ? code_of(wrong.error()) : *wrong == 0 ? 0 : exit_wrong);
}

const char* text_of_exit(int code) {
  switch (code) {
    case 0: return "ran, the bytes are right";
    case exit_stopped: return "stopped: illegal address";
    case exit_lost: return "stopped: the device was lost otherwise";
    case exit_wrong: return "ran, the bytes are wrong";
    default: return "did not come to the trial";
  }
}

// ---- copies ------------------------------------------------------------------------

CUcontext context_of(const cuda_driver& driver) {
  return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(driver.native_context()));
}

// Runs `work` with the device's context current; returns the driver's code.
template <class Work>
void in_context(cuda_driver& of, const char* what, Work&& work) {
  if (!of.push_context()) stop("a context could not be made current");
  const CUresult code = work();
  of.pop_context();
  if (code != CUDA_SUCCESS) stop(text_of("%s returned %d", what, static_cast<int>(code)));
}

// Without peer access the driver copies plain memory by way of the host, and the peer is none.
void let_reach(cuda_driver& from, cuda_driver& to) {
  const auto enable = call_of<PFN_cuCtxEnablePeerAccess_v4000>(from, "cuCtxEnablePeerAccess", 4000);
  in_context(from, "cuCtxEnablePeerAccess", [&] {
    const CUresult code = enable(context_of(to), 0);
    return code == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : code;
  });
}

CUdeviceptr allocate_plain(cuda_driver& of, std::uint64_t size_bytes) {
  const auto allocate = call_of<PFN_cuMemAlloc_v3020>(of, "cuMemAlloc", 3020);
  CUdeviceptr made = 0;
  in_context(of, "cuMemAlloc", [&] { return allocate(&made, size_bytes); });
  return made;
}

void free_plain(cuda_driver& of, CUdeviceptr at) {
  const auto release = call_of<PFN_cuMemFree_v3020>(of, "cuMemFree", 3020);
  in_context(of, "cuMemFree", [&] { return release(at); });
}

// Microseconds of each of two copies, side by side: the best of several.
template <class Ours, class Theirs>
std::array<double, 2> best_of_both(cuda_driver& driver, stream_handle stream, Ours&& ours,
                                   Theirs&& theirs) {
  std::array<double, 2> best{1e300, 1e300};
  for (int round = 0; round < 40; ++round) {
    const double begin = now_us();
    if (round % 2 == 0) {
      ours();
    } else {
      theirs();
    }
    must(driver.synchronize_stream(stream));
    double& of = best[static_cast<std::size_t>(round % 2)];
    of = std::min(of, now_us() - begin);
  }
  return best;
}

struct copy_place {
  address_range mapped;
  address_range plain;
};

void check_bytes(rig& by, address_range range, const char* what) {
  const std::uint64_t wrong = must(by.try_count(range, 7));
  if (wrong != 0) stop(text_of("%s: %llu words are wrong", what, wide(wrong)));
}

}  // namespace

verdict try_rights(const settings&) {
  std::size_t right_count = 0;
  std::printf("| right of device 1 | its kernel | seen | expected |\n| --- | --- | --- | --- |\n");
  for (const trial& one : trials) {
    const pid_t child = fork_bound();
    if (child < 0) stop("fork failed");
    if (child == 0) try_right(one);
    const int state = wait_for_end(child);
    const int code = WIFEXITED(state) ? WEXITSTATUS(state) : -1;
    if (code == exit_no_pair) return verdict::no_pair;
    const bool is_right = one.is_allowed ? code == 0 : code == exit_stopped || code == exit_lost;
    right_count += is_right ? 1 : 0;
    std::printf("| %s | %s | %s | %s |\n", one.name, one.writes ? "writes" : "reads",
                text_of_exit(code), one.is_allowed ? "ran" : "stopped");
    std::fflush(stdout);
  }
  return judge_trials(right_count, trials.size());
}

verdict measure_copies(const settings& how) {
  const std::uint64_t size_bytes = how.size_bytes(1024 * mib);
  cuda_driver first = open_one(0);
  cuda_driver second = open_one(1);
  rig here(first, {.memory = both_devices(first)});
  rig there(second, {.memory = both_devices(second)});
  manager near(first);
  manager_options placed;
  placed.placement = device(1);
  manager away(first, placed);
  let_reach(first, second);
  let_reach(second, first);
  const copy_place from{{must(near.allocate(size_bytes)), size_bytes},
                        {{allocate_plain(first, size_bytes)}, size_bytes}};
  const copy_place to{{must(away.allocate(size_bytes)), size_bytes},
                      {{allocate_plain(second, size_bytes)}, size_bytes}};
  must(here.try_fill(from.mapped, 7));
  must(here.try_fill(from.plain, 7));
  const auto copy_peer = call_of<PFN_cuMemcpyPeerAsync_v4000>(first, "cuMemcpyPeerAsync", 4000);
  const auto [ours, theirs] = best_of_both(
      first, here.streams[0],
      [&] { must(first.copy({to.mapped.base, from.mapped.base, size_bytes, here.streams[0]})); },
      [&] {
        in_context(first, "cuMemcpyPeerAsync", [&] {
          return copy_peer(to.plain.base.value, context_of(second), from.plain.base.value,
                           context_of(first), size_bytes, native_stream<CUstream>(here.streams[0]));
        });
      });
  check_bytes(there, to.mapped, "mapped memory on device 1");
  check_bytes(there, to.plain, "plain memory on device 1");
  free_plain(first, from.plain.base.value);
  free_plain(second, to.plain.base.value);
  must(near.free(from.mapped.base));
  must(away.free(to.mapped.base));
  const double ratio = theirs / ours;
  const std::string text = text_of(
      "%llu MiB from device 0 to 1: mapped %.1f GB/s, cuMemcpyPeerAsync %.1f GB/s, ratio %.3f; "
      "0 wrong words",
      wide(size_bytes / mib), gigabytes_per_second(size_bytes, ours),
      gigabytes_per_second(size_bytes, theirs), ratio);
  std::printf("%s\n", text.c_str());
  give_figure(text);
  return how.is_quick || ratio >= 0.98 ? verdict::ok : verdict::failed;
}

}  // namespace vmm::gpu
