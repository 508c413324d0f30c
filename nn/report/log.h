// Log: numbers by step, as CSV and for TensorBoard.
//
//   nn::Log log("run.csv", {.tensorboard = "runs/one"});
//   log.add(step, {{"loss", loss}, {"lr", rate}});          // loss is an array: written when it is there
//   nn::save("run.safetensors", {{"net", net}, {"log", log}});
//
// In another process nn::load brings the position back, and rows of later steps are cut off.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "sluice/ndarray/nd_array.h"

namespace sluice::nn {

struct LogOptions {
  /// A folder for an event file, which TensorBoard shows as a run. Empty: none.
  std::string tensorboard{};
};

/// A number, or an array of one element of a floating or integer dtype or bool, also one on a mesh.
class LogValue {
 public:
  template <class T>
  requires(std::integral<T> || std::floating_point<T>) LogValue(T x)  // NOLINT: made by conversion
      : value_(static_cast<double>(x)) {}
  LogValue(NDArray x) : value_(std::move(x)) {}  // NOLINT: made by conversion
  const NDArray* array() const { return std::get_if<NDArray>(&value_); }
  double number() const { return std::get<double>(value_); }

 private:
  std::variant<double, NDArray> value_;
};

/// For one thread at a time. Ends before the engine of its arrays. These are read when they are there: no step waits.
class Log {
 public:
  using Values = std::vector<std::pair<std::string, LogValue>>;

  /// Nothing is opened before the first add(). Throws UsageError for an empty path.
  explicit Log(std::string path, LogOptions options = {});
  /// As flush(), but what goes wrong is not said.
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  /// A row of the CSV file: "step", then a column for each name, in the order in which names came first. A new name
  /// later adds a column, for which the whole file is written anew. Rows are written in the order of the calls, when
  /// all of their arrays are there: those of 50 ms together, and only with a later row, flush() or a file that saves
  /// the log, so that short steps do not pay for it. A value that is poisoned is "nan". An array of f32 or less has the
  /// digits of a float, others those of a double: read back, they are the same numbers, but for integers above 2^53.
  /// Does not wait.
  ///
  /// Where the file is there already, and no position was set, the old one becomes PATH.1 (or .2, ..); folders that are
  /// missing are made. Throws UsageError for a step below 0, and for a name that is empty, "step", has control
  /// characters or comes twice; ArrayError for an array of several elements; and FormatError or what the system says
  /// where a file could not be written, for this row or an earlier one.
  void add(std::int64_t step, const Values& values, std::source_location where = std::source_location::current());
  /// Waits until all rows are written. Throws FormatError where one could not be.
  void flush();

  // For nn::save and nn::load (saved_array.h). "step": that of the last add(), -1 before. Throws UsageError for other
  // counts, and for a log that was added to.
  std::map<std::string, std::int64_t> position() const;
  std::function<void()> output() const;
  void set_position(const std::map<std::string, std::int64_t>& position);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sluice::nn
