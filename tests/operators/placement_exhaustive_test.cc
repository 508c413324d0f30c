// Every row of the registry, with its operands in every layout, on meshes of 2, 3 and 2 x 2 places: the result is that
// of the whole, in the predicted layout, or the call is refused. Gradients too. What is accepted is listed in
// placements.txt, and neither more nor less may be.
//
// The calls are those that the tables of operators and of functions make, forward and backward, as an interpreter sees
// them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <set>
#include <sstream>

#include "declared_functions.h"
#include "function_calls.h"
#include "ops_table.h"
#include "paths.h"
#include "placement_support.h"
#include "sluice/operators/placement.h"

namespace sluice::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // ten times as slow
#else
constexpr bool kSanitized = false;
#endif

struct Example {
  const Operator* row;
  Attributes attributes;
  Arrays inputs;
  std::string text;  ///< "matmul(transpose_a=true) of (4, 3) f64, (4, 5) f64"
};

/// The first few calls of each row that differ in their ranks or attributes.
struct Collector final : Interpreter {
  static constexpr int kMostOfRow = 4;
  std::map<std::string, std::vector<Example>> rows;
  std::set<std::string> seen;

  static std::string text_of(const Call& call) {
    std::string text = to_string(call.value());
    text = text.substr(0, text.rfind(" gives "));
    return text;
  }
  void apply(Call& call, Next next) override {
    std::vector<Example>& list = rows[std::string(call.name())];
    std::string ranks(call.name());
    std::int64_t elements = 0;
    for (const NDArray* x : call.inputs()) {
      ranks += "," + std::to_string(x->rank()) + (is_floating(x->dtype()) ? "f" : "i");
      elements += layout_of(*x) ? 1 << 20 : x->count();  // a call on a mesh is no example
    }
    for (const AttributeField& field : call.attributes().fields()) {
      const FieldValue value = field.get(call.attributes().data());
      if (std::holds_alternative<bool>(value) || std::holds_alternative<std::int64_t>(value) ||
          std::holds_alternative<std::uint64_t>(value)) {
        ranks += "," + to_string(value);
      }
    }
    const bool fits = call.targets().empty() && !call.inputs().empty() && call.inputs().size() <= 7 && elements > 0 &&
                      elements <= 2000;
    if (fits && list.size() < kMostOfRow && seen.insert(ranks).second) {
      const NoGrad scope;
      Example example{&row_of(call), call.attributes(), {}, text_of(call)};
      for (const NDArray* x : call.inputs()) example.inputs.push_back(x->copy().detach());
      list.push_back(std::move(example));
    }
    next(call);
  }
};

std::vector<Example> examples() {
  const auto collector = std::make_shared<Collector>();
  {
    const InterpreterScope scope(collector);
    for (const OperatorCase& c : operator_cases()) {
      Arrays inputs = make_inputs(c, DType::f64);
      for (const NDArray& x : inputs) {
        if (c.gradient && is_floating(x.dtype())) x.with_grad();
      }
      const NDArray y = c.call(inputs);
      if (c.gradient) sum(y).backward();
    }
    for (const FunctionCall& call : function_calls()) {
      try {
        (void)call.call(call.make());
      } catch (const UsageError&) {  // not to be called here
      }
    }
  }
  std::vector<Example> list;
  for (auto& [name, of_row] : collector->rows) {
    for (Example& example : of_row) list.push_back(std::move(example));
  }
  return list;
}

std::vector<Placement> placements_of(const NDArray& x) {
  std::vector<Placement> list{replicate};
  for (int axis = 0; axis < x.rank(); ++axis) list.push_back(shard(axis));
  if (x.dtype() != DType::boolean) list.push_back(partial());
  return list;
}

/// Layouts of each input.
using Combination = std::vector<Layout>;

std::string letters_of_all(const Combination& layouts) {
  std::string text;
  for (const Layout& layout : layouts) text += letters_of(layout);
  return text;
}

/// Of what two ways to compute an array may differ by, relative to its largest element.
double tolerance(DType dtype) {
  return dtype == DType::f64 ? 1e-9 : dtype == DType::f32 ? 2e-5 : is_floating(dtype) ? 3e-2 : 0;
}

class Exhaustive {
 public:
  explicit Exhaustive(const Example& example) : example_(example) {
    std::vector<Spec> specs;
    for (const NDArray& x : example.inputs) {
      specs.push_back(x.spec());
      inputs_.push_back(&x);
    }
    specs_ = std::move(specs);
    const NoGrad scope;
    for (const NDArray& y : apply_all(*example.row, inputs_, example.attributes, {})) {
      results_.push_back(y);
      values_.push_back(doubles_of(y));
    }
  }

