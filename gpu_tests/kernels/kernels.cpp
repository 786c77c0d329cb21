// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module;
#include "../../backends/cuda/abi.h"
#include "ptx.h"

module vmm.kernels;

import vmm.backend;
import vmm.cuda;
import vmm.std;

namespace vmm::tools {
namespace {

constexpr std::uint32_t thread_count = 256;
constexpr std::uint64_t block_count_max = 132 * 8;

template <class Function>
Function find(const cuda_driver& driver, const char* symbol, int version) noexcept {
  return reinterpret_cast<Function>(driver.entry_point(symbol, version));
}

CUcontext context_of(const cuda_driver& driver) noexcept {
  return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(driver.native_context()));
}

// The driver's context for the length of a scope.
class current {
 public:
  explicit current(const cuda_driver& driver) noexcept
      : pop_(find<PFN_cuCtxPopCurrent_v4000>(driver, "cuCtxPopCurrent", 4000)) {
    const auto push = find<PFN_cuCtxPushCurrent_v4000>(driver, "cuCtxPushCurrent", 4000);
    pushed_ = push(context_of(driver)) == CUDA_SUCCESS;
  }
  ~current() {
    CUcontext popped = nullptr;
    if (pushed_) static_cast<void>(pop_(&popped));
  }
  current(const current&) = delete;
  current& operator=(const current&) = delete;

 private:
  PFN_cuCtxPopCurrent_v4000 pop_;
  bool pushed_ = false;
};

error failed(CUresult code, const char* detail) noexcept {
  return error{errc::internal, call::none, static_cast<std::int64_t>(code), "", detail};
}

template <class Pointer>
std::uint64_t number(Pointer object) noexcept {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(object));
}

std::uint32_t blocks_for(std::uint64_t word_count) noexcept {
  const std::uint64_t wanted = (word_count + thread_count - 1) / thread_count;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(wanted, 1, block_count_max));
}

}  // namespace

result<kernel_set> kernel_set::load(cuda_driver& driver) {
  const auto load_data = find<PFN_cuModuleLoadData_v2000>(driver, "cuModuleLoadData", 2000);
  const auto get = find<PFN_cuModuleGetFunction_v2000>(driver, "cuModuleGetFunction", 2000);
  if (load_data == nullptr || get == nullptr) {
    return refuse(errc::unavailable, "the CUDA driver cannot load kernels");
  }
  const current here(driver);
  kernel_set made(driver);
  CUmodule loaded = nullptr;
  if (const CUresult code = load_data(&loaded, kernel_text); code != CUDA_SUCCESS) {
    return failed(code, "the CUDA driver does not compile the kernels");
  }
  made.module_ = number(loaded);
  const std::array<std::pair<const char*, std::uint64_t*>, 7> wanted{
      {{"vmm_pattern_fill", &made.fill_},
       {"vmm_pattern_check", &made.check_},
       {"vmm_spin", &made.spin_},
       {"vmm_poke", &made.poke_},
       {"vmm_copy", &made.copy_},
       {"vmm_triad", &made.triad_},
       {"vmm_gather", &made.gather_}}};
  for (const auto& [name, into] : wanted) {
    CUfunction function = nullptr;
    if (const CUresult code = get(&function, loaded, name); code != CUDA_SUCCESS) {
      return failed(code, "a kernel is missing from what the CUDA driver compiled");
    }
    *into = number(function);
  }
  return made;
}

kernel_set::kernel_set(kernel_set&& from) noexcept
    : driver_(from.driver_),
      module_(std::exchange(from.module_, 0)),
      fill_(from.fill_),
      check_(from.check_),
      spin_(from.spin_),
      poke_(from.poke_),
      copy_(from.copy_),
      triad_(from.triad_),
      gather_(from.gather_) {}

kernel_set::~kernel_set() {
  if (module_ == 0) return;
  const current here(*driver_);
  const auto unload = find<PFN_cuModuleUnload_v2000>(*driver_, "cuModuleUnload", 2000);
  static_cast<void>(unload(reinterpret_cast<CUmodule>(static_cast<std::uintptr_t>(module_))));
}

status kernel_set::launch(std::uint64_t kernel, std::uint32_t block_count, void** arguments,
                          stream_handle stream) {
  const auto start = find<PFN_cuLaunchKernel_v4000>(*driver_, "cuLaunchKernel", 4000);
  const current here(*driver_);
  const CUresult code =
      start(reinterpret_cast<CUfunction>(static_cast<std::uintptr_t>(kernel)), block_count, 1, 1,
            thread_count, 1, 1, 0, native_stream<CUstream>(stream), arguments, nullptr);
  if (code != CUDA_SUCCESS) return failed(code, "the CUDA driver does not start a kernel");
  return {};
}

status kernel_set::fill(const pattern_request& request) {
  std::uint64_t at = request.range.base.value;
  std::uint64_t word_count = request.range.size_bytes / 8;
  std::uint64_t seed = request.seed;
  std::array<void*, 3> arguments{&at, &word_count, &seed};
  return launch(fill_, blocks_for(word_count), arguments.data(), request.stream);
}

status kernel_set::check(const pattern_request& request, address wrong) {
  std::uint64_t at = request.range.base.value;
  std::uint64_t word_count = request.range.size_bytes / 8;
  std::uint64_t seed = request.seed;
  std::uint64_t counter = wrong.value;
  std::array<void*, 4> arguments{&at, &word_count, &seed, &counter};
  return launch(check_, blocks_for(word_count), arguments.data(), request.stream);
}

status kernel_set::poke(address target, std::uint8_t value, stream_handle stream) {
  std::uint64_t at = target.value;
  std::uint64_t wide = value;
  std::array<void*, 2> arguments{&at, &wide};
  return launch(poke_, 1, arguments.data(), stream);
}

status kernel_set::copy(const array_request& request) {
  std::uint64_t target = request.target.value;
  std::uint64_t source = request.source.value;
  std::uint64_t word_count = request.size_bytes / 8;
  std::array<void*, 3> arguments{&target, &source, &word_count};
  return launch(copy_, blocks_for(word_count / 2), arguments.data(), request.stream);
}

status kernel_set::triad(const array_request& request) {
  std::uint64_t target = request.target.value;
  std::uint64_t first = request.source.value;
  std::uint64_t second = request.second.value;
  std::uint64_t word_count = request.size_bytes / 8;
  std::array<void*, 4> arguments{&target, &first, &second, &word_count};
  return launch(triad_, blocks_for(word_count / 2), arguments.data(), request.stream);
}

status kernel_set::gather(const array_request& request) {
  std::uint64_t target = request.target.value;
  std::uint64_t source = request.source.value;
  std::uint64_t word_count = request.size_bytes / 8;
  std::array<void*, 3> arguments{&target, &source, &word_count};
  return launch(gather_, blocks_for(word_count), arguments.data(), request.stream);
}

status kernel_set::spin(std::uint64_t duration_ns, stream_handle stream) {
  std::array<void*, 1> arguments{&duration_ns};
  return launch(spin_, 1, arguments.data(), stream);
}

}  // namespace vmm::tools
