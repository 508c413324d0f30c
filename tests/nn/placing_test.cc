// Nets on a mesh: trained beside the same net on one device, tables that are refused, files, recovery.
#include <gmock/gmock.h>

#include <filesystem>

#include "placing_support.h"
#include "sluice/operators/attributes.h"
#include "sluice/operators/placed_owner.h"

namespace sluice {
namespace {

using test::adam;
using test::apart;
using test::bits;
using test::Gpt;
using test::megatron;
using test::TestEngine;
using test::tokens;
using test::what_of;
using ::testing::HasSubstr;

class Placing : public ::testing::Test {
 protected:
  TestEngine engine_{{.threads = 2, .logical_cpus = 4}};
  const Mesh mesh_{{{"dp", 2}, {"tp", 2}}, test::device_kind()};
};

/// dp 2 x tp 2, with dropout, clipping, a tied embedding, grouped weight decay and uneven cuts of the batch, for steps
/// that start from what the step before gave: the numbers of one device.
TEST_F(Placing, AGptTrainsOnAMeshAsOnOneDevice) {
  for (const Placement between : {replicate, shard(1)}) {
    SCOPED_TRACE(to_string(between));
    Gpt plain, placed;
    const nn::InitOptions f64{.dtype = DType::f64};
    nn::initialise(plain, 3, {{"token.weight", nn::normal(0.2)}}, f64);
    nn::place(placed, mesh_, megatron(placed, between));
    nn::initialise(placed, 3, {{"token.weight", nn::normal(0.2)}}, f64);
    EXPECT_EQ(apart(placed, plain), 0);
    nn::Optimizer one = adam(plain), other = adam(placed);
    RandomStream stream(5), same(5);
    for (int step = 0; step < 6; ++step) {
      const NDArray x = tokens(5, 7, 10 + step, 53), y = tokens(5, 7, 20 + step, 53);
      NDArray loss, norm;
      {
        const nn::Training on(stream);
        loss = plain.loss(x, y);
        loss.backward();
      }
      norm = nn::clip_gradients(plain, 0.5);
      one.step();
      const MeshScope scope(mesh_);
      const nn::Training on(same);
      const NDArray its = placed.loss(place(x, mesh_, {{"dp", shard(0)}}), place(y, mesh_, {{"dp", shard(0)}}));
      its.backward();
      EXPECT_EQ(to_string(layout_of(placed.blocks[1].down.weight.grad())), "tp:shard(1)");
      const NDArray its_norm = nn::clip_gradients(placed, 0.5);
      other.step();
      EXPECT_NEAR(gathered(its).item<double>(), loss.item<double>(), 1e-11);
      EXPECT_NEAR(its_norm.item<double>(), norm.item<double>(), 1e-10);
      EXPECT_GT(norm.item<double>(), 0.5) << "clipping does something";
      EXPECT_LT(apart(placed, plain), 1e-8) << "step " << step;
    }
    EXPECT_EQ(layout_of(other.kept("blocks.0.up.weight", "exp_avg")), layout_of(placed.blocks[0].up.weight.value()))
        << "what an optimiser keeps lies as the parameter does";
  }
}

/// Data parallelism adds the gradients of its shards, each of which is what one device computes of these rows: the same
/// bits in f32.
TEST_F(Placing, DataParallelGradientsAreSumsOfThoseOfTheParts) {
  const Mesh dp({{"dp", 4}}, test::device_kind());
  Gpt plain{.p = 0}, placed{.p = 0};
  nn::initialise(plain, 3);
  nn::place(placed, dp);
  nn::initialise(placed, 3);
  nn::Optimizer one = adam(plain), other = adam(placed);
  for (int step = 0; step < 4; ++step) {
    const NDArray x = tokens(10, 7, 10 + step, 53), y = tokens(10, 7, 20 + step, 53);  // parts of 2, 3, 2, 3 rows
    const Layout rows(dp, x.shape(), {{"dp", shard(0)}});
    {
      const nn::Evaluation gradients({.gradients = true});
      std::map<std::string, std::vector<NDArray>> terms;
      for (int r = 0; r < 4; ++r) {
        const std::int64_t begin = rows.begin(r)[0], end = begin + rows.extent(r)[0];
        const NDArray logits = plain(x.narrow(0, begin, end)).reshape({-1, 53});
        cross_entropy(logits, y.narrow(0, begin, end).flatten(), 10.0 * 7).backward();
        for (const nn::Named& p : nn::parameters(plain)) terms[p.name].push_back(p.state->value.grad());
        for (const nn::Named& p : nn::parameters(plain)) p.state->value.zero_grad();
      }
      for (const nn::Named& p : nn::parameters(plain)) {
        const auto& t = terms[p.name];
        p.state->value.set_grad(((t[0] + t[1]) + t[2]) + t[3]);
      }
    }
    one.step();
    const MeshScope scope(dp);
    const nn::Evaluation gradients({.gradients = true});
    placed.loss(place(x, rows), place(y, rows)).backward();
    other.step();
    for (const nn::Named& p : nn::parameters(plain)) {
      for (const nn::Named& q : nn::parameters(placed)) {
        if (q.name != p.name) continue;
        for (const NDArray& replica : shards_of(q.state->value))
          EXPECT_TRUE(bits(replica) == bits(p.state->value)) << p.name << " in step " << step;
      }
    }
  }
}

/// Found before anything has a value: per block two all-reduces forward and two backward, or as many gathers and
/// scatters with positions cut between. What else passes over tp belongs to embeddings and the last norm.
TEST_F(Placing, EachBlockCommunicatesAsMegatronSays) {
  const Mesh many({{"dp", 4}, {"tp", 16}});
  for (const bool sequence : {false, true}) {
    Gpt net{.vocabulary = 1009, .context = 64, .heads = 16, .width = 128, .p = 0};
    nn::place(net, many, megatron(net, sequence ? shard(1) : replicate));
    std::map<std::string, int> count;
    const auto list = comms([&] {
      const MeshScope scope(many);
      const nn::Evaluation gradients({.gradients = true});
      const NDArray x = place(empty({8, 64}, DType::i64), many, {{"dp", shard(0)}});
      net.loss(x, x).backward();
    });
    for (const Communication& one : list) {
      if (one.axis != "tp" || !one.layer.starts_with("blocks.1")) continue;
      if (one.array.shape.count() != 8 * 64 * 128) continue;  // gradients of norms and biases, cut by positions
      ++count[name_of(one.kind) + (one.backward ? " backward" : "")];
    }
    using Counts = std::map<std::string, int>;
    if (sequence) {
      EXPECT_EQ(
          count,
          (Counts{
              {"all_gather", 2}, {"all_gather backward", 2}, {"reduce_scatter", 2}, {"reduce_scatter backward", 2}}))
          << to_string(list);
    } else {
      EXPECT_EQ(count, (Counts{{"all_reduce", 2}, {"all_reduce backward", 2}})) << to_string(list);
    }
  }
}

/// Each place draws its own part of the mask, and together they are the mask of one device.
TEST_F(Placing, MasksAreDrawnInParts) {
  const NDArray x = test::made_up({6, 5, 8}, 1, DType::f32);
  const std::vector<Placement> all_of_them{replicate, shard(0), shard(1), shard(2)};
  int parts = 0;
  for (const Placement& a : all_of_them) {
    for (const Placement& b : all_of_them) {
      const Layout layout(mesh_, x.shape(), {{"dp", a}, {"tp", b}});
      RandomStream one(9), other(9), third(9);
      const NDArray plain = x.detach().with_grad(), placed = place(x, layout).with_grad();
      const NDArray y = dropout(placed, 0.4, one, {.first = 11}), same = dropout(plain, 0.4, other, {.first = 11});
      EXPECT_EQ(layout_of(y), layout);
      EXPECT_TRUE(bits(gathered(y)) == bits(same)) << to_string(layout);
      sum(square(y)).backward();
      sum(square(same)).backward();
      EXPECT_TRUE(bits(gathered(placed.grad())) == bits(plain.grad())) << to_string(layout);
      const NDArray u = builtin::uniform_like(place(x, layout), third, 0, std::source_location::current());
      parts += layout_of(u) == layout && !layout.replicated();
    }
  }
  EXPECT_EQ(parts, 13) << "cut by axes 1 and 2 at once, each draws the whole";
  // There the row is made of others; a call in place, which is not, is refused.
  const NDArray cut = place(x, mesh_, {{"dp", shard(1)}, {"tp", shard(2)}});
  const Operator& row = Registry::instance().get("dropout");
  const DropoutAttributes a{7, 8, 9, 3, 0.4};
  EXPECT_TRUE(bits(gathered(apply(row, {&cut}, a))) == bits(apply(row, {&x}, a)));
  EXPECT_THROW(apply_into(row, {&cut}, a, {.into = std::span(&cut, 1)}), ArrayError);
}

TEST_F(Placing, RulesThatAreComposedGiveTheSameNumbers) {
  const auto train = [&](auto rule, bool on_mesh, bool fused) {
    struct Net {
      nn::Linear up{5, 7}, down{7, 3};
      NDArray operator()(const NDArray& x) const { return down(relu(up(x))); }
    } net;
    if (on_mesh) {
      nn::place(
          net, mesh_,
          {{"tp", {{"up", {.weight = shard(0), .bias = shard(0)}}, {"down", {.weight = shard(1), .out = replicate}}}}});
    }
    nn::initialise(net, 4, {}, {.dtype = DType::f64});
    nn::Optimizer opt(net, rule, {}, {.fused = fused});
    for (int step = 0; step < 3; ++step) {
      const NDArray x = test::made_up({6, 5}, 30 + step);
      mean(square(net(on_mesh ? place(x, mesh_, {{"dp", shard(0)}}) : x))).backward();
      opt.step();
    }
    std::vector<double> all_of_it;
    for (const nn::Named& p : nn::parameters(net)) {
      for (const double v : gathered(p.state->value).template to_vector<double>()) all_of_it.push_back(v);
    }
    return all_of_it;
  };
  for (const bool fused : {true, false}) {
    test::expect_close(train(nn::AdamW{.lr = 0.01}, true, fused), train(nn::AdamW{.lr = 0.01}, false, fused), 1e-12);
    test::expect_close(train(nn::Sgd{.lr = 0.1, .momentum = 0.9}, true, fused),
                       train(nn::Sgd{.lr = 0.1, .momentum = 0.9}, false, fused), 1e-12);
  }
  test::expect_close(train(nn::Lion{.lr = 0.01}, true, false), train(nn::Lion{.lr = 0.01}, false, false), 1e-12);
  // Norms and means of the whole parameter, which is cut.
  test::expect_close(train(nn::Lamb{.lr = 0.01}, true, false), train(nn::Lamb{.lr = 0.01}, false, false), 1e-12);
  const nn::Adafactor adafactor{.lr = 0.1, .beta1 = 0.9};
  test::expect_close(train(adafactor, true, false), train(adafactor, false, false), 1e-12);
}

/// Written under one layout, read under another and on one device: training goes on with the same numbers.
TEST_F(Placing, FilesHaveWholeArrays) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "placing";
  std::filesystem::create_directories(folder);
  const std::string file = (folder / "net.safetensors").string();
  const auto step = [&](const Gpt& net, nn::Optimizer& opt, int i, const Mesh& mesh) {
    const NDArray x = tokens(4, 7, 10 + i, 53), y = tokens(4, 7, 20 + i, 53);
    const nn::Evaluation gradients({.gradients = true});
    if (mesh) {
      const MeshScope scope(mesh);
      const Placements rows = mesh.name(0) == "dp" ? Placements{{"dp", shard(0)}} : Placements{};
      net.loss(place(x, mesh, rows), place(y, mesh, rows)).backward();
    } else {
      net.loss(x, y).backward();
    }
    opt.step();
  };
  Gpt first{.p = 0};
  nn::place(first, mesh_, megatron(first, shard(1)));
  nn::initialise(first, 3, {}, {.dtype = DType::f64});
  nn::Optimizer opt = adam(first);
  for (int i = 0; i < 2; ++i) step(first, opt, i, mesh_);
  nn::save(file, {{"net", first}, {"opt", opt}});
  for (int i = 2; i < 4; ++i) step(first, opt, i, mesh_);

