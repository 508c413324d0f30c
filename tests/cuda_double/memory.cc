// Memory, copies and fills.
#include <algorithm>
#include <cstring>
#include <vector>

#include "double.h"

namespace cuda_double {
namespace {

constexpr std::size_t kPoisonedAtOnce = std::size_t{1} << 20;

enum class Place { host, pinned, device };

Place place_of(const World& world, const void* address) {
  if (world.owner(address) >= 0) return Place::device;
  return world.pinned_block(address).begin ? Place::pinned : Place::host;
}

bool fits(cudaMemcpyKind kind, bool to_device, bool from_device) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

/// Tells whether bytes have changed.
std::uint64_t digest(const void* begin, std::size_t bytes) {
  std::uint64_t hash = 0x9E3779B97F4A7C15u, word = 0;
  const auto* at = static_cast<const std::byte*>(begin);
  for (; bytes >= 8; at += 8, bytes -= 8) {
    std::memcpy(&word, at, 8);
    hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
    hash ^= hash >> 32;
  }
  word = 0;
  if (bytes > 0) std::memcpy(&word, at, bytes);
  return (hash ^ word) * 0xD6E8FEB86659FD93u;
}

void copy(World& world, void* to, const void* from, std::size_t bytes, CUstream_st& stream) {
  if (bytes == 0) return;
  SimCore& core = *world.core;
  void* const target = core.reach(to, bytes, false);
  const void* const source = core.reach(from, bytes, false);
  // What a copy that has not run yet will bring cannot be compared; the record sees who comes after whom.
  const bool compares = world.owner(from) < 0 && !world.is_arriving({static_cast<const std::byte*>(from), bytes});
  const std::uint64_t before = compares ? digest(source, bytes) : 0;
  const bool arrives = world.owner(to) < 0;
  const Range arriving{static_cast<const std::byte*>(to), bytes};
  if (arrives) world.add_arriving(arriving);
  const int source_device = world.owner(from), target_device = world.owner(to);
  bool staged = false;
  if (source_device >= 0 && target_device >= 0 && source_device != target_device) {
    staged = !world.pool_access[static_cast<std::size_t>(target_device * 64 + source_device)].load();
    (staged ? world.staged_copies : world.direct_copies).fetch_add(1);
  }
  const sluice::MemoryUse uses[] = {{from, bytes, false}, {to, bytes, true}};
  world.issue(
      stream,
      [&world, caller = core.caller(), target, source, bytes, compares, before, arrives, arriving, staged] {
        if (compares && digest(source, bytes) != before) {
          world.report(caller, "a pinned buffer of " + std::to_string(bytes) +
                                   " bytes was changed before the copy from it had begun");
        }
        if (staged) {
          const auto* const begin = static_cast<const std::byte*>(source);
          const std::vector<std::byte> on_the_host(begin, begin + bytes);
          std::memcpy(target, on_the_host.data(), bytes);
        } else {
          std::memcpy(target, source, bytes);
        }
        if (arrives) world.remove_arriving(arriving);
      },
      uses);
}

void fill(World& world, void* to, int value, std::size_t bytes, CUstream_st& stream) {
  if (bytes == 0) return;
  void* const target = world.core->reach(to, bytes, false);
  const sluice::MemoryUse uses[] = {{to, bytes, true}};
  world.issue(
      stream, [target, value, bytes] { std::memset(target, value, bytes); }, uses);
}

}  // namespace

void* World::allocate(CUstream_st* stream, int device, std::size_t bytes) {
  void* block = nullptr;
  if (stream) {
    const std::size_t elsewhere = take_returned(*stream, bytes);
    if (elsewhere > 0 &&
        core->devices[static_cast<std::size_t>(device)]->memory.in_use() + elsewhere + bytes > options.memory) {
      throw Refused{cudaErrorMemoryAllocation};
    }
    std::lock_guard lock(stream->mutex);
    if (!stream->sim) throw Refused{cudaErrorInvalidResourceHandle};
    block = stream->sim->allocate(device, bytes);
  } else {
    block = core->devices[static_cast<std::size_t>(device)]->memory.allocate(bytes, nullptr);
    if (block && core->observer) core->observer->allocated(block, bytes);
  }
  if (!block) throw Refused{cudaErrorMemoryAllocation};
  blocks_.fetch_add(1);
  if (stream && options.poison && bytes <= kPoisonedAtOnce) fill(*this, block, 0xFF, bytes, *stream);
  return block;
}

/// Bytes that other streams have given back and that are not trimmed. What this stream gave back serves it first.
std::size_t World::take_returned(const CUstream_st& stream, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  std::size_t elsewhere = 0;
  for (Returned& each : returned_) {
    if (each.device != stream.device) continue;
    if (each.stream == &stream) {
      const std::size_t taken = std::min(bytes, each.bytes);
      each.bytes -= taken;
      bytes -= taken;
    } else {
      elsewhere += each.bytes;
    }
  }
  std::erase_if(returned_, [](const Returned& each) { return each.bytes == 0; });
  return elsewhere;
}

void World::has_synchronized(const CUstream_st& stream) {
  std::lock_guard lock(mutex_);
  for (Returned& each : returned_) {
    if (each.stream == &stream) each.stream = nullptr;
  }
}

void World::trim(int device) {
  std::lock_guard lock(mutex_);
  std::erase_if(returned_, [&](const Returned& each) { return each.device == device && !each.stream; });
}

void World::free(CUstream_st* stream, int device, void* block) {
  if (stream) {
    const std::size_t bytes = device_block(block).bytes;
    {
      std::lock_guard lock(mutex_);
      const auto at = std::find_if(returned_.begin(), returned_.end(), [&](const Returned& each) {
        return each.stream == stream && each.device == device;
      });
      if (at != returned_.end()) {
        at->bytes += bytes;
      } else {
        returned_.push_back({stream, device, bytes});
      }
    }
    std::lock_guard lock(stream->mutex);
    if (!stream->sim) throw Refused{cudaErrorInvalidResourceHandle};
    if (!stream->sim->free(block, device)) {
      refuse(cudaErrorInvalidValue, "a free of what is no block of device " + std::to_string(device));
    }
    blocks_.fetch_sub(1);
    // The queue's length counts it, and a point that is asked for later stands behind it.
    ++stream->issued;
    if (stream->issued % CUstream_st::kStep == 0) mark(*stream);
    return;
  }
  const std::uint64_t ticket = core->devices[static_cast<std::size_t>(device)]->memory.begin_free(block, nullptr);
  if (ticket == 0) refuse(cudaErrorInvalidValue, "a free of what is no block of device " + std::to_string(device));
  if (core->observer && !control->broken()) core->observer->freed(block, core->caller());
  core->end_free(device, block, ticket);
  blocks_.fetch_sub(1);
}

void* World::allocate_pinned(std::size_t bytes) {
  void* const block = core->allocate_pinned(bytes);
  if (!block) throw Refused{cudaErrorMemoryAllocation};
  std::lock_guard lock(mutex_);
  pinned_[static_cast<const std::byte*>(block)] = bytes;
  return block;
}

bool World::free_pinned(void* block) {
  {
    std::lock_guard lock(mutex_);
    const auto at = pinned_.find(static_cast<const std::byte*>(block));
    if (at == pinned_.end()) return false;
    for (auto& [handle, stream] : streams_) {
      std::lock_guard inner(stream->mutex);
      const auto* const word = reinterpret_cast<const std::byte*>(stream->word);
      if (word >= at->first && word < at->first + at->second) stream->word = nullptr;
    }
    pinned_.erase(at);
  }
  core->free_pinned(block);
  return true;
}

Range World::pinned_block(const void* address) const {
  std::lock_guard lock(mutex_);
  const auto* const at = static_cast<const std::byte*>(address);
  const auto next = pinned_.upper_bound(at);
  if (next == pinned_.begin()) return {};
  const auto& [begin, bytes] = *std::prev(next);
  return at < begin + bytes ? Range{begin, bytes} : Range{};
}

void World::add_arriving(const Range& range) {
  std::lock_guard lock(mutex_);
  arriving_.push_back(range);
}

void World::remove_arriving(const Range& range) {
  std::lock_guard lock(mutex_);
  const auto at = std::find_if(arriving_.begin(), arriving_.end(), [&](const Range& each) {
    return each.begin == range.begin && each.bytes == range.bytes;
  });
  if (at != arriving_.end()) arriving_.erase(at);
}

bool World::is_arriving(const Range& range) const {
  std::lock_guard lock(mutex_);
  return std::any_of(arriving_.begin(), arriving_.end(), [&](const Range& each) {
    return each.begin < range.begin + range.bytes && range.begin < each.begin + each.bytes;
  });
}

Range World::device_block(const void* address) const {
  const int device = owner(address);
  if (device < 0) return {};
  const auto [begin, bytes] = core->devices[static_cast<std::size_t>(device)]->memory.block(address);
  return {static_cast<const std::byte*>(begin), bytes};
}

}  // namespace cuda_double

