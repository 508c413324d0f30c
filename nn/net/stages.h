// Stages: a net as a list of functions, one after the other, so that a pipeline can be cut between any two of them.
//
//   struct Gpt {
//     ...
//     nn::Stages stages() const {
//       nn::Stages list;
//       list.add("embed", [this](const NDArray& ids) { return token(ids) + positions; });
//       for (const Block& block : blocks) list.add(block);
//       list.add("head", [this](const NDArray& x) { return token.logits(norm(x)); });
//       return list;
//     }
//     NDArray operator()(const NDArray& ids) const { return nn::run(stages(), ids); }
//   };
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "sluice/ndarray/nd_array.h"

namespace sluice::nn {

/// What goes from one function to the next, where it is more than one array.
using Arrays = std::vector<NDArray>;

namespace detail {
/// "Linear" of sluice::nn::Linear; "" for lambdas, functions and templates.
std::string plain_name(const std::type_info& type);
[[noreturn]] void refuse_count(const std::string& function, std::size_t count);
template <class F>
concept OfArrays = std::is_invocable_v<const F&, const Arrays&> && !std::is_invocable_v<const F&, const NDArray&>;
}  // namespace detail

/// A list of functions. Each maps an array or Arrays to an array or Arrays. A function may be a part of the net, which
/// is referred to and must outlive the list, or a lambda, an operator or a layer without parameters, which is copied.
/// What a later function needs of an earlier one's input (a mask, a residual) has to be passed on by those between.
class Stages {
 public:
  /// `name` is for errors and tables; without one it is that of the type, if it has one.
  template <class F>
  void add(std::string name, const F& f) {
    static_assert(std::is_invocable_v<const F&, const NDArray&> || std::is_invocable_v<const F&, const Arrays&>,
                  "nn::Stages::add takes a function of (const NDArray&) or (const nn::Arrays&) that returns an NDArray "
                  "or nn::Arrays, and may be called through a const reference");
    const std::string full = std::to_string(list_.size()) + (name.empty() ? "" : " " + name);
    if constexpr (std::copy_constructible<F>) {
      add_call(full, [f](const Arrays& x, const std::string& who) { return call_of(f, x, who); });
    } else {
      add_call(full, [&f](const Arrays& x, const std::string& who) { return call_of(f, x, who); });
    }
  }
  template <class F>
  requires(!std::convertible_to<const F&, std::string>) void add(const F& f) { add(detail::plain_name(typeid(F)), f); }
  /// A part that cannot be copied must live somewhere.
  template <class F>
  requires(!std::copy_constructible<std::remove_cvref_t<F>> && !std::is_lvalue_reference_v<F>) void add(F&&) = delete;
  template <class F>
  requires(!std::copy_constructible<std::remove_cvref_t<F>> && !std::is_lvalue_reference_v<F>) void add(std::string,
                                                                                                        F&&) = delete;

  std::size_t size() const { return list_.size(); }
  /// Its number and name: "0 embed". Throws std::out_of_range.
  const std::string& name(std::size_t i) const { return list_.at(i).name; }
  /// Calls one function. Throws what it throws, and UsageError where it takes one array and is given another number.
  Arrays call(std::size_t i, const Arrays& x) const { return list_.at(i).f(x, list_.at(i).name); }

 private:
  using Call = std::function<Arrays(const Arrays&, const std::string&)>;
  struct Function {
    std::string name;
    Call f;
  };
  template <class F>
  static Arrays call_of(const F& f, const Arrays& x, const std::string& who) {
    const auto listed = [](auto&& result) -> Arrays {
      using R = std::remove_cvref_t<decltype(result)>;
      static_assert(std::convertible_to<R, NDArray> || std::same_as<R, Arrays>,
                    "a function of nn::Stages returns an NDArray or nn::Arrays");
      if constexpr (std::same_as<R, Arrays>) {
        return std::forward<decltype(result)>(result);
      } else {
        return {NDArray(std::forward<decltype(result)>(result))};
      }
    };
    if constexpr (detail::OfArrays<F>) {
      return listed(f(x));
    } else {
      if (x.size() != 1) detail::refuse_count(who, x.size());
      return listed(f(x[0]));
    }
  }
  void add_call(std::string name, Call f) { list_.push_back({std::move(name), std::move(f)}); }

  std::vector<Function> list_;
};

template <class Net>
concept HasStages = requires(const Net& net) {
  { net.stages() } -> std::same_as<Stages>;
};

/// The functions of a net that has them.
template <class Net>
Stages stages_of(const Net& net) {
  static_assert(HasStages<Net>,
                "the net needs nn::Stages stages() const: the list of its functions, between which it can be cut");
  return net.stages();
}

/// All of them, one after the other.
Arrays run(const Stages& stages, Arrays x);
/// The same from one array to one. Throws UsageError where the last function gives another number.
NDArray run(const Stages& stages, const NDArray& x);

}  // namespace sluice::nn
