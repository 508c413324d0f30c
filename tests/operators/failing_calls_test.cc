// Whatever fails inside of a public function, its error names the function that the program called, and the line. Every
// kernel of a simulated device is made to fail.
#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "../support/devices.h"
#include "function_calls.h"

namespace sluice::testing {
namespace {

std::vector<FunctionCall> calls_of_operators() {
  std::vector<FunctionCall> list;
  FunctionCalls to(list);
  add_table_calls(to);
  add_elementwise_calls(to);
  add_reduction_calls(to);
  add_indexing_calls(to);
  add_rearranging_calls(to);
  add_product_calls(to);
  add_image_calls(to);
  add_normalisation_calls(to);
  add_network_calls(to);
  add_loss_calls(to);
  add_creation_calls(to);
  return list;
}

TEST(FailingCalls, NameTheFunctionThatWasCalled) {
  const auto control = std::make_shared<SimControl>();
  control->print_reports(false);
  Engine engine({.threads = 2, .providers = {sim_devices(1, {.control = control})}});
  engine.on_unobserved_error([](const ErrorRoot&) {});
  set_default_engine(&engine);
  std::size_t number = 0, failed = 0;
  {
    const DeviceScope on(sim(0));
    for (const FunctionCall& call : calls_of_operators()) {
      const std::string name = "call " + std::to_string(number++) + ", " + call.name;
      const Arrays inputs = call.make();
      for (const NDArray& x : inputs) {
        if (x.defined()) x.wait();
      }
      const auto expect_name = [&](const Error& e) {
        ++failed;
        const std::string wanted = call.shown.empty() ? call.name : call.shown;
        if (!wanted.starts_with("operator") && wanted != "in place") {
          EXPECT_EQ(e.root().operation, wanted) << name;
        }
        EXPECT_EQ(std::string(e.what()).find("] ", e.root().operation.size() + 2), std::string::npos) << e.what();
        const std::string& file = e.root().file;
        EXPECT_TRUE(file.find("function_calls_") != file.npos || file.ends_with("_table.inc"))
            << name << ": " << e.what();
      };
      control->fail_every(SimFault::launch, 1);
      try {
        for (const NDArray& y : call.call(inputs)) {
          try {
            if (y.defined()) y.wait();
          } catch (const Error& e) {
            expect_name(e);
          }
        }
      } catch (const Error& e) {
        expect_name(e);
      } catch (const std::exception& e) {
        ADD_FAILURE() << name << ": " << e.what();
      }
      control->fail_every(SimFault::launch, 0);
      try {
        engine.wait_all();
      } catch (const Error&) {
      }
      engine.clear_errors();
    }
  }
  std::cout << number << " calls, " << failed << " results that failed\n";
  EXPECT_GT(failed, 300U);
  set_default_engine(nullptr);
  engine.stop();
}

}  // namespace
}  // namespace sluice::testing