  PlacedCall rule(const Combination& layouts) const {
    Signature signature(example_.row->name, std::source_location::current(), std::span<const Spec>(specs_),
                        example_.attributes, specs_[0].device);
    example_.row->infer(signature);
    return place_call(*example_.row, signature, layouts);
  }

  /// All combinations on a mesh of one axis that the rule allows.
  std::vector<std::vector<Placement>> allowed(const Mesh& mesh) {
    std::vector<std::vector<Placement>> found, choices;
    for (const NDArray& x : example_.inputs) choices.push_back(placements_of(x));
    std::vector<Placement> now(choices.size());
    Combination layouts(choices.size());
    const std::function<void(std::size_t)> choose = [&](std::size_t i) {
      if (i == choices.size()) {
        ++tried;
        if (rule(layouts).refusal.empty()) found.push_back(now);
        return;
      }
      for (const Placement& p : choices[i]) {
        now[i] = p;
        layouts[i] = Layout(mesh, example_.inputs[i].shape(), {{mesh.name(0), p}});
        choose(i + 1);
      }
    };
    choose(0);
    return found;
  }

  /// Runs the call, and its gradients. Gives what the list says of it, "S0R->S0" and " g" if the gradients passed;
  /// empty if it was refused.
  std::string run(const Combination& layouts) {
    const std::string what = example_.text + " as " + letters_of_all(layouts);
    const PlacedCall predicted = rule(layouts);
    Arrays placed;
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      placed.push_back(placed_as(example_.inputs[i], layouts[i]));
    }
    std::vector<const NDArray*> pointers;
    for (const NDArray& x : placed) pointers.push_back(&x);
    Arrays results;
    try {
      const NoGrad scope;
      results = apply_all(*example_.row, pointers, example_.attributes, {});
    } catch (const UsageError& e) {
      const std::string text = e.what();
      EXPECT_EQ(text.find('\n'), text.npos) << what << ": " << text;
      EXPECT_EQ(text[0], '[') << what << ": " << text;
      ++refused;
      return {};
    }
    EXPECT_TRUE(predicted.refusal.empty()) << what;
    std::string answer = letters_of_all(layouts) + "->";
    ++runs;
    for (std::size_t o = 0; o < results.size(); ++o) {
      EXPECT_EQ(layout_of(results[o]), predicted.outputs[o]) << what;
      answer += letters_of(layout_of(results[o]));
      EXPECT_LE(distance(values_[o], put_together(results[o], what)), tolerance(results[o].dtype()))
          << what << ": output " << o;
    }
    return answer + (gradients(layouts, what) ? "g" : "");
  }

  std::size_t tried = 0, runs = 0, refused = 0, gradient_runs = 0;

 private:
  /// False if there are none, or they are refused.
  bool gradients(const Combination& layouts, const std::string& what) {
    if (!example_.row->gradient || !is_floating(results_[0].dtype())) return false;
    std::vector<Arrays> of_side(2);
    for (const bool on_mesh : {false, true}) {
      Arrays inputs, wanted;
      std::vector<const NDArray*> pointers;
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        const NDArray& x = example_.inputs[i];
        inputs.push_back(on_mesh ? placed_as(x, layouts[i]) : x.detach());
        if (is_floating(x.dtype())) wanted.push_back(inputs.back().with_grad());
      }
      for (const NDArray& x : inputs) pointers.push_back(&x);
      if (wanted.empty()) return false;
      try {
        Arrays roots, weights;
        for (const NDArray& y : apply_all(*example_.row, pointers, example_.attributes, {})) {
          if (!is_floating(y.dtype()) || !y.requires_grad()) continue;
          NDArray weight = (arange(y.count()).to(DType::f64) * 0.37 + 0.5).to(y.dtype()).reshape(y.shape());
          roots.push_back(y);
          weights.push_back(on_mesh ? place(weight, layouts[0].mesh()) : weight);
        }
        if (roots.empty()) return false;
        backward(roots, weights);
        for (const NDArray& x : wanted) of_side[on_mesh].push_back(x.grad());
      } catch (const UsageError& e) {
        const std::string text = e.what();
        EXPECT_TRUE(on_mesh) << what << ": " << text;
        EXPECT_EQ(text.find('\n'), text.npos) << what << ": " << text;
        ++refused;
        return false;
      }
      if (!on_mesh) continue;
      std::size_t k = 0;
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        if (!is_floating(example_.inputs[i].dtype())) continue;
        const NDArray &g = of_side[1][k], &plain = of_side[0][k];
        ++k;
        EXPECT_EQ(g.defined(), plain.defined()) << what << ": gradient " << i;
        if (!g.defined() || !plain.defined()) continue;
        Placements added_up;
        for (int m = 0; m < layouts[i].mesh().axes(); ++m) {
          if (layouts[i].on(m).kind == Placement::Kind::partial) {
            added_up.emplace_back(layouts[i].mesh().name(m), replicate);
          }
        }
        EXPECT_EQ(layout_of(g), layouts[i].with(added_up)) << what << ": gradient " << i;
        EXPECT_LE(distance(doubles_of(plain), put_together(g, what)), tolerance(g.dtype()))
            << what << ": gradient " << i;
      }
    }
    ++gradient_runs;
    return true;
  }

  const Example& example_;
  std::vector<Spec> specs_;
  std::vector<const NDArray*> inputs_;
  Arrays results_;
  std::vector<std::vector<double>> values_;
};

