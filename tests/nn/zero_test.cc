// ZeRO: what an optimiser keeps, with 2 gradients and with 3 parameters too, are cut along an axis of the mesh, and the
// weights have the bits that they have without.
#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "placing_support.h"
#include "sluice/operators/placed_owner.h"
#include "sluice/resources/memory_pool.h"

namespace sluice {
namespace {

using test::bits;
using test::Gpt;
using test::what_of;
using ::testing::HasSubstr;

/// The tables of a run: data parallel, cut by Megatron's table where the mesh has tp.
std::vector<nn::AxisLayouts> tables(const Gpt& net, const Mesh& mesh, int zero) {
  std::vector<nn::AxisLayouts> list{{.axis = "dp", .zero = zero}};
  if (mesh.axes() > 1) list.push_back(test::megatron(net, shard(1))[0]);
  return list;
}

std::string bits_of(const Gpt& net) {
  std::string all;
  for (const nn::Named& p : nn::parameters(net)) {
    for (const NDArray& at_place : shards_of(whole(p.state->value.detach()))) all += bits(at_place);
  }
  return all;
}
std::string bits_of(const nn::Optimizer& opt) {
  std::string all;
  for (const nn::SavedArray& array : opt.saved_arrays()) all += bits(gathered(array.value));
  return all;
}

/// Equal layers, so that memory can be counted in them.
struct EightLayers {
  std::vector<nn::Linear> layers = nn::repeat(8, nn::Linear{256, 256, false});
  NDArray operator()(NDArray x) const {
    for (const nn::Linear& layer : layers) x = tanh(layer(x));
    return x;
  }
};

class Zero : public ::testing::Test {
 protected:
  static void backward(const Gpt& net, const Mesh& mesh, int step) {
    const NDArray x = test::tokens(5, 7, 10 + static_cast<std::uint64_t>(step), 53);
    const NDArray y = test::tokens(5, 7, 20 + static_cast<std::uint64_t>(step), 53);
    RandomStream stream(static_cast<std::uint64_t>(step));
    const nn::Training on(stream);
    const MeshScope scope(mesh);
    net.loss(place(x, mesh, {{"dp", shard(0)}}), place(y, mesh, {{"dp", shard(0)}})).backward();
  }

