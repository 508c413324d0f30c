// A shard of one microbatch fails, or a piece that is gathered: every place has that one error, none steps, and
// training goes on as if the step had had no gradients.
#include <functional>
#include <memory>
#include <set>

#include "placing_support.h"
#include "sluice/operators/placed_owner.h"

namespace sluice {
namespace {

using test::bits;
using test::Gpt;

struct Case {
  const char* name;
  std::vector<Mesh::Axis> axes;
  int zero;
  Placement between;
};

class PlacingFailures : public ::testing::Test {
 protected:
  static constexpr int kMicrobatches = 2;

  struct Run {
    Gpt net;
    std::unique_ptr<nn::Optimizer> opt;
    Mesh mesh;
    explicit Run(const Case& c) : mesh(c.axes, test::device_kind()) {
      std::vector<nn::AxisLayouts> tables{{.axis = "dp", .zero = c.zero}};
      if (mesh.axes() > 1) tables.push_back(test::megatron(net, c.between)[0]);
      nn::place(net, mesh, tables);
      nn::initialise(net, 3);
      opt = std::make_unique<nn::Optimizer>(test::adam(net));
    }
    /// `batch` and `factor` may spoil what they get.
    using Spoil = std::function<void(const NDArray&)>;
    void microbatch(int step, int m, const Spoil& batch = {}, const Spoil& factor = {}) const {
      const auto seed = static_cast<std::uint64_t>(10 * step + m);
      const NDArray x = place(test::tokens(5, 7, seed, 53), mesh, {{"dp", shard(0)}});
      const NDArray y = place(test::tokens(5, 7, seed + 100, 53), mesh, {{"dp", shard(0)}});
      const NDArray ones_of_dp = place(ones({5, 3}), mesh, {{"dp", shard(0)}});
      if (batch) batch(x);
      if (factor) factor(ones_of_dp);
      RandomStream stream(seed);
      const nn::Training on(stream);
      const MeshScope scope(mesh);
      (whole(net.loss(x, y)) * mean(whole(ones_of_dp))).backward();
    }
    void backward(int step) const {
      for (int m = 0; m < kMicrobatches; ++m) microbatch(step, m);
    }
    std::string weights() const {
      std::string all;
      for (const nn::Named& p : nn::parameters(net)) {
        for (const NDArray& shard : shards_of(p.state->value)) all += bits(shard);
      }
      return all;
    }
    std::string kept() const {
      std::string all;
      for (const nn::SavedArray& array : opt->saved_arrays()) all += bits(gathered(array.value));
      return all;
    }
  };

  test::TestEngine engine_{{.threads = 2, .logical_cpus = 4}};
};

TEST_F(PlacingFailures, OneShardOfOneMicrobatchStepsNoPlace) {
  const std::vector<Mesh::Axis> both{{"dp", 2}, {"tp", 2}};
  const Case cases[] = {{"dp", {{"dp", 2}}, 0, replicate},       {"dp 2 x tp 2", both, 0, replicate},
                        {"tp by positions", both, 0, shard(1)},  {"ZeRO 3 of dp 4", {{"dp", 4}}, 3, replicate},
                        {"ZeRO 3 beside tp", both, 3, shard(1)}, {"ZeRO 2", both, 2, replicate}};
  for (const Case& c : cases) {
    if (test::on_streams() && &c != &cases[4]) continue;  // where it takes long
    for (const bool gather : {false, true}) {
      for (int bad = 0; bad < kMicrobatches; ++bad) {
        SCOPED_TRACE(std::string(c.name) + (gather ? ", a gather" : ", a shard") + " of " + std::to_string(bad));
        const Run run(c), other(c);  // the second steps without gradients where the first fails
        for (const Run* one : {&run, &other}) {
          one->backward(0);
          one->opt->step();
        }
        const std::string weights = run.weights(), kept = run.kept();
        ASSERT_TRUE(weights == other.weights());

        const std::size_t place = static_cast<std::size_t>(run.mesh.places()) - 1 - static_cast<std::size_t>(bad);
        const auto spoil = [&](const NDArray& x) {
          builtin::Placed::of(x)->shards()[place].assign(test::broken(shards_of(x)[place]));
        };
        for (int m = 0; m < kMicrobatches; ++m) {
          const bool here = m == bad;
          run.microbatch(1, m, here && !gather ? spoil : Run::Spoil(), here && gather ? spoil : Run::Spoil());
        }
        run.opt->step();
        std::set<std::uint64_t> roots;
        const auto see = [&](const NDArray& x, const std::string& name) {
          const std::vector<NDArray> shards = shards_of(x);
          for (std::size_t at = 0; at < shards.size(); ++at) {
            try {
              shards[at].wait();
              ADD_FAILURE() << name << " at place " << at << " has no error";
            } catch (const Error& e) {
              EXPECT_EQ(e.root().operation, "broken") << name;
              roots.insert(e.root().sequence);
            }
          }
        };
        for (const nn::Named& p : nn::parameters(run.net)) {
          see(p.state->value, p.name);
          see(run.opt->kept(p.name, "exp_avg"), p.name + ".exp_avg");
        }
        EXPECT_EQ(roots.size(), 1U) << "one root everywhere";

        run.opt->recover();
        EXPECT_TRUE(run.weights() == weights);
        EXPECT_TRUE(run.kept() == kept);
        other.opt->step();
        EXPECT_TRUE(other.weights() == weights);
        for (const Run* one : {&run, &other}) {
          one->backward(2);
          nn::clip_gradients(one->net, 0.5);
          one->opt->step();
        }
        EXPECT_TRUE(run.weights() == other.weights());
        EXPECT_TRUE(run.kept() == other.kept());
        EXPECT_FALSE(run.weights() == weights);
        EXPECT_EQ(run.opt->steps(), other.opt->steps());
      }
    }
  }
}

}  // namespace
}  // namespace sluice
