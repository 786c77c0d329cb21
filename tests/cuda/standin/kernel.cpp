// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The stub libcuda: modules and kernels. It cannot run PTX; it recognises the kernels of
// gpu_tests/kernels by name and runs them on the host.

#include "state.h"

import vmm.backend;
import vmm.fake;

using standin::code_of, standin::needs;

/// abi.h names this type and leaves it open.
struct CUfunc_st {
  const char* name;
};

namespace {

template <class Body>
CUresult answer(const char* symbol, needs need, Body&& body) noexcept {
  return standin::answer_with<vmm::fake_driver>(symbol, need, body);
}

CUfunc_st known_kernels[] = {{"vmm_pattern_fill"}, {"vmm_pattern_check"}, {"vmm_spin"},
                             {"vmm_copy"},         {"vmm_poke"},          {"vmm_alias_words"}};
int only_module = 0;  // its address is the handle of every module

constexpr std::uint64_t pattern_step = 0x9E37'79B9'7F4A'7C15u;
constexpr std::uint64_t chunk_words = 1 << 18;

struct pattern {
  vmm::address at;
  std::uint64_t word_count;
  std::uint64_t seed;
};

// The value behind a kernel's parameter.
template <class T>
T parameter(void** all, std::size_t index) {
  T value;
  std::memcpy(&value, all[index], sizeof value);
  return value;
}

pattern pattern_of(void** all) {
  return {{parameter<std::uint64_t>(all, 0)},
          parameter<std::uint64_t>(all, 1),
          parameter<std::uint64_t>(all, 2)};
}

CUresult fill(vmm::fake_driver& fake, const pattern& asked) {
  std::vector<std::uint64_t> words;
  for (std::uint64_t done = 0; done < asked.word_count; done += words.size()) {
    words.resize(std::min(chunk_words, asked.word_count - done));
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] = asked.seed + (done + i) * pattern_step;
    const auto outcome = fake.write(asked.at + done * 8, std::as_bytes(std::span(words)));
    if (!outcome) return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  return CUDA_SUCCESS;
}

CUresult check(vmm::fake_driver& fake, const pattern& asked, vmm::address counter) {
  std::vector<std::uint64_t> words;
  std::array<std::uint64_t, 1> wrong{};
  if (!fake.read(std::as_writable_bytes(std::span(wrong)), counter))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  for (std::uint64_t done = 0; done < asked.word_count; done += words.size()) {
    words.resize(std::min(chunk_words, asked.word_count - done));
    const auto outcome = fake.read(std::as_writable_bytes(std::span(words)), asked.at + done * 8);
    if (!outcome) return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (std::size_t i = 0; i < words.size(); ++i)
      if (words[i] != asked.seed + (done + i) * pattern_step) ++wrong[0];
  }
  const auto outcome = fake.write(counter, std::as_bytes(std::span(wrong)));
  return outcome ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

// ---- copy: whole arrays in host memory, so for small ones ----

using word_list = std::vector<std::uint64_t>;

bool read_array(vmm::fake_driver& fake, vmm::address at, word_list& into) {
  return static_cast<bool>(fake.read(std::as_writable_bytes(std::span(into)), at));
}

CUresult write_array(vmm::fake_driver& fake, vmm::address at, const word_list& words) {
  const auto outcome = fake.write(at, std::as_bytes(std::span(words)));
  return outcome ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult copy(vmm::fake_driver& fake, void** all) {
  word_list words(parameter<std::uint64_t>(all, 2));
  if (!read_array(fake, {parameter<std::uint64_t>(all, 1)}, words))
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  return write_array(fake, {parameter<std::uint64_t>(all, 0)}, words);
}

// Whether the current context's device may do that to every granule of the range. The fake driver's
// own device is looked at where the bytes are touched.
bool may(vmm::fake_driver& fake, vmm::address_range range, vmm::access needed) {
  const int device = standin::context_stack().back()->device;
  if (device == fake.home().ordinal) return true;
  constexpr std::uint64_t granule_bytes = 2ull << 20;
  for (std::uint64_t at = range.base.value; at < range.end().value;
       at = (at / granule_bytes + 1) * granule_bytes) {
    const auto rights = fake.get_access({at}, vmm::device(device));
    if (!rights || *rights == vmm::access::none) return false;
    if (needed == vmm::access::read_write && *rights != needed) return false;
  }
  return true;
}

// A kernel that is refused takes its context along: later calls say so.
bool is_lawful(vmm::fake_driver& fake, std::string_view name, void** all) {
  if (name != "vmm_pattern_fill" && name != "vmm_pattern_check") return true;
  const pattern asked = pattern_of(all);
  const bool writes = name == "vmm_pattern_fill";
  return may(fake, {asked.at, asked.word_count * 8},
             writes ? vmm::access::read_write : vmm::access::read) &&
         (writes || may(fake, {{parameter<std::uint64_t>(all, 3)}, 8}, vmm::access::read_write));
}

// Words written at one address and read at another.
CUresult alias_words(vmm::fake_driver& fake, void** all) {
  const auto word_count = parameter<std::uint64_t>(all, 2);
  const auto seed = parameter<std::uint64_t>(all, 3);
  const CUresult written = fill(fake, {{parameter<std::uint64_t>(all, 0)}, word_count, seed});
  if (written != CUDA_SUCCESS) return written;
  return check(fake, {{parameter<std::uint64_t>(all, 1)}, word_count, seed},
               {parameter<std::uint64_t>(all, 4)});
}

CUresult poke(vmm::fake_driver& fake, void** all) {
  const std::array<std::byte, 1> value{
      static_cast<std::byte>(parameter<std::uint64_t>(all, 1) & 0xFF)};
  const auto outcome = fake.write({parameter<std::uint64_t>(all, 0)}, value);
  return outcome ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

}  // namespace

extern "C" {

CUresult cuModuleLoadData(CUmodule* loaded, const void* image) {
  return answer("cuModuleLoadData", needs::context, [&](auto&) {
    if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *loaded = reinterpret_cast<CUmodule>(&only_module);
    return CUDA_SUCCESS;
  });
}

STANDIN_ENTRY(cuModuleUnload, context, (CUmodule loaded),
              loaded == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS)

CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  return answer("cuModuleGetFunction", needs::context, [&](auto&) {
    for (CUfunc_st& each : known_kernels) {
      if (std::string_view(each.name) != name) continue;
      *function = &each;
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
  });
}

CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, unsigned, CUstream stream, void** parameters, void**) {
  return answer("cuLaunchKernel", needs::context, [&](vmm::fake_driver& fake) {
    const auto queue = standin::token_of<vmm::stream_handle>(stream);
    if (const vmm::status idle = fake.synchronize_stream(queue); !idle) return code_of(idle);
    const std::string_view name = function->name;
    if (!is_lawful(fake, name, parameters)) {
      vmm_standin_poison(CUDA_ERROR_ILLEGAL_ADDRESS);
      return CUDA_SUCCESS;
    }
    if (name == "vmm_pattern_fill") return fill(fake, pattern_of(parameters));
    if (name == "vmm_pattern_check") {
      return check(fake, pattern_of(parameters), {parameter<std::uint64_t>(parameters, 3)});
    }
    if (name == "vmm_copy") return copy(fake, parameters);
    if (name == "vmm_poke") return poke(fake, parameters);
    if (name == "vmm_alias_words") return alias_words(fake, parameters);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
