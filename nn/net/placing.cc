#include "sluice/nn/net/placing.h"

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <utility>

#include "sluice/engine/bytes_in_words.h"
#include "sluice/ndarray/called.h"
#include "sluice/ndarray/grad_mode.h"
#include "sluice/operators/placed.h"

namespace sluice::nn::detail {
namespace {

constexpr const char *kPlace = "nn::place", *kExplain = "nn::explain";

/// What the tables say of one array: its placements, and what its part reshards.
struct Said {
  Placements lies;
  Boundary boundary;
};

class Tables {
 public:
  Tables(const Contents& net, const Mesh& mesh, const std::vector<AxisLayouts>& tables, const Where& where,
         const char* name)
      : where_(where), name_(name) {
    if (!mesh) fail("no mesh");
    for (const Named& slot : net.slots) names_[part_of(slot.name)].insert(last_of(slot.name));
    std::set<std::string> axes;
    for (const AxisLayouts& table : tables) {
      (void)mesh.axis(table.axis, where);
      if (!axes.insert(table.axis).second) fail("two tables for the axis " + table.axis);
      if (table.zero < 0 || table.zero > 3) {
        fail("zero is " + std::to_string(table.zero) + " for " + table.axis + ", not 0 to 3");
      }
      for (const PartRule& rule : table.rules) check(rule);
      read(table);
    }
  }

  /// "tp '*.up'", of each table that has a rule for the array's part.
  std::string rules_of(const std::string& path) const {
    const auto at = rules_.find(part_of(path));
    return at == rules_.end() ? std::string() : at->second;
  }
  Said of(const std::string& path) const {
    const auto at = said_.find(path);
    return at == said_.end() ? Said() : at->second;
  }

 private:
  static std::string part_of(const std::string& path) {
    const std::size_t dot = path.rfind('.');
    return dot == std::string::npos ? "" : path.substr(0, dot);
  }
  static std::string last_of(const std::string& path) { return path.substr(path.rfind('.') + 1); }
  [[noreturn]] void fail(const std::string& what) const {
    throw UsageError(std::string("[") + name_ + "] " + sluice::to_string(where_) + ": " + what);
  }
  void check(const PartRule& rule) const {
    for (const auto& one : {rule.layout.in, rule.layout.out}) {
      if (one && one->kind == Placement::Kind::partial) fail("the rule '" + rule.parts + "' reshards to partial");
    }
  }

  void read(const AxisLayouts& table) {
    std::vector<bool> met(table.rules.size());
    for (const auto& [part, names] : names_) {
      const auto rule = std::find_if(table.rules.begin(), table.rules.end(),
                                     [&](const PartRule& r) { return matches_pattern(r.parts, part); });
      if (rule == table.rules.end()) continue;
      met[static_cast<std::size_t>(rule - table.rules.begin())] = true;
      rules_[part] += "  " + table.axis + " '" + rule->parts + "'";
      const auto has = [&](const std::string& name) {
        if (names.contains(name)) return;
        fail("the rule '" + rule->parts + "' says something of '" + join(part, name) +
             "', which the net does not have");
      };
      const auto lies = [&](const std::string& name, const Placement& placement) {
        has(name);
        said_[join(part, name)].lies.emplace_back(table.axis, placement);
      };
      const PartLayout& layout = rule->layout;
      if (layout.weight) lies("weight", *layout.weight);
      if (layout.bias) lies("bias", *layout.bias);
      for (const auto& [name, placement] : layout.others) lies(name, placement);
      if (!layout.in && !layout.out) continue;
      has("weight");
      Boundary& boundary = said_[join(part, "weight")].boundary;
      if (layout.in) boundary.in.emplace_back(table.axis, *layout.in);
      if (layout.out) boundary.out.emplace_back(table.axis, *layout.out);
    }
    for (std::size_t i = 0; i < met.size(); ++i) {
      if (met[i]) continue;
      fail("the rule '" + table.rules[i].parts + "' for " + table.axis + " is the first match of none of the " +
           std::to_string(names_.size()) + " parts of the net that have arrays");
    }
  }

