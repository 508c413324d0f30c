// per_shard: a program's own function at each place of a mesh, beside the same function of plain arrays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "../operators/placement_support.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;
using Arrays = std::vector<NDArray>;

class PerShard : public ::testing::Test {
 protected:
  NDArray drawn(const Dims& shape, std::uint64_t seed) const {
    RandomStream stream(seed);
    const DeviceScope scope(test::device());
    return uniform(shape, stream, -1, 1, DType::f64);
  }
  /// The gradients of sum(y * r) with respect to xs, r fixed, as plain arrays.
  std::vector<std::vector<double>> gradients(const NDArray& y, const Arrays& xs,
                                             const GradOptions& options = {}) const {
    NDArray r = drawn(y.shape(), 99);
    if (layout_of(y)) r = place(r, layout_of(y).mesh());
    const NDArray all = layout_of(y) ? whole(y) : y;
    std::vector<std::vector<double>> list;
    for (const NDArray& g : grad(sum(all * r), xs, options)) list.push_back(doubles_of(g));
    return list;
  }
  template <class F>
  std::string error(const F& f) const {
    try {
      f();
    } catch (const std::exception& e) {
      const std::string text = e.what();
      return text.substr(text.find(": ", text.find("] ")) + 2);
    }
    return "nothing";
  }

  test::DefaultEngine engine_{{.threads = 2, .logical_cpus = 4}};
  const Mesh mesh_{{{"dp", 2}, {"tp", 2}}, test::device_kind()};
};

/// A function of rows, whose weight is replicated: the rows' gradient stays where it is, the weight's has terms.
TEST_F(PerShard, RowsBesideAReplicatedWeight) {
  const auto f = [](const NDArray& x, const NDArray& w) { return softmax(matmul(x, w), 1); };
  for (const std::int64_t rows : {6, 5, 1, 0}) {
    SCOPED_TRACE(rows);
    const NDArray x = drawn({rows, 3}, 1).with_grad(), w = drawn({3, 4}, 2).with_grad();
    for (const Placements& cut : {Placements{{"dp", shard(0)}}, {{"dp", shard(0)}, {"tp", shard(-2)}}, {}}) {
      const NDArray px = place(x.detach(), mesh_, cut).with_grad(), pw = place(w.detach(), mesh_).with_grad();
      const NDArray y = per_shard(f, {px, pw}, cut);
      EXPECT_EQ(layout_of(y), Layout(mesh_, {rows, 4}, cut));
      EXPECT_EQ(put_together(y, "y"), doubles_of(f(x, w)));
      const auto got = gradients(y, {px, pw}), wanted = gradients(f(x, w), {x, w});
      EXPECT_EQ(got[0], wanted[0]);
      ASSERT_EQ(got[1].size(), wanted[1].size());
      for (std::size_t i = 0; i < got[1].size(); ++i) EXPECT_NEAR(got[1][i], wanted[1][i], 1e-14);
    }
  }
}

/// Columns of one operand beside rows of the other: terms of a product, over one axis of the mesh.
TEST_F(PerShard, TermsThatNobodyHasAddedYet) {
  const auto f = [](const NDArray& x, const NDArray& w) { return matmul(x, w); };
  const NDArray x = drawn({5, 7}, 1).with_grad(), w = drawn({7, 2}, 2).with_grad();
  const NDArray px = place(x.detach(), mesh_, {{"dp", shard(0)}, {"tp", shard(1)}}).with_grad();
  const NDArray pw = place(w.detach(), mesh_, {{"tp", shard(0)}}).with_grad();
  const NDArray y = per_shard(f, {px, pw}, {{"dp", shard(0)}, {"tp", partial()}});
  EXPECT_EQ(to_string(layout_of(y)), "dp:shard(0) tp:partial(sum)");
  const auto values = put_together(y, "y"), all = doubles_of(matmul(x, w));
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(values[i], all[i], 1e-14);
  const auto got = gradients(y, {px, pw}), wanted = gradients(matmul(x, w), {x, w});
  for (std::size_t k = 0; k < 2; ++k) {
    for (std::size_t i = 0; i < wanted[k].size(); ++i) EXPECT_NEAR(got[k][i], wanted[k][i], 1e-14) << k;
  }
}

