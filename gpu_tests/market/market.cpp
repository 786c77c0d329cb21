// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the times of memory that goes from one tenant of vmm-owner to another on a GPU, and that no
// kill of a tenant or an owner costs a word.
// Method: each part has an owner with room for one of its processes, in which kernels write without
// a pause. A taker measures from its create to the end of the first kernel. What is received is
// checked by words, and what a giver keeps or gets back, too.
//
//   vmm-gpu-market PATH-OF-vmm-owner [--host] [PART...]
//
//   free       idle memory of a manager: 1 GiB and 32 GiB, of one job and cleared
//   tail       1 GiB of the tail of a growable range
//   suspended  a region of 8 GiB whose contents are kept
//   warm       a warm pair of calls of a pool as a tenant, beside one without an owner, crossed
//   kills      a tenant is killed 100 times
//   children   the same, with a forked child that holds the driver open
//   owners     the owner is killed 100 times
//   engines    two that want 80 % each at once, and live sets that never fit
//
// All without a name. A row a figure, as CSV; a part has 100 s. --host: small sizes and the host
// driver, without a GPU; its times mean nothing.
#include "processes.hpp"

namespace {

using namespace vmm::market_gpu;

// ---- a giver and a taker -------------------------------------------------------------

// Takes the bytes once a line is there, and reports the time and the words that are not zero.
void take_in_turns(const line& to, std::uint64_t bytes, bool is_one_job) {
  place here;
  here.keep_busy();
  const vmm::address_range range = good(here.driver.reserve({bytes, 0, {}}));
  to.send();
  while (to.receive()) {
    report made{.begin_us = now_us()};
    const auto memory =
        good(here.driver.create({.size_bytes = bytes, .where = here.driver.home()}));
    here.map(range, memory);
    here.touch(range.base);
    made.end_us = now_us();
    if (!is_one_job) made.wrong_words = here.uncleared(range);
    here.fill(range, 3);
    good(here.driver.unmap(range));
    good(here.driver.release(memory));
    to.send(made);
  }
}

struct exchange {
  const char* name;
  std::uint64_t bytes;      // that go
  std::uint64_t all_bytes;  // of the giver
  int rounds;
  bool is_one_job;
  std::function<void(const line&)> giver;  // has the bytes whenever it has replied
  // Memory in use comes back to a guarantee each time; a borrower is left in peace.
  bool is_in_use = false;
};

void measure(const exchange& what) {
  owner lender(what.all_bytes + what.bytes / 2 + 2 * beside_bytes(), 200);
  const std::string share = what.is_one_job ? "job=1,name=" : "name=";
  const process giver = start(share + "giver", what.giver);
  const std::string guarantee = ",elastic,guarantee=" + std::to_string(what.bytes + beside_bytes());
  const process taker =
      start(share + "taker" + (what.is_in_use ? guarantee : ""),
            [&](const line& to) { take_in_turns(to, what.bytes, what.is_one_job); });
  (void)giver.to.expect();
  (void)taker.to.expect();
  std::vector<double> times;
  std::uint64_t wrong_words = 0;
  for (int round = 0; round < what.rounds; ++round) {
    giver.to.send();
    wrong_words += giver.to.expect().wrong_words;
    taker.to.send();
    const report took = taker.to.expect();
    wrong_words += took.wrong_words;
    times.push_back(took.end_us - took.begin_us);
  }
  giver.to.send();
  wrong_words += giver.to.expect().wrong_words;
  const spread found(times);
  row("%s,%s,%d,%.3f,%.3f,%llu", what.name, what.is_one_job ? "one job" : "cleared", what.rounds,
      found.p50 / 1e3, found.most / 1e3, static_cast<unsigned long long>(wrong_words));
  taker.end();
  giver.end();
  lender.wait();
}

// ---- free ----------------------------------------------------------------------------

void give_idle(const line& to, std::uint64_t bytes) {
  place here;
  here.keep_busy();
  vmm::manager blocks(here.driver);
  to.send();
  while (to.receive()) {
    const vmm::address block = good(blocks.allocate(bytes));
    here.fill({block, bytes}, 5);
    const report made{.wrong_words = here.wrong({block, bytes}, 5)};
    good(blocks.free(block));
    to.send(made);
  }
}

void run_free() {
  for (const bool is_one_job : {true, false}) {
    for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{32}}) {
      const std::uint64_t bytes = count * chosen.gib;
      measure({count == 1 ? "free 1 GiB" : "free 32 GiB", bytes, bytes,
               rounds_of(count == 1 ? 30 : 8), is_one_job,
               [bytes](const line& to) { give_idle(to, bytes); }});
    }
  }
}

