// Calls of the functions of operators/ for networks: convolutions, normalisation, losses, recurrent cells, steps.
//
#include "function_calls.h"

namespace sluice::testing {

void add_image_calls(FunctionCalls& to) {
  const Dims image{1, 2, 5, 5}, weight{2, 2, 3, 3};
  to.add("conv2d", {image, weight, {2}}, [](const Arrays& x) {
      return Arrays{conv2d(x[0], x[1], x[2]), conv2d(x[0], x[1], x[2], {.padding = {1, 0}, .relu = true}),
                    conv2d(x[0], x[1], x[2], {.stride = {1, 2}})};
    }).optional = {2};
  to.add("conv1d", {{1, 2, 5}, {2, 2, 3}, {2}}, [](const Arrays& x) {
      return Arrays{conv1d(x[0], x[1], x[2]), conv1d(x[0], x[1], x[2], {.padding = 1})};
    }).optional = {2};
  to.add("conv_transpose2d", {image, weight, {2}}, [](const Arrays& x) {
      return Arrays{conv_transpose2d(x[0], x[1], x[2]), conv_transpose2d(x[0], x[1], x[2], {.stride = {1, 2}})};
    }).optional = {2};
  to.add("conv_transpose1d", {{1, 2, 5}, {2, 2, 3}, {2}}, [](const Arrays& x) {
      return Arrays{conv_transpose1d(x[0], x[1], x[2])};
    }).optional = {2};
  for (const Dims& shape : {image, Dims{1, 1, 1, 1}}) {
    const std::int64_t k = shape[2] > 1 ? 2 : 1;
    to.add("unfold2d", {shape}, [k](const Arrays& x) { return Arrays{unfold2d(x[0], k), unfold2d(x[0], 1)}; });
    to.add("max_pool2d", {shape}, [k](const Arrays& x) {
      return Arrays{max_pool2d(x[0], k), max_pool2d(x[0], {1, k}, {}), max_pool2d(x[0], 1)};
    });
    to.add("avg_pool2d", {shape}, [k](const Arrays& x) {
      return Arrays{avg_pool2d(x[0], k), avg_pool2d(x[0], 1), avg_pool2d(x[0], 1, {.ceil_mode = true})};
    });
    to.add("adaptive_avg_pool2d", {shape}, [](const Arrays& x) {
      return Arrays{adaptive_avg_pool2d(x[0], 2), adaptive_avg_pool2d(x[0], {x[0].size(2), x[0].size(3)})};
    });
    to.add("adaptive_max_pool2d", {shape}, [](const Arrays& x) {
      return Arrays{adaptive_max_pool2d(x[0], 2), adaptive_max_pool2d(x[0], {x[0].size(2), x[0].size(3)})};
    });
  }
}

void add_normalisation_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  to.add("layer_norm", {s, {4}, {4}}, [](const Arrays& x) { return Arrays{layer_norm(x[0], x[1], x[2])}; }).optional = {
      1, 2};
  to.add("rms_norm", {s, {4}}, [](const Arrays& x) { return Arrays{rms_norm(x[0], x[1])}; }).optional = {1};
  to.add("group_norm", {s, {4}, {4}}, [](const Arrays& x) {
      return Arrays{group_norm(x[0], 2, x[1], x[2])};
    }).optional = {1, 2};
  // In training both statistics may be empty handles, and one alone is refused.
  to.add("batch_norm", {s, {4}, {4}}, [](const Arrays& x) {
      return Arrays{batch_norm(x[0], {}, x[1], x[2])};
    }).optional = {1, 2};
  to.add("batch_norm", {{4}, {4}}, [s](const Arrays& x) {
    return Arrays{batch_norm(FunctionCalls::numbers_of(s), {x[0], x[1]}, {}, {}, {.training = false})};
  });
  to.list().back().says = "needs both running statistics or none";
  to.add("attention", {{3, 2}, {3, 2}, {3, 2}, {3, 3}}, [](const Arrays& x) {
      return Arrays{attention(x[0], x[1], x[2], {.mask = x[3]})};
    }).optional = {3};
}

