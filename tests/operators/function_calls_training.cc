// Calls of the functions and classes of autograd/, nn/ and parallel/.
#include "function_calls.h"
#include "sluice/tests/support/temporary_directory.h"

namespace sluice::testing {

/// A leaf, and what was made from it.
static Arrays leaf_and_square(const Dims& shape) {
  const NDArray x = FunctionCalls::numbers_of(shape).with_grad();
  return {x, square(x)};
}

void add_gradient_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  using A = const Arrays&;
  const auto add = [&](std::string name, std::function<Arrays()> make, auto call) -> FunctionCall& {
    FunctionCall& added = to.add(std::move(name), std::move(make), call);
    added.view = true;
    return added;
  };
  const auto leaf = [s] { return Arrays{leaf_and_square(s)[0]}; };
  to.view("with_grad", {s}, [](A x) { return Arrays{x[0].with_grad()}; });
  to.view("requires_grad", {s}, [](A x) { return Arrays(x[0].requires_grad() ? 0 : 0); });
  add("grad", leaf, [](A x) { return Arrays(x[0].grad().defined() ? 0 : 0); });
  add("zero_grad", leaf, [](A x) { return x[0].zero_grad(), Arrays{}; });
  to.list().back().shown = "set_grad";
  add(
      "set_grad",
      [leaf, s] {
        return Arrays{leaf()[0], FunctionCalls::numbers_of(s)};
      },
      [](A x) { return x[0].set_grad(x[1]), Arrays{}; })
      .optional = {1};
  add(
      "backward", [] { return Arrays{sum(leaf_and_square({3})[1])}; }, [](A x) { return x[0].backward(), Arrays{}; });
  // A root of one element, whose gradient may be left out.
  const auto root = [] {
    const Arrays of = leaf_and_square({1});
    return Arrays{of[1], FunctionCalls::numbers_of({1}), of[0]};
  };
  add("backward", root, [](A x) { return backward({x[0]}, {x[1]}), Arrays{}; }).optional = {1, 2};
  to.add("grad", root, [](A x) { return grad({x[0]}, {x[1]}, {x[2]}); }).optional = {1};
  const auto leaf_and_root = [] {
    const Arrays of = leaf_and_square({1});
    return Arrays{of[1], of[0]};
  };
  to.add("grad", leaf_and_root, [](A x) { return grad(x[0], {x[1]}); });
  // The gradient of a sum is that of its terms, as it is.
  to.add(
        "grad",
        [s] {
          const NDArray x = leaf_and_square(s)[0];
          return Arrays{x + 1, FunctionCalls::numbers_of(s), x};
        },
        [s](A x) { return grad({x[0]}, {x[1].defined() ? x[1] : ones(s)}, {x[2]}); })
      .optional = {1};
  add("backward_inputs", root, [](A x) {
    backward_inputs({x[0]}, {x[1]}, {x[2]}).run();
    return Arrays{};
  }).optional = {1};
  FunctionCall& memory = add("memory", root, [](A x) {
    const Arrays of = leaf_and_square({1});
    (void)backward_inputs({of[1]}, {NDArray()}, {}).memory({x[2]});
    return Arrays{};
  });
  memory.optional = {0, 1};
  memory.shown = "WeightGradients::memory";
  add("kept_bytes", root, [](A x) { return Arrays(kept_bytes({x[0]}, {x[2]}) * 0); }).optional = {1};
  to.add("shapes_of", {s}, [](A x) {
    shapes_of([&] { return x[0]; });
    return Arrays{};
  });
  add("kept_memory", root, [](A x) { return Arrays(kept_memory({x[0]}, {x[2]}).size() * 0); }).optional = {1};
  to.view("memory_of", {s}, [](A x) { return Arrays(memory_of(x[0]).bytes * 0); });
  to.view("compute_again", {s}, [](A x) { return compute_again(x[0]), Arrays{}; });
  add("on_gradient", leaf, [](A x) {
    (void)on_gradient(x[0], [](const NDArray&) { return NDArray(); });
    return Arrays{};
  });
  add("on_uses", leaf, [](A x) { return on_uses(x[0], {}), Arrays{}; });
  to.add("sum_of_uses", {s, s}, [](A x) { return Arrays{sum_of_uses({x[0], x[1]})}; });
  to.add("sum_of_uses", {s}, [](A x) { return Arrays{sum_of_uses({x[0]})}; });
  add(
      "add_gradient",
      [leaf, s] {
        return Arrays{leaf()[0], FunctionCalls::numbers_of(s)};
      },
      [](A x) { return add_gradient(x[0], x[1]), Arrays{}; });
  const auto times = [](const NDArray& a, const NDArray& b) { return a * b; };
  to.add("checkpoint", {s, s}, [times](A x) { return checkpoint(times, {x[0], x[1]}); });
  to.add("checkpoint", {s}, [](A x) { return Arrays{checkpoint([](const NDArray& a) { return a * 2; }, x[0])}; });
  // A cotangent may be left out for a result of one element.
  to.add("vjp", {{1}, {1}, {1}}, [times](A x) { return vjp(times, {x[0], x[1]}, {x[2]}).products; }).optional = {2};
  to.add("vjp", {{1}, {1}}, [](A x) {
      return vjp([](const NDArray& a) { return a; }, {x[0]}, {x[1]}).values;
    }).optional = {1};
  to.add("jvp", {s, s, s, s}, [times](A x) { return jvp(times, {x[0], x[1]}, {x[2], x[3]}).products; });
  to.add("hessian_vector_product", {s, s}, [](A x) {
    return hessian_vector_product([](const NDArray& a) { return sum(square(a)); }, {x[0]}, {x[1]}).products;
  });
  for (const bool recorded : {false, true}) {
    to.add(
        "apply_custom",
        [s, recorded] {
          return Arrays{recorded ? leaf_and_square(s)[0] : FunctionCalls::numbers_of(s), ones(s)};
        },
        [](A x) {
          CustomFunction function{.name = "apply_custom",
                                  .forward = [](Saved&, const Arrays& xs) { return Arrays{xs[0]}; },
                                  .backward =
                                      [](const Saved&, const Arrays& g) {
                                        return Arrays{g[0], NDArray()};
                                      }};
          return apply_custom(function, {x[0], x[1]});
        });
  }
  FunctionCall& keep = to.add("keep", {s}, [](A x) {
    Saved saved;
    saved.keep({x[0]});
    return Arrays{};
  });
  keep.shown = "Saved::keep";
}

