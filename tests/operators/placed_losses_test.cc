// Vocabularies that are cut: cross-entropy of logits by classes, and tables by rows, beside the same on plain arrays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "operators_test_support.h"
#include "placement_support.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

class PlacedLosses : public ::testing::Test {
 protected:
  NDArray labels(const Dims& shape, std::int64_t classes, std::uint64_t seed = 3) const {
    RandomStream stream(seed);
    return randint(shape, stream, 0, classes);
  }

  test::DefaultEngine engine_{{.threads = 2, .logical_cpus = 4}};
  const Mesh two_{{{"tp", 2}}, test::device_kind()}, three_{{{"tp", 3}}, test::device_kind()},
      four_{{{"tp", 4}}, test::device_kind()}, both_{{{"dp", 2}, {"tp", 2}}, test::device_kind()};
};

/// Options, dtypes and shapes; more places than classes; rows cut over another axis of the mesh.
TEST_F(PlacedLosses, CrossEntropyOfClassesThatAreCut) {
  struct Case {
    Dims shape;
    DType dtype = DType::f64;
  };
  const Case cases[] = {{{5, 7}}, {{6, 2}}, {{4, 301}}, {{2, 5, 3, 2}}, {{5, 7}, DType::f32}, {{5, 7}, DType::bf16}};
  int runs = 0;
  for (const Mesh& mesh : {two_, three_, four_, both_}) {
    for (const Case& c : cases) {
      const std::int64_t classes = c.shape[1];
      Dims of_labels{c.shape[0]};
      for (int axis = 2; axis < c.shape.rank(); ++axis) of_labels.push_back(c.shape[axis]);
      const NDArray x = drawn(c.shape, 1, c.dtype), y = labels(of_labels, classes);
      const NDArray weight = abs(drawn({classes}, 2, c.dtype)) + 0.5;
      for (int option = 0; option < 32; ++option) {
        CrossEntropyOptions options;
        if (option & 1) options.label_smoothing = 0.2;
        if (option & 2) options.ignore_index = 1;
        if (option & 4) options.reduction = option & 1 ? Reduction::sum : Reduction::none;
        if (option & 8) options.weight = weight;
        if (option & 16) options.divisor = 3;
        SCOPED_TRACE(to_string(mesh) + " " + to_string(c.shape) + " option " + std::to_string(option));
        const NDArray leaf = x.detach().with_grad();
        const NDArray loss = cross_entropy(leaf, y, options);
        sum(square(loss)).backward();

        Placements cut{{"tp", shard(1)}};
        if (mesh.axes() > 1) cut.emplace_back("dp", shard(0));
        const NDArray placed = place(x, mesh, cut).with_grad();
        if (options.weight.defined()) options.weight = place(weight, mesh);
        const NDArray names = place(y, mesh, mesh.axes() > 1 ? Placements{{"dp", shard(0)}} : Placements());
        NDArray its = cross_entropy(placed, names, options);
        EXPECT_EQ(its.dtype(), c.dtype);
        if (layout_of(its).partial()) its = whole(its);
        whole(sum(square(its))).backward();
        const double bound = c.dtype == DType::f64 ? 1e-12 : c.dtype == DType::f32 ? 1e-5 : 3e-2;
        EXPECT_LE(distance(put_together(loss, "loss"), put_together(its, "loss")), bound);
        EXPECT_EQ(to_string(layout_of(placed.grad())), to_string(layout_of(placed)));
        EXPECT_LE(distance(put_together(leaf.grad(), "gradient"), put_together(placed.grad(), "gradient")), bound);
        ++runs;
      }
    }
  }
  EXPECT_EQ(runs, 4 * 6 * 32);
}

