# SPDX-FileCopyrightText: 2026 The vmm authors
# SPDX-License-Identifier: Apache-2.0
"""Goal: `vmm-gpu-test pair` does on two devices what it says, without two GPUs: a part that fails,
hangs or is skipped keeps none of the others from running, and NCCL never starts with NVLink
multicast on.
Method: the program, over the stub drivers for libcuda and NCCL; what needs memory that reaches
another process is skipped there.

usage: pair_test.py VMM_GPU_TEST STUB_LIBCUDA STUB_NCCL [TEST...]
"""

import sys
import unittest

from command import CommandTest

PROGRAM, CUDA, NCCL = (sys.argv.pop(1) for _ in range(3))
OFF = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS")
DEVICES = f"VMM_CUDA_LIBRARY='{CUDA}'"
WITHOUT_MULTICAST = f"{DEVICES} {OFF[0]}=0 {OFF[1]}=1 {OFF[2]}=1"


class Pair(CommandTest):
    def play(self, words, environment=WITHOUT_MULTICAST, code=0, lines=""):
        got = self.run_command(f"'{PROGRAM}' {words}", environment)
        self.assertEqual(got.code, code, got.err)
        for line in lines.strip().split("\n"):
            self.assertIn(line.strip(), got.out)
        return got

    def test_every_part_runs_or_says_why_not(self):
        lines = """| never given | reads | stopped: illegal address | stopped |
            | taken away | writes | stopped: illegal address | stopped |
            | read | writes | stopped: illegal address | stopped |
            | read and write | writes | ran, the bytes are right | ran |
            | rights | ok | 8 of 8 trials as expected |
            | copies | ok | 4 MiB from device 0 to 1: mapped
            ; 0 wrong words |
            | import | skipped | the stub driver's memory does not reach another process |
            | kill | skipped | the stub driver's memory does not reach another process |
            | 1 | work of one stream, through either view | 0 of 2097152 words wrong |
            | 3 | neighbouring chunks at the same time, each by one view | 0 of
            words wrong; the memory went with the last view |
            | aliases | ok | 7 of 7 trials as expected |
            | ncclCommRegister | 4 MiB |
            | moved, ncclCommWindowRegister | 4 + 4 MiB |
            | nccl | ok | not registered"""
        self.play(f"pair --quick --nccl '{NCCL}'", lines=lines)

    def test_nccl_does_not_start_with_multicast(self):
        for missing in OFF:
            shown = WITHOUT_MULTICAST.replace(missing, "X")
            failed = f"| nccl | failed | set {missing}="
            got = self.play(f"nccl --quick --nccl '{NCCL}'", shown, 1, failed)
            self.assertNotIn("stub driver of NCCL", got.err)

    def test_without_nccl_that_part_is_skipped(self):
        skipped = "| nccl | skipped | no NCCL: "
        self.play("pair --quick --nccl /none/libnccl.so.2", lines=skipped)

    def test_a_part_that_hangs_ends_alone(self):
        lines = "| rights | ok |\n| nccl | timed out |\n| kill | skipped |"
        hangs = f"{WITHOUT_MULTICAST} STANDIN_NCCL_HANGS=1"
        self.play(f"pair --quick --limit 6 --nccl '{NCCL}'", hangs, 1, lines)

    def test_without_a_driver_there_is_no_pair(self):
        self.file("libcuda.so.1")  # a variable that names no driver is a wrong option
        self.play("pair --quick", f"LD_LIBRARY_PATH='{self.folder}'", 77)

    def test_wrong_words_are_refused(self):
        words = ",some,rights 3,kill --kills 0,kill 3,pair --limit,pair --kills,pair --limit 0"
        for each in f"{words},pair --fast".split(","):
            got = self.play(each, DEVICES, 2)
            self.assertEqual(got.out, "", each)
            self.assertNotEqual(got.err, "", each)


if __name__ == "__main__":
    unittest.main()