  test::TestEngine engine_{{.threads = 2, .logical_cpus = 8}};
  const Mesh dp_{{{"dp", 4}}, test::device_kind()}, both_{{{"dp", 3}, {"tp", 2}}, test::device_kind()};
};

/// With rules that are fused and composed, over dp 4 and dp 3 x tp 2: sizes do not divide, and some arrays are too
/// small to be cut.
TEST_F(Zero, TheWeightsHaveTheBitsOfDataParallel) {
  using Make = std::function<nn::Optimizer(const Gpt&, nn::OptimizerOptions)>;
  const Make makes[] = {
      [](const Gpt& net, nn::OptimizerOptions options) { return test::adam(net, options); },
      [](const Gpt& net, nn::OptimizerOptions options) {
        return nn::Optimizer(net, nn::Sgd{.lr = 0.1, .momentum = 0.9}, {}, options);
      },
      [](const Gpt& net, nn::OptimizerOptions options) {
        return nn::Optimizer(net, nn::Lion{.lr = 0.01}, {}, options);
      },
  };
  for (const Mesh& mesh : {dp_, both_}) {
    for (const Make& make : makes) {
      for (const bool fused : {true, false}) {
        std::vector<Gpt> nets;  // with zero 0 to 3
        std::vector<nn::Optimizer> optimizers;
        for (int zero = 0; zero < 4; ++zero) {
          const Gpt& net = nets.emplace_back(Gpt{.layers = 1});
          nn::place(net, mesh, tables(net, mesh, zero));
          nn::initialise(net, 3);
          optimizers.push_back(make(net, {.fused = fused}));
        }
        for (int step = 0; step < 3; ++step) {
          for (std::size_t zero = 0; zero < 4; ++zero) {
            for (int part = 0; part <= step % 2; ++part) backward(nets[zero], mesh, 2 * step + part);
            const Layout gradient = layout_of(nets[zero].token.weight.grad());
            ASSERT_EQ(to_string(gradient), zero > 1 ? "dp:shard(0)" : "replicate");
            ASSERT_EQ(to_string(layout_of(nets[zero].token.weight.value())), zero > 2 ? "dp:shard(0)" : "replicate");
            nn::clip_gradients(nets[zero], 0.5);
            optimizers[zero].step();
            ASSERT_TRUE(bits_of(nets[zero]) == bits_of(nets[0]))
                << to_string(mesh) << " fused " << fused << " step " << step << " zero " << zero;
          }
        }
        EXPECT_TRUE(bits_of(optimizers[1]) == bits_of(optimizers[0]));
        EXPECT_TRUE(bits_of(optimizers[2]) == bits_of(optimizers[0]));
        EXPECT_TRUE(bits_of(optimizers[3]) == bits_of(optimizers[0]));
      }
    }
  }
}

/// Rules that see norms of the whole parameter, of which each place steps a part: sums of other parts, so to rounding.
TEST_F(Zero, RulesOfNormsAgreeToRounding) {
  const auto run = [&](const Mesh& mesh, int zero, const nn::AnyRule& rule) {
    Gpt net{.layers = 1};
    nn::place(net, mesh, tables(net, mesh, zero));
    nn::initialise(net, 3);
    nn::Optimizer opt(net, {{"*", rule}});
    for (int step = 0; step < 3; ++step) {
      backward(net, mesh, step);
      opt.step();
    }
    std::vector<double> values;
    for (const nn::Named& p : nn::parameters(net)) {
      for (const double v : gathered(p.state->value).to(DType::f64).to_vector<double>()) values.push_back(v);
    }
    return values;
  };
  for (const Mesh& mesh : {dp_, both_}) {
    for (const nn::AnyRule& rule : {nn::AnyRule(nn::Lamb{.lr = 0.01}), nn::AnyRule(nn::Adafactor{.beta1 = 0.9})}) {
      const std::vector<double> whole = run(mesh, 0, rule);
      for (const int zero : {1, 2, 3}) {
        SCOPED_TRACE(to_string(mesh) + " zero " + std::to_string(zero));
        test::expect_close(run(mesh, zero, rule), whole, 1e-4);
      }
    }
  }
}

/// Such rules in f64, where cuts leave places without elements of a row or column, or cut an axis of stacks.
TEST_F(Zero, RulesOfNormsTakeAnyShape) {
  struct Odd {
    nn::Parameter scalar{Dims{}, nn::normal(1)}, vector{{7}, nn::normal(1)}, row{{1, 6}, nn::normal(1)},
        column{{6, 1}, nn::normal(1)}, stack{{2, 5, 3}, nn::normal(1)}, thin{{4, 1, 1, 1}, nn::normal(1)};
  };
  const auto run = [&](int zero, const nn::AnyRule& rule) {
    const Odd net;
    if (zero >= 0) nn::place(net, dp_, {{.axis = "dp", .zero = zero}});
    nn::initialise(net, 3, {}, {.dtype = DType::f64});
    nn::Optimizer opt(net, {{"*", rule}});
    std::vector<double> values;
    for (int step = 0; step < 3; ++step) {
      for (const nn::Named& p : nn::parameters(net)) sum(square(p.state->value) * (step - 0.5)).backward();
      opt.step();
    }
    for (const nn::Named& p : nn::parameters(net)) {
      for (const double v : gathered(p.state->value).to_vector<double>()) values.push_back(v);
    }
    return values;
  };
  for (const nn::AnyRule& rule :
       {nn::AnyRule(nn::Lamb{.lr = 0.1}), nn::AnyRule(nn::Adafactor{.lr = 1, .beta1 = 0.9})}) {
    const std::vector<double> alone = run(-1, rule);
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(zero);
      test::expect_close(run(zero, rule), alone, 1e-12);
    }
  }
}

/// Each place keeps its part of what is kept, and arrays on which nothing can be cut whole.
TEST_F(Zero, EachPlaceKeepsItsPart) {
  Gpt net;
  nn::place(net, both_, tables(net, both_, 1));
  nn::initialise(net, 3);
  nn::Optimizer opt = test::adam(net);
  backward(net, both_, 0);
  opt.step();
  EXPECT_EQ(to_string(layout_of(opt.kept("token.weight", "exp_avg"))), "dp:shard(0)");
  EXPECT_EQ(to_string(layout_of(opt.kept("blocks.0.up.weight", "exp_avg"))), "dp:shard(1) tp:shard(0)");
  EXPECT_EQ(to_string(layout_of(opt.kept("blocks.0.down.weight", "exp_avg"))), "dp:shard(0) tp:shard(1)");
  EXPECT_EQ(to_string(layout_of(opt.kept("blocks.0.up.bias", "exp_avg"))), "tp:shard(0)") << "it has no other axis";
  EXPECT_EQ(to_string(layout_of(opt.kept("blocks.0.up.weight", "step"))), "replicate");
  EXPECT_EQ(to_string(layout_of(net.blocks[0].up.weight.value())), "tp:shard(0)");
  std::int64_t most = 0, whole = 0;
  for (int rank = 0; rank < both_.places(); ++rank) {
    std::int64_t here = 0;
    for (const nn::Named& p : nn::parameters(net)) {
      if (p.name.ends_with("bias")) continue;
      here += shards_of(opt.kept(p.name, "exp_avg"))[static_cast<std::size_t>(rank)].count();
      whole += rank == 0 ? shards_of(p.state->value)[0].count() : 0;
    }
    most = std::max(most, here);
  }
  EXPECT_LE(static_cast<double>(most), 1.05 * static_cast<double>(whole) / 3);
}

/// A mesh for one run, another for the next, and none: by files, by nn::place and by nn::to.
TEST_F(Zero, GoesOnUnderAnotherTable) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "zero";
  std::filesystem::create_directories(folder);
  const std::string file = (folder / "net.safetensors").string();
  Gpt always, changed;
  for (const Gpt* net : {&always, &changed}) {
    nn::place(*net, dp_, tables(*net, dp_, net == &changed));
    nn::initialise(*net, 3);
  }
  nn::Optimizer one = test::adam(always), other = test::adam(changed);
  const auto both = [&](int step) {
    backward(always, dp_, step);
    backward(changed, dp_, step);
    one.step();
    other.step();
    EXPECT_TRUE(bits_of(changed) == bits_of(always)) << step;
  };
  both(0);
  nn::place(changed, dp_, {{.axis = "dp", .zero = 3}});
  const auto gradient_lies = [&] {
    backward(changed, dp_, 0);
    std::string lies = to_string(layout_of(changed.token.weight.grad()));
    other.zero_grad();
    return lies;
  };
  EXPECT_EQ(gradient_lies(), "dp:shard(0)");
  nn::freeze(changed, "*");
  nn::freeze(changed, "*", false);
  EXPECT_EQ(gradient_lies(), "dp:shard(0)") << "though its value is another array";
  const Gpt copy = nn::clone(changed);
  backward(copy, dp_, 0);
  EXPECT_EQ(to_string(layout_of(copy.token.weight.grad())), "dp:shard(0)");
  for (const Gpt* net : {&std::as_const(changed), &copy}) {
    EXPECT_EQ(to_string(layout_of(net->token.weight.value())), "dp:shard(0)");
    EXPECT_EQ(to_string(call_layout_of(net->token.weight.value())), "replicate");
  }
  nn::blend(copy, changed, 1);
  EXPECT_TRUE(bits_of(copy) == bits_of(changed));
  {
    const NoGrad off;
    const NDArray before = whole(copy.token.weight.value());
    changed.token.weight.value().narrow(1, 0, 9).fill(2.0);  // a view of what lies at each place
    nn::blend(copy, changed, 0.5);
    EXPECT_TRUE(bits(gathered(copy.token.weight.value())) ==
                bits(gathered(lerp(before, whole(changed.token.weight.value()), 0.5))));
    EXPECT_THAT(what_of([&] { changed.token.weight.value()(0).fill(0.0); }), HasSubstr("would be lost"));
    changed.token.weight = always.token.weight.value();
  }
  nn::blend(copy, always, 1);
  EXPECT_TRUE(bits_of(copy) == bits_of(always));
  both(4);
  nn::place(changed, dp_);
  both(1);
  EXPECT_EQ(to_string(layout_of(other.kept("token.weight", "exp_avg"))), "replicate");
  nn::place(changed, dp_, {{.axis = "dp", .zero = 1}});
  both(2);
  EXPECT_EQ(to_string(layout_of(other.kept("token.weight", "exp_avg"))), "dp:shard(0)");
  nn::save(file, {{"net", changed}, {"opt", other}});
  both(3);
  for (const int zero : {0, 1, 2, 3}) {
    Gpt read;
    nn::place(read, dp_, tables(read, dp_, zero));
    nn::Optimizer again = test::adam(read);
    nn::load(file, {{"net", read}, {"opt", again}});
    backward(read, dp_, 3);
    again.step();
    EXPECT_TRUE(bits_of(read) == bits_of(always)) << zero;
    EXPECT_TRUE(bits_of(again) == bits_of(one)) << zero;
  }
  nn::to(changed, test::device());
  EXPECT_FALSE(layout_of(changed.token.weight.value()));
  other.step();  // without gradients: nothing is asked
  RandomStream stream(1);
  const nn::Training on(stream);
  const NDArray loss = changed.loss(test::tokens(2, 7, 1, 53), test::tokens(2, 7, 2, 53));
  loss.backward();
  other.step();
  EXPECT_FALSE(layout_of(other.kept("token.weight", "exp_avg")));
  other.kept("token.weight", "exp_avg").wait();
}

