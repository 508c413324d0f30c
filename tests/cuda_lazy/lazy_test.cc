// Engines that count the machine's cards, and load CUDA when one is used: what they do before, and that afterwards all
// is as with a provider that was there from the beginning. On the double, whose backend is opened at that moment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cuda_double/cuda_double.h>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/sluice.h"
#include "support.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using testing::counted_cards, testing::times_opened;
using ::testing::HasSubstr;

/// A double of so many cards, and the default engine, with as many counted. The record of accesses is off, because the
/// provider that engines see does not hand on what they tell it.
class Cards {
 public:
  explicit Cards(cuda_double::Options options = {.devices = 2}, EngineOptions engine = {}, int counted = 0) {
    options.order_record = false;
    cuda_double::reset(options);
    counted_cards = counted ? counted : options.devices;
    engine.providers = {cuda_devices()};
    engine_.emplace(engine);
    set_default_engine(&*engine_);
  }
  ~Cards() {
    const std::shared_ptr<Provider> provider = engine_->provider(gpu(0));
    set_default_engine(nullptr);
    engine_.reset();
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    // A watcher keeps the provider a little longer.
    while (provider.use_count() > 1 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_THAT(cuda_double::take_reports(), ::testing::IsEmpty());
  }
  Engine& engine() { return *engine_; }

 private:
  std::optional<Engine> engine_;
};

std::string refusal(const std::function<void()>& f) {
  try {
    f();
    return "none";
  } catch (const std::exception& e) {
    return e.what();
  }
}

/// In a forked child, which is killed where it hangs: f's value.
int in_child(const std::function<int()>& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(f());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Processes of their own, because a process loads CUDA once.
class LazyCudaDeathTest : public ::testing::Test {
 protected:
  LazyCudaDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
[[noreturn]] void end_well() { std::_Exit(::testing::Test::HasFailure() ? 1 : 0); }

void loads_at_the_first_use() {
  {
    Cards on;
    EXPECT_EQ(on.engine().device_count(DeviceKind::gpu), 2);
    EXPECT_EQ(on.engine().provider(gpu(1))->devices(), 2);
    EXPECT_GT(on.engine().provider(gpu(1))->limits(1).alignment, 0u);
    on.engine().start_trace();
    NDArray x = ones({100});
    for (int i = 0; i < 100; ++i) x = x * 1.5 - 0.25;
    x = x.with_grad();
    sum(x * x).backward();
    x.grad().wait();
    on.engine().wait_all();
    on.engine().stop_trace();
    EXPECT_EQ(times_opened, 0);
    EXPECT_EQ(cuda_double::calls(cuda_double::Fault::any), 0u);

    EXPECT_EQ(sum(ones({5}).to(gpu(1)) + 1).item<float>(), 10);
    EXPECT_EQ(times_opened, 1);
    EXPECT_GT(cuda_double::calls(cuda_double::Fault::any), 0u);
  }
  end_well();
}

TEST_F(LazyCudaDeathTest, NothingIsLoadedBeforeADeviceIsUsed) {
  EXPECT_EXIT(loads_at_the_first_use(), ::testing::ExitedWithCode(0), "");
}

/// Whatever comes first: an operator that makes an array, an array without values, a body of a program's own, a block
/// of memory, shapes of arrays on a card.
const std::vector<std::function<void()>> kUses = {
    [] {
      const DeviceScope scope(gpu(0));
      EXPECT_EQ((zeros({3}) + 2).to_vector<float>()[2], 2);
    },
    [] {
      NDArray x = empty({4}, DType::f32, gpu(0));
      x.fill(3);
      EXPECT_EQ(sum(x).item<float>(), 12);
    },
    [] {
      void* stream = nullptr;
      default_engine().push([&](Context& c) { stream = c.stream()->native(); }, {}, {.on = gpu(0)});
      default_engine().wait_all();
      EXPECT_NE(stream, nullptr);
    },
    [] {
      const std::shared_ptr<Provider> provider = default_engine().provider(gpu(0));
      void* const block = provider->allocate(0, 1000, nullptr);
      ASSERT_NE(block, nullptr);
      provider->fill(block, std::byte{1}, 1000, nullptr);
      provider->free(0, block, 1000, nullptr);
    },
    [] {
      const Shapes shapes = shapes_of([] {
        const DeviceScope scope(gpu(0));
        return ones({3}) * 2;
      });
      EXPECT_EQ(shapes.results.size(), 1u);
      EXPECT_EQ((ones({3}).to(gpu(0)) * 2).to_vector<float>()[0], 2);
    },
};

TEST_F(LazyCudaDeathTest, AnyUseOfADeviceLoads) {
  for (std::size_t i = 0; i < kUses.size(); ++i) {
    const auto use = [i] {
      {
        Cards on;
        kUses[i]();
        EXPECT_EQ(times_opened, 1);
      }
      end_well();
    };
    EXPECT_EXIT(use(), ::testing::ExitedWithCode(0), "") << "use " << i;
  }
}

/// Random programs over two cards and the CPU give what the CPU gives.
TEST(LazyCuda, ProgramsGiveWhatTheCpuGives) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Cards on({.devices = 2, .random_delay = std::chrono::microseconds(30), .seed = seed});
    std::mt19937 random(seed);
    const std::vector<Device> devices = {cpu(0), gpu(0), gpu(1)};
    std::vector<NDArray> here, there;
    for (int i = 0; i < 4; ++i) {
      here.push_back(arange(0, 64, 1, DType::f32).reshape({8, 8}) + i);
      there.push_back(here.back().to(devices[random() % 3]));
    }
    for (int step = 0; step < 40; ++step) {
      const std::size_t a = random() % 4, b = random() % 4;
      const Device on_device = there[a].device();
      switch (random() % 4) {
        case 0:
          here[a] = here[a] * 0.5f + here[b];
          there[a] = there[a] * 0.5f + there[b].to(on_device);
          break;
        case 1:
          here[a] += here[b] * 0.25f;
          there[a] += there[b].to(on_device) * 0.25f;
          break;
        case 2:
          there[a] = there[a].to(devices[random() % 3]);
          break;
        default:
          here[a] = maximum(here[a], here[b]);
          there[a] = maximum(there[a], there[b].to(on_device));
      }
    }
    for (int i = 0; i < 4; ++i) {
      const auto at = static_cast<std::size_t>(i);
      EXPECT_EQ(there[at].to_bytes(), here[at].to_bytes());
    }
  }
}

TEST(LazyCuda, AnErrorIsItsOpsAndALostCardIsNamed) {
  Cards on;
  on.engine().on_unobserved_error([](const ErrorRoot&) {});
  const NDArray x = arange(0, 6, 1, DType::f32).reshape({3, 2}).to(gpu(0));
  const NDArray rows = take_rows(x, from(std::vector<std::int64_t>{0, -7}, {2}).to(gpu(0)));
  EXPECT_THAT(refusal([&] { (rows + 1).wait(); }),
              AllOf(HasSubstr("[take_rows] lazy_test.cc:"), HasSubstr("the index -7 (element 1) is not in [0, 3)")));
  EXPECT_EQ((x * 2).to_vector<float>()[5], 10);

  const NDArray good = ones({3}).to(gpu(1));
  good.wait();
  cuda_double::fail_sticky(0);
  NDArray y = x;
  for (int i = 0; i < 10; ++i) y = y + 1;
  EXPECT_THAT(refusal([&] { y.wait(); }), HasSubstr("an illegal memory access"));
  EXPECT_THAT(refusal([&] { (x + 1).wait(); }), HasSubstr("gpu(0) was lost"));
  EXPECT_EQ(sum(good + 1).item<float>(), 6);
}

TEST(LazyCuda, ACardThatAnswersNoMoreIsGivenUp) {
  Cards on({.devices = 1}, {.device_limit = milliseconds(200)});
  on.engine().on_unobserved_error([](const ErrorRoot&) {});
  NDArray x = ones({3}).to(gpu(0));
  x.wait();
  cuda_double::silence(0, 3);
  for (int i = 0; i < 20; ++i) x = x + 1;
  EXPECT_THAT(refusal([&] { x.wait(); }), HasSubstr("gpu(0) was lost: it has not answered for 200 ms"));
}

/// Nobody calls CUDA after the card has failed, but for who looks whether it still works.
TEST(LazyCuda, ACardThatFailsIsFoundByLooking) {
  Cards on({.devices = 1, .delay = milliseconds(2)});
  on.engine().on_unobserved_error([](const ErrorRoot&) {});
  const NDArray x = ones({3}).to(gpu(0));
  x.wait();
  cuda_double::fail_sticky(0, cudaErrorIllegalAddress, 5);
  NDArray y = x;
  for (int i = 0; i < 6; ++i) y = y + 1;
  const NDArray behind = y.to(cpu(0)) + 1;
  EXPECT_THAT(refusal([&] {
                if (!on.engine().wait_for(behind, std::chrono::seconds(20))) throw std::runtime_error("it still waits");
              }),
              HasSubstr("an illegal memory access"));
}

TEST(LazyCuda, ATraceHasTheCardsTimes) {
  Cards on({.devices = 1, .delay = std::chrono::microseconds(200)});
  on.engine().start_trace();
  NDArray x = ones({100}).to(gpu(0));
  for (int i = 0; i < 5; ++i) x = x + 1;
  x.wait();
  int timed = 0;
  for (const TraceEvent& event : on.engine().stop_trace()) timed += event.device_end > event.device_start ? 1 : 0;
  EXPECT_GE(timed, 5);
}

/// The driver's files may name cards that CUDA does not have.
TEST(LazyCuda, ADeviceThatWasCountedAndIsNotThere) {
  Cards on({.devices = 2}, {}, 3);
  on.engine().on_unobserved_error([](const ErrorRoot&) {});
  EXPECT_EQ(on.engine().device_count(DeviceKind::gpu), 3);
  EXPECT_EQ(sum(ones({5}).to(gpu(1))).item<float>(), 5);
  EXPECT_THAT(refusal([&] { ones({5}).to(gpu(2)).wait(); }),
              HasSubstr("gpu(2) was lost: CUDA has 2 devices here, and the driver's files name 3"));
  EXPECT_EQ(sum(ones({5}).to(gpu(0)) + 1).item<float>(), 10);
}

/// A device that nobody uses is nobody's error.
TEST(LazyCuda, ADeviceThatIsNotThereAndIsNotUsed) {
  int errors = 0;
  {
    Cards on({.devices = 1}, {}, 2);
    on.engine().on_unobserved_error([&errors](const ErrorRoot&) { ++errors; });
    NDArray x = ones({5}).to(gpu(0));
    for (int i = 0; i < 100; ++i) x = x + 1;
    EXPECT_EQ(sum(x).item<float>(), 505);
  }
  EXPECT_EQ(errors, 0);
}

/// Where CUDA cannot be used every use says why, with the operator and its line, and the CPU works.
void uses_cards_that_cannot_be_used() {
  {
    Cards on({.devices = 1, .driver = cudaErrorInsufficientDriver});
    on.engine().on_unobserved_error([](const ErrorRoot&) {});
    const auto says =
        ContainsRegex("lazy_test.cc:[0-9]+.*no CUDA device: the driver says: CUDA driver version is insufficient");
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(refusal([] { ones({3}).to(gpu(0)).wait(); }), AllOf(HasSubstr("[to] "), says));
      EXPECT_THAT(refusal([] {
                    const DeviceScope scope(gpu(0));
                    zeros({3}).wait();
                  }),
                  AllOf(HasSubstr("[zeros] "), says));
    }
    const Variable v = on.engine().variable();
    on.engine().push([](Context& c) { c.stream()->native(); }, {update(v)}, {.on = gpu(0), .name = "own"});
    EXPECT_THAT(refusal([&] { on.engine().wait(v); }), AllOf(HasSubstr("[own] "), says));
    const NDArray there = empty({4}, DType::f32, gpu(0));  // no operator has looked at its device
    push_op([](ArrayContext& c) { c.provider().fill(c.output().data, std::byte{0}, 16, &c.stream()); }, {}, {there},
            {.name = "fills"});
    EXPECT_THAT(refusal([&] { there.wait(); }), AllOf(HasSubstr("[fills] "), says));
    EXPECT_EQ(sum(ones({3}) + 1).item<float>(), 6);
  }
  end_well();
}

