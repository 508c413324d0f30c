// The end of what CUDA's libraries have made, and the end of the process.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace sluice::cuda {

/// Held while handles are destroyed. When a process exits, the libraries that cuDNN has loaded by itself are taken
/// down, and a handle that is destroyed then crashes; an engine's last part may end on another thread than the one that
/// exits, a moment later than the engine. So the exit waits for an end that is under way, and after it nothing is
/// destroyed.
class Ending {
 public:
  Ending() : lock_(state().mutex) {}
  /// The process does not exit yet.
  bool allowed() const { return !state().exits; }
  /// What cannot be destroyed stays until the process is gone.
  void keep(std::shared_ptr<void> it) { state().kept.push_back(std::move(it)); }
  /// To be called where libraries may have been loaded: the exit comes here before it takes them down.
  static void before_what_is_loaded();

 private:
  struct State {
    std::mutex mutex;
    bool exits = false;
    std::vector<std::shared_ptr<void>> kept;
  };
  static State& state();
  std::lock_guard<std::mutex> lock_;
};

}  // namespace sluice::cuda
