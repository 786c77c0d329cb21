// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The part nccl: all-reduce by two devices of one process, in vmm's memory that is
// registered with ncclCommRegister, with ncclCommWindowRegister, and not at all; before and after a
// move. A thread for each device makes the calls that wait for the other device's.
#include <dlfcn.h>

#include "parts.hpp"

import vmm.multi_device;

namespace vmm::gpu {
namespace {

// Programs that may use NVLink multicast by themselves start only where that is off by name.
void need_multicast_off() {
  struct off_switch {
    const char* name;
    std::string_view value;
  };
  for (const off_switch& each :
       {off_switch{"NCCL_NVLS_ENABLE", "0"}, off_switch{"TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"},
        off_switch{"NVSHMEM_DISABLE_NVLS", "1"}}) {
    const char* found = std::getenv(each.name);
    if (found != nullptr && found == each.value) continue;
    stop("set " + std::string(each.name) + "=" + std::string(each.value) +
         " before NCCL is started");
  }
}

// The few calls of NCCL that are used, as its header declares them.
struct nccl_calls {
  int (*get_version)(int* version) = nullptr;
  int (*init_all)(void** comms, int count, const int* devices) = nullptr;
  int (*destroy)(void* comm) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int, int, void*, void*) = nullptr;
  const char* (*last_error)(void* comm) = nullptr;
  int (*enter)(void* comm, void* at, std::size_t size, void** handle) = nullptr;
  int (*leave)(void* comm, void* handle) = nullptr;
  int (*open_window)(void* comm, void* at, std::size_t size, void** window, int flags) = nullptr;
  int (*close_window)(void* comm, void* window) = nullptr;
};

nccl_calls load_nccl(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) end_part(verdict::skipped, std::string("no NCCL: ") + dlerror());
  nccl_calls found;
  const auto find = [&](const char* name, auto& into, bool is_needed) {
    into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(dlsym(library, name));
    if (into == nullptr && is_needed) stop(std::string("this NCCL has no ") + name);
  };
  find("ncclGetVersion", found.get_version, true);
  find("ncclCommInitAll", found.init_all, true);
  find("ncclCommDestroy", found.destroy, true);
  find("ncclGroupStart", found.group_start, true);
  find("ncclGroupEnd", found.group_end, true);
  find("ncclAllReduce", found.all_reduce, true);
  find("ncclGetLastError", found.last_error, false);
  find("ncclCommRegister", found.enter, false);  // 2.19
  find("ncclCommDeregister", found.leave, false);
  find("ncclCommWindowRegister", found.open_window, false);  // 2.27
  find("ncclCommWindowDeregister", found.close_window, false);
  return found;
}

struct rank {
  explicit rank(std::int32_t device)
      : driver(open_one(device)),
        memory(driver, must(registrable_options(*driver_ref(driver), both_devices(driver)))) {
    stream = must(driver.create_stream());
  }
  cuda_driver driver;
  manager memory;
  stream_handle stream{};
  address at{};
  std::uint64_t size_bytes = 0;
  void* comm = nullptr;
  void* handle = nullptr;
};

constexpr int round_count = 10;

enum class way : std::uint8_t { plain, registered, window };

class trial {
 public:
  explicit trial(std::uint64_t size_bytes) : size_bytes_(size_bytes), ranks_{rank(0), rank(1)} {}

  void begin(const nccl_calls& nccl);
  void move();
  /// A line of the table. False where NCCL refused something.
  bool play(const char* name, way how);
  void end();
  [[nodiscard]] double rate_of(way how) const { return rates_[static_cast<std::size_t>(how)]; }

 private:
  // Each in a thread with the device's context: some calls wait for the other device's.
  template <class Call>
  int on_both(Call&& call) {
    std::array<int, 2> codes{};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        if (!ranks_[i].driver.push_context()) stop("a context could not be made current");
        codes[i] = call(ranks_[i]);
        ranks_[i].driver.pop_context();
      });
    }
    for (std::thread& each : threads) each.join();
    return codes[0] != 0 ? codes[0] : codes[1];
  }
  void need(int code, const char* what) const;
  std::string why(int code) const;
  void write_ones();
  double reduce();
  void check_sums();
  std::string segments_of(rank& of);

  nccl_calls nccl_;
  std::uint64_t size_bytes_;
  std::array<rank, 2> ranks_;
  std::array<double, 3> rates_{};
};

std::string trial::why(int code) const {
  const char* said = nccl_.last_error != nullptr ? nccl_.last_error(ranks_[0].comm) : nullptr;
  return text_of("returned %d %s", code, said != nullptr ? said : "");
}

void trial::need(int code, const char* what) const {
  if (code != 0) stop(std::string(what) + " " + why(code));
}

void trial::begin(const nccl_calls& nccl) {
  nccl_ = nccl;
  constexpr std::array<int, 2> devices{0, 1};
  std::array<void*, 2> comms{};
  need(nccl_.init_all(comms.data(), 2, devices.data()), "ncclCommInitAll");
  for (std::size_t i = 0; i < 2; ++i) {
    rank& each = ranks_[i];
    each.comm = comms[i];
    each.at = must(each.memory.allocate(size_bytes_));
    each.size_bytes = size_bytes_;
    if (!must(check_registrable(each.memory, each.at)).is_registrable())
      stop("memory for registration is not registrable");
  }
}

// A block behind it keeps it from growing where it is.
void trial::move() {
  for (rank& each : ranks_) {
    const address fence = must(each.memory.allocate(2 * mib));
    const address moved = must(each.memory.resize({each.at, 2 * size_bytes_}));
    if (moved == each.at) stop("the block did not move");
    each.at = moved;
    each.size_bytes = 2 * size_bytes_;
    must(each.memory.free(fence));
  }
}

