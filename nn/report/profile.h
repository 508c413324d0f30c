// Profile: where the time of a step goes, by layer.
//
//   nn::Profile profile;
//   while (profile.step(), opt.steps() < steps) { ... }
//   std::printf("%s", profile.table().c_str());
//
//   layer                ms/step      %  ops/step    Mflop/step     MB/step      GB/s
//   up                     3.412   41.2       3.0       102.826       2.804       0.8
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/engine/engine.h"

namespace sluice::nn {

struct ProfileOptions {
  std::int64_t skip = 3;   ///< steps before: memory is taken and kernels are made in the first ones
  std::int64_t steps = 5;  ///< steps that are measured
};

/// What a layer did, in a step's mean: forward, backward, and where the layer's line changes parameters. What the
/// optimiser, the loss and the program itself do has the name "".
struct LayerProfile {
  std::string layer;
  double milliseconds =
      0;                  ///< of bodies, or of the device where it says when it worked; added over threads and devices
  double operations = 0;  ///< that ran
  double flops = 0, bytes = 0;  ///< of the calls (cost_of, operators/infer.h): the least that they ask for
};

/// Traces some steps of a run, and asks an interpreter for what their calls cost. For one thread, the one that trains.
/// The steps that are measured are slower, and the engine is empty before and after them; others are as without. A
/// recording that was on (SLUICE_TRACE) ends with them.
class Profile {
 public:
  /// Of the default engine. `on` false: does nothing, so that a program can have it as an option. Throws UsageError for
  /// options out of range.
  explicit Profile(bool on = true, ProfileOptions options = {});
  /// Ends a measurement that is under way.
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  /// A step begins; to be called once more behind the last. Outside of scopes that end before the next call, such as
  /// nn::Training.
  void step();
  /// Whether the steps were measured.
  bool done() const;
  /// By falling time. Empty before done().
  const std::vector<LayerProfile>& layers() const;
  /// Milliseconds of a step: the time of all that were measured, from the first push to the last operation, by their
  /// number.
  double step_milliseconds() const;
  /// The layers as text, one line each, those above one per cent; a line for the others, and one for the step. Empty
  /// where it is off; before done() a line that says so.
  std::string table() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::nn
