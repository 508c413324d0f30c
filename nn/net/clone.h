// clone and repeat: nets of their own. A net cannot be copied in another way.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sluice/nn/net/walk.h"

namespace sluice::nn {

namespace detail {

/// The clones of states, so that ties inside of a net stay ties.
class Clones {
 public:
  std::shared_ptr<State> of(const Slot& slot);
  static void refuse_recipe(std::size_t wanted, std::size_t given);

 private:
  std::unordered_map<const State*, std::shared_ptr<State>> made_;
};

template <class T>
T clone(const T& x, Clones& clones);

template <class T>
concept ClonesItself = requires(const T& x, Clones& clones) {
  { x.clone_parts(clones) } -> std::same_as<T>;
};

/// The slots of a net, in order.
class SlotList final : public Visitor {
 public:
  void slot(const std::string&, Slot& slot) override { list.push_back(&slot); }
  std::vector<Slot*> list;
};

template <class T>
T clone_by_recipe(const T& x, Clones& clones) {
  static_assert(
      requires {
        { x.recipe() } -> std::same_as<T>;
      },
      "nn::clone of a class with parts() needs T recipe() const: a new object with the same sizes");
  T made = x.recipe();
  SlotList from, to;
  nn::detail::walk(x, "", from);
  nn::detail::walk(made, "", to);
  if (from.list.size() != to.list.size()) Clones::refuse_recipe(from.list.size(), to.list.size());
  for (std::size_t i = 0; i < from.list.size(); ++i) to.list[i]->become(clones.of(*from.list[i]));
  return made;
}

template <class T>
T clone(const T& x, Clones& clones) {
  if constexpr (std::is_base_of_v<Slot, T>) {
    return T(clones.of(x));
  } else if constexpr (std::is_same_v<T, Place>) {
    Place place;
    if (x.known()) place.set_path(x.path());
    return place;
  } else if constexpr (ClonesItself<T>) {
    return x.clone_parts(clones);
  } else if constexpr (HasParts<T>) {
    return clone_by_recipe(x, clones);
  } else if constexpr (is_one<T, std::unique_ptr>) {
    using Element = typename T::element_type;
    return x ? T(new Element(clone(*x, clones))) : T();
  } else if constexpr (is_one<T, std::shared_ptr>) {
    using Element = typename T::element_type;
    return x ? T(new Element(clone(*x, clones))) : T();
  } else if constexpr (is_one<T, std::optional>) {
    T made;
    if (x) made.emplace(clone(*x, clones));
    return made;
  } else if constexpr (Variant<T>) {
    return std::visit([&](const auto& element) { return T(clone(element, clones)); }, x);
  } else if constexpr (StringMap<T>) {
    T made;
    for (const auto& [name, element] : x) made.emplace(name, clone(element, clones));
    return made;
  } else if constexpr (Several<T>) {
    return std::apply([&](const auto&... element) { return T{clone(element, clones)...}; }, x);
  } else if constexpr (is_one<T, std::vector>) {
    T made;
    made.reserve(x.size());
    for (const auto& element : x) made.push_back(clone(element, clones));
    return made;
  } else if constexpr (IsArray<T>::value) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) { return T{{clone(x[I], clones)...}}; }
    (std::make_index_sequence<std::tuple_size_v<T>>{});
  } else if constexpr (Opaque<T> || !std::is_aggregate_v<T>) {
    return x;
  } else {
    return std::apply([&](const auto&... field) { return T{clone(field, clones)...}; }, reflect::tie(x));
  }
}

}  // namespace detail

/// A net of its own, with copies of the values (pushed; it does not wait), the same paths, ties and frozen parameters,
/// and no gradients. Works before initialise too. A class with parts() needs `T recipe() const`, a new object with the
/// same sizes.
template <class Net>
Net clone(const Net& net) {
  detail::Clones clones;
  return detail::clone(net, clones);
}

/// n nets of their own: nn::repeat(12, Block{.width = 768, .heads = 12}). Throws UsageError for n < 0.
template <class Net>
std::vector<Net> repeat(std::int64_t n, Net one) {
  if (n < 0) throw UsageError("[nn::repeat] " + std::to_string(n) + " times");
  std::vector<Net> nets;
  nets.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 1; i < n; ++i) nets.push_back(clone(one));
  if (n > 0) nets.push_back(std::move(one));
  return nets;
}

}  // namespace sluice::nn
