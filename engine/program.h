// Programs: a stretch of pushes that is captured once, with its dependencies resolved, and replayed many times at a
// small part of the cost.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace sluice {

class Engine;

namespace detail {
class CoreBase;
struct ProgramBase {
  virtual ~ProgramBase() = default;
  virtual std::size_t size() const = 0;
};
}  // namespace detail

/// The result of Engine::capture. A handle: copies name the same program. It lives until the last handle and the last
/// replay in flight are gone; its closures are destroyed then, on the thread that releases it last. Thread-safe like a
/// shared_ptr.
class Program {
 public:
  Program() = default;
  /// Captured operations.
  std::size_t size() const { return program_ ? program_->size() : 0; }
  explicit operator bool() const { return program_ != nullptr; }

 public:  // for the engine
  explicit Program(std::shared_ptr<detail::ProgramBase> program) : program_(std::move(program)) {}
  const std::shared_ptr<detail::ProgramBase>& get() const { return program_; }

 private:
  std::shared_ptr<detail::ProgramBase> program_;
};

namespace detail {

/// The calling thread's pushes are recorded while this lives.
class Capture {
 public:
  Capture(CoreBase& core, std::shared_ptr<ProgramBase> program);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  Program finish();

 private:
  CoreBase& core_;
  std::shared_ptr<ProgramBase> program_;
};

}  // namespace detail
}  // namespace sluice
