// An engine of a test's own, and ops that can be held back.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <stdexcept>

#include "../support/devices.h"
#include "sluice/sluice.h"

namespace sluice::testing {

/// New arrays belong to this engine while it lives.
class TestEngine : test::DefaultEngine {
 public:
  explicit TestEngine(int threads, int logical_cpus = 1, EngineMode mode = EngineMode::threaded)
      : DefaultEngine(options(threads, logical_cpus, mode)), engine(DefaultEngine::engine()) {}
  Engine& engine;

 private:
  static EngineOptions options(int threads, int logical_cpus, EngineMode mode) {
    EngineOptions o;
    o.threads = threads;
    o.logical_cpus = logical_cpus;
    o.mode = mode;
    o.mode_given = true;
    return o;
  }
};

/// Pushes an op that reads `x` and does not complete before open().
class Gate {
 public:
  explicit Gate(const NDArray& x) : open_(std::make_shared<std::atomic<bool>>(false)) {
    if (test::on_streams()) {  // a kernel that does not end would hold up its stream
      hold_ = x.engine().borrow(read(x));
      return;
    }
    push_op([open = open_](ArrayContext&) { open->wait(false); }, {x}, {}, {.name = "gate"});
  }
  ~Gate() { open(); }
  void open() {
    hold_.release();
    open_->store(true);
    open_->notify_all();
  }

 private:
  Borrow hold_;
  std::shared_ptr<std::atomic<bool>> open_;
};

/// Calls f with the address of each element.
template <class F>
void each_address(const TensorView& y, F f) {
  for (std::int64_t i = 0; i < y.count(); ++i) {
    std::int64_t rest = i, at = 0;
    for (int axis = y.shape.rank() - 1; axis >= 0; --axis) {
      at += rest % y.shape[axis] * y.strides[axis];
      rest /= y.shape[axis];
    }
    f(y.as<float>() + at);
  }
}

/// Pushes an op of a program's own that overwrites output k with value + k * step. On a GPU it issues copies of numbers
/// that are there; elsewhere it is a function of the host.
inline void push_value(std::span<const NDArray> outputs, float value, float step = 0) {
  if (outputs[0].device().kind != DeviceKind::gpu) {
    push_op(
        [value, step](ArrayContext& c) {
          for (int k = 0; k < c.outputs(); ++k) {
            each_address(c.output(k), [&](float* y) { *y = value + static_cast<float>(k) * step; });
          }
        },
        {}, outputs, {.name = "mine"});
    return;
  }
  std::int64_t most = 1;
  for (const NDArray& y : outputs) most = std::max(most, y.count());
  const DeviceScope scope(outputs[0].device());
  const auto count = static_cast<std::int64_t>(outputs.size());
  const NDArray numbers = arange(0, static_cast<double>(count), 1, DType::f32) * step + value;
  const NDArray values[] = {numbers.reshape({count, 1}).broadcast_to({count, most}).copy()};
  push_op(
      [](ArrayContext& c) {
        for (int k = 0; k < c.outputs(); ++k) {
          const float* const from = c.input(0).as<float>() + k * c.input(0).shape[1];
          const auto copy = [&](float* to, std::int64_t elements) {
            c.provider().copy(to, from, static_cast<std::size_t>(elements) * sizeof(float), &c.stream());
          };
          if (is_row_major(c.output(k))) {
            copy(c.output(k).as<float>(), c.output(k).count());
          } else {
            each_address(c.output(k), [&](float* y) { copy(y, 1); });
          }
        }
      },
      values, outputs, {.name = "mine"});
}
inline void push_value(std::initializer_list<NDArray> outputs, float value) {
  push_value(std::span(outputs.begin(), outputs.size()), value);
}

/// Pushes an op that overwrites `x` and throws.
inline void poison(const NDArray& x) {
  push_op([](ArrayContext&) { throw std::runtime_error("spoilt"); }, {}, {x}, {.name = "spoil"});
}

}  // namespace sluice::testing