// ---- tail ----------------------------------------------------------------------------

void give_tail(const line& to) {
  const std::uint64_t kept_bytes = chosen.gib, all_bytes = 2 * chosen.gib;
  place here;
  here.keep_busy();
  vmm::manager blocks(here.driver);
  vmm::growable_range cache(blocks,
                            {.segment_bytes_max = 8 * chosen.gib,
                             .handle_bytes = std::max(chosen.gib / 16, std::uint64_t{2} << 20),
                             .zero_new = false,
                             .gives_tail = true});
  good(cache.grow(kept_bytes));
  const vmm::address base = cache.statistics().base;
  here.fill({base, kept_bytes}, 7);
  std::optional<vmm::growable_pin> pin;
  to.send();
  while (to.receive()) {
    good(cache.grow(all_bytes));
    here.fill({base + kept_bytes, all_bytes - kept_bytes}, 9);
    pin.emplace(good(cache.pin({.size_bytes = kept_bytes})));
    to.send({.wrong_words = here.wrong({base, kept_bytes}, 7)});
  }
}

void run_tail() {
  for (const bool is_one_job : {true, false})
    measure({"tail 1 GiB", chosen.gib, 2 * chosen.gib, rounds_of(30), is_one_job, give_tail, true});
}

// ---- suspended -----------------------------------------------------------------------

void give_suspended(const line& to) {
  const std::uint64_t bytes = 8 * chosen.gib;
  place here;
  here.keep_busy();
  vmm::manager_options options;
  options.streams_forgotten = true;  // it waits for its own streams alone
  vmm::manager blocks(here.driver, options);
  const vmm::address block = good(blocks.allocate(bytes));
  here.fill({block, bytes}, 11);
  vmm::suspender regions;
  good(regions.add(blocks, {.tag = "cache"}));
  (void)good(regions.suspend());  // pins the backup
  good(regions.resume());
  to.send();
  while (to.receive()) {
    good(regions.resume());
    const report made{.wrong_words = here.wrong({block, bytes}, 11)};
    good(regions.offer());
    to.send(made);
  }
}

void run_suspended() {
  measure({"suspended 8 GiB", 8 * chosen.gib, 8 * chosen.gib, rounds_of(8), false, give_suspended,
           true});
}

// ---- warm ----------------------------------------------------------------------------

// Turns of warm pairs of calls.
void call_in_turns(const line& to) {
  place here;
  vmm::stream_pool pool(here.driver);
  to.send();
  while (to.receive()) {
    report made{.begin_us = now_us()};
    for (int i = 0; i < 400'000 / chosen.divisor; ++i) {
      const vmm::address at = good(pool.allocate(1 << 20, vmm::stream_handle::default_stream));
      good(pool.free(at, vmm::stream_handle::default_stream));
    }
    made.end_us = now_us();
    to.send(made);
  }
}

