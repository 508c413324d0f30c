#include "sluice/nn/files/gradients.h"

#include "sluice/autograd/gradients.h"
#include "sluice/operators/placed.h"

namespace sluice::nn {

std::vector<SavedArray> Gradients::saved_arrays() const {
  std::vector<SavedArray> list;
  for (const auto& [name, state] : contents_().slots) {
    if (state->kind != Kind::parameter || state->frozen || !state->value.defined()) continue;
    const NDArray gradient = state->value.grad();
    if (gradient.defined()) list.push_back({name, gradient});
  }
  return list;
}

std::map<std::string, std::int64_t> Gradients::counts() const {
  return {{"gradients", static_cast<std::int64_t>(saved_arrays().size())}};
}

std::vector<std::string> Gradients::load_arrays(const std::vector<SavedArray>& arrays, bool check_only) {
  std::map<std::string, NDArray> left;
  for (const SavedArray& array : arrays) left.emplace(array.name, array.value);
  std::vector<std::string> wrong;
  for (const auto& [name, state] : contents_().slots) {
    if (state->kind != Kind::parameter || state->frozen) continue;
    const auto at = left.find(name);
    if (at == left.end()) {
      if (!check_only) state->value.zero_grad();
      continue;
    }
    const NDArray gradient = at->second;
    left.erase(at);
    if (!(gradient.shape() == state->shape)) {
      wrong.push_back("'" + name + "' is " + to_string(gradient.shape()) + ", wanted " + to_string(state->shape));
    } else if (!check_only) {
      const NDArray cast = gradient.to(state->value.dtype());
      const Layout layout = layout_of(state->value);
      state->value.set_grad(layout ? place(cast, layout) : cast.to(state->value.device()).copy());
    }
  }
  for (const auto& [name, array] : left) wrong.push_back("'" + name + "' is not expected");
  return wrong;
}

}  // namespace sluice::nn
