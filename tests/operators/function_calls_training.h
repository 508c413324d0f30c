// Calls of the functions and classes of autograd/, nn/ and parallel/. Included by function_calls.h.
#pragma once

#include "../support/temporary_directory.h"
#include "function_call.h"

namespace sluice::testing {

/// A leaf, and what was made from it.
inline Arrays leaf_and_square(const Dims& shape) {
  const NDArray x = FunctionCalls::numbers_of(shape).with_grad();
  return {x, square(x)};
}

inline void add_gradient_calls(FunctionCalls& to) {
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

inline void add_module_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  using A = const Arrays&;
  RandomStream stream(1);
  const auto forward = [&](const Dims& shape, auto layer) {
    to.view("forward", {shape}, [layer](A x) { return Arrays{(*layer)(x[0])}; });
  };
  forward(s, ModulePtr(new Linear(4, 2, stream)));
  forward({1, 1, 3, 3}, ModulePtr(new Conv2d(1, 2, 2, stream)));
  forward({1, 1, 3, 3}, ModulePtr(new MaxPool2d(2)));
  forward(s, ModulePtr(new Relu()));
  forward(s, ModulePtr(new Flatten()));
  forward(s, ModulePtr(new Sequential(Relu(), Flatten())));
  const auto clipped = [] {
    const NDArray w = FunctionCalls::numbers_of({3}).with_grad();
    w.set_grad(ones({3}));
    return Arrays{w, FunctionCalls::numbers_of({3}).with_grad()};
  };
  const auto add = [&](const char* name, auto call) {
    FunctionCall& added = to.add(name, clipped, call);
    added.view = true;
  };
  add("clip_gradients", [](A x) { return clip_gradients({x[0], x[1]}, 1), Arrays{}; });
  add("Sgd", [](A x) {
    Sgd sgd({x[0], x[1]}, {.lr = 0.1});
    sgd.step();
    return Arrays{};
  });
  to.list().back().shown = "sgd_step";
  add("Adam", [](A x) {
    Adam adam(std::vector<NamedArray>{{"a", x[0]}, {"b", x[1]}}, {});
    adam.step();
    return Arrays{};
  });
  to.list().back().shown = "adam_step";
  const auto saved = [](A x, std::vector<NDArray>& arrays) {
    arrays = {x[0], x[1]};
    return std::vector<NamedParameter>{{"a", &arrays[0]}, {"b", &arrays[1]}};
  };
  add("save_checkpoint", [saved](A x) {
    std::vector<NDArray> arrays;
    const test::TemporaryDirectory folder;
    save_checkpoint(folder / "x", saved(x, arrays), {{"state", x[1]}});
    return Arrays{};
  });
  add("load_checkpoint", [saved](A x) {
    std::vector<NDArray> arrays, there;
    const test::TemporaryDirectory folder;
    save_checkpoint(folder / "x", saved({ones({3}), ones({3})}, there), {{"state", ones({3})}});
    load_checkpoint(folder / "x", saved(x, arrays), {{"state", x[1]}});
    return Arrays{};
  });
  to.view("DataLoader", {s, {3}}, [](A x) {
    DataLoader loader(x[0], x[1], {.batch = 2});
    for (const Batch& batch : loader) batch.y.wait();
    return Arrays{};
  });
}

inline void add_parallel_calls(FunctionCalls& to) {
  const Dims s{3, 4};
  using A = const Arrays&;
  using namespace parallel;
  to.add("all_reduce", {s, s}, [](A x) { return all_reduce(Communicator({cpu(0), cpu(0)}), x); });
  to.add("all_reduce", {s}, [](A x) { return all_reduce(Communicator({cpu(0)}), x); });
  const auto group = [] { return Communicator({cpu(0), cpu(0)}); };
  to.view("forward", {s}, [group](A x) {
    RandomStream stream(1);
    return ColumnLinear(4, 2, group(), stream).forward(x[0]);
  });
  to.view("forward", {{3, 2}, {3, 2}}, [group](A x) {
    RandomStream stream(1);
    return Arrays{RowLinear(4, 2, group(), stream).forward({x[0], x[1]})};
  });
  to.view("forward", {s}, [group](A x) {
    RandomStream stream(1);
    return Arrays{ShardedMlp(4, 2, 2, group(), stream).forward(x[0])};
  });
  const auto pipeline = [] {
    RandomStream stream(1);
    return Pipeline({{std::make_shared<Linear>(4, 2, stream), cpu(0)}});
  };
  to.view("forward", {s}, [pipeline](A x) { return Arrays{pipeline().forward(x[0])}; });
  FunctionCall& step = to.add(
      "step",
      [s] {
        return Arrays{FunctionCalls::numbers_of(s), FunctionCalls::places_of({3}, 2)};
      },
      [pipeline](A x) { return Arrays{pipeline().step(x[0], x[1])}; });
  step.view = true;
  step.shown = "pipeline";
  const auto network = [] {
    RandomStream stream(1);
    return Sequential(Linear(4, 2, stream));
  };
  const auto quick = [] { return MeasureOptions{.rows = {3}, .rounds = 1}; };
  const auto batch = [s] { return Arrays{FunctionCalls::numbers_of(s), FunctionCalls::places_of({3}, 2)}; };
  to.add("measure_layers", batch, [=](A x) {
    (void)measure_layers(network(), {x[0], x[1]}, {cpu(0)}, quick());
    return Arrays{};
  });
  to.add("plan", batch, [=](A x) {
    (void)plan(network(), {x[0], x[1]}, {cpu(0)}, {}, {.microbatches = {1}}, quick());
    return Arrays{};
  });
}

}  // namespace sluice::testing
