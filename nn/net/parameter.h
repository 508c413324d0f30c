// Parameters, statistics and constants of nets. Each is a handle on a State, which is its identity: what optimisers,
// files and ties refer to.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>

#include "sluice/engine/scope.h"
#include "sluice/ndarray/layout.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/resources/random.h"

namespace sluice::nn {

/// A size that must be given: it has no default, so that a layer without its sizes does not compile.
class Size {
 public:
  template <std::integral I>
  constexpr Size(I n) : n_(static_cast<std::int64_t>(n)) {}  // NOLINT: Linear{784, 512}
  constexpr operator std::int64_t() const { return n_; }     // NOLINT

 private:
  std::int64_t n_;
};

/// Gives the first value of an array of this shape and dtype (initialisers.h has the usual ones). It must draw from
/// this stream alone, which belongs to (seed, path): so a value depends neither on the order of the parts, nor on the
/// device.
using Init = std::function<NDArray(const Dims& shape, DType dtype, RandomStream& stream)>;

enum class Kind : std::uint8_t {
  parameter,  ///< trained, saved, moved
  statistic,  ///< saved and moved; a layer writes it in training
  constant,   ///< moved, neither trained nor saved
};

/// What passes into and out of a layer whose net is on a mesh (placing.h): it is resharded there.
struct Boundary {
  Placements in, out;
};

/// What a Parameter, Statistic or Constant is. Shared by all its places. Programs use the functions of net.h.
struct State {
  Kind kind;
  Dims shape;
  Init init;
  std::source_location where;  ///< where the net's author made it
  std::string path = {};       ///< in the net whose initialise, complete or load reached it: "blocks.0.up.weight"
  NDArray value = {};          ///< empty before that
  NDArray stand_in = {};       ///< in a dry run, for a value that is not there
  bool frozen = false;         ///< neither gradients nor steps; a frozen statistic is not written
  int holders = 0;             ///< places that refer to it
  std::weak_ptr<const int> optimizer = {};        ///< the one that trains it
  const sluice::detail::Layer* layer = nullptr;   ///< "blocks.0.up", for errors and traces
  Layout layout = {};                             ///< how its values lie, once nn::place said so; none: on no mesh
  Layout in_calls = {};                           ///< how calls see them, beside `layout`
  Layout kept = {};                               ///< how what an optimiser keeps of it lies, beside `layout`
  Layout gradient = {};                           ///< how its gradient lies, beside `layout`
  std::shared_ptr<const Boundary> boundary = {};  ///< of the layer; null: nothing is resharded there
  /// A plain array of its shape, laid out; or one on the mesh that lies so.
  NDArray laid_out(const NDArray& x) const;
  /// Its value, which is there, as it lies, for calls that see no more of it; and a copy, laid out as the value is.
  NDArray at_rest() const;
  NDArray copied() const;
  /// A parameter, not frozen.
  bool is_trained() const { return kind == Kind::parameter && !frozen; }
  /// Its value, which is a new one, wants a gradient if it is trained.
  void want_gradient(std::source_location from = std::source_location::current());
  void set_path(std::string new_path);
  /// "'blocks.0.up.weight' (512, 784)", or the shape and the line where it was made.
  std::string text() const;
};

/// What the slots that a thread uses stand for, while a Scope lives: a pipeline's stage reads copies on its own device,
/// and a measurement reads arrays of its own. Without one each stands for its own value. For implementers.
class Reads {
 public:
  /// What the slot of this state stands for; it must stay there until the scope ends. Throws UsageError.
  virtual const NDArray& read(const std::shared_ptr<State>& state) = 0;
  /// The layer above those of the net's parts; null: none.
  virtual const sluice::detail::Layer* above() const { return nullptr; }

  /// The calling thread's innermost; null: slots stand for their own values.
  static Reads* current() noexcept { return current_; }
  class Scope {
   public:
    explicit Scope(Reads* reads) : outer_(std::exchange(current_, reads)) {}
    ~Scope() { current_ = outer_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Reads* outer_;
  };

 protected:
  ~Reads() = default;

 private:
  static constinit thread_local Reads* current_;
};

namespace detail {
/// reshard(x, to), with the line where a layer was made.
NDArray passing(const NDArray& x, const Placements& to, const std::source_location& where);
}  // namespace detail

/// The handle. It can be moved and not copied, so that no net is copied by accident. Made by structs of nets as
/// fields; has a value once nn::initialise, nn::complete, nn::load or nn::clone reached it.
///
/// Reading may be done by several threads at once, but not beside a function of net.h that changes the net.
class Slot {
 public:
  Slot(Kind kind, Dims shape, Init init, std::source_location where);
  /// A further place of `state`.
  explicit Slot(std::shared_ptr<State> state) : state_(std::move(state)) { ++state_->holders; }
  Slot(Slot&& other) noexcept : state_(std::move(other.state_)) {}
  Slot& operator=(Slot&& other) noexcept;
  ~Slot() { leave(); }
  Slot(const Slot&) = delete;  // nets are not copied by accident: say nn::clone(net), or pass net by reference
  Slot& operator=(const Slot&) =
      delete;  // nets are not copied by accident: say nn::clone(net), or nn::blend(to, from, 1)

