// Programs for the rules 14, 15 and 18 of docs/semantics.md: errors, bad batches, serial mode.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

#include "../support/net_of.h"
#include "semantics_programs.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

// ---- 14: intact or torn

TEST(Semantics14Errors, ASkippedWriteRecoversAndAFailedOneDoesNot) {
  on_each_engine([](Engine& engine) {
    const NDArray bad = failed({2});
    NDArray skipped = from({1.0F, 2.0F}, {2}), said = from({3.0F, 4.0F}, {2}), torn = from({5.0F, 6.0F}, {2});
    skipped += bad;
    push_op(
        [](ArrayContext& c) {
          c.engine_context().wrote_nothing();
          throw std::runtime_error("too early");
        },
        {}, {said});
    push_op(
        [](ArrayContext& c) {
          c.output().as<float>()[0] = 0;
          throw std::runtime_error("half way");
        },
        {}, {torn});
    for (const NDArray& x : {skipped, said, torn}) {
      EXPECT_THROW(x.wait(), Error);
      engine.recover(x);
    }
    EXPECT_EQ(floats(skipped), (Floats{1, 2}));
    EXPECT_EQ(floats(said), (Floats{3, 4}));
    EXPECT_THROW(torn.wait(), Error);
  });
}

TEST(Semantics14Errors, TornWinsWhicheverComesFirst) {
  on_each_engine([](Engine& engine) {
    const NDArray bad = failed({2});
    NDArray torn_first = ones({2}), torn_last = ones({2});
    poison(torn_first);
    torn_first += bad;
    torn_last += bad;
    poison(torn_last);
    for (const NDArray& x : {torn_first, torn_last}) {
      engine.recover(x);
      EXPECT_THROW(x.wait(), Error);
      x.fill(4);
      EXPECT_EQ(floats(x), (Floats{4, 4}));
    }
  });
}

TEST(Semantics14Errors, ARecoveryTakesItsPlaceAmongThePushes) {
  on_each_engine([](Engine& engine) {
    const NDArray bad = failed({2});
    NDArray x = from({1.0F, 2.0F}, {2});
    Borrow held = hold(x);
    x += bad;
    const NDArray before = x * 2;
    engine.recover(x);
    x += 1;
    const NDArray after = x * 2;
    held.release();
    EXPECT_EQ(floats(after), (Floats{4, 6}));
    EXPECT_THROW(before.wait(), Error);
    engine.recover(before);
    EXPECT_THROW(before.wait(), Error) << "it never had a value";
    EXPECT_EQ(floats(x), (Floats{2, 3}));
  });
}

TEST(Semantics14Errors, ASkippedWriteOfAHeldValueLeavesBoth) {
  on_each_engine([](Engine& engine) {
    const NDArray bad = failed({3}), a = from({1.0F, 2.0F, 3.0F}, {3}).with_grad();
    NDArray h = a * 2;
    const NDArray loss = sum(h * h), kept = h.detach();
    h *= bad;
    EXPECT_THROW(h.wait(), Error);
    engine.recover(h);
    EXPECT_EQ(floats(h), (Floats{2, 4, 6}));
    EXPECT_EQ(floats(kept), (Floats{2, 4, 6}));
    loss.backward();
    EXPECT_EQ(floats(a.grad()), (Floats{8, 16, 24}));
  });
}

TEST(Semantics14Errors, ABodyRunsOnceAndASkippedOneNever) {
  on_each_engine([](Engine& engine) {
    const auto failures = std::make_shared<std::atomic<int>>(0), skipped = std::make_shared<std::atomic<int>>(0);
    const NDArray x = ones({2}), y = ones({2});
    push_op(
        [failures](ArrayContext&) {
          ++*failures;
          throw std::bad_alloc();
        },
        {}, {x});
    push_op([skipped](ArrayContext&) { ++*skipped; }, {x}, {y});
    EXPECT_THROW(y.wait(), Error);
    for (int i = 0; i < 2; ++i) {
      engine.recover(x);  // no second try
      EXPECT_THROW(x.wait(), Error);
      engine.recover(y);
    }
    EXPECT_EQ(floats(y), (Floats{1, 1}));
    EXPECT_EQ(*failures, 1);
    EXPECT_EQ(*skipped, 0);
  });
}

TEST(Semantics14Errors, AnOverwriteHealsTheArrayAndNotWhatWasMadeOfIt) {
  on_each_engine([](Engine&) {
    const NDArray x = ones({2}), other = ones({2});
    push_op([](ArrayContext&) { throw std::runtime_error("no such file"); }, {}, {x}, {.name = "load"});
    const NDArray of_bad = x + other;
    x.fill(3);
    const NDArray of_good = x + other;
    EXPECT_EQ(floats(of_good), (Floats{4, 4}));
    EXPECT_EQ(floats(other), (Floats{1, 1}));
    try {
      of_bad.wait();
      FAIL();
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), ::testing::StartsWith("[load] "));
      EXPECT_THAT(e.what(), HasSubstr("semantics_errors_test.cc:"));
      EXPECT_THAT(e.what(), HasSubstr("no such file"));
    }
  });
}

// ---- 15: one bad batch does not kill the weights

