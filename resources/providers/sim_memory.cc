#include "sluice/resources/providers/detail/sim_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define SLUICE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLUICE_ASAN 1
#endif
#endif
#ifdef SLUICE_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace sluice::detail {
namespace {

constexpr std::size_t kReservation = std::size_t{1} << 36, kLeastReservation = std::size_t{1} << 26;
constexpr std::size_t kGuardBytes = 256;

/// Under AddressSanitizer a kernel cannot touch what is not handed out.
void allow([[maybe_unused]] const std::byte* begin, [[maybe_unused]] std::size_t bytes) {
#ifdef SLUICE_ASAN
  ASAN_UNPOISON_MEMORY_REGION(begin, bytes);
#endif
}
void forbid([[maybe_unused]] const std::byte* begin, [[maybe_unused]] std::size_t bytes) {
#ifdef SLUICE_ASAN
  ASAN_POISON_MEMORY_REGION(begin, bytes);
#endif
}

/// Fills memory, but of large blocks only the pages that somebody has touched: the others hold nothing to be hidden.
void poison(std::byte* begin, std::size_t bytes) {
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto past = reinterpret_cast<std::uintptr_t>(begin) % page;  // the mapping begins with a page, a block need not
  std::vector<unsigned char> touched;
  if (bytes > kLarge) touched.resize((past + bytes + page - 1) / page);
  if (touched.empty() || ::mincore(begin - past, past + bytes, touched.data()) != 0) {
    std::memset(begin, SimMemory::kPoison, bytes);
    return;
  }
  for (std::size_t i = 0, at = 0; at < bytes; ++i) {
    const std::size_t end = std::min(bytes, (i + 1) * page - past);
    if (touched[i] & 1) std::memset(begin + at, SimMemory::kPoison, end - at);
    at = end;
  }
}

constexpr std::size_t padded(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + SimMemory::kAlignment - 1) / SimMemory::kAlignment * SimMemory::kAlignment;
}

}  // namespace

SimMemory::~SimMemory() {
  if (std::byte* const kernels = kernels_.load()) {
    allow(kernels, touched_);  // whoever is given these addresses next
    ::munmap(kernels, reserved_);
    ::munmap(handles_.load(), reserved_);
  }
}

