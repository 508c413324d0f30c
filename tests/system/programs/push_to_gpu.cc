// Asks for a GPU in every way that a program has, and works on the CPU: for cuda_loader_test.cc.
#include <cstdio>
#include <exception>

#include "sluice/sluice.h"

using namespace sluice;

namespace {

template <class F>
void attempt(const char* what, F&& f) {
  try {
    f();
    std::printf("%s: done\n", what);
  } catch (const std::exception& e) {
    std::printf("%s: %s\n", what, e.what());
  }
}

}  // namespace

int main() {
  std::printf("unavailable: %s\n", cuda_unavailable().c_str());
  const NDArray x = ones({4});
  attempt("transfer", [&] { x.to(gpu(0)).wait(); });
  attempt("operator", [&] {
    const DeviceScope scope(gpu(0));
    (zeros({2}) + 1).wait();
  });
  attempt("push", [&] { default_engine().push([] {}, {}, {.on = gpu(0), .name = "scale"}); });
  std::printf("devices: %d\n", default_engine().device_count(DeviceKind::gpu));
  std::printf("on the CPU: %g\n", sum(x).item<double>());
  return 0;
}
