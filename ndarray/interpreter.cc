#include "sluice/ndarray/interpreter.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "sluice/engine/errors.h"
#include "sluice/engine/layer.h"

namespace sluice {
namespace {

/// A scope that lives on this thread. ScopeState::interpreter has the number of the innermost, so that a copy of a
/// ScopeState that outlives the scope, or goes to another thread, names nobody.
struct Standing {
  std::uint64_t number, outer;
  std::shared_ptr<Interpreter> interpreter;
};
thread_local std::vector<Standing> standing;
std::atomic<std::uint64_t> last_number{0};

/// The one with the number, or else null.
const Standing* standing_at(std::uint64_t number) {
  if (number == 0) return nullptr;
  const auto at =
      std::find_if(standing.rbegin(), standing.rend(), [&](const Standing& s) { return s.number == number; });
  return at == standing.rend() ? nullptr : &*at;
}

std::string in_words(std::span<const Spec> specs) {
  std::string text;
  for (const Spec& spec : specs) text += (text.empty() ? "" : ", ") + to_string(spec);
  return text.empty() ? "no result" : text;
}

}  // namespace

/// One interpreter's turn at a call.
struct Interpretation {
  Call& call;
  detail::Proceed* proceed;  ///< null once apply() has returned
  std::uint64_t outer;
  std::string place;         ///< "[matmul] main.cc:41", for errors
  std::exception_ptr error;  ///< what Next threw
  const std::thread::id thread = std::this_thread::get_id();

  static std::vector<NDArray> of(const OperatorInfo& row, std::span<const NDArray* const> inputs,
                                 const Attributes& attributes, std::span<const NDArray> targets, const Updates& updates,
                                 std::span<const Spec> specs, const std::source_location& where,
                                 detail::Proceed& proceed) {
    const Standing* const innermost = standing_at(current_scope().interpreter);
    const std::shared_ptr<Interpreter> interpreter = innermost->interpreter;
    Call call(row, inputs, attributes, targets, updates, specs, where);
    const auto now = std::make_shared<Interpretation>(Interpretation{
        call, &proceed, innermost->outer, "[" + std::string(row.name) + "] " + to_string(where), nullptr});
    {
      const ScopeGuard scope;
      current_scope().interpreter = now->outer;
      current_scope().where = where;
      struct Over {
        Interpretation& now;
        ~Over() { now.proceed = nullptr; }
      } const over{*now};
      interpreter->apply(call, Next(now));
    }
    if (now->error) std::rethrow_exception(now->error);
    if (!call.passed_on_ && !call.answered_) {
      throw ArrayError(row.name, where, "an interpreter neither passed the call on nor answered it");
    }
    return std::move(call.results_);
  }
};

const char* Call::layer() const { return detail::path_of(current_scope().layer); }

CallValue Call::value() const {
  const auto operand = [](const NDArray& x) { return CallValue::Operand{x.spec(), x.strides(), x.offset(), false}; };
  CallValue value{&row_, attributes_, {}, {}, {specs_.begin(), specs_.end()}, where_, layer()};
  for (const NDArray* x : inputs_) value.inputs.push_back(operand(*x));
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    value.targets.push_back(operand(targets_[i]));
    value.targets.back().updated = updates_.contains(i);
  }
  return value;
}

void Call::before_next(const char* function) const {
  if (passed_on_) {
    throw UsageError("[" + std::string(row_.name) + "] " + to_string(where_) + ": Call::" + function +
                     " after Next: what was pushed stands");
  }
}

void Call::set_input(int i, NDArray x) {
  before_next("set_input");
  if (i < 0 || static_cast<std::size_t>(i) >= inputs_.size()) {
    throw UsageError("[" + std::string(row_.name) + "] " + to_string(where_) + ": Call::set_input of input " +
                     std::to_string(i) + " of " + std::to_string(inputs_.size()));
  }
  x.checked(row_.name, where_);
  own_.push_back(std::make_unique<const NDArray>(std::move(x)));
  inputs_[static_cast<std::size_t>(i)] = own_.back().get();
}

void Call::set_attributes(Attributes attributes) {
  before_next("set_attributes");
  attributes_ = std::move(attributes);
}

void Call::answer(std::vector<NDArray> results) {
  before_next("answer");
  for (const NDArray& y : results) y.checked(row_.name, where_);
  const auto fits = [](const NDArray& y, const Spec& spec) { return y.spec() == spec; };
  if (!std::equal(results.begin(), results.end(), specs_.begin(), specs_.end(), fits)) {
    std::vector<Spec> given;
    for (const NDArray& y : results) given.push_back(y.spec());
    throw ArrayError(row_.name, where_,
                     std::string(who_) + " answered with " + in_words(given) + "; the call gives " + in_words(specs_));
  }
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const NDArray &y = results[i], &target = targets_[i];
    if (!y.same_array(target) || y.offset() != target.offset() || !(y.strides() == target.strides())) {
      throw ArrayError(row_.name, where_,
                       std::string(who_) + " answered with arrays that are not the targets of the call");
    }
  }
  results_ = std::move(results);
  answered_ = true;
}

