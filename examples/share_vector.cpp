// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// A vector that another process reads: lent, grown while it is lent, and taken back. Its first
// element is the count of those that follow, since whole granules are lent.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <utility>

import vmm;
import vmm.manager;
import vmm.share;

namespace {

int fail(const char* where, const vmm::error& what) {
  std::fprintf(stderr, "%s: %s\n", where, vmm::describe(what).c_str());
  return 1;
}

void print_sum(const vmm::imported_block& block) {
  const auto* const numbers = block.data_address().as<const std::uint64_t>();
  std::uint64_t sum = 0;
  for (std::uint64_t i = 1; i <= numbers[0]; ++i) sum += numbers[i];
  std::printf("reader: %" PRIu64 " numbers, their sum is %" PRIu64 "\n", numbers[0], sum);
  std::fflush(stdout);
}

// Reads the blocks lent to it until they are withdrawn.
int read_numbers(int socket, const vmm::share_options& options) {
  auto driver = vmm::host_driver::open();
  if (!driver) return fail("reader", driver.error());
  auto channel = vmm::share_channel::adopt(socket, vmm::share_role::accepting, options);
  if (!channel) return fail("reader", channel.error());
  vmm::imported_block block;
  for (;;) {
    const auto event = channel->next();
    if (!event) return fail("reader", event.error());
    if (event->kind == vmm::share_event::what::offered) {
      auto made =
          vmm::imported_block::import_block(*driver, event->block, {.rights = vmm::access::read});
      if (!made) return fail("reader", made.error());
      block = std::move(*made);
      if (const auto at = block.map(); !at) return fail("reader", at.error());
    } else if (event->kind == vmm::share_event::what::updated) {
      if (const auto at = block.update(event->block); !at) return fail("reader", at.error());
    } else {
      break;  // withdrawn
    }
    print_sum(block);  // before the owner is notified and may write again
    if (const auto accepted = channel->accept(event->id); !accepted)
      return fail("reader", accepted.error());
  }
  const vmm::status given = channel->give_back(block);
  return given ? 0 : fail("reader", given.error());
}

vmm::status append(vmm::vector<std::uint64_t>& numbers, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    if (vmm::status pushed = numbers.push_back(numbers.size()); !pushed) return pushed;
  }
  numbers[0] = numbers.size() - 1;
  return {};
}

// Lends a vector, lets it grow, notifies the reader, and takes it back.
int lend_numbers(int socket, const vmm::share_options& options) {
  auto driver = vmm::host_driver::open();
  if (!driver) return fail("owner", driver.error());
  vmm::manager_options shareable;
  shareable.shareable = vmm::share_kind::posix_fd;
  vmm::manager memory(*driver, shareable);
  vmm::vector<std::uint64_t> numbers(memory);
  if (const auto made = append(numbers, 1001); !made) return fail("owner", made.error());

  auto block = vmm::exported_block::from(memory, numbers.data_address(),
                                         {.rule = vmm::export_rule::followed});
  if (!block) return fail("owner", block.error());
  auto channel = vmm::share_channel::adopt(socket, vmm::share_role::connecting, options);
  if (!channel) return fail("owner", channel.error());
  const auto id = channel->lend(*block);
  if (!id) return fail("owner", id.error());

  if (const auto grown = append(numbers, 1'000'000); !grown) return fail("owner", grown.error());
  if (const auto moved = block->moved_to(numbers.data_address()); !moved)
    return fail("owner", moved.error());
  if (const auto epoch = channel->update(*id); !epoch) return fail("owner", epoch.error());
  if (const auto accepted = channel->next(); !accepted) return fail("owner", accepted.error());
  if (const auto back = channel->take_back(*id); !back) return fail("owner", back.error());
  std::printf("owner: the vector is back, with %" PRIu64 " elements\n", numbers.size());
  return 0;
}

}  // namespace

int main() {
  // The secret is made before the fork: only these two processes have it.
  vmm::share_options options;
  const auto secret = vmm::share_secret::make();
  if (!secret) return fail("main", secret.error());
  options.secret = *secret;
  options.timeout_ms = 20'000;
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return 1;
  const pid_t reader = ::fork();  // before any driver is opened
  if (reader == 0) {
    ::close(ends[0]);
    return read_numbers(ends[1], options);
  }
  ::close(ends[1]);
  const int owner_failed = lend_numbers(ends[0], options);
  int status = 0;
  ::waitpid(reader, &status, 0);
  return owner_failed != 0 || status != 0 ? 1 : 0;
}
