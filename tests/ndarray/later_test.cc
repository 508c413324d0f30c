// Operations on arrays that answer later, and bodies that are called although operands are poisoned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "ndarray_test_support.h"
#include "simulated_devices.h"
#include "sluice/ndarray/attributes.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;
using Floats = std::vector<float>;

/// Takes an operation's answer, for the test to give it.
struct Answer {
  ArrayCompletion completion;
  std::atomic<bool> begun{false};

  auto body() {
    return [this](ArrayContext&, ArrayCompletion done) {
      completion = std::move(done);
      begun = true;
      begun.notify_all();
    };
  }
  void wait() const { begun.wait(false); }
  /// Writes value, value + 1, .. to the output, and answers.
  void write(float value) {
    each_address(completion.output(), [&](float* y) { *y = value++; });
    completion.done();
  }
};

ErrorRef root_of(const NDArray& x) {
  try {
    x.wait();
  } catch (const Error& e) {
    return e.root_ref();
  }
  return nullptr;
}

NDArray import_of(float* memory, std::int64_t count) {
  return from_memory(memory, nullptr, {count}, DType::f32, cpu(0));
}

class Later : public ::testing::TestWithParam<EngineMode> {
 protected:
  TestEngine test{2, 1, GetParam()};
  DeviceScope scope{cpu(0)};
};
INSTANTIATE_TEST_SUITE_P(, Later, ::testing::Values(EngineMode::threaded, EngineMode::serial),
                         [](const auto& mode) { return mode.param == EngineMode::serial ? "Serial" : "Threads"; });

TEST_P(Later, AnotherThreadAnswers) {
  NDArray x = from({1.0F, 2.0F, 3.0F}, {3}), y = empty({3});
  const NDArray result = y;
  Answer answer;
  const Ticket ticket = push_op(answer.body(), {x}, {y}, {.name = "late"});
  answer.wait();
  const NDArray after = y * 10;
  x.fill(7);  // behind the operation, which reads x
  x = y = NDArray();
  EXPECT_FALSE(ticket.done());
  std::thread([&] {
    EXPECT_EQ(answer.completion.inputs(), 1);
    EXPECT_EQ(answer.completion.outputs(), 1);
    EXPECT_EQ(answer.completion.input(0).as<float>()[2], 3);
    answer.write(5);
    EXPECT_FALSE(answer.completion);
    answer.completion.done();  // does nothing
    answer.completion.fail(nullptr);
  }).join();
  ticket.wait();
  EXPECT_EQ(result.to_vector<float>(), (Floats{5, 6, 7}));
  EXPECT_EQ(after.to_vector<float>(), (Floats{50, 60, 70}));
}

TEST_P(Later, ABodyMayAnswerItself) {
  const NDArray y = empty({2});
  push_op(
      [](ArrayContext& c, ArrayCompletion done) {
        for (int i = 0; i < 2; ++i) c.output().as<float>()[i] = 4;
        done.done();
        EXPECT_EQ(c.output().shape, Dims({2})) << "what the body sees is there while it runs";
      },
      {}, {y});
  EXPECT_EQ(y.to_vector<float>(), (Floats{4, 4}));
}

TEST_P(Later, AFailureADropAndAThrow) {
  const NDArray bad = ones({1});
  poison(bad);
  const ErrorRef root = root_of(bad);
  ASSERT_TRUE(root);
  const auto ends = [&](auto&& how, bool intact) {
    const NDArray y = from({1.0F, 2.0F}, {2});
    Answer answer;
    push_op(answer.body(), {}, {y}, {.name = "late"});
    answer.wait();
    how(answer.completion);
    ErrorRef error = root_of(y);
    test.engine.recover(y);
    EXPECT_EQ(root_of(y), intact ? nullptr : error);
    if (intact) {
      EXPECT_EQ(y.to_vector<float>(), (Floats{1, 2}));
    }
    return error;
  };
  const auto lost = [] { return std::make_exception_ptr(std::runtime_error("connection lost")); };
  EXPECT_EQ(ends([&](ArrayCompletion& c) { c.fail(lost()); }, false)->message, "connection lost");
  EXPECT_EQ(ends([&](ArrayCompletion& c) { c.fail(lost(), true); }, true)->message, "connection lost");
  EXPECT_EQ(ends([&](ArrayCompletion& c) { c.pass_on(root); }, false), root);
  EXPECT_EQ(ends([&](ArrayCompletion& c) { c.pass_on(root, true); }, true), root);
  const ErrorRef dropped = ends([](ArrayCompletion& c) { c = ArrayCompletion(); }, false);
  EXPECT_EQ(dropped->kind, ErrorKind::abandoned);
  EXPECT_EQ(dropped->operation, "late");

  const NDArray y = ones({2});
  push_op([](ArrayContext&, const ArrayCompletion&) { throw std::runtime_error("spoilt"); }, {}, {y});
  EXPECT_EQ(root_of(y)->message, "spoilt");
}