/// A shard of one gradient fails: no place changes anything, of parameters and of what is kept.
TEST_F(Zero, AFailureChangesNothingAtAnyPlace) {
  for (const int zero : {1, 2, 3}) {
    const bool fused = zero != 1;
    Gpt net;
    nn::place(net, both_, tables(net, both_, zero));
    nn::initialise(net, 3);
    nn::Optimizer opt = test::adam(net, {.fused = fused});
    backward(net, both_, 0);
    opt.step();
    const std::string before = bits_of(net), kept = bits_of(opt);
    backward(net, both_, 1);
    const NDArray gradient = net.blocks[1].up.weight.grad();
    builtin::Placed::of(gradient)->shards()[3].assign(test::broken(shards_of(gradient)[3]));
    opt.step();
    EXPECT_THAT(what_of([&] { gathered(net.token.weight.value()).wait(); }), HasSubstr("bad batch"));
    opt.recover();
    EXPECT_TRUE(bits_of(net) == before);
    EXPECT_TRUE(bits_of(opt) == kept);
    backward(net, both_, 1);
    opt.step();
    Gpt same;
    nn::place(same, both_, tables(same, both_, 0));
    nn::initialise(same, 3);
    nn::Optimizer without = test::adam(same, {.fused = fused});
    for (int step = 0; step < 2; ++step) {
      backward(same, both_, step);
      without.step();
    }
    EXPECT_TRUE(bits_of(net) == bits_of(same)) << "the batch that failed left nothing";
  }
}