  /// The array. Throws UsageError before it has a value, with the line where the slot was made. In a dry run
  /// (shapes_of) an array without elements stands for a value that is not there yet.
  const NDArray& value() const {
    if (state_ && state_->value.defined() && !Reads::current()) [[likely]]
      return state_->value;
    return other_value();
  }
  operator const NDArray&() const { return value(); }  // NOLINT: net.up.weight is used as an array
  /// Errors that have no other line name the one where the slot was made.
  operator Operand() const { return {value(), checked_state().where}; }  // NOLINT
  /// Writes x's elements into the array; x must have its shape. The identity stays. Throws as value(), ArrayError.
  void assign(const Operand& x) const;
  Slot& operator=(const Operand& x) {
    assign(x);
    return *this;
  }
  /// The gradient that backward() added up; an empty handle if none.
  NDArray grad() const { return value().grad(); }
  /// "" before it has a value.
  const std::string& path() const { return checked_state().path; }
  const Dims& shape() const { return checked_state().shape; }
  bool frozen() const { return checked_state().frozen; }
  /// Throws UsageError if this was moved from.
  State& checked_state() const;
  const std::shared_ptr<State>& state() const { return state_; }
  /// Makes this a place of another state.
  void become(const std::shared_ptr<State>& state);

 private:
  void leave() noexcept {
    if (state_) --state_->holders;
  }
  const NDArray& other_value() const;
  std::shared_ptr<State> state_;
};

/// An array that is trained: nn::Parameter weight{{out, in}, nn::fan_in()}.
struct Parameter : Slot {
  Parameter(Dims shape, Init init, std::source_location where = std::source_location::current())
      : Slot(Kind::parameter, shape, std::move(init), where) {}
  using Slot::Slot;
  using Slot::operator=;
  /// A second place of the same parameter: Linear{.in = w, .out = v, .use_bias = false, .weight = token.weight.tied()}.
  Parameter tied() const { return Parameter((checked_state(), state())); }
};
/// An array that a layer writes in training, such as a running mean.
struct Statistic : Slot {
  Statistic(Dims shape, Init init, std::source_location where = std::source_location::current())
      : Slot(Kind::statistic, shape, std::move(init), where) {}
  using Slot::Slot;
  using Slot::operator=;
};
/// An array that never changes, such as a mask or frequencies.
struct Constant : Slot {
  Constant(Dims shape, Init init, std::source_location where = std::source_location::current())
      : Slot(Kind::constant, shape, std::move(init), where) {}
  using Slot::Slot;
  using Slot::operator=;
};

/// While it lives, the calling thread's pushes are in the layer of a part of a net; null changes nothing.
class Here {
 public:
  explicit Here(const sluice::detail::Layer* layer) : saved_(current_scope().layer) {
    if (layer) current_scope().layer = Reads::current() ? below_reads(layer) : layer;
  }
  ~Here() { current_scope().layer = saved_; }
  Here(const Here&) = delete;
  Here& operator=(const Here&) = delete;

 private:
  static const sluice::detail::Layer* below_reads(const sluice::detail::Layer* layer);
  const sluice::detail::Layer* saved_;
};
/// The layer of the struct that holds a slot. Layers open it while they push.
inline Here layer_of(const Slot& slot) { return Here(slot.checked_state().layer); }

/// What enters the layer that holds this slot, and what leaves it: x itself, or resharded as nn::place was told. The
/// library's layers say so of their `weight`; a struct with parameters of its own may.
inline NDArray entering(const Slot& slot, const NDArray& x) {
  const auto& boundary = slot.checked_state().boundary;
  return boundary && !boundary->in.empty() ? detail::passing(x, boundary->in, slot.checked_state().where) : x;
}
inline NDArray leaving(const Slot& slot, const NDArray& x) {
  const auto& boundary = slot.checked_state().boundary;
  return boundary && !boundary->out.empty() ? detail::passing(x, boundary->out, slot.checked_state().where) : x;
}

/// A struct of a net that has such a field knows where in the net it stands, for names in errors, traces and tables,
/// and for random numbers:
///   nn::Place place;
///   NDArray operator()(const NDArray& x) const { const auto here = place(); ... }
/// Library layers have their own already.
class Place {
 public:
  Place() = default;
  Place(Place&&) noexcept = default;
  Place& operator=(Place&&) noexcept = default;
  Place(const Place&) = delete;             // nets are not copied by accident: say nn::clone(net)
  Place& operator=(const Place&) = delete;  // nets are not copied by accident: say nn::clone(net)

  /// While what it returns lives, the calling thread's pushes are in the layer of this path.
  Here operator()() const { return Here(layer_); }
  /// "blocks.0.drop"; "" before nn::initialise, complete or load reached it, and for the net itself.
  const std::string& path() const { return path_; }
  /// Whether one of them did.
  bool known() const { return known_; }
  void set_path(std::string path);

 private:
  std::string path_;
  const sluice::detail::Layer* layer_ = nullptr;
  bool known_ = false;
};

}  // namespace sluice::nn
