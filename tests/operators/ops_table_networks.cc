// Cases of the table: products of stacks of matrices, losses, operators of networks. Part of ops_table.cc.
#include "ops_table.h"
#include "sluice/operators/attributes.h"

namespace sluice::testing {

static void add_product_cases(std::vector<OperatorCase>& list) {
  const auto product = [&](std::string name, Dims a, Dims b, bool ta = false, bool tb = false) {
    list.push_back({name, {a, b}, [ta, tb](const Arrays& x) {
                      return matmul(x[0], x[1], {.transpose_a = ta, .transpose_b = tb});
                    }});
  };
  product("batch_matmul", {2, 3, 4}, {2, 4, 5});
  product("batch_matmul, a transposed", {2, 4, 3}, {2, 4, 5}, true);
  product("batch_matmul, b transposed", {2, 3, 4}, {2, 5, 4}, false, true);
  product("batch_matmul, both transposed", {2, 4, 3}, {2, 5, 4}, true, true);
  product("batch_matmul, broadcast", {3, 1, 2, 4}, {2, 4, 3});
  product("batch_matmul of a matrix and a stack", {3, 4}, {2, 2, 4, 5});
  product("batch_matmul of a stack and a matrix", {2, 3, 4}, {4, 5});
  product("batch_matmul of a stack and a transposed matrix", {2, 3, 4}, {5, 4}, false, true);
  product("batch_matmul of a transposed stack and a matrix", {2, 4, 3}, {4, 5}, true);
  product("batch_matmul of rank 8", {1, 2, 1, 1, 2, 1, 2, 3}, {2, 1, 1, 1, 2, 1, 3, 2});
  product("matmul of vectors", {6}, {6});
  product("matmul of a vector and a matrix", {4}, {4, 3});
  product("matmul of a matrix and a vector", {3, 4}, {4});
  product("matmul of a vector and a stack", {4}, {2, 4, 3});
  product("matmul of a stack and a vector", {2, 3, 4}, {4});
  list.push_back({"batch_matmul of views", {{4, 3, 2}, {5, 8, 2}}, [](const Arrays& x) {
                    return matmul(x[0].permute({2, 1, 0}), x[1].permute({2, 1, 0})(all, slice(0, 8, 2), reversed()));
                  }});
  list.push_back({"batch_matmul of broadcast views", {{3, 4}, {4, 5}}, [](const Arrays& x) {
                    return matmul(x[0].broadcast_to({2, 3, 4}), x[1].broadcast_to({2, 4, 5}));
                  }});
  list.push_back({"linear of a stack", {{2, 3, 4}, {5, 4}, {5}}, [](const Arrays& x) {
                    return square(linear(x[0], x[1], x[2], {.relu = true}));
                  }});
  list.push_back({"linear of a vector", {{4}, {5, 4}}, [](const Arrays& x) { return square(linear(x[0], x[1])); }});
  list.push_back({"dot", {{5}, {5}}, [](const Arrays& x) { return square(dot(x[0], x[1])); }});
  list.push_back({"outer", {{3}, {4}}, [](const Arrays& x) { return square(outer(x[0], x[1])); }});
  const auto sums = [&](std::string text, std::vector<Dims> shapes) {
    list.push_back({"einsum " + text, std::move(shapes), [text](const Arrays& x) { return einsum(text, x); }});
  };
  sums("bij,bjk->bik", {{2, 3, 4}, {2, 4, 5}});
  sums("bhqd,bkhd->bhqk", {{2, 2, 3, 4}, {2, 5, 2, 4}});
  sums("i,j->ij", {{3}, {4}});
  sums("ij->ji", {{3, 4}});
  sums("ij->j", {{3, 4}});
  sums("ii->i", {{4, 4}});
  sums("ij,jk,kl->il", {{2, 3}, {3, 4}, {4, 2}});
  sums("...ij,...jk->...ik", {{2, 1, 3, 4}, {3, 4, 2}});
  sums("ij,ij", {{3, 4}, {3, 4}});
  sums("ij,j->i", {{3, 4}, {1}});
}

static void add_loss_cases(std::vector<OperatorCase>& list) {
  const Dims s{5, 7};
  const auto loss = [&](const std::string& name, auto f, auto options, double low = -2, double high = 2) {
    for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
      options.reduction = reduction;
      const char* const how[] = {"", ", sum", ", none"};
      list.push_back({name + how[static_cast<int>(reduction)],
                      {s, s},
                      [f, options](const Arrays& x) { return square(f(x[0], x[1], options)); },
                      low,
                      high});
    }
    options.reduction = Reduction::mean;
    options.divisor = 20;
    list.push_back({name + " of a row, divisor",
                    {s, {7}},
                    [f, options](const Arrays& x) { return f(x[0], x[1], options); },
                    low,
                    high});
  };
#define FUNCTION(name) [](auto&&... x) { return name(x...); }
  loss("mse_loss", FUNCTION(mse_loss), LossOptions());
  loss("l1_loss", FUNCTION(l1_loss), LossOptions());
  loss("huber_loss", FUNCTION(huber_loss), HuberOptions{.delta = 0.7});
  loss("bce_with_logits", FUNCTION(bce_with_logits), BceOptions(), 0.1, 0.9);
  loss("kl_div", FUNCTION(kl_div), LossOptions(), 0.1, 0.9);
#undef FUNCTION
  list.push_back({"bce_with_logits, weighted",
                  {s, s, {7}},
                  [](const Arrays& x) { return bce_with_logits(x[0], x[1], {.positive_weight = x[2]}); },
                  0.1,
                  0.9});
  list.push_back({"nll_loss", {s}, [](const Arrays& x) { return square(nll_loss(x[0], labels_for(5, 7))); }});
  list.push_back({"nll_loss, weighted",
                  {s, {7}},
                  [](const Arrays& x) { return nll_loss(x[0], labels_for(5, 6), {.weight = x[1]}); },
                  0.3,
                  2});
  list.push_back(
      {"cross_entropy, weighted and smoothed",
       {s, {7}},
       [](const Arrays& x) { return cross_entropy(x[0], labels_for(5, 7), {.weight = x[1], .label_smoothing = 0.1}); },
       0.3,
       2});
  for (const std::int64_t parts : {2, 3}) {
    list.push_back({.name = "class_parts of " + std::to_string(parts),
                    .shapes = {s},
                    .call =
                        [parts](const Arrays& x) {
                          const NDArray labels = labels_for(5, 7);
                          const Operator& row = Registry::instance().get("class_parts");
                          return apply(row, {&x[0], &labels}, ClassPartsAttributes{7, parts, 0, parts});
                        },
                    .second_order = false});
  }
  list.push_back({"cross_entropy of images", {{2, 4, 3, 2}}, [](const Arrays& x) {
                    return cross_entropy(x[0], labels_for(12, 4).reshape({2, 3, 2})) +
                           cross_entropy(x[0], labels_for(12, 4).reshape({2, 3, 2}), 20);
                  }});
  list.push_back(
      {"cross_entropy of images, none", {{2, 4, 3, 2}}, [](const Arrays& x) {
         return square(cross_entropy(x[0], labels_for(12, 4).reshape({2, 3, 2}), {.reduction = Reduction::none}));
       }});
}