/// Several results, of which one is replicated and one is not: the replicated one's gradient counts once.
TEST_F(PerShard, AReplicatedResultBesideAPart) {
  const NDArray x = drawn({4}, 1).with_grad(), px = place(x.detach(), mesh_).with_grad();
  const auto f = [this](const Arrays& in, int rank) {
    const int k = mesh_.coordinate(rank, 0);
    return Arrays{tanh(in[0]), square(in[0]).narrow(0, 2 * k, 2 * k + 2)};
  };
  const Arrays ys = per_shard_all(f, {px}, {{}, {{"dp", shard(0)}}});
  EXPECT_EQ(put_together(ys[0], "tanh"), doubles_of(tanh(x)));
  EXPECT_EQ(put_together(ys[1], "square"), doubles_of(square(x)));
  const auto got = doubles_of(grad(whole(sum(ys[0] * reshard(ys[1], {{"dp", replicate}}))), {px})[0]);
  const auto wanted = doubles_of(grad(sum(tanh(x) * square(x)), {x})[0]);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(got[i], wanted[i], 1e-15);
  // One alone: the other has no gradient.
  const Arrays again = per_shard_all(f, {px}, {{}, {{"dp", shard(0)}}});
  EXPECT_EQ(gradients(again[0], {px}), gradients(tanh(x), {x}));
}

/// Each place may give another number of rows; the result has them all.
TEST_F(PerShard, PartsOfAnySize) {
  const Mesh three({{"x", 3}}, test::device_kind());
  const NDArray x = drawn({5, 2}, 3).with_grad(), px = place(x.detach(), three, {{"x", shard(0)}}).with_grad();
  const auto f = [](const Arrays& in, int rank) {  // 0, 1 and 2 of each place's 1, 2 and 2 rows
    return Arrays{in[0].narrow(0, 0, rank) * 3.0};
  };
  const NDArray y = per_shard_all(f, {px}, {{{"x", shard(0)}}})[0];
  EXPECT_EQ(y.shape(), (Dims{3, 2}));
  EXPECT_EQ(layout_of(y).cuts(0), (std::vector<std::int64_t>{0, 0, 1, 3}));
  const NDArray plain = concat({x.narrow(0, 1, 2), x.narrow(0, 3, 5)}, 0) * 3.0;
  EXPECT_EQ(put_together(y, "y"), doubles_of(plain));
  EXPECT_EQ(gradients(y, {px}), gradients(plain, {x}));
}

TEST_F(PerShard, GradientsOfGradientsAndAnotherPass) {
  const auto f = [](const NDArray& x, const NDArray& w) { return tanh(x * w) * w; };
  const NDArray x = drawn({4, 3}, 1).with_grad(), w = drawn({3}, 2).with_grad();
  const NDArray px = place(x.detach(), mesh_, {{"dp", shard(0)}, {"tp", shard(1)}}).with_grad();
  const NDArray pw = place(w.detach(), mesh_, {{"tp", shard(0)}}).with_grad();
  const auto second = [&](const NDArray& y, const NDArray& a, const NDArray& b) {
    const NDArray total = layout_of(y) ? whole(sum(square(y))) : sum(square(y));
    const Arrays first = grad(total, {a, b}, {.create_graph = true});
    NDArray both = sum(square(first[0]));
    NDArray other = sum(first[1] * first[1] * first[1]);
    if (layout_of(both)) both = whole(both), other = whole(other);
    std::vector<double> list;
    for (const NDArray& g : grad(both + other, {a, b})) {
      for (const double v : doubles_of(g)) list.push_back(v);
    }
    return list;
  };
  const Placements cut{{"dp", shard(0)}, {"tp", shard(1)}};
  const auto got = second(per_shard(f, {px, pw}, cut), px, pw), wanted = second(f(x, w), x, w);
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-13) << i;
  const NDArray y = per_shard(f, {px, pw}, cut);
  const auto kept = gradients(y, {px, pw}, {.retain = true});
  EXPECT_EQ(kept, gradients(y, {px, pw}));
  EXPECT_THAT(error([&] { (void)gradients(y, {px, pw}); }), HasSubstr("freed"));
}

/// The gradients that are recorded are those of the call that was made, whatever f draws or reads.
TEST_F(PerShard, RecordedGradientsAreOfTheSameCall) {
  const NDArray x = place(drawn({4}, 1), mesh_, {{"dp", shard(0)}}).with_grad();
  const NDArray factor = drawn({2}, 2).copy();
  RandomStream stream(3);
  const auto f = [&](const NDArray& a) {
    return square(a) * factor.to(a.device()) * uniform(a.shape(), stream, 0, 1, DType::f64);
  };
  const NDArray y = per_shard(f, {x}, {{"dp", shard(0)}});
  const auto plain = gradients(y, {x}, {.retain = true});
  factor.fill(0);
  const NDArray r = place(drawn({4}, 99), mesh_);
  const NDArray first = grad(sum(whole(y) * r), {x}, {.create_graph = true})[0];
  EXPECT_EQ(doubles_of(first), plain[0]);
  const NDArray second = grad(whole(sum(first)), {x})[0];  // 2 of the factors: first / x
  const auto wanted = doubles_of(first / x), got = doubles_of(second);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(got[i], wanted[i], 1e-14);
}

