// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Two MPI ranks use one block of memory: rank 0 makes it and writes numbers, rank 1 maps the same
// memory, adds them and writes the sum behind them, which rank 0 then reads. No byte of the numbers
// travels by MPI.
//
// A fabric handle is 64 bytes, so MPI itself can carry it, to another node of an IMEX domain too.
// If the driver has no fabric, or this process has no channel, rank 0 prints that, and the ranks
// use descriptors over a Unix socket, on one machine.
//
//   mpirun -n 2 example_mpi_share         VMM_BACKEND chooses the driver (cuda:0, host)
#include <mpi.h>
#include <unistd.h>

#include <array>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

import vmm;
import vmm.share;

namespace {

constexpr std::uint64_t count = 1'000'000;

// The first message of rank 0 to rank 1: the way in which the block is sent.
enum class way : int { none, fabric, descriptors };

int fail(const char* where, const vmm::error& what) {
  std::fprintf(stderr, "%s: %s\n", where, vmm::describe(what).c_str());
  return 1;
}

template <class T, std::size_t n>
void send(int rank, std::span<T, n> what) {
  MPI_Send(what.data(), static_cast<int>(what.size_bytes()), MPI_BYTE, rank, 0, MPI_COMM_WORLD);
}
template <class T, std::size_t n>
void hear(int rank, std::span<T, n> what) {
  MPI_Recv(what.data(), static_cast<int>(what.size_bytes()), MPI_BYTE, rank, 0, MPI_COMM_WORLD,
           MPI_STATUS_IGNORE);
}
void send_way(int rank, way chosen) { send(rank, std::span(&chosen, 1)); }
way hear_way(int rank) {
  way chosen = way::none;
  hear(rank, std::span(&chosen, 1));
  return chosen;
}

// ---- rank 0 ----

vmm::status write_numbers(vmm::any_backend& driver, vmm::address at) {
  std::vector<std::uint64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 1);
  return driver.write(at, std::as_bytes(std::span(numbers)));
}

int print_sum(vmm::any_backend& driver, vmm::address at) {
  std::uint64_t sum = 0;
  const auto read = driver.read(std::as_writable_bytes(std::span(&sum, 1)), at + count * 8);
  if (!read) return fail("rank 0", read.error());
  std::printf("rank 0: rank 1 wrote %" PRIu64 "\n", sum);
  return 0;
}

// A fabric handle goes by MPI. The block must live until the other side has imported it.
int lend_by_fabric(vmm::any_backend& driver, const vmm::exported_block& block) {
  vmm::share_message offer;
  const auto described = block.describe();
  if (!described) {
    send_way(1, way::none);
    return fail("rank 0", described.error());
  }
  offer.kind = vmm::share_message_kind::offer;
  offer.block = *described;
  offer.block.id = 1;
  send_way(1, way::fabric);
  auto bytes = vmm::encode_message(offer);
  send(1, std::span(bytes));
  return hear_way(1) == way::fabric ? print_sum(driver, block.data_address()) : 1;
}

// Descriptors go by a socket in a directory of this user's own; MPI carries its name and the
// secret.
int lend_by_descriptors(vmm::any_backend& driver, const vmm::exported_block& block) {
  std::array<char, 64> folder{"/tmp/vmm_mpi_XXXXXX"};
  vmm::share_options options;
  options.timeout_ms = 20'000;
  const auto secret = vmm::share_secret::make();
  if (!secret || ::mkdtemp(folder.data()) == nullptr) {
    send_way(1, way::none);
    return secret ? (std::perror(folder.data()), 1) : fail("rank 0", secret.error());
  }
  options.secret = *secret;
  const std::string path = std::string(folder.data()) + "/socket";
  auto listener = vmm::share_listener::open(path);
  if (!listener) {
    ::rmdir(folder.data());
    send_way(1, way::none);
    return fail("rank 0", listener.error());
  }
  send_way(1, way::descriptors);
  send(1, std::span(folder));
  send(1, std::span(&options.secret, 1));
  int failed = 0;
  if (auto channel = listener->accept(options); !channel) {
    failed = fail("rank 0", channel.error());
  } else if (const auto id = channel->lend(block); !id) {
    failed = fail("rank 0", id.error());
  } else if (const auto event = channel->next();
             !event || event->kind != vmm::share_event::what::released) {
    failed = event ? 1 : fail("rank 0", event.error());  // returned: the sum is written
  } else {
    failed = print_sum(driver, block.data_address());
  }
  listener->close();
  ::rmdir(folder.data());
  return failed;
}

