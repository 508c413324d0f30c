// Calls of the functions of operators/.
#include "function_calls.h"

namespace sluice::testing {

/// The functions of the tables, for arrays and numbers in each place.
void add_table_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  const auto inputs = [s](const std::string& dtypes, int n) {
    return [s, bits = dtypes == "bits", n] {
      Arrays made;
      for (int i = 0; i < n; ++i) {
        const NDArray x = FunctionCalls::numbers_of(s) + 0.1 * i;
        made.push_back(bits ? x.to(DType::i64) : x);
      }
      return made;
    };
  };
#define SLUICE_UNARY(Name, name, dtypes, ...) \
  to.add(#name, inputs(#dtypes, 1), [](const Arrays& x) { return Arrays{name(x[0])}; });
#define SLUICE_PREDICATE(Name, name, ...) SLUICE_UNARY(Name, name, arithmetic)
#define SLUICE_WITH_NUMBER(Name, name, dtypes, ...) SLUICE_UNARY(Name, name, dtypes)
#define SLUICE_BINARY(Name, name, dtypes, ...)                                                 \
  to.add(#name, inputs(#dtypes, 2), [](const Arrays& x) { return Arrays{name(x[0], x[1])}; }); \
  to.add(#name, inputs(#dtypes, 1), [](const Arrays& x) { return Arrays{name(x[0], 1)}; });    \
  to.add(#name, inputs(#dtypes, 1), [](const Arrays& x) { return Arrays{name(1, x[0])}; });
#define SLUICE_COMPARISON(Name, name, ...) SLUICE_BINARY(Name, name, arithmetic)
#include "sluice/operators/elementwise_table.inc"
#define SLUICE_REDUCTION(Name, name, ...)                                                      \
  to.add(#name, {s}, [](const Arrays& x) { return Arrays{name(x[0])}; });                      \
  to.add(#name, {s}, [](const Arrays& x) { return Arrays{name(x[0], {1}, {.keep = true})}; }); \
  to.add(#name, {s}, [](const Arrays& x) { return Arrays{name(x[0], Axes(Dims{}))}; });
#include "sluice/operators/reduction_table.inc"
}

void add_elementwise_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  const auto condition = [s] {
    return Arrays{FunctionCalls::numbers_of(s) > 0.6, FunctionCalls::numbers_of(s), FunctionCalls::numbers_of({4})};
  };
  to.add("where", condition, [](const Arrays& x) { return Arrays{where(x[0], x[1], x[2])}; });
  to.add("where", condition, [](const Arrays& x) { return Arrays{where(x[0], x[1], 0), where(x[0], 0, x[2])}; });
  to.add("gelu", {s}, [](const Arrays& x) { return Arrays{gelu(x[0], {.tanh = true})}; });
  to.add("softplus", {s}, [](const Arrays& x) { return Arrays{softplus(x[0], {.beta = 2}), softplus(x[0], {})}; });
  to.add("glu", {s}, [](const Arrays& x) { return Arrays{glu(x[0])}; });
  to.add("clip", {s}, [](const Arrays& x) { return Arrays{clip(x[0], {.low = -9}), clip(x[0], {.high = 9})}; });
  to.add("lerp", {s, s, s}, [](const Arrays& x) { return Arrays{lerp(x[0], x[1], x[2])}; });
  to.add("lerp", {s, s}, [](const Arrays& x) { return Arrays{lerp(x[0], x[1], 0), lerp(x[0], x[1], 1)}; });
  to.add("addcmul", {s, s, s}, [](const Arrays& x) { return Arrays{addcmul(x[0], x[1], x[2])}; });
  to.add("addcdiv", {s, s, s}, [](const Arrays& x) { return Arrays{addcdiv(x[0], x[1], x[2], {.value = 2})}; });
  to.add("isclose", {s, s}, [](const Arrays& x) { return Arrays{isclose(x[0], x[1])}; });
  to.add("allclose", {s, s}, [](const Arrays& x) { return allclose(x[0], x[1]) ? Arrays{} : Arrays{}; });
  to.add("array_equal", {s, s}, [](const Arrays& x) { return array_equal(x[0], x[1]) ? Arrays{} : Arrays{}; });
}

void add_reduction_calls(FunctionCalls& to) {
  const Dims s{3, 4}, one{1, 1};
  to.add("mean", {s}, [](const Arrays& x) { return Arrays{mean(x[0]), mean(x[0], Axes(Dims{}))}; });
  to.add("argmax", {s}, [](const Arrays& x) { return Arrays{argmax(x[0]), argmax(x[0], all)}; });
  to.add("argmin", {s}, [](const Arrays& x) { return Arrays{argmin(x[0]), argmin(x[0], all)}; });
  to.add("any", {s}, [](const Arrays& x) { return Arrays{any(x[0]), any(x[0], Axes(Dims{}))}; });
  to.add("all", {s}, [](const Arrays& x) { return Arrays{all(x[0]), all(x[0], 1), all(x[0], 1, {.keep = true})}; });
  to.add(
      "all", [one] { return Arrays{FunctionCalls::numbers_of(one) > 0}; },
      [](const Arrays& x) { return Arrays{all(x[0], Axes(Dims{}))}; });
  to.add("count_nonzero", {s}, [](const Arrays& x) { return Arrays{count_nonzero(x[0], Axes(Dims{}))}; });
  to.view("sum_to", {s}, [](const Arrays& x) { return Arrays{sum_to(x[0], {4}), sum_to(x[0], x[0].shape())}; });
  for (const Dims& shape : {s, one, Dims{}}) {
    to.add("softmax", {shape}, [](const Arrays& x) { return Arrays{softmax(x[0]), softmax(x[0], 0)}; });
    to.add("log_softmax", {shape}, [](const Arrays& x) { return Arrays{log_softmax(x[0]), log_softmax(x[0], 0)}; });
    to.add("cumsum", {shape}, [](const Arrays& x) { return Arrays{cumsum(x[0]), cumsum(x[0], 0, {.reverse = true})}; });
    to.add("cumprod", {shape}, [](const Arrays& x) { return Arrays{cumprod(x[0])}; });
    to.add("logcumsumexp", {shape}, [](const Arrays& x) { return Arrays{logcumsumexp(x[0])}; });
    to.add("linear_scan", {shape, shape}, [](const Arrays& x) { return Arrays{linear_scan(x[0], x[1])}; });
    to.add("cummax", {shape}, [](const Arrays& x) { return Arrays{cummax(x[0]).values, cummax(x[0]).indices}; });
    to.add("cummin", {shape}, [](const Arrays& x) { return Arrays{cummin(x[0]).values, cummin(x[0]).indices}; });
    to.add("sort", {shape}, [](const Arrays& x) { return Arrays{sort(x[0])}; });
    to.add("argsort", {shape}, [](const Arrays& x) { return Arrays{argsort(x[0])}; });
    to.add("sort_with_indices", {shape}, [](const Arrays& x) { return Arrays{sort_with_indices(x[0]).values}; });
    to.add("topk", {shape}, [](const Arrays& x) { return Arrays{topk(x[0], 1).values, topk(x[0], 1).indices}; });
    to.add("unique", {shape}, [](const Arrays& x) {
      const Unique of = unique(x[0]), padded = unique(x[0], {.size = 3});
      return Arrays{of.values, of.inverse, of.counts, padded.values, padded.inverse, padded.counts};
    });
    to.add("variance", {shape}, [](const Arrays& x) { return Arrays{variance(x[0], Axes(Dims{}))}; });
    to.add("stddev", {shape}, [](const Arrays& x) { return Arrays{stddev(x[0], Axes(Dims{}))}; });
    to.add("norm", {shape}, [](const Arrays& x) {
      return Arrays{norm(x[0], Axes(Dims{})), norm(x[0], Axes(Dims{}), {.ord = 1})};
    });
    to.add("quantile", {shape}, [](const Arrays& x) {
      return Arrays{quantile(x[0], 0.3, Axes(Dims{})), quantile(x[0], {0.3}, Axes(Dims{}))};
    });
    to.add("median", {shape}, [](const Arrays& x) { return Arrays{median(x[0], Axes(Dims{}))}; });
    to.add("histogram", {shape}, [](const Arrays& x) {
      return Arrays{histogram(x[0], 3, 0, 2).counts, histogram(x[0], 3, 0, 2).edges};
    });
    to.add("nonzero", {shape}, [](const Arrays& x) { return Arrays{nonzero(x[0]), nonzero(x[0], {.size = 2})}; });
  }
  for (const Dims& shape : {s, one, Dims{0, 2}}) {
    to.add("diff", {shape}, [](const Arrays& x) { return Arrays{diff(x[0]), diff(x[0], 0), diff(x[0], 9)}; });
  }
}

void add_indexing_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  const auto with_places = [](const Dims& shape, const Dims& places, bool source = true) {
    return [=] {
      Arrays made{FunctionCalls::numbers_of(shape), FunctionCalls::places_of(places, shape[0])};
      if (source) made.push_back(FunctionCalls::numbers_of(places));
      return made;
    };
  };
  for (const Dims& shape : {s, Dims{1, 1}}) {
    const Dims row{shape[0]};
    to.add("gather", with_places(shape, shape, false), [](const Arrays& x) { return Arrays{gather(x[0], 0, x[1])}; });
    to.add("scatter", with_places(shape, shape), [](const Arrays& x) { return Arrays{scatter(x[0], 0, x[1], x[2])}; });
    to.add("scatter", with_places(shape, shape, false),
           [](const Arrays& x) { return Arrays{scatter(x[0], 0, x[1], 0.5)}; });
    to.add("scatter_add", with_places(shape, shape),
           [](const Arrays& x) { return Arrays{scatter_add(x[0], 0, x[1], x[2])}; });
    to.add("index_select", with_places(shape, row, false),
           [](const Arrays& x) { return Arrays{index_select(x[0], 0, x[1])}; });
    to.add(
        "index_add",
        [shape, row] {
          return Arrays{FunctionCalls::numbers_of(shape), FunctionCalls::places_of(row, shape[0]),
                        FunctionCalls::numbers_of(shape)};
        },
        [](const Arrays& x) { return Arrays{index_add(x[0], 0, x[1], x[2])}; });
    to.add("take", with_places(shape, row, false), [](const Arrays& x) { return Arrays{take(x[0], x[1])}; });
    to.add("take_rows", with_places(shape, row, false), [](const Arrays& x) { return Arrays{take_rows(x[0], x[1])}; });
    to.add("take_along_axis", with_places(shape, shape, false),
           [](const Arrays& x) { return Arrays{take_along_axis(x[0], x[1], 0)}; });
    to.add("embedding", with_places(shape, row, false), [](const Arrays& x) { return Arrays{embedding(x[0], x[1])}; });
    to.add("operator()", with_places(shape, row, false), [](const Arrays& x) {
      return Arrays{x[0](x[1]), x[0](x[1], all), x[0](newaxis, x[1])};
    });
    const auto masked = [shape] {
      return Arrays{FunctionCalls::numbers_of(shape), FunctionCalls::numbers_of(shape) > 0.4};
    };
    to.add("operator()", masked, [](const Arrays& x) { return Arrays{x[0](x[1])}; });
    to.add("masked_fill", masked, [](const Arrays& x) { return Arrays{masked_fill(x[0], x[1], 7)}; });
    to.add("masked_select", masked, [](const Arrays& x) {
      return Arrays{masked_select(x[0], x[1]), masked_select(x[0], x[1], {.size = 2})};
    });
  }
  to.add("searchsorted", {{4}, {3}}, [](const Arrays& x) { return Arrays{searchsorted(x[0], x[1])}; });
  const auto counted = [] { return Arrays{FunctionCalls::places_of({5}, 3), FunctionCalls::numbers_of({5})}; };
  to.add("bincount", counted, [](const Arrays& x) { return Arrays{bincount(x[0], x[1]), bincount(x[0], x[1], 4)}; });
  to.add(
      "bincount", [] { return Arrays{FunctionCalls::places_of({5}, 3)}; },
      [](const Arrays& x) {
        return Arrays{bincount(x[0]), bincount(x[0], 4)};
      });
  to.add(
      "one_hot", [] { return Arrays{FunctionCalls::places_of({5}, 3)}; },
      [](const Arrays& x) { return Arrays{one_hot(x[0], 3)}; });
}

void add_rearranging_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  for (const Dims& shape : {s, Dims{1, 4}, Dims{1, 1}, Dims{0, 3}}) {
    to.add("concat", {shape, shape}, [](const Arrays& x) { return Arrays{concat({x[0], x[1]}, 1)}; });
    to.add("concat", {shape}, [](const Arrays& x) { return Arrays{concat({x[0]})}; });
    to.add("stack", {shape, shape}, [](const Arrays& x) { return Arrays{stack({x[0], x[1]}, 1), stack({x[0]})}; });
    to.add("roll", {shape}, [](const Arrays& x) { return Arrays{roll(x[0], 1), roll(x[0], 0)}; });
    to.add("tile", {shape}, [](const Arrays& x) {
      return Arrays{tile(x[0], {3, 1}), tile(x[0], {2}), tile(x[0], {1, 1}), tile(x[0], {2, 1, 3}), tile(x[0], Dims{})};
    });
    to.add("repeat", {shape}, [](const Arrays& x) {
      return Arrays{repeat(x[0], 3), repeat(x[0], 1), repeat(x[0], 2, 1), repeat(x[0], 0)};
    });
    to.add("tril", {shape}, [](const Arrays& x) { return Arrays{tril(x[0]), tril(x[0], 9)}; });
    to.add("triu", {shape}, [](const Arrays& x) { return Arrays{triu(x[0]), triu(x[0], -9)}; });
    to.add("pad", {shape}, [](const Arrays& x) {
      Arrays made{pad(x[0], {{0, 0}, {0, 0}}), pad(x[0], {{1, 0}, {0, 2}})};
      for (const PadMode mode : {PadMode::edge, PadMode::reflect, PadMode::wrap}) {
        made.push_back(pad(x[0], {{0, 0}, {0, 0}}, {mode}));
        if (x[0].size(1) > 1) made.push_back(pad(x[0], {{0, 0}, {1, 1}}, {mode}));
      }
      return made;
    });
    to.view("split", {shape}, [](const Arrays& x) { return split(x[0], 2, 1); });
    to.view("split", {shape}, [](const Arrays& x) {
      return split(x[0], std::vector<std::int64_t>{x[0].defined() ? x[0].size(0) : 1, 0});
    });
    to.view("chunk", {shape}, [](const Arrays& x) { return chunk(x[0], 2, 1); });
  }
  to.view("meshgrid", {{3}, {1}}, [](const Arrays& x) { return meshgrid({x[0], x[1]}); });
}

void add_product_calls(FunctionCalls& to) {
  const Dims s{3, 3};
  to.add("matmul", {s, s}, [](const Arrays& x) { return Arrays{matmul(x[0], x[1])}; });
  to.add("matmul", {{3}, s}, [](const Arrays& x) { return Arrays{matmul(x[0], x[1])}; });
  to.add("matmul", {{2, 3, 3}, {2, 3, 3}}, [](const Arrays& x) { return Arrays{matmul(x[0], x[1])}; });
  to.add("dot", {{3}, {3}}, [](const Arrays& x) { return Arrays{dot(x[0], x[1])}; });
  to.add("outer", {{3}, {1}}, [](const Arrays& x) { return Arrays{outer(x[0], x[1])}; });
  for (const Dims& shape : {s, Dims{1, 1}}) {
    to.add("einsum", {shape}, [](const Arrays& x) {
      Arrays made;
      for (const char* text : {"ij->ij", "ij", "ij->ji", "ii->i", "ii", "ij->i", "i...->...i"}) {
        made.push_back(einsum(text, {x[0]}));
      }
      return made;
    });
    to.add("einsum", {shape, shape}, [](const Arrays& x) {
      return Arrays{einsum("ij,jk", {x[0], x[1]}), einsum("ij,ij->ji", {x[0], x[1]})};
    });
  }
  for (const Dims& shape : {Dims{2, 3}, Dims{3}, Dims{2, 2, 3}}) {
    to.add("linear", {shape, {4, 3}, {4}}, [](const Arrays& x) {
        return Arrays{linear(x[0], x[1], x[2]), linear(x[0], x[1], x[2], {.relu = true})};
      }).optional = {2};
  }
  const auto matrices = [] { return Arrays{FunctionCalls::matrix_of(3)}; };
  to.add("cholesky", matrices, [](const Arrays& x) { return Arrays{cholesky(x[0])}; });
  to.add("qr", matrices, [](const Arrays& x) { return Arrays{qr(x[0]).q, qr(x[0]).r}; });
  to.add("svd", matrices, [](const Arrays& x) { return Arrays{svd(x[0]).u, svd(x[0]).s, svd(x[0]).vt}; });
  to.add("eigh", matrices, [](const Arrays& x) { return Arrays{eigh(x[0]).values, eigh(x[0]).vectors}; });
  to.add("inv", matrices, [](const Arrays& x) { return Arrays{inv(x[0])}; });
  to.add("det", matrices, [](const Arrays& x) { return Arrays{det(x[0])}; });
  to.add("slogdet", matrices, [](const Arrays& x) { return Arrays{slogdet(x[0]).sign, slogdet(x[0]).logabs}; });
  for (const Dims& shape : {Dims{3, 2}, Dims{3}}) {
    to.add(
        "solve",
        [shape] {
          return Arrays{FunctionCalls::matrix_of(3), FunctionCalls::numbers_of(shape)};
        },
        [](const Arrays& x) { return Arrays{solve(x[0], x[1])}; });
  }
}

}  // namespace sluice::testing
