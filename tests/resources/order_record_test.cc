// The order record on simulated streams: what nothing orders is reported, by name, however quick the device is; what is
// ordered is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim_support.h"
#include "sluice/engine/errors.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Gate;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Named;
using testing::reach;
using testing::Sim;

/// Three streams, a block, and a record. Every point is reached before the next call, so that an order which is found
/// missing is not one that happened to be missing in time.
class OrderRecords : public ::testing::Test {
 protected:
  OrderRecords() : sim_(2, {.observer = order_record, .label = testing::test_label}) {
    for (int i = 0; i < 3; ++i) streams_.push_back(sim_.stream(i % 2, static_cast<LaneKind>(i)));
    block_ = static_cast<char*>(sim_.provider->allocate(0, 256, nullptr));
  }

  Stream& stream(int i) { return *streams_[static_cast<size_t>(i)]; }
  /// A kernel that touches bytes of the block.
  void touch(const char* name, int i, bool writes, std::size_t begin = 0, std::size_t end = 256) {
    const Named named(name);
    const MemoryUse uses[] = {{block_ + begin, end - begin, writes}};
    stream(i).launch([] {}, uses);
    point(i);
  }
  void write(const char* name, int i, std::size_t begin = 0, std::size_t end = 256) {
    touch(name, i, true, begin, end);
  }
  void read(const char* name, int i, std::size_t begin = 0, std::size_t end = 256) {
    touch(name, i, false, begin, end);
  }
  /// Records the next point of a stream, and waits for it.
  std::uint64_t point(int i) {
    stream(i).record(++points_);
    reach(stream(i), points_);
    return points_;
  }
  /// A stream waits for all that another has done.
  void wait(int i, int other) { stream(i).wait({&stream(other), point(other)}); }
  std::vector<std::string> reports() { return sim_.control->take_reports(); }

  Sim sim_;
  std::vector<std::unique_ptr<Stream>> streams_;
  char* block_ = nullptr;
  std::uint64_t points_ = 0;
};

TEST_F(OrderRecords, TwoWritesWithoutAWait) {
  write("first", 0);
  write("second", 1, 64, 128);
  const auto all = reports();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_THAT(all[0], AllOf(HasSubstr("accesses without order: [first] order_record_test.cc:"),
                            HasSubstr(" writes bytes [0, 256) on sim(0) compute, and [second] order_record_test.cc:"),
                            HasSubstr(" writes bytes [64, 128) on sim(1) copy_in, of a block of 256 bytes")));
}

TEST_F(OrderRecords, AReadAfterAWriteWithoutAWait) {
  write("writer", 0);
  read("reader", 1);
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("[writer]"), HasSubstr("[reader]"), HasSubstr("reads bytes"))));
}

TEST_F(OrderRecords, AWriteAfterAReadWithoutAWait) {
  read("reader", 1);
  read("other reader", 2);
  wait(0, 2);
  write("writer", 0);
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("[reader]"), HasSubstr("[writer]"))));
}

TEST_F(OrderRecords, WhatNeedsNoOrder) {
  read("a", 0);
  read("b", 1);
  read("c", 2);
  wait(0, 1);
  wait(0, 2);
  write("d", 0, 0, 128);
  read("e", 1, 128, 256);
  write("f", 0, 0, 64);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(OrderRecords, WaitsOrderAlsoThroughAThird) {
  write("a", 0);
  wait(1, 0);
  write("b", 1);
  wait(2, 1);
  write("c", 2);
  wait(0, 2);
  write("d", 0);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(OrderRecords, AWaitCoversWhatWasBeforeItsPointOnly) {
  write("before", 0, 0, 128);
  const std::uint64_t early = point(0);
  write("behind", 0, 128, 256);
  stream(1).wait({&stream(0), early});
  read("fine", 1, 0, 128);
  EXPECT_THAT(reports(), IsEmpty());
  read("wrong", 1, 0, 129);
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("[behind]"), HasSubstr("[wrong]"))));
}

/// What the waiting stream does after the join is not of a point before it.
TEST_F(OrderRecords, APointCarriesTheClockThatItsStreamHadThen) {
  write("a", 0);
  const std::uint64_t early = point(1);
  wait(1, 0);
  point(1);
  stream(2).wait({&stream(1), early});
  read("b", 2);
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("[a]"), HasSubstr("[b]"))));
}

