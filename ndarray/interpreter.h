// Interpreters: a program's own code between the calls of operators on arrays and what they do. docs/interpreters.md
// has examples.
//
//   struct Counter final : Interpreter {
//     std::map<std::string, int> calls;
//     void apply(Call& call, Next next) override { ++calls[std::string(call.name())]; next(call); }
//   };
//   const auto counter = std::make_shared<Counter>();
//   const InterpreterScope scope(counter);
//   loss(net(x)).backward();                    // gradients are made of calls too
//
// A call is one row of the registry with its operands and attributes; a function that is composed of rows is several.
// Views are calls of their own kind (view_call.h), which an interpreter may look at. Ops of a program's own (push_op),
// waits and reads on the host (borrow, item, to_vector), detach and raw pushes to an engine are no calls. Several
// scopes on one thread nest: a call goes to the innermost first, and what that passes on, or pushes itself, to those
// outside of it. The outermost passes it on to the tape and the engine. Threads that bodies run on have no
// interpreters, and neither has what a body pushes.
#pragma once

#include <cstdint>
#include <memory>
#include <source_location>
#include <span>
#include <string_view>
#include <vector>

#include "sluice/engine/scope.h"
#include "sluice/ndarray/attributes.h"
#include "sluice/ndarray/call_value.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/ndarray/operand_sets.h"
#include "sluice/ndarray/spec.h"
#include "sluice/ndarray/view_call.h"

namespace sluice {

/// A call of an operator while it is made: checked, with the specs of its results known, and not yet pushed. It is a
/// view of the caller's arguments, valid while Interpreter::apply runs, and used by the calling thread alone.
class Call {
 public:
  const OperatorInfo& row() const { return row_; }
  /// The row's name: "matmul".
  std::string_view name() const { return row_.name; }
  std::span<const NDArray* const> inputs() const { return inputs_; }
  const NDArray& input(int i = 0) const { return *inputs_[static_cast<std::size_t>(i)]; }
  const Attributes& attributes() const { return attributes_; }
  /// The arrays that it writes to, which may be views; empty: it makes new ones.
  std::span<const NDArray> targets() const { return targets_; }
  /// Those targets that it also reads.
  const Updates& updates() const { return updates_; }
  /// Of its results; of targets, those of the targets.
  std::span<const Spec> specs() const { return specs_; }
  /// The line of the program. Errors of what the interpreter calls name it too.
  const std::source_location& where() const { return where_; }
  /// The path of the layer that makes the call (engine/layer.h), or "".
  const char* layer() const;

  /// The call as it is now, as a value that lives longer.
  CallValue value() const;

  /// Exchanges an input, or the attributes, for the Next. Results of the changed call must have the same specs as those
  /// of the caller's: Next throws ArrayError if they have others, and nothing is pushed. set_input throws UsageError
  /// for an input that the call does not have, and ArrayError for an empty handle. Both throw UsageError after Next.
  void set_input(int i, NDArray x);
  void set_attributes(Attributes attributes);

  /// The results, in place of Next's, or an owner's answer. Throws ArrayError where their number or their specs are not
  /// those of specs(), and for a call with targets where they are not the targets themselves, which the interpreter has
  /// then written. Throws UsageError after Next: what was pushed stands.
  void answer(std::vector<NDArray> results);
  /// What Next or answer() gave, the targets where there are some; empty before.
  std::span<const NDArray> results() const { return results_; }

 private:
  friend class Next;
  friend struct Interpretation;
  friend struct Asking;
  Call(const OperatorInfo& row, std::span<const NDArray* const> inputs, const Attributes& attributes,
       std::span<const NDArray> targets, const Updates& updates, std::span<const Spec> specs,
       const std::source_location& where)
      : row_(row),
        inputs_(inputs.begin(), inputs.end()),
        attributes_(attributes),
        targets_(targets),
        updates_(updates),
        specs_(specs),
        where_(where) {}
  void before_next(const char* function) const;

