#include "sluice/parallel/watched_layers.h"

#include <cxxabi.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <typeinfo>
#include <utility>

#include "sluice/autograd/autograd.h"
#include "sluice/operators/operators.h"
#include "sluice/resources/draw_notes.h"

namespace sluice::parallel {
namespace {

/// A layer whose forward passes leave no traces once the arrays that they wrote are restored.
class Watched : public Module {
 public:
  Watched(ModulePtr layer, Rerun& written) : layer_(std::move(layer)), written_(written) {}
  NDArray forward(const NDArray& x) override {
    NDArray y;
    {
      const Rerun::Scope notes(written_, false);
      const DrawNotes::Still still;
      y = (*layer_)(x);
    }
    written_.forget_unwritten();
    return y;
  }
  void collect(const std::string& prefix, std::vector<NamedParameter>& out) override { layer_->collect(prefix, out); }
  /// A move takes values along: those from before.
  void to(Device device) override {
    written_.restore();
    layer_->to(device);
  }

 private:
  ModulePtr layer_;
  Rerun& written_;
};

std::string type_of(const Module& layer) {
  int status = 0;
  char* const text = abi::__cxa_demangle(typeid(layer).name(), nullptr, nullptr, &status);
  std::string name = status == 0 ? text : typeid(layer).name();
  std::free(text);  // NOLINT: as the ABI wants it
  return name.substr(name.rfind(':') + 1);
}

}  // namespace

WatchedLayers::WatchedLayers(const Sequential& network, Device home) : home_(home) {
  for (std::size_t i = 0; i < network.size(); ++i) {
    const auto layer = std::make_shared<Sequential>(network.slice(i, i + 1));
    Before before;
    for (const NamedParameter& p : layer->parameters()) {
      before.values.push_back(*p.value);
      before.gradients.push_back(p.value->requires_grad() ? p.value->grad() : NDArray());
    }
    before_.push_back(std::move(before));
    layers_.push_back(std::make_shared<Watched>(layer, written_));
    names_.push_back(std::to_string(i) + " " + type_of(network.layer(i)));
  }
  drop_gradients();
}

WatchedLayers::~WatchedLayers() {
  try {
    put_back();
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

void WatchedLayers::drop_gradients() const {
  for (const ModulePtr& layer : layers_) {
    for (const NamedParameter& p : layer->parameters()) {
      if (p.value->requires_grad()) p.value->zero_grad();
    }
  }
}

void WatchedLayers::wait_for_gradients(int layer) const {
  for (const NamedParameter& p : (*this)[layer]->parameters()) {
    if (p.value->requires_grad() && p.value->grad().defined()) p.value->grad().wait();
  }
}

void WatchedLayers::put_back() {
  if (std::exchange(is_back_, true)) return;
  drop_gradients();
  written_.restore();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Before& before = before_[i];
    layers_[i]->to(before.values.empty() ? home_ : before.values.front().device());
    const std::vector<NamedParameter> parameters = layers_[i]->parameters();
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      *parameters[k].value = before.values[k];
      if (before.gradients[k].defined()) before.values[k].set_grad(before.gradients[k]);
    }
  }
}

}  // namespace sluice::parallel
