// Profiles of steps, and runs that a signal ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "nn_support.h"

namespace sluice {
namespace {

using test::what_of;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Net {
  nn::Linear up{8, 16, false}, down{16, 4, false};
  NDArray operator()(const NDArray& x) const { return down(relu(up(x))); }
};

class Profiles : public ::testing::Test {
 protected:
  void step() {
    const nn::Training on(stream_);
    mean(square(net_(x_))).backward();
    opt_.step();
  }
  test::TestEngine engine_;
  Net net_;
  nn::Optimizer opt_{(nn::initialise(net_, 1), nn::to(net_, test::device()), net_), nn::Sgd{}};
  RandomStream stream_{1};
  NDArray x_ = test::made_up({32, 8}, 1, DType::f32).to(test::device());
};

TEST_F(Profiles, AddUpByLayer) {
  nn::Profile profile(true, {.skip = 2, .steps = 3});
  EXPECT_THAT(profile.table(), StartsWith("no profile: it takes 5 steps, and 0 were made"));
  int steps = 0;
  while (profile.step(), steps < 9) {
    EXPECT_EQ(profile.done(), steps > 4);
    step();
    ++steps;
  }
  ASSERT_TRUE(profile.done());
  const auto of = [&](const std::string& layer) {
    const auto at = std::ranges::find(profile.layers(), layer, &nn::LayerProfile::layer);
    return at == profile.layers().end() ? nn::LayerProfile{} : *at;
  };
  // One product forward; two backward, of which the first layer needs one, since x wants no gradient.
  EXPECT_EQ(of("up").flops, 2 * (2 * 32 * 8 * 16));
  EXPECT_EQ(of("down").flops, 3 * (2 * 32 * 16 * 4));
  EXPECT_GE(of("up").operations, 2);
  EXPECT_GT(of("up").milliseconds, 0);
  EXPECT_GT(of("down").bytes, 4 * (32 * 16 + 16 * 4 + 32 * 4));
  EXPECT_GT(of("").operations, 0);  // loss and optimiser
  EXPECT_GT(profile.step_milliseconds(), 0);
  const std::string table = profile.table();
  EXPECT_THAT(table, StartsWith("layer"));
  for (const char* text : {"\nup ", "\ndown ", "\n(no layer) ", "\n(all) ", "a step takes "}) {
    EXPECT_THAT(table, HasSubstr(text));
  }
}

TEST_F(Profiles, LeaveOtherStepsAlone) {
  nn::Profile off(false);
  for (int i = 0; i < 12; ++i) {
    off.step();
    step();
  }
  EXPECT_FALSE(off.done());
  EXPECT_EQ(off.table(), "");
  {
    nn::Profile cut(true, {.skip = 0, .steps = 2});
    cut.step();
    step();
  }
  EXPECT_EQ(current_scope().interpreter, 0U);
  step();
  engine_->wait_all();
  EXPECT_TRUE(engine_->stop_trace().empty());
  // What is poisoned meanwhile is no error of the profile.
  const NDArray bad = test::broken(x_);
  nn::Profile profile(true, {.skip = 0, .steps = 1});
  profile.step();
  step();
  profile.step();
  EXPECT_TRUE(profile.done());
  EXPECT_THAT(what_of([] { nn::Profile(true, {.skip = -1}); }), HasSubstr("[nn::Profile] skip -1, steps 5"));
  EXPECT_THAT(what_of([] { nn::Profile(true, {.steps = 0}); }), HasSubstr("steps 0"));
}

TEST(Interrupts, AreSeenOnceAndEndTheProcessTheSecondTime) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGINT, SIG_DFL);
      ::signal(SIGTERM, SIG_DFL);
      const nn::Interrupt interrupt;
      if (interrupt || interrupt.status() != 0) ::_exit(1);
      ::raise(signal);
      if (!interrupt || interrupt.signal() != signal || interrupt.status() != 128 + signal) ::_exit(2);
      ::raise(signal == SIGINT ? SIGTERM : SIGINT);
      if (interrupt.signal() != signal) ::_exit(3);
      ::raise(signal);
      ::_exit(4);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
  }
}

TEST(Interrupts, LeaveHandlersAsTheyWere) {
  static volatile sig_atomic_t seen = 0;
  const auto mine = [](int) { seen = seen + 1; };
  const auto before = ::signal(SIGINT, mine);
  const auto before_term = ::signal(SIGTERM, SIG_IGN);
  {
    const nn::Interrupt interrupt;
    ::raise(SIGTERM);  // was ignored, and is
    EXPECT_FALSE(interrupt);
    ::raise(SIGINT);
    EXPECT_EQ(interrupt.status(), 130);
    EXPECT_EQ(seen, 0);
    EXPECT_THAT(what_of([] { nn::Interrupt(); }), HasSubstr("[nn::Interrupt] there is one in this process"));
  }
  ::raise(SIGINT);
  EXPECT_EQ(seen, 1);
  {
    const nn::Interrupt again;
    EXPECT_FALSE(again);
  }
  ::signal(SIGINT, before);
  ::signal(SIGTERM, before_term);
}

}  // namespace
}  // namespace sluice
