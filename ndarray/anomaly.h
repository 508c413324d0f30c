// Anomalies: the first NaN or infinity of a program, with the operation that made it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

#include "sluice/engine/device.h"
#include "sluice/engine/scope.h"
#include "sluice/ndarray/dims.h"
#include "sluice/ndarray/dtype.h"
#include "sluice/ndarray/scope_flags.h"

namespace sluice {

/// What an AnomalyScope looks for.
struct AnomalyOptions {
  bool nan = true;
  bool inf = true;  ///< off for programs that mean their infinities, such as masks of -inf
};

/// An operation that has made a NaN or an infinity.
struct Anomaly {
  enum class Pass : std::uint8_t {
    forward,
    backward,        ///< pushed by backward() or grad()
    computed_again,  ///< pushed by a checkpoint's function, for backward
  };
  std::uint64_t push = 0;      ///< its number among the pushes of the scope, from 0
  std::string operation;       ///< its name, as errors have it
  std::source_location where;  ///< its push; for a gradient, the line of the operator that it is the gradient of
  const char* layer = "";      ///< that it was pushed in (engine/layer.h), which lives as long as the program
  Device device;
  Pass pass = Pass::forward;
  std::string gradient_of;  ///< of a gradient: the operator's name; empty for sums of gradients

  int result = 0;   ///< which of its results, from 0
  int results = 1;  ///< how many it has
  DType dtype = DType::f32;
  Dims shape;        ///< of the result
  Dims index;        ///< of the first such element, in row-major order
  double value = 0;  ///< the element: NaN, infinity or -infinity

  /// The first input that had a NaN or an infinity before; kNone: no input had one, so that the numbers began here.
  /// kOldValue: the operation updates its result in place, whose old value had one.
  static constexpr int kNone = -1, kOldValue = -2;
  int input = kNone;
  double input_value = 0;  ///< its first such element

  /// True where all that the operation read was finite.
  bool is_origin() const { return input == kNone; }
  /// One line: "[log] net.cc:41 in encoder.2: -inf at (3, 1) of the result (8, 4) f32; all that it read was finite", or
  /// "[div] net.cc:41, for the gradient of [log]: nan at (0,) of the result (7,) f32; input 1 had inf already".
  std::string to_string() const;
};

/// Thrown by AnomalyScope::check. what() is the anomaly's line.
class AnomalyError : public std::runtime_error {
 public:
  explicit AnomalyError(Anomaly found) : std::runtime_error(found.to_string()), found_(std::move(found)) {}
  const Anomaly& anomaly() const { return found_; }

 private:
  Anomaly found_;
};

/// While it lives, the results of the calling thread's pushes on arrays are looked at: operators, their gradients,
/// steps of optimisers, what checkpoints compute again, and ops of the program's own (push_op). Of the results with a
/// NaN or an infinity, the one that was pushed first is told, whatever ran first.
///
///     AnomalyScope anomaly;
///     NDArray loss = model(x);  loss.backward();  sgd.step();
///     anomaly.check();   // throws AnomalyError: [log] net.cc:41 in encoder.2: -inf at (3, 1) of the result ...
///
/// The program runs as without: nothing is poisoned, and values have the same bits. Arrays of integers and bools, and
/// values that the host brings (`from`, borrows), are not looked at; where such values are not finite, the first
/// operation that reads them is told (that may be the copy to their device), and which input it was. The results of
/// failed ops have no values, and are left to waits, which throw their errors; but a device that reports errors late
/// computes on meanwhile, and what it makes of such a result may be told. A write by another thread between a push and
/// the look at its result may be told as that push's.
///
/// Infinities that a program means: `AnomalyScope anomaly({.inf = false})` tells NaNs alone. A scope inside of another
/// takes its place while it lives, so `AnomalyScope quiet({.nan = false, .inf = false})` leaves a stretch out.
///
/// Without a change of the program: SLUICE_ANOMALY=1 in its environment looks at the pushes of all threads outside of
/// scopes, on any engine, and SLUICE_ANOMALY=nan at NaNs alone. The first anomaly is written to stderr as soon as its
/// look has run ("sluice: anomaly: [log] net.cc:41 ..."), and then the looks end; the program goes on. Among pushes of
/// several threads the first is that whose look was pushed first.
///
/// Costs: each push is followed by an op that reads its results, one after another, and a write in place preceded by
/// one that reads the old values. Results of GPUs are copied to the host for it. Outside of a scope it costs nothing:
/// the path of a push has no test, lock or allocation more. A scope is used by the thread that made it, and destroyed
/// there before the engine; what bodies push, and other threads, is not looked at.
class AnomalyScope : ScopeGuard {
 public:
  explicit AnomalyScope(const AnomalyOptions& options = {});
  /// If nobody has asked since the last push, waits as first() does, and writes the line to stderr.
  ~AnomalyScope();

  /// Waits until all pushes so far have been looked at, and returns the first finding; empty if there is none. Later
  /// calls tell the same one until clear().
  std::optional<Anomaly> first(std::source_location where = std::source_location::current());
  /// The same, and throws AnomalyError where there is a finding.
  void check(std::source_location where = std::source_location::current());
  /// Waits as first() does, and forgets what was found: for the next step of a training loop.
  void clear(std::source_location where = std::source_location::current());

  struct State;

 private:
  std::shared_ptr<State> state_;
  State* outer_;
};

// ---- For the library.

struct ArrayPush;
class Ticket;

namespace detail {

/// A push under kAnomalyFlag: `push` is called with what was given, and the results are looked at.
Ticket push_looked_at(const ArrayPush& given, Ticket (*push)(const ArrayPush& given));
/// Names the operator whose gradients the thread pushes next; null: none. For backward(), under kAnomalyFlag.
void set_gradient_of(const char* name);

}  // namespace detail
}  // namespace sluice
