// What reshards do with sums of 16 bits, with the order of terms, and with a shard whose operation failed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "placement_support.h"

namespace sluice::testing {
namespace {

using Shards = std::vector<NDArray>;

class PlacementCollectives : public ::testing::Test {
 protected:
  /// Shards drawn anew for each place; replicas are equal.
  static NDArray drawn(const Layout& layout, DType dtype) {
    const Mesh& mesh = layout.mesh();
    Shards shards;
    for (int rank = 0; rank < mesh.places(); ++rank) {
      std::uint64_t seed = 7;
      for (int m = 0; m < mesh.axes(); ++m) {
        if (layout.on(m).kind != Placement::Kind::replicate) {
          seed = seed * 10 + 1 + static_cast<std::uint64_t>(mesh.coordinate(rank, m));
        }
      }
      RandomStream stream(seed);
      const DeviceScope scope(mesh.device(rank));
      shards.push_back(normal(layout.extent(rank), stream, 0, 1, dtype));
    }
    return builtin::Placed::array(layout, dtype, std::move(shards), std::source_location::current());
  }
  static std::string error_of(const NDArray& x) {
    try {
      x.wait();
      return {};
    } catch (const Error& e) {
      return e.what();
    }
  }

  test::DefaultEngine engine_{{.threads = 2, .logical_cpus = 6}};
  const Mesh three_{{{"dp", 3}}, test::device_kind()}, grid_{{{"dp", 2}, {"tp", 2}}, test::device_kind()};
};

TEST_F(PlacementCollectives, AddInTheOrderOfRanks) {
  const NDArray terms = drawn({three_, {4, 5}, {{"dp", partial()}}}, DType::f32);
  std::vector<float> wanted;
  const auto a = shards_of(terms)[0].to_vector<float>(), b = shards_of(terms)[1].to_vector<float>(),
             c = shards_of(terms)[2].to_vector<float>();
  for (std::size_t i = 0; i < a.size(); ++i) wanted.push_back(a[i] + b[i] + c[i]);
  for (const NDArray& sum : shards_of(whole(terms))) EXPECT_EQ(sum.to_vector<float>(), wanted);
  for (const int axis : {0, 1}) {
    const NDArray sum = whole(reshard(terms, {{"dp", shard(axis)}}));
    EXPECT_EQ(shards_of(sum)[0].to_vector<float>(), wanted) << "a reduce-scatter along axis " << axis;
  }
}

TEST_F(PlacementCollectives, RoundSumsOfSixteenBitsOnce) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const NDArray terms = drawn({three_, {8, 5}, {{"dp", partial()}}}, dtype);
    const auto value = [&](std::size_t r) { return shards_of(terms)[r].to(DType::f32).to_vector<float>(); };
    const std::vector<float> a = value(0), b = value(1), c = value(2);
    std::vector<float> sums;
    for (std::size_t i = 0; i < a.size(); ++i) sums.push_back(a[i] + b[i] + c[i]);
    const std::vector<double> wanted = doubles_of(from(sums, {8, 5}).to(dtype));
    EXPECT_EQ(doubles_of(whole(terms)), wanted) << name_of(dtype);
    EXPECT_EQ(doubles_of(reshard(terms, {{"dp", shard(0)}})), wanted) << name_of(dtype);
  }
}

/// One failed shard: the places that get an element of it have its error, with the one root, and the others do not.
TEST_F(PlacementCollectives, AFailedShardReachesThePlacesThatGetAnElementOfIt) {
  struct Case {
    Placements from, to;
    std::vector<bool> reached;  ///< by rank, where rank 1 (dp 0, tp 1) failed
  };
  const Placement s0 = shard(0), s1 = shard(1), sum = partial();
  const Case cases[] = {
      {{{"dp", s0}, {"tp", sum}}, {{"tp", replicate}}, {true, true, false, false}},  // all-reduce
      {{{"dp", s0}, {"tp", sum}}, {{"tp", s1}}, {true, true, false, false}},         // reduce-scatter
      {{{"dp", s0}, {"tp", s1}}, {{"tp", replicate}}, {true, true, false, false}},   // all-gather
      {{{"dp", s0}, {"tp", s1}}, {{"dp", replicate}}, {false, true, false, true}},   // along the other axis
      {{{"dp", s0}, {"tp", s1}}, {{"dp", replicate}, {"tp", replicate}}, {true, true, true, true}},
      {{{"tp", s0}}, {{"tp", s1}}, {true, true, false, false}},               // all-to-all of replicas over dp
      {{{"tp", s0}}, {{"dp", s1}}, {false, true, false, false}},              // a slice: nothing is sent
      {{{"dp", sum}, {"tp", s0}}, {{"dp", s1}}, {false, true, false, true}},  // reduce-scatter over dp
      {{{"dp", sum}, {"tp", sum}}, {{"tp", replicate}}, {true, true, false, false}},
  };
  for (const Case& c : cases) {
    const Layout layout(grid_, {4, 6}, c.from);
    const NDArray x = drawn(layout, DType::f64);
    SCOPED_TRACE(to_string(layout) + " to " + to_string(layout.with(c.to)));
    const NDArray& shard = builtin::Placed::of(x)->shards()[1];
    push_op([](ArrayContext&) { throw std::runtime_error("no such frame"); }, {}, {shard}, {.name = "decode"});
    const NDArray y = reshard(x, c.to);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const std::string error = error_of(builtin::Placed::of(y)->shards()[rank]);
      if (!c.reached[rank]) {
        EXPECT_EQ(error, "") << "rank " << rank;
      } else {
        EXPECT_THAT(error, ::testing::AllOf(::testing::HasSubstr("[decode]"), ::testing::HasSubstr("no such frame")))
            << "rank " << rank;
      }
    }
    EXPECT_THROW(y.wait(), Error);
    // A reshard pushed after the shard was written anew has the values.
    shard.fill(1.0);
    EXPECT_NO_THROW(reshard(x, c.to).wait());
  }
}

}  // namespace
}  // namespace sluice::testing