static void add_normalization_cases(std::vector<OperatorCase>& list) {
  list.push_back(
      {"layer_norm", {{4, 6}, {6}, {6}}, [](const Arrays& x) { return square(layer_norm(x[0], x[1], x[2])); }});
  list.push_back(
      {"layer_norm, weight alone", {{3, 4, 6}, {6}}, [](const Arrays& x) { return square(layer_norm(x[0], x[1])); }});
  list.push_back(
      {"layer_norm, bias alone", {{4, 6}, {6}}, [](const Arrays& x) { return square(layer_norm(x[0], {}, x[1])); }});
  list.push_back({"layer_norm of a transposed slice, fixed weight", {{9, 40}, {5}}, [](const Arrays& x) {
                    return square(layer_norm(x[0](slice(0, 9, 2)).transpose(), ones({5}, x[0].dtype()), x[1]));
                  }});
  list.push_back({"layer_norm, many rows of more than a block", {{70, 70}, {70, 70}, {70, 70}}, [](const Arrays& x) {
                    return square(layer_norm(x[0], x[1](0), x[2](0)) + layer_norm(x[0], x[1], x[2], {.axes = 2}));
                  }});
  list.push_back({"layer_norm over two axes", {{2, 3, 4}}, [](const Arrays& x) {
                    return exp(layer_norm(x[0], {}, {}, {.axes = 2}));
                  }});
  list.push_back({"rms_norm", {{4, 6}, {6}}, [](const Arrays& x) { return square(rms_norm(x[0], x[1])); }});
  list.push_back({"group_norm", {{2, 4, 3, 2}, {4}, {4}}, [](const Arrays& x) {
                    return square(group_norm(x[0], 2, x[1], x[2]));
                  }});
  list.push_back({"batch_norm, training", {{3, 4, 2, 2}, {4}, {4}}, [](const Arrays& x) {
                    return square(batch_norm(x[0], {}, x[1], x[2]));
                  }});
  list.push_back({"batch_norm, weight alone, planes that are rows", {{2, 3, 9, 9}, {3}}, [](const Arrays& x) {
                    return square(batch_norm(x[0], {}, x[1]));
                  }});
  list.push_back({"batch_norm, bias alone, of a slice", {{9, 3, 8}, {3}}, [](const Arrays& x) {
                    return square(batch_norm(x[0](slice(0, 9, 2)), {}, {}, x[1]));
                  }});
  list.push_back({"batch_norm, evaluation",
                  {{3, 4, 2, 2}, {4}, {4}},
                  [](const Arrays& x) {
                    return square(batch_norm(x[0], {arange(4).to(x[0].dtype()), arange(1, 5).to(x[0].dtype())}, x[1],
                                             x[2], {.training = false}));
                  },
                  0.5,
                  2});
}