TEST_F(OrderRecords, AWaitThatTheIssuerLeavesOutCountsWhenItIsNamed) {
  write("a", 0);
  const StreamEvent event{&stream(0), points_};
  sim_.observer().stream_after(stream(1), {&event, 1});
  write("b", 1);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(OrderRecords, APointThatIsNamedAndNotPassed) {
  Gate gate;
  stream(0).launch([&] { gate.pass(); });
  stream(0).record(++points_);
  const StreamEvent event{&stream(0), points_};
  {
    const Named named("hasty");
    sim_.observer().stream_after(stream(1), {&event, 1});
  }
  gate.open();
  reach(stream(0), points_);
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("[hasty]"), HasSubstr("sim(0) compute"))));
}

TEST_F(OrderRecords, AWaitForAPointThatIsRecordedLater) {
  const std::uint64_t later = 1000;
  const auto touch_unrecorded = [&](const char* name, int i) {
    const Named named(name);
    const MemoryUse uses[] = {{block_, 256, true}};
    stream(i).launch([] {}, uses);
  };
  stream(1).wait({&stream(0), later - 10});
  touch_unrecorded("waits", 1);
  stream(1).record(1);
  stream(2).wait({&stream(1), 1});
  touch_unrecorded("waits for it", 2);
  touch_unrecorded("late", 0);
  stream(0).record(later);
  stream(2).record(1);
  reach(stream(2), 1);
  EXPECT_THAT(reports(), IsEmpty());
  touch_unrecorded("too late", 0);
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("[waits for it]"), HasSubstr("[too late]"))));
}

TEST_F(OrderRecords, CopiesAndFillsAreAccesses) {
  char host[256] = {};
  {
    const Named named("fill");
    sim_.provider->fill(block_, std::byte{1}, 256, &stream(0));
  }
  point(0);
  {
    const Named named("copy");
    sim_.provider->copy(host, block_ + 10, 10, &stream(2));
  }
  point(2);
  EXPECT_THAT(reports(),
              ElementsAre(AllOf(HasSubstr("[fill]"), HasSubstr("[copy]"), HasSubstr("reads bytes [10, 20)"))));
}

TEST_F(OrderRecords, UseAfterFree) {
  {
    const Named named("free");
    sim_.provider->free(0, block_, 256, &stream(0));
  }
  wait(1, 0);
  read("late", 1);
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("use after free: [late]"), HasSubstr("[free]"))));
}

TEST_F(OrderRecords, AFreeIsAWrite) {
  read("reader", 1);
  {
    const Named named("free");
    sim_.provider->free(0, block_, 256, &stream(0));
  }
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("[reader]"), HasSubstr("[free]"), HasSubstr("frees bytes"))));
}

TEST_F(OrderRecords, AnAllocationIsAWrite) {
  block_ = static_cast<char*>(sim_.provider->allocate(0, 256, &stream(0)));
  write("own", 0);
  point(0);
  char* const old = std::exchange(block_, static_cast<char*>(sim_.provider->allocate(0, 256, &stream(0))));
  write("other", 1);
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("no op allocates"), HasSubstr("[other]"))));
  sim_.provider->free(0, old, 256, &stream(0));
}

/// As a pool would that hands a block to another stream and forgets to wait for who had it before.
TEST_F(OrderRecords, ABlockReusedEarly) {
  write("old owner", 0);
  wait(1, 0);
  read("old owner's reader", 1);
  wait(2, 0);
  write("new owner", 2);
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("[old owner's reader]"), HasSubstr("[new owner]"))));
}

TEST_F(OrderRecords, MemoryThatIsHandedOutAgainHasNoPast) {
  write("old", 0);
  sim_.provider->free(0, block_, 256, &stream(0));
  point(0);
  char* const again = static_cast<char*>(sim_.provider->allocate(0, 256, &stream(1)));
  ASSERT_EQ(again, block_);
  write("new", 1);
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(OrderRecords, TheHostFreesWhatIsStillInUse) {
  Gate gate;
  {
    const Named named("slow");
    const MemoryUse uses[] = {{block_, 256, true}};
    stream(0).launch([&] { gate.pass(); }, uses);
    stream(0).record(++points_);
  }
  {
    const Named named("free");
    sim_.provider->free(0, block_, 256, nullptr);
  }
  gate.open();
  reach(stream(0), points_);
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("[slow]"), HasSubstr("[free]"), HasSubstr("on the host"))));
}

TEST_F(OrderRecords, AKernelThatTouchesWhatItsLaunchDidNotName) {
  void* const other = sim_.provider->allocate(0, 64, nullptr);
  {
    const Named named("sly");
    const MemoryUse uses[] = {{block_, 256, true}};
    stream(0).launch([=, this] { kernel_address(block_), kernel_address(other); }, uses);
  }
  point(0);
  EXPECT_THAT(reports(), ElementsAre(HasSubstr("[sly]")));
}

