// Runs the programs of the semantics_*_test.cc: small programs of a user, each of which must mean the same on every
// kind of engine.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "../ndarray/ndarray_test_support.h"

namespace sluice::testing {

using Floats = std::vector<float>;

inline Floats floats(const NDArray& x) { return x.to_vector<float>(); }

/// Calls program(engine) three times each on engines with one, two and four threads, and in serial mode. New arrays
/// belong to the engine.
template <class F>
void on_each_engine(F program) {
  struct Kind {
    const char* name;
    int threads;
    EngineMode mode;
  };
  for (const Kind& kind : {Kind{"1 thread", 1, EngineMode::threaded}, Kind{"2 threads", 2, EngineMode::threaded},
                           Kind{"4 threads", 4, EngineMode::threaded}, Kind{"serial mode", 1, EngineMode::serial}}) {
    SCOPED_TRACE(kind.name);
    for (int run = 0; run < 3; ++run) {  // schedules differ
      TestEngine test(kind.threads, 1, kind.mode);
      program(test.engine);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

/// While it lives, no op that writes x can run, and neither can what comes after that op. It takes no thread of the
/// engine, so that it works in serial mode too, where such ops queue.
inline Borrow hold(const NDArray& x) { return x.engine().borrow(read(x)); }

/// An array whose value does not come before `held`, a hold of it, is released: then all elements are `value`.
struct Late {
  explicit Late(const Dims& shape, float value) : array(zeros(shape)), held(hold(array)) { array.fill(value); }
  NDArray array;
  Borrow held;
};

/// An array whose op has failed.
inline NDArray failed(const Dims& shape) {
  const NDArray bad = ones(shape);
  poison(bad);
  EXPECT_THROW(bad.wait(), Error);
  return bad;
}

}  // namespace sluice::testing
