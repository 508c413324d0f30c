#include "sluice/parallel/tied_weights.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "sluice/autograd/autograd.h"
#include "sluice/autograd/uses.h"
#include "sluice/engine/layer.h"
#include "sluice/operators/operators.h"

namespace sluice::parallel::detail {
namespace {

std::vector<NamedParameter> all_parameters(const Stage& stage) {
  std::vector<NamedParameter> list;
  stage.module->collect("", list);
  std::erase_if(list, [](const NamedParameter& p) { return !p.value->defined(); });
  return list;
}

std::string in_words(const std::vector<int>& stages) {
  std::string text = stages.size() == 1 ? "stage " : "the stages ";
  for (std::size_t i = 0; i < stages.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == stages.size() ? " and " : ", ") + std::to_string(stages[i]);
  }
  return text;
}

/// A part of an array, or another shape of it.
bool is_view(const NDArray& x) {
  const Array& array = *x.array();
  return x.offset() != array.base_offset() || x.shape() != array.shape() || !x.is_contiguous();
}

void check_views(const SharedWeight& weight, const std::vector<NamedParameter>& parameters, int stage) {
  for (const NamedParameter& p : parameters) {
    if (!p.value->same_array(weight.value()) || sluice::detail::same_view(*p.value, weight.value())) continue;
    throw UsageError("[Pipeline] the parameter '" + p.name + "' of stage " + std::to_string(stage) +
                     " is another view of '" + weight.tied.name + "' of stage " +
                     std::to_string(weight.tied.stages.front()) +
                     ": what stages share is one array with one shape; transpose it in forward()");
  }
  if (!is_view(weight.value())) return;
  throw UsageError("[Pipeline] the parameter" + weight.in_words() + " is a view: what stages share is a whole array");
}

NDArray added(const SharedWeight& weight, const std::vector<NDArray>& terms) {
  const SumTree& tree = weight.tied.uses;
  if (tree.empty()) return terms.empty() ? NDArray() : sum_of_uses(terms);
  try {
    check(tree, static_cast<int>(terms.size()), "use");
  } catch (const std::invalid_argument& e) {
    throw std::invalid_argument("the tied weight" + weight.in_words() + " has " + std::to_string(terms.size()) +
                                " uses: " + e.what());
  }
  std::vector<NDArray> stack;
  for (const int item : tree.postfix) {
    if (item != SumTree::kAdd) {
      stack.push_back(terms[static_cast<std::size_t>(item)]);
      continue;
    }
    const NDArray right = std::move(stack.back());
    stack.pop_back();
    stack.back() = stack.back() + right;
  }
  return stack.back();
}

}  // namespace

std::string layer_of(int stage, int microbatch) {
  return "stage " + std::to_string(stage) + ".microbatch " + std::to_string(microbatch);
}

bool SharedWeight::is_in(int stage) const { return std::ranges::find(tied.stages, stage) != tied.stages.end(); }

std::string SharedWeight::in_words() const { return " '" + tied.name + "' of " + detail::in_words(tied.stages); }

SharedWeights move_stages(const std::vector<Stage>& stages) {
  std::vector<SharedWeight> all;
  std::unordered_map<const Array*, std::size_t> place;
  for (int s = 0; s < static_cast<int>(stages.size()); ++s) {
    for (const NamedParameter& p : all_parameters(stages[static_cast<std::size_t>(s)])) {
      const auto [at, is_first] = place.try_emplace(p.value->array().get(), all.size());
      if (is_first) all.push_back({{p.name, {}}});
      SharedWeight& weight = all[at->second];
      weight.holders.push_back({s, p.value});
      if (!weight.is_in(s)) weight.tied.stages.push_back(s);
    }
  }
  std::erase_if(all, [](const SharedWeight& w) { return w.tied.stages.size() == 1; });
  for (const SharedWeight& weight : all) {
    for (const int s : weight.tied.stages) check_views(weight, all_parameters(stages[static_cast<std::size_t>(s)]), s);
  }
  // A module moves what it holds. What is shared stays with the first stage.
  std::vector<NDArray> values(all.size());
  for (int s = 0; s < static_cast<int>(stages.size()); ++s) {
    stages[static_cast<std::size_t>(s)].module->to(stages[static_cast<std::size_t>(s)].device);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].tied.stages.front() == s) values[i] = all[i].value();
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const SharedWeight::Holder& holder : all[i].holders) *holder.handle = values[i];
  }
  return {std::move(all)};
}