/// One gather of 16 bytes a row, 24 with label smoothing; gradients are sent nothing.
TEST_F(PlacedLosses, OneGatherOfTwoNumbersARow) {
  const auto seen = [&](const Mesh& mesh, double smoothing) {
    return comms([&] {
      const NDArray x = place(zeros({10, 1000}), mesh, {{"tp", shard(1)}}).with_grad();
      const NDArray y = place(zeros({10}, DType::i64), mesh);
      cross_entropy(x, y, {.ignore_index = 5, .label_smoothing = smoothing}).backward();
    });
  };
  for (const Mesh& mesh : {two_, four_}) {
    for (const double smoothing : {0.0, 0.1}) {
      const std::vector<Communication> list = seen(mesh, smoothing);
      ASSERT_EQ(list.size(), 1U) << to_string(list);
      EXPECT_EQ(name_of(list[0].kind), "all_gather");
      EXPECT_EQ(list[0].bytes, 10 * (smoothing == 0 ? 16 : 24) * (mesh.places() - 1));
      EXPECT_FALSE(list[0].backward);
    }
  }
}

/// The loss is a difference of large numbers: as exact as where nothing is cut.
TEST_F(PlacedLosses, LargeLogits) {
  for (const float size : {1e3F, 1e6F, 1e7F}) {
    const NDArray x = full({1, 4}, size), y = labels({1}, 4);
    const NDArray placed = place(x, four_, {{"tp", shard(1)}}).with_grad();
    const NDArray loss = cross_entropy(placed, place(y, four_));
    loss.backward();
    EXPECT_NEAR(gathered(loss).item<float>(), std::log(4.0), 1e-6) << size;
    const NDArray leaf = x.detach().with_grad();
    cross_entropy(leaf, y).backward();
    EXPECT_LE(distance(doubles_of(leaf.grad()), put_together(placed.grad(), "gradient")), 1e-6) << size;
  }
}

/// Classes that are not possible, all of a place's too; labels out of range.
TEST_F(PlacedLosses, InfiniteLogitsAndWrongLabels) {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const double bound = dtype == DType::f64 ? 1e-12 : 1e-5;
    NDArray x = drawn({3, 6}, 1, dtype);
    x.narrow(1, 3, 6).fill(-INFINITY);
    const NDArray y = labels({3}, 3);
    const NDArray leaf = x.detach().with_grad();
    cross_entropy(leaf, y).backward();
    for (const Mesh& mesh : {two_, three_, four_}) {
      const NDArray placed = place(x, mesh, {{"tp", shard(1)}}).with_grad();
      const NDArray loss = cross_entropy(placed, place(y, mesh));
      loss.backward();
      EXPECT_LE(distance(doubles_of(cross_entropy(x, y)), doubles_of(loss)), bound);
      EXPECT_LE(distance(doubles_of(leaf.grad()), put_together(placed.grad(), "gradient")), bound);
      const NDArray wrong = place(from<std::int64_t>({0, 6, 1}, {3}).to(test::device()), mesh);
      for (const NDArray& at_place : shards_of(cross_entropy(placed, wrong))) {
        EXPECT_THAT(message<Error>([&] { at_place.wait(); }), HasSubstr("the label 6 of row 1 is not in [0, 6)"));
      }
    }
  }
}

TEST_F(PlacedLosses, WhatIsNotThereIsRefused) {
  const NDArray y = place(labels({3}, 8), two_);
  const NDArray leaf = place(drawn({3, 8}, 1), two_, {{"tp", shard(1)}}).with_grad();
  EXPECT_THAT(message([&] { grad(cross_entropy(leaf, y), {leaf}, {.create_graph = true}); }), HasSubstr("class_parts"));
  EXPECT_THAT(message([&] {
                cross_entropy(place(drawn({3, 9}, 1), two_, {{"tp", shard(1).by(3)}}), y);
              }),
              HasSubstr("the classes are cut at other places than r n / p: reshard the logits"));
  // Bytes are not to be added up.
  const NDArray bytes = place(ones({8, 2}, DType::u8), two_, {{"tp", shard(0)}});
  EXPECT_THAT(message([&] { take_rows(bytes, y); }),
              HasSubstr("which must be whole: reshard(x, {{\"tp\", replicate}})"));
  if (test::on_streams()) return;  // there are no six devices
  const Mesh nested({{"dp", 3}, {"tp", 2}}, test::device_kind());
  const auto by_both = [&](std::int64_t classes) {
    return comms([&] {
      const NDArray x = place(zeros({3, classes}), nested, {{"dp", shard(1)}, {"tp", shard(1)}});
      cross_entropy(x, place(zeros({3}, DType::i64), nested));
    });
  };
  EXPECT_THAT(message([&] { by_both(10); }), HasSubstr("the classes are cut at other places"));
  EXPECT_EQ(by_both(12).size(), 2U);
}

