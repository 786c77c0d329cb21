// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Threads that run commands, one at a time: what a program does is the same each time it runs, and
// each thread has the driver's state of its own.
#pragma once

#include <condition_variable>
#include "../../../tools/program/standard.hpp"

namespace caller {

class worker {
 public:
  worker() : thread_([this] { work(); }) {}
  ~worker() {
    run({});
    thread_.join();
  }
  worker(const worker&) = delete;
  worker& operator=(const worker&) = delete;

  /// Comes back when it is done. Nothing to do ends the thread.
  void run(std::function<void()> what) {
    std::unique_lock<std::mutex> turn(lock_);
    what_ = std::move(what);
    is_asked_ = true;
    changed_.notify_all();
    changed_.wait(turn, [this] { return !is_asked_; });
  }

 private:
  void work() {
    bool goes_on = true;
    while (goes_on) {
      std::unique_lock<std::mutex> turn(lock_);
      changed_.wait(turn, [this] { return is_asked_; });
      goes_on = static_cast<bool>(what_);
      if (goes_on) what_();
      is_asked_ = false;
      changed_.notify_all();
    }
  }

  std::mutex lock_;
  std::condition_variable changed_;
  std::function<void()> what_;
  bool is_asked_ = false;
  std::thread thread_;
};

}  // namespace caller
