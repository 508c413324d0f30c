// An empty handle in any place of any public function is refused with one clear line, unless a comment says what it
// means there.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <set>
#include <string>

#include "../support/devices.h"
#include "declared_functions.h"
#include "function_calls.h"

namespace sluice::testing {
namespace {

/// What the call throws for an empty handle must be "[name] function_calls_....cc:LINE: an empty handle".
void expect_refusal(const FunctionCall& call, const Arrays& inputs, const std::string& what) {
  try {
    (void)call.call(inputs);
    ADD_FAILURE() << what << " was taken";
  } catch (const ArrayError& e) {
    const std::string text = e.what();
    const std::size_t end = text.find("] ");
    EXPECT_TRUE(text.starts_with("[") && end != text.npos && end > 1) << what << ": " << text;
    EXPECT_EQ(text.find('\n'), text.npos) << what << ": " << text;
    const std::string place = text.substr(std::min(end + 2, text.size()));
    EXPECT_TRUE(place.starts_with("function_calls_") || place.find("_table.inc:") != place.npos)
        << what << " is at another line: " << text;
    EXPECT_TRUE(text.ends_with(": " + (call.says.empty() ? "an empty handle" : call.says))) << what << ": " << text;
    // Operators of C++ are named as the operators of arrays.
    const bool as_declared = !call.name.starts_with("operator") && call.name != "in place";
    if (as_declared) {
      EXPECT_EQ(text.substr(1, end - 1), call.shown.empty() ? call.name : call.shown) << what << ": " << text;
    }
  } catch (const std::exception& e) {
    ADD_FAILURE() << what << " throws no error of arrays: " << e.what();
  }
}

// What the engine asks of an array names the caller's line too.
TEST(EmptyHandles, AreRefusedByTheEngine) {
  test::DefaultEngine engine({.threads = 2});
  const NDArray none;
  using Ask = void (*)(Engine&, const NDArray&);
  const std::pair<const char*, Ask> all[] = {
      {"read", [](Engine&, const NDArray& x) { (void)read(x); }},
      {"update", [](Engine&, const NDArray& x) { (void)update(x); }},
      {"write", [](Engine&, const NDArray& x) { (void)write(x); }},
      {"order", [](Engine&, const NDArray& x) { (void)order(x); }},
      {"explain", [](Engine& e, const NDArray& x) { (void)e.explain(x); }},
      {"wait", [](Engine& e, const NDArray& x) { e.wait(x); }},
      {"error", [](Engine& e, const NDArray& x) { (void)e.error(x); }},
      {"recover", [](Engine& e, const NDArray& x) { (void)e.recover(x); }},
  };
  for (const auto& [name, ask] : all) {
    try {
      ask(default_engine(), none);
      ADD_FAILURE() << name << " took it";
    } catch (const ArrayError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("[variable] empty_handles_test.cc:")) << error.what();
    }
  }
}

TEST(EmptyHandles, AreRefusedInEveryPlace) {
  test::DefaultEngine engine({.threads = 2});
  std::size_t places = 0, allowed = 0, number = 0;
  for (const FunctionCall& call : function_calls()) {
    const std::string name = "call " + std::to_string(number++) + ", " + call.name;
    const Arrays whole = call.make();
    try {
      for (const NDArray& y : call.call(whole)) y.wait();
    } catch (const std::exception& e) {
      ADD_FAILURE() << name << " is no call that works: " << e.what();
      continue;
    }
    for (std::size_t i = 0; i < whole.size(); ++i) {
      Arrays inputs = call.make();
      inputs[i] = NDArray();
      const std::string what = name + ", an empty handle for input " + std::to_string(i);
      if (call.optional.count(i) == 0) {
        expect_refusal(call, inputs, what);
        ++places;
        continue;
      }
      ++allowed;
      try {
        for (const NDArray& y : call.call(inputs)) y.wait();
      } catch (const std::exception& e) {
        ADD_FAILURE() << what << ": " << e.what();
      }
    }
  }
  std::cout << number << " calls, " << places << " places that refuse, " << allowed << " that do not\n";
}

/// Names that are declared with arrays, and that programs do not call as they stand.
const std::set<std::string>& not_called() {
  static const std::set<std::string> names{
      "NDArray",      "NDArrays",      "Operand",      "ArrayIndex",   "IndexedArray", "Batch",  // made by conversion
      "common",       "set",           "finish",       "void",  // what gradient rules and recorders are called with
      "Target",       "Update",        "follow",       "zeros_beside",  // what an optimiser's rule is called with
      "entering",     "leaving",       "passing",      "laid_out",      // of nets on meshes: what layers pass on
      "borrow_array", "name",          "operator",                      // internal; and macros and templates
      "Arrays",       "batches_of",    "call",         "call_of",      "add_call",     "held_",
      "requires",     "static_assert",                               // the same
      "summary",                                                     // takes a net and a shape
      "Loss",         "LossDivisor",   "OfMicrobatch",               // of functions that take arrays
      "LogValue",     "LogTable",                                    // what nn::Log::add is called with, and its file
      "same_array",                                                  // may be asked of an empty handle
      "Call",         "set_input",     "answer",       "interpret",  // what interpreters see: interpreter_test.cc
      "tell_view",  // what owners and they hear of views: view_calls_test.cc
  };
  return names;
}

TEST(EmptyHandles, TheTableHasEveryFunctionThatTakesArrays) {
  test::DefaultEngine engine({.threads = 2});
  std::set<std::string> called = not_called();
  for (const FunctionCall& call : function_calls()) called.insert(call.name);
  std::set<std::string> declared = functions_of_arrays();
  declared.merge(members_of_arrays());
  declared.merge(layers_of_arrays());
  EXPECT_TRUE(declared.contains("SelfAttention"));
  EXPECT_GT(declared.size(), 150U) << "the headers are no longer read";
  for (const std::string& name : declared) {
    EXPECT_TRUE(called.count(name) != 0) << name << " takes arrays: a call of it belongs in function_calls_*.cc";
  }
}

}  // namespace
}  // namespace sluice::testing
