// Meshes, layouts, arrays on meshes: what they say, and what is refused. placement_exhaustive_test.cc has the values of
// all rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operators_test_support.h"
#include "placement_support.h"

namespace sluice::testing {
namespace {

using Cuts = std::vector<std::int64_t>;

/// Four logical devices, and a mesh of 2 x 2 of them.
class Placement : public ::testing::Test {
 protected:
  test::DefaultEngine engine_{{.threads = 2, .logical_cpus = 4}};
  const Mesh mesh_{{{"dp", 2}, {"tp", 2}}, test::device_kind()};
  const Mesh two_{{{"tp", 2}}, test::device_kind()};
};

std::string without_line(std::string text) {
  const std::size_t bracket = text.find("] "), colon = text.find(": ", bracket);
  return text.substr(0, bracket + 2) + text.substr(colon + 2);
}

TEST_F(Placement, MeshesCountPlacesRowByRow) {
  const Mesh mesh({{"pp", 2}, {"dp", 3}, {"tp", 4}});
  EXPECT_EQ(mesh.places(), 24);
  EXPECT_EQ(mesh.axis("dp"), 1);
  EXPECT_EQ(mesh.coordinate(17, 0), 1);
  EXPECT_EQ(mesh.coordinate(17, 1), 1);
  EXPECT_EQ(mesh.coordinate(17, 2), 1);
  EXPECT_EQ(mesh.device(23), cpu(23));
  EXPECT_EQ(to_string(mesh), "pp 2 x dp 3 x tp 4 on cpu(0) to cpu(23)");
  EXPECT_EQ(mesh, Mesh({{"pp", 2}, {"dp", 3}, {"tp", 4}}));
  EXPECT_FALSE(mesh == Mesh({{"pp", 2}, {"dp", 3}, {"tp", 4}}, DeviceKind::gpu));
  EXPECT_FALSE(Mesh());
  const auto refused = [](auto f) { return without_line(message<UsageError>(f)); };
  EXPECT_EQ(refused([] { Mesh(std::vector<Mesh::Axis>{}); }), "[Mesh] 0 axes; a mesh has 1 to 8");
  EXPECT_EQ(refused([] { Mesh({{"a", 2}, {"a", 2}}); }), "[Mesh] two axes are called a");
  EXPECT_EQ(refused([] { Mesh({{"", 2}}); }), "[Mesh] an axis without a name");
  EXPECT_EQ(refused([] { Mesh({{"a", 0}}); }), "[Mesh] the axis a has size 0");
  EXPECT_EQ(refused([] { Mesh({{"a", 256}}); }), "[Mesh] 256 places; there are no more devices than 255");
  EXPECT_EQ(refused([] { Mesh({{"a", 2}}, {cpu(0)}); }), "[Mesh] 1 devices for 2 places");
  EXPECT_EQ(refused([&] { (void)mesh.axis("ep"); }), "[Mesh] no axis ep; there are pp, dp, tp");
}

TEST_F(Placement, CutsAreEvenAsFarAsTheyCanBe) {
  const Mesh three({{"x", 3}});
  EXPECT_EQ(Layout(three, {7}, {{"x", shard(0)}}).cuts(0), (Cuts{0, 2, 4, 7}));
  EXPECT_EQ(Layout(three, {2}, {{"x", shard(0)}}).cuts(0), (Cuts{0, 0, 1, 2}));
  EXPECT_EQ(Layout(three, {0}, {{"x", shard(0)}}).cuts(0), (Cuts{0, 0, 0, 0}));
  EXPECT_EQ(Layout(three, {4, 20}, {{"x", shard(-1).by(5)}}).cuts(1), (Cuts{0, 5, 10, 20}));
  // The first axis of the mesh cuts the whole, the next each piece.
  const Layout both(mesh_, {7}, {{"tp", shard(0)}, {"dp", shard(0)}});
  EXPECT_EQ(both.cuts(0), (Cuts{0, 1, 3, 5, 7}));
  EXPECT_EQ(both.begin(2), (Dims{3}));
  EXPECT_EQ(both.extent(2), (Dims{2}));
  EXPECT_EQ(to_string(both), "dp:shard(0) tp:shard(0)");
  // What is not named stays, cuts at multiples too.
  const Layout by_three(mesh_, {12}, {{"dp", shard(0).by(12)}});
  EXPECT_EQ(by_three.cuts(0), (Cuts{0, 0, 12}));
  EXPECT_EQ(by_three.with({{"tp", shard(0)}}).cuts(0), (Cuts{0, 0, 0, 6, 12}));
  EXPECT_EQ(both.with({{"tp", replicate}}), Layout(mesh_, {7}, {{"dp", shard(0)}}));
  EXPECT_EQ(both.with({{"tp", partial()}}).cuts(0), (Cuts{0, 3, 7}));
  const auto refused = [](auto f) { return without_line(message<UsageError>(f)); };
  EXPECT_EQ(refused([&] {
              Layout(three, {7}, {{"x", shard(1)}});
            }),
            "[layout] (7,) x:shard(1): the array has no such axis");
  EXPECT_EQ(refused([&] {
              Layout(three, {7}, {{"x", shard(0).by(2)}});
            }),
            "[layout] (7,) x:shard(0).by(2): 7 is no multiple of 2");
  EXPECT_EQ(refused([&] {
              Layout(three, {7}, {{"x", shard(0)}, {"x", replicate}});
            }),
            "[layout] the axis x is named twice");
}

TEST_F(Placement, ShardsAreThoseOfTheWhole) {
  const NDArray x = arange(35).reshape({5, 7}).to(test::device());
  const NDArray y = place(x, mesh_, {{"dp", shard(0)}, {"tp", shard(1)}});
  EXPECT_EQ(y.shape(), (Dims{5, 7}));
  const std::vector<NDArray> shards = shards_of(y);
  ASSERT_EQ(shards.size(), 4U);
  EXPECT_EQ(shards[0].shape(), (Dims{2, 3}));
  EXPECT_EQ(shards[3].shape(), (Dims{3, 4}));
  EXPECT_EQ(doubles_of(shards[1]), doubles_of(x.narrow(0, 0, 2).narrow(1, 3, 7)));
  EXPECT_EQ(put_together(y, "y"), doubles_of(x));
  x.fill(0);  // a copy was placed
  EXPECT_EQ(doubles_of(whole(y)), doubles_of(arange(35)));
}

/// Every layout of a (5, 7) array to every other: it is the same array, laid out as asked.
TEST_F(Placement, ReshardsFromAnyLayoutToAnyOther) {
  const NDArray x = drawn({5, 7}, 3).to(test::device());
  const std::vector<sluice::Placement> all_of_them{replicate, shard(0), shard(1), partial(), partial(ReduceOp::max)};
  int moved = 0;
  for (const auto& a : all_of_them) {
    for (const auto& b : all_of_them) {
      const NDArray from = placed_as(x, Layout(mesh_, x.shape(), {{"dp", a}, {"tp", b}}));
      if (a.kind == sluice::Placement::Kind::partial && b.kind == a.kind && !(a == b)) continue;  // of two kinds
      for (const auto& c : {replicate, shard(0), shard(1)}) {
        for (const auto& d : {replicate, shard(0), shard(1)}) {
          const std::string what = to_string(layout_of(from)) + " to " + to_string(c) + ", " + to_string(d);
          const NDArray to = reshard(from, {{"dp", c}, {"tp", d}});
          EXPECT_EQ(layout_of(to), Layout(mesh_, x.shape(), {{"dp", c}, {"tp", d}})) << what;
          EXPECT_LE(distance(put_together(to, what), doubles_of(x)), 1e-15) << what;
          ++moved;
        }
      }
    }
  }
  EXPECT_EQ(moved, 207);
  const NDArray y = placed_as(x, Layout(mesh_, x.shape(), {{"dp", shard(0)}}));
  EXPECT_EQ(without_line(message([&] {
              reshard(y, {{"tp", partial()}});
            })),
            "[reshard] dp:shard(0) to dp:shard(0) tp:partial(sum): a value has no terms to be partial of");
}

TEST_F(Placement, ReadingNeedsReplicas) {
  const NDArray x = place(arange(6).to(DType::f32), mesh_, {{"tp", shard(0)}});
  EXPECT_EQ(without_line(message([&] { (void)sum(x).item<float>(); })),
            "[item] an array on a mesh, tp:partial(sum): whole(x) first");
  EXPECT_EQ(without_line(message([&] { (void)x.to_vector<float>(); })),
            "[to_vector] an array on a mesh, tp:shard(0): whole(x) first");
  x.wait();
  EXPECT_EQ(whole(sum(x)).item<float>(), 15);
  const std::string held = message([&] { (void)whole(x).borrow<const float>(); });
  EXPECT_THAT(held, ::testing::HasSubstr("an array on a mesh, replicate: shards_of(x)[0] is a plain array of it"));
  EXPECT_EQ(whole(x).to_vector<float>(), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(whole(x).to_string(), arange(6).to(DType::f32).to_string());
}

TEST_F(Placement, ProgramsReadAsOnOneDevice) {
  const NDArray x = drawn({6, 8}, 1), w = drawn({10, 8}, 2), b = drawn({10}, 3);
  const auto loss = [](const NDArray& in, const NDArray& weight, const NDArray& bias) {
    const NDArray hidden = relu(linear(in, weight, bias));
    return mean(square(hidden.reshape({3, 2, 10}).permute({1, 0, 2}) * 2 - 1));
  };
  const NDArray v = w.detach().with_grad(), c = b.detach().with_grad();
  const NDArray plain = loss(x, v, c);
  plain.backward();
  for (const Placements& rows : {Placements{}, Placements{{"dp", shard(0).by(2)}}}) {
    for (const Placements& columns : {Placements{}, Placements{{"tp", shard(0)}}}) {
      const NDArray on = place(x, mesh_, rows), weight = place(w, mesh_, columns).with_grad();
      const NDArray bias = place(b, mesh_, columns).with_grad(), y = loss(on, weight, bias);
      EXPECT_NEAR(whole(y).item<double>(), plain.item<double>(), 1e-13);
      y.backward();
      EXPECT_EQ(layout_of(weight.grad()), layout_of(weight));
      EXPECT_LE(distance(put_together(weight.grad(), "weight"), doubles_of(v.grad())), 1e-13);
      EXPECT_LE(distance(put_together(bias.grad(), "bias"), doubles_of(c.grad())), 1e-13);
      weight.with_grad();
      loss(on, weight, bias).backward();  // adds into what is there
      EXPECT_LE(distance(put_together(weight.grad(), "weight"), doubles_of(v.grad() * 2)), 1e-13);
    }
  }
}

/// q, k and v of one array: their gradients are added as they lie, and added up over the mesh once.
TEST_F(Placement, UsesAreAddedBeforeTheOneReduction) {
  const NDArray x = place(drawn({4, 6}, 1), two_).with_grad();
  const NDArray q = place(drawn({8, 6}, 2), two_, {{"tp", shard(0)}});
  const NDArray k = place(drawn({8, 6}, 3), two_, {{"tp", shard(0)}});
  const NDArray y = sum(linear(x, q) * linear(x, k));
  const auto seen = std::make_shared<Communications>();
  const InterpreterScope scope(seen);
  whole(y).backward();
  ASSERT_EQ(seen->list().size(), 2U);  // of whole() itself, and one for x
  EXPECT_FALSE(seen->list()[0].backward);
  EXPECT_TRUE(seen->list()[1].backward);
  EXPECT_EQ(name_of(seen->list()[1].kind), "all_reduce");
  EXPECT_EQ(seen->list()[1].array.shape, (Dims{4, 6}));
}

TEST_F(Placement, WritesInPlaceAreWritesToTheShards) {
  NDArray x = place(drawn({4, 6}, 1), two_, {{"tp", shard(0)}});
  const NDArray before = x.copy();
  x += x * 2;
  EXPECT_LE(distance(put_together(x, "x"), doubles_of(whole(before) * 3)), 1e-15);
  x.narrow(1, 2, 4).fill(7);
  x(all, 0) = 5;
  EXPECT_EQ(doubles_of(whole(x)(all, 3)), (std::vector<double>(4, 7)));
  EXPECT_EQ(doubles_of(whole(x)(all, 0)), (std::vector<double>(4, 5)));
  const NDArray replicas = place(drawn({4, 6}, 2), two_);
  x.assign(replicas);  // a replicated operand is cut
  EXPECT_EQ(put_together(x, "x"), put_together(replicas, "replicas"));
}

TEST_F(Placement, RefusalsSayWhatWouldHelp) {
  const NDArray x = place(drawn({4, 6}, 1), two_, {{"tp", shard(0)}});
  const NDArray y = place(drawn({4, 6}, 2), two_, {{"tp", shard(1)}});
  const NDArray w = place(drawn({5, 6}, 3), two_).with_grad();
  const NDArray row = place(drawn({6}, 4), two_);
  const NDArray terms = sum(x, 0);
  const auto refused = [](auto f) { return without_line(message(f)); };
  EXPECT_EQ(refused([&] { x + y; }),
            "[add] (4, 6) f64 tp:shard(0) x (4, 6) f64 tp:shard(1): operand 1 is cut along another axis over tp: "
            "reshard(x, {{\"tp\", shard(0)}})");
  EXPECT_EQ(refused([&] { terms + row; }),
            "[add] (6,) f64 tp:partial(sum) x (6,) f64 replicate: not added up yet over tp: "
            "reshard(x, {{\"tp\", replicate}})");
  EXPECT_EQ(refused([&] { exp(terms); }),
            "[exp] (6,) f64 tp:partial(sum): not added up yet over tp: reshard(x, {{\"tp\", replicate}})");
  EXPECT_EQ(refused([&] { softmax(y); }),
            "[softmax] (4, 6) f64 tp:shard(1): operand 0 is cut along axis 1 over tp, which must be whole: "
            "reshard(x, {{\"tp\", replicate}})");
  EXPECT_EQ(refused([&] { linear(y, w); }),
            "[linear] (4, 6) f64 tp:shard(1) x (5, 6) f64 replicate: operand 1 wants a gradient and is to be cut: "
            "reshard(x, ..) as tp:shard(1) first");
  EXPECT_EQ(refused([&] {
              x + drawn({4, 6}, 1);
            }),
            "[add] (4, 6) f64 tp:shard(0) x (4, 6) f64 on no mesh: an array on a mesh and one that is on none: "
            "place(x, mesh) first, or hold a MeshScope where it is made");
  EXPECT_EQ(refused([&] {
              x.reshape({2, 12}).flatten();
              x.permute({1, 0}).flatten();
            }),
            "[reshape] (6, 4) tp:shard(1) -> (24,): axis 1 is cut over tp: reshard(x, {{\"tp\", replicate}})");
  EXPECT_EQ(refused([&] { x.narrow(0, 0, 2); }),
            "[slice] (4, 6) tp:shard(0) -> (2, 6): axis 0 is cut over tp: reshard(x, {{\"tp\", replicate}})");
  EXPECT_EQ(refused([&] {
              x + place(drawn({4, 6}, 1), Mesh({{"dp", 2}}, test::device_kind()));
            }),
            "[add] (4, 6) f64 tp:shard(0) x (4, 6) f64 replicate: arrays on two meshes: tp 2 on " +
                to_string(test::device(0)) + " and " + to_string(test::device(1)) + ", and dp 2 on " +
                to_string(test::device(0)) + " and " + to_string(test::device(1)));
  EXPECT_EQ(refused([&] {
              reshard(drawn({2}, 1), {{"tp", replicate}});
            }),
            "[reshard] an array on no mesh: place(x, mesh) first");
  EXPECT_EQ(refused([&] { place(drawn({2}, 1).with_grad(), two_); }),
            "[place] an array that wants a gradient: place x.detach(), and give that with_grad()");
  EXPECT_EQ(refused([&] {
              place(drawn({2}, 1), two_, {{"tp", partial()}});
            }),
            "[place] tp:partial(sum): an array has no terms to be partial of");
  EXPECT_EQ(refused([&] { place(x, two_); }), "[place] an array on a mesh already: reshard(x, ..)");
}

/// The feed-forward layer of Megatron: one all-reduce each way, whatever the mesh; under sequence parallelism a gather
/// and a scatter each way.
TEST_F(Placement, CommsAreKnownFromShapes) {
  const auto layer = [](const Mesh& mesh, const sluice::Placement& between) {
    const NDArray x = place(zeros({16, 8}), mesh, {{"tp", between}}).with_grad();
    const NDArray up = place(zeros({32, 8}), mesh, {{"tp", shard(0)}}).with_grad();
    const NDArray down = place(zeros({8, 32}), mesh, {{"tp", shard(1)}}).with_grad();
    const NDArray y = linear(gelu(linear(whole(x), up)), down);
    const NDArray out = reshard(y, {{"tp", between}});
    backward({out}, {zeros_like(out)});
  };
  const auto in_words = [&](const Mesh& mesh, const sluice::Placement& between) {
    std::string text;
    for (const Communication& one : comms([&] { layer(mesh, between); })) {
      text += name_of(one.kind) + " " + std::to_string(one.bytes) + (one.backward ? " back; " : "; ");
    }
    return text;
  };
  EXPECT_EQ(in_words(two_, replicate), "all_reduce 512; all_reduce 512 back; ");
  EXPECT_EQ(in_words(two_, shard(0)),
            "all_gather 256; reduce_scatter 256; all_gather 256 back; reduce_scatter 256 back; ");
  if (!test::on_streams()) {
    const Mesh eight({{"tp", 8}}, test::device_kind());  // there are four devices
    EXPECT_EQ(in_words(eight, replicate), "all_reduce 896; all_reduce 896 back; ");
    EXPECT_EQ(in_words(eight, shard(0)),
              "all_gather 448; reduce_scatter 448; all_gather 448 back; reduce_scatter 448 back; ");
  }
  const auto seen = std::make_shared<Communications>();
  {
    const InterpreterScope scope(seen);
    layer(two_, shard(0));
  }
  EXPECT_EQ(seen->list(), comms([&] { layer(two_, shard(0)); }));
  EXPECT_THAT(to_string(seen->list()), ::testing::HasSubstr("in all 2 reduce_scatter over tp: 512 B"));
}

/// What a reshard sends has a dual, which its gradient sends; where what uses the result has terms of its gradient,
/// those are added on the way.
TEST_F(Placement, WhatReshardsSendHasADual) {
  struct Dual {
    sluice::Placement from, to;
    const char *forward, *back, *back_of_terms;
  };
  const sluice::Placement rows = shard(0), columns = shard(1), terms = partial();
  const std::vector<Dual> duals{
      {replicate, rows, "", "all_gather", ""},
      {rows, replicate, "all_gather", "", "reduce_scatter"},
      {rows, columns, "all_to_all", "all_to_all", ""},
      {columns, rows, "all_to_all", "all_to_all", ""},
      {terms, replicate, "all_reduce", "", "all_reduce"},
      {terms, rows, "reduce_scatter", "all_gather", ""},
      {terms, columns, "reduce_scatter", "all_gather", ""},
      {replicate, replicate, "", "", "all_reduce"},
      {rows, rows, "", "", ""},
  };
  const auto run = [&](const Dual& dual, bool with_terms) {
    std::string forward, back;
    for (const Communication& one : comms([&] {
           // Terms are those of a product whose inner size is cut: its own gradient sends nothing.
           const bool product = dual.from.kind == sluice::Placement::Kind::partial;
           const NDArray a = place(zeros({6, 4}), two_, {{"tp", product ? columns : dual.from}}).with_grad();
           const NDArray x = product ? matmul(a, place(zeros({4, 4}), two_, {{"tp", rows}})) : a;
           NDArray y = reshard(x, {{"tp", dual.to}});
           if (with_terms) y = linear(y, place(zeros({8, 4}), two_, {{"tp", rows}}));
           backward({y}, {zeros_like(y)});
         })) {
      (one.backward ? back : forward) += name_of(one.kind);
    }
    return std::pair(forward, back);
  };
  for (const Dual& dual : duals) {
    SCOPED_TRACE(to_string(dual.from) + " to " + to_string(dual.to));
    EXPECT_EQ(run(dual, false), (std::pair<std::string, std::string>(dual.forward, dual.back)));
    if (dual.to == replicate) {
      EXPECT_EQ(run(dual, true), (std::pair<std::string, std::string>(dual.forward, dual.back_of_terms)));
    }
  }
}

TEST_F(Placement, WhatANetMakesIsReplicatedInAMeshScope) {
  const MeshScope scope(two_);
  RandomStream stream(3);
  const NDArray x = uniform({4, 6}, stream, 0, 1), mask = arange(6) < 3;
  EXPECT_EQ(layout_of(x), Layout(two_, {4, 6}));
  EXPECT_EQ(layout_of(mask), Layout(two_, {6}));
  put_together(x, "x");  // replicas are equal
  EXPECT_EQ(layout_of(x * mask.to(x.dtype())), layout_of(x));
  for (const Mesh& inner : {two_, Mesh({{"y", 3}}, test::device_kind())}) {
    const MeshScope inside(inner);
    const NDArray made = ones({4});
    EXPECT_EQ(layout_of(made), Layout(inner, {4}));
    for (const NDArray& shard : shards_of(made)) EXPECT_FALSE(layout_of(shard)) << "of the scope around it";
  }
  EXPECT_EQ(message<UsageError>([] { MeshScope no{Mesh()}; }).substr(0, 11), "[MeshScope]");
}

/// Where one shard has the view and another must be copied, all are copies: a write to x is no write to y.
TEST_F(Placement, AViewOfUnevenShardsIsAViewOfAllOrOfNone) {
  const NDArray x = place(drawn({3, 2, 2}, 1), two_, {{"tp", shard(0)}});
  const NDArray y = x.permute({0, 2, 1}).reshape({6, 2});
  const std::vector<double> before = put_together(y, "y");
  x.fill(0);
  EXPECT_EQ(put_together(y, "y"), before);
  EXPECT_EQ(put_together(place(zeros({0, 4}), two_, {{"tp", shard(0)}}).unsqueeze(1), "none").size(), 0U);
}

TEST_F(Placement, ShardsOnOneDeviceAreArraysOfTheirOwn) {
  const Mesh mesh({{"tp", 2}}, {test::device(), test::device()});
  NDArray y = whole(place(ones({1, 4}), mesh, {{"tp", shard(0)}}));
  y += 1;
  EXPECT_EQ(put_together(y, "y"), (std::vector<double>(4, 2)));
}

/// Gradients arrive as their arrays lie, whatever they pass through on the way.
TEST_F(Placement, GradientsOfWhatWasResharded) {
  const NDArray value = drawn({4, 6}, 1), weight = drawn({8, 6}, 2);
  struct Case {
    const char* name;
    std::function<NDArray(const NDArray&, const NDArray&)> f;  // of x as it is used, and the weight
    std::function<NDArray(const NDArray&)> after = [](const NDArray& z) { return z; };
  };
  const auto by_columns = [](const NDArray& z) { return layout_of(z) ? reshard(z, {{"tp", shard(1)}}) : z; };
  const Case cases[] = {
      {"a product", [](const NDArray& x, const NDArray& w) { return linear(x, w); }},
      {"a part", [](const NDArray& x, const NDArray& w) { return matmul(w, x.narrow(0, 1, 3).transpose()); }},
      {"another shape",
       [](const NDArray& x, const NDArray& w) {
         return linear(x.reshape({2, 2, 6}), w);
       }},
      {"cut across", [](const NDArray& x, const NDArray&) { return square(x); }, by_columns},
      {"a shape, cut across",
       [](const NDArray& x, const NDArray&) {
         return square(x.reshape({2, 12}));
       },
       by_columns},
      {"two uses", [](const NDArray& x, const NDArray& w) { return linear(x, w) * sum(x * x, -1, {.keep = true}); }},
  };
  for (const Case& c : cases) {
    const NDArray x = value.detach().with_grad();
    sum(square(c.after(c.f(x, weight)))).backward();
    const NDArray w = place(weight, two_, {{"tp", shard(0)}});
    for (const sluice::Placement& p : {replicate, shard(0), shard(1)}) {
      const NDArray placed = place(value, two_, {{"tp", p}}).with_grad();
      sum(square(c.after(c.f(whole(placed), w)))).backward();
      EXPECT_EQ(layout_of(placed.grad()), layout_of(placed)) << c.name;
      EXPECT_LE(distance(put_together(placed.grad(), c.name), doubles_of(x.grad())), 1e-12) << c.name;
      // A leaf of what was resharded, as a stage of a pipeline has.
      const NDArray leaf = whole(placed).detach().with_grad();
      sum(square(c.after(c.f(leaf, w)))).backward();
      EXPECT_EQ(layout_of(leaf.grad()), layout_of(leaf)) << c.name;
      EXPECT_LE(distance(put_together(leaf.grad(), c.name), doubles_of(x.grad())), 1e-12) << c.name;
    }
  }
}

TEST_F(Placement, WhatHooksAndProgramsGiveIsBroughtToTheArraysLayout) {
  const NDArray w = place(drawn({4, 6}, 1), two_, {{"tp", shard(0)}}).with_grad();
  GradientHook hook = on_gradient(w, [](const NDArray& g) { return whole(g) * 2; });
  sum(w * w).backward();
  EXPECT_EQ(layout_of(w.grad()), layout_of(w));
  hook.remove();
  sum(w * w).backward();  // 4 w, and 2 w
  EXPECT_LE(distance(put_together(w.grad(), "w"), doubles_of(whole(w.detach()) * 6)), 1e-14);
  w.set_grad(place(ones({4, 6}, DType::f64), two_));
  EXPECT_EQ(layout_of(w.grad()), layout_of(w));
  add_gradient(w, place(ones({4, 6}, DType::f64), two_));
  EXPECT_EQ(put_together(w.grad(), "w"), (std::vector<double>(24, 2)));
  std::vector<NDArray> terms;
  const NDArray x = place(drawn({4, 6}, 1), two_).with_grad();
  on_uses(x, [&](const std::vector<NDArray>& all_of_them) { terms = all_of_them; });
  const NDArray columns = place(drawn({8, 6}, 2), two_, {{"tp", shard(0)}});
  (whole(sum(linear(x, columns))) + sum(x)).backward();
  ASSERT_EQ(terms.size(), 2U);
  EXPECT_EQ(layout_of(sum_of_uses(terms)), layout_of(x));
}

TEST_F(Placement, TheGradientOfALeafMayLieOtherwise) {
  const NDArray w = place(drawn({5, 6}, 1), mesh_).with_grad();
  const NDArray plain = drawn({5, 6}, 1).with_grad(), rows = drawn({8, 6}, 2);
  const NDArray x = place(rows, mesh_, {{"dp", shard(0)}});
  const Layout cut = layout_of(w).with({{"dp", shard(0)}}), columns = layout_of(w).with({{"tp", shard(1)}});
  const auto backward = [&] { sum(linear(x, w)).backward(); };
  const auto is_right = [&](const char* lies) {
    EXPECT_EQ(to_string(layout_of(w.grad())), lies);
    EXPECT_LE(distance(put_together(w.grad(), "w"), doubles_of(plain.grad())), 1e-12) << lies;
  };
  set_gradient_layout(w, cut);
  const std::vector<Communication> list = comms(backward);
  ASSERT_EQ(list.size(), 1U) << to_string(list);
  EXPECT_EQ(name_of(list[0].kind), "reduce_scatter");
  for (int i = 0; i < 2; ++i) {
    backward();
    sum(linear(rows, plain)).backward();
  }
  is_right("dp:shard(0)");
  set_gradient_layout(w, columns);
  is_right("tp:shard(1)");
  (void)comms([&] { set_gradient_layout(w, cut); });  // a dry run leaves no trace
  is_right("tp:shard(1)");
  backward();
  sum(linear(rows, plain)).backward();
  is_right("tp:shard(1)");
  EXPECT_EQ(layout_of(grad(whole(sum(linear(x, w))), {w})[0]), columns);
  w.set_grad(place(ones({5, 6}, DType::f64), mesh_));
  EXPECT_EQ(layout_of(w.grad()), columns);

  const auto refused = [&](const NDArray& of, const Layout& layout) {
    return without_line(message([&] { set_gradient_layout(of, layout); }));
  };
  EXPECT_EQ(refused(plain, cut), "[set_gradient_layout] an array on no mesh: place(x, mesh) first");
  EXPECT_EQ(refused(x, layout_of(x)), "[set_gradient_layout] an array that is no leaf (with_grad()), or has no owner");
  EXPECT_EQ(without_line(message<UsageError>([&] { set_gradient_layout(w, Layout()); })),
            "[set_gradient_layout] no layout");
  EXPECT_EQ(refused(w, layout_of(x)), "[set_gradient_layout] dp:shard(0) of (8, 6) on " + to_string(mesh_) +
                                          " for the gradient of (5, 6) on " + to_string(mesh_));
  EXPECT_EQ(layout_of(w.grad()), columns);
}

/// Of a checkpoint's second call, and of gradients that are recorded themselves.
TEST_F(Placement, CheckpointsAndSecondDerivatives) {
  const NDArray value = drawn({4, 6}, 1), weight = drawn({8, 6}, 2);
  const auto f = [](const NDArray& x, const NDArray& w) { return sum(tanh(linear(x, w))); };
  const NDArray w = weight.detach().with_grad();
  const NDArray g = grad(f(value, w), {w}, {.create_graph = true})[0];
  sum(g * g).backward();
  for (const bool again : {false, true}) {
    const NDArray x = place(value, two_, {{"tp", shard(0)}}), v = place(weight, two_).with_grad();
    const NDArray y = again ? checkpoint([&](const NDArray& in) { return f(x, in); }, v) : f(x, v);
    if (again) {
      whole(y).backward();
      EXPECT_LE(distance(put_together(v.grad(), "v"), doubles_of(g)), 1e-13);
      continue;
    }
    const NDArray first = grad(whole(y), {v}, {.create_graph = true})[0];
    EXPECT_EQ(layout_of(first), layout_of(v));
    EXPECT_LE(distance(put_together(first, "first"), doubles_of(g)), 1e-13);
    sum(first * first).backward();
    EXPECT_LE(distance(put_together(v.grad(), "v"), doubles_of(w.grad())), 1e-12);
  }
}

/// A row of a program's own: with a rule, and without one.
TEST_F(Placement, RowsOfAProgramHaveRulesOfTheirOwn) {
  if (test::on_streams()) GTEST_SKIP() << "its kernel is the CPU's";
  const auto add_twice = [](const char* name, void (*rule)(Placing&)) -> const Operator& {
    const Operator& row = add_operator(name, [&](Operator& op) {
      op.infer = [](Signature& s) { s.output(s.shape(0), s.dtype()); };
      op.place = rule;
    });
    const Kernel kernel{.run =
                            [](ArrayContext& c) {
                              for (std::int64_t i = 0; i < c.input(0).count(); ++i) {
                                c.output().as<double>()[i] = 2 * c.input(0).as<double>()[i];
                              }
                            },
                        .dense_inputs = true,
                        .dense_outputs = true};
    row.add_kernel({.name = "test", .device = DeviceKind::cpu, .rank = 0}, {DType::f64}, kernel);
    return row;
  };
  static const Operator& with_rule = add_twice("test_placed_twice", [](Placing& p) {
    p.letters("m_->m_");
    p.linear(Linear::together);
  });
  static const Operator& without = add_twice("test_whole_twice", nullptr);
  const NDArray value = drawn({4, 6}, 1), x = place(value, two_, {{"tp", shard(0)}});
  EXPECT_LE(distance(put_together(apply(with_rule, {&x}), "rows"), doubles_of(value * 2)), 0);
  const NDArray terms = placed_as(value, Layout(two_, value.shape(), {{"tp", partial()}}));
  EXPECT_EQ(layout_of(apply(with_rule, {&terms})), layout_of(terms));
  EXPECT_THAT(message([&] { apply(without, {&x}); }), ::testing::HasSubstr("axis 0 over tp, which must be whole"));
  const NDArray replicas = whole(x);
  EXPECT_LE(distance(put_together(apply(without, {&replicas}), "replicas"), doubles_of(value * 2)), 0);
}

TEST_F(Placement, NothingIsDoneWhereOnePlaceCannot) {
  const Mesh mesh({{"tp", 2}}, {test::device(), null(0)});
  EXPECT_THROW(place(ones({4}), mesh), UsageError);
  EXPECT_EQ(layout_of(ones({2})).mesh(), Mesh());
  EXPECT_TRUE(layout_of(ones({2})).replicated());
  EXPECT_THROW(layout_of(ones({2})).with({{"tp", replicate}}), UsageError);
  EXPECT_EQ(doubles_of(where(whole(place(arange(4), two_)) > 1, place(ones({4}), two_), 0.0)),
            (std::vector<double>{0, 0, 1, 1}));
}

/// A shard that fails poisons what is made of it, and an overwrite heals.
TEST_F(Placement, PoisonStaysInTheShard) {
  const NDArray table = place(drawn({4, 6}, 1), two_);
  const NDArray rows =
      place(from(std::vector<std::int64_t>{0, 3, 9, 1}, {4}).to(test::device()), two_, {{"tp", shard(0)}});
  const NDArray y = take_rows(table, rows);
  const std::vector<NDArray> shards = shards_of(y);
  shards[0].wait();
  EXPECT_THROW(shards[1].wait(), Error);
  EXPECT_THROW(whole(y).to_vector<double>(), Error);
  default_engine().clear_errors();
}

}  // namespace
}  // namespace sluice::testing