/// A layer's call names the line where the layer was made, which is in this file too.
void add_layer_calls(FunctionCalls& to) {
  const Dims s{3, 4}, line{1, 2, 5}, image{1, 2, 5, 5}, sequence{1, 3, 4};
  using A = const Arrays&;
  const auto add = [&](const char* name, const char* shown, std::vector<Dims> shapes, auto layer,
                       auto call) -> FunctionCall& {
    nn::initialise(layer, 1);
    const auto held = std::make_shared<const decltype(layer)>(std::move(layer));
    FunctionCall& added = to.add(name, std::move(shapes), [held, call](A x) { return call(*held, x); });
    added.shown = shown;
    return added;
  };
  const auto of_one = [&](const char* name, const char* shown, const Dims& shape, auto layer) -> FunctionCall& {
    return add(name, shown, {shape}, std::move(layer), [](const auto& f, A x) { return Arrays{f(x[0])}; });
  };
  of_one("Linear", "linear", s, nn::Linear{4, 2});
  of_one("Linear", "linear_relu", sequence, nn::Linear{.in = 4, .out = 2, .use_bias = false, .relu = true});
  of_one("Lora", "linear", s, nn::Lora{4, 2, 1});
  of_one("Conv2d", "conv2d", image, nn::Conv2d{.in = 2, .out = 2, .kernel = 3});
  of_one("Conv2d", "conv2d_relu", image, nn::Conv2d{.in = 2, .out = 2, .kernel = 3, .use_bias = false, .relu = true});
  of_one("Conv1d", "conv1d", line, nn::Conv1d{.in = 2, .out = 2, .kernel = 3});
  of_one("ConvTranspose2d", "conv_transpose2d", image, nn::ConvTranspose2d{.in = 2, .out = 2, .kernel = 3});
  of_one("ConvTranspose1d", "conv_transpose1d", line, nn::ConvTranspose1d{.in = 2, .out = 2, .kernel = 3});
  of_one("MaxPool2d", "max_pool2d", image, nn::MaxPool2d{2});
  of_one("AvgPool2d", "avg_pool2d", image, nn::AvgPool2d{2});
  of_one("AdaptiveAvgPool2d", "adaptive_avg_pool2d", image, nn::AdaptiveAvgPool2d{2, 2});
  of_one("AdaptiveMaxPool2d", "adaptive_max_pool2d", image, nn::AdaptiveMaxPool2d{2, 2});
  of_one("Flatten", "flatten", image, nn::Flatten{}).view = true;
  of_one("LayerNorm", "layer_norm", s, nn::LayerNorm{4});
  of_one("RmsNorm", "rms_norm", s, nn::RmsNorm{4});
  of_one("GroupNorm", "group_norm", s, nn::GroupNorm{2, 4});
  of_one("Layer", "linear", s, nn::Layer(nn::Linear{4, 2}));
  of_one("Sequential", "linear", s, nn::Sequential{nn::Linear{4, 2}, relu});
  const auto trained = [](const auto& f, A x) {
    RandomStream stream(1);
    const nn::Training on(stream);
    return Arrays{f(x[0])};
  };
  const auto evaluated = [](const auto& f, A x) {
    const nn::Evaluation off;
    return Arrays{f(x[0])};
  };
  add("BatchNorm", "batch_norm", {s}, nn::BatchNorm{4}, trained);
  add("BatchNorm", "batch_norm", {s}, nn::BatchNorm{4}, evaluated);
  add("Dropout", "dropout", {s}, nn::Dropout{0.5}, trained);
  add("SelfAttention", "SelfAttention", {sequence, {3, 3}}, nn::SelfAttention{.width = 4, .heads = 2},
      [](const nn::SelfAttention& f, A x) { return Arrays{f(x[0], {.mask = x[1]})}; })
      .optional = {1};
  add("CrossAttention", "CrossAttention", {sequence, {1, 2, 4}, {3, 2}}, nn::CrossAttention{.width = 4, .heads = 2},
      [](const nn::CrossAttention& f, A x) { return Arrays{f(x[0], x[1], x[2])}; })
      .optional = {2};
  add("Lstm", "lstm", {sequence, {3, 2}, {3, 2}}, nn::Lstm{4, 2}, [](const nn::Lstm& f, A x) {
    const LstmResult y = f(x[0], {x[1], x[2]});
    return Arrays{y.outputs, y.state.hidden, y.state.cell};
  });
  add("Gru", "gru", {sequence, {3, 2}}, nn::Gru{4, 2}, [](const nn::Gru& f, A x) {
    const GruResult y = f(x[0], x[1]);
    return Arrays{y.outputs, y.hidden};
  });
  add("logits", "linear", {s}, nn::Embedding{5, 4}, [](const nn::Embedding& f, A x) { return Arrays{f.logits(x[0])}; });
  add("Embedding", "embedding", {}, nn::Embedding{5, 4}, [](const nn::Embedding& f, A x) {
    return Arrays{f(x[0])};
  }).make = [] { return Arrays{FunctionCalls::places_of({3}, 5)}; };
  to.add("append", {{1, 2, 3, 4}, {1, 2, 3, 4}}, [](A x) {
      nn::KvCache cache;
      cache.append(x[0], x[1], std::source_location::current());
      return Arrays{cache.k, cache.v};
    }).shown = "KvCache";
  // From its functions on a net is called by the layers.
  add("run", "linear", {s}, nn::Sequential{nn::Linear{4, 2}, relu},
      [](const nn::Sequential& f, A x) { return Arrays{nn::run(f.stages(), x[0])}; });
  add("run", "linear", {s}, nn::Sequential{nn::Linear{4, 2}, relu},
      [](const nn::Sequential& f, A x) { return nn::run(f.stages(), nn::Arrays{x[0]}); });
}

