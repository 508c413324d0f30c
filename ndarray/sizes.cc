// Sizes that a program gives, checked before anything is computed with them.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "sluice/engine/bytes_in_words.h"
#include "sluice/ndarray/nd_array.h"
#include "sluice/ndarray/user_names.h"
#include "sluice/resources/memory_pool.h"

namespace sluice {
namespace {

[[noreturn]] void refuse_shape(std::string_view operation, const Dims& shape, DType dtype, const char* most,
                               const std::source_location& where) {
  const bool negative = std::any_of(shape.begin(), shape.end(), [](std::int64_t n) { return n < 0; });
  throw ArrayError(operation, where,
                   to_string(shape) + " " + std::string(name_of(dtype)) + ": " +
                       (shape.too_long() ? "an array has at most " + std::to_string(kMaxRank) + " axes"
                        : negative       ? "a negative size; all must be 0 or more"
                                         : "too many elements; their bytes must be " + std::string(most)));
}

}  // namespace

void check_shape(std::string_view operation, const Dims& shape, DType dtype, const std::source_location& where) {
  if (can_be_allocated(shape, size_of(dtype))) return;
  refuse_shape(operation, shape, dtype, "at most 2^48", where);
}

void check_view_shape(std::string_view operation, const Dims& shape, DType dtype, const std::source_location& where) {
  if (can_be_array(shape, size_of(dtype))) return;
  refuse_shape(operation, shape, dtype, "below 2^63", where);
}

void detail::refuse_axis() {
  const std::string why = "more than " + std::to_string(kMaxRank) + " axes";
  const std::source_location& program = current_scope().where;
  if (program.line() != 0 && called_function()) throw ArrayError(called_function(), program, why);
  throw std::invalid_argument(why);
}

std::string detail::no_memory_for(std::int64_t n, std::size_t item) {
  std::int64_t bytes = 0;
  if (n < 0 || __builtin_mul_overflow(n, static_cast<std::int64_t>(item), &bytes)) {
    return "a list of " + std::to_string(n) + " elements of " + std::to_string(item) + " bytes";
  }
  return "the host has no " + bytes_in_words(static_cast<double>(bytes)) + " for a list of " + std::to_string(n) +
         " elements";
}

void detail::check_host_list(std::string_view operation, std::int64_t n, std::size_t item,
                             const std::source_location& where) {
  const std::size_t most = std::min(host_memory_bytes(), static_cast<std::size_t>(kMostArrayBytes));
  if (n >= 0 && static_cast<std::size_t>(n) <= most / item) return;
  throw ArrayError(operation, where, no_memory_for(n, item));
}

}  // namespace sluice
