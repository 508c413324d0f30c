// nn::load of a net: what of the file becomes which parameter, and what is wrong.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sluice/nn/files/sources.h"
#include "sluice/operators/placed.h"

namespace sluice::nn::detail {
namespace {

std::string describe(DType dtype, const Dims& shape) { return std::string(name_of(dtype)) + " " + to_string(shape); }

/// Of arrays in the memory of a file. Reads them.
bool same_elements(const NDArray& a, const NDArray& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && a.to_bytes() == b.to_bytes();
}

}  // namespace

void load_net(const Contents& net, const std::string& name, const SavedFile& file, const LoadOptions& options,
              LoadPlan& plan) {
  std::map<std::string, Source> sources = sources_of(name, file, options, plan);
  std::unordered_map<const State*, std::vector<Named>> further;
  for (const Named& alias : net.aliases) further[alias.state.get()].push_back(alias);
  const auto wanted = [&](const Named& slot) { return !options.only || options.only->match(slot); };
  const Device device = current_scope().device;
  bool any = false;
  for (const Named& slot : net.slots) {
    const std::shared_ptr<State> state = slot.state;
    const std::vector<Named>& aliases = further[state.get()];
    if (state->kind == Kind::constant) {  // not in files: made anew
      if (state->value.defined()) continue;
      plan.changes.push_back([state, device, path = slot.name] {
        const DeviceScope scope(device);
        if (state->layout) current_scope().interpreter = 0;  // a MeshScope would make a whole one at each place
        RandomStream stream(0);
        state->value = state->laid_out(state->init(state->shape, DType::f32, stream));
        state->set_path(path);
      });
      continue;
    }
    // What is tied may be in the file under any of its paths; nn::save writes the first.
    std::vector<Source> taken;
    const auto take = [&](const Named& place) {
      if (auto source = sources.extract(place.name)) taken.push_back(std::move(source.mapped()));
    };
    take(slot);
    for (const Named& alias : aliases) take(alias);
    if (!wanted(slot) && std::none_of(aliases.begin(), aliases.end(), wanted)) continue;
    any = true;
    const DType dtype = state->value.defined() ? state->value.dtype() : DType::f32;
    const std::string path = join(name, slot.name);
    if (taken.empty()) {
      plan.wrong.push_back("no tensor '" + path + "', wanted as " + describe(dtype, state->shape));
      continue;
    }
    const std::optional<Incoming> value = incoming(taken.front(), path, file, plan);
    if (!value) continue;
    // Without a value the net takes the file's dtype.
    const bool fits = !state->value.defined() ? is_floating(value->dtype)
                                              : value->dtype == dtype || (options.cast && is_floating(value->dtype));
    if (!(value->shape == state->shape) || !fits) {
      const bool made = taken.front().converted();
      plan.wrong.push_back(taken.front().text() + (made ? " gives " : " is ") + describe(value->dtype, value->shape) +
                           ", wanted " + describe(dtype, state->shape) + (made ? " for '" + path + "'" : ""));
      continue;
    }
    for (std::size_t i = 1; i < taken.size(); ++i) {
      const std::optional<Incoming> other = incoming(taken[i], path, file, plan);
      if (!other || same_elements(value->make(), other->make())) continue;
      plan.wrong.push_back(taken.front().text() + " and " + taken[i].text() +
                           " differ, and are one parameter of the net");
    }
    const DType target = state->value.defined() || options.cast ? dtype : value->dtype;
    plan.changes.push_back([state, make = value->make, target, device, path = slot.name] {
      const NDArray array = make();
      if (state->value.defined()) {
        const Layout layout = layout_of(state->value);
        state->value.assign(layout ? place(array.to(target), layout) : array.to(target).to(state->value.device()));
      } else {
        const NDArray there = array.to(target).to(device);
        state->value = state->laid_out(there.same_array(array) && !state->layout ? array.copy() : there);
        state->want_gradient();
      }
      state->set_path(path);
    });
  }
  if (options.only && !any) {
    plan.wrong.push_back("only " + options.only->text + ": matches nothing of the net '" + name + "'");
  }
  for (const auto& [path, source] : sources) {
    if (options.only && !options.only->match({path, std::make_shared<State>()})) continue;
    for (const std::string& full : source.tensors) {
      if (full.empty()) continue;
      const auto tensor = file.stored.find(full);
      plan.wrong.push_back(
          "'" + full + "' (" +
          (tensor == file.stored.end() ? file.refused.at(full) : describe(tensor->second.dtype, tensor->second.shape)) +
          ") is not expected");
    }
  }
  for (const auto& [path, place] : net.places) {
    plan.changes.push_back([to = path, part = place] { part->set_path(to); });
  }
}

}  // namespace sluice::nn::detail
