// Nets as plain structs: what the walk finds, values, clones, ties, freezing, moving, averages, names, and misuses.
#include "sluice/nn/net/net.h"

#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <map>
#include <tuple>
#include <variant>

#include "nn_support.h"
#include "sluice/nn/net/sequential.h"

namespace sluice {
namespace {

using test::bits;
using test::TestEngine;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Leaf {
  nn::Size n;
  nn::Parameter w{{n}, nn::normal(1)};
  NDArray operator()(const NDArray& x) const { return x * w; }
};
struct Private {
  explicit Private(std::int64_t n) : up_{n}, down_{n} {}
  auto parts() { return nn::parts("up", up_, "down", down_); }
  Private recipe() const { return Private(up_.n); }

 private:
  Leaf up_, down_;
};
struct WithParts {
  explicit WithParts(int n) : one_{n}, forgotten{n} {}
  auto parts() { return nn::parts("one", one_); }
  Leaf one_, forgotten;
};
enum class Choice { a, b };
struct Everything {
  std::int64_t number = 3;
  double real = 0.5;
  Choice choice = Choice::a;
  std::string name = "x";
  std::function<NDArray(const NDArray&)> function = nullptr;
  Leaf plain{2};
  const Leaf fixed{2};
  std::vector<Leaf> list = nn::repeat(2, Leaf{2});
  std::array<Leaf, 2> two{Leaf{2}, Leaf{2}};
  std::optional<Leaf> there = Leaf{2};
  std::optional<Leaf> absent = std::nullopt;
  std::unique_ptr<Leaf> owned = std::make_unique<Leaf>(Leaf{2});
  std::shared_ptr<Leaf> shared = std::make_shared<Leaf>(Leaf{2});
  std::variant<Leaf, int> variant = Leaf{2};
  std::tuple<Leaf, int, Leaf> tuple{Leaf{2}, 1, Leaf{2}};
  std::pair<int, Leaf> pair{1, Leaf{2}};
  std::map<std::string, std::vector<Leaf>> names = make();
  Private hidden{2};
  nn::Sequential sequence{Leaf{2}, relu, Leaf{2}, [](const NDArray& x) { return x + 1; }};
  nn::Statistic seen{{3}, nn::constant(0)};
  nn::Constant mask{{4}, nn::constant(1)};
  nn::Parameter tied = plain.w.tied();
  static std::map<std::string, std::vector<Leaf>> make() {
    std::map<std::string, std::vector<Leaf>> m;
    m.emplace("key", nn::repeat(1, Leaf{2}));
    return m;
  }
};

std::vector<std::string> names_of(const nn::Contents& contents) {
  std::vector<std::string> names;
  for (const nn::Named& slot : contents.slots) names.push_back(slot.name);
  return names;
}

const std::vector<std::string>& all_names() {
  static const std::vector<std::string> names{
      "plain.w",     "fixed.w",       "list.0.w",     "list.1.w",     "two.0.w",   "two.1.w",  "there.w",
      "owned.w",     "shared.w",      "variant.w",    "tuple.0.w",    "tuple.2.w", "pair.1.w", "names.key.0.w",
      "hidden.up.w", "hidden.down.w", "sequence.0.w", "sequence.2.w", "seen",      "mask"};
  return names;
}

TEST(Nets, TheWalkFindsEveryKindOfField) {
  const Everything net;
  EXPECT_EQ(names_of(nn::contents(net)), all_names()) << "a tied parameter once, under the first of its names";
}

TEST(Nets, ValuesDependOnSeedAndPathAlone) {
  TestEngine engine;
  struct One {
    Leaf a{40}, b{40};
  } one;
  struct Other {
    Leaf b{40};
    nn::Parameter between{{7}, nn::normal(1)};
    Leaf a{40};
  } other;
  nn::initialise(one, 5);
  nn::initialise(other, 5);
  EXPECT_EQ(bits(one.a.w), bits(other.a.w));
  EXPECT_EQ(bits(one.b.w), bits(other.b.w));
  EXPECT_NE(bits(one.a.w), bits(one.b.w));
  nn::initialise(other, 6, {}, {.again = true});
  EXPECT_NE(bits(one.a.w), bits(other.a.w));
  struct Deep {
    One inner;
  } deep;
  nn::initialise(
      deep, 5,
      {{"*.a.*", nn::constant(2)}, {[](const nn::Named& n) { return n.name == "inner.b.w"; }, nn::constant(3)}},
      {.dtype = DType::bf16});
  EXPECT_EQ(deep.inner.a.w.value().to(DType::f32).to_vector<float>(), std::vector<float>(40, 2));
  EXPECT_EQ(deep.inner.b.w.value().dtype(), DType::bf16);
  EXPECT_EQ(deep.inner.b.w.path(), "inner.b.w");
}

TEST(Nets, EachValueIsAnArrayOfItsOwn) {
  TestEngine engine;
  struct Net {
    nn::Parameter a{{2, 3}, nn::Init()}, b{{2, 3}, nn::Init()};
    nn::Statistic c{{2, 3}, nn::Init()};
  };
  const NDArray shared = ones({2, 3}), larger = ones({4, 3}), flat = ones({6});
  const std::vector<nn::Init> inits{
      [&](const Dims&, DType, RandomStream&) { return shared; },
      [&](const Dims&, DType, RandomStream&) { return larger.narrow(0, 1, 3); },
      [&](const Dims&, DType, RandomStream&) {
        return flat.reshape({2, 3});
      },
      [once = ones({2, 3})](const Dims&, DType, RandomStream&) { return once; },
      [](const Dims&, DType, RandomStream&) {
        return ones({4, 3}).narrow(0, 0, 2);
      },
      [kept = std::make_shared<NDArray>()](const Dims& shape, DType, RandomStream&) {
        if (!kept->defined()) *kept = ones(shape);
        return *kept;
      },
  };
  for (const nn::Init& init : inits) {
    Net net;
    nn::initialise(net, 1, {{"*", init}});
    const std::vector<NDArray> all{net.a, net.b, net.c};
    for (int i = 0; i < 3; ++i) {
      const NoGrad off;
      all[static_cast<std::size_t>(i)].fill(i + 2.0);
    }
    for (int i = 0; i < 3; ++i) {
      const NDArray& one = all[static_cast<std::size_t>(i)];
      EXPECT_EQ(one.to_vector<float>(), std::vector<float>(6, static_cast<float>(i + 2)));
      EXPECT_EQ(one.array()->shape(), one.shape()) << "it is all of its memory";
    }
  }
  for (const NDArray& theirs : {shared, larger, flat}) EXPECT_EQ(bits(theirs), bits(ones(theirs.shape())));
}

TEST(Nets, CompleteFillsWhatHasNoValue) {
  TestEngine engine;
  struct Net {
    Leaf body{3}, head{3};
  } net, whole;
  nn::initialise(net, 1);
  nn::initialise(whole, 2);
  const std::string body = bits(net.body.w);
  net.head = Leaf{3};
  nn::complete(net, 2);
  EXPECT_EQ(bits(net.body.w), body);
  EXPECT_EQ(bits(net.head.w), bits(whole.head.w)) << "by the path in the whole net";
}

TEST(Nets, ClonesAreTheirOwnAndKeepTies) {
  TestEngine engine;
  Everything net;
  Everything early = nn::clone(net);
  nn::initialise(net, 1);
  nn::freeze(net, "fixed.w");
  Everything late = nn::clone(net);
  nn::initialise(early, 1);
  EXPECT_EQ(names_of(nn::contents(early)), all_names());
  EXPECT_EQ(names_of(nn::contents(late)), all_names());
  const auto slots = nn::contents(net).slots, copies = nn::contents(late).slots, others = nn::contents(early).slots;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    EXPECT_NE(slots[i].state, copies[i].state);
    EXPECT_EQ(bits(slots[i].state->value), bits(copies[i].state->value)) << slots[i].name;
    EXPECT_EQ(bits(slots[i].state->value), bits(others[i].state->value)) << slots[i].name;
    EXPECT_FALSE(slots[i].state->value.same_array(copies[i].state->value));
    EXPECT_EQ(slots[i].state->path, copies[i].state->path);
  }
  EXPECT_EQ(late.tied.state(), late.plain.w.state());
  EXPECT_TRUE(late.fixed.w.frozen());
  EXPECT_FALSE(late.fixed.w.value().requires_grad());
  EXPECT_TRUE(late.plain.w.value().requires_grad());
  EXPECT_EQ(late.number, 3);
  const NoGrad off;
  net.plain.w.value().fill(7);
  EXPECT_NE(bits(late.plain.w), bits(net.plain.w));
}

TEST(Nets, FreezingDropsGradientsAndComesBack) {
  TestEngine engine;
  struct Net {
    Leaf a{3}, b{3};
    nn::Statistic seen{{1}, nn::constant(0)};
  } net;
  nn::initialise(net, 1);
  nn::freeze(net, "a.*|seen");
  sum(net.b(net.a(ones({3})))).backward();
  EXPECT_FALSE(net.a.w.grad().defined());
  EXPECT_TRUE(net.b.w.grad().defined());
  EXPECT_TRUE(net.seen.frozen());
  nn::freeze(net, "*", false);
  sum(net.b(net.a(ones({3})))).backward();
  EXPECT_TRUE(net.a.w.grad().defined());
}

TEST(Nets, MovingKeepsIdentitiesAndGradients) {
  TestEngine engine({.threads = 2, .logical_cpus = 2});
  struct Net {
    Leaf a{3};
    nn::Parameter again = a.w.tied();
  } net;
  nn::initialise(net, 1);
  sum(net.a(ones({3}))).backward();
  const auto state = net.a.w.state();
  const std::string before = bits(net.a.w), gradient = bits(net.a.w.grad());
  nn::to(net, test::device(1));
  EXPECT_EQ(net.a.w.state(), state);
  EXPECT_EQ(net.again.value().device(), test::device(1));
  EXPECT_EQ(net.a.w.grad().device(), test::device(1));
  EXPECT_EQ(bits(net.a.w), before);
  EXPECT_EQ(bits(net.a.w.grad()), gradient);
  EXPECT_TRUE(net.a.w.value().requires_grad());
}

TEST(Nets, BlendIsAMovingAverage) {
  TestEngine engine;
  struct Net {
    Leaf a{2};
    nn::Statistic seen{{1}, nn::constant(4)};
  } net, average;
  nn::initialise(net, 1, {{"a.w", nn::constant(1)}});
  nn::initialise(average, 1, {{"a.w", nn::constant(0)}, {"seen", nn::constant(0)}});
  nn::blend(average, net, 0.25);
  EXPECT_THAT(average.a.w.value().to_vector<float>(), ElementsAre(0.25F, 0.25F));
  EXPECT_THAT(average.seen.value().to_vector<float>(), ElementsAre(4)) << "statistics are copied";
  nn::blend(average, net, 1);
  EXPECT_EQ(bits(average.a.w), bits(net.a.w));
}

TEST(Nets, RecoverHealsWhatIsWhole) {
  TestEngine engine;
  if (test::on_streams()) GTEST_SKIP() << "what a device finds late leaves the array torn";
  struct Net {
    Leaf a{2};
  } net;
  nn::initialise(net, 1);
  const std::string before = bits(net.a.w);
  {
    const NoGrad off;
    net.a.w = test::broken(ones({2}));
  }
  EXPECT_THROW(net.a.w.value().wait(), Error);
  nn::recover(net);
  EXPECT_EQ(bits(net.a.w), before);
}

TEST(Nets, LayersOfTheLibraryNameThemselvesInErrors) {
  TestEngine engine;
  struct Deep {
    struct Inner {
      nn::Place place;
      Leaf leaf{2};
      NDArray operator()(const NDArray& x) const {
        const auto here = place();
        return leaf(x);
      }
    } inner{};
  } net;
  nn::initialise(net, 1);
  try {
    (void)net.inner(ones({3}));
    FAIL() << "it was not refused";
  } catch (const ArrayError& error) {
    EXPECT_THAT(error.what(), HasSubstr(" in inner: "));
  }
}

TEST(Nets, TablesAreReadable) {
  TestEngine engine;
  struct Net {
    Leaf a{200};
    nn::Statistic seen{{3}, nn::constant(0)};
    nn::Parameter again = a.w.tied();
    NDArray operator()(const NDArray& x) const { return a(x); }
  } net;
  {
    using namespace sluice::nn;  // a net means the summary of nets, which evaluates; a lambda the other one
    const Spec x{{4, 200}, DType::f32, test::device()};
    EXPECT_EQ(summary(net, x), nn::summary(net, x));
    EXPECT_EQ(summary(std::as_const(net), x), nn::summary(net, x));
    EXPECT_THAT(summary(nn::Dropout{0.5}, x), HasSubstr("(4, 200) f32"));
    const auto twice = [&](const NDArray& y) { return net(net(y)); };
    EXPECT_THAT(summary(twice, x), HasSubstr("200"));
  }
  EXPECT_THAT(nn::describe(net), HasSubstr("no value yet"));
  nn::initialise(net, 1);
  nn::freeze(net, "a.w");
  const std::string table = nn::describe(net);
  EXPECT_THAT(table, HasSubstr("a.w   (200,)"));
  EXPECT_THAT(table, HasSubstr("frozen  in 2 places"));
  EXPECT_THAT(table, HasSubstr("statistic"));
  EXPECT_THAT(table, HasSubstr("200 parameters, 0 of them trained"));
}

TEST(Nets, PatternsMatchWholePaths) {
  EXPECT_TRUE(nn::matches_pattern("*.bias", "a.b.bias"));
  EXPECT_FALSE(nn::matches_pattern("*.bias", "a.bias.w"));
  EXPECT_TRUE(nn::matches_pattern("x|*norm*|y", "blocks.0.norm1.weight"));
  EXPECT_TRUE(nn::matches_pattern("a*b*c", "aXbYbZc"));
  EXPECT_FALSE(nn::matches_pattern("a*b*c", "aXbYbZ"));
  EXPECT_TRUE(nn::matches_pattern("*", ""));
  EXPECT_TRUE(nn::matches_pattern("", ""));
  EXPECT_FALSE(nn::matches_pattern("", "a"));
  // A backtracking matcher would not come to an end.
  EXPECT_FALSE(nn::matches_pattern("*a*a*a*a*a*a*a*a*a*a*b", std::string(5000, 'a')));
}

std::string line_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Nets, MisusesAreNamed) {
  TestEngine engine;
  struct Net {
    Leaf a{2};
    NDArray operator()(const NDArray& x) const { return a(x); }
  } net, other;
  EXPECT_THAT(line_of([&] { net(ones({2})); }), HasSubstr("the parameter (2,) made at net_test.cc:"));
  EXPECT_THAT(line_of([&] { net(ones({2})); }), HasSubstr("before nn::initialise or nn::load reached it"));
  EXPECT_THAT(line_of([&] { net.a.w = ones({2}); }), HasSubstr("before nn::initialise"));
  EXPECT_THAT(line_of([&] {
                nn::initialise(net, 1, {{"b.*", nn::constant(1)}});
              }),
              HasSubstr("the rule 'b.*' matches none of the 1 arrays of the net"));
  EXPECT_THAT(line_of([&] {
                nn::initialise(net, 1, {{"*", [](const Dims&, DType, RandomStream&) { return ones({3}); }}});
              }),
              HasSubstr("the initialiser of 'a.w' gave"));
  EXPECT_FALSE(net.a.w.state()->value.defined()) << "nothing was changed";
  nn::initialise(net, 1);
  EXPECT_THAT(line_of([&] { nn::initialise(net, 1); }), HasSubstr("'a.w' has a value already: say {.again = true}"));
  EXPECT_THAT(line_of([&] { net.a.w = ones({3}); }), HasSubstr("an array (3,) for the parameter 'a.w' (2,)"));
  EXPECT_THAT(line_of([&] { nn::freeze(net, "*.bias"); }), HasSubstr("'*.bias' matches none"));
  EXPECT_THAT(line_of([&] { nn::blend(net, net, 0.1); }), HasSubstr("'a.w' of both nets is one parameter"));
  EXPECT_THAT(line_of([&] { nn::blend(other, net, 0.1); }), HasSubstr("'a.w' has no value"));
  struct Longer {
    Leaf a{2}, b{2};
  } longer;
  EXPECT_THAT(line_of([&] { nn::blend(longer, net, 0.1); }), HasSubstr("the nets differ: 2 arrays and 1"));
  WithParts hidden(2);
  nn::initialise(hidden, 1);
  EXPECT_THAT(line_of([&] { hidden.forgotten(ones({2})); }),
              HasSubstr("parts() of the class that holds it does not list it"));
  EXPECT_THAT(line_of([] { nn::repeat(-1, Leaf{2}); }), HasSubstr("-1 times"));
  struct OneName {
    Leaf a{2}, b{2};
    auto parts() { return nn::parts("same", a, "same", b); }
  } one_name;
  EXPECT_THAT(line_of([&] { nn::initialise(one_name, 1); }), HasSubstr("two parts of the net are called 'same.w'"));
  Leaf moved = std::move(net.a);
  EXPECT_THAT(line_of([&] { net(ones({2})); }), HasSubstr("moved away"));
}