static void add_layer_cases(std::vector<OperatorCase>& list) {
  for (const bool biased : {true, false}) {
    list.push_back(
        {std::string("linear_rows") + (biased ? "" : ", no bias"), {{2, 3, 4}, {5, 4}, {5}}, [biased](const Arrays& x) {
           const Operator& row = Registry::instance().get("linear_rows");
           if (!biased) return apply(row, {&x[0], &x[1]}) * x[2];
           return square(apply(row, {&x[0], &x[1], &x[2]}));
         }});
  }
  list.push_back({"dropout", {{5, 7}}, [](const Arrays& x) {
                    RandomStream stream(6);
                    return square(dropout(x[0], 0.4, stream));
                  }});
  list.push_back({"embedding", {{5, 3}}, [](const Arrays& x) {
                    return square(embedding(x[0], from(std::vector<std::int64_t>{4, 0, 4, 1}, {2, 2})));
                  }});
  list.push_back({"lstm_cell", {{2, 3}, {2, 2}, {2, 2}, {8, 3}, {8, 2}, {8}, {8}}, [](const Arrays& x) {
                    const LstmState next = lstm_cell(x[0], {x[1], x[2]}, {x[3], x[4], x[5], x[6]});
                    return concat({next.hidden, next.cell}, 1);
                  }});
  list.push_back({"gru_cell", {{2, 3}, {2, 2}, {6, 3}, {6, 2}, {6}, {6}}, [](const Arrays& x) {
                    return gru_cell(x[0], x[1], {x[2], x[3], x[4], x[5]});
                  }});
  for (const std::int64_t steps : {3, 1}) {
    list.push_back({steps == 3 ? "lstm" : "lstm of one step",
                    {{steps, 2, 3}, {2, 2}, {2, 2}, {8, 3}, {8, 2}, {8}},
                    [](const Arrays& x) {
                      const LstmResult y = lstm(x[0], {x[1], x[2]}, {x[3], x[4], {}, x[5]});
                      return concat({y.outputs, stack({y.state.hidden, y.state.cell})}, 0);
                    }});
  }
  list.push_back({"gru", {{3, 2, 3}, {2, 2}, {6, 3}, {6, 2}, {6}, {6}}, [](const Arrays& x) {
                    const GruResult y = gru(x[0], x[1], {x[2], x[3], x[4], x[5]});
                    return concat({y.outputs, y.hidden.unsqueeze(0)}, 0);
                  }});
  list.push_back({"gru of one step, no biases", {{1, 2, 3}, {2, 2}, {6, 3}, {6, 2}}, [](const Arrays& x) {
                    return gru(x[0], x[1], {x[2], x[3]}).outputs;
                  }});
  for (const bool interleaved : {false, true}) {
    list.push_back({std::string("rotary_embedding") + (interleaved ? ", interleaved" : ""),
                    {{2, 3, 4}},
                    [interleaved](const Arrays& x) {
                      return square(rotary_embedding(x[0], {.first = 2, .interleaved = interleaved}) + 1);
                    }});
  }
}

