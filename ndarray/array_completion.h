// ArrayCompletion: the answer of an operation on arrays that completes later than its body returns.
#pragma once

#include <exception>
#include <memory>

#include "sluice/engine/errors.h"
#include "sluice/ndarray/tensor_view.h"

namespace sluice {

namespace detail {
struct PendingCall;
}

/// What a body of push_op gets that takes one: the operation is over when this is answered, and what it works on lives
/// until then. For work that others do: a message, a file, a thread of another library. Move-only. Any thread may
/// answer, in the body or after it; one that is destroyed without an answer fails the operation as abandoned. An
/// exception of the body is an answer too, unless there was one before.
///
/// On a device with streams the body runs on the host when the operation is issued, as one that issues work
/// (ArrayContext::stream). What follows on the same stream is ordered behind that work and not behind the answer. So
/// there an answer says that the work went well, or that it did not, and nothing may be written on its account. The
/// windows are for the body alone there: packed copies go to the next operation of the stream.
class ArrayCompletion {
 public:
  ArrayCompletion() = default;
  ArrayCompletion(ArrayCompletion&&) noexcept = default;
  ArrayCompletion& operator=(ArrayCompletion&& other) noexcept;
  ~ArrayCompletion();

  /// The outputs are written. Where they were packed they are unpacked first, on the operation's lane; where the engine
  /// takes no operation any more, here. Does nothing on one that is empty or answered. Waits for nothing; in serial
  /// mode it may run what stands behind the operation, as each call into the engine may.
  void done() noexcept;
  /// The operation failed with this exception; null: for an unknown reason. `wrote_nothing`: the outputs have their old
  /// values, so that `recover` can clear the poison, unless something else has failed too.
  void fail(std::exception_ptr error, bool wrote_nothing = false) noexcept;
  /// The operation failed with the root of another one, which stays the root.
  void pass_on(const ErrorRef& root, bool wrote_nothing = false) noexcept;
  explicit operator bool() const { return call_ != nullptr; }

  /// The windows that the body saw, in the order of the push. Not for one that is empty or answered.
  int inputs() const;
  int outputs() const;
  const TensorView& input(int i) const;
  const TensorView& output(int i = 0) const;

 public:  // for array operations
  explicit ArrayCompletion(std::shared_ptr<detail::PendingCall> call) : call_(std::move(call)) {}

 private:
  std::shared_ptr<detail::PendingCall> call_;
};

}  // namespace sluice
