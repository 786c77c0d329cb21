// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
//
// Goal: under a contents rule, a call that fails leaves a block's size and bytes as they were:
// bytes are filled only by a call that then succeeds, and a block whose new bytes could not be
// filled has its old size.
// Method: each call of a manager and of a growable range that fills, with each driver call that it
// makes failing once, on the fake driver, whose memory remembers a tag; work is finished by time,
// or by the test. The result of the call decides which bytes are expected.
#include "../support/scenarios.h"

import vmm.manager;

namespace {

using sweeps::status_of, vmm::address, vmm::call, vmm::contents_rule;

constexpr std::uint64_t tag = 7;
constexpr std::uint64_t nth_max = 64;

struct world {
  world(contents_rule rule, bool is_manual) {
    driver.set_manual(is_manual);
    stream = driver.create_stream().value();
    vmm::manager_options options;
    options.contents = rule;
    managed = std::make_unique<vmm::manager>(driver, options);
  }
  ~world() {
    driver.clear_faults();
    EXPECT_TRUE(driver.finish_all());
    EXPECT_TRUE(managed->validate());
    range.reset();
    managed.reset();
    EXPECT_TRUE(driver.destroy_stream(stream));
    EXPECT_TRUE(driver.check_empty()) << driver.report();
    EXPECT_EQ(driver.misuse_count(), 0u);
  }
  world(const world&) = delete;
  world& operator=(const world&) = delete;

  // A block, or a range of two segments, whose bytes have the tag.
  void open_block(std::uint64_t size_bytes) {
    const vmm::allocate_request wanted{
        .size_bytes = size_bytes, .growth_bytes = 16 * MiB, .stream = stream};
    at = managed->allocate(wanted).value();
    EXPECT_TRUE(driver.finish_all());
    EXPECT_TRUE(driver.write_tag({at, size_bytes}, tag));
  }
  void open_range(std::uint64_t size_bytes) {
    const vmm::growable_options options{
        .segment_bytes_max = 16 * MiB, .segment_count = 2, .zero_new = false};
    range = std::make_unique<vmm::growable_range>(*managed, options);
    EXPECT_TRUE(range->grow(size_bytes, stream));
    EXPECT_TRUE(driver.finish_all());
    for (std::uint64_t i = 0; i < 2; ++i)
      EXPECT_TRUE(driver.write_tag({range->segment(i).value(), size_bytes}, tag));
  }
  void expect_tag(address from, std::uint64_t size_bytes, const std::string& when) {
    for (std::uint64_t offset = 0; offset < size_bytes; offset += 2 * MiB)
      ASSERT_EQ(driver.read_tag(from + offset).value_or(~std::uint64_t{0}), tag)
          << when << ", at " << offset / MiB << " MiB of " << size_bytes / MiB;
  }
  void expect_block(std::uint64_t size_bytes, std::uint64_t tagged_bytes, const std::string& when) {
    const auto found = managed->find(at);
    ASSERT_TRUE(found) << when;
    EXPECT_EQ(found->sizes.user_bytes, size_bytes) << when;
    expect_tag(at, tagged_bytes, when);
  }
  void expect_range(std::uint64_t size_bytes, const std::string& when) {
    for (std::uint64_t i = 0; i < 2; ++i) {
      ASSERT_EQ(range->size_bytes(i).value_or(0), size_bytes) << when;
      expect_tag(range->segment(i).value(), size_bytes, when);
    }
  }

