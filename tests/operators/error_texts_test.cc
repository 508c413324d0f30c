// The texts of errors, each as a program gets it: the operator, the line of the call, what it got, and what it wanted.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../support/devices.h"
#include "error_texts.h"

namespace sluice::testing {
namespace {

TEST(ErrorTexts, AreOneLineEach) {
  const NDArray a = ones({64, 10}), whole = ones({64, 10}, DType::i32), large = ones({64, 10}, DType::i64),
                flags = ones({64, 10}, DType::boolean);
  NDArray x = zeros({64, 10});
  RandomStream stream(1);
  EXPECT_TEXT((a + ones({12, 3})), "[add] FILE:LINE: (64, 10) x (12, 3): shapes do not broadcast");
  EXPECT_TEXT((NDArray() + a), "[add] FILE:LINE: an empty handle");
  EXPECT_TEXT((flags + flags), "[add] FILE:LINE: (64, 10) x (64, 10): no arithmetic in bool; use to(dtype)");
  EXPECT_TEXT((-flags), "[neg] FILE:LINE: (64, 10): no arithmetic in bool; use to(dtype)");
  EXPECT_TEXT((exp(whole)), "[exp] FILE:LINE: (64, 10): needs a floating dtype, not i32");
  EXPECT_TEXT((whole * 2.5), "[mul] FILE:LINE: (64, 10): the number 2.5 beside i32; use to(dtype)");
  EXPECT_TEXT((whole + 3000000000), "[add] FILE:LINE: (64, 10): the number 3000000000 beside i32; use to(dtype)");
  EXPECT_TEXT((large * 18446744073709551615U),
              "[mul] FILE:LINE: (64, 10): the number 18446744073709551615 beside i64; use to(dtype)");
  EXPECT_TEXT((a & a), "[bitwise_and] FILE:LINE: (64, 10) x (64, 10): needs bool or integers, not f32");
  EXPECT_TEXT((x += a.to(DType::f64)),
              "[add] FILE:LINE: a write of f64 to an array of f32, which it would have to widen; use to(dtype)");
  EXPECT_TEXT((x += ones({7})), "[add] FILE:LINE: (64, 10) x (7,): shapes do not broadcast");
  EXPECT_TEXT((NDArray(whole).fill(.5)), "[fill] FILE:LINE: the number 0.5 is none of i32");
  EXPECT_TEXT((full({}, 1e10, DType::i32)), "[full] FILE:LINE: the number 10000000000.0 is none of i32");
  EXPECT_TEXT((full({}, 2, DType::boolean)), "[full] FILE:LINE: the number 2 is none of bool");
  EXPECT_TEXT((zeros({-3, 4})), "[zeros] FILE:LINE: (-3, 4) f32: a negative size; all must be 0 or more");
  EXPECT_TEXT(
      (zeros({1LL << 40, 1LL << 40})),
      "[zeros] FILE:LINE: (1099511627776, 1099511627776) f32: too many elements; their bytes must be at most 2^48");
  EXPECT_TEXT((arange(0, 1, 0)), "[arange] FILE:LINE: from 0 to 1 by 0: not a number of elements below 9e18");
  EXPECT_TEXT((arange(0, 1, .25, DType::i64)), "[arange] FILE:LINE: the number 0.25 is none of i64");
  EXPECT_TEXT((linspace(0, 1, -1)), "[linspace] FILE:LINE: (-1,) f32: a negative size; all must be 0 or more");
  EXPECT_TEXT((matmul(a, ones({12, 3}))), "[matmul] FILE:LINE: (64, 10) x (12, 3): inner sizes differ");
  EXPECT_TEXT((matmul(a, ones({}))), "[matmul] FILE:LINE: a scalar is no matrix; use *");
  EXPECT_TEXT((matmul(a, a.to(DType::i32))),
              "[matmul] FILE:LINE: (64, 10) x (64, 10): dtypes f32 and i32 do not mix; use to(dtype)");
  EXPECT_TEXT((matmul(ones({2, 3, 4}), ones({5, 4, 2}))),
              "[matmul] FILE:LINE: (2, 3, 4) x (5, 4, 2): batches do not broadcast");
  EXPECT_TEXT((dot(ones({3}), ones({4}))), "[dot] FILE:LINE: (3,) x (4,): needs two vectors of one size");
  EXPECT_TEXT((einsum("ij,jk->iz", {a, a})),
              "[einsum] FILE:LINE: \"ij,jk->iz\": the result names an axis that no operand has");
  EXPECT_TEXT((einsum("ij,jk", {a, a})), "[einsum] FILE:LINE: \"ij,jk\": sizes 10 and 64 of one axis");
  EXPECT_TEXT((linear(a, ones({3, 4}))), "[linear] FILE:LINE: (64, 10) x (3, 4): x has 10 columns, weight 4");
  EXPECT_TEXT((linear(a, ones({3, 10}), ones({4}))),
              "[linear] FILE:LINE: (64, 10) x (3, 10) x (4,): bias does not fit");
  EXPECT_TEXT((concat({a, ones({3, 4})}, 0)), "[concat] FILE:LINE: (64, 10) x (3, 4): sizes differ beside axis 0");
  EXPECT_TEXT((concat({a, a}, 2)), "[concat] FILE:LINE: no axis 2");
  EXPECT_TEXT((concat(std::vector<NDArray>{})), "[concat] FILE:LINE: no arrays");
  EXPECT_TEXT((stack({a, ones({3})})), "[stack] FILE:LINE: (64, 10) x (3,): the shapes differ");
  EXPECT_TEXT((a.reshape({7, -1})), "[reshape] FILE:LINE: (64, 10) to (7, -1): the numbers of elements differ");
  EXPECT_TEXT((a.reshape({-1, -1})),
              "[reshape] FILE:LINE: (64, 10) to (-1, -1): at most one size may be -1, which stands for what is left");
  EXPECT_TEXT((a.reshape({3, 3})), "[reshape] FILE:LINE: (64, 10) to (3, 3): the numbers of elements differ");
  EXPECT_TEXT((a.permute({0, 0})), "[permute] FILE:LINE: (64, 10): axes (0, 0); wanted is each of its 2 axes once");
  EXPECT_TEXT((a.permute({0})), "[permute] FILE:LINE: (64, 10): axes (0,); wanted is each of its 2 axes once");
  EXPECT_TEXT((a.reshape({-2, -1})), "[reshape] FILE:LINE: (64, 10) to (-2, -1): a negative size");
  EXPECT_TEXT((a.broadcast_to({64, 11})), "[broadcast_to] FILE:LINE: (64, 10) does not broadcast to (64, 11)");
  EXPECT_TEXT((a.squeeze(0)), "[squeeze] FILE:LINE: (64, 10): axis 0 is not of size 1");
  EXPECT_TEXT((a(64)), "[index] FILE:LINE: (64, 10): index 64 on axis 0");
  EXPECT_TEXT((a(0, 0, 0)), "[index] FILE:LINE: (64, 10): 3 indices");
  EXPECT_TEXT((a(ellipsis, ellipsis)), "[index] FILE:LINE: (64, 10): more than one ellipsis");
  EXPECT_TEXT((a(slice(0, 10, 0))), "[index] FILE:LINE: (64, 10): a slice with step 0");
  EXPECT_TEXT((a.narrow(0, 3, 70)), "[narrow] FILE:LINE: (64, 10): [3, 70) on axis 0");
  EXPECT_TEXT((a.swapaxes(0, 2)), "[swapaxes] FILE:LINE: (64, 10): no axis 2");
  EXPECT_TEXT((a.diagonal(0, 1, 1)), "[diagonal] FILE:LINE: (64, 10): one axis twice");
  EXPECT_TEXT((a.unfold(1, 11, 1)), "[unfold] FILE:LINE: (64, 10): windows of 11 elements on axis 1");
  EXPECT_TEXT((a.strided({100, 100}, {100, 1}, 0)),
              "[strided] FILE:LINE: (100, 100) with strides (100, 1) from 0 leaves the array of (64, 10)");
  EXPECT_TEXT((split(a, {3, 3}, 0)), "[split] FILE:LINE: (64, 10): the parts do not add up to axis 0");
  EXPECT_TEXT((pad(a, {{1, 0}, {2, 3}, {0, 0}})),
              "[pad] FILE:LINE: (64, 10): 3 pairs of sizes; one for each axis is wanted");
  EXPECT_TEXT((tile(a, {-1, 2})), "[tile] FILE:LINE: (64, 10): -1 times");
  EXPECT_TEXT((sum(a, {2})), "[sum] FILE:LINE: (64, 10): no axis 2");
  EXPECT_TEXT((sum(a, {0, 0})), "[sum] FILE:LINE: (64, 10): axis 0 twice in (0, 0)");
  EXPECT_TEXT((max(zeros({0, 3}))), "[max] FILE:LINE: (0, 3): nothing to choose from");
  EXPECT_TEXT((argmax(zeros({0, 3}), 0)), "[argmax] FILE:LINE: (0, 3): nothing to choose from");
  EXPECT_TEXT((quantile(a, 1.5)), "[quantile] FILE:LINE: q is 1.5, which is not in [0, 1]");
  EXPECT_TEXT((topk(a, 11, 1)), "[topk] FILE:LINE: (64, 10): 11 of 10 elements");
  EXPECT_TEXT((cumsum(a, 2)), "[cumsum] FILE:LINE: (64, 10): no axis 2");
  EXPECT_TEXT((softmax(a, 3)), "[softmax] FILE:LINE: (64, 10): no axis 3");
  EXPECT_TEXT((where(a, a, a)), "[where] FILE:LINE: (64, 10) x (64, 10) x (64, 10): the condition is f32, not bool");
  EXPECT_TEXT((where(flags, whole, .5)), "[where] FILE:LINE: the number 0.5 beside i32; use to(dtype)");
  EXPECT_TEXT((pow(whole, .5)), "[pow] FILE:LINE: (64, 10): the number 0.5 beside i32; use to(dtype)");
  EXPECT_TEXT((atan2(whole, 2)), "[atan2] FILE:LINE: (64, 10): needs a floating dtype, not i32");
  EXPECT_TEXT((gather(a, 1, ones({3, 3}))), "[gather] FILE:LINE: an index is of integers, not f32");
  EXPECT_TEXT((masked_fill(a, whole, 0)), "[masked_fill] FILE:LINE: a mask is bool, not i32");
  EXPECT_TEXT((conv2d(ones({1, 2, 5, 5}), ones({1, 3, 3, 3}))),
              "[conv2d] FILE:LINE: (1, 2, 5, 5) x (1, 3, 3, 3): 2 channels, weight for 3");
  EXPECT_TEXT((conv2d(ones({1, 2, 2, 2}), ones({1, 2, 3, 3}))),
              "[conv2d] FILE:LINE: (1, 2, 2, 2) x (1, 2, 3, 3): the kernel does not fit the image");
  EXPECT_TEXT((conv2d(a, ones({1, 2, 3, 3}))), "[conv2d] FILE:LINE: (64, 10) x (1, 2, 3, 3): input 0 must have 4 axes");
  EXPECT_TEXT((max_pool2d(ones({1, 2, 2, 2}), 3)),
              "[max_pool2d] FILE:LINE: (1, 2, 2, 2): the window does not fit the image");
  EXPECT_TEXT((attention(ones({3, 4}), ones({3, 5}), ones({3, 4}))),
              "[attention] FILE:LINE: (1, 1, 3, 4) x (1, 1, 3, 5) x (1, 1, 3, 4): queries and keys differ in size, or "
              "have none");
  EXPECT_TEXT((layer_norm(a, ones({3}))), "[layer_norm] FILE:LINE: weight has shape (3,), not (10,)");
  EXPECT_TEXT((group_norm(ones({2, 4, 3}), 3)),
              "[group_norm] FILE:LINE: (2, 4, 3) is not (n, channels, ...) with channels for 3 groups");
  EXPECT_TEXT((cross_entropy(a, zeros({64}))),
              "[cross_entropy] FILE:LINE: (64, 10) x (64,): labels are i64, i32 or u8, not f32");
  EXPECT_TEXT((cross_entropy(a, zeros({3}, DType::i64))),
              "[cross_entropy] FILE:LINE: (64, 10) x (3,): needs logits (n, classes) and labels (n,)");
  EXPECT_TEXT((mse_loss(a, ones({3}))), "[mse_loss] FILE:LINE: (64, 10) x (3,): the target does not fit x");
  EXPECT_TEXT((one_hot(ones({3}), 4)), "[one_hot] FILE:LINE: (3,): labels are i64, i32 or u8, not f32");
  EXPECT_TEXT((a.item<float>()), "[item] FILE:LINE: (64, 10) has not one element");
  EXPECT_TEXT((full({}, 1e300, DType::f64).item<float>()), "[item] FILE:LINE: 1e+300 does not fit the type");
  EXPECT_TEXT((ones({}).item<int>()), "[item] FILE:LINE: an integer type asked of an array of f32");
  EXPECT_TEXT((a.to_vector<double>()), "[to_vector] FILE:LINE: f64 asked of an array of f32");
  EXPECT_TEXT((a.transpose().borrow<const float>()), "[borrow] FILE:LINE: the view is not contiguous");
  EXPECT_TEXT((a.backward()), "[backward] FILE:LINE: an array that no recorded operator made");
  EXPECT_TEXT((sum(a).backward()), "[backward] FILE:LINE: an array that no recorded operator made");
  EXPECT_TEXT((a.copy().with_grad().fill(0)),
              "[fill] FILE:LINE: writes in place to an array that wants a gradient; use a NoGrad scope");
  EXPECT_TEXT((whole.with_grad()), "[with_grad] FILE:LINE: needs a floating dtype, not i32");
  EXPECT_TEXT((a.to(cpu(99))), "[to] FILE:LINE: no device cpu(99) in this engine");
  EXPECT_TEXT((bincount(a)), "[bincount] FILE:LINE: (64, 10): an index is i64, i32 or u8, not f32");
  EXPECT_TEXT((searchsorted(a, ones({3}))),
              "[searchsorted] FILE:LINE: (64, 10) x (3,): sizes differ before the last axis");
  EXPECT_TEXT((dropout(a, 1.5, stream)), "[dropout] FILE:LINE: p must be from 0 to 1");
  EXPECT_TEXT((uniform({3}, stream, 1, 0)), "[uniform] FILE:LINE: [1.0, 0.0) is no range");
  EXPECT_TEXT((normal({3}, stream, 0, -1)), "[normal] FILE:LINE: a deviation of -1.0, which is below 0");
  EXPECT_TEXT((uniform({3}, stream, 0, 1, DType::i32)), "[uniform] FILE:LINE: no kernel for i32 on cpu(0)");
}

/// Functions that are made of others name themselves, not the operators inside.
TEST(ErrorTexts, NameWhatTheProgramCalled) {
  const NDArray a = ones({64, 10}), half = ones({64, 10}, DType::f16), brain = ones({64, 10}, DType::bf16),
                flags = ones({64, 10}, DType::boolean), rows = zeros({2}, DType::i64);
  EXPECT_TEXT((ones({-1})), "[ones] FILE:LINE: (-1,) f32: a negative size; all must be 0 or more");
  EXPECT_TEXT((full({-1}, 2)), "[full] FILE:LINE: (-1,) f32: a negative size; all must be 0 or more");
  EXPECT_TEXT((eye(-1)), "[eye] FILE:LINE: (-1, -1) f32: a negative size; all must be 0 or more");
  EXPECT_TEXT((stack({a, NDArray()})), "[stack] FILE:LINE: an empty handle");
  EXPECT_TEXT((stack({a, a}, 3)), "[stack] FILE:LINE: no axis 3");
  EXPECT_TEXT((norm(zeros({0, 3}), 0, {.ord = INFINITY})), "[norm] FILE:LINE: (0, 3): nothing to choose from");
  EXPECT_TEXT((norm(a, 2)), "[norm] FILE:LINE: (64, 10): no axis 2");
  EXPECT_TEXT((diff(a, -1)), "[diff] FILE:LINE: n is -1, which is below 0");
  EXPECT_TEXT((scatter(rows, 0, rows, .5)), "[scatter] FILE:LINE: the number 0.5 is none of i64");
  EXPECT_TEXT((conv_transpose2d(a, a)),
              "[conv_transpose2d] FILE:LINE: (64, 10) x (64, 10): needs an image and a "
              "weight of 4 axes");
  EXPECT_TEXT((linear(ones({2, 3, 5}), ones({2, 4}))),
              "[linear] FILE:LINE: (2, 3, 5) x (2, 4): x has 5 columns, weight 4");
  EXPECT_TEXT((nonzero(a, {.size = -1})), "[nonzero] FILE:LINE: a size of -1");
  EXPECT_TEXT((nonzero(a, {.size = 3, .fill = .5})), "[nonzero] FILE:LINE: the number 0.5 is none of i64");
  EXPECT_TEXT((masked_select(rows, rows > 0, {.size = 3, .fill = .5})),
              "[masked_select] FILE:LINE: the number 0.5 is none of i64");
  EXPECT_TEXT((unique(rows, {.size = -1})), "[unique] FILE:LINE: a size of -1");
  EXPECT_TEXT((stack({half, brain})), "[stack] FILE:LINE: no dtype holds both f16 and bf16; use to(dtype)");
  EXPECT_TEXT((masked_fill(a, ones({3}, DType::boolean), 0)),
              "[masked_fill] FILE:LINE: (3,) x () x (64, 10): shapes do not broadcast");
  EXPECT_TEXT((count_nonzero(flags, 2)), "[count_nonzero] FILE:LINE: (64, 10): no axis 2");
  EXPECT_TEXT((count_nonzero(a, 2)), "[count_nonzero] FILE:LINE: (64, 10): no axis 2");
  EXPECT_TEXT((lerp(a, ones({3}), .5)), "[lerp] FILE:LINE: (3,) x (64, 10): shapes do not broadcast");
  EXPECT_TEXT((addcmul(a, a, ones({3}))), "[addcmul] FILE:LINE: (64, 10) x (3,): shapes do not broadcast");
  EXPECT_TEXT((allclose(a, ones({3}))), "[allclose] FILE:LINE: (64, 10) x (3,): shapes do not broadcast");
  EXPECT_TEXT((triu(ones({3}))), "[triu] FILE:LINE: (3,): no matrix");
  EXPECT_TEXT((roll(a, 1, 2)), "[roll] FILE:LINE: (64, 10): no axis 2");
  EXPECT_TEXT((index_add(a, 0, rows, ones({3, 10}))),
              "[index_add] FILE:LINE: (3, 10) at an index of shape (2,) for (64, 10)");
  EXPECT_TEXT((solve(ones({3, 3}), ones({4, 1}))),
              "[solve] FILE:LINE: (3, 3) x (4, 1): needs matrices (..., n, n), and b (..., n, k) or (n,)");
  EXPECT_TEXT((matmul(ones({2, 3, 4}), ones({2, 3, 4}))),
              "[matmul] FILE:LINE: (2, 3, 4) x (2, 3, 4): inner sizes differ");
  EXPECT_TEXT((a(rows) = ones({3, 10})), "[index] FILE:LINE: (3, 10) does not broadcast to (2, 10)");
  EXPECT_TEXT((a(rows) += ones({3, 10})), "[index] FILE:LINE: (3, 10) does not broadcast to (2, 10)");
  EXPECT_TEXT((a + ones({3})), "[add] FILE:LINE: (64, 10) x (3,): shapes do not broadcast") << "after all these";
}

/// What a wait throws: the op that failed, and its line.
TEST(ErrorTexts, OfPoisonNameTheOpThatFailed) {
  const NDArray a = ones({4, 10}), x = zeros({4});
  const LayerScope layer("encoder.2");
  EXPECT_TEXT((take_rows(a, full({2}, 9, DType::i64)) * 2).to_vector<float>(),
              "[take_rows] FILE:LINE in encoder.2: the index 9 (element 0) is not in [0, 4)");
  EXPECT_TEXT((a(full({2}, 9, DType::i64)) * 2).to_vector<float>(),
              "[index] FILE:LINE in encoder.2: the index 9 (element 0) is not in [-4, 4)");
  EXPECT_TEXT(inv(zeros({2, 2})).to_vector<float>(), "[inv] FILE:LINE in encoder.2: the matrix is singular");
  EXPECT_TEXT((push_op([](ArrayContext&) { throw std::runtime_error("no such frame"); }, {}, {x}, {.name = "decode"}),
               (x + 1.0F).wait()),
              "[decode] FILE:LINE in encoder.2: no such frame");
}

}  // namespace
}  // namespace sluice::testing