static void add_window_cases(std::vector<OperatorCase>& list) {
  list.push_back({"unfold2d", {{2, 3, 5, 6}}, [](const Arrays& x) { return square(unfold2d(x[0], 3)); }});
  list.push_back({"unfold2d, all options", {{2, 1, 5, 7}}, [](const Arrays& x) {
                    return square(unfold2d(x[0], {2, 3}, {.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}}));
                  }});
  list.push_back({"unfold2d of a view", {{4, 5, 3, 2}}, [](const Arrays& x) {
                    return square(unfold2d(x[0].permute({3, 2, 1, 0}), 2, {.stride = 3, .padding = 2}));
                  }});
  const auto conv = [&](std::string name, Dims x, Dims w, Conv2dOptions options) {
    list.push_back({"conv2d, " + name, {x, w, {w[0]}}, [options](const Arrays& a) {
                      return square(conv2d(a[0], a[1], a[2], options));
                    }});
  };
  conv("two groups", {2, 4, 4, 3}, {2, 2, 2, 3}, {.padding = 1, .groups = 2});
  conv("depthwise", {2, 3, 4, 4}, {3, 1, 3, 3}, {.groups = 3});
  conv("dilated", {1, 2, 6, 5}, {3, 2, 2, 2}, {.relu = true, .dilation = {3, 2}});
  conv("two strides", {1, 2, 6, 5}, {2, 2, 3, 2}, {.stride = {2, 1}, .padding = {1, 0}});
  conv("two paddings", {1, 2, 4, 5}, {2, 2, 3, 3}, {.padding = {1, 2}});
  const auto conv1 = [&](std::string name, Dims x, Dims w, Conv1dOptions options) {
    list.push_back(
        {"conv1d" + name, {x, w, {w[0]}}, [options](const Arrays& a) { return conv1d(a[0], a[1], a[2], options); }});
  };
  conv1("", {2, 3, 7}, {4, 3, 3}, {});
  conv1(", strided and padded", {2, 3, 7}, {4, 3, 3}, {.stride = 2, .padding = 2});
  conv1(", dilated groups", {2, 4, 7}, {4, 2, 3}, {.padding = 1, .dilation = 2, .groups = 2});
  const auto transposed = [&](std::string name, Dims x, Dims w, std::int64_t out, ConvTranspose2dOptions options) {
    list.push_back({"conv_transpose2d" + name, {x, w, {out}}, [options](const Arrays& a) {
                      return square(conv_transpose2d(a[0], a[1], a[2], options));
                    }});
  };
  transposed("", {2, 3, 3, 4}, {3, 2, 3, 2}, 2, {});
  transposed(", stride 2", {1, 2, 3, 3}, {2, 3, 3, 3}, 3, {.stride = 2, .padding = 1, .output_padding = 1});
  transposed(", all options", {2, 4, 3, 2}, {4, 2, 2, 3}, 4,
             {.stride = {2, 3}, .padding = {1, 0}, .output_padding = {1, 2}, .dilation = {2, 1}, .groups = 2});
  list.push_back({"conv_transpose1d", {{2, 4, 5}, {4, 1, 3}}, [](const Arrays& a) {
                    return square(conv_transpose1d(a[0], a[1], {}, {.stride = 2, .padding = 1, .groups = 2}));
                  }});
  list.push_back({"avg_pool2d, ceil_mode", {{2, 1, 6, 5}}, [](const Arrays& x) {
                    return square(avg_pool2d(x[0], {3, 2}, {.stride = 2, .padding = 1, .ceil_mode = true})) +
                           avg_pool2d(x[0], {3, 2},
                                      {.stride = 2, .padding = 1, .count_padding = false, .ceil_mode = true});
                  }});
  list.push_back({"adaptive_max_pool2d", {{2, 3, 5, 6}}, [](const Arrays& x) {
                    return square(adaptive_max_pool2d(x[0], {3, 2}));
                  }});
  list.push_back({"avg_pool2d", {{2, 3, 6, 4}}, [](const Arrays& x) { return square(avg_pool2d(x[0], 2)); }});
  for (const bool count : {false, true}) {
    list.push_back({std::string("avg_pool2d, overlapping") + (count ? "" : ", without padding"),
                    {{2, 1, 7, 5}},
                    [count](const Arrays& x) {
                      return square(avg_pool2d(x[0], {3, 2}, {.stride = {2, 1}, .padding = 1, .count_padding = count}));
                    }});
  }
  list.push_back({"adaptive_avg_pool2d", {{2, 3, 6, 4}}, [](const Arrays& x) {
                    return square(adaptive_avg_pool2d(x[0], {3, 1}));
                  }});
  list.push_back({"adaptive_avg_pool2d of uneven windows", {{2, 2, 5, 7}}, [](const Arrays& x) {
                    return square(adaptive_avg_pool2d(x[0], {3, 2}));
                  }});
}