TEST_P(Later, HeldValuesStayAndWritesInPlaceWait) {
  NDArray x = from({1.0F, 2.0F, 3.0F, 4.0F}, {4});
  const NDArray kept = x.detach();
  Answer first, second;
  push_op(first.body(), {}, {x.narrow(0, 1, 3)}, {.name = "part"});
  push_op(second.body(), {x}, {}, {.name = "reader"});
  x += 100;
  const NDArray later = x.detach();
  x.fill(0);
  first.wait();
  first.write(20);
  second.wait();
  EXPECT_EQ(Floats(second.completion.input(0).as<float>(), second.completion.input(0).as<float>() + 4),
            (Floats{1, 20, 21, 4}));
  second.completion.done();
  EXPECT_EQ(kept.to_vector<float>(), (Floats{1, 2, 3, 4}));
  EXPECT_EQ(later.to_vector<float>(), (Floats{101, 120, 121, 104}));
  EXPECT_EQ(x.to_vector<float>(), (Floats{0, 0, 0, 0}));
}

/// The input lies where the output does, so it is packed, and the copy lives until the answer.
TEST_P(Later, AnInputThatOverlapsIsAsItWas) {
  const NDArray x = from({1.0F, 2.0F, 3.0F}, {3});
  Answer answer;
  push_op(answer.body(), {x.narrow(0, 0, 2)}, {x.narrow(0, 1, 3)});
  answer.wait();
  const TensorView in = answer.completion.input(0), out = answer.completion.output();
  for (int i = 0; i < 2; ++i) out.as<float>()[i] = in.as<float>()[i];
  answer.completion.done();
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 1, 2}));
}

/// Pushes an operation whose body wants contiguous outputs.
Ticket push_dense(Answer& answer, const NDArray& y, PushOptions options = {}) {
  const Attributes closure(answer.body());
  ArrayPush push;
  push.attributes = &closure;
  using Body = decltype(answer.body());
  push.body = [](ArrayContext& c) { c.attributes<Body>()(c, c.completion()); };
  push.later = push.dense_outputs = true;
  push.outputs = std::span(&y, 1);
  push.options = options;
  return push_arrays(push);
}

TEST_P(Later, PackedOutputsAreUnpackedByTheAnswer) {
  const NDArray x = zeros({2, 3}), y = x.transpose();
  Answer answer;
  const Ticket ticket = push_dense(answer, y);
  answer.wait();
  EXPECT_TRUE(is_row_major(answer.completion.output()));
  std::thread([&] { answer.write(1); }).join();
  ticket.wait();
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 3, 5, 2, 4, 6}));
  Answer fails;
  push_dense(fails, y);
  fails.wait();
  fails.completion.output().as<float>()[0] = 9;
  fails.completion.fail(nullptr, true);
  EXPECT_TRUE(root_of(x));
  test.engine.recover(x);
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 3, 5, 2, 4, 6})) << "nothing was unpacked";
}

