// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "program.hpp"

import vmm.backend;
import vmm.cuda;
import vmm.fake;
import vmm.fidelity;

extern char** environ;

namespace fidelity {
namespace {

using vmm::fidelity::probe;

constexpr int patience_ms = 60'000;

// A fresh fake for each probe: none sees what another left.
std::string ask_fake(const probe& asked) {
  vmm::fake_driver fake;
  return vmm::fidelity::answer(fake, asked);
}

std::string ask_device(const settings& how, const probe& asked) {
  auto device = vmm::cuda_driver::open({.driver_library = how.driver_library_or_null()});
  if (!device) return "no device: " + vmm::fidelity::text(device);
  return vmm::fidelity::answer(*device, asked);
}

// ---- a probe in a process of its own ----

std::string read_all(int from, bool& in_time) {
  std::string out;
  std::array<char, 256> buffer{};
  in_time = true;
  while (true) {
    pollfd ready{from, POLLIN, 0};
    if (poll(&ready, 1, patience_ms) <= 0) {
      in_time = false;
      return out;
    }
    const ssize_t count = read(from, buffer.data(), buffer.size());
    if (count <= 0) return out;
    out.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

std::string ending_of(int status, const std::string& said) {
  if (WIFSIGNALED(status)) return std::string("the process dies: ") + strsignal(WTERMSIG(status));
  return said.empty() ? "the process says nothing" : said;
}

std::string ask_alone(const settings& how, const probe& asked) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return "no pipe";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<std::string> words{"vmm-fidelity", "one", "--probe", asked.id};
  if (!how.driver_library.empty()) words.insert(words.end(), {"--library", how.driver_library});
  std::vector<char*> arguments;
  for (std::string& each : words) arguments.push_back(each.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int failure =
      posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string said;
  if (failure != 0) {
    said = "no process";
  } else {
    bool in_time = true;
    said = read_all(ends[0], in_time);
    if (!in_time) kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    said = in_time ? ending_of(status, said) : "no answer within a minute";
  }
  close(ends[0]);
  return said;
}

// ---- the comparison ----

struct compared {
  std::string id;
  std::string what;
  std::string device;
  std::string fake;
  std::string reason;  // of a difference that is known

  [[nodiscard]] bool same() const { return device == fake; }
};

int report(const settings& how, const report_head& head, const std::vector<compared>& all) {
  table rows{{"call", "device", "fake", "same"}};
  std::size_t differing = 0;
  std::size_t unknown = 0;
  for (const compared& each : all) {
    if (!each.same()) ++differing;
    if (!each.same() && each.reason.empty()) ++unknown;
    const std::string verdict = each.same() ? "yes" : "no: " + each.reason;
    rows.push_back({each.what, each.device, each.fake, verdict});
    if (!each.same()) {
      std::printf("%-26s device: %-28s fake: %-24s %s\n", each.id.c_str(), each.device.c_str(),
                  each.fake.c_str(), each.reason.c_str());
    }
  }
  std::printf("%zu calls, %zu with equal results, %zu differ for a known reason, %zu unexplained\n",
              all.size(), all.size() - differing, differing - unknown, unknown);
  const std::string words =
      "Invalid and boundary calls: the results of the device and of the fake driver. "
      "SUCCESS is followed by what the call found out, where it found out something. " +
      std::to_string(all.size()) + " calls, " + std::to_string(all.size() - differing) +
      " alike.\n\nCommand: `vmm-fidelity probes`.";
  publish(how, {"Fidelity of the fake driver", head, words, rows});
  return unknown == 0 ? 0 : 1;
}

int compare_recorded(const settings& how, const answers& known) {
  const answers recorded = read_answers(how.expect);
  std::vector<compared> all;
  for (const probe& each : vmm::fidelity::all_probes()) {
    const auto line = recorded.find(each.id);
    if (line == recorded.end()) continue;
    const auto reason = known.find(each.id);
    all.push_back({each.id, each.what, line->second, ask_fake(each),
                   reason == known.end() ? "" : reason->second});
  }
  return report(how, {"recorded results", "see " + how.expect}, all);
}

}  // namespace

int run_one_probe(const settings& how) {
  for (const probe& each : vmm::fidelity::all_probes()) {
    if (how.one != each.id) continue;
    const std::string said = ask_device(how, each);
    std::fputs(said.c_str(), stdout);
    std::fflush(stdout);
    _exit(0);  // a context that the probe spoilt is not worth tearing down
  }
  std::fprintf(stderr, "vmm-fidelity: unknown probe %s\n", how.one.c_str());
  return 2;
}

int run_probes(const settings& how) {
  const answers known = how.differences.empty() ? answers{} : read_answers(how.differences);
  if (!how.expect.empty()) return compare_recorded(how, known);
  vmm::cuda_driver device = open_device(how);
  const report_head head = head_of(device);
  std::vector<compared> all;
  std::vector<std::pair<std::string, std::string>> lines;
  for (const probe& each : vmm::fidelity::all_probes()) {
    const bool alone = each.with == vmm::fidelity::company::alone;
    const std::string said = alone ? ask_alone(how, each) : vmm::fidelity::answer(device, each);
    const auto reason = known.find(each.id);
    all.push_back(
        {each.id, each.what, said, ask_fake(each), reason == known.end() ? "" : reason->second});
    lines.emplace_back(each.id, said);
  }
  if (!how.record.empty()) write_answers(how.record, head, lines);
  return report(how, head, all);
}

}  // namespace fidelity