/// Optimisers, clipping, metrics, and data.
void add_net_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  using A = const Arrays&;
  // A parameter takes the elements of an array, and a net nothing else; without a gradient a parameter stays.
  to.view("assign", {s}, [](A x) {
    nn::Parameter w{x[0].defined() ? x[0].shape() : Dims{1}, nn::constant(0)};
    nn::initialise(w, 1);
    w = x[0];
    return Arrays{};
  });
  const auto of_gradient = [&](const char* name, auto call) -> FunctionCall& {
    FunctionCall& added = to.view(name, {s}, [call, s](A x) {
      const nn::Parameter w{s, nn::constant(1)};
      nn::initialise(w, 1);
      w.value().set_grad(x[0]);
      return call(w);
    });
    added.optional = {0};
    return added;
  };
  of_gradient("clip_gradients", [](const nn::Parameter& w) { return Arrays{nn::clip_gradients(w, 1)}; });
  of_gradient("clip_values", [](const nn::Parameter& w) { return nn::clip_values(w, 1), Arrays{}; });
  of_gradient("gradient_norms", [](const nn::Parameter& w) { return nn::gradient_norms(w), Arrays{}; });
  for (const nn::AnyRule& rule :
       {nn::AnyRule(nn::Sgd{}), nn::AnyRule(nn::Sgd{.momentum = 0.9, .nesterov = true}), nn::AnyRule(nn::Adam{}),
        nn::AnyRule(nn::AdamW{}), nn::AnyRule(nn::RmsProp{}), nn::AnyRule(nn::Adagrad{}), nn::AnyRule(nn::Lamb{}),
        nn::AnyRule(nn::Adafactor{}), nn::AnyRule(nn::Lion{}), nn::AnyRule(nn::Muon{})}) {
    of_gradient("Optimizer", [rule](const nn::Parameter& w) {
      nn::Optimizer opt(w, {{"*", rule}});
      opt.step();
      return Arrays{};
    });
  }
  // What a rule gives as the new value.
  struct Given {
    NDArray value;
    void operator()(nn::Update& u) const { u.value.assign(value); }
  };
  to.view("assign", {s}, [s](A x) {
      const nn::Parameter w{s, nn::constant(1)};
      nn::initialise(w, 1);
      w.value().set_grad(ones(s));
      nn::Optimizer opt(w, Given{x[0]});
      opt.step();
      return Arrays{};
    }).shown = "nn::Optimizer::step";

  const auto labelled = [s] { return Arrays{FunctionCalls::numbers_of(s), FunctionCalls::places_of({3}, 4)}; };
  const auto number = [] { return Arrays{FunctionCalls::numbers_of({1})}; };
  to.add("add", number, [](A x) { return nn::Mean().add(x[0]), Arrays{}; }).shown = "nn::Mean::add";
  to.add("add", number, [](A x) {
      const test::TemporaryDirectory folder;
      return nn::Log((folder.path() / "log.csv").string()).add(1, {{"x", x[0]}}), Arrays{};
    }).shown = "nn::Log::add";
  to.add("add", number, [](A x) { return nn::Perplexity().add(x[0]), Arrays{}; }).shown = "nn::Mean::add";
  to.add("add", labelled, [](A x) { return nn::Accuracy().add(x[0], x[1]), Arrays{}; }).shown = "nn::Accuracy::add";
  to.add("add", labelled, [](A x) { return nn::TopK(2).add(x[0], x[1]), Arrays{}; }).shown = "nn::TopK::add";

  to.view("Loader", {s, {3}}, [](A x) {
      nn::Loader loader({x[0], x[1]}, {.batch = 2});
      for (const nn::Batch& batch : loader) batch.y.wait();
      return Arrays{};
    }).shown = "nn::Loader";
  to.view("LazyTable", {{3}}, [](A x) {
      struct Numbers final : nn::Samples {
        std::int64_t size() const override { return 3; }
        nn::Map::Result sample() const override { return {{}, DType::i64}; }
        void read(std::int64_t i, const TensorView& out) const override { *out.as<std::int64_t>() = i; }
      };
      nn::Loader loader(nn::LazyTable(std::make_shared<const Numbers>(), x[0]), {.batch = 2});
      for (const nn::Batch& batch : loader) batch.y.wait();
      return Arrays{};
    }).shown = "nn::Loader";
  to.add("mixup", {s, {3, 2}}, [](A x) {
      RandomStream stream(1);
      const nn::Mixed mixed = nn::mixup(x[0], x[1], stream);
      return Arrays{mixed.x, mixed.y};
    }).shown = "nn::mixup";
  FunctionCall& windows = to.add(
      "Windows", [] { return Arrays{FunctionCalls::places_of({9}, 4)}; },
      [](A x) {
        nn::Windows made(x[0], {.batch = 2, .length = 2});
        for (const nn::Batch& batch : made) batch.y.wait();
        return Arrays{};
      });
  windows.shown = "nn::Windows";
  to.add("split", {s, {3}}, [](A x) {
      const nn::Split parts = nn::split({x[0], x[1]}, 1, 7);
      return Arrays{parts.train.x, parts.train.y, parts.test.x, parts.test.y};
    }).shown = "nn::split";
}

