// Functions of nets: give them values, move them, freeze them, average them, print them.
//
//   struct Mlp {
//     nn::Linear up{784, 512}, down{512, 10};
//     NDArray operator()(const NDArray& x) const { return down(relu(up(x))); }
//   };
//   Mlp net;
//   nn::initialise(net, 1, {{"*.weight", nn::normal(0.02)}});
//
// None of them may run beside another use of the net. They push and return, unless they say that they wait.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sluice/autograd/shapes.h"
#include "sluice/nn/net/clone.h"
#include "sluice/nn/net/initialisers.h"
#include "sluice/nn/net/mode.h"
#include "sluice/nn/net/select.h"
#include "sluice/nn/net/walk.h"

namespace sluice::nn {

/// What a net holds, in the order of its fields.
struct Contents {
  std::vector<Named> slots;  ///< each once, under the first of its paths
  std::vector<std::pair<std::string, Place*>> places;
  std::vector<Named> aliases{};  ///< what is shared or tied, under each of its further paths
};

/// The first value of what matches. A rule's pattern that meets nothing throws.
struct InitRule {
  Select where;
  Init init;
};
struct InitOptions {
  bool again = false;              ///< draw anew what has a value
  DType dtype = DType::f32;        ///< of parameters and constants; statistics are f32, or f64 with f64
  std::optional<Device> device{};  ///< empty: that of the thread's scope
};

namespace detail {
class Collector final : public Visitor {
 public:
  void slot(const std::string& path, Slot& slot) override;
  void place(const std::string& path, Place& place) override { contents.places.emplace_back(path, &place); }
  Contents contents;

 private:
  std::unordered_set<const State*> seen_;
  std::unordered_set<std::string> paths_;
};
using Where = std::source_location;
void initialise(const Contents& net, std::uint64_t seed, const std::vector<InitRule>& rules, const InitOptions& options,
                bool only_missing, Where where);
void freeze(const Contents& net, const Select& which, bool frozen, Where where);
void move(const Contents& net, Device device, Where where);
void blend(const Contents& target, const Contents& source, double t, Where where);
void recover(const Contents& net, Where where);
std::string describe(const Contents& net);
/// Gives names to what has none yet, for tables of nets without values.
void name(const Contents& net);
}  // namespace detail

namespace detail {
/// Structs, and classes with parts(); neither lambdas nor functions.
template <class T>
concept IsNet = WalksItself<T> || HasParts<T> || std::is_aggregate_v<T>;
}  // namespace detail

/// All of a net. A Place's pointer is valid as long as the net stays where it is. Throws UsageError, with the line
/// where it was made, for a parameter of a shape that no array can have; so do the other functions of nets.
template <class Net>
Contents contents(const Net& net) {
  detail::Collector collector;
  walk(net, collector);
  return std::move(collector.contents);
}
/// A part of a net may be listed by hand, for functions that take nets.
inline Contents contents(const Contents& list) { return list; }
/// Its parameters alone, frozen ones too.
template <class Net>
std::vector<Named> parameters(const Net& net) {
  std::vector<Named> list = contents(net).slots;
  std::erase_if(list, [](const Named& n) { return n.state->kind != Kind::parameter; });
  return list;
}

/// Gives each parameter, statistic and constant its first value. Random values are keyed by (seed, path), so neither
/// the order of the fields, nor the device, nor where a pipeline is cut changes a number; renaming a field does. Where
/// several rules match, the last counts; where none does, the layer's own Init. Throws UsageError over existing values
/// unless options.again, for a rule that matches nothing, and for an Init that gives another shape or dtype; then
/// nothing was changed.
template <class Net>
void initialise(const Net& net, std::uint64_t seed, const std::vector<InitRule>& rules = {},
                const InitOptions& options = {}, std::source_location where = std::source_location::current()) {
  detail::initialise(contents(net), seed, rules, options, false, where);
}
/// The same for what has no value yet: a new head, or what a partial load left out.
template <class Net>
void complete(const Net& net, std::uint64_t seed, const std::vector<InitRule>& rules = {},
              const InitOptions& options = {}, std::source_location where = std::source_location::current()) {
  detail::initialise(contents(net), seed, rules, options, true, where);
}
/// Freezes what matches: parameters have neither gradients nor steps, and statistics are not written any more, so that
/// a frozen BatchNorm evaluates. Drops their gradients. `frozen` = false undoes it. Throws UsageError where nothing
/// matches.
template <class Net>
void freeze(const Net& net, const Select& which, bool frozen = true,
            std::source_location where = std::source_location::current()) {
  detail::freeze(contents(net), which, frozen, where);
}
/// Moves all values and gradients to a device. Identities stay: an optimiser's state follows at its next step.
template <class Net>
void to(const Net& net, Device device, std::source_location where = std::source_location::current()) {
  detail::move(contents(net), device, where);
}
/// target = (1 - t) target + t source for each parameter; statistics and constants are copied. t = 0.001 makes a moving
/// average or a target net, t = 1 copies. Both nets have the same paths, and no parameter in common. Throws UsageError.
template <class A, class B>
void blend(const A& target, const B& source, double t, std::source_location where = std::source_location::current()) {
  detail::blend(contents(target), contents(source), t, where);
}
/// For use after a failed batch: values that operations left whole have their last good value again. What an operation
/// left half written stays poisoned. Drops the gradients. See Optimizer::recover for a net that is trained.
template <class Net>
void recover(const Net& net, std::source_location where = std::source_location::current()) {
  detail::recover(contents(net), where);
}
/// A table: path, shape, elements, and what is frozen or tied; the sum of the parameters. Does not wait.
template <class Net>
std::string describe(const Net& net) {
  return detail::describe(contents(net));
}
/// Prints describe(net) to standard output.
template <class Net>
void print(const Net& net) {
  std::fputs(describe(net).c_str(), stdout);
}
/// The table of sluice::summary for net(x) in evaluation, where x has this spec. Runs nothing; parameters need no
/// values.
template <class Net>
requires(detail::IsNet<std::remove_cvref_t<Net>>)
    // Takes Net&& as sluice::summary does, so that of the two a net means this one, whatever namespaces are in use.
    std::string summary(Net&& net, const Spec& x, std::source_location where = std::source_location::current()) {
  const Evaluation off;
  const DeviceScope scope(x.device);
  detail::name(contents(net));
  return sluice::summary([&](const NDArray& array) { return std::as_const(net)(array); }, x, where);
}

}  // namespace sluice::nn
