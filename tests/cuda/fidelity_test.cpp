// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the fake driver returns the recorded device's results, and the CUDA backend forwards every
// result unchanged. Method: the probes of vmm-fidelity on the fake against the recorded file; the
// same probes and random sequences on the backend over the stub driver against a fake of its own;
// planted differences, which must be found; and the growth whose time is measured,
// on the fake.
#include "../support/test.h"
#include "workbench.hpp"

import vmm.backend;
import vmm.cuda;
import vmm.fake;
import vmm.fidelity;

namespace {

using cuda_test::standin, vmm::cuda_driver, vmm::fake_driver;

using answers = std::map<std::string, std::string>;

// Lines of id, tab, text; lines that begin with # are remarks.
answers read(const char* path) {
  answers out;
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  for (std::string line; std::getline(file, line);) {
    const auto tab = line.find('\t');
    if (line.starts_with('#') || tab == std::string::npos) continue;
    out[line.substr(0, tab)] = line.substr(tab + 1);
  }
  return out;
}

std::string ask_fake(const vmm::fidelity::probe& asked) {
  fake_driver fake;
  return vmm::fidelity::answer(fake, asked);
}

TEST(Fidelity, TheFakeAnswersAsTheRecordedDevice) {
  const answers recorded = read(VMM_RECORDED "/h200.txt");
  const answers known = read(VMM_RECORDED "/differences.txt");
  std::size_t compared = 0;
  for (const auto& each : vmm::fidelity::all_probes()) {
    const auto line = recorded.find(each.id);
    if (line == recorded.end()) continue;
    ++compared;
    const std::string said = ask_fake(each);
    if (known.contains(each.id)) {
      EXPECT_NE(said, line->second) << each.id << " no longer differs: strike it from the list";
    } else {
      EXPECT_EQ(said, line->second) << each.id << ": " << each.what;
    }
  }
  EXPECT_EQ(compared, recorded.size()) << "a recorded probe is not made any more";
}

TEST(Fidelity, ProbesAreNamedOnceAndDescribed) {
  std::map<std::string, int> seen;
  for (const auto& each : vmm::fidelity::all_probes()) {
    EXPECT_EQ(++seen[each.id], 1) << each.id;
    EXPECT_STRNE(each.what, "");
  }
  EXPECT_GE(seen.size(), 60u) << "the goal requires as many";
}

cuda_driver open_standin() {
  standin().reset(nullptr);
  auto opened = cuda_driver::open({.driver_library = VMM_STANDIN_LIBRARY});
  EXPECT_TRUE(opened);
  return std::move(*opened);
}

TEST(Fidelity, TheBackendHandsEveryAnswerThrough) {
  std::map<std::string, std::string> expected;
  for (const auto& each : vmm::fidelity::all_probes()) expected[each.id] = ask_fake(each);
  std::size_t compared = 0;
  for (const auto& each : vmm::fidelity::all_probes()) {
    const auto line = expected.find(each.id);
    if (line == expected.end()) continue;  // a refinement that the fake does not have
    cuda_driver driver = open_standin();
    EXPECT_EQ(vmm::fidelity::answer(driver, each), line->second) << each.id;
    ++compared;
  }
  EXPECT_EQ(compared, expected.size());
}

TEST(Fidelity, RandomSequencesAreAlike) {
  unsigned refused = 0;
  unsigned contents = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    cuda_driver driver = open_standin();
    fake_driver fake;
    const auto outcome = vmm::fidelity::run_sequence(fake, driver, {seed, 64});
    EXPECT_EQ(outcome.difference, "") << "seed " << seed;
    EXPECT_TRUE(fake.check_empty()) << "seed " << seed << "\n" << fake.report();
    refused += outcome.refused_count;
    contents += outcome.content_count;
  }
  EXPECT_GT(refused, 1000u) << "invalid calls are part of it";
  EXPECT_GT(contents, 500u) << "and contents are compared";
}

TEST(Fidelity, APlantedDifferenceInACodeIsFound) {
  unsigned found = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    cuda_driver driver = open_standin();
    constexpr int not_supported = 801;
    standin().fail("cuMemMap", not_supported, 3, false);
    fake_driver fake;
    if (!vmm::fidelity::run_sequence(fake, driver, {seed, 64}).difference.empty()) ++found;
    standin().clear_failures();
  }
  EXPECT_GE(found, 15u) << "a sequence may refuse its third map anyway, or make no third map";
}

// A driver whose writes land in the wrong place: contents must be compared, not only codes.
class astray : public fake_driver {
 public:
  vmm::status write(vmm::address at, std::span<const std::byte> source) {
    ++writes_;
    if (writes_ != 2) return fake_driver::write(at, source);
    std::byte other[8]{};
    return fake_driver::write(at, std::span(other).first(source.size()));
  }

 private:
  unsigned writes_ = 0;
};

TEST(Fidelity, APlantedDifferenceInContentsIsFound) {
  unsigned found = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    astray one;
    fake_driver other;
    if (!vmm::fidelity::run_sequence(one, other, {seed, 64}).difference.empty()) ++found;
  }
  EXPECT_GE(found, 10u);
}

using vmm::fidelity::growth;

TEST(Fidelity, AGrowthMakesMapsAndOpensAndGivesNothingBackBeforeItsEnd) {
  fake_driver fake;
  {
    growth grown{fake, 16 * MiB, 8};
    grown.grow(3);
    grown.grow(2);
    for (const vmm::call each : {vmm::call::create, vmm::call::map, vmm::call::set_access})
      EXPECT_EQ(fake.calls(each), 5u);
    EXPECT_GT(grown.taken().count(), 0);
    EXPECT_EQ(fake.calls(vmm::call::release), 0u);
    EXPECT_EQ(fake.calls(vmm::call::unmap), 0u);
    grown.grow(100);
    EXPECT_EQ(fake.calls(vmm::call::create), 8u) << "as many as there is room for";
  }
  EXPECT_TRUE(fake.check_empty()) << fake.report();
  EXPECT_EQ(fake.misuse_count(), 0u);
}

// Every handle costs the fake the same, so that what it charges for a growth is a fair divisor.
TEST(Fidelity, AGrowthCostsTheFakeTheSameForEachHandle) {
  fake_driver fake;
  growth grown{fake, 16 * MiB, 128};
  const double before_us = fake.busy_us();
  grown.grow(1);
  const double one_us = fake.busy_us() - before_us;
  grown.grow(127);
  EXPECT_GT(one_us, 0);
  EXPECT_NEAR(fake.busy_us() - before_us, 128 * one_us, 0.2) << "the clock counts nanoseconds";
}

TEST(Fidelity, ARefusedGrowthSaysSoAndLeavesNothing) {
  for (const vmm::call refused : {vmm::call::create, vmm::call::map, vmm::call::set_access}) {
    fake_driver fake;
    fake.fail({refused, 3, false, {vmm::errc::out_of_memory, 2, "CUDA_ERROR_OUT_OF_MEMORY"}});
    {
      growth grown{fake, 16 * MiB, 8};
      EXPECT_THROW(grown.grow(5), vmm::fidelity::setup_failure);
      EXPECT_EQ(fake.faults_struck(), 1u);
    }
    EXPECT_TRUE(fake.check_empty()) << fake.report();
  }
}

}  // namespace