void add_parallel_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  using A = const Arrays&;
  using namespace parallel;
  to.add("of_batch", {s}, [](A x) { return Arrays{Loss(mse_loss).of_batch(x[0])(x[0], x[0])}; });
  const auto net = std::make_shared<const nn::Sequential>(nn::Linear{4, 2});
  nn::initialise(*net, 1);
  const auto pipeline = [net, s] { return Pipeline(*net, Spec{s, DType::f32, cpu(0)}, {.devices = {cpu(0)}}); };
  to.view("forward", {s}, [pipeline](A x) { return Arrays{pipeline().forward(x[0])}; }).shown = "pipeline";
  const auto batch = [s] { return Arrays{FunctionCalls::numbers_of(s), FunctionCalls::places_of({3}, 2)}; };
  FunctionCall& step = to.add("step", batch, [pipeline](A x) { return Arrays{pipeline().step(x[0], x[1])}; });
  step.view = true;
  step.shown = "pipeline";
  const auto quick = [] { return MeasureOptions{.rows = {3}, .rounds = 1}; };
  to.add("measure_layers", batch, [=](A x) {
    (void)measure_layers(*net, {x[0], x[1]}, {cpu(0)}, quick());
    return Arrays{};
  });
  to.add("plan", batch, [=](A x) {
    (void)plan(*net, {x[0], x[1]}, {cpu(0)}, {}, {.microbatches = {1}}, quick());
    return Arrays{};
  });
}

}  // namespace sluice::testing
