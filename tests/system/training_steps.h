// A training step on two devices with streams, whatever goes wrong there: what it may leave behind, and what never.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "sluice/sluice.h"

namespace sluice::testing {

enum class Kind { sgd, adam };
inline const char* row_of(Kind kind) { return kind == Kind::sgd ? "sgd_momentum_step" : "adam_step"; }
/// What errors call each operation of a step, its gate too.
inline constexpr const char* kStep = "nn::Optimizer::step";

/// An array's bytes, or why it has none.
struct Read {
  std::string bytes;
  ErrorRef error;
};

inline Read read_bytes(const NDArray& x) {
  for (int attempt = 0;; ++attempt) try {
      const std::vector<std::byte> bytes = x.to_bytes();
      return {std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), nullptr};
    } catch (const Error& e) {
      if (attempt == 1) return {"", e.root_ref()};  // once more: a fault may have befallen the transfer
    }
}

/// Of all parameters, then of all state.
using Values = std::vector<std::string>;

/// A network with two layers on each device. Two gradients are a program's own, and lie transposed in memory.
class Training {
 public:
  explicit Training(Kind kind, DeviceKind where = DeviceKind::sim)
      : devices_{{where, 0}, {where, 1}}, optimizer_(net_, {{"*", rule_of(kind)}}) {
    nn::initialise(net_, 4);
    nn::to(net_.lower, devices_[0]);
    nn::to(net_.upper, devices_[1]);
    // A step of nothing, so that what is kept between steps is there.
    for (const nn::Named& p : nn::parameters(net_)) p.state->value.set_grad(zeros_like(p.state->value));
    optimizer_.step();
  }

  /// Pushes the step with batch t; the loss.
  NDArray push(int t) {
    std::vector<float> pixels;
    std::vector<std::int64_t> labels;
    const ElementKey key(RandomKey{3, 7, static_cast<std::uint64_t>(t)});
    for (std::uint64_t i = 0; i < 32; ++i) pixels.push_back(2 * uniform01_f32(key, i) - 1);
    for (int i = 0; i < 8; ++i) labels.push_back((i + t) % 3);
    const NDArray x = from(pixels, {8, 4}).to(devices_[0]), y = from(labels, {8}).to(devices_[1]);
    const NDArray mixed[] = {net_.lower.mixed, net_.upper.mixed};
    const NDArray low = matmul(net_.lower.linear(x), mixed[0].transpose()).to(devices_[1]);
    const NDArray loss = cross_entropy(net_.upper.linear(matmul(low, mixed[1].transpose())), y);
    loss.backward();
    for (const NDArray& w : mixed) w.set_grad(w.grad().transpose().copy().transpose());
    optimizer_.step();
    return loss.detach();
  }
  nn::Optimizer& optimizer() { return optimizer_; }
  std::vector<NDArray> arrays() const {
    std::vector<NDArray> list;
    for (const nn::Named& p : nn::parameters(net_)) list.push_back(p.state->value);
    for (const nn::SavedArray& s : optimizer_.saved_arrays()) list.push_back(s.value);
    return list;
  }
  std::vector<Read> read() const {
    std::vector<Read> list;
    for (const NDArray& x : arrays()) list.push_back(read_bytes(x));
    return list;
  }
  /// As read(), where nothing may fail.
  Values values() const {
    Values list;
    for (const Read& r : read()) {
      EXPECT_FALSE(r.error) << r.error->to_string();
      list.push_back(r.bytes);
    }
    return list;
  }
  /// From a checkpoint: overwrites all, which heals.
  void load(const Values& values) const {
    const NoGrad scope;
    const std::vector<NDArray> list = arrays();
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(values[i].data());
      list[i].assign(from_bytes({bytes, values[i].size()}, list[i].shape(), list[i].dtype(), cpu(0)));
    }
  }

 private:
  struct Half {
    nn::Linear linear;
    nn::Parameter mixed{{5, 5}, nn::uniform(-0.5, 0.5)};
  };
  struct Net {
    Half lower{{.in = 4, .out = 5, .relu = true}}, upper{{.in = 5, .out = 3}};
  };
  static nn::AnyRule rule_of(Kind kind) {
    if (kind == Kind::adam) return nn::Adam{.lr = 0.01};
    return nn::Sgd{.lr = 0.1, .momentum = 0.9};
  }

  const Device devices_[2];
  Net net_;
  nn::Optimizer optimizer_;
};

