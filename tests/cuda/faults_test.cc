// Faults of CUDA's calls over a whole training step on two GPUs of the double: nothing hangs or leaks, no step is torn,
// and whatever is read without an error is right, bit for bit.
#include "../system/training_steps.h"
#include "sluice/resources/device_pool.h"
#include "support.h"

namespace sluice::testing {
namespace {

using cuda_double::Fault;

/// What goes wrong, with an error after which the card still works.
struct Plan {
  Fault fault;
  const char* name;
  cudaError_t error;
};
constexpr Plan kPlans[] = {
    {Fault::allocation, "allocation", cudaErrorMemoryAllocation},
    {Fault::launch, "launch", cudaErrorLaunchOutOfResources},
    {Fault::copy, "copy", cudaErrorInvalidValue},
    {Fault::library, "library", cudaErrorIllegalState},
};

struct TwoGpus : OnDouble {
  explicit TwoGpus(std::uint64_t seed = 0)
      : OnDouble({.devices = 2, .random_delay = std::chrono::microseconds(seed % 2 == 1 ? 15 : 0), .seed = seed + 1},
                 {}, {.threads = 2}) {
    engine().on_unobserved_error([](const ErrorRoot&) {});
  }
  /// Until nothing is in flight; what failed is known to those who ask.
  void settle() {
    try {
      engine().wait_all();
    } catch (const AggregateError&) {
    }
  }
  /// What is cached goes back, so that the next operations ask CUDA for memory.
  void trim() {
    for (const Device device : {gpu(0), gpu(1)}) device_pool(engine(), device).trim();
  }
};

const CleanRun& clean_run(Kind kind) {
  static const auto run = [](Kind which) {
    const TwoGpus gpus;
    Training training(which, DeviceKind::gpu);
    return CleanRun(which, training);
  };
  static const CleanRun sgd = run(Kind::sgd), adam = run(Kind::adam);
  return kind == Kind::adam ? adam : sgd;
}

/// How often a step without faults comes to this.
std::uint64_t calls_of_a_step(Kind kind, Fault fault) {
  TwoGpus gpus;
  Training training(kind, DeviceKind::gpu);
  training.push(0);
  gpus.settle();
  gpus.trim();
  const std::uint64_t before = cuda_double::calls(fault);
  training.push(1).wait();
  gpus.settle();
  return cuda_double::calls(fault) - before;
}

/// Step 1 with the n-th call failing, recovery, and on to step 3.
Outcome one_fault(Kind kind, const Plan& plan, std::uint64_t n) {
  SCOPED_TRACE(std::string(row_of(kind)) + ", " + plan.name + " " + std::to_string(n));
  const CleanRun& clean = clean_run(kind);
  TwoGpus gpus(n);
  Training training(kind, DeviceKind::gpu);
  training.push(0);
  gpus.settle();
  gpus.trim();
  const std::uint64_t failures = cuda_double::failures(plan.fault);
  cuda_double::fail_nth(plan.fault, n, plan.error);
  NDArray loss = training.push(1);
  Outcome read;
  check_loss(loss, clean, 1, &read);
  gpus.settle();
  // How often a pool asks its device depends on when blocks come back.
  EXPECT_TRUE(plan.fault == Fault::allocation || cuda_double::failures(plan.fault) > failures) << "nothing failed";
  Outcome outcome = judge(training, clean, 1);
  outcome.failed.merge(read.failed);
  loss = {};
  go_on(training, clean, 1, outcome, 3);
  return outcome;
}

class CudaFaults : public ::testing::TestWithParam<Plan> {};

/// Each call of a step; if there are more than forty, every second or third and so on.
TEST_P(CudaFaults, EachCall) {
  const Plan& plan = GetParam();
  for (const Kind kind : {Kind::sgd, Kind::adam}) {
    const std::uint64_t calls = calls_of_a_step(kind, plan.fault);
    ASSERT_GT(calls, 0U);
    std::set<std::string> failed;
    for (std::uint64_t n = 1; n <= calls && !HasFailure(); n += 1 + calls / 40) {
      const Outcome outcome = one_fault(kind, plan, n);
      EXPECT_FALSE(outcome.torn) << "behind the gate a launch is made again, call " << n;
      failed.insert(outcome.failed.begin(), outcome.failed.end());
    }
    if (plan.fault == Fault::allocation) {
      EXPECT_THAT(failed, ::testing::IsEmpty()) << "an allocation that fails once is made again";
    } else {
      EXPECT_THAT(failed, ::testing::Not(::testing::IsEmpty()));
    }
  }
}

/// Several steps with every k-th call failing, each with its recovery, reads among them.
TEST_P(CudaFaults, EveryKth) {
  const Plan& plan = GetParam();
  for (const Kind kind : {Kind::sgd, Kind::adam}) {
    for (const std::uint64_t k : {2, 3, 5, 7}) {
      SCOPED_TRACE(std::string(row_of(kind)) + ", every " + std::to_string(k));
      const CleanRun& clean = clean_run(kind);
      TwoGpus gpus(k);
      Training training(kind, DeviceKind::gpu);
      int t = 0;
      for (int round = 0; round < 3 && !HasFailure(); ++round) {
        gpus.settle();
        gpus.trim();
        cuda_double::fail_every(plan.fault, k, plan.error);
        check_loss(training.push(t), clean, t);
        const std::vector<Read> reads = training.read();
        gpus.settle();
        cuda_double::fail_every(plan.fault, 0);
        const auto at = static_cast<std::size_t>(t);
        for (std::size_t i = 0; i < reads.size(); ++i) {
          EXPECT_TRUE(reads[i].error || reads[i].bytes == clean.values[at][i] ||
                      reads[i].bytes == clean.values[at + 1][i])
              << "a wrong value, array " << i;
        }
        const Outcome outcome = judge(training, clean, t, {.several = true});
        if (outcome.torn) training.load(clean.values[at]);
        if (!outcome.torn && outcome.stepped) ++t;
      }
      EXPECT_GT(cuda_double::failures(plan.fault), 0U);
      if (!HasFailure()) go_on(training, clean, t, {}, CleanRun::kSteps);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Each, CudaFaults, ::testing::ValuesIn(kPlans),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace sluice::testing
