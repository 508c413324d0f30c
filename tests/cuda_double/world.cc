// The world of the double: handles, points and commands.
#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "cuda_double/order.h"
#include "double.h"
#include "names.h"
#include "sluice/engine/errors.h"
#include "sluice/resources/testing/order_record.h"

namespace cuda_double {
namespace {

std::mutex current_mutex;
std::shared_ptr<World>& current_world() {
  static auto* const world = new std::shared_ptr<World>;  // outlives the threads that end after main
  return *world;
}

sluice::SimOptions sim_options(const Options& options, const std::shared_ptr<sluice::SimControl>& control) {
  sluice::SimOptions sim;
  sim.delay = options.delay;
  sim.random_delay = options.random_delay;
  sim.seed = options.seed;
  sim.poison = options.poison;
  if (options.order_record) sim.observer = sluice::order_record;
  sim.pinned_only = true;
  sim.limits.memory = options.memory;
  sim.limits.alignment = 256;
  sim.control = control;
  return sim;
}

std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const char* const value = std::getenv(variable);
  return value && *value ? std::strtoull(value, nullptr, 10) : otherwise;
}

}  // namespace

Options default_options() {
  Options options;
  options.devices = static_cast<int>(std::min<std::uint64_t>(number("SLUICE_CUDA_DOUBLE_DEVICES", 1), 64));
  options.seed = number("SLUICE_CUDA_DOUBLE_SEED", options.seed);
  return options;
}

World::World(const Options& given)
    : options(given),
      number([] {
        static std::atomic<std::uint64_t> made{0};
        return made.fetch_add(1) + 1;
      }()),
      control(std::make_shared<sluice::SimControl>()),
      core(std::make_shared<SimCore>(given.devices, sim_options(given, control))) {
  control->print_reports(given.print_reports);
  control->attach(core);
  for (int i = 0; i < given.devices; ++i) pools_.push_back({i});
}

World::~World() {
  for (int i = 0; i < devices(); ++i) {
    if (control->condition(i) != sluice::SimControl::Condition::alive) control->lose(i);  // what it had is dropped
  }
  control->release();
  for (auto& [handle, stream] : streams_) stream->sim.reset();
  // What a program leaves on a card that is lost goes with the card.
  for (const auto& [block, bytes] : pinned_) core->free_pinned(const_cast<std::byte*>(block));
}

std::shared_ptr<World> World::current() {
  std::lock_guard lock(current_mutex);
  auto& world = current_world();
  if (!world) world = std::make_shared<World>(default_options());
  return world;
}

void World::replace(const Options& options) {
  auto next = std::make_shared<World>(options);
  std::lock_guard lock(current_mutex);
  current_world().swap(next);
}

void World::report(const Caller& caller, const std::string& what) {
  const sluice::OpLabel& label = caller.label;
  control->report(label.name ? "[" + std::string(label.name) + "] " + sluice::to_string(label.where) + ": " + what
                             : what);
}

void World::report_in(CUstream_st& stream, const std::string& what) {
  if (core->caller().label.name) return report(what);
  std::lock_guard lock(stream.mutex);
  stream.owed = what;
}

void World::refuse(cudaError_t error, const std::string& what) {
  report(what);
  throw Refused{error};
}

void World::check_device(int device, cudaError_t error) const {
  if (device < 0 || device >= devices()) throw Refused{error};
}

bool World::is_lost(int device) const { return control->condition(device) == sluice::SimControl::Condition::lost; }

// ---- handles

StreamHandle World::find(cudaStream_t handle) const {
  std::lock_guard lock(mutex_);
  const auto at = streams_.find(handle);
  return at == streams_.end() ? nullptr : at->second;
}

StreamHandle World::stream(cudaStream_t handle, const char* call) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    refuse(cudaErrorInvalidResourceHandle, std::string(call) + " on the null stream, which waits for all others");
  }
  const StreamHandle found = find(handle);
  if (!found) refuse(cudaErrorInvalidResourceHandle, std::string(call) + " on what is no stream");
  {
    std::lock_guard lock(found->mutex);
    if (!found->sim) refuse(cudaErrorInvalidResourceHandle, std::string(call) + " on a stream that is destroyed");
  }
  check_health(found->device);
  return found;
}

std::shared_ptr<CUevent_st> World::event(cudaEvent_t handle, const char* call, CUstream_st* in) {
  std::shared_ptr<CUevent_st> found;
  {
    std::lock_guard lock(mutex_);
    if (const auto at = events_.find(handle); at != events_.end()) found = at->second;
  }
  if (!found || found->destroyed) {
    const std::string what = std::string(call) + " of " + (found ? "an event that is destroyed" : "what is no event");
    in ? report_in(*in, what) : report(what);
    throw Refused{cudaErrorInvalidResourceHandle};
  }
  return found;
}

StreamHandle World::make_stream(int device, unsigned flags, int priority) {
  auto made = std::make_shared<CUstream_st>();
  made->device = device;
  made->flags = flags;
  made->priority = priority;
  made->sim = std::make_shared<SimStream>(core, device, sluice::LaneKind::compute);
  std::lock_guard lock(mutex_);
  streams_[made.get()] = made;
  return made;
}

