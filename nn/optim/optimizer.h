// Optimizer: drives a rule (rules.h) over the parameters of a net.
//
//   nn::Optimizer opt(net, nn::AdamW{.lr = nn::warmup_cosine(1e-3, 50, 600), .weight_decay = 0.1},
//                     {{"*.bias|*norm*", [](nn::AdamW& r) { r.weight_decay = 0; }}});
//   nn::Optimizer opt(net, {{"blocks.*.weight", nn::Muon{}}, {"*", nn::AdamW{}}});
#pragma once

#include <any>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sluice/engine/ticket.h"
#include "sluice/ndarray/attributes.h"
#include "sluice/nn/files/saved_array.h"
#include "sluice/nn/net/net.h"
#include "sluice/nn/optim/update.h"

namespace sluice::nn {

/// A step of a rule as one row of the registry (operators/optimizer_steps.h), for all parameters with the same numbers
/// at once: faster than its composition, with the same results up to rounding. A rule may have
///   std::optional<nn::FusedStep> fused(std::int64_t step) const;
struct FusedStep {
  struct State {
    const char* name;
    bool counter = false;  ///< an i64 scalar, which the row counts; else of the parameter's shape and dtype
  };
  const char* row;
  Attributes attributes;
  std::vector<State> states;
};

/// A rule whose type is forgotten. Copies share nothing.
class AnyRule {
 public:
  AnyRule(const AnyRule& other) : held_(other.held_ ? other.held_->clone() : nullptr) {}
  AnyRule& operator=(const AnyRule& other) {
    if (this != &other) held_ = other.held_ ? other.held_->clone() : nullptr;
    return *this;
  }
  AnyRule(AnyRule&&) noexcept = default;
  AnyRule& operator=(AnyRule&&) noexcept = default;
  template <class Rule>
  requires(std::is_invocable_v<const Rule&, Update&> && !std::same_as<Rule, AnyRule>) AnyRule(Rule rule)  // NOLINT
      : held_(std::make_unique<Of<Rule>>(std::move(rule))) {}
  void operator()(Update& u) const { held_->apply(u); }
  std::optional<FusedStep> fused(std::int64_t step) const { return held_->fused(step); }
  /// Null if it is of another type.
  template <class Rule>
  Rule* as() {
    auto* const of = dynamic_cast<Of<Rule>*>(held_.get());
    return of ? &of->rule : nullptr;
  }

 private:
  struct Held {
    virtual ~Held() = default;
    virtual std::unique_ptr<Held> clone() const = 0;
    virtual void apply(Update& u) const = 0;
    virtual std::optional<FusedStep> fused(std::int64_t step) const = 0;
  };
  template <class Rule>
  struct Of final : Held {
    explicit Of(Rule r) : rule(std::move(r)) {}
    std::unique_ptr<Held> clone() const override { return std::make_unique<Of>(rule); }
    void apply(Update& u) const override { rule(u); }
    std::optional<FusedStep> fused(std::int64_t step) const override {
      if constexpr (requires { rule.fused(step); }) {
        return rule.fused(step);
      } else {
        return std::nullopt;
      }
    }
    Rule rule;
  };
  std::unique_ptr<Held> held_;
};

/// What matches steps by a changed copy of the rule. The first group that matches a parameter counts.
template <class Rule>
struct Group {
  Select where;
  std::function<void(Rule&)> change;
};
/// A rule for what matches. The first that matches a parameter counts.
struct RuleFor {
  Select where;
  AnyRule rule;
};

struct OptimizerOptions {
  bool keep_gradients = false;  ///< step() leaves them, for logs; zero_grad() drops them
  bool fused = true;            ///< false: rules are computed as they are written, by operators
};

namespace detail {
/// A part of a step, such as that of a pipeline's stage.
struct StepPart {
  /// A value that an array outside of the optimiser gets behind the same gate.
  struct Commit {
    NDArray value, target;
  };
  const std::unordered_set<const State*>* parameters = nullptr;   ///< these alone; null: all
  std::vector<const std::unordered_set<const State*>*> except{};  ///< none of these
  std::vector<Commit> commits{};
  /// Calls what it is given: what the part pushes, once before the gate and once behind it. Empty: nothing is around.
  std::function<void(const std::function<void()>&)> around{};
};
}  // namespace detail

/// Steps the parameters of a net that are not frozen and have a gradient. One gate decides for all of them: if an
/// operation that made a gradient or a new value failed, then no parameter and nothing that is kept changes, and each
/// carries the error until recover(). Between the gate and the last write a step takes memory for the new values of
/// what composed rules change.
///
///   try { loss.backward(); opt.step(); loss.item<float>(); } catch (const Error&) { opt.recover(); continue; }
///
/// What is kept between steps follows its parameter to another device. Parameters may be initialised, loaded, moved and
/// frozen after the optimiser was made. Functions push and return; used by one thread at a time.
class Optimizer {
  static constexpr const char* kTheRest = "the rest";

