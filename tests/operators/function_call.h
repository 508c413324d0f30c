// Calls of the library's public functions that take arrays, as a table: properties that hold for all of them are tested
// on it (empty_handles_test.cc, copies_test.cc). That it has every function is a test of its own
// (declared_functions.h).
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "operator_case.h"

namespace sluice::testing {

struct FunctionCall {
  std::string name;                           ///< as it is declared
  std::function<Arrays()> make;               ///< what it is called with, new each time
  std::function<Arrays(const Arrays&)> call;  ///< its results that are arrays
  std::set<std::size_t> optional = {};        ///< the inputs of which a comment says what an empty handle means
  std::string shown = {};                     ///< the name that errors have, if it is another
  std::string says = {};                      ///< what the error says, if it is not "an empty handle"
  bool view = false;  ///< a result may be a view of an input, or an input itself: a comment says so
};

/// The calls in a list, and what most of them are called with.
class FunctionCalls {
 public:
  using Call = std::function<Arrays(const Arrays&)>;
  explicit FunctionCalls(std::vector<FunctionCall>& list) : list_(list) {}
  std::vector<FunctionCall>& list() { return list_; }

  FunctionCall& add(std::string name, std::function<Arrays()> make, Call call) {
    return list_.emplace_back(FunctionCall{std::move(name), std::move(make), std::move(call)});
  }
  /// Of floating inputs of these shapes.
  FunctionCall& add(std::string name, std::vector<Dims> shapes, Call call) {
    return add(
        std::move(name),
        [shapes = std::move(shapes)] {
          Arrays inputs;
          for (const Dims& shape : shapes) inputs.push_back(numbers_of(shape));
          return inputs;
        },
        std::move(call));
  }
  FunctionCall& view(std::string name, std::vector<Dims> shapes, Call call) {
    FunctionCall& added = add(std::move(name), std::move(shapes), std::move(call));
    added.view = true;
    return added;
  }

  /// Numbers from 0.3 to 1.3, none of them equal to its neighbours.
  static NDArray numbers_of(const Dims& shape) {
    std::vector<float> list;
    for (std::int64_t i = 0; i < shape.count(); ++i) list.push_back(0.3F + static_cast<float>(i * 37 % 101) / 101);
    return from(list, shape);
  }
  static NDArray places_of(const Dims& shape, std::int64_t size) {
    std::vector<std::int64_t> list;
    for (std::int64_t i = 0; i < shape.count(); ++i) list.push_back(i % size);
    return from(list, shape);
  }
  /// Symmetric and positive definite.
  static NDArray matrix_of(std::int64_t n) {
    return eye(n) * static_cast<double>(n) + outer(numbers_of({n}), numbers_of({n}));
  }

 private:
  std::vector<FunctionCall>& list_;
};

}  // namespace sluice::testing
