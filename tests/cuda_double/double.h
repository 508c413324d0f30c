// The inside of the double: its devices on the simulated ones, its handles, and what every call does first.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda.h"
#include "cuda_double/cuda_double.h"
#include "cuda_double/launch.h"
#include "cuda_runtime_api.h"
#include "sluice/resources/providers/detail/sim_stream.h"

namespace cuda_double {
class World;
}

/// A stream. What was destroyed stays in memory until the next reset, so that its use can be reported.
struct CUstream_st {
  static constexpr std::uint64_t kQueue = 1024, kStep = 64;

  int device = 0;
  unsigned flags = 0;
  int priority = 0;
  /// Null once destroyed. A thread that waits for the stream holds it.
  std::shared_ptr<sluice::detail::SimStream> sim;
  std::mutex mutex;  ///< for what follows, and for the order of commands
  std::uint64_t point = 0, issued = 0, issued_at_point = 0;
  std::array<std::uint64_t, kQueue / kStep> marks{};             ///< points, one each kStep commands
  std::deque<std::pair<std::uint64_t, std::uint64_t>> written;   ///< values by cuStreamWriteValue64, and their points
  std::string owed;                                              ///< a report that the next command's op is to name
  bool launched = false;                                         ///< a kernel, or a call of a library
  const std::uint64_t* word = nullptr;                           ///< where it wrote the last
  std::unordered_map<const CUstream_st*, std::uint64_t> behind;  ///< what the record was told
};

/// An event: the point of a stream.
struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  std::atomic<bool> destroyed{false};
  std::mutex mutex;  ///< for what follows
  std::shared_ptr<CUstream_st> stream;
  std::uint64_t point = 0;
  std::shared_ptr<std::atomic<std::int64_t>> time;  ///< nanoseconds, where it has times
};

struct CUmemPoolHandle_st {
  int device = 0;
};

namespace cuda_double {

using Caller = sluice::AccessObserver::Caller;
using sluice::detail::SimCore;
using sluice::detail::SimStream;
using StreamHandle = std::shared_ptr<CUstream_st>;

/// An answer of a call: thrown, so that checks can be functions.
struct Refused {
  cudaError_t error;
};

struct Range {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
};

/// Everything between two resets.
class World {
 public:
  explicit World(const Options& given);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  /// The one that is current; begun with the default options at the first call.
  static std::shared_ptr<World> current();
  static void replace(const Options& options);

  const Options options;
  const std::uint64_t number;  ///< no other world has it
  const std::shared_ptr<sluice::SimControl> control;
  const std::shared_ptr<SimCore> core;
  std::atomic<std::uint64_t> commands{0}, full_queues{0};
  std::atomic<bool> explicit_order{false};  ///< the program tells the record what its host knows

  // ---- reports
  void report(const Caller& caller, const std::string& what);
  void report(const std::string& what) { report(core->caller(), what); }
  /// Reports a mistake that was made in a stream. Engines make waits before the op's body begins; then the report comes
  /// with the stream's next command, which is the op's that waits.
  void report_in(CUstream_st& stream, const std::string& what);
  /// Reports and refuses.
  [[noreturn]] void refuse(cudaError_t error, const std::string& what);

  // ---- devices
  int devices() const { return static_cast<int>(core->devices.size()); }
  void check_device(int device, cudaError_t error = cudaErrorInvalidDevice) const;
  /// Throws what the device's earlier work left.
  void check_health(int device);
  bool is_lost(int device) const;
  std::array<std::atomic<bool>, 64 * 64> peers{};  ///< enabled, by device and peer
  std::array<std::atomic<bool>, 64 * 64>
      pool_access{};  ///< to the pool's memory, by the device that has it and its pool's
  std::array<std::atomic<bool>, 64> contexts{};
  std::atomic<std::uint64_t> direct_copies{0}, staged_copies{0};

  // ---- handles. Unknown and destroyed ones are refused.
  StreamHandle stream(cudaStream_t handle, const char* call);
  /// Null where it is none.
  StreamHandle find(cudaStream_t handle) const;
  std::shared_ptr<CUevent_st> event(cudaEvent_t handle, const char* call, CUstream_st* in = nullptr);
  StreamHandle make_stream(int device, unsigned flags, int priority);
  void destroy(cudaStream_t handle);
  cudaEvent_t make_event(int device, unsigned flags);
  void destroy(cudaEvent_t handle);
  CUmemPoolHandle_st& pool(int device) { return pools_[static_cast<std::size_t>(device)]; }
  int device_of(cudaMemPool_t pool) const;
  Live live() const;
  /// Whether some stream of the device was given a kernel. Until then is the start.
  bool is_started(int device) const;
  /// A handle of a library is made (1), or destroyed (-1).
  void count_handle(int change) { handles_.fetch_add(static_cast<std::size_t>(change)); }
  /// Enqueues a kernel.
  void issue_kernel(CUstream_st& stream, std::function<void()> run, std::span<const sluice::MemoryUse> uses) {
    issue(stream, std::move(run), uses);
    std::lock_guard lock(stream.mutex);
    stream.launched = true;
  }
  /// The most dynamic shared memory that a kernel was allowed to have (cudaFuncSetAttribute), in bytes.
  std::size_t dynamic_shared(const void* kernel) const;
  void allow_dynamic_shared(const void* kernel, std::size_t bytes);

