// Windows: batches of a sequence of tokens, for language models.
#pragma once

#include <cstdint>
#include <source_location>
#include <vector>

#include "sluice/nn/data/feed.h"

namespace sluice::nn {

struct WindowOptions {
  std::int64_t batch = 32, length = 64;
  bool shuffle = false;  ///< windows in an order that (seed, epoch) decides, cut at an offset that they decide too
  bool follow = false;   ///< each row of a batch goes on where the same row of the batch before ended
  std::uint64_t seed = 0;
  int prefetch = 2;
  Device device = cpu(0);
};

/// x is (batch, length), and y, of the same shape, the tokens that follow each of x. Both are of the tokens' dtype.
///
/// Without `follow` the tokens are cut into windows that do not overlap; the last batch of an epoch may be smaller.
/// With it they are cut into `batch` sequences of one length, which the rows go through; `first` says where an epoch
/// begins, and a recurrent state begins anew. What is left over at the end, less than a window or a batch of tokens, is
/// not used.
class Windows : public Feed {
 public:
  /// `tokens`: (n,), of u8, i32 or i64, on the host. Throws ArrayError for others, for too few for one window, and for
  /// options out of range.
  explicit Windows(const NDArray& tokens, WindowOptions options = {},
                   std::source_location where = std::source_location::current());
  /// Where the rows of a batch of an epoch begin.
  std::vector<std::int64_t> begins(std::uint64_t epoch, std::int64_t batch) const;

 private:
  struct Pass;
  std::vector<std::vector<std::int64_t>> all_begins(std::uint64_t epoch) const;
  std::shared_ptr<const Epoch> start(std::uint64_t epoch) const override;
  static std::int64_t batches_of(const NDArray& tokens, const WindowOptions& options, std::source_location where);

  NDArray tokens_;
  WindowOptions options_;
};

}  // namespace sluice::nn
