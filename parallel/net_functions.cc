#include "sluice/parallel/net_functions.h"

#include <algorithm>
#include <utility>

#include "sluice/autograd/shapes.h"
#include "sluice/ndarray/called.h"
#include "sluice/nn/net/mode.h"

namespace sluice::parallel::detail {
namespace {

/// Gives each slot an array without elements, and notes who asks.
class Noting final : public nn::Reads {
 public:
  Noting(const std::vector<nn::Named>& slots, const std::unordered_map<const nn::State*, std::size_t>& places,
         const char* who, std::source_location where)
      : slots_(slots), places_(places), who_(who), where_(where), values_(slots.size()) {}
  const NDArray& read(const std::shared_ptr<nn::State>& state) override {
    const auto at = places_.find(state.get());
    if (at == places_.end()) {
      throw ArrayError(who_, where_,
                       "the function '" + *function + "' reads " + state->text() + ", which is not a part of the net");
    }
    NDArray& value = values_[at->second];
    if (!value.defined()) {
      if (!state->value.defined()) {
        throw ArrayError(who_, where_,
                         "'" + slots_[at->second].name + "' has no value: call nn::initialise or nn::load first");
      }
      Spec spec = state->value.spec();
      spec.device = current_scope().device;
      value = sluice::detail::array_without_elements(spec, where_);
      if (state->kind == nn::Kind::parameter && !state->frozen) value.with_grad();
    }
    (*noted)[at->second] = true;
    return value;
  }
  const std::string* function = nullptr;
  std::vector<bool>* noted = nullptr;

 private:
  const std::vector<nn::Named>& slots_;
  const std::unordered_map<const nn::State*, std::size_t>& places_;
  const char* who_;
  std::source_location where_;
  std::vector<NDArray> values_;
};

}  // namespace

NetFunctions::NetFunctions(nn::Contents net, nn::Stages functions, const std::vector<Spec>& input, const char* who,
                           std::source_location where)
    : functions_(std::move(functions)), slots_(std::move(net.slots)) {
  const sluice::detail::Called called(who, where);
  if (functions_.size() == 0) throw ArrayError(who, where, "the net's stages() lists no functions");
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].state->layout) {
      throw ArrayError(who, where,
                       "'" + slots_[i].name + "' is on a mesh, " + to_string(slots_[i].state->layout) +
                           ": stages have one device each; nn::to(net, device) brings the net to one");
    }
    places_.emplace(slots_[i].state.get(), i);
    asked_.push_back(slots_[i].state);
  }
  reads_.assign(functions_.size(), std::vector<bool>(slots_.size()));
  const auto run = [&] {
    Noting notes(slots_, places_, who, where);
    const nn::Reads::Scope scope(&notes);
    nn::Arrays x;
    for (Spec spec : input) {
      spec.device = current_scope().device;
      x.push_back(sluice::detail::array_without_elements(spec, where));
    }
    for (std::size_t i = 0; i < functions_.size(); ++i) {
      notes.function = &functions_.name(i);
      notes.noted = &reads_[i];
      x = functions_.call(i, x);
    }
  };
  (void)shapes_of([&] {
    RandomStream stream(0);
    {
      const nn::Training on(stream);
      run();
    }
    const nn::Evaluation off;
    run();
  });
}

std::vector<std::size_t> NetFunctions::reads(int begin, int end) const {
  std::vector<std::size_t> list;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    bool any = false;
    for (int i = begin; i < end; ++i) any = any || reads_[static_cast<std::size_t>(i)][slot];
    if (any) list.push_back(slot);
  }
  return list;
}

std::size_t NetFunctions::place_of(const nn::State& asked) const {
  const auto at = places_.find(&asked);
  return at == places_.end() ? slots_.size() : at->second;
}

NetFunctions NetFunctions::trial() const {
  NetFunctions copy = *this;
  const NoGrad off;
  for (nn::Named& slot : copy.slots_) {
    slot.state = std::make_shared<nn::State>(*slot.state);
    slot.state->optimizer.reset();
    slot.state->holders = 1;
    if (!slot.state->value.defined()) continue;
    slot.state->value = slot.state->copied();
    slot.state->want_gradient();
  }
  return copy;
}

nn::Contents contents_of(const NetFunctions& net, const std::vector<std::size_t>& slots) {
  nn::Contents contents;
  for (const std::size_t slot : slots) contents.slots.push_back(net.slots()[slot]);
  return contents;
}

ReadsOf::ReadsOf(const NetFunctions& net, const std::vector<std::size_t>& slots, const std::vector<NDArray>& values,
                 std::string who)
    : net_(net), slots_(slots), values_(values), who_(std::move(who)), above_(current_scope().layer), scope_(this) {}

const NDArray& ReadsOf::read(const std::shared_ptr<nn::State>& state) {
  const std::size_t place = net_.place_of(*state);
  const auto at = std::ranges::lower_bound(slots_, place);
  if (at != slots_.end() && *at == place) return values_[static_cast<std::size_t>(at - slots_.begin())];
  if (place == net_.slots().size()) {
    throw UsageError(
        "[Pipeline] " + who_ + " reads " + state->text() +
        ", which is no part of the net that the pipeline was made of: a part was replaced afterwards, or is "
        "of another net");
  }
  throw UsageError(
      "[Pipeline] " + who_ + " reads " + state->text() +
      ", which its functions did not read in the dry run when the pipeline was made: which slots they read "
      "may not depend on values or on the call, and the loss may read those of the last stage");
}

}  // namespace sluice::parallel::detail