void World::destroy(cudaStream_t handle) {
  const StreamHandle found = stream(handle, "cudaStreamDestroy");
  std::shared_ptr<SimStream> gone;
  bool busy;
  {
    std::lock_guard lock(found->mutex);
    busy = found->issued > found->issued_at_point || found->sim->reached() < found->point;
    if (!found->owed.empty()) report(std::exchange(found->owed, {}));
    gone = std::move(found->sim);
    found->word = nullptr;  // its memory may go now
  }
  has_synchronized(*found);
  if (busy && !control->broken()) report("a stream is destroyed while it has work in flight");
}

cudaEvent_t World::make_event(int device, unsigned flags) {
  auto made = std::make_shared<CUevent_st>();
  made->device = device;
  made->flags = flags;
  std::lock_guard lock(mutex_);
  events_[made.get()] = made;
  return made.get();
}

void World::destroy(cudaEvent_t handle) { event(handle, "cudaEventDestroy")->destroyed = true; }

int World::device_of(cudaMemPool_t pool) const {
  for (const CUmemPoolHandle_st& each : pools_) {
    if (&each == pool) return each.device;
  }
  throw Refused{cudaErrorInvalidValue};
}

bool World::is_started(int device) const {
  std::lock_guard lock(mutex_);
  return std::any_of(streams_.begin(), streams_.end(), [&](const auto& each) {
    const StreamHandle& stream = each.second;
    std::lock_guard inner(stream->mutex);
    return stream->device == device && stream->sim && stream->launched;
  });
}

std::size_t World::dynamic_shared(const void* kernel) const {
  std::lock_guard lock(mutex_);
  const auto at = dynamic_shared_.find(kernel);
  return at == dynamic_shared_.end() ? std::size_t{48} << 10 : at->second;
}

void World::allow_dynamic_shared(const void* kernel, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  dynamic_shared_[kernel] = bytes;
}

Live World::live() const {
  Live live;
  std::lock_guard lock(mutex_);
  live.blocks = blocks_.load();
  live.pinned = pinned_.size();
  for (const auto& [handle, stream] : streams_) {
    std::lock_guard inner(stream->mutex);
    live.streams += stream->sim != nullptr;
  }
  for (const auto& [handle, event] : events_) live.events += !event->destroyed;
  live.handles = handles_.load();
  return live;
}

// ---- commands

void World::issue(CUstream_st& stream, std::function<void()> run, std::span<const sluice::MemoryUse> uses) {
  tell_order(stream);
  std::uint64_t oldest = 0;
  std::unique_lock lock(stream.mutex);
  if (!stream.owed.empty()) report(std::exchange(stream.owed, {}));
  if (!stream.sim) refuse(cudaErrorInvalidResourceHandle, "work for a stream that is destroyed");
  if (stream.issued >= CUstream_st::kQueue && stream.issued % CUstream_st::kStep == 0) {
    oldest = stream.marks[(stream.issued / CUstream_st::kStep) % stream.marks.size()];
  }
  if (oldest > 0 && stream.sim->reached() < oldest) {
    full_queues.fetch_add(1);
    lock.unlock();
    await(stream, oldest);
    lock.lock();
    if (!stream.sim) throw Refused{cudaErrorInvalidResourceHandle};
  }
  const int device = stream.device;
  commands.fetch_add(1);
  stream.sim->launch(
      [this, device, run = std::move(run)] {
        run();
        end_command(device);
      },
      uses);
  if (++stream.issued % CUstream_st::kStep == 0) mark(stream);
}

void World::mark(CUstream_st& stream) {
  stream.sim->record(++stream.point);
  stream.issued_at_point = stream.issued;
  stream.marks[(stream.issued / CUstream_st::kStep - 1) % stream.marks.size()] = stream.point;
}

std::uint64_t World::record(CUstream_st& stream) {
  std::lock_guard lock(stream.mutex);
  if (!stream.sim) throw Refused{cudaErrorInvalidResourceHandle};
  stream.sim->record(++stream.point);
  stream.issued_at_point = stream.issued;
  return stream.point;
}

void World::wait(CUstream_st& stream, CUstream_st& other, std::uint64_t point) {
  if (&stream == &other) return;
  std::shared_ptr<SimStream> behind;
  {
    std::lock_guard lock(other.mutex);
    behind = other.sim;
  }
  std::lock_guard lock(stream.mutex);
  if (!stream.sim) throw Refused{cudaErrorInvalidResourceHandle};
  if (behind) stream.sim->wait({behind.get(), point});  // a stream that is destroyed has finished
}

bool World::is_passed(CUstream_st& stream, std::uint64_t point) {
  std::shared_ptr<SimStream> sim;
  {
    std::lock_guard lock(stream.mutex);
    sim = stream.sim;
  }
  check_health(stream.device);
  return !sim || sim->reached() >= point;
}