// Many processes of each kind, as a process has a speed of its own by the places of its pages, and
// the best turn of each, as others use the processor.
// The interval is that of a process' ratio to the plain one beside it.
void run_warm() {
  owner lender(8 * chosen.gib, 200);
  const std::string folder = std::getenv("VMM_OWNER");
  std::vector<double> ratios, plain_ns, tenant_ns;
  for (int pair = 0; pair < rounds_of(12); ++pair) {
    ::unsetenv("VMM_OWNER");
    const process plain = start("", call_in_turns);
    ::setenv("VMM_OWNER", folder.c_str(), 1);
    const process tenant = start("", call_in_turns);
    (void)plain.to.expect();
    (void)tenant.to.expect();
    const auto turn = [](const process& of) {
      of.to.send();
      const report made = of.to.expect();
      return (made.end_us - made.begin_us) * 1e3 / (400'000 / chosen.divisor);
    };
    double plain_best_ns = 1e9, tenant_best_ns = 1e9;
    for (int i = 0; i < rounds_of(8); ++i) {
      const bool is_plain_first = i % 2 == 0;
      const double first = turn(is_plain_first ? plain : tenant);
      const double second = turn(is_plain_first ? tenant : plain);
      plain_ns.push_back(is_plain_first ? first : second);
      tenant_ns.push_back(is_plain_first ? second : first);
      plain_best_ns = std::min(plain_best_ns, plain_ns.back());
      tenant_best_ns = std::min(tenant_best_ns, tenant_ns.back());
    }
    ratios.push_back(tenant_best_ns / plain_best_ns);
    plain.end();
    tenant.end();
  }
  lender.wait();
  std::sort(ratios.begin(), ratios.end());
  row("warm pair of calls,plain ns,%zu,%.2f,%.2f,0", plain_ns.size(), spread(plain_ns).p50,
      spread(plain_ns).most);
  row("warm pair of calls,tenant ns,%zu,%.2f,%.2f,0", tenant_ns.size(), spread(tenant_ns).p50,
      spread(tenant_ns).most);
  row("warm pair of calls,tenant/plain by the best turns of %zu pairs: lowest %.4f,%zu,%.4f,%.4f,0",
      ratios.size(), ratios.front(), tenant_ns.size(), spread(ratios).p50, ratios.back());
}

// ---- parts ---------------------------------------------------------------------------

struct part {
  const char* name;
  void (*run)();
};
constexpr part parts[] = {{"free", run_free},
                          {"tail", run_tail},
                          {"suspended", run_suspended},
                          {"warm", run_warm},
                          {"kills", [] { run_kills(false); }},
                          {"children", [] { run_kills(true); }},
                          {"owners", run_owner_kills},
                          {"engines", run_engines}};

// Each part has a process, so that one that hangs ends alone.
bool run_part(const part& what) {
  const double begin = now_us();
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    what.run();
    std::_Exit(0);
  }
  int status = 0;
  pid_t ended = 0;
  while (ended == 0 && now_us() - begin < 100e6) {
    ::poll(nullptr, 0, 20);
    ended = ::waitpid(child, &status, WNOHANG);
  }
  if (ended == 0) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
  const bool is_good = ended != 0 && status == 0;
  row("# %s: %s in %.1f s", what.name, is_good ? "ended" : "FAILED", (now_us() - begin) / 1e6);
  return is_good;
}

// The device's name and bytes, from a process that ends.
void look_at_device() {
  ::unsetenv("VMM_OWNER");
  const process child = start("", [](const line& to) {
    auto driver = good(vmm::open_backend(chosen.backend));
    report made{.wrong_words = good(driver.query_memory(driver.home())).total_bytes};
    if (auto* const cuda = vmm::driver_in<vmm::cuda_driver>(driver)) {
      const auto key = vmm::market_device_of(*cuda);
      if (!key) fail("the device has no UUID");
      std::snprintf(made.text, sizeof made.text, "%s", vmm::market_device_text(*key).c_str());
    }
    to.send(made);
  });
  const report made = child.to.expect();
  child.end();
  chosen.device = made.text[0] == 0 ? chosen.backend : made.text;
  chosen.total_bytes = chosen.backend == "host" ? 64 * chosen.gib : made.wrong_words;
}

}  // namespace

int main(int count, char** words) {
  std::vector<std::string> names;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const bool is_part = std::any_of(std::begin(parts), std::end(parts),
                                     [&](const part& each) { return each.name == word; });
    if (word == "--host") {
      chosen.backend = "host";
      chosen.gib = std::uint64_t{16} << 20;
      chosen.divisor = 10;
    } else if (is_part) {
      names.push_back(word);
    } else if (chosen.owner.empty() && word[0] != '-') {
      chosen.owner = word;
    } else {
      fail("'" + word + "' is not a part");
    }
  }
  if (::access(chosen.owner.c_str(), X_OK) != 0) fail("name the program vmm-owner");
  ::signal(SIGPIPE, SIG_IGN);
  look_at_device();
  utsname system{};
  ::uname(&system);
  const long pidfd = ::syscall(SYS_pidfd_open, ::getpid(), 0);
  row("# %s %s, pidfd_open %s, device %s, %llu MiB", system.sysname, system.release,
      pidfd >= 0 ? "there" : "not there", chosen.device.c_str(),
      static_cast<unsigned long long>(chosen.total_bytes >> 20));
  row("%s", "what,of,rounds,p50 ms,most ms,wrong words");
  bool is_good = true;
  for (const part& each : parts) {
    const bool is_named = std::find(names.begin(), names.end(), each.name) != names.end();
    if (names.empty() || is_named) is_good = run_part(each) && is_good;
  }
  return is_good ? 0 : 1;
}