TEST_P(Later, WhatABodyThrowsAfterItsAnswerDoesNotCount) {
  for (const bool packed : {false, true}) {
    const NDArray x = zeros({2, 3}), y = packed ? x.transpose() : x;
    const auto body = [](ArrayContext& c, ArrayCompletion done) {
      each_address(c.output(), [](float* e) { *e = 3; });
      done.done();
      throw std::runtime_error("too late");
    };
    const Attributes closure(body);
    ArrayPush push;
    push.attributes = &closure;
    push.body = [](ArrayContext& c) { c.attributes<decltype(body)>()(c, c.completion()); };
    push.later = push.dense_outputs = true;
    push.outputs = std::span(&y, 1);
    push_arrays(push);
    EXPECT_EQ(x.to_vector<float>(), Floats(6, 3)) << packed;
  }
}

/// The closure goes with its body's call, in the op, and what it works on with the answer, before the op is over.
TEST_P(Later, NothingIsLeftWhenItIsOver) {
  const auto token = std::make_shared<int>(0);
  NDArray y = empty({2});
  ArrayCompletion held;
  std::atomic<bool> begun{false};
  const Ticket ticket = push_op(
      [&, token](ArrayContext&, ArrayCompletion done) {
        held = std::move(done);
        begun = true;
        begun.notify_all();
      },
      {}, {y});
  begun.wait(false);
  held.done();
  ticket.wait();
  EXPECT_EQ(token.use_count(), 1);
}

TEST(LaterAnswers, PackedOutputsAreUnpackedOnTheLane) {
  TestEngine test(1);
  const DeviceScope scope(cpu(0));
  const NDArray x = zeros({2, 2});
  Answer answer;
  const Ticket ticket = push_dense(answer, x.transpose());
  answer.wait();
  std::atomic<bool> open{false}, holds{false};
  test.engine.push([&] { holds = true, holds.notify_all(), open.wait(false); }, {}, {.on = cpu(0)});
  holds.wait(false);
  answer.write(1);
  EXPECT_FALSE(ticket.done()) << "the lane's only thread is held";
  open = true;
  open.notify_all();
  ticket.wait();
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 3, 2, 4}));
}

/// After a stop the engine takes no more ops, and the answering thread unpacks. A thread that captures does not capture
/// that.
TEST_P(Later, AnAnswerAfterStopAndOneInACaptureUnpackToo) {
  const NDArray x = zeros({2, 2});
  Answer captured, stopped;
  push_dense(captured, x.transpose());
  captured.wait();
  const Program program = test.engine.capture([&] { captured.write(1); });
  EXPECT_EQ(program.size(), 0U);
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 3, 2, 4}));
  const Ticket ticket = push_dense(stopped, x.transpose());
  stopped.wait();
  EXPECT_FALSE(test.engine.stop(StopMode::drain, std::chrono::milliseconds(1)));
  stopped.write(5);
  ticket.wait();
  EXPECT_EQ(x.to_vector<float>(), (Floats{5, 7, 6, 8}));
}

TEST(LaterAnswers, AFullEngineUnpacksOnTheAnsweringThread) {
  test::DefaultEngine test({.mode_given = true, .threads = 1, .max_ops = 4});
  const DeviceScope scope(cpu(0));
  const NDArray x = zeros({2, 2});
  Answer answer;
  const Ticket ticket = push_dense(answer, x.transpose());
  answer.wait();
  int behind = 0;
  try {
    for (;; ++behind) push_op([](ArrayContext&) {}, {x}, {});
  } catch (const CapError&) {
  }
  EXPECT_GT(behind, 4);
  answer.write(1);
  ticket.wait();
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 3, 2, 4}));
}

// ---- poison

