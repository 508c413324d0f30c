#include "sluice/nn/net/stages.h"

#include <cxxabi.h>

#include <cstdlib>
#include <string_view>

#include "sluice/engine/errors.h"

namespace sluice::nn {

namespace detail {

std::string plain_name(const std::type_info& type) {
  int status = 0;
  char* const text = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  std::string name = status == 0 ? text : "";
  std::free(text);  // NOLINT: as the ABI wants it
  if (name.find_first_of("(<{*&") != std::string::npos) {
    // A struct of an unnamed namespace or of a function has a plain name behind it all the same.
    const std::size_t from = name.rfind("::");
    if (from == std::string::npos) return "";
    name.erase(0, from + 2);
  } else if (const std::size_t from = name.rfind("::"); from != std::string::npos) {
    name.erase(0, from + 2);
  }
  return name.find_first_of("(<{*&#'") == std::string::npos ? name : "";
}

void refuse_count(const std::string& function, std::size_t count) {
  throw UsageError("[nn::Stages] the function '" + function + "' takes one array and is given " +
                   std::to_string(count));
}

}  // namespace detail

Arrays run(const Stages& stages, Arrays x) {
  for (std::size_t i = 0; i < stages.size(); ++i) x = stages.call(i, x);
  return x;
}

NDArray run(const Stages& stages, const NDArray& x) {
  Arrays result = run(stages, Arrays{x});
  if (result.size() != 1) {
    throw UsageError("[nn::run] the last function gives " + std::to_string(result.size()) + " arrays, wanted one");
  }
  return std::move(result[0]);
}

}  // namespace sluice::nn