/// In a checkpoint f runs twice, with the same draws, and leaves nothing behind the first time.
TEST_F(PerShard, InACheckpoint) {
  const NDArray x = drawn({6, 3}, 1), w = drawn({3, 3}, 2);
  const auto run = [&](bool checkpointed) {
    const NDArray px = place(x, mesh_, {{"dp", shard(0)}}).with_grad(), pw = place(w, mesh_).with_grad();
    std::vector<std::unique_ptr<RandomStream>> streams;
    for (int rank = 0; rank < mesh_.places(); ++rank) streams.push_back(std::make_unique<RandomStream>(7 + rank / 2));
    int calls = 0;
    const auto local = [&](const Arrays& in, int rank) {
      ++calls;
      const NDArray noise = uniform({in[0].size(0), 3}, *streams[static_cast<std::size_t>(rank)], 0, 1, DType::f64);
      return Arrays{tanh(matmul(in[0], in[1])) * noise};
    };
    const auto f = [&](const Arrays& in) {
      return Arrays{square(per_shard_all(local, {in[0] * 2.0, in[1]}, {{{"dp", shard(0)}}})[0])};
    };
    const NDArray y = checkpointed ? checkpoint(f, {px, pw})[0] : f({px, pw})[0];
    auto list = gradients(y, {px, pw});
    EXPECT_EQ(calls, checkpointed ? 8 : 4);
    list.push_back(put_together(y, "y"));
    return list;
  };
  EXPECT_EQ(run(true), run(false));
}

/// Within a checkpoint, f may have one of its own.
TEST_F(PerShard, InACheckpointWithAnother) {
  const NDArray x = drawn({6}, 1);
  const auto run = [&](bool checkpointed) {
    const Placements cut{{"dp", shard(0)}, {"tp", shard(0)}};  // a replica would have other draws
    const NDArray px = place(x, mesh_, cut).with_grad();
    RandomStream stream(3);
    const auto inner = [&](const NDArray& b) { return tanh(b) * uniform(b.shape(), stream, 0, 1, DType::f64); };
    const auto local = [&](const NDArray& a) { return checkpointed ? checkpoint(inner, a) : inner(a); };
    const auto f = [&](const NDArray& a) {
      const NDArray h = per_shard(local, {a}, cut);
      return square(
          per_shard([&](const NDArray& b) { return b * uniform(b.shape(), stream, 0, 1, DType::f64); }, {h}, cut));
    };
    const NDArray y = checkpointed ? checkpoint(f, px) : f(px);
    auto list = gradients(y, {px});
    list.push_back(put_together(y, "y"));
    return list;
  };
  EXPECT_EQ(run(true), run(false));
}

/// An input is what the checkpoint saw first, although it was written since then.
TEST_F(PerShard, InACheckpointWithAnInputThatWasWritten) {
  const auto run = [&](bool checkpointed) {
    const NDArray x = place(drawn({4}, 1), mesh_, {{"dp", shard(0)}}).with_grad();
    const NDArray w = place(drawn({4}, 2), mesh_, {{"dp", shard(0)}}).with_grad();
    const NDArray h = w * 2.0;
    const auto f = [&](const NDArray& a) {
      return per_shard([](const NDArray& b, const NDArray& c) { return tanh(b) * c; }, {a, h}, {{"dp", shard(0)}});
    };
    const NDArray y = checkpointed ? checkpoint(f, x) : f(x);
    h.fill(0);
    return gradients(y, {x, w});
  };
  EXPECT_EQ(run(true), run(false));
}