using namespace cuda_double;

namespace {
/// What waits for all of a device's work belongs before its first.
void check_start_up(World& world, int device, const char* what) {
  if (world.is_started(device)) {
    world.report(std::string(what) + " waits for all work of the device: at its start only");
  }
}
}  // namespace

cudaError_t cudaMalloc(void** block, std::size_t bytes) {
  return call(Fault::allocation, [&](World& world, ThreadState& thread) {
    if (!block) throw Refused{cudaErrorInvalidValue};
    world.check_health(thread.device);
    check_start_up(world, thread.device, "cudaMalloc");
    *block = bytes ? world.allocate(nullptr, thread.device, bytes) : nullptr;
  });
}

cudaError_t cudaFree(void* block) {
  return call(kReleases, [&](World& world, ThreadState&) {
    if (!block) return;
    const int device = world.owner(block);
    if (device < 0) world.refuse(cudaErrorInvalidValue, "cudaFree of what is no memory of a device");
    check_start_up(world, device, "cudaFree");
    world.free(nullptr, device, block);
  });
}

cudaError_t cudaMallocAsync(void** block, std::size_t bytes, cudaStream_t handle) {
  return call(Fault::allocation, [&](World& world, ThreadState&) {
    if (!block) throw Refused{cudaErrorInvalidValue};
    const StreamHandle stream = world.stream(handle, "cudaMallocAsync");
    *block = bytes ? world.allocate(stream.get(), stream->device, bytes) : nullptr;
  });
}

