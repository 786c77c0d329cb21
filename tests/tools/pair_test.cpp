// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: `vmm-gpu-test pair` does on two devices what it says, without two GPUs: a part that fails,
// hangs or is skipped keeps none of the others from running, and NCCL never starts with NVLink
// multicast on.
// Method: the program, over the stub drivers for libcuda and NCCL; what needs memory that reaches
// another process is skipped there.
#include "command.hpp"

namespace {

class Pair : public vmm::tests::CommandTest {
 protected:
  [[nodiscard]] static std::string with_devices() {
    return std::string("VMM_CUDA_LIBRARY='") + VMM_STANDIN_LIBRARY + "' ";
  }
  [[nodiscard]] static std::string without_multicast() {
    return with_devices() +
           "NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 ";
  }
  [[nodiscard]] vmm::tests::finished play(const std::string& words,
                                          const std::string& environment) const {
    return run("'" VMM_GPU_TEST "' " + words, environment);
  }
};

void expect_line(const std::string& text, const std::string& line) {
  EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
}

const std::string nccl = std::string(" --nccl '") + VMM_STANDIN_NCCL + "'";

TEST_F(Pair, EveryPartRunsOrSaysWhyNot) {
  const auto got = play("pair --quick" + nccl, without_multicast());
  EXPECT_EQ(got.code, 0) << got.err;
  expect_line(got.out, "| never given | reads | stopped: illegal address | stopped |");
  expect_line(got.out, "| taken away | writes | stopped: illegal address | stopped |");
  expect_line(got.out, "| read | writes | stopped: illegal address | stopped |");
  expect_line(got.out, "| read and write | writes | ran, the bytes are right | ran |");
  expect_line(got.out, "| rights | ok | 8 of 8 trials as expected |");
  expect_line(got.out, "| copies | ok | 4 MiB from device 0 to 1: mapped ");
  expect_line(got.out, "; 0 wrong words |");
  expect_line(got.out,
              "| import | skipped | the stub driver's memory does not reach another process |");
  expect_line(got.out,
              "| kill | skipped | the stub driver's memory does not reach another "
              "process |");
  expect_line(got.out,
              "| 1 | work of one stream, through either view | 0 of 2097152 words wrong |");
  expect_line(got.out, "| 3 | neighbouring chunks at the same time, each by one view | 0 of ");
  expect_line(got.out, "words wrong; the memory went with the last view |");
  expect_line(got.out, "| aliases | ok | 7 of 7 trials as expected |");
  expect_line(got.out, "| ncclCommRegister | 4 MiB | ");
  expect_line(got.out, "| moved, ncclCommWindowRegister | 4 + 4 MiB | ");
  expect_line(got.out, "| nccl | ok | not registered ");
}

TEST_F(Pair, NcclDoesNotStartWithMulticast) {
  for (const char* const missing :
       {"NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"}) {
    const auto got =
        run("env -u " + std::string(missing) + " '" VMM_GPU_TEST "' nccl --quick" + nccl,
            without_multicast());
    EXPECT_EQ(got.code, 1);
    expect_line(got.out, "| nccl | failed | set " + std::string(missing) + "=");
    EXPECT_EQ(got.err.find("stub driver of NCCL"), std::string::npos) << got.err;
  }
}

TEST_F(Pair, WithoutNcclThatPartIsSkipped) {
  const auto got = play("pair --quick --nccl /none/libnccl.so.2", without_multicast());
  EXPECT_EQ(got.code, 0) << got.err;
  expect_line(got.out, "| nccl | skipped | no NCCL: ");
}

TEST_F(Pair, APartThatHangsEndsAlone) {
  const auto got =
      play("pair --quick --limit 6" + nccl, without_multicast() + "STANDIN_NCCL_HANGS=1 ");
  EXPECT_EQ(got.code, 1);
  expect_line(got.out, "| rights | ok | ");
  expect_line(got.out, "| nccl | timed out | ");
  expect_line(got.out, "| kill | skipped | ");
}

TEST_F(Pair, WithoutADriverThereIsNoPair) {
  EXPECT_EQ(play("pair --quick", "VMM_CUDA_LIBRARY=/none/libcuda.so.1 ").code, 77);
}

TEST_F(Pair, WrongWordsAreRefused) {
  for (const char* const words :
       {"", "some", "rights 3", "kill --kills 0", "kill 3", "pair --limit", "pair --kills",
        "pair --limit 0", "pair --fast"}) {
    const auto got = play(words, with_devices());
    EXPECT_EQ(got.code, 2) << words;
    EXPECT_EQ(got.out, "") << words;
    EXPECT_FALSE(got.err.empty()) << words;
  }
}

}  // namespace
