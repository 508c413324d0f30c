// The walk over a net: every Parameter, Statistic, Constant and Place of a plain struct and of its parts, with its
// path.
//
// A net is a struct whose fields are layers, other such structs, and options. Nothing is registered: a field that the
// walk cannot look into does not compile. Fields may be in std::vector, array, optional, unique_ptr, shared_ptr,
// variant, tuple, pair and map<std::string, ...>; numbers, enums, strings, functions and references hold no parameters.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "sluice/nn/net/parameter.h"
#include "sluice/nn/net/reflect.h"

namespace sluice::nn {

/// A type that holds no parameters and is not looked into:
///   template <> inline constexpr bool sluice::nn::ignored<MyLogger> = true;
template <class T>
inline constexpr bool ignored = false;

/// What a walk calls, with paths such as "blocks.0.up.weight".
class Visitor {
 public:
  virtual void slot(const std::string& path, Slot& slot) = 0;
  /// The path is that of the struct that holds the place.
  virtual void place(const std::string& path, Place& place);

 protected:
  ~Visitor() = default;
};

std::string join(const std::string& path, std::string_view name);

/// The parts of a class whose fields cannot be listed: auto parts() { return nn::parts("up", up_, "down", down_); }
struct Parts {
  std::vector<std::function<void(const std::string&, Visitor&)>> list;
};

namespace detail {

template <class>
inline constexpr bool never = false;

template <class T, template <class...> class Template>
struct IsOne : std::false_type {};
template <class... A, template <class...> class Template>
struct IsOne<Template<A...>, Template> : std::true_type {};
template <class T, template <class...> class Template>
inline constexpr bool is_one = IsOne<T, Template>::value;

template <class T>
struct IsArray : std::false_type {};
template <class T, std::size_t N>
struct IsArray<std::array<T, N>> : std::true_type {};
template <class T>
struct IsNamed : std::false_type {};
template <class V, class C, class A>
struct IsNamed<std::map<std::string, V, C, A>> : std::true_type {};

template <class T>
concept List = is_one<T, std::vector> || IsArray<T>::value;
template <class T>
concept Maybe = is_one<T, std::optional> || is_one<T, std::unique_ptr> || is_one<T, std::shared_ptr>;
template <class T>
concept Several = is_one<T, std::tuple> || is_one<T, std::pair>;
template <class T>
concept StringMap = IsNamed<T>::value;
template <class T>
concept Variant = is_one<T, std::variant>;

/// Holds no parameters.
template <class T>
concept Opaque = ignored<T> || std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_empty_v<T> ||
    std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view> || std::is_same_v<T, Size> ||
    std::is_same_v<T, std::source_location> || std::is_same_v<T, Dims> || std::is_same_v<T, Device> ||
    is_one<T, std::function> || is_one<T, std::reference_wrapper> ||
    (std::is_pointer_v<T>&& std::is_function_v<std::remove_pointer_t<T>>);
template <class T>
concept WalksItself = requires(T& x, const std::string& path, Visitor& visitor) {
  x.walk_parts(path, visitor);
};
template <class T>
concept HasParts = requires(T& x) {
  x.parts();
};

template <class T>
void walk(T& x, const std::string& path, Visitor& visitor);

template <class T>
void walk_fields(T& x, const std::string& path, Visitor& visitor) {
  static_assert(!reflect::has_base<T>,
                "this struct has a base class, so its fields cannot be listed: make the base a field, or give the "
                "struct auto parts() { return nn::parts(\"name\", field, ...); }");
  if constexpr (!reflect::has_base<T>) {
    static_assert(reflect::fields<T> <= reflect::kMost,
                  "this struct has more fields than can be listed (48): group some into a struct of their own");
    if constexpr (reflect::fields<T> <= reflect::kMost) {
      reflect::each(x, [&](std::string_view name, auto& field) {
        using F = std::remove_cvref_t<decltype(field)>;
        if constexpr (!Opaque<F>) walk(field, join(path, name), visitor);
      });
    }
  }
}

/// Only handles can be const: what they refer to has an identity of its own, so a const net is walked as any other.
template <class T>
void walk(T& x, const std::string& path, Visitor& visitor) {
  using U = std::remove_const_t<T>;
  if constexpr (std::is_const_v<T>) {
    walk(const_cast<U&>(x), path, visitor);
  } else if constexpr (std::is_base_of_v<Slot, U>) {
    visitor.slot(path, x);
  } else if constexpr (std::is_same_v<U, Place>) {
    visitor.place(path.substr(0, path.rfind('.') == std::string::npos ? 0 : path.rfind('.')), x);
  } else if constexpr (Opaque<U>) {
  } else if constexpr (WalksItself<U>) {
    x.walk_parts(path, visitor);
  } else if constexpr (HasParts<U>) {
    for (const auto& part : x.parts().list) part(path, visitor);
  } else if constexpr (List<U>) {
    std::size_t i = 0;
    if constexpr (!Opaque<typename U::value_type>) {
      for (auto& element : x) walk(element, join(path, std::to_string(i++)), visitor);
    }
  } else if constexpr (StringMap<U>) {
    for (auto& [name, element] : x) walk(element, join(path, name), visitor);
  } else if constexpr (Maybe<U>) {
    if (x) walk(*x, path, visitor);
  } else if constexpr (Variant<U>) {
    std::visit([&](auto& element) { walk(element, path, visitor); }, x);
  } else if constexpr (Several<U>) {
    std::size_t i = 0;
    std::apply([&](auto&... element) { (walk(element, join(path, std::to_string(i++)), visitor), ...); }, x);
  } else if constexpr (std::is_same_v<U, NDArray>) {
    static_assert(never<U>,
                  "a net holds a plain NDArray: nobody would train, move or save it. Make it an nn::Parameter, "
                  "nn::Statistic or nn::Constant");
  } else if constexpr (std::is_pointer_v<U>) {
    static_assert(never<U>,
                  "a net holds a raw pointer: hold the part itself, a std::unique_ptr of it, or parameter.tied()");
  } else if constexpr (std::is_aggregate_v<U>) {
    walk_fields(x, path, visitor);
  } else {
    static_assert(never<U>,
                  "this class has a constructor, private fields, virtual functions or captures, so its fields cannot "
                  "be listed: give it auto parts() { return nn::parts(\"name\", field, ...); }, or say template <> "
                  "inline constexpr bool sluice::nn::ignored<It> = true");
  }
}

inline void add_parts(Parts&) {}
template <class T, class... Rest>
void add_parts(Parts& parts, const char* name, T& part, Rest&... rest) {
  parts.list.push_back([name, &part](const std::string& path, Visitor& v) { walk(part, join(path, name), v); });
  add_parts(parts, rest...);
}

}  // namespace detail

/// Names and fields in turns. What is left out here has no value, and throws where it is used.
template <class... A>
Parts parts(A&&... names_and_fields) {
  static_assert(sizeof...(A) % 2 == 0, "nn::parts takes names and fields in turns: parts(\"up\", up, \"down\", down)");
  Parts made;
  if constexpr (sizeof...(A) % 2 == 0) detail::add_parts(made, names_and_fields...);
  return made;
}

/// Visits all of a net, in the order of its fields. A shared or tied parameter is visited in each of its places.
template <class Net>
void walk(Net& net, Visitor& visitor) {
  detail::walk(net, "", visitor);
}

}  // namespace sluice::nn