/// What f kept is freed as backward goes, and counted until then.
TEST_F(PerShard, TheTapeOfTheShardsGoesWithTheNode) {
  const NDArray px = place(drawn({4}, 1), mesh_, {{"dp", shard(0)}}).with_grad();
  std::weak_ptr<int> there;
  NDArray total;
  {
    const auto held = std::make_shared<int>(0);
    there = held;
    const auto f = [held](const NDArray& x) {
      const auto pass = [held](const Saved&, const Arrays& g) { return g; };
      return apply_custom({.forward = [](Saved&, const Arrays& in) { return Arrays{in[0] * 1.0}; }, .backward = pass},
                          {x})[0];
    };
    total = whole(sum(per_shard(f, {px}, {{"dp", shard(0)}})));
  }
  EXPECT_FALSE(there.expired());
  total.backward();
  EXPECT_TRUE(there.expired());
  // exp keeps its result of 2 x 8 bytes at each of four places, and so does what per_shard made of it.
  const auto twice = [](const NDArray& a) { return exp(exp(a)); };
  const auto once = [](const NDArray& a) { return exp(a); };
  const auto bytes = [&](const ShardFunction& f) { return kept_bytes({per_shard(f, {px}, {{"dp", shard(0)}})}, {px}); };
  EXPECT_EQ(bytes(twice) - bytes(once), 4 * 2 * 8);
  // What the program's own tape keeps of it counts once, and counts.
  const NDArray h = tanh(px);
  const std::size_t outside = kept_bytes({h}, {px});
  EXPECT_EQ(outside, 4 * 2 * 8U);
  EXPECT_EQ(kept_bytes({per_shard([](const NDArray& a) { return square(a); }, {h}, {{"dp", shard(0)}})}, {px}),
            2 * outside);
}

/// A result that nothing uses is not differentiated: zero times infinity would be no number.
TEST_F(PerShard, AResultThatNothingUses) {
  const NDArray px = place(zeros({4}, DType::f64).to(test::device()), mesh_, {{"dp", shard(0)}}).with_grad();
  const auto f = [](const Arrays& in, int) { return Arrays{in[0] * 2.0, log(in[0])}; };
  const Arrays ys = per_shard_all(f, {px}, {{{"dp", shard(0)}}, {{"dp", shard(0)}}});
  const std::vector<double> wanted(4, 2.0);
  const NDArray total = whole(sum(ys[0]));
  EXPECT_EQ(doubles_of(grad(total, {px}, {.create_graph = true})[0]), wanted);
  total.backward();
  EXPECT_EQ(doubles_of(px.grad()), wanted);
}

/// A shard may be a view, also one that repeats elements: the result is an array that can be written.
TEST_F(PerShard, ViewsAsResults) {
  const NDArray px = place(drawn({4, 3}, 1), mesh_, {{"dp", shard(0)}});
  NDArray wide = per_shard(
      [](const NDArray& a) {
        return sum(a, {1}, {.keep = true}).broadcast_to({2, 3});
      },
      {px}, {{"dp", shard(0)}});
  wide += 1.0;
  EXPECT_EQ(put_together(wide, "wide"),
            doubles_of(sum(drawn({4, 3}, 1), {1}, {.keep = true}).broadcast_to({4, 3}) + 1.0));
  const NDArray turned = per_shard([](const NDArray& a) { return a.transpose(); }, {px}, {{"dp", shard(1)}});
  EXPECT_EQ(put_together(turned, "turned"), doubles_of(drawn({4, 3}, 1).transpose()));
}

TEST_F(PerShard, ShapesAndTrafficWithoutElements) {
  const Mesh large({{"tp", 200}});
  const auto list = comms([&] {
    const NDArray x = place(zeros({400, 8}), large, {{"tp", shard(0)}}).with_grad();
    const NDArray w = place(zeros({8, 8}), large).with_grad();
    sum(per_shard([](const NDArray& a, const NDArray& b) { return relu(matmul(a, b)); }, {x, w}, {{"tp", shard(0)}}))
        .backward();
  });
  ASSERT_EQ(list.size(), 1U) << to_string(list);
  EXPECT_EQ(list[0].kind, Communication::Kind::all_reduce);
  EXPECT_TRUE(list[0].backward);
}

/// Under MeshScope what f makes from nothing is its place's own.
TEST_F(PerShard, OffInsideAreMeshScopes) {
  const NDArray x = place(drawn({4}, 1), mesh_, {{"dp", shard(0)}});
  const MeshScope scope(mesh_);
  const NDArray y =
      per_shard([](const NDArray& a) { return a + ones(a.shape(), DType::f64); }, {x}, {{"dp", shard(0)}});
  EXPECT_EQ(put_together(y, "y"), doubles_of(gathered(x) + 1.0));
  EXPECT_TRUE(layout_of(zeros({2})));
}

/// As ZeRO 3 keeps parameters: f sees them gathered.
TEST_F(PerShard, SeesAnArrayAsCallsDo) {
  const NDArray w = drawn({4, 2}, 1), x = drawn({3, 4}, 2);
  const NDArray px = place(x, mesh_, {{"dp", shard(0)}});
  const NDArray lies = with_call_layout(place(w, mesh_, {{"dp", shard(0)}}), Layout(mesh_, {4, 2})).with_grad();
  const NDArray plain = w.detach().with_grad();
  const auto f = [](const NDArray& a, const NDArray& b) { return matmul(a, b); };
  const NDArray y = per_shard(f, {px, lies}, {{"dp", shard(0)}});
  EXPECT_EQ(put_together(y, "y"), doubles_of(matmul(x, w)));
  const auto got = gradients(y, {lies})[0], wanted = gradients(matmul(x, plain), {plain})[0];
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-14);
}

