#include "libraries.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>

#include "sluice/engine/order_observer.h"

namespace cuda_double {

void make_library_handle(World& world, ThreadState& thread, LibraryHandle& handle, const char* call) {
  world.check_health(thread.device);
  if (world.is_started(thread.device)) {
    world.report(std::string(call) + " waits for all work of the device: at its start only");
  }
  handle.world = world.number;
  handle.device = thread.device;
}

StreamHandle library_stream(World& world, ThreadState& thread, LibraryHandle& handle, cudaStream_t stream,
                            const char* call) {
  if (handle.world != world.number)
    world.refuse(cudaErrorInvalidResourceHandle, std::string(call) + " with a handle of before");
  const StreamHandle found = world.stream(stream, call);
  if (handle.device != thread.device || found->device != thread.device) {
    world.refuse(cudaErrorInvalidResourceHandle, std::string(call) + " with a handle of device " +
                                                     std::to_string(handle.device) + " on a stream of device " +
                                                     std::to_string(found->device) + " while the current device is " +
                                                     std::to_string(thread.device));
  }
  cudaStream_t first = nullptr;
  if (!handle.stream.compare_exchange_strong(first, stream) && first != stream) {
    world.report(std::string(call) + ": a handle is shared by two streams");
  }
  return found;
}

void issue_library_kernel(World& world, const StreamHandle& stream, const std::string& call,
                          std::span<const Operand> operands, std::function<void()> run) {
  const std::span<const sluice::MemoryUse> declared = sluice::current_memory_uses();
  std::vector<sluice::MemoryUse> uses;
  for (const Operand& operand : operands) {
    if (!operand.at || operand.bytes == 0) continue;
    const Range block = world.device_block(operand.at);
    const auto* const begin = static_cast<const std::byte*>(operand.at);
    if (!block.begin || begin + operand.bytes > block.begin + block.bytes) {
      world.refuse(cudaErrorInvalidValue, call + (operand.writes ? " writes " : " reads ") +
                                              std::to_string(operand.bytes) + " bytes that are not inside of a block" +
                                              (block.begin ? " of " + std::to_string(block.bytes) + " bytes" : ""));
    }
    if (world.owner(operand.at) != stream->device) {
      world.refuse(cudaErrorInvalidValue, call + " is given memory of another device");
    }
    if (declared.data() && operand.declared) {
      const bool known = std::any_of(declared.begin(), declared.end(), [&](const sluice::MemoryUse& use) {
        const auto* const first = static_cast<const std::byte*>(use.begin);
        return begin >= first && begin + operand.bytes <= first + use.bytes && (use.writes || !operand.writes);
      });
      if (!known) {
        world.report(call + (operand.writes ? " writes " : " reads ") + std::to_string(operand.bytes) +
                     " bytes that its op did not declare");
      }
    }
    uses.push_back({operand.at, operand.bytes, operand.writes});
  }
  world.issue_kernel(*stream, std::move(run), uses);
}

namespace {
std::mutex kept_mutex;
std::set<const void*>& kept() {
  static auto* const handles = new std::set<const void*>;
  return *handles;
}
}  // namespace

void keep_handle(World& world, void* handle) {
  std::lock_guard lock(kept_mutex);
  kept().insert(handle);
  world.count_handle(1);
}

bool end_handle(const LibraryHandle& handle, const void* made, const char* call) {
  {
    std::lock_guard lock(kept_mutex);
    if (kept().erase(made) == 0) return false;
  }
  const auto world = World::current();
  if (handle.world != world->number) return true;
  world->count_handle(-1);
  if (world->control->condition(handle.device) != sluice::SimControl::Condition::alive) {
    world->report(std::string(call) + " waits for all work of a device that does not answer");
  }
  const int current = thread_state(*world).device;
  if (current != handle.device) {
    world->report(std::string(call) + " of a handle of device " + std::to_string(handle.device) +
                  " while the current device is " + std::to_string(current));
  }
  return true;
}

std::uint64_t is_refused_at_random(World& world) {
  if (world.options.refused_of_100 <= 0) return 0;
  static std::atomic<std::uint64_t> draws{0};
  std::uint64_t x = world.options.seed * 0x9E3779B97F4A7C15u + draws.fetch_add(1) * 0xD6E8FEB86659FD93u;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
  return static_cast<int>((x >> 33) % 100) < world.options.refused_of_100 ? (x >> 40) | 1 : 0;
}

std::size_t element_bytes(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_64F:
      return 8;
    case CUDA_R_32F:
    case CUDA_R_32I:
      return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_8I:
      return 1;
  }
  return 0;
}

namespace {

double from_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value;
  if (exponent == 31) {
    value = fraction ? std::nan("") : HUGE_VAL;
  } else {
    value = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
  }
  return bits & 0x8000 ? -value : value;
}

/// The nearest value, ties to even.
std::uint16_t to_half(double value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7E00);
  double size = std::fabs(value);
  if (size >= 65520) return static_cast<std::uint16_t>(sign | 0x7C00);
  int exponent = size > 0 ? std::max(std::ilogb(size), -14) : -14;
  auto steps = static_cast<unsigned>(std::nearbyint(std::ldexp(size, 10 - exponent)));  // of the last place
  if (steps == 2048) {
    steps = 1024;
    ++exponent;
  }
  return static_cast<std::uint16_t>(sign |
                                    (steps < 1024 ? steps : static_cast<unsigned>(exponent + 14) * 1024 + steps));
}

}  // namespace

double load(const void* base, std::size_t index, cudaDataType_t type) {
  const auto* const at = static_cast<const std::byte*>(base) + index * element_bytes(type);
  switch (type) {
    case CUDA_R_64F: {
      double value;
      std::memcpy(&value, at, 8);
      return value;
    }
    case CUDA_R_32F: {
      float value;
      std::memcpy(&value, at, 4);
      return value;
    }
    case CUDA_R_16F:
    case CUDA_R_16BF: {
      std::uint16_t bits;
      std::memcpy(&bits, at, 2);
      return type == CUDA_R_16F ? from_half(bits) : std::bit_cast<float>(std::uint32_t{bits} << 16);
    }
    default:
      return 0;
  }
}

void store(void* base, std::size_t index, cudaDataType_t type, double value) {
  auto* const at = static_cast<std::byte*>(base) + index * element_bytes(type);
  switch (type) {
    case CUDA_R_64F:
      std::memcpy(at, &value, 8);
      break;
    case CUDA_R_32F: {
      const auto narrow = static_cast<float>(value);
      std::memcpy(at, &narrow, 4);
      break;
    }
    case CUDA_R_16F: {
      const std::uint16_t bits = to_half(value);
      std::memcpy(at, &bits, 2);
      break;
    }
    case CUDA_R_16BF: {
      std::uint32_t wide = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      if (std::isnan(value)) {
        wide |= 0x400000;
      } else {
        wide += 0x7FFF + (wide >> 16 & 1);
      }
      const auto bits = static_cast<std::uint16_t>(wide >> 16);
      std::memcpy(at, &bits, 2);
      break;
    }
    default:
      break;
  }
}

float to_tf32(float value) {
  if (!std::isfinite(value)) return value;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + 0x1000) & ~0x1FFFu);
}

}  // namespace cuda_double