  // ---- memory
  /// The device whose memory it is, or -1.
  int owner(const void* address) const { return core->owner(address); }
  void* allocate(CUstream_st* stream, int device, std::size_t bytes);
  void free(CUstream_st* stream, int device, void* block);
  /// Memory that was given back in the order of this stream waits for no more than the pool's trim.
  void has_synchronized(const CUstream_st& stream);
  void trim(int device);
  void* allocate_pinned(std::size_t bytes);
  bool free_pinned(void* block);
  /// The pinned block, or the live block of a device, with the address; empty where there is none.
  Range pinned_block(const void* address) const;
  Range device_block(const void* address) const;
  /// Copies to pinned memory that were issued and have not run yet.
  void add_arriving(const Range& range);
  void remove_arriving(const Range& range);
  bool is_arriving(const Range& range) const;

  // ---- commands
  /// Enqueues a function of the host. Waits while the queue is full.
  void issue(CUstream_st& stream, std::function<void()> run, std::span<const sluice::MemoryUse> uses);
  /// Marks a point after all that was issued; its number.
  std::uint64_t record(CUstream_st& stream);
  /// Makes later work of the stream wait.
  void wait(CUstream_st& stream, CUstream_st& other, std::uint64_t point);
  /// Whether the point is passed. Throws what the device answers where it never will be.
  bool is_passed(CUstream_st& stream, std::uint64_t point);
  void await(CUstream_st& stream, std::uint64_t point);
  /// The calling thread knows from here on that the point is passed; `all`: every thread, for it waited for the stream.
  void host_knows(const StreamHandle& stream, std::uint64_t point, bool all = false);

  // ---- faults
  /// Counts a call of the kind, and throws where it is to fail.
  void count(Fault kind);
  struct Plan {
    std::uint64_t calls = 0, failures = 0, every = 0, since = 0;
    cudaError_t every_error = cudaSuccess;
    std::map<std::uint64_t, cudaError_t> once;
  };
  struct Late {
    std::uint64_t left = 0;  ///< commands until it happens
    cudaError_t error = cudaSuccess;
    bool sticky = false;
    bool silent = false;
  };
  mutable std::mutex faults_mutex;
  std::array<Plan, kFaults> plans;
  std::array<std::vector<Late>, 64> late;              ///< by device, not come yet
  std::array<std::atomic<cudaError_t>, 64> pending{};  ///< by device: for the next call
  std::array<std::atomic<cudaError_t>, 64> sticky{};
  std::atomic<int> planned{0};
  void happen(int device, const Late& what);
  /// Called in a stream's order after each command.
  void end_command(int device);

 private:
  using Known = std::vector<std::pair<StreamHandle, std::uint64_t>>;
  Known known_here();
  std::size_t take_returned(const CUstream_st& stream, std::size_t bytes);
  void tell_order(CUstream_st& stream);
  /// With the stream's mutex: marks a point for those who wait for room in its queue.
  static void mark(CUstream_st& stream);

  mutable std::mutex mutex_;
  Known synchronized_;  ///< streams, and points that some thread has waited for
  std::unordered_map<cudaStream_t, StreamHandle> streams_;
  std::unordered_map<cudaEvent_t, std::shared_ptr<CUevent_st>> events_;
  std::map<const std::byte*, std::size_t, std::less<>> pinned_;
  std::vector<Range> arriving_;
  std::unordered_map<const void*, std::size_t> dynamic_shared_;
  std::vector<CUmemPoolHandle_st> pools_;
  std::atomic<std::size_t> blocks_{0};
  std::atomic<std::size_t> handles_{0};
  /// Memory that was given back in the order of a stream, and is that stream's alone until the host has waited for the
  /// stream and trimmed the pool.
  struct Returned {
    const CUstream_st* stream;  ///< null: the host has waited for it
    int device;
    std::size_t bytes;
  };
  std::vector<Returned> returned_;
};

// ---- the calling thread
struct ThreadState {
  std::uint64_t world = 0;  ///< whose it is
  int device = 0;
  cudaError_t last = cudaSuccess;
  std::vector<std::pair<StreamHandle, std::uint64_t>> known;  ///< points that it has waited for
};
/// A thread that comes for the first time has any device: a program that relies on one is wrong on a card.
ThreadState& thread_state(World& world);

/// Whether the calling thread has a context, which the runtime gives it with a call that makes one. It has one for
/// good, and does not lose it by a reset.
bool& has_context_here();

/// What every call does: counts it, answers for a missing driver and for planted failures, turns what is thrown into an
/// error, keeps that as the thread's last, and makes the context of the thread's device.
template <class F>
cudaError_t call(Fault kind, F f) noexcept;
/// The same for a call that makes no context.
template <class F>
cudaError_t call_without_context(Fault kind, F f) noexcept;
/// The kind of calls that give something back: no planted failure.
inline constexpr Fault kReleases{255};
cudaError_t answer_exception(World& world) noexcept;

template <class F>
cudaError_t call(Fault kind, F f) noexcept {
  return call_without_context(kind, [&](World& world, ThreadState& thread) {
    f(world, thread);
    world.contexts[static_cast<std::size_t>(thread.device)] = true;
    has_context_here() = true;
  });
}

template <class F>
cudaError_t call_without_context(Fault kind, F f) noexcept {
  const std::shared_ptr<World> world = World::current();
  if (world->options.driver != cudaSuccess) return thread_state(*world).last = world->options.driver;
  try {
    if (kind != kReleases) world->count(kind);
    f(*world, thread_state(*world));
    return cudaSuccess;
  } catch (...) {
    return thread_state(*world).last = answer_exception(*world);
  }
}

}  // namespace cuda_double
