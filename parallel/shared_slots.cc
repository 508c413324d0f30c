#include "sluice/parallel/shared_slots.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "sluice/autograd/autograd.h"
#include "sluice/autograd/uses.h"
#include "sluice/engine/layer.h"
#include "sluice/operators/operators.h"
#include "sluice/parallel/action_names.h"

namespace sluice::parallel::detail {
namespace {

std::string in_words(const std::vector<int>& stages) {
  std::string text = stages.size() == 1 ? "stage " : "the stages ";
  for (std::size_t i = 0; i < stages.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == stages.size() ? " and " : ", ") + std::to_string(stages[i]);
  }
  return text;
}

NDArray added(const SharedSlot& weight, const std::vector<NDArray>& terms) {
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

bool SharedSlot::is_in(int stage) const { return std::ranges::find(tied.stages, stage) != tied.stages.end(); }

std::string SharedSlot::in_words() const { return " '" + tied.name + "' of " + detail::in_words(tied.stages); }

SharedSlots slots_of_stages(const NetFunctions& net, const std::vector<int>& first, std::source_location where) {
  SharedSlots made;
  std::vector<std::vector<int>> readers(net.slots().size());
  for (std::size_t s = 0; s + 1 < first.size(); ++s) {
    StageSlots& stage = made.stages.emplace_back();
    stage.reads = net.reads(first[s], first[s + 1]);
    for (const std::size_t slot : stage.reads) {
      if (readers[slot].empty()) {
        stage.owns.push_back(slot);
        if (net.state(slot).kind == nn::Kind::parameter) stage.states.insert(&net.state(slot));
      }
      readers[slot].push_back(static_cast<int>(s));
    }
  }
  for (std::size_t slot = 0; slot < readers.size(); ++slot) {
    const nn::Named& named = net.slots()[slot];
    const std::vector<int>& stages = readers[slot];
    if (named.state->kind == nn::Kind::parameter) {
      if (stages.size() > 1) {
        std::string name = named.name;
        std::ranges::replace(name, ' ', '_');  // a schedule's text has one word
        made.list.push_back({{name, stages}, slot, named.state});
      }
      if (!stages.empty() || named.state->frozen) continue;
      throw ArrayError("Pipeline", where,
                       "no function of the net's stages() reads the parameter '" + named.name +
                           "', so it would have no gradient: add the function that does, or nn::freeze it");
    }
    if (named.state->kind == nn::Kind::statistic && stages.size() > 1) {
      throw ArrayError("Pipeline", where,
                       "the statistic '" + named.name + "' is read by " + in_words(stages) +
                           ": in which order they write it would depend on the schedule; cut the net elsewhere");
    }
  }
  return made;
}

SharedSlots shared_in(Schedule& schedule, const SharedSlots& shared, const NetFunctions& net) {
  SharedSlots found{shared.stages, {}};
  const int stages = static_cast<int>(shared.stages.size());
  const auto refuse = [&](const TiedWeight& tied, const std::string& why) {
    throw std::invalid_argument("schedule '" + schedule.name + "' has the tied weight '" + tied.name + "' in " +
                                in_words(tied.stages) + ", and the pipeline " + why);
  };
  for (const TiedWeight& tied : schedule.tied) {
    if (tied.stages.empty() || tied.stages.front() < 0 || tied.stages.front() >= stages) {
      refuse(tied, "has " + std::to_string(stages) + " stages");
    }
    const auto same = std::ranges::find_if(shared.list, [&](const SharedSlot& w) {
      return w.tied.name == tied.name && w.tied.stages.front() == tied.stages.front();
    });
    if (same != shared.list.end()) {
      if (same->tied.stages != tied.stages) refuse(tied, "has it in " + in_words(same->tied.stages));
      found.list.push_back({tied, same->slot, same->state});
      continue;
    }
    // A parameter of one stage, which has a tree for its uses.
    const int owner = tied.stages.front();
    const std::vector<std::size_t>& owned = shared.stages[static_cast<std::size_t>(owner)].owns;
    const auto named =
        std::ranges::find_if(owned, [&](std::size_t slot) { return net.slots()[slot].name == tied.name; });
    if (named == owned.end()) refuse(tied, "has no parameter of that name in stage " + std::to_string(owner));
    if (tied.stages.size() > 1) refuse(tied, "has it in stage " + std::to_string(owner) + " alone");
    found.list.push_back({tied, *named, net.slots()[*named].state});
  }
  for (const SharedSlot& weight : shared.list) {
    const bool listed = std::ranges::any_of(found.list, [&](const SharedSlot& w) { return w.slot == weight.slot; });
    if (!listed) found.list.push_back(weight);
  }
  schedule.tied.clear();
  for (const SharedSlot& weight : found.list) schedule.tied.push_back(weight.tied);
  return found;
}

std::vector<NDArray> untied_leaves(const SharedSlots& shared, const NetFunctions& net, int stage) {
  std::vector<NDArray> leaves;
  for (const std::size_t slot : shared.stages[static_cast<std::size_t>(stage)].owns) {
    const NDArray& value = net.state(slot).value;
    const bool tied = std::ranges::any_of(shared.list, [&](const SharedSlot& w) { return w.slot == slot; });
    if (value.requires_grad() && !tied) leaves.push_back(value);
  }
  return leaves;
}

/// Two parameters with one array would be added up as one where they meet in a stage, and as two elsewhere.
static void check_apart(const NetFunctions& net, std::source_location where) {
  std::unordered_map<const Array*, std::size_t> seen;
  for (std::size_t slot = 0; slot < net.slots().size(); ++slot) {
    const NDArray& value = net.state(slot).value;
    if (!value.defined() || !value.requires_grad()) continue;
    const auto [other, is_new] = seen.emplace(value.array().get(), slot);
    if (is_new) continue;
    throw ArrayError("Pipeline", where,
                     "'" + net.slots()[other->second].name + "' and '" + net.slots()[slot].name +
                         "' are one array: tie them by nn::Parameter::tied() before the pipeline is made");
  }
}

StepArrays::StepArrays(std::shared_ptr<const SharedSlots> shared_slots, std::shared_ptr<const NetFunctions> functions,
                       const std::vector<Device>& devices, bool writes, std::source_location where)
    : shared_(std::move(shared_slots)), net_(std::move(functions)), values_(shared_->stages.size()) {
  const SharedSlots& shared = *shared_;
  const NetFunctions& net = *net_;
  if (writes) check_apart(net, where);
  for (std::size_t s = 0; s < values_.size(); ++s) {
    nn::detail::move(contents_of(net, shared.stages[s].owns), devices[s], where);
  }
  std::map<std::pair<std::size_t, std::pair<DeviceKind, int>>, NDArray> copies;
  const NoGrad no_grad;
  for (std::size_t s = 0; s < values_.size(); ++s) {
    const LayerScope layer("stage " + std::to_string(s));
    for (const std::size_t slot : shared.stages[s].reads) {
      const nn::State& state = net.state(slot);
      NDArray value = state.value;
      if (state.kind == nn::Kind::statistic && writes && !state.frozen) {
        const DeviceScope scope(devices[s]);
        value = value.copy();
        statistics_.push_back({static_cast<int>(s), {value, state.value}});
      } else if (!(value.device() == devices[s])) {
        NDArray& copy = copies[{slot, {devices[s].kind, devices[s].index}}];
        if (!copy.defined()) {
          copy = value.detach().to(devices[s]);
          if (value.requires_grad()) copy.with_grad();
        }
        value = copy;
      }
      values_[s].push_back(std::move(value));
    }
  }
}

const NDArray& StepArrays::of(std::size_t slot, int stage) const {
  const std::vector<std::size_t>& reads = shared_->stages[static_cast<std::size_t>(stage)].reads;
  const auto at = std::ranges::lower_bound(reads, slot) - reads.begin();
  return values_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(at)];
}

ReadsOf StepArrays::in_stage(int stage) const {
  const auto s = static_cast<std::size_t>(stage);
  return ReadsOf(*net_, shared_->stages[s].reads, values_[s], "stage " + std::to_string(stage));
}

std::vector<nn::detail::StepPart::Commit> StepArrays::written(std::optional<int> stage) const {
  std::vector<nn::detail::StepPart::Commit> list;
  for (const Written& one : statistics_) {
    if (!stage || one.stage == *stage) list.push_back(one.commit);
  }
  return list;
}

TiedSums::TiedSums(const SharedSlots& shared, const StepArrays& arrays, const Schedule& schedule)
    : shared_(shared), arrays_(arrays), sums_(shared.list.size()), came_(shared.list.size()) {
  const std::vector<bool> apart = stages_with_sums(schedule);
  const auto m = static_cast<std::size_t>(schedule.microbatches);
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const SharedSlot& weight = shared.list[i];
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
    const SharedSlot& weight = sums.shared_.list[i];
    if (!weight.is_in(stage)) continue;
    const NDArray& leaf = sums.arrays_.of(weight.slot, stage);
    if (!leaf.requires_grad()) continue;
    Terms& came = sums.came_[i];
    leaves_.push_back(leaf);
    on_uses(leaf, [&came](const Terms& terms) { came.insert(came.end(), terms.begin(), terms.end()); });
  }
}

TiedSums::Listen::~Listen() {
  for (const NDArray& leaf : leaves_) on_uses(leaf, {});
}

void TiedSums::arrive(int stage, int microbatch) {
  const NoGrad no_grad;
  const auto k = static_cast<std::size_t>(microbatch);
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const SharedSlot& weight = shared_.list[i];
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
  const SharedSlot& of = shared_.list[weight];
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

}  // namespace sluice::parallel::detail