/// The training without faults, from its start on: values and losses of its first steps.
struct CleanRun {
  static constexpr int kSteps = 6;
  CleanRun(Kind k, Training& training) : kind(k) {
    values.push_back(training.values());
    for (int t = 0; t < kSteps; ++t) {
      losses.push_back(training.push(t).item<float>());
      values.push_back(training.values());
      for (std::size_t i = 0; i < values[0].size(); ++i) EXPECT_NE(values.back()[i], values[values.size() - 2][i]) << i;
    }
  }
  const Kind kind;
  std::vector<Values> values;  ///< at t: before step t
  std::vector<float> losses;
};

/// What a step that something befell has left.
struct Outcome {
  bool stepped = false;  ///< all is as after the step; else as before
  bool torn = false;     ///< the step's own kernel failed late: some arrays carry that, until they are overwritten
  std::set<std::string> failed;  ///< operations that errors name
};

struct Faults {
  int gone = -1;         ///< a device that is lost: its arrays need not come back
  bool several = false;  ///< then a step's own kernel may have failed late, and the error name what failed before
};

/// Checks what is read after step t of a clean run's training, then recovers and checks again.
inline Outcome judge(Training& training, const CleanRun& clean, int t, const Faults& faults = {}) {
  const Values &before = clean.values[static_cast<std::size_t>(t)],
               &after = clean.values[static_cast<std::size_t>(t) + 1];
  Outcome outcome;
  const std::vector<NDArray> arrays = training.arrays();
  bool any_old = false, any_new = false, all_came = true;
  const auto look = [&](const std::vector<Read>& reads, bool recovered) {
    for (std::size_t i = 0; i < reads.size(); ++i) {
      const Read& r = reads[i];
      const bool is_gone = faults.gone >= 0 && arrays[i].device().index == faults.gone;
      if (!r.error) {
        any_old |= r.bytes == before[i];
        any_new |= r.bytes == after[i];
        EXPECT_TRUE(r.bytes == before[i] || r.bytes == after[i]) << "a value that never was, array " << i;
        continue;
      }
      all_came = false;
      EXPECT_NE(r.error->operation, "");
      EXPECT_NE(r.error->message, "");
      outcome.failed.insert(r.error->operation);
      if (!recovered || is_gone) continue;
      outcome.torn = true;
      EXPECT_TRUE(faults.several || r.error->operation == kStep)
          << r.error->to_string() << ": not recovered, array " << i;
    }
  };
  look(training.read(), false);
  EXPECT_FALSE(any_old && any_new) << "torn";
  EXPECT_TRUE(!any_old || all_came || faults.gone >= 0) << "some have the old value, and others an error";
  training.optimizer().recover();
  const bool came = all_came;
  look(training.read(), true);
  EXPECT_TRUE(outcome.torn || !(any_old && any_new)) << "torn: some have stepped and others recovered";
  outcome.stepped = any_new;
  EXPECT_TRUE(came || outcome.torn || faults.gone >= 0 || any_old) << "recovered to no old value";
  return outcome;
}

/// The loss of step t is right, or its read throws.
inline void check_loss(const NDArray& loss, const CleanRun& clean, int t, Outcome* outcome = nullptr) {
  const Read r = read_bytes(loss);
  if (r.error) {
    if (outcome) outcome->failed.insert(r.error->operation);
    return;
  }
  const float wanted = clean.losses[static_cast<std::size_t>(t)];
  EXPECT_EQ(r.bytes, std::string(reinterpret_cast<const char*>(&wanted), sizeof wanted));
}

/// Goes on to step `end` without faults, and is as if nothing had happened.
inline void go_on(Training& training, const CleanRun& clean, int t, const Outcome& outcome, int end) {
  if (outcome.torn) training.load(clean.values[static_cast<std::size_t>(t)]);
  if (!outcome.torn && outcome.stepped) ++t;
  for (; t < end; ++t) {
    EXPECT_EQ(training.push(t).item<float>(), clean.losses[static_cast<std::size_t>(t)]) << "step " << t;
  }
  EXPECT_TRUE(training.values() == clean.values[static_cast<std::size_t>(end)]);
}

}  // namespace sluice::testing
