// Fields of a plain struct and their names, in plain C++20, for the walk over a net (walk.h). Fields are counted by how
// many values the braces of T{...} take, reached by structured bindings, and named by the compiler's own text of a
// pointer to them. Tried with GCC 12 and 14 and clang 19.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace sluice::nn::reflect {

/// Converts to whatever a field of T is, but not to a base of T. It is never called; clang wants the bodies where U is
/// of an unnamed namespace.
template <class T>
struct AnyField {
  template <class U>
  requires(!std::is_base_of_v<U, T>) operator U() const noexcept { __builtin_unreachable(); }
};
/// Converts to a base of T alone.
template <class T>
struct AnyBase {
  template <class U>
  requires(std::is_base_of_v<U, T> && !std::is_same_v<U, T>) operator U() const noexcept { __builtin_unreachable(); }
};

template <class T, std::size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), AnyField<T>{})...}; };
}

/// The most fields that can be listed.
inline constexpr std::size_t kMost = 48;

/// The number of fields of an aggregate without bases; more than kMost if it has more. Braces may need a least number
/// of values, those of fields without a default, and take no more than there are fields.
template <class T, std::size_t N = 0, bool Taken = false>
constexpr std::size_t count_fields() {
  constexpr bool now = takes<T>(std::make_index_sequence<N>{});
  if constexpr (Taken && !now) {
    return N - 1;
  } else if constexpr (N > kMost) {
    return N;
  } else {
    return count_fields<T, N + 1, now>();
  }
}
template <class T>
inline constexpr std::size_t fields = count_fields<T>();
template <class T>
inline constexpr bool has_base = requires {
  T{AnyBase<T>{}};
};

// clang-format off
#define SLUICE_NN_FIELDS(n, ...)                \
  else if constexpr (count == n) {              \
    auto& [__VA_ARGS__] = x;                    \
    return std::tie(__VA_ARGS__);               \
  }

/// References to the fields, in the order of declaration. If an error points here, a field of T is a C array (say
/// std::array) or a bit field (say bool or int).
template <class T>
constexpr auto tie(T& x) {
  constexpr std::size_t count = fields<std::remove_const_t<T>>;
  if constexpr (count == 0) return std::tuple<>();
  SLUICE_NN_FIELDS(1, f0)
  SLUICE_NN_FIELDS(2, f0, f1)
  SLUICE_NN_FIELDS(3, f0, f1, f2)
  SLUICE_NN_FIELDS(4, f0, f1, f2, f3)
  SLUICE_NN_FIELDS(5, f0, f1, f2, f3, f4)
  SLUICE_NN_FIELDS(6, f0, f1, f2, f3, f4, f5)
  SLUICE_NN_FIELDS(7, f0, f1, f2, f3, f4, f5, f6)
  SLUICE_NN_FIELDS(8, f0, f1, f2, f3, f4, f5, f6, f7)
  SLUICE_NN_FIELDS(9, f0, f1, f2, f3, f4, f5, f6, f7, f8)
  SLUICE_NN_FIELDS(10, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9)
  SLUICE_NN_FIELDS(11, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10)
  SLUICE_NN_FIELDS(12, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11)
  SLUICE_NN_FIELDS(13, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12)
  SLUICE_NN_FIELDS(14, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13)
  SLUICE_NN_FIELDS(15, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14)
  SLUICE_NN_FIELDS(16, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15)
  SLUICE_NN_FIELDS(17, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16)
  SLUICE_NN_FIELDS(18, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17)
  SLUICE_NN_FIELDS(19, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18)
  SLUICE_NN_FIELDS(20, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19)
  SLUICE_NN_FIELDS(21, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20)
  SLUICE_NN_FIELDS(22, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21)
  SLUICE_NN_FIELDS(23, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22)
  SLUICE_NN_FIELDS(24, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23)
  SLUICE_NN_FIELDS(25, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24)
  SLUICE_NN_FIELDS(26, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25)
  SLUICE_NN_FIELDS(27, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26)
  SLUICE_NN_FIELDS(28, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27)
  SLUICE_NN_FIELDS(29, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28)
  SLUICE_NN_FIELDS(30, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29)
  SLUICE_NN_FIELDS(31, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30)
  SLUICE_NN_FIELDS(32, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31)
  SLUICE_NN_FIELDS(33, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32)
  SLUICE_NN_FIELDS(34, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33)
  SLUICE_NN_FIELDS(35, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34)
  SLUICE_NN_FIELDS(36, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34, f35)
  SLUICE_NN_FIELDS(37, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34, f35, f36)
  SLUICE_NN_FIELDS(38, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34, f35, f36, f37)
  SLUICE_NN_FIELDS(39, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34, f35, f36, f37, f38)
  SLUICE_NN_FIELDS(40, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34, f35, f36, f37, f38, f39)
  SLUICE_NN_FIELDS(41, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34, f35, f36, f37, f38, f39, f40)
  SLUICE_NN_FIELDS(42, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34, f35, f36, f37, f38, f39, f40,
                   f41)
  SLUICE_NN_FIELDS(43, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34, f35, f36, f37, f38, f39, f40,
                   f41, f42)
  SLUICE_NN_FIELDS(44, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34, f35, f36, f37, f38, f39, f40,
                   f41, f42, f43)
  SLUICE_NN_FIELDS(45, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34, f35, f36, f37, f38, f39, f40,
                   f41, f42, f43, f44)
  SLUICE_NN_FIELDS(46, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34, f35, f36, f37, f38, f39, f40,
                   f41, f42, f43, f44, f45)
  SLUICE_NN_FIELDS(47, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34, f35, f36, f37, f38, f39, f40,
                   f41, f42, f43, f44, f45, f46)
  SLUICE_NN_FIELDS(48, f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19, f20,
                   f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31, f32, f33, f34, f35, f36, f37, f38, f39, f40,
                   f41, f42, f43, f44, f45, f46, f47)
}
#undef SLUICE_NN_FIELDS
// clang-format on

