// Memory of a simulated device, mapped twice: once without access, whose addresses are what programs hold, and once for
// the device's kernels.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace sluice::detail {

/// Thread-safe. Takes address space at the first allocation, and memory as it is touched.
class SimMemory {
 public:
  static constexpr std::size_t kAlignment = 256;
  static constexpr unsigned char kPoison = 0xFF, kGuard = 0xFD;

  struct Options {
    std::size_t limit = 0;  ///< bytes handed out at the same time; 0: none
    bool poison = true;
  };
  explicit SimMemory(const Options& options) : options_(options) {}
  ~SimMemory();
  SimMemory(const SimMemory&) = delete;
  SimMemory& operator=(const SimMemory&) = delete;

  /// A block to be used on a stream (any address that names it; null: by anyone). Null where there is none.
  void* allocate(std::size_t bytes, const void* stream) noexcept;
  /// Takes a block back at issue: from now on it may be handed out again, to the same stream. Returns what end_free()
  /// is given in the stream's order; 0 where it is no block.
  std::uint64_t begin_free(const void* block, const void* stream) noexcept;
  /// Poisons the block, and has it handed out to anyone. False where something was written behind its end.
  bool end_free(const void* block, std::uint64_t ticket) noexcept;

  bool holds(const void* address) const noexcept;
  /// The other mapping of an address that it holds.
  void* kernel_address(const void* handle) const noexcept;
  /// The handle's address of one of the other mapping; null where it is none.
  const void* handle(const void* kernel_address) const noexcept;
  /// Whether the bytes are inside of one block that is handed out.
  bool covers(const void* begin, std::size_t bytes) const;
  /// Where the block that is handed out and holds the address begins, and its bytes; null where there is none.
  std::pair<const void*, std::size_t> block(const void* address) const;
  /// Whether both addresses are of one block, or of the gap behind it.
  bool same_block(const void* a, const void* b) const;
  /// Bytes handed out, or taken back and not ended, with their padding.
  std::size_t in_use() const;

 private:
  enum class Use : std::uint8_t { free, live, freeing };
  struct Block {
    std::size_t bytes = 0;  ///< asked for
    std::size_t size = 0;   ///< with padding, and a gap that nobody may touch
    Use use = Use::free;
    const void* stream = nullptr;
    std::uint64_t ticket = 0;
  };
  using Blocks = std::map<std::size_t, Block>;  ///< by offset; they cover the whole reservation

  bool reserve();
  void* take(Blocks::iterator at, std::size_t bytes, const void* stream);
  void open(std::size_t offset, const Block& block);
  Blocks::iterator find(const void* handle);
  Blocks::const_iterator around(const void* address) const;

  const Options options_;
  mutable std::mutex mutex_;
  Blocks blocks_;
  std::size_t reserved_ = 0, in_use_ = 0;
  std::size_t first_free_ = 0;  ///< no block before it is free
  std::size_t touched_ = 0;     ///< no block was ever behind it
  std::uint64_t tickets_ = 0;
  std::atomic<std::byte*> handles_{nullptr}, kernels_{nullptr};
  std::atomic<std::size_t> extent_{0};
};

}  // namespace sluice::detail
