// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: under VMM_MODE=vmm and VMM_MODE=cache programs see what they see without us, and none of
// the known flaws of such libraries is there. Method: each program runs with the library and
// without; with it, it also looks at what only holds under management. The fake driver below the
// stub driver reports accesses to memory that is not there, and work that overlaps without an
// order.
#include <sys/stat.h>

#include <csignal>

#include "../support/test.h"
#include "child.h"

namespace {

std::string count_of_programs() {
  const char* count = std::getenv("VMM_PRELOAD_PROGRAMS");
  return count == nullptr ? "150" : count;
}

void expect_equal_programs(const std::string& mode) {
  const char* first = std::getenv("VMM_PRELOAD_FIRST");
  child::expect_same(mode, {"random", first == nullptr ? "1" : first, count_of_programs()});
}

TEST(Managed, QuestionsAreAnsweredAsForPlainMemory) {
  child::expect_same("vmm", {"questions"}, {"managed"});
}

// A line for each call of vmm's own pools, and the program sees what it sees without.
TEST(Managed, ItsDriverCallsAreLogged) {
  const std::string file = child::temporary_file("calls");
  const child::outcome native = child::plain({"work"});
  const child::outcome ours =
      child::preloaded("vmm", {"work"}, {"VMM_REPORT=off", "VMM_LOG=" + file});
  EXPECT_EQ(ours.code, 0);
  EXPECT_EQ(ours.out, native.out);
  EXPECT_EQ(ours.err, native.err);
  const std::string log = child::read_file(file);
  for (const char* call : {"reserve", "create", "map", "set_access", "record_event"})
    EXPECT_TRUE(contains(log, call)) << call << "\n" << log;
  std::remove(file.c_str());
  const child::outcome none =
      child::preloaded("vmm", {"work"}, {"VMM_REPORT=off", "VMM_LOG=/nowhere/at/all"});
  EXPECT_EQ(none.code, 0);
  EXPECT_EQ(none.out, native.out);
  EXPECT_TRUE(contains(none.err, "VMM_LOG"));
}

TEST(Managed, AFreeBesideRunningWorkIsNotHandedOutAndDoesNotWait) {
  child::expect_same("vmm", {"in_flight"}, {"managed"});
}

TEST(Managed, CapturesAreNotSpoiled) {
  child::expect_same("vmm", {"captured"}, {"managed"});
  const child::outcome newer =
      child::preloaded("vmm", {"captured", "managed", "newer"}, {"VMM_STANDIN_VERSION=13010"});
  EXPECT_EQ(newer.code, 0) << newer.out;
}

TEST(Managed, OutOfMemoryIsTheDriversOwnAfterAllWasGiven) {
  child::expect_same("vmm", {"short_of_memory"});
}

#ifdef VMM_C_LIBRARY
TEST(Managed, IdleMemoryServesAnotherLibraryOfTheProcessAndItsOwnServesThis) {
  const child::outcome seen =
      child::reported("vmm", {"another_library", VMM_C_LIBRARY}, {"VMM_KEEP=1TiB"});
  EXPECT_EQ(seen.out,
            "library 0 0\nplain 0 0\nlibrary 0 0\nin order 0 0\nlibrary 0 0\nplain 0 0\ndone\n")
      << seen.err;
  EXPECT_EQ(seen.err.find("short_of_memory"), std::string::npos) << seen.err;
}
#endif

TEST(Managed, TheBudgetIsThatOfAllPoolsOfADevice) {
  for (const char* copy : {"VMM_COPY=off", "VMM_COPY=alias"}) {
    const child::outcome seen = child::reported("vmm", {"budget"}, {"VMM_BUDGET=64MiB", copy});
    EXPECT_EQ(seen.out,
              "plain 0 ordered 2\nfree 0 ordered 0\nplain 2 small 0\nfree 0 0 plain 0\ndone\n")
        << copy << seen.err;
    EXPECT_TRUE(contains(seen.err, "\"over_budget\":2")) << copy << seen.err;
    EXPECT_EQ(seen.err.find("short_of_memory"), std::string::npos) << copy << seen.err;
  }
}

TEST(Managed, ADeviceThatIsReset) { child::expect_same("vmm", {"reset"}); }

TEST(Managed, ADeviceThatIsResetBesideFrees) {
  const std::string limit = "VMM_BUDGET=64MiB";
  for (const std::string wait : {"VMM_FREE=wait", "VMM_FREE=later"}) {
    child::expect_output("vmm", {"reset_beside_frees", "20000"}, "done\n",
                         {"VMM_REPORT=off", wait, limit});
  }
}

TEST(Managed, TheStreamOfEachThread) { child::expect_same("vmm", {"per_thread"}); }

TEST(Managed, LegacySharingAnswersAsForPlainMemory) {
  const child::outcome native = child::plain({"ipc"});
  EXPECT_TRUE(contains(native.out, "capable 0 1, kinds 0 0\nexport 0\n"));
  for (const char* mode : {"off", "monitor", "vmm", "cache"}) child::expect_same(mode, {"ipc"});
  const child::outcome plain = child::preloaded("vmm", {"ipc"}, {"VMM_IPC=plain"});
  EXPECT_EQ(plain.out, native.out);
  EXPECT_EQ(plain.err, "");
  const child::outcome refused = child::preloaded("vmm", {"ipc"}, {"VMM_IPC=refuse"});
  EXPECT_TRUE(contains(refused.out, "capable 0 0, kinds 0 0\nexport 1\n"));
  EXPECT_TRUE(contains(refused.err, "VMM_IPC=plain"));
}

TEST(Managed, ASharedBlockIsTheSameMemory) {
  child::expect_output("vmm", {"ipc_within"}, "done\n");
}

TEST(Managed, ABlockIsSharedWithAnotherProcess) {
  const child::outcome seen = child::preloaded("vmm", {"ipc_child"});
  EXPECT_EQ(seen.out, "other bytes 0\nother bytes 0\nchild 0\n") << seen.err;
  EXPECT_EQ(seen.err, "");
}

TEST(Managed, WhatIsFreedOrGoneIsNotSharedAndWhatIsOpenStays) {
  child::expect_output("vmm", {"ipc_gone"},
                       "freed 1\nlive 0\nchild 0\nother bytes 0\nclose 0\ngone 1\n");
}

TEST(Managed, AClosedBlockSpoilsNoCapture) {
  child::expect_output("vmm", {"ipc_captured"},
                       "close 0\nclose again 1\ncapture 0 whole\nmapped 0\nclose 0, mapped 0\n");
}

TEST(Managed, EachContextOpensABlockForItself) {
  child::expect_output("vmm", {"ipc_contexts"}, "close 0, mapped 0 1\nclose 0, mapped 0\n");
}

TEST(Managed, AForkedChildKeepsNothingThatIsShared) {
  child::expect_output("vmm", {"ipc_fork"}, "kept by the child 0\nchild 0\nstill shared 0\n");
}

TEST(Managed, ABlockThatWentWithItsDeviceIsNotShared) {
  child::expect_output("vmm", {"ipc_reset"}, "after the reset 1\n");
}

TEST(Managed, APoolThatIsChosenBeforeTheFirstBlockServes) {
  child::expect_same("vmm", {"early_pool"});
  const child::outcome seen = child::reported("vmm", {"early_pool"});
  EXPECT_TRUE(contains(seen.err, "\"pool_of_the_user\":1"));
  EXPECT_TRUE(contains(seen.err, "\"blocks_served\":1,"));
}

TEST(Managed, AccessThatIsGivenBeforeTheFirstBlockHolds) {
  child::expect_same("vmm", {"early_access"}, {"managed"});
}

TEST(Managed, MemoryLiesOnTheDeviceOfItsPool) {
  child::expect_same("vmm", {"pool_elsewhere"}, {"managed"});
}

TEST(Managed, CapturesOfOneThreadAreNotSpoiledByFreesOfAnother) {
  child::expect_same("vmm", {"capture_storm"});
}

// A capture begins while a call is in the driver: it is whole at its end, whatever the call was.
TEST(Managed, CapturesThatBeginInTheMiddleOfACallAreNotSpoiled) {
  const std::string all = "allocate\nshort\nshort of plain memory\nfree\ngive back\nstream\n";
  for (const char* how : {"VMM_FREE=later", "VMM_FREE=wait", "VMM_COPY=alias", "VMM_COPY=move"}) {
    const std::string copies = std::string(how).starts_with("VMM_COPY") ? "copy\n" : "";
    SCOPED_TRACE(how);
    child::expect_output("vmm", {"capture_races"}, all + copies, {how});
    child::expect_output("vmm", {"capture_races", "unmarked"}, all + copies, {how});
  }
}

// With the library whose invariants can be looked at and broken.
child::outcome looked_into(const std::vector<std::string>& words,
                           const std::vector<std::string>& variables = {}) {
  child::command what{.arguments = words,
                      .variables = variables,
                      .is_preloaded = true,
                      .preloaded = VMM_PRELOAD_FAILING};
  what.variables.emplace_back("VMM_MODE=vmm");
  return child::run(what);
}

// Each request for host memory fails once, in each kind of call.
TEST(Managed, NoMemoryIsLostWhereHostMemoryIsShort) {
  const child::outcome seen = looked_into({"allocation_sweep"});
  EXPECT_EQ(seen.out,
            "allocate\nallocate in order\nallocate after a capture\nfree\nfree after a capture\n"
            "free of an ordered block\nfree of a plain block in order\nfree on another stream\n")
      << seen.err;
  EXPECT_EQ(seen.code, 0);
}

TEST(Managed, NoContextEndsBeforeTheWaitForItsWorkNorServesAfterwards) {
  const child::outcome seen = looked_into({"reset_beside_a_wait"}, {"VMM_KEEP=0"});
  EXPECT_EQ(seen.out, "stale 0\n") << seen.err;
  EXPECT_EQ(seen.code, 0) << seen.err;
}

TEST(Managed, InvariantsHoldAfterEachStepOfRandomPrograms) {
  for (const char* how : {"VMM_COPY=off", "VMM_COPY=alias", "VMM_FREE=wait", "VMM_KEEP=0"}) {
    const child::outcome seen = looked_into({"random", "1000", "40"}, {how});
    EXPECT_EQ(seen.code, 0) << how << "\n" << seen.out << seen.err;
  }
}

// The program is not the library's: it goes on with the driver's memory.
TEST(Managed, AViolatedInvariantLeavesTheProgramToTheDriver) {
  const child::outcome native = child::plain({"lost_block"});
  const child::outcome ours =
      looked_into({"lost_block", "lose"}, {"VMM_REPORT=stderr", "VMM_REPORT_FORMAT=json"});
  EXPECT_EQ(ours.out, native.out) << ours.err;
  EXPECT_EQ(ours.code, native.code) << ours.err;
  const std::vector<std::string> said = child::lines_of(ours.err);
  ASSERT_EQ(said.size(), 2u) << ours.err;
  for (const char* text : {"an internal error of the library", "driver serves later allocations",
                           "with VMM_DISABLE=1", "live_blocks I1"})
    EXPECT_TRUE(contains(said[0], text));
  EXPECT_TRUE(contains(said[1], "\"refused\":2"));
  EXPECT_TRUE(contains(said[1], "\"blocks_served\":2,"));
}

TEST(Managed, OnlyAFreeThatGivesLiveMemoryAwayEndsTheProgram) {
  const child::outcome seen = looked_into({"block_in_two_hands"}, {"VMM_REPORT=off"});
  EXPECT_EQ(seen.out, "waits\n");
  EXPECT_EQ(seen.code, 1000 + SIGABRT);
  EXPECT_TRUE(contains(seen.err, "waiting_frees I1"));
}

TEST(Managed, ContextsThatEndAreNotNamedAgain) { child::expect_same("vmm", {"contexts"}); }

TEST(Managed, AResetThatTheDriverRefusesChangesNothing) {
  child::expect_same("vmm", {"refused_reset"});
}

TEST(Managed, DevicesWithAccessToAPoolAreWaitedFor) {
  child::expect_same("vmm", {"pool_users"}, {"managed"});
}

TEST(Managed, TheDefaultPoolsFiguresCountWhatIsServed) {
  child::expect_same("vmm", {"pool_figures"}, {"managed"});
}

TEST(Managed, DescriptorsForNetworkCards) { child::expect_same("vmm", {"dma_buf"}); }

TEST(Managed, TheReportSaysWhatWasNotManaged) {
  const auto report_of = [](const std::vector<std::string>& words) {
    return child::reported("vmm", words).err;
  };
  EXPECT_TRUE(contains(report_of({"per_thread"}), "\"per_thread_stream\":1"));
  const std::string pools = report_of({"foreign"});
  EXPECT_TRUE(contains(pools, "\"pool_of_the_user\":1"));
  EXPECT_TRUE(contains(pools, "\"blocks_served\":1,"));
  EXPECT_TRUE(contains(report_of({"captured"}), "\"capture\":1"));
  EXPECT_TRUE(contains(report_of({"captured", "managed"}), "\"frees_behind_all\":2,"));
}

TEST(Copies, AGrowingBufferIsRemappedAndHoldsTheSame) {
  const child::outcome native = child::plain({"copy_and_grow"});
  EXPECT_TRUE(contains(native.out, "holds 1"));
  for (const auto& [rule, count] :
       {std::pair{"off", "0"}, std::pair{"alias", "4"}, std::pair{"move", "4"}}) {
    const child::outcome ours =
        child::reported("vmm", {"copy_and_grow"}, {std::string("VMM_COPY=") + rule});
    EXPECT_EQ(ours.out, native.out) << rule;
    EXPECT_EQ(ours.code, 0) << rule;
    EXPECT_TRUE(contains(ours.err, std::string("\"copies_remapped\":") + count + ",")) << rule;
  }
}

// Why neither is the default: each is wrong for a program that is right.
TEST(Copies, AliasIsWrongWhereTheSourceIsWrittenAfterwards) {
  const child::outcome native = child::plain({"copy_then_write"});
  EXPECT_EQ(native.out, "write 0\ntarget holds the copy 1\n");
  EXPECT_EQ(child::preloaded("vmm", {"copy_then_write"}).out, native.out);
  EXPECT_EQ(child::preloaded("vmm", {"copy_then_write"}, {"VMM_COPY=alias"}).out,
            "write 0\ntarget holds the copy 0\n");
  EXPECT_EQ(child::preloaded("vmm", {"copy_then_read"}, {"VMM_COPY=alias"}).out,
            "target 1\nsource 1\n");
}

TEST(Copies, MoveIsWrongWhereTheSourceIsReadAfterwards) {
  const child::outcome native = child::plain({"copy_then_read"});
  EXPECT_EQ(native.out, "target 1\nsource 1\n");
  EXPECT_EQ(child::preloaded("vmm", {"copy_then_read"}).out, native.out);
  EXPECT_EQ(child::preloaded("vmm", {"copy_then_read"}, {"VMM_COPY=move"}).out,
            "target 1\nsource 0\n");
}

TEST(Copies, ProgramsThatDoNotCopyWholeBlocksSeeTheSame) {
  for (const char* rule : {"alias", "move"}) {
    for (const char* word : {"in_flight", "captured", "questions", "foreign", "devices",
                             "short_of_memory", "reset", "failed_growth"}) {
      SCOPED_TRACE(std::string(rule) + " " + word);
      child::expect_output("vmm", {word}, child::plain({word}).out,
                           {std::string("VMM_COPY=") + rule, "VMM_REPORT=off"});
    }
  }
}

TEST(Managed, RandomProgramsSeeTheSame) { expect_equal_programs("vmm"); }

TEST(Managed, RandomProgramsBesideOthersSeeTheSame) {
  child::expect_same("vmm", {"programs_beside", "1", count_of_programs()});
}

TEST(Managed, FreedMemoryIsKeptWithinTheLimit) {
  // Without a limit 512 MiB of 1,280.
  for (const auto& [limit, went_back] : {std::pair{"0", "1"}, std::pair{"100MiB", "1"},
                                         std::pair{"8GiB", "0"}, std::pair{"", "1"}}) {
    SCOPED_TRACE(limit);
    child::expect_output("vmm", {"kept"}, std::string("went back ") + went_back + "\n",
                         {std::string("VMM_KEEP=") + limit});
  }
}

TEST(Managed, AHostThatRunsAheadTakesNoMoreThanTheLimit) {
  const child::outcome native = child::plain({"run_ahead"});
  const child::outcome far = child::reported("vmm", {"run_ahead", "late"});
  EXPECT_EQ(far.out, native.out) << far.err;
  const child::outcome ours = child::reported("vmm", {"run_ahead", "late"}, {"VMM_KEEP=0"});
  EXPECT_EQ(ours.out, native.out) << ours.err;
  EXPECT_TRUE(contains(ours.err, "\"host_waits\":599,"));
}

TEST(Managed, AFreeWaitsWhereThatIsAskedFor) {
  const child::outcome native = child::plain({"run_ahead"});
  const child::outcome ours = child::reported("vmm", {"run_ahead"}, {"VMM_FREE=wait"});
  EXPECT_EQ(ours.out, native.out);
  EXPECT_TRUE(contains(ours.err, "\"host_waits\":600,"));
}

// The flaws of transparent_vmm_lib, one by one.

TEST(Flaw, ACopyEmptiesItsSource) { child::expect_same("vmm", {"copies"}, {"managed"}); }

TEST(Flaw, OnlyTheFirstDevice) { child::expect_same("vmm", {"devices"}, {"managed"}); }

TEST(Flaw, UnknownPointersAreSwallowed) { child::expect_same("vmm", {"foreign"}, {"managed"}); }

TEST(Flaw, OnlyThreeCallsOfTheRuntimeAreSeen) {
  const child::outcome seen = child::reported("vmm", {"in_flight"});
  for (const char* call : {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemFreeAsync"})
    EXPECT_TRUE(contains(seen.err, call)) << call;
  EXPECT_EQ(seen.err.find("\"blocks_served\":0"), std::string::npos) << seen.err;
}

TEST(Flaw, AFailureInTheMiddleLosesMemory) {
  child::expect_same("vmm", {"failed_growth"}, {"managed"});
}

TEST(Flaw, AResizeInALoopLosesMemoryOrContents) {
  const child::outcome native = child::plain({"resize_loop"});
  EXPECT_TRUE(contains(native.out, "copy 0 holds 1 1 free 0 holds 1 free 0\n"));
  for (const char* rule : {"off", "alias"}) {
    SCOPED_TRACE(rule);
    child::expect_output("vmm", {"resize_loop"}, native.out,
                         {std::string("VMM_COPY=") + rule, "VMM_REPORT=off"});
  }
}

TEST(Flaw, ManySmallBlocksTakeTheAddressSpace) {
  child::expect_same("vmm", {"small_blocks"}, {"managed"});
}

// 4,000 blocks of 1,000 bytes, and room for half of them in what is reserved at a time.
TEST(Flaw, TheAddressSpaceIsFullAndNoMoreIsHad) {
  const child::outcome native = child::plain({"small_blocks"});
  const child::outcome ours = child::reported("vmm", {"small_blocks"}, {"VMM_VA_SIZE=2MiB"});
  EXPECT_EQ(ours.out, native.out);
  EXPECT_EQ(ours.code, native.code);
  EXPECT_TRUE(contains(ours.err, "\"blocks_served\":4000,"));
}

// The pools live until the process exits.
TEST(Vmm, ThePeakIsThereForTheNextRun) {
  const std::string folder = child::temporary_file("peaks");
  const child::outcome native = child::plain({"small_blocks"});
  for (int i = 0; i < 2; ++i) {
    child::expect_output("vmm", {"small_blocks"}, native.out, {"VMM_REMEMBER=" + folder});
    EXPECT_FALSE(std::filesystem::is_empty(folder));
  }
  std::filesystem::remove_all(folder);
}

TEST(Cache, HandlesAreUsedAgain) { child::expect_same("cache", {"handles"}, {"caching"}); }

TEST(Cache, HandlesThatOthersMayHaveAreNotKept) { child::expect_same("cache", {"shared_handles"}); }

#ifdef VMM_PRELOAD_TOP
// What vmm-top says of the program, when it says `text`.
std::string shown(const std::string& mode, const std::string& text, bool is_afterwards,
                  const std::string& wanted = "1") {
  const std::string folder = child::temporary_file("runtime");
  EXPECT_EQ(::mkdir(folder.c_str(), 0700), 0);
  std::vector<std::string> words{"shown", VMM_PRELOAD_TOP, text};
  if (is_afterwards) words.emplace_back("afterwards");
  const child::outcome seen =
      child::preloaded(mode, words, {"VMM_TOP=" + wanted, "XDG_RUNTIME_DIR=" + folder});
  EXPECT_EQ(seen.code, 0) << seen.out << seen.err;
  std::filesystem::remove_all(folder);
  return seen.out;
}

TEST(Cache, HandlesAreShownToVmmTopWhereThatIsAskedFor) {
  const std::string used = shown("cache", "\"live_bytes\": 20971520", false);
  EXPECT_TRUE(contains(used, "\"kind\": \"cache\""));
  EXPECT_TRUE(contains(used, "\"held_bytes\": 20971520"));
  EXPECT_TRUE(contains(used, "\"live_count\": 1"));
  const std::string kept = shown("cache", "\"free_bytes\": 20971520", true);
  EXPECT_TRUE(contains(kept, "\"live_bytes\": 0"));
  EXPECT_TRUE(contains(kept, "\"held_bytes\": 20971520, \"peak_held_bytes\": 20971520"));
  EXPECT_TRUE(contains(kept, "\"live_count\": 0"));
  EXPECT_EQ(shown("cache", "]", false, "0"), "[\n]\n");
}

TEST(Managed, PoolsAreShownToVmmTopWhereThatIsAskedFor) {
  const std::string used = shown("vmm", "\"live_bytes\": 20971520", false);
  EXPECT_TRUE(contains(used, "\"kind\": \"pool\""));
  EXPECT_EQ(used.find("cache"), std::string::npos) << used;
  EXPECT_EQ(shown("vmm", "]", false, "0"), "[\n]\n");
}
#endif

TEST(Cache, TheLimitHolds) {
  const child::outcome none =
      child::preloaded("cache", {"handles"}, {"VMM_CACHE_LIMIT=0", "VMM_REPORT=off"});
  EXPECT_EQ(none.out, child::plain({"handles"}).out);
  const child::outcome seen = child::reported("cache", {"handles"}, {"VMM_CACHE_LIMIT=50MiB"});
  EXPECT_TRUE(contains(seen.err, "\"handles_reused\":"));
  EXPECT_EQ(seen.err.find("\"handles_reused\":0"), std::string::npos) << seen.err;
}

TEST(Cache, ChangesNothingThatAProgramSees) {
  for (const char* word :
       {"in_flight", "captured", "questions", "foreign", "copies", "devices", "short_of_memory",
        "reset", "per_thread", "contexts", "refused_reset", "pool_users"})
    child::expect_same("cache", {word});
}

TEST(Cache, RandomProgramsSeeTheSame) { expect_equal_programs("cache"); }

}  // namespace