  vmm::fake_driver driver{vmm::fake::profile::cuda()};
  vmm::stream_handle stream{};
  std::unique_ptr<vmm::manager> managed;
  std::unique_ptr<vmm::growable_range> range;
  address at{};
  std::vector<address> live;  // others
};

using step = std::function<vmm::status(world&)>;

step resize_to(std::uint64_t size_bytes) {
  return [size_bytes](world& in) {
    return status_of(in.managed->resize({.at = in.at, .size_bytes = size_bytes}));
  };
}

struct trial {
  const char* name = "";
  contents_rule rule = contents_rule::zero_on_release;
  std::function<void(world&)> open;
  step run;
  std::function<void(world&, bool, const std::string&)> look;  // whether the call succeeded
  bool fill_fails = false;  // beside the other fault, the first fill
};

// Each driver call of a kind in its turn.
void fail_each(const trial& of, call kind, bool is_manual) {
  for (std::uint64_t nth = 1; nth <= nth_max; ++nth) {
    world in(of.rule, is_manual);
    of.open(in);
    if (of.fill_fails) in.driver.fail({call::fill, 1, false, {vmm::errc::internal, 78, "FILL"}});
    in.driver.fail({kind, nth, false, {vmm::errc::internal, 77, "INJECTED"}});
    const std::uint64_t planned = of.fill_fails ? 2 : 1;
    const vmm::status done = of.run(in);
    const bool has_struck = in.driver.faults_struck() == planned;
    in.driver.clear_faults();
    EXPECT_TRUE(in.driver.finish_all());
    of.look(in, done.has_value(),
            std::string(of.name) + ", " + vmm::name_of(kind) + " " + std::to_string(nth) +
                (done ? ", done" : std::string(", ") + done.error().detail));
    if (!has_struck || testing::Test::HasFailure()) return;
  }
  ADD_FAILURE() << of.name << " makes more than " << nth_max << " calls of a kind";
}

void fail_each_kind(const trial& of) {
  for (const bool is_manual : {false, true}) {
    for (const call kind : {call::create_event, call::record_event, call::query_event,
                            call::wait_event, call::fill, call::map, call::unmap, call::set_access,
                            call::create, call::record_all, call::synchronize_event}) {
      fail_each(of, kind, is_manual);
      if (testing::Test::HasFailure()) return;
    }
  }
}

trial free_by(const char* name, step how) {
  return {name, contents_rule::zero_on_release, [](world& in) { in.open_block(8 * MiB); },
          std::move(how),
          [](world& in, bool is_done, const std::string& when) {
            if (!is_done) return in.expect_block(8 * MiB, 8 * MiB, when);
            EXPECT_EQ(in.managed->statistics().live_count, 0u) << when;
          }};
}

TEST(KeptContents, OfABlockThatIsFreed) {
  fail_each_kind(free_by("free", [](world& in) { return in.managed->free(in.at); }));
  fail_each_kind(free_by("free behind a stream",
                         [](world& in) { return in.managed->free(in.at, in.stream); }));
  fail_each_kind(free_by("free idle", [](world& in) { return in.managed->free_idle(in.at); }));
}

// Bytes are lost once the fill is queued: all work is waited for, else a later free on another
// stream would hand out memory that the fill still writes.
TEST(KeptContents, OfAFreeThatNoEventCovers) {
  world in(contents_rule::zero_on_release, true);
  in.open_block(8 * MiB);
  in.driver.fail({call::record_event, 1, false, {vmm::errc::internal, 77, "INJECTED"}});
  in.driver.fail({call::synchronize_stream, 1, false, {vmm::errc::internal, 78, "INJECTED"}});
  EXPECT_TRUE(in.managed->free(in.at, in.stream));
  EXPECT_EQ(in.driver.faults_struck(), 2u);
  EXPECT_EQ(in.driver.resource_counts().pending_work, 0u);
}

TEST(KeptContents, OfABlockThatShrinks) {
  fail_each_kind({"shrink", contents_rule::zero_on_release,
                  [](world& in) { in.open_block(8 * MiB); }, resize_to(4 * MiB),
                  [](world& in, bool is_done, const std::string& when) {
                    in.expect_block(is_done ? 4 * MiB : 8 * MiB, is_done ? 4 * MiB : 8 * MiB, when);
                    // Memory that stayed does not keep the block from any other size.
                    EXPECT_TRUE(in.managed->resize({.at = in.at, .size_bytes = 6 * MiB})) << when;
                    EXPECT_TRUE(in.managed->resize({.at = in.at, .size_bytes = 2 * MiB})) << when;
                  }});
}

// A fill of another stream than the block's, for whose event the driver refuses the wait: once,
// or always, and then the wait for all work too.
struct refused_waits {
  call kind;
  bool is_forever;
};

vmm::status resize_with(world& in, std::uint64_t size_bytes, std::span<const refused_waits> waits) {
  for (const refused_waits& each : waits)
    in.driver.fail({each.kind, 1, each.is_forever, {vmm::errc::internal, 77, "INJECTED"}});
  const vmm::status done = resize_to(size_bytes)(in);
  EXPECT_GE(in.driver.faults_struck(), waits.size());
  in.driver.clear_faults();
  return done;
}

constexpr refused_waits once[] = {{call::synchronize_event, false}};
constexpr refused_waits of_event[] = {{call::synchronize_event, true}};
constexpr refused_waits of_all[] = {{call::synchronize_event, true}, {call::synchronize_all, true}};

TEST(KeptContents, OfABlockThatShrinksWhereTheWaitIsRefused) {
  for (const contents_rule rule : {contents_rule::zero_on_release, contents_rule::poison}) {
    for (const std::span<const refused_waits> waits :
         {std::span<const refused_waits>(once), {of_event}, {of_all}}) {
      world in(rule, true);
      in.open_block(8 * MiB);
      EXPECT_TRUE(resize_with(in, 2 * MiB, waits)) << "the bytes are lost: the block is smaller";
      if (waits.data() != of_all) EXPECT_EQ(in.driver.resource_counts().pending_work, 0u);
      EXPECT_TRUE(in.driver.finish_all());
      in.expect_block(2 * MiB, 2 * MiB, "the wait is refused");
    }
  }
}

TEST(KeptContents, OfABlockThatGrowsWhereTheWaitIsRefused) {
  for (const std::span<const refused_waits> waits :
       {std::span<const refused_waits>(once), {of_event}}) {
    world in(contents_rule::zero_on_acquire, true);
    in.open_block(4 * MiB);
    EXPECT_TRUE(resize_with(in, 8 * MiB, waits));
    EXPECT_EQ(in.driver.resource_counts().pending_work, 0u);
    in.expect_block(8 * MiB, 4 * MiB, "the wait is refused");
  }
}

// The fill of what was added is refused, and then what undoes the growth.
TEST(KeptContents, OfABlockThatCannotBeFilled) {
  fail_each_kind({"grow", contents_rule::zero_on_acquire, [](world& in) { in.open_block(4 * MiB); },
                  resize_to(8 * MiB),
                  [](world& in, bool is_done, const std::string& when) {
                    in.expect_block(is_done ? 8 * MiB : 4 * MiB, 4 * MiB, when);
                    EXPECT_TRUE(in.managed->resize({.at = in.at, .size_bytes = 12 * MiB})) << when;
                    EXPECT_TRUE(in.driver.finish_all());
                    if (!is_done) EXPECT_EQ(in.driver.read_tag(in.at + 4 * MiB).value_or(1), 0u);
                  },
                  true});
}

TEST(KeptContents, OfARangeThatShrinks) {
  fail_each_kind({"shrink of a range", contents_rule::zero_on_release,
                  [](world& in) { in.open_range(8 * MiB); },
                  [](world& in) { return in.range->shrink(2 * MiB, in.stream); },
                  [](world& in, bool is_done, const std::string& when) {
                    in.expect_range(is_done ? 2 * MiB : 8 * MiB, when);
                  }});
}

TEST(KeptContents, OfARangeThatIsClosed) {
  fail_each_kind({"close", contents_rule::zero_on_release,
                  [](world& in) { in.open_range(8 * MiB); },
                  [](world& in) { return in.range->close(in.stream); },
                  [](world& in, bool is_done, const std::string& when) {
                    if (!is_done) return in.expect_range(8 * MiB, when);
                    EXPECT_EQ(in.managed->statistics().mapped_bytes, 0u) << when;
                  }});
}

// From a segment on the driver refuses every fill: a segment whose bytes are gone has the new size.
TEST(KeptContents, OfARangeWhoseFillsEnd) {
  for (const contents_rule rule : {contents_rule::zero_on_release, contents_rule::poison}) {
    for (const std::uint64_t kept_bytes : {std::uint64_t{0}, 2 * MiB}) {
      for (const std::uint64_t first : {0u, 1u}) {
        world in(rule, true);
        in.open_range(8 * MiB);
        in.driver.fail({call::fill, 1 + first, true, {vmm::errc::internal, 77, "INJECTED"}});
        const auto run = [&] {
          return kept_bytes == 0 ? in.range->close(in.stream)
                                 : in.range->shrink(kept_bytes, in.stream);
        };
        const vmm::status done = run();
        in.driver.clear_faults();
        EXPECT_TRUE(in.driver.finish_all());
        ASSERT_FALSE(done);
        for (std::uint64_t i = 0; i < 2; ++i) {
          const std::uint64_t size_bytes = i < first ? kept_bytes : 8 * MiB;
          ASSERT_EQ(in.range->size_bytes(i).value_or(1), size_bytes) << done.error().detail;
          in.expect_tag(in.range->segment(i).value(), size_bytes, done.error().detail);
        }
        EXPECT_TRUE(run());
      }
    }
  }
}

// What the host writes behind the wait for a block is not overwritten by a fill that the manager
// has queued.
struct host_write {
  const char* name;
  contents_rule rule;
  std::function<void(world&)> change;
  std::uint64_t from_bytes;
};

void write_behind_wait(const host_write& what) {
  world in(what.rule, true);
  in.open_block(4 * MiB);
  ASSERT_TRUE(in.driver.launch(in.stream, {.name = "busy", .duration_us = 1000}));
  what.change(in);
  ASSERT_TRUE(in.managed->synchronize(in.at)) << what.name;
  EXPECT_TRUE(in.driver.write_tag({in.at + what.from_bytes, MiB}, tag)) << what.name;
  EXPECT_EQ(in.driver.misuse_count(), 0u) << what.name << ": the host writes beside a fill";
  EXPECT_TRUE(in.driver.finish_all());
  EXPECT_EQ(in.driver.read_tag(in.at + what.from_bytes).value_or(0), tag) << what.name;
}

TEST(KeptContents, OfWhatTheHostWritesAfterItsWait) {
  const auto named_resize_to = [](std::uint64_t size_bytes) {
    return [size_bytes](world& in) {
      const auto now =
          *in.managed->resize({.at = in.at, .size_bytes = size_bytes, .names_stream = true});
      in.at = now;
    };
  };
  write_behind_wait(
      {"allocate", contents_rule::zero_on_acquire,
       [](world& in) {
         in.at = in.managed->allocate({.size_bytes = 2 * MiB, .stream = in.stream}).value();
       },
       0});
  write_behind_wait({"grow", contents_rule::zero_on_acquire, named_resize_to(8 * MiB), 4 * MiB});
  write_behind_wait({"shrink and grow", contents_rule::zero_on_release,
                     [&](world& in) {
                       named_resize_to(MiB)(in);
                       named_resize_to(2 * MiB)(in);
                     },
                     MiB});
}

// ---- a driver that refuses every wait ----------------------------------------------------

// From the nth event of a kind on the driver refuses it, and every wait. Whatever the call returns,
// no work meets a fill that is in flight, and later all memory goes back.
void refuse_waits_from(const trial& of, call kind, std::uint64_t nth, bool& has_struck) {
  world in(of.rule, true);
  const vmm::stream_handle other = in.driver.create_stream().value();
  of.open(in);
  in.driver.reset_calls();
  in.driver.fail({kind, nth, true, {vmm::errc::internal, 77, "INJECTED"}});
  for (const call wait : {call::synchronize_event, call::synchronize_stream, call::synchronize_all})
    in.driver.fail({wait, 1, true, {vmm::errc::internal, 78, "WAIT"}});
  const vmm::status done = of.run(in);
  has_struck = in.driver.calls(kind) >= nth;
  if (!in.managed->find(in.at)) in.at = {};
  const std::string when = std::string(of.name) + ", " + vmm::name_of(kind) + " from the " +
                           std::to_string(nth) + "th on" + (done ? ", done" : "");
  const auto use = [&](address at, std::uint64_t size_bytes, vmm::stream_handle stream) {
    const vmm::address_range what{at, size_bytes};
    EXPECT_TRUE(in.driver.launch(stream, {.duration_us = 10, .writes = {&what, 1}}));
  };
  for (const bool is_refused : {true, false}) {
    if (!is_refused) in.driver.clear_faults();
    for (int left = 2; left > 0; --left) {  // what the call gave back, if it is handed on
      const auto made = in.managed->allocate({.size_bytes = 4 * MiB, .stream = other});
      if (!made) continue;
      use(*made, 4 * MiB, other);
      if (!is_refused || !in.managed->free(*made, other)) in.live.push_back(*made);
    }
    const vmm::resize_request more{.at = in.at, .size_bytes = 3 * MiB, .names_stream = !is_refused};
    if (in.at && in.managed->resize(more)) use(in.at, 3 * MiB, in.stream);
    if (in.range && in.range->grow(3 * MiB, other))
      use(in.range->segment(0).value(), 3 * MiB, other);
    EXPECT_EQ(in.driver.misuse_count(), 0u) << when << ", refused: " << is_refused;
    for (const auto& each : in.driver.misuses()) ADD_FAILURE() << each.detail;
    in.driver.clear_misuses();
  }
  EXPECT_TRUE(in.driver.finish_all());
  in.range.reset();
  if (in.at) in.live.push_back(in.at);
  for (const address each : in.live) EXPECT_TRUE(in.managed->free(each)) << when;
  EXPECT_TRUE(in.driver.finish_all());
  (void)in.managed->trim(0);
  EXPECT_EQ(in.managed->statistics().held_bytes, 0u) << when;
  EXPECT_EQ(in.managed->statistics().live_count, 0u) << when;
  EXPECT_TRUE(in.driver.destroy_stream(other));
}

void refuse_waits(const trial& of) {
  for (const call kind : {call::create_event, call::record_event, call::record_all}) {
    bool has_struck = true;
    for (std::uint64_t nth = 1; has_struck && !testing::Test::HasFailure(); ++nth) {
      ASSERT_LT(nth, nth_max) << of.name;
      refuse_waits_from(of, kind, nth, has_struck);
    }
  }
}

TEST(KeptContents, OfCallsWhoseEventsAndWaitsAreRefused) {
  const std::pair<const char*, step> of_blocks[] = {
      {"free", [](world& in) { return in.managed->free(in.at); }},
      {"free behind a stream", [](world& in) { return in.managed->free(in.at, in.stream); }},
      {"free idle", [](world& in) { return in.managed->free_idle(in.at); }},
      {"shrink", resize_to(MiB)},
      {"grow", resize_to(12 * MiB)},
      {"allocate",
       [](world& in) -> vmm::status {
         const auto at = in.managed->allocate({.size_bytes = 4 * MiB, .stream = in.stream});
         if (!at) return at.error();
         const vmm::status freed = in.managed->free(*at, in.stream);
         if (!freed) in.live.push_back(*at);
         return freed;
       }},
  };
  const std::pair<const char*, step> of_ranges[] = {
      {"shrink of a range", [](world& in) { return in.range->shrink(MiB, in.stream); }},
      {"grow of a range", [](world& in) { return in.range->grow(12 * MiB, in.stream); }},
      {"close", [](world& in) { return in.range->close(in.stream); }},
  };
  for (const contents_rule rule :
       {contents_rule::zero_on_release, contents_rule::zero_on_acquire, contents_rule::poison}) {
    for (const auto& [name, run] : of_blocks)
      refuse_waits({name, rule, [](world& in) { in.open_block(8 * MiB); }, run, {}});
    for (const auto& [name, run] : of_ranges)
      refuse_waits({name, rule, [](world& in) { in.open_range(8 * MiB); }, run, {}});
  }
}

}  // namespace