  const Mesh tp({{"tp", 3}}, test::device_kind()), none;
  for (const Mesh& mesh : {tp, none}) {
    Gpt net{.p = 0};
    if (mesh) nn::place(net, mesh, megatron(net, replicate));
    nn::Optimizer again = adam(net);
    nn::load(file, {{"net", net}, {"opt", again}});
    EXPECT_EQ(again.steps(), 2);
    for (int i = 2; i < 4; ++i) step(net, again, i, mesh);
    EXPECT_LT(apart(net, first), 1e-9);
  }
  // Into a net that has values on a mesh; and an optimiser that was made before its net was placed goes on.
  Gpt late{.p = 0};
  nn::initialise(late, 8, {}, {.dtype = DType::f64});
  nn::Optimizer other = adam(late);
  step(late, other, 0, none);
  nn::place(late, mesh_, megatron(late, replicate));
  nn::load(file, {{"net", late}, {"opt", other}});
  for (int i = 2; i < 4; ++i) step(late, other, i, mesh_);
  EXPECT_LT(apart(late, first), 1e-9);
  nn::to(late, test::device());
  EXPECT_FALSE(layout_of(late.token.weight.value()));
  step(late, other, 4, none);
  step(first, opt, 4, mesh_);
  EXPECT_LT(apart(late, first), 1e-9);
}

/// A shard of a gradient fails: no parameter changes at any place, and training goes on after recover().
TEST_F(Placing, AFailureAtOnePlaceStepsNone) {
  Gpt net{.p = 0};
  nn::place(net, mesh_, megatron(net, replicate));
  nn::initialise(net, 3);
  nn::Optimizer opt = adam(net);
  const NDArray x = tokens(4, 7, 1, 53);
  const auto backward = [&] {
    const MeshScope scope(mesh_);
    const nn::Evaluation gradients({.gradients = true});
    const NDArray on_mesh = place(x, mesh_, {{"dp", shard(0)}});
    net.loss(on_mesh, on_mesh).backward();
  };
  const auto all_bits = [&] {
    std::string all_of_it;
    for (const nn::Named& p : nn::parameters(net)) {
      for (const NDArray& shard : shards_of(p.state->value)) all_of_it += bits(shard);
    }
    return all_of_it;
  };
  backward();
  opt.step();
  const std::string before = all_bits();
  backward();
  const NDArray gradient = net.blocks[0].up.weight.grad();
  const NDArray bad = test::broken(shards_of(gradient)[3]);
  builtin::Placed::of(gradient)->shards()[3].assign(bad);
  opt.step();
  EXPECT_THAT(what_of([&] { gathered(net.token.weight.value()).wait(); }), HasSubstr("bad batch"));
  opt.recover();
  EXPECT_TRUE(all_bits() == before);
  backward();
  opt.step();
  EXPECT_FALSE(all_bits() == before);
}

/// Before there are values, and on a mesh that is larger than the machine.
TEST_F(Placing, ExplainSaysWhatATableDoes) {
  struct Net {
    nn::Linear up{8, 12}, down{12, 8};
    nn::BatchNorm norm{8};
  } net;
  const Mesh mesh({{"dp", 4}, {"tp", 2}}, test::device_kind());
  const std::vector<nn::AxisLayouts> tables{
      {.axis = "dp", .zero = 3},
      {"tp", {{"up|none", {.weight = shard(0), .bias = shard(0)}}, {"down", {.weight = shard(1), .out = replicate}}}}};
  EXPECT_EQ(nn::explain(net, mesh, tables),
            "up.weight          (12, 8)  dp:shard(1) tp:shard(0)  48 B of 384 B  tp 'up|none'  dp zero 3\n"
            "up.bias            (12,)    tp:shard(0)              24 B of 48 B   tp 'up|none'\n"
            "down.weight        (8, 12)  dp:shard(0) tp:shard(1)  48 B of 384 B  tp 'down'  dp zero 3\n"
            "down.bias          (8,)     dp:shard(0)              8 B of 32 B    tp 'down'  dp zero 3\n"
            "norm.weight        (8,)     dp:shard(0)              8 B of 32 B    dp zero 3\n"
            "norm.bias          (8,)     dp:shard(0)              8 B of 32 B    dp zero 3\n"
            "norm.running_mean  (8,)     replicate                32 B of 32 B\n"
            "norm.running_var   (8,)     replicate                32 B of 32 B\n"
            "at most 208 B of 976 B at a place\n");
  EXPECT_FALSE(net.up.weight.state()->layout);
  EXPECT_THAT(what_of([&] { nn::explain(net, mesh, {{"ep", {}}}); }), HasSubstr("no axis ep"));
  EXPECT_THAT(what_of([&] { nn::explain(net, mesh, {{"tp", {{"upp", {}}}}}); }), HasSubstr("[nn::explain]"));
  nn::initialise(net, 1, {}, {.dtype = DType::f64});
  EXPECT_THAT(nn::explain(net, mesh), HasSubstr("replicate  768 B of 768 B"));
}

TEST_F(Placing, TablesThatDoNotFitAreRefused) {
  struct Net {
    nn::Linear up{4, 6}, down{6, 2};
    nn::Lstm memory{2, 3};
  } net;
  nn::initialise(net, 1);
  const auto refused = [&](const std::vector<nn::AxisLayouts>& tables) {
    const std::string text = what_of([&] { nn::place(net, mesh_, tables); });
    EXPECT_FALSE(layout_of(net.up.weight.value())) << "nothing was changed";
    const std::size_t colon = text.find(": ");
    return text.substr(0, text.find(' ')) + text.substr(colon + 1);
  };
  EXPECT_EQ(refused({{"tp", {{"upp", {.weight = shard(0)}}}}}),
            "[nn::place] the rule 'upp' for tp is the first match of none of the 3 parts of the net that have arrays");
  EXPECT_EQ(refused({{"tp", {{"*", {.weight = shard(0)}}}}}),
            "[nn::place] the rule '*' says something of 'memory.weight', which the net does not have");
  EXPECT_EQ(refused({{"tp", {{"memory", {.out = replicate}}}}}),
            "[nn::place] the rule 'memory' says something of 'memory.weight', which the net does not have");
  EXPECT_EQ(refused({{"tp", {}}, {"tp", {}}}), "[nn::place] two tables for the axis tp");
  EXPECT_EQ(refused({{"tp", {{"up", {.out = partial()}}}}}), "[nn::place] the rule 'up' reshards to partial");
  EXPECT_EQ(refused({{"tp", {{"up", {.bias = shard(1)}}}}}), "[nn::place] 'up.bias' (6,): shard(1) of 1 axes");
  EXPECT_EQ(refused({{"tp", {{"up", {.weight = partial()}}}}}),
            "[nn::place] 'up.weight' (6, 4): an array of a net has no terms to be partial of");
  EXPECT_THAT(refused({{"tp", {{"up", {.weight = shard(0).by(4)}}}}}), HasSubstr("6 is no multiple of 4"));
  EXPECT_THAT(refused({{"ep", {}}}), HasSubstr("no axis ep"));
  EXPECT_THAT(what_of([&] { nn::place(net, Mesh()); }), HasSubstr("no mesh"));
  nn::place(
      net, mesh_,
      {{"tp", {{"up", {.weight = shard(0), .bias = shard(0)}}, {"memory", {.others = {{"weight_ih", shard(0)}}}}}}});
  EXPECT_EQ(to_string(layout_of(net.memory.weight_ih.value())), "tp:shard(0)");
  EXPECT_THAT(nn::describe(net), HasSubstr("tp:shard(0)"));
  EXPECT_THAT(what_of([&] { net.up(zeros({2, 4})); }), HasSubstr("on none"));
  nn::place(net, Mesh({{"x", 3}}, test::device_kind()), {{"x", {{"up", {.weight = shard(1), .out = replicate}}}}});
  EXPECT_EQ(to_string(layout_of(net.up.weight.value())), "x:shard(1)");
  const auto copy = nn::clone(net);
  EXPECT_EQ(layout_of(copy.up.weight.value()), layout_of(net.up.weight.value()));
  nn::blend(copy, net, 0.5);
  struct Plain {
    nn::Linear up{4, 6}, down{6, 2};
    nn::Lstm memory{2, 3};
  } plain;
  nn::initialise(plain, 7);
  nn::blend(net, plain, 1);
  EXPECT_TRUE(bits(gathered(net.up.weight.value())) == bits(plain.up.weight.value()));
  EXPECT_EQ(to_string(layout_of(net.up.weight.value())), "x:shard(1)");
  nn::blend(plain, copy, 1);
  EXPECT_TRUE(bits(gathered(copy.up.weight.value())) == bits(plain.up.weight.value()));
  net.up.weight = full({6, 4}, 0.25);
  EXPECT_EQ(gathered(net.up.weight.value()).to_vector<float>(), std::vector<float>(24, 0.25F));
  nn::initialise(net, 7, {}, {.again = true});
  EXPECT_EQ(to_string(layout_of(net.up.weight.value())), "x:shard(1)");
}

/// What cannot be done leaves a net as it was.
TEST_F(Placing, WhatFailsChangesNothing) {
  struct Net {
    nn::Linear up{4, 6}, down{6, 2};
    NDArray operator()(const NDArray& x) const { return down(relu(up(x))); }
  } net;
  nn::initialise(net, 1);
  EXPECT_THAT(what_of([&] { nn::place(net, Mesh({{"dp", 8}}, test::device_kind())); }), HasSubstr("no device"));
  EXPECT_FALSE(layout_of(net.up.weight.value()));
  EXPECT_FALSE(net.up.weight.state()->layout);
  nn::place(
      net, mesh_,
      {{"tp", {{"up", {.weight = shard(0), .bias = shard(0)}}, {"down", {.weight = shard(1), .out = replicate}}}}});
  const Device missing{test::device_kind(), 99};
  EXPECT_THAT(what_of([&] { nn::to(net, missing); }), HasSubstr("no device"));
  const NDArray x = place(ones({2, 4}), mesh_);
  EXPECT_EQ(to_string(layout_of(net(x))), "replicate") << "the layers still add up their terms";
  const nn::Sequential stages{nn::Linear{4, 6}, nn::Linear{6, 2}};
  nn::initialise(stages, 1);
  nn::place(stages, mesh_);
  const Spec input{{2, 4}, DType::f32, test::device()};
  const parallel::PipelineOptions two{.devices = {test::device(), test::device()}};
  EXPECT_THAT(what_of([&] { parallel::Pipeline(stages, input, two); }),
              HasSubstr("is on a mesh, replicate: stages have one"));
  nn::to(net, test::device());
  EXPECT_FALSE(net.up.weight.state()->layout);
  EXPECT_EQ(net(ones({2, 4})).shape(), (Dims{2, 2}));
}

/// Replicated by a MeshScope alone, without nn::place: files are read into it, and nn::to brings it back.
TEST_F(Placing, NetsThatAMeshScopeMadeAreFilledFromFiles) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "placing_scope";
  std::filesystem::create_directories(folder);
  const std::string file = (folder / "net.safetensors").string();
  struct Net {
    nn::Linear up{4, 6};
  } net;
  {
    const MeshScope scope(mesh_);
    nn::initialise(net, 1);
  }
  ASSERT_TRUE(layout_of(net.up.weight.value()));
  const std::string before = bits(gathered(net.up.weight.value()));
  nn::save(file, {{"net", net}});
  {
    const NoGrad off;
    net.up.weight.value().fill(0);
  }
  nn::load(file, {{"net", net}});
  EXPECT_TRUE(bits(gathered(net.up.weight.value())) == before);
  nn::to(net, test::device());
  EXPECT_FALSE(layout_of(net.up.weight.value()));
  EXPECT_TRUE(bits(net.up.weight.value()) == before);
}