static void add_attention_cases(std::vector<OperatorCase>& list) {
  const auto attends = [&](std::string name, Dims q, Dims k, Dims v, auto options) {
    list.push_back(
        {"attention" + name, {q, k, v}, [options](const Arrays& x) { return attention(x[0], x[1], x[2], options()); }});
  };
  const auto with = [](bool causal, double scale = 0) {
    return [causal, scale] { return AttentionOptions{.causal = causal, .scale = scale}; };
  };
  attends("", {2, 2, 3, 4}, {2, 2, 5, 4}, {2, 2, 5, 3}, with(false));
  attends(", fewer queries than keys, causal, grouped heads", {1, 4, 3, 2}, {1, 2, 5, 2}, {1, 2, 5, 3}, with(true));
  attends(", causal", {1, 2, 4, 2}, {1, 2, 4, 2}, {1, 2, 4, 2}, with(true, 0.7));
  attends(", more queries than keys, causal", {3, 4, 2}, {3, 2, 2}, {3, 2, 2}, with(true));
  attends(" of matrices", {3, 2}, {4, 2}, {4, 3}, with(false));
  attends(", more than a block of each", {70, 2}, {130, 2}, {130, 2}, with(true));
  attends(", masked", {2, 2, 3, 2}, {2, 2, 4, 2}, {2, 2, 4, 2}, [] {
    // The second query sees nothing.
    return AttentionOptions{
        .mask = from({true, false, true, true, false, false, false, false, false, true, true, false}, {3, 4})};
  });
  list.push_back(
      {"attention, a number for each score", {{2, 2, 3, 2}, {2, 1, 4, 2}, {2, 1, 4, 2}}, [](const Arrays& x) {
         RandomStream stream(12);
         const NDArray mask = uniform({2, 1, 4}, stream, -1, 1, DType::f64).to(x[0].dtype());
         return attention(x[0], x[1], x[2], {.mask = mask});
       }});
  list.push_back(
      {"attention of views", {{3, 2, 2, 2}, {4, 2, 2, 2}, {4, 2, 2, 2}}, [](const Arrays& x) {
         return attention(x[0].permute({1, 2, 0, 3}), x[1].permute({1, 2, 0, 3}), x[2].permute({2, 1, 0, 3}));
       }});
}

void add_network_cases(std::vector<OperatorCase>& list) {
  add_product_cases(list);
  add_loss_cases(list);
  add_normalization_cases(list);
  add_layer_cases(list);
  add_window_cases(list);
  add_attention_cases(list);
}

}  // namespace sluice::testing