cudaError_t cudaFreeAsync(void* block, cudaStream_t handle) {
  return call(kReleases, [&](World& world, ThreadState&) {
    const StreamHandle stream = world.stream(handle, "cudaFreeAsync");
    if (!block) return;
    const int device = world.owner(block);
    if (device < 0) world.refuse(cudaErrorInvalidValue, "cudaFreeAsync of what is no memory of a device");
    world.free(stream.get(), device, block);
  });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    if (!pool) throw Refused{cudaErrorInvalidValue};
    world.check_device(device);
    *pool = &world.pool(device);
  });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    if (!value || attribute < 1 || attribute > 8) throw Refused{cudaErrorInvalidValue};
    (void)world.device_of(pool);
  });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    if (!value || attribute < cudaMemPoolAttrReleaseThreshold || attribute > 8) throw Refused{cudaErrorInvalidValue};
    const auto device = static_cast<std::size_t>(world.device_of(pool));
    *static_cast<std::uint64_t*>(value) = world.core->devices[device]->memory.in_use();
  });
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* list, std::size_t count) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    const int owner = world.device_of(pool);
    for (std::size_t i = 0; i < count; ++i) {
      const cudaMemLocation& location = list[i].location;
      if (location.type != cudaMemLocationTypeDevice) throw Refused{cudaErrorInvalidValue};
      world.check_device(location.id);
      const bool gives = list[i].flags != cudaMemAccessFlagsProtNone;
      if (location.id == owner && !gives) throw Refused{cudaErrorInvalidValue};
      if (location.id != owner && !world.options.links) throw Refused{cudaErrorInvalidDevice};
      world.pool_access[static_cast<std::size_t>(location.id * 64 + owner)] = gives;
    }
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t) {
  return call(Fault::any, [&](World& world, ThreadState&) { world.trim(world.device_of(pool)); });
}

