// What a forked child finds of the process: no lock of the library's held, and nothing half made.
//
// A lock that is one for the process is listed in ProcessLock, or, where it is a part of something, named by an
// OverFork. fork() takes all of them and gives them back in the parent and in the child. Objects that are made at their
// first use are made by first_use(), and a fork waits until none is in the making: the compiler's guard of a
// function-local static would stay as it is in a child, which would wait at it for ever.
//
// No order of locks follows from this: fork() never waits for a lock while it holds another one. What it cannot have
// within ten seconds it goes without.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <type_traits>

namespace sluice::detail {

/// The locks of the process, by what each guards. Beside them there are those of the memory pools
/// (resources/memory_pool.cc), and OpenBLAS's (operators/backends/cpu/openblas.cc), which has handlers of its own.
enum class ProcessLock : std::size_t {
  engines,       ///< the list of engines that an exit waits for
  cuda_library,  ///< who is told of the CUDA backend
  operators,     ///< the registry's rows
  kernels,       ///< the rows' lists of kernels, for those who add some
  called_names,  ///< rows by the functions that programs call
  imports,       ///< the list of all imports
  regions,       ///< which imports a variable orders; inside of the former
  snapshots,     ///< the snapshots of memory that arrays share
  convolutions,  ///< plans of oneDNN
};
inline constexpr std::size_t kProcessLocks = 9;
inline constinit std::array<std::mutex, kProcessLocks> process_locks{};
inline std::mutex& process_lock(ProcessLock which) { return process_locks[static_cast<std::size_t>(which)]; }

/// What else a fork takes, or does in the child. Each function may be null. Made of constants, and never destroyed.
struct OverFork {
  bool (*take)() = nullptr;  ///< false: somebody has it; waits for nobody
  void (*give_back)() = nullptr;
  void (*in_child)() = nullptr;  ///< before anything is given back there; takes no memory
  OverFork* next = nullptr;
  bool taken = false;
};
/// From now on. Called once, in a first use.
void over_fork(OverFork& what) noexcept;

/// Another number in each forked child, in steps of kForkStep. A lock that has it in its word knows in a child that it
/// was taken in the parent, by a thread that is not there. Visible: a plugin has the process's, however it is compiled.
inline constexpr std::uint32_t kForkStep = 4;
[[gnu::visibility("default")]] inline constinit std::atomic<std::uint32_t> fork_generation{0};
/// Throws ForkedError.
[[noreturn]] void refuse_lock_of_parent();

/// A thread in a first use. It may be in several, one in another.
class InFirstUse {
 public:
  InFirstUse() noexcept;
  ~InFirstUse();
  InFirstUse(const InFirstUse&) = delete;
  InFirstUse& operator=(const InFirstUse&) = delete;
};

/// The object that make() returns a pointer to, called once for each place that this is written at. Where it throws,
/// the next use tries again. The object lives as long as the process, or as make() has it.
template <class Make>
auto& first_use(const Make& make) {
  using Made = std::remove_pointer_t<decltype(make())>;
  static constinit std::atomic<Made*> known{nullptr};
  if (Made* const seen = known.load(std::memory_order_acquire)) [[likely]]
    return *seen;
  const InFirstUse in_use;
  static Made* const made = make();
  known.store(made, std::memory_order_release);
  return *made;
}

/// Calls make() at the first use. Others wait until that is over.
template <class Make>
void once_in_process(const Make& make) {
  static constinit bool done = false;
  first_use([&make] {
    make();
    return &done;
  });
}

}  // namespace sluice::detail
