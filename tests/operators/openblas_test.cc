// The number of threads of OpenBLAS is the program's: it finds what it has set, and our bits do not depend on it.
#include <cblas.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "../support/devices.h"
#include "operators_test_support.h"
#include "sluice/operators/backends/cpu/gemm.h"

namespace sluice::testing {
namespace {

constexpr int kPrograms = 3;

class OpenBlasThreads : public ::testing::Test {
 protected:
  void SetUp() override {
    openblas_set_num_threads(kPrograms);
    if (openblas_get_num_threads() != kPrograms) GTEST_SKIP() << "this OpenBLAS has no threads";
  }
  void TearDown() override { openblas_set_num_threads(before_); }

 private:
  const int before_ = openblas_get_num_threads();
};

TEST_F(OpenBlasThreads, AreWhatTheyWereAfterProductsOnTwoLanes) {
  test::DefaultEngine engine({.threads = 2, .logical_cpus = 2});
  const auto multiply = [](int lane) {
    const DeviceScope scope(cpu(lane));
    const NDArray a = drawn({12, 10}, 1), b = drawn({10, 14}, 2);
    NDArray c = matmul(a, b);
    const std::vector<double> once = c.to_vector<double>();
    for (int i = 1; i < 5000; ++i) c = matmul(a, b);
    EXPECT_EQ(c.to_vector<double>(), once);
  };
  std::thread other([&] { multiply(1); });
  multiply(0);
  other.join();
  engine.engine().wait_all();
  EXPECT_EQ(openblas_get_num_threads(), kPrograms);
}

TEST_F(OpenBlasThreads, AreWhatTheyWereAfterDecompositions) {
  test::DefaultEngine engine({.threads = 2});
  const NDArray x = drawn({6, 40, 40}, 3), y = matmul(x, x.swapaxes(-2, -1));
  const auto [u, s, v] = svd(x);
  const auto [q, r] = qr(x);
  const auto [w, vectors] = eigh(y);
  for (const NDArray& each : {u, q, w, cholesky(y), inv(x), solve(x, y)})
    EXPECT_FALSE(each.to_vector<double>().empty());
  EXPECT_EQ(openblas_get_num_threads(), kPrograms);
}

TEST_F(OpenBlasThreads, DoNotChangeTheBits) {
  test::DefaultEngine engine({.threads = 2});
  const NDArray a = drawn({131, 519}, 4), b = drawn({519, 77}, 5), square = drawn({3, 90, 90}, 6);
  std::vector<double> product, singular;
  for (const int threads : {1, 2, kPrograms, 5, 1}) {
    openblas_set_num_threads(threads);
    const std::vector<double> now = matmul(a, b).to_vector<double>();
    const std::vector<double> values = svd(square).s.to_vector<double>();
    if (product.empty()) product = now, singular = values;
    EXPECT_EQ(now, product) << threads << " threads";
    EXPECT_EQ(values, singular) << threads << " threads";
    EXPECT_EQ(openblas_get_num_threads(), threads);
  }
}

/// What a process that is forked in the midst of products finds.
TEST_F(OpenBlasThreads, OfAForkedChildAreTheProgramsToo) {
#ifdef SLUICE_SANITIZED
  GTEST_SKIP() << "a sanitizer's own locks are copied into the child as they are";
#endif
  constexpr std::int64_t n = 24;
  std::vector<double> a(n * n), b(n * n), expected(n * n);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i % 17) / 7, b[i] = static_cast<double>(i % 23);
  const auto multiply = [&](std::vector<double>& c) {
    cpu_backend::gemm_here(false, false, n, n, n, 1.0, a.data(), n, b.data(), n, 0.0, c.data(), n);
  };
  multiply(expected);
  std::atomic<bool> enough{false};
  std::vector<std::thread> load;
  for (int i = 0; i < 2; ++i) {
    load.emplace_back([&] {
      std::vector<double> c(n * n);
      while (!enough.load()) multiply(c);
    });
  }
  int failed = 0;
  for (int i = 0; i < 300 && failed == 0; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(20);  // one that hangs
      std::vector<double> c(n * n);
      if (openblas_get_num_threads() != kPrograms) ::_exit(1);
      multiply(c);
      if (c != expected) ::_exit(2);
      ::_exit(openblas_get_num_threads() == kPrograms ? 0 : 3);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) failed = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    EXPECT_EQ(failed, 0) << "child " << i;
  }
  enough.store(true);
  for (std::thread& thread : load) thread.join();
  EXPECT_EQ(openblas_get_num_threads(), kPrograms);
}

}  // namespace
}  // namespace sluice::testing
