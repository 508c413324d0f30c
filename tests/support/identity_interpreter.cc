// With SLUICE_TEST_INTERPRETER=identity in the environment, each test of this program runs under an interpreter that
// passes every call on: nothing may be different.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string_view>

#include "sluice/ndarray/interpreter.h"

namespace sluice {
namespace {

class AroundEachTest : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override {
    scope_ = std::make_unique<InterpreterScope>(std::make_shared<Interpreter>());
  }
  void OnTestEnd(const ::testing::TestInfo&) override { scope_.reset(); }

  std::unique_ptr<InterpreterScope> scope_;
};

[[maybe_unused]] const bool installed = [] {
  const char* const asked = std::getenv("SLUICE_TEST_INTERPRETER");
  if (!asked || std::string_view(asked) != "identity") return false;
  ::testing::UnitTest::GetInstance()->listeners().Append(new AroundEachTest);
  return true;
}();

}  // namespace
}  // namespace sluice
