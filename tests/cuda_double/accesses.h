// The check of each load and store of a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "shared_races.h"

namespace cuda_double {

class Running;
struct Modules;

/// What a launch may touch. It is called by the instrumentation that the compiler put into kernels
/// (instrumentation.cc), and by atomic operations.
class Accesses {
 public:
  explicit Accesses(Running& running);

  enum class Kind : std::uint8_t { read, write, atomic };
  void touch(const void* address, std::size_t bytes, Kind kind, bool aligned);

  void begin_block() { races_.begin_block(); }
  void meet_block() { races_.meet_block(); }
  void meet_warp(unsigned warp) { races_.meet_warp(warp); }
  /// The first frame of the thread that goes on.
  void set_stack(const void* frame);

 private:
  struct Allowed {
    std::uintptr_t begin, end;  ///< as kernels see them
    bool writes;
  };
  void touch_elsewhere(std::uintptr_t at, std::size_t bytes, Kind kind);
  void report_out_of_bounds(std::size_t bytes, Kind kind, const void* handle, int device);
  std::string in_words(std::size_t bytes, Kind kind) const;

  Running& running_;
  std::vector<Allowed> allowed_;
  std::size_t last_ = 0;  ///< where the last access was
  std::uintptr_t stack_begin_ = 0, stack_end_ = 0;
  std::uintptr_t arguments_begin_ = 0, arguments_end_ = 0;
  const Modules& modules_;
  SharedRaces& races_;
};

}  // namespace cuda_double