template <class T>
struct Pointer {
  const T* at;
};
template <class T>
Pointer(const T*) -> Pointer<T>;
template <class T>
struct Holder {
  T value;
};
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-var-template"
#pragma clang diagnostic ignored "-Wundefined-internal"
#endif
/// Never defined: the addresses of its fields are constants for the compiler, and that is all that is wanted of it.
template <class T>
extern const Holder<T> nowhere;

/// Not a std::string_view, whose definition GCC would explain inside of the text.
struct CompilerText {
  const char* begin;
  std::size_t size;
};
template <class T, auto P>
consteval CompilerText text_of() {
  return {__PRETTY_FUNCTION__, sizeof(__PRETTY_FUNCTION__) - 1};
}
/// Of "... P = Pointer<int>{(& nowhere<Mlp>.Holder<Mlp>::value.Mlp::up)}]" the last identifier, "up".
constexpr std::string_view last_identifier(std::string_view text) {
  const auto part_of_name = [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  while (!text.empty() && !part_of_name(text.back())) text.remove_suffix(1);
  std::size_t begin = text.size();
  while (begin > 0 && part_of_name(text[begin - 1])) --begin;
  return text.substr(begin);
}
/// The name of field I. consteval, so that no code refers to `nowhere`: builds without optimisation and with sanitizers
/// would look for it when they link.
template <class T, std::size_t I>
consteval std::string_view name() {
  constexpr CompilerText text = text_of<T, Pointer{std::addressof(std::get<I>(tie(nowhere<T>.value)))}>();
  return last_identifier({text.begin, text.size});
}
#if defined(__clang__)
#pragma clang diagnostic pop
#endif

/// Calls f("up", x.up), ... for each field, in the order of declaration.
template <class T, class F>
void each(T& x, F&& f) {
  using U = std::remove_const_t<T>;
  auto all = tie(x);
  [&]<std::size_t... I>(std::index_sequence<I...>) { (f(name<U, I>(), std::get<I>(all)), ...); }
  (std::make_index_sequence<fields<U>>{});
}

}  // namespace sluice::nn::reflect
