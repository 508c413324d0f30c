// A device's queue under the explorer, in place of the simulated stream, whose threads the explorer does not know.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "sluice/engine/detail/explore.h"
#include "sluice/engine/stream.h"

namespace sluice::mutants {

class ExploredStream final : public Stream {
 public:
  ExploredStream();
  void launch(std::function<void()> kernel);
  StreamEvent record() override;
  void wait(const StreamEvent& event) override;
  void notify(std::function<void(std::exception_ptr)> callback) override;
  std::exception_ptr synchronize() noexcept override;

 private:
  struct State;
  void issue(std::function<void()> command);
  std::shared_ptr<State> state_;
};

}  // namespace sluice::mutants