TEST_P(Later, APoisonedOperandIsSeenAndHasNoAddress) {
  const NDArray bad = ones({4}), good = from({1.0F, 2.0F}, {2}), whole = ones({4}), part = ones({4});
  poison(bad);
  poison(whole);
  poison(part);
  std::vector<std::string> seen;
  push_op(
      [&](ArrayContext& c) {
        for (int i = 0; i < 4; ++i) seen.push_back(c.error(i) ? c.error(i)->operation : "-");
        EXPECT_EQ(c.input(0).data, nullptr);
        EXPECT_EQ(c.input(0).shape, Dims({2}));
        EXPECT_EQ(c.input(1).as<float>()[1], 2);
        EXPECT_EQ(c.output(1).data, nullptr);
        for (int i = 0; i < 4; ++i) c.output(0).as<float>()[i] = 3;
        EXPECT_FALSE(c.skip_reason());
      },
      {bad.narrow(0, 1, 3), good}, {whole, part.narrow(0, 0, 2)}, {.name = "gate", .on_poison = OnPoison::run});
  EXPECT_EQ(whole.to_vector<float>(), (Floats{3, 3, 3, 3})) << "an overwrite of all heals";
  EXPECT_EQ(root_of(part)->operation, "spoil") << "one of a part does not";
  EXPECT_EQ(seen, (std::vector<std::string>{"spoil", "-", "-", "spoil"}));
}

TEST_P(Later, PoisonedOperandsAreNeitherPackedNorCopiedAway) {
  // The input overlaps the output, whose old value a snapshot holds, and all is poisoned.
  const NDArray x = ones({4});
  poison(x);
  const NDArray kept = x.detach();
  bool called = false;
  push_op(
      [&](ArrayContext& c) {
        called = true;
        EXPECT_EQ(c.input(0).data, nullptr);
        EXPECT_EQ(c.output().data, nullptr);
        EXPECT_EQ(c.error(0)->operation, "spoil");
        EXPECT_EQ(c.error(1)->operation, "spoil");
      },
      {x.narrow(0, 0, 2)}, {x.narrow(0, 1, 3)}, {.on_poison = OnPoison::run});
  EXPECT_EQ(root_of(x)->operation, "spoil");
  EXPECT_EQ(root_of(kept)->operation, "spoil");
  EXPECT_TRUE(called);
  // A partitioned array has several variables, of which one is poisoned.
  const std::int64_t sizes[] = {1, 2};
  const Partitioned p = partitioned(sizes, {}, DType::f32, cpu(0));
  p.whole.fill(1);
  poison(p.parts[1]);
  ErrorRef error;
  push_op([&](ArrayContext& c) { error = c.error(0); }, {p.whole}, {}, {.on_poison = OnPoison::run}).wait();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->operation, "spoil");
}

/// For the engine reading a part and overwriting the whole is an update, which leaves poison.
TEST_P(Later, AnOverwriteOfAllHealsThoughAnInputLiesThere) {
  const std::int64_t sizes[] = {1, 2};
  const auto write = [](ArrayContext& c) {
    EXPECT_TRUE(c.error(0));
    EXPECT_FALSE(c.error(1));
    each_address(c.output(), [](float* y) { *y = 4; });
  };
  for (const int input : {0, 1, 2}) {
    const Partitioned p = partitioned(sizes, {}, DType::f32, cpu(0));
    p.whole.fill(1);
    poison(p.whole);
    const NDArray& x = input == 2 ? p.whole : p.parts[static_cast<std::size_t>(input)];
    push_op(write, {x}, {p.whole}, {.on_poison = OnPoison::run});
    EXPECT_EQ(p.whole.to_vector<float>(), (Floats{4, 4, 4}));
  }
  float memory[4] = {1, 2, 3, 4};
  const NDArray a = import_of(memory, 2);
  poison(a);
  push_op(write, {a}, {a}, {.on_poison = OnPoison::run});
  EXPECT_EQ(a.to_vector<float>(), (Floats{4, 4}));
  // The first import's variable stands for the second's memory too: a write of the second does not overwrite all of it.
  const NDArray b = import_of(memory, 4), part = import_of(memory + 1, 2);
  poison(b);
  bool address = true;
  push_op([&](ArrayContext& c) { address = c.output().data != nullptr; }, {}, {part}, {.on_poison = OnPoison::run});
  EXPECT_TRUE(root_of(part));
  EXPECT_FALSE(address);
}

