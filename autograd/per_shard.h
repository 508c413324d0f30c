// per_shard: a program's own function of shards, which each place of a mesh runs by itself.
//
//   // Rows are cut over dp; each place sorts those that it has.
//   const NDArray y = per_shard([](const NDArray& rows) { return sort(rows, 1); }, {x}, {{"dp", shard(0)}});
//   // Columns are cut over tp; each place adds up its own, and the terms are added when somebody asks.
//   const NDArray s = per_shard([](const NDArray& part) { return sum(part, {1}); }, {x}, {{"tp", partial()}});
//
// What is missing among the rows' rules (docs/sharding.md) can be written so: the function sees plain arrays and calls
// what it likes on them.
#pragma once

#include <concepts>
#include <functional>
#include <source_location>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/autograd/array_function.h"
#include "sluice/ndarray/layout.h"
#include "sluice/ndarray/nd_array.h"

namespace sluice {

/// A function of the shards that a place has, in the order of the inputs. Made by conversion from what an ArrayFunction
/// is made of, or from what can be called with a vector of the shards and the place's rank:
///   [](const std::vector<NDArray>& x, int rank) { return std::vector<NDArray>{x[0] * rank}; }
class ShardFunction {
 public:
  using Results = std::vector<NDArray>;
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, ShardFunction>) ShardFunction(F f) {  // NOLINT: made by conversion
    if constexpr (std::is_invocable_v<const F&, const Results&, int>) {
      call_ = [f = std::move(f)](const Results& x, int rank, const std::source_location& where) {
        return ArrayFunction([&](const Results& shards) { return f(shards, rank); })(x, "per_shard", where);
      };
    } else {
      call_ = [f = ArrayFunction(std::move(f))](const Results& x, int, const std::source_location& where) {
        return f(x, "per_shard", where);
      };
    }
  }
  Results operator()(const Results& shards, int rank, const std::source_location& where) const {
    return call_(shards, rank, where);
  }

 private:
  std::function<Results(const Results&, int, const std::source_location&)> call_;
};

/// Calls f once for each place, on the calling thread and with the place's device as default, and puts together what
/// the places gave: the result lies as `result` says, and is replicated on axes of the mesh that are not named. One
/// that is cut has the sum of the places' sizes along that axis, which need not be equal (shard(i).by(u) is shard(i)).
/// The shards have the sizes that the input's layout gives them: nothing is padded, and they may be empty. f may not
/// keep or write what it is given; inside of it MeshScope and interpreters are off. Where a result is replicated along
/// an axis, f must give the same at each place of it: numbers that it draws differ from place to place.
///
/// Gradients, and theirs, follow from the layouts: f is recorded at each place, and its gradient run there. An input
/// that is replicated along an axis of the mesh, along which a result is not, gets from each place a term of its
/// gradient. What a place's function keeps stays until backward has passed the call.
///
/// Throws ArrayError for an input that is plain, partial or on another mesh than the first; for a result that is said
/// to be replicated along an axis of the mesh along which an input is cut, since each place would have another value;
/// where gradients are recorded, for a partial maximum or minimum, and for an array that f uses which wants a gradient
/// and is no input; for results of f that are not plain, do not lie on the place's device, or do not fit together; and
/// UsageError for names that the mesh does not have. What f throws goes to the caller. Does not block.
NDArray per_shard(const ShardFunction& f, const NDArrays& inputs, const Placements& result,
                  std::source_location where = std::source_location::current());
/// The same for a function of several results.
std::vector<NDArray> per_shard_all(const ShardFunction& f, const NDArrays& inputs,
                                   const std::vector<Placements>& results,
                                   std::source_location where = std::source_location::current());

}  // namespace sluice
