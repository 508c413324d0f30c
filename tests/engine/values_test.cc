// Pushes that list accesses first: bodies get the values of what they named, and nothing else.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "sluice/engine/engine.h"

namespace sluice {
namespace {

class Values : public ::testing::TestWithParam<EngineMode> {
 protected:
  Engine engine_{{.mode = GetParam(), .mode_given = true, .threads = 2}};
};

TEST_P(Values, ReadersGetConstAndWritersTheValue) {
  const Var<int> a(engine_.variable("a"), 6), b(engine_.variable("b"), 0);
  engine_.push(read(a), write(b), [](auto& from, auto& to) {
    static_assert(std::is_same_v<decltype(from), const int&> && std::is_same_v<decltype(to), int&>);
    to = from * 7;
  });
  engine_.push(update(b), [](int& x) { x += 1; }, {.priority = 5, .name = "more"});
  engine_.wait(b);
  EXPECT_EQ(*b, 43);
}

TEST_P(Values, OneToSixInTheOrderOfTheList) {
  std::vector<Var<std::string>> v;
  for (const char* text : {"a", "b", "c", "d", "e", ""}) v.emplace_back(engine_.variable(), text);
  using S = std::string;
  engine_.push(read(v[0]), read(v[1]), update(v[5]), [](const S& a, const S& b, S& all) { all += a + b; });
  engine_.push(read(v[2]), read(v[0]), read(v[1]), update(v[5]),
               [](const S& c, const S& a, const S& b, S& all) { all += c + a + b; });
  engine_.push(read(v[3]), read(v[2]), read(v[0]), read(v[1]), update(v[5]),
               [](const S& d, const S& c, const S& a, const S& b, S& all) { all += d + c + a + b; });
  engine_.push(update(v[5]), read(v[4]), read(v[3]), read(v[2]), read(v[1]), read(v[0]),
               [](S& all, const S& e, const S& d, const S& c, const S& b, S a) { all += e + d + c + b + a; });
  engine_.wait(v[5]);
  EXPECT_EQ(*v[5], "abcabdcabedcba");
}

TEST_P(Values, ContextsAndCompletionsComeFirst) {
  const Var<int> x(engine_.variable("x"), 1);
  engine_.push(update(x), [](Context& context, int& value) { value += context.device() == cpu(0) ? 1 : 100; });
  engine_.push(update(x), [](Completion done, int& value) {
    value *= 10;
    done.done();
  });
  engine_.push(update(x), [](Context&, Completion done, int& value) {
    value += 5;
    done.done();
  });
  engine_.wait(x);
  EXPECT_EQ(*x, 25);
}

TEST_P(Values, TheValueLivesAsLongAsTheOp) {
  const auto seen = std::make_shared<int>(0);
  const Var<int> gate(engine_.variable("gate"), 0);
  const std::weak_ptr<int> watched = [&] {
    const Var<std::shared_ptr<int>> x(engine_.variable("x"), std::make_shared<int>(9));
    engine_.push(read(x), update(gate), [seen](const std::shared_ptr<int>& value, int&) { *seen = *value; });
    return std::weak_ptr<int>(*x);
  }();
  engine_.wait_all();
  EXPECT_EQ(*seen, 9);
  EXPECT_TRUE(watched.expired());
}

TEST_P(Values, MistakesNameThePlaceOfTheFirstAccess) {
  const Var<int> x(engine_.variable("x"), 1);
  const std::function<void(int&)> none;
  int line = __LINE__ + 2;
  try {
    engine_.push(write(x), none, {.name = "draw"});
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_EQ(std::string(e.what()), "[draw] values_test.cc:" + std::to_string(line) + ": null closure");
  }
  engine_.push(write(x), [](int&) { throw std::runtime_error("no ink"); }, {.name = "draw"});
  line = __LINE__ - 1;
  try {
    engine_.wait(x);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("values_test.cc:" + std::to_string(line)), std::string::npos) << e.what();
  }
}

TEST_P(Values, AreCapturedLikeOthers) {
  const Var<int> x(engine_.variable("x"), 1), y(engine_.variable("y"), 0);
  const Program program = engine_.capture([&] {
    engine_.push(update(x), [](int& value) { value *= 2; });
    engine_.push(read(x), update(y), [](const int& from, int& to) { to += from; });
  });
  for (int i = 0; i < 3; ++i) engine_.replay(program);
  engine_.wait(y);
  EXPECT_EQ(*y, 2 + 4 + 8);
}

INSTANTIATE_TEST_SUITE_P(Modes, Values, ::testing::Values(EngineMode::threaded, EngineMode::serial),
                         [](const auto& mode) { return mode.param == EngineMode::serial ? "serial" : "threaded"; });

}  // namespace
}  // namespace sluice
