// Loader: batches of a table, also of one that is read as it goes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <vector>

#include "sluice/nn/data/feed.h"
#include "sluice/nn/data/map.h"
#include "sluice/nn/data/samples.h"
#include "sluice/nn/data/table.h"

namespace sluice::nn {

struct LoaderOptions {
  std::int64_t batch = 64;
  bool shuffle = false;
  std::uint64_t seed = 0;  ///< with the epoch's number it decides the order, the same on every machine
  int prefetch = 2;        ///< batches made ahead of the one in use; changes no value
  bool drop_last = false;  ///< leave out the last batch where it is not full
  Map x = {}, y = {};      ///< what is done to samples, with one key for both; without one they are copied
  Device device = cpu(0);  ///< where x and y live
  /// The CPU device whose threads make batches, one batch each, for maps that take long: with
  /// EngineOptions{.threads = 8, .logical_cpus = 2} cpu(1) has four that nothing else may use. Empty: the engine's I/O
  /// lane, one thread.
  std::optional<Device> workers = {};
  /// One for each sample, at least 0, in any unit: an epoch draws samples with these chances and puts them back, as
  /// many as there are samples, whether it shuffles or not; by (seed, epoch) and the place in the epoch. Maps' keys
  /// belong to the place then, so that a sample that is drawn twice is changed in two ways.
  std::vector<double> weights = {};
};

/// Loader train(data.train, {.batch = 128, .shuffle = true, .seed = 1, .x = nn::pixels(0.286, 0.353)});
class Loader : public Feed {
 public:
  /// Throws ArrayError for columns of two lengths or not on the host, and for options out of range; what a map's
  /// `result` throws.
  explicit Loader(const Table& table, LoaderOptions options = {},
                  std::source_location where = std::source_location::current());
  /// The same of samples that are read when a batch is made, into the map's input, on the lane that makes it.
  explicit Loader(const LazyTable& table, LoaderOptions options = {},
                  std::source_location where = std::source_location::current());
  /// The numbers of the samples in the order of an epoch; with weights some more than once.
  std::vector<std::int64_t> order(std::uint64_t epoch) const;
  std::int64_t samples() const { return table_.y.shape()[0]; }

 private:
  struct Pass;
  Loader(Table table, std::shared_ptr<const Samples> lazy, LoaderOptions&& options, std::source_location where);
  std::shared_ptr<const Epoch> start(std::uint64_t epoch) const override;
  Map::Result of_x() const;
  Map::Result of_y() const;
  static std::int64_t batches_of(const Table& table, const Samples* lazy, const LoaderOptions& options,
                                 std::source_location where);

  Table table_;                          ///< without x where it is read
  std::shared_ptr<const Samples> lazy_;  ///< what it is read from
  std::vector<double> cumulated_;        ///< weights up to each sample's, with it
  std::shared_ptr<const LoaderOptions> options_;
  std::source_location where_;
};

}  // namespace sluice::nn
