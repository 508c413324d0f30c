// Loader: batches of a table.
#pragma once

#include <cstdint>
#include <optional>
#include <source_location>
#include <vector>

#include "sluice/nn/data/feed.h"
#include "sluice/nn/data/map.h"
#include "sluice/nn/data/table.h"

namespace sluice::nn {

struct LoaderOptions {
  std::int64_t batch = 64;
  bool shuffle = false;
  std::uint64_t seed = 0;  ///< with the epoch's number it decides the order, the same on every machine
  int prefetch = 2;        ///< batches made ahead of the one in use; changes no value
  bool drop_last = false;  ///< leave out the last batch where it is not full
  Map x = {}, y = {};      ///< what is done to samples; without one they are copied as they are
  Device device = cpu(0);  ///< where x and y live
  /// The CPU device whose threads make batches, one batch each, for maps that take long: with
  /// EngineOptions{.threads = 8, .logical_cpus = 2} cpu(1) has four that nothing else may use. Empty: the engine's I/O
  /// lane, one thread.
  std::optional<Device> workers = {};
};

/// Loader train(data.train, {.batch = 128, .shuffle = true, .seed = 1, .x = nn::pixels(0.286, 0.353)});
class Loader : public Feed {
 public:
  /// Throws ArrayError for columns of two lengths or not on the host, and for options out of range; what a map's
  /// `result` throws.
  explicit Loader(const Table& table, LoaderOptions options = {},
                  std::source_location where = std::source_location::current());
  /// The numbers of the samples in the order of an epoch.
  std::vector<std::int64_t> order(std::uint64_t epoch) const;
  std::int64_t samples() const { return table_.x.shape()[0]; }

 private:
  struct Pass;
  std::shared_ptr<const Epoch> start(std::uint64_t epoch) const override;
  static std::int64_t batches_of(const Table& table, const LoaderOptions& options, std::source_location where);

  Table table_;
  std::shared_ptr<const LoaderOptions> options_;
  std::source_location where_;
};

}  // namespace sluice::nn