/// Gradients in a file, and gradients whose shards are windows of larger arrays: a cut weight that is gathered for use.
TEST_F(Placing, GradientsOfGatheredWeightsAreSteppedAndSaved) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "placing_gradients";
  std::filesystem::create_directories(folder);
  const std::string file = (folder / "net.safetensors").string();
  struct Net {
    nn::Linear up{4, 6};
  } net, plain;
  nn::place(net, mesh_, {{"tp", {{"up", {.weight = shard(1)}}}}});
  for (Net* one : {&net, &plain}) nn::initialise(*one, 1, {}, {.dtype = DType::f64});
  nn::Optimizer opt(net, nn::AdamW{.lr = 0.1}), other(plain, nn::AdamW{.lr = 0.1});
  for (int step = 0; step < 3; ++step) {
    const NDArray x = test::made_up({3, 4}, 50 + step);
    const NDArray weight = reshard(net.up.weight.value(), {{"tp", replicate}});
    mean(square(linear(place(x, mesh_), weight, net.up.bias->value()))).backward();
    mean(square(linear(x, plain.up.weight, plain.up.bias->value()))).backward();
    nn::Gradients gradients(net);
    nn::save(file, {{"net", net}, {"gradients", gradients}});
    const std::string before = bits(gathered(net.up.weight.grad()));
    nn::clip_gradients(net, 1e-3);
    nn::load(file, {{"net", net}, {"gradients", gradients}});
    EXPECT_EQ(to_string(layout_of(net.up.weight.grad())), "tp:shard(1)");
    EXPECT_TRUE(bits(gathered(net.up.weight.grad())) == before);
    opt.step();
    other.step();
    EXPECT_LT(apart(net, plain), 1e-12);
  }
}

}  // namespace
}  // namespace sluice