/// One gather of each parameter that is cut, and of the bytes that a place lacks.
TEST_F(Zero, CommsListWhatAStepGathers) {
  Gpt net;
  nn::place(net, dp_, tables(net, dp_, 1));
  nn::initialise(net, 3);
  nn::Optimizer opt = test::adam(net);
  backward(net, dp_, 0);
  const std::vector<Communication> list = comms([&] { opt.step(); });
  std::size_t cut = 0;
  std::int64_t bytes = 0, wanted = 0;
  for (const nn::Named& p : nn::parameters(net)) {
    const std::int64_t n = p.state->shape[0];
    if (n < 4) continue;
    ++cut;
    wanted += p.state->shape.count() / n * (n - n / 4) * 4;
  }
  for (const Communication& one : list) {
    EXPECT_EQ(name_of(one.kind), "all_gather");
    bytes += one.bytes;
  }
  EXPECT_EQ(list.size(), cut);
  EXPECT_EQ(bytes, wanted);
}

/// With 2 a gradient that is cut is sent by a reduce-scatter in backward, where 0 and 1 have an all-reduce, and each
/// place has its part alone.
TEST_F(Zero, GradientsAreCutWhereTheirTermsAreAddedUp) {
  std::map<int, std::map<std::string, std::int64_t>> bytes;  // by zero and collective
  for (const int zero : {1, 2}) {
    Gpt net;
    nn::place(net, dp_, tables(net, dp_, zero));
    const auto before_values = comms([&] { backward(net, dp_, 0); });
    nn::initialise(net, 3);
    const auto list = comms([&] { backward(net, dp_, 0); });
    // Leaves end backward in the order in which they were made, which is that of their use before they have values.
    const auto lines = [](const std::vector<Communication>& of) {
      std::multiset<std::string> texts;
      for (const Communication& one : of) texts.insert(to_string(one));
      return texts;
    };
    EXPECT_EQ(lines(before_values), lines(list));
    for (const Communication& one : list) {
      bytes[zero][std::string(name_of(one.kind))] += one.bytes;
      // One row is for all the batch: its gradient is added up where it is used.
      const bool reduces = one.kind == Communication::Kind::all_reduce;
      EXPECT_TRUE(zero == 1 || !reduces || one.layer == "position") << to_string(one);
    }
    backward(net, dp_, 0);
    std::int64_t here = 0, whole = 0;
    for (const nn::Named& p : nn::parameters(net)) {
      const NDArray gradient = p.state->value.grad();
      EXPECT_EQ(to_string(layout_of(gradient)), zero == 2 ? "dp:shard(0)" : "replicate") << p.name;
      whole += gradient.count();
      here += shards_of(gradient)[3].count();
    }
    EXPECT_LE(static_cast<double>(here), zero == 1 ? whole : 1.06 * static_cast<double>(whole) / 4);
  }
  EXPECT_EQ(bytes[1].size(), 1U);
  EXPECT_GT(bytes[2]["reduce_scatter"], 0);
}

