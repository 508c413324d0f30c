#include "sluice/autograd/shapes.h"

#include <algorithm>
#include <memory>
#include <ostream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "sluice/autograd/kept.h"
#include "sluice/autograd/tape_run.h"
#include "sluice/engine/bytes_in_words.h"
#include "sluice/engine/layer.h"
#include "sluice/engine/number_text.h"
#include "sluice/ndarray/anomaly.h"
#include "sluice/ndarray/dry_run.h"
#include "sluice/ndarray/interpreter.h"
#include "sluice/operators/infer.h"

namespace sluice {
namespace {

/// What the calls of each layer add up to. It stands outside of all other interpreters, so that it sees what is pushed.
class Layers final : public Interpreter {
 public:
  explicit Layers(std::vector<LayerShapes>& list) : list_(list) {}

  void apply(Call& call, Next next) override {
    LayerShapes& layer = of(current_scope().layer);
    ++layer.calls;
    layer.flops += cost_of(call).flops;
    for (const NDArray* x : call.inputs()) count_parameter(*x->array(), layer);
    if (call.targets().empty()) {
      for (const Spec& y : call.specs()) {
        layer.output_bytes += static_cast<std::size_t>(y.shape.count()) * size_of(y.dtype);
      }
      if ((current_scope().flags & kBackwardFlag) == 0) layer.outputs.assign(call.specs().begin(), call.specs().end());
    }
    next(call);
  }

  LayerShapes& of(const detail::Layer* layer) {
    const auto [at, fresh] = places_.try_emplace(layer, list_.size());
    if (fresh) list_.emplace_back().layer = detail::path_of(layer);
    return list_[at->second];
  }

 private:
  void count_parameter(Array& array, LayerShapes& layer) {
    {
      const std::lock_guard lock(array.mutex());
      if (!array.leaf || !parameters_.insert(array.history.get()).second) return;
      kept_.push_back(array.history);
    }
    layer.parameters += array.shape().count();
    layer.parameter_bytes += static_cast<std::size_t>(array.shape().count()) * size_of(array.dtype());
  }

  std::vector<LayerShapes>& list_;
  std::unordered_map<const detail::Layer*, std::size_t> places_;
  std::unordered_set<const History*> parameters_;
  std::vector<Ref<History>> kept_;  ///< so that no other has the address
};

}  // namespace

Shapes detail::shapes_of(const std::function<std::vector<NDArray>()>& f, const std::source_location& where) {
  autograd::install_recorder();
  Shapes shapes;
  const auto layers = std::make_shared<Layers>(shapes.layers);
  std::vector<std::shared_ptr<Interpreter>> stack = interpreters();
  stack.insert(stack.begin(), layers);
  DryRun run;
  const DryRun::Scope scope(run, autograd::next_sequence());
  const TheseInterpreters those(stack);
  const std::vector<NDArray> results = f();
  autograd::Kept kept;
  for (const NDArray& y : results) {
    y.checked("shapes_of", where);
    shapes.results.push_back(y.spec(where));
    kept.start(autograd::maker_of(y));
  }
  for (const autograd::Kept::Piece& piece : kept.pieces()) {
    layers->of(piece.layer).kept_bytes += piece.memory.bytes;
    shapes.kept_bytes += piece.memory.bytes;
  }
  for (const auto& [layer, bytes] : run.scratch()) layers->of(layer).scratch_bytes = bytes;
  for (const LayerShapes& layer : shapes.layers) {
    shapes.parameters += layer.parameters;
    shapes.parameter_bytes += layer.parameter_bytes;
    shapes.flops += layer.flops;
  }
  shapes.peak_bytes = run.peak_bytes();
  return shapes;
}

NDArray detail::array_without_elements(const Spec& spec, const std::source_location& where) {
  return empty(spec.shape, spec.dtype, spec.device, where);
}

// ---- the table

namespace {

std::string with_commas(std::int64_t n) {
  std::string text = std::to_string(n);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<std::size_t>(at), ",");
  }
  return text;
}

std::string flops_in_words(double flops) {
  constexpr const char* kUnits[] = {"", " k", " M", " G", " T", " P", " E"};
  std::size_t unit = 0;
  while (flops >= 1000 && unit + 1 < std::size(kUnits)) {
    flops /= 1000;
    ++unit;
  }
  return (unit == 0 ? fixed_text(flops, 0) : general_text(flops, 3)) + kUnits[unit];
}

using Line = std::vector<std::string>;

/// The first two columns to the left, the others to the right.
std::string aligned(const std::vector<Line>& lines) {
  std::vector<std::size_t> widths;
  for (const Line& line : lines) {
    widths.resize(std::max(widths.size(), line.size()));
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const Line& line : lines) {
    std::string row;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string room(widths[i] - line[i].size(), ' ');
      row += (i == 0 ? "" : "  ") + (i < 2 ? line[i] + room : room + line[i]);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

std::string in_words(const std::vector<Spec>& specs) {
  std::string text;
  for (const Spec& spec : specs) {
    text += (text.empty() ? "" : ", ") + to_string(spec.shape) + " " + std::string(name_of(spec.dtype));
  }
  return text;
}

std::string bytes_text(std::size_t bytes) { return bytes_in_words(static_cast<double>(bytes)); }

}  // namespace

std::string to_string(const Shapes& shapes) {
  std::vector<Line> lines{{"layer", "output", "parameters", "kept", "scratch", "flops"}};
  for (const LayerShapes& l : shapes.layers) {
    if (l.parameters == 0 && l.outputs.empty() && l.flops == 0) continue;
    lines.push_back({l.layer.empty() ? "(no layer)" : l.layer, in_words(l.outputs), with_commas(l.parameters),
                     bytes_text(l.kept_bytes), bytes_text(l.scratch_bytes), flops_in_words(l.flops)});
  }
  lines.push_back({"all", in_words(shapes.results), with_commas(shapes.parameters), bytes_text(shapes.kept_bytes), "",
                   flops_in_words(shapes.flops)});
  return aligned(lines) + "parameters " + bytes_text(shapes.parameter_bytes) + ", at most " +
         bytes_text(shapes.peak_bytes) + " beside them\n";
}

std::ostream& operator<<(std::ostream& out, const Shapes& shapes) { return out << to_string(shapes); }

}  // namespace sluice