int own(vmm::any_backend& driver) {
  vmm::export_request wanted;
  wanted.size_bytes = (count + 1) * sizeof(std::uint64_t);
  wanted.kind = vmm::share_kind::fabric;
  auto block = vmm::exported_block::make(driver, wanted);
  const bool fabric = block.has_value();
  if (!fabric) {
    std::printf("rank 0: no fabric handle (%s): descriptors instead\n",
                vmm::describe(block.error()).c_str());
    std::fflush(stdout);
    wanted.kind = vmm::share_kind::posix_fd;
    block = vmm::exported_block::make(driver, wanted);
  }
  vmm::status written = block ? write_numbers(driver, block->data_address()) : block.error();
  if (!written) {
    send_way(1, way::none);
    return fail("rank 0", written.error());
  }
  return fabric ? lend_by_fabric(driver, *block) : lend_by_descriptors(driver, *block);
}

// ---- rank 1 ----

vmm::status add_numbers(vmm::any_backend& driver, vmm::address at) {
  std::vector<std::uint64_t> numbers(count);
  if (vmm::status read = driver.read(std::as_writable_bytes(std::span(numbers)), at); !read)
    return read;
  const std::uint64_t sum = std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0});
  std::printf("rank 1: %" PRIu64 " numbers, their sum is %" PRIu64 "\n", count, sum);
  std::fflush(stdout);
  return driver.write(at + count * 8, std::as_bytes(std::span(&sum, 1)));
}

vmm::status borrow_by_fabric(vmm::any_backend& driver) {
  vmm::share_bytes bytes{};
  hear(0, std::span(bytes));
  const auto message = vmm::decode_message(bytes);
  if (!message) return message.error();
  const auto received = vmm::received_block::of(message->block, {});
  if (!received) return received.error();
  auto block = vmm::imported_block::import_block(driver, *received);
  if (!block) return block.error();
  const auto at = block->map();
  if (!at) return at.error();
  if (vmm::status added = add_numbers(driver, *at); !added) return added;
  return block->release();
}

vmm::status borrow_by_descriptors(vmm::any_backend& driver) {
  std::array<char, 64> folder{};
  vmm::share_options options;
  options.timeout_ms = 20'000;
  hear(0, std::span(folder));
  hear(0, std::span(&options.secret, 1));
  auto channel = vmm::share_channel::connect(std::string(folder.data()) + "/socket", options);
  if (!channel) return channel.error();
  auto block = channel->borrow(driver);
  if (!block) return block.error();
  if (vmm::status added = add_numbers(driver, block->data_address()); !added) return added;
  return channel->give_back(*block);
}

int borrow(vmm::any_backend& driver) {
  const way chosen = hear_way(0);
  if (chosen == way::none) return 1;  // rank 0 has printed the reason
  const vmm::status done =
      chosen == way::fabric ? borrow_by_fabric(driver) : borrow_by_descriptors(driver);
  if (chosen == way::fabric) send_way(0, done ? way::fabric : way::none);
  return done ? 0 : fail("rank 1", done.error());
}

int run(int rank) {
  auto driver = vmm::open_backend();
  // Neither rank waits for one that has no driver.
  int ready = driver.has_value() ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &ready, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (!driver) return fail(rank == 0 ? "rank 0" : "rank 1", driver.error());
  if (ready == 0 || rank > 1) return ready == 0 ? 1 : 0;
  return rank == 0 ? own(*driver) : borrow(*driver);
}

}  // namespace

int main(int argc, char** argv) {
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 1;
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int failed = 0;
  if (size >= 2) {
    failed = run(rank);
  } else {
    std::fputs("example_mpi_share: two ranks are needed: mpirun -n 2 example_mpi_share\n", stderr);
    failed = 2;
  }
  MPI_Finalize();
  return failed;
}
