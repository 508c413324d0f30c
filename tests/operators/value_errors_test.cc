// Labels, indices and probabilities that an operator cannot take poison its result. On every device the error names the
// function that the program called, its line, the value, and where it stands.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "error_texts.h"

namespace sluice::testing {
namespace {

/// What errors say behind the line.
std::string place() { return test::on_streams() ? " on " + to_string(test::device()) + ": " : ": "; }

NDArray labels_of(const std::vector<std::int64_t>& list, DType dtype = DType::i64) {
  return from(list, {static_cast<std::int64_t>(list.size())}).to(dtype);
}

TEST(ValueErrors, OfLabelsNameRowAndLabel) {
  test::DefaultEngine engine({.threads = 2});
  const NDArray x = ones({4, 10}), weight = ones({10});
  const std::string label = place() + "the label 12 of row 2 is not in [0, 10)";
  for (const DType dtype : {DType::i64, DType::i32, DType::u8}) {
    const NDArray bad = labels_of({1, 0, 12, 3}, dtype);
    EXPECT_TEXT(cross_entropy(x, bad).item<float>(), "[cross_entropy] FILE:LINE" + label);
    EXPECT_TEXT(cross_entropy(x, bad, 5).item<float>(), "[cross_entropy] FILE:LINE" + label);
    EXPECT_TEXT(cross_entropy(x, bad, {.weight = weight}).item<float>(), "[cross_entropy] FILE:LINE" + label);
    EXPECT_TEXT(cross_entropy(x, bad, {.label_smoothing = 0.1}).item<float>(), "[cross_entropy] FILE:LINE" + label);
    EXPECT_TEXT(nll_loss(x, bad).item<float>(), "[nll_loss] FILE:LINE" + label);
    EXPECT_TEXT(nll_loss(x, bad, {.reduction = Reduction::none, .ignore_index = 3}).to_vector<float>(),
                "[nll_loss] FILE:LINE" + label);
  }
  const NDArray below = labels_of({1, -1, 9, 3});
  EXPECT_TEXT(cross_entropy(x, below).item<float>(),
              "[cross_entropy] FILE:LINE" + place() + "the label -1 of row 1 is not in [0, 10)");
  // Rows of an image are counted with its places behind its number.
  EXPECT_TEXT(cross_entropy(ones({2, 10, 2}), labels_of({1, 0, 12, 3}).reshape({2, 2})).item<float>(),
              "[cross_entropy] FILE:LINE" + label);
}

TEST(ValueErrors, OfLabelsAreNoneForThoseThatAreIgnored) {
  test::DefaultEngine engine({.threads = 2});
  const NDArray x = zeros({3, 2}, DType::f64).with_grad();
  const NDArray loss = cross_entropy(x, labels_of({-100, 1, 0}), {.ignore_index = -100});
  EXPECT_NEAR(loss.item<double>(), std::log(2.0), 1e-12);
  loss.backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 0, 0.25, -0.25, -0.25, 0.25}));
  EXPECT_NEAR(cross_entropy(x, labels_of({1, 1, 0}), {.ignore_index = 1}).item<double>(), std::log(2.0), 1e-12);
}

TEST(ValueErrors, OfIndicesNameElementAndIndex) {
  test::DefaultEngine engine({.threads = 2});
  const NDArray x = ones({4, 3}), bad = labels_of({0, 1, 4}), below = labels_of({0, -5, 1});
  const std::string from_zero = place() + "the index 4 (element 2) is not in [0, 4)";
  const std::string from_end = place() + "the index -5 (element 1) is not in [-4, 4)";
  EXPECT_TEXT(take_rows(x, bad).to_vector<float>(), "[take_rows] FILE:LINE" + from_zero);
  EXPECT_TEXT(take_rows(x, bad.to(DType::i32)).to_vector<float>(), "[take_rows] FILE:LINE" + from_zero);
  EXPECT_TEXT(embedding(x, bad).to_vector<float>(), "[embedding] FILE:LINE" + from_zero);
  EXPECT_TEXT(x(below).get().to_vector<float>(), "[index] FILE:LINE" + from_end);
  EXPECT_TEXT(index_select(x, 0, below).to_vector<float>(), "[index_select] FILE:LINE" + from_end);
  EXPECT_TEXT(index_add(x, 0, below, x.narrow(0, 0, 3)).to_vector<float>(), "[index_add] FILE:LINE" + from_end);
  const NDArray column = bad.reshape({3, 1}), high = below.reshape({3, 1});
  EXPECT_TEXT(gather(x, 0, high).to_vector<float>(), "[gather] FILE:LINE" + from_end);
  EXPECT_TEXT(scatter(x, 0, high, x.narrow(1, 0, 1).narrow(0, 0, 3)).to_vector<float>(),
              "[scatter] FILE:LINE" + from_end);
  EXPECT_TEXT(take_along_axis(x.narrow(1, 0, 1), column, 0).to_vector<float>(),
              "[take_along_axis] FILE:LINE" + from_zero);
  EXPECT_TEXT(bincount(bad, 4).to_vector<std::int64_t>(), "[bincount] FILE:LINE" + from_zero);
}

TEST(ValueErrors, OfProbabilitiesNameElementAndProbability) {
  test::DefaultEngine engine({.threads = 2});
  RandomStream stream(1);
  const auto probabilities = [](float last) { return from<float>({0, 1, last}, {3}); };
  EXPECT_EQ(bernoulli(probabilities(1), stream).to(DType::i32).to_vector<std::int32_t>(),
            (std::vector<std::int32_t>{0, 1, 1}));
  EXPECT_TEXT(bernoulli(probabilities(1.5F), stream).to_bytes(),
              "[bernoulli] FILE:LINE" + place() + "the probability 1.5 (element 2) is not in [0, 1]");
  EXPECT_TEXT(bernoulli(probabilities(-0.25F), stream).to_bytes(),
              "[bernoulli] FILE:LINE" + place() + "the probability -0.25 (element 2) is not in [0, 1]");
  EXPECT_TEXT(bernoulli(probabilities(NAN), stream).to_bytes(),
              "[bernoulli] FILE:LINE" + place() + "the probability nan (element 2) is not in [0, 1]");
}

}  // namespace
}  // namespace sluice::testing
