// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include "words.h"

namespace caller {
namespace {

bool is_wrong = false;

struct word {
  std::string_view name;
  void (*run)(const arguments&);
};

constexpr std::array words{
    word{"routes", routes},
    word{"entry_points", entry_points},
    word{"names", names},
    word{"look_ups", look_ups},
    word{"two_drivers", two_drivers},
    word{"null_parameters", null_parameters},
    word{"nothing", nothing},
    word{"work", work},
    word{"fork_before", fork_before},
    word{"fork_after", fork_after},
    word{"fork_beside_ends", fork_beside_ends},
    word{"exec_self", exec_self},
    word{"exit_with_threads", exit_with_threads},
    word{"free_at_the_end", free_at_the_end},
    word{"close_library", close_library},
    word{"own_signal", own_signal},
    word{"default_signal", default_signal},
    word{"ask_for_report", ask_for_report},
    word{"in_flight", in_flight},
    word{"captured", captured},
    word{"questions", questions},
    word{"foreign", foreign},
    word{"pool_figures", pool_figures},
    word{"copies", copies},
    word{"copy_and_grow", copy_and_grow},
    word{"resize_loop", resize_loop},
    word{"fork_storm", fork_storm},
    word{"copy_then_write", copy_then_write},
    word{"copy_then_read", copy_then_read},
    word{"devices", devices},
    word{"another_library", another_library},
    word{"short_of_memory", short_of_memory},
    word{"budget", budget},
    word{"market", market},
    word{"market_nvml", market_nvml},
    word{"market_both", market_both},
    word{"market_pair", market_pair},
    word{"reset", reset},
    word{"per_thread", per_thread},
    word{"failed_growth", failed_growth},
    word{"kept", kept},
    word{"run_ahead", run_ahead},
    word{"small_blocks", small_blocks},
    word{"handles", handles},
    word{"shared_handles", shared_handles},
    word{"shown", shown},
    word{"ipc", ipc},
    word{"ipc_within", ipc_within},
    word{"ipc_child", ipc_child},
    word{"ipc_gone", ipc_gone},
    word{"ipc_captured", ipc_captured},
    word{"ipc_contexts", ipc_contexts},
    word{"ipc_fork", ipc_fork},
    word{"dma_buf", dma_buf},
    word{"ipc_reset", ipc_reset},
    word{"many", many},
    word{"ipc_impostor", ipc_impostor},
    word{"ipc_silent", ipc_silent},
    word{"ipc_stranger", ipc_stranger},
    word{"early_pool", early_pool},
    word{"early_access", early_access},
    word{"pool_elsewhere", pool_elsewhere},
    word{"capture_storm", capture_storm},
    word{"capture_races", capture_races},
    word{"allocation_sweep", allocation_sweep},
    word{"lost_block", lost_block},
    word{"block_in_two_hands", block_in_two_hands},
    word{"contexts", contexts},
    word{"refused_reset", refused_reset},
    word{"reset_beside_frees", reset_beside_frees},
    word{"reset_beside_a_wait", reset_beside_a_wait},
    word{"pool_users", pool_users},
    word{"random", random_programs},
    word{"programs_beside", programs_beside},
    word{"signal_storm", signal_storm},
};

int run(const arguments& all) {
  for (const word& each : words) {
    if (all.empty() || each.name != all.front()) continue;
    each.run({all.begin() + 1, all.end()});
    std::fflush(stdout);
    return is_wrong ? 1 : 0;
  }
  std::puts("no such word");
  return 2;
}

}  // namespace

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("WRONG %s\n", what);
  is_wrong = true;
}

bool are_all(std::span<const unsigned char> bytes, unsigned char value) {
  if (bytes.empty()) return true;
  // Each byte is as the one before it, and the first is right.
  return bytes[0] == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

const char* owner_of(const void* address) {
  Dl_info about{};
  if (address == nullptr) return "none";
  if (dladdr(address, &about) == 0) return "nowhere";
  const char* slash = std::strrchr(about.dli_fname, '/');
  return slash == nullptr ? about.dli_fname : slash + 1;
}

}  // namespace caller

int main(int count, char** texts) { return caller::run({texts + 1, texts + count}); }