void Next::operator()(Call& call) const {
  const auto refuse = [&](const char* why) { throw UsageError(now_->place + ": Next was called " + why); };
  if (now_->thread != std::this_thread::get_id()) refuse("on another thread than apply()");
  if (!now_->proceed) refuse("after apply() had returned");
  if (&call != &now_->call) refuse("for another call");
  if (call.passed_on_) refuse("a second time");
  if (call.answered_) refuse("after Call::answer");
  call.passed_on_ = true;
  const ScopeGuard scope;
  current_scope().interpreter = now_->outer;
  try {
    call.results_ = (*now_->proceed)(call.inputs_, call.attributes_, call.specs_);
  } catch (...) {
    now_->error = std::current_exception();
    throw;
  }
  if (!call.targets_.empty()) call.results_.assign(call.targets_.begin(), call.targets_.end());
}

InterpreterScope::InterpreterScope(std::shared_ptr<Interpreter> interpreter)
    : number_(last_number.fetch_add(1) + 1), outer_(current_scope().interpreter) {
  if (!interpreter) throw UsageError("[InterpreterScope] a null interpreter");
  detail::views_are_told.store(true, std::memory_order_relaxed);
  standing.push_back({number_, outer_, std::move(interpreter)});
  current_scope().interpreter = number_;
}

InterpreterScope::~InterpreterScope() {
  std::erase_if(standing, [&](const Standing& s) { return s.number == number_; });
  if (current_scope().interpreter == number_) current_scope().interpreter = outer_;
}

namespace detail {

std::vector<std::shared_ptr<Interpreter>> interpreters() {
  std::vector<std::shared_ptr<Interpreter>> list;
  for (const Standing* at = standing_at(current_scope().interpreter); at; at = standing_at(at->outer)) {
    list.push_back(at->interpreter);
  }
  std::reverse(list.begin(), list.end());
  return list;
}

TheseInterpreters::TheseInterpreters(const std::vector<std::shared_ptr<Interpreter>>& list)
    : saved_(std::exchange(current_scope().interpreter, 0)) {
  try {
    for (const auto& one : list) scopes_.push_back(std::make_unique<InterpreterScope>(one));
  } catch (...) {
    scopes_.clear();
    current_scope().interpreter = saved_;
    throw;
  }
}

TheseInterpreters::~TheseInterpreters() {
  while (!scopes_.empty()) scopes_.pop_back();
  current_scope().interpreter = saved_;
}

std::vector<NDArray> interpret(const OperatorInfo& row, std::span<const NDArray* const> inputs,
                               const Attributes& attributes, std::span<const NDArray> targets, const Updates& updates,
                               std::span<const Spec> specs, const std::source_location& where, Proceed& proceed) {
  return Interpretation::of(row, inputs, attributes, targets, updates, specs, where, proceed);
}

void tell_view(NDArray& view, const NDArray& of, ViewKind kind, const std::source_location& where, const Dims& axes,
               std::span<const Cut> cuts) {
  const bool owned = of.array()->kind() == Array::Kind::owned;
  const std::uint64_t inner = current_scope().interpreter;
  const Standing* at = standing_at(inner);
  if (!owned && !at) return;
  // The same elements in the same places: the same array.
  if (owned && view.shape() == of.shape() && view.strides() == of.strides() && view.offset() == of.offset()) return;
  const std::source_location& program = current_scope().where;
  Dims positive;
  for (const std::int64_t axis : axes) positive.push_back(axis < 0 ? axis + of.rank() : axis);
  ViewCall call(kind, of, view.shape(), positive, {cuts.begin(), cuts.end()}, program.line() != 0 ? program : where);
  const ScopeGuard scope;
  current_scope().where = call.where();
  if (owned) {
    current_scope().interpreter = 0;
    make_owned_view(call);
    at = standing_at(inner);  // the owner may have made scopes of its own meanwhile
  } else {
    call.result_ = view;
  }
  view = call.result_;
  while (at) {
    const std::shared_ptr<Interpreter> interpreter = at->interpreter;
    const std::uint64_t outer = at->outer;
    current_scope().interpreter = outer;
    interpreter->view(call);
    at = standing_at(outer);
  }
}

bool interpreted() noexcept { return standing_at(current_scope().interpreter) != nullptr; }

}  // namespace detail
}  // namespace sluice
