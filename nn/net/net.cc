#include "sluice/nn/net/net.h"

#include <algorithm>
#include <cstdio>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "sluice/ndarray/called.h"
#include "sluice/ndarray/owner.h"
#include "sluice/operators/operators.h"

namespace sluice::nn {

void Visitor::place(const std::string&, Place&) {}

std::string join(const std::string& path, std::string_view name) {
  std::string joined = path;
  if (!joined.empty()) joined += '.';
  joined += name;
  return joined;
}

bool matches_pattern(std::string_view pattern, std::string_view text) {
  if (const auto bar = pattern.find('|'); bar != pattern.npos) {
    return matches_pattern(pattern.substr(0, bar), text) || matches_pattern(pattern.substr(bar + 1), text);
  }
  // The last '*' takes one character more whenever what follows it does not fit.
  std::size_t p = 0, t = 0, star = pattern.npos, from = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Select::Select(std::string pattern)
    : text("'" + pattern + "'"),
      match([p = std::move(pattern)](const Named& n) { return matches_pattern(p, n.name); }) {}

namespace detail {
namespace {

[[noreturn]] void refuse(const char* function, const Where& where, const std::string& what) {
  throw ArrayError(function, where, what);
}

std::uint64_t hash(std::string_view text) {  // FNV-1a, the same on every machine
  std::uint64_t h = 14695981039346656037ULL;
  for (const char c : text) h = (h ^ static_cast<std::uint8_t>(c)) * 1099511628211ULL;
  return h;
}

std::size_t longest(const std::vector<Named>& slots) {
  std::size_t n = 0;
  for (const Named& slot : slots) n = std::max(n, slot.name.size());
  return n;
}

}  // namespace

void Collector::slot(const std::string& path, Slot& slot) {
  const std::shared_ptr<State>& state = slot.state();
  if (!state) throw UsageError("[nn] '" + path + "' was moved away");
  if (!paths_.insert(path).second) {
    const auto is_it = [&](const Named& known) { return known.name == path && known.state == state; };
    if (std::ranges::none_of(contents.slots, is_it) && std::ranges::none_of(contents.aliases, is_it)) {
      throw UsageError("[nn] two parts of the net are called '" + path + "': each needs a name of its own");
    }
  }
  if (!seen_.insert(state.get()).second) {
    contents.aliases.push_back({path, state});
    return;
  }
  constexpr const char* kKinds[] = {"nn::Parameter", "nn::Statistic", "nn::Constant"};
  check_shape(kKinds[static_cast<int>(state->kind)], state->shape, DType::f32, state->where);
  contents.slots.push_back({path, state});
}

std::shared_ptr<State> Clones::of(const Slot& slot) {
  std::shared_ptr<State>& made = made_[&slot.checked_state()];
  if (!made) {
    made = std::make_shared<State>(slot.checked_state());
    made->holders = 0;
    made->optimizer.reset();
    if (made->value.defined()) {
      const NoGrad off;
      made->value = made->copied();
      made->want_gradient();
    }
  }
  return made;
}

void Clones::refuse_recipe(std::size_t wanted, std::size_t given) {
  throw UsageError("[nn::clone] recipe() gives an object with " + std::to_string(given) + " parameters, not " +
                   std::to_string(wanted));
}

void initialise(const Contents& net, std::uint64_t seed, const std::vector<InitRule>& rules, const InitOptions& options,
                bool only_missing, Where where) {
  const char* const name = only_missing ? "nn::complete" : "nn::initialise";
  const sluice::detail::Called called(name, where);
  if (!is_floating(options.dtype)) {
    refuse(name, where, "dtype " + std::string(name_of(options.dtype)) + " is not a floating one");
  }
  std::vector<const Init*> inits;
  std::vector<bool> met(rules.size());
  for (const Named& slot : net.slots) {
    if (!only_missing && !options.again && slot.state->value.defined()) {
      refuse(name, where,
             "'" + slot.name +
                 "' has a value already: say {.again = true} to draw it anew, or nn::complete for what has none");
    }
    inits.push_back(&slot.state->init);
    for (std::size_t i = 0; i < rules.size(); ++i) {
      if (!rules[i].where.match(slot)) continue;
      met[i] = true;
      inits.back() = &rules[i].init;
    }
  }
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (!met[i]) {
      refuse(name, where,
             "the rule " + rules[i].where.text + " matches none of the " + std::to_string(net.slots.size()) +
                 " arrays of the net");
    }
  }
  const NoGrad off;
  const ScopeGuard scope;
  if (options.device) current_scope().device = *options.device;
  const DType statistics = options.dtype == DType::f64 ? DType::f64 : DType::f32;
  std::vector<NDArray> values(net.slots.size());
  for (std::size_t i = 0; i < net.slots.size(); ++i) {
    const auto& [path, state] = net.slots[i];
    if (only_missing && state->value.defined()) continue;
    if (!*inits[i]) refuse(name, where, "'" + path + "' has an empty initialiser");
    const DType dtype = state->kind == Kind::statistic ? statistics : options.dtype;
    const ScopeGuard while_it_draws;
    if (state->layout) current_scope().interpreter = 0;  // a MeshScope would make a whole one at each place
    RandomStream stream = RandomStream(seed).derive(hash(path));
    values[i] = (*inits[i])(state->shape, dtype, stream);
    const NDArray& value = values[i];
    if (!value.defined() || !(value.shape() == state->shape) || value.dtype() != dtype) {
      refuse(name, where,
             "the initialiser of '" + path + "' gave " + (value.defined() ? to_string(value.spec()) : "nothing") +
                 ", not " + std::string(name_of(dtype)) + " " + to_string(state->shape));
    }
    // A value of its own: an initialiser may give one that the program holds, the same one twice, or a window on one.
    const bool own = value.array()->refs() == 1 && !sluice::detail::is_owned_view(value) && !value.array()->stays() &&
                     value.array()->shape() == state->shape;
    if (!own || value.requires_grad() || !value.is_contiguous()) values[i] = value.copy();
    values[i] = state->laid_out(values[i]);
  }
  for (std::size_t i = 0; i < net.slots.size(); ++i) {
    State& state = *net.slots[i].state;
    state.set_path(net.slots[i].name);  // also of what a part's own load named
    if (!values[i].defined()) continue;
    state.value = values[i];
    state.want_gradient();
  }
  for (const auto& [path, place] : net.places) place->set_path(path);
}

void freeze(const Contents& net, const Select& which, bool frozen, Where where) {
  const sluice::detail::Called called("nn::freeze", where);
  bool any = false;
  for (const Named& slot : net.slots) any = any || which.match(slot);
  if (!any) {
    refuse("nn::freeze", where,
           which.text + " matches none of the " + std::to_string(net.slots.size()) + " arrays of the net");
  }
  const NoGrad off;
  for (const Named& slot : net.slots) {
    State& state = *slot.state;
    if (!which.match(slot) || state.frozen == frozen) continue;
    state.frozen = frozen;
    if (state.kind != Kind::parameter || !state.value.defined()) continue;
    // A leaf stays one for what was recorded already; so the present value becomes an array of its own.
    state.value = state.copied();
    state.want_gradient();
  }
}

void move(const Contents& net, Device device, Where where) {
  const sluice::detail::Called called("nn::to", where);
  const NoGrad off;
  struct Change {
    State* state;
    NDArray value, gradient;
  };
  std::vector<Change> changes;
  for (const Named& slot : net.slots) {
    State& state = *slot.state;
    if (!state.value.defined() || (!layout_of(state.value) && state.value.device() == device)) continue;
    const NDArray gradient = state.is_trained() ? state.value.grad() : NDArray();
    changes.push_back({&state, gathered(state.value.detach()).to(device),
                       gradient.defined() ? gathered(gradient).to(device) : gradient});
  }
  for (const Named& slot : net.slots) {
    slot.state->layout = slot.state->in_calls = slot.state->kept = slot.state->gradient = Layout();
    slot.state->boundary = nullptr;
  }
  for (const auto& [state, value, gradient] : changes) {
    state->value = value;
    state->want_gradient();
    if (gradient.defined()) state->value.set_grad(gradient);
  }
}

void blend(const Contents& target, const Contents& source, double t, Where where) {
  const sluice::detail::Called called("nn::blend", where);
  if (target.slots.size() != source.slots.size()) {
    refuse("nn::blend", where,
           "the nets differ: " + std::to_string(target.slots.size()) + " arrays and " +
               std::to_string(source.slots.size()));
  }
  for (std::size_t i = 0; i < target.slots.size(); ++i) {
    const auto& [to_name, to_state] = target.slots[i];
    const auto& [from_name, from_state] = source.slots[i];
    if (to_name != from_name) refuse("nn::blend", where, "the nets differ: '" + to_name + "' and '" + from_name + "'");
    if (to_state == from_state) refuse("nn::blend", where, "'" + to_name + "' of both nets is one parameter");
    if (!to_state->value.defined() || !from_state->value.defined()) {
      refuse("nn::blend", where, "'" + to_name + "' has no value: call nn::initialise, nn::load or nn::clone first");
    }
    if (!(to_state->shape == from_state->shape)) {
      refuse("nn::blend", where,
             "'" + to_name + "' is " + to_string(to_state->shape) + " and " + to_string(from_state->shape));
    }
  }
  const NoGrad off;
  for (std::size_t i = 0; i < target.slots.size(); ++i) {
    const State& to = *target.slots[i].state;
    NDArray from = source.slots[i].state->at_rest();
    if (const Layout layout = layout_of(to.value); !(layout_of(from) == layout)) {
      from = gathered(from.detach()).to(to.value.device());
      if (layout) from = place(from, layout);
    }
    from = from.to(to.value.device()).to(to.value.dtype());
    const DeviceScope scope(to.value.device());
    if (to.kind == Kind::parameter && t != 1) {
      to.value.assign(lerp(to.at_rest(), from, t));
    } else {
      to.value.assign(from);
    }
  }
}

void recover(const Contents& net, Where where) {
  for (const Named& slot : net.slots) {
    const State& state = *slot.state;
    if (!state.value.defined()) continue;
    sluice::detail::each_plain(state.value, [&](const NDArray& x) { x.engine().recover(x, where); });
    if (state.is_trained()) state.value.zero_grad();
  }
}

void name(const Contents& net) {
  for (const Named& slot : net.slots) {
    if (slot.state->path.empty()) slot.state->set_path(slot.name);
  }
  for (const auto& [path, place] : net.places) {
    if (!place->known()) place->set_path(path);
  }
}

std::string describe(const Contents& net) {
  const std::size_t width = longest(net.slots);
  std::string table;
  std::int64_t trained = 0, parameters = 0;
  for (const auto& [name, state] : net.slots) {
    std::string line = name;
    line.resize(width + 2, ' ');
    std::string shape = to_string(state->shape);
    if (shape.size() < 24) shape.resize(24, ' ');
    std::string count = std::to_string(state->shape.count());
    if (count.size() < 12) count.insert(0, 12 - count.size(), ' ');
    table += line + shape + count;
    if (state->layout) table += "  " + to_string(state->layout);
    if (state->kind == Kind::statistic) table += "  statistic";
    if (state->kind == Kind::constant) table += "  constant";
    if (state->frozen) table += "  frozen";
    if (state->holders > 1) table += "  in " + std::to_string(state->holders) + " places";
    if (!state->value.defined()) table += "  no value yet";
    table += '\n';
    if (state->kind != Kind::parameter) continue;
    parameters += state->shape.count();
    if (!state->frozen) trained += state->shape.count();
  }
  return table + std::to_string(parameters) + " parameters, " + std::to_string(trained) + " of them trained\n";
}

}  // namespace detail
}  // namespace sluice::nn
