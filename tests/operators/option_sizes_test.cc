// Sizes from outside, up to what 64 bits hold: each option of each function gives a right result, or one clear line.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <iostream>
#include <limits>
#include <string>

#include "../support/devices.h"
#include "size_option_images.h"

namespace sluice::testing {
namespace {

constexpr Size kLeast = std::numeric_limits<Size>::min(), kMost = std::numeric_limits<Size>::max();

enum class Answer { result, refused, no_memory, wrong };

/// The layer "Conv2d" and the operator "conv2d" are one name here.
std::string without_style(std::string text) {
  std::erase(text, '_');
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// What is thrown at the call must be "[name] size_option....h:LINE: why"; what a wait throws names an op and the line.
Answer ask(const SizeOption& option, Size n) {
  const std::string what = option.name + ", " + option.option + " " + std::to_string(n);
  const auto one_line = [&](const std::string& text, const std::string& name) {
    const auto named = [&](const std::string& function) {
      return without_style(text).find(without_style(function) + "] sizeoption") != text.npos;
    };
    EXPECT_TRUE(named(name) ||
                std::ranges::any_of(option.also, [&](const std::string& other) { return named("[" + other); }))
        << what << ": " << text;
    EXPECT_EQ(text.find('\n'), text.npos) << what << ": " << text;
  };
  try {
    for (const NDArray& y : option.call(n)) y.wait();
    return Answer::result;
  } catch (const ArrayError& e) {
    one_line(e.what(), "[" + option.name);
    return Answer::refused;
  } catch (const Error& e) {
    one_line(e.what(), "");
    return Answer::no_memory;
  } catch (const std::exception& e) {
    ADD_FAILURE() << what << " throws no error of arrays: " << e.what();
  }
  return Answer::wrong;
}

std::vector<SizeOption> size_options() {
  std::vector<SizeOption> list;
  add_creation_sizes(list);
  add_view_sizes(list);
  add_result_sizes(list);
  add_image_sizes(list);
  add_layer_sizes(list);
  add_data_sizes(list);
  return list;
}

TEST(OptionSizes, OfAnyValueAreTakenOrRefused) {
  test::DefaultEngine engine({.threads = 2});
  engine.engine().on_unobserved_error([](const ErrorRoot&) {});
  int answers[4] = {};
  for (const SizeOption& option : size_options()) {
    for (const Size n :
         {kLeast, kLeast + 1, -kMost / 2, -(Size{1} << 40), Size{-2}, Size{-1}, Size{0}, Size{1}, Size{2},
          Size{1} << 45, Size{1} << 48, Size{1} << 61, Size{1} << 62, kMost / 3, kMost - 1, kMost}) {
      ++answers[static_cast<int>(ask(option, n))];
    }
    if (option.grows) continue;
    for (const Size n :
         {-(Size{1} << 31), Size{1} << 31, (Size{1} << 31) + 1, Size{1} << 32, (Size{1} << 32) + 1, Size{1} << 40}) {
      ++answers[static_cast<int>(ask(option, n))];
    }
  }
  std::cout << size_options().size() << " options: " << answers[0] << " results, " << answers[1] << " refused, "
            << answers[2] << " without memory\n";
  EXPECT_GT(answers[0], 900);
  EXPECT_GT(answers[1], 1500);
}

TEST(OptionSizes, OfListsOfNineNumbersAreRefused) {
  test::DefaultEngine engine({.threads = 2});
  const Dims nine{1, 1, 1, 1, 1, 1, 1, 1, 1};
  const NDArray x = ones({1}), deep = ones({1, 1, 1, 1, 1, 1, 1, 1});
  const auto refused = [](const char* name, auto call) {
    try {
      (void)call();
      ADD_FAILURE() << name << " took nine numbers";
    } catch (const ArrayError& e) {
      const std::string text = e.what();
      EXPECT_TRUE(text.starts_with("[" + std::string(name) + "] option_sizes_test.cc")) << text;
      EXPECT_TRUE(text.find("(9 numbers)") != text.npos || text.find("8 axes") != text.npos) << text;
    } catch (const std::exception& e) {
      ADD_FAILURE() << name << ": " << e.what();
    }
  };
  refused("reshape", [&] { return x.reshape({1, 1, 1, 1, 1, 1, 1, 1, 1}); });
  refused("reshape", [&] { return x.reshape(nine); });
  refused("broadcast_to", [&] { return x.broadcast_to(nine); });
  refused("permute", [&] { return deep.permute({0, 1, 2, 3, 4, 5, 6, 7, 7}); });
  refused("strided", [&] { return x.strided(nine, nine, 0); });
  refused("strided", [&] { return deep.strided(deep.shape(), nine, 0); });
  refused("flip", [&] { return deep.flip(nine); });
  refused("sum", [&] { return sum(deep, nine); });
  refused("mean", [&] { return mean(deep, {0, 1, 2, 3, 4, 5, 6, 7, 7}); });
  refused("sum_to", [&] { return sum_to(deep, nine); });
  refused("tile", [&] { return tile(x, nine); });
  refused("zeros", [&] { return zeros(nine); });
  refused("full", [&] { return full(nine, 1); });
  refused("empty", [&] { return empty(nine); });
  refused("from", [&] { return from({1.0F}, nine); });
  RandomStream stream(1);
  refused("uniform", [&] { return uniform(nine, stream); });
  refused("randint", [&] { return randint(nine, stream, 0, 2); });
  refused("bernoulli", [&] { return bernoulli(nine, stream, 0.5); });
  refused("nn::Parameter", [&] { return nn::contents(nn::Parameter(nine, nn::constant(0))).slots.size(); });
  refused("nn::Loader", [&] {
    const nn::Map to_nine([&](const Dims&, DType dtype) { return nn::Map::Result{nine, dtype}; }, {});
    return nn::Loader({x, x}, {.x = to_nine}).size();
  });
  const Size parts[] = {1};
  refused("partitioned", [&] { return partitioned(parts, nine, DType::f32, cpu(0)).whole; });
  refused("partitioned", [&] { return partitioned(parts, deep.shape(), DType::f32, cpu(0)).whole; });
  // One axis too many comes from the result.
  refused("one_hot", [&] { return one_hot(deep.to(DType::i64), 2); });
  refused("stack", [&] { return stack({deep, deep}); });
  refused("quantile", [&] { return quantile(deep, {0.5}, Axes(Dims{})); });
  refused("einsum", [&] { return einsum("abcdexy,fghijyz->abcdefghijxz", {deep.squeeze(0), deep.squeeze(0)}); });
  refused("unsqueeze", [&] { return deep.unsqueeze(0); });
  EXPECT_EQ(Dims(nine).given(), 9);
  EXPECT_THROW(Dims(deep.shape()).push_back(1), std::invalid_argument);
}

TEST(OptionSizes, LargeOnesHaveTheRightValues) {
  test::DefaultEngine engine({.threads = 2});
  const NDArray x = arange(0, 25, 1, DType::f32).reshape({1, 1, 5, 5}), w = ones({1, 1, 3, 3});
  // One window: a stride that leads out of the image has no second one.
  for (const Size stride : {Size{1} << 31, Size{1} << 32}) {
    EXPECT_EQ(conv2d(x, w, {}, {.stride = stride}).to_vector<float>(), std::vector<float>{54});
    EXPECT_EQ(max_pool2d(x, 2, {.stride = stride}).to_vector<float>(), std::vector<float>{6});
    EXPECT_EQ(max_pool2d(x, 2, {.stride = stride, .ceil_mode = true}).to_vector<float>(), std::vector<float>{6});
  }
  EXPECT_EQ(max_pool2d(x, 2, {.stride = kMost, .ceil_mode = true}).to_vector<float>(), std::vector<float>{6});
  EXPECT_EQ(max_pool2d(x, kMost, {.ceil_mode = true}).to_vector<float>(), std::vector<float>{24});
  using Ints = std::vector<Size>;
  EXPECT_EQ(arange(kMost - 2, kMost).to_vector<Size>(), (Ints{kMost - 2, kMost - 1}));
  EXPECT_EQ(arange(kLeast, kMost, kMost).to_vector<Size>(), (Ints{kLeast, -1, kMost - 1}));
  EXPECT_EQ(arange(2, kLeast, kLeast).to_vector<Size>(), (Ints{2, kLeast + 2}));
  EXPECT_EQ(roll(arange(0, 3), kLeast).to_vector<Size>(), (Ints{2, 0, 1}));
  EXPECT_EQ(roll(arange(0, 3), kMost).to_vector<Size>(), (Ints{2, 0, 1}));
  EXPECT_EQ(tril(ones({2, 2}), kMost).to_vector<float>(), (std::vector<float>{1, 1, 1, 1}));
  EXPECT_EQ(triu(ones({2, 2}), kMost).to_vector<float>(), (std::vector<float>{0, 0, 0, 0}));
  EXPECT_EQ(chunk(arange(0, 3), kMost).size(), 3U);
  EXPECT_EQ(split(arange(0, 3), kMost).size(), 1U);
  EXPECT_EQ(nn::Loader({ones({5, 2}), ones({5})}, {.batch = kMost}).size(), 1);
  // Adaptive windows where there are more of them than elements: each has one element, or two.
  const NDArray row = from({1.0F, 3.0F, 8.0F}, {1, 1, 1, 3});
  EXPECT_EQ(adaptive_max_pool2d(row, {1, 5}).to_vector<float>(), (std::vector<float>{1, 3, 3, 8, 8}));
  EXPECT_EQ(adaptive_avg_pool2d(row, {1, 5}).to_vector<float>(), (std::vector<float>{1, 2, 3, 5.5, 8}));
  EXPECT_EQ(adaptive_avg_pool2d(row.reshape({1, 1, 3, 1}), {5, 1}).to_vector<float>(),
            (std::vector<float>{1, 2, 3, 5.5, 8}));
  EXPECT_EQ(adaptive_avg_pool2d(row, {2, 2}).to_vector<float>(), (std::vector<float>{2, 5.5, 2, 5.5}));
}

TEST(OptionSizes, OfPadsAreThoseOfNumPy) {
  test::DefaultEngine engine({.threads = 2});
  const NDArray x = arange(0, 3);
  using Ints = std::vector<Size>;
  EXPECT_EQ(pad(x, {{4, 5}}, {PadMode::wrap}).to_vector<Size>(), (Ints{2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1}));
  EXPECT_EQ(pad(x, {{2, 1}}, {PadMode::edge}).to_vector<Size>(), (Ints{0, 0, 0, 1, 2, 2}));
  EXPECT_EQ(pad(x, {{2, 2}}, {PadMode::reflect}).to_vector<Size>(), (Ints{2, 1, 0, 1, 2, 1, 0}));
}

/// The host has no such list, or no such memory: that is one line with the bytes, not another library's words.
TEST(OptionSizes, MemoryThatThereIsNotIsNamed) {
  test::DefaultEngine engine({.threads = 2});
  engine.engine().on_unobserved_error([](const ErrorRoot&) {});
  const auto text_of = [](auto call) -> std::string {
    try {
      (void)call();
      return "nothing was thrown";
    } catch (const std::exception& e) {
      return e.what();
    }
  };
  const std::string of_op = text_of([] { zeros({Size{1} << 44}).wait(); });
  EXPECT_TRUE(of_op.starts_with("[zeros] option_sizes_test.cc:")) << of_op;
  EXPECT_NE(of_op.find("the host has no 64.00 TiB left"), of_op.npos) << of_op;
  const NDArray wide = zeros({1}).broadcast_to({Size{1} << 44});
  for (const std::string& text : {text_of([&] { wide.to_vector<float>(); }), text_of([&] { wide.to_bytes(); })}) {
    EXPECT_TRUE(text.starts_with("[to_")) << text;
    EXPECT_NE(text.find("the host has no 64.00 TiB"), text.npos) << text;
  }
  const std::string many = text_of([&] { split(wide, 1); });
  EXPECT_TRUE(many.starts_with("[split] option_sizes_test.cc:")) << many;
  EXPECT_THROW(parallel::gpipe(2, 2147483647), std::invalid_argument);
  EXPECT_THROW(parallel::one_f_one_b(2147483647, 2147483647), std::invalid_argument);
}

}  // namespace
}  // namespace sluice::testing