 public:
  /// Throws UsageError for a net without parameters, a group that matches none, and a parameter of another Optimizer.
  template <class Net, class Rule>
  requires(std::is_invocable_v<const Rule&, Update&>)
      Optimizer(const Net& net, Rule rule, const std::vector<Group<std::type_identity_t<Rule>>>& groups = {},
                OptimizerOptions options = {}, std::source_location where = std::source_location::current())
      : Optimizer(contents(net), rules_of(rule, groups), options, where) {}
  /// Throws also for a parameter that no rule is for.
  template <class Net>
  Optimizer(const Net& net, std::vector<RuleFor> rules, OptimizerOptions options = {},
            std::source_location where = std::source_location::current())
      : Optimizer(contents(net), std::move(rules), options, where) {}
  Optimizer(Optimizer&&) noexcept = default;
  Optimizer& operator=(Optimizer&&) noexcept = default;
  ~Optimizer();

  /// Throws UsageError where a parameter belongs to no net any more, because its part was replaced; ArrayError where a
  /// gradient's shape or dtype differs from its parameter's; and what a rule throws. Then nothing was changed.
  void step(std::source_location where = std::source_location::current()) { step({{}}, true, where); }
  /// For pipelines: parts that have no parameter in common, behind one gate. Not `counts`: steps() stays.
  void step(const std::vector<detail::StepPart>& parts, bool counts, std::source_location where);
  void zero_grad();
  /// For use after a failed batch: parameters, what is kept, and the nets' statistics have their last good values
  /// again, and gradients are dropped. What an operation left half written stays poisoned. It waits only behind a step
  /// that kept something for the first time.
  void recover(std::source_location where = std::source_location::current());

  /// Whether the state's parameter is one of those that it steps.
  bool trains(const State& state) const { return state.optimizer.lock() == identity_; }
  /// How often step() was called.
  std::int64_t steps() const { return steps_; }
  /// The rule of group i, in the order of the constructor; without groups' changes, `Optimizer(net, rule, groups)` has
  /// the rule itself behind its groups. Changes hold from the next step on. Throws UsageError for another type or i.
  template <class Rule>
  Rule& rule(std::size_t i = 0) {
    if (Rule* const rule = i < rules_.size() ? rules_[i].rule.template as<Rule>() : nullptr) return *rule;
    refuse_rule(i, typeid(Rule).name());
  }
  /// What is kept for the parameter of this path under this name; an empty handle if nothing is.
  NDArray kept(const std::string& path, const std::string& name) const;

  // For nn::save and nn::load (saved_array.h). Arrays are named "<path>.<name>".
  std::vector<SavedArray> saved_arrays() const;
  std::vector<std::string> load_arrays(const std::vector<SavedArray>& arrays, bool check_only);
  std::map<std::string, std::int64_t> counts() const { return {{"steps", steps_}}; }
  void set_counts(const std::map<std::string, std::int64_t>& counts);

 private:
  struct One {
    Named parameter;
    std::size_t rule;
    Kept kept;
    Ticket made = {};  ///< over, without an error, when all that is kept had its first value
  };
  struct Batch;

  template <class Rule>
  static std::vector<RuleFor> rules_of(const Rule& rule, const std::vector<Group<Rule>>& groups) {
    std::vector<RuleFor> rules;
    for (const Group<Rule>& group : groups) {
      Rule changed = rule;
      group.change(changed);
      rules.push_back({group.where, std::move(changed)});
    }
    rules.push_back({Select([](const Named&) { return true; }), rule});
    rules.back().where.text = kTheRest;
    return rules;
  }
  Optimizer(const Contents& net, std::vector<RuleFor> rules, OptimizerOptions options, std::source_location where);
  static void note_made(One& one, std::source_location where);
  /// What the rule keeps for a parameter, by name.
  std::map<std::string, Spec> kept_by_rule(const One& one) const;
  [[noreturn]] void refuse_rule(std::size_t i, const char* type) const;

  std::vector<RuleFor> rules_;
  std::vector<One> list_;
  std::vector<std::shared_ptr<State>> statistics_;
  OptimizerOptions options_;
  std::int64_t steps_ = 0;
  std::shared_ptr<const int> identity_ = std::make_shared<const int>(0);
};

}  // namespace sluice::nn
