// A kernel that holds its stream up.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <stdexcept>

#include "sluice/ndarray/push.h"

namespace sluice::testing {

/// Issues a kernel that is over once the word, in pinned memory, is not 0.
void hold_until(ArrayContext& c, const std::uint64_t* word);

/// While it lives, or until open(), the compute lane of x's device stands still behind an op that overwrites x (which
/// leaves its values as they were).
class HeldLane {
 public:
  explicit HeldLane(const NDArray& x) {
    void* block = nullptr;
    if (cudaHostAlloc(&block, sizeof(std::uint64_t), cudaHostAllocPortable) != cudaSuccess) throw std::bad_alloc();
    word_ = new (block) std::uint64_t(0);
    push_op([word = word_](ArrayContext& c) { hold_until(c, word); }, {}, {x}, {.name = "held"});
  }
  /// The op must be over: wait for x before.
  ~HeldLane() { cudaFreeHost(word_); }
  HeldLane(const HeldLane&) = delete;
  HeldLane& operator=(const HeldLane&) = delete;
  void open() { __atomic_store_n(word_, 1, __ATOMIC_RELEASE); }

 private:
  std::uint64_t* word_ = nullptr;
};

}  // namespace sluice::testing