/// A table that is cut by rows: each place takes its own, and zeros for others.
TEST_F(PlacedLosses, TablesThatAreCutByRows) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i32}) {
    for (const std::int64_t rows : {11, 3}) {
      const NDArray table = drawn({rows, 5}, 1, dtype), y = labels({4, 2}, rows);
      const NDArray taken = embedding(table, y);
      for (const Mesh& mesh : {two_, three_, four_, both_}) {
        NDArray cut = place(table, mesh, {{"tp", shard(0)}});
        const NDArray where =
            place(y.to(DType::i32), mesh, mesh.axes() > 1 ? Placements{{"dp", shard(0)}} : Placements());
        if (is_floating(dtype)) cut = cut.with_grad();
        const NDArray its = embedding(cut, where);
        EXPECT_EQ(letters_of(layout_of(its)), mesh.axes() > 1 ? "S0P" : "P");
        EXPECT_EQ(put_together(its, "rows"), put_together(taken, "rows"));
        if (!is_floating(dtype)) continue;
        const NDArray leaf = table.detach().with_grad();
        sum(square(embedding(leaf, y))).backward();
        whole(sum(square(reshard(its, {{"tp", replicate}})))).backward();
        EXPECT_EQ(to_string(layout_of(cut.grad())), "tp:shard(0)");
        EXPECT_LE(distance(doubles_of(leaf.grad()), put_together(cut.grad(), "gradient")),
                  dtype == DType::bf16 ? 3e-2 : 1e-6);
        if (dtype != DType::f64) continue;
        const NDArray outside = place(from<std::int64_t>({0, rows}, {2}).to(test::device()), mesh);
        const NDArray none = take_rows(cut, outside);
        for (const NDArray& at_place : shards_of(none)) {
          EXPECT_THAT(message<Error>([&] { at_place.wait(); }), HasSubstr("the index " + std::to_string(rows)));
        }
      }
    }
  }
}

/// The bits of elements, that of -0.0 too.
std::vector<std::uint64_t> bits_of(const std::vector<double>& values) {
  std::vector<std::uint64_t> bits;
  for (const double value : values) bits.push_back(std::bit_cast<std::uint64_t>(value));
  return bits;
}