cudaError_t cudaHostAlloc(void** block, std::size_t bytes, unsigned flags) {
  return call(Fault::pinned, [&](World& world, ThreadState&) {
    if (!block || flags > 7) throw Refused{cudaErrorInvalidValue};
    *block = bytes ? world.allocate_pinned(bytes) : nullptr;
  });
}

cudaError_t cudaFreeHost(void* block) {
  return call(kReleases, [&](World& world, ThreadState&) {
    if (block && !world.free_pinned(block)) {
      world.refuse(cudaErrorInvalidValue, "cudaFreeHost of what is no pinned block");
    }
  });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    if (!device || flags != 0 || !world.pinned_block(host).begin) throw Refused{cudaErrorInvalidValue};
    *device = host;  // one address space, as with unified addressing
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call(Fault::any, [&](World& world, ThreadState& thread) {
    if (!free || !total) throw Refused{cudaErrorInvalidValue};
    world.check_health(thread.device);
    const std::size_t used = world.core->devices[static_cast<std::size_t>(thread.device)]->memory.in_use();
    *total = world.options.memory;
    *free = *total - std::min(*total, used);
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  return call(Fault::any, [&](World& world, ThreadState&) {
    if (!attributes) throw Refused{cudaErrorInvalidValue};
    *attributes = {};
    void* const given = const_cast<void*>(address);
    attributes->device = world.owner(address);
    switch (place_of(world, address)) {
      case Place::device:
        attributes->type = cudaMemoryTypeDevice;
        attributes->devicePointer = given;
        break;
      case Place::pinned:
        attributes->type = cudaMemoryTypeHost;
        attributes->devicePointer = attributes->hostPointer = given;
        break;
      case Place::host:
        attributes->hostPointer = given;
        break;
    }
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t handle) {
  return call(Fault::copy, [&](World& world, ThreadState&) {
    const StreamHandle stream = world.stream(handle, "cudaMemcpyAsync");
    if (!fits(kind, world.owner(to) >= 0, world.owner(from) >= 0)) {
      world.refuse(cudaErrorInvalidValue, "a copy whose kind is not that of its addresses");
    }
    const int source = world.owner(from), target = world.owner(to);
    if (source >= 0 && target >= 0 && source != target &&
        !world.pool_access[static_cast<std::size_t>(stream->device * 64 +
                                                    (source == stream->device ? target : source))]) {
      world.refuse(cudaErrorInvalidValue,
                   "cudaMemcpyAsync between the memory pools of two devices that have no access: cudaMemcpyPeerAsync");
    }
    copy(world, to, from, bytes, *stream);
  });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                                cudaStream_t handle) {
  return call(Fault::copy, [&](World& world, ThreadState&) {
    const StreamHandle stream = world.stream(handle, "cudaMemcpyPeerAsync");
    world.check_device(to_device);
    world.check_device(from_device);
    if (bytes > 0 && (world.owner(to) != to_device || world.owner(from) != from_device)) {
      world.refuse(cudaErrorInvalidValue, "a copy between devices names other devices than its addresses");
    }
    copy(world, to, from, bytes, *stream);
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t handle) {
  return call(Fault::copy, [&](World& world, ThreadState&) {
    fill(world, to, value, bytes, *world.stream(handle, "cudaMemsetAsync"));
  });
}
