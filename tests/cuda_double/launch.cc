// The launch: its checks, and the command that runs the grid.
#include "cuda_double/launch.h"

#include <algorithm>
#include <optional>

#include "double.h"
#include "grid.h"
#include "names.h"
#include "sluice/engine/order_observer.h"

namespace cuda_double {
namespace {

constexpr std::size_t kArguments = 4096;

void check_limits(World& world, const detail::Launch& launch) {
  const auto refuse = [&](cudaError_t error, const std::string& what) {
    world.refuse(error, "the kernel " + name_of_kernel(launch.kernel) + " is launched with " + what);
  };
  const dim3 &g = launch.grid, &b = launch.block;
  const auto in_words = [](const dim3& d) {
    return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
  };
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535) {
    refuse(cudaErrorInvalidConfiguration, "a grid of " + in_words(g) + " blocks");
  }
  if (b.x == 0 || b.y == 0 || b.z == 0 || b.x > 1024 || b.y > 1024 || b.z > 64 ||
      std::uint64_t{b.x} * b.y * b.z > 1024) {
    refuse(cudaErrorInvalidConfiguration, "blocks of " + in_words(b) + " threads");
  }
  if (launch.shared_bytes > world.dynamic_shared(launch.kernel)) {
    refuse(cudaErrorInvalidValue, std::to_string(launch.shared_bytes) + " bytes of shared memory");
  }
  if (launch.argument_bytes > kArguments) {
    refuse(cudaErrorInvalidValue, std::to_string(launch.argument_bytes) + " bytes of arguments");
  }
}

/// The live memory that an argument names: of the stream's device, of a peer that is enabled, or pinned.
Range block_of(World& world, const detail::Launch& launch, int device, const void* address) {
  const int owner = world.owner(address);
  const auto kernel = [&] { return "the kernel " + name_of_kernel(launch.kernel); };
  if (owner < 0) {
    const Range pinned = world.pinned_block(address);
    if (!pinned.begin) world.report(kernel() + " is given memory of the host that is not pinned");
    return pinned;
  }
  if (owner != device && !world.peers[static_cast<std::size_t>(device * 64 + owner)].load()) {
    world.report(kernel() + " on device " + std::to_string(device) + " is given memory of device " +
                 std::to_string(owner));
  }
  const Range block = world.device_block(address);
  if (!block.begin) world.report(kernel() + " is given memory that is not allocated, or was freed");
  return block;
}

/// What the launch may touch: what its op declared of the blocks that its arguments name; where nobody declared
/// anything, those blocks from the pointers on. Nothing where an argument names no live memory.
std::optional<std::vector<sluice::MemoryUse>> uses_of(World& world, const detail::Launch& launch, int device) {
  const std::span<const sluice::MemoryUse> declared = sluice::current_memory_uses();
  std::vector<sluice::MemoryUse> uses;
  for (const detail::Pointer& pointer : launch.pointers) {
    const Range block = block_of(world, launch, device, pointer.address);
    if (!block.begin) return std::nullopt;
    // Pinned memory that kernels touch is the backend's own, and no op declares it.
    if (!declared.data() || world.owner(pointer.address) < 0) {
      const auto* const from = static_cast<const std::byte*>(pointer.address);
      uses.push_back({from, static_cast<std::size_t>(block.begin + block.bytes - from), pointer.writes});
      continue;
    }
    bool found = false;
    for (const sluice::MemoryUse& use : declared) {
      const auto* const begin = static_cast<const std::byte*>(use.begin);
      if (begin < block.begin || begin > block.begin + block.bytes) continue;
      found = true;
      const bool known = std::any_of(uses.begin(), uses.end(), [&](const sluice::MemoryUse& u) {
        return u.begin == use.begin && u.bytes == use.bytes && u.writes == use.writes;
      });
      if (!known) uses.push_back(use);
    }
    if (!found) {
      world.report("the kernel " + name_of_kernel(launch.kernel) + " is given memory that its op did not declare");
    }
  }
  return uses;
}

}  // namespace

void detail::issue(Launch launch) noexcept {
  (void)call(Fault::launch, [&](World& world, ThreadState& thread) {
    const StreamHandle stream = world.stream(launch.stream, "a launch");
    if (stream->device != thread.device) {
      world.refuse(cudaErrorInvalidResourceHandle, "the kernel " + name_of_kernel(launch.kernel) +
                                                       " is launched on a stream of device " +
                                                       std::to_string(stream->device) +
                                                       " while the current device is " + std::to_string(thread.device));
    }
    check_limits(world, launch);
    std::optional<std::vector<sluice::MemoryUse>> uses = uses_of(world, launch, stream->device);
    if (!uses) return;  // reported; a card would run it, and end
    auto grid = std::make_shared<Grid>(world, std::move(launch), stream->device, std::move(*uses), world.core->caller(),
                                       world.options.seed + world.commands.load());
    // The backend's own pinned memory is not recorded: kernels of several devices add to it with atomics.
    std::vector<sluice::MemoryUse> recorded = grid->uses;
    if (sluice::current_memory_uses().data()) {
      std::erase_if(recorded, [&](const sluice::MemoryUse& use) { return world.owner(use.begin) < 0; });
    }
    world.issue_kernel(
        *stream, [grid] { grid->run(); }, recorded);
  });
}

void* detail::resolve(const void* address) noexcept {
  const auto world = World::current();
  const int device = world->owner(address);
  if (device < 0) return const_cast<void*>(address);
  return world->core->devices[static_cast<std::size_t>(device)]->memory.kernel_address(address);
}

}  // namespace cuda_double