/// Tables that are whole, cut by rows and by columns, more places than rows; indices that are cut, with some named
/// twice and one never; the result's gradient in every layout. Rows that are taken have the bits of a plain table's.
/// So has its gradient, where no sum is made of parts.
TEST_F(PlacedLosses, GradientsOfTables) {
  int runs = 0, bitwise = 0;
  const auto run = [&](const Mesh& mesh, std::int64_t rows, DType dtype, const Placements& of_table,
                       const Placements& of_indices, const Placement& of_gradient) {
    NDArray table = drawn({rows, 5}, 1, dtype);
    table.narrow(0, 0, 1).fill(-0.0);
    const NDArray y = from<std::int64_t>({0, 2, 1, 0, rows - 1, 2, 0, 0, 1, 2, rows - 1, 2}, {4, 3});
    const NDArray weight = drawn({4, 3, 5}, 9, dtype), leaf = table.detach().with_grad(), taken = embedding(leaf, y);
    backward({taken}, {weight});

    const NDArray cut = place(table, mesh, of_table).with_grad();
    const NDArray its = embedding(cut, place(y, mesh, of_indices)), added = whole(its);
    SCOPED_TRACE(to_string(mesh) + " " + to_string(layout_of(cut)) + " -> " + to_string(layout_of(its)) + ", " +
                 to_string(of_gradient));
    const bool signs = !test::on_streams();  // there a row of another place is 0.0, which takes the sign of -0.0
    const std::vector<double> rows_of_it = put_together(added, "rows"), wanted_rows = doubles_of(taken);
    EXPECT_TRUE(signs ? bits_of(rows_of_it) == bits_of(wanted_rows) : rows_of_it == wanted_rows);
    const Layout lies(mesh, weight.shape(), {{mesh.name(mesh.axes() - 1), of_gradient}});
    backward({its}, {placed_as(weight, lies)});
    EXPECT_EQ(layout_of(cut.grad()), layout_of(cut));
    const std::vector<double> is = put_together(cut.grad(), "gradient"), wanted = doubles_of(leaf.grad());
    const double bound = dtype == DType::f64 ? 1e-14 : dtype == DType::f32 ? 1e-6 : 2e-2;
    EXPECT_LE(distance(is, wanted), bound);
    ++runs;
    if (!of_indices.empty() || of_gradient.kind == Placement::Kind::partial) return;
    EXPECT_TRUE(bits_of(is) == bits_of(wanted));
    ++bitwise;
  };
  for (const Placement& of_gradient : {Placement(replicate), shard(0), shard(1), shard(2), partial()}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      for (const std::int64_t rows : {11, 3}) {
        for (const Mesh& mesh : {two_, three_, four_}) {
          for (const Placement& p : {replicate, shard(0), shard(1)}) {
            run(mesh, rows, dtype, {{"tp", p}}, {}, of_gradient);
            if (p == replicate) continue;
            run(mesh, rows, dtype, {}, {{"tp", p}}, of_gradient);
            run(both_, rows, dtype, {{"tp", shard(0)}}, {{"dp", p}}, of_gradient);
            run(both_, rows, dtype, {{"tp", shard(1)}}, {{"dp", p}}, of_gradient);
          }
        }
      }
    }
  }
  EXPECT_EQ(runs, 5 * 3 * 2 * 3 * (3 + 2 * 3));
  EXPECT_EQ(bitwise, 4 * 3 * 2 * 3 * 3);
  // One axis of the mesh cannot cut the table and the indices; nor do two cut indices, which are taken as one list.
  const NDArray indices = place(labels({4, 2}, 4), two_, {{"tp", shard(1)}});
  EXPECT_THAT(message([&] {
                embedding(place(drawn({4, 2}, 1), two_, {{"tp", shard(0)}}), indices);
              }),
              HasSubstr("cut along another axis"));
  const NDArray by_both = place(labels({4, 2}, 4), both_, {{"dp", shard(0)}, {"tp", shard(1)}});
  EXPECT_THAT(message([&] {
                embedding(place(drawn({4, 2}, 1), both_), by_both);
              }),
              HasSubstr("axis 1 is cut over tp: reshard("));
}

/// A table that is the head's weight too, of a vocabulary that does not divide: its gradient is the sum of both uses,
/// and lies as it does.
TEST_F(PlacedLosses, ATableThatIsTheHeadToo) {
  constexpr std::int64_t classes = 1009;
  const NDArray table = drawn({classes, 12}, 1), x = labels({5, 7}, 40), y = labels({5, 7}, classes, 4);
  const auto loss = [](const NDArray& weight, const NDArray& tokens, const NDArray& next) {
    NDArray h = embedding(weight, tokens);
    if (layout_of(h)) h = reshard(h, {{"tp", replicate}});
    const NDArray logits = linear(tanh(h), weight);
    return cross_entropy(logits.reshape({-1, classes}), next.flatten(), {.label_smoothing = 0.1});
  };
  const NDArray leaf = table.detach().with_grad(), wanted = loss(leaf, x, y);
  wanted.backward();
  for (const Mesh& mesh : {two_, three_, both_}) {
    SCOPED_TRACE(to_string(mesh));
    const Placements rows = mesh.axes() > 1 ? Placements{{"dp", shard(0)}} : Placements();
    const NDArray weight = place(table, mesh, {{"tp", shard(0)}}).with_grad();
    for (int times = 1; times < 3; ++times) {
      const NDArray its = loss(weight, place(x, mesh, rows), place(y, mesh, rows));
      its.backward();
      EXPECT_NEAR(gathered(its).item<double>(), wanted.item<double>(), 1e-12);
      EXPECT_EQ(to_string(layout_of(weight.grad())), "tp:shard(0)");
      EXPECT_LE(distance(put_together(weight.grad(), "gradient"), doubles_of(leaf.grad() * times)), 1e-13);
    }
  }
}

}  // namespace
}  // namespace sluice::testing
