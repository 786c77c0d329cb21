// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: objects that outlive main() do not reach a driver whose own static objects are gone.
// Method: static objects that are filled in main(), so that exit() destroys the driver's before
// them; the simulated driver ends the process when it is called then. The word says what is made:
// `driver` a driver object alone, `manager` a manager with a live block over it too, `early` an
// object that is younger than the drivers' start and goes before them.
#include "../../tools/program/standard.hpp"

import vmm.backend;
import vmm.level_zero;
import vmm.manager;

namespace {

constexpr std::uint64_t unit = 2ull << 20;

// Destroyed after all others: it sees their results.
struct last_word {
  const char* text = "nothing was made";
  ~last_word() { std::puts(text); }
};
last_word word;

std::optional<vmm::level_zero_driver> driver;
std::optional<vmm::manager> memory;

// Goes before the two above.
struct asker {
  ~asker() {
    if (!driver) return;
    const auto late = driver->reserve({.size_bytes = unit});
    word.text = !late && late.error().code == vmm::errc::unavailable ? "a late call is refused"
                                                                     : "a late call succeeds";
  }
};
asker question;

bool fill() {
  auto opened = vmm::level_zero_driver::open();
  if (!opened) {
    std::printf("not opened: %s\n", vmm::describe(opened.error()).c_str());
    return false;
  }
  driver.emplace(std::move(*opened));
  return driver->reserve({.size_bytes = unit}).has_value() &&
         driver->create({.size_bytes = unit, .where = driver->home()}).has_value();
}

}  // namespace

int main(int count, char** words) {
  const std::string_view what = count > 1 ? words[1] : "";
  if (what == "early") {
    static auto early = vmm::level_zero_driver::open();
    if (!early || !early->reserve({.size_bytes = unit})) return 1;
    word.text = "it went in time";
    return 0;
  }
  if (!fill()) return 1;
  if (what == "manager") {
    memory.emplace(*driver);
    if (!memory->set_up() || !memory->allocate({.size_bytes = unit})) return 1;
  }
  return 0;
}
