// Interrupt: a run that is told to end ends after its step.
//
//   nn::Interrupt interrupt;
//   while (!interrupt && opt.steps() < steps) { ... }
//   checkpoints.save(opt.steps());
//   return interrupt.status();
#pragma once

namespace sluice::nn {

/// While it lives, the first SIGINT or SIGTERM sets it and writes a line to stderr, and a second one of the same kind
/// ends the process, as the system does by default. A signal that the process ignores (SIGINT where a shell started it
/// in the background) stays ignored. Nothing else in the library handles signals. What the process did on these signals
/// before is put back at the end. There may be one in a process: a second throws UsageError. Its functions may be
/// called on any thread.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// Whether a signal came.
  explicit operator bool() const { return signal() != 0; }
  /// SIGINT or SIGTERM: the first that came; 0: none.
  int signal() const;
  /// What the process should end with: 0, or 128 and the signal's number, as a shell says it.
  int status() const { return signal() ? 128 + signal() : 0; }
};

}  // namespace sluice::nn
