// Mistakes planted in bodies that issue: the double reports each with the op's name and its push, and with no delay to
// help.
#include "support.h"
#include "test_kernels.h"

namespace sluice::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

struct Mistake {
  const char* name;
  ArrayPush::Body body;
  const char* report;
};

class CudaPlanted : public ::testing::TestWithParam<Mistake> {};

TEST_P(CudaPlanted, IsReportedByName) {
  OnDouble on({.print_reports = false});
  on.leaves_what_a_lost_card_has();  // some of these end a card
  on.engine().on_unobserved_error([](const ErrorRoot&) {});
  const NDArray x = zeros({8, 8}).to(gpu(0)), y = zeros({8, 8}).to(gpu(0));
  x.wait();
  y.wait();
  const NDArray* const inputs[] = {&x};
  ArrayPush push;
  push.body = GetParam().body;
  push.inputs = inputs;
  push.outputs = std::span(&y, 1);
  push.issues = push.opaque = true;
  push.options.name = "planted";
  push.where = std::source_location::current();
  push_arrays(push);
  try {
    y.wait();
  } catch (const Error&) {
  }
  EXPECT_THAT(cuda_double::take_reports(),
              Contains(AllOf(HasSubstr("[planted] planted_test.cc:"), HasSubstr(GetParam().report))));
}

constexpr Mistake kMistakes[] = {
#ifndef SLUICE_SANITIZED  // these are seen by the instrumentation, which is off there
    {"OutOfBounds", writes_behind_its_output, "writes 4 bytes"},
    {"WriteToAnInput", writes_its_input, "to read only"},
    {"MissingBarrier", leaves_a_barrier_out, "shared"},
#endif
    {"PageableCopy", copies_from_pageable_memory, "not pinned"},
    {"LeadingDimension", gives_a_wrong_leading_dimension, "cublasLtMatmul reads"},
};
INSTANTIATE_TEST_SUITE_P(Each, CudaPlanted, ::testing::ValuesIn(kMistakes),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace sluice::testing