bool SimMemory::reserve() {
  if (reserved_ > 0) return true;
  const int file = ::memfd_create("sluice simulated device", MFD_CLOEXEC);
  if (file < 0) return false;
  void *handles = MAP_FAILED, *kernels = MAP_FAILED;
  // Less where the process may not have so many addresses.
  for (std::size_t size = kReservation; size >= kLeastReservation; size /= 2) {
    if (::ftruncate(file, static_cast<off_t>(size)) != 0) continue;
    handles = ::mmap(nullptr, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (handles == MAP_FAILED) continue;
    kernels = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (kernels != MAP_FAILED) {
      reserved_ = size;
      break;
    }
    ::munmap(handles, size);
  }
  ::close(file);
  if (reserved_ == 0) return false;
  try {
    blocks_.emplace(0, Block{.size = reserved_});
  } catch (const std::bad_alloc&) {
    ::munmap(handles, reserved_);
    ::munmap(kernels, reserved_);
    reserved_ = 0;
    return false;
  }
  kernels_.store(static_cast<std::byte*>(kernels));
  extent_.store(reserved_);
  handles_.store(static_cast<std::byte*>(handles));
  return true;
}

void* SimMemory::allocate(std::size_t bytes, const void* stream) noexcept {
  if (bytes > kReservation) return nullptr;
  std::lock_guard lock(mutex_);
  if (!reserve()) return nullptr;
  const std::size_t size = padded(bytes) + kGuardBytes;
  try {
    if (options_.limit == 0 || in_use_ + padded(bytes) <= options_.limit) {
      for (auto at = blocks_.find(first_free_); at != blocks_.end(); ++at) {
        if (at->second.use == Use::free && at->second.size >= size) return take(at, bytes, stream);
      }
    }
    // What the same stream gave back is over when it comes to what is issued now.
    for (auto& [offset, block] : blocks_) {
      if (block.use != Use::freeing || block.stream != stream || block.size != size || !stream) continue;
      block.use = Use::live;
      block.bytes = bytes;
      return handles_.load() + offset;
    }
  } catch (const std::bad_alloc&) {
  }
  return nullptr;
}

void* SimMemory::take(Blocks::iterator at, std::size_t bytes, const void* stream) {
  const std::size_t offset = at->first, size = padded(bytes) + kGuardBytes, rest = at->second.size - size;
  if (rest > 0) blocks_.emplace_hint(std::next(at), offset + size, Block{.size = rest});
  at->second = {bytes, size, Use::live, stream, 0};
  if (offset == first_free_) first_free_ += size;
  touched_ = std::max(touched_, offset + size);
  in_use_ += padded(bytes);
  open(offset, at->second);
  return handles_.load() + offset;
}

void SimMemory::open(std::size_t offset, const Block& block) {
  std::byte* const begin = kernels_.load() + offset;
  const std::size_t inside = block.size - kGuardBytes;
  allow(begin, block.size);
  std::memset(begin + inside, kGuard, kGuardBytes);
  forbid(begin + inside, kGuardBytes);
}

SimMemory::Blocks::iterator SimMemory::find(const void* handle) {
  if (!holds(handle)) return blocks_.end();
  return blocks_.find(static_cast<std::size_t>(static_cast<const std::byte*>(handle) - handles_.load()));
}

std::uint64_t SimMemory::begin_free(const void* handle, const void* stream) noexcept {
  std::lock_guard lock(mutex_);
  const auto at = find(handle);
  if (at == blocks_.end() || at->second.use != Use::live) return 0;
  at->second.use = Use::freeing;
  at->second.stream = stream;
  return at->second.ticket = ++tickets_;
}

bool SimMemory::end_free(const void* handle, std::uint64_t ticket) noexcept {
  std::unique_lock lock(mutex_);
  const auto at = find(handle);
  if (at == blocks_.end() || at->second.use == Use::free) return true;
  std::byte* const begin = kernels_.load() + at->first;
  const std::size_t inside = at->second.size - kGuardBytes;
  allow(begin + inside, kGuardBytes);
  const bool whole =
      std::all_of(begin + inside, begin + inside + kGuardBytes, [](std::byte b) { return b == std::byte{kGuard}; });
  std::memset(begin + inside, kGuard, kGuardBytes);
  forbid(begin + inside, kGuardBytes);
  // Nobody else has the block now: not even where it is handed out again, for then its stream comes to that later.
  lock.unlock();
  if (options_.poison) poison(begin, inside);
  lock.lock();
  if (at->second.use != Use::freeing || at->second.ticket != ticket) return whole;
  forbid(begin, inside);
  in_use_ -= inside;
  at->second.use = Use::free;
  first_free_ = std::min(first_free_, at->first);
  if (const auto next = std::next(at); next != blocks_.end() && next->second.use == Use::free) {
    at->second.size += next->second.size;
    blocks_.erase(next);
  }
  if (at != blocks_.begin()) {
    if (const auto before = std::prev(at); before->second.use == Use::free) {
      before->second.size += at->second.size;
      blocks_.erase(at);
    }
  }
  return whole;
}

bool SimMemory::holds(const void* address) const noexcept {
  const std::byte* const handles = handles_.load(std::memory_order_acquire);
  return handles && std::less_equal<>()(handles, static_cast<const std::byte*>(address)) &&
         std::less<>()(static_cast<const std::byte*>(address), handles + extent_.load(std::memory_order_relaxed));
}

void* SimMemory::kernel_address(const void* handle) const noexcept {
  return kernels_.load() + (static_cast<const std::byte*>(handle) - handles_.load());
}

const void* SimMemory::handle(const void* kernel_address) const noexcept {
  const std::byte* const handles = handles_.load(std::memory_order_acquire);
  if (!handles) return nullptr;
  const std::byte* const kernels = kernels_.load();
  const auto* const at = static_cast<const std::byte*>(kernel_address);
  const bool inside = std::less_equal<>()(kernels, at) && std::less<>()(at, kernels + extent_.load());
  return inside ? handles + (at - kernels) : nullptr;
}

/// The block with the address.
SimMemory::Blocks::const_iterator SimMemory::around(const void* address) const {
  if (!holds(address)) return blocks_.end();
  return std::prev(
      blocks_.upper_bound(static_cast<std::size_t>(static_cast<const std::byte*>(address) - handles_.load())));
}

bool SimMemory::covers(const void* begin, std::size_t bytes) const {
  std::lock_guard lock(mutex_);
  const auto at = around(begin);
  if (at == blocks_.end() || at->second.use != Use::live) return false;
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(begin) - handles_.load()) - at->first;
  return offset <= at->second.bytes && bytes <= at->second.bytes - offset;
}

std::pair<const void*, std::size_t> SimMemory::block(const void* address) const {
  std::lock_guard lock(mutex_);
  const auto at = around(address);
  if (at == blocks_.end() || at->second.use != Use::live) return {};
  const std::byte* const begin = handles_.load() + at->first;
  if (static_cast<const std::byte*>(address) > begin + at->second.bytes) return {};
  return {begin, at->second.bytes};
}

bool SimMemory::same_block(const void* a, const void* b) const {
  std::lock_guard lock(mutex_);
  const auto at = around(a);
  return at != blocks_.end() && at == around(b);
}

std::size_t SimMemory::in_use() const {
  std::lock_guard lock(mutex_);
  return in_use_;
}

}  // namespace sluice::detail