TEST(Semantics15Batches, OneBadGradientStopsAllParametersAndTheirState) {
  on_each_engine([](Engine&) {
    const NDArray w = from({1.0F, 2.0F}, {2}).with_grad(), b = from({3.0}, {1}).with_grad();
    // Of two dtypes, so that they step in two operations.
    const auto net = test::net_of({w, b});
    nn::Optimizer sgd(net, nn::Sgd{.lr = 0.5, .momentum = 0.5});
    const NDArray bad = failed({2});
    const auto step = [&](const NDArray& batch) {
      (sum(w * batch) + sum(b)).backward();  // the gradients are the batch, and 1
      sgd.step();
    };
    step(ones({2}));  // velocity 1; w = (0.5, 1.5), b = 2.5
    step(bad);
    EXPECT_THROW(w.wait(), Error);
    EXPECT_THROW(b.wait(), Error) << "its own gradient was good";
    sgd.recover();
    EXPECT_EQ(floats(w), (Floats{0.5, 1.5}));
    EXPECT_EQ(b.item<double>(), 2.5);
    step(ones({2}));  // velocity 1.5
    EXPECT_EQ(floats(w), (Floats{-0.25, 0.75}));
    EXPECT_EQ(b.item<double>(), 1.75);
  });
}

TEST(Semantics15Batches, ATrainingLoopTrainsOn) {
  on_each_engine([](Engine&) {
    const NDArray w = from({10.0F}, {1}).with_grad();
    const auto net = test::net_of({w});
    nn::Optimizer sgd(net, nn::Sgd{.lr = 1});
    int caught = 0;
    for (int i = 0; i < 6; ++i) {
      try {
        const NDArray batch = i % 3 == 1 ? failed({1}) : full({1}, i);
        const NDArray loss = sum(w * batch);
        loss.backward();
        sgd.step();
        loss.item<float>();
      } catch (const Error&) {
        sgd.recover();
        ++caught;
      }
    }
    EXPECT_EQ(caught, 2);
    EXPECT_EQ(floats(w), Floats{10 - 0 - 2 - 3 - 5});
  });
}

TEST(Semantics15Batches, AnAdamThatSkippedABatchHasTheBitsOfOneThatNeverSawIt) {
  const auto weights_after = [](bool with_a_bad_batch) {
    const NDArray w = from({1.0F, -2.0F, 3.0F}, {3}).with_grad();
    const auto net = test::net_of({w});
    nn::Optimizer adam(net, nn::Adam{.lr = 0.1});
    for (int i = 0; i < 4; ++i) {
      if (i == 2 && with_a_bad_batch) {
        sum(w * failed({3})).backward();
        adam.step();
        EXPECT_THROW(w.wait(), Error);
        adam.recover();
      }
      sum(square(w) * full({3}, i + 1)).backward();
      adam.step();
    }
    return floats(w);
  };
  on_each_engine([&](Engine&) { EXPECT_EQ(weights_after(true), weights_after(false)); });
}

TEST(Semantics15Batches, RecoveryDropsTheGradientsOfTheBadBatch) {
  on_each_engine([](Engine&) {
    const NDArray w = from({1.0F}, {1}).with_grad();
    const auto net = test::net_of({w});
    nn::Optimizer sgd(net, nn::Sgd{.lr = 1});
    sum(w * 100.0F).backward();       // the first half of a batch
    sum(w * failed({1})).backward();  // the second
    EXPECT_EQ(floats(w), Floats{1});  // gradients are not the weights
    EXPECT_THROW(w.grad().wait(), Error);
    sgd.recover();
    sum(w * 0.25F).backward();
    sgd.step();
    EXPECT_EQ(floats(w), Floats{0.75});  // nothing of the 100
  });
}

// ---- 18: serial mode

TEST(Semantics18Serial, EveryEngineThrowsAtTheWaitAndTellsTheSame) {
  std::set<std::string> texts;
  on_each_engine([&texts](Engine& engine) {
    const NDArray x = ones({2}), y = ones({2});
    EXPECT_NO_THROW(poison(x));
    NDArray z;
    EXPECT_NO_THROW(z = sum(x * 2) + sum(y));
    EXPECT_NO_THROW(poison(y));
    EXPECT_NO_THROW(z += 1);
    std::string told;
    try {
      z.item<float>();
    } catch (const Error& e) {
      told = e.what();
    }
    try {
      engine.wait_all();
      FAIL();
    } catch (const AggregateError& e) {
      EXPECT_EQ(e.roots().size(), 2U);
      told += std::string("\n") + e.what();
    }
    texts.insert(told);
  });
  EXPECT_EQ(texts.size(), 1U);
  EXPECT_THAT(*texts.begin(), HasSubstr("spoilt"));
}

TEST(Semantics18Serial, WhatStandsBehindABorrowKeepsItsOrder) {
  on_each_engine([](Engine&) {
    NDArray x = ones({2}), log = zeros({4});
    Borrow held = hold(x);
    x += 1;  // waits for the borrow, and so does all that needs it
    log(0) = x(0);
    const NDArray free = log.detach() * 0 + 5;  // waits for log(0)
    NDArray other = ones({2}) * 7;              // waits for nothing
    EXPECT_EQ(floats(other), (Floats{7, 7}));
    x *= 10;
    log(1) = x(0);
    log(0) += 100;
    held.release();
    EXPECT_EQ(floats(log), (Floats{102, 20, 0, 0}));
    EXPECT_EQ(floats(free), Floats(4, 5.0F));
  });
}

}  // namespace
}  // namespace sluice::testing
