// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: the trace reader takes every well-formed trace, gets its numbers right, and says of every
// other one which line is wrong, how, and what would be right.
// Method: hand-written traces with results worked out by hand; each way to be malformed; gzip data
// cut at every byte; the shipped traces against the counts that their README gives.
#include "gzip.hpp"

import vmm.trace;

namespace {

using vmm::tools::event_kind, vmm::tools::read_outcome;

read_outcome parse(std::string_view text) {
  return vmm::tools::parse_trace("t.trace", std::as_bytes(std::span{text}));
}

/// The whole message for a trace that must be refused; empty when it was taken.
std::string refusal(std::string_view text) {
  const read_outcome outcome = parse(text);
  return outcome ? "" : vmm::tools::describe(outcome.trouble);
}

constexpr std::string_view small =
    "i 0\n"
    "a 10 1 0\n"     // live 512
    "a 11 1024 3\n"  // live 1536
    "f 10\n"         // live 1024
    "i 1\n"
    "a 12 1025 0\n"  // live 2560: the peak
    "f 11\n"         // live 1536
    "a 10 512 0\n"   // the id is free again; live 2048
    "f 12\n";        // live 512

TEST(Trace, ReadsEventsAndCountsLiveBytes) {
  const read_outcome outcome = parse(small);
  ASSERT_TRUE(outcome) << vmm::tools::describe(outcome.trouble);
  const vmm::tools::trace& got = *outcome.value;
  EXPECT_EQ(got.name, "t");
  EXPECT_EQ(got.allocation_count, 4u);
  EXPECT_EQ(got.free_count, 3u);
  ASSERT_EQ(got.events.size(), 7u);
  EXPECT_EQ(got.slot_count, 2u);
  EXPECT_EQ(got.peak_live_bytes, 2560u);
  EXPECT_EQ(got.peak_live_event, 3u);
  EXPECT_EQ(got.end_live_bytes, 512u);
  ASSERT_EQ(got.iterations.size(), 2u);
  EXPECT_EQ(got.iterations[1].number, 1u);
  EXPECT_EQ(got.iterations[1].first_event, 3u);
}

TEST(Trace, GivesDenseSlotsAndTheSizesThatAreFreed) {
  const read_outcome outcome = parse(small);
  ASSERT_TRUE(outcome);
  struct row {
    event_kind kind;
    std::uint32_t slot;
    std::uint64_t size_bytes;
    std::uint16_t stream;
  };
  const std::vector<row> expected = {
      {event_kind::allocate, 0, 1, 0}, {event_kind::allocate, 1, 1024, 3},
      {event_kind::free, 0, 1, 0},     {event_kind::allocate, 0, 1025, 0},
      {event_kind::free, 1, 1024, 3},  {event_kind::allocate, 1, 512, 0},
      {event_kind::free, 0, 1025, 0}};
  ASSERT_EQ(outcome.value->events.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const vmm::tools::event& got = outcome.value->events[i];
    EXPECT_EQ(got.kind, expected[i].kind) << i;
    EXPECT_EQ(got.slot, expected[i].slot) << i;
    EXPECT_EQ(got.size_bytes, expected[i].size_bytes) << i;
    EXPECT_EQ(got.stream, expected[i].stream) << i;
  }
}

TEST(Trace, TakesAMissingLastNewlineAndTheLargestNumbers) {
  EXPECT_EQ(refusal("a 1 5 0\nf 1"), "");
  EXPECT_EQ(refusal("i 18446744073709551615\na 18446744073709551615 281474976710656 65535\n"), "");
}

TEST(Trace, RefusesWhatIsNotAnEvent) {
  const std::string forms = "; expected 'a ID BYTES STREAM', 'f ID' or 'i N'";
  EXPECT_EQ(refusal(""), "t.trace:1: the file is empty" + forms);
  EXPECT_EQ(refusal("a 1 5 0\n\nf 1\n"), "t.trace:2: the line is empty" + forms);
  EXPECT_EQ(refusal("a 1 5 0\nx 1\n"), "t.trace:2: unknown event 'x'" + forms);
  EXPECT_EQ(refusal("a 1 5 0\n# note\n"), "t.trace:2: unknown event '#'" + forms);
  EXPECT_EQ(refusal("alloc 1 5 0\n"), "t.trace:1: unknown event 'alloc'" + forms);
  EXPECT_EQ(refusal("a 1 5\n"), "t.trace:1: too few fields in 'a 1 5'" + forms);
  EXPECT_EQ(refusal("a 1 5 0 9 9 9\n"), "t.trace:1: too many fields in 'a 1 5 0 9 9 9'" + forms);
  EXPECT_EQ(refusal("f\n"), "t.trace:1: too few fields in 'f'" + forms);
  EXPECT_EQ(refusal("i 1 2\n"), "t.trace:1: too many fields in 'i 1 2'" + forms);
  EXPECT_EQ(refusal("a 1 5 0\n" + std::string(129, 'a')),
            "t.trace:2: the line is longer than 128 bytes" + forms);
  EXPECT_EQ(refusal("\x01\x02\n"), "t.trace:1: unknown event '\\x01\\x02'" + forms);
  EXPECT_EQ(
      refusal("i 1\n"),
      "t.trace:2: the trace ends without an allocation; expected at least one 'a ID BYTES STREAM'");
}

TEST(Trace, TakesTheLineEndsAndTheByteOrderMarkOfOtherSystems) {
  const std::string text{small};
  std::string windows = "\xef\xbb\xbf";
  for (const char c : text) windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
  for (const std::string& form : {windows, gzip(windows)}) {
    const read_outcome got = parse(form);
    ASSERT_TRUE(got) << vmm::tools::describe(got.trouble);
    EXPECT_EQ(got.value->events.size(), 7u);
    EXPECT_EQ(got.value->peak_live_bytes, 2560u);
  }
  EXPECT_EQ(refusal("a 1 5 0\nf 1\r"), "") << "the last newline may be missing here too";
  EXPECT_NE(refusal("a 1 5 0\n\xef\xbb\xbf"
                    "f 1\n"),
            "")
      << "the mark stands at the head only";
}

TEST(Trace, NamesBlanksThatStandWrong) {
  const std::string expected = "; expected fields with one space between them";
  EXPECT_EQ(refusal(" a 1 5 0\n"),
            "t.trace:1: a blank before the first field of ' a 1 5 0'" + expected);
  EXPECT_EQ(refusal("a 1 5 0 \n"),
            "t.trace:1: a blank after the last field of 'a 1 5 0 '" + expected);
  EXPECT_EQ(refusal("a 1 5 0\nf  1\n"), "t.trace:2: two blanks in a row in 'f  1'" + expected);
  EXPECT_EQ(refusal("a\t1 5 0\n"), "t.trace:1: a tab in the line 'a\\x091 5 0'" + expected);
  EXPECT_EQ(refusal("a 1 5 0\rf 1\n"),
            "t.trace:1: a carriage return inside the line 'a 1 5 0\\x0df 1'" + expected);
}

TEST(Trace, NamesFilesOfAnotherKind) {
  using namespace std::string_literals;
  struct row {
    std::string text;
    const char* what;
    const char* advice;
  };
  const std::string pointer =
      "version https://git-lfs.example/spec/v1\noid sha256:4d7a2146\nsize 12345\n";
  for (const row& each : {row{"\xfd"s
                              "7zXZ\0\0\4"s,
                              "compressed by xz", "xz -d"},
                          row{"\x28\xb5\x2f\xfd\x04"s, "compressed by zstd", "zstd -d"},
                          row{"BZh91AY"s, "compressed by bzip2", "bzip2 -d"},
                          row{"PK\3\4"s, "a zip archive", "unzip"},
                          row{"\xff\xfe"
                              "a\0 \0"s,
                              "UTF-16", "ASCII"},
                          row{pointer, "a Git LFS pointer", "git lfs pull"}}) {
    const std::string text = refusal(each.text);
    EXPECT_EQ(text.find("t.trace:1: the file is "), 0u) << text;
    EXPECT_TRUE(contains(text, each.what));
    EXPECT_TRUE(contains(text, each.advice));
  }
}

std::string repeated(std::string_view line, std::size_t count) {
  std::string text;
  text.reserve(line.size() * count);
  for (std::size_t i = 0; i < count; ++i) text += line;
  return text;
}

// A member of gzip may be repeated: 64 times 2^20 marks are 70 KiB, and 256 MiB of text.
TEST(Trace, RefusesMoreMarksThanItsLimit) {
  const std::string most = repeated("i 1\n", vmm::tools::iteration_count_max);
  EXPECT_EQ(refusal(most + "a 1 5 0\n"), "");
  const std::string refused =
      "t.trace:1048577: the trace has too many marks of iterations; expected at most 1048576";
  EXPECT_EQ(refusal(most + "i 1\na 1 5 0\n"), refused);
  EXPECT_EQ(refusal(repeated(gzip(most), 64)), refused);
}

TEST(Trace, RefusesNumbersThatAreNone) {
  const std::string sizes = "; expected a decimal number from 1 to 281474976710656";
  for (const char* bad : {"0", "-1", "+1", "1.5", "0x10", "12k", "281474976710657",
                          "18446744073709551616", "99999999999999999999999999"}) {
    EXPECT_EQ(refusal("a 7 " + std::string(bad) + " 0\n"),
              "t.trace:1: size in bytes is '" + std::string(bad).substr(0, 24) +
                  (std::string(bad).size() > 24 ? "..." : "") + "'" + sizes);
  }
  const std::string ids = "; expected a decimal number from 0 to 18446744073709551615";
  EXPECT_EQ(refusal("a x 5 0\n"), "t.trace:1: allocation id is 'x'" + ids);
  EXPECT_EQ(refusal("a 18446744073709551616 5 0\n"),
            "t.trace:1: allocation id is '18446744073709551616'" + ids);
  EXPECT_EQ(refusal("f -1\n"), "t.trace:1: id to free is '-1'" + ids);
  EXPECT_EQ(refusal("i one\n"), "t.trace:1: iteration number is 'one'" + ids);
  EXPECT_EQ(refusal("a 1 5 65536\n"),
            "t.trace:1: stream is '65536'; expected a decimal number from 0 to 65535");
}

TEST(Trace, RefusesIdsUsedWrongly) {
  EXPECT_EQ(
      refusal("a 1 5 0\na 1 6 0\n"),
      "t.trace:2: allocation id 1 is already live; expected an id that is new or has been freed");
  const std::string expected = "; expected the id of an earlier 'a' line that was not freed since";
  EXPECT_EQ(refusal("a 1 5 0\nf 2\n"), "t.trace:2: free of id 2, which is not live" + expected);
  EXPECT_EQ(refusal("a 1 5 0\nf 1\nf 1\n"),
            "t.trace:3: free of id 1, which is not live" + expected);
}

TEST(Trace, RefusesMoreLiveBytesThanAnAddressSpaceHolds) {
  EXPECT_EQ(refusal("a 1 281474976710656 0\nf 1\na 1 281474976710656 0\n"), "");
  EXPECT_EQ(refusal("a 1 281474976710656 0\na 2 1 0\n"),
            "t.trace:2: more than 256 TiB would be live after allocation 2; expected a trace of "
            "one device");
}

TEST(Trace, ReadsGzipOfOneOrSeveralMembers) {
  EXPECT_EQ(refusal(gzip(small)), "");
  const read_outcome both = parse(gzip(small.substr(0, 20)) + gzip(small.substr(20)));
  ASSERT_TRUE(both) << vmm::tools::describe(both.trouble);
  EXPECT_EQ(both.value->events.size(), 7u);
  EXPECT_EQ(both.value->peak_live_bytes, 2560u);
}

TEST(Trace, RefusesGzipCutAnywhere) {
  const std::string whole = gzip(small);
  for (std::size_t length = 1; length < whole.size(); ++length) {
    const std::string text = refusal(std::string_view{whole}.substr(0, length));
    EXPECT_NE(text.find("the gzip data is cut short here; expected the rest of the file"),
              std::string::npos)
        << length << ": " << text;
  }
}

TEST(Trace, RefusesGzipThatIsDamagedOrFollowedByOtherBytes) {
  std::string damaged = gzip(small);
  damaged[damaged.size() - 6] ^= 0x40;  // in the check sum
  EXPECT_TRUE(contains(refusal(damaged), "the gzip data is damaged (incorrect data check)"));
  EXPECT_TRUE(contains(refusal(gzip(small) + "a 99 5 0\n"),
                       "further bytes behind the end of the gzip data"));
  EXPECT_TRUE(contains(refusal(gzip(small) + std::string(1, '\0')), "further bytes behind"));
  EXPECT_TRUE(contains(refusal(gzip("a 1 5 0\nf 2\n")), "t.trace:2: free of id 2"));
}

/// Many lines, so that they straddle the reader's blocks, plain and compressed.
TEST(Trace, LinesMayStraddleBlocks) {
  std::string text;
  for (int i = 0; i < 40'000; ++i)
    text += "a " + std::to_string(i * 7) + " " + std::to_string(i + 1) + " 0\n";
  for (int i = 0; i < 40'000; ++i) text += "f " + std::to_string(i * 7) + "\n";
  for (const std::string& form : {text, gzip(text)}) {
    const read_outcome outcome = parse(form);
    ASSERT_TRUE(outcome) << vmm::tools::describe(outcome.trouble);
    EXPECT_EQ(outcome.value->allocation_count, 40'000u);
    EXPECT_EQ(outcome.value->free_count, 40'000u);
    EXPECT_EQ(outcome.value->end_live_bytes, 0u);
    EXPECT_EQ(outcome.value->events.back().size_bytes, 40'000u);
  }
}

// Each size is changed by at most 3 % and always to the same: by the seed, not by the place.
TEST(Jitter, ChangesASizeByTheSizeAndTheSeed) {
  std::string text;
  for (int id = 0; id < 200; ++id) {
    const std::string size = std::to_string(100'000 + id % 100 * 1'000);
    text += "a " + std::to_string(id) + " " + size + " 0\n";
  }
  for (int id = 0; id < 200; ++id) text += "f " + std::to_string(id) + "\n";
  const vmm::tools::trace before = *parse(text).value;
  std::vector<vmm::tools::trace> by_seed(3, before);
  for (std::size_t seed = 0; seed < by_seed.size(); ++seed) jitter_sizes(by_seed[seed], seed);
  std::uint64_t changed_count = 0;
  std::uint64_t larger_count = 0;
  for (std::size_t i = 0; i < before.events.size(); ++i) {
    const std::uint64_t was = before.events[i].size_bytes;
    const std::uint64_t now = by_seed[1].events[i].size_bytes;
    EXPECT_GE(now, was * 97 / 100);
    EXPECT_LE(now, was * 103 / 100);
    EXPECT_EQ(now, by_seed[1].events[i % 100].size_bytes) << "the same size, changed otherwise";
    if (i < 100 && now != by_seed[2].events[i].size_bytes) ++changed_count;
    if (i < 100 && now > was) ++larger_count;
  }
  EXPECT_GE(changed_count, 95u) << "two seeds change sizes alike";
  EXPECT_GE(larger_count, 30u);
  EXPECT_LE(larger_count, 70u);
  vmm::tools::trace again = before;
  jitter_sizes(again, 1);
  EXPECT_EQ(again.events[7].size_bytes, by_seed[1].events[7].size_bytes);
}

TEST(Jitter, CountsLiveBytesAnewAndIsTheSameEverywhere) {
  vmm::tools::trace input = *parse("a 1 1000000 0\na 2 1 0\nf 1\na 3 2000000 0\n").value;
  jitter_sizes(input, 1);
  EXPECT_EQ(input.events[0].size_bytes, 1'020'990u);
  EXPECT_EQ(input.events[1].size_bytes, 1u) << "no request is of nothing";
  EXPECT_EQ(input.events[2].size_bytes, 1'020'990u);
  EXPECT_EQ(input.events[3].size_bytes, 1'985'780u);
  EXPECT_EQ(input.peak_live_event, 3u);
  EXPECT_EQ(input.peak_live_bytes, vmm::tools::live_bytes_of(1'985'780u) + 512);
  EXPECT_EQ(input.end_live_bytes, input.peak_live_bytes);
}

TEST(Jitter, TakesTheLargestSize) {
  vmm::tools::trace input = *parse("a 1 281474976710656 0\n").value;
  jitter_sizes(input, 3);
  const std::uint64_t whole = std::uint64_t{1} << 48;
  EXPECT_GE(input.events[0].size_bytes, whole / 100 * 97);
  EXPECT_LE(input.events[0].size_bytes, whole / 100 * 104);
}

TEST(TraceFile, ShippedTracesAreAsTheirReadmeSays) {
  struct row {
    const char* name;
    std::uint64_t allocation_count;
    double peak_live_gib;
    std::size_t iteration_count;
  };
  for (const row& expected :
       {row{"beam_kv", 92496, 1.030, 30}, row{"maskrcnn_train", 31287, 15.273, 14},
        row{"speech", 37861, 4.394, 60}, row{"neighbours", 49681, 8.208, 80},
        row{"rays", 48870, 5.883, 64}, row{"recommend", 33669, 8.735, 70}}) {
    const std::string path = std::string(VMM_TRACES_FOLDER) + "/" + expected.name + ".trace.gz";
    const read_outcome outcome = vmm::tools::read_trace(path);
    ASSERT_TRUE(outcome) << vmm::tools::describe(outcome.trouble);
    EXPECT_EQ(outcome.value->name, expected.name);
    EXPECT_EQ(outcome.value->allocation_count, expected.allocation_count);
    EXPECT_EQ(outcome.value->iterations.size(), expected.iteration_count);
    EXPECT_NEAR(static_cast<double>(outcome.value->peak_live_bytes) / (1 << 30),
                expected.peak_live_gib, 0.0005);
  }
}

TEST(TraceFile, SaysWhyAFileCannotBeRead) {
  const read_outcome missing = vmm::tools::read_trace("/nonexistent/x.trace");
  ASSERT_FALSE(missing);
  EXPECT_EQ(vmm::tools::describe(missing.trouble),
            "/nonexistent/x.trace: cannot be read: No such file or directory; expected a readable "
            "trace file");
  const read_outcome folder = vmm::tools::read_trace("/");
  ASSERT_FALSE(folder);
  EXPECT_EQ(vmm::tools::describe(folder.trouble),
            "/: cannot be read: Is a directory; expected a readable trace file");
}

}  // namespace
