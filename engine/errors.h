// Errors as data: what a failed operation leaves behind, and the exceptions that carry it to a waiter.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

#include "sluice/engine/device.h"

namespace sluice {

enum class ErrorKind : std::uint8_t {
  failed,     ///< the body threw, or its Completion failed
  cancelled,  ///< a ticket or a scope was cancelled before the op began
  abandoned,  ///< the op's Completion was dropped without an answer
  stopped,    ///< the engine stopped with cancellation
  deadlock,   ///< a wait that could never end
};

/// The root of an error: the one operation that failed, whatever later ops it poisoned. Immutable and shared.
struct ErrorRoot {
  ErrorKind kind = ErrorKind::failed;
  std::uint64_t sequence = 0;  ///< order in which roots came to be, in one engine
  std::string operation;       ///< the op's name
  std::string file;            ///< push site
  std::uint32_t line = 0;
  std::string layer;         ///< that the op was pushed in (LayerScope); empty: in none
  Device device{};           ///< of the op
  std::string message;       ///< what() of the exception, or another description
  std::exception_ptr cause;  ///< the exception itself, where there was one

  /// "[resize] main.cc:41: no such file": one line. With a layer: "[resize] main.cc:41 in encoder.2: no such file". On
  /// another device than cpu(0): "[conv2d] net.cc:41 in encoder.2 on gpu(0): cudnnConvolutionForward: ...". A device
  /// that has no memory left says in further lines what holds it.
  std::string to_string() const;
};
using ErrorRef = std::shared_ptr<const ErrorRoot>;

/// Thrown by waits. what() is the root's line.
class Error : public std::runtime_error {
 public:
  explicit Error(ErrorRef root);
  const ErrorRoot& root() const { return *root_; }
  const ErrorRef& root_ref() const { return root_; }

 private:
  ErrorRef root_;
};

/// Thrown by wait_all: every root once, in the order in which they came to be. what() has a line for each.
class AggregateError : public Error {
 public:
  explicit AggregateError(std::vector<ErrorRef> roots);
  const std::vector<ErrorRef>& roots() const { return roots_; }

 private:
  std::vector<ErrorRef> roots_;
};

/// Thrown at the call for a wrong use: a null closure, an unknown device, a variable of another engine.
class UsageError : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// Thrown by a push into an engine that was stopped.
class StoppedError : public UsageError {
  using UsageError::UsageError;
};

/// Thrown in a forked child by every call of an engine that its parent made: the child has a copy of the engine's
/// memory, and none of its threads.
class ForkedError : public StoppedError {
  using StoppedError::StoppedError;
};

/// Thrown by a push when the hard cap is reached.
class CapError : public UsageError {
  using UsageError::UsageError;
};

/// The file's name without its folders, and the line: "main.cc:41".
std::string to_string(const std::source_location& where);

}  // namespace sluice
