// Faults of simulated devices over a whole training step: nothing hangs or leaks, no step is torn, and whatever is read
// without an error is right, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <string>

#include "device_training.h"

namespace sluice::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsSubsetOf;

constexpr Kind kKinds[] = {Kind::sgd, Kind::adam};

/// How often a step without faults comes to this.
std::uint64_t calls_of_a_step(Kind kind, SimFault what) {
  Devices devices;
  Training training(kind);
  training.push(0);
  devices.settle();
  devices.trim();
  const std::uint64_t before = devices.control->calls(what);
  training.push(1).wait();
  devices.settle();
  return devices.control->calls(what) - before;
}

NDArray ones_on(Device device) {
  const DeviceScope scope(device);
  return ones({1 << 14}) + 1;
}

/// Step 1 with the n-th call and `more` after it failing, recovery, and on to step 3.
Outcome one_fault(Kind kind, SimFault what, std::uint64_t n, std::uint64_t more = 0) {
  SCOPED_TRACE(std::string(row_of(kind)) + ", fault " + std::to_string(static_cast<int>(what)) + ", call " +
               std::to_string(n) + " and " + std::to_string(more) + " more");
  const CleanRun& clean = clean_run(kind);
  Devices devices(n);
  Training training(kind);
  training.push(0);
  devices.settle();
  devices.trim();
  const std::uint64_t failures = devices.control->failures(what);
  for (std::uint64_t i = 0; i <= more; ++i) devices.control->fail_nth(what, n + i);
  NDArray loss = training.push(1);
  Outcome read;
  check_loss(loss, clean, 1, &read);
  devices.settle();
  // How often a pool asks its device depends on when blocks come back.
  EXPECT_TRUE(what == SimFault::allocation || devices.control->failures(what) > failures) << "nothing failed";
  while (devices.control->failures(what) < failures + 1 + more) {  // what is left of the plan
    devices.trim();
    read_bytes(ones_on(sim(0)));
  }
  Outcome outcome = judge(training, clean, 1);
  outcome.failed.merge(read.failed);
  loss = {};
  go_on(training, clean, 1, outcome, 3);
  return outcome;
}

struct Sum {
  int stepped = 0, refused = 0, torn = 0;
  std::set<std::string> failed;
  void add(const Outcome& outcome) {
    ++(outcome.torn ? torn : outcome.stepped ? stepped : refused);
    failed.insert(outcome.failed.begin(), outcome.failed.end());
  }
};

Sum each_call(Kind kind, SimFault what, std::uint64_t more = 0) {
  Sum sum;
  const std::uint64_t calls = calls_of_a_step(kind, what);
  EXPECT_GT(calls, 0u);
  for (std::uint64_t n = 1; n <= calls && !::testing::Test::HasFailure(); ++n) sum.add(one_fault(kind, what, n, more));
  std::cout << calls << " calls: " << sum.stepped << " stepped, " << sum.refused << " refused, " << sum.torn
            << " torn:";
  for (const std::string& name : sum.failed) std::cout << ' ' << name;
  std::cout << '\n';
  return sum;
}

TEST(DeviceFaults, AnAllocationThatFailsOnceIsMadeAgain) {
  for (const Kind kind : kKinds) {
    const Sum sum = each_call(kind, SimFault::allocation);
    EXPECT_EQ(sum.refused + sum.torn, 0);
  }
}

/// The second and third attempts fail as well.
TEST(DeviceFaults, EachAllocationForGood) {
  for (const Kind kind : kKinds) {
    const Sum sum = each_call(kind, SimFault::allocation, 3);
    EXPECT_EQ(sum.torn, 0) << "a step takes no memory behind its gate";
    EXPECT_GE(sum.failed.size(), 5u);
  }
}

TEST(DeviceFaults, EachLaunch) {
  for (const Kind kind : kKinds) {
    const Sum sum = each_call(kind, SimFault::launch);
    EXPECT_EQ(sum.torn, 0) << "behind the gate a launch is made again";
    EXPECT_THAT(sum.failed, Contains(kStep));
  }
}

/// A step that cannot be launched though its gate is open says so for good: what belongs together has come apart.
TEST(DeviceFaults, EachLaunchForGood) {
  for (const Kind kind : kKinds) {
    const Sum sum = each_call(kind, SimFault::launch, 7);
    EXPECT_THAT(sum.failed, Contains(kStep));
    EXPECT_GT(sum.torn, 0) << "of a step behind its gate";
    EXPECT_GT(sum.refused, 0);
  }
}

TEST(DeviceFaults, EachCopy) {
  for (const Kind kind : kKinds) {
    const Sum sum = each_call(kind, SimFault::copy);
    EXPECT_EQ(sum.torn, 0);
    EXPECT_THAT(sum.failed, ElementsAre("transfer"));
  }
}

/// Only an error of the step's own kernels leaves something half done, and says so.
TEST(DeviceFaults, EachKernelLate) {
  for (const Kind kind : kKinds) {
    const Sum sum = each_call(kind, SimFault::late_kernel);
    EXPECT_EQ(sum.torn, 2) << "one for each device";
    EXPECT_THAT(sum.failed, Contains(kStep));
  }
}

TEST(DeviceFaults, EachCopyLate) {
  for (const Kind kind : kKinds) {
    const Sum sum = each_call(kind, SimFault::late_copy);
    EXPECT_EQ(sum.torn, 0);
    EXPECT_THAT(sum.failed, IsSubsetOf({"transfer", kStep}));
  }
}

/// Several steps with every k-th call failing, each with its recovery, reads among them.
void every_kth(Kind kind, SimFault what, std::uint64_t k) {
  SCOPED_TRACE(std::string(row_of(kind)) + ", fault " + std::to_string(static_cast<int>(what)) + ", every " +
               std::to_string(k));
  const CleanRun& clean = clean_run(kind);
  Devices devices(k);
  Training training(kind);
  int t = 0;
  Outcome outcome;
  for (int round = 0; round < 4; ++round) {
    devices.settle();
    devices.trim();
    devices.control->fail_every(what, k);
    check_loss(training.push(t), clean, t);
    const std::vector<Read> reads = training.read();
    devices.settle();
    devices.control->fail_every(what, 0);
    for (std::size_t i = 0; i < reads.size(); ++i) {
      const auto at = static_cast<std::size_t>(t);
      EXPECT_TRUE(reads[i].error || reads[i].bytes == clean.values[at][i] || reads[i].bytes == clean.values[at + 1][i])
          << "a wrong value, array " << i;
    }
    outcome = judge(training, clean, t, {.several = true});
    if (outcome.torn) training.load(clean.values[static_cast<std::size_t>(t)]);
    if (!outcome.torn && outcome.stepped) ++t;
  }
  EXPECT_GT(devices.control->failures(what), 0u);
  go_on(training, clean, t, {}, CleanRun::kSteps);
}

TEST(DeviceFaults, EveryKth) {
  for (const Kind kind : kKinds)
    for (int what = 0; what < kSimFaults; ++what)
      for (const std::uint64_t k : {2, 3, 5, 7}) every_kth(kind, static_cast<SimFault>(what), k);
}

}  // namespace
}  // namespace sluice::testing
