// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// write_sample FOLDER: histories for the tests of what reads them. pool.history has everything that
// a pool does on the fake driver; lost.history is of a ring that was too small for it;
// manager.history and manager_lost.history are a manager's.
#include "../../tools/program/standard.hpp"

import vmm.backend;
import vmm.fake;
import vmm.manager;
import vmm.observe;
import vmm.stream;

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

void insist(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "write_sample: %s\n", what);
  std::exit(1);
}

void write(const vmm::result<vmm::history>& taken, const std::string& path) {
  insist(taken.has_value(), "a history is taken");
  insist(vmm::write_history(*taken, path.c_str()).has_value(), "a history is written");
}

class program {
 public:
  program(const std::string& path, std::uint64_t event_count) : path_(path) {
    vmm::history_options how;
    how.event_count = event_count;
    ring_ = std::move(*vmm::history_ring::make(how));
    vmm::pool_options options;
    options.policy.handle_bytes_max = 4 * mib;
    options.policy.headroom = 0;
    options.policy.tuning.slack_bytes = 0;
    options.policy.tuning.min_move_share = 0;
    options.policy.tuning.growth_share = 0;
    options.budget_bytes = 80 * mib;
    options.wait_when_short = false;
    options.recorder = ring_.get();
    options.leak_hook.hook = nullptr;
    pool_ = std::make_unique<vmm::stream_pool>(driver_, options);
    for (vmm::stream_handle& each : streams_) each = *driver_.create_stream();
  }
  ~program() {
    pool_.reset();
    for (const vmm::stream_handle each : streams_) (void)driver_.destroy_stream(each);
  }
  program(const program&) = delete;
  program& operator=(const program&) = delete;

  void run(int steps) {
    const std::uint32_t line = vmm::history_line("train \"step\".py", 40, "forward");
    const std::uint16_t tags[] = {0, vmm::history_tag("weights"), vmm::history_tag("activations")};
    for (int step = 0; step < steps; ++step) {
      const vmm::history_label label({tags[random_() % 3], random_() % 2 == 0 ? line : 0});
      if (random_() % 2 == 0 || blocks_.empty()) {
        allocate();
      } else {
        free(random_() % blocks_.size());
      }
      if (random_() % 400 == 0) (void)pool_->trim(random_() % (16 * mib));
      if (random_() % 50 == 0) (void)driver_.finish_all();
      note_suspension(step);
    }
    insist(!blocks_.empty(), "something is live");
    insist(pool_->pin(blocks_.front().first).has_value(), "a block is pinned");
    free(0);  // waits for its pin
    const vmm::pool_statistics now = pool_->statistics();
    insist(now.moved_count != 0, "memory moved");
    write(pool_->history().take(), path_);
  }

 private:
  // As code that suspends memory records it: one that is over, and one that is not.
  void note_suspension(int step) {
    if (step != 1'500 && step != 1'600 && step != 2'500) return;
    if (step != 1'600) suspended_ = {blocks_.front().first.value & ~(4 * mib - 1)};
    const bool ends = step == 1'600;
    pool_->history().record({ends ? vmm::history_kind::resumed : vmm::history_kind::suspended,
                             {suspended_, 4 * mib},
                             vmm::stream_handle::default_stream,
                             0});
  }
  void allocate() {
    const vmm::stream_handle stream = streams_[random_() % 2];
    const std::uint64_t size = 1 + random_() % (random_() % 4 == 0 ? 12 * mib : 100'000);
    const auto at = pool_->allocate(size, stream);
    if (at) blocks_.emplace_back(*at, stream);
  }
  void free(std::size_t which) {
    insist(pool_->free(blocks_[which].first, blocks_[which].second).has_value(), "a free");
    blocks_[which] = blocks_.back();
    blocks_.pop_back();
  }

  std::string path_;
  std::mt19937 random_{7};
  vmm::fake_driver driver_;
  std::unique_ptr<vmm::history_ring> ring_;
  std::unique_ptr<vmm::stream_pool> pool_;
  vmm::stream_handle streams_[2]{};
  vmm::address suspended_{};
  std::vector<std::pair<vmm::address, vmm::stream_handle>> blocks_;
};

// Blocks that are resized, give their memory to another, and go.
void run_manager(const std::string& path, std::uint64_t event_count, int steps) {
  vmm::fake_driver driver;
  vmm::history_options how;
  how.event_count = event_count;
  const auto ring = std::move(*vmm::history_ring::make(how));
  vmm::manager_options options;
  options.recorder = ring.get();
  options.leak_hook.hook = nullptr;
  vmm::manager blocks(driver, options);
  std::mt19937 random(9);
  std::vector<vmm::address> live;
  const auto end = [&](std::size_t which) {
    insist(blocks.free(live[which]).has_value(), "a free");
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
  };
  for (int step = 0; step < steps; ++step) {
    const std::size_t which = live.empty() ? 0 : random() % live.size();
    const std::uint64_t size = 1 + random() % (9 * mib);
    if (random() % 2 == 0 || live.empty()) {
      live.push_back(*blocks.allocate(size));
    } else if (random() % 3 == 0) {
      live[which] = *blocks.resize({.at = live[which], .size_bytes = size});
    } else {
      end(which);
    }
    if (live.size() > 60) end(which);
    if (step % 40 != 39) continue;
    // The last one's memory moves to a block of its size; it stays without any until it is freed.
    const vmm::address source = *blocks.allocate(3 * mib);
    const vmm::address target = *blocks.allocate(3 * mib);
    insist(blocks.synchronize(target).has_value() && blocks.synchronize(source).has_value(),
           "it is idle");
    insist(driver.finish_all().has_value(), "work ends");
    insist(
        blocks
            .copy({.target = target, .source = source, .size_bytes = 3 * mib}, vmm::copy_mode::move)
            .has_value(),
        "memory moves to another block");
    live.push_back(target);
    if (step % 80 == 39) insist(blocks.free(source).has_value(), "what is left goes");
  }
  insist(blocks.statistics().remapped_copy_count != 0, "a block has lost its memory");
  write(blocks.history().take(), path);
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) {
    std::fputs("usage: write_sample FOLDER\n", stderr);
    return 2;
  }
  const std::string folder = words[1];
  program(folder + "/pool.history", std::uint64_t{1} << 16).run(3'000);
  program(folder + "/lost.history", std::uint64_t{1} << 11).run(3'000);
  run_manager(folder + "/manager.history", std::uint64_t{1} << 18, 300);
  run_manager(folder + "/manager_lost.history", std::uint64_t{1} << 10, 3'000);
}