  const OperatorInfo& row_;
  std::vector<const NDArray*> inputs_;
  std::vector<std::unique_ptr<const NDArray>> own_;  ///< those that were exchanged
  Attributes attributes_;
  std::span<const NDArray> targets_;
  Updates updates_;
  std::span<const Spec> specs_;
  std::source_location where_;
  std::vector<NDArray> results_;
  const char* who_ = "an interpreter";  ///< answers, for errors
  bool passed_on_ = false, answered_ = false;
};

/// What stands outside of an interpreter: called once, it makes the call.
class Next {
 public:
  /// Passes the call on, and gives it its results. Throws what the call throws: ArrayError and what Engine::push
  /// throws. Throws UsageError, and pushes nothing, if it was called before, after apply() has returned, on another
  /// thread, for another call, or after Call::answer. What the call throws its caller gets, also if the interpreter
  /// catches it.
  void operator()(Call& call) const;

 private:
  friend struct Interpretation;
  explicit Next(std::shared_ptr<struct Interpretation> now) : now_(std::move(now)) {}
  std::shared_ptr<Interpretation> now_;
};

class Interpreter {
 public:
  virtual ~Interpreter() = default;
  /// Called on the thread that makes the call, with no lock held, before the call has a place in the order. It passes
  /// the call on by next(call), at most once, or answers it, or does both of something else: it may call operators,
  /// wait, and read values. If it does neither, the caller gets an ArrayError. What it throws the caller gets: before
  /// next nothing has changed, after next the operation stands. Default: passes it on.
  ///
  /// An interpreter that lives on several threads is called by all of them at once.
  virtual void apply(Call& call, Next next) { next(call); }
  /// Called on the thread that made the view, with no lock held, after it was made: call.result() is it. An interpreter
  /// can look, and make the same view of another array (call.of(x)); it cannot answer with another array, to which a
  /// write would be no write to the input. A function for views may be several calls: x(1, slice(0, 3)) slices, and
  /// then reshapes. What it throws the caller gets. Default: does nothing.
  virtual void view(const ViewCall& call) { (void)call; }
};

/// While it lives, the thread's calls go to the interpreter, and so do those of a backward pass that the thread makes,
/// and of a checkpoint's second call whose first call it saw. Destroyed on the thread that made it. Throws UsageError
/// for null.
class InterpreterScope {
 public:
  explicit InterpreterScope(std::shared_ptr<Interpreter> interpreter);
  ~InterpreterScope();
  InterpreterScope(const InterpreterScope&) = delete;
  InterpreterScope& operator=(const InterpreterScope&) = delete;

 private:
  std::uint64_t number_, outer_;
};

namespace detail {

/// The thread's interpreters, the outermost first.
std::vector<std::shared_ptr<Interpreter>> interpreters();
/// Exactly these are the thread's, while it lives.
class TheseInterpreters {
 public:
  explicit TheseInterpreters(const std::vector<std::shared_ptr<Interpreter>>& list);
  ~TheseInterpreters();
  TheseInterpreters(const TheseInterpreters&) = delete;
  TheseInterpreters& operator=(const TheseInterpreters&) = delete;

 private:
  std::uint64_t saved_;
  std::vector<std::unique_ptr<InterpreterScope>> scopes_;
};

/// What a row's call does when no interpreter is left: gives the results; targets are not among them.
struct Proceed {
  virtual std::vector<NDArray> operator()(std::span<const NDArray* const> inputs, const Attributes& attributes,
                                          std::span<const Spec> specs) = 0;

 protected:
  ~Proceed() = default;
};
/// Gives the call to the innermost of the calling thread's interpreters, which are some.
std::vector<NDArray> interpret(const OperatorInfo& row, std::span<const NDArray* const> inputs,
                               const Attributes& attributes, std::span<const NDArray> targets, const Updates& updates,
                               std::span<const Spec> specs, const std::source_location& where, Proceed& proceed);
/// Whether the calling thread has interpreters.
bool interpreted() noexcept;

}  // namespace detail
}  // namespace sluice
