// OnPoison::always: bodies that are called where others are skipped, and how such ops end. Completions that keep a root
// or say that nothing was written.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "sluice/resources/providers/sim.h"
#include "support.h"

namespace sluice {
namespace {
using testing::failure;
using testing::Held;
using testing::QuietEngine;
using testing::thrown;

[[noreturn]] void fail(const char* message) { throw std::runtime_error(message); }

class Always : public ::testing::TestWithParam<bool> {
 protected:
  EngineOptions options() const {
    EngineOptions options;
    options.threads = 2;
    if (GetParam()) options.mode = EngineMode::serial;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(, Always, ::testing::Bool(),
                         [](const auto& mode) { return mode.param ? "Serial" : "Threads"; });

constexpr PushOptions kAlways{.name = "rank", .on_poison = OnPoison::always};

/// An op that nobody answers yet, so that what is behind it is queued in serial mode too.
TEST_P(Always, ACancelledOpIsCalledAndDecidesHowItEnds) {
  QuietEngine engine(options());
  Held held;
  const Variable v = engine.variable(), w = engine.variable();
  engine.push(held.body(), {write(v)});
  held.begun.wait();
  ErrorRef reason, other;
  const Ticket takes = engine.push([&](Context& c) { reason = c.skip_reason(); }, {update(v)}, kAlways);
  const Ticket keeps = engine.push(
      [&](Context& c) {
        other = c.skip_reason();
        throw Error(other);
      },
      {update(v), write(w)}, kAlways);
  ASSERT_TRUE(takes.cancel());
  ASSERT_TRUE(keeps.cancel());
  held.completion.done();
  takes.wait();
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->kind, ErrorKind::cancelled);
  EXPECT_EQ(reason->operation, "rank");
  const ErrorRef root = thrown([&] { engine.wait(w); });
  EXPECT_EQ(root, other);
  EXPECT_NE(root, reason) << "each op's cancel has a root of its own";
}

TEST_P(Always, AScopesRootIsOneForAll) {
  QuietEngine engine(options());
  Held held;
  const Variable v = engine.variable();
  engine.push(held.body(), {write(v)});
  held.begun.wait();
  CancelScope scope;
  std::vector<ErrorRef> reasons(3);
  std::vector<Ticket> called;
  Ticket skipped;
  {
    const CancelScope::Guard guard(scope);
    for (ErrorRef& reason : reasons)
      called.push_back(engine.push([&reason](Context& c) { reason = c.skip_reason(); }, {read(v)}, kAlways));
    skipped = engine.push([] {}, {read(v)});
  }
  scope.cancel();
  held.completion.done();
  const ErrorRef root = thrown([&] { skipped.wait(); });
  for (const Ticket& ticket : called) ticket.wait();
  for (const ErrorRef& reason : reasons) EXPECT_EQ(reason, root);
}

TEST_P(Always, PoisonIsSeenByAccessAndIsNoReasonToSkip) {
  QuietEngine engine(options());
  const Variable bad = engine.variable(), good = engine.variable(), out = engine.variable();
  engine.push([] { fail("x"); }, {write(bad)}, {.name = "root"});
  std::string seen;
  engine.push(
      [&](Context& c) {
        seen = c.skip_reason() ? "skipped" : "called";
        for (const Variable& v : {bad, good}) seen += c.error(v) ? " " + c.error(v)->operation : " -";
      },
      {read(bad), read(good), write(out)}, kAlways);
  engine.wait(out);
  EXPECT_EQ(seen, "called root -");
}

TEST_P(Always, RecordsThatAreUsedAgainForgetTheReason) {
  QuietEngine engine(options());
  const Variable v = engine.variable();
  for (int i = 0; i < 300; ++i) {
    Held held;
    engine.push(held.body(), {write(v)});
    held.begun.wait();
    ErrorRef reason;
    bool other = true;
    const Ticket cancelled = engine.push([&](Context& c) { reason = c.skip_reason(); }, {update(v)}, kAlways);
    engine.push([&](Context& c) { other = c.skip_reason() != nullptr; }, {update(v)},
                {.on_poison = i % 2 ? OnPoison::always : OnPoison::run});
    const Ticket skipped = engine.push([] {}, {update(v)}, {.on_poison = OnPoison::run});
    ASSERT_TRUE(cancelled.cancel());
    ASSERT_TRUE(skipped.cancel());
    held.completion.done();
    ASSERT_NE(failure([&] { skipped.wait(); }), "") << "run alone is skipped";
    ASSERT_TRUE(reason);
    ASSERT_FALSE(other);
  }
}

TEST_P(Always, AStoppingEngineCallsIt) {
  QuietEngine engine(options());
  Held held;
  const Variable v = engine.variable();
  engine.push(held.body(), {write(v)});
  held.begun.wait();
  ErrorRef reason;
  bool ran = false;
  engine.push([&](Context& c) { reason = c.skip_reason(); }, {update(v)}, kAlways);
  engine.push([&] { ran = true; }, {update(v)}, {.on_poison = OnPoison::run});
  EXPECT_FALSE(engine.stop(StopMode::cancel, std::chrono::milliseconds(1)));
  held.completion.done();
  EXPECT_TRUE(engine.stop(StopMode::cancel));
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->kind, ErrorKind::stopped);
  EXPECT_FALSE(ran);
}

TEST_P(Always, ACapturedOpIsCalledWhereItsReplayWasCancelled) {
  QuietEngine engine(options());
  const Variable v = engine.variable();
  int called = 0, skippable = 0;
  ErrorRef reason;
  const Program program = engine.capture([&] {
    engine.push([&] { ++skippable; }, {update(v)}, {.on_poison = OnPoison::run});
    engine.push([&](Context& c) { ++called, reason = c.skip_reason(); }, {update(v)}, kAlways);
  });
  const auto replay = [&](bool cancel) {
    Held held;
    engine.push(held.body(), {write(v)});
    held.begun.wait();
    const Ticket ticket = engine.replay(program);
    EXPECT_EQ(cancel && ticket.cancel(), cancel);
    held.completion.done();
    return thrown([&] { ticket.wait(); });
  };
  EXPECT_TRUE(replay(true));
  EXPECT_EQ(called, 1);
  EXPECT_EQ(skippable, 0);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->kind, ErrorKind::cancelled);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(replay(false));
    EXPECT_EQ(called, 2 + i);
    EXPECT_FALSE(reason);
  }
}

