// The order record on an engine's simulated devices: programs whose accesses are listed are in order on the device as
// well, and what a program hides from the engine is reported, by name, however quick the device is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "recorded.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::failure;
using testing::Gate;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kBytes;
using testing::kWords;
using testing::Recorded;
using testing::Signal;

/// A kernel that adds one to each word.
void launch_increment(Context& c, std::uint32_t* block) {
  const MemoryUse uses[] = {{block, kBytes, true}};
  c.stream()->launch(
      [block] {
        std::uint32_t* const words = kernel_pointer(block);
        for (std::size_t i = 0; i < kWords; ++i) ++words[i];
      },
      uses);
}

/// A kernel that only looks.
void launch_look(Context& c, std::uint32_t* block) {
  const MemoryUse uses[] = {{block, kBytes, false}};
  c.stream()->launch([block] { (void)*static_cast<volatile std::uint32_t*>(kernel_pointer(block)); }, uses);
}

TEST(DeviceOrder, AnAccessThatIsNotListedIsReportedThoughTheOtherIsLongOver) {
  Recorded r;
  const Variable v = r.engine->variable();
  std::uint32_t* const block = r.block();
  r.engine->push([&](Context& c) { launch_increment(c, block); }, {write(v)}, {.on = sim(0), .name = "writer"});
  r.engine->wait(v);
  r.engine->push([&](Context& c) { launch_look(c, block); }, {},
                 {.on = Place(sim(0), LaneKind::copy_out), .name = "reader"});
  r.engine->wait_all();
  EXPECT_THAT(
      r.reports(),
      ElementsAre(AllOf(HasSubstr("[writer] order_test.cc:"), HasSubstr("writes bytes [0, 64) on sim(0) compute"),
                        HasSubstr("[reader] order_test.cc:"), HasSubstr("reads bytes [0, 64) on sim(0) copy_out"))));
}

/// A read is no license to write.
TEST(DeviceOrder, AWriteListedAsARead) {
  Recorded r;
  const Variable v = r.engine->variable();
  std::uint32_t* const block = r.block();
  r.engine->push([&](Context& c) { launch_look(c, block); }, {read(v)}, {.on = sim(0), .name = "reader"}).wait();
  r.engine->push([&](Context& c) { launch_increment(c, block); }, {read(v)},
                 {.on = Place(sim(0), LaneKind::copy_in), .name = "writer"});
  r.engine->wait_all();
  EXPECT_THAT(r.reports(), ElementsAre(AllOf(HasSubstr("[reader]"), HasSubstr("[writer]"))));
}

/// Memory that goes to another variable needs an order of its own.
TEST(DeviceOrder, ABlockReusedEarly) {
  Recorded r;
  std::uint32_t* const block = r.block();
  {
    const Variable v = r.engine->variable();
    r.engine->push([&](Context& c) { launch_increment(c, block); }, {write(v)}, {.on = sim(0), .name = "old owner"});
    r.engine->wait(v);
  }
  const Variable w = r.engine->variable();
  r.engine->push([&](Context& c) { launch_increment(c, block); }, {write(w)},
                 {.on = Place(sim(0), LaneKind::copy_in), .name = "new owner"});
  r.engine->wait(w);
  EXPECT_THAT(r.reports(), ElementsAre(AllOf(HasSubstr("[old owner]"), HasSubstr("[new owner]"))));
}

TEST(DeviceOrder, AUseAfterFree) {
  Recorded r;
  const Variable v = r.engine->variable();
  std::uint32_t* const block = r.block();
  r.engine->push([&](Context& c) { r.provider->free(0, block, kBytes, c.stream()); }, {write(v)},
                 {.on = sim(0), .name = "free"});
  // The kernel says that it reads, and does not: AddressSanitizer would end the test.
  const MemoryUse uses[] = {{block, kBytes, false}};
  r.engine->push([&](Context& c) { c.stream()->launch([] {}, uses); }, {read(v)}, {.on = sim(0), .name = "late"});
  r.engine->wait_all();
  EXPECT_THAT(r.reports(), ElementsAre(AllOf(HasSubstr("use after free: [late]"), HasSubstr("[free]"))));
}

TEST(DeviceOrder, APinnedBufferWrittenBeforeItsCopyHasEnded) {
  Recorded r;
  const Variable v = r.engine->variable();
  std::uint32_t* const block = r.block();
  void* const pinned = r.provider->allocate_pinned(kBytes);
  Gate gate;
  Signal issued;
  r.engine->push(
      [&](Context& c) {
        c.stream()->launch([&] { gate.pass(); });
        r.provider->copy(block, pinned, kBytes, c.stream());
        issued.raise();
      },
      {write(v)}, {.on = Place(sim(0), LaneKind::copy_in), .name = "copy"});
  issued.wait();
  r.engine
      ->push(
          [&] {
            const MemoryUse uses[] = {{pinned, kBytes, true}};
            r.observer().host_touches(uses);
          },
          {}, {.name = "loader"})
      .wait();
  EXPECT_THAT(r.reports(), ElementsAre(AllOf(HasSubstr("[copy]"), HasSubstr("[loader]"), HasSubstr("on the host"))));
  gate.open();
  r.engine->wait_all();
  r.provider->free_pinned(pinned, kBytes);
}