void World::await(CUstream_st& stream, std::uint64_t point) {
  std::shared_ptr<SimStream> sim;
  {
    std::lock_guard lock(stream.mutex);
    sim = stream.sim;
  }
  if (sim && sim->reached() < point) core->await([&] { return sim->reached() >= point || is_lost(stream.device); });
  check_health(stream.device);
}

namespace {
void learn(std::vector<std::pair<StreamHandle, std::uint64_t>>& known, const StreamHandle& stream,
           std::uint64_t point) {
  const auto at = std::find_if(known.begin(), known.end(), [&](const auto& each) { return each.first == stream; });
  if (at == known.end()) {
    known.emplace_back(stream, point);
  } else {
    at->second = std::max(at->second, point);
  }
}
}  // namespace

void World::host_knows(const StreamHandle& stream, std::uint64_t point, bool all) {
  if (!core->observer) return;
  if (all) {
    std::lock_guard lock(mutex_);
    learn(synchronized_, stream, point);
  }
  if (!explicit_order.load()) learn(thread_state(*this).known, stream, point);
  std::shared_ptr<SimStream> sim;
  {
    std::lock_guard lock(stream->mutex);
    sim = stream->sim;
  }
  if (!sim) return;
  const std::pair<sluice::AccessObserver::Stream, std::uint64_t> points[] = {{sim->observed_as(), point}};
  core->observer->host_after(points, false);
}

/// The points that the calling thread may take as passed. Unless the program says what its host has read, each word
/// that can be seen counts as read: so what comes by chance after something else is not reported, and no program that
/// asks words is accused wrongly.
World::Known World::known_here() {
  Known known;
  std::vector<StreamHandle> with_words;
  {
    std::lock_guard lock(mutex_);
    known = synchronized_;
    if (explicit_order.load()) return known;
    for (const auto& [handle, stream] : streams_) with_words.push_back(stream);
  }
  for (const auto& [stream, point] : thread_state(*this).known) learn(known, stream, point);
  for (const StreamHandle& stream : with_words) {
    std::lock_guard lock(stream->mutex);
    if (!stream->word) continue;
    const std::uint64_t seen = __atomic_load_n(stream->word, __ATOMIC_ACQUIRE);
    const auto next = std::upper_bound(stream->written.begin(), stream->written.end(), seen,
                                       [](std::uint64_t v, const auto& write) { return v < write.first; });
    if (next != stream->written.begin()) learn(known, stream, std::prev(next)->second);
  }
  return known;
}

/// What the thread issues to the stream comes after what it has waited for.
void World::tell_order(CUstream_st& stream) {
  if (!core->observer) return;
  for (const auto& [other, point] : known_here()) {
    std::shared_ptr<SimStream> sim;
    {
      std::lock_guard lock(other->mutex);  // never both at once
      sim = other->sim;
    }
    std::lock_guard lock(stream.mutex);
    std::uint64_t& told = stream.behind[other.get()];
    if (other.get() == &stream || !stream.sim || told >= point) continue;
    told = point;
    if (!sim) continue;
    const sluice::StreamEvent passed[] = {{sim.get(), point}};
    stream.sim->ordered_after(passed);
  }
}

// ---- threads

ThreadState& thread_state(World& world) {
  thread_local ThreadState state;
  if (state.world != world.number) {
    static std::atomic<std::uint64_t> threads{0};
    std::minstd_rand random(static_cast<std::minstd_rand::result_type>(world.options.seed * 7919 + ++threads));
    random.discard(3);
    state = ThreadState{};
    state.world = world.number;
    state.device = world.devices() > 0 ? static_cast<int>(random() % static_cast<unsigned>(world.devices())) : 0;
  }
  return state;
}

bool& has_context_here() {
  thread_local bool has = false;
  return has;
}

cudaError_t answer_exception(World& world) noexcept {
  try {
    throw;
  } catch (const Refused& refused) {
    return refused.error;
  } catch (const std::bad_alloc&) {
    return cudaErrorMemoryAllocation;
  } catch (const sluice::UsageError&) {  // reported by what threw it
    return cudaErrorInvalidValue;
  } catch (const std::exception& e) {
    world.report(std::string("unexpected: ") + e.what());
    return cudaErrorUnknown;
  } catch (...) {
    return cudaErrorUnknown;
  }
}

// ---- the control

void reset(const Options& options) { World::replace(options); }
std::vector<std::string> take_reports() { return World::current()->control->take_reports(); }
std::uint64_t commands() { return World::current()->commands.load(); }
std::uint64_t full_queues() { return World::current()->full_queues.load(); }
PeerCopies peer_copies() {
  const auto world = World::current();
  return {world->direct_copies.load(), world->staged_copies.load()};
}
std::vector<int> contexts() {
  const auto world = World::current();
  std::vector<int> found;
  for (int i = 0; i < world->devices(); ++i) {
    if (world->contexts[static_cast<std::size_t>(i)].load()) found.push_back(i);
  }
  return found;
}
Live live() { return World::current()->live(); }

}  // namespace cuda_double