TEST_F(PerShard, WhatDoesNotFitIsRefused) {
  const NDArray x = place(drawn({4, 4}, 1), mesh_, {{"dp", shard(0)}}), r = place(drawn({4}, 1), mesh_);
  const auto same = [](const NDArray& a) { return a; };
  const auto call = [&](const ShardFunction& f, const Arrays& in, const Placements& result) {
    return error([&] { (void)per_shard(f, in, result); });
  };
  EXPECT_EQ(
      call(same, {x}, {}),
      "result 0 is said to be replicated over dp, along which input 0 is cut: each place would have another value; "
      "let it be partial() or shard(axis) there");
  EXPECT_EQ(call(same, {drawn({2}, 1)}, {}), "input 0 is on no mesh: place(x, mesh) first");
  EXPECT_EQ(call(same, {sum(x, {0})}, {{"dp", shard(0)}}),
            "input 0 is dp:partial(sum): not added up yet: reshard it first");
  EXPECT_EQ(call(same, {}, {}), "no inputs: their mesh is where f is called");
  EXPECT_EQ(call(same, {x}, {{"dp", shard(2)}}), "result 0 is (2, 4) f64 at place 0: it has no axis for shard(2)");
  EXPECT_THAT(call(same, {x}, {{"pp", shard(0)}}), HasSubstr("no axis pp"));
  EXPECT_THAT(call(same, {x}, {{"dp", shard(0)}, {"dp", shard(0)}}), HasSubstr("dp twice"));
  EXPECT_EQ(call(same, {x, r}, {{"dp", shard(0)}}), "a function of 1 arrays, and 2 arrays for it");
  const auto by_rank = [](const Arrays& in, int rank) { return Arrays{in[0].narrow(1, 0, rank)}; };
  EXPECT_EQ(call(by_rank, {x}, {{"dp", shard(0)}}),
            "result 0 is (2, 1) f64 at place 1, and axis 1 has 0 at another place that has the same part of it");
  const auto types = [](const Arrays& in, int rank) { return Arrays{rank == 3 ? in[0].to(DType::f32) : in[0]}; };
  EXPECT_EQ(call(types, {x}, {{"dp", shard(0)}}),
            "result 0 is (2, 4) f32 at place 3, and result 0 is (2, 4) f64 at place 0");
  EXPECT_THAT(call([&](const NDArray&) { return x; }, {x}, {{"dp", shard(0)}}),
              HasSubstr("an array on a mesh: a plain"));
  const auto elsewhere = [this](const Arrays& in, int) { return Arrays{in[0].to(mesh_.device(0))}; };
  EXPECT_THAT(call(elsewhere, {x}, {{"dp", shard(0)}}), HasSubstr("at place 1 on "));
  EXPECT_EQ(call([](const Arrays&) { return Arrays{}; }, {x}, {{"dp", shard(0)}}),
            "f gave 0 arrays at place 0, wanted 1");
  EXPECT_EQ(
      call([](const NDArray&) -> NDArray { throw std::runtime_error("[f] a line: its own"); }, {x}, {{"dp", shard(0)}}),
      "its own");
  const NDArray leaf = place(drawn({4}, 1), mesh_, {{"dp", shard(0)}}).with_grad();
  const NDArray weight = drawn({}, 3).with_grad();
  for (const NDArray& input : {leaf, leaf.detach()}) {
    EXPECT_EQ(call([&](const NDArray& a) { return a * weight.to(a.device()); }, {input}, {{"dp", shard(0)}}),
              "f uses an array of () that wants a gradient and is no input: give it as one, or its detach()");
  }
  EXPECT_THAT(call([](const NDArray& a) { return max(a); }, {leaf}, {{"dp", partial(ReduceOp::max)}}),
              HasSubstr("partial(max) over dp, which has no gradient"));
  // Without a gradient it is what a place knows of a maximum.
  const NDArray most =
      per_shard([](const NDArray& a) { return max(a); }, {leaf.detach()}, {{"dp", partial(ReduceOp::max)}});
  EXPECT_EQ(doubles_of(most), doubles_of(max(drawn({4}, 1))));
}

}  // namespace
}  // namespace sluice::testing