// Initial values.
double mean_of(const std::vector<float>& v, int power) {
  double sum = 0;
  for (const float x : v) sum += std::pow(static_cast<double>(x), power);
  return sum / static_cast<double>(v.size());
}

TEST(Initialisers, HaveTheirDistributions) {
  TestEngine engine;
  RandomStream stream(3);
  const auto draw = [&](const nn::Init& init, Dims shape) {
    return init(shape, DType::f32, stream).to_vector<float>();
  };
  const auto range = [](const std::vector<float>& v) { return *std::max_element(v.begin(), v.end()); };
  const auto fan = draw(nn::fan_in(), {200, 25});
  EXPECT_NEAR(range(fan), 0.2, 1e-3);
  EXPECT_NEAR(mean_of(fan, 2), 0.04 / 3, 2e-3);
  EXPECT_NEAR(range(draw(nn::fan_in(100), {5000})), 0.1, 1e-3);
  EXPECT_NEAR(mean_of(draw(nn::kaiming(), {100, 8, 3, 3}), 2), 2.0 / 72, 2e-3);
  EXPECT_NEAR(range(draw(nn::xavier(), {40, 20})), std::sqrt(6.0 / 60), 5e-3);
  EXPECT_NEAR(mean_of(draw(nn::normal(0.5, 2), {5000}), 1), 2, 0.03);
  const auto cut = draw(nn::truncated_normal(0.5), {5000});
  EXPECT_LE(range(cut), 1.0F);
  EXPECT_GT(range(cut), 0.9F);
  for (const Dims& shape : {Dims{6, 10}, {10, 6}, {8, 8}, {4, 3, 2}}) {
    const NDArray m = nn::orthogonal(2)(shape, DType::f64, stream).reshape({shape[0], -1});
    const bool wide = m.shape()[0] <= m.shape()[1];
    const NDArray gram = wide ? matmul(m, m.transpose()) : matmul(m.transpose(), m);
    const NDArray wanted = 4 * eye(gram.shape()[0], DType::f64);
    EXPECT_LT(max(abs(gram - wanted)).item<double>(), 1e-12) << to_string(shape);
  }
  EXPECT_THROW(nn::orthogonal()({3}, DType::f32, stream), UsageError);
  EXPECT_THROW(nn::normal(-1), UsageError);
}

}  // namespace
}  // namespace sluice