TEST(DeviceOrder, AKernelGivenTheWrongDevice) {
  Recorded r;
  std::uint32_t* const block = r.block(1);
  Stream* other = nullptr;
  r.engine->push([&](Context& c) { other = c.stream(); }, {}, {.on = sim(1)}).wait();
  // Its stream, and its memory.
  const Variable v = r.engine->variable(), w = r.engine->variable();
  r.engine->push([&](Context&) { other->launch([] {}); }, {write(v)}, {.on = sim(0), .name = "lost its way"});
  r.engine->push([&](Context& c) { launch_look(c, block); }, {write(w)}, {.on = sim(0), .name = "astray"});
  EXPECT_THAT(failure([&] { r.engine->wait(v); }), HasSubstr("a kernel given the wrong device"));
  EXPECT_THAT(failure([&] { r.engine->wait(w); }), HasSubstr("memory of sim(1) in a kernel of sim(0)"));
  EXPECT_THAT(r.reports(), ::testing::UnorderedElementsAre(HasSubstr("[lost its way]"), HasSubstr("[astray]")));
}

using DeviceOrderDeathTest = ::testing::Test;

TEST(DeviceOrderDeathTest, AHostReadAtIssue) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Recorded r;
        volatile std::uint32_t* const block = r.block();
        r.engine->push([&](Context&) { (void)*block; }, {}, {.on = sim(0)}).wait();
      },
      "");
}

/// Random programs over both devices' lanes and the host, with all accesses listed: no report, and the values of the
/// program's order.
void random_program(unsigned seed, SimOptions options) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  options.seed = seed;
  Recorded r(options);
  struct Array {
    Variable variable;
    int device;
    std::uint32_t* block;
    std::uint32_t expected = 0;
  };
  std::vector<Array> arrays;
  for (int i = 0; i < 6; ++i) {
    arrays.push_back({r.engine->variable(), i % 2, r.block(i % 2)});
    r.provider->fill(arrays.back().block, std::byte{0}, kBytes, nullptr);
  }
  for (int i = 0; i < 60; ++i) {
    Array& a = arrays[static_cast<size_t>(below(6))];
    Array& b = arrays[static_cast<size_t>(below(6))];
    const Place lane(sim(a.device), static_cast<LaneKind>(below(3)));
    switch (below(6)) {
      case 0:  // on the host, behind the device
        r.engine->push(
            [&r, block = a.block] {
              std::uint32_t words[kWords];
              r.provider->copy(words, block, kBytes, nullptr);
              for (std::uint32_t& word : words) word = word * 3 + 1;
              r.provider->copy(block, words, kBytes, nullptr);
            },
            {update(a.variable)}, {.name = "host"});
        a.expected = a.expected * 3 + 1;
        break;
      case 1:  // a reader alone
        r.engine->push([block = a.block](Context& c) { launch_look(c, block); }, {read(a.variable)},
                       {.on = lane, .name = "look"});
        break;
      case 2:
        if (&a != &b) {  // within a device and between them
          r.engine->push(
              [&r, to = a.block, from = b.block](Context& c) { r.provider->copy(to, from, kBytes, c.stream()); },
              {read(b.variable), write(a.variable)}, {.on = lane, .name = "copy"});
          a.expected = b.expected;
          break;
        }
        [[fallthrough]];
      case 3:
        if (&a != &b && a.device == b.device) {
          r.engine->push(
              [to = a.block, from = b.block](Context& c) {
                const MemoryUse uses[] = {{to, kBytes, true}, {from, kBytes, false}};
                c.stream()->launch(
                    [=] {
                      for (std::size_t w = 0; w < kWords; ++w) kernel_pointer(to)[w] += kernel_pointer(from)[w];
                    },
                    uses);
              },
              {read(b.variable), update(a.variable)}, {.on = lane, .name = "add"});
          a.expected += b.expected;
          break;
        }
        [[fallthrough]];
      default:
        r.engine->push([block = a.block](Context& c) { launch_increment(c, block); }, {update(a.variable)},
                       {.on = lane, .name = "increment"});
        ++a.expected;
    }
    if (below(20) == 0) r.engine->wait(a.variable);
  }
  r.engine->wait_all();
  EXPECT_THAT(r.reports(), IsEmpty()) << "seed " << seed;
  for (const Array& a : arrays) {
    std::array<std::uint32_t, kWords> words;
    r.provider->copy(words.data(), a.block, kBytes, nullptr);
    EXPECT_THAT(words, Each(a.expected)) << "seed " << seed;
  }
}

TEST(DeviceOrder, RandomProgramsAreInOrderOnTheDevice) {
  for (unsigned seed = 1; seed <= 150 && !HasFailure(); ++seed) {
    random_program(seed, {.random_delay = std::chrono::microseconds(seed % 3 == 0 ? 30 : 0)});
  }
}

}  // namespace
}  // namespace sluice