SharedWeights weights_of(Schedule& schedule, const SharedWeights& shared, const std::vector<Stage>& stages) {
  SharedWeights found;
  const auto refuse = [&](const TiedWeight& tied, const std::string& why) {
    throw std::invalid_argument("schedule '" + schedule.name + "' has the tied weight '" + tied.name + "' in " +
                                in_words(tied.stages) + ", and the pipeline " + why);
  };
  for (const TiedWeight& tied : schedule.tied) {
    if (tied.stages.empty() || tied.stages.front() < 0 || tied.stages.front() >= static_cast<int>(stages.size())) {
      refuse(tied, "has " + std::to_string(stages.size()) + " stages");
    }
    const auto same = std::ranges::find_if(shared.list, [&](const SharedWeight& w) {
      return w.tied.name == tied.name && w.tied.stages.front() == tied.stages.front();
    });
    if (same != shared.list.end()) {
      if (same->tied.stages != tied.stages) refuse(tied, "has it in " + in_words(same->tied.stages));
      found.list.push_back({tied, same->holders});
      continue;
    }
    // A weight of one stage, which has a tree for its uses.
    const int owner = tied.stages.front();
    const std::vector<NamedParameter> parameters = all_parameters(stages[static_cast<std::size_t>(owner)]);
    const auto named = std::ranges::find(parameters, tied.name, &NamedParameter::name);
    if (named == parameters.end()) refuse(tied, "has no parameter of that name in stage " + std::to_string(owner));
    if (tied.stages.size() > 1) refuse(tied, "has it in stage " + std::to_string(owner) + " alone");
    SharedWeight one{tied};
    for (const NamedParameter& p : parameters) {
      if (p.value->same_array(*named->value)) one.holders.push_back({owner, p.value});
    }
    found.list.push_back(std::move(one));
  }
  for (const SharedWeight& weight : shared.list) {
    const bool listed = std::ranges::any_of(found.list, [&](const SharedWeight& w) {
      return w.tied.name == weight.tied.name && w.tied.stages == weight.tied.stages;
    });
    if (!listed) found.list.push_back(weight);
  }
  schedule.tied.clear();
  for (const SharedWeight& weight : found.list) schedule.tied.push_back(weight.tied);
  return found;
}

std::vector<NamedParameter> owned_parameters(const std::vector<Stage>& stages, int stage) {
  std::unordered_set<const Array*> seen;
  std::vector<NamedParameter> owned;
  for (int s = 0; s <= stage; ++s) {
    for (const NamedParameter& p : all_parameters(stages[static_cast<std::size_t>(s)])) {
      if (seen.insert(p.value->array().get()).second && s == stage) owned.push_back(p);
    }
  }
  return owned;
}

std::vector<NDArray> untied_leaves(const SharedWeights& weights, const Stage& stage, int number) {
  std::vector<NDArray> leaves;
  for (const NamedParameter& p : stage.module->parameters()) {
    const auto is_it = [&](const SharedWeight& w) { return w.is_in(number) && w.value().same_array(*p.value); };
    if (p.value->requires_grad() && std::ranges::none_of(weights.list, is_it)) leaves.push_back(*p.value);
  }
  return leaves;
}

Copies::Copies(const SharedWeights& weights, const std::vector<Stage>& stages) : weights_(weights), stages_(stages) {
  for (std::size_t i = 0; i < weights.list.size(); ++i) {
    const SharedWeight& weight = weights.list[i];
    const Device owner = stages[static_cast<std::size_t>(weight.tied.stages.front())].device;
    for (const SharedWeight::Holder& holder : weight.holders) {
      if (sluice::detail::same_view(*holder.handle, weight.value()) && weight.value().device() == owner) continue;
      throw UsageError("[Pipeline] the weight" + weight.in_words() + " was one array on " + to_string(owner) +
                       " when the pipeline was made, and is not now");
    }
    const bool is_leaf = weight.value().requires_grad();
    for (const int s : weight.tied.stages) {
      const Device device = stages[static_cast<std::size_t>(s)].device;
      const auto is_it = [&](const Copy& c) { return c.weight == i && c.device == device; };
      if (device == owner || std::ranges::any_of(copies_, is_it)) continue;
      const LayerScope layer("stage " + std::to_string(s));
      NDArray copy;
      {
        const NoGrad no_grad;
        copy = weight.value().detach().to(device);
      }
      copies_.push_back({i, device, is_leaf ? copy.with_grad() : copy});
    }
  }
}