TEST_P(Always, AnOpOfAStreamIsCalledToo) {
  EngineOptions with = options();
  with.providers = {sim_devices(1)};
  QuietEngine engine(with);
  Held held;
  const Variable v = engine.variable();
  engine.push(held.body(), {write(v)});
  held.begun.wait();
  ErrorRef reason;
  int value = 0;
  const Ticket ticket = engine.push(
      [&](Context& c) {
        reason = c.skip_reason();
        c.stream()->launch([&] { value = 1; });
      },
      {update(v)}, {.on = sim(0), .on_poison = OnPoison::always});
  ASSERT_TRUE(ticket.cancel());
  held.completion.done();
  ticket.wait();
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->kind, ErrorKind::cancelled);
  EXPECT_EQ(value, 1);
}

/// A cancel that the body made good is no error that anybody must hear of; one that an op ends with is.
TEST_P(Always, ARootThatOnlyBodiesWereToldOfIsNotReported) {
  std::vector<std::string> heard;
  {
    Engine engine(QuietEngine::given(options()));
    engine.on_unobserved_error([&](const ErrorRoot& root) { heard.push_back(root.operation); });
    for (const bool keeps : {false, true}) {
      for (const bool scoped : {false, true}) {
        Held held;
        const Variable v = engine.variable();
        const Ticket holder = engine.push(held.body(), {write(v)});
        held.begun.wait();
        CancelScope scope;
        const char* const name = keeps ? (scoped ? "keeps, scope" : "keeps") : "makes good";
        Ticket ticket;
        {
          std::optional<CancelScope::Guard> guard;
          if (scoped) guard.emplace(scope);
          ticket = engine.push(
              [keeps](Context& c) {
                if (keeps) throw Error(c.skip_reason());
              },
              {update(v)}, {.name = name, .on_poison = OnPoison::always});
        }
        if (scoped) {
          scope.cancel();
        } else {
          EXPECT_TRUE(ticket.cancel());
        }
        held.completion.done();
        holder.wait();
        if (!keeps) engine.wait(v);
      }
    }
  }
  std::sort(heard.begin(), heard.end());
  EXPECT_EQ(heard, (std::vector<std::string>{"keeps", "keeps, scope"}));
}