/// Short and long rows, a vector, a scalar, no elements: the norm of gradients has the bits of a plain net's, where
/// places have parts by the first axis.
TEST_F(Zero, NormsHaveTheBitsOfOneDevice) {
  struct Net {
    nn::Parameter scalar{{}, nn::normal(1)}, vector{{37}, nn::normal(1)}, matrix{{23, 7}, nn::normal(1)};
    nn::Parameter rows{{9, 9001}, nn::normal(1)}, images{{5, 3, 2, 4}, nn::normal(1)}, none{{0, 4}, nn::normal(1)};
  };
  const std::string lies[] = {"on no mesh", "replicate", "dp:shard(0)"};
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    std::vector<std::string> norms;
    for (const int zero : {-1, 0, 2}) {
      Net net;
      if (zero >= 0) nn::place(net, dp_, {{.axis = "dp", .zero = zero}});
      nn::initialise(net, 3, {}, {.dtype = dtype});
      for (const nn::Named& p : nn::parameters(net)) {
        RandomStream stream(p.state->shape.count());
        const NDArray gradient = normal(p.state->shape, stream).to(dtype);
        p.state->value.set_grad(zero < 0 ? gradient : place(gradient, dp_));
      }
      EXPECT_EQ(to_string(layout_of(net.rows.grad())), lies[norms.size()]);
      norms.push_back(bits(nn::clip_gradients(net, 0.5)));
      for (const nn::Named& p : nn::parameters(net)) norms.back() += bits(gathered(p.state->value.grad()));
    }
    EXPECT_TRUE(norms[1] == norms[0]) << name_of(dtype);
    EXPECT_TRUE(norms[2] == norms[0]) << name_of(dtype);
  }
}

