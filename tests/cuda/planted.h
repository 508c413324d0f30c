// What the tests with planted mistakes share: a run on the double with the mistake, and one without it.
#pragma once

#include <string>
#include <vector>

#include "planted_kernels.h"
#include "support.h"

namespace sluice::testing {

/// Runs `program(on, planted)` twice, each time on a double of its own with two cards and no delays. Without the
/// mistake nothing may be reported (OnDouble looks at that), and no op may fail. What is reported with it.
template <class Program>
std::vector<std::string> reports_of(const cuda_double::Options& options, const CudaOptions& cuda,
                                    const ProviderFactory& planted_provider, Program program) {
  for (const bool planted : {false, true}) {
    SCOPED_TRACE(planted ? "with the mistake" : "without the mistake");
    cuda_double::Options chosen = options;
    chosen.devices = 2;
    chosen.print_reports = !planted;
    EngineOptions engine;
    if (planted && planted_provider) engine.providers = {planted_provider};
    OnDouble on(chosen, cuda, std::move(engine));
    on.engine().on_unobserved_error([](const ErrorRoot&) {});
    if (planted) on.has_a_mistake();
    try {
      program(on, planted);
    } catch (const Error& error) {
      EXPECT_TRUE(planted) << error.what();
    }
    cuda_double::release();
  }
  return cuda_double::take_reports();
}

/// An op whose body issues.
inline Ticket push_issuing(ArrayPush::Body body, const Planting& planting, const NDArray& input, const NDArray& output,
                           std::source_location where = std::source_location::current()) {
  const NDArray* const inputs[] = {&input};
  const Attributes attributes(planting);
  ArrayPush push;
  push.body = body;
  push.attributes = &attributes;
  push.inputs = inputs;
  push.outputs = std::span(&output, 1);
  push.issues = push.opaque = true;
  push.options.name = "planted";
  push.where = where;
  return push_arrays(push);
}

}  // namespace sluice::testing
