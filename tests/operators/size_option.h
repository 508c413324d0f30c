// Sizes, counts and distances that a program gives: every option of the library that is one, as a table.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "operator_case.h"

namespace sluice::testing {

struct SizeOption {
  std::string name;                          ///< the function, as errors have it
  std::string option;                        ///< for the test's texts
  std::function<Arrays(std::int64_t)> call;  ///< its results for a value of the option
  bool grows = true;                         ///< a large value makes a large result
  std::vector<std::string> also = {};        ///< other functions that may refuse it
};

using Size = std::int64_t;

inline void add_creation_sizes(std::vector<SizeOption>& list) {
  const auto add = [&](const char* name, const char* option, auto call) {
    list.push_back({name, option, [call](Size n) { return Arrays{call(n)}; }});
  };
  add("zeros", "shape", [](Size n) { return zeros({n}); });
  add("zeros", "shape of two axes", [](Size n) { return zeros({3, n}); });
  add("ones", "shape", [](Size n) { return ones({n, n}); });
  add("full", "shape", [](Size n) { return full({2, n}, 1); });
  add("empty", "shape", [](Size n) { return empty({n, 1}, DType::f64); });
  add("linspace", "n", [](Size n) { return linspace(0, 1, n); });
  add("arange", "end", [](Size n) { return arange(n); });
  add("arange", "begin", [](Size n) { return arange(n, 3); });
  add("arange", "step", [](Size n) { return arange(0, 5, n); });
  add("arange", "end, in f64", [](Size n) { return arange(0, static_cast<double>(n)); });
  add("eye", "n", [](Size n) { return eye(n); });
  add("eye", "m", [](Size n) { return eye(2, n); });
  const auto drawn = [&](const char* name, auto call) {
    add(name, "shape", [call](Size n) {
      RandomStream stream(1);
      return call(n, stream);
    });
  };
  drawn("uniform", [](Size n, RandomStream& s) { return uniform({n}, s); });
  drawn("normal", [](Size n, RandomStream& s) { return normal({n, 3}, s); });
  drawn("truncated_normal", [](Size n, RandomStream& s) { return truncated_normal({n}, s); });
  drawn("randint", [](Size n, RandomStream& s) { return randint({n}, s, 0, 3); });
  drawn("bernoulli", [](Size n, RandomStream& s) { return bernoulli({n}, s, 0.5); });
  drawn("randperm", [](Size n, RandomStream& s) { return randperm(n, s); });
  add("from", "shape", [](Size n) { return from({1.0F, 2.0F}, {n}); });
  add("from", "shape of two axes", [](Size n) { return from({1.0F, 2.0F}, {n, n}); });
  add("partitioned", "sizes", [](Size n) {
    const Size sizes[] = {1, n};
    return partitioned(sizes, {2}, DType::f32, cpu(0)).whole;
  });
  add("partitioned", "row shape", [](Size n) {
    const Size sizes[] = {1, 2};
    return partitioned(sizes, {n, 2}, DType::f32, cpu(0)).whole;
  });
  add("from_memory", "shape", [](Size n) {
    static float there[2] = {};
    return from_memory(there, nullptr, n == 2 ? Dims{n} : Dims{n, n, n}, DType::f32, cpu(0));
  });
}

inline void add_view_sizes(std::vector<SizeOption>& list) {
  const auto add = [&](const char* name, const char* option, auto call) {
    list.push_back({name, option,
                    [call](Size n) {
                      const NDArray x = arange(0, 12, 1, DType::f32).reshape({3, 4});
                      return Arrays{call(x, n)};
                    },
                    false});
  };
  using X = const NDArray&;
  add("reshape", "a size", [](X x, Size n) { return x.reshape({n, 4}); });
  add("reshape", "a size beside -1", [](X x, Size n) { return x.reshape({-1, n}); });
  add("narrow", "begin", [](X x, Size n) { return x.narrow(0, n, 3); });
  add("narrow", "end", [](X x, Size n) { return x.narrow(0, 1, n); });
  add("index", "a position", [](X x, Size n) { return x(n); });
  add("index", "the begin of a slice", [](X x, Size n) { return x(slice_from(n)); });
  add("index", "the end of a slice", [](X x, Size n) { return x(slice(0, n)); });
  add("index", "the step of a slice", [](X x, Size n) { return x(all, slice(0, 4, n)); });
  add("index", "the step from the last", [](X x, Size n) { return x(all, slice_from(-1, n)); });
  add("unfold", "size", [](X x, Size n) { return x.unfold(1, n, 1); });
  add("unfold", "step", [](X x, Size n) { return x.unfold(1, 2, n); });
  add("strided", "shape", [](X x, Size n) { return x.strided({n}, {1}, 0); });
  add("strided", "strides", [](X x, Size n) { return x.strided({2}, {n}, 0); });
  add("strided", "offset", [](X x, Size n) { return x.strided({2}, {1}, n); });
  add("strided", "strides and offset", [](X x, Size n) { return x.strided({3, 2}, {n, n > 0 ? -n : n}, n); });
  add("diagonal", "offset", [](X x, Size n) { return x.diagonal(n); });
  add("permute", "an axis", [](X x, Size n) { return x.permute({n, 0}); });
  add("flip", "an axis", [](X x, Size n) { return x.flip(n); });
  add("sum", "an axis", [](X x, Size n) { return sum(x, n); });
  add("mean", "an axis", [](X x, Size n) { return mean(x, Axes{0, n}); });
  add("quantile", "an axis", [](X x, Size n) { return quantile(x, 0.5, n); });
  add("roll", "shift", [](X x, Size n) { return roll(x, n, 1); });
  add("tril", "diagonal", [](X x, Size n) { return tril(x, n); });
  add("triu", "diagonal", [](X x, Size n) { return triu(x, n); });
  add("split", "size", [](X x, Size n) { return split(x, n)[0]; });
  add("split", "sizes", [](X x, Size n) { return split(x, std::vector<Size>{n, 1})[0]; });
  add("split", "sizes whose sum wraps", [](X x, Size n) { return split(x, std::vector<Size>{n, n, 3})[0]; });
  add("chunk", "n", [](X x, Size n) { return chunk(x, n)[0]; });
  add("topk", "k", [](X x, Size n) { return topk(x, n).values; });
  add("group_norm", "groups", [](X x, Size n) { return group_norm(x, n); });
  add("rotary_embedding", "first", [](X x, Size n) { return rotary_embedding(x, {.first = n}); });
  add("dropout", "first", [](X x, Size n) {
    RandomStream stream(1);
    return dropout(x, 0.5, stream, {.first = static_cast<std::uint64_t>(n)});
  });
  const auto labels = [] { return from(std::vector<Size>{0, 3, 1}, {3}); };
  add("cross_entropy", "ignore_index", [=](X x, Size n) { return cross_entropy(x, labels(), {.ignore_index = n}); });
  add("nll_loss", "ignore_index", [=](X x, Size n) { return nll_loss(x, labels(), {.ignore_index = n}); });
  const auto at_int = [](Size n) {
    return static_cast<int>(std::clamp<Size>(n, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()));
  };
  add("diff", "n", [=](X x, Size n) { return diff(x, at_int(n)); });
  add("layer_norm", "axes", [=](X x, Size n) { return layer_norm(x, {}, {}, {.axes = at_int(n)}); });
  add("rms_norm", "axes", [=](X x, Size n) { return rms_norm(x, {}, {.axes = at_int(n)}); });
  add("cumsum", "an axis", [=](X x, Size n) { return cumsum(x, at_int(n)); });
  add("softmax", "an axis", [=](X x, Size n) { return softmax(x, at_int(n)); });
  add("argmax", "an axis", [=](X x, Size n) { return argmax(x, at_int(n)); });
  add("concat", "an axis", [=](X x, Size n) { return concat({x, x}, at_int(n)); });
  add("stack", "an axis", [=](X x, Size n) { return stack({x, x}, at_int(n)); });
  add("unsqueeze", "an axis", [=](X x, Size n) { return x.unsqueeze(at_int(n)); });
  add("movedim", "an axis", [=](X x, Size n) { return x.movedim(0, at_int(n)); });
  add("glu", "an axis", [=](X x, Size n) { return glu(x, at_int(n)); });
}

inline void add_result_sizes(std::vector<SizeOption>& list) {
  const auto add = [&](const char* name, const char* option, auto call) {
    list.push_back({name, option, [call](Size n) { return Arrays{call(arange(0, 3, 1, DType::f32), n)}; }});
  };
  using X = const NDArray&;
  add("broadcast_to", "shape", [](X x, Size n) { return x.broadcast_to({n, 3})(slice(0, 1)); });
  add("tile", "times", [](X x, Size n) { return tile(x, {n, 2}); });
  add("repeat", "times", [](X x, Size n) { return repeat(x, n); });
  add("repeat", "times of one element", [](X x, Size n) { return repeat(x(slice(0, 1)), n); });
  for (const PadMode mode : {PadMode::constant, PadMode::edge, PadMode::reflect, PadMode::wrap}) {
    add("pad", "before", [mode](X x, Size n) { return pad(x, {{n, 0}}, {mode}); });
    add("pad", "after", [mode](X x, Size n) { return pad(x, {{1, n}}, {mode}); });
    add("pad", "both", [mode](X x, Size n) { return pad(x, {{n, n}}, {mode}); });
  }
  add("one_hot", "classes", [](X x, Size n) { return one_hot(x.to(DType::i64), n); });
  add("bincount", "size", [](X x, Size n) { return bincount(x.to(DType::i64), n); });
  add("bincount", "size, with weights", [](X x, Size n) { return bincount(x.to(DType::i64), x, n); });
  add("bincount", "the largest number", [](X, Size n) { return bincount(full({2}, n, DType::i64)); });
  add("bincount", "the largest number, with weights",
      [](X, Size n) { return bincount(full({2}, n, DType::i64), ones({2})); });
  add("histogram", "bins", [](X x, Size n) { return histogram(x, n, 0, 2).counts; });
  add("unique", "size", [](X x, Size n) { return unique(x, {.size = n}).values; });
  add("unique", "size, of nothing", [](X x, Size n) { return unique(x(slice(0, 0)), {.size = n}).counts; });
  add("nonzero", "size", [](X x, Size n) { return nonzero(x, {.size = n}); });
  add("nonzero", "size, of nothing", [](X x, Size n) { return nonzero(x(slice(0, 0)), {.size = n}); });
  add("masked_select", "size", [](X x, Size n) { return masked_select(x, x > 0, {.size = n}); });
}

}  // namespace sluice::testing
