// Tests of arrays with SLUICE_TEST_DEVICE=gpu run on the double of CUDA in programs that this is linked into.
#include <cuda_double/cuda_double.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "devices.h"

namespace sluice::test {
namespace {

void begin(int devices) {
  cuda_double::Options options;
  options.devices = devices;
  options.random_delay = std::chrono::microseconds(20);
  options.print_reports = false;
  options.order_record =
      std::getenv("SLUICE_TEST_LAZY") == nullptr;  // a lazy provider does not hand on what it is told
  cuda_double::reset(options);
}

std::string left_over() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (;;) {
    const cuda_double::Live live = cuda_double::live();
    if (live.blocks + live.pinned + live.streams + live.events == 0) return "";
    if (std::chrono::steady_clock::now() > until) {
      return std::to_string(live.blocks) + " blocks, " + std::to_string(live.pinned) + " pinned blocks, " +
             std::to_string(live.streams) + " streams, " + std::to_string(live.events) + " events";
    }
    std::this_thread::yield();
  }
}

const bool here = (double_of_cuda = {begin, cuda_double::take_reports, left_over}, true);

}  // namespace
}  // namespace sluice::test