TEST_F(OrderRecords, AnAccessBehindTheEnd) {
  const Named named("wide");
  const MemoryUse uses[] = {{block_ + 200, 57, true}};
  stream(0).launch([] {}, uses);
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("[wide]"), HasSubstr("behind the end"))));
}

TEST_F(OrderRecords, TheSamePlacesAreReportedOnce) {
  for (int i = 0; i < 10; ++i) write("ping", i % 2);
  EXPECT_EQ(reports().size(), 1u);
}

/// The host's own accesses, to pinned buffers: what it was told counts, not what is over.
class OrderOfTheHost : public OrderRecords {
 protected:
  OrderOfTheHost() : pinned_(static_cast<char*>(sim_.provider->allocate_pinned(256))) {}
  ~OrderOfTheHost() override { sim_.provider->free_pinned(pinned_, 256); }
  void copy_in() {
    const Named named("copy");
    sim_.provider->copy(block_, pinned_, 256, &stream(0));
    point(0);
  }
  void host_writes(bool writes = true) {
    const Named named("loader");
    const MemoryUse uses[] = {{pinned_, 256, writes}};
    sim_.observer().host_touches(uses);
  }
  void told(const std::vector<StreamEvent>& events, bool afresh) { sim_.observer().host_after(events, afresh); }
  char* pinned_;
};

TEST_F(OrderOfTheHost, WritesAPinnedBufferBeforeItsCopyIsKnownAsOver) {
  copy_in();
  told({}, true);  // a body begins, ordered after nothing
  host_writes(false);
  EXPECT_THAT(reports(), IsEmpty());
  host_writes();
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("[copy]"), HasSubstr("[loader]"), HasSubstr("on the host"))));
}

TEST_F(OrderOfTheHost, WritesItWhenItWasTold) {
  copy_in();
  told({{&stream(0), points_}}, true);
  host_writes();
  EXPECT_THAT(reports(), IsEmpty());
  told({}, true);
  host_writes();
  EXPECT_EQ(reports().size(), 1u) << "the next body was not";
}

TEST_F(OrderOfTheHost, IsToldThroughAThird) {
  copy_in();
  wait(1, 0);
  const std::uint64_t later = point(1);
  told({{&stream(1), later}}, true);
  host_writes();
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(OrderOfTheHost, KnowsAgainWhatItKnewWhenABodyReturns) {
  copy_in();
  told({{&stream(0), points_}}, false);
  told({}, true);
  sim_.observer().host_returns();
  host_writes();
  EXPECT_THAT(reports(), IsEmpty());
  copy_in();
  told({{&stream(0), points_}}, true);
  host_writes();
  EXPECT_THAT(reports(), IsEmpty());
  sim_.observer().host_returns();
  host_writes();
  EXPECT_EQ(reports().size(), 1u) << "only the body was told";
}

TEST_F(OrderOfTheHost, IsToldOnEachThreadForItself) {
  copy_in();
  told({{&stream(0), points_}}, true);
  std::thread([&] {
    told({}, true);
    host_writes();
    EXPECT_EQ(reports().size(), 1u);
  }).join();
  host_writes();
  EXPECT_THAT(reports(), IsEmpty());
}

TEST_F(OrderOfTheHost, ABlockThatIsReusedHasNoPastButWhatIsNotOver) {
  told({}, true);
  copy_in();
  sim_.observer().block_reused(pinned_);
  host_writes();
  EXPECT_THAT(reports(), IsEmpty());
  Gate gate;
  const std::uint64_t end = ++points_;
  {
    const Named named("other");
    const MemoryUse uses[] = {{pinned_, 256, false}};
    stream(1).launch([&] { gate.pass(); }, uses);
    stream(1).record(end);
  }
  sim_.observer().block_reused(pinned_);
  host_writes();
  EXPECT_THAT(reports(), ElementsAre(AllOf(HasSubstr("[other]"), HasSubstr("[loader]"))));
  gate.open();
  reach(stream(1), end);
}

TEST_F(OrderOfTheHost, AThreadThatIsToldNothingIsJudgedByWhatIsOver) {
  std::thread([&] {
    copy_in();
    host_writes();
    EXPECT_THAT(reports(), IsEmpty());
    Gate gate;
    stream(0).launch([&] { gate.pass(); });
    const Named named("copy");
    sim_.provider->copy(block_, pinned_, 256, &stream(0));
    stream(0).record(++points_);
    host_writes();
    gate.open();
    EXPECT_EQ(reports().size(), 1u);
    reach(stream(0), points_);
  }).join();
}

}  // namespace
}  // namespace sluice