TEST_F(LazyCudaDeathTest, CardsThatCannotBeUsed) {
  EXPECT_EXIT(uses_cards_that_cannot_be_used(), ::testing::ExitedWithCode(0), "");
}

/// CUDA does not survive a fork; cards that nobody has used do.
void forks_before_and_after_the_first_use() {
  {
    Cards on;
    EXPECT_EQ(sum(ones({3}) + 1).item<float>(), 6);
    const int before = in_child([] {
      Cards own;
      EXPECT_EQ(sum(ones({3}).to(gpu(1)) + 1).item<float>(), 6);
      return ::testing::Test::HasFailure() ? 1 : 0;
    });
    EXPECT_EQ(before, 0);
    EXPECT_EQ(sum(ones({3}).to(gpu(0)) + 1).item<float>(), 6);
    const int after = in_child([] {
      EXPECT_THAT(cuda_unavailable(), HasSubstr("the parent process used CUDA before the fork"));
      Engine engine({.providers = {cuda_devices()}});
      set_default_engine(&engine);
      EXPECT_THAT(refusal([] { ones({3}).to(gpu(0)).wait(); }),
                  ContainsRegex("\\[to\\] lazy_test.cc:[0-9]+.*no CUDA device: the parent process used CUDA before"));
      EXPECT_EQ(sum(ones({3}) + 1).item<float>(), 6);
      set_default_engine(nullptr);
      return ::testing::Test::HasFailure() ? 1 : 0;
    });
    EXPECT_EQ(after, 0);
    EXPECT_EQ(sum(ones({3}).to(gpu(0)) + 1).item<float>(), 6);
  }
  end_well();
}

