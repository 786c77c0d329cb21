// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// The parts import and kill: device 0 of this process lends, device 1 of another borrows. Importers
// are forked before this process has a driver, since the child of one that has is refused, and wait
// for a byte.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "parts.hpp"

import vmm.share;

namespace vmm::gpu {
namespace {

constexpr std::uint64_t lent_seed = 0x5EED;
constexpr std::uint32_t wait_ms = 60'000;  // starting a driver on a host of many devices takes long

// The tests' simulated driver keeps its memory in one process.
void need_processes(const cuda_driver& driver) {
  if (std::string_view(driver.description().device_name) == "vmm stub driver")
    end_part(verdict::skipped, "the stub driver's memory does not reach another process");
}

share_options options_with(const share_secret& secret) {
  return {.secret = secret, .timeout_ms = wait_ms};
}

// An importer's work, and its pipes.
struct importer {
  int socket = -1;
  bool stays = false;  ///< uses the block until it is killed
};

// In a process of its own. 0 when its kernel found every word.
int import_and_check(const importer& as, const share_options& options, std::uint64_t size_bytes) {
  char go_ahead = 0;
  if (recv(as.socket, &go_ahead, 1, 0) != 1) return 1;  // the exporter has ended
  cuda_driver driver = open_one(1);
  rig reader(driver);
  share_channel channel = must(share_channel::adopt(as.socket, share_role::connecting, options));
  const double begin = now_us();
  imported_block block = must(channel.borrow(driver, {.any_device = true}));
  const double borrowed = now_us();
  const address_range all{block.data_address(), size_bytes};
  const std::uint64_t wrong = must(reader.try_count(all, lent_seed));
  while (as.stays) must(reader.try_count(all, lent_seed));
  const std::string text = text_of(
      "%llu MiB of device %d, borrowed in %.0f us, waiting included: a kernel of device 1 "
      "in another process found %llu wrong words of %llu",
      wide(size_bytes / mib), block.where().ordinal, borrowed - begin, wide(wrong),
      wide(size_bytes / 8));
  std::printf("%s\n", text.c_str());
  give_figure(text);
  must(channel.give_back(block));
  return wrong == 0 ? 0 : 1;
}

struct child_process {
  pid_t id = -1;
  int socket = -1;  ///< the exporter's end
};

child_process start_importer(const share_options& options, std::uint64_t size_bytes, bool stays) {
  std::array<int, 2> ends{-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    stop("socketpair failed");
  const pid_t child = fork_bound();
  if (child < 0) stop("fork failed");
  if (child == 0) {
    close(ends[0]);
    std::_Exit(import_and_check({ends[1], stays}, options, size_bytes));
  }
  close(ends[1]);
  return {child, ends[0]};
}

std::uint64_t free_bytes(cuda_driver& driver) {
  return must(driver.query_memory(driver.home())).free_bytes;
}

// What is missing, to within `slack_bytes`: the driver gives a killed process's memory back soon
// after its end.
std::uint64_t missing_bytes(cuda_driver& driver, std::uint64_t before, std::uint64_t slack_bytes) {
  std::uint64_t missing = 0;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::uint64_t now = free_bytes(driver);
    missing = now + slack_bytes >= before ? 0 : before - now;
    if (missing == 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return missing;
}

exported_block make_filled(rig& owner, std::uint64_t size_bytes) {
  exported_block made =
      must(exported_block::make(owner.driver, {.size_bytes = size_bytes, .handle_bytes = 0}));
  must(owner.try_fill({made.data_address(), size_bytes}, lent_seed));
  return made;
}

struct killed {
  std::optional<std::string> wrong;  ///< why the round went wrong; nothing when it did not
  double death_us = 0;               ///< from the kill until the process has ended
  double heard_us = 0;               ///< from then to the lease's end
};

killed kill_once(rig& owner, const child_process& child, const share_options& options,
                 std::uint64_t size_bytes, bool at_once) {
  exported_block block = make_filled(owner, size_bytes);
  result<share_channel> channel =
      share_channel::adopt(child.socket, share_role::accepting, options);
  if (!channel) return {"no channel: " + describe(channel.error())};
  const auto lent = channel->lend(block);
  if (!lent) return {"not lent: " + describe(lent.error())};
  if (!at_once) std::this_thread::sleep_for(std::chrono::milliseconds(20));  // its kernels run
  const double began = now_us();
  kill(child.id, SIGKILL);
  const int state = wait_for_end(child.id);
  if (!WIFSIGNALED(state)) return {"the importer ended before it was killed"};
  const double ended = now_us();  // the system takes the driver's part down before descriptors go
  const result<share_event> next = channel->next(1000);
  if (next || next.error().code != errc::unavailable || next.error().native == ETIMEDOUT)
    return {"the lease did not end within a second"};
  const double heard = now_us();
  if (const status released = block.release(); !released)
    return {"the block stays lent: " + describe(released.error())};
  return {std::nullopt, ended - began, heard - ended};
}

// ---- kills in waves ------------------------------------------------------------------

// Rounds of one process with a driver. What it has forked before waits; some of that starts its
// driver while others are killed.
constexpr std::uint64_t wave_rounds = 125;
constexpr std::uint64_t thread_count = 6;   // rounds at a time
constexpr std::uint64_t begun_ahead = 12;   // importers that start while others are killed
constexpr std::uint64_t group_rounds = 25;  // after so many, memory is looked at

struct wave_report {
  std::uint64_t done_count = 0;
  std::uint64_t failed_count = 0;
  std::uint64_t missing_bytes = 0;
  double longest_death_us = 0;  ///< from a kill until the process has ended
  double longest_us = 0;        ///< from then to its lease's end
  int skips = 0;                ///< a verdict that ends the part
};

struct wave {
  std::vector<child_process> children;
  share_options options;
  std::uint64_t size_bytes = 0;
  double deadline_us = 0;
  std::mutex mutex{};  // of what follows
  std::size_t next = 0;
  std::size_t begun = 0;
  wave_report report{};

  /// The next importer of a group that ends before `end`; those behind it begin.
  std::optional<std::size_t> take(std::size_t end) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (next == end || now_us() > deadline_us) return std::nullopt;
    const std::size_t taken = next++;
    for (; begun < std::min<std::size_t>(children.size(), taken + 1 + begun_ahead); ++begun)
      (void)send(children[begun].socket, "g", 1, MSG_NOSIGNAL);
    return taken;
  }
  void add(std::size_t round, const killed& what) {
    const std::lock_guard<std::mutex> lock(mutex);
    ++report.done_count;
    report.longest_death_us = std::max(report.longest_death_us, what.death_us);
    report.longest_us = std::max(report.longest_us, what.heard_us);
    if (!what.wrong) return;
    ++report.failed_count;
    std::printf("round %zu of a wave: %s\n", round + 1, what.wrong->c_str());
  }
};

void run_rounds(wave& of, rig& owner, std::size_t end) {
  while (const std::optional<std::size_t> round = of.take(end)) {
    const child_process child = of.children[*round];
    const killed what = kill_once(owner, child, of.options, of.size_bytes, *round % 2 == 0);
    if (what.wrong) kill(child.id, SIGKILL);
    of.add(*round, what);
  }
}

// Rounds in groups; between two of them nothing is lent, and memory is as it was.
void run_groups(wave& of, cuda_driver& driver, std::vector<std::unique_ptr<rig>>& owners) {
  const std::uint64_t before = free_bytes(driver);
  const std::size_t count = of.children.size();
  for (std::size_t end = 0; end < count && of.next == end;) {
    end = std::min<std::size_t>(count, end + group_rounds);
    std::vector<std::thread> threads;
    for (const auto& owner : owners) threads.emplace_back([&] { run_rounds(of, *owner, end); });
    for (std::thread& each : threads) each.join();
    const std::uint64_t missing = missing_bytes(driver, before, of.size_bytes / 4);
    of.report.missing_bytes = std::max(of.report.missing_bytes, missing);
  }
}

// In a process of its own, which writes the result to `to`.
[[noreturn]] void run_wave(int to, const settings& how, std::uint64_t count, double deadline_us) {
  wave of;
  of.size_bytes = how.size_bytes(256 * mib);
  of.options = options_with(must(share_secret::make()));
  of.deadline_us = deadline_us;
  for (std::uint64_t i = 0; i < count; ++i)
    of.children.push_back(start_importer(of.options, of.size_bytes, true));
  cuda_driver driver = open_one(0);
  need_processes(driver);
  std::vector<std::unique_ptr<rig>> owners;
  for (std::uint64_t i = 0; i < std::min(thread_count, count); ++i) {
    owners.push_back(std::make_unique<rig>(driver));
    // A first use keeps some memory.
    must(make_filled(*owners.back(), of.size_bytes).release());
  }
  run_groups(of, driver, owners);
  for (std::size_t i = of.report.done_count; i < of.children.size(); ++i) {
    kill(of.children[i].id, SIGKILL);
    (void)wait_for_end(of.children[i].id);
  }
  std::fflush(stdout);
  if (write(to, &of.report, sizeof of.report) != sizeof of.report) std::_Exit(1);
  std::_Exit(0);
}

// Nothing where the wave ended without a word.
std::optional<wave_report> play_wave(const settings& how, std::uint64_t count, double deadline_us) {
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) stop("pipe failed");
  const pid_t child = fork_bound();
  if (child < 0) stop("fork failed");
  if (child == 0) {
    close(ends[0]);
    run_wave(ends[1], how, count, deadline_us);
  }
  close(ends[1]);
  wave_report report;
  const bool has_report = read(ends[0], &report, sizeof report) == sizeof report;
  close(ends[0]);
  const int state = wait_for_end(child);
  if (has_report) return report;
  const auto code = static_cast<verdict>(WIFEXITED(state) ? WEXITSTATUS(state) : 1);
  if (code != verdict::skipped && code != verdict::no_pair) return std::nullopt;
  report.skips = static_cast<int>(code);
  return report;
}

}  // namespace

verdict import_elsewhere(const settings& how) {
  const std::uint64_t size_bytes = how.size_bytes(256 * mib);
  const share_options options = options_with(must(share_secret::make()));
  const child_process child = start_importer(options, size_bytes, false);
  cuda_driver driver = open_one(0);
  need_processes(driver);
  rig owner(driver);
  const exported_block block = make_filled(owner, size_bytes);
  if (send(child.socket, "g", 1, MSG_NOSIGNAL) != 1) stop("the importer has ended");
  status lent;
  auto channel = share_channel::adopt(child.socket, share_role::accepting, options);
  if (!channel) lent = channel.error();
  if (lent) {
    const auto number = channel->lend(block);
    if (!number) lent = number.error();
  }
  // Why it failed is the importer's to say, where it did.
  const int state = wait_for_end(child.id);
  const int code = WIFEXITED(state) ? WEXITSTATUS(state) : 1;
  if (code == static_cast<int>(verdict::no_pair)) return verdict::no_pair;
  if (code == 0) must(lent);
  return code == 0 ? verdict::ok : verdict::failed;
}

verdict kill_importers(const settings& how) {
  const double deadline_us = now_us() + static_cast<double>(how.limit_s) * 0.9e6;
  wave_report all;
  std::string text;
  while (all.done_count < how.kill_count && now_us() < deadline_us) {
    const std::uint64_t count = std::min(wave_rounds, how.kill_count - all.done_count);
    const std::optional<wave_report> one = play_wave(how, count, deadline_us);
    if (!one) return verdict::failed;  // its last figure says why
    if (one->skips != 0) return static_cast<verdict>(one->skips);
    all.done_count += one->done_count;
    all.failed_count += one->failed_count;
    all.missing_bytes = std::max(all.missing_bytes, one->missing_bytes);
    all.longest_death_us = std::max(all.longest_death_us, one->longest_death_us);
    all.longest_us = std::max(all.longest_us, one->longest_us);
    text = text_of(
        "%llu of %llu importers killed, %llu rounds failed, %llu MiB missing; a lease ended at "
        "most %.1f ms after its process, which took at most %.0f ms to end",
        wide(all.done_count), wide(how.kill_count), wide(all.failed_count),
        wide(all.missing_bytes / mib), all.longest_us / 1e3, all.longest_death_us / 1e3);
    give_figure(text);
    if (one->done_count < count) break;  // out of time
  }
  std::printf("%s\n", text.c_str());
  if (all.failed_count != 0 || all.missing_bytes != 0) return verdict::failed;
  return all.done_count == how.kill_count ? verdict::ok : verdict::timed_out;
}

}  // namespace vmm::gpu