TEST_P(Later, ACancelledOperationIsCalledAndHandsItsRootOn) {
  const NDArray x = ones({2}), y = ones({2});
  Answer first, rank;
  push_op(first.body(), {}, {x});
  first.wait();
  ErrorRef reason;
  const auto body = rank.body();
  const Ticket ticket = push_op(
      [&](ArrayContext& c, ArrayCompletion done) {
        reason = c.skip_reason();
        body(c, std::move(done));
      },
      {x}, {y}, {.name = "rank", .on_poison = OnPoison::always});
  EXPECT_TRUE(ticket.cancel());
  first.write(1);
  rank.wait();
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->kind, ErrorKind::cancelled);
  rank.completion.pass_on(reason, true);
  EXPECT_EQ(root_of(y), reason);
  test.engine.recover(y);
  EXPECT_EQ(y.to_vector<float>(), (Floats{1, 1}));
}

TEST_P(Later, ACancelDoesNotReachTheCopyOfAHeldValue) {
  const NDArray x = from({1.0F, 2.0F}, {2}), gate = ones({1});
  Answer first;
  push_op(first.body(), {}, {gate});
  first.wait();
  const NDArray kept = x.detach();
  CancelScope cancel;
  {
    const CancelScope::Guard guard(cancel);
    push_op(
        [](ArrayContext& c, ArrayCompletion done) {
          EXPECT_TRUE(c.skip_reason());
          c.output().as<float>()[0] = 9;
          done.done();
        },
        {gate}, {x.narrow(0, 1, 2)}, {.on_poison = OnPoison::always});
  }
  cancel.cancel();
  first.write(1);
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 9}));
  EXPECT_EQ(kept.to_vector<float>(), (Floats{1, 2}));
}

TEST_P(Later, AStoppingEngineCallsIt) {
  const NDArray x = ones({2}), y = ones({2});
  Answer first;
  push_op(first.body(), {}, {x});
  first.wait();
  ErrorRef reason;
  push_op(
      [&](ArrayContext& c, ArrayCompletion done) {
        reason = c.skip_reason();
        done.pass_on(reason);
      },
      {x}, {y}, {.on_poison = OnPoison::always});
  EXPECT_FALSE(test.engine.stop(StopMode::cancel, std::chrono::milliseconds(1)));
  first.write(1);
  EXPECT_TRUE(test.engine.stop(StopMode::cancel));
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->kind, ErrorKind::stopped);
}

// ---- with gradients and checkpoints

TEST_P(Later, ACheckpointMakesItAgain) {
  const NDArray w = from({1.0F, 2.0F}, {2}).with_grad();
  std::atomic<int> calls{0};  // nothing orders the two
  const auto twice = [&](const NDArray& x) {
    const NDArray factor = empty({2});
    push_op(
        [&](ArrayContext& c, ArrayCompletion done) {
          ++calls;
          for (int i = 0; i < 2; ++i) c.output().as<float>()[i] = 2;
          std::thread([held = std::move(done)]() mutable { held.done(); }).join();
        },
        {x}, {factor});
    return x * factor * x;
  };
  const NDArray loss = sum(checkpoint(twice, w));
  loss.backward();
  EXPECT_EQ(loss.item<float>(), 10);
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{4, 8}));
  EXPECT_EQ(calls, 2);
}

// ---- devices with streams

TEST(LaterAnswers, OnAStreamTheBodyIssuesAndTheAnswerIsForTheHost) {
  Devices engine;
  const DeviceScope scope(sim(0));
  const NDArray x = from({1.0F, 2.0F}, {2}), y = empty({2});
  Answer answer;
  const auto take = answer.body();
  const Ticket ticket = push_op(
      [&](ArrayContext& c, ArrayCompletion done) {
        void* const to = c.output().data;
        const void* const source = c.input(0).data;
        c.provider().copy(to, source, 8, &c.stream());
        take(c, std::move(done));
      },
      {x}, {y});
  answer.wait();
  const NDArray more = y + 1;  // its kernel is ordered behind the copy
  EXPECT_FALSE(ticket.done());
  answer.completion.done();
  EXPECT_EQ(y.to_vector<float>(), (Floats{1, 2}));
  EXPECT_EQ(more.to_vector<float>(), (Floats{2, 3}));
}