/// On a mesh of one axis every combination that the rule allows is run, and a few that it does not; on 2 x 2 pairs of
/// the allowed ones.
void run_all(const Example& example, std::mt19937& random, std::size_t most_pairs, std::string& line,
             std::size_t (&counts)[4]) {
  Exhaustive test(example);
  const Mesh two({{"x", 2}}, test::device_kind()), three({{"x", 3}}, test::device_kind());
  const Mesh square({{"x", 2}, {"y", 2}}, test::device_kind());
  const auto on = [&](const Mesh& mesh, const std::vector<Placement>& x, const std::vector<Placement>* y) {
    Combination layouts;
    for (std::size_t i = 0; i < x.size(); ++i) {
      Placements list{{"x", x[i]}};
      if (y) list.emplace_back("y", (*y)[i]);
      layouts.emplace_back(mesh, example.inputs[i].shape(), list);
    }
    return layouts;
  };
  const std::vector<std::vector<Placement>> allowed = test.allowed(two);
  line = example.text + ":";
  for (const std::vector<Placement>& p : allowed) {
    const std::string said = test.run(on(two, p, nullptr));
    if (!said.empty()) line += " " + said;
    test.run(on(three, p, nullptr));
  }
  // What is refused is refused at the call too.
  for (int i = 0; i < 5; ++i) {
    std::vector<Placement> p;
    for (const NDArray& x : example.inputs) {
      const std::vector<Placement> choices = placements_of(x);
      p.push_back(choices[random() % choices.size()]);
    }
    test.run(on(two, p, nullptr));
  }
  const std::size_t pairs = std::min(most_pairs, allowed.size() * allowed.size());
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::size_t k = pairs < most_pairs ? i : random() % (allowed.size() * allowed.size());
    test.run(on(square, allowed[k / allowed.size()], &allowed[k % allowed.size()]));
  }
  counts[0] += test.tried;
  counts[1] += example.row->elementwise ? 0 : test.runs;
  counts[2] += test.refused;
  counts[3] += test.gradient_runs;
}

TEST(Placements, Exhaustive) {
  if (test::on_streams()) GTEST_SKIP() << "the list is that of CPUs; placement_test.cc runs on all devices";
  test::DefaultEngine engine({.threads = 2, .logical_cpus = 4});
  const bool deep = std::getenv("SLUICE_DEEP") != nullptr;
  const unsigned seed = deep ? std::random_device()() : 1;
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  std::vector<std::string> lines;
  std::size_t counts[4] = {};
  const std::vector<Example> list = examples();
  for (const Example& example : list) {
    lines.emplace_back();
    run_all(example, random, deep ? 400 : kSanitized ? 3 : 40, lines.back(), counts);
    if (::testing::Test::HasFatalFailure()) return;
  }
  // The library's rows are those of the page: other tests of this process may have added rows of their own.
  const std::string page = text_of_file(SLUICE_SOURCE_DIR "/docs/operators.md");
  for (const Operator* row : Registry::instance().all()) {
    const bool has = std::any_of(list.begin(), list.end(), [&](const Example& e) { return e.row == row; });
    const bool own = page.find("\n| `" + std::string(row->name) + "` |") != page.npos;
    if (own && !has) lines.push_back(std::string(row->name) + ": no call of the tables");
  }
  std::cout << list.size() << " calls, " << counts[0] << " combinations, " << counts[1]
            << " runs outside of elementwise rows, " << counts[2] << " refused, " << counts[3] << " with gradients\n";
  EXPECT_GE(counts[1], kSanitized ? 1U : 3000U);
  if (const char* const path = std::getenv("SLUICE_WRITE_PLACEMENTS")) {
    std::ofstream out(path);
    for (const std::string& line : lines) out << line << "\n";
    return;
  }
  std::ifstream in(SLUICE_SOURCE_DIR "/tests/operators/placements.txt");
  std::set<std::string> listed;
  for (std::string line; std::getline(in, line);) listed.insert(line);
  for (const std::string& line : lines) EXPECT_EQ(listed.erase(line), 1U) << "not in placements.txt: " << line;
  for (const std::string& line : listed) ADD_FAILURE() << "in placements.txt alone: " << line;
}

}  // namespace
}  // namespace sluice::testing
