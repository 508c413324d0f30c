// Simulated streams: order, waits, progress, late errors, and ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "sim_support.h"
#include "sluice/engine/errors.h"

namespace sluice {
namespace {

using std::chrono::hours, std::chrono::milliseconds;
using ::testing::ElementsAre;
using testing::Gate;
using ::testing::IsEmpty;
using testing::reach;
using testing::Sim;

std::string message(const LateError& error) {
  try {
    std::rethrow_exception(error.what);
  } catch (const std::exception& e) {
    return e.what();
  }
}

TEST(SimStreams, KernelsRunInOrderAndPointsAreReachedAfterThem) {
  Sim sim;
  const auto stream = sim.stream();
  EXPECT_EQ(stream->reached(), 0u);
  std::vector<int> order;
  Gate gate;
  stream->launch([&] { gate.pass(); });
  for (int i = 0; i < 100; ++i) stream->launch([&order, i] { order.push_back(i); });
  EXPECT_TRUE(stream->record(7));
  stream->await(7, milliseconds(1));
  EXPECT_EQ(stream->reached(), 0u);
  gate.open();
  reach(*stream, 7);
  EXPECT_EQ(stream->reached(), 7u);
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(SimStreams, OneWaitsForAnotherOnTheDevice) {
  Sim sim;
  const auto first = sim.stream(0), second = sim.stream(1);
  Gate gate;
  int value = 0, seen = -1;
  first->launch([&] { gate.pass(), value = 1; });
  first->record(1);
  EXPECT_TRUE(second->wait({first.get(), 1}));
  second->launch([&] { seen = value; });
  second->record(1);
  second->await(1, milliseconds(1));
  EXPECT_EQ(second->reached(), 0u);
  gate.open();
  reach(*second, 1);
  EXPECT_EQ(seen, 1);
}

/// The first recorded point that is not below the awaited one counts.
TEST(SimStreams, AWaitForAPointThatIsRecordedLater) {
  Sim sim;
  const auto first = sim.stream(0), second = sim.stream(1);
  int value = 0, seen = -1;
  first->record(2);
  EXPECT_TRUE(second->wait({first.get(), 3}));
  second->launch([&] { seen = value; });
  second->record(1);
  reach(*first, 2);
  second->await(1, milliseconds(1));
  EXPECT_EQ(second->reached(), 0u);
  first->launch([&] { value = 1; });
  first->record(5);
  reach(*second, 1);
  EXPECT_EQ(seen, 1);
}

TEST(SimStreams, StreamsOfOthersCannotBeWaitedFor) {
  Sim sim, other;
  const auto stream = sim.stream(), foreign = other.stream();
  EXPECT_FALSE(stream->wait({foreign.get(), 1}));
  EXPECT_TRUE(stream->wait({}));
  EXPECT_TRUE(stream->wait({stream.get(), 1}));
  stream->record(1);
  reach(*stream, 1);
}

TEST(SimStreams, ProgressRisesWithEachPointAndWakesItsWaiter) {
  Sim sim;
  const auto stream = sim.stream();
  for (std::uint64_t i = 1; i <= 2000; ++i) {
    const std::uint64_t seen = sim.provider->progress();
    stream->record(i);
    while (sim.provider->progress() == seen) sim.provider->await_progress(seen, hours(1));
    reach(*stream, i);
  }
  const std::uint64_t seen = sim.provider->progress();
  sim.provider->await_progress(seen, milliseconds(1));
  EXPECT_EQ(sim.provider->progress(), seen);
}

TEST(SimStreams, WhatAKernelThrowsIsALateErrorCountedBeforeItsPoint) {
  Sim sim;
  const auto stream = sim.stream(1);
  stream->launch([] { throw std::runtime_error("illegal address"); });
  stream->launch([] { report_late_error(std::make_exception_ptr(std::runtime_error("clamped")), true); });
  stream->record(1);
  reach(*stream, 1);
  EXPECT_EQ(sim.provider->errors(0), 0u);
  ASSERT_EQ(sim.provider->errors(1), 2u);
  const auto errors = sim.provider->late_errors(1, 0);
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(message(errors[0]), "illegal address");
  EXPECT_FALSE(errors[0].wrote_nothing);
  EXPECT_EQ(message(errors[1]), "clamped");
  EXPECT_TRUE(errors[1].wrote_nothing);
  EXPECT_EQ(sim.provider->late_errors(1, 1).size(), 1u);
  EXPECT_THAT(sim.provider->late_errors(1, 2), IsEmpty());
}

TEST(SimStreams, TheRingKeepsTheLastErrors) {
  Sim sim;
  const auto stream = sim.stream();
  for (int i = 0; i < 1000; ++i) stream->launch([i] { throw std::runtime_error(std::to_string(i)); });
  stream->record(1);
  reach(*stream, 1);
  EXPECT_EQ(sim.provider->errors(0), 1000u);
  const auto errors = sim.provider->late_errors(0, 100);
  ASSERT_EQ(errors.size(), 256u);
  EXPECT_EQ(message(errors.front()), "744");
  EXPECT_EQ(message(errors.back()), "999");
}

TEST(SimStreams, WhatAKernelHoldsLivesUntilItIsOver) {
  Sim sim;
  const auto stream = sim.stream();
  Gate gate;
  const auto held = std::make_shared<int>(1);
  stream->launch([&gate, held] { gate.pass(); });
  EXPECT_EQ(held.use_count(), 2);
  gate.open();
  stream->record(1);
  reach(*stream, 1);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(SimStreams, DelaysAreOfEachKernel) {
  Sim sim(1, {.delay = milliseconds(3)});
  const auto stream = sim.stream();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) stream->launch([] {});
  stream->record(1);
  reach(*stream, 1);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(9));
}

TEST(SimStreams, AStreamIsWorkedOffBeforeItGoes) {
  Sim sim;
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) {
    const auto stream = sim.stream();
    for (int k = 0; k < 10; ++k) stream->launch([&] { ++ran; });
  }
  EXPECT_EQ(ran.load(), 1000);
}

/// The last that holds a stream may be a kernel of its own.
TEST(SimStreams, AStreamMayGoOnItsOwnThread) {
  for (int i = 0; i < 200; ++i) {
    std::atomic<bool> over{false};
    {
      Sim sim;
      std::shared_ptr<Stream> stream = sim.stream();
      auto held = std::make_shared<std::pair<Sim, std::shared_ptr<Stream>>>(std::move(sim), stream);
      Stream& s = *stream;
      stream.reset();
      s.launch([held = std::move(held), &over]() mutable {
        struct Raises {
          std::atomic<bool>& flag;
          ~Raises() {
            flag.store(true);
            flag.notify_all();
          }
        } raises{over};
        held.reset();
      });
    }
    over.wait(false);
  }
}

TEST(SimStreams, AStreamMayGoWhileAnotherWaitsForIt) {
  Sim sim;
  for (int i = 0; i < 200; ++i) {
    auto first = sim.stream(0), second = sim.stream(1);
    bool ran = false;
    second->wait({first.get(), 1});
    second->launch([&] { ran = true; });
    second->record(1);
    if (i % 2 == 0) first->record(1);  // or never: it ends
    first.reset();
    reach(*second, 1);
    EXPECT_TRUE(ran);
  }
}

TEST(SimStreams, ManyThreadsIssueAndAwait) {
  Sim sim(3);
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(sim.stream(i));
  std::vector<std::thread> threads;
  std::atomic<int> ran{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Stream& own = *streams[static_cast<size_t>(t)];
      for (std::uint64_t i = 1; i <= 300; ++i) {
        own.launch([&] { ++ran; });
        own.record(i);
        // Points that others have recorded, or will.
        if (t > 0) own.wait({streams[static_cast<size_t>(t) - 1].get(), i});
        if (i % 50 == 0) reach(own, i);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& stream : streams) reach(*stream, 300);
  EXPECT_EQ(ran.load(), 900);
}

TEST(SimFaults, CallsFailAsPlanted) {
  char host[100] = {};  // the stream reads it until it ends
  Sim sim;
  const auto stream = sim.stream();
  sim.control->fail_every(SimFault::launch, 3);
  int thrown = 0;
  for (int i = 0; i < 9; ++i) {
    try {
      stream->launch([] {});
    } catch (const SimError&) {
      ++thrown;
    }
  }
  EXPECT_EQ(thrown, 3);
  EXPECT_EQ(sim.control->calls(SimFault::launch), 9u);
  EXPECT_EQ(sim.control->failures(SimFault::launch), 3u);
  sim.control->fail_nth(SimFault::allocation, 2);
  void* const block = sim.provider->allocate(0, 100, nullptr);
  EXPECT_NE(block, nullptr);
  EXPECT_EQ(sim.provider->allocate(0, 100, nullptr), nullptr);
  EXPECT_EQ(sim.provider->errors(0), 0u);
  sim.control->fail_nth(SimFault::copy, 1);
  EXPECT_THROW(sim.provider->copy(block, host, 100, stream.get()), SimError);
  sim.provider->copy(block, host, 100, stream.get());
  sim.provider->free(0, block, 100, stream.get());
}

TEST(SimFaults, LateOnesAreNotRunAndReported) {
  Sim sim;
  const auto stream = sim.stream();
  sim.control->fail_nth(SimFault::late_kernel, 2);
  sim.control->fail_nth(SimFault::late_copy, 1);
  int ran = 0;
  for (int i = 1; i <= 3; ++i) stream->launch([&ran, i] { ran = ran * 10 + i; });
  int from = 5, to = 0;
  sim.provider->copy(&to, &from, sizeof to, stream.get());
  stream->record(1);
  reach(*stream, 1);
  EXPECT_EQ(ran, 13);
  EXPECT_EQ(to, 0);
  const auto errors = sim.provider->late_errors(0, 0);
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(message(errors[0]), "planted: kernel 2");
  EXPECT_EQ(message(errors[1]), "planted: late copy 1");
}

/// Waits until the provider says that the device is lost.
std::exception_ptr await_loss(Provider& provider, int device) {
  for (;;) {
    const std::uint64_t seen = provider.progress();
    if (std::exception_ptr why = provider.lost(device)) return why;
    provider.await_progress(seen, hours(1));
  }
}

TEST(SimFaults, ALostDeviceStopsAndSaysSo) {
  Sim sim;
  const auto stream = sim.stream(0), other = sim.stream(1);
  sim.control->lose(0, 2);
  int ran = 0;
  bool after = false;
  for (int i = 0; i < 4; ++i) {
    stream->launch([&] { ++ran; });
    stream->record(static_cast<std::uint64_t>(i) + 1);
  }
  other->wait({stream.get(), 4});
  other->launch([&] { after = true; });
  other->record(1);
  reach(*other, 1);
  EXPECT_TRUE(after) << "others go on";
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(stream->reached(), 2u);
  EXPECT_EQ(sim.provider->lost(1), nullptr);
  EXPECT_EQ(message({{}, await_loss(*sim.provider, 0), false}), "sim(0) is lost");
}

/// The engine frees what unconfirmed ops use when it hears of the loss.
TEST(SimFaults, ALossIsToldWhenTheLastKernelIsOver) {
  Sim sim;
  const auto stream = sim.stream(0), copies = sim.stream(0, LaneKind::copy_in);
  Gate inside, end;
  std::atomic<bool> over{false};
  stream->launch([&] {
    inside.open();
    end.pass();
    over.store(true);
  });
  stream->record(1);
  inside.pass();
  sim.control->lose(0);
  EXPECT_EQ(sim.provider->lost(0), nullptr) << "a kernel runs";
  EXPECT_EQ(sim.provider->errors(0), 1u) << "gates are shut at once";
  ASSERT_EQ(sim.provider->late_errors(0, 0).size(), 1u) << "and no report is missing";
  EXPECT_EQ(sim.provider->late_errors(0, 0)[0].op, DeviceOp{});
  bool ran = false;
  copies->launch([&] { ran = true; });
  std::thread given_up([&] {
    sim.provider->give_up(0);
    EXPECT_TRUE(over.load());
    EXPECT_NE(sim.provider->lost(0), nullptr);
  });
  EXPECT_EQ(sim.provider->lost(0), nullptr);
  end.open();
  given_up.join();
  await_loss(*sim.provider, 0);
  EXPECT_TRUE(over.load());
  EXPECT_EQ(stream->reached(), 0u);
  EXPECT_FALSE(ran);
}

TEST(SimFaults, ALossRaisesProgress) {
  Sim sim;
  const auto stream = sim.stream(0);
  const std::uint64_t seen = sim.provider->progress();
  std::thread losing([&] { sim.control->lose(0); });
  while (sim.provider->progress() == seen) sim.provider->await_progress(seen, hours(1));
  losing.join();
  EXPECT_NE(sim.provider->lost(0), nullptr);
}

TEST(SimFaults, ALostDeviceStaysLost) {
  Sim sim;
  sim.control->lose(0);
  sim.control->silence(0);
  sim.control->release();
  EXPECT_NE(sim.provider->lost(0), nullptr);
}

TEST(SimFaults, ASilentDeviceGoesOnWhenReleased) {
  Sim sim;
  const auto stream = sim.stream(0), other = sim.stream(1);
  sim.control->silence(0, 1);
  int ran = 0;
  for (int i = 0; i < 3; ++i) {
    stream->launch([&] { ++ran; });
    stream->record(static_cast<std::uint64_t>(i) + 1);
  }
  other->wait({stream.get(), 3});
  other->record(1);
  reach(*stream, 1);
  stream->await(3, milliseconds(2));
  EXPECT_EQ(stream->reached(), 1u);
  EXPECT_EQ(other->reached(), 0u);
  EXPECT_EQ(sim.provider->lost(0), nullptr);
  sim.control->release();
  reach(*other, 1);
  EXPECT_EQ(ran, 3);
}

/// Whatever waits for whom, and in whatever order they go.
TEST(SimFaults, StreamsOfDevicesThatDoNotAnswerCanBeDestroyed) {
  for (const bool lost : {false, true}) {
    for (int order = 0; order < 6; ++order) {
      Sim sim(3);
      std::vector<std::unique_ptr<Stream>> streams;
      for (int i = 0; i < 3; ++i) streams.push_back(sim.stream(i));
      if (lost) {
        sim.control->lose(0);
      } else {
        sim.control->silence(0);
      }
      const auto held = std::make_shared<int>(0);
      streams[0]->launch([held] {});
      streams[0]->record(1);
      for (size_t i = 1; i < 3; ++i) {
        streams[i]->wait({streams[i - 1].get(), 1});
        streams[i]->launch([held] {});
        streams[i]->record(1);
      }
      std::vector<size_t> sequence{0, 1, 2};
      for (int i = 0; i < order; ++i) std::next_permutation(sequence.begin(), sequence.end());
      for (const size_t i : sequence) streams[i].reset();
      EXPECT_EQ(held.use_count(), 1);
    }
  }
}

TEST(SimFaults, ALaunchOnAnotherDeviceThanTheEnteredOneIsReported) {
  Sim sim;
  const auto stream = sim.stream(0), other = sim.stream(1);
  sim.provider->enter(1);
  EXPECT_THROW(stream->launch([] {}), UsageError);
  other->launch([] {});
  sim.provider->enter(0);
  stream->launch([] {});
  EXPECT_THAT(sim.control->take_reports(),
              ElementsAre("a kernel given the wrong device: a launch on a stream of sim(0) by a thread that entered "
                          "sim(1)"));
}

}  // namespace
}  // namespace sluice
