// Writes docs/operators.md: what the registry says of each operator, and which test looks at it.
//
//   operators_page FILE            writes the page
//   operators_page --check FILE    fails, and says so in one line, where the file is not what would be written
//
// A row's test is found by running the cases of ops_table.cc and looking which rows they call; rows that no
// case applies are listed here with a test of their own. A row without any test is an error.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops_table.h"
#include "paths.h"
#include "sluice/operators/infer.h"
#include "sluice/operators/placement.h"

namespace sluice::testing {
namespace {

/// Tests of rows that the table does not name. The test must be in a file under tests/.
const std::map<std::string, std::string>& other_tests() {
  static const std::string comparisons = "ExactRows.OfIntegersEqualTheReference",
                           numbers = "ExactRows.ComparisonsWithANumberAreThoseWithAnArrayOfIt",
                           steps = "Operators.OptimizerStepsEqualTheReference";
  static const std::map<std::string, std::string> list{
      {"accumulate", steps},
      {"adam_step", steps},
      {"argmax", comparisons},
      {"bernoulli", "ValueErrors.OfProbabilitiesNameElementAndProbability"},
      {"cast", comparisons},
      {"commit", steps},
      {"equal", comparisons},
      {"equal_scalar", numbers},
      {"fill", comparisons},
      {"gate", "ManyOperands.AStepTakesManyTensorsBehindOneGate"},
      {"greater", comparisons},
      {"greater_equal", comparisons},
      {"greater_equal_scalar", numbers},
      {"greater_scalar", numbers},
      {"less", comparisons},
      {"less_equal", comparisons},
      {"less_equal_scalar", numbers},
      {"less_scalar", numbers},
      {"normal", "Random.DrawsDoNotDependOnThreadsOrSplits"},
      {"not_equal", comparisons},
      {"not_equal_scalar", numbers},
      {"one_hot", comparisons},
      {"randint", "Creation.RandomIntegersAreThoseOfPhilox"},
      {"sgd_momentum_step", steps},
      {"sgd_step", steps},
      {"transfer", "Devices.TransfersRunOnCopyLanes"},
      {"uniform", "Random.DrawsDoNotDependOnThreadsOrSplits"},
  };
  return list;
}

/// How the operands of each row may lie on a mesh, in words, of the row's first call.
class Rules final : public Interpreter {
 public:
  void apply(Call& call, Next next) override {
    next(call);
    const Operator& row = row_of(call);
    applied.insert(row.name);
    if (call.specs().empty()) return;
    Signature signature(row.name, call.where(), call.inputs(), call.attributes(), call.specs()[0].device);
    row.infer(signature);
    rules_.try_emplace(row.name, placement_in_words(row, signature));
  }
  std::string of(const Operator& row) const {
    if (const auto rule = rules_.find(row.name); rule != rules_.end()) return rule->second;
    return row.place ? "its own" : row.elementwise ? "elementwise" : "replicated";
  }
  std::set<std::string> applied;  ///< since it was cleared