const NDArray& Copies::of(std::size_t weight, int stage) const {
  const Device device = stages_[static_cast<std::size_t>(stage)].device;
  for (const Copy& copy : copies_) {
    if (copy.weight == weight && copy.device == device) return copy.value;
  }
  return weights_.list[weight].value();
}

Copies::InStage::InStage(const Copies& copies, int stage) {
  for (std::size_t i = 0; i < copies.weights_.list.size(); ++i) {
    for (const SharedWeight::Holder& holder : copies.weights_.list[i].holders) {
      if (holder.stage != stage) continue;
      const NDArray& here = copies.of(i, stage);
      if (here.same_array(*holder.handle)) continue;
      before_.emplace_back(holder.handle, *holder.handle);
      *holder.handle = here;
    }
  }
}

Copies::InStage::~InStage() {
  for (const auto& [handle, value] : before_) *handle = value;
}

TiedSums::TiedSums(const SharedWeights& weights, const Copies& copies, const Schedule& schedule)
    : weights_(weights), copies_(copies), sums_(weights.list.size()), came_(weights.list.size()) {
  const std::vector<bool> apart = stages_with_sums(schedule);
  const auto m = static_cast<std::size_t>(schedule.microbatches);
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const SharedWeight& weight = weights.list[i];
    const std::vector<int>& stages = weight.tied.stages;
    sums_[i].terms.assign(m, std::vector<Terms>(stages.size()));
    sums_[i].left.assign(m, stages.size());
    // Where every stage has its microbatches in order, the last stage's to come are in order too.
    const bool any = std::ranges::any_of(stages, [&](int s) { return apart[static_cast<std::size_t>(s)]; });
    if (any && weight.value().requires_grad())
      sums_[i].apart.emplace(schedule.sum, schedule.microbatches, std::vector<NDArray>{weight.value()});
  }
}

TiedSums::Listen::Listen(TiedSums& sums, int stage) : Listen() {  // so that it is destroyed if the rest throws
  for (std::size_t i = 0; i < sums.sums_.size(); ++i) {
    const NDArray& leaf = sums.copies_.of(i, stage);
    if (!sums.weights_.list[i].is_in(stage) || !leaf.requires_grad()) continue;
    Terms& came = sums.came_[i];
    leaves_.push_back(leaf);
    on_uses(leaf, [&came](const Terms& terms) { came.insert(came.end(), terms.begin(), terms.end()); });
  }
}

TiedSums::Listen::~Listen() {
  for (const NDArray& leaf : leaves_) {
    if (!is_view(leaf)) on_uses(leaf, {});
  }
}

void TiedSums::arrive(int stage, int microbatch) {
  const NoGrad no_grad;
  const auto k = static_cast<std::size_t>(microbatch);
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const SharedWeight& weight = weights_.list[i];
    if (!weight.is_in(stage) || !weight.value().requires_grad()) continue;
    const auto at = std::ranges::find(weight.tied.stages, stage) - weight.tied.stages.begin();
    Terms& terms = sums_[i].terms[k][static_cast<std::size_t>(at)];
    {
      const LayerScope layer(layer_of(stage, microbatch));
      for (NDArray& term : came_[i]) terms.push_back(term.to(weight.value().device()));
    }
    came_[i].clear();
    if (--sums_[i].left[k] == 0) add(i, microbatch);
  }
}

void TiedSums::add(std::size_t weight, int microbatch) {
  const SharedWeight& of = weights_.list[weight];
  Sum& sum = sums_[weight];
  const LayerScope layer(layer_of(of.tied.stages.front(), microbatch));
  Terms all;
  for (Terms& terms : sum.terms[static_cast<std::size_t>(microbatch)]) {
    std::ranges::move(terms, std::back_inserter(all));
    terms.clear();
  }
  const NDArray total = added(of, all);
  if (sum.apart) {
    sum.apart->take(microbatch, {total});
  } else if (total.defined()) {
    add_gradient(of.value(), total);
  }
}

OthersHidden::OthersHidden(const SharedWeights& weights, int stage) {
  for (const SharedWeight& weight : weights.list) {
    if (!weight.is_in(stage) || weight.tied.stages.front() == stage || !weight.value().requires_grad()) continue;
    hidden_.emplace_back(weight.value(), weight.value().grad());
    weight.value().zero_grad();
  }
}

OthersHidden::~OthersHidden() {
  for (const auto& [weight, gradient] : hidden_) weight.set_grad(gradient);
}

}  // namespace sluice::parallel::detail