void add_network_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  for (const double p : {0.5, 0.0, 1.0}) {
    to.view("dropout", {s}, [p](const Arrays& x) {
      RandomStream stream(1);
      return Arrays{dropout(x[0], p, stream), dropout(x[0], p, stream, {.training = false})};
    });
  }
  to.add("rotary_embedding", {s}, [](const Arrays& x) {
    return Arrays{rotary_embedding(x[0]), rotary_embedding(x[0], {.interleaved = true})};
  });
  const std::vector<Dims> lstm_of{{3, 4}, {3, 2}, {3, 2}, {8, 4}, {8, 2}, {8}, {8}};
  const auto steps = [](std::vector<Dims> of) {
    of[0] = {1, 3, 4};
    return of;
  };
  to.add("lstm_cell", lstm_of, [](const Arrays& x) {
      const LstmState y = lstm_cell(x[0], {x[1], x[2]}, {x[3], x[4], x[5], x[6]});
      return Arrays{y.hidden, y.cell};
    }).optional = {5, 6};
  to.add("lstm", steps(lstm_of), [](const Arrays& x) {
      const LstmResult y = lstm(x[0], {x[1], x[2]}, {x[3], x[4], x[5], x[6]});
      return Arrays{y.outputs, y.state.hidden, y.state.cell};
    }).optional = {5, 6};
  const std::vector<Dims> gru_of{{3, 4}, {3, 2}, {6, 4}, {6, 2}, {6}, {6}};
  to.add("gru_cell", gru_of, [](const Arrays& x) {
      return Arrays{gru_cell(x[0], x[1], {x[2], x[3], x[4], x[5]})};
    }).optional = {4, 5};
  to.add("gru", steps(gru_of), [](const Arrays& x) {
      const GruResult y = gru(x[0], x[1], {x[2], x[3], x[4], x[5]});
      return Arrays{y.outputs, y.hidden};
    }).optional = {4, 5};
}

void add_loss_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    to.add("mse_loss", {s, s}, [=](const Arrays& x) { return Arrays{mse_loss(x[0], x[1], {reduction})}; });
    to.add("l1_loss", {s, s}, [=](const Arrays& x) { return Arrays{l1_loss(x[0], x[1], {reduction})}; });
    to.add("huber_loss", {s, s}, [=](const Arrays& x) { return Arrays{huber_loss(x[0], x[1], {reduction})}; });
    to.add("kl_div", {s, s}, [=](const Arrays& x) { return Arrays{kl_div(x[0], x[1], {reduction})}; });
    to.add("bce_with_logits", {s, s, {4}}, [=](const Arrays& x) {
        return Arrays{bce_with_logits(x[0], x[1], {.reduction = reduction, .positive_weight = x[2]})};
      }).optional = {2};
    const auto labelled = [s] {
      return Arrays{FunctionCalls::numbers_of(s), FunctionCalls::places_of({3}, 4), FunctionCalls::numbers_of({4})};
    };
    to.add("nll_loss", labelled, [=](const Arrays& x) {
        return Arrays{nll_loss(x[0], x[1], {.reduction = reduction, .weight = x[2]})};
      }).optional = {2};
    to.add("cross_entropy", labelled, [=](const Arrays& x) {
        return Arrays{cross_entropy(x[0], x[1], {.reduction = reduction, .weight = x[2]})};
      }).optional = {2};
  }
  to.add(
      "cross_entropy",
      [s] {
        return Arrays{FunctionCalls::numbers_of(s), FunctionCalls::places_of({3}, 4)};
      },
      [](const Arrays& x) { return Arrays{cross_entropy(x[0], x[1])}; });
}

void add_creation_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  to.add("zeros_like", {s}, [](const Arrays& x) { return Arrays{zeros_like(x[0]), zeros_like(x[0], DType::i8)}; });
  to.add("zeros_like", {s}, [](const Arrays& x) { return Arrays{zeros_like(x[0], DType::i8)}; });
  to.add("ones_like", {s}, [](const Arrays& x) { return Arrays{ones_like(x[0])}; });
  to.add("ones_like", {s}, [](const Arrays& x) { return Arrays{ones_like(x[0], DType::i8)}; });
  to.add("full_like", {s}, [](const Arrays& x) { return Arrays{full_like(x[0], 2)}; });
  to.add("empty_like", {s}, [](const Arrays& x) { return Arrays{empty_like(x[0])}; });
  to.add(
      "bernoulli", [s] { return Arrays{FunctionCalls::numbers_of(s) * 0.5}; },
      [](const Arrays& x) {
        RandomStream stream(1);
        return Arrays{bernoulli(x[0], stream)};
      });
  to.add("categorical", {s}, [](const Arrays& x) {
    RandomStream stream(1);
    return Arrays{categorical(x[0], stream)};
  });
}

/// They write to their first arrays.
void add_step_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  FunctionCall& sgd = to.view("sgd_step", {s, s, s}, [](const Arrays& x) {
    sgd_step(x[0], x[1], x[2], 0.1, 0.9, 0);
    return Arrays{};
  });
  sgd.optional = {1};
  sgd.shown = "sgd_momentum_step";
  to.view("adam_step", {s, s, s, s}, [](const Arrays& x) {
    adam_step(x[0], x[1], x[2], x[3], {});
    return Arrays{};
  });
  to.view("accumulate", {s, s, s}, [](const Arrays& x) {
    accumulate(x[0], {x[1], x[2]});
    return Arrays{};
  });
  to.view("accumulate", {s}, [](const Arrays& x) {
    accumulate(x[0], Arrays{});
    return Arrays{};
  });
  to.add("add_n", {s, s}, [](const Arrays& x) { return Arrays{add_n({x[0], x[1]})}; });
  to.add("add_n", {s}, [](const Arrays& x) { return Arrays{add_n({x[0]})}; });
}

}  // namespace sluice::testing