/// A body that is always called is not called there: there is nothing that it could issue.
TEST(AlwaysOnStreams, ALostDeviceGetsNoBodyAndItsReplaysEnd) {
  const auto control = std::make_shared<SimControl>();
  QuietEngine engine(
      {.providers = {sim_devices(1, {.control = control})}, .device_limit = std::chrono::milliseconds(50)});
  const Variable v = engine.variable();
  int called = 0;
  Completion held;
  const Program program = engine.capture([&] {
    engine.push(
        [&](Context&, Completion done) {
          ++called;
          held = std::move(done);
        },
        {update(v)}, {.on = sim(0), .on_poison = OnPoison::always});
  });
  control->silence(0);
  const Ticket first = engine.push([](Context& c) { c.stream()->launch([] {}); }, {write(v)}, {.on = sim(0)});
  const ErrorRef root = thrown([&] { first.wait(); });
  ASSERT_TRUE(root);
  const Ticket always = engine.push([&] { ++called; }, {update(v)}, {.on = sim(0), .on_poison = OnPoison::always});
  EXPECT_EQ(thrown([&] { always.wait(); }), root);
  EXPECT_EQ(thrown([&] { engine.replay(program).wait(); }), root);
  EXPECT_EQ(called, 0);
  control->release();
}

// ---- what a Completion can say

TEST_P(Always, ACompletionKeepsARootAndSaysWhatWasWritten) {
  QuietEngine engine(options());
  const Variable first = engine.variable(), v = engine.variable();
  engine.push([] { fail("x"); }, {write(first)}, {.name = "root"});
  const ErrorRef root = thrown([&] { engine.wait(first); });
  for (const bool nothing : {true, false}) {
    engine.push([] {}, {write(v)});
    Held held;
    const Ticket ticket = engine.push(held.body(), {update(v)});
    held.begun.wait();
    held.completion.pass_on(root, nothing);
    EXPECT_EQ(thrown([&] { ticket.wait(); }), root);
    EXPECT_EQ(thrown([&] { engine.wait(v); }), root);
    engine.recover(v);
    EXPECT_EQ(thrown([&] { engine.wait(v); }), nothing ? nullptr : root);
  }
  // Of two failures one that may have written counts. The closure goes when what the body threw is known.
  const Variable w = engine.variable();
  engine.push([] {}, {write(w)});
  Completion both;
  std::shared_ptr<void> answer(nullptr, [&](void*) { both.pass_on(root, true); });
  engine.push(
      [&both, held = std::move(answer)](Completion done) {
        both = std::move(done);
        throw std::runtime_error("spoilt");
      },
      {update(w)});
  EXPECT_TRUE(thrown([&] { engine.wait(w); }));
  engine.recover(w);
  EXPECT_NE(failure([&] { engine.wait(w); }), "") << "it is torn";

  Held held;
  const Ticket ticket = engine.push(held.body(), {update(v)}, {.name = "mine", .on_poison = OnPoison::run});
  held.begun.wait();
  held.completion.pass_on(nullptr);
  EXPECT_EQ(failure([&] { ticket.wait(); }), "mine: its Completion failed without an exception");
}

TEST_P(Always, ACapturedCompletionSaysTheSame) {
  QuietEngine engine(options());
  const Variable first = engine.variable(), v = engine.variable();
  engine.push([] { fail("x"); }, {write(first)}, {.name = "root"});
  const ErrorRef root = thrown([&] { engine.wait(first); });
  Held held;
  const auto take = held.body();
  const Program program = engine.capture([&] { engine.push(take, {update(v)}); });
  for (const bool nothing : {true, false}) {
    engine.push([] {}, {write(v)});
    held.begun.lower();
    const Ticket ticket = engine.replay(program);
    held.begun.wait();
    held.completion.pass_on(root, nothing);
    EXPECT_EQ(thrown([&] { ticket.wait(); }), root);
    engine.recover(v);
    EXPECT_EQ(thrown([&] { engine.wait(v); }), nothing ? nullptr : root);
  }
}

}  // namespace
}  // namespace sluice