TEST(LaterAnswers, AnErrorThatADeviceFindsLateCountsWhateverTheAnswer) {
  for (const bool answered_first : {false, true}) {
    Devices engine;
    const DeviceScope scope(sim(0));
    const NDArray x = ones({2}), y = empty({2});
    Answer answer;
    const auto take = answer.body();
    std::atomic<bool> open{false};
    push_op(
        [&](ArrayContext& c, ArrayCompletion done) {
          c.stream().launch([&open] {
            open.wait(false);
            throw std::runtime_error("found late");
          });
          take(c, std::move(done));
        },
        {x}, {y});
    const auto go = [&] { open = true, open.notify_all(); };
    answer.wait();
    if (!answered_first) go();
    answer.completion.done();
    const NDArray z = y + 1;
    go();
    const ErrorRef root = root_of(z);
    ASSERT_TRUE(root) << answered_first;
    EXPECT_THAT(root->message, HasSubstr("found late"));
    EXPECT_EQ(root_of(y), root);
  }
}

/// The operation is pushed while the kernels before it, which fail or heal, are not confirmed.
TEST(LaterAnswers, OnAStreamPoisonIsThatOfWhatIsOver) {
  for (int round = 0; round < 20; ++round) {
    Devices engine;
    const DeviceScope scope(sim(0));
    const NDArray late = ones({2}), healed = ones({2}), y = empty({2});
    push_op([](ArrayContext&) { throw std::runtime_error("found late"); }, {}, {late}, {.name = "late"});
    push_op([](ArrayContext&) { throw std::runtime_error("spoilt"); }, {}, {healed}, {.name = "spoil"});
    healed.fill(3);
    std::string seen;
    push_op(
        [&](ArrayContext& c) {
          for (int i = 0; i < 2; ++i) seen += c.error(i) ? c.error(i)->operation + ";" : "-;";
          for (int i = 0; i < 2; ++i) c.output().as<float>()[i] = c.input(1).data ? c.input(1).as<float>()[i] : 0;
        },
        {late, healed}, {y}, {.on_poison = OnPoison::run});
    EXPECT_EQ(y.to_vector<float>(), (Floats{3, 3}));
    EXPECT_EQ(seen, "late;-;");
  }
}

TEST(LaterAnswers, OnAStreamPackedOutputsAreUnpackedWhenItIsIssued) {
  Devices engine;
  const DeviceScope scope(sim(0));
  const NDArray x = zeros({2, 3});
  const NDArray numbers = from({1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F}, {6});
  Answer answer;
  const auto take = answer.body();
  const auto body = [take](ArrayContext& c, ArrayCompletion done) {
    c.provider().copy(c.output().data, c.input(0).data, 24, &c.stream());
    take(c, std::move(done));
  };
  const Attributes closure(body);
  const NDArray y = x.transpose();
  const NDArray* const inputs[] = {&numbers};
  ArrayPush push;
  push.attributes = &closure;
  push.body = [](ArrayContext& c) { c.attributes<decltype(body)>()(c, c.completion()); };
  push.later = push.dense_outputs = true;
  push.inputs = inputs;
  push.outputs = std::span(&y, 1);
  push_arrays(push);
  answer.wait();
  answer.completion.done();
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 3, 5, 2, 4, 6}));
}

TEST(LaterAnswers, AKernelOfADeviceSeesPoisonToo) {
  Devices engine;
  const DeviceScope scope(sim(0));
  const NDArray bad = ones({4}), y = empty({2});
  push_op([](ArrayContext&) { throw std::runtime_error("spoilt"); }, {}, {bad}, {.name = "spoil"});
  EXPECT_TRUE(root_of(bad));
  std::string seen;
  push_op(
      [&](ArrayContext& c) {
        seen = c.error(0) && !c.input(0).data ? c.error(0)->operation : "-";
        for (int i = 0; i < 2; ++i) c.output().as<float>()[i] = 5;
      },
      {bad.narrow(0, 1, 3)}, {y}, {.on_poison = OnPoison::run});
  EXPECT_EQ(y.to_vector<float>(), (Floats{5, 5}));
  EXPECT_EQ(seen, "spoil");
}

}  // namespace
}  // namespace sluice::testing