/// Adam's bytes a parameter in f32 at each place, by its pool, between backward and step: 16, 8 + 8 / p,
/// 4 + 12 / p, and 16 / p.
TEST_F(Zero, MemoryOfEachPlace) {
  if (test::on_streams()) GTEST_SKIP() << "its pools are the engine's";
  for (const int p : {2, 4, 8}) {
    const Mesh mesh({{"dp", p}}, test::device_kind());
    const auto bytes = [&] {
      default_engine().wait_all();
      std::vector<double> list;
      for (int rank = 0; rank < p; ++rank) {
        list.push_back(static_cast<double>(memory_pool(mesh.device(rank)).stats().in_use));
      }
      return list;
    };
    for (const int zero : {0, 1, 2, 3}) {
      const std::vector<double> before = bytes();
      const EightLayers net;
      nn::place(net, mesh, {{.axis = "dp", .zero = zero}});
      nn::initialise(net, 3);
      nn::Optimizer opt(net, nn::Adam{});
      const auto backward = [&] {
        whole(mean(square(net(place(ones({8, 256}), mesh, {{"dp", shard(0)}}))))).backward();
      };
      backward();
      opt.step();
      backward();
      const std::vector<double> after = bytes();
      const double n = 8 * 256 * 256, kept = 16.0 / p,
                   wanted = zero == 0   ? 16
                            : zero == 1 ? 8 + 8.0 / p
                            : zero == 2 ? 4 + 12.0 / p
                                        : kept;
      for (std::size_t rank = 0; rank < after.size(); ++rank) {
        EXPECT_NEAR((after[rank] - before[rank]) / n, wanted, 0.05 * wanted) << "zero " << zero << " of " << p;
      }
    }
  }
}

/// With 3 a layer gathers its parameters where it uses them, and backward once more where it needs them: a product's
/// weight, and no bias. A step gathers nothing.
TEST_F(Zero, ParametersAreGatheredWhereTheyAreUsed) {
  struct Net {
    nn::Linear up{8, 12}, down{12, 8};
    NDArray operator()(const NDArray& x) const { return down(tanh(up(x))); }
  } net;
  nn::place(net, dp_, {{.axis = "dp", .zero = 3}});
  nn::initialise(net, 1);
  nn::Optimizer opt(net, nn::Adam{});
  const NDArray x = place(ones({8, 8}), dp_, {{"dp", shard(0)}});
  const auto named = [](const std::vector<Communication>& list) {
    std::string text;
    for (const Communication& one : list) {
      text +=
          name_of(one.kind) + " " + to_string(one.array.shape) + " " + one.layer + (one.backward ? " back\n" : "\n");
    }
    return text;
  };
  EXPECT_EQ(named(comms([&] { sum(square(net(x))).backward(); })),
            "all_gather (12, 8) up\nall_gather (12,) up\nall_gather (8, 12) down\nall_gather (8,) down\n"
            "all_gather (8, 12) down back\nreduce_scatter (8,)  back\nreduce_scatter (8, 12)  back\n"
            "reduce_scatter (12,)  back\nreduce_scatter (12, 8)  back\n");
  const NDArray& up = net.up.weight.value();
  EXPECT_EQ(named(comms([&] { matmul(x, up.permute({1, 0})); })), "all_gather (8, 12) \n") << "the call, not the view";
  EXPECT_EQ(named(comms([&] { up(0); })), "all_gather (12, 8) \n") << "a part of a cut axis";
  EXPECT_EQ(named(comms([&] {
              const NoGrad off;
              NDArray sums = whole(zeros_like(up));
              sums += up;
            })),
            "all_gather (12, 8) \n")
      << "read by a call in place";
  sum(square(net(x))).backward();
  EXPECT_EQ(named(comms([&] { opt.step(); })), "");
  opt.step();
  EXPECT_EQ(to_string(layout_of(opt.kept("up.weight", "exp_avg"))), "dp:shard(0)");
  // Written in place, printed, saved: as it lies.
  const NoGrad off;
  NDArray weight = net.up.weight.value();
  weight *= 0;
  EXPECT_EQ(sum(abs(gathered(net.up.weight.value()))).item<float>(), 0);
  net.up.weight = ones({12, 8});
  EXPECT_EQ(sum(gathered(net.up.weight.value())).item<float>(), 96);
  EXPECT_EQ(to_string(layout_of(net.up.weight * 1)), "replicate");
}

