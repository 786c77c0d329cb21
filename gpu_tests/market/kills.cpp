// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Tenants and owners that are killed, and engines that do not fit beside each other.
#include "processes.hpp"

namespace vmm::market_gpu {
namespace {

// A child's witness closes before the driver has ended its work, by 55 ms on an H100.
int quiet_ms_of(bool with_children) { return with_children ? 200 : 20; }
constexpr std::size_t batch = 10;

// Whether a part may begin another round.
bool is_early(double begin_us) { return now_us() - begin_us < 80e6; }

std::uint64_t piece_bytes() { return std::max(chosen.gib / 4, std::uint64_t{64} << 20); }
constexpr std::uint64_t counter_bytes = std::uint64_t{2} << 20;

// Of the device, in a process without an owner.
std::uint64_t free_bytes() {
  const char* const before = std::getenv("VMM_OWNER");
  const std::string folder = before == nullptr ? "" : before;
  ::unsetenv("VMM_OWNER");
  const process child = start("", [](const line& to) {
    auto driver = good(vmm::open_backend(chosen.backend));
    to.send({.wrong_words = good(driver.query_memory(driver.home())).free_bytes});
  });
  const std::uint64_t found = child.to.expect().wrong_words;
  child.end();
  if (before != nullptr) ::setenv("VMM_OWNER", folder.c_str(), 1);
  return found;
}

void print_left(const char* what, std::uint64_t free_before) {
  const std::uint64_t after = free_bytes();
  const std::uint64_t left = free_before - std::min(free_before, after);
  if (chosen.backend != "host" && left > (std::uint64_t{16} << 20))
    fail("the device has less free memory after the part than before");
  row("%s,MiB that are held after it,1,%llu,%llu,0", what,
      static_cast<unsigned long long>(left >> 20), static_cast<unsigned long long>(left >> 20));
}

// Writes its piece from a line on until it is killed.
void be_victim(const line& to, bool has_child) {
  place here;
  const vmm::address_range mine = here.mapped(piece_bytes());
  here.fill(mine, 13);
  report made{.wrong_words = here.wrong(mine, 13)};
  if (has_child) {
    const pid_t child = ::fork();
    if (child == 0) {
      (void)::alarm(100);
      for (;;) ::pause();
    }
    std::snprintf(made.text, sizeof made.text, "%d", static_cast<int>(child));
  }
  to.send(made);
  (void)to.receive();
  here.keep_busy(mine, 13);
  to.send();
  for (;;) ::pause();
}

// For each line a report before its request and one after it. It keeps what it has; a batch later
// it gives all of it back.
void take_what_is_left(const line& to) {
  place here;
  to.send();
  for (;;) {
    std::vector<std::pair<vmm::address_range, vmm::physical_handle>> taken;
    while (taken.size() < batch) {
      if (!to.receive()) return;
      const vmm::address_range range = good(here.driver.reserve({piece_bytes(), 0, {}}));
      to.send({.begin_us = now_us()});
      const auto memory =
          good(here.driver.create({.size_bytes = piece_bytes(), .where = here.driver.home()}));
      report made{.end_us = now_us()};
      here.map(range, memory);
      made.wrong_words = here.uncleared(range);
      here.fill(range, 17);
      ::poll(nullptr, 0, 5);  // work of the dead would show
      made.wrong_words += here.wrong(range, 17);
      taken.push_back({range, memory});
      to.send(made);
    }
    std::uint64_t wrong_words = 0;
    for (const auto& [range, memory] : taken) {
      wrong_words += here.wrong(range, 17);
      good(here.driver.unmap(range));
      good(here.driver.release(memory));
      good(here.driver.free_reservation(range));
    }
    to.send({.wrong_words = wrong_words});
  }
}

}  // namespace

void run_kills(bool with_children) {
  const std::uint64_t free_before = free_bytes();
  const int quiet_ms = quiet_ms_of(with_children);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  owner lender(batch * (piece_bytes() + counter_bytes) + counter_bytes, quiet_ms);
  const process taker = start("name=taker", take_what_is_left);
  (void)taker.to.expect();
  std::vector<double> waits;
  std::uint64_t wrong_words = 0, early = 0;
  const double begin_us = now_us();
  while (waits.size() < static_cast<std::size_t>(rounds_of(100)) && is_early(begin_us)) {
    std::vector<process> victims;
    std::vector<report> reports;
    while (victims.size() < batch)
      victims.push_back(
          start("name=victim", [&](const line& to) { be_victim(to, with_children); }));
    for (const process& each : victims) reports.push_back(each.to.expect());
    for (std::size_t i = 0; i < batch; ++i) {
      wrong_words += reports[i].wrong_words;
      victims[i].to.send();
      (void)victims[i].to.expect();
      taker.to.send();
      (void)taker.to.expect();
      ::poll(nullptr, 0, 10);
      victims[i].end();
      if (with_children) {
        ::poll(nullptr, 0, 30);  // lent now would be lent too early
        const pid_t child = std::atoi(reports[i].text);
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
      }
      const double ended_us = now_us();
      const report took = taker.to.expect();
      wrong_words += took.wrong_words;
      early += took.end_us < ended_us ? 1 : 0;
      waits.push_back(took.end_us - ended_us - quiet_ms * 1000);
    }
    wrong_words += taker.to.expect().wrong_words;
  }
  const char* const what = with_children ? "killed tenant with a child" : "killed tenant";
  const spread found(waits);
  row("%s,from the last end and %d ms until it is lent; %llu too early,%zu,%.3f,%.3f,%llu", what,
      quiet_ms, static_cast<unsigned long long>(early), waits.size(), found.p50 / 1e3,
      found.most / 1e3, static_cast<unsigned long long>(wrong_words));
  taker.end();
  lender.wait();
  print_left(what, free_before);
  if (early + wrong_words != 0) fail("memory was lent too early, or changed");
}

// ---- owners --------------------------------------------------------------------------

namespace {

// Keeps its piece, and counts its wrong words for each line.
void hold(const line& to) {
  place here;
  const vmm::address_range mine = here.mapped(piece_bytes());
  here.fill(mine, 19);
  here.keep_busy();
  to.send();
  while (to.receive()) to.send({.wrong_words = here.wrong(mine, 19)});
}

// For each line takes a piece, and gives it back.
void borrow(const line& to) {
  place here;
  const vmm::address_range range = good(here.driver.reserve({piece_bytes(), 0, {}}));
  to.send();
  while (to.receive()) {
    auto memory = here.driver.create({.size_bytes = piece_bytes(), .where = here.driver.home()});
    while (!memory) {
      if (memory.error().code != vmm::errc::unavailable &&
          memory.error().code != vmm::errc::out_of_memory)
        fail(vmm::describe(memory.error()));
      ::poll(nullptr, 0, 1);
      memory = here.driver.create({.size_bytes = piece_bytes(), .where = here.driver.home()});
    }
    here.map(range, *memory);
    here.touch(range.base);
    report made{.end_us = now_us(), .wrong_words = here.uncleared(range)};
    here.fill(range, 23);
    made.wrong_words += here.wrong(range, 23);
    good(here.driver.unmap(range));
    good(here.driver.release(*memory));
    to.send(made);
  }
}

}  // namespace

void run_owner_kills() {
  const std::uint64_t free_before = free_bytes();
  owner lender(2 * piece_bytes() + beside_bytes() + counter_bytes, quiet_ms_of(false));
  const process holder = start("name=holder", hold);
  const process borrower = start("name=borrower", borrow);
  (void)holder.to.expect();
  (void)borrower.to.expect();
  std::vector<double> waits;
  std::uint64_t wrong_words = 0;
  const double begin_us = now_us();
  const auto wanted = static_cast<std::size_t>(rounds_of(100));
  for (int round = 0; waits.size() < wanted && is_early(begin_us); ++round) {
    if (round % 2 == 0) borrower.to.send();  // under a request
    if (round % 4 == 0) ::poll(nullptr, 0, 1);
    lender.kill();
    const double killed_us = now_us();
    lender.run();
    if (round % 2 != 0) borrower.to.send();
    const report took = borrower.to.expect();
    if (took.end_us > killed_us) waits.push_back(took.end_us - killed_us);
    holder.to.send();
    wrong_words += took.wrong_words + holder.to.expect().wrong_words;
  }
  const spread found(waits);
  row("killed owner,from its end to a kernel in memory of the next,%zu,%.3f,%.3f,%llu",
      waits.size(), found.p50 / 1e3, found.most / 1e3,
      static_cast<unsigned long long>(wrong_words));
  borrower.end();
  holder.end();
  lender.wait();
  print_left("killed owner", free_before);
  if (wrong_words != 0) fail("memory was changed");
}

// ---- engines -------------------------------------------------------------------------

namespace {

// Opens the driver, reports how long it took and a refusal, and stays.
void be_engine(const line& to) {
  report made{.begin_us = now_us()};
  auto opened = open_patiently();
  made.end_us = now_us();
  if (!opened)
    std::snprintf(made.text, sizeof made.text, "%s", vmm::describe(opened.error()).c_str());
  to.send(made);
  (void)to.receive();
}

// Takes 60 % of the device, and keeps it.
void fill_device(const line& to) {
  place here;
  report made{.begin_us = now_us()};
  const std::uint64_t bytes = chosen.total_bytes / 10 * 6 / chosen.gib * chosen.gib;
  const auto memory = here.driver.create({.size_bytes = bytes, .where = here.driver.home()});
  made.end_us = now_us();
  if (!memory)
    std::snprintf(made.text, sizeof made.text, "%s", vmm::describe(memory.error()).c_str());
  to.send(made);
  (void)to.receive();
}

void print_refusal(const char* what, const report& refused) {
  row("engines,%s,1,%.3f,%.3f,0", what, (refused.end_us - refused.begin_us) / 1e3,
      (refused.end_us - refused.begin_us) / 1e3);
  row("# %s", refused.text);
}

}  // namespace

void run_engines() {
  {
    owner lender(chosen.total_bytes / 100 * 98, 200);
    const std::string share =
        "guarantee=" + std::to_string(chosen.total_bytes / 10 * 8 >> 20) + "MiB";
    process first = start(share + ",name=one", be_engine);
    process second = start(share + ",name=two", be_engine);
    report first_made = first.to.expect(), second_made = second.to.expect();
    if (first_made.text[0] != 0) {
      std::swap(first, second);
      std::swap(first_made, second_made);
    }
    if (first_made.text[0] != 0 || second_made.text[0] == 0) fail("not one of two engines is open");
    print_refusal("80 of 100 each: the other is refused with names", second_made);
    const process third = start(share + ",name=three,wait=30", be_engine);
    ::poll(nullptr, 0, 500);
    const double ended_us = now_us();
    first.end();
    const report third_made = third.to.expect();
    if (third_made.text[0] != 0) fail(third_made.text);
    row("engines,80 of 100 each: one that waits has it after the other's end,1,%.3f,%.3f,0",
        (third_made.end_us - ended_us) / 1e3, (third_made.end_us - ended_us) / 1e3);
    second.end();
    third.end();
    lender.wait();
  }
  owner lender(chosen.total_bytes / 100 * 98, 200);
  const process first = start("name=one", fill_device);
  const report first_made = first.to.expect();
  if (first_made.text[0] != 0) fail(first_made.text);
  const process second = start("name=two", fill_device);
  const report second_made = second.to.expect();
  if (second_made.text[0] == 0) fail("120 % of a device were lent");
  print_refusal("live sets of 60 of 100 each: refused with names at the deadline", second_made);
  second.end();
  first.end();
  lender.wait();
}

}  // namespace vmm::market_gpu