  const Where& where_;
  const char* name_;
  std::map<std::string, std::set<std::string>> names_;  ///< by part
  std::map<std::string, Said> said_;                    ///< by path
  std::map<std::string, std::string> rules_;            ///< by part
};

Layout layout_for(const Named& slot, const Mesh& mesh, const Placements& placements, const Where& where) {
  const auto refuse = [&](const std::string& what) {
    throw ArrayError(kPlace, where, "'" + slot.name + "' " + to_string(slot.state->shape) + ": " + what);
  };
  for (const auto& [axis, placement] : placements) {
    if (placement.kind == Placement::Kind::partial) refuse("an array of a net has no terms to be partial of");
    if (placement.kind != Placement::Kind::shard) continue;
    const int rank = slot.state->shape.rank();
    if (placement.axis >= rank || placement.axis < -rank)
      refuse(to_string(placement) + " of " + std::to_string(rank) + " axes");
  }
  try {
    return Layout(mesh, slot.state->shape, placements, where);
  } catch (const ArrayError& error) {
    refuse(error.what());
    throw;
  }
}

/// How what is kept of a parameter lies: cut along each axis with ZeRO that leaves it whole.
Layout kept_layout(Layout layout, const std::vector<AxisLayouts>& tables) {
  for (const AxisLayouts& table : tables) {
    const Mesh mesh = layout.mesh();
    const Dims shape = layout.shape();
    const int m = mesh.axis(table.axis);
    if (table.zero == 0 || layout.on(m).kind != Placement::Kind::replicate) continue;
    int cut = 0;
    while (cut < shape.rank() && (layout.cut(cut) || shape[cut] < mesh.size(m))) ++cut;
    if (cut == shape.rank()) continue;
    layout = layout.with({{table.axis, shard(cut)}});
  }
  return layout;
}

/// How what ZeRO cuts from `stage` on lies: along axes with it as what is kept does.
Layout cut_layout(const Layout& layout, const Layout& kept, const std::vector<AxisLayouts>& tables, int stage) {
  Placements cut;
  for (const AxisLayouts& table : tables) {
    const int m = layout.mesh().axis(table.axis);
    if (table.zero >= stage && !(kept.on(m) == layout.on(m))) cut.emplace_back(table.axis, kept.on(m));
  }
  return cut.empty() ? layout : layout.with(cut);
}

/// How an array of a net lies at rest, and how what belongs to it does.
struct Lies {
  Layout at_rest, in_calls, kept, gradient;
  Lies(const Named& slot, const Mesh& mesh, const Tables& said, const std::vector<AxisLayouts>& tables,
       const Where& where)
      : at_rest(layout_for(slot, mesh, said.of(slot.name).lies, where)), in_calls(at_rest) {
    kept = kept_layout(in_calls, tables);
    gradient = cut_layout(in_calls, kept, tables, 2);
    if (slot.state->kind == Kind::parameter) at_rest = cut_layout(in_calls, kept, tables, 3);
  }
};

}  // namespace

std::string explain(const Contents& net, const Mesh& mesh, const std::vector<AxisLayouts>& tables, Where where) {
  const sluice::detail::Called called(kExplain, where);
  const Tables said(net, mesh, tables, where, kExplain);
  std::vector<std::array<std::string, 5>> rows;
  std::vector<double> bytes(static_cast<std::size_t>(mesh ? mesh.places() : 0));
  double all = 0;
  for (const Named& slot : net.slots) {
    const Lies lies(slot, mesh, said, tables, where);
    const NDArray& value = slot.state->value;
    const auto size = static_cast<double>(value.defined() ? size_of(value.dtype()) : sizeof(float));
    double most = 0;
    for (int rank = 0; rank < mesh.places(); ++rank) {
      const double here = size * static_cast<double>(lies.at_rest.extent(rank).count());
      bytes[static_cast<std::size_t>(rank)] += here;
      most = std::max(most, here);
    }
    const double whole = size * static_cast<double>(slot.state->shape.count());
    all += whole;
    std::string why = said.rules_of(slot.name);
    for (const AxisLayouts& table : tables) {
      const int m = mesh.axis(table.axis);
      const bool zero = slot.state->kind == Kind::parameter && !(lies.kept.on(m) == lies.in_calls.on(m));
      if (zero) why += "  " + table.axis + " zero " + std::to_string(table.zero);
    }
    rows.push_back({slot.name, to_string(slot.state->shape), to_string(lies.at_rest),
                    bytes_in_words(most) + " of " + bytes_in_words(whole), why});
  }
  std::array<std::size_t, 5> width{};
  for (const auto& row : rows) {
    for (std::size_t k = 0; k < row.size(); ++k) width[k] = std::max(width[k], row[k].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t k = 0; k < 4; ++k) line += row[k] + std::string(width[k] - row[k].size() + (k < 3 ? 2 : 0), ' ');
    line += row[4];
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  const double most = bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
  return text + "at most " + bytes_in_words(most) + " of " + bytes_in_words(all) + " at a place\n";
}

void place(const Contents& net, const Mesh& mesh, const std::vector<AxisLayouts>& tables, Where where) {
  const sluice::detail::Called called(kPlace, where);
  const Tables said(net, mesh, tables, where, kPlace);
  std::vector<Lies> lies;
  for (const Named& slot : net.slots) lies.emplace_back(slot, mesh, said, tables, where);

  const NoGrad off;
  struct Change {
    NDArray value, gradient;
    std::shared_ptr<const Boundary> boundary;
  };
  std::vector<Change> changes;
  for (std::size_t i = 0; i < net.slots.size(); ++i) {
    const State& state = *net.slots[i].state;
    // A boundary also where nothing is resharded: a layer whose weight is on a mesh then looks how it lies.
    Change& change = changes.emplace_back();
    change.boundary = std::make_shared<const Boundary>(said.of(net.slots[i].name).boundary);
    if (!state.value.defined()) continue;
    change.value = sluice::place(gathered(state.value.detach(where), where), lies[i].at_rest, where);
    const NDArray gradient = state.is_trained() ? state.value.grad() : NDArray();
    if (gradient.defined()) change.gradient = sluice::place(gathered(gradient, where), lies[i].gradient, where);
  }
  name(net);
  for (std::size_t i = 0; i < net.slots.size(); ++i) {
    State& state = *net.slots[i].state;
    state.layout = lies[i].at_rest;
    state.in_calls = lies[i].in_calls;
    state.kept = lies[i].kept;
    state.gradient = lies[i].gradient;
    state.boundary = changes[i].boundary;
    if (!changes[i].value.defined()) continue;
    state.value = state.laid_out(changes[i].value);
    state.want_gradient(where);
    if (changes[i].gradient.defined()) state.value.set_grad(changes[i].gradient);
  }
}

}  // namespace sluice::nn::detail