/// No more is gathered at once than layers near their turn need, however far the program's thread is ahead. Forward
/// that holds of every run: a layer is gathered once what enters it is there at all places. In backward the terms of a
/// gradient wait for those of the other places, of which one may be late for reasons of its own; so it is the best of
/// some passes.
TEST_F(Zero, MemoryWhileParametersAreUsed) {
  if (test::on_streams()) GTEST_SKIP() << "its pools are the engine's";
  constexpr int p = 4;
  constexpr double layer = 256 * 256 * 4;
  const Mesh mesh({{"dp", p}});
  const EightLayers net;
  nn::place(net, mesh, {{.axis = "dp", .zero = 3}});
  nn::initialise(net, 3);
  const NDArray x = place(ones({4, 256}), mesh, {{"dp", shard(0)}});
  /// The most that a place had while f ran, beside what it had before, in layers.
  const auto peak = [&](const std::function<void()>& f) {
    default_engine().wait_all();
    std::vector<double> before;
    for (int rank = 0; rank < p; ++rank) {
      MemoryPool& pool = memory_pool(mesh.device(rank));
      pool.reset_peak();
      before.push_back(static_cast<double>(pool.stats().in_use));
    }
    f();
    default_engine().wait_all();
    double most = 0;
    for (int rank = 0; rank < p; ++rank) {
      const auto had = static_cast<double>(memory_pool(mesh.device(rank)).stats().peak);
      most = std::max(most, (had - before[static_cast<std::size_t>(rank)]) / layer);
    }
    return most;
  };
  const auto train = [&] {
    whole(mean(square(net(x)))).backward();
    for (const nn::Named& one : nn::parameters(net)) one.state->value.zero_grad();
  };
  train();
  {
    const NoGrad off;
    for (int pass = 0; pass < 5; ++pass) EXPECT_LE(peak([&] { net(x); }), 2.2);
  }
  // A gathered layer and its gradient's terms, the next ones' on their way, and the parts of all gradients.
  double least = peak(train);
  for (int pass = 0; pass < 20 && least > 5 + 8.0 / p; ++pass) least = std::min(least, peak(train));
  EXPECT_LE(least, 5 + 8.0 / p);
}

