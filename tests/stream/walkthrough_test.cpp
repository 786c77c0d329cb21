// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: with the vpmm policy, the source's walkthrough (+10 > +1 > -10 > +4 > +11 with X free
// pages) gives the layouts that the source prints, cases A to D. Method: a page stands for the
// source's gigabyte. The source's own lines are the expected text; its expressions in X are worked
// out, and regions of size 0 are left out. Each line is printed, and compared with what regions()
// shows; the lines within step 5 are composed from regions() and from how much the pool says it
// moved and created.
#include <cctype>

#include "../support/test.h"
#include "pool_fixture.h"

import vmm.fake;
import vmm.stream;

namespace {

using vmm::pool_region_kind;

constexpr std::uint64_t page = 2 * sizes::MiB;

// "(X-4)+10" and the like: sums and differences of numbers and X, in brackets or not.
class expression {
 public:
  expression(const std::string& text, int x) : text_(text), x_(x) {}
  [[nodiscard]] int value() {
    int sum = term();
    while (at_ < text_.size() && text_[at_] != ')') {
      const char sign = text_[at_++];
      sum += sign == '-' ? -term() : term();
    }
    return sum;
  }

 private:
  [[nodiscard]] int term() {
    if (text_[at_] == '(') {
      const std::size_t open = ++at_;
      std::size_t close = open;
      for (int depth = 1; depth > 0; ++close) {
        if (text_[close] == '(') ++depth;
        if (text_[close] == ')') --depth;
      }
      at_ = close;
      return plain(text_.substr(open, close - 1 - open));
    }
    if (text_[at_] == 'X') {
      ++at_;
      return x_;
    }
    int number = 0;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0)
      number = number * 10 + (text_[at_++] - '0');
    return number;
  }
  // One level of brackets inside another is all that the source has.
  [[nodiscard]] int plain(const std::string& inner) const {
    int sum = 0;
    int sign = 1;
    int number = 0;
    for (const char c : inner + "+") {
      if (c == '(' || c == ')') continue;
      if (c == 'X') {
        number = x_;
      } else if (c == '+' || c == '-') {
        sum += sign * number;
        sign = c == '-' ? -1 : 1;
        number = 0;
      } else {
        number = number * 10 + (c - '0');
      }
    }
    return sum;
  }

  std::string text_;
  int x_;
  std::size_t at_ = 0;
};

// The source's line with its expressions worked out.
std::string worked_out(const std::string& line, int x) {
  std::string out;
  for (std::size_t at = 0; at < line.size(); ++at) {
    const std::size_t close = line.find(']', at);
    std::string inner = line.substr(at + 1, close - at - 1);
    std::string mark;
    if (inner[0] == '+' || inner[0] == '-' || inner[0] == '*' || inner[0] == '#') {
      mark = inner.substr(0, 1);
      inner = inner.substr(1);
    }
    const int value = expression(inner, x).value();
    if (value != 0) out += "[" + mark + std::to_string(value) + "]";
    at = close;
  }
  return out;
}

