// Pushes of one op with thousands of arrays.
#include <gtest/gtest.h>

#include <chrono>
#include <new>
#include <random>

#include "ndarray_test_support.h"
#include "sluice/tests/support/largest_allocation.h"

namespace sluice::testing {
namespace {

using Floats = std::vector<float>;
constexpr int kMany = 10000;

std::vector<NDArray> numbered(int n) {
  std::vector<NDArray> list;
  for (int i = 0; i < n; ++i) list.push_back(full({2}, static_cast<float>(i)));
  return list;
}

TEST(ManyArrays, ConcatAndSumsOfThousands) {
  TestEngine test(2);
  const std::vector<NDArray> terms = numbered(kMany);
  const Floats joined = concat(terms, 0).to_vector<float>();
  for (std::size_t i = 0; i < joined.size(); ++i) ASSERT_EQ(joined[i], static_cast<float>(i / 2));
  const NDArray total = zeros({2});
  accumulate(total, terms);
  EXPECT_EQ(total.to_vector<float>(), add_n(terms).to_vector<float>());
  EXPECT_NEAR(total(0).item<float>(), 49995000.0F, 5000);
}

TEST(ManyArrays, AnOpWithThousandsOfOutputs) {
  TestEngine test(2);
  const std::vector<NDArray> x = numbered(kMany), y = numbered(kMany);
  std::vector<NDArray> kept;  // of every third the value is held, so that it gets a new version
  for (std::size_t i = 0; i < y.size(); i += 3) kept.push_back(y[i].detach());
  push_op(
      [](ArrayContext& c) {
        for (int i = 0; i < c.outputs(); ++i) {
          for (int k = 0; k < 2; ++k) c.output(i).as<float>()[k] = c.input(i).as<float>()[k] + 1;
        }
      },
      x, y);
  for (std::size_t i = 0; i < y.size(); ++i) {
    ASSERT_EQ(y[i].to_vector<float>(), Floats(2, static_cast<float>(i) + 1));
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    ASSERT_EQ(kept[i].to_vector<float>(), Floats(2, static_cast<float>(3 * i)));
  }
}

TEST(ManyArrays, ViewsOfOneArrayAsOutputsAndInputs) {
  TestEngine test(2);
  const NDArray x = arange(0, 2 * kMany, 1, DType::f32);
  std::vector<NDArray> even, odd;
  for (std::int64_t i = 0; i < kMany; ++i) {
    even.push_back(x(slice(2 * i, 2 * i + 1)));
    odd.push_back(x(slice(2 * i + 1, 2 * i + 2)));
  }
  std::vector<NDArray> all_of_it = even;
  std::shuffle(even.begin(), even.end(), std::mt19937(1));
  const auto copy = [](ArrayContext& c) {
    for (int i = 0; i < c.outputs(); ++i) *c.output(i).as<float>() = *c.input(i).as<float>();
  };
  for (bool held : {false, true}) {
    const NDArray kept = held ? x.detach() : NDArray();
    push_op(copy, odd, even);
    const Floats now = x.to_vector<float>();
    for (std::size_t i = 0; i < now.size(); i += 2) ASSERT_TRUE(std::fmod(now[i], 2) == 1) << i;
  }
  // Each reads its neighbour's element, which another output overwrites: all are read first.
  std::vector<NDArray> shifted(all_of_it.begin() + 1, all_of_it.end());
  const Floats before = x.to_vector<float>();
  all_of_it.pop_back();
  push_op(copy, shifted, all_of_it);
  const Floats after = x.to_vector<float>();
  for (std::size_t i = 0; i + 2 < after.size(); i += 2) ASSERT_EQ(after[i], before[i + 2]) << i;
  all_of_it.push_back(x(slice(4, 6)));
  EXPECT_THROW(push_op(copy, shifted, all_of_it), ArrayError);
}

/// Wherever a push finds no memory, it leaves nothing in flight, and no array locked.
TEST(ManyArrays, APushThatFindsNoMemoryLeavesNothing) {
  TestEngine test(2);
  std::vector<NDArray> list = numbered(20);
  Engine& engine = list[0].engine();
  for (const bool held : {false, true}) {
    for (long n = 1;; ++n) {
      const NDArray kept = held ? list[7].detach() : NDArray();
      engine.wait_all();
      bool refused = false;
      try {
        const test::RefusedAllocation fault(n);
        push_op([](ArrayContext&) {}, list, {});
        push_op([](ArrayContext& c) { std::fill_n(c.output(7).as<float>(), 2, 5.0F); }, {}, list);
      } catch (const std::bad_alloc&) {
        refused = true;
      }
      if (refused) {
        engine.wait_for(list[0], std::chrono::hours(1));
        engine.wait_all();
        ASSERT_EQ(engine.in_flight(), 0u) << "allocation " << n;
        continue;
      }
      break;
    }
    EXPECT_EQ(list[7].to_vector<float>(), Floats(2, 5.0F));
  }
}

TEST(ManyArrays, PartsAndTheirSnapshots) {
  TestEngine test(2);
  const std::vector<std::int64_t> sizes(kMany, 1);
  const Partitioned p = partitioned(sizes, {}, DType::f32, cpu(0));
  p.whole.fill(1);
  const NDArray whole = p.whole.detach();
  std::vector<NDArray> kept;
  for (std::size_t i = 0; i < p.parts.size(); i += 50) kept.push_back(p.parts[i].detach());
  push_op(
      [](ArrayContext& c) {
        for (int i = 0; i < c.outputs(); ++i) *c.output(i).as<float>() = static_cast<float>(i);
      },
      {}, p.parts);
  EXPECT_EQ(whole.to_vector<float>(), Floats(kMany, 1.0F));
  for (const NDArray& part : kept) ASSERT_EQ(part.to_vector<float>(), Floats(1, 1.0F));
  const Floats now = p.whole.to_vector<float>();
  for (std::size_t i = 0; i < now.size(); ++i) ASSERT_EQ(now[i], static_cast<float>(i));
}

/// What overlaps what, told by looking at all pairs, decides: outputs throw, inputs are read first.
TEST(ManyArrays, OverlapIsFoundAsByComparingAllPairs) {
  TestEngine test(2);
  constexpr std::int64_t kCount = 400;
  int threw = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random()) % n; };
    std::vector<NDArray> bases{arange(0, kCount, 1, DType::f32), arange(0, kCount, 1, DType::f32)};
    const auto block = std::make_shared<Floats>(bases[0].to_vector<float>());
    bases.push_back(from_memory(block->data(), block, {kCount}, DType::f32, cpu(0)));
    bases.push_back(from_memory(block->data() + kCount / 2, block, {kCount / 2}, DType::f32, cpu(0)));
    const auto views = [&](std::int64_t n, std::int64_t longest) {
      std::vector<NDArray> list;
      for (std::int64_t i = 0; i < n; ++i) {
        const NDArray& base = bases[static_cast<std::size_t>(below(4))];
        const std::int64_t from = below(base.count()), size = std::min(below(longest + 1), base.count() - from);
        list.push_back(base(slice(from, from + size)));
      }
      return list;
    };
    const std::vector<NDArray> outputs = views(1 + below(seed % 2 ? 7 : 20), 6), inputs = views(1 + below(30), 40);
    const auto place = [&](const NDArray& x) {  // space, first, end
      const bool second = x.same_array(bases[3]);
      const std::int64_t first = x.offset() + (second ? kCount / 2 : 0);
      return std::tuple(x.same_array(bases[0]) ? 0 : x.same_array(bases[1]) ? 1 : 2, first, first + x.count());
    };
    const auto overlap = [&](const NDArray& x, const NDArray& y) {
      const auto [a, low, high] = place(x);
      const auto [b, first, end] = place(y);
      return x.count() && y.count() && a == b && low < end && first < high;
    };
    bool wrong = false;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) wrong = wrong || overlap(outputs[i], outputs[j]);
    }
    std::vector<Floats> seen(inputs.size()), wanted;
    for (const NDArray& x : inputs) wanted.push_back(x.to_vector<float>());
    const auto push = [&] {
      push_op(
          [&seen](ArrayContext& c) {
            for (int i = 0; i < c.outputs(); ++i) std::fill_n(c.output(i).as<float>(), c.output(i).count(), -1.0F);
            for (int i = 0; i < c.inputs(); ++i) {
              seen[static_cast<std::size_t>(i)].assign(c.input(i).as<float>(),
                                                       c.input(i).as<float>() + c.input(i).count());
            }
          },
          inputs, outputs)
          .wait();
    };
    if (wrong) {
      EXPECT_THROW(push(), ArrayError) << seed;
      ++threw;
      continue;
    }
    push();
    EXPECT_EQ(seen, wanted) << seed;
  }
  EXPECT_GT(threw, 30);
  EXPECT_LT(threw, 250);
}

}  // namespace
}  // namespace sluice::testing