// Every element is 1.0 on both devices; after so many sums in place it is 2 to that power.
void trial::write_ones() {
  const std::vector<float> ones(size_bytes_ / sizeof(float), 1.0F);
  for (rank& each : ranks_) must(each.driver.write(each.at, std::as_bytes(std::span(ones))));
}

void trial::check_sums() {
  constexpr float expected = 1 << round_count;
  std::vector<float> seen(size_bytes_ / sizeof(float));
  for (rank& each : ranks_) {
    must(each.driver.read(std::as_writable_bytes(std::span(seen)), each.at));
    for (const float value : seen)
      if (value != expected) stop(text_of("a sum is %f", static_cast<double>(value)));
  }
}

double trial::reduce() {
  constexpr int is_float = 7;
  constexpr int is_sum = 0;
  double best = 1e300;
  for (int round = 0; round < round_count; ++round) {
    const double begin = now_us();
    need(nccl_.group_start(), "ncclGroupStart");
    for (rank& each : ranks_)
      need(nccl_.all_reduce(each.at.as<void>(), each.at.as<void>(), size_bytes_ / sizeof(float),
                            is_float, is_sum, each.comm, native_stream<CUstream>(each.stream)),
           "ncclAllReduce");
    need(nccl_.group_end(), "ncclGroupEnd");
    for (rank& each : ranks_) must(each.driver.synchronize_stream(each.stream));
    best = std::min(best, now_us() - begin);
  }
  return gigabytes_per_second(size_bytes_, best);
}

std::string trial::segments_of(rank& of) {
  const std::vector<memory_segment> listed = must(of.memory.segments({of.at, of.size_bytes}));
  std::string text;
  for (const memory_segment& each : listed)
    text += text_of("%s%llu", text.empty() ? "" : " + ", wide(each.range.size_bytes / mib));
  return text + " MiB";
}

bool trial::play(const char* name, way how) {
  const std::string segments = segments_of(ranks_[0]);
  const auto enter = [&](rank& of) {
    void* const at = of.at.as<void>();
    constexpr int is_symmetric = 1;
    if (how == way::registered) return nccl_.enter(of.comm, at, size_bytes_, &of.handle);
    return nccl_.open_window(of.comm, at, size_bytes_, &of.handle, is_symmetric);
  };
  const auto leave = [&](rank& of) {
    void* const left = std::exchange(of.handle, nullptr);
    if (left == nullptr) return 0;
    return how == way::registered ? nccl_.leave(of.comm, left) : nccl_.close_window(of.comm, left);
  };
  const bool is_there = how == way::plain || (how == way::registered && nccl_.enter != nullptr) ||
                        (how == way::window && nccl_.open_window != nullptr);
  int code = is_there && how != way::plain ? on_both(enter) : 0;
  const bool has_handle = how == way::plain || ranks_[0].handle != nullptr;
  std::string note = !is_there     ? "not in this NCCL"
                     : code != 0   ? why(code)
                     : !has_handle ? "NCCL took it and gave no handle"
                                   : "";
  double rate = 0;
  if (is_there && code == 0) {
    write_ones();
    rate = reduce();
    check_sums();
    rates_[static_cast<std::size_t>(how)] = rate;
    code = how == way::plain ? 0 : on_both(leave);
    if (code != 0) note = "leaving " + why(code);
  }
  std::printf("| %s | %s | %.1f | %s |\n", name, segments.c_str(), rate, note.c_str());
  std::fflush(stdout);
  return code == 0;
}

void trial::end() {
  need(on_both([&](rank& of) { return nccl_.destroy(of.comm); }), "ncclCommDestroy");
  for (rank& each : ranks_) {
    must(each.memory.free(each.at));
    must(each.driver.destroy_stream(each.stream));
  }
}

}  // namespace

verdict reduce_with_nccl(const settings& how) {
  need_multicast_off();
  const std::uint64_t size_bytes = how.size_bytes(256 * mib);
  trial one(size_bytes);
  const nccl_calls nccl = load_nccl(how.nccl_library);
  int version = 0;
  (void)nccl.get_version(&version);
  one.begin(nccl);
  std::printf(
      "NCCL %d; all-reduce of %llu MiB of floats by two devices, best of %d, sums checked\n\n",
      version, wide(size_bytes / mib), round_count);
  std::printf("| memory | segments | GB/s | |\n| --- | --- | --- | --- |\n");
  bool is_fine = one.play("not registered", way::plain);
  is_fine = one.play("ncclCommRegister", way::registered) && is_fine;
  is_fine = one.play("ncclCommWindowRegister", way::window) && is_fine;
  const std::string before =
      text_of("not registered %.1f GB/s, registered %.1f, window %.1f", one.rate_of(way::plain),
              one.rate_of(way::registered), one.rate_of(way::window));
  give_figure(before);
  one.move();
  is_fine = one.play("moved, not registered", way::plain) && is_fine;
  is_fine = one.play("moved, ncclCommRegister", way::registered) && is_fine;
  is_fine = one.play("moved, ncclCommWindowRegister", way::window) && is_fine;
  give_figure(before + text_of("; after a move %.1f, %.1f, %.1f", one.rate_of(way::plain),
                               one.rate_of(way::registered), one.rate_of(way::window)));
  one.end();
  return is_fine ? verdict::ok : verdict::failed;
}

}  // namespace vmm::gpu
