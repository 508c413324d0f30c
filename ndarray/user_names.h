// The names by which errors and reports call operators.
#pragma once

#include <string_view>

namespace sluice {

/// mul for the row mul_scalar: to a program the operator with a number is the same one.
inline std::string_view name_for_users(std::string_view row) {
  constexpr std::string_view suffix = "_scalar";
  return row.ends_with(suffix) ? row.substr(0, row.size() - suffix.size()) : row;
}

namespace detail {
/// The outermost function made of operators that the calling thread is in (operators/composition.h); null: in none.
/// ArrayError names it, where the scope has a line of the program: bodies that serial mode runs meanwhile have none.
const char*& called_function();
}  // namespace detail

}  // namespace sluice