/// A net's own text uses its parameters in other ways than layers do: under ZeRO 3 as under 0. What several uses of one
/// add to its gradient may be added in another order.
TEST_F(Zero, ProgramsUseParametersAsTheyLike) {
  struct Net {
    nn::Parameter w{{8, 6}, nn::normal(1)}, b{{8}, nn::normal(1)}, latents{{5, 8}, nn::normal(1)};
    nn::Conv1d line{8, 8, 3, 1, 1};
    nn::Conv2d grouped{8, 8, 3, 1, 1, 1, 2};
    nn::Linear proj{8, 8};
    NDArray operator()(const NDArray& x, RandomStream& stream) const {  // x (n, 6)
      NDArray h = linear(x, dropout(w, 0.4, stream));
      h += b.value();                                             // in place
      h = h + matmul(x, w.value().permute({1, 0}).contiguous());  // a view
      h = h * reshard(w.value(), {{"tp", replicate}})(all, 0);    // an element of each row
      h = h + mean(proj(latents), 0);                             // a parameter enters a layer
      h = line(h.unsqueeze(2).broadcast_to({x.size(0), 8, 4}));
      return grouped(h.unsqueeze(3).broadcast_to({x.size(0), 8, 4, 4}));
    }
  };
  const Mesh mesh({{"dp", 2}, {"tp", 2}}, test::device_kind());
  std::map<int, std::vector<double>> numbers;
  for (const int zero : {0, 1, 2, 3}) {
    const Net net;
    nn::place(
        net, mesh,
        {{.axis = "dp", .zero = zero}, {"tp", {{"proj", {.weight = shard(0), .bias = shard(0), .out = replicate}}}}});
    nn::initialise(net, 3);
    nn::Optimizer opt(net, nn::Sgd{.lr = 0.01});
    const auto keep = [&](const NDArray& x) {
      const std::vector<double> values = gathered(x).detach().to(DType::f64).to_vector<double>();
      numbers[zero].insert(numbers[zero].end(), values.begin(), values.end());
    };
    RandomStream data(1);
    for (int step = 0; step < 3; ++step) {
      RandomStream stream(7);
      const NDArray x = place(normal({7, 6}, data), mesh, {{"dp", shard(0)}});
      const NDArray loss = whole(mean(square(net(x, stream))));
      keep(loss);
      loss.backward();
      opt.step();
    }
    for (const nn::Named& p : nn::parameters(net)) keep(p.state->value);
  }
  EXPECT_TRUE(numbers[1] == numbers[0]);
  EXPECT_TRUE(numbers[2] == numbers[0]);
  ASSERT_EQ(numbers[3].size(), numbers[0].size());
  for (std::size_t i = 0; i < numbers[0].size(); ++i) {
    ASSERT_NEAR(numbers[3][i], numbers[0][i], 1e-5 * std::max(1.0, std::abs(numbers[0][i]))) << i;
  }
}

TEST_F(Zero, WhatItIsNotForIsRefused) {
  struct Net {
    nn::Linear up{8, 12};
    NDArray operator()(const NDArray& x) const { return up(x); }
  } net;
  EXPECT_THAT(what_of([&] { nn::place(net, dp_, {{.axis = "dp", .zero = 4}}); }),
              HasSubstr("zero is 4 for dp, not 0 to 3"));
  nn::place(net, dp_, {{.axis = "dp", .zero = 1}});
  nn::initialise(net, 1);
  // A rule that looks at the whole matrix.
  nn::Optimizer opt(net, {{"up.weight", nn::Muon{}}, {"*", nn::Sgd{}}});
  sum(net(place(zeros({4, 8}) + 1, dp_, {{"dp", shard(0)}}))).backward();
  const std::string before = bits(gathered(net.up.weight.value()));
  for (const int zero : {1, 2, 3}) {
    nn::place(net, dp_, {{.axis = "dp", .zero = zero}});
    EXPECT_THAT(what_of([&] { opt.step(); }),
                HasSubstr("the rule for 'up.weight' fails on its parts, dp:shard(0), as ZeRO has it"))
        << zero;
    EXPECT_TRUE(bits(gathered(net.up.weight.value())) == before);
  }
}

}  // namespace
}  // namespace sluice