class Walkthrough : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    vmm::pool_options options;
    options.rules = vmm::pool_policy::vpmm();
    options.page_count = 11 + static_cast<std::uint64_t>(x());
    managed = std::make_unique<vmm::stream_pool>(driver, options);
    ASSERT_TRUE(managed->set_up());
  }
  void TearDown() override {
    EXPECT_TRUE(managed->validate());
    managed.reset();
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    EXPECT_EQ(driver.misuse_count(), 0u);
  }
  [[nodiscard]] static int x() { return GetParam(); }

  vmm::address plus(std::uint64_t pages) {
    newest = *managed->allocate(pages * page, stream);
    return newest;
  }
  void minus(vmm::address at) {
    newest = {};
    ASSERT_TRUE(managed->free(at, stream));
  }

  // Up to the last region that is not a hole.
  [[nodiscard]] std::string layout() {
    std::string out;
    std::string pending;
    const auto regions = managed->regions().value();
    for (const vmm::pool_region& region : regions) {
      const bool live = region.kind == pool_region_kind::live;
      const bool gone =
          region.kind == pool_region_kind::hole || region.kind == pool_region_kind::zombie;
      const char* const mark = gone ? "*" : !live ? "-" : region.range.base == newest ? "+" : "";
      pending += "[" + (mark + std::to_string(region.range.size_bytes / page)) + "]";
      if (region.kind == pool_region_kind::hole) continue;
      out += pending;
      pending.clear();
    }
    return out;
  }

  // The layout before the newest block was cut from the window: what was moved and was there
  // already, then what was created.
  [[nodiscard]] std::string window(std::uint64_t created, bool joined) {
    std::string out;
    std::uint64_t size = 0;
    const auto regions = managed->regions().value();
    for (const vmm::pool_region& region : regions) {
      const std::uint64_t pages = region.range.size_bytes / page;
      const bool after = region.range.base > newest && region.kind == pool_region_kind::free;
      if (region.range.base == newest || after) {
        size += pages;
      } else if (region.range.base < newest) {
        const bool live = region.kind == pool_region_kind::live;
        const bool free = region.kind == pool_region_kind::free;
        out += std::string("[") + (live ? "" : free ? "-" : "*") + std::to_string(pages) + "]";
      }
    }
    if (joined) return out + "[-" + std::to_string(size) + "]";
    out += "[-" + std::to_string(size - created) + "]";
    return created == 0 ? out : out + "[#" + std::to_string(created) + "]";
  }

  void expect(const char* step, const std::string& source, const std::string& real) {
    const std::string wanted = worked_out(source, x());
    std::printf("X=%-2d %-4s %s\n", x(), step, real.c_str());
    EXPECT_EQ(real, wanted) << step << ", the source's " << source;
  }

  vmm::fake_driver driver;
  std::unique_ptr<vmm::stream_pool> managed;
  static constexpr vmm::stream_handle stream = vmm::stream_handle::default_stream;
  vmm::address newest{};
};

TEST_P(Walkthrough, LayoutsAreTheSources) {
  const vmm::address ten = plus(10);
  expect("1", "[+10][-(X+1)]", layout());
  const vmm::address one = plus(1);
  expect("2", "[10][+1][-X]", layout());
  minus(ten);
  expect("3", "[-10][1][-X]", layout());
  const vmm::address four = plus(4);
  const bool case_a = x() >= 11;
  const bool case_b = x() >= 5 && x() < 11;
  const bool case_c = x() == 4;
  expect("4",
         case_a   ? "[+4][-6][1][-X]"
         : case_b ? "[-10][1][+4][-(X-4)]"
         : case_c ? "[-10][1][+4]"
                  : "[+4][-6][1][-X]",
         layout());
  const std::uint64_t created_before = driver.calls(vmm::call::create);
  const vmm::address eleven = plus(11);
  const std::uint64_t created = driver.calls(vmm::call::create) - created_before;
  if (case_a) {
    expect("5", "[4][-6][1][+11][-(X-11)]", layout());
    EXPECT_EQ(managed->statistics().moved_count, 0u);
  } else if (case_b) {
    expect("5.1", "[*10][1][4][-((X-4)+10)]", window(created, false));
    expect("5.2", "[*10][1][4][+11][-(X-5)]", layout());
  } else if (case_c) {
    expect("5.1", "[*10][1][4][-10][#1]", window(created, false));
    expect("5.2", "[*10][1][4][-11]", window(created, true));
    expect("5.2", "[*10][1][4][+11]", layout());
  } else {
    // The source prints [#(11-X)] here, with which its own next line, [-11], does not add up:
    // X+6 and 11-X are 17. What is missing is 5-X.
    expect("5.1", "[4][*6][1][-(X+6)][#(5-X)]", window(created, false));
    expect("5.2", "[4][*6][1][-11]", window(created, true));
    expect("5.2", "[4][*6][1][+11]", layout());
  }
  for (const vmm::address at : {one, four, eleven}) minus(at);
}

// X = 10 is left out: both free regions then fit +4 equally well, and the source does not say which
// one is the better.
INSTANTIATE_TEST_SUITE_P(Cases, Walkthrough,
                         testing::Values(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 20));

}  // namespace
