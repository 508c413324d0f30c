// Checkpoints: the files that a long run goes on from, written while it runs.
//
//   const nn::Saved all{{"net", net}, {"opt", opt}, {"data", train}, {"stream", stream}, {"log", log}};
//   nn::Checkpoints checkpoints("out", all, {.every = 500, .keep = 2});
//   checkpoints.resume();                        // where a run was cut
//   while (opt.steps() < steps) {
//     ...
//     if (validated && patience.better(loss)) checkpoints.best();
//     checkpoints.step(opt.steps());             // each 500th: out/step-00000500.safetensors, in the background
//   }
//   checkpoints.save(opt.steps());
#pragma once

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>

#include "sluice/nn/files/save.h"

namespace sluice::nn {

struct CheckpointOptions {
  std::int64_t every = 1000;  ///< steps from one file to the next
  std::int64_t keep = 2;      ///< newest files that stay; 0: all
};

/// Files "step-00001000.safetensors" of a folder, and "best.safetensors", each as nn::save writes it: whole or not at
/// all. The items are referred to, as in nn::save. For one thread at a time; must end before its engine.
///
/// step() and best() note everything as it is at this instant and do not wait: arrays are copied to host memory behind
/// their operations, as many bytes as the file has, and a thread writes them at a pace that spares the steps; who waits
/// for the file hurries it, but for wait_all(). One is written at a time: the next call that writes waits for it. What
/// went wrong, such as a full disk or a poisoned array, is thrown by the first call after that, and no file is there. A
/// process that is killed leaves the files that were whole; one that calls exit() writes the file to its end first if
/// it belongs to the default engine, for as long as it waits for other operations (engine/engine.h).
class Checkpoints {
 public:
  /// Makes the folder at the first file. Throws UsageError for an empty path, and options out of range.
  Checkpoints(std::string folder, Saved items, CheckpointOptions options = {});
  /// Waits for the last file; what goes wrong is not said (wait() says it).
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  /// Loads the newest file of a step into the items, as nn::load does, and returns its path; an empty one where there
  /// is none. A file that was cut or changed by something else, so that it has no sound header or too few bytes, is
  /// passed over; where all are, it throws the newest one's FormatError, as it does for one that it may not read.
  /// Blocks.
  std::string resume(std::source_location where = std::source_location::current());
  /// So many steps are made: writes a file where their number is a multiple of `every` and its file was not just
  /// written or loaded. Files of earlier steps go when this one is whole, but for the newest `keep`. Throws UsageError
  /// for a step below 0, where the folder has a file of a later step, which is another run's (resume() takes it up),
  /// and in a forked child; and what went wrong with the file before.
  void step(std::int64_t step, std::source_location where = std::source_location::current());
  /// The same whatever `every` says, and blocks until the file is on the disk.
  void save(std::int64_t step, std::source_location where = std::source_location::current());
  /// Writes best.safetensors, in the background; nn::Patience says when. Before step(): what is saved has the number of
  /// the best with it then. Throws as step() does.
  void best(std::source_location where = std::source_location::current());
  /// Blocks until what was begun is on the disk. Throws what went wrong.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::nn
