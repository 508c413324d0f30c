// Linear layers whose weights are sharded over devices (tensor parallelism, as in Shoeybi et al., "Megatron-LM", 2019):
// a column layer whose output stays sharded, followed by a row layer that takes it sharded and all-reduces.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "sluice/nn/module.h"
#include "sluice/parallel/collectives.h"
#include "sluice/resources/random.h"

namespace sluice::parallel {

struct ColumnLinearOptions {
  bool relu = false;  ///< negative results become 0 in the same pass
};

/// x . transpose(W) + b, with the outputs split over the ranks: rank r holds the r-th block of rows of W (out, in) and
/// of b, and computes these columns of the result. The gradients of the input are summed over the ranks.
class ColumnLinear {
 public:
  /// Draws the weights that Linear(in, out) would draw from the stream, and splits them. Throws UsageError if the
  /// number of ranks does not divide `out`.
  ColumnLinear(std::int64_t in, std::int64_t out, Communicator group, RandomStream& stream,
               const ColumnLinearOptions& options = {}, std::source_location where = std::source_location::current());
  /// x (n, in) on any device; result[r] is (n, out / ranks) on rank r's device. Pushes; does not wait.
  std::vector<NDArray> forward(const NDArray& x, std::source_location where = std::source_location::current()) const;
  /// Appends "weight.r" and "bias.r" for each rank r.
  void collect(const std::string& prefix, std::vector<NamedParameter>& out);

  std::vector<NDArray> weights;  ///< of each rank: (out / ranks, in)
  std::vector<NDArray> biases;   ///< of each rank: (out / ranks,)

 private:
  Communicator group_;
  bool relu_;
};

/// x . transpose(W) + b, with the inputs split over the ranks: rank r holds the r-th block of columns of W (out, in)
/// and takes these columns of x. An all-reduce sums the products.
class RowLinear {
 public:
  /// Draws as ColumnLinear does. Throws UsageError if the number of ranks does not divide `in`.
  RowLinear(std::int64_t in, std::int64_t out, Communicator group, RandomStream& stream,
            std::source_location where = std::source_location::current());
  /// x[r] (n, in / ranks) on rank r's device; the result (n, out) is on the first rank's. Pushes; does not wait. Throws
  /// ArrayError for another number of arrays.
  NDArray forward(const std::vector<NDArray>& x, std::source_location where = std::source_location::current()) const;
  /// Appends "weight.r" for each rank r, and "bias", which is whole and on the first rank's device.
  void collect(const std::string& prefix, std::vector<NamedParameter>& out);

  std::vector<NDArray> weights;  ///< of each rank: (out, in / ranks)
  NDArray bias;                  ///< (out,)

 private:
  Communicator group_;
};

/// Linear(in, hidden), relu, Linear(hidden, out), sharded: columns, then rows, with one all-reduce. Input and output
/// are whole, on the first rank's device. Equal to the whole layers up to the order of the sums over `hidden`.
class ShardedMlp : public Module {
 public:
  ShardedMlp(std::int64_t in, std::int64_t hidden, std::int64_t out, const Communicator& group, RandomStream& stream,
             std::source_location where = std::source_location::current());
  NDArray forward(const NDArray& x) override;
  void collect(const std::string& prefix, std::vector<NamedParameter>& out) override;
  /// Does nothing for the first rank's device, because the shards stay where they are. Throws UsageError for another.
  void to(Device device) override;

  ColumnLinear first;
  RowLinear second;

 private:
  Device home_;
  std::source_location where_;
};

}  // namespace sluice::parallel