 private:
  std::map<std::string, std::string> rules_;
};

/// The rows that each case applies, forward and backward.
std::map<std::string, std::set<std::string>> cases_by_row(const std::shared_ptr<Rules>& rules) {
  Engine engine;
  set_default_engine(&engine);
  const InterpreterScope scope(rules);
  std::map<std::string, std::set<std::string>> found;
  for (const OperatorCase& c : operator_cases()) {
    rules->applied.clear();
    {
      Arrays inputs = make_inputs(c, DType::f64);
      for (NDArray& x : inputs) x = x.with_grad();
      const NDArray y = c.call(inputs);
      if (c.gradient) sum(y).backward();
    }
    engine.wait_all();
    for (const std::string& row : rules->applied) found[row].insert(c.name);
  }
  set_default_engine(nullptr);
  return found;
}

/// The case that bears the row's name, or that of the row whose gradient it is; else one that begins with it; else any
/// that applies it.
std::string test_of(const std::string& row, const std::set<std::string>& cases) {
  if (const auto other = other_tests().find(row); other != other_tests().end()) return other->second;
  if (cases.empty()) throw std::runtime_error("no test applies the operator '" + row + "'");
  const std::string base = row.ends_with("_grad") ? row.substr(0, row.size() - 5) : row;
  for (const std::string& name : {row, base})
    if (cases.count(name)) return "table: " + name;
  for (const std::string& name : cases)
    if (name.starts_with(row)) return "table: " + name;
  return "table: " + *cases.begin();
}

std::string names_of(const std::set<DType>& dtypes) {
  if (dtypes.size() == kDTypeCount) return "all";
  std::string text;
  for (DType t : dtypes) text += (text.empty() ? "" : " ") + std::string(name_of(t));
  return text;
}

/// "f32 f64 | cpu, reference", and where the backends differ: "f32 f64 i32 | cpu (f32 f64), reference".
std::string kernels_of(const Operator& row) {
  std::map<std::string, std::set<DType>> backends;
  std::set<DType> all;
  for (int kind = 0; kind < kDeviceKinds; ++kind) {
    for (int t = 0; t < kDTypeCount; ++t) {
      const auto device = static_cast<DeviceKind>(kind);
      const auto dtype = static_cast<DType>(t);
      for (const Kernel* kernel : row.kernels(device, dtype)) {
        backends[kernel->backend.name].insert(dtype);
        all.insert(dtype);
      }
    }
  }
  std::string text = names_of(all) + " | ";
  const char* comma = "";
  for (const auto& [name, dtypes] : backends) {
    text += comma + name + (dtypes == all ? "" : " (" + names_of(dtypes) + ")");
    comma = ", ";
  }
  return row.compose ? text + comma + "composed" : text;
}

std::string inputs_of(const Operator& row) {
  if (row.min_inputs == row.max_inputs) return std::to_string(row.min_inputs);
  if (row.max_inputs == Operator::kAnyNumber) return std::to_string(row.min_inputs) + " or more";
  return std::to_string(row.min_inputs) + " to " + std::to_string(row.max_inputs);
}

std::string page() {
  const auto rules = std::make_shared<Rules>();
  std::map<std::string, std::set<std::string>> cases = cases_by_row(rules);
  std::ostringstream text;
  text
      << "# Operators\n\n"
         "Every row of the registry (`operators/registry.h`). This page is made by a program; "
         "`tests/operators/operators_page.cc`\n"
         "says how, and the test `operators.page` compares the two.\n\n"
         "- *Dtypes* are those of the input that chooses the kernel; of a row without inputs, of its output.\n"
         "- *Backends* have a kernel for these dtypes, or for those in brackets. What `cpu` lacks, CPUs run with "
         "`reference`,\n"
         "  f16 and bf16 above all. Simulated devices (`sim`, `null`) use the kernels of `reference`. `device` is a "
         "copy that a\n"
         "  device's provider does. *composed*: where there is no kernel the call is made of other operators "
         "(`Operator::compose`),\n"
         "  which is said once on the standard error stream; with `SLUICE_COMPOSE=0` such calls throw. Rows without "
         "any "
         "kernel\n"
         "  are always made so, and nothing is said.\n"
         "- *Gradient*: yes where a gradient flows back through it. Rows that end in `_grad` are gradients of other "
         "rows, "
         "in\n"
         "  one pass.\n"
         "- *Layouts* on a mesh that pass ([sharding.md](sharding.md)), of one call of the row: a letter for each axis "
         "that may\n"
         "  be cut, in all operands that have it alike; `_` must be whole; `#b` has an element for each part of b. An "
         "output\n"
         "  that lacks a letter is partial then, as said behind it. *one partial*: of one operand, the others are "
         "replicated;\n"
         "  *all partial*: of all at once. *elementwise*: any axis that is not broadcast.\n"
         "- *Test*: `table: x` is the case x of `tests/operators/ops_table.cc`, on which `ops_table_test.cc` compares "
         "kernels\n"
         "  with the reference, and gradients with finite differences. Others are named as GoogleTest names them.\n\n"
         "| operator | inputs | dtypes | backends | gradient | layouts | test |\n|---|---|---|---|---|---|---|\n";
  for (const Operator* row : Registry::instance().all()) {
    text << "| `" << row->name << "` | " << inputs_of(*row) << " | " << kernels_of(*row) << " | "
         << (row->gradient ? "yes" : "no") << " | " << rules->of(*row) << " | " << test_of(row->name, cases[row->name])
         << " |\n";
  }
  text << "\n## Functions that wait\n\n"
          "Values decide the shape of their results, so they wait for these values at the call (`operators/waiting.h`; "
          "rule 13 of\n[semantics.md](semantics.md)). Captures and stages of pipelines refuse them. Of all others only "
          "those wait that give a\nvalue of C++ (`allclose`, `array_equal`).\n\n"
          "| function | waits for | so as not to wait |\n|---|---|---|\n";
  for (const WaitingFunction& f : waiting_functions())
    text << "| `" << f.name << "` | " << f.waits_for << " | " << f.instead << " |\n";
  return text.str();
}

/// Throws where a test in other_tests() is in no file.
void check_names() {
  std::string sources;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(SLUICE_SOURCE_DIR "/tests")) {
    if (!entry.path().string().ends_with("_test.cc")) continue;
    std::ifstream file(entry.path());
    sources.append(std::istreambuf_iterator<char>(file), {});
  }
  for (const auto& [row, test] : other_tests()) {
    if (!Registry::instance().find(row)) throw std::runtime_error("a test is listed for '" + row + "', no operator");
    const std::size_t dot = test.find('.');
    const std::string text = "TEST(" + test.substr(0, dot) + ", " + test.substr(dot + 1) + ")";
    if (sources.find(text) == std::string::npos) throw std::runtime_error("there is no test " + test);
  }
}

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool check = !arguments.empty() && arguments[0] == "--check";
  if (arguments.size() != (check ? 2U : 1U)) throw std::runtime_error("usage: operators_page [--check] FILE");
  check_names();
  const std::string& path = arguments.back();
  const std::string text = page();
  if (!check) {
    std::ofstream file(path);
    file << text << std::flush;
    if (!file) throw std::runtime_error(path + " cannot be written");
    return 0;
  }
  std::ifstream file(path);
  const std::string there(std::istreambuf_iterator<char>(file), {});
  if (there == text) return 0;
  const auto at = std::mismatch(there.begin(), there.end(), text.begin(), text.end()).first;
  std::cerr << path << " differs from the registry at line " << 1 + std::count(there.begin(), at, '\n')
            << "; to write it anew: " << SLUICE_BINARY_DIR << "/tests/operators_page " << path << '\n';
  return 1;
}

}  // namespace
}  // namespace sluice::testing

int main(int argc, char** argv) {
  try {
    return sluice::testing::main(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "operators_page: " << e.what() << '\n';
    return 2;
  }
}
