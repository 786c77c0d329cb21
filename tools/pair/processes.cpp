// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// vmm-pair, two processes: device 0 of this one lends, device 1 of another one borrows. Importers
// are forked before this process has a driver, since the child of one that has is refused, and wait
// for a byte.
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "parts.hpp"

namespace vmm::tools {
namespace {

constexpr std::uint64_t lent_seed = 0x5EED;
constexpr std::uint32_t wait_ms = 60'000;  // starting a driver on a host of many devices takes long

// The tests' simulated driver keeps its memory in one process.
void need_processes(const cuda_driver& driver) {
  if (std::string_view(driver.description().device_name) == "vmm stand-in")
    end_part(verdict::skipped, "the stand-in's memory does not reach another process");
}

share_options options_with(const share_secret& secret) {
  share_options made;
  made.secret = secret;
  made.timeout_ms = wait_ms;
  return made;
}

// What an importer does, and where it hears and answers.
struct importer {
  int socket = -1;
  bool stays = false;  ///< uses the block until it is killed
};

// In a process of its own. 0 when its kernel found every word.
int import_and_check(const importer& as, const share_options& options, std::uint64_t size_bytes) {
  char told = 0;
  if (recv(as.socket, &told, 1, 0) != 1) return 1;  // the exporter has ended
  cuda_driver driver = open_device(1);
  checker reader(driver);
  share_channel channel =
      must(share_channel::adopt(as.socket, share_role::connecting, options), "the importer's end");
  const double begin = now_us();
  imported_block block = must(channel.borrow(driver, {.any_device = true}), "borrowing");
  const double borrowed = now_us();
  const address_range all{block.data_address(), size_bytes};
  const std::uint64_t wrong = must(reader.count_wrong(all, lent_seed), "reading borrowed memory");
  while (as.stays) must(reader.count_wrong(all, lent_seed), "reading borrowed memory");
  const std::string text = text_of(
      "%llu MiB of device %d, borrowed in %.0f us, waiting included: a kernel of device 1 "
      "in another process found %llu wrong words of %llu",
      static_cast<unsigned long long>(size_bytes / mib), block.where().ordinal, borrowed - begin,
      static_cast<unsigned long long>(wrong), static_cast<unsigned long long>(size_bytes / 8));
  std::printf("%s\n", text.c_str());
  give_figure(text);
  must(channel.give_back(block), "giving back");
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
  return must(driver.query_memory(driver.home()), "asking for free memory").free_bytes;
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

exported_block make_filled(checker& owner, std::uint64_t size_bytes) {
  exported_block made = must(
      exported_block::make(owner.driver, {.size_bytes = size_bytes, .handle_bytes = 0}), "a block");
  must(owner.fill({made.data_address(), size_bytes}, lent_seed), "filling a block");
  return made;
}

// Why a round went wrong; nothing when it did not.
std::optional<std::string> kill_once(checker& owner, const child_process& child,
                                     const share_options& options, std::uint64_t size_bytes,
                                     bool at_once) {
  const std::uint64_t before = free_bytes(owner.driver);
  exported_block block = make_filled(owner, size_bytes);
  result<share_channel> channel =
      share_channel::adopt(child.socket, share_role::accepting, options);
  if (!channel) return "no channel: " + describe(channel.error());
  const auto lent = channel->lend(block);
  if (!lent) return "not lent: " + describe(lent.error());
  if (!at_once) std::this_thread::sleep_for(std::chrono::milliseconds(20));  // its kernels run
  kill(child.id, SIGKILL);
  const int state = wait_for_end(child.id);
  if (!WIFSIGNALED(state)) return "the importer ended before it was killed";
  const result<share_event> next = channel->next();
  if (next || next.error().code != errc::unavailable) return "the lease did not end";
  if (const status ended = block.release(); !ended)
    return "the block stays lent: " + describe(ended.error());
  // Other importers are being started meanwhile: what counts here is the block.
  if (missing_bytes(owner.driver, before, size_bytes / 4) != 0) return "memory did not come back";
  return std::nullopt;
}

}  // namespace

verdict import_elsewhere(const pair_settings& how) {
  const std::uint64_t size_bytes = how.size_bytes(256 * mib);
  const share_options options = options_with(must(share_secret::make(), "a secret"));
  const child_process child = start_importer(options, size_bytes, false);
  cuda_driver driver = open_device(0);
  need_processes(driver);
  checker owner(driver);
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
  if (code == 0) must(lent, "lending");
  return code == 0 ? verdict::ok : verdict::failed;
}

verdict kill_importers(const pair_settings& how) {
  const std::uint64_t size_bytes = how.size_bytes(256 * mib);
  const share_options options = options_with(must(share_secret::make(), "a secret"));
  std::vector<child_process> children;
  const std::uint64_t count = std::min<std::uint64_t>(how.kill_count, 400);  // a descriptor each
  for (std::uint64_t i = 0; i < count; ++i)
    children.push_back(start_importer(options, size_bytes, true));
  cuda_driver driver = open_device(0);
  need_processes(driver);
  checker owner(driver);
  must(make_filled(owner, size_bytes).release(), "giving a block back");  // a first use keeps some
  const std::uint64_t before = free_bytes(driver);
  const double deadline_us = now_us() + how.limit_s * 0.8e6;
  std::uint64_t done_count = 0;
  std::uint64_t failed_count = 0;
  std::size_t begun_count = 0;  // some start their drivers while others are killed
  for (const child_process& child : children) {
    if (now_us() > deadline_us) break;
    for (; begun_count < std::min<std::size_t>(children.size(), done_count + 4); ++begun_count)
      (void)send(children[begun_count].socket, "g", 1, MSG_NOSIGNAL);
    const auto wrong = kill_once(owner, child, options, size_bytes, done_count % 2 == 0);
    ++done_count;
    if (wrong) {
      ++failed_count;
      std::printf("round %llu: %s\n", static_cast<unsigned long long>(done_count), wrong->c_str());
      kill(child.id, SIGKILL);
    }
    give_figure(text_of("%llu of %llu importers killed, %llu rounds failed",
                        static_cast<unsigned long long>(done_count),
                        static_cast<unsigned long long>(count),
                        static_cast<unsigned long long>(failed_count)));
  }
  for (std::size_t i = done_count; i < children.size(); ++i) {
    kill(children[i].id, SIGKILL);
    (void)wait_for_end(children[i].id);
  }
  const std::uint64_t missing = missing_bytes(driver, before, 4 * mib);
  const std::string text =
      text_of("%llu of %llu importers killed, %llu rounds failed, %llu MiB missing",
              static_cast<unsigned long long>(done_count), static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(failed_count),
              static_cast<unsigned long long>(missing / mib));
  std::printf("%s\n", text.c_str());
  give_figure(text);
  return failed_count == 0 && missing == 0 ? verdict::ok : verdict::failed;
}

}  // namespace vmm::tools