TEST_F(LazyCudaDeathTest, AForkedChild) {
  EXPECT_EXIT(forks_before_and_after_the_first_use(), ::testing::ExitedWithCode(0), "");
}

/// CUDA is loaded after the engine was made, and so its exit handlers run before the engine's. What is in flight is
/// waited for before them, also where another thread than the main one ends the process.
void exits_with_work_in_flight(bool on_main_thread) {
  cuda_double::reset({.devices = 1, .delay = std::chrono::microseconds(2000), .order_record = false});
  counted_cards = 1;
  const auto work = [] {
    NDArray x = ones({100}).to(gpu(0));
    for (int i = 0; i < 50; ++i) x = x + 1;
    const NDArray y = x.to(cpu(0));
    push_op([](ArrayContext& c) { std::fprintf(stderr, "the last value is %g\n", c.input(0).as<float>()[99]); }, {y},
            {});
    std::exit(0);
  };
  if (on_main_thread) work();
  std::thread(work).join();
}

TEST_F(LazyCudaDeathTest, WhatIsInFlightAtExitIsDone) {
  for (const bool on_main_thread : {true, false}) {
    EXPECT_EXIT(exits_with_work_in_flight(on_main_thread), ::testing::ExitedWithCode(0), "the last value is 51");
  }
}

}  // namespace
}  // namespace sluice
