// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: no bytes harm what reads histories, PyTorch's snapshots and the files of vmm-top; what is
// taken is written again as the same, and every tool makes its output of it. Method: the first byte
// chooses the reader, the rest is the file.
#include "../tools/program/standard.hpp"

import vmm.backend;
import vmm.history_tools;
import vmm.observe;
import vmm.recording;

namespace {

void insist(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_history: %s\n", what);
  std::abort();
}

void show(const vmm::history& taken) {
  const vmm::tools::history_account account = vmm::tools::account_for(taken);
  insist(account.is_kept.size() == taken.events.size(), "an event is neither kept nor left out");
  insist(!vmm::tools::to_summary(taken, account).empty(), "no summary");
  insist(!vmm::tools::to_memory_viz(taken, account).empty(), "no snapshot");
  insist(!vmm::tools::to_trace_events(taken, account).empty(), "no trace events");
}

void read_history(std::span<const std::byte> bytes) {
  const auto taken = vmm::decode_history(bytes);
  if (!taken) return;
  const auto again = vmm::encode_history(*taken);
  insist(again.has_value(), "what was read cannot be written");
  const auto second = vmm::decode_history(*again);
  insist(second.has_value(), "what was written cannot be read");
  insist(second->events.size() == taken->events.size() && second->tags == taken->tags,
         "what was read comes back as another");
  show(*taken);
}

void read_top(std::span<const std::byte> bytes) {
  vmm::top_head head;
  vmm::top_slot slot;
  if (bytes.size() < sizeof(head) + sizeof(slot)) return;
  std::memcpy(&head, bytes.data(), sizeof(head));
  std::memcpy(&slot, bytes.data() + sizeof(head), sizeof(slot));
  if (vmm::check_head(head, head.process == 0 ? 1 : head.process))
    insist(head.program.back() == '\0', "a name without an end is taken");
  const auto sample = vmm::decode_sample(slot.words);
  if (!sample) return;
  insist(sample->policy.back() == '\0' && sample->driver.back() == '\0', "a name has no end");
  const auto again = vmm::encode_sample(*sample);
  const auto second = vmm::decode_sample(again);
  insist(second.has_value() && second->moved_bytes == sample->moved_bytes, "a sample has changed");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::span<const std::byte> rest =
      std::as_bytes(std::span<const std::uint8_t>(data + 1, size - 1));
  switch (data[0] % 3) {
    case 0: read_history(rest); break;
    case 1: {
      vmm::tools::recording_outcome read = vmm::tools::parse_recording("input", rest);
      if (!read.problem.empty()) break;
      (void)vmm::tools::requests_of(read.value, vmm::tools::busiest_device(read.value));
      const auto made = vmm::tools::to_history(std::move(read), {});
      if (made.problem.empty()) show(made.taken);
      break;
    }
    default: read_top(rest);
  }
  return 0;
}
